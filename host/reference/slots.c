/* SPDX-License-Identifier: Apache-2.0 */
/* K and V rows and bounds of the cache in every dtype, those with blocks among them: loads, stores,
 * copies. Contract: host/ops/, tms_kv; what an element is: tamis/device.h, tamis_dtype. Products of
 * an integer and a scale are exact in fp32, so comparisons with them are, and scales and integers
 * have the same bits on every backend. */
#include "host/reference/convert.h"
#include "host/reference/reference.h"

#define Q8_MOST  127 /* the largest |q| */
#define Q4_MOST  15  /* the largest n */
#define Q4_BYTES 16u /* of a block in a row */
#define F16_INF  0x7c00u
#define F16_NAN  0x7e00u

/* The smallest f16 d with steps·d >= most, by the number of its bits; NaN where there is none. */
static uint16_t block_scale(float most, float steps) {
    if (!(most <= steps * 65504.0f)) return F16_NAN;
    if (most < 0x1p-126f) return 0;
    uint16_t d = tms_f16_store(most / steps);
    while (d == F16_INF || (d > 0 && steps * tms_f16_load((uint16_t)(d - 1)) >= most))
        d--;
    while (steps * tms_f16_load(d) < most)
        d++;
    return d;
}

/* The largest f16 that is not above x, +0 below 2^-126 in magnitude; NaN where there is none. */
static uint16_t block_minimum(float x) {
    if (!(x >= -65504.0f)) return F16_NAN;
    if (fabsf(x) < 0x1p-126f) return 0;
    uint16_t h = tms_f16_store(fminf(x, 65504.0f));
    if (tms_f16_load(h) > x) h = h & 0x8000u ? h + 1 : h - 1;
    return h;
}

/* The largest integer q with q·d <= x. */
static int below(float x, float d) {
    if (d == 0) return 0;
    int q = (int)floorf(x / d);
    while ((float)q * d > x)
        q--;
    while ((float)(q + 1) * d <= x)
        q++;
    return q;
}

/* The nearest, of two equally near the even one. */
static int nearest(float x, float d) {
    if (d == 0) return 0;
    const int q = below(x, d);
    const float middle = ((float)q + 0.5f) * d;
    return x > middle || (x == middle && q % 2) ? q + 1 : q;
}

static uint32_t block_end(uint32_t begin, uint32_t head_dim) {
    return begin + TMS_BLOCK_CHANNELS < head_dim ? begin + TMS_BLOCK_CHANNELS : head_dim;
}

/* The largest magnitude of the n elements at x, NaN if one is NaN. */
static float largest(const float *x, uint32_t n, float most) {
    for (uint32_t i = 0; i < n; i++)
        most = (float)tms_larger(fabsf(x[i]), most);
    return most;
}

typedef enum rounding { NEAREST, DOWN, UP } rounding;

/* A block by its scale; all q are 0 where the scale is NaN. */
static void store_block(const float *x, uint32_t n, uint16_t scale, rounding way, int8_t *out) {
    const float d = tms_f16_load(scale);
    for (uint32_t i = 0; i < n; i++) {
        if (scale == F16_NAN)
            out[i] = 0;
        else if (way == NEAREST)
            out[i] = (int8_t)nearest(x[i], d);
        else
            out[i] = (int8_t)(way == DOWN ? below(x[i], d) : -below(-x[i], d));
    }
}

static void load_q8(const int8_t *row, const uint16_t *scales, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i++)
        out[i] = tms_f16_load(scales[i / TMS_BLOCK_CHANNELS]) * (float)row[i];
}

/* ---- Rows of 4 bits -------------------------------------------------------------------------- */

/* The least of the n elements at x, NaN if one is NaN. */
static float least(const float *x, uint32_t n) {
    float low = INFINITY;
    for (uint32_t i = 0; i < n; i++)
        low = isnan(x[i]) || x[i] < low ? x[i] : low;
    return low;
}

/* A block of n channels to its bytes, with its minimum and scale. */
static void store_q4_block(const float *x, uint32_t n, uint8_t *out, uint16_t *of) {
    float above[TMS_BLOCK_CHANNELS], most = 0;
    of[0] = block_minimum(least(x, n));
    for (uint32_t i = 0; i < n; i++) {
        above[i] = x[i] - tms_f16_load(of[0]);
        most = (float)tms_larger(above[i], most);
    }
    of[1] = block_scale(most, Q4_MOST);
    if (of[1] == F16_NAN) of[0] = F16_NAN;
    memset(out, 0, Q4_BYTES);
    for (uint32_t i = 0; i < n && of[1] != F16_NAN; i++) {
        const int q = nearest(above[i], tms_f16_load(of[1]));
        out[i % Q4_BYTES] |= (uint8_t)(i < Q4_BYTES ? q : q << 4);
    }
}

static void load_q4(const uint8_t *row, const uint16_t *of, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t block = i / TMS_BLOCK_CHANNELS, rest = i % TMS_BLOCK_CHANNELS;
        const uint8_t byte = row[block * Q4_BYTES + rest % Q4_BYTES];
        const int q = rest < Q4_BYTES ? byte & 15 : byte >> 4;
        out[i] = tms_f16_load(of[2 * block]) + tms_f16_load(of[2 * block + 1]) * (float)q;
    }
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* How rows of K, or of V, lie: as those of a cache of this dtype, which is not k8v4. */
static tamis_dtype dtype_of(const tms_kv *kv, tms_row row) {
    return row.is_value ? tms_value_dtype(kv->dtype) : tms_key_dtype(kv->dtype);
}

/* Where a row begins, in units of the dtype. */
static uint64_t row_at(const tms_kv *kv, tms_row row) {
    const tamis_dtype dtype = dtype_of(kv, row);
    return row.page +
           row.slot * (tms_has_blocks(dtype) ? tms_row_size(dtype, kv->head_dim) : kv->slot_stride);
}

/* The numbers of a row's blocks: they lie behind all rows of the page. */
static uint16_t *numbers_of(const tms_kv *kv, const void *data, tms_row row) {
    const tms_row behind = {row.page, kv->page_size, row.is_value};
    unsigned char *first = (unsigned char *)(uintptr_t)data + row_at(kv, behind);
    return (uint16_t *)(void *)first +
           (size_t)row.slot * tms_blocks(kv->head_dim) * tms_block_numbers(dtype_of(kv, row));
}

void tms_load_slot(const tms_kv *kv, const void *data, tms_row row, float *out) {
    const uint64_t at = row_at(kv, row);
    const tamis_dtype dtype = dtype_of(kv, row);
    if (dtype == TAMIS_Q8)
        load_q8((const int8_t *)data + at, numbers_of(kv, data, row), kv->head_dim, out);
    else if (dtype == TAMIS_Q4)
        load_q4((const uint8_t *)data + at, numbers_of(kv, data, row), kv->head_dim, out);
    else if (kv->channel_stride <= 1)
        tms_load_row(dtype, data, at, kv->head_dim, out);
    else
        for (uint32_t d = 0; d < kv->head_dim; d++)
            tms_load_row(dtype, data, at + d * kv->channel_stride, 1, out + d);
}

void tms_store_slot(const tms_kv *kv, void *data, tms_row row, const float *x) {
    const tamis_dtype dtype = dtype_of(kv, row);
    const uint64_t at = row_at(kv, row);
    if (!tms_has_blocks(dtype)) {
        tms_store_row(dtype, data, at, kv->head_dim, x);
        return;
    }
    uint16_t *numbers = numbers_of(kv, data, row);
    for (uint32_t c = 0; c < kv->head_dim; c += TMS_BLOCK_CHANNELS) {
        const uint32_t n = block_end(c, kv->head_dim) - c, block = c / TMS_BLOCK_CHANNELS;
        if (dtype == TAMIS_Q4) {
            store_q4_block(x + c, n, (uint8_t *)data + at + block * Q4_BYTES, numbers + 2 * block);
            continue;
        }
        const uint16_t scale = block_scale(largest(x + c, n, 0), Q8_MOST);
        store_block(x + c, n, scale, NEAREST, (int8_t *)data + at + c);
        numbers[block] = scale;
    }
}

void tms_copy_slot(const tms_kv *kv, void *data, tms_row to, tms_row from) {
    const tamis_dtype dtype = dtype_of(kv, from);
    const size_t unit = tms_kv_unit(dtype);
    memmove((char *)data + row_at(kv, to) * unit, (const char *)data + row_at(kv, from) * unit,
            tms_row_size(dtype, kv->head_dim) * unit);
    if (tms_has_blocks(dtype))
        memmove(numbers_of(kv, data, to), numbers_of(kv, data, from),
                sizeof(uint16_t) * tms_blocks(kv->head_dim) * tms_block_numbers(dtype));
}

void tms_load_bounds(const tms_kv *kv, const void *bounds, uint64_t at, float *pair) {
    const uint32_t dim = kv->head_dim;
    if (kv->bounds_dtype != TAMIS_Q8) {
        tms_load_row(kv->bounds_dtype, bounds, at, 2 * dim, pair);
        return;
    }
    const int8_t *lo = (const int8_t *)bounds + at;
    const uint16_t *scales = (const uint16_t *)(const void *)(lo + 2 * (size_t)dim);
    load_q8(lo, scales, dim, pair);
    load_q8(lo + dim, scales, dim, pair + dim);
}

void tms_store_bounds(const tms_kv *kv, void *bounds, uint64_t at, const float *pair,
                      bool outward) {
    const uint32_t dim = kv->head_dim;
    if (kv->bounds_dtype != TAMIS_Q8) {
        tms_store_row(kv->bounds_dtype, bounds, at, 2 * dim, pair);
        return;
    }
    int8_t *lo = (int8_t *)bounds + at;
    uint16_t *scales = (uint16_t *)(void *)(lo + 2 * (size_t)dim);
    for (uint32_t c = 0; c < dim; c += TMS_BLOCK_CHANNELS) {
        const uint32_t n = block_end(c, dim) - c;
        const uint16_t scale =
            block_scale(largest(pair + dim + c, n, largest(pair + c, n, 0)), Q8_MOST);
        store_block(pair + c, n, scale, outward ? DOWN : NEAREST, lo + c);
        store_block(pair + dim + c, n, scale, outward ? UP : NEAREST, lo + dim + c);
        scales[c / TMS_BLOCK_CHANNELS] = scale;
    }
}
