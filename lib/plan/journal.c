/* SPDX-License-Identifier: Apache-2.0 */
/* Keeping what rows of a step in turns replace, and undoing rows. */
#include "lib/plan/journal.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- Tables ---------------------------------------------------------------------------------- */

static void place(void *room, const tms_step_size *size, uint64_t *end) {
    tms_journals *journals = room;
    const bool verifies = journals->setup->params.flags & TAMIS_PLAN_VERIFY;
    const uint64_t rows = verifies && !size->exact ? size->rows : 0;
    journals->seq = tms_arena_place(end, rows);
    journals->slots = tms_arena_place(end, rows * journals->setup->cache->n_lanes);
}

/* The row of the page table that a sequence's journal has in the step; else -1. */
static int32_t seq_of(const tms_step *step, uint32_t sequence) {
    for (uint32_t i = sequence + 1; i < step->n_sequences; i++)
        if (step->sequences[i] == step->sequences[sequence]->journal)
            return (int32_t)step->table_row[i];
    return -1;
}

static void fill(void *room, const tms_step *step) {
    const tms_journals *journals = room;
    const uint32_t heads = step->setup->cache->params.n_kv_heads;
    int32_t *seq = step->tables.host + journals->seq, *slots = step->tables.host + journals->slots;
    for (uint32_t i = 0; step->in_turns && i < step->n_sequences; i++) {
        const int32_t at = seq_of(step, i);
        for (uint32_t j = 0; j < step->n_kept[i]; j++)
            *seq++ = at;
    }
    for (uint32_t layer = 0; step->in_turns && layer < step->setup->cache->params.n_layers; layer++)
        for (uint32_t i = 0; i < step->n_sequences; i++)
            for (uint32_t j = 0; j < step->n_kept[i]; j++)
                for (uint32_t h = 0; h < heads; h++)
                    *slots++ =
                        step->sequences[i]->lanes[layer * heads + h].grown <= j ? (int32_t)j : -1;
}

tms_step_room tms_journals_room(tms_journals *journals) {
    return (tms_step_room){journals, place, fill};
}

/* ---- Memory ---------------------------------------------------------------------------------- */

tamis_status tms_journals_create(tms_journals *journals, tamis_error *error) {
    const tms_setup *setup = journals->setup;
    const tamis_plan_params *p = &setup->params;
    const uint32_t cap = tms_setup_cap(setup, false);
    if (!(p->flags & TAMIS_PLAN_VERIFY)) return TAMIS_OK;
    journals->all = tms_memory_host(setup->memory, p->max_sequences, sizeof *journals->all);
    TMS_REQUIRE(journals->all, TAMIS_E_NO_MEMORY,
                "no host memory for what rows of %" PRIu32 " sequences replace", p->max_sequences);
    journals->stride = tms_align_ints(cap < p->max_context ? cap : p->max_context);
    const uint64_t scores =
        (uint64_t)setup->cache->n_lanes * p->max_selected_rows * journals->stride * sizeof(float);
    return tms_memory_take(setup->memory, tms_needs_weights(&setup->needs) ? scores : 0,
                           &journals->scores, error);
}

void tms_journals_destroy(tms_journals *journals) {
    tms_device_free(journals->setup->dev, journals->scores);
    free(journals->all);
}

/* ---- Keeping --------------------------------------------------------------------------------- */

/* The scores of the lanes of a row, which are items, in the plane and beside the cache. */
static tms_fuse copy_scores(const tms_journals *journals, uint32_t layer, uint32_t row,
                            const tms_batch *batch, bool back) {
    const tamis_cache *cache = journals->setup->cache;
    const uint64_t lanes =
        ((uint64_t)layer * journals->setup->params.max_selected_rows + row) * batch->n_kv_heads;
    const tms_values plane = {.ref = tms_cache_planes(cache, layer).scores},
                     beside = {{journals->scores, lanes * journals->stride * sizeof(float)},
                               journals->stride};
    tms_fuse copy = {.batch = *batch,
                     .kind = TMS_FUSE_AXPBY,
                     .x = back ? beside : plane,
                     .out = back ? plane : beside,
                     .a = 1,
                     .page_size = cache->params.page_size};
    copy.batch.first = (tms_ref){NULL, 0};
    return copy;
}

tamis_status tms_journals_keep_scores(const tms_journals *journals, uint32_t layer,
                                      uint32_t section, const tms_batch *row, tamis_error *error) {
    const uint32_t first = journals->step->sections[section].first_row;
    if (!journals->scores) return TAMIS_OK;
    const tms_fuse copy = copy_scores(journals, layer, first, row, false);
    return tms_run_fuse(journals->setup->dev, &copy, error);
}

/* The slots that a row has taken, and the journal's slots of what was there. */
static tms_copy_slots copy_slots(const tms_journals *journals, uint32_t layer, uint32_t row,
                                 const tms_write_rows *write, bool back) {
    const tms_step *step = journals->step;
    const uint64_t heads = write->batch.n_kv_heads,
                   entry = tms_step_entry(step, layer) + row * heads;
    const tms_ref seq = tms_step_table(step, step->at.row_seq + row),
                  kept_seq = tms_step_table(step, journals->seq + row),
                  slots = tms_step_table(step, step->at.slots + entry),
                  kept = tms_step_table(step, journals->slots + entry);
    tms_copy_slots copy = {.kv = write->kv,
                           .planes = write->planes,
                           .batch = write->batch,
                           .to_seq = back ? seq : kept_seq,
                           .from = back ? kept : slots,
                           .to = back ? slots : kept};
    copy.batch.n_rows = 1;
    copy.batch.row_seq = back ? kept_seq : seq;
    return copy;
}

tamis_status tms_journals_keep_slots(const tms_journals *journals, uint32_t layer, uint32_t section,
                                     const tms_write_rows *write, tamis_error *error) {
    const uint32_t first = journals->step->sections[section].first_row;
    const tms_copy_slots copy = copy_slots(journals, layer, first, write, false);
    return tms_run_copy_slots(journals->setup->dev, &copy, error);
}

/* ---- Undoing --------------------------------------------------------------------------------- */

tamis_status tms_journals_undo(const tms_journals *journals, uint32_t layer, uint32_t first,
                               uint32_t end, const tms_write_rows *write, tamis_error *error) {
    tms_device *dev = journals->setup->dev;
    const tms_step *step = journals->step;
    tms_batch row = write->batch;
    /* The last one first: a row may have replaced one before it. */
    const bool replaced = step->layers[layer].n_staying > 0;
    for (uint32_t i = end; i > first && replaced; i--) {
        const tms_copy_slots copy = copy_slots(journals, layer, i - 1, write, true);
        TMS_TRY(tms_run_copy_slots(dev, &copy, error));
    }
    if (first == end) return TAMIS_OK;
    row.n_rows = 1;
    row.row_seq = tms_step_table(step, step->at.row_seq + first);
    row.visible.offset += (uint64_t)first * row.n_kv_heads * sizeof(int32_t);
    row.max_visible = (uint32_t)journals->stride;
    const tms_fuse scores = copy_scores(journals, layer, first, &row, true);
    if (journals->scores) TMS_TRY(tms_run_fuse(dev, &scores, error));
    /* Launch by launch: rows may have changed the same page. */
    for (uint32_t i = first; i < end && replaced; i++) {
        const tms_bounds bounds = tms_in_step_changed(journals->in_step, layer, i);
        TMS_TRY(tms_run_bounds(dev, &bounds, error));
    }
    return TAMIS_OK;
}

tamis_status tms_journals_warm(tms_journals *journals, const tms_write_rows *write,
                               tamis_error *error) {
    tms_device *dev = journals->setup->dev;
    if (!(journals->setup->params.flags & TAMIS_PLAN_VERIFY)) return TAMIS_OK;
    tms_copy_slots slots = copy_slots(journals, 0, 0, write, false);
    tms_fuse scores = copy_scores(journals, 0, 0, &write->batch, false);
    slots.batch.n_rows = scores.batch.n_rows = 0;
    TMS_TRY(tms_run_copy_slots(dev, &slots, error));
    if (!journals->scores) return TAMIS_OK;
    TMS_TRY(tms_run_fuse(dev, &scores, error));
    scores = copy_scores(journals, 0, 0, &write->batch, true);
    scores.batch.n_rows = 0;
    return tms_run_fuse(dev, &scores, error);
}

/* ---- Which there are ------------------------------------------------------------------------- */

void tms_journals_open(tms_journals *journals, uint32_t n_selected) {
    const tms_step *step = journals->step;
    journals->n = 0;
    for (uint32_t i = 0, row = 0; step->in_turns && i < n_selected; row += step->n_kept[i++]) {
        const tms_sequence *sequence = step->sequences[i];
        tms_past before = tms_history_give(sequence);
        before.length -= step->n_kept[i];
        if (step->n_kept[i] > 1)
            journals->all[journals->n++] =
                (tms_journal){sequence->id, row, step->n_kept[i], step->n_kept[i], before};
    }
}

tms_journal *tms_journals_find(const tms_journals *journals, tamis_sequence id) {
    for (uint32_t i = 0; i < journals->n; i++)
        if (journals->all[i].id == id) return &journals->all[i];
    return NULL;
}

void tms_journals_forget(tms_journals *journals, tms_journal *journal) {
    *journal = journals->all[--journals->n];
}

tamis_status tms_journals_check_settled(const tms_journals *journals, tamis_error *error) {
    for (uint32_t i = 0; i < journals->n; i++) {
        const tms_sequence *sequence = tms_cache_find(journals->setup->cache, journals->all[i].id);
        TMS_REQUIRE(!sequence || !tms_journal_of(sequence), TAMIS_E_STATE,
                    "it is not known yet which of the last %" PRIu32 " rows of sequence %" PRIu64
                    " stay: tamis_plan_keep_path says so first",
                    journals->all[i].n, journals->all[i].id);
    }
    return TAMIS_OK;
}
