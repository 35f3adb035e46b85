/* SPDX-License-Identifier: Apache-2.0 */
/* The command line `tamis`: finds the command that was named and runs it. */
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/similar.h"
#include "cli/stdin.h"

#include <errno.h>
#include <string.h>

static bool is_alone(const cli_command *command) {
    return strchr(cli_words(command), ' ') == NULL;
}

static void print_usage(FILE *to) {
    fprintf(to, "usage: tamis COMMAND [OPTIONS]\n\ncommands:\n");
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        if (is_alone(cli_commands[i]))
            fprintf(to, "  %-10s %s\n", cli_words(cli_commands[i]), cli_commands[i]->brief);
    for (const cli_group *group = cli_command_groups; group->name != NULL; group++)
        fprintf(to, "  %-10s %s\n", group->name, group->brief);
    fprintf(to,
            "  %-10s %s\n"
            "  %-10s %s\n"
            "\ntamis COMMAND --help shows options and examples, as tamis help COMMAND does.\n"
            "%s"
            "Exit status: %s",
            "help", CLI_HELP_BRIEF, "version", CLI_VERSION_BRIEF, CLI_COMMON_HELP, CLI_STATUS_HELP);
}

static void print_group(const cli_group *group) {
    printf("usage: tamis %s NAME [OPTIONS]\n\n%ss, which %s:\n", group->name, group->noun,
           group->brief);
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        if (cli_is_of_group(cli_commands[i], group))
            printf("  %-10s %s\n", cli_last_word(cli_commands[i]), cli_commands[i]->brief);
    printf("\ntamis %s NAME --help shows options and examples.\n", group->name);
}

static bool asks_for_help(const char *word) {
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* "tamis bench NAME ...", where argv begins at NAME. */
static int run_of_group(const cli_group *group, int argc, char *const *argv) {
    const char *name = argc > 0 ? argv[0] : "(none)";
    char known[256] = "";
    cli_similar meant = cli_similar_to(name, strlen(name));
    if (asks_for_help(name)) {
        print_group(group);
        return CLI_OK;
    }
    for (size_t i = 0; cli_commands[i] != NULL; i++) {
        if (!cli_is_of_group(cli_commands[i], group)) continue;
        const char *own = cli_last_word(cli_commands[i]);
        if (strcmp(name, own) == 0) return cli_commands[i]->run(argc - 1, argv + 1);
        cli_similar_see(&meant, own);
        size_t used = strlen(known);
        snprintf(known + used, sizeof(known) - used, "%s%s", used > 0 ? ", " : "", own);
    }
    fprintf(stderr, "tamis %s: %s: unknown %s, must be one of %s%s\n", group->name, name,
            group->noun, known, cli_similar_hint(&meant).text);
    return CLI_USAGE;
}

/* What follows a flag or command that takes nothing else. */
static int refuse_extra(const char *word, const char *behind, const char *takes) {
    cli_fail("tamis", "%s: stands behind %s, which takes %s", word, behind, takes);
    return CLI_USAGE;
}

/* "--completion [SHELL]". */
static int print_completion(int argc, char *const *argv) {
    const char *name = argc > 2 ? argv[2] : cli_shell(0), *shell;
    char known[64] = "";
    if (argc > 3) return refuse_extra(argv[3], argv[1], "the name of one shell");
    for (uint32_t i = 0; (shell = cli_shell(i)) != NULL; i++) {
        const size_t used = strlen(known);
        snprintf(known + used, sizeof(known) - used, "%s%s", used > 0 ? ", " : "", shell);
        if (strcmp(name, shell) != 0) continue;
        cli_print_completion(i);
        return CLI_OK;
    }
    cli_fail("tamis", "%s %s: must be one of %s", argv[1], name, known);
    return CLI_USAGE;
}

static int print_version(int argc, char *const *argv) {
    if (argc > 2) return refuse_extra(argv[2], argv[1], "nothing");
    printf("tamis %s\n", tamis_version());
    return CLI_OK;
}

static int print_manual(int argc, char *const *argv) {
    if (argc > 2) return refuse_extra(argv[2], argv[1], "nothing");
    cli_print_manual();
    return CLI_OK;
}

static int print_help(int argc, char *const *argv);

/* Words that no table has. */
static const struct {
    const char *word;
    int (*run)(int argc, char *const *argv); /* argv[1] is the word */
} others[] = {{"help", print_help},
              {"--help", print_help},
              {"-h", print_help},
              {"version", print_version},
              {"--version", print_version},
              {"--man", print_manual},
              {"--completion", print_completion}};

static int say_unknown(const char *word) {
    cli_similar meant = cli_similar_to(word, strlen(word));
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        if (is_alone(cli_commands[i])) cli_similar_see(&meant, cli_words(cli_commands[i]));
    for (const cli_group *group = cli_command_groups; group->name != NULL; group++)
        cli_similar_see(&meant, group->name);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        cli_similar_see(&meant, others[i].word);
    cli_fail("tamis", "%s: unknown command%s (see tamis --help)", word,
             cli_similar_hint(&meant).text);
    return CLI_USAGE;
}

/* The command named by the first words of argv, with the others as its arguments. */
static int run_named(int argc, char *const *argv) {
    for (size_t i = 0; cli_commands[i] != NULL; i++)
        if (is_alone(cli_commands[i]) && strcmp(argv[0], cli_words(cli_commands[i])) == 0)
            return cli_commands[i]->run(argc - 1, argv + 1);
    for (const cli_group *group = cli_command_groups; group->name != NULL; group++)
        if (strcmp(argv[0], group->name) == 0) return run_of_group(group, argc - 1, argv + 1);
    return say_unknown(argv[0]);
}

/* "help", "help run", "help bench decode": what these commands say to --help. */
static int print_help(int argc, char *const *argv) {
    char help[] = "--help";
    char *words[3] = {help, help, help};
    const int count = argc - 2;
    if (count == 0) {
        print_usage(stdout);
        return CLI_OK;
    }
    if (count > 2) return refuse_extra(argv[4], argv[1], "the name of one command");
    for (int i = 0; i < count; i++)
        words[i] = argv[2 + i];
    return run_named(count + 1, words);
}

static int dispatch(int argc, char *const *argv) {
    if (argc < 2) {
        print_usage(stderr);
        return CLI_USAGE;
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strcmp(argv[1], others[i].word) == 0) return others[i].run(argc, argv);
    return run_named(argc - 1, argv + 1);
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
