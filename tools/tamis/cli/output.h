/* SPDX-License-Identifier: Apache-2.0 */
/* Where --json and --session write: an ordinary file whole or not at all, of --json anything else
 * directly. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

/* An ordinary file is written under a temporary name in the same folder and renamed when it is
 * complete; a symbolic link stays, and the file that it points to is replaced. A pipe or a device
 * is written directly. If the name is "-" or another name of the standard output, only the JSON
 * goes there, and what else the program would print there goes to stderr. */
typedef struct cli_output {
    FILE *file;
    char *path;      /* where it goes, as messages name it; symbolic links resolved */
    char *temporary; /* where it is written; NULL: directly */
} cli_output;

/* Opens at once, so that a path that cannot be written fails before work is done. Until the output
 * is committed or discarded, SIGHUP, SIGINT and SIGTERM remove what was written before they end the
 * program; at most two are open at a time. On failure prints one line and returns false. */
bool cli_output_open(cli_output *output, const char *command, const char *path);
/* Writes `text` with a newline and completes the file. On failure prints one line, removes what was
 * written and returns false. */
bool cli_output_commit(cli_output *output, const char *command, const char *text);
/* The same for a file that nobody else may read, of bytes that the caller writes into output->file:
 * what is no ordinary file is refused, and so is "-". */
bool cli_output_open_private(cli_output *output, const char *command, const char *path);
/* Completes the file, also on the disk. Failures as above. */
bool cli_output_finish(cli_output *output, const char *command);
/* Says that writing has failed, with the number of the reason, and gives up. Returns false. */
bool cli_output_fail(cli_output *output, const char *command, int reason);
/* What SIGINT does where nobody else catches it: what the first lines say, SIG_DFL where no output is
 * unfinished. May be called in a handler. */
void (*cli_output_ending(void))(int);
/* Gives up what is open; accepts an output that is not, or was committed. */
void cli_output_discard(cli_output *output);

#endif
