/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes of unequal length: 100,000 random operations on a cache of two pools with planes, by the
 * internal calls that plans make, beside a plain model of it: a list of token numbers a lane. After
 * each of them every page is accounted for; what slots hold is compared as it goes. */
#include "host/backend.h"
#include "lib/cache/cache.h"
#include "tests/api/fixture.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define OPERATIONS  100000u
#define MAX_LIVE    8u
#define MAX_SLOTS   64u /* of a lane */
#define MAX_STEP    3u
#define PAGE        8u
#define HEADS       2u
#define LAYERS      2u
#define N_LANES     (HEADS * LAYERS)
#define LIST_PAGES  (MAX_SLOTS / PAGE)
#define N_COPIES    (MAX_STEP * N_LANES * LIST_PAGES)
#define TABLE_BYTES 4096u

typedef struct model_lane {
    uint32_t length;
    int32_t tokens[MAX_SLOTS];
} model_lane;

typedef struct model_sequence {
    tamis_sequence id; /* 0: none */
    uint32_t length, evicted_at;
    model_lane lanes[N_LANES];
} model_sequence;

typedef struct model {
    tamis_context *context;
    tamis_cache *cache;
    tms_device *dev;
    tms_mem *tables;   /* what ops read beside the cache */
    tms_copies copies; /* exactly as large as the cache asks for */
    model_sequence sequences[MAX_LIVE];
    uint64_t random;
    int32_t next_token;
    uint64_t steps, stayed, full, cancelled, evicted, evictions_full, undone, returned, refused;
} model;

/* ---- Reading and writing slots --------------------------------------------------------------- */

/* The first K and V elements of a slot and its planes, 4 bytes each, stand for all of it. */
enum { PLACES = 4 };

static void places_of(const model *m, uint32_t layer, int32_t page, uint32_t slot,
                      tms_ref at[PLACES]) {
    tms_kv kv = tms_cache_kv(m->cache, layer);
    tms_planes planes = tms_cache_planes(m->cache, layer);
    uint64_t row = (uint64_t)page * kv.page_stride + slot * kv.slot_stride;
    uint64_t entry = (uint64_t)page * PAGE + slot;
    at[0] = (tms_ref){kv.data.mem, row * sizeof(float)};
    at[1] = (tms_ref){kv.data.mem, (row + kv.value_offset) * sizeof(float)};
    at[2] = (tms_ref){planes.positions.mem, entry * sizeof(int32_t)};
    at[3] = (tms_ref){planes.scores.mem, entry * sizeof(float)};
}

/* What each of them holds for a token. */
static int32_t place_value(int32_t token, uint32_t place) {
    return place == 2 ? token : token * 4 + (int32_t)place;
}

static void write_slot(const model *m, const tms_sequence *s, uint32_t lane, uint32_t slot,
                       int32_t token) {
    tms_ref at[PLACES];
    places_of(m, lane / HEADS, tms_lane_pages(s, lane)[slot / PAGE], slot % PAGE, at);
    for (uint32_t i = 0; i < PLACES; i++) {
        int32_t value = place_value(token, i);
        assert_int_equal(m->dev->backend->write(m->dev, at[i], &value, sizeof value), TAMIS_OK);
    }
}

/* A lane's tokens, by the plane of positions, and one slot in full. */
static void check_lane(const model *m, const model_sequence *s, uint32_t lane, uint32_t slot) {
    const model_lane *wanted = &s->lanes[lane];
    const int32_t *list = tms_lane_pages(tms_cache_find(m->cache, s->id), lane);
    int32_t positions[MAX_SLOTS], value;
    uint32_t length = 0, first = slot / 2, n = wanted->length - first;
    tms_ref at[PLACES];
    OK(tamis_cache_lane_length(m->cache, s->id, lane / HEADS, lane % HEADS, &length, &test_error));
    assert_int_equal(length, wanted->length);
    OK(tamis_cache_read_positions(m->cache, s->id, lane / HEADS, lane % HEADS, first, n, positions,
                                  &test_error));
    assert_memory_equal(positions, wanted->tokens + first, n * sizeof *positions);
    if (slot >= length) return;
    places_of(m, lane / HEADS, list[slot / PAGE], slot % PAGE, at);
    for (uint32_t i = 0; i < PLACES; i++) {
        assert_int_equal(m->dev->backend->read(m->dev, at[i], &value, sizeof value), TAMIS_OK);
        assert_int_equal(value, place_value(wanted->tokens[slot], i));
    }
}

/* ---- Operations on sequences ----------------------------------------------------------------- */

static model_sequence *any_live(model *m) {
    for (uint32_t tries = 0; tries < 4 * MAX_LIVE; tries++) {
        model_sequence *s = &m->sequences[test_below(&m->random, MAX_LIVE)];
        if (s->id) return s;
    }
    return NULL;
}

static model_sequence *any_dead(model *m) {
    for (uint32_t i = 0; i < MAX_LIVE; i++)
        if (!m->sequences[i].id) return &m->sequences[i];
    return NULL;
}

static void add(model *m) {
    model_sequence *s = any_dead(m);
    if (!s) return;
    *s = (model_sequence){0};
    OK(tamis_cache_add(m->cache, &s->id, &test_error));
}

static void fork_one(model *m) {
    model_sequence *from = any_live(m), *to = any_dead(m);
    if (!from || !to) return;
    *to = *from;
    OK(tamis_cache_fork(m->cache, from->id, &to->id, &test_error));
}

static void remove_one(model *m) {
    model_sequence *s = any_live(m);
    if (!s) return;
    OK(tamis_cache_remove(m->cache, s->id, &test_error));
    s->id = 0;
}

static void truncate_one(model *m) {
    model_sequence *s = any_live(m);
    if (!s) return;
    uint32_t d = test_below(&m->random, (s->length < 12 ? s->length : 12) + 1);
    uint32_t length = s->length - d;
    if (test_below(&m->random, 4) == 0) length = test_below(&m->random, s->length + 1);
    if (length < s->evicted_at) {
        FAILS(tamis_cache_truncate(m->cache, s->id, length, &test_error), TAMIS_E_STATE,
              "have been evicted");
        m->refused++;
        return;
    }
    OK(tamis_cache_truncate(m->cache, s->id, length, &test_error));
    for (uint32_t lane = 0; lane < N_LANES; lane++)
        s->lanes[lane].length -= s->length - length;
    s->length = length;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

typedef struct chosen_step {
    uint32_t n;
    model_sequence *of[MAX_STEP];
    tms_growth growth[MAX_STEP];
} chosen_step;

static uint32_t longest(const model_sequence *s) {
    uint32_t most = 0;
    for (uint32_t lane = 0; lane < N_LANES; lane++)
        if (s->lanes[lane].length > most) most = s->lanes[lane].length;
    return most;
}

static bool takes_part(const chosen_step *step, const model_sequence *s) {
    for (uint32_t i = 0; i < step->n; i++)
        if (step->of[i] == s) return true;
    return false;
}

/* Sequences that append some rows, or bring one under a cap somewhere about their lengths. */
static chosen_step choose(model *m) {
    chosen_step step = {0};
    uint32_t wanted = 1 + test_below(&m->random, MAX_STEP);
    for (uint32_t i = 0; i < wanted; i++) {
        model_sequence *s = any_live(m);
        if (!s || takes_part(&step, s)) continue;
        tms_growth *growth = &step.growth[step.n];
        uint32_t most = longest(s);
        *growth =
            (tms_growth){.sequence = tms_cache_find(m->cache, s->id), .rows = 1, .cap = UINT32_MAX};
        if (test_below(&m->random, 2) && s->length > 0) {
            growth->cap = most < 4 ? 1 : most - 3 + test_below(&m->random, 5);
            if (growth->cap > MAX_SLOTS) growth->cap = MAX_SLOTS;
        } else if (test_below(&m->random, 2)) {
            growth->rows = 1 + test_below(&m->random, 20);
        }
        if (growth->cap == UINT32_MAX && most + growth->rows > MAX_SLOTS) continue;
        step.of[step.n++] = s;
    }
    return step;
}

static bool stays(const tms_growth *growth, const model_lane *lane) {
    return lane->length >= growth->cap;
}

/* The pages of a lane that a step writes among those that it has: [first, end). */
static uint32_t written_from(const tms_growth *growth, const model_lane *lane) {
    return stays(growth, lane) ? 0 : lane->length / PAGE;
}

static uint32_t pages_for(uint32_t slots) {
    return (slots + PAGE - 1) / PAGE;
}

/* Pages of a pool (one layer) that the step needs, by another count than the cache's: a page that m
 * lanes of the step write costs m copies if others hold it, too, and m - 1 if not. */
static uint64_t count_needed(const model *m, const chosen_step *step, uint32_t pool) {
    const tms_pages *pages = &m->cache->pools[pool].pages;
    uint32_t writers[4096] = {0};
    uint64_t needed = 0;
    assert_true(pages->n <= 4096);
    for (uint32_t i = 0; i < step->n; i++)
        for (uint32_t index = pool * HEADS; index < (pool + 1) * HEADS; index++) {
            const model_lane *lane = &step->of[i]->lanes[index];
            const int32_t *list = tms_lane_pages(step->growth[i].sequence, index);
            uint32_t end = pages_for(lane->length), rows = step->growth[i].rows;
            for (uint32_t o = written_from(&step->growth[i], lane); o < end; o++)
                writers[list[o]]++;
            if (!stays(&step->growth[i], lane)) needed += pages_for(lane->length + rows) - end;
        }
    for (uint32_t page = 0; page < pages->n; page++)
        if (writers[page])
            needed += pages->refs[page] > writers[page] ? writers[page] : writers[page] - 1;
    return needed;
}

/* Every page that the open step may write belongs to its lane alone. */
static void check_owned(const model *m, const chosen_step *step) {
    for (uint32_t i = 0; i < step->n; i++)
        for (uint32_t index = 0; index < N_LANES; index++) {
            const tms_sequence *s = step->growth[i].sequence;
            const model_lane *before = &step->of[i]->lanes[index];
            bool stayed = stays(&step->growth[i], before);
            uint32_t grown = stayed ? 0 : step->growth[i].rows;
            assert_int_equal(s->lanes[index].grown, grown);
            assert_int_equal(s->lanes[index].length, before->length + grown);
            for (uint32_t o = written_from(&step->growth[i], before);
                 o < pages_for(s->lanes[index].length); o++)
                assert_int_equal(
                    m->cache->pools[index / HEADS].pages.refs[tms_lane_pages(s, index)[o]], 1);
        }
}

static void send(const model *m, uint64_t offset, const void *from, size_t bytes) {
    tms_ref to = {m->tables, offset};
    assert_true(offset + bytes <= TABLE_BYTES);
    if (bytes > 0) assert_int_equal(m->dev->backend->write(m->dev, to, from, bytes), TAMIS_OK);
}

/* Copies of pages with their planes, as a plan makes them. */
static void make_copies(const model *m) {
    const int32_t *pairs = m->copies.pairs;
    for (uint32_t p = 0; p < m->cache->size.pools; p++) {
        const tms_pool *pool = &m->cache->pools[p];
        uint32_t n = m->copies.count[p];
        tms_copy_pages copy = {.n = n, .pairs = {m->tables, 0}};
        tms_mem *memories[] = {pool->data, pool->positions, pool->scores};
        send(m, 0, pairs, 2 * (size_t)n * sizeof *pairs);
        pairs += 2 * (size_t)n;
        for (uint32_t i = 0; i < 3 && n > 0; i++) {
            copy.data.mem = memories[i];
            copy.bytes = i == 0 ? m->cache->size.page_bytes : PAGE * sizeof(int32_t);
            OK(tms_run_copy_pages(m->dev, &copy, &test_error));
        }
    }
}

/* Writes the rows of the open step: behind those that were there, or over any slot. `lanes` follow;
 * their lengths only where `keep`. */
static void write_rows(model *m, const chosen_step *step, bool keep) {
    for (uint32_t i = 0; i < step->n; i++) {
        const tms_growth *growth = &step->growth[i];
        for (uint32_t index = 0; index < N_LANES; index++) {
            model_lane *lane = &step->of[i]->lanes[index];
            bool stayed = stays(growth, lane);
            for (uint32_t r = 0; r < growth->rows; r++) {
                uint32_t slot = stayed ? test_below(&m->random, lane->length) : lane->length + r;
                write_slot(m, growth->sequence, index, slot, m->next_token);
                lane->tokens[slot] = m->next_token++;
            }
            if (keep && !stayed) lane->length += growth->rows;
        }
    }
}

static bool any_stays(const tms_growth *growth, const model_sequence *s) {
    for (uint32_t index = 0; index < N_LANES; index++)
        if (stays(growth, &s->lanes[index])) return true;
    return false;
}

/* The model's lengths after a step that was kept, or given up after it wrote. */
static void count_step(model *m, const chosen_step *step, const bool *stayed, bool keep) {
    for (uint32_t i = 0; i < step->n; i++) {
        if (keep) step->of[i]->length += step->growth[i].rows;
        if (stayed[i]) step->of[i]->evicted_at = step->of[i]->length;
        m->stayed += stayed[i];
    }
}

static void run_step(model *m) {
    chosen_step step = choose(m);
    if (step.n == 0) return;
    bool fits = true, stayed[MAX_STEP];
    for (uint32_t p = 0; p < LAYERS; p++)
        fits = fits && count_needed(m, &step, p) <= m->cache->pools[p].pages.n_free;
    for (uint32_t i = 0; i < step.n; i++)
        stayed[i] = any_stays(&step.growth[i], step.of[i]);
    tamis_status status = tms_cache_reserve(m->cache, step.growth, step.n, &m->copies, &test_error);
    assert_int_equal(status, fits ? TAMIS_OK : TAMIS_E_FULL);
    m->full += !fits;
    if (!fits) return;
    check_owned(m, &step);
    uint32_t end = test_below(&m->random, 8);
    m->steps += end > 1;
    m->cancelled += end < 2;
    if (end == 0) {
        tms_cache_rollback(m->cache, step.growth, step.n, false);
        return;
    }
    make_copies(m);
    write_rows(m, &step, end > 1);
    if (end == 1) {
        tms_cache_rollback(m->cache, step.growth, step.n, true);
        for (uint32_t i = 0; i < step.n; i++)
            if (stayed[i]) tms_history_replaced(step.growth[i].sequence);
    } else {
        tms_cache_commit(m->cache, step.growth, step.n);
    }
    count_step(m, &step, stayed, end > 1);
}

/* ---- Evictions ------------------------------------------------------------------------------- */

/* What one eviction keeps: slots of each lane, ascending. */
typedef struct keep_lists {
    int32_t slots[N_LANES][MAX_SLOTS];
    uint32_t count[N_LANES], most[N_LANES];
} keep_lists;

static void choose_kept(model *m, const model_sequence *s, keep_lists *keep) {
    uint32_t kind = test_below(&m->random, 4);
    memset(keep, 0, sizeof *keep);
    for (uint32_t lane = 0; lane < N_LANES; lane++) {
        uint32_t length = s->lanes[lane].length, share = test_below(&m->random, 9);
        if (kind == 0) share = 8; /* all */
        for (uint32_t slot = 0; slot < length; slot++)
            if (test_below(&m->random, 8) < share)
                keep->slots[lane][keep->count[lane]++] = (int32_t)slot;
        keep->most[lane] = keep->count[lane] + (kind == 1 ? test_below(&m->random, 20) : 0);
    }
}

/* Shared pages among those that the eviction may write, of one pool. */
static uint64_t count_copies(const model *m, const model_sequence *s, const keep_lists *keep,
                             uint32_t pool) {
    uint64_t needed = 0;
    for (uint32_t lane = pool * HEADS; lane < (pool + 1) * HEADS; lane++) {
        const int32_t *list = tms_lane_pages(tms_cache_find(m->cache, s->id), lane);
        for (uint32_t o = 0; o < pages_for(s->lanes[lane].length); o++)
            if (o * PAGE < keep->most[lane])
                needed += m->cache->pools[pool].pages.refs[list[o]] > 1;
    }
    return needed;
}

/* Where a layer's tables lie on the device, in bytes. */
enum {
    AT_TABLE = 0,
    AT_TO = AT_TABLE + HEADS * LIST_PAGES * 4,
    AT_LISTS = AT_TO + HEADS * LIST_PAGES * 4,
    AT_COUNTS = AT_LISTS + HEADS * MAX_SLOTS * 4,
    AT_VISIBLE = AT_COUNTS + HEADS * 4,
    AT_ITEM = AT_VISIBLE + HEADS * 4
};

static void move_slots(const model *m, const model_sequence *s, uint32_t layer,
                       const keep_lists *keep, const int32_t *to) {
    const int32_t item = 0;
    const tms_sequence *held = tms_cache_find(m->cache, s->id);
    for (uint32_t h = 0; h < HEADS; h++) {
        uint32_t lane = layer * HEADS + h, n = pages_for(s->lanes[lane].length);
        send(m, AT_TABLE + h * LIST_PAGES * 4, tms_lane_pages(held, lane), n * 4);
        send(m, AT_VISIBLE + h * 4, &s->lanes[lane].length, 4);
    }
    send(m, AT_TO, to, HEADS * LIST_PAGES * 4);
    send(m, AT_LISTS, keep->slots[layer * HEADS], HEADS * MAX_SLOTS * 4);
    send(m, AT_COUNTS, &keep->count[layer * HEADS], HEADS * 4);
    send(m, AT_ITEM, &item, 4);
    tms_compact compact = {.kv = tms_cache_kv(m->cache, layer),
                           .planes = tms_cache_planes(m->cache, layer),
                           .batch = {.n_rows = 1,
                                     .n_heads = HEADS,
                                     .n_kv_heads = HEADS,
                                     .row_seq = {m->tables, AT_ITEM},
                                     .visible = {m->tables, AT_VISIBLE},
                                     .table = {m->tables, AT_TABLE},
                                     .seq_stride = HEADS * LIST_PAGES,
                                     .head_stride = LIST_PAGES,
                                     .max_visible = MAX_SLOTS,
                                     .max_tile_rows = 1},
                           .lists = {{m->tables, AT_LISTS}, {m->tables, AT_COUNTS}, MAX_SLOTS},
                           .granularity = 1,
                           .to = {m->tables, AT_TO},
                           .to_stride = LIST_PAGES};
    OK(tms_run_compact(m->dev, &compact, &test_error));
}

static void keep_in_model(model_sequence *s, uint32_t layer, const keep_lists *keep) {
    for (uint32_t lane = layer * HEADS; lane < (layer + 1) * HEADS; lane++) {
        model_lane *l = &s->lanes[lane];
        if (keep->count[lane] < l->length) s->evicted_at = s->length;
        for (uint32_t i = 0; i < keep->count[lane]; i++)
            l->tokens[i] = l->tokens[keep->slots[lane][i]];
        l->length = keep->count[lane];
    }
}

static void evict_layer(model *m, model_sequence *s, uint32_t layer, const keep_lists *keep) {
    tms_sequence *held = tms_cache_find(m->cache, s->id);
    const tms_pages *pages = &m->cache->pools[layer].pages;
    const uint32_t *kept = &keep->count[layer * HEADS];
    uint32_t before = pages->n_free;
    uint64_t returned = 7, state = tms_changes_see(&held->changes);
    int32_t to[HEADS * LIST_PAGES] = {0};
    tms_cache_compact_pages(m->cache, held, layer, kept, to, LIST_PAGES);
    uint32_t fresh = before - pages->n_free;
    if (test_below(&m->random, 16) == 0) {
        tms_cache_compact_undo(m->cache, held, layer, kept, to, LIST_PAGES);
        assert_true(pages->n_free == before && held->changes.n == state);
        m->undone++;
        return;
    }
    move_slots(m, s, layer, keep, to);
    tms_cache_compact_commit(m->cache, held, layer, kept, to, LIST_PAGES, &returned);
    assert_int_equal(returned - 7, pages->n_free - (before - fresh));
    assert_true(returned == 7 || tms_changes_since(&held->changes, state) < LIST_PAGES);
    m->returned += returned - 7;
    keep_in_model(s, layer, keep);
}

static void evict(model *m) {
    model_sequence *s = any_live(m);
    keep_lists keep;
    if (!s) return;
    choose_kept(m, s, &keep);
    bool fits = true;
    for (uint32_t p = 0; p < LAYERS; p++)
        fits = fits && count_copies(m, s, &keep, p) <= m->cache->pools[p].pages.n_free;
    const tms_keeping keeping = {.most = keep.most, .run = 1};
    tamis_status status =
        tms_cache_compact_check(m->cache, tms_cache_find(m->cache, s->id), &keeping, &test_error);
    assert_int_equal(status, fits ? TAMIS_OK : TAMIS_E_FULL);
    m->evictions_full += !fits;
    for (uint32_t layer = 0; layer < LAYERS && fits; layer++)
        evict_layer(m, s, layer, &keep);
    m->evicted += fits;
}

/* ---- What holds after every operation -------------------------------------------------------- */

/* Lanes are as long as the model's. */
static void check_lengths(const model *m, const model_sequence *s) {
    const tms_sequence *held = tms_cache_find(m->cache, s->id);
    for (uint32_t lane = 0; lane < N_LANES; lane++)
        assert_int_equal(held->lanes[lane].length, s->lanes[lane].length);
}

static void check_statistics(const model *m) {
    uint64_t unit = (2 * PAGE * 64 + 2 * 64) * 4 + 2 * PAGE * 4;
    for (uint32_t i = 0; i < MAX_LIVE; i++) {
        const model_sequence *s = &m->sequences[i];
        tamis_sequence_stats one;
        uint64_t slots = 0, pages = 0;
        if (!s->id) continue;
        for (uint32_t lane = 0; lane < N_LANES; lane++) {
            slots += s->lanes[lane].length;
            pages += pages_for(s->lanes[lane].length);
        }
        OK(tamis_cache_get_sequence_stats(m->cache, s->id, &one, NULL));
        assert_int_equal(test_length(m->cache, s->id), s->length);
        assert_int_equal(test_evicted_at(m->cache, s->id), s->evicted_at);
        assert_true(one.slots == slots && one.pages == pages && one.bytes_held == pages * unit);
    }
}

static void check(model *m) {
    uint64_t held, shared;
    for (uint32_t i = 0; i < MAX_LIVE; i++)
        if (m->sequences[i].id) check_lengths(m, &m->sequences[i]);
    test_account(m->cache, &held, &shared);
    check_statistics(m);
    const model_sequence *s = any_live(m);
    if (!s) return;
    uint32_t lane = test_below(&m->random, N_LANES);
    check_lane(m, s, lane, test_below(&m->random, s->lanes[lane].length + 1));
}

static void run(model *m) {
    for (uint32_t i = 0; i < OPERATIONS; i++) {
        uint32_t kind = test_below(&m->random, 100);
        if (kind < 8)
            add(m);
        else if (kind < 20)
            fork_one(m);
        else if (kind < 30)
            truncate_one(m);
        else if (kind < 38)
            remove_one(m);
        else if (kind < 55)
            evict(m);
        else
            run_step(m);
        check(m);
    }
}

static void open_model(model *m) {
    tamis_context_params params = {.device = test_device};
    tamis_cache_params shape = {.n_layers = LAYERS,
                                .n_heads = HEADS,
                                .n_kv_heads = HEADS,
                                .head_dim = 64,
                                .page_size = PAGE,
                                .dtype = TAMIS_F32,
                                .capacity_tokens = 160, /* less than the sequences may come to */
                                .planes = TAMIS_PLANE_POSITIONS | TAMIS_PLANE_SCORES};
    OK(tamis_context_create(&params, &m->context, &test_error));
    m->dev = m->context->dev;
    m->dev->info.max_buffer_bytes = 200000; /* one layer, so that there are two pools */
    OK(tamis_cache_create(m->context, &shape, &m->cache, &test_error));
    assert_int_equal(m->cache->size.pools, LAYERS);
    assert_int_equal(tms_copies_room(m->cache, MAX_STEP, MAX_SLOTS), N_COPIES);
    assert_true(2 * N_COPIES * sizeof(int32_t) <= TABLE_BYTES);
    assert_int_equal(m->dev->backend->alloc(m->dev, TABLE_BYTES, &m->tables), TAMIS_OK);
    m->copies.pairs = malloc(2 * N_COPIES * sizeof *m->copies.pairs);
    m->copies.count = malloc(LAYERS * sizeof *m->copies.count);
    assert_true(m->copies.pairs && m->copies.count);
}

static void random_operations_with_evictions_match_a_plain_model(void **state) {
    (void)state;
    static model m;
    m = (model){.random = 21, .next_token = 1};
    open_model(&m);
    run(&m);
    print_message("%" PRIu64 " steps, %" PRIu64 " sequences at a cap, %" PRIu64 " refused as full, "
                  "%" PRIu64 " cancelled; %" PRIu64 " evictions, %" PRIu64 " refused as full, "
                  "%" PRIu64 " layers undone, %" PRIu64 " pages returned; %" PRIu64
                  " truncations refused\n",
                  m.steps, m.stayed, m.full, m.cancelled, m.evicted, m.evictions_full, m.undone,
                  m.returned, m.refused);
    assert_true(m.steps > OPERATIONS / 5 && m.stayed > 5000 && m.full > 500 && m.cancelled > 5000);
    assert_true(m.evicted > 5000 && m.evictions_full > 10 && m.undone > 500 && m.refused > 1000);
    for (uint32_t i = 0; i < MAX_LIVE; i++)
        if (m.sequences[i].id) OK(tamis_cache_remove(m.cache, m.sequences[i].id, &test_error));
    memset(m.sequences, 0, sizeof m.sequences);
    check(&m);
    free(m.copies.count);
    free(m.copies.pairs);
    m.dev->backend->free(m.dev, m.tables);
    tamis_cache_destroy(&m.cache);
    tamis_context_destroy(&m.context);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_with_evictions_match_a_plain_model)};
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
