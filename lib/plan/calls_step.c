/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning and end of a step: checks its rows, reserves their pages and uploads what the
 * layers need; leaves out rows of an open step; later keeps the rows or cancels the step. */
#include "lib/plan/plan.h"

#include <inttypes.h>

/* ---- Begin ----------------------------------------------------------------------------------- */

/* What is taken into the step: its sequences, branches among them, how many of these are not exact, and
 * their rows; a row counts for each branch that has it, but once among those that are not exact. */
typedef struct taken {
    uint32_t n, n_selected, n_exact; /* n: with the journals */
    uint64_t rows, selected;
} taken;

/* Puts a sequence, or a branch, into the step. */
static tamis_status take(tamis_plan *plan, const tms_growth *from, bool exact, taken *to,
                         tamis_error *error) {
    const tamis_plan_params *p = &plan->setup.params;
    tms_sequence *sequence = from->sequence;
    tms_growth *growth = &plan->step.growth[to->n];
    TMS_REQUIRE((uint64_t)sequence->length + from->rows <= p->max_context, TAMIS_E_ARGUMENT,
                "%" PRIu32 " rows after the %" PRIu32 " tokens of sequence %" PRIu64
                " exceed max_context %" PRIu32,
                from->rows, sequence->length, sequence->id, p->max_context);
    TMS_REQUIRE(to->n < p->max_sequences, TAMIS_E_ARGUMENT,
                "the step's sequences have more branches than max_sequences %" PRIu32,
                p->max_sequences);
    TMS_TRY(tms_in_step_growth(&plan->in_step, sequence, from->rows, exact, growth, error));
    growth->shared = from->shared;
    plan->step.sequences[to->n++] = sequence;
    to->n_selected += !exact;
    to->n_exact += exact;
    to->rows += from->rows;
    to->selected += exact ? 0 : from->rows - from->shared;
    return TAMIS_OK;
}

/* Puts all branches of a tree into the step; after a failure there are none. */
static tamis_status take_tree(tamis_plan *plan, tms_sequence *sequence, const uint32_t *parents,
                              uint32_t rows, bool exact, taken *to, tamis_error *error) {
    TMS_REQUIRE(plan->setup.params.flags & TAMIS_PLAN_TREES, TAMIS_E_STATE,
                "sequence %" PRIu64 " has parents, but the plan was made without TAMIS_PLAN_TREES",
                sequence->id);
    TMS_REQUIRE(rows <= plan->setup.params.max_rows, TAMIS_E_ARGUMENT,
                "the tree of sequence %" PRIu64 " has %" PRIu32
                " rows, which exceed max_rows %" PRIu32,
                sequence->id, rows, plan->setup.params.max_rows);
    TMS_TRY(tms_branches_begin(plan->setup.cache, sequence, parents, rows, error));
    const tms_tree *tree = tms_tree_of(sequence);
    const tms_growth line = {.sequence = sequence, .rows = rows};
    if (!tree) return take(plan, &line, exact, to, error);
    for (uint32_t i = 0; i < tree->n_branches; i++) {
        const tms_growth branch = tms_branch_growth(tree, i);
        const tamis_status status = take(plan, &branch, exact, to, error);
        if (status == TAMIS_OK) continue;
        tms_branches_end(plan->setup.cache, sequence);
        return status;
    }
    return TAMIS_OK;
}

static tamis_status check_sequence(const tamis_plan *plan, tamis_sequence id, uint32_t rows,
                                   bool exact, tms_sequence **out, tamis_error *error) {
    tms_sequence *sequence = *out = tms_cache_find(plan->setup.cache, id);
    TMS_REQUIRE(sequence, TAMIS_E_ARGUMENT, "the cache has no sequence %" PRIu64, id);
    TMS_REQUIRE(!sequence->in_step, TAMIS_E_ARGUMENT,
                "sequence %" PRIu64 " comes twice in the step", id);
    TMS_TRY(tms_cache_find_idle(plan->setup.cache, id, out, error));
    TMS_REQUIRE(rows > 0, TAMIS_E_ARGUMENT, "sequence %" PRIu64 " brings no rows", id);
    TMS_TRY(tms_step_check_own_rows(&plan->setup, id, rows, exact, error));
    TMS_REQUIRE(!plan->setup.needs.rotation || plan->reindex.held, TAMIS_E_STATE,
                "reindexed %s needs tamis_plan_bind_rotation first", plan->setup.needs.entry->name);
    return tms_sight_check_held(&plan->sight, sequence, sequence->length, error);
}

/* Behind the sequences the journals of those that are not exact, whose eviction acts within steps, and
 * that bring several rows. */
static tamis_status take_journals(tamis_plan *plan, taken *to, tamis_error *error) {
    const tms_setup *setup = &plan->setup;
    tms_step *step = &plan->step;
    if (!(setup->params.flags & TAMIS_PLAN_VERIFY)) return TAMIS_OK;
    for (uint32_t i = 0, n = to->n_selected; i < n; i++) {
        tms_sequence *sequence = step->sequences[i];
        const uint32_t rows = step->growth[i].rows;
        if (rows == 1) continue;
        TMS_REQUIRE(to->n < setup->params.max_sequences, TAMIS_E_ARGUMENT,
                    "the step's sequences, of which those with several rows count twice, exceed "
                    "max_sequences %" PRIu32,
                    setup->params.max_sequences);
        tms_sequence *journal = tms_journal_begin(setup->cache, sequence);
        TMS_REQUIRE(journal, TAMIS_E_NO_MEMORY,
                    "no host memory for what rows of sequence %" PRIu64 " replace", sequence->id);
        step->growth[to->n] = (tms_growth){.sequence = journal,
                                           .rows = rows,
                                           .shared = rows,
                                           .cap = setup->needs.in_place ? UINT32_MAX : 0};
        step->sequences[to->n++] = journal;
    }
    return TAMIS_OK;
}

/* Checks the sequences and puts them into the step; those that were taken are `in_step`. */
static tamis_status collect(tamis_plan *plan, const tamis_step *in, taken *to, tamis_error *error) {
    const uint32_t n_selected = tms_step_count_selected(in->count, in->exact, in->exact_from);
    uint32_t first = 0;
    for (uint32_t i = 0; i < in->count; i++) {
        const uint32_t rows = in->rows ? in->rows[i] : 1;
        const bool exact = i >= n_selected;
        tms_sequence *sequence = NULL;
        TMS_TRY(check_sequence(plan, in->sequences[i], rows, exact, &sequence, error));
        const tms_growth line = {.sequence = sequence, .rows = rows};
        TMS_TRY(in->parents ? take_tree(plan, sequence, in->parents + first, rows, exact, to, error)
                            : take(plan, &line, exact, to, error));
        sequence->in_step = true;
        first += rows;
        TMS_TRY(tms_step_check_rows(&plan->setup, i + 1, to->rows, error));
    }
    TMS_TRY(tms_step_check_selected(&plan->setup, to->selected, error));
    return take_journals(plan, to, error);
}

/* Those of the step's first n sequences. */
static void end_branches_and_journals(tamis_plan *plan, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (plan->step.sequences[i]->trunk) continue;
        tms_branches_end(plan->setup.cache, plan->step.sequences[i]);
        tms_journal_end(plan->setup.cache, plan->step.sequences[i]);
    }
}

/* What the step takes, whose trees have branches then; after a failure they have none. */
static tamis_status check_step(tamis_plan *plan, const tamis_step *in, taken *to,
                               tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(in, TAMIS_E_ARGUMENT, "step is NULL");
    TMS_REQUIRE_RESERVED(in, tamis_step);
    TMS_REQUIRE(in->reserved32 == 0, TAMIS_E_ARGUMENT,
                "reserved32 of tamis_step is %" PRIu32 "; it must be 0", in->reserved32);
    TMS_TRY(tms_view_refuse(plan->setup.cache, "tamis_plan_step_begin", error));
    TMS_REQUIRE(!plan->setup.cache->step_open, TAMIS_E_STATE, "a step on the cache is open");
    TMS_TRY(tms_journals_check_settled(&plan->journals, error));
    TMS_REQUIRE(in->sequences, TAMIS_E_ARGUMENT, "sequences is NULL");
    TMS_TRY(tms_step_check_count(&plan->setup, in->count, error));
    TMS_TRY(tms_step_check_mixed(&plan->setup, in->count, in->exact, in->exact_from, error));
    *to = (taken){0};
    const tamis_status status = collect(plan, in, to, error);
    for (uint32_t i = 0; i < to->n; i++)
        plan->step.sequences[i]->in_step = false;
    if (status != TAMIS_OK) end_branches_and_journals(plan, to->n);
    return status;
}

tamis_status tamis_plan_step_pages(tamis_plan *plan, const tamis_step *step, tamis_step_pages *out,
                                   tamis_error *error) {
    TMS_ENTER(plan);
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    taken rows;
    TMS_TRY(check_step(plan, step, &rows, error));
    tamis_cache *cache = plan->setup.cache;
    const tamis_status status = tms_cache_check_bounds(cache, error);
    if (status == TAMIS_OK) {
        const tms_demand demand = tms_cache_demand(cache, plan->step.growth, rows.n);
        *out = (tamis_step_pages){.needed = demand.needed,
                                  .copied = demand.copied,
                                  .free = tms_cache_free_pages(cache),
                                  .missing = demand.missing};
    }
    end_branches_and_journals(plan, rows.n);
    return status;
}

/* Copies the pages of the pairs within a pool, with their planes. Bounds are copied only if tokens
 * are replaced or scored in place. Otherwise a copied page is a partial one, which has no bounds
 * yet. */
static tamis_status copy_pool(const tms_setup *setup, const tms_pool *pool, tms_ref pairs,
                              uint32_t n, tamis_error *error) {
    tms_device *dev = setup->dev;
    const bool bounded = setup->needs.in_place || tms_needs_weights(&setup->needs);
    const uint64_t plane_bytes = setup->cache->params.page_size * sizeof(int32_t);
    const struct {
        tms_mem *mem;
        uint64_t bytes;
    } parts[] = {{pool->data, setup->cache->size.page_bytes},
                 {bounded ? pool->bounds : NULL, setup->cache->size.bounds_bytes},
                 {pool->positions, plane_bytes},
                 {pool->scores, plane_bytes}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const tms_copy_pages copy = {
            .data = {parts[i].mem, 0}, .bytes = parts[i].bytes, .n = n, .pairs = pairs};
        if (parts[i].mem) TMS_TRY(tms_run_copy_pages(dev, &copy, error));
    }
    return TAMIS_OK;
}

/* Enqueues the copies of shared pages. */
static tamis_status copy_shared(const tamis_plan *plan, tamis_error *error) {
    const tamis_cache *cache = plan->setup.cache;
    const tms_step *step = &plan->step;
    uint64_t at = step->at.copies;
    for (uint32_t p = 0; p < cache->size.pools; p++) {
        uint32_t n = step->copies.count[p];
        tms_ref pairs = tms_step_table(step, at);
        if (n > 0) TMS_TRY(copy_pool(&plan->setup, &cache->pools[p], pairs, n, error));
        at += 2 * (uint64_t)n;
    }
    return TAMIS_OK;
}

tamis_status tms_plan_send_step(tamis_plan *plan, uint32_t n_selected, uint32_t n_exact,
                                tamis_error *error) {
    tms_step *step = &plan->step;
    uint32_t n = step->n_sequences;
    TMS_TRY(tms_query_rings_bring(&plan->rings, step->sequences, n, step->ring, error));
    TMS_TRY(tms_page_table_bring(&plan->table, step->sequences, n, step->table_row, error));
    tms_step_fill(step, n_selected, n_exact);
    tms_loads_clear(&plan->loads);
    TMS_TRY(tms_arena_send(&step->tables, plan->setup.dev, 0, step->at.end, error));
    return copy_shared(plan, error);
}

tamis_status tamis_plan_step_begin(tamis_plan *plan, const tamis_step *in, tamis_error *error) {
    TMS_ENTER(plan);
    taken rows;
    TMS_TRY(check_step(plan, in, &rows, error));
    tamis_cache *cache = plan->setup.cache;
    tms_step *step = &plan->step;
    const tamis_status reserved =
        tms_cache_reserve(cache, step->growth, rows.n, &step->copies, error);
    if (reserved != TAMIS_OK) {
        end_branches_and_journals(plan, rows.n);
        return reserved;
    }
    step->n_sequences = rows.n;
    tms_trees_count(&plan->trees, step->growth, rows.n);
    plan->templates.attended = false;
    const tamis_status status = tms_plan_send_step(plan, rows.n_selected, rows.n_exact, error);
    if (status != TAMIS_OK) {
        tms_cache_rollback(cache, step->growth, rows.n, false);
        end_branches_and_journals(plan, rows.n);
        return status;
    }
    for (uint32_t i = 0; i < step->n_sequences && tms_step_keeps_queries(step); i++) {
        const uint32_t end = step->sequences[i]->length;
        if (step->ring[i] == TMS_NO_RING) continue;
        tms_query_rings_expect(&plan->rings, step->ring[i], end - step->growth[i].rows, end);
    }
    for (uint32_t p = 0; p < cache->size.pools; p++)
        plan->counters.pages_copied += step->copies.count[p];
    tms_journals_open(&plan->journals, rows.n_selected);
    step->open = true;
    return TAMIS_OK;
}

static tamis_status check_open(const tamis_plan *plan, tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(plan->step.open, TAMIS_E_STATE, "the plan has no open step");
    return TAMIS_OK;
}

/* ---- Narrow ---------------------------------------------------------------------------------- */

static tamis_status check_narrow(const tamis_plan *plan, const uint32_t *rows, uint32_t n,
                                 tamis_error *error) {
    const tms_eviction_needs *needs = &plan->setup.needs;
    const tms_step *step = &plan->step;
    TMS_REQUIRE(rows, TAMIS_E_ARGUMENT, "rows is NULL");
    TMS_REQUIRE(n > 0, TAMIS_E_ARGUMENT, "no row of the step would be left");
    TMS_REQUIRE(step->exact, TAMIS_E_STATE,
                "the step is not exact: only exact steps can be narrowed");
    TMS_TRY(tms_plan_check_lines(plan, error));
    TMS_REQUIRE(!needs->rotation, TAMIS_E_UNSUPPORTED,
                "a step under reindexed %s cannot be narrowed: it attends with sinks moved nearer",
                needs->entry->name);
    for (uint32_t i = 1; i < n; i++)
        TMS_REQUIRE(rows[i] > rows[i - 1], TAMIS_E_ARGUMENT,
                    "rows are not ascending: %" PRIu32 " comes after %" PRIu32, rows[i],
                    rows[i - 1]);
    TMS_REQUIRE(rows[n - 1] < step->n_begun, TAMIS_E_ARGUMENT,
                "row %" PRIu32 " is not below the step's %" PRIu32, rows[n - 1], step->n_begun);
    return TAMIS_OK;
}

/* Checks that each of the rows is one that the step still has, and that none is lost that the
 * eviction scores by: the last ones of each sequence. */
static tamis_status check_kept(const tamis_plan *plan, const uint32_t *rows, uint32_t n,
                               tamis_error *error) {
    const tms_eviction_needs *needs = &plan->setup.needs;
    const uint32_t tail = tms_needs_weights(needs) ? 1 : needs->window;
    const tms_step *step = &plan->step;
    for (uint32_t i = 0, row = 0, next = 0, first = 0; i < step->n_sequences; i++) {
        const uint32_t n_begun = tms_step_begun(step, i);
        for (uint32_t j = 0; j < step->n_kept[i]; j++, row++) {
            const uint32_t begun = step->begun[row];
            const bool kept = next < n && rows[next] == begun;
            TMS_REQUIRE(next == n || rows[next] >= begun, TAMIS_E_ARGUMENT,
                        "row %" PRIu32 " has been left out by an earlier call", rows[next]);
            TMS_REQUIRE(kept || begun + tail < first + n_begun, TAMIS_E_ARGUMENT,
                        "row %" PRIu32 " is left out, but %s needs the last %" PRIu32
                        " rows of sequence %" PRIu64,
                        begun, needs->entry->name, tail, step->sequences[i]->id);
            next += kept;
        }
        first += n_begun;
        TMS_REQUIRE(next == n || rows[next] >= first, TAMIS_E_ARGUMENT,
                    "row %" PRIu32 " has been left out by an earlier call", rows[next]);
    }
    return TAMIS_OK;
}

tamis_status tamis_plan_step_keep_rows(tamis_plan *plan, const uint32_t *rows, uint32_t n,
                                       tamis_error *error) {
    TMS_ENTER(plan);
    TMS_TRY(check_open(plan, error));
    TMS_TRY(check_narrow(plan, rows, n, error));
    TMS_TRY(check_kept(plan, rows, n, error));
    tms_step *step = &plan->step;
    plan->templates.attended = false;
    tms_step_narrow(step, rows, n);
    step->unsent = true;
    TMS_TRY(tms_arena_send(&step->tables, plan->setup.dev, 0, step->at.copies, error));
    step->unsent = false;
    return TAMIS_OK;
}

/* ---- End ------------------------------------------------------------------------------------- */

tamis_status tms_plan_check_lines(const tamis_plan *plan, tamis_error *error) {
    for (uint32_t i = 0; i < plan->step.n_sequences; i++)
        TMS_REQUIRE(!tms_in_tree(plan->step.sequences[i]), TAMIS_E_STATE,
                    "the rows of sequence %" PRIu64
                    " are a tree, of which none is left out or loaded",
                    plan->step.sequences[i]->id);
    return TAMIS_OK;
}

static bool all_attended(const tamis_plan *plan) {
    bool all = true;
    for (uint32_t layer = 0; layer < plan->setup.cache->params.n_layers; layer++)
        all &= plan->step.layers[layer].attended;
    return all;
}

/* Enqueues the bounds of layers all of whose rows were loaded: nothing reads them in an exact step. */
static tamis_status bound_loaded(tamis_plan *plan, tamis_error *error) {
    const tms_step *step = &plan->step;
    uint32_t n = 0;
    for (uint32_t layer = 0; layer < plan->setup.cache->params.n_layers; layer++) {
        const tms_step_layer *of = &step->layers[layer];
        tms_bounds bounds = tms_cache_bounds(plan->setup.cache, layer);
        if (of->written || of->n_filled == 0) continue;
        TMS_TRY(tms_plan_check_layer(plan, layer, error));
        bounds.n = of->n_filled;
        bounds.pages = tms_step_table(step, step->at.filled + of->filled);
        RUN(plan, bounds_us, bounds, &bounds);
        n += of->n_filled;
    }
    plan->counters.pages_bounded += n;
    return TAMIS_OK;
}

tamis_status tamis_plan_step_end(tamis_plan *plan, tamis_error *error) {
    TMS_ENTER(plan);
    TMS_TRY(check_open(plan, error));
    const tms_setup *setup = &plan->setup;
    tms_step *step = &plan->step;
    for (uint32_t layer = 0; layer < setup->cache->params.n_layers; layer++)
        TMS_TRY(tms_plan_check_held(plan, layer, error));
    TMS_TRY(bound_loaded(plan, error));
    TMS_TRY(tms_device_flush(setup->dev, error));
    const bool whole = all_attended(plan);
    tms_cache_commit(setup->cache, step->growth, step->n_sequences);
    for (uint32_t i = 0; (setup->params.flags & TAMIS_PLAN_GIVE_BACK) && i < step->n_sequences; i++)
        if (!tms_in_tree(step->sequences[i])) tms_sight_give_back(&plan->sight, step->sequences[i]);
    /* The rings lack the queries of layers that were not attended. */
    for (uint32_t i = 0; i < step->n_sequences && !whole && tms_step_keeps_queries(step); i++)
        if (step->ring[i] != TMS_NO_RING) tms_query_rings_empty(&plan->rings, step->ring[i]);
    tms_in_step_note_scores(&plan->in_step, whole, false);
    step->open = false;
    plan->counters.steps++;
    return TAMIS_OK;
}

/* Undoes the rows of the open step that belong to a journal, in a layer. False: what the lanes hold is
 * not known. */
static bool undo_begun(tamis_plan *plan, const tms_journal *journal, uint32_t layer) {
    const tms_step *step = &plan->step;
    const tms_step_layer *of = &step->layers[layer];
    const tms_write_rows write = tms_template_write(&plan->templates, layer);
    const uint32_t begun = of->written ? step->n_sections : of->turn + of->kept;
    const tms_section *last = begun ? &step->sections[begun - 1] : NULL;
    uint32_t end = last ? last->first_row + last->n_rows : 0;
    if (end > journal->first + journal->n) end = journal->first + journal->n;
    return end <= journal->first ||
           tms_journals_undo(&plan->journals, layer, journal->first, end, &write, NULL) == TAMIS_OK;
}

static void undo_step(tamis_plan *plan) {
    const uint32_t n_layers = plan->setup.cache->params.n_layers;
    for (uint32_t i = 0; i < plan->journals.n; i++) {
        const tms_journal *journal = &plan->journals.all[i];
        tms_sequence *sequence = tms_cache_find(plan->setup.cache, journal->id);
        for (uint32_t layer = 0; layer < n_layers; layer++)
            sequence->lost |= !undo_begun(plan, journal, layer);
    }
}

/* The history of sequences whose rows were undone is the one before. */
static void return_histories(tamis_plan *plan) {
    for (uint32_t i = 0; i < plan->journals.n; i++) {
        const tms_journal *journal = &plan->journals.all[i];
        tms_history_take(tms_cache_find(plan->setup.cache, journal->id), &journal->before);
    }
    plan->journals.n = 0;
}

/* Marks the sequences in which a token of some lane may have been overwritten. */
static void mark_given_up(tamis_plan *plan) {
    const tms_step *step = &plan->step;
    uint32_t heads = plan->setup.cache->params.n_kv_heads;
    for (uint32_t i = 0; i < step->n_sequences; i++)
        for (uint32_t lane = 0; lane < plan->setup.cache->n_lanes; lane++) {
            if (step->sequences[i]->trunk || tms_journal_of(step->sequences[i])) continue;
            bool stayed = step->sequences[i]->lanes[lane].grown < step->growth[i].rows;
            if (stayed && step->layers[lane / heads].begun)
                step->sequences[i]->given_up = step->growth[i].cap;
        }
}

void tms_plan_give_up(tamis_plan *plan) {
    tms_step *step = &plan->step;
    undo_step(plan);
    mark_given_up(plan);
    tms_cache_rollback(plan->setup.cache, step->growth, step->n_sequences, true);
    for (uint32_t i = 0; i < step->n_sequences; i++)
        if (step->sequences[i]->given_up) tms_history_replaced(step->sequences[i]);
    tms_in_step_note_scores(&plan->in_step, false, true);
    return_histories(plan);
    end_branches_and_journals(plan, step->n_sequences);
    step->open = false;
}

tamis_status tamis_plan_step_cancel(tamis_plan *plan, tamis_error *error) {
    TMS_ENTER(plan);
    TMS_TRY(check_open(plan, error));
    tms_plan_give_up(plan);
    plan->templates.attended = false;
    return TAMIS_OK;
}

/* ---- Keep a path ------------------------------------------------------------------------------ */

/* Rows that stand behind each other. */
static tamis_status keep_rows_of_line(tamis_cache *cache, tamis_sequence id, uint32_t row,
                                      tamis_error *error) {
    tms_sequence *sequence = NULL;
    TMS_TRY(tms_cache_find_idle(cache, id, &sequence, error));
    const uint32_t first = sequence->stepped_from, n = sequence->length - first;
    TMS_REQUIRE(row == TAMIS_NO_ROW || row < n, TAMIS_E_ARGUMENT,
                "row %" PRIu32 " is not below the %" PRIu32 " of sequence %" PRIu64
                " in its last step",
                row, n, sequence->id);
    return tms_sequence_truncate(cache, sequence, row == TAMIS_NO_ROW ? first : first + row + 1,
                                 error);
}

/* Rows of which some may have taken the places of tokens. */
static tamis_status keep_rows_in_place(tamis_plan *plan, tms_sequence *sequence, uint32_t row,
                                       tamis_error *error) {
    tamis_cache *cache = plan->setup.cache;
    tms_journal *journal = tms_journals_find(&plan->journals, sequence->id);
    TMS_REQUIRE(journal, TAMIS_E_STATE,
                "the last rows of sequence %" PRIu64 " were those of a step of another plan",
                sequence->id);
    TMS_REQUIRE(row == TAMIS_NO_ROW || row < journal->n, TAMIS_E_ARGUMENT,
                "row %" PRIu32 " is not below the %" PRIu32 " of sequence %" PRIu64
                " in its last step",
                row, journal->n, sequence->id);
    const uint32_t kept = row == TAMIS_NO_ROW ? 0 : row + 1;
    TMS_REQUIRE(kept <= journal->n_left, TAMIS_E_STATE,
                "a call that failed was to keep %" PRIu32 " of the %" PRIu32
                " rows of sequence %" PRIu64 ": row %" PRIu32 " may have been undone",
                journal->n_left, journal->n, sequence->id, row);
    journal->n_left = kept;
    for (uint32_t layer = 0; layer < cache->params.n_layers; layer++) {
        const tms_write_rows write = tms_template_write(&plan->templates, layer);
        TMS_TRY(tms_journals_undo(&plan->journals, layer, journal->first + kept,
                                  journal->first + journal->n, &write, error));
    }
    if (kept < journal->n) tms_journal_return(cache, sequence, &journal->before, kept);
    tms_journal_end(cache, sequence);
    tms_journals_forget(&plan->journals, journal);
    return TAMIS_OK;
}

tamis_status tamis_plan_keep_path(tamis_plan *plan, tamis_sequence id, uint32_t row,
                                  tamis_error *error) {
    TMS_ENTER(plan);
    tms_sequence *sequence = NULL;
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    tamis_cache *cache = plan->setup.cache;
    TMS_TRY(tms_cache_find_still(cache, id, &sequence, error));
    const tms_tree *tree = tms_tree_of(sequence);
    if (tms_journal_of(sequence)) return keep_rows_in_place(plan, sequence, row, error);
    if (!tree) return keep_rows_of_line(cache, id, row, error);
    TMS_REQUIRE(row == TAMIS_NO_ROW || row < tree->n_rows, TAMIS_E_ARGUMENT,
                "row %" PRIu32 " is not below the %" PRIu32 " of sequence %" PRIu64
                " in its last step",
                row, tree->n_rows, id);
    if (row == TAMIS_NO_ROW)
        tms_branches_choose(cache, sequence, 0, 0);
    else
        tms_branches_choose(cache, sequence, tree->branch[row], tree->depth[row] + 1);
    return TAMIS_OK;
}
