/* SPDX-License-Identifier: Apache-2.0 */
/* The text is read once; every arm answers on forks of it, the arms in turn. */
#include "cli/session.h"
#include "compare/compare.h"

#include <stdlib.h>

/* ---- Reading --------------------------------------------------------------------------------- */

static tamis_status read_text(compare_run *run, tamis_sequence *out, tamis_error *error) {
    const eval_rig *rig = &run->rig;
    cli_session s;
    tamis_status status = tamis_cache_add(rig->cache, out, error);
    if (status == TAMIS_OK)
        status = cli_session_on(&s, rig->model, rig->cache, rig->runners[0], *out, error);
    if (status != TAMIS_OK) return status;
    status = cli_session_read(&s, run->text.tokens.ids, run->text.tokens.count, error);
    run->read_seconds = s.prefill_seconds;
    return status;
}

/* What an arm's questions fork from, and the bytes that it holds. */
static tamis_status prepare(compare_run *run, uint32_t arm, tamis_sequence reading,
                            tamis_sequence *out, tamis_error *error) {
    tamis_sequence_stats stats;
    tamis_status status = TAMIS_OK;
    *out = reading;
    if (eval_arm_evicts(&run->arms.arms[arm]))
        status = eval_rig_evict(&run->rig, arm, reading, run->text.tokens.ids,
                                (uint32_t)run->text.tokens.count, out, error);
    if (status == TAMIS_OK)
        status = tamis_cache_get_sequence_stats(run->rig.cache, *out, &stats, error);
    if (status == TAMIS_OK) run->held[arm] = stats.bytes_held;
    return status;
}

/* ---- Asking ---------------------------------------------------------------------------------- */

static tamis_status answer(const compare_run *run, cli_session *s, const cli_tokens *question,
                           char **line, tamis_error *error) {
    cli_answer to = {0};
    cli_end end;
    tamis_status status = cli_session_step(s, question->ids, question->count, error);
    if (status == TAMIS_OK) status = cli_session_answer(s, &to, run->most, &end, error);
    if (status == TAMIS_OK && *line == NULL) {
        *line = cli_answer_line(to.text != NULL ? to.text : "", to.bytes);
        if (*line == NULL) status = cli_no_memory(error);
    }
    cli_answer_end(&to);
    return status;
}

/* One question to one arm, on a fork of `base`. */
static tamis_status ask(compare_run *run, uint32_t arm, uint32_t question, uint32_t round,
                        tamis_sequence base, tamis_error *error) {
    eval_rig *rig = &run->rig;
    compare_result *result = &run->results[question * run->arms.count + arm];
    const tamis_plan *plan = tamis_runner_plan(rig->runners[arm]);
    tamis_plan_counters before, after;
    tamis_sequence fork;
    cli_session s;
    tamis_status status = eval_rig_bounds(rig, arm, error);
    if (status == TAMIS_OK) status = tamis_context_wait(rig->context, error); /* not in the rate */
    if (status == TAMIS_OK) status = tamis_cache_fork(rig->cache, base, &fork, error);
    if (status == TAMIS_OK)
        status = cli_session_on(&s, rig->model, rig->cache, rig->runners[arm], fork, error);
    if (status != TAMIS_OK) return status;
    s.ending[CLI_ENDINGS] = run->text.ending;
    tamis_plan_get_counters(plan, &before);
    status = answer(run, &s, &run->text.questions[question], &result->answer, error);
    if (status != TAMIS_OK) return status;
    tamis_plan_get_counters(plan, &after);
    result->rates[round] = (double)s.decode_tokens / s.decode_seconds;
    result->tokens += s.decode_tokens;
    result->bytes_read += after.kv_bytes_read + after.bounds_bytes_read - before.kv_bytes_read -
                          before.bounds_bytes_read;
    result->bytes_full += after.kv_bytes_full - before.kv_bytes_full;
    return tamis_cache_remove(rig->cache, fork, error);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Every question to every arm in every round. */
static tamis_status ask_all(compare_run *run, const tamis_sequence *bases, tamis_error *error) {
    const uint32_t asked = run->text.n_questions * run->arms.count;
    const uint64_t total = (uint64_t)asked * run->rounds;
    tamis_status status = TAMIS_OK;
    for (uint64_t i = 0; status == TAMIS_OK && i < total; i++) {
        const uint32_t which = (uint32_t)(i % asked), arm = which % run->arms.count;
        status = ask(run, arm, which / run->arms.count, (uint32_t)(i / asked), bases[arm], error);
        if (status == TAMIS_OK) eval_progress("answers", i + 1, total);
    }
    for (uint32_t i = 0; i < asked; i++)
        qsort(run->results[i].rates, run->rounds, sizeof(double), by_size);
    return status;
}

tamis_status compare_measure(compare_run *run, tamis_error *error) {
    tamis_sequence bases[EVAL_ARMS_MAX], reading;
    tamis_status status = read_text(run, &reading, error);
    for (uint32_t arm = 0; status == TAMIS_OK && arm < run->arms.count; arm++)
        status = prepare(run, arm, reading, &bases[arm], error);
    return status == TAMIS_OK ? ask_all(run, bases, error) : status;
}

/* The text; beside it what each eviction keeps, and, one at a time, what an eviction runs again of
 * the text, and a question with its answer, whose fork owns a copy of all that is kept where new
 * tokens replace others. A lane's last page may hold one slot. */
uint64_t compare_capacity(const compare_run *run, uint32_t page_size) {
    const uint32_t count = (uint32_t)run->text.tokens.count;
    const uint64_t kept = eval_most_kept(&run->arms, count);
    uint64_t tokens = count + page_size, again = 0;
    for (uint32_t i = 0; i < run->arms.count; i++) {
        const eval_arm *arm = &run->arms.arms[i];
        if (!eval_arm_evicts(arm)) continue;
        const uint64_t own = eval_own_tokens(&arm->eviction, count) + 2 * page_size;
        again = own > again ? own : again;
        tokens += kept + page_size;
    }
    return tokens + again + compare_longest_question(&run->text) + run->most + 2 * page_size + kept;
}
