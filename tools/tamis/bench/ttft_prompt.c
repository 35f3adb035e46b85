/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts of random tokens: a sink, chunks of a pool, a suffix. */
#include "bench/ttft.h"

#include <stdlib.h>
#include <string.h>

enum { STREAM_POOL = 1, STREAM_PROMPTS = 2 };

static void fill(cli_random *random, uint32_t n_vocab, int32_t *tokens, size_t count) {
    for (size_t i = 0; i < count; i++)
        tokens[i] = (int32_t)cli_random_below(random, n_vocab);
}

tamis_status ttft_texts_make(ttft_texts *t, const tamis_model *model, tamis_error *error) {
    cli_random random = cli_random_of(t->seed, STREAM_POOL);
    const size_t count = (size_t)t->n_pool * t->chunk_tokens;
    cli_tokens sink = {0};
    tamis_status status =
        cli_tokenize(tamis_model_vocab(model), "", 0, TAMIS_ENCODE_ADD_BOS, &sink, error);
    if (status != TAMIS_OK) return status;
    t->sink = sink.ids;
    t->n_sink = (uint32_t)sink.count;
    t->n_vocab = tamis_model_describe(model)->n_vocab;
    t->pool = malloc(count * sizeof(*t->pool));
    if (t->pool == NULL) return cli_no_memory(error);
    fill(&random, t->n_vocab, t->pool, count);
    return TAMIS_OK;
}

void ttft_texts_free(ttft_texts *t) {
    free(t->pool);
    free(t->sink);
}

uint32_t ttft_prompt_tokens(const ttft_texts *t, uint32_t n_chunks) {
    return t->n_sink + n_chunks * t->chunk_tokens + t->suffix_tokens;
}

/* Adds a part of what has been put behind the tokens so far. */
static void add_part(ttft_prompt *p, uint32_t n, bool stored, bool first) {
    tamis_blend_part part = {.tokens = p->tokens + p->n_tokens, .n_tokens = n, .stored = stored};
    p->parts[p->n_parts] = part;
    part.stored = stored && first;
    p->prefix[p->n_parts++] = part;
    p->n_tokens += n;
}

/* The first of `order` become different numbers below n_pool. */
static void draw(cli_random *random, uint32_t n_pool, uint32_t count, uint32_t *order) {
    for (uint32_t i = 0; i < n_pool; i++)
        order[i] = i;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t other = i + cli_random_below(random, n_pool - i), moved = order[i];
        order[i] = order[other];
        order[other] = moved;
    }
}

tamis_status ttft_prompt_make(const ttft_texts *t, uint32_t n_chunks, uint32_t number,
                              ttft_prompt *out, tamis_error *error) {
    cli_random random = cli_random_of(t->seed, STREAM_PROMPTS + number);
    uint32_t *order = malloc(t->n_pool * sizeof(*order));
    *out = (ttft_prompt){.tokens = malloc(ttft_prompt_tokens(t, n_chunks) * sizeof(*out->tokens)),
                         .parts = malloc((n_chunks + 2) * sizeof(*out->parts)),
                         .prefix = malloc((n_chunks + 2) * sizeof(*out->prefix))};
    if (order == NULL || out->tokens == NULL || out->parts == NULL || out->prefix == NULL) {
        free(order);
        ttft_prompt_free(out);
        return cli_no_memory(error);
    }
    draw(&random, t->n_pool, n_chunks, order);
    if (t->n_sink > 0) memcpy(out->tokens, t->sink, t->n_sink * sizeof(*out->tokens));
    add_part(out, t->n_sink, false, false);
    for (uint32_t i = 0; i < n_chunks; i++) {
        memcpy(out->tokens + out->n_tokens, t->pool + (size_t)order[i] * t->chunk_tokens,
               t->chunk_tokens * sizeof(*out->tokens));
        add_part(out, t->chunk_tokens, true, i == 0);
    }
    fill(&random, t->n_vocab, out->tokens + out->n_tokens, t->suffix_tokens);
    add_part(out, t->suffix_tokens, false, false);
    free(order);
    return TAMIS_OK;
}

void ttft_prompt_free(ttft_prompt *p) {
    free(p->tokens);
    free(p->parts);
    free(p->prefix);
    *p = (ttft_prompt){.n_tokens = 0};
}
