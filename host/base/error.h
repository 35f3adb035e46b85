/* SPDX-License-Identifier: Apache-2.0 */
/* The base floor: what host/ and lib/ both stand on. Here, the reasons of errors. */
#ifndef TMS_BASE_ERROR_H
#define TMS_BASE_ERROR_H

#include <stdarg.h>
#include <tamis/status.h>

/* Sets *error if it is not NULL and returns `status`. printf form; name the offending value.
 * Control characters in the values become ?, as tms_quote_controls has it. */
tamis_status tms_error_set(tamis_error *error, tamis_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void tms_error_format(tamis_error *error, tamis_status status, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

#endif
