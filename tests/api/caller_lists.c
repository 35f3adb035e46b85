/* SPDX-License-Identifier: Apache-2.0 */
/* Selection caller: the lists that quest has made give quest's bits; lists of tokens are read as in the
 * formula in fp64; of lists that hold anything the valid entries are read and the others counted, as a plain
 * count does. What is refused. */
#include "tests/api/lists.h"

#include <string.h>

/* ---- Quest's lists --------------------------------------------------------------------------- */

/* The lists that were read for the first n rows. */
static void read_lists(lists_world *l, uint32_t n, host_lists *out) {
    for (uint32_t i = 0; i < n * 2; i++)
        out->count[i] =
            (int32_t)lists_read(l, i / 2, i % 2, (uint32_t *)out->entries + i * out->capacity);
}

/* The same rows and queries in both worlds; the last sequences of a mixed step are exact. */
static void same_step(lists_world *a, lists_world *b, const uint32_t *rows, uint32_t exact_from,
                      bool on_host) {
    const uint32_t n = rows[0] + rows[1] + rows[2];
    const uint32_t selected = exact_from ? rows[0] + (exact_from > 1 ? rows[1] : 0) : n;
    static layer_result of_a, of_b;
    host_lists lists = {.capacity = BUDGET / 8};
    lists_begin(a, rows, exact_from);
    lists_begin(b, rows, exact_from);
    uint64_t *tokens = lists_tokens(a, rows);
    for (uint32_t layer = 0; layer < 2; layer++) {
        test_write(&a->w, layer, tokens, n);
        test_write(&b->w, layer, tokens, n);
        lists_queries(a, n, of_a.q);
        OK(tamis_buffer_write(b->w.q, 0, of_a.q, n * 4ull * DIM * sizeof(float), &test_error));
        lists_attend(a, layer, n, NULL, &of_a);
        read_lists(a, selected, &lists);
        const tamis_caller_lists given = lists_give(b, &lists, on_host);
        lists_attend(b, layer, n, &given, &of_b);
        assert_memory_equal(of_a.out, of_b.out, n * 4ull * DIM * sizeof(float));
        assert_memory_equal(of_a.lse, of_b.lse, n * 4ull * sizeof(float));
        for (uint32_t i = 0; i < 2 * selected; i++) {
            uint32_t list[MOST];
            assert_int_equal(lists_read(b, i / 2, i % 2, list), lists.count[i]);
            assert_memory_equal(list, lists.entries + i * lists.capacity, lists.count[i] * 4ull);
        }
    }
    if (a->parents) { /* nothing stays */
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
        own.selection = lists_selection(BUDGET);
        own.flags = 0;
        lists_world a, b;
        lists_open(&a, &quest);
        lists_open(&b, &own);
        lists_prefill(&a);
        lists_prefill(&b);
        const uint32_t builds = test_builds;
        for (uint32_t s = 0; s < 4; s++)
            same_step(&a, &b, steps[s], exact_from[s], s % 2);
        assert_int_equal(test_builds, builds);
        assert_int_equal(lists_skipped(&b), 0);
        tamis_plan_counters c;
        tamis_plan_get_counters(b.w.plan, &c);
        assert_true(c.rows_short == 0 && c.rows_full == 0 && c.rows_fused == 0);
        assert_int_equal(c.rows_selected, 2 * (3 + 6 + 3 + 1));
        assert_int_equal(c.rows_exact, 2 * (20 + 49));
        lists_close(&a);
        lists_close(&b);
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
    own.selection = lists_selection(BUDGET);
    lists_world a, b;
    lists_open(&a, &quest);
    lists_open(&b, &own);
    lists_prefill(&a);
    lists_prefill(&b);
    a.parents = b.parents = tree;
    same_step(&a, &b, rows, 0, false);
    assert_int_equal(lists_skipped(&b), 0);
    lists_close(&a);
    lists_close(&b);
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
        const row_of_step of = lists_row(l, rows, i / 2);
        const uint32_t all = (of.visible + size - 1) / size, first = lists_first(l, of) / size;
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
    lists_begin(l, rows, 0);
    uint64_t *tokens = lists_tokens(l, rows);
    for (uint32_t layer = 0; layer < 2; layer++) {
        host_lists lists = {.capacity = BUDGET / size - layer, .unit = unit};
        fill_any(l, rows, n, hostile, &lists);
        test_write(&l->w, layer, tokens, n);
        lists_queries(l, n, r.q);
        const tamis_caller_lists given = lists_give(l, &lists, layer);
        lists_attend(l, layer, n, &given, &r);
        for (uint32_t i = 0; i < 2 * n; i++) {
            uint32_t wanted[MOST], got[MOST];
            const row_of_step of = lists_row(l, rows, i / 2);
            const uint32_t taken = plain_count(lists.entries + i * lists.capacity, lists.count[i],
                                               lists.capacity, lists_first(l, of) / size,
                                               (of.visible + size - 1) / size, wanted, missed);
            assert_int_equal(lists_read(l, i / 2, i % 2, got), taken);
            assert_memory_equal(got, wanted, taken * sizeof *got);
        }
        for (uint32_t row = 0; row < n; row++)
            lists_check_row(l, layer, lists_row(l, rows, row), row, unit, &r, c->sunk);
    }
    OK(tamis_plan_step_end(l->w.plan, &test_error));
    assert_int_equal(lists_skipped(l), *missed);
}

static void run_any(const lists_case *c) {
    static const uint32_t steps[][SEQUENCES] = {{1, 1, 1}, {3, 1, 2}, {1, 5, 1}};
    lists_world l;
    uint64_t missed = 0;
    lists_open(&l, c);
    lists_prefill(&l);
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
    lists_close(&l);
}

static void lists_of_anything_are_read_as_far_as_they_are_valid(void **state) {
    (void)state;
    const lists_case cases[] = {
        {.dtype = TAMIS_F32, .selection = lists_selection(BUDGET)},
        {.dtype = TAMIS_F32, .selection = lists_selection(BUDGET), .flags = TAMIS_PLAN_TOKEN_LISTS},
        {.dtype = TAMIS_F16,
         .selection = lists_selection(BUDGET),
         .flags = TAMIS_PLAN_TOKEN_LISTS,
         .window = 51},
        {.dtype = TAMIS_BF16,
         .selection = lists_selection(BUDGET),
         .flags = TAMIS_PLAN_TOKEN_LISTS,
         .sunk = true},
        {.dtype = TAMIS_Q4, .selection = lists_selection(BUDGET), .window = 51},
        {.dtype = TAMIS_F16,
         .selection = lists_selection(BUDGET),
         .flags = TAMIS_PLAN_TOKEN_LISTS,
         .eviction = TAMIS_EVICT_KNORM}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_any(&cases[i]);
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
                              .selection = lists_selection(BUDGET),
                              .flags = TAMIS_PLAN_TOKEN_LISTS |
                                       (fixed ? (uint32_t)TAMIS_PLAN_FIXED_LAUNCHES : 0)};
        lists_open(&l[fixed], &c);
        lists_prefill(&l[fixed]);
    }
    const bool graphs = strcmp(tamis_context_device(l[1].w.context)->backend, "cuda") == 0;
    for (int unit = 0; unit < 2; unit++) {
        tamis_graph *graph = NULL;
        for (uint32_t s = 0; s < 3; s++) {
            host_lists lists = {.capacity = 6, .unit = (tamis_list_unit)unit};
            uint64_t *tokens = NULL;
            for (int fixed = 0; fixed < 2; fixed++) {
                lists_world *w = &l[fixed];
                lists_begin(w, rows, 0);
                tokens = lists_tokens(w, rows);
                if (!fixed) fill_any(w, rows, 3, true, &lists);
                const tamis_caller_lists given = lists_give(w, &lists, false);
                const tamis_plan_attend_params p = {.q.buffer = w->w.q,
                                                    .out.buffer = w->w.out,
                                                    .lse.buffer = w->lse,
                                                    .lists = &given};
                const bool replays = fixed && graph;
                if (fixed && s == 0) {
                    const tamis_caller_lists on_host = lists_give(w, &lists, true);
                    tamis_plan_attend_params q = p;
                    q.lists = &on_host;
                    test_write(&w->w, 0, tokens, 3);
                    FAILS(tamis_plan_attend_with(w->w.plan, 0, &q, &test_error),
                          TAMIS_E_UNSUPPORTED,
                          "lists of the host in a step with TAMIS_PLAN_FIXED_LAUNCHES");
                    OK(tamis_plan_step_cancel(w->w.plan, &test_error));
                    lists_begin(w, rows, 0);
                }
                if (!fixed) lists_queries(w, 3, r[0].q);
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
            assert_int_equal(lists_skipped(&l[0]), lists_skipped(&l[1]));
        }
        assert_true(!graphs || graph);
        tamis_graph_destroy(&graph);
    }
    lists_close(&l[0]);
    lists_close(&l[1]);
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
    lists_case c = {.dtype = TAMIS_Q8, .selection = lists_selection(BUDGET)};
    lists_world l;
    lists_open(&l, &c);
    tamis_plan_params p = lists_plan(&c);
    p.flags = TAMIS_PLAN_TOKEN_LISTS;
    plan_fails(&l, &p, TAMIS_E_UNSUPPORTED, "TAMIS_PLAN_TOKEN_LISTS in a cache of q8");
    p.selection = (tamis_selection){.kind = TAMIS_SELECT_FULL};
    plan_fails(&l, &p, TAMIS_E_ARGUMENT, "TAMIS_PLAN_TOKEN_LISTS under selection full");
    p = lists_plan(&c);
    p.selection.budget = 7;
    plan_fails(&l, &p, TAMIS_E_ARGUMENT, "budget 7 of selection caller is less than a page of 8");
    p.selection = lists_selection(BUDGET);
    p.selection.recent = 3;
    plan_fails(&l, &p, TAMIS_E_ARGUMENT, "sinks 0 and recent 3 under selection caller");
    lists_close(&l);
    c.dtype = TAMIS_F16;
    c.eviction = TAMIS_EVICT_H2O;
    lists_open(&l, &c);
    p = lists_plan(&c);
    p.flags = TAMIS_PLAN_TOKEN_LISTS;
    plan_fails(&l, &p, TAMIS_E_UNSUPPORTED, "TAMIS_PLAN_TOKEN_LISTS under eviction h2o");
    p.flags = TAMIS_PLAN_VERIFY;
    plan_fails(&l, &p, TAMIS_E_UNSUPPORTED, "TAMIS_PLAN_VERIFY under selection caller");
    lists_close(&l);
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
    const lists_case c = {.dtype = TAMIS_F32, .selection = lists_selection(BUDGET)};
    static host_lists lists_of = {.capacity = 6};
    lists_world l, quest;
    lists_open(&l, &c);
    lists_prefill(&l);
    lists_begin(&l, rows, 0);
    test_write(&l.w, 0, lists_tokens(&l, rows), 3);
    const tamis_caller_lists sound = lists_give(&l, &lists_of, false);
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
    lists_queries(&l, 3, r.q);
    lists_attend(&l, 0, 3, &sound, &r);
    lists_close(&l);
    lists_case other = c;
    other.selection = (tamis_selection){.kind = TAMIS_SELECT_QUEST, .budget = BUDGET};
    lists_open(&quest, &other);
    lists_prefill(&quest);
    lists_begin(&quest, rows, 0);
    test_write(&quest.w, 0, lists_tokens(&quest, rows), 3);
    const tamis_caller_lists lists = lists_give(&quest, &lists_of, true);
    const tamis_plan_attend_params p = {
        .q.buffer = quest.w.q, .out.buffer = quest.w.out, .lists = &lists};
    uint64_t n;
    FAILS(tamis_plan_attend_with(quest.w.plan, 0, &p, &test_error), TAMIS_E_ARGUMENT,
          "lists under selection quest");
    FAILS(tamis_plan_read_skipped(quest.w.plan, &n, &test_error), TAMIS_E_STATE,
          "selection quest makes its lists itself");
    lists_close(&quest);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quests_lists_give_quests_bits),
        cmocka_unit_test(rows_of_trees_read_their_lists),
        cmocka_unit_test(lists_of_anything_are_read_as_far_as_they_are_valid),
        cmocka_unit_test(fixed_launches_take_lists_of_the_device),
        cmocka_unit_test(plans_are_refused_by_name),
        cmocka_unit_test(calls_are_refused_by_name),
    };
    const int unusable = test_begin(argc, argv);
    return unusable ? unusable : cmocka_run_group_tests(tests, NULL, NULL);
}
