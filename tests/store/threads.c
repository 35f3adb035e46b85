/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that put, get, read, remove, list and verify in one store, and several that read one
 * chunk. Whatever is found is what was stored; ThreadSanitizer looks for races.
 * Usage: test-store-threads [STEPS] */
#include "tests/store/rig.h"

#include <pthread.h>

#define THREADS 4
#define CHUNKS  12u

static unsigned steps = 400;
static rig_chunk chunks[CHUNKS];
static tamis_store *store;
static tamis_chunk *shared; /* of chunks[0] */

/* cmocka's assertions belong to the main thread: threads count what is wrong. */
typedef struct worker {
    pthread_t thread;
    uint64_t random;
    unsigned wrong, found;
} worker;

#define WANT(w, condition) ((w)->wrong += !(condition))

/* Every layer, in an order of the thread's own. */
static void read_chunk(worker *w, tamis_chunk *found, const rig_chunk *chunk) {
    uint8_t k[32 * RIG_MOST], v[32 * RIG_MOST];
    const uint32_t first = test_below(&w->random, RIG_LAYERS);
    for (uint32_t i = 0; i < RIG_LAYERS; i++) {
        const uint32_t layer = (first + i) % RIG_LAYERS;
        WANT(w, tamis_chunk_read(found, layer, k, v, NULL) == TAMIS_OK);
        WANT(w, memcmp(k, chunk->k[layer], chunk->plane_bytes) == 0);
        WANT(w, memcmp(v, chunk->v[layer], chunk->plane_bytes) == 0);
    }
}

static void get(worker *w, const rig_chunk *chunk) {
    tamis_chunk *found = NULL;
    WANT(w, tamis_store_get(store, &chunk->put.id, &found, NULL) == TAMIS_OK);
    if (found) read_chunk(w, found, chunk);
    w->found += found != NULL;
    tamis_chunk_release(&found);
}

static void look_around(worker *w) {
    tamis_chunk_info infos[CHUNKS];
    tamis_store_found found;
    tamis_store_stats stats;
    size_t count = 0;
    WANT(w, tamis_store_list(store, infos, CHUNKS, &count, NULL) == TAMIS_OK);
    WANT(w, count <= CHUNKS);
    WANT(w, tamis_store_verify(store, &found, NULL) == TAMIS_OK);
    WANT(w, found.damaged == 0 && found.foreign == 0);
    tamis_store_get_stats(store, &stats);
    WANT(w, stats.tiers[TAMIS_TIER_MEMORY].bytes <= stats.tiers[TAMIS_TIER_MEMORY].limit);
}

static void *work(void *of) {
    worker *w = of;
    for (unsigned i = 0; i < steps; i++) {
        const rig_chunk *chunk = &chunks[test_below(&w->random, CHUNKS)];
        const uint32_t what = test_below(&w->random, 100);
        if (what < 25) {
            /* E_FULL: what others hold leaves no room. */
            const tamis_status status = tamis_store_put(store, &chunk->put, NULL);
            WANT(w, status == TAMIS_OK || status == TAMIS_E_FULL);
        } else if (what < 70) {
            get(w, chunk);
        } else if (what < 80) {
            WANT(w, tamis_store_remove(store, &chunk->put.id, NULL, NULL) == TAMIS_OK);
        } else if (what < 97) {
            read_chunk(w, shared, &chunks[0]);
        } else {
            look_around(w);
        }
    }
    return NULL;
}

static void play(uint64_t memory_bytes, uint64_t disk_bytes) {
    worker workers[THREADS] = {{0}};
    unsigned found = 0;
    store = rig_open(0, disk_bytes, true);
    OK(tamis_store_put(store, &chunks[0].put, &test_error));
    tamis_store_destroy(&store);
    store = rig_open(memory_bytes, disk_bytes, true);
    shared = rig_get(store, &chunks[0]); /* its planes come from disk, by several threads */
    assert_non_null(shared);
    for (int t = 0; t < THREADS; t++) {
        workers[t].random = (uint64_t)t + 1;
        assert_int_equal(pthread_create(&workers[t].thread, NULL, work, &workers[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        assert_int_equal(pthread_join(workers[t].thread, NULL), 0);
        assert_int_equal(workers[t].wrong, 0);
        found += workers[t].found;
    }
    tamis_chunk_release(&shared);
    const tamis_store_stats stats = rig_stats(store);
    assert_int_equal(stats.hits, found + 1);
    for (int t = 0; t < 2; t++) {
        assert_int_equal(stats.tiers[t].damaged, 0);
        assert_int_equal(stats.tiers[t].pinned_bytes, 0);
        assert_true(stats.tiers[t].limit == 0 || stats.tiers[t].bytes <= stats.tiers[t].limit);
    }
    assert_true(found > steps / 10);
    /* No look into the folder since: what is counted is what another store finds there. */
    tamis_store *fresh = rig_open(0, 0, true);
    assert_int_equal(stats.tiers[TAMIS_TIER_DISK].bytes, rig_bytes());
    assert_int_equal(stats.tiers[TAMIS_TIER_DISK].bytes, rig_stats(fresh).tiers[1].bytes);
    assert_int_equal(stats.tiers[TAMIS_TIER_DISK].records, rig_stats(fresh).tiers[1].records);
    tamis_store_destroy(&fresh);
    tamis_store_destroy(&store);
    rig_cleanup();
}

static void threads_share_a_store(void **state) {
    (void)state;
    play(6 * chunks[0].record_bytes, 0);
}

static void threads_share_little_room(void **state) {
    (void)state;
    play(3 * chunks[0].record_bytes, 7 * chunks[0].record_bytes);
}

static int teardown(void **state) {
    (void)state;
    rig_cleanup();
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) steps = (unsigned)strtoul(argv[1], NULL, 10);
    for (uint32_t i = 0; i < CHUNKS; i++)
        rig_chunk_make(&chunks[i], i, 150 + i);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(threads_share_a_store, teardown),
        cmocka_unit_test_teardown(threads_share_little_room, teardown),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t i = 0; i < CHUNKS; i++)
        rig_chunk_free(&chunks[i]);
    return failed;
}
