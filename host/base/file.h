/* SPDX-License-Identifier: Apache-2.0 */
/* Files read whole: the one reader of files whose size is bounded. */
#ifndef TMS_BASE_FILE_H
#define TMS_BASE_FILE_H

#include "host/base/error.h"
#include <stddef.h>

/* *bytes is the whole file and a NUL behind it, which the caller frees; NULL if there is no file.
 * It opens no pipe, device or socket and waits for nobody.
 * Errors: E_IO; E_FORMAT (no ordinary file, or more than `most` bytes); E_NO_MEMORY. */
tamis_status tms_file_read(const char *path, size_t most, char **bytes, size_t *n,
                           tamis_error *error);

/* The same of a file that nobody but the user and root can have written. Errors also: E_STATE with
 * the file or the folder that tms_path_check does not trust. */
tamis_status tms_file_read_trusted(const char *path, size_t most, char **bytes, size_t *n,
                                   tamis_error *error);

/* E_STATE unless the file or folder, and every folder above it, belongs to the user or to root and
 * nobody else may write there. A folder that others may write is trusted where it is sticky, as
 * /tmp is: they can neither rename nor remove what is not theirs. What is not there yet is judged
 * by the folders above it that are. E_IO. */
tamis_status tms_path_check(const char *path, tamis_error *error);

#endif
