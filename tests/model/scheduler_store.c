/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that begin with pages of a store, of a server that has ended: what is loaded, that tokens and
 * logits are those of a run without a store, bit for bit, and what damage costs. */
#include "tests/data/blend_cases.h"
#include "tests/faulty.h"
#include "tests/model/rig.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/batch.h>
#include <tamis/record.h>
#include <unistd.h>

enum { PAGE = 16, PAGES = 3, KEPT = PAGE * PAGES, NEW = 4, SMALL_ROWS = 20, REQUESTS = 3 };

/* A process that serves requests. */
typedef struct server {
    rig r;
    tamis_store *store; /* NULL: it has none */
    tamis_scheduler *scheduler;
} server;

/* What a request got. */
typedef struct answer {
    uint64_t id;
    float logits[BLEND_VOCABULARY]; /* behind its prompt */
    int32_t tokens[NEW];
    uint32_t n;
    int32_t began; /* the event's value */
} answer;

/* How requests are asked for; nothing said: they put nothing. */
typedef struct asking {
    uint8_t salt;
    uint32_t n_stored;
} asking;

static const asking plain = {0}, put = {.n_stored = KEPT + 5};
static const uint32_t lengths[REQUESTS] = {BLEND_ROWS, 68, 75};
static char folder[256];

/* ---- Servers --------------------------------------------------------------------------------- */

static void make_folder(void) {
    const char *parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(folder, sizeof folder, "%s/tamis-scheduler-XXXXXX", parent);
    assert_non_null(mkdtemp(folder));
}

static void remove_folder(void) {
    char path[768];
    DIR *list = opendir(folder);
    assert_non_null(list);
    for (const struct dirent *entry; (entry = readdir(list));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        unlink(path);
    }
    closedir(list);
    assert_int_equal(rmdir(folder), 0);
}

static void make_scheduler(server *s, uint32_t flags) {
    const tamis_scheduler_params params = {.flags = flags,
                                           .max_kept = flags ? 1 : 0,
                                           .host_bytes = 1u << 30,
                                           .store = s->store,
                                           .store_tokens = s->store ? PAGE : 0};
    RIG_OK(&s->r, tamis_scheduler_create(s->r.runner, &params, &s->scheduler, &s->r.error));
}

/* `stored`: with a store of the folder. A small one has room for 9 pages in each lane. */
static void open_server(server *s, const char *model, bool stored, uint32_t flags, bool small) {
    char file[64];
    snprintf(file, sizeof file, "blends/%s.gguf", model);
    *s = (server){0};
    rig_open(&s->r, &(rig_params){.file = file,
                                  .max_sequences = REQUESTS,
                                  .max_rows = small ? SMALL_ROWS : 2 * BLEND_ROWS,
                                  .max_context = BLEND_CONTEXT,
                                  .capacity_tokens = small ? 9 * PAGE : 4 * BLEND_CONTEXT,
                                  .load_dtypes = 1u << TAMIS_F32});
    const tamis_store_params disk = {.folder = folder};
    if (stored) RIG_OK(&s->r, tamis_store_create(&disk, &s->store, &s->r.error));
    make_scheduler(s, flags);
}

/* The scheduler goes, and holds nothing any more. */
static void drop_scheduler(server *s) {
    tamis_cache_stats cache;
    tamis_store_stats store = {0};
    tamis_scheduler_destroy(&s->scheduler);
    tamis_cache_get_stats(s->r.cache, &cache);
    assert_int_equal(cache.pages_held, 0);
    tamis_store_get_stats(s->store, &store);
    assert_int_equal(store.tiers[TAMIS_TIER_DISK].pinned_bytes, 0);
}

static void close_server(server *s) {
    drop_scheduler(s);
    tamis_store_destroy(&s->store);
    rig_close(&s->r);
}

/* The beginning of all prompts into the store; how many pages were put. */
static uint32_t record(server *s) {
    const tamis_record_params params = {.dtype = TAMIS_F32};
    uint32_t stored = 99;
    RIG_OK(&s->r, tamis_runner_record_prefix(s->r.runner, s->store, &params, blend_tokens, KEPT,
                                             PAGE, &stored, &s->r.error));
    return stored;
}

/* The key of a page of the beginning. */
static void key_of(server *s, uint32_t page, uint8_t key[16]) {
    const tamis_record_params params = {.dtype = TAMIS_F32};
    uint8_t keys[PAGES][16];
    tamis_chunk_id id;
    size_t n;
    RIG_OK(&s->r, tamis_record_id(s->r.model, &params, blend_tokens, KEPT, &id, &s->r.error));
    RIG_OK(&s->r, tamis_prefix_keys(&id, PAGE, keys, PAGES, &n, &s->r.error));
    memcpy(key, keys[page], sizeof keys[page]);
}

static tamis_scheduler_stats stats_of(const server *s) {
    tamis_scheduler_stats stats;
    tamis_scheduler_get_stats(s->scheduler, &stats);
    return stats;
}

/* ---- Requests -------------------------------------------------------------------------------- */

/* The largest logit; keeps those of the first call. */
static tamis_status choose(void *user, const float *logits, uint32_t n_vocab, int32_t *token,
                           tamis_error *error) {
    answer *a = user;
    (void)error;
    assert_int_equal(n_vocab, BLEND_VOCABULARY);
    *token = 0;
    for (uint32_t i = 1; i < n_vocab; i++)
        if (logits[i] > logits[*token]) *token = (int32_t)i;
    if (a->n == 0) memcpy(a->logits, logits, sizeof a->logits);
    a->tokens[a->n++] = *token;
    return TAMIS_OK;
}

/* Prompt i: the beginning, then tokens of its own. */
static void add(server *s, uint32_t i, asking how, answer *a) {
    int32_t tokens[BLEND_ROWS];
    *a = (answer){.began = -1};
    for (uint32_t t = 0; t < lengths[i]; t++)
        tokens[t] = t < KEPT ? blend_tokens[t] : (blend_tokens[t] + (int32_t)i) % BLEND_VOCABULARY;
    const tamis_request request = {.tokens = tokens,
                                   .n_tokens = lengths[i],
                                   .max_new = NEW,
                                   .choose = choose,
                                   .user = a,
                                   .n_stored = how.n_stored,
                                   .salt = {how.salt}};
    RIG_OK(&s->r, tamis_scheduler_add(s->scheduler, &request, &a->id, &s->r.error));
}

static void note(const tamis_request_event *events, uint32_t n, answer *answers) {
    for (uint32_t e = 0; e < n; e++) {
        assert_int_equal(events[e].status, TAMIS_OK);
        if (events[e].kind != TAMIS_REQUEST_BEGAN) continue;
        for (uint32_t i = 0; i < REQUESTS; i++)
            if (answers[i].id == events[e].id) answers[i].began = events[e].value;
    }
}

static void step(server *s, answer *answers) {
    const tamis_request_event *events;
    uint32_t n;
    RIG_OK(&s->r, tamis_scheduler_step(s->scheduler, &events, &n, &s->r.error));
    note(events, n, answers);
}

static void finish(server *s, answer *answers) {
    for (tamis_scheduler_stats now = stats_of(s); now.running + now.waiting > 0; now = stats_of(s))
        step(s, answers);
}

/* All prompts: at once, or one behind another. */
static void serve(server *s, bool at_once, asking how, answer *answers) {
    for (uint32_t i = 0; i < REQUESTS; i++) {
        add(s, i, how, &answers[i]);
        if (!at_once) finish(s, answers);
    }
    finish(s, answers);
}

static void expect_tokens(const answer *answers, const answer *wanted) {
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(answers[i].n, NEW);
        assert_memory_equal(answers[i].tokens, wanted[i].tokens, sizeof wanted[i].tokens);
    }
}

/* Bits, too: more than 8 rows of each prompt are run, as in a prefill. */
static void expect_same(const answer *answers, const answer *wanted) {
    expect_tokens(answers, wanted);
    for (uint32_t i = 0; i < REQUESTS; i++)
        assert_memory_equal(answers[i].logits, wanted[i].logits, sizeof wanted[i].logits);
}

static void expect_began(const answer *answers, int32_t first, int32_t second, int32_t third) {
    assert_int_equal(answers[0].began, first);
    assert_int_equal(answers[1].began, second);
    assert_int_equal(answers[2].began, third);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

/* Without a store. */
static void serve_alone(const char *model, answer *wanted) {
    server s;
    open_server(&s, model, false, 0, false);
    serve(&s, true, plain, wanted);
    close_server(&s);
}

/* Then puts the beginning into one, between two steps of a scheduler whose requests find nothing. */
static void serve_first(const char *model, answer *wanted) {
    server s;
    answer answers[REQUESTS];
    tamis_scheduler_stats stats;
    serve_alone(model, wanted);
    open_server(&s, model, true, 0, false);
    for (uint32_t i = 0; i < REQUESTS; i++)
        add(&s, i, plain, &answers[i]);
    step(&s, answers);
    assert_int_equal(record(&s), PAGES);
    finish(&s, answers);
    expect_same(answers, wanted);
    expect_began(answers, 0, 0, 0);
    stats = stats_of(&s);
    assert_int_equal(stats.tokens_stored, 0);
    assert_int_equal(stats.rows, BLEND_ROWS + 68 + 75 + REQUESTS * (NEW - 1));
    close_server(&s);
}

static void pages_outlive_a_server(void **state) {
    (void)state;
    for (size_t m = 0; m < BLEND_MODELS; m++) {
        server s;
        answer wanted[REQUESTS], answers[REQUESTS];
        tamis_scheduler_stats stats;
        make_folder();
        serve_first(blend_models[m], wanted);
        open_server(&s, blend_models[m], true, 0, false);
        assert_int_equal(record(&s), 0);
        serve(&s, true, plain, answers);
        expect_same(answers, wanted);
        expect_began(answers, KEPT, KEPT, KEPT);
        stats = stats_of(&s);
        assert_int_equal(stats.tokens_stored, REQUESTS * KEPT);
        assert_int_equal(stats.rows, BLEND_ROWS + 68 + 75 - REQUESTS * KEPT + REQUESTS * (NEW - 1));
        assert_int_equal(stats.store_failed, 0);
        serve(&s, true, (asking){.salt = 7}, answers); /* another tenant */
        expect_same(answers, wanted);
        expect_began(answers, 0, 0, 0);
        assert_int_equal(stats_of(&s).tokens_stored, REQUESTS * KEPT);
        close_server(&s);
        remove_folder();
    }
}

/* What a live sequence holds is forked, and the store is asked for what follows alone. */
static void live_sequences_come_first(void **state) {
    (void)state;
    server s;
    answer wanted[REQUESTS], answers[REQUESTS];
    tamis_scheduler_stats stats;
    tamis_store_stats before, after;
    make_folder();
    serve_first(blend_models[0], wanted);
    open_server(&s, blend_models[0], true, TAMIS_SCHEDULER_SHARE, false);
    tamis_store_get_stats(s.store, &before);
    serve(&s, false, plain, answers);
    expect_same(answers, wanted);
    expect_began(answers, KEPT, KEPT, KEPT);
    stats = stats_of(&s);
    tamis_store_get_stats(s.store, &after);
    assert_int_equal(stats.tokens_stored, KEPT);
    assert_int_equal(stats.tokens_shared, 2 * KEPT);
    assert_int_equal(after.hits - before.hits, PAGES);
    assert_int_equal(after.misses - before.misses, REQUESTS);
    close_server(&s);
    remove_folder();
}

/* Changes a byte of the record's last plane. */
static void damage(const uint8_t key[16]) {
    char path[400];
    size_t n = (size_t)snprintf(path, sizeof path, "%s/", folder);
    for (int i = 0; i < 16; i++)
        n += (size_t)snprintf(path + n, sizeof path - n, "%02x", key[i]);
    snprintf(path + n, sizeof path - n, ".kv");
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -4096, SEEK_END), 0);
    const int byte = fgetc(file);
    assert_int_equal(fseek(file, -4096, SEEK_END), 0);
    assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
    assert_int_equal(fclose(file), 0);
}

static void damage_costs_time_alone(void **state) {
    (void)state;
    server s;
    answer wanted[REQUESTS], answers[REQUESTS];
    uint8_t key[16];
    int removed = 0;
    make_folder();
    serve_first(blend_models[1], wanted);
    open_server(&s, blend_models[1], true, 0, false);
    key_of(&s, 2, key);
    RIG_OK(&s.r, tamis_store_remove_key(s.store, key, &removed, &s.r.error));
    assert_int_equal(removed, 1);
    serve(&s, true, plain, answers);
    expect_same(answers, wanted);
    expect_began(answers, 2 * PAGE, 2 * PAGE, 2 * PAGE);
    assert_int_equal(stats_of(&s).tokens_stored, REQUESTS * 2 * PAGE);
    key_of(&s, 1, key);
    damage(key);
    serve(&s, false, plain, answers);
    expect_same(answers, wanted);
    /* The first one found the page, and could not read it. */
    expect_began(answers, 2 * PAGE, PAGE, PAGE);
    assert_int_equal(stats_of(&s).tokens_stored, REQUESTS * 2 * PAGE + REQUESTS * PAGE);
    assert_int_equal(stats_of(&s).store_failed, 1);
    assert_int_equal(record(&s), PAGES - 1);
    serve(&s, true, plain, answers);
    expect_same(answers, wanted);
    expect_began(answers, KEPT, KEPT, KEPT);
    close_server(&s);
    remove_folder();
}

static void requests_fill_the_store(void **state) {
    (void)state;
    for (size_t m = 0; m < BLEND_MODELS; m++) {
        server s;
        answer wanted[REQUESTS], answers[REQUESTS];
        make_folder();
        serve_alone(blend_models[m], wanted);
        open_server(&s, blend_models[m], true, TAMIS_SCHEDULER_SHARE, false);
        serve(&s, true, put, answers);
        expect_same(answers, wanted);
        expect_began(answers, 0, 0, 0);
        assert_int_equal(stats_of(&s).pages_put, REQUESTS * PAGES);
        serve(&s, true, put, answers); /* all is there, and a live sequence has it */
        expect_tokens(answers, wanted);
        assert_int_equal(stats_of(&s).pages_put, REQUESTS * PAGES);
        assert_int_equal(stats_of(&s).tokens_stored, 0);
        close_server(&s);
        open_server(&s, blend_models[m], true, 0, false);
        assert_int_equal(record(&s), 0);
        serve(&s, true, plain, answers);
        expect_same(answers, wanted);
        expect_began(answers, KEPT, KEPT, KEPT);
        assert_int_equal(stats_of(&s).store_failed, 0);
        close_server(&s);
        remove_folder();
    }
}

/* What is missing is put, behind what is loaded, though a live sequence has it. */
static void missing_pages_are_put(void **state) {
    (void)state;
    server s;
    answer wanted[REQUESTS], answers[REQUESTS];
    uint8_t key[16];
    int removed = 0;
    make_folder();
    serve_alone(blend_models[0], wanted);
    open_server(&s, blend_models[0], true, TAMIS_SCHEDULER_SHARE, false);
    serve(&s, true, put, answers);
    key_of(&s, 1, key);
    RIG_OK(&s.r, tamis_store_remove_key(s.store, key, &removed, &s.r.error));
    assert_int_equal(removed, 1);
    serve(&s, false, put, answers);
    expect_same(answers, wanted);
    assert_int_equal(answers[0].began, PAGE);
    assert_true(answers[1].began >= KEPT && answers[2].began >= KEPT);
    assert_int_equal(stats_of(&s).pages_put, REQUESTS * PAGES + 2);
    assert_int_equal(stats_of(&s).tokens_stored, PAGE);
    assert_int_equal(stats_of(&s).store_failed, 0);
    assert_int_equal(record(&s), 0);
    close_server(&s);
    remove_folder();
}

/* A store that takes nothing costs nothing else. */
static void a_full_store_is_passed_over(void **state) {
    (void)state;
    server s;
    answer wanted[REQUESTS], answers[REQUESTS];
    const tamis_store_params small = {.memory_bytes = 4096};
    make_folder();
    serve_alone(blend_models[0], wanted);
    open_server(&s, blend_models[0], false, 0, false);
    tamis_scheduler_destroy(&s.scheduler);
    RIG_OK(&s.r, tamis_store_create(&small, &s.store, &s.r.error));
    make_scheduler(&s, 0);
    serve(&s, true, put, answers);
    expect_same(answers, wanted);
    assert_int_equal(stats_of(&s).pages_put, 0);
    assert_int_equal(stats_of(&s).store_failed, REQUESTS);
    close_server(&s);
    remove_folder();
}

/* A request that holds pages of each lane of a small server until it is cancelled. */
static uint64_t add_large(server *s, uint32_t n_tokens) {
    const tamis_request request = {
        .tokens = blend_tokens, .n_tokens = n_tokens, .max_new = 20, .salt = {9}};
    uint64_t id;
    RIG_OK(&s->r, tamis_scheduler_add(s->scheduler, &request, &id, &s->r.error));
    return id;
}

/* While a request that has recorded some of its prompt waits, somebody else puts more of it: it loads
 * that, and puts what follows. */
static void others_put_what_is_recorded(void **state) {
    (void)state;
    server s, other;
    answer wanted[REQUESTS], answers[REQUESTS] = {{.began = -1}};
    make_folder();
    serve_alone(blend_models[0], wanted);
    open_server(&s, blend_models[0], true, 0, true);
    open_server(&other, blend_models[0], true, 0, false);
    const uint64_t large = add_large(&s, BLEND_ROWS);
    add(&s, 0, (asking){.n_stored = BLEND_ROWS}, &answers[0]);
    while (stats_of(&s).preempted == 0)
        step(&s, answers);
    assert_int_equal(stats_of(&s).saved, 1);
    assert_int_equal(answers[0].began, 0);
    assert_int_equal(record(&other), PAGES);
    RIG_OK(&s.r, tamis_scheduler_cancel(s.scheduler, large, &s.r.error));
    finish(&s, answers);
    assert_memory_equal(answers[0].tokens, wanted[0].tokens, sizeof wanted[0].tokens);
    const uint32_t loaded = (uint32_t)stats_of(&s).tokens_stored;
    assert_true(loaded > 0 && loaded < KEPT);
    assert_int_equal(stats_of(&s).pages_put, BLEND_ROWS / PAGE - PAGES);
    assert_int_equal(stats_of(&s).store_failed, 0);
    serve(&other, true, plain, answers);
    expect_same(answers, wanted);
    expect_began(answers, BLEND_ROWS / PAGE * PAGE, KEPT, KEPT);
    close_server(&s);
    close_server(&other);
    remove_folder();
}

/* A request that finds no room in many steps asks the store once. */
static void who_waits_asks_once(void **state) {
    (void)state;
    server s;
    answer wanted[REQUESTS], answers[REQUESTS] = {{.began = -1}};
    tamis_store_stats before, after;
    make_folder();
    serve_first(blend_models[0], wanted);
    open_server(&s, blend_models[0], true, 0, true);
    const uint64_t large[] = {add_large(&s, BLEND_ROWS), add_large(&s, 40)}; /* 6 and 3 pages */
    for (int i = 0; i < 7; i++)
        step(&s, answers);
    tamis_store_get_stats(s.store, &before);
    add(&s, 0, plain, &answers[0]);
    for (int i = 0; i < 3; i++)
        step(&s, answers);
    assert_int_equal(stats_of(&s).running, 2);
    assert_int_equal(stats_of(&s).preempted, 0);
    assert_int_equal(answers[0].began, -1);
    for (int i = 0; i < 2; i++)
        RIG_OK(&s.r, tamis_scheduler_cancel(s.scheduler, large[i], &s.r.error));
    finish(&s, answers);
    tamis_store_get_stats(s.store, &after);
    assert_int_equal(answers[0].began, KEPT);
    assert_memory_equal(answers[0].tokens, wanted[0].tokens, sizeof wanted[0].tokens);
    assert_int_equal(after.hits - before.hits, PAGES);
    close_server(&s);
    remove_folder();
}

/* Each call on the device fails once in the step that loads, or whose rows are put: neither pages nor
 * pins are left, and another scheduler of the runner serves. */
static void fail_each_call(server *s, bool loads) {
    answer wanted[REQUESTS], answers[REQUESTS];
    bool failed = true;
    int n = 0;
    serve(s, true, plain, wanted); /* builds what is missing */
    tms_device *dev = faulty_device(s->r.context);
    for (; failed; n++) {
        const tamis_request_event *events;
        uint32_t n_events = 0;
        asking how = loads ? plain : put;
        how.salt = (uint8_t)(loads ? 0 : 1 + n % 255); /* of which the store has nothing */
        for (uint32_t i = 0; i < REQUESTS; i++)
            add(s, i, how, &answers[i]);
        faulty_begin(dev, n, FAULTY_BEFORE);
        const tamis_status status =
            tamis_scheduler_step(s->scheduler, &events, &n_events, &s->r.error);
        faulty_pause(dev);
        failed = status != TAMIS_OK;
        if (failed) rig_refused(&s->r.error, status, FAULTY_STATUS, FAULTY_TEXT, "step");
        for (uint32_t e = 0; e < n_events; e++) /* a request whose logits were not read has ended */
            failed |= events[e].status != TAMIS_OK;
        if (!failed) break;
        drop_scheduler(s);
        make_scheduler(s, 0);
    }
    assert_true(n > 80);
    finish(s, answers);
    expect_same(answers, wanted);
    assert_int_equal(stats_of(s).tokens_stored, loads ? REQUESTS * KEPT : 0);
    assert_int_equal(stats_of(s).pages_put, loads ? 0 : REQUESTS * PAGES);
}

static void a_failing_device_leaves_nothing(void **state) {
    (void)state;
    for (int loads = 0; loads <= 1; loads++) {
        server s;
        make_folder();
        open_server(&s, blend_models[0], true, 0, false);
        if (loads) assert_int_equal(record(&s), PAGES);
        fail_each_call(&s, loads);
        close_server(&s);
        remove_folder();
    }
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    rig r;
    tamis_store *store = NULL;
    tamis_scheduler *scheduler = NULL;
    const tamis_store_params memory = {.memory_bytes = 1 << 20};
    rig_params how = {
        .file = "blends/llama.gguf", .max_sequences = 2, .load_dtypes = 1u << TAMIS_F16};
    rig_open(&r, &how);
    RIG_OK(&r, tamis_store_create(&memory, &store, &r.error));
#define REFUSED(status, text, ...)                                                                 \
    RIG_REFUSED(&r, status, text,                                                                  \
                tamis_scheduler_create(r.runner, &(tamis_scheduler_params){__VA_ARGS__},           \
                                       &scheduler, &r.error))
    REFUSED(TAMIS_E_ARGUMENT, "store_tokens is 16 and store_dtype f32 without a store",
            .store_tokens = 16);
    REFUSED(TAMIS_E_ARGUMENT, "store_tokens is 0", .store = store);
    REFUSED(TAMIS_E_ARGUMENT, "store_dtype is 0 (f32), which is not in the plan's load_dtypes 0x2",
            .store = store, .store_tokens = 16);
    REFUSED(TAMIS_E_ARGUMENT, "store_dtype is -1", .store = store, .store_tokens = 16,
            .store_dtype = (tamis_dtype)-1);
    REFUSED(TAMIS_E_ARGUMENT, "reserved[3] of tamis_scheduler_params is 1",
            .reserved = {0, 0, 0, 1});
    tamis_request request = {.tokens = blend_tokens, .n_tokens = 20, .max_new = 1, .n_stored = 21};
    uint64_t id;
    RIG_OK(&r, tamis_scheduler_create(r.runner, NULL, &scheduler, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "n_stored is 21, of 20 tokens",
                tamis_scheduler_add(scheduler, &request, &id, &r.error));
    request.n_stored = 20;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "n_stored is 20; the scheduler has no store",
                tamis_scheduler_add(scheduler, &request, &id, &r.error));
    tamis_scheduler_destroy(&scheduler);
    rig_close(&r);
    tamis_eviction_default(TAMIS_EVICT_STREAMING, &how.eviction);
    how.load_dtypes = 1u << TAMIS_F32;
    rig_open(&r, &how);
    REFUSED(TAMIS_E_UNSUPPORTED, "a store with eviction streaming", .store = store,
            .store_tokens = 16);
#undef REFUSED
    assert_null(scheduler);
    rig_close(&r);
    tamis_store_destroy(&store);
}

int main(int argc, char **argv) {
    if (!rig_arguments(argc, argv)) return 2;
    const struct CMUnitTest tests[] = {cmocka_unit_test(pages_outlive_a_server),
                                       cmocka_unit_test(live_sequences_come_first),
                                       cmocka_unit_test(damage_costs_time_alone),
                                       cmocka_unit_test(requests_fill_the_store),
                                       cmocka_unit_test(missing_pages_are_put),
                                       cmocka_unit_test(a_full_store_is_passed_over),
                                       cmocka_unit_test(others_put_what_is_recorded),
                                       cmocka_unit_test(who_waits_asks_once),
                                       cmocka_unit_test(a_failing_device_leaves_nothing),
                                       cmocka_unit_test(what_does_not_fit_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
