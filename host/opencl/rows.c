/* SPDX-License-Identifier: Apache-2.0 */
/* write_rows and read_rows on OpenCL: shapes and launches of cl_kernels/rows.cl. */
#include "host/opencl/opencl.h"

/* The arguments of a rotation, behind those of a write. */
static void set_rotation(tms_cl_launch *l, const tms_write_rows *p) {
    const tms_rotation *rotation = &p->rotation;
    const uint32_t n = p->batch.n_rows, heads = p->batch.n_heads, pairs = rotation->n_rot / 2;
    tms_cl_matrix(l, &rotation->q, n, (uint64_t)heads * p->kv.head_dim);
    tms_cl_u32(l, heads);
    tms_cl_u32(l, pairs);
    tms_cl_u32(l, rotation->pairing == TAMIS_PAIR_ADJACENT);
    tms_cl_ref(l, rotation->positions, sizeof(cl_int), n);
    tms_cl_ref(l, rotation->table, sizeof(cl_float), n ? 4ull * TMS_ROTATE_STEPS * pairs : 0);
    tms_cl_optional(l, rotation->q_norm, sizeof(cl_float), p->kv.head_dim);
    tms_cl_optional(l, rotation->k_norm, sizeof(cl_float), p->kv.head_dim);
    tms_cl_f32(l, rotation->eps);
}

tms_cl_launch tms_cl_begin_kv(tms_device *dev, const char *file, const char *kernel,
                              const tms_kv *kv) {
    const tamis_dtype bounds =
        kv->bounds_dtype == TAMIS_Q8 ? TAMIS_Q8 : tms_bounds_dtype(kv->dtype);
    return tms_cl_begin(dev, file, kernel,
                        "-DDTYPE=%d -DBOUNDS_DTYPE=%d -DHEAD_DIM=%u -DPAGE_SIZE=%u", kv->dtype,
                        bounds, kv->head_dim, kv->page_size);
}

tamis_status tms_cl_write_rows(tms_device *dev, const tms_write_rows *p) {
    const tms_batch *b = &p->batch;
    tamis_status status = tms_cl_base_only(dev, "write_rows");
    if (status != TAMIS_OK) return status;
    uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads,
             width = (uint64_t)b->n_kv_heads * p->kv.head_dim;
    uint64_t n_k = b->n_rows ? (b->n_rows - 1) * p->k_stride + width : 0;
    uint64_t n_v = b->n_rows ? (b->n_rows - 1) * p->v_stride + width : 0;
    size_t unit = sizeof(cl_float);
    if (p->rotation.n_rot == 0) { /* a kernel for both types of rows */
        unit = 1;
        n_k *= tamis_dtype_size(p->dtype);
        n_v *= tamis_dtype_size(p->dtype);
    }
    tms_cl_launch l =
        tms_cl_begin_kv(dev, "rows.cl", p->rotation.n_rot ? "write_rotated" : "write_rows", &p->kv);
    tms_cl_kv(&l, &p->kv, b->n_rows);
    tms_cl_batch(&l, b);
    tms_cl_ref(&l, p->k, unit, n_k);
    tms_cl_u64(&l, p->k_stride);
    tms_cl_ref(&l, p->v, unit, n_v);
    tms_cl_u64(&l, p->v_stride);
    if (p->rotation.n_rot == 0) tms_cl_u32(&l, p->dtype == p->kv.dtype);
    tms_cl_ref(&l, p->slots, sizeof(cl_int), lanes);
    tms_cl_optional(&l, p->planes.positions, sizeof(cl_int), 0);
    tms_cl_optional(&l, p->planes.scores, sizeof(cl_float), 0);
    tms_cl_optional(&l, p->positions, sizeof(cl_int), b->n_rows);
    const uint32_t puts =
        tms_has_blocks(p->kv.dtype) ? tms_blocks(p->kv.head_dim) : p->kv.head_dim / 16;
    if (p->rotation.n_rot == 0) return tms_cl_run_items(&l, lanes * puts);
    set_rotation(&l, p);
    return tms_cl_run_items(&l, (uint64_t)b->n_rows * (b->n_heads + b->n_kv_heads));
}

tamis_status tms_cl_read_rows(tms_device *dev, const tms_read_rows *p) {
    tamis_status status = tms_cl_base_only(dev, "read_rows");
    if (status != TAMIS_OK) return status;
    uint64_t n = (uint64_t)p->n * p->kv.head_dim;
    tms_cl_launch l = tms_cl_begin_kv(dev, "rows.cl", "read_rows", &p->kv);
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
