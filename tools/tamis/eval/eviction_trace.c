/* SPDX-License-Identifier: Apache-2.0 */
/* Records the attention rows of a text and its questions under full, and replays them through plans
 * that evict. */
#include "eval/eviction.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows of one exact step; what a runner's plan takes by default. */
#define CHUNK 512u

static size_t tail_width(const eviction_run *run) {
    return 2 * (size_t)(run->rows.q_width + run->rows.kv_width);
}

/* q, k, v and out of a question's row in a layer. */
static eval_host_rows tail_row(const eviction_run *run, uint32_t question, uint32_t step,
                               uint32_t layer) {
    size_t row = ((size_t)question * PASSKEY_TAIL_TOKENS + step) * run->shape.n_layers + layer;
    float *q = run->trace.tail + row * tail_width(run), *k = q + run->rows.q_width;
    return (eval_host_rows){q, k, k + run->rows.kv_width, k + 2 * run->rows.kv_width};
}

/* Row i of `few` from or to a question's row. */
static void copy_row(const eviction_run *run, uint32_t i, const eval_host_rows *row, bool to_few) {
    const eval_rows *w = &run->rows;
    float *const few[] = {run->few.q + i * w->q_width, run->few.k + i * w->kv_width,
                          run->few.v + i * w->kv_width, run->few.out + i * w->q_width};
    float *const one[] = {row->q, row->k, row->v, row->out};
    const uint64_t widths[] = {w->q_width, w->kv_width, w->kv_width, w->q_width};
    for (int part = 0; part < 4; part++)
        memcpy(to_few ? few[part] : one[part], to_few ? one[part] : few[part],
               widths[part] * sizeof(float));
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static tamis_status take(float **out, size_t elements, tamis_error *error) {
    *out = calloc(elements, sizeof(**out));
    return *out != NULL ? TAMIS_OK : cli_no_memory(error);
}

tamis_status eviction_create(eviction_run *run, tamis_error *error) {
    const tamis_model_info *s = &run->shape;
    uint32_t most = run->flags->length < CHUNK ? run->flags->length : CHUNK;
    tamis_status status = eval_rows_create(&run->rows, run->rig.context, s,
                                           most > EVICTION_FEW ? most : EVICTION_FEW, error);
    size_t q = run->rows.q_width, kv = run->rows.kv_width;
    size_t text = (size_t)s->n_layers * run->flags->length;
    size_t tail = (size_t)run->flags->n_questions * PASSKEY_TAIL_TOKENS * s->n_layers;
    if (status == TAMIS_OK) status = take(&run->trace.q, text * q, error);
    if (status == TAMIS_OK) status = take(&run->trace.k, text * kv, error);
    if (status == TAMIS_OK) status = take(&run->trace.v, text * kv, error);
    if (status == TAMIS_OK) status = take(&run->trace.tail, tail * tail_width(run), error);
    if (status == TAMIS_OK) status = take(&run->few.q, EVICTION_FEW * q, error);
    if (status == TAMIS_OK) status = take(&run->few.k, EVICTION_FEW * kv, error);
    if (status == TAMIS_OK) status = take(&run->few.v, EVICTION_FEW * kv, error);
    if (status == TAMIS_OK) status = take(&run->few.out, EVICTION_FEW * q, error);
    return status;
}

void eviction_destroy(eviction_run *run) {
    float *const taken[] = {run->trace.q, run->trace.k, run->trace.v, run->trace.tail,
                            run->few.q,   run->few.k,   run->few.v,   run->few.out};
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        free(taken[i]);
    eval_rows_destroy(&run->rows);
}

/* ---- Recording ------------------------------------------------------------------------------- */

/* Rows of the text from `token` on in a layer; out is not kept. */
static eval_host_rows text_rows(const eviction_run *run, uint32_t layer, uint32_t token) {
    size_t row = (size_t)layer * run->flags->length + token;
    return (eval_host_rows){.q = run->trace.q + row * run->rows.q_width,
                            .k = run->trace.k + row * run->rows.kv_width,
                            .v = run->trace.v + row * run->rows.kv_width};
}

static tamis_status observe_text(void *user, const tamis_attention_rows *rows, tamis_error *error) {
    eviction_run *run = user;
    const eval_host_rows to = text_rows(run, rows->layer, run->trace.taken);
    tamis_status status = eval_rows_take(&run->rows, rows, &to, error);
    if (rows->layer + 1 == run->shape.n_layers) run->trace.taken += rows->n_rows;
    return status;
}

static tamis_status observe_questions(void *user, const tamis_attention_rows *rows,
                                      tamis_error *error) {
    eviction_run *run = user;
    const eviction_trace *t = &run->trace;
    tamis_status status = eval_rows_take(&run->rows, rows, &run->few, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < t->n_active; i++) {
        const eval_host_rows to = tail_row(run, t->active[i], t->step, rows->layer);
        copy_row(run, i, &to, false);
    }
    return status;
}

/* A question's tokens and those of its answer but the last. */
static void list_tokens(eviction_run *run, const passkey_text *text, uint32_t i) {
    const passkey_question *question = &text->questions[i];
    run->trace.n_asked[i] = question->count;
    run->trace.n_rows[i] = question->count + question->n_answer - 1;
    memcpy(run->trace.tokens[i], question->tokens, run->trace.n_rows[i] * sizeof(int32_t));
}

/* Lists the questions that have a row in a step. Returns whether any has. */
static bool list_active(eviction_run *run, uint32_t step) {
    eviction_trace *t = &run->trace;
    t->step = step;
    t->n_active = 0;
    for (uint32_t i = 0; i < run->flags->n_questions; i++)
        if (step < t->n_rows[i]) t->active[t->n_active++] = i;
    return t->n_active > 0;
}

static tamis_status record_step(eviction_run *run, const tamis_sequence *forks,
                                tamis_error *error) {
    eviction_trace *t = &run->trace;
    tamis_sequence sequences[PASSKEY_KEYS_MAX];
    int32_t tokens[PASSKEY_KEYS_MAX], next[PASSKEY_KEYS_MAX];
    for (uint32_t i = 0; i < t->n_active; i++) {
        sequences[i] = forks[t->active[i]];
        tokens[i] = t->tokens[t->active[i]][t->step];
    }
    tamis_status status =
        tamis_runner_decode(run->rig.runners[0], sequences, t->n_active, tokens, next, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < t->n_active; i++)
        if (t->step + 1 == t->n_asked[t->active[i]]) t->first[t->active[i]] = next[i];
    return status;
}

static tamis_status fork_all(const eviction_run *run, tamis_sequence parent, tamis_sequence *forks,
                             tamis_error *error) {
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < run->flags->n_questions; i++)
        status = tamis_cache_fork(run->rig.cache, parent, &forks[i], error);
    return status;
}

static tamis_status remove_all(const eviction_run *run, const tamis_sequence *forks,
                               tamis_error *error) {
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < run->flags->n_questions; i++)
        status = tamis_cache_remove(run->rig.cache, forks[i], error);
    return status;
}

static tamis_status record_questions(eviction_run *run, const passkey_text *text,
                                     tamis_error *error) {
    tamis_sequence forks[PASSKEY_KEYS_MAX];
    for (uint32_t i = 0; i < text->n_keys; i++)
        list_tokens(run, text, i);
    tamis_status status = fork_all(run, run->trace.main, forks, error);
    for (uint32_t step = 0; status == TAMIS_OK && list_active(run, step); step++)
        status = record_step(run, forks, error);
    return status == TAMIS_OK ? remove_all(run, forks, error) : status;
}

tamis_status eviction_record(eviction_run *run, const passkey_text *text, tamis_error *error) {
    tamis_runner *full = run->rig.runners[0];
    run->trace.length = (uint32_t)text->tokens.count;
    run->trace.taken = 0;
    tamis_runner_observe(full, observe_text, run);
    tamis_status status = cli_prefill(run->rig.cache, full, text->tokens.ids, text->tokens.count,
                                      &run->trace.main, NULL, error);
    tamis_runner_observe(full, observe_questions, run);
    if (status == TAMIS_OK) status = record_questions(run, text, error);
    tamis_runner_observe(full, NULL, NULL);
    return status;
}

/* ---- Replaying ------------------------------------------------------------------------------- */

tamis_status eviction_read_text(const eviction_run *run, tamis_plan *plan, tamis_sequence sequence,
                                uint32_t from, uint32_t to, bool attend, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    while (status == TAMIS_OK && from < to) {
        uint32_t rows = to - from < CHUNK ? to - from : CHUNK;
        const tamis_step step = {.sequences = &sequence, .rows = &rows, .count = 1, .exact = 1};
        status = tamis_plan_step_begin(plan, &step, error);
        for (uint32_t layer = 0; status == TAMIS_OK && layer < run->shape.n_layers; layer++) {
            eval_host_rows host = text_rows(run, layer, from);
            if (!attend) host.q = NULL;
            status = eval_rows_give(&run->rows, plan, layer, rows, &host, error);
        }
        if (status == TAMIS_OK) status = tamis_plan_step_end(plan, error);
        from += rows;
    }
    return status;
}

tamis_status eviction_read_question(const eviction_run *run, tamis_plan *plan,
                                    tamis_sequence sequence, uint32_t question,
                                    tamis_error *error) {
    uint32_t rows = run->trace.n_asked[question];
    const tamis_step step = {.sequences = &sequence, .rows = &rows, .count = 1, .exact = 1};
    const eval_host_rows given = {run->few.q, run->few.k, run->few.v, NULL};
    tamis_status status = tamis_plan_step_begin(plan, &step, error);
    for (uint32_t layer = 0; status == TAMIS_OK && layer < run->shape.n_layers; layer++) {
        for (uint32_t i = 0; i < rows; i++) {
            const eval_host_rows row = tail_row(run, question, i, layer);
            copy_row(run, i, &row, true);
        }
        status = eval_rows_give(&run->rows, plan, layer, rows, &given, error);
    }
    return status == TAMIS_OK ? tamis_plan_step_end(plan, error) : status;
}

/* Adds ‖y - ŷ‖ / ‖y‖ and the cosine of y and ŷ, all heads as one vector. A y of zeros counts as
 * error 0 and cosine 1 if ŷ is the same, else as 1 and 0. Returns false if they are not finite. */
static bool add_difference(const float *y, const float *got, uint64_t n, double *error,
                           double *cosine) {
    double yy = 0, gg = 0, yg = 0, dd = 0;
    for (uint64_t i = 0; i < n; i++) {
        double d = (double)y[i] - got[i];
        yy += (double)y[i] * y[i];
        gg += (double)got[i] * got[i];
        yg += (double)y[i] * got[i];
        dd += d * d;
    }
    *error += yy > 0 ? sqrt(dd / yy) : dd > 0;
    *cosine += yy > 0 && gg > 0 ? yg / sqrt(yy * gg) : yy == gg;
    return isfinite(yy) && isfinite(gg);
}

static tamis_status compare_layer(eviction_run *run, uint32_t arm, uint32_t layer,
                                  eviction_sums *sums, tamis_error *error) {
    const eviction_trace *t = &run->trace;
    size_t cell = (size_t)run->seed * run->shape.n_layers + layer;
    for (uint32_t i = 0; i < t->n_active; i++) {
        const eval_host_rows row = tail_row(run, t->active[i], t->step, layer);
        copy_row(run, i, &row, true);
    }
    tamis_status status = eval_rows_give(&run->rows, tamis_runner_plan(run->rig.runners[arm]),
                                         layer, t->n_active, &run->few, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < t->n_active; i++) {
        const float *y = tail_row(run, t->active[i], t->step, layer).out;
        if (!add_difference(y, run->few.out + i * run->rows.q_width, run->rows.q_width,
                            &sums->error[cell], &sums->cosine[cell]))
            return cli_error(
                error, TAMIS_E_DEVICE, "seed %" PRIu64 ", layer %u: what %s attends is not finite",
                run->flags->seed.value + run->seed, layer, run->arms.arms[arm].select.text);
    }
    return status;
}

/* The step of the questions that are active; fork i is question i's. */
static tamis_status compare_step(eviction_run *run, uint32_t arm, const tamis_sequence *forks,
                                 eviction_sums *sums, tamis_error *error) {
    tamis_plan *plan = tamis_runner_plan(run->rig.runners[arm]);
    tamis_sequence sequences[PASSKEY_KEYS_MAX];
    const tamis_step step = {.sequences = sequences, .count = run->trace.n_active};
    for (uint32_t i = 0; i < step.count; i++)
        sequences[i] = forks[run->trace.active[i]];
    tamis_status status = tamis_plan_step_begin(plan, &step, error);
    for (uint32_t layer = 0; status == TAMIS_OK && layer < run->shape.n_layers; layer++)
        status = compare_layer(run, arm, layer, sums, error);
    return status == TAMIS_OK ? tamis_plan_step_end(plan, error) : status;
}

tamis_status eviction_compare(eviction_run *run, uint32_t arm, tamis_sequence parent,
                              tamis_error *error) {
    tamis_sequence forks[PASSKEY_KEYS_MAX];
    tamis_status status = fork_all(run, parent, forks, error);
    for (uint32_t s = 0; status == TAMIS_OK && list_active(run, s); s++)
        status = compare_step(run, arm, forks, &run->results[arm].after, error);
    return status == TAMIS_OK ? remove_all(run, forks, error) : status;
}

tamis_status eviction_compare_answer(eviction_run *run, uint32_t arm, tamis_sequence parent,
                                     uint32_t question, tamis_error *error) {
    eviction_trace *t = &run->trace;
    tamis_sequence forks[PASSKEY_KEYS_MAX];
    tamis_status status = tamis_cache_fork(run->rig.cache, parent, &forks[question], error);
    t->n_active = 1;
    t->active[0] = question;
    for (t->step = t->n_asked[question]; status == TAMIS_OK && t->step < t->n_rows[question];
         t->step++)
        status = compare_step(run, arm, forks, &run->results[arm].within, error);
    if (status != TAMIS_OK) return status;
    return tamis_cache_remove(run->rig.cache, forks[question], error);
}
