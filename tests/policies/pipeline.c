/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences that run through a plan beside an oracle that checks every step. */
#include "tests/policies/pipeline.h"
#include "host/base/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void pipe_open(pipe *p, const tamis_cache_params *shape, const tamis_plan_params *plan) {
    *p = (pipe){.plan = *plan, .random = 7, .next_token = 1, .nan_at = UINT32_MAX};
    test_open(&p->world, shape, plan);
    p->builds = test_builds;
    p->n_lanes = shape->n_layers * shape->n_kv_heads;
    p->rule = (oracle_rule){
        .head_dim = shape->head_dim,
        .page_size = p->world.shape.page_size,
        .group = shape->n_heads / shape->n_kv_heads,
        .selection = plan->selection,
        .sliding_window = plan->attention.sliding_window,
        .scale = plan->attention.scale != 0 ? (double)plan->attention.scale : 1 / sqrt(shape->head_dim),
        .soft_cap = plan->attention.soft_cap,
        .q8_bounds = tamis_dtype_size(shape->dtype) == 0 || shape->bounds_dtype == TAMIS_BOUNDS_Q8};
    size_t row = (size_t)shape->n_heads * shape->head_dim;
    p->q = calloc(p->world.max_rows * row, sizeof *p->q);
    p->out = calloc(p->world.max_rows * row, sizeof *p->out);
    assert_true(p->q && p->out);
}

void pipe_close(pipe *p) {
    for (uint32_t i = 0; i < p->n_sequences; i++) {
        free(p->sequences[i].k);
        free(p->sequences[i].v);
    }
    free(p->q);
    free(p->out);
    assert_int_equal(test_builds, p->builds);
    test_close(&p->world);
}

static size_t lane_elements(const pipe *p) {
    return (size_t)p->plan.max_context * p->rule.head_dim;
}

static pipe_sequence *new_sequence(pipe *p) {
    assert_true(p->n_sequences < PIPE_SEQUENCES);
    pipe_sequence *s = &p->sequences[p->n_sequences++];
    s->k = calloc(p->n_lanes * lane_elements(p), sizeof *s->k);
    s->v = calloc(p->n_lanes * lane_elements(p), sizeof *s->v);
    assert_true(s->k && s->v);
    return s;
}

uint32_t pipe_add(pipe *p) {
    OK(tamis_cache_add(p->world.cache, &new_sequence(p)->id, &test_error));
    return p->n_sequences - 1;
}

uint32_t pipe_fork(pipe *p, uint32_t parent) {
    pipe_sequence *from = &p->sequences[parent], *to = new_sequence(p);
    size_t bytes = p->n_lanes * lane_elements(p) * sizeof *to->k;
    memcpy(to->k, from->k, bytes);
    memcpy(to->v, from->v, bytes);
    to->length = from->length;
    OK(tamis_cache_fork(p->world.cache, from->id, &to->id, &test_error));
    return p->n_sequences - 1;
}

/* Random rows at the end of the sequences, in every lane. */
static void extend(pipe *p, const uint32_t *who, const uint32_t *rows, uint32_t count) {
    uint32_t dim = p->rule.head_dim;
    for (uint32_t i = 0; i < count; i++) {
        pipe_sequence *s = &p->sequences[who[i]];
        for (uint32_t j = 0; j < rows[i]; j++, s->length++, p->next_token++)
            for (uint32_t lane = 0; lane < p->n_lanes; lane++) {
                size_t row = lane * lane_elements(p) + (size_t)s->length * dim;
                for (uint32_t d = 0; d < dim; d++) {
                    bool bad = s->length == p->nan_at && d == 3;
                    s->k[row + d] = bad ? NAN : test_value(p->next_token, lane, 0, d);
                    s->v[row + d] = test_value(p->next_token, lane, 1, d);
                }
                if (tms_dtype_of_rows(p->world.shape.dtype)) continue;
                for (uint32_t d = 0; d < dim; d++) { /* to values that q8 has to round */
                    s->k[row + d] *= 0.83f;
                    s->v[row + d] *= 0.83f;
                }
                oracle_hold(p->world.shape.dtype, false, s->k + row, dim);
                oracle_hold(p->world.shape.dtype, true, s->v + row, dim);
            }
    }
}

/* The step's rows of K (which 0) or V in a layer, into a buffer, widened or as bf16. */
static void upload(pipe *p, uint32_t layer, uint32_t which, const uint32_t *who,
                   const uint32_t *rows, uint32_t count) {
    uint32_t dim = p->rule.head_dim, heads = p->world.shape.n_kv_heads;
    float *wide = p->world.host;
    uint16_t *narrow = (uint16_t *)p->world.host;
    uint64_t n = 0;
    for (uint32_t i = 0; i < count; i++) {
        const pipe_sequence *s = &p->sequences[who[i]];
        for (uint32_t j = s->length - rows[i]; j < s->length; j++)
            for (uint32_t h = 0; h < heads; h++)
                for (uint32_t d = 0; d < dim; d++, n++) {
                    size_t at = (layer * heads + h) * lane_elements(p) + (size_t)j * dim + d;
                    float value = which ? s->v[at] : s->k[at];
                    uint32_t bits;
                    memcpy(&bits, &value, sizeof bits);
                    if (p->narrow)
                        narrow[n] = (uint16_t)(bits >> 16);
                    else
                        wide[n] = value;
                }
    }
    OK(tamis_buffer_write(which ? p->world.v : p->world.k, 0, p->world.host,
                          n * (p->narrow ? sizeof *narrow : sizeof *wide), NULL));
}

/* Compares a list that the plan read with the oracle's; notes what the counters must say. */
static void check_list(pipe *p, uint32_t layer, const oracle_lane *lane, uint32_t visible,
                       const float *q, bool all, const uint32_t *pages, uint32_t count) {
    signed char chosen[1024];
    oracle_rule rule = p->rule;
    if (all) rule.selection.kind = TAMIS_SELECT_FULL;
    uint32_t n = (visible + rule.page_size - 1) / rule.page_size;
    assert_true(n <= sizeof chosen);
    assert_int_equal(count, oracle_select(&rule, lane, visible, q, chosen));
    uint32_t at = 0, close = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool read = at < count && pages[at] == i;
        at += read;
        close += chosen[i] < 0;
        if (chosen[i] >= 0 && read != (chosen[i] == 1))
            fail_msg("layer %u, %u slots: page %u is%s read", layer, visible, i,
                     read ? "" : " not");
    }
    assert_int_equal(at, count); /* ascending, each once, none past the end */
    p->lists++;
    p->contested += close > 0;
}

static uint32_t pages_of_full(const pipe *p, const oracle_lane *lane, uint32_t visible) {
    signed char chosen[1024];
    oracle_rule rule = p->rule;
    rule.selection.kind = TAMIS_SELECT_FULL;
    return oracle_select(&rule, lane, visible, NULL, chosen);
}

static void check_row(pipe *p, uint32_t layer, uint32_t row, const pipe_sequence *s,
                      uint32_t visible, bool all) {
    uint32_t dim = p->rule.head_dim, heads = p->world.shape.n_kv_heads, group = p->rule.group;
    static uint32_t pages[1024];
    for (uint32_t h = 0; h < heads; h++) {
        size_t from = (layer * heads + h) * lane_elements(p);
        oracle_lane lane = {s->k + from, s->v + from, layer, h};
        size_t at = ((size_t)row * heads + h) * group * dim;
        uint32_t count = 0;
        OK(tamis_plan_read_selected(p->world.plan, row, h, pages, 1024, &count, &test_error));
        check_list(p, layer, &lane, visible, p->q + at, all, pages, count);
        p->wanted.kv_bytes_read += count;
        p->wanted.kv_bytes_full += pages_of_full(p, &lane, visible);
        for (uint32_t g = 0; g < group; g++, at += dim)
            if (!oracle_attends(&p->rule, &lane, visible, pages, count, p->q + at, p->out + at))
                fail_msg("layer %u, row %u, query head %u, %u slots", layer, row, h * group + g,
                         visible);
    }
}

/* Which counter the rows of an attend go to, and whether through lists. */
static bool expect_path(pipe *p, uint32_t layer, uint32_t longest, uint32_t n_rows, bool exact) {
    const tamis_selection *s = &p->rule.selection;
    uint64_t *path = &p->wanted.rows_selected;
    if (exact)
        path = &p->wanted.rows_exact;
    else if (s->kind == TAMIS_SELECT_FULL || layer < s->dense_layers)
        path = &p->wanted.rows_full;
    else if (longest <= s->budget / p->rule.page_size * p->rule.page_size)
        path = &p->wanted.rows_short;
    *path += n_rows;
    return path == &p->wanted.rows_selected;
}

/* Of q8 each 32 channels have 2 bytes of a scale; both rows of a pair share them, and pairs begin
 * at multiples of 16 bytes. Rows of 4 bits have 16 bytes and 4 of a minimum and a scale. */
static uint64_t row_bytes(const pipe *p, bool value) {
    const uint64_t dim = p->rule.head_dim, blocks = (dim + 31) / 32;
    const tamis_dtype dtype = p->world.shape.dtype;
    if (dtype == TAMIS_Q4 || (dtype == TAMIS_K8V4 && value)) return blocks * 20;
    const size_t size = tamis_dtype_size(dtype);
    return size ? dim * size : dim + 2 * blocks;
}

static uint64_t pair_bytes(const pipe *p) {
    const uint64_t dim = p->rule.head_dim, scales = (dim + 31) / 32 * 2;
    return p->rule.q8_bounds ? (2 * dim + scales + 15) / 16 * 16 : 2 * row_bytes(p, false);
}

static void check_counters(pipe *p) {
    tamis_plan_counters got;
    const uint64_t page_bytes = p->rule.page_size * (row_bytes(p, false) + row_bytes(p, true));
    tamis_plan_get_counters(p->world.plan, &got);
    assert_int_equal(got.rows_exact, p->wanted.rows_exact);
    assert_int_equal(got.rows_full, p->wanted.rows_full);
    assert_int_equal(got.rows_short, p->wanted.rows_short);
    assert_int_equal(got.rows_selected, p->wanted.rows_selected);
    assert_true(got.rows_fused <= got.rows_selected);
    assert_int_equal(got.kv_bytes_read, p->wanted.kv_bytes_read * page_bytes);
    assert_int_equal(got.kv_bytes_full, p->wanted.kv_bytes_full * page_bytes);
    assert_int_equal(got.bounds_bytes_read, p->wanted.bounds_bytes_read);
}

/* What scoring reads for a row over the KV heads: bounds of the full pages, or the keys of all. */
static uint64_t scored_bytes(const pipe *p, uint32_t visible) {
    uint64_t size = p->rule.page_size, bytes = 0;
    if (p->rule.selection.kind == TAMIS_SELECT_QUEST) bytes = visible / size * pair_bytes(p);
    if (p->rule.selection.kind == TAMIS_SELECT_ORACLE)
        bytes = (visible + size - 1) / size * size * row_bytes(p, false);
    return bytes * p->world.shape.n_kv_heads;
}

static void attend_layer(pipe *p, uint32_t layer, const uint32_t *who, const uint32_t *rows,
                         uint32_t count, bool exact,
                         void (*change_q)(pipe *p, float *q, uint32_t n)) {
    uint32_t n_rows = 0, longest = 0, width = p->world.shape.n_heads * p->rule.head_dim;
    for (uint32_t i = 0; i < count; i++) {
        n_rows += rows[i];
        if (p->sequences[who[i]].length > longest) longest = p->sequences[who[i]].length;
    }
    for (uint32_t i = 0; i < n_rows * width; i++)
        p->q[i] = (float)((double)(test_random(&p->random) >> 11) / (1ull << 51) - 2);
    if (change_q) change_q(p, p->q, n_rows * width);
    uint64_t bytes = (uint64_t)n_rows * width * sizeof *p->q;
    tamis_rows q = {.buffer = p->world.q}, out = {.buffer = p->world.out};
    OK(tamis_buffer_write(p->world.q, 0, p->q, bytes, NULL));
    OK(tamis_plan_attend(p->world.plan, layer, &q, &out, &test_error));
    OK(tamis_buffer_read(p->world.out, 0, p->out, bytes, NULL));
    bool listed = expect_path(p, layer, longest, n_rows, exact);
    tamis_plan_counters before = p->wanted;
    for (uint32_t i = 0, row = 0; i < count; i++) {
        const pipe_sequence *s = &p->sequences[who[i]];
        for (uint32_t j = 0; j < rows[i]; j++, row++) {
            uint32_t visible = s->length - rows[i] + j + 1;
            if (exact && row % 5 != 0 && row + 1 < n_rows) continue;
            check_row(p, layer, row, s, visible, !listed);
            if (listed) p->wanted.bounds_bytes_read += scored_bytes(p, visible);
        }
    }
    if (exact) p->wanted = before; /* only decode rows count bytes */
    check_counters(p);
}

void pipe_step_with(pipe *p, const uint32_t *who, const uint32_t *rows, uint32_t count, bool exact,
                    void (*change_q)(pipe *p, float *q, uint32_t n)) {
    tamis_sequence ids[PIPE_SEQUENCES];
    for (uint32_t i = 0; i < count; i++)
        ids[i] = p->sequences[who[i]].id;
    tamis_step step = {.sequences = ids, .rows = rows, .count = count, .exact = exact};
    tamis_rows k = {.buffer = p->world.k, .dtype = p->narrow ? TAMIS_BF16 : TAMIS_F32};
    tamis_rows v = {.buffer = p->world.v, .dtype = k.dtype};
    OK(tamis_plan_step_begin(p->world.plan, &step, &test_error));
    extend(p, who, rows, count);
    for (uint32_t layer = 0; layer < p->world.shape.n_layers; layer++) {
        upload(p, layer, 0, who, rows, count);
        upload(p, layer, 1, who, rows, count);
        OK(tamis_plan_write(p->world.plan, layer, &k, &v, &test_error));
        attend_layer(p, layer, who, rows, count, exact, change_q);
    }
    OK(tamis_plan_step_end(p->world.plan, &test_error));
}

void pipe_step(pipe *p, const uint32_t *who, const uint32_t *rows, uint32_t count, bool exact) {
    pipe_step_with(p, who, rows, count, exact, NULL);
}

void pipe_prefill(pipe *p, const uint32_t *lengths, uint32_t chunk) {
    for (;;) {
        uint32_t who[PIPE_SEQUENCES], rows[PIPE_SEQUENCES], n = 0;
        for (uint32_t i = 0; i < p->n_sequences; i++) {
            uint32_t left = lengths[i] - p->sequences[i].length;
            if (left == 0) continue;
            who[n] = i;
            rows[n++] = left < chunk ? left : chunk;
        }
        if (n == 0) return;
        pipe_step(p, who, rows, n, true);
    }
}
