/* SPDX-License-Identifier: Apache-2.0 */
/* The completion for bash. */
#include "cli/completion.h"

#include <stdio.h>
#include <string.h>

/* Where the flag's value stands. */
static void print_place(const cli_command *command, const cli_option *option) {
    printf("    '%s %s'", cli_words(command), option->name);
    if (cli_short_name(option) != NULL)
        printf(" | '%s %s'", cli_words(command), cli_short_name(option));
    printf(") ");
}

static void print_words_case(const cli_command *command, const cli_option *option) {
    const char *word;
    print_place(command, option);
    printf("words='");
    for (uint32_t i = 0; (word = cli_option_word(option, i)) != NULL; i++)
        printf("%s%s", i > 0 ? " " : "", word);
    printf("' ;;\n");
}

/* What follows "tamis", and what follows the name of a group. */
static void print_names(void) {
    printf("    '') words='");
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        if (strchr(cli_words(cli_commands[i]), ' ') == NULL)
            printf("%s ", cli_words(cli_commands[i]));
    for (const cli_group *group = cli_command_groups; group->name != NULL; group++)
        printf("%s ", group->name);
    printf("help version --help --version' ;;\n");
    for (const cli_group *group = cli_command_groups; group->name != NULL; group++) {
        printf("    %s) words='", group->name);
        for (size_t i = 0; cli_commands[i] != NULL; i++)
            if (cli_is_of_group(cli_commands[i], group))
                printf("%s ", strchr(cli_words(cli_commands[i]), ' ') + 1);
        printf("--help' ;;\n");
    }
}

/* Its flags, and those that may be given again. */
static void print_flags(const cli_command *command) {
    printf("    '%s') words='", cli_words(command));
    for (size_t i = 0; i < command->n_options; i++)
        printf("%s ", command->options[i].name);
    printf("--help'");
    bool first = true;
    for (size_t i = 0; i < command->n_options; i++) {
        if (!cli_may_repeat(&command->options[i])) continue;
        printf("%s%s", first ? " again='" : " ", command->options[i].name);
        first = false;
    }
    printf("%s ;;\n", first ? "" : "'");
}

/* A line for each flag that takes words (CLI_TEXT: any), a file, or none. */
static void print_values(const cli_command *command) {
    for (size_t i = 0; i < command->n_options; i++) {
        const cli_option *option = &command->options[i];
        if (option->kind == CLI_FLAG) continue;
        if (cli_option_word(option, 0) != NULL) {
            print_words_case(command, option);
            continue;
        }
        print_place(command, option);
        printf("%s;;\n", cli_is_file(option) ? "files=1 " : "");
    }
}

void cli_complete_bash(void) {
    printf("# SPDX-License-Identifier: Apache-2.0\n"
           "# bash completion for tamis. Made by tamis --completion bash from the tables of the "
           "commands; not to be edited.\n"
           "_tamis() {\n"
           "    if [ \"$COMP_CWORD\" -gt 1 ] && [ \"${COMP_WORDS[1]}\" = help ]; then\n"
           "        COMP_WORDS=(tamis \"${COMP_WORDS[@]:2}\")\n"
           "        COMP_CWORD=$((COMP_CWORD - 1))\n"
           "    fi\n"
           "    local now=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD - 1]}\n"
           "    local name=${COMP_WORDS[1]-} words='' files='' head='' known=1\n"
           "    local again='' offered='' word\n"
           "    [ \"$COMP_CWORD\" -gt 1 ] || name=''\n"
           "    case $name in\n    ");
    for (const cli_group *group = cli_command_groups; group->name != NULL; group++)
        printf("%s%s", group == cli_command_groups ? "" : " | ", group->name);
    printf(") [ \"$COMP_CWORD\" -le 2 ] || name=\"$name ${COMP_WORDS[2]}\" ;;\n"
           "    esac\n"
           "    case \"$name $last\" in\n");
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        print_values(cli_commands[i]);
    printf("    *) known='' ;;\n"
           "    esac\n"
           "    [ -n \"$known\" ] || case $name in\n");
    print_names();
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        print_flags(cli_commands[i]);
    printf("    esac\n"
           "    [ -z \"$files\" ] || {\n"
           "        mapfile -t COMPREPLY < <(compgen -f -- \"$now\")\n"
           "        compopt -o filenames 2>/dev/null\n"
           "        return\n"
           "    }\n"
           "    # A flag that is given is offered again only if it may be given again.\n"
           "    for word in $words; do\n"
           "        [[ $word != --* || \" ${COMP_WORDS[*]:1:COMP_CWORD-1} \" != *\" $word \"* ||\n"
           "            \" $again \" == *\" $word \"* ]] && offered+=\" $word\"\n"
           "    done\n"
           "    # What stands before the last comma of a list stays.\n"
           "    [[ $now != *,* ]] || head=${now%%,*},\n"
           "    mapfile -t COMPREPLY < <(compgen -P \"$head\" -W \"$offered\" -- \"${now##*,}\")\n"
           "}\n"
           "complete -F _tamis tamis\n");
}
