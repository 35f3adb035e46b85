/* SPDX-License-Identifier: Apache-2.0 */
/* The stages of linear_chain on OpenCL, which linear and linear_parts are, too: their arguments, and the
 * CPU form, one launch of cl_kernels/linear_chain_cpu.cl for all stages. A program knows the kinds of a
 * launch, in ascending order, so that launches share it whatever part has which. */
#include "host/opencl/linear.h"

#define STRIP 16u /* outputs: the least that a work-group takes */

/* Puts a kind in its place among `found` ascending ones, unless it is there. */
static bool add_kind(tms_cl_kinds *to, uint32_t *found, uint32_t kind) {
    uint32_t at = 0;
    while (at < *found && to->of[at] < kind)
        at++;
    if (at < *found && to->of[at] == kind) return true;
    if (*found == TMS_CL_KINDS) return false;
    for (uint32_t i = (*found)++; i > at; i--)
        to->of[i] = to->of[i - 1];
    to->of[at] = kind;
    return true;
}

bool tms_cl_kinds_of(const tms_linear_parts *stages, uint32_t n, tms_cl_kinds *out) {
    uint32_t found = 0;
    *out = (tms_cl_kinds){0};
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < stages[i].n_parts; k++)
            if (!add_kind(out, &found, tms_cl_kind(&stages[i].parts[k].w))) return false;
    while (found < TMS_CL_KINDS)
        out->of[found++] = out->of[0];
    return true;
}

tamis_status tms_cl_choose_product(tms_device *dev, const char *op, const tms_weight_matrix *w,
                                   bool *cpu) {
    const tamis_status status = tms_cl_choose(dev, op, NULL, cpu);
    if (status != TAMIS_OK || *cpu || w->layout == TAMIS_WEIGHT_ROWS || tms_cl_takes_gpu_form(dev))
        return status;
    return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                           "%s: weights in strips, which the base form does not read", op);
}

static const tms_linear_parts none;

/* The arguments of a part, which may not be there, and of a stage (linear_parts.clh). */
static void set_part(tms_cl_launch *l, const tms_linear_parts *p, uint32_t i) {
    const tms_linear_part *part = i < p->n_parts ? &p->parts[i] : &none.parts[0];
    const bool writes = p->n_rows && i < p->n_parts && !(p->gated && i > 0);
    const uint64_t bytes = p->n_rows ? tms_matrix_bytes(&part->w, part->n_out, p->n_in) : 0;
    tms_cl_matrix(l, &part->y, writes ? p->n_rows : 0, part->n_out);
    tms_cl_ref(l, part->w.ref, 1, bytes);
    tms_cl_optional(l, part->bias, sizeof(cl_float), part->n_out);
    tms_cl_u32(l, part->n_out);
    tms_cl_u32(l, tms_cl_kind(&part->w));
}

static void set_stage(tms_cl_launch *l, const tms_linear_parts *p) {
    const uint32_t read = p->n_parts || p->accumulate ? p->n_rows : 0;
    const uint32_t added = p->adds ? p->n_rows : 0;
    tms_cl_matrix(l, &p->x, read, p->n_in);
    tms_cl_matrix(l, &p->addend, added, p->n_in);
    tms_cl_matrix(l, &p->sum, added, p->n_in);
    tms_cl_optional(l, p->n_parts ? p->norm_w : p->addend_w, sizeof(cl_float),
                    p->n_rows ? p->n_in : 0);
    tms_cl_f32(l, p->eps);
    tms_cl_u32(l, p->gated);
    tms_cl_u32(l, p->accumulate);
    tms_cl_u32(l, p->n_in);
    tms_cl_u32(l, p->n_parts);
    tms_cl_u32(l, p->n_parts ? p->norm_kind : p->addend_kind);
    tms_cl_u32(l, p->activation);
}

void tms_cl_stages(tms_cl_launch *l, const tms_linear_parts *stages, uint32_t n,
                   uint32_t most_stages, uint32_t most_parts) {
    uint32_t parts = 0;
    tms_cl_gather(l);
    tms_cl_u32(l, stages[0].n_rows);
    tms_cl_u32(l, n);
    for (uint32_t i = 0; i < most_stages; i++)
        set_stage(l, i < n ? &stages[i] : &none);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < stages[i].n_parts; k++, parts++)
            set_part(l, &stages[i], k);
    for (; parts < most_parts; parts++)
        set_part(l, &none, 0);
}

uint64_t tms_cl_stage_items(const tms_linear_parts *p, uint32_t run) {
    uint64_t n = 0;
    if (p->n_parts == 0) return p->n_rows;
    for (uint32_t i = 0; i < (p->gated ? 1 : p->n_parts); i++)
        n += tms_divide_up(p->parts[i].n_out, run);
    return p->n_rows ? n : 0;
}

tms_cl_launch tms_cl_begin_weights(tms_device *dev, const char *file, const char *kernel,
                                   const tms_cl_kinds *kinds, uint32_t rows, bool is_long) {
    return tms_cl_begin(dev, file, kernel, "-DTYPE_A=%u -DTYPE_B=%u -DTYPE_C=%u -DROWS=%u%s%s",
                        kinds->of[0], kinds->of[1], kinds->of[2], rows, is_long ? " -DLONG=1" : "",
                        tms_cl_shape(dev));
}

/* Room of most chains. */
#define SHORT_STAGES 4u

static tamis_status run_rows(tms_device *dev, const tms_linear_parts *stages, uint32_t n,
                             const tms_cl_kinds *kinds, uint32_t rows) {
    uint64_t items = 0;
    const bool is_long = n > SHORT_STAGES;
    tms_cl_launch l =
        tms_cl_begin_weights(dev, "linear_chain_cpu.cl", "linear_chain", kinds, rows, is_long);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t of_stage = tms_cl_stage_items(&stages[i], STRIP);
        items = of_stage > items ? of_stage : items;
    }
    tms_cl_stages(&l, stages, n, is_long ? TMS_MOST_STAGES : SHORT_STAGES, TMS_CHAIN_PARTS);
    return tms_cl_run_queue(&l, items);
}

tamis_status tms_cl_run_stages(tms_device *dev, const tms_linear_parts *stages, uint32_t n,
                               const tms_cl_kinds *kinds) {
    const uint32_t n_rows = stages[0].n_rows, build_rows = stages[0].build_rows;
    tamis_status status = TAMIS_OK;
    if (tms_takes_rows(n_rows, build_rows, 1, 1)) status = run_rows(dev, stages, n, kinds, 1);
    if (status == TAMIS_OK && tms_takes_rows(n_rows, build_rows, 2, TMS_FEW_ROWS))
        status = run_rows(dev, stages, n, kinds, TMS_FEW_ROWS);
    return status;
}

uint32_t tms_cl_split_stages(const tms_linear_parts *stages, uint32_t n, tms_linear_parts *to) {
    uint32_t made = 0;
    for (uint32_t i = 0; i < n; i++) {
        const bool splits = stages[i].n_parts && stages[i].adds;
        if (splits) {
            to[made] = stages[i];
            to[made].n_parts = 0;
            to[made].gated = false;
            to[made++].accumulate = true;
        }
        to[made++] = splits ? tms_linear_of_sum(&stages[i]) : stages[i];
    }
    return made;
}

/* Where cores do not wait for each other, the norm of an addend is a launch of its own. */
tamis_status tms_cl_run_stage(tms_device *dev, const tms_linear_parts *p) {
    tms_cl_kinds kinds;
    tms_linear_parts stages[2];
    const uint32_t n = tms_cl_split_stages(p, 1, stages);
    const uint32_t apart = tms_cl(dev)->waits ? 0 : n - 1;
    const tms_norm norm = tms_norm_of(stages);
    tamis_status status = apart ? tms_cl_norm(dev, &norm) : TAMIS_OK;
    (void)tms_cl_kinds_of(p, 1, &kinds); /* as many as parts */
    return status == TAMIS_OK ? tms_cl_run_stages(dev, stages + apart, n - apart, &kinds) : status;
}
