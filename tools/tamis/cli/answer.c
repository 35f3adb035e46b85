/* SPDX-License-Identifier: Apache-2.0 */
/* Prints text while it grows, in whole UTF-8 characters. */
#include "cli/answer.h"

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

/* Bytes at the end of a text that are the beginning of a character and not all of it. What can
 * become none is not waited for. */
static size_t unfinished(const char *text, size_t bytes) {
    for (size_t n = 1; n <= 3 && n <= bytes; n++) {
        const unsigned char lead = (unsigned char)text[bytes - n];
        if ((lead & 0xc0) == 0x80) continue;
        if (character_bytes(lead) <= n) return 0;
        return n == 1 || may_follow(lead, (unsigned char)text[bytes - n + 1]) ? n : 0;
    }
    return 0;
}

/* Where the stop text begins; the end if it is not there. It has not been before `from`. */
static size_t find_stop(const cli_answer *a, size_t from) {
    const size_t bytes = strlen(a->stop);
    for (size_t i = from; i + bytes <= a->bytes; i++)
        if (memcmp(a->text + i, a->stop, bytes) == 0) return i;
    return a->bytes;
}

static void print_to(cli_answer *a, size_t end) {
    if (a->to == NULL || end <= a->printed) return;
    fwrite(a->text + a->printed, 1, end - a->printed, a->to);
    fflush(a->to);
    a->printed = end;
}

bool cli_answer_add(cli_answer *a, const char *piece, size_t bytes) {
    const size_t stop = a->stop != NULL ? strlen(a->stop) : 0;
    const size_t from = a->bytes >= stop ? a->bytes - stop : 0;
    char *text = realloc(a->text, a->bytes + bytes + 1);
    if (text == NULL) return false;
    a->text = text;
    memcpy(text + a->bytes, piece, bytes);
    a->bytes += bytes;
    size_t end = stop > 0 ? find_stop(a, from) : a->bytes;
    a->stopped = end < a->bytes;
    if (a->stopped) {
        a->bytes = end;
        print_to(a, end);
        return true;
    }
    if (stop > 0) end = a->bytes >= stop ? a->bytes - stop + 1 : 0;
    print_to(a, end - unfinished(text, end));
    return true;
}

void cli_answer_end(cli_answer *a) {
    print_to(a, a->bytes);
    if (a->to != NULL) {
        fputc('\n', a->to); /* so that what follows, on stderr too, begins a line */
        fflush(a->to);
    }
    free(a->text);
    a->text = NULL;
    a->bytes = a->printed = 0;
}

/* Bytes of the whole character that a text begins with; 0 if it begins with none. */
static size_t whole_character(const char *text, size_t bytes) {
    const unsigned char lead = (unsigned char)text[0];
    const size_t n = character_bytes(lead);
    if (lead < 0x80) return 1;
    if (n == 1 || n > bytes || !may_follow(lead, (unsigned char)text[1])) return 0;
    for (size_t i = 2; i < n; i++)
        if (((unsigned char)text[i] & 0xc0) != 0x80) return 0;
    return n;
}

static bool is_blank(char c) {
    return (unsigned char)c <= ' ' || c == 0x7f;
}

char *cli_answer_line(const char *text, size_t bytes) {
    static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */
    const char *const end = text + bytes - unfinished(text, bytes);
    char *line = malloc(3 * bytes + 1), *to = line;
    if (line == NULL) return NULL;
    while (text < end) {
        const size_t n = whole_character(text, (size_t)(end - text));
        const size_t length = n > 0 ? n : strlen(replacement);
        const bool blank = n == 1 && is_blank(*text);
        memcpy(to, blank ? " " : n > 0 ? text : replacement, length);
        to += blank && (to == line || to[-1] == ' ') ? 0 : length;
        text += n > 0 ? n : 1;
    }
    if (to > line && to[-1] == ' ') to--;
    *to = '\0';
    return line;
}
