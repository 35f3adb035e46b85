/* SPDX-License-Identifier: Apache-2.0 */
/* What rows have read: the lists of the layer that was attended last, and what of a caller's lists was
 * skipped. */
#include "lib/plan/plan.h"

#include <inttypes.h>

static tamis_status read_list(const tamis_plan *plan, uint32_t row, uint32_t kv_head,
                              uint32_t *pages, uint32_t capacity, uint32_t *count,
                              tamis_error *error) {
    tms_device *dev = plan->setup.dev;
    tms_lists lists = tms_template_lists(&plan->templates, plan->templates.attended_layer);
    uint64_t entry = (uint64_t)row * plan->setup.cache->params.n_kv_heads + kv_head;
    uint32_t n = 0;
    lists.count.offset += entry * sizeof n;
    lists.pages.offset += entry * lists.capacity * sizeof *pages;
    TMS_TRY(tms_device_read(dev, lists.count, &n, sizeof n, error));
    uint32_t copied = n < capacity ? n : capacity;
    if (copied > 0)
        TMS_TRY(tms_device_read(dev, lists.pages, pages, copied * sizeof *pages, error));
    *count = n;
    return TAMIS_OK;
}

tamis_status tamis_plan_read_selected(tamis_plan *plan, uint32_t row, uint32_t kv_head,
                                      uint32_t *pages, uint32_t capacity, uint32_t *count,
                                      tamis_error *error) {
    TMS_ENTER(plan);
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(count, TAMIS_E_ARGUMENT, "count is NULL");
    TMS_REQUIRE(pages || capacity == 0, TAMIS_E_ARGUMENT, "pages is NULL but capacity is %" PRIu32,
                capacity);
    TMS_REQUIRE(plan->templates.attended, TAMIS_E_STATE, "no layer has been attended in this step");
    TMS_REQUIRE(row < plan->step.n_rows, TAMIS_E_ARGUMENT,
                "row %" PRIu32 " is not below the step's %" PRIu32, row, plan->step.n_rows);
    TMS_REQUIRE(kv_head < plan->setup.cache->params.n_kv_heads, TAMIS_E_ARGUMENT,
                "kv_head %" PRIu32 " is not below %" PRIu32, kv_head,
                plan->setup.cache->params.n_kv_heads);
    if (tms_step_section_of(&plan->step, row)->listed)
        return read_list(plan, row, kv_head, pages, capacity, count, error);
    const uint32_t layer = plan->templates.attended_layer;
    uint32_t first;
    TMS_TRY(
        tms_sight_read_first_page(&plan->sight, &plan->step, layer, row, kv_head, &first, error));
    *count =
        tms_pages_of(plan->setup.cache, tms_step_visible(&plan->step, layer, row, kv_head)) - first;
    for (uint32_t i = 0; i < *count && i < capacity; i++)
        pages[i] = first + i;
    return TAMIS_OK;
}

tamis_status tamis_plan_read_skipped(tamis_plan *plan, uint64_t *count, tamis_error *error) {
    TMS_ENTER(plan);
    uint32_t skipped = 0;
    TMS_REQUIRE(plan && count, TAMIS_E_ARGUMENT, "%s is NULL", plan ? "count" : "plan");
    TMS_REQUIRE(plan->setup.reading.given, TAMIS_E_STATE,
                "selection %s makes its lists itself: none of the caller's are taken",
                tamis_selection_name(plan->setup.params.selection.kind));
    TMS_TRY(tms_device_read(plan->setup.dev, tms_caller_lists_skipped(&plan->lists), &skipped,
                            sizeof skipped, error));
    *count = skipped;
    return TAMIS_OK;
}
