/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis eval recall`: flags, then for each length and passage record, replay, measure; report. */
#include "eval/recall.h"

#include <stdlib.h>

typedef struct recall_flags {
    const char *device, *model, *text, *json;
    cli_list lengths;
    cli_seed seed;
    uint32_t tokens, top, texts, dtype;
    eval_arm_flags arms;
} recall_flags;

static const cli_option options[] = {
    CLI_MODEL_OPTION(recall_flags, model),
    {"--text", "FILE", "the text to read (default text.txt beside the model)", CLI_INPUT,
     offsetof(recall_flags, text), 0, 0, NULL},
    {"--length", "N[,N]", "tokens of a context (default 10000)", CLI_NUMBERS,
     offsetof(recall_flags, lengths), 1, EVAL_CONTEXT_MAX, NULL},
    {"--tokens", "N", "tokens after the context, whose queries are measured (default 64)",
     CLI_NUMBER, offsetof(recall_flags, tokens), 1, EVAL_CONTEXT_MAX, NULL},
    {"--texts", "N",
     "passages of the text, each at a random place of its part; they may overlap (default 2)",
     CLI_NUMBER, offsetof(recall_flags, texts), 1, 1000000, NULL},
    {"--top", "N", "tokens with the largest attention, which recall looks for (default 64)",
     CLI_NUMBER, offsetof(recall_flags, top), 1, EVAL_CONTEXT_MAX, NULL},
    EVAL_ARM_OPTIONS(recall_flags, arms, "quest,oracle,window,random", "512"),
    {"--seed", "N",
     "number from which the places of passages and the pages of random follow (default 0)",
     CLI_SEED, offsetof(recall_flags, seed), 0, 0, NULL},
    CLI_DTYPE_OPTION("--dtype", recall_flags, dtype),
    CLI_JSON_OPTION(recall_flags, json),
    CLI_DEVICE_OPTION(recall_flags, device),
};

static int run_command(int argc, char *const *argv);

const cli_command eval_recall_command = {
    "tamis eval recall",
    "how much of the true attention the pages read hold",
    "--model FILE [OPTIONS]",
    "The model reads a text under full. Every arm, a selection with its budget, then attends\n"
    "the same queries over the same cache. recall is the share of the tokens with the largest\n"
    "attention that lie in the pages read; mass is the attention that these pages hold; error\n"
    "is |o - o'| / |o| of the attended rows. All three are means over heads. Where the file wants\n"
    "bos, a context begins with it. Where the model has a sliding window, it must hold the text.\n"
    "\n"
    "sparsity is the smallest share of a layer's tokens that holds 90 % of its attention: it\n"
    "shows which layers --dense-layers should name. Here no layer is dense. random draws its\n"
    "pages once for each seed: take the mean over several seeds.",
    "  tamis eval recall --model tests/data/needle.gguf --length 1000 --budget 128,256,512\n"
    "  tamis eval recall --model tests/data/needle.gguf --length 1000 --tokens 16 \\\n"
    "      --select quest --score minmax,meanstd,mean --json out.json\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run_command};

static int parse(recall_flags *f, int argc, char *const *argv) {
    int code = cli_parse(&eval_recall_command, f, argc, argv);
    if (code >= 0) return code;
    eval_merge_lengths(&f->lengths);
    uint32_t dense = f->arms.selection.dense_layers;
    if (f->model == NULL)
        cli_fail(eval_recall_command.name, "--model: is missing (see %s --help)",
                 eval_recall_command.name);
    else if (dense != CLI_UNSET && dense != 0)
        cli_fail(eval_recall_command.name, "--dense-layers %u: must be 0, every layer is measured",
                 dense);
    else if (eval_check_arms(eval_recall_command.name, &f->arms, 512))
        return -1;
    return CLI_USAGE;
}

static tamis_status measure_passage(recall *r, const int32_t *passage, const char *what,
                                    uint64_t *done, uint64_t total, tamis_error *error) {
    tamis_status status = recall_record(r, passage, error);
    if (status == TAMIS_OK) eval_progress(what, ++*done, total);
    for (uint32_t a = 0; status == TAMIS_OK && a < r->rig->arms->count; a++) {
        status = recall_replay(r, a, error);
        if (status == TAMIS_OK) eval_progress(what, ++*done, total);
    }
    for (uint32_t layer = 0; status == TAMIS_OK && layer < r->shape.n_layers; layer++) {
        status = recall_measure(r, layer, error);
        if (status == TAMIS_OK) eval_progress(what, ++*done, total);
    }
    if (status == TAMIS_OK) status = tamis_cache_remove(r->rig->cache, r->base, error);
    return status == TAMIS_OK ? tamis_cache_remove(r->rig->cache, r->main, error) : status;
}

/* All passages of one length. */
static tamis_status measure_length(recall *r, const eval_passages *passages, uint32_t texts,
                                   tamis_error *error) {
    recall_result *result = r->result;
    size_t heads = (size_t)r->shape.n_layers * r->shape.n_heads;
    uint64_t done = 0, total = (uint64_t)texts * (1 + r->rig->arms->count + r->shape.n_layers);
    tamis_status status = TAMIS_OK;
    char what[64];
    result->sums = calloc(r->rig->arms->count * heads, sizeof(*result->sums));
    result->sparsity = calloc(heads, sizeof(*result->sparsity));
    if (result->sums == NULL || result->sparsity == NULL) return cli_no_memory(error);
    for (uint32_t i = 0; status == TAMIS_OK && i < texts; i++) {
        r->text = i + 1;
        snprintf(what, sizeof(what), "length %u, text %u of %u", result->length, r->text, texts);
        status = measure_passage(r, eval_passages_at(passages, i, result->length), what, &done,
                                 total, error);
    }
    result->queries = (uint64_t)texts * r->n_tokens;
    return status;
}

static int measure(const recall_flags *f, eval_rig *rig, const eval_passages *passages,
                   recall_result *results) {
    tamis_error error = {0};
    recall r = {.rig = rig,
                .shape = *tamis_model_describe(rig->model),
                .page_size = cli_page_size(f->arms.page_size),
                .n_tokens = f->tokens,
                .top = f->top};
    tamis_status status = recall_create(&r, passages->longest, &error);
    for (uint32_t i = 0; status == TAMIS_OK && i < f->lengths.count; i++) {
        r.result = &results[i];
        r.result->length = f->lengths.values[i];
        status = measure_length(&r, passages, f->texts, &error);
    }
    recall_destroy(&r);
    return status == TAMIS_OK ? CLI_OK : cli_fail(eval_recall_command.name, "%s", error.text);
}

/* The replay has no sliding window, and every key is weighed: full would be compared with another
 * attention than its own. */
static int check_window(const eval_rig *rig, uint32_t tokens) {
    uint32_t window = tamis_model_describe(rig->model)->sliding_window;
    if (window == 0 || window >= tokens) return CLI_OK;
    return cli_fail(eval_recall_command.name,
                    "--length, --tokens: a text takes up to %u tokens, more than the model's "
                    "sliding window of %u; together they must be at most %u",
                    tokens, window, window);
}

/* Device, model, cache, text. The cache holds the context, what full and one arm add, and a page
 * each for what forks copy. */
static int prepare(const recall_flags *f, const eval_arms *arms, eval_rig *rig,
                   eval_passages *passages) {
    uint32_t longest = eval_longest(&f->lengths), page_size = cli_page_size(f->arms.page_size);
    int code = eval_rig_open(
        rig, eval_recall_command.name, f->device, f->model, (tamis_dtype)f->dtype, page_size, arms,
        (uint64_t)longest + 2 * f->tokens + 4 * page_size, longest + f->tokens, 1);
    if (code == CLI_OK) code = check_window(rig, longest + f->tokens);
    if (code != CLI_OK) return code;
    return eval_passages_open(passages, eval_recall_command.name, rig->model, f->model, f->text,
                              longest, f->tokens, f->texts, f->seed.value);
}

static bool write_json(const recall_flags *f, const eval_rig *rig, const recall_result *results,
                       cli_output *output) {
    cJSON *settings = eval_settings(&f->arms, (tamis_dtype)f->dtype);
    bool made = cJSON_AddNumberToObject(settings, "tokens", f->tokens) != NULL &&
                cJSON_AddNumberToObject(settings, "texts", f->texts) != NULL &&
                cJSON_AddNumberToObject(settings, "top", f->top) != NULL;
    cJSON *rows = made ? recall_rows(rig, results, f->lengths.count) : NULL;
    return eval_write_json(eval_recall_command.name, rig, f->seed.value, settings, rows, output);
}

static int run(const recall_flags *f, const eval_arms *arms, recall_result *results) {
    eval_rig rig = {0};
    eval_passages passages = {0};
    cli_output output = {0};
    if (f->json != NULL && !cli_output_open(&output, eval_recall_command.name, f->json))
        return CLI_FAILED;
    int code = prepare(f, arms, &rig, &passages);
    if (code == CLI_OK) code = measure(f, &rig, &passages, results);
    if (code == CLI_OK && !recall_print(&rig, results, f->lengths.count))
        code = cli_fail(eval_recall_command.name, "out of host memory");
    if (code == CLI_OK && f->json != NULL && !write_json(f, &rig, results, &output))
        code = CLI_FAILED;
    eval_passages_close(&passages);
    eval_rig_close(&rig);
    cli_output_discard(&output);
    return code;
}

static int run_command(int argc, char *const *argv) {
    recall_flags f = {
        .lengths = {1, {10000}},
        .tokens = 64,
        .top = 64,
        .texts = 2,
        .dtype = TAMIS_F16,
        .arms = {EVAL_ARM_DEFAULTS, .selections = {4,
                                                   {TAMIS_SELECT_QUEST, TAMIS_SELECT_ORACLE,
                                                    TAMIS_SELECT_WINDOW, TAMIS_SELECT_RANDOM}}}};
    eval_arms arms;
    recall_result results[CLI_LIST_MAX] = {0};
    int code = parse(&f, argc, argv);
    if (code >= 0) return code;
    if (!eval_list_arms(eval_recall_command.name, &f.arms, f.seed.value, &arms)) return CLI_USAGE;
    for (uint32_t i = 0; i < arms.count; i++)
        arms.arms[i].selection.dense_layers = 0; /* quest-paper has some */
    code = run(&f, &arms, results);
    for (uint32_t i = 0; i < CLI_LIST_MAX; i++) {
        free(results[i].sums);
        free(results[i].sparsity);
    }
    return code;
}
