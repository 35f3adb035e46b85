/* SPDX-License-Identifier: Apache-2.0 */
/* The word that was meant, where one was mistyped. */
#ifndef CLI_SIMILAR_H
#define CLI_SIMILAR_H

#include <stddef.h>

/* The word nearest to those seen, for a message. */
typedef struct cli_similar {
    const char *text; /* what was typed; not ended by a zero */
    size_t length;
    const char *word; /* the nearest that is near enough, or NULL */
    size_t distance;  /* its distance */
} cli_similar;

/* Nothing has been seen. */
cli_similar cli_similar_to(const char *text, size_t length);

/* Sees a word, which must outlive *similar. Near enough is one that takes at most one edit for every
 * three characters typed, one at least; an edit inserts, removes or replaces a character, or swaps two
 * neighbours; upper and lower case are the same. Of equally near ones the first stays. */
void cli_similar_see(cli_similar *similar, const char *word);

/* "; did you mean WORD?", or nothing. */
typedef struct cli_hint {
    char text[96];
} cli_hint;
cli_hint cli_similar_hint(const cli_similar *similar);

#endif
