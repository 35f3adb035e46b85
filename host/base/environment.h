/* SPDX-License-Identifier: Apache-2.0 */
/* The environment: all code reads it through these. */
#ifndef TMS_BASE_ENVIRONMENT_H
#define TMS_BASE_ENVIRONMENT_H

#include <stdbool.h>

/* The value of an environment variable. NULL if it is unset or empty, or if the program has more
 * rights than the user who started it (setuid). */
const char *tms_env(const char *name);
/* Whether it is set, but to nothing. */
bool tms_env_is_empty(const char *name);

#endif
