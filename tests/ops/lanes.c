/* SPDX-License-Identifier: Apache-2.0 */
/* Paged lanes of a case: layout, page lists, lengths, rows with what they see, K, V and bounds. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define POOL_ROWS   1024u        /* K and V rows of large cases are drawn from so many */
#define POOL_BEYOND (1ull << 22) /* elements of K and V from which a case is large */

const char *check_lanes_reject(const check_case *c) {
    const uint32_t page = c->v[KEY_PAGE];
    if (c->v[KEY_LAYOUT] >= LAYOUT_HALVES) return "K and V apart, which only ops that read take";
    if (page != 8 && page != 16 && page != 32 && page != 64)
        return "page size is not 8, 16, 32 or 64";
    return check_read_reject(c);
}

const char *check_read_reject(const check_case *c) {
    const uint32_t *v = c->v, page = v[KEY_PAGE];
    if (!tms_head_dim_known(v[KEY_D])) return "head dim (d) is none of " TMS_HEAD_DIM_WORDS;
    if (page == 0 || page > TMS_MOST_PAGE || page & (page - 1))
        return "page size is no power of two up to 256";
    if (tms_has_blocks((tamis_dtype)v[KEY_DTYPE]) &&
        (v[KEY_LAYOUT] >= LAYOUT_HALVES || page < 8 || page > 64))
        return "rows with blocks as the cache does not have them";
    if (v[KEY_B] < 1 || v[KEY_HKV] < 1 || v[KEY_KV] < 1) return "b, hkv and kv are at least 1";
    if (v[KEY_G] > TMS_MOST_GROUP) return "more than 64 query heads a KV head";
    if (v[KEY_TILE] > TMS_TILE_ROWS) return "a tile has more than 32 rows";
    if (tms_has_blocks((tamis_dtype)v[KEY_DTYPE]) && v[KEY_LAYOUT] == LAYOUT_NHD)
        return "rows with blocks do not lie one behind another";
    if (v[KEY_DTYPE] == TAMIS_K8V4 && v[KEY_LAYOUT] != LAYOUT_OWN)
        return "k8v4, whose K and V differ in size, in another layout than the cache's own";
    return NULL;
}

const char *check_planes_reject(const check_case *c) {
    if ((c->v[KEY_POS] || c->v[KEY_SCORE]) && c->v[KEY_LAYOUT] != LAYOUT_OWN && c->v[KEY_HKV] > 1)
        return "planes beside pages that several heads share";
    return check_lanes_reject(c);
}

bool check_lanes_cpu_form(const check_case *c) {
    const uint32_t dim = c->v[KEY_D];
    return (dim == 64 || dim == 128 || dim == 512) && c->v[KEY_PAGE] == 16 && c->v[KEY_G] <= 16 &&
           c->v[KEY_LAYOUT] < LAYOUT_TURNED;
}

uint32_t check_page_id(const check_data *data, uint32_t seq, uint32_t head, uint32_t ordinal) {
    const int32_t *table = check_init(data, BUF_TABLE);
    const check_lanes *l = &data->lanes;
    return (uint32_t)table[seq * l->seq_stride + head * l->head_stride + ordinal];
}

uint64_t check_key_row(const check_data *data, uint32_t page, uint32_t head, uint32_t slot) {
    const tms_kv *kv = &data->lanes.kv;
    return page * kv->page_stride + head * kv->head_stride + slot * kv->slot_stride;
}

uint64_t check_lane_row(const check_data *data, uint32_t lane, uint32_t slot) {
    const uint32_t head = lane % data->lanes.n_kv_heads, size = data->lanes.kv.page_size;
    const uint32_t page = check_page_id(data, lane / data->lanes.n_kv_heads, head, slot / size);
    return check_key_row(data, page, head, slot % size);
}

uint32_t check_row_seq(const check_data *data, uint32_t row) {
    return (uint32_t)((int32_t *)check_init(data, BUF_ROW_SEQ))[row];
}

uint32_t check_visible(const check_data *data, uint32_t row, uint32_t head) {
    const int32_t *visible = check_init(data, BUF_VISIBLE);
    return (uint32_t)visible[row * data->lanes.n_kv_heads + head];
}

uint32_t check_first(const check_data *data, uint32_t row, uint32_t head) {
    const int32_t *first = check_init(data, BUF_FIRST);
    const uint32_t visible = check_visible(data, row, head);
    if (!first) return 0;
    const uint32_t slot = (uint32_t)first[row * data->lanes.n_kv_heads + head];
    return slot < visible ? slot : visible;
}

uint64_t check_owners(const check_data *data) {
    return (uint64_t)data->lanes.n_rows * data->lanes.n_kv_heads;
}

uint32_t check_owner_visible(const check_data *data, uint64_t owner) {
    const uint32_t heads = data->lanes.n_kv_heads;
    return check_visible(data, (uint32_t)(owner / heads), (uint32_t)(owner % heads));
}

uint64_t check_all_visible(const check_data *data) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < check_owners(data); i++)
        n += check_owner_visible(data, i);
    return n;
}

uint32_t check_lanes_rows(const check_data *data) {
    return data->lanes.n_rows;
}

void check_poison_slot(check_data *data, uint32_t page, uint32_t head, uint32_t slot) {
    const tms_kv *kv = &data->lanes.kv;
    const uint64_t row = check_key_row(data, page, head, slot);
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        check_store(kv->dtype, check_init(data, BUF_KV), row + d, NAN);
        check_store(kv->dtype, check_init(data, BUF_KV), row + kv->value_offset + d, NAN);
    }
}

static void set_layout(check_data *data) {
    check_lanes *l = &data->lanes;
    tms_kv *kv = &l->kv;
    const uint64_t d = kv->head_dim, s = kv->page_size, h = l->n_kv_heads;
    switch ((check_layout)check_get(data, KEY_LAYOUT)) {
    case LAYOUT_OWN:
        *kv = (tms_kv){.page_stride = 2 * s * d, .slot_stride = d, .value_offset = s * d};
        kv->bounds_page_stride = 2 * d;
        break;
    case LAYOUT_HALVES:
    case LAYOUT_APART:
    case LAYOUT_TURNED:
    case LAYOUT_SPREAD: /* on the host; on a device as apart.c says */
    case LAYOUT_NHD:    /* [page][K, V][slot][head][dim] */
        *kv = (tms_kv){.page_stride = 2 * s * h * d, .head_stride = d, .slot_stride = h * d};
        kv->value_offset = s * h * d;
        break;
    case LAYOUT_HND: /* [K, V][page][head][slot][dim] */
        *kv = (tms_kv){.page_stride = h * s * d, .head_stride = s * d, .slot_stride = d};
        kv->value_offset = l->n_pages * h * s * d;
        break;
    }
    if (kv->head_stride) {
        kv->bounds_page_stride = h * 2 * d;
        kv->bounds_head_stride = 2 * d;
    }
    const tamis_dtype dtype = (tamis_dtype)check_get(data, KEY_DTYPE);
    kv->dtype = tms_has_blocks(dtype) ? TAMIS_F32 : dtype;
    kv->bounds_dtype = check_get(data, KEY_Q8BOUNDS) ? TAMIS_F32 : kv->dtype;
    kv->page_size = (uint32_t)s;
    kv->head_dim = (uint32_t)d;
}

/* Ids go out in random order; the last one is a page of NaN, to which unused entries point. */
static void make_table(check_data *data) {
    check_lanes *l = &data->lanes;
    const bool own = check_get(data, KEY_LAYOUT) == LAYOUT_OWN;
    const uint32_t lists = l->n_seqs * (own ? l->n_kv_heads : 1);
    l->head_stride = own ? l->lane_pages : 0;
    l->seq_stride = (uint64_t)l->lane_pages * (own ? l->n_kv_heads : 1);
    l->n_pages = lists * l->lane_pages + 1;
    int32_t *table =
        check_buffer_add(data, BUF_TABLE, ROLE_INPUT, CHECK_I32, (uint64_t)lists * l->lane_pages);
    uint32_t *ids = check_alloc(l->n_pages * sizeof *ids);
    for (uint32_t i = 0; i < l->n_pages; i++)
        ids[i] = i;
    check_rng rng = check_rng_make(data->seed, data->c, BUF_TABLE);
    if (!check_get(data, KEY_ORDERED)) check_shuffle(&rng, ids, l->n_pages - 1);
    for (uint32_t i = 0; i < lists * l->lane_pages; i++)
        table[i] = (int32_t)ids[i];
    free(ids);
}

/* Lanes are ragged unless asked otherwise; nasty ones are empty or hold one token, too. */
static void make_lengths(check_data *data) {
    check_lanes *l = &data->lanes;
    const uint32_t kv = check_get(data, KEY_KV), n = l->n_seqs * l->n_kv_heads;
    check_rng rng = check_rng_make(data->seed, data->c, BUF_VISIBLE);
    l->length = check_alloc(n * sizeof *l->length);
    for (uint32_t i = 0; i < n; i++) {
        l->length[i] = kv;
        if (check_get(data, KEY_EVEN) || i == 0) continue;
        l->length[i] = check_below(&rng, kv) + 1;
        const uint32_t kind = check_below(&rng, 4);
        if (check_get(data, KEY_FILL) == FILL_NASTY && kind < 2) l->length[i] = kind;
    }
    for (uint32_t b = 0; b < l->n_seqs; b++) {
        for (uint32_t i = 0; i < l->lane_pages && l->head_stride; i++)
            for (uint32_t h = 0; h < l->n_kv_heads; h++)
                if (i * l->kv.page_size >= l->length[b * l->n_kv_heads + h])
                    ((int32_t *)check_init(data,
                                           BUF_TABLE))[b * l->seq_stride + h * l->head_stride + i] =
                        (int32_t)l->n_pages - 1;
    }
}

/* Rows of a sequence are adjacent and end at the lane's last token; sequences go backwards. */
static void make_rows(check_data *data) {
    check_lanes *l = &data->lanes;
    const uint32_t r = check_get(data, KEY_R);
    const uint32_t tile = check_get(data, KEY_TILE) ? check_get(data, KEY_TILE) : 1;
    const uint32_t tiles_each = (r + tile - 1) / tile;
    l->n_rows = l->n_seqs * r;
    l->n_tiles = l->n_seqs * tiles_each;
    l->max_tile_rows = r < tile ? r : tile;
    if (!l->n_rows) return;
    int32_t *tiles = check_buffer_add(data, BUF_TILES, ROLE_INPUT, CHECK_I32, 2 * l->n_tiles);
    int32_t *alone = check_buffer_add(data, BUF_ALONE, ROLE_INPUT, CHECK_I32, 2);
    int32_t *seq = check_buffer_add(data, BUF_ROW_SEQ, ROLE_INPUT, CHECK_I32, l->n_rows);
    int32_t *visible = check_buffer_add(data, BUF_VISIBLE, ROLE_INPUT, CHECK_I32,
                                        (uint64_t)l->n_rows * l->n_kv_heads);
    alone[1] = 1;
    for (uint32_t t = 0; t < l->n_tiles; t++) {
        uint32_t begin = t % tiles_each * tile;
        tiles[2 * t] = (int32_t)(t / tiles_each * r + begin);
        tiles[2 * t + 1] = (int32_t)(r - begin < tile ? r - begin : tile);
    }
    for (uint32_t row = 0; row < l->n_rows; row++) {
        seq[row] = (int32_t)(l->n_seqs - 1 - row / r);
        uint32_t hidden = r - 1 - row % r;
        for (uint32_t h = 0; h < l->n_kv_heads; h++) {
            uint32_t length = l->length[(uint32_t)seq[row] * l->n_kv_heads + h];
            visible[row * l->n_kv_heads + h] = length > hidden ? (int32_t)(length - hidden) : 0;
        }
    }
}

/* Anything up to the last slot, for most; of eight one sees nothing, one all. */
static void make_first(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint64_t n = (uint64_t)l->n_rows * l->n_kv_heads;
    int32_t *first = check_buffer_add(data, BUF_FIRST, ROLE_INPUT, CHECK_I32, n ? n : 1);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_FIRST);
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t visible = check_owner_visible(data, i), kind = check_below(&rng, 8);
        first[i] = (int32_t)(kind == 0   ? 0
                             : kind == 1 ? visible + check_below(&rng, 3)
                                         : check_below(&rng, visible + 1));
    }
}

static void fill_row(check_data *data, uint64_t at, check_rng *rng, const char *pool) {
    const tms_kv *kv = &data->lanes.kv;
    char *to = check_init(data, BUF_KV);
    const size_t size = check_type_size(kv->dtype), bytes = kv->head_dim * size;
    if (pool) {
        memcpy(to + at * size, pool + check_below(rng, POOL_ROWS) * bytes, bytes);
        return;
    }
    for (uint32_t d = 0; d < kv->head_dim; d++)
        check_store(kv->dtype, to, at + d,
                    check_finite(rng, (check_fill)check_get(data, KEY_FILL)));
}

static char *make_pool(const check_data *data, check_rng *rng) {
    const tms_kv *kv = &data->lanes.kv;
    char *pool = check_alloc((uint64_t)POOL_ROWS * kv->head_dim * check_type_size(kv->dtype));
    for (uint32_t i = 0; i < POOL_ROWS * kv->head_dim; i++)
        check_store(kv->dtype, pool, i, check_finite(rng, (check_fill)check_get(data, KEY_FILL)));
    return pool;
}

static void fill_lanes(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_rng rng = check_rng_make(data->seed, data->c, BUF_KV);
    char *pool = data->buf[BUF_KV].count > POOL_BEYOND ? make_pool(data, &rng) : NULL;
    for (uint32_t lane = 0; lane < l->n_seqs * l->n_kv_heads; lane++) {
        for (uint32_t s = 0; s < l->length[lane]; s++) {
            const uint64_t row = check_lane_row(data, lane, s);
            fill_row(data, row, &rng, pool);
            fill_row(data, row + l->kv.value_offset, &rng, pool);
        }
    }
    free(pool);
}

void check_lanes_make(check_data *data, check_role kv_role) {
    check_lanes *l = &data->lanes;
    l->n_seqs = check_get(data, KEY_B);
    l->n_kv_heads = check_get(data, KEY_HKV);
    l->group = check_get(data, KEY_G) ? check_get(data, KEY_G) : 1;
    l->kv.page_size = check_get(data, KEY_PAGE);
    l->kv.head_dim = check_get(data, KEY_D);
    l->lane_pages = (check_get(data, KEY_KV) + l->kv.page_size - 1) / l->kv.page_size + 1;
    make_table(data);
    set_layout(data);
    make_lengths(data);
    make_rows(data);
    if (check_get(data, KEY_FIRST)) make_first(data);
    if (kv_role == ROLE_ABSENT) return;
    const uint64_t values = l->kv.value_offset == l->n_pages * l->kv.page_stride ? 2 : 1;
    const uint64_t count = values * l->n_pages * l->kv.page_stride;
    check_buffer_add(data, BUF_KV, ROLE_OUTPUT, l->kv.dtype, count); /* preset: NaN */
    data->buf[BUF_KV].role = kv_role;
    fill_lanes(data);
}

void check_bounds_page(const check_data *data, void *bounds, uint32_t page, uint32_t head) {
    const tms_kv *kv = &data->lanes.kv;
    const uint64_t at = page * kv->bounds_page_stride + head * kv->bounds_head_stride;
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        double lo = INFINITY, hi = -INFINITY;
        for (uint32_t s = 0; s < kv->page_size; s++) {
            uint64_t row = check_key_row(data, page, head, s);
            double key = check_load(kv->dtype, check_init(data, BUF_KV), row + d);
            if (isnan(key) || isnan(lo)) {
                lo = hi = NAN;
                continue;
            }
            lo = key < lo ? key : lo;
            hi = key > hi ? key : hi;
        }
        check_store(kv->bounds_dtype, bounds, at + d, lo);
        check_store(kv->bounds_dtype, bounds, at + kv->head_dim + d, hi);
    }
}

void check_bounds_make(check_data *data, check_role role) {
    const check_lanes *l = &data->lanes;
    void *bounds = check_buffer_add(data, BUF_BOUNDS, ROLE_OUTPUT, l->kv.bounds_dtype,
                                    l->n_pages * l->kv.bounds_page_stride);
    data->buf[BUF_BOUNDS].role = role;
    if (role != ROLE_INPUT) return;
    for (uint32_t b = 0; b < l->n_seqs; b++)
        for (uint32_t h = 0; h < l->n_kv_heads; h++)
            for (uint32_t i = 0; i < l->length[b * l->n_kv_heads + h] / l->kv.page_size; i++)
                check_bounds_page(data, bounds, check_page_id(data, b, h, i), h);
}

void check_lanes_slots(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint32_t each = check_get(data, KEY_R), n = l->n_rows * l->n_kv_heads;
    int32_t *slots = check_buffer_add(data, BUF_SLOTS, ROLE_INPUT, CHECK_I32, n);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_SLOTS);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t row = i / l->n_kv_heads, head = i % l->n_kv_heads, r = row % each;
        const uint32_t length = l->length[check_row_seq(data, row) * l->n_kv_heads + head];
        const bool skipped = check_below(&rng, 8) == 0;
        slots[i] = skipped || r >= length ? -1 : (int32_t)((5 * head + 11 + r) % length);
    }
}
