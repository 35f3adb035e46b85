/* SPDX-License-Identifier: Apache-2.0 */
/* linear_parts on OpenCL: a base and a CPU form, each with a kernel for one row and one for
 * TMS_FEW_ROWS. A program knows the types of a launch, in ascending order, so that launches share
 * it whatever part has which. */
#include "host/opencl/opencl.h"

/* Of linear_parts_cpu.cl: outputs of an item, also with inputs of which a core does not hold all at
 * a time. */
#define CPU_RUN      16u
#define CPU_LONG_RUN 64u
#define CPU_HELD     4096u
/* Outputs for which a work-group of the base form normalises the rows once. */
#define BASE_RUN 4u

/* The types of the parts, each once, then the first again. */
typedef struct types {
    tamis_weight_type of[TMS_MOST_PARTS];
} types;

static types types_of(const tms_linear_parts *p) {
    types t = {{TAMIS_WEIGHT_F32}};
    uint32_t n = 0;
    for (int type = 0; n < TMS_MOST_PARTS && tamis_weight_block((tamis_weight_type)type); type++) {
        bool used = false;
        for (uint32_t i = 0; i < p->n_parts; i++)
            used = used || p->parts[i].w.type == (tamis_weight_type)type;
        if (used) t.of[n++] = (tamis_weight_type)type;
    }
    while (n < TMS_MOST_PARTS) {
        t.of[n] = t.of[0];
        n++;
    }
    return t;
}

static void set_part(tms_cl_launch *l, const tms_linear_parts *p, uint32_t i) {
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

static void set_operands(tms_cl_launch *l, const tms_linear_parts *p) {
    tms_cl_matrix(l, &p->x, p->n_rows, p->n_in);
    tms_cl_optional(l, p->norm_w, sizeof(cl_float), p->n_rows ? p->n_in : 0);
    tms_cl_f32(l, p->eps);
    tms_cl_u32(l, p->gated);
    tms_cl_u32(l, p->n_rows);
    tms_cl_u32(l, p->n_in);
    for (uint32_t i = 0; i < TMS_MOST_PARTS; i++)
        set_part(l, p, i);
}

/* Runs of `run` outputs; with a gate both parts are in one. */
static uint64_t runs_of(const tms_linear_parts *p, uint32_t run) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < (p->gated ? 1 : p->n_parts); i++)
        n += p->parts[i].n_out / run + (p->parts[i].n_out % run != 0);
    return p->n_rows ? n : 0;
}

/* `rows`: of the kernel, 1 or TMS_FEW_ROWS. */
static tamis_status run(tms_device *dev, const tms_linear_parts *p, bool cpu, uint32_t rows) {
    const types t = types_of(p);
    tms_cl_launch l = tms_cl_begin(dev, cpu ? "linear_parts_cpu.cl" : "linear_parts.cl",
                                   "linear_parts", "-DTYPE_A=%d -DTYPE_B=%d -DTYPE_C=%d -DROWS=%u",
                                   (int)t.of[0], (int)t.of[1], (int)t.of[2], rows);
    set_operands(&l, p);
    if (!cpu) return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, runs_of(p, BASE_RUN), 1);
    const uint32_t outputs = p->n_in <= CPU_HELD ? CPU_RUN : CPU_LONG_RUN;
    tms_cl_u32(&l, outputs);
    return tms_cl_run_queue(&l, runs_of(p, outputs));
}

tamis_status tms_cl_linear_parts(tms_device *dev, const tms_linear_parts *p) {
    bool cpu;
    tamis_status status = tms_cl_choose(dev, "linear_parts", NULL, &cpu);
    if (status != TAMIS_OK) return status;
    if (p->n_rows) return run(dev, p, cpu, p->n_rows == 1 ? 1 : TMS_FEW_ROWS);
    status = run(dev, p, cpu, 1);
    return status == TAMIS_OK ? run(dev, p, cpu, TMS_FEW_ROWS) : status;
}
