/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences that are saved and restored, into another cache of the same device and of another one: there
 * they go on as the one that was saved.
 * Usage: test-api-saved [DEVICE] */
#include "tests/api/saving.h"

#include <inttypes.h>
#include <math.h>

#define AFTER 100u /* decode steps behind the saving, at most */

/* Decode steps of tokens [first, first + n), each of which leaves its outs and lists. */
typedef struct trail {
    uint32_t n;
    uint64_t floats;
    float *outs;
    uint32_t pages[AFTER][2][64], counts[AFTER][2]; /* of the last layer, by KV head */
} trail;

static void walk(evict_world *e, tamis_sequence id, uint64_t first, uint32_t n, trail *to) {
    const tamis_step step = {.sequences = &id, .count = 1};
    *to = (trail){.n = n, .floats = e->w.shape.n_layers * evict_out_floats(e, 1)};
    to->outs = calloc(n * to->floats, sizeof *to->outs);
    assert_non_null(to->outs);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t token = first + i;
        OK(evict_step(e, &step, &token, to->outs + i * to->floats));
        for (uint32_t h = 0; h < 2; h++)
            OK(tamis_plan_read_selected(e->w.plan, 0, h, to->pages[i][h], 64, &to->counts[i][h],
                                        &test_error));
    }
}

static void same_lists(const trail *a, const trail *b) {
    assert_memory_equal(a->counts, b->counts, sizeof a->counts);
    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t h = 0; h < 2; h++)
            assert_memory_equal(a->pages[i][h], b->pages[i][h],
                                a->counts[i][h] * sizeof a->pages[i][h][0]);
}

static void same_bits(const trail *a, const trail *b) {
    same_lists(a, b);
    assert_memory_equal(a->outs, b->outs, a->n * a->floats * sizeof *a->outs);
}

/* As far from each other as the checker lets attention be from the reference. */
static void close_outs(const trail *a, const trail *b) {
    same_lists(a, b);
    for (uint64_t i = 0; i < a->n * a->floats; i++)
        if (fabsf(a->outs[i] - b->outs[i]) > 1e-4f)
            fail_msg("float %" PRIu64 " of step %" PRIu64 ": %g, not %g", i % a->floats,
                     i / a->floats, (double)a->outs[i], (double)b->outs[i]);
}

/* What keeps a restored sequence from the pages and the ring that it had. */
static void occupy(evict_world *e) {
    const tamis_sequence first = evict_add(e, 5000, 11), second = evict_add(e, 6000, 21);
    OK(tamis_cache_remove(e->w.cache, first, &test_error));
    (void)second;
}

/* ---- They go on ------------------------------------------------------------------------------ */

/* Half way the evictions that act between steps act again, by the queries that were saved. */
static void go_on(evict_world *e, const kind *k, tamis_sequence id, uint32_t steps, trail both[2]) {
    const uint32_t half = steps / 2;
    walk(e, id, PROMPT + BEFORE, half, &both[0]);
    if (k->eviction != TAMIS_EVICT_NONE) OK(tamis_plan_evict(e->w.plan, id, NULL, &test_error));
    walk(e, id, PROMPT + BEFORE + half, half, &both[1]);
}

static void free_trails(trail both[2]) {
    free(both[0].outs);
    free(both[1].outs);
}

static trail trails[3][2]; /* large */

/* Saved on one device: restored there it goes on with the same bits. Restored on another one twice, it
 * is what was saved, both go on with the same bits, and their lists are those of the first device. */
static void check_kind(const kind *k, const char *from, const char *to, uint32_t steps) {
    const bool same = strcmp(from, to) == 0;
    evict_world a, b[2];
    print_message("%s: %s to %s\n", k->name, from, to);
    saved_open(&a, from, k);
    const tamis_sequence id = saved_live(&a, k);
    saved_stream s = saved_save(&a, id, same ? &saved_bounded : &saved_bare);
    go_on(&a, k, id, steps, trails[2]);
    for (int i = 0; i < 2; i++) {
        saved_open(&b[i], to, k);
        if (i == 0) occupy(&b[i]);
        const tamis_sequence copy = saved_restore(&b[i], &s);
        saved_stream again = saved_save(&b[i], copy, same ? &saved_bounded : &saved_bare);
        saved_same(&s, &again);
        evict_check_bounds(&b[i], copy);
        free(again.bytes);
        go_on(&b[i], k, copy, steps, trails[i]);
    }
    for (int half = 0; half < 2; half++) {
        same_bits(&trails[0][half], &trails[1][half]);
        if (same)
            same_bits(&trails[2][half], &trails[0][half]);
        else
            close_outs(&trails[2][half], &trails[0][half]);
    }
    for (int i = 0; i < 3; i++)
        free_trails(trails[i]);
    free(s.bytes);
    evict_close(&b[0]);
    evict_close(&b[1]);
    evict_close(&a);
}

static void sequences_go_on(void **state) {
    (void)state;
    for (size_t i = 0; i < n_saved_kinds; i++)
        check_kind(&saved_kinds[i], test_device, test_device, AFTER / test_slowness());
}

static void sequences_go_on_elsewhere(void **state) {
    (void)state;
    if (strcmp(test_device, "reference") == 0) return;
    for (size_t i = 0; i < n_saved_kinds; i++) {
        check_kind(&saved_kinds[i], "reference", test_device, AFTER);
        check_kind(&saved_kinds[i], test_device, "reference", 10);
    }
}

/* Before the eviction at a prompt's end all scores and queries are still to be used. */
static void prompts_are_evicted_from_later(void **state) {
    (void)state;
    for (int kind_of = TAMIS_EVICT_STREAMING; kind_of < test_evictions(); kind_of++) {
        const kind k = {
            .eviction = (tamis_eviction_kind)kind_of, .dtype = TAMIS_F32, .head_dim = 64};
        if (k.eviction == TAMIS_EVICT_CALLER) continue;
        evict_world a, b;
        saved_open(&a, test_device, &k);
        saved_open(&b, test_device, &k);
        occupy(&b);
        const tamis_sequence id = evict_add(&a, 0, 60);
        saved_stream s = saved_save(&a, id, &saved_bare);
        const tamis_sequence copy = saved_restore(&b, &s);
        OK(tamis_plan_evict(a.w.plan, id, NULL, &test_error));
        OK(tamis_plan_evict(b.w.plan, copy, NULL, &test_error));
        held x = evict_read(&a, id), y = evict_read(&b, copy);
        held_same(&x, &y);
        held_free(&x);
        held_free(&y);
        free(s.bytes);
        evict_close(&a);
        evict_close(&b);
    }
}

/* Queries of a sequence whose last rows were truncated away are known in part, and then too few. */
static void queries_are_those_that_are_known(void **state) {
    (void)state;
    evict_world e;
    saved_open(&e, test_device, saved_named("snapkv"));
    const tamis_sequence id = evict_add(&e, 0, 60);
    OK(tamis_cache_truncate(e.w.cache, id, 57, &test_error));
    saved_stream s = saved_save(&e, id, &saved_bare);
    assert_int_equal(saved_number(&s, TMS_SAVED_QUERIES_FROM), 60 - WINDOW);
    assert_int_equal(saved_number(&s, TMS_SAVED_QUERIES_TO), 57);
    const tamis_sequence copy = saved_restore(&e, &s);
    FAILS(tamis_plan_evict(e.w.plan, copy, NULL, &test_error), TAMIS_E_STATE, "known are 52 to 56");
    evict_prompt(&e, copy, 57, 3);
    OK(tamis_plan_evict(e.w.plan, copy, NULL, &test_error));
    evict_prompt(&e, id, 57, 3);
    OK(tamis_plan_evict(e.w.plan, id, NULL, &test_error));
    held x = evict_read(&e, id), y = evict_read(&e, copy);
    held_same(&x, &y);
    held_free(&x);
    held_free(&y);
    free(s.bytes);
    evict_close(&e);
}

/* Bounds of another kind are computed anew; those of the same kind are taken as they are. */
static void bounds_are_free(void **state) {
    (void)state;
    const tamis_bounds other = {.kind = TAMIS_BOUNDS_MEAN_STD, .width = 2};
    evict_world a, b;
    saved_open(&a, test_device, saved_named("quest"));
    saved_open(&b, test_device, saved_named("quest"));
    const tamis_sequence id = saved_live(&a, saved_named("quest"));
    saved_stream bare = saved_save(&a, id, &saved_bare), full = saved_save(&a, id, &saved_bounded);
    const uint32_t pages = (PROMPT + BEFORE) / 8, lanes = 4;
    assert_int_equal(full.size - bare.size, lanes * (pages * 2 * 64 * sizeof(float) + 16));
    OK(tamis_cache_set_bounds(b.w.cache, &other, &test_error));
    for (int i = 0; i < 2; i++)
        evict_check_bounds(&b, saved_restore(&b, i ? &full : &bare));
    /* One that is no bound, with sums that hold: it is taken. */
    OK(tamis_cache_set_bounds(b.w.cache, &(tamis_bounds){.kind = TAMIS_BOUNDS_MINMAX},
                              &test_error));
    full.bytes[full.size - 16 - 8 - 1] ^= 0x40;
    saved_mend(&full);
    saved_stream again = saved_save(&b, saved_restore(&b, &full), &saved_bounded);
    saved_same(&full, &again);
    free(again.bytes);
    free(bare.bytes);
    free(full.bytes);
    evict_close(&a);
    evict_close(&b);
}

/* Lanes of more than 256 KiB come in several sections, pools may be one for each layer. */
static void long_lanes_and_pools(void **state) {
    (void)state;
    const uint32_t n = 2100;
    tamis_cache_params shape = test_shape();
    const tamis_plan_params plan = {.max_rows = 64, .max_context = 2200};
    shape.head_dim = 256;
    shape.n_heads = shape.n_kv_heads = 1;
    shape.capacity_tokens = 2 * 2200;
    evict_world a, b;
    evict_open(&a, &shape, &plan);
    evict_open(&b, &shape, &plan);
    evict_split(&b, &plan);
    const tamis_sequence id = evict_add(&a, 0, 0);
    for (uint32_t done = 0; done < n; done += 60) {
        uint64_t tokens[60];
        for (uint32_t i = 0; i < 60; i++)
            tokens[i] = done + i;
        OK(test_append(&a.w, id, tokens, 60));
    }
    saved_stream s = saved_save(&a, id, &saved_bounded);
    const tamis_sequence copy = saved_restore(&b, &s);
    held x = evict_read(&a, id), y = evict_read(&b, copy);
    held_same(&x, &y);
    held_check(&y, 0, n);
    held_free(&x);
    held_free(&y);
    free(s.bytes);
    evict_close(&a);
    evict_close(&b);
}

static void empty_sequences(void **state) {
    (void)state;
    evict_world e;
    saved_open(&e, test_device, saved_named("snapkv"));
    saved_stream s = saved_save(&e, evict_add(&e, 0, 0), &saved_bounded);
    const tamis_sequence copy = saved_restore(&e, &s);
    evict_prompt(&e, copy, 0, 9);
    held h = evict_read(&e, copy);
    held_check(&h, 0, 9);
    held_free(&h);
    free(s.bytes);
    evict_close(&e);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_go_on),
        cmocka_unit_test(sequences_go_on_elsewhere),
        cmocka_unit_test(prompts_are_evicted_from_later),
        cmocka_unit_test(queries_are_those_that_are_known),
        cmocka_unit_test(bounds_are_free),
        cmocka_unit_test(long_lanes_and_pools),
        cmocka_unit_test(empty_sequences),
    };
    const int code = test_begin(argc, argv);
    return code ? code : cmocka_run_group_tests(tests, NULL, NULL);
}
