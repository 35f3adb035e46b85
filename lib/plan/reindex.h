/* SPDX-License-Identifier: Apache-2.0 */
/* Attending under streaming with positions in the cache: the sinks by a query turned back by the
 * gap between them and the rest, the rest by the query as it is, and the two states merged. So a
 * sink is as far from the query as its slot is (StreamingLLM, section 3.2), and no key is
 * rewritten. */
#ifndef TMS_PLAN_REINDEX_H
#define TMS_PLAN_REINDEX_H

#include "lib/plan/setup.h"

/* Absent memory is NULL: the eviction does not need it. */
typedef struct tms_reindex {
    tms_mem *rows;     /* f32 [4][max_rows][n_heads][head_dim], then lse [2][max_rows][n_heads] */
    tms_mem *rotation; /* table of rotate, once it is bound */
    uint32_t n_rot;
    tms_pairing pairing;
} tms_reindex;

tamis_status tms_reindex_create(tms_reindex *reindex, const tms_setup *setup, tamis_error *error);
void tms_reindex_destroy(tms_reindex *reindex, tms_device *dev);

/* In the place of a layer's attend. Device's status. */
tamis_status tms_reindex_attend(const tamis_plan *plan, uint32_t layer, const tms_attend *attend);

#endif
