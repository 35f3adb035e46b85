/* SPDX-License-Identifier: Apache-2.0 */
/* Loading, tokens and the runner's calls: what they give, and what they refuse without a trace. */
#include "tests/model/rig.h"
#include "tests/model/small.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void test_info(void **state) {
    (void)state;
    rig r;
    rig_open(&r, &(rig_params){.file = "needle.gguf"});
    const tamis_model_info *info = tamis_model_describe(r.model);
    assert_string_equal(info->architecture, "llama");
    assert_string_equal(info->name, "needle");
    assert_int_equal(info->type, TAMIS_WEIGHT_F16);
    assert_int_equal(info->n_layers, 4);
    assert_int_equal(info->n_heads, 4);
    assert_int_equal(info->n_kv_heads, 2);
    assert_int_equal(info->head_dim, 64);
    assert_int_equal(info->dim, 128);
    assert_int_equal(info->ff_dim, 320);
    assert_int_equal(info->n_vocab, 256);
    assert_int_equal(info->parameters, 918656);
    assert_int_equal(info->weight_bytes, (918656 - 9 * 128) * 2 + 9 * 128 * 4);
    rig_close(&r);
}

static void test_tokens(void **state) {
    (void)state;
    rig r;
    char bytes[256];
    int32_t tokens[256] = {-1, -1};
    size_t count, length;
    rig_open(&r, &(rig_params){.file = "needle.gguf"});
    for (int i = 0; i < 256; ++i)
        bytes[i] = (char)(i * 37 + 11);
    RIG_OK(&r, tamis_vocab_encode(tamis_model_vocab(r.model), bytes, 256, 0, tokens, 1, &count,
                                  &r.error));
    assert_int_equal(count, 256);
    assert_int_equal(tokens[1], -1);
    RIG_OK(&r, tamis_vocab_encode(tamis_model_vocab(r.model), bytes, 256, 0, tokens, 256, &count,
                                  &r.error));
    for (int i = 0; i < 256; ++i) {
        const char *text = tamis_vocab_token_text(tamis_model_vocab(r.model), tokens[i], &length);
        assert_int_equal(length, 1);
        assert_int_equal(*text, bytes[i]);
    }
    assert_null(tamis_vocab_token_text(tamis_model_vocab(r.model), -1, &length));
    assert_null(tamis_vocab_token_text(tamis_model_vocab(r.model), 256, &length));
    assert_int_equal(length, 0);
    rig_close(&r);
}

static void test_missing_byte(void **state) {
    (void)state;
    rig r;
    int32_t tokens[8] = {-1};
    size_t count = 77, length;
    rig_open(&r, &(rig_params){.file = "tiny.gguf"});
    RIG_REFUSED(
        &r, TAMIS_E_ARGUMENT, "lacks byte 9, at place 2",
        tamis_vocab_encode(tamis_model_vocab(r.model), "ab\tc", 4, 0, tokens, 8, &count, &r.error));
    assert_int_equal(tokens[0], -1);
    assert_int_equal(count, 77);
    assert_memory_equal(tamis_vocab_token_text(tamis_model_vocab(r.model), 96, &length), "<|end|>",
                        7);
    assert_int_equal(length, 7);
    rig_close(&r);
}

/* A call that is refused leaves the sequence as it was, and no logits. */
static void test_refused(void **state) {
    (void)state;
    rig r;
    int32_t tokens[257] = {0}, next;
    float logits[97];
    rig_open(&r, &(rig_params){.file = "tiny.gguf", .max_context = 200, .max_rows = 64});
    tamis_runner *runner = r.runner;
    tamis_sequence a = rig_add(&r), pair[2] = {a, a};
    RIG_REFUSED(&r, TAMIS_E_STATE, "no logits", tamis_runner_logits(runner, 0, logits, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "201 tokens behind the sequence's 0; max_context is 200",
                tamis_runner_prefill(runner, a, tokens, 201, &next, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "no tokens",
                tamis_runner_prefill(runner, a, tokens, 0, &next, &r.error));
    tokens[70] = 97;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "token 97 at place 70 is outside the vocabulary of 97",
                tamis_runner_prefill(runner, a, tokens, 80, &next, &r.error));
    tokens[70] = -1;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "token -1 at place 70",
                tamis_runner_prefill(runner, a, tokens, 80, &next, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "no sequence",
                tamis_runner_prefill(runner, a + 99, tokens, 3, &next, &r.error));
    assert_int_equal(rig_length(&r, a), 0);
    RIG_OK(&r, tamis_runner_prefill(runner, a, tokens, 70, &next, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "row 1 of 1",
                tamis_runner_logits(runner, 1, logits, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "131 tokens behind the sequence's 70",
                tamis_runner_prefill(runner, a, tokens + 71, 131, &next, &r.error));
    RIG_REFUSED(&r, TAMIS_E_STATE, "no logits", tamis_runner_logits(runner, 0, logits, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "2 sequences are given; max_sequences is 1, max_rows 64",
                tamis_runner_decode(runner, pair, 2, tokens, tokens, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "token -1",
                tamis_runner_decode(runner, &a, 1, tokens + 70, &next, &r.error));
    assert_int_equal(rig_length(&r, a), 70);
    RIG_OK(&r, tamis_runner_prefill(runner, a, tokens, 70, NULL, &r.error));
    RIG_OK(&r, tamis_runner_prefill(runner, a, tokens, 60, NULL, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "200",
                tamis_runner_decode(runner, &a, 1, tokens, &next, &r.error));
    assert_int_equal(rig_length(&r, a), 200);
    rig_close(&r);
}

typedef struct watched {
    size_t calls, done[8], stop_at;
} watched;

static tamis_status watch(void *user, size_t done, size_t count, tamis_error *error) {
    watched *w = user;
    assert_int_equal(count, 100);
    w->done[w->calls++] = done;
    if (w->calls != w->stop_at) return TAMIS_OK;
    strcpy(error->text, "enough");
    return error->status = TAMIS_E_STATE;
}

/* The watcher hears of each chunk, can end the prompt, and changes no result. */
static void test_watcher(void **state) {
    (void)state;
    rig r;
    int32_t tokens[128], plain = -1, seen = -2;
    watched w = {0};
    rig_open(&r, &(rig_params){.file = "tiny.gguf", .max_rows = 48, .capacity_tokens = 512});
    for (int i = 0; i < 128; ++i)
        tokens[i] = i * 7 % 96;
    tamis_sequence a = rig_add(&r), b = rig_add(&r), c = rig_add(&r);
    RIG_OK(&r, tamis_runner_prefill(r.runner, a, tokens, 100, &plain, &r.error));
    tamis_runner_watch(r.runner, watch, &w);
    RIG_OK(&r, tamis_runner_prefill(r.runner, b, tokens, 100, &seen, &r.error));
    assert_int_equal(seen, plain);
    assert_int_equal(w.calls, 3);
    assert_true(w.done[0] == 48 && w.done[1] == 96 && w.done[2] == 100);
    w = (watched){.stop_at = 2};
    RIG_REFUSED(&r, TAMIS_E_STATE, "enough",
                tamis_runner_prefill(r.runner, c, tokens, 100, &seen, &r.error));
    assert_int_equal(w.calls, 2);
    assert_int_equal(rig_length(&r, c), 96);
    tamis_runner_watch(r.runner, NULL, NULL);
    RIG_OK(&r, tamis_runner_prefill(r.runner, c, tokens + 96, 4, &seen, &r.error));
    assert_int_equal(seen, plain);
    tamis_runner_watch(NULL, NULL, NULL);
    rig_close(&r);
}

/* The cache runs out in the second chunk: the first one stays, and a shorter text still fits. */
static void test_full(void **state) {
    (void)state;
    rig r;
    int32_t tokens[128] = {0};
    rig_open(&r, &(rig_params){.file = "tiny.gguf", .max_rows = 48, .capacity_tokens = 64});
    tamis_sequence a = rig_add(&r);
    assert_int_equal(tamis_runner_prefill(r.runner, a, tokens, 100, NULL, &r.error), TAMIS_E_FULL);
    assert_int_equal(rig_length(&r, a), 48);
    RIG_OK(&r, tamis_runner_prefill(r.runner, a, tokens, 16, NULL, &r.error));
    assert_int_equal(tamis_runner_decode(r.runner, &a, 1, tokens, NULL, &r.error), TAMIS_E_FULL);
    assert_int_equal(rig_length(&r, a), 64);
    rig_close(&r);
}

static void test_create_refused(void **state) {
    (void)state;
    rig r;
    rig_open(&r, &(rig_params){.file = "tiny.gguf"});
    tamis_runner *runner = NULL;
    tamis_cache *other = NULL;
    tamis_plan_params plan = {.max_context = 257};
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "max_context is 257; the model's context is 256",
                tamis_runner_create(r.model, r.cache, &plan, &runner, &r.error));
    plan.max_context = 256;
    tamis_cache_params params = {.capacity_tokens = 64};
    tamis_model_cache_shape(r.model, &params);
    params.n_layers = 3;
    RIG_OK(&r, tamis_cache_create(r.context, &params, &other, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "the cache has 3 layers",
                tamis_runner_create(r.model, other, &plan, &runner, &r.error));
    tamis_cache_destroy(&other);
    rig_close(&r);
}

/* Writes bytes to a file, loads that and removes it. */
static tamis_status load_bytes(rig *r, const uint8_t *bytes, size_t count, char path[32]) {
    strcpy(path, "model-XXXXXX");
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, bytes, count), count);
    close(descriptor);
    tamis_status status = tamis_model_load(r->context, path, NULL, &r->model, &r->error);
    unlink(path);
    return status;
}

/* The reason is led by the path. */
static void refuse_bytes(rig *r, const uint8_t *bytes, size_t count, const char *part) {
    char path[32];
    tamis_status status = load_bytes(r, bytes, count, path);
    rig_refused(&r->error, status, TAMIS_E_FORMAT, part, "load");
    assert_memory_equal(r->error.text, path, strlen(path));
    assert_null(r->model);
}

static void open_context(rig *r) {
    const tamis_context_params params = {.device = rig_device};
    *r = (rig){0};
    RIG_OK(r, tamis_context_create(&params, &r->context, &r->error));
}

static void test_files(void **state) {
    (void)state;
    rig r;
    char path[32];
    small_file file;
    size_t count;
    small_default(&file);
    uint8_t *bytes = small_write(&file, &count);
    open_context(&r);
    refuse_bytes(&r, bytes, count / 2, "leaves the file");
    refuse_bytes(&r, bytes, 20, "ends at byte 20");
    refuse_bytes(&r, bytes, 0, "empty");
    RIG_REFUSED(&r, TAMIS_E_IO, "no-such-file: cannot be read: ",
                tamis_model_load(r.context, "no-such-file", NULL, &r.model, &r.error));
    RIG_REFUSED(&r, TAMIS_E_IO, "not a regular file",
                tamis_model_load(r.context, rig_data, NULL, &r.model, &r.error));
    RIG_OK(&r, load_bytes(&r, bytes, count, path));
    free(bytes);
    rig_close(&r);
}

static tamis_status no_call(void *user, uint64_t done, uint64_t total, tamis_error *error) {
    (void)user, (void)total, (void)error;
    fail_msg("%llu bytes were loaded", (unsigned long long)done);
    return TAMIS_OK;
}

/* A shape that no cache takes is refused before any weight is loaded. */
static void test_shape(void **state) {
    (void)state;
    rig r;
    char path[32] = "model-XXXXXX";
    small_file file;
    size_t count;
    small_default(&file);
    small_find_key(&file, "llama.attention.key_length")->number = 72;
    const char *const heads[] = {"blk.0.attn_q.weight", "blk.0.attn_k.weight",
                                 "blk.0.attn_v.weight"};
    for (size_t i = 0; i < 3; ++i)
        small_find_tensor(&file, heads[i])->dims[1] = 72;
    small_find_tensor(&file, "blk.0.attn_output.weight")->dims[0] = 72;
    uint8_t *bytes = small_write(&file, &count);
    open_context(&r);
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, bytes, count), count);
    close(descriptor);
    const tamis_model_params params = {.watcher = no_call};
    RIG_REFUSED(&r, TAMIS_E_UNSUPPORTED, "head_dim 72 is not supported; 64, 80, 96, 112, 128",
                tamis_model_load(r.context, path, &params, &r.model, &r.error));
    unlink(path);
    free(bytes);
    rig_close(&r);
}

/* Refuses a file with a hole behind it, of 1 GiB in all. */
static void refuse_with_hole(rig *r, const small_file *file, const char *part) {
    char path[32] = "model-XXXXXX";
    size_t count;
    uint8_t *bytes = small_write(file, &count);
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, bytes, count), count);
    assert_int_equal(ftruncate(descriptor, 1 << 30), 0);
    RIG_REFUSED(r, TAMIS_E_UNSUPPORTED, part,
                tamis_model_load(r->context, path, NULL, &r->model, &r->error));
    close(descriptor);
    unlink(path);
    free(bytes);
}

/* Files whose head would fill the host's memory; one whose head takes several reads is read. */
static void test_long_head(void **state) {
    (void)state;
    enum { LONG = 3 << 20 };
    rig r;
    char path[32];
    small_file file;
    size_t count;
    open_context(&r);
    small_default(&file);
    small_key *key = small_add_key(&file, "some.array", ARRAY, 0);
    key->element = U8;
    key->count = 3u << 28;
    refuse_with_hole(&r, &file, "bytes before the tensors' data; up to 134217728 are read");
    small_default(&file);
    file.n_keys_stated = 60000000;
    refuse_with_hole(&r, &file, "60000000 keys before the tensors' data, of which up to 134217728");
    small_default(&file);
    file.n_tensors_stated = 30000000;
    refuse_with_hole(&r, &file, "30000000 tensors before the tensors' data, of which up to 1342");
    char *text = malloc(LONG + 1);
    assert_non_null(text);
    memset(text, 'x', LONG);
    text[LONG] = 0;
    small_default(&file);
    small_find_key(&file, "general.name")->strings[0] = text;
    uint8_t *bytes = small_write(&file, &count);
    RIG_OK(&r, load_bytes(&r, bytes, count, path));
    assert_int_equal(tamis_model_describe(r.model)->n_vocab, 4);
    free(bytes);
    free(text);
    rig_close(&r);
}

/* The longest context is the number of positions that can be rotated, and no token more. */
static void test_longest_context(void **state) {
    (void)state;
    rig r;
    char path[32];
    small_file file;
    size_t count;
    small_default(&file);
    small_remove_key(&file, "llama.context_length");
    small_add_key(&file, "llama.context_length", U32, (1 << 20) + 1);
    uint8_t *bytes = small_write(&file, &count);
    open_context(&r);
    RIG_OK(&r, load_bytes(&r, bytes, count, path));
    free(bytes);
    tamis_cache_params cache = {.capacity_tokens = 64};
    tamis_plan_params plan = {.max_rows = 8, .max_context = (1 << 20) + 1};
    tamis_model_cache_shape(r.model, &cache);
    RIG_OK(&r, tamis_cache_create(r.context, &cache, &r.cache, &r.error));
    RIG_REFUSED(&r, TAMIS_E_UNSUPPORTED, "max_context is 1048577; positions below 1048576",
                tamis_runner_create(r.model, r.cache, &plan, &r.runner, &r.error));
    plan.max_context = 1 << 20;
    RIG_OK(&r, tamis_runner_create(r.model, r.cache, &plan, &r.runner, &r.error));
    rig_close(&r);
}

/* Runs three tokens of a model, whatever its numbers have become. */
static void run_mutant(rig *r) {
    const int32_t tokens[] = {0, 1, 2};
    int32_t next = -1;
    tamis_cache_params cache = {.capacity_tokens = 64};
    tamis_plan_params plan = {.max_rows = 8, .max_context = 3};
    tamis_model_cache_shape(r->model, &cache);
    if (tamis_model_describe(r->model)->context < 3) return;
    if (tamis_cache_create(r->context, &cache, &r->cache, &r->error) != TAMIS_OK) return;
    RIG_OK(r, tamis_runner_create(r->model, r->cache, &plan, &r->runner, &r->error));
    RIG_OK(r, tamis_runner_prefill(r->runner, rig_add(r), tokens, 3, &next, &r->error));
    assert_in_range(next, 0, tamis_model_describe(r->model)->n_vocab - 1);
}

/* Changed files are refused or run. */
#define MUTANTS 300
static void test_mutants(void **state) {
    (void)state;
    rig r;
    char path[32];
    small_file file;
    size_t bytes, count, ran = 0;
    small_default(&file);
    uint8_t *whole = small_write(&file, &bytes);
    open_context(&r);
    for (uint64_t seed = 1; seed <= MUTANTS; ++seed) {
        uint8_t *mutant = small_mutant(whole, bytes, seed, &count);
        if (load_bytes(&r, mutant, count, path) == TAMIS_OK) {
            run_mutant(&r);
            ran += r.runner != NULL;
        }
        free(mutant);
        tamis_runner_destroy(&r.runner);
        tamis_cache_destroy(&r.cache);
        tamis_model_destroy(&r.model);
    }
    free(whole);
    assert_in_range(ran, MUTANTS / 100, MUTANTS * 9 / 10);
    rig_close(&r);
}

/* ---- The observer ---------------------------------------------------------------------------- */

#define SEEN_ROWS   8
#define SEEN_LAYERS 8
#define SEEN_ROW    1024 /* elements of the widest row */

/* What an observer has been shown, of the last step. */
typedef struct observed {
    rig *r;
    uint32_t calls, rows[SEEN_LAYERS];
    uint32_t fail_layer; /* UINT32_MAX: none */
    const char *reason;  /* of that, or NULL */
    float q[SEEN_LAYERS][SEEN_ROWS * SEEN_ROW], k[SEEN_LAYERS][SEEN_ROWS * SEEN_ROW];
    float v[SEEN_LAYERS][SEEN_ROWS * SEEN_ROW], out[SEEN_LAYERS][SEEN_ROWS * SEEN_ROW];
} observed;

static void take(const tamis_rows *rows, float *to, uint64_t elements) {
    assert_non_null(rows->buffer);
    assert_int_equal(rows->dtype, TAMIS_F32);
    assert_int_equal(rows->row_stride, 0);
    assert_int_equal(tamis_buffer_read(rows->buffer, rows->offset, to, elements * sizeof *to, NULL),
                     TAMIS_OK);
}

static tamis_status observe(void *user, const tamis_attention_rows *rows, tamis_error *error) {
    observed *o = user;
    const tamis_model_info *info = tamis_model_describe(o->r->model);
    const uint64_t n = rows->n_rows, wide = (uint64_t)info->n_heads * info->head_dim;
    const uint64_t narrow = (uint64_t)info->n_kv_heads * info->head_dim;
    assert_int_equal(rows->layer, o->calls++ % info->n_layers); /* each once a step, in order */
    assert_true(n <= SEEN_ROWS && wide <= SEEN_ROW && info->n_layers <= SEEN_LAYERS);
    o->rows[rows->layer] = rows->n_rows;
    take(&rows->q, o->q[rows->layer], n * wide);
    take(&rows->k, o->k[rows->layer], n * narrow);
    take(&rows->v, o->v[rows->layer], n * narrow);
    take(&rows->out, o->out[rows->layer], n * wide);
    if (rows->layer != o->fail_layer) return TAMIS_OK;
    if (o->reason) snprintf(error->text, sizeof error->text, "%s", o->reason);
    return TAMIS_E_UNSUPPORTED;
}

/* Softmax attention of one query head over a lane's slots [0, visible). */
static void expect_attention(const float *q, const float *k, const float *v, uint32_t visible,
                             uint32_t dim, const float *out) {
    double sum[256] = {0}, total = 0, most = 0;
    for (uint32_t s = 0; s < visible; ++s) {
        double logit = 0;
        for (uint32_t d = 0; d < dim; ++d)
            logit += (double)q[d] * k[s * dim + d];
        logit /= sqrt(dim);
        most = fmax(most, fabs(logit));
        total += exp(logit);
        for (uint32_t d = 0; d < dim; ++d)
            sum[d] += exp(logit) * v[s * dim + d];
    }
    for (uint32_t d = 0; d < dim; ++d) {
        double largest = 0;
        for (uint32_t s = 0; s < visible; ++s)
            largest = fmax(largest, fabs((double)v[s * dim + d]));
        if (fabs(out[d] - sum[d] / total) > 1e-5 * largest * (1 + most) + 1e-7)
            fail_msg("channel %u: %.9g, wanted %.9g", d, (double)out[d], sum[d] / total);
    }
}

/* The observed rows of a sequence of `length`, now in the cache, are its last n_rows: k and v are
 * what the cache holds, out is attention over it. `row` is the first of them. */
static void expect_rows(observed *o, tamis_sequence a, uint32_t row, uint32_t n_rows) {
    const tamis_model_info *info = tamis_model_describe(o->r->model);
    const uint32_t dim = info->head_dim, length = rig_length(o->r, a);
    const uint32_t group = info->n_heads / info->n_kv_heads;
    float *k = calloc(2 * (size_t)length * dim, sizeof *k), *v = k + (size_t)length * dim;
    assert_non_null(k);
    for (uint32_t lane = 0; lane < info->n_layers * info->n_kv_heads; ++lane) {
        const uint32_t layer = lane / info->n_kv_heads, h = lane % info->n_kv_heads;
        RIG_OK(o->r, tamis_cache_read(o->r->cache, a, layer, h, 0, length, k, v, &o->r->error));
        for (uint32_t i = 0; i < n_rows; ++i) {
            const uint32_t slot = length - n_rows + i, head = (row + i) * info->n_kv_heads + h;
            assert_memory_equal(o->k[layer] + head * dim, k + slot * dim, dim * sizeof *k);
            assert_memory_equal(o->v[layer] + head * dim, v + slot * dim, dim * sizeof *v);
            for (uint32_t g = head * group; g < (head + 1) * group; ++g)
                expect_attention(o->q[layer] + g * dim, k, v, slot + 1, dim,
                                 o->out[layer] + g * dim);
        }
    }
    free(k);
}

/* Every layer of every step is seen once, with what it attends and the result; not after NULL. */
static void test_observer(void **state) {
    (void)state;
    rig r;
    int32_t tokens[24];
    observed *o = calloc(1, sizeof *o);
    assert_non_null(o);
    rig_open(&r, &(rig_params){.file = "tiny.gguf", .max_sequences = 2, .max_rows = SEEN_ROWS});
    const uint32_t n_layers = tamis_model_describe(r.model)->n_layers;
    o->r = &r;
    o->fail_layer = UINT32_MAX;
    for (int i = 0; i < 24; ++i)
        tokens[i] = i * 7 % 97;
    tamis_runner_observe(NULL, observe, o);
    tamis_runner_observe(r.runner, observe, o);
    tamis_sequence a[] = {rig_add(&r), rig_add(&r)};
    RIG_OK(&r, tamis_runner_prefill(r.runner, a[0], tokens, 19, NULL, &r.error));
    assert_int_equal(o->calls, 3 * n_layers); /* chunks of 8, 8 and 3 */
    assert_int_equal(o->rows[n_layers - 1], 3);
    expect_rows(o, a[0], 0, 3);
    RIG_OK(&r, tamis_runner_prefill(r.runner, a[1], tokens + 3, 5, NULL, &r.error));
    RIG_OK(&r, tamis_runner_decode(r.runner, a, 2, tokens + 20, NULL, &r.error));
    assert_int_equal(o->calls, 5 * n_layers);
    assert_int_equal(o->rows[0], 2);
    expect_rows(o, a[0], 0, 1);
    expect_rows(o, a[1], 1, 1);
    tamis_runner_observe(r.runner, NULL, o);
    RIG_OK(&r, tamis_runner_decode(r.runner, a, 2, tokens + 22, NULL, &r.error));
    assert_int_equal(o->calls, 5 * n_layers);
    rig_close(&r);
    free(o);
}

#define READ_HEADS 2  /* KV heads of needle.gguf */
#define READ_PAGES 16 /* most of a lane */
#define READ_FIRST 150
#define READ_OTHER 40 /* within the budget */

/* Which pages the rows of a step of two sequences have read, and what was attended. */
typedef struct reads {
    observed seen;
    uint32_t n[SEEN_LAYERS][SEEN_ROWS][READ_HEADS];
    uint32_t pages[SEEN_LAYERS][SEEN_ROWS][READ_HEADS][READ_PAGES];
} reads;

static void read_row(rig *r, tamis_plan *plan, uint32_t row, uint32_t head, uint32_t *pages,
                     uint32_t *n) {
    RIG_OK(r, tamis_plan_read_selected(plan, row, head, pages, READ_PAGES, n, &r->error));
    assert_in_range(*n, 1, READ_PAGES);
}

static tamis_status observe_reads(void *user, const tamis_attention_rows *rows,
                                  tamis_error *error) {
    reads *to = user;
    rig *r = to->seen.r;
    for (uint32_t row = 0; row < rows->n_rows; row++)
        for (uint32_t h = 0; h < READ_HEADS; h++)
            read_row(r, tamis_runner_plan(r->runner), row, h, to->pages[rows->layer][row][h],
                     &to->n[rows->layer][row][h]);
    return observe(&to->seen, rows, error);
}

static tamis_rows rows_with(rig *r, const float *values, uint64_t elements, tamis_buffer **buffer) {
    const uint64_t bytes = elements * sizeof *values;
    RIG_OK(r, tamis_buffer_create(r->context, bytes, buffer, &r->error));
    RIG_OK(r, tamis_buffer_write(*buffer, 0, values, bytes, &r->error));
    return (tamis_rows){.buffer = *buffer, .dtype = TAMIS_F32};
}

/* Attends in an open step of a plan of the test's own what the observer was shown of a layer. */
static void attend_again(rig *r, tamis_plan *plan, const reads *seen, uint32_t layer) {
    const tamis_model_info *info = tamis_model_describe(r->model);
    const uint64_t wide = 2u * info->n_heads * info->head_dim;
    const uint64_t narrow = 2u * info->n_kv_heads * info->head_dim;
    tamis_buffer *held[4];
    const tamis_rows q = rows_with(r, seen->seen.q[layer], wide, &held[0]),
                     k = rows_with(r, seen->seen.k[layer], narrow, &held[1]),
                     v = rows_with(r, seen->seen.v[layer], narrow, &held[2]),
                     out = rows_with(r, seen->seen.out[layer], wide, &held[3]);
    RIG_OK(r, tamis_plan_write(plan, layer, &k, &v, &r->error));
    RIG_OK(r, tamis_plan_attend(plan, layer, &q, &out, &r->error));
    RIG_OK(r, tamis_context_wait(r->context, &r->error));
    for (int i = 0; i < 4; i++)
        tamis_buffer_destroy(&held[i]);
}

/* An observer reads the lists that a plan gives behind an attend of the same rows over the same pages. */
static void test_observer_reads(void **state) {
    (void)state;
    rig r;
    int32_t tokens[READ_FIRST + 2];
    uint32_t fewer = 0;
    tamis_plan *plan = NULL;
    tamis_plan_params params;
    rig_params p = {.file = "needle.gguf", .max_sequences = 2, .max_rows = SEEN_ROWS};
    reads *seen = calloc(1, sizeof *seen);
    assert_non_null(seen);
    tamis_selection_default(TAMIS_SELECT_QUEST, &p.selection);
    p.selection.budget = 64;
    rig_open(&r, &p);
    rig_text(&r, tokens, READ_FIRST + 2);
    const tamis_model_info *info = tamis_model_describe(r.model);
    assert_int_equal(info->n_kv_heads, READ_HEADS);
    tamis_sequence a[] = {rig_add(&r), rig_add(&r)}, forks[2];
    seen->seen.r = &r;
    seen->seen.fail_layer = UINT32_MAX;
    tamis_runner_observe(r.runner, observe_reads, seen);
    RIG_OK(&r, tamis_runner_prefill(r.runner, a[0], tokens, READ_FIRST, NULL, &r.error));
    RIG_OK(&r, tamis_runner_prefill(r.runner, a[1], tokens, READ_OTHER, NULL, &r.error));
    for (int i = 0; i < 2; i++)
        RIG_OK(&r, tamis_cache_fork(r.cache, a[i], &forks[i], &r.error));
    RIG_OK(&r, tamis_runner_decode(r.runner, a, 2, tokens + READ_FIRST, NULL, &r.error));
    tamis_plan_get_params(tamis_runner_plan(r.runner), &params);
    RIG_OK(&r, tamis_plan_create(r.cache, &params, &plan, &r.error));
    const tamis_step step = {.sequences = forks, .count = 2};
    RIG_OK(&r, tamis_plan_step_begin(plan, &step, &r.error));
    for (uint32_t layer = 0; layer < info->n_layers; layer++) {
        attend_again(&r, plan, seen, layer);
        for (uint32_t i = 0; i < 2 * READ_HEADS; i++) {
            uint32_t pages[READ_PAGES], n;
            const uint32_t row = i / READ_HEADS, h = i % READ_HEADS;
            read_row(&r, plan, row, h, pages, &n);
            assert_int_equal(n, seen->n[layer][row][h]);
            assert_memory_equal(pages, seen->pages[layer][row][h], n * sizeof *pages);
            fewer += row == 0 && n < READ_FIRST / 16;
            if (row == 1) assert_int_equal(n, READ_OTHER / 16 + 1);
        }
    }
    assert_int_equal(fewer, info->n_layers * READ_HEADS);
    RIG_OK(&r, tamis_plan_step_end(plan, &r.error));
    tamis_plan_destroy(&plan);
    rig_close(&r);
    free(seen);
}

/* An observer that fails ends the step with its status, and with its reason if it gives one: the
 * sequence is as it was before. */
static void test_observer_fails(void **state) {
    (void)state;
    rig r;
    int32_t tokens[12] = {1, 2, 3}, next;
    float logits[97], expected[97];
    observed *o = calloc(1, sizeof *o);
    assert_non_null(o);
    rig_open(&r, &(rig_params){.file = "tiny.gguf", .max_rows = SEEN_ROWS});
    o->r = &r;
    tamis_sequence a = rig_add(&r), b = rig_add(&r);
    RIG_OK(&r, tamis_runner_prefill(r.runner, a, tokens, 12, NULL, &r.error));
    RIG_OK(&r, tamis_runner_prefill(r.runner, b, tokens, 12, NULL, &r.error));
    RIG_OK(&r, tamis_runner_decode(r.runner, &b, 1, tokens, NULL, &r.error));
    RIG_OK(&r, tamis_runner_logits(r.runner, 0, expected, &r.error));
    tamis_runner_observe(r.runner, observe, o);
    for (o->fail_layer = 0; o->fail_layer < tamis_model_describe(r.model)->n_layers;
         ++o->fail_layer) {
        char part[64];
        snprintf(part, sizeof part, "layer %u with E_UNSUPPORTED", o->fail_layer);
        o->calls = 0;
        RIG_REFUSED(&r, TAMIS_E_UNSUPPORTED, part,
                    tamis_runner_decode(r.runner, &a, 1, tokens, &next, &r.error));
        o->reason = "no room for more rows";
        RIG_REFUSED(&r, TAMIS_E_UNSUPPORTED, o->reason,
                    (o->calls = 0, tamis_runner_prefill(r.runner, a, tokens, 3, NULL, &r.error)));
        assert_non_null(strstr(r.error.text, part));
        o->reason = NULL;
        RIG_REFUSED(&r, TAMIS_E_STATE, "no logits",
                    tamis_runner_logits(r.runner, 0, logits, &r.error));
        assert_int_equal(rig_length(&r, a), 12);
    }
    tamis_runner_observe(r.runner, NULL, NULL);
    RIG_OK(&r, tamis_runner_decode(r.runner, &a, 1, tokens, NULL, &r.error));
    RIG_OK(&r, tamis_runner_logits(r.runner, 0, logits, &r.error));
    assert_memory_equal(logits, expected, sizeof logits);
    rig_close(&r);
    free(o);
}

/* An eviction that fails comes after the step: its token, its choice and its logits are there. The
 * same eviction succeeds when there is room. */
static void test_evict_fails(void **state) {
    (void)state;
    rig r;
    int32_t tokens[64], next = -7, again = -7;
    float logits[97], expected[97];
    rig_params p = {.file = "tiny.gguf", .max_sequences = 2, .capacity_tokens = 80};
    p.eviction = (tamis_eviction){
        .kind = TAMIS_EVICT_ADAKV, .budget = 40, .window = 8, .kernel = 3, .every = 4};
    rig_open(&r, &(rig_params){.file = "tiny.gguf"});
    rig_text(&r, tokens, 41);
    tamis_sequence a = rig_add(&r), fork;
    RIG_OK(&r, tamis_runner_prefill(r.runner, a, tokens, 40, NULL, &r.error));
    RIG_OK(&r, tamis_runner_decode(r.runner, &a, 1, tokens + 40, &again, &r.error));
    RIG_OK(&r, tamis_runner_logits(r.runner, 0, expected, &r.error));
    rig_close(&r);
    rig_open(&r, &p);
    a = rig_add(&r);
    RIG_OK(&r, tamis_runner_prefill(r.runner, a, tokens, 40, NULL, &r.error));
    RIG_OK(&r, tamis_cache_fork(r.cache, a, &fork, &r.error));
    const tamis_sequence filler = rig_add(&r);
    RIG_OK(&r, tamis_runner_prefill(r.runner, filler, tokens, 16, NULL, &r.error));
    RIG_REFUSED(&r, TAMIS_E_FULL, "the eviction needs copies",
                tamis_runner_decode(r.runner, &fork, 1, tokens + 40, &next, &r.error));
    assert_int_equal(rig_length(&r, fork), 41);
    assert_int_equal(next, again);
    RIG_OK(&r, tamis_runner_logits(r.runner, 0, logits, &r.error));
    assert_memory_equal(logits, expected, sizeof logits);
    RIG_OK(&r, tamis_cache_remove(r.cache, filler, &r.error));
    RIG_OK(&r, tamis_cache_remove(r.cache, a, &r.error));
    tamis_evicted out;
    RIG_OK(&r, tamis_plan_evict(tamis_runner_plan(r.runner), fork, &out, &r.error));
    assert_true(out.tokens_kept < out.tokens_before);
    assert_int_equal(rig_length(&r, fork), 41);
    rig_close(&r);
}

/* A prompt of one token behind an evicted one is decoded: it takes a token's place. */
static void test_one_token_in_place(void **state) {
    (void)state;
    rig r;
    int32_t tokens[64], next = 0, again = 0;
    uint32_t slots = 0;
    rig_params p = {.file = "tiny.gguf", .capacity_tokens = 160};
    p.eviction = (tamis_eviction){.kind = TAMIS_EVICT_H2O, .budget = 24, .every = 1};
    rig_open(&r, &p);
    rig_text(&r, tokens, 42);
    tamis_sequence a = rig_add(&r), fork;
    RIG_OK(&r, tamis_runner_prefill(r.runner, a, tokens, 40, NULL, &r.error));
    RIG_OK(&r, tamis_cache_fork(r.cache, a, &fork, &r.error));
    RIG_OK(&r, tamis_runner_prefill(r.runner, a, tokens + 40, 1, &next, &r.error));
    RIG_OK(&r, tamis_runner_decode(r.runner, &fork, 1, tokens + 40, &again, &r.error));
    assert_int_equal(next, again);
    RIG_OK(&r, tamis_runner_decode(r.runner, &a, 1, tokens + 41, &next, &r.error));
    RIG_OK(&r, tamis_cache_lane_length(r.cache, a, 0, 0, &slots, &r.error));
    assert_int_equal(slots, 24);
    rig_close(&r);
}

/* The runner outlives its context, its model or its cache: its calls answer E_STATE. */
static void test_outlives(void **state) {
    (void)state;
    static const char *const why[] = {"the context has been destroyed",
                                      "the model has been destroyed",
                                      "the cache has been destroyed"};
    for (int gone = 0; gone < 3; gone++) {
        rig r;
        int32_t token = 1, next = 0;
        rig_open(&r, &(rig_params){.file = "tiny.gguf", .max_context = 64});
        const tamis_sequence a = rig_add(&r);
        RIG_OK(&r, tamis_runner_prefill(r.runner, a, &token, 1, &next, &r.error));
        if (gone == 0) tamis_context_destroy(&r.context);
        if (gone == 1) tamis_model_destroy(&r.model);
        if (gone == 2) tamis_cache_destroy(&r.cache);
        RIG_REFUSED(&r, TAMIS_E_STATE, why[gone],
                    tamis_runner_decode(r.runner, &a, 1, &token, &next, &r.error));
        RIG_REFUSED(&r, TAMIS_E_STATE, why[gone],
                    tamis_runner_prefill(r.runner, a, &token, 1, &next, &r.error));
        rig_close(&r);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_token_in_place),
        cmocka_unit_test(test_outlives),
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_missing_byte),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_watcher),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_create_refused),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_shape),
        cmocka_unit_test(test_long_head),
        cmocka_unit_test(test_longest_context),
        cmocka_unit_test(test_mutants),
        cmocka_unit_test(test_observer),
        cmocka_unit_test(test_observer_reads),
        cmocka_unit_test(test_observer_fails),
        cmocka_unit_test(test_evict_fails),
    };
    if (!rig_arguments(argc, argv)) return 2;
    return cmocka_run_group_tests_name("runner", tests, NULL, NULL);
}
