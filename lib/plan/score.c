/* SPDX-License-Identifier: Apache-2.0 */
/* Scores of the open step's rows that do not come from bounds. */
#include "lib/plan/plan.h"

tms_page_mass tms_plan_page_mass(const tamis_plan *plan, const tms_sparse_attend *p) {
    return (tms_page_mass){.kv = p->score.kv,
                           .batch = p->score.batch,
                           .q = p->score.q,
                           .group = p->score.group,
                           .scores = p->score.scores,
                           .stride = p->score.stride,
                           .scale = p->attend.scale,
                           .soft_cap = p->attend.soft_cap,
                           .scratch = {plan->scratch, 0}};
}

static void fill_random(const tamis_plan *plan, uint32_t layer, uint32_t stride) {
    const tms_step *step = &plan->step;
    const tamis_cache_params *cache = &plan->cache->params;
    float *scores = plan->score_host;
    for (uint32_t i = 0, row = 0; i < step->n_sequences; i++) {
        uint32_t rows = step->growth[i].rows, first = step->growth[i].sequence->length - rows;
        for (uint32_t j = 0; j < rows; j++, row++)
            for (uint32_t h = 0; h < cache->n_kv_heads; h++, scores += stride) {
                uint32_t n = tms_step_visible(plan, layer, row, h) / cache->page_size;
                for (uint32_t o = 0; o < n; o++)
                    scores[o] = tms_selection_random_score(plan->params.selection.seed, layer,
                                                           first + j, h, o);
            }
    }
}

tamis_status tms_plan_send_random(tamis_plan *plan, uint32_t layer, tms_sparse_attend *p) {
    uint64_t lanes = (uint64_t)p->select.batch.n_rows * p->select.batch.n_kv_heads;
    /* Packed to this step's longest lane, so that as few bytes as possible are sent. */
    p->select.stride = p->select.batch.max_visible / p->select.granularity;
    fill_random(plan, layer, p->select.stride);
    return tms_plan_send(plan, p->select.scores, plan->score_host,
                         lanes * p->select.stride * sizeof *plan->score_host);
}
