/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of page_mass against its formula in fp64. */
#include "check.h"

#include <math.h>
#include <stdlib.h>

#define SLACK 3u /* entries of a lane's scores that no page has */

static uint32_t score_stride(const check_data *data) {
    return data->lanes.lane_pages + SLACK;
}

/* ---- Direct formula -------------------------------------------------------------------------- */

static double logit(const check_data *data, const float *q, uint64_t key) {
    const tms_kv *kv = &data->lanes.kv;
    const double cap = check_attend_cap(data);
    double sum = 0;
    for (uint32_t d = 0; d < kv->head_dim; d++)
        sum += q[d] * check_load(kv->dtype, check_init(data, BUF_KV), key + d);
    sum *= check_attend_scale(data);
    return cap > 0 ? cap * tanh(sum / cap) : sum;
}

/* What one query head's attention gives each page, and the size of its logits: NaN if one is not
 * finite. */
static double head_masses(const check_data *data, const float *q, double sink, uint32_t lane,
                          uint32_t first, uint32_t visible, double *masses) {
    double *logits = check_alloc(visible * sizeof *logits);
    double most = sink, size = 0, total;
    for (uint32_t s = first; s < visible; s++) {
        logits[s] = logit(data, q, check_lane_row(data, lane, s));
        most = fmax(most, logits[s]);
        size = isfinite(logits[s]) && isfinite(size) ? fmax(size, fabs(logits[s])) : NAN;
    }
    total = sink > -INFINITY ? exp(sink - most) : 0;
    for (uint32_t s = first; s < visible; s++)
        total += exp(logits[s] - most);
    for (uint32_t i = 0; i < visible / data->lanes.kv.page_size; i++)
        masses[i] = 0;
    for (uint32_t s = first; s < visible / data->lanes.kv.page_size * data->lanes.kv.page_size; s++)
        masses[s / data->lanes.kv.page_size] += exp(logits[s] - most) / total;
    free(logits);
    return size;
}

static void score_lane(check_data *data, uint32_t row, uint32_t head, double *masses) {
    const check_lanes *l = &data->lanes;
    const tamis_group_rule rule = (tamis_group_rule)check_get(data, KEY_RULE);
    const uint32_t visible = check_visible(data, row, head), pages = visible / l->kv.page_size;
    const uint32_t first = check_first(data, row, head);
    const uint32_t lane = check_row_seq(data, row) * l->n_kv_heads + head;
    const float *q = check_init(data, BUF_Q);
    check_buffer *out = &data->buf[BUF_SCORES];
    const uint64_t at = ((uint64_t)row * l->n_kv_heads + head) * score_stride(data);
    double *scores = check_alloc((pages + 1) * sizeof *scores), size = 0;
    q += row * check_q_stride(data) + (uint64_t)head * l->group * l->kv.head_dim;
    for (uint32_t g = 0; g < l->group; g++) {
        const double sink = check_sink(data, head * l->group + g);
        const double s =
            head_masses(data, q + g * l->kv.head_dim, sink, lane, first, visible, masses);
        size = isnan(s) || isnan(size) ? NAN : fmax(size, s);
        for (uint32_t i = 0; i < pages; i++)
            scores[i] =
                rule == TAMIS_GROUP_MAX ? fmax(scores[i], masses[i]) : scores[i] + masses[i];
    }
    for (uint32_t i = first / l->kv.page_size; i < pages; i++) {
        const double score = rule == TAMIS_GROUP_MEAN ? scores[i] / l->group : scores[i];
        ((float *)out->want)[at + i] = isnan(size) ? NAN : (float)score;
        out->tolerance[at + i] = 4e-6 * (1 + size) * (rule == TAMIS_GROUP_SUM ? l->group : 1);
    }
    free(scores);
}

static void oracle(check_data *data) {
    const check_lanes *l = &data->lanes;
    double *masses = check_alloc((uint64_t)l->lane_pages * sizeof *masses);
    check_want(data, BUF_SCORES, true);
    for (uint32_t row = 0; row < l->n_rows; row++)
        for (uint32_t h = 0; h < l->n_kv_heads; h++)
            score_lane(data, row, h, masses);
    free(masses);
}

/* ---- Data and launch ------------------------------------------------------------------------- */

/* Any lane may have a NaN key (score.c); every third other one has an infinite key. Values are NaN
 * everywhere: they are not to be read. */
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

static void make(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_lanes_make(data, ROLE_INPUT);
    if (check_get(data, KEY_FILL) == FILL_NASTY) make_nasty(data);
    check_q_make(data);
    check_sinks_make(data, l->n_kv_heads * l->group);
    if (!l->n_rows) return;
    check_buffer_add(data, BUF_SCORES, ROLE_OUTPUT, TAMIS_F32,
                     (uint64_t)l->n_rows * l->n_kv_heads * score_stride(data));
}

static tamis_status launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const uint64_t lanes = (uint64_t)rows.first * data->lanes.n_kv_heads;
    const uint64_t step = check_q_stride(data);
    tms_page_mass p = {
        .kv = check_kv(side),
        .batch = check_batch(side, rows),
        .q = {check_ref(side, BUF_Q, rows.first * step), step},
        .group = (tamis_group_rule)check_get(data, KEY_RULE),
        .scores = check_ref(side, BUF_SCORES, lanes * score_stride(data)),
        .stride = score_stride(data),
        .logit = {check_attend_scale(data), check_attend_cap(data), check_ref(side, BUF_SINKS, 0)},
    };
    p.scratch = check_scratch(side, tms_page_mass_scratch(side->dev, &p));
    return tms_run_page_mass(side->dev, &p, &side->error);
}

static uint64_t bytes(const check_data *data) {
    const check_lanes *l = &data->lanes;
    uint64_t slots = 0;
    for (uint32_t row = 0; row < l->n_rows; row++)
        for (uint32_t h = 0; h < l->n_kv_heads; h++)
            slots += check_visible(data, row, h);
    return slots * l->group * check_key_bytes(data);
}

const check_op check_op_page_mass = {
    .name = "page_mass",
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
                                        {KEY_RULE, TAMIS_GROUP_MAX},
                                        {KEY_PAD, 0},
                                        {KEY_EVEN, 0},
                                        {KEY_ORDERED, 0},
                                        {KEY_CAP, 0},
                                        {KEY_SINK, 0},
                                        {KEY_FIRST, 0},
                                        {KEY_COUNT, 0}},
    .factors =
        (const check_factor[]){CHECK_FILLS,
                               CHECK_DTYPES,
                               CHECK_LAYOUTS,
                               CHECK_HEAD_DIMS,
                               {KEY_G, 6, {1, 3, 4, 5, 16, 40}},
                               CHECK_PAGE_SIZES,
                               {KEY_RULE, 3, {TAMIS_GROUP_MAX, TAMIS_GROUP_MEAN, TAMIS_GROUP_SUM}},
                               {KEY_B, 2, {1, 3}},
                               {KEY_R, 2, {1, 3}},
                               {KEY_HKV, 3, {1, 2, 5}},
                               {KEY_KV, 3, {17, 255, 600}},
                               {KEY_PAD, 2, {0, 16}},
                               {KEY_CAP, 2, {0, 1}},
                               {KEY_FIRST, 2, {0, 1}},
                               {KEY_SINK, 2, {0, 1}},
                               {KEY_COUNT, 0, {0}}},
    .compiled = (const check_key[]){KEY_G, KEY_D, KEY_DTYPE, KEY_PAGE, KEY_RULE, KEY_COUNT},
    .entries = (const check_entry[]){{LIST_SMOKE, "normal:f16:b2:g4:cap:sink"},
                                     {LIST_SMOKE, "nasty:f16:b2:g4"},
                                     {LIST_SMOKE, "normal:f16:b2:r3:g4:first"},
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "kv3"}, /* no full page */
                                     {LIST_CI, "nasty:f16:turned:b3:g4:kv255"},
                                     {LIST_CI, "normal:f32:apart:g3:page1:kv100"},
                                     {LIST_CI, "normal:bf16:hnd:g3:page256:kv600:mean"},
                                     {LIST_CI, "r7:kv5:hkv1"},   /* rows that see nothing */
                                     {LIST_CI, "r9:kv17:page8"}, /* as many as nothing or a page */
                                     {LIST_CI, "nasty:f32:b3:g5:d128:cap:kv70"},
                                     {LIST_CI, "normal:f16:g3:page8:kv4000"},
                                     {LIST_FULL, "normal:f16:hkv8:g4:d128:kv33000"},
                                     {LIST_OCLGRIND, "f16:g2:kv40"},
                                     {LIST_OCLGRIND, "f16:turned:g2:page2:kv40"},
                                     {LIST_OCLGRIND, "bf16:nhd:g3:d128:kv70:sum:cap"},
                                     {LIST_OCLGRIND, "nasty:f32:hnd:d80:g3:page8:kv40:mean"},
                                     {LIST_BENCH, "f16:hkv8:g4:d128:kv32768:even"},
                                     {0, NULL}},
    .reject = check_read_reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_lanes_rows,
    .rows_alone = true,
    .bytes = bytes,
};
