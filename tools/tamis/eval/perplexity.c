/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis eval perplexity`: how well each arm predicts a text after a long context. */
#include "eval/passages.h"

#include <math.h>
#include <stdlib.h>

typedef struct perplexity_flags {
    const char *device, *model, *text, *json;
    cli_list lengths;
    cli_seed seed;
    uint32_t tokens, texts, dtype, kl_dtype;
    eval_arm_flags arms;
} perplexity_flags;

/* What one arm gives at one length. */
typedef struct perplexity_result {
    double nll;             /* sum over tokens, natural log */
    double kl;              /* sum over tokens: KL(truth || arm) of the next token, nats */
    uint64_t tokens, bytes; /* scored */
    tamis_plan_counters counters;
} perplexity_result;

typedef struct perplexity {
    const perplexity_flags *flags;
    eval_rig rig;
    eval_passages passages;
    /* What divergence is measured against, if that is not arm 0: full over a cache of its own. */
    tamis_cache *truth_cache;
    tamis_runner *truth;
    float *logits;              /* [n_vocab] */
    float *truth_logits;        /* [fed][n_vocab], of the passage under work */
    uint32_t length, text;      /* under work; texts from 1 on */
    perplexity_result *results; /* [length][arm] */
} perplexity;

static const cli_option options[] = {
    CLI_MODEL_OPTION(perplexity_flags, model),
    {"--text", "FILE", "the text to read (default text.txt beside the model)", CLI_INPUT,
     offsetof(perplexity_flags, text), 0, 0, NULL},
    {"--length", "N[,N]", "tokens of a context (default 2000,5000,10000)", CLI_NUMBERS,
     offsetof(perplexity_flags, lengths), 1, EVAL_CONTEXT_MAX, NULL},
    {"--tokens", "N", "tokens after the context, which are scored (default 128)", CLI_NUMBER,
     offsetof(perplexity_flags, tokens), 1, EVAL_CONTEXT_MAX, NULL},
    {"--texts", "N",
     "passages of the text, each at a random place of its part; they may overlap (default 8)",
     CLI_NUMBER, offsetof(perplexity_flags, texts), 1, 1000000, NULL},
    EVAL_ARM_OPTIONS(perplexity_flags, arms, "quest,window", "512"),
    EVAL_EVICT_OPTIONS(perplexity_flags, arms),
    {"--seed", "N",
     "number from which the places of passages and the pages of random follow (default 0)",
     CLI_SEED, offsetof(perplexity_flags, seed), 0, 0, NULL},
    CLI_DTYPE_OPTION("--dtype", perplexity_flags, dtype),
    {"--kl-dtype", "TYPE",
     "element type of the cache of the full reading against which kl is measured: {} (default that "
     "of --dtype)",
     CLI_CHOICE, offsetof(perplexity_flags, kl_dtype), 0, 0, cli_dtypes},
    CLI_JSON_OPTION(perplexity_flags, json),
    CLI_DEVICE_OPTION(perplexity_flags, device),
};

static int run_command(int argc, char *const *argv);

const cli_command eval_perplexity_command = {
    "tamis eval perplexity",
    "how well a text is predicted after a long context",
    "--model FILE [OPTIONS]",
    "Every passage's context is read once, exactly. Every arm, a selection with its budget, then\n"
    "reads the text after it token by token, and the loss of each next token is summed. kl is the\n"
    "divergence of its distribution of the next token from that of full, the mean in nats.\n"
    "The scored tokens are the same for every length. Where the file wants bos, a context begins\n"
    "with it. An arm may also be an eviction with its budget, which reads the context's end "
    "again,\n"
    "or where it sums scores all of it, and evicts. random draws its pages once for each seed: "
    "take\n"
    "the mean over several seeds.",
    "  tamis eval perplexity --model tests/data/needle.gguf --length 1000 --budget 128,256\n"
    "  tamis eval perplexity --model tests/data/needle.gguf --length 500,1500 --texts 4 \\\n"
    "      --select quest,window,oracle --json out.json\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run_command};

/* log Σ exp(logits) */
static double log_sum(const float *logits, uint32_t n) {
    double largest = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        largest = fmax(largest, logits[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp(logits[i] - largest);
    return log(sum) + largest;
}

/* Σ p·log(p/q) of the distributions that two rows of logits give. */
static double divergence(const float *p, const float *q, uint32_t n) {
    const double p_sum = log_sum(p, n), q_sum = log_sum(q, n);
    double kl = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double log_p = p[i] - p_sum;
        kl += exp(log_p) * (log_p - (q[i] - q_sum));
    }
    return kl;
}

/* Feeds the tokens to a sequence; each predicts the next. The logits become the passage's truth if
 * `is_truth`, else they are compared with it. `name` is what reads, in messages. */
static tamis_status feed(perplexity *p, tamis_runner *runner, const char *name, bool is_truth,
                         tamis_sequence sequence, const int32_t *fed, perplexity_result *result,
                         tamis_error *error) {
    const uint32_t n_vocab = tamis_model_describe(p->rig.model)->n_vocab;
    tamis_status status = TAMIS_OK;
    for (uint32_t t = 0; status == TAMIS_OK && t < p->passages.fed; t++) {
        float *truth = &p->truth_logits[(size_t)t * n_vocab];
        float *logits = is_truth ? truth : p->logits;
        size_t bytes = 0;
        status = tamis_runner_decode(runner, &sequence, 1, &fed[t], NULL, error);
        if (status == TAMIS_OK) status = tamis_runner_logits(runner, 0, logits, error);
        if (status != TAMIS_OK) break;
        const double nll = log_sum(logits, n_vocab) - logits[fed[t + 1]];
        if (!isfinite(nll))
            return cli_error(error, TAMIS_E_DEVICE,
                             "length %u, text %u, token %u: the loss under %s is %g", p->length,
                             p->text, t + 1, name, nll);
        tamis_vocab_token_text(tamis_model_vocab(p->rig.model), fed[t + 1], &bytes);
        result->nll += nll;
        if (!is_truth) result->kl += divergence(truth, logits, n_vocab);
        result->bytes += bytes;
        result->tokens++;
    }
    return status;
}

/* The truth of a passage, where it has a cache of its own. */
static tamis_status read_truth(perplexity *p, const int32_t *passage, tamis_error *error) {
    perplexity_result ignored = {0};
    tamis_sequence own;
    tamis_status status =
        cli_prefill(p->truth_cache, p->truth, passage, p->length, &own, NULL, error);
    if (status == TAMIS_OK)
        status = feed(p, p->truth, "full", true, own, passage + p->length, &ignored, error);
    return status == TAMIS_OK ? tamis_cache_remove(p->truth_cache, own, error) : status;
}

/* The context for an arm: a fork of what full read, or what its eviction keeps of it. */
static tamis_status begin_arm(perplexity *p, uint32_t arm, tamis_sequence context,
                              const int32_t *passage, tamis_sequence *own, tamis_error *error) {
    if (!eval_arm_evicts(&p->rig.arms->arms[arm]))
        return tamis_cache_fork(p->rig.cache, context, own, error);
    return eval_rig_evict(&p->rig, arm, context, passage, p->length, own, error);
}

static tamis_status score_arm(perplexity *p, uint32_t arm, tamis_sequence context,
                              const int32_t *passage, perplexity_result *result,
                              tamis_error *error) {
    tamis_sequence own;
    tamis_status status = eval_rig_bounds(&p->rig, arm, error);
    if (status == TAMIS_OK) status = begin_arm(p, arm, context, passage, &own, error);
    if (status == TAMIS_OK)
        status = feed(p, p->rig.runners[arm], p->rig.arms->arms[arm].select.text,
                      arm == 0 && p->truth == NULL, own, passage + p->length, result, error);
    return status == TAMIS_OK ? tamis_cache_remove(p->rig.cache, own, error) : status;
}

static tamis_status score_length(perplexity *p, uint32_t length, perplexity_result *results,
                                 tamis_error *error) {
    uint32_t arms = p->rig.arms->count, texts = p->flags->texts;
    uint64_t done = 0, total = (uint64_t)texts * (arms + 1 + (p->truth != NULL));
    tamis_status status = TAMIS_OK;
    char what[64];
    for (uint32_t a = 0; a < arms; a++)
        tamis_plan_reset_counters(tamis_runner_plan(p->rig.runners[a]));
    for (uint32_t i = 0; status == TAMIS_OK && i < texts; i++) {
        const int32_t *passage = eval_passages_at(&p->passages, i, length);
        tamis_sequence context;
        p->length = length;
        p->text = i + 1;
        snprintf(what, sizeof(what), "length %u, text %u of %u", length, i + 1, texts);
        status =
            cli_prefill(p->rig.cache, p->rig.runners[0], passage, length, &context, NULL, error);
        if (status == TAMIS_OK) eval_progress(what, ++done, total);
        if (status == TAMIS_OK && p->truth != NULL) {
            status = read_truth(p, passage, error);
            if (status == TAMIS_OK) eval_progress(what, ++done, total);
        }
        for (uint32_t a = 0; status == TAMIS_OK && a < arms; a++) {
            status = score_arm(p, a, context, passage, &results[a], error);
            if (status == TAMIS_OK) eval_progress(what, ++done, total);
        }
        if (status == TAMIS_OK) status = tamis_cache_remove(p->rig.cache, context, error);
    }
    for (uint32_t a = 0; a < arms; a++)
        tamis_plan_get_counters(tamis_runner_plan(p->rig.runners[a]), &results[a].counters);
    return status;
}

static int measure(perplexity *p) {
    const cli_list *lengths = &p->flags->lengths;
    uint32_t arms = p->rig.arms->count;
    tamis_error error = {0};
    tamis_status status = TAMIS_OK;
    const size_t n_vocab = tamis_model_describe(p->rig.model)->n_vocab;
    p->logits = malloc(n_vocab * sizeof(*p->logits));
    p->truth_logits = malloc(p->passages.fed * n_vocab * sizeof(*p->truth_logits));
    p->results = calloc((size_t)lengths->count * arms, sizeof(*p->results));
    if (p->logits == NULL || p->truth_logits == NULL || p->results == NULL)
        status = cli_no_memory(&error);
    for (uint32_t i = 0; status == TAMIS_OK && i < lengths->count; i++)
        status = score_length(p, lengths->values[i], &p->results[(size_t)i * arms], &error);
    return status == TAMIS_OK ? CLI_OK : cli_fail(eval_perplexity_command.name, "%s", error.text);
}

static tamis_dtype kl_dtype(const perplexity_flags *f) {
    return (tamis_dtype)(f->kl_dtype == CLI_UNSET ? f->dtype : f->kl_dtype);
}

/* ---- Report ---------------------------------------------------------------------------------- */

/* The figures of a row. */
typedef struct figures {
    double nll, perplexity, kl, bits_per_byte, kv_read, kv_full; /* bytes a token */
} figures;

/* After an eviction the arm's own counters cannot say what full would read: then kv_full is what
 * full's arm, the first of the length, has read. */
static figures figures_of(const eval_arm *arm, const perplexity_result *r,
                          const perplexity_result *full) {
    const tamis_plan_counters *whole = eval_arm_evicts(arm) ? &full->counters : &r->counters;
    double tokens = (double)r->tokens, nll = r->nll / tokens;
    const tamis_plan_counters *c = &r->counters;
    return (figures){.nll = nll,
                     .perplexity = exp(nll),
                     .kl = r->kl / tokens,
                     .bits_per_byte = r->nll / log(2) / (double)r->bytes,
                     .kv_read = (double)(c->kv_bytes_read + c->bounds_bytes_read) / tokens,
                     .kv_full = (double)whole->kv_bytes_full / tokens};
}

static void add_cells(cli_table *table, uint32_t length, const eval_arm *arm,
                      const perplexity_result *result, const perplexity_result *full) {
    const figures f = figures_of(arm, result, full);
    cli_table_add(table, "%u", length);
    cli_table_add(table, "%s", arm->select.text);
    cli_table_add(table, "%s", arm->score);
    eval_add_budget(table, arm);
    cli_table_add(table, "%llu", (unsigned long long)result->tokens);
    cli_table_add(table, "%.4f", f.nll);
    cli_table_add(table, "%.3f", f.perplexity);
    cli_table_add(table, "%.5f", f.kl);
    cli_table_add(table, "%.4f", f.bits_per_byte);
    cli_table_add(table, "%s", cli_bytes(f.kv_read).text);
    cli_table_add(table, "%.3f", f.kv_read / f.kv_full);
}

static bool print(const perplexity *p) {
    static const char *const head[] = {"length",    "select",        "score",      "budget",
                                       "tokens",    "nll",           "perplexity", "kl",
                                       "bits/byte", "KV-read/token", "of full"};
    const tamis_device_info *device = tamis_context_device(p->rig.context);
    uint32_t arms = p->rig.arms->count;
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for (uint32_t i = 0; i < p->flags->lengths.count; i++)
        for (uint32_t a = 0; a < arms; a++)
            add_cells(&table, p->flags->lengths.values[i], &p->rig.arms->arms[a],
                      &p->results[(size_t)i * arms + a], &p->results[(size_t)i * arms]);
    printf("%u texts, %u tokens each, on %s (%s)\n", p->flags->texts, p->flags->tokens, device->id,
           device->name);
    bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

static bool add_row(cJSON *rows, uint32_t length, const eval_arm *arm,
                    const perplexity_result *result, const perplexity_result *full) {
    const figures f = figures_of(arm, result, full);
    cJSON *row = cli_json_row(rows);
    return eval_add_arm(row, arm, length) &&
           cJSON_AddNumberToObject(row, "tokens", (double)result->tokens) != NULL &&
           cJSON_AddNumberToObject(row, "nll", f.nll) != NULL &&
           cJSON_AddNumberToObject(row, "perplexity", f.perplexity) != NULL &&
           cJSON_AddNumberToObject(row, "kl", f.kl) != NULL &&
           cJSON_AddNumberToObject(row, "bits_per_byte", f.bits_per_byte) != NULL &&
           cJSON_AddNumberToObject(row, "kv_bytes_read_per_token", f.kv_read) != NULL &&
           cJSON_AddNumberToObject(row, "kv_bytes_full_per_token", f.kv_full) != NULL;
}

static bool write_json(const perplexity *p, cli_output *output) {
    const perplexity_flags *f = p->flags;
    uint32_t arms = p->rig.arms->count;
    cJSON *settings = eval_settings(&f->arms, (tamis_dtype)f->dtype);
    cJSON *rows = cJSON_CreateArray();
    bool made =
        rows != NULL && cJSON_AddNumberToObject(settings, "texts", f->texts) != NULL &&
        cJSON_AddStringToObject(settings, "kl_dtype", tamis_dtype_name(kl_dtype(f))) != NULL;
    for (uint32_t i = 0; i < f->lengths.count; i++)
        for (uint32_t a = 0; made && a < arms; a++)
            made = add_row(rows, f->lengths.values[i], &p->rig.arms->arms[a],
                           &p->results[(size_t)i * arms + a], &p->results[(size_t)i * arms]);
    if (!made) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return eval_write_json(eval_perplexity_command.name, &p->rig, f->seed.value, settings, rows,
                           output);
}

/* ---- The command ----------------------------------------------------------------------------- */

/* A cache and a runner of its own for the truth. */
static int prepare_truth(perplexity *p, uint32_t context, uint32_t page_size) {
    tamis_error error = {0};
    tamis_cache_params cache = {.page_size = page_size,
                                .dtype = kl_dtype(p->flags),
                                .capacity_tokens = context + page_size};
    tamis_plan_params params = {.max_context = context, .max_sequences = 1};
    tamis_selection_default(TAMIS_SELECT_FULL, &params.selection);
    tamis_model_cache_shape(p->rig.model, &cache);
    tamis_status status = tamis_cache_create(p->rig.context, &cache, &p->truth_cache, &error);
    if (status == TAMIS_OK)
        status = tamis_runner_create(p->rig.model, p->truth_cache, &params, &p->truth, &error);
    return status == TAMIS_OK ? CLI_OK : cli_fail(eval_perplexity_command.name, "%s", error.text);
}

/* The cache holds a context and what one fork adds, with the page that it copies; beside it the
 * context of an arm with an eviction. */
static int prepare(perplexity *p, const eval_arms *arms) {
    const perplexity_flags *f = p->flags;
    uint32_t longest = eval_longest(&f->lengths), page_size = cli_page_size(f->arms.page_size);
    uint64_t tokens = (uint64_t)longest + f->tokens + 3 * page_size;
    if (eval_most_kept(arms, longest) > 0) tokens *= 2;
    int code =
        eval_rig_open(&p->rig, eval_perplexity_command.name, f->device, f->model,
                      (tamis_dtype)f->dtype, page_size, arms, tokens, longest + f->tokens, 1);
    if (code == CLI_OK && kl_dtype(f) != (tamis_dtype)f->dtype)
        code = prepare_truth(p, longest + f->tokens, page_size);
    if (code != CLI_OK) return code;
    return eval_passages_open(&p->passages, eval_perplexity_command.name, p->rig.model, f->model,
                              f->text, longest, f->tokens, f->texts, f->seed.value);
}

static int run(const perplexity_flags *f, const eval_arms *arms) {
    perplexity p = {.flags = f};
    cli_output output = {0};
    if (f->json != NULL && !cli_output_open(&output, eval_perplexity_command.name, f->json))
        return CLI_FAILED;
    int code = prepare(&p, arms);
    if (code == CLI_OK) code = measure(&p);
    if (code == CLI_OK && !print(&p))
        code = cli_fail(eval_perplexity_command.name, "out of host memory");
    if (code == CLI_OK && f->json != NULL && !write_json(&p, &output)) code = CLI_FAILED;
    free(p.logits);
    free(p.truth_logits);
    free(p.results);
    eval_passages_close(&p.passages);
    tamis_runner_destroy(&p.truth);
    tamis_cache_destroy(&p.truth_cache);
    eval_rig_close(&p.rig);
    cli_output_discard(&output);
    return code;
}

static int run_command(int argc, char *const *argv) {
    perplexity_flags f = {
        .lengths = {3, {2000, 5000, 10000}},
        .tokens = 128,
        .texts = 8,
        .dtype = TAMIS_F16,
        .kl_dtype = CLI_UNSET,
        .arms = {EVAL_ARM_DEFAULTS, .selections = {2, {TAMIS_SELECT_QUEST, TAMIS_SELECT_WINDOW}}}};
    eval_arms arms;
    int code = cli_parse(&eval_perplexity_command, &f, argc, argv);
    if (code >= 0) return code;
    eval_merge_lengths(&f.lengths);
    if (f.model == NULL) {
        cli_fail(eval_perplexity_command.name, "--model: is missing (see %s --help)",
                 eval_perplexity_command.name);
        return CLI_USAGE;
    }
    if (!eval_check_arms(eval_perplexity_command.name, &f.arms, 512)) return CLI_USAGE;
    if (!eval_list_arms(eval_perplexity_command.name, &f.arms, f.seed.value, &arms))
        return CLI_USAGE;
    return run(&f, &arms);
}
