/* SPDX-License-Identifier: Apache-2.0 */
/* The word that was meant: the distance of two words in edits, of which a swap of neighbours is one
 * (optimal string alignment). */
#include "cli/similar.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define LONGEST 48 /* longer words are not compared */

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static bool same(char a, char b) {
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Edits from a to b, both at most LONGEST long. Three rows of the table are kept: `before` and `last`
 * stand above the row that is made. */
static size_t distance(const char *a, size_t n_a, const char *b, size_t n_b) {
    size_t rows[3][LONGEST + 1] = {{0}};
    for (size_t j = 0; j <= n_b; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t *row = rows[i % 3];
        const size_t *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            row[j] = least(least(last[j], row[j - 1]) + 1, last[j - 1] + !same(a[i - 1], b[j - 1]));
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
                row[j] = least(row[j], before[j - 2] + 1);
        }
    }
    return rows[n_a % 3][n_b];
}

cli_similar cli_similar_to(const char *text, size_t length) {
    const size_t most = length < 6 ? 1 : length / 3;
    return (cli_similar){.text = text, .length = length, .distance = most + 1};
}

void cli_similar_see(cli_similar *similar, const char *word) {
    const size_t length = strlen(word);
    if (length > LONGEST || similar->length > LONGEST || length < 2 || similar->length < 2) return;
    const size_t edits = distance(similar->text, similar->length, word, length);
    if (edits >= similar->distance) return;
    similar->distance = edits;
    similar->word = word;
}

cli_hint cli_similar_hint(const cli_similar *similar) {
    cli_hint hint = {""};
    if (similar->word != NULL)
        snprintf(hint.text, sizeof(hint.text), "; did you mean %s?", similar->word);
    return hint;
}
