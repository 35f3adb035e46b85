/* SPDX-License-Identifier: Apache-2.0 */
/* K and V rows and bounds of the cache in every dtype, q8 among them: loads, stores, copies.
 * Contract: host/ops.h, tms_kv; what q8 is: tamis/device.h, tamis_dtype. Every product q·d is exact
 * in fp32, so comparisons with it are, and scales and q have the same bits on every backend. */
#include "host/reference/convert.h"
#include "host/reference/reference.h"

#define Q8_MOST 127 /* the largest |q| */
#define F16_INF 0x7c00u
#define F16_NAN 0x7e00u

/* The smallest f16 d with 127·d >= most, by the number of its bits. */
static uint16_t scale_of(float most) {
    if (!(most <= Q8_MOST * 65504.0f)) return F16_NAN;
    if (most < 0x1p-126f) return 0;
    uint16_t d = tms_f16_store(most / Q8_MOST);
    while (d == F16_INF || (d > 0 && Q8_MOST * tms_f16_load((uint16_t)(d - 1)) >= most))
        d--;
    while (Q8_MOST * tms_f16_load(d) < most)
        d++;
    return d;
}

/* The largest integer q with q·d <= x, where |x| <= 127·d. */
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
    return begin + TMS_Q8_BLOCK < head_dim ? begin + TMS_Q8_BLOCK : head_dim;
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
        out[i] = tms_f16_load(scales[i / TMS_Q8_BLOCK]) * (float)row[i];
}

/* The scales of a row, behind all rows of its page. */
static uint16_t *scales_of(const tms_kv *kv, void *data, tms_row row) {
    unsigned char *behind = (unsigned char *)data + row.page + (size_t)kv->page_size * kv->head_dim;
    return (uint16_t *)(void *)behind + (size_t)row.slot * tms_q8_blocks(kv->head_dim);
}

static uint64_t row_at(const tms_kv *kv, tms_row row) {
    return row.page + row.slot * kv->slot_stride;
}

void tms_load_slot(const tms_kv *kv, const void *data, tms_row row, float *out) {
    if (kv->dtype == TAMIS_Q8)
        load_q8((const int8_t *)data + row_at(kv, row), scales_of(kv, (void *)(uintptr_t)data, row),
                kv->head_dim, out);
    else
        tms_load_row(kv->dtype, data, row_at(kv, row), kv->head_dim, out);
}

void tms_store_slot(const tms_kv *kv, void *data, tms_row row, const float *x) {
    if (kv->dtype != TAMIS_Q8) {
        tms_store_row(kv->dtype, data, row_at(kv, row), kv->head_dim, x);
        return;
    }
    int8_t *to = (int8_t *)data + row_at(kv, row);
    uint16_t *scales = scales_of(kv, data, row);
    for (uint32_t c = 0; c < kv->head_dim; c += TMS_Q8_BLOCK) {
        const uint32_t n = block_end(c, kv->head_dim) - c;
        const uint16_t scale = scale_of(largest(x + c, n, 0));
        store_block(x + c, n, scale, NEAREST, to + c);
        scales[c / TMS_Q8_BLOCK] = scale;
    }
}

void tms_copy_slot(const tms_kv *kv, void *data, tms_row to, tms_row from) {
    const size_t unit = tms_kv_unit(kv->dtype);
    memmove((char *)data + row_at(kv, to) * unit, (const char *)data + row_at(kv, from) * unit,
            kv->head_dim * unit);
    if (kv->dtype == TAMIS_Q8)
        memmove(scales_of(kv, data, to), scales_of(kv, data, from),
                tms_q8_blocks(kv->head_dim) * sizeof(uint16_t));
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
    for (uint32_t c = 0; c < dim; c += TMS_Q8_BLOCK) {
        const uint32_t n = block_end(c, dim) - c;
        const uint16_t scale = scale_of(largest(pair + dim + c, n, largest(pair + c, n, 0)));
        store_block(pair + c, n, scale, outward ? DOWN : NEAREST, lo + c);
        store_block(pair + dim + c, n, scale, outward ? UP : NEAREST, lo + dim + c);
        scales[c / TMS_Q8_BLOCK] = scale;
    }
}
