/* SPDX-License-Identifier: Apache-2.0 */
/* The completion of words in a shell, from the tables of the commands. */
#ifndef CLI_COMPLETION_H
#define CLI_COMPLETION_H

#include "cli/options.h"

/* Shells that have one; NULL after the last. */
const char *cli_shell(uint32_t index);

/* Prints the completion for the index-th of them. */
void cli_print_completion(uint32_t index);

/* ---- What the forms share -------------------------------------------------------------------- */

void cli_complete_bash(void);
void cli_complete_fish(void);
void cli_complete_zsh(void);

/* The words after "tamis" of a command's name: "bench decode"; and the last of them. */
const char *cli_words(const cli_command *command);
const char *cli_last_word(const cli_command *command);

/* Whether words of the option stand in a list, with commas. */
bool cli_takes_list(const cli_option *option);

/* Commands without a table. */
#define CLI_HELP_BRIEF    "show the help of a command"
#define CLI_VERSION_BRIEF "show the version"

#endif
