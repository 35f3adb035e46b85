/* SPDX-License-Identifier: Apache-2.0 */
/* linear_parts on OpenCL. Base form: linear_parts.cl, with a kernel for one row and one for
 * TMS_FEW_ROWS. CPU form: a chain of one stage. */
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
    tms_cl_u32(&l, p->addend_kind);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, tms_cl_stage_items(p, BASE_RUN), 1);
}

tamis_status tms_cl_linear_parts(tms_device *dev, const tms_linear_parts *p) {
    bool cpu;
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; i < p->n_parts && status == TAMIS_OK; i++)
        status = tms_cl_choose_product(dev, "linear_parts", &p->parts[i].w, &cpu);
    if (status != TAMIS_OK) return status;
    if (cpu) return tms_cl_run_stage(dev, p);
    if (tms_takes_rows(p->n_rows, p->build_rows, 1, 1)) status = run_base(dev, p, 1);
    if (status == TAMIS_OK && tms_takes_rows(p->n_rows, p->build_rows, 2, TMS_FEW_ROWS))
        status = run_base(dev, p, TMS_FEW_ROWS);
    return status;
}
