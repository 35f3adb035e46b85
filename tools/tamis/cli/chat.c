/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a conversation's turns, in the form that a model was trained with. A file's
 * template is run (chat_template.c); the tables here are the formats that a caller names in its
 * place. */
#include "cli/chat.h"

#include "cli/chat_template.h"
#include "jinja/value.h"

#include <stdlib.h>
#include <string.h>

/* ---- Formats --------------------------------------------------------------------------------- */

/* A pattern is plain text with these marks. Each token stands alone; the text between two tokens,
 * the user's with the format's, is encoded as one. */
#define TOKEN(text) "\1<" text "\1>"
#define BOS         "\1b"
#define WANTED_BOS  "\1w" /* where the file wants it */
#define EOS         "\1e"
#define SYSTEM      "\1s"
#define USER        "\1u"
/* Without white space around it, or behind it. */
#define BARE_SYSTEM "\1S"
#define BARE_USER   "\1U"
#define USER_CUT    "\1c"

#define TAGS_MAX 4
struct cli_chat_format {
    const char *name;
    const char *begin;          /* before all */
    const char *first;          /* the first turn, if there is a system text */
    const char *turn;           /* others */
    const char *end;            /* behind an answer, before the next turn */
    const char *tags[TAGS_MAX]; /* plain text that the user's must not hold */
};

/* clang-format off */
#define ML_TEXT(role, text)  TOKEN("<|im_start|>") role "\n" text TOKEN("<|im_end|>") "\n"
#define ML_TURN              ML_TEXT("user", USER) TOKEN("<|im_start|>") "assistant\n"
#define L3_HEAD(role)        TOKEN("<|start_header_id|>") role TOKEN("<|end_header_id|>") "\n\n"
#define L3_TEXT(role, text)  L3_HEAD(role) text TOKEN("<|eot_id|>")
#define L3_TURN              L3_TEXT("user", BARE_USER) L3_HEAD("assistant")
#define INST_TEXT(text)      TOKEN("[INST]") text TOKEN("[/INST]")
#define GEMMA_TURN(text)     TOKEN("<start_of_turn>") "user\n" text TOKEN("<end_of_turn>") "\n" \
                             TOKEN("<start_of_turn>") "model\n"
#define PHI_TEXT(role, text) TOKEN("<|" role "|>") "\n" text TOKEN("<|end|>") "\n"
#define PHI_TURN             PHI_TEXT("user", USER) TOKEN("<|assistant|>") "\n"
#define GLM_TURN             TOKEN("<|user|>") "\n" USER TOKEN("<|assistant|>")
#define DEEPSEEK_TURN        TOKEN(DEEPSEEK_TAG("User")) USER TOKEN(DEEPSEEK_TAG("Assistant"))
#define DEEPSEEK_TAG(role)   "<\xef\xbd\x9c" role "\xef\xbd\x9c>"
#define GRANITE_HEAD(role)   TOKEN("<|start_of_role|>") role TOKEN("<|end_of_role|>")
#define GRANITE_TURN         GRANITE_HEAD("user") USER TOKEN("<|end_of_text|>") "\n" \
                             GRANITE_HEAD("assistant")
/* clang-format on */

/* Where several formats have one name, the first is taken whose tokens are all in the vocabulary.
 *
 * One thing differs from the originals. An answer stays as the model gave it: where an original
 * encodes the text of an answer anew, as Llama 2's with a space before eos, the tokens that were
 * generated stand here instead. */
static const struct cli_chat_format formats[] = {
    /* OpenAI's ChatML, as in the templates of SmolLM2 and Qwen2, and in llama.cpp,
     * src/llama-chat.cpp, LLM_CHAT_TEMPLATE_CHATML. */
    {.name = "chatml",
     .begin = WANTED_BOS,
     .first = ML_TEXT("system", SYSTEM) ML_TURN,
     .turn = ML_TURN,
     .end = TOKEN("<|im_end|>") "\n"},
    /* meta-llama/llama, llama/generation.py, chat_completion: each turn is encoded for itself, with
     * bos before it and eos behind its answer; the user's text, which the system text is a part of,
     * is stripped; the four tags are refused in it. */
    {.name = "llama2",
     .begin = "",
     .first = BOS "[INST] <<SYS>>\n" SYSTEM "\n<</SYS>>\n\n" USER_CUT " [/INST]",
     .turn = BOS "[INST] " BARE_USER " [/INST]",
     .end = EOS,
     .tags = {"[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"}},
    /* meta-llama/llama3, llama/tokenizer.py, ChatFormat: every text is stripped. */
    {.name = "llama3",
     .begin = BOS,
     .first = L3_TEXT("system", BARE_SYSTEM) L3_TURN,
     .turn = L3_TURN,
     .end = TOKEN("<|eot_id|>")},
    /* mistralai/mistral-common, tokens/tokenizers/instruct.py: InstructTokenizerV7, then V2 and V3,
     * then V1. bos comes once; the space that their templates show behind a tag is the one that
     * SentencePiece puts before any text. V2 and V3 put the system text before the last user's;
     * over one cache, to which turns are added, it stays before the first. */
    {.name = "mistral",
     .begin = BOS,
     .first = TOKEN("[SYSTEM_PROMPT]") SYSTEM TOKEN("[/SYSTEM_PROMPT]") INST_TEXT(USER),
     .turn = INST_TEXT(USER),
     .end = EOS},
    {.name = "mistral",
     .begin = BOS,
     .first = INST_TEXT(SYSTEM "\n\n" USER),
     .turn = INST_TEXT(USER),
     .end = EOS},
    {.name = "mistral",
     .begin = BOS,
     .first = "[INST] " SYSTEM "\n\n" USER " [/INST]",
     .turn = "[INST] " USER " [/INST]",
     .end = EOS,
     .tags = {"[INST]", "[/INST]"}},
    /* The others are those of the templates in models' files. google/gemma-2 and -3: what Gemma 3's
     * calls the system text begins the first question. */
    {.name = "gemma",
     .begin = BOS,
     .first = GEMMA_TURN(SYSTEM "\n\n" BARE_USER),
     .turn = GEMMA_TURN(BARE_USER),
     .end = TOKEN("<end_of_turn>") "\n"},
    /* microsoft/Phi-3 and -3.5. */
    {.name = "phi3",
     .begin = WANTED_BOS,
     .first = PHI_TEXT("system", SYSTEM) PHI_TURN,
     .turn = PHI_TURN,
     .end = TOKEN("<|end|>") "\n"},
    /* THUDM/glm-4: nothing ends an answer but what begins the next turn. */
    {.name = "glm4",
     .begin = TOKEN("[gMASK]") TOKEN("<sop>"),
     .first = TOKEN("<|system|>") "\n" SYSTEM GLM_TURN,
     .turn = GLM_TURN,
     .end = ""},
    /* deepseek-ai/DeepSeek-V3; R1 begins answers with their thoughts. */
    {.name = "deepseek",
     .begin = BOS,
     .first = SYSTEM DEEPSEEK_TURN,
     .turn = DEEPSEEK_TURN,
     .end = EOS},
    {.name = "deepseek-r1",
     .begin = BOS,
     .first = SYSTEM DEEPSEEK_TURN "<think>\n",
     .turn = DEEPSEEK_TURN "<think>\n",
     .end = EOS},
    /* ibm-granite/granite-3 and -4, without their system texts. */
    {.name = "granite",
     .begin = WANTED_BOS,
     .first = GRANITE_HEAD("system") SYSTEM TOKEN("<|end_of_text|>") "\n" GRANITE_TURN,
     .turn = GRANITE_TURN,
     .end = TOKEN("<|end_of_text|>") "\n"},
};

#define N_FORMATS (sizeof(formats) / sizeof(formats[0]))

const char *const cli_chat_names[] = {"chatml",      "llama2",  "llama3", "mistral",
                                      "gemma",       "phi3",    "glm4",   "deepseek",
                                      "deepseek-r1", "granite", NULL};

/* ---- Patterns -------------------------------------------------------------------------------- */

/* The tokens that a pattern becomes. Text waits until a token follows, or the end. */
typedef struct builder {
    const cli_chat *chat;
    const char *user;
    size_t user_bytes;
    char *text;
    size_t bytes;
    cli_tokens out;
} builder;

static tamis_status add_tokens(builder *b, const int32_t *ids, size_t count, tamis_error *error) {
    int32_t *larger = realloc(b->out.ids, (b->out.count + count + 1) * sizeof(*larger));
    if (larger == NULL) return cli_no_memory(error);
    b->out.ids = larger;
    if (count > 0) memcpy(larger + b->out.count, ids, count * sizeof(*ids));
    b->out.count += count;
    return TAMIS_OK;
}

static tamis_status add_text(builder *b, const char *text, size_t bytes, tamis_error *error) {
    char *larger = realloc(b->text, b->bytes + bytes + 1);
    if (larger == NULL) return cli_no_memory(error);
    b->text = larger;
    memcpy(larger + b->bytes, text, bytes);
    b->bytes += bytes;
    return TAMIS_OK;
}

/* A token that the file calls a normal one has its text all the same. */
static int32_t find_normal(const tamis_vocab *vocab, const char *name, size_t bytes) {
    const int32_t count = (int32_t)tamis_vocab_describe(vocab)->n_tokens;
    for (int32_t i = 0; i < count; i++) {
        size_t length = 0;
        const char *text = tamis_vocab_token_text(vocab, i, &length);
        if (length == bytes && memcmp(text, name, bytes) == 0) return i;
    }
    return -1;
}

/* The token at `at`, which begins behind \1; *next is what follows it. -1: the vocabulary lacks it,
 * and `name` says what. */
static int32_t find_token(const tamis_vocab *vocab, const char *at, const char **next,
                          char name[32]) {
    const tamis_vocab_info *info = tamis_vocab_describe(vocab);
    *next = at + 1;
    strcpy(name, *at == 'e' ? "eos" : "bos");
    if (*at != '<') return *at == 'e' ? info->eos : info->bos;
    const size_t bytes = strcspn(at + 1, "\1");
    *next = at + 1 + bytes + 2;
    memcpy(name, at + 1, bytes);
    name[bytes] = '\0';
    const int32_t token = tamis_vocab_find_special(vocab, name, bytes);
    return token >= 0 ? token : find_normal(vocab, name, bytes);
}

static bool is_token(char mark) {
    return mark == '<' || mark == 'b' || mark == 'e' || mark == 'w';
}

/* Tokens that the format uses: those that its patterns name, bos, eos and eot. */
#define OF_FORMAT_MAX 16
static size_t tokens_of_format(const cli_chat *chat, int32_t out[OF_FORMAT_MAX]) {
    const char *const patterns[] = {chat->format->first, chat->format->end};
    const tamis_vocab_info *info = tamis_vocab_describe(chat->vocab);
    char name[32];
    size_t n = 0;
    out[n++] = info->bos;
    out[n++] = info->eos;
    out[n++] = info->eot;
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
        for (const char *at = patterns[i]; (at = strchr(at, '\1')) != NULL;) {
            const char mark = *++at;
            if (is_token(mark) && n < OF_FORMAT_MAX)
                out[n++] = find_token(chat->vocab, at, &at, name);
        }
    return n;
}

static bool is_in(const int32_t *tokens, size_t count, int32_t token) {
    for (size_t i = 0; i < count; i++)
        if (tokens[i] == token) return true;
    return false;
}

/* What the text holds and is a token of the format, made printable. */
static tamis_status refuse_token(const cli_chat *chat, int32_t token, tamis_error *error) {
    char shown[64] = "";
    size_t bytes = 0;
    const char *piece = tamis_vocab_token_text(chat->vocab, token, &bytes);
    for (size_t i = 0; i < bytes && i < sizeof(shown) - 1; i++)
        shown[i] = piece[i] >= ' ' && piece[i] <= '~' ? piece[i] : '?';
    return cli_error(error, TAMIS_E_ARGUMENT,
                     "the text holds '%s', which is a token of the chat format %s", shown,
                     chat->format->name);
}

/* Text becomes tokens of text. A user-defined token is found in any text, though. */
static tamis_status flush(builder *b, tamis_error *error) {
    cli_tokens tokens = {0};
    int32_t own[OF_FORMAT_MAX];
    if (b->bytes == 0) return TAMIS_OK;
    const size_t n = tokens_of_format(b->chat, own);
    tamis_status status = cli_tokenize(b->chat->vocab, b->text, b->bytes, 0, &tokens, error);
    b->bytes = 0;
    for (size_t i = 0; status == TAMIS_OK && i < tokens.count; i++)
        if (is_in(own, n, tokens.ids[i])) status = refuse_token(b->chat, tokens.ids[i], error);
    if (status == TAMIS_OK) status = add_tokens(b, tokens.ids, tokens.count, error);
    free(tokens.ids);
    return status;
}

/* Without white space as Python's strip knows it. */
static tamis_status add_stripped(builder *b, const char *text, size_t bytes, bool front,
                                 tamis_error *error) {
    const jinja_text bare = jinja_strip(NULL, (jinja_text){text, NULL, bytes}, NULL, front, true);
    return add_text(b, bare.at, bare.bytes, error);
}

static tamis_status add_content(builder *b, char mark, tamis_error *error) {
    const char *system = b->chat->system != NULL ? b->chat->system : "";
    switch (mark) {
    case 's':
        return add_text(b, system, strlen(system), error);
    case 'S':
        return add_stripped(b, system, strlen(system), true, error);
    case 'u':
        return add_text(b, b->user, b->user_bytes, error);
    default:
        return add_stripped(b, b->user, b->user_bytes, mark == 'U', error);
    }
}

static tamis_status add_token(builder *b, const char *at, const char **next, tamis_error *error) {
    char name[32];
    const bool left_out = *at == 'w' && !tamis_vocab_describe(b->chat->vocab)->add_bos;
    const int32_t token = find_token(b->chat->vocab, at, next, name);
    tamis_status status = flush(b, error);
    if (status != TAMIS_OK || left_out) return status;
    return add_tokens(b, &token, 1, error);
}

static tamis_status add_pattern(builder *b, const char *pattern, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    for (const char *at = pattern; status == TAMIS_OK && *at != '\0';) {
        const size_t plain = strcspn(at, "\1");
        status = add_text(b, at, plain, error);
        at += plain;
        if (status != TAMIS_OK || *at == '\0') break;
        if (is_token(*++at))
            status = add_token(b, at, &at, error);
        else
            status = add_content(b, *at++, error);
    }
    return status;
}

/* ---- Choosing -------------------------------------------------------------------------------- */

/* The first token that the patterns need and the vocabulary lacks, in `name`. */
static bool lacks(const tamis_vocab *vocab, const struct cli_chat_format *f, char name[32]) {
    const char *const patterns[] = {f->begin, f->first, f->turn, f->end};
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++)
        for (const char *at = patterns[i]; (at = strchr(at, '\1')) != NULL;) {
            const char mark = *++at;
            if (is_token(mark) && find_token(vocab, at, &at, name) < 0 && mark != 'w') return true;
        }
    return false;
}

static tamis_status open_template(cli_chat *chat, tamis_error *error) {
    char known[128] = "";
    tamis_status status = TAMIS_E_UNSUPPORTED;
    tamis_error reason = {.text = "the file has no chat template"};
    if (tamis_vocab_chat_template(chat->vocab) != NULL) status = cli_template_open(chat, &reason);
    if (status == TAMIS_OK) return TAMIS_OK;
    for (size_t i = 0; cli_chat_names[i] != NULL; i++)
        snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s", i > 0 ? ", " : "",
                 cli_chat_names[i]);
    if (status == TAMIS_E_UNSUPPORTED)
        return cli_error(error, status, "%.320s: --chat-format must name one of %s", reason.text,
                         known);
    *error = reason;
    return status;
}

static const char *find_tag(const struct cli_chat_format *f, const char *text, size_t bytes) {
    for (size_t i = 0; i < TAGS_MAX && f->tags[i] != NULL; i++) {
        const size_t length = strlen(f->tags[i]);
        for (size_t at = 0; at + length <= bytes; at++)
            if (memcmp(text + at, f->tags[i], length) == 0) return f->tags[i];
    }
    return NULL;
}

static tamis_status check_tags(const cli_chat *chat, const char *text, size_t bytes,
                               tamis_error *error) {
    const char *tag = find_tag(chat->format, text, bytes);
    if (tag == NULL) return TAMIS_OK;
    return cli_error(error, TAMIS_E_ARGUMENT, "the text holds '%s', a tag of the chat format %s",
                     tag, chat->format->name);
}

/* ---- The calls ------------------------------------------------------------------------------- */

/* The first token behind an answer. */
static int32_t ending_of(const cli_chat *chat) {
    const struct cli_chat_format *f = chat->format;
    char name[32];
    const char *next;
    return find_token(chat->vocab, (*f->end != '\0' ? f->end : f->turn) + 1, &next, name);
}

tamis_status cli_chat_open(const tamis_vocab *vocab, const char *name, const char *system,
                           const char *date, cli_chat *out, tamis_error *error) {
    char missing[32] = "";
    *out = (cli_chat){.vocab = vocab, .system = system, .dated = date != NULL, .ending = -1};
    if (date != NULL && !jinja_date(date, &out->date))
        return cli_error(error, TAMIS_E_ARGUMENT, "'%.40s' is no date of the form YYYY-MM-DD",
                         date);
    if (name == NULL) return open_template(out, error);
    for (size_t i = 0; i < N_FORMATS && out->format == NULL; i++)
        if (strcmp(formats[i].name, name) == 0 && !lacks(vocab, &formats[i], missing))
            out->format = &formats[i];
    if (out->format == NULL)
        return cli_error(error, TAMIS_E_UNSUPPORTED,
                         "the chat format %s needs the token '%s', which the vocabulary lacks",
                         name, missing);
    out->ending = ending_of(out);
    return system != NULL ? check_tags(out, system, strlen(system), error) : TAMIS_OK;
}

tamis_status cli_chat_turn(const cli_chat *chat, const char *text, size_t bytes, cli_tokens *out,
                           tamis_error *error) {
    const struct cli_chat_format *f = chat->format;
    builder b = {.chat = chat, .user = text, .user_bytes = bytes};
    if (f == NULL) return cli_template_turn(chat, text, bytes, out, error);
    *out = (cli_tokens){0};
    tamis_status status = check_tags(chat, text, bytes, error);
    if (status == TAMIS_OK) status = add_pattern(&b, chat->turns > 0 ? f->end : f->begin, error);
    if (status == TAMIS_OK)
        status =
            add_pattern(&b, chat->turns > 0 || chat->system == NULL ? f->turn : f->first, error);
    if (status == TAMIS_OK) status = flush(&b, error);
    free(b.text);
    if (status == TAMIS_OK)
        *out = b.out;
    else
        free(b.out.ids);
    return status;
}

const char *cli_chat_name(const cli_chat *chat) {
    return chat->format != NULL ? chat->format->name : "template";
}

/* Chat models of one family end with several tokens, of which a file's keys name two: Llama 3.1's
 * <|eom_id|> calls a tool, Qwen2's <|endoftext|> ends what follows no turn. llama.cpp takes these
 * texts for endings, too (src/llama-vocab.cpp, special_eog_ids). */
void cli_endings(const tamis_vocab *vocab, int32_t out[CLI_ENDINGS]) {
    static const char *const texts[] = {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>",
                                        "<|endoftext|>"};
    const tamis_vocab_info *info = tamis_vocab_describe(vocab);
    *out++ = info->eos;
    *out++ = info->eot;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        const int32_t token = tamis_vocab_find_special(vocab, texts[i], strlen(texts[i]));
        *out++ = tamis_vocab_token_kind(vocab, token) == TAMIS_TOKEN_CONTROL ? token : -1;
    }
}
