/* SPDX-License-Identifier: Apache-2.0 */
/* Small text files of the user's: read whole, replaced whole. */
#ifndef TMS_TEXT_FILE_H
#define TMS_TEXT_FILE_H

#include "host/base/quote.h"
#include "lib/core/error.h"
#include <limits.h>

#define TMS_TEXT_MOST (16u << 20) /* bytes of a file */

/* Where the user keeps his settings: `name` in the folder tamis of $XDG_CONFIG_HOME, else of
 * ~/.config. Errors: E_STATE if neither is an absolute path; E_ARGUMENT if there is no room. */
tamis_status tms_config_path(const char *name, char *path, size_t capacity, tamis_error *error);

/* *text is the whole file and a NUL behind it, which the caller frees; NULL if there is no file.
 * Errors: E_IO, E_FORMAT (no ordinary file, or a large one), E_NO_MEMORY. */
tamis_status tms_text_read(const char *path, char **text, size_t *bytes, tamis_error *error);

/* A file that is to be replaced. While it is open, others who replace files in its folder wait. */
typedef struct tms_draft {
    char path[PATH_MAX], folder[PATH_MAX], own[PATH_MAX + 32];
    int lock; /* the folder, open */
} tms_draft;

/* Makes the folder where it is missing. A symbolic link stays, also one to a file that is not there
 * yet: d->path is what it points to. */
tamis_status tms_draft_open(const char *path, tms_draft *d, tamis_error *error);
/* Writes the text under another name and then gives it the file's. The name is the same each time,
 * so what a writer that was killed has left is replaced by the next one. An error leaves the old file;
 * E_FULL: the text has more than TMS_TEXT_MOST bytes. */
tamis_status tms_draft_put(tms_draft *d, const char *text, size_t bytes, tamis_error *error);
void tms_draft_close(tms_draft *d);

#endif
