/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis blend trial`: sample prompts blended with a list of shares beside the same prompts
 * computed whole, and a trial of what passed. */
#include "blend/blend.h"
#include "eval/eval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SELECT_HKVD, SELECT_QUESTION, SELECT_RANDOM };
static const char *const selector_names[] = {"hkvd", "question", "random", NULL};
static const tamis_blend_selector selectors[] = {TAMIS_BLEND_HKVD, TAMIS_BLEND_QUESTION,
                                                 TAMIS_BLEND_RANDOM};

typedef struct trial_flags {
    const char *device, *model, *text, *json, *trial, *max_kl, *min_agreement;
    uint32_t n_prompts, n_chunks, chunk_tokens, n_suffix, n_answer;
    cli_seed seed;
    uint32_t selector, schedule, check_layer, dtype, stored, sink, page_size, dry_run;
    cli_list shares;
} trial_flags;

static const cli_option options[] = {
    CLI_MODEL_OPTION(trial_flags, model),
    {"--text", "FILE", "text that prompts are cut from (default text.txt beside the model)",
     CLI_INPUT, offsetof(trial_flags, text), 0, 0, NULL},
    {"--prompts", "N", "sample prompts (default 8)", CLI_NUMBER, offsetof(trial_flags, n_prompts),
     1, 10000, NULL},
    {"--chunks", "N", "chunks of a prompt (default 6)", CLI_NUMBER, offsetof(trial_flags, n_chunks),
     2, BLEND_CHUNKS_MAX, NULL},
    {"--chunk-tokens", "N", "tokens of a chunk (default 512)", CLI_NUMBER,
     offsetof(trial_flags, chunk_tokens), 1, 65536, NULL},
    {"--suffix", "N", "tokens of text behind the chunks, always computed (default 32)", CLI_NUMBER,
     offsetof(trial_flags, n_suffix), 1, 4096, NULL},
    {"--answer", "N", "tokens of the answer that are compared (default 16)", CLI_NUMBER,
     offsetof(trial_flags, n_answer), 1, 4096, NULL},
    {"--select", "S", "what selects the tokens to compute: {} (default hkvd)", CLI_CHOICE,
     offsetof(trial_flags, selector), 0, 0, selector_names},
    {"--share", "N[,N]", "percent of the tokens found that are computed (default 5,10,15,20,30,50)",
     CLI_NUMBERS, offsetof(trial_flags, shares), 1, 99, NULL},
    BLEND_SCHEDULE_OPTION(trial_flags, schedule),
    BLEND_CHECK_LAYER_OPTION(trial_flags, check_layer),
    {"--max-kl", "X", "bound on the mean divergence of an answer's tokens, nats (default 0.05)",
     CLI_TEXT, offsetof(trial_flags, max_kl), 0, 0, NULL},
    {"--min-agreement", "X", "least share of an answer's tokens that are the same (default 0.9)",
     CLI_TEXT, offsetof(trial_flags, min_agreement), 0, 0, NULL},
    {"--trials", "FILE",
     "where the entry is kept (default tamis/blend.trials in the user's folder for settings)",
     CLI_PATH, offsetof(trial_flags, trial), 0, 0, NULL},
    {"--dry-run", "", "measures, and keeps no entry", CLI_FLAG, offsetof(trial_flags, dry_run), 0,
     0, NULL},
    {"--seed", "N", "number from which the prompts follow (default 0)", CLI_SEED,
     offsetof(trial_flags, seed), 0, 0, NULL},
    CLI_DTYPE_OPTION("--dtype", trial_flags, dtype),
    BLEND_STORED_OPTION(trial_flags, stored),
    BLEND_SINK_OPTION(trial_flags, sink),
    CLI_PAGE_SIZE_OPTION(trial_flags, page_size),
    CLI_JSON_OPTION(trial_flags, json),
    CLI_DEVICE_OPTION(trial_flags, device),
};

static int run_command(int argc, char *const *argv);

const cli_command blend_trial_command = {
    "tamis blend trial",
    "measure how large a share of stored chunks a model needs computed anew",
    "--model FILE [OPTIONS]",
    "Cuts sample prompts from a text: chunks from places of their own, and the text that follows\n"
    "the last one. Each prompt is computed whole, which gives an answer, and blended from its\n"
    "stored chunks with each share. Both read the answer token by token. KL is how far the\n"
    "distribution of the next token is from that of the prompt computed whole, in nats; agreement\n"
    "the share of the answer's tokens that are the most likely ones after the blended prompt, "
    "too;\n"
    "answers the number of answers that are the same to the end. K, V and attention are relative\n"
    "differences, means over layers: of the rows of all chunks but the first, which is exact, and\n"
    "of the output of attention in the rows behind the chunks. left is the largest estimate that\n"
    "the check layer gave of what is left wrong, which blends compare with a bound.\n"
    "\n"
    "A share passes if KL and agreement keep their bounds. The smallest share that passed with "
    "all\n"
    "above it is kept with all figures in a file of trials, under the model's fingerprint and\n"
    "the settings. Commands that blend refuse to without such an entry. The exit status is 1 if "
    "no\n"
    "share passed; the entry then says so.",
    "  tamis blend trial --model model.gguf\n"
    "  tamis blend trial --model model.gguf --text notes.txt --share 15,30 --max-kl 0.02\n"
    "  tamis blend trial --model tests/data/needle.gguf --chunk-tokens 128 --dry-run\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run_command};

/* What a run holds beside its flags. */
typedef struct trial_run {
    const trial_flags *flags;
    tamis_blend_trial trial;
    char path[CLI_TRIALS_BYTES];
    blend_arm whole, arms[TAMIS_BLEND_TRIAL_SHARES];
    blend_rig rig;
    cli_tokens natural;
    int32_t *tokens;   /* of a prompt: chunks, then the suffix */
    int32_t *answer;   /* [n_answer] of the prompt computed whole */
    float *logits;     /* [n_answer + 1][n_vocab]: of the prompt computed whole; then an arm's */
    float *attention;  /* the same, twice [n_layers][n_suffix][out_width] */
    trial_cell *cells; /* [shares] */
} trial_run;

/* ---- Prompts --------------------------------------------------------------------------------- */

/* Chunks from anywhere in the text, which repeats; the suffix follows the last one. */
static blend_prompt make_prompt(const trial_run *run, uint32_t index) {
    const trial_flags *f = run->flags;
    cli_random random = cli_random_of(f->seed.value, index);
    int32_t *to = run->tokens;
    uint64_t at = 0;
    for (uint32_t c = 0; c < f->n_chunks; c++) {
        at = cli_random_next(&random) % run->natural.count;
        for (uint32_t i = 0; i < f->chunk_tokens; i++)
            *to++ = run->natural.ids[at++ % run->natural.count];
    }
    for (uint32_t i = 0; i < f->n_suffix; i++)
        to[i] = run->natural.ids[at++ % run->natural.count];
    return (blend_prompt){.chunks = run->tokens,
                          .n_chunks = f->n_chunks,
                          .chunk_tokens = f->chunk_tokens,
                          .suffix = to,
                          .n_suffix = f->n_suffix};
}

/* ---- Answers --------------------------------------------------------------------------------- */

static tamis_status trial_finite(const trial_run *run, const float *logits, const blend_arm *arm,
                                 tamis_error *error) {
    for (uint32_t i = 0; i < run->rig.n_vocab; i++)
        if (!isfinite(logits[i]))
            return cli_error(error, TAMIS_E_DEVICE, "%s: the logit of token %u is %g",
                             blend_arm_name(arm).text, i, (double)logits[i]);
    return TAMIS_OK;
}

/* Reads the answer of the prompt computed whole behind a prompt of `arm`, and takes the logits in
 * front of each of its tokens: for whole itself, of which the answer is made, else compared one by
 * one. */
static tamis_status follow_answer(trial_run *run, const blend_arm *arm, tamis_sequence sequence,
                                  trial_cell *cell, tamis_error *error) {
    const uint32_t n_vocab = run->rig.n_vocab, n_answer = run->flags->n_answer;
    uint32_t agreed = 0;
    for (uint32_t i = 0; i < n_answer; i++) {
        const float *whole = run->logits + (size_t)i * n_vocab;
        float *own = run->logits + (size_t)(cell != NULL ? n_answer : i) * n_vocab;
        tamis_status status = TAMIS_OK;
        if (i > 0)
            status = tamis_runner_decode(run->rig.runner, &sequence, 1, &run->answer[i - 1], NULL,
                                         error);
        if (status == TAMIS_OK) status = tamis_runner_logits(run->rig.runner, 0, own, error);
        if (status == TAMIS_OK) status = trial_finite(run, own, arm, error);
        if (status != TAMIS_OK) return status;
        const int32_t likeliest = (int32_t)blend_likeliest(own, n_vocab);
        if (cell == NULL) {
            run->answer[i] = likeliest;
            continue;
        }
        agreed += likeliest == run->answer[i];
        cell->divergences[cell->tokens++] = blend_divergence(whole, own, n_vocab);
    }
    if (cell == NULL) return TAMIS_OK;
    cell->agreed += agreed;
    cell->same += agreed == n_answer;
    return TAMIS_OK;
}

/* A prompt with one share, beside the whole one. */
static tamis_status run_arm(trial_run *run, uint32_t arm, const blend_prompt *prompt,
                            tamis_sequence whole, tamis_error *error) {
    const size_t n_out = (size_t)prompt->n_suffix * run->rig.out_width;
    float *own = run->attention + run->rig.n_layers * n_out;
    trial_cell *cell = &run->cells[arm];
    tamis_sequence sequence;
    blend_cost cost;
    tamis_status status =
        blend_run(&run->rig, &run->arms[arm], prompt, &sequence, NULL, &cost, error);
    if (status != TAMIS_OK) return status;
    cell->rows += cost.rows;
    if (cost.left > cell->left) cell->left = cost.left;
    cell->prompts++;
    status = follow_answer(run, &run->arms[arm], sequence, cell, error);
    if (status == TAMIS_OK) status = blend_attention(&run->rig, prompt, sequence, own, error);
    if (status != TAMIS_OK) return status;
    blend_compare_attention(&run->rig, run->attention, own, n_out, cell->sums);
    status = blend_compare_rows(&run->rig, whole, sequence, blend_prompt_hits(&run->rig, prompt),
                                blend_prompt_context(&run->rig, prompt), cell->sums, NULL, error);
    return status == TAMIS_OK ? tamis_cache_remove(run->rig.cache, sequence, error) : status;
}

static tamis_status run_prompt(trial_run *run, uint32_t index, tamis_error *error) {
    const uint32_t n_arms = run->flags->shares.count;
    const uint64_t parts = n_arms + 1, total = parts * run->flags->n_prompts;
    const blend_prompt prompt = make_prompt(run, index);
    tamis_sequence whole;
    blend_cost cost;
    tamis_status status = blend_record(&run->rig, &prompt, error);
    if (status == TAMIS_OK)
        status = blend_run(&run->rig, &run->whole, &prompt, &whole, NULL, &cost, error);
    if (status == TAMIS_OK) status = follow_answer(run, &run->whole, whole, NULL, error);
    if (status == TAMIS_OK)
        status = blend_attention(&run->rig, &prompt, whole, run->attention, error);
    if (status == TAMIS_OK) eval_progress("prompts", parts * index + 1, total);
    for (uint32_t a = 0; status == TAMIS_OK && a < n_arms; a++) {
        status = run_arm(run, a, &prompt, whole, error);
        if (status == TAMIS_OK) eval_progress("prompts", parts * index + 2 + a, total);
    }
    return status == TAMIS_OK ? tamis_cache_remove(run->rig.cache, whole, error) : status;
}

/* ---- The run --------------------------------------------------------------------------------- */

static tamis_status make_room(trial_run *run, tamis_error *error) {
    const trial_flags *f = run->flags;
    const blend_rig *rig = &run->rig;
    const size_t attention = (size_t)rig->n_layers * f->n_suffix * rig->out_width;
    run->tokens = malloc(((size_t)f->n_chunks * f->chunk_tokens + f->n_suffix) * sizeof(int32_t));
    run->answer = malloc(f->n_answer * sizeof(*run->answer));
    run->logits = malloc(((size_t)f->n_answer + 1) * rig->n_vocab * sizeof(*run->logits));
    run->attention = malloc(2 * attention * sizeof(*run->attention));
    run->cells = calloc(f->shares.count, sizeof(*run->cells));
    bool made = run->tokens != NULL && run->answer != NULL && run->logits != NULL &&
                run->attention != NULL && run->cells != NULL;
    for (uint32_t a = 0; made && a < f->shares.count; a++) {
        trial_cell *cell = &run->cells[a];
        cell->divergences = calloc((size_t)f->n_prompts * f->n_answer, sizeof(double));
        cell->sums = calloc(rig->n_layers, sizeof(*cell->sums));
        made = cell->divergences != NULL && cell->sums != NULL;
    }
    return made ? TAMIS_OK : cli_no_memory(error);
}

static tamis_status open_arms(trial_run *run, tamis_error *error) {
    const trial_flags *f = run->flags;
    const blend_settings settings = {.schedule = (tamis_blend_schedule)f->schedule,
                                     .check_layer = f->check_layer,
                                     .chunk_tokens = f->chunk_tokens,
                                     .seed = f->seed.value,
                                     .estimate = true};
    run->whole = (blend_arm){.name = "whole", .selector = TAMIS_BLEND_ALL};
    tamis_status status = blend_arm_open(&run->rig, &settings, &run->whole, error);
    for (uint32_t a = 0; status == TAMIS_OK && a < f->shares.count; a++) {
        run->arms[a] = (blend_arm){.name = selector_names[f->selector],
                                   .selector = selectors[f->selector],
                                   .share = f->shares.values[a]};
        status = blend_arm_open(&run->rig, &settings, &run->arms[a], error);
    }
    return status;
}

static int open_text(trial_run *run) {
    const trial_flags *f = run->flags;
    tamis_error error = {0};
    eval_text file;
    int code = CLI_OK;
    if (!eval_text_open(&file, blend_trial_command.name, f->text, f->model)) return CLI_FAILED;
    if (cli_tokenize(tamis_model_vocab(run->rig.model), file.content, file.bytes, 0, &run->natural,
                     &error) != TAMIS_OK)
        code = cli_fail(blend_trial_command.name, "%s: %s", file.path, error.text);
    else if (run->natural.count < f->chunk_tokens + f->n_suffix)
        code = cli_fail(blend_trial_command.name,
                        "%s: has %zu tokens; a chunk of %u with what follows it, %u, needs %u",
                        file.path, run->natural.count, f->chunk_tokens, f->n_suffix,
                        f->chunk_tokens + f->n_suffix);
    eval_text_close(&file);
    return code;
}

static int prepare(trial_run *run) {
    const trial_flags *f = run->flags;
    const blend_rig_params params = {.device = f->device,
                                     .model = f->model,
                                     .dtype = (tamis_dtype)f->dtype,
                                     .stored = (tamis_dtype)f->stored,
                                     .sink = (blend_sink)f->sink,
                                     .page_size = cli_page_size(f->page_size),
                                     .prompt = 1 + f->n_chunks * f->chunk_tokens + f->n_suffix,
                                     .answer = f->n_answer,
                                     .chunks = f->n_chunks,
                                     .chunk_tokens = f->chunk_tokens,
                                     .sequences = 2,
                                     .forks = 2,
                                     .asks = f->selector == SELECT_QUESTION};
    const int code = blend_rig_open(&run->rig, blend_trial_command.name, &params);
    return code == CLI_OK ? open_text(run) : code;
}

static int measure(trial_run *run) {
    tamis_error error = {0};
    tamis_status status = make_room(run, &error);
    if (status == TAMIS_OK) status = open_arms(run, &error);
    for (uint32_t i = 0; status == TAMIS_OK && i < run->flags->n_prompts; i++)
        status = run_prompt(run, i, &error);
    return status == TAMIS_OK ? CLI_OK : cli_fail(blend_trial_command.name, "%s", error.text);
}

/* ---- The entry ------------------------------------------------------------------------------- */

static tamis_status describe(trial_run *run, tamis_error *error) {
    const trial_flags *f = run->flags;
    const tamis_model_info *info = tamis_model_describe(run->rig.model);
    tamis_blend_trial *p = &run->trial;
    p->selector = selectors[f->selector];
    p->schedule = (tamis_blend_schedule)f->schedule;
    p->check_layer = f->check_layer;
    p->cache_dtype = (tamis_dtype)f->dtype;
    p->dtype = (tamis_dtype)f->stored;
    p->n_sink = run->rig.record.n_sink;
    p->prompts = f->n_prompts;
    p->chunks = f->n_chunks;
    p->chunk_tokens = f->chunk_tokens;
    p->answer_tokens = f->n_answer;
    p->seed = f->seed.value;
    snprintf(p->model, sizeof(p->model), "%s",
             info->name[0] != '\0' ? info->name : info->architecture);
    p->n_figures = f->shares.count;
    for (uint32_t a = 0; a < f->shares.count; a++)
        p->figures[a].share = f->shares.values[a] / 100.0;
    trial_decide(&run->rig, run->cells, p);
    return tamis_model_fingerprint(run->rig.model, p->fingerprint, error);
}

static int keep(const trial_run *run) {
    const tamis_blend_trial *p = &run->trial;
    tamis_error error = {0};
    if (!run->flags->dry_run) {
        if (tamis_blend_trial_write(run->path, p, &error) != TAMIS_OK)
            return cli_fail(blend_trial_command.name, "%s", error.text);
        fprintf(stderr, "%s: %s keeps the entry of model %s\n", blend_trial_command.name, run->path,
                cli_hex(p->fingerprint).text);
    }
    if (p->share > 0) return CLI_OK;
    return cli_fail(blend_trial_command.name,
                    "no share passed: KL must be at most %g, agreement at least %g", p->max_kl,
                    p->min_agreement);
}

static int report_run(trial_run *run, cli_output *output) {
    const trial_report report = {&run->rig, &run->trial, run->cells};
    const eval_rig written = {.context = run->rig.context, .model = run->rig.model};
    tamis_error error = {0};
    if (describe(run, &error) != TAMIS_OK)
        return cli_fail(blend_trial_command.name, "%s", error.text);
    if (!trial_print(&report)) return cli_fail(blend_trial_command.name, "out of host memory");
    if (run->flags->json != NULL &&
        !eval_write_json(blend_trial_command.name, &written, run->flags->seed.value,
                         trial_json_settings(&report), trial_json_rows(&report), output))
        return CLI_FAILED;
    return keep(run);
}

static void close_run(trial_run *run) {
    const uint32_t n_arms = run->flags->shares.count;
    tamis_blend_destroy(&run->whole.blend);
    for (uint32_t a = 0; a < n_arms; a++)
        tamis_blend_destroy(&run->arms[a].blend);
    for (uint32_t a = 0; run->cells != NULL && a < n_arms; a++) {
        free(run->cells[a].divergences);
        free(run->cells[a].sums);
    }
    free(run->cells);
    free(run->tokens);
    free(run->answer);
    free(run->logits);
    free(run->attention);
    free(run->natural.ids);
    blend_rig_close(&run->rig);
}

/* ---- The command line ------------------------------------------------------------------------ */

static int by_size(const void *a, const void *b) {
    const uint32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* A bound as a decimal number; `most` is its largest value. */
static bool parse_bound(const char *flag, const char *text, float most, double *out) {
    float value;
    if (!cli_decimal(blend_trial_command.name, flag, text, (cli_range){.most = most}, &value))
        return false;
    *out = strtod(text, NULL);
    return true;
}

static int parse(trial_run *run, trial_flags *f, int argc, char *const *argv) {
    const int code = cli_parse(&blend_trial_command, f, argc, argv);
    uint32_t n = 0;
    if (code >= 0) return code;
    if (f->model == NULL) {
        cli_fail(blend_trial_command.name, "--model: is missing (see %s --help)",
                 blend_trial_command.name);
        return CLI_USAGE;
    }
    if (!parse_bound("--max-kl", f->max_kl, 1e6, &run->trial.max_kl) ||
        !parse_bound("--min-agreement", f->min_agreement, 1, &run->trial.min_agreement))
        return CLI_USAGE;
    qsort(f->shares.values, f->shares.count, sizeof(*f->shares.values), by_size);
    for (uint32_t i = 0; i < f->shares.count; i++)
        if (n == 0 || f->shares.values[n - 1] != f->shares.values[i])
            f->shares.values[n++] = f->shares.values[i];
    f->shares.count = n;
    return -1;
}
_Static_assert(CLI_LIST_MAX <= TAMIS_BLEND_TRIAL_SHARES, "an entry holds every list of shares");

static int run_command(int argc, char *const *argv) {
    trial_flags f = {.n_prompts = 8,
                     .n_chunks = 6,
                     .chunk_tokens = 512,
                     .n_suffix = 32,
                     .n_answer = 16,
                     .selector = SELECT_HKVD,
                     .check_layer = 1,
                     .dtype = TAMIS_F16,
                     .stored = TAMIS_F16,
                     .page_size = 1,
                     .max_kl = "0.05",
                     .min_agreement = "0.9",
                     .shares = {6, {5, 10, 15, 20, 30, 50}}};
    trial_run run = {.flags = &f};
    cli_output output = {0};
    tamis_error error = {0};
    int code = parse(&run, &f, argc, argv);
    if (code >= 0) return code;
    if (!f.dry_run && cli_trials_file(f.trial, run.path, &error) != TAMIS_OK)
        return cli_fail(blend_trial_command.name, "%s", error.text);
    if (f.json != NULL && !cli_output_open(&output, blend_trial_command.name, f.json))
        return CLI_FAILED;
    code = prepare(&run);
    if (code == CLI_OK) code = measure(&run);
    if (code == CLI_OK) code = report_run(&run, &output);
    close_run(&run);
    cli_output_discard(&output);
    return code;
}
