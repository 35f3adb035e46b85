/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler beside a plain model of its rules, and each request's tokens beside those of a run
 * alone: requests come and go, pages are short, some are preempted, some given up. */
#include "tests/model/rig.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/batch.h>

#define RUNNING  4u
#define ROWS     24u
#define PROMPT   60u /* most tokens of a prompt, and new ones */
#define NEW      20u
#define CONTEXT  96u
#define REQUESTS 24u /* most at once */
#define PAGE     16u
#define EVENTS   (8u * REQUESTS)

/* What is played. */
typedef struct setting {
    tamis_selection_kind selection;
    tamis_eviction_kind eviction;
    uint64_t host_bytes;
    uint32_t flags, max_kept;
    uint64_t tokens; /* of the cache */
    bool modelled;   /* the plain model tells all events */
} setting;

/* A request as the plain model knows it, with its tokens when it runs alone. */
typedef struct asked {
    uint64_t id;
    uint32_t n_prompt, max_new, known, done;
    int32_t prompt[PROMPT], wanted[NEW];
    bool began, fresh, saved;
    uint64_t pages; /* that it held when it was saved */
    uint64_t bytes;
} asked;

typedef struct play {
    const setting *of;
    rig r, alone;
    tamis_scheduler *scheduler;
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
        tell(p, a, a->began ? TAMIS_REQUEST_RESUMED : TAMIS_REQUEST_BEGAN, (int32_t)a->done);
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

static void ask(play *p) {
    const uint32_t vocab = tamis_model_describe(p->r.model)->n_vocab;
    asked *a = calloc(1, sizeof *a);
    assert_non_null(a);
    a->n_prompt = a->known = 1 + below(p, PROMPT);
    a->max_new = 1 + below(p, NEW);
    /* Prompts of few beginnings, so that some may share. */
    uint64_t text = below(p, 3);
    for (uint32_t i = 0; i < a->n_prompt; i++) {
        if (i == 20 + below(p, 20)) text = p->random;
        text = text * 2862933555777941757u + 3037000493u;
        a->prompt[i] = (int32_t)((text >> 40) % vocab);
    }
    run_alone(p, a);
    const tamis_request request = {
        .tokens = a->prompt, .n_tokens = a->n_prompt, .max_new = a->max_new};
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

static void open_play(play *p) {
    rig_params params = {.file = "tiny.gguf",
                         .max_sequences = RUNNING,
                         .max_rows = ROWS,
                         .max_context = CONTEXT,
                         .capacity_tokens = p->of->tokens};
    const tamis_scheduler_params how = {
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
    tamis_scheduler_destroy(&p->scheduler);
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

int main(int argc, char **argv) {
    if (!rig_arguments(argc, argv)) return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_given_up), cmocka_unit_test(sequences_are_saved),
        cmocka_unit_test(some_are_saved_under_quest), cmocka_unit_test(evictions_are_the_same),
        cmocka_unit_test(beginnings_are_shared)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
