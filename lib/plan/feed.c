/* SPDX-License-Identifier: Apache-2.0 */
/* What the layers of a step do for an eviction: slots in lanes that stay at their length, rows'
 * weights to the plane of scores, the last queries into the ring. */
#include "lib/plan/plan.h"

#include <inttypes.h>
#include <stdio.h>

uint32_t tms_plan_cap(const tamis_plan *plan, bool exact) {
    return plan->eviction.asked.in_place && !exact ? plan->params.eviction.budget : UINT32_MAX;
}

/* Slots of lanes that must correspond to each other: those of a layer, or all. */
static tamis_status check_alike(const tamis_plan *plan, const tms_sequence *sequence,
                                tamis_error *error) {
    const tms_eviction_needs *asked = &plan->eviction.asked;
    uint32_t heads = plan->cache->params.n_kv_heads;
    if (asked->feed != TMS_FEED_NEWEST && !asked->rotation) return TAMIS_OK;
    for (uint32_t lane = 0; lane < plan->cache->n_lanes; lane++) {
        uint32_t first = asked->rotation ? 0 : lane / heads * heads;
        TMS_REQUIRE(sequence->lanes[lane].length == sequence->lanes[first].length, TAMIS_E_STATE,
                    "lanes %" PRIu32 " and %" PRIu32 " of sequence %" PRIu64 " hold %" PRIu32
                    " and %" PRIu32 " tokens; %s needs as many in each",
                    first, lane, sequence->id, sequence->lanes[first].length,
                    sequence->lanes[lane].length, tamis_eviction_name(plan->params.eviction.kind));
    }
    return TAMIS_OK;
}

/* Whether all of its rows have given what the eviction goes by. */
static tamis_status check_scores(const tamis_plan *plan, const tms_sequence *sequence,
                                 tamis_error *error) {
    const tamis_eviction_kind kind = plan->params.eviction.kind;
    const uint32_t from = tms_history_scored_to(sequence, kind);
    const char *name = tamis_eviction_name(kind);
    TMS_REQUIRE(plan->eviction.asked.feed == TMS_FEED_NONE || from == sequence->length,
                TAMIS_E_STATE,
                "the rows of positions %" PRIu32 " to %" PRIu32 " of sequence %" PRIu64
                " have left no scores for %s: their steps must attend every layer, under %s",
                from, sequence->length - 1, sequence->id, name, name);
    return TAMIS_OK;
}

tamis_status tms_plan_check_growth(const tamis_plan *plan, const tms_growth *growth, bool exact,
                                   tamis_error *error) {
    const tms_eviction_needs *asked = &plan->eviction.asked;
    const tms_sequence *sequence = growth->sequence;
    const char *name = tamis_eviction_name(plan->params.eviction.kind);
    TMS_REQUIRE(!asked->rotation || plan->eviction.rotation, TAMIS_E_STATE,
                "reindexed %s needs tamis_plan_bind_rotation first", name);
    TMS_REQUIRE(sequence->given_up == 0 || sequence->given_up == growth->cap, TAMIS_E_STATE,
                "sequence %" PRIu64 " holds rows of a step that was given up at %" PRIu32
                " tokens a lane; a decode step under that budget must come first",
                sequence->id, sequence->given_up);
    TMS_REQUIRE(exact || !plan->reading.listed || asked->in_place || !sequence->unordered,
                TAMIS_E_STATE,
                "the slots of sequence %" PRIu64
                " are not in the order of their tokens; selection %s reads them only under an "
                "eviction that acts in every step",
                sequence->id, tamis_selection_name(plan->params.selection.kind));
    tamis_status status = check_alike(plan, sequence, error);
    if (status != TAMIS_OK || exact || (!asked->feed && !asked->in_place)) return status;
    TMS_REQUIRE(growth->rows == 1, TAMIS_E_ARGUMENT,
                "sequence %" PRIu64 " brings %" PRIu32
                " rows: a step that is not exact brings one under eviction %s",
                sequence->id, growth->rows, name);
    bool stays = false;
    for (uint32_t lane = 0; lane < plan->cache->n_lanes; lane++) {
        TMS_REQUIRE(sequence->lanes[lane].length <= growth->cap, TAMIS_E_STATE,
                    "lane %" PRIu32 " of sequence %" PRIu64 " holds %" PRIu32
                    " tokens, more than the budget %" PRIu32 " of %s: tamis_plan_evict comes first",
                    lane, sequence->id, sequence->lanes[lane].length, growth->cap, name);
        stays |= sequence->lanes[lane].length == growth->cap;
    }
    /* A lane that grows asks no score. */
    return stays ? check_scores(plan, sequence, error) : TAMIS_OK;
}

tamis_status tms_plan_make_slots(tamis_plan *plan, uint32_t layer) {
    const tms_step *step = &plan->step;
    const tms_write_rows write = tms_plan_write_rows(plan, layer);
    uint64_t entry = (uint64_t)layer * step->n_rows * write.batch.n_kv_heads;
    tms_replace replace = {.kv = write.kv,
                           .planes = write.planes,
                           .batch = write.batch,
                           .turns = tms_step_table(plan, step->at.turns + entry),
                           .slots = write.slots,
                           .changed = {plan->eviction.changed, 0},
                           .positions = write.positions,
                           .sinks = plan->params.eviction.sinks,
                           .recent = plan->eviction.asked.recent,
                           .lifetime = plan->params.eviction.options & TAMIS_EVICT_LIFETIME};
    if (!plan->eviction.asked.feed) replace.planes.scores.mem = NULL;
    return tms_run_replace(plan->dev, &replace);
}

tamis_status tms_plan_rebound(tamis_plan *plan, uint32_t layer) {
    tms_bounds bounds = tms_cache_bounds(plan->cache, layer);
    bounds.n = plan->step.n_rows * plan->cache->params.n_kv_heads;
    bounds.pages = (tms_ref){plan->eviction.changed, 0};
    return tms_run_bounds(plan->dev, &bounds);
}

tamis_status tms_plan_listen(tamis_plan *plan, bool listed, tms_attend *attend) {
    tms_plan_eviction *e = &plan->eviction;
    if (e->asked.feed == TMS_FEED_NONE) return TAMIS_OK;
    attend->lse = (tms_ref){e->lse, 0};
    if (plan->step.exact) return TAMIS_OK;
    attend->logits = (tms_ref){e->logits, 0};
    /* No longer than the step's longest lane, which is at most e->logit_stride. */
    attend->logit_stride = tms_align_ints(attend->batch.max_visible);
    if (!listed || plan->step.n_rows == 0) return TAMIS_OK;
    /* Pages that are not read: -inf, which adds nothing. */
    return plan->dev->backend->fill(plan->dev, attend->logits, 0xFF800000u,
                                    (uint64_t)plan->step.n_rows * attend->batch.n_heads *
                                        attend->logit_stride * sizeof(float));
}

/* The rows' weights, from the step's own logits or from its keys. */
static tms_observe weights(const tamis_plan *plan, const tms_attend *attend) {
    const tms_step *step = &plan->step;
    return (tms_observe){.kv = attend->kv,
                         .batch = attend->batch,
                         .n_items = step->n_rows ? step->n_sequences : 0,
                         .max_span = step->max_span ? step->max_span : 1,
                         .spans = tms_step_table(plan, step->at.item_spans),
                         .q = attend->q,
                         .lse = attend->lse,
                         .lse_stride = attend->batch.n_heads,
                         .scale = attend->scale,
                         .soft_cap = attend->soft_cap,
                         .logits = attend->logits,
                         .logit_stride = attend->logit_stride};
}

static tamis_status add_weights(tamis_plan *plan, uint32_t layer, const tms_attend *attend) {
    tms_observe observe = weights(plan, attend);
    observe.rows = TMS_ROWS_SUM;
    observe.group = TMS_GROUP_SUM;
    observe.accumulate = true;
    observe.values.ref = tms_cache_planes(plan->cache, layer).scores;
    return tms_run_observe(plan->dev, &observe);
}

/* The mean of all heads of the layer, alike in all of its lanes. */
static tamis_status put_weights(tamis_plan *plan, uint32_t layer, const tms_attend *attend) {
    const tms_step *step = &plan->step;
    tms_observe observe = weights(plan, attend);
    observe.rows = TMS_ROWS_SUM;
    observe.group = TMS_GROUP_MEAN;
    observe.values = (tms_values){{plan->eviction.fed, 0}, plan->eviction.stride};
    tms_fuse mean = {.batch = attend->batch,
                     .kind = TMS_FUSE_MEAN_OF_HEADS,
                     .x = observe.values,
                     .out = {tms_cache_planes(plan->cache, layer).scores, 0},
                     .page_size = attend->kv.page_size};
    uint64_t entry = (uint64_t)layer * step->n_sequences * attend->batch.n_kv_heads;
    mean.batch.n_rows = observe.n_items;
    mean.batch.row_seq = tms_step_table(plan, step->at.item_seq);
    mean.batch.visible = tms_step_table(plan, step->at.item_visible + entry);
    tamis_status status = tms_run_observe(plan->dev, &observe);
    return status == TAMIS_OK ? tms_run_fuse(plan->dev, &mean) : status;
}

/* The layer's last queries into its ring. */
static tamis_status keep_queries(tamis_plan *plan, uint32_t layer, const tms_attend *attend) {
    uint64_t width = (uint64_t)attend->batch.n_heads * attend->kv.head_dim;
    uint64_t rows = (uint64_t)plan->params.max_sequences * plan->eviction.asked.window;
    const tms_scatter_rows scatter = {
        .x = attend->q,
        .y = {{plan->eviction.ring, layer * rows * width * sizeof(float)}, width},
        .n_rows = plan->step.n_rows,
        .width = (uint32_t)width,
        .index = tms_step_table(plan, plan->step.at.ring)};
    return tms_run_scatter_rows(plan->dev, &scatter);
}

/* Whether the step's queries are kept: those of decode rows, too, unless a graph may stand for
 * them. */
static bool keeps_queries(const tamis_plan *plan) {
    return plan->eviction.asked.window && (plan->step.exact || !plan->params.fixed_launches);
}

bool tms_plan_feeds(const tamis_plan *plan) {
    return plan->eviction.asked.feed || keeps_queries(plan);
}

tamis_status tms_plan_feed(tamis_plan *plan, uint32_t layer, const tms_attend *attend) {
    tamis_status status = TAMIS_OK;
    if (plan->eviction.asked.feed == TMS_FEED_SUM) status = add_weights(plan, layer, attend);
    if (plan->eviction.asked.feed == TMS_FEED_NEWEST) status = put_weights(plan, layer, attend);
    if (plan->eviction.asked.feed) plan->counters.rows_observed += plan->step.n_rows;
    if (status != TAMIS_OK || !keeps_queries(plan)) return status;
    return keep_queries(plan, layer, attend);
}

/* ---- Which queries the ring holds ------------------------------------------------------------ */

static tamis_status copy_ring(tamis_plan *plan, uint32_t to, uint32_t from) {
    tms_device *dev = plan->dev;
    const tamis_cache_params *c = &plan->cache->params;
    uint64_t bytes =
        (uint64_t)plan->eviction.asked.window * c->n_heads * c->head_dim * sizeof(float);
    tamis_status status = TAMIS_OK;
    for (uint64_t layer = 0; layer < c->n_layers && status == TAMIS_OK; layer++) {
        uint64_t first = layer * plan->params.max_sequences;
        status = dev->backend->copy(dev, (tms_ref){plan->eviction.ring, (first + to) * bytes},
                                    (tms_ref){plan->eviction.ring, (first + from) * bytes}, bytes);
    }
    return status;
}

/* The row whose ring holds queries of the sequence: its own, else that of the nearest one it comes
 * from whose rows since the fork, if there are any, came behind no cut. Of positions below *end
 * they are the sequence's. */
static uint32_t ring_of(const tamis_plan *plan, const tms_sequence *sequence, uint32_t *end) {
    uint32_t r = tms_plan_find_row(plan, sequence->id);
    if (r != TMS_NO_ROW && plan->rows[r].ring_edits) {
        *end = tms_history_cut_since(sequence, plan->rows[r].ring_edits);
        return r;
    }
    *end = tms_history_cut_since(sequence, 1);
    for (; sequence && sequence->parent; sequence = tms_cache_find(plan->cache, sequence->parent)) {
        if (sequence->forked_at < *end) *end = sequence->forked_at;
        r = tms_plan_find_row(plan, sequence->parent);
        uint64_t edits = r == TMS_NO_ROW ? 0 : plan->rows[r].ring_edits;
        bool holds = edits > 0 && edits <= sequence->parent_cuts.n;
        uint32_t least = tms_history_parent_cut_since(sequence, holds ? edits : 1);
        if (least < *end) *end = least;
        if (holds) return r;
    }
    return TMS_NO_ROW;
}

/* Rows that came later have taken the places of those `window` before them, even where they have
 * been truncated away since. */
void tms_plan_known(const tamis_plan *plan, const tms_sequence *sequence, tms_known *out) {
    uint32_t window = plan->eviction.asked.window, end;
    *out = (tms_known){.row = window ? ring_of(plan, sequence, &end) : TMS_NO_ROW};
    if (out->row == TMS_NO_ROW) return;
    const tms_table_row *row = &plan->rows[out->row];
    out->to = row->ring_to < end ? row->ring_to : end;
    out->from = row->ring_to > window ? row->ring_to - window : 0;
    if (out->from < row->ring_from) out->from = row->ring_from;
    if (out->from >= out->to) *out = (tms_known){.row = TMS_NO_ROW};
}

tamis_status tms_plan_inherit(tamis_plan *plan, const tms_heir *heir) {
    tms_table_row *row = &plan->rows[heir->row];
    const tms_known *known = &heir->known;
    if (plan->eviction.asked.window == 0) return TAMIS_OK;
    if (known->row != TMS_NO_ROW && known->row != heir->row) {
        tamis_status status = copy_ring(plan, heir->row, known->row);
        if (status != TAMIS_OK) return status;
    }
    row->ring_from = known->from;
    row->ring_to = known->to;
    row->ring_edits = tms_history_mark(heir->sequence);
    return TAMIS_OK;
}

void tms_plan_note_ring(tamis_plan *plan) {
    for (uint32_t i = 0; i < plan->step.n_sequences && keeps_queries(plan); i++) {
        const tms_growth *growth = &plan->step.growth[i];
        tms_table_row *row = &plan->rows[plan->step.table_row[i]];
        uint32_t first = growth->sequence->length - growth->rows;
        if (row->ring_to != first) row->ring_from = first;
        row->ring_to = growth->sequence->length;
    }
}

/* Whether every layer of the step was attended, and whether rows of one may have fed scores. */
static bool all_attended(const tamis_plan *plan) {
    bool all = true;
    for (uint32_t layer = 0; layer < plan->cache->params.n_layers; layer++)
        all &= plan->step.layers[layer].attended;
    return all;
}

static bool any_fed(const tamis_plan *plan) {
    bool any = false;
    for (uint32_t layer = 0; layer < plan->cache->params.n_layers; layer++)
        any |= plan->step.layers[layer].fed;
    return any;
}

void tms_plan_close_ring(tamis_plan *plan) {
    bool attended = all_attended(plan);
    for (uint32_t i = 0; i < plan->step.n_sequences && !attended && keeps_queries(plan); i++) {
        tms_table_row *row = &plan->rows[plan->step.table_row[i]];
        row->ring_from = row->ring_to;
    }
}

/* ---- What scores are worth ------------------------------------------------------------------- */

/* After a step that was given up in place the same one must follow, which takes the same tokens'
 * places: a layer that was attended has them already, another one still has the scores from before.
 * So nothing is lost there. */
void tms_plan_note_scores(tamis_plan *plan, bool given_up) {
    const bool newest = plan->eviction.asked.feed == TMS_FEED_NEWEST;
    const bool whole = !given_up && all_attended(plan);
    if (plan->eviction.asked.feed == TMS_FEED_NONE || !any_fed(plan)) return;
    for (uint32_t i = 0; i < plan->step.n_sequences; i++) {
        const tms_growth *growth = &plan->step.growth[i];
        if (given_up && growth->sequence->given_up) continue;
        tms_history_scored(growth->sequence, plan->params.eviction.kind, newest, growth->rows,
                           whole);
    }
}

static tamis_status check_queries(const tamis_plan *plan, const tms_sequence *sequence,
                                  tamis_error *error) {
    const uint32_t window = plan->eviction.asked.window;
    tms_known known;
    if (window == 0) return TAMIS_OK;
    tms_plan_known(plan, sequence, &known);
    if (known.to == sequence->length && known.from + window <= known.to) return TAMIS_OK;
    char text[48] = "none is known";
    if (known.row != TMS_NO_ROW)
        snprintf(text, sizeof text, "known are %" PRIu32 " to %" PRIu32, known.from, known.to - 1);
    return tms_error_set(error, TAMIS_E_STATE,
                         "the queries of positions %" PRIu32 " to %" PRIu32 " of sequence %" PRIu64
                         " are not all kept by this plan; %s",
                         sequence->length - window, sequence->length - 1, sequence->id, text);
}

/* Whether the last slots hold the window's tokens, and the first ones the sinks, where the eviction
 * goes by slots. */
static tamis_status check_order(const tamis_plan *plan, const tms_sequence *sequence,
                                tamis_error *error) {
    const tamis_eviction *e = &plan->params.eviction;
    const char *name = tamis_eviction_name(e->kind);
    if (plan->eviction.asked.window == 0 && e->kind != TAMIS_EVICT_CALLER) return TAMIS_OK;
    TMS_REQUIRE(e->window == 0 || sequence->length - e->window >= sequence->intact_from,
                TAMIS_E_STATE,
                "the window of %s is positions %" PRIu32 " to %" PRIu32 " of sequence %" PRIu64
                ", whose lanes hold all tokens in their order only from %" PRIu32 " on",
                name, sequence->length - e->window, sequence->length - 1, sequence->id,
                sequence->intact_from);
    TMS_REQUIRE(e->sinks == 0 || !sequence->unordered, TAMIS_E_STATE,
                "the slots of sequence %" PRIu64
                " are not in the order of their tokens; %s takes the first %" PRIu32
                " for its sinks",
                sequence->id, name, e->sinks);
    return TAMIS_OK;
}

tamis_status tms_plan_check_history(const tamis_plan *plan, const tms_sequence *sequence,
                                    tamis_error *error) {
    tamis_status status = check_scores(plan, sequence, error);
    if (status == TAMIS_OK) status = check_queries(plan, sequence, error);
    return status == TAMIS_OK ? check_order(plan, sequence, error) : status;
}

uint32_t tms_plan_spared(const tamis_plan *plan) {
    const tamis_eviction *e = &plan->params.eviction;
    if (e->kind == TAMIS_EVICT_STREAMING) return e->budget - e->sinks;
    return e->window ? e->window : plan->eviction.asked.recent;
}
