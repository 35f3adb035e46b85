/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the model file: any bytes are refused with a reason, or load, tell their tokens and run a
 * short text. */
#include "lib/model/gguf.h"
#include "tests/fuzz/refusal.h"
#include "tests/model/small.h"
#include <tamis/model.h>
#include <tamis/tamis.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_LAYERS 4u /* of a model that is run */
#define N_TOKENS   3u

static tamis_context *context;
static char path[] = "/tmp/tamis-fuzz-XXXXXX";

static void remove_file(void) {
    unlink(path);
    tamis_context_destroy(&context);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    tamis_context_params params = {.device = "reference"};
    assert_int_equal(tamis_context_create(&params, &context, NULL), TAMIS_OK);
    refusal_abort_on_failure();
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    atexit(remove_file);
    return 0;
}

/* Reads bytes for the sanitizer to see. */
static void read_bytes(const void *from, uint64_t count) {
    const volatile uint8_t *at = from;
    for (uint64_t i = 0; i < count; i++)
        (void)at[i];
}

/* Reads all that the entries and tensors of a file say they have, in a copy that ends where the
 * file ends. */
static void read_parts(const tms_gguf *gguf) {
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    for (uint64_t i = 0; i < gguf->n_entries; i++) {
        const tms_gguf_entry *entry = &gguf->entries[i];
        const uint8_t *at = entry->at;
        read_bytes(entry->key.at, entry->key.bytes);
        read_bytes(at, entry->type == TMS_GGUF_STRING ? 0 : entry->count * sizes[entry->type]);
        for (uint64_t n = 0; entry->type == TMS_GGUF_STRING && n < entry->count; n++) {
            tms_text text = tms_gguf_next_string(&at);
            read_bytes(text.at, text.bytes);
        }
    }
    for (uint64_t i = 0; i < gguf->n_tensors; i++) {
        const tms_gguf_tensor *tensor = &gguf->tensors[i];
        uint8_t *data = malloc(tensor->bytes);
        assert_non_null(data);
        read_bytes(tensor->name.at, tensor->name.bytes);
        assert_int_equal(tms_gguf_read(gguf, tensor, 0, tensor->bytes, data, NULL), TAMIS_OK);
        free(data);
    }
}

/* Text and tokens of the vocabulary: of single bytes, each is a token whose text is that byte. What
 * others make of a text is vocab.c's. */
static void check_vocabulary(const tamis_model *model) {
    uint32_t n = tamis_model_describe(model)->n_vocab;
    size_t bytes = 0, count = 0;
    for (uint32_t token = 0; token < n; token++) {
        const char *text = tamis_vocab_token_text(tamis_model_vocab(model), (int32_t)token, &bytes);
        assert_non_null(text);
        read_bytes(text, bytes);
    }
    assert_null(tamis_vocab_token_text(tamis_model_vocab(model), (int32_t)n, &bytes));
    if (tamis_vocab_describe(tamis_model_vocab(model))->kind != TAMIS_VOCAB_BYTES) return;
    for (int byte = 0; byte < 256; byte++) {
        const char one = (char)byte;
        int32_t token = -1;
        tamis_error error = {0};
        tamis_status status =
            tamis_vocab_encode(tamis_model_vocab(model), &one, 1, 0, &token, 1, &count, &error);
        if (status != TAMIS_OK) {
            assert_int_equal(status, TAMIS_E_ARGUMENT);
            continue;
        }
        assert_true(count == 1 && token >= 0 && (uint32_t)token < n);
        const char *text = tamis_vocab_token_text(tamis_model_vocab(model), token, &bytes);
        assert_true(bytes == 1 && text[0] == one);
    }
}

/* A short text through the model, if the cache takes its shape. */
static void run_text(tamis_model *model) {
    const tamis_model_info *info = tamis_model_describe(model);
    tamis_cache_params shape = {.page_size = 8, .capacity_tokens = 8};
    tamis_plan_params plan = {.max_rows = 2, .max_context = N_TOKENS};
    tamis_cache *cache = NULL;
    tamis_runner *runner = NULL;
    tamis_sequence sequence = 0;
    int32_t tokens[N_TOKENS] = {0, (int32_t)info->n_vocab - 1, 0}, next = -1;
    float *logits = malloc(info->n_vocab * sizeof *logits);
    assert_non_null(logits);
    tamis_model_cache_shape(model, &shape);
    if (plan.max_context > info->context) plan.max_context = info->context;
    if (info->n_layers <= MAX_LAYERS &&
        tamis_cache_create(context, &shape, &cache, NULL) == TAMIS_OK) {
        assert_int_equal(tamis_runner_create(model, cache, &plan, &runner, NULL), TAMIS_OK);
        assert_int_equal(tamis_cache_add(cache, &sequence, NULL), TAMIS_OK);
        assert_int_equal(
            tamis_runner_prefill(runner, sequence, tokens, plan.max_context, &next, NULL),
            TAMIS_OK);
        assert_int_equal(tamis_runner_logits(runner, 0, logits, NULL), TAMIS_OK);
        assert_true(next >= 0 && (uint32_t)next < info->n_vocab);
    }
    tamis_runner_destroy(&runner);
    tamis_cache_destroy(&cache);
    free(logits);
}

static void write_file(const uint8_t *data, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* The file through the public calls: refused as the bytes in memory were, for a shape that no cache
 * takes, or of use. */
static void load(const uint8_t *data, size_t size, tamis_status wanted) {
    tamis_model *model = NULL;
    tamis_error error = {0};
    write_file(data, size);
    tamis_status status = tamis_model_load(context, path, NULL, &model, &error);
    if (status != TAMIS_E_UNSUPPORTED || wanted != TAMIS_OK) assert_int_equal(status, wanted);
    assert_true((model != NULL) == (status == TAMIS_OK));
    if (!model) return;
    check_vocabulary(model);
    run_text(model);
    tamis_model_destroy(&model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tms_gguf gguf;
    tamis_error error = {0};
    uint8_t *copy = malloc(size + !size); /* of exactly the size, wherever `data` lies */
    assert_non_null(copy);
    memcpy(copy, data, size);
    tamis_status status = tms_gguf_parse(copy, size, &gguf, &error);
    if (status == TAMIS_OK) {
        read_parts(&gguf);
        tms_gguf_close(&gguf);
    }
    status = small_read(copy, size, &error);
    if (status != TAMIS_OK) refusal_check(status, &error);
    /* Files take ten times as long as bytes in memory: all that can be run, and some of the others. */
    if (status == TAMIS_OK || size % 16 == 0) load(copy, size, status);
    free(copy);
    return 0;
}
