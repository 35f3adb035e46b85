/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of all commands: the page of the manual, and the completion of words in a shell. */
#include "cli/options.h"
#include "cli/policies.h"
#include "cli/table.h"

#include <stdio.h>
#include <string.h>

/* Prints text with roff's special characters escaped; newlines stay. */
static void roff(const char *text) {
    bool begins = true;
    for (; *text != '\0'; text++) {
        if (begins && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
        begins = *text == '\n';
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else
            putchar(*text);
    }
}

static void roff_command(const cli_command *command) {
    printf(".SH \"");
    for (const char *at = command->name; *at != '\0'; at++)
        putchar(*at >= 'a' && *at <= 'z' ? *at - 'a' + 'A' : *at);
    printf("\"\n.B %s\n", command->name);
    roff(command->usage);
    printf("\n.PP\n");
    roff(command->summary);
    putchar('\n');
    for (size_t i = 0; i < command->n_options; i++) {
        const cli_option *option = &command->options[i];
        printf(".TP\n.B ");
        roff(option->name);
        printf("%s", option->value[0] != '\0' ? " \\fI" : "");
        roff(option->value);
        printf("%s\n", option->value[0] != '\0' ? "\\fR" : "");
        roff(cli_option_help(option).text);
        putchar('\n');
    }
    printf(".PP\nExamples:\n.PP\n.nf\n");
    roff(command->examples);
    printf(".fi\n");
}

void cli_print_manual(void) {
    printf(".\\\" Made by tamis --man from the tables of the commands; not to be edited.\n"
           ".TH TAMIS 1 \"\" \"tamis %s\" \"User Commands\"\n"
           ".SH NAME\ntamis \\- sparse attention over a paged KV cache, run and measured\n"
           ".SH SYNOPSIS\n",
           tamis_version());
    for (size_t i = 0; cli_commands[i] != NULL; i++) {
        printf(".B %s\n", cli_commands[i]->name);
        roff(cli_commands[i]->usage);
        printf("\n.br\n");
    }
    printf(".SH DESCRIPTION\nThe library tamis keeps the part of a KV cache that a query needs: a "
           "selection says which pages\na query reads, an eviction which tokens the cache keeps. "
           "The program runs models with it and\nmeasures what both save and what they cost.\n");
    printf(".PP\n");
    roff(CLI_COMMON_HELP);
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        roff_command(cli_commands[i]);
    printf(".SH ENVIRONMENT\n.TP\n.B TAMIS_DEVICE\nthe device if \\-\\-device is not given\n"
           ".TP\n.B TAMIS_LOG\nthe level of log lines on stderr: error, warn, info or debug\n"
           ".TP\n.B TAMIS_SETTINGS\nthe file of settings that tamis tune writes, or none\n"
           ".TP\n.B TAMIS_REDIS_PASSWORD\nthe password of the server of \\-\\-redis\n"
           ".SH \"EXIT STATUS\"\n" CLI_STATUS_HELP);
}

/* ---- The completion -------------------------------------------------------------------------- */

/* The words after "tamis" of a command's name: "bench decode". */
static const char *name_in(const cli_command *command) {
    return command->name + strlen("tamis ");
}

static void print_words_case(const cli_command *command, const cli_option *option) {
    const char *word;
    printf("    '%s %s') words='", name_in(command), option->name);
    for (uint32_t i = 0; (word = cli_option_word(option, i)) != NULL; i++)
        printf("%s%s", i > 0 ? " " : "", word);
    printf("' ;;\n");
}

static bool takes_list(const cli_option *option) {
    return option->kind == CLI_CHOICES || option->kind == CLI_OPTIONS ||
           option->kind == CLI_SELECTIONS || option->kind == CLI_EVICTIONS;
}

/* What follows "tamis", and what follows the name of a group. */
static void print_names(void) {
    printf("    '') words='");
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        if (strchr(name_in(cli_commands[i]), ' ') == NULL) printf("%s ", name_in(cli_commands[i]));
    for (const cli_group *group = cli_command_groups; group->name != NULL; group++)
        printf("%s ", group->name);
    printf("--help --version' ;;\n");
    for (const cli_group *group = cli_command_groups; group->name != NULL; group++) {
        printf("    %s) words='", group->name);
        for (size_t i = 0; cli_commands[i] != NULL; i++)
            if (cli_is_of_group(cli_commands[i], group))
                printf("%s ", strchr(name_in(cli_commands[i]), ' ') + 1);
        printf("--help' ;;\n");
    }
}

/* Its flags, and those that may be given again. */
static void print_flags(const cli_command *command) {
    printf("    '%s') words='", name_in(command));
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
        if (cli_is_file(option))
            printf("    '%s %s') files=1 ;;\n", name_in(command), option->name);
        else if (takes_list(option) || cli_option_word(option, 0) != NULL)
            print_words_case(command, option);
        else if (option->kind != CLI_FLAG)
            printf("    '%s %s') ;;\n", name_in(command), option->name);
    }
}

void cli_print_completion(void) {
    printf("# SPDX-License-Identifier: Apache-2.0\n"
           "# bash completion for tamis. Made by tamis --completion from the tables of the "
           "commands; not to be edited.\n"
           "_tamis() {\n"
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
