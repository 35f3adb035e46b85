/* SPDX-License-Identifier: Apache-2.0 */
/* Policies as text: the lines of a file, and the entries that they say. */
#ifndef TMS_BLEND_POLICY_H
#define TMS_BLEND_POLICY_H

#include "lib/core/bytes.h"
#include "lib/core/error.h"
#include <tamis/blend_policy.h>

typedef struct tms_policies {
    tamis_blend_policy *entries; /* freed by free() */
    size_t count;
} tms_policies;

/* What must hold for an entry, in a file and from a caller. E_ARGUMENT with the value. */
tamis_status tms_policy_check(const tamis_blend_policy *policy, tamis_error *error);

/* The entries of a file's text. `path` is for messages. Errors as tamis_blend_policy_read; then
 * there is nothing to free. */
tamis_status tms_policies_parse(const char *path, const char *text, size_t bytes, tms_policies *out,
                                tamis_error *error);

/* The text of a file with these entries; *text is the caller's to free. */
tamis_status tms_policies_print(const tms_policies *policies, char **text, size_t *bytes,
                                tamis_error *error);

/* Whether two entries are of one fingerprint and of the same settings. */
bool tms_policy_same(const tamis_blend_policy *a, const tamis_blend_policy *b);

#endif
