/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of saved sequences as bytes: what they are, and which are refused, with nothing left behind;
 * callbacks and devices that fail, states in which nothing is saved.
 * Usage: test-api-saved_bytes [DEVICE] */
#include "tests/api/saving.h"
#include "tests/faulty.h"

/* ---- The bytes ------------------------------------------------------------------------------- */

/* Little-endian, header and rows: what a stream says does not depend on the host. */
static void bytes_are_as_documented(void **state) {
    (void)state;
    evict_world e;
    saved_open(&e, test_device, saved_named("full"));
    saved_stream s = saved_save(&e, evict_add(&e, 0, 3), &saved_bare);
    const uint8_t *at = s.bytes;
    assert_memory_equal(at, "tamisseq\1\0\0\0", 12);
    assert_int_equal(tms_get_u32(at + 12), SAVED_HEADER_BYTES);
    assert_memory_equal(at + 16, saved_bare.fingerprint, 16);
    assert_int_equal(saved_number(&s, TMS_SAVED_HEAD_DIM), 64);
    assert_int_equal(saved_number(&s, TMS_SAVED_LENGTH), 3);
    at += SAVED_HEADER_BYTES;
    assert_memory_equal(at, "\1\0\0\0\40\0\0\0\3\0\0\0\0\0\0\0", 16); /* 4 lanes of 3 slots */
    at += 8 + 32 + 8;
    assert_int_equal(tms_get_u32(at), TMS_SAVED_PAGES);
    assert_int_equal(tms_get_u32(at + 4), 2 * 3 * 64 * 4);
    for (uint32_t i = 0; i < 3 * 64; i++) {
        const float value = test_value(i / 64, 0, 0, i % 64);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        assert_int_equal(tms_get_u32(at + 8 + 4 * i), bits);
    }
    at += 4 * (16 + 2 * 3 * 64 * 4);
    assert_int_equal(at + 16 - s.bytes, s.size); /* the end */
    free(s.bytes);
    evict_close(&e);
}

/* ---- Refusals -------------------------------------------------------------------------------- */

/* Restoring fails, and leaves nothing. */
static void refused(evict_world *e, saved_stream *s, tamis_status code, const char *part) {
    const tamis_cache_stats before = test_stats(&e->w);
    tamis_sequence id = 9;
    uint64_t n_held, n_shared;
    s->at = s->calls = 0;
    FAILS(tamis_plan_restore(e->w.plan, &saved_bare, saved_read, s, &id, &test_error), code, part);
    assert_int_equal(id, 0);
    test_unchanged(&e->w, &before);
    test_account(e->w.cache, &n_held, &n_shared);
}

static saved_stream copy_of(const saved_stream *s) {
    saved_stream copy = {.bytes = malloc(s->size), .size = s->size};
    assert_non_null(copy.bytes);
    memcpy(copy.bytes, s->bytes, s->size);
    return copy;
}

/* Every number that must agree is named with both its values. */
static void what_differs_is_named(void **state) {
    (void)state;
    static const char *const texts[] = {
        "n_layers is 3 in the saved sequence, 2 in the cache",
        "n_heads is 5 in the saved sequence, 4 in the cache",
        "n_kv_heads is 3 in the saved sequence, 2 in the cache",
        "head_dim is 65 in the saved sequence, 64 in the cache",
        "page_size is 9 in the saved sequence, 8 in the cache",
        "dtype is f16 in the saved sequence, f32 in the cache",
        "planes is 2 in the saved sequence, 1 in the cache",
        "eviction is pyramidkv in the saved sequence, snapkv in the plan",
        "budget of the eviction is 34 in the saved sequence, 33 in the plan",
        "sinks of the eviction is 1 in the saved sequence, 0 in the plan",
        "recent of the eviction is 1 in the saved sequence, 0 in the plan",
        "window of the eviction is 9 in the saved sequence, 8 in the plan",
        "kernel of the eviction is 4 in the saved sequence, 3 in the plan",
        "pooling of the eviction is 1 in the saved sequence, 0 in the plan",
        "chunk of the eviction is 1 in the saved sequence, 0 in the plan",
        "floor of the eviction is 1.40129846e-45 in the saved sequence, 0 in the plan",
        "beta of the eviction is 1.40129846e-45 in the saved sequence, 0 in the plan",
        "every of the eviction is 1 in the saved sequence, 0 in the plan",
        "options of the eviction is 1 in the saved sequence, 0 in the plan"};
    evict_world e;
    saved_open(&e, test_device, saved_named("snapkv"));
    saved_stream s = saved_save(&e, evict_add(&e, 0, 20), &saved_bare);
    for (uint32_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        saved_stream other = copy_of(&s);
        saved_set(&other, (tms_saved_number)i, saved_number(&s, (tms_saved_number)i) + 1);
        saved_mend(&other);
        refused(&e, &other, TAMIS_E_ARGUMENT, texts[i]);
        free(other.bytes);
    }
    assert_int_equal(sizeof texts / sizeof *texts, TMS_SAVED_HAS_BOUNDS);
    s.bytes[16] = 0xab;
    saved_mend(&s);
    refused(&e, &s, TAMIS_E_ARGUMENT,
            "the model's fingerprint is ab020300000000000000000000000000 in the saved sequence, "
            "01020300000000000000000000000000 here");
    free(s.bytes);
    evict_close(&e);
}

/* The numbers of caches and plans themselves, not of bytes that a test has changed. */
static void other_plans_refuse(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *text;
    } pairs[] = {
        {"full", "quest, f16", "head_dim is 64 in the saved sequence, 128 in the cache"},
        {"quest, q8", "full, q4", "dtype is q8 in the saved sequence, q4 in the cache"},
        {"full", "snapkv", "planes is 0 in the saved sequence, 1 in the cache"},
        {"snapkv", "streaming", "eviction is snapkv in the saved sequence, streaming in the plan"},
        {"h2o", "h2o, lifetime, forked",
         "options of the eviction is 0 in the saved sequence, 4 in"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        evict_world a, b;
        saved_open(&a, test_device, saved_named(pairs[i].from));
        saved_open(&b, test_device, saved_named(pairs[i].to));
        saved_stream s = saved_save(&a, evict_add(&a, 0, 20), &saved_bare);
        refused(&b, &s, TAMIS_E_ARGUMENT, pairs[i].text);
        free(s.bytes);
        evict_close(&a);
        evict_close(&b);
    }
}

/* Numbers that cannot be, with sums that hold. */
static void contradictions_are_refused(void **state) {
    (void)state;
    static const struct {
        tms_saved_number which;
        uint32_t value;
        tamis_status code;
        const char *text;
    } numbers[] = {
        {TMS_SAVED_HAS_BOUNDS, 2, TAMIS_E_FORMAT, "bounds of a saved sequence is 2"},
        {TMS_SAVED_UNORDERED, 2, TAMIS_E_FORMAT, "unordered of a saved sequence is 2"},
        {TMS_SAVED_SCORED_NEWEST, 9, TAMIS_E_FORMAT, "scored_newest of a saved sequence is 9"},
        {TMS_SAVED_BOUNDS_DTYPE, 4, TAMIS_E_FORMAT, "bounds of dtype 4"},
        {TMS_SAVED_BOUNDS_DTYPE, 400, TAMIS_E_FORMAT, "bounds of dtype 400"},
        {TMS_SAVED_LENGTH, CONTEXT + 1, TAMIS_E_ARGUMENT,
         "257 tokens of the saved sequence exceed"},
        {TMS_SAVED_LENGTH, UINT32_MAX, TAMIS_E_ARGUMENT, "exceed max_context 256"},
        {TMS_SAVED_LENGTH, PROMPT + BEFORE + 1, TAMIS_E_FORMAT, "of 65 tokens has position"},
        {TMS_SAVED_EVICTED_AT, 65, TAMIS_E_FORMAT, "64 tokens was evicted from at 65"},
        {TMS_SAVED_SCORED_TO, 65, TAMIS_E_FORMAT, "has scores of 65"},
        {TMS_SAVED_SHORTEST, 65, TAMIS_E_FORMAT, "cannot be shorter than 65"},
        {TMS_SAVED_SHORTEST, 1, TAMIS_E_FORMAT, "cannot be shorter than 1, and has given no page"},
        {TMS_SAVED_EVICTED_AT, 63, TAMIS_E_FORMAT, "evicted from at 63, but is intact from 64 on"},
        {TMS_SAVED_INTACT_FROM, 0, TAMIS_E_FORMAT, "are intact from 0 on"},
        {TMS_SAVED_UNORDERED, 0, TAMIS_E_FORMAT, "has position"},
        {TMS_SAVED_QUERIES_TO, 1, TAMIS_E_FORMAT, "queries of positions 0 to below 1"},
    };
    evict_world e;
    saved_open(&e, test_device, saved_named("h2o"));
    const tamis_sequence id = saved_live(&e, saved_named("h2o"));
    saved_stream s = saved_save(&e, id, &saved_bare);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        saved_stream other = copy_of(&s);
        saved_set(&other, numbers[i].which, numbers[i].value);
        saved_mend(&other);
        refused(&e, &other, numbers[i].code, numbers[i].text);
        free(other.bytes);
    }
    /* A lane that is longer, shorter, or has given pages back; the second of 4 bytes each. */
    static const struct {
        uint32_t at, value;
        const char *text;
    } lanes[] = {
        {0, 65, "lane 0 of a saved sequence holds 65 of 64 tokens"},
        {8, UINT32_MAX, "lane 1 of a saved sequence holds 4294967295 of 64"},
        {12, 1, "lane 1 of a saved sequence, of 33 tokens, has given back 8;"},
        {4, UINT32_MAX, "lane 0 of a saved sequence, of 33 tokens, has given back 34359738360"}};
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++) {
        saved_stream other = copy_of(&s);
        tms_put_u32(other.bytes + SAVED_HEADER_BYTES + 8 + lanes[i].at, lanes[i].value);
        saved_mend(&other);
        refused(&e, &other, TAMIS_E_FORMAT, lanes[i].text);
        free(other.bytes);
    }
    /* Another length than the pages have: the sections do not fit. */
    tms_put_u32(s.bytes + SAVED_HEADER_BYTES + 8, 32);
    saved_mend(&s);
    refused(&e, &s, TAMIS_E_FORMAT, "there must be one of kind 2 and");
    free(s.bytes);
    evict_close(&e);
}

/* Pages are gone only in caches without planes, and no row may see them. */
static void gone_pages_are_checked(void **state) {
    (void)state;
    evict_world e;
    saved_open(&e, test_device, saved_named("windowed"));
    const tamis_sequence id = saved_live(&e, saved_named("windowed"));
    saved_stream s = saved_save(&e, id, &saved_bare);
    const uint32_t shortest = saved_number(&s, TMS_SAVED_SHORTEST);
    tamis_sequence_stats a, b;
    assert_true(shortest > 0 && tms_get_u32(s.bytes + SAVED_HEADER_BYTES + 12) > 0);
    const tamis_sequence copy = saved_restore(&e, &s);
    OK(tamis_cache_get_sequence_stats(e.w.cache, id, &a, &test_error));
    OK(tamis_cache_get_sequence_stats(e.w.cache, copy, &b, &test_error));
    assert_memory_equal(&a, &b, sizeof a);
    FAILS(tamis_cache_truncate(e.w.cache, copy, shortest - 1, &test_error), TAMIS_E_STATE,
          "whose pages were given back");
    OK(tamis_cache_truncate(e.w.cache, copy, shortest, &test_error));
    saved_set(&s, TMS_SAVED_SHORTEST, 0);
    saved_mend(&s);
    refused(&e, &s, TAMIS_E_FORMAT, "it cannot be shorter than 0");
    saved_set(&s, TMS_SAVED_SHORTEST, shortest);
    tms_put_u32(s.bytes + SAVED_HEADER_BYTES + 12, 9);
    saved_mend(&s);
    refused(&e, &s, TAMIS_E_FORMAT, "has given back 72;");
    free(s.bytes);
    evict_close(&e);
}

/* A small stream, of two tokens that were evicted to one; with queries, scores, bounds. */
static saved_stream small(evict_world *e) {
    const tamis_eviction eviction = {
        .kind = TAMIS_EVICT_SNAPKV, .budget = 9, .window = 8, .kernel = 1};
    const tamis_plan_params plan = {
        .max_sequences = 2, .max_rows = 64, .max_context = 16, .eviction = eviction};
    tamis_cache_params shape = test_shape();
    shape.n_layers = shape.n_heads = shape.n_kv_heads = 1;
    shape.planes = TAMIS_PLANE_POSITIONS | TAMIS_PLANE_SCORES;
    shape.capacity_tokens = 48;
    evict_open(e, &shape, &plan);
    return saved_save(e, evict_add(e, 0, 9), &saved_bounded);
}

/* Slots behind a lane's end, in a page that others have used, hold zeros. */
static void dead_slots_are_zeros(void **state) {
    (void)state;
    const uint32_t row = 64 * sizeof(float);
    uint8_t page[2 * 8 * 64 * sizeof(float)];
    evict_world e;
    saved_stream s = small(&e);
    const tamis_sequence id = saved_restore(&e, &s);
    const tms_sequence *sequence = tms_cache_find(e.w.cache, id);
    const tms_pool *pool = tms_cache_pool(e.w.cache, 0);
    tms_device *dev = e.w.context->dev;
    /* The lane's second page holds one of 8 slots. */
    OK(dev->backend->read(dev, (tms_ref){pool->data, tms_lane_pages(sequence, 0)[1] * sizeof page},
                          page, sizeof page));
    for (uint32_t i = 0; i < sizeof page; i++)
        if (i % (8 * row) >= row) assert_int_equal(page[i], 0);
    free(s.bytes);
    evict_close(&e);
}

/* Every prefix fails, and every byte of a section counts. */
static void cut_and_damaged_streams(void **state) {
    (void)state;
    const size_t every = strcmp(test_device, "reference") == 0 ? 1 : 61;
    evict_world e;
    saved_stream s = small(&e);
    const size_t whole = s.size;
    for (s.size = 0; s.size < whole; s.size += every)
        refused(&e, &s, TAMIS_E_IO, "answered 7");
    s.size = whole;
    for (size_t i = 0; i < whole; i += every) {
        const uint8_t bit = (uint8_t)(1u << i % 8);
        const tamis_cache_stats before = test_stats(&e.w);
        tamis_sequence id = 0;
        s.bytes[i] ^= bit;
        s.at = 0;
        const tamis_status status =
            tamis_plan_restore(e.w.plan, &saved_bare, saved_read, &s, &id, &test_error);
        /* Of the places before a sum some say by themselves what they must be. */
        if (status != TAMIS_E_DAMAGED && status != TAMIS_E_FORMAT)
            fail_msg("byte %zu: %s \"%s\"", i, tamis_status_name(status), test_error.text);
        test_unchanged(&e.w, &before);
        s.bytes[i] ^= bit;
    }
    (void)saved_restore(&e, &s);
    free(s.bytes);
    evict_close(&e);
}

static void other_versions_and_other_files(void **state) {
    (void)state;
    evict_world e;
    saved_stream s = small(&e);
    tms_put_u32(s.bytes + 8, 2);
    refused(&e, &s, TAMIS_E_FORMAT, "the saved sequence has version 2; this library reads 1");
    tms_put_u32(s.bytes + 8, 1);
    tms_put_u32(s.bytes + 12, 500);
    refused(&e, &s, TAMIS_E_FORMAT, "the header of a saved sequence has 500 bytes");
    memcpy(s.bytes, "GGUF", 4);
    refused(&e, &s, TAMIS_E_FORMAT, "the bytes are no saved sequence");
    free(s.bytes);
    evict_close(&e);
}

/* A full disk: whatever call of the callback fails, the sequence is as it was. */
static void callbacks_fail(void **state) {
    (void)state;
    evict_world e;
    saved_stream whole = small(&e);
    const tamis_sequence id = saved_restore(&e, &whole);
    const size_t calls = whole.calls;
    /* The header is read in one call more than it is written in. */
    for (size_t i = 1; i <= calls; i++) {
        saved_stream s = {.fails = i};
        if (i < calls)
            FAILS(tamis_plan_save(e.w.plan, id, &saved_bounded, saved_write, &s, &test_error),
                  TAMIS_E_IO, "of a saved sequence answered 7");
        free(s.bytes);
        whole.fails = i;
        refused(&e, &whole, TAMIS_E_IO, "of a saved sequence answered 7");
    }
    saved_stream s = saved_save(&e, id, &saved_bounded);
    saved_same(&s, &whole);
    free(s.bytes);
    free(whole.bytes);
    evict_close(&e);
}

/* ---- Arguments and states -------------------------------------------------------------------- */

static void arguments_are_checked(void **state) {
    (void)state;
    evict_world e;
    saved_stream s = small(&e);
    const tamis_sequence id = saved_restore(&e, &s);
    tamis_plan *plan = e.w.plan;
    tamis_sequence out = 0;
    tamis_save_params p = saved_bare;
#define SAVE(plan, id, p, write)   tamis_plan_save(plan, id, p, write, &s, &test_error)
#define RESTORE(plan, p, read, to) tamis_plan_restore(plan, p, read, &s, to, &test_error)
    FAILS(SAVE(NULL, id, &p, saved_write), TAMIS_E_ARGUMENT, "plan is NULL");
    FAILS(SAVE(plan, id, NULL, saved_write), TAMIS_E_ARGUMENT, "params is NULL");
    FAILS(SAVE(plan, id, &p, NULL), TAMIS_E_ARGUMENT, "write is NULL");
    FAILS(SAVE(plan, 77, &p, saved_write), TAMIS_E_ARGUMENT, "no sequence 77");
    FAILS(RESTORE(NULL, &p, saved_read, &out), TAMIS_E_ARGUMENT, "plan is NULL");
    FAILS(RESTORE(plan, NULL, saved_read, &out), TAMIS_E_ARGUMENT, "params is NULL");
    FAILS(RESTORE(plan, &p, NULL, &out), TAMIS_E_ARGUMENT, "read is NULL");
    FAILS(RESTORE(plan, &p, saved_read, NULL), TAMIS_E_ARGUMENT, "out is NULL");
    p.flags = 2;
    FAILS(SAVE(plan, id, &p, saved_write), TAMIS_E_ARGUMENT, "flags 0x2: 0x1 are all");
    FAILS(RESTORE(plan, &p, saved_read, &out), TAMIS_E_ARGUMENT, "flags 0x2: 0x1 are all");
    p = saved_bare;
    p.reserved32 = 5;
    FAILS(SAVE(plan, id, &p, saved_write), TAMIS_E_ARGUMENT,
          "reserved32 of tamis_save_params is 5");
    p = saved_bare;
    p.reserved[5] = 6;
    FAILS(RESTORE(plan, &p, saved_read, &out), TAMIS_E_ARGUMENT,
          "reserved[5] of tamis_save_params is 6");
    free(s.bytes);
    evict_close(&e);
}

static void only_between_steps(void **state) {
    (void)state;
    evict_world e;
    saved_stream s = small(&e);
    const tamis_sequence id = saved_restore(&e, &s);
    const tamis_step step = {.sequences = &id, .count = 1, .exact = 1};
    OK(tamis_plan_step_begin(e.w.plan, &step, &test_error));
    FAILS(SAVE(e.w.plan, id, &saved_bare, saved_write), TAMIS_E_STATE,
          "a step on the cache is open");
    refused(&e, &s, TAMIS_E_STATE, "a step on the cache is open");
    OK(tamis_plan_step_cancel(e.w.plan, &test_error));
    e.w.cache->bounds_missing = true;
    FAILS(SAVE(e.w.plan, id, &saved_bare, saved_write), TAMIS_E_STATE,
          "tamis_cache_set_bounds must");
    refused(&e, &s, TAMIS_E_STATE, "tamis_cache_set_bounds must come first");
    e.w.cache->bounds_missing = false;
    tms_cache_find(e.w.cache, id)->torn = true;
    FAILS(SAVE(e.w.plan, id, &saved_bare, saved_write), TAMIS_E_STATE, "failed between layers");
    free(s.bytes);
    evict_close(&e);
}

static void given_up_rows_are_not_saved(void **state) {
    (void)state;
    evict_world e;
    saved_open(&e, test_device, saved_named("streaming"));
    const tamis_sequence id = saved_live(&e, saved_named("streaming"));
    const tamis_step step = {.sequences = &id, .count = 1};
    const uint64_t token = PROMPT + BEFORE;
    saved_stream s = {.size = 0};
    OK(tamis_plan_step_begin(e.w.plan, &step, &test_error));
    test_write(&e.w, 0, &token, 1);
    OK(tamis_plan_step_cancel(e.w.plan, &test_error));
    FAILS(SAVE(e.w.plan, id, &saved_bare, saved_write), TAMIS_E_STATE,
          "holds rows of a step that was given up at 33 tokens a lane");
    assert_int_equal(s.size, 0);
    evict_close(&e);
}

/* The callback cannot change the sequence that is being saved. */
typedef struct meddling {
    evict_world *e;
    tamis_sequence id;
    saved_stream s;
} meddling;

static int meddle(void *user, const void *bytes, size_t n) {
    meddling *m = user;
    FAILS(tamis_cache_truncate(m->e->w.cache, m->id, 1, &test_error), TAMIS_E_STATE,
          "is in an open step");
    FAILS(tamis_cache_remove(m->e->w.cache, m->id, &test_error), TAMIS_E_STATE,
          "is in an open step");
    return saved_write(&m->s, bytes, n);
}

static void callbacks_change_nothing(void **state) {
    (void)state;
    evict_world e;
    saved_stream s = small(&e);
    meddling m = {.e = &e, .id = saved_restore(&e, &s)};
    OK(tamis_plan_save(e.w.plan, m.id, &saved_bounded, meddle, &m, &test_error));
    saved_same(&s, &m.s);
    OK(tamis_cache_remove(e.w.cache, m.id, &test_error));
    free(m.s.bytes);
    free(s.bytes);
    evict_close(&e);
}

static void full_caches_are_left_alone(void **state) {
    (void)state;
    evict_world e;
    saved_stream s = small(&e);
    for (int i = 0; i < 2; i++)
        (void)saved_restore(&e, &s);
    refused(&e, &s, TAMIS_E_FULL,
            "the saved sequence needs 2 pages in layers 0 to 0, of which 0 are free");
    assert_true(s.at < s.size / 2); /* before any page was read */
    free(s.bytes);
    evict_close(&e);
}

/* ---- Devices that fail ----------------------------------------------------------------------- */

/* Each call of the device fails once: nothing is left, and the next try succeeds. */
static void devices_fail(void **state) {
    (void)state;
    evict_world e;
    saved_stream s = small(&e);
    const tamis_sequence id = saved_restore(&e, &s);
    tms_device *dev = e.w.context->dev;
    for (int saves = 1; saves >= 0; saves--)
        for (int sound = 0, more = 1; more; sound++) {
            saved_stream to = {.size = 0};
            const tamis_cache_stats before = test_stats(&e.w);
            tamis_sequence copy = 0;
            uint64_t n_held, n_shared;
            s.at = 0;
            faulty_begin(dev, sound, FAULTY_BEFORE);
            test_error = (tamis_error){0};
            const tamis_status status =
                saves
                    ? tamis_plan_save(e.w.plan, id, &saved_bounded, saved_write, &to, &test_error)
                    : tamis_plan_restore(e.w.plan, &saved_bare, saved_read, &s, &copy, &test_error);
            more = faulty_failed() != FAULTY_COUNT;
            faulty_pause(dev);
            assert_int_equal(status, more ? TAMIS_E_DEVICE : TAMIS_OK);
            if (more) assert_non_null(strstr(test_error.text, FAULTY_TEXT));
            if (saves && !more) saved_same(&s, &to);
            free(to.bytes);
            if (copy) OK(tamis_cache_remove(e.w.cache, copy, &test_error));
            test_unchanged(&e.w, &before);
            test_account(e.w.cache, &n_held, &n_shared);
        }
    free(s.bytes);
    evict_close(&e);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_as_documented),
        cmocka_unit_test(what_differs_is_named),
        cmocka_unit_test(other_plans_refuse),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(gone_pages_are_checked),
        cmocka_unit_test(dead_slots_are_zeros),
        cmocka_unit_test(cut_and_damaged_streams),
        cmocka_unit_test(other_versions_and_other_files),
        cmocka_unit_test(callbacks_fail),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(only_between_steps),
        cmocka_unit_test(given_up_rows_are_not_saved),
        cmocka_unit_test(callbacks_change_nothing),
        cmocka_unit_test(full_caches_are_left_alone),
        cmocka_unit_test(devices_fail),
    };
    const int code = test_begin(argc, argv);
    return code ? code : cmocka_run_group_tests(tests, NULL, NULL);
}
