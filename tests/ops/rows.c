/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of write_rows and read_rows: K and V rows into slots of lanes and out of them, exactly. */
#include "check.h"

#include <math.h>
#include <stdlib.h>

/* ---- write_rows ------------------------------------------------------------------------------ */

static uint64_t source_stride(const check_data *data) {
    return check_get(data, KEY_HKV) * check_get(data, KEY_D) + check_get(data, KEY_PAD);
}

/* Distinct slots of each lane for the rows of its sequence; one in eight is skipped. */
static void make_slots(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint32_t each = check_get(data, KEY_R), most = l->lane_pages * l->kv.page_size;
    int32_t *slots =
        check_buffer_add(data, BUF_SLOTS, ROLE_INPUT, CHECK_I32, l->n_rows * l->n_kv_heads);
    uint32_t *order = check_alloc(most * sizeof *order);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_SLOTS);
    for (uint32_t first = 0; first < l->n_rows; first += each) {
        for (uint32_t h = 0; h < l->n_kv_heads; h++) {
            uint32_t length = l->length[check_row_seq(data, first) * l->n_kv_heads + h];
            for (uint32_t s = 0; s < length; s++)
                order[s] = s;
            check_shuffle(&rng, order, length);
            for (uint32_t r = 0; r < each; r++)
                slots[(first + r) * l->n_kv_heads + h] =
                    r < length && check_below(&rng, 8) ? (int32_t)order[r] : -1;
        }
    }
    free(order);
}

/* Planes of what was there before, and the rows' positions. */
static void make_planes(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint64_t n = (uint64_t)l->n_pages * l->kv.page_size;
    check_rng rng = check_rng_make(data->seed, data->c, BUF_POSITIONS);
    if (check_get(data, KEY_POS)) {
        int32_t *plane = check_buffer_add(data, BUF_POSITIONS, ROLE_UPDATE, CHECK_I32, n);
        int32_t *rows = check_buffer_add(data, BUF_ROW_POSITIONS, ROLE_INPUT, CHECK_I32, l->n_rows);
        for (uint64_t i = 0; i < n; i++)
            plane[i] = (int32_t)check_below(&rng, 1000);
        for (uint32_t r = 0; r < l->n_rows; r++)
            rows[r] = (int32_t)(1000 + 7 * r);
    }
    if (check_get(data, KEY_SCORE)) {
        float *plane = check_buffer_add(data, BUF_SCORES, ROLE_UPDATE, TAMIS_F32, n);
        for (uint64_t i = 0; i < n; i++)
            plane[i] = 1.0f + (float)check_below(&rng, 1000);
    }
}

/* Blocks that a fill does not make. */
typedef enum block_kind {
    BLOCK_POSITIVE, /* without a negative element */
    BLOCK_ALIKE,    /* of elements that are almost the same */
    BLOCK_LOW,      /* the least element about -65504, which is the least f16 */
    BLOCK_HIGH,     /* all elements above 65504 */
    BLOCK_WIDE,     /* about 15·65504 from the least element to the largest */
    BLOCK_TIES,     /* half way between two values of 4 bits, whose minimum and scale are f16 */
    BLOCK_TINY,     /* a little below or above 2^-126 in magnitude */
    BLOCK_FILLED    /* as the fill has made it, and so for all kinds from here on */
} block_kind;

static float vary(block_kind kind, uint32_t i, float x, double same, check_rng *rng) {
    const double sign = check_below(rng, 2) ? 1 : -1;
    switch (kind) {
    case BLOCK_POSITIVE:
        return fabsf(x);
    case BLOCK_ALIKE:
        return (float)(same * (1 + ldexp(x, -12)));
    case BLOCK_LOW:
        return i == 3 ? (float)(-65504 - 40 * sign) : (float)check_normal(rng);
    case BLOCK_HIGH:
        return 65504 + (float)check_below(rng, 1 << 16);
    case BLOCK_WIDE:
        return i == 3 ? -60000 : i == 5 ? (float)(15 * 65504 - 60000 + 50 * same) : 0;
    case BLOCK_TIES:
        return (float)(-4 + 0.125 * (i == 3 ? 0 : i == 5 ? 15 : check_below(rng, 15) + 0.5));
    case BLOCK_TINY:
        return (float)ldexp(sign * (same > 0 ? 0.9 : 1.1), -126);
    case BLOCK_FILLED:
        break;
    }
    return x;
}

static void vary_blocks(check_data *data, float *row, uint32_t n, check_rng *rng) {
    if (!check_has_scales(data, BUF_KV) || check_get(data, KEY_FILL) != FILL_NASTY) return;
    for (uint32_t first = 0; first < n; first += TMS_BLOCK_CHANNELS) {
        const uint32_t kind = check_below(rng, 2 * BLOCK_FILLED);
        const double same = ldexp(check_normal(rng), (int)check_below(rng, 20) - 10);
        for (uint32_t i = first; i < n && i < first + TMS_BLOCK_CHANNELS && kind < BLOCK_FILLED;
             i++)
            row[i] = vary((block_kind)kind, i - first, row[i], same, rng);
    }
}

/* Rows come as f32 or, under "same", in the cache's dtype if rows may have it. */
static tamis_dtype source_of(const check_data *data) {
    const tamis_dtype dtype = data->lanes.kv.dtype;
    return check_get(data, KEY_SAME) && tms_dtype_of_rows(dtype) ? dtype : TAMIS_F32;
}

static void write_make(check_data *data) {
    check_lanes_make(data, ROLE_UPDATE);
    const check_lanes *l = &data->lanes;
    const uint32_t type = source_of(data);
    const uint64_t stride = source_stride(data), width = stride - check_get(data, KEY_PAD);
    if (!l->n_rows) return;
    make_slots(data);
    make_planes(data);
    for (int id = BUF_K; id <= BUF_V; id++) {
        void *to = check_buffer_add(data, (check_id)id, ROLE_INPUT, type, l->n_rows * stride);
        check_rng rng = check_rng_make(data->seed, data->c, (uint64_t)id);
        for (uint32_t r = 0; r < l->n_rows; r++)
            for (uint64_t i = 0; i < width; i++)
                check_store(type, to, r * stride + i,
                            check_value(&rng, (check_fill)check_get(data, KEY_FILL)));
        rng = check_rng_make(data->seed, data->c, 100 + (uint64_t)id);
        for (uint64_t i = 0; i < l->n_rows * (uint64_t)l->n_kv_heads && type == TAMIS_F32; i++)
            vary_blocks(
                data, (float *)to + i / l->n_kv_heads * stride + i % l->n_kv_heads * l->kv.head_dim,
                l->kv.head_dim, &rng);
    }
}

static void write_oracle(check_data *data) {
    const check_lanes *l = &data->lanes;
    const int32_t *slots = check_init(data, BUF_SLOTS);
    const check_buffer *k = &data->buf[BUF_K], *v = &data->buf[BUF_V];
    check_want(data, BUF_KV, false);
    check_want(data, BUF_POSITIONS, false);
    check_want(data, BUF_SCORES, false);
    void *kv = data->buf[BUF_KV].want;
    int32_t *positions = data->buf[BUF_POSITIONS].want;
    float *scores = data->buf[BUF_SCORES].want;
    for (uint32_t i = 0; i < l->n_rows * l->n_kv_heads; i++) {
        const uint32_t row = i / l->n_kv_heads, head = i % l->n_kv_heads;
        if (slots[i] < 0) continue;
        const uint32_t slot = (uint32_t)slots[i], size = l->kv.page_size;
        const uint32_t page = check_page_id(data, check_row_seq(data, row), head, slot / size);
        const uint64_t to = check_key_row(data, page, head, slot % size);
        const uint64_t from = row * source_stride(data) + head * l->kv.head_dim;
        const uint64_t in_plane = (uint64_t)page * size + slot % size;
        if (positions) positions[in_plane] = ((int32_t *)check_init(data, BUF_ROW_POSITIONS))[row];
        if (scores) scores[in_plane] = 0;
        for (uint32_t d = 0; d < l->kv.head_dim; d++) {
            check_store(l->kv.dtype, kv, to + d, check_load(k->type, k->init, from + d));
            check_store(l->kv.dtype, kv, to + l->kv.value_offset + d,
                        check_load(v->type, v->init, from + d));
        }
    }
}

static tamis_status write_launch(check_side *side, check_rows rows) {
    const uint64_t stride = source_stride(side->data);
    const tms_write_rows p = {
        .kv = check_kv(side),
        .batch = check_batch(side, rows),
        .k = check_ref(side, BUF_K, rows.first * stride),
        .v = check_ref(side, BUF_V, rows.first * stride),
        .slots = check_ref(side, BUF_SLOTS, rows.first * side->data->lanes.n_kv_heads),
        .k_stride = stride,
        .v_stride = stride,
        .dtype = source_of(side->data),
        .planes = {check_ref(side, BUF_POSITIONS, 0), check_ref(side, BUF_SCORES, 0)},
        .positions = check_ref(side, BUF_ROW_POSITIONS, rows.first),
    };
    return tms_run_write_rows(side->dev, &p, &side->error);
}

static uint64_t write_bytes(const check_data *data) {
    const check_lanes *l = &data->lanes;
    const size_t source = check_type_size(source_of(data));
    return (uint64_t)l->n_rows * l->n_kv_heads *
           (2 * l->kv.head_dim * source + check_key_bytes(data) + check_value_bytes(data));
}

/* ---- read_rows ------------------------------------------------------------------------------- */

static void read_make(check_data *data) {
    check_lanes_make(data, ROLE_INPUT);
    const check_lanes *l = &data->lanes;
    const uint32_t n = check_get(data, KEY_N);
    if (!n) return;
    int32_t *seq = check_buffer_add(data, BUF_ROW_SEQ, ROLE_INPUT, CHECK_I32, n);
    int32_t *head = check_buffer_add(data, BUF_HEADS, ROLE_INPUT, CHECK_I32, n);
    int32_t *slot = check_buffer_add(data, BUF_SLOTS, ROLE_INPUT, CHECK_I32, n);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_SLOTS);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t lane = check_below(&rng, l->n_seqs * l->n_kv_heads);
        while (!l->length[lane])
            lane--; /* lane 0 is never empty */
        seq[i] = (int32_t)(lane / l->n_kv_heads);
        head[i] = (int32_t)(lane % l->n_kv_heads);
        slot[i] = (int32_t)check_below(&rng, l->length[lane]);
    }
    check_buffer_add(data, BUF_K, ROLE_OUTPUT, TAMIS_F32, (uint64_t)n * l->kv.head_dim);
    if (!check_get(data, KEY_SAME))
        check_buffer_add(data, BUF_V, ROLE_OUTPUT, TAMIS_F32, (uint64_t)n * l->kv.head_dim);
}

static void read_oracle(check_data *data) {
    const tms_kv *kv = &data->lanes.kv;
    const int32_t *seq = check_init(data, BUF_ROW_SEQ), *head = check_init(data, BUF_HEADS);
    const int32_t *slot = check_init(data, BUF_SLOTS);
    check_want(data, BUF_K, false);
    check_want(data, BUF_V, false);
    for (uint32_t i = 0; i < check_get(data, KEY_N); i++) {
        const uint32_t h = (uint32_t)head[i], s = (uint32_t)slot[i];
        const uint32_t page = check_page_id(data, (uint32_t)seq[i], h, s / kv->page_size);
        const uint64_t row = check_key_row(data, page, h, s % kv->page_size);
        const void *from = check_init(data, BUF_KV);
        for (uint32_t d = 0; d < kv->head_dim; d++) {
            const uint64_t to = (uint64_t)i * kv->head_dim + d;
            check_store(TAMIS_F32, data->buf[BUF_K].want, to, check_load(kv->dtype, from, row + d));
            if (data->buf[BUF_V].want)
                check_store(TAMIS_F32, data->buf[BUF_V].want, to,
                            check_load(kv->dtype, from, row + kv->value_offset + d));
        }
    }
}

static tamis_status read_launch(check_side *side, check_rows rows) {
    const check_lanes *l = &side->data->lanes;
    const uint64_t row = (uint64_t)rows.first * l->kv.head_dim;
    const tms_read_rows p = {
        .kv = check_kv(side),
        .table = check_ref(side, BUF_TABLE, 0),
        .seq_stride = l->seq_stride,
        .head_stride = l->head_stride,
        .n = rows.count,
        .seq = check_ref(side, BUF_ROW_SEQ, rows.first),
        .head = check_ref(side, BUF_HEADS, rows.first),
        .slot = check_ref(side, BUF_SLOTS, rows.first),
        .k = check_ref(side, BUF_K, row),
        .v = check_ref(side, BUF_V, row),
    };
    return tms_run_read_rows(side->dev, &p, &side->error);
}

static uint32_t read_count(const check_data *data) {
    return check_get(data, KEY_N);
}

static uint64_t read_bytes(const check_data *data) {
    const tms_kv *kv = &data->lanes.kv;
    return (uint64_t)check_get(data, KEY_N) *
           (check_key_bytes(data) + check_value_bytes(data) + 8 * kv->head_dim);
}

const check_op check_op_write_rows = {
    .name = "write_rows",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 100},
                                        {KEY_PAD, 0},
                                        {KEY_POS, 0},
                                        {KEY_SCORE, 0},
                                        {KEY_SAME, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      CHECK_LANES,
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_R, 3, {1, 7, 33}},
                                      {KEY_HKV, 3, {1, 2, 5}},
                                      {KEY_PAD, 2, {0, 16}},
                                      {KEY_SAME, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .compiled = (const check_key[]){KEY_D, KEY_DTYPE, KEY_PAGE, KEY_COUNT},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty:f16:b2:r5"},
                                     {LIST_SMOKE, "nasty:f16:b2:r5:d80:pad3"},
                                     {LIST_SMOKE, "nasty:bf16:b2:r5:d80:pad2:same"},
                                     {LIST_SMOKE, "nasty:bf16:nhd:r5"},
                                     {LIST_SMOKE, "normal:f16:b2:r5:pos:score"},
                                     {LIST_SMOKE, "nasty:q8:b2:r5:d112:pad3"},
                                     {LIST_SMOKE, "nasty:k8v4:b2:r5:d80:pad3"},
                                     {LIST_SMOKE, "nasty:q4:b2:r5:d80:pad3"},
                                     {LIST_CI, "nasty:k8v4:b2:r200:hkv3:d128"},
                                     {LIST_CI, "nasty:q4:b2:r200:hkv3:d512"},
                                     {LIST_CI, "f16:r0"},
                                     {LIST_CI, "nasty:f16:b3:r33:hkv5:page8:pos:score"},
                                     {LIST_CI, "nasty:bf16:b2:r7:d80:page32:kv5:pos:same"},
                                     {LIST_CI, "normal:f32:b2:r33:d256:page64:score"},
                                     {LIST_CI, "normal:f16:nhd:hkv1:r7:d128:pos:score"},
                                     {LIST_OCLGRIND, "nasty:f16:b2:r3:kv20"},
                                     {LIST_OCLGRIND, "nasty:k8v4:b2:r3:d80:kv20"},
                                     {LIST_OCLGRIND, "nasty:q4:b2:r3:d80:kv20"},
                                     {LIST_OCLGRIND, "nasty:bf16:nhd:r2:kv20:same"},
                                     {LIST_OCLGRIND, "normal:f16:b2:r2:kv20:pos:score"},
                                     {LIST_BENCH, "f16:r4096:hkv8:d128:kv4096"},
                                     {LIST_BENCH, "q8:r4096:hkv8:d128:kv4096"},
                                     {0, NULL}},
    .reject = check_planes_reject,
    .make = write_make,
    .oracle = write_oracle,
    .launch = write_launch,
    .rows = check_lanes_rows,
    .rows_alone = true,
    .bytes = write_bytes,
};

const check_op check_op_read_rows = {
    .name = "read_rows",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_HKV, 2},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 100},
                                        {KEY_N, 9},
                                        {KEY_SAME, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){{KEY_FILL, 2, {FILL_NORMAL, FILL_NASTY}},
                                      CHECK_LANES,
                                      {KEY_N, 3, {1, 9, 70}},
                                      {KEY_HKV, 3, {1, 2, 5}},
                                      {KEY_SAME, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .compiled = (const check_key[]){KEY_D, KEY_DTYPE, KEY_PAGE, KEY_COUNT},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty:f16:b2"},
                                     {LIST_SMOKE, "normal:q8:b2:d80"},
                                     {LIST_SMOKE, "normal:k8v4:b2:d80"},
                                     {LIST_SMOKE, "normal:q4:b2:d80"},
                                     {LIST_CI, "n0"},
                                     {LIST_OCLGRIND, "f16:b2:kv20:n5"},
                                     {LIST_OCLGRIND, "k8v4:d80:kv20:n5"},
                                     {LIST_OCLGRIND, "q4:d80:kv20:n5"},
                                     {LIST_OCLGRIND, "bf16:hnd:kv20:n5:same"},
                                     {LIST_BENCH, "f16:hkv8:d128:kv4096:n32768"},
                                     {0, NULL}},
    .reject = check_lanes_reject,
    .make = read_make,
    .oracle = read_oracle,
    .launch = read_launch,
    .rows = read_count,
    .rows_alone = true,
    .bytes = read_bytes,
};
