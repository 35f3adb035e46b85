/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the contract for the ops of evictions. */
#include "host/checks.h"

/* Checks values of `n` slots per lane: a plane, or rows beside the cache that are wide enough. */
static tamis_status check_values(tms_device *dev, const char *op, const char *name,
                                 const tms_values *values, uint32_t n) {
    if (values->ref.mem && values->stride && values->stride < n)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "%s: %s has a stride of %llu for %u slots",
                               op, name, (unsigned long long)values->stride, n);
    return TAMIS_OK;
}

static tamis_status check_stride(tms_device *dev, const char *op, const char *name, uint64_t stride,
                                 uint32_t n) {
    if (stride >= n) return TAMIS_OK;
    return tms_device_fail(dev, TAMIS_E_ARGUMENT, "%s: %s has a stride of %llu for %u slots", op,
                           name, (unsigned long long)stride, n);
}

/* Checks that memory differs in launches that read `from` after they have begun to write `to`. */
static tamis_status check_apart(tms_device *dev, const char *op, tms_ref from, tms_ref to) {
    if (from.mem != to.mem || from.offset != to.offset || !from.mem) return TAMIS_OK;
    return tms_device_fail(dev, TAMIS_E_ARGUMENT, "%s: out is x (offset %llu of the same memory)",
                           op, (unsigned long long)to.offset);
}

static tamis_status check_paged(tms_device *dev, const tms_kv *kv, const tms_batch *batch) {
    tamis_status status = tms_check_kv(dev, kv);
    return status == TAMIS_OK ? tms_check_items(dev, batch, true) : status;
}

tamis_status tms_check_observe(tms_device *dev, const tms_observe *p) {
    const tms_batch *b = &p->batch;
    tamis_status status = tms_check_read_kv(dev, &p->kv);
    if (status == TAMIS_OK) status = tms_check_items(dev, b, true);
    if (status == TAMIS_OK) status = tms_check_logit(dev, "observe", &p->logit);
    if (status != TAMIS_OK) return status;
    if (p->rows > TAMIS_ROWS_MAX || p->group > TAMIS_GROUP_SUM)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "observe: join %d over rows, %d over groups",
                               (int)p->rows, (int)p->group);
    if (b->n_rows == 0 || p->n_items == 0) return TAMIS_OK;
    if (!p->values.ref.mem && !p->tile.mem)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "observe: neither values nor a tile");
    if (p->max_span == 0 || p->lse_stride < b->n_heads)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "observe: spans of up to %u rows, lse of %llu for %u heads",
                               p->max_span, (unsigned long long)p->lse_stride, b->n_heads);
    status = tms_check_there(dev, "observe", "spans", p->spans);
    if (status == TAMIS_OK) status = tms_check_there(dev, "observe", "lse", p->lse);
    if (status == TAMIS_OK && !p->logits.mem)
        status = tms_check_matrix(dev, "observe", "q", &p->q, b->n_rows,
                                  (uint64_t)b->n_heads * p->kv.head_dim);
    if (status == TAMIS_OK && p->logits.mem)
        status = check_stride(dev, "observe", "logits", p->logit_stride, b->max_visible);
    if (status == TAMIS_OK && p->tile.mem)
        status = check_stride(dev, "observe", "the tile", p->tile_stride, b->max_visible);
    if (status == TAMIS_OK && p->values.ref.mem && p->values.stride == 0)
        status = tms_check_own_pages(dev, "observe", p->kv.head_stride, b);
    return status == TAMIS_OK ? check_values(dev, "observe", "values", &p->values, b->max_visible)
                              : status;
}

tamis_status tms_check_pool_values(tms_device *dev, const tms_pool_values *p) {
    tamis_status status = tms_check_items(dev, &p->batch, false);
    if (status != TAMIS_OK) return status;
    if (p->kernel % 2 == 0)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "pool: a kernel of %u: must be odd",
                               p->kernel);
    if (p->kind > TAMIS_POOL_AVERAGE)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "pool: there is no kind %d", (int)p->kind);
    if (p->keep_sum && p->kind != TAMIS_POOL_AVERAGE)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "pool: keep_sum goes with averages only");
    if (p->batch.n_rows == 0) return TAMIS_OK;
    if (p->n_lists == 0) return tms_device_fail(dev, TAMIS_E_ARGUMENT, "pool: 0 lists");
    const uint32_t n = p->batch.max_visible > p->tail ? p->batch.max_visible - p->tail : 0;
    status = check_apart(dev, "pool", p->x, p->out);
    return status == TAMIS_OK ? check_stride(dev, "pool", "a list", p->stride, n) : status;
}

tamis_status tms_check_value_score(tms_device *dev, const tms_value_score *p) {
    const uint32_t n = p->batch.max_visible;
    tamis_status status = check_paged(dev, &p->kv, &p->batch);
    if (status != TAMIS_OK || p->batch.n_rows == 0) return status;
    if (p->n_lists == 0) return tms_device_fail(dev, TAMIS_E_ARGUMENT, "value_score: 0 lists");
    status = check_stride(dev, "value_score", "a", p->stride, n);
    if (status == TAMIS_OK) status = check_stride(dev, "value_score", "out", p->out_stride, n);
    return status == TAMIS_OK ? tms_check_there(dev, "value_score", "limits", p->limits) : status;
}

tamis_status tms_check_value_norm(tms_device *dev, const tms_value_norm *p) {
    tamis_status status = check_paged(dev, &p->kv, &p->batch);
    if (status != TAMIS_OK) return status;
    if (p->kind > TMS_VALUE_L1_PROJECTED)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "value_norm: there is no kind %d",
                               (int)p->kind);
    if (p->kind == TMS_VALUE_L1_PROJECTED) {
        const uint64_t width = (uint64_t)p->batch.n_heads * p->kv.head_dim;
        status = tms_check_dtype(dev, "value_norm", p->w_dtype);
        if (status != TAMIS_OK || p->batch.n_rows == 0) return status;
        status = tms_check_there(dev, "value_norm", "w", p->w);
        if (status == TAMIS_OK && (p->n_out == 0 || p->w_stride < width))
            status = tms_device_fail(
                dev, TAMIS_E_ARGUMENT, "value_norm: w of %u rows at a stride of %llu for %llu",
                p->n_out, (unsigned long long)p->w_stride, (unsigned long long)width);
    }
    if (status != TAMIS_OK || p->batch.n_rows == 0) return status;
    return check_stride(dev, "value_norm", "out", p->out_stride, p->batch.max_visible);
}

tamis_status tms_check_key_score(tms_device *dev, const tms_key_score *p) {
    tamis_status status = check_paged(dev, &p->kv, &p->batch);
    if (status != TAMIS_OK) return status;
    if (p->kind > TMS_KEY_QUADRATIC)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "key_score: there is no kind %d",
                               (int)p->kind);
    if (p->batch.n_rows == 0) return TAMIS_OK;
    if (p->kind == TMS_KEY_QUADRATIC) {
        status = tms_check_there(dev, "key_score", "mu", p->mu);
        if (status == TAMIS_OK) status = tms_check_there(dev, "key_score", "cov", p->cov);
        if (status != TAMIS_OK) return status;
    }
    return check_stride(dev, "key_score", "out", p->out_stride, p->batch.max_visible);
}

tamis_status tms_check_score_rows(tms_device *dev, const tms_score_rows *p) {
    const struct {
        const char *name;
        tms_ref ref;
    } needed[] = {{"slots", p->slots},
                  {"scores", p->scores},
                  {"row_seq", p->batch.row_seq},
                  {"table", p->batch.table}};
    tamis_status status = tms_check_kv(dev, &p->kv);
    for (size_t i = 0; status == TAMIS_OK && p->batch.n_rows && i < sizeof needed / sizeof *needed;
         i++)
        status = tms_check_there(dev, "score_rows", needed[i].name, needed[i].ref);
    return status == TAMIS_OK ? tms_check_own_pages(dev, "score_rows", p->kv.head_stride, &p->batch)
                              : status;
}

tamis_status tms_check_deviation(tms_device *dev, const tms_deviation *p) {
    const uint64_t width = (uint64_t)p->batch.n_kv_heads * p->kv.head_dim;
    const struct {
        const char *name;
        tms_ref ref;
    } needed[] = {{"slots", p->slots},
                  {"out", p->out},
                  {"row_seq", p->batch.row_seq},
                  {"table", p->batch.table}};
    tamis_status status = tms_check_kv(dev, &p->kv);
    for (size_t i = 0; status == TAMIS_OK && p->batch.n_rows && i < sizeof needed / sizeof *needed;
         i++)
        status = tms_check_there(dev, "deviation", needed[i].name, needed[i].ref);
    return status == TAMIS_OK && p->batch.n_rows
               ? tms_check_matrix(dev, "deviation", "x", &p->x, p->batch.n_rows, width)
               : status;
}

static tamis_status check_fuse_kind(tms_device *dev, const tms_fuse *p) {
    const bool lists = p->kind == TMS_FUSE_LISTS_SUM || p->kind == TMS_FUSE_LISTS_MAX;
    if (p->kind == TMS_FUSE_CHUNK_SUM && (p->chunk == 0 || p->out.stride == 0))
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "fuse: chunks of %u slots into an out of stride %llu", p->chunk,
                               (unsigned long long)p->out.stride);
    if (lists && (p->n_lists == 0 || p->x.stride == 0))
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "fuse: %u lists at a stride of %llu",
                               p->n_lists, (unsigned long long)p->x.stride);
    if (p->kind == TMS_FUSE_LIFETIME && (!p->positions.mem || !p->now.mem))
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "fuse: lifetime without %s",
                               p->positions.mem ? "now" : "positions");
    return lists || p->kind == TMS_FUSE_CHUNK_SUM ? check_apart(dev, "fuse", p->x.ref, p->out.ref)
                                                  : TAMIS_OK;
}

tamis_status tms_check_fuse(tms_device *dev, const tms_fuse *p) {
    const bool paged = tms_fuse_is_paged(p);
    const uint32_t most = p->batch.max_visible, n = most > p->tail ? most - p->tail : 0;
    tamis_status status = tms_check_items(dev, &p->batch, paged);
    if (status != TAMIS_OK) return status;
    if (p->kind > TMS_FUSE_LISTS_MAX)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "fuse: there is no kind %d", (int)p->kind);
    if (p->batch.n_rows == 0) return TAMIS_OK;
    status = check_fuse_kind(dev, p);
    if (status == TAMIS_OK) status = tms_check_there(dev, "fuse", "x", p->x.ref);
    if (status == TAMIS_OK) status = tms_check_there(dev, "fuse", "out", p->out.ref);
    if (status == TAMIS_OK && p->kind == TMS_FUSE_MULTIPLY)
        status = tms_check_there(dev, "fuse", "y", p->y.ref);
    if (status == TAMIS_OK) status = check_values(dev, "fuse", "x", &p->x, n);
    if (status == TAMIS_OK && tms_fuse_reads_y(p))
        status = check_values(dev, "fuse", "y", &p->y, n);
    if (status == TAMIS_OK && paged && p->page_size == 0)
        status = tms_device_fail(dev, TAMIS_E_ARGUMENT, "fuse: planes of 0 slots a page");
    if (status == TAMIS_OK && p->out.stride == 0)
        status = tms_check_own_pages(dev, "fuse", 0, &p->batch);
    const uint32_t n_out = p->kind == TMS_FUSE_CHUNK_SUM ? (uint32_t)tms_divide_up(n, p->chunk) : n;
    return status == TAMIS_OK ? check_values(dev, "fuse", "out", &p->out, n_out) : status;
}

tamis_status tms_check_compact(tms_device *dev, const tms_compact *p) {
    tamis_status status = check_paged(dev, &p->kv, &p->batch);
    if (status != TAMIS_OK) return status;
    if (p->granularity == 0)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "compact: a granularity of 0 slots");
    status = tms_check_planes(dev, "compact", &p->kv, &p->batch, &p->planes);
    if (status != TAMIS_OK || p->batch.n_rows == 0) return status;
    status = tms_check_there(dev, "compact", "lists", p->lists.pages);
    if (status == TAMIS_OK) status = tms_check_there(dev, "compact", "counts", p->lists.count);
    return status == TAMIS_OK ? tms_check_there(dev, "compact", "to", p->to) : status;
}

tamis_status tms_check_replace(tms_device *dev, const tms_replace *p) {
    const struct {
        const char *name;
        tms_ref ref;
    } needed[] = {{"plane of positions", p->planes.positions},
                  {"turns", p->turns},
                  {"slots", p->slots},
                  {"changed", p->changed},
                  {"positions", p->positions}};
    tamis_status status = check_paged(dev, &p->kv, &p->batch);
    if (status == TAMIS_OK)
        status = tms_check_planes(dev, "replace", &p->kv, &p->batch, &p->planes);
    for (size_t i = 0; status == TAMIS_OK && p->batch.n_rows && i < sizeof needed / sizeof *needed;
         i++)
        status = tms_check_there(dev, "replace", needed[i].name, needed[i].ref);
    return status;
}

tamis_status tms_check_observed_attend(tms_device *dev, const tms_observed_attend *p) {
    const tms_attend *a = &p->attend;
    tamis_status status = tms_check_attend(dev, a);
    if (status == TAMIS_OK) status = tms_check_observe(dev, &p->observe);
    if (status != TAMIS_OK) return status;
    if (a->logit.sinks.mem)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "observed_attend: sinks (offset %llu of their memory)",
                               (unsigned long long)a->logit.sinks.offset);
    if (p->observe.n_items != a->batch.n_rows || p->observe.tile.mem)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "observed_attend: %u items of %u rows%s",
                               p->observe.n_items, a->batch.n_rows,
                               p->observe.tile.mem ? ", with a tile" : "");
    status = tms_check_there(dev, "observed_attend", "logits", a->logits);
    return status == TAMIS_OK && a->batch.n_rows
               ? tms_check_there(dev, "observed_attend", "lse", a->lse)
               : status;
}

tamis_status tms_check_replace_rows(tms_device *dev, const tms_replace_rows *p) {
    const uint32_t rows = p->replace.batch.n_rows;
    tamis_status status = tms_check_replace(dev, &p->replace);
    if (status == TAMIS_OK)
        status = p->write.rotation.n_rot ? tms_check_write_rotated(dev, &p->write)
                                         : tms_check_write_rows(dev, &p->write);
    if (status == TAMIS_OK) status = tms_check_bounds(dev, &p->bounds);
    if (status == TAMIS_OK &&
        (p->write.batch.n_rows != rows || p->bounds.n != rows * p->replace.batch.n_kv_heads))
        status = tms_device_fail(dev, TAMIS_E_ARGUMENT,
                                 "replace_rows: %u rows are to be written and %u pages bounded, of "
                                 "%u rows that replace",
                                 p->write.batch.n_rows, p->bounds.n, rows);
    return status;
}

tamis_status tms_check_scatter_rows(tms_device *dev, const tms_scatter_rows *p) {
    if (p->n_rows == 0) return TAMIS_OK;
    if (p->width == 0 || p->y.stride < p->width || (p->n_rows > 1 && p->x.stride < p->width))
        return tms_device_fail(
            dev, TAMIS_E_ARGUMENT, "scatter_rows: rows of %u elements at strides of %llu and %llu",
            p->width, (unsigned long long)p->x.stride, (unsigned long long)p->y.stride);
    tamis_status status = tms_check_there(dev, "scatter_rows", "index", p->index);
    if (status == TAMIS_OK) status = tms_check_there(dev, "scatter_rows", "x", p->x.ref);
    return status == TAMIS_OK ? tms_check_there(dev, "scatter_rows", "y", p->y.ref) : status;
}
