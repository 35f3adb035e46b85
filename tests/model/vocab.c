/* SPDX-License-Identifier: Apache-2.0 */
/* Vocabularies: damaged ones are refused with their reason, special tokens come where they are asked
 * for, invalid bytes and long runs are taken as stated. tokens.c compares with llama.cpp. */
#include "lib/model/vocab.h"
#include "tests/model/small.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* ---- Vocabularies ---------------------------------------------------------------------------- */

static small_key *set_strings(small_file *file, const char *name, const char *const *strings) {
    small_key *key = small_find_key(file, name);
    if (!key) key = small_add_key(file, name, ARRAY, 0);
    key->element = STRING;
    for (key->n_strings = 0; strings[key->n_strings]; ++key->n_strings)
        key->strings[key->n_strings] = strings[key->n_strings];
    return key;
}

static small_key *set_items(small_file *file, const char *name, uint32_t type, const double *items,
                            size_t count) {
    small_key *key = small_find_key(file, name);
    if (!key) key = small_add_key(file, name, ARRAY, 0);
    key->element = type;
    memcpy(key->items, items, count * sizeof *items);
    key->n_items = count;
    return key;
}

#define TOKENS "tokenizer.ggml.tokens"
#define TYPES  "tokenizer.ggml.token_type"
#define MERGES "tokenizer.ggml.merges"
#define SCORES "tokenizer.ggml.scores"
#define PRE    "tokenizer.ggml.pre"

enum { A, B, C, AA, AAAA, AB, ABC, SPACE, S_C, LESS, GREATER, BOS, USER, EF, BF, BD, EFBF };
enum { ED = EFBF + 1, A_ED, CAB, ONE, ONES, N_BPE };

static void bpe_file(small_file *file, const char *pattern) {
    static const char *const tokens[] = {"a",
                                         "b",
                                         "c",
                                         "aa",
                                         "aaaa",
                                         "ab",
                                         "abc",
                                         "\xc4\xa0",
                                         "\xc4\xa0"
                                         "c",
                                         "<",
                                         ">",
                                         "<a>",
                                         "<b a>",
                                         "\xc3\xaf",
                                         "\xc2\xbf",
                                         "\xc2\xbd",
                                         "\xc3\xaf\xc2\xbf",
                                         "\xc3\xad",
                                         "a\xc3\xad",
                                         "cab",
                                         "1",
                                         "11",
                                         NULL};
    static const char *const merges[] = {"a b", "ab c",       "\xc4\xa0 c",
                                         "a a", "aa aa",      "\xc3\xaf \xc2\xbf",
                                         "1 1", "a \xc3\xad", NULL};
    double kinds[N_BPE];
    for (size_t i = 0; i < N_BPE; ++i)
        kinds[i] = i == BOS ? 3 : i == USER ? 4 : 1;
    small_default(file);
    set_strings(file, TOKENS, tokens);
    set_strings(file, MERGES, merges);
    set_items(file, TYPES, I32, kinds, N_BPE);
    small_add_key(file, PRE, STRING, 0)->strings[0] = pattern;
    small_add_key(file, "tokenizer.ggml.bos_token_id", U32, BOS);
}

/* Control tokens have the best scores, as in files of Llama 2. */
static void spm_file(small_file *file) {
    static const char *const tokens[] = {"<unk>",
                                         "<s>",
                                         "</s>",
                                         "<0x0A>",
                                         "<0xE2>",
                                         "<0x96>",
                                         "<0x81>",
                                         "\xe2\x96\x81",
                                         "a",
                                         "b",
                                         "<",
                                         "s",
                                         ">",
                                         "<s",
                                         "\xe2\x96\x81"
                                         "a",
                                         "ab",
                                         "<x y>",
                                         "<0x61>",
                                         NULL};
    static const double kinds[] = {2, 3, 3, 6, 6, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 6};
    static const double scores[] = {0, 0, 0, 0, 0, 0, 0, -9, -9, -9, -9, -9, -9, -1, -2, -1, 0, 0};
    small_default(file);
    set_strings(file, TOKENS, tokens);
    set_items(file, TYPES, I32, kinds, 18);
    set_items(file, SCORES, F32, scores, 18);
    small_find_key(file, "tokenizer.ggml.model")->strings[0] = "llama";
}

static tamis_status read(const small_file *file, tms_vocab *out, tamis_error *error) {
    tms_gguf gguf;
    size_t bytes;
    uint8_t *data = small_write(file, &bytes);
    *error = (tamis_error){0};
    tamis_status status = tms_gguf_parse_keys(data, bytes, &gguf, error);
    if (status == TAMIS_OK) status = tms_vocab_read(&gguf, out, error);
    tms_gguf_close(&gguf);
    free(data);
    return status;
}

static void open_vocab(const small_file *file, tms_vocab *out) {
    tamis_error error;
    if (read(file, out, &error) != TAMIS_OK) fail_msg("%s", error.text);
}

/* The vocabulary is refused with `wanted` and a reason that contains `part`. */
static void refuse(const small_file *file, tamis_status wanted, const char *part) {
    tms_vocab vocab;
    tamis_error error;
    tamis_status status = read(file, &vocab, &error);
    if (status == TAMIS_OK) tms_vocab_free(&vocab);
    if (status != wanted || !strstr(error.text, part))
        fail_msg("got %s \"%s\", wanted %s \"%s\"", tamis_status_name(status), error.text,
                 tamis_status_name(wanted), part);
}

#define END (-1)
/* The text has these tokens, which END follows. */
static void expect(const tms_vocab *vocab, const char *text, size_t bytes, uint32_t flags,
                   const int32_t *wanted) {
    int32_t got[64];
    size_t count = 0, n = 0;
    tamis_error error = {0};
    while (wanted[n] != END)
        ++n;
    if (tamis_vocab_encode(vocab, text, bytes, flags, got, 64, &count, &error) != TAMIS_OK)
        fail_msg("'%s': %s", text, error.text);
    for (size_t i = 0; i < count || i < n; ++i)
        if (i >= count || i >= n || got[i] != wanted[i])
            fail_msg("'%s': token %zu of %zu is %d, %d of %zu is wanted", text, i, count,
                     i < count ? got[i] : END, i < n ? wanted[i] : END, n);
}

#define EXPECT(vocab, text, flags, ...)                                                            \
    expect(vocab, text, sizeof(text) - 1, flags, (const int32_t[]){__VA_ARGS__, END})

/* ---- Damage ---------------------------------------------------------------------------------- */

static void test_damaged_merges(void **state) {
    static const struct {
        const char *merge, *part;
    } cases[] = {{"ab", "merge 0, 'ab', has no two parts"},
                 {"", "merge 0, '', has no two parts"},
                 {" ", "merge 0, ' ', has no two parts"},
                 {"a ", "merge 0, 'a ': there is no token ''"}, /* a cycle: a and nothing is a */
                 {" a", "merge 0, ' a', has no two parts"},
                 {"a  b", "there is no token ' b'"},
                 {"a z", "merge 0, 'a z': there is no token 'z'"},
                 {"z a", "merge 0, 'z a': there is no token 'z'"},
                 {"b a", "merge 0, 'b a': there is no token 'ba'"},
                 {"<a >", "merge 0, '<a >': there is no token '<a'"},
                 {"<a> b", "merge 0, '<a> b': token 11, '<a>', is not of text"}};
    (void)state;
    small_file file;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        bpe_file(&file, "gpt-2");
        small_find_key(&file, MERGES)->strings[0] = cases[i].merge;
        refuse(&file, TAMIS_E_FORMAT, cases[i].part);
    }
    bpe_file(&file, "gpt-2");
    small_find_key(&file, MERGES)->string_bytes = UINT64_MAX - 8;
    refuse(&file, TAMIS_E_FORMAT, "states 18446744073709551607 bytes of text");
    bpe_file(&file, "gpt-2");
    small_find_key(&file, MERGES)->count = UINT64_MAX / 8;
    refuse(&file, TAMIS_E_FORMAT, "key 'tokenizer.ggml.merges' states");
    bpe_file(&file, "gpt-2");
    small_find_key(&file, MERGES)->element = I32;
    refuse(&file, TAMIS_E_FORMAT, "array of string");
}

static void test_damaged_patterns(void **state) {
    (void)state;
    small_file file;
    bpe_file(&file, "gpt-2 phi-2");
    refuse(&file, TAMIS_E_UNSUPPORTED, "pattern 'gpt-2 phi-2' is not known; tamis/vocab.h lists");
    bpe_file(&file, "");
    refuse(&file, TAMIS_E_UNSUPPORTED, "pattern '' is not known");
    bpe_file(&file, "sarvam-moe");
    refuse(&file, TAMIS_E_UNSUPPORTED, "'sarvam-moe' is not read: it merges characters");
    small_remove_key(&file, PRE);
    refuse(&file, TAMIS_E_FORMAT, "merges, but key 'tokenizer.ggml.pre' is missing");
    small_add_key(&file, PRE, U32, 1);
    refuse(&file, TAMIS_E_FORMAT, "has type u32; string");
}

/* A file that needs PCRE2 is refused by name. */
static void test_without_pcre2(void **state) {
    (void)state;
    small_file file;
    bpe_file(&file, "smollm");
    refuse(&file, TAMIS_E_UNSUPPORTED, "pattern 'smollm' needs PCRE2");
}

static void test_damaged_tokens(void **state) {
    (void)state;
    small_file file;
    char long_text[300];
    memset(long_text, 'x', sizeof long_text);
    long_text[256] = '\0';
    bpe_file(&file, "gpt-2");
    small_find_key(&file, TOKENS)->strings[USER] = "ab";
    refuse(&file, TAMIS_E_FORMAT, "tokens 5 and 12 are both 'ab'");
    bpe_file(&file, "gpt-2");
    small_find_key(&file, TOKENS)->strings[USER] = long_text;
    refuse(&file, TAMIS_E_UNSUPPORTED, "special token 12, 'xxx");
    bpe_file(&file, "gpt-2");
    small_find_key(&file, TYPES)->n_items = 3;
    refuse(&file, TAMIS_E_FORMAT, "22 tokens have 3 types");
}

static void test_damaged_ids(void **state) {
    (void)state;
    small_file file;
    bpe_file(&file, "gpt-2");
    small_find_key(&file, "tokenizer.ggml.bos_token_id")->number = 22;
    refuse(&file, TAMIS_E_FORMAT, "bos_token_id' is 22; the vocabulary has 22 tokens");
    bpe_file(&file, "gpt-2");
    small_add_key(&file, "tokenizer.ggml.add_eos_token", BOOL, 1);
    refuse(&file, TAMIS_E_FORMAT, "eos_token_id' is missing");
    bpe_file(&file, "llama-bpe"); /* which adds bos where the file does not say */
    small_remove_key(&file, "tokenizer.ggml.bos_token_id");
    refuse(&file, TAMIS_E_FORMAT, "bos_token_id' is missing");
}

/* Nothing depends on these two: they are left out, and a warning names them. */
static void test_ignored_ids(void **state) {
    (void)state;
    small_file file;
    tms_vocab vocab;
    bpe_file(&file, "gpt-2");
    open_vocab(&file, &vocab);
    assert_null(tamis_vocab_warning(&vocab));
    tms_vocab_free(&vocab);
    small_add_key(&file, "tokenizer.ggml.padding_token_id", U32, 22);
    small_add_key(&file, "tokenizer.ggml.unknown_token_id", I32, -1);
    open_vocab(&file, &vocab);
    assert_true(vocab.info.padding == -1 && vocab.info.unknown == -1);
    assert_string_equal(
        tamis_vocab_warning(&vocab),
        "key 'tokenizer.ggml.unknown_token_id' is -1 and is ignored: the vocabulary "
        "has 22 tokens; key 'tokenizer.ggml.padding_token_id' is 22 and is ignored: "
        "the vocabulary has 22 tokens");
    tms_vocab_free(&vocab);
    spm_file(&file);
    small_add_key(&file, "tokenizer.ggml.unknown_token_id", U64, 1ll << 40);
    open_vocab(&file, &vocab);
    assert_int_equal(vocab.info.unknown, 0); /* as without the key */
    assert_non_null(strstr(tamis_vocab_warning(&vocab), "is 1099511627776 and is ignored"));
    tms_vocab_free(&vocab);
    assert_null(tamis_vocab_warning(NULL));
}

static void test_chat_template(void **state) {
    (void)state;
    small_file file;
    tms_vocab vocab;
    bpe_file(&file, "gpt-2");
    open_vocab(&file, &vocab);
    assert_null(tamis_vocab_chat_template(&vocab));
    tms_vocab_free(&vocab);
    small_add_key(&file, "tokenizer.chat_template", STRING, 0)->strings[0] = "{{ '[INST]' }}";
    open_vocab(&file, &vocab);
    assert_string_equal(tamis_vocab_chat_template(&vocab), "{{ '[INST]' }}");
    tms_vocab_free(&vocab);
    small_find_key(&file, "tokenizer.chat_template")->type = U32;
    refuse(&file, TAMIS_E_FORMAT, "key 'tokenizer.chat_template' has type u32; string");
    assert_null(tamis_vocab_chat_template(NULL));
}

static void test_damaged_scores(void **state) {
    (void)state;
    small_file file;
    spm_file(&file);
    small_remove_key(&file, SCORES);
    refuse(&file, TAMIS_E_FORMAT, "key 'tokenizer.ggml.scores' is missing");
    spm_file(&file);
    small_find_key(&file, SCORES)->n_items = 17;
    refuse(&file, TAMIS_E_FORMAT, "18 tokens have 17 scores");
    small_find_key(&file, SCORES)->element = I32;
    refuse(&file, TAMIS_E_FORMAT, "array of f32");
    small_find_key(&file, SCORES)->element = U8;
    refuse(&file, TAMIS_E_FORMAT, "'tokenizer.ggml.scores' has type array of u8; array of f32");
    spm_file(&file);
    small_find_key(&file, SCORES)->element = F64;
    small_find_key(&file, SCORES)->items[9] = 0.1;
    refuse(&file, TAMIS_E_UNSUPPORTED, "'b', is 0.10000000000000001, which an f32 does not hold");
    spm_file(&file);
    small_find_key(&file, SCORES)->items[9] = (double)NAN;
    refuse(&file, TAMIS_E_FORMAT, "the score of token 9, 'b', is");
    small_find_key(&file, SCORES)->items[9] = (double)INFINITY;
    refuse(&file, TAMIS_E_FORMAT, "the score of token 9, 'b', is inf");
    spm_file(&file);
    small_find_key(&file, TOKENS)->strings[4] = "<0xe2>";
    refuse(&file, TAMIS_E_FORMAT, "token 4, '<0xe2>', is of type byte");
    spm_file(&file);
    small_find_key(&file, TOKENS)->strings[4] = "<0x0A>";
    refuse(&file, TAMIS_E_FORMAT, "tokens 3 and 4 are both '<0x0A>'");
}

/* Types of tokens as any integers, scores as f64: the same vocabulary. */
static void test_other_widths(void **state) {
    static const uint32_t types[] = {U8, I8, U16, I16, U32, U64, I64};
    small_file file;
    tms_vocab vocab, wanted;
    (void)state;
    spm_file(&file);
    open_vocab(&file, &wanted);
    small_find_key(&file, SCORES)->element = F64;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        small_find_key(&file, TYPES)->element = types[i];
        open_vocab(&file, &vocab);
        assert_memory_equal(vocab.kinds, wanted.kinds, wanted.info.n_tokens);
        assert_memory_equal(vocab.spm.ranks, wanted.spm.ranks,
                            wanted.info.n_tokens * sizeof *wanted.spm.ranks);
        tms_vocab_free(&vocab);
    }
    tms_vocab_free(&wanted);
}

/* ---- Encoding -------------------------------------------------------------------------------- */

static void test_bpe(void **state) {
    (void)state;
    small_file file;
    tms_vocab vocab;
    bpe_file(&file, "gpt-2");
    open_vocab(&file, &vocab);
    EXPECT(&vocab, "", 0, END);
    EXPECT(&vocab, "abc", 0, ABC);
    EXPECT(&vocab, "aab", 0, A, AB); /* "a b" comes before "a a" */
    EXPECT(&vocab, "aaaaa", 0, AAAA, A);
    EXPECT(&vocab, "ab c", 0, AB, S_C);
    EXPECT(&vocab, "ab  c", 0, AB, SPACE, S_C);   /* the last space is the word's */
    EXPECT(&vocab, "a", TAMIS_ENCODE_ADD_BOS, A); /* add_bos is not set */
    assert_int_equal(tamis_vocab_describe(&vocab)->kind, TAMIS_VOCAB_BPE);
    assert_int_equal(tamis_vocab_describe(&vocab)->n_merges, 8);
    assert_string_equal(tamis_vocab_describe(&vocab)->pattern, "gpt-2");
    size_t bytes;
    assert_memory_equal(tamis_vocab_token_text(&vocab, S_C, &bytes), " c", 2);
    assert_int_equal(bytes, 2);
    assert_memory_equal(tamis_vocab_token_text(&vocab, USER, &bytes), "<b a>", 5);
    tms_vocab_free(&vocab);
}

/* Copies the word at *at, moves on to the next one, and says whether there was one. */
static bool next_word(const char **at, char word[32]) {
    const size_t bytes = strcspn(*at, " ");
    assert_true(bytes < 32);
    memcpy(word, *at, bytes);
    word[bytes] = '\0';
    *at += bytes + strspn(*at + bytes, " ");
    return bytes > 0;
}

/* Whether a comment of tamis/vocab.h has the name as a word of its own. */
static bool is_listed(const char *name) {
    static char header[1 << 16];
    FILE *file = fopen(TEST_HEADER, "r");
    assert_non_null(file);
    header[fread(header, 1, sizeof header - 1, file)] = '\0';
    fclose(file);
    for (const char *at = header; (at = strstr(at, name)) != NULL; ++at)
        if (at[-1] == ' ' && strchr(" ,;.", at[strlen(name)])) return true;
    return false;
}

/* Every name opens a vocabulary, which adds bos where its family does, and the header lists it. */
static void test_names(void **state) {
    const tms_family *family;
    (void)state;
    for (size_t i = 0; (family = tms_family_get(i)) != NULL; ++i) {
        char name[32];
        for (const char *at = family->names; next_word(&at, name);) {
            small_file file;
            tms_vocab vocab;
            bpe_file(&file, name);
            open_vocab(&file, &vocab);
            assert_string_equal(tamis_vocab_describe(&vocab)->pattern, name);
            assert_int_equal(tamis_vocab_describe(&vocab)->add_bos, family->add_bos);
            /* No merge makes cab, but it is a token. */
            if (family->whole_pieces)
                EXPECT(&vocab, "cab", 0, CAB);
            else
                EXPECT(&vocab, "cab", 0, C, AB);
            tms_vocab_free(&vocab);
            if (!is_listed(name)) fail_msg("tamis/vocab.h does not list %s", name);
        }
    }
}

/* Two spaces before a letter are cut apart, two other characters are not. */
static void test_white_space(void **state) {
    static const char *const spaces[] = {"\t",           "\n",           "\v",
                                         "\f",           "\r",           " ",
                                         "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80",
                                         "\xe2\x80\x80", "\xe2\x80\x8a", "\xe2\x80\xa8",
                                         "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f",
                                         "\xe3\x80\x80"};
    static const char *const others[] = {"\xe1\xa0\x8e", "\xe2\x80\x8b", "\xef\xbb\xbf", "\x1f"};
    static const tms_text names[] = {{"gpt-2", 5}, {"smollm", 6}};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        tms_pattern pattern;
        tms_cutter cutter;
        char text[16];
        assert_int_equal(tms_pattern_compile(names[i], &pattern, NULL), TAMIS_OK);
        assert_true(tms_cutter_init(&cutter, &pattern));
        for (size_t k = 0; k < sizeof spaces / sizeof spaces[0]; ++k) {
            const size_t bytes = (size_t)snprintf(text, sizeof text, "%s%sb", spaces[k], spaces[k]);
            tms_cutter_start(&cutter, text, bytes);
            assert_int_equal(tms_cutter_next(&cutter), strlen(spaces[k]));
        }
        for (size_t k = 0; k < sizeof others / sizeof others[0]; ++k) {
            const size_t bytes = (size_t)snprintf(text, sizeof text, "%s%sb", others[k], others[k]);
            tms_cutter_start(&cutter, text, bytes);
            assert_int_equal(tms_cutter_next(&cutter), 2 * strlen(others[k]));
        }
        tms_cutter_free(&cutter);
        tms_pattern_free(&pattern);
    }
}

/* Each byte that is no UTF-8 counts as U+FFFD. */
static void test_invalid_utf8(void **state) {
    (void)state;
    small_file file;
    tms_vocab vocab;
    bpe_file(&file, "smollm");
    open_vocab(&file, &vocab);
    EXPECT(&vocab, "\xef\xbf\xbd", 0, EFBF, BD);
    EXPECT(&vocab, "a\xff", 0, A, EFBF, BD);
    EXPECT(&vocab, "\xe2\x96", 0, EFBF, BD, EFBF, BD);
    EXPECT(&vocab, "\xc1\xa1", 0, A);                                  /* an overlong a */
    EXPECT(&vocab, "a\xed\xa0\x80", TAMIS_ENCODE_SKIP_MISSING, A, ED); /* a surrogate: no letter */
    EXPECT(&vocab, "a\xed\x80\x80", TAMIS_ENCODE_SKIP_MISSING, A_ED);
    EXPECT(&vocab, "\xf7\xbf\xbf\xbf", TAMIS_ENCODE_SKIP_MISSING, /* above U+10FFFF */
           EFBF, BD, EFBF, BD, EFBF, BD, EFBF, BD);
    tms_vocab_free(&vocab);
}

/* What a user types is no control token; a user-defined one is found everywhere. */
static void test_special_tokens(void **state) {
    const uint32_t parse = TAMIS_ENCODE_PARSE_SPECIAL;
    (void)state;
    small_file file;
    tms_vocab vocab;
    bpe_file(&file, "llama-bpe");
    open_vocab(&file, &vocab);
    EXPECT(&vocab, "<a>", 0, LESS, A, GREATER);
    EXPECT(&vocab, "<a>", parse, BOS);
    EXPECT(&vocab, "<<a><a>>", parse, LESS, BOS, BOS, GREATER);
    EXPECT(&vocab, "<a", parse, LESS, A);
    EXPECT(&vocab, "c<b a>c", 0, C, USER, C);
    EXPECT(&vocab, "<b <a>", parse, LESS, B, SPACE, BOS);
    EXPECT(&vocab, "a", TAMIS_ENCODE_ADD_BOS, BOS, A);
    EXPECT(&vocab, "<a>a", TAMIS_ENCODE_ADD_BOS | parse, BOS, BOS, A);
    assert_int_equal(tamis_vocab_find_special(&vocab, "<a>", 3), BOS);
    assert_int_equal(tamis_vocab_find_special(&vocab, "ab", 2), -1);
    assert_int_equal(tamis_vocab_token_kind(&vocab, BOS), TAMIS_TOKEN_CONTROL);
    assert_int_equal(tamis_vocab_token_kind(&vocab, N_BPE), TAMIS_TOKEN_UNDEFINED);
    tms_vocab_free(&vocab);
    bpe_file(&file, "llama-bpe");
    small_add_key(&file, "tokenizer.ggml.eos_token_id", U32, USER);
    small_add_key(&file, "tokenizer.ggml.add_eos_token", BOOL, 1);
    open_vocab(&file, &vocab);
    EXPECT(&vocab, "a", TAMIS_ENCODE_ADD_BOS, BOS, A); /* a text that goes on */
    EXPECT(&vocab, "a", TAMIS_ENCODE_ADD_EOS, A, USER);
    EXPECT(&vocab, "", TAMIS_ENCODE_ADD_BOS | TAMIS_ENCODE_ADD_EOS, BOS, USER);
    tms_vocab_free(&vocab);
}

/* Of special tokens that lie over each other the longest one counts. */
static void test_longest_special(void **state) {
    (void)state;
    small_file file;
    tms_vocab vocab;
    bpe_file(&file, "gpt-2");
    small_find_key(&file, TOKENS)->strings[USER] = "a><a";
    open_vocab(&file, &vocab);
    EXPECT(&vocab, "<a><a>", TAMIS_ENCODE_PARSE_SPECIAL, LESS, USER, GREATER);
    EXPECT(&vocab, "<a> <a>", TAMIS_ENCODE_PARSE_SPECIAL, BOS, SPACE, BOS);
    tms_vocab_free(&vocab);
}

static void test_missing(void **state) {
    (void)state;
    small_file file;
    tms_vocab vocab;
    int32_t tokens[4] = {77, 77, 77, 77};
    size_t count = 77;
    tamis_error error = {0};
    bpe_file(&file, "gpt-2");
    open_vocab(&file, &vocab);
    assert_int_equal(tamis_vocab_encode(&vocab, "abz", 3, 0, tokens, 4, &count, &error),
                     TAMIS_E_ARGUMENT);
    assert_string_equal(error.text, "the vocabulary lacks byte 122, at place 2 of the text");
    assert_int_equal(count, 77);
    assert_int_equal(tokens[0], 77);
    EXPECT(&vocab, "abz", TAMIS_ENCODE_SKIP_MISSING, AB);
    assert_int_equal(tamis_vocab_encode(&vocab, "a", 1, 16, tokens, 4, &count, &error),
                     TAMIS_E_ARGUMENT);
    assert_string_equal(error.text, "flags are 0x10; 0xf can be");
    assert_int_equal(tamis_vocab_encode(&vocab, "a", 1ull << 30, 0, tokens, 4, &count, &error),
                     TAMIS_E_ARGUMENT);
    assert_string_equal(error.text, "the text has 1073741824 bytes; up to 1073741823 are encoded");
    /* Counting needs no room, and what has none is not written. */
    assert_int_equal(tamis_vocab_encode(&vocab, "abcab", 5, 0, NULL, 0, &count, &error), TAMIS_OK);
    assert_int_equal(count, 2);
    assert_int_equal(tamis_vocab_encode(&vocab, "abcab", 5, 0, tokens, 1, &count, &error),
                     TAMIS_OK);
    assert_int_equal(count, 2);
    assert_int_equal(tokens[0], ABC);
    assert_int_equal(tokens[1], 77);
    tms_vocab_free(&vocab);
}

static void test_spm(void **state) {
    enum {
        BOS_ID = 1,
        EOS_ID,
        LINE,
        E2,
        X96,
        X81,
        BAR,
        SA,
        SB,
        SLESS,
        SS,
        SGREATER,
        LS,
        BAR_A,
        SAB
    };
    (void)state;
    small_file file;
    tms_vocab vocab;
    size_t bytes;
    spm_file(&file);
    open_vocab(&file, &vocab);
    EXPECT(&vocab, "", 0, END);
    EXPECT(&vocab, "", TAMIS_ENCODE_ADD_BOS, BOS_ID);
    EXPECT(&vocab, "a", TAMIS_ENCODE_ADD_BOS, BOS_ID, BAR_A);
    EXPECT(&vocab, "ab", 0, BAR, SAB); /* -1 comes before -2 */
    EXPECT(&vocab, "\n", 0, BAR, LINE);
    EXPECT(&vocab, "b\xe2\x96", 0, BAR, SB, E2, X96);
    EXPECT(&vocab, "\xe2 b", 0, BAR, E2, E2, X96, X81, SB); /* the lead takes the bar's bytes */
    EXPECT(&vocab,
           "\xe2\xe2"
           "a",
           0, BAR, E2, E2, 17);
    /* Scores join "<s" and ">", but what a user types is no control token, nor "<0x0A>" a byte. */
    EXPECT(&vocab, "<s>", 0, BAR, LS, SGREATER);
    EXPECT(&vocab, "<s>a", TAMIS_ENCODE_PARSE_SPECIAL, BOS_ID, BAR_A);
    EXPECT(&vocab, "<x y>a", 0, 16, BAR_A);
    assert_memory_equal(tamis_vocab_token_text(&vocab, BAR_A, &bytes), " a", 2);
    assert_int_equal(bytes, 2);
    assert_memory_equal(tamis_vocab_token_text(&vocab, LINE, &bytes), "\n", 1);
    assert_int_equal(bytes, 1);
    assert_int_equal(tamis_vocab_describe(&vocab)->eos, EOS_ID);
    assert_int_equal(tamis_vocab_describe(&vocab)->unknown, 0);
    tms_vocab_free(&vocab);
    small_add_key(&file, "tokenizer.ggml.add_space_prefix", BOOL, 0);
    open_vocab(&file, &vocab);
    EXPECT(&vocab, "a a", 0, SA, BAR_A);
    tms_vocab_free(&vocab);
}

static void test_arguments(void **state) {
    (void)state;
    size_t count = 77;
    tamis_vocab *vocab = (tamis_vocab *)&count;
    tamis_error error = {0};
    assert_int_equal(tamis_vocab_load("/dev/null/at.gguf", &vocab, &error), TAMIS_E_IO);
    assert_null(vocab);
    assert_non_null(strstr(error.text, "/dev/null/at.gguf: cannot be read"));
    assert_int_equal(tamis_vocab_load(NULL, &vocab, NULL), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_vocab_load("x", NULL, NULL), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_vocab_encode(NULL, "a", 1, 0, NULL, 0, &count, &error),
                     TAMIS_E_ARGUMENT);
    assert_string_equal(error.text, "vocab is NULL");
    assert_null(tamis_vocab_describe(NULL));
    assert_null(tamis_vocab_token_text(NULL, 0, &count));
    assert_int_equal(tamis_vocab_find_special(NULL, "a", 1), -1);
    assert_int_equal(tamis_vocab_token_kind(NULL, 0), TAMIS_TOKEN_UNDEFINED);
    tamis_vocab_destroy(NULL);
    tamis_vocab_destroy(&vocab);
}

/* ---- Long texts ------------------------------------------------------------------------------ */

/* Processor seconds for `bytes` times `letter` and an x, which the vocabulary may lack: the least of
 * `rounds`. */
static double seconds(const tms_vocab *vocab, char letter, size_t bytes, int rounds,
                      size_t *count) {
    double least = 1e9;
    char *text = malloc(bytes + 1);
    assert_non_null(text);
    memset(text, letter, bytes);
    text[bytes] = 'x';
    for (int i = 0; i < rounds; ++i) {
        tamis_error error = {0};
        const clock_t begin = clock();
        if (tamis_vocab_encode(vocab, text, bytes + 1, TAMIS_ENCODE_SKIP_MISSING, NULL, 0, count,
                               &error) != TAMIS_OK)
            fail_msg("%s", error.text);
        const double took = (double)(clock() - begin) / CLOCKS_PER_SEC;
        if (took < least) least = took;
    }
    free(text);
    return least;
}

/* Sixteen times the text takes some twenty times as long; what is quadratic takes 256 times. */
static void check_long(const tms_vocab *vocab, char letter, size_t joined) {
    const size_t little = 1 << 16, much = 1 << 20;
    size_t count;
    const double short_time = seconds(vocab, letter, little, 3, &count);
    const double long_time = seconds(vocab, letter, much, 1, &count);
    if (joined) assert_in_range(count, much / joined, much / joined + 3);
    if (long_time > 80 * short_time + 0.01)
        fail_msg("'%c': %g s for %zu bytes, %g s for %zu", letter, short_time, little, long_time,
                 much);
}

static void test_long_pieces(void **state) {
    static const char *const patterns[] = {"gpt-2", "llama-bpe", "jais-2"};
    (void)state;
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; ++i) {
        small_file file;
        tms_vocab vocab;
        bpe_file(&file, patterns[i]);
        open_vocab(&file, &vocab);
        check_long(&vocab, 'a', 4);
        check_long(&vocab, ' ', 1);
        check_long(&vocab, '<', 1); /* each may begin a special token */
        check_long(&vocab, '\n', 0);
        check_long(&vocab, '\xff', 0);
        tms_vocab_free(&vocab);
    }
}

/* Processor seconds to cut `bytes` of text that repeats `unit` and ends with a control character,
 * the least of `rounds`. */
static double cut_seconds(tms_cutter *cutter, const char *unit, size_t bytes, int rounds) {
    double least = 1e9;
    char *text = malloc(bytes + 1);
    assert_non_null(text);
    const size_t length = strlen(unit), whole = bytes / length * length;
    for (size_t i = 0; i < whole; ++i)
        text[i] = unit[i % length];
    text[whole] = '\x7f';
    for (int i = 0; i < rounds; ++i) {
        const clock_t begin = clock();
        size_t at = 0;
        tms_cutter_start(cutter, text, whole + 1);
        for (size_t n; (n = tms_cutter_next(cutter)) > 0;)
            at += n;
        const double took = (double)(clock() - begin) / CLOCKS_PER_SEC;
        if (took < least) least = took;
        assert_int_equal(at, whole + 1);
    }
    free(text);
    return least;
}

/* No expression reads a run again and again, whatever it is made of. */
static void test_long_cuts(void **state) {
    static const char *const units[] = {"a",
                                        "A",
                                        "a ",
                                        "1",
                                        ".",
                                        "\n",
                                        " ",
                                        " \n",
                                        "\x01",
                                        "\xc3\xa9\x41",
                                        "\xe6\xbc\xa2",
                                        "\xcc\x81",
                                        "<sentinel:",
                                        "IMGIMGA"};
    const tms_family *family;
    (void)state;
    for (size_t i = 0; (family = tms_family_get(i)) != NULL; ++i) {
        tms_pattern pattern;
        tms_cutter cutter;
        const tms_text name = {family->names, strcspn(family->names, " ")};
        assert_int_equal(tms_pattern_compile(name, &pattern, NULL), TAMIS_OK);
        assert_true(tms_cutter_init(&cutter, &pattern));
        for (size_t k = 0; k < sizeof units / sizeof units[0]; ++k) {
            const double few = cut_seconds(&cutter, units[k], 1 << 11, 3);
            const double many = cut_seconds(&cutter, units[k], 1 << 15, 1);
            if (many > 80 * few + 0.01)
                fail_msg("%s, '%s': %g s for 2 KiB, %g s for 32 KiB", family->names, units[k], few,
                         many);
        }
        tms_cutter_free(&cutter);
        tms_pattern_free(&pattern);
    }
}

static void test_long_spm(void **state) {
    (void)state;
    small_file file;
    tms_vocab vocab;
    spm_file(&file);
    open_vocab(&file, &vocab);
    check_long(&vocab, 'a', 1);
    check_long(&vocab, ' ', 1);
    check_long(&vocab, '<', 1);
    tms_vocab_free(&vocab);
}

static void *encode_often(void *vocab) {
    static const char text[] = "abc aab <a> c\xff"
                               "c";
    static const int32_t wanted[] = {ABC, SPACE, A, AB, SPACE, LESS, A, GREATER, S_C, EFBF, BD, C};
    for (int i = 0; i < 2000; ++i) {
        int32_t tokens[64];
        size_t count = 0;
        if (tamis_vocab_encode(vocab, text, sizeof text - 1, 0, tokens, 64, &count, NULL) !=
                TAMIS_OK ||
            count != sizeof wanted / sizeof wanted[0] || memcmp(tokens, wanted, sizeof wanted) != 0)
            return vocab;
    }
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    small_file file;
    tms_vocab vocab;
    pthread_t threads[4];
    bpe_file(&file, "smollm");
    open_vocab(&file, &vocab);
    for (size_t i = 0; i < 4; ++i)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &vocab), 0);
    for (size_t i = 0; i < 4; ++i) {
        void *wrong;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    tms_vocab_free(&vocab);
}

int main(void) {
    const struct CMUnitTest bpe[] = {
        cmocka_unit_test(test_damaged_merges),  cmocka_unit_test(test_damaged_tokens),
        cmocka_unit_test(test_damaged_ids),     cmocka_unit_test(test_names),
        cmocka_unit_test(test_white_space),     cmocka_unit_test(test_bpe),
        cmocka_unit_test(test_invalid_utf8),    cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_longest_special), cmocka_unit_test(test_missing),
        cmocka_unit_test(test_long_pieces),     cmocka_unit_test(test_threads),
        cmocka_unit_test(test_chat_template),   cmocka_unit_test(test_long_cuts),
    };
    const struct CMUnitTest no_bpe[] = {cmocka_unit_test(test_without_pcre2)};
    const struct CMUnitTest others[] = {
        cmocka_unit_test(test_damaged_patterns),
        cmocka_unit_test(test_damaged_scores),
        cmocka_unit_test(test_ignored_ids),
        cmocka_unit_test(test_other_widths),
        cmocka_unit_test(test_spm),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_long_spm),
    };
    const int failed = TEST_PCRE2 ? cmocka_run_group_tests_name("bpe", bpe, NULL, NULL)
                                  : cmocka_run_group_tests_name("no bpe", no_bpe, NULL, NULL);
    return failed + cmocka_run_group_tests_name("others", others, NULL, NULL);
}
