/* SPDX-License-Identifier: Apache-2.0 */
/* linear_parts on OpenCL. Base form and that of GPUs: linear_parts.cl and linear_parts_gpu.cl, with a
 * kernel for one row and one for TMS_FEW_ROWS. CPU form: a chain of one stage. */
#include "host/opencl/linear.h"

/* Outputs for which a work-group of the base form normalises the rows once. */
#define BASE_RUN 4u

/* `rows`: of the kernel, 1 or TMS_FEW_ROWS. */
static tamis_status run_base(tms_device *dev, const tms_linear_parts *p, uint32_t rows) {
    tms_cl_kinds kinds;
    (void)tms_cl_kinds_of(p, 1, &kinds); /* as many as parts */
    tms_cl_launch l = tms_cl_begin(dev, "linear_parts.cl", "linear_parts",
                                   "-DTYPE_A=%u -DTYPE_B=%u -DTYPE_C=%u -DROWS=%u -DADDS=%d",
                                   kinds.of[0], kinds.of[1], kinds.of[2], rows, p->adds);
    tms_cl_stages(&l, p, 1, 1, TMS_MOST_PARTS);
    tms_cl_optional(&l, p->addend_w, sizeof(cl_float), p->adds && p->n_rows ? p->n_in : 0);
    tms_cl_u64(&l, p->addend_kind);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, tms_cl_stage_items(p, BASE_RUN), 1);
}

/* ---- The form of GPUs ------------------------------------------------------------------------ */

/* Outputs of a work-group: of rows, and a strip. */
#define GPU_RUN 4u

static uint64_t gpu_groups(const tms_linear_parts *p) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < (p->gated ? 1 : p->n_parts); i++)
        n +=
            tms_divide_up(p->parts[i].n_out,
                          p->parts[i].w.layout == TAMIS_WEIGHT_STRIPS ? TAMIS_STRIP_ROWS : GPU_RUN);
    return p->n_rows ? n : 0;
}

/* Whether all that a work-item reads at once lies at multiples of 16 bytes: rows of x and of the addend,
 * both norms' weights, and strips or rows of weights without blocks. Rows of blocks lie anywhere. */
static bool is_aligned(const tms_device *dev, const tms_linear_parts *p) {
    bool aligned = tms_cl_is_aligned(dev, p->x.ref, p->x.stride * sizeof(float)) &&
                   tms_cl_is_aligned(dev, p->addend.ref, p->addend.stride * sizeof(float)) &&
                   tms_cl_is_aligned(dev, p->norm_w, 0) && tms_cl_is_aligned(dev, p->addend_w, 0);
    for (uint32_t i = 0; i < p->n_parts; i++) {
        const tms_weight_matrix *w = &p->parts[i].w;
        const bool blocks = tamis_weight_block(w->type) > 1;
        if (blocks && w->layout == TAMIS_WEIGHT_ROWS) continue;
        aligned = aligned && tms_cl_is_aligned(
                                 dev, w->ref, blocks ? 0 : tamis_weight_bytes(w->type, 1, p->n_in));
    }
    return aligned;
}

/* The kernel keeps where rows begin in 32 bits. */
static tamis_status check_stride(tms_device *dev, const char *of, uint64_t stride, uint32_t rows) {
    if (rows == 1 || stride <= UINT32_MAX / rows) return TAMIS_OK;
    return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                           "linear_parts: rows of %s %llu elements apart: %u rows must be below "
                           "2^32 elements",
                           of, (unsigned long long)stride, rows);
}

/* `rows`: as of run_base. */
static tamis_status run_gpu(tms_device *dev, const tms_linear_parts *p, uint32_t rows) {
    tamis_status status = check_stride(dev, "x", p->x.stride, rows);
    if (status == TAMIS_OK && p->adds)
        status = check_stride(dev, "the addend", p->addend.stride, rows);
    if (status != TAMIS_OK) return status;
    tms_cl_kinds kinds;
    (void)tms_cl_kinds_of(p, 1, &kinds); /* as many as parts */
    tms_cl_launch l =
        tms_cl_begin(dev, "linear_parts_gpu.cl", "linear_parts_gpu",
                     "-DTYPE_A=%u -DTYPE_B=%u -DTYPE_C=%u -DROWS=%u -DADDS=%d -DNORMED=%d "
                     "-DALIGNED=%d",
                     kinds.of[0], kinds.of[1], kinds.of[2], rows, p->adds, p->norm_w.mem != NULL,
                     is_aligned(dev, p));
    tms_cl_stages(&l, p, 1, 1, TMS_MOST_PARTS);
    tms_cl_optional(&l, p->addend_w, sizeof(cl_float), p->adds && p->n_rows ? p->n_in : 0);
    tms_cl_u64(&l, p->addend_kind);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, gpu_groups(p), 1);
}

tamis_status tms_cl_run_parts(tms_device *dev, const tms_linear_parts *p) {
    tamis_status (*run)(tms_device *, const tms_linear_parts *, uint32_t) =
        tms_cl_takes_gpu_form(dev) ? run_gpu : run_base;
    tamis_status status = TAMIS_OK;
    if (tms_takes_rows(p->n_rows, p->build_rows, 1, 1)) status = run(dev, p, 1);
    if (status == TAMIS_OK && tms_takes_rows(p->n_rows, p->build_rows, 2, TMS_FEW_ROWS))
        status = run(dev, p, TMS_FEW_ROWS);
    return status;
}

tamis_status tms_cl_linear_parts(tms_device *dev, const tms_linear_parts *p) {
    bool cpu;
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; i < p->n_parts && status == TAMIS_OK; i++)
        status = tms_cl_choose_product(dev, "linear_parts", &p->parts[i].w, &cpu);
    if (status != TAMIS_OK) return status;
    return cpu ? tms_cl_run_stage(dev, p) : tms_cl_run_parts(dev, p);
}
