/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that a runner puts into a store: loaded where they were computed, they are what a prefill
 * writes, bit for bit; and a call that fails leaves nothing. */
#include "host/reference/convert.h"
#include "lib/model/model.h"
#include "tests/data/blend_cases.h"
#include "tests/faulty.h"
#include "tests/model/rig.h"
#include "tests/model/vectors.h"
#include <tamis/record.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SINK = 3, TOKENS = 33, ALL = SINK + TOKENS, MOST_WIDTH = 256 };

/* A model on the device, a plan that takes loads of all rows in one step, and a store in memory. */
typedef struct world {
    rig r;
    tamis_plan *plan;
    tamis_store *store;
    uint32_t n_layers, width;
    int32_t tokens[ALL];
} world;

static const char *const models[] = {"blends/llama.gguf", "blends/qwen3.gguf", "blends/window.gguf",
                                     "models/qwen2.gguf", "tiny.gguf"};
enum { MODELS = sizeof models / sizeof *models };

static tamis_store *new_store(uint64_t bytes) {
    const tamis_store_params params = {.memory_bytes = bytes};
    tamis_store *store = NULL;
    assert_int_equal(tamis_store_create(&params, &store, NULL), TAMIS_OK);
    return store;
}

static void open_world_with(world *w, const char *file, tamis_plan_params plan, uint64_t capacity) {
    *w = (world){0};
    rig_open(&w->r, &(rig_params){.file = file,
                                  .max_context = ALL,
                                  .capacity_tokens = capacity,
                                  .eviction = plan.eviction});
    tamis_runner_destroy(&w->r.runner);
    plan.max_context = ALL;
    RIG_OK(&w->r, tamis_runner_create(w->r.model, w->r.cache, &plan, &w->r.runner, &w->r.error));
    plan.max_rows = ALL;
    plan.load_dtypes = 1u << TAMIS_F32 | 1u << TAMIS_F16 | 1u << TAMIS_BF16;
    RIG_OK(&w->r, tamis_plan_create(w->r.cache, &plan, &w->plan, &w->r.error));
    const tamis_model_info *info = tamis_model_describe(w->r.model);
    w->n_layers = info->n_layers;
    w->width = info->n_kv_heads * info->head_dim;
    assert_true(w->width <= MOST_WIDTH);
    for (uint32_t i = 0; i < ALL; ++i)
        w->tokens[i] = (int32_t)((7 * i * i + 3 * i + 5) % info->n_vocab);
    w->store = new_store(64 << 20);
}

static void open_world(world *w, const char *file, uint32_t max_rows) {
    open_world_with(w, file, (tamis_plan_params){.max_rows = max_rows}, 256);
}

static void close_world(world *w) {
    tamis_store_destroy(&w->store);
    tamis_plan_destroy(&w->plan);
    rig_close(&w->r);
}

static tamis_record_params behind(const world *w, uint32_t n_sink, tamis_dtype dtype) {
    return (tamis_record_params){.sink = w->tokens, .n_sink = n_sink, .dtype = dtype};
}

/* Records tokens [n_sink, n_sink + n) behind the ones before them. */
static void record(world *w, uint32_t n_sink, uint32_t n, tamis_dtype dtype) {
    const tamis_record_params params = behind(w, n_sink, dtype);
    RIG_OK(&w->r,
           tamis_runner_record(w->r.runner, w->store, &params, w->tokens + n_sink, n, &w->r.error));
}

static tamis_chunk *get(world *w, uint32_t n_sink, uint32_t n, tamis_dtype dtype) {
    const tamis_record_params params = behind(w, n_sink, dtype);
    tamis_chunk_id id;
    tamis_chunk *chunk = NULL;
    RIG_OK(&w->r, tamis_record_id(w->r.model, &params, w->tokens + n_sink, n, &id, &w->r.error));
    RIG_OK(&w->r, tamis_store_get(w->store, &id, &chunk, &w->r.error));
    return chunk;
}

/* The sizes of the store and of the cache, which a call that fails must leave. */
typedef struct sizes {
    uint64_t records, bytes, pages, sequences;
} sizes;

static sizes sizes_of(const world *w) {
    tamis_store_stats stored;
    tamis_cache_stats cached;
    tamis_store_get_stats(w->store, &stored);
    tamis_cache_get_stats(w->r.cache, &cached);
    return (sizes){stored.tiers[0].records, stored.tiers[0].bytes, cached.pages_held,
                   cached.sequences};
}

static void check_sizes(const world *w, sizes wanted) {
    const sizes now = sizes_of(w);
    assert_memory_equal(&now, &wanted, sizeof now);
}

/* ---- What is stored, loaded -------------------------------------------------------------------- */

/* Puts a chunk's planes into rows [first, first + n) of every layer of the open step. */
static void load(world *w, tamis_chunk *chunk, uint32_t first) {
    tamis_chunk_info info;
    tamis_buffer *buffers[2] = {NULL, NULL};
    const tamis_model *model = w->r.model;
    tamis_chunk_get_info(chunk, &info);
    void *planes[2] = {malloc(info.plane_bytes), malloc(info.plane_bytes)};
    for (int i = 0; i < 2; ++i)
        RIG_OK(&w->r,
               tamis_buffer_create(w->r.context, info.plane_bytes, &buffers[i], &w->r.error));
    for (uint32_t layer = 0; layer < w->n_layers; ++layer) {
        RIG_OK(&w->r, tamis_chunk_read(chunk, layer, planes[0], planes[1], &w->r.error));
        for (int i = 0; i < 2; ++i)
            RIG_OK(&w->r,
                   tamis_buffer_write(buffers[i], 0, planes[i], info.plane_bytes, &w->r.error));
        const tms_weight *norm = &model->weights.layers[layer].weights[TMS_ATTN_K_NORM];
        const tamis_stored_rows rows = {.k = {.buffer = buffers[0], .dtype = info.shape.dtype},
                                        .v = {.buffer = buffers[1], .dtype = info.shape.dtype},
                                        .rotation = model->rotations[TMS_ROTATION_GLOBAL].rotation,
                                        .k_norm = {.buffer = norm->buffer},
                                        .eps = model->config.norm_eps};
        RIG_OK(&w->r,
               tamis_plan_load_rows(w->plan, layer, first, info.n_tokens, &rows, &w->r.error));
    }
    for (int i = 0; i < 2; ++i) {
        tamis_buffer_destroy(&buffers[i]);
        free(planes[i]);
    }
}

/* A sequence of the chunks' K and V, one behind the other. */
static tamis_sequence loaded(world *w, tamis_chunk **chunks, uint32_t n) {
    const tamis_sequence sequence = rig_add(&w->r);
    tamis_chunk_info info;
    uint32_t rows = 0, first = 0;
    for (uint32_t i = 0; i < n; ++i) {
        tamis_chunk_get_info(chunks[i], &info);
        rows += info.n_tokens;
    }
    const tamis_step step = {.sequences = &sequence, .rows = &rows, .count = 1, .exact = 1};
    RIG_OK(&w->r, tamis_plan_step_begin(w->plan, &step, &w->r.error));
    for (uint32_t i = 0; i < n; ++i) {
        load(w, chunks[i], first);
        tamis_chunk_get_info(chunks[i], &info);
        first += info.n_tokens;
    }
    RIG_OK(&w->r, tamis_plan_step_end(w->plan, &w->r.error));
    return sequence;
}

/* The largest distance between K and V of two sequences, as a part of the largest value. */
static double distance(world *w, tamis_sequence a, tamis_sequence b, uint32_t n) {
    static float values[2][2][ALL * MOST_WIDTH];
    const tamis_model_info *info = tamis_model_describe(w->r.model);
    const tamis_sequence ids[] = {a, b};
    double most = 0, largest = 0;
    for (uint32_t layer = 0; layer < w->n_layers; ++layer)
        for (uint32_t head = 0; head < info->n_kv_heads; ++head) {
            for (int i = 0; i < 2; ++i)
                RIG_OK(&w->r, tamis_cache_read(w->r.cache, ids[i], layer, head, 0, n, values[i][0],
                                               values[i][1], &w->r.error));
            for (int part = 0; part < 2; ++part)
                for (uint32_t i = 0; i < n * info->head_dim; ++i) {
                    most = fmax(most, fabs((double)values[0][part][i] - values[1][part][i]));
                    largest = fmax(largest, fabs((double)values[0][part][i]));
                }
        }
    assert_true(largest > 0.1);
    return most / largest;
}

/* Records and loads what a prefill of one step writes: `n_sink` tokens are a chunk of their own, and
 * the sink of the others. */
static double recorded_distance(world *w, uint32_t n_sink, tamis_dtype dtype) {
    tamis_chunk *chunks[2] = {NULL, NULL};
    const uint32_t n = n_sink ? 2 : 1, rest = ALL - n_sink;
    if (n_sink) record(w, 0, n_sink, dtype);
    record(w, n_sink, rest, dtype);
    if (n_sink) assert_non_null(chunks[0] = get(w, 0, n_sink, dtype));
    assert_non_null(chunks[n - 1] = get(w, n_sink, rest, dtype));
    const tamis_sequence a = rig_add(&w->r), b = loaded(w, chunks, n);
    RIG_OK(&w->r, tamis_runner_prefill(w->r.runner, a, w->tokens, ALL, NULL, &w->r.error));
    const double d = distance(w, a, b, ALL);
    for (uint32_t i = 0; i < n; ++i)
        tamis_chunk_release(&chunks[i]);
    RIG_OK(&w->r, tamis_cache_remove(w->r.cache, a, &w->r.error));
    RIG_OK(&w->r, tamis_cache_remove(w->r.cache, b, &w->r.error));
    return d;
}

/* Bit for bit in f32, in one step and in several; narrower planes are rounded once. */
static void test_same_as_prefill(void **state) {
    (void)state;
    for (size_t i = 0; i < MODELS; ++i)
        for (uint32_t max_rows = 11; max_rows <= ALL; max_rows += ALL - 11) {
            world w;
            open_world(&w, models[i], max_rows);
            assert_true(recorded_distance(&w, 0, TAMIS_F32) == 0);
            const double f16 = recorded_distance(&w, 0, TAMIS_F16);
            const double bf16 = recorded_distance(&w, 0, TAMIS_BF16);
            assert_true(f16 > 0 && f16 < 0x1p-10 && bf16 > 0x1p-11 && bf16 < 0x1p-7);
            close_world(&w);
        }
}

/* The sink's tokens alone come by the kernels for few rows, which may round inputs of quantised
 * weights to 16 bits. */
static void test_sink(void **state) {
    (void)state;
    for (size_t i = 0; i < MODELS; ++i) {
        world w;
        open_world(&w, models[i], ALL);
        assert_true(recorded_distance(&w, SINK, TAMIS_F32) < 2e-4);
        assert_null(get(&w, 0, TOKENS, TAMIS_F32));
        assert_null(get(&w, SINK, TOKENS, TAMIS_F16));
        close_world(&w);
    }
}

/* Rows behind the sink are those of the whole step, bit for bit, whatever steps cut. */
static void test_planes_behind_sink(void **state) {
    (void)state;
    static float whole[2][ALL * MOST_WIDTH], cut[2][ALL * MOST_WIDTH];
    for (uint32_t max_rows = 2; max_rows <= ALL; max_rows += 17) {
        world w;
        open_world(&w, "blends/qwen3.gguf", max_rows);
        record(&w, 0, ALL, TAMIS_F32);
        record(&w, SINK, TOKENS, TAMIS_F32);
        tamis_chunk *a = get(&w, 0, ALL, TAMIS_F32), *b = get(&w, SINK, TOKENS, TAMIS_F32);
        assert_non_null(a);
        assert_non_null(b);
        for (uint32_t layer = 0; layer < w.n_layers; ++layer) {
            RIG_OK(&w.r, tamis_chunk_read(a, layer, whole[0], whole[1], &w.r.error));
            RIG_OK(&w.r, tamis_chunk_read(b, layer, cut[0], cut[1], &w.r.error));
            for (int part = 0; part < 2; ++part)
                assert_memory_equal(whole[part] + SINK * w.width, cut[part],
                                    TOKENS * w.width * sizeof(float));
        }
        tamis_chunk_release(&a);
        tamis_chunk_release(&b);
        close_world(&w);
    }
}

/* f16 and bf16 are the f32 rows rounded as the reference rounds them. */
static void test_narrow(void **state) {
    (void)state;
    static float wide[2][ALL * MOST_WIDTH];
    static uint16_t narrow[2][ALL * MOST_WIDTH], wanted[ALL * MOST_WIDTH];
    world w;
    open_world(&w, "blends/llama.gguf", ALL);
    record(&w, 0, ALL, TAMIS_F32);
    for (tamis_dtype dtype = TAMIS_F16; dtype <= TAMIS_BF16; ++dtype) {
        record(&w, 0, ALL, dtype);
        tamis_chunk *from = get(&w, 0, ALL, TAMIS_F32), *to = get(&w, 0, ALL, dtype);
        assert_non_null(from);
        assert_non_null(to);
        for (uint32_t layer = 0; layer < w.n_layers; ++layer) {
            RIG_OK(&w.r, tamis_chunk_read(from, layer, wide[0], wide[1], &w.r.error));
            RIG_OK(&w.r, tamis_chunk_read(to, layer, narrow[0], narrow[1], &w.r.error));
            for (int part = 0; part < 2; ++part) {
                tms_store_row(dtype, wanted, 0, ALL * w.width, wide[part]);
                assert_memory_equal(narrow[part], wanted, ALL * w.width * sizeof *wanted);
            }
        }
        tamis_chunk_release(&from);
        tamis_chunk_release(&to);
    }
    close_world(&w);
}

/* ---- What a sequence holds ------------------------------------------------------------------- */

static tamis_status record_sequence(world *w, tamis_sequence sequence, uint32_t n_sink, uint32_t n,
                                    tamis_dtype dtype) {
    const tamis_record_params params = behind(w, n_sink, dtype);
    return tamis_runner_record_sequence(w->r.runner, w->store, &params, sequence,
                                        w->tokens + n_sink, n, &w->r.error);
}

/* What was read out of the cache and loaded again is what it was: the sink's own rows are recorded
 * as a chunk, too. */
static double held_distance(world *w, tamis_sequence a, tamis_dtype dtype) {
    tamis_chunk *chunks[2];
    RIG_OK(&w->r, record_sequence(w, a, 0, SINK, dtype));
    RIG_OK(&w->r, record_sequence(w, a, SINK, TOKENS, dtype));
    assert_non_null(chunks[0] = get(w, 0, SINK, dtype));
    assert_non_null(chunks[1] = get(w, SINK, TOKENS, dtype));
    const tamis_sequence b = loaded(w, chunks, 2);
    const double d = distance(w, a, b, ALL);
    tamis_chunk_release(&chunks[0]);
    tamis_chunk_release(&chunks[1]);
    RIG_OK(&w->r, tamis_cache_remove(w->r.cache, b, &w->r.error));
    return d;
}

/* Under a norm of heads, as qwen3's, up to its eps beside the mean square. */
static void test_sequence(void **state) {
    (void)state;
    for (size_t i = 0; i < MODELS; ++i)
        for (uint32_t max_rows = 11; max_rows <= ALL; max_rows += ALL - 11) {
            world w;
            open_world(&w, models[i], max_rows);
            const tamis_sequence a = rig_add(&w.r);
            RIG_OK(&w.r, tamis_runner_prefill(w.r.runner, a, w.tokens, ALL, NULL, &w.r.error));
            const double f32 = held_distance(&w, a, TAMIS_F32);
            const double f16 = held_distance(&w, a, TAMIS_F16);
            const double bf16 = held_distance(&w, a, TAMIS_BF16);
            if (f32 > 1e-5 || f16 > 0x1p-10 || bf16 < 0x1p-11 || bf16 > 0x1p-7)
                fail_msg("%s, %u rows: %g, %g, %g", models[i], max_rows, f32, f16, bf16);
            close_world(&w);
        }
}

/* A sequence with a prompt of as many tokens as a lane may hold under streaming in every step. */
static tamis_sequence open_full_lanes(world *w) {
    tamis_eviction eviction;
    tamis_eviction_default(TAMIS_EVICT_STREAMING, &eviction);
    eviction.budget = 20;
    open_world_with(w, "blends/llama.gguf",
                    (tamis_plan_params){.max_rows = 32, .eviction = eviction}, 256);
    const tamis_sequence a = rig_add(&w->r);
    RIG_OK(&w->r, tamis_runner_prefill(w->r.runner, a, w->tokens, 20, NULL, &w->r.error));
    RIG_OK(&w->r, record_sequence(w, a, SINK, 17, TAMIS_F32));
    return a;
}

/* A decode step takes a token's slot, also one that is given up: then each lane holds as many tokens
 * as the sequence has, but not the same. */
static void test_sequence_that_lost_tokens(void **state) {
    (void)state;
    for (int given_up = 0; given_up < 2; ++given_up) {
        world w;
        const tamis_sequence a = open_full_lanes(&w);
        tamis_plan *plan = tamis_runner_plan(w.r.runner);
        const tamis_step step = {.sequences = &a, .count = 1};
        tamis_buffer *row = NULL;
        RIG_OK(&w.r, tamis_buffer_create(w.r.context, MOST_WIDTH * 4, &row, &w.r.error));
        const tamis_rows k = {.buffer = row};
        const sizes s = sizes_of(&w);
        if (given_up) {
            RIG_OK(&w.r, tamis_plan_step_begin(plan, &step, &w.r.error));
            RIG_OK(&w.r, tamis_plan_write(plan, 0, &k, &k, &w.r.error));
            RIG_REFUSED(&w.r, TAMIS_E_STATE, "step", record_sequence(&w, a, SINK, 9, TAMIS_F32));
            RIG_OK(&w.r, tamis_plan_step_cancel(plan, &w.r.error));
            assert_int_equal(rig_length(&w.r, a), 20);
        } else {
            RIG_OK(&w.r, tamis_runner_decode(w.r.runner, &a, 1, w.tokens + 20, NULL, &w.r.error));
        }
        RIG_REFUSED(&w.r, TAMIS_E_STATE, "the sequence has lost tokens",
                    record_sequence(&w, a, SINK, 9, TAMIS_F32));
        assert_int_equal(sizes_of(&w).records, s.records);
        tamis_buffer_destroy(&row);
        close_world(&w);
    }
}

static void test_sequence_refused(void **state) {
    (void)state;
    world w;
    open_world(&w, "blends/llama.gguf", 16);
    const tamis_sequence b = rig_add(&w.r);
    const tamis_record_params params = behind(&w, SINK, TAMIS_F32);
    const sizes s = sizes_of(&w);
    RIG_REFUSED(&w.r, TAMIS_E_ARGUMENT, "1 tokens behind a sink of 3; the sequence has 0",
                record_sequence(&w, b, SINK, 1, TAMIS_F32));
    RIG_OK(&w.r, tamis_runner_prefill(w.r.runner, b, w.tokens, 20, NULL, &w.r.error));
    RIG_REFUSED(&w.r, TAMIS_E_ARGUMENT, "18 tokens behind a sink of 3; the sequence has 20",
                record_sequence(&w, b, SINK, 18, TAMIS_F32));
    RIG_REFUSED(&w.r, TAMIS_E_ARGUMENT, "no tokens", record_sequence(&w, b, SINK, 0, TAMIS_F32));
    RIG_REFUSED(
        &w.r, TAMIS_E_ARGUMENT, "sequence 999",
        tamis_runner_record_sequence(w.r.runner, w.store, &params, 999, w.tokens, 3, &w.r.error));
    assert_int_equal(sizes_of(&w).records, s.records);
    close_world(&w);
}

/* A prompt of blends that is computed plainly has the logits of the case in which all rows are. */
static void test_plain_prompt(void **state) {
    (void)state;
    for (size_t i = 0; i < BLEND_MODELS; ++i) {
        rig r;
        char file[64];
        float logits[BLEND_VOCABULARY];
        snprintf(file, sizeof file, "blends/%s", blend_models[i]);
        float *all = vectors_floats(file, "all.logits", BLEND_VOCABULARY);
        snprintf(file, sizeof file, "blends/%s.gguf", blend_models[i]);
        rig_open(&r, &(rig_params){.file = file});
        assert_int_equal(tamis_model_describe(r.model)->n_layers, BLEND_LAYERS);
        const tamis_sequence a = rig_add(&r);
        RIG_OK(&r, tamis_runner_prefill(r.runner, a, blend_tokens, BLEND_ROWS, NULL, &r.error));
        RIG_OK(&r, tamis_runner_logits(r.runner, 0, logits, &r.error));
        for (int j = 0; j < BLEND_VOCABULARY; ++j)
            if (!(fabsf(logits[j] - all[j]) < 2e-3f))
                fail_msg("%s: logit %d is %g, not %g", file, j, (double)logits[j], (double)all[j]);
        free(all);
        rig_close(&r);
    }
}

/* ---- What stays as it was ---------------------------------------------------------------------- */

static tamis_status refuse_to_see(void *user, const tamis_attention_rows *rows,
                                  tamis_error *error) {
    (void)user;
    (void)rows;
    strcpy(error->text, "seen");
    return error->status = TAMIS_E_STATE;
}

/* Sequences, logits, observer; and the sink's tokens and the salt make another record. */
static void test_others_stay(void **state) {
    (void)state;
    world w;
    float before[64], after[64];
    tamis_chunk_id id[5];
    open_world(&w, "blends/llama.gguf", 16);
    const tamis_sequence a = rig_add(&w.r), b = rig_add(&w.r);
    RIG_OK(&w.r, tamis_runner_prefill(w.r.runner, a, w.tokens, 20, NULL, &w.r.error));
    RIG_OK(&w.r, tamis_runner_prefill(w.r.runner, b, w.tokens, 20, NULL, &w.r.error));
    RIG_OK(&w.r, tamis_runner_logits(w.r.runner, 0, before, &w.r.error));
    sizes s = sizes_of(&w);
    tamis_runner_observe(w.r.runner, refuse_to_see, NULL);
    record(&w, SINK, TOKENS, TAMIS_F32);
    const sizes now = sizes_of(&w);
    s.records = now.records;
    s.bytes = now.bytes;
    check_sizes(&w, s);
    assert_int_equal(now.records, 1);
    RIG_REFUSED(&w.r, TAMIS_E_STATE, "seen",
                tamis_runner_prefill(w.r.runner, b, w.tokens, 2, NULL, &w.r.error));
    tamis_runner_observe(w.r.runner, NULL, NULL);
    assert_true(distance(&w, a, b, 20) == 0);
    RIG_OK(&w.r, tamis_cache_truncate(w.r.cache, b, 19, &w.r.error));
    RIG_OK(&w.r, tamis_runner_prefill(w.r.runner, b, w.tokens + 19, 1, NULL, &w.r.error));
    record(&w, 0, TOKENS, TAMIS_F32);
    RIG_OK(&w.r, tamis_runner_logits(w.r.runner, 0, after, &w.r.error));
    for (int i = 0; i < 48; ++i)
        assert_true(fabsf(before[i] - after[i]) < 1e-4f);
    tamis_record_params params = behind(&w, SINK, TAMIS_F32);
    for (int i = 0; i < 5; ++i) {
        const int32_t others[SINK] = {5, 6, 7};
        params.sink = i == 1 ? others : w.tokens;
        params.salt[3] = i == 2;
        params.n_sink = i == 3 ? 0 : SINK;
        params.cache_dtype = i == 4 ? TAMIS_K8V4 : TAMIS_F32;
        RIG_OK(&w.r, tamis_record_id(w.r.model, &params, w.tokens, 4, &id[i], &w.r.error));
        for (int j = 0; j < i; ++j)
            assert_true(memcmp(id[i].fingerprint, id[j].fingerprint, 16) ||
                        memcmp(id[i].salt, id[j].salt, 16) ||
                        id[i].shape.cache_dtype != id[j].shape.cache_dtype);
    }
    uint8_t fingerprint[16];
    RIG_OK(&w.r, tamis_model_fingerprint(w.r.model, fingerprint, &w.r.error));
    assert_memory_equal(fingerprint, id[3].fingerprint, 16);
    close_world(&w);
}

static void test_refused(void **state) {
    (void)state;
    world w;
    open_world(&w, "blends/llama.gguf", 16);
    const sizes s = sizes_of(&w);
    tamis_runner *runner = w.r.runner;
    tamis_error *error = &w.r.error;
    tamis_record_params params = behind(&w, SINK, TAMIS_F32);
    int32_t bad[4] = {1, 2, 48, 3};
#define REFUSED(status, part, tokens, n)                                                           \
    RIG_REFUSED(&w.r, status, part, tamis_runner_record(runner, w.store, &params, tokens, n, error))
    REFUSED(TAMIS_E_ARGUMENT, "no tokens", w.tokens, 0);
    REFUSED(TAMIS_E_ARGUMENT, "tokens is NULL", NULL, 3);
    REFUSED(TAMIS_E_ARGUMENT, "token 48 at place 2 is outside the vocabulary of 48", bad, 4);
    REFUSED(TAMIS_E_ARGUMENT, "34 tokens behind a sink of 3; max_context is 36", w.tokens, 34);
    params.sink = bad;
    REFUSED(TAMIS_E_ARGUMENT, "token 48 at place 2", w.tokens, 4);
    params.sink = NULL;
    REFUSED(TAMIS_E_ARGUMENT, "sink is NULL, n_sink is 3", w.tokens, 4);
    params.n_sink = 0;
    params.dtype = (tamis_dtype)77;
    REFUSED(TAMIS_E_ARGUMENT, "dtype of the chunk is 77", w.tokens, 4);
    params.dtype = TAMIS_F32;
    params.cache_dtype = TAMIS_Q8;
    REFUSED(TAMIS_E_ARGUMENT, "cache_dtype of the record is 3 (q8); the runner's cache is f32",
            w.tokens, 4);
    params.cache_dtype = TAMIS_F32;
    params.reserved[5] = 6;
    REFUSED(TAMIS_E_ARGUMENT, "reserved[5] of tamis_record_params is 6", w.tokens, 4);
    params.reserved[5] = 0;
    params.tiers = 1u << TAMIS_TIER_DISK;
    REFUSED(TAMIS_E_ARGUMENT, "tier", w.tokens, 4);
    params.tiers = 0;
    RIG_REFUSED(&w.r, TAMIS_E_ARGUMENT, "runner is NULL",
                tamis_runner_record(NULL, w.store, &params, w.tokens, 4, error));
    RIG_REFUSED(&w.r, TAMIS_E_ARGUMENT, "store is NULL",
                tamis_runner_record(runner, NULL, &params, w.tokens, 4, error));
    RIG_REFUSED(&w.r, TAMIS_E_ARGUMENT, "params is NULL",
                tamis_runner_record(runner, w.store, NULL, w.tokens, 4, error));
    check_sizes(&w, s);
    close_world(&w);
    open_world_with(&w, "blends/llama.gguf", (tamis_plan_params){.attention.soft_cap = 30}, 256);
    runner = w.r.runner;
    params = behind(&w, 0, TAMIS_F32);
    REFUSED(TAMIS_E_UNSUPPORTED, "soft cap 30", w.tokens, 4);
    close_world(&w);
#undef REFUSED
}

/* No room in the store, and none in the cache. */
static void test_full(void **state) {
    (void)state;
    world w;
    open_world(&w, "blends/llama.gguf", 16);
    tamis_store_destroy(&w.store);
    w.store = new_store(20000);
    sizes s = sizes_of(&w);
    const tamis_record_params params = behind(&w, 0, TAMIS_F32);
    RIG_REFUSED(&w.r, TAMIS_E_FULL, "20000",
                tamis_runner_record(w.r.runner, w.store, &params, w.tokens, ALL, &w.r.error));
    check_sizes(&w, s);
    close_world(&w);

    open_world_with(&w, "blends/llama.gguf", (tamis_plan_params){.max_rows = 16}, 48);
    const tamis_sequence a = rig_add(&w.r);
    RIG_OK(&w.r, tamis_runner_prefill(w.r.runner, a, w.tokens, 17, NULL, &w.r.error));
    s = sizes_of(&w);
    RIG_REFUSED(&w.r, TAMIS_E_FULL, "page",
                tamis_runner_record(w.r.runner, w.store, &params, w.tokens, ALL, &w.r.error));
    check_sizes(&w, s);
    record(&w, 0, 16, TAMIS_F32);
    close_world(&w);
}

/* Each call of the device fails once, in each of three steps. */
static void test_faults(void **state) {
    (void)state;
    enum { N = 7 };
    world w;
    open_world(&w, "tiny.gguf", 4);
    tms_device *dev = faulty_device(w.r.context);
    const tamis_record_params params = behind(&w, SINK, TAMIS_F16);
    uint8_t fingerprint[16];
    const sizes s = sizes_of(&w);
    RIG_OK(&w.r, tamis_model_fingerprint(w.r.model, fingerprint, &w.r.error));
    tamis_status status = TAMIS_E_DEVICE;
    int n = 0;
    for (; status != TAMIS_OK; ++n) {
        faulty_begin(dev, n, FAULTY_BEFORE);
        status = tamis_runner_record(w.r.runner, w.store, &params, w.tokens + SINK, N, &w.r.error);
        faulty_pause(dev);
        if (status == TAMIS_OK) break;
        rig_refused(&w.r.error, status, FAULTY_STATUS, FAULTY_TEXT, "record");
        check_sizes(&w, s);
    }
    assert_in_range(n, 50, 1000);
    tamis_store *store = w.store;
    tamis_chunk *after = get(&w, SINK, N, TAMIS_F16);
    w.store = new_store(64 << 20);
    record(&w, SINK, N, TAMIS_F16);
    tamis_chunk *sound = get(&w, SINK, N, TAMIS_F16);
    for (uint32_t layer = 0; layer < w.n_layers; ++layer) {
        uint16_t planes[4][N * MOST_WIDTH];
        RIG_OK(&w.r, tamis_chunk_read(after, layer, planes[0], planes[1], &w.r.error));
        RIG_OK(&w.r, tamis_chunk_read(sound, layer, planes[2], planes[3], &w.r.error));
        assert_memory_equal(planes[0], planes[2], N * w.width * 2);
        assert_memory_equal(planes[1], planes[3], N * w.width * 2);
    }
    tamis_chunk_release(&after);
    tamis_chunk_release(&sound);
    tamis_store_destroy(&store);
    close_world(&w);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_prompt),
        cmocka_unit_test(test_same_as_prefill),
        cmocka_unit_test(test_sink),
        cmocka_unit_test(test_planes_behind_sink),
        cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_others_stay),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_sequence),
        cmocka_unit_test(test_sequence_refused),
        cmocka_unit_test(test_sequence_that_lost_tokens),
    };
    if (!rig_arguments(argc, argv)) return 2;
    return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
