/* SPDX-License-Identifier: Apache-2.0 */
/* A line on a terminal that shows how far a long work has come. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct cli_progress {
    bool shown; /* something stands in the line */
    const char *unit;
    double start;
} cli_progress;

/* The clock starts; unit: what is counted, "tokens". */
void cli_progress_begin(cli_progress *progress, const char *unit);
/* Shows `done` of `count` on stderr if that is a terminal; a text that is read in one chunk
 * shows nothing. */
void cli_progress_show(cli_progress *progress, size_t done, size_t count);
/* Clears the line. */
void cli_progress_end(cli_progress *progress);

/* "3584 of 7000 tokens [========        ]  51 %, 512 tokens/s, 7 s left": at most 79 characters. */
typedef struct cli_progress_text {
    char text[128];
} cli_progress_text;
cli_progress_text cli_progress_line(const char *unit, size_t done, size_t count, double seconds);

#endif
