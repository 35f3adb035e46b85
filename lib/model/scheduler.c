/* SPDX-License-Identifier: Apache-2.0 */
/* Continuous batching: requests that come and go, and which of them a step runs. */
#include "lib/model/scheduler.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ALL_FLAGS                                                                                  \
    (uint32_t)(TAMIS_SCHEDULER_SHARE | TAMIS_SCHEDULER_APART | TAMIS_SCHEDULER_PROMPTS_FIRST)

/* ---- Creation -------------------------------------------------------------------------------- */

static tamis_status fill_params(const tamis_plan_params *limits, tamis_scheduler_params *p,
                                tamis_error *error) {
    const uint32_t most = limits->max_selected_rows < limits->max_sequences
                              ? limits->max_selected_rows
                              : limits->max_sequences;
    for (size_t i = 0; i < sizeof p->reserved / sizeof *p->reserved; i++)
        TMS_REQUIRE(p->reserved[i] == 0, TAMIS_E_ARGUMENT,
                    "reserved[%zu] of tamis_scheduler_params is %" PRIu64 "; it must be 0", i,
                    p->reserved[i]);
    TMS_REQUIRE((p->flags & ~ALL_FLAGS) == 0, TAMIS_E_ARGUMENT, "flags are 0x%x: at most 0x%x",
                p->flags, ALL_FLAGS);
    TMS_REQUIRE(p->max_rows <= limits->max_rows, TAMIS_E_ARGUMENT,
                "max_rows is %u; the plan's is %u", p->max_rows, limits->max_rows);
    TMS_REQUIRE(p->max_running <= most, TAMIS_E_ARGUMENT,
                "max_running is %u; the plan decodes %u sequences in a step", p->max_running, most);
    TMS_REQUIRE(p->store || (p->store_tokens == 0 && p->store_dtype == 0), TAMIS_E_ARGUMENT,
                "store_tokens is %u and store_dtype %s without a store", p->store_tokens,
                tamis_dtype_name(p->store_dtype));
    TMS_REQUIRE(!p->store || p->store_tokens > 0, TAMIS_E_ARGUMENT, "store_tokens is 0");
    TMS_REQUIRE(p->max_kept == 0 || p->flags & TAMIS_SCHEDULER_SHARE, TAMIS_E_ARGUMENT,
                "max_kept is %u without TAMIS_SCHEDULER_SHARE", p->max_kept);
    if (p->max_rows == 0) p->max_rows = limits->max_rows;
    if (p->max_running == 0) p->max_running = most;
    if (p->max_running > p->max_rows) p->max_running = p->max_rows;
    return TAMIS_OK;
}

static tamis_status check_plan(const tamis_plan_params *limits, const tamis_scheduler_params *p,
                               tamis_error *error) {
    TMS_REQUIRE(!(limits->flags & TAMIS_PLAN_FIXED_LAUNCHES), TAMIS_E_ARGUMENT,
                "the runner's plan has TAMIS_PLAN_FIXED_LAUNCHES, which takes no mixed steps");
    TMS_REQUIRE(!(p->flags & TAMIS_SCHEDULER_SHARE) || limits->eviction.kind == TAMIS_EVICT_NONE,
                TAMIS_E_UNSUPPORTED,
                "TAMIS_SCHEDULER_SHARE with eviction %s, which may take tokens from any sequence",
                tamis_eviction_name(limits->eviction.kind));
    TMS_REQUIRE(!p->store || limits->eviction.kind == TAMIS_EVICT_NONE, TAMIS_E_UNSUPPORTED,
                "a store with eviction %s, for which rows that are loaded lack queries and weights",
                tamis_eviction_name(limits->eviction.kind));
    TMS_REQUIRE(limits->eviction.kind != TAMIS_EVICT_CALLER, TAMIS_E_UNSUPPORTED,
                "eviction caller: a scheduler has no scores of the caller's");
    return TAMIS_OK;
}

static void *take(size_t n, size_t size) {
    return calloc(n ? n : 1, size);
}

static tamis_status make(tamis_scheduler *scheduler, tamis_error *error) {
    const tamis_scheduler_params *p = &scheduler->params;
    const size_t n = p->max_running;
    tamis_cache_params shape;
    tamis_cache_get_params(scheduler->runner->cache, &shape);
    scheduler->page_size = shape.page_size;
    scheduler->most_pages = scheduler->runner->limits.max_context / shape.page_size + 1;
    scheduler->pages = take(scheduler->most_pages, sizeof *scheduler->pages);
    scheduler->kept = take(p->max_kept, sizeof *scheduler->kept);
    scheduler->runs = take(n, sizeof *scheduler->runs);
    scheduler->of = take(n, sizeof *scheduler->of);
    scheduler->next = take(n, sizeof *scheduler->next);
    scheduler->logits = take(scheduler->runner->model->info.n_vocab, sizeof *scheduler->logits);
    TMS_REQUIRE(scheduler->kept && scheduler->runs && scheduler->of && scheduler->next &&
                    scheduler->logits && scheduler->pages,
                TAMIS_E_NO_MEMORY, "no memory for a scheduler of %zu requests", n);
    TMS_TRY(tms_stored_open(scheduler, error));
    if (!(p->flags & TAMIS_SCHEDULER_SHARE)) return TAMIS_OK;
    return tamis_prefixes_create(scheduler->runner->cache, &scheduler->prefixes, error);
}

tamis_status tamis_scheduler_create(tamis_runner *runner, const tamis_scheduler_params *params,
                                    tamis_scheduler **out, tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    *out = NULL;
    TMS_ENTER_RUNNER(runner);
    TMS_REQUIRE(runner, TAMIS_E_ARGUMENT, "runner is NULL");
    TMS_REQUIRE(!runner->known_as, TAMIS_E_STATE, "the runner has a scheduler already");
    tamis_scheduler_params own = params ? *params : (tamis_scheduler_params){0};
    TMS_TRY(fill_params(&runner->limits, &own, error));
    TMS_TRY(check_plan(&runner->limits, &own, error));
    tamis_scheduler *scheduler = calloc(1, sizeof *scheduler);
    TMS_REQUIRE(scheduler, TAMIS_E_NO_MEMORY, "no memory for a scheduler");
    scheduler->runner = runner;
    runner->known_as = &scheduler->runner;
    scheduler->params = own;
    const tamis_status status = make(scheduler, error);
    if (status != TAMIS_OK) tamis_scheduler_destroy(&scheduler);
    *out = scheduler;
    return status;
}

void tamis_scheduler_destroy(tamis_scheduler **out) {
    if (!out || !*out) return;
    tamis_scheduler *scheduler = *out;
    for (uint32_t i = 0; i < scheduler->n_requests; i++)
        tms_request_free(scheduler, scheduler->requests[i]);
    for (uint32_t i = 0; i < scheduler->n_kept; i++)
        tms_scheduler_remove(scheduler, scheduler->kept[i]);
    tamis_prefixes_destroy(&scheduler->prefixes);
    tms_stored_close(scheduler);
    if (scheduler->runner) scheduler->runner->known_as = NULL;
    void *memories[] = {scheduler->requests, scheduler->kept, scheduler->runs,
                        scheduler->of,       scheduler->next, scheduler->logits,
                        scheduler->events,   scheduler->pages};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        free(memories[i]);
    free(scheduler);
    *out = NULL;
}

void tamis_scheduler_get_stats(const tamis_scheduler *scheduler, tamis_scheduler_stats *out) {
    if (!scheduler || !out) return;
    *out = scheduler->stats;
    out->running = scheduler->n_running;
    out->waiting = scheduler->n_requests - scheduler->n_running;
    out->kept = scheduler->n_kept;
}

/* ---- Events ---------------------------------------------------------------------------------- */

/* There is room: reserve_events. */
static void tell(tamis_scheduler *scheduler, const tms_request *request,
                 tamis_request_event_kind kind, int32_t value, tamis_status status) {
    scheduler->events[scheduler->n_events++] =
        (tamis_request_event){request->id, kind, value, status};
}

/* Forgets what has been told. A step tells at most of the preemption and the end of each request, and
 * of the beginning, token and end of those that it runs. */
static tamis_status reserve_events(tamis_scheduler *scheduler, tamis_error *error) {
    if (scheduler->told) scheduler->n_events = 0;
    scheduler->told = false;
    const uint32_t room =
        scheduler->n_events + 3 * scheduler->n_requests + 3 * scheduler->params.max_running;
    if (room <= scheduler->event_room) return TAMIS_OK;
    tamis_request_event *events = realloc(scheduler->events, room * sizeof *events);
    TMS_REQUIRE(events, TAMIS_E_NO_MEMORY, "no memory for %u events", room);
    scheduler->events = events;
    scheduler->event_room = room;
    return TAMIS_OK;
}

/* ---- What a step runs ------------------------------------------------------------------------ */

static bool is_read(const tms_request *request) {
    return request->n_done >= request->n_prompt;
}

static void add_run(tamis_scheduler *scheduler, tms_request *request, uint32_t rows) {
    const bool reads = !is_read(request);
    tamis_run *run = &scheduler->runs[scheduler->n_runs];
    *run = (tamis_run){.sequence = request->sequence,
                       .tokens = request->tokens + request->n_done,
                       .n_tokens = rows,
                       .n_outputs = request->n_done + rows == request->n_known};
    if (reads || request->exact) run->flags |= TAMIS_RUN_EXACT;
    if (reads && request->n_done + rows == request->n_prompt) run->flags |= TAMIS_RUN_EVICT;
    scheduler->of[scheduler->n_runs++] = request;
}

/* Whether requests whose prompts have been read go on, also beside others'. */
static bool decodes(const tamis_scheduler *scheduler) {
    bool reads = false;
    for (uint32_t i = 0; i < scheduler->n_running; i++)
        reads |= !is_read(scheduler->requests[i]);
    return !reads || !(scheduler->params.flags & TAMIS_SCHEDULER_PROMPTS_FIRST);
}

/* A decode row of each request that is exact, or is not, and whose prompt has been read. There are no more
 * of them than max_rows. */
static void add_decoding(tamis_scheduler *scheduler, bool exact) {
    for (uint32_t i = 0; i < scheduler->n_running; i++) {
        tms_request *request = scheduler->requests[i];
        if (is_read(request) && request->exact == exact) add_run(scheduler, request, 1);
    }
}

/* Fills the runs; the rows of the budget that are left. */
static uint32_t compose(tamis_scheduler *scheduler) {
    scheduler->n_runs = 0;
    if (decodes(scheduler)) {
        add_decoding(scheduler, false);
        add_decoding(scheduler, true); /* exact runs come last */
    }
    scheduler->n_decoding = scheduler->n_runs;
    uint32_t left = scheduler->params.max_rows - scheduler->n_decoding;
    for (uint32_t i = 0; i < scheduler->n_running && left > 0; i++) {
        tms_request *request = scheduler->requests[i];
        if (is_read(request)) continue;
        const uint32_t rest = request->n_prompt - request->n_done, rows = rest < left ? rest : left;
        add_run(scheduler, request, rows);
        left -= rows;
    }
    return left;
}

/* The pages that the cache lacks for the runs. */
static tamis_status ask_pages(tamis_scheduler *scheduler, uint64_t *missing, tamis_error *error) {
    tamis_runner *runner = scheduler->runner;
    const tamis_step step = tms_step_of_runs(runner, scheduler->runs, scheduler->n_runs);
    tamis_step_pages pages;
    TMS_TRY(tamis_plan_step_pages(runner->plan, &step, &pages, error));
    *missing = pages.missing;
    return TAMIS_OK;
}

/* Takes pages from what waits: the kept sequence that ended first is removed, or else the last request
 * from a place on that waits with a sequence loses it. *freed: whether there was one. */
static tamis_status free_some(tamis_scheduler *scheduler, uint32_t place, bool *freed,
                              tamis_error *error) {
    *freed = true;
    if (scheduler->n_kept > 0) return tms_scheduler_drop_kept(scheduler, error);
    for (uint32_t i = scheduler->n_requests; i-- > place;) {
        tms_request *request = scheduler->requests[i];
        const bool saves = request->began || request->given;
        if (request->sequence) return tms_scheduler_take_back(scheduler, request, saves, error);
    }
    *freed = false;
    return TAMIS_OK;
}

/* The last request that runs waits. One that was to begin in this step keeps the sequence that came with
 * it. */
static tamis_status stop_last(tamis_scheduler *scheduler, tamis_error *error) {
    tms_request *request = scheduler->requests[scheduler->n_running - 1];
    const bool fresh = request->fresh;
    if (fresh && request->given && !request->began)
        request->fresh = false;
    else
        TMS_TRY(tms_scheduler_take_back(scheduler, request, request->began, error));
    scheduler->n_running--;
    if (fresh) return TAMIS_OK;
    const bool saved = request->saved.data != NULL;
    tell(scheduler, request, TAMIS_REQUEST_PREEMPTED, saved, TAMIS_OK);
    scheduler->stats.preempted++;
    scheduler->stats.saved += saved;
    return TAMIS_OK;
}

/* The last request that holds pages makes room. One that is alone ends. */
static tamis_status give_way(tamis_scheduler *scheduler, tamis_error *error) {
    bool freed;
    TMS_TRY(free_some(scheduler, scheduler->n_running, &freed, error));
    if (freed) return TAMIS_OK;
    if (scheduler->n_running > 1) return stop_last(scheduler, error);
    tell(scheduler, scheduler->requests[0], TAMIS_REQUEST_ENDED, 0, TAMIS_E_FULL);
    tms_scheduler_forget(scheduler, 0);
    return TAMIS_OK;
}

/* Gives way until the step fits. */
static tamis_status make_room(tamis_scheduler *scheduler, tamis_error *error) {
    uint64_t missing = 1;
    while (missing > 0 && scheduler->n_running > 0) {
        compose(scheduler);
        TMS_TRY(ask_pages(scheduler, &missing, error));
        if (missing > 0) TMS_TRY(give_way(scheduler, error));
    }
    if (scheduler->n_running == 0) scheduler->n_runs = 0;
    return TAMIS_OK;
}

/* Whether a sequence that is saved has room, and some more that it needs next. */
static bool has_room(const tamis_scheduler *scheduler, const tms_request *request) {
    const tamis_model_info *info = &scheduler->runner->model->info;
    tamis_cache_stats stats;
    if (!request->saved.data || scheduler->n_running == 0) return true;
    tamis_cache_get_stats(scheduler->runner->cache, &stats);
    const uint64_t more = (uint64_t)(scheduler->n_running + 1) * info->n_layers * info->n_kv_heads;
    return stats.pages_total - stats.pages_held >= request->pages + more;
}

/* Begins the first request that waits, which makes those behind it give pages back; *begun. One that is
 * alone and does not fit ends. */
static tamis_status begin_next(tamis_scheduler *scheduler, bool *begun, tamis_error *error) {
    const uint32_t place = scheduler->n_running;
    tms_request *request = scheduler->requests[place];
    bool freed = true;
    *begun = false;
    while (freed) {
        tamis_error own = {TAMIS_OK, ""};
        const tamis_status status = has_room(scheduler, request)
                                        ? tms_scheduler_begin(scheduler, request, &own)
                                        : TAMIS_E_FULL;
        *begun = status == TAMIS_OK;
        TMS_REQUIRE(*begun || status == TAMIS_E_FULL, status, "%s", own.text);
        if (*begun) break;
        TMS_TRY(free_some(scheduler, place + 1, &freed, error));
    }
    scheduler->n_running += *begun;
    if (*begun || place > 0) return TAMIS_OK;
    tell(scheduler, request, TAMIS_REQUEST_ENDED, 0, TAMIS_E_FULL);
    tms_scheduler_forget(scheduler, 0);
    return TAMIS_OK;
}

/* Requests that wait begin, in order, while the budget has rows left, until one lacks pages. */
static tamis_status begin_waiting(tamis_scheduler *scheduler, tamis_error *error) {
    bool goes_on = true;
    while (goes_on && scheduler->n_running < scheduler->n_requests &&
           scheduler->n_running < scheduler->params.max_running && compose(scheduler) > 0) {
        bool begun;
        TMS_TRY(begin_next(scheduler, &begun, error));
        goes_on = begun || scheduler->n_running == 0; /* where one has ended */
    }
    return TAMIS_OK;
}

/* Tells of those that hold a sequence since this step. */
static void tell_begun(tamis_scheduler *scheduler) {
    for (uint32_t i = 0; i < scheduler->n_running; i++) {
        tms_request *request = scheduler->requests[i];
        if (!request->fresh) continue;
        request->fresh = false;
        tell(scheduler, request, request->began ? TAMIS_REQUEST_RESUMED : TAMIS_REQUEST_BEGAN,
             (int32_t)tms_stored_reach(scheduler, request), TAMIS_OK);
        if (!request->began && !request->given) scheduler->stats.tokens_shared += request->n_done;
        request->began = true;
    }
}

/* ---- Behind a step --------------------------------------------------------------------------- */

/* Its next token, the output at a place. */
static tamis_status choose(tamis_scheduler *scheduler, const tms_request *request, uint32_t place,
                           int32_t *token, tamis_error *error) {
    const uint32_t n_vocab = scheduler->runner->model->info.n_vocab;
    *token = scheduler->next[place];
    if (!request->choose) return TAMIS_OK;
    TMS_TRY(tamis_runner_logits(scheduler->runner, place, scheduler->logits, error));
    TMS_TRY(request->choose(request->user, scheduler->logits, n_vocab, token, error));
    TMS_REQUIRE(*token >= 0 && (uint32_t)*token < n_vocab, TAMIS_E_ARGUMENT,
                "choose gave token %d of a vocabulary of %u", *token, n_vocab);
    return TAMIS_OK;
}

static bool ends_with(const tms_request *request, int32_t token) {
    bool stops = request->n_known == request->n_prompt + request->max_new;
    for (uint32_t i = 0; i < request->n_stops; i++)
        stops |= request->stops[i] == token;
    return stops;
}

static uint32_t place_of(const tamis_scheduler *scheduler, const tms_request *request) {
    uint32_t i = 0;
    while (scheduler->requests[i] != request)
        i++;
    return i;
}

static tamis_status end(tamis_scheduler *scheduler, tms_request *request, tamis_status why,
                        tamis_error *error) {
    tell(scheduler, request, TAMIS_REQUEST_ENDED, 0, why);
    if (is_read(request) && why == TAMIS_OK)
        TMS_TRY(tms_scheduler_leave(scheduler, request, error));
    tms_scheduler_forget(scheduler, place_of(scheduler, request));
    return TAMIS_OK;
}

/* Rows that a request has run; what it shared or restored was not run. */
static void count_rows(tamis_scheduler *scheduler, tms_request *request, uint32_t rows) {
    const uint32_t again = request->n_done < request->n_run ? request->n_run - request->n_done : 0;
    scheduler->stats.rows += rows;
    scheduler->stats.rows_again += again < rows ? again : rows;
    request->n_done += rows;
    if (request->n_done > request->n_run) request->n_run = request->n_done;
}

/* The requests of n runs have taken their step. */
static tamis_status advance(tamis_scheduler *scheduler, uint32_t first, uint32_t n,
                            tamis_error *error) {
    for (uint32_t i = first, place = 0; i < first + n; i++) {
        tms_request *request = scheduler->of[i];
        const tamis_run *run = &scheduler->runs[i];
        tamis_error own = {TAMIS_OK, ""};
        int32_t token = 0;
        count_rows(scheduler, request, run->n_tokens);
        if (request->n_done == request->n_prompt)
            TMS_TRY(tms_scheduler_share(scheduler, request, error));
        if (run->n_outputs == 0) continue;
        const tamis_status status = choose(scheduler, request, place++, &token, &own);
        if (status != TAMIS_OK) {
            TMS_TRY(end(scheduler, request, status, error));
            continue;
        }
        request->tokens[request->n_known++] = token;
        tell(scheduler, request, TAMIS_REQUEST_TOKEN, token, TAMIS_OK);
        if (ends_with(request, token)) TMS_TRY(end(scheduler, request, TAMIS_OK, error));
    }
    return TAMIS_OK;
}

static tamis_status run_some(tamis_scheduler *scheduler, uint32_t first, uint32_t n,
                             tamis_error *error) {
    if (n == 0) return TAMIS_OK;
    scheduler->first_run = first;
    TMS_TRY(tms_reads_step(scheduler, n, error));
    scheduler->stats.steps++;
    return advance(scheduler, first, n, error);
}

/* Loads what the store has of the runs' rows; the runs are what is left. */
static tamis_status load_stored(tamis_scheduler *scheduler, tamis_error *error) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < scheduler->n_runs; i++) {
        tms_request *request = scheduler->of[i];
        tamis_run run = scheduler->runs[i];
        uint32_t loaded = 0;
        if (i >= scheduler->n_decoding)
            TMS_TRY(tms_stored_load(scheduler, request, run.n_tokens, &loaded, error));
        if (loaded > 0) TMS_TRY(tms_scheduler_share(scheduler, request, error));
        run.tokens += loaded;
        run.n_tokens -= loaded;
        scheduler->of[n] = request;
        scheduler->runs[n] = run;
        n += run.n_tokens > 0;
    }
    scheduler->n_runs = n;
    return TAMIS_OK;
}

/* The runner evicts every n tokens behind rows that are not exact; of exact ones it is told when. */
static tamis_status mark_due(tamis_scheduler *scheduler, tamis_error *error) {
    const uint32_t every = scheduler->runner->limits.eviction.every;
    for (uint32_t i = 0; every > 1 && i < scheduler->n_decoding; i++) {
        tamis_run *run = &scheduler->runs[i];
        uint32_t length = 0, evicted_at = 0;
        if (!(run->flags & TAMIS_RUN_EXACT)) continue;
        TMS_TRY(tamis_cache_length(scheduler->runner->cache, run->sequence, &length, &evicted_at,
                                   error));
        if (length + 1 - evicted_at >= every) run->flags |= TAMIS_RUN_EVICT;
    }
    return TAMIS_OK;
}

static tamis_status run(tamis_scheduler *scheduler, tamis_error *error) {
    TMS_TRY(load_stored(scheduler, error));
    TMS_TRY(mark_due(scheduler, error));
    const uint32_t n = scheduler->n_runs, n_decoding = scheduler->n_decoding;
    if (scheduler->params.flags & TAMIS_SCHEDULER_APART) {
        TMS_TRY(run_some(scheduler, 0, n_decoding, error));
        return run_some(scheduler, n_decoding, n - n_decoding, error);
    }
    scheduler->stats.mixed_steps += n_decoding > 0 && n_decoding < n;
    return run_some(scheduler, 0, n, error);
}

tamis_status tamis_scheduler_step(tamis_scheduler *scheduler, const tamis_request_event **events,
                                  uint32_t *n, tamis_error *error) {
    TMS_ENTER_SCHEDULER(scheduler);
    TMS_REQUIRE(events, TAMIS_E_ARGUMENT, "events is NULL");
    TMS_REQUIRE(n, TAMIS_E_ARGUMENT, "n is NULL");
    TMS_TRY(reserve_events(scheduler, error));
    do { /* where a request that is alone ends, the next one begins */
        TMS_TRY(begin_waiting(scheduler, error));
        TMS_TRY(make_room(scheduler, error));
    } while (scheduler->n_runs == 0 && scheduler->n_requests > 0);
    tell_begun(scheduler);
    if (scheduler->n_runs > 0) TMS_TRY(run(scheduler, error));
    *events = scheduler->events;
    *n = scheduler->n_events;
    scheduler->told = true;
    return TAMIS_OK;
}
