/* SPDX-License-Identifier: Apache-2.0 */
/* What requests of a scheduler ask for beside tokens: exact rows, sequences that they bring, and which
 * pages their rows read. All beside each request alone on runners of its own. */
#include "tests/model/rig.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/batch.h>
#if TEST_STORE
#include <tamis/store.h>
#endif

enum {
    RUNNING = 4,
    ROWS = 40,
    PROMPT = 150, /* most tokens of a prompt, and new ones */
    NEW = 24,
    CONTEXT = 192,
    REQUESTS = 8, /* most at once */
    PAGE = 16,
    BUDGET = 64
};

/* ---- Requests alone -------------------------------------------------------------------------- */

/* What rows have read, a hash of each. */
typedef struct told {
    uint64_t rows[NEW];
    uint32_t n, per_row; /* calls; calls of a row: layers times KV heads */
} told;

static void note(told *to, uint32_t layer, uint32_t kv_head, const uint32_t *pages, uint32_t n,
                 uint32_t of) {
    uint64_t *hash = &to->rows[to->n++ / to->per_row];
    const uint32_t head[] = {layer, kv_head, n, of};
    assert_true(n > 0 && n <= of && pages[n - 1] < of && to->n <= NEW * to->per_row);
    for (uint32_t i = 0; i < 4; i++)
        *hash = (*hash ^ head[i]) * 1099511628211u;
    for (uint32_t i = 0; i < n; i++)
        *hash = (*hash ^ pages[i]) * 1099511628211u;
}

/* A request, and what it gives when nothing else runs. */
typedef struct asked {
    uint64_t id;
    int32_t prompt[PROMPT], brought[PROMPT], tokens[NEW], wanted[NEW];
    uint32_t n_prompt, max_new, known; /* known: of tokens */
    uint32_t n_brought;                /* 0: no sequence, or it was given up */
    bool exact, is_told;
    told told, reads; /* what it was told, and what it reads alone */
} asked;

/* The runner that the observer watches. Beside what observers may read, this one reads lengths of lanes, which
 * changes nothing. With an observer the fused launches of a layer are not taken. */
static rig *watched;
static tamis_sequence watched_sequence;

static tamis_status observe(void *user, const tamis_attention_rows *rows, tamis_error *error) {
    told *to = user;
    const uint32_t n_heads = tamis_model_describe(watched->model)->n_kv_heads;
    for (uint32_t h = 0; h < n_heads; h++) {
        uint32_t pages[CONTEXT / PAGE + 1], n = 0, length = 0;
        tamis_status status = tamis_plan_read_selected(tamis_runner_plan(watched->runner), 0, h,
                                                       pages, CONTEXT / PAGE + 1, &n, error);
        if (status == TAMIS_OK)
            status = tamis_cache_lane_length(watched->cache, watched_sequence, rows->layer, h,
                                             &length, error);
        if (status != TAMIS_OK) return status;
        note(to, rows->layer, h, pages, n, (length + PAGE - 1) / PAGE);
    }
    return TAMIS_OK;
}

/* From the tokens that are known on, on a runner whose plan selects or, for exact requests, does not. */
static void run_alone(rig *r, asked *a) {
    const tamis_sequence s = rig_add(r);
    const uint32_t rest = a->n_prompt - a->n_brought;
    int32_t next;
    told reads = {.per_row = a->told.per_row};
    if (a->n_brought)
        RIG_OK(r, tamis_runner_prefill(r->runner, s, a->brought, a->n_brought, NULL, &r->error));
    RIG_OK(r, tamis_runner_prefill(r->runner, s, a->prompt + a->n_brought, rest, &next, &r->error));
    watched = r;
    watched_sequence = s;
    tamis_runner_observe(r->runner, observe, &reads);
    for (uint32_t i = 0; i < a->max_new; i++) {
        a->wanted[i] = i < a->known ? a->tokens[i] : next;
        if (i + 1 < a->max_new)
            RIG_OK(r, tamis_runner_decode(r->runner, &s, 1, &a->wanted[i], &next, &r->error));
    }
    tamis_runner_observe(r->runner, NULL, NULL);
    for (uint32_t i = a->known ? a->known - 1 : 0; i < NEW; i++)
        a->reads.rows[i] = reads.rows[i];
    RIG_OK(r, tamis_cache_remove(r->cache, s, &r->error));
}

/* ---- Playing --------------------------------------------------------------------------------- */

typedef struct setting {
    const char *file;                 /* NULL: tiny.gguf */
    uint32_t context, budget, prompt; /* 0: CONTEXT, BUDGET, PROMPT */
    tamis_selection_kind selection;
    uint32_t dense_layers;
    tamis_eviction_kind eviction;
    uint32_t every;
    uint64_t host_bytes, tokens;
    uint32_t flags;
    bool brings; /* some requests bring sequences */
} setting;

typedef struct play {
    const setting *of;
    rig r, alone, full;
    tamis_scheduler *scheduler;
    asked *asked[REQUESTS];
    uint32_t n;
    uint64_t random;
    uint32_t n_ended, n_exact, n_brought, n_lost, n_unlike, n_told;
} play;

static uint32_t below(play *p, uint32_t n) {
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(p->random >> 33) % n;
}

static void fill_tokens(play *p, int32_t *tokens, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)below(p, tamis_model_describe(p->r.model)->n_vocab);
}

static void reads(void *user, uint32_t layer, uint32_t kv_head, const uint32_t *pages, uint32_t n,
                  uint32_t of) {
    asked *a = user;
    note(&a->told, layer, kv_head, pages, n, of);
}

/* A sequence of other tokens than the prompt's, as if these were an approximation. 0: there is no room. */
static tamis_sequence bring(play *p, asked *a) {
    const uint32_t n = 1 + below(p, a->n_prompt - 1);
    const tamis_sequence s = rig_add(&p->r);
    fill_tokens(p, a->brought, n);
    const tamis_status status =
        tamis_runner_prefill(p->r.runner, s, a->brought, n, NULL, &p->r.error);
    if (status == TAMIS_OK) {
        a->n_brought = n;
        p->n_brought++;
        return s;
    }
    assert_int_equal(status, TAMIS_E_FULL);
    RIG_OK(&p->r, tamis_cache_remove(p->r.cache, s, &p->r.error));
    return 0;
}

static rig *alone_of(play *p, const asked *a) {
    return a->exact ? &p->full : &p->alone;
}

/* Whether the other kind of rows would give other tokens. */
static bool is_unlike(play *p, const asked *a) {
    asked other = *a;
    other.exact = !a->exact;
    run_alone(alone_of(p, &other), &other);
    return memcmp(other.wanted, a->wanted, a->max_new * sizeof *a->wanted) != 0;
}

static void ask(play *p) {
    asked *a = calloc(1, sizeof *a);
    const tamis_model_info *info = tamis_model_describe(p->r.model);
    assert_non_null(a);
    a->told.per_row = info->n_layers * info->n_kv_heads;
    a->n_prompt = 2 + below(p, (p->of->prompt ? p->of->prompt : PROMPT) - 1);
    a->max_new = 1 + below(p, NEW);
    a->exact = below(p, 2) == 0;
    fill_tokens(p, a->prompt, a->n_prompt);
    tamis_request request = {.tokens = a->prompt,
                             .n_tokens = a->n_prompt,
                             .max_new = a->max_new,
                             .flags = a->exact ? TAMIS_REQUEST_EXACT : 0,
                             .reads = below(p, 3) ? reads : NULL,
                             .user = a};
    if (p->of->brings && below(p, 2)) request.sequence = bring(p, a);
    a->is_told = request.reads != NULL;
    run_alone(alone_of(p, a), a);
    if (a->exact && p->n_exact++ < 10) p->n_unlike += is_unlike(p, a);
    RIG_OK(&p->r, tamis_scheduler_add(p->scheduler, &request, &a->id, &p->r.error));
    p->asked[p->n++] = a;
}

/* Its sequence was given up: what is left of it is as if it had brought none. */
static void lose(play *p, asked *a) {
    a->n_brought = 0;
    p->n_lost++;
    run_alone(alone_of(p, a), a);
}

static void take_token(play *p, asked *a, int32_t token) {
    const uint32_t i = a->known++;
    assert_true(i < a->max_new);
    assert_int_equal(token, a->wanted[i]);
    a->tokens[i] = token;
    assert_int_equal(a->told.n, a->is_told ? i * a->told.per_row : 0);
    if (i > 0 && a->is_told) assert_true(a->told.rows[i - 1] == a->reads.rows[i - 1]);
    p->n_told += i > 0 && a->is_told;
}

static void drop(play *p, uint32_t i) {
    free(p->asked[i]);
    p->n--;
    memmove(p->asked + i, p->asked + i + 1, (p->n - i) * sizeof *p->asked);
}

static void take_event(play *p, const tamis_request_event *event) {
    uint32_t i = 0;
    while (i < p->n && p->asked[i]->id != event->id)
        i++;
    assert_true(i < p->n);
    asked *a = p->asked[i];
    assert_int_equal(event->status, TAMIS_OK);
    switch (event->kind) {
    case TAMIS_REQUEST_BEGAN:
        if (a->n_brought && event->value == 0) lose(p, a);
        assert_int_equal(event->value, a->n_brought);
        break;
    case TAMIS_REQUEST_TOKEN:
        take_token(p, a, event->value);
        break;
    case TAMIS_REQUEST_PREEMPTED:
        if (a->n_brought && event->value == 0) lose(p, a);
        break;
    case TAMIS_REQUEST_ENDED:
        assert_int_equal(a->known, a->max_new);
        drop(p, i);
        p->n_ended++;
        break;
    default:
        break;
    }
}

static void step(play *p) {
    const tamis_request_event *events;
    uint32_t n;
    RIG_OK(&p->r, tamis_scheduler_step(p->scheduler, &events, &n, &p->r.error));
    for (uint32_t e = 0; e < n; e++)
        take_event(p, &events[e]);
}

static void open_play(play *p) {
    const setting *of = p->of;
    const uint32_t budget = of->budget ? of->budget : BUDGET;
    rig_params params = {.file = of->file ? of->file : "tiny.gguf",
                         .max_sequences = RUNNING,
                         .max_rows = ROWS,
                         .max_context = of->context ? of->context : CONTEXT,
                         .capacity_tokens = of->tokens};
    const tamis_scheduler_params how = {.flags = of->flags, .host_bytes = of->host_bytes};
    tamis_eviction_default(of->eviction, &params.eviction);
    if (of->eviction) {
        params.eviction.budget = budget;
        params.eviction.every = of->every;
    }
    tamis_selection_default(of->selection, &params.selection);
    params.selection.budget = of->selection ? budget : 0;
    params.selection.dense_layers = of->dense_layers;
    rig_open(&p->r, &params);
    params.capacity_tokens = 2 * CONTEXT;
    rig_open(&p->alone, &params);
    params.selection = (tamis_selection){0};
    rig_open(&p->full, &params);
    RIG_OK(&p->r, tamis_scheduler_create(p->r.runner, &how, &p->scheduler, &p->r.error));
}

static void close_play(play *p) {
    tamis_cache_stats cache;
    tamis_scheduler_stats stats;
    while (p->n > 0)
        step(p);
    tamis_scheduler_get_stats(p->scheduler, &stats);
    tamis_cache_get_stats(p->r.cache, &cache);
    assert_int_equal(cache.pages_held, 0);
    assert_int_equal(stats.saved_bytes, 0);
    assert_true(stats.preempted > 0 && p->n_exact > 0 && p->n_told > 0);
    assert_int_equal(stats.mixed_steps > 0, p->of->flags == 0);
    assert_int_equal(stats.saved > 0, p->of->host_bytes > 0);
    assert_int_equal(p->n_brought > 0, p->of->brings);
    if (p->of->brings) assert_int_equal(p->n_lost > 0, p->of->host_bytes == 0);
    /* A small model with few pages may give the same tokens either way. */
    if (!p->of->file) assert_int_equal(p->n_unlike > 0, p->of->selection != TAMIS_SELECT_FULL);
    tamis_scheduler_destroy(&p->scheduler);
    rig_close(&p->r);
    rig_close(&p->alone);
    rig_close(&p->full);
}

static void play_it(const setting *of) {
    const char *wanted = getenv("TEST_STEPS");
    const uint64_t requests = wanted ? strtoul(wanted, NULL, 10) : 30;
    play *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->of = of;
    p->random = 7;
    open_play(p);
    while (p->n_ended < requests) {
        if (p->n < REQUESTS && below(p, 3) == 0) ask(p);
        step(p);
    }
    close_play(p);
    free(p);
}

static void exact_beside_quest(void **state) {
    (void)state;
    play_it(&(setting){.selection = TAMIS_SELECT_QUEST, .tokens = 320});
    play_it(&(setting){.selection = TAMIS_SELECT_QUEST,
                       .dense_layers = 1,
                       .tokens = 320,
                       .host_bytes = 1u << 30,
                       .flags = TAMIS_SCHEDULER_APART});
}

static void exact_under_evictions(void **state) {
    (void)state;
    play_it(&(setting){.selection = TAMIS_SELECT_QUEST,
                       .eviction = TAMIS_EVICT_SNAPKV,
                       .tokens = 240,
                       .host_bytes = 1u << 30});
    play_it(&(setting){.selection = TAMIS_SELECT_WINDOW,
                       .eviction = TAMIS_EVICT_SNAPKV,
                       .every = 5,
                       .tokens = 240});
    play_it(&(setting){
        .selection = TAMIS_SELECT_WINDOW, .eviction = TAMIS_EVICT_H2O, .every = 5, .tokens = 240});
}

static void exact_under_a_window(void **state) {
    (void)state;
    play_it(&(setting){.file = "models/gemma3.gguf",
                       .selection = TAMIS_SELECT_WINDOW,
                       .tokens = 128,
                       .context = 64,
                       .budget = 32,
                       .prompt = 40});
}

static void full_is_exact(void **state) {
    (void)state;
    play_it(&(setting){.tokens = 320});
}

static void sequences_are_brought(void **state) {
    (void)state;
    play_it(&(setting){.selection = TAMIS_SELECT_QUEST, .tokens = 320, .brings = true});
    play_it(&(setting){.selection = TAMIS_SELECT_QUEST,
                       .tokens = 320,
                       .host_bytes = 1u << 30,
                       .flags = TAMIS_SCHEDULER_PROMPTS_FIRST,
                       .brings = true});
}

/* ---- Requests of which each step is known ---------------------------------------------------- */

/* A scheduler, and what it has told. */
typedef struct server {
    rig r;
    tamis_scheduler *scheduler;
    int32_t text[PROMPT];
    const tamis_request_event *events;
    uint32_t n;
} server;

static void open_server(server *s, const rig_params *params, const tamis_scheduler_params *how) {
    *s = (server){0};
    rig_open(&s->r, params);
    for (uint32_t i = 0; i < PROMPT; i++)
        s->text[i] = (int32_t)(i * i * 7 % 100);
    RIG_OK(&s->r, tamis_scheduler_create(s->r.runner, how, &s->scheduler, &s->r.error));
}

static uint64_t pages_held(const server *s) {
    tamis_cache_stats cache;
    tamis_cache_get_stats(s->r.cache, &cache);
    return cache.pages_held;
}

static void close_server(server *s) {
    tamis_scheduler_destroy(&s->scheduler);
    assert_int_equal(pages_held(s), 0);
    rig_close(&s->r);
}

static uint64_t add(server *s, const tamis_request *request) {
    uint64_t id;
    RIG_OK(&s->r, tamis_scheduler_add(s->scheduler, request, &id, &s->r.error));
    return id;
}

static tamis_scheduler_stats take_step(server *s) {
    tamis_scheduler_stats stats;
    RIG_OK(&s->r, tamis_scheduler_step(s->scheduler, &s->events, &s->n, &s->r.error));
    tamis_scheduler_get_stats(s->scheduler, &stats);
    return stats;
}

/* The requests whose tokens a step has told, in order, as digits. */
static uint32_t order_of(const server *s) {
    uint32_t order = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->events[i].kind == TAMIS_REQUEST_TOKEN)
            order = 10 * order + (uint32_t)s->events[i].id;
    return order;
}

static void check_order(uint32_t flags) {
    server s;
    tamis_selection window;
    const bool apart = flags & TAMIS_SCHEDULER_APART;
    const bool first = flags & TAMIS_SCHEDULER_PROMPTS_FIRST;
    tamis_selection_default(TAMIS_SELECT_WINDOW, &window);
    window.budget = BUDGET;
    open_server(&s,
                &(rig_params){.file = "tiny.gguf",
                              .selection = window,
                              .max_sequences = 4,
                              .max_rows = 8,
                              .max_context = CONTEXT,
                              .capacity_tokens = 4 * CONTEXT},
                &(tamis_scheduler_params){.flags = flags});
    tamis_request request = {
        .tokens = s.text, .n_tokens = 2, .max_new = 20, .flags = TAMIS_REQUEST_EXACT};
    add(&s, &request);
    request.flags = 0;
    add(&s, &request);
    take_step(&s);
    assert_int_equal(order_of(&s), 12); /* prompts are in order */
    tamis_scheduler_stats stats = take_step(&s);
    assert_int_equal(order_of(&s), 21);
    assert_int_equal(stats.steps, 2); /* APART: prompts alone are */
    assert_int_equal(stats.mixed_steps, 0);
    request.n_tokens = 10; /* in two chunks, where a step has 8 rows */
    add(&s, &request);
    const tamis_scheduler_stats mixed = take_step(&s);
    assert_int_equal(order_of(&s), first ? 0 : 21);
    assert_int_equal(mixed.steps - stats.steps, apart && !first ? 2 : 1);
    assert_int_equal(mixed.mixed_steps, apart || first ? 0 : 1);
    assert_int_equal(mixed.rows - stats.rows, first ? 8 + 2 - 2 : 8);
    take_step(&s);
    assert_int_equal(order_of(&s), first ? 3 : 213);
    close_server(&s);
}

static void exact_rows_come_behind_others(void **state) {
    (void)state;
    check_order(0);
    check_order(TAMIS_SCHEDULER_APART);
    check_order(TAMIS_SCHEDULER_PROMPTS_FIRST);
}

/* A sequence of n tokens of the text from a place on. */
static tamis_sequence prefilled(server *s, uint32_t from, uint32_t n) {
    const tamis_sequence sequence = rig_add(&s->r);
    RIG_OK(&s->r,
           tamis_runner_prefill(s->r.runner, sequence, s->text + from, n, NULL, &s->r.error));
    return sequence;
}

/* The event of the request of a kind in the last step; its value, or -1. */
static int32_t value_of(const server *s, uint64_t id, tamis_request_event_kind kind) {
    for (uint32_t i = 0; i < s->n; i++)
        if (s->events[i].id == id && s->events[i].kind == kind) return s->events[i].value;
    return -1;
}

/* Steps until the request has ended; the value of its beginning. */
static int32_t finish(server *s, uint64_t id) {
    int32_t began = -1;
    do {
        take_step(s);
        const int32_t value = value_of(s, id, TAMIS_REQUEST_BEGAN);
        if (value >= 0) began = value;
    } while (value_of(s, id, TAMIS_REQUEST_ENDED) < 0);
    return began;
}

/* Nobody begins with what a sequence held that came with a request, neither beside it nor behind its end. */
static void what_is_brought_is_not_shared(void **state) {
    (void)state;
    server s;
    open_server(&s,
                &(rig_params){.file = "tiny.gguf",
                              .max_sequences = 4,
                              .max_rows = 64,
                              .max_context = CONTEXT,
                              .capacity_tokens = 8 * CONTEXT},
                &(tamis_scheduler_params){.flags = TAMIS_SCHEDULER_SHARE, .max_kept = 2});
    tamis_request request = {
        .tokens = s.text, .n_tokens = 60, .max_new = 8, .sequence = prefilled(&s, 40, 32)};
    const uint64_t brought = add(&s, &request);
    assert_int_equal(take_step(&s).rows, 60 - 32);
    assert_int_equal(value_of(&s, brought, TAMIS_REQUEST_BEGAN), 32);
    request.sequence = 0;
    const uint64_t beside = add(&s, &request);
    take_step(&s);
    assert_int_equal(value_of(&s, beside, TAMIS_REQUEST_BEGAN), 0);
    RIG_OK(&s.r, tamis_scheduler_cancel(s.scheduler, beside, &s.r.error));
    finish(&s, brought);
    tamis_scheduler_stats stats = take_step(&s);
    assert_int_equal(stats.kept, 0);
    assert_int_equal(stats.tokens_shared, 0);
    assert_int_equal(pages_held(&s), 0);
    const uint64_t behind = add(&s, &request);
    assert_int_equal(finish(&s, behind), 0);
    const uint64_t last = add(&s, &request);
    assert_int_equal(finish(&s, last), 59);
    close_server(&s);
}

static void open_small(server *s, const tamis_scheduler_params *how) {
    open_server(s,
                &(rig_params){.file = "tiny.gguf",
                              .max_sequences = 4,
                              .max_rows = PROMPT,
                              .max_context = CONTEXT,
                              .capacity_tokens = 12 * PAGE},
                how);
}

/* Pages are short while two requests wait with sequences: the last one loses its own, the other one does
 * not, and the request that runs is never stopped. What was given up is like any other from then on. */
static void check_waiting(uint64_t host_bytes) {
    server s;
    const uint32_t held = 2 * PAGE;
    open_small(&s, &(tamis_scheduler_params){.flags = TAMIS_SCHEDULER_SHARE,
                                             .max_running = 1,
                                             .max_kept = 1,
                                             .host_bytes = host_bytes});
    tamis_request request = {.tokens = s.text, .n_tokens = 4 * PAGE, .max_new = 5 * PAGE};
    const uint64_t first = add(&s, &request); /* which grows to 9 pages in each lane */
    take_step(&s);
    request = (tamis_request){.tokens = s.text, .n_tokens = 60, .max_new = 2};
    request.sequence = prefilled(&s, 0, held);
    const uint64_t second = add(&s, &request);
    request.sequence = prefilled(&s, 0, held);
    const uint64_t third = add(&s, &request);
    assert_int_equal(finish(&s, first), -1);
    assert_int_equal(finish(&s, second), held);
    assert_int_equal(finish(&s, third), host_bytes ? held : 0);
    const tamis_scheduler_stats stats = take_step(&s);
    assert_int_equal(stats.preempted, 0);
    assert_int_equal(stats.saved_bytes, 0);
    assert_int_equal(stats.kept, host_bytes ? 0 : 1);
    close_server(&s);
}

static void those_that_wait_make_room(void **state) {
    (void)state;
    check_waiting(0);
    check_waiting(1u << 30);
}

/* One that cannot begin, since its next rows lack pages, waits on with what it brought. */
static void it_waits_on_with_its_sequence(void **state) {
    (void)state;
    server s;
    open_small(&s, NULL);
    tamis_request request = {.tokens = s.text, .n_tokens = 9 * PAGE, .max_new = 4};
    const uint64_t first = add(&s, &request);
    take_step(&s);
    request = (tamis_request){.tokens = s.text, .n_tokens = 60, .max_new = 2};
    request.sequence = prefilled(&s, 0, 2 * PAGE);
    const uint64_t second = add(&s, &request);
    assert_int_equal(take_step(&s).waiting, 1);
    assert_int_equal(finish(&s, first), -1);
    assert_int_equal(finish(&s, second), 2 * PAGE);
    close_server(&s);
}

/* A request that was preempted goes on before a later one that waits with the pages that it needs. */
static void the_preempted_come_first(void **state) {
    (void)state;
    server s;
    open_small(&s, &(tamis_scheduler_params){.host_bytes = 1u << 30});
    tamis_request request = {.tokens = s.text, .n_tokens = 2 * PAGE, .max_new = 40};
    const uint64_t first = add(&s, &request);
    request = (tamis_request){.tokens = s.text, .n_tokens = PROMPT - PAGE / 2, .max_new = 40};
    const uint64_t second = add(&s, &request);
    while (take_step(&s).preempted == 0) {
    }
    request = (tamis_request){.tokens = s.text, .n_tokens = 120, .max_new = 2};
    request.sequence = prefilled(&s, 0, 7 * PAGE);
    const uint64_t third = add(&s, &request);
    finish(&s, first);
    finish(&s, second);
    for (uint32_t i = 0; i < s.n; i++)
        assert_int_equal(s.events[i].status, TAMIS_OK);
    assert_int_equal(finish(&s, third), 7 * PAGE);
    close_server(&s);
}

/* One that is alone and does not fit ends, though others wait with sequences; each of these then runs. */
static void the_first_takes_all(void **state) {
    (void)state;
    server s;
    open_server(&s,
                &(rig_params){.file = "tiny.gguf",
                              .max_sequences = 4,
                              .max_rows = 64,
                              .max_context = CONTEXT,
                              .capacity_tokens = 5 * PAGE},
                NULL);
    const tamis_request large = {.tokens = s.text, .n_tokens = 6 * PAGE, .max_new = 1};
    const tamis_request fits = {.tokens = s.text, .n_tokens = 5 * PAGE, .max_new = 1};
    tamis_request small = {.tokens = s.text, .n_tokens = 3 * PAGE, .max_new = 1};
    small.sequence = prefilled(&s, 0, 2 * PAGE);
    const uint64_t third = add(&s, &small);
    RIG_OK(&s.r, tamis_scheduler_cancel(s.scheduler, third, &s.r.error));
    assert_int_equal(pages_held(&s),
                     0); /* a request that is given up takes what it brought along */
    const uint64_t first = add(&s, &large), second = add(&s, &fits);
    small.sequence = prefilled(&s, 0, 2 * PAGE);
    const uint64_t last = add(&s, &small);
    finish(&s, first);
    for (uint32_t i = 0; i < s.n; i++)
        if (s.events[i].id == first && s.events[i].kind == TAMIS_REQUEST_ENDED)
            assert_int_equal(s.events[i].status, TAMIS_E_FULL);
    assert_int_equal(value_of(&s, second, TAMIS_REQUEST_BEGAN), 0);
    assert_int_equal(finish(&s, last), 0);
    close_server(&s);
}

/* ---- What is refused ------------------------------------------------------------------------- */

#define REFUSED(wanted, part)                                                                      \
    RIG_REFUSED(&s.r, wanted, part, tamis_scheduler_add(s.scheduler, &request, &id, &s.r.error))

static void sequences_are_refused(void **state) {
    (void)state;
    server s;
    uint64_t id = 0;
    const rig_params params = {.file = "tiny.gguf", .max_sequences = 2, .max_context = CONTEXT};
    tamis_scheduler_params how = {.flags = TAMIS_SCHEDULER_SHARE, .max_kept = 1};
    open_server(&s, &params, &how);
    tamis_request request = {.tokens = s.text, .n_tokens = 20, .max_new = 2, .flags = 6};
    REFUSED(TAMIS_E_ARGUMENT, "flags are 0x6: at most 0x1");
    request.flags = 0;
    request.reserved[0] = 9;
    REFUSED(TAMIS_E_ARGUMENT, "reserved[0] of tamis_request is 9");
    request.reserved[0] = 0;
    request.sequence = 77;
    REFUSED(TAMIS_E_ARGUMENT, "the cache has no sequence 77");
    request.sequence = prefilled(&s, 0, 20);
    REFUSED(TAMIS_E_ARGUMENT, "holds 20 tokens of a prompt of 20, whose last token is run");
    assert_int_equal(rig_length(&s.r, request.sequence), 20);
    RIG_OK(&s.r, tamis_cache_truncate(s.r.cache, request.sequence, 19, &s.r.error));
    const tamis_step step = {.sequences = &request.sequence, .count = 1};
    tamis_plan *plan = tamis_runner_plan(s.r.runner);
    RIG_OK(&s.r, tamis_plan_step_begin(plan, &step, &s.r.error));
    REFUSED(TAMIS_E_STATE, "step");
    RIG_OK(&s.r, tamis_plan_step_cancel(plan, &s.r.error));
    const uint64_t own = add(&s, &request);
    REFUSED(TAMIS_E_ARGUMENT, "is that of request 1");
    assert_int_equal(own, 1);
    take_step(&s);
    REFUSED(TAMIS_E_ARGUMENT, "is that of request 1");
    close_server(&s);
}

/* An eviction by which decode rows take slots takes no exact ones, unless all are alike. */
static void evictions_are_refused(void **state) {
    (void)state;
    server s;
    uint64_t id = 0;
    rig_params params = {.file = "tiny.gguf", .max_sequences = 2, .max_context = CONTEXT};
    tamis_eviction_default(TAMIS_EVICT_H2O, &params.eviction);
    params.eviction.budget = BUDGET;
    tamis_selection_default(TAMIS_SELECT_WINDOW, &params.selection);
    params.selection.budget = BUDGET;
    open_server(&s, &params, NULL);
    tamis_request request = {
        .tokens = s.text, .n_tokens = 9, .max_new = 2, .flags = TAMIS_REQUEST_EXACT};
    REFUSED(TAMIS_E_UNSUPPORTED, "TAMIS_REQUEST_EXACT under eviction h2o with every 1");
    request.flags = 0;
    request.sequence = prefilled(&s, 0, 4);
    REFUSED(TAMIS_E_UNSUPPORTED, "is given under eviction h2o");
    RIG_OK(&s.r, tamis_cache_remove(s.r.cache, request.sequence, &s.r.error));
    close_server(&s);
    params.selection = (tamis_selection){0};
    open_server(&s, &params, NULL);
    request.flags = TAMIS_REQUEST_EXACT;
    request.sequence = 0;
    request.n_tokens = BUDGET + 8;
    request.max_new = 8;
    finish(&s, add(&s, &request));
    close_server(&s);
}

#if TEST_STORE
static void nothing_is_put_of_what_is_brought(void **state) {
    (void)state;
    server s;
    uint64_t id = 0;
    tamis_store *store = NULL;
    tamis_error error;
    const tamis_store_params memory = {.memory_bytes = 1u << 20};
    assert_int_equal(tamis_store_create(&memory, &store, &error), TAMIS_OK);
    open_server(&s,
                &(rig_params){.file = "tiny.gguf",
                              .max_sequences = 2,
                              .max_context = CONTEXT,
                              .load_dtypes = 1u << TAMIS_F32},
                &(tamis_scheduler_params){.store = store, .store_tokens = PAGE});
    tamis_request request = {.tokens = s.text,
                             .n_tokens = 60,
                             .max_new = 2,
                             .n_stored = 60,
                             .sequence = prefilled(&s, 40, 32)};
    REFUSED(TAMIS_E_ARGUMENT, "n_stored is 60 with sequence");
    RIG_OK(&s.r, tamis_cache_remove(s.r.cache, request.sequence, &s.r.error));
    request.sequence = 0;
    finish(&s, add(&s, &request)); /* puts three pages of its prompt */
    request.n_stored = 0;
    request.sequence =
        prefilled(&s, 40, 32); /* behind which a page of the store is not looked for */
    assert_int_equal(finish(&s, add(&s, &request)), 32);
    const tamis_scheduler_stats stats = take_step(&s);
    assert_int_equal(stats.pages_put, 3);
    assert_int_equal(stats.tokens_stored, 0);
    close_server(&s);
    tamis_store_destroy(&store);
}
#endif

int main(int argc, char **argv) {
    if (!rig_arguments(argc, argv)) return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_beside_quest),
        cmocka_unit_test(exact_under_evictions),
        cmocka_unit_test(exact_under_a_window),
        cmocka_unit_test(full_is_exact),
        cmocka_unit_test(sequences_are_brought),
        cmocka_unit_test(exact_rows_come_behind_others),
        cmocka_unit_test(what_is_brought_is_not_shared),
        cmocka_unit_test(those_that_wait_make_room),
        cmocka_unit_test(it_waits_on_with_its_sequence),
        cmocka_unit_test(the_preempted_come_first),
        cmocka_unit_test(the_first_takes_all),
        cmocka_unit_test(sequences_are_refused),
        cmocka_unit_test(evictions_are_refused),
#if TEST_STORE
        cmocka_unit_test(nothing_is_put_of_what_is_brought),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
