/* SPDX-License-Identifier: Apache-2.0 */
/* --help, from the tables of a command. */
#include "cli/options.h"
#include "cli/policies.h"
#include "cli/table.h"

#include <stdio.h>
#include <string.h>

#define HELP_COLUMN 26

/* ---- Words and help of an option ------------------------------------------------------------- */

const char *cli_option_word(const cli_option *option, uint32_t index) {
    tamis_eviction_kind kind;
    switch (option->kind) {
    case CLI_CHOICE:
    case CLI_CHOICES:
        return option->choices[index];
    case CLI_OPTIONS:
        return tamis_eviction_option_name(index);
    case CLI_SELECTION:
    case CLI_SELECTIONS:
        return cli_selection_name(index);
    case CLI_EVICTIONS:
        if (index == 0) return "all";
        return cli_eviction_kind(index, &kind) ? tamis_eviction_name(kind) : NULL;
    case CLI_EVICTION:
        return cli_eviction_kind(index, &kind) ? tamis_eviction_name(kind) : NULL;
    default:
        return NULL;
    }
}

static void append(cli_help *to, const char *text, size_t bytes) {
    size_t used = strlen(to->text), room = sizeof(to->text) - used - 1;
    if (bytes > room) bytes = room;
    memcpy(to->text + used, text, bytes);
    to->text[used + bytes] = '\0';
}

static void append_words(cli_help *to, const cli_option *option) {
    const char *word;
    for (uint32_t i = 0; (word = cli_option_word(option, i)) != NULL; i++) {
        if (i > 0) append(to, ", ", 2);
        append(to, word, strlen(word));
    }
}

/* How often a flag may be given, where that is more than once. */
static void append_times(cli_help *to, const cli_option *option) {
    char text[64];
    const int bytes = snprintf(text, sizeof(text), "; may be given up to %d times", CLI_LIST_MAX);
    if (cli_may_repeat(option)) append(to, text, (size_t)bytes);
}

static void append_default(cli_help *to, const cli_option *option) {
    const cli_default own = cli_default_text(option->name);
    append(to, own.text, strlen(own.text));
}

cli_help cli_option_help(const cli_option *option) {
    cli_help out = {""};
    for (const char *at = option->help; *at != '\0';) {
        size_t plain = strcspn(at, "{");
        append(&out, at, plain);
        at += plain;
        if (*at == '\0') break;
        if (strncmp(at, "{}", 2) == 0)
            append_words(&out, option);
        else /* {default} */
            append_default(&out, option);
        at += strcspn(at, "}") + 1;
    }
    append_times(&out, option);
    return out;
}

/* ---- --help ---------------------------------------------------------------------------------- */

static void print_option(const char *name, const char *value, const char *help) {
    char head[128];
    snprintf(head, sizeof(head), "%s %s", name, value);
    printf("  %-*s ", HELP_COLUMN - 3, head);
    if (strlen(head) > HELP_COLUMN - 3) printf("\n%*s", HELP_COLUMN, "");
    cli_print_wrapped(help, HELP_COLUMN);
}

void cli_print_help(const cli_command *command) {
    printf("usage: %s %s\n\n%s\n\noptions:\n", command->name, command->usage, command->summary);
    for (size_t i = 0; i < command->n_options; i++) {
        const cli_option *option = &command->options[i];
        char names[64];
        const char *letter = cli_short_name(option);
        snprintf(names, sizeof(names), "%s%s%s", letter != NULL ? letter : "",
                 letter != NULL ? ", " : "", option->name);
        print_option(names, option->value, cli_option_help(option).text);
    }
    print_option("-h, --help", "", "this text");
    printf("\nexamples:\n%s", command->examples);
}
