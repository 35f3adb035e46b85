/* SPDX-License-Identifier: Apache-2.0 */
/* A line on a terminal that shows how far a text has been read. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct cli_progress {
    bool shown; /* something stands in the line */
    double start;
} cli_progress;

/* The clock starts. */
void cli_progress_begin(cli_progress *progress);
/* Shows `done` of `count` tokens on stderr if that is a terminal; a text that is read in one chunk
 * shows nothing. */
void cli_progress_show(cli_progress *progress, size_t done, size_t count);
/* Clears the line. */
void cli_progress_end(cli_progress *progress);

/* "3584 of 7000 tokens [========        ]  51 %, 512 tokens/s, 7 s left": at most 79 characters. */
typedef struct cli_progress_text {
    char text[128];
} cli_progress_text;
cli_progress_text cli_progress_line(size_t done, size_t count, double seconds);

#endif
