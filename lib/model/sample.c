/* SPDX-License-Identifier: Apache-2.0 */
/* Draws tokens from logits. A heap gives the candidates in their order, as many as are needed: a
 * vocabulary of 150,000 tokens is not sorted for a top_k of 40. All arithmetic is IEEE double
 * without fused steps (see CMakeLists.txt), so that a seed gives the same tokens everywhere. */
#include "lib/model/sample.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
/* x87 */
#error "the sampler needs double to be computed as double: -msse2 -mfpmath=sse, or TAMIS_MODEL=OFF"
#endif

/* ---- Numbers --------------------------------------------------------------------------------- */

double tms_exp(double x) {
    static const double log2_e = 1.4426950408889634, ln2_high = 0.6931471803691238,
                        ln2_low = 1.9082149292705877e-10;
    if (x < -700) return 0;
    const int power = (int)(x * log2_e - 0.5);
    const double rest = (x - power * ln2_high) - power * ln2_low; /* |rest| <= ln2 / 2 */
    double sum = 1;
    for (int i = 14; i > 0; --i) /* Taylor's series from its end */
        sum = 1 + sum * rest / i;
    return ldexp(sum, power);
}

/* splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
static uint64_t random_next(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* ---- Candidates in their order --------------------------------------------------------------- */

static bool comes_before(tms_candidate a, tms_candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

static void sift_down(tms_candidate *heap, uint32_t count, uint32_t at) {
    const tms_candidate moved = heap[at];
    for (uint64_t child; (child = 2 * (uint64_t)at + 1) < count; at = (uint32_t)child) {
        if (child + 1 < count && comes_before(heap[child + 1], heap[child])) ++child;
        if (!comes_before(heap[child], moved)) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static tamis_status take_logits(tms_sampler *s, const float *logits, tamis_error *error) {
    s->n_all = 0;
    for (uint32_t i = 0; i < s->n_vocab; ++i) {
        TMS_REQUIRE(!isnan(logits[i]) && logits[i] != INFINITY, TAMIS_E_ARGUMENT,
                    "the logit of token %u is %f", i, (double)logits[i]);
        if (logits[i] == -INFINITY) continue;
        s->at[s->n_all++] = (tms_candidate){logits[i], (int32_t)i};
    }
    TMS_REQUIRE(s->n_all > 0, TAMIS_E_ARGUMENT, "the logits of all %u tokens are -inf", s->n_vocab);
    s->n_heap = s->n_all;
    for (uint32_t i = s->n_heap / 2; i-- > 0;)
        sift_down(s->at, s->n_heap, i);
    return TAMIS_OK;
}

tms_candidate tms_sampler_rank(tms_sampler *s, uint32_t rank) {
    while (s->n_all - s->n_heap <= rank) {
        const tms_candidate first = s->at[0];
        s->at[0] = s->at[--s->n_heap];
        s->at[s->n_heap] = first;
        if (s->n_heap > 0) sift_down(s->at, s->n_heap, 0);
    }
    return s->at[s->n_all - 1 - rank];
}

/* ---- Filters --------------------------------------------------------------------------------- */

/* e^((logit - the largest) / temperature): 1 for the first candidate. */
static double weight(tms_sampler *s, tms_candidate candidate, double temperature) {
    const double first = tms_sampler_rank(s, 0).logit;
    return tms_exp((candidate.logit - first) / temperature);
}

/* The sum over the first `kept` candidates. Where that is all of them, only the first need be in its
 * place, for its logit: where the others stand follows from the logits, too. */
static double sum_weights(tms_sampler *s, uint32_t kept, double temperature) {
    double sum = 0;
    (void)tms_sampler_rank(s, kept < s->n_all ? kept - 1 : 0);
    for (uint32_t i = 0; i < kept; ++i)
        sum += weight(s, s->at[s->n_all - 1 - i], temperature);
    return sum;
}

static uint32_t keep_top_p(tms_sampler *s, uint32_t kept) {
    const double wanted = s->params.top_p * sum_weights(s, kept, 1);
    double sum = 0;
    for (uint32_t i = 0; i < kept; ++i) {
        sum += weight(s, tms_sampler_rank(s, i), 1);
        if (sum >= wanted) return i + 1;
    }
    return kept;
}

static uint32_t keep_min_p(tms_sampler *s, uint32_t kept) {
    for (uint32_t i = 1; i < kept; ++i)
        if (weight(s, tms_sampler_rank(s, i), 1) < s->params.min_p) return i;
    return kept;
}

tamis_status tms_sampler_keep(tms_sampler *s, const float *logits, uint32_t *kept,
                              tamis_error *error) {
    TMS_TRY(take_logits(s, logits, error));
    const tamis_sampling *p = &s->params;
    *kept = p->top_k > 0 && p->top_k < s->n_all ? p->top_k : s->n_all;
    if (p->top_p > 0 && p->top_p < 1) *kept = keep_top_p(s, *kept);
    if (p->min_p > 0) *kept = keep_min_p(s, *kept);
    return TAMIS_OK;
}

int32_t tms_sampler_draw(tms_sampler *s, uint32_t kept, double at) {
    const double wanted = at * sum_weights(s, kept, s->params.temperature);
    double sum = 0;
    for (uint32_t i = 0; i + 1 < kept; ++i) {
        const tms_candidate candidate = tms_sampler_rank(s, i);
        sum += weight(s, candidate, s->params.temperature);
        if (sum > wanted) return candidate.token;
    }
    return tms_sampler_rank(s, kept - 1).token;
}

/* ---- The public calls ------------------------------------------------------------------------ */

static tamis_status check(const tamis_sampling *p, uint32_t n_vocab, tamis_error *error) {
    TMS_REQUIRE(p->temperature >= 0 && p->temperature < INFINITY, TAMIS_E_ARGUMENT,
                "temperature is %g; it must be finite and at least 0", (double)p->temperature);
    TMS_REQUIRE(p->top_p >= 0 && p->top_p <= 1, TAMIS_E_ARGUMENT,
                "top_p is %g; it must be from 0 to 1", (double)p->top_p);
    TMS_REQUIRE(p->min_p >= 0 && p->min_p <= 1, TAMIS_E_ARGUMENT,
                "min_p is %g; it must be from 0 to 1", (double)p->min_p);
    TMS_REQUIRE(n_vocab > 0 && n_vocab <= INT32_MAX, TAMIS_E_ARGUMENT,
                "n_vocab is %u; 1 to %d can be", n_vocab, INT32_MAX);
    for (size_t i = 0; i < sizeof p->reserved / sizeof p->reserved[0]; ++i)
        TMS_REQUIRE(p->reserved[i] == 0, TAMIS_E_ARGUMENT, "reserved[%zu] is %llu; it must be 0", i,
                    (unsigned long long)p->reserved[i]);
    return TAMIS_OK;
}

tamis_status tamis_sampler_create(const tamis_sampling *params, uint32_t n_vocab,
                                  tamis_sampler **out, tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    *out = NULL;
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params is NULL");
    TMS_TRY(check(params, n_vocab, error));
    tms_sampler *sampler = calloc(1, sizeof *sampler);
    tms_candidate *at = calloc(n_vocab, sizeof *at);
    if (!sampler || !at) {
        free(sampler);
        free(at);
        return tms_model_fail(error, TAMIS_E_NO_MEMORY, "no memory for %u candidates", n_vocab);
    }
    *sampler = (tms_sampler){.params = *params, .n_vocab = n_vocab, .at = at};
    sampler->state = params->seed;
    *out = sampler;
    return TAMIS_OK;
}

void tamis_sampler_destroy(tamis_sampler **sampler) {
    if (!sampler || !*sampler) return;
    free((*sampler)->at);
    free(*sampler);
    *sampler = NULL;
}

tamis_status tamis_sampler_next(tamis_sampler *sampler, const float *logits, int32_t *token,
                                tamis_error *error) {
    uint32_t kept;
    TMS_REQUIRE(sampler, TAMIS_E_ARGUMENT, "sampler is NULL");
    TMS_REQUIRE(logits, TAMIS_E_ARGUMENT, "logits is NULL");
    TMS_REQUIRE(token, TAMIS_E_ARGUMENT, "token is NULL");
    if (sampler->params.temperature == 0) {
        TMS_TRY(take_logits(sampler, logits, error));
        *token = tms_sampler_rank(sampler, 0).token;
        return TAMIS_OK;
    }
    TMS_TRY(tms_sampler_keep(sampler, logits, &kept, error));
    const double at = (double)(random_next(&sampler->state) >> 11) * 0x1p-53;
    *token = tms_sampler_draw(sampler, kept, at);
    return TAMIS_OK;
}
