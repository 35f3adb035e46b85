/* SPDX-License-Identifier: Apache-2.0 */
/* The command line `tamis`: finds the command that was named and runs it. */
#include "cli/commands.h"
#include "cli/stdin.h"

#include <errno.h>
#include <string.h>

/* The words after "tamis": "bench decode". */
static const char *name_of(const cli_command *command) {
    return command->name + strlen("tamis ");
}

static bool is_alone(const cli_command *command) {
    return strchr(name_of(command), ' ') == NULL;
}

static void print_usage(FILE *to) {
    fprintf(to, "usage: tamis COMMAND [OPTIONS]\n\ncommands:\n");
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        if (is_alone(cli_commands[i]))
            fprintf(to, "  %-10s %s\n", name_of(cli_commands[i]), cli_commands[i]->brief);
    for (const cli_group *group = cli_command_groups; group->name != NULL; group++)
        fprintf(to, "  %-10s %s\n", group->name, group->brief);
    fprintf(to,
            "\ntamis COMMAND --help shows options and examples; tamis --version the version.\n"
            "%s"
            "Exit status: %s",
            CLI_COMMON_HELP, CLI_STATUS_HELP);
}

static void print_group(const cli_group *group) {
    printf("usage: tamis %s NAME [OPTIONS]\n\n%ss, which %s:\n", group->name, group->noun,
           group->brief);
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        if (cli_is_of_group(cli_commands[i], group))
            printf("  %-10s %s\n", strchr(name_of(cli_commands[i]), ' ') + 1,
                   cli_commands[i]->brief);
    printf("\ntamis %s NAME --help shows options and examples.\n", group->name);
}

static bool asks_for_help(const char *word) {
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* "tamis bench NAME ...", where argv begins at NAME. */
static int run_of_group(const cli_group *group, int argc, char *const *argv) {
    const char *name = argc > 0 ? argv[0] : "(none)";
    char known[256] = "";
    if (asks_for_help(name)) {
        print_group(group);
        return CLI_OK;
    }
    for (size_t i = 0; cli_commands[i] != NULL; i++) {
        if (!cli_is_of_group(cli_commands[i], group)) continue;
        const char *own = strchr(name_of(cli_commands[i]), ' ') + 1;
        if (strcmp(name, own) == 0) return cli_commands[i]->run(argc - 1, argv + 1);
        size_t used = strlen(known);
        snprintf(known + used, sizeof(known) - used, "%s%s", used > 0 ? ", " : "", own);
    }
    fprintf(stderr, "tamis %s: %s: unknown %s, must be one of %s\n", group->name, name, group->noun,
            known);
    return CLI_USAGE;
}

static void print_version(void) {
    printf("tamis %s\n", tamis_version());
}

/* Texts that the program has instead of a command. */
static const struct {
    const char *flag;
    void (*print)(void);
} texts[] = {{"--version", print_version},
             {"--man", cli_print_manual},
             {"--completion", cli_print_completion}};

static int print_text(void (*print)(void), int argc, char *const *argv) {
    if (argc > 2) {
        cli_fail("tamis", "%s: stands behind %s, which takes nothing", argv[2], argv[1]);
        return CLI_USAGE;
    }
    print();
    return CLI_OK;
}

static int dispatch(int argc, char *const *argv) {
    if (argc < 2) {
        print_usage(stderr);
        return CLI_USAGE;
    }
    if (asks_for_help(argv[1])) {
        print_usage(stdout);
        return CLI_OK;
    }
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (strcmp(argv[1], texts[i].flag) == 0) return print_text(texts[i].print, argc, argv);
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        if (is_alone(cli_commands[i]) && strcmp(argv[1], name_of(cli_commands[i])) == 0)
            return cli_commands[i]->run(argc - 2, argv + 2);
    for (const cli_group *group = cli_command_groups; group->name != NULL; group++)
        if (strcmp(argv[1], group->name) == 0) return run_of_group(group, argc - 2, argv + 2);
    cli_fail("tamis", "%s: unknown command (see tamis --help)", argv[1]);
    return CLI_USAGE;
}

int main(int argc, char **argv) {
    int code = dispatch(argc, argv);
    cli_stdin_hint();
    errno = 0;
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == CLI_OK)
        code =
            cli_fail("tamis", "standard output: %s", errno != 0 ? strerror(errno) : "write failed");
    return code;
}
