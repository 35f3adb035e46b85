/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis eval ruler`: RULER's synthetic tasks, each text read once exactly, asked by every arm. */
#include "eval/ruler.h"
#include "eval/passages.h"

#include <stdlib.h>
#include <string.h>

#define TEXTS_MAX 100000

typedef struct ruler_flags {
    const char *device, *model, *json;
    cli_seed seed;
    uint32_t n_texts, dtype;
    cli_list tasks, lengths, times;
    eval_arm_flags arms;
} ruler_flags;

static const cli_option options[] = {
    CLI_MODEL_OPTION(ruler_flags, model),
    {"--task", "T[,T]", "tasks: {} (default all)", CLI_CHOICES, offsetof(ruler_flags, tasks), 0, 0,
     ruler_task_names},
    {"--length", "N[,N]", "tokens of a text at most, before the question (default 4000)",
     CLI_NUMBERS, offsetof(ruler_flags, lengths), 1, EVAL_CONTEXT_MAX, NULL},
    {"--texts", "N", "texts of each task and length (default 20)", CLI_NUMBER,
     offsetof(ruler_flags, n_texts), 1, TEXTS_MAX, NULL},
    {"--seed", "N", "number from which texts follow (default 0)", CLI_SEED,
     offsetof(ruler_flags, seed), 0, 0, NULL},
    EVAL_ARM_OPTIONS(ruler_flags, arms, "full,quest,window", "512"),
    EVAL_EVICT_OPTIONS(ruler_flags, arms),
    {"--question", "Q[,Q]", "when an eviction learns the question: {} (default later)", CLI_CHOICES,
     offsetof(ruler_flags, times), 0, 0, ruler_times},
    CLI_DTYPE_OPTION("--dtype", ruler_flags, dtype),
    CLI_JSON_OPTION(ruler_flags, json),
    CLI_DEVICE_OPTION(ruler_flags, device),
};

static int run_command(int argc, char *const *argv);

const cli_command eval_ruler_command = {
    "tamis eval ruler",
    "needles, variables and word counts in texts that follow from a seed",
    "--model FILE [OPTIONS]",
    "The tasks of RULER (arXiv 2404.06654) that need no data set, in words of our own:\n"
    "  niah-single      a secret number in noise: 'The secret number of bold-tiger is'\n"
    "  niah-multikey    four keys with a number each; each is asked for, a question each\n"
    "  niah-multivalue  one key with four numbers; all four are asked for at once\n"
    "  niah-multiquery  four keys with a number each; all four are asked for at once\n"
    "  vt               variables: a value, and four that get it one from another\n"
    "  cwe              the ten words that stand in a list ten times as often as the others\n"
    "  fwe              the three most frequent words of a text in code\n"
    "vt and cwe begin with an example that is solved. An answer's score is the share of the\n"
    "expected strings that it holds, in small or capital letters; accuracy is the mean score.\n"
    "Intervals are Wilson's, 95 %, for as many right or wrong answers as there are questions.\n"
    "\n"
    "Each text is read once, exactly. For every arm each question is a fork of the text.\n"
    "Question and answer are run under the arm's selection token by token. An answer has half as\n"
    "many tokens again as the right one, and 16; no token ends it. Texts are plain, without a\n"
    "chat's tokens.\n"
    "\n"
    "An arm may also be an eviction with its budget, which reads the end of the text again, or\n"
    "where it sums scores all of it. With the question later it evicts before any is asked; with\n"
    "the question known it reads text and question, and then evicts, once for each question.\n"
    "\n"
    "A model of bytes reads texts of a few hundred words and was not trained on such questions:\n"
    "expect scores near 0 of the shipped one.",
    "  tamis eval ruler --model model.gguf --length 2000,4000 --texts 10 --budget 256 --json "
    "r.json\n"
    "  tamis eval ruler --model model.gguf --task vt,cwe --select quest --score minmax,meanstd\n"
    "  tamis eval ruler --model model.gguf --evict snapkv,h2o --budget 512 --question "
    "later,known\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run_command};

/* What a run holds beside its flags. */
typedef struct ruler_run {
    const ruler_flags *flags;
    eval_arms arms;
    eval_rig rig;
    ruler_result *results; /* [tasks][lengths][arms][RULER_TIMES] */
    ruler_result *row;     /* of the task and length under work */
} ruler_run;

/* Choices in their order, each once; all of the first n if there are none. */
static void complete(cli_list *list, uint32_t n) {
    for (uint32_t i = 0; list->count == 0 && i < n; i++)
        list->values[i] = i;
    if (list->count == 0) list->count = n;
    eval_merge_lengths(list);
}

static int parse(ruler_flags *f, int argc, char *const *argv) {
    int code = cli_parse(&eval_ruler_command, f, argc, argv);
    if (code >= 0) return code;
    uint32_t values[CLI_EVICTIONS_MAX];
    bool evicts = cli_list_evictions(&f->arms.evictions, values) > 0;
    if (f->model == NULL)
        cli_fail(eval_ruler_command.name, "--model: is missing (see %s --help)",
                 eval_ruler_command.name);
    else if (f->times.count > 0 && !evicts)
        cli_fail(eval_ruler_command.name, "--question: is given where nothing is evicted");
    else if (eval_check_arms(eval_ruler_command.name, &f->arms, 512)) {
        complete(&f->tasks, RULER_TASKS);
        complete(&f->lengths, 0);
        complete(&f->times, 1);
        return -1;
    }
    return CLI_USAGE;
}

/* ---- One text -------------------------------------------------------------------------------- */

static void add_scores(ruler_result *result, const double *scores, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        result->score += scores[i];
    result->questions += n;
}

/* Records the bytes that a text takes in the cache before it is asked. */
static tamis_status hold(const ruler_run *run, ruler_result *result, tamis_sequence sequence,
                         tamis_error *error) {
    tamis_sequence_stats stats;
    tamis_status status = tamis_cache_get_sequence_stats(run->rig.cache, sequence, &stats, error);
    if (status == TAMIS_OK && stats.bytes_held > result->bytes_held)
        result->bytes_held = stats.bytes_held;
    return status;
}

/* All questions of a text that the cache holds as `sequence`. */
static tamis_status ask(ruler_run *run, uint32_t arm, const ruler_text *text,
                        tamis_sequence sequence, tamis_error *error) {
    ruler_result *result = &run->row[arm * RULER_TIMES + RULER_LATER];
    double scores[RULER_QUESTIONS_MAX] = {0};
    tamis_status status = hold(run, result, sequence, error);
    if (status == TAMIS_OK) status = eval_rig_bounds(&run->rig, arm, error);
    if (status == TAMIS_OK)
        status = ruler_ask(&run->rig, arm, text, sequence, scores, &result->cost, error);
    if (status == TAMIS_OK) add_scores(result, scores, text->n_questions);
    return status;
}

/* The same over what an arm's eviction keeps of the text. */
static tamis_status ask_later(ruler_run *run, uint32_t arm, const ruler_text *text,
                              tamis_sequence reading, tamis_error *error) {
    tamis_sequence sequence;
    tamis_status status = eval_rig_evict(&run->rig, arm, reading, text->tokens.ids,
                                         (uint32_t)text->tokens.count, &sequence, error);
    if (status == TAMIS_OK) status = ask(run, arm, text, sequence, error);
    return status == TAMIS_OK ? tamis_cache_remove(run->rig.cache, sequence, error) : status;
}

/* One question at the end of what the arm reads before it evicts. */
static tamis_status ask_known(ruler_run *run, uint32_t arm, const ruler_text *text, uint32_t index,
                              tamis_error *error) {
    const eval_tail *tail = &text->tails[index];
    const size_t count = text->tokens.count + tail->n_question;
    ruler_result *result = &run->row[arm * RULER_TIMES + RULER_KNOWN];
    tamis_sequence sequence;
    int32_t first = 0, *tokens = malloc(count * sizeof(*tokens));
    double score = 0;
    if (tokens == NULL) return cli_no_memory(error);
    memcpy(tokens, text->tokens.ids, text->tokens.count * sizeof(*tokens));
    memcpy(tokens + text->tokens.count, tail->tokens, tail->n_question * sizeof(*tokens));
    tamis_status status =
        cli_prefill(run->rig.cache, run->rig.runners[arm], tokens, count, &sequence, &first, error);
    free(tokens);
    if (status == TAMIS_OK) status = hold(run, result, sequence, error);
    if (status == TAMIS_OK)
        status = ruler_answer(&run->rig, arm, text, index, sequence, first, &score, &result->cost,
                              error);
    if (status == TAMIS_OK) add_scores(result, &score, 1);
    return status == TAMIS_OK ? tamis_cache_remove(run->rig.cache, sequence, error) : status;
}

static tamis_status ask_evicting(ruler_run *run, uint32_t arm, const ruler_text *text,
                                 tamis_sequence reading, tamis_error *error) {
    const cli_list *times = &run->flags->times;
    tamis_status status = TAMIS_OK;
    for (uint32_t t = 0; status == TAMIS_OK && t < times->count; t++) {
        if (times->values[t] == RULER_LATER) status = ask_later(run, arm, text, reading, error);
        for (uint32_t i = 0; times->values[t] == RULER_KNOWN && i < text->n_questions; i++)
            if (status == TAMIS_OK) status = ask_known(run, arm, text, i, error);
    }
    return status;
}

/* One text by all arms; `what` names its task and length on the bar. */
static tamis_status run_text(ruler_run *run, ruler_task task, uint32_t length, uint32_t index,
                             const char *what, tamis_error *error) {
    const uint64_t parts = 1 + run->arms.count, total = parts * run->flags->n_texts;
    tamis_sequence sequence;
    ruler_text text;
    tamis_status status = ruler_text_make(tamis_model_vocab(run->rig.model), task, length,
                                          run->flags->seed.value, index, &text, error);
    if (status == TAMIS_OK)
        status = cli_prefill(run->rig.cache, run->rig.runners[0], text.tokens.ids,
                             text.tokens.count, &sequence, NULL, error);
    if (status == TAMIS_OK) eval_progress(what, parts * index + 1, total);
    for (uint32_t a = 0; status == TAMIS_OK && a < run->arms.count; a++) {
        status = eval_arm_evicts(&run->arms.arms[a]) ? ask_evicting(run, a, &text, sequence, error)
                                                     : ask(run, a, &text, sequence, error);
        if (status == TAMIS_OK) eval_progress(what, parts * index + 2 + a, total);
    }
    if (status == TAMIS_OK) status = tamis_cache_remove(run->rig.cache, sequence, error);
    ruler_text_free(&text);
    return status;
}

/* ---- The run --------------------------------------------------------------------------------- */

static int measure(ruler_run *run) {
    const ruler_flags *f = run->flags;
    tamis_error error = {0};
    tamis_status status = TAMIS_OK;
    run->row = run->results;
    for (uint32_t t = 0; t < f->tasks.count; t++)
        for (uint32_t l = 0; l < f->lengths.count; l++, run->row += run->arms.count * RULER_TIMES) {
            ruler_task task = (ruler_task)f->tasks.values[t];
            char what[64];
            snprintf(what, sizeof(what), "%s, length %u", ruler_task_names[task],
                     f->lengths.values[l]);
            for (uint32_t i = 0; status == TAMIS_OK && i < f->n_texts; i++)
                status = run_text(run, task, f->lengths.values[l], i, what, &error);
        }
    return status == TAMIS_OK ? CLI_OK : cli_fail(eval_ruler_command.name, "%s", error.text);
}

/* Makes a text of each task and length, so that one which cannot be made ends the run at once. */
static int check_texts(const ruler_run *run) {
    const ruler_flags *f = run->flags;
    tamis_error error = {0};
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < f->tasks.count * f->lengths.count; i++) {
        ruler_text text;
        status = ruler_text_make(
            tamis_model_vocab(run->rig.model), (ruler_task)f->tasks.values[i / f->lengths.count],
            f->lengths.values[i % f->lengths.count], f->seed.value, 0, &text, &error);
        ruler_text_free(&text);
    }
    return status == TAMIS_OK ? CLI_OK : cli_fail(eval_ruler_command.name, "%s", error.text);
}

/* A fork owns a copy of the text's last page and what comes after it. Where new tokens replace
 * others, it owns a copy of all that is kept. */
static int prepare(ruler_run *run) {
    const ruler_flags *f = run->flags;
    uint32_t page_size = cli_page_size(f->arms.page_size), length = eval_longest(&f->lengths);
    uint32_t kept = eval_most_kept(&run->arms, length);
    uint64_t tail = RULER_TAIL_TOKENS + 2 * page_size + kept;
    uint64_t texts = (kept > 0 ? 2 : 1) * ((uint64_t)length + RULER_TAIL_TOKENS + page_size);
    int code = eval_rig_open(&run->rig, eval_ruler_command.name, f->device, f->model,
                             (tamis_dtype)f->dtype, page_size, &run->arms,
                             texts + RULER_QUESTIONS_MAX * tail, length + RULER_TAIL_TOKENS,
                             RULER_QUESTIONS_MAX);
    return code == CLI_OK ? check_texts(run) : code;
}

static bool write_json(const ruler_run *run, const ruler_report *report, cli_output *output) {
    const ruler_flags *f = run->flags;
    cJSON *rows = ruler_rows(report), *settings = eval_settings(&f->arms, (tamis_dtype)f->dtype);
    if (cJSON_AddNumberToObject(settings, "texts", f->n_texts) == NULL) {
        cJSON_Delete(settings);
        settings = NULL;
    }
    return eval_write_json(eval_ruler_command.name, &run->rig, f->seed.value, settings, rows,
                           output);
}

static int report_run(const ruler_run *run, cli_output *output) {
    const ruler_flags *f = run->flags;
    const ruler_report report = {&run->rig, &f->tasks,  &f->lengths,
                                 &f->times, f->n_texts, run->results};
    if (!ruler_print(&report)) return cli_fail(eval_ruler_command.name, "out of host memory");
    return f->json == NULL || write_json(run, &report, output) ? CLI_OK : CLI_FAILED;
}

static int run_command(int argc, char *const *argv) {
    ruler_flags f = {
        .n_texts = 20,
        .dtype = TAMIS_F16,
        .lengths = {1, {4000}},
        .arms = {EVAL_ARM_DEFAULTS,
                 .selections = {3, {TAMIS_SELECT_FULL, TAMIS_SELECT_QUEST, TAMIS_SELECT_WINDOW}}}};
    ruler_run run = {.flags = &f};
    cli_output output = {0};
    int code = parse(&f, argc, argv);
    if (code >= 0) return code;
    if (!eval_list_arms(eval_ruler_command.name, &f.arms, f.seed.value, &run.arms))
        return CLI_USAGE;
    if (f.json != NULL && !cli_output_open(&output, eval_ruler_command.name, f.json))
        return CLI_FAILED;
    run.results = calloc((size_t)f.tasks.count * f.lengths.count * run.arms.count * RULER_TIMES,
                         sizeof(*run.results));
    if (run.results == NULL)
        code = cli_fail(eval_ruler_command.name, "out of host memory");
    else
        code = prepare(&run);
    if (code == CLI_OK) code = measure(&run);
    if (code == CLI_OK) code = report_run(&run, &output);
    eval_rig_close(&run.rig);
    cli_output_discard(&output);
    free(run.results);
    return code;
}
