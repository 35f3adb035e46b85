/* SPDX-License-Identifier: Apache-2.0 */
/* The page tables on the device: a sequence keeps its row from step to step, so that a decode step
 * uploads only the entries that are new. */
#include "lib/plan/plan.h"

uint32_t tms_plan_find_row(const tamis_plan *plan, tamis_sequence id) {
    uint32_t r = 0;
    while (r < plan->params.max_sequences && plan->rows[r].id != id)
        r++;
    return r < plan->params.max_sequences ? r : TMS_NO_ROW;
}

/* The row that no sequence of the step has, and that has not been used for the longest time. */
static uint32_t oldest_row(const tamis_plan *plan) {
    uint32_t oldest = 0;
    for (uint32_t i = 1; i < plan->params.max_sequences; i++)
        if (plan->rows[i].used < plan->rows[oldest].used) oldest = i;
    return oldest;
}

/* Finds what is known of every sequence and the row that it has; for those without one, the oldest
 * rows become vacant. */
static void choose_rows(tamis_plan *plan, tms_heir *heirs, uint32_t n) {
    plan->step_number++;
    for (uint32_t i = 0; i < n; i++) {
        tms_plan_known(plan, heirs[i].sequence, &heirs[i].known);
        heirs[i].row = tms_plan_find_row(plan, heirs[i].sequence->id);
        if (heirs[i].row != TMS_NO_ROW) plan->rows[heirs[i].row].used = plan->step_number;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (heirs[i].row != TMS_NO_ROW) continue;
        tms_table_row *row = &plan->rows[oldest_row(plan)];
        row->used = plan->step_number;
        row->vacant = true;
    }
}

static void move_in(tamis_plan *plan, tms_heir *heir, uint32_t r) {
    tms_table_row *row = &plan->rows[r];
    heir->row = r;
    *row =
        (tms_table_row){.id = heir->sequence->id, .used = plan->step_number, .pages = row->pages};
}

/* A vacant row goes to one who inherits the queries in its ring, if there is such a one. So whoever
 * else inherits them can copy them afterwards, and no copy overwrites what another one needs. */
static void give_rows(tamis_plan *plan, tms_heir *heirs, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t from = heirs[i].known.row;
        if (heirs[i].row == TMS_NO_ROW && from != TMS_NO_ROW && plan->rows[from].vacant)
            move_in(plan, &heirs[i], from);
    }
    for (uint32_t i = 0, r = 0; i < n; i++) {
        if (heirs[i].row != TMS_NO_ROW) continue;
        while (!plan->rows[r].vacant)
            r++;
        move_in(plan, &heirs[i], r);
    }
}

static tamis_status settle(tamis_plan *plan, tms_heir *heirs, uint32_t n) {
    tamis_status status = TAMIS_OK;
    choose_rows(plan, heirs, n);
    give_rows(plan, heirs, n);
    for (uint32_t i = 0; i < n && status == TAMIS_OK; i++)
        status = tms_plan_inherit(plan, &heirs[i]);
    return status;
}

tamis_status tms_plan_assign_rows(tamis_plan *plan) {
    tms_step *step = &plan->step;
    for (uint32_t i = 0; i < step->n_sequences; i++)
        step->heirs[i].sequence = step->growth[i].sequence;
    tamis_status status = settle(plan, step->heirs, step->n_sequences);
    for (uint32_t i = 0; i < step->n_sequences; i++)
        step->table_row[i] = step->heirs[i].row;
    return status;
}

static tamis_status send(tamis_plan *plan, uint32_t n, tamis_error *error) {
    tms_device *dev = plan->dev;
    tms_write_table change = {.data = {plan->table, 0}, .n = n, .entries = {plan->entries, 0}};
    tamis_status status = TAMIS_OK;
    TMS_TRY(dev, dev->backend->write(dev, change.entries, plan->entry_host,
                                     2 * (uint64_t)n * sizeof(int32_t)));
    TMS_TRY(dev, tms_run_write_table(dev, &change));
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

/* Uploads what the rows of the sequences lack. */
static tamis_status sync_rows(tamis_plan *plan, const tms_heir *heirs, uint32_t count,
                              tamis_error *error) {
    uint32_t n = 0, n_lanes = plan->cache->n_lanes;
    for (uint32_t i = 0; i < count; i++) {
        const tms_sequence *sequence = heirs[i].sequence;
        uint32_t r = heirs[i].row;
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

static tamis_status sync_or_forget(tamis_plan *plan, const tms_heir *heirs, uint32_t count,
                                   tamis_error *error) {
    tamis_status status = sync_rows(plan, heirs, count, error);
    for (uint32_t i = 0; i < count && status != TAMIS_OK; i++)
        plan->rows[heirs[i].row].version = 0; /* all of it goes up again */
    return status;
}

tamis_status tms_plan_sync_tables(tamis_plan *plan, tamis_error *error) {
    return sync_or_forget(plan, plan->step.heirs, plan->step.n_sequences, error);
}

tamis_status tms_plan_row_of(tamis_plan *plan, tms_sequence *sequence, uint32_t *row,
                             tamis_error *error) {
    tms_heir one = {.sequence = sequence};
    tamis_status status = tms_forward(plan->dev, settle(plan, &one, 1), error);
    *row = one.row;
    return status == TAMIS_OK ? sync_or_forget(plan, &one, 1, error) : status;
}
