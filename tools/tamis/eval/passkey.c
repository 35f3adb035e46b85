/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis eval passkey`: texts with planted keys, read once exactly, asked by every arm. */
#include "eval/passkey.h"
#include "eval/passages.h"

#include <stdlib.h>

#define TEXTS_MAX 100000

typedef struct passkey_flags {
    const char *device, *model, *text, *json;
    cli_seed seed;
    uint32_t n_texts, n_keys, dtype;
    cli_list lengths;
    eval_arm_flags arms;
} passkey_flags;

static const cli_option options[] = {
    CLI_MODEL_OPTION(passkey_flags, model),
    {"--text", "FILE", "natural text (default text.txt beside the model)", CLI_INPUT,
     offsetof(passkey_flags, text), 0, 0, NULL},
    {"--length", "N[,N]", "tokens of a text with its keys, before the question (default 10000)",
     CLI_NUMBERS, offsetof(passkey_flags, lengths), 1, EVAL_CONTEXT_MAX, NULL},
    {"--texts", "N", "texts of each length (default 20)", CLI_NUMBER,
     offsetof(passkey_flags, n_texts), 1, TEXTS_MAX, NULL},
    {"--keys", "N", "keys and questions of a text, at most 16 (default 10)", CLI_NUMBER,
     offsetof(passkey_flags, n_keys), 1, PASSKEY_KEYS_MAX, NULL},
    {"--seed", "N", "number from which texts and keys follow (default 0)", CLI_SEED,
     offsetof(passkey_flags, seed), 0, 0, NULL},
    EVAL_ARM_OPTIONS(passkey_flags, arms, "full,quest,window", "512"),
    EVAL_EVICT_OPTIONS(passkey_flags, arms),
    CLI_DTYPE_OPTION("--dtype", passkey_flags, dtype),
    CLI_JSON_OPTION(passkey_flags, json),
    CLI_DEVICE_OPTION(passkey_flags, device),
};

static int run_command(int argc, char *const *argv);

const cli_command eval_passkey_command = {
    "tamis eval passkey",
    "how many planted keys are found again in a long text",
    "--model FILE [OPTIONS]",
    "Plants keys, each a name with five digits, in natural text at depths that cover it evenly,\n"
    "and asks for every key. An arm is a selection with its budget. Each text is read once,\n"
    "exactly. For every arm each question is a fork of the text. Question and answer are run\n"
    "under the arm's selection token by token, the questions of a text in one batch. An answer\n"
    "is right if all five digits are. Intervals are Wilson's, 95 %, which take questions as\n"
    "independent, those of one text too.\n"
    "\n"
    "The words are plain text, without a chat's tokens: 'The magic number of red is 12345.\n"
    "Remember it.' ... 'The magic number of red is', and with one key 'The special magic number\n"
    "is'. Models of bytes read 'The red pass key is 12345.', as the shipped one was trained.\n"
    "Answers are read as they come; no token ends one.\n"
    "\n"
    "An arm may also be an eviction with its budget. It reads the end of the text again, or where\n"
    "it sums scores all of it, and evicts before any question is asked. random draws its pages\n"
    "once for each seed: take the mean over several seeds. The exit status does not depend on the\n"
    "answers.",
    "  tamis eval passkey --model tests/data/needle.gguf --length 2000 --texts 4\n"
    "  tamis eval passkey --model model.gguf --select quest,window,oracle,random \\\n"
    "      --score minmax,meanstd,mean --budget 256,512 --json passkey.json\n"
    "  tamis eval passkey --model tests/data/needle.gguf --length 2000 --texts 4 \\\n"
    "      --evict h2o,snapkv,adakv --budget 512\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run_command};

/* What a run holds beside its flags. */
typedef struct passkey_run {
    const passkey_flags *flags;
    eval_arms arms;
    eval_rig rig;
    eval_text natural;
    passkey_source source;
    passkey_result *results; /* [lengths][arms] */
} passkey_run;

static int parse(passkey_flags *f, int argc, char *const *argv) {
    int code = cli_parse(&eval_passkey_command, f, argc, argv);
    if (code >= 0) return code;
    eval_merge_lengths(&f->lengths);
    if (f->model == NULL) {
        cli_fail(eval_passkey_command.name, "--model: is missing (see %s --help)",
                 eval_passkey_command.name);
        return CLI_USAGE;
    }
    if (!eval_check_arms(eval_passkey_command.name, &f->arms, 512)) return CLI_USAGE;
    uint32_t least = passkey_least_length(f->n_keys);
    for (uint32_t i = 0; i < f->lengths.count; i++)
        if (f->lengths.values[i] < least) {
            cli_fail(eval_passkey_command.name, "--length %u: %u keys need at least %u",
                     f->lengths.values[i], f->n_keys, least);
            return CLI_USAGE;
        }
    return -1;
}

/* ---- Texts ----------------------------------------------------------------------------------- */

/* Records the bytes that a text takes in the cache before an arm is asked. */
static tamis_status hold(passkey_run *run, uint32_t arm, tamis_sequence sequence,
                         tamis_error *error) {
    tamis_sequence_stats stats;
    tamis_status status = tamis_cache_get_sequence_stats(run->rig.cache, sequence, &stats, error);
    if (status != TAMIS_OK) return status;
    if (stats.bytes_held > run->results[arm].bytes_held)
        run->results[arm].bytes_held = stats.bytes_held;
    return TAMIS_OK;
}

/* All questions of a text that the cache holds as `sequence`, by one arm. */
static tamis_status ask(passkey_run *run, uint32_t arm, const passkey_text *text,
                        tamis_sequence sequence, tamis_error *error) {
    bool right[PASSKEY_KEYS_MAX] = {false};
    passkey_result *result = &run->results[arm];
    tamis_status status = eval_rig_bounds(&run->rig, arm, error);
    if (status == TAMIS_OK)
        status = passkey_ask(&run->rig, arm, text, sequence, right, &result->tokens,
                             &result->seconds, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < text->n_keys; i++)
        result->right[i] += right[i];
    return status;
}

/* The same over what an arm's eviction keeps of the text. */
static tamis_status evict_and_ask(passkey_run *run, uint32_t arm, const passkey_text *text,
                                  tamis_sequence reading, tamis_error *error) {
    tamis_sequence sequence;
    tamis_status status = eval_rig_evict(&run->rig, arm, reading, text->tokens.ids,
                                         (uint32_t)text->tokens.count, &sequence, error);
    if (status == TAMIS_OK) status = hold(run, arm, sequence, error);
    if (status == TAMIS_OK) status = ask(run, arm, text, sequence, error);
    return status == TAMIS_OK ? tamis_cache_remove(run->rig.cache, sequence, error) : status;
}

/* One text by all arms; `done` parts of the length's bar are there before. */
static tamis_status run_text(passkey_run *run, uint32_t length, uint32_t index, const char *what,
                             tamis_error *error) {
    const uint64_t parts = 1 + run->arms.count, total = parts * run->flags->n_texts;
    tamis_sequence sequence;
    passkey_text text;
    tamis_status status = passkey_text_make(&run->source, length, index, &text, error);
    if (status == TAMIS_OK)
        status = cli_prefill(run->rig.cache, run->rig.runners[0], text.tokens.ids,
                             text.tokens.count, &sequence, NULL, error);
    if (status == TAMIS_OK) eval_progress(what, parts * index + 1, total);
    for (uint32_t a = 0; status == TAMIS_OK && a < run->arms.count; a++) {
        bool evicts = eval_arm_evicts(&run->arms.arms[a]);
        if (!evicts) status = hold(run, a, sequence, error);
        if (status == TAMIS_OK)
            status = evicts ? evict_and_ask(run, a, &text, sequence, error)
                            : ask(run, a, &text, sequence, error);
        if (status == TAMIS_OK) eval_progress(what, parts * index + 2 + a, total);
    }
    if (status == TAMIS_OK) status = tamis_cache_remove(run->rig.cache, sequence, error);
    passkey_text_free(&text);
    return status;
}

/* All texts of one length; run->results is the length's row. */
static tamis_status run_length(passkey_run *run, uint32_t length, tamis_error *error) {
    char what[32];
    tamis_status status = TAMIS_OK;
    snprintf(what, sizeof(what), "length %u", length);
    for (uint32_t a = 0; a < run->arms.count; a++)
        tamis_plan_reset_counters(tamis_runner_plan(run->rig.runners[a]));
    for (uint32_t i = 0; status == TAMIS_OK && i < run->flags->n_texts; i++)
        status = run_text(run, length, i, what, error);
    for (uint32_t a = 0; a < run->arms.count; a++)
        tamis_plan_get_counters(tamis_runner_plan(run->rig.runners[a]), &run->results[a].counters);
    return status;
}

static int measure(passkey_run *run) {
    const passkey_flags *f = run->flags;
    passkey_result *results = run->results;
    tamis_error error = {0};
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < f->lengths.count; i++) {
        status = run_length(run, f->lengths.values[i], &error);
        run->results += run->arms.count;
    }
    run->results = results;
    return status == TAMIS_OK ? CLI_OK : cli_fail(eval_passkey_command.name, "%s", error.text);
}

/* ---- The run --------------------------------------------------------------------------------- */

static int prepare(passkey_run *run) {
    const passkey_flags *f = run->flags;
    uint32_t page_size = cli_page_size(f->arms.page_size), length = eval_longest(&f->lengths);
    /* A fork owns a copy of the text's last page and what comes after it. Where new tokens replace
     * others, it owns a copy of all that is kept. */
    uint32_t kept = eval_most_kept(&run->arms, length);
    uint64_t tail = PASSKEY_TAIL_TOKENS + 2 * page_size + kept;
    uint64_t texts = (kept > 0 ? 2 : 1) * ((uint64_t)length + page_size);
    int code = eval_rig_open(&run->rig, eval_passkey_command.name, f->device, f->model,
                             (tamis_dtype)f->dtype, page_size, &run->arms, texts + f->n_keys * tail,
                             length + PASSKEY_TAIL_TOKENS, f->n_keys);
    if (code != CLI_OK) return code;
    if (!eval_text_open(&run->natural, eval_passkey_command.name, f->text, f->model))
        return CLI_FAILED;
    if (run->natural.bytes == 0)
        return cli_fail(eval_passkey_command.name, "%s: is empty", run->natural.path);
    run->source = (passkey_source){tamis_model_vocab(run->rig.model), run->natural.content,
                                   run->natural.bytes, f->n_keys, f->seed.value};
    return CLI_OK;
}

static bool write_json(const passkey_run *run, const passkey_report *report, cli_output *output) {
    const passkey_flags *f = run->flags;
    cJSON *rows = passkey_rows(report), *settings = eval_settings(&f->arms, (tamis_dtype)f->dtype);
    if (cJSON_AddNumberToObject(settings, "texts", f->n_texts) == NULL ||
        cJSON_AddNumberToObject(settings, "keys", f->n_keys) == NULL) {
        cJSON_Delete(settings);
        settings = NULL;
    }
    return eval_write_json(eval_passkey_command.name, &run->rig, f->seed.value, settings, rows,
                           output);
}

static int report_run(const passkey_run *run, cli_output *output) {
    const passkey_flags *f = run->flags;
    const passkey_report report = {&run->rig, &f->lengths, f->n_texts, f->n_keys, run->results};
    if (!passkey_print(&report)) return cli_fail(eval_passkey_command.name, "out of host memory");
    return f->json == NULL || write_json(run, &report, output) ? CLI_OK : CLI_FAILED;
}

static int run_command(int argc, char *const *argv) {
    passkey_flags f = {
        .n_texts = 20,
        .n_keys = 10,
        .dtype = TAMIS_F16,
        .lengths = {1, {10000}},
        .arms = {EVAL_ARM_DEFAULTS,
                 .selections = {3, {TAMIS_SELECT_FULL, TAMIS_SELECT_QUEST, TAMIS_SELECT_WINDOW}}}};
    passkey_run run = {.flags = &f};
    cli_output output = {0};
    int code = parse(&f, argc, argv);
    if (code >= 0) return code;
    if (!eval_list_arms(eval_passkey_command.name, &f.arms, f.seed.value, &run.arms))
        return CLI_USAGE;
    if (f.json != NULL && !cli_output_open(&output, eval_passkey_command.name, f.json))
        return CLI_FAILED;
    run.results = calloc((size_t)f.lengths.count * run.arms.count, sizeof(*run.results));
    if (run.results == NULL)
        code = cli_fail(eval_passkey_command.name, "out of host memory");
    else
        code = prepare(&run);
    if (code == CLI_OK) code = measure(&run);
    if (code == CLI_OK) code = report_run(&run, &output);
    eval_rig_close(&run.rig);
    cli_output_discard(&output);
    free(run.results);
    eval_text_close(&run.natural);
    return code;
}
