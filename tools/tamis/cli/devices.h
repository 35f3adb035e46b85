/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis devices` in parts: the list of devices and the matrix of what works together. */
#ifndef CLI_DEVICES_H
#define CLI_DEVICES_H

#include "cli/cli.h"

#include <string.h>

/* Whether `device` means this entry: its id, or its backend; NULL and "auto" mean every one. */
static inline bool devices_is_meant(const tamis_device_info *info, const char *device) {
    return device == NULL || strcmp(device, "auto") == 0 || strcmp(device, info->id) == 0 ||
           strcmp(device, info->backend) == 0;
}

/* Makes a small plan for every eviction, selection and dtype on the first usable device of every
 * backend that `device` means, and prints which of them the library makes and why it refuses the
 * rest: as a table, or as Markdown; in full as JSON to the file `json`, if it is given. Returns the
 * exit status. */
int devices_matrix(const char *command, const tamis_device_info *infos, size_t count,
                   const char *device, bool markdown, const char *json);

#endif
