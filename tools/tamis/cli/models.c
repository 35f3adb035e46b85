/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis models`: which architectures are read, and why others are not. */
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/table.h"

#include <stddef.h>

typedef struct models_flags {
    uint32_t markdown;
} models_flags;

static const cli_option options[] = {
    {"--markdown", "", "the same as Markdown", CLI_FLAG, offsetof(models_flags, markdown), 0, 0,
     NULL},
};

static int run(int argc, char *const *argv);

const cli_command cli_models_command = {
    "tamis models",
    "list the architectures of models that are read, and why others are not",
    "[--markdown]",
    "Lists architectures by the name that a GGUF file states (general.architecture): those that "
    "are\n"
    "read, and those that are known and refused, with the reason.",
    "  tamis models\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run};

static void print_markdown(bool read) {
    const tamis_architecture_info *info;
    printf(read ? "| architecture | models |\n|---|---|\n"
                : "\n| architecture | models | refused, since it |\n|---|---|---|\n");
    for (uint32_t i = 0; (info = tamis_architecture_describe(i)) != NULL; i++) {
        if (read != (info->refused == NULL)) continue;
        printf("| %s | %s |", info->name, info->models);
        printf(read ? "\n" : " %s |\n", info->refused);
    }
}

static bool print_table(void) {
    cli_table table = {.columns = 3};
    const tamis_architecture_info *info;
    cli_table_add(&table, "architecture");
    cli_table_add(&table, "read");
    cli_table_add(&table, "models, or why it is refused");
    for (uint32_t i = 0; (info = tamis_architecture_describe(i)) != NULL; i++) {
        cli_table_add(&table, "%s", info->name);
        cli_table_add(&table, info->refused ? "no" : "yes");
        cli_table_add(&table, "%s", info->refused ? info->refused : info->models);
    }
    const bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

static int run(int argc, char *const *argv) {
    models_flags flags = {0};
    const int code = cli_parse(&cli_models_command, &flags, argc, argv);
    if (code >= 0) return code;
    if (flags.markdown) {
        print_markdown(true);
        print_markdown(false);
        return 0;
    }
    return print_table() ? 0 : cli_fail(cli_models_command.name, "out of host memory");
}
