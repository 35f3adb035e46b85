/* SPDX-License-Identifier: Apache-2.0 */
/* Trials as text: the lines of a file, and the entries that they say. */
#ifndef TMS_BLEND_TRIAL_H
#define TMS_BLEND_TRIAL_H

#include "lib/core/bytes.h"
#include "lib/core/error.h"
#include <tamis/blend_trials.h>

typedef struct tms_trials {
    tamis_blend_trial *entries; /* freed by free() */
    size_t count;
} tms_trials;

/* What must hold for an entry, in a file and from a caller. E_ARGUMENT with the value. */
tamis_status tms_trial_check(const tamis_blend_trial *trial, tamis_error *error);

/* The entries of a file's text. `path` is for messages. Errors as tamis_blend_trial_read; then
 * there is nothing to free. */
tamis_status tms_trials_parse(const char *path, const char *text, size_t bytes, tms_trials *out,
                              tamis_error *error);

/* The text of a file with these entries; *text is the caller's to free. */
tamis_status tms_trials_print(const tms_trials *trials, char **text, size_t *bytes,
                              tamis_error *error);

/* Whether two entries are of one fingerprint and of the same settings. */
bool tms_trial_same(const tamis_blend_trial *a, const tamis_blend_trial *b);

#endif
