/* SPDX-License-Identifier: Apache-2.0 */
/* Inconsistent GGUF files: each is refused with its reason, and none is read beyond its end. */
#include "lib/model/rope.h"
#include "tests/model/small.h"
#include <tamis/model.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The file is refused with `wanted` and a reason that contains `part`. */
static void expect(const small_file *file, tamis_status wanted, const char *part) {
    tamis_error error;
    size_t bytes;
    uint8_t *data = small_write(file, &bytes);
    tamis_status status = small_read(data, bytes, &error);
    free(data);
    if (status != wanted || !strstr(error.text, part))
        fail_msg("got %s \"%s\", wanted %s \"%s\"", tamis_status_name(status), error.text,
                 tamis_status_name(wanted), part);
    assert_int_equal(error.status, wanted == TAMIS_OK ? 0 : wanted);
}

static void test_valid(void **state) {
    (void)state;
    small_file file;
    small_default(&file);
    expect(&file, TAMIS_OK, "");
    small_find_key(&file, "general.alignment")->number = 64;
    file.alignment = 64;
    small_add_tensor(&file, "output.weight", TENSOR_F32, 8, 4);
    expect(&file, TAMIS_OK, "");
}

static void test_head(void **state) {
    (void)state;
    small_file file;
    small_default(&file);
    memcpy(file.magic, "GGML", 4);
    expect(&file, TAMIS_E_FORMAT, "47 47 4d 4c");
    small_default(&file);
    file.version = 1;
    expect(&file, TAMIS_E_UNSUPPORTED,
           "version 1 is not read, only little-endian versions 2 and 3");
    file.version = 4;
    expect(&file, TAMIS_E_UNSUPPORTED, "version 4 is not read");
    file.version = 2;
    expect(&file, TAMIS_OK, "");
    file.version = 3u << 24; /* a big-endian file */
    expect(&file, TAMIS_E_UNSUPPORTED, "version 50331648");
    small_default(&file);
    file.n_keys_stated = 1ull << 61;
    expect(&file, TAMIS_E_FORMAT, "2305843009213693952 keys");
    file.n_keys_stated = file.n_keys + 1;
    expect(&file, TAMIS_E_FORMAT, "");
    small_default(&file);
    file.n_tensors_stated = UINT64_MAX - 1;
    expect(&file, TAMIS_E_FORMAT, "18446744073709551614 tensors");
    file.n_tensors_stated = file.n_tensors + 1;
    expect(&file, TAMIS_E_FORMAT, "");
    file.n_tensors_stated = file.n_tensors - 1;
    expect(&file, TAMIS_E_FORMAT, "'output_norm.weight' is missing");
}

/* A key's new type and number, or its removal (type 99). */
typedef struct key_case {
    const char *name;
    uint32_t type;
    int64_t number;
    tamis_status status;
    const char *part;
} key_case;

#define REMOVED 99
static const key_case key_cases[] = {
    {"general.architecture", REMOVED, 0, TAMIS_E_FORMAT, "'general.architecture' is missing"},
    {"general.architecture", U32, 1, TAMIS_E_FORMAT, "has type u32; string"},
    {"general.name", BOOL, 1, TAMIS_E_FORMAT, "'general.name' has type bool"},
    {"general.alignment", U32, 0, TAMIS_E_FORMAT, "alignment is 0"},
    {"general.alignment", U32, 48, TAMIS_E_FORMAT, "alignment is 48"},
    {"general.alignment", U32, 4, TAMIS_E_FORMAT, "alignment is 4"},
    {"general.alignment", U32, 1 << 30, TAMIS_E_FORMAT, "alignment is 1073741824"},
    {"general.alignment", F32, 32, TAMIS_E_FORMAT, "has type f32; an integer"},
    {"llama.block_count", REMOVED, 0, TAMIS_E_FORMAT, "'llama.block_count' is missing"},
    {"llama.block_count", U32, 0, TAMIS_E_FORMAT, "'llama.block_count' is 0"},
    {"llama.block_count", U32, 2, TAMIS_E_FORMAT, "'blk.1.attn_norm.weight' is missing"},
    {"llama.block_count", U32, 1 << 24, TAMIS_E_FORMAT, "16777216 layers"},
    {"llama.block_count", U32, UINT32_MAX, TAMIS_E_FORMAT, "is 4294967295"},
    {"llama.block_count", U64, 1ll << 32, TAMIS_E_FORMAT, "is 4294967296"},
    {"llama.block_count", U64, -1, TAMIS_E_FORMAT, "is 18446744073709551615"},
    {"llama.block_count", I8, -1, TAMIS_E_FORMAT, "is -1"},
    {"llama.block_count", I16, -300, TAMIS_E_FORMAT, "is -300"},
    {"llama.block_count", I32, -70000, TAMIS_E_FORMAT, "is -70000"},
    {"llama.block_count", I64, INT64_MIN, TAMIS_E_FORMAT, "is -9223372036854775808"},
    {"llama.block_count", STRING, 0, TAMIS_E_FORMAT, "has type string"},
    {"llama.block_count", 13, 0, TAMIS_E_FORMAT, "unknown type 13"},
    {"llama.block_count", UINT32_MAX, 0, TAMIS_E_FORMAT, "unknown type 4294967295"},
    {"llama.context_length", REMOVED, 0, TAMIS_E_FORMAT, "'llama.context_length' is missing"},
    {"llama.context_length", U32, 0, TAMIS_E_FORMAT, "'llama.context_length' is 0"},
    {"llama.context_length", U64, UINT32_MAX, TAMIS_OK, ""},
    {"llama.context_length", U64, 1ll << 32, TAMIS_E_FORMAT, "context_length' is 4294967296"},
    {"llama.embedding_length", U32, 0, TAMIS_E_FORMAT, "'llama.embedding_length' is 0"},
    {"llama.embedding_length", U32, 9, TAMIS_E_FORMAT, "9 x 4 is expected"},
    {"llama.feed_forward_length", U32, 17, TAMIS_E_FORMAT, "8 x 17 is expected"},
    {"llama.attention.head_count", U32, 0, TAMIS_E_FORMAT, "head_count' is 0"},
    {"llama.attention.head_count", U32, 2, TAMIS_E_FORMAT, "8 x 128 is expected"},
    {"llama.attention.head_count", U32, 1 << 24, TAMIS_E_FORMAT, "16777216 heads"},
    {"llama.attention.key_length", REMOVED, 0, TAMIS_E_FORMAT, "8 x 8 is expected"},
    {"llama.attention.key_length", U32, 7, TAMIS_E_FORMAT, "dimension_count is 7"},
    {"llama.attention.key_length", U32, 2048, TAMIS_E_UNSUPPORTED, "heads of 2048 channels"},
    {"llama.attention.layer_norm_rms_epsilon", REMOVED, 0, TAMIS_E_FORMAT, "is missing"},
    {"llama.attention.layer_norm_rms_epsilon", F32, 0, TAMIS_E_FORMAT, "epsilon' is 0"},
    {"llama.attention.layer_norm_rms_epsilon", F64, -1, TAMIS_E_FORMAT, "epsilon' is -1"},
    {"llama.attention.layer_norm_rms_epsilon", U32, 2, TAMIS_E_FORMAT, "epsilon' is 2"},
    {"llama.attention.layer_norm_rms_epsilon", STRING, 1, TAMIS_E_FORMAT, "string; a number is"},
    {"llama.attention.layer_norm_rms_epsilon", BOOL, 1, TAMIS_E_FORMAT, "has type bool; a number"},
    {"llama.rope.freq_base", U32, 500000, TAMIS_OK, ""},
    {"llama.rope.freq_base", I64, 500000, TAMIS_OK, ""},
    {"llama.rope.freq_base", I32, -1, TAMIS_E_FORMAT, "freq_base' is -1"},
    {"llama.rope.freq_base", U64, -1, TAMIS_OK, ""}, /* 2^64 - 1 */
    {"llama.rope.freq_base", F32, 0, TAMIS_E_FORMAT, "freq_base' is 0"},
    {"tokenizer.ggml.model", REMOVED, 0, TAMIS_E_FORMAT, "'tokenizer.ggml.model' is missing"},
    {"tokenizer.ggml.model", U8, 0, TAMIS_E_FORMAT, "has type u8; string"},
    {"tokenizer.ggml.tokens", REMOVED, 0, TAMIS_E_FORMAT, "'tokenizer.ggml.tokens' is missing"},
    {"tokenizer.ggml.tokens", U8, 0, TAMIS_E_FORMAT, "array of string"},
    {"tokenizer.ggml.token_type", REMOVED, 0, TAMIS_OK, ""},
    {"tokenizer.ggml.token_type", U8, 0, TAMIS_E_FORMAT, "type u8; array of integers is"},
};

static void test_keys(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof key_cases / sizeof key_cases[0]; ++i) {
        const key_case *c = &key_cases[i];
        small_file file;
        small_default(&file);
        if (c->type == REMOVED) {
            small_remove_key(&file, c->name);
        } else {
            small_key *key = small_find_key(&file, c->name);
            key->type = c->type;
            key->number = c->number;
            key->real = (double)c->number;
        }
        expect(&file, c->status, c->part);
    }
}

/* A key beside the others. */
static const key_case added_keys[] = {
    {"llama.block_count", U32, 1, TAMIS_E_FORMAT, "'llama.block_count' stands twice"},
    {"llama.attention.head_count_kv", U32, 0, TAMIS_E_FORMAT, "head_count_kv' is 0"},
    {"llama.attention.head_count_kv", U32, 2, TAMIS_E_FORMAT, "no multiple of 2 KV heads"},
    {"llama.attention.value_length", U32, 32, TAMIS_E_UNSUPPORTED, "values of 32 channels"},
    {"llama.rope.dimension_count", U32, 63, TAMIS_E_FORMAT, "dimension_count is 63"},
    {"llama.rope.dimension_count", U32, 66, TAMIS_E_FORMAT, "dimension_count is 66"},
    {"llama.rope.dimension_count", U32, 32, TAMIS_OK, ""},
    {"llama.vocab_size", U32, 5, TAMIS_E_FORMAT, "vocab_size' is 5"},
    {"llama.vocab_size", U32, 4, TAMIS_OK, ""},
    {"llama.attention.sliding_window", U32, 4096, TAMIS_OK, ""},
    {"llama.attention.sliding_window", I32, -1, TAMIS_E_FORMAT, "sliding_window' is -1"},
    {"llama.rope.scaling.factor", F32, 4, TAMIS_OK, ""},
    {"llama.rope.scaling.factor", F32, 0, TAMIS_E_FORMAT, "factor' is 0; 1e-06 to 1e+06 can be"},
    {"llama.rope.scaling.factor", F32, -2, TAMIS_E_FORMAT, "factor' is -2"},
    {"llama.rope.scaling.factor", U32, 4, TAMIS_OK, ""},
    {"llama.rope.scale_linear", F32, 0, TAMIS_E_FORMAT, "scale_linear' is 0"},
    {"llama.rope.scaling.attn_factor", F32, 2, TAMIS_OK, ""},
    {"llama.rope.scaling.attn_factor", F32, 0, TAMIS_E_FORMAT, "attn_factor' is 0"},
    {"llama.rope.scaling.original_context_length", U32, 0, TAMIS_E_FORMAT, "length' is 0"},
    {"llama.rope.scaling.yarn_beta_fast", F32, 0, TAMIS_E_FORMAT, "beta_fast' is 0"},
    {"llama.rope.scaling.yarn_beta_slow", F32, -1, TAMIS_E_FORMAT, "beta_slow' is -1"},
    {"llama.rope.scaling.yarn_ext_factor", F32, 1, TAMIS_OK, ""},
    {"llama.rope.scaling.yarn_ext_factor", F32, 2, TAMIS_E_UNSUPPORTED, "is not known and may"},
    {"llama.rope.scaling.yarn_attn_factor", F32, 2, TAMIS_E_UNSUPPORTED,
     "attn_factor is 2; it follows"},
    {"llama.rope.scaling.finetuned", BOOL, 1, TAMIS_OK, ""},
    /* what the model does not have, as its value says */
    {"llama.expert_count", U32, 8, TAMIS_E_UNSUPPORTED, "'llama.expert_count' is not known"},
    {"llama.expert_count", U32, 0, TAMIS_OK, ""},
    {"llama.expert_used_count", I64, 0, TAMIS_OK, ""},
    {"llama.expert_used_count", U8, 2, TAMIS_E_UNSUPPORTED, "'llama.expert_used_count' is not"},
    {"llama.expert_count", STRING, 0, TAMIS_E_UNSUPPORTED, "'llama.expert_count' is not known"},
    {"llama.attention.causal", BOOL, 1, TAMIS_OK, ""},
    {"llama.attention.causal", BOOL, 0, TAMIS_E_UNSUPPORTED, "'llama.attention.causal' is not"},
    {"llama.logit_scale", F32, 2, TAMIS_E_UNSUPPORTED, "'llama.logit_scale' is not known"},
    {"llama.logit_scale", F32, 1, TAMIS_OK, ""},
    {"llama.final_logit_softcapping", F32, 0, TAMIS_OK, ""},
    {"llama.final_logit_softcapping", F32, 30, TAMIS_E_UNSUPPORTED, "softcapping' is not known"},
    {"llama.tensor_data_layout", STRING, 0, TAMIS_OK, ""},
    {"llama.ssm.conv\x1b[2J", U32, 1, TAMIS_E_UNSUPPORTED, "key 'llama.ssm.conv?[2J' is not"},
    {"tokenizer.ggml.padding_token_id", U32, 4, TAMIS_OK, ""},
    {"tokenizer.ggml.padding_token_id", I32, -1, TAMIS_OK, ""},
    {"tokenizer.ggml.padding_token_id", F32, 1, TAMIS_E_FORMAT, "padding_token_id' has type f32"},
    {"tokenizer.ggml.unknown_token_id", U64, -1, TAMIS_OK, ""},
    {"tokenizer.ggml.eos_token_id", U32, 4, TAMIS_E_FORMAT,
     "key 'tokenizer.ggml.eos_token_id' is "},
    {"tokenizer.ggml.eos_token_id", U32, UINT32_MAX, TAMIS_E_FORMAT, "eos_token_id' is 4294967295"},
    {"tokenizer.ggml.eos_token_id", U64, 1ll << 40, TAMIS_E_FORMAT, "eos_token_id' is 10995116277"},
    {"tokenizer.ggml.bos_token_id", U32, 4, TAMIS_E_FORMAT,
     "key 'tokenizer.ggml.bos_token_id' is "},
    {"tokenizer.ggml.eot_token_id", I32, -1, TAMIS_E_FORMAT, "'tokenizer.ggml.eot_token_id' is -1"},
    {"tokenizer.ggml.add_bos_token", BOOL, 1, TAMIS_E_FORMAT, "bos_token_id' is missing"},
    {"tokenizer.ggml.add_bos_token", BOOL, 2, TAMIS_E_FORMAT, "is the bool 2"},
    {"tokenizer.ggml.add_bos_token", BOOL, 0, TAMIS_OK, ""},
    {"anything.else", U32, 5, TAMIS_OK, ""},
    {"", U32, 5, TAMIS_OK, ""},
};

static void test_added_keys(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof added_keys / sizeof added_keys[0]; ++i) {
        const key_case *c = &added_keys[i];
        small_file file;
        small_default(&file);
        small_add_key(&file, c->name, c->type, c->number);
        expect(&file, c->status, c->part);
    }
}

static void test_not_finite(void **state) {
    (void)state;
    small_file file;
    small_default(&file);
    small_find_key(&file, "llama.rope.freq_base")->real = (double)INFINITY;
    expect(&file, TAMIS_E_FORMAT, "freq_base' is inf");
    small_find_key(&file, "llama.rope.freq_base")->real = (double)NAN;
    expect(&file, TAMIS_E_FORMAT, "freq_base' is");
}

static void test_texts(void **state) {
    (void)state;
    small_file file;
    small_default(&file);
    small_find_key(&file, "general.architecture")->strings[0] = "mamba";
    expect(&file, TAMIS_E_UNSUPPORTED, "architecture 'mamba'");
    small_find_key(&file, "general.architecture")->strings[0] = "bad\x1b[2Jtext";
    expect(&file, TAMIS_E_UNSUPPORTED, "architecture 'bad?[2Jtext'");
    small_default(&file);
    small_find_key(&file, "general.name")->string_bytes = UINT64_MAX - 7;
    expect(&file, TAMIS_E_FORMAT, "states 18446744073709551608 bytes");
    small_default(&file);
    small_add_key(&file, "llama.rope.scaling.type", STRING, 0)->strings[0] = "longrope";
    expect(&file, TAMIS_E_UNSUPPORTED, "type 'longrope' is not known; none, linear and yarn are");
    small_find_key(&file, "llama.rope.scaling.type")->strings[0] = "none";
    expect(&file, TAMIS_OK, "");
    small_find_key(&file, "tokenizer.ggml.model")->strings[0] = "bert";
    expect(&file, TAMIS_E_UNSUPPORTED, "tokenizer 'bert' is not read, only gpt2 and llama");
}

static void test_arrays(void **state) {
    (void)state;
    small_file file;
    small_default(&file);
    small_find_key(&file, "tokenizer.ggml.token_type")->count = UINT64_MAX / 4 + 2;
    expect(&file, TAMIS_E_FORMAT, "states 4611686018427387905 values of type i32");
    small_find_key(&file, "tokenizer.ggml.token_type")->count = 3;
    expect(&file, TAMIS_E_FORMAT, "");
    small_default(&file);
    small_find_key(&file, "tokenizer.ggml.tokens")->count = UINT64_MAX - 1;
    expect(&file, TAMIS_E_FORMAT, "states 18446744073709551614 values of type string");
    small_find_key(&file, "tokenizer.ggml.tokens")->count = 5;
    expect(&file, TAMIS_E_FORMAT, "");
    small_default(&file);
    small_find_key(&file, "tokenizer.ggml.token_type")->element = ARRAY;
    expect(&file, TAMIS_E_UNSUPPORTED, "array of arrays");
    small_find_key(&file, "tokenizer.ggml.token_type")->element = 77;
    expect(&file, TAMIS_E_FORMAT, "unknown type 77");
    small_find_key(&file, "tokenizer.ggml.token_type")->element = F32;
    expect(&file, TAMIS_E_FORMAT, "has type array of f32; array of integers");
    small_find_key(&file, "tokenizer.ggml.token_type")->element = BOOL;
    expect(&file, TAMIS_E_FORMAT, "has type array of bool; array of integers");
    for (int64_t type = U8; type <= I64; type++) {
        if (type >= F32 && type <= ARRAY) continue;
        small_find_key(&file, "tokenizer.ggml.token_type")->element = type;
        expect(&file, TAMIS_OK, "");
    }
}

/* Numbers that a file states for each of its layers, here one. */
static void test_arrays_of_layers(void **state) {
    static const char *const keys[] = {"llama.attention.head_count_kv",
                                       "llama.attention.head_count", "llama.feed_forward_length"};
    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i) {
        small_file file;
        small_default(&file);
        small_key *key = small_find_key(&file, keys[i]);
        if (!key) key = small_add_key(&file, keys[i], U32, 1);
        key->type = ARRAY;
        key->element = I32;
        key->n_items = 1;
        key->items[0] = (double)key->number;
        expect(&file, TAMIS_OK, "");
        key->items[0] = -1;
        expect(&file, TAMIS_E_FORMAT, "' is -1; 0 to 4294967295 can be");
        key->n_items = 2;
        expect(&file, TAMIS_E_FORMAT, "' has 2 values for 1 layers");
        small_find_key(&file, "llama.block_count")->number = 2;
        key->items[1] = 7;
        expect(&file, TAMIS_E_UNSUPPORTED, "is -1 for layer 0 and 7 for layer 1; only layers that");
        key->element = F32;
        expect(&file, TAMIS_E_FORMAT, "has type array of f32; array of integers");
    }
    small_file file;
    small_default(&file);
    small_key *width = small_find_key(&file, "llama.embedding_length");
    width->type = ARRAY;
    width->element = U32;
    expect(&file, TAMIS_E_FORMAT, "'llama.embedding_length' has type array of");
}

static void test_vocabulary(void **state) {
    (void)state;
    small_file file;
    small_default(&file);
    small_key *tokens = small_find_key(&file, "tokenizer.ggml.tokens");
    tokens->strings[3] = "ab";
    expect(&file, TAMIS_E_UNSUPPORTED, "token 3, 'ab', is not one byte");
    tokens->strings[3] = "";
    expect(&file, TAMIS_E_UNSUPPORTED, "token 3, ''");
    tokens->strings[3] = "\xc5"; /* half a character */
    expect(&file, TAMIS_E_UNSUPPORTED, "token 3");
    tokens->strings[3] = " "; /* a byte that the alphabet writes as another character */
    expect(&file, TAMIS_E_UNSUPPORTED, "token 3");
    tokens->strings[3] = "\xc5\x84"; /* U+0144, one past the alphabet */
    expect(&file, TAMIS_E_UNSUPPORTED, "token 3");
    tokens->strings[3] = "a";
    expect(&file, TAMIS_E_FORMAT, "tokens 0 and 3 are both byte 97");
    tokens->strings[3] = "\xc5\x83"; /* U+0143, byte 173 */
    expect(&file, TAMIS_OK, "");
    tokens->n_strings = 3;
    expect(&file, TAMIS_E_FORMAT, "3 tokens have 4 types");
    small_remove_key(&file, "tokenizer.ggml.token_type");
    expect(&file, TAMIS_E_FORMAT, "8 x 3 is expected");
    small_default(&file);
    small_key *merges = small_add_key(&file, "tokenizer.ggml.merges", ARRAY, 0);
    merges->element = STRING;
    merges->n_strings = 0;
    expect(&file, TAMIS_OK, "");
    small_find_key(&file, "tokenizer.ggml.tokens")->n_strings = 0;
    expect(&file, TAMIS_E_FORMAT, "has 0 tokens");
}

static void test_tensors(void **state) {
    (void)state;
    small_file file;
    const char *const q = "blk.0.attn_q.weight";
    small_default(&file);
    small_find_tensor(&file, q)->type = TENSOR_IQ3_S;
    expect(
        &file, TAMIS_E_UNSUPPORTED,
        "'blk.0.attn_q.weight' has type IQ3_S (21); types that are read: f32, f16, bf16, Q8_0, ");
    small_find_tensor(&file, q)->type = 4; /* retired */
    expect(&file, TAMIS_E_UNSUPPORTED, "has type unknown (4)");
    small_find_tensor(&file, q)->type = UINT32_MAX;
    expect(&file, TAMIS_E_UNSUPPORTED, "has type unknown (4294967295)");
    small_default(&file);
    small_remove_tensor(&file, q);
    expect(&file, TAMIS_E_FORMAT, "tensor 'blk.0.attn_q.weight' is missing");
    small_default(&file);
    small_add_tensor(&file, q, TENSOR_F32, 8, 64);
    expect(&file, TAMIS_E_FORMAT, "tensor 'blk.0.attn_q.weight' stands twice");
    const char *const extra[] = {
        "rope_factors_long.weight",
        "output.bias",
        "blk.1.attn_q.weight",
        "blk.0.attn_q_norm.weight",
        "blk.00.attn_q.weight",
        "blk.-1.attn_q.weight",
        "blk.",
        "",
        "a name that is longer than any name of a tensor that is read here"};
    for (size_t i = 0; i < sizeof extra / sizeof extra[0]; ++i) {
        small_default(&file);
        small_add_tensor(&file, extra[i], TENSOR_F32, 8, 64);
        expect(&file, TAMIS_E_UNSUPPORTED, "is no part of a llama model of 1 layers");
    }
}

/* The keys of an architecture begin with its name. */
static void rename_architecture(small_file *file, const char *name, char (*keys)[80]) {
    small_find_key(file, "general.architecture")->strings[0] = name;
    for (size_t i = 0; i < file->n_keys; ++i) {
        if (strncmp(file->keys[i].name, "llama.", 6) != 0) continue;
        snprintf(keys[i], sizeof keys[i], "%s.%s", name, file->keys[i].name + 6);
        file->keys[i].name = keys[i];
    }
}

/* Which tensors an architecture needs, takes and refuses beside those that all have. */
static void test_architectures(void **state) {
    (void)state;
    const char *const qkv[] = {"blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.0.attn_v.bias"};
    const char *const norms[] = {"blk.0.attn_q_norm.weight", "blk.0.attn_k_norm.weight"};
    char keys[SMALL_KEYS][80];
    small_file file;
    small_default(&file);
    small_add_tensor(&file, qkv[1], TENSOR_F16, 64, 0); /* one alone, too */
    small_add_tensor(&file, "blk.0.attn_output.bias", TENSOR_F32, 8, 0);
    small_add_tensor(&file, "blk.0.ffn_gate.bias", TENSOR_F32, 16, 0);
    small_add_tensor(&file, "blk.0.ffn_up.bias", TENSOR_F32, 16, 0);
    small_add_tensor(&file, "blk.0.ffn_down.bias", TENSOR_F32, 8, 0);
    expect(&file, TAMIS_OK, "");
    small_find_tensor(&file, qkv[1])->dims[0] = 8;
    expect(&file, TAMIS_E_FORMAT, "'blk.0.attn_k.bias' is of 8 x 1 x 1 x 1; 64 x 1 is expected");
    small_default(&file);
    rename_architecture(&file, "qwen2", keys);
    expect(&file, TAMIS_E_FORMAT, "tensor 'blk.0.attn_q.bias' is missing");
    for (size_t i = 0; i < 3; ++i)
        small_add_tensor(&file, qkv[i], TENSOR_F32, 64, 0);
    expect(&file, TAMIS_OK, "");
    small_key *window = small_add_key(&file, "qwen2.attention.sliding_window", U32, 4096);
    expect(&file, TAMIS_OK, "");
    window->number = 8;
    expect(&file, TAMIS_E_UNSUPPORTED,
           "'qwen2.attention.sliding_window' is 8; which layers have the window is not known");
    window->number = 0;
    expect(&file, TAMIS_OK, "");
    small_add_tensor(&file, "blk.0.ffn_up.bias", TENSOR_F32, 16, 0);
    expect(&file, TAMIS_E_UNSUPPORTED, "'blk.0.ffn_up.bias' is no part of a qwen2 model");
    small_default(&file);
    rename_architecture(&file, "qwen3", keys);
    expect(&file, TAMIS_E_FORMAT, "tensor 'blk.0.attn_q_norm.weight' is missing");
    small_add_tensor(&file, norms[0], TENSOR_F32, 64, 0);
    small_add_tensor(&file, norms[1], TENSOR_F32, 8, 0);
    expect(&file, TAMIS_E_FORMAT, "'blk.0.attn_k_norm.weight' is of 8 x 1 x 1 x 1; 64 x 1 is");
    small_find_tensor(&file, norms[1])->dims[0] = 64;
    expect(&file, TAMIS_OK, "");
    small_add_tensor(&file, "rope_freqs.weight", TENSOR_F32, 32, 0);
    expect(&file, TAMIS_E_UNSUPPORTED, "'rope_freqs.weight' is no part of a qwen3 model");
}

/* The file as one of another architecture: every key "llama.X" becomes "NAME.X". */
static void become(small_file *file, const char *name) {
    static char keys[SMALL_KEYS][80];
    small_default(file);
    rename_architecture(file, name, keys);
}

/* Architectures that are known and not read, with why; those that are not known. */
static void test_refused(void **state) {
    (void)state;
    small_file file;
    const tamis_architecture_info *info;
    size_t read = 0, refused = 0;
    for (uint32_t i = 0; (info = tamis_architecture_describe(i)) != NULL; ++i) {
        become(&file, info->name);
        if (info->refused) expect(&file, TAMIS_E_UNSUPPORTED, info->refused);
        assert_true(info->refused || refused == 0); /* those that are read come first */
        read += info->refused == NULL;
        refused += info->refused != NULL;
    }
    assert_true(read >= 25 && refused >= 80);
    become(&file, "tables");
    expect(&file, TAMIS_E_UNSUPPORTED, "architecture 'tables' is not known; `tamis models` lists");
}

/* Which layers are local: a number, or a bool or a number for each layer. */
static void test_patterns(void **state) {
    static const uint32_t types[] = {BOOL, U32, I64};
    (void)state;
    small_file file;
    become(&file, "cohere2");
    expect(&file, TAMIS_E_FORMAT, "'cohere2.logit_scale' is missing");
    small_add_key(&file, "cohere2.logit_scale", F32, 0)->real = 0.25;
    expect(&file, TAMIS_E_FORMAT, "'cohere2.attention.sliding_window' is 0 or missing");
    small_key *window = small_add_key(&file, "cohere2.attention.sliding_window", U32, 8);
    expect(&file, TAMIS_E_FORMAT, "'cohere2.attention.layer_norm_epsilon' is missing");
    small_add_key(&file, "cohere2.attention.layer_norm_epsilon", F32, 0)->real = 1e-5;
    small_remove_tensor(&file, "blk.0.ffn_norm.weight");
    expect(&file, TAMIS_OK, "");
    small_key *pattern = small_add_key(&file, "cohere2.attention.sliding_window_pattern", U32, 0);
    expect(&file, TAMIS_OK, "");
    pattern->type = ARRAY;
    pattern->n_items = 1;
    for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
        pattern->element = types[i];
        expect(&file, TAMIS_OK, "");
    }
    pattern->n_items = 2;
    expect(&file, TAMIS_E_FORMAT, "sliding_window_pattern' has 2 values for 1 layers");
    pattern->n_items = 1;
    pattern->element = F32;
    expect(&file, TAMIS_E_FORMAT, "sliding_window_pattern' has no bools and no integers");
    pattern->type = U32;
    pattern->element = -1;
    pattern->number = 4;
    window->number = 0;
    expect(&file, TAMIS_E_FORMAT, "'cohere2.attention.sliding_window' is 0 or missing");
    become(&file, "qwen2");
    small_add_key(&file, "qwen2.attention.sliding_window_pattern", U32, 4);
    expect(&file, TAMIS_E_UNSUPPORTED, "sliding_window_pattern' is not known and may change");
}

/* Scales and caps, whose 0 means none. */
static void test_scales(void **state) {
    (void)state;
    small_file file;
    become(&file, "granite");
    small_key *scale = small_add_key(&file, "granite.residual_scale", F32, 0);
    small_key *logits = small_add_key(&file, "granite.logit_scale", F32, 0);
    small_add_key(&file, "granite.ssm.conv_kernel", U32, 4); /* of Granite 4, which has none */
    logits->real = 8;
    expect(&file, TAMIS_OK, "");
    logits->real = 1e-30;
    expect(&file, TAMIS_E_FORMAT, "'granite.logit_scale' is 1e-30; 0 or 1e-6 to 1e6 can be");
    logits->real = 8;
    scale->real = -1;
    expect(&file, TAMIS_E_FORMAT, "'granite.residual_scale' is -1; 0 to 1e+06 can be");
    scale->real = (double)NAN;
    expect(&file, TAMIS_E_FORMAT, "'granite.residual_scale' is");
    scale->real = 0.22;
    expect(&file, TAMIS_OK, "");
    small_add_key(&file, "granite.rope.scaling.finetuned", U32, 1);
    expect(&file, TAMIS_E_FORMAT, "finetuned' has type u32; bool is expected");
    small_find_key(&file, "granite.rope.scaling.finetuned")->type = BOOL;
    expect(&file, TAMIS_OK, "");
    small_add_key(&file, "granite.attn_logit_softcapping", F32, 0)->real = 50;
    expect(&file, TAMIS_E_UNSUPPORTED, "'granite.attn_logit_softcapping' is not known");
}

/* Tensors that join several, whole or of another size; norms with biases. */
static void test_joined(void **state) {
    (void)state;
    small_file file;
    become(&file, "phi3");
    expect(&file, TAMIS_E_FORMAT, "tensor 'blk.0.ffn_up.weight' is of 8 x 16 x 1 x 1; 8 x 32 is");
    small_find_tensor(&file, "blk.0.ffn_up.weight")->dims[1] = 32;
    expect(&file, TAMIS_E_UNSUPPORTED, "'blk.0.ffn_gate.weight' is no part of a phi3 model");
    small_remove_tensor(&file, "blk.0.ffn_gate.weight");
    expect(&file, TAMIS_OK, "");
    small_remove_tensor(&file, "blk.0.attn_k.weight");
    expect(&file, TAMIS_E_FORMAT, "tensor 'blk.0.attn_k.weight' is missing");
    small_remove_tensor(&file, "blk.0.attn_q.weight");
    small_remove_tensor(&file, "blk.0.attn_v.weight");
    small_add_tensor(&file, "blk.0.attn_qkv.weight", TENSOR_F16, 8, 191);
    expect(&file, TAMIS_E_FORMAT, "'blk.0.attn_qkv.weight' is of 8 x 191 x 1 x 1; 8 x 192 is");
    small_find_tensor(&file, "blk.0.attn_qkv.weight")->dims[1] = 192;
    expect(&file, TAMIS_OK, "");
    small_add_tensor(&file, "rope_factors_short.weight", TENSOR_F32, 32, 0);
    expect(&file, TAMIS_E_FORMAT,
           "of tensors 'rope_factors_short.weight' and 'rope_factors_long.weight' one is missing");
    become(&file, "orion");
    small_add_key(&file, "orion.attention.layer_norm_epsilon", F32, 0)->real = 1e-5;
    expect(&file, TAMIS_E_FORMAT, "tensor 'output.weight' is missing");
    become(&file, "orion");
    small_add_tensor(&file, "output.weight", TENSOR_F16, 8, 4);
    small_add_key(&file, "orion.attention.layer_norm_epsilon", F32, 0)->real = 1e-5;
    expect(&file, TAMIS_E_FORMAT, "tensor 'blk.0.attn_norm.bias' is missing");
    small_add_tensor(&file, "blk.0.attn_norm.bias", TENSOR_F32, 8, 0);
    small_add_tensor(&file, "blk.0.ffn_norm.bias", TENSOR_F32, 8, 0);
    expect(&file, TAMIS_OK, "");
    become(&file, "stablelm");
    small_add_tensor(&file, "output.weight", TENSOR_F16, 8, 4);
    small_add_key(&file, "stablelm.attention.layer_norm_epsilon", F32, 0)->real = 1e-5;
    small_add_tensor(&file, "blk.0.attn_norm.bias", TENSOR_F32, 8, 0);
    small_add_tensor(&file, "blk.0.ffn_norm.bias", TENSOR_F32, 8, 0);
    expect(&file, TAMIS_OK, "");
    small_remove_tensor(&file, "blk.0.ffn_norm.weight");
    expect(&file, TAMIS_E_FORMAT, "layer 0 has 'ffn_norm.bias' without 'ffn_norm.weight'");
}

static void test_rope(void **state) {
    (void)state;
    small_file file;
    small_default(&file);
    small_tensor *factors = small_add_tensor(&file, "rope_freqs.weight", TENSOR_F16, 32, 0);
    expect(&file, TAMIS_OK, "");
    factors->dims[0] = 33;
    expect(&file, TAMIS_E_FORMAT, "33 x 1 x 1 x 1; 32 x 1 is expected");
    factors->dims[0] = 32;
    factors->type = TENSOR_F32; /* two of the file's 16-bit numbers make one far too small */
    expect(&file, TAMIS_E_FORMAT, "tensor 'rope_freqs.weight' has ");
    small_default(&file);
    small_add_key(&file, "llama.rope.scaling.type", STRING, 0)->strings[0] = "yarn";
    small_add_key(&file, "llama.rope.scaling.factor", F32, 4);
    expect(&file, TAMIS_OK, "");
    small_add_key(&file, "llama.rope.dimension_count", U32, 32);
    expect(&file, TAMIS_OK, "");
    small_remove_key(&file, "llama.rope.dimension_count");
    small_find_key(&file, "llama.rope.freq_base")->real = 1;
    expect(&file, TAMIS_E_FORMAT, "type 'yarn' with rope.freq_base 1");
}

/* A base that is small for the original context: the ramp ends behind the last pair, at 33 of 0 to 31,
 * and must not be cut there. Wanted: the formula of the published code, computed in float64. */
static void test_yarn_ramp(void **state) {
    static const struct {
        int pair;
        double wanted;
    } cases[] = {{0, 1},
                 {20, 0.0031622776601683794},
                 {25, 0.0005335785720250167},
                 {30, 7.5234898117031339e-05},
                 {31, 4.872482155981376e-05}};
    const tms_rope rope = {.base = 10000,
                           .scaling = TMS_ROPE_YARN,
                           .factor = 4,
                           .attention = 1,
                           .beta_fast = 32,
                           .beta_slow = 1,
                           .original_context = 65536};
    double got[32];
    (void)state;
    tms_rope_frequencies(&rope, 64, NULL, got);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
        if (fabs(got[cases[i].pair] / cases[i].wanted - 1) > 1e-12)
            fail_msg("pair %d: %.17g, not %.17g", cases[i].pair, got[cases[i].pair],
                     cases[i].wanted);
}

/* Rows are whole blocks, and as many as fit behind the offset are read: no more. */
static void test_blocks(void **state) {
    (void)state;
    static const struct {
        uint32_t type;
        uint64_t elements, bytes;
        const char *name;
    } types[] = {{TENSOR_Q8_0, 32, 34, "Q8_0"},     {TENSOR_Q4_0, 32, 18, "Q4_0"},
                 {TENSOR_Q4_1, 32, 20, "Q4_1"},     {TENSOR_Q5_0, 32, 22, "Q5_0"},
                 {TENSOR_Q4_K, 256, 144, "Q4_K"},   {TENSOR_Q6_K, 256, 210, "Q6_K"},
                 {TENSOR_Q5_1, 32, 24, "Q5_1"},     {TENSOR_Q5_K, 256, 176, "Q5_K"},
                 {TENSOR_Q3_K, 256, 110, "Q3_K"},   {TENSOR_Q2_K, 256, 84, "Q2_K"},
                 {TENSOR_IQ4_NL, 32, 18, "IQ4_NL"}, {TENSOR_IQ4_XS, 256, 136, "IQ4_XS"},
                 {TENSOR_MXFP4, 32, 17, "MXFP4"}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i) {
        char part[128];
        small_file file;
        small_default(&file);
        small_tensor *output = small_find_tensor(&file, "blk.0.attn_output.weight");
        output->type = types[i].type;
        snprintf(part, sizeof part, "rows of 64 elements, no multiple of the 256 of a block of %s",
                 types[i].name);
        if (types[i].elements > 64) {
            expect(&file, TAMIS_E_FORMAT, part);
            continue;
        }
        expect(&file, TAMIS_OK, "");
        output->dims[0] = 48;
        snprintf(part, sizeof part, "rows of 48 elements, no multiple of the 32 of a block of %s",
                 types[i].name);
        expect(&file, TAMIS_E_FORMAT, part);
        output->dims[0] = 1ull << 58; /* far beyond the file, counted in blocks too */
        expect(&file, TAMIS_E_FORMAT, "leaves the file");
        output->dims[0] = 1ull << 63;
        expect(&file, TAMIS_E_FORMAT, "impossible dim 9223372036854775808");
    }
    small_file file;
    small_default(&file);
    small_find_tensor(&file, "output_norm.weight")->type = TENSOR_Q8_0;
    expect(&file, TAMIS_E_FORMAT, "rows of 8 elements, no multiple of the 32 of a block of Q8_0");
    small_add_tensor(&file, "blk.0.attn_q.bias", TENSOR_Q8_0, 64, 0);
    small_remove_tensor(&file, "output_norm.weight");
    small_add_tensor(&file, "output_norm.weight", TENSOR_F16, 8, 0);
    expect(&file, TAMIS_E_UNSUPPORTED,
           "'blk.0.attn_q.bias' has type Q8_0; vectors are f32, f16 or");
}

/* The last of a file's blocks may not be missing a byte. */
static void test_truncated_blocks(void **state) {
    (void)state;
    small_file file;
    size_t bytes;
    tamis_error error;
    small_default(&file);
    small_remove_tensor(&file, "blk.0.attn_output.weight");
    small_add_tensor(&file, "blk.0.attn_output.weight", TENSOR_Q4_1, 64, 8);
    uint8_t *whole = small_write(&file, &bytes);
    assert_int_equal(small_read(whole, bytes, &error), TAMIS_OK); /* 8 · 2 · 20 bytes, no padding */
    assert_int_equal(small_read(whole, bytes - 1, &error), TAMIS_E_FORMAT);
    assert_non_null(strstr(error.text, ", 320 bytes) leaves the file"));
    free(whole);
}

static void test_dims(void **state) {
    (void)state;
    small_file file;
    small_default(&file);
    small_tensor *q = small_find_tensor(&file, "blk.0.attn_q.weight");
    q->n_dims = 0;
    expect(&file, TAMIS_E_FORMAT, "has 0 dims");
    q->n_dims = 5;
    expect(&file, TAMIS_E_FORMAT, "has 5 dims");
    q->n_dims = UINT32_MAX;
    expect(&file, TAMIS_E_FORMAT, "has 4294967295 dims");
    q->n_dims = 4;
    expect(&file, TAMIS_OK, "");
    q->dims[3] = 0;
    expect(&file, TAMIS_E_FORMAT, "impossible dim 0");
    q->dims[3] = 1ull << 62; /* 8 * 64 * 2^62 elements wrap round to 0 */
    expect(&file, TAMIS_E_FORMAT, "impossible dim 4611686018427387904");
    q->dims[3] = 1ull << 53; /* the bytes wrap, the elements do not */
    expect(&file, TAMIS_E_FORMAT, "impossible dim 9007199254740992");
    q->dims[3] = 1ull << 40;
    expect(&file, TAMIS_E_FORMAT, "leaves the file");
    small_default(&file);
    q->dims[0] = 64;
    q->dims[1] = 8;
    expect(&file, TAMIS_E_FORMAT, "64 x 8 x 1 x 1; 8 x 64 is expected");
    small_default(&file);
    small_find_tensor(&file, "output_norm.weight")->dims[0] = 9;
    expect(&file, TAMIS_E_FORMAT, "9 x 1 x 1 x 1; 8 x 1 is expected");
}

static void test_offsets(void **state) {
    (void)state;
    small_file file;
    small_default(&file);
    small_tensor *last = small_find_tensor(&file, "output_norm.weight");
    last->offset = 1;
    expect(&file, TAMIS_E_FORMAT, "offset 1, not a multiple of the alignment 32");
    last->offset = 32;
    expect(&file, TAMIS_E_FORMAT, "at offset 32 lies over");
    last->offset = 0;
    expect(&file, TAMIS_E_FORMAT, "lies over");
    last->offset = 1 << 20;
    expect(&file, TAMIS_E_FORMAT, "tensor 'output_norm.weight' (offset 1048576, 16 bytes) leaves");
    last->offset = UINT64_MAX - 31; /* offset + bytes wrap */
    expect(&file, TAMIS_E_FORMAT, "(offset 18446744073709551584, 16 bytes) leaves the file");
    small_default(&file);
    file.drop_data = 1;
    expect(&file, TAMIS_E_FORMAT, "leaves the file, whose data section has 0 bytes");
}

/* Every file cut short is refused, up to the last tensor's last byte. */
static void test_truncated(void **state) {
    (void)state;
    small_file file;
    size_t bytes;
    small_default(&file);
    uint8_t *whole = small_write(&file, &bytes);
    /* The last tensor has 16 bytes of 32; the padding behind it may be missing. */
    for (size_t cut = 0; cut < bytes; ++cut) {
        tamis_error error;
        uint8_t *part = malloc(cut + !cut);
        assert_non_null(part);
        memcpy(part, whole, cut);
        tamis_status status = small_read(part, cut, &error);
        free(part);
        if (status != (cut < bytes - 16 ? TAMIS_E_FORMAT : TAMIS_OK))
            fail_msg("cut to %zu of %zu bytes: %s \"%s\"", cut, bytes, tamis_status_name(status),
                     error.text);
    }
    free(whole);
}

#define MUTANTS 20000
static void test_mutants(void **state) {
    (void)state;
    small_file file;
    size_t bytes, count, accepted = 0;
    small_default(&file);
    uint8_t *whole = small_write(&file, &bytes);
    for (uint64_t seed = 1; seed <= MUTANTS; ++seed) {
        tamis_error error;
        uint8_t *mutant = small_mutant(whole, bytes, seed, &count);
        tamis_status status = small_read(mutant, count, &error);
        free(mutant);
        accepted += status == TAMIS_OK;
        if (status != TAMIS_OK && ((status != TAMIS_E_FORMAT && status != TAMIS_E_UNSUPPORTED) ||
                                   error.status != status || !error.text[0]))
            fail_msg("mutant %llu: %s \"%s\"", (unsigned long long)seed, tamis_status_name(status),
                     error.text);
    }
    free(whole);
    /* Both happen, or the mutations miss what they are for. */
    assert_in_range(accepted, MUTANTS / 100, MUTANTS * 9 / 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid),
        cmocka_unit_test(test_head),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_added_keys),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_arrays_of_layers),
        cmocka_unit_test(test_yarn_ramp),
        cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_dims),
        cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_mutants),
        cmocka_unit_test(test_architectures),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_joined),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_truncated_blocks),
    };
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
