/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzzed calls of a step, and what its layers must give. */
#include "tests/fuzz/shadow.h"
#include "tests/policies/oracle.h"

#include <math.h>
#include <string.h>

/* What a plan's parameters mean for a step. */
static bool is_listed(const tamis_plan_params *p) {
    return p->selection.kind != TAMIS_SELECT_FULL;
}

static bool feeds(const tamis_plan_params *p) {
    return p->eviction.kind == TAMIS_EVICT_H2O || p->eviction.kind == TAMIS_EVICT_TOVA;
}

static uint32_t cap_of(const tamis_plan_params *p, bool exact) {
    return p->eviction.every == 1 && !exact ? p->eviction.budget : UINT32_MAX;
}

static bool stays(const shadow_lane *lane, uint32_t rows, uint32_t cap) {
    return cap < UINT32_MAX && lane->length + rows > cap;
}

/* ---- Begin ----------------------------------------------------------------------------------- */

/* Pages of a pool that the step needs: a page that m of its lanes write costs m copies if others
 * hold it, too, and m - 1 if not. */
static uint64_t count_needed(const fuzz *f, const shadow_step *step, uint32_t pool) {
    static uint32_t writers[1024];
    const tms_pool *p = &f->cache->pools[pool];
    const tamis_plan_params *params = &f->plans[step->plan].params;
    const uint32_t heads = f->shape.n_kv_heads, cap = cap_of(params, step->exact);
    uint64_t needed = 0;
    assert_true(p->pages.n <= 1024);
    memset(writers, 0, sizeof writers);
    for (uint32_t i = 0; i < step->n; i++)
        for (uint32_t l = p->first_layer * heads; l < (p->first_layer + p->n_layers) * heads; l++) {
            const shadow_lane *lane = &step->of[i]->lanes[l];
            const int32_t *list = tms_lane_pages(tms_cache_find(f->cache, step->of[i]->id), l);
            const bool stayed = stays(lane, step->rows[i], cap), all = stayed || feeds(params);
            uint32_t end = shadow_pages(f, lane->length);
            for (uint32_t o = all ? 0 : lane->length / f->shape.page_size; o < end; o++)
                writers[list[o]]++;
            if (!stayed) needed += shadow_pages(f, lane->length + step->rows[i]) - end;
        }
    for (uint32_t page = 0; page < p->pages.n; page++)
        if (writers[page])
            needed += p->pages.refs[page] > writers[page] ? writers[page] : writers[page] - 1;
    return needed;
}

static bool fits(const fuzz *f, const shadow_step *step) {
    for (uint32_t p = 0; p < f->cache->size.pools; p++)
        if (count_needed(f, step, p) > f->cache->pools[p].pages.n_free) return false;
    return true;
}

/* Whether the drawn sequences and rows break a rule of the plan. */
static bool is_bad(const shadow_step *step, const tamis_plan_params *p) {
    const bool single = !step->exact && (p->flags & TAMIS_PLAN_FIXED_LAUNCHES || feeds(p) ||
                                         p->eviction.every == 1);
    const uint32_t selected = p->max_selected_rows ? p->max_selected_rows : p->max_sequences;
    bool bad = step->reserved || step->n == 0 || step->n > p->max_sequences ||
               step->n_rows > p->max_rows ||
               (!step->exact && is_listed(p) &&
                step->n_rows > (selected < p->max_rows ? selected : p->max_rows));
    for (uint32_t i = 0; i < step->n; i++) {
        const shadow_sequence *s = step->of[i];
        bad |= !s->id || step->rows[i] == 0 || (single && step->rows[i] != 1) ||
               s->length + step->rows[i] > p->max_context;
        for (uint32_t j = 0; j < i; j++)
            bad |= s == step->of[j];
    }
    return bad;
}

/* Whether the sequence has been evicted from and its longest lane holds the budget: then a single
 * row of it is no part of an exact step. */
static bool is_full(const fuzz *f, const shadow_sequence *s, const tamis_plan_params *p) {
    uint32_t longest = 0;
    for (uint32_t lane = 0; lane < f->n_lanes; lane++)
        if (s->lanes[lane].length > longest) longest = s->lanes[lane].length;
    return s->evicted_at && longest == cap_of(p, false);
}

/* What the call must say, as far as the shadow can tell. What a sequence's history means for an
 * eviction is left open: *maybe. */
static uint32_t begin_causes(const fuzz *f, const shadow_step *step, uint32_t *maybe) {
    const tamis_plan_params *p = &f->plans[step->plan].params;
    uint32_t causes = f->step.open ? CAUSE(E_STATE) : 0;
    *maybe = p->eviction.kind != TAMIS_EVICT_NONE ? CAUSE(E_STATE) : 0;
    if (is_bad(step, p)) causes |= CAUSE(E_ARGUMENT);
    for (uint32_t i = 0; i < step->n; i++) {
        const shadow_sequence *s = step->of[i];
        if (s->given_up && cap_of(p, step->exact) == UINT32_MAX) causes |= CAUSE(E_STATE);
        if (step->exact && step->rows[i] == 1 && is_full(f, s, p)) causes |= CAUSE(E_STATE);
        if (s->unordered) *maybe |= CAUSE(E_STATE);
    }
    if (!causes && !fits(f, step)) causes = CAUSE(E_FULL);
    return causes;
}

static void draw_step(fuzz *f, shadow_step *step) {
    uint32_t kind = fuzz_take(f, 64), wanted = kind == 63 ? 0 : 1 + kind % MAX_STEP;
    step->reserved = kind == 62;
    step->plan = fuzz_take(f, MAX_PLANS);
    step->exact = kind & 8;
    for (uint32_t i = 0; i < wanted; i++) {
        uint32_t rows = fuzz_take(f, 64);
        step->of[i] = fuzz_sequence(f);
        step->rows[i] = rows == 63 ? 0 : step->exact || rows > 56 ? 1 + rows % MAX_ROWS : 1;
        if (step->n_rows + step->rows[i] > MAX_ROWS) break; /* that many rows the buffers hold */
        step->n_rows += step->rows[i];
        step->n++;
    }
}

void fuzz_begin(fuzz *f) {
    static shadow_step step;
    tamis_sequence ids[MAX_STEP];
    uint32_t maybe;
    memset(&step, 0, sizeof step);
    draw_step(f, &step);
    for (uint32_t i = 0; i < step.n; i++)
        ids[i] = step.of[i]->id;
    const tamis_step in = {.sequences = ids,
                           .rows = step.rows,
                           .count = step.n,
                           .exact = step.exact,
                           .reserved = {step.reserved}};
    uint32_t causes = begin_causes(f, &step, &maybe);
    tamis_plan *plan = f->plans[step.plan].plan;
    tamis_step_pages told = {0};
    tamis_cache_stats was, is;
    tamis_cache_get_stats(f->cache, &was);
    const tamis_status asked = tamis_plan_step_pages(plan, &in, &told, &test_error);
    if (!EXPECT(tamis_plan_step_begin(plan, &in, &test_error), causes, maybe)) return;
    tamis_cache_get_stats(f->cache, &is);
    assert_int_equal(asked, TAMIS_OK);
    assert_true(told.missing == 0 && told.needed == is.pages_held - was.pages_held);
    f->step = step;
    f->step.open = true;
    for (uint32_t i = 0; i < step.n_rows; i++)
        f->step.tokens[i] = f->next_token++;
}

/* ---- Layers ---------------------------------------------------------------------------------- */

/* A layer's call is right in most variants; from WRONG on each breaks a rule of its own. */
enum { VARIANTS = 64, WRONG = 58, WRONG_PLAN = 63 };

/* The plan of the open step; now and then, or without one, another. */
static uint32_t plan_for(const fuzz *f, uint32_t variant, uint32_t *causes) {
    if (variant == WRONG_PLAN) *causes |= CAUSE(E_STATE);
    if (!f->step.open) *causes |= CAUSE(E_STATE);
    return variant == WRONG_PLAN ? (f->step.plan + 1) % MAX_PLANS : f->step.plan;
}

static void upload(fuzz *f, tamis_buffer *buffer, uint32_t layer, uint32_t which) {
    static float rows[MAX_ROWS * MAX_HEADS * MAX_DIM];
    float *to = rows;
    for (uint32_t row = 0; row < f->step.n_rows; row++)
        for (uint32_t h = 0; h < f->shape.n_kv_heads; h++)
            for (uint32_t d = 0; d < f->shape.head_dim; d++)
                *to++ = test_value(f->step.tokens[row], layer * f->shape.n_kv_heads + h, which, d);
    OK(tamis_buffer_write(buffer, 0, rows, (uint64_t)(to - rows) * sizeof *rows, NULL));
}

void fuzz_write(fuzz *f, uint32_t layer) {
    uint32_t variant = fuzz_take(f, VARIANTS), causes = 0, plan = plan_for(f, variant, &causes);
    const bool known = layer < f->shape.n_layers;
    tamis_rows k = {.buffer = f->k}, v = {.buffer = f->v};
    if (!known || (variant >= WRONG && variant < WRONG_PLAN)) causes |= CAUSE(E_ARGUMENT);
    if (known && f->step.written[layer]) causes |= CAUSE(E_STATE);
    if (variant == WRONG) k.offset = 4;
    if (variant == WRONG + 1) v.row_stride = 63;
    if (variant == WRONG + 2) k.offset = tamis_buffer_bytes(f->k);
    if (variant == WRONG + 3) k.dtype = (tamis_dtype)3;
    if (variant == WRONG + 4) v.buffer = NULL;
    if (f->step.open && known) upload(f, f->k, layer, 0);
    if (f->step.open && known) upload(f, f->v, layer, 1);
    if (EXPECT(tamis_plan_write(f->plans[plan].plan, layer, &k, &v, &test_error), causes, 0))
        f->step.written[layer] = true;
}

static void note_lists(fuzz *f, uint32_t layer) {
    shadow_step *step = &f->step;
    for (uint32_t row = 0; row < step->n_rows; row++)
        for (uint32_t h = 0; h < f->shape.n_kv_heads; h++) {
            OK(tamis_plan_read_selected(f->plans[step->plan].plan, row, h,
                                        step->pages[layer][row][h], MAX_PAGES,
                                        &step->count[layer][row][h], &test_error));
            assert_true(step->count[layer][row][h] <= MAX_PAGES);
        }
}

void fuzz_attend(fuzz *f, uint32_t layer) {
    shadow_step *step = &f->step;
    uint32_t variant = fuzz_take(f, VARIANTS), causes = 0, plan = plan_for(f, variant, &causes);
    const bool known = layer < f->shape.n_layers;
    const uint32_t width = f->shape.n_heads * f->shape.head_dim, n = step->n_rows * width;
    tamis_rows q = {.buffer = f->q}, out = {.buffer = f->out};
    if (!known || variant == WRONG || variant == WRONG + 1) causes |= CAUSE(E_ARGUMENT);
    if (known && step->open && !step->written[layer]) causes |= CAUSE(E_STATE);
    if (known && step->attended[layer] &&
        f->plans[step->plan].params.eviction.kind == TAMIS_EVICT_H2O)
        causes |= CAUSE(E_STATE);
    if (variant == WRONG) out.buffer = f->q;
    if (variant == WRONG + 1) q.dtype = TAMIS_F16;
    float *values = step->q[known ? layer : 0];
    if (!causes) {
        for (uint32_t i = 0; i < n; i++)
            values[i] = shadow_value(step->tokens[i / width], layer, i % width);
        OK(tamis_buffer_write(f->q, 0, values, n * sizeof *values, NULL));
    }
    if (!EXPECT(tamis_plan_attend(f->plans[plan].plan, layer, &q, &out, &test_error), causes, 0))
        return;
    OK(tamis_buffer_read(f->out, 0, step->out[layer], n * sizeof(float), NULL));
    note_lists(f, layer);
    step->attended[layer] = true;
}

/* ---- End ------------------------------------------------------------------------------------- */

/* A decode row at the cap has taken one token's place; after a step that was given up, the place
 * that its row took there. */
static void check_replaced(const shadow_sequence *s, const shadow_lane *old, const int32_t *now,
                           const tamis_eviction *e) {
    const int32_t newest = (int32_t)s->length;
    int32_t victim = -1, oldest = INT32_MAX;
    uint32_t changed = 0;
    bool again = false;
    for (uint32_t i = 0; i < old->length; i++) {
        int32_t position = old->positions[i];
        again |= position == newest;
        if (position >= (int32_t)e->sinks && position < oldest) oldest = position;
        if (position == now[i]) continue;
        changed++;
        victim = position;
        assert_int_equal(now[i], newest);
    }
    assert_int_equal(changed, again ? 0 : 1);
    if (again) return;
    assert_true(victim >= (int32_t)e->sinks);
    if (e->kind == TAMIS_EVICT_STREAMING) assert_int_equal(victim, oldest);
}

/* The lanes of a sequence after the step, kept or given up, in which it brought rows of `tokens`. Whether
 * one of them lost a token. */
static bool adopt(fuzz *f, shadow_sequence *s, const uint64_t *tokens, uint32_t rows, bool kept) {
    static int32_t positions[MAX_CONTEXT];
    const tamis_plan_params *p = &f->plans[f->step.plan].params;
    const uint32_t cap = cap_of(p, f->step.exact);
    bool lost = false;
    for (uint32_t l = 0; l < f->n_lanes; l++) {
        shadow_lane *lane = &s->lanes[l];
        if (!stays(lane, rows, cap)) {
            if (kept) shadow_append(lane, s->length, rows);
            continue;
        }
        if (!f->step.written[l / f->shape.n_kv_heads]) continue;
        shadow_positions(f, s, l, positions);
        check_replaced(s, lane, positions, &p->eviction);
        memcpy(lane->positions, positions, lane->length * sizeof *positions);
        lane->given_up = tokens[0];
        lost = true;
    }
    return lost;
}

static void close_step(fuzz *f, bool kept) {
    shadow_step *step = &f->step;
    step->open = false;
    for (uint32_t i = 0, row = 0; i < step->n; row += step->rows[i++]) {
        shadow_sequence *s = step->of[i];
        const bool lost = adopt(f, s, step->tokens + row, step->rows[i], kept);
        if (kept)
            memcpy(s->tokens + s->length, step->tokens + row, step->rows[i] * sizeof *s->tokens);
        if (kept) s->length += step->rows[i];
        if (lost) s->evicted_at = s->length;
        s->unordered |= lost;
        s->given_up = kept ? false : s->given_up || lost;
    }
}

void shadow_give_up(fuzz *f) {
    close_step(f, false);
    f->step = (shadow_step){0};
}

void fuzz_end(fuzz *f) {
    uint32_t causes = 0, plan = plan_for(f, fuzz_take(f, VARIANTS), &causes);
    for (uint32_t layer = 0; layer < f->shape.n_layers; layer++)
        if (!f->step.written[layer]) causes |= CAUSE(E_STATE);
    if (!EXPECT(tamis_plan_step_end(f->plans[plan].plan, &test_error), causes, 0)) return;
    close_step(f, true);
    shadow_check_attention(f);
    f->step = (shadow_step){0};
}

void fuzz_cancel(fuzz *f) {
    uint32_t causes = 0, plan = plan_for(f, fuzz_take(f, VARIANTS), &causes);
    if (EXPECT(tamis_plan_step_cancel(f->plans[plan].plan, &test_error), causes, 0))
        shadow_give_up(f);
}

/* ---- What the layers gave -------------------------------------------------------------------- */

/* A lane as a row of the step sees it. */
typedef struct sight {
    const shadow_sequence *s;
    uint32_t layer, head, row, visible;
    int32_t position; /* of the row */
    bool listed;      /* through a selection */
    const float *k, *v;
} sight;

static const shadow_lane *lane_of(const fuzz *f, const sight *at) {
    return &at->s->lanes[at->layer * f->shape.n_kv_heads + at->head];
}

/* The pages before the row's window, which are not read. */
static uint32_t pages_before(const fuzz *f, const sight *at, uint32_t window) {
    const int32_t *positions = lane_of(f, at)->positions;
    uint32_t first = 0;
    while (window && first < at->visible &&
           positions[first] <= at->position - (int64_t)window)
        first++;
    return first / f->shape.page_size;
}

/* Pages ascend, lie in the lane, and the one with the row's own token is among them; they are those
 * that the selection takes, where it can be told without the lane's history. */
static void check_pages(const fuzz *f, const sight *at, const oracle_rule *rule, uint32_t window,
                        const float *q) {
    const uint32_t n = shadow_pages(f, at->visible), size = f->shape.page_size;
    const uint32_t count = f->step.count[at->layer][at->row][at->head];
    const uint32_t *pages = f->step.pages[at->layer][at->row][at->head];
    const uint32_t most = at->listed ? rule->selection.budget / size : n;
    const uint32_t seen = n - pages_before(f, at, window);
    assert_int_equal(count, seen < most ? seen : most);
    bool own = false;
    for (uint32_t i = 0; i < count; i++) {
        assert_true(pages[i] < n && (i == 0 || pages[i] > pages[i - 1]));
        for (uint32_t slot = pages[i] * size; slot < (pages[i] + 1) * size; slot++)
            own |= slot < at->visible && lane_of(f, at)->positions[slot] == at->position;
    }
    assert_true(own);
    bool plain = at->s->evicted_at == 0 && (rule->selection.kind != TAMIS_SELECT_QUEST ||
                                            f->bounds.kind == TAMIS_BOUNDS_MINMAX);
    if (!at->listed || !plain || window) return; /* the oracle selects from all pages */
    signed char chosen[MAX_PAGES];
    const oracle_lane lane = {at->k, at->v, at->layer, at->head};
    assert_int_equal(count, oracle_select(rule, &lane, at->visible, q, chosen));
    for (uint32_t i = 0, next = 0; i < n; i++) {
        bool read = next < count && pages[next] == i;
        next += read;
        assert_true(chosen[i] < 0 || read == (chosen[i] == 1));
    }
}

/* Gathers what the row reads: slots of the listed pages, within the window of its plan. */
static uint32_t gather(const fuzz *f, const sight *at, uint32_t window, float *k, float *v) {
    const shadow_lane *lane = lane_of(f, at);
    const uint32_t dim = f->shape.head_dim, size = f->shape.page_size;
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->step.count[at->layer][at->row][at->head]; i++) {
        uint32_t first = f->step.pages[at->layer][at->row][at->head][i] * size;
        for (uint32_t slot = first; slot < first + size && slot < at->visible; slot++) {
            if (window && lane->positions[slot] <= at->position - (int32_t)window) continue;
            memcpy(k + (size_t)n * dim, at->k + (size_t)slot * dim, dim * sizeof *k);
            memcpy(v + (size_t)n++ * dim, at->v + (size_t)slot * dim, dim * sizeof *v);
        }
    }
    return n;
}

static void check_row(const fuzz *f, const sight *at, oracle_rule *rule, uint32_t window) {
    static float k[MAX_CONTEXT * MAX_DIM], v[MAX_CONTEXT * MAX_DIM];
    uint32_t all[MAX_PAGES];
    const uint32_t first = (at->row * f->shape.n_heads + at->head * f->group) * f->shape.head_dim;
    const float *q = f->step.q[at->layer] + first, *out = f->step.out[at->layer] + first;
    check_pages(f, at, rule, window, q);
    for (uint32_t i = 0; i < MAX_PAGES; i++)
        all[i] = i;
    uint32_t n = gather(f, at, window, k, v);
    const oracle_lane lane = {k, v, at->layer, at->head};
    for (uint32_t g = 0; g < f->group; g++, q += f->shape.head_dim, out += f->shape.head_dim)
        if (!oracle_attends(rule, &lane, n, all, shadow_pages(f, n), q, out))
            fail_msg("layer %u, row %u, query head %u, position %d", at->layer, at->row,
                     at->head * f->group + g, at->position);
}

/* The K and V of a lane's slots, as they were written. */
static void fill_lane(const fuzz *f, const shadow_sequence *s, uint32_t lane, float *k, float *v) {
    for (uint32_t slot = 0; slot < s->lanes[lane].length; slot++)
        for (uint32_t d = 0; d < f->shape.head_dim; d++) {
            uint64_t token = s->tokens[s->lanes[lane].positions[slot]];
            *k++ = test_value(token, lane, 0, d);
            *v++ = test_value(token, lane, 1, d);
        }
}

/* The first and the last row of a sequence in one of its lanes. */
static void check_lane(const fuzz *f, const shadow_sequence *s, uint32_t first, uint32_t rows,
                       uint32_t lane) {
    static float k[MAX_CONTEXT * MAX_DIM], v[MAX_CONTEXT * MAX_DIM];
    const tamis_plan_params *p = &f->plans[f->step.plan].params;
    const uint32_t layer = lane / f->shape.n_kv_heads;
    oracle_rule rule = {.head_dim = f->shape.head_dim,
                        .page_size = f->shape.page_size,
                        .group = f->group,
                        .selection = p->selection,
                        .q8_bounds = tms_cache_bounds_dtype(&f->shape) == TAMIS_Q8,
                        .scale = 1 / sqrt(f->shape.head_dim),
                        .soft_cap = (double)p->attention.soft_cap};
    fill_lane(f, s, lane, k, v);
    for (uint32_t j = 0; j<rows; j += rows> 1 ? rows - 1 : 1) {
        const uint32_t behind = rows - 1 - j;
        const sight at = {.s = s,
                          .layer = layer,
                          .head = lane % f->shape.n_kv_heads,
                          .row = first + j,
                          .visible = s->lanes[lane].length - behind,
                          .position = (int32_t)(s->length - 1 - behind),
                          .listed =
                              is_listed(p) && !f->step.exact && layer >= p->selection.dense_layers,
                          .k = k,
                          .v = v};
        check_row(f, &at, &rule, p->attention.sliding_window);
    }
}

void shadow_check_attention(fuzz *f) {
    const shadow_step *step = &f->step;
    /* Queries that are turned are not what the oracle knows. */
    if (f->plans[step->plan].params.eviction.options & TAMIS_EVICT_REINDEX &&
        f->plans[step->plan].params.eviction.kind == TAMIS_EVICT_STREAMING)
        return;
    for (uint32_t i = 0, row = 0; i < step->n; row += step->rows[i++])
        for (uint32_t lane = 0; lane < f->n_lanes; lane++)
            if (step->attended[lane / f->shape.n_kv_heads])
                check_lane(f, step->of[i], row, step->rows[i], lane);
}
