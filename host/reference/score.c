/* SPDX-License-Identifier: Apache-2.0 */
/* score_pages: an upper bound of every full page's logits, from its bounds:
 *   s_g(i) = Σ_d max(q_gd·lo_id, q_gd·hi_id);  score(i) = max, mean or sum of s_g over the group.
 * Contract: host/ops/, score_pages (Quest, section 3.4). Scores for ordinals from
 * first / page_size to below visible / page_size; the others are not written. A NaN among the products makes the score NaN,
 * under max too. */
#include "host/reference/convert.h"
#include "host/reference/reference.h"

#include <math.h>

/* Σ_d max(q·lo, q·hi) of one query head. */
static double page_score(const float *q, const float *lo, const float *hi, uint32_t head_dim) {
    double sum = 0;
    for (uint32_t d = 0; d < head_dim; d++) {
        const double a = (double)q[d] * lo[d], b = (double)q[d] * hi[d];
        sum += isnan(a) || a > b ? a : b; /* b if it is NaN: then a > b is false */
    }
    return sum;
}

/* The group's rule over its query heads, which lie head_dim apart. */
static float group_score(tamis_group_rule rule, uint32_t group, const float *q, const float *lo,
                         const float *hi, uint32_t head_dim) {
    double score = page_score(q, lo, hi, head_dim);
    for (uint32_t g = 1; g < group; g++) {
        const double s = page_score(q + g * head_dim, lo, hi, head_dim);
        if (rule != TAMIS_GROUP_MAX)
            score += s;
        else if (s > score || isnan(s))
            score = s;
    }
    return (float)(rule == TAMIS_GROUP_MEAN ? score / group : score);
}

tamis_status tms_reference_score_pages(tms_device *dev, const tms_score_pages *p) {
    const tms_kv *kv = &p->kv;
    const tms_batch *batch = &p->batch;
    const uint32_t n = batch->n_rows, heads = batch->n_kv_heads, dim = kv->head_dim;
    const uint32_t group = batch->n_heads / heads;
    tms_views views = tms_views_begin(dev);
    const float *q = tms_view_matrix(&views, "q", p->q, n, (uint64_t)batch->n_heads * dim);
    float *scores = tms_view(&views, "scores", p->scores, (uint64_t)n * heads * p->stride * 4);
    const int32_t *visible = tms_view_visible(&views, batch);
    const int32_t *first = tms_view_first(&views, batch);
    const int32_t *row_seq = tms_view(&views, "row_seq", batch->row_seq, (uint64_t)n * 4);
    const int32_t *table = n ? tms_view_rest(&views, "table", batch->table) : NULL;
    const void *bounds = n ? tms_view_rest(&views, "kv bounds", kv->bounds) : NULL;
    if (views.status != TAMIS_OK) return views.status;
    float rows[2 * TMS_MOST_HEAD_DIM]; /* lo, then hi */
    for (uint64_t r = 0; r < n; r++) {
        for (uint32_t h = 0; h < heads; h++) {
            const int32_t *lane =
                tms_lane(table, batch->seq_stride, batch->head_stride, row_seq[r], h);
            const float *query = q + r * p->q.stride + (uint64_t)h * group * dim;
            const uint32_t seen = (uint32_t)visible[r * heads + h], pages = seen / kv->page_size;
            const uint32_t hidden = tms_first_slot(first, r * heads + h, seen) / kv->page_size;
            for (uint32_t i = hidden; i < pages; i++) {
                /* 1. The page's bounds. */
                tms_load_bounds(kv, bounds, tms_bounds_at(kv, lane[i], h), rows);
                /* 2. Every query head's score, 3. joined by the group's rule. */
                scores[(r * heads + h) * p->stride + i] =
                    group_score(p->group, group, query, rows, rows + dim, dim);
            }
        }
    }
    return TAMIS_OK;
}
