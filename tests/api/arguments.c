/* SPDX-License-Identifier: Apache-2.0 */
/* Bad arguments to the public calls: each is refused with its value, and changes nothing. */
#include "tests/api/fixture.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tamis/cuda.h>

static void codes_names_and_version_are_as_published(void **state) {
    (void)state;
    assert_string_equal(tamis_status_name(TAMIS_OK), "OK");
    assert_string_equal(tamis_status_name(TAMIS_E_FULL), "E_FULL");
    assert_string_equal(tamis_status_name((tamis_status)-99), "unknown");
    assert_int_equal(TAMIS_E_DEVICE, -9);
    assert_int_equal(TAMIS_E_DAMAGED, -10);
    assert_true(strlen(tamis_status_text(TAMIS_E_STATE)) > 0);
    assert_string_equal(tamis_version(), "0.1.0");
    assert_int_equal(tamis_dtype_size(TAMIS_F32), 4);
    assert_int_equal(tamis_dtype_size(TAMIS_BF16), 2);
    assert_int_equal(tamis_dtype_size((tamis_dtype)99), 0);
    assert_string_equal(tamis_dtype_name(TAMIS_F16), "f16");
    assert_string_equal(tamis_dtype_name((tamis_dtype)7), "unknown");
}

/* Time between two timed marks; `plain` is a mark without. */
static void test_elapsed(test_world *w, tamis_event *plain) {
    tamis_event *from = NULL, *to = NULL, *other = NULL;
    tamis_context *second = NULL;
    double us = -1;
    FAILS(tamis_event_record_timed(NULL, &from, &test_error), TAMIS_E_ARGUMENT, "context");
    FAILS(tamis_event_record_timed(w->context, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    OK(tamis_event_record_timed(w->context, &from, &test_error));
    OK(tamis_buffer_write(w->q, 0, w->host, 64, NULL));
    OK(tamis_event_record_timed(w->context, &to, &test_error));
    FAILS(tamis_event_elapsed(NULL, to, &us, &test_error), TAMIS_E_ARGUMENT, "from: NULL");
    FAILS(tamis_event_elapsed(from, NULL, &us, &test_error), TAMIS_E_ARGUMENT, "to: NULL");
    FAILS(tamis_event_elapsed(from, to, NULL, &test_error), TAMIS_E_ARGUMENT, "us: NULL");
    assert_true(us == -1);
    FAILS(tamis_event_elapsed(from, plain, &us, &test_error), TAMIS_E_ARGUMENT, "to was recorded");
    FAILS(tamis_event_elapsed(plain, to, &us, &test_error), TAMIS_E_ARGUMENT, "from was recorded");
    OK(tamis_context_create(&(tamis_context_params){.device = test_device}, &second, &test_error));
    OK(tamis_event_record_timed(second, &other, &test_error));
    FAILS(tamis_event_elapsed(from, other, &us, &test_error), TAMIS_E_ARGUMENT, "contexts");
    OK(tamis_event_elapsed(from, to, &us, &test_error));
    assert_true(us >= 0 && us < 60e6);
    tamis_event_destroy(&other);
    tamis_context_destroy(&second);
    tamis_event_destroy(&from);
    tamis_event_destroy(&to);
}

static void buffers_refuse_bad_arguments(void **state) {
    test_world *w = *state;
    tamis_buffer *buffer = NULL;
    tamis_event *event = NULL;
    char bytes[64] = {0};
    FAILS(tamis_buffer_create(NULL, 64, &buffer, &test_error), TAMIS_E_ARGUMENT, "context");
    FAILS(tamis_buffer_create(w->context, 64, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    FAILS(tamis_buffer_create(w->context, 0, &buffer, &test_error), TAMIS_E_ARGUMENT, "0 bytes");
    FAILS(tamis_buffer_create(w->context, 1ull << 60, &buffer, &test_error), TAMIS_E_NO_MEMORY,
          "1152921504606846976");
    assert_null(buffer);
    OK(tamis_buffer_create(w->context, 64, &buffer, &test_error));
    assert_int_equal(tamis_buffer_bytes(buffer), 64);
    assert_int_equal(tamis_buffer_bytes(NULL), 0);
    tamis_error error;
    assert_int_equal(tamis_buffer_write(buffer, 48, bytes, 17, &error), TAMIS_E_ARGUMENT);
    assert_string_equal(error.text, "17 bytes at offset 48: the buffer has 64");
    assert_int_equal(tamis_buffer_write(buffer, 0, NULL, 1, &error), TAMIS_E_ARGUMENT);
    assert_string_equal(error.text, "data: NULL");
    assert_int_equal(tamis_event_wait(NULL, &error), TAMIS_E_ARGUMENT);
    assert_string_equal(error.text, "event: NULL");
    assert_int_equal(tamis_buffer_write(NULL, 0, bytes, 1, NULL), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_buffer_write(buffer, 0, NULL, 1, NULL), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_buffer_write(buffer, 1, bytes, 64, NULL), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_buffer_write(buffer, UINT64_MAX, bytes, 2, NULL), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_buffer_read(NULL, 0, bytes, 1, NULL), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_buffer_read(buffer, 65, bytes, 0, NULL), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_buffer_read(buffer, 0, bytes, 65, NULL), TAMIS_E_ARGUMENT);
    OK(tamis_buffer_write(buffer, 0, bytes, 64, NULL));
    tamis_buffer_destroy(&buffer);
    assert_null(buffer);
    tamis_buffer_destroy(&buffer);
    tamis_buffer_destroy(NULL);
    FAILS(tamis_event_record(NULL, &event, &test_error), TAMIS_E_ARGUMENT, "context");
    FAILS(tamis_event_record(w->context, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    assert_int_equal(tamis_event_wait(NULL, NULL), TAMIS_E_ARGUMENT);
    OK(tamis_event_record(w->context, &event, &test_error));
    OK(tamis_event_wait(event, NULL));
    test_elapsed(w, event);
    tamis_event_destroy(&event);
    tamis_event_destroy(&event);
    tamis_event_destroy(NULL);
    FAILS(tamis_context_wait(NULL, &test_error), TAMIS_E_ARGUMENT, "context");
    OK(tamis_context_wait(w->context, &test_error));
    assert_null(tamis_context_device(NULL));
}

static void bandwidths_refuse_bad_arguments(void **state) {
    test_world *w = *state;
    double rate = 0;
    FAILS(tamis_context_read_bandwidth(NULL, 1 << 20, &rate, &test_error), TAMIS_E_ARGUMENT,
          "context");
    FAILS(tamis_context_read_bandwidth(w->context, 1 << 20, NULL, &test_error), TAMIS_E_ARGUMENT,
          "gb_per_s");
    FAILS(tamis_context_read_bandwidth(w->context, 0, &rate, &test_error), TAMIS_E_ARGUMENT,
          "bytes is 0");
    FAILS(tamis_context_read_bandwidth(w->context, (1 << 20) - 64, &rate, &test_error),
          TAMIS_E_ARGUMENT, "bytes is 1048512");
    FAILS(tamis_context_read_bandwidth(w->context, (1 << 20) + 63, &rate, &test_error),
          TAMIS_E_ARGUMENT, "bytes is 1048639");
    FAILS(tamis_context_read_bandwidth(w->context, 1ull << 60, &rate, &test_error),
          TAMIS_E_NO_MEMORY, "1152921504606846976");
    assert_true(rate == 0);
    OK(tamis_context_read_bandwidth(w->context, 1 << 20, &rate, &test_error));
    assert_true(rate > 0 && isfinite(rate));
    rate = 0;
    FAILS(tamis_context_copy_bandwidth(NULL, 1 << 20, &rate, &test_error), TAMIS_E_ARGUMENT,
          "context");
    FAILS(tamis_context_copy_bandwidth(w->context, 1 << 20, NULL, &test_error), TAMIS_E_ARGUMENT,
          "gb_per_s");
    FAILS(tamis_context_copy_bandwidth(w->context, 64, &rate, &test_error), TAMIS_E_ARGUMENT,
          "bytes is 64");
    FAILS(tamis_context_copy_bandwidth(w->context, 1ull << 60, &rate, &test_error),
          TAMIS_E_NO_MEMORY, "1152921504606846976");
    assert_true(rate == 0);
    OK(tamis_context_copy_bandwidth(w->context, 1 << 20, &rate, &test_error));
    assert_true(rate > 0 && isfinite(rate));
}

/* Every parameter of the cache with a value it must not have. */
static void cache_parameters_are_checked_one_by_one(void **state) {
    test_world *w = *state;
    tamis_cache_size size;
    tamis_cache *cache = NULL;
#define REFUSED(field, value, code, part)                                                          \
    do {                                                                                           \
        tamis_cache_params p = test_shape();                                                       \
        p.field = (value);                                                                         \
        FAILS(tamis_cache_measure(w->context, &p, &size, &test_error), code, part);                \
        FAILS(tamis_cache_create(w->context, &p, &cache, &test_error), code, part);                \
        assert_null(cache);                                                                        \
    } while (0)
    REFUSED(n_layers, 0, TAMIS_E_ARGUMENT, "n_layers");
    REFUSED(n_layers, UINT32_MAX, TAMIS_E_UNSUPPORTED, "4294967295");
    REFUSED(n_kv_heads, 0, TAMIS_E_ARGUMENT, "n_kv_heads");
    REFUSED(n_heads, 0, TAMIS_E_ARGUMENT, "n_heads 0");
    REFUSED(n_heads, 5, TAMIS_E_ARGUMENT, "n_heads 5");
    REFUSED(n_heads, 130, TAMIS_E_UNSUPPORTED, "65");
    REFUSED(head_dim, 0, TAMIS_E_UNSUPPORTED, "head_dim 0");
    REFUSED(head_dim, 72, TAMIS_E_UNSUPPORTED, "head_dim 72");
    REFUSED(page_size, 24, TAMIS_E_UNSUPPORTED, "page_size 24");
    REFUSED(page_size, 128, TAMIS_E_UNSUPPORTED, "page_size 128");
    REFUSED(dtype, (tamis_dtype)99, TAMIS_E_ARGUMENT, "dtype 99");
    REFUSED(bounds_dtype, (tamis_bounds_dtype)2, TAMIS_E_ARGUMENT, "bounds_dtype 2");
    REFUSED(capacity_tokens, 0, TAMIS_E_ARGUMENT, "exactly one");
    REFUSED(capacity_bytes, 1 << 20, TAMIS_E_ARGUMENT, "exactly one");
    REFUSED(capacity_tokens, UINT64_MAX, TAMIS_E_ARGUMENT, "18446744073709551615");
    REFUSED(capacity_tokens, 1ull << 32, TAMIS_E_NO_MEMORY, "largest allocation");
    REFUSED(planes, 5, TAMIS_E_ARGUMENT, "planes 0x5");
    REFUSED(planes, TAMIS_PLANE_SCORES, TAMIS_E_ARGUMENT, "without positions");
#undef REFUSED
    tamis_cache_params p = test_shape();
    p.capacity_tokens = 0;
    p.capacity_bytes = 4 * (4096 + 512) - 1;
    FAILS(tamis_cache_measure(w->context, &p, &size, &test_error), TAMIS_E_ARGUMENT, "18432");
    p.capacity_bytes++;
    OK(tamis_cache_measure(w->context, &p, &size, &test_error));
    assert_int_equal(size.pages, 4);
    p.capacity_bytes = UINT64_MAX;
    FAILS(tamis_cache_measure(w->context, &p, &size, &test_error), TAMIS_E_ARGUMENT,
          "pages a layer");
    FAILS(tamis_cache_measure(NULL, &p, &size, &test_error), TAMIS_E_ARGUMENT, "context");
    FAILS(tamis_cache_measure(w->context, NULL, &size, &test_error), TAMIS_E_ARGUMENT, "params");
    FAILS(tamis_cache_measure(w->context, &p, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    FAILS(tamis_cache_create(NULL, &p, &cache, &test_error), TAMIS_E_ARGUMENT, "context");
    FAILS(tamis_cache_create(w->context, NULL, &cache, &test_error), TAMIS_E_ARGUMENT, "params");
    FAILS(tamis_cache_create(w->context, &p, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    tamis_cache_destroy(&cache);
    tamis_cache_destroy(NULL);
}

/* What a cache takes: whole pages a lane for tokens, at most the bytes for bytes. */
static void a_cache_takes_the_memory_it_measured(void **state) {
    test_world *w = *state;
    tamis_cache_size size;
    tamis_cache_params p = test_shape();
    p.capacity_tokens = 97; /* 13 pages in each of 4 lanes */
    OK(tamis_cache_measure(w->context, &p, &size, &test_error));
    assert_true(size.pages == 52 && size.page_bytes == 4096 && size.bounds_bytes == 512);
    assert_true(size.reserved_bytes == 52 * 4608 && size.pools == 1);
    p.capacity_tokens = 0;
    p.capacity_bytes = 53 * 4608 + 4607; /* 26 pages in each of 2 layers */
    p.page_size = 0;
    p.dtype = TAMIS_F16; /* 16 slots of half the size: the same bytes a page, half the bounds */
    OK(tamis_cache_measure(w->context, &p, &size, &test_error));
    assert_true(size.page_bytes == 4096 && size.bounds_bytes == 256);
    assert_int_equal(size.pages, (53 * 4608 + 4607) / 4352 / 2 * 2);
    assert_true(size.reserved_bytes <= p.capacity_bytes);
    assert_int_equal(size.plane_bytes, 0);
    p.bounds_dtype = TAMIS_BOUNDS_Q8; /* 2 rows of 64 bytes, 2 scales, up to a multiple of 16 */
    OK(tamis_cache_measure(w->context, &p, &size, &test_error));
    assert_true(size.page_bytes == 4096 && size.bounds_bytes == 144);
    p.dtype = TAMIS_Q8; /* 32 rows of 64 bytes and 2 scales */
    OK(tamis_cache_measure(w->context, &p, &size, &test_error));
    assert_true(size.page_bytes == 2176 && size.bounds_bytes == 144);
    p.dtype = TAMIS_K8V4; /* 16 rows of these, and 16 of 32 bytes, 2 minima and 2 scales */
    OK(tamis_cache_measure(w->context, &p, &size, &test_error));
    assert_true(size.page_bytes == 1728 && size.bounds_bytes == 144);
    p.dtype = TAMIS_Q4; /* 32 rows of 32 bytes, 2 minima and 2 scales */
    OK(tamis_cache_measure(w->context, &p, &size, &test_error));
    assert_true(size.page_bytes == 1280 && size.bounds_bytes == 144);
    p.dtype = TAMIS_F16;
    p.bounds_dtype = TAMIS_BOUNDS_AS_CACHE;
    p.planes = TAMIS_PLANE_POSITIONS | TAMIS_PLANE_SCORES; /* 8 bytes a slot */
    OK(tamis_cache_measure(w->context, &p, &size, &test_error));
    assert_int_equal(size.plane_bytes, 128);
    assert_int_equal(size.pages, (53 * 4608 + 4607) / 4480 / 2 * 2);
    assert_int_equal(size.reserved_bytes, size.pages * 4480);
    tamis_cache_stats stats = test_stats(w);
    assert_true(stats.pages_total == 128 && stats.bytes_reserved == 128 * 4608);
    assert_true(stats.pages_held == 0 && stats.bytes_held == 0);
}

static void sequences_refuse_bad_arguments(void **state) {
    test_world *w = *state;
    tamis_sequence id, other;
    tamis_cache_stats stats;
    tamis_sequence_stats one;
    float row[64];
    FAILS(tamis_cache_add(NULL, &id, &test_error), TAMIS_E_ARGUMENT, "cache");
    FAILS(tamis_cache_add(w->cache, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    OK(tamis_cache_add(w->cache, &id, &test_error));
    assert_true(id != 0);
    FAILS(tamis_cache_fork(NULL, id, &other, &test_error), TAMIS_E_ARGUMENT, "cache");
    FAILS(tamis_cache_fork(w->cache, id, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    FAILS(tamis_cache_fork(w->cache, 0, &other, &test_error), TAMIS_E_ARGUMENT, "no sequence 0");
    FAILS(tamis_cache_truncate(NULL, id, 0, &test_error), TAMIS_E_ARGUMENT, "cache");
    FAILS(tamis_cache_truncate(w->cache, id, 1, &test_error), TAMIS_E_ARGUMENT, "length 1");
    FAILS(tamis_cache_truncate(w->cache, ~id, 0, &test_error), TAMIS_E_ARGUMENT, "no sequence");
    FAILS(tamis_cache_read(NULL, id, 0, 0, 0, 0, row, row, &test_error), TAMIS_E_ARGUMENT, "cache");
    FAILS(tamis_cache_read(w->cache, 7, 0, 0, 0, 0, row, row, &test_error), TAMIS_E_ARGUMENT,
          "no sequence 7");
    FAILS(tamis_cache_read(w->cache, id, 2, 0, 0, 0, row, row, &test_error), TAMIS_E_ARGUMENT,
          "layer 2");
    FAILS(tamis_cache_read(w->cache, id, 0, 2, 0, 0, row, row, &test_error), TAMIS_E_ARGUMENT,
          "kv_head 2");
    FAILS(tamis_cache_read(w->cache, id, 0, 0, 0, 1, row, row, &test_error), TAMIS_E_ARGUMENT,
          "[0, 1)");
    FAILS(tamis_cache_read(w->cache, id, 0, 0, 1, UINT32_MAX, row, row, &test_error),
          TAMIS_E_ARGUMENT, "[1, 4294967296)");
    OK(tamis_cache_read(w->cache, id, 0, 0, 0, 0, NULL, NULL, &test_error));
    tamis_cache_get_stats(NULL, &stats);
    tamis_cache_get_stats(w->cache, NULL);
    assert_int_equal(tamis_cache_get_sequence_stats(NULL, id, &one, NULL), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_cache_get_sequence_stats(w->cache, id, NULL, NULL), TAMIS_E_ARGUMENT);
    FAILS(tamis_cache_remove(NULL, id, &test_error), TAMIS_E_ARGUMENT, "cache");
    OK(tamis_cache_remove(w->cache, id, &test_error));
    FAILS(tamis_cache_remove(w->cache, id, &test_error), TAMIS_E_ARGUMENT, "no sequence");
    assert_int_equal(tamis_cache_get_sequence_stats(w->cache, id, &one, NULL), TAMIS_E_ARGUMENT);
    OK(tamis_cache_add(w->cache, &other, &test_error));
    assert_true(other != id);
    OK(tamis_cache_remove(w->cache, other, &test_error));
}

/* A handle, in every call that takes one. */
static void is_unknown(test_world *w, tamis_plan *caller, tamis_prefixes *prefixes,
                       tamis_sequence id) {
    static const uint32_t counts[4] = {1, 1, 1, 1}, slots[4];
    static const float scores[4];
    static const uint8_t salt[16];
    const int32_t token = 1;
    const tamis_step step = {.sequences = &id, .count = 1};
    tamis_sequence fork;
    tamis_sequence_stats stats;
    tamis_step_pages pages;
    tamis_read_limit limit;
    int32_t positions[1];
    uint32_t length;
    float row[64];
    const char *unknown = test_text("the cache has no sequence %" PRIu64, id);
    FAILS(tamis_cache_fork(w->cache, id, &fork, &test_error), TAMIS_E_ARGUMENT, unknown);
    FAILS(tamis_cache_truncate(w->cache, id, 0, &test_error), TAMIS_E_ARGUMENT, unknown);
    FAILS(tamis_cache_remove(w->cache, id, &test_error), TAMIS_E_ARGUMENT, unknown);
    FAILS(tamis_cache_read(w->cache, id, 0, 0, 0, 1, row, row, &test_error), TAMIS_E_ARGUMENT,
          unknown);
    FAILS(tamis_cache_read_positions(w->cache, id, 0, 0, 0, 1, positions, &test_error),
          TAMIS_E_ARGUMENT, unknown);
    FAILS(tamis_cache_read_limit(w->cache, &id, 1, 1, &limit, &test_error), TAMIS_E_ARGUMENT,
          unknown);
    FAILS(tamis_cache_lane_length(w->cache, id, 0, 0, &length, &test_error), TAMIS_E_ARGUMENT,
          unknown);
    FAILS(tamis_cache_length(w->cache, id, &length, NULL, &test_error), TAMIS_E_ARGUMENT, unknown);
    FAILS(tamis_cache_get_sequence_stats(w->cache, id, &stats, &test_error), TAMIS_E_ARGUMENT,
          unknown);
    FAILS(tamis_plan_step_pages(w->plan, &step, &pages, &test_error), TAMIS_E_ARGUMENT, unknown);
    FAILS(tamis_plan_step_begin(w->plan, &step, &test_error), TAMIS_E_ARGUMENT, unknown);
    FAILS(tamis_plan_evict(w->plan, id, NULL, &test_error), TAMIS_E_ARGUMENT, unknown);
    FAILS(tamis_plan_evict_by_scores(caller, id, scores, 1, NULL, &test_error), TAMIS_E_ARGUMENT,
          unknown);
    FAILS(tamis_plan_evict_to(caller, id, slots, counts, 1, NULL, &test_error), TAMIS_E_ARGUMENT,
          unknown);
    FAILS(tamis_prefixes_add(prefixes, id, &token, 1, salt, &test_error), TAMIS_E_ARGUMENT,
          unknown);
}

/* A handle of another cache, of one that was destroyed and of a removed sequence is unknown, also
 * where this cache has a sequence in its place. */
static void handles_tell_their_cache(void **state) {
    (void)state;
    test_world w;
    const uint64_t token = 5;
    tamis_cache_params shape = test_shape();
    tamis_sequence own[2], theirs[2], late;
    tamis_cache *other = NULL;
    tamis_plan *caller = NULL;
    tamis_prefixes *prefixes = NULL;
    const tamis_plan_params streaming = {.max_context = 64,
                                         .eviction = {.kind = TAMIS_EVICT_STREAMING, .budget = 8}};
    const tamis_plan_params by_caller = {.max_context = 64,
                                         .eviction = {.kind = TAMIS_EVICT_CALLER, .budget = 8}};
    shape.planes = TAMIS_PLANE_POSITIONS;
    test_open(&w, &shape, &streaming);
    OK(tamis_cache_create(w.context, &shape, &other, &test_error));
    for (int i = 0; i < 2; i++) {
        OK(tamis_cache_add(other, &theirs[i], &test_error));
        OK(tamis_cache_add(w.cache, &own[i], &test_error));
        OK(test_append(&w, own[i], &token, 1));
    }
    OK(tamis_plan_create(w.cache, &by_caller, &caller, &test_error));
    OK(tamis_prefixes_create(w.cache, &prefixes, &test_error));
    OK(tamis_cache_remove(other, theirs[1], &test_error));
    is_unknown(&w, caller, prefixes, theirs[0]);
    is_unknown(&w, caller, prefixes, theirs[1]);
    tamis_cache_destroy(&other);
    OK(tamis_cache_create(w.context, &shape, &other, &test_error));
    OK(tamis_cache_add(other, &late, &test_error));
    for (int i = 0; i < 2; i++)
        FAILS(tamis_cache_remove(other, theirs[i], &test_error), TAMIS_E_ARGUMENT, "no sequence");
    is_unknown(&w, caller, prefixes, late);
    OK(tamis_cache_remove(w.cache, own[0], &test_error));
    is_unknown(&w, caller, prefixes, own[0]);
    test_expect(&w, own[1], 0, 0, 0, &token, 1);
    OK(tamis_cache_remove(w.cache, own[1], &test_error));
    tamis_prefixes_destroy(&prefixes);
    tamis_plan_destroy(&caller);
    tamis_cache_destroy(&other);
    test_close(&w);
}

/* What a client can ask back: the context, parameters with their defaults, tokens of a sequence. */
static void parameters_are_returned_with_defaults(void **state) {
    test_world *w = *state;
    tamis_cache_params shape = {.n_layers = 77};
    tamis_plan_params limits = {.max_rows = 77};
    uint32_t length = 77, evicted_at = 77;
    tamis_sequence id;
    const uint64_t tokens[5] = {0};
    assert_null(tamis_cache_context(NULL));
    assert_ptr_equal(tamis_cache_context(w->cache), w->context);
    tamis_cache_get_params(NULL, &shape);
    tamis_cache_get_params(w->cache, NULL);
    assert_int_equal(shape.n_layers, 77);
    tamis_cache_get_params(w->cache, &shape);
    assert_memory_equal(&shape, &w->shape, sizeof shape);
    tamis_plan_get_params(NULL, &limits);
    tamis_plan_get_params(w->plan, NULL);
    assert_int_equal(limits.max_rows, 77);
    tamis_plan_get_params(w->plan, &limits);
    assert_int_equal(limits.max_rows, w->max_rows);
    assert_int_equal(limits.max_sequences, 1);
    assert_true(limits.attention.scale == (float)(1 / sqrt(w->shape.head_dim)));
    OK(tamis_cache_add(w->cache, &id, &test_error));
    OK(test_append(w, id, tokens, 5));
    FAILS(tamis_cache_length(NULL, id, &length, NULL, &test_error), TAMIS_E_ARGUMENT, "cache");
    FAILS(tamis_cache_length(w->cache, 7, &length, NULL, &test_error), TAMIS_E_ARGUMENT,
          "the cache has no sequence 7");
    assert_int_equal(length, 77);
    OK(tamis_cache_length(w->cache, id, NULL, NULL, &test_error));
    OK(tamis_cache_length(w->cache, id, &length, &evicted_at, &test_error));
    assert_int_equal(length, 5);
    assert_int_equal(evicted_at, 0);
    OK(tamis_cache_remove(w->cache, id, &test_error));
}

/* Lanes: their positions and lengths, of a cache without planes. */
static void lanes_tell_positions_and_lengths(void **state) {
    test_world *w = *state;
    tamis_sequence id;
    uint64_t tokens[12] = {0};
    int32_t position = 0, positions[10];
    uint32_t length = 1;
    OK(tamis_cache_add(w->cache, &id, &test_error));
    FAILS(tamis_cache_read_positions(NULL, id, 0, 0, 0, 0, &position, &test_error),
          TAMIS_E_ARGUMENT, "cache");
    FAILS(tamis_cache_read_positions(w->cache, 7, 0, 0, 0, 0, &position, &test_error),
          TAMIS_E_ARGUMENT, "no sequence 7");
    FAILS(tamis_cache_read_positions(w->cache, id, 2, 0, 0, 0, &position, &test_error),
          TAMIS_E_ARGUMENT, "layer 2");
    FAILS(tamis_cache_read_positions(w->cache, id, 0, 2, 0, 0, &position, &test_error),
          TAMIS_E_ARGUMENT, "kv_head 2");
    FAILS(tamis_cache_read_positions(w->cache, id, 0, 0, 0, 1, &position, &test_error),
          TAMIS_E_ARGUMENT, "slots [0, 1)");
    FAILS(tamis_cache_read_positions(w->cache, id, 0, 0, 0, 0, NULL, &test_error), TAMIS_E_ARGUMENT,
          "positions");
    FAILS(tamis_cache_lane_length(NULL, id, 0, 0, &length, &test_error), TAMIS_E_ARGUMENT, "cache");
    FAILS(tamis_cache_lane_length(w->cache, 7, 0, 0, &length, &test_error), TAMIS_E_ARGUMENT,
          "no sequence 7");
    FAILS(tamis_cache_lane_length(w->cache, id, 2, 0, &length, &test_error), TAMIS_E_ARGUMENT,
          "layer 2");
    FAILS(tamis_cache_lane_length(w->cache, id, 0, 2, &length, &test_error), TAMIS_E_ARGUMENT,
          "kv_head 2");
    FAILS(tamis_cache_lane_length(w->cache, id, 0, 0, NULL, &test_error), TAMIS_E_ARGUMENT,
          "length");
    OK(tamis_cache_lane_length(w->cache, id, 0, 0, &length, &test_error));
    assert_int_equal(length, 0);
    OK(test_append(w, id, tokens, 12));
    OK(tamis_cache_lane_length(w->cache, id, 1, 1, &length, &test_error));
    assert_int_equal(length, 12);
    OK(tamis_cache_read_positions(w->cache, id, 1, 1, 2, 10, positions, &test_error));
    for (int32_t i = 0; i < 10; i++)
        assert_int_equal(positions[i], 2 + i);
    OK(tamis_cache_remove(w->cache, id, &test_error));
}

/* A name out of somebody's file: an error shows it without what a terminal obeys. */
static void unknown_names_are_quoted(void **state) {
    (void)state;
    static const char name[] = "x\x1b[2J\x07\xc3", shown[] = "\"x?[2J??\"";
    tamis_selection selection;
    tamis_eviction eviction;
    tamis_bounds_kind bounds;
    tamis_context *context = NULL;
    const tamis_context_params params = {.device = name};
    FAILS(tamis_selection_parse(name, &selection, &test_error), TAMIS_E_ARGUMENT, shown);
    FAILS(tamis_eviction_parse(name, &eviction, &test_error), TAMIS_E_ARGUMENT, shown);
    FAILS(tamis_bounds_parse(name, &bounds, &test_error), TAMIS_E_ARGUMENT, shown);
    FAILS(tamis_context_create(&params, &context, &test_error), TAMIS_E_NO_DEVICE, shown);
}

static void selections_are_known_by_name_and_checked(void **state) {
    (void)state;
    tamis_selection s;
    static const char *const names[] = {"full", "window", "quest"};
    for (int i = 0; i < 3; i++) {
        assert_string_equal(tamis_selection_name((tamis_selection_kind)i), names[i]);
        tamis_selection_default((tamis_selection_kind)i, &s);
        assert_int_equal(s.kind, i);
        OK(tamis_selection_check(&s, 16, &test_error));
    }
    assert_true(s.budget == 2048 && s.sinks == 4 && s.recent == 16 && s.dense_layers == 0);
    for (int i = 0; i < 3; i++) {
        tamis_selection named;
        OK(tamis_selection_parse(names[i], &named, &test_error));
        tamis_selection_default((tamis_selection_kind)i, &s);
        assert_memory_equal(&named, &s, sizeof s);
    }
    uint32_t n = 0;
    for (; tamis_selection_name_at(n); n++)
        OK(tamis_selection_parse(tamis_selection_name_at(n), &s, &test_error));
    assert_int_equal(n, TAMIS_SELECT_CALLER + 2); /* every kind, and quest-paper */
    assert_null(tamis_selection_name_at(UINT32_MAX));
    assert_string_equal(tamis_selection_name_at(n - 1), "quest-paper");
    OK(tamis_selection_parse("quest-paper", &s, &test_error));
    assert_true(s.kind == TAMIS_SELECT_QUEST && s.budget == 2048 && s.sinks == 0 && s.recent == 0);
    assert_true(s.dense_layers == 2 && s.group == TAMIS_GROUP_MAX);
    OK(tamis_selection_check(&s, 16, &test_error));
    FAILS(tamis_selection_parse("quest-papers", &s, &test_error), TAMIS_E_ARGUMENT,
          "\"quest-papers\"; known are full, window, quest, oracle, random, caller, quest-paper");
    FAILS(tamis_selection_parse(NULL, &s, &test_error), TAMIS_E_ARGUMENT, "name");
    FAILS(tamis_selection_parse("full", NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    assert_string_equal(tamis_selection_name((tamis_selection_kind)9), "unknown");
    tamis_selection_default(TAMIS_SELECT_QUEST, NULL);
    FAILS(tamis_selection_check(NULL, 16, &test_error), TAMIS_E_ARGUMENT, "selection");
    FAILS(tamis_selection_check(&s, 12, &test_error), TAMIS_E_UNSUPPORTED, "page_size 12");
    s.group = (tamis_group_rule)5;
    FAILS(tamis_selection_check(&s, 16, &test_error), TAMIS_E_ARGUMENT, "group rule 5");
    s = (tamis_selection){.kind = (tamis_selection_kind)9};
    FAILS(tamis_selection_check(&s, 16, &test_error), TAMIS_E_ARGUMENT, "kind 9");
}

/* The least budget is the pages of the sinks, of the recent tokens wherever they lie, and one. */
static void the_least_budget_holds_sinks_recent_and_a_page(void **state) {
    (void)state;
    tamis_selection s = {.kind = TAMIS_SELECT_QUEST, .budget = 63, .sinks = 4, .recent = 16};
    FAILS(tamis_selection_check(&s, 16, &test_error), TAMIS_E_ARGUMENT, "at least 64 tokens");
    s.budget = 64;
    OK(tamis_selection_check(&s, 16, &test_error));
    s.recent = 17;
    OK(tamis_selection_check(&s, 16, &test_error));
    s.recent = 18;
    FAILS(tamis_selection_check(&s, 16, &test_error), TAMIS_E_ARGUMENT, "recent 18 up to 3");
    s = (tamis_selection){.kind = TAMIS_SELECT_WINDOW, .budget = 16, .sinks = 1};
    FAILS(tamis_selection_check(&s, 16, &test_error), TAMIS_E_ARGUMENT, "at least 32 tokens");
    s.sinks = s.recent = s.budget = UINT32_MAX;
    FAILS(tamis_selection_check(&s, 8, &test_error), TAMIS_E_ARGUMENT, "sinks 4294967295");
    s = (tamis_selection){.kind = TAMIS_SELECT_FULL, .budget = 1};
    OK(tamis_selection_check(&s, 64, &test_error));
}

static void plan_parameters_are_checked_one_by_one(void **state) {
    test_world *w = *state;
    tamis_plan *plan = NULL;
    tamis_plan_params p = {.max_context = 64};
    FAILS(tamis_plan_create(NULL, &p, &plan, &test_error), TAMIS_E_ARGUMENT, "cache");
    FAILS(tamis_plan_create(w->cache, NULL, &plan, &test_error), TAMIS_E_ARGUMENT, "params");
    FAILS(tamis_plan_create(w->cache, &p, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
#define REFUSED(field, value, part)                                                                \
    do {                                                                                           \
        p = (tamis_plan_params){.max_context = 64};                                                \
        p.field = (value);                                                                         \
        FAILS(tamis_plan_create(w->cache, &p, &plan, &test_error), TAMIS_E_ARGUMENT, part);        \
        assert_null(plan);                                                                         \
    } while (0)
    REFUSED(max_context, 0, "max_context is 0");
    REFUSED(max_context, UINT32_MAX, "4294967295");
    REFUSED(max_sequences, UINT32_MAX, "4294967295 sequences");
    REFUSED(max_rows, UINT32_MAX, "max_rows 4294967295");
    REFUSED(attention.scale, INFINITY, "scale");
    REFUSED(attention.soft_cap, -1, "soft_cap -1");
    REFUSED(attention.soft_cap, NAN, "soft_cap");
    REFUSED(selection.kind, (tamis_selection_kind)6, "kind 6");
#undef REFUSED
    p = (tamis_plan_params){.max_context = 64,
                            .selection = {.kind = TAMIS_SELECT_QUEST, .budget = 8, .sinks = 4}};
    FAILS(tamis_plan_create(w->cache, &p, &plan, &test_error), TAMIS_E_ARGUMENT, "budget 8");
    p.selection.budget = 0; /* the default, which is more than any lane has */
    OK(tamis_plan_create(w->cache, &p, &plan, &test_error));
    tamis_plan_destroy(&plan);
    assert_null(plan);
    tamis_plan_destroy(&plan);
    tamis_plan_destroy(NULL);
    tamis_plan_get_counters(NULL, NULL);
    tamis_plan_get_times(NULL, NULL);
    tamis_plan_reset_counters(NULL);
}

/* ---- Fields that are reserved ---------------------------------------------------------------- */

/* Structs that calls take, each good but for its reserved fields. */
typedef struct structs {
    tamis_context_params context;
    tamis_cache_params cache;
    tamis_bounds bounds;
    tamis_selection selection;
    tamis_eviction eviction, none;
    tamis_plan_params plan;
    tamis_step step;
} structs;

static tamis_status open_context(test_world *w, const structs *s) {
    tamis_context *context = NULL;
    tamis_status status = tamis_context_create(&s->context, &context, &test_error);
    tamis_context_destroy(&context);
    (void)w;
    return status;
}

static tamis_status open_context_cuda(test_world *w, const structs *s) {
    tamis_context_params params = s->context;
    tamis_context *context = NULL;
    params.device = NULL;
    return tamis_context_create_cuda(w, NULL, &params, &context, &test_error);
}

static tamis_status measure_cache(test_world *w, const structs *s) {
    tamis_cache_size size;
    return tamis_cache_measure(w->context, &s->cache, &size, &test_error);
}

static tamis_status create_cache(test_world *w, const structs *s) {
    tamis_cache *cache = NULL;
    tamis_status status = tamis_cache_create(w->context, &s->cache, &cache, &test_error);
    tamis_cache_destroy(&cache);
    return status;
}

static tamis_status set_bounds(test_world *w, const structs *s) {
    return tamis_cache_set_bounds(w->cache, &s->bounds, &test_error);
}

static tamis_status check_selection(test_world *w, const structs *s) {
    (void)w;
    return tamis_selection_check(&s->selection, 16, &test_error);
}

static tamis_status check_eviction(test_world *w, const structs *s) {
    (void)w;
    return tamis_eviction_check(&s->eviction, &test_error);
}

static tamis_status check_none(test_world *w, const structs *s) {
    (void)w;
    return tamis_eviction_check(&s->none, &test_error);
}

static tamis_status create_plan(test_world *w, const structs *s) {
    tamis_plan *plan = NULL;
    tamis_status status = tamis_plan_create(w->cache, &s->plan, &plan, &test_error);
    tamis_plan_destroy(&plan);
    return status;
}

static tamis_status begin_step(test_world *w, const structs *s) {
    tamis_status status = tamis_plan_step_begin(w->plan, &s->step, &test_error);
    if (status == TAMIS_OK) status = tamis_plan_step_cancel(w->plan, &test_error);
    return status;
}

/* Where a call finds reserved numbers. */
typedef struct reserved {
    tamis_status (*call)(test_world *, const structs *);
    const char *type;
    size_t place, count;
} reserved;

#define RESERVED(call, type, member)                                                               \
    { call, #type, offsetof(structs, member), sizeof((structs *)0)->member / sizeof(uint64_t) }

/* A field that is reserved gets a meaning only if nobody has left something else in it. */
static void reserved_fields_must_be_zero(void **state) {
    static const reserved fields[] = {
        RESERVED(open_context, tamis_context_params, context.reserved),
        RESERVED(open_context_cuda, tamis_context_params, context.reserved),
        RESERVED(measure_cache, tamis_cache_params, cache.reserved),
        RESERVED(create_cache, tamis_cache_params, cache.reserved),
        RESERVED(measure_cache, tamis_bounds, cache.bounds.reserved),
        RESERVED(set_bounds, tamis_bounds, bounds.reserved),
        RESERVED(check_selection, tamis_selection, selection.reserved),
        RESERVED(check_eviction, tamis_eviction, eviction.reserved),
        RESERVED(check_none, tamis_eviction, none.reserved),
        RESERVED(create_plan, tamis_plan_params, plan.reserved),
        RESERVED(create_plan, tamis_selection, plan.selection.reserved),
        RESERVED(create_plan, tamis_eviction, plan.eviction.reserved),
        RESERVED(begin_step, tamis_step, step.reserved),
    };
    test_world *w = *state;
    tamis_sequence id;
    OK(tamis_cache_add(w->cache, &id, &test_error));
    const structs good = {.context = {.device = test_device},
                          .cache = test_shape(),
                          .eviction = {.kind = TAMIS_EVICT_SNAPKV},
                          .plan = {.max_context = 64},
                          .step = {.sequences = &id, .count = 1}};
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
        const reserved *field = &fields[f];
        assert_true(field->count > 0);
        for (size_t i = 0; i < field->count; i++) {
            structs s = good;
            const uint64_t value = i ? 1ull << 63 : 7;
            char part[96];
            snprintf(part, sizeof part, "reserved[%zu] of %s is %llu", i, field->type,
                     (unsigned long long)value);
            memcpy((char *)&s + field->place + i * sizeof value, &value, sizeof value);
            FAILS(field->call(w, &s), TAMIS_E_ARGUMENT, part);
        }
        if (field->call != open_context_cuda) OK(field->call(w, &good));
    }
    structs s = good;
    s.cache.bounds_dtype = (tamis_bounds_dtype)7;
    FAILS(create_cache(w, &s), TAMIS_E_ARGUMENT, "bounds_dtype 7 is neither");
    s = good;
    s.plan.load_dtypes = 8;
    FAILS(create_plan(w, &s), TAMIS_E_ARGUMENT, "load_dtypes is 8, more than");
    s = good;
    s.context.reserved32 = 7;
    FAILS(open_context(w, &s), TAMIS_E_ARGUMENT, "reserved32 of tamis_context_params is 7");
    FAILS(open_context_cuda(w, &s), TAMIS_E_ARGUMENT, "reserved32 of tamis_context_params is 7");
    OK(tamis_cache_remove(w->cache, id, &test_error));
}

static int set_up(void **state) {
    static test_world world;
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_rows = 16, .max_context = 128};
    test_open(&world, &shape, &plan);
    *state = &world;
    return 0;
}

static int tear_down(void **state) {
    test_close(*state);
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_names_and_version_are_as_published),
        cmocka_unit_test(buffers_refuse_bad_arguments),
        cmocka_unit_test(cache_parameters_are_checked_one_by_one),
        cmocka_unit_test(a_cache_takes_the_memory_it_measured),
        cmocka_unit_test(sequences_refuse_bad_arguments),
        cmocka_unit_test(handles_tell_their_cache),
        cmocka_unit_test(lanes_tell_positions_and_lengths),
        cmocka_unit_test(unknown_names_are_quoted),
        cmocka_unit_test(selections_are_known_by_name_and_checked),
        cmocka_unit_test(the_least_budget_holds_sinks_recent_and_a_page),
        cmocka_unit_test(plan_parameters_are_checked_one_by_one),
        cmocka_unit_test(bandwidths_refuse_bad_arguments),
        cmocka_unit_test(reserved_fields_must_be_zero),
        cmocka_unit_test(parameters_are_returned_with_defaults),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, set_up, tear_down);
}
