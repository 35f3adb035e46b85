/* SPDX-License-Identifier: Apache-2.0 */
/* linear_parts on CUDA: launch of cuda_kernels/linear_parts.cu. */
#include "host/cuda/cuda.h"

_Static_assert(CU_LINEAR_PARTS == TMS_MOST_PARTS, "the contract's value");
#define SAME_VALUE(name, value, text)                                                              \
    _Static_assert(CU_WEIGHT_##name == value, "as in the kernels");
TAMIS_WEIGHT_LIST(SAME_VALUE)

/* Blocks of a multiprocessor: each normalises the rows once for all runs of outputs it takes. */
#define BLOCKS_EACH 8u

static cu_linear_part part_of(tms_cu_launch *l, const tms_linear_parts *p, uint32_t i) {
    const tms_linear_part *part = &p->parts[i];
    const uint32_t written = p->gated && i > 0 ? 0 : p->n_rows;
    return (cu_linear_part){
        .y = tms_cu_matrix(l, "y", &part->y, written, part->n_out),
        .w = tms_cu_weights(l, &part->w, p->n_rows ? part->n_out : 0, p->n_in),
        .bias = tms_cu_optional(l, "bias", part->bias, sizeof(float), part->n_out),
        .n_out = part->n_out,
        .type = part->w.type,
    };
}

static void set_addend(tms_cu_launch *l, const tms_linear_parts *p, cu_linear_parts_args *args) {
    const uint32_t n_w = p->n_rows ? p->n_in : 0;
    args->addend = tms_cu_matrix(l, "addend", &p->addend, p->n_rows, p->n_in);
    args->sum = tms_cu_matrix(l, "sum", &p->sum, p->n_rows, p->n_in);
    args->addend_w = tms_cu_ref(l, "addend_w", p->addend_w, sizeof(float), n_w);
}

static uint64_t runs_of(const tms_linear_parts *p) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < (p->gated ? 1 : p->n_parts); i++)
        n += tms_divide_up(p->parts[i].n_out, CU_LINEAR_RUN);
    return n;
}

/* Bytes of the rows with the addend, which blocks hold where there are parts behind it. */
static uint64_t held_bytes(const tms_linear_parts *p) {
    return p->adds && p->n_parts
               ? (uint64_t)p->n_rows * CU_LINEAR_HELD((uint64_t)p->n_in) * sizeof(float)
               : 0;
}

/* `rows`: of the kernel, a power of two up to TMS_FEW_ROWS. Without parts the sum alone is formed. */
static tamis_status run(tms_device *dev, const tms_linear_parts *p, unsigned rows) {
    tms_cu_launch l = tms_cu_begin(dev, "linear_parts", "linear_parts_r%u", rows);
    const uint64_t runs = p->n_parts ? runs_of(p) : tms_divide_up(p->n_in, CU_LINEAR_FEW_THREADS);
    const uint64_t most = (uint64_t)BLOCKS_EACH * dev->info.compute_units;
    cu_linear_parts_args args = {
        .x = tms_cu_matrix(&l, "x", &p->x, p->n_rows, p->n_in),
        .norm = tms_cu_optional(&l, "norm_w", p->norm_w, sizeof(float), p->n_rows ? p->n_in : 0),
        .n_rows = p->n_rows,
        .n_in = p->n_in,
        .gated = p->gated,
        .accumulate = p->accumulate,
        .eps = p->eps,
        .n_parts = p->n_parts,
        .norm_kind = p->norm_kind,
        .addend_kind = p->addend_kind,
        .activation = p->activation,
    };
    if (p->adds) set_addend(&l, p, &args);
    for (uint32_t i = 0; i < p->n_parts; i++)
        args.parts[i] = part_of(&l, p, i);
    tms_cu_grid grid = {.x = runs < most ? runs : most,
                        .threads = CU_LINEAR_FEW_THREADS,
                        .shared = (uint32_t)held_bytes(p)};
    if (p->n_rows == 0) grid.x = 0;
    return tms_cu_run(&l, grid, &args);
}

/* In one launch, or with one for the sum in front where blocks cannot hold its rows: the same bits. */
static tamis_status run_all(tms_device *dev, const tms_linear_parts *p, unsigned rows) {
    tms_linear_parts sum = *p;
    const tms_linear_parts of_sum = tms_linear_of_sum(p);
    if (held_bytes(p) <= CU_LINEAR_MOST_HELD * sizeof(float)) return run(dev, p, rows);
    sum.n_parts = 0;
    sum.gated = false;
    const tamis_status status = run(dev, &sum, rows);
    return status == TAMIS_OK ? run(dev, &of_sum, rows) : status;
}

tamis_status tms_cu_linear_parts(tms_device *dev, const tms_linear_parts *p) {
    tamis_status status = tms_cu_base_only(dev, "linear_parts");
    unsigned rows = 1;
    if (status != TAMIS_OK) return status;
    if (p->n_rows) {
        while (rows < p->n_rows)
            rows *= 2;
        return run_all(dev, p, rows);
    }
    for (; rows <= TMS_FEW_ROWS && status == TAMIS_OK; rows *= 2)
        status = run_all(dev, p, rows);
    return status;
}
