/* SPDX-License-Identifier: Apache-2.0 */
/* Mixed steps beside single ones: prompts' chunks, decode rows, rows to be verified and trees of several
 * sequences in one step give the same outputs, lists and lanes as each sequence, and each path of a
 * tree, in steps of its own. */
#include "tests/api/evicting.h"

#include <stdlib.h>
#include <string.h>

#define LIVE        5u
#define CONTEXT     160u
#define CHUNK       20u
#define VERIFIED    3u /* most rows of a sequence that go through the selection */
#define TREE        7u /* most rows of a tree; all paths together have fewer than a chunk */
#define MAX_ROWS    (LIVE * CHUNK)
#define BETWEEN     (1u << 31) /* no option: evictions come between steps alone */
#define FIRST_TOKEN 1000u /* of a sequence, times its number */

/* What a plan does with its rows. */
typedef struct setting {
    const char *name;
    tamis_selection_kind selection;
    tamis_eviction_kind eviction;
    uint32_t options;
    /* Layer 0 has a sliding window, layer 1 chunks; without an eviction pages are given back. */
    bool windows;
    bool verifies; /* several rows of a sequence go through the selection */
    bool trees;    /* which may be trees */
    tamis_dtype dtype;
} setting;

static const setting settings[] = {
    {"full", TAMIS_SELECT_FULL, TAMIS_EVICT_NONE, 0, false, true, false, TAMIS_F32},
    {"quest", TAMIS_SELECT_QUEST, TAMIS_EVICT_NONE, 0, false, true, false, TAMIS_F16},
    {"quest, windows", TAMIS_SELECT_QUEST, TAMIS_EVICT_NONE, 0, true, true, false, TAMIS_F32},
    {"oracle", TAMIS_SELECT_ORACLE, TAMIS_EVICT_NONE, 0, false, true, false, TAMIS_F32},
    {"random", TAMIS_SELECT_RANDOM, TAMIS_EVICT_NONE, 0, false, true, false, TAMIS_Q8},
    {"quest, snapkv", TAMIS_SELECT_QUEST, TAMIS_EVICT_SNAPKV, 0, false, true, false, TAMIS_F32},
    {"full, h2o", TAMIS_SELECT_FULL, TAMIS_EVICT_H2O, 0, false, false, false, TAMIS_F32},
    {"quest, h2o", TAMIS_SELECT_QUEST, TAMIS_EVICT_H2O, 0, false, false, false, TAMIS_F16},
    {"quest, tova", TAMIS_SELECT_QUEST, TAMIS_EVICT_TOVA, 0, false, false, false, TAMIS_F32},
    {"window, knorm", TAMIS_SELECT_WINDOW, TAMIS_EVICT_KNORM, 0, false, false, false, TAMIS_F32},
    {"quest, streaming", TAMIS_SELECT_QUEST, TAMIS_EVICT_STREAMING, 0, false, false, false,
     TAMIS_Q8},
    {"reindexed streaming", TAMIS_SELECT_FULL, TAMIS_EVICT_STREAMING, TAMIS_EVICT_REINDEX, false,
     false, false, TAMIS_F32},
    {"full, trees", TAMIS_SELECT_FULL, TAMIS_EVICT_NONE, 0, false, true, true, TAMIS_F16},
    {"quest, trees", TAMIS_SELECT_QUEST, TAMIS_EVICT_NONE, 0, false, true, true, TAMIS_Q8},
    {"quest, windows, trees", TAMIS_SELECT_QUEST, TAMIS_EVICT_NONE, 0, true, true, true, TAMIS_F32},
    {"random, trees", TAMIS_SELECT_RANDOM, TAMIS_EVICT_NONE, 0, false, true, true, TAMIS_K8V4},
    {"oracle, snapkv, trees", TAMIS_SELECT_ORACLE, TAMIS_EVICT_SNAPKV, 0, false, true, true,
     TAMIS_F32},
    {"full, h2o, verified", TAMIS_SELECT_FULL, TAMIS_EVICT_H2O, 0, false, true, false, TAMIS_F32},
    {"quest, h2o, verified", TAMIS_SELECT_QUEST, TAMIS_EVICT_H2O, TAMIS_EVICT_LIFETIME, false, true,
     false, TAMIS_F16},
    {"h2o between, verified", TAMIS_SELECT_FULL, TAMIS_EVICT_H2O, BETWEEN, false, true, false,
     TAMIS_F32},
    {"quest, h2o between, windows, verified", TAMIS_SELECT_QUEST, TAMIS_EVICT_H2O, BETWEEN, true,
     true, false, TAMIS_F32},
    {"oracle, knorm between, windows, trees", TAMIS_SELECT_ORACLE, TAMIS_EVICT_KNORM, BETWEEN, true,
     true, true, TAMIS_F16},
    {"quest, tova, verified", TAMIS_SELECT_QUEST, TAMIS_EVICT_TOVA, 0, false, true, false,
     TAMIS_F32},
    {"random, knorm, verified", TAMIS_SELECT_RANDOM, TAMIS_EVICT_KNORM, 0, false, true, false,
     TAMIS_Q8},
    {"quest, streaming, verified", TAMIS_SELECT_QUEST, TAMIS_EVICT_STREAMING, 0, false, true, false,
     TAMIS_F16},
    {"reindexed streaming, verified", TAMIS_SELECT_FULL, TAMIS_EVICT_STREAMING, TAMIS_EVICT_REINDEX,
     false, true, false, TAMIS_F32}};

/* A sequence in both worlds. */
typedef struct twin {
    tamis_sequence mixed, single;
    uint64_t first; /* its token at position 0 */
    uint32_t length, prompt;
} twin;

/* What one sequence brings to a step. */
typedef struct share {
    twin *of;
    uint32_t rows;
    bool exact, tree;
    uint32_t parents[TREE]; /* of a tree */
} share;

typedef struct play {
    const setting *of;
    evict_world mixed, single;
    twin twins[LIVE];
    uint64_t random, n_added, n_mixed, n_evicted;
    float *outs, *alone; /* of the largest step */
} play;

/* ---- Worlds ---------------------------------------------------------------------------------- */

static const tamis_layer windows[2] = {{.attention = {.sliding_window = 27}},
                                       {.attention = {.chunk = 32}}};

static void open_worlds(play *p) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_sequences = LIVE,
                              .max_rows = MAX_ROWS,
                              .max_context = CONTEXT,
                              .max_selected_rows = LIVE * VERIFIED};
    if (p->of->trees) {
        plan.max_sequences = plan.max_selected_rows = LIVE * TREE;
        plan.flags = TAMIS_PLAN_TREES;
    }
    shape.dtype = p->of->dtype;
    shape.capacity_tokens = LIVE * (CONTEXT + 8) * (p->of->verifies ? 2 : 1);
    tamis_selection_default(p->of->selection, &plan.selection);
    plan.selection.budget = 48;
    plan.selection.seed = 7;
    if (p->of->selection == TAMIS_SELECT_FULL) plan.selection = (tamis_selection){0};
    if (p->of->eviction)
        plan.eviction = test_eviction(p->of->eviction, 40, p->of->options & ~BETWEEN);
    if (p->of->options & BETWEEN) plan.eviction.every = 0;
    if (plan.eviction.every == 1 && plan.selection.budget) {
        plan.selection.budget = 24; /* fewer pages than lanes have */
        plan.selection.sinks = plan.selection.recent = 0;
    }
    if (p->of->verifies && !p->of->trees &&
        (plan.eviction.every == 1 || p->of->options & BETWEEN)) {
        plan.max_sequences = 2 * LIVE; /* with their journals */
        plan.flags = TAMIS_PLAN_VERIFY;
    }
    if (p->of->windows) {
        plan.layers = windows;
        if (!p->of->eviction) plan.flags |= TAMIS_PLAN_GIVE_BACK;
    }
    evict_open(&p->mixed, &shape, &plan);
    evict_open(&p->single, &shape, &plan);
    const uint64_t floats = shape.n_layers * evict_out_floats(&p->mixed, MAX_ROWS);
    p->outs = malloc(floats * sizeof *p->outs);
    p->alone = malloc(floats * sizeof *p->alone);
    assert_true(p->outs && p->alone);
}

static void close_worlds(play *p) {
    evict_close(&p->mixed);
    evict_close(&p->single);
    free(p->outs);
    free(p->alone);
}

static void renew(play *p, twin *t) {
    if (t->mixed) {
        OK(tamis_cache_remove(p->mixed.w.cache, t->mixed, &test_error));
        OK(tamis_cache_remove(p->single.w.cache, t->single, &test_error));
    }
    *t = (twin){.first = ++p->n_added * FIRST_TOKEN, .prompt = 1 + test_below(&p->random, 100)};
    OK(tamis_cache_add(p->mixed.w.cache, &t->mixed, &test_error));
    OK(tamis_cache_add(p->single.w.cache, &t->single, &test_error));
}

/* ---- Shares of a step ------------------------------------------------------------------------ */

/* Rows that stand behind any row of the path to the row before them. */
static share tree_of(play *p, twin *t) {
    share s = {.of = t,
               .rows = 2 + test_below(&p->random, TREE - 1),
               .exact = test_below(&p->random, 4) == 0,
               .tree = true,
               .parents = {TAMIS_NO_ROW}};
    for (uint32_t row = 1; row < s.rows; row++) {
        uint32_t parent = row - 1;
        while (parent != TAMIS_NO_ROW && test_below(&p->random, 3) == 0)
            parent = s.parents[parent];
        s.parents[row] = parent;
    }
    return s;
}

/* The rows on the path to a row of a tree, in order; how many. */
static uint32_t path_to(const share *s, uint32_t row, uint32_t path[TREE]) {
    uint32_t n = 0;
    for (uint32_t r = row; r != TAMIS_NO_ROW; r = s->parents[r])
        n++;
    for (uint32_t r = row, i = n; r != TAMIS_NO_ROW; r = s->parents[r])
        path[--i] = r;
    return n;
}

static bool is_leaf(const share *s, uint32_t row) {
    return row + 1 == s->rows || s->parents[row + 1] != row;
}

static share share_of(play *p, twin *t) {
    const uint32_t left = t->prompt > t->length ? t->prompt - t->length : 0;
    if (left > 0) {
        /* No single row behind others is left: under `every` 1 that would be a decode step's. */
        uint32_t rows = 1 + test_below(&p->random, CHUNK);
        if (rows > left || left - rows == 1) rows = left < CHUNK ? left : CHUNK - 1;
        return (share){.of = t, .rows = rows, .exact = true};
    }
    if (p->of->trees && test_below(&p->random, 3) > 0) return tree_of(p, t);
    const uint32_t rows = p->of->verifies ? 1 + test_below(&p->random, VERIFIED) : 1;
    return (share){.of = t, .rows = rows};
}

/* Some of the sequences, those that are not exact first; how many. */
static uint32_t choose(play *p, share *shares) {
    uint32_t n = 0, n_selected = 0;
    for (uint32_t i = 0; i < LIVE; i++) {
        if (test_below(&p->random, 4) == 0) continue;
        if (p->twins[i].length + CHUNK > CONTEXT) renew(p, &p->twins[i]);
        const share s = share_of(p, &p->twins[i]);
        shares[n] = s;
        if (s.exact) {
            n++;
            continue;
        }
        shares[n++] = shares[n_selected];
        shares[n_selected++] = s;
    }
    return n;
}

/* Rows of a tree that have one position are different tokens. */
static uint64_t token_of(const share *s, uint32_t row) {
    uint32_t path[TREE];
    const uint64_t next = s->of->first + s->of->length;
    if (!s->tree) return next + row;
    return next + path_to(s, row, path) - 1 + ((uint64_t)row << 32);
}

static void fill_tokens(const share *s, uint64_t *tokens) {
    for (uint32_t i = 0; i < s->rows; i++)
        tokens[i] = token_of(s, i);
}

static void fill_parents(const share *s, uint32_t *parents) {
    for (uint32_t i = 0; i < s->rows; i++)
        parents[i] = s->tree ? s->parents[i] : i - 1; /* TAMIS_NO_ROW for the first */
}

static void run_mixed(play *p, const share *shares, uint32_t n) {
    tamis_sequence ids[LIVE];
    uint32_t rows[LIVE], n_selected = 0, parents[MAX_ROWS], n_rows = 0;
    uint64_t tokens[MAX_ROWS];
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = shares[i].of->mixed;
        rows[i] = shares[i].rows;
        n_selected += !shares[i].exact;
        fill_tokens(&shares[i], tokens + n_rows);
        fill_parents(&shares[i], parents + n_rows);
        n_rows += rows[i];
    }
    const bool is_mixed = n_selected > 0 && n_selected < n;
    const tamis_step step = {.sequences = ids,
                             .rows = rows,
                             .count = n,
                             .exact = n_selected == 0,
                             .exact_from = is_mixed ? n_selected : 0,
                             .parents = p->of->trees ? parents : NULL};
    p->n_mixed += is_mixed;
    OK(evict_step(&p->mixed, &step, tokens, p->outs));
}

static void run_alone(play *p, const share *s, const uint64_t *tokens, uint32_t n) {
    const tamis_step step = {
        .sequences = &s->of->single, .rows = &n, .count = 1, .exact = s->exact};
    OK(evict_step(&p->single, &step, tokens, p->alone));
}

/* One row of a share in a step of its own, of the single sequence or a fork of it. */
static void run_row(play *p, const share *s, tamis_sequence id, uint32_t row) {
    const tamis_step step = {.sequences = &id, .count = 1};
    const uint64_t token = s->of->first + s->of->length + row;
    OK(evict_step(&p->single, &step, &token, p->alone));
}

/* Whether rows of the share take the places of tokens one after another. */
static bool is_in_turns(const play *p, const share *s) {
    return p->mixed.w.plan->setup.params.flags & TAMIS_PLAN_VERIFY && !s->exact && s->rows > 1;
}

static void run_single(play *p, const share *s) {
    uint64_t tokens[CHUNK];
    fill_tokens(s, tokens);
    run_alone(p, s, tokens, s->rows);
}

/* The path to a row of a tree as rows of a step. */
static uint32_t run_path(play *p, const share *s, uint32_t row, uint32_t path[TREE]) {
    uint64_t tokens[TREE];
    const uint32_t n = path_to(s, row, path);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = token_of(s, path[i]);
    run_alone(p, s, tokens, n);
    return n;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

/* On the reference and OpenCL bits are equal. On CUDA tiles of other heights add in another order. */
static void same_outs(const float *a, const float *b, uint64_t n) {
    if (strncmp(test_device, "cuda", 4) != 0) {
        assert_memory_equal(a, b, n * sizeof *a);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        assert_float_equal(a[i], b[i], 2e-3F);
}

/* The pages that the last layer's attend has read for a row. */
static uint32_t list_of(const evict_world *e, uint32_t row, uint32_t head, uint32_t *pages) {
    uint32_t n = 0;
    OK(tamis_plan_read_selected(e->w.plan, row, head, pages, CONTEXT, &n, &test_error));
    return n;
}

static void same_list(const play *p, uint32_t mixed, uint32_t single) {
    for (uint32_t h = 0; h < p->mixed.w.shape.n_kv_heads; h++) {
        uint32_t a[CONTEXT], b[CONTEXT];
        const uint32_t n = list_of(&p->mixed, mixed, h, a);
        assert_int_equal(list_of(&p->single, single, h, b), n);
        assert_memory_equal(a, b, n * sizeof *a);
    }
}

/* Row `mixed` of a step of n_mixed rows, and row `single` of one of n_single. */
static void same_row(const play *p, uint32_t mixed, uint32_t n_mixed, uint32_t single,
                     uint32_t n_single) {
    const uint64_t width = evict_out_floats(&p->mixed, 1);
    for (uint32_t layer = 0; layer < p->mixed.w.shape.n_layers; layer++)
        same_outs(p->outs + (layer * n_mixed + mixed) * width,
                  p->alone + (layer * n_single + single) * width, width);
    same_list(p, mixed, single);
}

/* Each row of a share beside a decode step of a fork. */
static void same_turns(play *p, const share *s, uint32_t first, uint32_t all) {
    tamis_sequence fork;
    OK(tamis_cache_fork(p->single.w.cache, s->of->single, &fork, &test_error));
    for (uint32_t i = 0; i < s->rows; i++) {
        run_row(p, s, fork, i);
        same_row(p, first + i, all, 0, 1);
    }
    OK(tamis_cache_remove(p->single.w.cache, fork, &test_error));
}

/* What a share has given, from row `first` of a step of `all` rows on, beside steps of its own. */
static void same_share(play *p, const share *s, uint32_t first, uint32_t all) {
    uint32_t path[TREE];
    if (is_in_turns(p, s)) {
        same_turns(p, s, first, all);
        return;
    }
    if (!s->tree) run_single(p, s);
    for (uint32_t i = 0; !s->tree && i < s->rows; i++)
        same_row(p, first + i, all, i, s->rows);
    for (uint32_t row = 0; s->tree && row < s->rows; row++) {
        if (!is_leaf(s, row)) continue;
        const uint32_t n = run_path(p, s, row, path);
        for (uint32_t i = 0; i < n; i++)
            same_row(p, first + path[i], all, i, n);
        OK(tamis_plan_keep_path(p->single.w.plan, s->of->single, TAMIS_NO_ROW, &test_error));
    }
}

/* What plans may assume of the sequence. */
static void same_history(const play *p, const twin *t) {
    const tms_past a = tms_history_give(tms_cache_find(p->mixed.w.cache, t->mixed)),
                   b = tms_history_give(tms_cache_find(p->single.w.cache, t->single));
    assert_int_equal(a.length, b.length);
    assert_int_equal(a.evicted_at, b.evicted_at);
    assert_int_equal(a.intact_from, b.intact_from);
    assert_int_equal(a.unordered, b.unordered);
    assert_int_equal(a.scored_by, b.scored_by);
    assert_int_equal(a.scored_newest, b.scored_newest);
    assert_int_equal(a.scored_to, b.scored_to);
}

static void same_held(play *p, const twin *t) {
    same_history(p, t);
    if (p->of->windows && !p->of->eviction) return; /* pages that are gone cannot be read */
    if (t->length >= p->mixed.w.shape.page_size) evict_check_bounds(&p->mixed, t->mixed);
    held a = evict_read(&p->mixed, t->mixed), b = evict_read(&p->single, t->single);
    if (strncmp(test_device, "cuda", 4) == 0)
        held_same_positions(&a, &b);
    else
        held_same(&a, &b);
    held_free(&a);
    held_free(&b);
}

static void same_counters(const play *p) {
    tamis_plan_counters a, b;
    tamis_plan_get_counters(p->mixed.w.plan, &a);
    tamis_plan_get_counters(p->single.w.plan, &b);
    assert_int_equal(a.rows_written, b.rows_written);
    assert_int_equal(a.rows_exact, b.rows_exact);
    assert_int_equal(a.rows_full, b.rows_full);
    assert_int_equal(a.rows_short + a.rows_selected, b.rows_short + b.rows_selected);
    assert_int_equal(a.rows_observed, b.rows_observed);
    assert_int_equal(a.kv_bytes_read, b.kv_bytes_read);
    assert_int_equal(a.tokens_replaced, b.tokens_replaced);
    assert_int_equal(a.pages_bounded, b.pages_bounded);
}

/* No page is lost: neither world holds one without sequences. */
static void all_pages_return(play *p) {
    tamis_cache_stats mixed, single;
    for (uint32_t i = 0; i < LIVE; i++) {
        OK(tamis_cache_remove(p->mixed.w.cache, p->twins[i].mixed, &test_error));
        OK(tamis_cache_remove(p->single.w.cache, p->twins[i].single, &test_error));
    }
    tamis_cache_get_stats(p->mixed.w.cache, &mixed);
    tamis_cache_get_stats(p->single.w.cache, &single);
    assert_int_equal(mixed.pages_held + single.pages_held, 0);
}

/* ---- Playing --------------------------------------------------------------------------------- */

/* One path of a tree stays, or none. */
static void keep_some_path(play *p, const share *s) {
    uint32_t path[TREE];
    const uint32_t row = test_below(&p->random, s->rows + 1);
    const bool none = row == s->rows;
    OK(tamis_plan_keep_path(p->mixed.w.plan, s->of->mixed, none ? TAMIS_NO_ROW : row, &test_error));
    if (!none) s->of->length += run_path(p, s, row, path);
}

/* Some of the rows that have taken places of tokens stay, or none. */
static void keep_some_rows(play *p, const share *s) {
    const uint32_t n = test_below(&p->random, s->rows + 1);
    OK(tamis_plan_keep_path(p->mixed.w.plan, s->of->mixed, n ? n - 1 : TAMIS_NO_ROW, &test_error));
    for (uint32_t i = 0; i < n; i++)
        run_row(p, s, s->of->single, i);
    s->of->length += n;
}

/* Rows that were verified may be given up, the oldest of them never. */
static void advance(play *p, const share *s) {
    twin *t = s->of;
    if (s->tree || is_in_turns(p, s)) {
        s->tree ? keep_some_path(p, s) : keep_some_rows(p, s);
        return;
    }
    const uint32_t before = t->length;
    tamis_evicted evicted;
    t->length += s->rows;
    if (!s->exact && s->rows > 1) {
        t->length = before + 1 + test_below(&p->random, s->rows);
        OK(tamis_cache_truncate(p->mixed.w.cache, t->mixed, t->length, &test_error));
        OK(tamis_cache_truncate(p->single.w.cache, t->single, t->length, &test_error));
    }
    if (!s->exact || t->length < t->prompt || !p->of->eviction) return;
    if (t->length < WINDOW + SINKS) { /* too short to be scored; its next rows are decode rows */
        renew(p, t);
        return;
    }
    OK(tamis_plan_evict(p->mixed.w.plan, t->mixed, &evicted, &test_error));
    OK(tamis_plan_evict(p->single.w.plan, t->single, NULL, &test_error));
    p->n_evicted += evicted.tokens_before > evicted.tokens_kept;
}

static void round_of(play *p) {
    share shares[LIVE];
    const uint32_t n = choose(p, shares);
    uint32_t all = 0, first = 0;
    if (n == 0) return;
    for (uint32_t i = 0; i < n; i++)
        all += shares[i].rows;
    run_mixed(p, shares, n);
    for (uint32_t i = 0; i < n; i++) {
        same_share(p, &shares[i], first, all);
        first += shares[i].rows;
    }
    for (uint32_t i = 0; i < n; i++)
        advance(p, &shares[i]);
    if (test_below(&p->random, 8) == 0) same_held(p, shares[test_below(&p->random, n)].of);
}

static void steps_match_single_ones(void **state) {
    const char *wanted = getenv("TEST_STEPS");
    const uint32_t n_settings = sizeof settings / sizeof *settings,
                   steps = (wanted ? (uint32_t)strtoul(wanted, NULL, 10) : 720) / test_slowness();
    (void)state;
    for (uint32_t i = 0; i < n_settings; i++) {
        play p = {.of = &settings[i], .random = 11 + i};
        print_message("%s\n", p.of->name);
        open_worlds(&p);
        for (uint32_t t = 0; t < LIVE; t++)
            renew(&p, &p.twins[t]);
        while (p.n_mixed < steps / n_settings)
            round_of(&p);
        if (!(p.mixed.w.plan->setup.params.flags & (TAMIS_PLAN_TREES | TAMIS_PLAN_VERIFY)))
            same_counters(&p);
        for (uint32_t t = 0; t < LIVE; t++)
            same_held(&p, &p.twins[t]);
        /* The CUDA driver on the CPU has time for few steps. */
        assert_true(!p.of->eviction || p.n_evicted > 0 || test_slowness() > 2);
        all_pages_return(&p);
        close_worlds(&p);
    }
}

/* ---- Arguments ------------------------------------------------------------------------------- */

static void arguments_are_checked(void **state) {
    const tamis_cache_params shape = test_shape();
    const uint64_t tokens[4] = {1, 2, 3, 4};
    const uint32_t rows[2] = {1, 3}, first = 0;
    tamis_plan_params plan = {.max_sequences = 2, .max_rows = 8, .max_context = 64};
    evict_world e;
    tamis_sequence ids[2];
    (void)state;
    evict_open(&e, &shape, &plan);
    for (uint32_t i = 0; i < 2; i++)
        OK(tamis_cache_add(e.w.cache, &ids[i], &test_error));
    tamis_step step = {.sequences = ids, .rows = rows, .count = 2, .exact = 1, .exact_from = 1};
    FAILS(tamis_plan_step_begin(e.w.plan, &step, &test_error), TAMIS_E_ARGUMENT,
          "exact_from is 1 in a step that is exact as a whole");
    step.exact = 0;
    step.exact_from = 2;
    FAILS(tamis_plan_step_begin(e.w.plan, &step, &test_error), TAMIS_E_ARGUMENT,
          "exact_from is 2: the step has 2 sequences");
    step.exact_from = 1;
    step.reserved32 = 5;
    FAILS(tamis_plan_step_begin(e.w.plan, &step, &test_error), TAMIS_E_ARGUMENT,
          "reserved32 of tamis_step is 5");
    step.reserved32 = 0;
    OK(test_step_begin(&e.w, &step));
    FAILS(tamis_plan_step_keep_rows(e.w.plan, &first, 1, &test_error), TAMIS_E_STATE,
          "the step is not exact");
    for (uint32_t layer = 0; layer < shape.n_layers; layer++)
        evict_layer(&e, layer, tokens, 4, NULL);
    OK(tamis_plan_step_end(e.w.plan, &test_error));
    plan.flags = TAMIS_PLAN_FIXED_LAUNCHES;
    tamis_plan *fixed = NULL;
    OK(tamis_plan_create(e.w.cache, &plan, &fixed, &test_error));
    FAILS(tamis_plan_step_begin(fixed, &step, &test_error), TAMIS_E_ARGUMENT,
          "under TAMIS_PLAN_FIXED_LAUNCHES a step is exact as a whole or not at all");
    tamis_plan_destroy(&fixed);
    evict_close(&e);
}

int main(int argc, char **argv) {
    const int cannot = test_begin(argc, argv);
    if (cannot) return cannot;
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_match_single_ones),
                                       cmocka_unit_test(arguments_are_checked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
