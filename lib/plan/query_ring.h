/* SPDX-License-Identifier: Apache-2.0 */
/* The last `window` query rows of sequences, by which an eviction scores. There are max_sequences
 * rings, for the sequences that were in a step last; those of removed sequences are given away first.
 * The row of position p is at place p mod window. */
#ifndef TMS_PLAN_QUERY_RING_H
#define TMS_PLAN_QUERY_RING_H

#include "lib/plan/step.h"

/* Of a sequence that has none: one whose rows are a tree, of which none is kept. */
#define TMS_NO_RING UINT32_MAX

/* The sequence whose queries a ring holds, of positions [from, to). A later row has overwritten the
 * row `window` positions before it, even if the later one has been truncated away since. */
typedef struct tms_query_ring {
    tamis_sequence id; /* 0: no sequence's */
    uint64_t used;     /* number of the last call of tms_query_rings_bring that used it */
    uint64_t mark;     /* of the sequence's cuts at that call; 0: the ring holds nothing */
    uint32_t from, to;
    /* While rings are assigned: some sequence's queries are in it; its sequence loses it. */
    bool needed, vacant;
} tms_query_ring;

/* Queries of a sequence that a ring holds, which may be an ancestor's. */
typedef struct tms_kept_queries {
    uint32_t ring, from, to;
} tms_kept_queries;

typedef struct tms_query_rings {
    const tms_setup *setup;
    uint64_t row_bytes;
    tms_mem *mem;          /* f32 [n_layers][max_sequences][window][n_heads][head_dim]; NULL: the */
    tms_query_ring *rings; /* eviction needs no queries. [max_sequences] */
    tms_kept_queries *kept; /* [max_sequences] of the sequences being brought */
    uint64_t n_brought;
    uint64_t places; /* [n_rows] of the open step in a layer's rings, -1: not kept */
} tms_query_rings;

/* Its tables in the step's. */
tms_step_room tms_query_rings_room(tms_query_rings *rings);

/* `setup` must be set. After a failure the caller must call destroy, too. */
tamis_status tms_query_rings_create(tms_query_rings *rings, tamis_error *error);
void tms_query_rings_destroy(tms_query_rings *rings);

/* Gives each of the sequences a ring that holds what is known of its queries: its own, or a copy of
 * what the sequence that it comes from had up to the fork; truncated rows are forgotten. index[i] is
 * that of sequences[i]; branches and their trees get TMS_NO_RING. */
tamis_status tms_query_rings_bring(tms_query_rings *rings, tms_sequence *const *sequences,
                                   uint32_t n, uint32_t *index, tamis_error *error);

/* Records that a ring will hold positions [first, end), the rows of the open step; or that it holds
 * nothing, since those rows were not attended. */
void tms_query_rings_expect(tms_query_rings *rings, uint32_t ring, uint32_t first, uint32_t end);
void tms_query_rings_empty(tms_query_rings *rings, uint32_t ring);

/* Takes a ring from its sequence: it is the next to be given out. */
void tms_query_rings_drop(tms_query_rings *rings, uint32_t ring);

/* Puts the queries of a section of the step, in a layer, into their places. */
tamis_status tms_query_rings_keep(const tms_query_rings *rings, const tms_step *step,
                                  uint32_t layer, uint32_t section, tms_matrix q,
                                  tamis_error *error);

/* The queries of a sequence that are known, for saving it; from == to: none. */
tms_kept_queries tms_query_rings_known(const tms_query_rings *rings, const tms_sequence *sequence);
/* Rows of positions [first, first + n), which a ring has places for, of a layer to the host, which
 * waits, and back. */
tamis_status tms_query_rings_read(const tms_query_rings *rings, uint32_t layer, uint32_t ring,
                                  uint32_t first, uint32_t n, float *to, tamis_error *error);
tamis_status tms_query_rings_write(const tms_query_rings *rings, uint32_t layer, uint32_t ring,
                                   uint32_t first, uint32_t n, const float *from,
                                   tamis_error *error);

/* E_STATE unless the rings hold the queries of all of the sequence's last `window` positions. */
tamis_status tms_query_rings_check(const tms_query_rings *rings, const tms_sequence *sequence,
                                   tamis_error *error);

/* Copies them in order, of a layer from the sequence's ring. */
tamis_status tms_query_rings_unroll(const tms_query_rings *rings, uint32_t layer, uint32_t ring,
                                    uint32_t length, tms_ref to, tamis_error *error);

#endif
