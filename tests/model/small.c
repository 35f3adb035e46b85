/* SPDX-License-Identifier: Apache-2.0 */
/* Writes small GGUF files, valid and inconsistent ones, and reads any. */
#include "tests/model/small.h"
#include "lib/model/vocab.h"
#include "lib/model/weights.h"

#include <stdlib.h>
#include <string.h>

static void require(int condition) {
    if (!condition) abort();
}

typedef struct bytes {
    uint8_t *at;
    size_t count, capacity;
} bytes;

static void put(bytes *to, const void *from, size_t count) {
    if (to->count + count > to->capacity) {
        to->capacity = 2 * (to->count + count);
        to->at = realloc(to->at, to->capacity);
        require(to->at != NULL);
    }
    if (count) memcpy(to->at + to->count, from, count);
    to->count += count;
}

static void put_u32(bytes *to, uint32_t value) {
    put(to, &value, sizeof value);
}

static void put_u64(bytes *to, uint64_t value) {
    put(to, &value, sizeof value);
}

static void put_string(bytes *to, const char *text, uint64_t stated) {
    put_u64(to, stated == SMALL_AUTO ? strlen(text) : stated);
    put(to, text, strlen(text));
}

static void put_padding(bytes *to, uint32_t alignment) {
    const uint8_t zero = 0;
    while (to->count % alignment)
        put(to, &zero, 1);
}

static size_t value_size(uint32_t type) {
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof sizes ? sizes[type] : 4;
}

/* Little-endian, as the host is. */
static void put_value(bytes *to, const small_key *key, uint32_t type) {
    float narrow = (float)key->real;
    if (type == F32)
        put(to, &narrow, sizeof narrow);
    else if (type == F64)
        put(to, &key->real, sizeof key->real);
    else
        put(to, &key->number, value_size(type));
}

static void put_key(bytes *to, const small_key *key) {
    put_string(to, key->name, SMALL_AUTO);
    put_u32(to, key->type);
    if (key->type == ARRAY) {
        uint64_t count = key->element == STRING ? key->n_strings : key->n_items ? key->n_items : 4;
        put_u32(to, (uint32_t)key->element);
        put_u64(to, key->count == SMALL_AUTO ? count : key->count);
        for (uint64_t i = 0; i < count; ++i) {
            small_key item = *key;
            if (key->n_items) item.number = (int64_t)(item.real = key->items[i]);
            if (key->element == STRING)
                put_string(to, key->strings[i], key->string_bytes);
            else
                put_value(to, &item, (uint32_t)key->element);
        }
    } else if (key->type == STRING) {
        put_string(to, key->strings[0], key->string_bytes);
    } else {
        put_value(to, key, key->type);
    }
}

static uint64_t tensor_bytes(const small_tensor *tensor) {
    static const struct {
        uint32_t type, elements, bytes;
    } blocks[] = {{TENSOR_F32, 1, 4},        {TENSOR_Q8_0, 32, 34},  {TENSOR_Q4_0, 32, 18},
                  {TENSOR_Q4_1, 32, 20},     {TENSOR_Q5_0, 32, 22},  {TENSOR_Q4_K, 256, 144},
                  {TENSOR_Q6_K, 256, 210},   {TENSOR_Q5_1, 32, 24},  {TENSOR_Q5_K, 256, 176},
                  {TENSOR_Q3_K, 256, 110},   {TENSOR_Q2_K, 256, 84}, {TENSOR_IQ4_NL, 32, 18},
                  {TENSOR_IQ4_XS, 256, 136}, {TENSOR_MXFP4, 32, 17}};
    uint64_t count = 1;
    for (uint32_t i = 0; i < tensor->n_dims && i < 6; ++i)
        count *= tensor->dims[i];
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; ++i)
        if (blocks[i].type == tensor->type) return count / blocks[i].elements * blocks[i].bytes;
    return count * 2;
}

/* The true offset is behind the tensors before it; a tensor of more than 1 MiB has no data. */
static void put_tensors(bytes *to, const small_file *file) {
    uint64_t offset = 0;
    for (size_t i = 0; i < file->n_tensors; ++i) {
        const small_tensor *tensor = &file->tensors[i];
        put_string(to, tensor->name, SMALL_AUTO);
        put_u32(to, tensor->n_dims);
        put(to, tensor->dims, (tensor->n_dims < 6 ? tensor->n_dims : 6) * sizeof tensor->dims[0]);
        put_u32(to, tensor->type);
        put_u64(to, tensor->offset == SMALL_AUTO ? offset : tensor->offset);
        offset += tensor_bytes(tensor) < 1 << 20 ? tensor_bytes(tensor) : 0;
        offset = (offset + file->alignment - 1) / file->alignment * file->alignment;
    }
    put_padding(to, file->alignment);
    /* Small numbers that are finite in all three types. */
    for (uint64_t i = 0; i < offset / 2 && !file->drop_data; ++i) {
        uint16_t half = (uint16_t)(0x2c00 + i * 37 % 512);
        put(to, &half, sizeof half);
    }
}

uint8_t *small_write(const small_file *file, size_t *count) {
    bytes to = {0};
    put(&to, file->magic, 4);
    put_u32(&to, file->version);
    put_u64(&to, file->n_tensors_stated == SMALL_AUTO ? file->n_tensors : file->n_tensors_stated);
    put_u64(&to, file->n_keys_stated == SMALL_AUTO ? file->n_keys : file->n_keys_stated);
    for (size_t i = 0; i < file->n_keys; ++i)
        put_key(&to, &file->keys[i]);
    put_tensors(&to, file);
    uint8_t *exact = malloc(to.count);
    require(exact != NULL);
    memcpy(exact, to.at, to.count);
    free(to.at);
    *count = to.count;
    return exact;
}

/* ---- Descriptions ---------------------------------------------------------------------------- */

small_key *small_add_key(small_file *file, const char *name, uint32_t type, int64_t number) {
    require(file->n_keys < SMALL_KEYS);
    small_key *key = &file->keys[file->n_keys++];
    *key = (small_key){.name = name,
                       .type = type,
                       .element = -1,
                       .number = number,
                       .real = (double)number,
                       .strings = {""},
                       .n_strings = 1,
                       .string_bytes = SMALL_AUTO,
                       .count = SMALL_AUTO};
    return key;
}

small_tensor *small_add_tensor(small_file *file, const char *name, uint32_t type, uint64_t dim0,
                               uint64_t dim1) {
    require(file->n_tensors < SMALL_TENSORS);
    small_tensor *tensor = &file->tensors[file->n_tensors++];
    *tensor = (small_tensor){.name = name,
                             .n_dims = dim1 ? 2 : 1,
                             .type = type,
                             .dims = {dim0, dim1, 1, 1, 1, 1},
                             .offset = SMALL_AUTO};
    return tensor;
}

small_key *small_find_key(small_file *file, const char *name) {
    for (size_t i = 0; i < file->n_keys; ++i)
        if (!strcmp(file->keys[i].name, name)) return &file->keys[i];
    return NULL;
}

small_tensor *small_find_tensor(small_file *file, const char *name) {
    for (size_t i = 0; i < file->n_tensors; ++i)
        if (!strcmp(file->tensors[i].name, name)) return &file->tensors[i];
    return NULL;
}

void small_remove_key(small_file *file, const char *name) {
    small_key *key = small_find_key(file, name);
    *key = file->keys[--file->n_keys];
}

void small_remove_tensor(small_file *file, const char *name) {
    small_tensor *tensor = small_find_tensor(file, name);
    *tensor = file->tensors[--file->n_tensors];
}

static void add_keys(small_file *file) {
    small_add_key(file, "general.architecture", STRING, 0)->strings[0] = "llama";
    small_add_key(file, "general.name", STRING, 0)->strings[0] = "small";
    small_add_key(file, "general.alignment", U32, 32);
    small_add_key(file, "llama.block_count", U32, 1);
    small_add_key(file, "llama.context_length", U16, 64);
    small_add_key(file, "llama.embedding_length", U64, 8);
    small_add_key(file, "llama.feed_forward_length", I32, 16);
    small_add_key(file, "llama.attention.head_count", U8, 1);
    small_add_key(file, "llama.attention.key_length", I64, 64);
    small_add_key(file, "llama.attention.layer_norm_rms_epsilon", F32, 0)->real = 1e-5;
    small_add_key(file, "llama.rope.freq_base", F64, 10000);
    small_add_key(file, "tokenizer.ggml.model", STRING, 0)->strings[0] = "gpt2";
    small_key *tokens = small_add_key(file, "tokenizer.ggml.tokens", ARRAY, 0);
    const char *names[] = {"a", "b", "c", "d"};
    memcpy(tokens->strings, names, sizeof names);
    tokens->element = STRING;
    tokens->n_strings = 4;
    small_add_key(file, "tokenizer.ggml.token_type", ARRAY, 1)->element = I32;
}

void small_default(small_file *file) {
    *file = (small_file){.magic = "GGUF",
                         .version = 3,
                         .n_keys_stated = SMALL_AUTO,
                         .n_tensors_stated = SMALL_AUTO,
                         .alignment = 32};
    add_keys(file);
    small_add_tensor(file, "token_embd.weight", TENSOR_F16, 8, 4);
    small_add_tensor(file, "blk.0.attn_norm.weight", TENSOR_F32, 8, 0);
    small_add_tensor(file, "blk.0.attn_q.weight", TENSOR_F32, 8, 64);
    small_add_tensor(file, "blk.0.attn_k.weight", TENSOR_F16, 8, 64);
    small_add_tensor(file, "blk.0.attn_v.weight", TENSOR_BF16, 8, 64);
    small_add_tensor(file, "blk.0.attn_output.weight", TENSOR_F16, 64, 8);
    small_add_tensor(file, "blk.0.ffn_norm.weight", TENSOR_F16, 8, 0);
    small_add_tensor(file, "blk.0.ffn_gate.weight", TENSOR_F16, 8, 16);
    small_add_tensor(file, "blk.0.ffn_up.weight", TENSOR_F16, 8, 16);
    small_add_tensor(file, "blk.0.ffn_down.weight", TENSOR_F16, 16, 8);
    small_add_tensor(file, "output_norm.weight", TENSOR_BF16, 8, 0);
}

/* ---- Mutations ------------------------------------------------------------------------------- */

static uint64_t random_next(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Changes a byte, a word to a number that breaks arithmetic, or moves a piece over another. Mostly
 * in the head, where the counts are. */
static void mutate(uint8_t *file, size_t count, uint64_t *random) {
    static const uint64_t numbers[] = {
        0,          1,         2,          0x7fffffff, 0x80000000,     0xffffffff,
        1ull << 32, INT64_MAX, 1ull << 63, UINT64_MAX, UINT64_MAX - 31};
    size_t range = random_next(random) % 4 ? count / 4 : count;
    size_t at = random_next(random) % (range - 16);
    uint64_t number = numbers[random_next(random) % (sizeof numbers / sizeof numbers[0])];
    switch (random_next(random) % 5) {
    case 0:
        file[at] = (uint8_t)random_next(random);
        break;
    case 1:
        file[at] ^= (uint8_t)(1u << random_next(random) % 8);
        break;
    case 2:
        memcpy(file + at, &number, 4);
        break;
    case 3:
        memcpy(file + at, &number, 8);
        break;
    default:
        memmove(file + at, file + random_next(random) % (range - 16), 16);
    }
}

uint8_t *small_mutant(const uint8_t *file, size_t count, uint64_t seed, size_t *mutant_count) {
    uint64_t random = seed;
    *mutant_count = count - (random_next(&random) % 8 ? 0 : random_next(&random) % 64);
    uint8_t *mutant = malloc(*mutant_count);
    require(mutant != NULL);
    memcpy(mutant, file, *mutant_count);
    for (uint64_t n = 1 + random_next(&random) % 4; n > 0; --n)
        mutate(mutant, *mutant_count, &random);
    return mutant;
}

/* ---- Reading --------------------------------------------------------------------------------- */

tamis_status small_read(const uint8_t *file, size_t count, tamis_error *error) {
    tms_gguf gguf;
    tms_config config;
    tms_vocab vocab = {0};
    tms_weights weights = {0};
    float factors[TMS_MAX_HEAD_DIM / 2];
    bool present;
    *error = (tamis_error){0};
    tamis_status status = tms_gguf_parse(file, count, &gguf, error);
    if (status == TAMIS_OK) status = tms_config_read(&gguf, &config, error);
    if (status == TAMIS_OK) status = tms_vocab_read(&gguf, &vocab, error);
    if (status == TAMIS_OK)
        status = tms_weights_find(&gguf, &config, vocab.info.n_tokens, &weights, error);
    for (int which = TMS_FACTORS_ALL; which <= TMS_FACTORS_LONG && status == TAMIS_OK; which++)
        status = tms_weights_rope_factors(&weights, which, &gguf, factors, &present, error);
    tms_weights_free(&weights);
    tms_vocab_free(&vocab);
    tms_gguf_close(&gguf);
    return status;
}
