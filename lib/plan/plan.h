/* SPDX-License-Identifier: Apache-2.0 */
/* The plan from the inside: its workspace, the device's page tables, and the open step. */
#ifndef TMS_PLAN_H
#define TMS_PLAN_H

#include "lib/cache/cache.h"
#include "lib/evict/evict.h"
#include "lib/select/select.h"
#include <tamis/plan.h>

/* What one row of the device's page table holds, so that a step uploads changes only. */
typedef struct tms_table_row {
    tamis_sequence id; /* 0: nothing of use */
    uint64_t version;  /* of the sequence when it was uploaded; 0: not yet */
    uint64_t used;     /* number of the step that used it last */
    uint32_t *pages;   /* [n_lanes] leading entries of each list that are on the device */
    /* Positions whose query rows the ring holds, and the sequence's edits when it got the last. */
    uint32_t ring_from, ring_to;
    uint64_t ring_edits;
    bool vacant; /* while rows are given out: the sequence leaves it */
} tms_table_row;

#define TMS_NO_ROW UINT32_MAX

/* Positions [from, to) of a sequence whose queries a row's ring holds; TMS_NO_ROW: none does. */
typedef struct tms_known {
    uint32_t row, from, to;
} tms_known;

/* A sequence that gets a row of the page table, and what it brings along into the row's ring. */
typedef struct tms_heir {
    tms_sequence *sequence;
    uint32_t row;
    tms_known known;
} tms_heir;

/* Where the open step's tables lie in its one upload, in int32 elements; each begins on 64 bytes.
 */
typedef struct tms_step_layout {
    uint32_t tiles;     /* [n_tiles][2] */
    uint32_t row_seq;   /* [n_rows] rows of the page table */
    uint32_t intervals; /* [n_rows][2] positions, with a sliding window */
    uint32_t positions; /* [n_rows], with a plane of positions */
    uint32_t ring;      /* [n_rows] rows of a layer's ring, with a window of queries */
    uint32_t turns;     /* [n_layers][n_rows][n_kv_heads], evicting in place */
    /* Sequences of the step, when it feeds scores: rows of the page table [n], (first, number) of
     * the rows that feed [n][2], and visible [n_layers][n][n_kv_heads] */
    uint32_t item_seq, item_spans, item_visible;
    uint32_t reindex; /* index [n_rows], delta [n_rows], two intervals [2][n_rows][2] */
    uint32_t visible; /* [n_layers][n_rows][n_kv_heads] */
    uint32_t slots;   /* [n_layers][n_rows][n_kv_heads] */
    uint32_t filled;  /* page ids that the step fills, layer after layer */
    uint32_t copies;  /* pairs (from, to), pool after pool */
    uint32_t end;
} tms_step_layout;

/* What a layer of the step needs beside its tables. */
typedef struct tms_step_layer {
    uint32_t filled, n_filled; /* first entry and number in `filled`; */
    uint32_t n_bounded;        /* and with those of id -1 that follow under fixed launches */
    uint32_t max_visible;
    /* A call that fails may have done part of its work: begun comes before the first launch that
     * writes rows, fed before the one that adds their weights to scores; the others at the end. */
    bool begun, written, fed, attended;
    uint32_t n_turns; /* lanes that stay at their length, row by row */
} tms_step_layer;

/* The step. Its tables and counts stay valid after the end, until the next begin. */
typedef struct tms_step {
    bool open, exact;
    bool fixed; /* launches depend on n_rows alone */
    uint32_t n_sequences, n_rows, n_tiles, max_tile_rows;
    uint32_t max_span;   /* most rows of a sequence that feed scores */
    tms_growth *growth;  /* [max_sequences] */
    tms_heir *heirs;     /* [max_sequences] */
    uint32_t *table_row; /* [max_sequences] their rows */
    tms_step_layer *layers;
    tms_step_layout at;
    int32_t *host; /* the upload, [step_ints] */
    /* The last attend, for reading its selection. */
    bool attended, listed;
    uint32_t attended_layer;
} tms_step;

/* A layer's output projection as it was bound. */
typedef struct tms_output {
    tms_ref w;
    tamis_dtype dtype;
    uint64_t stride;
    uint32_t n_rows;
} tms_output;

/* Where the tables of one layer of one sequence lie in eviction.tables, in int32 elements; each
 * begins on 64 bytes. */
typedef struct tms_work_layout {
    uint64_t visible;    /* [n_layers][n_kv_heads] slots of the lanes */
    uint64_t budgets;    /* [n_layers][n_kv_heads] */
    uint64_t row_seq;    /* [max(window, 1)] row of the page table */
    uint64_t now;        /* [2] positions of the newest token and of the next */
    uint64_t spans;      /* [1][2] the window's rows */
    uint64_t tiles;      /* of the window's rows */
    uint64_t end_shared; /* so much is one upload a sequence */
    uint64_t rows;       /* [window][n_kv_heads] slots that the window's rows see */
    uint64_t by_head;    /* [n_kv_heads][window] the same */
    uint64_t end_layer;  /* from `rows` on one upload a layer */
    uint64_t limits;     /* [n_kv_heads][2] */
    uint64_t k_table;    /* [n_kv_heads] */
    uint64_t to;         /* [n_kv_heads][max_pages] */
    uint64_t bounds;     /* [n_kv_heads * max_pages] */
    uint64_t end;
} tms_work_layout;

/* What evicting takes. Strides in elements; absent memory is NULL. */
typedef struct tms_plan_eviction {
    tms_evicting asked;
    uint64_t stride;       /* of values and tiles: a slot each */
    uint64_t logit_stride; /* as far as a lane of a decode step may go */
    tms_mem *ring;         /* f32 [n_layers][max_sequences][window][n_heads][head_dim] */
    tms_mem *window;  /* f32 the last rows in order: q, out [window][n_heads][head_dim], then lse */
    tms_mem *lse;     /* f32 [max_rows][n_heads] of the attend that feeds */
    tms_mem *logits;  /* f32 [max_sequences][n_heads][logit_stride] */
    tms_mem *fed;     /* f32 [max_sequences][n_kv_heads][stride] */
    tms_mem *changed; /* int32 [max_sequences][n_kv_heads] */
    tms_mem *reindex; /* f32 [4][max_rows][n_heads][head_dim], then lse [2][max_rows][n_heads] */
    tms_mem *rotation; /* table of rotate */
    uint32_t n_rot;
    tms_pairing pairing;
    tms_mem *values; /* f32 [n_layers if across][n_kv_heads][stride], then others without layers */
    tms_mem *tiles;  /* f32 [n_tiles][window * group][stride] */
    tms_mem *lists;  /* int32 kept, forced: [n_layers if across][n_kv_heads][capacity], counts */
    tms_mem *tables; /* int32 [at.end] */
    tms_work_layout at;
    tms_mem *scratch;
    tms_output *outputs; /* [n_layers] */
    uint32_t *bound;     /* [n_lanes] budgets of the caller's, if has_bound */
    bool has_bound;
    uint32_t *layer_budgets;                 /* [n_layers] */
    uint32_t *slots, *budgets, *most, *kept; /* [n_lanes] of the sequence being evicted from */
    uint64_t *together; /* [n_layers] slots that the lanes of a layer, or of all, keep at most */
    int32_t *host;      /* for uploads, [at.end] */
    float *trace_scores;
    tms_evict_trace trace;
    void *trace_user;
} tms_plan_eviction;

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
    tms_plan_eviction eviction;
    uint64_t step_number;
    tms_step step;
    tamis_plan_counters counters;
    tamis_plan_times times;
};

/* Changed table entries of one upload: 512 KiB, which no backend waits for. */
#define TMS_ENTRY_CHUNK 65536u

/* Gives every sequence of the step a row of the page table, with the queries that are known of it
 * in the row's ring. Device's status. */
tamis_status tms_plan_assign_rows(tamis_plan *plan);

/* Brings those rows up to date on the device. After a failure they are uploaded anew. */
tamis_status tms_plan_sync_tables(tamis_plan *plan, tamis_error *error);

/* Both for one sequence, outside a step. */
tamis_status tms_plan_row_of(tamis_plan *plan, tms_sequence *sequence, uint32_t *row,
                             tamis_error *error);

/* The row that holds the sequence, or TMS_NO_ROW. */
uint32_t tms_plan_find_row(const tamis_plan *plan, tamis_sequence id);

/* Enqueues a write in pieces that no backend waits for. Returns the device's status. */
tamis_status tms_plan_send(const tamis_plan *plan, tms_ref to, const void *from, uint64_t bytes);

/* Pairs of pages that a step may copy at most. */
uint64_t tms_plan_copies(const tamis_plan *plan);

/* Ints of the largest step's upload. */
uint64_t tms_step_ints(const tamis_plan *plan);

/* Gives up the open step. */
void tms_plan_give_up(tamis_plan *plan);

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

/* ---- Evicting (eviction.c, feed.c, reindex.c, evict.c, evict_work.c) ------------------------- */

/* Takes the memory for what the eviction asks; warms its kernels; gives all back. */
tamis_status tms_plan_eviction_create(tamis_plan *plan, tamis_error *error);
tamis_status tms_plan_eviction_warm(tamis_plan *plan, tamis_error *error);
void tms_plan_eviction_destroy(tamis_plan *plan);

/* Most slots that a lane may have in a step, UINT32_MAX: no limit. */
uint32_t tms_plan_cap(const tamis_plan *plan, bool exact);
/* Whether the eviction bears the step. E_ARGUMENT, E_STATE. */
tamis_status tms_plan_check_growth(const tamis_plan *plan, const tms_growth *growth, bool exact,
                                   tamis_error *error);
/* Before a layer's rows are written: slots for them in lanes that stay at their length. Device's
 * status. */
tamis_status tms_plan_make_slots(tamis_plan *plan, uint32_t layer);
/* After: bounds of the pages that hold them. */
tamis_status tms_plan_rebound(tamis_plan *plan, uint32_t layer);
/* What the attend of a layer has to write so that scores can be fed. */
tamis_status tms_plan_listen(tamis_plan *plan, bool listed, tms_attend *attend);
/* Whether the open step's attends bring scores or queries: else the two calls around have nothing
 * to do. */
bool tms_plan_feeds(const tamis_plan *plan);
/* After the attend: rows' weights to the plane of scores, queries to the ring. */
tamis_status tms_plan_feed(tamis_plan *plan, uint32_t layer, const tms_attend *attend);
/* What the plan's rings hold of the sequence's queries: a fork's are those of the one that it comes
 * from until it has a ring of its own; truncated rows are forgotten. */
void tms_plan_known(const tamis_plan *plan, const tms_sequence *sequence, tms_known *out);
/* Brings that into the ring of the sequence's row. Device's status. */
tamis_status tms_plan_inherit(tamis_plan *plan, const tms_heir *heir);
/* The rings of the step's sequences will hold its rows. */
void tms_plan_note_ring(tamis_plan *plan);
/* At the step's end: rows of layers that were not attended have brought no queries. */
void tms_plan_close_ring(tamis_plan *plan);
/* At the step's end, or when it has been given up: what its rows' weights have made of the scores.
 */
void tms_plan_note_scores(tamis_plan *plan, bool given_up);
/* Whether scores, queries and order of the sequence are what the eviction, asked for between steps,
 * takes for granted. E_STATE. */
tamis_status tms_plan_check_history(const tamis_plan *plan, const tms_sequence *sequence,
                                    tamis_error *error);
/* How many of the newest tokens the eviction spares in every lane. */
uint32_t tms_plan_spared(const tamis_plan *plan);
/* Attends with sinks as near as they are in the cache. */
tamis_status tms_plan_attend_reindexed(tamis_plan *plan, uint32_t layer, const tms_attend *attend);

/* One layer's work on a sequence; the tables' contents are the caller's. n_items 0: an empty one.
 */
tms_eviction_work tms_plan_work(const tamis_plan *plan, uint32_t layer, uint32_t n_items);
/* Uploads what all layers of the sequence share, and what one layer needs. Device's status. */
tamis_status tms_plan_send_sequence(tamis_plan *plan, const tms_sequence *sequence, uint32_t row);
tamis_status tms_plan_send_layer(tamis_plan *plan, const tms_sequence *sequence, uint32_t layer);
/* The last rows in order, and their lse over all that the lanes of the work's layer hold. Device's
 * status. */
tamis_status tms_plan_attend_window(tamis_plan *plan, const tms_eviction_work *work, uint32_t row,
                                    uint32_t length);
/* Where a table of page ids of the layer's lanes lies, [n_kv_heads][max_pages]; and page ids for
 * bounds. */
tms_ref tms_plan_to_table(const tamis_plan *plan);
tms_ref tms_plan_bounds_table(const tamis_plan *plan);
/* The places of all tables. */
tms_work_layout tms_plan_lay_out_work(const tamis_plan *plan);
/* Layers that the work's memory is kept for at once. */
static inline uint64_t tms_plan_layers_at_once(const tamis_plan *plan) {
    return plan->eviction.asked.across ? plan->cache->params.n_layers : 1;
}

/* For tests: sees the scores of every select of tamis_plan_evict. NULL takes it away. */
void tms_plan_trace_evict(tamis_plan *plan, tms_evict_trace trace, void *user);

/* Marks where a stage begins, if times are collected: else *from is NULL. Device's status. */
tamis_status tms_plan_start_stage(const tamis_plan *plan, tms_event **from);
/* Waits for the stage's end and adds its time to *us. Returns the stage's status, or the device's.
 */
tamis_status tms_plan_stop_stage(const tamis_plan *plan, tms_event *from, tamis_status status,
                                 double *us);

/* Adds what the attend of a layer read to the counters. */
void tms_plan_count(tamis_plan *plan, uint32_t layer, bool listed, bool fused);

/* Rounds up to ints of 64 bytes, where every table begins. */
static inline uint64_t tms_align_ints(uint64_t n) {
    return tms_divide_up(n, 16) * 16;
}

/* A table of the step, from its place in its layout. */
static inline tms_ref tms_step_table(const tamis_plan *plan, uint64_t at) {
    return (tms_ref){plan->step_tables, at * sizeof(int32_t)};
}

/* Visible slots of (row, KV head) in the step. */
static inline uint32_t tms_step_visible(const tamis_plan *plan, uint32_t layer, uint32_t row,
                                        uint32_t kv_head) {
    const tms_step *step = &plan->step;
    uint32_t heads = plan->cache->params.n_kv_heads;
    return (uint32_t)step->host[step->at.visible + (layer * step->n_rows + row) * heads + kv_head];
}

#endif
