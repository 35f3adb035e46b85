/* SPDX-License-Identifier: Apache-2.0 */
#include "host/base/log.h"
#include "host/base/quote.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

void tms_log_line(const tms_log *log, tamis_log_level level, const char *format, ...) {
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const bool to_stderr = (int)level <= log->stderr_level;
    if (!log->fn && !to_stderr) return;
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tms_quote_controls(text);
    if (log->fn) log->fn(log->user, level, text);
    if (to_stderr) fprintf(stderr, "tamis %s: %s\n", names[level], text);
}
