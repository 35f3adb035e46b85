/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of write_rotated: heads of q and k normalised and rotated in place, then keys and
 * values in the cache, against norms and angles in fp64. */
#include "check.h"

#include <math.h>
#include <stdlib.h>

#define EPS 1e-5f

/* ---- Data and launch ------------------------------------------------------------------------- */

uint64_t check_k_stride(const check_data *data) {
    return (uint64_t)check_get(data, KEY_HKV) * check_get(data, KEY_D) + check_get(data, KEY_PAD);
}

static void make_positions(check_data *data) {
    const check_lanes *l = &data->lanes;
    const int32_t edges[] = {1, TMS_ROTATE_LIMIT - 1, 1 - (int32_t)TMS_ROTATE_LIMIT, 0, 1024, -1};
    int32_t *rows = check_buffer_add(data, BUF_ROW_POSITIONS, ROLE_INPUT, CHECK_I32, l->n_rows);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_ROW_POSITIONS);
    for (uint32_t r = 0; r < l->n_rows; r++)
        rows[r] = r < 6 ? edges[r] : (int32_t)check_below(&rng, TMS_ROTATE_LIMIT);
    if (check_get(data, KEY_POS))
        check_buffer_add(data, BUF_POSITIONS, ROLE_UPDATE, CHECK_I32,
                         (uint64_t)l->n_pages * l->kv.page_size);
    if (check_get(data, KEY_SCORE))
        check_buffer_add(data, BUF_SCORES, ROLE_UPDATE, TAMIS_F32,
                         (uint64_t)l->n_pages * l->kv.page_size);
}

static void make(check_data *data) {
    check_lanes_make(data, ROLE_UPDATE);
    const check_lanes *l = &data->lanes;
    const uint32_t n = l->n_rows, dim = l->kv.head_dim;
    if (!n) return;
    check_rotation_table(data);
    check_lanes_slots(data);
    make_positions(data);
    const struct {
        check_id id;
        check_role role;
        uint64_t stride;
    } all[] = {{BUF_Q, ROLE_UPDATE, check_q_stride(data)},
               {BUF_K, ROLE_UPDATE, check_k_stride(data)},
               {BUF_V, ROLE_INPUT, check_k_stride(data)}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        check_buffer_add(data, all[i].id, all[i].role, TAMIS_F32, n * all[i].stride);
        check_fill_matrix(data, all[i].id, n, all[i].stride - check_get(data, KEY_PAD),
                          all[i].stride);
    }
    for (int id = BUF_X; check_get(data, KEY_HEADS) && id <= BUF_Y; id += BUF_Y - BUF_X) {
        check_buffer_add(data, (check_id)id, ROLE_INPUT, TAMIS_F32, dim);
        check_fill_matrix(data, (check_id)id, 1, dim, dim);
    }
}

tms_write_rotated check_rotated_rows(check_side *side, check_rows rows, check_id scores,
                                     check_id k_norm) {
    const check_data *data = side->data;
    const uint64_t of_k = check_k_stride(data), of_q = check_q_stride(data);
    return (tms_write_rotated){
        .kv = check_kv(side),
        .batch = check_batch(side, rows),
        .k = check_ref(side, BUF_K, rows.first * of_k),
        .v = check_ref(side, BUF_V, rows.first * of_k),
        .slots = check_ref(side, BUF_SLOTS, rows.first * data->lanes.n_kv_heads),
        .k_stride = of_k,
        .v_stride = of_k,
        .dtype = TAMIS_F32,
        .planes = {check_ref(side, BUF_POSITIONS, 0), check_ref(side, scores, 0)},
        .positions = check_ref(side, BUF_ROW_POSITIONS, rows.first),
        .rotation = {.q = {check_ref(side, BUF_Q, rows.first * of_q), of_q},
                     .n_rot = check_get(data, KEY_ROT),
                     .pairing = (tamis_pairing)check_get(data, KEY_PAIRING),
                     .positions = check_ref(side, BUF_ROW_POSITIONS, rows.first),
                     .table = check_ref(side, BUF_W, 0),
                     .q_norm = check_ref(side, BUF_X, 0),
                     .k_norm = check_ref(side, k_norm, 0),
                     .eps = EPS},
    };
}

static tamis_status launch(check_side *side, check_rows rows) {
    const tms_write_rotated p = check_rotated_rows(side, rows, BUF_SCORES, BUF_Y);
    return tms_run_write_rotated(side->dev, &p, &side->error);
}

/* ---- Direct formula -------------------------------------------------------------------------- */

/* x / sqrt(mean(x²) + eps)·w of a head; without weights x. */
static void norm_head(const check_data *data, const float *x, check_id weights, double *y) {
    const uint32_t dim = check_get(data, KEY_D);
    const float *w = check_init(data, weights);
    double squares = 0;
    for (uint32_t d = 0; d < dim; d++)
        squares += (double)x[d] * x[d];
    for (uint32_t d = 0; d < dim; d++)
        y[d] = w ? x[d] / sqrt(squares / dim + EPS) * w[d] : x[d];
}

static void turn_head(check_data *data, check_id id, check_id weights, uint64_t at,
                      int32_t position) {
    const uint32_t rot = check_get(data, KEY_ROT), dim = check_get(data, KEY_D);
    const bool half = check_get(data, KEY_PAIRING) == TAMIS_PAIR_HALF;
    const double of_norm = check_get(data, KEY_HEADS) ? 2e-6 : 0;
    float *want = (float *)data->buf[id].want + at;
    double *tolerance = data->buf[id].tolerance + at, y[TMS_MOST_HEAD_DIM];
    norm_head(data, (const float *)check_init(data, id) + at, weights, y);
    for (uint32_t d = rot; d < dim; d++) {
        want[d] = (float)y[d];
        tolerance[d] = of_norm * fabs(y[d]);
    }
    for (uint32_t i = 0; i < rot / 2; i++) {
        const uint32_t first = half ? i : 2 * i, second = first + (half ? rot / 2 : 1);
        const double angle = position * check_frequency(data, i), a = y[first], b = y[second];
        want[first] = (float)(a * cos(angle) - b * sin(angle));
        want[second] = (float)(a * sin(angle) + b * cos(angle));
        tolerance[first] = tolerance[second] = (4e-7 + of_norm) * hypot(a, b);
    }
}

/* A key as the row holds it, rounded to the cache's dtype: by half a unit, or to the other side of
 * half a unit. */
static void put_key(check_data *data, uint64_t from, uint64_t to) {
    static const double units[] = {0, 0x1p-10, 0x1p-7}, least[] = {0, 0x1p-24, 0};
    const tms_kv *kv = &data->lanes.kv;
    const check_buffer *k = &data->buf[BUF_K];
    check_buffer *cache = &data->buf[BUF_KV];
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        const double key = ((const float *)k->want)[from + d];
        check_store(kv->dtype, cache->want, to + d, key);
        cache->tolerance[to + d] = k->tolerance[from + d];
        if (k->tolerance[from + d] > 0)
            cache->tolerance[to + d] += fmax(units[kv->dtype] * fabs(key), least[kv->dtype]);
    }
}

static void put_row(check_data *data, uint32_t row, uint32_t head, uint32_t slot) {
    const check_lanes *l = &data->lanes;
    const uint32_t size = l->kv.page_size;
    const uint32_t page = check_page_id(data, check_row_seq(data, row), head, slot / size);
    const uint64_t to = check_key_row(data, page, head, slot % size);
    const uint64_t from = row * check_k_stride(data) + (uint64_t)head * l->kv.head_dim;
    const uint64_t in_plane = (uint64_t)page * size + slot % size;
    int32_t *positions = data->buf[BUF_POSITIONS].want;
    float *scores = data->buf[BUF_SCORES].want;
    put_key(data, from, to);
    for (uint32_t d = 0; d < l->kv.head_dim; d++)
        check_store(l->kv.dtype, data->buf[BUF_KV].want, to + l->kv.value_offset + d,
                    ((const float *)check_init(data, BUF_V))[from + d]);
    if (positions) positions[in_plane] = ((int32_t *)check_init(data, BUF_ROW_POSITIONS))[row];
    if (scores) scores[in_plane] = 0;
}

static void oracle(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint32_t heads = l->n_kv_heads * check_get(data, KEY_G), dim = l->kv.head_dim;
    const int32_t *slots = check_init(data, BUF_SLOTS), *at = check_init(data, BUF_ROW_POSITIONS);
    check_want(data, BUF_Q, true);
    check_want(data, BUF_K, true);
    check_want(data, BUF_KV, true);
    check_want(data, BUF_POSITIONS, false);
    check_want(data, BUF_SCORES, false);
    for (uint32_t row = 0; row < l->n_rows; row++) {
        for (uint32_t h = 0; h < heads; h++)
            turn_head(data, BUF_Q, BUF_X, row * check_q_stride(data) + (uint64_t)h * dim, at[row]);
        for (uint32_t h = 0; h < l->n_kv_heads; h++) {
            const int32_t slot = slots[row * l->n_kv_heads + h];
            turn_head(data, BUF_K, BUF_Y, row * check_k_stride(data) + (uint64_t)h * dim, at[row]);
            if (slot >= 0) put_row(data, row, h, (uint32_t)slot);
        }
    }
}

static const char *reject(const check_case *c) {
    if (c->v[KEY_ROT] % 2 || c->v[KEY_ROT] == 0 || c->v[KEY_ROT] > c->v[KEY_D])
        return "rotated channels (rot) are odd, none, or more than the head dim (d)";
    if (c->v[KEY_G] == 0) return "no query heads (g)";
    return check_planes_reject(c);
}

static uint64_t bytes(const check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint64_t heads = (uint64_t)l->n_rows * l->n_kv_heads, row = 4ull * l->kv.head_dim;
    return heads * row * (2 * check_get(data, KEY_G) + 3) +
           heads * (check_key_bytes(data) + check_value_bytes(data));
}

const check_op check_op_write_rotated = {
    .name = "write_rotated",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_G, 3},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 100},
                                        {KEY_ROT, 64},
                                        {KEY_PAIRING, TAMIS_PAIR_HALF},
                                        {KEY_PAD, 0},
                                        {KEY_POS, 0},
                                        {KEY_SCORE, 0},
                                        {KEY_HEADS, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      CHECK_LANES,
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_R, 3, {1, 7, 33}},
                                      {KEY_HKV, 3, {1, 2, 5}},
                                      {KEY_G, 3, {1, 3, 8}},
                                      {KEY_ROT, 5, {2, 18, 32, 64, 80}},
                                      {KEY_PAIRING, 2, {TAMIS_PAIR_HALF, TAMIS_PAIR_ADJACENT}},
                                      {KEY_PAD, 2, {0, 5}},
                                      {KEY_HEADS, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .compiled = (const check_key[]){KEY_D, KEY_DTYPE, KEY_PAGE, KEY_COUNT},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty:f16:b2:r5:half"},
                                     {LIST_SMOKE, "nasty:f16:b2:r5:d80:rot80:adjacent:pad3:heads"},
                                     {LIST_SMOKE, "normal:bf16:b2:r5:pos:score"},
                                     {LIST_CI, "f16:r0"},
                                     {LIST_CI, "nasty:f16:b3:r33:hkv5:page8:pos:score"},
                                     {LIST_CI, "normal:f32:b2:r33:d512:rot512:page64:heads"},
                                     {LIST_OCLGRIND, "normal:f16:b2:r2:kv20:pos:score:heads"},
                                     {LIST_OCLGRIND, "nasty:bf16:r2:kv20:d80:rot80:adjacent"},
                                     {LIST_BENCH, "f16:hkv8:g4:d128:rot128:kv4096"},
                                     {LIST_BENCH, "f16:r512:hkv8:g4:d128:rot128:kv4096"},
                                     {LIST_BENCH, "q8:r512:hkv8:g4:d128:rot128:kv4096"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_lanes_rows,
    .rows_alone = true,
    .bytes = bytes,
};
