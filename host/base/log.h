/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of the log. */
#ifndef TMS_BASE_LOG_H
#define TMS_BASE_LOG_H

#include <tamis/device.h>

/* Where log lines go; the core fills it from the context's callback and TAMIS_LOG. */
typedef struct tms_log {
    tamis_log_fn fn;
    void *user;
    int stderr_level;     /* lines up to this level also go to stderr; -1: none */
    tamis_build_fn build; /* how far the building of kernels is; NULL: the log tells */
    void *build_user;
} tms_log;

void tms_log_line(const tms_log *log, tamis_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
