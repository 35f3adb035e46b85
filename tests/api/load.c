/* SPDX-License-Identifier: Apache-2.0 */
/* Stored rows that are loaded into a step: they are what writing the same rows leaves, they may be
 * mixed with rows that are written, and no row is read whose K or V is in no slot. */
#include "host/reference/convert.h"
#include "tests/api/evicting.h"
#include "tests/faulty.h"
#include "tests/policies/oracle.h"

#include <math.h>
#include <string.h>

enum { LAYERS = 4, HEADS = 4, KV_HEADS = 2, DIM = 64, PAGE = 8, WIDTH = HEADS * DIM };
/* Tokens before the step, and the step's rows of both texts. The first tokens are not rotated. */
enum { OLD = 11, FIRST = 45, SECOND = 22, ALL = FIRST + SECOND, MOST = 96 };
#define EPS 1e-5f
/* A stored row is that of another token, so that it differs from the row that is computed. */
#define STORED (1ull << 20)

/* How a case stores, rotates and caches. */
typedef struct load_case {
    tamis_dtype cache, source;
    tamis_pairing pairing;
    uint32_t n_rot;
    bool norm, quest;
    tamis_eviction_kind eviction;
} load_case;

/* Two texts that share a partial page, and what a step did with them. */
typedef struct rig {
    evict_world e;
    load_case c;
    tamis_sequence ids[2];
    tamis_buffer *stored[2], *positions, *table, *norm;
    uint64_t content[LAYERS][2][MOST]; /* whose K and V the tokens have */
    uint32_t n_attended[LAYERS], attended[LAYERS][ALL];
    float q[LAYERS][ALL * WIDTH], out[LAYERS][ALL * WIDTH];
} rig;

/* The text of a row of the step as begun, and its position. */
static uint32_t text_of(uint32_t row) {
    return row >= FIRST;
}
static uint32_t position_of(uint32_t row) {
    return OLD + row - (row >= FIRST ? FIRST : 0);
}
static uint64_t fresh_of(uint32_t row) {
    return 1000 * (1 + text_of(row)) + position_of(row);
}

static double frequency(const rig *r, uint32_t i) {
    return pow(10000, -2.0 * i / r->c.n_rot);
}

static float weight(uint32_t d) {
    return 1 + test_value(d, 0, 0, 0) / 8;
}

static void make_buffers(rig *r) {
    tamis_context *context = r->e.w.context;
    double frequencies[DIM / 2];
    float norm[DIM];
    for (uint32_t i = 0; i < r->c.n_rot / 2; i++)
        frequencies[i] = frequency(r, i);
    for (uint32_t d = 0; d < DIM; d++)
        norm[d] = weight(d);
    for (uint32_t part = 0; part < 2; part++)
        OK(tamis_buffer_create(context, ALL * KV_HEADS * DIM * 4, &r->stored[part], &test_error));
    OK(tamis_buffer_create(context, ALL * sizeof(int32_t), &r->positions, &test_error));
    OK(tamis_buffer_create(context, tamis_rotation_bytes(r->c.n_rot), &r->table, &test_error));
    OK(tamis_buffer_create(context, sizeof norm, &r->norm, &test_error));
    OK(tamis_buffer_write(r->norm, 0, norm, sizeof norm, NULL));
    const tamis_rotation rotation = {r->c.n_rot, r->c.pairing, {r->table, 0}};
    OK(tamis_rotation_write(&rotation, frequencies, &test_error));
}

static void open_rig(rig *r, const load_case *c) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_sequences = 2,
                              .max_rows = ALL,
                              .max_context = MOST,
                              .load_dtypes = 1u << c->source,
                              .eviction = test_eviction(c->eviction, 24, 0)};
    uint64_t tokens[OLD];
    memset(r, 0, sizeof *r);
    r->c = *c;
    if (r->c.n_rot == 0) r->c.n_rot = DIM;
    if (c->quest) tamis_selection_default(TAMIS_SELECT_QUEST, &plan.selection);
    if (c->quest) plan.selection.budget = 32;
    if (c->quest) plan.selection.sinks = plan.selection.recent = 8;
    shape.dtype = c->cache;
    shape.n_layers = LAYERS;
    shape.capacity_tokens = 512;
    shape.planes = c->quest ? TAMIS_PLANE_POSITIONS : 0;
    evict_open(&r->e, &shape, &plan);
    make_buffers(r);
    for (uint32_t i = 0; i < OLD; i++)
        tokens[i] = 500 + i;
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t text = 0; text < 2; text++)
            memcpy(r->content[layer][text], tokens, sizeof tokens);
    OK(tamis_cache_add(r->e.w.cache, &r->ids[0], &test_error));
    OK(test_append(&r->e.w, r->ids[0], tokens, OLD));
    OK(tamis_cache_fork(r->e.w.cache, r->ids[0], &r->ids[1], &test_error));
    tamis_plan_reset_counters(r->e.w.plan);
}

static void close_rig(rig *r) {
    tamis_buffer **all[] = {&r->stored[0], &r->stored[1], &r->positions, &r->table, &r->norm};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tamis_buffer_destroy(all[i]);
    evict_close(&r->e);
}

/* ---- Steps ------------------------------------------------------------------------------------ */

static void begin(rig *r) {
    const uint32_t rows[] = {FIRST, SECOND};
    const tamis_step step = {.sequences = r->ids, .rows = rows, .count = 2, .exact = 1};
    OK(test_step_begin(&r->e.w, &step));
}

static void put_content(rig *r, uint32_t layer, uint32_t row, uint64_t token) {
    r->content[layer][text_of(row)][position_of(row)] = token;
}

/* The rows that tamis_plan_load_rows takes, of rows [first, first + n): K (1), V (2) or both (3). */
static tamis_stored_rows stored_rows(rig *r, uint32_t layer, uint32_t first, uint32_t n,
                                     uint32_t parts) {
    static float row[KV_HEADS * DIM], host[ALL * KV_HEADS * DIM];
    tamis_stored_rows rows = {.rotation = {r->c.n_rot, r->c.pairing, {r->table, 0}},
                              .k_norm = {r->c.norm ? r->norm : NULL, 0},
                              .eps = EPS};
    tamis_rows *to[] = {&rows.k, &rows.v};
    for (uint32_t part = 0; part < 2; part++) {
        if (!(parts >> part & 1)) continue;
        for (uint32_t i = 0; i < n; i++) {
            for (uint32_t c = 0; c < KV_HEADS * DIM; c++)
                row[c] = test_value(fresh_of(first + i) + STORED, layer * KV_HEADS + c / DIM, part,
                                    c % DIM);
            tms_store_row(r->c.source, host, (uint64_t)i * KV_HEADS * DIM, KV_HEADS * DIM, row);
        }
        OK(tamis_buffer_write(r->stored[part], 0, host, n * sizeof row, NULL));
        *to[part] = (tamis_rows){.buffer = r->stored[part], .dtype = r->c.source};
    }
    return rows;
}

static void load(rig *r, uint32_t layer, uint32_t first, uint32_t n, uint32_t parts) {
    const tamis_stored_rows rows = stored_rows(r, layer, first, n, parts);
    OK(tamis_plan_load_rows(r->e.w.plan, layer, first, n, &rows, &test_error));
    for (uint32_t i = first; i < first + n; i++)
        put_content(r, layer, i, fresh_of(i) + STORED);
}

/* Writes the rows, which are all that the step still has, rotated; as computed, or as stored. */
static void write(rig *r, uint32_t layer, const uint32_t *rows, uint32_t n, uint64_t stored) {
    uint64_t tokens[ALL];
    int32_t positions[ALL];
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = fresh_of(rows[i]) + stored;
        positions[i] = (int32_t)position_of(rows[i]);
        put_content(r, layer, rows[i], tokens[i]);
    }
    test_fill_kv(&r->e.w, layer, tokens, n);
    OK(tamis_buffer_write(r->positions, 0, positions, n * sizeof *positions, NULL));
    const tamis_rotated_rows p = {.q = {.buffer = r->e.w.q},
                                  .k = {.buffer = r->e.w.k},
                                  .v = {.buffer = r->e.w.v},
                                  .rotation = {r->c.n_rot, r->c.pairing, {r->table, 0}},
                                  .positions = {r->positions, 0},
                                  .k_norm = {r->c.norm ? r->norm : NULL, 0},
                                  .eps = EPS};
    OK(tamis_plan_write_rotated(r->e.w.plan, layer, &p, &test_error));
}

static void attend(rig *r, uint32_t layer, const uint32_t *rows, uint32_t n) {
    const tamis_rows q = {.buffer = r->e.w.q}, out = {.buffer = r->e.w.out};
    uint64_t tokens[ALL];
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = fresh_of(rows[i]);
    evict_fill_queries(&r->e, layer, tokens, n);
    OK(tamis_plan_attend(r->e.w.plan, layer, &q, &out, &test_error));
    OK(tamis_buffer_read(r->e.w.q, 0, r->q[layer], n * WIDTH * sizeof(float), NULL));
    OK(tamis_buffer_read(r->e.w.out, 0, r->out[layer], n * WIDTH * sizeof(float), NULL));
    memcpy(r->attended[layer], rows, n * sizeof *rows);
    r->n_attended[layer] = n;
}

static void every_row(uint32_t *rows) {
    for (uint32_t i = 0; i < ALL; i++)
        rows[i] = i;
}

/* ---- What is expected ------------------------------------------------------------------------- */

/* A K row of a token at a position, in fp64: K of the step's rows is normalised and rotated. */
static void turned(const rig *r, uint64_t token, uint32_t lane, uint32_t position, double *y) {
    const bool half = r->c.pairing == TAMIS_PAIR_HALF;
    double squares = 0;
    for (uint32_t d = 0; d < DIM; d++) {
        y[d] = test_value(token, lane, 0, d);
        squares += y[d] * y[d];
    }
    for (uint32_t d = 0; d < DIM && r->c.norm && position >= OLD; d++)
        y[d] *= weight(d) / sqrt(squares / DIM + (double)EPS);
    for (uint32_t i = 0; i < r->c.n_rot / 2 && position >= OLD; i++) {
        const uint32_t a = half ? i : 2 * i, b = half ? i + r->c.n_rot / 2 : 2 * i + 1;
        const double angle = position * frequency(r, i), x = y[a];
        y[a] = x * cos(angle) - y[b] * sin(angle);
        y[b] = x * sin(angle) + y[b] * cos(angle);
    }
}

/* The step of a K row at a channel, with the rounding of its block's scale and, in q4, minimum; 0
 * where there are no blocks. */
static double step_of(tamis_dtype cache, const double *y, uint32_t channel) {
    double most = 0, low = INFINITY, high = -INFINITY;
    for (uint32_t d = channel / 32 * 32; d < channel / 32 * 32 + 32; d++) {
        most = fmax(most, fabs(y[d]));
        low = fmin(low, y[d]);
        high = fmax(high, y[d]);
    }
    if (cache == TAMIS_Q4) return ((high - low) / 15 + most / 1024 / 15) * 1.001;
    return tamis_dtype_size(cache) ? 0 : most / 127 * 1.001;
}

/* A lane of a text is what was written and loaded last, K within the rounding of its rotation. */
static void expect_lane(const rig *r, uint32_t layer, uint32_t text, uint32_t head, uint32_t n,
                        const float *k, const float *v) {
    static const double units[TMS_DTYPES] = {0, 0x1p-11, 0x1p-8};
    const uint32_t lane = layer * KV_HEADS + head;
    double y[DIM];
    for (uint32_t s = 0; s < n; s++) {
        const uint64_t token = r->content[layer][text][s];
        turned(r, token, lane, s, y);
        for (uint32_t d = 0; d < DIM; d++) {
            const double step = step_of(r->c.cache, y, d);
            const double allowed = 2e-6 + units[r->c.cache] * fabs(y[d]) + step / 2;
            if (v[s * DIM + d] != test_value(token, lane, 1, d) ||
                !(fabs(k[s * DIM + d] - y[d]) <= allowed))
                fail_msg("layer %u, text %u, position %u, head %u, channel %u: K %g, wanted %g; V "
                         "%g",
                         layer, text, s, head, d, (double)k[s * DIM + d], y[d],
                         (double)v[s * DIM + d]);
        }
    }
}

/* The rows of a text that were attended in a layer saw the lane up to their positions. */
static void expect_outs(const rig *r, uint32_t layer, uint32_t text, uint32_t kv_head,
                        const float *k, const float *v) {
    const oracle_rule rule = {
        .head_dim = DIM, .page_size = PAGE, .group = HEADS / KV_HEADS, .scale = 0.125};
    const oracle_lane lane = {k, v, layer, kv_head};
    uint32_t pages[MOST / PAGE];
    for (uint32_t i = 0; i < MOST / PAGE; i++)
        pages[i] = i;
    for (uint32_t i = 0; i < r->n_attended[layer] * HEADS; i++) {
        const uint32_t row = r->attended[layer][i / HEADS], n = position_of(row) + 1;
        if (text_of(row) != text || i % HEADS / (HEADS / KV_HEADS) != kv_head) continue;
        if (!oracle_attends(&rule, &lane, n, pages, (n + PAGE - 1) / PAGE, r->q[layer] + i * DIM,
                            r->out[layer] + i * DIM))
            fail_msg("layer %u, row %u, head %u", layer, row, i % HEADS);
    }
}

/* After the step's end: what the lanes hold, what was attended, bounds. */
static void expect_all(rig *r) {
    static float k[MOST * DIM], v[MOST * DIM];
    for (uint32_t i = 0; i < 2 * LAYERS * KV_HEADS; i++) {
        const uint32_t text = i % 2, layer = i / 2 / KV_HEADS, head = i / 2 % KV_HEADS;
        const uint32_t n = OLD + (text ? SECOND : FIRST);
        OK(tamis_cache_read(r->e.w.cache, r->ids[text], layer, head, 0, n, k, v, &test_error));
        expect_lane(r, layer, text, head, n, k, v);
        expect_outs(r, layer, text, head, k, v);
    }
    for (uint32_t text = 0; text < 2; text++)
        evict_check_bounds(&r->e, r->ids[text]);
}

/* The same bits in every lane. */
static void expect_same(const rig *a, const rig *b) {
    static float k[2][MOST * DIM], v[2][MOST * DIM];
    const rig *rigs[] = {a, b};
    for (uint32_t i = 0; i < 2 * LAYERS * KV_HEADS; i++) {
        const uint32_t text = i % 2, layer = i / 2 / KV_HEADS, head = i / 2 % KV_HEADS;
        const uint32_t n = OLD + (text ? SECOND : FIRST);
        for (uint32_t s = 0; s < 2; s++)
            OK(tamis_cache_read(rigs[s]->e.w.cache, rigs[s]->ids[text], layer, head, 0, n, k[s],
                                v[s], &test_error));
        assert_memory_equal(k[0], k[1], n * DIM * sizeof(float));
        assert_memory_equal(v[0], v[1], n * DIM * sizeof(float));
    }
}

/* ---- Tests ------------------------------------------------------------------------------------ */

static rig written, loaded;

/* All rows loaded, in pieces that cross the texts, K and V together or apart; nothing is written. */
static void loaded_rows_have_the_bits_of_written_ones(void **state) {
    (void)state;
    static const load_case cases[] = {
        {TAMIS_F32, TAMIS_F32, TAMIS_PAIR_HALF, 0, false, false, TAMIS_EVICT_NONE},
        {TAMIS_F16, TAMIS_F16, TAMIS_PAIR_ADJACENT, 0, false, true, TAMIS_EVICT_NONE},
        {TAMIS_BF16, TAMIS_F32, TAMIS_PAIR_HALF, 18, true, false, TAMIS_EVICT_NONE},
        {TAMIS_F16, TAMIS_BF16, TAMIS_PAIR_HALF, 0, false, false, TAMIS_EVICT_NONE},
        {TAMIS_F32, TAMIS_F32, TAMIS_PAIR_ADJACENT, 0, true, false, TAMIS_EVICT_NONE},
        {TAMIS_Q8, TAMIS_F16, TAMIS_PAIR_HALF, 0, true, true, TAMIS_EVICT_NONE},
        {TAMIS_K8V4, TAMIS_F32, TAMIS_PAIR_HALF, 18, true, true, TAMIS_EVICT_NONE},
        {TAMIS_Q4, TAMIS_BF16, TAMIS_PAIR_HALF, 0, true, false, TAMIS_EVICT_NONE},
    };
    static const uint32_t before[LAYERS] = {1, 2, 3, 1}, after[LAYERS] = {2, 1, 3, 3};
    uint32_t every[ALL];
    every_row(every);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tamis_plan_counters of_written, of_loaded;
        open_rig(&written, &cases[i]);
        open_rig(&loaded, &cases[i]);
        const uint32_t builds = test_builds;
        begin(&written);
        begin(&loaded);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            write(&written, layer, every, ALL, STORED);
            attend(&written, layer, every, ALL);
            load(&loaded, layer, 0, FIRST + 3, before[layer]);
            load(&loaded, layer, FIRST - 20, ALL - FIRST + 20, 3);
            load(&loaded, layer, 0, FIRST, after[layer]);
            attend(&loaded, layer, every, ALL);
            assert_memory_equal(written.out[layer], loaded.out[layer], sizeof loaded.out[layer]);
        }
        OK(tamis_plan_step_end(written.e.w.plan, &test_error));
        OK(tamis_plan_step_end(loaded.e.w.plan, &test_error));
        assert_int_equal(test_builds, builds);
        expect_same(&written, &loaded);
        expect_all(&loaded);
        tamis_plan_get_counters(written.e.w.plan, &of_written);
        tamis_plan_get_counters(loaded.e.w.plan, &of_loaded);
        assert_int_equal(of_loaded.rows_written, 0);
        assert_int_equal(of_loaded.rows_loaded, LAYERS * (FIRST + 3 + ALL - FIRST + 20 + FIRST));
        assert_true(of_loaded.pages_bounded > 0);
        assert_int_equal(of_loaded.pages_bounded, of_written.pages_bounded);
        close_rig(&written);
        close_rig(&loaded);
    }
}

/* Rounds a K row to what the cache holds of it. */
static void hold(const rig *r, double *y) {
    float row[DIM];
    for (uint32_t d = 0; d < DIM; d++) {
        const double place = y[d] != 0 ? ldexp(1, ilogb(y[d]) - 10) : 1; /* the last one of f16 */
        row[d] = (float)(r->c.cache == TAMIS_F16 ? nearbyint(y[d] / place) * place : y[d]);
    }
    oracle_hold(r->c.cache, false, row, DIM);
    for (uint32_t d = 0; d < DIM; d++)
        y[d] = (double)row[d];
}

/* The step's deviations and norms: each row's sums of squares over both heads. */
static void expect_deviations(rig *r, uint32_t layer, int values, const uint32_t *rows,
                              uint32_t n) {
    const tamis_rows x = {.buffer = values ? r->e.w.v : r->e.w.k};
    uint64_t tokens[ALL] = {0};
    float out[ALL], norms[ALL];
    const tamis_place to = {r->e.w.out, 64}, behind = {r->e.w.out, 64 + sizeof out};
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = fresh_of(rows[i]);
    test_fill_kv(&r->e.w, layer, tokens, n);
    OK(tamis_plan_row_deviations(r->e.w.plan, layer, &x, values, &to, &behind, &test_error));
    OK(tamis_buffer_read(r->e.w.out, to.offset, out, n * sizeof *out, NULL));
    OK(tamis_buffer_read(r->e.w.out, behind.offset, norms, n * sizeof *norms, NULL));
    for (uint32_t i = 0; i < n; i++) {
        double sum = 0, norm = 0, y[DIM];
        for (uint32_t h = 0; h < KV_HEADS; h++) {
            const uint32_t lane = layer * KV_HEADS + h;
            const uint64_t token = r->content[layer][text_of(rows[i])][position_of(rows[i])];
            turned(r, token, lane, values ? 0 : position_of(rows[i]), y);
            hold(r, y);
            for (uint32_t d = 0; d < DIM; d++) {
                const double there = values ? test_value(token, lane, 1, d) : y[d];
                sum += pow(test_value(tokens[i], lane, !!values, d) - there, 2);
                norm += pow(test_value(tokens[i], lane, !!values, d), 2);
            }
        }
        if (!(fabs(out[i] - sum) <= 1e-4 * sum) || !(fabs(norms[i] - norm) <= 1e-4 * norm))
            fail_msg("row %u: %g and %g, wanted %g and %g", rows[i], (double)out[i],
                     (double)norms[i], sum, norm);
        assert_true(sum > 1);
    }
}

/* A step of one row each under quest, which needs the bounds. */
static void decode(rig *r) {
    float outs[2 * WIDTH];
    const tamis_rows q = {.buffer = r->e.w.q}, out = {.buffer = r->e.w.out};
    const tamis_step step = {.sequences = r->ids, .count = 2};
    const uint64_t tokens[] = {7000, 8000};
    held h;
    OK(test_step_begin(&r->e.w, &step));
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        test_write(&r->e.w, layer, tokens, 2);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        evict_fill_queries(&r->e, layer, tokens, 2);
        OK(tamis_plan_attend(r->e.w.plan, layer, &q, &out, &test_error));
        OK(tamis_buffer_read(r->e.w.out, 0, outs, sizeof outs, NULL));
    }
    OK(tamis_plan_step_end(r->e.w.plan, &test_error));
    h = evict_read(&r->e, r->ids[0]);
    /* The lists that can be read are those of row 0 in the last layer. */
    evict_dense(&r->e, &h, LAYERS - 1, tokens[0], outs, true);
    held_free(&h);
}

/* CacheBlend's way: layer 0 for all rows; the stored V of layer 1 compared with the computed, which
 * is written; then few rows, between loaded ones. */
static void a_blend_is_what_its_rows_are(void **state) {
    (void)state;
    static const load_case cases[] = {
        {TAMIS_F32, TAMIS_F32, TAMIS_PAIR_HALF, 0, true, true, TAMIS_EVICT_NONE},
        {TAMIS_F16, TAMIS_F16, TAMIS_PAIR_ADJACENT, 32, false, true, TAMIS_EVICT_NONE},
        {TAMIS_Q8, TAMIS_F16, TAMIS_PAIR_HALF, 0, true, true, TAMIS_EVICT_NONE},
        {TAMIS_K8V4, TAMIS_F32, TAMIS_PAIR_HALF, 18, true, true, TAMIS_EVICT_NONE},
        {TAMIS_Q4, TAMIS_F16, TAMIS_PAIR_ADJACENT, 32, true, true, TAMIS_EVICT_NONE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t every[ALL], rows[ALL], n = 0;
        tamis_plan_counters counters;
        every_row(every);
        for (uint32_t row = 0; row < ALL; row++)
            if (row % 5 == 2 || row == ALL - 1) rows[n++] = row;
        open_rig(&loaded, &cases[i]);
        tamis_plan *plan = loaded.e.w.plan;
        begin(&loaded);
        write(&loaded, 0, every, ALL, 0);
        attend(&loaded, 0, every, ALL);
        load(&loaded, 1, 0, ALL, 2);
        expect_deviations(&loaded, 1, 1, every, ALL);
        write(&loaded, 1, every, ALL, 0);
        OK(tamis_plan_step_keep_rows(plan, rows, n, &test_error));
        attend(&loaded, 1, rows, n);
        load(&loaded, 2, 0, ALL, 3);
        expect_deviations(&loaded, 2, 1, rows, n);
        expect_deviations(&loaded, 2, 0, rows, n);
        write(&loaded, 2, rows, n, 0);
        attend(&loaded, 2, rows, n);
        rows[n / 2] = rows[n - 1];
        n = n / 2 + 1;
        OK(tamis_plan_step_keep_rows(plan, rows, n, &test_error));
        load(&loaded, 3, 0, ALL, 3);
        write(&loaded, 3, rows, n, 0);
        attend(&loaded, 3, rows, n);
        OK(tamis_plan_step_end(plan, &test_error));
        expect_all(&loaded);
        tamis_plan_reset_counters(plan);
        decode(&loaded);
        tamis_plan_get_counters(plan, &counters);
        assert_int_equal(counters.rows_selected, 2 * LAYERS);
        close_rig(&loaded);
    }
}

/* knorm scores keys when they come; `mixed`: some are written over in every second layer. */
static void play_knorm(bool mixed) {
    static const load_case c = {TAMIS_F16, TAMIS_F16, TAMIS_PAIR_HALF,  0,
                                false,     false,     TAMIS_EVICT_KNORM};
    uint32_t rows[] = {4, 9, FIRST + 2};
    tamis_evicted evicted;
    open_rig(&loaded, &c);
    begin(&loaded);
    OK(tamis_plan_step_keep_rows(loaded.e.w.plan, rows, 3, &test_error));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        load(&loaded, layer, 0, ALL, 3);
        load(&loaded, layer, 5, 30, 2);
        if (mixed && layer % 2) write(&loaded, layer, rows, 3, 0);
        attend(&loaded, layer, rows, 3);
    }
    OK(tamis_plan_step_end(loaded.e.w.plan, &test_error));
    expect_all(&loaded);
    for (uint32_t text = 0; text < 2; text++) {
        held h = evict_read(&loaded.e, loaded.ids[text]);
        held_norms(&h);
        held_ordered(&h);
        held_free(&h);
        OK(tamis_plan_evict(loaded.e.w.plan, loaded.ids[text], &evicted, &test_error));
        assert_true(evicted.tokens_kept < evicted.tokens_before);
    }
    close_rig(&loaded);
}

static void loaded_keys_are_scored(void **state) {
    (void)state;
    play_knorm(false);
    play_knorm(true);
}

#define REFUSED(code, part)                                                                        \
    FAILS(tamis_plan_load_rows(plan, layer, first, n, &rows, &test_error), (code), (part));        \
    layer = 1, first = 2, n = 3, rows = good

static void bad_arguments_are_refused(void **state) {
    (void)state;
    static const load_case c = {TAMIS_F16, TAMIS_F16, TAMIS_PAIR_HALF, 0,
                                false,     false,     TAMIS_EVICT_NONE};
    uint32_t layer = 1, first = 2, n = 3;
    open_rig(&loaded, &c);
    tamis_plan *plan = loaded.e.w.plan;
    const tamis_stored_rows good = stored_rows(&loaded, 0, 0, ALL, 3);
    tamis_stored_rows rows = good;
    const tamis_rows x = {.buffer = loaded.e.w.v};
    const tamis_place out = {loaded.e.w.out, 0};
    FAILS(tamis_plan_load_rows(NULL, 0, 0, 1, &good, &test_error), TAMIS_E_ARGUMENT,
          "plan is NULL");
    REFUSED(TAMIS_E_STATE, "no open step");
    const tamis_step decode = {.sequences = loaded.ids, .count = 2};
    OK(test_step_begin(&loaded.e.w, &decode));
    REFUSED(TAMIS_E_STATE, "not exact");
    OK(tamis_plan_step_cancel(plan, &test_error));
    begin(&loaded);
    FAILS(tamis_plan_load_rows(plan, 0, 0, 1, NULL, &test_error), TAMIS_E_ARGUMENT, "rows is NULL");
    layer = LAYERS;
    REFUSED(TAMIS_E_ARGUMENT, "layer 4 is not below 4");
    n = 0;
    REFUSED(TAMIS_E_ARGUMENT, "no rows");
    first = ALL - 2;
    REFUSED(TAMIS_E_ARGUMENT, "3 rows from row 65: past the 67 with which");
    first = UINT32_MAX;
    REFUSED(TAMIS_E_ARGUMENT, "3 rows from row 4294967295");
    rows.k.buffer = rows.v.buffer = NULL;
    REFUSED(TAMIS_E_ARGUMENT, "neither k nor v");
    rows.k.dtype = TAMIS_F32;
    REFUSED(TAMIS_E_ARGUMENT, "k is f32 but v is f16");
    rows.k.dtype = rows.v.dtype = TAMIS_BF16;
    REFUSED(TAMIS_E_ARGUMENT, "v is bf16, which is not in the plan's load_dtypes 2");
    rows.k.offset = ALL * KV_HEADS * DIM * 4 - 64;
    REFUSED(TAMIS_E_ARGUMENT, "k: 3 rows of 128 elements");
    rows.v.row_stride = 100;
    REFUSED(TAMIS_E_ARGUMENT, "v: row stride 100");
    rows.rotation.n_rot = 7;
    REFUSED(TAMIS_E_ARGUMENT, "n_rot is 7: an even number from 2 to 64");
    rows.rotation.pairing = (tamis_pairing)2;
    REFUSED(TAMIS_E_ARGUMENT, "pairing is 2");
    rows.rotation.table.buffer = NULL;
    REFUSED(TAMIS_E_ARGUMENT, "table is absent");
    rows.k_norm = (tamis_place){loaded.positions, 16};
    REFUSED(TAMIS_E_ARGUMENT, "k_norm: 256 bytes from byte 16: past the buffer's 268 bytes");
    rows.reserved32 = 5;
    REFUSED(TAMIS_E_ARGUMENT, "reserved32 of tamis_stored_rows is 5");
    rows.reserved[3] = 1;
    REFUSED(TAMIS_E_ARGUMENT, "reserved");
    /* A sequence as long as that takes no less than 100 MiB: this one only says that it is. */
    tms_sequence *far = tms_cache_find(loaded.e.w.cache, loaded.ids[0]);
    far->length += TAMIS_ROTATE_LIMIT - OLD - 4;
    REFUSED(TAMIS_E_ARGUMENT, "row 4 is at position 1048576: K is rotated by less than 1048576");
    far->length -= TAMIS_ROTATE_LIMIT - OLD - 4;
    FAILS(tamis_plan_row_deviations(plan, 0, NULL, 1, &out, NULL, &test_error), TAMIS_E_ARGUMENT,
          "rows");
    FAILS(tamis_plan_row_deviations(plan, 0, &x, 1, NULL, NULL, &test_error), TAMIS_E_ARGUMENT,
          "out is NULL");
    const tamis_place within = {x.buffer, 64};
    FAILS(tamis_plan_row_deviations(plan, 0, &x, 1, &within, NULL, &test_error), TAMIS_E_ARGUMENT,
          "rows and out overlap: bytes 0 to 34303 and 64 to 331");
    FAILS(tamis_plan_row_deviations(plan, 0, &x, 1, &out, &within, &test_error), TAMIS_E_ARGUMENT,
          "rows and norms overlap: bytes 0 to 34303 and 64 to 331");
    FAILS(tamis_plan_row_deviations(plan, 0, &x, 1, &out, &out, &test_error), TAMIS_E_ARGUMENT,
          "out and norms overlap: 268 bytes at 0 and at 0 of one buffer");
    OK(tamis_plan_step_cancel(plan, &test_error));
    close_rig(&loaded);
}

/* A plan that builds no kernels for it. */
static void a_plan_without_load_dtypes_loads_nothing(void **state) {
    (void)state;
    static const load_case c = {TAMIS_F32, TAMIS_F32, TAMIS_PAIR_HALF, 0,
                                false,     false,     TAMIS_EVICT_NONE};
    const tamis_plan_params params = {.max_sequences = 2, .max_rows = ALL, .max_context = MOST};
    tamis_plan *other;
    open_rig(&loaded, &c);
    const tamis_stored_rows rows = stored_rows(&loaded, 0, 0, ALL, 3);
    OK(tamis_plan_create(loaded.e.w.cache, &params, &other, &test_error));
    tamis_plan *plan = evict_swap_plan(&loaded.e, other);
    begin(&loaded);
    FAILS(tamis_plan_load_rows(other, 0, 0, ALL, &rows, &test_error), TAMIS_E_STATE,
          "made with load_dtypes 0");
    FAILS(tamis_plan_attend(other, 0, &rows.k, &rows.k, &test_error), TAMIS_E_STATE,
          "has not been written");
    OK(tamis_plan_step_cancel(other, &test_error));
    (void)evict_swap_plan(&loaded.e, plan);
    tamis_plan_destroy(&other);
    close_rig(&loaded);
}

/* Rows of a layer that hold nothing have no deviation: row `lacks`, or all of them (ALL), or none. */
static void expect_held(tamis_plan *plan, uint32_t layer, const tamis_rows *x, int values,
                        const tamis_place *out, uint32_t lacks) {
    float got[ALL];
    OK(tamis_plan_row_deviations(plan, layer, x, values, out, NULL, &test_error));
    OK(tamis_buffer_read(out->buffer, out->offset, got, sizeof got, NULL));
    for (uint32_t i = 0; i < ALL; i++)
        assert_true((got[i] == 0) == (lacks == ALL || i == lacks));
}

/* Every way to read a slot that holds nothing is an error. */
static void no_row_is_read_that_has_no_k_or_v(void **state) {
    (void)state;
    static const load_case c = {TAMIS_F32, TAMIS_F32, TAMIS_PAIR_HALF, 0,
                                false,     false,     TAMIS_EVICT_NONE};
    const uint32_t kept[] = {3, 50};
    open_rig(&loaded, &c);
    tamis_plan *plan = loaded.e.w.plan;
    const tamis_rows q = {.buffer = loaded.e.w.q}, k = {.buffer = loaded.e.w.k};
    const tamis_place out = {loaded.e.w.out, 0};
    begin(&loaded);
    load(&loaded, 0, 0, 20, 3);
    load(&loaded, 0, 21, ALL - 21, 3);
    load(&loaded, 0, 20, 1, 2);
    FAILS(tamis_plan_attend(plan, 0, &q, &q, &test_error), TAMIS_E_STATE, "K of row 20 has not");
    FAILS(tamis_plan_step_end(plan, &test_error), TAMIS_E_STATE, "layer 0 has not been written");
    expect_held(plan, 0, &k, 0, &out, 20);
    expect_held(plan, 0, &k, 1, &out, UINT32_MAX);
    expect_held(plan, 1, &k, 1, &out, ALL);
    OK(tamis_plan_step_keep_rows(plan, kept, 2, &test_error));
    FAILS(tamis_plan_write(plan, 0, &k, &k, &test_error), TAMIS_E_STATE,
          "narrowed from 67 rows to 2 before layer 0 was written, and K of row 20");
    load(&loaded, 0, 20, 1, 1);
    write(&loaded, 0, kept, 2, 0);
    const tamis_stored_rows rows = stored_rows(&loaded, 0, 0, ALL, 3);
    FAILS(tamis_plan_load_rows(plan, 0, 0, 1, &rows, &test_error), TAMIS_E_STATE,
          "layer 0 has been wri");
    attend(&loaded, 0, kept, 2);
    load(&loaded, 1, 0, ALL, 3);
    attend(&loaded, 1, kept, 2);
    FAILS(tamis_plan_load_rows(plan, 1, 0, 1, &rows, &test_error), TAMIS_E_STATE,
          "layer 1 has been att");
    FAILS(tamis_plan_write(plan, 1, &k, &k, &test_error), TAMIS_E_STATE, "layer 1 has been att");
    load(&loaded, 2, 0, ALL, 3);
    load(&loaded, 3, 0, ALL, 1);
    FAILS(tamis_plan_step_end(plan, &test_error), TAMIS_E_STATE,
          "layer 3 has not been written in this step, and V of row 0 has not been loaded");
    /* Neither does a later step take over what a cancelled one held. */
    OK(tamis_plan_step_cancel(plan, &test_error));
    begin(&loaded);
    FAILS(tamis_plan_attend(plan, 2, &q, &q, &test_error), TAMIS_E_STATE, "K of row 0 has not");
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        load(&loaded, layer, 0, ALL, 3);
    OK(tamis_plan_step_end(plan, &test_error));
    memset(loaded.n_attended, 0, sizeof loaded.n_attended);
    expect_all(&loaded);
    close_rig(&loaded);
}

/* Rows whose load or write has failed hold nothing until a call has succeeded. */
static void what_failed_counts_as_not_loaded(void **state) {
    (void)state;
    static const load_case c = {TAMIS_F32, TAMIS_F32, TAMIS_PAIR_HALF,  0,
                                false,     false,     TAMIS_EVICT_KNORM};
    static const faulty_call calls[] = {FAULTY_write, FAULTY_load_rows, FAULTY_score_rows};
    uint32_t every[ALL];
    const uint32_t kept[] = {6, 8};
    every_row(every);
    open_rig(&loaded, &c);
    tamis_plan *plan = loaded.e.w.plan;
    tms_device *dev = loaded.e.w.context->dev;
    const tamis_rows q = {.buffer = loaded.e.w.q};
    begin(&loaded);
    for (uint32_t layer = 0; layer < 3; layer++) {
        load(&loaded, layer, 0, ALL, 3);
        const tamis_stored_rows rows = stored_rows(&loaded, layer, 7, 3, 1);
        faulty_begin_one(dev, calls[layer], 0);
        FAILS(tamis_plan_load_rows(plan, layer, 7, 3, &rows, &test_error), FAULTY_STATUS,
              FAULTY_TEXT);
        faulty_pause(dev);
        FAILS(tamis_plan_attend(plan, layer, &q, &q, &test_error), TAMIS_E_STATE, "K of row 7 has");
        load(&loaded, layer, 7, 3, 1);
    }
    /* A write that failed may have written any of its rows. */
    load(&loaded, 3, 0, ALL, 3);
    const tamis_rows k = {.buffer = loaded.e.w.k};
    faulty_begin_one(dev, FAULTY_write_rows, 0);
    FAILS(tamis_plan_write(plan, 3, &k, &k, &test_error), FAULTY_STATUS, FAULTY_TEXT);
    faulty_pause(dev);
    OK(tamis_plan_step_keep_rows(plan, kept, 2, &test_error));
    FAILS(tamis_plan_attend(plan, 3, &q, &q, &test_error), TAMIS_E_STATE, "K of row 0 has not");
    FAILS(tamis_plan_write(plan, 3, &k, &k, &test_error), TAMIS_E_STATE, "K of row 0, which was");
    load(&loaded, 3, 0, ALL, 3);
    write(&loaded, 3, kept, 2, 0);
    /* The bounds of loaded layers need the step's tables; the repeated call computes all of them. */
    faulty_begin_one(dev, FAULTY_write, 0);
    FAILS(tamis_plan_step_keep_rows(plan, kept, 1, &test_error), FAULTY_STATUS, FAULTY_TEXT);
    faulty_pause(dev);
    FAILS(tamis_plan_step_end(plan, &test_error), TAMIS_E_STATE, "must be repeated");
    OK(tamis_plan_step_keep_rows(plan, kept, 1, &test_error));
    faulty_begin_one(dev, FAULTY_bounds, 1);
    FAILS(tamis_plan_step_end(plan, &test_error), FAULTY_STATUS, FAULTY_TEXT);
    faulty_pause(dev);
    OK(tamis_plan_step_end(plan, &test_error));
    expect_all(&loaded);
    close_rig(&loaded);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loaded_rows_have_the_bits_of_written_ones),
        cmocka_unit_test(a_blend_is_what_its_rows_are),
        cmocka_unit_test(loaded_keys_are_scored),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(a_plan_without_load_dtypes_loads_nothing),
        cmocka_unit_test(no_row_is_read_that_has_no_k_or_v),
        cmocka_unit_test(what_failed_counts_as_not_loaded),
    };
    int skipped = test_begin(argc, argv);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
