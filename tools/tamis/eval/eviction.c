/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis eval eviction`: flags, then for each seed and text record, evict under every arm, compare
 * and ask; report. */
#include "eval/eviction.h"

#include <inttypes.h>
#include <stdlib.h>

static const cli_option options[] = {
    CLI_MODEL_OPTION(eviction_flags, model),
    {"--text", "FILE", "natural text (default text.txt beside the model)", CLI_INPUT,
     offsetof(eviction_flags, text), 0, 0, NULL},
    {"--length", "N", "tokens of a text with its keys, before the questions (default 4096)",
     CLI_NUMBER, offsetof(eviction_flags, length), 1, EVAL_CONTEXT_MAX, NULL},
    {"--evict", "K[,K]",
     "what is measured: {} (default all); a variant follows its kind, as in "
     "andpro+anchor-all",
     CLI_EVICTIONS, offsetof(eviction_flags, arms.evictions), 0, 0, NULL},
    {"--budget", "N[,N]",
     "tokens of a lane that an eviction keeps, and that quest reads (default 128,256,512)",
     CLI_NUMBERS, offsetof(eviction_flags, arms.budgets), 1, EVAL_CONTEXT_MAX, NULL},
    CLI_EVICTION_OPTIONS_OF(eviction_flags, arms.eviction),
    {"--questions", "N", "keys in a text, each asked for, at most 16 (default 4)", CLI_NUMBER,
     offsetof(eviction_flags, n_questions), 1, PASSKEY_KEYS_MAX, NULL},
    {"--texts", "N", "texts of each seed (default 1)", CLI_NUMBER,
     offsetof(eviction_flags, n_texts), 1, 100000, NULL},
    {"--seeds", "N", "seeds, over which the spread is taken (default 4)", CLI_NUMBER,
     offsetof(eviction_flags, n_seeds), 1, EVICTION_SEEDS_MAX, NULL},
    {"--seed", "N", "first seed, a number from which texts and keys follow (default 0)", CLI_SEED,
     offsetof(eviction_flags, seed), 0, 0, NULL},
    CLI_PAGE_SIZE_OPTION(eviction_flags, arms.page_size),
    CLI_DTYPE_OPTION("--dtype", eviction_flags, dtype),
    CLI_JSON_OPTION(eviction_flags, json),
    CLI_DEVICE_OPTION(eviction_flags, device),
};

static int run_command(int argc, char *const *argv);

const cli_command eval_eviction_command = {
    "tamis eval eviction",
    "what evictions cost: attention's output, planted keys, time",
    "--model FILE [OPTIONS]",
    "Plants keys, each a name with five digits, in natural text. The model reads each text once\n"
    "under full, and its queries, keys and values are recorded. Every eviction takes the same\n"
    "rows and evicts at the text's end, before any question is known; then it takes the rows of\n"
    "the questions and of their true answers one by one. full, and quest with the same budget,\n"
    "evict nothing. The words are those of tamis eval passkey.\n"
    "\n"
    "output_error: |y - y'| / |y| of all heads of a layer against full, a mean over rows and\n"
    "layers; output_cosine likewise.\n"
    "\n"
    "passkey_accuracy: share of the keys of which the model, over the tokens that were kept,\n"
    "answers all digits; all questions of a text are asked on forks of the one evicted sequence.\n"
    "\n"
    "error_single and passkey_single: the same where the question ends the prompt, and so is\n"
    "known when tokens are chosen; their rows are those of the answer.\n"
    "\n"
    "policy_us: device time of evicting a text, observing its rows included. A spread is the\n"
    "standard deviation over seeds.",
    "  tamis eval eviction --model tests/data/needle.gguf --budget 128,256,512 --json out.json\n"
    "  tamis eval eviction --model tests/data/needle.gguf --length 1000 --budget 128 \\\n"
    "      --evict streaming,snapkv,andpro+anchor-all --seeds 2\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run_command};

static int parse(eviction_flags *f, int argc, char *const *argv) {
    int code = cli_parse(&eval_eviction_command, f, argc, argv);
    if (code >= 0) return code;
    uint32_t least = passkey_least_length(f->n_questions), values[CLI_EVICTIONS_MAX];
    if (f->model == NULL)
        cli_fail(eval_eviction_command.name, "--model: is missing (see %s --help)",
                 eval_eviction_command.name);
    else if (f->length < least)
        cli_fail(eval_eviction_command.name, "--length %u: %u keys need at least %u", f->length,
                 f->n_questions, least);
    else if (cli_list_evictions(&f->arms.evictions, values) > 0 ||
             cli_check_no_eviction(eval_eviction_command.name, false, &f->arms.eviction))
        return -1;
    return CLI_USAGE;
}

/* full, then quest with every budget that is large enough for it, then the evictions. */
static bool list_arms(const eviction_flags *f, eval_arms *out) {
    eval_arm_flags quest = f->arms;
    tamis_selection selection;
    tamis_error error = {0};
    quest.evictions.count = quest.budgets.count = 0;
    quest.selections = (cli_list){1, {TAMIS_SELECT_QUEST}};
    tamis_selection_default(TAMIS_SELECT_QUEST, &selection);
    for (uint32_t i = 0; i < f->arms.budgets.count; i++) {
        selection.budget = f->arms.budgets.values[i];
        if (tamis_selection_check(&selection, cli_page_size(f->arms.page_size), &error) == TAMIS_OK)
            quest.budgets.values[quest.budgets.count++] = selection.budget;
        else
            fprintf(stderr, "%s: quest is left out: %s\n", eval_eviction_command.name, error.text);
    }
    if (!eval_list_arms(eval_eviction_command.name, &quest, 0, out)) return false;
    return eval_list_evictions(eval_eviction_command.name, &f->arms, out);
}

/* ---- One arm, one text ----------------------------------------------------------------------- */

/* Device time that the plan has spent on evicting. */
static double policy_us(const tamis_plan *plan) {
    tamis_plan_times t;
    tamis_plan_get_times(plan, &t);
    return t.evict_us + t.observe_us + t.replace_us;
}

/* An arm under work: the text in the cache up to where its last queries begin. */
typedef struct turn {
    eviction_run *run;
    uint32_t arm;
    bool evicts;
    tamis_plan *reader; /* takes exact rows: the arm's plan, or full's */
    tamis_sequence stem;
    uint32_t head; /* tokens that stem holds */
} turn;

/* If the eviction sums scores, every row of the text is attended; otherwise the rows of its window
 * are enough. */
static tamis_status begin_text(turn *t, tamis_error *error) {
    eviction_run *run = t->run;
    const tamis_eviction *eviction = &run->arms.arms[t->arm].eviction;
    uint32_t length = run->trace.length;
    t->head = length - (eviction->window < length ? eviction->window : length);
    if (!t->evicts) return tamis_cache_fork(run->rig.cache, run->trace.main, &t->stem, error);
    bool all = tamis_eviction_planes(eviction) & TAMIS_PLANE_SCORES;
    tamis_status status = tamis_cache_add(run->rig.cache, &t->stem, error);
    if (status != TAMIS_OK) return status;
    return eviction_read_text(run, t->reader, t->stem, 0, t->head, all, error);
}

/* One question at the end of the prompt. The answer's first token comes from the prompt's exact
 * end, as in generation. */
static tamis_status ask_within(turn *t, const passkey_text *text, uint32_t question,
                               tamis_error *error) {
    eviction_run *run = t->run;
    tamis_sequence fork;
    bool right = false;
    tamis_status status = tamis_cache_fork(run->rig.cache, t->stem, &fork, error);
    if (status == TAMIS_OK && t->evicts)
        status = eviction_read_text(run, t->reader, fork, t->head, run->trace.length, true, error);
    if (status == TAMIS_OK) status = eviction_read_question(run, t->reader, fork, question, error);
    if (status == TAMIS_OK && t->evicts) status = tamis_plan_evict(t->reader, fork, NULL, error);
    if (status == TAMIS_OK) status = eviction_compare_answer(run, t->arm, fork, question, error);
    if (status == TAMIS_OK)
        status = passkey_answer(&run->rig, t->arm, &text->questions[question], fork,
                                run->trace.first[question], &right, error);
    run->results[t->arm].within.right[run->seed] += right;
    return status == TAMIS_OK ? tamis_cache_remove(run->rig.cache, fork, error) : status;
}

/* The rest of the text, and its end. */
static tamis_status end_text(turn *t, double before, tamis_error *error) {
    eviction_run *run = t->run;
    eviction_result *result = &run->results[t->arm];
    uint32_t length = run->trace.length;
    tamis_evicted evicted = {0};
    result->tokens_kept += t->evicts ? 0 : length;
    if (!t->evicts) return TAMIS_OK;
    tamis_status status = eviction_read_text(run, t->reader, t->stem, t->head, length, true, error);
    if (status == TAMIS_OK) status = tamis_plan_evict(t->reader, t->stem, &evicted, error);
    uint32_t lanes = run->shape.n_layers * run->shape.n_kv_heads;
    result->tokens_kept += (double)evicted.tokens_kept / lanes;
    result->bytes_returned += (double)evicted.bytes_returned;
    result->policy_us += policy_us(t->reader) - before;
    return status;
}

static tamis_status compare(turn *t, tamis_error *error) {
    tamis_plan *plan = tamis_runner_plan(t->run->rig.runners[t->arm]);
    double before = policy_us(plan);
    tamis_status status = eviction_compare(t->run, t->arm, t->stem, error);
    t->run->results[t->arm].step_us += policy_us(plan) - before;
    return status;
}

static tamis_status ask_after(turn *t, const passkey_text *text, tamis_error *error) {
    bool right[PASSKEY_KEYS_MAX] = {false};
    uint64_t tokens = 0;
    double seconds = 0;
    tamis_status status =
        passkey_ask(&t->run->rig, t->arm, text, t->stem, right, &tokens, &seconds, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < text->n_keys; i++)
        t->run->results[t->arm].after.right[t->run->seed] += right[i];
    return status;
}

static tamis_status measure_arm(eviction_run *run, uint32_t arm, const passkey_text *text,
                                tamis_error *error) {
    turn t = {.run = run, .arm = arm, .evicts = eval_arm_evicts(&run->arms.arms[arm])};
    t.reader = tamis_runner_plan(run->rig.runners[t.evicts ? arm : 0]);
    double before = policy_us(t.reader);
    tamis_status status = begin_text(&t, error);
    double read = policy_us(t.reader) - before;
    for (uint32_t i = 0; status == TAMIS_OK && i < text->n_keys; i++)
        status = ask_within(&t, text, i, error);
    if (status == TAMIS_OK) status = end_text(&t, policy_us(t.reader) - read, error);
    if (status == TAMIS_OK) status = compare(&t, error);
    if (status == TAMIS_OK) status = ask_after(&t, text, error);
    return status == TAMIS_OK ? tamis_cache_remove(run->rig.cache, t.stem, error) : status;
}

/* ---- The run --------------------------------------------------------------------------------- */

/* Rows that all arms are compared by, and steps that they take. */
static void count_rows(eviction_run *run) {
    uint32_t steps = 0;
    for (uint32_t i = 0; i < run->flags->n_questions; i++) {
        uint32_t rows = run->trace.n_rows[i];
        run->rows_after[run->seed] += rows;
        run->rows_within[run->seed] += rows - run->trace.n_asked[i];
        steps = rows > steps ? rows : steps;
    }
    run->steps += steps;
}

static tamis_status measure_text(eviction_run *run, uint32_t index, tamis_error *error) {
    const eviction_flags *f = run->flags;
    const passkey_source source = {tamis_model_vocab(run->rig.model), run->natural.content,
                                   run->natural.bytes, f->n_questions, f->seed.value + run->seed};
    uint64_t parts = 1 + run->arms.count, before = parts * (run->seed * f->n_texts + index);
    uint64_t total = parts * f->n_seeds * f->n_texts;
    passkey_text text;
    char what[64];
    snprintf(what, sizeof(what), "seed %" PRIu64 ", text %u of %u", f->seed.value + run->seed,
             index + 1, f->n_texts);
    tamis_status status = passkey_text_make(&source, f->length, index, &text, error);
    if (status == TAMIS_OK) status = eviction_record(run, &text, error);
    if (status == TAMIS_OK) count_rows(run);
    for (uint32_t a = 0; status == TAMIS_OK && a < run->arms.count; a++) {
        eval_progress(what, before + a + 1, total);
        status = measure_arm(run, a, &text, error);
    }
    if (status == TAMIS_OK) eval_progress(what, before + parts, total);
    if (status == TAMIS_OK) status = tamis_cache_remove(run->rig.cache, run->trace.main, error);
    passkey_text_free(&text);
    return status;
}

static tamis_status take_sums(const eviction_run *run, eviction_sums *sums, tamis_error *error) {
    size_t cells = (size_t)run->flags->n_seeds * run->shape.n_layers;
    sums->error = calloc(cells, sizeof(double));
    sums->cosine = calloc(cells, sizeof(double));
    return sums->error != NULL && sums->cosine != NULL ? TAMIS_OK : cli_no_memory(error);
}

static void free_sums(const eviction_sums *sums) {
    free(sums->error);
    free(sums->cosine);
}

static int measure(eviction_run *run) {
    tamis_error error = {0};
    tamis_status status = eviction_create(run, &error);
    for (uint32_t a = 0; status == TAMIS_OK && a < run->arms.count; a++) {
        status = take_sums(run, &run->results[a].after, &error);
        if (status == TAMIS_OK) status = take_sums(run, &run->results[a].within, &error);
    }
    for (run->seed = 0; status == TAMIS_OK && run->seed < run->flags->n_seeds; run->seed++)
        for (uint32_t i = 0; status == TAMIS_OK && i < run->flags->n_texts; i++)
            status = measure_text(run, i, &error);
    return status == TAMIS_OK ? CLI_OK : cli_fail(eval_eviction_command.name, "%s", error.text);
}

/* The cache holds the text under full, the arm's text, and what is kept of a text that ends with a
 * question. Forks need room for what follows the text and, where new tokens replace others, for
 * copies. */
static int prepare(eviction_run *run) {
    const eviction_flags *f = run->flags;
    uint32_t page_size = cli_page_size(f->arms.page_size),
             context = f->length + PASSKEY_TAIL_TOKENS;
    uint64_t tail = PASSKEY_TAIL_TOKENS + 2 * page_size + eval_most_kept(&run->arms, f->length);
    int code = eval_rig_open(&run->rig, eval_eviction_command.name, f->device, f->model,
                             (tamis_dtype)f->dtype, page_size, &run->arms,
                             3 * ((uint64_t)context + 2 * page_size) + f->n_questions * tail,
                             context, f->n_questions);
    if (code != CLI_OK) return code;
    run->shape = *tamis_model_describe(run->rig.model);
    if (!eval_text_open(&run->natural, eval_eviction_command.name, f->text, f->model))
        return CLI_FAILED;
    if (run->natural.bytes == 0)
        return cli_fail(eval_eviction_command.name, "%s: is empty", run->natural.path);
    return CLI_OK;
}

static bool write_json(const eviction_run *run, cli_output *output) {
    const eviction_flags *f = run->flags;
    cJSON *settings = eval_settings(&f->arms, (tamis_dtype)f->dtype);
    bool made = cJSON_AddNumberToObject(settings, "length", f->length) != NULL &&
                cJSON_AddNumberToObject(settings, "texts", f->n_texts) != NULL &&
                cJSON_AddNumberToObject(settings, "questions", f->n_questions) != NULL &&
                cJSON_AddNumberToObject(settings, "seeds", f->n_seeds) != NULL;
    cJSON *rows = made ? eviction_json_rows(run) : NULL;
    return eval_write_json(eval_eviction_command.name, &run->rig, f->seed.value, settings, rows,
                           output);
}

static int run_all(eviction_run *run) {
    const eviction_flags *f = run->flags;
    cli_output output = {0};
    if (f->json != NULL && !cli_output_open(&output, eval_eviction_command.name, f->json))
        return CLI_FAILED;
    int code = prepare(run);
    if (code == CLI_OK) code = measure(run);
    if (code == CLI_OK && !eviction_print(run))
        code = cli_fail(eval_eviction_command.name, "out of host memory");
    if (code == CLI_OK && f->json != NULL && !write_json(run, &output)) code = CLI_FAILED;
    for (uint32_t a = 0; a < run->arms.count; a++) {
        free_sums(&run->results[a].after);
        free_sums(&run->results[a].within);
    }
    eviction_destroy(run);
    eval_text_close(&run->natural);
    eval_rig_close(&run->rig);
    cli_output_discard(&output);
    return code;
}

static int run_command(int argc, char *const *argv) {
    eviction_flags f = {.length = 4096,
                        .n_texts = 1,
                        .n_questions = 4,
                        .n_seeds = 4,
                        .dtype = TAMIS_F16,
                        .arms = {EVAL_ARM_DEFAULTS, .budgets = {3, {128, 256, 512}},
                                 .evictions = {1, {CLI_EVICTION_ALL}}}};
    int code = parse(&f, argc, argv);
    if (code >= 0) return code;
    eviction_run *run = calloc(1, sizeof(*run));
    if (run == NULL) return cli_fail(eval_eviction_command.name, "out of host memory");
    run->flags = &f;
    code = list_arms(&f, &run->arms) ? CLI_OK : CLI_USAGE;
    run->arms.timing = true;
    if (code == CLI_OK) code = run_all(run);
    free(run);
    return code;
}
