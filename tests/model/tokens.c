/* SPDX-License-Identifier: Apache-2.0 */
/* Texts against the tokens that llama.cpp makes of them, as make_tokens.py has written them down:
 * test-model-tokens (VOCABULARY.gguf TEXTS.cases)... */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/vocab.h>

static void require(int condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "%s\n", what);
    exit(2);
}

static uint8_t *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    require(file && fseek(file, 0, SEEK_END) == 0, path);
    *bytes = (size_t)ftell(file);
    uint8_t *data = malloc(*bytes + 1);
    rewind(file);
    require(data && fread(data, 1, *bytes, file) == *bytes, path);
    fclose(file);
    return data;
}

static uint32_t take_u32(const uint8_t **at) {
    uint32_t value;
    memcpy(&value, *at, sizeof value);
    *at += sizeof value;
    return value;
}

static void show_tokens(const char *what, const int32_t *tokens, size_t count, size_t from) {
    printf("  %s (%zu):", what, count);
    for (size_t i = from > 2 ? from - 2 : 0; i < count && i < from + 12; ++i)
        printf(" %d", tokens[i]);
    printf("\n");
}

static void show_difference(uint32_t number, const uint8_t *text, uint32_t bytes, uint32_t flags,
                            const int32_t *got, size_t n_got, const int32_t *wanted,
                            size_t n_wanted) {
    size_t same = 0;
    while (same < n_got && same < n_wanted && got[same] == wanted[same])
        ++same;
    printf("text %u, flags %u, the first %zu tokens are equal:\n  ", number, flags, same);
    for (uint32_t i = 0; i < bytes && i < 400; ++i)
        printf(text[i] >= ' ' && text[i] <= '~' ? "%c" : "\\x%02x", text[i]);
    printf("\n");
    show_tokens("got", got, n_got, same);
    show_tokens("wanted", wanted, n_wanted, same);
}

/* Returns how many texts differ. */
static uint32_t compare(const tamis_vocab *vocab, const uint8_t *at, const uint8_t *end) {
    uint32_t wrong = 0;
    require(end - at >= 8 && memcmp(at, "TOKS", 4) == 0, "not a file of cases");
    at += 4;
    const uint32_t n = take_u32(&at);
    for (uint32_t i = 0; i < n; ++i) {
        require(end - at >= 12, "the cases are cut short");
        const uint32_t flags = take_u32(&at), bytes = take_u32(&at), count = take_u32(&at);
        require((size_t)(end - at) >= bytes + (size_t)count * 4, "the cases are cut short");
        /* Of exactly their sizes, so that a sanitizer sees a step beyond them. */
        char *text = malloc(bytes + !bytes);
        int32_t *got = malloc(count * sizeof *got + 4),
                *wanted = malloc(count * sizeof *wanted + 4);
        size_t n_got = 0;
        tamis_error error = {0};
        require(text && got && wanted, "no memory");
        memcpy(text, at, bytes);
        memcpy(wanted, at + bytes, count * sizeof *wanted);
        const tamis_status status =
            tamis_vocab_encode(vocab, text, bytes, flags, got, count, &n_got, &error);
        if (status != TAMIS_OK) printf("%s\n", error.text);
        if (status != TAMIS_OK || n_got != count || memcmp(got, wanted, count * sizeof *got) != 0) {
            if (wrong++ < 10)
                show_difference(i, at, bytes, flags, got, n_got < count ? n_got : count, wanted,
                                count);
        }
        at += bytes + (size_t)count * 4;
        free(text);
        free(got);
        free(wanted);
    }
    printf("%u of %u texts have the same tokens\n", n - wrong, n);
    return wrong + (n == 0);
}

int main(int argc, char **argv) {
    uint32_t wrong = argc < 3;
    for (int i = 1; i + 1 < argc; i += 2) {
        tamis_vocab *vocab = NULL;
        tamis_error error = {0};
        size_t bytes;
        if (tamis_vocab_load(argv[i], &vocab, &error) != TAMIS_OK) {
            printf("%s\n", error.text);
            return 1;
        }
        uint8_t *cases = read_file(argv[i + 1], &bytes);
        printf("%s: ", tamis_vocab_describe(vocab)->pattern);
        wrong += compare(vocab, cases, cases + bytes);
        free(cases);
        tamis_vocab_destroy(&vocab);
    }
    return wrong != 0;
}
