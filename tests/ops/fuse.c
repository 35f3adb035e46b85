/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of fuse against the formulas of its kinds in fp64. Items are rows, one a sequence. */
#include "check.h"

#include <math.h>

#define SLACK 3u /* entries of a lane's values that no slot has */
#define A     0.75f
#define B     (-1.5f)

static tms_fuse_kind kind_of(const check_case *c) {
    return (tms_fuse_kind)c->v[KEY_FUSE];
}

static bool over_lists(const check_case *c) {
    return kind_of(c) == TMS_FUSE_LISTS_SUM || kind_of(c) == TMS_FUSE_LISTS_MAX;
}

static bool over_heads(const check_case *c) {
    return kind_of(c) == TMS_FUSE_MEAN_OF_HEADS || kind_of(c) == TMS_FUSE_SHARE_OF_HEADS;
}

static bool reads_y(const check_case *c) {
    return kind_of(c) == TMS_FUSE_MULTIPLY || (kind_of(c) == TMS_FUSE_AXPBY && !c->v[KEY_BIAS]);
}

/* Bits of KEY_PLANES. */
enum { PLANE_X = 1, PLANE_Y = 2, PLANE_OUT = 4 };

static uint64_t stride_of(const check_data *data, uint32_t bit) {
    return check_get(data, KEY_PLANES) & bit ? 0 : check_get(data, KEY_KV) + SLACK + bit;
}

static uint32_t lists_of(const check_data *data) {
    return over_lists(data->c) ? check_get(data, KEY_LISTS) : 1;
}

/* Slots of a lane that take part. */
static uint32_t part_of(const check_data *data, uint32_t item, uint32_t head) {
    const uint32_t visible = check_visible(data, item, head), tail = check_get(data, KEY_TAIL);
    return visible > tail ? visible - tail : 0;
}

static uint64_t plane_at(const check_data *data, uint32_t item, uint32_t head, uint32_t slot) {
    const uint32_t size = data->lanes.kv.page_size;
    const uint32_t page = check_page_id(data, check_row_seq(data, item), head, slot / size);
    return (uint64_t)page * size + slot % size;
}

/* Where a value of x, y or out lies. */
static uint64_t value_at(const check_data *data, uint32_t bit, uint32_t item, uint32_t head,
                         uint32_t list, uint32_t slot) {
    const uint64_t lane = (uint64_t)item * data->lanes.n_kv_heads + head;
    if (stride_of(data, bit) == 0) return plane_at(data, item, head, slot);
    return (lane * (bit == PLANE_X ? lists_of(data) : 1) + list) * stride_of(data, bit) + slot;
}

static uint64_t count_of(const check_data *data, uint32_t bit) {
    const check_lanes *l = &data->lanes;
    const uint64_t lists = bit == PLANE_X ? lists_of(data) : 1;
    if (stride_of(data, bit) == 0) return (uint64_t)l->n_pages * l->kv.page_size;
    return l->n_rows * l->n_kv_heads * lists * stride_of(data, bit);
}

/* ---- Direct formula -------------------------------------------------------------------------- */

static double x_of(const check_data *data, uint32_t item, uint32_t head, uint32_t list,
                   uint32_t slot) {
    return ((float *)check_init(data, BUF_X))[value_at(data, PLANE_X, item, head, list, slot)];
}

static double larger(double a, double b) {
    return isnan(a) || a > b ? a : b;
}

/* A sum and that of the absolute terms. */
typedef struct sums {
    double sum, size;
} sums;

static void add(sums *s, double x) {
    s->sum += x;
    s->size += fabs(x);
}

static sums sum_slots(const check_data *data, uint32_t item, uint32_t head, uint32_t first,
                      uint32_t end) {
    sums s = {0, 0};
    for (uint32_t i = first; i < end; i++)
        add(&s, x_of(data, item, head, 0, i));
    return s;
}

static sums sum_heads(const check_data *data, uint32_t item, uint32_t slot) {
    sums s = {0, 0};
    for (uint32_t h = 0; h < data->lanes.n_kv_heads; h++)
        add(&s, x_of(data, item, h, 0, slot));
    return s;
}

static double join_lists(const check_data *data, uint32_t item, uint32_t head, uint32_t slot,
                         double *size) {
    sums s = {0, 0};
    double most = -INFINITY;
    for (uint32_t i = 0; i < lists_of(data); i++) {
        most = larger(most, x_of(data, item, head, i, slot));
        add(&s, x_of(data, item, head, i, slot));
    }
    *size = kind_of(data->c) == TMS_FUSE_LISTS_MAX ? 0 : s.size;
    return kind_of(data->c) == TMS_FUSE_LISTS_MAX ? most : s.sum;
}

static double share(double x, sums s, double *size) {
    const double result = s.sum == 0 ? 0 : x / s.sum;
    *size = s.sum == 0 ? 0 : fabs(result) * s.size / fabs(s.sum);
    return result;
}

/* The new value of a slot, and *size, of which 1e-6 is allowed. `all`: the lane's values of x. */
static double fused(const check_data *data, uint32_t item, uint32_t head, uint32_t slot, sums all,
                    double *size) {
    const uint32_t n = part_of(data, item, head), chunk = check_get(data, KEY_CHUNK);
    const double x = over_lists(data->c) ? 0 : x_of(data, item, head, 0, slot);
    const float *ys = check_init(data, BUF_W);
    const double y = reads_y(data->c) ? ys[value_at(data, PLANE_Y, item, head, 0, slot)] : 1;
    sums s;
    switch (kind_of(data->c)) {
    case TMS_FUSE_AXPBY:
        *size = fabs(A * x) + fabs(B * y);
        return A * x + B * y;
    case TMS_FUSE_MULTIPLY:
        *size = (fabs(x) + A) * fabs(y);
        return (x + A) * y;
    case TMS_FUSE_AT_LEAST_MEAN:
        *size = A * all.size / n;
        return larger(x, A * all.sum / n);
    case TMS_FUSE_LIFETIME: {
        const int32_t *positions = check_init(data, BUF_POSITIONS);
        const int32_t *now = check_init(data, BUF_ROW_POSITIONS);
        const double life = now[item] - positions[plane_at(data, item, head, slot)] + 1.0;
        *size = fabs(x / life);
        return x / life;
    }
    case TMS_FUSE_MEAN_OF_HEADS:
        s = sum_heads(data, item, slot);
        *size = s.size / data->lanes.n_kv_heads;
        return s.sum / data->lanes.n_kv_heads;
    case TMS_FUSE_SHARE_OF_HEADS:
        return share(x, sum_heads(data, item, slot), size);
    case TMS_FUSE_CHUNK_SUM:
        s = sum_slots(data, item, head, slot * chunk,
                      (slot + 1) * chunk < n ? (slot + 1) * chunk : n);
        *size = s.size;
        return s.sum;
    default:
        return join_lists(data, item, head, slot, size);
    }
}

static void oracle(check_data *data) {
    const check_id id = check_get(data, KEY_SAME) ? BUF_X : BUF_Y;
    check_buffer *out = &data->buf[id];
    if (!data->lanes.n_rows) return;
    check_want(data, id, true);
    for (uint32_t i = 0; i < data->lanes.n_rows * data->lanes.n_kv_heads; i++) {
        const uint32_t item = i / data->lanes.n_kv_heads, head = i % data->lanes.n_kv_heads;
        const bool mean = kind_of(data->c) == TMS_FUSE_AT_LEAST_MEAN;
        uint32_t n = part_of(data, item, head);
        const sums all = sum_slots(data, item, head, 0, mean ? n : 0);
        if (kind_of(data->c) == TMS_FUSE_CHUNK_SUM)
            n = (n + check_get(data, KEY_CHUNK) - 1) / check_get(data, KEY_CHUNK);
        for (uint32_t s = 0; s < n; s++) {
            const uint64_t at =
                value_at(data, check_get(data, KEY_SAME) ? PLANE_X : PLANE_OUT, item, head, 0, s);
            double size = 0;
            ((float *)out->want)[at] = (float)fused(data, item, head, s, all, &size);
            out->tolerance[at] = 1e-6 * size;
        }
    }
}

/* ---- Data ------------------------------------------------------------------------------------ */

/* Values of the slots that lanes have; what no slot has stays NaN, so that reading it shows. Of
 * nasty ones every other lane has some that are not finite. */
static void make_values(check_data *data, check_id id, uint32_t bit) {
    static const double odd[] = {NAN, INFINITY, -INFINITY};
    const check_lanes *l = &data->lanes;
    const check_fill fill = (check_fill)check_get(data, KEY_FILL);
    float *values = check_buffer_add(data, id, ROLE_OUTPUT, TAMIS_F32, count_of(data, bit));
    check_rng rng = check_rng_make(data->seed, data->c, id);
    data->buf[id].role = ROLE_INPUT;
    for (uint32_t i = 0; i < l->n_rows * l->n_kv_heads; i++) {
        const uint32_t item = i / l->n_kv_heads, head = i % l->n_kv_heads;
        const bool spoilt = fill == FILL_NASTY && check_below(&rng, 2);
        for (uint32_t list = 0; list < (bit == PLANE_X ? lists_of(data) : 1); list++)
            for (uint32_t s = 0; s < check_visible(data, item, head); s++) {
                double x = check_finite(&rng, fill);
                if (spoilt && check_below(&rng, 32) == 0) x = odd[check_below(&rng, 3)];
                values[value_at(data, bit, item, head, list, s)] = (float)x;
            }
    }
}

static void make_positions(check_data *data) {
    const check_lanes *l = &data->lanes;
    int32_t *positions = check_buffer_add(data, BUF_POSITIONS, ROLE_INPUT, CHECK_I32,
                                          (uint64_t)l->n_pages * l->kv.page_size);
    int32_t *now = check_buffer_add(data, BUF_ROW_POSITIONS, ROLE_INPUT, CHECK_I32, l->n_rows);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_POSITIONS);
    for (uint32_t i = 0; i < l->n_rows; i++)
        now[i] = (int32_t)(2 * check_get(data, KEY_KV) + i);
    for (uint64_t i = 0; i < data->buf[BUF_POSITIONS].count; i++)
        positions[i] = (int32_t)check_below(&rng, 2 * check_get(data, KEY_KV));
}

static void make(check_data *data) {
    check_lanes_make(data, ROLE_ABSENT);
    if (!data->lanes.n_rows) return;
    make_values(data, BUF_X, PLANE_X);
    if (reads_y(data->c)) make_values(data, BUF_W, PLANE_Y);
    if (kind_of(data->c) == TMS_FUSE_LIFETIME) make_positions(data);
    if (check_get(data, KEY_SAME))
        data->buf[BUF_X].role = ROLE_UPDATE;
    else
        check_buffer_add(data, BUF_Y, ROLE_OUTPUT, TAMIS_F32, count_of(data, PLANE_OUT));
}

/* ---- Launch ---------------------------------------------------------------------------------- */

static tms_values values_of(const check_side *side, check_id id, uint32_t bit, uint32_t first) {
    const check_data *data = side->data;
    const uint64_t lanes = (uint64_t)first * data->lanes.n_kv_heads;
    const uint64_t lists = lanes * (bit == PLANE_X ? lists_of(data) : 1);
    return (tms_values){check_ref(side, id, lists * stride_of(data, bit)), stride_of(data, bit)};
}

static tamis_status launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    tms_fuse p = {
        .batch = check_batch(side, rows),
        .kind = kind_of(data->c),
        .x = values_of(side, BUF_X, PLANE_X, rows.first),
        .y = values_of(side, BUF_W, PLANE_Y, rows.first),
        .out = values_of(side, BUF_Y, PLANE_OUT, rows.first),
        .a = A,
        .b = B,
        .tail = check_get(data, KEY_TAIL),
        .chunk = check_get(data, KEY_CHUNK),
        .n_lists = check_get(data, KEY_LISTS),
        .page_size = data->lanes.kv.page_size,
        .positions = check_ref(side, BUF_POSITIONS, 0),
        .now = check_ref(side, BUF_ROW_POSITIONS, rows.first),
    };
    if (check_get(data, KEY_SAME)) p.out = p.x;
    return tms_run_fuse(side->dev, &p, &side->error);
}

static uint64_t bytes(const check_data *data) {
    uint64_t slots = 0;
    for (uint32_t i = 0; i < data->lanes.n_rows * data->lanes.n_kv_heads; i++)
        slots += part_of(data, i / data->lanes.n_kv_heads, i % data->lanes.n_kv_heads);
    return 4 * slots * (lists_of(data) + reads_y(data->c) + 1);
}

static const char *reject(const check_case *c) {
    const uint32_t *v = c->v;
    if (v[KEY_B] < 1 || v[KEY_HKV] < 1 || v[KEY_KV] < 1 || v[KEY_PAGE] < 1 || v[KEY_CHUNK] < 1 ||
        v[KEY_LISTS] < 1)
        return "b, hkv, kv, page, chunk and lists are at least 1";
    if (v[KEY_R] > 1) return "an item is one row";
    if (over_heads(c) && !v[KEY_EVEN]) return "lanes that are joined are equally long";
    if (v[KEY_BIAS] && kind_of(c) != TMS_FUSE_AXPBY) return "only axpby goes without y";
    if ((over_lists(c) || kind_of(c) == TMS_FUSE_CHUNK_SUM) && v[KEY_SAME])
        return "out is not x where several values make one";
    if (over_lists(c) && v[KEY_PLANES] & PLANE_X) return "lists do not lie in a plane";
    if (kind_of(c) == TMS_FUSE_CHUNK_SUM && v[KEY_PLANES] & PLANE_OUT)
        return "chunks do not lie in a plane";
    return NULL;
}

const check_op check_op_fuse = {
    .name = "fuse",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_B, 2},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 300},
                                        {KEY_FUSE, TMS_FUSE_AXPBY},
                                        {KEY_PLANES, 0},
                                        {KEY_CHUNK, 16},
                                        {KEY_LISTS, 4},
                                        {KEY_TAIL, 0},
                                        {KEY_EVEN, 0},
                                        {KEY_BIAS, 0},
                                        {KEY_SAME, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){{KEY_FUSE,
                                       7,
                                       {TMS_FUSE_AXPBY, TMS_FUSE_MULTIPLY, TMS_FUSE_AT_LEAST_MEAN,
                                        TMS_FUSE_LIFETIME, TMS_FUSE_MEAN_OF_HEADS,
                                        TMS_FUSE_SHARE_OF_HEADS, TMS_FUSE_CHUNK_SUM}},
                                      CHECK_FILLS,
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_HKV, 3, {1, 2, 5}},
                                      CHECK_PAGE_SIZES,
                                      {KEY_KV, 4, {1, 17, 300, 1023}},
                                      {KEY_PLANES, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
                                      {KEY_CHUNK, 3, {1, 7, 64}},
                                      {KEY_TAIL, 3, {0, 5, 400}},
                                      {KEY_EVEN, 2, {0, 1}},
                                      {KEY_BIAS, 2, {0, 1}},
                                      {KEY_SAME, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .more_factors = (const check_factor[]){{KEY_FUSE, 2, {TMS_FUSE_LISTS_SUM, TMS_FUSE_LISTS_MAX}},
                                           CHECK_FILLS,
                                           {KEY_HKV, 3, {1, 2, 5}},
                                           {KEY_KV, 4, {1, 17, 300, 1023}},
                                           {KEY_PLANES, 2, {0, 4}},
                                           {KEY_LISTS, 4, {1, 4, 33, 128}},
                                           {KEY_TAIL, 3, {0, 5, 400}},
                                           {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "axpby:b3"},
                                     {LIST_SMOKE, "axpby:bias:same:planes5"},
                                     {LIST_SMOKE, "nasty:multiply:planes2"},
                                     {LIST_SMOKE, "least-mean:same"},
                                     {LIST_SMOKE, "lifetime:planes1"},
                                     {LIST_SMOKE, "head-mean:hkv5:even:same:planes5"},
                                     {LIST_SMOKE, "head-share:hkv5:even"},
                                     {LIST_SMOKE, "chunk-sum:chunk7"},
                                     {LIST_SMOKE, "list-sum:lists33"},
                                     {LIST_SMOKE, "nasty:list-max:lists5:planes4"},
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "least-mean:kv200000:hkv1:b1"},
                                     {LIST_CI, "axpby:tail4294967280"},
                                     {LIST_CI, "multiply:b65600:hkv1:kv1:page1"},
                                     {LIST_CI, "head-mean:b65600:hkv1:kv1:page1:even"},
                                     {LIST_CI, "chunk-sum:chunk100000:kv150000:hkv1:b1"},
                                     {LIST_OCLGRIND, "nasty:least-mean:kv150:planes5:same"},
                                     {LIST_OCLGRIND, "head-mean:kv70:even:same:hkv3"},
                                     {LIST_OCLGRIND, "list-sum:kv70:lists3"},
                                     {LIST_OCLGRIND, "chunk-sum:kv70:planes1:chunk7"},
                                     {LIST_OCLGRIND, "chunk-sum:kv1300:planes0:chunk1100"},
                                     {LIST_BENCH, "axpby:hkv8:kv32768:even:planes5"},
                                     {LIST_BENCH, "head-mean:hkv8:kv32768:even:planes1"},
                                     {LIST_BENCH, "least-mean:hkv8:kv32768:even"},
                                     {LIST_BENCH, "list-max:hkv8:kv32768:lists128:even:b1"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_lanes_rows,
    .rows_alone = true,
    .bytes = bytes,
};
