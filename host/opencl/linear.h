/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of linear, linear_parts and linear_chain on OpenCL share
 * (linear_stages.c). */
#ifndef TMS_OPENCL_LINEAR_H
#define TMS_OPENCL_LINEAR_H

#include "host/opencl/opencl.h"

/* What a kernel must know of a matrix: type and layout in one number. */
static inline uint32_t tms_cl_kind(const tms_weight_matrix *w) {
    return (uint32_t)w->type + 16 * (uint32_t)w->layout;
}
/* The kinds of weights in a program: TYPE_A, TYPE_B and TYPE_C. */
#define TMS_CL_KINDS 3
typedef struct tms_cl_kinds {
    uint32_t of[TMS_CL_KINDS];
} tms_cl_kinds;
/* Those of the parts of n stages, each once and ascending, then the first again; false if there are
 * more. */
bool tms_cl_kinds_of(const tms_linear_parts *stages, uint32_t n, tms_cl_kinds *out);

/* As tms_cl_choose, for weights, which the base form reads in rows alone. */
tamis_status tms_cl_choose_product(tms_device *dev, const char *op, const tms_weight_matrix *w,
                                   bool *cpu);

/* A kernel of a CPU device that reads weights of these kinds. `rows`: of those of chains in the
 * program, 1 or TMS_FEW_ROWS; is_long: with room for the longest chain. */
tms_cl_launch tms_cl_begin_weights(tms_device *dev, const char *file, const char *kernel,
                                   const tms_cl_kinds *kinds, uint32_t rows, bool is_long);
/* The arguments of a kernel with room for `stages` stages and `parts` parts, of which n stages are
 * there (linear_parts.clh); they are gathered. */
void tms_cl_stages(tms_cl_launch *l, const tms_linear_parts *stages, uint32_t n,
                   uint32_t most_stages, uint32_t most_parts);
/* Runs of so many outputs; with a gate both parts are in one. */
uint64_t tms_cl_stage_items(const tms_linear_parts *p, uint32_t run);

/* Stages whose addend the norm in front of them adds, with that norm as a stage of its own; `to` has room
 * for 2 * n. Answers how many there are. */
uint32_t tms_cl_split_stages(const tms_linear_parts *stages, uint32_t n, tms_linear_parts *to);
/* The CPU form of a chain of n stages, of which those with parts have no addend, and of one. */
tamis_status tms_cl_run_stages(tms_device *dev, const tms_linear_parts *stages, uint32_t n,
                               const tms_cl_kinds *kinds);
tamis_status tms_cl_run_stage(tms_device *dev, const tms_linear_parts *p);

/* linear_parts.c: the base form of linear_parts, or that of GPUs. */
tamis_status tms_cl_run_parts(tms_device *dev, const tms_linear_parts *p);

#endif
