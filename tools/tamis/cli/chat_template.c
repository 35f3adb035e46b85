/* SPDX-License-Identifier: Apache-2.0 */
/* Turns by the file's own template. It is run over the whole conversation; what it puts behind the
 * last answer is the turn's text. Earlier texts are not kept: any others stand for them, since a
 * cache is only added to. Two things differ from running the template over the words alone. An
 * answer stays as the model gave it, so white space that a template puts around it, as Llama 2's,
 * is left out. And tokens of the template are found in its own bytes alone, never in what somebody
 * says. */
#include "cli/chat_template.h"

#include "jinja/jinja.h"

#include <stdlib.h>
#include <string.h>

enum { OF_SYSTEM = 1, OF_USER, OF_EARLIER, OF_ANSWER };

/* ---- Running the template -------------------------------------------------------------------- */

/* The text of a token, NUL-terminated; empty for none. */
static void token_text(const tamis_vocab *vocab, int32_t token, char out[256]) {
    size_t bytes = 0;
    const char *text = token >= 0 ? tamis_vocab_token_text(vocab, token, &bytes) : NULL;
    if (bytes > 255) bytes = 0;
    if (bytes > 0) memcpy(out, text, bytes);
    out[bytes] = '\0';
}

static size_t add(jinja_message *to, const char *role, uint8_t origin, const char *text,
                  size_t bytes) {
    *to = (jinja_message){.role = role, .text = text, .bytes = bytes, .origin = origin};
    return 1;
}

static tamis_status run_template(const cli_chat *chat, const jinja_message *messages, size_t count,
                                 bool answers, jinja_result *out, tamis_error *error) {
    char bos[256], eos[256];
    const tamis_vocab_info *info = tamis_vocab_describe(chat->vocab);
    token_text(chat->vocab, info->bos, bos);
    token_text(chat->vocab, info->eos, eos);
    const jinja_conversation all = {.messages = messages,
                                    .count = count,
                                    .bos = bos,
                                    .eos = eos,
                                    .date = chat->dated ? &chat->date : NULL,
                                    .add_generation_prompt = answers};
    tamis_error reason = {0};
    const tamis_status status =
        jinja_render(tamis_vocab_chat_template(chat->vocab), &all, out, &reason);
    if (status == TAMIS_OK) return TAMIS_OK;
    return cli_error(error, status == TAMIS_E_FORMAT ? TAMIS_E_UNSUPPORTED : status,
                     "the file's chat template cannot be run: %s", reason.text);
}

/* A conversation of `turns` answered turns, and one with `text` unless that is NULL. */
static tamis_status render(const cli_chat *chat, uint32_t turns, const char *answer,
                           const char *text, size_t bytes, jinja_result *out, tamis_error *error) {
    jinja_message *messages = calloc(2 * (size_t)turns + 2, sizeof(*messages));
    size_t n = 0;
    *out = (jinja_result){0};
    if (messages == NULL) return cli_no_memory(error);
    if (chat->system != NULL)
        n += add(messages, "system", OF_SYSTEM, chat->system, strlen(chat->system));
    for (uint32_t i = 0; i < turns; i++) {
        n += add(messages + n, "user", OF_EARLIER, "text", 4);
        n += add(messages + n, "assistant", OF_ANSWER, answer, strlen(answer));
    }
    if (text != NULL) n += add(messages + n, "user", OF_USER, text, bytes);
    const tamis_status status = run_template(chat, messages, n, text != NULL, out, error);
    free(messages);
    return status;
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The last answer is at [*first, *end). False: there is none. */
static bool find_answer(const jinja_result *r, size_t *first, size_t *end) {
    size_t at = r->bytes;
    while (at > 0 && r->origins[at - 1] != OF_ANSWER)
        at--;
    *end = at;
    while (at > 0 && r->origins[at - 1] == OF_ANSWER)
        at--;
    *first = at;
    return *end > *first;
}

/* What a template has written up to an answer must stay as it was when the answer began. */
static tamis_status find_turn(const cli_chat *chat, const jinja_result *r, size_t *from,
                              tamis_error *error) {
    size_t first = 0, same = 0;
    jinja_result before;
    const bool found = find_answer(r, &first, from);
    tamis_status status = render(chat, chat->turns - 1, "answer", "text", 4, &before, error);
    if (status != TAMIS_OK) return status;
    while (same < before.bytes && same < first && before.text[same] == r->text[same])
        same++;
    size_t at = same;
    while (at < first && is_space(r->text[at]))
        at++;
    const bool stays = found && same == before.bytes && at == first;
    jinja_result_free(&before);
    if (stays) return TAMIS_OK;
    return cli_error(error, TAMIS_E_UNSUPPORTED,
                     "the file's chat template writes what was said before anew with turn %u, from "
                     "byte %zu on; over one cache it must stay (--chat-format names another form)",
                     chat->turns + 1, same);
}

/* ---- Tokens of the template ------------------------------------------------------------------ */

typedef struct special {
    const char *text;
    size_t bytes;
    int32_t token;
    bool used; /* by the template */
} special;

typedef struct specials {
    special *all;
    size_t count, room;
} specials;

static bool is_one_of(char c, char first, char last) {
    return c >= first && c <= last;
}

/* <|name|>, [NAME], [/NAME]: what no text is, so that a token of type normal with such a text was
 * meant for a template. `bytes` is its length; 0: `at` is none. */
static size_t tag_at(const char *at, size_t left) {
    size_t n = 1;
    if (left > 2 && at[0] == '<' && at[1] == '|') {
        for (n = 2; n + 1 < left && at[n] != '|' && !is_space(at[n]);)
            n++;
        return n > 2 && n + 1 < left && at[n] == '|' && at[n + 1] == '>' ? n + 2 : 0;
    }
    if (left < 3 || at[0] != '[') return 0;
    n += at[1] == '/';
    const size_t name = n;
    while (n < left && (is_one_of(at[n], 'A', 'Z') || at[n] == '_'))
        n++;
    return n > name && n < left && at[n] == ']' ? n + 1 : 0;
}

/* Whether a text found anywhere can be told from words: white space and the like is found by
 * encoding. */
static bool is_bracketed(const char *text, size_t bytes) {
    return bytes > 2 && ((text[0] == '<' && text[bytes - 1] == '>') ||
                         (text[0] == '[' && text[bytes - 1] == ']'));
}

static bool is_special(const tamis_vocab *vocab, int32_t token, const char *text, size_t bytes) {
    const tamis_vocab_info *info = tamis_vocab_describe(vocab);
    const tamis_token_kind kind = tamis_vocab_token_kind(vocab, token);
    if (bytes == 0) return false;
    if (token == info->bos || token == info->eos || token == info->eot) return true;
    if (kind == TAMIS_TOKEN_NORMAL || kind == TAMIS_TOKEN_UNDEFINED)
        return tag_at(text, bytes) == bytes;
    if (kind == TAMIS_TOKEN_USER_DEFINED) return is_bracketed(text, bytes);
    return kind == TAMIS_TOKEN_CONTROL;
}

static tamis_status add_special(specials *to, special one, tamis_error *error) {
    if (to->count == to->room) {
        const size_t room = 2 * to->room + 64;
        special *larger = realloc(to->all, room * sizeof(*larger));
        if (larger == NULL) return cli_no_memory(error);
        to->all = larger;
        to->room = room;
    }
    to->all[to->count++] = one;
    return TAMIS_OK;
}

/* The one that has this text; NULL: none has. */
static const special *find_special(const specials *s, const char *text, size_t bytes) {
    for (size_t i = 0; i < s->count; i++)
        if (s->all[i].bytes == bytes && memcmp(s->all[i].text, text, bytes) == 0) return &s->all[i];
    return NULL;
}

static tamis_status find_specials(const tamis_vocab *vocab, specials *out, tamis_error *error) {
    const int32_t count = (int32_t)tamis_vocab_describe(vocab)->n_tokens;
    for (int32_t i = 0; i < count; i++) {
        size_t bytes = 0;
        const char *text = tamis_vocab_token_text(vocab, i, &bytes);
        if (!is_special(vocab, i, text, bytes)) continue;
        const tamis_status status = add_special(out, (special){text, bytes, i, false}, error);
        if (status != TAMIS_OK) return status;
    }
    return TAMIS_OK;
}

/* The most bytes of a token of a template. */
#define SPECIAL_MAX 256

/* How many bytes from `at` on are the template's own, as far as a token can reach. */
static size_t own_bytes(const jinja_result *r, size_t at) {
    size_t n = 0;
    while (n < SPECIAL_MAX && at + n < r->bytes && r->origins[at + n] == JINJA_TEMPLATE)
        n++;
    return n;
}

/* The longest token of the template that begins at `at`; NULL: none does. */
static special *special_at(const specials *s, const jinja_result *r, size_t at) {
    const size_t own = own_bytes(r, at);
    special *best = NULL;
    for (size_t i = 0; i < s->count && own > 0; i++) {
        special *one = &s->all[i];
        if (one->text[0] == r->text[at] && one->bytes <= own &&
            (best == NULL || one->bytes > best->bytes) &&
            memcmp(one->text, r->text + at, one->bytes) == 0)
            best = one;
    }
    return best;
}

/* Text of a file in a message: made printable. */
typedef struct shown {
    char text[64];
} shown;
static shown show(const char *text, size_t bytes) {
    shown out = {{0}};
    for (size_t i = 0; i < bytes && i < sizeof(out.text) - 1; i++)
        out.text[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    return out;
}

/* ---- What somebody says ---------------------------------------------------------------------- */

/* <<NAME>> and <</NAME>>, Llama 2's, beside the other tags. */
static size_t plain_tag_at(const char *at, size_t left) {
    size_t n = 2;
    if (left < 5 || memcmp(at, "<<", 2) != 0) return tag_at(at, left);
    n += at[n] == '/';
    while (n < left && is_one_of(at[n], 'A', 'Z'))
        n++;
    return n + 1 < left && n > 3 && at[n] == '>' && at[n + 1] == '>' ? n + 2 : 0;
}

#define TAG_MAX 64 /* bytes of a longer one are only words */

/* The tags of the file's template that are no tokens. They are few, and looked at before all tokens
 * are: somebody's words may be millions of tags. */
static tamis_status find_tags(const cli_chat *chat, const specials *s, specials *tags,
                              tamis_error *error) {
    const char *template = tamis_vocab_chat_template(chat->vocab);
    const size_t length = strlen(template);
    tamis_status status = TAMIS_OK;
    for (size_t at = 0; at < length && status == TAMIS_OK; at++) {
        const char *text = template + at;
        const size_t bytes = plain_tag_at(text, length - at);
        if (bytes > 0 && bytes < TAG_MAX && find_special(tags, text, bytes) == NULL &&
            find_special(s, text, bytes) == NULL)
            status = add_special(tags, (special){text, bytes, -1, false}, error);
    }
    return status;
}

/* In the template's own text a tag that was meant as a token is missing. In somebody's words one that
 * the template has, too, could not be told from the template's. */
static tamis_status check_tag(const specials *s, const specials *tags, const jinja_result *r,
                              size_t at, size_t bytes, tamis_error *error) {
    const char *text = r->text + at;
    const bool own = r->origins[at] == JINJA_TEMPLATE, marked = text[1] == '|';
    if (bytes >= TAG_MAX) return TAMIS_OK;
    if (own && marked && find_special(s, text, bytes) == NULL)
        return cli_error(
            error, TAMIS_E_UNSUPPORTED,
            "the file's chat template needs the token '%s', which the vocabulary lacks",
            show(text, bytes).text);
    if (own || find_special(tags, text, bytes) == NULL) return TAMIS_OK;
    return cli_error(error, TAMIS_E_ARGUMENT,
                     "the text holds '%s', a tag of the file's chat template",
                     show(text, bytes).text);
}

/* Marks the tokens that the template uses, and looks at all other tags. */
static tamis_status check_tags(const cli_chat *chat, const specials *s, const jinja_result *r,
                               tamis_error *error) {
    specials tags = {0};
    tamis_status status = find_tags(chat, s, &tags, error);
    for (size_t at = 0; at < r->bytes && status == TAMIS_OK;) {
        special *found = special_at(s, r, at);
        const size_t tag = found == NULL ? plain_tag_at(r->text + at, r->bytes - at) : 0;
        if (tag > 0) status = check_tag(s, &tags, r, at, tag, error);
        if (found != NULL) found->used = true;
        at += found != NULL ? found->bytes : 1;
    }
    free(tags.all);
    return status;
}

/* A user-defined token is found in any text, and a normal one may be what its text is cut into. */
static tamis_status check_words(const specials *s, const cli_tokens *tokens, tamis_error *error) {
    for (size_t i = 0; i < s->count; i++)
        for (size_t k = 0; k < tokens->count && s->all[i].used; k++)
            if (tokens->ids[k] == s->all[i].token)
                return cli_error(
                    error, TAMIS_E_ARGUMENT,
                    "the text holds '%s', which is a token of the file's chat template",
                    show(s->all[i].text, s->all[i].bytes).text);
    return TAMIS_OK;
}

/* ---- Tokens of a turn ------------------------------------------------------------------------ */

static tamis_status append(cli_tokens *to, const int32_t *ids, size_t count, tamis_error *error) {
    int32_t *larger = realloc(to->ids, (to->count + count + 1) * sizeof(*larger));
    if (larger == NULL) return cli_no_memory(error);
    to->ids = larger;
    if (count > 0) memcpy(larger + to->count, ids, count * sizeof(*ids));
    to->count += count;
    return TAMIS_OK;
}

/* What lies between two tokens of the template, its text and somebody's, is encoded as one. A space
 * that SentencePiece puts in front of it is the one that the template shows there. */
static tamis_status append_text(const cli_chat *chat, const specials *s, const jinja_result *r,
                                size_t from, size_t end, cli_tokens *out, tamis_error *error) {
    cli_tokens tokens = {0};
    const bool space = tamis_vocab_describe(chat->vocab)->add_space_prefix && from < end &&
                       r->text[from] == ' ' && r->origins[from] == JINJA_TEMPLATE;
    from += space;
    if (from >= end) return TAMIS_OK;
    tamis_status status = cli_tokenize(chat->vocab, r->text + from, end - from, 0, &tokens, error);
    if (status == TAMIS_OK) status = check_words(s, &tokens, error);
    if (status == TAMIS_OK) status = append(out, tokens.ids, tokens.count, error);
    free(tokens.ids);
    return status;
}

static tamis_status append_range(const cli_chat *chat, const specials *s, const jinja_result *r,
                                 size_t from, size_t end, cli_tokens *out, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    size_t text = from;
    for (size_t at = from; at < end && status == TAMIS_OK;) {
        const special *found = special_at(s, r, at);
        if (found == NULL) {
            at++;
            continue;
        }
        status = append_text(chat, s, r, text, at, out, error);
        if (status == TAMIS_OK) status = append(out, &found->token, 1, error);
        at += found->bytes;
        text = at;
    }
    if (status == TAMIS_OK) status = append_text(chat, s, r, text, end, out, error);
    return status;
}

/* bos, where the file wants it before every text and the template has not put it there. */
static tamis_status append_bos(const cli_chat *chat, const specials *s, const jinja_result *r,
                               cli_tokens *out, tamis_error *error) {
    const tamis_vocab_info *info = tamis_vocab_describe(chat->vocab);
    const special *first = r->bytes > 0 ? special_at(s, r, 0) : NULL;
    const bool there = first != NULL && first->token == info->bos;
    return info->add_bos && !there ? append(out, &info->bos, 1, error) : TAMIS_OK;
}

/* White space between an answer and the token that ends it is not what the model gave. */
static size_t skip_to_end(const specials *s, const jinja_result *r, size_t from) {
    size_t at = from;
    while (at < r->bytes && is_space(r->text[at]) && r->origins[at] == JINJA_TEMPLATE)
        at++;
    return at < r->bytes && special_at(s, r, at) != NULL ? at : from;
}

static tamis_status cut(const cli_chat *chat, const jinja_result *r, size_t from, cli_tokens *out,
                        tamis_error *error) {
    specials s = {0};
    tamis_status status = find_specials(chat->vocab, &s, error);
    if (status == TAMIS_OK) status = check_tags(chat, &s, r, error);
    if (status == TAMIS_OK && chat->turns == 0) status = append_bos(chat, &s, r, out, error);
    if (status == TAMIS_OK && chat->turns > 0) from = skip_to_end(&s, r, from);
    if (status == TAMIS_OK) status = append_range(chat, &s, r, from, r->bytes, out, error);
    free(s.all);
    return status;
}

tamis_status cli_template_turn(const cli_chat *chat, const char *text, size_t bytes,
                               cli_tokens *out, tamis_error *error) {
    jinja_result r;
    size_t from = 0;
    *out = (cli_tokens){0};
    tamis_status status = render(chat, chat->turns, "answer", text, bytes, &r, error);
    if (status == TAMIS_OK && chat->turns > 0) status = find_turn(chat, &r, &from, error);
    if (status == TAMIS_OK) status = cut(chat, &r, from, out, error);
    jinja_result_free(&r);
    if (status == TAMIS_OK) return TAMIS_OK;
    free(out->ids);
    *out = (cli_tokens){0};
    return status;
}

/* ---- Whole conversations --------------------------------------------------------------------- */

/* Messages are told apart by their numbers modulo this. */
#define OF_MESSAGE_MAX 100u
#define OF_DOCUMENT    101u /* or the number above */

static uint8_t message_origin(size_t message) {
    return (uint8_t)(1 + message % OF_MESSAGE_MAX);
}

static uint8_t document_at(const jinja_result *r, size_t at) {
    return r->origins[at] >= OF_DOCUMENT ? r->origins[at] : 0;
}

/* Neighbours have different numbers; those further apart may have one. */
static uint8_t *origins_of(const cli_message *message, size_t number) {
    uint8_t *origins = malloc(message->bytes + 1);
    if (origins == NULL) return NULL;
    memset(origins, message_origin(number), message->bytes);
    for (size_t i = 0; message->documents != NULL && i < message->bytes; i++)
        if (message->documents[i] != 0)
            origins[i] = (uint8_t)(OF_DOCUMENT + message->documents[i] % 2);
    return origins;
}

/* Whether a message says something beside its documents. */
static bool says(const cli_message *message) {
    for (size_t i = 0; i < message->bytes; i++)
        if (!is_space(message->text[i]) &&
            (message->documents == NULL || message->documents[i] == 0))
            return true;
    return false;
}

/* Documents that are not all white space: bytes of one have one number, which is `least` or above. */
static size_t count_documents(const char *text, const uint8_t *numbers, size_t bytes,
                              uint8_t least) {
    size_t count = 0;
    bool counted = false;
    for (size_t i = 0; numbers != NULL && i < bytes; i++) {
        if (i > 0 && numbers[i] != numbers[i - 1]) counted = false;
        if (counted || numbers[i] < least || is_space(text[i])) continue;
        counted = true;
        count++;
    }
    return count;
}

static tamis_status check_documents(const cli_message *messages, size_t count,
                                    const jinja_result *r, tamis_error *error) {
    const size_t said = count_documents(r->text, r->origins, r->bytes, OF_DOCUMENT);
    size_t given = 0;
    for (size_t i = 0; i < count; i++)
        given += count_documents(messages[i].text, messages[i].documents, messages[i].bytes, 1);
    if (said >= given) return TAMIS_OK;
    return cli_error(error, TAMIS_E_ARGUMENT,
                     "the file's chat template leaves out %zu of %zu documents", given - said,
                     given);
}

/* One that is left out is not missed where another one is said that has the same number, which is as
 * far away as OF_MESSAGE_MAX. Nor is a document where the template says another one twice. */
static tamis_status check_all_said(const cli_message *messages, size_t count, const jinja_result *r,
                                   tamis_error *error) {
    for (size_t i = 0; i < count; i++)
        if (says(&messages[i]) &&
            (r->bytes == 0 || memchr(r->origins, message_origin(i), r->bytes) == NULL))
            return cli_error(error, TAMIS_E_ARGUMENT,
                             "the file's chat template leaves out what message %zu says, of role "
                             "%s",
                             i, messages[i].role);
    return check_documents(messages, count, r, error);
}

static tamis_status render_messages(const cli_chat *chat, const cli_message *messages, size_t count,
                                    jinja_result *r, tamis_error *error) {
    jinja_message *all = calloc(count + 1, sizeof(*all));
    bool made = all != NULL;
    for (size_t i = 0; made && i < count; i++) {
        uint8_t *origins = origins_of(&messages[i], i);
        made = origins != NULL;
        all[i] = (jinja_message){.role = messages[i].role,
                                 .text = messages[i].text,
                                 .bytes = messages[i].bytes,
                                 .origins = origins};
    }
    tamis_status status =
        made ? run_template(chat, all, count, true, r, error) : cli_no_memory(error);
    for (size_t i = 0; all != NULL && i < count; i++)
        free((void *)all[i].origins);
    free(all);
    return status;
}

/* The tokens from `before` on are a part. */
static tamis_status end_part(cli_prompt *out, size_t before, bool document, tamis_error *error) {
    if (out->tokens.count == before) return TAMIS_OK;
    cli_part *parts = realloc(out->parts, (out->n_parts + 1) * sizeof(*parts));
    if (parts == NULL) return cli_no_memory(error);
    out->parts = parts;
    parts[out->n_parts++] = (cli_part){out->tokens.count - before, document};
    return TAMIS_OK;
}

/* Appends tokens from `at` up to where a document begins or ends; *end is there. */
static tamis_status append_part(const cli_chat *chat, const specials *s, const jinja_result *r,
                                size_t at, size_t *end, cli_prompt *out, tamis_error *error) {
    const size_t before = out->tokens.count;
    const uint8_t document = document_at(r, at);
    for (*end = at + 1; *end < r->bytes && document_at(r, *end) == document;)
        ++*end;
    const tamis_status status = append_range(chat, s, r, at, *end, &out->tokens, error);
    return status == TAMIS_OK ? end_part(out, before, document != 0, error) : status;
}

static tamis_status cut_messages(const cli_chat *chat, const jinja_result *r, cli_prompt *out,
                                 tamis_error *error) {
    specials s = {0};
    tamis_status status = find_specials(chat->vocab, &s, error);
    if (status == TAMIS_OK) status = check_tags(chat, &s, r, error);
    if (status == TAMIS_OK) status = append_bos(chat, &s, r, &out->tokens, error);
    if (status == TAMIS_OK) status = end_part(out, 0, false, error);
    for (size_t at = 0, end = 0; at < r->bytes && status == TAMIS_OK; at = end)
        status = append_part(chat, &s, r, at, &end, out, error);
    free(s.all);
    return status;
}

tamis_status cli_template_messages(const cli_chat *chat, const cli_message *messages, size_t count,
                                   cli_prompt *out, tamis_error *error) {
    jinja_result r = {0};
    *out = (cli_prompt){0};
    tamis_status status = render_messages(chat, messages, count, &r, error);
    if (status == TAMIS_OK) status = check_all_said(messages, count, &r, error);
    if (status == TAMIS_OK) status = cut_messages(chat, &r, out, error);
    jinja_result_free(&r);
    if (status == TAMIS_OK) return TAMIS_OK;
    free(out->tokens.ids);
    free(out->parts);
    *out = (cli_prompt){0};
    return status;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static bool has(const jinja_result *r, uint8_t origin) {
    return r->bytes > 0 && memchr(r->origins, origin, r->bytes) != NULL;
}

/* The template says what the user says, and the system text where there is one. */
static tamis_status check_said(const cli_chat *chat, tamis_error *error) {
    jinja_result r;
    const tamis_status status = render(chat, 0, "", "text", 4, &r, error);
    if (status != TAMIS_OK) return status;
    const bool user = has(&r, OF_USER);
    const bool system = chat->system == NULL ||
                        chat->system[strspn(chat->system, " \t\n\r")] == '\0' || has(&r, OF_SYSTEM);
    jinja_result_free(&r);
    if (user && system) return TAMIS_OK;
    return cli_error(error, TAMIS_E_UNSUPPORTED, "the file's chat template leaves the %s text out",
                     user ? "system" : "user's");
}

/* The token that the template puts behind an answer, -1 for none. One that cannot end with an
 * answer has none. */
static tamis_status find_ending(cli_chat *chat, tamis_error *error) {
    jinja_result r;
    size_t first, end;
    specials s = {0};
    chat->ending = -1;
    if (render(chat, 1, "answer", NULL, 0, &r, error) != TAMIS_OK) return TAMIS_OK;
    const bool found = find_answer(&r, &first, &end);
    const tamis_status status = found ? find_specials(chat->vocab, &s, error) : TAMIS_OK;
    if (status == TAMIS_OK && found) {
        end = skip_to_end(&s, &r, end);
        const special *ending = end < r.bytes ? special_at(&s, &r, end) : NULL;
        if (ending != NULL) chat->ending = ending->token;
    }
    free(s.all);
    jinja_result_free(&r);
    return status;
}

/* Whether a template takes an answer's thoughts out of it when another turn follows. */
static bool forgets_thoughts(const cli_chat *chat, const char *template) {
    static const char answer[] = "<think>\nthought\n</think>\n\nanswer";
    jinja_result r;
    tamis_error error;
    if (strstr(template, "</think>") == NULL) return false;
    if (render(chat, 1, answer, "text", 4, &r, &error) != TAMIS_OK) return false;
    const bool forgets = strstr(r.text, "thought") == NULL;
    jinja_result_free(&r);
    return forgets;
}

static void note_differences(cli_chat *chat) {
    const char *template = tamis_vocab_chat_template(chat->vocab);
    if (forgets_thoughts(chat, template))
        chat->notes[0] =
            "the file's chat template leaves the thoughts of earlier answers out; over "
            "one cache they stay";
    if (!chat->dated && strstr(template, "strftime_now") != NULL)
        chat->notes[1] =
            "the file's chat template asks for the date, which it is not told without --date, so "
            "that answers do not depend on the day";
}

tamis_status cli_template_open(cli_chat *chat, tamis_error *error) {
    cli_tokens tokens;
    tamis_status status = check_said(chat, error);
    if (status == TAMIS_OK) status = find_ending(chat, error);
    if (status != TAMIS_OK) return status;
    status = cli_template_turn(chat, "", 0, &tokens, error);
    free(tokens.ids);
    note_differences(chat);
    return status;
}
