/* SPDX-License-Identifier: Apache-2.0 */
/* The store's calls, one subject a test: what they take and refuse, what comes back, what two
 * tenants share, what is on disk for the next process. */
#include "tests/store/rig.h"

#include <time.h>
#include <unistd.h>

#define MIB (1u << 20)

static int teardown(void **state) {
    (void)state;
    rig_cleanup();
    return 0;
}

static void what_is_put_is_read(void **state) {
    (void)state;
    static const uint32_t lengths[] = {1, 127, 128, 129, 600}; /* planes of less, of just a page */
    for (int disk = 0; disk < 2; disk++) {
        tamis_store *store = rig_open(disk ? 0 : MIB, 0, disk);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            rig_chunk chunk;
            rig_chunk_make(&chunk, i, lengths[i]);
            assert_false(rig_has(store, &chunk));
            OK(tamis_store_put(store, &chunk.put, &test_error));
            assert_true(rig_has(store, &chunk));
            rig_chunk_free(&chunk);
        }
        const tamis_store_stats stats = rig_stats(store);
        assert_int_equal(stats.hits, 5);
        assert_int_equal(stats.misses, 5);
        assert_int_equal(stats.tiers[disk].hits, 5);
        assert_int_equal(stats.tiers[disk].puts, 5);
        assert_int_equal(stats.tiers[disk].records, 5);
        assert_int_equal(stats.tiers[!disk].limit, 0);
        assert_int_equal(stats.tiers[disk].pinned_bytes, 0);
        tamis_store_destroy(&store);
        assert_null(store);
        rig_cleanup();
    }
}

static void layers_are_read_alone(void **state) {
    (void)state;
    rig_chunk chunk;
    rig_chunk_make(&chunk, 3, 200);
    uint8_t *to = malloc(chunk.plane_bytes);
    tamis_store *store = rig_open(0, 0, true);
    OK(tamis_store_put(store, &chunk.put, &test_error));
    tamis_chunk *found = rig_get(store, &chunk);
    OK(tamis_chunk_read(found, 2, NULL, to, &test_error));
    assert_memory_equal(to, chunk.v[2], chunk.plane_bytes);
    OK(tamis_chunk_read(found, 1, to, NULL, &test_error));
    assert_memory_equal(to, chunk.k[1], chunk.plane_bytes);
    FAILS(tamis_chunk_read(found, 3, to, NULL, &test_error), TAMIS_E_ARGUMENT, "layer 3");
    FAILS(tamis_chunk_read(found, 0, NULL, NULL, &test_error), TAMIS_E_ARGUMENT, "neither");
    FAILS(tamis_chunk_read(NULL, 0, to, to, &test_error), TAMIS_E_ARGUMENT, "NULL");
    tamis_chunk_release(&found);
    tamis_chunk_release(&found);
    tamis_chunk_release(NULL);
    tamis_store_destroy(&store);
    free(to);
    rig_chunk_free(&chunk);
}

/* A chunk that is released after its store: the store ends with it. */
static void a_chunk_outlives_its_store(void **state) {
    (void)state;
    for (int disk = 0; disk < 2; disk++) {
        rig_chunk chunk;
        rig_chunk_make(&chunk, 3, 200);
        uint8_t *to = malloc(chunk.plane_bytes);
        tamis_store *store = rig_open(disk ? 0 : MIB, 0, disk);
        OK(tamis_store_put(store, &chunk.put, &test_error));
        tamis_chunk *found = rig_get(store, &chunk);
        tamis_store_destroy(&store);
        FAILS(tamis_chunk_read(found, 0, to, NULL, &test_error), TAMIS_E_STATE,
              "the store from which the chunk was made has been destroyed");
        tamis_chunk_release(&found);
        free(to);
        rig_chunk_free(&chunk);
        rig_cleanup();
    }
}

/* A record is found again by another store; the oldest use goes first there too. */
static void disk_outlives_the_store(void **state) {
    (void)state;
    const struct timespec tick = {.tv_nsec = 20000000}; /* more than one of the clock of files */
    rig_chunk chunks[4];
    for (uint32_t i = 0; i < 4; i++)
        rig_chunk_make(&chunks[i], i, 40 + i);
    tamis_store *store = rig_open(MIB, 0, true);
    for (uint32_t i = 0; i < 4; i++)
        OK(tamis_store_put(store, &chunks[i].put, &test_error));
    tamis_store_destroy(&store);

    store = rig_open(MIB, 0, true);
    assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_DISK].records, 4);
    nanosleep(&tick, NULL);
    assert_true(rig_has(store, &chunks[0]));
    for (uint32_t i = 1; i < 4; i++) {
        assert_true(rig_has(store, &chunks[i]));
        nanosleep(&tick, NULL);
    }
    assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_MEMORY].promoted, 4);
    assert_true(rig_has(store, &chunks[1])); /* from memory: the file does not know */
    tamis_store_destroy(&store);

    store = rig_open(0, 0, true);
    assert_true(rig_has(store, &chunks[0]));
    tamis_store_destroy(&store);
    store = rig_open(0, 2 * chunks[3].record_bytes, true);
    assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_DISK].records, 2);
    assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_DISK].evicted, 2);
    assert_true(rig_has(store, &chunks[0]));
    assert_true(rig_has(store, &chunks[3]));
    assert_int_equal(rig_count(".kv"), 2);
    tamis_store_destroy(&store);
    for (uint32_t i = 0; i < 4; i++)
        rig_chunk_free(&chunks[i]);
}

/* The same tokens under another salt, model, parent or shape, and other tokens, are other chunks. */
static void ids_are_all_of_it(void **state) {
    (void)state;
    enum { OTHERS = 11 };
    rig_chunk chunk;
    rig_chunk_make(&chunk, 1, 50);
    chunk.put.id.shape.sink = 0;
    for (int disk = 0; disk < 2; disk++) {
        tamis_store *store = rig_open(disk ? 0 : MIB, 0, disk);
        OK(tamis_store_put(store, &chunk.put, &test_error));
        tamis_chunk_id others[OTHERS];
        int32_t tokens[RIG_MOST];
        memcpy(tokens, chunk.tokens, sizeof tokens);
        tokens[49]++;
        for (int i = 0; i < OTHERS; i++)
            others[i] = chunk.put.id;
        others[0].salt[15] = 1;
        others[1].fingerprint[15] = 1;
        others[2].n_tokens--;
        others[3].tokens = tokens;
        others[4].tokens++;
        others[5].parent[15] = 1;
        others[6].shape.dtype = TAMIS_BF16; /* as many bytes */
        others[7].shape.sink = 2;
        others[8].shape.n_kv_heads = 1, others[8].shape.head_dim = 16;
        others[9].shape.n_layers--;
        others[10].shape.cache_dtype = TAMIS_Q4;
        uint8_t key[16], other[16];
        OK(tamis_chunk_key(&chunk.put.id, key, &test_error));
        for (int i = 0; i < OTHERS; i++) {
            tamis_chunk *found = NULL;
            int removed = 1;
            OK(tamis_chunk_key(&others[i], other, &test_error));
            assert_memory_not_equal(key, other, 16);
            OK(tamis_store_get(store, &others[i], &found, &test_error));
            assert_null(found);
            OK(tamis_store_remove(store, &others[i], &removed, &test_error));
            assert_int_equal(removed, 0);
        }
        assert_int_equal(rig_stats(store).misses, OTHERS);
        assert_true(rig_has(store, &chunk));
        /* A tenant's own record of the same tokens stands beside it. */
        chunk.put.id.salt[15] = 1;
        OK(tamis_store_put(store, &chunk.put, &test_error));
        assert_int_equal(rig_stats(store).tiers[disk].puts, 2);
        chunk.put.id.salt[15] = 0;
        tamis_store_destroy(&store);
    }
    rig_chunk_free(&chunk);
}

/* A key is fixed as long as the version of records is. */
static void keys_do_not_change(void **state) {
    (void)state;
    static const int32_t tokens[] = {1, -2, 300000};
    static const uint8_t wanted[16] = {0x17, 0xb1, 0x72, 0xb4, 0x3e, 0x60, 0xdb, 0xcc,
                                       0x40, 0xd5, 0xfc, 0x52, 0xa9, 0x50, 0x54, 0xae};
    tamis_chunk_id id = {.tokens = tokens,
                         .n_tokens = 3,
                         .shape = {.n_layers = 30,
                                   .n_kv_heads = 3,
                                   .head_dim = 64,
                                   .dtype = TAMIS_BF16,
                                   .cache_dtype = TAMIS_Q8}};
    uint8_t key[16];
    id.fingerprint[0] = 7;
    id.salt[0] = 9;
    id.parent[15] = 11;
    OK(tamis_chunk_key(&id, key, &test_error));
    assert_memory_equal(key, wanted, 16);
}

/* Which tokens a sink has, and in which order, decides; it is fixed for good, too. */
static void fingerprints_know_the_sink(void **state) {
    (void)state;
    static const int32_t sink[] = {1, -2, 300000}, other[] = {-2, 1, 300000};
    static const uint8_t wanted[16] = {0x23, 0x55, 0x1b, 0x9d, 0xb6, 0x49, 0x11, 0x9b,
                                       0xba, 0x20, 0x34, 0xe3, 0x35, 0x1d, 0xc4, 0x52};
    const uint8_t own[16] = {7};
    uint8_t behind[16], same[16] = {7};
    OK(tamis_fingerprint_extend(own, sink, 3, behind, &test_error));
    assert_memory_equal(behind, wanted, 16);
    OK(tamis_fingerprint_extend(same, sink, 3, same, &test_error));
    assert_memory_equal(same, wanted, 16);
    OK(tamis_fingerprint_extend(own, other, 3, same, &test_error));
    assert_memory_not_equal(same, wanted, 16);
    OK(tamis_fingerprint_extend(own, sink, 2, same, &test_error));
    assert_memory_not_equal(same, wanted, 16);
    OK(tamis_fingerprint_extend(own, NULL, 0, same, &test_error));
    assert_memory_equal(same, own, 16);
    FAILS(tamis_fingerprint_extend(NULL, sink, 3, same, &test_error), TAMIS_E_ARGUMENT,
          "fingerprint");
    FAILS(tamis_fingerprint_extend(own, sink, 3, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    FAILS(tamis_fingerprint_extend(own, NULL, 3, same, &test_error), TAMIS_E_ARGUMENT,
          "NULL for 3 tokens");
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t last_used(tamis_store *store, const rig_chunk *chunk) {
    tamis_chunk_info infos[4];
    uint8_t key[16];
    size_t count = 0;
    OK(tamis_chunk_key(&chunk->put.id, key, &test_error));
    OK(tamis_store_list(store, infos, 4, &count, &test_error));
    for (size_t i = 0; i < count; i++)
        if (memcmp(infos[i].key, key, 16) == 0) return infos[i].last_used;
    fail_msg("not listed");
    return 0;
}

/* A list says when a record was used last: in memory, on disk, and in a store that opens later. A
 * file system may cut times to its own steps, a thousandth of a second here. */
static void a_list_says_when(void **state) {
    (void)state;
    const int64_t step = 20000000;
    rig_chunk a, b;
    rig_chunk_make(&a, 1, 20);
    rig_chunk_make(&b, 2, 20);
    for (int disk = 0; disk < 2; disk++) {
        tamis_store *store = rig_open(disk ? 0 : MIB, 0, disk);
        const int64_t start = now();
        OK(tamis_store_put(store, &a.put, &test_error));
        OK(tamis_store_put(store, &b.put, &test_error));
        const int64_t put = last_used(store, &a);
        assert_in_range(put, start - step, now() + step);
        const struct timespec pause = {.tv_nsec = 3 * step};
        nanosleep(&pause, NULL);
        assert_true(rig_has(store, &a));
        assert_true(last_used(store, &a) >= put + 2 * step);
        assert_true(last_used(store, &b) < put + 2 * step);
        if (disk) {
            const int64_t before = last_used(store, &a);
            tamis_store_destroy(&store);
            nanosleep(&pause, NULL);
            store = rig_open(0, 0, true);
            assert_in_range(last_used(store, &a), before - step, before + step);
            assert_true(last_used(store, &b) < put + 2 * step);
        }
        tamis_store_destroy(&store);
    }
    rig_chunk_free(&a);
    rig_chunk_free(&b);
}

/* By the key alone, in each tier; another record stays. */
static void keys_are_removed(void **state) {
    (void)state;
    rig_chunk a, b;
    uint8_t key[16];
    int removed = 7;
    rig_chunk_make(&a, 1, 20);
    rig_chunk_make(&b, 2, 20);
    OK(tamis_chunk_key(&a.put.id, key, &test_error));
    for (int disk = 0; disk < 2; disk++) {
        tamis_store *store = rig_open(MIB, 0, disk);
        OK(tamis_store_put(store, &a.put, &test_error));
        OK(tamis_store_put(store, &b.put, &test_error));
        OK(tamis_store_remove_key(store, key, &removed, &test_error));
        assert_int_equal(removed, 1);
        assert_false(rig_has(store, &a));
        assert_true(rig_has(store, &b));
        OK(tamis_store_remove_key(store, key, &removed, &test_error));
        assert_int_equal(removed, 0);
        FAILS(tamis_store_remove_key(NULL, key, &removed, &test_error), TAMIS_E_ARGUMENT, "store");
        FAILS(tamis_store_remove_key(store, NULL, &removed, &test_error), TAMIS_E_ARGUMENT, "key");
        tamis_store_destroy(&store);
        if (disk) assert_int_equal(rig_count(".kv"), 1);
    }
    rig_chunk_free(&a);
    rig_chunk_free(&b);
}

static void the_first_of_two_wins(void **state) {
    (void)state;
    rig_chunk chunk, other;
    rig_chunk_make(&chunk, 1, 50);
    rig_chunk_make(&other, 1, 50);
    memset(other.bytes, 0, other.plane_bytes);
    tamis_store *store = rig_open(MIB, 0, true);
    OK(tamis_store_put(store, &chunk.put, &test_error));
    OK(tamis_store_put(store, &other.put, &test_error));
    assert_true(rig_has(store, &chunk));
    const tamis_store_stats stats = rig_stats(store);
    assert_int_equal(stats.tiers[TAMIS_TIER_DISK].puts, 1);
    assert_int_equal(stats.tiers[TAMIS_TIER_DISK].known, 1);
    tamis_store_destroy(&store);

    /* Nor are they mixed: the first layer of one in memory, and then the other on disk. */
    store = rig_open(MIB, 0, true);
    uint8_t *to = malloc(chunk.plane_bytes);
    tamis_chunk *found = rig_get(store, &chunk);
    OK(tamis_chunk_read(found, 0, to, NULL, &test_error));
    tamis_chunk_release(&found);
    assert_int_equal(unlink(rig_file(&chunk)), 0);
    tamis_store *second = rig_open(0, 0, true);
    OK(tamis_store_put(second, &other.put, &test_error));
    assert_true(rig_has(store, &other));
    tamis_store_destroy(&second);
    tamis_store_destroy(&store);
    free(to);
    rig_chunk_free(&chunk);
    rig_chunk_free(&other);
}

static void tiers_are_chosen(void **state) {
    (void)state;
    rig_chunk chunk;
    tamis_store *store = rig_open(MIB, MIB, true);
    for (uint32_t tiers = 1; tiers < 4; tiers++) {
        rig_chunk_make(&chunk, tiers, 30);
        chunk.put.tiers = tiers;
        tamis_chunk_info info[4];
        size_t count = 0;
        OK(tamis_store_put(store, &chunk.put, &test_error));
        OK(tamis_store_list(store, info, 4, &count, &test_error));
        assert_int_equal(count, 1);
        assert_int_equal(info[0].tiers, tiers);
        assert_int_equal(info[0].n_tokens, 30);
        assert_int_equal(info[0].record_bytes, chunk.record_bytes);
        assert_int_equal(info[0].pins, 0);
        assert_null(info[0].tokens);
        int removed = 0;
        OK(tamis_store_remove(store, &chunk.put.id, &removed, &test_error));
        assert_int_equal(removed, 1);
        OK(tamis_store_list(store, NULL, 0, &count, &test_error));
        assert_int_equal(count, 0);
        assert_int_equal(rig_count(".kv"), 0);
        rig_chunk_free(&chunk);
    }
    rig_chunk_make(&chunk, 9, 30);
    chunk.put.tiers = 4;
    FAILS(tamis_store_put(store, &chunk.put, &test_error), TAMIS_E_ARGUMENT, "0x4");
    tamis_store_destroy(&store);
    store = rig_open(0, MIB, true);
    chunk.put.tiers = 1;
    FAILS(tamis_store_put(store, &chunk.put, &test_error), TAMIS_E_ARGUMENT, "store has 0x2");
    tamis_store_destroy(&store);
    rig_chunk_free(&chunk);
}

/* A chunk that is held can be read whatever becomes of it. */
static void held_chunks_stay(void **state) {
    (void)state;
    rig_chunk chunk, other;
    rig_chunk_make(&chunk, 1, 60);
    rig_chunk_make(&other, 2, 60);
    for (int disk = 0; disk < 2; disk++) {
        const uint64_t limit = chunk.record_bytes;
        tamis_store *store = rig_open(disk ? 0 : limit, disk ? limit : 0, disk);
        OK(tamis_store_put(store, &chunk.put, &test_error));
        tamis_chunk *found = rig_get(store, &chunk);
        assert_int_equal(rig_stats(store).tiers[disk].pinned_bytes, limit);
        FAILS(tamis_store_put(store, &other.put, &test_error), TAMIS_E_FULL, "are pinned");
        int removed;
        OK(tamis_store_remove(store, &chunk.put.id, &removed, &test_error));
        assert_false(rig_has(store, &chunk));
        FAILS(tamis_store_put(store, &other.put, &test_error), TAMIS_E_FULL, "are pinned");
        rig_check(found, &chunk);
        tamis_chunk_release(&found);
        assert_int_equal(rig_stats(store).tiers[disk].bytes, 0);
        OK(tamis_store_put(store, &other.put, &test_error));
        assert_int_equal(rig_stats(store).failed, 2);
        tamis_store_destroy(&store);
    }
    rig_chunk_free(&chunk);
    rig_chunk_free(&other);
}

static void limits_are_kept(void **state) {
    (void)state;
    rig_chunk chunk, large;
    rig_chunk_make(&large, 1, 600);
    rig_chunk_make(&chunk, 2, 10);
    tamis_store *store = rig_open(large.record_bytes - 1, 2 * large.record_bytes, true);
    OK(tamis_store_put(store, &large.put, &test_error)); /* on disk alone */
    assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_MEMORY].records, 0);
    assert_true(rig_has(store, &large));
    large.put.tiers = 3;
    char wanted[64];
    snprintf(wanted, sizeof wanted, "%llu bytes: the memory tier is limited to %llu",
             (unsigned long long)large.record_bytes, (unsigned long long)large.record_bytes - 1);
    FAILS(tamis_store_put(store, &large.put, &test_error), TAMIS_E_FULL, wanted);
    OK(tamis_store_put(store, &chunk.put, &test_error));
    tamis_store_destroy(&store);
    store = rig_open(0, chunk.record_bytes - 1, true);
    FAILS(tamis_store_put(store, &chunk.put, &test_error), TAMIS_E_FULL, "the disk tier");
    assert_int_equal(rig_count(".tmp"), 0);
    tamis_store_destroy(&store);
    rig_chunk_free(&chunk);
    rig_chunk_free(&large);
}

static void arguments_are_checked(void **state) {
    (void)state;
    tamis_store *store = NULL;
    tamis_chunk *found = NULL;
    tamis_store_params params = {.disk_bytes = 1};
    rig_chunk chunk;
    rig_chunk_make(&chunk, 1, 20);
    uint8_t key[16];
    FAILS(tamis_store_create(NULL, &store, &test_error), TAMIS_E_ARGUMENT, "params");
    FAILS(tamis_store_create(&params, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    FAILS(tamis_store_create(&params, &store, &test_error), TAMIS_E_ARGUMENT, "disk_bytes is 1");
    params.disk_bytes = 0;
    FAILS(tamis_store_create(&params, &store, &test_error), TAMIS_E_ARGUMENT, "without a tier");
    params.memory_bytes = MIB;
    params.reserved[1] = 1;
    FAILS(tamis_store_create(&params, &store, &test_error), TAMIS_E_ARGUMENT, "reserved[1]");
    char below[2 * RIG_MOST_PATH];
    snprintf(below, sizeof below, "%s/store", rig_folder()); /* which is not made */
    params = (tamis_store_params){.folder = below};
    FAILS(tamis_store_create(&params, &store, &test_error), TAMIS_E_IO, below);
    params.folder = "/dev/null";
    FAILS(tamis_store_create(&params, &store, &test_error), TAMIS_E_IO, "/dev/null");
    assert_null(store);
#ifndef TAMIS_HAVE_REDIS
    params = (tamis_store_params){.memory_bytes = MIB, .redis = "localhost:6379"};
    FAILS(tamis_store_create(&params, &store, &test_error), TAMIS_E_UNSUPPORTED, "localhost:6379");
#endif

    store = rig_open(MIB, 0, false);
    tamis_chunk_planes put = chunk.put;
#define REFUSED(change, part)                                                                      \
    do {                                                                                           \
        put = chunk.put;                                                                           \
        change;                                                                                    \
        FAILS(tamis_store_put(store, &put, &test_error), TAMIS_E_ARGUMENT, part);                  \
    } while (0)
    REFUSED(put.id.tokens = NULL, "tokens");
    REFUSED(put.id.n_tokens = 0, "0 tokens");
    REFUSED(put.id.n_tokens = 4194305, "4194305 tokens");
    REFUSED(put.id.reserved[1] = 5, "reserved[1] of tamis_chunk_id is 5");
    REFUSED(put.id.shape.n_layers = 0, "n_layers of the chunk is 0");
    REFUSED(put.id.shape.n_kv_heads = 1025, "n_kv_heads of the chunk is 1025");
    REFUSED(put.id.shape.head_dim = 4097, "head_dim of the chunk is 4097");
    REFUSED(put.id.shape.dtype = (tamis_dtype)9, "dtype of the chunk is 9");
    REFUSED(put.id.shape.cache_dtype = (tamis_dtype)99, "cache_dtype of the chunk is 99");
    REFUSED((put.id.parent[0] = 1, put.id.shape.sink = 2), "sink of a chunk with a parent is 2");
    REFUSED(put.reserved[3] = 2, "reserved[3]");
    REFUSED(put.reserved32 = 2, "reserved32 of tamis_chunk_planes is 2");
    REFUSED(put.k = NULL, "k of the chunk");
    const void *some[RIG_LAYERS] = {chunk.bytes, NULL, chunk.bytes};
    REFUSED(put.v = some, "v of layer 1");
    FAILS(tamis_store_put(NULL, &put, &test_error), TAMIS_E_ARGUMENT, "store");
    FAILS(tamis_store_put(store, NULL, &test_error), TAMIS_E_ARGUMENT, "chunk");
    FAILS(tamis_store_get(store, NULL, &found, &test_error), TAMIS_E_ARGUMENT, "id");
    FAILS(tamis_store_get(NULL, &chunk.put.id, &found, &test_error), TAMIS_E_ARGUMENT, "store");
    FAILS(tamis_store_get(store, &chunk.put.id, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    FAILS(tamis_store_remove(NULL, &chunk.put.id, NULL, &test_error), TAMIS_E_ARGUMENT, "store");
    FAILS(tamis_chunk_key(&chunk.put.id, NULL, &test_error), TAMIS_E_ARGUMENT, "key");
    size_t count;
    FAILS(tamis_store_list(store, NULL, 1, &count, &test_error), TAMIS_E_ARGUMENT, "infos");
    FAILS(tamis_store_verify(store, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    FAILS(tamis_store_gc(store, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    assert_int_equal(rig_stats(store).failed, 0);
    assert_int_equal(tamis_chunk_record_bytes(&(tamis_chunk_shape){0}, 1), 0);
    assert_int_equal(tamis_chunk_plane_bytes(NULL, 1), 0);
    OK(tamis_chunk_key(&chunk.put.id, key, &test_error));
    assert_string_equal(tamis_tier_name(TAMIS_TIER_DISK), "disk");
    assert_string_equal(tamis_tier_name(TAMIS_TIER_REDIS), "redis");
    tamis_store_destroy(&store);
    rig_chunk_free(&chunk);
}

int main(int argc, char **argv) {
    const int skip = test_begin(argc, argv);
    rig_in_memory(); /* some file systems keep times of files in whole seconds */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_is_put_is_read, teardown),
        cmocka_unit_test_teardown(layers_are_read_alone, teardown),
        cmocka_unit_test_teardown(a_chunk_outlives_its_store, teardown),
        cmocka_unit_test_teardown(disk_outlives_the_store, teardown),
        cmocka_unit_test_teardown(ids_are_all_of_it, teardown),
        cmocka_unit_test_teardown(keys_do_not_change, teardown),
        cmocka_unit_test_teardown(fingerprints_know_the_sink, teardown),
        cmocka_unit_test_teardown(a_list_says_when, teardown),
        cmocka_unit_test_teardown(keys_are_removed, teardown),
        cmocka_unit_test_teardown(the_first_of_two_wins, teardown),
        cmocka_unit_test_teardown(tiers_are_chosen, teardown),
        cmocka_unit_test_teardown(held_chunks_stay, teardown),
        cmocka_unit_test_teardown(limits_are_kept, teardown),
        cmocka_unit_test_teardown(arguments_are_checked, teardown),
    };
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
