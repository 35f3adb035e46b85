/* SPDX-License-Identifier: Apache-2.0 */
/* The page of the manual, from the tables of the commands. */
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
        if (cli_short_name(option) != NULL) {
            roff(cli_short_name(option));
            printf(", ");
        }
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
