/* SPDX-License-Identifier: Apache-2.0 */
/* bounds: lo_d = min_s k_sd, hi_d = max_s k_sd over the slots of a full page, channel by channel.
 * Contract: host/backend.h, bounds. A channel with a NaN key has NaN for both, so that the page
 * scores NaN. The values are keys of the cache's dtype, so storing them rounds nothing; of -0 and
 * +0 the first seen stays. */
#include "host/reference/convert.h"
#include "host/reference/reference.h"

#include <math.h>

/* Takes one key into a page's bounds; a NaN stays once it is in. */
static void widen(float *lo, float *hi, const float *key, uint32_t head_dim) {
    for (uint32_t d = 0; d < head_dim; d++) {
        if (key[d] < lo[d] || isnan(key[d])) lo[d] = key[d];
        if (key[d] > hi[d] || isnan(key[d])) hi[d] = key[d];
    }
}

tamis_status tms_reference_bounds(tms_device *dev, const tms_bounds *p) {
    const tms_kv *kv = &p->kv;
    const uint32_t dim = kv->head_dim;
    tamis_status status = tms_check_kv(dev, kv);
    if (status != TAMIS_OK) return status;
    tms_views views = tms_views_begin(dev);
    const void *data = p->n ? tms_view_rest(&views, "kv data", kv->data) : NULL;
    void *bounds = p->n ? tms_view_rest(&views, "kv bounds", kv->bounds) : NULL;
    const int32_t *pages = tms_view(&views, "pages", p->pages, (uint64_t)p->n * 4);
    if (views.status != TAMIS_OK) return views.status;
    float lo[TMS_MAX_HEAD_DIM], hi[TMS_MAX_HEAD_DIM], key[TMS_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < p->n; i++) {
        for (uint32_t h = 0; h < p->n_kv_heads; h++) {
            /* 1. Both begin as the first key. */
            tms_load_row(kv->dtype, data, tms_key_at(kv, pages[i], h, 0), dim, lo);
            memcpy(hi, lo, dim * sizeof *hi);
            /* 2. Every other key widens them; comparisons with a NaN that is in are false. */
            for (uint32_t s = 1; s < kv->page_size; s++) {
                tms_load_row(kv->dtype, data, tms_key_at(kv, pages[i], h, s), dim, key);
                widen(lo, hi, key, dim);
            }
            /* 3. The lo row, then the hi row. */
            const uint64_t at = tms_bounds_at(kv, pages[i], h);
            tms_store_row(kv->dtype, bounds, at, dim, lo);
            tms_store_row(kv->dtype, bounds, at + dim, dim, hi);
        }
    }
    return TAMIS_OK;
}
