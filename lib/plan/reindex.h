/* SPDX-License-Identifier: Apache-2.0 */
/* Attending under streaming with positions in the cache (StreamingLLM, section 3.2). The sinks are
 * attended by a query that is rotated back by the gap between them and the rest, the rest by the
 * query as it is, and the two states are merged. So the distance of a sink from the query is that
 * of their slots, and no key is rewritten. */
#ifndef TMS_PLAN_REINDEX_H
#define TMS_PLAN_REINDEX_H

#include "lib/plan/step.h"

/* Absent memory is NULL: the eviction does not need it. */
typedef struct tms_reindex {
    const tms_setup *setup;
    const tms_step *step;
    tms_mem *rows;     /* f32 [4][max_rows][n_heads][head_dim], then lse [2][max_rows][n_heads] */
    tms_ref rotation;  /* table of the op rotate, once it is bound, and whose it is */
    tms_life *held;
    uint32_t n_rot;
    tamis_pairing pairing;
    /* index [n_rows] in its section, delta [n_rows]; [n_rows][n_kv_heads] how many sinks a row sees, its first slot
     * behind them */
    uint64_t index, delta, near, far;
} tms_reindex;

/* Its tables in the step's. */
tms_step_room tms_reindex_room(tms_reindex *reindex);

/* The pointers to other rooms must be set. */
tamis_status tms_reindex_create(tms_reindex *reindex, tamis_error *error);
void tms_reindex_destroy(tms_reindex *reindex);

/* In the place of the attend of a section in a layer. */
tamis_status tms_reindex_attend(const tms_reindex *reindex, uint32_t section,
                                const tms_attend *attend, tamis_error *error);

#endif
