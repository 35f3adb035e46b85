/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of attend against softmax attention by the direct formula in fp64. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SOFT_CAP 5.0f
#define BESIDE   64       /* slots before the first one seen that may be read */
#define NOWHERE  16777216 /* a page beyond all memory */

float check_attend_scale(const check_data *data) {
    /* Nasty cases have huge logits. */
    const float huge = check_get(data, KEY_FILL) == FILL_NASTY ? 4.0f : 1.0f;
    return huge / sqrtf((float)data->lanes.kv.head_dim);
}

float check_attend_cap(const check_data *data) {
    return check_get(data, KEY_CAP) ? SOFT_CAP : 0.0f;
}

/* ---- Direct formula -------------------------------------------------------------------------- */

/* What attention of one (row, KV head) goes over; rows of K in f32, V `value_offset` further on. */
typedef struct seen {
    const float *kv;
    uint64_t *key;  /* of each seen slot */
    uint32_t *slot; /* the seen slots */
    uint32_t n;
    double value_size; /* max |v| */
} seen;

static uint64_t logit_stride(const check_data *data) {
    return check_get(data, KEY_KV) + 5ull;
}

static void gather(const check_data *data, uint32_t row, uint32_t head, const int32_t *list,
                   uint32_t entries, seen *out) {
    const tms_kv *kv = &data->lanes.kv;
    const uint32_t visible = check_visible(data, row, head), first = check_first(data, row, head);
    out->n = 0;
    out->value_size = 0;
    for (uint32_t e = 0; e < entries; e++) {
        const uint32_t ordinal = list ? (uint32_t)list[e] : e;
        const uint32_t page = check_page_id(data, check_row_seq(data, row), head, ordinal);
        for (uint32_t s = 0; s < kv->page_size && ordinal * kv->page_size + s < visible; s++) {
            const uint32_t slot = ordinal * kv->page_size + s;
            if (slot < first) continue;
            out->slot[out->n] = slot;
            const uint64_t key = check_key_row(data, page, head, s);
            out->key[out->n++] = key;
            for (uint32_t d = 0; d < kv->head_dim; d++)
                out->value_size = fmax(out->value_size, fabs(out->kv[key + kv->value_offset + d]));
        }
    }
}

/* The size of element d of a key: of q4 that of its block's minimum and
 * that of what is above it, which may cancel. */
static double key_size(const check_data *data, const float *k, uint32_t d) {
    const uint32_t dim = data->lanes.kv.head_dim,
                   first = d / TMS_BLOCK_CHANNELS * TMS_BLOCK_CHANNELS;
    double low = k[d];
    if (check_get(data, KEY_DTYPE) != TAMIS_Q4) return fabs(k[d]);
    for (uint32_t i = first; i < dim && i < first + TMS_BLOCK_CHANNELS; i++)
        low = fmin(low, k[i]);
    return fabs(low) + (k[d] - low);
}

/* *terms is the sum of the products' sizes, which may cancel in the logit. */
static double logit(const check_data *data, const float *q, const float *k, double *terms) {
    const double cap = check_attend_cap(data), scale = check_attend_scale(data);
    double sum = 0;
    *terms = 0;
    for (uint32_t d = 0; d < data->lanes.kv.head_dim; d++) {
        sum += scale * q[d] * k[d];
        *terms += fabs(scale * q[d]) * key_size(data, k, d);
    }
    return cap > 0 ? cap * tanh(sum / cap) : sum;
}

/* What the logit of a seen slot must be: its own terms decide how well it is known. */
static void want_logit(check_data *data, uint64_t at, double value, double terms) {
    check_buffer *logits = &data->buf[BUF_LOGITS];
    if (!logits->want) return;
    ((float *)logits->want)[at] = isfinite(value) ? (float)value : NAN;
    logits->tolerance[at] = 1e-6 * (isfinite(terms) ? terms : fabs(value));
}

/* One query head: out, lse and their tolerances at element `at` of Y and `state` of LSE. A sink is in
 * the sum, without a value; how well lse is known decides how well its share is. */
static void attend_head(check_data *data, const float *q, const seen *s, uint64_t at,
                        uint64_t state) {
    const tms_kv *kv = &data->lanes.kv;
    check_buffer *out = &data->buf[BUF_Y], *lse = &data->buf[BUF_LSE];
    double *logits = check_alloc(s->n * sizeof *logits), *sums = check_alloc(kv->head_dim * 8);
    const double sink = check_sink(data, state % (data->lanes.n_kv_heads * data->lanes.group));
    const bool any = s->n || sink > -INFINITY;
    double most = sink, size = 0, terms = 0, total = sink > -INFINITY, own;
    for (uint32_t i = 0; i < s->n; i++) {
        logits[i] = logit(data, q, s->kv + s->key[i], &own);
        want_logit(data, state * logit_stride(data) + s->slot[i], logits[i], own);
        terms = fmax(terms, own);
        most = isfinite(logits[i]) && isfinite(size) ? fmax(most, logits[i]) : NAN;
        size = isfinite(logits[i]) && isfinite(size) ? fmax(size, fabs(logits[i])) : NAN;
    }
    total *= exp(sink - most); /* 0 if there is none */
    for (uint32_t i = 0; i < s->n; i++) {
        const double weight = exp(logits[i] - most);
        total += weight;
        for (uint32_t d = 0; d < kv->head_dim; d++)
            sums[d] += weight * s->kv[s->key[i] + kv->value_offset + d];
    }
    const double value = any ? most + log(total) : -INFINITY;
    const double known = 2e-6 * (1 + fabs(value) + size) + 5e-7 * terms;
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        const double summed = 2e-6 * (1 + size) + 1e-6 * terms;
        ((float *)out->want)[at + d] = s->n ? (float)(sums[d] / total) : 0.0f;
        out->tolerance[at + d] =
            s->n ? s->value_size * (summed + (sink > -INFINITY ? known : 0)) : 0;
    }
    if (lse->want) {
        ((float *)lse->want)[state] = (float)value;
        lse->tolerance[state] = s->n ? known : 0;
    }
    free(logits);
    free(sums);
}

void check_attend_rows(check_data *data, const int32_t *lists, const int32_t *counts,
                       uint32_t capacity) {
    const check_lanes *l = &data->lanes;
    const uint32_t size = l->kv.page_size, dim = l->kv.head_dim;
    float *kv = check_widen(l->kv.dtype, check_init(data, BUF_KV), data->buf[BUF_KV].count);
    const uint64_t most = (uint64_t)l->lane_pages * size;
    seen s = {.kv = kv,
              .key = check_alloc(most * sizeof *s.key),
              .slot = check_alloc(most * sizeof *s.slot)};
    for (uint32_t row = 0; row < l->n_rows; row++) {
        const uint64_t at = row * check_q_stride(data);
        for (uint32_t h = 0; h < l->n_kv_heads; h++) {
            const uint64_t lane = (uint64_t)row * l->n_kv_heads + h;
            const uint32_t all = (check_visible(data, row, h) + size - 1) / size;
            gather(data, row, h, lists ? lists + lane * capacity : NULL,
                   lists ? (uint32_t)counts[lane] : all, &s);
            for (uint32_t g = 0; g < l->group; g++) {
                const uint64_t head = (uint64_t)h * l->group + g;
                attend_head(data, (float *)check_init(data, BUF_Q) + at + head * dim, &s,
                            at + head * dim, lane * l->group + g);
            }
        }
    }
    free(s.key);
    free(s.slot);
    free(kv);
}

void check_sinks_make(check_data *data, uint32_t n_heads) {
    if (!check_get(data, KEY_SINK)) return;
    float *sinks = check_buffer_add(data, BUF_SINKS, ROLE_INPUT, TAMIS_F32, n_heads);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_SINKS);
    for (uint32_t i = 0; i < n_heads; i++)
        sinks[i] = i % 4 == 1 ? -INFINITY : (float)(4 * check_normal(&rng)) + (i % 4 == 2 ? 20 : 0);
}

double check_sink(const check_data *data, uint64_t query_head) {
    const float *sinks = check_get(data, KEY_SINK) ? check_init(data, BUF_SINKS) : NULL;
    return sinks ? (double)sinks[query_head] : -INFINITY;
}

/* Beside a NaN out the contract leaves lse open. */
void check_settle_lse(const check_data *data, void *const *arrays) {
    const check_lanes *l = &data->lanes;
    const float *out = arrays[BUF_Y];
    float *lse = arrays[BUF_LSE];
    const uint32_t heads = l->n_kv_heads * l->group;
    for (uint32_t i = 0; lse && out && i < l->n_rows * heads; i++)
        if (isnan(out[i / heads * check_q_stride(data) + i % heads * l->kv.head_dim])) lse[i] = 0;
}

/* Beside it, the logits of slots before the first that a row sees. */
static void settle(const check_data *data, void *const *arrays) {
    const check_lanes *l = &data->lanes;
    float *logits = arrays[BUF_LOGITS];
    check_settle_lse(data, arrays);
    for (uint64_t i = 0; logits && i < (uint64_t)l->n_rows * l->n_kv_heads * l->group; i++) {
        const uint32_t row = (uint32_t)(i / l->group / l->n_kv_heads);
        const uint32_t head = (uint32_t)(i / l->group % l->n_kv_heads);
        for (uint32_t s = 0; s < check_first(data, row, head); s++)
            logits[i * logit_stride(data) + s] = 0;
    }
}

/* ---- Data ------------------------------------------------------------------------------------ */

static uint32_t list_capacity(const check_data *data) {
    return data->lanes.lane_pages;
}

static uint32_t entries_of(const check_data *data, uint32_t row, uint32_t head) {
    const uint32_t size = data->lanes.kv.page_size;
    return (check_visible(data, row, head) + size - 1) / size;
}

/* A random choice of `top` pages, ascending; of all pages when the case has no lists. */
static void make_lists(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint32_t capacity = list_capacity(data), top = check_get(data, KEY_TOP);
    const uint64_t lanes = (uint64_t)l->n_rows * l->n_kv_heads;
    int32_t *pages = check_buffer_add(data, BUF_LISTS, ROLE_INPUT, CHECK_I32, lanes * capacity);
    int32_t *counts = check_buffer_add(data, BUF_COUNTS, ROLE_INPUT, CHECK_I32, lanes);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_LISTS);
    for (uint64_t lane = 0; lane < lanes; lane++) {
        const uint32_t n =
            entries_of(data, (uint32_t)(lane / l->n_kv_heads), (uint32_t)(lane % l->n_kv_heads));
        uint32_t wanted = top && top < n ? top : n;
        for (uint32_t i = 0; i < n; i++)
            if (check_below(&rng, n - i) < wanted) {
                pages[lane * capacity + (uint32_t)counts[lane]++] = (int32_t)i;
                wanted--;
            }
    }
}

/* Pages that no row lists hold NaN: reading one shows. */
static void poison_unlisted(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint64_t lanes = (uint64_t)l->n_seqs * l->n_kv_heads;
    char *listed = check_alloc(lanes * l->lane_pages);
    const int32_t *pages = check_init(data, BUF_LISTS), *counts = check_init(data, BUF_COUNTS);
    for (uint32_t i = 0; i < l->n_rows * l->n_kv_heads; i++) {
        const uint64_t lane =
            check_row_seq(data, i / l->n_kv_heads) * l->n_kv_heads + i % l->n_kv_heads;
        for (int32_t e = 0; e < counts[i]; e++)
            listed[lane * l->lane_pages + (uint32_t)pages[i * list_capacity(data) + (uint32_t)e]] =
                1;
    }
    for (uint64_t i = 0; i < lanes * l->lane_pages; i++) {
        const uint32_t lane = (uint32_t)(i / l->lane_pages), head = lane % l->n_kv_heads;
        for (uint32_t s = 0; s < l->kv.page_size && !listed[i]; s++)
            check_poison_slot(
                data, check_page_id(data, lane / l->n_kv_heads, head, i % l->lane_pages), head, s);
    }
    free(listed);
}

/* Pages that lie before all that rows of a lane see, and not beside it, are nowhere: a form that reads
 * them fails. */
static void take_unseen(check_data *data) {
    const check_lanes *l = &data->lanes;
    int32_t *table = check_init(data, BUF_TABLE);
    for (uint32_t lane = 0; l->head_stride && lane < l->n_seqs * l->n_kv_heads; lane++) {
        const uint32_t b = lane / l->n_kv_heads, h = lane % l->n_kv_heads;
        uint32_t least = l->length[lane];
        for (uint32_t r = 0; r < l->n_rows; r++)
            if (check_row_seq(data, r) == b && check_first(data, r, h) < least)
                least = check_first(data, r, h);
        const uint32_t n = least < BESIDE ? 0 : (least - BESIDE) / l->kv.page_size;
        for (uint32_t i = 0; i < n; i++)
            table[b * l->seq_stride + h * l->head_stride + i] = NOWHERE;
    }
}

/* Any lane may have a NaN key (score.c). Every other one has a NaN as its last value, which only
 * the last row of the sequence sees, not those beside it in a tile; half of the rest have an
 * infinite key. */
static void make_nasty(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_rng rng = check_rng_make(data->seed, data->c, BUF_V);
    void *kv = check_init(data, BUF_KV);
    check_nan_keys(data);
    for (uint32_t lane = 0; lane < l->n_seqs * l->n_kv_heads; lane++) {
        const uint32_t length = l->length[lane];
        if (!length) continue;
        if (lane % 2 == 0)
            check_store(l->kv.dtype, kv,
                        check_lane_row(data, lane, length - 1) + l->kv.value_offset + 1, NAN);
        else if (check_below(&rng, 2))
            check_store(l->kv.dtype, kv, check_lane_row(data, lane, check_below(&rng, length)),
                        INFINITY);
    }
}

/* One channel of a row holds something, the rest is 0. */
static void set_channel(check_data *data, uint64_t row, float value) {
    const tms_kv *kv = &data->lanes.kv;
    for (uint32_t d = 0; d < kv->head_dim; d++)
        check_store(kv->dtype, check_init(data, BUF_KV), row + d, d == 0 ? value : 0.0f);
}

/* Equal logits below 0 in a lane, but for the first slot's, 0.5; values 1, but for the first
 * slot's, 0. Sums of many equal numbers round the same way every time. */
static void make_same(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_rng rng = check_rng_make(data->seed, data->c, BUF_K);
    for (uint32_t lane = 0; lane < l->n_seqs * l->n_kv_heads; lane++) {
        const float key = -0.1f - (float)check_below(&rng, 1000) / 1000.0f;
        for (uint32_t s = 0; s < l->length[lane]; s++) {
            const uint64_t row = check_lane_row(data, lane, s);
            set_channel(data, row, s == 0 ? 0.5f : key);
            for (uint32_t d = 0; d < l->kv.head_dim; d++)
                check_store(l->kv.dtype, check_init(data, BUF_KV), row + l->kv.value_offset + d,
                            s != 0);
        }
    }
    float *q = check_init(data, BUF_Q);
    for (uint32_t row = 0; row < l->n_rows; row++)
        for (uint32_t i = 0; i < l->n_kv_heads * l->group * l->kv.head_dim; i++)
            q[row * check_q_stride(data) + i] =
                i % l->kv.head_dim == 0 ? 1.0f / check_attend_scale(data) : 0.0f;
}

static void make(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_lanes_make(data, ROLE_INPUT);
    if (check_get(data, KEY_FILL) == FILL_NASTY) make_nasty(data);
    check_q_make(data);
    if (check_get(data, KEY_SAME)) make_same(data);
    if (check_get(data, KEY_LOGITS)) { /* without rows, too: which kernel is built hangs on them */
        const uint64_t heads = (uint64_t)l->n_rows * l->n_kv_heads * l->group;
        check_buffer_add(data, BUF_LOGITS, ROLE_OUTPUT, TAMIS_F32,
                         heads ? heads * logit_stride(data) : 1);
    }
    check_sinks_make(data, l->n_kv_heads * l->group);
    if (!l->n_rows) return;
    make_lists(data);
    if (check_get(data, KEY_TOP)) poison_unlisted(data);
    if (check_get(data, KEY_FIRST) && !check_get(data, KEY_TOP)) take_unseen(data);
    check_buffer_add(data, BUF_Y, ROLE_OUTPUT, TAMIS_F32, l->n_rows * check_q_stride(data));
    if (!check_get(data, KEY_NOLSE))
        check_buffer_add(data, BUF_LSE, ROLE_OUTPUT, TAMIS_F32,
                         (uint64_t)l->n_rows * l->n_kv_heads * l->group);
}

static void oracle(check_data *data) {
    const int32_t *lists = check_get(data, KEY_TOP) ? check_init(data, BUF_LISTS) : NULL;
    check_want(data, BUF_Y, true);
    check_want(data, BUF_LSE, true);
    check_want(data, BUF_LOGITS, true);
    if (data->lanes.n_rows)
        check_attend_rows(data, lists, check_init(data, BUF_COUNTS), list_capacity(data));
}

/* ---- Launch ---------------------------------------------------------------------------------- */

static tms_attend params(check_side *side, check_rows rows, bool lists) {
    const check_data *data = side->data;
    const uint64_t step = check_q_stride(data), heads = data->lanes.n_kv_heads * data->lanes.group;
    const uint64_t lane = (uint64_t)rows.first * data->lanes.n_kv_heads;
    tms_attend p = {
        .kv = check_kv(side),
        .batch = check_batch(side, rows),
        .q = {check_ref(side, BUF_Q, rows.first * step), step},
        .out = {check_ref(side, BUF_Y, rows.first * step), step},
        .lse = check_ref(side, BUF_LSE, rows.first * heads),
        .logit = {check_attend_scale(data), check_attend_cap(data), check_ref(side, BUF_SINKS, 0)},
        .logits = check_ref(side, BUF_LOGITS, rows.first * heads * logit_stride(data)),
        .logit_stride = logit_stride(data),
    };
    p.max_pages = (p.batch.max_visible + p.kv.page_size - 1) / p.kv.page_size;
    if (lists && rows.count) {
        const int32_t *counts = (const int32_t *)check_init(data, BUF_COUNTS) + lane;
        p.lists.pages = check_ref(side, BUF_LISTS, lane * list_capacity(data));
        p.lists.count = check_ref(side, BUF_COUNTS, lane);
        p.lists.capacity = list_capacity(data);
        p.max_pages = 0;
        for (uint64_t i = 0; i < (uint64_t)rows.count * data->lanes.n_kv_heads; i++)
            if ((uint32_t)counts[i] > p.max_pages) p.max_pages = (uint32_t)counts[i];
    }
    p.scratch = check_scratch(side, tms_attend_scratch(side->dev, &p));
    return p;
}

static tamis_status launch_with(check_side *side, check_rows rows, bool lists) {
    const tms_attend p = params(side, rows, lists);
    return tms_run_attend(side->dev, &p, &side->error);
}

static tamis_status launch(check_side *side, check_rows rows) {
    return launch_with(side, rows, check_get(side->data, KEY_TOP) != 0);
}

/* Lists of all pages give what no lists give. */
static tamis_status again(check_side *side) {
    return launch_with(side, (check_rows){0, side->data->lanes.n_rows}, true);
}

/* A page of a tile counts once; only lists are read row by row. */
static uint64_t bytes(const check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint32_t top = check_get(data, KEY_TOP), r = check_get(data, KEY_R);
    const uint32_t tile = check_get(data, KEY_TILE);
    uint64_t pages = 0;
    for (uint32_t row = 0; row < l->n_rows; row++) {
        const bool last = row % r % tile == tile - 1 || row % r == r - 1;
        for (uint32_t h = 0; h < l->n_kv_heads && (last || top); h++) {
            const uint32_t n = entries_of(data, row, h);
            pages += top && top < n ? top : n;
        }
    }
    return pages * l->kv.page_size * (check_key_bytes(data) + check_value_bytes(data));
}

static const char *reject(const check_case *c) {
    if (c->v[KEY_LOGITS] && c->v[KEY_R] > 1 && c->v[KEY_TILE] > 1)
        return "logits go with one row a tile";
    if (c->v[KEY_SINK] && c->v[KEY_NOLSE]) return "sinks need lse";
    return c->v[KEY_TILE] ? check_read_reject(c) : "tiles have at least one row";
}

const check_op check_op_attend = {
    .name = "attend",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_TILE, 1},
                                        {KEY_HKV, 2},
                                        {KEY_G, 1},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 200},
                                        {KEY_TOP, 0},
                                        {KEY_PAD, 0},
                                        {KEY_EVEN, 0},
                                        {KEY_ORDERED, 0},
                                        {KEY_FIRST, 0},
                                        {KEY_CAP, 0},
                                        {KEY_SINK, 0},
                                        {KEY_LOGITS, 0},
                                        {KEY_NOLSE, 0},
                                        {KEY_SAME, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){{KEY_G, 7, {1, 3, 4, 5, 8, 16, 20}},
                                      CHECK_HEAD_DIMS,
                                      CHECK_DTYPES,
                                      CHECK_PAGE_SIZES,
                                      CHECK_FILLS,
                                      CHECK_LAYOUTS,
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_R, 3, {1, 5, 33}},
                                      {KEY_TILE, 3, {1, 7, 32}},
                                      {KEY_HKV, 2, {1, 3}},
                                      {KEY_KV, 4, {1, 17, 255, 600}},
                                      {KEY_TOP, 3, {0, 1, 6}},
                                      {KEY_FIRST, 2, {0, 1}},
                                      {KEY_SINK, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .more_factors = (const check_factor[]){{KEY_G, 8, {1, 2, 3, 5, 6, 7, 8, 16}},
                                           {KEY_D, 2, {64, 128}},
                                           CHECK_DTYPES,
                                           CHECK_FILLS,
                                           CHECK_LAYOUTS,
                                           {KEY_B, 2, {1, 3}},
                                           {KEY_R, 3, {1, 5, 33}},
                                           {KEY_TILE, 3, {1, 7, 32}},
                                           {KEY_KV, 4, {1, 17, 255, 600}},
                                           {KEY_TOP, 2, {0, 6}},
                                           {KEY_FIRST, 2, {0, 1}},
                                           {KEY_CAP, 2, {0, 1}},
                                           {KEY_COUNT, 0, {0}}},
    .compiled = (const check_key[]){KEY_G, KEY_D, KEY_DTYPE, KEY_PAGE, KEY_CAP, KEY_COUNT},
    .entries =
        (const check_entry[]){
            {LIST_SMOKE, "normal:f16:b2:r3:g4:kv300:first"},
            {LIST_SMOKE, "nasty:f16:hkv1:r20:tile16:g2:kv300:first"},
            {LIST_SMOKE, "normal:f16:b2:g4:kv600"}, /* three segments */
            {LIST_SMOKE, "nasty:f16:b2:g4:d512"},
            {LIST_SMOKE, "normal:f16:apart:b2:g3:kv300:top4"},
            {LIST_SMOKE, "normal:f16:turned:b2:g3:page32:kv300"},
            {LIST_SMOKE, "normal:f16:b2:g4:top5"},
            {LIST_SMOKE, "normal:f16:r40:tile32:g4:kv300"},
            {LIST_SMOKE, "normal:f16:b2:g4:cap:logits"},
            {LIST_SMOKE, "nasty:f16:b2:g4:top5:cap:logits"},
            {LIST_SMOKE, "normal:f16:b2:r3:g4:kv300:first:sink:logits"},
            {LIST_SMOKE, "nasty:f16:b2:r33:tile32:g4:kv300:sink"},
            {LIST_SMOKE, "normal:q8:b2:g4:kv600"},
            {LIST_SMOKE, "nasty:q8:b2:g4:top5"},
            {LIST_SMOKE, "normal:q8:r40:tile32:g4:kv300"},
            {LIST_SMOKE, "normal:k8v4:b2:g4:kv600"},
            {LIST_SMOKE, "normal:q4:b2:g4:kv600"},
            {LIST_SMOKE, "nasty:k8v4:b2:g4:top5"},
            {LIST_SMOKE, "nasty:q4:b2:g20:d112:top5"},
            {LIST_SMOKE, "normal:k8v4:r40:tile32:g4:kv300"},
            {LIST_SMOKE, "normal:q4:r40:tile32:g4:kv300"},
            {LIST_CI, "r0"},
            {LIST_CI, "r0:d128:g4:top5"},
            {LIST_CI, "normal:f16:g4:cap:nolse"},
            {LIST_CI, "normal:f16:g3:d80:cap:pad32"},
            {LIST_CI, "nasty:f32:b3:g5:d128:cap:kv70"},
            {LIST_CI, "normal:f16:g4:page8:kv9000"}, /* three splits, ragged */
            {LIST_CI, "normal:f32:b2:g5:d128:kv17000:hkv1"},
            {LIST_CI, "normal:f16:g4:d128:kv20000:top700"}, /* two splits of lists */
            {LIST_CI, "normal:q8:g4:d128:kv20000:top700"},
            {LIST_CI, "nasty:bf16:b2:page8:kv9000"},
            {LIST_CI, "normal:f16:r64:tile32:hkv1:d128:g16:kv300"},
            {LIST_CI, "normal:f16:r20:tile16:g4:kv4500:page8:hkv1"},
            {LIST_CI, "normal:f16:b2:r40:tile32:g4:kv100:first"},
            {LIST_CI, "nasty:f16:b2:r40:tile32:g4:kv100:hkv3"},
            {LIST_CI, "same:f16:hkv1:r2:tile2:kv4500"}, /* three pieces of a tile on CUDA */
            {LIST_CI, "same:bf16:hkv1:r32:tile32:kv4500"},
            {LIST_CI, "same:f16:hkv1:kv4500"},
            {LIST_CI, "nasty:f16:b2:hkv1:r3:tile3:g4:kv4500"},
            {LIST_CI, "normal:f16:hkv1:r3:tile3:page64:kv67000"}, /* more than a launch's pieces */
            {LIST_CI, "normal:f16:b3:g4:kv5000:first"},           /* sliding windows */
            {LIST_CI, "normal:bf16:hkv1:r20:tile16:kv5000:first"},
            {LIST_CI, "normal:f16:b4:hkv3:g3:kv3000"}, /* more lanes than cores share */
            {LIST_CI, "normal:f16:b4:hkv3:g3:kv3000:top60"},
            {LIST_CI, "nasty:f16:hkv3:g3:kv3000"},
            {LIST_CI, "normal:f16:hkv1:r33:tile32:g3:kv2000"}, /* segments of tiles and of a row */
            {LIST_CI, "normal:f16:hkv1:g3:kv3000:logits"},
            {LIST_CI, "normal:q8:hkv1:g3:kv3000:logits"},
            {LIST_CI, "nasty:q8:hkv1:r33:tile32:g3:kv2000"},
            {LIST_CI, "same:q8:hkv1:kv4500"},
            {LIST_CI, "normal:k8v4:g4:d128:kv20000:top700"},
            {LIST_CI, "normal:q4:g4:d128:kv20000:top700"},
            {LIST_CI, "nasty:k8v4:hkv1:r33:tile32:g3:kv2000"},
            {LIST_CI, "nasty:q4:hkv1:r33:tile32:g3:kv2000"},
            {LIST_CI, "nasty:k8v4:b2:r40:tile32:g4:kv100:first"},
            {LIST_CI, "nasty:q4:b2:r40:tile32:g4:kv100:first"},
            {LIST_CI, "nasty:q8:b2:r40:tile32:g4:kv100:first"},
            {LIST_CI, "r0:logits"},
            {LIST_CI, "ints:bf16:b2:g4:d96:page32:kv17:logits"},
            {LIST_CI, "normal:f32:b3:r3:g5:d128:kv70:logits"},
            {LIST_CI, "normal:f16:g4:d128:kv20000:top700:logits"}, /* two splits of lists */
            {LIST_CI, "normal:bf16:g1:page8:kv9000:logits"},       /* three splits, ragged */
            {LIST_CI, "normal:f16:hnd:b2:g64:d256:page8:kv300:logits"},
            {LIST_CI, "nasty:bf16:b2:g8:kv255:cap:logits"},
            {LIST_CI, "nasty:f32:nhd:b3:r5:g16:d80:page32:kv255:logits"},
            {LIST_CI, "normal:f16:halves:b3:g3:kv600:first"},
            {LIST_CI, "nasty:f16:halves:r33:tile32:g4:d128:page32:kv255"},
            {LIST_CI, "nasty:f16:apart:b3:r5:g3:kv600:top6"},
            {LIST_CI, "normal:bf16:apart:r33:tile32:g4:d128:kv600"},
            {LIST_CI, "normal:f32:apart:b2:g5:d80:page128:kv600:logits"},
            {LIST_CI, "nasty:f16:turned:b3:r5:g4:kv255:top6"},
            {LIST_CI, "normal:f32:turned:r5:tile7:g3:d80:page8:kv200:first"},
            {LIST_CI, "nasty:f16:spread:b3:g3:kv255:top6"},
            {LIST_CI, "normal:f16:page1:b3:r5:g4:kv255:top1"},
            {LIST_CI, "nasty:f16:nhd:page1:r33:tile32:g3:d128:kv255"},
            {LIST_CI, "nasty:f32:hnd:page2:b3:g5:kv255:first"},
            {LIST_CI, "normal:bf16:page4:r5:g16:kv600:top6"},
            {LIST_CI, "nasty:f16:page128:b3:r5:g4:kv3000:top6:first"},
            {LIST_CI, "normal:f16:nhd:page256:r33:tile32:g4:d128:kv3000"},
            {LIST_CI, "normal:f32:page256:b2:g20:d512:kv600:top1"},
            {LIST_CI, "nasty:bf16:b3:hkv3:g8:kv600:cap:logits"}, /* infinite keys */
            {LIST_CI, "normal:f16:b3:r3:g4:kv255:first:logits"},
            {LIST_CI, "nasty:f16:b3:r3:g4:kv255:first:logits"},
            {LIST_CI, "normal:f16:b3:r3:g4:kv255:top6:first:logits"},
            {LIST_CI, "nasty:f16:g4:page8:r4:kv600:top20:first:logits"},
            {LIST_CI, "normal:bf16:b2:r9:page8:kv300:first:logits"},
            {LIST_FULL, "normal:f16:hkv8:g4:d128:kv33000:logits"},
            {LIST_FULL, "normal:bf16:hkv1:g1:page64:kv70000"},
            {LIST_FULL, "normal:f16:hkv8:g4:d128:kv33000"},
            {LIST_OCLGRIND, "normal:f16:g3:kv40"},
            {LIST_OCLGRIND, "normal:k8v4:g3:kv40"},
            {LIST_OCLGRIND, "normal:q4:g3:kv40"},
            {LIST_OCLGRIND,
             "normal:f16:hkv1:g2:kv150"}, /* tiles of four pages, and a part of one */
            {LIST_OCLGRIND, "normal:bf16:hkv1:d128:kv150:top6"},
            {LIST_OCLGRIND, "nasty:bf16:hkv1:g2:page8:kv30:top2:first"},
            {LIST_OCLGRIND, "nasty:bf16:hkv1:g2:page8:kv30:top2:first:logits"},
            {LIST_OCLGRIND, "normal:f16:g3:kv40:logits"},
            {LIST_OCLGRIND, "normal:f16:hkv1:kv20:first:logits"},
            {LIST_OCLGRIND, "normal:f32:hkv1:r3:tile2:g2:kv20"},
            {LIST_OCLGRIND, "normal:f16:hkv1:page8:kv4100"}, /* two splits */
            {LIST_OCLGRIND, "nasty:f16:hkv1:r5:tile4:d128:kv20:first"},
            {LIST_OCLGRIND, "normal:bf16:nhd:hkv2:g3:d128:kv60:top3:cap"},
            {LIST_OCLGRIND, "normal:f16:apart:hkv2:g3:kv60:top3"},
            {LIST_OCLGRIND, "normal:f16:turned:hkv2:g3:page1:kv40"},
            {LIST_OCLGRIND, "normal:f32:hkv1:page128:kv150"},
            {LIST_BENCH, "f16:hkv32:d128:kv16384:even"},
            {LIST_BENCH, "q8:hkv32:d128:kv16384:even"},
            {LIST_BENCH, "f16:hkv8:g4:d128:kv32768:even"},
            {LIST_BENCH, "q8:hkv8:g4:d128:kv32768:even"},
            {LIST_BENCH, "k8v4:hkv32:d128:kv16384:even"},
            {LIST_BENCH, "q4:hkv32:d128:kv16384:even"},
            {LIST_BENCH, "k8v4:hkv8:g4:d128:kv32768:even"},
            {LIST_BENCH, "q4:hkv8:g4:d128:kv32768:even"},
            {LIST_BENCH, "f16:hkv8:g4:d128:kv32768:top128:even"},
            {LIST_BENCH, "q8:hkv8:g4:d128:kv32768:top128:even"},
            {LIST_BENCH, "f16:hkv8:g4:d128:kv32768:even:logits"},
            {LIST_BENCH, "f16:hkv4:d64:r512:tile32:kv4096:even"},
            {LIST_BENCH, "q8:hkv4:d64:r512:tile32:kv4096:even"},
            {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .cpu_form = check_lanes_cpu_form,
    .cpu_shapes = true,
    .gpu_form = true,
    .rows = check_lanes_rows,
    .settle = settle,
    .again_name = "all pages by list against no lists",
    .again = again,
    .rows_alone = true,
    .tiles_apart = true,
    .bytes = bytes,
};

/* ---- observed_attend: as attend and observe one by one ----------------------------------------- */

static uint64_t weight_stride(const check_data *data) {
    return check_get(data, KEY_SCORE) ? 0 : logit_stride(data);
}

/* Logits of pages that are not listed are -inf, as a caller leaves them. */
static void make_observed(check_data *data) {
    const check_lanes *l = &data->lanes;
    make(data);
    float *logits = check_init(data, BUF_LOGITS);
    if (!l->n_rows) return;
    data->buf[BUF_LOGITS].role = ROLE_UPDATE;
    for (uint64_t i = 0; i < data->buf[BUF_LOGITS].count; i++)
        logits[i] = -INFINITY;
    int32_t *spans = check_buffer_add(data, BUF_TO, ROLE_INPUT, CHECK_I32, 2ull * l->n_rows);
    for (uint32_t i = 0; i < l->n_rows; i++) {
        spans[2 * i] = (int32_t)i;
        spans[2 * i + 1] = 1;
    }
    const uint64_t count = weight_stride(data)
                               ? (uint64_t)l->n_rows * l->n_kv_heads * weight_stride(data)
                               : (uint64_t)l->n_pages * l->kv.page_size;
    float *values = check_buffer_add(data, BUF_SCORES, ROLE_UPDATE, TAMIS_F32, count);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_SCORES);
    for (uint64_t i = 0; i < count; i++)
        values[i] = (float)fabs(check_finite(&rng, FILL_NORMAL));
}

static tms_observed_attend observed_params(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const tms_attend a = params(side, rows, check_get(data, KEY_TOP) != 0);
    const uint64_t lane = (uint64_t)rows.first * data->lanes.n_kv_heads;
    const tms_observe o = {
        .kv = a.kv,
        .batch = a.batch,
        .n_items = rows.count,
        .max_span = 1,
        .spans = check_ref(side, BUF_TO, 0),
        .q = a.q,
        .lse = a.lse,
        .lse_stride = a.batch.n_heads,
        .logit = a.logit,
        .logits = a.logits,
        .logit_stride = a.logit_stride,
        .group = (tamis_group_rule)check_get(data, KEY_RULE),
        .accumulate = check_get(data, KEY_ACC),
        .values = {check_ref(side, BUF_SCORES, lane * weight_stride(data)), weight_stride(data)},
    };
    return (tms_observed_attend){a, o};
}

static tamis_status launch_observed(check_side *side, check_rows rows) {
    const tms_observed_attend p = observed_params(side, rows);
    return tms_run_observed_attend(side->dev, &p, &side->error);
}

static const char *observed_refusal(check_side *side) {
    const tms_observed_attend p = observed_params(side, (check_rows){0, side->data->lanes.n_rows});
    return tms_observed_attend_refusal(side->dev, &p);
}

static tamis_status observe_apart(check_side *side) {
    const tms_observed_attend p = observed_params(side, (check_rows){0, side->data->lanes.n_rows});
    const tamis_status status = tms_run_attend(side->dev, &p.attend, &side->error);
    return status == TAMIS_OK ? tms_run_observe(side->dev, &p.observe, &side->error) : status;
}

static bool judge_observed(check_side *side, char *why, size_t why_size) {
    return check_same_apart(side, observe_apart, why, why_size);
}

static const char *reject_observed(const check_case *c) {
    if (c->v[KEY_SCORE] && (c->v[KEY_R] > 1 || c->v[KEY_LAYOUT] != LAYOUT_OWN))
        return "a plane goes with layout own and one row a sequence";
    return reject(c);
}

const check_op check_op_observed_attend = {
    .name = "observed_attend",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_TILE, 1},
                                        {KEY_HKV, 2},
                                        {KEY_G, 1},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 200},
                                        {KEY_TOP, 0},
                                        {KEY_RULE, TAMIS_GROUP_SUM},
                                        {KEY_PAD, 0},
                                        {KEY_EVEN, 0},
                                        {KEY_ORDERED, 0},
                                        {KEY_FIRST, 0},
                                        {KEY_CAP, 0},
                                        {KEY_SINK, 0},
                                        {KEY_LOGITS, 1},
                                        {KEY_NOLSE, 0},
                                        {KEY_SAME, 0},
                                        {KEY_SCORE, 0},
                                        {KEY_ACC, 0},
                                        {KEY_COUNT, 0}},
    .factors =
        (const check_factor[]){{KEY_G, 4, {1, 3, 4, 8}},
                               {KEY_D, 2, {64, 128}},
                               CHECK_DTYPES,
                               CHECK_FILLS,
                               CHECK_LAYOUTS,
                               {KEY_B, 2, {1, 3}},
                               {KEY_R, 2, {1, 3}},
                               {KEY_HKV, 2, {1, 3}},
                               {KEY_KV, 4, {1, 17, 255, 3000}},
                               {KEY_TOP, 2, {0, 6}},
                               {KEY_RULE, 3, {TAMIS_GROUP_MAX, TAMIS_GROUP_MEAN, TAMIS_GROUP_SUM}},
                               {KEY_FIRST, 2, {0, 1}},
                               {KEY_CAP, 2, {0, 1}},
                               {KEY_SCORE, 2, {0, 1}},
                               {KEY_ACC, 2, {0, 1}},
                               {KEY_COUNT, 0, {0}}},
    .compiled = (const check_key[]){KEY_G, KEY_D, KEY_DTYPE, KEY_CAP, KEY_FIRST, KEY_COUNT},
    .entries = (const check_entry[]){{LIST_SMOKE, "normal:f16:b2:g4:kv600:score:acc"}, /* H2O */
                                     {LIST_SMOKE, "nasty:f16:b2:g4:kv300:score:acc"},
                                     {LIST_SMOKE, "normal:f16:b2:g4:top5:mean"},
                                     {LIST_SMOKE, "nasty:f16:b2:r3:g4:kv300:first:max"},
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "normal:f16:hkv1:g3:kv8192:even:score:acc"},
                                     {LIST_CI, "normal:f16:b4:hkv3:g3:kv3000:score:acc"},
                                     {LIST_CI, "nasty:q8:hkv1:g3:kv3000:score:acc"},
                                     {LIST_OCLGRIND, "normal:f16:g3:kv40:score:acc"},
                                     {LIST_OCLGRIND, "nasty:f16:hkv1:g2:kv30:top1:mean"},
                                     {LIST_BENCH, "f16:hkv3:g3:kv512:even:score:acc"},
                                     {LIST_BENCH, "f16:hkv8:g4:d128:kv6553:even:score:acc"},
                                     {0, NULL}},
    .reject = reject_observed,
    .make = make_observed,
    .oracle = check_no_oracle,
    .launch = launch_observed,
    .rows = check_lanes_rows,
    .refusal = observed_refusal,
    .cpu_shapes = true,
    .judge = judge_observed,
    .again_name = "attend and observe against the fused one",
    .again = observe_apart,
    .rows_alone = true,
    .bytes = bytes,
};
