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
        for (uint32_t k = 0; k < stages[i].n_parts && !stages[i].norm_alone; k++)
            if (!add_kind(out, &found, tms_cl_kind(&stages[i].parts[k].w))) return false;
    while (found < TMS_CL_KINDS)
        out->of[found++] = out->of[0];
    return true;
}

tamis_status tms_cl_choose_product(tms_device *dev, const char *op, const tms_weight_matrix *w,
                                   bool *cpu) {
    const tamis_status status = tms_cl_choose(dev, op, NULL, cpu);
    if (status != TAMIS_OK || *cpu || w->layout == TAMIS_WEIGHT_ROWS) return status;
    return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                           "%s: weights in strips, which the CPU form alone reads", op);
}

static const tms_linear_parts none;

/* The arguments of a part, which may not be there, and of a stage (linear_parts.clh). */
static void set_part(tms_cl_launch *l, const tms_linear_parts *p, uint32_t i) {
    const tms_linear_part *part = i < p->n_parts ? &p->parts[i] : &none.parts[0];
    const bool writes = p->n_rows && i < p->n_parts && !(p->gated && i > 0);
    const bool reads = p->n_rows && !p->norm_alone;
    const uint64_t bytes = reads ? tms_matrix_bytes(&part->w, part->n_out, p->n_in) : 0;
    tms_cl_matrix(l, &part->y, writes ? p->n_rows : 0, part->n_out);
    tms_cl_ref(l, part->w.ref, 1, bytes);
    tms_cl_optional(l, part->bias, sizeof(cl_float), part->n_out);
    tms_cl_u32(l, part->n_out);
    tms_cl_u32(l, tms_cl_kind(&part->w));
}

static void set_stage(tms_cl_launch *l, const tms_linear_parts *p) {
    tms_cl_matrix(l, &p->x, p->n_rows, p->n_in);
    tms_cl_optional(l, p->norm_w, sizeof(cl_float), p->n_rows ? p->n_in : 0);
    tms_cl_f32(l, p->eps);
    tms_cl_u32(l, p->gated);
    tms_cl_u32(l, p->accumulate);
    tms_cl_u32(l, p->n_in);
    tms_cl_u32(l, p->n_parts);
    tms_cl_u32(l, p->norm_kind);
    tms_cl_u32(l, p->activation);
    tms_cl_u32(l, p->norm_alone);
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
#define SHORT_PARTS  7u

static tamis_status run_rows(tms_device *dev, const tms_linear_parts *stages, uint32_t n,
                             const tms_cl_kinds *kinds, uint32_t rows) {
    uint64_t items = 0;
    uint32_t parts = 0;
    for (uint32_t i = 0; i < n; i++)
        parts += stages[i].n_parts;
    const bool is_long = n > SHORT_STAGES || parts > SHORT_PARTS;
    tms_cl_launch l =
        tms_cl_begin_weights(dev, "linear_chain_cpu.cl", "linear_chain", kinds, rows, is_long);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t of_stage = tms_cl_stage_items(&stages[i], STRIP);
        items = of_stage > items ? of_stage : items;
    }
    tms_cl_stages(&l, stages, n, is_long ? TMS_MOST_STAGES : SHORT_STAGES,
                  is_long ? TMS_CHAIN_PARTS : SHORT_PARTS);
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

tamis_status tms_cl_run_stage(tms_device *dev, const tms_linear_parts *p) {
    tms_cl_kinds kinds;
    (void)tms_cl_kinds_of(p, 1, &kinds); /* as many as parts */
    return tms_cl_run_stages(dev, p, 1, &kinds);
}
