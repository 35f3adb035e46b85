/* SPDX-License-Identifier: Apache-2.0 */
/* q8, k8v4 and q4 (tamis_dtype) in double arithmetic, apart from what backends do. A case's K, V
 * and bounds are f32 on the host; on a device they are bytes in the layout of tms_kv. What a case
 * is made of, and what its oracle says, goes through these bytes once, so that the host holds what
 * they can hold. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 32u

typedef enum rounding { NEAREST, DOWN, UP } rounding;

bool check_has_scales(const check_data *data, check_id id) {
    const bool all = tms_has_blocks((tamis_dtype)check_get(data, KEY_DTYPE));
    return (id == BUF_KV && all) || (id == BUF_BOUNDS && (all || check_get(data, KEY_Q8BOUNDS)));
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

static double widen(uint16_t f16) {
    return check_load(TAMIS_F16, &f16, 0);
}

#define NO_F16 0x7e00 /* NaN */

/* The smallest f16 d with steps·d >= most. */
static uint16_t scale_of(double most, double steps) {
    uint16_t low = 0, high = 0x7bff;
    if (!(most <= steps * 65504)) return NO_F16;
    if (most < ldexp(1, -126)) return 0;
    while (low < high) {
        const uint16_t middle = (uint16_t)((low + high) / 2);
        if (steps * widen(middle) >= most)
            high = middle;
        else
            low = (uint16_t)(middle + 1);
    }
    return low;
}

/* The largest f16 that is not above x. */
static uint16_t minimum_of(double x) {
    uint16_t h = 0x7bff;
    if (!(x >= -65504)) return NO_F16;
    if (fabs(x) < ldexp(1, -126)) return 0;
    if (x < 0) { /* the smallest magnitude that is not below |x| */
        h = scale_of(-x, 1);
        return (uint16_t)(0x8000 | h);
    }
    while (widen(h) > x)
        h--;
    return h;
}

static double most_of(const float *x, uint32_t n, double most) {
    for (uint32_t i = 0; i < n; i++)
        most = isnan(x[i]) || isnan(most) ? NAN : fmax(most, fabs(x[i]));
    return most;
}

static void encode(const float *x, uint32_t n, uint16_t scale, rounding way, int8_t *out) {
    const double d = widen(scale);
    for (uint32_t i = 0; i < n; i++) {
        const double q = x[i] / d;
        if (!(d > 0))
            out[i] = 0;
        else
            out[i] = (int8_t)(way == NEAREST ? nearbyint(q) : way == DOWN ? floor(q) : ceil(q));
    }
}

/* Elements that nobody has written keep the preset, so that they can be told from a NaN. */
static bool is_preset(const void *bytes, uint64_t n) {
    const uint32_t word = CHECK_PRESET;
    for (uint64_t i = 0; i < n; i++)
        if (((const unsigned char *)bytes)[i] != ((const unsigned char *)&word)[i % 4])
            return false;
    return true;
}

static void decode(const int8_t *q, uint32_t n, const uint16_t *scale, float *out) {
    const double d = widen(*scale);
    if (is_preset(q, n) && is_preset(scale, 2))
        check_preset(out, n * sizeof *out);
    else
        for (uint32_t i = 0; i < n; i++)
            out[i] = (float)(d * q[i]);
}

/* ---- Rows of 4 bits -------------------------------------------------------------------------- */

#define HALF_BLOCK 16u /* bytes of a block */

/* A block of n channels; `of`: its minimum and its scale. */
static void encode_4(const float *x, uint32_t n, unsigned char *out, uint16_t *of) {
    double low = INFINITY, most = 0, d;
    float above[BLOCK];
    for (uint32_t i = 0; i < n; i++)
        low = isnan(x[i]) || isnan(low) ? NAN : fmin(low, x[i]);
    of[0] = minimum_of(low);
    for (uint32_t i = 0; i < n; i++)
        above[i] = (float)(x[i] - widen(of[0]));
    of[1] = scale_of(most_of(above, n, most), 15);
    d = widen(of[1]);
    if (isnan(d)) of[0] = of[1];
    memset(out, 0, HALF_BLOCK);
    for (uint32_t i = 0; i < n && d > 0; i++)
        out[i % HALF_BLOCK] |=
            (unsigned char)((unsigned)nearbyint(above[i] / d) << (i < HALF_BLOCK ? 0 : 4));
}

static void decode_4(const unsigned char *in, uint32_t n, const uint16_t *of, float *out) {
    if (is_preset(in, HALF_BLOCK) && is_preset(of, 4))
        check_preset(out, n * sizeof *out);
    else if (isnan(widen(of[0])) != isnan(widen(of[1]))) /* either both are or none is */
        for (uint32_t i = 0; i < n; i++)
            out[i] = INFINITY;
    else
        for (uint32_t i = 0; i < n; i++) {
            const unsigned byte = in[i % HALF_BLOCK];
            out[i] =
                (float)(widen(of[0]) + widen(of[1]) * (i < HALF_BLOCK ? byte & 15 : byte >> 4));
        }
}

/* ---- Rows and pairs -------------------------------------------------------------------------- */

/* A buffer with blocks is a list of pieces: K or V of a page, or pairs of bounds. */
typedef struct pieces {
    uint32_t dim, blocks, rows; /* rows that a piece has; of bounds 2, which share scales */
    uint64_t n, floats;         /* pieces; elements of one */
    /* Of K and of V, whose pieces alternate: bytes on a device, and whether rows have 4 bits. */
    uint64_t bytes[2];
    bool four[2];
    bool pairs;
    rounding low, high;
} pieces;

static pieces pieces_of(const check_data *data, check_id id) {
    const tms_kv *kv = &data->lanes.kv;
    pieces p = {.dim = kv->head_dim, .blocks = (kv->head_dim + BLOCK - 1) / BLOCK};
    p.pairs = id == BUF_BOUNDS;
    p.rows = p.pairs ? 2 : kv->page_size;
    p.floats = (uint64_t)p.rows * p.dim;
    const tamis_dtype dtype = (tamis_dtype)check_get(data, KEY_DTYPE);
    p.four[0] = !p.pairs && dtype == TAMIS_Q4;
    p.four[1] = !p.pairs && (dtype == TAMIS_Q4 || dtype == TAMIS_K8V4);
    p.bytes[0] =
        p.pairs ? tms_bounds_pair(TAMIS_Q8, p.dim) : tms_keys_size(dtype, kv->page_size, p.dim);
    p.bytes[1] = p.pairs ? p.bytes[0] : tms_values_size(dtype, kv->page_size, p.dim);
    p.n = data->buf[id].count / p.floats;
    if (p.pairs && check_get(data, KEY_KIND) != TAMIS_BOUNDS_MEAN) p.low = DOWN, p.high = UP;
    return p;
}

static uint32_t length_of(const pieces *p, uint32_t block) {
    return p->dim - block * BLOCK < BLOCK ? p->dim - block * BLOCK : BLOCK;
}

/* Where a piece lies on a device. */
static uint64_t place_of(const pieces *p, uint64_t piece) {
    return piece / 2 * (p->bytes[0] + p->bytes[1]) + piece % 2 * p->bytes[0];
}

/* A block's bytes in a piece of rows of 4 bits, and its minimum and scale. */
static unsigned char *nibbles_at(const pieces *p, unsigned char *piece, uint32_t row,
                                 uint32_t block) {
    return piece + ((uint64_t)row * p->blocks + block) * HALF_BLOCK;
}
static uint16_t *numbers_at(const pieces *p, unsigned char *piece, uint32_t row, uint32_t block) {
    return (uint16_t *)(void *)(nibbles_at(p, piece, p->rows, 0) + (row * p->blocks + block) * 4);
}

/* The scale of a row's block in a piece. */
static uint16_t *scale_at(const pieces *p, unsigned char *piece, uint32_t row, uint32_t block) {
    const uint64_t first = p->floats + 2ull * (p->pairs ? 0 : row) * p->blocks;
    return (uint16_t *)(void *)(piece + first + 2 * block);
}

static void encode_block(const pieces *p, const float *x, unsigned char *piece, bool four,
                         uint32_t row, uint32_t block) {
    const uint32_t n = length_of(p, block), at = row * p->dim + block * BLOCK;
    if (is_preset(x + at, n * sizeof *x)) return; /* the piece is preset */
    if (four) {
        encode_4(x + at, n, nibbles_at(p, piece, row, block), numbers_at(p, piece, row, block));
        return;
    }
    uint16_t *scale = scale_at(p, piece, row, block);
    int8_t *q = (int8_t *)piece + at;
    double most = most_of(x + at, n, 0);
    if (p->pairs) most = most_of(x + (1 - row) * p->dim + block * BLOCK, n, most);
    *scale = scale_of(most, 127);
    encode(x + at, n, *scale, !p->pairs ? NEAREST : row ? p->high : p->low, q);
}

uint64_t check_quantised_bytes(const check_data *data, check_id id) {
    const pieces p = pieces_of(data, id);
    return place_of(&p, p.n);
}

void check_quantised_encode(const check_data *data, check_id id, const void *from, void *to) {
    const pieces p = pieces_of(data, id);
    for (uint64_t i = 0; i < p.n; i++) {
        unsigned char *piece = (unsigned char *)to + place_of(&p, i);
        check_preset(piece, p.bytes[i % 2]);
        for (uint32_t row = 0; row < p.rows; row++)
            for (uint32_t block = 0; block < p.blocks; block++)
                encode_block(&p, (const float *)from + i * p.floats, piece, p.four[i % 2], row,
                             block);
    }
}

void check_quantised_decode(const check_data *data, check_id id, const void *from, void *to) {
    const pieces p = pieces_of(data, id);
    for (uint64_t i = 0; i < p.n; i++)
        for (uint32_t row = 0; row < p.rows; row++)
            for (uint32_t block = 0; block < p.blocks; block++) {
                unsigned char *piece = (unsigned char *)(uintptr_t)from + place_of(&p, i);
                const uint32_t at = row * p.dim + block * BLOCK, n = length_of(&p, block);
                float *out = (float *)to + i * p.floats + at;
                if (p.four[i % 2])
                    decode_4(nibbles_at(&p, piece, row, block), n,
                             numbers_at(&p, piece, row, block), out);
                else
                    decode((const int8_t *)piece + at, n, scale_at(&p, piece, row, block), out);
            }
}

/* ---- A case's arrays ------------------------------------------------------------------------- */

static void through(const check_data *data, check_id id, void *array) {
    unsigned char *bytes = check_alloc(check_quantised_bytes(data, id));
    check_quantised_encode(data, id, array, bytes);
    check_quantised_decode(data, id, bytes, array);
    free(bytes);
}

/* Where a block may have been rounded otherwise: to the next integer, of a scale one place away. */
static void allow(const check_data *data, check_id id) {
    const pieces p = pieces_of(data, id);
    const check_buffer *b = &data->buf[id];
    for (uint64_t at = 0; at < p.n * p.floats; at++) {
        const uint64_t row = at / p.dim * p.dim, first = row + (at - row) / BLOCK * BLOCK;
        const uint64_t end = first + BLOCK < row + p.dim ? first + BLOCK : row + p.dim;
        double most = 0, slack = 0;
        if (at != first) continue;
        for (uint64_t i = first; i < end; i++) {
            /* Of bounds the other row, whose scale is the same. */
            const uint64_t other = p.pairs ? (row / p.dim % 2 ? i - p.dim : i + p.dim) : i;
            most = fmax(most, fmax(fabs(((float *)b->want)[i]), fabs(((float *)b->want)[other])));
            slack = fmax(slack, fmax(b->tolerance[i], b->tolerance[other]));
        }
        for (uint64_t i = first; slack > 0 && isfinite(most) && i < end; i++)
            b->tolerance[i] += 1.01 * (most / 127 + ldexp(1, -24)) + ldexp(most, -10);
    }
}

void check_quantised_settle(check_data *data, bool want) {
    const check_id ids[] = {BUF_KV, BUF_BOUNDS};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const check_buffer *b = &data->buf[ids[i]];
        if (b->role == ROLE_ABSENT || !check_has_scales(data, ids[i])) continue;
        if (!want)
            through(data, ids[i], b->init);
        else if (b->want)
            through(data, ids[i], b->want);
        if (want && b->want && b->tolerance) allow(data, ids[i]);
    }
}

tms_kv check_quantised_kv(const check_data *data) {
    tms_kv kv = data->lanes.kv;
    const uint64_t half = (uint64_t)kv.page_size * kv.head_dim, pair = 2ull * kv.head_dim;
    const tamis_dtype dtype = (tamis_dtype)check_get(data, KEY_DTYPE);
    const uint64_t keys = tms_keys_size(dtype, kv.page_size, kv.head_dim);
    const uint64_t values = tms_values_size(dtype, kv.page_size, kv.head_dim);
    const uint64_t pair_bytes = tms_bounds_pair(TAMIS_Q8, kv.head_dim);
    if (check_has_scales(data, BUF_KV)) {
        kv.dtype = dtype; /* where K and V differ in size, a page's V follows its K */
        kv.page_stride = kv.page_stride / half * (keys + values) / 2;
        kv.head_stride = kv.head_stride / half * keys;
        kv.value_offset = kv.value_offset / half * keys;
    }
    if (check_has_scales(data, BUF_BOUNDS)) {
        kv.bounds_dtype = TAMIS_Q8;
        kv.bounds_page_stride = kv.bounds_page_stride / pair * pair_bytes;
        kv.bounds_head_stride = kv.bounds_head_stride / pair * pair_bytes;
    }
    return kv;
}

uint64_t check_key_bytes(const check_data *data) {
    const tms_kv *kv = &data->lanes.kv;
    const tamis_dtype dtype = (tamis_dtype)check_get(data, KEY_DTYPE);
    return tms_key_bytes(dtype, 1, kv->head_dim);
}

uint64_t check_value_bytes(const check_data *data) {
    const tms_kv *kv = &data->lanes.kv;
    const tamis_dtype dtype = (tamis_dtype)check_get(data, KEY_DTYPE);
    return tms_value_bytes(dtype, 1, kv->head_dim);
}

uint64_t check_pair_bytes(const check_data *data) {
    const tms_kv *kv = &data->lanes.kv;
    if (!check_has_scales(data, BUF_BOUNDS))
        return 2 * kv->head_dim * check_type_size(kv->bounds_dtype);
    return tms_bounds_pair(TAMIS_Q8, kv->head_dim);
}
