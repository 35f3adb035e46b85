/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* secure_getenv */
#include "host/base/environment.h"

#include <stdlib.h>

const char *tms_env(const char *name) {
    const char *value = secure_getenv(name);
    return value && value[0] ? value : NULL;
}

bool tms_env_is_empty(const char *name) {
    const char *value = secure_getenv(name);
    return value && !value[0];
}
