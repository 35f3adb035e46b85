/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the contract for types that ops share, and for the ops on the cache, of selection
 * and of attention. */
#include "host/checks.h"

#include <math.h>

static bool listed(uint32_t value, const uint32_t *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (list[i] == value) return true;
    }
    return false;
}

/* Scales are 16-bit elements, so what leads to them is even. */
static tamis_status check_scales(tms_device *dev, const char *of, uint64_t offset,
                                 uint64_t page_stride, uint64_t head_stride,
                                 uint64_t value_offset) {
    if ((offset | page_stride | head_stride | value_offset) % 2 == 0) return TAMIS_OK;
    return tms_device_fail(
        dev, TAMIS_E_UNSUPPORTED,
        "%s with scales at offset %llu, strides %llu and %llu, value offset %llu: not "
        "all are even",
        of, (unsigned long long)offset, (unsigned long long)page_stride,
        (unsigned long long)head_stride, (unsigned long long)value_offset);
}

/* Pages as the cache has them. */
static tamis_status check_page_size(tms_device *dev, uint32_t page_size) {
    static const uint32_t page_sizes[] = {8, 16, 32, 64};
    if (listed(page_size, page_sizes, sizeof page_sizes / sizeof *page_sizes)) return TAMIS_OK;
    return tms_device_fail(dev, TAMIS_E_UNSUPPORTED, "page size %u: supported are 8, 16, 32, 64",
                           page_size);
}

/* What may be of K and V that are only read, and not of others. */
static tamis_status check_only_read(tms_device *dev, const tms_kv *kv) {
    if (kv->apart.data.mem && kv->value_offset)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "values apart from keys, and a value offset of %llu",
                               (unsigned long long)kv->value_offset);
    if (!kv->apart.data.mem && (kv->apart.page_stride || kv->apart.channel_stride))
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "strides of values apart, which are absent");
    if (tms_has_blocks(kv->dtype) && (kv->apart.data.mem || !tms_channels_adjacent(kv)))
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "a cache of %s with values apart, or with channels %llu apart",
                               tamis_dtype_name(kv->dtype), (unsigned long long)kv->channel_stride);
    return TAMIS_OK;
}

tamis_status tms_check_kv(tms_device *dev, const tms_kv *kv) {
    const tamis_status status = check_page_size(dev, kv->page_size);
    if (status != TAMIS_OK) return status;
    if (kv->apart.data.mem || !tms_channels_adjacent(kv))
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "values apart from keys, or channels %llu elements apart: only ops "
                               "that read K and V take them",
                               (unsigned long long)kv->channel_stride);
    return tms_check_read_kv(dev, kv);
}

tamis_status tms_check_read_kv(tms_device *dev, const tms_kv *kv) {
    if (kv->page_size == 0 || kv->page_size > TMS_MOST_PAGE ||
        (kv->page_size & (kv->page_size - 1)))
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "page size %u: must be a power of two from 1 to %u", kv->page_size,
                               TMS_MOST_PAGE);
    if (!tms_head_dim_known(kv->head_dim))
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "head dim %u: supported are " TMS_HEAD_DIM_WORDS, kv->head_dim);
    if (!tms_dtype_known(kv->dtype))
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "cache dtype %d is none of" TMS_DTYPE_WORDS, (int)kv->dtype);
    const bool scaled = tms_has_blocks(kv->dtype);
    if (kv->bounds.mem && kv->bounds_dtype != tms_bounds_dtype(kv->dtype) &&
        kv->bounds_dtype != TAMIS_Q8)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "bounds of dtype %s for a cache of dtype %s",
                               tamis_dtype_name(kv->bounds_dtype), tamis_dtype_name(kv->dtype));
    if (scaled) {
        const tamis_status status = check_page_size(dev, kv->page_size);
        if (status != TAMIS_OK) return status;
    }
    const tamis_status placed = check_only_read(dev, kv);
    if (placed != TAMIS_OK) return placed;
    const bool packed = kv->page_size > 1; /* a row behind another */
    if (packed && kv->channel_stride <= 1 && kv->slot_stride < kv->head_dim)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "slot stride %llu: less than the head dim %u",
                               (unsigned long long)kv->slot_stride, kv->head_dim);
    if (packed && kv->apart.data.mem && kv->apart.channel_stride <= 1 &&
        kv->apart.slot_stride < kv->head_dim)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "slot stride %llu of values: less than the head dim %u",
                               (unsigned long long)kv->apart.slot_stride, kv->head_dim);
    if (scaled && kv->slot_stride != kv->head_dim)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "slot stride %llu: in a cache of %s it must be the head dim %u",
                               (unsigned long long)kv->slot_stride, tamis_dtype_name(kv->dtype),
                               kv->head_dim);
    tamis_status status = TAMIS_OK;
    if (scaled)
        status = check_scales(dev, "K and V", kv->data.offset, kv->page_stride, kv->head_stride,
                              kv->value_offset);
    if (status == TAMIS_OK && kv->bounds.mem && kv->bounds_dtype == TAMIS_Q8)
        status = check_scales(dev, "bounds", kv->bounds.offset, kv->bounds_page_stride,
                              kv->bounds_head_stride, 0);
    return status;
}

/* Checks that a launch with rows has its tables. */
static tamis_status check_tables(tms_device *dev, const tms_batch *batch) {
    const struct {
        const char *name;
        const tms_mem *mem;
    } tables[] = {{"tiles", batch->tiles.mem},
                  {"row_seq", batch->row_seq.mem},
                  {"visible", batch->visible.mem},
                  {"table", batch->table.mem}};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if (!tables[i].mem)
            return tms_device_fail(dev, TAMIS_E_ARGUMENT, "batch of %u rows: %s is absent",
                                   batch->n_rows, tables[i].name);
    }
    if (batch->n_tiles == 0 || batch->n_tiles > batch->n_rows)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "%u tiles for %u rows", batch->n_tiles,
                               batch->n_rows);
    if (batch->max_tile_rows == 0 || batch->max_tile_rows > TMS_TILE_ROWS)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "tiles of %u rows: must be 1 to %d",
                               batch->max_tile_rows, TMS_TILE_ROWS);
    return TAMIS_OK;
}

static tamis_status check_heads(tms_device *dev, const tms_batch *batch) {
    if (batch->n_kv_heads == 0 || batch->n_heads % batch->n_kv_heads)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "%u query heads: not a multiple of %u KV heads", batch->n_heads,
                               batch->n_kv_heads);
    const uint32_t group = batch->n_heads / batch->n_kv_heads;
    if (group == 0 || group > TMS_MOST_GROUP)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "%u query heads to %u KV heads: the group must be 1 to %d",
                               batch->n_heads, batch->n_kv_heads, TMS_MOST_GROUP);
    return TAMIS_OK;
}

tamis_status tms_check_batch(tms_device *dev, const tms_batch *batch) {
    tamis_status status = check_heads(dev, batch);
    return status == TAMIS_OK && batch->n_rows ? check_tables(dev, batch) : status;
}

tamis_status tms_check_items(tms_device *dev, const tms_batch *batch, bool paged) {
    const bool lacks_table = paged && (!batch->row_seq.mem || !batch->table.mem);
    tamis_status status = check_heads(dev, batch);
    if (status != TAMIS_OK || batch->n_rows == 0) return status;
    if (!batch->visible.mem || lacks_table)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "a batch of %u items: %s is absent",
                               batch->n_rows, batch->visible.mem ? "table or row_seq" : "visible");
    return TAMIS_OK;
}

tamis_status tms_check_bounds(tms_device *dev, const tms_bounds *p) {
    tamis_status status = tms_check_read_kv(dev, &p->kv);
    if (status != TAMIS_OK) return status;
    if (p->kind != TAMIS_BOUNDS_MINMAX && p->kind != TAMIS_BOUNDS_MEAN_STD &&
        p->kind != TAMIS_BOUNDS_MEAN)
        return tms_device_fail(
            dev, TAMIS_E_UNSUPPORTED,
            "bounds kind %d: supported are minmax (0), mean and std (1), mean (2)", (int)p->kind);
    if (p->kind == TAMIS_BOUNDS_MEAN_STD && !(p->width >= 0 && isfinite(p->width)))
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "bounds width %g: must be finite and >= 0",
                               (double)p->width);
    return TAMIS_OK;
}

tamis_status tms_check_matrix(tms_device *dev, const char *op, const char *name,
                              const tms_matrix *matrix, uint32_t n_rows, uint64_t width) {
    if (n_rows == 0) return TAMIS_OK;
    if (n_rows > 1 && matrix->stride < width)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "%s: %s: rows of %llu elements at a stride of %llu", op, name,
                               (unsigned long long)width, (unsigned long long)matrix->stride);
    return tms_check_there(dev, op, name, matrix->ref);
}

tamis_status tms_check_there(tms_device *dev, const char *op, const char *name, tms_ref ref) {
    if (ref.mem) return TAMIS_OK;
    return tms_device_fail(dev, TAMIS_E_ARGUMENT, "%s: %s is absent", op, name);
}

tamis_status tms_check_dtype(tms_device *dev, const char *op, tamis_dtype dtype) {
    if (tms_dtype_of_rows(dtype)) return TAMIS_OK;
    return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                           "%s: dtype %d: f32, f16 and bf16 are supported", op, (int)dtype);
}

tamis_status tms_check_own_pages(tms_device *dev, const char *op, uint64_t kv_head_stride,
                                 const tms_batch *b) {
    if (b->n_kv_heads == 1 || (kv_head_stride == 0 && (b->head_stride || b->n_rows == 0)))
        return TAMIS_OK;
    return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                           "%s: a plane on pages that %u KV heads share (head strides of %llu "
                           "elements, which must be 0, and %llu page ids)",
                           op, b->n_kv_heads, (unsigned long long)kv_head_stride,
                           (unsigned long long)b->head_stride);
}

tamis_status tms_check_planes(tms_device *dev, const char *op, const tms_kv *kv,
                              const tms_batch *batch, const tms_planes *planes) {
    const bool given = planes->positions.mem || planes->scores.mem;
    return given ? tms_check_own_pages(dev, op, kv->head_stride, batch) : TAMIS_OK;
}

/* Planes have one entry for each slot of a page, so heads that share pages cannot have planes. */
static tamis_status check_written_planes(tms_device *dev, const char *op, const tms_kv *kv,
                                         const tms_batch *batch, const tms_planes *planes,
                                         tms_ref positions) {
    const bool any = planes->positions.mem || planes->scores.mem;
    if (any && batch->n_kv_heads > 1 && kv->head_stride)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "%s: planes beside pages that %u KV heads share", op,
                               batch->n_kv_heads);
    if (batch->n_rows && planes->positions.mem && !positions.mem)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "%s: a plane of positions, and none for %u rows", op, batch->n_rows);
    return TAMIS_OK;
}

static tamis_status check_rotation(tms_device *dev, const tms_write_rotated *p) {
    const tms_rotation *rotation = &p->rotation;
    const uint32_t n = p->batch.n_rows;
    tamis_status status = tms_check_rotated(dev, "write_rotated", rotation->n_rot, p->kv.head_dim);
    if (status != TAMIS_OK) return status;
    if (p->dtype != TAMIS_F32)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "write_rotated: rows of %s are to be rotated: must be f32",
                               tamis_dtype_name(p->dtype));
    if (n == 0) return TAMIS_OK;
    status = tms_check_matrix(dev, "write_rotated", "q", &rotation->q, n,
                              (uint64_t)p->batch.n_heads * p->kv.head_dim);
    if (status == TAMIS_OK)
        status =
            tms_check_there(dev, "write_rotated", "the rotation's positions", rotation->positions);
    return status == TAMIS_OK
               ? tms_check_there(dev, "write_rotated", "the rotation's table", rotation->table)
               : status;
}

static tamis_status check_write(tms_device *dev, const char *op, const tms_write_rows *p) {
    const uint64_t width = (uint64_t)p->batch.n_kv_heads * p->kv.head_dim;
    tamis_status status = tms_check_kv(dev, &p->kv);
    if (status != TAMIS_OK) return status;
    if (p->dtype != TAMIS_F32 && (p->dtype != p->kv.dtype || !tms_dtype_of_rows(p->dtype)))
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "%s: %s rows into a cache of %s: must be %s",
                               op, tamis_dtype_name(p->dtype), tamis_dtype_name(p->kv.dtype),
                               tms_dtype_of_rows(p->kv.dtype) ? "f32 or the cache's dtype" : "f32");
    if (p->batch.n_rows > 1 && (p->k_stride < width || p->v_stride < width))
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "%s: rows of %llu elements at strides of %llu and %llu", op,
                               (unsigned long long)width, (unsigned long long)p->k_stride,
                               (unsigned long long)p->v_stride);
    return check_written_planes(dev, op, &p->kv, &p->batch, &p->planes, p->positions);
}

tamis_status tms_check_write_rows(tms_device *dev, const tms_write_rows *p) {
    if (p->rotation.n_rot)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "write_rows: a rotation of %u channels: that is write_rotated",
                               p->rotation.n_rot);
    return check_write(dev, "write_rows", p);
}

tamis_status tms_check_write_rotated(tms_device *dev, const tms_write_rotated *p) {
    const tamis_status status = check_write(dev, "write_rotated", p);
    return status == TAMIS_OK ? check_rotation(dev, p) : status;
}

/* What is there of K and of V, with the rows' strides. */
static tamis_status check_loaded(tms_device *dev, const tms_load_rows *p) {
    const uint64_t width = (uint64_t)p->batch.n_kv_heads * p->kv.head_dim;
    const uint32_t n = p->batch.n_rows;
    if (n && !p->k.mem && !p->v.mem)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "load_rows: %u rows without k and v", n);
    if (n && !p->k.mem && (p->planes.positions.mem || p->planes.scores.mem))
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "load_rows: planes for %u rows without k", n);
    if (n > 1 && ((p->k.mem && p->k_stride < width) || (p->v.mem && p->v_stride < width)))
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "load_rows: rows of %llu elements at strides of %llu and %llu",
                               (unsigned long long)width, (unsigned long long)p->k_stride,
                               (unsigned long long)p->v_stride);
    return TAMIS_OK;
}

tamis_status tms_check_load_rows(tms_device *dev, const tms_load_rows *p) {
    const struct {
        const char *name;
        tms_ref ref;
        bool needed;
    } refs[] = {{"slots", p->slots, true},
                {"row_seq", p->batch.row_seq, true},
                {"table of pages", p->batch.table, true},
                {"positions", p->positions, p->n_rot},
                {"table", p->table, p->n_rot}};
    tamis_status status = tms_check_kv(dev, &p->kv);
    if (status == TAMIS_OK) status = tms_check_dtype(dev, "load_rows", p->dtype);
    if (status == TAMIS_OK) status = check_loaded(dev, p);
    if (status == TAMIS_OK)
        status =
            check_written_planes(dev, "load_rows", &p->kv, &p->batch, &p->planes, p->positions);
    if (status == TAMIS_OK && p->n_rot)
        status = tms_check_rotated(dev, "load_rows", p->n_rot, p->kv.head_dim);
    for (size_t i = 0; status == TAMIS_OK && p->batch.n_rows && i < sizeof refs / sizeof *refs; i++)
        if (refs[i].needed) status = tms_check_there(dev, "load_rows", refs[i].name, refs[i].ref);
    return status;
}

tamis_status tms_check_read_rows(tms_device *dev, const tms_read_rows *p) {
    const struct {
        const char *name;
        tms_ref ref;
    } needed[] = {{"table", p->table}, {"seq", p->seq}, {"head", p->head}, {"slot", p->slot}};
    tamis_status status = tms_check_kv(dev, &p->kv);
    for (size_t i = 0; status == TAMIS_OK && p->n && i < sizeof needed / sizeof *needed; i++)
        status = tms_check_there(dev, "read_rows", needed[i].name, needed[i].ref);
    return status;
}

tamis_status tms_check_copy_slots(tms_device *dev, const tms_copy_slots *p) {
    const struct {
        const char *name;
        tms_ref ref;
    } needed[] = {{"row_seq", p->batch.row_seq},
                  {"table", p->batch.table},
                  {"to_seq", p->to_seq},
                  {"from", p->from},
                  {"to", p->to}};
    tamis_status status = tms_check_kv(dev, &p->kv);
    for (size_t i = 0; status == TAMIS_OK && p->batch.n_rows && i < sizeof needed / sizeof *needed;
         i++)
        status = tms_check_there(dev, "copy_slots", needed[i].name, needed[i].ref);
    return status == TAMIS_OK ? tms_check_planes(dev, "copy_slots", &p->kv, &p->batch, &p->planes)
                              : status;
}

tamis_status tms_check_copy_pages(tms_device *dev, const tms_copy_pages *p) {
    if (p->bytes == 0 || p->bytes % 16)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "copy_pages: blocks of %llu bytes: must be a multiple of 16 above 0",
                               (unsigned long long)p->bytes);
    if (p->n == 0) return TAMIS_OK;
    tamis_status status = tms_check_there(dev, "copy_pages", "data", p->data);
    return status == TAMIS_OK ? tms_check_there(dev, "copy_pages", "pairs", p->pairs) : status;
}

tamis_status tms_check_write_table(tms_device *dev, const tms_write_table *p) {
    if (p->n == 0) return TAMIS_OK;
    tamis_status status = tms_check_there(dev, "write_table", "data", p->data);
    return status == TAMIS_OK ? tms_check_there(dev, "write_table", "entries", p->entries) : status;
}

/* The common rules of score_pages and page_mass. */
static tamis_status check_scores(tms_device *dev, const char *op, const tms_kv *kv,
                                 const tms_batch *batch, const tms_matrix *q, uint32_t stride) {
    tamis_status status = tms_check_read_kv(dev, kv);
    if (status == TAMIS_OK) status = tms_check_batch(dev, batch);
    if (status != TAMIS_OK) return status;
    const uint32_t full = batch->max_visible / kv->page_size;
    if (batch->n_rows && stride < full)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "%s: a stride of %u scores for lanes of %u full pages", op, stride,
                               full);
    return tms_check_matrix(dev, op, "q", q, batch->n_rows,
                            (uint64_t)batch->n_heads * kv->head_dim);
}

tamis_status tms_check_rotated(tms_device *dev, const char *op, uint32_t n_rot, uint32_t head_dim) {
    const uint32_t most = head_dim < TMS_MOST_HEAD_DIM ? head_dim : TMS_MOST_HEAD_DIM;
    if (n_rot % 2 == 0 && n_rot > 0 && n_rot <= most) return TAMIS_OK;
    return tms_device_fail(
        dev, TAMIS_E_ARGUMENT,
        "%s: %u channels of a head of %u: must be even, 2 to the head's, at most %d", op, n_rot,
        head_dim, TMS_MOST_HEAD_DIM);
}

tamis_status tms_check_seek(tms_device *dev, const tms_seek *p) {
    const struct {
        const char *name;
        tms_ref ref;
    } needed[] = {{"positions", p->positions}, {"least", p->least}, {"out", p->out}};
    tamis_status status = tms_check_items(dev, &p->batch, true);
    if (status == TAMIS_OK && p->page_size == 0)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "seek: pages of 0 slots");
    for (size_t i = 0; status == TAMIS_OK && p->batch.n_rows && i < sizeof needed / sizeof *needed;
         i++)
        status = tms_check_there(dev, "seek", needed[i].name, needed[i].ref);
    return status;
}

tamis_status tms_check_score_pages(tms_device *dev, const tms_score_pages *p) {
    return check_scores(dev, "score_pages", &p->kv, &p->batch, &p->q, p->stride);
}

tamis_status tms_check_logit(tms_device *dev, const char *op, const tms_logit *logit) {
    const double scale = (double)logit->scale, cap = (double)logit->soft_cap;
    if (isfinite(scale) && isfinite(cap) && cap >= 0) return TAMIS_OK;
    return tms_device_fail(dev, TAMIS_E_ARGUMENT, "%s: logits of scale %g and soft_cap %g", op,
                           scale, cap);
}

tamis_status tms_check_page_mass(tms_device *dev, const tms_page_mass *p) {
    const tamis_status status = tms_check_logit(dev, "page_mass", &p->logit);
    if (status != TAMIS_OK) return status;
    return check_scores(dev, "page_mass", &p->kv, &p->batch, &p->q, p->stride);
}

#define SELECT_MOST_ENTRIES (1u << 22) /* of a lane */

static tamis_status check_select_row(tms_device *dev, const tms_select *p, uint64_t n) {
    const tms_select_wide *w = &p->wide;
    const uint32_t heads = p->batch.n_kv_heads;
    if (w->k_table.mem || w->mass > 0 || w->positions.mem)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "select: scope row (%d) with %s",
                               (int)w->scope,
                               w->k_table.mem ? "a k_table"
                               : w->mass > 0  ? "a mass"
                                              : "positions");
    if (n * heads > UINT32_MAX)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "select: a row of %u KV heads of %llu entries: at most %u in all",
                               heads, (unsigned long long)n, UINT32_MAX);
    return TAMIS_OK;
}

static tamis_status check_select_wide(tms_device *dev, const tms_select *p) {
    const tms_select_wide *w = &p->wide;
    const uint64_t n = tms_divide_up(p->batch.max_visible, p->granularity);
    if (w->scope != TMS_SCOPE_LANE && w->scope != TMS_SCOPE_ROW)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "select: scope %d: supported are lane (0), row (1)", (int)w->scope);
    if (n > SELECT_MOST_ENTRIES)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "select: lanes of %llu entries: at most %u", (unsigned long long)n,
                               SELECT_MOST_ENTRIES);
    if (w->mass > 0 && !p->scores.mem)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "select: a mass of %g without scores",
                               (double)w->mass);
    if (w->positions.mem && w->page_size == 0)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "select: positions with a page size of 0");
    if (w->positions.mem && p->batch.n_rows && !w->row_positions.mem)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "select: positions of slots, none of the %u rows", p->batch.n_rows);
    return w->scope == TMS_SCOPE_ROW ? check_select_row(dev, p, n) : TAMIS_OK;
}

tamis_status tms_check_select(tms_device *dev, const tms_select *p) {
    const tms_batch *b = &p->batch;
    const bool wide = tms_select_is_wide(p);
    tamis_status status = tms_check_items(dev, b, !wide || p->wide.positions.mem);
    if (status != TAMIS_OK) return status;
    if (p->granularity == 0)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "select: a granularity of 0 slots");
    if (p->scores.mem && b->n_rows && p->stride < b->max_visible / p->granularity)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "select: a stride of %u scores for lanes of %u entries", p->stride,
                               b->max_visible / p->granularity);
    if (!(p->wide.mass >= 0))
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "select: a mass of %g: must be 0 or more",
                               (double)p->wide.mass);
    if (wide && b->first.mem)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "select: a wide selection with first slots that rows see");
    if (wide) status = check_select_wide(dev, p);
    if (status == TAMIS_OK && tms_select_most(p) > p->lists.capacity)
        status = tms_device_fail(dev, TAMIS_E_ARGUMENT, "select: %u entries in a list of %u",
                                 tms_select_most(p), p->lists.capacity);
    return status;
}

tamis_status tms_check_take_lists(tms_device *dev, const tms_take_lists *p) {
    const struct {
        const char *name;
        tms_ref ref;
    } needed[] = {{"raw lists", p->raw.pages},
                  {"raw counts", p->raw.count},
                  {"lists", p->lists.pages},
                  {"counts", p->lists.count},
                  {"skipped", p->skipped}};
    tamis_status status = tms_check_items(dev, &p->batch, true);
    if (status != TAMIS_OK) return status;
    if (p->granularity == 0)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "take_lists: a granularity of 0 slots");
    if (p->ids.mem && (p->granularity != 1 || p->page_size == 0 || p->page_slots < p->page_size))
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "take_lists: ids of entries of %u slots, in pages of %u slots, %u "
                               "slots apart",
                               p->granularity, p->page_size, p->page_slots);
    if (p->batch.n_rows == 0) return TAMIS_OK;
    if (tms_take_lists_most(p) > p->lists.capacity)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "take_lists: %u entries in a list of %u",
                               tms_take_lists_most(p), p->lists.capacity);
    for (size_t i = 0; status == TAMIS_OK && i < sizeof needed / sizeof *needed; i++)
        status = tms_check_there(dev, "take_lists", needed[i].name, needed[i].ref);
    return status;
}

static tamis_status check_logits(tms_device *dev, const tms_attend *p) {
    const tms_batch *b = &p->batch;
    if (b->max_tile_rows > 1)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "attend: logits of tiles of %u rows: there are none but of 1",
                               b->max_tile_rows);
    if (p->logit_stride < b->max_visible)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "attend: a stride of %llu logits for lanes of %u slots",
                               (unsigned long long)p->logit_stride, b->max_visible);
    return TAMIS_OK;
}

tamis_status tms_check_attend(tms_device *dev, const tms_attend *p) {
    const tms_batch *b = &p->batch;
    tamis_status status = tms_check_read_kv(dev, &p->kv);
    if (status == TAMIS_OK) status = tms_check_batch(dev, b);
    if (status == TAMIS_OK) status = tms_check_logit(dev, "attend", &p->logit);
    if (status != TAMIS_OK) return status;
    const uint32_t all = (uint32_t)tms_divide_up(b->max_visible, p->kv.page_size);
    if (b->n_rows && !p->lists.pages.mem && p->max_pages < all)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "attend: max_pages is %u and a lane may have %u pages", p->max_pages,
                               all);
    if (p->lists.pages.mem && p->max_pages > p->lists.capacity)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "attend: max_pages is %u and lists hold %u",
                               p->max_pages, p->lists.capacity);
    const uint64_t width = (uint64_t)b->n_heads * p->kv.head_dim;
    if (b->n_rows && p->logit.sinks.mem && !p->lse.mem)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "attend: sinks without lse");
    status = tms_check_matrix(dev, "attend", "q", &p->q, b->n_rows, width);
    if (status == TAMIS_OK)
        status = tms_check_matrix(dev, "attend", "out", &p->out, b->n_rows, width);
    return status == TAMIS_OK && p->logits.mem && b->n_rows ? check_logits(dev, p) : status;
}

tamis_status tms_check_sparse_attend(tms_device *dev, const tms_sparse_attend *p) {
    const tms_score_pages *s = &p->score;
    tamis_status status = check_scores(dev, "sparse_attend", &s->kv, &s->batch, &s->q, s->stride);
    if (status == TAMIS_OK) status = tms_check_select(dev, &p->select);
    if (status != TAMIS_OK) return status;
    if (tms_select_is_wide(&p->select))
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "sparse_attend: a wide selection (scope %d)",
                               (int)p->select.wide.scope);
    const uint32_t most = tms_select_most(&p->select), max_pages = p->attend.max_pages;
    if (most > max_pages || max_pages > p->select.lists.capacity)
        return tms_device_fail(
            dev, TAMIS_E_ARGUMENT,
            "sparse_attend: select gives %u entries, max_pages is %u and lists hold %u", most,
            max_pages, p->select.lists.capacity);
    return tms_check_attend(dev, &p->attend);
}

/* What is written and what is attended are the same rows, of which no two are of one sequence. */
static tamis_status check_own_rows(tms_device *dev, const char *op, const tms_write_rotated *w,
                                   const tms_attend *a) {
    const tms_batch *b = &a->batch;
    if (w->rotation.n_rot == 0 || w->batch.n_rows != b->n_rows || b->max_tile_rows > 1)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "%s: %u rows are written, with %u channels rotated, and %u attended "
                               "in tiles of %u",
                               op, w->batch.n_rows, w->rotation.n_rot, b->n_rows, b->max_tile_rows);
    return TAMIS_OK;
}

tamis_status tms_check_write_attend(tms_device *dev, const tms_write_attend *p) {
    tamis_status status = tms_check_write_rotated(dev, &p->write);
    if (status == TAMIS_OK) status = tms_check_attend(dev, &p->attend);
    return status == TAMIS_OK ? check_own_rows(dev, "write_attend", &p->write, &p->attend) : status;
}

tamis_status tms_check_write_sparse_attend(tms_device *dev, const tms_write_sparse_attend *p) {
    const tms_attend *a = &p->sparse.attend;
    tamis_status status = tms_check_write_rotated(dev, &p->write);
    if (status == TAMIS_OK) status = tms_check_sparse_attend(dev, &p->sparse);
    return status == TAMIS_OK ? check_own_rows(dev, "write_sparse_attend", &p->write, a) : status;
}

tamis_status tms_check_merge(tms_device *dev, const tms_merge *p) {
    if (p->n == 0 || p->dim == 0) return TAMIS_OK;
    tamis_status status = tms_check_there(dev, "merge", "out", p->out);
    if (status != TAMIS_OK || p->n_parts == 0) return status;
    status = tms_check_there(dev, "merge", "outs", p->outs);
    return status == TAMIS_OK ? tms_check_there(dev, "merge", "lses", p->lses) : status;
}

tamis_status tms_check_sink(tms_device *dev, const tms_sink *p) {
    const uint64_t width = (uint64_t)p->n_heads * p->dim;
    tamis_status status = tms_check_matrix(dev, "sink", "out", &p->out, p->n_rows, width);
    if (status != TAMIS_OK || p->n_rows == 0) return status;
    status = tms_check_there(dev, "sink", "lse", p->lse);
    return status == TAMIS_OK ? tms_check_there(dev, "sink", "sinks", p->sinks) : status;
}
