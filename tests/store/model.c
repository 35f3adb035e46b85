/* SPDX-License-Identifier: Apache-2.0 */
/* Random puts, gets, pins, removals, reopenings and walks against a plain model of two tiers: lists
 * in the order of last use, with limits. Every hit, miss, error and eviction is predicted.
 * Usage: test-store-model [SEEDS [FIRST]] */
#include "tests/store/rig.h"

#define CHUNKS 24u
#define HELD   6u
#define STEPS  600u
#define MEMORY TAMIS_TIER_MEMORY
#define DISK   TAMIS_TIER_DISK

static unsigned long seeds = 100, first_seed = 1;

/* ---- The model ------------------------------------------------------------------------------- */

typedef struct model_tier {
    uint64_t limit;                /* 0: there is none */
    uint32_t order[CHUNKS], count; /* chunks, the least recently used first */
    uint64_t removed;              /* bytes of removed records that are still held */
    uint32_t pins[CHUNKS];         /* of what is there */
    uint64_t evicted, hits;
} model_tier;

typedef struct holding {
    tamis_chunk *chunk; /* NULL: a free place */
    uint32_t which;
    bool in[2];   /* tiers in which it holds a pin */
    bool dead[2]; /* and the record is removed there */
} holding;

typedef struct world {
    rig_chunk chunks[CHUNKS];
    model_tier tiers[2];
    holding held[HELD];
    tamis_store *store;
    uint64_t misses, random;
    bool complete[CHUNKS]; /* memory has all planes */
} world;

static bool has(const model_tier *tier, uint32_t which) {
    for (uint32_t i = 0; i < tier->count; i++)
        if (tier->order[i] == which) return true;
    return false;
}

static void take_out(model_tier *tier, uint32_t which) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < tier->count; i++)
        if (tier->order[i] != which) tier->order[left++] = tier->order[i];
    tier->count = left;
}

static void put_last(model_tier *tier, uint32_t which) {
    take_out(tier, which);
    tier->order[tier->count++] = which;
}

static uint64_t bytes_of(const world *w, const model_tier *tier, bool pinned) {
    uint64_t bytes = tier->removed;
    for (uint32_t i = 0; i < tier->count; i++)
        if (!pinned || tier->pins[tier->order[i]]) bytes += w->chunks[tier->order[i]].record_bytes;
    return bytes;
}

/* Makes room as the store must; false: what is pinned leaves none. */
static bool make_room(const world *w, model_tier *tier, uint64_t bytes) {
    if (bytes > tier->limit || bytes_of(w, tier, true) > tier->limit - bytes) return false;
    while (bytes_of(w, tier, false) > tier->limit - bytes) {
        uint32_t i = 0;
        while (tier->pins[tier->order[i]])
            i++;
        take_out(tier, tier->order[i]);
        tier->evicted++;
    }
    return true;
}

/* The record goes from a tier; who holds it keeps its bytes. */
static void drop(world *w, int t, uint32_t which) {
    model_tier *tier = &w->tiers[t];
    if (!has(tier, which)) return;
    take_out(tier, which);
    if (tier->pins[which]) tier->removed += w->chunks[which].record_bytes;
    tier->pins[which] = 0;
    for (uint32_t i = 0; i < HELD; i++)
        if (w->held[i].chunk && w->held[i].which == which && w->held[i].in[t])
            w->held[i].dead[t] = true;
}

/* The last of the dead holdings of the same record gives its bytes back. A record that is put again
 * while an old one is held is another record: so a chunk with a dead holding is not put here. */
static void let_go(world *w, holding *h) {
    for (int t = 0; t < 2; t++) {
        if (!h->in[t]) continue;
        bool last = true;
        for (uint32_t i = 0; i < HELD; i++)
            last = last && !(&w->held[i] != h && w->held[i].chunk && w->held[i].which == h->which &&
                             w->held[i].dead[t]);
        if (!h->dead[t])
            w->tiers[t].pins[h->which]--;
        else if (last)
            w->tiers[t].removed -= w->chunks[h->which].record_bytes;
    }
    tamis_chunk_release(&h->chunk);
    *h = (holding){0};
}

static bool held_dead(const world *w, uint32_t which) {
    for (uint32_t i = 0; i < HELD; i++)
        if (w->held[i].chunk && w->held[i].which == which &&
            (w->held[i].dead[0] || w->held[i].dead[1]))
            return true;
    return false;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static void step_put(world *w, uint32_t which) {
    rig_chunk *chunk = &w->chunks[which];
    model_tier *memory = &w->tiers[MEMORY], *disk = &w->tiers[DISK];
    if (held_dead(w, which)) return;
    if (disk->limit && chunk->record_bytes > disk->limit) { /* refused before anything changes */
        FAILS(tamis_store_put(w->store, &chunk->put, &test_error), TAMIS_E_FULL, "limited to");
        return;
    }
    bool fits = true, enters = memory->limit > 0, known = false;
    if (enters && has(memory, which) && w->complete[which]) {
        put_last(memory, which);
        enters = false;
    } else if (enters)
        enters = make_room(w, memory, chunk->record_bytes);
    const bool was_known = memory->limit > 0 && has(memory, which) && w->complete[which];
    if (disk->limit) {
        known = has(disk, which);
        if (!known) fits = make_room(w, disk, chunk->record_bytes);
        if (fits) put_last(disk, which);
    } else
        fits = enters || was_known;
    if (fits)
        OK(tamis_store_put(w->store, &chunk->put, &test_error));
    else
        FAILS(tamis_store_put(w->store, &chunk->put, &test_error), TAMIS_E_FULL, "tier");
    if (fits && enters && !known) {
        drop(w, MEMORY, which);
        put_last(memory, which);
        w->complete[which] = true;
    }
}

/* Gets a chunk, reads all or a part of it, and keeps or releases it. */
static void step_get(world *w, uint32_t which) {
    model_tier *memory = &w->tiers[MEMORY], *disk = &w->tiers[DISK];
    uint32_t place = 0;
    while (place < HELD && w->held[place].chunk)
        place++;
    if (place == HELD || held_dead(w, which)) return;
    holding *h = &w->held[place];
    tamis_chunk *found = rig_get(w->store, &w->chunks[which]);
    const bool in_memory = memory->limit && has(memory, which);
    const bool on_disk = disk->limit && has(disk, which);
    const bool served = in_memory && w->complete[which];
    if (!served && !on_disk) {
        if (in_memory) drop(w, MEMORY, which); /* planes are missing for good */
        assert_null(found);
        w->misses++;
        return;
    }
    assert_non_null(found);
    *h = (holding){.chunk = found, .which = which, .in = {in_memory, !served}};
    if (on_disk) put_last(disk, which);
    if (in_memory) put_last(memory, which);
    w->tiers[served ? MEMORY : DISK].hits++;
    if (!in_memory && memory->limit && make_room(w, memory, w->chunks[which].record_bytes)) {
        put_last(memory, which);
        w->complete[which] = false;
        h->in[MEMORY] = true;
    }
    for (int t = 0; t < 2; t++)
        w->tiers[t].pins[which] += h->in[t];
    tamis_chunk_info info;
    tamis_chunk_get_info(found, &info);
    assert_int_equal(info.tiers, h->in[0] | h->in[1] << 1);
    if (test_below(&w->random, 4) > 0) {
        rig_check(found, &w->chunks[which]);
        if (h->in[MEMORY] && !h->dead[MEMORY]) w->complete[which] = true;
    } else {
        uint8_t *to = malloc(w->chunks[which].plane_bytes);
        OK(tamis_chunk_read(found, 1, NULL, to, &test_error));
        assert_memory_equal(to, w->chunks[which].v[1], w->chunks[which].plane_bytes);
        free(to);
    }
    if (test_below(&w->random, 3) > 0) let_go(w, h);
}

static void step_remove(world *w, uint32_t which) {
    int removed;
    bool there = false;
    for (int t = 0; t < 2; t++)
        there = there || (w->tiers[t].limit && has(&w->tiers[t], which));
    OK(tamis_store_remove(w->store, &w->chunks[which].put.id, &removed, &test_error));
    assert_int_equal(removed, there);
    drop(w, MEMORY, which);
    drop(w, DISK, which);
}

static void step_release(world *w) {
    holding *h = &w->held[test_below(&w->random, HELD)];
    if (!h->chunk) return;
    rig_check(h->chunk, &w->chunks[h->which]); /* whatever became of the record */
    if (h->in[MEMORY] && !h->dead[MEMORY]) w->complete[h->which] = true;
    let_go(w, h);
}

static void open_store(world *w) {
    w->store = rig_open(w->tiers[MEMORY].limit, w->tiers[DISK].limit, w->tiers[DISK].limit > 0);
}

/* Another process, where there is no memory. The order on disk is the files', whose clock ticks too
 * rarely for this test: each record is used once, in the model's order. */
static void step_reopen(world *w) {
    for (uint32_t i = 0; i < HELD; i++)
        if (w->held[i].chunk) let_go(w, &w->held[i]);
    tamis_store_destroy(&w->store);
    open_store(w);
    w->misses = w->tiers[DISK].evicted = 0;
    w->tiers[DISK].hits = w->tiers[DISK].count;
    for (uint32_t i = 0; i < w->tiers[DISK].count; i++)
        assert_true(rig_has(w->store, &w->chunks[w->tiers[DISK].order[i]]));
}

/* What the store says of itself is what the model says. */
static void compare(world *w) {
    const tamis_store_stats stats = rig_stats(w->store);
    assert_int_equal(stats.misses, w->misses);
    assert_int_equal(stats.hits, w->tiers[0].hits + w->tiers[1].hits);
    for (int t = 0; t < 2; t++) {
        const model_tier *tier = &w->tiers[t];
        if (tier->limit == 0) continue;
        assert_int_equal(stats.tiers[t].records, tier->count);
        assert_int_equal(stats.tiers[t].bytes, bytes_of(w, tier, false));
        assert_int_equal(stats.tiers[t].pinned_bytes, bytes_of(w, tier, true));
        assert_int_equal(stats.tiers[t].evicted, tier->evicted);
        assert_int_equal(stats.tiers[t].hits, tier->hits);
        assert_true(stats.tiers[t].bytes <= tier->limit);
    }
    assert_int_equal(stats.tiers[DISK].damaged + stats.mismatched + stats.foreign, 0);
}

static void check_list(world *w) {
    tamis_chunk_info infos[CHUNKS];
    size_t count = 0;
    uint32_t wanted = 0;
    tamis_store_found found;
    OK(tamis_store_list(w->store, infos, CHUNKS, &count, &test_error));
    for (uint32_t which = 0; which < CHUNKS; which++)
        wanted += has(&w->tiers[0], which) || has(&w->tiers[1], which);
    assert_int_equal(count, wanted);
    OK(tamis_store_verify(w->store, &found, &test_error));
    assert_int_equal(found.records, w->tiers[DISK].limit ? w->tiers[DISK].count : 0);
    assert_int_equal(found.damaged, 0);
}

static void play(uint64_t seed) {
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->random = seed;
    for (uint32_t i = 0; i < CHUNKS; i++)
        rig_chunk_make(&w->chunks[i], i, 1 + test_below(&w->random, 400));
    const uint32_t shape = test_below(&w->random, 3); /* memory, disk, both */
    if (shape != 1) w->tiers[MEMORY].limit = 50000 + test_below(&w->random, 400000);
    if (shape != 0) w->tiers[DISK].limit = 50000 + test_below(&w->random, 700000);
    open_store(w);
    for (uint32_t i = 0; i < STEPS; i++) {
        const uint32_t what = test_below(&w->random, 100), which = test_below(&w->random, CHUNKS);
        if (what < 35)
            step_put(w, which);
        else if (what < 80)
            step_get(w, which);
        else if (what < 87)
            step_remove(w, which);
        else if (what < 97)
            step_release(w);
        else if (what < 99)
            check_list(w);
        else if (shape == 1)
            step_reopen(w);
        compare(w);
    }
    for (uint32_t i = 0; i < HELD; i++)
        if (w->held[i].chunk) let_go(w, &w->held[i]);
    compare(w);
    tamis_store_destroy(&w->store);
    for (uint32_t i = 0; i < CHUNKS; i++)
        rig_chunk_free(&w->chunks[i]);
    free(w);
    rig_cleanup();
}

static void the_store_is_as_the_model(void **state) {
    (void)state;
    for (unsigned long seed = first_seed; seed < first_seed + seeds; seed++) {
        print_message("seed %lu\n", seed);
        play(seed);
    }
}

static int teardown(void **state) {
    (void)state;
    rig_cleanup();
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) seeds = strtoul(argv[1], NULL, 10);
    if (argc > 2) first_seed = strtoul(argv[2], NULL, 10);
    rig_in_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_store_is_as_the_model, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
