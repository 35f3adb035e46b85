/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis eval NAME`: finds the evaluation and runs it. */
#include "eval/eval.h"

#include <string.h>

typedef struct evaluation {
    const char *name;
    int (*run)(int argc, char *const *argv);
    const char *help;
} evaluation;

static const evaluation evaluations[] = {
    {"passkey", eval_passkey, "how many planted keys are found again in a long text"},
    {"recall", eval_recall, "how much of the true attention the pages read hold"},
    {"perplexity", eval_perplexity, "how well a text is foretold after a long context"},
    {"eviction", eval_eviction, "what evictions cost: attention's output, planted keys, time"},
};

static void print_usage(void) {
    printf("usage: tamis eval NAME [OPTIONS]\n\nMeasures what a model loses when it reads part of "
           "its KV cache.\n\nevaluations:\n");
    for (size_t i = 0; i < sizeof(evaluations) / sizeof(evaluations[0]); i++)
        printf("  %-10s %s\n", evaluations[i].name, evaluations[i].help);
    printf("\n  tamis eval NAME --help shows options and examples.\n");
}

int cli_eval(int argc, char *const *argv) {
    const char *name = argc > 0 ? argv[0] : "(none)";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_usage();
        return CLI_OK;
    }
    for (size_t i = 0; i < sizeof(evaluations) / sizeof(evaluations[0]); i++)
        if (strcmp(name, evaluations[i].name) == 0) return evaluations[i].run(argc - 1, argv + 1);
    cli_fail("tamis eval",
             "%s: unknown evaluation, must be one of passkey, recall, perplexity, "
             "eviction",
             name);
    return CLI_USAGE;
}
