/* SPDX-License-Identifier: Apache-2.0 */
/* The open step: its sequences and rows, how far each layer has come, and its tables. Other rooms
 * keep tables of their own among them, which they place and fill. */
#ifndef TMS_PLAN_STEP_H
#define TMS_PLAN_STEP_H

#include "lib/plan/arena.h"
#include "lib/plan/setup.h"

struct tms_step;

/* The sizes of a step, from which follow those of the tables. */
typedef struct tms_step_size {
    uint64_t rows, sequences;
    bool exact;
} tms_step_size;

/* A room's tables among the step's: `place` says where they lie in a step of that size, from *end
 * on, and moves *end behind them (tms_arena_place); `fill` fills them on the host, behind the step's
 * own. */
typedef struct tms_step_room {
    void *room;
    void (*place)(void *room, const tms_step_size *size, uint64_t *end);
    void (*fill)(void *room, const struct tms_step *step);
} tms_step_room;
#define TMS_STEP_ROOMS 6

/* Consecutive rows of a step that attend alike, with their sequences. Rows that go through the selection
 * come first, those that are exact behind them; a step that has only one of the two has one section. But
 * where a row must be attended before the next one of its sequence is written, each is a section, and
 * so are the single rows between such sequences: a step in turns. */
typedef struct tms_section {
    bool exact;
    bool alone;  /* one row of a sequence that has several */
    bool listed; /* its rows have read lists, in the layer that was attended last */
    uint32_t first_sequence, n_sequences, first_row, n_rows; /* rows that the step still has */
    uint32_t first_tile, n_tiles, max_tile_rows;
} tms_section;

/* Offsets of the step's own tables in the arena. Rows are those that the step still has. */
typedef struct tms_step_layout {
    uint64_t tiles;     /* [n_tiles][2] rows of their section */
    uint64_t row_seq;   /* [n_rows] rows of the page table */
    uint64_t positions; /* [n_rows], with a plane of positions */
    uint64_t visible;   /* [n_layers][n_rows][n_kv_heads] */
    uint64_t slots;     /* [n_layers][n_rows][n_kv_heads] */
    uint64_t filled;    /* page ids that the step fills, layer after layer */
    uint64_t copies;    /* pairs (from, to), pool after pool */
    uint64_t end;
} tms_step_layout;

/* What a layer of the step needs beside its tables, and its progress. */
typedef struct tms_step_layer {
    uint32_t filled, n_filled; /* first entry and number in `filled`; */
    uint32_t n_bounded;        /* and with those of id -1 that follow under fixed launches */
    uint32_t n_staying;        /* (row, KV head) whose lane stays at its length */
    /* In a step in turns: the first section that is not done; whether what its row replaces has been
     * chosen and kept. */
    uint32_t turn;
    bool kept;
    /* A call that fails may have done part of its work. So `begun` is set before the first launch
     * that writes rows, `fed` before the launch that adds their weights to scores or after the
     * launch that scores their keys; `written` and `attended` at the end. */
    bool begun, written, fed, attended;
} tms_step_layer;

/* Tables and counts stay valid after the end, until the next begin; sequences may be gone then. */
typedef struct tms_step {
    const tms_setup *setup;
    bool open;
    bool exact; /* all rows */
    bool fixed; /* launches depend only on n_rows */
    /* The tables on the device may not be those on the host: the call that narrowed failed. */
    bool unsent;
    bool in_turns;
    uint32_t n_sequences, n_sections;
    tms_section *sections;    /* [max_selected_rows + 1], or 2 */
    uint32_t n_begun;         /* rows as begun */
    uint32_t n_rows;          /* those that the step still has, of all sequences */
    uint32_t *n_kept;         /* [max_sequences] of each; */
    uint32_t *begun;          /* [max_rows] which of the rows as begun a row is, */
    uint32_t *position;       /* and its position */
    /* [max_sequences] of the open step: branches behind their tree's first, journals at the end; their
     * growth, their rows of the page table, and their rings of queries, TMS_NO_RING: none. */
    tms_sequence **sequences;
    tms_growth *growth;
    uint32_t *table_row;
    uint32_t *ring;           /* if the eviction needs them */
    tms_step_layer *layers;   /* [n_layers] */
    tms_copies copies;
    tms_arena tables;
    tms_step_layout at;
    tms_step_room rooms[TMS_STEP_ROOMS];
    uint32_t n_rooms;
} tms_step;

/* Adds a room's tables; before create. */
void tms_step_add(tms_step *step, tms_step_room room);

/* Allocates room for the largest step. After a failure the caller must call destroy, too. */
tamis_status tms_step_create(tms_step *step, const tms_setup *setup, tamis_error *error);
void tms_step_destroy(tms_step *step);

/* Fills counts and tables on the host, from the sequences with their growth, their rows of the page
 * table, their rings, and the copies. The first n_selected sequences are not exact, the next n_exact
 * are; the others are journals. */
void tms_step_fill(tms_step *step, uint32_t n_selected, uint32_t n_exact);
/* The same for the rows that are kept: indices of rows as begun, ascending, which the step still
 * has. */
void tms_step_narrow(tms_step *step, const uint32_t *rows, uint32_t n);

/* The rows as begun of a sequence of the step, given by its index; and the position of the first. */
static inline uint32_t tms_step_begun(const tms_step *step, uint32_t sequence) {
    return step->growth[sequence].rows - step->growth[sequence].shared;
}
static inline uint32_t tms_step_first(const tms_step *step, uint32_t sequence) {
    return step->sequences[sequence]->length - tms_step_begun(step, sequence);
}

/* The device memory of the table at an offset. */
static inline tms_ref tms_step_table(const tms_step *step, uint64_t at) {
    return tms_arena_ref(&step->tables, at);
}

/* The element of a table [n_layers][n_rows][n_kv_heads] at which a layer's part begins. */
static inline uint64_t tms_step_entry(const tms_step *step, uint32_t layer) {
    return (uint64_t)layer * step->n_rows * step->setup->cache->params.n_kv_heads;
}

/* The section that has a row. */
static inline const tms_section *tms_step_section_of(const tms_step *step, uint32_t row) {
    uint32_t i = 0;
    while (row >= step->sections[i].first_row + step->sections[i].n_rows)
        i++;
    return &step->sections[i];
}

/* The most slots that a row of a section of the open step sees in a layer; of no rows, the most that there
 * can be. */
uint32_t tms_step_most_visible(const tms_step *step, uint32_t layer, const tms_section *section);

/* Visible slots of (row, KV head). */
static inline uint32_t tms_step_visible(const tms_step *step, uint32_t layer, uint32_t row,
                                        uint32_t kv_head) {
    uint32_t heads = step->setup->cache->params.n_kv_heads;
    uint64_t at = step->at.visible + tms_step_entry(step, layer) + (uint64_t)row * heads + kv_head;
    return (uint32_t)step->tables.host[at];
}

/* Whether the queries of the step's rows are kept in rings: those of exact steps always, those of
 * decode rows unless a graph may run in their place. */
static inline bool tms_step_keeps_queries(const tms_step *step) {
    const tms_setup *setup = step->setup;
    return setup->needs.window &&
           (step->exact || !(setup->params.flags & TAMIS_PLAN_FIXED_LAUNCHES));
}

#endif
