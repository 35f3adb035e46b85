/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of replace against a search rule by rule, with ties, NaN, quotients that fp32 cannot tell
 * apart, slots left by a step that was given up, and lanes without a candidate. */
#include "check.h"

#include <math.h>
#include <stdlib.h>

/* The position of a sequence's first row; its tokens' lie below. */
static int32_t first_row_position(const check_data *data, uint32_t seq) {
    const int32_t *positions = check_init(data, BUF_ROW_POSITIONS);
    uint32_t row = 0;
    while (check_row_seq(data, row) != seq)
        row++;
    return positions[row];
}

/* Lives up to 2^19 for ints, whose scores are then whole multiples of them, else up to 2^28. */
static void make_rows(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint32_t each = check_get(data, KEY_R), lanes = l->n_rows * l->n_kv_heads;
    const uint32_t range = check_get(data, KEY_FILL) == FILL_INTS ? 1u << 18 : 1u << 27;
    int32_t *positions =
        check_buffer_add(data, BUF_ROW_POSITIONS, ROLE_INPUT, CHECK_I32, l->n_rows);
    int32_t *turns = check_buffer_add(data, BUF_TURNS, ROLE_INPUT, CHECK_I32, lanes);
    int32_t *slots = check_buffer_add(data, BUF_SLOTS, ROLE_UPDATE, CHECK_I32, lanes);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_ROW_POSITIONS);
    for (uint32_t row = 0; row < l->n_rows; row++) {
        const uint32_t beyond = check_below(&rng, 2) ? check_below(&rng, range) : 0;
        positions[row] =
            row % each ? positions[row - 1] + 1 : (int32_t)(check_get(data, KEY_KV) + beyond);
    }
    for (uint32_t i = 0; i < lanes; i++) {
        turns[i] = (int32_t)check_below(&rng, 4);
        slots[i] = -7 - (int32_t)i;
    }
    check_buffer_add(data, BUF_CHANGED, ROLE_OUTPUT, CHECK_I32, lanes);
}

/* Nasty lanes of one kind: infinities and what is near them, or subnormals among larger scores. */
static float extreme_score(check_rng *rng, uint32_t lane, float life) {
    static const float large[] = {INFINITY, 3.4e38f, 3e38f};
    const float sign = lane & 4 ? -1 : 1;
    if (lane % 4 == 1) return sign * large[check_below(rng, 3)];
    return check_below(rng, 4) ? life * 0x1p-70f * 0x1p-70f : 0x1p-50f;
}

/* A score whose quotient by `life` is one of a few, or off it by a last place. */
static float score_by_life(check_rng *rng, check_fill fill, uint32_t lane, float life) {
    static const float quotients[] = {1, 1, 3, 0.7f, -1, 0.1f};
    const bool nasty = fill == FILL_NASTY;
    if (fill == FILL_INTS) return (float)(1 + check_below(rng, 3)) * life;
    if (nasty && lane % 4 == 0 && check_below(rng, 2)) return (float)check_value(rng, fill);
    const float score = nasty && (lane % 4 == 1 || lane % 4 == 2)
                            ? extreme_score(rng, lane, life)
                            : quotients[check_below(rng, 6)] * life;
    const uint32_t way = check_below(rng, 3);
    return way == 0 ? score : nextafterf(score, way == 1 ? INFINITY : -INFINITY);
}

/* Nasty lanes: equal tokens, slots at or above a row's position, a position below 0. */
static void spoil_lane(check_data *data, check_rng *rng, const uint64_t *at, uint32_t n,
                       int32_t now) {
    int32_t *positions = check_init(data, BUF_POSITIONS);
    float *scores = check_init(data, BUF_SCORES);
    const uint64_t x = at[check_below(rng, n)], y = at[check_below(rng, n)];
    switch (check_below(rng, 6)) {
    case 0:
        positions[y] = now;
        break;
    case 1:
        positions[x] = now + 9 + (int32_t)check_below(rng, 2);
        positions[y] = now + 9;
        break;
    case 2:
        positions[x] = positions[y];
        if (scores) scores[x] = scores[y];
        break;
    case 3:
        positions[x] = -1;
        break;
    default:
        break;
    }
}

static void make_lane(check_data *data, check_rng *rng, uint32_t seq, uint32_t head) {
    const uint32_t lane = seq * data->lanes.n_kv_heads + head, n = data->lanes.length[lane];
    const uint32_t size = data->lanes.kv.page_size;
    const check_fill fill = (check_fill)check_get(data, KEY_FILL);
    const int32_t now = first_row_position(data, seq);
    int32_t *positions = check_init(data, BUF_POSITIONS);
    float *scores = check_init(data, BUF_SCORES);
    uint32_t *order = check_alloc(n * sizeof *order);
    uint64_t *at = check_alloc(n * sizeof *at);
    for (uint32_t s = 0; s < n; s++)
        order[s] = s;
    check_shuffle(rng, order, n);
    for (uint32_t s = 0; s < n; s++) {
        const uint32_t gap = (uint32_t)now / n; /* at least 1 */
        at[s] = (uint64_t)check_page_id(data, seq, head, s / size) * size + s % size;
        positions[at[s]] = (int32_t)(order[s] * gap + check_below(rng, gap));
        if (!scores) continue;
        scores[at[s]] = check_get(data, KEY_LIFE)
                            ? score_by_life(rng, fill, lane, (float)(now - positions[at[s]]))
                            : (float)check_value(rng, fill);
    }
    if (fill == FILL_NASTY && n) spoil_lane(data, rng, at, n, now);
    free(order);
    free(at);
}

/* Rows, and the planes of the tokens that the lanes hold. */
static void make_tokens(check_data *data, check_role planes) {
    const check_lanes *l = &data->lanes;
    const uint64_t n = (uint64_t)l->n_pages * l->kv.page_size;
    make_rows(data);
    check_buffer_add(data, BUF_POSITIONS, planes, CHECK_I32, n);
    if (!check_get(data, KEY_NOSCORE)) check_buffer_add(data, BUF_SCORES, planes, TAMIS_F32, n);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_POSITIONS);
    for (uint32_t i = 0; i < l->n_seqs * l->n_kv_heads; i++)
        make_lane(data, &rng, i / l->n_kv_heads, i % l->n_kv_heads);
}

static void make(check_data *data) {
    check_lanes_make(data, ROLE_ABSENT);
    if (data->lanes.n_rows) make_tokens(data, ROLE_INPUT);
}

/* ---- The rules, one after the other ---------------------------------------------------------- */

typedef struct token {
    int64_t position;
    float score;
} token;

static token token_at(const check_data *data, uint32_t row, uint32_t head, uint32_t slot) {
    const uint32_t size = data->lanes.kv.page_size, seq = check_row_seq(data, row);
    const uint64_t at = (uint64_t)check_page_id(data, seq, head, slot / size) * size + slot % size;
    const float *scores = check_init(data, BUF_SCORES);
    return (token){((int32_t *)check_init(data, BUF_POSITIONS))[at], scores ? scores[at] : 0};
}

/* The slot with the lowest position from `low` up to, but not including, `high`; -1: none. */
static int32_t oldest(const check_data *data, uint32_t row, uint32_t head, int64_t low,
                      int64_t high) {
    int32_t found = -1;
    int64_t position = high;
    for (uint32_t s = 0; s < check_visible(data, row, head); s++) {
        const token t = token_at(data, row, head, s);
        if (t.position < low || t.position >= position) continue;
        position = t.position;
        found = (int32_t)s;
    }
    return found;
}

/* Whether a goes before b; products are exact, and positions are below `now`. */
static bool goes_first(const check_data *data, token a, token b, int64_t now) {
    const bool life = check_get(data, KEY_LIFE);
    const long double x = (long double)a.score * (life ? (long double)(now - b.position) : 1);
    const long double y = (long double)b.score * (life ? (long double)(now - a.position) : 1);
    if (isnan(a.score) || isnan(b.score)) {
        if (!isnan(a.score) || !isnan(b.score)) return isnan(a.score);
        return a.position < b.position;
    }
    return x < y || (x == y && a.position < b.position);
}

static int32_t victim_of(const check_data *data, uint32_t row, uint32_t head) {
    const int64_t now = ((int32_t *)check_init(data, BUF_ROW_POSITIONS))[row];
    const int64_t low = check_get(data, KEY_SINKS), high = now - check_get(data, KEY_RECENT);
    const uint32_t visible = check_visible(data, row, head);
    /* 1. What a step left that was given up. */
    int32_t found = oldest(data, row, head, now, INT64_MAX);
    if (found >= 0) return found;
    /* 2. The lowest candidate. */
    for (uint32_t s = 0; s < visible; s++) {
        const token t = token_at(data, row, head, s);
        if (t.position < low || t.position >= high) continue;
        if (found < 0 || goes_first(data, t, token_at(data, row, head, (uint32_t)found), now))
            found = (int32_t)s;
    }
    if (found >= 0) return found;
    /* 3. The oldest but sinks, 4. the last slot. */
    found = oldest(data, row, head, low, INT64_MAX);
    return found >= 0 ? found : (int32_t)visible - 1;
}

static void oracle(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint32_t size = l->kv.page_size;
    check_want(data, BUF_SLOTS, false);
    check_want(data, BUF_CHANGED, false);
    int32_t *slots = data->buf[BUF_SLOTS].want, *changed = data->buf[BUF_CHANGED].want;
    for (uint32_t i = 0; i < l->n_rows * l->n_kv_heads; i++) {
        const uint32_t row = i / l->n_kv_heads, head = i % l->n_kv_heads;
        changed[i] = -1;
        if (!((int32_t *)check_init(data, BUF_TURNS))[i]) continue;
        slots[i] = victim_of(data, row, head);
        if (slots[i] < 0) continue;
        const uint32_t page = (uint32_t)slots[i] / size;
        if ((page + 1) * size <= check_visible(data, row, head))
            changed[i] = (int32_t)check_page_id(data, check_row_seq(data, row), head, page);
    }
}

static tms_replace params(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const uint64_t lanes = (uint64_t)rows.first * data->lanes.n_kv_heads;
    return (tms_replace){
        .kv = check_kv(side),
        .planes = {check_ref(side, BUF_POSITIONS, 0), check_ref(side, BUF_SCORES, 0)},
        .batch = check_batch(side, rows),
        .turns = check_ref(side, BUF_TURNS, lanes),
        .slots = check_ref(side, BUF_SLOTS, lanes),
        .changed = check_ref(side, BUF_CHANGED, lanes),
        .positions = check_ref(side, BUF_ROW_POSITIONS, rows.first),
        .sinks = check_get(data, KEY_SINKS),
        .recent = check_get(data, KEY_RECENT),
        .lifetime = check_get(data, KEY_LIFE),
    };
}

static tamis_status launch(check_side *side, check_rows rows) {
    const tms_replace p = params(side, rows);
    return tms_run_replace(side->dev, &p, &side->error);
}

static uint64_t bytes(const check_data *data) {
    uint64_t slots = 0;
    for (uint32_t i = 0; i < data->lanes.n_rows * data->lanes.n_kv_heads; i++)
        slots += check_visible(data, i / data->lanes.n_kv_heads, i % data->lanes.n_kv_heads);
    return 8 * slots;
}

const check_op check_op_replace = {
    .name = "replace",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 300},
                                        {KEY_SINKS, 0},
                                        {KEY_RECENT, 0},
                                        {KEY_EVEN, 0},
                                        {KEY_LIFE, 0},
                                        {KEY_NOSCORE, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_R, 2, {1, 3}},
                                      {KEY_HKV, 3, {1, 2, 5}},
                                      CHECK_PAGE_SIZES,
                                      {KEY_KV, 6, {1, 15, 64, 300, 1000, 4097}},
                                      {KEY_SINKS, 4, {0, 1, 4, 5000}},
                                      {KEY_RECENT, 5, {0, 1, 64, 500, 1000000000}},
                                      {KEY_LIFE, 2, {0, 1}},
                                      {KEY_NOSCORE, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "normal:b2:sinks4:recent64"},
                                     {LIST_SMOKE, "nasty:b3:hkv5:sinks4:recent64"},
                                     {LIST_SMOKE, "ints:b2:life"},
                                     {LIST_SMOKE, "nasty:b3:hkv5:life"},
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "normal:b8:hkv8:kv2000:even:life"},
                                     {LIST_CI, "nasty:b8:hkv8:kv500:life"},
                                     {LIST_CI, "nasty:b8:hkv8:kv6:even:life"},
                                     {LIST_CI, "nasty:b8:hkv8:kv60:sinks50:recent30"},
                                     {LIST_CI, "b8:hkv8:kv40:even:sinks20:recent18"},
                                     {LIST_CI, "nasty:b8:hkv8:kv60:noscore:sinks5:recent10"},
                                     {LIST_OCLGRIND, "nasty:b2:hkv3:kv200:sinks4:recent9:life"},
                                     {LIST_OCLGRIND, "ints:kv100:noscore"},
                                     {LIST_BENCH, "normal:b8:hkv8:kv2048:even"},
                                     {LIST_BENCH, "normal:hkv8:kv2048:even:life"},
                                     {0, NULL}},
    .reject = check_lanes_reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_lanes_rows,
    .rows_alone = true,
    .exact = true,
    .bytes = bytes,
};

/* ---- replace_rows: as replace, write_rows or write_rotated, and bounds one by one -------------- */

#define EPS 1e-5f

static uint64_t width_of(const check_data *data, bool of_q) {
    return (uint64_t)check_get(data, KEY_HKV) * check_get(data, KEY_D) *
           (of_q ? check_get(data, KEY_G) : 1);
}

/* Lanes that have grown get their last slot; a row in four of them is skipped. */
static void make_grown(check_data *data) {
    const check_lanes *l = &data->lanes;
    const int32_t *turns = check_init(data, BUF_TURNS);
    int32_t *slots = check_init(data, BUF_SLOTS);
    for (uint32_t i = 0; i < l->n_rows * l->n_kv_heads; i++)
        if (!turns[i] && i % 4)
            slots[i] = (int32_t)check_visible(data, i / l->n_kv_heads, i % l->n_kv_heads) - 1;
}

static void make_rotation(check_data *data) {
    const uint32_t dim = data->lanes.kv.head_dim, n = data->lanes.n_rows;
    int32_t *turned = check_buffer_add(data, BUF_HEADS, ROLE_INPUT, CHECK_I32, n);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_HEADS);
    for (uint32_t r = 0; r < n; r++)
        turned[r] = (int32_t)check_below(&rng, TMS_ROTATE_LIMIT);
    check_rotation_table(data);
    check_buffer_add(data, BUF_Q, ROLE_UPDATE, TAMIS_F32, n * width_of(data, true));
    check_fill_matrix(data, BUF_Q, n, width_of(data, true), width_of(data, true));
    for (int id = BUF_X; check_get(data, KEY_HEADS) && id <= BUF_Y; id += BUF_Y - BUF_X) {
        check_buffer_add(data, (check_id)id, ROLE_INPUT, TAMIS_F32, dim);
        check_fill_matrix(data, (check_id)id, 1, dim, dim);
    }
}

static void make_replaced(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint64_t row = width_of(data, false);
    check_lanes_make(data, ROLE_UPDATE);
    check_bounds_make(data, ROLE_UPDATE);
    if (!l->n_rows) return;
    make_tokens(data, ROLE_UPDATE);
    make_grown(data);
    const uint32_t type = check_get(data, KEY_SAME) ? check_get(data, KEY_DTYPE) : TAMIS_F32;
    for (int id = BUF_K; id <= BUF_V; id++) {
        check_buffer_add(data, (check_id)id, ROLE_UPDATE, type, l->n_rows * row);
        check_fill_matrix(data, (check_id)id, l->n_rows, row, row);
    }
    if (check_get(data, KEY_ROT)) make_rotation(data);
}

static tms_replace_rows replaced_params(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const uint64_t k = width_of(data, false), q = width_of(data, true);
    const uint32_t rot = rows.count ? check_get(data, KEY_ROT) : 0;
    const tms_replace r = params(side, rows);
    const tms_write_rows w = {
        .kv = r.kv,
        .batch = r.batch,
        .k = check_ref(side, BUF_K, rows.first * k),
        .v = check_ref(side, BUF_V, rows.first * k),
        .slots = r.slots,
        .k_stride = k,
        .v_stride = k,
        .dtype = check_get(data, KEY_SAME) ? (tamis_dtype)check_get(data, KEY_DTYPE) : TAMIS_F32,
        .planes = r.planes,
        .positions = r.positions,
        .rotation = {.q = {check_ref(side, BUF_Q, rows.first * q), q},
                     .n_rot = rot,
                     .pairing = (tamis_pairing)check_get(data, KEY_PAIRING),
                     .positions = check_ref(side, BUF_HEADS, rows.first),
                     .table = check_ref(side, BUF_W, 0),
                     .q_norm = check_ref(side, BUF_X, 0),
                     .k_norm = check_ref(side, BUF_Y, 0),
                     .eps = EPS},
    };
    const tms_bounds b = {.kv = r.kv,
                          .n = rows.count * r.batch.n_kv_heads,
                          .n_kv_heads = 1,
                          .pages = r.changed,
                          .kind = (tamis_bounds_kind)check_get(data, KEY_KIND),
                          .width = 1};
    return (tms_replace_rows){r, w, b};
}

static tamis_status launch_replaced(check_side *side, check_rows rows) {
    const tms_replace_rows p = replaced_params(side, rows);
    return tms_run_replace_rows(side->dev, &p, &side->error);
}

static const char *replaced_refusal(check_side *side) {
    const tms_replace_rows p = replaced_params(side, (check_rows){0, side->data->lanes.n_rows});
    return tms_replace_rows_refusal(side->dev, &p);
}

static tamis_status replace_apart(check_side *side) {
    const tms_replace_rows p = replaced_params(side, (check_rows){0, side->data->lanes.n_rows});
    tamis_status status = tms_run_replace(side->dev, &p.replace, &side->error);
    if (status == TAMIS_OK && p.write.rotation.n_rot)
        status = tms_run_write_rotated(side->dev, &p.write, &side->error);
    else if (status == TAMIS_OK)
        status = tms_run_write_rows(side->dev, &p.write, &side->error);
    return status == TAMIS_OK ? tms_run_bounds(side->dev, &p.bounds, &side->error) : status;
}

static bool judge_replaced(check_side *side, char *why, size_t why_size) {
    return check_same_apart(side, replace_apart, why, why_size);
}

static const char *reject_replaced(const check_case *c) {
    if (c->v[KEY_R] > 1) return "one row a sequence (r)";
    if (c->v[KEY_ROT] % 2 || c->v[KEY_ROT] > c->v[KEY_D])
        return "rotated channels (rot) are odd, or more than the head dim (d)";
    if (c->v[KEY_SAME] && (c->v[KEY_ROT] || tms_has_blocks((tamis_dtype)c->v[KEY_DTYPE])))
        return "rows that are rotated, or written in blocks, are f32";
    return check_lanes_reject(c);
}

const check_op check_op_replace_rows = {
    .name = "replace_rows",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_Q8BOUNDS, 0},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_G, 3},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 300},
                                        {KEY_SINKS, 0},
                                        {KEY_RECENT, 0},
                                        {KEY_EVEN, 0},
                                        {KEY_LIFE, 0},
                                        {KEY_NOSCORE, 0},
                                        {KEY_SAME, 0},
                                        {KEY_ROT, 0},
                                        {KEY_PAIRING, TAMIS_PAIR_HALF},
                                        {KEY_HEADS, 0},
                                        {KEY_KIND, TAMIS_BOUNDS_MINMAX},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      CHECK_DTYPES,
                                      {KEY_Q8BOUNDS, 2, {0, 1}},
                                      CHECK_HEAD_DIMS,
                                      CHECK_PAGE_SIZES,
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_HKV, 3, {1, 2, 5}},
                                      {KEY_KV, 5, {1, 15, 64, 300, 1000}},
                                      {KEY_SINKS, 3, {0, 4, 5000}},
                                      {KEY_RECENT, 4, {0, 1, 64, 1000000000}},
                                      {KEY_LIFE, 2, {0, 1}},
                                      {KEY_NOSCORE, 2, {0, 1}},
                                      {KEY_SAME, 2, {0, 1}},
                                      {KEY_ROT, 3, {0, 18, 64}},
                                      {KEY_HEADS, 2, {0, 1}},
                                      {KEY_KIND, 3, {0, 1, 2}},
                                      {KEY_COUNT, 0, {0}}},
    .compiled = (const check_key[]){KEY_D, KEY_DTYPE, KEY_Q8BOUNDS, KEY_PAGE, KEY_COUNT},
    .entries =
        (const check_entry[]){{LIST_SMOKE, "normal:f16:b3:hkv5:sinks4:recent64:rot64"},
                              {LIST_SMOKE, "nasty:f16:b3:hkv5:sinks4:recent64:rot64:heads"},
                              {LIST_SMOKE, "nasty:q8:b3:hkv5:life:kv100"},
                              {LIST_SMOKE, "nasty:f16:b8:hkv8:kv60:sinks50:recent30:same"},
                              {LIST_SMOKE, "nasty:f16:b8:hkv8:kv60:noscore:sinks5:recent10"},
                              {LIST_CI, "r0"},
                              {LIST_CI, "nasty:f16:b8:hkv8:kv6:even:life"},
                              {LIST_CI, "f16:b8:hkv8:kv40:even:sinks20:recent18:same"},
                              {LIST_CI, "normal:f16:b8:hkv8:kv2000:even:rot64"},
                              {LIST_OCLGRIND, "nasty:f16:b2:hkv3:kv70:sinks4:recent9:rot64:heads"},
                              {LIST_OCLGRIND, "nasty:q8:b2:hkv3:kv40:life"},
                              {LIST_BENCH, "f16:hkv3:g3:kv512:even:recent256:rot64"},
                              {LIST_BENCH, "f16:hkv8:g4:d128:kv6553:even:recent3276:rot64"},
                              {0, NULL}},
    .reject = reject_replaced,
    .make = make_replaced,
    .oracle = check_no_oracle,
    .launch = launch_replaced,
    .rows = check_lanes_rows,
    .refusal = replaced_refusal,
    .judge = judge_replaced,
    .again_name = "three launches against the fused one",
    .again = replace_apart,
    .rows_alone = true,
    .bytes = bytes,
};
