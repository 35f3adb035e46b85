/* SPDX-License-Identifier: Apache-2.0 */
/* How the tokens of an answer are drawn from logits, and what is told of them. */
#ifndef SERVE_DRAW_H
#define SERVE_DRAW_H

#include "serve/request.h"

typedef struct serve_likely {
    int32_t token;
    float logprob; /* natural logarithm of its probability */
} serve_likely;

typedef struct serve_draw {
    const serve_request *request;
    tamis_sampler *sampler;
    uint32_t n_vocab;
    float *logits;    /* [n_vocab] changed ones */
    uint32_t *counts; /* [n_vocab] of tokens that were drawn; NULL: no penalties */
    serve_likely drawn, top[SERVE_TOP_MAX]; /* of the last token, if logprobs are wanted */
    uint32_t n_top;
} serve_draw;

/* Whether tokens can be the device's, those with the largest logits. */
bool serve_draw_is_greedy(const serve_request *request);

/* `index`: of the answer among those of its request, which is added to the seed. */
tamis_status serve_draw_open(serve_draw *draw, const serve_request *request, uint32_t n_vocab,
                             uint32_t index, tamis_error *error);
void serve_draw_close(serve_draw *draw);

/* A tamis_request_choose; `user` is the serve_draw. Biases are added to logits, then penalties taken
 * off by the number c of times that a token was drawn: c * frequency + (c > 0) * presence (OpenAI,
 * API reference, "Advanced usage: parameter details"). Then tokens are drawn as tamis/sample.h says.
 * Probabilities that are told are those of the model: before all that. */
tamis_status serve_draw_next(void *user, const float *logits, uint32_t n_vocab, int32_t *token,
                             tamis_error *error);

#endif
