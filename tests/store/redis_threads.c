/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that put, get, read, remove and list in one store, while its server stands still, ends and
 * comes back. Whatever is read is what was stored; ThreadSanitizer looks for races. */
#include "tests/store/redis_rig.h"

#include <pthread.h>
#include <stdatomic.h>

#define THREADS 4
#define CHUNKS  8u

static rig_chunk chunks[CHUNKS];
static tamis_store *store;
static atomic_bool ends;
static atomic_uint reads; /* of planes that came */

/* cmocka's assertions belong to the main thread: threads count what is wrong. */
typedef struct worker {
    pthread_t thread;
    uint64_t random;
    unsigned wrong;
} worker;

#define WANT(w, condition) ((w)->wrong += !(condition))

static void read_chunk(worker *w, tamis_chunk *found, const rig_chunk *chunk) {
    uint8_t k[32 * RIG_MOST];
    for (uint32_t i = 0; i < RIG_LAYERS; i++) {
        const tamis_status status = tamis_chunk_read(found, i, k, NULL, NULL);
        WANT(w, status == TAMIS_OK || status == TAMIS_E_IO);
        if (status != TAMIS_OK) continue;
        WANT(w, memcmp(k, chunk->k[i], chunk->plane_bytes) == 0);
        atomic_fetch_add(&reads, 1);
    }
}

static void *work(void *of) {
    worker *w = of;
    while (!atomic_load(&ends)) {
        const rig_chunk *chunk = &chunks[test_below(&w->random, CHUNKS)];
        const uint32_t what = test_below(&w->random, 100);
        tamis_status status = TAMIS_OK;
        tamis_chunk *found = NULL;
        size_t count;
        if (what < 30)
            status = tamis_store_put(store, &chunk->put, NULL);
        else if (what < 85)
            status = tamis_store_get(store, &chunk->put.id, &found, NULL);
        else if (what < 97)
            status = tamis_store_remove(store, &chunk->put.id, NULL, NULL);
        else
            status = tamis_store_list(store, NULL, 0, &count, NULL);
        WANT(w, status == TAMIS_OK || (status == TAMIS_E_IO && !(what >= 30 && what < 85)) ||
                    (status == TAMIS_E_FULL && what < 30));
        if (found) read_chunk(w, found, chunk);
        tamis_chunk_release(&found);
    }
    return NULL;
}

static void a_server_that_comes_and_goes(void **state) {
    (void)state;
    static worker workers[THREADS];
    store = server_store((tamis_store_params){.memory_bytes = 2 * chunks[0].record_bytes,
                                              .redis_bytes = 6 * chunks[0].record_bytes,
                                              .redis_timeout_ms = 500});
    for (int i = 0; i < THREADS; i++) {
        workers[i].random = (uint64_t)i + 1;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 600 && atomic_load(&reads) == 0; i++)
        rig_nap(100);
    assert_true(atomic_load(&reads) > 0);
    server_pause();
    rig_nap(800);
    server_go_on();
    rig_nap(300);
    server_kill();
    rig_nap(200);
    assert_true(server_start());
    const uint64_t hits = server_stats(store).hits;
    for (int i = 0; i < 600 && server_stats(store).hits == hits; i++)
        rig_nap(100);
    assert_true(server_stats(store).hits > hits); /* the server is asked again */
    atomic_store(&ends, true);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].wrong, 0);
    }
    assert_int_equal(server_stats(store).damaged, 0);
    assert_int_equal(server_stats(store).pinned_bytes, 0);
    assert_true(server_stats(store).failed > 0);
    tamis_store_destroy(&store);
}

int main(void) {
    if (!server_begin()) return SERVER_NONE;
    for (uint32_t i = 0; i < CHUNKS; i++)
        rig_chunk_make(&chunks[i], i, 200);
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_server_that_comes_and_goes)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t i = 0; i < CHUNKS; i++)
        rig_chunk_free(&chunks[i]);
    server_end();
    return failed;
}
