/* SPDX-License-Identifier: Apache-2.0 */
/* Prints text while it grows, in whole UTF-8 characters. */
#include "cli/answer.h"

#include "cli/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of the longest stop text with which the first `end` bytes end; 0: with none. */
static size_t stop_before(const cli_answer *a, size_t end) {
    size_t longest = 0;
    for (uint32_t i = 0; a->stops != NULL && i < a->stops->count; i++) {
        const char *stop = a->stops->values[i];
        const size_t n = strlen(stop);
        if (n > longest && n <= end && memcmp(a->text + end - n, stop, n) == 0) longest = n;
    }
    return longest;
}

/* Bytes at the end that are the beginning of a stop text. */
static size_t begun_stop(const cli_answer *a) {
    size_t longest = 0;
    for (uint32_t i = 0; a->stops != NULL && i < a->stops->count; i++) {
        const char *stop = a->stops->values[i];
        size_t n = strlen(stop) - 1;
        if (n > a->bytes) n = a->bytes;
        while (n > longest && memcmp(a->text + a->bytes - n, stop, n) != 0)
            n--;
        if (n > longest) longest = n;
    }
    return longest;
}

static void print_to(cli_answer *a, size_t end) {
    if (a->to == NULL || end <= a->printed) return;
    fwrite(a->text + a->printed, 1, end - a->printed, a->to);
    fflush(a->to);
    a->printed = end;
}

static size_t whole(const cli_answer *a, size_t end) {
    return end > 0 ? end - cli_utf8_unfinished(a->text, end) : 0;
}

size_t cli_answer_ready(const cli_answer *a, bool ended) {
    return whole(a, a->stopped || ended ? a->bytes : a->bytes - begun_stop(a));
}

bool cli_answer_add(cli_answer *a, const char *piece, size_t bytes) {
    const size_t before = a->bytes;
    char *text = realloc(a->text, before + bytes + 1);
    if (text == NULL) return false;
    a->text = text;
    a->tokens++;
    memcpy(text + before, piece, bytes);
    a->bytes += bytes;
    for (size_t end = before + 1; end <= before + bytes && !a->stopped; end++) {
        const size_t stop = stop_before(a, end);
        a->stopped = stop > 0;
        if (a->stopped) a->bytes = end - stop;
    }
    print_to(a, cli_answer_ready(a, false));
    return true;
}

void cli_answer_end(cli_answer *a) {
    print_to(a, cli_answer_ready(a, true));
    if (a->to != NULL) {
        fputc('\n', a->to); /* so that what follows, on stderr too, begins a line */
        fflush(a->to);
    }
    free(a->text);
    a->text = NULL;
    a->bytes = a->printed = 0;
}

static bool is_blank(char c) {
    return (unsigned char)c <= ' ' || c == 0x7f;
}

char *cli_answer_line(const char *text, size_t bytes) {
    const char *const end = text + bytes - cli_utf8_unfinished(text, bytes);
    char *line = malloc(3 * bytes + 1), *to = line;
    if (line == NULL) return NULL;
    while (text < end) {
        const size_t n = cli_utf8_character(text, (size_t)(end - text));
        const size_t length = n > 0 ? n : strlen(CLI_REPLACEMENT);
        const bool blank = n == 1 && is_blank(*text);
        memcpy(to, blank ? " " : n > 0 ? text : CLI_REPLACEMENT, length);
        to += blank && (to == line || to[-1] == ' ') ? 0 : length;
        text += n > 0 ? n : 1;
    }
    if (to > line && to[-1] == ' ') to--;
    *to = '\0';
    return line;
}
