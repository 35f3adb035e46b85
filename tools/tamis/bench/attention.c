/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis bench attention`: flags, then for each context fill, measure, report. */
#include "bench/bench.h"
#include "cli/commands.h"

#include <stdlib.h>
#include <string.h>

static const char *const page_orders[] = {"ordered", "shuffled", NULL};

typedef struct bench_flags {
    const char *device, *json;
    uint32_t shape, dtype, bounds_dtype, page_size, pages, batch, layers, repeat, probe;
    uint32_t apart;
    cli_list contexts, budgets, selections;
    cli_selection_flags selection;
} bench_flags;

static const cli_option options[] = {
    {"--shape", "NAME", "heads and head dim of a model: {}", CLI_CHOICE,
     offsetof(bench_flags, shape), 0, 0, bench_shape_names},
    {"--context", "N[,N]", "tokens that a decode step sees (default 32768)", CLI_NUMBERS,
     offsetof(bench_flags, contexts), 1, BENCH_CONTEXT_MAX, NULL},
    {"--budget", "N[,N]", "tokens of a lane that a selection reads (default 2048)", CLI_NUMBERS,
     offsetof(bench_flags, budgets), 1, BENCH_CONTEXT_MAX, NULL},
    CLI_DTYPE_OPTION("--dtype", bench_flags, dtype),
    CLI_BOUNDS_DTYPE_OPTION(bench_flags, bounds_dtype),
    {"--select", "S[,S]",
     "what is measured beside full: {} (default quest); quest-paper in a layer that is not dense",
     CLI_SELECTIONS, offsetof(bench_flags, selections), 0, 0, NULL},
    {"--pages", "ORDER", "how every lane's pages lie in memory: {} (default ordered)", CLI_CHOICE,
     offsetof(bench_flags, pages), 0, 0, page_orders},
    {"--apart", "",
     "measures quest also as NAME-apart: score, select and attend launched one by one", CLI_FLAG,
     offsetof(bench_flags, apart), 0, 0, NULL},
    {"--batch", "N", "sequences of a step (default 1)", CLI_NUMBER, offsetof(bench_flags, batch), 1,
     256, NULL},
    {"--layers", "N", "layers in turn (default: enough that one pass reads 1 GiB)", CLI_NUMBER,
     offsetof(bench_flags, layers), 1, 128, NULL},
    {"--repeat", "N", "samples (default 9)", CLI_NUMBER, offsetof(bench_flags, repeat), 1, 1000,
     NULL},
    {"--probe", "N", "MiB to measure the read bandwidth over (default 256, on a GPU up to 1024)",
     CLI_NUMBER, offsetof(bench_flags, probe), 1, 65536, NULL},
    CLI_PAGE_SIZE_OPTION(bench_flags, page_size),
    CLI_SELECTION_OPTIONS(bench_flags, selection),
    CLI_JSON_OPTION(bench_flags, json),
    CLI_DEVICE_OPTION(bench_flags, device),
};

static int run(int argc, char *const *argv);

const cli_command bench_attention_command = {
    "tamis bench attention",
    "full against selections, one layer of a decode step",
    "--shape NAME [OPTIONS]",
    "Measures one layer of decode attention over random keys and values: full and each\n"
    "selection in turn, round after round. A sample is the wall time of attending every layer\n"
    "once, divided by the number of layers. Figures are medians; ratios are taken within a\n"
    "round. Between rounds the read bandwidth of memory in one piece is measured, and the\n"
    "page-read limit: what a loop that does nothing else reaches over all K and V of the same\n"
    "pages, in the best of several orders. On a CPU these are pages (page after page, K then\n"
    "V), fours (K of four pages, then their V) and rows-N (a row of each of 4, 8 or 16 pages in\n"
    "turn), each with no prefetch, one step (-near) or two (-far) ahead. \"of read\" and \"of\n"
    "limit\" are the shares of the two that the bytes an arm reads reach. Where the backend\n"
    "records graphs, graph_us in the JSON is the device's own time of the same pass, replayed\n"
    "ten times in a row.\n"
    "\n"
    "With --pages shuffled the pages of every lane lie in random order: sequences of one page\n"
    "fill the cache, and the measured ones take their places as those are removed in random\n"
    "order.",
    "  tamis bench attention --shape llama2-7b --context 32768 --budget 2048 --dtype f16\n"
    "  tamis bench attention --shape llama3-8b --context 8192,32768 --budget 1024,2048 \\\n"
    "      --select quest,window --pages shuffled --json out.json\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run};

static int parse(bench_flags *f, int argc, char *const *argv) {
    const char *name = bench_attention_command.name;
    int code = cli_parse(&bench_attention_command, f, argc, argv);
    if (code >= 0) return code;
    if (f->shape == CLI_UNSET) {
        cli_fail(name, "--shape: is missing (see %s --help)", name);
        return CLI_USAGE;
    }
    if (!cli_check_selections(name, &f->selections, f->budgets.count > 0, &f->selection))
        return CLI_USAGE;
    if (f->budgets.count == 0) f->budgets = (cli_list){1, {2048}};
    return -1;
}

static void name_arm(bench_arm *arm, uint32_t selection) {
    snprintf(arm->select, sizeof(arm->select), "%s%s", cli_selection_name(selection),
             arm->apart ? "-apart" : "");
}

/* The arms of every context: full, then each other selection with each budget. */
static bool list_arms(const bench_flags *f, bench *run) {
    uint32_t page_size = run->params.page_size;
    if (1 + (1 + f->apart) * f->selections.count * f->budgets.count > BENCH_ARMS_MAX) {
        cli_fail(bench_attention_command.name, "--select and --budget: more than %d pairs",
                 (BENCH_ARMS_MAX - 1) / (int)(1 + f->apart));
        return false;
    }
    bench_arm *arm = &run->arms[run->n_arms++];
    tamis_selection_default(TAMIS_SELECT_FULL, &arm->selection);
    name_arm(arm, TAMIS_SELECT_FULL);
    for (uint32_t s = 0; s < f->selections.count; s++) {
        const uint32_t value = f->selections.values[s];
        for (uint32_t i = 0; i < f->budgets.count && value != TAMIS_SELECT_FULL; i++) {
            arm = &run->arms[run->n_arms++];
            name_arm(arm, value);
            if (!cli_selection(bench_attention_command.name, value, f->budgets.values[i],
                               &f->selection, page_size, &arm->selection))
                return false;
            arm->selection.dense_layers = 0;
            if (!f->apart || arm->selection.kind != TAMIS_SELECT_QUEST) continue;
            run->arms[run->n_arms] = *arm;
            arm = &run->arms[run->n_arms++];
            arm->apart = true;
            name_arm(arm, value);
        }
    }
    return true;
}

static int measure(bench *runs, uint32_t n_runs, tamis_context *context) {
    tamis_error error = {0};
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < n_runs; i++) {
        runs[i].device = context;
        fprintf(stderr, "context %u: filling the cache\n", runs[i].context);
        status = bench_fill(&runs[i], &error);
        if (status == TAMIS_OK) {
            fprintf(stderr, "context %u: measuring\n", runs[i].context);
            status = bench_measure(&runs[i], &error);
        }
        bench_destroy(&runs[i]);
    }
    return status == TAMIS_OK ? CLI_OK : cli_fail(bench_attention_command.name, "%s", error.text);
}

static int run_all(const bench_flags *f, bench *runs) {
    uint32_t n_runs = f->contexts.count;
    tamis_context *context = NULL;
    cli_output output = {0};
    tamis_error error = {0};
    int code = CLI_OK;
    if (f->json != NULL && !cli_output_open(&output, bench_attention_command.name, f->json))
        return CLI_FAILED;
    if (bench_open(f->device, &context, &error) != TAMIS_OK)
        code = cli_fail(bench_attention_command.name, "%s", error.text);
    if (code == CLI_OK) code = measure(runs, n_runs, context);
    if (code == CLI_OK && !bench_print(runs, n_runs))
        code = cli_fail(bench_attention_command.name, "out of host memory");
    if (code == CLI_OK && f->json != NULL &&
        !bench_write_json(runs, n_runs, &output, bench_attention_command.name))
        code = CLI_FAILED;
    tamis_context_destroy(&context);
    cli_output_discard(&output);
    return code;
}

static int run(int argc, char *const *argv) {
    bench_flags f = {.shape = CLI_UNSET,
                     .dtype = TAMIS_F16,
                     .page_size = 1,
                     .batch = 1,
                     .repeat = 9,
                     .contexts = {1, {32768}},
                     .selections = {1, {TAMIS_SELECT_QUEST}},
                     .selection = CLI_SELECTION_UNSET};
    int code = parse(&f, argc, argv);
    if (code >= 0) return code;
    bench *runs = calloc(f.contexts.count, sizeof(*runs));
    if (runs == NULL) return cli_fail(bench_attention_command.name, "out of host memory");
    code = CLI_USAGE;
    bool listed = true;
    for (uint32_t i = 0; listed && i < f.contexts.count; i++) {
        runs[i].context = f.contexts.values[i];
        runs[i].params = (bench_params){.shape = &bench_shapes[f.shape],
                                        .dtype = (tamis_dtype)f.dtype,
                                        .bounds_dtype = (tamis_bounds_dtype)f.bounds_dtype,
                                        .page_size = cli_page_size(f.page_size),
                                        .batch = f.batch,
                                        .repeat = f.repeat,
                                        .layers = f.layers,
                                        .probe = f.probe,
                                        .shuffled = f.pages == 1};
        listed = list_arms(&f, &runs[i]);
    }
    if (listed) code = run_all(&f, runs);
    free(runs);
    return code;
}
