/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows selector question computes, for random prompts: an engine of no layers hands in q, K
 * and V, and a plain statement of the rule, in fp64, says which rows must stay in either pass. Then
 * what begins anew. */
#include "lib/blend/blend.h"
#include "tests/api/fixture.h"
#include <tamis/blend.h>

#include <math.h>
#include <string.h>

enum { LAYERS = 3, HEADS = 4, KV_HEADS = 2, DIM = 64, ROWS = 90, CONTEXT = 128, BEHIND = 6 };
enum { CHUNKS = 6, HELD = 4, LONGEST = 24, PARTS = 8, SINKS = 2 };
enum { FRESH, HIT, EXACT };
#define NEAR 1e-4 /* of masses: what rounding may order otherwise */

static const int32_t sink[SINKS] = {7, 9};
static int32_t texts[CHUNKS][LONGEST]; /* the store holds the first ones */

typedef struct world {
    tamis_context *context;
    tamis_cache *cache;
    tamis_plan *plan;
    tamis_store *store;
    tamis_buffer *table, *q, *k, *v;
    uint32_t sliding_window;
    tamis_blend_params good;
} world;

/* A prompt, what its rows are, and which its question are. */
typedef struct prompt {
    tamis_blend_part parts[PARTS];
    uint32_t n_parts, n, n_hits, question;
    int32_t fresh[PARTS][LONGEST];
    int32_t tokens[ROWS];
    int kind[ROWS];
} prompt;

/* ---- World ----------------------------------------------------------------------------------- */

/* A value of K (0), V (1) or q (2) that follows from a number: eighths from -1 to 1, so that every
 * type holds them. Rotation turns by 0. */
static float value_of(uint64_t number, uint32_t layer, uint32_t which, uint32_t d) {
    uint64_t state = ((number * LAYERS + layer) * 3 + which) * 1024 + d;
    return (float)((int)(test_random(&state) >> 33 & 15) - 8) / 8;
}

/* The stored K of a token, that which a row computes, and its query. */
static uint64_t stored_number(int32_t token) {
    return 5000 + (uint64_t)token;
}
static uint64_t row_number(uint32_t row) {
    return row;
}

static uint32_t length_of(uint32_t chunk) {
    return 3 + 5 * chunk % 17;
}

static void put_chunk(world *w, uint32_t chunk) {
    static float k[LAYERS][LONGEST * KV_HEADS * DIM], v[LAYERS][LONGEST * KV_HEADS * DIM];
    const void *planes[2][LAYERS];
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t i = 0; i < length_of(chunk); i++)
            for (uint32_t d = 0; d < KV_HEADS * DIM; d++) {
                const uint64_t number = stored_number(texts[chunk][i]);
                k[layer][i * KV_HEADS * DIM + d] = value_of(number, layer, 0, d);
                v[layer][i * KV_HEADS * DIM + d] = value_of(number, layer, 1, d);
            }
        planes[0][layer] = k[layer];
        planes[1][layer] = v[layer];
    }
    tamis_chunk_planes put = {.id = {.tokens = texts[chunk],
                                     .n_tokens = length_of(chunk),
                                     .shape = {.n_layers = LAYERS,
                                               .n_kv_heads = KV_HEADS,
                                               .head_dim = DIM,
                                               .sink = SINKS}},
                              .k = planes[0],
                              .v = planes[1]};
    OK(tamis_fingerprint_extend(w->good.fingerprint, sink, SINKS, put.id.fingerprint, &test_error));
    OK(tamis_store_put(w->store, &put, &test_error));
}

static void open_world(world *w, uint32_t sliding_window) {
    const tamis_context_params context = {.device = test_device};
    const tamis_store_params store = {.memory_bytes = 16 << 20};
    const double still[DIM / 2] = {0};
    tamis_cache_params shape = test_shape();
    const tamis_plan_params plan = {.max_rows = ROWS,
                                    .max_context = CONTEXT,
                                    .load_dtypes = 1u << TAMIS_F32,
                                    .flags = TAMIS_PLAN_ROW_MASSES,
                                    .attention.sliding_window = sliding_window};
    const uint64_t bytes = ROWS * HEADS * DIM * sizeof(float);
    *w = (world){.sliding_window = sliding_window};
    shape.n_layers = LAYERS;
    shape.page_size = 16;
    shape.capacity_tokens = 4 * CONTEXT;
    OK(tamis_context_create(&context, &w->context, &test_error));
    OK(tamis_cache_create(w->context, &shape, &w->cache, &test_error));
    OK(tamis_plan_create(w->cache, &plan, &w->plan, &test_error));
    OK(tamis_buffer_create(w->context, tamis_rotation_bytes(DIM), &w->table, &test_error));
    OK(tamis_buffer_create(w->context, bytes, &w->q, &test_error));
    OK(tamis_buffer_create(w->context, bytes, &w->k, &test_error));
    OK(tamis_buffer_create(w->context, bytes, &w->v, &test_error));
    w->good = (tamis_blend_params){.selector = TAMIS_BLEND_QUESTION,
                                   .rotation = {.n_rot = DIM, .table = {w->table, 0}},
                                   .n_sink = SINKS,
                                   .sink = sink,
                                   .fingerprint = "a model"};
    OK(tamis_rotation_write(&w->good.rotation, still, &test_error));
    OK(tamis_store_create(&store, &w->store, &test_error));
    for (uint32_t c = 0; c < CHUNKS; c++)
        for (uint32_t i = 0; i < LONGEST; i++)
            texts[c][i] = (int32_t)(100 * (c + 1) + i);
    for (uint32_t c = 0; c < HELD; c++)
        put_chunk(w, c);
}

static void close_world(world *w) {
    tamis_store_destroy(&w->store);
    tamis_buffer_destroy(&w->table);
    tamis_buffer_destroy(&w->q);
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
        p->tokens[p->n] = tokens[i];
        p->kind[p->n++] = kind;
    }
    if (stored) p->question = p->n;
}

/* Begins with the sink or not; then chunks that the store has or lacks, and fresh tokens. Some end
 * with a chunk, so that their last token asks. */
static void make_prompt(prompt *p, uint64_t *state, bool behind) {
    memset(p, 0, sizeof *p);
    const bool is_sink = test_below(state, 2);
    add_part(p, is_sink ? sink : texts[0], SINKS, 0, FRESH);
    while (p->n_parts < PARTS - 1 && p->n + 2 * LONGEST < ROWS) {
        const uint32_t chunk = test_below(state, CHUNKS);
        const bool held = chunk < HELD, exact = held && is_sink && !behind && p->n == SINKS;
        int32_t *fresh = p->fresh[p->n_parts];
        for (uint32_t i = 0; i < LONGEST; i++)
            fresh[i] = (int32_t)test_below(state, 1000);
        if (test_below(state, 5) == 0)
            add_part(p, fresh, 1 + test_below(state, 6), 0, FRESH);
        else
            add_part(p, texts[chunk], length_of(chunk), 1, exact ? EXACT : held ? HIT : FRESH);
    }
    if (test_below(state, 4) > 0)
        add_part(p, p->fresh[0], 1 + test_below(state, LONGEST), 0, FRESH);
    p->kind[p->n - 1] = FRESH;
    if (p->question == p->n) p->question--;
    for (uint32_t row = 0; row < p->n; row++)
        p->n_hits += p->kind[row] == HIT;
}

/* ---- The rule -------------------------------------------------------------------------------- */

/* K of a token in full reuse; below 0 those of the sequence before the prompt. */
static uint64_t reused(const prompt *p, int64_t at) {
    if (at < 0) return 9000 + (uint64_t)-at;
    return p->kind[at] == FRESH ? row_number((uint32_t)at) : stored_number(p->tokens[at]);
}

static double logit(const prompt *p, uint32_t row, int64_t at, uint32_t layer, uint32_t head) {
    double sum = 0;
    for (uint32_t d = 0; d < DIM; d++)
        sum += (double)value_of(row_number(row), layer, 2, head * DIM + d) *
               (double)value_of(reused(p, at), layer, 0, head / (HEADS / KV_HEADS) * DIM + d);
    return sum / 8; /* the root of DIM */
}

/* The rows whose masses are to be no numbers; UINT32_MAX: none. */
static uint32_t odd_rows[] = {UINT32_MAX, UINT32_MAX};

static bool is_odd(uint32_t row) {
    return row == odd_rows[0] || row == odd_rows[1];
}

tamis_status __real_tamis_plan_row_masses(tamis_plan *plan, uint32_t layer, const tamis_rows *q,
                                          uint32_t last, double *mass, tamis_error *error);
tamis_status __wrap_tamis_plan_row_masses(tamis_plan *plan, uint32_t layer, const tamis_rows *q,
                                          uint32_t last, double *mass, tamis_error *error);
tamis_status __wrap_tamis_plan_row_masses(tamis_plan *plan, uint32_t layer, const tamis_rows *q,
                                          uint32_t last, double *mass, tamis_error *error) {
    for (size_t i = 0; i < 2 && odd_rows[i] != UINT32_MAX; i++)
        mass[odd_rows[i]] = NAN;
    return __real_tamis_plan_row_masses(plan, layer, q, last, mass, error);
}

static void add_masses(const world *w, const prompt *p, uint32_t behind, double *mass) {
    for (uint32_t row = p->question; row < p->n; row++)
        for (uint32_t i = 0; i < LAYERS * HEADS; i++) {
            double weights[CONTEXT], sum = 0;
            int64_t from = w->sliding_window ? (int64_t)row - w->sliding_window + 1 : -1000;
            from = from < -(int64_t)behind ? -(int64_t)behind : from;
            for (int64_t at = from; at <= row; at++)
                sum += weights[at - from] = exp(logit(p, row, at, i / HEADS, i % HEADS));
            for (int64_t at = from < 0 ? 0 : from; at <= row; at++)
                mass[at] += weights[at - from] / sum;
        }
    for (uint32_t row = 0; row < p->n; row++)
        if (is_odd(row)) mass[row] = INFINITY;
}

/* Leaves the k hits of the largest masses, of equal ones the lower rows. False: rounding might
 * choose others. */
static bool keep_largest(const prompt *p, const double *mass, uint32_t k, bool *in) {
    double least = INFINITY, most = -INFINITY;
    bool kept[ROWS] = {false};
    for (; k > 0; k--) {
        uint32_t best = ROWS;
        for (uint32_t row = 0; row < p->n; row++)
            if (p->kind[row] == HIT && !kept[row] && (best == ROWS || mass[row] > mass[best]))
                best = row;
        if (best == ROWS) break;
        kept[best] = true;
        least = mass[best];
    }
    for (uint32_t row = 0; row < p->n; row++) {
        if (p->kind[row] != HIT) continue;
        if (!kept[row]) most = fmax(most, mass[row]);
        in[row] = kept[row];
    }
    return most == 0 || least - most > NEAR * least || isinf(most) || isinf(least);
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

static void fill(tamis_buffer *to, const uint64_t *numbers, uint32_t n, uint32_t layer,
                 uint32_t which, uint32_t heads) {
    static float rows[ROWS * HEADS * DIM];
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t d = 0; d < heads * DIM; d++)
            rows[i * heads * DIM + d] = value_of(numbers[i], layer, which, d);
    OK(tamis_buffer_write(to, 0, rows, (uint64_t)n * heads * DIM * sizeof *rows, &test_error));
}

static void fill_rows(world *w, const tms_blend_rows *rows, uint32_t layer, bool queries) {
    uint64_t numbers[ROWS];
    for (uint32_t i = 0; i < rows->n; i++)
        numbers[i] = row_number(rows->rows[i]);
    if (queries) fill(w->q, numbers, rows->n, layer, 2, HEADS);
    if (!queries) fill(w->k, numbers, rows->n, layer, 0, KV_HEADS);
    if (!queries) fill(w->v, numbers, rows->n, layer, 1, KV_HEADS);
}

/* A sequence with tokens that the blend does not know. */
static tamis_sequence begin_sequence(world *w, uint32_t behind) {
    const tamis_rows k = {.buffer = w->k};
    tamis_sequence sequence;
    uint64_t numbers[BEHIND];
    OK(tamis_cache_add(w->cache, &sequence, &test_error));
    const tamis_step step = {.sequences = &sequence, .rows = &behind, .count = 1, .exact = 1};
    if (behind == 0) return sequence;
    OK(tamis_plan_step_begin(w->plan, &step, &test_error));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t i = 0; i < behind; i++)
            numbers[i] = 9000 + behind - i;
        fill(w->k, numbers, behind, layer, 0, KV_HEADS);
        OK(tamis_plan_write(w->plan, layer, &k, &k, &test_error));
    }
    OK(tamis_plan_step_end(w->plan, &test_error));
    return sequence;
}

/* A layer of the engine: whether the prompt begins anew. `in` are the rows that must be computed,
 * `stays` those that must stay. */
static bool play_layer(world *w, tamis_blend *blend, const prompt *p, uint32_t layer,
                       const bool *in, const bool *stays) {
    const tamis_rows k = {.buffer = w->k}, v = {.buffer = w->v}, q = {.buffer = w->q};
    tms_blend_rows rows;
    bool restarted = true;
    OK(tms_blend_layer(blend, layer, &rows, &restarted, &test_error));
    assert_false(restarted);
    expect_rows("computed", layer, &rows, in, p->n);
    fill_rows(w, &rows, layer, false);
    OK(tms_blend_compare(blend, layer, &v, &test_error));
    OK(tamis_plan_write(w->plan, layer, &k, &v, &test_error));
    OK(tms_blend_select(blend, layer, &rows, &test_error));
    expect_rows("kept", layer, &rows, stays, p->n);
    fill_rows(w, &rows, layer, true);
    OK(tms_blend_observe(blend, layer, &q, &restarted, &test_error));
    return restarted;
}

/* The pass in which the question asks: fresh rows alone. */
static void play_asking(world *w, tamis_blend *blend, const prompt *p) {
    bool in[ROWS];
    for (uint32_t row = 0; row < p->n; row++)
        in[row] = p->kind[row] == FRESH;
    for (uint32_t layer = 0; layer < LAYERS && p->n_hits > 0; layer++)
        assert_int_equal(play_layer(w, blend, p, layer, in, in), layer + 1 == LAYERS);
}

/* False: the masses are too near each other. */
static bool play(world *w, const tamis_blend_params *params, const prompt *p, uint32_t behind) {
    static const double falling[] = {1.5, 1.25, 1.1};
    bool in[LAYERS + 1][ROWS];
    double mass[ROWS] = {0};
    tamis_blend_stats stats;
    tamis_blend *blend = NULL;
    const uint32_t from = params->check_layer == TAMIS_BLEND_NO_CHECK ? 0 : 1;
    add_masses(w, p, behind, mass);
    /* in[i]: the rows with which layer i begins. */
    for (uint32_t i = 0; i <= LAYERS; i++) {
        const uint32_t at = from ? i - 2 : i ? i - 1 : 0; /* the share's place, from 0 on */
        const double share = params->schedule ? 1 : falling[at < 3 ? at : 2];
        for (uint32_t row = 0; row < p->n; row++)
            in[i][row] = p->kind[row] != EXACT;
        if (from && i < 2) continue;
        const uint32_t k = (uint32_t)ceil(fmin(1, share * params->share) * p->n_hits);
        if (!keep_largest(p, mass, k, in[i])) return false;
    }
    const tamis_sequence sequence = begin_sequence(w, behind);
    OK(tamis_blend_create(w->plan, w->store, params, &blend, &test_error));
    OK(tms_blend_begin(blend, sequence, p->parts, p->n_parts, &test_error));
    play_asking(w, blend, p);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_int_equal(play_layer(w, blend, p, layer, in[layer], in[layer + 1]), 0);
    OK(tms_blend_end(blend, &test_error));
    tamis_blend_get_stats(blend, &stats);
    assert_int_equal(stats.asked, p->n_hits > 0);
    assert_int_equal(stats.restarts, 0);
    assert_int_equal(stats.tokens_hit, p->n_hits);
    tamis_blend_destroy(&blend);
    OK(tamis_cache_remove(w->cache, sequence, &test_error));
    return true;
}

static void rows_are_those_of_the_rule(void **state) {
    (void)state;
    const uint32_t prompts = strcmp(test_device, "reference") == 0 ? 40 : 4;
    static world w;
    static prompt p;
    uint32_t played = 0;
    for (int window = 0; window < 2; window++) {
        open_world(&w, window ? 25 : 0);
        for (uint64_t seed = 1; seed <= prompts; seed++) {
            uint64_t random = 100 * seed + (uint64_t)window;
            const uint32_t behind = test_below(&random, 3) == 0 ? BEHIND : 0;
            tamis_blend_params params = w.good;
            make_prompt(&p, &random, behind > 0);
            params.share = 0.05 + 0.1 * test_below(&random, 9);
            if (test_below(&random, 2)) params.schedule = TAMIS_BLEND_FLAT;
            if (test_below(&random, 2)) params.check_layer = TAMIS_BLEND_NO_CHECK;
            params.flags = test_below(&random, 2) ? TAMIS_BLEND_NO_THREAD : 0;
            played += play(&w, &params, &p, behind);
        }
        close_world(&w);
    }
    assert_true(4 * played >= 3 * 2 * prompts);
}

static void what_is_no_number_ranks_first(void **state) {
    (void)state;
    static world w;
    static prompt p;
    tamis_blend_params params;
    open_world(&w, 0);
    params = w.good;
    params.share = 0.1; /* of 31 hits, times 1.5 in the first layer */
    add_part(&p, sink, SINKS, 0, FRESH);
    add_part(&p, texts[0], length_of(0), 1, EXACT);
    add_part(&p, texts[3], length_of(3), 1, HIT);
    add_part(&p, texts[2], length_of(2), 1, HIT);
    add_part(&p, sink, SINKS, 0, FRESH);
    p.n_hits = length_of(3) + length_of(2);
    odd_rows[0] = 22, odd_rows[1] = 34;
    assert_true(play(&w, &params, &p, 0));
    odd_rows[0] = odd_rows[1] = UINT32_MAX;
    close_world(&w);
}

/* ---- Damage ---------------------------------------------------------------------------------- */

/* Every plane of the last layer is damaged. */
static tamis_status read_badly(void *user, tamis_chunk *chunk, uint32_t layer, void *k, void *v,
                               tamis_error *error) {
    (void)user;
    if (layer + 1 < LAYERS) return tamis_chunk_read(chunk, layer, k, v, error);
    *error = (tamis_error){TAMIS_E_DAMAGED, "bent by the test"};
    return TAMIS_E_DAMAGED;
}

static void a_restart_begins_with_layer_0(void **state) {
    (void)state;
    static world w;
    static prompt p;
    tamis_blend *blend = NULL;
    tamis_sequence sequence;
    tms_blend_rows rows = {0};
    bool restarted = false;
    open_world(&w, 0);
    const tamis_rows v = {.buffer = w.v};
    tamis_blend_params params = w.good;
    params.selector = TAMIS_BLEND_NONE;
    params.reader = read_badly;
    memset(&p, 0, sizeof p);
    add_part(&p, texts[1], length_of(1), 1, HIT);
    add_part(&p, sink, SINKS, 0, FRESH);
    OK(tamis_cache_add(w.cache, &sequence, &test_error));
    OK(tamis_blend_create(w.plan, w.store, &params, &blend, &test_error));
    OK(tms_blend_begin(blend, sequence, p.parts, p.n_parts, &test_error));
    for (int again = 0; again < 2; again++) {
        for (uint32_t layer = 0; layer < LAYERS && (again || !restarted); layer++) {
            OK(tms_blend_layer(blend, layer, &rows, &restarted, &test_error));
            assert_int_equal(restarted, !again && layer + 1 == LAYERS);
            if (restarted) continue;
            OK(tms_blend_compare(blend, layer, &v, &test_error));
            OK(tamis_plan_write(w.plan, layer, &v, &v, &test_error));
            OK(tms_blend_select(blend, layer, &rows, &test_error));
        }
    }
    OK(tms_blend_end(blend, &test_error));
    tamis_blend_destroy(&blend);
    close_world(&w);
}

/* ---- Order of destroying --------------------------------------------------------------------- */

/* A prompt is open when the plan, the store or the context that the blend needs is destroyed. */
static void a_blend_outlives_what_it_needs(void **state) {
    (void)state;
    static world w;
    static prompt p;
    static const char *const names[] = {"the plan from which", "the store from which",
                                        "the cache from which", "the context from which"};
    for (int gone = 0; gone < 4; gone++) {
        tamis_blend *blend = NULL;
        tamis_sequence sequence;
        tms_blend_rows rows;
        bool restarted;
        tamis_plan *plan = NULL;
        const tamis_plan_params params = {.max_context = CONTEXT};
        open_world(&w, 0);
        memset(&p, 0, sizeof p);
        add_part(&p, texts[1], length_of(1), 1, HIT);
        add_part(&p, sink, SINKS, 0, FRESH);
        OK(tamis_cache_add(w.cache, &sequence, &test_error));
        OK(tamis_blend_create(w.plan, w.store, &w.good, &blend, &test_error));
        OK(tms_blend_begin(blend, sequence, p.parts, p.n_parts, &test_error));
        OK(tms_blend_layer(blend, 0, &rows, &restarted, &test_error));
        if (gone == 0) tamis_plan_destroy(&w.plan);
        if (gone == 1) tamis_store_destroy(&w.store);
        if (gone == 2) tamis_cache_destroy(&w.cache);
        if (gone == 3) tamis_context_destroy(&w.context);
        FAILS(tms_blend_select(blend, 0, &rows, &test_error), TAMIS_E_STATE, names[gone]);
        FAILS(tms_blend_end(blend, &test_error), TAMIS_E_STATE, names[gone]);
        /* The plan has given up its step. */
        if (gone == 0) {
            OK(tamis_plan_create(w.cache, &params, &plan, &test_error));
            OK(tamis_plan_step_begin(plan, &(tamis_step){.sequences = &sequence, .count = 1},
                                     &test_error));
            tamis_plan_destroy(&plan);
        }
        tamis_blend_destroy(&blend);
        close_world(&w);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_are_those_of_the_rule),
                                       cmocka_unit_test(what_is_no_number_ranks_first),
                                       cmocka_unit_test(a_blend_outlives_what_it_needs),
                                       cmocka_unit_test(a_restart_begins_with_layer_0)};
    int skipped = test_begin(argc, argv);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
