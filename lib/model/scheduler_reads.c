/* SPDX-License-Identifier: Apache-2.0 */
/* Which pages decode rows read, told to their requests. */
#include "lib/model/scheduler.h"

/* Whether the request is told of the row that it takes next: of one that was run before it has been. */
static bool is_told(const tms_request *request) {
    return request->reads && request->n_done >= request->n_run;
}

static tamis_status tell_head(tamis_scheduler *scheduler, const tms_request *request,
                              uint32_t layer, uint32_t kv_head, uint32_t row, tamis_error *error) {
    tamis_runner *runner = scheduler->runner;
    const uint32_t page = scheduler->page_size, most = scheduler->most_pages;
    uint32_t length = 0, n = 0;
    TMS_TRY(tamis_cache_lane_length(runner->cache, request->sequence, layer, kv_head, &length,
                                    error)); /* the row among them */
    TMS_TRY(
        tamis_plan_read_selected(runner->plan, row, kv_head, scheduler->pages, most, &n, error));
    request->reads(request->user, layer, kv_head, scheduler->pages, n < most ? n : most,
                   (length + page - 1) / page);
    return TAMIS_OK;
}

/* Behind the attention of a layer. Decode rows are one each, and the first ones of a step. */
static tamis_status tell_layer(void *user, uint32_t layer, uint32_t n_rows, tamis_error *error) {
    tamis_scheduler *scheduler = user;
    const uint32_t n_heads = scheduler->runner->model->info.n_kv_heads;
    (void)n_rows;
    for (uint32_t i = scheduler->first_run; i < scheduler->n_decoding; i++) {
        const tms_request *request = scheduler->of[i];
        for (uint32_t h = 0; h < n_heads && is_told(request); h++)
            TMS_TRY(tell_head(scheduler, request, layer, h, i - scheduler->first_run, error));
    }
    return TAMIS_OK;
}

tamis_status tms_reads_step(tamis_scheduler *scheduler, uint32_t n, tamis_error *error) {
    tamis_runner *runner = scheduler->runner;
    bool any = false;
    for (uint32_t i = scheduler->first_run; i < scheduler->n_decoding; i++)
        any |= is_told(scheduler->of[i]);
    runner->attended_tap = any ? tell_layer : NULL;
    runner->attended_user = scheduler;
    const tamis_status status = tms_put_step(scheduler, n, error);
    runner->attended_tap = NULL;
    runner->attended_user = NULL;
    return status;
}
