/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the restoring of saved sequences: any bytes are restored or refused. What is restored is what
 * was read, saved again, and a sequence as any other: it takes steps, evictions and cuts. What is
 * refused leaves nothing. The input's first byte says into which plan; its sums may be mended first, so
 * that what is behind them is reached too. */
#include "tests/fuzz/refusal.h"
#include "tests/fuzz/saved_world.h"
#include "tests/saved_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static tamis_context *context;
static saved_world worlds[SAVED_PLANS];

static void close_worlds(void) {
    for (int i = 0; i < SAVED_PLANS; i++)
        saved_world_close(&worlds[i]);
    tamis_context_destroy(&context);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    context = saved_world_context();
    refusal_abort_on_failure();
    for (int i = 0; i < SAVED_PLANS; i++)
        saved_world_open(&worlds[i], context, (saved_plan)i);
    atexit(close_worlds);
    return 0;
}

/* Every page of a cache without sequences is free. */
static void check_empty(const saved_world *world) {
    tamis_cache_stats stats;
    tamis_cache_get_stats(world->cache, &stats);
    assert_int_equal(stats.sequences, 0);
    assert_int_equal(stats.pages_held, 0);
    assert_int_equal(stats.pages_shared, 0);
}

/* Saved again it has the bytes that were read; but for bounds of another kind than the cache's, and for
 * what a header without bounds says of them. */
static void check_again(saved_world *world, tamis_sequence id, const saved_stream *read) {
    const bool bounds = saved_number(read, TMS_SAVED_HAS_BOUNDS) == 1;
    const tamis_save_params params = {.flags = bounds ? TAMIS_SAVE_BOUNDS : 0};
    saved_stream again = {.size = 0};
    assert_int_equal(tamis_plan_save(world->plan, id, &params, saved_write, &again, NULL),
                     TAMIS_OK);
    bool same = true;
    for (int i = TMS_SAVED_BOUNDS_KIND; i <= TMS_SAVED_BOUNDS_DTYPE; i++)
        same &=
            saved_number(read, (tms_saved_number)i) == saved_number(&again, (tms_saved_number)i);
    if (same) {
        assert_int_equal(again.size, read->at);
        assert_memory_equal(again.bytes, read->bytes, again.size);
    }
    free(again.bytes);
}

/* Whatever its numbers are, calls on it succeed or refuse. */
static void use(saved_world *world, tamis_sequence id) {
    tamis_sequence fork = 0;
    uint32_t length = 0;
    assert_int_equal(tamis_cache_length(world->cache, id, &length, NULL, NULL), TAMIS_OK);
    assert_int_equal(tamis_cache_fork(world->cache, id, &fork, NULL), TAMIS_OK);
    (void)saved_world_step(world, id, 1, 0);
    (void)saved_world_step(world, id, 3, 1);
    (void)tamis_plan_evict(world->plan, id, NULL, NULL);
    (void)saved_world_step(world, fork, 1, 0);
    if (length > 0) (void)tamis_cache_truncate(world->cache, fork, length - 1, NULL);
    (void)tamis_cache_truncate(world->cache, id, length / 2, NULL);
    (void)saved_world_step(world, id, 1, 1);
    assert_int_equal(tamis_cache_remove(world->cache, id, NULL), TAMIS_OK);
    assert_int_equal(tamis_cache_remove(world->cache, fork, NULL), TAMIS_OK);
}

static void check_refusal(tamis_status status, const tamis_error *error) {
    assert_int_equal(status, error->status);
    assert_true(status == TAMIS_E_ARGUMENT || status == TAMIS_E_FORMAT ||
                status == TAMIS_E_DAMAGED || status == TAMIS_E_IO || status == TAMIS_E_FULL);
    assert_true(error->text[0] != '\0');
}

static void check_input(saved_world *world, saved_stream *s) {
    const tamis_save_params params = {.flags = 0};
    tamis_error error = {0};
    tamis_sequence id = 1;
    s->at = 0;
    const tamis_status status =
        tamis_plan_restore(world->plan, &params, saved_read, s, &id, &error);
    assert_int_equal(id != 0, status == TAMIS_OK);
    if (status == TAMIS_OK) {
        check_again(world, id, s);
        use(world, id);
    } else
        check_refusal(status, &error);
    check_empty(world);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    saved_world *world = &worlds[data[0] % SAVED_PLANS];
    saved_stream s = {.bytes = malloc(size), .size = size - 1};
    assert_non_null(s.bytes);
    memcpy(s.bytes, data + 1, s.size);
    check_input(world, &s);
    saved_mend(&s);
    check_input(world, &s);
    free(s.bytes);
    return 0;
}
