/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences under a selection whose lists a test makes or reads, and what rows attend to by the formula. */
#include "tests/api/lists.h"

#include <math.h>
#include <string.h>

static const uint32_t prompts[SEQUENCES] = {150, 33, 61};
static const float sink_logits[] = {0.5f, -1.0f, 2.0f, -INFINITY};

tamis_selection lists_selection(uint32_t budget) {
    return (tamis_selection){.kind = TAMIS_SELECT_CALLER, .budget = budget};
}

tamis_plan_params lists_plan(const lists_case *c) {
    tamis_plan_params plan = {.selection = c->selection,
                              .max_sequences = SEQUENCES + 1, /* a leaf of a tree */
                              .max_rows = MOST_ROWS,
                              .max_selected_rows = 8,
                              .max_context = CONTEXT,
                              .attention = {.sliding_window = c->window},
                              .flags = c->flags};
    tamis_eviction_default(c->eviction, &plan.eviction);
    if (c->eviction) plan.eviction.budget = CONTEXT; /* none is evicted */
    if (c->eviction == TAMIS_EVICT_KNORM) plan.eviction.every = 0;
    return plan;
}

void lists_fill(tamis_buffer **buffer, tamis_context *context, const void *from, uint64_t bytes) {
    OK(tamis_buffer_create(context, bytes, buffer, &test_error));
    if (from) OK(tamis_buffer_write(*buffer, 0, from, bytes, &test_error));
}

/* The rows of a step of all sequences, in its order. */
uint64_t *lists_tokens(lists_world *l, const uint32_t *rows) {
    static uint64_t tokens[MOST_ROWS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < SEQUENCES; i++)
        for (uint32_t j = 0; j < rows[i]; j++)
            tokens[n++] = l->tokens[i][l->length[i]++] = l->next++;
    return tokens;
}

void lists_open(lists_world *l, const lists_case *c) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = lists_plan(c);
    *l = (lists_world){.random = 11, .next = 1, .window = c->window};
    shape.dtype = c->dtype;
    shape.capacity_tokens = 4 * CONTEXT;
    shape.planes = tamis_eviction_planes(&plan.eviction);
    if (c->eviction == TAMIS_EVICT_STREAMING) plan.eviction.options |= TAMIS_EVICT_REINDEX;
    test_open(&l->w, &shape, &plan);
    lists_fill(&l->sinks, l->w.context, sink_logits, sizeof sink_logits);
    if (c->sunk) { /* which needs a context: another plan in its place */
        plan.attention.sinks.buffer = l->sinks;
        tamis_plan_destroy(&l->w.plan);
        OK(tamis_plan_create(l->w.cache, &plan, &l->w.plan, &test_error));
    }
    lists_fill(&l->lse, l->w.context, NULL, MOST_ROWS * shape.n_heads * sizeof(float));
    lists_fill(&l->entries, l->w.context, NULL, 8 * 2 * MOST * sizeof(int32_t));
    lists_fill(&l->count, l->w.context, NULL, 8 * 2 * sizeof(int32_t));
    for (uint32_t i = 0; i < SEQUENCES; i++)
        OK(tamis_cache_add(l->w.cache, &l->ids[i], &test_error));
}

/* What another plan over the cache did not see is in it, too. */
void lists_prefill(lists_world *l) {
    for (uint32_t i = 0; i < SEQUENCES; i++)
        while (l->length[i] < prompts[i]) {
            uint32_t rows[SEQUENCES] = {0};
            const uint32_t left = prompts[i] - l->length[i];
            rows[i] = left < MOST_ROWS ? left : MOST_ROWS;
            const tamis_step step = {
                .sequences = &l->ids[i], .rows = &rows[i], .count = 1, .exact = 1};
            OK(test_step(&l->w, &step, lists_tokens(l, rows)));
        }
}

void lists_close(lists_world *l) {
    tamis_buffer **buffers[] = {&l->lse, &l->entries, &l->count, &l->sinks};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        tamis_buffer_destroy(buffers[i]);
    test_close(&l->w);
}

/* ---- A layer --------------------------------------------------------------------------------- */

void lists_queries(lists_world *l, uint32_t n, float *q) {
    for (uint32_t i = 0; i < n * 4 * DIM; i++)
        q[i] = (float)((double)(test_random(&l->random) >> 11) / (1ull << 51) - 2);
    OK(tamis_buffer_write(l->w.q, 0, q, n * 4 * DIM * sizeof *q, &test_error));
}

/* Lists for tamis_plan_attend_with, of the host or sent to the device. */
tamis_caller_lists lists_give(lists_world *l, const host_lists *h, bool on_host) {
    tamis_caller_lists lists = {.capacity = h->capacity, .unit = h->unit};
    if (on_host) {
        lists.host_entries = h->entries;
        lists.host_count = h->count;
        return lists;
    }
    OK(tamis_buffer_write(l->entries, 0, h->entries, 8ull * 2 * h->capacity * 4, &test_error));
    OK(tamis_buffer_write(l->count, 0, h->count, sizeof h->count, &test_error));
    lists.entries.buffer = l->entries;
    lists.count.buffer = l->count;
    return lists;
}

void lists_attend(lists_world *l, uint32_t layer, uint32_t n, const tamis_caller_lists *lists,
                  layer_result *r) {
    const tamis_plan_attend_params p = {
        .q.buffer = l->w.q, .out.buffer = l->w.out, .lse.buffer = l->lse, .lists = lists};
    OK(tamis_plan_attend_with(l->w.plan, layer, &p, &test_error));
    OK(tamis_buffer_read(l->w.out, 0, r->out, n * 4ull * DIM * sizeof(float), &test_error));
    OK(tamis_buffer_read(l->lse, 0, r->lse, n * 4ull * sizeof(float), &test_error));
}

uint32_t lists_read(lists_world *l, uint32_t row, uint32_t head, uint32_t *list) {
    uint32_t n = 0;
    OK(tamis_plan_read_selected(l->w.plan, row, head, list, MOST, &n, &test_error));
    assert_true(n <= MOST);
    return n;
}

uint64_t lists_skipped(lists_world *l) {
    uint64_t n = UINT64_MAX;
    OK(tamis_plan_read_skipped(l->w.plan, &n, &test_error));
    return n;
}

/* ---- The formula ----------------------------------------------------------------------------- */

row_of_step lists_row(const lists_world *l, const uint32_t *rows, uint32_t row) {
    uint32_t i = 0;
    while (row >= rows[i])
        row -= rows[i++];
    return (row_of_step){i, l->length[i] - rows[i] + row + 1};
}

uint32_t lists_first(const lists_world *l, row_of_step of) {
    return l->window && of.visible > l->window ? of.visible - l->window : 0;
}

/* out and lse of a row and query head over the slots that `reads` names, in fp64. */
static void check_head(const lists_world *l, uint32_t layer, row_of_step of, uint32_t head,
                       const bool *reads, const float *q, const float *out, float lse, bool sunk) {
    const uint32_t lane = layer * 2 + head / 2;
    double logit[CONTEXT], most = sunk ? (double)sink_logits[head] : -INFINITY, sum = 0,
                           v[DIM] = {0};
    for (uint32_t s = lists_first(l, of); s < of.visible; s++) {
        if (!reads[s]) continue;
        logit[s] = 0;
        for (uint32_t d = 0; d < DIM; d++)
            logit[s] += (double)q[d] * test_value(l->tokens[of.sequence][s], lane, 0, d) / 8;
        most = fmax(most, logit[s]);
    }
    for (uint32_t s = lists_first(l, of); s < of.visible; s++) {
        if (!reads[s]) continue;
        const double w = exp(logit[s] - most);
        sum += w;
        for (uint32_t d = 0; d < DIM; d++)
            v[d] += w * test_value(l->tokens[of.sequence][s], lane, 1, d);
    }
    if (sunk && most > -INFINITY) sum += exp((double)sink_logits[head] - most);
    if (sum == 0) {
        assert_true(isinf(lse) && lse < 0);
        for (uint32_t d = 0; d < DIM; d++)
            assert_true(out[d] == 0);
        return;
    }
    if (!(fabs(most + log(sum) - (double)lse) <= 1e-4))
        fail_msg("head %u, %u slots: lse %g, not %g", head, of.visible, (double)lse,
                 most + log(sum));
    for (uint32_t d = 0; d < DIM; d++)
        if (!(fabs(v[d] / sum - (double)out[d]) <= 1e-4))
            fail_msg("head %u, channel %u: %g, not %g", head, d, (double)out[d], v[d] / sum);
}

/* All heads of a row by the lists that the plan says it has read. */
void lists_check_row(lists_world *l, uint32_t layer, row_of_step of, uint32_t row,
                     tamis_list_unit unit, const layer_result *r, bool sunk) {
    uint32_t list[MOST];
    for (uint32_t h = 0; h < 2; h++) {
        bool reads[CONTEXT] = {false};
        const uint32_t n = lists_read(l, row, h, list), size = unit == TAMIS_LIST_TOKENS ? 1 : 8;
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t s = list[i] * size; s < (list[i] + 1) * size && s < CONTEXT; s++)
                reads[s] = true;
        for (uint32_t g = 0; g < 2; g++) {
            const uint32_t head = 2 * h + g, at = (row * 4 + head) * DIM;
            check_head(l, layer, of, head, reads, r->q + at, r->out + at, r->lse[row * 4 + head],
                       sunk);
        }
    }
}

void lists_begin(lists_world *l, const uint32_t *rows, uint32_t exact_from) {
    const tamis_step step = {.sequences = l->ids,
                             .rows = rows,
                             .count = SEQUENCES,
                             .exact_from = exact_from,
                             .parents = l->parents};
    OK(tamis_plan_step_begin(l->w.plan, &step, &test_error));
}
