/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the vocabulary: any bytes are refused with a reason, or encode a text: the input's last
 * bytes, which are behind what is read where only keys are. */
#include "lib/model/vocab.h"
#include "lib/model/utf8.h"
#include "tests/fuzz/refusal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TEXT_BYTES 200u

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    refusal_abort_on_failure();
    return 0;
}

/* The bytes of all tokens, one after the other, in `to`; returns how many. */
static size_t join(const tms_vocab *vocab, const int32_t *tokens, size_t count, char *to,
                   size_t room) {
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        size_t bytes = 0;
        const char *piece = tamis_vocab_token_text(vocab, tokens[i], &bytes);
        assert_non_null(piece);
        assert_true(bytes <= room - used);
        memcpy(to + used, piece, bytes);
        used += bytes;
    }
    return used;
}

/* Tokens of the text alone stand for its bytes, where these are kept. */
static void check_round_trip(const tms_vocab *vocab, const char *text, size_t bytes,
                             const int32_t *tokens, size_t count) {
    const tamis_vocab_info *info = tamis_vocab_describe(vocab);
    char wanted[TEXT_BYTES + 1] = " ", got[4 * TEXT_BYTES];
    if (info->kind == TAMIS_VOCAB_BPE && !tms_utf8_valid(text, bytes)) return;
    size_t n = bytes > 0 && info->add_space_prefix;
    memcpy(wanted + n, text, bytes);
    n += bytes;
    for (size_t i = 0; i < n && info->kind == TAMIS_VOCAB_SPM; i++)
        if ((uint8_t)wanted[i] == 0xe2) return; /* it may be, or become, what stands for a space */
    for (uint32_t i = 0; i < info->n_tokens && (info->add_space_prefix || vocab->of_phi3); i++)
        if (tamis_vocab_token_kind(vocab, (int32_t)i) == TAMIS_TOKEN_USER_DEFINED) return;
    assert_int_equal(join(vocab, tokens, count, got, sizeof got), n);
    assert_memory_equal(got, wanted, n);
}

static void check_text(const tms_vocab *vocab, const char *text, size_t bytes, uint32_t flags) {
    size_t count = 0, again = 0;
    tamis_error error = {0};
    tamis_status status = tamis_vocab_encode(vocab, text, bytes, flags, NULL, 0, &count, &error);
    if (status != TAMIS_OK) {
        assert_int_equal(status, TAMIS_E_ARGUMENT);
        assert_non_null(strstr(error.text, "lacks byte"));
        assert_false(flags & TAMIS_ENCODE_SKIP_MISSING);
        return;
    }
    int32_t *tokens = malloc(count * sizeof *tokens + 1);
    assert_non_null(tokens);
    status = tamis_vocab_encode(vocab, text, bytes, flags, tokens, count, &again, &error);
    assert_int_equal(status, TAMIS_OK);
    assert_int_equal(again, count);
    for (size_t i = 0; i < count; i++) {
        assert_true(tokens[i] >= 0 && (uint32_t)tokens[i] < tamis_vocab_describe(vocab)->n_tokens);
        /* What no one has asked for does not come: the file's own bos and eos apart. */
        if (flags == 0)
            assert_int_not_equal(tamis_vocab_token_kind(vocab, tokens[i]), TAMIS_TOKEN_CONTROL);
    }
    if (flags == 0) check_round_trip(vocab, text, bytes, tokens, count);
    free(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tms_gguf gguf;
    tms_vocab vocab;
    tamis_error error = {0};
    uint8_t *copy = malloc(size + !size); /* of exactly the size, wherever `data` lies */
    assert_non_null(copy);
    memcpy(copy, data, size);
    tamis_status status = tms_gguf_parse_keys(copy, size, &gguf, &error);
    if (status == TAMIS_OK) status = tms_vocab_read(&gguf, &vocab, &error);
    tms_gguf_close(&gguf);
    free(copy);
    if (status != TAMIS_OK) {
        refusal_check(status, &error);
        return 0;
    }
    const size_t bytes = size < TEXT_BYTES ? size : TEXT_BYTES;
    char *text = malloc(bytes + !bytes);
    assert_non_null(text);
    memcpy(text, data + size - bytes, bytes);
    for (uint32_t flags = 0; flags < 8; flags++)
        check_text(&vocab, text, bytes, flags);
    free(text);
    tms_vocab_free(&vocab);
    return 0;
}
