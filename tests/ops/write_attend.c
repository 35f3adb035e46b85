/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of write_attend and write_sparse_attend: as write_rotated and attend, or sparse_attend, one
 * by one. */
#include "check.h"

/* ---- Data ------------------------------------------------------------------------------------ */

/* Whether a row's own slot fills its page. */
static bool fills(const check_data *data, uint64_t owner) {
    return check_owner_visible(data, owner) % data->lanes.kv.page_size == 0;
}

/* The last slot that a row sees; a row in eight is skipped, and what may not be written. */
static void make_slots(check_data *data, bool sparse) {
    const check_lanes *l = &data->lanes;
    const uint64_t n = check_owners(data);
    int32_t *slots = check_buffer_add(data, BUF_SLOTS, ROLE_INPUT, CHECK_I32, n);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_SLOTS);
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t visible = check_owner_visible(data, i);
        const uint32_t first =
            check_first(data, (uint32_t)(i / l->n_kv_heads), (uint32_t)(i % l->n_kv_heads));
        const bool skipped = check_below(&rng, 8) == 0 || (sparse && fills(data, i));
        slots[i] = skipped || first >= visible ? -1 : (int32_t)visible - 1;
    }
}

static void make_positions(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint64_t slots = (uint64_t)l->n_pages * l->kv.page_size;
    int32_t *rows = check_buffer_add(data, BUF_ROW_POSITIONS, ROLE_INPUT, CHECK_I32, l->n_rows);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_ROW_POSITIONS);
    for (uint32_t r = 0; r < l->n_rows; r++)
        rows[r] = (int32_t)check_below(&rng, TMS_ROTATE_LIMIT);
    if (check_get(data, KEY_POS))
        check_buffer_add(data, BUF_POSITIONS, ROLE_UPDATE, CHECK_I32, slots);
    if (check_get(data, KEY_SCORE)) check_buffer_add(data, BUF_TO, ROLE_UPDATE, TAMIS_F32, slots);
}

/* Every other page of a lane, with the newest. */
static void make_lists(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint64_t n = check_owners(data);
    int32_t *pages = check_buffer_add(data, BUF_LISTS, ROLE_INPUT, CHECK_I32, n * l->lane_pages);
    int32_t *counts = check_buffer_add(data, BUF_COUNTS, ROLE_INPUT, CHECK_I32, n);
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t all = (uint32_t)tms_divide_up(check_owner_visible(data, i), l->kv.page_size);
        for (uint32_t o = all % 2 ? 0 : 1; o < all; o += 2)
            pages[i * l->lane_pages + (uint32_t)counts[i]++] = (int32_t)o;
    }
}

static void make_rows(check_data *data) {
    const uint32_t n = data->lanes.n_rows, dim = data->lanes.kv.head_dim;
    const uint64_t pad = check_get(data, KEY_PAD), k = check_k_stride(data);
    check_rotation_table(data);
    check_q_make(data);
    for (int id = BUF_K; id <= BUF_V; id++) {
        check_buffer_add(data, (check_id)id, ROLE_INPUT, TAMIS_F32, n * k);
        check_fill_matrix(data, (check_id)id, n, k - pad, k);
    }
    for (int id = BUF_X; check_get(data, KEY_HEADS) && id <= BUF_Y2; id += BUF_Y2 - BUF_X) {
        check_buffer_add(data, (check_id)id, ROLE_INPUT, TAMIS_F32, dim);
        check_fill_matrix(data, (check_id)id, 1, dim, dim);
    }
}

static void make_either(check_data *data, bool sparse) {
    const check_lanes *l = &data->lanes;
    check_lanes_make(data, ROLE_UPDATE);
    if (sparse) check_bounds_make(data, ROLE_INPUT);
    const uint64_t lanes = check_owners(data);
    /* Without rows there are no lists, but still the scores that tell what can be fused. */
    if (sparse)
        check_buffer_add(data, BUF_SCORES, ROLE_OUTPUT, TAMIS_F32, (lanes + 1) * l->lane_pages);
    check_sinks_make(data, l->n_kv_heads * l->group);
    if (!lanes) return;
    make_slots(data, sparse);
    make_positions(data);
    make_rows(data);
    if (sparse) {
        const uint64_t capacity = check_select_capacity(data);
        check_buffer_add(data, BUF_LISTS, ROLE_OUTPUT, CHECK_I32, lanes * capacity);
        check_buffer_add(data, BUF_COUNTS, ROLE_OUTPUT, CHECK_I32, lanes);
    } else if (check_get(data, KEY_TOP)) {
        make_lists(data);
    }
    check_buffer_add(data, BUF_Y, ROLE_OUTPUT, TAMIS_F32, l->n_rows * check_q_stride(data));
    check_buffer_add(data, BUF_LSE, ROLE_OUTPUT, TAMIS_F32, lanes * l->group);
}

static void make(check_data *data) {
    make_either(data, false);
}

static void make_sparse(check_data *data) {
    make_either(data, true);
}

/* ---- Launches -------------------------------------------------------------------------------- */

static tms_write_rotated written(check_side *side, check_rows rows) {
    return check_rotated_rows(side, rows, BUF_TO, BUF_Y2);
}

static tms_attend attended(check_side *side, check_rows rows, uint32_t capacity, uint32_t pages) {
    const check_data *data = side->data;
    const check_lanes *l = &data->lanes;
    const uint64_t step = check_q_stride(data), lane = (uint64_t)rows.first * l->n_kv_heads;
    tms_attend a = {
        .kv = check_kv(side),
        .batch = check_batch(side, rows),
        .lists = {check_ref(side, BUF_LISTS, lane * capacity), check_ref(side, BUF_COUNTS, lane),
                  capacity},
        .max_pages = pages,
        .q = {check_ref(side, BUF_Q, rows.first * step), step},
        .out = {check_ref(side, BUF_Y, rows.first * step), step},
        .lse = check_ref(side, BUF_LSE, lane * l->group),
        .logit = {check_attend_scale(data), check_attend_cap(data), check_ref(side, BUF_SINKS, 0)},
    };
    a.scratch = check_scratch(side, tms_attend_scratch(side->dev, &a));
    return a;
}

static tms_write_attend params(check_side *side, check_rows rows) {
    const uint32_t pages = side->data->lanes.lane_pages;
    return (tms_write_attend){written(side, rows), attended(side, rows, pages, pages)};
}

static tms_write_sparse_attend sparse_params(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const check_lanes *l = &data->lanes;
    const uint32_t capacity = check_select_capacity(data);
    const tms_attend a = attended(side, rows, capacity, capacity);
    const tms_ref scores =
        check_ref(side, BUF_SCORES, (uint64_t)rows.first * l->n_kv_heads * l->lane_pages);
    return (tms_write_sparse_attend){
        written(side, rows),
        {.score = {a.kv, a.batch, a.q, (tamis_group_rule)check_get(data, KEY_RULE), scores,
                   l->lane_pages},
         .select = {a.batch, l->kv.page_size, check_get(data, KEY_TOP), check_get(data, KEY_SINKS),
                    check_get(data, KEY_RECENT), scores, l->lane_pages, a.lists},
         .attend = a}};
}

static check_rows all_rows(const check_side *side) {
    return (check_rows){0, side->data->lanes.n_rows};
}

static tamis_status launch(check_side *side, check_rows rows) {
    const tms_write_attend p = params(side, rows);
    return tms_run_write_attend(side->dev, &p, &side->error);
}

static tamis_status launch_sparse(check_side *side, check_rows rows) {
    const tms_write_sparse_attend p = sparse_params(side, rows);
    return tms_run_write_sparse_attend(side->dev, &p, &side->error);
}

static const char *refusal(check_side *side) {
    const tms_write_attend p = params(side, all_rows(side));
    return tms_write_attend_refusal(side->dev, &p);
}

static const char *sparse_refusal(check_side *side) {
    const tms_write_sparse_attend p = sparse_params(side, all_rows(side));
    return tms_write_sparse_attend_refusal(side->dev, &p);
}

/* ---- One by one ------------------------------------------------------------------------------ */

/* q and k as they were, which write_rotated changes. */
static tamis_status restore(check_side *side, check_id id) {
    const check_buffer *b = &side->data->buf[id];
    return tms_device_write(side->dev, check_ref(side, id, 0), b->init, b->count * sizeof(float),
                            &side->error);
}

static tamis_status restore_rows(check_side *side) {
    if (!side->data->lanes.n_rows) return TAMIS_OK;
    const tamis_status status = restore(side, BUF_Q);
    return status == TAMIS_OK ? restore(side, BUF_K) : status;
}

static tamis_status apart(check_side *side) {
    const tms_write_attend p = params(side, all_rows(side));
    tamis_status status = tms_run_write_rotated(side->dev, &p.write, &side->error);
    if (status == TAMIS_OK) status = tms_run_attend(side->dev, &p.attend, &side->error);
    return status == TAMIS_OK ? restore_rows(side) : status;
}

static tamis_status sparse_apart(check_side *side) {
    const tms_write_sparse_attend p = sparse_params(side, all_rows(side));
    tamis_status status = tms_run_write_rotated(side->dev, &p.write, &side->error);
    if (status == TAMIS_OK) status = tms_run_sparse_attend(side->dev, &p.sparse, &side->error);
    return status == TAMIS_OK ? restore_rows(side) : status;
}

static bool judge(check_side *side, char *why, size_t why_size) {
    return check_same_apart(side, apart, why, why_size);
}

static bool judge_sparse(check_side *side, char *why, size_t why_size) {
    return check_same_apart(side, sparse_apart, why, why_size);
}

static const char *reject(const check_case *c) {
    if (c->v[KEY_R] > 1) return "one row a sequence (r)";
    if (c->v[KEY_ROT] % 2 || c->v[KEY_ROT] == 0 || c->v[KEY_ROT] > c->v[KEY_D])
        return "rotated channels (rot) are odd, none, or more than the head dim (d)";
    return check_planes_reject(c);
}

static const char *reject_sparse(const check_case *c) {
    return c->v[KEY_TOP] ? reject(c) : "no pages to select (top)";
}

static uint64_t bytes(const check_data *data) {
    return check_all_visible(data) * (check_key_bytes(data) + check_value_bytes(data));
}

const check_op check_op_write_attend = {
    .name = "write_attend",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_G, 3},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 200},
                                        {KEY_TOP, 0},
                                        {KEY_ROT, 64},
                                        {KEY_PAIRING, TAMIS_PAIR_HALF},
                                        {KEY_HEADS, 0},
                                        {KEY_POS, 0},
                                        {KEY_SCORE, 0},
                                        {KEY_PAD, 0},
                                        {KEY_EVEN, 0},
                                        {KEY_ORDERED, 0},
                                        {KEY_FIRST, 0},
                                        {KEY_CAP, 0},
                                        {KEY_SINK, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){{KEY_G, 3, {1, 3, 8}},
                                      {KEY_D, 2, {64, 128}},
                                      CHECK_DTYPES,
                                      CHECK_FILLS,
                                      CHECK_LAYOUTS,
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_HKV, 2, {1, 3}},
                                      {KEY_KV, 4, {1, 17, 256, 3000}},
                                      {KEY_TOP, 2, {0, 1}},
                                      {KEY_ROT, 2, {18, 64}},
                                      {KEY_PAIRING, 2, {TAMIS_PAIR_HALF, TAMIS_PAIR_ADJACENT}},
                                      {KEY_HEADS, 2, {0, 1}},
                                      {KEY_FIRST, 2, {0, 1}},
                                      {KEY_CAP, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .compiled = (const check_key[]){KEY_G, KEY_D, KEY_DTYPE, KEY_CAP, KEY_FIRST, KEY_COUNT},
    .entries = (const check_entry[]){{LIST_SMOKE, "normal:f16:b3:kv600:pos:score"},
                                     {LIST_SMOKE, "nasty:f16:b2:kv300:heads:adjacent:pad5"},
                                     {LIST_SMOKE, "normal:q8:b3:kv2000:heads:first"},
                                     {LIST_SMOKE, "normal:f16:b3:kv256:even"}, /* pages that fill */
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "normal:f16:b3:kv2000:top1:sink"},
                                     {LIST_CI, "normal:f16:hkv1:kv9000:even"}, /* splits */
                                     {LIST_CI, "normal:k8v4:b4:hkv3:kv3000"},
                                     {LIST_CI, "nasty:q4:hkv1:kv3000:rot18"},
                                     {LIST_CI, "normal:f16:b3:d512:kv600:rot512:heads"},
                                     {LIST_OCLGRIND, "normal:f16:b2:kv40:heads:pos"},
                                     {LIST_BENCH, "f16:hkv3:kv512:even"},
                                     {LIST_BENCH, "f16:hkv8:g4:d128:rot128:kv8192:even"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = check_no_oracle,
    .launch = launch,
    .rows = check_lanes_rows,
    .refusal = refusal,
    .cpu_shapes = true,
    .judge = judge,
    .again_name = "write_rotated and attend against the fused one",
    .again = apart,
    .rows_alone = true,
    .bytes = bytes,
};

const check_op check_op_write_sparse_attend = {
    .name = "write_sparse_attend",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_Q8BOUNDS, 0},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_G, 3},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 600},
                                        {KEY_TOP, 8},
                                        {KEY_SINKS, 0},
                                        {KEY_RECENT, 0},
                                        {KEY_RULE, TAMIS_GROUP_MAX},
                                        {KEY_ROT, 64},
                                        {KEY_PAIRING, TAMIS_PAIR_HALF},
                                        {KEY_HEADS, 0},
                                        {KEY_POS, 0},
                                        {KEY_SCORE, 0},
                                        {KEY_PAD, 0},
                                        {KEY_EVEN, 0},
                                        {KEY_ORDERED, 0},
                                        {KEY_CAP, 0},
                                        {KEY_SINK, 0},
                                        {KEY_FIRST, 0},
                                        {KEY_COUNT, 0}},
    .factors =
        (const check_factor[]){{KEY_G, 3, {1, 3, 8}},
                               {KEY_D, 2, {64, 128}},
                               CHECK_DTYPES,
                               {KEY_Q8BOUNDS, 2, {0, 1}},
                               CHECK_FILLS,
                               CHECK_LAYOUTS,
                               {KEY_B, 2, {1, 3}},
                               {KEY_HKV, 2, {1, 3}},
                               {KEY_KV, 4, {1, 100, 600, 3001}},
                               {KEY_TOP, 3, {1, 8, 40}},
                               {KEY_SINKS, 2, {0, 4}},
                               {KEY_RECENT, 2, {0, 20}},
                               {KEY_RULE, 3, {TAMIS_GROUP_MAX, TAMIS_GROUP_MEAN, TAMIS_GROUP_SUM}},
                               {KEY_HEADS, 2, {0, 1}},
                               {KEY_FIRST, 2, {0, 1}},
                               {KEY_COUNT, 0, {0}}},
    .compiled = (const check_key[]){KEY_G, KEY_D, KEY_DTYPE, KEY_Q8BOUNDS, KEY_RULE, KEY_CAP,
                                    KEY_FIRST, KEY_COUNT},
    .entries = (const check_entry[]){{LIST_SMOKE, "normal:f16:b3:sinks4:recent20:pos:score"},
                                     {LIST_SMOKE, "normal:q8:b2:kv2000:top80:heads:first"},
                                     {LIST_SMOKE, "nasty:f16:b2:kv3001:top60:adjacent"},
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "normal:f16:b4:hkv3:kv3001:top60"}, /* whole lanes */
                                     {LIST_CI, "normal:q4:hkv1:kv3001:top60:even:rot18"},
                                     {LIST_OCLGRIND, "normal:f16:b2:kv100:top3:heads"},
                                     {LIST_BENCH, "f16:hkv3:kv513:top16:even"},
                                     {0, NULL}},
    .reject = reject_sparse,
    .make = make_sparse,
    .oracle = check_no_oracle,
    .launch = launch_sparse,
    .rows = check_lanes_rows,
    .refusal = sparse_refusal,
    .cpu_shapes = true,
    .judge = judge_sparse,
    .again_name = "write_rotated and sparse_attend against the fused one",
    .again = sparse_apart,
    .rows_alone = true,
    .bytes = bytes,
};
