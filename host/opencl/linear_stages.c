/* SPDX-License-Identifier: Apache-2.0 */
/* The stages of linear_chain on OpenCL, which linear and linear_parts are, too: their arguments, and the
 * CPU form, one launch of cl_kernels/linear_chain_cpu.cl for all stages. A program knows the types of a
 * launch, in ascending order, so that launches share it whatever part has which. */
#include "host/opencl/linear.h"

/* Outputs of an item; and if there are many, or more inputs than a core holds at a time. */
#define RUN       16u
#define LONG_RUN  64u
#define LONG_RUNS 32u /* so many are enough for all cores */
#define HELD      4096u

bool tms_cl_types_of(const tms_linear_parts *stages, uint32_t n, tms_cl_types *out) {
    uint32_t found = 0;
    for (int type = 0; tamis_weight_block((tamis_weight_type)type); type++) {
        bool used = false;
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = 0; k < stages[i].n_parts; k++)
                used = used || stages[i].parts[k].w.type == (tamis_weight_type)type;
        if (used && found == TMS_CL_TYPES) return false;
        if (used) out->of[found++] = (tamis_weight_type)type;
    }
    while (found < TMS_CL_TYPES)
        out->of[found++] = out->of[0];
    return true;
}

void tms_cl_stage(tms_cl_launch *l, const tms_linear_parts *p, uint32_t run) {
    tms_cl_matrix(l, &p->x, p->n_rows, p->n_in);
    tms_cl_optional(l, p->norm_w, sizeof(cl_float), p->n_rows ? p->n_in : 0);
    tms_cl_f32(l, p->eps);
    tms_cl_u32(l, p->gated);
    tms_cl_u32(l, p->accumulate);
    tms_cl_u32(l, p->n_in);
    tms_cl_u32(l, p->n_parts);
    tms_cl_u32(l, run);
}

void tms_cl_part(tms_cl_launch *l, const tms_linear_parts *p, uint32_t i) {
    static const tms_linear_part none;
    const tms_linear_part *part = i < p->n_parts ? &p->parts[i] : &none;
    const bool writes = p->n_rows && i < p->n_parts && !(p->gated && i > 0);
    const uint64_t bytes = p->n_rows ? tamis_weight_bytes(part->w.type, part->n_out, p->n_in) : 0;
    tms_cl_matrix(l, &part->y, writes ? p->n_rows : 0, part->n_out);
    tms_cl_ref(l, part->w.ref, 1, bytes);
    tms_cl_optional(l, part->bias, sizeof(cl_float), part->n_out);
    tms_cl_u32(l, part->n_out);
    tms_cl_u32(l, part->w.type);
}

uint64_t tms_cl_stage_items(const tms_linear_parts *p, uint32_t run) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < (p->gated ? 1 : p->n_parts); i++)
        n += tms_divide_up(p->parts[i].n_out, run);
    return p->n_rows ? n : 0;
}

static uint32_t run_of(const tms_linear_parts *p) {
    const bool lots = p->n_parts == 1 && p->parts[0].n_out / LONG_RUN >= LONG_RUNS;
    return lots || p->n_in > HELD ? LONG_RUN : RUN;
}

tms_cl_launch tms_cl_begin_weights(tms_device *dev, const char *file, const char *kernel,
                                   const tms_cl_types *types, uint32_t rows) {
    return tms_cl_begin(dev, file, kernel, "-DTYPE_A=%d -DTYPE_B=%d -DTYPE_C=%d -DROWS=%u%s",
                        (int)types->of[0], (int)types->of[1], (int)types->of[2], rows,
                        tms_cl_shape(dev));
}

static tamis_status run_rows(tms_device *dev, const tms_linear_parts *stages, uint32_t n,
                             const tms_cl_types *types, uint32_t rows) {
    static const tms_linear_parts none;
    uint64_t items = 0;
    uint32_t parts = 0;
    tms_cl_launch l = tms_cl_begin_weights(dev, "linear_chain_cpu.cl", "linear_chain", types, rows);
    tms_cl_u32(&l, stages[0].n_rows);
    tms_cl_u32(&l, n);
    for (uint32_t i = 0; i < TMS_MOST_STAGES; i++) {
        const tms_linear_parts *p = i < n ? &stages[i] : &none;
        const uint64_t of_stage = i < n ? tms_cl_stage_items(p, run_of(p)) : 0;
        tms_cl_stage(&l, p, run_of(p));
        items = of_stage > items ? of_stage : items;
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < stages[i].n_parts; k++, parts++)
            tms_cl_part(&l, &stages[i], k);
    for (; parts < TMS_CHAIN_PARTS; parts++)
        tms_cl_part(&l, &none, 0);
    return tms_cl_run_queue(&l, items);
}

tamis_status tms_cl_run_stages(tms_device *dev, const tms_linear_parts *stages, uint32_t n,
                               const tms_cl_types *types) {
    const uint32_t n_rows = stages[0].n_rows, build_rows = stages[0].build_rows;
    tamis_status status = TAMIS_OK;
    if (tms_takes_rows(n_rows, build_rows, 1, 1)) status = run_rows(dev, stages, n, types, 1);
    if (status == TAMIS_OK && tms_takes_rows(n_rows, build_rows, 2, TMS_FEW_ROWS))
        status = run_rows(dev, stages, n, types, TMS_FEW_ROWS);
    return status;
}

tamis_status tms_cl_run_stage(tms_device *dev, const tms_linear_parts *p) {
    tms_cl_types types;
    (void)tms_cl_types_of(p, 1, &types); /* as many as parts */
    return tms_cl_run_stages(dev, p, 1, &types);
}
