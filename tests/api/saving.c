/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of saved sequences share. */
#include "tests/api/saving.h"

const tamis_save_params saved_bare = {.fingerprint = {1, 2, 3}};
const tamis_save_params saved_bounded = {.fingerprint = {1, 2, 3}, .flags = TAMIS_SAVE_BOUNDS};

static const tamis_layer windowed[] = {{.attention = {.sliding_window = 21}},
                                       {.attention = {.chunk = 24}}};

const kind saved_kinds[] = {
    {"full", TAMIS_SELECT_FULL, TAMIS_EVICT_NONE, 0, false, false, TAMIS_F32, 64},
    {"quest", TAMIS_SELECT_QUEST, TAMIS_EVICT_NONE, 0, false, false, TAMIS_F32, 64},
    {"quest, f16", TAMIS_SELECT_QUEST, TAMIS_EVICT_NONE, 0, false, false, TAMIS_F16, 128},
    {"quest, q8", TAMIS_SELECT_QUEST, TAMIS_EVICT_NONE, 0, false, false, TAMIS_Q8, 80},
    {"full, k8v4", TAMIS_SELECT_FULL, TAMIS_EVICT_NONE, 0, false, false, TAMIS_K8V4, 64},
    {"full, q4", TAMIS_SELECT_FULL, TAMIS_EVICT_NONE, 0, false, false, TAMIS_Q4, 80},
    {"windowed", TAMIS_SELECT_FULL, TAMIS_EVICT_NONE, 0, false, true, TAMIS_F32, 64},
    {"forked", TAMIS_SELECT_QUEST, TAMIS_EVICT_NONE, 0, true, false, TAMIS_F32, 64},
    {"snapkv", TAMIS_SELECT_QUEST, TAMIS_EVICT_SNAPKV, 0, false, false, TAMIS_F32, 64},
    {"snapkv, forked", TAMIS_SELECT_FULL, TAMIS_EVICT_SNAPKV, 0, true, false, TAMIS_F32, 64},
    {"adakv", TAMIS_SELECT_FULL, TAMIS_EVICT_ADAKV, 0, false, false, TAMIS_F32, 64},
    {"h2o", TAMIS_SELECT_FULL, TAMIS_EVICT_H2O, 0, false, false, TAMIS_F32, 64},
    {"h2o, lifetime, forked", TAMIS_SELECT_QUEST, TAMIS_EVICT_H2O, TAMIS_EVICT_LIFETIME, true,
     false, TAMIS_F32, 64},
    {"streaming", TAMIS_SELECT_QUEST, TAMIS_EVICT_STREAMING, 0, false, false, TAMIS_F32, 64},
    {"tova", TAMIS_SELECT_FULL, TAMIS_EVICT_TOVA, 0, false, false, TAMIS_F32, 64},
    {"knorm", TAMIS_SELECT_FULL, TAMIS_EVICT_KNORM, 0, false, false, TAMIS_F16, 64},
};
const size_t n_saved_kinds = sizeof saved_kinds / sizeof *saved_kinds;

const kind *saved_named(const char *name) {
    size_t i = 0;
    while (strcmp(saved_kinds[i].name, name) != 0)
        i++;
    return &saved_kinds[i];
}

static tamis_plan_params plan_of(const kind *k) {
    tamis_plan_params plan = {.max_sequences = 2, .max_rows = 64, .max_context = CONTEXT};
    tamis_selection_default(k->selection, &plan.selection);
    if (k->selection == TAMIS_SELECT_QUEST) {
        plan.selection.budget = 32;
        plan.selection.recent = 1;
    }
    plan.eviction = test_eviction(k->eviction, 33, k->options);
    if (k->windowed) {
        plan.layers = windowed;
        plan.flags = TAMIS_PLAN_GIVE_BACK;
    }
    return plan;
}

static tamis_cache_params shape_of(const kind *k) {
    tamis_cache_params shape = test_shape();
    shape.dtype = k->dtype;
    shape.head_dim = k->head_dim;
    shape.capacity_tokens = 4 * CONTEXT;
    return shape;
}

void saved_open(evict_world *e, const char *device, const kind *k) {
    const char *own = test_device;
    const tamis_cache_params shape = shape_of(k);
    const tamis_plan_params plan = plan_of(k);
    test_device = device;
    evict_open(e, &shape, &plan);
    test_device = own;
}

tamis_sequence saved_live(evict_world *e, const kind *k) {
    tamis_sequence id = evict_add(e, 0, PROMPT), fork = 0;
    if (k->eviction != TAMIS_EVICT_NONE) OK(tamis_plan_evict(e->w.plan, id, NULL, &test_error));
    if (k->forked) {
        evict_decode(e, id, PROMPT, BEFORE / 2, NULL);
        OK(tamis_cache_fork(e->w.cache, id, &fork, &test_error));
        evict_decode(e, id, 1000, 3, NULL);
        evict_decode(e, fork, PROMPT + BEFORE / 2, BEFORE / 2, NULL);
        OK(tamis_cache_remove(e->w.cache, id, &test_error));
        return fork;
    }
    evict_decode(e, id, PROMPT, BEFORE, NULL);
    return id;
}

saved_stream saved_save(evict_world *e, tamis_sequence id, const tamis_save_params *how) {
    saved_stream s = {.size = 0};
    OK(tamis_plan_save(e->w.plan, id, how, saved_write, &s, &test_error));
    return s;
}

tamis_sequence saved_restore(evict_world *e, saved_stream *s) {
    tamis_sequence id = 0;
    s->at = s->calls = 0;
    OK(tamis_plan_restore(e->w.plan, &saved_bare, saved_read, s, &id, &test_error));
    assert_int_equal(s->at, s->size);
    assert_true(id != 0);
    uint64_t n_held, n_shared;
    test_account(e->w.cache, &n_held, &n_shared);
    return id;
}

void saved_same(const saved_stream *a, const saved_stream *b) {
    assert_int_equal(a->size, b->size);
    assert_memory_equal(a->bytes, b->bytes, a->size);
}
