/* SPDX-License-Identifier: Apache-2.0 */
/* The command line `tamis`: finds the command and runs it. */
#include "cli/cli.h"

#include <errno.h>
#include <string.h>

typedef struct command {
    const char *name;
    int (*run)(int argc, char *const *argv);
    const char *help;
} command;

static const command commands[] = {
    {"devices", cli_devices, "list devices, why one cannot be used, and what goes together"},
    {"run", cli_run, "answer a prompt with a model, reading part of its KV cache"},
    {"bench", cli_bench, "measure decoding: full against selections and evictions"},
    {"eval", cli_eval, "measure what selections keep: passkeys, recall, perplexity"},
};

static void print_usage(FILE *to) {
    fprintf(to, "usage: tamis COMMAND [OPTIONS]\n\ncommands:\n");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(to,
            "\n  tamis COMMAND --help shows options and examples; tamis --version the version.\n"
            "  Every command takes --device ID (see tamis devices); without it the environment\n"
            "  variable TAMIS_DEVICE decides, else the first usable CUDA or OpenCL device.\n"
            "  Exit status: 0 done, 1 failed at run time, 2 the command line is wrong.\n");
}

static int dispatch(int argc, char *const *argv) {
    if (argc < 2) {
        print_usage(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_usage(stdout);
        return CLI_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("tamis %s\n", tamis_version());
        return CLI_OK;
    }
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 2, argv + 2);
    cli_fail("tamis", "%s: unknown command (see tamis --help)", argv[1]);
    return CLI_USAGE;
}

int main(int argc, char **argv) {
    int code = dispatch(argc, argv);
    errno = 0;
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == CLI_OK)
        code =
            cli_fail("tamis", "standard output: %s", errno != 0 ? strerror(errno) : "write failed");
    return code;
}
