/* SPDX-License-Identifier: Apache-2.0 */
/* The page tables on the device: a sequence keeps its row from step to step, so that a decode step
 * uploads only the entries that are new. */
#include "lib/plan/plan.h"

/* The row that holds the sequence; else the one not used by this step for the longest time. */
static uint32_t row_for(const tamis_plan *plan, tamis_sequence id) {
    uint32_t oldest = 0;
    for (uint32_t i = 0; i < plan->params.max_sequences; i++) {
        if (plan->rows[i].id == id) return i;
        if (plan->rows[i].used < plan->rows[oldest].used) oldest = i;
    }
    return oldest;
}

/* Queries in the row's ring stay known to a fork that takes its parent's place. */
static void take_row(const tamis_plan *plan, tms_table_row *row, const tms_sequence *sequence) {
    uint32_t from = 0, to = 0;
    if (row->id == sequence->parent) tms_plan_known(plan, sequence, &from, &to);
    *row = (tms_table_row){.id = sequence->id, .pages = row->pages};
    if (from == to) return;
    row->ring_from = from;
    row->ring_to = to;
    row->ring_edits = sequence->edits;
}

/* Rows that hold a sequence of the step are taken first, so that no other sequence gets one. */
void tms_plan_assign_rows(tamis_plan *plan) {
    tms_step *step = &plan->step;
    plan->step_number++;
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < step->n_sequences; i++) {
            const tms_sequence *sequence = step->growth[i].sequence;
            uint32_t r = row_for(plan, sequence->id);
            if (pass == 0 && plan->rows[r].id != sequence->id) continue;
            if (plan->rows[r].id != sequence->id) take_row(plan, &plan->rows[r], sequence);
            plan->rows[r].used = plan->step_number;
            step->table_row[i] = r;
        }
}

static tamis_status send(tamis_plan *plan, uint32_t n, tamis_error *error) {
    tms_device *dev = plan->dev;
    tms_write_table change = {.data = {plan->table, 0}, .n = n, .entries = {plan->entries, 0}};
    tamis_status status = TAMIS_OK;
    TMS_TRY(dev, dev->backend->write(dev, change.entries, plan->entry_host,
                                     2 * (uint64_t)n * sizeof(int32_t)));
    TMS_TRY(dev, dev->backend->write_table(dev, &change));
fail:
    return status;
}

/* Collects the entries of a lane that the row lacks, until the chunk is full. Returns its fill. */
static uint32_t collect(const tamis_plan *plan, uint32_t row, const tms_sequence *sequence,
                        uint32_t lane, uint32_t n) {
    uint32_t *from = &plan->rows[row].pages[lane];
    uint32_t end = tms_pages_of(plan->cache, sequence->lanes[lane].length);
    const int32_t *list = tms_lane_pages(sequence, lane);
    uint32_t base = (row * plan->cache->n_lanes + lane) * plan->max_pages;
    for (; *from < end && n < TMS_ENTRY_CHUNK; n++, ++*from) {
        plan->entry_host[2 * n] = (int32_t)(base + *from);
        plan->entry_host[2 * n + 1] = list[*from];
    }
    return n;
}

/* Forgets what the row holds unless only appending has happened to it since. */
static void refresh(const tamis_plan *plan, tms_table_row *row, const tms_sequence *sequence) {
    if (row->version == sequence->version) return;
    row->version = sequence->version;
    for (uint32_t lane = 0; lane < plan->cache->n_lanes; lane++)
        row->pages[lane] = 0;
}

static tamis_status sync_rows(tamis_plan *plan, tamis_error *error) {
    uint32_t n = 0, n_lanes = plan->cache->n_lanes;
    for (uint32_t i = 0; i < plan->step.n_sequences; i++) {
        const tms_sequence *sequence = plan->step.growth[i].sequence;
        uint32_t r = plan->step.table_row[i];
        refresh(plan, &plan->rows[r], sequence);
        for (uint32_t lane = 0; lane < n_lanes; lane++) {
            n = collect(plan, r, sequence, lane, n);
            while (n == TMS_ENTRY_CHUNK) {
                tamis_status status = send(plan, n, error);
                if (status != TAMIS_OK) return status;
                n = collect(plan, r, sequence, lane, 0);
            }
        }
    }
    return n > 0 ? send(plan, n, error) : TAMIS_OK;
}

tamis_status tms_plan_sync_tables(tamis_plan *plan, tamis_error *error) {
    tamis_status status = sync_rows(plan, error);
    for (uint32_t i = 0; i < plan->step.n_sequences && status != TAMIS_OK; i++)
        plan->rows[plan->step.table_row[i]] =
            (tms_table_row){.pages = plan->rows[plan->step.table_row[i]].pages};
    return status;
}
