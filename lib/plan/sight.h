/* SPDX-License-Identifier: Apache-2.0 */
/* What the rows of a step see of their lanes: from which slot on, under a sliding window or in chunks.
 * The slots from which on they see nothing are the step's `visible`. */
#ifndef TMS_PLAN_SIGHT_H
#define TMS_PLAN_SIGHT_H

#include "lib/plan/step.h"

/* A row sees `most` positions at most, its own the last. */
typedef struct tms_sight_kind {
    uint32_t window, chunk; /* 0: none */
    uint32_t most;
    /* In the step's tables: the rows' first slots [n_rows][n_kv_heads], where slots are positions; in
     * a cache with a plane of positions their least positions [n_rows]. */
    uint64_t table;
} tms_sight_kind;

/* Layers that see alike share a kind. */
typedef struct tms_sight {
    const tms_setup *setup;
    uint32_t n;
    tms_sight_kind *kinds; /* [n] */
    uint32_t *kind_of;     /* [n_layers] index of a layer's kind; UINT32_MAX: its rows see all */
    tms_mem *first; /* int32 [max_rows][n_kv_heads] of the last layer that was looked at, where there is
                       a plane; else NULL */
} tms_sight;

/* `setup` must be set. After a failure the caller must call destroy, too. */
tamis_status tms_sight_create(tms_sight *sight, tamis_error *error);
void tms_sight_destroy(tms_sight *sight);

/* Its tables in the step's. */
tms_step_room tms_sight_room(tms_sight *sight);

/* NULL: rows of the layer see all that is visible. */
static inline const tms_sight_kind *tms_sight_of(const tms_sight *sight, uint32_t layer) {
    return sight->kind_of[layer] < UINT32_MAX ? &sight->kinds[sight->kind_of[layer]] : NULL;
}
/* The least position that a row at `position` sees. */
uint32_t tms_sight_least(const tms_sight_kind *kind, uint32_t position);

/* The least length of a sequence at which what the next row sees begins at `slot` or behind it. */
uint32_t tms_sight_shortest(const tms_sight_kind *kind, uint32_t slot);

/* Tells a layer's batch of the step's rows from where on they see. */
void tms_sight_limit(const tms_sight *sight, const tms_step *step, uint32_t layer,
                     tms_batch *batch);
/* Looks up, where there is a plane, what the batch of a section then points to; before its rows attend.
 * The layer has been written. Enqueues. */
tamis_status tms_sight_find(const tms_sight *sight, const tms_step *step, uint32_t layer,
                            uint32_t section, const tms_batch *batch, tamis_error *error);

/* The op seek in a layer's plane, for rows of a batch: out and strides as there. */
tamis_status tms_sight_seek(const tms_sight *sight, uint32_t layer, const tms_batch *batch,
                            tms_ref least, tms_ref out, uint64_t row_stride, uint64_t head_stride,
                            tamis_error *error);

/* The first page of which a row sees a slot in a layer; where there is a plane, that page or an
 * earlier one. */
uint32_t tms_sight_first_page(const tms_sight *sight, const tms_step *step, uint32_t layer,
                              uint32_t row, uint32_t kv_head);
/* Whether what the row of a sequence at `position` and those behind it see can be found, and its lanes
 * hold it. E_STATE. */
tamis_status tms_sight_check_held(const tms_sight *sight, const tms_sequence *sequence,
                                  uint32_t position, tamis_error *error);
/* Gives back what no row to come will see of a sequence whose step has ended. */
void tms_sight_give_back(const tms_sight *sight, tms_sequence *sequence);

/* The page itself, of the layer that was looked at last. Waits where there is a plane. */
tamis_status tms_sight_read_first_page(const tms_sight *sight, const tms_step *step,
                                       uint32_t layer, uint32_t row, uint32_t kv_head,
                                       uint32_t *page, tamis_error *error);

#endif
