/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of observe against its formula in fp64. Items are sequences; a span is all of its rows, or
 * all but the first ones. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SLACK     3u /* entries of a lane, or a list, that no slot has */
#define LSE_SLACK 2u /* the same of a row of lse */

static uint64_t value_stride(const check_data *data) {
    return check_get(data, KEY_SCORE) ? 0 : check_get(data, KEY_KV) + SLACK;
}

static uint64_t list_stride(const check_data *data) {
    return check_get(data, KEY_KV) + SLACK;
}

static uint64_t heads_of(const check_data *data) {
    return (uint64_t)data->lanes.n_kv_heads * data->lanes.group;
}

static uint32_t items(const check_data *data) {
    return data->lanes.n_rows ? data->lanes.n_seqs : 0;
}

/* First row and number of rows of an item; sequences go backwards in rows. */
static void span_of(const check_data *data, uint32_t item, uint32_t *first, uint32_t *rows) {
    const uint32_t r = check_get(data, KEY_R), left_out = item % 2 && r > 1 ? r / 3 + 1 : 0;
    *first = item * r + left_out;
    *rows = r - left_out;
}

/* ---- Direct formula -------------------------------------------------------------------------- */

/* One query head of a row: its lse, and what the tolerance of its weights follows from. */
typedef struct head_row {
    double lse, size, terms;
} head_row;

static double logit(const check_data *data, const float *kv, uint32_t row, uint64_t query_head,
                    uint32_t slot, double *terms) {
    const check_lanes *l = &data->lanes;
    const uint32_t head = (uint32_t)(query_head / l->group);
    const float *q = (const float *)check_init(data, BUF_Q) + row * check_q_stride(data) +
                     query_head * l->kv.head_dim;
    const float *k =
        kv + check_lane_row(data, check_row_seq(data, row) * l->n_kv_heads + head, slot);
    const double cap = check_attend_cap(data), scale = check_attend_scale(data);
    double sum = 0, size = 0;
    for (uint32_t d = 0; d < l->kv.head_dim; d++) {
        sum += scale * q[d] * k[d];
        size += fabs(scale * q[d] * k[d]);
    }
    *terms = fmax(*terms, size);
    sum = cap > 0 ? cap * tanh(sum / cap) : sum;
    return isfinite(sum) ? sum : NAN;
}

/* Logits of one query head of a row, and its lse as attend gives it. */
static head_row make_logits(const check_data *data, const float *kv, uint32_t row,
                            uint64_t query_head, double *logits) {
    const uint32_t n = check_visible(data, row, (uint32_t)(query_head / data->lanes.group));
    head_row h = {.lse = -INFINITY};
    double most = -INFINITY, sum = 0;
    const uint32_t first = check_first(data, row, (uint32_t)(query_head / data->lanes.group));
    for (uint32_t s = first; s < n; s++) {
        logits[s] = logit(data, kv, row, query_head, s, &h.terms);
        most = logits[s] > most ? logits[s] : most;
        h.size = fmax(h.size, fabs(logits[s]));
    }
    for (uint32_t s = first; s < n; s++)
        sum += exp(logits[s] - most);
    if (first < n) h.lse = most + log(sum);
    return h;
}

/* Joins `x` and its tolerance to those of the terms so far. */
static void join(bool largest, double x, double tolerance, double *sum, double *sum_tolerance) {
    if (largest) {
        *sum = isnan(*sum) || *sum > x ? *sum : x;
        *sum_tolerance = fmax(*sum_tolerance, tolerance);
    } else {
        *sum += x;
        *sum_tolerance += tolerance;
    }
}

/* What a row gives to a slot, joined over the group; single weights go to the tile. */
static double row_value(check_data *data, const head_row *h, uint32_t row, uint32_t head,
                        uint64_t list, uint32_t slot, double *tolerance) {
    const check_lanes *l = &data->lanes;
    const uint32_t rule = check_get(data, KEY_RULE);
    const bool seen =
        slot < check_visible(data, row, head) && slot >= check_first(data, row, head);
    const float *lse = check_init(data, BUF_LSE), *logits = check_init(data, BUF_LOGITS);
    check_buffer *tile = &data->buf[BUF_W];
    double value = 0, sum_tolerance = 0;
    for (uint32_t g = 0; g < l->group; g++) {
        const uint64_t state = row * heads_of(data) + head * l->group + g;
        const double base = lse[row * (heads_of(data) + LSE_SLACK) + head * l->group + g];
        const double x = seen ? logits[state * list_stride(data) + slot] : 0;
        double w = !seen || base == -INFINITY ? 0 : exp(x - base);
        double allowed = w * (4e-6 * (1 + h[g].size) + 2e-6 * h[g].terms) + 1e-37;
        if (tile->want) {
            ((float *)tile->want)[(list + g) * list_stride(data) + slot] = (float)w;
            tile->tolerance[(list + g) * list_stride(data) + slot] = allowed;
        }
        if (check_get(data, KEY_JOIN) == TAMIS_ROWS_SQUARES) {
            allowed *= 2 * w;
            w *= w;
        }
        join(rule == TAMIS_GROUP_MAX, w, allowed, &value, &sum_tolerance);
    }
    *tolerance = rule == TAMIS_GROUP_MEAN ? sum_tolerance / l->group : sum_tolerance;
    return rule == TAMIS_GROUP_MEAN ? value / l->group : value;
}

/* Where the value of a slot of an item lies. */
static uint64_t value_at(const check_data *data, uint32_t item, uint32_t row, uint32_t head,
                         uint32_t slot) {
    const uint32_t size = data->lanes.kv.page_size;
    if (value_stride(data))
        return ((uint64_t)item * data->lanes.n_kv_heads + head) * value_stride(data) + slot;
    return (uint64_t)check_page_id(data, check_row_seq(data, row), head, slot / size) * size +
           slot % size;
}

static void observe_lane(check_data *data, const head_row *all, uint32_t item, uint32_t head) {
    const check_lanes *l = &data->lanes;
    const bool largest = check_get(data, KEY_JOIN) == TAMIS_ROWS_MAX;
    check_buffer *out = &data->buf[BUF_SCORES];
    uint32_t first, rows;
    span_of(data, item, &first, &rows);
    const uint32_t n = check_visible(data, first + rows - 1, head);
    for (uint32_t s = 0; s < n; s++) {
        const uint64_t at = value_at(data, item, first, head, s);
        double tolerance = 0;
        double value = check_get(data, KEY_ACC) && out->want ? ((float *)out->want)[at] : 0;
        for (uint32_t t = 0; t < rows; t++) {
            const uint64_t list =
                (((uint64_t)item * l->n_kv_heads + head) * check_get(data, KEY_R) + t) * l->group;
            double allowed;
            const double x = row_value(data, all + (first + t) * heads_of(data) + head * l->group,
                                       first + t, head, list, s, &allowed);
            join(largest, x, allowed, &value, &tolerance);
        }
        if (!out->want) continue;
        ((float *)out->want)[at] = (float)value;
        out->tolerance[at] = tolerance + 3e-7 * (1 + log2(rows * l->group + 1.0)) * fabs(value);
    }
}

static void oracle(check_data *data) {
    const check_lanes *l = &data->lanes;
    const bool logits = check_get(data, KEY_LOGITS);
    if (!l->n_rows) return;
    float *kv = check_widen(l->kv.dtype, check_init(data, BUF_KV), data->buf[BUF_KV].count);
    double *scratch = check_alloc((check_get(data, KEY_KV) + 1) * sizeof *scratch);
    head_row *all = check_alloc(l->n_rows * heads_of(data) * sizeof *all);
    for (uint64_t i = 0; i < l->n_rows * heads_of(data); i++) {
        all[i] = make_logits(data, kv, (uint32_t)(i / heads_of(data)), i % heads_of(data), scratch);
        if (logits) all[i].terms = 0; /* they are given */
    }
    check_want(data, BUF_SCORES, true);
    check_want(data, BUF_W, true);
    for (uint32_t i = 0; i < items(data) * l->n_kv_heads; i++)
        observe_lane(data, all, i / l->n_kv_heads, i % l->n_kv_heads);
    free(all);
    free(scratch);
    free(kv);
}

/* ---- Data ------------------------------------------------------------------------------------ */

/* Any lane may have a NaN key (score.c), every third other one an infinite key; values are NaN:
 * they are not to be read. */
static void make_nasty(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_rng rng = check_rng_make(data->seed, data->c, BUF_V);
    void *kv = check_init(data, BUF_KV);
    check_nan_keys(data);
    for (uint32_t lane = 0; lane < l->n_seqs * l->n_kv_heads; lane++) {
        const uint32_t length = l->length[lane];
        for (uint32_t s = 0; s < length; s++)
            check_store(l->kv.dtype, kv, check_lane_row(data, lane, s) + l->kv.value_offset, NAN);
        if (length && check_below(&rng, 3) == 0)
            check_store(l->kv.dtype, kv, check_lane_row(data, lane, check_below(&rng, length)),
                        INFINITY);
    }
}

/* What attend would have left: the lse of every row, and the logits of what it sees; with `logits`
 * nasty ones have -inf for some slots, inf for a few, and rows that saw nothing. The oracle goes by
 * these. */
static void make_attended(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint64_t heads = heads_of(data), step = heads + LSE_SLACK;
    const bool nasty = check_get(data, KEY_FILL) == FILL_NASTY && check_get(data, KEY_LOGITS);
    float *lse = check_buffer_add(data, BUF_LSE, ROLE_OUTPUT, TAMIS_F32, l->n_rows * step);
    float *logits = check_buffer_add(data, BUF_LOGITS, ROLE_OUTPUT, TAMIS_F32,
                                     l->n_rows * heads * list_stride(data));
    check_quantised_settle(data, false); /* lse follows from what the cache can hold */
    float *kv = check_widen(l->kv.dtype, check_init(data, BUF_KV), data->buf[BUF_KV].count);
    double *row_logits = check_alloc((check_get(data, KEY_KV) + 1) * sizeof *row_logits);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_LSE);
    data->buf[BUF_LSE].role = data->buf[BUF_LOGITS].role = ROLE_INPUT;
    for (uint64_t i = 0; i < l->n_rows * heads; i++) {
        const uint32_t row = (uint32_t)(i / heads), head = (uint32_t)(i % heads / l->group);
        const bool blind = nasty && check_below(&rng, 8) == 0;
        const head_row h = make_logits(data, kv, row, i % heads, row_logits);
        lse[row * step + i % heads] = blind ? -INFINITY : (float)h.lse;
        for (uint32_t s = check_first(data, row, head); s < check_visible(data, row, head); s++) {
            const uint32_t odd = nasty ? check_below(&rng, 64) : 64;
            logits[i * list_stride(data) + s] = blind || odd < 8 ? -INFINITY
                                                : odd == 8       ? INFINITY
                                                                 : (float)row_logits[s];
        }
    }
    free(row_logits);
    free(kv);
}

static void make_spans(check_data *data) {
    int32_t *spans = check_buffer_add(data, BUF_LISTS, ROLE_INPUT, CHECK_I32, 2ull * items(data));
    for (uint32_t i = 0; i < items(data); i++) {
        uint32_t first, rows;
        span_of(data, i, &first, &rows);
        spans[2 * i] = (int32_t)first;
        spans[2 * i + 1] = (int32_t)rows;
    }
}

/* Values of slots that no span sees hold the preset, and keep it. */
static void make_values(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint64_t count = value_stride(data)
                               ? (uint64_t)items(data) * l->n_kv_heads * value_stride(data)
                               : (uint64_t)l->n_pages * l->kv.page_size;
    float *values = check_buffer_add(data, BUF_SCORES, ROLE_OUTPUT, TAMIS_F32, count);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_SCORES);
    if (!check_get(data, KEY_ACC)) return;
    data->buf[BUF_SCORES].role = ROLE_UPDATE;
    for (uint64_t i = 0; i < count; i++)
        values[i] = (float)fabs(check_finite(&rng, FILL_NORMAL));
}

/* Queries of 0, whose rows all see the whole lane: sums of equal terms, which all round alike. */
static void make_same(check_data *data) {
    const check_lanes *l = &data->lanes;
    int32_t *visible = check_init(data, BUF_VISIBLE);
    memset(check_init(data, BUF_Q), 0, data->buf[BUF_Q].count * sizeof(float));
    for (uint32_t i = 0; i < l->n_rows * l->n_kv_heads; i++)
        visible[i] = (int32_t)l->length[check_row_seq(data, i / l->n_kv_heads) * l->n_kv_heads +
                                        i % l->n_kv_heads];
}

static void make(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_lanes_make(data, ROLE_INPUT);
    if (check_get(data, KEY_FILL) == FILL_NASTY) make_nasty(data);
    check_q_make(data);
    if (!l->n_rows) return;
    if (check_get(data, KEY_SAME)) make_same(data);
    make_attended(data);
    make_spans(data);
    if (!check_get(data, KEY_NOSCORE)) make_values(data);
    if (check_get(data, KEY_WEIGHTS))
        check_buffer_add(data, BUF_W, ROLE_OUTPUT, TAMIS_F32,
                         (uint64_t)items(data) * heads_of(data) * check_get(data, KEY_R) *
                             list_stride(data));
}

/* ---- Launch ---------------------------------------------------------------------------------- */

static tamis_status launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const bool logits = check_get(data, KEY_LOGITS);
    const uint64_t lane = (uint64_t)rows.first * data->lanes.n_kv_heads;
    const uint64_t list = rows.first * heads_of(data) * check_get(data, KEY_R);
    tms_observe p = {
        .kv = check_kv(side),
        .batch = check_batch(side, (check_rows){0, data->lanes.n_rows}),
        .n_items = rows.count,
        .max_span = check_get(data, KEY_R),
        .spans = check_ref(side, BUF_LISTS, 2ull * rows.first),
        .q = {check_ref(side, BUF_Q, 0), check_q_stride(data)},
        .lse = check_ref(side, BUF_LSE, 0),
        .lse_stride = heads_of(data) + LSE_SLACK,
        .logit = {check_attend_scale(data), check_attend_cap(data)},
        .rows = (tamis_rows_join)check_get(data, KEY_JOIN),
        .group = (tamis_group_rule)check_get(data, KEY_RULE),
        .accumulate = check_get(data, KEY_ACC),
        .values = {check_ref(side, BUF_SCORES, lane * value_stride(data)), value_stride(data)},
        .tile = check_ref(side, BUF_W, list * list_stride(data)),
        .tile_stride = list_stride(data),
    };
    if (logits) { /* neither q nor K is read */
        p.logits = check_ref(side, BUF_LOGITS, 0);
        p.logit_stride = list_stride(data);
        p.q.ref.mem = NULL;
        p.kv.data.mem = NULL;
    }
    return tms_run_observe(side->dev, &p, &side->error);
}

/* K once for every 32 rows, or the logits. */
static uint64_t bytes(const check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint64_t key = check_key_bytes(data);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < items(data) * l->n_kv_heads; i++) {
        uint32_t first, rows;
        span_of(data, i / l->n_kv_heads, &first, &rows);
        const uint64_t n = check_visible(data, first + rows - 1, i % l->n_kv_heads);
        sum += n * (check_get(data, KEY_LOGITS) ? 4ull * rows * l->group : (rows + 31) / 32 * key);
    }
    return sum;
}

/* A plane is for caches whose page id fixes the head. */
static const char *reject(const check_case *c) {
    if (c->v[KEY_SCORE] && c->v[KEY_LAYOUT] != LAYOUT_OWN) return "a plane goes with layout own";
    if (c->v[KEY_NOSCORE] && !c->v[KEY_WEIGHTS]) return "neither values nor weights";
    return check_read_reject(c);
}

static bool has_cpu_form(const check_case *c) {
    return c->v[KEY_LAYOUT] < LAYOUT_TURNED;
}

const check_op check_op_observe = {
    .name = "observe",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_G, 1},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 200},
                                        {KEY_SAME, 0},
                                        {KEY_RULE, TAMIS_GROUP_SUM},
                                        {KEY_JOIN, TAMIS_ROWS_SUM},
                                        {KEY_PAD, 0},
                                        {KEY_EVEN, 0},
                                        {KEY_SCORE, 0},
                                        {KEY_CAP, 0},
                                        {KEY_LOGITS, 0},
                                        {KEY_WEIGHTS, 0},
                                        {KEY_NOSCORE, 0},
                                        {KEY_ACC, 0},
                                        {KEY_FIRST, 0},
                                        {KEY_COUNT, 0}},
    .factors =
        (const check_factor[]){CHECK_FILLS,
                               CHECK_DTYPES,
                               CHECK_LAYOUTS,
                               {KEY_D, 2, {64, 128}},
                               {KEY_G, 4, {1, 4, 5, 8}},
                               CHECK_PAGE_SIZES,
                               {KEY_RULE, 3, {TAMIS_GROUP_MAX, TAMIS_GROUP_MEAN, TAMIS_GROUP_SUM}},
                               {KEY_JOIN, 3, {TAMIS_ROWS_SUM, TAMIS_ROWS_SQUARES, TAMIS_ROWS_MAX}},
                               {KEY_B, 2, {1, 3}},
                               {KEY_R, 4, {1, 3, 9, 37}},
                               {KEY_KV, 3, {17, 200, 301}},
                               {KEY_SCORE, 2, {0, 1}},
                               {KEY_LOGITS, 2, {0, 1}},
                               {KEY_WEIGHTS, 2, {0, 1}},
                               {KEY_ACC, 2, {0, 1}},
                               {KEY_FIRST, 2, {0, 1}},
                               {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "normal:f16:b2:r5:g3:first"},
                                     {LIST_SMOKE, "normal:f16:b2:r5:g4:d64"},
                                     {LIST_SMOKE, "nasty:f16:b3:r9:g4:d64:weights"},
                                     {LIST_SMOKE, "normal:q8:b2:r5:g4:d128:cap"},
                                     {LIST_SMOKE, "normal:q4:b2:r5:g4:d512"},
                                     {LIST_SMOKE, "normal:b2:g4:logits:score:acc:kv300"},
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "r0:logits"},
                                     {LIST_CI, "kv1"},
                                     {LIST_CI, "nasty:f16:turned:r6:g3:kv255:weights"},
                                     {LIST_CI, "normal:bf16:apart:b2:r6:g4:page128:kv300"},
                                     {LIST_CI, "normal:f16:halves:b2:r6:g4:page1:kv100"},
                                     {LIST_CI, "bf16:d80:r6:g3:pad16:noscore:weights"},
                                     {LIST_CI, "f32:d256:r11:g2:score:acc:cap"},
                                     {LIST_CI, "nasty:f16:d64:r6:g16:cap:weights"},
                                     {LIST_CI, "nasty:q8:d80:r6:g3:noscore:weights"},
                                     {LIST_CI, "q8:d256:r11:g2:page8:score:acc"},
                                     {LIST_CI, "nasty:q4:d80:r6:g3:noscore:weights"},
                                     {LIST_CI, "f16:d112:b2:r40:g20:page8:kv130:rows-max:max"},
                                     {LIST_CI, "f16:hkv1:r512:kv700:g3:score:acc"}, /* H2O */
                                     {LIST_CI, "ints:hkv1:g4:kv9000:logits:even"},
                                     {LIST_CI, "b3:r9:g2:logits:weights:kv70"},
                                     {LIST_CI, "nasty:b2:r5:g3:logits:squares:mean"},
                                     {LIST_CI, "same:hkv1:r40000:kv17"},
                                     {LIST_CI, "same:hkv1:r40000:kv17:logits"},
                                     {LIST_OCLGRIND, "f16:b2:g2:r9:kv70:weights"},
                                     {LIST_OCLGRIND, "f16:turned:g2:r3:page4:kv40"},
                                     {LIST_OCLGRIND, "nasty:b2:g3:r2:kv70:logits:score:acc"},
                                     {LIST_OCLGRIND, "bf16:nhd:g3:d128:r3:kv70:max:rows-max"},
                                     {LIST_BENCH, "f16:hkv8:g4:d128:r32:kv32768:even"},
                                     {LIST_BENCH, "q8:hkv8:g4:d128:r32:kv32768:even"},
                                     {LIST_BENCH, "f16:hkv3:g3:d64:r512:kv10000:score:acc:even"},
                                     {LIST_BENCH, "f16:hkv8:g4:kv32768:logits:score:acc:even"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .cpu_form = has_cpu_form,
    .cpu_shapes = true,
    .rows = items,
    .rows_alone = true,
    .bytes = bytes,
};
