/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of a caller's buffers: their context, their size against the shape. */
#include "lib/op_calls/check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

void tms_op_refuse(tms_op_call *c, tamis_status status, const char *format, ...) {
    char text[sizeof c->error->text];
    va_list args;
    if (c->status != TAMIS_OK) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    c->status = tms_error_set(c->error, status, "%s", text);
}

void tms_op_zero(tms_op_call *c, const char *type, const char *name, uint64_t value) {
    if (value)
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "%s of %s is %" PRIu64 "; it must be 0", name, type,
                      value);
}

void tms_op_above_0(tms_op_call *c, const char *name, uint64_t value) {
    if (value == 0) tms_op_refuse(c, TAMIS_E_ARGUMENT, "%s is 0", name);
}

void tms_op_one_of(tms_op_call *c, const char *name, int value, int last) {
    if (value < 0 || value > last)
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "%s is %d: there are 0 to %d", name, value, last);
}

uint64_t tms_op_times(uint64_t a, uint64_t b) {
    return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

uint64_t tms_op_plus(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* ---- Places and rows ------------------------------------------------------------------------- */

/* Checks that a buffer, if given, is of the call's context and holds the bytes. */
static tms_ref check_place(tms_op_call *c, const char *name, tamis_buffer *buffer, uint64_t offset,
                           uint64_t bytes) {
    if (!buffer || c->status != TAMIS_OK) return (tms_ref){NULL, 0};
    if (buffer->context != c->context)
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "%s: the buffer is of another context", name);
    else if (offset % 4)
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "%s: offset %" PRIu64 ": not a multiple of 4", name,
                      offset);
    else if (!c->measured && (offset > buffer->bytes || bytes > buffer->bytes - offset))
        tms_op_refuse(c, TAMIS_E_ARGUMENT,
                      "%s: %" PRIu64 " bytes from byte %" PRIu64 ": past the buffer's %" PRIu64
                      " bytes",
                      name, bytes, offset, buffer->bytes);
    return (tms_ref){buffer->mem, offset};
}

tms_ref tms_op_optional(tms_op_call *c, const char *name, const tamis_place *place,
                        uint64_t bytes) {
    return check_place(c, name, place->buffer, place->offset, bytes);
}

tms_ref tms_op_place(tms_op_call *c, const char *name, const tamis_place *place, uint64_t bytes) {
    if (!place->buffer && bytes && !c->measured)
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "%s is absent", name);
    return tms_op_optional(c, name, place, bytes);
}

/* The number of elements from the first to the last one of rows. */
static uint64_t extent(uint32_t n_rows, uint64_t stride, uint64_t width) {
    return n_rows ? tms_op_plus(tms_op_times(n_rows - 1, stride), width) : 0;
}

static uint64_t stride_of(const tms_op_rows *r) {
    return r->rows->row_stride ? r->rows->row_stride : r->width;
}

static tms_ref check_rows(tms_op_call *c, const tms_op_rows *r) {
    const tamis_rows *rows = r->rows;
    const uint64_t elements = extent(r->n_rows, stride_of(r), r->width);
    const uint64_t bytes = tms_op_times(elements, tamis_dtype_size(rows->dtype));
    if (!rows->buffer && r->n_rows && !c->measured)
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "%s: no buffer", r->name);
    if (stride_of(r) < r->width)
        tms_op_refuse(c, TAMIS_E_ARGUMENT,
                      "%s: row stride %" PRIu64 ": less than the %" PRIu64 " elements of a row",
                      r->name, rows->row_stride, r->width);
    return check_place(c, r->name, rows->buffer, rows->offset, bytes);
}

tms_matrix tms_op_matrix(tms_op_call *c, const tms_op_rows *r) {
    if (r->rows->dtype != TAMIS_F32)
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "%s is %s (%d); it must be f32", r->name,
                      tamis_dtype_name(r->rows->dtype), (int)r->rows->dtype);
    return (tms_matrix){check_rows(c, r), stride_of(r)};
}

tms_matrix tms_op_any_rows(tms_op_call *c, const tms_op_rows *r) {
    if (!tms_dtype_of_rows(r->rows->dtype))
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "%s is %s (%d); it must be f32, f16 or bf16", r->name,
                      tamis_dtype_name(r->rows->dtype), (int)r->rows->dtype);
    return (tms_matrix){check_rows(c, r), stride_of(r)};
}

tms_weight_matrix tms_op_weights(tms_op_call *c, const tamis_weight_matrix *w, uint32_t n_out,
                                 uint32_t n_in) {
    const uint32_t block = tamis_weight_block(w->type);
    if (w->reserved)
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "reserved of w is %" PRIu32 "; it must be 0",
                      w->reserved);
    tms_op_one_of(c, "layout of w", (int)w->layout, TAMIS_WEIGHT_STRIPS);
    if (block == 0)
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "w: weight type %d is unknown", (int)w->type);
    else if (n_in % block)
        tms_op_refuse(c, TAMIS_E_ARGUMENT,
                      "w: rows of %" PRIu32 " %s weights: not a multiple of its blocks of %" PRIu32,
                      n_in, tamis_weight_name(w->type), block);
    if (!w->buffer && n_out && !c->measured) tms_op_refuse(c, TAMIS_E_ARGUMENT, "w: no buffer");
    const uint64_t bytes = tamis_weight_layout_bytes(w->layout, w->type, n_out, n_in);
    return (tms_weight_matrix){check_place(c, "w", w->buffer, w->offset, bytes), w->type,
                               w->layout};
}

void tms_op_apart(tms_op_call *c, const tms_op_rows *a, const tms_op_rows *b) {
    const uint64_t a_bytes =
        extent(a->n_rows, stride_of(a), a->width) * tamis_dtype_size(a->rows->dtype);
    const uint64_t b_bytes =
        extent(b->n_rows, stride_of(b), b->width) * tamis_dtype_size(b->rows->dtype);
    const uint64_t a_at = a->rows->offset, b_at = b->rows->offset;
    const bool together = a->rows->buffer && a->rows->buffer == b->rows->buffer;
    if (c->measured || c->status != TAMIS_OK || !together || !a_bytes || !b_bytes) return;
    if (a_at < b_at + b_bytes && b_at < a_at + a_bytes)
        tms_op_refuse(c, TAMIS_E_ARGUMENT,
                      "%s and %s overlap: bytes %" PRIu64 " to %" PRIu64 " and %" PRIu64
                      " to %" PRIu64 " of one buffer",
                      a->name, b->name, a_at, a_at + a_bytes - 1, b_at, b_at + b_bytes - 1);
}

/* ---- Paged caches ---------------------------------------------------------------------------- */

void tms_op_reserved(tms_op_call *c, const uint64_t *reserved, size_t n, const char *type) {
    if (c->status == TAMIS_OK) c->status = tms_reserved_check(reserved, n, type, c->error);
}

/* Fills in the strides of a layout. */
static void lay_out(tms_op_call *c, const tamis_kv *kv, uint64_t heads, tms_kv *out) {
    const uint64_t dim = kv->head_dim, slots = kv->page_size;
    switch (kv->layout) {
    case TAMIS_KV_OWN:
        heads = 1;
        out->slot_stride = dim;
        break;
    case TAMIS_KV_NHD:
        out->slot_stride = heads * dim;
        out->head_stride = dim;
        break;
    case TAMIS_KV_HND:
        out->slot_stride = dim;
        out->head_stride = slots * dim;
        break;
    case TAMIS_KV_STRIDES:
        out->page_stride = kv->page_stride;
        out->head_stride = kv->head_stride;
        out->slot_stride = kv->slot_stride;
        out->value_offset = kv->value_offset;
        out->channel_stride = kv->channel_stride;
        out->bounds_page_stride = kv->bounds_page_stride;
        out->bounds_head_stride = kv->bounds_head_stride;
        return;
    default:
        tms_op_one_of(c, "layout", (int)kv->layout, TAMIS_KV_STRIDES);
    }
    out->value_offset = slots * heads * dim;
    out->page_stride = 2 * out->value_offset;
    out->bounds_page_stride = 2 * heads * dim;
    out->bounds_head_stride = kv->layout == TAMIS_KV_OWN ? 0 : 2 * dim;
}

/* Checks that strides are set with TAMIS_KV_STRIDES, and only then. */
static void check_strides(tms_op_call *c, const tamis_kv *kv, bool bounded) {
    const struct {
        const char *name;
        uint64_t value;
    } strides[] = {{"page_stride", kv->page_stride},
                   {"head_stride", kv->head_stride},
                   {"slot_stride", kv->slot_stride},
                   {"value_offset", kv->value_offset},
                   {"channel_stride", kv->channel_stride},
                   {"bounds_page_stride", kv->bounds_page_stride},
                   {"bounds_head_stride", kv->bounds_head_stride}};
    if (kv->values && kv->value_offset)
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "values apart from keys, and a value_offset of %" PRIu64,
                      kv->value_offset);
    if (kv->layout == TAMIS_KV_STRIDES) {
        if (kv->n_pages > 1) tms_op_above_0(c, "page_stride", kv->page_stride);
        if (kv->n_pages > 1 && bounded)
            tms_op_above_0(c, "bounds_page_stride", kv->bounds_page_stride);
        return;
    }
    for (size_t i = 0; i < sizeof strides / sizeof *strides; i++)
        if (strides[i].value)
            tms_op_refuse(c, TAMIS_E_ARGUMENT, "%s is %" PRIu64 " and layout %d has its own",
                          strides[i].name, strides[i].value, (int)kv->layout);
    if (kv->values)
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "values of their own, and layout %d has its own",
                      (int)kv->layout);
}

/* Elements from the first row's first channel to the last one's last, `pages` pages and `heads` heads
 * behind the first. */
static uint64_t rows_extent(const tamis_kv *kv, uint64_t pages, uint64_t heads,
                            uint64_t page_stride, uint64_t head_stride, uint64_t slot_stride,
                            uint64_t channel_stride) {
    const uint64_t channel = channel_stride ? channel_stride : 1;
    uint64_t n = tms_op_plus(tms_op_times(pages, page_stride), tms_op_times(heads, head_stride));
    n = tms_op_plus(n, tms_op_times(kv->page_size - 1, slot_stride));
    return tms_op_plus(n, tms_op_plus(tms_op_times(kv->head_dim - 1, channel), 1));
}

/* The values that lie apart; none where they are absent, as they may be in a call without rows, or that
 * measures. `size`: bytes of an element, 0 without rows. */
static tms_apart apart_of(tms_op_call *c, const tamis_kv *kv, uint64_t pages, uint64_t heads,
                          uint64_t size) {
    const tamis_kv_values *v = kv->values;
    const uint64_t extent = rows_extent(kv, pages, heads, v->page_stride, v->head_stride,
                                        v->slot_stride, v->channel_stride);
    const tms_ref data = tms_op_place(c, "values", &v->data, tms_op_times(extent, size));
    if (!data.mem) return (tms_apart){0};
    return (tms_apart){data, v->page_stride, v->head_stride, v->slot_stride, v->channel_stride};
}

tms_kv tms_op_kv(tms_op_call *c, const tamis_kv *kv, uint32_t n_kv_heads, uint32_t rows,
                 bool bounded) {
    tms_device *dev = c->context->dev;
    tms_kv out = {.dtype = kv->dtype,
                  .bounds_dtype = kv->dtype,
                  .page_size = kv->page_size,
                  .head_dim = kv->head_dim};
    tms_op_reserved(c, kv->reserved, sizeof kv->reserved / sizeof *kv->reserved, "tamis_kv");
    tms_op_zero(c, "tamis_kv", "reserved32", kv->reserved32);
    tms_op_above_0(c, "n_kv_heads", n_kv_heads);
    if (kv->values)
        tms_op_reserved(c, kv->values->reserved, sizeof kv->values->reserved / sizeof(uint64_t),
                        "tamis_kv_values");
    check_strides(c, kv, bounded);
    lay_out(c, kv, n_kv_heads, &out);
    /* Sizes are computed from these numbers, so they are checked first. */
    if (tms_dtype_known(kv->dtype) && !tms_dtype_of_rows(kv->dtype))
        tms_op_refuse(c, TAMIS_E_UNSUPPORTED,
                      "tamis_kv: dtype %s: only tamis_cache has such pages; f32, f16 and bf16 are "
                      "supported here",
                      tamis_dtype_name(kv->dtype));
    if (c->status == TAMIS_OK) c->status = tms_device_check_kv(dev, &out, c->error);
    if (rows && !c->measured) tms_op_above_0(c, "n_pages", kv->n_pages);
    if (c->status != TAMIS_OK) return out;
    const uint64_t pages = kv->n_pages ? kv->n_pages - 1 : 0, heads = n_kv_heads - 1;
    uint64_t data = rows_extent(kv, pages, heads, out.page_stride, out.head_stride, out.slot_stride,
                                out.channel_stride);
    data = tms_op_plus(data, out.value_offset);
    uint64_t pairs = tms_op_plus(tms_op_times(pages, out.bounds_page_stride),
                                 tms_op_times(heads, out.bounds_head_stride));
    pairs = tms_op_plus(pairs, 2 * (uint64_t)kv->head_dim);
    const uint64_t size = rows ? tamis_dtype_size(kv->dtype) : 0;
    out.data = tms_op_place(c, "data", &kv->data, tms_op_times(data, size));
    if (kv->values) out.apart = apart_of(c, kv, pages, heads, size);
    if (bounded) out.bounds = tms_op_place(c, "bounds", &kv->bounds, tms_op_times(pairs, size));
    return out;
}

/* The number of entries of the table that the lists reach. */
static uint64_t table_ids(const tamis_batch *b, uint32_t page_size) {
    const uint64_t sequences = b->n_sequences ? b->n_sequences - 1 : 0;
    const uint64_t heads = b->n_kv_heads ? b->n_kv_heads - 1 : 0;
    const uint64_t first =
        tms_op_plus(tms_op_times(sequences, b->seq_stride), tms_op_times(heads, b->head_stride));
    return tms_op_plus(first, tms_divide_up(b->max_visible, page_size));
}

tms_batch tms_op_batch(tms_op_call *c, const tamis_batch *b, uint32_t page_size, bool tiled) {
    const uint64_t n = b->n_rows, ints = sizeof(int32_t);
    const uint32_t n_tiles = b->n_tiles ? b->n_tiles : b->n_rows;
    tms_device *dev = c->context->dev;
    tms_batch out = {.n_heads = b->n_heads, .n_kv_heads = b->n_kv_heads};
    tms_op_reserved(c, b->reserved, sizeof b->reserved / sizeof *b->reserved, "tamis_batch");
    /* Without rows only the heads are checked, since sizes are computed from them. */
    if (c->status == TAMIS_OK) c->status = tms_device_check_batch(dev, &out, c->error);
    if (b->n_sequences > 1) tms_op_above_0(c, "seq_stride", b->seq_stride);
    out.n_rows = b->n_rows;
    out.n_tiles = n_tiles;
    out.max_tile_rows = b->max_tile_rows ? b->max_tile_rows : 1;
    out.max_visible = b->max_visible;
    out.max_seen = b->max_seen;
    out.seq_stride = b->seq_stride;
    out.head_stride = b->head_stride;
    if (c->status != TAMIS_OK) return out;
    const uint64_t ids = page_size && n ? table_ids(b, page_size) : n != 0;
    if (tiled) out.tiles = tms_op_place(c, "tiles", &b->tiles, n ? 2 * ints * n_tiles : 0);
    out.row_seq = tms_op_place(c, "row_seq", &b->row_seq, n * ints);
    out.visible = tms_op_place(c, "visible", &b->visible, tms_op_times(n * b->n_kv_heads, ints));
    out.first = tms_op_optional(c, "first", &b->first, tms_op_times(n * b->n_kv_heads, ints));
    out.table = tms_op_place(c, "table", &b->table, tms_op_times(ids, ints));
    return out;
}

tms_lists tms_op_lists(tms_op_call *c, const tamis_lists *lists, uint64_t owners, bool optional) {
    const uint64_t counts = tms_op_times(owners, sizeof(int32_t));
    const uint64_t pages = tms_op_times(counts, lists->capacity);
    tms_lists out = {.capacity = lists->capacity};
    tms_op_zero(c, "tamis_lists", "reserved32", lists->reserved32);
    if (optional && !lists->pages.buffer) return out;
    out.pages = tms_op_place(c, "lists.pages", &lists->pages, pages);
    out.count = tms_op_place(c, "lists.count", &lists->count, counts);
    return out;
}
