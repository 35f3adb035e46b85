/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that runs out: the n-th request of this library for it fails. The call in which that
 * happens says so and leaves nothing behind, whatever it was about. */
#include "tests/api/evicting.h"

#include <stdlib.h>
#include <string.h>

/* The program is linked with --wrap of these. */
#define REQUESTS(X)                                                                                \
    X(void *, malloc, (size_t size), (size))                                                       \
    X(void *, calloc, (size_t n, size_t size), (n, size))                                          \
    X(void *, realloc, (void *old, size_t size), (old, size))                                      \
    X(void *, aligned_alloc, (size_t alignment, size_t size), (alignment, size))                   \
    X(char *, strdup, (const char *text), (text))

typedef enum request {
#define NUMBER(type, name, parameters, arguments) REQUEST_##name,
    REQUESTS(NUMBER)
#undef NUMBER
        REQUEST_COUNT
} request;
static const char *const names[] = {
#define NAME(type, name, parameters, arguments) #name,
    REQUESTS(NAME)
#undef NAME
};

static bool counting, failed;
static request failing;
static int fails_at, requests[REQUEST_COUNT];

static bool fails_now(request which) {
    if (!counting) return false;
    const bool now = requests[which]++ == fails_at && which == failing;
    failed |= now;
    return now;
}

#define WRAP(type, name, parameters, arguments)                                                    \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters {                                                                \
        return fails_now(REQUEST_##name) ? NULL : __real_##name arguments;                         \
    }
REQUESTS(WRAP)

static void begin(request which, int sound_requests) {
    failing = which;
    fails_at = sound_requests;
    failed = false;
    memset(requests, 0, sizeof requests);
}

/* A call of the library: its requests are counted. */
#define CALL(status, call)                                                                         \
    do {                                                                                           \
        counting = true;                                                                           \
        if ((status) == TAMIS_OK) (status) = (call);                                               \
        counting = false;                                                                          \
    } while (0)

typedef struct objects {
    tamis_context *context;
    tamis_cache *cache;
    tamis_plan *plan, *verifying;
    tamis_prefixes *prefixes;
    tamis_buffer *rows, *lent;
    tamis_host_buffer *host;
    tamis_event *event, *uploaded;
    tamis_sequence id, fork, hit;
} objects;

static tamis_status make(objects *o) {
    static _Alignas(64) uint8_t memory[4096];
    const tamis_context_params params = {.device = test_device};
    tamis_plan_params plan = {.max_context = 64,
                              .max_rows = 32,
                              .max_sequences = 3,
                              .load_dtypes = 1u << TAMIS_F16,
                              .flags = TAMIS_PLAN_ROW_MASSES | TAMIS_PLAN_TREES,
                              .selection = {.kind = TAMIS_SELECT_RANDOM, .budget = 16},
                              .eviction = test_eviction(TAMIS_EVICT_SNAPKV, 20, 0)};
    tamis_cache_params shape = test_shape();
    tamis_status status = TAMIS_OK;
    shape.planes = tamis_eviction_planes(&plan.eviction);
    CALL(status, tamis_context_create(&params, &o->context, &test_error));
    CALL(status, tamis_cache_create(o->context, &shape, &o->cache, &test_error));
    CALL(status, tamis_plan_create(o->cache, &plan, &o->plan, &test_error));
    CALL(status, tamis_prefixes_create(o->cache, &o->prefixes, &test_error));
    CALL(status, tamis_buffer_create(o->context, 32 * 256 * 4, &o->rows, &test_error));
    CALL(status, tamis_event_record(o->context, &o->event, &test_error));
    CALL(status, tamis_host_buffer_create(o->context, 4096, &o->host, &test_error));
    CALL(status,
         tamis_buffer_upload(o->rows, 0, o->host, 0, 4096, o->event, &o->uploaded, &test_error));
    CALL(status, tamis_event_await(o->uploaded, &test_error));
    CALL(status, tamis_buffer_wrap_host(o->context, memory, sizeof memory, &o->lent, &test_error));
    CALL(status, tamis_cache_add(o->cache, &o->id, &test_error));
    return status;
}

/* A prompt that is evicted from, a fork, and a decode step through the selection. */
static tamis_status use(objects *o) {
    const uint32_t n = 30;
    const tamis_rows x = {.buffer = o->rows}, out = {.buffer = o->rows, .offset = 31 * 1024};
    const float zeros[256] = {0};
    const tamis_bounds mean = {.kind = TAMIS_BOUNDS_MEAN};
    float k[64];
    tamis_status status = TAMIS_OK;
    CALL(status, tamis_buffer_write(o->rows, 0, zeros, sizeof zeros, NULL));
    for (int i = 0; i < 2; i++) {
        const tamis_step step = {
            .sequences = i ? &o->fork : &o->id, .rows = i ? NULL : &n, .count = 1, .exact = i == 0};
        const tamis_rows to = i ? out : (tamis_rows){.buffer = o->rows, .offset = 0};
        CALL(status, tamis_plan_step_begin(o->plan, &step, &test_error));
        for (uint32_t layer = 0; layer < 2; layer++) {
            CALL(status, tamis_plan_write(o->plan, layer, &x, &x, &test_error));
            if (i) CALL(status, tamis_plan_attend(o->plan, layer, &x, &to, &test_error));
        }
        CALL(status, tamis_plan_step_end(o->plan, &test_error));
        if (i == 0) CALL(status, tamis_cache_fork(o->cache, o->id, &o->fork, &test_error));
    }
    CALL(status, tamis_cache_set_bounds(o->cache, &mean, &test_error));
    CALL(status, tamis_cache_read(o->cache, o->id, 0, 0, 0, 1, k, NULL, &test_error));
    return status;
}

/* The prompt's sequence is known by 20 tokens, then by 30, and forked for a longer prompt. What was
 * known before a call that fails is known after it. */
static tamis_status share(objects *o) {
    const int32_t tokens[31] = {0};
    const uint8_t salt[16] = {0};
    uint32_t known = 0, length = 0;
    tamis_cache_stats stats;
    tamis_status status = TAMIS_OK;
    for (uint32_t n = 20; n <= 30; n += 10) {
        CALL(status, tamis_prefixes_add(o->prefixes, o->id, tokens, n, salt, &test_error));
        if (status == TAMIS_OK) known = n;
    }
    CALL(status,
         tamis_prefixes_fork(o->prefixes, tokens, 31, salt, 1, &o->hit, &length, &test_error));
    tamis_cache_get_stats(o->cache, &stats);
    assert_int_equal(stats.sequences, status == TAMIS_OK ? 3 : 2);
    assert_int_equal(o->hit != 0, status == TAMIS_OK);
    assert_int_equal(length, status == TAMIS_OK ? known : 0);
    const tamis_error reason = test_error;
    OK(tamis_prefixes_fork(o->prefixes, tokens, 31, salt, 1, &o->hit, &length, &test_error));
    assert_int_equal(length, known);
    test_error = reason;
    return status;
}

/* A stream in memory that is there already. */
typedef struct stream {
    uint8_t bytes[1 << 17];
    size_t size, at;
} stream;

static int write_bytes(void *user, const void *bytes, size_t n) {
    stream *s = user;
    if (n > sizeof s->bytes - s->size) return 1;
    memcpy(s->bytes + s->size, bytes, n);
    s->size += n;
    return 0;
}

static int read_bytes(void *user, void *bytes, size_t n) {
    stream *s = user;
    if (n > s->size - s->at) return 1;
    memcpy(bytes, s->bytes + s->at, n);
    s->at += n;
    return 0;
}

/* The fork is saved, and restored beside itself. */
static tamis_status keep(objects *o) {
    static stream s;
    const tamis_save_params params = {.flags = 0};
    tamis_cache_stats before, now;
    tamis_sequence copy = 0;
    tamis_status status = TAMIS_OK;
    s.size = s.at = 0;
    tamis_cache_get_stats(o->cache, &before);
    CALL(status, tamis_plan_save(o->plan, o->fork, &params, write_bytes, &s, &test_error));
    CALL(status, tamis_plan_restore(o->plan, &params, read_bytes, &s, &copy, &test_error));
    tamis_cache_get_stats(o->cache, &now);
    assert_int_equal(now.sequences, before.sequences + (status == TAMIS_OK));
    assert_int_equal(copy != 0, status == TAMIS_OK);
    if (status != TAMIS_OK) assert_int_equal(now.pages_held, before.pages_held);
    return status;
}

/* Whole rows of a step, which stay. */
static tamis_status run_step(objects *o, tamis_plan *plan, const tamis_step *step) {
    const tamis_rows x = {.buffer = o->rows}, k = {.buffer = o->rows, .offset = 16 * 1024},
                     v = {.buffer = o->rows, .offset = 20 * 1024},
                     out = {.buffer = o->rows, .offset = 24 * 1024};
    const tamis_rotated_rows rows = {.q = x, .k = k, .v = v};
    tamis_status status = TAMIS_OK;
    CALL(status, tamis_plan_step_begin(plan, step, &test_error));
    for (uint32_t layer = 0; layer < 2; layer++) {
        if (step->parents)
            CALL(status, tamis_plan_write(plan, layer, &k, &v, &test_error));
        else
            CALL(status, tamis_plan_write_attend(plan, layer, &rows, &out, &test_error));
    }
    CALL(status, tamis_plan_step_end(plan, &test_error));
    CALL(status, tamis_plan_keep_path(plan, step->sequences[0], 2, &test_error));
    return status;
}

/* A tree, and rows that take the places of tokens, whose page lists grow. A call that fails leaves
 * sequences that can be forked. */
static tamis_status draft(objects *o) {
    const tamis_plan_params verifying = {.max_context = 64,
                                         .max_sequences = 2,
                                         .max_selected_rows = 3,
                                         .flags = TAMIS_PLAN_VERIFY,
                                         .eviction = test_eviction(TAMIS_EVICT_STREAMING, 32, 0)};
    const uint32_t parents[3] = {TAMIS_NO_ROW, 0, 0}, n = 3;
    tamis_sequence fork = 0;
    tamis_step step = {.sequences = &o->id, .rows = &n, .count = 1, .parents = parents};
    tamis_status status = run_step(o, o->plan, &step);
    CALL(status, tamis_plan_create(o->cache, &verifying, &o->verifying, &test_error));
    step.parents = NULL;
    if (status == TAMIS_OK) status = run_step(o, o->verifying, &step);
    const tamis_error reason = test_error;
    OK(tamis_cache_fork(o->cache, o->id, &fork, &test_error));
    OK(tamis_cache_remove(o->cache, fork, &test_error));
    test_error = reason;
    return status;
}

static tamis_status run(void) {
    objects o = {.context = NULL};
    test_error = (tamis_error){0};
    tamis_status status = make(&o);
    if (status == TAMIS_OK) status = use(&o);
    if (status == TAMIS_OK) status = share(&o);
    if (status == TAMIS_OK) status = keep(&o);
    /* Of its requests none is a device's: one device is enough. */
    if (status == TAMIS_OK && strcmp(test_device, "reference") == 0) status = draft(&o);
    tamis_event_destroy(&o.event);
    tamis_event_destroy(&o.uploaded);
    tamis_host_buffer_destroy(&o.host);
    tamis_buffer_destroy(&o.rows);
    tamis_buffer_destroy(&o.lent);
    tamis_prefixes_destroy(&o.prefixes);
    tamis_plan_destroy(&o.plan);
    tamis_plan_destroy(&o.verifying);
    tamis_cache_destroy(&o.cache);
    tamis_context_destroy(&o.context);
    return status;
}

/* One of so many requests fails. */
static int one_of = 1;

static void each_failed_host_allocation_leaves_all_whole(void **state) {
    (void)state;
    int all[REQUEST_COUNT];
    begin(REQUEST_COUNT, -1);
    OK(run());
    memcpy(all, requests, sizeof all);
    for (int which = 0; which < REQUEST_COUNT; which++) {
        print_message("%d of %s\n", all[which], names[which]);
        for (int n = 0; n < all[which]; n += one_of) {
            begin((request)which, n);
            const tamis_status status = run();
            assert_true(failed);
            if (status != TAMIS_E_NO_MEMORY)
                fail_msg("request %d of %s: %s \"%s\"", n, names[which], tamis_status_name(status),
                         test_error.text);
            /* Transfers have no error to fill. */
            if (test_error.text[0]) assert_int_equal(test_error.status, TAMIS_E_NO_MEMORY);
        }
    }
    OK(run());
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_failed_host_allocation_leaves_all_whole)};
    /* A binary for which there is no memory is none that was kept, which is no failure. */
    setenv("TAMIS_KERNEL_CACHE", "none", 1);
    int skip = test_begin(argc, argv);
    if (argc > 2) one_of = atoi(argv[2]);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
