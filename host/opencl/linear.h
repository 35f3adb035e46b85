/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of linear, linear_parts and linear_chain on OpenCL share
 * (linear_stages.c). */
#ifndef TMS_OPENCL_LINEAR_H
#define TMS_OPENCL_LINEAR_H

#include "host/opencl/opencl.h"

/* The types of weights in a program: TYPE_A, TYPE_B and TYPE_C. */
#define TMS_CL_TYPES 3
typedef struct tms_cl_types {
    tamis_weight_type of[TMS_CL_TYPES];
} tms_cl_types;
/* The types of the parts of n stages, each once, then the first again; false if there are more. */
bool tms_cl_types_of(const tms_linear_parts *stages, uint32_t n, tms_cl_types *out);

/* A kernel of a CPU device that reads weights of these types. `rows`: of those of chains in the
 * program, 1 or TMS_FEW_ROWS. */
tms_cl_launch tms_cl_begin_weights(tms_device *dev, const char *file, const char *kernel,
                                   const tms_cl_types *types, uint32_t rows);
/* The arguments STAGE_PARAMS and PART_PARAMS of linear_parts.clh; a part that is not there is
 * absent. run: outputs of an item. */
void tms_cl_stage(tms_cl_launch *l, const tms_linear_parts *p, uint32_t run);
void tms_cl_part(tms_cl_launch *l, const tms_linear_parts *p, uint32_t i);
/* Runs of so many outputs; with a gate both parts are in one. */
uint64_t tms_cl_stage_items(const tms_linear_parts *p, uint32_t run);

/* The CPU form of a chain of n stages, and of one. */
tamis_status tms_cl_run_stages(tms_device *dev, const tms_linear_parts *stages, uint32_t n,
                               const tms_cl_types *types);
tamis_status tms_cl_run_stage(tms_device *dev, const tms_linear_parts *p);

#endif
