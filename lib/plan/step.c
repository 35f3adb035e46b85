/* SPDX-License-Identifier: Apache-2.0 */
/* A step's beginning and end: reserve, upload; keep or give up. */
#include "lib/plan/plan.h"

#include <inttypes.h>

/* Checks the sequences and puts them into the step's growth; marks the first `*n` as taken. */
static tamis_status collect(tamis_plan *plan, const tamis_step *in, uint32_t *n,
                            tamis_error *error) {
    uint64_t total = 0;
    for (*n = 0; *n < in->count; ++*n) {
        tamis_sequence id = in->sequences[*n];
        uint32_t rows = in->rows ? in->rows[*n] : 1;
        tms_sequence *sequence = tms_cache_find(plan->cache, id);
        TMS_REQUIRE(sequence, TAMIS_E_ARGUMENT, "there is no sequence %" PRIu64, id);
        TMS_REQUIRE(!sequence->in_step, TAMIS_E_ARGUMENT,
                    "sequence %" PRIu64 " comes twice in the step", id);
        TMS_REQUIRE(rows > 0, TAMIS_E_ARGUMENT, "sequence %" PRIu64 " brings no rows", id);
        TMS_REQUIRE(rows == 1 || in->exact || !plan->params.fixed_launches, TAMIS_E_ARGUMENT,
                    "sequence %" PRIu64 " brings %" PRIu32
                    " rows: a step that is not exact brings one under fixed_launches",
                    id, rows);
        TMS_REQUIRE((uint64_t)sequence->length + rows <= plan->params.max_context, TAMIS_E_ARGUMENT,
                    "%" PRIu32 " rows after the %" PRIu32 " tokens of sequence %" PRIu64
                    " exceed max_context %" PRIu32,
                    rows, sequence->length, id, plan->params.max_context);
        total += rows;
        TMS_REQUIRE(total <= plan->params.max_rows, TAMIS_E_ARGUMENT,
                    "the step's first %" PRIu32 " sequences bring %" PRIu64
                    " rows, which exceed max_rows %" PRIu32,
                    *n + 1, total, plan->params.max_rows);
        plan->step.growth[*n] = (tms_growth){sequence, rows, tms_plan_cap(plan, in->exact),
                                             plan->eviction.asked.feed != TMS_FEED_NONE};
        tamis_status status = tms_plan_check_growth(plan, &plan->step.growth[*n], in->exact, error);
        if (status != TAMIS_OK) return status;
        sequence->in_step = true;
    }
    TMS_REQUIRE(in->exact || !plan->reading.listed || total <= plan->params.max_selected_rows,
                TAMIS_E_ARGUMENT,
                "%" PRIu64
                " rows go through the selection, which exceed max_selected_rows %" PRIu32,
                total, plan->params.max_selected_rows);
    return TAMIS_OK;
}

static tamis_status check_step(tamis_plan *plan, const tamis_step *in, tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(in, TAMIS_E_ARGUMENT, "step is NULL");
    TMS_REQUIRE_RESERVED(in, tamis_step);
    TMS_REQUIRE(!plan->cache->step_open, TAMIS_E_STATE, "a step on the cache is open");
    TMS_REQUIRE(in->sequences, TAMIS_E_ARGUMENT, "sequences is NULL");
    TMS_REQUIRE(in->count > 0, TAMIS_E_ARGUMENT, "the step has no sequences");
    TMS_REQUIRE(in->count <= plan->params.max_sequences, TAMIS_E_ARGUMENT,
                "%" PRIu32 " sequences exceed max_sequences %" PRIu32, in->count,
                plan->params.max_sequences);
    uint32_t n = 0;
    tamis_status status = collect(plan, in, &n, error);
    for (uint32_t i = 0; i < n; i++)
        plan->step.growth[i].sequence->in_step = false;
    return status;
}

/* Copies what a pool has of each page of the pairs. Bounds stay behind unless tokens are replaced
 * or scored in place: else a copied page is a partial one, whose bounds come when it is full. */
static tamis_status copy_pool(const tamis_plan *plan, const tms_pool *pool, tms_ref pairs,
                              uint32_t n, tamis_error *error) {
    tms_device *dev = plan->dev;
    const tms_eviction_needs *asked = &plan->eviction.asked;
    const uint64_t plane_bytes = plan->cache->params.page_size * sizeof(int32_t);
    const struct {
        tms_mem *mem;
        uint64_t bytes;
    } parts[] = {
        {pool->data, plan->cache->size.page_bytes},
        {asked->in_place || asked->feed ? pool->bounds : NULL, plan->cache->size.bounds_bytes},
        {pool->positions, plane_bytes},
        {pool->scores, plane_bytes}};
    tamis_status status = TAMIS_OK;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const tms_copy_pages copy = {
            .data = {parts[i].mem, 0}, .bytes = parts[i].bytes, .n = n, .pairs = pairs};
        if (parts[i].mem) TMS_TRY(dev, tms_run_copy_pages(dev, &copy));
    }
fail:
    return status;
}

/* Enqueues the copies of shared pages. */
static tamis_status copy_shared(const tamis_plan *plan, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    uint64_t at = plan->step.at.copies;
    for (uint32_t p = 0; p < plan->cache->size.pools && status == TAMIS_OK; p++) {
        uint32_t n = plan->copies.count[p];
        tms_ref pairs = {plan->step_tables, at * sizeof(int32_t)};
        if (n > 0) status = copy_pool(plan, &plan->cache->pools[p], pairs, n, error);
        at += 2 * (uint64_t)n;
    }
    return status;
}

tamis_status tms_plan_send(const tamis_plan *plan, tms_ref to, const void *from, uint64_t bytes) {
    const uint64_t piece = 1u << 20;
    tamis_status status = TAMIS_OK;
    for (uint64_t at = 0; at < bytes && status == TAMIS_OK; at += piece) {
        uint64_t left = bytes - at, n = left < piece ? left : piece;
        tms_ref part = {to.mem, to.offset + at};
        status = plan->dev->backend->write(plan->dev, part, (const char *)from + at, n);
    }
    return status;
}

/* Sends the step's tables. */
static tamis_status send_tables(const tamis_plan *plan, tamis_error *error) {
    const tms_step *step = &plan->step;
    uint64_t bytes = (uint64_t)step->at.end * sizeof *step->host;
    return tms_forward(
        plan->dev, tms_plan_send(plan, (tms_ref){plan->step_tables, 0}, step->host, bytes), error);
}

static tamis_status upload(tamis_plan *plan, tamis_error *error) {
    tamis_status status = tms_plan_sync_tables(plan, error);
    if (status == TAMIS_OK) status = send_tables(plan, error);
    return status == TAMIS_OK ? copy_shared(plan, error) : status;
}

tamis_status tamis_plan_step_begin(tamis_plan *plan, const tamis_step *step, tamis_error *error) {
    tamis_status status = check_step(plan, step, error);
    if (status != TAMIS_OK) return status;
    tms_step *s = &plan->step;
    status = tms_cache_reserve(plan->cache, s->growth, step->count, &plan->copies, error);
    if (status != TAMIS_OK) return status;
    s->n_sequences = step->count;
    status = tms_forward(plan->dev, tms_plan_assign_rows(plan), error);
    tms_step_fill(plan, step);
    if (status == TAMIS_OK) status = upload(plan, error);
    if (status != TAMIS_OK) {
        tms_cache_rollback(plan->cache, s->growth, s->n_sequences, false);
        return status;
    }
    tms_plan_note_ring(plan);
    for (uint32_t p = 0; p < plan->cache->size.pools; p++)
        plan->counters.pages_copied += plan->copies.count[p];
    s->open = true;
    return TAMIS_OK;
}

static tamis_status check_open(const tamis_plan *plan, tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(plan->step.open, TAMIS_E_STATE, "the plan has no open step");
    return TAMIS_OK;
}

tamis_status tamis_plan_step_end(tamis_plan *plan, tamis_error *error) {
    tamis_status status = check_open(plan, error);
    if (status != TAMIS_OK) return status;
    tms_step *step = &plan->step;
    for (uint32_t layer = 0; layer < plan->cache->params.n_layers; layer++)
        TMS_REQUIRE(step->layers[layer].written, TAMIS_E_STATE,
                    "layer %" PRIu32 " was not written in this step", layer);
    status = tms_forward(plan->dev, plan->dev->backend->flush(plan->dev), error);
    if (status != TAMIS_OK) return status;
    tms_cache_commit(plan->cache, step->growth, step->n_sequences);
    tms_plan_close_ring(plan);
    tms_plan_note_scores(plan, false);
    step->open = false;
    plan->counters.steps++;
    return TAMIS_OK;
}

/* Marks sequences of whose lanes one may have had a token overwritten. */
static void mark_given_up(tamis_plan *plan) {
    const tms_step *step = &plan->step;
    uint32_t heads = plan->cache->params.n_kv_heads;
    for (uint32_t i = 0; i < step->n_sequences; i++)
        for (uint32_t lane = 0; lane < plan->cache->n_lanes; lane++) {
            const tms_growth *growth = &step->growth[i];
            bool stayed = growth->sequence->lanes[lane].grown < growth->rows;
            if (stayed && step->layers[lane / heads].begun)
                growth->sequence->given_up = growth->cap;
        }
}

void tms_plan_give_up(tamis_plan *plan) {
    const tms_step *step = &plan->step;
    mark_given_up(plan);
    tms_cache_rollback(plan->cache, step->growth, step->n_sequences, true);
    for (uint32_t i = 0; i < step->n_sequences; i++)
        if (step->growth[i].sequence->given_up) tms_history_replaced(step->growth[i].sequence);
    tms_plan_note_scores(plan, true);
    plan->step.open = false;
}

tamis_status tamis_plan_step_cancel(tamis_plan *plan, tamis_error *error) {
    tamis_status status = check_open(plan, error);
    if (status != TAMIS_OK) return status;
    tms_plan_give_up(plan);
    plan->step.attended = false;
    return TAMIS_OK;
}
