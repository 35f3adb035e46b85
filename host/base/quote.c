/* SPDX-License-Identifier: Apache-2.0 */
/* Texts from outside, as messages show them. */
#include "host/base/quote.h"

static char printable(char c) {
    return c >= ' ' && c <= '~' ? c : '?';
}

tms_quoted tms_quote(const char *text) {
    tms_quoted quoted = {{0}};
    for (size_t i = 0; text[i] && i < sizeof quoted.text - 1; i++)
        quoted.text[i] = printable(text[i]);
    return quoted;
}

void tms_quote_in_place(char *text) {
    for (; *text; text++)
        *text = *text == '\n' ? ' ' : printable(*text);
}

/* U+0080 to U+009F are C2 80 to C2 9F. */
void tms_quote_controls(char *text) {
    unsigned char last = 0;
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '\n')
            *text = ' ';
        else if (c < ' ' || c == 0x7f || (last == 0xc2 && c >= 0x80 && c <= 0x9f))
            *text = '?';
        last = c;
    }
}
