/* SPDX-License-Identifier: Apache-2.0 */
/* Prefixes of live sequences: random play beside a plain model of what sequences hold, where each
 * hit is read back; what evictions, truncations, open steps and salts forbid; arguments. */
#include "tests/api/evicting.h"

#include <inttypes.h>
#include <string.h>

#define CONTEXT 64u /* tokens of a sequence at most */
#define TEXTS   12u /* sequences at a time */
#define TENANTS 2u
#define SYMBOLS 3u  /* different tokens: so few that texts begin alike */
#define CAP     24u /* slots of a lane under the plan that evicts in decode steps */

static const uint8_t salts[TENANTS][16] = {{0}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

/* K and V of a position depend on the tenant and on all tokens up to it: the number of each. */
static void number(uint32_t tenant, const int32_t *tokens, uint32_t n, uint64_t *numbers) {
    uint64_t chain = 77 + tenant;
    for (uint32_t i = 0; i < n; i++) {
        chain = chain * 1000003 + (uint64_t)tokens[i];
        numbers[i] = test_random(&chain) >> 16;
    }
}

static void expect(test_world *w, tamis_sequence id, uint32_t tenant, const int32_t *tokens,
                   uint32_t n) {
    uint64_t numbers[CONTEXT];
    uint32_t length = 0;
    number(tenant, tokens, n, numbers);
    OK(tamis_cache_length(w->cache, id, &length, NULL, &test_error));
    assert_int_equal(length, n);
    for (uint32_t lane = 0; lane < w->cache->n_lanes; lane++)
        test_expect(w, id, lane / w->shape.n_kv_heads, lane % w->shape.n_kv_heads, 0, numbers, n);
}

static tamis_plan_params plan_of(tamis_eviction_kind kind) {
    return (tamis_plan_params){.max_context = CONTEXT,
                               .max_rows = CONTEXT,
                               .max_sequences = 4,
                               .eviction = test_eviction(kind, CAP, 0)};
}

static void open_world(evict_world *e, tamis_eviction_kind kind, tamis_prefixes **prefixes) {
    const tamis_plan_params plan = plan_of(kind);
    tamis_cache_params shape = test_shape();
    shape.capacity_tokens = 2 * (TEXTS + 1) * CONTEXT;
    shape.planes = TAMIS_PLANE_POSITIONS;
    evict_open(e, &shape, &plan);
    OK(tamis_prefixes_create(e->w.cache, prefixes, &test_error));
}

static void close_world(evict_world *e, tamis_prefixes **prefixes) {
    tamis_prefixes_destroy(prefixes);
    assert_null(*prefixes);
    evict_close(e);
}

/* ---- Random play ----------------------------------------------------------------------------- */

typedef struct text {
    tamis_sequence id; /* 0: none */
    uint32_t tenant, length;
    bool evicted;
    int32_t tokens[CONTEXT];
    uint64_t place; /* among those that were added; 0: not added */
    uint32_t salt, n_added, least;
    int32_t added[CONTEXT];
} text;

typedef struct play {
    evict_world e;
    tamis_prefixes *prefixes;
    tamis_plan *in_place;
    text texts[TEXTS];
    uint64_t random, places;
    uint32_t hits, misses, ties, cut, hidden;
} play;

static text *any(play *p, bool live) {
    for (uint32_t tries = 0; tries < 4 * TEXTS; tries++) {
        text *t = &p->texts[test_below(&p->random, TEXTS)];
        if ((t->id != 0) == live) return t;
    }
    return NULL;
}

static void add(play *p) {
    text *t = any(p, false);
    if (!t) return;
    *t = (text){.tenant = test_below(&p->random, TENANTS)};
    OK(tamis_cache_add(p->e.w.cache, &t->id, &test_error));
}

static void fork_one(play *p) {
    const text *from = any(p, true);
    text *to = any(p, false);
    if (!from || !to) return;
    *to = *from;
    to->place = 0;
    OK(tamis_cache_fork(p->e.w.cache, from->id, &to->id, &test_error));
}

static void remove_one(play *p) {
    text *t = any(p, true);
    if (!t) return;
    OK(tamis_cache_remove(p->e.w.cache, t->id, &test_error));
    t->id = 0;
}

static void truncate_one(play *p) {
    text *t = any(p, true);
    if (!t || t->evicted) return;
    t->length = test_below(&p->random, t->length + 1);
    if (t->length < t->least) t->least = t->length;
    OK(tamis_cache_truncate(p->e.w.cache, t->id, t->length, &test_error));
}

static void grow(play *p) {
    text *t = any(p, true);
    uint64_t numbers[CONTEXT];
    if (!t || t->length == CONTEXT) return;
    const uint32_t n = 1 + test_below(&p->random, CONTEXT - t->length), end = t->length + n;
    for (uint32_t i = t->length; i < end; i++)
        t->tokens[i] = (int32_t)test_below(&p->random, SYMBOLS);
    number(t->tenant, t->tokens, end, numbers);
    const tamis_step step = {.sequences = &t->id, .rows = &n, .count = 1, .exact = 1};
    if (test_below(&p->random, 8) == 0) {
        OK(test_step_begin(&p->e.w, &step));
        test_write(&p->e.w, 0, numbers + t->length, n);
        OK(tamis_plan_step_cancel(p->e.w.plan, &test_error));
        return;
    }
    OK(test_step(&p->e.w, &step, numbers + t->length));
    t->length = end;
}

/* A decode step that overwrites a token in lanes that have CAP slots. */
static void decode_in_place(play *p) {
    text *t = any(p, true);
    uint64_t numbers[CONTEXT];
    if (!t || t->evicted || t->length > CAP) return;
    t->tokens[t->length] = (int32_t)test_below(&p->random, SYMBOLS);
    number(t->tenant, t->tokens, t->length + 1, numbers);
    const tamis_step step = {.sequences = &t->id, .count = 1};
    tamis_plan *plan = evict_swap_plan(&p->e, p->in_place);
    OK(test_step(&p->e.w, &step, numbers + t->length));
    (void)evict_swap_plan(&p->e, plan);
    t->evicted = t->length++ >= CAP;
}

/* One lane at least loses a slot. */
static void evict(play *p) {
    text *t = any(p, true);
    uint32_t slots[4][CONTEXT], counts[4];
    if (!t || t->evicted || t->length < 2) return;
    const uint32_t loser = test_below(&p->random, 4), lost = test_below(&p->random, t->length);
    for (uint32_t lane = 0; lane < 4; lane++) {
        counts[lane] = 0;
        for (uint32_t i = 0; i < t->length; i++)
            if (lane != loser || i != lost) slots[lane][counts[lane]++] = i;
    }
    OK(tamis_plan_evict_to(p->e.w.plan, t->id, slots[0], counts, CONTEXT, NULL, &test_error));
    t->evicted = true;
}

/* Tells of the sequence's first tokens. */
static void tell(play *p) {
    text *t = any(p, true);
    if (!t || t->length == 0) return;
    const uint32_t less = test_below(&p->random, 2) ? test_below(&p->random, t->length) : 0;
    if (t->place == 0) t->place = ++p->places;
    t->salt = t->tenant;
    t->n_added = t->length - less;
    t->least = UINT32_MAX;
    memcpy(t->added, t->tokens, t->n_added * sizeof *t->added);
    OK(tamis_prefixes_add(p->prefixes, t->id, t->added, t->n_added, salts[t->salt], &test_error));
}

static void untell(play *p) {
    text *t = any(p, true);
    if (!t) return;
    tamis_prefixes_remove(p->prefixes, t->id);
    t->place = 0;
}

static uint32_t shared(const int32_t *a, uint32_t n_a, const int32_t *b, uint32_t n_b) {
    uint32_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n])
        n++;
    return n;
}

/* The sequence that must be forked, and what it shares; NULL: none. */
static const text *wanted(play *p, uint32_t tenant, const int32_t *tokens, uint32_t n,
                          uint32_t *most) {
    const text *best = NULL;
    *most = 0;
    for (const text *t = p->texts; t < p->texts + TEXTS; t++) {
        if (!t->id || t->place == 0 || t->salt != tenant) continue;
        const uint32_t least = t->least < t->n_added ? t->least : t->n_added;
        const uint32_t all = shared(t->added, t->n_added, tokens, n - 1);
        const uint32_t s = shared(t->added, least, tokens, n - 1);
        if (t->evicted) p->hidden += all > 0;
        if (t->evicted || s == 0) continue;
        p->cut += all > s && s >= *most;
        p->ties += best && s == *most;
        if (s < *most || (best && s == *most && t->place > best->place)) continue;
        best = t;
        *most = s;
    }
    return best;
}

/* A prompt that begins as some text does, or did. */
static uint32_t prompt(play *p, uint32_t *tenant, int32_t *tokens) {
    const text *t = &p->texts[test_below(&p->random, TEXTS)];
    const bool told = t->place > 0 && test_below(&p->random, 2);
    const uint32_t most = told ? t->n_added : t->length, n = 1 + test_below(&p->random, CONTEXT);
    const uint32_t kept = most > 0 ? 1 + test_below(&p->random, most) : 0;
    *tenant = test_below(&p->random, 8) ? t->tenant : test_below(&p->random, TENANTS);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)test_below(&p->random, SYMBOLS);
    memcpy(tokens, told ? t->added : t->tokens, (kept < n ? kept : n) * sizeof *tokens);
    return n;
}

/* The fork becomes a text of its own, where there is a place for it. */
static void look(play *p) {
    int32_t tokens[CONTEXT];
    uint32_t tenant, most, length = 99;
    const uint32_t n = prompt(p, &tenant, tokens);
    const uint32_t least = test_below(&p->random, 4) ? 0 : test_below(&p->random, CONTEXT);
    const text *best = wanted(p, tenant, tokens, n, &most);
    const tamis_cache_stats before = test_stats(&p->e.w);
    tamis_sequence id = 99;
    OK(tamis_prefixes_fork(p->prefixes, tokens, n, salts[tenant], least, &id, &length,
                           &test_error));
    if (!best || most < least) {
        assert_true(id == 0 && length == 0);
        test_unchanged(&p->e.w, &before);
        p->misses++;
        return;
    }
    assert_int_equal(length, most);
    assert_int_equal(tms_cache_find(p->e.w.cache, id)->parent, best->id);
    assert_int_equal(test_stats(&p->e.w).pages_held, before.pages_held);
    expect(&p->e.w, id, tenant, tokens, length);
    p->hits++;
    text *to = any(p, false);
    if (!to) {
        OK(tamis_cache_remove(p->e.w.cache, id, &test_error));
        return;
    }
    *to = (text){.id = id, .tenant = tenant, .length = length};
    memcpy(to->tokens, tokens, length * sizeof *tokens);
}

/* Whatever its forks have written, a text holds what it held. */
static void check(play *p) {
    const text *t = any(p, true);
    uint64_t pages, twice;
    if (t && !t->evicted) expect(&p->e.w, t->id, t->tenant, t->tokens, t->length);
    test_account(p->e.w.cache, &pages, &twice);
}

static void run(play *p, uint32_t operations) {
    static const struct {
        void (*call)(play *p);
        uint32_t share;
    } kinds[] = {{add, 8},    {fork_one, 4}, {remove_one, 10}, {truncate_one, 9},
                 {grow, 20},  {evict, 2},    {tell, 17},       {decode_in_place, 4},
                 {untell, 2}, {look, 20},    {check, 4}};
    for (uint32_t i = 0; i < operations; i++) {
        uint32_t kind = 0, at = test_below(&p->random, 100);
        for (; at >= kinds[kind].share; kind++)
            at -= kinds[kind].share;
        kinds[kind].call(p);
    }
}

static void random_play_matches_a_plain_model(void **state) {
    (void)state;
    static play p;
    const uint32_t slow = test_slowness() * test_slowness();
    const tamis_plan_params in_place = plan_of(TAMIS_EVICT_STREAMING);
    p = (play){.random = 16};
    open_world(&p.e, TAMIS_EVICT_CALLER, &p.prefixes);
    OK(tamis_plan_create(p.e.w.cache, &in_place, &p.in_place, &test_error));
    run(&p, 60000 / slow);
    print_message("%" PRIu32 " hits, %" PRIu32 " misses, %" PRIu32 " ties, %" PRIu32
                  " sequences that share less since they were cut, %" PRIu32 " evicted\n",
                  p.hits, p.misses, p.ties, p.cut, p.hidden);
    assert_true(p.hits > 5000 / slow && p.misses > 2000 / slow && p.ties > 2000 / slow);
    assert_true(p.cut > 100 / slow && p.hidden > 2000 / slow);
    tamis_plan_destroy(&p.in_place);
    close_world(&p.e, &p.prefixes);
}

/* ---- Case by case ---------------------------------------------------------------------------- */

/* Tokens first, first + 1, ... */
static const int32_t *count_from(uint32_t first) {
    static int32_t tokens[2 * CONTEXT];
    for (uint32_t i = 0; i < 2 * CONTEXT; i++)
        tokens[i] = (int32_t)(first + i);
    return tokens;
}

static void know(tamis_prefixes *prefixes, tamis_sequence id, uint32_t first, uint32_t n) {
    OK(tamis_prefixes_add(prefixes, id, count_from(first), n, salts[0], &test_error));
}

/* What a prompt of tokens from `first` on shares; the fork is removed if `fork` is NULL. */
static uint32_t hit(evict_world *e, tamis_prefixes *prefixes, uint32_t first, uint32_t n,
                    tamis_sequence *fork) {
    tamis_sequence id;
    uint32_t length;
    OK(tamis_prefixes_fork(prefixes, count_from(first), n, salts[0], 1, &id, &length, &test_error));
    assert_int_equal(id != 0, length > 0);
    if (fork)
        *fork = id;
    else if (id)
        OK(tamis_cache_remove(e->w.cache, id, &test_error));
    return length;
}

/* The fork goes on in its own way, in the middle of a page that it shares. */
static void a_fork_leaves_its_parent_as_it_was(void **state) {
    (void)state;
    evict_world e;
    tamis_prefixes *prefixes;
    open_world(&e, TAMIS_EVICT_CALLER, &prefixes);
    const tamis_sequence id = evict_add(&e, 100, 30);
    tamis_sequence fork;
    held before = evict_read(&e, id);
    know(prefixes, id, 100, 30);
    const uint64_t pages = test_stats(&e.w).pages_held;
    assert_int_equal(hit(&e, prefixes, 100, 21, &fork), 20);
    assert_int_equal(test_stats(&e.w).pages_held, pages);
    assert_int_equal(test_stats(&e.w).pages_shared, 4 * 3);
    evict_prompt(&e, fork, 500, 9);
    held parent = evict_read(&e, id);
    held_same(&before, &parent);
    held_check(&parent, 100, 30);
    OK(tamis_cache_truncate(e.w.cache, fork, 20, &test_error));
    held own = evict_read(&e, fork);
    held_check(&own, 100, 20);
    OK(tamis_cache_remove(e.w.cache, id, &test_error));
    held left = evict_read(&e, fork);
    held_same(&own, &left);
    assert_int_equal(hit(&e, prefixes, 100, 31, NULL), 0);
    held_free(&before);
    held_free(&parent);
    held_free(&own);
    held_free(&left);
    close_world(&e, &prefixes);
}

/* A lane that loses a token makes the sequence, and its forks, serve no more: between steps, in a
 * decode step at fixed lane lengths, and in one that was cancelled. */
static void evicted_sequences_are_passed_over(void **state) {
    (void)state;
    evict_world e;
    tamis_prefixes *prefixes;
    open_world(&e, TAMIS_EVICT_STREAMING, &prefixes);
    tamis_sequence ids[3], fork, last;
    const uint64_t token = 100 + CAP;
    for (uint32_t i = 0; i < 3; i++) {
        ids[i] = evict_add(&e, 100, CAP + (i == 0));
        know(prefixes, ids[i], 100, CAP);
    }
    OK(tamis_cache_fork(e.w.cache, ids[2], &last, &test_error));
    OK(tamis_plan_evict(e.w.plan, ids[0], NULL, &test_error));
    assert_int_equal(hit(&e, prefixes, 100, CAP + 1, &fork), CAP);
    assert_int_equal(tms_cache_find(e.w.cache, fork)->parent, ids[1]);
    evict_decode(&e, ids[1], token, 1, NULL);
    assert_int_equal(hit(&e, prefixes, 100, CAP + 1, &fork), CAP);
    assert_int_equal(tms_cache_find(e.w.cache, fork)->parent, ids[2]);
    const tamis_step step = {.sequences = &ids[2], .count = 1};
    OK(test_step_begin(&e.w, &step));
    evict_layer(&e, 0, &token, 1, NULL);
    OK(tamis_plan_step_cancel(e.w.plan, &test_error));
    assert_int_equal(hit(&e, prefixes, 100, CAP + 1, NULL), 0);
    OK(tamis_cache_fork(e.w.cache, ids[1], &fork, &test_error));
    know(prefixes, fork, 100, CAP);
    assert_int_equal(hit(&e, prefixes, 100, CAP + 1, NULL), 0);
    know(prefixes, last, 100, CAP); /* forked before a token was lost */
    assert_int_equal(hit(&e, prefixes, 100, CAP + 1, NULL), CAP);
    close_world(&e, &prefixes);
}

/* A sequence in an open step cannot be forked; another one serves, even less. A step that grew it
 * and was cancelled changes nothing. */
static void a_sequence_in_an_open_step_is_passed_over(void **state) {
    (void)state;
    evict_world e;
    tamis_prefixes *prefixes;
    open_world(&e, TAMIS_EVICT_CALLER, &prefixes);
    const tamis_sequence id = evict_add(&e, 100, 30), other = evict_add(&e, 100, 12);
    know(prefixes, id, 100, 30);
    know(prefixes, other, 100, 12);
    const uint32_t rows = 2;
    const tamis_step step = {.sequences = &id, .rows = &rows, .count = 1, .exact = 1};
    OK(test_step_begin(&e.w, &step));
    assert_int_equal(hit(&e, prefixes, 100, 40, NULL), 12);
    FAILS(tamis_prefixes_add(prefixes, id, count_from(100), 30, salts[0], &test_error),
          TAMIS_E_STATE, "is in an open step");
    tamis_prefixes_remove(prefixes, other);
    assert_int_equal(hit(&e, prefixes, 100, 40, NULL), 0);
    OK(tamis_plan_step_cancel(e.w.plan, &test_error));
    assert_int_equal(hit(&e, prefixes, 100, 40, NULL), 30);
    close_world(&e, &prefixes);
}

/* An eviction's queries and the tokens are kept apart: a truncation is known to both, whoever asks
 * first and however often. */
static void cuts_are_known_beside_rings_of_queries(void **state) {
    (void)state;
    evict_world e;
    tamis_prefixes *prefixes, *second;
    open_world(&e, TAMIS_EVICT_SNAPKV, &prefixes);
    OK(tamis_prefixes_create(e.w.cache, &second, &test_error));
    const tamis_sequence id = evict_add(&e, 100, 40), alone = evict_add(&e, 100, 40);
    know(prefixes, id, 100, 40);
    OK(tamis_cache_truncate(e.w.cache, id, 37, &test_error));
    assert_int_equal(hit(&e, prefixes, 100, 50, NULL), 37);
    evict_prompt(&e, id, 700, 2);
    evict_decode(&e, id, 702, 1, NULL);
    assert_int_equal(hit(&e, prefixes, 100, 50, NULL), 37);
    OK(tamis_cache_truncate(e.w.cache, id, 37, &test_error));
    know(prefixes, id, 100, 37); /* between the cut and the rows behind it */
    know(second, id, 100, 37);
    evict_prompt(&e, id, 137, 3);
    know(second, id, 100, 40);
    assert_int_equal(hit(&e, prefixes, 100, 50, NULL), 37);
    assert_int_equal(hit(&e, second, 100, 50, NULL), 40);
    OK(tamis_plan_evict(e.w.plan, id, NULL, &test_error));
    OK(tamis_plan_evict(e.w.plan, alone, NULL, &test_error));
    held a = evict_read(&e, id), b = evict_read(&e, alone);
    held_check(&a, 100, 40);
    held_same(&a, &b);
    held_free(&a);
    held_free(&b);
    tamis_prefixes_destroy(&second);
    close_world(&e, &prefixes);
}

/* A handle is not given again, but its place in the cache is. */
static void a_new_sequence_is_not_taken_for_a_removed_one(void **state) {
    (void)state;
    evict_world e;
    tamis_prefixes *prefixes;
    open_world(&e, TAMIS_EVICT_CALLER, &prefixes);
    tamis_sequence id = evict_add(&e, 100, 20);
    const uint32_t place = (uint32_t)(id & 0xffffff);
    know(prefixes, id, 100, 20);
    OK(tamis_cache_remove(e.w.cache, id, &test_error));
    id = evict_add(&e, 700, 20);
    assert_int_equal(id & 0xffffff, place);
    assert_int_equal(hit(&e, prefixes, 100, 20, NULL), 0);
    assert_int_equal(hit(&e, prefixes, 700, 20, NULL), 0);
    know(prefixes, id, 700, 20);
    assert_int_equal(hit(&e, prefixes, 700, 20, NULL), 19);
    close_world(&e, &prefixes);
}

/* A tenant's tokens are found by its salt alone, every byte of it; a later call replaces the salt,
 * and fewer tokens replace more. */
static void salts_and_tokens_are_replaced(void **state) {
    (void)state;
    evict_world e;
    tamis_prefixes *prefixes;
    uint8_t salt[16] = {0};
    tamis_sequence fork;
    uint32_t length;
    open_world(&e, TAMIS_EVICT_CALLER, &prefixes);
    const tamis_sequence id = evict_add(&e, 100, 20);
    know(prefixes, id, 100, 20);
    for (uint32_t i = 0; i < 16; i++) {
        salt[i] = 1;
        OK(tamis_prefixes_fork(prefixes, count_from(100), 20, salt, 1, &fork, &length,
                               &test_error));
        assert_true(fork == 0 && length == 0);
        salt[i] = 0;
    }
    OK(tamis_prefixes_add(prefixes, id, count_from(100), 15, salts[1], &test_error));
    assert_int_equal(hit(&e, prefixes, 100, 20, NULL), 0);
    OK(tamis_prefixes_fork(prefixes, count_from(100), 20, salts[1], 15, &fork, &length,
                           &test_error));
    assert_int_equal(length, 15);
    OK(tamis_prefixes_fork(prefixes, count_from(100), 20, salts[1], 16, &fork, &length,
                           &test_error));
    assert_true(fork == 0 && length == 0);
    OK(tamis_prefixes_fork(prefixes, count_from(100), 20, salts[1], UINT32_MAX, &fork, &length,
                           &test_error));
    assert_true(fork == 0 && length == 0);
    tamis_prefixes_remove(prefixes, id);
    OK(tamis_prefixes_fork(prefixes, count_from(100), 20, salts[1], 0, &fork, &length,
                           &test_error));
    assert_true(fork == 0 && length == 0);
    close_world(&e, &prefixes);
}

static void arguments_are_checked(void **state) {
    (void)state;
    evict_world e;
    tamis_prefixes *p, *none;
    const int32_t tokens[20] = {0};
    const uint8_t *salt = salts[0];
    tamis_sequence fork = 9;
    uint32_t length = 9;
    open_world(&e, TAMIS_EVICT_CALLER, &p);
    const tamis_sequence id = evict_add(&e, 100, 20);
    FAILS(tamis_prefixes_create(NULL, &none, &test_error), TAMIS_E_ARGUMENT, "cache is NULL");
    assert_null(none);
    FAILS(tamis_prefixes_create(e.w.cache, NULL, &test_error), TAMIS_E_ARGUMENT, "out is NULL");
    FAILS(tamis_prefixes_add(NULL, id, tokens, 20, salt, &test_error), TAMIS_E_ARGUMENT,
          "prefixes is NULL");
    FAILS(tamis_prefixes_add(p, id, NULL, 20, salt, &test_error), TAMIS_E_ARGUMENT,
          "tokens is NULL");
    FAILS(tamis_prefixes_add(p, id, tokens, 0, salt, &test_error), TAMIS_E_ARGUMENT,
          "n_tokens is 0");
    FAILS(tamis_prefixes_add(p, id, tokens, 20, NULL, &test_error), TAMIS_E_ARGUMENT,
          "salt is NULL");
    FAILS(tamis_prefixes_add(p, id, tokens, 21, salt, &test_error), TAMIS_E_ARGUMENT,
          test_text("n_tokens 21 exceeds the 20 tokens of sequence %" PRIu64, id));
    FAILS(tamis_prefixes_add(p, 5, tokens, 1, salt, &test_error), TAMIS_E_ARGUMENT,
          "the cache has no sequence 5");
    FAILS(tamis_prefixes_fork(NULL, tokens, 20, salt, 1, &fork, &length, &test_error),
          TAMIS_E_ARGUMENT, "prefixes is NULL");
    assert_true(fork == 0 && length == 0);
    FAILS(tamis_prefixes_fork(p, NULL, 20, salt, 1, &fork, &length, &test_error), TAMIS_E_ARGUMENT,
          "tokens is NULL");
    FAILS(tamis_prefixes_fork(p, tokens, 0, salt, 1, &fork, &length, &test_error), TAMIS_E_ARGUMENT,
          "n_tokens is 0");
    FAILS(tamis_prefixes_fork(p, tokens, 20, NULL, 1, &fork, &length, &test_error),
          TAMIS_E_ARGUMENT, "salt is NULL");
    FAILS(tamis_prefixes_fork(p, tokens, 20, salt, 1, NULL, &length, &test_error), TAMIS_E_ARGUMENT,
          "out is NULL");
    FAILS(tamis_prefixes_fork(p, tokens, 20, salt, 1, &fork, NULL, &test_error), TAMIS_E_ARGUMENT,
          "length is NULL");
    OK(tamis_prefixes_fork(p, tokens, 20, salt, 1, &fork, &length, &test_error)); /* still none */
    assert_true(fork == 0 && length == 0);
    know(p, id, 100, 20);
    assert_int_equal(hit(&e, p, 100, 1, NULL), 0); /* a prompt's last token is computed */
    assert_int_equal(hit(&e, p, 100, 2, NULL), 1);
    tamis_prefixes_remove(p, 5);
    tamis_prefixes_remove(NULL, id);
    tamis_prefixes_destroy(NULL);
    tamis_prefixes_destroy(&none);
    assert_int_equal(hit(&e, p, 100, 60, NULL), 20);
    close_world(&e, &p);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_play_matches_a_plain_model),
        cmocka_unit_test(a_fork_leaves_its_parent_as_it_was),
        cmocka_unit_test(evicted_sequences_are_passed_over),
        cmocka_unit_test(a_sequence_in_an_open_step_is_passed_over),
        cmocka_unit_test(cuts_are_known_beside_rings_of_queries),
        cmocka_unit_test(a_new_sequence_is_not_taken_for_a_removed_one),
        cmocka_unit_test(salts_and_tokens_are_replaced),
        cmocka_unit_test(arguments_are_checked)};
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
