/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of key_score against its formulas in fp64. */
#include "check.h"

#include <math.h>
#include <stdlib.h>

#define SLACK 3u     /* scores behind a lane's that are left alone */
#define SCALE 0.125f /* of QUADRATIC */

static uint64_t stride_of(const check_data *data) {
    return check_get(data, KEY_KV) + SLACK;
}

/* ---- Data and launch ------------------------------------------------------------------------- */

static void store_key(check_data *data, uint32_t lane, uint32_t slot, uint32_t d, double value) {
    check_store(data->lanes.kv.dtype, check_init(data, BUF_KV),
                check_lane_row(data, lane, slot) + d, value);
}

/* Keys of nasty cases: some are 0, which has no direction, in one lane in four all; one lane in
 * four has a NaN. */
static void make_nasty(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_rng rng = check_rng_make(data->seed, data->c, BUF_V);
    for (uint32_t lane = 0; lane < l->n_seqs * l->n_kv_heads; lane++) {
        const uint32_t kind = check_below(&rng, 4), n = l->length[lane];
        for (uint32_t s = 0; s < n; s++)
            for (uint32_t d = 0; (kind == 0 || s % 7 == 3) && d < l->kv.head_dim; d++)
                store_key(data, lane, s, d, d % 2 ? 0.0 : -0.0);
        if (kind == 1 && n)
            store_key(data, lane, check_below(&rng, n), check_below(&rng, l->kv.head_dim), NAN);
    }
}

/* Values are NaN: they are not to be read. */
static void make(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_lanes_make(data, ROLE_INPUT);
    for (uint32_t lane = 0; lane < l->n_seqs * l->n_kv_heads; lane++)
        for (uint32_t s = 0; s < l->length[lane]; s++)
            for (uint32_t d = 0; d < l->kv.head_dim; d++)
                store_key(data, lane, s, (uint32_t)l->kv.value_offset + d, NAN);
    if (check_get(data, KEY_FILL) == FILL_NASTY) make_nasty(data);
    if (!check_owners(data)) return;
    if (check_get(data, KEY_SAYS) == TMS_KEY_QUADRATIC) {
        const uint64_t n = (uint64_t)l->n_kv_heads * l->group * l->kv.head_dim;
        check_buffer_add(data, BUF_Q, ROLE_INPUT, TAMIS_F32, n);
        check_fill_matrix(data, BUF_Q, 1, n, n);
        check_buffer_add(data, BUF_W, ROLE_INPUT, TAMIS_F32, n * l->kv.head_dim);
        check_fill_matrix(data, BUF_W, 1, n * l->kv.head_dim, n * l->kv.head_dim);
    }
    check_buffer_add(data, BUF_Y, ROLE_OUTPUT, TAMIS_F32, check_owners(data) * stride_of(data));
}

static tamis_status launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const uint64_t owner = (uint64_t)rows.first * data->lanes.n_kv_heads;
    tms_key_score p = {
        .kv = check_kv(side),
        .batch = check_batch(side, rows),
        .kind = (tms_key_score_kind)check_get(data, KEY_SAYS),
        .mu = check_ref(side, BUF_Q, 0),
        .cov = check_ref(side, BUF_W, 0),
        .scale = SCALE,
        .out = check_ref(side, BUF_Y, owner * stride_of(data)),
        .out_stride = stride_of(data),
    };
    p.scratch = check_scratch(side, tms_key_score_scratch(side->dev, &p));
    return tms_run_key_score(side->dev, &p, &side->error);
}

/* ---- Direct formulas ------------------------------------------------------------------------- */

/* The keys that an (item, KV head) sees, [slot][head_dim]; the caller frees them. */
static double *keys_of(const check_data *data, uint64_t owner) {
    const check_lanes *l = &data->lanes;
    const uint32_t dim = l->kv.head_dim, seen = check_owner_visible(data, owner);
    const uint32_t row = (uint32_t)(owner / l->n_kv_heads),
                   head = (uint32_t)(owner % l->n_kv_heads);
    double *keys = check_alloc((uint64_t)seen * dim * sizeof *keys);
    for (uint32_t s = 0; s < seen; s++) {
        const uint64_t at =
            check_lane_row(data, check_row_seq(data, row) * l->n_kv_heads + head, s);
        for (uint32_t d = 0; d < dim; d++)
            keys[(uint64_t)s * dim + d] = check_load(l->kv.dtype, check_init(data, BUF_KV), at + d);
    }
    return keys;
}

static double norm(const double *k, uint32_t dim) {
    double sum = 0;
    for (uint32_t d = 0; d < dim; d++)
        sum += k[d] * k[d];
    return sqrt(sum);
}

/* m of a lane; returns how far rounding may turn it. */
static double mean_of(const check_data *data, const double *keys, uint32_t seen, double *m) {
    const uint32_t dim = data->lanes.kv.head_dim;
    for (uint32_t d = 0; d < dim; d++)
        m[d] = 0;
    for (uint32_t s = 0; s < seen; s++) {
        const double *k = keys + (uint64_t)s * dim, length = norm(k, dim);
        for (uint32_t d = 0; length != 0 && d < dim; d++)
            m[d] += k[d] / length / seen;
    }
    return norm(m, dim) == 0 ? 0 : 4e-6 / norm(m, dim);
}

static double cosine(const double *k, const double *m, uint32_t dim) {
    double along = 0;
    for (uint32_t d = 0; d < dim; d++)
        along += k[d] * m[d];
    if (norm(k, dim) == 0 || norm(m, dim) == 0) return 0;
    return along / (norm(k, dim) * norm(m, dim));
}

/* Of one query head; adds the absolute terms to *size. */
static double quadratic(const check_data *data, const double *k, uint32_t query_head,
                        double *size) {
    const uint32_t dim = data->lanes.kv.head_dim;
    const float *mu = (const float *)check_init(data, BUF_Q) + (uint64_t)query_head * dim;
    const float *cov = (const float *)check_init(data, BUF_W) + (uint64_t)query_head * dim * dim;
    double score = 0;
    for (uint32_t i = 0; i < dim; i++) {
        score += SCALE * mu[i] * k[i];
        *size += fabs(SCALE * mu[i] * k[i]);
        for (uint32_t j = 0; j < dim; j++) {
            const double term = SCALE * SCALE / 2 * k[i] * cov[i * dim + j] * k[j];
            score += term;
            *size += fabs(term);
        }
    }
    return score;
}

static void score_owner(check_data *data, uint64_t owner) {
    const check_lanes *l = &data->lanes;
    const uint32_t dim = l->kv.head_dim, seen = check_owner_visible(data, owner);
    const uint32_t kind = check_get(data, KEY_SAYS);
    float *want = (float *)data->buf[BUF_Y].want + owner * stride_of(data);
    double *tolerance = data->buf[BUF_Y].tolerance + owner * stride_of(data);
    double *keys = keys_of(data, owner), *m = check_alloc(dim * sizeof *m), turned = 0;
    if (kind == TMS_KEY_COSINE) turned = mean_of(data, keys, seen, m);
    for (uint32_t s = 0; s < seen; s++) {
        const double *k = keys + (uint64_t)s * dim;
        double score = 0, size = 0;
        if (kind == TMS_KEY_NORM) {
            score = norm(k, dim);
            tolerance[s] = 2e-6 * score;
        } else if (kind == TMS_KEY_COSINE) {
            score = cosine(k, m, dim);
            tolerance[s] = norm(k, dim) == 0 ? 0 : turned;
        } else {
            for (uint32_t g = 0; g < l->group; g++)
                score +=
                    quadratic(data, k, (uint32_t)(owner % l->n_kv_heads) * l->group + g, &size);
            score /= l->group;
            tolerance[s] = 4e-6 * size / l->group;
        }
        want[s] = (float)score;
    }
    free(m);
    free(keys);
}

static void oracle(check_data *data) {
    check_want(data, BUF_Y, true);
    for (uint64_t i = 0; i < check_owners(data); i++)
        score_owner(data, i);
}

static uint64_t bytes(const check_data *data) {
    const uint64_t passes = check_get(data, KEY_SAYS) == TMS_KEY_COSINE ? 2 : 1;
    return check_all_visible(data) * (passes * check_key_bytes(data) + 4);
}

static const char *reject(const check_case *c) {
    return c->v[KEY_G] ? check_lanes_reject(c) : "g is at least 1";
}

const check_op check_op_key_score = {
    .name = "key_score",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_G, 1},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 100},
                                        {KEY_EVEN, 0},
                                        {KEY_SAYS, TMS_KEY_COSINE},
                                        {KEY_COUNT, 0}},
    .factors =
        (const check_factor[]){CHECK_FILLS,
                               {KEY_SAYS, 3, {TMS_KEY_NORM, TMS_KEY_COSINE, TMS_KEY_QUADRATIC}},
                               CHECK_DTYPES,
                               CHECK_LAYOUTS,
                               {KEY_D, 2, {64, 128}},
                               {KEY_G, 4, {1, 4, 5, 8}},
                               CHECK_PAGE_SIZES,
                               {KEY_KV, 4, {1, 17, 40, 97}},
                               {KEY_B, 2, {1, 3}},
                               {KEY_R, 2, {1, 2}},
                               {KEY_HKV, 2, {1, 2}},
                               {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty:b3:norm"},
                                     {LIST_SMOKE, "nasty:b3:d512:cosine"},
                                     {LIST_SMOKE, "normal:b2:g4:quadratic"},
                                     {LIST_CI, "r0:norm"},
                                     {LIST_CI, "r0:cosine"},
                                     {LIST_CI, "r0:quadratic"},
                                     {LIST_CI, "normal:b2:kv2100:cosine"}, /* three blocks */
                                     {LIST_CI, "nasty:q8:b3:d80:kv300:cosine"},
                                     {LIST_CI, "nasty:q4:b3:d80:kv300:cosine"},
                                     {LIST_CI, "normal:q4:d512:kv70:g4:quadratic"},
                                     {LIST_CI, "nasty:b3:d80:kv1100:page8:cosine"},
                                     {LIST_FULL, "normal:d256:kv1030:cosine"},
                                     {LIST_FULL, "normal:d256:kv20:g2:quadratic"},
                                     {LIST_FULL, "normal:d96:kv1100:cosine"},
                                     {LIST_FULL, "normal:bf16:d96:kv70:g7:quadratic"},
                                     {LIST_FULL, "normal:d128:kv40000:cosine"},
                                     {LIST_OCLGRIND, "nasty:b2:kv37:cosine"},
                                     {LIST_OCLGRIND, "bf16:nhd:d80:kv20:g3:quadratic"},
                                     {LIST_OCLGRIND, "f32:kv20:norm"},
                                     {LIST_BENCH, "f16:hkv8:d128:kv32768:even:norm"},
                                     {LIST_BENCH, "f16:hkv8:d128:kv32768:even:cosine"},
                                     {LIST_BENCH, "f16:hkv8:g4:d128:kv4096:even:quadratic"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_lanes_rows,
    .rows_alone = true,
    .bytes = bytes,
};
