/* SPDX-License-Identifier: Apache-2.0 */
/* The sequences of a scheduler's requests: begun, saved to host memory and restored, shared, kept. */
#include "lib/model/scheduler.h"

#include <stdlib.h>
#include <string.h>
#include <tamis/saved.h>

/* ---- Host memory ----------------------------------------------------------------------------- */

static int put(void *user, const void *bytes, size_t n) {
    tms_bytes *to = user;
    if (n > to->most - to->n) return 1;
    if (n > to->room - to->n) {
        size_t room = 2 * to->room > to->n + n ? 2 * to->room : to->n + n;
        if (room > to->most) room = to->most;
        uint8_t *data = realloc(to->data, room);
        if (!data) return 1;
        to->data = data;
        to->room = room;
    }
    memcpy(to->data + to->n, bytes, n);
    to->n += n;
    return 0;
}

typedef struct reading {
    const tms_bytes *from;
    size_t at;
} reading;

static int get(void *user, void *bytes, size_t n) {
    reading *r = user;
    if (n > r->from->n - r->at) return 1;
    memcpy(bytes, r->from->data + r->at, n);
    r->at += n;
    return 0;
}

static void let_go(tamis_scheduler *scheduler, tms_request *request) {
    scheduler->stats.saved_bytes -= request->saved.room;
    free(request->saved.data);
    request->saved = (tms_bytes){0};
}

static tamis_save_params save_params(const tamis_scheduler *scheduler) {
    tamis_save_params params = {.flags = TAMIS_SAVE_BOUNDS};
    memcpy(params.fingerprint, scheduler->fingerprint, sizeof params.fingerprint);
    return params;
}

/* Saves the sequence if it fits into what is left of the scheduler's host memory. */
static tamis_status save(tamis_scheduler *scheduler, tms_request *request, tamis_error *error) {
    const tamis_save_params params = save_params(scheduler);
    tms_bytes to = {.most = (size_t)(scheduler->params.host_bytes - scheduler->stats.saved_bytes)};
    if (to.most == 0 || request->n_done == 0) return TAMIS_OK;
    tamis_error own = {TAMIS_OK, ""};
    const tamis_status status = tamis_plan_save(tamis_runner_plan(scheduler->runner),
                                                request->sequence, &params, put, &to, &own);
    if (status != TAMIS_OK) free(to.data);
    if (status == TAMIS_E_IO) return TAMIS_OK; /* put refused: there is no room */
    TMS_REQUIRE(status == TAMIS_OK, status, "%s", own.text);
    request->saved = to;
    scheduler->stats.saved_bytes += to.room;
    return TAMIS_OK;
}

/* ---- A request's sequence -------------------------------------------------------------------- */

static tamis_status restore(tamis_scheduler *scheduler, tms_request *request, tamis_error *error) {
    const tamis_save_params params = save_params(scheduler);
    reading from = {&request->saved, 0};
    TMS_TRY(tamis_plan_restore(tamis_runner_plan(scheduler->runner), &params, get, &from,
                               &request->sequence, error));
    let_go(scheduler, request);
    if (request->n_done < request->n_prompt) return TAMIS_OK;
    return tms_scheduler_share(scheduler, request, error);
}

/* A fork of what another sequence holds of the prompt, or an empty sequence. What follows may be in the
 * store. What is to be put there is run, and not forked. */
static tamis_status start(tamis_scheduler *scheduler, tms_request *request, tamis_error *error) {
    uint32_t shared = 0;
    request->sequence = 0;
    request->n_done = 0;
    TMS_TRY(tms_put_find(scheduler, request, error));
    if (scheduler->prefixes && !request->puts)
        TMS_TRY(tamis_prefixes_fork(scheduler->prefixes, request->tokens, request->n_prompt,
                                    request->salt, 0, &request->sequence, &shared, error));
    if (request->sequence == 0)
        TMS_TRY(tamis_cache_add(scheduler->runner->cache, &request->sequence, error));
    request->n_done = shared;
    return TAMIS_OK;
}

tamis_status tms_scheduler_begin(tamis_scheduler *scheduler, tms_request *request,
                                 tamis_error *error) {
    request->fresh = true;
    if (!request->sequence) /* else it came with one, or a call failed behind this */
        TMS_TRY(request->saved.data ? restore(scheduler, request, error)
                                    : start(scheduler, request, error));
    return request->given ? TAMIS_OK : tms_stored_find(scheduler, request, error);
}

void tms_scheduler_remove(const tamis_scheduler *scheduler, tamis_sequence sequence) {
    if (!scheduler->runner) return;
    const tamis_status status = tamis_cache_remove(scheduler->runner->cache, sequence, NULL);
    (void)status; /* nothing is left to be done where the cache is gone */
}

static tamis_status remove_sequence(tamis_scheduler *scheduler, tms_request *request,
                                    tamis_error *error) {
    TMS_TRY(tamis_cache_remove(scheduler->runner->cache, request->sequence, error));
    request->sequence = 0;
    return TAMIS_OK;
}

tamis_status tms_scheduler_take_back(tamis_scheduler *scheduler, tms_request *request, bool saves,
                                     tamis_error *error) {
    tamis_sequence_stats stats;
    TMS_TRY(
        tamis_cache_get_sequence_stats(scheduler->runner->cache, request->sequence, &stats, error));
    if (saves) TMS_TRY(save(scheduler, request, error));
    TMS_TRY(remove_sequence(scheduler, request, error));
    request->pages = stats.pages;
    request->fresh = false;
    if (saves) tms_stored_release(request);
    if (request->saved.data) return TAMIS_OK;
    tms_put_release(request);
    request->given = false;
    request->n_done = 0;
    return TAMIS_OK;
}

/* ---- Sharing --------------------------------------------------------------------------------- */

tamis_status tms_scheduler_share(tamis_scheduler *scheduler, const tms_request *request,
                                 tamis_error *error) {
    const uint32_t n = request->n_done < request->n_prompt ? request->n_done : request->n_prompt;
    if (!scheduler->prefixes || request->given) return TAMIS_OK;
    return tamis_prefixes_add(scheduler->prefixes, request->sequence, request->tokens, n,
                              request->salt, error);
}

tamis_status tms_scheduler_drop_kept(tamis_scheduler *scheduler, tamis_error *error) {
    TMS_TRY(tamis_cache_remove(scheduler->runner->cache, scheduler->kept[0], error));
    scheduler->n_kept--;
    memmove(scheduler->kept, scheduler->kept + 1, scheduler->n_kept * sizeof *scheduler->kept);
    return TAMIS_OK;
}

tamis_status tamis_scheduler_drop_kept(tamis_scheduler *scheduler, int *dropped,
                                       tamis_error *error) {
    TMS_ENTER_SCHEDULER(scheduler);
    TMS_REQUIRE(dropped, TAMIS_E_ARGUMENT, "dropped is NULL");
    *dropped = scheduler->n_kept > 0;
    return *dropped ? tms_scheduler_drop_kept(scheduler, error) : TAMIS_OK;
}

tamis_status tms_scheduler_leave(tamis_scheduler *scheduler, tms_request *request,
                                 tamis_error *error) {
    if (scheduler->params.max_kept == 0 || request->given)
        return remove_sequence(scheduler, request, error);
    if (scheduler->n_kept == scheduler->params.max_kept)
        TMS_TRY(tms_scheduler_drop_kept(scheduler, error));
    scheduler->kept[scheduler->n_kept++] = request->sequence;
    request->sequence = 0;
    return TAMIS_OK;
}
