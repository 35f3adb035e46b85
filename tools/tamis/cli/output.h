/* SPDX-License-Identifier: Apache-2.0 */
/* A file that is written whole or not at all. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

/* An ordinary file is written beside its place and renamed when it is complete; anything else (a
 * device, a pipe) is written directly. */
typedef struct cli_output {
    FILE *file;
    char *path;      /* where it goes, symbolic links resolved */
    char *temporary; /* where it is written; NULL: directly */
} cli_output;

/* Opens at once, so that a path that cannot be written fails before work is done. On failure prints
 * one line and returns false. */
bool cli_output_open(cli_output *output, const char *command, const char *path);
/* Writes `text` and completes the file. On failure prints one line, removes what was written and
 * returns false. */
bool cli_output_commit(cli_output *output, const char *command, const char *text);
/* Gives up what is open; accepts an output that is not, or was committed. */
void cli_output_discard(cli_output *output);

#endif
