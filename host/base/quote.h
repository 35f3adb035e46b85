/* SPDX-License-Identifier: Apache-2.0 */
/* Texts from outside (files, drivers, servers), as messages show them. */
#ifndef TMS_BASE_QUOTE_H
#define TMS_BASE_QUOTE_H

#include <stddef.h>

/* At most 99 characters of a text, and ? for each that is not printable ASCII, since a terminal may
 * obey it. */
typedef struct tms_quoted {
    char text[100];
} tms_quoted;
tms_quoted tms_quote(const char *text);

/* The same of a text of any length, in its own place; a line's end becomes a space. */
void tms_quote_in_place(char *text);

/* The control characters alone, those of Unicode's second set too, and a line's end: other UTF-8
 * stays. What every reason of an error and every line of the log goes through. */
void tms_quote_controls(char *text);

#endif
