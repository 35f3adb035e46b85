/* SPDX-License-Identifier: Apache-2.0 */
/* The reasons of errors. */
#include "host/base/error.h"
#include "host/base/quote.h"
#include <stdio.h>

void tms_error_format(tamis_error *error, tamis_status status, const char *format, va_list args) {
    error->status = status;
    vsnprintf(error->text, sizeof error->text, format, args);
    tms_quote_controls(error->text);
}

tamis_status tms_error_set(tamis_error *error, tamis_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (error) tms_error_format(error, status, format, args);
    va_end(args);
    return status;
}
