/* SPDX-License-Identifier: Apache-2.0 */
/* From logits to a token: temperature, top-k, top-p, min-p. Of libtamis_model; needs no device. */
#ifndef TAMIS_SAMPLE_H
#define TAMIS_SAMPLE_H

#include <stdint.h>
#include <tamis/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Tokens stand in the order of their logits, the largest first, of equal ones the lowest id first.
 * Each filter keeps the first of them, at least one, and takes what the one before it has left:
 *
 * 1. top_k: that many.
 * 2. top_p: the fewest that together have at least the share top_p of the probability that top_k
 *    left.
 * 3. min_p: those with at least min_p times the probability of the first.
 * 4. temperature: then logits are divided by it, and one of the tokens is drawn.
 *
 * So the filters see the probabilities at temperature 1. The order is that of llama.cpp's default
 * chain (common_params_sampling::samplers in common/common.h). */
typedef struct tamis_sampling {
    float temperature; /* 0: always the first token, whatever the filters say */
    uint32_t top_k;    /* 0: all */
    float top_p;       /* 0 to 1; 0 and 1: all */
    float min_p;       /* 0 to 1; 0: all */
    uint64_t seed;
    uint64_t reserved[4];
} tamis_sampling;

/* Thread-safety: one thread at a time; different samplers are independent. */
typedef struct tamis_sampler tamis_sampler;

/* Errors: E_ARGUMENT (temperature negative or not finite, top_p or min_p outside 0 to 1, n_vocab 0
 * or above INT32_MAX, a reserved field that is not 0) with the value; E_NO_MEMORY; *out is then
 * NULL. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_sampler_create(const tamis_sampling *params,
                                                             uint32_t n_vocab, tamis_sampler **out,
                                                             tamis_error *error);
TAMIS_API void tamis_sampler_destroy(tamis_sampler **sampler);

/* The next token for logits [n_vocab]. A token with -INFINITY is never drawn. Each call but those at
 * temperature 0 takes one random number: tokens follow from the seed and the logits alone, and are
 * the same on every machine. Errors: E_ARGUMENT (a logit that is NaN or +INFINITY, with its token;
 * all are -INFINITY); *token and the random numbers are then as they were. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_sampler_next(tamis_sampler *sampler,
                                                           const float *logits, int32_t *token,
                                                           tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
