/* SPDX-License-Identifier: Apache-2.0 */
/* Prefixes out of a store: the longest one whose pages are there is loaded, the rest computed, and
 * all of it is what a prefill gives, bit for bit, on models of three kinds. */
#include "host/base/dtype.h"
#include "tests/blend/blends.h"
#include "tests/faulty.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More than 32 tokens behind the pages, so that CUDA multiplies them as it does a prefill's. */
enum { PAGE = 16, PAGES = 3, KEPT = PAGE * PAGES, MOST_WIDTH = 64 };

static const rig_params plain = {.max_rows = BLEND_ROWS, .max_context = BLEND_CONTEXT};
static const tamis_record_params kept = {.dtype = TAMIS_F32};

/* On the CPU, CUDA reads a few tokens a second. */
static bool is_slow(void) {
    return strncmp(rig_device, "cuda", 4) == 0;
}

static uint32_t record(blends *b, const tamis_record_params *params, uint32_t n_tokens) {
    uint32_t stored = 99;
    RIG_OK(&b->r, tamis_runner_record_prefix(b->r.runner, b->store, params, blend_tokens, n_tokens,
                                             PAGE, &stored, &b->r.error));
    return stored;
}

static tamis_blend_params params_of(const blends *b, tamis_dtype dtype) {
    tamis_blend_params params = {.selector = TAMIS_BLEND_NONE,
                                 .check_layer = TAMIS_BLEND_NO_CHECK,
                                 .dtype = dtype,
                                 .page_tokens = PAGE};
    assert_int_equal(tamis_model_fingerprint(b->r.model, params.fingerprint, NULL), TAMIS_OK);
    return params;
}

/* Tokens as a prefix on a new sequence. */
static tamis_sequence run_prefix(blends *b, tamis_blend *blend, const int32_t *tokens, uint32_t n) {
    const tamis_blend_part part = {.tokens = tokens, .n_tokens = n, .stored = TAMIS_BLEND_PREFIX};
    const tamis_sequence sequence = rig_add(&b->r);
    RIG_OK(&b->r, tamis_runner_blend(b->r.runner, sequence, blend, &part, 1, NULL, &b->r.error));
    assert_int_equal(rig_length(&b->r, sequence), n);
    return sequence;
}

static tamis_sequence prefill(blends *b, const int32_t *tokens, uint32_t n, float *logits) {
    const tamis_sequence sequence = rig_add(&b->r);
    RIG_OK(&b->r, tamis_runner_prefill(b->r.runner, sequence, tokens, n, NULL, &b->r.error));
    blends_logits(b, logits);
    return sequence;
}

/* Both sequences hold the same bits in their first n slots. */
static void expect_same(blends *b, tamis_sequence x, tamis_sequence y, uint32_t n) {
    static float k[2][BLEND_CONTEXT * MOST_WIDTH], v[2][BLEND_CONTEXT * MOST_WIDTH];
    const tamis_model_info *info = tamis_model_describe(b->r.model);
    const tamis_sequence of[] = {x, y};
    assert_true(info->head_dim <= MOST_WIDTH);
    for (uint32_t lane = 0; lane < info->n_layers * info->n_kv_heads; lane++) {
        for (int i = 0; i < 2; i++)
            RIG_OK(&b->r, tamis_cache_read(b->r.cache, of[i], lane / info->n_kv_heads,
                                           lane % info->n_kv_heads, 0, n, k[i], v[i], &b->r.error));
        assert_memory_equal(k[0], k[1], n * info->head_dim * sizeof(float));
        assert_memory_equal(v[0], v[1], n * info->head_dim * sizeof(float));
    }
}

static void drop(blends *b, tamis_sequence *sequence) {
    RIG_OK(&b->r, tamis_cache_remove(b->r.cache, *sequence, &b->r.error));
}

static void expect_counts(const tamis_blend *blend, uint32_t found, uint32_t missed, uint32_t exact,
                          uint32_t fresh) {
    static tamis_blend_stats before;
    tamis_blend_stats now;
    tamis_blend_get_stats(blend, &now);
    if (now.prompts == 1) before = (tamis_blend_stats){.prompts = 0};
    assert_int_equal(now.parts_found - before.parts_found, found);
    assert_int_equal(now.parts_exact - before.parts_exact, found);
    assert_int_equal(now.parts_missed - before.parts_missed, missed);
    assert_int_equal(now.tokens_exact - before.tokens_exact, exact);
    assert_int_equal(now.tokens_fresh - before.tokens_fresh, fresh);
    assert_int_equal(now.tokens_hit, 0);
    before = now;
}

/* ---- The same bits --------------------------------------------------------------------------- */

/* A prompt is what its prefill is, and goes on alike. */
static void expect_prefill(blends *b, tamis_blend *blend, const int32_t *tokens, uint32_t n) {
    float wanted[BLEND_VOCABULARY], logits[BLEND_VOCABULARY];
    tamis_sequence of[2] = {prefill(b, tokens, n, wanted), run_prefix(b, blend, tokens, n)};
    blends_logits(b, logits);
    assert_memory_equal(logits, wanted, sizeof wanted);
    expect_same(b, of[0], of[1], n);
    for (int i = 0; i < 2; i++) {
        const int32_t more = tokens[3];
        RIG_OK(&b->r,
               tamis_runner_decode(b->r.runner, &of[i], 1, &more, &(int32_t){0}, &b->r.error));
        blends_logits(b, i == 0 ? wanted : logits);
    }
    assert_memory_equal(logits, wanted, sizeof wanted);
    for (int i = 0; i < 2; i++)
        drop(b, &of[i]);
}

static void try_other_texts(blends *b, tamis_blend *blend) {
    int32_t other[BLEND_ROWS];
    memcpy(other, blend_tokens, sizeof other);
    other[2 * PAGE + 1] = (other[2 * PAGE + 1] + 1) % BLEND_VOCABULARY;
    expect_prefill(b, blend, other, BLEND_ROWS);
    expect_counts(blend, 2, 1, 2 * PAGE, BLEND_ROWS - 2 * PAGE);
    if (is_slow()) return;
    other[0] = (other[0] + 1) % BLEND_VOCABULARY;
    expect_prefill(b, blend, other, BLEND_ROWS);
    expect_counts(blend, 0, 1, 0, BLEND_ROWS);
}

static void a_prefix_is_a_prefill(void **state) {
    (void)state;
    for (size_t m = 0; m < BLEND_MODELS; m++) {
        blends b;
        blends_open(&b, blend_models[m], &plain, TAMIS_F32, m == 1);
        const tamis_blend_params params = params_of(&b, TAMIS_F32);
        tamis_blend *blend = blends_make(&b, &params);
        if (!is_slow()) {
            expect_prefill(&b, blend, blend_tokens, BLEND_ROWS); /* nothing is there */
            expect_counts(blend, 0, 1, 0, BLEND_ROWS);
        }
        assert_int_equal(record(&b, &kept, KEPT + 5), PAGES);
        assert_int_equal(record(&b, &kept, KEPT + 5), 0);
        expect_prefill(&b, blend, blend_tokens, BLEND_ROWS);
        expect_counts(blend, PAGES, 1, KEPT, BLEND_ROWS - KEPT);
        if (!is_slow() || m == 0) try_other_texts(&b, blend);
        tamis_blend_destroy(&blend);
        blends_close(&b);
    }
}

/* Pages to the very end: the last token alone is computed, with the kernels of few rows. */
static void a_prompt_of_pages_alone(void **state) {
    (void)state;
    float wanted[BLEND_VOCABULARY], logits[BLEND_VOCABULARY];
    blends b;
    blends_open(&b, blend_models[0], &plain, TAMIS_F32, false);
    const tamis_blend_params params = params_of(&b, TAMIS_F32);
    tamis_blend *blend = blends_make(&b, &params);
    assert_int_equal(record(&b, &kept, KEPT), PAGES);
    tamis_sequence of[2] = {prefill(&b, blend_tokens, KEPT, wanted),
                            run_prefix(&b, blend, blend_tokens, KEPT)};
    expect_counts(blend, PAGES, 0, KEPT - 1, 1);
    blends_logits(&b, logits);
    for (size_t i = 0; i < BLEND_VOCABULARY; i++)
        assert_true(fabsf(logits[i] - wanted[i]) < 1e-4f);
    expect_same(&b, of[0], of[1], KEPT - 1);
    tamis_blend_destroy(&blend);
    blends_close(&b);
}

/* Without a page the prefix ends before it, and recording puts that page and no other. */
static void a_missing_page_ends_the_prefix(void **state) {
    (void)state;
    if (is_slow()) return; /* what the store finds does not depend on the device */
    blends b;
    uint8_t keys[PAGES][16];
    size_t n = 0;
    int removed = 0;
    tamis_chunk_id id;
    blends_open(&b, blend_models[0], &plain, TAMIS_F32, false);
    const tamis_blend_params params = params_of(&b, TAMIS_F32);
    tamis_blend *blend = blends_make(&b, &params);
    assert_int_equal(record(&b, &kept, KEPT), PAGES);
    RIG_OK(&b.r, tamis_record_id(b.r.model, &kept, blend_tokens, KEPT, &id, &b.r.error));
    RIG_OK(&b.r, tamis_prefix_keys(&id, PAGE, keys, PAGES, &n, &b.r.error));
    assert_int_equal(n, PAGES);
    RIG_OK(&b.r, tamis_store_remove_key(b.store, keys[1], &removed, &b.r.error));
    assert_int_equal(removed, 1);
    expect_prefill(&b, blend, blend_tokens, BLEND_ROWS);
    expect_counts(blend, 1, 1, PAGE, BLEND_ROWS - PAGE);
    record(&b, &kept, KEPT);
    expect_prefill(&b, blend, blend_tokens, BLEND_ROWS);
    expect_counts(blend, PAGES, 1, KEPT, BLEND_ROWS - KEPT);
    tamis_blend_destroy(&blend);
    blends_close(&b);
}

/* ---- Damage, other types --------------------------------------------------------------------- */

/* Finds the second page's plane of layer 3 damaged. */
static tamis_status read_damaged(void *user, tamis_chunk *chunk, uint32_t layer, void *k, void *v,
                                 tamis_error *error) {
    const tamis_status status = tamis_chunk_read(chunk, layer, k, v, error);
    tamis_chunk_info info;
    int *damaged = user;
    tamis_chunk_get_info(chunk, &info);
    if (status != TAMIS_OK || layer != 3 || *damaged ||
        memcmp(info.tokens, blend_tokens + PAGE, PAGE * sizeof(int32_t)) != 0)
        return status;
    *damaged = 1;
    snprintf(error->text, sizeof error->text, "damaged");
    return error->status = TAMIS_E_DAMAGED;
}

static void a_damaged_page_is_computed(void **state) {
    (void)state;
    for (int no_thread = is_slow(); no_thread < 2; no_thread++) {
        blends b;
        int damaged = 0;
        tamis_blend_stats stats;
        blends_open(&b, blend_models[1], &plain, TAMIS_F32, false);
        tamis_blend_params params = params_of(&b, TAMIS_F32);
        params.reader = read_damaged;
        params.reader_user = &damaged;
        params.flags = no_thread ? TAMIS_BLEND_NO_THREAD : 0;
        tamis_blend *blend = blends_make(&b, &params);
        assert_int_equal(record(&b, &kept, KEPT), PAGES);
        expect_prefill(&b, blend, blend_tokens, BLEND_ROWS);
        tamis_blend_get_stats(blend, &stats);
        assert_int_equal(stats.restarts, 1);
        assert_int_equal(stats.parts_damaged, 1);
        /* The pages around it are right where they stand. */
        expect_counts(blend, PAGES, 1, KEPT - PAGE, BLEND_ROWS - KEPT + PAGE);
        tamis_blend_destroy(&blend);
        blends_close(&b);
    }
}

/* Pages of f16 are rounded before they are rotated: near, and no more. */
static void pages_of_f16_are_near(void **state) {
    (void)state;
    const tamis_record_params half = {.dtype = TAMIS_F16};
    float wanted[BLEND_VOCABULARY], logits[BLEND_VOCABULARY];
    blends b;
    blends_open(&b, blend_models[0], &plain, TAMIS_F16, false);
    const tamis_blend_params params = params_of(&b, TAMIS_F16);
    tamis_blend *blend = blends_make(&b, &params);
    assert_int_equal(record(&b, &half, KEPT), PAGES);
    prefill(&b, blend_tokens, BLEND_ROWS, wanted);
    run_prefix(&b, blend, blend_tokens, BLEND_ROWS);
    expect_counts(blend, PAGES, 1, KEPT, BLEND_ROWS - KEPT);
    blends_logits(&b, logits);
    for (size_t i = 0; i < BLEND_VOCABULARY; i++)
        assert_true(fabsf(logits[i] - wanted[i]) < 0.02f);
    tamis_blend_destroy(&blend);
    blends_close(&b);
}

/* ---- Caches of other types -------------------------------------------------------------------- */

/* What a reader over its own cache finds in the store that a writer has filled over its cache, whose
 * pages and chunks of the same tokens are all there. */
static void read_of_other(const blends *writer, blends *reader) {
    const bool alike = writer->cache_dtype == reader->cache_dtype;
    tamis_store *const own = reader->store;
    const tamis_record_params record = {.sink = blend_sink,
                                        .n_sink = BLEND_SINKS,
                                        .dtype = TAMIS_F32,
                                        .cache_dtype = reader->cache_dtype};
    const tamis_blend_params params = params_of(reader, TAMIS_F32);
    tamis_chunk_id id;
    tamis_chunk *chunk = NULL;
    reader->store = writer->store;
    tamis_blend *blend = blends_make(reader, &params);
    expect_prefill(reader, blend, blend_tokens, BLEND_ROWS);
    expect_counts(blend, alike ? PAGES : 0, 1, alike ? KEPT : 0, BLEND_ROWS - (alike ? KEPT : 0));
    size_t p = 0;
    while (blend_parts[p].kind != BLEND_STORED)
        p++;
    RIG_OK(&reader->r, tamis_record_id(reader->r.model, &record, reader->parts[p].tokens,
                                       reader->parts[p].n_tokens, &id, &reader->r.error));
    RIG_OK(&reader->r, tamis_store_get(writer->store, &id, &chunk, &reader->r.error));
    assert_int_equal(chunk != NULL, alike);
    tamis_chunk_release(&chunk);
    tamis_blend_destroy(&blend);
    reader->store = own;
}

/* Attention reads the cache, so its type decides K and V of all layers but the first: what was
 * computed over one is a miss over another, and each prompt is a prefill. */
static void caches_share_nothing(void **state) {
    (void)state;
    static blends all[TMS_DTYPES];
    if (strcmp(rig_device, "reference") != 0) return; /* the key does not depend on the device */
    for (int i = 0; i < TMS_DTYPES; i++) {
        rig_params params = plain;
        params.dtype = (tamis_dtype)i;
        blends_open(&all[i], blend_models[0], &params, TAMIS_F32, false);
        const tamis_record_params pages = {.dtype = TAMIS_F32, .cache_dtype = params.dtype};
        assert_int_equal(record(&all[i], &pages, KEPT), PAGES);
    }
    for (int w = 0; w < TMS_DTYPES; w++)
        for (int r = 0; r < TMS_DTYPES; r++)
            read_of_other(&all[w], &all[r]);
    for (int i = 0; i < TMS_DTYPES; i++)
        blends_close(&all[i]);
}

/* ---- A failing device ------------------------------------------------------------------------ */

/* Each call fails once while pages are recorded: none is stored, and no sequence is left. */
static void fail_recording(blends *b, tms_device *dev) {
    tamis_cache_stats before, after;
    tamis_store_stats stats;
    tamis_status status = TAMIS_E_DEVICE;
    uint32_t stored = 0;
    int n = 0;
    tamis_cache_get_stats(b->r.cache, &before);
    for (; status != TAMIS_OK; n += is_slow() ? 61 : 1) {
        faulty_begin(dev, n, FAULTY_BEFORE);
        status = tamis_runner_record_prefix(b->r.runner, b->store, &kept, blend_tokens, KEPT, PAGE,
                                            &stored, &b->r.error);
        faulty_pause(dev);
        if (status == TAMIS_OK) break;
        rig_refused(&b->r.error, status, FAULTY_STATUS, FAULTY_TEXT, "record");
        assert_int_equal(stored, 0);
        tamis_cache_get_stats(b->r.cache, &after);
        assert_int_equal(after.bytes_held, before.bytes_held);
    }
    assert_true(n > 40);
    assert_int_equal(stored, PAGES);
    tamis_store_get_stats(b->store, &stats);
    assert_int_equal(stats.tiers[TAMIS_TIER_MEMORY].pinned_bytes, 0);
}

/* And while they are loaded: the sequence is as before, or all of it is there. */
static void fail_loading(blends *b, tms_device *dev) {
    const tamis_blend_params params = params_of(b, TAMIS_F32);
    const tamis_blend_part part = {
        .tokens = blend_tokens, .n_tokens = BLEND_ROWS, .stored = TAMIS_BLEND_PREFIX};
    float wanted[BLEND_VOCABULARY], logits[BLEND_VOCABULARY];
    tamis_store_stats stats;
    tamis_status status = TAMIS_E_DEVICE;
    int n = 0;
    tamis_sequence of = prefill(b, blend_tokens, BLEND_ROWS, wanted);
    drop(b, &of);
    tamis_blend *blend = blends_make(b, &params);
    of = run_prefix(b, blend, blend_tokens, BLEND_ROWS);
    RIG_OK(&b->r, tamis_cache_truncate(b->r.cache, of, 0, &b->r.error));
    for (; status != TAMIS_OK; n += is_slow() ? 61 : 1) {
        faulty_begin(dev, n, FAULTY_BEFORE);
        status = tamis_runner_blend(b->r.runner, of, blend, &part, 1, NULL, &b->r.error);
        faulty_pause(dev);
        if (status == TAMIS_OK) break;
        rig_refused(&b->r.error, status, FAULTY_STATUS, FAULTY_TEXT, "blend");
        if (rig_length(&b->r, of) > 0)
            RIG_OK(&b->r, tamis_cache_truncate(b->r.cache, of, 0, &b->r.error));
    }
    assert_true(n > 80);
    blends_logits(b, logits);
    assert_memory_equal(logits, wanted, sizeof wanted);
    tamis_blend_destroy(&blend);
    tamis_store_get_stats(b->store, &stats);
    assert_int_equal(stats.tiers[TAMIS_TIER_MEMORY].pinned_bytes, 0);
}

static void a_failing_device_changes_nothing(void **state) {
    (void)state;
    blends b;
    uint8_t fingerprint[16];
    blends_open(&b, blend_models[0], &plain, TAMIS_F32, false);
    tms_device *dev = faulty_device(b.r.context);
    RIG_OK(&b.r, tamis_model_fingerprint(b.r.model, fingerprint, &b.r.error));
    fail_recording(&b, dev);
    fail_loading(&b, dev);
    blends_close(&b);
}

/* ---- With chunks; misuse --------------------------------------------------------------------- */

/* A prefix, a chunk that stands elsewhere, and a question: hits behind exact rows. */
static void a_prefix_before_chunks(void **state) {
    (void)state;
    blends b;
    tamis_blend_stats stats;
    blends_open(&b, blend_models[0], &plain, TAMIS_F32, false);
    const tamis_record_params behind = {
        .sink = blend_sink, .n_sink = BLEND_SINKS, .dtype = TAMIS_F32};
    tamis_blend_params params = params_of(&b, TAMIS_F32);
    params.selector = TAMIS_BLEND_HKVD;
    params.check_layer = 0;
    params.sink = blend_sink;
    params.n_sink = BLEND_SINKS;
    const int32_t *text = blend_tokens + 40;
    RIG_OK(&b.r, tamis_runner_record(b.r.runner, b.store, &behind, text, 20, &b.r.error));
    assert_int_equal(record(&b, &kept, KEPT), PAGES);
    const tamis_blend_part parts[] = {
        {.tokens = blend_tokens, .n_tokens = KEPT + 3, .stored = TAMIS_BLEND_PREFIX},
        {.tokens = text, .n_tokens = 20, .stored = TAMIS_BLEND_CHUNK},
        {.tokens = blend_tokens, .n_tokens = 5}};
    tamis_blend *blend = blends_make(&b, &params);
    const tamis_sequence sequence = rig_add(&b.r);
    RIG_OK(&b.r, tamis_runner_blend(b.r.runner, sequence, blend, parts, 3, NULL, &b.r.error));
    tamis_blend_get_stats(blend, &stats);
    assert_int_equal(stats.parts_found, PAGES + 1);
    assert_int_equal(stats.parts_exact, PAGES);
    assert_int_equal(stats.tokens_exact, KEPT);
    assert_int_equal(stats.tokens_hit, 20);
    assert_int_equal(stats.tokens_fresh, 3 + 5);
    assert_int_equal(stats.tokens_selected, 3);
    tamis_blend_destroy(&blend);
    /* All is computed: a prefill, and nothing is looked up. */
    params.share = 1;
    blend = blends_make(&b, &params);
    RIG_OK(&b.r, tamis_runner_blend(b.r.runner, rig_add(&b.r), blend, parts, 3, NULL, &b.r.error));
    tamis_blend_get_stats(blend, &stats);
    assert_int_equal(stats.parts_found + stats.parts_missed, 0);
    assert_int_equal(stats.tokens_fresh, KEPT + 3 + 20 + 5);
    tamis_blend_destroy(&blend);
    blends_close(&b);
}

static void misuse_is_refused(void **state) {
    (void)state;
    blends b;
    uint32_t stored = 0;
    blends_open(&b, blend_models[0], &plain, TAMIS_F32, false);
    tamis_blend_params params = params_of(&b, TAMIS_F32);
    tamis_blend *blend = blends_make(&b, &params);
    const tamis_sequence sequence = rig_add(&b.r);
    tamis_blend_part parts[] = {
        {.tokens = blend_tokens, .n_tokens = 4},
        {.tokens = blend_tokens, .n_tokens = 40, .stored = TAMIS_BLEND_PREFIX}};
#define BLEND(from, n, text)                                                                       \
    RIG_REFUSED(&b.r, TAMIS_E_ARGUMENT, text,                                                      \
                tamis_runner_blend(b.r.runner, sequence, blend, from, n, NULL, &b.r.error))
    BLEND(parts, 2, "part 1 is a prefix; 4 tokens stand before it");
    parts[0].stored = 3;
    BLEND(parts, 1, "part 0: stored is 3; there are 0 to 2");
    parts[0].stored = -1;
    BLEND(parts, 1, "part 0: stored is -1");
    RIG_OK(&b.r, tamis_runner_prefill(b.r.runner, sequence, blend_tokens, 7, NULL, &b.r.error));
    BLEND(parts + 1, 1, "part 0 is a prefix; 7 tokens stand before it");
    tamis_blend_destroy(&blend);
    params.page_tokens = 0;
    blend = blends_make(&b, &params);
    BLEND(parts + 1, 1, "part 0 is a prefix; page_tokens of the blend is 0");
    tamis_blend_destroy(&blend);
    const tamis_record_params behind = {
        .sink = blend_sink, .n_sink = BLEND_SINKS, .dtype = TAMIS_F32};
#define RECORD(params, page, text)                                                                 \
    RIG_REFUSED(&b.r, TAMIS_E_ARGUMENT, text,                                                      \
                tamis_runner_record_prefix(b.r.runner, b.store, params, blend_tokens, KEPT, page,  \
                                           &stored, &b.r.error))
    RECORD(&kept, 0, "page_tokens is 0");
    RECORD(&behind, PAGE, "n_sink of a prefix is");
    RECORD(NULL, PAGE, "params is NULL");
    RIG_OK(&b.r, tamis_runner_record_prefix(b.r.runner, b.store, &kept, blend_tokens, PAGE - 1,
                                            PAGE, NULL, &b.r.error));
    blends_close(&b);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prefix_is_a_prefill),
        cmocka_unit_test(a_prompt_of_pages_alone),
        cmocka_unit_test(a_missing_page_ends_the_prefix),
        cmocka_unit_test(a_damaged_page_is_computed),
        cmocka_unit_test(pages_of_f16_are_near),
        cmocka_unit_test(caches_share_nothing),
        cmocka_unit_test(a_failing_device_changes_nothing),
        cmocka_unit_test(a_prefix_before_chunks),
        cmocka_unit_test(misuse_is_refused),
    };
    if (!rig_arguments(argc, argv)) return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
