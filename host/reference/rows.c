/* SPDX-License-Identifier: Apache-2.0 */
/* write_rows and read_rows: K and V rows into slots of lanes and out of them.
 *   slot s of a lane lies at slot s % page_size of its page of ordinal s / page_size.
 * Contract: host/backend.h, write_rows and read_rows. A slot below 0 writes nothing. Rows of the
 * cache's dtype are copied bit for bit; f32 rows are rounded to nearest even. */
#include "host/reference/convert.h"
#include "host/reference/reference.h"

/* First element of the K row of a lane's slot. */
static uint64_t row_at(const tms_kv *kv, const int32_t *lane, uint32_t head, int32_t slot) {
    const uint32_t ordinal = (uint32_t)slot / kv->page_size, rest = (uint32_t)slot % kv->page_size;
    return tms_key_at(kv, lane[ordinal], head, rest);
}

static void write_row(const tms_kv *kv, void *data, uint64_t to, tamis_dtype dtype,
                      const void *rows, uint64_t from) {
    if (dtype == kv->dtype) {
        const size_t size = tamis_dtype_size(dtype);
        memcpy((char *)data + to * size, (const char *)rows + from * size, kv->head_dim * size);
    } else {
        tms_store_row(kv->dtype, data, to, kv->head_dim, (const float *)rows + from);
    }
}

tamis_status tms_reference_write_rows(tms_device *dev, const tms_write_rows *p) {
    const tms_kv *kv = &p->kv;
    const tms_batch *batch = &p->batch;
    const uint32_t n = batch->n_rows, heads = batch->n_kv_heads;
    const uint64_t width = (uint64_t)heads * kv->head_dim, size = tamis_dtype_size(p->dtype);
    tamis_status status = tms_check_kv(dev, kv);
    if (status != TAMIS_OK) return status;
    tms_views views = tms_views_begin(dev);
    tms_views_require(&views, p->dtype == TAMIS_F32 || p->dtype == kv->dtype,
                      "rows must be f32 or of the cache's dtype; dtype", p->dtype);
    tms_views_require(&views, n < 2 || p->k_stride >= width,
                      "k: row stride below n_kv_heads * head_dim", p->k_stride);
    tms_views_require(&views, n < 2 || p->v_stride >= width,
                      "v: row stride below n_kv_heads * head_dim", p->v_stride);
    void *data = n ? tms_view_rest(&views, "kv data", kv->data) : NULL;
    const void *k = tms_view(&views, "k", p->k, n ? ((n - 1) * p->k_stride + width) * size : 0);
    const void *v = tms_view(&views, "v", p->v, n ? ((n - 1) * p->v_stride + width) * size : 0);
    const int32_t *slots = tms_view(&views, "slots", p->slots, (uint64_t)n * heads * 4);
    const int32_t *row_seq = tms_view(&views, "row_seq", batch->row_seq, (uint64_t)n * 4);
    const int32_t *table = n ? tms_view_rest(&views, "table", batch->table) : NULL;
    if (views.status != TAMIS_OK) return views.status;
    for (uint64_t r = 0; r < n; r++) {
        for (uint32_t h = 0; h < heads; h++) {
            /* 1. The slot's place; a negative slot is skipped. */
            const int32_t slot = slots[r * heads + h];
            if (slot < 0) continue;
            const int32_t *lane =
                tms_lane(table, batch->seq_stride, batch->head_stride, row_seq[r], h);
            const uint64_t to = row_at(kv, lane, h, slot), column = (uint64_t)h * kv->head_dim;
            /* 2. The K row and, value_offset further on, the V row. */
            write_row(kv, data, to, p->dtype, k, r * p->k_stride + column);
            write_row(kv, data, to + kv->value_offset, p->dtype, v, r * p->v_stride + column);
        }
    }
    return TAMIS_OK;
}

tamis_status tms_reference_read_rows(tms_device *dev, const tms_read_rows *p) {
    const tms_kv *kv = &p->kv;
    const uint32_t n = p->n;
    tamis_status status = tms_check_kv(dev, kv);
    if (status != TAMIS_OK) return status;
    const uint64_t bytes = (uint64_t)n * kv->head_dim * 4;
    tms_views views = tms_views_begin(dev);
    const void *data = n ? tms_view_rest(&views, "kv data", kv->data) : NULL;
    const int32_t *table = n ? tms_view_rest(&views, "table", p->table) : NULL;
    const int32_t *seq = tms_view(&views, "seq", p->seq, (uint64_t)n * 4);
    const int32_t *head = tms_view(&views, "head", p->head, (uint64_t)n * 4);
    const int32_t *slot = tms_view(&views, "slot", p->slot, (uint64_t)n * 4);
    float *k = tms_view_optional(&views, "k", p->k, bytes);
    float *v = tms_view_optional(&views, "v", p->v, bytes);
    if (views.status != TAMIS_OK) return views.status;
    for (uint64_t i = 0; i < n; i++) {
        /* 1. The slot's place. */
        const int32_t *lane =
            tms_lane(table, p->seq_stride, p->head_stride, seq[i], (uint32_t)head[i]);
        const uint64_t at = row_at(kv, lane, (uint32_t)head[i], slot[i]);
        /* 2. Both rows, widened. */
        if (k) tms_load_row(kv->dtype, data, at, kv->head_dim, k + i * kv->head_dim);
        if (v)
            tms_load_row(kv->dtype, data, at + kv->value_offset, kv->head_dim,
                         v + i * kv->head_dim);
    }
    return TAMIS_OK;
}
