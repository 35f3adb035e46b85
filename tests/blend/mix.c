/* SPDX-License-Identifier: Apache-2.0 */
/* Blends under every eviction and selection and in caches of every dtype: what comes out is a
 * sequence like any other. Beside each blend stands a sequence into which the same K and V were
 * written row by row and the same queries were attended. Both are evicted from, continued and
 * decoded: contents, positions and logits are the same, bit for bit. A request of a scheduler goes on
 * behind a blend as a runner does. */
#include "lib/blend/blend.h"
#include "tests/blend/blends.h"

#include <stdio.h>
#include <string.h>
#include <tamis/batch.h>

enum { DIM = 64, HEADS = 2, KV_HEADS = 2, STEPS = 5, MOST = BLEND_CONTEXT };
enum { BUDGET = 48, WINDOW = 8 };

/* What the last blend left before it was evicted from, and the queries of its layers, rotated. */
static struct spied {
    bool active;
    tamis_cache *cache;
    tamis_sequence sequence;
    float k[BLEND_LAYERS][BLEND_ROWS * KV_HEADS * DIM],
        v[BLEND_LAYERS][BLEND_ROWS * KV_HEADS * DIM];
    float q[BLEND_LAYERS][BLEND_ROWS * HEADS * DIM];
} spied;

tamis_status __real_tamis_plan_attend(tamis_plan *plan, uint32_t layer, const tamis_rows *q,
                                      const tamis_rows *out, tamis_error *error);
tamis_status __wrap_tamis_plan_attend(tamis_plan *plan, uint32_t layer, const tamis_rows *q,
                                      const tamis_rows *out, tamis_error *error);
tamis_status __wrap_tamis_plan_attend(tamis_plan *plan, uint32_t layer, const tamis_rows *q,
                                      const tamis_rows *out, tamis_error *error) {
    if (spied.active)
        assert_int_equal(tamis_buffer_read(q->buffer, q->offset, spied.q[layer],
                                           blends_last.counts[layer] * HEADS * DIM * sizeof(float),
                                           NULL),
                         TAMIS_OK);
    return __real_tamis_plan_attend(plan, layer, q, out, error);
}

/* One lane's rows into those of all KV heads. */
static void spread(float *to, const float *from, uint32_t head) {
    for (uint32_t row = 0; row < BLEND_ROWS; row++)
        memcpy(to + (row * KV_HEADS + head) * DIM, from + row * DIM, DIM * sizeof(float));
}

tamis_status __real_tms_blend_end(tamis_blend *blend, tamis_error *error);
tamis_status __wrap_tms_blend_end(tamis_blend *blend, tamis_error *error);
tamis_status __wrap_tms_blend_end(tamis_blend *blend, tamis_error *error) {
    static float k[BLEND_ROWS * DIM], v[BLEND_ROWS * DIM];
    const tamis_status status = __real_tms_blend_end(blend, error);
    if (!spied.active) return status;
    for (uint32_t lane = 0; status == TAMIS_OK && lane < BLEND_LAYERS * KV_HEADS; lane++) {
        const uint32_t layer = lane / KV_HEADS, head = lane % KV_HEADS;
        assert_int_equal(
            tamis_cache_read(spied.cache, spied.sequence, layer, head, 0, BLEND_ROWS, k, v, NULL),
            TAMIS_OK);
        spread(spied.k[layer], k, head);
        spread(spied.v[layer], v, head);
    }
    return status;
}

/* ---- The twin -------------------------------------------------------------------------------- */

/* Buffers of the twin's rows. */
typedef struct twin {
    tamis_buffer *k, *v, *q, *out;
} twin;

static void twin_open(blends *b, twin *t) {
    const uint64_t rows = BLEND_ROWS * DIM * sizeof(float);
    tamis_context *context = b->r.context;
    RIG_OK(&b->r, tamis_buffer_create(context, rows * KV_HEADS, &t->k, &b->r.error));
    RIG_OK(&b->r, tamis_buffer_create(context, rows * KV_HEADS, &t->v, &b->r.error));
    RIG_OK(&b->r, tamis_buffer_create(context, rows * HEADS, &t->q, &b->r.error));
    RIG_OK(&b->r, tamis_buffer_create(context, rows * HEADS, &t->out, &b->r.error));
}

static void twin_close(twin *t) {
    tamis_buffer_destroy(&t->k);
    tamis_buffer_destroy(&t->v);
    tamis_buffer_destroy(&t->q);
    tamis_buffer_destroy(&t->out);
}

static void write_layer(blends *b, twin *t, uint32_t layer) {
    const tamis_rows k = {.buffer = t->k}, v = {.buffer = t->v};
    RIG_OK(&b->r, tamis_buffer_write(t->k, 0, spied.k[layer], sizeof spied.k[layer], &b->r.error));
    RIG_OK(&b->r, tamis_buffer_write(t->v, 0, spied.v[layer], sizeof spied.v[layer], &b->r.error));
    RIG_OK(&b->r, tamis_plan_write(tamis_runner_plan(b->r.runner), layer, &k, &v, &b->r.error));
}

static void attend_layer(blends *b, twin *t, uint32_t layer) {
    const tamis_rows q = {.buffer = t->q}, out = {.buffer = t->out};
    tamis_plan *plan = tamis_runner_plan(b->r.runner);
    const uint32_t n = blends_last.counts[layer];
    const uint64_t bytes = n * HEADS * DIM * sizeof(float);
    if (n < (layer ? blends_last.counts[layer - 1] : BLEND_ROWS))
        RIG_OK(&b->r, tamis_plan_step_keep_rows(plan, blends_last.rows[layer], n, &b->r.error));
    RIG_OK(&b->r, tamis_buffer_write(t->q, 0, spied.q[layer], bytes, &b->r.error));
    RIG_OK(&b->r, tamis_plan_attend(plan, layer, &q, &out, &b->r.error));
}

/* A sequence that holds what the blend left, by a step of writes alone. */
static tamis_sequence make_twin(blends *b, twin *t) {
    const tamis_sequence sequence = rig_add(&b->r);
    const uint32_t rows = BLEND_ROWS;
    const tamis_step step = {.sequences = &sequence, .rows = &rows, .count = 1, .exact = 1};
    tamis_plan *plan = tamis_runner_plan(b->r.runner);
    RIG_OK(&b->r, tamis_plan_step_begin(plan, &step, &b->r.error));
    for (uint32_t layer = 0; layer < BLEND_LAYERS; layer++)
        write_layer(b, t, layer);
    for (uint32_t layer = 0; layer < BLEND_LAYERS; layer++)
        attend_layer(b, t, layer);
    RIG_OK(&b->r, tamis_plan_step_end(plan, &b->r.error));
    return sequence;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

static void expect_same(blends *b, const char *what, tamis_sequence x, tamis_sequence y) {
    static float k[2][MOST * DIM], v[2][MOST * DIM];
    static int32_t positions[2][MOST];
    const tamis_sequence of[] = {x, y};
    assert_int_equal(rig_length(&b->r, x), rig_length(&b->r, y));
    for (uint32_t lane = 0; lane < BLEND_LAYERS * KV_HEADS; lane++) {
        const uint32_t layer = lane / KV_HEADS, head = lane % KV_HEADS;
        uint32_t n[2];
        for (int i = 0; i < 2; i++) {
            RIG_OK(&b->r,
                   tamis_cache_lane_length(b->r.cache, of[i], layer, head, &n[i], &b->r.error));
            RIG_OK(&b->r, tamis_cache_read(b->r.cache, of[i], layer, head, 0, n[i], k[i], v[i],
                                           &b->r.error));
            RIG_OK(&b->r, tamis_cache_read_positions(b->r.cache, of[i], layer, head, 0, n[i],
                                                     positions[i], &b->r.error));
        }
        if (n[0] != n[1] || memcmp(positions[0], positions[1], n[0] * sizeof(int32_t)) != 0 ||
            memcmp(k[0], k[1], n[0] * DIM * sizeof(float)) != 0 ||
            memcmp(v[0], v[1], n[0] * DIM * sizeof(float)) != 0)
            fail_msg("%s: layer %u, head %u", what, layer, head);
    }
}

/* Both read a few more tokens as a prompt, then decode. */
static void go_on(blends *b, const char *what, tamis_sequence x, tamis_sequence y) {
    static const int32_t more[] = {5, 40, 12};
    float logits[2][BLEND_VOCABULARY];
    const tamis_sequence of[] = {x, y};
    for (int step = -1; step < STEPS; step++) {
        for (int i = 0; i < 2; i++) {
            const int32_t token = 3 + 7 * step % 40;
            if (step < 0)
                RIG_OK(&b->r, tamis_runner_prefill(b->r.runner, of[i], more, 3, NULL, &b->r.error));
            else
                RIG_OK(&b->r, tamis_runner_decode(b->r.runner, &of[i], 1, &token, &(int32_t){0},
                                                  &b->r.error));
            blends_logits(b, logits[i]);
        }
        if (memcmp(logits[0], logits[1], sizeof *logits) != 0) fail_msg("%s: step %d", what, step);
    }
    expect_same(b, what, x, y);
}

/* ---- Cells ----------------------------------------------------------------------------------- */

/* Evicts from the twin as the runner has from the blend; from both, where the caller has the
 * scores. */
static void evict(blends *b, tamis_eviction_kind kind, tamis_sequence blended,
                  tamis_sequence other) {
    static float scores[BLEND_LAYERS * KV_HEADS * BLEND_ROWS];
    tamis_plan *plan = tamis_runner_plan(b->r.runner);
    if (kind == TAMIS_EVICT_NONE) return;
    if (kind != TAMIS_EVICT_CALLER) {
        RIG_OK(&b->r, tamis_plan_evict(plan, other, NULL, &b->r.error));
        return;
    }
    for (uint32_t i = 0; i < sizeof scores / sizeof *scores; i++)
        scores[i] = (float)(i * 37 % 101);
    RIG_OK(&b->r, tamis_plan_evict_by_scores(plan, blended, scores, BLEND_ROWS, NULL, &b->r.error));
    RIG_OK(&b->r, tamis_plan_evict_by_scores(plan, other, scores, BLEND_ROWS, NULL, &b->r.error));
}

static tamis_eviction eviction_of(tamis_eviction_kind kind) {
    tamis_eviction eviction;
    tamis_eviction_default(kind, &eviction);
    if (kind == TAMIS_EVICT_NONE) return eviction;
    eviction.budget = BUDGET;
    if (eviction.window) eviction.window = WINDOW;
    if (kind == TAMIS_EVICT_STREAMING) eviction.sinks = 4;
    return eviction;
}

/* The cell is what it is called: tokens were evicted, rows read lists. */
static void expect_paths(blends *b, const char *what, const rig_params *params,
                         tamis_sequence sequence) {
    tamis_plan_counters counters;
    tamis_sequence_stats stats;
    tamis_plan_get_counters(tamis_runner_plan(b->r.runner), &counters);
    RIG_OK(&b->r, tamis_cache_get_sequence_stats(b->r.cache, sequence, &stats, &b->r.error));
    const bool whole =
        stats.slots == (uint64_t)rig_length(&b->r, sequence) * BLEND_LAYERS * KV_HEADS;
    if (whole != (params->eviction.kind == TAMIS_EVICT_NONE)) fail_msg("%s: slots", what);
    if ((counters.rows_selected > 0) != (params->selection.kind != TAMIS_SELECT_FULL))
        fail_msg("%s: rows", what);
}

/* A blend of the cell, and its twin. Each cell has a share of the selectors and of the threads. */
static void play(tamis_eviction_kind kind, tamis_selection_kind selection, tamis_dtype dtype,
                 int number) {
    static const tamis_blend_selector selectors[] = {TAMIS_BLEND_HKVD, TAMIS_BLEND_FIRST,
                                                     TAMIS_BLEND_QUESTION, TAMIS_BLEND_RANDOM,
                                                     TAMIS_BLEND_NONE};
    static const tamis_dtype stored[] = {TAMIS_F16, TAMIS_F32, TAMIS_BF16};
    /* Without a sliding window, which goes with no eviction and no list. */
    const char *model = blend_models[1];
    rig_params params = {
        .max_sequences = 2, .max_rows = BLEND_ROWS, .max_context = BLEND_CONTEXT, .dtype = dtype};
    char what[96];
    blends b;
    twin t;
    snprintf(what, sizeof what, "%s, %s, %s", tamis_eviction_name(kind),
             tamis_selection_name(selection), tamis_dtype_name(dtype));
    params.eviction = eviction_of(kind);
    params.selection = (tamis_selection){.kind = selection};
    if (selection != TAMIS_SELECT_FULL)
        params.selection =
            (tamis_selection){.kind = selection, .budget = 32, .recent = 1, .seed = 5};
    blends_open(&b, model, &params, stored[number % 3], false);
    twin_open(&b, &t);
    tamis_blend_params p = blends_params(&b, blends_case("falling"));
    p.selector = selectors[number % 5];
    if (p.selector != TAMIS_BLEND_HKVD) p.shares = NULL, p.n_shares = 0;
    if (p.selector == TAMIS_BLEND_FIRST) p.first = 2;
    if (p.selector != TAMIS_BLEND_HKVD && number % 8 > 3) p.check_layer = TAMIS_BLEND_NO_CHECK;
    p.flags = number % 2 ? TAMIS_BLEND_NO_THREAD : 0;
    tamis_blend *blend = blends_make(&b, &p);
    spied.cache = b.r.cache;
    spied.sequence = rig_add(&b.r);
    spied.active = true;
    RIG_OK(&b.r, tamis_runner_blend(b.r.runner, spied.sequence, blend, b.parts, BLEND_PARTS, NULL,
                                    &b.r.error));
    spied.active = false;
    assert_true(blends_last.counts[BLEND_LAYERS - 1] < BLEND_ROWS);
    const tamis_sequence other = make_twin(&b, &t);
    evict(&b, kind, spied.sequence, other);
    expect_same(&b, what, spied.sequence, other);
    tamis_plan_reset_counters(tamis_runner_plan(b.r.runner));
    go_on(&b, what, spied.sequence, other);
    expect_paths(&b, what, &params, other);
    tamis_blend_destroy(&blend);
    twin_close(&t);
    blends_close(&b);
}

/* On the reference every cell; on OpenCL each pair of two; on CUDA each eviction, selection and
 * dtype. */
static bool is_played(int kind, int selection, int dtype) {
    if (strcmp(rig_device, "reference") == 0) return true;
    if (strncmp(rig_device, "cuda", 4) == 0) return selection == kind % 5 && dtype == kind % 3;
    return (kind + selection + dtype) % 3 == 0;
}

static void a_blend_is_a_sequence_like_any_other(void **state) {
    (void)state;
    static const tamis_selection_kind selections[] = {TAMIS_SELECT_FULL, TAMIS_SELECT_WINDOW,
                                                      TAMIS_SELECT_QUEST, TAMIS_SELECT_ORACLE,
                                                      TAMIS_SELECT_RANDOM};
    static const tamis_dtype dtypes[] = {TAMIS_F32, TAMIS_F16, TAMIS_BF16};
    int number = 0;
    for (int kind = TAMIS_EVICT_NONE; kind <= TAMIS_EVICT_KNORM; kind++) {
        for (int s = 0; s < 5; s++)
            for (int d = 0; d < 3; d++, number++)
                if (is_played(kind, s, d))
                    play((tamis_eviction_kind)kind, selections[s], dtypes[d], number + kind);
    }
}

/* A request of a scheduler goes on behind a blend as a runner does. */
static void a_request_goes_on(void **state) {
    (void)state;
    enum { NEW = 8, REST = 5 };
    blends b;
    int32_t prompt[BLEND_ROWS + REST], wanted[NEW];
    tamis_scheduler *scheduler = NULL;
    uint64_t id;
    uint32_t n_told = 0, n = 0;
    blends_open(&b, blend_models[0],
                &(rig_params){.max_rows = BLEND_ROWS, .max_context = BLEND_CONTEXT}, TAMIS_F32,
                false);
    const tamis_blend_params params = blends_params(&b, blends_case("flat"));
    tamis_blend *blend = blends_make(&b, &params);
    for (uint32_t i = 0; i < BLEND_ROWS + REST; i++)
        prompt[i] = blend_tokens[i % BLEND_ROWS];
    const tamis_sequence alone = blends_run(&b, blend);
    RIG_OK(&b.r, tamis_runner_prefill(b.r.runner, alone, prompt + BLEND_ROWS, REST, &wanted[0],
                                      &b.r.error));
    for (uint32_t i = 1; i < NEW; i++)
        RIG_OK(&b.r,
               tamis_runner_decode(b.r.runner, &alone, 1, &wanted[i - 1], &wanted[i], &b.r.error));
    RIG_OK(&b.r, tamis_cache_remove(b.r.cache, alone, &b.r.error));
    RIG_OK(&b.r, tamis_scheduler_create(b.r.runner, NULL, &scheduler, &b.r.error));
    const tamis_request request = {.tokens = prompt,
                                   .n_tokens = BLEND_ROWS + REST,
                                   .max_new = NEW,
                                   .sequence = blends_run(&b, blend)};
    RIG_OK(&b.r, tamis_scheduler_add(scheduler, &request, &id, &b.r.error));
    while (n_told < NEW) {
        const tamis_request_event *events;
        RIG_OK(&b.r, tamis_scheduler_step(scheduler, &events, &n, &b.r.error));
        for (uint32_t i = 0; i < n; i++)
            if (events[i].kind == TAMIS_REQUEST_BEGAN)
                assert_int_equal(events[i].value, BLEND_ROWS);
            else if (events[i].kind == TAMIS_REQUEST_TOKEN)
                assert_int_equal(events[i].value, wanted[n_told++]);
    }
    tamis_scheduler_destroy(&scheduler);
    tamis_blend_destroy(&blend);
    blends_close(&b);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_blend_is_a_sequence_like_any_other),
        cmocka_unit_test(a_request_goes_on),
    };
    if (!rig_arguments(argc, argv)) return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
