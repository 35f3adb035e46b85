/* SPDX-License-Identifier: Apache-2.0 */
/* The user's file of settings. Lines, in this order for each device:
 *
 *     device NAME                       as in tamis_device_info, up to the end of the line
 *     attend f16 1 fetch_rows=4 fetch_level=1
 *
 * A line of settings names an op, a dtype, 1 or + for the query heads of a KV head, and any of the
 * op's settings. Empty lines and those that begin with # mean nothing. */
#ifndef TMS_CORE_SETTINGS_H
#define TMS_CORE_SETTINGS_H

#include "lib/core/error.h"
#include <limits.h>

/* The file's path. E_STATE: there is to be none; E_ARGUMENT: it is too long. */
tamis_status tms_settings_path(char path[PATH_MAX], tamis_error *error);
/* Takes what the file says of the device of that name; *named: whether it says anything. A file that
 * does not exist says nothing. E_FORMAT with path and line, E_IO, E_NO_MEMORY. */
tamis_status tms_settings_read(const char *path, const char *device, tms_settings *to, bool *named,
                               tamis_error *error);
/* Puts the device's settings into the file, those that are not as shipped. Where the file names the
 * device, settings that are as they were `found` stay as the file has them: others have written it. */
tamis_status tms_settings_write(const char *path, const char *device, const tms_settings *from,
                                const tms_settings *found, const tms_settings *shipped,
                                tamis_error *error);

#endif
