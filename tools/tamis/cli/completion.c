/* SPDX-License-Identifier: Apache-2.0 */
/* The completion of words in a shell: which shells there are, and what their forms share. */
#include "cli/completion.h"

#include <string.h>

static const struct {
    const char *name;
    void (*print)(void);
} shells[] = {{"bash", cli_complete_bash}, {"zsh", cli_complete_zsh}, {"fish", cli_complete_fish}};

const char *cli_shell(uint32_t index) {
    return index < sizeof(shells) / sizeof(shells[0]) ? shells[index].name : NULL;
}

void cli_print_completion(uint32_t index) {
    shells[index].print();
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
