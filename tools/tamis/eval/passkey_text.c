/* SPDX-License-Identifier: Apache-2.0 */
/* Natural text with named keys planted at depths that cover it evenly, and their questions. */
#include "eval/cut.h"
#include "eval/passkey.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[PASSKEY_KEYS_MAX] = {
    "red",   "blue",  "green", "gold",  "white", "black", "pink", "grey",
    "brown", "amber", "ivory", "coral", "olive", "lilac", "teal", "plum"};

/* The random choices of a text. */
typedef struct recipe {
    size_t offset; /* of the passage in the natural text */
    uint32_t n_keys;
    uint32_t name[PASSKEY_KEYS_MAX];
    uint32_t jitter[PASSKEY_KEYS_MAX]; /* place within the stratum, of 2^32 */
    char key[PASSKEY_KEYS_MAX][PASSKEY_DIGITS + 1];
} recipe;

static recipe draw_recipe(const passkey_source *source, uint32_t index) {
    cli_random random = cli_random_of(source->seed, index);
    recipe r = {.n_keys = source->n_keys};
    r.offset = (size_t)(cli_random_next(&random) % source->natural_bytes);
    for (uint32_t i = 0; i < PASSKEY_KEYS_MAX; i++)
        r.name[i] = i;
    for (uint32_t i = 0; i < r.n_keys; i++) {
        uint32_t other = i + cli_random_below(&random, PASSKEY_KEYS_MAX - i);
        uint32_t name = r.name[other];
        r.name[other] = r.name[i];
        r.name[i] = name;
        r.jitter[i] = (uint32_t)(cli_random_next(&random) >> 32);
        for (int d = 0; d < PASSKEY_DIGITS; d++)
            r.key[i][d] = (char)('0' + cli_random_below(&random, 10));
    }
    return r;
}

/* ---- Words ----------------------------------------------------------------------------------- */

/* Vocabularies of bytes get the words that the shipped model was trained on. In others the space
 * before the key belongs to the answer, for it may be a part of the key's first token. */
bool passkey_has_bytes(const tamis_vocab *vocab) {
    return tamis_vocab_describe(vocab)->kind == TAMIS_VOCAB_BYTES;
}

static bool has_bytes(const passkey_source *source) {
    return passkey_has_bytes(source->vocab);
}

/* A small chat model tells four "magic number of red" apart, where it mixes up "red magic number" and
 * its like. */
passkey_subject passkey_subject_of(const tamis_vocab *vocab, uint32_t name) {
    const char *format = passkey_has_bytes(vocab) ? "%s pass key" : "magic number of %s";
    passkey_subject out;
    snprintf(out.text, sizeof(out.text), format, names[name]);
    return out;
}

/* What key i is called. */
static passkey_subject subject_of(const passkey_source *source, const recipe *r, uint32_t i) {
    if (has_bytes(source) || r->n_keys > 1)
        return passkey_subject_of(source->vocab, r->name[i]);
    return (passkey_subject){"special magic number"};
}

#define PLANT_MOST (sizeof(" The magic number of white is . Remember it.") + PASSKEY_DIGITS)
_Static_assert(PLANT_MOST < PASSKEY_PLANT_ROOM, "room for either");
_Static_assert(PLANT_MOST >= PASSKEY_PLANT_BYTES, "room for either");

size_t passkey_write_plant(const tamis_vocab *vocab, passkey_subject subject, const char *key,
                           char *to) {
    return (size_t)snprintf(to, PLANT_MOST + 1, " The %s is %s. Remember it.%s", subject.text, key,
                            passkey_has_bytes(vocab) ? " " : "");
}

static size_t write_plant(const passkey_source *source, const recipe *r, uint32_t i, char *to) {
    return passkey_write_plant(source->vocab, subject_of(source, r, i), r->key[i], to);
}

/* ---- Natural text ---------------------------------------------------------------------------- */

static char natural_at(const passkey_source *source, size_t at) {
    return source->natural[at % source->natural_bytes];
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool is_inside_character(char c) {
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* How many bytes at most a place moves back to the end of a word. */
#define WORD_MOST 64

/* The bytes, at most `most`, by which a place in the natural text moves back to stand at the end of a
 * word, or where none is near, between two characters. */
static size_t back_to_word(const passkey_source *source, size_t at, size_t most) {
    const size_t reach = most < WORD_MOST ? most : WORD_MOST;
    size_t back = 0;
    for (; back < reach; back++)
        if (is_space(natural_at(source, at - back)) && !is_space(natural_at(source, at - back - 1)))
            return back;
    for (back = 0; back < most && is_inside_character(natural_at(source, at - back)); back++)
        continue;
    return back;
}

/* The byte at which the word around a place begins, or the character. */
static size_t word_start(const passkey_source *source, size_t place) {
    const size_t n = source->natural_bytes;
    size_t at = place + n;
    at -= back_to_word(source, at, WORD_MOST < n ? WORD_MOST : n);
    for (size_t i = 0; i < n && is_space(natural_at(source, at)); i++)
        at++;
    return at % n;
}

/* Byte of a body of `bytes` before which key i is planted: anywhere in stratum i of n_keys. */
static size_t plant_place(const recipe *r, uint32_t i, size_t bytes) {
    uint64_t place = ((uint64_t)i << 32) + r->jitter[i];
    return (size_t)((place >> 8) * bytes / ((uint64_t)r->n_keys << 24));
}

/* The same between words, but for vocabularies of bytes; not before `done`. */
static size_t place_between(const passkey_source *source, const recipe *r, size_t place,
                            size_t done) {
    if (has_bytes(source)) return place;
    /* Natural text repeats, so that one length of it more changes nothing but the sign. */
    size_t at = r->offset + source->natural_bytes + place;
    return place < done ? done : place - back_to_word(source, at, place - done);
}

static size_t copy_natural(const passkey_source *source, size_t from, size_t bytes, char *to) {
    for (size_t i = 0; i < bytes; i++)
        to[i] = natural_at(source, from + i);
    return bytes;
}

/* ---- The text -------------------------------------------------------------------------------- */

/* A text as it is fitted to its length. */
typedef struct draft {
    char *text;
    size_t bytes, tokens;
} draft;

/* The text with `body` bytes of natural text, into `to`. Returns its bytes. */
static size_t write_text(const passkey_source *source, const recipe *r, size_t body, char *to) {
    size_t used = 0, done = 0;
    for (uint32_t i = 0; i < r->n_keys; i++) {
        size_t place = place_between(source, r, plant_place(r, i, body), done);
        used += copy_natural(source, r->offset + done, place - done, to + used);
        done = place;
        used += write_plant(source, r, i, to + used);
    }
    size_t end = place_between(source, r, body, done);
    return used + copy_natural(source, r->offset + done, end - done, to + used);
}

/* One attempt: the text with `body` bytes of natural text, and the number of its tokens. */
static tamis_status attempt(const passkey_source *source, const recipe *r, size_t body, draft *out,
                            tamis_error *error) {
    cli_tokens tokens;
    free(out->text);
    out->text = malloc(body + r->n_keys * PLANT_MOST + 1);
    if (out->text == NULL) return cli_no_memory(error);
    out->bytes = write_text(source, r, body, out->text);
    tamis_status status = eval_encode(source->vocab, out->text, out->bytes, &tokens, error);
    out->tokens = tokens.count;
    free(tokens.ids);
    return status;
}

/* Bytes of so many tokens, as long as those of the draft on average. */
static size_t bytes_of(const draft *d, size_t tokens) {
    return (size_t)((double)tokens * (double)d->bytes / (double)d->tokens);
}

/* Grows the body until the text has its length; a vocabulary of bytes needs one correction. In
 * others a longer body may have fewer tokens, since it moves the keys: after half of the attempts
 * the body only shrinks, and the first text that is not too long is taken. */
static tamis_status fit(const passkey_source *source, const recipe *r, uint32_t length, draft *out,
                        tamis_error *error) {
    size_t body = length - passkey_least_length(r->n_keys) + r->n_keys;
    for (int i = 0; i < 64; i++) {
        tamis_status status = attempt(source, r, body, out, error);
        if (status != TAMIS_OK || out->tokens == length) return status;
        if (out->tokens < length && i >= 32) break;
        size_t change = out->tokens < length ? bytes_of(out, length - out->tokens)
                                             : bytes_of(out, out->tokens - length);
        if (out->tokens < length)
            body += change;
        else
            body -= change < body ? change : body;
    }
    if (out->tokens < length && length - out->tokens <= PASSKEY_PLANT_BYTES) return TAMIS_OK;
    return cli_error(error, TAMIS_E_ARGUMENT, "--length %u: a text came out with %zu tokens",
                     length, out->tokens);
}

/* ---- Questions ------------------------------------------------------------------------------- */

typedef struct asked {
    char question[PASSKEY_ANSWER_BYTES + 32], answer[PASSKEY_DIGITS + 2];
} asked;

static void write_question(const passkey_source *source, const recipe *r, uint32_t i, asked *out) {
    const char *space = " ", *none = "";
    bool bytes = has_bytes(source);
    snprintf(out->question, sizeof(out->question), "\nThe %s is%s", subject_of(source, r, i).text,
             bytes ? space : none);
    snprintf(out->answer, sizeof(out->answer), "%s%s", bytes ? none : space, r->key[i]);
}

/* A tail as a question: what its answer begins with may belong to the question's words. */
static tamis_status take_question(const eval_tail *tail, passkey_question *out,
                                  tamis_error *error) {
    uint32_t count = tail->n_question + tail->n_answer;
    if (count > PASSKEY_ASKED_TOKENS)
        return cli_error(error, TAMIS_E_UNSUPPORTED,
                         "'%s' and its answer take %u tokens; %d can be asked", tail->question + 1,
                         count, PASSKEY_ASKED_TOKENS);
    int bytes = snprintf(out->key, sizeof(out->key), "%s%s", tail->question + tail->answer_at,
                         tail->answer);
    if (bytes > PASSKEY_ANSWER_BYTES)
        return cli_error(error, TAMIS_E_UNSUPPORTED,
                         "the first token of the answer begins %d bytes before its end; %d can be "
                         "compared",
                         bytes, PASSKEY_ANSWER_BYTES);
    out->key_bytes = (uint32_t)bytes;
    out->count = tail->n_question;
    out->n_answer = tail->n_answer;
    memcpy(out->tokens, tail->tokens, count * sizeof(int32_t));
    return TAMIS_OK;
}

static tamis_status add_questions(const passkey_source *source, const recipe *r, const draft *d,
                                  passkey_text *out, tamis_error *error) {
    asked words[PASSKEY_KEYS_MAX];
    eval_tail tails[PASSKEY_KEYS_MAX] = {0};
    out->n_keys = r->n_keys;
    for (uint32_t i = 0; i < r->n_keys; i++) {
        write_question(source, r, i, &words[i]);
        tails[i] = (eval_tail){.question = words[i].question, .answer = words[i].answer};
    }
    tamis_status status =
        eval_cut(source->vocab, d->text, d->bytes, tails, r->n_keys, &out->tokens, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < r->n_keys; i++)
        status = take_question(&tails[i], &out->questions[i], error);
    eval_tails_free(tails, r->n_keys);
    return status;
}

uint32_t passkey_least_length(uint32_t n_keys) {
    return n_keys * (PASSKEY_PLANT_BYTES + 1);
}

tamis_status passkey_text_make(const passkey_source *source, uint32_t length, uint32_t index,
                               passkey_text *out, tamis_error *error) {
    recipe r = draw_recipe(source, index);
    draft d = {0};
    *out = (passkey_text){0};
    if (!has_bytes(source)) r.offset = word_start(source, r.offset);
    tamis_status status = fit(source, &r, length, &d, error);
    if (status == TAMIS_OK) status = add_questions(source, &r, &d, out, error);
    free(d.text);
    return status;
}

void passkey_text_free(passkey_text *text) {
    free(text->tokens.ids);
    *text = (passkey_text){0};
}
