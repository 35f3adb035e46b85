/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows a blend computes, for random prompts: an engine of no layers hands in V whose distance
 * from the stored one is known, and a plain statement of the rule says which rows must stay. Then
 * the calls' order and bad parameters. */
#include "lib/blend/blend.h"
#include "tests/api/fixture.h"
#include <tamis/blend.h>

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 6, KV_HEADS = 2, DIM = 64, WIDTH = KV_HEADS * DIM, ROWS = 90, CONTEXT = 128 };
enum { CHUNKS = 6, HELD = 4, LONGEST = 24, PARTS = 8, SINKS = 2 };
enum { FRESH, HIT, EXACT };
#define COMMON 3.0f /* the last channel of V, stored and computed */

static const int32_t sink[SINKS] = {7, 9};
static int32_t texts[CHUNKS][LONGEST]; /* the store holds the first ones */

/* A device, a cache and a plan, a store of chunks whose K and V are zeros but for COMMON. */
typedef struct world {
    tamis_context *context;
    tamis_cache *cache;
    tamis_plan *plan;
    tamis_store *store;
    tamis_buffer *table, *k, *v;
    tamis_blend_params good;
} world;

/* A prompt, and what its rows are. */
typedef struct prompt {
    tamis_blend_part parts[PARTS];
    uint32_t n_parts, n, n_hits;
    int32_t fresh[PARTS][LONGEST];
    int kind[ROWS];
    uint32_t place[ROWS]; /* in its part */
    uint32_t parts_found, parts_missed, parts_exact;
} prompt;

/* ---- World ----------------------------------------------------------------------------------- */

static uint32_t length_of(uint32_t chunk) {
    return 3 + 5 * chunk % 17;
}

static tamis_chunk_id id_of(uint32_t chunk, tamis_dtype dtype, const uint8_t *fingerprint) {
    tamis_chunk_id id = {.tokens = texts[chunk],
                         .n_tokens = length_of(chunk),
                         .shape = {.n_layers = LAYERS,
                                   .n_kv_heads = KV_HEADS,
                                   .head_dim = DIM,
                                   .dtype = dtype,
                                   .sink = SINKS}};
    OK(tamis_fingerprint_extend(fingerprint, sink, SINKS, id.fingerprint, &test_error));
    return id;
}

static void open_store(world *w) {
    static float values[LONGEST * WIDTH];
    const void *planes[LAYERS];
    const tamis_store_params params = {.memory_bytes = 16 << 20};
    OK(tamis_store_create(&params, &w->store, &test_error));
    for (uint32_t i = 0; i < LONGEST; i++)
        values[i * WIDTH + WIDTH - 1] = COMMON;
    for (uint32_t i = 0; i < LAYERS; i++)
        planes[i] = values;
    for (uint32_t c = 0; c < CHUNKS; c++) {
        for (uint32_t i = 0; i < LONGEST; i++)
            texts[c][i] = (int32_t)(100 * (c + 1) + i);
        const tamis_chunk_planes put = {
            .id = id_of(c, TAMIS_F32, w->good.fingerprint), .k = planes, .v = planes};
        if (c < HELD) OK(tamis_store_put(w->store, &put, &test_error));
    }
}

static void open_world(world *w, const tamis_eviction *eviction) {
    const tamis_context_params context = {.device = test_device};
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {
        .max_rows = ROWS, .max_context = CONTEXT, .load_dtypes = 1u << TAMIS_F32};
    const double frequencies[DIM / 2] = {1};
    static const float zeros[ROWS * WIDTH];
    memset(w, 0, sizeof *w);
    if (eviction) plan.eviction = *eviction;
    shape.n_layers = LAYERS;
    shape.capacity_tokens = 4 * CONTEXT;
    shape.planes = tamis_eviction_planes(&plan.eviction);
    OK(tamis_context_create(&context, &w->context, &test_error));
    OK(tamis_cache_create(w->context, &shape, &w->cache, &test_error));
    OK(tamis_plan_create(w->cache, &plan, &w->plan, &test_error));
    OK(tamis_buffer_create(w->context, tamis_rotation_bytes(DIM), &w->table, &test_error));
    OK(tamis_buffer_create(w->context, sizeof zeros, &w->k, &test_error));
    OK(tamis_buffer_create(w->context, sizeof zeros, &w->v, &test_error));
    OK(tamis_buffer_write(w->k, 0, zeros, sizeof zeros, &test_error));
    w->good = (tamis_blend_params){.rotation = {.n_rot = DIM, .table = {w->table, 0}},
                                   .n_sink = SINKS,
                                   .sink = sink,
                                   .fingerprint = "a model"};
    OK(tamis_rotation_write(&w->good.rotation, frequencies, &test_error));
    open_store(w);
}

static void close_world(world *w) {
    tamis_store_destroy(&w->store);
    tamis_buffer_destroy(&w->table);
    tamis_buffer_destroy(&w->k);
    tamis_buffer_destroy(&w->v);
    tamis_plan_destroy(&w->plan);
    tamis_cache_destroy(&w->cache);
    tamis_context_destroy(&w->context);
}

/* ---- Prompts --------------------------------------------------------------------------------- */

static void add_part(prompt *p, const int32_t *tokens, uint32_t n, int stored, int kind) {
    p->parts[p->n_parts++] = (tamis_blend_part){.tokens = tokens, .n_tokens = n, .stored = stored};
    for (uint32_t i = 0; i < n; i++) {
        p->place[p->n] = i;
        p->kind[p->n++] = kind;
    }
}

/* Begins with the sink or not; then chunks that the store has or not, fresh tokens, nothing. */
static void make_prompt(prompt *p, uint64_t *state, uint32_t tail) {
    memset(p, 0, sizeof *p);
    const bool behind = test_below(state, 2);
    add_part(p, behind ? sink : texts[0], SINKS, 0, FRESH);
    while (p->n_parts < PARTS && p->n + LONGEST < ROWS) {
        const uint32_t what = test_below(state, 10), chunk = test_below(state, CHUNKS);
        int32_t *fresh = p->fresh[p->n_parts];
        for (uint32_t i = 0; i < LONGEST; i++)
            fresh[i] = (int32_t)test_below(state, 1000);
        if (what == 0) add_part(p, NULL, 0, 0, FRESH);
        if (what == 1) add_part(p, fresh, 1 + test_below(state, 6), 0, FRESH);
        if (what < 2) continue;
        const bool held = chunk < HELD, exact = held && behind && p->n == SINKS;
        p->parts_found += held;
        p->parts_missed += !held;
        p->parts_exact += exact;
        add_part(p, texts[chunk], length_of(chunk), 1, exact ? EXACT : held ? HIT : FRESH);
    }
    for (uint32_t row = p->n - tail; row < p->n; row++)
        p->kind[row] = FRESH;
    for (uint32_t row = 0; row < p->n; row++)
        p->n_hits += p->kind[row] == HIT;
}

/* How far a row's V is from the stored one: small numbers, many of them equal; NAN for some. */
static float distance(uint64_t seed, uint32_t row, uint32_t layer) {
    uint64_t state = seed * 7919 + row * 64 + layer;
    const uint32_t d = test_below(&state, 12);
    return d == 11 && seed % 3 == 0 ? NAN : (float)d;
}

/* ---- The rule -------------------------------------------------------------------------------- */

static double value_of(float d) {
    return isnan(d) ? INFINITY : (double)d * (double)d;
}

/* Leaves `k` of the hits that are in, those with the largest values, the lower ones of equals. */
static void keep_largest(const prompt *p, bool *in, uint64_t seed, uint32_t layer, uint32_t k) {
    bool kept[ROWS] = {false};
    for (; k > 0; k--) {
        uint32_t best = ROWS;
        for (uint32_t row = 0; row < p->n; row++) {
            if (!in[row] || kept[row] || p->kind[row] != HIT) continue;
            if (best == ROWS ||
                value_of(distance(seed, row, layer)) > value_of(distance(seed, best, layer)))
                best = row;
        }
        if (best == ROWS) break;
        kept[best] = true;
    }
    for (uint32_t row = 0; row < p->n; row++)
        in[row] = in[row] && (kept[row] || p->kind[row] != HIT);
}

/* Of the prompt that is played: whether the gate has had all hits computed, and why. */
static bool gate_open;
static double gate_left;

/* The shares of the layers from the check layer on. */
static uint32_t shares_of(const tamis_blend_params *params, double *shares) {
    static const double falling[] = {1.5, 1.25, 1.1, 1};
    const double share = params->share == 0 ? 0.15 : params->share;
    const uint32_t n = params->shares ? params->n_shares : params->schedule ? 1 : 4;
    for (uint32_t i = 0; i < n; i++) {
        shares[i] = params->shares ? params->shares[i] : share * (n == 1 ? 1 : falling[i]);
        shares[i] = shares[i] > 1 ? 1 : shares[i];
    }
    return n;
}

/* What the rows that are in leave of the hits' deviations, over the norm of all hits. */
static double left_by(const prompt *p, const bool *in, uint64_t seed, uint32_t layer) {
    double left = 0, whole = 0;
    for (uint32_t row = 0; row < p->n; row++) {
        if (p->kind[row] != HIT) continue;
        const double value = value_of(distance(seed, row, layer));
        left += in[row] ? 0 : value;
        whole += value + COMMON * COMMON;
    }
    return left == 0 ? 0 : isinf(left) || isinf(whole) ? INFINITY : sqrt(left / whole);
}

/* Which rows stay in a layer, of those that are in. */
static void apply_rule(const tamis_blend_params *params, const prompt *p, bool *in, uint64_t seed,
                       uint32_t layer) {
    const uint32_t check = params->check_layer ? params->check_layer : 1;
    const uint32_t from = check == TAMIS_BLEND_NO_CHECK ? 0 : check;
    double shares[LAYERS];
    const uint32_t n_shares = shares_of(params, shares);
    if (layer < from) return;
    if (params->selector == TAMIS_BLEND_HKVD && layer - from < n_shares) {
        uint32_t k = (uint32_t)ceil(shares[layer - from] * p->n_hits);
        k = k < params->least ? params->least : k;
        k = params->most && k > params->most ? params->most : k;
        keep_largest(p, in, seed, layer, k);
    }
    for (uint32_t row = 0; row < p->n && params->selector != TAMIS_BLEND_HKVD; row++) {
        bool taken = params->selector == TAMIS_BLEND_FIRST && p->place[row] < params->first;
        for (uint32_t i = 0; i < params->n_rows; i++)
            taken = taken || params->rows[i] == row;
        in[row] = in[row] && (taken || p->kind[row] != HIT);
    }
    if (layer == from && params->bound > 0) gate_left = left_by(p, in, seed, layer);
    if (layer == from && gate_left > params->bound && params->bound > 0) gate_open = true;
    for (uint32_t row = 0; row < p->n && gate_open; row++)
        in[row] = p->kind[row] != EXACT;
}

/* ---- Playing --------------------------------------------------------------------------------- */

static void expect_rows(const char *what, uint32_t layer, const tms_blend_rows *rows,
                        const bool *in, uint32_t n) {
    uint32_t next = 0;
    for (uint32_t row = 0; row < n; row++) {
        if (!in[row]) continue;
        if (next >= rows->n || rows->rows[next] != row)
            fail_msg("%s, layer %u: row %u is missing", what, layer, row);
        next++;
    }
    if (next < rows->n) fail_msg("%s, layer %u: row %u is too many", what, layer, rows->rows[next]);
}

static void fill_v(world *w, const tms_blend_rows *rows, uint64_t seed, uint32_t layer) {
    static float v[ROWS * WIDTH];
    memset(v, 0, sizeof v);
    for (uint32_t i = 0; i < rows->n; i++) {
        v[i * WIDTH + rows->rows[i] % WIDTH] = distance(seed, rows->rows[i], layer);
        v[i * WIDTH + WIDTH - 1] = COMMON;
    }
    OK(tamis_buffer_write(w->v, 0, v, sizeof v, &test_error));
}

/* A layer of the engine: the rows before and after it are the rule's. */
static void play_layer(world *w, tamis_blend *blend, const tamis_blend_params *params,
                       const prompt *p, bool *in, uint64_t seed, uint32_t layer) {
    const tamis_rows k = {.buffer = w->k}, v = {.buffer = w->v};
    tms_blend_rows rows, stay;
    bool restarted;
    uint32_t before[ROWS];
    OK(tms_blend_layer(blend, layer, &rows, &restarted, &test_error));
    assert_false(restarted);
    expect_rows("computed", layer, &rows, in, p->n);
    memcpy(before, rows.rows, rows.n * sizeof *before);
    fill_v(w, &rows, seed, layer);
    OK(tms_blend_compare(blend, layer, &v, &test_error));
    OK(tamis_plan_write(w->plan, layer, &k, &v, &test_error));
    OK(tms_blend_select(blend, layer, &stay, &test_error));
    if (params->check_layer != TAMIS_BLEND_NO_CHECK) apply_rule(params, p, in, seed, layer);
    expect_rows("kept", layer, &stay, in, p->n);
    assert_true((stay.places == NULL) == (stay.n == rows.n));
    for (uint32_t i = 0; i < stay.n && stay.places; i++)
        assert_int_equal(before[stay.places[i]], stay.rows[i]);
}

/* A prompt behind tokens that the sequence has already. */
static void play(world *w, const tamis_blend_params *params, const prompt *p, uint64_t seed,
                 uint32_t behind) {
    bool in[ROWS];
    tamis_blend *blend = NULL;
    tamis_sequence sequence;
    tamis_blend_stats stats;
    OK(tamis_cache_add(w->cache, &sequence, &test_error));
    if (behind > 0) {
        const tamis_rows k = {.buffer = w->k};
        const tamis_step step = {.sequences = &sequence, .rows = &behind, .count = 1, .exact = 1};
        OK(tamis_plan_step_begin(w->plan, &step, &test_error));
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            OK(tamis_plan_write(w->plan, layer, &k, &k, &test_error));
        OK(tamis_plan_step_end(w->plan, &test_error));
    }
    OK(tamis_blend_create(w->plan, w->store, params, &blend, &test_error));
    OK(tms_blend_begin(blend, sequence, p->parts, p->n_parts, &test_error));
    gate_open = false;
    gate_left = 0;
    for (uint32_t row = 0; row < p->n; row++)
        in[row] = p->kind[row] != EXACT;
    if (params->check_layer == TAMIS_BLEND_NO_CHECK) apply_rule(params, p, in, seed, 0);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        play_layer(w, blend, params, p, in, seed, layer);
    OK(tms_blend_end(blend, &test_error));
    tamis_blend_get_stats(blend, &stats);
    assert_int_equal(stats.gated, gate_open);
    if (fabs(stats.left - gate_left) > 1e-9 * gate_left) fail_msg("%g is left", stats.left);
    assert_int_equal(stats.tokens_hit, gate_open ? 0 : p->n_hits);
    assert_int_equal(stats.parts_found, p->parts_found);
    assert_int_equal(stats.parts_missed, p->parts_missed);
    assert_int_equal(stats.parts_exact, p->parts_exact);
    tamis_blend_destroy(&blend);
    OK(tamis_cache_remove(w->cache, sequence, &test_error));
}

static uint32_t prompts(void) {
    return strcmp(test_device, "reference") == 0 ? 300 : 20;
}

static void selectors_keep_the_rows_of_the_rule(void **state) {
    (void)state;
    static const double list[] = {0.9, 0.4, 0.4, 0.02};
    static world w;
    static prompt p;
    uint32_t gates_seen[2] = {0};
    open_world(&w, NULL);
    for (uint64_t seed = 1; seed <= prompts(); seed++) {
        uint64_t random = seed;
        uint32_t rows[ROWS], n = 0;
        tamis_blend_params params = w.good;
        make_prompt(&p, &random, 1);
        for (uint32_t row = 0; row < p.n; row++)
            if (test_below(&random, 3) == 0) rows[n++] = row;
        const uint32_t what = test_below(&random, 10);
        if (what == 0) params.schedule = TAMIS_BLEND_FLAT;
        if (what <= 1) params.share = 0.05 + 0.1 * test_below(&random, 9);
        if (what == 2) params.shares = list, params.n_shares = 1 + test_below(&random, 4);
        if (what == 3) params.least = 5, params.most = 5 + test_below(&random, 4);
        if (what == 4) params.selector = TAMIS_BLEND_NONE;
        if (what == 5) params.selector = TAMIS_BLEND_LIST, params.rows = rows, params.n_rows = n;
        if (what == 6)
            params.selector = TAMIS_BLEND_FIRST, params.first = 1 + test_below(&random, 5);
        if (what == 7) params.check_layer = 2;
        if (what >= 4 && what <= 6 && test_below(&random, 2))
            params.check_layer = TAMIS_BLEND_NO_CHECK;
        else if (what >= 7 || (what >= 4 && test_below(&random, 2)))
            params.bound = 0.1 * (1 + test_below(&random, 9));
        gates_seen[0] += params.bound > 0;
        params.flags = seed % 2 ? TAMIS_BLEND_NO_THREAD : 0;
        play(&w, &params, &p, seed, 0);
        gates_seen[1] += gate_open;
    }
    if (strcmp(test_device, "reference") == 0)
        assert_true(gates_seen[1] > 5 && gates_seen[1] + 5 < gates_seen[0]);
    close_world(&w);
}

/* The window's rows are computed, and so is the last row alone without one. */
static void the_last_rows_are_computed(void **state) {
    (void)state;
    tamis_eviction eviction;
    static world w;
    static prompt p;
    tamis_eviction_default(TAMIS_EVICT_SNAPKV, &eviction);
    eviction.budget = 64;
    eviction.window = 11;
    open_world(&w, &eviction);
    for (uint64_t seed = 1; seed <= 6; seed++) {
        uint64_t random = seed;
        tamis_blend_params params = w.good;
        if (seed % 2) params.selector = TAMIS_BLEND_NONE;
        make_prompt(&p, &random, 11);
        play(&w, &params, &p, seed, 0);
    }
    close_world(&w);
}

/* Behind tokens of the sequence that the blend does not know, nothing is exact. */
static void nothing_is_exact_behind_other_tokens(void **state) {
    (void)state;
    static world w;
    static prompt p;
    uint32_t seen = 0;
    open_world(&w, NULL);
    for (uint64_t seed = 1; seed <= 8; seed++) {
        uint64_t random = seed;
        make_prompt(&p, &random, 1);
        seen += p.parts_exact;
        p.parts_exact = 0;
        for (uint32_t row = 0; row < p.n; row++) {
            p.n_hits += p.kind[row] == EXACT;
            p.kind[row] = p.kind[row] == EXACT ? HIT : p.kind[row];
        }
        play(&w, &w.good, &p, seed, 5);
    }
    assert_true(seen > 0);
    close_world(&w);
}

/* random: a share of the hits, each layer's among those of the layer before, by the seed alone. */
static void random_rows_follow_from_the_seed(void **state) {
    (void)state;
    static world w;
    static prompt p;
    uint32_t first[2][ROWS], n[2] = {0};
    uint64_t random = 5;
    open_world(&w, NULL);
    make_prompt(&p, &random, 1);
    for (int i = 0; i < 4; i++) {
        tamis_blend *blend = NULL;
        tamis_sequence sequence;
        tamis_blend_params params = w.good;
        const tamis_rows v = {.buffer = w.v};
        bool in[ROWS];
        params.selector = TAMIS_BLEND_RANDOM;
        params.share = 0.3;
        params.seed = i < 2 ? 11 : 12;
        if (i == 3) params.check_layer = TAMIS_BLEND_NO_CHECK;
        memset(in, true, sizeof in);
        OK(tamis_cache_add(w.cache, &sequence, &test_error));
        OK(tamis_blend_create(w.plan, w.store, &params, &blend, &test_error));
        OK(tms_blend_begin(blend, sequence, p.parts, p.n_parts, &test_error));
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            static const double falling[] = {1.5, 1.25, 1.1, 1, 1, 1};
            const uint32_t from = i == 3 ? 0 : 1;
            tms_blend_rows rows;
            bool restarted;
            uint32_t hits = 0;
            OK(tms_blend_layer(blend, layer, &rows, &restarted, &test_error));
            OK(tms_blend_compare(blend, layer, &v, &test_error));
            OK(tamis_plan_write(w.plan, layer, &v, &v, &test_error));
            OK(tms_blend_select(blend, layer, &rows, &test_error));
            for (uint32_t r = 0; r < rows.n; r++) {
                assert_true(in[rows.rows[r]] && p.kind[rows.rows[r]] != EXACT);
                hits += p.kind[rows.rows[r]] == HIT;
            }
            memset(in, false, sizeof in);
            for (uint32_t r = 0; r < rows.n; r++)
                in[rows.rows[r]] = true;
            assert_int_equal(hits, layer < from
                                       ? p.n_hits
                                       : (uint32_t)ceil(0.3 * falling[layer - from] * p.n_hits));
            if (layer + 1 == LAYERS && i < 2)
                memcpy(first[i], rows.rows, rows.n * 4), n[i] = rows.n;
            if (layer + 1 == LAYERS && i == 2) {
                assert_int_equal(rows.n, n[0]);
                assert_memory_not_equal(rows.rows, first[0], rows.n * sizeof *rows.rows);
            }
        }
        OK(tms_blend_end(blend, &test_error));
        tamis_blend_destroy(&blend);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(first[0], first[1], n[0] * sizeof *first[0]);
    close_world(&w);
}

/* ---- Misuse ---------------------------------------------------------------------------------- */

#define REFUSED(code, part)                                                                        \
    FAILS(tamis_blend_create(w.plan, w.store, &params, &blend, &test_error), (code), (part));      \
    assert_null(blend);                                                                            \
    params = w.good

static void bad_parameters_are_refused(void **state) {
    (void)state;
    static const double rising[] = {0.2, 0.3}, many[] = {1, 1, 1, 1, 1, 1}, none[] = {0.5, 0};
    static const uint32_t rows[] = {3, 3};
    static world w;
    tamis_blend *blend = NULL;
    open_world(&w, NULL);
    tamis_blend_params params = w.good;
    FAILS(tamis_blend_create(NULL, w.store, &params, &blend, &test_error), TAMIS_E_ARGUMENT,
          "plan");
    FAILS(tamis_blend_create(w.plan, NULL, &params, &blend, &test_error), TAMIS_E_ARGUMENT,
          "store");
    FAILS(tamis_blend_create(w.plan, w.store, NULL, &blend, &test_error), TAMIS_E_ARGUMENT, "par");
    FAILS(tamis_blend_create(w.plan, w.store, &params, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    params.selector = (tamis_blend_selector)7;
    REFUSED(TAMIS_E_ARGUMENT, "no selector 7");
    params.selector = TAMIS_BLEND_QUESTION;
    REFUSED(TAMIS_E_ARGUMENT,
            "selector question, but the plan was made without TAMIS_PLAN_ROW_MASSES");
    params.selector = TAMIS_BLEND_QUESTION, params.first = 2;
    REFUSED(TAMIS_E_ARGUMENT, "first 2 is given for selector question");
    params.schedule = (tamis_blend_schedule)2;
    REFUSED(TAMIS_E_ARGUMENT, "schedule is 2");
    params.share = -0.5;
    REFUSED(TAMIS_E_ARGUMENT, "share is -0.5");
    params.share = 1.25;
    REFUSED(TAMIS_E_ARGUMENT, "share is 1.25");
    params.share = NAN;
    REFUSED(TAMIS_E_ARGUMENT, "share is ");
    params.shares = rising, params.n_shares = 2;
    REFUSED(TAMIS_E_ARGUMENT, "share 1 is 0.3, above the one before, 0.2");
    params.shares = none, params.n_shares = 2;
    REFUSED(TAMIS_E_ARGUMENT, "share 1 is 0;");
    params.shares = many, params.n_shares = 6;
    REFUSED(TAMIS_E_ARGUMENT, "n_shares is 6 from layer 1 on; there are 6");
    params.shares = many;
    REFUSED(TAMIS_E_ARGUMENT, "n_shares is 0");
    params.n_shares = 1;
    REFUSED(TAMIS_E_ARGUMENT, "shares is NULL for 1");
    params.shares = many, params.n_shares = 1, params.share = 0.5;
    REFUSED(TAMIS_E_ARGUMENT, "share 0.5 and schedule 0 are given beside");
    params.bound = -1;
    REFUSED(TAMIS_E_ARGUMENT, "bound is -1");
    params.selector = TAMIS_BLEND_ALL, params.bound = 0.5;
    REFUSED(TAMIS_E_ARGUMENT, "bound 0.5 is given for selector all");
    params.selector = TAMIS_BLEND_NONE, params.bound = 0.5, params.check_layer = UINT32_MAX;
    REFUSED(TAMIS_E_ARGUMENT, "bound is 0.5, but check_layer is TAMIS_BLEND_NO_CHECK");
    params.least = 3, params.most = 2;
    REFUSED(TAMIS_E_ARGUMENT, "least is 3, most 2");
    params.check_layer = LAYERS;
    REFUSED(TAMIS_E_ARGUMENT, "check_layer is 6");
    params.check_layer = TAMIS_BLEND_NO_CHECK;
    REFUSED(TAMIS_E_ARGUMENT, "hkvd measures in the check layer");
    params.first = 2;
    REFUSED(TAMIS_E_ARGUMENT, "first 2 is given for selector hkvd");
    params.selector = TAMIS_BLEND_FIRST;
    REFUSED(TAMIS_E_ARGUMENT, "first is 0");
    params.selector = TAMIS_BLEND_NONE, params.share = 0.5;
    REFUSED(TAMIS_E_ARGUMENT, "share 0.5 is given for selector none");
    params.seed = 3;
    REFUSED(TAMIS_E_ARGUMENT, "seed 3 is given for selector hkvd");
    params.selector = TAMIS_BLEND_LIST, params.rows = rows, params.n_rows = 2;
    REFUSED(TAMIS_E_ARGUMENT, "3 comes after 3");
    params.selector = TAMIS_BLEND_LIST, params.n_rows = 2;
    REFUSED(TAMIS_E_ARGUMENT, "rows is NULL for 2 rows");
    params.sink = NULL;
    REFUSED(TAMIS_E_ARGUMENT, "sink is NULL for 2 tokens");
    params.dtype = TAMIS_F16;
    REFUSED(TAMIS_E_ARGUMENT, "dtype is f16, which is not in the plan's load_dtypes 1");
    params.rotation.table.buffer = NULL;
    REFUSED(TAMIS_E_ARGUMENT, "table is absent");
    params.reserved[3] = 1;
    REFUSED(TAMIS_E_ARGUMENT, "reserved");
    tamis_blend_destroy(NULL);
    tamis_blend_destroy(&blend);
    close_world(&w);
}

static void reindexed_streaming_is_refused(void **state) {
    (void)state;
    static world w;
    tamis_eviction eviction;
    tamis_blend *blend = NULL;
    tamis_eviction_default(TAMIS_EVICT_STREAMING, &eviction);
    eviction.budget = 64;
    eviction.options = TAMIS_EVICT_REINDEX;
    open_world(&w, &eviction);
    FAILS(tamis_blend_create(w.plan, w.store, &w.good, &blend, &test_error), TAMIS_E_UNSUPPORTED,
          "under reindexed streaming cannot blend");
    w.good.selector = TAMIS_BLEND_ALL;
    OK(tamis_blend_create(w.plan, w.store, &w.good, &blend, &test_error));
    tamis_blend_destroy(&blend);
    close_world(&w);
}

/* ---- Engines that fail ----------------------------------------------------------------------- */

/* An engine over the world's buffers, one of whose calls fails. */
typedef struct failing {
    world *w;
    tamis_blend *blend;
    const prompt *p;
    tamis_sequence sequence;
    const char *where; /* the call that fails in `layer`; NULL: none */
    uint32_t layer, calls;
    bool silent; /* without a reason */
} failing;

static tamis_status pass(failing *f, const char *call, uint32_t layer, tamis_error *error) {
    f->calls++;
    if (!f->where || strcmp(f->where, call) != 0 || layer != f->layer) return TAMIS_OK;
    if (!f->silent) *error = (tamis_error){TAMIS_E_UNSUPPORTED, "no more of this"};
    return TAMIS_E_UNSUPPORTED;
}

static tamis_status project(void *user, uint32_t layer, const uint32_t *rows, uint32_t n,
                            tamis_rows *v, tamis_error *error) {
    failing *f = user;
    assert_true(n > 0 && rows[n - 1] == f->p->n - 1);
    *v = (tamis_rows){.buffer = f->w->v};
    /* Where that is so, V is too short. */
    if (f->where && strcmp(f->where, "v") == 0) v->offset = ROWS * WIDTH * 4 - 64;
    return pass(f, "project", layer, error);
}

static tamis_status write(void *user, uint32_t layer, tamis_error *error) {
    failing *f = user;
    const tamis_rows k = {.buffer = f->w->k}, v = {.buffer = f->w->v};
    const tamis_status status = pass(f, "write", layer, error);
    return status == TAMIS_OK ? tamis_plan_write(f->w->plan, layer, &k, &v, error) : status;
}

static tamis_status keep(void *user, uint32_t layer, const uint32_t *rows, const uint32_t *places,
                         uint32_t n, tamis_rows *q, tamis_error *error) {
    failing *f = user;
    assert_true(n > 0 && rows[n - 1] == f->p->n - 1 && (!places || places[0] <= rows[0]));
    *q = (tamis_rows){.buffer = f->w->v};
    return pass(f, "keep", layer, error);
}

static tamis_status finish(void *user, uint32_t layer, uint32_t n, tamis_error *error) {
    (void)n;
    return pass(user, "finish", layer, error);
}

static const tamis_blend_engine engine_of = {NULL, project, write, keep, finish, {0}};

static tamis_status run(failing *f, tamis_error *error) {
    tamis_blend_engine engine = engine_of;
    engine.user = f;
    f->calls = 0;
    return tamis_blend_run(f->blend, f->sequence, f->p->parts, f->p->n_parts, &engine, error);
}

/* What the engine answers is the answer, the sequence is as it was, and the next prompt runs. */
static void an_engine_that_fails_ends_its_prompt(void **state) {
    (void)state;
    static world w;
    static prompt p;
    static const char *const calls[] = {"project", "write", "keep", "finish"};
    uint64_t random = 3;
    open_world(&w, NULL);
    make_prompt(&p, &random, 1);
    failing f = {.w = &w, .p = &p};
    OK(tamis_cache_add(w.cache, &f.sequence, &test_error));
    OK(tamis_blend_create(w.plan, w.store, &w.good, &f.blend, &test_error));
    for (size_t call = 0; call < 4; call++)
        for (f.layer = 0; f.layer < LAYERS; f.layer++) {
            f.where = calls[call];
            FAILS(run(&f, &test_error), TAMIS_E_UNSUPPORTED, "no more of this");
            assert_int_equal(f.calls, 4 * f.layer + call + 1);
            assert_int_equal(test_length(w.cache, f.sequence), 0);
        }
    f.layer = 1;
    assert_int_equal(run(&f, NULL), TAMIS_E_UNSUPPORTED);
    f.silent = true;
    for (size_t call = 0; call < 4; call++) {
        f.where = calls[call];
        FAILS(run(&f, &test_error), TAMIS_E_UNSUPPORTED,
              test_text("%s of the engine answered E_UNSUPPORTED in layer 1", f.where));
    }
    f.where = "v";
    FAILS(run(&f, &test_error), TAMIS_E_ARGUMENT, "rows: ");
    f.where = NULL;
    OK(run(&f, &test_error));
    assert_int_equal(f.calls, 4 * LAYERS);
    assert_int_equal(test_length(w.cache, f.sequence), p.n);
    tamis_blend_destroy(&f.blend);
    close_world(&w);
}

static void bad_prompts_are_refused(void **state) {
    (void)state;
    static world w;
    static prompt p;
    uint64_t random = 3;
    tamis_blend *blend = NULL;
    tamis_sequence sequence;
    tamis_blend_layer_stats stats;
    tamis_blend_engine engine = engine_of;
    open_world(&w, NULL);
    make_prompt(&p, &random, 1);
    OK(tamis_cache_add(w.cache, &sequence, &test_error));
    OK(tamis_blend_create(w.plan, w.store, &w.good, &blend, &test_error));
    assert_true(tamis_blend_plan(blend) == w.plan && tamis_plan_cache(w.plan) == w.cache);
#define BAD(blend, sequence, parts, n, status, text)                                               \
    FAILS(tamis_blend_run(blend, sequence, parts, n, &engine, &test_error), status, text)
    BAD(NULL, sequence, p.parts, p.n_parts, TAMIS_E_ARGUMENT, "blend is NULL");
    FAILS(tamis_blend_run(blend, sequence, p.parts, p.n_parts, NULL, &test_error), TAMIS_E_ARGUMENT,
          "engine is NULL");
    engine.keep = NULL;
    BAD(blend, sequence, p.parts, p.n_parts, TAMIS_E_ARGUMENT, "keep of the engine is NULL");
    engine = engine_of;
    engine.reserved[1] = 7;
    BAD(blend, sequence, p.parts, p.n_parts, TAMIS_E_ARGUMENT, "tamis_blend_engine");
    engine = engine_of;
    BAD(blend, sequence, NULL, 1, TAMIS_E_ARGUMENT, "parts");
    BAD(blend, sequence, p.parts, 0, TAMIS_E_ARGUMENT, "no token");
    BAD(blend, 99, p.parts, 2, TAMIS_E_ARGUMENT, "sequence 99");
    tamis_blend_part part = {.tokens = NULL, .n_tokens = 3};
    BAD(blend, sequence, &part, 1, TAMIS_E_ARGUMENT, "part 0:");
    part = (tamis_blend_part){.tokens = sink, .n_tokens = 2, .reserved = {0, 1}};
    BAD(blend, sequence, &part, 1, TAMIS_E_ARGUMENT, "reserved");
    part = (tamis_blend_part){.tokens = sink, .n_tokens = ROWS + 1};
    BAD(blend, sequence, &part, 1, TAMIS_E_ARGUMENT, "91 tokens; the plan's max_rows is 90");
    FAILS(tamis_blend_get_layer_stats(blend, 6, &stats, &test_error), TAMIS_E_ARGUMENT, "layer 6");
    FAILS(tamis_blend_get_layer_stats(blend, 0, NULL, &test_error), TAMIS_E_ARGUMENT, "out is");
    /* A prompt that is open: another one, and the blend's end. */
    OK(tms_blend_begin(blend, sequence, p.parts, p.n_parts, &test_error));
    BAD(blend, sequence, p.parts, p.n_parts, TAMIS_E_STATE, "runs a prompt already");
    tamis_blend_destroy(&blend);
    assert_int_equal(test_length(w.cache, sequence), 0);
    /* A listed row past the prompt; a ring that holds no layer of a chunk. */
    tamis_blend_params params = w.good;
    const uint32_t past[] = {ROWS};
    params.selector = TAMIS_BLEND_LIST, params.rows = past, params.n_rows = 1;
    OK(tamis_blend_create(w.plan, w.store, &params, &blend, &test_error));
    BAD(blend, sequence, p.parts, p.n_parts, TAMIS_E_ARGUMENT, "row 90 is listed");
    tamis_blend_destroy(&blend);
    params = w.good;
    params.ring_bytes = 1024;
    OK(tamis_blend_create(w.plan, w.store, &params, &blend, &test_error));
    BAD(blend, sequence, p.parts, p.n_parts, TAMIS_E_ARGUMENT,
        "ring_bytes is 1024; a layer of part");
#undef BAD
    /* The step was given back. */
    part = (tamis_blend_part){.tokens = sink, .n_tokens = 2};
    OK(tms_blend_begin(blend, sequence, &part, 1, &test_error));
    tms_blend_cancel(blend);
    tamis_blend_destroy(&blend);
    close_world(&w);
}

/* ---- Uploads --------------------------------------------------------------------------------- */

static atomic_uint reads_begun;

static tamis_status read_counted(void *user, tamis_chunk *chunk, uint32_t layer, void *k, void *v,
                                 tamis_error *error) {
    (void)user;
    reads_begun++;
    return tamis_chunk_read(chunk, layer, k, v, error);
}

/* A prompt of full reuse. Where `patient`, the first layer waits until the last read has begun. */
static tamis_blend_stats reuse_all(world *w, const prompt *p, bool patient, bool threaded) {
    tamis_blend *blend = NULL;
    tamis_sequence sequence;
    tms_blend_rows rows;
    bool restarted;
    tamis_blend_stats stats;
    tamis_blend_params params = w->good;
    const tamis_rows v = {.buffer = w->v};
    params.selector = TAMIS_BLEND_NONE;
    params.check_layer = TAMIS_BLEND_NO_CHECK;
    params.ring_bytes = 1u << 20; /* all of it */
    params.reader = read_counted;
    params.flags = threaded ? 0 : TAMIS_BLEND_NO_THREAD;
    reads_begun = 0;
    OK(tamis_cache_add(w->cache, &sequence, &test_error));
    OK(tamis_blend_create(w->plan, w->store, &params, &blend, &test_error));
    OK(tms_blend_begin(blend, sequence, p->parts, p->n_parts, &test_error));
    tamis_blend_get_stats(blend, &stats);
    while (patient && reads_begun < LAYERS * stats.parts_found)
        sched_yield();
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        OK(tms_blend_layer(blend, layer, &rows, &restarted, &test_error));
        OK(tms_blend_compare(blend, layer, &v, &test_error));
        OK(tamis_plan_write(w->plan, layer, &v, &v, &test_error));
        OK(tms_blend_select(blend, layer, &rows, &test_error));
    }
    tamis_blend_get_stats(blend, &stats);
    tamis_blend_destroy(&blend);
    OK(tamis_cache_remove(w->cache, sequence, &test_error));
    return stats;
}

/* What has been read goes to the device before its layer comes; without a thread nothing does. */
static void what_was_read_ahead_is_uploaded_ahead(void **state) {
    (void)state;
    static world w;
    static prompt p;
    uint64_t random = 3;
    open_world(&w, NULL);
    make_prompt(&p, &random, 1);
    const tamis_blend_stats ahead = reuse_all(&w, &p, true, true);
    const uint64_t reads = LAYERS * ahead.parts_found;
    assert_true(ahead.parts_found > 1);
    assert_int_equal(ahead.uploads, reads);
    /* The last read may not have ended when the first layer was done. */
    assert_in_range(ahead.uploads_ahead, reads - ahead.parts_found - 1, reads - ahead.parts_found);
    const tamis_blend_stats at_once = reuse_all(&w, &p, false, false);
    assert_int_equal(at_once.uploads, reads);
    assert_int_equal(at_once.uploads_ahead, 0);
    close_world(&w);
}

static void selectors_are_known_by_name(void **state) {
    (void)state;
    static const char *const names[] = {"hkvd", "first", "random",  "list",
                                        "all",  "none",  "question"};
    tamis_blend_selector selector;
    for (int i = 0; i < 7; i++) {
        OK(tamis_blend_selector_parse(names[i], &selector, &test_error));
        assert_int_equal(selector, i);
        assert_string_equal(tamis_blend_selector_name(selector), names[i]);
    }
    assert_string_equal(tamis_blend_selector_name((tamis_blend_selector)7), "unknown");
    FAILS(tamis_blend_selector_parse("kv", &selector, &test_error), TAMIS_E_ARGUMENT,
          "\"kv\"; known are hkvd, question, first, random, list, all, none");
    FAILS(tamis_blend_selector_parse(NULL, &selector, &test_error), TAMIS_E_ARGUMENT, "name");
    FAILS(tamis_blend_selector_parse("all", NULL, &test_error), TAMIS_E_ARGUMENT, "out");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selectors_keep_the_rows_of_the_rule),
        cmocka_unit_test(the_last_rows_are_computed),
        cmocka_unit_test(nothing_is_exact_behind_other_tokens),
        cmocka_unit_test(random_rows_follow_from_the_seed),
        cmocka_unit_test(bad_parameters_are_refused),
        cmocka_unit_test(reindexed_streaming_is_refused),
        cmocka_unit_test(an_engine_that_fails_ends_its_prompt),
        cmocka_unit_test(bad_prompts_are_refused),
        cmocka_unit_test(what_was_read_ahead_is_uploaded_ahead),
        cmocka_unit_test(selectors_are_known_by_name),
    };
    int skipped = test_begin(argc, argv);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
