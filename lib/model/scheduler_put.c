/* SPDX-License-Identifier: Apache-2.0 */
/* Beginnings of prompts into a store: their K and V as the steps that read them make them. */
#include "lib/model/recording.h"
#include "lib/model/scheduler.h"

#include <stdlib.h>

/* Tokens of the prompt that are in pages to be put. */
static uint32_t end_of(const tamis_scheduler *scheduler, const tms_request *request) {
    return request->n_stored - request->n_stored % scheduler->params.store_tokens;
}

static void close_recording(tms_request *request) {
    if (!request->recording) return;
    tms_recording_close(request->recording);
    free(request->recording);
    request->recording = NULL;
}

void tms_put_release(tms_request *request) {
    close_recording(request);
    request->puts = false;
}

/* The prompt is not put, which is no error of the step. */
static void give_up(tamis_scheduler *scheduler, tms_request *request) {
    tms_put_release(request);
    scheduler->stats.store_failed++;
}

tamis_status tms_put_find(tamis_scheduler *scheduler, tms_request *request, tamis_error *error) {
    const uint32_t end = request->n_stored ? end_of(scheduler, request) : 0;
    tms_put_release(request);
    if (end == 0) return TAMIS_OK;
    TMS_TRY(tms_stored_find(scheduler, request, error));
    request->puts = request->stored.n < end / scheduler->params.store_tokens;
    return TAMIS_OK;
}

/* ---- The step ---------------------------------------------------------------------------------- */

/* Planes for the pages from the next row on. */
static tamis_status open_recording(const tamis_scheduler *scheduler, tms_request *request,
                                   tamis_error *error) {
    const tms_config *config = &scheduler->runner->model->config;
    tms_recording *r = request->recording = calloc(1, sizeof *r);
    TMS_REQUIRE(r, TAMIS_E_NO_MEMORY, "no memory for a recording");
    r->runner = scheduler->runner;
    r->width = config->n_kv_heads * config->head_dim;
    r->first_page = request->n_done / scheduler->params.store_tokens;
    TMS_TRY(tms_stored_id(scheduler, request, 0, &r->id, error));
    r->id.n_tokens = end_of(scheduler, request);
    r->n_rows = r->id.n_tokens - request->n_done;
    return tms_recording_open(r, error);
}

/* Whether the recording goes on with the request's next row. It does not where that was loaded. */
static bool goes_on(const tamis_scheduler *scheduler, const tms_request *request) {
    const tms_recording *r = request->recording;
    return r && r->first_page * scheduler->params.store_tokens + r->done == request->n_done;
}

/* Begins to record the request's next rows, or goes on; whether they are recorded. They are not behind
 * rows of the same page that were loaded, where the page's end was found damaged. */
static bool records(tamis_scheduler *scheduler, tms_request *request) {
    if (!request->puts || request->n_done >= end_of(scheduler, request)) return false;
    if (goes_on(scheduler, request)) return true;
    close_recording(request);
    const bool whole = request->n_done % scheduler->params.store_tokens == 0;
    if (!whole || open_recording(scheduler, request, NULL) != TAMIS_OK) give_up(scheduler, request);
    return request->puts;
}

/* How many of a run's rows the recording takes. */
static uint32_t rows_of(const tms_request *request, const tamis_run *run) {
    const tms_recording *r = request->recording;
    const uint32_t left = r ? r->n_rows - r->done : 0;
    return run->n_tokens < left ? run->n_tokens : left;
}

/* Takes the rows of the runs of a step. */
static tamis_status take(void *user, uint32_t layer, uint32_t n_rows, tamis_error *error) {
    tamis_scheduler *scheduler = user;
    uint32_t row = 0;
    for (uint32_t i = scheduler->first_run; row < n_rows; row += scheduler->runs[i++].n_tokens) {
        tms_request *request = scheduler->of[i];
        const uint32_t n = rows_of(request, &scheduler->runs[i]);
        if (n == 0) continue;
        const tamis_status status = tms_recording_take(request->recording, layer, row, n, error);
        if (status == TAMIS_E_UNSUPPORTED) /* a value that store_dtype does not hold */
            give_up(scheduler, request);
        else
            TMS_TRY(status);
    }
    return TAMIS_OK;
}

/* The rows of a run are recorded; behind the last one the pages are put. */
static void advance(tamis_scheduler *scheduler, tms_request *request, const tamis_run *run) {
    tms_recording *r = request->recording;
    const uint32_t n = rows_of(request, run), page = scheduler->params.store_tokens;
    uint32_t n_put = 0;
    if (n == 0) return;
    r->done += n;
    if (r->done < r->n_rows) return;
    const tamis_status status = tms_recording_put_pages(
        r, scheduler->params.store, 0, r->first_page, r->id.n_tokens / page, page, &n_put, NULL);
    scheduler->stats.pages_put += n_put;
    if (status == TAMIS_OK)
        tms_put_release(request);
    else
        give_up(scheduler, request);
}

tamis_status tms_put_step(tamis_scheduler *scheduler, uint32_t n, tamis_error *error) {
    tamis_runner *runner = scheduler->runner;
    const uint32_t first = scheduler->first_run;
    bool any = false;
    for (uint32_t i = first; i < first + n; i++)
        any |= records(scheduler, scheduler->of[i]);
    runner->tap = any ? take : NULL;
    runner->tap_user = scheduler;
    const tamis_status status =
        tamis_runner_step(runner, scheduler->runs + first, n, scheduler->next, error);
    runner->tap = NULL;
    runner->tap_user = NULL;
    for (uint32_t i = first; status == TAMIS_OK && i < first + n; i++)
        advance(scheduler, scheduler->of[i], &scheduler->runs[i]);
    return status;
}
