/* SPDX-License-Identifier: Apache-2.0 */
/* The requests of a scheduler: what they may ask for, how they are added, and given up. */
#include "lib/model/scheduler.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- What a request may be ---------------------------------------------------------------------- */

/* Whether the flags say what the plan does not do anyway: decode rows that are exact. */
static bool is_exact(const tamis_scheduler *scheduler, const tamis_request *r) {
    return r->flags & TAMIS_REQUEST_EXACT &&
           scheduler->runner->limits.selection.kind != TAMIS_SELECT_FULL;
}

static tamis_status check_flags(const tamis_scheduler *scheduler, const tamis_request *r,
                                tamis_error *error) {
    const tamis_eviction *eviction = &scheduler->runner->limits.eviction;
    TMS_REQUIRE((r->flags & ~(uint32_t)TAMIS_REQUEST_EXACT) == 0, TAMIS_E_ARGUMENT,
                "flags are 0x%x: at most 0x%x", r->flags, (unsigned)TAMIS_REQUEST_EXACT);
    TMS_REQUIRE(!is_exact(scheduler, r) || eviction->every != 1, TAMIS_E_UNSUPPORTED,
                "TAMIS_REQUEST_EXACT under eviction %s with every 1, where a single exact row "
                "cannot take the place of a token",
                tamis_eviction_name(eviction->kind));
    return TAMIS_OK;
}

/* That no request has the sequence, and that none has left it. */
static tamis_status check_not_owned(const tamis_scheduler *scheduler, tamis_sequence sequence,
                                    tamis_error *error) {
    for (uint32_t i = 0; i < scheduler->n_requests; i++)
        TMS_REQUIRE(scheduler->requests[i]->sequence != sequence, TAMIS_E_ARGUMENT,
                    "sequence %" PRIu64 " is that of request %" PRIu64, sequence,
                    scheduler->requests[i]->id);
    for (uint32_t i = 0; i < scheduler->n_kept; i++)
        TMS_REQUIRE(scheduler->kept[i] != sequence, TAMIS_E_ARGUMENT,
                    "sequence %" PRIu64 " is kept behind the end of a request", sequence);
    return TAMIS_OK;
}

/* *length: that of the sequence which the request brings; 0: none. */
static tamis_status check_sequence(const tamis_scheduler *scheduler, const tamis_request *r,
                                   uint32_t *length, tamis_error *error) {
    const tamis_eviction_kind eviction = scheduler->runner->limits.eviction.kind;
    tamis_cache *cache = scheduler->runner->cache;
    int32_t none;
    *length = 0;
    if (r->sequence == 0) return TAMIS_OK;
    /* Reads nothing: it answers whether the sequence is there, and in no open step. */
    TMS_TRY(tamis_cache_read_positions(cache, r->sequence, 0, 0, 0, 0, &none, error));
    TMS_TRY(tamis_cache_length(cache, r->sequence, length, NULL, error));
    TMS_TRY(check_not_owned(scheduler, r->sequence, error));
    TMS_REQUIRE(*length < r->n_tokens, TAMIS_E_ARGUMENT,
                "sequence %" PRIu64 " holds %u tokens of a prompt of %u, whose last token is run",
                r->sequence, *length, r->n_tokens);
    TMS_REQUIRE(r->n_stored == 0, TAMIS_E_ARGUMENT, "n_stored is %u with sequence %" PRIu64,
                r->n_stored, r->sequence);
    TMS_REQUIRE(eviction == TAMIS_EVICT_NONE, TAMIS_E_UNSUPPORTED,
                "sequence %" PRIu64 " is given under eviction %s, for which its rows may lack "
                "queries and weights",
                r->sequence, tamis_eviction_name(eviction));
    return TAMIS_OK;
}

static tamis_status check_request(const tamis_scheduler *scheduler, const tamis_request *r,
                                  tamis_error *error) {
    const uint32_t longest = scheduler->runner->limits.max_context;
    for (size_t i = 0; i < sizeof r->reserved / sizeof *r->reserved; i++)
        TMS_REQUIRE(r->reserved[i] == 0, TAMIS_E_ARGUMENT,
                    "reserved[%zu] of tamis_request is %" PRIu64 "; it must be 0", i,
                    r->reserved[i]);
    TMS_TRY(check_flags(scheduler, r, error));
    TMS_TRY(tms_check_tokens(scheduler->runner, r->tokens, r->n_tokens, error));
    TMS_REQUIRE(r->max_new > 0, TAMIS_E_ARGUMENT, "max_new is 0");
    TMS_REQUIRE((uint64_t)r->n_tokens + r->max_new - 1 <= longest, TAMIS_E_ARGUMENT,
                "a prompt of %u tokens and %u new ones exceed max_context %u", r->n_tokens,
                r->max_new, longest);
    TMS_REQUIRE(r->reserved32 == 0, TAMIS_E_ARGUMENT, "reserved32 is %u; it must be 0",
                r->reserved32);
    TMS_REQUIRE(r->n_stored <= r->n_tokens, TAMIS_E_ARGUMENT, "n_stored is %u, of %u tokens",
                r->n_stored, r->n_tokens);
    TMS_REQUIRE(r->n_stored == 0 || scheduler->params.store, TAMIS_E_ARGUMENT,
                "n_stored is %u; the scheduler has no store", r->n_stored);
    TMS_REQUIRE(r->stops || r->n_stops == 0, TAMIS_E_ARGUMENT, "stops is NULL, n_stops %u",
                r->n_stops);
    return TAMIS_OK;
}

/* ---- Adding and giving up ------------------------------------------------------------------------ */

static tms_request *copy_request(const tamis_request *r) {
    tms_request *request = calloc(1, sizeof *request);
    if (!request) return NULL;
    *request = (tms_request){.n_prompt = r->n_tokens,
                             .n_known = r->n_tokens,
                             .max_new = r->max_new,
                             .n_stops = r->n_stops,
                             .n_stored = r->n_stored,
                             .reads = r->reads,
                             .choose = r->choose,
                             .user = r->user};
    memcpy(request->salt, r->salt, sizeof request->salt);
    request->tokens = calloc((size_t)r->n_tokens + r->max_new, sizeof *request->tokens);
    request->stops = calloc(r->n_stops ? r->n_stops : 1, sizeof *request->stops);
    if (!request->tokens || !request->stops) {
        free(request->tokens);
        free(request->stops);
        free(request);
        return NULL;
    }
    memcpy(request->tokens, r->tokens, r->n_tokens * sizeof *r->tokens);
    if (r->n_stops) memcpy(request->stops, r->stops, r->n_stops * sizeof *r->stops);
    return request;
}

/* Room for one request more. */
static bool grow_requests(tamis_scheduler *scheduler) {
    if (scheduler->n_requests < scheduler->capacity) return true;
    const uint32_t capacity = scheduler->capacity ? 2 * scheduler->capacity : 16;
    tms_request **requests = realloc(scheduler->requests, capacity * sizeof(tms_request *));
    if (!requests) return false;
    scheduler->requests = requests;
    scheduler->capacity = capacity;
    return true;
}

tamis_status tamis_scheduler_add(tamis_scheduler *scheduler, const tamis_request *request,
                                 uint64_t *id, tamis_error *error) {
    TMS_ENTER_SCHEDULER(scheduler);
    TMS_REQUIRE(request, TAMIS_E_ARGUMENT, "request is NULL");
    TMS_REQUIRE(id, TAMIS_E_ARGUMENT, "id is NULL");
    uint32_t length;
    TMS_TRY(check_request(scheduler, request, error));
    TMS_TRY(check_sequence(scheduler, request, &length, error));
    tms_request *own = grow_requests(scheduler) ? copy_request(request) : NULL;
    TMS_REQUIRE(own, TAMIS_E_NO_MEMORY, "no memory for a request of %u tokens", request->n_tokens);
    *id = own->id = ++scheduler->last_id;
    own->exact = is_exact(scheduler, request);
    own->sequence = request->sequence;
    own->given = request->sequence != 0;
    own->n_done = length;
    scheduler->requests[scheduler->n_requests++] = own;
    return TAMIS_OK;
}

void tms_request_free(tamis_scheduler *scheduler, tms_request *request) {
    if (request->sequence) tms_scheduler_remove(scheduler, request->sequence);
    scheduler->stats.saved_bytes -= request->saved.room;
    tms_stored_release(request);
    tms_put_release(request);
    free(request->saved.data);
    free(request->tokens);
    free(request->stops);
    free(request);
}

void tms_scheduler_forget(tamis_scheduler *scheduler, uint32_t place) {
    tms_request_free(scheduler, scheduler->requests[place]);
    scheduler->n_running -= place < scheduler->n_running;
    scheduler->n_requests--;
    memmove(scheduler->requests + place, scheduler->requests + place + 1,
            (scheduler->n_requests - place) * sizeof(tms_request *));
}

tamis_status tamis_scheduler_cancel(tamis_scheduler *scheduler, uint64_t id, tamis_error *error) {
    TMS_ENTER_SCHEDULER(scheduler);
    uint32_t i = 0, n = 0;
    while (i < scheduler->n_requests && scheduler->requests[i]->id != id)
        i++;
    TMS_REQUIRE(i < scheduler->n_requests, TAMIS_E_ARGUMENT, "there is no request %" PRIu64, id);
    for (uint32_t e = 0; !scheduler->told && e < scheduler->n_events; e++)
        if (scheduler->events[e].id != id) scheduler->events[n++] = scheduler->events[e];
    if (!scheduler->told) scheduler->n_events = n;
    tms_scheduler_forget(scheduler, i);
    return TAMIS_OK;
}
