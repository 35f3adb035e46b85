/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of sparse_attend: its lists against select on the device's own scores, its out against
 * attention over its lists. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint32_t score_stride(const check_data *data) {
    return data->lanes.lane_pages;
}

static void make(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_lanes_make(data, ROLE_INPUT);
    check_nan_keys(data);
    check_bounds_make(data, ROLE_INPUT);
    check_q_make(data);
    const uint64_t lanes = (uint64_t)l->n_rows * l->n_kv_heads;
    /* Without rows there are no lists, but still the scratch that tells what can be fused. */
    check_buffer_add(data, BUF_SCORES, ROLE_OUTPUT, TAMIS_F32, (lanes + 1) * score_stride(data));
    check_sinks_make(data, l->n_kv_heads * l->group);
    if (!lanes) return;
    check_buffer_add(data, BUF_LISTS, ROLE_OUTPUT, CHECK_I32, lanes * check_select_capacity(data));
    check_buffer_add(data, BUF_COUNTS, ROLE_OUTPUT, CHECK_I32, lanes);
    check_buffer_add(data, BUF_Y, ROLE_OUTPUT, TAMIS_F32, l->n_rows * check_q_stride(data));
    check_buffer_add(data, BUF_LSE, ROLE_OUTPUT, TAMIS_F32, lanes * l->group);
}

/* What is expected depends on the lists chosen: see judge. */
static void oracle(check_data *data) {
    check_want(data, BUF_Y, true);
    check_want(data, BUF_LSE, true);
}

static tms_sparse_attend params(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const check_lanes *l = &data->lanes;
    const uint64_t step = check_q_stride(data), lane = (uint64_t)rows.first * l->n_kv_heads;
    const uint32_t capacity = check_select_capacity(data);
    const tms_batch batch = check_batch(side, rows);
    const tms_matrix q = {check_ref(side, BUF_Q, rows.first * step), step};
    const tms_ref scores = check_ref(side, BUF_SCORES, lane * score_stride(data));
    const tms_lists lists = {check_ref(side, BUF_LISTS, lane * capacity),
                             check_ref(side, BUF_COUNTS, lane), capacity};
    tms_sparse_attend p = {
        .score = {check_kv(side), batch, q, (tamis_group_rule)check_get(data, KEY_RULE), scores,
                  score_stride(data)},
        .select = {batch, l->kv.page_size, check_get(data, KEY_TOP), check_get(data, KEY_SINKS),
                   check_get(data, KEY_RECENT), scores, score_stride(data), lists},
        .attend = {.kv = check_kv(side),
                   .batch = batch,
                   .lists = lists,
                   .max_pages = capacity,
                   .q = q,
                   .out = {check_ref(side, BUF_Y, rows.first * step), step},
                   .lse = check_ref(side, BUF_LSE, lane * l->group),
                   .logit = {check_attend_scale(data), check_attend_cap(data),
                             check_ref(side, BUF_SINKS, 0)}},
    };
    p.attend.scratch = check_scratch(side, tms_attend_scratch(side->dev, &p.attend));
    return p;
}

static tamis_status launch(check_side *side, check_rows rows) {
    const tms_sparse_attend p = params(side, rows);
    return tms_run_sparse_attend(side->dev, &p, &side->error);
}

static const char *refusal(check_side *side) {
    const tms_sparse_attend p = params(side, (check_rows){0, side->data->lanes.n_rows});
    return tms_sparse_attend_refusal(side->dev, &p);
}

/* Scores and lists may be used as the fused launch likes beyond what it promises. */
static void settle(const check_data *data, void *const *arrays) {
    float *scores = arrays[BUF_SCORES];
    for (uint64_t i = 0; scores && i < data->buf[BUF_SCORES].count; i++)
        scores[i] = 0;
    check_settle_lists(data, arrays, check_select_capacity(data));
    check_settle_lse(data, arrays);
}

/* ---- Judging --------------------------------------------------------------------------------- */

static bool holds(const int32_t *list, int32_t count, int32_t ordinal) {
    for (int32_t i = 0; i < count; i++)
        if (list[i] == ordinal) return true;
    return false;
}

/* Strictly ascending ordinals of the lane. */
static bool well_formed(const int32_t *list, int32_t count, uint32_t pages) {
    for (int32_t i = 0; i < count; i++)
        if (list[i] < 0 || (uint32_t)list[i] >= pages || (i && list[i] <= list[i - 1]))
            return false;
    return true;
}

typedef struct lane_view {
    const check_data *data;
    uint32_t row, head;
    const float *scores; /* the device's own, unfused */
} lane_view;

/* The lowest (of `keep`) or highest entry of a list that the other list lacks, widened by how far
 * its score may be off. NaN, which passes no comparison, if one of them is NaN or protected. */
static double edge(const lane_view *v, const int32_t *list, const int32_t *other, int32_t count,
                   bool keep) {
    const uint32_t visible = check_visible(v->data, v->row, v->head);
    double found = keep ? INFINITY : -INFINITY;
    for (int32_t i = 0; i < count; i++) {
        double slack;
        if (holds(other, count, list[i])) continue;
        check_score(v->data, v->row, v->head, (uint32_t)list[i], &slack);
        const double score = v->scores[list[i]] + (keep ? slack : -slack);
        if (isnan(score) || check_protected(v->data, visible, (uint32_t)list[i])) return NAN;
        if (keep ? score < found : score > found) found = score;
    }
    return found;
}

/* Entries may differ only where scores at the threshold lie within their tolerance. */
static bool same_lane(const lane_view *v, const int32_t *fused, int32_t count,
                      const int32_t *unfused, int32_t want) {
    const uint32_t size = v->data->lanes.kv.page_size;
    const uint32_t pages = (check_visible(v->data, v->row, v->head) + size - 1) / size;
    if (count != want || !well_formed(fused, count, pages)) return false;
    const double kept = edge(v, fused, unfused, count, true);
    const double dropped = edge(v, unfused, fused, count, false);
    return isinf(kept) ? isinf(dropped) : kept >= dropped;
}

static bool same_lists(check_side *side, const check_side *unfused, const float *scores, char *why,
                       size_t why_size) {
    const check_data *data = side->data;
    const uint32_t capacity = check_select_capacity(data);
    const int32_t *fused = side->result[BUF_LISTS], *counts = side->result[BUF_COUNTS];
    const int32_t *other = unfused->result[BUF_LISTS], *wants = unfused->result[BUF_COUNTS];
    for (uint32_t i = 0; i < data->lanes.n_rows * data->lanes.n_kv_heads; i++) {
        const lane_view v = {data, i / data->lanes.n_kv_heads, i % data->lanes.n_kv_heads,
                             scores + (uint64_t)i * score_stride(data)};
        if (counts[i] < 0 || (uint32_t)counts[i] > capacity ||
            !same_lane(&v, fused + i * capacity, counts[i], other + i * capacity, wants[i])) {
            snprintf(why, why_size, "list of row %u, KV head %u (%d pages) is not select's (%d)",
                     v.row, v.head, counts[i], wants[i]);
            return false;
        }
    }
    return true;
}

/* score_pages and select as two launches on the same device. */
static bool run_unfused(check_side *unfused) {
    const check_rows rows = {0, unfused->data->lanes.n_rows};
    const tms_sparse_attend p = params(unfused, rows);
    const tms_form form = unfused->dev->form;
    unfused->dev->form = TMS_FORM_AUTO;
    const bool ok = tms_run_score_pages(unfused->dev, &p.score, &unfused->error) == TAMIS_OK &&
                    tms_run_select(unfused->dev, &p.select, &unfused->error) == TAMIS_OK;
    unfused->dev->form = form;
    if (!ok) snprintf(unfused->why, sizeof unfused->why, "%s", unfused->error.text);
    return ok && check_side_read(unfused);
}

/* Out and lse against the formula over the lists that the launch itself gave. */
static bool same_states(check_side *side, char *why, size_t why_size) {
    check_data view = *side->data;
    void *want[BUF_COUNT] = {[BUF_Y] = view.buf[BUF_Y].want, [BUF_LSE] = view.buf[BUF_LSE].want};
    check_attend_rows(&view, side->result[BUF_LISTS], side->result[BUF_COUNTS],
                      check_select_capacity(side->data));
    view.buf[BUF_SCORES].role = view.buf[BUF_LISTS].role = ROLE_ABSENT;
    view.buf[BUF_COUNTS].role = ROLE_ABSENT;
    check_settle_lse(&view, want);
    return check_compare(&view, want, side->result, why, why_size);
}

static bool judge(check_side *side, char *why, size_t why_size) {
    check_side unfused;
    bool ok = true;
    if (!side->data->lanes.n_rows) return true;
    if (!check_side_open(&unfused, side->dev, side->data) || !run_unfused(&unfused)) {
        snprintf(why, why_size, "unfused: %.300s", unfused.why);
        ok = false;
    }
    ok = ok && same_lists(side, &unfused, unfused.result[BUF_SCORES], why, why_size) &&
         same_states(side, why, why_size);
    check_side_close(&unfused);
    return ok;
}

/* The three ops, launched one by one: whether a batch is large enough to be fused does not show in
 * its results. */
static tamis_status again(check_side *side) {
    const tms_sparse_attend p = params(side, (check_rows){0, side->data->lanes.n_rows});
    tamis_status status = tms_run_score_pages(side->dev, &p.score, &side->error);
    if (status == TAMIS_OK) status = tms_run_select(side->dev, &p.select, &side->error);
    return status == TAMIS_OK ? tms_run_attend(side->dev, &p.attend, &side->error) : status;
}

/* Bounds of every full page, then K and V of the chosen ones. */
static uint64_t bytes(const check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint32_t size = l->kv.page_size, capacity = check_select_capacity(data);
    uint64_t sum = 0;
    for (uint32_t row = 0; row < l->n_rows; row++) {
        for (uint32_t h = 0; h < l->n_kv_heads; h++) {
            const uint32_t visible = check_visible(data, row, h), n = (visible + size - 1) / size;
            sum += visible / size * check_pair_bytes(data) +
                   (uint64_t)size * (n < capacity ? n : capacity) *
                       (check_key_bytes(data) + check_value_bytes(data));
        }
    }
    return sum;
}

static const char *reject(const check_case *c) {
    return c->v[KEY_TOP] ? check_read_reject(c) : "no pages to select (top)";
}

const check_op check_op_sparse_attend = {
    .name = "sparse_attend",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_Q8BOUNDS, 0},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_G, 1},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 600},
                                        {KEY_TOP, 8},
                                        {KEY_SINKS, 0},
                                        {KEY_RECENT, 0},
                                        {KEY_RULE, TAMIS_GROUP_MAX},
                                        {KEY_PAD, 0},
                                        {KEY_EVEN, 0},
                                        {KEY_ORDERED, 0},
                                        {KEY_CAP, 0},
                                        {KEY_SINK, 0},
                                        {KEY_FIRST, 0},
                                        {KEY_COUNT, 0}},
    /* The builds of the second covers of score_pages and attend: `again` launches these. */
    .factors =
        (const check_factor[]){{KEY_G, 8, {1, 2, 3, 5, 6, 7, 8, 16}},
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
                               {KEY_CAP, 2, {0, 1}},
                               {KEY_FIRST, 2, {0, 1}},
                               {KEY_SINK, 2, {0, 1}},
                               {KEY_COUNT, 0, {0}}},
    .compiled = (const check_key[]){KEY_G, KEY_D, KEY_DTYPE, KEY_Q8BOUNDS, KEY_RULE, KEY_CAP,
                                    KEY_FIRST, KEY_COUNT},
    .entries =
        (const check_entry[]){
            {LIST_SMOKE, "normal:f16:g4:b2:kv600:first"},
            {LIST_SMOKE, "normal:f16:b2:g4:sinks4:recent20:sink"},
            {LIST_SMOKE, "ints:f16:b2:g4:kv2000:top80"}, /* pieces of several segments */
            {LIST_SMOKE, "normal:f16:q8bounds:b2:g4:sinks4:recent20"},
            {LIST_SMOKE, "normal:q8:b2:g4:kv2000:top80"},
            {LIST_SMOKE, "normal:k8v4:b2:g4:kv2000:top80"},
            {LIST_SMOKE, "normal:q4:b2:g4:kv2000:top80"},
            {LIST_CI, "r0:g4"},
            {LIST_CI, "nasty:f16:q8bounds:hkv3:d128:kv3000:top60"},
            {LIST_CI, "normal:f16:g4:d128:kv33000:top128:sinks4:recent64"},
            {LIST_CI, "nasty:f16:b3:r3:g4:d128:kv1000:top20:pad32"},
            {LIST_CI, "normal:f16:b4:hkv3:g3:kv3000:top60"}, /* lanes stay whole */
            {LIST_CI, "nasty:f16:hkv3:g3:kv3000:top60"},
            {LIST_CI, "normal:f16:g2:page32:kv2000"},
            {LIST_CI, "normal:f16:halves:g3:kv2000:top20"},
            {LIST_CI, "nasty:f16:apart:hkv3:g3:kv2000:top20"},
            {LIST_CI, "normal:f16:g2:d80"},
            {LIST_CI, "normal:f16:q8bounds:b2:g4:d512"},
            {LIST_FULL, "normal:f16:hkv1:kv1048576:top128"}, /* 65,536 pages */
            {LIST_OCLGRIND, "normal:f16:g2:kv100:top3:sinks4:recent5"},
            {LIST_OCLGRIND, "normal:f16:hkv1:kv200:top6:sinks4:recent5"},
            {LIST_OCLGRIND, "nasty:f32:hkv1:d128:g3:kv60:top2"},
            {LIST_OCLGRIND, "ints:bf16:nhd:hkv2:g2:kv90:top3:mean"},
            {LIST_OCLGRIND, "normal:f16:q8bounds:g2:kv100:top3:sinks4:recent5"},
            {LIST_BENCH, "f16:hkv32:d128:kv32768:top128:sinks4:recent64:even"},
            {LIST_BENCH, "q8:hkv32:d128:kv32768:top128:sinks4:recent64:even"},
            {LIST_BENCH, "f16:hkv8:g4:d128:kv32768:top128:sinks4:recent64:even"},
            {LIST_BENCH, "q8:hkv8:g4:d128:kv32768:top128:sinks4:recent64:even"},
            {LIST_BENCH, "f16:q8bounds:hkv32:d128:kv32768:top128:sinks4:recent64:even"},
            {LIST_BENCH, "f16:q8bounds:hkv8:g4:d128:kv32768:top128:sinks4:recent64:even"},
            {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_lanes_rows,
    .refusal = refusal,
    .cpu_shapes = true,
    .settle = settle,
    .judge = judge,
    .again_name = "three launches against the fused one",
    .again = again,
    .rows_alone = true,
    .bytes = bytes,
};
