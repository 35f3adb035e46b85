/* SPDX-License-Identifier: Apache-2.0 */
/* The completion for fish. */
#include "cli/completion.h"

#include <stdio.h>
#include <string.h>

/* Prints text between single quotes, in which fish knows \\ and \'. */
static void quoted(const char *text) {
    putchar('\'');
    for (; *text != '\0'; text++) {
        if (*text == '\'' || *text == '\\') putchar('\\');
        putchar(*text);
    }
    putchar('\'');
}

/* A word that may follow `before`, the words behind "tamis". */
static void print_name(const char *before, const char *word, const char *brief) {
    printf("complete -c tamis -n '__tamis_after %s' -a %s -d ", before, word);
    quoted(brief);
    putchar('\n');
}

static void print_names(void) {
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        if (strchr(cli_words(cli_commands[i]), ' ') == NULL)
            print_name("", cli_words(cli_commands[i]), cli_commands[i]->brief);
    for (const cli_group *group = cli_command_groups; group->name != NULL; group++) {
        print_name("", group->name, group->brief);
        for (size_t i = 0; cli_commands[i] != NULL; i++)
            if (cli_is_of_group(cli_commands[i], group))
                print_name(group->name, cli_last_word(cli_commands[i]), cli_commands[i]->brief);
    }
    print_name("", "help", CLI_HELP_BRIEF);
    print_name("", "version", CLI_VERSION_BRIEF);
}

/* What its value may be: a file, words, anything, or it has none. */
static void print_value(const cli_option *option) {
    const char *word = cli_option_word(option, 0);
    if (option->kind == CLI_FLAG) return;
    if (word == NULL) {
        printf(cli_is_file(option) ? " -r -F" : " -x");
        return;
    }
    printf(" -x -a '%s", cli_takes_list(option) ? "(__tamis_list" : "");
    for (uint32_t i = 0; (word = cli_option_word(option, i)) != NULL; i++)
        printf("%s%s", i > 0 || cli_takes_list(option) ? " " : "", word);
    printf("%s'", cli_takes_list(option) ? ")" : "");
}

static void print_option(const cli_command *command, const cli_option *option) {
    const char *letter = cli_short_name(option);
    printf("complete -c tamis -n '__tamis_in %s' -l %s", cli_words(command), option->name + 2);
    if (letter != NULL) printf(" -s %c", letter[1]);
    print_value(option);
    printf(" -d ");
    quoted(cli_option_help(option).text);
    putchar('\n');
}

void cli_complete_fish(void) {
    printf("# SPDX-License-Identifier: Apache-2.0\n"
           "# fish completion for tamis. Made by tamis --completion fish from the tables of the "
           "commands; not to be edited.\n"
           "\n"
           "# The words between tamis, or tamis help, and the cursor.\n"
           "function __tamis_words\n"
           "    set -l words (commandline -opc)\n"
           "    set -e words[1]\n"
           "    test \"$words[1]\" != help; or set -e words[1]\n"
           "    string join -- \\n $words\n"
           "end\n"
           "\n"
           "# Whether they are these.\n"
           "function __tamis_after\n"
           "    test \"$(__tamis_words)\" = \"$(string join -- \\n $argv)\"\n"
           "end\n"
           "\n"
           "# Whether they begin with these.\n"
           "function __tamis_in\n"
           "    set -l words (__tamis_words)\n"
           "    test \"$words[1..$(count $argv)]\" = \"$argv\"\n"
           "end\n"
           "\n"
           "# The words behind what stands before the last comma of a list.\n"
           "function __tamis_list\n"
           "    set -l now (string replace -r -- '^--[a-z-]+=' '' (commandline -ct))\n"
           "    set -l head (string match -r -- '.*,' $now)\n"
           "    for word in $argv\n"
           "        echo \"$head$word\"\n"
           "    end\n"
           "end\n"
           "\n"
           "complete -c tamis -f\n"
           "complete -c tamis -l help -s h -d 'show help'\n"
           "complete -c tamis -n '__tamis_after' -l version -d ");
    quoted(CLI_VERSION_BRIEF);
    putchar('\n');
    print_names();
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        for (size_t j = 0; j < cli_commands[i]->n_options; j++)
            print_option(cli_commands[i], &cli_commands[i]->options[j]);
}
