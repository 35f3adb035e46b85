/* SPDX-License-Identifier: Apache-2.0 */
/* True attention on the host, in double, and the share of it that falls on the arms' pages. */
#include "eval/recall.h"

#include <math.h>
#include <stdlib.h>

/* The share of the attention that sparsity asks for. */
#define MOST 0.9

/* One slot's share of a query head's attention. */
typedef struct weight {
    double share;
    uint32_t slot;
} weight;

/* Descending; of equal shares the newer slot first. */
static int compare(const void *a, const void *b) {
    const weight *x = a, *y = b;
    if (x->share != y->share) return x->share < y->share ? 1 : -1;
    return x->slot < y->slot ? 1 : -1;
}

/* softmax(scale q·k) over the visible slots, largest first. Returns false if it is not finite. */
static bool true_attention(const float *q, const float *keys, uint32_t head_dim, double scale,
                           uint32_t visible, weight *weights) {
    double largest = -INFINITY, sum = 0;
    for (uint32_t slot = 0; slot < visible; slot++) {
        const float *key = keys + (size_t)slot * head_dim;
        double logit = 0;
        for (uint32_t i = 0; i < head_dim; i++)
            logit += (double)q[i] * key[i];
        weights[slot] = (weight){logit * scale, slot};
        largest = fmax(largest, logit * scale);
    }
    for (uint32_t slot = 0; slot < visible; slot++)
        sum += weights[slot].share = exp(weights[slot].share - largest);
    if (!isfinite(sum)) return false;
    for (uint32_t slot = 0; slot < visible; slot++)
        weights[slot].share /= sum;
    qsort(weights, visible, sizeof(*weights), compare);
    return true;
}

/* The smallest share of the visible slots that holds MOST of the attention. */
static double sparsity(const weight *weights, uint32_t visible) {
    double held = 0;
    uint32_t count = 0;
    while (count < visible && held < MOST)
        held += weights[count++].share;
    return (double)count / visible;
}

/* Adds the share of the attention that falls on the pages read, and the share of its `top` largest
 * slots that lie in them. */
static void add_kept(const recall *r, const uint8_t *read, const weight *weights, uint32_t visible,
                     recall_sums *sums) {
    uint32_t top = r->top < visible ? r->top : visible, found = 0;
    double mass = 0;
    for (uint32_t i = 0; i < visible; i++) {
        uint32_t page = weights[i].slot / r->page_size;
        if ((read[page / 8] >> (page % 8) & 1) == 0) continue;
        mass += weights[i].share;
        found += i < top;
    }
    sums->recall += (double)found / top;
    sums->mass += mass;
}

/* The query heads of one KV head for every fed token. */
static tamis_status measure_heads(const recall *r, uint32_t layer, uint32_t kv_head,
                                  const float *keys, weight *weights, tamis_error *error) {
    const tamis_model_info *s = &r->shape;
    uint32_t group = s->n_heads / s->n_kv_heads;
    for (uint32_t t = 0; t < r->n_tokens; t++) {
        uint32_t visible = r->result->length + t + 1;
        for (uint32_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
            const float *q = recall_row(r, t, layer) + (size_t)h * s->head_dim;
            if (!true_attention(q, keys, s->head_dim, (double)r->scale, visible, weights))
                return cli_error(
                    error, TAMIS_E_DEVICE,
                    "length %u, text %u, layer %u, head %u: the attention is not finite",
                    r->result->length, r->text, layer, h);
            r->result->sparsity[(size_t)layer * s->n_heads + h] += sparsity(weights, visible);
            for (uint32_t a = 0; a < r->rig->arms->count; a++)
                add_kept(r, recall_read(r, a, t, layer, kv_head), weights, visible,
                         &recall_sums_of(r, a, layer)[h]);
        }
    }
    return TAMIS_OK;
}

tamis_status recall_measure(recall *r, uint32_t layer, tamis_error *error) {
    uint32_t slots = r->result->length + r->n_tokens;
    float *keys = malloc((size_t)slots * r->shape.head_dim * sizeof(*keys));
    weight *weights = malloc((size_t)slots * sizeof(*weights));
    tamis_status status = TAMIS_OK;
    if (keys == NULL || weights == NULL) status = cli_no_memory(error);
    for (uint32_t h = 0; status == TAMIS_OK && h < r->shape.n_kv_heads; h++) {
        status = tamis_cache_read(r->rig->cache, r->main, layer, h, 0, slots, keys, NULL, error);
        if (status == TAMIS_OK) status = measure_heads(r, layer, h, keys, weights, error);
    }
    free(keys);
    free(weights);
    return status;
}
