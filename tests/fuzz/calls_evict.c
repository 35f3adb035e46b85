/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzed plans and evictions between steps, and what lanes may hold afterwards. */
#include "lib/evict/evict.h"
#include "tests/fuzz/shadow.h"
#include "tests/rotation.h"

#include <math.h>
#include <string.h>

/* ---- Plans ----------------------------------------------------------------------------------- */

static bool has_window(tamis_eviction_kind kind) {
    return kind >= TAMIS_EVICT_SNAPKV && kind <= TAMIS_EVICT_CALLER;
}

static bool needs_output(tamis_eviction_kind kind) {
    return kind == TAMIS_EVICT_CRITICALKV || kind == TAMIS_EVICT_CRITICAL_ADAKV ||
           kind == TAMIS_EVICT_DEFENSIVEKV;
}

/* Numbers that mostly fit each other. */
static tamis_selection draw_selection(fuzz *f) {
    static const uint32_t recents[] = {0, 0, 1, 5, 12};
    const uint32_t page = f->shape.page_size;
    tamis_selection s = {.kind = (tamis_selection_kind)fuzz_take(f, 5)};
    if (s.kind == TAMIS_SELECT_FULL) return s;
    s.sinks = fuzz_take(f, 3) * 5;
    s.recent = recents[fuzz_take(f, 5)];
    s.budget = shadow_pages(f, s.sinks) + (s.recent ? (s.recent + page - 2) / page + 1 : 0);
    s.budget = (s.budget + fuzz_take(f, 5)) * page + fuzz_take(f, 3);
    s.dense_layers = fuzz_take(f, 4) == 3;
    s.group = (tamis_group_rule)fuzz_take(f, 3);
    s.seed = 7;
    return s;
}

static bool has_floor(tamis_eviction_kind kind) {
    return kind == TAMIS_EVICT_ADAKV || kind == TAMIS_EVICT_CRITICAL_ADAKV ||
           kind == TAMIS_EVICT_ANDPRO || kind == TAMIS_EVICT_DEFENSIVEKV;
}

static tamis_eviction draw_eviction(fuzz *f) {
    static const uint32_t every[] = {1, 0, 2};
    /* The last bytes are those of kinds that came after the corpus, which so goes on to read as it
     * did. */
    const uint32_t drawn = fuzz_take(f, 256);
    tamis_eviction e = {.kind =
                            drawn < 240 ? (tamis_eviction_kind)(drawn % 12) : TAMIS_EVICT_KNORM};
    const tms_eviction_entry *entry = tms_eviction_find(e.kind);
    if (e.kind == TAMIS_EVICT_NONE) return e;
    e.sinks = fuzz_take(f, 4);
    if (entry->has_recent) e.recent = fuzz_take(f, 8);
    if (has_window(e.kind)) e.window = 1 + fuzz_take(f, 8);
    e.budget = e.sinks + e.window + 2 * e.recent + fuzz_take(f, 40);
    if (fuzz_take(f, 4) == 1) e.options = entry->options & 1u << fuzz_take(f, 9);
    if (entry->defaults.kernel) e.kernel = 1 + 2 * fuzz_take(f, 3);
    if (entry->defaults.kernel && fuzz_take(f, 2)) e.pooling = TAMIS_POOL_AVERAGE;
    if (has_floor(e.kind)) e.floor = (float)fuzz_take(f, 5) / 4;
    if (e.kind == TAMIS_EVICT_PYRAMIDKV) e.beta = 1 + (float)fuzz_take(f, 20);
    if (e.kind == TAMIS_EVICT_ANDPRO) e.chunk = 1 + fuzz_take(f, 5);
    if (entry->defaults.every) e.every = every[fuzz_take(f, 3)];
    return e;
}

static tamis_plan_params draw_params(fuzz *f) {
    tamis_plan_params p = {.selection = draw_selection(f), .eviction = draw_eviction(f)};
    uint32_t rare = fuzz_take(f, 16);
    p.max_sequences = MAX_STEP - fuzz_take(f, 2);
    p.max_rows = rare == 1 ? 5 : MAX_ROWS;
    p.max_context = rare == 2 ? 20 + fuzz_take(f, 40) : MAX_CONTEXT;
    p.attention.soft_cap = rare == 3 ? 5 : 0;
    p.attention.sliding_window = rare == 4 ? 1 + fuzz_take(f, 30) : 0;
    if (rare == 5) p.flags |= TAMIS_PLAN_FIXED_LAUNCHES;
    p.max_selected_rows = rare == 6 ? 8 : 0;
    if (rare == 7) p.flags |= TAMIS_PLAN_TIMING;
    p.reserved[0] = rare == 8;
    return p;
}

/* Binds what the eviction needs that is no number. */
static void bind_all(fuzz *f, const fuzz_plan *plan) {
    double frequencies[MAX_DIM / 2];
    const tamis_rows w = {.buffer = f->q};
    for (uint32_t i = 0; i < MAX_DIM / 2; i++)
        frequencies[i] = 1.0 / (1 + i);
    for (uint32_t layer = 0; layer < f->shape.n_layers; layer++)
        if (needs_output(plan->params.eviction.kind))
            OK(tamis_plan_bind_output(plan->plan, layer, &w, 8, &test_error));
    if (plan->params.eviction.options & TAMIS_EVICT_REINDEX)
        OK(test_bind_rotation(f->context, plan->plan, frequencies, f->shape.head_dim,
                              TAMIS_PAIR_ADJACENT, &test_error));
}

void fuzz_renew_plan(fuzz *f, uint32_t index) {
    fuzz_plan *p = &f->plans[index];
    tamis_plan_destroy(&p->plan);
    if (f->step.open && f->step.plan == index) shadow_give_up(f);
    *p = (fuzz_plan){.params = draw_params(f)};
    const uint32_t causes = p->params.reserved[0] ? CAUSE(E_ARGUMENT) : 0;
    const uint32_t maybe = CAUSE(E_ARGUMENT) | CAUSE(E_UNSUPPORTED);
    if (!EXPECT(tamis_plan_create(f->cache, &p->params, &p->plan, &test_error), causes, maybe)) {
        assert_null(p->plan);
        p->params = (tamis_plan_params){
            .max_sequences = MAX_STEP, .max_rows = MAX_ROWS, .max_context = MAX_CONTEXT};
        OK(tamis_plan_create(f->cache, &p->params, &p->plan, &test_error));
    }
    uint32_t *budgets[] = {&p->params.selection.budget, &p->params.eviction.budget};
    for (size_t i = 0; i < 2; i++)
        if (*budgets[i] == 0) *budgets[i] = 2048; /* the default */
    assert_int_equal(tamis_selection_check(&p->params.selection, f->shape.page_size, NULL),
                     TAMIS_OK);
    if (fuzz_take(f, 16) != 15) bind_all(f, p);
}

/* Budgets of single lanes, some of them too small. */
void fuzz_bind(fuzz *f) {
    const uint32_t index = fuzz_take(f, MAX_PLANS);
    fuzz_plan *p = &f->plans[index];
    const tamis_eviction *e = &p->params.eviction;
    const bool taken = e->kind == TAMIS_EVICT_SNAPKV || e->kind == TAMIS_EVICT_CRITICALKV ||
                       e->kind == TAMIS_EVICT_CALLER;
    uint32_t budgets[MAX_LANES] = {0}, causes = taken ? 0 : CAUSE(E_ARGUMENT);
    for (uint32_t lane = 0; lane < f->n_lanes; lane++) {
        budgets[lane] = e->sinks + e->window + fuzz_take(f, 40);
        if (budgets[lane] <= e->sinks + e->window) causes |= CAUSE(E_ARGUMENT);
    }
    if (f->step.open && f->step.plan == index) causes |= CAUSE(E_STATE);
    if (!EXPECT(tamis_plan_bind_budgets(p->plan, budgets, &test_error), causes, 0)) return;
    p->has_budgets = true;
    memcpy(p->budgets, budgets, sizeof budgets);
}

/* ---- Between steps --------------------------------------------------------------------------- */

/* What the caller brings for each lane. */
typedef struct wish {
    float scores[MAX_LANES][MAX_CONTEXT];
    uint32_t slots[MAX_LANES][MAX_CONTEXT], counts[MAX_LANES];
} wish;

/* Lists that ascend within the lanes; now and then one breaks the rule. */
static bool draw_lists(fuzz *f, const shadow_sequence *s, wish *w) {
    uint64_t random = f->next_token + fuzz_take(f, 255);
    const uint32_t share = 1 + fuzz_take(f, 8), broken = fuzz_take(f, 32);
    bool good = true;
    for (uint32_t lane = 0; lane < f->n_lanes; lane++) {
        uint32_t n = 0, length = s->lanes[lane].length;
        for (uint32_t slot = 0; slot < length; slot++)
            if (test_below(&random, 8) < share || slot + 1 == length) w->slots[lane][n++] = slot;
        if (n > 1 && broken == 31) w->slots[lane][n - 1] = w->slots[lane][0];
        if (n > 0 && broken == 30) w->slots[lane][n - 1] = length;
        if (n > 0 && broken == 29) n = 0;
        if (broken == 28) n = length + 1;
        good &= broken < 28 || (length == 0 && broken != 28) || (n == 1 && broken == 31);
        w->counts[lane] = n;
    }
    return good;
}

/* Few values, so that many tie; NaN among them. */
static void draw_scores(fuzz *f, wish *w) {
    uint64_t random = f->next_token + fuzz_take(f, 255);
    for (uint32_t lane = 0; lane < f->n_lanes; lane++)
        for (uint32_t slot = 0; slot < MAX_CONTEXT; slot++) {
            uint32_t value = test_below(&random, 9);
            w->scores[lane][slot] = value == 8 ? NAN : (float)value - 4;
        }
}

/* Whether slot a goes before slot b: numbers before NaN, the higher score, the newer slot. */
static bool is_better(const float *scores, uint32_t a, uint32_t b) {
    if (isnan(scores[a]) != isnan(scores[b])) return isnan(scores[b]);
    if (!isnan(scores[a]) && scores[a] != scores[b]) return scores[a] > scores[b];
    return a > b;
}

/* The slots that a lane keeps by scores: sinks, window, and the best of the others. */
static uint32_t best_slots(const tamis_eviction *e, const float *scores, uint32_t length,
                           uint32_t budget, uint32_t *slots) {
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < length; slot++) {
        uint32_t better = 0;
        bool always = slot < e->sinks || slot + e->window >= length;
        for (uint32_t other = e->sinks; other + e->window < length; other++)
            better += is_better(scores, other, slot);
        if (length <= budget || always || better < budget - e->sinks - e->window) slots[n++] = slot;
    }
    return n;
}

static uint32_t budget_of(const fuzz_plan *p, uint32_t lane) {
    return p->has_budgets ? p->budgets[lane] : p->params.eviction.budget;
}

/* What the kind keeps of every lane, slot by slot, where that follows from the shadow alone. */
static bool predict(const fuzz *f, const fuzz_plan *p, const shadow_sequence *s, bool by_list,
                    wish *w) {
    const tamis_eviction *e = &p->params.eviction;
    if (by_list) return true;
    for (uint32_t l = 0; l < f->n_lanes; l++) {
        const shadow_lane *lane = &s->lanes[l];
        /* The newest are the best; by position, as slots may be out of order. */
        for (uint32_t i = 0; i < lane->length && e->kind == TAMIS_EVICT_STREAMING; i++)
            w->scores[l][i] =
                lane->positions[i] < (int32_t)e->sinks ? INFINITY : (float)lane->positions[i];
        tamis_eviction rule = *e;
        if (e->kind == TAMIS_EVICT_STREAMING) rule.sinks = rule.window = 0;
        w->counts[l] = best_slots(&rule, w->scores[l], lane->length, budget_of(p, l), w->slots[l]);
    }
    return e->kind == TAMIS_EVICT_STREAMING || e->kind == TAMIS_EVICT_CALLER;
}

/* A lane after an eviction holds some of its slots in their order, as many as its budget where
 * heads share nothing, with those that are always kept. */
static void check_kept(const fuzz_plan *p, const shadow_sequence *s, uint32_t index,
                       const int32_t *now, uint32_t length) {
    const tamis_eviction *e = &p->params.eviction;
    const shadow_lane *old = &s->lanes[index];
    const uint32_t budget = budget_of(p, index);
    uint32_t at = 0;
    for (uint32_t i = 0; i < length; i++, at++) {
        while (at < old->length && old->positions[at] != now[i])
            at++;
        assert_true(at < old->length);
    }
    assert_true(length > 0 || old->length == 0);
    if (length == old->length) return;
    if (e->kind <= TAMIS_EVICT_SNAPKV || e->kind == TAMIS_EVICT_CRITICALKV ||
        e->kind == TAMIS_EVICT_KNORM)
        assert_int_equal(length, old->length < budget ? old->length : budget);
    for (uint32_t i = 0; i < e->window; i++)
        assert_int_equal(now[length - 1 - i], old->positions[old->length - 1 - i]);
    for (uint32_t i = 0; i < e->sinks && has_window(e->kind); i++)
        assert_int_equal(now[i], old->positions[i]);
}

/* Heads that share a budget keep exactly as much in all, where the kind promises that. */
static void check_total(const fuzz *f, const fuzz_plan *p, const uint64_t *before,
                        const uint64_t *kept) {
    const tamis_eviction *e = &p->params.eviction;
    const bool exact = e->kind == TAMIS_EVICT_DEFENSIVEKV ||
                       (!(e->options & TAMIS_EVICT_BLEND) &&
                        (e->kind == TAMIS_EVICT_ADAKV || e->kind == TAMIS_EVICT_CRITICAL_ADAKV));
    const bool across = e->options & TAMIS_EVICT_ACROSS_LAYERS;
    uint64_t had = 0, has = 0, most = 0;
    for (uint32_t layer = 0; exact && layer < f->shape.n_layers; layer++) {
        if (!across) had = has = most = 0;
        had += before[layer];
        has += kept[layer];
        most += (uint64_t)e->budget * f->shape.n_kv_heads;
        if (!across || layer + 1 == f->shape.n_layers)
            assert_int_equal(has, had < most ? had : most);
    }
}

/* Takes over what lanes hold now. */
static void adopt(fuzz *f, const fuzz_plan *p, shadow_sequence *s, const wish *exact,
                  const tamis_evicted *evicted) {
    static int32_t now[MAX_CONTEXT];
    uint64_t before[MAX_LAYERS] = {0}, kept[MAX_LAYERS] = {0};
    const uint32_t heads = f->shape.n_kv_heads;
    for (uint32_t l = 0; l < f->n_lanes; l++) {
        shadow_lane *lane = &s->lanes[l];
        uint32_t length = 0;
        OK(tamis_cache_lane_length(f->cache, s->id, l / heads, l % heads, &length, &test_error));
        assert_true(length <= lane->length);
        OK(tamis_cache_read_positions(f->cache, s->id, l / heads, l % heads, 0, length, now,
                                      &test_error));
        if (!exact) check_kept(p, s, l, now, length);
        if (exact) assert_int_equal(length, exact->counts[l]);
        for (uint32_t i = 0; exact && i < length; i++)
            assert_int_equal(now[i], lane->positions[exact->slots[l][i]]);
        before[l / heads] += lane->length;
        kept[l / heads] += length;
        memcpy(lane->positions, now, length * sizeof *now);
        lane->length = length;
    }
    assert_int_equal(evicted->tokens_before, before[0] + before[1]);
    assert_int_equal(evicted->tokens_kept, kept[0] + kept[1]);
    if (evicted->tokens_kept < evicted->tokens_before) s->evicted_at = s->length;
    check_total(f, p, before, kept);
}

static uint32_t evict_causes(const fuzz *f, const fuzz_plan *p, const shadow_sequence *s,
                             bool by_caller) {
    const tamis_eviction_kind kind = p->params.eviction.kind;
    uint32_t causes = f->step.open || s->given_up ? CAUSE(E_STATE) : 0;
    if (!s->id || kind == TAMIS_EVICT_NONE || (kind == TAMIS_EVICT_CALLER) != by_caller ||
        s->length > p->params.max_context)
        causes |= CAUSE(E_ARGUMENT);
    return causes;
}

static tamis_status evict(tamis_plan *plan, tamis_sequence id, bool by_caller, bool by_list,
                          const wish *w, tamis_evicted *out) {
    if (!by_caller) return tamis_plan_evict(plan, id, out, &test_error);
    if (!by_list)
        return tamis_plan_evict_by_scores(plan, id, w->scores[0], MAX_CONTEXT, out, &test_error);
    return tamis_plan_evict_to(plan, id, w->slots[0], w->counts, MAX_CONTEXT, out, &test_error);
}

/* A plan with an eviction, if one of the two has one. */
static fuzz_plan *any_evicting(fuzz *f) {
    fuzz_plan *p = &f->plans[fuzz_take(f, MAX_PLANS)];
    const bool none = p->params.eviction.kind == TAMIS_EVICT_NONE;
    return none ? &f->plans[1 - (p - f->plans)] : p;
}

void fuzz_evict(fuzz *f) {
    static wish w;
    fuzz_plan *p = any_evicting(f);
    shadow_sequence *s = fuzz_sequence(f);
    const tamis_eviction_kind kind = p->params.eviction.kind;
    const uint32_t how = fuzz_take(f, 16);
    const bool by_caller = (kind == TAMIS_EVICT_CALLER) != (how == 15);
    const bool by_list = by_caller && how % 2;
    tamis_evicted evicted;
    tamis_cache_stats was, is;
    tamis_sequence_stats own = {0};
    uint32_t causes = evict_causes(f, p, s, by_caller), maybe = 0;
    tamis_cache_get_stats(f->cache, &was);
    if (s->id) OK(tamis_cache_get_sequence_stats(f->cache, s->id, &own, NULL));
    if (own.pages_shared) maybe |= CAUSE(E_FULL);
    if (f->step.open) maybe |= CAUSE(E_ARGUMENT); /* lanes are longer than the lists say */
    if (kind != TAMIS_EVICT_STREAMING && !by_list) maybe |= CAUSE(E_STATE);
    draw_scores(f, &w);
    if (by_list && !draw_lists(f, s, &w)) causes |= CAUSE(E_ARGUMENT);
    if (!EXPECT(evict(p->plan, s->id, by_caller, by_list, &w, &evicted), causes, maybe)) return;
    adopt(f, p, s, predict(f, p, s, by_list, &w) ? &w : NULL, &evicted);
    tamis_cache_get_stats(f->cache, &is);
    assert_int_equal(was.pages_held - is.pages_held, evicted.pages_net);
    if (own.pages_shared == 0)
        assert_int_equal(was.pages_held - is.pages_held, evicted.pages_returned);
}
