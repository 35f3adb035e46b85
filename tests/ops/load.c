/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of load_rows: stored rows of any dtype in the cache, K normalised and rotated on its way,
 * against norms and angles in fp64. */
#include "check.h"

#include <math.h>

#define EPS 1e-5f

/* ---- Data and launch ------------------------------------------------------------------------- */

static uint64_t stride_of(const check_data *data) {
    return check_get(data, KEY_HKV) * check_get(data, KEY_D) + check_get(data, KEY_PAD);
}

static void make_positions(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint64_t n = (uint64_t)l->n_pages * l->kv.page_size;
    const int32_t edges[] = {1, TMS_ROTATE_LIMIT - 1, 1 - (int32_t)TMS_ROTATE_LIMIT, 0, 1024, -1};
    int32_t *rows = check_buffer_add(data, BUF_ROW_POSITIONS, ROLE_INPUT, CHECK_I32, l->n_rows);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_ROW_POSITIONS);
    for (uint32_t r = 0; r < l->n_rows; r++)
        rows[r] = r < 6 ? edges[r] : (int32_t)check_below(&rng, TMS_ROTATE_LIMIT);
    if (check_get(data, KEY_POS)) check_buffer_add(data, BUF_POSITIONS, ROLE_UPDATE, CHECK_I32, n);
    if (check_get(data, KEY_SCORE)) check_buffer_add(data, BUF_SCORES, ROLE_UPDATE, TAMIS_F32, n);
}

/* Which of K (1) and V (2) there is. */
static bool is_there(const check_data *data, check_id id) {
    return check_get(data, KEY_PARTS) & (id == BUF_K ? 1u : 2u);
}

static void make(check_data *data) {
    check_lanes_make(data, ROLE_UPDATE);
    const check_lanes *l = &data->lanes;
    const uint64_t stride = stride_of(data), width = stride - check_get(data, KEY_PAD);
    if (check_get(data, KEY_ROT)) check_rotation_table(data);
    if (!l->n_rows) return;
    check_lanes_slots(data);
    make_positions(data);
    if (check_get(data, KEY_HEADS)) {
        check_buffer_add(data, BUF_Y, ROLE_INPUT, TAMIS_F32, l->kv.head_dim);
        check_fill_matrix(data, BUF_Y, 1, l->kv.head_dim, l->kv.head_dim);
    }
    for (int id = BUF_K; id <= BUF_V; id++) {
        if (!is_there(data, (check_id)id)) continue;
        const uint32_t type = check_get(data, KEY_SOURCE);
        void *to = check_buffer_add(data, (check_id)id, ROLE_INPUT, type, l->n_rows * stride);
        check_rng rng = check_rng_make(data->seed, data->c, (uint64_t)id);
        for (uint32_t r = 0; r < l->n_rows; r++)
            for (uint64_t i = 0; i < stride; i++)
                check_store(type, to, r * stride + i,
                            i < width ? check_value(&rng, (check_fill)check_get(data, KEY_FILL))
                                      : NAN);
    }
}

static tamis_status launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const uint64_t stride = stride_of(data);
    const tms_load_rows p = {
        .kv = check_kv(side),
        .batch = check_batch(side, rows),
        .k = check_ref(side, BUF_K, rows.first * stride),
        .v = check_ref(side, BUF_V, rows.first * stride),
        .slots = check_ref(side, BUF_SLOTS, rows.first * data->lanes.n_kv_heads),
        .k_stride = stride,
        .v_stride = stride,
        .dtype = (tamis_dtype)check_get(data, KEY_SOURCE),
        .planes = {check_ref(side, BUF_POSITIONS, 0), check_ref(side, BUF_SCORES, 0)},
        .positions = check_ref(side, BUF_ROW_POSITIONS, rows.first),
        .n_rot = check_get(data, KEY_ROT),
        .pairing = (tamis_pairing)check_get(data, KEY_PAIRING),
        .table = check_ref(side, BUF_W, 0),
        .k_norm = check_ref(side, BUF_Y, 0),
        .eps = EPS,
    };
    return tms_run_load_rows(side->dev, &p, &side->error);
}

/* ---- Direct formula -------------------------------------------------------------------------- */

/* Channels of a head, as stored or x / sqrt(mean(x²) + eps)·w of them. */
static void normalised(const check_data *data, uint64_t at, double *y) {
    const uint32_t dim = check_get(data, KEY_D);
    const check_buffer *k = &data->buf[BUF_K];
    const float *w = check_get(data, KEY_HEADS) ? check_init(data, BUF_Y) : NULL;
    double squares = 0;
    for (uint32_t d = 0; d < dim; d++) {
        y[d] = check_load(k->type, k->init, at + d);
        squares += y[d] * y[d];
    }
    for (uint32_t d = 0; w && d < dim; d++)
        y[d] = y[d] / sqrt(squares / dim + EPS) * w[d];
}

/* Channels of a rotated head, and what each may differ by in fp32. */
static void turned(const check_data *data, uint64_t at, int32_t position, double *y,
                   double *tolerance) {
    const uint32_t rot = check_get(data, KEY_ROT), dim = check_get(data, KEY_D);
    const bool half = check_get(data, KEY_PAIRING) == TAMIS_PAIR_HALF;
    const double of_norm = check_get(data, KEY_HEADS) ? 2e-6 : 0;
    normalised(data, at, y);
    for (uint32_t d = 0; d < dim; d++)
        tolerance[d] = of_norm * fabs(y[d]);
    for (uint32_t i = 0; i < rot / 2; i++) {
        const uint32_t first = half ? i : 2 * i, second = first + (half ? rot / 2 : 1);
        const double angle = position * check_frequency(data, i), a = y[first], b = y[second];
        y[first] = a * cos(angle) - b * sin(angle);
        y[second] = a * sin(angle) + b * cos(angle);
        tolerance[first] = tolerance[second] = (4e-7 + of_norm) * hypot(a, b);
    }
}

/* A head in its slot, rounded to the cache's dtype: a rotated channel by half a unit, or to the other
 * side of half a unit. */
static void put(check_data *data, uint64_t to, const double *y, const double *tolerance) {
    static const double units[] = {0, 0x1p-10, 0x1p-7}, least[] = {0, 0x1p-24, 0};
    const tms_kv *kv = &data->lanes.kv;
    check_buffer *cache = &data->buf[BUF_KV];
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        check_store(kv->dtype, cache->want, to + d, y[d]);
        cache->tolerance[to + d] = tolerance[d];
        if (tolerance[d] > 0)
            cache->tolerance[to + d] += fmax(units[kv->dtype] * fabs(y[d]), least[kv->dtype]);
    }
}

static void put_slot(check_data *data, uint32_t row, uint32_t head, uint32_t slot) {
    const check_lanes *l = &data->lanes;
    const uint32_t size = l->kv.page_size;
    const uint32_t page = check_page_id(data, check_row_seq(data, row), head, slot / size);
    const uint64_t to = check_key_row(data, page, head, slot % size);
    const uint64_t from = row * stride_of(data) + (uint64_t)head * l->kv.head_dim;
    const uint64_t in_plane = (uint64_t)page * size + slot % size;
    const int32_t position = ((int32_t *)check_init(data, BUF_ROW_POSITIONS))[row];
    const check_buffer *v = &data->buf[BUF_V];
    int32_t *positions = data->buf[BUF_POSITIONS].want;
    float *scores = data->buf[BUF_SCORES].want;
    double y[TMS_MOST_HEAD_DIM], tolerance[TMS_MOST_HEAD_DIM], none[TMS_MOST_HEAD_DIM] = {0};
    if (is_there(data, BUF_K)) {
        turned(data, from, position, y, tolerance);
        put(data, to, y, tolerance);
    }
    if (is_there(data, BUF_V)) {
        for (uint32_t d = 0; d < l->kv.head_dim; d++)
            y[d] = check_load(v->type, v->init, from + d);
        put(data, to + l->kv.value_offset, y, none);
    }
    if (positions) positions[in_plane] = position;
    if (scores) scores[in_plane] = 0;
}

static void oracle(check_data *data) {
    const check_lanes *l = &data->lanes;
    const int32_t *slots = check_init(data, BUF_SLOTS);
    check_want(data, BUF_KV, true);
    check_want(data, BUF_POSITIONS, false);
    check_want(data, BUF_SCORES, false);
    for (uint32_t row = 0; row < l->n_rows; row++)
        for (uint32_t h = 0; h < l->n_kv_heads; h++) {
            const int32_t slot = slots[row * l->n_kv_heads + h];
            if (slot >= 0) put_slot(data, row, h, (uint32_t)slot);
        }
}

static const char *reject(const check_case *c) {
    if (c->v[KEY_ROT] % 2 || c->v[KEY_ROT] > c->v[KEY_D])
        return "rotated channels (rot) are odd, or more than the head dim (d)";
    if (c->v[KEY_PARTS] < 1 || c->v[KEY_PARTS] > 3) return "parts is 1 (K), 2 (V) or 3";
    if (c->v[KEY_PARTS] == 2 && (c->v[KEY_POS] || c->v[KEY_SCORE])) return "planes without K";
    if (c->v[KEY_HEADS] && c->v[KEY_FILL] == FILL_NASTY && c->v[KEY_SOURCE] != TAMIS_F16)
        return "a norm of rows whose squares exceed fp32";
    return check_planes_reject(c);
}

static uint64_t bytes(const check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint64_t source = l->kv.head_dim * check_type_size(check_get(data, KEY_SOURCE));
    const uint64_t k = is_there(data, BUF_K) ? check_key_bytes(data) + source : 0;
    const uint64_t v = is_there(data, BUF_V) ? check_value_bytes(data) + source : 0;
    return (uint64_t)l->n_rows * l->n_kv_heads * (k + v);
}

const check_op check_op_load_rows = {
    .name = "load_rows",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_SOURCE, TAMIS_F16},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 100},
                                        {KEY_ROT, 64},
                                        {KEY_PAIRING, TAMIS_PAIR_HALF},
                                        {KEY_PARTS, 3},
                                        {KEY_PAD, 0},
                                        {KEY_POS, 0},
                                        {KEY_SCORE, 0},
                                        {KEY_HEADS, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      CHECK_DTYPES,
                                      {KEY_SOURCE, 3, {TAMIS_F32, TAMIS_F16, TAMIS_BF16}},
                                      CHECK_LAYOUTS,
                                      CHECK_HEAD_DIMS,
                                      CHECK_PAGE_SIZES,
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_R, 3, {1, 7, 33}},
                                      {KEY_HKV, 3, {1, 2, 5}},
                                      {KEY_ROT, 5, {0, 2, 18, 64, 80}},
                                      {KEY_PAIRING, 2, {TAMIS_PAIR_HALF, TAMIS_PAIR_ADJACENT}},
                                      {KEY_PARTS, 3, {1, 2, 3}},
                                      {KEY_PAD, 2, {0, 6}},
                                      {KEY_HEADS, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .compiled = (const check_key[]){KEY_D, KEY_DTYPE, KEY_SOURCE, KEY_PAGE, KEY_COUNT},
    .entries =
        (const check_entry[]){{LIST_SMOKE, "nasty:f16:b2:r5:half"},
                              {LIST_SMOKE, "normal:k8v4:from-f16:b2:r5:d80:rot80:parts3"},
                              {LIST_SMOKE, "normal:q4:from-f16:b2:r5:d512:rot512:parts3"},
                              {LIST_SMOKE, "nasty:k8v4:from-f32:b2:r5:parts2"},
                              {LIST_SMOKE, "nasty:q4:from-f32:b2:r5:parts2"},
                              {LIST_SMOKE, "normal:f16:from-bf16:b2:r5:d80:rot80:adjacent:pad6"},
                              {LIST_SMOKE, "normal:bf16:from-f32:b2:r5:pos:score:parts1"},
                              {LIST_SMOKE, "nasty:f16:b2:r5:rot18:heads"},
                              {LIST_CI, "f16:r0"},
                              {LIST_CI, "nasty:f16:b3:r33:hkv5:page8:rot0:pos:score"},
                              {LIST_CI, "normal:f32:b2:r33:d512:rot512:page64"},
                              {LIST_OCLGRIND, "normal:f16:b2:r2:kv20:pos:score:heads"},
                              {LIST_OCLGRIND, "nasty:bf16:r2:kv20:d80:rot80:parts2"},
                              {LIST_BENCH, "f16:r512:hkv8:d128:rot128:kv4096"},
                              {LIST_BENCH, "f16:r512:hkv8:d128:rot0:kv4096"},
                              {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_lanes_rows,
    .rows_alone = true,
    .bytes = bytes,
};
