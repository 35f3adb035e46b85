/* SPDX-License-Identifier: Apache-2.0 */
/* Attending under streaming with positions in the cache: the sinks by a query turned back by the
 * gap between them and the rest, the rest by the query as it is, and the two states merged. So a
 * sink is as far from the query as its slot is (StreamingLLM, section 3.2), and no key is
 * rewritten. */
#include "lib/plan/plan.h"

/* Where the parts lie in eviction.reindex: turned queries, two outs, the merged out, two lse. */
typedef struct reindex_parts {
    tms_matrix turned, outs[2], merged;
    tms_ref lses[2];
} reindex_parts;

static reindex_parts lay_out(const tamis_plan *plan, const tms_attend *attend) {
    uint64_t width = (uint64_t)attend->batch.n_heads * attend->kv.head_dim;
    uint64_t block = attend->batch.n_rows * width * sizeof(float);
    uint64_t lse = (uint64_t)attend->batch.n_rows * attend->batch.n_heads * sizeof(float);
    tms_mem *mem = plan->eviction.reindex;
    return (reindex_parts){.turned = {{mem, 0}, width},
                           .outs = {{{mem, block}, width}, {{mem, 2 * block}, width}},
                           .merged = {{mem, 3 * block}, width},
                           .lses = {{mem, 4 * block}, {mem, 4 * block + lse}}};
}

static tamis_status turn(tamis_plan *plan, const tms_attend *attend, const reindex_parts *parts,
                         tms_ref index, tms_ref delta) {
    const tms_plan_eviction *e = &plan->eviction;
    const tms_scatter_rows copy = {.x = attend->q,
                                   .y = parts->turned,
                                   .n_rows = attend->batch.n_rows,
                                   .width = (uint32_t)parts->turned.stride,
                                   .index = index};
    const tms_rotate rotate = {.x = parts->turned,
                               .n_rows = attend->batch.n_rows,
                               .n_heads = attend->batch.n_heads,
                               .head_dim = attend->kv.head_dim,
                               .n_rot = e->n_rot ? e->n_rot : attend->kv.head_dim,
                               .pairing = e->pairing,
                               .positions = delta,
                               .table = {e->rotation, 0}};
    tamis_status status = tms_run_scatter_rows(plan->dev, &copy);
    return status == TAMIS_OK ? tms_run_rotate(plan->dev, &rotate) : status;
}

/* One of the two attends: what lies in its rows' intervals. */
static tamis_status attend_part(tamis_plan *plan, uint32_t layer, const tms_attend *attend,
                                const reindex_parts *parts, int part, tms_ref intervals) {
    tms_attend p = *attend;
    if (part == 0) p.q = parts->turned;
    p.out = parts->outs[part];
    p.lse = parts->lses[part];
    p.intervals = intervals;
    p.positions = tms_cache_planes(plan->cache, layer).positions;
    return tms_run_attend(plan->dev, &p);
}

tamis_status tms_plan_attend_reindexed(tamis_plan *plan, uint32_t layer, const tms_attend *attend) {
    const reindex_parts parts = lay_out(plan, attend);
    const uint64_t n = attend->batch.n_rows, at = plan->step.at.reindex;
    const tms_ref index = tms_step_table(plan, at), delta = tms_step_table(plan, at + n);
    const tms_ref near = tms_step_table(plan, at + 2 * n), far = tms_step_table(plan, at + 4 * n);
    const tms_merge merge = {.n_parts = 2,
                             .n = (uint32_t)n * attend->batch.n_heads,
                             .dim = attend->kv.head_dim,
                             .outs = parts.outs[0].ref,
                             .lses = parts.lses[0],
                             .out = parts.merged.ref};
    const tms_scatter_rows copy = {.x = parts.merged,
                                   .y = attend->out,
                                   .n_rows = attend->batch.n_rows,
                                   .width = (uint32_t)parts.merged.stride,
                                   .index = index};
    tamis_status status = turn(plan, attend, &parts, index, delta);
    if (status == TAMIS_OK) status = attend_part(plan, layer, attend, &parts, 0, near);
    if (status == TAMIS_OK) status = attend_part(plan, layer, attend, &parts, 1, far);
    if (status == TAMIS_OK) status = tms_run_merge(plan->dev, &merge);
    return status == TAMIS_OK ? tms_run_scatter_rows(plan->dev, &copy) : status;
}
