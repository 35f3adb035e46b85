/* SPDX-License-Identifier: Apache-2.0 */
/* rotate on OpenCL: shape and launch of cl_kernels/rotate.cl. */
#include "host/opencl/opencl.h"

tamis_status tms_cl_rotate(tms_device *dev, const tms_rotate *p) {
    tamis_status status = tms_cl_base_only(dev, "rotate");
    if (status != TAMIS_OK) return status;
    uint32_t n_pairs = p->n_rot / 2;
    tms_cl_launch l = tms_cl_begin(dev, "rotate.cl", "rotate_rows", "-DPAIRING=%d", p->pairing);
    tms_cl_matrix(&l, &p->x, p->n_rows, (uint64_t)p->n_heads * p->head_dim);
    tms_cl_u32(&l, p->n_rows);
    tms_cl_u32(&l, p->n_heads);
    tms_cl_u32(&l, p->head_dim);
    tms_cl_u32(&l, n_pairs);
    tms_cl_ref(&l, p->positions, sizeof(cl_int), p->n_rows);
    tms_cl_ref(&l, p->table, sizeof(cl_float), p->n_rows ? 4ull * TMS_ROTATE_STEPS * n_pairs : 0);
    return tms_cl_run_items(&l, (uint64_t)p->n_rows * p->n_heads * n_pairs);
}
