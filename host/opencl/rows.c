/* SPDX-License-Identifier: Apache-2.0 */
/* write_rows and read_rows on OpenCL: shapes and launches of cl_kernels/rows.cl. */
#include "host/opencl/opencl.h"

/* TURN_NUMBERS of rows.clh; a rotation may be none. */
static void set_turns(tms_cl_launch *l, const tms_write_rows *p) {
    const tms_rotation *rotation = &p->rotation;
    const uint32_t n = rotation->n_rot ? p->batch.n_rows : 0, pairs = rotation->n_rot / 2;
    tms_cl_u32(l, pairs);
    tms_cl_u32(l, rotation->pairing == TAMIS_PAIR_ADJACENT);
    tms_cl_ref(l, rotation->positions, sizeof(cl_int), n);
    tms_cl_ref(l, rotation->table, sizeof(cl_float), n ? 4ull * TMS_ROTATE_STEPS * pairs : 0);
    tms_cl_optional(l, rotation->q_norm, sizeof(cl_float), p->kv.head_dim);
    tms_cl_optional(l, rotation->k_norm, sizeof(cl_float), p->kv.head_dim);
    tms_cl_f32(l, rotation->eps);
}

/* ROTATION_NUMBERS, behind those of a write. */
static void set_rotation(tms_cl_launch *l, const tms_write_rows *p) {
    const uint32_t n = p->rotation.n_rot ? p->batch.n_rows : 0, heads = p->batch.n_heads;
    tms_cl_matrix(l, &p->rotation.q, n, (uint64_t)heads * p->kv.head_dim);
    tms_cl_u32(l, heads);
    set_turns(l, p);
}

tms_cl_launch tms_cl_begin_kv(tms_device *dev, const char *file, const char *kernel,
                              const tms_kv *kv) {
    const tamis_dtype bounds =
        kv->bounds_dtype == TAMIS_Q8 ? TAMIS_Q8 : tms_bounds_dtype(kv->dtype);
    return tms_cl_begin(dev, file, kernel,
                        "-DDTYPE=%d -DBOUNDS_DTYPE=%d -DHEAD_DIM=%u -DPAGE_SIZE=%u%s", kv->dtype,
                        bounds, kv->head_dim, kv->page_size, tms_cl_layout_option(kv));
}

/* ROW_NUMBERS: rows of `unit` bytes' elements, n_k and n_v of them. */
static void set_k_v(tms_cl_launch *l, const tms_write_rows *p, size_t unit, uint64_t n_k,
                    uint64_t n_v) {
    tms_cl_ref(l, p->k, unit, n_k);
    tms_cl_u64(l, p->k_stride);
    tms_cl_ref(l, p->v, unit, n_v);
    tms_cl_u64(l, p->v_stride);
}

/* What both kernels take first. */
static void set_rows(tms_cl_launch *l, const tms_write_rows *p, size_t unit, uint64_t n_k,
                     uint64_t n_v) {
    tms_cl_gather(l);
    tms_cl_kv(l, &p->kv, p->batch.n_rows);
    tms_cl_batch(l, &p->batch);
    set_k_v(l, p, unit, n_k, n_v);
}

static void set_slots(tms_cl_launch *l, const tms_write_rows *p) {
    const tms_batch *b = &p->batch;
    tms_cl_ref(l, p->slots, sizeof(cl_int), (uint64_t)b->n_rows * b->n_kv_heads);
    tms_cl_optional(l, p->planes.positions, sizeof(cl_int), 0);
    tms_cl_optional(l, p->planes.scores, sizeof(cl_float), 0);
    tms_cl_optional(l, p->positions, sizeof(cl_int), b->n_rows);
}

/* Elements from the first to the last of n_rows rows. */
static uint64_t reach(const tms_write_rows *p, uint64_t stride) {
    const uint64_t width = (uint64_t)p->batch.n_kv_heads * p->kv.head_dim;
    return tms_rows_extent(p->batch.n_rows, stride, width);
}

/* A kernel for both types of rows, which counts in bytes. */
tamis_status tms_cl_write_rows(tms_device *dev, const tms_write_rows *p) {
    const uint64_t lanes = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
    const size_t size = tamis_dtype_size(p->dtype);
    const tamis_status status = tms_cl_base_only(dev, "write_rows");
    if (status != TAMIS_OK) return status;
    tms_cl_launch l = tms_cl_begin_kv(dev, "rows.cl", "write_rows", &p->kv);
    set_rows(&l, p, 1, reach(p, p->k_stride) * size, reach(p, p->v_stride) * size);
    tms_cl_u32(&l, p->dtype == p->kv.dtype);
    set_slots(&l, p);
    const uint32_t puts =
        tms_has_blocks(p->kv.dtype) ? tms_blocks(p->kv.head_dim) : p->kv.head_dim / 16;
    return tms_cl_run_items(&l, lanes * puts);
}

tamis_status tms_cl_write_rotated(tms_device *dev, const tms_write_rotated *p) {
    const tms_batch *b = &p->batch;
    const tamis_status status = tms_cl_base_only(dev, "write_rotated");
    if (status != TAMIS_OK) return status;
    tms_cl_launch l = tms_cl_begin_kv(dev, "rows.cl", "write_rotated", &p->kv);
    set_rows(&l, p, sizeof(cl_float), reach(p, p->k_stride), reach(p, p->v_stride));
    set_slots(&l, p);
    set_rotation(&l, p);
    return tms_cl_run_items(&l, (uint64_t)b->n_rows * (b->n_heads + b->n_kv_heads));
}

/* ---- In the launch of an attend --------------------------------------------------------------- */

void tms_cl_own_rows(tms_cl_launch *l, const tms_write_rotated *p) {
    const uint64_t cores = l->dev->info.compute_units;
    const uint64_t heads = p->batch.n_heads / p->batch.n_kv_heads + 1;
    const tms_ref of_cores = {&tms_cl(l->dev)->heads, 0};
    set_k_v(l, p, sizeof(cl_float), reach(p, p->k_stride), reach(p, p->v_stride));
    set_slots(l, p);
    set_turns(l, p);
    tms_cl_ref(l, of_cores, sizeof(cl_float), cores * heads * p->kv.head_dim);
}

/* ---- In the slots of evicted tokens ----------------------------------------------------------- */

const char *tms_cl_replace_rows_refusal(tms_device *dev, const tms_replace_rows *p) {
    const char *refusal = tms_cl_no_cpu_form(dev);
    if (refusal) return refusal;
    return p->write.kv.page_size % 16 ? "pages of fewer slots than a vector has" : NULL;
}

tamis_status tms_cl_replace_rows(tms_device *dev, const tms_replace_rows *p) {
    const tms_write_rows *w = &p->write;
    const tms_batch *b = &w->batch;
    const uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads;
    const size_t size = tamis_dtype_size(w->dtype);
    tms_cl_launch l = tms_cl_begin_kv(dev, "replace_rows_cpu.cl", "replace_rows", &w->kv);
    set_rows(&l, w, 1, reach(w, w->k_stride) * size, reach(w, w->v_stride) * size);
    tms_cl_u32(&l, w->dtype == w->kv.dtype);
    set_slots(&l, w);
    set_rotation(&l, w);
    tms_cl_u32(&l, p->replace.sinks);
    tms_cl_u32(&l, p->replace.recent);
    tms_cl_u32(&l, p->replace.planes.scores.mem != NULL);
    tms_cl_u32(&l, p->replace.lifetime && p->replace.planes.scores.mem);
    tms_cl_ref(&l, p->replace.turns, sizeof(cl_int), lanes);
    tms_cl_ref(&l, p->replace.changed, sizeof(cl_int), lanes);
    tms_cl_bounds_of(&l, &w->kv, b->n_rows);
    tms_cl_u32(&l, p->bounds.kind);
    tms_cl_f32(&l, p->bounds.width);
    return tms_cl_run_queue(&l, lanes + (w->rotation.n_rot ? (uint64_t)b->n_rows * b->n_heads : 0));
}

tamis_status tms_cl_read_rows(tms_device *dev, const tms_read_rows *p) {
    tamis_status status = tms_cl_base_only(dev, "read_rows");
    if (status != TAMIS_OK) return status;
    uint64_t n = (uint64_t)p->n * p->kv.head_dim;
    tms_cl_launch l = tms_cl_begin_kv(dev, "rows.cl", "read_rows", &p->kv);
    tms_cl_gather(&l);
    tms_cl_kv(&l, &p->kv, p->n);
    tms_cl_reached(&l, p->table, sizeof(cl_int), p->n);
    tms_cl_u64(&l, p->seq_stride);
    tms_cl_u64(&l, p->head_stride);
    tms_cl_u32(&l, p->n);
    tms_cl_ref(&l, p->seq, sizeof(cl_int), p->n);
    tms_cl_ref(&l, p->head, sizeof(cl_int), p->n);
    tms_cl_ref(&l, p->slot, sizeof(cl_int), p->n);
    tms_cl_optional(&l, p->k, sizeof(cl_float), n);
    tms_cl_optional(&l, p->v, sizeof(cl_float), n);
    return tms_cl_run_items(&l, n / 16);
}
