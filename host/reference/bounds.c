/* SPDX-License-Identifier: Apache-2.0 */
/* bounds: a pair (lo_d, hi_d) of the keys of a full page, channel by channel: minimum and maximum,
 * mean -/+ width standard deviations, or the mean twice. Contract: host/ops/, bounds. A channel
 * with a NaN key has NaN for both, so that the page scores NaN. Minima and maxima are keys, so
 * storing them in the cache's dtype rounds nothing, and in q8 it rounds outward; of -0 and +0 the
 * first seen stays. */
#include "host/reference/convert.h"
#include "host/reference/reference.h"

#include <math.h>

/* The keys of one page of one head, row by row. */
typedef struct page_keys {
    const tms_kv *kv;
    const void *data;
    int32_t page;
    uint32_t head;
} page_keys;

static void load_key(const page_keys *keys, uint32_t slot, float *key) {
    const tms_kv *kv = keys->kv;
    tms_load_slot(kv, keys->data, tms_key_at(kv, keys->page, keys->head, slot), key);
}

/* Both begin as the first key; every other key widens them. A NaN stays, since comparisons with it
 * are false. */
static void min_and_max(const page_keys *keys, float *lo, float *hi) {
    float key[TMS_MOST_HEAD_DIM];
    load_key(keys, 0, lo);
    load_key(keys, 0, hi);
    for (uint32_t s = 1; s < keys->kv->page_size; s++) {
        load_key(keys, s, key);
        for (uint32_t d = 0; d < keys->kv->head_dim; d++) {
            if (key[d] < lo[d] || isnan(key[d])) lo[d] = key[d];
            if (key[d] > hi[d] || isnan(key[d])) hi[d] = key[d];
        }
    }
}

/* Sums in fp32 in slot order. */
static void mean_of(const page_keys *keys, float *mean) {
    float key[TMS_MOST_HEAD_DIM];
    load_key(keys, 0, mean);
    for (uint32_t s = 1; s < keys->kv->page_size; s++) {
        load_key(keys, s, key);
        for (uint32_t d = 0; d < keys->kv->head_dim; d++)
            mean[d] += key[d];
    }
    for (uint32_t d = 0; d < keys->kv->head_dim; d++)
        mean[d] /= (float)keys->kv->page_size;
}

/* From the squares of differences to the mean, which are never below 0. */
static void std_of(const page_keys *keys, const float *mean, float *std) {
    float key[TMS_MOST_HEAD_DIM];
    memset(std, 0, keys->kv->head_dim * sizeof *std);
    for (uint32_t s = 0; s < keys->kv->page_size; s++) {
        load_key(keys, s, key);
        for (uint32_t d = 0; d < keys->kv->head_dim; d++)
            std[d] += (key[d] - mean[d]) * (key[d] - mean[d]);
    }
    for (uint32_t d = 0; d < keys->kv->head_dim; d++)
        std[d] = sqrtf(std[d] / (float)keys->kv->page_size);
}

/* lo = mean - spread, hi = mean + spread. If mean and spread are finite, lo and hi are clamped to
 * be finite in the dtype. A finite mean is within the dtype's range, so lo can only be too low and
 * hi too high. */
static void around_mean(const tms_kv *kv, const float *mean, const float *spread, float *lo,
                        float *hi) {
    const float most = tms_dtypes[kv->bounds_dtype].most;
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        lo[d] = mean[d] - spread[d];
        hi[d] = mean[d] + spread[d];
        if (!isfinite(mean[d]) || !isfinite(spread[d])) continue;
        if (lo[d] < -most) lo[d] = -most;
        if (hi[d] > most) hi[d] = most;
    }
}

static void pair_of(const tms_bounds *p, const page_keys *keys, float *lo, float *hi) {
    float mean[TMS_MOST_HEAD_DIM], spread[TMS_MOST_HEAD_DIM];
    if (p->kind == TAMIS_BOUNDS_MINMAX) {
        min_and_max(keys, lo, hi);
        return;
    }
    mean_of(keys, mean);
    memcpy(lo, mean, p->kv.head_dim * sizeof *lo);
    memcpy(hi, mean, p->kv.head_dim * sizeof *hi);
    if (p->kind == TAMIS_BOUNDS_MEAN) return;
    std_of(keys, mean, spread);
    for (uint32_t d = 0; d < p->kv.head_dim; d++)
        spread[d] *= p->width;
    around_mean(&p->kv, mean, spread, lo, hi);
}

tamis_status tms_reference_bounds(tms_device *dev, const tms_bounds *p) {
    const tms_kv *kv = &p->kv;
    tms_views views = tms_views_begin(dev);
    const void *data = p->n ? tms_view_rest(&views, "kv data", kv->data) : NULL;
    void *bounds = p->n ? tms_view_rest(&views, "kv bounds", kv->bounds) : NULL;
    const int32_t *pages = tms_view(&views, "pages", p->pages, (uint64_t)p->n * 4);
    if (views.status != TAMIS_OK) return views.status;
    float pair[2 * TMS_MOST_HEAD_DIM];
    for (uint32_t i = 0; i < p->n; i++) {
        for (uint32_t h = 0; h < p->n_kv_heads && pages[i] >= 0; h++) {
            const page_keys keys = {kv, data, pages[i], h};
            pair_of(p, &keys, pair, pair + kv->head_dim);
            tms_store_bounds(kv, bounds, tms_bounds_at(kv, pages[i], h), pair,
                             p->kind != TAMIS_BOUNDS_MEAN);
        }
    }
    return TAMIS_OK;
}
