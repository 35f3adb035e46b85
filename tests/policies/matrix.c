/* SPDX-License-Identifier: Apache-2.0 */
/* Every eviction under every selection with every dtype, as far as the library makes such a plan:
 * two prompts, one of which is evicted from, then decode steps. Outputs are attention over what
 * lanes hold and lists name, in fp64; what lanes keep and lists name is what the reference keeps
 * and names. */
#include "host/base/dtype.h"
#include "tests/policies/oracle.h"
#include "tests/rotation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS    2u
#define HEADS     4u
#define KV_HEADS  2u
#define DIM       64u
#define PAGE_SIZE 8u
#define LANES     (LAYERS * KV_HEADS)
#define SEQUENCES 2u
#define CHUNK     32u /* rows of a prompt's step */
#define CONTEXT   64u
/* Of the eviction. With a decode row more lanes that grow end with a full page; the second prompt is
 * shorter. */
#define BUDGET    31u
#define WINDOW    8u
#define STEPS     2u
#define PAGES     (CONTEXT / PAGE_SIZE)
#define WIDTH     (HEADS * DIM) /* of a query row */
#define PROJECTED 32u           /* rows of the output projection */

/* The first decode row of a prompt that is not evicted from fills a page. */
static const uint32_t prompts[SEQUENCES] = {55, 12};

typedef struct cell {
    tamis_eviction eviction;
    tamis_selection selection;
    tamis_dtype dtype;
} cell;

/* What decode rows saw in one layer: lists of pages, and the outputs. */
typedef struct reading {
    uint32_t count[KV_HEADS], pages[KV_HEADS][PAGES];
    float q[WIDTH], out[WIDTH];
} reading;

/* What a lane holds after a step. */
typedef struct holding {
    uint32_t length;
    int32_t positions[CONTEXT];
} holding;

/* A cell as it was played on one device. */
typedef struct played {
    bool refused;
    char reason[sizeof((tamis_error *)0)->text];
    holding evicted[SEQUENCES][LANES];
    holding held[STEPS][SEQUENCES][LANES];
    reading readings[STEPS][SEQUENCES][LAYERS];
    uint64_t returned, replaced;
} played;

/* A device with rows to bring there, which all cells share. */
typedef struct side {
    tamis_context *context;
    tamis_buffer *k, *v, *q, *out, *w;
    tamis_cache *cache;
    tamis_plan *plan;
    tamis_sequence sequences[SEQUENCES];
    uint64_t random;
} side;

static float noise(uint64_t *state) {
    return (float)((double)(test_random(state) >> 11) / (1ull << 51) - 2);
}

/* ---- A device -------------------------------------------------------------------------------- */

static void open_side(side *s, const char *device) {
    const tamis_context_params params = {.device = device};
    const uint64_t bytes = (uint64_t)CHUNK * WIDTH * sizeof(float);
    float *w = malloc(PROJECTED * WIDTH * sizeof *w);
    uint64_t state = 5;
    *s = (side){0};
    assert_non_null(w);
    OK(tamis_context_create(&params, &s->context, &test_error));
    tamis_buffer **buffers[] = {&s->k, &s->v, &s->q, &s->out};
    for (size_t i = 0; i < 4; i++)
        OK(tamis_buffer_create(s->context, bytes, buffers[i], &test_error));
    for (uint32_t i = 0; i < PROJECTED * WIDTH; i++)
        w[i] = noise(&state);
    OK(tamis_buffer_create(s->context, PROJECTED * WIDTH * sizeof *w, &s->w, &test_error));
    OK(tamis_buffer_write(s->w, 0, w, PROJECTED * WIDTH * sizeof *w, NULL));
    free(w);
}

static void close_side(side *s) {
    tamis_buffer **buffers[] = {&s->k, &s->v, &s->q, &s->out, &s->w};
    for (size_t i = 0; i < 5; i++)
        tamis_buffer_destroy(buffers[i]);
    tamis_context_destroy(&s->context);
}

static bool needs_output(tamis_eviction_kind kind) {
    return kind == TAMIS_EVICT_CRITICALKV || kind == TAMIS_EVICT_CRITICAL_ADAKV ||
           kind == TAMIS_EVICT_DEFENSIVEKV;
}

static void bind(side *s, const tamis_eviction *eviction) {
    const tamis_rows w = {.buffer = s->w};
    double frequencies[DIM / 2];
    for (uint32_t layer = 0; layer < LAYERS && needs_output(eviction->kind); layer++)
        OK(tamis_plan_bind_output(s->plan, layer, &w, PROJECTED, &test_error));
    for (uint32_t i = 0; i < DIM / 2; i++)
        frequencies[i] = pow(1e4, -2.0 * i / DIM);
    if (eviction->options & TAMIS_EVICT_REINDEX)
        OK(test_bind_rotation(s->context, s->plan, frequencies, DIM, TAMIS_PAIR_HALF, &test_error));
}

/* The cell's cache and plan, with empty sequences; false: the library refuses the plan. */
static bool begin(side *s, const cell *c, played *out) {
    const tamis_cache_params shape = {.n_layers = LAYERS,
                                      .n_heads = HEADS,
                                      .n_kv_heads = KV_HEADS,
                                      .head_dim = DIM,
                                      .page_size = PAGE_SIZE,
                                      .dtype = c->dtype,
                                      .planes = tamis_eviction_planes(&c->eviction),
                                      .capacity_tokens = SEQUENCES * CONTEXT};
    const tamis_plan_params params = {.selection = c->selection,
                                      .eviction = c->eviction,
                                      .max_sequences = SEQUENCES,
                                      .max_rows = CHUNK,
                                      .max_context = CONTEXT};
    OK(tamis_cache_create(s->context, &shape, &s->cache, &test_error));
    test_error = (tamis_error){0};
    tamis_status status = tamis_plan_create(s->cache, &params, &s->plan, &test_error);
    out->refused = status == TAMIS_E_ARGUMENT || status == TAMIS_E_UNSUPPORTED;
    memcpy(out->reason, test_error.text, sizeof out->reason);
    if (out->refused) return false;
    OK(status);
    bind(s, &c->eviction);
    s->random = 11;
    for (uint32_t i = 0; i < SEQUENCES; i++)
        OK(tamis_cache_add(s->cache, &s->sequences[i], &test_error));
    return true;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* Tokens are numbered by sequence and position: no two have the same rows. */
static uint64_t token_of(uint32_t sequence, uint32_t position) {
    return (uint64_t)sequence * CONTEXT + position + 1;
}

/* Rows of K or V of one layer: of each sequence `count[i]` positions from `first[i]` on. */
static void send(side *s, uint32_t layer, uint32_t which, const uint32_t *who,
                 const uint32_t *first, const uint32_t *count, uint32_t n) {
    float host[CHUNK * KV_HEADS * DIM], *to = host;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t p = first[i]; p < first[i] + count[i]; p++)
            for (uint32_t h = 0; h < KV_HEADS; h++)
                for (uint32_t d = 0; d < DIM; d++)
                    *to++ = test_value(token_of(who[i], p), layer * KV_HEADS + h, which, d);
    OK(tamis_buffer_write(which ? s->v : s->k, 0, host, (size_t)(to - host) * sizeof *host, NULL));
}

/* Lists of selection caller: two pages, and one that no lane has. */
#define LISTED 3
static const tamis_caller_lists *lists_of(const side *s) {
    static int32_t entries[SEQUENCES * KV_HEADS][LISTED], count[SEQUENCES * KV_HEADS];
    static const tamis_caller_lists lists = {
        .host_entries = entries[0], .host_count = count, .capacity = LISTED};
    tamis_plan_params p;
    for (uint32_t i = 0; i < SEQUENCES * KV_HEADS; i++) {
        memcpy(entries[i], (const int32_t[]){0, 1, PAGES}, sizeof entries[i]);
        count[i] = LISTED;
    }
    tamis_plan_get_params(s->plan, &p);
    return p.selection.kind == TAMIS_SELECT_CALLER ? &lists : NULL;
}

/* Writes and attends a layer of the open step, with random queries; q and out stay on the host. */
static void run_layer(side *s, uint32_t layer, uint32_t n_rows, float *q, float *out) {
    const tamis_rows k = {.buffer = s->k}, v = {.buffer = s->v};
    const tamis_plan_attend_params p = {
        .q.buffer = s->q, .out.buffer = s->out, .lists = lists_of(s)};
    const uint64_t bytes = (uint64_t)n_rows * WIDTH * sizeof *q;
    for (uint32_t i = 0; i < n_rows * WIDTH; i++)
        q[i] = noise(&s->random);
    OK(tamis_plan_write(s->plan, layer, &k, &v, &test_error));
    OK(tamis_buffer_write(s->q, 0, q, bytes, NULL));
    OK(tamis_plan_attend_with(s->plan, layer, &p, &test_error));
    OK(tamis_buffer_read(s->out, 0, out, bytes, NULL));
}

static void prefill(side *s, uint32_t who) {
    static float q[CHUNK * WIDTH], out[CHUNK * WIDTH];
    for (uint32_t first = 0; first < prompts[who]; first += CHUNK) {
        uint32_t left = prompts[who] - first, rows = left < CHUNK ? left : CHUNK;
        const tamis_step step = {
            .sequences = &s->sequences[who], .rows = &rows, .count = 1, .exact = 1};
        OK(tamis_plan_step_begin(s->plan, &step, &test_error));
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            send(s, layer, 0, &who, &first, &rows, 1);
            send(s, layer, 1, &who, &first, &rows, 1);
            run_layer(s, layer, rows, q, out);
        }
        OK(tamis_plan_step_end(s->plan, &test_error));
    }
}

/* The caller's scores follow from the lane and the slot. */
static void evict_by_scores(side *s, uint32_t who, tamis_evicted *evicted) {
    static float scores[LANES][CONTEXT];
    uint64_t state = 17;
    for (uint32_t lane = 0; lane < LANES; lane++)
        for (uint32_t i = 0; i < CONTEXT; i++)
            scores[lane][i] = noise(&state);
    OK(tamis_plan_evict_by_scores(s->plan, s->sequences[who], scores[0], CONTEXT, evicted,
                                  &test_error));
}

/* At the prompt's end; nothing to do for kind none. */
static void evict(side *s, const cell *c, uint32_t who, played *out) {
    tamis_evicted evicted = {0};
    if (c->eviction.kind == TAMIS_EVICT_CALLER)
        evict_by_scores(s, who, &evicted);
    else if (c->eviction.kind != TAMIS_EVICT_NONE)
        OK(tamis_plan_evict(s->plan, s->sequences[who], &evicted, &test_error));
    out->returned += evicted.pages_returned;
}

static void read_holdings(side *s, holding held[SEQUENCES][LANES]) {
    for (uint32_t i = 0; i < SEQUENCES; i++)
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const uint32_t layer = lane / KV_HEADS, head = lane % KV_HEADS;
            holding *h = &held[i][lane];
            OK(tamis_cache_lane_length(s->cache, s->sequences[i], layer, head, &h->length,
                                       &test_error));
            assert_true(h->length > 0 && h->length <= CONTEXT);
            OK(tamis_cache_read_positions(s->cache, s->sequences[i], layer, head, 0, h->length,
                                          h->positions, &test_error));
        }
}

/* One token for each sequence, read through the selection. */
static void decode(side *s, uint32_t number, played *out) {
    const uint32_t who[] = {0, 1}, rows[] = {1, 1};
    const uint32_t first[] = {prompts[0] + number, prompts[1] + number};
    const tamis_step step = {.sequences = s->sequences, .count = SEQUENCES};
    float q[SEQUENCES * WIDTH], to[SEQUENCES * WIDTH];
    OK(tamis_plan_step_begin(s->plan, &step, &test_error));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        send(s, layer, 0, who, first, rows, SEQUENCES);
        send(s, layer, 1, who, first, rows, SEQUENCES);
        run_layer(s, layer, SEQUENCES, q, to);
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            reading *r = &out->readings[number][i][layer];
            memcpy(r->q, q + i * WIDTH, sizeof r->q);
            memcpy(r->out, to + i * WIDTH, sizeof r->out);
            for (uint32_t h = 0; h < KV_HEADS; h++) {
                OK(tamis_plan_read_selected(s->plan, i, h, r->pages[h], PAGES, &r->count[h],
                                            &test_error));
                assert_true(r->count[h] > 0 && r->count[h] <= PAGES);
            }
        }
    }
    OK(tamis_plan_step_end(s->plan, &test_error));
    read_holdings(s, out->held[number]);
}

static void play(side *s, const cell *c, played *out) {
    tamis_plan_counters counters;
    memset(out, 0, sizeof *out);
    if (begin(s, c, out)) {
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            prefill(s, i);
            evict(s, c, i, out);
        }
        read_holdings(s, out->evicted);
        for (uint32_t i = 0; i < STEPS; i++)
            decode(s, i, out);
        tamis_plan_get_counters(s->plan, &counters);
        out->replaced = counters.tokens_replaced;
    }
    tamis_plan_destroy(&s->plan);
    tamis_cache_destroy(&s->cache);
}

/* ---- What must hold -------------------------------------------------------------------------- */

/* The rows that a lane held at a step, slot by slot. */
static void fill_lane(tamis_dtype dtype, const holding *h, uint32_t who, uint32_t lane, float *k,
                      float *v) {
    for (uint32_t i = 0; i < h->length; i++) {
        const uint64_t token = token_of(who, (uint32_t)h->positions[i]);
        for (uint32_t d = 0; d < DIM; d++) {
            k[i * DIM + d] = test_value(token, lane, 0, d);
            v[i * DIM + d] = test_value(token, lane, 1, d);
        }
        oracle_hold(dtype, false, k + i * DIM, DIM);
        oracle_hold(dtype, true, v + i * DIM, DIM);
    }
}

/* Outputs are attention over the slots of the pages that were read. */
static void check_outputs(const cell *c, const played *p) {
    static float k[CONTEXT * DIM], v[CONTEXT * DIM];
    const oracle_rule rule = {.head_dim = DIM,
                              .page_size = PAGE_SIZE,
                              .group = HEADS / KV_HEADS,
                              .selection = c->selection,
                              .scale = 1 / sqrt(DIM)};
    for (uint32_t step = 0; step < STEPS; step++)
        for (uint32_t i = 0; i < SEQUENCES; i++)
            for (uint32_t lane = 0; lane < LANES; lane++) {
                const holding *h = &p->held[step][i][lane];
                const reading *r = &p->readings[step][i][lane / KV_HEADS];
                const oracle_lane rows = {k, v, lane / KV_HEADS, lane % KV_HEADS};
                const uint32_t head = lane % KV_HEADS * rule.group;
                fill_lane(c->dtype, h, i, lane, k, v);
                for (uint32_t g = head; g < head + rule.group; g++)
                    if (!oracle_attends(&rule, &rows, h->length, r->pages[rows.kv_head],
                                        r->count[rows.kv_head], r->q + g * DIM, r->out + g * DIM))
                        fail_msg("step %u, sequence %u, lane %u, query head %u", step, i, lane, g);
            }
}

/* Every list has the page that holds the row's own token. */
static void check_own_pages(const played *p) {
    for (uint32_t step = 0; step < STEPS; step++)
        for (uint32_t i = 0; i < SEQUENCES; i++)
            for (uint32_t lane = 0; lane < LANES; lane++) {
                const holding *h = &p->held[step][i][lane];
                const reading *r = &p->readings[step][i][lane / KV_HEADS];
                const uint32_t head = lane % KV_HEADS;
                bool read = false;
                for (uint32_t o = 0; o < r->count[head]; o++)
                    for (uint32_t s = r->pages[head][o] * PAGE_SIZE;
                         s < (r->pages[head][o] + 1) * PAGE_SIZE && s < h->length; s++)
                        read |= (uint32_t)h->positions[s] == prompts[i] + step;
                if (!read) fail_msg("step %u, sequence %u, lane %u: own page", step, i, lane);
            }
}

/* The first prompt was evicted from and fits its budgets, the second was not. */
static void check_lengths(const cell *c, const played *p) {
    const bool evicts = c->eviction.kind != TAMIS_EVICT_NONE;
    const bool in_place = c->eviction.every == 1;
    uint32_t kept = 0;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        kept += p->evicted[0][lane].length;
        assert_int_equal(p->evicted[1][lane].length, prompts[1]);
        assert_int_equal(p->held[STEPS - 1][1][lane].length, prompts[1] + STEPS);
        assert_int_equal(p->held[STEPS - 1][0][lane].length,
                         p->evicted[0][lane].length + (in_place ? 0 : STEPS));
    }
    const uint32_t most = (evicts ? BUDGET : prompts[0]) * LANES;
    assert_true(kept <= most && kept + LANES * c->eviction.chunk >= most);
    assert_true(evicts == (p->returned > 0));
    assert_int_equal(p->replaced, in_place ? STEPS * LANES : 0);
}

static void check_same(const played *p, const played *wanted) {
    const double near = 1e-4; /* values up to 2, logits up to about 20 */
    assert_memory_equal(p->evicted, wanted->evicted, sizeof p->evicted);
    assert_memory_equal(p->held, wanted->held, sizeof p->held);
    for (uint32_t step = 0; step < STEPS; step++)
        for (uint32_t i = 0; i < SEQUENCES; i++)
            for (uint32_t layer = 0; layer < LAYERS; layer++) {
                const reading *a = &p->readings[step][i][layer];
                const reading *b = &wanted->readings[step][i][layer];
                assert_memory_equal(a->count, b->count, sizeof a->count);
                assert_memory_equal(a->pages, b->pages, sizeof a->pages);
                for (uint32_t d = 0; d < WIDTH; d++)
                    if (!(fabs((double)a->out[d] - (double)b->out[d]) <= near))
                        fail_msg("step %u, sequence %u, layer %u, channel %u: %.9g, reference %.9g",
                                 step, i, layer, d, (double)a->out[d], (double)b->out[d]);
            }
}

/* Whether the selection left pages out of what some lane of the first sequence held. */
static bool leaves_out(const played *p) {
    bool left = false;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const uint32_t pages = (p->held[0][0][lane].length + PAGE_SIZE - 1) / PAGE_SIZE;
        left |= p->readings[0][0][lane / KV_HEADS].count[lane % KV_HEADS] < pages;
    }
    return left;
}

/* ---- All of them ----------------------------------------------------------------------------- */

static tamis_selection selection_of(int kind) {
    tamis_selection selection;
    tamis_selection_default((tamis_selection_kind)kind, &selection);
    selection.budget = 3 * PAGE_SIZE;
    if (kind != TAMIS_SELECT_FULL && kind != TAMIS_SELECT_CALLER) selection.sinks = 4;
    selection.recent = 0;
    return selection;
}

static tamis_eviction eviction_of(int kind, uint32_t options) {
    tamis_eviction eviction;
    tamis_eviction_default((tamis_eviction_kind)kind, &eviction);
    if (kind == TAMIS_EVICT_NONE) return eviction;
    eviction.budget = BUDGET;
    eviction.options = options;
    if (eviction.window > 0) eviction.window = WINDOW;
    return eviction;
}

typedef struct tally {
    uint32_t played, refused;
} tally;

/* The cell on the device and, unless that is the device, on the reference. */
static void check_cell(side *s, side *reference, const cell *c, tally *sum) {
    static played mine, its;
    test_values_for(c->dtype);
    play(s, c, &mine);
    if (reference) play(reference, c, &its);
    if (mine.refused) {
        sum->refused++;
        if (reference) assert_true(its.refused && strcmp(mine.reason, its.reason) == 0);
        return;
    }
    sum->played++;
    check_lengths(c, &mine);
    if (c->selection.kind != TAMIS_SELECT_CALLER) check_own_pages(&mine);
    if (!(c->eviction.options & TAMIS_EVICT_REINDEX)) check_outputs(c, &mine);
    if (c->eviction.kind != TAMIS_EVICT_PYRAMIDKV) /* whose second layer holds few pages */
        assert_true(leaves_out(&mine) == (c->selection.kind != TAMIS_SELECT_FULL));
    if (reference) check_same(&mine, &its);
}

static void check_eviction(side *s, side *reference, const tamis_eviction *eviction, tally *sum) {
    for (int dtype = TAMIS_F32; dtype < (int)TMS_DTYPES; dtype++)
        for (int kind = TAMIS_SELECT_FULL; kind <= TAMIS_SELECT_CALLER; kind++) {
            const cell c = {*eviction, selection_of(kind), (tamis_dtype)dtype};
            print_message("%s, %s, %s\n", tamis_eviction_name(eviction->kind),
                          tamis_selection_name(c.selection.kind), tamis_dtype_name(c.dtype));
            check_cell(s, reference, &c, sum);
        }
}

static void test_all(void **state) {
    side s, reference;
    tally sum = {0};
    bool compared = strcmp(test_device, "reference") != 0;
    (void)state;
    open_side(&s, test_device);
    if (compared) open_side(&reference, "reference");
    const int kinds = test_evictions();
    for (int kind = TAMIS_EVICT_NONE; kind < kinds; kind++) {
        const tamis_eviction eviction = eviction_of(kind, 0);
        check_eviction(&s, compared ? &reference : NULL, &eviction, &sum);
    }
    const tamis_eviction reindexed = eviction_of(TAMIS_EVICT_STREAMING, TAMIS_EVICT_REINDEX);
    check_eviction(&s, compared ? &reference : NULL, &reindexed, &sum);
    /* Only reindexed sinks are refused, under all selections but full. */
    assert_int_equal(sum.refused, 5 * (int)TMS_DTYPES);
    assert_int_equal(sum.played, (kinds * 6 + 1) * (int)TMS_DTYPES);
    if (compared) close_side(&reference);
    close_side(&s);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all)};
    int skipped = test_begin(argc, argv);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
