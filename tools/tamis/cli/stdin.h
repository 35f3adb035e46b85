/* SPDX-License-Identifier: Apache-2.0 */
/* Standard input: which flag reads it, and a hint where none does. */
#ifndef CLI_STDIN_H
#define CLI_STDIN_H

#include <stdbool.h>

/* Notes that `flag` reads standard input. Returns NULL, or the flag that does so already. */
const char *cli_stdin_take(const char *flag);
/* The flag that reads standard input; NULL: none. */
const char *cli_stdin_taker(void);
#define CLI_STDIN_PATH "/dev/stdin" /* where it is read by a path */
/* Whether standard input is an ordinary file, which can be read in any order. */
bool cli_stdin_is_file(void);

/* From here on cli_stdin_hint has something to say: the command could read a text by `flag`. */
void cli_stdin_watch(const char *command, const char *flag);
/* Prints a line, once, if no flag reads standard input and bytes wait there, in a pipe, a socket or
 * an ordinary file. It waits for nothing. */
void cli_stdin_hint(void);

#endif
