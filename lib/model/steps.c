/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a runner: prompts in chunks, decode steps of several sequences, steps of several kinds of
 * rows; greedy tokens and logits. */
#include "lib/model/model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tamis_status tms_check_tokens(const tamis_runner *runner, const int32_t *tokens, size_t count,
                              tamis_error *error) {
    TMS_REQUIRE(tokens, TAMIS_E_ARGUMENT, "tokens is NULL");
    TMS_REQUIRE(count > 0, TAMIS_E_ARGUMENT, "no tokens are given");
    for (size_t i = 0; i < count; ++i)
        TMS_REQUIRE(tokens[i] >= 0 && (uint32_t)tokens[i] < runner->model->info.n_vocab,
                    TAMIS_E_ARGUMENT, "token %d at place %zu is outside the vocabulary of %u",
                    tokens[i], i, runner->model->info.n_vocab);
    return TAMIS_OK;
}

tamis_status tms_check_as_model(const tamis_runner *runner, tamis_error *error) {
    const tamis_attention *a = &runner->limits.attention;
    TMS_REQUIRE(
        runner->as_model, TAMIS_E_UNSUPPORTED,
        "the runner has scale %g, soft cap %g, sliding window %u, chunk %u, which are not all "
        "the model's own: its K and V are not those of the model",
        (double)a->scale, (double)a->soft_cap, a->sliding_window, a->chunk);
    TMS_REQUIRE(!tms_model_has_long(runner->model), TAMIS_E_UNSUPPORTED,
                "stored chunks of a %s model with long and short factors: their K and V depend on "
                "max_context",
                runner->model->config.architecture->info.name);
    return TAMIS_OK;
}

/* Uploads tokens and runner->positions, runs the forward pass, ends the step. */
static tamis_status fill_step(tamis_runner *runner, const int32_t *tokens, const tms_pass *pass,
                              tamis_error *error) {
    const uint64_t bytes = pass->n_rows * sizeof *tokens;
    TMS_TRY(tamis_buffer_write(runner->buffers[TMS_TOKENS], 0, tokens, bytes, error));
    TMS_TRY(tamis_buffer_write(runner->buffers[TMS_POSITIONS], 0, runner->positions, bytes, error));
    TMS_TRY(tms_forward_pass(runner, pass, error));
    return tamis_plan_step_end(runner->plan, error);
}

/* Adds to the reason of a failure that its step is still open. */
static void note_open_step(tamis_error *error) {
    if (!error) return;
    const size_t used = strlen(error->text);
    snprintf(error->text + used, sizeof error->text - used, "; the step could not be taken back");
}

/* Builds the kernels that a pass lacks. */
static tamis_status build_pass(tamis_runner *runner, const tms_pass *pass, tamis_error *error) {
    for (uint32_t i = 0; i < pass->n_bundles; i++)
        TMS_TRY(tms_forward_build(runner, pass->bundles[i].n, 0, error));
    for (uint32_t i = 0; i < pass->n_outputs; i++)
        TMS_TRY(tms_forward_build(runner, 0, pass->outputs[i].n, error));
    return TAMIS_OK;
}

/* Builds the kernels that are missing and runs one whole step; after a failure the sequences are as
 * they were. Device errors that arrive later are returned by tms_read_next. */
static tamis_status run_pass(tamis_runner *runner, const tamis_step *step, const int32_t *tokens,
                             const tms_pass *pass, tamis_error *error) {
    TMS_TRY(build_pass(runner, pass, error));
    TMS_TRY(tamis_plan_step_begin(runner->plan, step, error));
    const tamis_status status = fill_step(runner, tokens, pass, error);
    if (status != TAMIS_OK && tamis_plan_step_cancel(runner->plan, NULL) != TAMIS_OK)
        note_open_step(error);
    return status;
}

/* A step whose products take all rows together. The outputs are those of the last n_outputs rows. */
static tamis_status run_step(tamis_runner *runner, const tamis_step *step, const int32_t *tokens,
                             uint32_t n_rows, uint32_t n_outputs, tamis_error *error) {
    const tms_bundle rows = {0, n_rows}, outputs = {n_rows - n_outputs, n_outputs};
    const tms_pass pass = {n_rows, 1, n_outputs > 0, &rows, &outputs};
    return run_pass(runner, step, tokens, &pass, error);
}

/* Whether a single row of the sequence must take a token's place: the eviction acts in every step,
 * the sequence has been evicted from, and its longest lane holds the budget. */
static tamis_status stays_full(const tamis_runner *runner, tamis_sequence sequence, bool *full,
                               tamis_error *error) {
    const tamis_eviction *eviction = &runner->limits.eviction;
    const tamis_model_info *info = &runner->model->info;
    uint32_t evicted_at = 0, longest = 0;
    *full = false;
    if (eviction->every != 1) return TAMIS_OK;
    TMS_TRY(tamis_cache_length(runner->cache, sequence, NULL, &evicted_at, error));
    for (uint32_t layer = 0; evicted_at && layer < info->n_layers; layer++)
        for (uint32_t head = 0; head < info->n_kv_heads; head++) {
            uint32_t length = 0;
            TMS_TRY(tamis_cache_lane_length(runner->cache, sequence, layer, head, &length, error));
            if (length > longest) longest = length;
        }
    *full = evicted_at && longest == eviction->budget;
    return TAMIS_OK;
}

tamis_status tms_run_rows(tamis_runner *runner, tamis_sequence sequence, uint32_t first,
                          const int32_t *tokens, uint32_t n_rows, uint32_t n_outputs,
                          tamis_error *error) {
    bool full = false;
    if (n_rows == 1) TMS_TRY(stays_full(runner, sequence, &full, error));
    const tamis_step step = {.sequences = &sequence, .rows = &n_rows, .count = 1, .exact = !full};
    for (uint32_t i = 0; i < n_rows; ++i)
        runner->positions[i] = (int32_t)(first + i);
    return run_step(runner, &step, tokens, n_rows, n_outputs, error);
}

/* Waits, and copies the greedy tokens to `next` unless it is NULL. The step has ended: after a
 * failure its tokens stay. */
tamis_status tms_read_next(tamis_runner *runner, uint32_t n_outputs, int32_t *next,
                           tamis_error *error) {
    TMS_TRY(tamis_context_wait(runner->model->context, error));
    if (next)
        TMS_TRY(
            tamis_buffer_read(runner->buffers[TMS_NEXT], 0, next, n_outputs * sizeof *next, error));
    runner->n_outputs = n_outputs;
    return TAMIS_OK;
}

/* Tells the watcher, if there is one, when the chunk has been read. */
static tamis_status tell_watcher(tamis_runner *runner, size_t done, size_t count,
                                 tamis_error *error) {
    if (!runner->watcher) return TAMIS_OK;
    TMS_TRY(tamis_context_wait(runner->model->context, error));
    return runner->watcher(runner->watcher_user, done, count, error);
}

/* Whether the runner evicts from sequences by itself, at a prompt's end and later. */
static bool evicts(const tamis_runner *runner) {
    tamis_eviction_kind kind = runner->limits.eviction.kind;
    return kind != TAMIS_EVICT_NONE && kind != TAMIS_EVICT_CALLER;
}

tamis_status tms_evict_prompt(tamis_runner *runner, tamis_sequence sequence, tamis_error *error) {
    if (!evicts(runner)) return TAMIS_OK;
    TMS_TRY(tamis_plan_evict(runner->plan, sequence, NULL, error));
    return tamis_context_wait(runner->model->context, error);
}

/* Evicts from the sequences that have grown by `every` tokens since their last eviction, and
 * waits. */
static tamis_status evict_due(tamis_runner *runner, const tamis_sequence *sequences, uint32_t count,
                              tamis_error *error) {
    uint32_t every = runner->limits.eviction.every;
    if (!evicts(runner) || every < 2) return TAMIS_OK;
    for (uint32_t i = 0; i < count; ++i) {
        uint32_t length = 0, evicted_at = 0;
        TMS_TRY(tamis_cache_length(runner->cache, sequences[i], &length, &evicted_at, error));
        if (length - evicted_at >= every)
            TMS_TRY(tamis_plan_evict(runner->plan, sequences[i], NULL, error));
    }
    return tamis_context_wait(runner->model->context, error);
}

tamis_status tamis_runner_prefill(tamis_runner *runner, tamis_sequence sequence,
                                  const int32_t *tokens, size_t count, int32_t *next,
                                  tamis_error *error) {
    TMS_ENTER_RUNNER(runner);
    uint32_t length = 0;
    TMS_REQUIRE(runner, TAMIS_E_ARGUMENT, "runner is NULL");
    const tamis_plan_params *limits = &runner->limits;
    runner->n_outputs = 0;
    TMS_TRY(tamis_cache_length(runner->cache, sequence, &length, NULL, error));
    TMS_TRY(tms_check_tokens(runner, tokens, count, error));
    TMS_REQUIRE(length <= limits->max_context && count <= limits->max_context - length,
                TAMIS_E_ARGUMENT,
                "the prompt has %zu tokens behind the sequence's %u; max_context is %u", count,
                length, limits->max_context);
    for (size_t done = 0; done < count;) {
        size_t left = count - done;
        uint32_t rows = left < limits->max_rows ? (uint32_t)left : limits->max_rows;
        const uint32_t first = length + (uint32_t)done;
        TMS_TRY(tms_run_rows(runner, sequence, first, tokens + done, rows, rows == left, error));
        done += rows;
        TMS_TRY(tell_watcher(runner, done, count, error));
    }
    /* The caller gets the step's results, even if the eviction fails. */
    TMS_TRY(tms_read_next(runner, 1, next, error));
    return tms_evict_prompt(runner, sequence, error);
}

tamis_status tamis_runner_decode(tamis_runner *runner, const tamis_sequence *sequences,
                                 uint32_t count, const int32_t *tokens, int32_t *next,
                                 tamis_error *error) {
    TMS_ENTER_RUNNER(runner);
    TMS_REQUIRE(runner, TAMIS_E_ARGUMENT, "runner is NULL");
    const tamis_plan_params *limits = &runner->limits;
    runner->n_outputs = 0;
    TMS_TRY(tms_check_tokens(runner, tokens, count, error));
    TMS_REQUIRE(sequences, TAMIS_E_ARGUMENT, "sequences is NULL");
    TMS_REQUIRE(count <= limits->max_sequences && count <= limits->max_rows, TAMIS_E_ARGUMENT,
                "%u sequences are given; max_sequences is %u, max_rows %u", count,
                limits->max_sequences, limits->max_rows);
    for (uint32_t i = 0; i < count; ++i) {
        uint32_t length = 0;
        TMS_TRY(tamis_cache_length(runner->cache, sequences[i], &length, NULL, error));
        runner->positions[i] = (int32_t)length;
    }
    const tamis_step step = {.sequences = sequences, .count = count};
    TMS_TRY(run_step(runner, &step, tokens, count, count, error));
    TMS_TRY(tms_read_next(runner, count, next, error));
    return evict_due(runner, sequences, count, error);
}

/* ---- Steps of several kinds of rows ---------------------------------------------------------- */

/* Adds rows to the bundles of a step: those that go through the selection, which come first, to bundles
 * of TAMIS_FEW_ROWS; a chunk's to one of their own. So a row's sums do not depend on its neighbours. */
static void add_rows(tms_bundle *bundles, uint32_t *n, uint32_t first, uint32_t rows, bool apart) {
    tms_bundle *last = *n ? &bundles[*n - 1] : NULL;
    while (rows > 0) {
        const bool joins =
            !apart && last && last->first + last->n == first && last->n < TAMIS_FEW_ROWS;
        if (!joins) {
            last = &bundles[(*n)++];
            *last = (tms_bundle){first, 0};
        }
        const uint32_t room = apart ? rows : TAMIS_FEW_ROWS - last->n,
                       taken = rows < room ? rows : room;
        last->n += taken;
        first += taken;
        rows -= taken;
    }
}

static tamis_status check_run(const tamis_runner *runner, const tamis_run *runs, uint32_t i,
                              tamis_error *error) {
    const tamis_run *run = &runs[i];
    const uint32_t flags = TAMIS_RUN_EXACT | TAMIS_RUN_EVICT;
    for (size_t j = 0; j < sizeof run->reserved / sizeof *run->reserved; j++)
        TMS_REQUIRE(run->reserved[j] == 0, TAMIS_E_ARGUMENT,
                    "run %u: reserved[%zu] is %" PRIu64 "; it must be 0", i, j, run->reserved[j]);
    TMS_REQUIRE(run->reserved32 == 0, TAMIS_E_ARGUMENT, "run %u: reserved32 is %u; it must be 0", i,
                run->reserved32);
    TMS_REQUIRE((run->flags & ~flags) == 0, TAMIS_E_ARGUMENT,
                "run %u: flags are 0x%x: at most 0x%x", i, run->flags, flags);
    TMS_REQUIRE(run->flags & TAMIS_RUN_EXACT || !(run->flags & TAMIS_RUN_EVICT), TAMIS_E_ARGUMENT,
                "run %u: TAMIS_RUN_EVICT is for the end of a prompt, whose rows are exact", i);
    TMS_REQUIRE(i == 0 || run->flags & TAMIS_RUN_EXACT || !(runs[i - 1].flags & TAMIS_RUN_EXACT),
                TAMIS_E_ARGUMENT, "run %u is not exact and comes behind one that is", i);
    TMS_REQUIRE(run->n_outputs <= run->n_tokens, TAMIS_E_ARGUMENT,
                "run %u: n_outputs is %u, of %u tokens", i, run->n_outputs, run->n_tokens);
    return tms_check_tokens(runner, run->tokens, run->n_tokens, error);
}

/* How many rows and outputs runs have. */
typedef struct step_size {
    uint64_t rows, outputs;
} step_size;

static tamis_status check_runs(const tamis_runner *runner, const tamis_run *runs, uint32_t count,
                               step_size *size, tamis_error *error) {
    const tamis_plan_params *limits = &runner->limits;
    *size = (step_size){0};
    TMS_REQUIRE(runs, TAMIS_E_ARGUMENT, "runs is NULL");
    TMS_REQUIRE(count > 0 && count <= limits->max_sequences, TAMIS_E_ARGUMENT,
                "%u runs are given: 1 to %u, which is max_sequences", count, limits->max_sequences);
    for (uint32_t i = 0; i < count; i++) {
        TMS_TRY(check_run(runner, runs, i, error));
        size->rows += runs[i].n_tokens;
        size->outputs += runs[i].n_outputs;
    }
    TMS_REQUIRE(size->rows <= limits->max_rows, TAMIS_E_ARGUMENT,
                "the runs have %" PRIu64 " tokens; max_rows is %u", size->rows, limits->max_rows);
    TMS_REQUIRE(size->outputs <= runner->max_outputs, TAMIS_E_ARGUMENT,
                "the runs have %" PRIu64 " outputs; a step has at most %u", size->outputs,
                runner->max_outputs);
    return TAMIS_OK;
}

/* The positions of a run's rows, from row `first` of the step on, behind `length` tokens; and behind which
 * row each stands. The plan refuses one that comes later. */
static void fill_places(tamis_runner *runner, const tamis_run *run, uint32_t first,
                        uint32_t length) {
    int32_t *positions = runner->positions + first;
    for (uint32_t j = 0; j < run->n_tokens; j++) {
        const uint32_t line = j ? j - 1 : TAMIS_NO_ROW,
                       parent = run->parents ? run->parents[j] : line;
        runner->parents[first + j] = parent;
        positions[j] = parent < j ? positions[parent] + 1 : (int32_t)length;
    }
}

/* Puts the runs' tokens, positions and bundles into the runner's tables. */
static tamis_status lay_out_runs(tamis_runner *runner, const tamis_run *runs, uint32_t count,
                                 tms_pass *pass, tamis_error *error) {
    *pass = (tms_pass){.bundles = runner->bundles, .outputs = runner->outs};
    for (uint32_t i = 0; i < count; i++) {
        const tamis_run *run = &runs[i];
        const bool apart = run->flags & TAMIS_RUN_EXACT;
        const uint32_t end = pass->n_rows + run->n_tokens;
        uint32_t length = 0;
        TMS_TRY(tamis_cache_length(runner->cache, run->sequence, &length, NULL, error));
        memcpy(runner->tokens + pass->n_rows, run->tokens, run->n_tokens * sizeof *run->tokens);
        fill_places(runner, run, pass->n_rows, length);
        add_rows(runner->bundles, &pass->n_bundles, pass->n_rows, run->n_tokens, apart);
        add_rows(runner->outs, &pass->n_outputs, end - run->n_outputs, run->n_outputs, false);
        pass->n_rows = end;
    }
    return TAMIS_OK;
}

tamis_step tms_step_of_runs(tamis_runner *runner, const tamis_run *runs, uint32_t count) {
    uint32_t n_selected = 0;
    bool tree = false;
    for (uint32_t i = 0; i < count; i++) {
        runner->sequences[i] = runs[i].sequence;
        runner->rows[i] = runs[i].n_tokens;
        tree |= runs[i].parents != NULL;
        n_selected += !(runs[i].flags & TAMIS_RUN_EXACT);
    }
    return (tamis_step){.sequences = runner->sequences,
                        .rows = runner->rows,
                        .count = count,
                        .exact = n_selected == 0,
                        .exact_from = n_selected < count ? n_selected : 0,
                        .parents = tree ? runner->parents : NULL};
}

static tamis_status run_runs(tamis_runner *runner, const tamis_run *runs, uint32_t count,
                             tamis_error *error) {
    const tamis_step step = tms_step_of_runs(runner, runs, count);
    tms_pass pass;
    TMS_TRY(lay_out_runs(runner, runs, count, &pass, error));
    return run_pass(runner, &step, runner->tokens, &pass, error);
}

/* Of runs of several rows some may yet be given up: nothing is evicted behind these. */
static tamis_status evict_runs(tamis_runner *runner, const tamis_run *runs, uint32_t count,
                               tamis_error *error) {
    for (uint32_t i = 0; i < count; i++) {
        if (runs[i].flags & TAMIS_RUN_EVICT)
            TMS_TRY(tms_evict_prompt(runner, runs[i].sequence, error));
        else if (!(runs[i].flags & TAMIS_RUN_EXACT) && runs[i].n_tokens == 1)
            TMS_TRY(evict_due(runner, &runs[i].sequence, 1, error));
    }
    return TAMIS_OK;
}

tamis_status tamis_runner_step(tamis_runner *runner, const tamis_run *runs, uint32_t count,
                               int32_t *next, tamis_error *error) {
    TMS_ENTER_RUNNER(runner);
    step_size size;
    TMS_REQUIRE(runner, TAMIS_E_ARGUMENT, "runner is NULL");
    runner->n_outputs = 0;
    TMS_TRY(check_runs(runner, runs, count, &size, error));
    TMS_TRY(run_runs(runner, runs, count, error));
    TMS_TRY(tms_read_next(runner, (uint32_t)size.outputs, next, error));
    return evict_runs(runner, runs, count, error);
}

/* ---- Logits ---------------------------------------------------------------------------------- */

/* The scale and the cap of logits. Both are monotone: greedy tokens need neither. */
static void finish_logits(const tms_config *config, uint32_t n, float *logits) {
    const float scale = config->logit_scale, cap = config->logit_cap;
    for (uint32_t i = 0; i < n && scale != 1; ++i)
        logits[i] *= scale;
    for (uint32_t i = 0; i < n && cap != 0; ++i)
        logits[i] = cap * tanhf(logits[i] / cap);
}

tamis_status tamis_runner_logits(tamis_runner *runner, uint32_t row, float *logits,
                                 tamis_error *error) {
    TMS_ENTER_RUNNER(runner);
    TMS_REQUIRE(runner, TAMIS_E_ARGUMENT, "runner is NULL");
    TMS_REQUIRE(logits, TAMIS_E_ARGUMENT, "logits is NULL");
    uint64_t bytes = (uint64_t)runner->model->info.n_vocab * sizeof *logits;
    TMS_REQUIRE(runner->n_outputs > 0, TAMIS_E_STATE, "the last call left no logits");
    TMS_REQUIRE(row < runner->n_outputs, TAMIS_E_ARGUMENT, "row %u of %u rows of logits", row,
                runner->n_outputs);
    TMS_TRY(tamis_buffer_read(runner->buffers[TMS_LOGITS], row * bytes, logits, bytes, error));
    finish_logits(&runner->model->config, runner->model->info.n_vocab, logits);
    return TAMIS_OK;
}
