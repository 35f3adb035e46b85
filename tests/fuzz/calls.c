/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes sequences of API calls on the reference: the input draws a cache, two plans over it, and
 * then call after call, invalid ones among them. */
#include "host/backend.h"
#include "tests/fuzz/refusal.h"
#include "tests/fuzz/shadow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CALLS 60u

static fuzz world;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void close_world(void) {
    tamis_buffer **buffers[] = {&world.k, &world.v, &world.q, &world.out};
    for (size_t i = 0; i < 4; i++)
        tamis_buffer_destroy(buffers[i]);
    tamis_context_destroy(&world.context);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    tamis_context_params params = {.device = "reference"};
    OK(tamis_context_create(&params, &world.context, &test_error));
    tamis_buffer **buffers[] = {&world.k, &world.v, &world.q, &world.out};
    for (size_t i = 0; i < 4; i++)
        OK(tamis_buffer_create(world.context, MAX_ROWS * ROW * sizeof(float), buffers[i],
                               &test_error));
    atexit(close_world);
    refusal_abort_on_failure();
    return 0;
}

/* ---- The cache ------------------------------------------------------------------------------- */

static void draw_shape(fuzz *f) {
    static const uint32_t planes[] = {TAMIS_PLANE_POSITIONS | TAMIS_PLANE_SCORES,
                                      TAMIS_PLANE_POSITIONS | TAMIS_PLANE_SCORES,
                                      TAMIS_PLANE_POSITIONS, 0};
    tamis_cache_params *p = &f->shape;
    f->group = 1 + fuzz_take(f, MAX_GROUP);
    const uint32_t dtypes = fuzz_take(f, 12);
    *p = (tamis_cache_params){.n_layers = 1 + fuzz_take(f, MAX_LAYERS),
                              .n_kv_heads = 1 + fuzz_take(f, MAX_HEADS),
                              .head_dim = fuzz_take(f, 8) == 7 ? 80 : 64,
                              .page_size = fuzz_take(f, 4) == 3 ? 16 : 8,
                              .dtype = (tamis_dtype)(dtypes % 6),
                              .bounds_dtype = (tamis_bounds_dtype)(dtypes / 6),
                              .capacity_tokens = 16 + fuzz_take(f, 240),
                              .planes = planes[fuzz_take(f, 4)]};
    p->n_heads = p->n_kv_heads * f->group;
    p->bounds.kind = (tamis_bounds_kind)fuzz_take(f, 3);
    f->bounds = (tamis_bounds){.kind = p->bounds.kind,
                               .width = p->bounds.kind == TAMIS_BOUNDS_MEAN_STD ? 1 : 0};
    f->n_lanes = p->n_layers * p->n_kv_heads;
}

/* One pool, or one a layer. */
static void open_cache(fuzz *f) {
    uint64_t *limit = &f->context->dev->info.max_buffer_bytes, before = *limit;
    tamis_cache_size size;
    draw_shape(f);
    test_values_for(f->shape.dtype);
    OK(tamis_cache_measure(f->context, &f->shape, &size, &test_error));
    bool split = fuzz_take(f, 2);
    if (split) *limit = size.page_bytes * size.pages / f->shape.n_layers;
    OK(tamis_cache_create(f->context, &f->shape, &f->cache, &test_error));
    *limit = before;
    assert_int_equal(f->cache->size.pools, split ? f->shape.n_layers : 1);
}

/* ---- Calls on sequences ---------------------------------------------------------------------- */

static shadow_sequence *any_dead(fuzz *f) {
    for (uint32_t i = 0; i < MAX_LIVE; i++)
        if (!f->sequences[i].id) return &f->sequences[i];
    return NULL;
}

static void add(fuzz *f) {
    shadow_sequence *s = any_dead(f);
    if (!s) return;
    *s = (shadow_sequence){0};
    OK(tamis_cache_add(f->cache, &s->id, &test_error));
    assert_true(s->id != 0);
}

/* What is wrong with a sequence for a call that takes one out of steps. */
static uint32_t idle_causes(const fuzz *f, const shadow_sequence *s) {
    if (!s->id) return CAUSE(E_ARGUMENT);
    return fuzz_in_step(f, s) ? CAUSE(E_STATE) : 0;
}

static void fork_one(fuzz *f) {
    shadow_sequence *from = fuzz_sequence(f), *to = any_dead(f);
    tamis_sequence id = 0;
    if (!to) return;
    if (!EXPECT(tamis_cache_fork(f->cache, from->id, &id, &test_error), idle_causes(f, from), 0))
        return;
    *to = *from;
    to->id = id;
}

static void truncate_one(fuzz *f) {
    shadow_sequence *s = fuzz_sequence(f);
    uint32_t length =
        fuzz_take(f, 2) ? s->length - fuzz_take(f, 12) : fuzz_take(f, MAX_CONTEXT + 1);
    uint32_t causes = idle_causes(f, s);
    if (s->id && length > s->length) causes |= CAUSE(E_ARGUMENT); /* or below 0 */
    if (length < s->evicted_at) causes |= CAUSE(E_STATE);
    if (!EXPECT(tamis_cache_truncate(f->cache, s->id, length, &test_error), causes, 0)) return;
    for (uint32_t lane = 0; lane < f->n_lanes; lane++)
        s->lanes[lane].length -= s->length - length;
    s->length = length;
}

static void remove_one(fuzz *f) {
    shadow_sequence *s = fuzz_sequence(f);
    if (EXPECT(tamis_cache_remove(f->cache, s->id, &test_error), idle_causes(f, s), 0))
        *s = (shadow_sequence){0};
}

static void set_bounds(fuzz *f) {
    static const float widths[] = {0, 1, 0.5f, -1, NAN, INFINITY};
    tamis_bounds bounds = {.kind = (tamis_bounds_kind)(fuzz_take(f, 5) - 1),
                           .width = widths[fuzz_take(f, 6)]};
    bool bad =
        (int)bounds.kind < 0 || (int)bounds.kind > 2 || !(bounds.width >= 0) || isinf(bounds.width);
    uint32_t causes = (bad ? CAUSE(E_ARGUMENT) : 0) | (f->step.open ? CAUSE(E_STATE) : 0);
    if (!EXPECT(tamis_cache_set_bounds(f->cache, &bounds, &test_error), causes, 0)) return;
    f->bounds = bounds;
    if (bounds.kind != TAMIS_BOUNDS_MEAN_STD) f->bounds.width = 0;
    if (bounds.kind == TAMIS_BOUNDS_MEAN_STD && bounds.width == 0) f->bounds.width = 1;
}

/* Any part of any lane, right or wrong. */
static void read_any(fuzz *f) {
    shadow_sequence *s = fuzz_sequence(f);
    uint32_t drawn = fuzz_take(f, 256), layer = drawn % f->shape.n_layers, head = drawn / 2 % 2;
    uint32_t first = fuzz_take(f, 32), count = fuzz_take(f, 16), length = 0;
    if (drawn >= 250) layer += 2;
    if (count == 15) count = UINT32_MAX - first / 2; /* first + count wraps */
    uint32_t causes = idle_causes(f, s);
    bool lane = layer < f->shape.n_layers && head < f->shape.n_kv_heads;
    if (lane) length = s->lanes[layer * f->shape.n_kv_heads + head].length;
    if (s->id && (!lane || first > length || count > length - first)) causes |= CAUSE(E_ARGUMENT);
    size_t room = causes ? 1 : count + !count;
    int32_t *positions = malloc(room * sizeof *positions);
    float *k = malloc(room * f->shape.head_dim * sizeof *k);
    assert_true(positions && k);
    EXPECT(tamis_cache_read_positions(f->cache, s->id, layer, head, first, count, positions,
                                      &test_error),
           causes, 0);
    EXPECT(tamis_cache_read(f->cache, s->id, layer, head, first, count, k, NULL, &test_error),
           causes, 0);
    free(positions);
    free(k);
}

/* Calls with nothing where something must be. */
static void call_with_null(fuzz *f) {
    tamis_plan *plan = f->plans[fuzz_take(f, MAX_PLANS)].plan, *none = NULL;
    tamis_sequence id = 0;
    tamis_step step = {0};
    const uint32_t bad = CAUSE(E_ARGUMENT), open = f->step.open ? CAUSE(E_STATE) : 0;
    EXPECT(tamis_cache_add(NULL, &id, &test_error), bad, 0);
    EXPECT(tamis_cache_add(f->cache, NULL, &test_error), bad, 0);
    EXPECT(tamis_cache_fork(f->cache, 77, NULL, &test_error), bad, 0);
    EXPECT(tamis_cache_truncate(NULL, 1, 0, &test_error), bad, 0);
    EXPECT(tamis_cache_set_bounds(f->cache, NULL, &test_error), bad, 0);
    EXPECT(tamis_plan_create(f->cache, NULL, &none, &test_error), bad, 0);
    EXPECT(tamis_plan_step_begin(plan, NULL, &test_error), bad, open);
    EXPECT(tamis_plan_step_begin(plan, &step, &test_error), bad, open);
    EXPECT(tamis_plan_step_end(NULL, &test_error), bad, 0);
    EXPECT(tamis_plan_write(NULL, 0, NULL, NULL, &test_error), bad, 0);
    EXPECT(tamis_plan_write(plan, 0, NULL, NULL, &test_error), bad, CAUSE(E_STATE));
    EXPECT(tamis_plan_attend(plan, 0, NULL, NULL, &test_error), bad, CAUSE(E_STATE));
    EXPECT(tamis_plan_evict(NULL, 0, NULL, &test_error), bad, 0);
    EXPECT(tamis_plan_evict_to(plan, 0, NULL, NULL, 0, NULL, &test_error), bad, open);
}

/* ---- One call after the other ---------------------------------------------------------------- */

/* A whole step, or what is left of the open one. */
static void whole_step(fuzz *f) {
    if (!f->step.open) fuzz_begin(f);
    if (!f->step.open) return;
    for (uint32_t layer = 0; layer < f->shape.n_layers; layer++) {
        if (!f->step.written[layer]) fuzz_write(f, layer);
        if (!f->step.attended[layer]) fuzz_attend(f, layer);
    }
    fuzz_end(f);
}

static void call(fuzz *f) {
    switch (fuzz_take(f, 24)) {
    case 0:
    case 1:
        add(f);
        break;
    case 2:
    case 3:
        fork_one(f);
        break;
    case 4:
        truncate_one(f);
        break;
    case 5:
        remove_one(f);
        break;
    case 6:
        set_bounds(f);
        break;
    case 7:
        read_any(f);
        break;
    case 8:
        call_with_null(f);
        break;
    case 9:
        fuzz_begin(f);
        break;
    case 10:
        fuzz_write(f, fuzz_take(f, f->shape.n_layers + 1));
        break;
    case 11:
        fuzz_attend(f, fuzz_take(f, f->shape.n_layers + 1));
        break;
    case 12:
        fuzz_end(f);
        break;
    case 13:
        fuzz_cancel(f);
        break;
    case 14:
        fuzz_renew_plan(f, fuzz_take(f, MAX_PLANS));
        break;
    case 15:
        fuzz_bind(f);
        break;
    case 16:
    case 17:
    case 18:
        fuzz_evict(f);
        break;
    default:
        whole_step(f);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz *f = &world;
    *f = (fuzz){.at = data,
                .end = data + size,
                .context = f->context,
                .k = f->k,
                .v = f->v,
                .q = f->q,
                .out = f->out,
                .next_token = 1};
    open_cache(f);
    for (uint32_t i = 0; i < MAX_PLANS; i++)
        fuzz_renew_plan(f, i);
    add(f);
    for (uint32_t i = 0; i < MAX_CALLS && f->at < f->end; i++) {
        call(f);
        shadow_check(f);
    }
    if (f->step.open) fuzz_cancel(f);
    shadow_check_all(f);
    for (uint32_t i = 0; i < MAX_PLANS; i++)
        tamis_plan_destroy(&f->plans[i].plan);
    tamis_cache_destroy(&f->cache);
    return 0;
}
