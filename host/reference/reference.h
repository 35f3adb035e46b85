/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the reference share: its memory, checked views of it, and the ops. */
#ifndef TMS_REFERENCE_H
#define TMS_REFERENCE_H

#include "host/backend.h"

#include <math.h>

struct tms_mem {
    unsigned char *data;
    uint64_t bytes;
    bool own; /* else the caller's, wrapped */
};

/* Turns the refs of one launch into pointers; `status` keeps the first failure. */
typedef struct tms_views {
    tms_device *dev;
    tamis_status status;
} tms_views;

/* Begins a launch: fails at once on a sticky error, or when a form is forced that the reference
 * lacks. */
tms_views tms_views_begin(tms_device *dev);
/* The `bytes` bytes at `ref`, which must lie inside its memory and be aligned to 4. NULL on
 * failure, and for 0 bytes of absent memory. */
void *tms_view(tms_views *views, const char *name, tms_ref ref, uint64_t bytes);
/* The same for a ref that may be absent: NULL then. */
void *tms_view_optional(tms_views *views, const char *name, tms_ref ref, uint64_t bytes);
/* All bytes from `ref` on: for paged data, whose extent depends on the page ids. */
void *tms_view_rest(tms_views *views, const char *name, tms_ref ref);
/* The launch's `visible`, every entry of which must be from 0 to max_visible. */
const int32_t *tms_view_visible(tms_views *views, const tms_batch *batch);
/* The launch's `first`, checked by max_seen; NULL if it is absent. */
const int32_t *tms_view_first(tms_views *views, const tms_batch *batch);
/* The first slot that the owner of an index sees, at most `visible`. */
static inline uint32_t tms_first_slot(const int32_t *first, uint64_t index, uint32_t visible) {
    const uint32_t slot = first ? (uint32_t)first[index] : 0;
    return slot < visible ? slot : visible;
}
/* `n_rows` rows of `width` f32 elements. */
float *tms_view_matrix(tms_views *views, const char *name, tms_matrix matrix, uint32_t n_rows,
                       uint64_t width);
/* Fails the launch unless `holds`. */
void tms_views_require(tms_views *views, bool holds, const char *rule, int64_t value);

/* Page ids of a lane, by ordinal. */
static inline const int32_t *tms_lane(const int32_t *table, uint64_t seq_stride,
                                      uint64_t head_stride, int32_t seq, uint32_t head) {
    return table + (uint64_t)seq * seq_stride + head * head_stride;
}

/* A row of K or of V: where those of its page begin, in units of the dtype, and its slot there. */
typedef struct tms_row {
    uint64_t page;
    uint32_t slot;
    bool is_value;
} tms_row;

static inline tms_row tms_key_at(const tms_kv *kv, int32_t page, uint32_t head, uint32_t slot) {
    return (tms_row){(uint64_t)page * kv->page_stride + head * kv->head_stride, slot, false};
}

/* The same of a slot of a lane, whose page ids by ordinal are `pages`. */
static inline tms_row tms_slot_at(const tms_kv *kv, const int32_t *pages, uint32_t head,
                                  uint32_t slot) {
    return tms_key_at(kv, pages[slot / kv->page_size], head, slot % kv->page_size);
}

/* The V row of a K row. */
static inline tms_row tms_value_of(const tms_kv *kv, tms_row key) {
    return (tms_row){key.page + kv->value_offset, key.slot, true};
}

/* V rows that lie apart, as the K rows of a kv of their own. */
static inline tms_kv tms_values_apart(const tms_kv *kv) {
    tms_kv values = *kv;
    values.data = kv->apart.data;
    values.page_stride = kv->apart.page_stride;
    values.head_stride = kv->apart.head_stride;
    values.slot_stride = kv->apart.slot_stride;
    values.channel_stride = kv->apart.channel_stride;
    return values;
}

/* Widens a row of K or V; rounds one into its place; copies one bit for bit. */
void tms_load_slot(const tms_kv *kv, const void *data, tms_row row, float *out);
void tms_store_slot(const tms_kv *kv, void *data, tms_row row, const float *x);
void tms_copy_slot(const tms_kv *kv, void *data, tms_row to, tms_row from);
/* The pair of bounds at `at`: lo, then hi, head_dim each. Storing it in q8 rounds outward if
 * `outward`, else to nearest. */
void tms_load_bounds(const tms_kv *kv, const void *bounds, uint64_t at, float *pair);
void tms_store_bounds(const tms_kv *kv, void *bounds, uint64_t at, const float *pair, bool outward);

/* Where a page's pair of bounds begins: its lo row; its hi row lies kv->head_dim further on. */
static inline uint64_t tms_bounds_at(const tms_kv *kv, int32_t page, uint32_t head) {
    return (uint64_t)page * kv->bounds_page_stride + head * kv->bounds_head_stride;
}

/* A slot of a lane as an index into planes. */
static inline uint64_t tms_plane_at(const int32_t *pages, uint32_t page_size, uint32_t slot) {
    return (uint64_t)pages[slot / page_size] * page_size + slot % page_size;
}

/* The larger of two, NaN if one is. */
static inline double tms_larger(double a, double b) {
    return isnan(a) || a > b ? a : b;
}

/* norm of one row; y may be x. */
void tms_norm_row(const float *x, const float *w, uint32_t dim, float eps, float *y);
/* Rotates a head in place by its position, by rotate's table. */
void tms_turn_head(const float *table, int32_t position, uint32_t n_rot, tamis_pairing pairing,
                   float *head);

TMS_REQUIRED_OPS(TMS_DECLARE_OP, tms_reference_)
TMS_OPTIONAL_OPS(TMS_DECLARE_OP, tms_reference_)
tamis_status tms_reference_write_rotated(tms_device *dev, const tms_write_rotated *p);
/* The wide forms of select. */
tamis_status tms_reference_select_wide(tms_device *dev, const tms_select *p);
tamis_status tms_reference_read_bandwidth(tms_device *dev, tms_ref from, uint64_t bytes,
                                          double *gb_per_s);
tamis_status tms_reference_read_pages(tms_device *dev, const tms_page_read *p);
bool tms_reference_orders_pages(tms_device *dev);
tamis_weight_layout tms_reference_weight_layout(tms_device *dev, tamis_weight_type type);

#endif
