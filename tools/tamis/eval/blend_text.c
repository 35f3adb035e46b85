/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of natural text, some with a key of its own name, and questions about one chunk or two. A
 * chunk is cut into tokens alone, as it is stored. */
#include "eval/blend.h"
#include "eval/cut.h"
#include "eval/ruler.h"

#include <stdlib.h>
#include <string.h>

const char *const blend_ask_names[BLEND_ASKS + 1] = {"one", "two", "chain", NULL};

/* ---- What is drawn --------------------------------------------------------------------------- */

/* The random choices of a text. */
typedef struct recipe {
    uint32_t n_keys;
    uint32_t chunk[BLEND_CHUNKS_MAX]; /* of key k: a shuffle of all chunks */
    uint32_t name[PASSKEY_KEYS_MAX];
    char key[BLEND_CHUNKS_MAX][PASSKEY_DIGITS + 1];
    uint32_t other[BLEND_CHUNKS_MAX];    /* another key */
    uint32_t noun[BLEND_CHUNKS_MAX];     /* by which the chunk of key k calls the other key */
    uint64_t offset[BLEND_CHUNKS_MAX];   /* of chunks */
    uint32_t place[BLEND_CHUNKS_MAX][2]; /* of the plants in the filling, of 2^32, ascending */
} recipe;

_Static_assert(BLEND_CHUNKS_MAX <= PASSKEY_KEYS_MAX, "a name for the key of each chunk");

static void swap(uint32_t *x, uint32_t *y) {
    const uint32_t kept = *x;
    *x = *y;
    *y = kept;
}

static void draw_key(uint32_t k, cli_random *random, recipe *r) {
    for (int d = 0; d < PASSKEY_DIGITS; d++)
        r->key[k][d] = (char)('0' + cli_random_below(random, 10));
    r->other[k] = r->n_keys > 1 ? (k + 1 + cli_random_below(random, r->n_keys - 1)) % r->n_keys : k;
}

static void draw_chunk(const blend_source *source, uint32_t c, cli_random *random, recipe *r) {
    r->offset[c] = cli_random_next(random) % source->natural->count;
    for (int i = 0; i < 2; i++)
        r->place[c][i] = (uint32_t)(cli_random_next(random) >> 32);
    if (r->place[c][0] > r->place[c][1]) swap(&r->place[c][0], &r->place[c][1]);
}

uint32_t blend_text_keys(const blend_source *source, uint32_t n_chunks) {
    return source->n_keys > 0 && source->n_keys < n_chunks ? source->n_keys : n_chunks;
}

static recipe draw_recipe(const blend_source *source, uint32_t n_chunks, uint32_t index) {
    cli_random random = cli_random_of(source->seed, (uint64_t)n_chunks << 32 | index);
    uint32_t nouns[RULER_NOUNS];
    recipe r = {.n_keys = blend_text_keys(source, n_chunks)};
    for (uint32_t i = 0; i < PASSKEY_KEYS_MAX; i++)
        r.name[i] = i;
    for (uint32_t i = 0; i < RULER_NOUNS; i++)
        nouns[i] = i;
    for (uint32_t i = 0; i < n_chunks; i++)
        r.chunk[i] = i;
    for (uint32_t i = 0; i < n_chunks; i++) {
        swap(&r.name[i], &r.name[i + cli_random_below(&random, PASSKEY_KEYS_MAX - i)]);
        swap(&nouns[i], &nouns[i + cli_random_below(&random, RULER_NOUNS - i)]);
        swap(&r.chunk[i], &r.chunk[i + cli_random_below(&random, n_chunks - i)]);
        r.noun[i] = nouns[i];
        draw_chunk(source, i, &random, &r);
    }
    for (uint32_t k = 0; k < r.n_keys; k++)
        draw_key(k, &random, &r);
    return r;
}

/* ---- Words ----------------------------------------------------------------------------------- */

/* What the other key is called in the chunk of key k. */
static passkey_subject alias_of(const blend_source *source, const recipe *r, uint32_t k) {
    const char *format = passkey_has_bytes(source->vocab) ? "%s pass key" : "magic number of %s";
    passkey_subject out;
    snprintf(out.text, sizeof(out.text), format, ruler_nouns[r->noun[k]]);
    return out;
}

/* Tokens of words behind other text: where a vocabulary puts a space before every text, that is the
 * space with which they begin. */
static tamis_status cut_plant(const blend_source *source, const char *text, cli_tokens *out,
                              tamis_error *error) {
    text += tamis_vocab_describe(source->vocab)->add_space_prefix;
    return cli_tokenize(source->vocab, text, strlen(text), 0, out, error);
}

/* The plants of the chunk of key k in their order; returns how many, 0 after an error. */
static uint32_t make_plants(const blend_source *source, const recipe *r, uint32_t k,
                            cli_tokens plants[2], tamis_status *status, tamis_error *error) {
    char text[2 * PASSKEY_PLANT_ROOM];
    const passkey_subject own = passkey_subject_of(source->vocab, r->name[k]);
    passkey_write_plant(source->vocab, own, r->key[k], text);
    *status = cut_plant(source, text, &plants[0], error);
    if (*status != TAMIS_OK || !source->chain) return *status == TAMIS_OK;
    snprintf(text, sizeof(text), " The %s is the %s. Remember it.%s", alias_of(source, r, k).text,
             passkey_subject_of(source->vocab, r->name[r->other[k]]).text,
             passkey_has_bytes(source->vocab) ? " " : "");
    *status = cut_plant(source, text, &plants[1], error);
    return *status == TAMIS_OK ? 2 : 0;
}

/* ---- Chunks ---------------------------------------------------------------------------------- */

static void fill_chunk(const blend_source *source, const recipe *r, uint32_t c,
                       const cli_tokens *plants, uint32_t n_plants, int32_t *to) {
    uint32_t filling = source->chunk_tokens, used = 0, done = 0;
    for (uint32_t i = 0; i < n_plants; i++)
        filling -= (uint32_t)plants[i].count;
    for (uint32_t i = 0; i <= n_plants; i++) {
        const uint32_t end =
            i < n_plants ? (uint32_t)(((uint64_t)r->place[c][i] * (filling + 1)) >> 32) : filling;
        for (; done < end; done++)
            to[used++] = source->natural->ids[(r->offset[c] + done) % source->natural->count];
        if (i == n_plants) break;
        memcpy(to + used, plants[i].ids, plants[i].count * sizeof(*to));
        used += (uint32_t)plants[i].count;
    }
}

static tamis_status make_chunk(const blend_source *source, const recipe *r, uint32_t c, int32_t *to,
                               tamis_error *error) {
    cli_tokens plants[2] = {{0}};
    tamis_status status = TAMIS_OK;
    uint32_t n = 0, k = 0;
    while (k < r->n_keys && r->chunk[k] != c)
        k++;
    if (k < r->n_keys) n = make_plants(source, r, k, plants, &status, error);
    const size_t taken = plants[0].count + plants[1].count;
    if (status == TAMIS_OK && taken > source->chunk_tokens)
        status =
            cli_error(error, TAMIS_E_ARGUMENT, "--chunk-tokens %u: the keys of a chunk take %zu",
                      source->chunk_tokens, taken);
    if (status == TAMIS_OK) fill_chunk(source, r, c, plants, n, to);
    free(plants[0].ids);
    free(plants[1].ids);
    return status;
}

/* ---- Questions ------------------------------------------------------------------------------- */

static tamis_status make_step(const blend_source *source, passkey_subject subject, const char *key,
                              blend_step *out, tamis_error *error) {
    const bool bytes = passkey_has_bytes(source->vocab);
    char question[64], answer[PASSKEY_DIGITS + 2];
    eval_tail tail = {.question = question, .answer = answer};
    cli_tokens before = {0};
    snprintf(question, sizeof(question), "\nThe %s is%s", subject.text, bytes ? " " : "");
    snprintf(answer, sizeof(answer), "%s%s", bytes ? "" : " ", key);
    tamis_status status = eval_cut(source->vocab, "", 0, &tail, 1, &before, error);
    if (status == TAMIS_OK && tail.n_question + tail.n_answer > BLEND_ASKED_TOKENS)
        status = cli_error(error, TAMIS_E_UNSUPPORTED,
                           "'%s' and its answer take %u tokens; %d can be asked", question + 1,
                           tail.n_question + tail.n_answer, BLEND_ASKED_TOKENS);
    if (status == TAMIS_OK) {
        out->n_question = tail.n_question;
        out->n_answer = tail.n_answer;
        memcpy(out->tokens, tail.tokens, tail.n_question * sizeof(*out->tokens));
        memcpy(out->key, key, PASSKEY_DIGITS + 1);
    }
    eval_tails_free(&tail, 1);
    free(before.ids);
    return status;
}

static tamis_status make_questions(const blend_source *source, const recipe *r, uint32_t k,
                                   blend_text *out, tamis_error *error) {
    const uint32_t other = r->other[k];
    blend_question *one = &out->questions[BLEND_ASK_ONE][k],
                   *two = &out->questions[BLEND_ASK_TWO][k],
                   *chain = &out->questions[BLEND_ASK_CHAIN][k];
    one->n_steps = chain->n_steps = 1;
    two->n_steps = 2;
    tamis_status status = make_step(source, passkey_subject_of(source->vocab, r->name[k]),
                                    r->key[k], &one->steps[0], error);
    two->steps[0] = one->steps[0];
    if (status == TAMIS_OK)
        status = make_step(source, passkey_subject_of(source->vocab, r->name[other]), r->key[other],
                           &two->steps[1], error);
    if (status == TAMIS_OK)
        status = make_step(source, alias_of(source, r, k), r->key[other], &chain->steps[0], error);
    return status;
}

tamis_status blend_text_make(const blend_source *source, uint32_t n_chunks, uint32_t index,
                             blend_text *out, tamis_error *error) {
    const recipe r = draw_recipe(source, n_chunks, index);
    *out = (blend_text){.n_chunks = n_chunks};
    out->chunks = malloc((size_t)n_chunks * source->chunk_tokens * sizeof(*out->chunks));
    tamis_status status = out->chunks == NULL ? cli_no_memory(error) : TAMIS_OK;
    for (uint32_t c = 0; status == TAMIS_OK && c < n_chunks; c++)
        status = make_chunk(source, &r, c, out->chunks + (size_t)c * source->chunk_tokens, error);
    for (uint32_t k = 0; status == TAMIS_OK && k < r.n_keys; k++)
        status = make_questions(source, &r, k, out, error);
    return status;
}

void blend_text_free(blend_text *text) {
    free(text->chunks);
    *text = (blend_text){0};
}
