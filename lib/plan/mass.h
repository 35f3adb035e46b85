/* SPDX-License-Identifier: Apache-2.0 */
/* The attention mass that the last rows of the open step give to its tokens in a layer: memory and
 * launches. */
#ifndef TMS_PLAN_MASS_H
#define TMS_PLAN_MASS_H

#include "lib/plan/templates.h"

/* Absent memory is NULL: the plan weighs no rows. */
typedef struct tms_masses {
    const tms_setup *setup;
    const tms_step *step;
    const tms_templates *templates;
    tms_mem *rows;   /* f32 [TMS_TILE_ROWS] rows of out, then [TMS_TILE_ROWS][n_heads] of lse */
    tms_mem *values; /* f32 [n_kv_heads][slots], sums over rows and groups */
    float *host;     /* the same */
    tms_arena pairs; /* constant: (0, n) for n of 1 to TMS_TILE_ROWS */
} tms_masses;

/* The pointers to other rooms must be set, the launches made. After a failure the caller must call
 * destroy, too. */
tamis_status tms_masses_create(tms_masses *masses, tamis_error *error);
void tms_masses_destroy(tms_masses *masses);
/* Sends its table, builds the kernels and launches each once, with no rows. */
tamis_status tms_masses_warm(const tms_masses *masses, tamis_error *error);

/* Adds to mass[i], of every row i of the step as begun, what its last `last` rows give to it. q has
 * the step's rows. Waits; after a failure nothing has been added. */
tamis_status tms_masses_add(const tms_masses *masses, uint32_t layer, const tms_matrix *q,
                            uint32_t last, double *mass, tamis_error *error);

#endif
