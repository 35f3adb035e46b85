/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler beside a plain model of its rules, and each request's tokens beside those of a run
 * alone: requests come and go, pages are short, some are preempted, some given up. */
#include "tests/model/rig.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/batch.h>
#if TEST_STORE
#include <tamis/record.h>
#endif

#define RUNNING  4u
#define ROWS     24u
#define PROMPT   60u /* most tokens of a prompt, and new ones */
#define NEW      20u
#define CONTEXT  96u
#define REQUESTS 24u /* most at once */
#define PAGE     16u
#define EVENTS   (8u * REQUESTS)
#define TEXTS    3u          /* with which prompts begin */
#define KEPT     (2u * PAGE) /* tokens of each that are in the store, but of the last text */

/* What is played. */
typedef struct setting {
    tamis_selection_kind selection;
    tamis_eviction_kind eviction;
    uint64_t host_bytes;
    uint32_t flags, max_kept;
    uint64_t tokens; /* of the cache */
    bool modelled;   /* the plain model tells all events */
    bool stored;     /* beginnings are in a store */
    bool puts;       /* so are prompts that were read */
} setting;

/* A request as the plain model knows it, with its tokens when it runs alone. */
typedef struct asked {
    uint64_t id;
    uint32_t n_prompt, max_new, known, done;
    uint32_t reach; /* tokens that the store has */
    int32_t prompt[PROMPT], wanted[NEW];
    bool began, fresh, saved;
    uint64_t pages; /* that it held when it was saved */
    uint64_t bytes;
} asked;

typedef struct play {
    const setting *of;
    rig r, alone;
    tamis_scheduler *scheduler;
    tamis_store *store;
    asked *asked[REQUESTS]; /* in order */
    uint32_t n, n_running;
    tamis_request_event wanted[EVENTS];
    uint32_t n_wanted;
    uint64_t random, n_events, n_ended, n_cancelled, total, lanes;
} play;

static uint32_t below(play *p, uint32_t n) {
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(p->random >> 33) % n;
}

/* ---- The plain model ------------------------------------------------------------------------- */

static uint64_t pages_of(const play *p, uint32_t tokens) {
    return p->lanes * ((tokens + PAGE - 1) / PAGE);
}

static uint64_t held(const play *p) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n_running; i++)
        n += pages_of(p, p->asked[i]->done);
    return n;
}

static void tell(play *p, const asked *a, tamis_request_event_kind kind, int32_t value) {
    p->wanted[p->n_wanted++] = (tamis_request_event){a->id, kind, value, TAMIS_OK};
}

static void drop(play *p, uint32_t place) {
    free(p->asked[place]);
    p->n--;
    p->n_running -= place < p->n_running;
    memmove(p->asked + place, p->asked + place + 1, (p->n - place) * sizeof *p->asked);
}

/* Rows of each running request in the next step; how many of the budget are left. */
static uint32_t rows_of(const play *p, uint32_t *rows) {
    uint32_t left = ROWS;
    for (uint32_t i = 0; i < p->n_running; i++) {
        rows[i] = 0;
        if (p->asked[i]->done >= p->asked[i]->n_prompt && left > 0) rows[i] = 1;
        left -= rows[i];
    }
    for (uint32_t i = 0; i < p->n_running; i++) {
        const asked *a = p->asked[i];
        if (a->done >= a->n_prompt) continue;
        rows[i] = a->n_prompt - a->done < left ? a->n_prompt - a->done : left;
        left -= rows[i];
    }
    return left;
}

static void begin(play *p) {
    uint32_t rows[RUNNING];
    while (p->n_running < p->n && p->n_running < RUNNING && rows_of(p, rows) > 0) {
        asked *a = p->asked[p->n_running];
        const uint64_t room = p->total - held(p), more = (p->n_running + 1) * p->lanes;
        if (a->saved && p->n_running > 0 && room < a->pages + more) return;
        a->fresh = true;
        a->saved = false;
        p->n_running++;
    }
}

static void make_room(play *p) {
    for (;;) {
        uint32_t rows[RUNNING];
        uint64_t needed = 0;
        rows_of(p, rows);
        for (uint32_t i = 0; i < p->n_running; i++)
            needed += pages_of(p, p->asked[i]->done + rows[i]) - pages_of(p, p->asked[i]->done);
        if (held(p) + needed <= p->total) return;
        asked *a = p->asked[--p->n_running];
        a->saved = a->began && a->done > 0 && p->of->host_bytes > 0;
        a->pages = pages_of(p, a->done);
        if (!a->fresh) tell(p, a, TAMIS_REQUEST_PREEMPTED, a->saved);
        a->fresh = false;
        if (!a->saved) a->done = 0;
    }
}

/* A request has taken its rows. */
static void advance(play *p, asked *a, uint32_t rows, bool *ends) {
    a->done += rows;
    if (rows == 0 || a->done < a->known) return;
    tell(p, a, TAMIS_REQUEST_TOKEN, a->wanted[a->known - a->n_prompt]);
    a->known++;
    *ends = a->known == a->n_prompt + a->max_new;
    if (*ends) tell(p, a, TAMIS_REQUEST_ENDED, 0);
}

/* Takes a step of the model: what the scheduler must tell. */
static void step_model(play *p) {
    uint32_t rows[RUNNING];
    bool chunk[RUNNING], ends[RUNNING] = {false};
    p->n_wanted = 0;
    begin(p);
    make_room(p);
    rows_of(p, rows);
    for (uint32_t i = 0; i < p->n_running; i++) {
        asked *a = p->asked[i];
        chunk[i] = a->done < a->n_prompt;
        if (!a->fresh) continue;
        tell(p, a, a->began ? TAMIS_REQUEST_RESUMED : TAMIS_REQUEST_BEGAN,
             (int32_t)(a->done > a->reach ? a->done : a->reach));
        a->began = true;
        a->fresh = false;
    }
    for (int chunks = 0; chunks <= 1; chunks++)
        for (uint32_t i = 0; i < p->n_running; i++)
            if (chunk[i] == (chunks == 1)) advance(p, p->asked[i], rows[i], &ends[i]);
    for (uint32_t i = p->n_running; i-- > 0;) {
        p->n_ended += ends[i];
        if (ends[i]) drop(p, i);
    }
}

/* ---- Requests -------------------------------------------------------------------------------- */

/* What the request gives when nothing else runs. */
static void run_alone(play *p, asked *a) {
    const tamis_sequence s = rig_add(&p->alone);
    int32_t *to = a->wanted;
    RIG_OK(&p->alone,
           tamis_runner_prefill(p->alone.runner, s, a->prompt, a->n_prompt, to, &p->alone.error));
    for (uint32_t i = 1; i < a->max_new; i++)
        RIG_OK(&p->alone,
               tamis_runner_decode(p->alone.runner, &s, 1, &to[i - 1], &to[i], &p->alone.error));
    RIG_OK(&p->alone, tamis_cache_remove(p->alone.cache, s, &p->alone.error));
}

static int32_t next_token(const play *p, uint64_t *text) {
    *text = *text * 2862933555777941757u + 3037000493u;
    return (int32_t)((*text >> 40) % tamis_model_describe(p->r.model)->n_vocab);
}

/* How many of a prompt's tokens lie in pages that the store has of a text, but for the last token. */
static uint32_t reach(const play *p, const asked *a, uint64_t text) {
    uint32_t n = 0;
    while (n < KEPT && n < a->n_prompt && a->prompt[n] == next_token(p, &text))
        n++;
    n -= n % PAGE;
    return n < a->n_prompt ? n : a->n_prompt - 1;
}

static void ask(play *p) {
    asked *a = calloc(1, sizeof *a);
    assert_non_null(a);
    a->n_prompt = a->known = 1 + below(p, PROMPT);
    a->max_new = 1 + below(p, NEW);
    /* Prompts of few beginnings, so that some may share. */
    uint64_t text = below(p, TEXTS);
    for (uint32_t i = 0; i < a->n_prompt; i++) {
        if (i == 20 + below(p, 20)) text = p->random;
        a->prompt[i] = next_token(p, &text);
    }
    for (uint64_t t = 0; p->of->stored && t + 1 < TEXTS; t++)
        if (reach(p, a, t) > a->reach) a->reach = reach(p, a, t);
    run_alone(p, a);
    const tamis_request request = {.tokens = a->prompt,
                                   .n_tokens = a->n_prompt,
                                   .max_new = a->max_new,
                                   .n_stored = p->of->puts ? a->n_prompt : 0};
    RIG_OK(&p->r, tamis_scheduler_add(p->scheduler, &request, &a->id, &p->r.error));
    p->asked[p->n++] = a;
}

static void cancel(play *p) {
    const uint32_t i = below(p, p->n);
    RIG_OK(&p->r, tamis_scheduler_cancel(p->scheduler, p->asked[i]->id, &p->r.error));
    drop(p, i);
    p->n_cancelled++;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

static void same_events(const play *p, const tamis_request_event *events, uint32_t n) {
    for (uint32_t i = 0; i < n && i < p->n_wanted; i++) {
        const tamis_request_event *a = &events[i], *b = &p->wanted[i];
        if (a->id != b->id || a->kind != b->kind || a->value != b->value || a->status)
            fail_msg("event %u: request %u, kind %d, value %d; wanted %u, %d, %d", i,
                     (unsigned)a->id, (int)a->kind, a->value, (unsigned)b->id, (int)b->kind,
                     b->value);
    }
    assert_int_equal(n, p->n_wanted);
}

/* Where the model does not know what pages hold: tokens alone, in the order in which they are told. */
static void same_tokens(play *p, const tamis_request_event *events, uint32_t n) {
    for (uint32_t e = 0; e < n; e++) {
        uint32_t i = 0;
        while (i < p->n && p->asked[i]->id != events[e].id)
            i++;
        assert_true(i < p->n);
        asked *a = p->asked[i];
        assert_int_equal(events[e].status, TAMIS_OK);
        if (events[e].kind == TAMIS_REQUEST_TOKEN)
            assert_int_equal(events[e].value, a->wanted[a->known++ - a->n_prompt]);
        if (events[e].kind != TAMIS_REQUEST_ENDED) continue;
        assert_int_equal(a->known, a->n_prompt + a->max_new);
        drop(p, i);
        p->n_ended++;
    }
}

static void step(play *p) {
    const tamis_request_event *events;
    uint32_t n;
    if (p->of->modelled) step_model(p);
    RIG_OK(&p->r, tamis_scheduler_step(p->scheduler, &events, &n, &p->r.error));
    p->n_events += n;
    if (p->of->modelled)
        same_events(p, events, n);
    else
        same_tokens(p, events, n);
}

static uint64_t pages_held(const play *p) {
    tamis_cache_stats stats;
    tamis_cache_get_stats(p->r.cache, &stats);
    return stats.pages_held;
}

/* ---- Playing --------------------------------------------------------------------------------- */

/* Puts the beginnings of all texts but the last one into a store. */
static void fill_store(play *p, tamis_scheduler_params *how) {
#if TEST_STORE
    const tamis_store_params params = {.memory_bytes = 1u << 24};
    const tamis_record_params record = {.dtype = TAMIS_F32};
    RIG_OK(&p->r, tamis_store_create(&params, &p->store, &p->r.error));
    for (uint64_t t = 0; t + 1 < TEXTS; t++) {
        int32_t tokens[KEPT];
        uint64_t text = t;
        for (uint32_t i = 0; i < KEPT; i++)
            tokens[i] = next_token(p, &text);
        RIG_OK(&p->r, tamis_runner_record_prefix(p->r.runner, p->store, &record, tokens, KEPT, PAGE,
                                                 NULL, &p->r.error));
    }
    how->store = p->store;
    how->store_tokens = PAGE;
#else
    (void)p, (void)how;
#endif
}

static void open_play(play *p) {
    rig_params params = {.file = "tiny.gguf",
                         .max_sequences = RUNNING,
                         .max_rows = ROWS,
                         .max_context = CONTEXT,
                         .capacity_tokens = p->of->tokens,
                         .load_dtypes = p->of->stored ? 1u << TAMIS_F32 : 0};
    tamis_scheduler_params how = {
        .flags = p->of->flags, .max_kept = p->of->max_kept, .host_bytes = p->of->host_bytes};
    tamis_cache_params shape;
    tamis_cache_stats stats;
    if (p->of->selection) {
        tamis_selection_default(p->of->selection, &params.selection);
        params.selection.budget = 64;
    }
    tamis_eviction_default(p->of->eviction, &params.eviction);
    if (p->of->eviction) params.eviction.budget = 48;
    rig_open(&p->r, &params);
    params.capacity_tokens = 2 * CONTEXT;
    rig_open(&p->alone, &params);
    tamis_cache_get_params(p->r.cache, &shape);
    tamis_cache_get_stats(p->r.cache, &stats);
    p->lanes = (uint64_t)shape.n_layers * shape.n_kv_heads;
    p->total = stats.pages_total;
    if (p->of->stored) fill_store(p, &how);
    RIG_OK(&p->r, tamis_scheduler_create(p->r.runner, &how, &p->scheduler, &p->r.error));
}

static void close_play(play *p) {
    tamis_scheduler_stats stats;
    while (p->n > 0)
        step(p);
    tamis_scheduler_get_stats(p->scheduler, &stats);
    assert_int_equal(stats.running + stats.waiting, 0);
    assert_int_equal(stats.saved_bytes, 0);
    if (p->of->max_kept == 0) assert_int_equal(pages_held(p), 0);
    assert_true(stats.mixed_steps > 0 && p->n_ended > 0 && p->n_cancelled > 0);
    assert_true(stats.preempted > 0);
    assert_int_equal(stats.saved > 0, p->of->host_bytes > 0);
    assert_int_equal(stats.tokens_shared > 0, (p->of->flags & TAMIS_SCHEDULER_SHARE) != 0);
    assert_int_equal(stats.tokens_stored > 0, p->of->stored);
    assert_int_equal(stats.pages_put > 0, p->of->puts);
    assert_int_equal(stats.store_failed, 0);
    tamis_scheduler_destroy(&p->scheduler);
#if TEST_STORE
    tamis_store_destroy(&p->store);
#endif
    assert_int_equal(pages_held(p), 0);
    rig_close(&p->r);
    rig_close(&p->alone);
}

static void play_it(const setting *of) {
    const char *wanted = getenv("TEST_STEPS");
    const uint64_t events = wanted ? strtoul(wanted, NULL, 10) : 1500;
    play *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->of = of;
    p->random = 5;
    open_play(p);
    while (p->n_events < events) {
        if (p->n < REQUESTS && below(p, 3) == 0) ask(p);
        if (p->n > 0 && below(p, 40) == 0) cancel(p);
        step(p);
        if (of->modelled) assert_int_equal(pages_held(p), held(p));
    }
    close_play(p);
    free(p);
}

static void pages_are_given_up(void **state) {
    (void)state;
    play_it(&(setting){.tokens = 160, .modelled = true});
}

static void sequences_are_saved(void **state) {
    (void)state;
    play_it(&(setting){.tokens = 160, .host_bytes = 1u << 30, .modelled = true});
}

static void some_are_saved_under_quest(void **state) {
    (void)state;
    play_it(&(setting){
        .selection = TAMIS_SELECT_QUEST, .tokens = 160, .host_bytes = 400000, .modelled = false});
}

static void evictions_are_the_same(void **state) {
    (void)state;
    play_it(&(setting){.eviction = TAMIS_EVICT_SNAPKV, .tokens = 160, .host_bytes = 1u << 30});
    play_it(&(setting){.eviction = TAMIS_EVICT_H2O, .tokens = 160});
}

static void beginnings_are_shared(void **state) {
    (void)state;
    play_it(&(setting){
        .tokens = 160, .host_bytes = 1u << 30, .flags = TAMIS_SCHEDULER_SHARE, .max_kept = 3});
}

#if TEST_STORE
static void beginnings_are_loaded(void **state) {
    (void)state;
    play_it(&(setting){.tokens = 160, .host_bytes = 1u << 30, .modelled = true, .stored = true});
    play_it(&(setting){.tokens = 160, .modelled = true, .stored = true});
    play_it(
        &(setting){.tokens = 160, .flags = TAMIS_SCHEDULER_SHARE, .max_kept = 2, .stored = true});
}

static void prompts_are_put(void **state) {
    (void)state;
    play_it(&(setting){.tokens = 160, .host_bytes = 400000, .stored = true, .puts = true});
    play_it(&(setting){.selection = TAMIS_SELECT_QUEST,
                       .tokens = 160,
                       .flags = TAMIS_SCHEDULER_SHARE,
                       .max_kept = 2,
                       .stored = true,
                       .puts = true});
}
#endif

static void test_refused(void **state) {
    (void)state;
    rig r;
    const int32_t tokens[3] = {1, 2, 3};
    const tamis_request_event *events;
    tamis_scheduler *scheduler = NULL, *other = NULL;
    uint64_t id = 0;
    uint32_t n = 7;
    rig_open(&r, &(rig_params){
                     .file = "tiny.gguf", .max_sequences = 2, .max_rows = 4, .max_context = 16});
    tamis_scheduler_params params = {.max_rows = 5};
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "max_rows is 5; the plan's is 4",
                tamis_scheduler_create(r.runner, &params, &scheduler, &r.error));
    params = (tamis_scheduler_params){.max_running = 3};
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "max_running is 3; the plan decodes 2 sequences in a step",
                tamis_scheduler_create(r.runner, &params, &scheduler, &r.error));
    params = (tamis_scheduler_params){.flags = 64};
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "flags are 0x40",
                tamis_scheduler_create(r.runner, &params, &scheduler, &r.error));
    params = (tamis_scheduler_params){.max_kept = 2};
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "max_kept is 2 without TAMIS_SCHEDULER_SHARE",
                tamis_scheduler_create(r.runner, &params, &scheduler, &r.error));
    assert_null(scheduler);
    RIG_OK(&r, tamis_scheduler_create(r.runner, NULL, &scheduler, &r.error));
    RIG_REFUSED(&r, TAMIS_E_STATE, "the runner has a scheduler already",
                tamis_scheduler_create(r.runner, NULL, &other, &r.error));
    tamis_request request = {.tokens = tokens, .n_tokens = 3};
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "max_new is 0",
                tamis_scheduler_add(scheduler, &request, &id, &r.error));
    request.max_new = 15;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "a prompt of 3 tokens and 15 new ones exceed max_context 16",
                tamis_scheduler_add(scheduler, &request, &id, &r.error));
    request.max_new = 14;
    request.n_stops = 1;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "stops is NULL, n_stops 1",
                tamis_scheduler_add(scheduler, &request, &id, &r.error));
    request.n_stops = 0;
    RIG_OK(&r, tamis_scheduler_step(scheduler, &events, &n, &r.error));
    assert_int_equal(n, 0);
    RIG_OK(&r, tamis_scheduler_add(scheduler, &request, &id, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "there is no request 2",
                tamis_scheduler_cancel(scheduler, 2, &r.error));
    tamis_runner_destroy(&r.runner);
    RIG_REFUSED(&r, TAMIS_E_STATE, "the scheduler's runner was destroyed",
                tamis_scheduler_step(scheduler, &events, &n, &r.error));
    tamis_scheduler_destroy(&scheduler);
    rig_close(&r);
}

/* Ends the second of its tokens with a number of its own. */
static tamis_status choose(void *user, const float *logits, uint32_t n_vocab, int32_t *token,
                           tamis_error *error) {
    int *calls = user;
    (void)error;
    assert_true(logits[n_vocab - 1] == logits[n_vocab - 1]);
    *token = 5;
    return ++*calls < 3 ? TAMIS_OK : TAMIS_E_STATE;
}

/* Requests whose tokens are chosen, that meet a stop, and one that is too large for the cache. */
static void test_ends(void **state) {
    (void)state;
    rig r;
    const int32_t tokens[40] = {1, 2, 3}, stop = 5;
    const tamis_request_event *events;
    tamis_scheduler *scheduler = NULL;
    int calls = 0;
    uint64_t ids[3];
    uint32_t n, n_tokens[4] = {0}, seen = 0;
    tamis_status ends[4] = {TAMIS_OK};
    rig_open(&r, &(rig_params){.file = "tiny.gguf",
                               .max_sequences = 2,
                               .max_rows = 16,
                               .max_context = 64,
                               .capacity_tokens = 32});
    RIG_OK(&r, tamis_scheduler_create(r.runner, NULL, &scheduler, &r.error));
    tamis_request request = {
        .tokens = tokens, .n_tokens = 3, .max_new = 9, .choose = choose, .user = &calls};
    RIG_OK(&r, tamis_scheduler_add(scheduler, &request, &ids[0], &r.error));
    request = (tamis_request){.tokens = tokens, .n_tokens = 40, .max_new = 2};
    RIG_OK(&r, tamis_scheduler_add(scheduler, &request, &ids[1], &r.error));
    request = (tamis_request){.tokens = tokens,
                              .n_tokens = 3,
                              .max_new = 9,
                              .stops = &stop,
                              .n_stops = 1,
                              .choose = choose,
                              .user = &(int){0}};
    RIG_OK(&r, tamis_scheduler_add(scheduler, &request, &ids[2], &r.error));
    while (seen < 3) {
        RIG_OK(&r, tamis_scheduler_step(scheduler, &events, &n, &r.error));
        for (uint32_t i = 0; i < n; i++) {
            n_tokens[events[i].id] += events[i].kind == TAMIS_REQUEST_TOKEN;
            if (events[i].kind != TAMIS_REQUEST_ENDED) continue;
            ends[events[i].id] = events[i].status;
            seen++;
        }
    }
    assert_int_equal(n_tokens[ids[0]], 2);
    assert_int_equal(ends[ids[0]], TAMIS_E_STATE);
    assert_int_equal(n_tokens[ids[1]], 0);
    assert_int_equal(ends[ids[1]], TAMIS_E_FULL);
    assert_int_equal(n_tokens[ids[2]], 1);
    assert_int_equal(ends[ids[2]], TAMIS_OK);
    tamis_scheduler_destroy(&scheduler);
    rig_close(&r);
}

int main(int argc, char **argv) {
    if (!rig_arguments(argc, argv)) return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_given_up),
        cmocka_unit_test(sequences_are_saved),
        cmocka_unit_test(some_are_saved_under_quest),
        cmocka_unit_test(evictions_are_the_same),
        cmocka_unit_test(beginnings_are_shared),
#if TEST_STORE
        cmocka_unit_test(beginnings_are_loaded),
        cmocka_unit_test(prompts_are_put),
#endif
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_ends)
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
