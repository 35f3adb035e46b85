/* SPDX-License-Identifier: Apache-2.0 */
/* The plan from the inside: its workspace, the device's page tables, and the open step. */
#ifndef TMS_PLAN_H
#define TMS_PLAN_H

#include "lib/cache/cache.h"
#include "lib/select/select.h"
#include <tamis/plan.h>

/* What one row of the device's page table holds, so that a step uploads changes only. */
typedef struct tms_table_row {
    tamis_sequence id; /* 0: nothing of use */
    uint64_t version;  /* of the sequence when it was uploaded; 0: not yet */
    uint64_t used;     /* number of the step that used it last */
    uint32_t *pages;   /* [n_lanes] leading entries of each list that are on the device */
} tms_table_row;

/* Where the open step's tables lie in its one upload, in int32 elements; each begins on 64 bytes.
 */
typedef struct tms_step_layout {
    uint32_t tiles;     /* [n_tiles][2] */
    uint32_t row_seq;   /* [n_rows] rows of the page table */
    uint32_t intervals; /* [n_rows][2] positions, with a sliding window */
    uint32_t visible;   /* [n_layers][n_rows][n_kv_heads] */
    uint32_t slots;     /* [n_layers][n_rows][n_kv_heads] */
    uint32_t filled;    /* page ids that the step fills, layer after layer */
    uint32_t copies;    /* pairs (from, to), pool after pool */
    uint32_t end;
} tms_step_layout;

/* What a layer of the step needs beside its tables. */
typedef struct tms_step_layer {
    uint32_t filled, n_filled; /* first entry and number in `filled`; */
    uint32_t n_bounded;        /* and with those of id -1 that follow under fixed launches */
    uint32_t max_visible;
    bool written;
} tms_step_layer;

/* The step. Its tables and counts stay valid after the end, until the next begin. */
typedef struct tms_step {
    bool open, exact;
    bool fixed; /* launches depend on n_rows alone */
    uint32_t n_sequences, n_rows, n_tiles, max_tile_rows;
    tms_growth *growth;  /* [max_sequences] */
    uint32_t *table_row; /* [max_sequences] */
    tms_step_layer *layers;
    tms_step_layout at;
    int32_t *host; /* the upload, [step_ints] */
    /* The last attend, for reading its selection. */
    bool attended, listed;
    uint32_t attended_layer;
} tms_step;

struct tamis_plan {
    tamis_cache *cache;
    tms_device *dev;
    tamis_plan_params params; /* with defaults filled in */
    tms_reading reading;
    uint32_t max_pages; /* of a lane */
    uint32_t step_ints; /* largest upload */

    tms_mem *table;   /* int32 [max_sequences][n_lanes][max_pages] */
    tms_mem *entries; /* int32 [TMS_ENTRY_CHUNK][2], changes of the table on their way */
    tms_mem *step_tables;
    tms_mem *scores;  /* f32 [max_selected_rows][n_kv_heads][max_pages] */
    tms_mem *lists;   /* int32 [max_selected_rows][n_kv_heads][k], then the counts */
    tms_mem *scratch; /* of attend and page_mass */

    tms_table_row *rows; /* [max_sequences] */
    int32_t *entry_host;
    float *score_host; /* as many as scores, if they are random */
    /* [max_sequences + 1] under fixed launches: the cache's bounds_serial when a step of so many
     * rows was last written by calls, which a graph may hold; 0: never. */
    uint64_t *serials;
    tms_copies copies;
    uint64_t step_number;
    tms_step step;
    tamis_plan_counters counters;
    tamis_plan_times times;
};

/* Changed table entries of one upload: 512 KiB, which no backend waits for. */
#define TMS_ENTRY_CHUNK 65536u

/* Gives every sequence of the step a row of the page table. */
void tms_plan_assign_rows(tamis_plan *plan);

/* Brings those rows up to date on the device. After a failure they are uploaded anew. */
tamis_status tms_plan_sync_tables(tamis_plan *plan, tamis_error *error);

/* Enqueues a write in pieces that no backend waits for. Returns the device's status. */
tamis_status tms_plan_send(const tamis_plan *plan, tms_ref to, const void *from, uint64_t bytes);

/* Ints of the largest step's upload. */
uint64_t tms_step_ints(const tamis_plan *plan);

/* Fills the step's tables and counts on the host, after the reserve. */
void tms_step_fill(tamis_plan *plan, const tamis_step *in);

/* The step's rows of a layer as the ops see them. */
tms_batch tms_step_batch(const tamis_plan *plan, uint32_t layer);

/* The shapes of a layer's ops, without what the caller brings (k, v; q, out). */
tms_write_rows tms_plan_write_rows(const tamis_plan *plan, uint32_t layer);
tms_attend tms_plan_attend_all(const tamis_plan *plan, uint32_t layer);
tms_sparse_attend tms_plan_attend_listed(const tamis_plan *plan, uint32_t layer);

/* The same scores as p->score's, from keys. */
tms_page_mass tms_plan_page_mass(const tamis_plan *plan, const tms_sparse_attend *p);

/* Enqueues random scores for p->select, whose stride it sets. Returns the device's status. */
tamis_status tms_plan_send_random(tamis_plan *plan, uint32_t layer, tms_sparse_attend *p);

/* Whether one launch takes the place of score_pages, select and attend. */
bool tms_plan_fuses(const tamis_plan *plan, const tms_sparse_attend *p);

/* Adds what the attend of a layer read to the counters. */
void tms_plan_count(tamis_plan *plan, uint32_t layer, bool listed, bool fused);

/* Visible slots of (row, KV head) in the step. */
static inline uint32_t tms_step_visible(const tamis_plan *plan, uint32_t layer, uint32_t row,
                                        uint32_t kv_head) {
    const tms_step *step = &plan->step;
    uint32_t heads = plan->cache->params.n_kv_heads;
    return (uint32_t)step->host[step->at.visible + (layer * step->n_rows + row) * heads + kv_head];
}

#endif
