/* SPDX-License-Identifier: Apache-2.0 */
/* Evicting within steps: which rows a sequence may have, slots in lanes that stay at their length,
 * keys and weights that go to the scores, and the check of the scores. */
#include "lib/plan/evict_in_step.h"
#include "lib/plan/templates.h"

#include <inttypes.h>

/* ---- Tables ---------------------------------------------------------------------------------- */

static void place(void *room, const tms_step_size *size, uint64_t *end) {
    tms_in_step *e = room;
    const tms_eviction_needs *needs = &e->setup->needs;
    const uint64_t n_lanes = e->setup->cache->n_lanes;
    const uint64_t sequences = tms_needs_weights(needs) ? size->sequences : 0;
    e->stays = tms_arena_place(end, needs->in_place && !size->exact ? size->rows * n_lanes : 0);
    e->item_seq = tms_arena_place(end, sequences);
    e->item_spans = tms_arena_place(end, 2 * sequences);
    e->item_visible = tms_arena_place(end, sequences * n_lanes);
}

/* Lists the lanes that stay at their length. */
static void fill_stays(const tms_in_step *e, const tms_step *step) {
    const tamis_cache_params *cache = &e->setup->cache->params;
    int32_t *stays = step->tables.host + e->stays;
    for (uint32_t layer = 0; layer < cache->n_layers; layer++)
        for (uint32_t i = 0; i < step->n_sequences; i++)
            for (uint32_t n = 0; n < step->n_kept[i]; n++)
                for (uint32_t h = 0; h < cache->n_kv_heads; h++)
                    *stays++ = step->sequences[i]->lanes[layer * cache->n_kv_heads + h].grown <= n;
}

/* Of so many rows of a sequence in a section, those whose weights go to scores: all, or the last. */
static uint32_t n_fed(const tms_in_step *e, uint32_t rows) {
    return e->setup->needs.feed == TMS_FEED_SUM ? rows : 1;
}

/* Lists those rows. */
static void fill_spans(const tms_in_step *e, const tms_step *step, const tms_section *section) {
    int32_t *span = step->tables.host + e->item_spans + 2 * (uint64_t)section->first_sequence;
    uint32_t first = 0;
    for (uint32_t i = 0; i < section->n_sequences; i++, span += 2) {
        const uint32_t rows = section->alone ? 1 : step->n_kept[section->first_sequence + i],
                       fed = n_fed(e, rows);
        span[0] = (int32_t)(first + rows - fed);
        span[1] = (int32_t)fed;
        first += rows;
    }
}

/* The most rows of a sequence that they are. */
static uint32_t longest_span(const tms_in_step *e, const tms_section *section) {
    uint32_t most = 1;
    for (uint32_t i = 0; i < section->n_sequences && !section->alone; i++) {
        const uint32_t fed = n_fed(e, e->step->n_kept[section->first_sequence + i]);
        if (fed > most) most = fed;
    }
    return most;
}

/* The sequences whose rows' weights go to scores. */
static void fill_items(tms_in_step *e, const tms_step *step) {
    const tms_setup *setup = e->setup;
    uint32_t heads = setup->cache->params.n_kv_heads, n = step->n_sequences;
    int32_t *host = step->tables.host;
    for (uint32_t i = 0; i < n; i++) {
        host[e->item_seq + i] = (int32_t)step->table_row[i];
        for (uint32_t lane = 0; lane < setup->cache->n_lanes; lane++)
            host[e->item_visible + (lane / heads * n + i) * heads + lane % heads] =
                (int32_t)step->sequences[i]->lanes[lane].length;
    }
    for (uint32_t p = 0; p < step->n_sections; p++)
        fill_spans(e, step, &step->sections[p]);
}

static void fill(void *room, const tms_step *step) {
    tms_in_step *e = room;
    if (e->setup->needs.in_place && !step->exact) fill_stays(e, step);
    if (tms_needs_weights(&e->setup->needs)) fill_items(e, step);
}

tms_step_room tms_in_step_room(tms_in_step *e) {
    return (tms_step_room){e, place, fill};
}

/* ---- Memory ---------------------------------------------------------------------------------- */

tamis_status tms_in_step_create(tms_in_step *e, tamis_error *error) {
    const tms_setup *setup = e->setup;
    const tms_eviction_needs *needs = &setup->needs;
    const tamis_cache_params *c = &setup->cache->params;
    const tamis_plan_params *p = &setup->params;
    const uint32_t cap = tms_setup_cap(setup, false), most = p->max_context;
    const bool weighs = tms_needs_weights(needs), newest = needs->feed == TMS_FEED_NEWEST;
    const uint64_t lse = (uint64_t)p->max_rows * c->n_heads * sizeof(float);
    const uint64_t logits = tms_align_ints(cap < most ? cap : most) * sizeof(float);
    const uint64_t sequences = p->max_sequences, lanes = sequences * c->n_kv_heads;
    e->stride = tms_align_ints(most);
    const bool verifies = p->flags & TAMIS_PLAN_VERIFY;
    const uint64_t rows = verifies ? (uint64_t)c->n_layers * p->max_selected_rows : sequences;
    const uint64_t weights = lanes * e->stride * sizeof(float),
                   changed = rows * c->n_kv_heads * sizeof(int32_t);
    TMS_TRY(tms_memory_take(setup->memory, weighs ? lse : 0, &e->lse, error));
    TMS_TRY(tms_memory_take(setup->memory, weighs ? sequences * c->n_heads * logits : 0, &e->logits,
                            error));
    TMS_TRY(tms_memory_take(setup->memory, newest ? weights : 0, &e->newest, error));
    return tms_memory_take(setup->memory, needs->in_place ? changed : 0, &e->changed, error);
}

void tms_in_step_destroy(tms_in_step *e) {
    tms_device *dev = e->setup->dev;
    tms_mem *memories[] = {e->lse, e->logits, e->newest, e->changed};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        tms_device_free(dev, memories[i]);
}

/* ---- What a sequence may bring --------------------------------------------------------------- */

/* Checks lanes whose slots must correspond to each other: those of a layer, or all. */
static tamis_status check_alike(const tms_setup *setup, const tms_sequence *sequence,
                                tamis_error *error) {
    const tms_eviction_needs *needs = &setup->needs;
    uint32_t heads = setup->cache->params.n_kv_heads;
    if (needs->feed != TMS_FEED_NEWEST && !needs->rotation) return TAMIS_OK;
    for (uint32_t lane = 0; lane < setup->cache->n_lanes; lane++) {
        uint32_t first = needs->rotation ? 0 : lane / heads * heads;
        TMS_REQUIRE(sequence->lanes[lane].length == sequence->lanes[first].length, TAMIS_E_STATE,
                    "lanes %" PRIu32 " and %" PRIu32 " of sequence %" PRIu64 " hold %" PRIu32
                    " and %" PRIu32 " tokens; %s needs as many in each",
                    first, lane, sequence->id, sequence->lanes[first].length,
                    sequence->lanes[lane].length, needs->entry->name);
    }
    return TAMIS_OK;
}

tamis_status tms_in_step_check_scores(const tms_setup *setup, const tms_sequence *sequence,
                                      tamis_error *error) {
    const uint32_t from = tms_history_scored_to(sequence, setup->params.eviction.kind);
    const char *name = setup->needs.entry->name;
    TMS_REQUIRE(setup->needs.feed == TMS_FEED_NONE || from == sequence->length, TAMIS_E_STATE,
                "the rows of positions %" PRIu32 " to %" PRIu32 " of sequence %" PRIu64
                " have left no scores for %s: their steps must %s every layer, under %s",
                from, sequence->length - 1, sequence->id, name,
                tms_needs_weights(&setup->needs) ? "attend" : "write", name);
    return TAMIS_OK;
}

/* A row of its own in an exact step: of a sequence that has been evicted from and whose longest lane
 * holds the budget it would make lanes longer, and decode steps could not go on. */
static tamis_status check_exact(const tms_setup *setup, const tms_sequence *sequence, uint32_t rows,
                                tamis_error *error) {
    const uint32_t cap = tms_setup_cap(setup, false);
    uint32_t longest = 0;
    if (rows > 1 || cap == UINT32_MAX || sequence->evicted_at == 0) return TAMIS_OK;
    for (uint32_t lane = 0; lane < setup->cache->n_lanes; lane++)
        if (sequence->lanes[lane].length > longest) longest = sequence->lanes[lane].length;
    TMS_REQUIRE(longest != cap, TAMIS_E_STATE,
                "sequence %" PRIu64 " has been evicted from and holds the budget %" PRIu32
                " of %s: a single row of it needs a step that is not exact, where it takes the "
                "place of a token",
                sequence->id, cap, setup->needs.entry->name);
    return TAMIS_OK;
}

tamis_status tms_in_step_growth(const tms_in_step *e, tms_sequence *sequence, uint32_t rows,
                                bool exact, tms_growth *out, tamis_error *error) {
    const tms_setup *setup = e->setup;
    const tms_eviction_needs *needs = &setup->needs;
    *out = (tms_growth){.sequence = sequence,
                        .rows = rows,
                        .cap = tms_setup_cap(setup, exact),
                        .scores = tms_needs_weights(needs)};
    TMS_REQUIRE(sequence->given_up == 0 || sequence->given_up == out->cap, TAMIS_E_STATE,
                "sequence %" PRIu64 " holds rows of a step that was given up at %" PRIu32
                " tokens a lane; a decode step under that budget must come first",
                sequence->id, sequence->given_up);
    TMS_REQUIRE(exact || !setup->reading.listed || needs->in_place || !sequence->unordered,
                TAMIS_E_STATE,
                "the slots of sequence %" PRIu64
                " are not in the order of their tokens; selection %s reads them only under an "
                "eviction that acts in every step",
                sequence->id, tamis_selection_name(setup->params.selection.kind));
    TMS_TRY(check_alike(setup, sequence, error));
    if (exact) return check_exact(setup, sequence, rows, error);
    if (!tms_needs_weights(needs) && !needs->in_place) return TAMIS_OK;
    TMS_REQUIRE(rows == 1 || setup->params.flags & TAMIS_PLAN_VERIFY, TAMIS_E_ARGUMENT,
                "sequence %" PRIu64 " brings %" PRIu32
                " rows: a step that is not exact brings one under eviction %s, unless the plan has "
                "TAMIS_PLAN_VERIFY",
                sequence->id, rows, needs->entry->name);
    bool stays = false;
    for (uint32_t lane = 0; lane < setup->cache->n_lanes; lane++) {
        TMS_REQUIRE(sequence->lanes[lane].length <= out->cap, TAMIS_E_STATE,
                    "lane %" PRIu32 " of sequence %" PRIu64 " holds %" PRIu32
                    " tokens, more than the budget %" PRIu32 " of %s: tamis_plan_evict comes first",
                    lane, sequence->id, sequence->lanes[lane].length, out->cap, needs->entry->name);
        stays |= sequence->lanes[lane].length + rows > out->cap;
    }
    /* A lane that grows needs no scores: it evicts nothing. */
    return stays ? tms_in_step_check_scores(setup, sequence, error) : TAMIS_OK;
}

/* ---- Slots in place -------------------------------------------------------------------------- */

/* Where the pages lie that row `first` of a step changes. */
static tms_ref changed_by(const tms_in_step *e, uint32_t layer, uint32_t first) {
    const tamis_plan_params *p = &e->setup->params;
    const uint64_t rows = (uint64_t)layer * p->max_selected_rows + first;
    const bool verifies = p->flags & TAMIS_PLAN_VERIFY;
    return (tms_ref){e->changed, verifies ? rows * e->setup->cache->params.n_kv_heads * 4 : 0};
}

/* Bounds of the pages that n rows from `first` on change. */
static tms_bounds bounds_of(const tms_in_step *e, uint32_t layer, uint32_t first, uint32_t n) {
    tms_bounds bounds = tms_cache_bounds(e->setup->cache, layer);
    bounds.n = n * e->setup->cache->params.n_kv_heads;
    bounds.pages = changed_by(e, layer, first);
    return bounds;
}

tms_bounds tms_in_step_changed(const tms_in_step *e, uint32_t layer, uint32_t row) {
    return bounds_of(e, layer, row, 1);
}

tms_replace_rows tms_in_step_replace(const tms_in_step *e, uint32_t layer, uint32_t section,
                                     const tms_write_rows *write) {
    const tms_setup *setup = e->setup;
    const tms_step *step = e->step;
    const uint32_t first = step->sections[section].first_row;
    const uint64_t entry =
        tms_step_entry(step, layer) + (uint64_t)first * setup->cache->params.n_kv_heads;
    const tms_replace replace = {.kv = write->kv,
                                 .planes = {write->planes.positions, setup->needs.feed
                                                                         ? write->planes.scores
                                                                         : (tms_ref){0}},
                                 .batch = write->batch,
                                 .turns = tms_step_table(step, e->stays + entry),
                                 .slots = write->slots,
                                 .changed = changed_by(e, layer, first),
                                 .positions = write->positions,
                                 .sinks = setup->params.eviction.sinks,
                                 .recent = setup->needs.recent,
                                 .lifetime = setup->params.eviction.options & TAMIS_EVICT_LIFETIME};
    return (tms_replace_rows){replace, *write, bounds_of(e, layer, first, write->batch.n_rows)};
}

/* ---- Keys ------------------------------------------------------------------------------------ */

tamis_status tms_in_step_score_rows(const tms_in_step *e, const tms_write_rows *write,
                                    tamis_error *error) {
    const tms_score_rows score = {.kv = write->kv,
                                  .batch = write->batch,
                                  .slots = write->slots,
                                  .scores = write->planes.scores};
    if (e->setup->needs.feed != TMS_FEED_KEYS) return TAMIS_OK;
    return tms_run_score_rows(e->setup->dev, &score, error);
}

/* ---- Weights --------------------------------------------------------------------------------- */

bool tms_in_step_observes(const tms_in_step *e) {
    return tms_needs_weights(&e->setup->needs) || tms_step_keeps_queries(e->step);
}

tamis_status tms_in_step_ask_weights(const tms_in_step *e, uint32_t section, bool listed,
                                     tms_attend *attend, tamis_error *error) {
    if (!tms_needs_weights(&e->setup->needs)) return TAMIS_OK;
    if (!attend->lse.mem) attend->lse = (tms_ref){e->lse, 0};
    if (e->step->sections[section].exact) return TAMIS_OK;
    attend->logits = (tms_ref){e->logits, 0};
    /* As long as the step's longest lane, which fits the memory. */
    attend->logit_stride = tms_align_ints(attend->batch.max_visible);
    if (!listed || attend->batch.n_rows == 0) return TAMIS_OK;
    /* The logits of pages that are not read are -inf, which adds nothing. */
    const uint64_t rows = (uint64_t)attend->batch.n_rows * attend->batch.n_heads;
    return tms_device_fill(e->setup->dev, attend->logits, 0xFF800000u,
                           rows * attend->logit_stride * sizeof(float), error);
}

tms_observe tms_in_step_observe(const tms_in_step *e, uint32_t layer, uint32_t section,
                                const tms_attend *attend) {
    const tms_step *step = e->step;
    const tms_section *of = &step->sections[section];
    const bool newest = e->setup->needs.feed == TMS_FEED_NEWEST;
    tms_observe observe = tms_template_observe(attend);
    observe.n_items = step->n_rows ? of->n_sequences : 0;
    observe.max_span = longest_span(e, of);
    observe.spans = tms_step_table(step, e->item_spans + 2 * (uint64_t)of->first_sequence);
    observe.group = newest ? TAMIS_GROUP_MEAN : TAMIS_GROUP_SUM;
    observe.accumulate = !newest;
    observe.values = newest ? (tms_values){{e->newest, 0}, e->stride}
                            : (tms_values){.ref = tms_cache_planes(e->setup->cache, layer).scores};
    return observe;
}

/* The mean over all heads of the layer to the scores of all of its lanes. */
static tamis_status put_newest(const tms_in_step *e, uint32_t layer, uint32_t section,
                               const tms_observe *observe, tamis_error *error) {
    const tms_step *step = e->step;
    const uint32_t first = step->sections[section].first_sequence;
    tms_fuse mean = {.batch = observe->batch,
                     .kind = TMS_FUSE_MEAN_OF_HEADS,
                     .x = observe->values,
                     .out = {tms_cache_planes(e->setup->cache, layer).scores, 0},
                     .page_size = observe->kv.page_size};
    const uint64_t entry = ((uint64_t)layer * step->n_sequences + first) * mean.batch.n_kv_heads;
    mean.batch.n_rows = observe->n_items;
    mean.batch.first = (tms_ref){NULL, 0}; /* of the step's rows, which are not items */
    mean.batch.row_seq = tms_step_table(step, e->item_seq + first);
    if (!step->sections[section].alone) /* else the row's own are those of its sequence then */
        mean.batch.visible = tms_step_table(step, e->item_visible + entry);
    return tms_run_fuse(e->setup->dev, &mean, error);
}

tamis_status tms_in_step_use_weights(const tms_in_step *e, uint32_t layer, uint32_t section,
                                     const tms_attend *attend, bool observed, tamis_error *error) {
    const tms_step *step = e->step;
    if (tms_needs_weights(&e->setup->needs)) {
        const tms_observe observe = tms_in_step_observe(e, layer, section, attend);
        if (!observed) TMS_TRY(tms_run_observe(e->setup->dev, &observe, error));
        if (e->setup->needs.feed == TMS_FEED_NEWEST)
            TMS_TRY(put_newest(e, layer, section, &observe, error));
        e->counters->rows_observed += attend->batch.n_rows;
    }
    if (!tms_step_keeps_queries(step)) return TAMIS_OK;
    return tms_query_rings_keep(e->rings, step, layer, section, attend->q, error);
}

/* ---- What scores are worth ------------------------------------------------------------------- */

static bool any_fed(const tms_in_step *e) {
    bool any = false;
    for (uint32_t layer = 0; layer < e->setup->cache->params.n_layers; layer++)
        any |= e->step->layers[layer].fed;
    return any;
}

/* After a cancelled step at fixed lane length the same step must follow, which replaces the same
 * tokens. A layer that was attended has already replaced them; another layer still has its old
 * scores. So no scores are lost. Scores of keys are those of the step's own rows: if it was
 * cancelled, the rows are gone and all other scores are as they were. */
void tms_in_step_note_scores(const tms_in_step *e, bool whole, bool given_up) {
    const tms_feed feed = e->setup->needs.feed;
    const tms_step *step = e->step;
    if (feed == TMS_FEED_NONE || !any_fed(e) || (feed == TMS_FEED_KEYS && given_up)) return;
    whole |= feed == TMS_FEED_KEYS;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        tms_sequence *sequence = step->sequences[i];
        if (given_up && sequence->given_up) continue;
        tms_history_scored(sequence, e->setup->params.eviction.kind, feed == TMS_FEED_NEWEST,
                           step->growth[i].rows, whole);
    }
}
