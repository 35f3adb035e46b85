/* SPDX-License-Identifier: Apache-2.0 */
/* The completion for zsh. */
#include "cli/completion.h"

#include <stdio.h>
#include <string.h>

/* Prints text inside single quotes, with a backslash before each of `special`. */
static void escaped(const char *text, const char *special) {
    for (; *text != '\0'; text++) {
        if (*text == '\'') {
            printf("'\\''");
            continue;
        }
        if (*text == '\\' || strchr(special, *text) != NULL) putchar('\\');
        putchar(*text);
    }
}

static void print_name(const char *word, const char *brief) {
    printf("            '%s:", word);
    escaped(brief, ":");
    printf("'\n");
}

/* The commands of a group; of none: those that stand alone, and the groups. */
static void print_names(const cli_group *group) {
    for (size_t i = 0; cli_commands[i] != NULL; i++) {
        const bool alone = strchr(cli_words(cli_commands[i]), ' ') == NULL;
        if (group != NULL ? cli_is_of_group(cli_commands[i], group) != 0 : alone)
            print_name(cli_last_word(cli_commands[i]), cli_commands[i]->brief);
    }
    if (group != NULL) return;
    for (const cli_group *other = cli_command_groups; other->name != NULL; other++)
        print_name(other->name, other->brief);
    print_name("help", CLI_HELP_BRIEF);
    print_name("version", CLI_VERSION_BRIEF);
}

static void print_groups(void) {
    for (const cli_group *group = cli_command_groups; group->name != NULL; group++) {
        printf("    %s)\n"
               "        names=(\n",
               group->name);
        print_names(group);
        printf("        )\n"
               "        (( CURRENT > 3 )) || { _describe -t commands %s names; return }\n"
               "        name=\"$name $words[3]\"\n"
               "        shift words\n"
               "        (( CURRENT-- )) ;;\n",
               group->noun);
    }
}

/* ":WHAT:HOW" of its value, where it has one. */
static void print_value(const cli_option *option) {
    const char *word = cli_option_word(option, 0);
    if (option->kind == CLI_FLAG) return;
    putchar(':');
    escaped(option->value, ":");
    putchar(':');
    if (word == NULL) {
        printf(cli_is_file(option) ? "_files" : " ");
        return;
    }
    printf(cli_takes_list(option) ? " _tamis_list" : "(");
    for (uint32_t i = 0; (word = cli_option_word(option, i)) != NULL; i++)
        printf("%s%s", i > 0 || cli_takes_list(option) ? " " : "", word);
    if (!cli_takes_list(option)) putchar(')');
}

static void print_option(const cli_option *option) {
    const char *letter = cli_short_name(option);
    const char *equals = option->kind == CLI_FLAG ? "" : "=";
    printf("            ");
    if (letter != NULL)
        printf("'(%s %s)'{%s,%s%s}'", letter, option->name, letter, option->name, equals);
    else
        printf("'%s%s%s", cli_may_repeat(option) ? "*" : "", option->name, equals);
    putchar('[');
    escaped(cli_option_help(option).text, "[]:");
    putchar(']');
    print_value(option);
    printf("' \\\n");
}

static void print_command(const cli_command *command) {
    printf("    '%s')\n"
           "        _arguments \\\n",
           cli_words(command));
    for (size_t i = 0; i < command->n_options; i++)
        print_option(&command->options[i]);
    printf("            '(- *)'{-h,--help}'[show help]' ;;\n");
}

void cli_complete_zsh(void) {
    printf("#compdef tamis\n"
           "# SPDX-License-Identifier: Apache-2.0\n"
           "# zsh completion for tamis. Made by tamis --completion zsh from the tables of the "
           "commands; not to be edited.\n"
           "\n"
           "# The words behind what stands before the last comma of a list.\n"
           "_tamis_list() {\n"
           "    compset -P '*,'\n"
           "    compadd -- \"$@\"\n"
           "}\n"
           "\n"
           "_tamis() {\n"
           "    [[ $words[2] != help ]] || (( CURRENT == 2 )) || { shift words; (( CURRENT-- )) }\n"
           "    local name=$words[2]\n"
           "    local -a names\n"
           "    if (( CURRENT == 2 )); then\n"
           "        names=(\n");
    print_names(NULL);
    printf("        )\n"
           "        _describe -t commands command names\n"
           "        [[ $PREFIX != -* ]] || compadd -- --help --version\n"
           "        return\n"
           "    fi\n"
           "    case $name in\n");
    print_groups();
    printf("    esac\n"
           "    shift words\n"
           "    (( CURRENT-- ))\n"
           "    case $name in\n");
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        print_command(cli_commands[i]);
    printf("    esac\n"
           "}\n"
           "\n"
           "_tamis \"$@\"\n");
}
