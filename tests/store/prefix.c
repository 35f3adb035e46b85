/* SPDX-License-Identifier: Apache-2.0 */
/* Prefixes: chained keys of full pages, the longest stored prefix against a plain model of random
 * puts and removals, what shares no page, and that a prefix goes from its end.
 * Usage: test-store-prefix [SEEDS] */
#include "tests/store/rig.h"

#include <time.h>

#define MIB   (1u << 20)
#define PAGE  4u
#define DEPTH 6u /* pages of a prefix at most */
#define KINDS 5u /* ids that share no page */

static unsigned long seeds = 60;

static int teardown(void **state) {
    (void)state;
    rig_cleanup();
    return 0;
}

/* The id of a prefix's first pages and, of `kind` > 0, what makes it another's. */
static tamis_chunk_id id_of(const int32_t *tokens, uint32_t n_tokens, uint32_t kind) {
    tamis_chunk_id id = {
        .tokens = tokens,
        .n_tokens = n_tokens,
        .shape = {.n_layers = RIG_LAYERS, .n_kv_heads = 2, .head_dim = 8, .dtype = TAMIS_F16}};
    memcpy(id.fingerprint, "a model", 7);
    if (kind == 1) id.salt[3] = 1;
    if (kind == 2) id.fingerprint[15] = 1;
    if (kind == 3) id.parent[0] = 1;
    if (kind == 4) id.shape.dtype = TAMIS_BF16;
    return id;
}

/* The page-th page of a prefix, as a chunk to be put; planes follow from tokens, kind and place. */
static void page_make(rig_chunk *chunk, const tamis_chunk_id *prefix, uint32_t page) {
    uint8_t keys[DEPTH][16];
    size_t n_pages;
    OK(tamis_prefix_keys(prefix, PAGE, keys, DEPTH, &n_pages, &test_error));
    assert_true(page < n_pages);
    uint64_t number;
    memcpy(&number, keys[page], sizeof number);
    rig_chunk_make(chunk, number, PAGE);
    memcpy(chunk->tokens, prefix->tokens + PAGE * page, PAGE * sizeof *chunk->tokens);
    chunk->put.id = *prefix;
    chunk->put.id.tokens = chunk->tokens;
    chunk->put.id.n_tokens = PAGE;
    if (page > 0) memcpy(chunk->put.id.parent, keys[page - 1], 16);
}

static void put_page(tamis_store *store, const tamis_chunk_id *prefix, uint32_t page) {
    rig_chunk chunk;
    page_make(&chunk, prefix, page);
    OK(tamis_store_put(store, &chunk.put, &test_error));
    rig_chunk_free(&chunk);
}

/* The stored prefix: its pages are what was put. Answers their number. */
static size_t find(tamis_store *store, const tamis_chunk_id *prefix, size_t capacity) {
    tamis_chunk *found[DEPTH];
    size_t n_pages;
    OK(tamis_store_get_prefix(store, prefix, PAGE, found, capacity, &n_pages, &test_error));
    assert_true(n_pages <= capacity);
    for (uint32_t i = 0; i < n_pages; i++) {
        rig_chunk chunk;
        page_make(&chunk, prefix, i);
        rig_check(found[i], &chunk);
        tamis_chunk_info info;
        tamis_chunk_get_info(found[i], &info);
        assert_memory_equal(info.parent, chunk.put.id.parent, 16);
        tamis_chunk_release(&found[i]);
        rig_chunk_free(&chunk);
    }
    return n_pages;
}

/* ---- Against a model ------------------------------------------------------------------------- */

/* A page that is stored: everything up to its end. */
typedef struct stored {
    uint32_t kind, pages;
    int32_t tokens[PAGE * DEPTH];
} stored;

#define MOST 4000

typedef struct world {
    tamis_store *store;
    stored all[MOST];
    uint32_t count;
    uint64_t random;
} world;

static stored *look_up(world *w, const int32_t *tokens, uint32_t pages, uint32_t kind) {
    for (uint32_t i = 0; i < w->count; i++)
        if (w->all[i].kind == kind && w->all[i].pages == pages &&
            memcmp(w->all[i].tokens, tokens, pages * PAGE * sizeof *tokens) == 0)
            return &w->all[i];
    return NULL;
}

/* Few different pages, so that prefixes share their beginnings. */
static uint32_t random_tokens(world *w, int32_t *tokens) {
    const uint32_t n = 1 + test_below(&w->random, PAGE * DEPTH);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(i % PAGE) - 1;
    for (uint32_t page = 0; page * PAGE < n; page++)
        tokens[page * PAGE] = (int32_t)test_below(&w->random, 2);
    return n;
}

static void step(world *w) {
    int32_t tokens[PAGE * DEPTH];
    const uint32_t n = random_tokens(w, tokens), kind = test_below(&w->random, KINDS);
    const tamis_chunk_id id = id_of(tokens, n, kind);
    const uint32_t what = test_below(&w->random, 10), pages = n / PAGE;
    if (what < 4 && pages > 0) { /* the last page, whether those before it are there or not */
        put_page(w->store, &id, pages - 1);
        if (look_up(w, tokens, pages, kind)) return;
        stored *one = &w->all[w->count++];
        *one = (stored){.kind = kind, .pages = pages};
        memcpy(one->tokens, tokens, pages * PAGE * sizeof *tokens);
    } else if (what < 5 && pages > 0) {
        rig_chunk chunk;
        int removed;
        stored *one = look_up(w, tokens, pages, kind);
        page_make(&chunk, &id, pages - 1);
        OK(tamis_store_remove(w->store, &chunk.put.id, &removed, &test_error));
        assert_int_equal(removed, one != NULL);
        if (one) *one = w->all[--w->count];
        rig_chunk_free(&chunk);
    } else {
        const size_t capacity = test_below(&w->random, DEPTH + 1);
        uint32_t wanted = 0;
        while (wanted < pages && wanted < capacity && look_up(w, tokens, wanted + 1, kind))
            wanted++;
        const tamis_store_stats was = rig_stats(w->store);
        assert_int_equal(find(w->store, &id, capacity), wanted);
        const tamis_store_stats is = rig_stats(w->store);
        assert_int_equal(is.hits - was.hits, wanted);
        assert_int_equal(is.misses - was.misses, wanted < pages && wanted < capacity);
    }
}

static void prefixes_are_as_the_model(void **state) {
    (void)state;
    for (unsigned long seed = 1; seed <= seeds; seed++) {
        world *w = calloc(1, sizeof *w);
        assert_non_null(w);
        w->random = seed;
        const bool disk = seed % 3 == 0;
        w->store = rig_open(disk && seed % 2 ? 0 : 16 * MIB, 0, disk);
        for (int i = 0; i < 500; i++)
            step(w);
        assert_int_equal(rig_stats(w->store).mismatched, 0);
        assert_int_equal(rig_stats(w->store).tiers[disk].records, w->count);
        tamis_store_destroy(&w->store);
        free(w);
        rig_cleanup();
    }
}

/* ---- One by one ------------------------------------------------------------------------------ */

/* The same tokens in pages of another size, one token further, or as a chunk, are other records. */
static void pages_are_of_their_place(void **state) {
    (void)state;
    int32_t tokens[PAGE * DEPTH + 1];
    for (uint32_t i = 0; i <= PAGE * DEPTH; i++)
        tokens[i] = (int32_t)(i % PAGE); /* all pages alike */
    tamis_chunk_id id = id_of(tokens, PAGE * DEPTH, 0);
    tamis_store *store = rig_open(MIB, 0, false);
    for (uint32_t i = 0; i < DEPTH; i++) {
        assert_int_equal(find(store, &id, DEPTH), i);
        put_page(store, &id, i);
    }
    assert_int_equal(find(store, &id, DEPTH), DEPTH);
    assert_int_equal(rig_stats(store).tiers[0].records, DEPTH);
    id.n_tokens--; /* the last page is not full */
    assert_int_equal(find(store, &id, DEPTH), DEPTH - 1);
    tamis_chunk *found[DEPTH];
    size_t n_pages;
    OK(tamis_store_get_prefix(store, &id, 2 * PAGE, found, DEPTH, &n_pages, &test_error));
    assert_int_equal(n_pages, 0);
    id.n_tokens++, id.tokens++;
    OK(tamis_store_get_prefix(store, &id, PAGE, found, DEPTH, &n_pages, &test_error));
    assert_int_equal(n_pages, 0);
    /* From a page on: its key is the parent of the next. */
    uint8_t keys[2][16];
    id.tokens--;
    OK(tamis_prefix_keys(&id, PAGE, keys, 2, &n_pages, &test_error));
    assert_int_equal(n_pages, DEPTH);
    tamis_chunk_id rest = id_of(tokens + 2 * PAGE, PAGE * (DEPTH - 2), 0);
    memcpy(rest.parent, keys[1], 16);
    assert_int_equal(find(store, &rest, DEPTH), DEPTH - 2);
    /* A prefix's first page is the chunk without a parent; one with a sink is another. */
    rig_chunk chunk;
    uint8_t key[16];
    page_make(&chunk, &id, 0);
    OK(tamis_chunk_key(&chunk.put.id, key, &test_error));
    assert_memory_equal(key, keys[0], 16);
    chunk.put.id.shape.sink = 1;
    assert_false(rig_has(store, &chunk));
    rig_chunk_free(&chunk);

    FAILS(tamis_store_get_prefix(store, &id, 0, found, 1, &n_pages, &test_error), TAMIS_E_ARGUMENT,
          "pages of 0 tokens");
    FAILS(tamis_store_get_prefix(store, &id, 1, NULL, 1, &n_pages, &test_error), TAMIS_E_ARGUMENT,
          "out: NULL for 1 pages");
    FAILS(tamis_store_get_prefix(NULL, &id, 1, found, 1, &n_pages, &test_error), TAMIS_E_ARGUMENT,
          "store");
    FAILS(tamis_store_get_prefix(store, &id, 1, found, 1, NULL, &test_error), TAMIS_E_ARGUMENT,
          "n_pages");
    FAILS(tamis_prefix_keys(&id, 1, NULL, 1, &n_pages, &test_error), TAMIS_E_ARGUMENT, "keys");
    FAILS(tamis_prefix_keys(&id, 1, keys, 1, NULL, &test_error), TAMIS_E_ARGUMENT, "n_pages");
    id.shape.sink = 2;
    FAILS(tamis_prefix_keys(&id, 1, keys, 1, &n_pages, &test_error), TAMIS_E_ARGUMENT,
          "sink of a prefix is 2");
    tamis_store_destroy(&store);
}

/* Room is made at the ends of prefixes, whether they were put or found last. */
static void prefixes_go_from_their_ends(void **state) {
    (void)state;
    const struct timespec tick = {.tv_nsec = 20000000}; /* more than one of the clock of files */
    int32_t tokens[2][PAGE * DEPTH] = {{0}};
    for (int disk = 0; disk < 2; disk++)
        for (int way = 0; way < 2 + disk; way++) {
            const tamis_chunk_id first = id_of(tokens[0], PAGE * DEPTH, 0);
            const tamis_chunk_id second = id_of(tokens[1], PAGE * DEPTH, 1);
            const uint64_t limit = (DEPTH + 2) * tamis_chunk_record_bytes(&first.shape, PAGE);
            tamis_store *store = rig_open(disk ? 0 : limit, disk ? limit : 0, disk);
            for (uint32_t i = 0; i < DEPTH; i++) {
                put_page(store, &first, i);
                if (disk) nanosleep(&tick, NULL);
            }
            if (way == 1) assert_int_equal(find(store, &first, DEPTH), DEPTH);
            if (way == 2) { /* another process has put them */
                tamis_store_destroy(&store);
                store = rig_open(0, limit, true);
            }
            for (uint32_t i = 0; i < 4; i++)
                put_page(store, &second, i);
            assert_int_equal(rig_stats(store).tiers[disk].evicted, 2);
            assert_int_equal(find(store, &second, DEPTH), 4);
            assert_int_equal(find(store, &first, DEPTH), DEPTH - 2);
            tamis_store_destroy(&store);
            rig_cleanup();
        }
}

int main(int argc, char **argv) {
    if (argc > 1) seeds = strtoul(argv[1], NULL, 10);
    rig_in_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(prefixes_are_as_the_model, teardown),
        cmocka_unit_test_teardown(pages_are_of_their_place, teardown),
        cmocka_unit_test_teardown(prefixes_go_from_their_ends, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
