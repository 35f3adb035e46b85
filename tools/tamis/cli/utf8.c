/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes are characters of UTF-8. */
#include "cli/utf8.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the character that begins with `lead`; 1 for what begins none. */
static size_t character_bytes(unsigned char lead) {
    if (lead < 0xc2 || lead > 0xf4) return 1;
    return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* Whether `next` may stand behind `lead`: neither overlong, nor a surrogate, nor above U+10FFFF. */
static bool may_follow(unsigned char lead, unsigned char next) {
    const unsigned char from = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned char to = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    return next >= from && next <= to;
}

size_t cli_utf8_character(const char *text, size_t bytes) {
    const unsigned char lead = (unsigned char)text[0];
    const size_t n = character_bytes(lead);
    if (lead < 0x80) return 1;
    if (n == 1 || n > bytes || !may_follow(lead, (unsigned char)text[1])) return 0;
    for (size_t i = 2; i < n; i++)
        if (((unsigned char)text[i] & 0xc0) != 0x80) return 0;
    return n;
}

size_t cli_utf8_unfinished(const char *text, size_t bytes) {
    for (size_t n = 1; n <= 3 && n <= bytes; n++) {
        const unsigned char lead = (unsigned char)text[bytes - n];
        if ((lead & 0xc0) == 0x80) continue;
        if (character_bytes(lead) <= n) return 0;
        return n == 1 || may_follow(lead, (unsigned char)text[bytes - n + 1]) ? n : 0;
    }
    return 0;
}

char *cli_utf8_text(const char *text, size_t bytes) {
    char *out = malloc(3 * bytes + 1), *to = out;
    if (out == NULL) return NULL;
    for (size_t at = 0; at < bytes;) {
        const size_t n = text[at] != '\0' ? cli_utf8_character(text + at, bytes - at) : 0;
        const size_t length = n > 0 ? n : strlen(CLI_REPLACEMENT);
        memcpy(to, n > 0 ? text + at : CLI_REPLACEMENT, length);
        to += length;
        at += n > 0 ? n : 1;
    }
    *to = '\0';
    return out;
}

char *cli_utf8_repaired(const char *text) {
    return cli_utf8_text(text, strlen(text));
}

void cli_utf8_warn(const char *name, const char *text, size_t bytes) {
    size_t at = 0, n = 1;
    while (at < bytes && (n = cli_utf8_character(text + at, bytes - at)) > 0)
        at += n;
    if (at == bytes) return;
    fprintf(stderr,
            "tamis: %s: is not UTF-8: byte %zu is 0x%02x (of Latin-1, perhaps); such bytes are "
            "read as the vocabulary has them\n",
            name, at + 1, (unsigned)(unsigned char)text[at]);
}
