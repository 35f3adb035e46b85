/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis eval blend`: prompts of stored chunks, computed in several ways, and asked about one chunk
 * and about two. */
#include "eval/blend.h"
#include "eval/passages.h"

#include <stdlib.h>
#include <string.h>

enum { ARM_PREFIX, ARM_REUSE, ARM_FIRST, ARM_RANDOM, ARM_QUESTION, ARM_HKVD, ARM_KINDS };
static const char *const arm_names[ARM_KINDS + 1] = {"prefix",   "reuse", "first", "random",
                                                     "question", "hkvd",  NULL};

typedef struct blend_flags {
    const char *device, *model, *text, *json;
    cli_seed seed;
    uint32_t chunk_tokens, n_keys, n_questions, schedule, check_layer, n_measured, dtype, stored,
        sink;
    uint32_t page_size;
    cli_list counts, asks, arms, shares;
} blend_flags;

static const cli_option options[] = {
    CLI_MODEL_OPTION(blend_flags, model),
    {"--text", "FILE", "natural text (default text.txt beside the model)", CLI_INPUT,
     offsetof(blend_flags, text), 0, 0, NULL},
    {"--chunks", "N[,N]", "chunks of a prompt (default 6)", CLI_NUMBERS,
     offsetof(blend_flags, counts), 2, BLEND_CHUNKS_MAX, NULL},
    {"--chunk-tokens", "N", "tokens of a chunk (default 512)", CLI_NUMBER,
     offsetof(blend_flags, chunk_tokens), 16, 65536, NULL},
    {"--keys", "N", "keys of a prompt, each in a chunk of its own (default one in every chunk)",
     CLI_NUMBER, offsetof(blend_flags, n_keys), 1, BLEND_CHUNKS_MAX, NULL},
    {"--questions", "N", "questions of each kind for every arm (default 100)", CLI_NUMBER,
     offsetof(blend_flags, n_questions), 1, 100000, NULL},
    {"--ask", "K[,K]", "kinds of questions: {} (default one,two)", CLI_CHOICES,
     offsetof(blend_flags, asks), 0, 0, blend_ask_names},
    {"--select", "S[,S]", "arms beside full: {} (default prefix,reuse,first,hkvd)", CLI_CHOICES,
     offsetof(blend_flags, arms), 0, 0, arm_names},
    {"--share", "N[,N]", "percent of the tokens found that an arm computes (default 5,10,15,20,30)",
     CLI_NUMBERS, offsetof(blend_flags, shares), 1, 99, NULL},
    BLEND_SCHEDULE_OPTION(blend_flags, schedule),
    BLEND_CHECK_LAYER_OPTION(blend_flags, check_layer),
    {"--measured", "N", "first prompts whose K, V and attention are compared (default 4)",
     CLI_NUMBER, offsetof(blend_flags, n_measured), 0, 100000, NULL},
    {"--seed", "N", "number from which texts and keys follow (default 0)", CLI_SEED,
     offsetof(blend_flags, seed), 0, 0, NULL},
    CLI_DTYPE_OPTION("--dtype", blend_flags, dtype),
    BLEND_STORED_OPTION(blend_flags, stored),
    BLEND_SINK_OPTION(blend_flags, sink),
    CLI_PAGE_SIZE_OPTION(blend_flags, page_size),
    CLI_JSON_OPTION(blend_flags, json),
    CLI_DEVICE_OPTION(blend_flags, device),
};

static int run_command(int argc, char *const *argv);

const cli_command eval_blend_command = {
    "tamis eval blend",
    "what a model loses when the K and V of stored chunks are used in a prompt",
    "--model FILE [OPTIONS]",
    "Makes prompts of chunks of natural text with keys of names of their own, stores the K and V\n"
    "of every chunk computed alone, and computes the prompts in several ways: full computes all\n"
    "of it, prefix takes the first chunk from the store, reuse all chunks, and first (EPIC),\n"
    "random, question (ProphetKV's idea) and hkvd (CacheBlend) compute a share of the stored\n"
    "tokens anew. first and reuse compute no more than that; the others compute all rows up to\n"
    "the check layer. Under question each question is a prompt of its own, for it selects what is\n"
    "computed; other arms answer all on forks of one prompt.\n"
    "\n"
    "Questions need one chunk ('The magic number of red is'), two of them (one key, and behind\n"
    "its answer another), or a chain: a name in one chunk for a key in another. An answer is\n"
    "right if it holds the digits of all keys. Intervals are Wilson's, 95 %. agreement is the\n"
    "share of answers with the tokens of full's. KL is that of the first answer token's\n"
    "distribution from full's, in nats. TTFT is the median time to the first token, the store in\n"
    "memory; rows is the share of rows computed, over layers.\n"
    "\n"
    "K, V and attention are relative differences to full: of the rows of all chunks but the\n"
    "first, and of the output of attention in the rows of a question; means over layers. The JSON\n"
    "file has them by layer. A second table tells of reuse, layer by layer, how V's deviation of\n"
    "a row goes with its deviation in the next layer (rank correlation), and what part of the sum\n"
    "of squares the rows with the largest deviations hold. The exit status does not depend on\n"
    "the answers.",
    "  tamis eval blend --model tests/data/needle.gguf --chunk-tokens 128 --questions 12\n"
    "  tamis eval blend --model model.gguf --chunks 6,12 --ask one,two,chain --json blend.json\n"
    "  tamis eval blend --model model.gguf --select hkvd,random --share 15 --schedule flat\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run_command};

/* What a run holds beside its flags. */
typedef struct blend_eval {
    const blend_flags *flags;
    blend_arm arms[BLEND_ARMS_MAX];
    uint32_t n_arms, reuse; /* its arm; 0: none */
    blend_rig rig;
    eval_text file;
    cli_tokens natural;
    blend_prompts prompts;
    blend_cell *cells;   /* [counts][arms] */
    blend_layer *layers; /* [counts][n_layers] */
    uint64_t *layered;   /* [counts] */
} blend_eval;

/* ---- Arms ------------------------------------------------------------------------------------ */

static bool has(const cli_list *list, uint32_t value) {
    for (uint32_t i = 0; i < list->count; i++)
        if (list->values[i] == value) return true;
    return false;
}

static const blend_arm kinds[ARM_KINDS] = {
    [ARM_PREFIX] = {.selector = TAMIS_BLEND_NONE, .prefix = true, .unchecked = true},
    [ARM_REUSE] = {.selector = TAMIS_BLEND_NONE, .unchecked = true},
    [ARM_FIRST] = {.selector = TAMIS_BLEND_FIRST, .unchecked = true},
    [ARM_RANDOM] = {.selector = TAMIS_BLEND_RANDOM},
    [ARM_QUESTION] = {.selector = TAMIS_BLEND_QUESTION},
    [ARM_HKVD] = {.selector = TAMIS_BLEND_HKVD}};

/* full, then each kind that is listed, with every share where it takes one. */
static void list_arms(blend_eval *run) {
    const blend_flags *f = run->flags;
    run->arms[run->n_arms++] = (blend_arm){.name = "full", .selector = TAMIS_BLEND_ALL};
    for (uint32_t k = 0; k < ARM_KINDS; k++) {
        const bool shares = kinds[k].selector != TAMIS_BLEND_NONE;
        if (!has(&f->arms, k)) continue;
        if (k == ARM_REUSE) run->reuse = run->n_arms;
        for (uint32_t s = 0; s < (shares ? f->shares.count : 1); s++) {
            run->arms[run->n_arms] = kinds[k];
            run->arms[run->n_arms].name = arm_names[k];
            run->arms[run->n_arms++].share = shares ? f->shares.values[s] : 0;
        }
    }
}
_Static_assert(3 + (ARM_KINDS - 2) * CLI_LIST_MAX <= BLEND_ARMS_MAX, "room for all arms");

static tamis_status open_arms(blend_eval *run, tamis_error *error) {
    const blend_flags *f = run->flags;
    const blend_settings settings = {.schedule = (tamis_blend_schedule)f->schedule,
                                     .check_layer = f->check_layer,
                                     .chunk_tokens = f->chunk_tokens,
                                     .seed = f->seed.value};
    tamis_status status = TAMIS_OK;
    for (uint32_t a = 0; status == TAMIS_OK && a < run->n_arms; a++)
        status = blend_arm_open(&run->rig, &settings, &run->arms[a], error);
    return status;
}

/* ---- Cells ----------------------------------------------------------------------------------- */

static tamis_status make_cells(blend_eval *run, tamis_error *error) {
    const blend_flags *f = run->flags;
    const size_t n = (size_t)f->counts.count * run->n_arms;
    bool made = (run->cells = calloc(n, sizeof(*run->cells))) != NULL;
    run->layers = calloc((size_t)f->counts.count * run->rig.n_layers, sizeof(*run->layers));
    run->layered = calloc(f->counts.count, sizeof(*run->layered));
    made = made && run->layers != NULL && run->layered != NULL;
    for (size_t i = 0; made && i < n; i++) {
        blend_cell *cell = &run->cells[i];
        cell->sums = calloc(run->rig.n_layers, sizeof(*cell->sums));
        cell->seconds = calloc(f->n_questions, sizeof(*cell->seconds)); /* prompts are fewer */
        made = cell->sums != NULL && cell->seconds != NULL;
        for (uint32_t k = 0; made && k < f->asks.count; k++) {
            double *values = calloc(f->n_questions, sizeof(*values));
            cell->divergences[f->asks.values[k]] = values;
            made = values != NULL;
        }
    }
    return made ? TAMIS_OK : cli_no_memory(error);
}

static void free_cells(blend_eval *run) {
    const size_t n = (size_t)run->flags->counts.count * run->n_arms;
    for (size_t i = 0; run->cells != NULL && i < n; i++) {
        free(run->cells[i].sums);
        free(run->cells[i].seconds);
        for (uint32_t k = 0; k < BLEND_ASKS; k++)
            free(run->cells[i].divergences[k]);
    }
    free(run->cells);
    free(run->layers);
    free(run->layered);
}

/* ---- Prompts --------------------------------------------------------------------------------- */

/* Prompts of one number of chunks; each has a question of every kind for each key. */
static uint32_t prompts_of(const blend_eval *run, uint32_t n_chunks) {
    const uint32_t n_keys = blend_text_keys(&run->prompts.source, n_chunks);
    return (run->flags->n_questions + n_keys - 1) / n_keys;
}

/* One text by all arms; `index` of the count's prompts. */
static tamis_status run_text(blend_eval *run, uint32_t count, uint32_t index, tamis_error *error) {
    const blend_flags *f = run->flags;
    const uint32_t n_chunks = f->counts.values[count];
    const uint32_t n_keys = blend_text_keys(&run->prompts.source, n_chunks);
    const uint32_t left = f->n_questions - index * n_keys;
    const uint64_t parts = run->n_arms + 1, total = parts * prompts_of(run, n_chunks);
    const bool measured = index < f->n_measured;
    blend_prompts *p = &run->prompts;
    tamis_sequence full = 0;
    char what[32];
    snprintf(what, sizeof(what), "%u chunks", n_chunks);
    tamis_status status = blend_text_make(&p->source, n_chunks, index, &p->text, error);
    if (status == TAMIS_OK) status = blend_prompts_record(p, error);
    if (status == TAMIS_OK) eval_progress(what, parts * index + 1, total);
    for (uint32_t a = 0; status == TAMIS_OK && a < run->n_arms; a++) {
        const bool layered = measured && run->reuse > 0 && a == run->reuse;
        run->layered[count] += layered;
        status = blend_prompts_run(p, a, left < n_keys ? left : n_keys, measured, &full,
                                   &run->cells[(size_t)count * run->n_arms + a],
                                   layered ? run->layers + (size_t)count * run->rig.n_layers : NULL,
                                   error);
        if (status == TAMIS_OK) eval_progress(what, parts * index + 2 + a, total);
    }
    blend_text_free(&p->text);
    return status == TAMIS_OK ? tamis_cache_remove(run->rig.cache, full, error) : status;
}

static int measure(blend_eval *run) {
    const blend_flags *f = run->flags;
    tamis_error error = {0};
    tamis_status status = make_cells(run, &error);
    run->prompts.rig = &run->rig;
    run->prompts.arms = run->arms;
    run->prompts.asks = &f->asks;
    run->prompts.shares = &f->shares;
    if (status == TAMIS_OK) status = blend_prompts_open(&run->prompts, &error);
    if (status == TAMIS_OK) status = open_arms(run, &error);
    for (uint32_t c = 0; status == TAMIS_OK && c < f->counts.count; c++)
        for (uint32_t i = 0; status == TAMIS_OK && i < prompts_of(run, f->counts.values[c]); i++)
            status = run_text(run, c, i, &error);
    return status == TAMIS_OK ? CLI_OK : cli_fail(eval_blend_command.name, "%s", error.text);
}

/* ---- The run --------------------------------------------------------------------------------- */

static int open_text(blend_eval *run) {
    const blend_flags *f = run->flags;
    const tamis_vocab *vocab = tamis_model_vocab(run->rig.model);
    tamis_error error = {0};
    if (!eval_text_open(&run->file, eval_blend_command.name, f->text, f->model)) return CLI_FAILED;
    if (cli_tokenize(vocab, run->file.content, run->file.bytes, 0, &run->natural, &error) !=
        TAMIS_OK)
        return cli_fail(eval_blend_command.name, "%s: %s", run->file.path, error.text);
    if (run->natural.count == 0)
        return cli_fail(eval_blend_command.name, "%s: is empty", run->file.path);
    run->prompts.source = (blend_source){.vocab = vocab,
                                         .natural = &run->natural,
                                         .chunk_tokens = f->chunk_tokens,
                                         .n_keys = f->n_keys,
                                         .chain = has(&f->asks, BLEND_ASK_CHAIN),
                                         .seed = f->seed.value};
    return CLI_OK;
}

static int prepare(blend_eval *run) {
    const blend_flags *f = run->flags;
    const uint32_t chunks = eval_longest(&f->counts);
    const blend_rig_params params = {.device = f->device,
                                     .model = f->model,
                                     .dtype = (tamis_dtype)f->dtype,
                                     .stored = (tamis_dtype)f->stored,
                                     .sink = (blend_sink)f->sink,
                                     .page_size = cli_page_size(f->page_size),
                                     .prompt = 1 + chunks * f->chunk_tokens + BLEND_ASKED_TOKENS,
                                     .answer = BLEND_TAIL_TOKENS,
                                     .chunks = chunks,
                                     .chunk_tokens = f->chunk_tokens,
                                     .sequences = 2 + has(&f->arms, ARM_QUESTION),
                                     .forks = 2,
                                     .asks = has(&f->arms, ARM_QUESTION)};
    const int code = blend_rig_open(&run->rig, eval_blend_command.name, &params);
    return code == CLI_OK ? open_text(run) : code;
}

static bool add_list(cJSON *to, const char *name, const cli_list *list) {
    cJSON *array = cJSON_AddArrayToObject(to, name);
    bool added = array != NULL;
    for (uint32_t i = 0; added && i < list->count; i++)
        added = cJSON_AddItemToArray(array, cJSON_CreateNumber(list->values[i]));
    return added;
}

static cJSON *make_settings(const blend_eval *run, const blend_report *report) {
    const blend_flags *f = run->flags;
    const cli_number numbers[] = {{"page_size", cli_page_size(f->page_size)},
                                  {"chunk_tokens", f->chunk_tokens},
                                  {"keys", f->n_keys},
                                  {"questions", f->n_questions},
                                  {"measured", f->n_measured},
                                  {"check_layer", f->check_layer},
                                  {"sink", run->rig.record.n_sink}};
    cJSON *out = cJSON_CreateObject(), *layers = blend_json_layers(report);
    const bool made =
        cJSON_AddStringToObject(out, "dtype", tamis_dtype_name((tamis_dtype)f->dtype)) != NULL &&
        cJSON_AddStringToObject(out, "stored", tamis_dtype_name((tamis_dtype)f->stored)) != NULL &&
        cJSON_AddStringToObject(out, "schedule", blend_schedules[f->schedule]) != NULL &&
        cli_json_numbers(out, numbers, sizeof(numbers) / sizeof(numbers[0])) &&
        add_list(out, "shares", &f->shares) && layers != NULL &&
        cJSON_AddItemToObject(out, "layers", layers);
    if (made) return out;
    cJSON_Delete(layers);
    cJSON_Delete(out);
    return NULL;
}

static int report_run(const blend_eval *run, cli_output *output) {
    const blend_flags *f = run->flags;
    const blend_report report = {.rig = &run->rig,
                                 .counts = &f->counts,
                                 .asks = &f->asks,
                                 .shares = &f->shares,
                                 .chunk_tokens = f->chunk_tokens,
                                 .n_arms = run->n_arms,
                                 .arms = run->arms,
                                 .cells = run->cells,
                                 .layers = run->layers,
                                 .layered = run->layered};
    const eval_rig written = {.context = run->rig.context, .model = run->rig.model};
    if (!blend_print(&report)) return cli_fail(eval_blend_command.name, "out of host memory");
    if (f->json == NULL) return CLI_OK;
    return eval_write_json(eval_blend_command.name, &written, f->seed.value,
                           make_settings(run, &report), blend_json_rows(&report), output)
               ? CLI_OK
               : CLI_FAILED;
}

static void close_run(blend_eval *run) {
    for (uint32_t a = 0; a < run->n_arms; a++)
        tamis_blend_destroy(&run->arms[a].blend);
    free_cells(run);
    blend_prompts_close(&run->prompts);
    free(run->natural.ids);
    eval_text_close(&run->file);
    blend_rig_close(&run->rig);
}

static int parse(blend_flags *f, int argc, char *const *argv) {
    const int code = cli_parse(&eval_blend_command, f, argc, argv);
    if (code >= 0) return code;
    eval_merge_lengths(&f->counts);
    eval_merge_lengths(&f->shares);
    eval_merge_lengths(&f->asks);
    if (f->n_keys == 1 && (has(&f->asks, BLEND_ASK_TWO) || has(&f->asks, BLEND_ASK_CHAIN))) {
        cli_fail(eval_blend_command.name, "--keys 1: --ask two and chain need two keys");
        return CLI_USAGE;
    }
    if (f->model != NULL) return -1;
    cli_fail(eval_blend_command.name, "--model: is missing (see %s --help)",
             eval_blend_command.name);
    return CLI_USAGE;
}

static int run_command(int argc, char *const *argv) {
    blend_flags f = {.chunk_tokens = 512,
                     .n_questions = 100,
                     .check_layer = 1,
                     .n_measured = 4,
                     .dtype = TAMIS_F16,
                     .stored = TAMIS_F16,
                     .page_size = 1,
                     .counts = {1, {6}},
                     .asks = {2, {BLEND_ASK_ONE, BLEND_ASK_TWO}},
                     .arms = {4, {ARM_PREFIX, ARM_REUSE, ARM_FIRST, ARM_HKVD}},
                     .shares = {5, {5, 10, 15, 20, 30}}};
    blend_eval run = {.flags = &f};
    cli_output output = {0};
    int code = parse(&f, argc, argv);
    if (code >= 0) return code;
    list_arms(&run);
    if (f.json != NULL && !cli_output_open(&output, eval_blend_command.name, f.json))
        return CLI_FAILED;
    code = prepare(&run);
    if (code == CLI_OK) code = measure(&run);
    if (code == CLI_OK) code = report_run(&run, &output);
    close_run(&run);
    cli_output_discard(&output);
    return code;
}
