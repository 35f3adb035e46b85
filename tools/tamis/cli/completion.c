/* SPDX-License-Identifier: Apache-2.0 */
/* The completion of words in a shell: which shells there are, and what their forms share. */
#include "cli/completion.h"

#include <string.h>

const char *const cli_shells[] = {"bash", "zsh", "fish", NULL};

void cli_print_completion(uint32_t shell) {
    static void (*const forms[])(void) = {cli_complete_bash, cli_complete_zsh, cli_complete_fish};
    forms[shell]();
}

const char *cli_words(const cli_command *command) {
    return command->name + strlen("tamis ");
}

const char *cli_last_word(const cli_command *command) {
    return strrchr(command->name, ' ') + 1;
}

bool cli_takes_list(const cli_option *option) {
    return option->kind == CLI_CHOICES || option->kind == CLI_OPTIONS ||
           option->kind == CLI_SELECTIONS || option->kind == CLI_EVICTIONS;
}
