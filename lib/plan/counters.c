/* SPDX-License-Identifier: Apache-2.0 */
/* What the steps did: counters, stage times, and the pages that the last attend read. */
#include "lib/plan/plan.h"

#include <inttypes.h>
#include <string.h>

void tms_plan_count(tamis_plan *plan, uint32_t layer, bool listed, bool fused) {
    const tamis_cache *cache = plan->cache;
    tamis_plan_counters *c = &plan->counters;
    uint64_t k = plan->reading.k, read = 0, full = 0, bounded = 0, massed = 0;
    if (fused) c->rows_fused += plan->step.n_rows;
    if (plan->step.exact) return;
    for (uint32_t row = 0; row < plan->step.n_rows; row++)
        for (uint32_t h = 0; h < cache->params.n_kv_heads; h++) {
            uint32_t visible = tms_step_visible(plan, layer, row, h);
            uint64_t n = tms_pages_of(cache, visible);
            full += n;
            read += listed && n > k ? k : n;
            if (listed && plan->reading.scored == TMS_SCORE_BOUNDS)
                bounded += visible / cache->params.page_size;
            if (listed && plan->reading.scored == TMS_SCORE_MASS) massed += n;
        }
    c->kv_bytes_read += read * cache->size.page_bytes;
    c->kv_bytes_full += full * cache->size.page_bytes;
    /* Half a page is keys. */
    c->bounds_bytes_read +=
        bounded * cache->size.bounds_bytes + massed * (cache->size.page_bytes / 2);
}

void tamis_plan_get_counters(const tamis_plan *plan, tamis_plan_counters *out) {
    if (plan && out) *out = plan->counters;
}

void tamis_plan_reset_counters(tamis_plan *plan) {
    if (!plan) return;
    memset(&plan->counters, 0, sizeof plan->counters);
    memset(&plan->times, 0, sizeof plan->times);
}

void tamis_plan_get_times(const tamis_plan *plan, tamis_plan_times *out) {
    if (plan && out) *out = plan->times;
}

static tamis_status read_list(const tamis_plan *plan, uint32_t row, uint32_t kv_head,
                              uint32_t *pages, uint32_t capacity, uint32_t *count,
                              tamis_error *error) {
    tms_device *dev = plan->dev;
    tms_lists lists = tms_plan_attend_listed(plan, plan->step.attended_layer).select.lists;
    uint64_t entry = (uint64_t)row * plan->cache->params.n_kv_heads + kv_head;
    uint32_t n = 0;
    tamis_status status = TAMIS_OK;
    lists.count.offset += entry * sizeof n;
    lists.pages.offset += entry * lists.capacity * sizeof *pages;
    TMS_TRY(dev, dev->backend->read(dev, lists.count, &n, sizeof n));
    uint32_t copied = n < capacity ? n : capacity;
    if (copied > 0)
        TMS_TRY(dev, dev->backend->read(dev, lists.pages, pages, copied * sizeof *pages));
    *count = n;
fail:
    return status;
}

tamis_status tamis_plan_read_selected(tamis_plan *plan, uint32_t row, uint32_t kv_head,
                                      uint32_t *pages, uint32_t capacity, uint32_t *count,
                                      tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(count, TAMIS_E_ARGUMENT, "count is NULL");
    TMS_REQUIRE(pages || capacity == 0, TAMIS_E_ARGUMENT, "pages is NULL but capacity is %" PRIu32,
                capacity);
    TMS_REQUIRE(plan->step.attended, TAMIS_E_STATE, "no layer has been attended in this step");
    TMS_REQUIRE(row < plan->step.n_rows, TAMIS_E_ARGUMENT,
                "row %" PRIu32 " is not below the step's %" PRIu32, row, plan->step.n_rows);
    TMS_REQUIRE(kv_head < plan->cache->params.n_kv_heads, TAMIS_E_ARGUMENT,
                "kv_head %" PRIu32 " is not below %" PRIu32, kv_head,
                plan->cache->params.n_kv_heads);
    if (plan->step.listed) return read_list(plan, row, kv_head, pages, capacity, count, error);
    *count =
        tms_pages_of(plan->cache, tms_step_visible(plan, plan->step.attended_layer, row, kv_head));
    for (uint32_t i = 0; i < *count && i < capacity; i++)
        pages[i] = i;
    return TAMIS_OK;
}

void tamis_plan_get_params(const tamis_plan *plan, tamis_plan_params *out) {
    if (plan && out) *out = plan->params;
}
