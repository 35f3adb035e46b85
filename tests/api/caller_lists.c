/* SPDX-License-Identifier: Apache-2.0 */
/* Selection caller: the lists that quest has made give quest's bits; lists of tokens, and lse, are those
 * of the formula in fp64; of lists that hold anything the valid entries are read and the others counted,
 * as a plain count does. What is refused. */
#include "tests/api/fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 3, BUDGET = 48, MOST_ROWS = 64, CONTEXT = 256, MOST = 256, DIM = 64 };
static const uint32_t prompts[SEQUENCES] = {150, 33, 61};

/* A world with the tokens that its sequences have. */
typedef struct lists_world {
    test_world w;
    tamis_sequence ids[SEQUENCES];
    uint64_t tokens[SEQUENCES][CONTEXT];
    uint32_t length[SEQUENCES];
    uint64_t random, next;
    tamis_buffer *lse, *entries, *count, *sinks;
    uint32_t window; /* sliding, of every layer */
} lists_world;

typedef struct lists_case {
    tamis_dtype dtype;
    tamis_selection selection;
    uint32_t flags, window;
    bool sunk; /* query heads have sink logits */
    tamis_eviction_kind eviction;
} lists_case;

static const float sink_logits[] = {0.5f, -1.0f, 2.0f, -INFINITY};

static tamis_selection caller(uint32_t budget) {
    return (tamis_selection){.kind = TAMIS_SELECT_CALLER, .budget = budget};
}

static tamis_plan_params plan_of(const lists_case *c) {
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

static void fill(tamis_buffer **buffer, tamis_context *context, const void *from, uint64_t bytes) {
    OK(tamis_buffer_create(context, bytes, buffer, &test_error));
    if (from) OK(tamis_buffer_write(*buffer, 0, from, bytes, &test_error));
}

/* The rows of a step of all sequences, in its order. */
static uint64_t *take_tokens(lists_world *l, const uint32_t *rows) {
    static uint64_t tokens[MOST_ROWS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < SEQUENCES; i++)
        for (uint32_t j = 0; j < rows[i]; j++)
            tokens[n++] = l->tokens[i][l->length[i]++] = l->next++;
    return tokens;
}

static void open_lists(lists_world *l, const lists_case *c) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = plan_of(c);
    *l = (lists_world){.random = 11, .next = 1, .window = c->window};
    shape.dtype = c->dtype;
    shape.capacity_tokens = 4 * CONTEXT;
    shape.planes = tamis_eviction_planes(&plan.eviction);
    if (c->eviction == TAMIS_EVICT_STREAMING) plan.eviction.options |= TAMIS_EVICT_REINDEX;
    test_open(&l->w, &shape, &plan);
    fill(&l->sinks, l->w.context, sink_logits, sizeof sink_logits);
    if (c->sunk) { /* which needs a context: another plan in its place */
        plan.attention.sinks.buffer = l->sinks;
        tamis_plan_destroy(&l->w.plan);
        OK(tamis_plan_create(l->w.cache, &plan, &l->w.plan, &test_error));
    }
    fill(&l->lse, l->w.context, NULL, MOST_ROWS * shape.n_heads * sizeof(float));
    fill(&l->entries, l->w.context, NULL, 8 * 2 * MOST * sizeof(int32_t));
    fill(&l->count, l->w.context, NULL, 8 * 2 * sizeof(int32_t));
    for (uint32_t i = 0; i < SEQUENCES; i++)
        OK(tamis_cache_add(l->w.cache, &l->ids[i], &test_error));
}

/* What another plan over the cache did not see is in it, too. */
static void prefill(lists_world *l) {
    for (uint32_t i = 0; i < SEQUENCES; i++)
        while (l->length[i] < prompts[i]) {
            uint32_t rows[SEQUENCES] = {0};
            const uint32_t left = prompts[i] - l->length[i];
            rows[i] = left < MOST_ROWS ? left : MOST_ROWS;
            const tamis_step step = {
                .sequences = &l->ids[i], .rows = &rows[i], .count = 1, .exact = 1};
            OK(test_step(&l->w, &step, take_tokens(l, rows)));
        }
}

static void close_lists(lists_world *l) {
    tamis_buffer **buffers[] = {&l->lse, &l->entries, &l->count, &l->sinks};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        tamis_buffer_destroy(buffers[i]);
    test_close(&l->w);
}

/* ---- A layer --------------------------------------------------------------------------------- */

typedef struct layer_result {
    float q[MOST_ROWS * 4 * DIM], out[MOST_ROWS * 4 * DIM], lse[MOST_ROWS * 4];
} layer_result;

/* Lists of at most 8 rows and 2 KV heads. */
typedef struct host_lists {
    int32_t entries[8 * 2 * MOST], count[8 * 2];
    uint32_t capacity;
    tamis_list_unit unit;
} host_lists;

static void make_queries(lists_world *l, uint32_t n, float *q) {
    for (uint32_t i = 0; i < n * 4 * DIM; i++)
        q[i] = (float)((double)(test_random(&l->random) >> 11) / (1ull << 51) - 2);
    OK(tamis_buffer_write(l->w.q, 0, q, n * 4 * DIM * sizeof *q, &test_error));
}

/* Lists for tamis_plan_attend_with, of the host or sent to the device. */
static tamis_caller_lists give(lists_world *l, const host_lists *h, bool on_host) {
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

static void attend(lists_world *l, uint32_t layer, uint32_t n, const tamis_caller_lists *lists,
                   layer_result *r) {
    const tamis_plan_attend_params p = {
        .q.buffer = l->w.q, .out.buffer = l->w.out, .lse.buffer = l->lse, .lists = lists};
    OK(tamis_plan_attend_with(l->w.plan, layer, &p, &test_error));
    OK(tamis_buffer_read(l->w.out, 0, r->out, n * 4ull * DIM * sizeof(float), &test_error));
    OK(tamis_buffer_read(l->lse, 0, r->lse, n * 4ull * sizeof(float), &test_error));
}

static uint32_t read_list(lists_world *l, uint32_t row, uint32_t head, uint32_t *list) {
    uint32_t n = 0;
    OK(tamis_plan_read_selected(l->w.plan, row, head, list, MOST, &n, &test_error));
    assert_true(n <= MOST);
    return n;
}

static uint64_t skipped(lists_world *l) {
    uint64_t n = UINT64_MAX;
    OK(tamis_plan_read_skipped(l->w.plan, &n, &test_error));
    return n;
}

/* ---- The formula ----------------------------------------------------------------------------- */

/* A row of the step: its sequence, and how many slots it sees. */
typedef struct row_of_step {
    uint32_t sequence, visible;
} row_of_step;

static row_of_step row_at(const lists_world *l, const uint32_t *rows, uint32_t row) {
    uint32_t i = 0;
    while (row >= rows[i])
        row -= rows[i++];
    return (row_of_step){i, l->length[i] - rows[i] + row + 1};
}

static uint32_t first_seen(const lists_world *l, row_of_step of) {
    return l->window && of.visible > l->window ? of.visible - l->window : 0;
}

/* out and lse of a row and query head over the slots that `reads` names, in fp64. */
static void check_head(const lists_world *l, uint32_t layer, row_of_step of, uint32_t head,
                       const bool *reads, const float *q, const float *out, float lse, bool sunk) {
    const uint32_t lane = layer * 2 + head / 2;
    double logit[CONTEXT], most = sunk ? (double)sink_logits[head] : -INFINITY, sum = 0,
                           v[DIM] = {0};
    for (uint32_t s = first_seen(l, of); s < of.visible; s++) {
        if (!reads[s]) continue;
        logit[s] = 0;
        for (uint32_t d = 0; d < DIM; d++)
            logit[s] += (double)q[d] * test_value(l->tokens[of.sequence][s], lane, 0, d) / 8;
        most = fmax(most, logit[s]);
    }
    for (uint32_t s = first_seen(l, of); s < of.visible; s++) {
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
static void check_row(lists_world *l, uint32_t layer, row_of_step of, uint32_t row,
                      tamis_list_unit unit, const layer_result *r, bool sunk) {
    uint32_t list[MOST];
    for (uint32_t h = 0; h < 2; h++) {
        bool reads[CONTEXT] = {false};
        const uint32_t n = read_list(l, row, h, list), size = unit == TAMIS_LIST_TOKENS ? 1 : 8;
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

/* ---- Quest's lists --------------------------------------------------------------------------- */

static const uint32_t *parents; /* of the next steps' rows; NULL: lines */

static void begin(lists_world *l, const uint32_t *rows, uint32_t exact_from) {
    const tamis_step step = {.sequences = l->ids,
                             .rows = rows,
                             .count = SEQUENCES,
                             .exact_from = exact_from,
                             .parents = parents};
    OK(tamis_plan_step_begin(l->w.plan, &step, &test_error));
}

/* The lists that were read for the first n rows. */
static void read_lists(lists_world *l, uint32_t n, host_lists *out) {
    for (uint32_t i = 0; i < n * 2; i++)
        out->count[i] =
            (int32_t)read_list(l, i / 2, i % 2, (uint32_t *)out->entries + i * out->capacity);
}

/* The same rows and queries in both worlds; the last sequences of a mixed step are exact. */
static void same_step(lists_world *a, lists_world *b, const uint32_t *rows, uint32_t exact_from,
                      bool on_host) {
    const uint32_t n = rows[0] + rows[1] + rows[2];
    const uint32_t selected = exact_from ? rows[0] + (exact_from > 1 ? rows[1] : 0) : n;
    static layer_result of_a, of_b;
    host_lists lists = {.capacity = BUDGET / 8};
    begin(a, rows, exact_from);
    begin(b, rows, exact_from);
    uint64_t *tokens = take_tokens(a, rows);
    for (uint32_t layer = 0; layer < 2; layer++) {
        test_write(&a->w, layer, tokens, n);
        test_write(&b->w, layer, tokens, n);
        make_queries(a, n, of_a.q);
        OK(tamis_buffer_write(b->w.q, 0, of_a.q, n * 4ull * DIM * sizeof(float), &test_error));
        attend(a, layer, n, NULL, &of_a);
        read_lists(a, selected, &lists);
        const tamis_caller_lists given = give(b, &lists, on_host);
        attend(b, layer, n, &given, &of_b);
        assert_memory_equal(of_a.out, of_b.out, n * 4ull * DIM * sizeof(float));
        assert_memory_equal(of_a.lse, of_b.lse, n * 4ull * sizeof(float));
        for (uint32_t i = 0; i < 2 * selected; i++) {
            uint32_t list[MOST];
            assert_int_equal(read_list(b, i / 2, i % 2, list), lists.count[i]);
            assert_memory_equal(list, lists.entries + i * lists.capacity, lists.count[i] * 4ull);
        }
    }
    if (parents) { /* nothing stays */
        OK(tamis_plan_step_cancel(a->w.plan, &test_error));
        OK(tamis_plan_step_cancel(b->w.plan, &test_error));
        return;
    }
    OK(tamis_plan_step_end(a->w.plan, &test_error));
    OK(tamis_plan_step_end(b->w.plan, &test_error));
}

static void quests_lists_give_quests_bits(void **state) {
    (void)state;
    static const tamis_dtype dtypes[] = {TAMIS_F32, TAMIS_F16, TAMIS_BF16, TAMIS_Q8};
    static const uint32_t steps[][SEQUENCES] = {{1, 1, 1}, {3, 1, 2}, {1, 2, 20}, {1, 40, 9}};
    static const uint32_t exact_from[] = {0, 0, 2, 1};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        lists_case quest = {
            .dtype = dtypes[i],
            .selection = {.kind = TAMIS_SELECT_QUEST, .budget = BUDGET, .recent = 1},
            .flags = TAMIS_PLAN_UNFUSED,
            .window = i == 1 ? 90 : 0,
            .sunk = i == 2};
        lists_case own = quest;
        own.selection = caller(BUDGET);
        own.flags = 0;
        lists_world a, b;
        open_lists(&a, &quest);
        open_lists(&b, &own);
        prefill(&a);
        prefill(&b);
        const uint32_t builds = test_builds;
        for (uint32_t s = 0; s < 4; s++)
            same_step(&a, &b, steps[s], exact_from[s], s % 2);
        assert_int_equal(test_builds, builds);
        assert_int_equal(skipped(&b), 0);
        tamis_plan_counters c;
        tamis_plan_get_counters(b.w.plan, &c);
        assert_true(c.rows_short == 0 && c.rows_full == 0 && c.rows_fused == 0);
        assert_int_equal(c.rows_selected, 2 * (3 + 6 + 3 + 1));
        assert_int_equal(c.rows_exact, 2 * (20 + 49));
        close_lists(&a);
        close_lists(&b);
    }
}

static void rows_of_trees_read_their_lists(void **state) {
    (void)state;
    static const uint32_t tree[] = {TAMIS_NO_ROW, 0, 0, TAMIS_NO_ROW, TAMIS_NO_ROW};
    static const uint32_t rows[SEQUENCES] = {3, 1, 1};
    const lists_case quest = {
        .dtype = TAMIS_F16,
        .selection = {.kind = TAMIS_SELECT_QUEST, .budget = BUDGET, .recent = 1},
        .flags = TAMIS_PLAN_UNFUSED | TAMIS_PLAN_TREES};
    lists_case own = quest;
    own.selection = caller(BUDGET);
    lists_world a, b;
    open_lists(&a, &quest);
    open_lists(&b, &own);
    prefill(&a);
    prefill(&b);
    parents = tree;
    same_step(&a, &b, rows, 0, false);
    parents = NULL;
    assert_int_equal(skipped(&b), 0);
    close_lists(&a);
    close_lists(&b);
}

/* ---- Any lists ------------------------------------------------------------------------------- */

/* The plain count: what is taken of a list, and how much is not. */
static uint32_t plain_count(const int32_t *entries, int32_t count, uint32_t capacity, int64_t least,
                            int64_t end, uint32_t *list, uint64_t *missed) {
    const int64_t n = count < 0 ? 0 : count > (int64_t)capacity ? (int64_t)capacity : count;
    uint32_t taken = 0;
    *missed += n != count;
    for (int64_t i = 0; i < n; i++)
        if (entries[i] >= least && entries[i] < end &&
            (!taken || entries[i] > (int64_t)list[taken - 1]))
            list[taken++] = (uint32_t)entries[i];
        else
            ++*missed;
    return taken;
}

/* Mostly numbers near what a lane holds. */
static int32_t any_entry(lists_world *l, uint32_t i, uint32_t n, bool hostile) {
    if (!hostile) return (int32_t)(i * n / MOST);
    switch (test_below(&l->random, 6)) {
    case 0:
        return (int32_t)test_random(&l->random);
    case 1:
        return (int32_t)test_below(&l->random, n + 4) - 2;
    default:
        return (int32_t)(i + test_below(&l->random, 5));
    }
}

static void fill_any(lists_world *l, const uint32_t *rows, uint32_t n, bool hostile,
                     host_lists *out) {
    const uint32_t size = out->unit == TAMIS_LIST_TOKENS ? 1 : 8;
    for (uint32_t i = 0; i < 2 * n; i++) {
        const row_of_step of = row_at(l, rows, i / 2);
        const uint32_t all = (of.visible + size - 1) / size, first = first_seen(l, of) / size;
        int32_t *to = out->entries + i * out->capacity, at = (int32_t)first - 1;
        out->count[i] = (int32_t)test_below(&l->random, out->capacity + 1);
        if (hostile && test_below(&l->random, 4) == 0)
            out->count[i] = (int32_t)test_random(&l->random);
        for (uint32_t j = 0; j < out->capacity; j++) {
            at += 1 + (int32_t)test_below(&l->random, 3);
            if (!hostile && at >= (int32_t)all && out->count[i] > (int32_t)j)
                out->count[i] = (int32_t)j;
            to[j] = hostile ? any_entry(l, j, all, true) : at;
        }
    }
}

/* A step whose lists are valid, or hold anything; both units where the plan takes them. */
static void any_step(lists_world *l, const lists_case *c, const uint32_t *rows, bool hostile,
                     tamis_list_unit unit, uint64_t *missed) {
    const uint32_t n = rows[0] + rows[1] + rows[2];
    const uint32_t size = unit == TAMIS_LIST_TOKENS ? 1 : 8;
    static layer_result r;
    begin(l, rows, 0);
    uint64_t *tokens = take_tokens(l, rows);
    for (uint32_t layer = 0; layer < 2; layer++) {
        host_lists lists = {.capacity = BUDGET / size - layer, .unit = unit};
        fill_any(l, rows, n, hostile, &lists);
        test_write(&l->w, layer, tokens, n);
        make_queries(l, n, r.q);
        const tamis_caller_lists given = give(l, &lists, layer);
        attend(l, layer, n, &given, &r);
        for (uint32_t i = 0; i < 2 * n; i++) {
            uint32_t wanted[MOST], got[MOST];
            const row_of_step of = row_at(l, rows, i / 2);
            const uint32_t taken = plain_count(lists.entries + i * lists.capacity, lists.count[i],
                                               lists.capacity, first_seen(l, of) / size,
                                               (of.visible + size - 1) / size, wanted, missed);
            assert_int_equal(read_list(l, i / 2, i % 2, got), taken);
            assert_memory_equal(got, wanted, taken * sizeof *got);
        }
        for (uint32_t row = 0; row < n; row++)
            check_row(l, layer, row_at(l, rows, row), row, unit, &r, c->sunk);
    }
    OK(tamis_plan_step_end(l->w.plan, &test_error));
    assert_int_equal(skipped(l), *missed);
}

static void run_any(const lists_case *c) {
    static const uint32_t steps[][SEQUENCES] = {{1, 1, 1}, {3, 1, 2}, {1, 5, 1}};
    lists_world l;
    uint64_t missed = 0;
    open_lists(&l, c);
    prefill(&l);
    const uint32_t builds = test_builds;
    for (uint32_t s = 0; s < 3; s++)
        for (int hostile = 0; hostile < 2; hostile++) {
            any_step(&l, c, steps[s], hostile, TAMIS_LIST_PAGES, &missed);
            assert_true(hostile || s > 0 || missed == 0);
            if (c->flags & TAMIS_PLAN_TOKEN_LISTS)
                any_step(&l, c, steps[s], hostile, TAMIS_LIST_TOKENS, &missed);
        }
    assert_true(missed > 0);
    assert_int_equal(test_builds, builds);
    close_lists(&l);
}

static void lists_of_anything_are_read_as_far_as_they_are_valid(void **state) {
    (void)state;
    const lists_case cases[] = {
        {.dtype = TAMIS_F32, .selection = caller(BUDGET)},
        {.dtype = TAMIS_F32, .selection = caller(BUDGET), .flags = TAMIS_PLAN_TOKEN_LISTS},
        {.dtype = TAMIS_F16,
         .selection = caller(BUDGET),
         .flags = TAMIS_PLAN_TOKEN_LISTS,
         .window = 51},
        {.dtype = TAMIS_BF16,
         .selection = caller(BUDGET),
         .flags = TAMIS_PLAN_TOKEN_LISTS,
         .sunk = true},
        {.dtype = TAMIS_Q4, .selection = caller(BUDGET), .window = 51},
        {.dtype = TAMIS_F16,
         .selection = caller(BUDGET),
         .flags = TAMIS_PLAN_TOKEN_LISTS,
         .eviction = TAMIS_EVICT_KNORM}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_any(&cases[i]);
}

/* ---- lse ------------------------------------------------------------------------------------- */

/* Two plans' halves of the pages, merged, are what all pages give. */
static void halves_merge_to_the_whole(void **state) {
    (void)state;
    static const uint32_t rows[SEQUENCES] = {2, 1, 1};
    const lists_case c = {.dtype = TAMIS_F16, .selection = caller(CONTEXT)};
    const uint32_t n = 4, width = n * 4 * DIM;
    static layer_result whole, halves[2], merged;
    lists_world l;
    tamis_buffer *outs, *lses;
    open_lists(&l, &c);
    prefill(&l);
    fill(&outs, l.w.context, NULL, 2ull * width * 4);
    fill(&lses, l.w.context, NULL, 2ull * n * 4 * 4);
    begin(&l, rows, 0);
    test_write(&l.w, 0, take_tokens(&l, rows), n);
    make_queries(&l, n, whole.q);
    for (int part = 0; part < 3; part++) { /* the last: all pages */
        host_lists lists = {.capacity = CONTEXT / 8};
        for (uint32_t i = 0; i < 2 * n; i++)
            for (uint32_t p = 0; p < CONTEXT / 8; p++)
                if (p * 8 < row_at(&l, rows, i / 2).visible &&
                    (part == 2 || p % 2 == (uint32_t)part))
                    lists.entries[i * lists.capacity + (uint32_t)lists.count[i]++] = (int32_t)p;
        const tamis_caller_lists given = give(&l, &lists, part);
        attend(&l, 0, n, &given, part == 2 ? &whole : &halves[part]);
        if (part == 2) break;
        OK(tamis_buffer_write(outs, part * width * 4ull, halves[part].out, width * 4ull,
                              &test_error));
        OK(tamis_buffer_write(lses, part * n * 16ull, halves[part].lse, n * 16ull, &test_error));
    }
    const tamis_merge_params merge = {.outs.buffer = outs,
                                      .lses.buffer = lses,
                                      .out.buffer = l.w.out,
                                      .lse.buffer = l.lse,
                                      .n_parts = 2,
                                      .n = n * 4,
                                      .dim = DIM};
    OK(tamis_op_merge(l.w.context, &merge, &test_error));
    OK(tamis_buffer_read(l.w.out, 0, merged.out, width * 4ull, &test_error));
    OK(tamis_buffer_read(l.lse, 0, merged.lse, n * 16ull, &test_error));
    for (uint32_t i = 0; i < width; i++)
        assert_true(fabsf(merged.out[i] - whole.out[i]) <= 1e-4f);
    for (uint32_t i = 0; i < n * 4; i++)
        assert_true(fabsf(merged.lse[i] - whole.lse[i]) <= 1e-4f);
    OK(tamis_plan_step_cancel(l.w.plan, &test_error));
    tamis_buffer_destroy(&outs);
    tamis_buffer_destroy(&lses);
    close_lists(&l);
}

static void make_table(lists_world *l, tamis_buffer **table) {
    double frequencies[DIM / 2];
    for (uint32_t i = 0; i < DIM / 2; i++)
        frequencies[i] = pow(10000, -2.0 * i / DIM);
    OK(tamis_buffer_create(l->w.context, tamis_rotation_bytes(DIM), table, &test_error));
    const tamis_rotation rotation = {.n_rot = DIM, .table.buffer = *table};
    OK(tamis_rotation_write(&rotation, frequencies, &test_error));
}

static void turn(lists_world *l, tamis_buffer **table) {
    make_table(l, table);
    const tamis_rotation rotation = {.n_rot = DIM, .table.buffer = *table};
    OK(tamis_plan_bind_rotation(l->w.plan, &rotation, &test_error));
}

/* Under every way to attend lse is that of the formula: prompts in tiles, decode rows, fused or not, with
 * weights that an eviction takes, with sinks moved nearer. */
static void lse_is_that_of_the_formula(void **state) {
    (void)state;
    const tamis_selection quest = {.kind = TAMIS_SELECT_QUEST, .budget = BUDGET, .recent = 1};
    const lists_case cases[] = {
        {.dtype = TAMIS_F32},
        {.dtype = TAMIS_F16, .sunk = true, .window = 40},
        {.dtype = TAMIS_F16, .selection = quest},
        {.dtype = TAMIS_BF16, .selection = quest, .sunk = true},
        {.dtype = TAMIS_F16, .eviction = TAMIS_EVICT_H2O},
        {.dtype = TAMIS_F16, .eviction = TAMIS_EVICT_TOVA, .sunk = true},
        {.dtype = TAMIS_F16, .eviction = TAMIS_EVICT_STREAMING},
        {.dtype = TAMIS_F16, .eviction = TAMIS_EVICT_STREAMING, .sunk = true}};
    static layer_result r;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lists_world l;
        tamis_buffer *table = NULL;
        open_lists(&l, &cases[i]);
        if (cases[i].eviction == TAMIS_EVICT_STREAMING) turn(&l, &table);
        for (uint32_t s = 0; s < 5; s++) { /* 3 prompts' chunks, 2 decode steps */
            uint32_t rows[SEQUENCES] = {s < 3 ? 30u : 1u, s < 3 ? 9u : 1u, s < 3 ? 17u : 1u};
            const uint32_t n = rows[0] + rows[1] + rows[2];
            const tamis_step step = {
                .sequences = l.ids, .rows = rows, .count = SEQUENCES, .exact = s < 3};
            OK(tamis_plan_step_begin(l.w.plan, &step, &test_error));
            uint64_t *tokens = take_tokens(&l, rows);
            for (uint32_t layer = 0; layer < 2; layer++) {
                test_write(&l.w, layer, tokens, n);
                make_queries(&l, n, r.q);
                attend(&l, layer, n, NULL, &r);
                for (uint32_t row = 0; row < n; row += 1 + row % 7)
                    check_row(&l, layer, row_at(&l, rows, row), row, TAMIS_LIST_PAGES, &r,
                              cases[i].sunk);
            }
            OK(tamis_plan_step_end(l.w.plan, &test_error));
        }
        tamis_buffer_destroy(&table); /* the plan holds it */
        close_lists(&l);
    }
}

/* ---- Rows of half precision ------------------------------------------------------------------ */

static void convert(lists_world *l, tamis_buffer *from, tamis_dtype from_dtype, tamis_buffer *to,
                    tamis_dtype to_dtype, uint32_t n) {
    const tamis_convert_params p = {.x = {.buffer = from, .dtype = from_dtype},
                                    .y = {.buffer = to, .dtype = to_dtype},
                                    .n_rows = n,
                                    .width = 4 * DIM};
    OK(tamis_op_convert(l->w.context, &p, &test_error));
}

/* With q and out of any dtypes the bits are those of f32 rows, q widened before and out rounded behind;
 * rows may lie apart. */
static void half_rows_are_converted_on_their_way(void **state) {
    (void)state;
    static const uint32_t rows[SEQUENCES] = {2, 1, 30};
    const lists_case c = {.dtype = TAMIS_F16,
                          .selection = {.kind = TAMIS_SELECT_QUEST, .budget = BUDGET, .recent = 1},
                          .flags = TAMIS_PLAN_HALF_ROWS};
    const uint32_t n = 33, stride = 4 * DIM + 3;
    const uint64_t bytes = (uint64_t)n * 4 * DIM * 4;
    static layer_result r;
    static uint16_t wanted[33 * 4 * DIM], got[33 * (4 * DIM + 3)];
    lists_world l;
    tamis_buffer *half, *out;
    open_lists(&l, &c);
    prefill(&l);
    fill(&half, l.w.context, NULL, bytes);
    fill(&out, l.w.context, NULL, 2 * bytes);
    for (int pair = 0; pair < 9; pair++) {
        const tamis_dtype from = (tamis_dtype)(pair / 3), to = (tamis_dtype)(pair % 3);
        const size_t size = tamis_dtype_size(to);
        begin(&l, rows, 2);
        test_write(&l.w, 0, take_tokens(&l, rows), n);
        make_queries(&l, n, r.q);
        convert(&l, l.w.q, TAMIS_F32, half, from, n);
        convert(&l, half, from, l.w.q, TAMIS_F32, n);
        attend(&l, 0, n, NULL, &r);
        const tamis_plan_attend_params p = {
            .q = {.buffer = half, .dtype = from},
            .out = {.buffer = out, .dtype = to, .row_stride = stride, .offset = 128}};
        const uint32_t builds = test_builds;
        OK(tamis_plan_attend_with(l.w.plan, 0, &p, &test_error));
        assert_int_equal(test_builds, builds);
        convert(&l, l.w.out, TAMIS_F32, half, to, n);
        for (uint32_t row = 0; row < n; row++) {
            OK(tamis_buffer_read(half, row * 4ull * DIM * size, wanted, 4 * DIM * size,
                                 &test_error));
            OK(tamis_buffer_read(out, 128 + row * (uint64_t)stride * size, got, 4 * DIM * size,
                                 &test_error));
            assert_memory_equal(got, wanted, 4 * DIM * size);
        }
        OK(tamis_plan_step_cancel(l.w.plan, &test_error));
        for (uint32_t i = 0; i < SEQUENCES; i++)
            l.length[i] -= rows[i];
    }
    tamis_buffer_destroy(&half);
    tamis_buffer_destroy(&out);
    close_lists(&l);
}

/* The same where one call writes and attends, in one launch where the device has it. */
static void write_attend_rounds_out(void **state) {
    (void)state;
    static const uint32_t rows[SEQUENCES] = {1, 1, 1};
    const lists_case c = {.dtype = TAMIS_F16, .flags = TAMIS_PLAN_HALF_ROWS | TAMIS_PLAN_ROTATED};
    static layer_result r;
    int32_t positions[SEQUENCES];
    uint16_t wanted[3 * 4 * DIM], got[3 * 4 * DIM];
    lists_world l;
    tamis_buffer *table, *at, *half;
    open_lists(&l, &c);
    for (int32_t i = 0; i < SEQUENCES; i++)
        positions[i] = 100 * i;
    make_table(&l, &table);
    fill(&at, l.w.context, positions, sizeof positions);
    fill(&half, l.w.context, NULL, sizeof wanted);
    for (int b = 0; b < 3; b++) { /* f32, f16, bf16 */
        const tamis_dtype to = (tamis_dtype)b;
        const uint64_t tokens[3] = {900, 901, 902};
        const tamis_rows out = {.buffer = b ? half : l.w.out, .dtype = to};
        const tamis_rotated_rows rotated = {.q.buffer = l.w.q,
                                            .k.buffer = l.w.k,
                                            .v.buffer = l.w.v,
                                            .rotation = {.n_rot = DIM, .table.buffer = table},
                                            .positions.buffer = at};
        begin(&l, rows, 0);
        if (b == 0) make_queries(&l, 3, r.q);
        OK(tamis_buffer_write(l.w.q, 0, r.q, 3 * 4 * DIM * 4, &test_error));
        test_fill_kv(&l.w, 0, tokens, 3);
        OK(tamis_plan_write_attend(l.w.plan, 0, &rotated, &out, &test_error));
        if (b) {
            OK(tamis_buffer_read(half, 0, got, sizeof got, &test_error));
            convert(&l, l.w.out, TAMIS_F32, half, to, 3);
            OK(tamis_buffer_read(half, 0, wanted, sizeof wanted, &test_error));
            assert_memory_equal(got, wanted, sizeof got);
        }
        OK(tamis_plan_step_cancel(l.w.plan, &test_error));
    }
    tamis_buffer *buffers[] = {table, at, half};
    for (size_t i = 0; i < 3; i++)
        tamis_buffer_destroy(&buffers[i]);
    close_lists(&l);
}

/* ---- Fixed launches -------------------------------------------------------------------------- */

/* A recorded graph takes what lists hold when it is launched. */
static void fixed_launches_take_lists_of_the_device(void **state) {
    (void)state;
    static const uint32_t rows[SEQUENCES] = {1, 1, 1};
    static layer_result r[2];
    lists_world l[2];
    for (int fixed = 0; fixed < 2; fixed++) {
        const lists_case c = {.dtype = TAMIS_F16,
                              .selection = caller(BUDGET),
                              .flags = TAMIS_PLAN_TOKEN_LISTS |
                                       (fixed ? (uint32_t)TAMIS_PLAN_FIXED_LAUNCHES : 0)};
        open_lists(&l[fixed], &c);
        prefill(&l[fixed]);
    }
    const bool graphs = strcmp(tamis_context_device(l[1].w.context)->backend, "cuda") == 0;
    for (int unit = 0; unit < 2; unit++) {
        tamis_graph *graph = NULL;
        for (uint32_t s = 0; s < 3; s++) {
            host_lists lists = {.capacity = 6, .unit = (tamis_list_unit)unit};
            uint64_t *tokens = NULL;
            for (int fixed = 0; fixed < 2; fixed++) {
                lists_world *w = &l[fixed];
                begin(w, rows, 0);
                tokens = take_tokens(w, rows);
                if (!fixed) fill_any(w, rows, 3, true, &lists);
                const tamis_caller_lists given = give(w, &lists, false);
                const tamis_plan_attend_params p = {.q.buffer = w->w.q,
                                                    .out.buffer = w->w.out,
                                                    .lse.buffer = w->lse,
                                                    .lists = &given};
                const bool replays = fixed && graph;
                if (fixed && s == 0) {
                    const tamis_caller_lists on_host = give(w, &lists, true);
                    tamis_plan_attend_params q = p;
                    q.lists = &on_host;
                    test_write(&w->w, 0, tokens, 3);
                    FAILS(tamis_plan_attend_with(w->w.plan, 0, &q, &test_error),
                          TAMIS_E_UNSUPPORTED,
                          "lists of the host in a step with TAMIS_PLAN_FIXED_LAUNCHES");
                    OK(tamis_plan_step_cancel(w->w.plan, &test_error));
                    begin(w, rows, 0);
                }
                if (!fixed) make_queries(w, 3, r[0].q);
                OK(tamis_buffer_write(w->w.q, 0, r[0].q, 3 * 4 * DIM * 4, &test_error));
                test_fill_kv(&w->w, 0, tokens, 3);
                const tamis_rows k = {.buffer = w->w.k}, v = {.buffer = w->w.v};
                if (fixed && graphs && !graph && s > 0)
                    OK(tamis_graph_begin(w->w.context, &test_error));
                for (uint32_t layer = 0; layer < 2 && !replays; layer++) {
                    OK(tamis_plan_write(w->w.plan, layer, &k, &v, &test_error));
                    OK(tamis_plan_attend_with(w->w.plan, layer, &p, &test_error));
                }
                if (fixed && graphs && !graph && s > 0) {
                    OK(tamis_graph_end(w->w.context, &graph, &test_error));
                    OK(tamis_graph_launch(graph, &test_error));
                } else if (replays) {
                    OK(tamis_plan_step_mark_replayed(w->w.plan, &test_error));
                    OK(tamis_graph_launch(graph, &test_error));
                }
                OK(tamis_plan_step_end(w->w.plan, &test_error));
                OK(tamis_buffer_read(w->w.out, 0, r[fixed].out, 3 * 4 * DIM * 4, &test_error));
                OK(tamis_buffer_read(w->lse, 0, r[fixed].lse, 3 * 4 * 4, &test_error));
            }
            assert_memory_equal(r[0].out, r[1].out, 3 * 4 * DIM * 4);
            assert_memory_equal(r[0].lse, r[1].lse, 3 * 4 * 4);
            assert_int_equal(skipped(&l[0]), skipped(&l[1]));
        }
        assert_true(!graphs || graph);
        tamis_graph_destroy(&graph);
    }
    close_lists(&l[0]);
    close_lists(&l[1]);
}

/* ---- What is refused ------------------------------------------------------------------------- */

static void plan_fails(lists_world *l, const tamis_plan_params *params, tamis_status status,
                       const char *part) {
    tamis_plan *plan = NULL;
    FAILS(tamis_plan_create(l->w.cache, params, &plan, &test_error), status, part);
    assert_null(plan);
}

static void plans_are_refused_by_name(void **state) {
    (void)state;
    lists_case c = {.dtype = TAMIS_Q8, .selection = caller(BUDGET)};
    lists_world l;
    open_lists(&l, &c);
    tamis_plan_params p = plan_of(&c);
    p.flags = TAMIS_PLAN_TOKEN_LISTS;
    plan_fails(&l, &p, TAMIS_E_UNSUPPORTED, "TAMIS_PLAN_TOKEN_LISTS in a cache of q8");
    p.selection = (tamis_selection){.kind = TAMIS_SELECT_FULL};
    plan_fails(&l, &p, TAMIS_E_ARGUMENT, "TAMIS_PLAN_TOKEN_LISTS under selection full");
    p = plan_of(&c);
    p.selection.budget = 7;
    plan_fails(&l, &p, TAMIS_E_ARGUMENT, "budget 7 of selection caller is less than a page of 8");
    p.selection = caller(BUDGET);
    p.selection.recent = 3;
    plan_fails(&l, &p, TAMIS_E_ARGUMENT, "sinks 0 and recent 3 under selection caller");
    close_lists(&l);
    c.dtype = TAMIS_F16;
    c.eviction = TAMIS_EVICT_H2O;
    open_lists(&l, &c);
    p = plan_of(&c);
    p.flags = TAMIS_PLAN_TOKEN_LISTS;
    plan_fails(&l, &p, TAMIS_E_UNSUPPORTED, "TAMIS_PLAN_TOKEN_LISTS under eviction h2o");
    p.flags = TAMIS_PLAN_VERIFY;
    plan_fails(&l, &p, TAMIS_E_UNSUPPORTED, "TAMIS_PLAN_VERIFY under selection caller");
    close_lists(&l);
}

/* The call with one field changed is refused; then the sound one is not. */
#define REFUSED(status, text, change)                                                              \
    do {                                                                                           \
        tamis_caller_lists lists = sound;                                                          \
        tamis_plan_attend_params p = {                                                             \
            .q.buffer = l.w.q, .out.buffer = l.w.out, .lse.buffer = l.lse, .lists = &lists};       \
        change;                                                                                    \
        FAILS(tamis_plan_attend_with(l.w.plan, 0, &p, &test_error), status, text);                 \
    } while (0)

static void calls_are_refused_by_name(void **state) {
    (void)state;
    static const uint32_t rows[SEQUENCES] = {1, 1, 1};
    const lists_case c = {.dtype = TAMIS_F32, .selection = caller(BUDGET)};
    static host_lists lists_of = {.capacity = 6};
    lists_world l, quest;
    open_lists(&l, &c);
    prefill(&l);
    begin(&l, rows, 0);
    test_write(&l.w, 0, take_tokens(&l, rows), 3);
    const tamis_caller_lists sound = give(&l, &lists_of, false);
    REFUSED(TAMIS_E_ARGUMENT, "layer 0: 3 rows read lists under selection caller", p.lists = NULL);
    REFUSED(TAMIS_E_ARGUMENT, "reserved[1] of tamis_plan_attend_params is 4", p.reserved[1] = 4);
    REFUSED(TAMIS_E_ARGUMENT, "reserved[2] of tamis_caller_lists is 4", lists.reserved[2] = 4);
    REFUSED(TAMIS_E_ARGUMENT, "lists of 7 entries of 8 tokens: from 1 to the budget 48",
            lists.capacity = 7);
    REFUSED(TAMIS_E_ARGUMENT, "lists of 0 entries of 8 tokens", lists.capacity = 0);
    REFUSED(TAMIS_E_ARGUMENT, "unit of lists is 2", lists.unit = (tamis_list_unit)2);
    REFUSED(TAMIS_E_ARGUMENT, "lists of tokens in a plan without TAMIS_PLAN_TOKEN_LISTS",
            lists.unit = TAMIS_LIST_TOKENS);
    REFUSED(TAMIS_E_ARGUMENT, "there are host_entries, no host_count, entries and count",
            lists.host_entries = lists_of.entries);
    REFUSED(TAMIS_E_ARGUMENT, "entries of lists: 144 bytes from byte 16380",
            lists.entries.offset = 16380);
    REFUSED(TAMIS_E_ARGUMENT, "counts of lists: 24 bytes from byte 60", lists.count.offset = 60);
    REFUSED(TAMIS_E_ARGUMENT, "lse: 48 bytes from byte 1000", p.lse.offset = 1000);
    REFUSED(TAMIS_E_ARGUMENT, "q and lse overlap", p.lse.buffer = l.w.q);
    REFUSED(TAMIS_E_ARGUMENT, "out and lse overlap", p.lse.buffer = l.w.out);
    REFUSED(TAMIS_E_ARGUMENT, "q is f16; in a plan without TAMIS_PLAN_HALF_ROWS it must be f32",
            p.q.dtype = TAMIS_F16);
    REFUSED(TAMIS_E_ARGUMENT, "out is bf16; in a plan without TAMIS_PLAN_HALF_ROWS",
            p.out.dtype = TAMIS_BF16);
    const tamis_rows q = {.buffer = l.w.q}, out = {.buffer = l.w.out};
    FAILS(tamis_plan_attend(l.w.plan, 0, &q, &out, &test_error), TAMIS_E_ARGUMENT,
          "none were given (tamis_plan_attend_with)");
    FAILS(tamis_plan_attend_with(l.w.plan, 0, NULL, &test_error), TAMIS_E_ARGUMENT,
          "params is NULL");
    FAILS(tamis_plan_read_skipped(l.w.plan, NULL, &test_error), TAMIS_E_ARGUMENT, "count is NULL");
    static layer_result r;
    make_queries(&l, 3, r.q);
    attend(&l, 0, 3, &sound, &r);
    close_lists(&l);
    lists_case other = c;
    other.selection = (tamis_selection){.kind = TAMIS_SELECT_QUEST, .budget = BUDGET};
    open_lists(&quest, &other);
    prefill(&quest);
    begin(&quest, rows, 0);
    test_write(&quest.w, 0, take_tokens(&quest, rows), 3);
    const tamis_caller_lists lists = give(&quest, &lists_of, true);
    const tamis_plan_attend_params p = {
        .q.buffer = quest.w.q, .out.buffer = quest.w.out, .lists = &lists};
    uint64_t n;
    FAILS(tamis_plan_attend_with(quest.w.plan, 0, &p, &test_error), TAMIS_E_ARGUMENT,
          "lists under selection quest");
    FAILS(tamis_plan_read_skipped(quest.w.plan, &n, &test_error), TAMIS_E_STATE,
          "selection quest makes its lists itself");
    close_lists(&quest);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quests_lists_give_quests_bits),
        cmocka_unit_test(rows_of_trees_read_their_lists),
        cmocka_unit_test(lists_of_anything_are_read_as_far_as_they_are_valid),
        cmocka_unit_test(halves_merge_to_the_whole),
        cmocka_unit_test(lse_is_that_of_the_formula),
        cmocka_unit_test(half_rows_are_converted_on_their_way),
        cmocka_unit_test(write_attend_rounds_out),
        cmocka_unit_test(fixed_launches_take_lists_of_the_device),
        cmocka_unit_test(plans_are_refused_by_name),
        cmocka_unit_test(calls_are_refused_by_name),
    };
    const int unusable = test_begin(argc, argv);
    return unusable ? unusable : cmocka_run_group_tests(tests, NULL, NULL);
}
