/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that reads chunks ahead: everything in order and whole, no further ahead than the
 * ring, ended at any time; several on one store, under ThreadSanitizer too. Usage:
 * test-blend-loader [ROUNDS] */
#include "lib/blend/loader.h"
#include "tests/store/rig.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#define CHUNKS 4u
#define READS  (2 * CHUNKS * RIG_LAYERS)

static unsigned rounds = 200;
static rig_chunk chunks[CHUNKS];
static tamis_store *store;
static tamis_chunk *found[CHUNKS];
static tms_read reads[READS];
static uint32_t n_reads;

/* ---- A store and a list ---------------------------------------------------------------------- */

static void open_all(uint64_t memory_bytes) {
    store = rig_open(memory_bytes, 0, true);
    n_reads = 0;
    for (uint32_t c = 0; c < CHUNKS; c++)
        OK(tamis_store_put(store, &chunks[c].put, &test_error));
    for (uint32_t c = 0; c < CHUNKS; c++) {
        found[c] = rig_get(store, &chunks[c]);
        assert_non_null(found[c]);
    }
    /* As a blend reads: layer by layer, V alone in one of them; one chunk twice. */
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
        for (uint32_t i = 0; i <= CHUNKS; i++)
            reads[n_reads++] = (tms_read){.chunk = found[i % CHUNKS],
                                          .layer = layer,
                                          .part = i % CHUNKS,
                                          .k = layer != 1,
                                          .v = true,
                                          .plane_bytes = chunks[i % CHUNKS].plane_bytes};
}

static void close_all(void) {
    for (uint32_t c = 0; c < CHUNKS; c++)
        tamis_chunk_release(&found[c]);
    for (int t = 0; t < 2; t++)
        assert_int_equal(rig_stats(store).tiers[t].pinned_bytes, 0);
    tamis_store_destroy(&store);
    rig_cleanup();
}

static bool same(const tms_loaded *loaded, const tms_read *read) {
    const rig_chunk *chunk = &chunks[read->part];
    return loaded->read->chunk == read->chunk && loaded->read->layer == read->layer &&
           loaded->read->part == read->part && loaded->status == TAMIS_OK &&
           (loaded->k != NULL) == read->k &&
           (!read->k || memcmp(loaded->k, chunk->k[read->layer], chunk->plane_bytes) == 0) &&
           memcmp(loaded->v, chunk->v[read->layer], chunk->plane_bytes) == 0;
}

static uint64_t largest(void) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_reads; i++)
        if (tms_read_bytes(&reads[i]) > bytes) bytes = tms_read_bytes(&reads[i]);
    return bytes;
}

/* Starts with a ring of at most so many bytes, which is kept from one start to the next. */
static tamis_status start(tms_loader *loader, uint8_t **ring, uint64_t most, bool threaded,
                          tamis_error *error) {
    static _Thread_local tms_read placed[READS];
    tms_loader_stop(loader);
    memcpy(placed, reads, sizeof placed);
    const tms_ring_shape shape = tms_reads_place(placed, n_reads, most, threaded);
    free(*ring);
    *ring = malloc(shape.bytes);
    return tms_loader_start(loader, placed, n_reads, &shape, *ring, threaded, error);
}

/* How many reads the ring takes when so many have been given back. */
static uint32_t most_read(uint64_t most, uint32_t given) {
    tms_read placed[READS];
    uint32_t n = given;
    memcpy(placed, reads, sizeof placed);
    tms_reads_place(placed, n_reads, most, true);
    while (n < n_reads && placed[n].behind <= given)
        n++;
    return n;
}

static uint32_t ahead(tms_loader *loader, uint32_t *given) {
    pthread_mutex_lock(&loader->mutex);
    const uint32_t n = loader->n_read;
    *given = loader->n_given;
    pthread_mutex_unlock(&loader->mutex);
    return n;
}

/* ---- Tests ----------------------------------------------------------------------------------- */

/* Places of reads of any sizes: inside the ring, apart from all that has not been given back, and
 * as close behind it as can be. */
static void places_do_not_overlap(void **state) {
    (void)state;
    uint64_t random = 7;
    for (unsigned round = 0; round < 20 * rounds; round++) {
        enum { MOST = 40 };
        tms_read list[MOST];
        const uint32_t n = 1 + test_below(&random, MOST);
        uint64_t large = 0;
        for (uint32_t i = 0; i < n; i++) {
            list[i] = (tms_read){.k = test_below(&random, 2),
                                 .v = true,
                                 .plane_bytes = 1 + test_below(&random, 1000)};
            if (tms_read_bytes(&list[i]) > large) large = tms_read_bytes(&list[i]);
        }
        const uint64_t most = 64 * test_below(&random, 400);
        const bool threaded = test_below(&random, 4) > 0;
        const tms_ring_shape shape = tms_reads_place(list, n, most, threaded);
        assert_true(shape.bytes >= large && shape.bytes <= (most > large ? most : large));
        uint32_t together = 0;
        for (uint32_t i = 0; i < n; i++) {
            const uint64_t begin = list[i].at, end = begin + tms_read_bytes(&list[i]);
            bool apart = true;
            assert_true(begin % 64 == 0 && end <= shape.bytes && list[i].behind <= i);
            for (uint32_t j = list[i].behind; j < i; j++)
                apart &= list[j].at >= end || list[j].at + tms_read_bytes(&list[j]) <= begin;
            assert_true(apart);
            if (list[i].behind > 0 && threaded) {
                const tms_read *last = &list[list[i].behind - 1];
                assert_true(last->at < end && last->at + tms_read_bytes(last) > begin);
            }
            if (i + 1 - list[i].behind > together) together = i + 1 - list[i].behind;
        }
        assert_int_equal(shape.n_slots, threaded ? together : 1);
    }
}

static void all_is_read_in_order(void **state) {
    (void)state;
    tms_loader loader;
    uint8_t *ring = NULL;
    uint64_t random = 1;
    open_all(0);
    OK(tms_loader_init(&loader, NULL, NULL, &test_error));
    for (unsigned round = 0; round < rounds; round++) {
        const uint32_t slots = 1 + test_below(&random, n_reads + 2);
        const bool threaded = test_below(&random, 4) > 0;
        OK(start(&loader, &ring, slots * largest(), threaded, &test_error));
        assert_in_range(loader.n_slots, 1, n_reads);
        /* Some lists are left in the middle. */
        const uint32_t n = test_below(&random, 3) ? n_reads : test_below(&random, n_reads);
        for (uint32_t i = 0; i < n; i++) {
            const tms_loaded *loaded = tms_loader_take(&loader);
            if (!same(loaded, &reads[i])) fail_msg("round %u, read %u", round, i);
            assert_true(loaded->read_us >= 0 && loaded->wait_us >= 0);
            tms_loader_give(&loader);
        }
        if (test_below(&random, 2)) tms_loader_stop(&loader);
    }
    tms_loader_free(&loader);
    free(ring);
    close_all();
}

/* The thread fills the ring while nobody takes, and no more; a slot that is held is not filled. */
static void the_ring_holds_the_thread_back(void **state) {
    (void)state;
    tms_loader loader;
    uint8_t *ring = NULL;
    uint32_t given = 0;
    open_all(16 * chunks[0].record_bytes);
    const uint64_t most = 3 * largest() + 5;
    OK(tms_loader_init(&loader, NULL, NULL, &test_error));
    OK(start(&loader, &ring, most, true, &test_error));
    const uint32_t first = most_read(most, 0);
    assert_in_range(first, 3, n_reads - 1);
    for (int waited = 0; ahead(&loader, &given) < first; waited++) {
        assert_true(waited < 10000);
        rig_nap(1);
    }
    rig_nap(20);
    assert_int_equal(ahead(&loader, &given), first);
    for (uint32_t i = 0; i < n_reads; i++) {
        const tms_loaded *loaded = tms_loader_take(&loader);
        if (i == 4) rig_nap(20); /* what others read meanwhile is elsewhere */
        assert_true(same(loaded, &reads[i]));
        assert_ptr_equal(tms_loader_peek(&loader, i), loaded);
        assert_null(tms_loader_peek(&loader, most_read(most, i))); /* there is no room for it */
        if (i > 0) assert_null(tms_loader_peek(&loader, i - 1));
        const tms_loaded *next = tms_loader_peek(&loader, i + 1);
        assert_true(!next || same(next, &reads[i + 1]));
        if (i == 4) assert_non_null(next);
        tms_loader_give(&loader);
        assert_true(ahead(&loader, &given) <= most_read(most, i + 1));
        assert_int_equal(given, i + 1);
    }
    tms_loader_free(&loader);
    free(ring);
    close_all();
}

static void an_empty_list_needs_nothing(void **state) {
    (void)state;
    tms_loader loader;
    const tms_ring_shape none = tms_reads_place(NULL, 0, 0, true);
    OK(tms_loader_init(&loader, NULL, NULL, &test_error));
    OK(tms_loader_start(&loader, NULL, 0, &none, NULL, true, &test_error));
    assert_false(loader.threaded);
    tms_loader_stop(&loader);
    tms_loader_free(&loader);
}

/* What the store answers reaches who takes it; the reads behind it go on. */
static void damage_is_told(void **state) {
    (void)state;
    for (int threaded = 0; threaded < 2; threaded++) {
        tms_loader loader;
        uint8_t *ring = NULL;
        open_all(0);
        const int file = open(rig_file(&chunks[2]), O_RDWR);
        const uint8_t wrong[] = {1, 2, 3, 4, 5, 6, 7, 8};
        /* Of K of layer 2: a header of one page, and two planes of each layer before. */
        const uint64_t plane = (chunks[2].plane_bytes + 4095) / 4096 * 4096;
        assert_int_equal(pwrite(file, wrong, 8, (off_t)(4096 + 4 * plane)), 8);
        close(file);
        OK(tms_loader_init(&loader, NULL, NULL, &test_error));
        OK(start(&loader, &ring, 4 * largest(), threaded, &test_error));
        for (uint32_t i = 0; i < n_reads; i++) {
            const tms_loaded *loaded = tms_loader_take(&loader);
            if (reads[i].part == 2 && reads[i].layer == 2) {
                assert_int_equal(loaded->status, TAMIS_E_DAMAGED);
                assert_true(loaded->error.text[0] != 0);
            } else
                assert_true(same(loaded, &reads[i]));
            tms_loader_give(&loader);
        }
        tms_loader_free(&loader);
        free(ring);
        close_all();
    }
}

/* Fails at one of its calls, and takes part of the others. */
typedef struct own_reader {
    uint32_t calls, fails_at;
} own_reader;

static tamis_status read_own(void *user, tamis_chunk *chunk, uint32_t layer, void *k, void *v,
                             tamis_error *error) {
    own_reader *own = user;
    if (own->calls++ != own->fails_at) return tamis_chunk_read(chunk, layer, k, v, error);
    snprintf(error->text, sizeof error->text, "the line is cut");
    return error->status = TAMIS_E_IO;
}

static void a_reader_of_the_caller_reads(void **state) {
    (void)state;
    open_all(0);
    for (int threaded = 0; threaded < 2; threaded++) {
        tms_loader loader;
        uint8_t *ring = NULL;
        own_reader own = {.fails_at = 3};
        OK(tms_loader_init(&loader, read_own, &own, &test_error));
        OK(start(&loader, &ring, 4 * largest(), threaded, &test_error));
        for (uint32_t i = 0; i < n_reads; i++) {
            const tms_loaded *loaded = tms_loader_take(&loader);
            if (i == own.fails_at) {
                assert_int_equal(loaded->status, TAMIS_E_IO);
                assert_string_equal(loaded->error.text, "the line is cut");
            } else
                assert_true(same(loaded, &reads[i]));
            tms_loader_give(&loader);
        }
        tms_loader_free(&loader);
        free(ring);
        assert_int_equal(own.calls, n_reads);
    }
    close_all();
}

/* ---- Without a thread, without memory -------------------------------------------------------- */

static int refused, exhausted;

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size) {
    return exhausted ? NULL : __real_malloc(size);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *of);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *of);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *of) {
    return refused ? EAGAIN : __real_pthread_create(thread, attributes, run, of);
}

static void no_thread_is_an_error(void **state) {
    (void)state;
    tms_loader loader;
    uint8_t *ring = NULL;
    open_all(0);
    OK(tms_loader_init(&loader, NULL, NULL, &test_error));
    refused = 1;
    FAILS(start(&loader, &ring, largest(), true, &test_error), TAMIS_E_NO_MEMORY,
          "no thread to read chunks");
    refused = 0;
    OK(start(&loader, &ring, largest(), true, &test_error));
    assert_true(same(tms_loader_take(&loader), &reads[0]));
    tms_loader_free(&loader);
    free(ring);
    close_all();
}

static void no_ring_is_an_error(void **state) {
    (void)state;
    tms_loader loader;
    uint8_t *ring = NULL;
    open_all(0);
    OK(tms_loader_init(&loader, NULL, NULL, &test_error));
    exhausted = 1;
    FAILS(start(&loader, &ring, largest(), true, &test_error), TAMIS_E_NO_MEMORY,
          "no memory for a ring of");
    exhausted = 0;
    OK(start(&loader, &ring, largest(), true, &test_error));
    assert_true(same(tms_loader_take(&loader), &reads[0]));
    tms_loader_free(&loader);
    free(ring);
    close_all();
}

/* ---- Threads --------------------------------------------------------------------------------- */

typedef struct worker {
    pthread_t thread;
    uint64_t random;
    unsigned wrong;
} worker;

/* cmocka's assertions belong to the main thread: workers count what is wrong. */
static void *work(void *of) {
    worker *w = of;
    tms_loader loader;
    uint8_t *ring = NULL;
    w->wrong += tms_loader_init(&loader, NULL, NULL, NULL) != TAMIS_OK;
    for (unsigned round = 0; round < rounds / 4; round++) {
        const uint64_t bytes = (1 + test_below(&w->random, 6)) * largest();
        w->wrong += start(&loader, &ring, bytes, true, NULL) != TAMIS_OK;
        const uint32_t n = test_below(&w->random, n_reads + 1);
        for (uint32_t i = 0; i < n; i++) {
            w->wrong += !same(tms_loader_take(&loader), &reads[i]);
            tms_loader_give(&loader);
        }
        tms_loader_stop(&loader);
    }
    tms_loader_free(&loader);
    free(ring);
    return NULL;
}

static void loaders_share_chunks(void **state) {
    (void)state;
    worker workers[3] = {{0}};
    open_all(3 * chunks[0].record_bytes);
    for (int t = 0; t < 3; t++) {
        workers[t].random = (uint64_t)t + 1;
        assert_int_equal(pthread_create(&workers[t].thread, NULL, work, &workers[t]), 0);
    }
    for (int t = 0; t < 3; t++) {
        assert_int_equal(pthread_join(workers[t].thread, NULL), 0);
        assert_int_equal(workers[t].wrong, 0);
    }
    close_all();
}

static int teardown(void **state) {
    (void)state;
    rig_cleanup();
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) rounds = (unsigned)strtoul(argv[1], NULL, 10);
    rig_in_memory();
    for (uint32_t c = 0; c < CHUNKS; c++)
        rig_chunk_make(&chunks[c], c, 40 + 130 * c);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_do_not_overlap),
        cmocka_unit_test_teardown(all_is_read_in_order, teardown),
        cmocka_unit_test_teardown(the_ring_holds_the_thread_back, teardown),
        cmocka_unit_test_teardown(an_empty_list_needs_nothing, teardown),
        cmocka_unit_test_teardown(damage_is_told, teardown),
        cmocka_unit_test_teardown(a_reader_of_the_caller_reads, teardown),
        cmocka_unit_test_teardown(no_thread_is_an_error, teardown),
        cmocka_unit_test_teardown(no_ring_is_an_error, teardown),
        cmocka_unit_test_teardown(loaders_share_chunks, teardown),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t c = 0; c < CHUNKS; c++)
        rig_chunk_free(&chunks[c]);
    return failed;
}
