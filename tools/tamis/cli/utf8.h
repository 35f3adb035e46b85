/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes are characters of UTF-8. */
#ifndef CLI_UTF8_H
#define CLI_UTF8_H

#include <stddef.h>

#define CLI_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD, which stands for a byte that is no UTF-8 */

/* Bytes of the whole character that a text begins with; 0 if it begins with none. `bytes` > 0. */
size_t cli_utf8_character(const char *text, size_t bytes);
/* Bytes at the end of a text that are the beginning of a character and not all of it; 0 for what can
 * become none. */
size_t cli_utf8_unfinished(const char *text, size_t bytes);
/* Bytes as a text with U+FFFD in the place of each that is no UTF-8, and of NUL, for the caller to
 * free. NULL without memory. */
char *cli_utf8_text(const char *text, size_t bytes);
/* The same of a text that ends with NUL. */
char *cli_utf8_repaired(const char *text);

/* Warns on stderr of a text that is not UTF-8: its name, where the first such byte is, its value. */
void cli_utf8_warn(const char *name, const char *text, size_t bytes);

#endif
