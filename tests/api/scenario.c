/* SPDX-License-Identifier: Apache-2.0 */
/* The script: its calls, what is done when one fails, and the record of what it read. */
#include "tests/api/scenario.h"
#include "host/backend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BUDGET  21u
#define TEXT    700u
#define TRIES   6u
#define NO_PART ""
#define STORED  (1u << 20) /* more than any token: stored rows are not those that are computed */

#define BETWEEN(name, selection, kind, options)                                                    \
    {                                                                                              \
        name, TAMIS_SELECT_##selection, TAMIS_EVICT_##kind, options, 0, false, false, false, 0,    \
            false, false                                                                           \
    }
#define IN_STEPS(name, selection, kind, options)                                                   \
    {                                                                                              \
        name, TAMIS_SELECT_##selection, TAMIS_EVICT_##kind, options, 1, false, false, false, 0,    \
            false, false                                                                           \
    }
const scenario_case scenario_cases[] = {
    BETWEEN("quest", QUEST, NONE, 0),
    BETWEEN("oracle", ORACLE, NONE, 0),
    BETWEEN("random", RANDOM, NONE, 0),
    BETWEEN("lists", CALLER, NONE, 0),
    {"lists, window, sinks", TAMIS_SELECT_CALLER, TAMIS_EVICT_KNORM, 0, 0, false, false, false, 25,
     false, false},
    IN_STEPS("streaming", QUEST, STREAMING, 0),
    IN_STEPS("streaming+reindex", FULL, STREAMING, TAMIS_EVICT_REINDEX),
    {"h2o", TAMIS_SELECT_QUEST, TAMIS_EVICT_H2O, TAMIS_EVICT_LIFETIME, 1, true, false, false, 0,
     false, false},
    BETWEEN("h2o between", FULL, H2O, 0),
    IN_STEPS("tova", QUEST, TOVA, 0),
    IN_STEPS("knorm", QUEST, KNORM, 0),
    BETWEEN("snapkv", QUEST, SNAPKV, 0),
    BETWEEN("pyramidkv", FULL, PYRAMIDKV, 0),
    BETWEEN("adakv", QUEST, ADAKV, 0),
    BETWEEN("critical-adakv", FULL, CRITICAL_ADAKV, 0),
    BETWEEN("andpro", FULL, ANDPRO, 0),
    BETWEEN("defensivekv", FULL, DEFENSIVEKV, 0),
    BETWEEN("defensivekv+across", QUEST, DEFENSIVEKV, TAMIS_EVICT_ACROSS_LAYERS),
    BETWEEN("by scores", QUEST, CALLER, 0),
    {"to lists", TAMIS_SELECT_QUEST, TAMIS_EVICT_CALLER, 0, 0, false, true, false, 0, false, false},
    {"stored", TAMIS_SELECT_QUEST, TAMIS_EVICT_NONE, 0, 0, false, false, true, 0, false, false},
    {"knorm, stored", TAMIS_SELECT_QUEST, TAMIS_EVICT_KNORM, 0, 0, false, false, true, 0, false,
     false},
    {"snapkv, window, sinks", TAMIS_SELECT_QUEST, TAMIS_EVICT_SNAPKV, 0, 0, false, false, false, 25,
     false, false},
    {"trees", TAMIS_SELECT_QUEST, TAMIS_EVICT_NONE, 0, 0, false, false, false, 0, true, false},
    {"knorm, trees", TAMIS_SELECT_QUEST, TAMIS_EVICT_KNORM, 0, 0, false, false, false, 0, true,
     false},
    {"h2o, verified", TAMIS_SELECT_QUEST, TAMIS_EVICT_H2O, 0, 1, false, false, false, 0, false,
     true},
    {"h2o between, verified", TAMIS_SELECT_FULL, TAMIS_EVICT_H2O, 0, 0, false, false, false, 0,
     false, true},
    {"tova, verified", TAMIS_SELECT_QUEST, TAMIS_EVICT_TOVA, 0, 1, false, false, false, 0, false,
     true},
    {"streaming, verified", TAMIS_SELECT_QUEST, TAMIS_EVICT_STREAMING, 0, 1, false, false, false, 0,
     false, true},
};
const uint32_t scenario_case_count = sizeof scenario_cases / sizeof *scenario_cases;

/* ---- Calls ----------------------------------------------------------------------------------- */

typedef enum outcome {
    DONE,
    FAILED, /* by the fault: the call may be made again */
    LEFT,   /* the step is to be given up and repeated */
    REFUSED
} outcome;

static tms_device *device(const scenario *s) {
    return s->e.w.context->dev;
}

/* False: the step is to be left before the call. */
static bool enter(scenario *s) {
    test_error = (tamis_error){0};
    s->calls++;
    if (s->leave_at == s->calls && !s->leave_after) return false;
    s->happened = s->faults && s->faults->happened();
    if (s->faults) s->faults->count(device(s), true);
    return true;
}

/* A failure long before its call is over: the sequence is refused, or the cache until its bounds
 * are computed anew, or the device has an error that stays. */
static outcome judge_refusal(scenario *s, const char *call) {
    const bool stays = device(s)->sticky != TAMIS_OK && s->status == device(s)->sticky;
    if (s->status == TAMIS_E_STATE && strstr(test_error.text, "tamis_cache_set_bounds")) {
        const tamis_bounds bounds = s->e.w.cache->params.bounds;
        OK(tamis_cache_set_bounds(s->e.w.cache, &bounds, &test_error));
        return FAILED;
    }
    if (s->status != TAMIS_E_STATE && !stays)
        fail_msg("%s: %s \"%s\"", call, tamis_status_name(s->status), test_error.text);
    memcpy(s->refusal, test_error.text, sizeof test_error.text);
    return REFUSED;
}

static outcome judge(scenario *s, const char *call) {
    if (s->faults) s->faults->count(device(s), false);
    const bool now = s->faults && !s->happened && s->faults->happened();
    if (now) s->failed_at = s->calls;
    if (s->status == TAMIS_OK) {
        if (now && !s->faults->may_be_passed_over())
            fail_msg("%s: succeeded although a call of the device failed", call);
        return s->leave_at == s->calls ? LEFT : DONE;
    }
    if (!now && s->happened) return judge_refusal(s, call);
    if (!now) fail_msg("%s: %s \"%s\"", call, tamis_status_name(s->status), test_error.text);
    if (!strstr(test_error.text, s->faults->text))
        fail_msg("%s: the reason is \"%s\", not \"%s\"", call, test_error.text, s->faults->text);
    return FAILED;
}

#define CALL(s, expr) (enter(s) ? ((s)->status = (expr), judge((s), #expr)) : LEFT)
/* Makes the call until the fault lets it pass. The enclosing function returns what else comes. */
#define MAKE(s, expr)                                                                              \
    do {                                                                                           \
        outcome made_ = FAILED;                                                                    \
        for (uint32_t tries_ = 0; made_ == FAILED; tries_++) {                                     \
            assert_true(tries_ < TRIES);                                                           \
            made_ = CALL(s, expr);                                                                 \
        }                                                                                          \
        if (made_ != DONE) return made_;                                                           \
    } while (0)
/* A call of a step: a caller who gives up does not make it again. */
#define MAKE_IN_STEP(s, expr)                                                                      \
    do {                                                                                           \
        if ((s)->recovery == SCENARIO_AGAIN) {                                                     \
            MAKE(s, expr);                                                                         \
        } else {                                                                                   \
            outcome made_ = CALL(s, expr);                                                         \
            if (made_ != DONE) return made_ == FAILED ? LEFT : made_;                              \
        }                                                                                          \
    } while (0)

/* ---- The record ------------------------------------------------------------------------------ */

static void *append(scenario *s, size_t bytes) {
    if (s->used + bytes > s->room) {
        s->room = 2 * (s->used + bytes);
        s->record = realloc(s->record, s->room);
        assert_non_null(s->record);
    }
    s->used += bytes;
    return s->record + s->used - bytes;
}

static void note(scenario *s, const void *from, size_t bytes) {
    memcpy(append(s, bytes), from, bytes);
}

/* All that the cache holds of a sequence; its bounds are those of its keys. */
static void note_sequence(scenario *s, tamis_sequence id) {
    held h = evict_read(&s->e, id);
    note(s, h.lengths, h.n_lanes * sizeof *h.lengths);
    note(s, h.positions, h.n_slots * sizeof *h.positions);
    note(s, h.scores, h.n_slots * sizeof *h.scores);
    note(s, h.k, (size_t)h.n_slots * h.dim * sizeof *h.k);
    note(s, h.v, (size_t)h.n_slots * h.dim * sizeof *h.v);
    held_free(&h);
    evict_check_bounds(&s->e, id);
}

static void note_lists(scenario *s, uint32_t n_rows) {
    uint32_t pages[64], count;
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t head = 0; head < s->e.w.shape.n_kv_heads; head++) {
            OK(tamis_plan_read_selected(s->e.w.plan, row, head, pages, 64, &count, &test_error));
            note(s, pages, count * sizeof *pages);
        }
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* Rows of two sequences at most; the token at a position is TEXT + position. */
typedef struct rows {
    uint32_t n_sequences, n_rows, each[2];
    tamis_sequence ids[2];
    uint64_t tokens[64];
    uint32_t parents[64]; /* of a step that has a tree */
    bool exact, tree;
} rows;

static void add_rows(const scenario *s, rows *r, tamis_sequence id, uint32_t n) {
    const uint32_t first = test_length(s->e.w.cache, id);
    r->ids[r->n_sequences] = id;
    r->each[r->n_sequences++] = n;
    for (uint32_t i = 0; i < n; i++)
        r->tokens[r->n_rows++] = TEXT + first + i;
}

/* Three rows, of which two stand behind the first; the last of them has a token of its own. */
static void add_tree(const scenario *s, rows *r, tamis_sequence id) {
    static const uint32_t parents[3] = {TAMIS_NO_ROW, 0, 0};
    memcpy(r->parents + r->n_rows, parents, sizeof parents);
    add_rows(s, r, id, 3);
    r->tree = true;
}

/* Lists of the caller, of pages or of tokens by layers, from the host; some entries are skipped. Their
 * rows of out are bf16. */
static outcome attend_by_lists(scenario *s, const rows *r, uint32_t layer, const tamis_rows *q) {
    static int32_t entries[2 * 2 * 16], count[2 * 2];
    const tamis_caller_lists lists = {.host_entries = entries,
                                      .host_count = count,
                                      .capacity = layer % 2 ? 16 : 2,
                                      .unit = layer % 2 ? TAMIS_LIST_TOKENS : TAMIS_LIST_PAGES};
    const tamis_plan_attend_params p = {
        .q = *q, .out = {.buffer = s->e.w.out, .dtype = TAMIS_BF16}, .lists = &lists};
    for (uint32_t i = 0; i < 2 * 2; i++) {
        count[i] = (int32_t)lists.capacity - (i == 1);
        for (uint32_t j = 0; j < lists.capacity; j++)
            entries[i * lists.capacity + j] = (int32_t)(i + 2 * j) - (j % 5 == 3 ? 9 : 0);
    }
    if (!r->exact) assert_true(r->n_rows <= 2);
    MAKE_IN_STEP(s, tamis_plan_attend_with(s->e.w.plan, layer, &p, &test_error));
    return DONE;
}

static outcome step_layer(scenario *s, const rows *r, uint32_t layer) {
    const tamis_rows k = {.buffer = s->e.w.k}, v = {.buffer = s->e.w.v};
    const tamis_rows q = {.buffer = s->e.w.q}, out = {.buffer = s->e.w.out};
    const bool by_lists = s->c->selection == TAMIS_SELECT_CALLER;
    const size_t bytes =
        evict_out_floats(&s->e, r->n_rows) * (by_lists ? sizeof(uint16_t) : sizeof(float));
    if (device(s)->sticky != TAMIS_OK) return REFUSED;
    test_fill_kv(&s->e.w, layer, r->tokens, r->n_rows);
    evict_fill_queries(&s->e, layer, r->tokens, r->n_rows);
    if (s->e.w.plan->step.in_turns) {
        const tamis_rotated_rows rotated = {.q = q, .k = k, .v = v};
        MAKE_IN_STEP(s, tamis_plan_write_attend(s->e.w.plan, layer, &rotated, &out, &test_error));
    } else {
        MAKE_IN_STEP(s, tamis_plan_write(s->e.w.plan, layer, &k, &v, &test_error));
        if (!by_lists)
            MAKE_IN_STEP(s, tamis_plan_attend(s->e.w.plan, layer, &q, &out, &test_error));
    }
    if (by_lists) {
        const outcome made = attend_by_lists(s, r, layer, &q);
        if (made != DONE) return made;
    }
    if (device(s)->sticky == TAMIS_OK)
        OK(tamis_buffer_read(s->e.w.out, 0, append(s, bytes), bytes, NULL));
    if (!r->exact && device(s)->sticky == TAMIS_OK) note_lists(s, r->n_rows);
    return DONE;
}

/* Which rows of a narrowed step stay: every second, and the last. */
static uint32_t kept_rows(const rows *r, uint32_t *kept) {
    uint32_t n = 0;
    for (uint32_t row = 0; row < r->n_rows; row++)
        if (row % 2 == 1 || row + 1 == r->n_rows) kept[n++] = row;
    return n;
}

/* A layer of a narrowed step: loaded as a whole, then compared and written where rows are left. */
static outcome stored_layer(scenario *s, const rows *r, uint32_t layer) {
    tamis_plan *plan = s->e.w.plan;
    const tamis_rows k = {.buffer = s->e.w.k}, v = {.buffer = s->e.w.v};
    const tamis_stored_rows of_k = {.k = k, .rotation.table = {s->table, 0}}, of_v = {.v = v};
    const tamis_place out = {s->e.w.out, 0};
    uint64_t stored[64] = {0};
    uint32_t kept[64];
    rows left = {.n_rows = kept_rows(r, kept), .exact = true};
    for (uint32_t i = 0; i < left.n_rows; i++)
        left.tokens[i] = r->tokens[kept[i]];
    for (uint32_t i = 0; i < r->n_rows; i++)
        stored[i] = r->tokens[i] + STORED;
    if (layer == 1)
        MAKE_IN_STEP(s, tamis_plan_step_keep_rows(plan, kept, left.n_rows, &test_error));
    if (device(s)->sticky != TAMIS_OK) return REFUSED;
    test_fill_kv(&s->e.w, layer, stored, r->n_rows);
    MAKE_IN_STEP(s, tamis_plan_load_rows(plan, layer, 0, r->n_rows, &of_k, &test_error));
    MAKE_IN_STEP(s, tamis_plan_load_rows(plan, layer, 0, r->n_rows, &of_v, &test_error));
    if (device(s)->sticky != TAMIS_OK) return REFUSED;
    test_fill_kv(&s->e.w, layer, left.tokens, left.n_rows);
    MAKE_IN_STEP(s, tamis_plan_row_deviations(plan, layer, &v, 1, &out, NULL, &test_error));
    if (device(s)->sticky == TAMIS_OK)
        OK(tamis_buffer_read(s->e.w.out, 0, append(s, left.n_rows * sizeof(float)),
                             left.n_rows * sizeof(float), NULL));
    return step_layer(s, &left, layer);
}

static outcome step_once(scenario *s, const rows *r) {
    const tamis_step step = {.sequences = r->ids,
                             .rows = r->each,
                             .count = r->n_sequences,
                             .exact = r->exact,
                             .parents = r->tree ? r->parents : NULL};
    const tamis_cache_stats before = test_stats(&s->e.w);
    outcome made = CALL(s, tamis_plan_step_begin(s->e.w.plan, &step, &test_error));
    if (made == FAILED) {
        test_unchanged(&s->e.w, &before);
        return LEFT;
    }
    for (uint32_t layer = 0; layer < s->e.w.shape.n_layers && made == DONE; layer++)
        made = s->c->stored && r->exact && layer > 0 ? stored_layer(s, r, layer)
                                                     : step_layer(s, r, layer);
    if (made != DONE) return made;
    MAKE_IN_STEP(s, tamis_plan_step_end(s->e.w.plan, &test_error));
    return DONE;
}

/* A step given up before its end, by the script itself or as the caller's way to recover. */
static void give_up(scenario *s) {
    if (s->e.w.plan->step.open) OK(tamis_plan_step_cancel(s->e.w.plan, &test_error));
}

/* Whether an attend may not be made again in its step: its rows would count twice. */
static bool counts_once(const scenario *s) {
    return s->e.w.plan->setup.needs.feed == TMS_FEED_SUM &&
           strstr(s->refusal, "count its rows twice");
}

static outcome step(scenario *s, const rows *r) {
    const size_t used = s->used;
    for (uint32_t tries = 0;; tries++) {
        assert_true(tries < TRIES);
        outcome made = step_once(s, r);
        if (made == DONE || (made == REFUSED && !counts_once(s))) return made;
        s->refusal[0] = 0;
        s->gave_up |= s->e.w.plan->step.open && !s->e.w.plan->step.in_turns;
        give_up(s);
        s->used = used;
    }
}

static outcome prompt(scenario *s, tamis_sequence id, uint32_t n) {
    rows r = {.exact = true};
    add_rows(s, &r, id, n);
    return step(s, &r);
}

static outcome decode_one(scenario *s, tamis_sequence id) {
    rows r = {.exact = false};
    add_rows(s, &r, id, 1);
    return step(s, &r);
}

/* Three rows, of which two stay. */
static outcome verify(scenario *s, tamis_sequence id) {
    rows r = {.exact = false};
    add_rows(s, &r, id, 3);
    const outcome made = step(s, &r);
    if (made != DONE) return made;
    MAKE(s, tamis_plan_keep_path(s->e.w.plan, id, 1, &test_error));
    return DONE;
}

/* One row of each, or a tree of the first, of which a path stays. */
static outcome decode_both(scenario *s, tamis_sequence a, tamis_sequence b) {
    rows r = {.exact = false};
    if (s->c->trees)
        add_tree(s, &r, a);
    else
        add_rows(s, &r, a, 1);
    r.parents[r.n_rows] = TAMIS_NO_ROW;
    add_rows(s, &r, b, 1);
    const outcome made = step(s, &r);
    if (r.tree && made == DONE) OK(tamis_plan_keep_path(s->e.w.plan, a, 2, &test_error));
    return made;
}

static outcome decode(scenario *s, tamis_sequence a, tamis_sequence b, uint32_t n) {
    outcome made = DONE;
    for (uint32_t i = 0; i < n && made == DONE; i++) {
        if (s->c->verified) {
            made = verify(s, a);
            if (made == DONE) made = decode_one(s, b);
        } else {
            made = decode_both(s, a, b);
        }
    }
    return made;
}

/* ---- Evicting -------------------------------------------------------------------------------- */

#define STRIDE 64u
#define LANES  4u

/* Every third slot goes; of a lane that is no longer as it was at first, none. */
static void fill_lists(const scenario *s, tamis_sequence id, const uint32_t *lengths,
                       uint32_t *slots, uint32_t *counts) {
    for (uint32_t lane = 0; lane < LANES; lane++) {
        uint32_t length = evict_length(&s->e, id, lane / 2, lane % 2), n = 0;
        for (uint32_t slot = 0; slot < length; slot++)
            if (length != lengths[lane] || (slot + lane) % 3 != 0 || slot + 1 == length)
                slots[lane * STRIDE + n++] = slot;
        counts[lane] = n;
    }
}

static outcome evict_by_caller(scenario *s, tamis_sequence id) {
    tamis_plan *plan = s->e.w.plan;
    uint32_t slots[LANES * STRIDE], counts[LANES], lengths[LANES];
    float scores[LANES * STRIDE];
    for (uint32_t i = 0; i < LANES * STRIDE; i++)
        scores[i] = test_value(i, 0, 0, 0);
    if (!s->c->lists) {
        MAKE(s, tamis_plan_evict_by_scores(plan, id, scores, STRIDE, NULL, &test_error));
        return DONE;
    }
    /* Layers that have been evicted from before a failure keep what they have. */
    outcome made = FAILED;
    for (uint32_t lane = 0; lane < LANES; lane++)
        lengths[lane] = evict_length(&s->e, id, lane / 2, lane % 2);
    for (uint32_t tries = 0; made == FAILED; tries++) {
        assert_true(tries < TRIES);
        fill_lists(s, id, lengths, slots, counts);
        made = CALL(s, tamis_plan_evict_to(plan, id, slots, counts, STRIDE, NULL, &test_error));
    }
    return made;
}

static outcome evict(scenario *s, tamis_sequence id) {
    if (s->c->eviction == TAMIS_EVICT_NONE) return DONE;
    if (s->c->eviction == TAMIS_EVICT_CALLER) return evict_by_caller(s, id);
    MAKE(s, tamis_plan_evict(s->e.w.plan, id, NULL, &test_error));
    return DONE;
}

/* ---- The script ------------------------------------------------------------------------------ */

/* The bounds of the whole cache to another kind, and back. */
static outcome change_bounds(scenario *s) {
    const tamis_bounds mean = {.kind = TAMIS_BOUNDS_MEAN}, minmax = {.kind = TAMIS_BOUNDS_MINMAX};
    if (s->c->eviction != TAMIS_EVICT_NONE) return DONE;
    MAKE(s, tamis_cache_set_bounds(s->e.w.cache, &mean, &test_error));
    MAKE(s, tamis_cache_set_bounds(s->e.w.cache, &minmax, &test_error));
    return DONE;
}

/* A step of the script's own that is given up when a layer has been written. */
static outcome give_up_one(scenario *s, tamis_sequence a, tamis_sequence b) {
    const tamis_rows k = {.buffer = s->e.w.k}, v = {.buffer = s->e.w.v};
    rows r = {.exact = false};
    add_rows(s, &r, a, 1);
    add_rows(s, &r, b, 1);
    const tamis_step step = {.sequences = r.ids, .count = r.n_sequences};
    test_fill_kv(&s->e.w, 0, r.tokens, r.n_rows);
    MAKE(s, tamis_plan_step_begin(s->e.w.plan, &step, &test_error));
    MAKE(s, tamis_plan_write(s->e.w.plan, 0, &k, &v, &test_error));
    give_up(s);
    return DONE;
}

static outcome read_lane(scenario *s, tamis_sequence id) {
    float k[6 * 64], v[6 * 64];
    MAKE(s, tamis_cache_read(s->e.w.cache, id, 1, 1, 3, 6, k, v, &test_error));
    note(s, k, sizeof k);
    note(s, v, sizeof v);
    return DONE;
}

#define DO(what)                                                                                   \
    do {                                                                                           \
        outcome made_ = (what);                                                                    \
        if (made_ != DONE) return made_;                                                           \
    } while (0)

/* Between the calls all is the host's alone. */
static outcome run_first_half(scenario *s) {
    tamis_cache *cache = s->e.w.cache;
    tamis_sequence *ids = s->sequences;
    OK(tamis_cache_add(cache, &ids[0], &test_error));
    DO(prompt(s, ids[0], 24));
    DO(prompt(s, ids[0], 17));
    DO(change_bounds(s));
    OK(tamis_cache_fork(cache, ids[0], &ids[1], &test_error));
    OK(tamis_cache_truncate(cache, ids[1], 36, &test_error));
    rows both = {.exact = true};
    add_rows(s, &both, ids[0], 3);
    add_rows(s, &both, ids[1], 9);
    DO(step(s, &both)); /* pages that both hold are copied, and known queries */
    DO(evict(s, ids[1]));
    DO(evict(s, ids[0]));
    return decode(s, ids[0], ids[1], 5);
}

static outcome run_second_half(scenario *s) {
    tamis_cache *cache = s->e.w.cache;
    tamis_sequence *ids = s->sequences;
    OK(tamis_cache_fork(cache, ids[1], &ids[2], &test_error));
    OK(tamis_cache_remove(cache, ids[0], &test_error));
    ids[0] = 0;
    DO(decode(s, ids[1], ids[2], 2));
    DO(give_up_one(s, ids[1], ids[2]));
    DO(decode(s, ids[1], ids[2], 1));
    DO(evict(s, ids[2]));
    DO(decode(s, ids[1], ids[2], 1));
    return read_lane(s, ids[2]);
}

static void note_end(scenario *s) {
    const tamis_cache_stats stats = test_stats(&s->e.w);
    note(s, &stats.pages_held, sizeof stats.pages_held);
    note(s, &stats.pages_shared, sizeof stats.pages_shared);
    note_sequence(s, s->sequences[1]);
    note_sequence(s, s->sequences[2]);
}

scenario_end scenario_run(scenario *s) {
    s->calls = s->failed_at = 0;
    s->used = 0;
    s->refusal[0] = 0;
    s->gave_up = false;
    memset(s->sequences, 0, sizeof s->sequences);
    outcome made = run_first_half(s);
    if (made == DONE) made = run_second_half(s);
    assert_true(made == DONE || made == REFUSED);
    const bool lost = device(s)->sticky != TAMIS_OK;
    if (made == DONE && !lost) note_end(s);
    give_up(s);
    for (uint32_t i = 0; i < 3; i++)
        if (s->sequences[i]) OK(tamis_cache_remove(s->e.w.cache, s->sequences[i], &test_error));
    assert_int_equal(test_stats(&s->e.w).pages_held, 0);
    return made == DONE && !lost ? SCENARIO_WHOLE : SCENARIO_REFUSED;
}

/* ---- The world ------------------------------------------------------------------------------- */

tamis_plan_params scenario_plan(const scenario_case *c) {
    tamis_plan_params plan = {.max_context = 128,
                              .max_rows = 32,
                              .max_sequences = c->trees || c->verified ? 3 : 2,
                              .max_selected_rows = c->trees || c->verified ? 4 : 2,
                              .flags = (c->timing ? TAMIS_PLAN_TIMING : 0) |
                                       (c->trees ? TAMIS_PLAN_TREES : 0) |
                                       (c->verified ? TAMIS_PLAN_VERIFY : 0) |
                                       (c->selection == TAMIS_SELECT_CALLER
                                            ? TAMIS_PLAN_TOKEN_LISTS | TAMIS_PLAN_HALF_ROWS
                                            : 0),
                              .attention.sliding_window = c->window,
                              .load_dtypes = c->stored ? 1u << TAMIS_F32 : 0,
                              .eviction = test_eviction(c->eviction, BUDGET, c->options)};
    tamis_selection_default(c->selection, &plan.selection);
    if (c->selection != TAMIS_SELECT_FULL) plan.selection.budget = 16;
    plan.selection.sinks = plan.selection.recent = 0;
    if (plan.eviction.every == 1) plan.eviction.every = c->every;
    return plan;
}

void scenario_open(scenario *s, const scenario_case *c) {
    const tamis_cache_params shape = test_shape();
    const tamis_plan_params plan = scenario_plan(c);
    *s = (scenario){.c = c};
    evict_open(&s->e, &shape, &plan);
    if (c->window) evict_sink(&s->e, &plan, UINT32_MAX);
    if (!c->stored) return;
    double frequencies[32];
    for (uint32_t i = 0; i < 32; i++)
        frequencies[i] = pow(10000, -2.0 * i / 64);
    OK(tamis_buffer_create(s->e.w.context, tamis_rotation_bytes(64), &s->table, &test_error));
    const tamis_rotation rotation = {.n_rot = 64, .table = {s->table, 0}};
    OK(tamis_rotation_write(&rotation, frequencies, &test_error));
}

void scenario_close(scenario *s) {
    tamis_buffer_destroy(&s->table);
    evict_close(&s->e);
    free(s->record);
}
