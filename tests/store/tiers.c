/* SPDX-License-Identifier: Apache-2.0 */
/* The seam behind memory (tier.h), with tiers of the test's own in the place of remote stores: they
 * may be slow, fail or be full. None is called under the store's mutex, one that fails hides no
 * other, puts of one key at a time make one record, and what is counted is there. */
#include "lib/store/shelf.h"
#include "tests/store/rig.h"

#include <stdatomic.h>
#include <time.h>

#define MIB  (1u << 20)
#define NEAR 1 /* tiers of the test */
#define FAR  2

/* ---- A tier ---------------------------------------------------------------------------------- */

#define PLACES 64

typedef struct value {
    uint8_t key[TMS_KEY_BYTES];
    uint8_t *bytes; /* NULL: a free place */
    uint64_t size;
} value;

typedef struct fake {
    tms_tier tier;
    pthread_mutex_t mutex;
    tamis_store *store;
    value values[PLACES];
    const char *fails; /* a reason: every call answers E_IO */
    long slow;         /* nanoseconds of stage, commit and erase */
    atomic_uint under, staged;
    void (*found)(tamis_store *store); /* once, when a value was found, or has got its name */
    void (*named)(tamis_store *store);
} fake;

typedef struct fake_object {
    tms_object object;
    value value;
} fake_object;

struct tms_staged {
    value value;
};

/* What every call of a tier does first. */
static tamis_status enter(tms_tier *tier, bool slow, tamis_error *error) {
    fake *f = (fake *)tier;
    const struct timespec pause = {.tv_nsec = slow ? f->slow : 0};
    /* Other threads hold it for moments. */
    bool is_free = false;
    for (int i = 0; i < 200 && !is_free; i++) {
        is_free = pthread_mutex_trylock(&f->store->mutex) == 0;
        if (!is_free) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    if (is_free)
        pthread_mutex_unlock(&f->store->mutex);
    else
        f->under++;
    nanosleep(&pause, NULL);
    TMS_REQUIRE(!f->fails, TAMIS_E_IO, "%s", f->fails);
    return TAMIS_OK;
}

/* What another thread might do just then. */
static void once(void (**call)(tamis_store *store), tamis_store *store) {
    void (*now)(tamis_store *) = *call;
    *call = NULL;
    if (now) now(store);
}

static value *place_of(fake *f, const uint8_t *key) {
    for (int i = 0; i < PLACES; i++)
        if (f->values[i].bytes && memcmp(f->values[i].key, key, TMS_KEY_BYTES) == 0)
            return &f->values[i];
    return NULL;
}

static tamis_status read_value(void *of, uint64_t offset, void *to, size_t bytes, size_t *got,
                               tamis_error *error) {
    const fake_object *object = of;
    *got = 0;
    TMS_TRY(enter(object->object.tier, false, error));
    if (offset < object->value.size) *got = (size_t)(object->value.size - offset);
    if (*got > bytes) *got = bytes;
    memcpy(to, object->value.bytes + offset, *got);
    return TAMIS_OK;
}

static void fake_done(tms_object *object) {
    tms_record_free(&object->record);
    free(((fake_object *)object)->value.bytes);
    free(object);
}

static tamis_status fake_find(tms_tier *tier, const uint8_t *key, tms_object **out,
                              tms_verdict *verdict, tamis_error *error) {
    fake *f = (fake *)tier;
    *out = NULL;
    *verdict = TMS_ABSENT;
    TMS_TRY(enter(tier, false, error));
    pthread_mutex_lock(&f->mutex);
    const value *found = place_of(f, key);
    fake_object *object = found ? calloc(1, sizeof *object) : NULL;
    if (object) {
        object->value = *found;
        object->value.bytes = malloc(found->size);
        memcpy(object->value.bytes, found->bytes, found->size);
    }
    pthread_mutex_unlock(&f->mutex);
    if (!object) return TAMIS_OK;
    once(&f->found, f->store);
    object->object.tier = tier;
    object->object.source = (tms_source){object, object->value.size, read_value, NULL};
    *out = &object->object;
    return tms_record_read(&object->object.source, &object->object.record, verdict, error);
}

static void fake_touch(tms_object *object) {
    (void)object;
}

static tamis_status fake_stage(tms_tier *tier, const tms_record *record, const uint8_t *head,
                               const tamis_chunk_planes *chunk, tms_staged **out,
                               tamis_error *error) {
    TMS_TRY(enter(tier, true, error));
    ((fake *)tier)->staged++;
    tms_staged *staged = calloc(1, sizeof *staged);
    staged->value.size = record->record_bytes;
    staged->value.bytes = calloc(1, record->record_bytes);
    memcpy(staged->value.key, record->key, TMS_KEY_BYTES);
    memcpy(staged->value.bytes, head, record->header_bytes);
    for (uint32_t i = 0; i < tms_record_planes(record); i++)
        memcpy(staged->value.bytes + record->planes[i].offset, (i % 2 ? chunk->v : chunk->k)[i / 2],
               record->plane_bytes);
    *out = staged;
    return TAMIS_OK;
}

static void fake_discard(tms_tier *tier, tms_staged *staged) {
    (void)tier;
    free(staged->value.bytes);
    free(staged);
}

static tamis_status fake_commit(tms_tier *tier, tms_staged *staged, tamis_error *error) {
    fake *f = (fake *)tier;
    tamis_status status = enter(tier, true, error);
    if (status != TAMIS_OK) {
        fake_discard(tier, staged);
        return status;
    }
    pthread_mutex_lock(&f->mutex);
    value *to = place_of(f, staged->value.key);
    for (int i = 0; i < PLACES && !to; i++)
        if (!f->values[i].bytes) to = &f->values[i];
    assert_non_null(to);
    free(to->bytes);
    *to = staged->value;
    pthread_mutex_unlock(&f->mutex);
    free(staged);
    once(&f->named, f->store);
    return TAMIS_OK;
}

static tamis_status fake_erase(tms_tier *tier, const uint8_t *key, const tms_object *only,
                               bool *other, tamis_error *error) {
    fake *f = (fake *)tier;
    (void)only;
    if (other) *other = false;
    TMS_TRY(enter(tier, true, error));
    pthread_mutex_lock(&f->mutex);
    value *found = place_of(f, key);
    if (found) {
        free(found->bytes);
        found->bytes = NULL;
    }
    pthread_mutex_unlock(&f->mutex);
    return TAMIS_OK;
}

static tamis_status fake_settle(tms_tier *tier, tamis_error *error) {
    return enter(tier, false, error);
}

static tamis_status fake_walk(tms_tier *tier, tms_keys *out, tamis_error *error) {
    fake *f = (fake *)tier;
    *out = (tms_keys){0};
    TMS_TRY(enter(tier, false, error));
    out->keys = malloc(PLACES * sizeof *out->keys);
    pthread_mutex_lock(&f->mutex);
    for (int i = 0; i < PLACES; i++)
        if (f->values[i].bytes) memcpy(out->keys[out->count++], f->values[i].key, TMS_KEY_BYTES);
    pthread_mutex_unlock(&f->mutex);
    return TAMIS_OK;
}

static tamis_status fake_sweep(tms_tier *tier, uint64_t *removed, tamis_error *error) {
    (void)removed;
    return enter(tier, false, error);
}

static void fake_close(tms_tier *tier) {
    fake *f = (fake *)tier;
    assert_int_equal(f->under, 0);
    for (int i = 0; i < PLACES; i++)
        free(f->values[i].bytes);
    pthread_mutex_destroy(&f->mutex);
    free(f);
}

#define OPS(place)                                                                                 \
    {                                                                                              \
        .tier = (tamis_tier)(place), .close = fake_close, .find = fake_find, .touch = fake_touch,  \
        .done = fake_done, .stage = fake_stage, .discard = fake_discard, .settle = fake_settle,    \
        .walk = fake_walk, .sweep = fake_sweep, .commit = fake_commit, .erase = fake_erase         \
    }
static const tms_tier_ops fakes[] = {OPS(0), OPS(NEAR), OPS(FAR)};

static fake *install(tamis_store *store, int t, uint64_t limit) {
    fake *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->tier.ops = &fakes[t];
    f->store = store;
    assert_int_equal(pthread_mutex_init(&f->mutex, NULL), 0);
    store->shelves[t].tier = &f->tier;
    OK(tms_index_init(&store->shelves[t].index, limit, &test_error));
    return f;
}

/* What is in the tier is what the store counts. */
static void check_counts(tamis_store *store, const fake *f) {
    const tamis_tier_stats stats = rig_stats(store).tiers[f->tier.ops->tier];
    uint64_t records = 0, bytes = 0;
    for (int i = 0; i < PLACES; i++) {
        records += f->values[i].bytes != NULL;
        bytes += f->values[i].bytes ? f->values[i].size : 0;
    }
    assert_int_equal(stats.records, records);
    assert_int_equal(stats.bytes, bytes);
    assert_int_equal(stats.pinned_bytes, 0);
    assert_true(bytes <= stats.limit);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static bool is_in(const fake *f, const rig_chunk *chunk) {
    uint8_t key[TMS_KEY_BYTES];
    OK(tamis_chunk_key(&chunk->put.id, key, &test_error));
    return place_of((fake *)f, key) != NULL;
}

/* A put that names no tiers enters all; the last must take it, and another that cannot is counted. */
static void no_tiers_are_all(void **state) {
    (void)state;
    rig_chunk chunks[4];
    for (uint32_t i = 0; i < 4; i++)
        rig_chunk_make(&chunks[i], i, 50);
    const uint64_t bytes = chunks[0].record_bytes;
    tamis_store *store = rig_open(MIB, 0, false);
    fake *near = install(store, NEAR, 2 * bytes), *far = install(store, FAR, 3 * bytes);
    OK(tamis_store_put(store, &chunks[0].put, &test_error));
    assert_true(is_in(near, &chunks[0]) && is_in(far, &chunks[0]));
    assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_MEMORY].records, 1);
    near->fails = "the near one";
    OK(tamis_store_put(store, &chunks[1].put, &test_error));
    assert_true(!is_in(near, &chunks[1]) && is_in(far, &chunks[1]));
    assert_int_equal(rig_stats(store).failed, 1);
    near->fails = NULL;
    far->fails = "the far one";
    FAILS(tamis_store_put(store, &chunks[2].put, &test_error), TAMIS_E_IO, "the far one");
    assert_false(is_in(near, &chunks[2]));
    far->fails = NULL;
    OK(tamis_store_put(store, &chunks[3].put, &test_error));
    assert_true(is_in(near, &chunks[3]) && is_in(far, &chunks[3]));
    check_counts(store, near);
    check_counts(store, far);
    tamis_store_destroy(&store);
    for (uint32_t i = 0; i < 4; i++)
        rig_chunk_free(&chunks[i]);
}

static void a_tier_that_fails_hides_no_other(void **state) {
    (void)state;
    rig_chunk chunk, other;
    rig_chunk_make(&chunk, 1, 50);
    rig_chunk_make(&other, 2, 50);
    tamis_store *store = rig_open(MIB, 0, false);
    fake *near = install(store, NEAR, MIB), *far = install(store, FAR, MIB);
    chunk.put.tiers = 1u << NEAR | 1u << FAR;
    OK(tamis_store_put(store, &chunk.put, &test_error));
    near->fails = "the near one";
    assert_true(rig_has(store, &chunk));
    assert_int_equal(rig_stats(store).failed, 1);
    assert_int_equal(rig_stats(store).tiers[FAR].hits, 1);
    tamis_chunk *found;
    FAILS(tamis_store_get(store, &other.put.id, &found, &test_error), TAMIS_E_IO, "the near one");
    far->fails = "the far one";
    FAILS(tamis_store_get(store, &other.put.id, &found, &test_error), TAMIS_E_IO, "the near one");
    assert_int_equal(rig_stats(store).failed, 4);
    far->fails = NULL;
    int removed;
    FAILS(tamis_store_remove(store, &chunk.put.id, &removed, &test_error), TAMIS_E_IO,
          "the near one");
    assert_int_equal(removed, 1);
    assert_false(is_in(far, &chunk));
    tamis_store_found all;
    OK(tamis_store_put(store,
                       &(tamis_chunk_planes){other.put.id, other.k, other.v, 1u << FAR, 0, {0}},
                       &test_error));
    FAILS(tamis_store_verify(store, &all, &test_error), TAMIS_E_IO, "the near one");
    assert_int_equal(all.records, 1);
    FAILS(tamis_store_gc(store, &all, &test_error), TAMIS_E_IO, "the near one");
    assert_int_equal(all.records, 1);
    tamis_store_destroy(&store);
    rig_chunk_free(&chunk), rig_chunk_free(&other);
}

/* ---- Between a name and its entry ------------------------------------------------------------ */

static rig_chunk subject;
static tamis_chunk *held;

static void remove_subject(tamis_store *store) {
    int removed;
    OK(tamis_store_remove(store, &subject.put.id, &removed, &test_error));
    assert_int_equal(removed, 1);
}

static void hold_subject(tamis_store *store) {
    held = rig_get(store, &subject);
    assert_non_null(held);
}

/* A record that is removed after it was found and before it is in the index leaves no entry, whether
 * somebody looked for it or a walk met it; one that is found before it is in the index is counted
 * once. */
static void entries_follow_names(void **state) {
    (void)state;
    rig_chunk_make(&subject, 1, 50);
    tamis_store *store = rig_open(0, 0, true); /* a tier is needed to open one */
    fake *far = install(store, FAR, MIB);
    subject.put.tiers = 1u << FAR;
    tms_index *index = &store->shelves[FAR].index;
    size_t count;
    for (int way = 0; way < 3; way++) {
        OK(tamis_store_put(store, &subject.put, &test_error));
        far->found = remove_subject;
        if (way > 0) tms_index_drop(index, index->oldest); /* as if another process had put it */
        if (way < 2) {
            held = rig_get(store, &subject);
            assert_int_equal(rig_stats(store).tiers[FAR].records, 0);
            assert_int_equal(rig_stats(store).tiers[FAR].bytes, subject.record_bytes);
            rig_check(held, &subject);
            tamis_chunk_release(&held);
        } else {
            OK(tamis_store_list(store, NULL, 0, &count, &test_error));
            assert_int_equal(count, 0);
        }
        check_counts(store, far);
    }
    far->named = hold_subject;
    OK(tamis_store_put(store, &subject.put, &test_error));
    assert_int_equal(rig_stats(store).tiers[FAR].bytes, subject.record_bytes);
    assert_int_equal(rig_stats(store).tiers[FAR].pinned_bytes, subject.record_bytes);
    rig_check(held, &subject);
    tamis_chunk_release(&held);
    check_counts(store, far);
    tamis_store_destroy(&store);
    rig_chunk_free(&subject);
    rig_cleanup();
}

typedef struct putter {
    pthread_t thread;
    tamis_store *store;
    const rig_chunk *chunk;
    tamis_status status;
} putter;

static void *put_one(void *of) {
    putter *p = of;
    p->status = tamis_store_put(p->store, &p->chunk->put, NULL);
    return NULL;
}

/* Threads that put the same chunk at a time: all are answered well, and there is one record, even
 * where there is room for one alone. */
static void puts_of_one_key_make_one_record(void **state) {
    (void)state;
    rig_chunk chunk;
    rig_chunk_make(&chunk, 1, 50);
    tamis_store *store = rig_open(chunk.record_bytes, 0, false);
    fake *far = install(store, FAR, chunk.record_bytes);
    far->slow = 20000000;
    chunk.put.tiers = 1u << TAMIS_TIER_MEMORY | 1u << FAR;
    putter putters[4];
    for (int i = 0; i < 4; i++) {
        putters[i] = (putter){.store = store, .chunk = &chunk, .status = TAMIS_E_FULL};
        assert_int_equal(pthread_create(&putters[i].thread, NULL, put_one, &putters[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(putters[i].thread, NULL), 0);
        assert_int_equal(putters[i].status, TAMIS_OK);
    }
    const tamis_store_stats stats = rig_stats(store);
    for (int t = 0; t <= FAR; t += FAR) {
        assert_int_equal(stats.tiers[t].puts, 1);
        assert_int_equal(stats.tiers[t].known, 3);
        assert_int_equal(stats.tiers[t].records, 1);
        assert_int_equal(stats.tiers[t].bytes, chunk.record_bytes);
    }
    assert_int_equal(far->staged, 1);
    check_counts(store, far);
    tamis_store_destroy(&store);
    rig_chunk_free(&chunk);
}

#define THREADS 4
#define CHUNKS  12u
#define STEPS   150

typedef struct worker {
    pthread_t thread;
    tamis_store *store;
    rig_chunk *chunks;
    uint64_t random;
    unsigned wrong;
} worker;

static void work_once(worker *w) {
    const rig_chunk *chunk = &w->chunks[test_below(&w->random, CHUNKS)];
    const uint32_t what = test_below(&w->random, 100);
    tamis_chunk *found = NULL;
    size_t count;
    tamis_status status = TAMIS_OK;
    if (what < 40) {
        status = tamis_store_put(w->store, &chunk->put, NULL);
    } else if (what < 80) {
        uint8_t k[32 * RIG_MOST];
        status = tamis_store_get(w->store, &chunk->put.id, &found, NULL);
        if (found) status = tamis_chunk_read(found, 1, k, NULL, NULL);
        w->wrong += found && status == TAMIS_OK && memcmp(k, chunk->k[1], chunk->plane_bytes) != 0;
        tamis_chunk_release(&found);
    } else if (what < 95)
        status = tamis_store_remove(w->store, &chunk->put.id, NULL, NULL);
    else
        status = tamis_store_list(w->store, NULL, 0, &count, NULL);
    w->wrong += status != TAMIS_OK && status != TAMIS_E_FULL;
}

static void *work(void *of) {
    for (int i = 0; i < STEPS; i++)
        work_once(of);
    return NULL;
}

/* Threads on tiers whose names take their time: what is counted then is what is there. */
static void slow_names_are_counted(void **state) {
    (void)state;
    rig_chunk chunks[CHUNKS];
    worker workers[THREADS];
    for (uint32_t i = 0; i < CHUNKS; i++)
        rig_chunk_make(&chunks[i], i, 20 + 90 * (i % 3));
    tamis_store *store = rig_open(4 * chunks[2].record_bytes, 0, false);
    fake *near = install(store, NEAR, 5 * chunks[2].record_bytes);
    fake *far = install(store, FAR, 7 * chunks[2].record_bytes);
    near->slow = far->slow = 200000;
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.store = store, .chunks = chunks, .random = (uint64_t)i + 1};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_int_equal(workers[i].wrong, 0);
    }
    check_counts(store, near);
    check_counts(store, far);
    assert_true(rig_stats(store).tiers[NEAR].evicted > 0);
    tamis_store_destroy(&store);
    for (uint32_t i = 0; i < CHUNKS; i++)
        rig_chunk_free(&chunks[i]);
}

int main(int argc, char **argv) {
    const int skip = test_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_tiers_are_all),
        cmocka_unit_test(a_tier_that_fails_hides_no_other),
        cmocka_unit_test(entries_follow_names),
        cmocka_unit_test(puts_of_one_key_make_one_record),
        cmocka_unit_test(slow_names_are_counted),
    };
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
