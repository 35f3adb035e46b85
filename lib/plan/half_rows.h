/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of q and out of half precision: what the launches take in their place, and the conversions. */
#ifndef TMS_PLAN_HALF_ROWS_H
#define TMS_PLAN_HALF_ROWS_H

#include "lib/plan/setup.h"

typedef struct tms_half_rows {
    const tms_setup *setup;
    tms_mem *rows; /* f32 [2][max_rows][n_heads * head_dim], q and out; with TAMIS_PLAN_HALF_ROWS */
} tms_half_rows;

/* A caller's rows of a step, which have been checked, and the f32 rows that launches take: the same, or
 * the plan's own. */
typedef struct tms_caller_rows {
    tms_matrix given, rows; /* given: a stride in elements of `dtype` */
    tamis_dtype dtype;
} tms_caller_rows;

tamis_status tms_half_rows_create(tms_half_rows *h, tamis_error *error);
/* Builds the kernels and launches each once, with no rows. */
tamis_status tms_half_rows_warm(const tms_half_rows *h, tamis_error *error);
void tms_half_rows_destroy(tms_half_rows *h);

/* E_ARGUMENT for rows of half precision in a plan without TAMIS_PLAN_HALF_ROWS. */
tamis_status tms_half_rows_check(const tms_half_rows *h, const char *name, const tamis_rows *rows,
                                 tamis_error *error);
/* Rows of q, or of out, that have been checked. */
tms_caller_rows tms_half_rows_of(const tms_half_rows *h, const tamis_rows *rows, uint64_t stride,
                                 bool is_out);
/* Enqueues the conversion of n rows from `first` on: of q before they are read, of out behind what has
 * written them. Nothing for rows of f32. */
tamis_status tms_half_rows_read(const tms_half_rows *h, const tms_caller_rows *q, uint32_t first,
                                uint32_t n, tamis_error *error);
tamis_status tms_half_rows_write(const tms_half_rows *h, const tms_caller_rows *out, uint32_t first,
                                 uint32_t n, tamis_error *error);

#endif
