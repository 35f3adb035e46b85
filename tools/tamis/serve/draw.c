/* SPDX-License-Identifier: Apache-2.0 */
/* Biases, penalties, sampling, probabilities. */
#include "serve/draw.h"

#include "cli/cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool penalises(const serve_request *request) {
    return request->presence != 0 || request->frequency != 0;
}

bool serve_draw_is_greedy(const serve_request *request) {
    return request->sampling.temperature == 0 && request->n_biases == 0 && !penalises(request) &&
           !request->logprobs;
}

tamis_status serve_draw_open(serve_draw *draw, const serve_request *request, uint32_t n_vocab,
                             uint32_t index, tamis_error *error) {
    tamis_sampling sampling = request->sampling;
    *draw = (serve_draw){.request = request, .n_vocab = n_vocab};
    if (serve_draw_is_greedy(request)) return TAMIS_OK;
    sampling.seed += index;
    draw->logits = malloc(n_vocab * sizeof *draw->logits);
    if (penalises(request)) draw->counts = calloc(n_vocab, sizeof *draw->counts);
    if (draw->logits == NULL || (penalises(request) && draw->counts == NULL))
        return cli_no_memory(error);
    return tamis_sampler_create(&sampling, n_vocab, &draw->sampler, error);
}

void serve_draw_close(serve_draw *draw) {
    tamis_sampler_destroy(&draw->sampler);
    free(draw->logits);
    free(draw->counts);
    draw->logits = NULL;
    draw->counts = NULL;
}

/* ---- Probabilities --------------------------------------------------------------------------- */

/* The logarithm of the sum of all exponentials. */
static double log_sum(const float *logits, uint32_t n) {
    float most = -INFINITY;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - most);
    return most + log(sum);
}

/* The likeliest tokens, of equal ones the lowest first. */
static void find_top(serve_draw *draw, const float *logits, double all) {
    const uint32_t most = draw->request->top;
    draw->n_top = 0;
    for (uint32_t i = 0; most > 0 && i < draw->n_vocab; i++) {
        const float logprob = (float)(logits[i] - all);
        if (draw->n_top == most && !(logprob > draw->top[most - 1].logprob)) continue;
        uint32_t at = draw->n_top < most ? draw->n_top++ : most - 1;
        for (; at > 0 && logprob > draw->top[at - 1].logprob; at--)
            draw->top[at] = draw->top[at - 1];
        draw->top[at] = (serve_likely){(int32_t)i, logprob};
    }
}

/* ---- Drawing --------------------------------------------------------------------------------- */

static void change(serve_draw *draw) {
    const serve_request *request = draw->request;
    for (uint32_t i = 0; i < request->n_biases; i++)
        draw->logits[request->biases[i].token] += request->biases[i].add;
    for (uint32_t i = 0; draw->counts != NULL && i < draw->n_vocab; i++)
        if (draw->counts[i] > 0)
            draw->logits[i] -= (float)draw->counts[i] * request->frequency + request->presence;
}

tamis_status serve_draw_next(void *user, const float *logits, uint32_t n_vocab, int32_t *token,
                             tamis_error *error) {
    serve_draw *draw = user;
    memcpy(draw->logits, logits, n_vocab * sizeof *logits);
    change(draw);
    const tamis_status status = tamis_sampler_next(draw->sampler, draw->logits, token, error);
    if (status != TAMIS_OK) return status;
    if (draw->counts != NULL) draw->counts[*token]++;
    if (draw->request->logprobs) {
        const double all = log_sum(logits, n_vocab);
        draw->drawn = (serve_likely){*token, (float)(logits[*token] - all)};
        find_top(draw, logits, all);
    }
    return TAMIS_OK;
}
