/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of conversations: three turns with a system text in every format and by the template
 * of its models, templates that cannot be run, and text that would be a token of the format. */
#include "cli/chat.h"
#include "lib/model/vocab.h"
#include "tests/model/small.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Vocabularies ---------------------------------------------------------------------------- */

#define TEMPLATE "tokenizer.chat_template"

/* What the templates of models say; their texts are held to jinja2 by test_chat_templates.py. */
#define ML_TEMPLATE                                                                                \
    "{% set end = '<|im_end|>\\n' %}{% for m in messages %}"                                       \
    "{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ end }}{% endfor %}"                          \
    "{{ '<|im_start|>assistant\\n' if add_generation_prompt }}"
#define L3_TEMPLATE                                                                                \
    "{% set after = '<|end_header_id|>\\n\\n' %}{{ bos_token }}{% for m in messages %}"            \
    "{{ '<|start_header_id|>' ~ m.role ~ after ~ m.content | trim ~ '<|eot_id|>' }}{% endfor %}"   \
    "{{ '<|start_header_id|>assistant' ~ after if add_generation_prompt }}"
/* The system text is a part of the first question; BEFORE and BEHIND stand around an answer. */
#define INST_TEMPLATE(begin, before, system, content, behind)                                      \
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"                  \
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}" begin            \
    "{% for m in rest %}{% if m.role == 'user' %}{% set content = m.content %}"                    \
    "{% if loop.first and system is defined %}{% set content = " system " + content %}{% endif %}" \
    "{{ " before " + " content " + " behind " }}{% else %}"                                        \
    "{{ ' ' + m.content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
#define L2_TEMPLATE                                                                                \
    INST_TEMPLATE("", "bos_token + '[INST] '", "'<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n'",      \
                  "content.strip()", "' [/INST]'")
#define V1_TEMPLATE                                                                                \
    INST_TEMPLATE("{{ bos_token }}", "' [INST] '", "system + '\\n\\n'", "content", "' [/INST]'")
#define V3_TEMPLATE                                                                                \
    INST_TEMPLATE("{{ bos_token }}", "'[INST] '", "system + '\\n\\n'", "content", "'[/INST]'")
#define V7_TEMPLATE                                                                                \
    "{% set marks = {'user': 'INST', 'system': 'SYSTEM_PROMPT'} %}{{ bos_token }}"                 \
    "{% for m in messages %}{% if m.role in marks %}{% set mark = marks[m.role] %}"                \
    "{{ '[' ~ mark ~ '] ' ~ m.content ~ '[/' ~ mark ~ ']' }}{% else %}"                            \
    "{{ ' ' ~ m.content ~ eos_token }}{% endif %}{% endfor %}"

/* Texts of tokens up to NULL; control tokens begin with ~ and user-defined ones with =, which is
 * left out, SPM's byte tokens are written as <0xNN>. */
static void set_tokens(small_file *file, const char *const *texts) {
    small_key *tokens = small_find_key(file, "tokenizer.ggml.tokens");
    small_key *kinds = small_find_key(file, "tokenizer.ggml.token_type");
    tokens->n_strings = 0;
    for (size_t i = 0; texts[i] != NULL; i++) {
        const bool control = texts[i][0] == '~', user = texts[i][0] == '=';
        tokens->strings[tokens->n_strings++] = texts[i] + (control || user);
        kinds->items[i] = control                            ? TAMIS_TOKEN_CONTROL
                          : user                             ? TAMIS_TOKEN_USER_DEFINED
                          : strncmp(texts[i], "<0x", 3) == 0 ? TAMIS_TOKEN_BYTE
                                                             : TAMIS_TOKEN_NORMAL;
    }
    kinds->n_items = tokens->n_strings;
}

static void set_id(small_file *file, const char *key, int64_t id) {
    small_add_key(file, key, U32, id);
}

/* Single bytes, the newline and the space as GPT-2 writes them. */
static const char *const ml_tokens[] = {"~<|im_start|>",
                                        "~<|im_end|>",
                                        "~<bos>",
                                        "\xc4\x8a",
                                        "\xc4\xa0",
                                        "s",
                                        "y",
                                        "t",
                                        "e",
                                        "m",
                                        "u",
                                        "r",
                                        "a",
                                        "i",
                                        "n",
                                        "<",
                                        "|",
                                        "_",
                                        "d",
                                        ">",
                                        NULL};

static void ml_file(small_file *file) {
    small_default(file);
    set_tokens(file, ml_tokens);
    set_id(file, "tokenizer.ggml.bos_token_id", 2);
    small_add_key(file, TEMPLATE, STRING, 0)->strings[0] = ML_TEMPLATE;
}

/* With merges, of which one makes two newlines one token. */
static void l3_file(small_file *file) {
    static const char *const tokens[] = {"~<|begin_of_text|>",
                                         "~<|end_of_text|>",
                                         "~<|start_header_id|>",
                                         "~<|end_header_id|>",
                                         "~<|eot_id|>",
                                         "\xc4\x8a",
                                         "\xc4\x8a\xc4\x8a",
                                         "\xc4\xa0",
                                         "s",
                                         "y",
                                         "t",
                                         "e",
                                         "m",
                                         "u",
                                         "r",
                                         "a",
                                         "i",
                                         "n",
                                         "\xc4\xa0"
                                         "a",
                                         NULL};
    small_default(file);
    set_tokens(file, tokens);
    small_key *merges = small_add_key(file, "tokenizer.ggml.merges", ARRAY, 0);
    merges->element = STRING;
    merges->n_strings = 2;
    merges->strings[0] = "\xc4\x8a \xc4\x8a";
    merges->strings[1] = "\xc4\xa0 a";
    small_add_key(file, "tokenizer.ggml.pre", STRING, 0)->strings[0] = "llama-bpe";
    set_id(file, "tokenizer.ggml.bos_token_id", 0);
    set_id(file, "tokenizer.ggml.eos_token_id", 1);
    small_add_key(file, TEMPLATE, STRING, 0)->strings[0] = L3_TEMPLATE;
}

#define SP "\xe2\x96\x81"

/* SentencePiece: a space before every text, which joins what follows. */
static void spm_file(small_file *file, const char *const *more, const char *template) {
    static const char *const common[] = {
        "<unk>", "~<s>", "~</s>", "<0x0A>", SP,  "a", "b",    "c",    "[",    "]",  "I",  "N",
        "S",     "T",    "/",     "<",      ">", "Y", SP "[", SP "a", SP "b", "<<", ">>", NULL};
    const char *tokens[SMALL_ITEMS] = {NULL};
    size_t n = 0;
    for (size_t i = 0; common[i] != NULL; i++)
        tokens[n++] = common[i];
    for (size_t i = 0; more[i] != NULL; i++)
        tokens[n++] = more[i];
    small_default(file);
    set_tokens(file, tokens);
    small_find_key(file, "tokenizer.ggml.token_type")->items[0] = TAMIS_TOKEN_UNKNOWN;
    small_find_key(file, "tokenizer.ggml.model")->strings[0] = "llama";
    small_key *scores = small_add_key(file, "tokenizer.ggml.scores", ARRAY, 0);
    scores->element = F32;
    scores->n_items = n;
    for (size_t i = 0; i < n; i++)
        scores->items[i] = strlen(tokens[i]) > 3 || strlen(tokens[i]) == 2 ? -1 : -9;
    small_add_key(file, TEMPLATE, STRING, 0)->strings[0] = template;
}

static void open_vocab(const small_file *file, tms_vocab *out) {
    tms_gguf gguf;
    tamis_error error = {0};
    size_t bytes;
    uint8_t *data = small_write(file, &bytes);
    tamis_status status = tms_gguf_parse_keys(data, bytes, &gguf, &error);
    if (status == TAMIS_OK) status = tms_vocab_read(&gguf, out, &error);
    tms_gguf_close(&gguf);
    free(data);
    if (status != TAMIS_OK) fail_msg("%s", error.text);
}

/* ---- Three turns ----------------------------------------------------------------------------- */

/* The texts of tokens, a | behind each. */
static void show(const tms_vocab *vocab, const cli_tokens *tokens, char *out) {
    for (size_t i = 0; i < tokens->count; i++) {
        size_t bytes;
        const char *text = tamis_vocab_token_text(vocab, tokens->ids[i], &bytes);
        memcpy(out, text, bytes);
        out[bytes] = '|';
        out += bytes + 1;
    }
    *out = '\0';
}

static void open_chat(const tms_vocab *vocab, const char *name, const char *system, cli_chat *out) {
    tamis_error error = {0};
    if (cli_chat_open(vocab, name, system, NULL, out, &error) != TAMIS_OK)
        fail_msg("%s", error.text);
}

static void expect_turn(cli_chat *chat, const char *text, const char *wanted) {
    char got[1024];
    cli_tokens tokens = {0};
    tamis_error error = {0};
    if (cli_chat_turn(chat, text, strlen(text), &tokens, &error) != TAMIS_OK)
        fail_msg("'%s': %s", text, error.text);
    show(chat->vocab, &tokens, got);
    if (strcmp(got, wanted) != 0) fail_msg("'%s' is\n%s\nnot\n%s", text, got, wanted);
    free(tokens.ids);
    chat->turns++;
}

/* A conversation of three turns, in a named format, or by the template where it is NULL. No ending:
 * nothing ends an answer. */
static void expect_named(const small_file *file, const char *name, const char *system,
                         const char *const texts[3], const char *const wanted[3],
                         const char *ending) {
    tms_vocab vocab;
    cli_chat chat;
    size_t bytes;
    open_vocab(file, &vocab);
    open_chat(&vocab, name, system, &chat);
    assert_string_equal(cli_chat_name(&chat), name != NULL ? name : "template");
    for (int i = 0; i < 3 && wanted[i] != NULL; i++)
        expect_turn(&chat, texts[i], wanted[i]);
    if (ending == NULL) {
        assert_int_equal(chat.ending, -1);
    } else {
        const char *text = tamis_vocab_token_text(&vocab, chat.ending, &bytes);
        assert_true(bytes == strlen(ending) && memcmp(text, ending, bytes) == 0);
    }
    tms_vocab_free(&vocab);
}

/* Both are the same. */
static void expect_three(const small_file *file, const char *name, const char *system,
                         const char *const texts[3], const char *const wanted[3],
                         const char *ending) {
    expect_named(file, name, system, texts, wanted, ending);
    expect_named(file, NULL, system, texts, wanted, ending);
}

#define ML_USER         "<|im_start|>|u|s|e|r|\n|"
#define ML_ASSISTANT_AN "<|im_end|>|\n|<|im_start|>|a|s|s|i|s|t|an|t|\n|"
#define ML_ASSISTANT    "<|im_end|>|\n|<|im_start|>|a|s|s|i|s|t|a|n|t|\n|"

static void test_chatml(void **state) {
    static const char *const texts[] = {"a", " ant ", "tea"};
    (void)state;
    small_file file;
    ml_file(&file);
    expect_three(&file, "chatml", "s a", texts,
                 (const char *[]){"<|im_start|>|s|y|s|t|e|m|\n|s| |a|<|im_end|>|\n|" ML_USER
                                  "a|" ML_ASSISTANT,
                                  "<|im_end|>|\n|" ML_USER " |a|n|t| |" ML_ASSISTANT,
                                  "<|im_end|>|\n|" ML_USER "t|e|a|" ML_ASSISTANT},
                 "<|im_end|>");
    expect_three(&file, "chatml", NULL, texts,
                 (const char *[]){ML_USER "a|" ML_ASSISTANT,
                                  "<|im_end|>|\n|" ML_USER " |a|n|t| |" ML_ASSISTANT,
                                  "<|im_end|>|\n|" ML_USER "t|e|a|" ML_ASSISTANT},
                 "<|im_end|>");
    /* bos comes where the file wants it, and once */
    small_add_key(&file, "tokenizer.ggml.add_bos_token", BOOL, 1);
    expect_three(&file, "chatml", NULL, texts,
                 (const char *[]){"<bos>|" ML_USER "a|" ML_ASSISTANT,
                                  "<|im_end|>|\n|" ML_USER " |a|n|t| |" ML_ASSISTANT,
                                  "<|im_end|>|\n|" ML_USER "t|e|a|" ML_ASSISTANT},
                 "<|im_end|>");
}

#define L3_HEAD(role) "<|start_header_id|>|" role "|<|end_header_id|>|\n\n|"
#define L3_ASSISTANT  "<|eot_id|>|" L3_HEAD("a|s|s|i|s|t|a|n|t")

static void test_llama3(void **state) {
    (void)state;
    small_file file;
    l3_file(&file);
    expect_three(
        &file, "llama3", "\ts a\n\xe3\x80\x80", (const char *[]){"a", " ant \xc2\xa0\n", "tea a"},
        (const char *[]){"<|begin_of_text|>|" L3_HEAD("s|y|s|t|e|m") "s| a|<|eot_id|>|" L3_HEAD(
                             "u|s|e|r") "a|" L3_ASSISTANT,
                         "<|eot_id|>|" L3_HEAD("u|s|e|r") "a|n|t|" L3_ASSISTANT,
                         "<|eot_id|>|" L3_HEAD("u|s|e|r") "t|e|a| a|" L3_ASSISTANT},
        "<|eot_id|>");
}

#define INST  " [|I|N|S|T|]|"
#define END_I " [|/|I|N|S|T|]|"

static void test_llama2(void **state) {
    static const char *const more[] = {NULL};
    (void)state;
    small_file file;
    spm_file(&file, more, L2_TEMPLATE);
    expect_three(&file, "llama2", " b ", (const char *[]){" a ", " c\t", "ab"},
                 (const char *[]){"<s>|" INST
                                  " |<<|S|Y|S|>>|\n| b| |\n|<<|/|S|Y|S|>>|\n|\n| a|" END_I,
                                  "</s>|<s>|" INST " |c|" END_I, "</s>|<s>|" INST " a|b|" END_I},
                 "</s>");
    expect_three(&file, "llama2", NULL, (const char *[]){" a ", "b", "c"},
                 (const char *[]){"<s>|" INST " a|" END_I, "</s>|<s>|" INST " b|" END_I,
                                  "</s>|<s>|" INST " |c|" END_I},
                 "</s>");
}

/* V1: the tags are text, nothing is stripped. */
static void test_mistral_v1(void **state) {
    static const char *const more[] = {NULL};
    (void)state;
    small_file file;
    spm_file(&file, more, V1_TEMPLATE);
    expect_three(&file, "mistral", "b", (const char *[]){"a", " c ", "ab"},
                 (const char *[]){"<s>|" INST " b|\n|\n|a|" END_I, "</s>|" INST " | |c| |" END_I,
                                  "</s>|" INST " a|b|" END_I},
                 "</s>");
}

/* V2 and V3: the tags are tokens; SentencePiece puts a space before the text behind them. */
static void test_mistral_v3(void **state) {
    static const char *const more[] = {"~[INST]", "~[/INST]", NULL};
    (void)state;
    small_file file;
    spm_file(&file, more, V3_TEMPLATE);
    expect_three(&file, "mistral", "b", (const char *[]){"a", " c", "ab"},
                 (const char *[]){"<s>|[INST]| b|\n|\n|a|[/INST]|", "</s>|[INST]| | |c|[/INST]|",
                                  "</s>|[INST]| a|b|[/INST]|"},
                 "</s>");
    small_add_key(&file, "tokenizer.ggml.add_space_prefix", BOOL, 0);
    expect_named(&file, "mistral", NULL, (const char *[]){"a", " c", "ab"},
                 (const char *[]){"<s>|[INST]|a|[/INST]|", "</s>|[INST]| |c|[/INST]|",
                                  "</s>|[INST]|a|b|[/INST]|"},
                 "</s>");
    /* then the template's own space stays */
    expect_named(&file, NULL, NULL, (const char *[]){"a", " c", "ab"},
                 (const char *[]){"<s>|[INST]| a|[/INST]|", "</s>|[INST]| | |c|[/INST]|",
                                  "</s>|[INST]| a|b|[/INST]|"},
                 "</s>");
}

static void test_mistral_v7(void **state) {
    static const char *const more[] = {"~[INST]", "~[/INST]", "~[SYSTEM_PROMPT]",
                                       "~[/SYSTEM_PROMPT]", NULL};
    (void)state;
    small_file file;
    spm_file(&file, more, V7_TEMPLATE);
    expect_three(&file, "mistral", "b", (const char *[]){"a", "b", "ab"},
                 (const char *[]){"<s>|[SYSTEM_PROMPT]| b|[/SYSTEM_PROMPT]|[INST]| a|[/INST]|",
                                  "</s>|[INST]| b|[/INST]|", "</s>|[INST]| a|b|[/INST]|"},
                 "</s>");
}

#define TURNS(user, before, behind)                                                                \
    "{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}" user                  \
    "{% else %}{{ " before " ~ m.content ~ " behind " }}{% endif %}{% endfor %}"
#define SYSTEM_IF(text) "{% if messages[0].role == 'system' %}" text "{% endif %}"
#define GEMMA_TEMPLATE                                                                             \
    "{{ bos_token }}" TURNS(                                                                       \
        "<start_of_turn>user\n{% if loop.first and messages[0].role == 'system' %}"                \
        "{{ messages[0].content ~ '\n\n' }}{% endif %}{{ m.content | trim }}<end_of_turn>\n",      \
        "'<start_of_turn>model\n'",                                                                \
        "'<end_of_turn>\n'") "{{ '<start_of_turn>model\n' if add_generation_prompt }}"
#define PHI_TEMPLATE                                                                               \
    "{% for m in messages %}{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ '<|end|>\n' }}{% endfor %}"    \
    "{{ '<|assistant|>\n' if add_generation_prompt }}"
#define GLM_TEMPLATE                                                                               \
    "[gMASK]<sop>{% for m in messages %}{{ '<|' ~ m.role ~ '|>' }}"                                \
    "{{ '\n' if m.role != 'assistant' }}{{ m.content }}{% endfor %}"                               \
    "{{ '<|assistant|>' if add_generation_prompt }}"
#define DS(role) "<\xef\xbd\x9c" role "\xef\xbd\x9c>"
#define DEEPSEEK_TEMPLATE(thoughts)                                                                \
    "{{ bos_token }}" SYSTEM_IF("{{ messages[0].content }}")                                       \
        TURNS("{{ '" DS("User") "' ~ m.content }}", "'" DS("Assistant") "'",                       \
              "eos_token") "{{ '" DS("Assistant") thoughts "' if add_generation_prompt }}"
#define GRANITE_TEMPLATE                                                                           \
    "{% for m in messages %}{{ '<|start_of_role|>' ~ m.role ~ '<|end_of_role|>' ~ m.content ~ "    \
    "'<|end_of_text|>\n' }}{% endfor %}"                                                           \
    "{{ '<|start_of_role|>assistant<|end_of_role|>' if add_generation_prompt }}"

static const struct {
    const char *name, *template;
    const char *tokens[8]; /* beside those of letters; the first two are bos and eos */
    const char *first, *first_bare, *next; /* with a system text, without one, the next turn */
    const char *ending;
    bool anew;   /* the template writes an answer's beginning anew, and so takes one turn */
    bool silent; /* it puts no token behind an answer */
} families[] = {
    {.name = "gemma",
     .template = GEMMA_TEMPLATE,
     .tokens = {"~<bos>", "~<eos>", "~<start_of_turn>", "~<end_of_turn>"},
     .first = "<bos>|<start_of_turn>|u|s|e|r|\n|s| "
              "|a|\n|\n|a|<end_of_turn>|\n|<start_of_turn>|m|o|d|e|l|\n|",
     .first_bare =
         "<bos>|<start_of_turn>|u|s|e|r|\n|a|<end_of_turn>|\n|<start_of_turn>|m|o|d|e|l|\n|",
     .next = "<end_of_turn>|\n|<start_of_turn>|u|s|e|r|\n|t|e|a|<end_of_turn>|\n|<start_of_turn>|"
             "m|o|d|e|l|\n|",
     .ending = "<end_of_turn>"},
    {.name = "phi3",
     .template = PHI_TEMPLATE,
     .tokens = {"~<bos>", "~<eos>", "~<|system|>", "~<|user|>", "~<|assistant|>", "~<|end|>"},
     .first = "<|system|>|\n|s| |a|<|end|>|\n|<|user|>|\n| |a|<|end|>|\n|<|assistant|>|\n|",
     .first_bare = "<|user|>|\n| |a|<|end|>|\n|<|assistant|>|\n|",
     .next = "<|end|>|\n|<|user|>|\n|t|e|a|<|end|>|\n|<|assistant|>|\n|",
     .ending = "<|end|>"},
    {.name = "glm4",
     .template = GLM_TEMPLATE,
     .tokens = {"~<bos>", "~<eos>", "~[gMASK]", "~<sop>", "~<|system|>", "~<|user|>",
                "~<|assistant|>"},
     .first = "[gMASK]|<sop>|<|system|>|\n|s| |a|<|user|>|\n| |a|<|assistant|>|",
     .first_bare = "[gMASK]|<sop>|<|user|>|\n| |a|<|assistant|>|",
     .next = "<|user|>|\n|t|e|a|<|assistant|>|",
     .ending = "<|user|>",
     .silent = true},
    {.name = "deepseek",
     .template = DEEPSEEK_TEMPLATE(""),
     .tokens = {"~<bos>", "~<eos>", "~" DS("User"), "~" DS("Assistant")},
     .first = "<bos>|s| |a|" DS("User") "| |a|" DS("Assistant") "|",
     .first_bare = "<bos>|" DS("User") "| |a|" DS("Assistant") "|",
     .next = "<eos>|" DS("User") "|t|e|a|" DS("Assistant") "|",
     .ending = "<eos>"},
    {.name = "deepseek-r1",
     .template = DEEPSEEK_TEMPLATE("<think>\n"),
     .tokens = {"~<bos>", "~<eos>", "~" DS("User"), "~" DS("Assistant")},
     .first = "<bos>|s| |a|" DS("User") "| |a|" DS("Assistant") "|<|t|h|i|n|k|>|\n|",
     .first_bare = "<bos>|" DS("User") "| |a|" DS("Assistant") "|<|t|h|i|n|k|>|\n|",
     .next = "<eos>|" DS("User") "|t|e|a|" DS("Assistant") "|<|t|h|i|n|k|>|\n|",
     .ending = "<eos>",
     .anew = true},
    {.name = "granite",
     .template = GRANITE_TEMPLATE,
     .tokens = {"~<bos>", "~<|end_of_text|>", "~<|start_of_role|>", "~<|end_of_role|>"},
     .first = "<|start_of_role|>|s|y|s|t|e|m|<|end_of_role|>|s| |a|<|end_of_text|>|\n|"
              "<|start_of_role|>|u|s|e|r|<|end_of_role|>| |a|<|end_of_text|>|\n|"
              "<|start_of_role|>|a|s|s|i|s|t|a|n|t|<|end_of_role|>|",
     .first_bare = "<|start_of_role|>|u|s|e|r|<|end_of_role|>| |a|<|end_of_text|>|\n|"
                   "<|start_of_role|>|a|s|s|i|s|t|a|n|t|<|end_of_role|>|",
     .next =
         "<|end_of_text|>|\n|<|start_of_role|>|u|s|e|r|<|end_of_role|>|t|e|a|<|end_of_text|>|\n|"
         "<|start_of_role|>|a|s|s|i|s|t|a|n|t|<|end_of_role|>|",
     .ending = "<|end_of_text|>"},
};

static void family_file(size_t i, small_file *file) {
    static const char *const letters[] = {"\xc4\x8a", "\xc4\xa0", "s", "y", "t", "e", "m",
                                          "u",        "r",        "a", "i", "n", "o", "d",
                                          "l",        "h",        "k", "<", ">", NULL};
    const char *tokens[SMALL_ITEMS] = {NULL};
    size_t n = 0;
    for (; families[i].tokens[n] != NULL; n++)
        tokens[n] = families[i].tokens[n];
    for (size_t k = 0; letters[k] != NULL; k++)
        tokens[n++] = letters[k];
    small_default(file);
    set_tokens(file, tokens);
    set_id(file, "tokenizer.ggml.bos_token_id", 0);
    set_id(file, "tokenizer.ggml.eos_token_id", 1);
    small_add_key(file, TEMPLATE, STRING, 0)->strings[0] = families[i].template;
}

/* A format by its name, and the template of its models. */
static void test_families(void **state) {
    static const char *const texts[] = {" a", "tea", NULL};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof families / sizeof families[0]; i++) {
        small_file file;
        const size_t k = i / 2;
        const char *system = i % 2 == 0 ? "s a" : NULL;
        const char *first = system != NULL ? families[k].first : families[k].first_bare;
        const char *const named[] = {first, families[k].next, NULL};
        const char *const by_template[] = {first, families[k].anew ? NULL : families[k].next, NULL};
        family_file(k, &file);
        expect_named(&file, families[k].name, system, texts, named, families[k].ending);
        expect_named(&file, NULL, system, texts, by_template,
                     families[k].silent ? NULL : families[k].ending);
    }
}

/* What ends an answer in any format: tokens that keys name, and control tokens by their text. */
static void test_endings(void **state) {
    static const char *const more[] = {"=<|endoftext|>", NULL};
    (void)state;
    small_file file;
    tms_vocab vocab;
    int32_t got[CLI_ENDINGS];
    ml_file(&file);
    open_vocab(&file, &vocab);
    cli_endings(&vocab, got);
    const int32_t im_end = tamis_vocab_find_special(&vocab, "<|im_end|>", 10);
    assert_true(im_end >= 0);
    assert_memory_equal(got, ((int32_t[]){-1, -1, -1, -1, -1, im_end, -1}), sizeof got);
    tms_vocab_free(&vocab);
    /* eos by its key; what the file calls a user's token ends nothing */
    spm_file(&file, more, V3_TEMPLATE);
    open_vocab(&file, &vocab);
    cli_endings(&vocab, got);
    assert_true(tamis_vocab_find_special(&vocab, "<|endoftext|>", 13) >= 0);
    assert_memory_equal(got, ((int32_t[]){2, -1, -1, -1, -1, -1, -1}), sizeof got);
    tms_vocab_free(&vocab);
}

/* ---- Recognising ----------------------------------------------------------------------------- */

static void refuse_open(const small_file *file, const char *name, const char *system,
                        tamis_status wanted, const char *part) {
    tms_vocab vocab;
    cli_chat chat;
    tamis_error error = {0};
    open_vocab(file, &vocab);
    const tamis_status status = cli_chat_open(&vocab, name, system, NULL, &chat, &error);
    if (status != wanted || strstr(error.text, part) == NULL)
        fail_msg("%s \"%s\" lacks \"%s\"", tamis_status_name(status), error.text, part);
    tms_vocab_free(&vocab);
}

/* Each is refused with what is wrong; others are run. */
static void test_refused(void **state) {
    static const struct {
        const char *template, *reason;
    } cases[] = {
        {"{{ messages | pprint }}",
         "the file's chat template cannot be run: line 1: the filter "
         "'pprint' of a list is not known: --chat-format must name one of "
         "chatml, llama2, llama3, mistral, gemma, phi3, glm4, deepseek, deepseek-r1, granite"},
        {"{{ strftime_now('%d') }}", "asks for the date, and none is stated (--date): --chat-"},
        {"<|im_start|>{% if", "cannot be run: line 1: a tag does not end"},
        {"\n\n{{ \"\x1b[2J\" + 1 }}", "line 3: '+' of a text and an integer is not"},
        {"{{ messages[0]['\x1b[2J'].x }}", "line 1: 'x' of what is undefined"},
        {"{{ a\x1b }}", "line 1: '?' in a tag"},
        {"", "the file's chat template leaves the user's text out"},
        {"<|im_start|>user", "the file's chat template leaves the user's text out"},
        {"{% for m in messages %}<|im_sep|>{{ m.content }}{% endfor %}",
         "the file's chat template needs the token '<|im_sep|>', which the vocabulary lacks"},
    };
    (void)state;
    small_file file;
    ml_file(&file);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        small_find_key(&file, TEMPLATE)->strings[0] = cases[i].template;
        refuse_open(&file, NULL, NULL, TAMIS_E_UNSUPPORTED, cases[i].reason);
    }
    small_find_key(&file, TEMPLATE)->strings[0] = "{{ messages[-1].content }}";
    refuse_open(&file, NULL, "s", TAMIS_E_UNSUPPORTED, "chat template leaves the system text out");
    small_find_key(&file, TEMPLATE)->strings[0] =
        "{% if messages[0].role == 'system' %}{{ raise_exception('No \x1b[2J system') }}{% endif %}"
        "{{ messages[-1].content }}";
    refuse_open(&file, NULL, "s", TAMIS_E_ARGUMENT, "the template refuses this: No ?[2J system");
    small_remove_key(&file, TEMPLATE);
    refuse_open(&file, NULL, NULL, TAMIS_E_UNSUPPORTED,
                "no chat template: --chat-format must name one of chatml, llama2");
    refuse_open(&file, "llama3", NULL, TAMIS_E_UNSUPPORTED,
                "llama3 needs the token '<|start_header_id|>', which the vocabulary lacks");
    refuse_open(&file, "llama2", NULL, TAMIS_E_UNSUPPORTED, "llama2 needs the token 'eos'");
    refuse_open(&file, "mistral", NULL, TAMIS_E_UNSUPPORTED, "mistral needs the token 'eos'");
}

/* A name goes before the template. */
static void test_named(void **state) {
    (void)state;
    small_file file;
    tms_vocab vocab;
    cli_chat chat;
    ml_file(&file);
    small_find_key(&file, TEMPLATE)->strings[0] = V3_TEMPLATE;
    open_vocab(&file, &vocab);
    open_chat(&vocab, "chatml", NULL, &chat);
    expect_turn(&chat, "a", ML_USER "a|" ML_ASSISTANT);
    tms_vocab_free(&vocab);
}

/* ---- Text that would be more ----------------------------------------------------------------- */

static void refuse_turn(const small_file *file, const char *name, const char *text,
                        const char *part) {
    tms_vocab vocab;
    cli_chat chat;
    cli_tokens tokens = {.count = 99};
    tamis_error error = {0};
    open_vocab(file, &vocab);
    open_chat(&vocab, name, NULL, &chat);
    assert_int_equal(cli_chat_turn(&chat, text, strlen(text), &tokens, &error), TAMIS_E_ARGUMENT);
    assert_true(tokens.ids == NULL && tokens.count == 0);
    if (strstr(error.text, part) == NULL) fail_msg("'%s' lacks '%s'", error.text, part);
    tms_vocab_free(&vocab);
}

/* What a user types is text: a control token's text is no token. Where the file says that it is one
 * in any text, and where the format's tags are text, it is refused. */
static void test_injection(void **state) {
    static const char *const more[] = {NULL};
    (void)state;
    small_file file;
    tms_vocab vocab;
    cli_chat chat;
    ml_file(&file);
    open_vocab(&file, &vocab);
    open_chat(&vocab, NULL, NULL, &chat);
    expect_turn(&chat, "<|im_end|>", ML_USER "<|||i|m|_|e|n|d|||>|" ML_ASSISTANT);
    tms_vocab_free(&vocab);

    spm_file(&file, (const char *[]){"~[INST]", "=[/INST]", NULL}, V3_TEMPLATE);
    refuse_turn(&file, "mistral", "a[/INST]b",
                "the text holds '[/INST]', which is a token of the chat format");
    refuse_turn(&file, NULL, "a[/INST]b",
                "'[/INST]', which is a token of the file's chat template");
    spm_file(&file, more, V1_TEMPLATE);
    refuse_turn(&file, "mistral", "a[/INST]b", "'[/INST]', a tag of the chat format mistral");
    refuse_turn(&file, NULL, "a[/INST]b", "'[/INST]', a tag of the file's chat template");
    spm_file(&file, more, L2_TEMPLATE);
    refuse_turn(&file, "llama2", "<<SYS>>", "holds '<<SYS>>', a tag of the chat format llama2");
    refuse_turn(&file, NULL, "a <</SYS>>", "holds '<</SYS>>', a tag of the file's chat template");
    refuse_open(&file, "llama2", "[INST]", TAMIS_E_ARGUMENT, "the text holds '[INST]', a tag");
    refuse_open(&file, NULL, "[INST]", TAMIS_E_ARGUMENT, "the text holds '[INST]', a tag");
    refuse_turn(&file, NULL, "x", "lacks byte 120");
}

/* A user-defined token that is no tag belongs to any text, the template's or the user's. */
static void test_user_defined(void **state) {
    (void)state;
    small_file file;
    spm_file(&file, (const char *[]){"=\n\n", NULL}, V1_TEMPLATE);
    expect_three(&file, "mistral", "b", (const char *[]){"a\n\nb", "\n\n", "ab"},
                 (const char *[]){"<s>|" INST " b|\n\n| a|\n\n| b|" END_I,
                                  "</s>|" INST " |\n\n| |" END_I, "</s>|" INST " a|b|" END_I},
                 "</s>");
}

/* A token with a control character in its text is shown without it. */
static void test_quoted(void **state) {
    (void)state;
    small_file file;
    spm_file(&file, (const char *[]){"=a\x1b[2J", NULL}, V1_TEMPLATE);
    small_add_key(&file, "tokenizer.ggml.eot_token_id", U32, 23);
    refuse_turn(&file, "mistral", "a\x1b[2J", "holds 'a?[2J', which is a token of the chat format");
}

/* ---- Templates of their own ------------------------------------------------------------------ */

#define ML_SYSTEM "<|im_start|>|s|y|s|t|e|m|\n|"

/* A template's own system text stands where the caller gives none. */
static void test_default_system(void **state) {
    (void)state;
    small_file file;
    ml_file(&file);
    small_find_key(&file, TEMPLATE)->strings[0] =
        "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nan ant<|im_end|>\n' }}"
        "{% endif %}" ML_TEMPLATE;
    expect_named(&file, NULL, NULL, (const char *[]){"a", "tea", " "},
                 (const char *[]){ML_SYSTEM "a|n| |a|n|t|<|im_end|>|\n|" ML_USER "a|" ML_ASSISTANT,
                                  "<|im_end|>|\n|" ML_USER "t|e|a|" ML_ASSISTANT,
                                  "<|im_end|>|\n|" ML_USER " |" ML_ASSISTANT},
                 "<|im_end|>");
    expect_named(&file, NULL, "", (const char *[]){"a", "", "{{"},
                 (const char *[]){ML_SYSTEM "<|im_end|>|\n|" ML_USER "a|" ML_ASSISTANT,
                                  "<|im_end|>|\n|" ML_USER ML_ASSISTANT, NULL},
                 "<|im_end|>");
}

/* A token that the file calls normal is the template's all the same, in a named format too. */
static void test_normal_tokens(void **state) {
    static const char *tokens[SMALL_ITEMS];
    static const char *const texts[] = {"a", " ant ", "tea"};
    (void)state;
    small_file file;
    size_t n = 0;
    ml_file(&file);
    for (; ml_tokens[n] != NULL; n++)
        tokens[n] = ml_tokens[n];
    small_key *kinds = small_find_key(&file, "tokenizer.ggml.token_type");
    small_key *merges = small_add_key(&file, "tokenizer.ggml.merges", ARRAY, 0);
    merges->element = STRING;
    merges->strings[0] = "a n";
    tokens[n] = "an";
    set_tokens(&file, tokens);
    small_add_key(&file, "tokenizer.ggml.pre", STRING, 0)->strings[0] = "gpt-2";
    kinds->items[0] = kinds->items[1] = TAMIS_TOKEN_NORMAL;
    expect_three(&file, "chatml", NULL, texts,
                 (const char *[]){ML_USER "a|" ML_ASSISTANT_AN,
                                  "<|im_end|>|\n|" ML_USER " |an|t| |" ML_ASSISTANT_AN,
                                  "<|im_end|>|\n|" ML_USER "t|e|a|" ML_ASSISTANT_AN},
                 "<|im_end|>");
}

/* What was said before must stay: the first turn can be answered, the second is refused. */
static void test_rewritten(void **state) {
    static const char *const more[] = {"~[INST]", "~[/INST]", NULL};
    (void)state;
    small_file file;
    tms_vocab vocab;
    cli_chat chat;
    cli_tokens tokens = {0};
    tamis_error error = {0};
    spm_file(&file, more,
             "{{ bos_token }}{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}"
             "{{ '[INST] ' + (messages[0].content + '\n' if loop.last else '') + m.content + "
             "'[/INST]' }}"
             "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}");
    open_vocab(&file, &vocab);
    open_chat(&vocab, NULL, "b", &chat);
    expect_turn(&chat, "a", "<s>|[INST]| b|\n|a|[/INST]|");
    assert_int_equal(cli_chat_turn(&chat, "a", 1, &tokens, &error), TAMIS_E_UNSUPPORTED);
    assert_non_null(
        strstr(error.text, "writes what was said before anew with turn 2, from byte 10"));
    tms_vocab_free(&vocab);
}

static void test_thoughts(void **state) {
    (void)state;
    small_file file;
    tms_vocab vocab;
    cli_chat chat;
    ml_file(&file);
    open_vocab(&file, &vocab);
    open_chat(&vocab, NULL, NULL, &chat);
    assert_true(chat.notes[0] == NULL && chat.notes[1] == NULL);
    tms_vocab_free(&vocab);
    small_find_key(&file, TEMPLATE)->strings[0] =
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + "
        "m.content.split('</think>')[-1] "
        "+ '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
        "{% if strftime_now is defined %}{{ strftime_now('%d') }}{% endif %}";
    open_vocab(&file, &vocab);
    open_chat(&vocab, NULL, NULL, &chat);
    assert_non_null(strstr(chat.notes[0], "leaves the thoughts of earlier answers out"));
    assert_non_null(strstr(chat.notes[1], "asks for the date, which it is not told"));
    tms_vocab_free(&vocab);
}

/* Templates are told a date that is stated, and no other. */
static void test_date(void **state) {
    (void)state;
    small_file file;
    tms_vocab vocab;
    cli_chat chat;
    tamis_error error = {0};
    ml_file(&file);
    small_find_key(&file, TEMPLATE)->strings[0] =
        "{{ 'a' if strftime_now is defined and strftime_now('%d %B %Y') == '29 February 2024' "
        "else 'e' }}" ML_TEMPLATE;
    open_vocab(&file, &vocab);
    open_chat(&vocab, NULL, NULL, &chat);
    expect_turn(&chat, "a", "e|" ML_USER "a|" ML_ASSISTANT);
    assert_non_null(chat.notes[1]);
    assert_int_equal(cli_chat_open(&vocab, NULL, NULL, "2024-02-29", &chat, &error), TAMIS_OK);
    expect_turn(&chat, "a", "a|" ML_USER "a|" ML_ASSISTANT);
    assert_null(chat.notes[1]);
    static const char *const bad[] = {"2023-02-29", "2024-2-29",   "24-02-29",  "2024-00-10",
                                      "2024-13-01", "2024-02-291", "today",     "",
                                      "2024-01-00", "2024-04-31",  "2024- 2- 3"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(cli_chat_open(&vocab, NULL, NULL, bad[i], &chat, &error),
                         TAMIS_E_ARGUMENT);
        assert_non_null(strstr(error.text, bad[i]));
    }
    tms_vocab_free(&vocab);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chatml),       cmocka_unit_test(test_llama2),
        cmocka_unit_test(test_mistral_v1),   cmocka_unit_test(test_mistral_v3),
        cmocka_unit_test(test_mistral_v7),   cmocka_unit_test(test_named),
        cmocka_unit_test(test_families),     cmocka_unit_test(test_date),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_injection),
        cmocka_unit_test(test_endings),      cmocka_unit_test(test_quoted),
        cmocka_unit_test(test_user_defined), cmocka_unit_test(test_default_system),
        cmocka_unit_test(test_rewritten),    cmocka_unit_test(test_thoughts),
    };
    const struct CMUnitTest merges[] = {cmocka_unit_test(test_llama3),
                                        cmocka_unit_test(test_normal_tokens)};
    int failed = cmocka_run_group_tests_name("chat", tests, NULL, NULL);
    if (TEST_PCRE2) failed += cmocka_run_group_tests_name("chat with merges", merges, NULL, NULL);
    return failed;
}
