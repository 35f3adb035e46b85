/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: jobs become requests of a scheduler, its events become replies. */
#define _GNU_SOURCE /* eventfd */
#include "serve/engine_inside.h"
#include "serve/prompt.h"
#include "serve/reply.h"

#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

bool serve_ends(const serve_model *model, int32_t token) {
    for (size_t i = 0; i <= CLI_ENDINGS; i++)
        if (token == model->endings[i]) return true;
    return false;
}

/* ---- Opening and closing --------------------------------------------------------------------- */

static tamis_status make_cache(serve_engine *engine, tamis_error *error) {
    cli_session *s = &engine->session;
    tamis_cache_params cache = engine->params.session.cache;
    tamis_model_cache_shape(s->model, &cache);
    cache.capacity_tokens = engine->params.cache_tokens;
    if (cache.capacity_tokens == 0) cache.capacity_tokens = 2 * (uint64_t)s->context;
    if (cache.capacity_tokens < s->context)
        return cli_error(error, TAMIS_E_ARGUMENT,
                         "--cache-tokens %llu: is less than the context of %u tokens, which one "
                         "answer may take",
                         (unsigned long long)cache.capacity_tokens, s->context);
    return tamis_cache_create(s->device, &cache, &s->cache, error);
}

static tamis_status make_runner(serve_engine *engine, tamis_error *error) {
    cli_session *s = &engine->session;
    const serve_engine_params *p = &engine->params;
    tamis_plan_params plan = p->session.plan;
    plan.max_context = s->context;
    plan.max_sequences = p->running;
    plan.max_rows = p->rows;
    serve_documents_plan(&p->documents, &plan);
    tamis_status status = tamis_runner_create(s->model, s->cache, &plan, &s->runner, error);
    /* Kernels of one row are there. */
    if (status == TAMIS_OK && p->running > 1) status = tamis_runner_build(s->runner, 2, 2, error);
    if (status == TAMIS_OK) status = tamis_runner_build(s->runner, p->rows, 1, error);
    return status;
}

bool serve_engine_stores_prefixes(const serve_engine *engine) {
    return engine->documents != NULL && engine->params.documents.prefixes;
}

static tamis_status make_scheduler(serve_engine *engine, tamis_error *error) {
    const serve_engine_params *p = &engine->params;
    const bool shares = p->shares && p->session.plan.eviction.kind == TAMIS_EVICT_NONE;
    tamis_scheduler_params params = {.max_rows = p->rows,
                                     .max_running = p->running,
                                     .max_kept = shares ? p->kept : 0,
                                     .flags = shares ? TAMIS_SCHEDULER_SHARE : 0,
                                     .host_bytes = p->host_bytes};
    if (serve_engine_stores_prefixes(engine)) {
        params.store = serve_documents_store(engine->documents);
        params.store_tokens = p->documents.page_tokens;
        params.store_dtype = p->documents.dtype;
    }
    return tamis_scheduler_create(engine->session.runner, &params, &engine->scheduler, error);
}

/* A file without a template that can be run serves completions alone. */
static tamis_status describe(serve_engine *engine, const char *name, const char *date,
                             tamis_error *error) {
    const cli_session *s = &engine->session;
    const tamis_model_info *info = tamis_model_describe(s->model);
    const serve_engine_params *p = &engine->params;
    serve_model *model = &engine->model;
    tamis_error reason = {0};
    *model = (serve_model){.name = name != NULL ? name : cli_model_name(info),
                           .vocab = tamis_model_vocab(s->model),
                           .n_vocab = info->n_vocab,
                           .n_layers = info->n_layers,
                           .n_kv_heads = info->n_kv_heads,
                           .context = s->context,
                           .most_prompt = s->context,
                           .most_choices = p->running < 16 ? p->running : 16,
                           .sparse = p->session.plan.selection.kind != TAMIS_SELECT_FULL,
                           .evicts = p->session.plan.eviction.kind != TAMIS_EVICT_NONE,
                           .created = time(NULL)};
    model->longest_token = serve_longest_token(model->vocab);
    cli_endings(model->vocab, model->endings);
    model->endings[CLI_ENDINGS] = -1;
    const tamis_status status =
        cli_chat_open(model->vocab, NULL, NULL, date, &model->chat, &reason);
    if (status == TAMIS_E_UNSUPPORTED)
        snprintf(model->no_chat, sizeof model->no_chat, "%.380s", reason.text);
    else if (status != TAMIS_OK)
        return cli_error(error, status, "%s", reason.text);
    model->endings[CLI_ENDINGS] = status == TAMIS_OK ? model->chat.ending : -1;
    return TAMIS_OK;
}

tamis_status serve_engine_open(const serve_engine_params *params, const char *name,
                               const char *date, serve_metrics *metrics, serve_engine **out,
                               tamis_error *error) {
    serve_engine *engine = *out = calloc(1, sizeof *engine);
    if (engine == NULL) return cli_no_memory(error);
    engine->params = *params;
    engine->metrics = metrics;
    pthread_mutex_init(&engine->lock, NULL);
    engine->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (engine->wake < 0) return cli_error(error, TAMIS_E_IO, "the system gives no eventfd");
    tamis_status status = cli_session_load(&engine->session, &params->session, error);
    if (status == TAMIS_OK) status = make_cache(engine, error);
    if (status == TAMIS_OK) status = make_runner(engine, error);
    if (status == TAMIS_OK)
        status =
            serve_documents_open(&params->documents, engine->session.model, engine->session.cache,
                                 engine->session.runner, &engine->documents, error);
    if (status == TAMIS_OK) status = make_scheduler(engine, error);
    /* A blend's kernels are built by this wait, not by the first request. */
    if (status == TAMIS_OK) status = tamis_context_wait(engine->session.device, error);
    return status == TAMIS_OK ? describe(engine, name, date, error) : status;
}

void serve_engine_close(serve_engine **out) {
    serve_engine *engine = *out;
    if (engine == NULL) return;
    tamis_scheduler_destroy(&engine->scheduler);
    serve_documents_close(&engine->documents);
    cli_session_close(&engine->session);
    if (engine->wake >= 0) close(engine->wake);
    pthread_mutex_destroy(&engine->lock);
    free(engine->jobs);
    free(engine);
    *out = NULL;
}

serve_model *serve_engine_model(serve_engine *engine) {
    return &engine->model;
}

const char *serve_engine_device(const serve_engine *engine) {
    return tamis_context_device(engine->session.device)->id;
}

/* ---- From any thread ------------------------------------------------------------------------- */

void serve_engine_wake(serve_engine *engine) {
    const uint64_t one = 1;
    const ssize_t written = write(engine->wake, &one, sizeof one);
    (void)written; /* a counter that is full wakes, too */
}

void serve_engine_stop(serve_engine *engine) {
    atomic_store(&engine->stops, true);
    serve_engine_wake(engine);
}

bool serve_engine_is_ready(const serve_engine *engine) {
    return !atomic_load(&engine->stops) && !atomic_load(&engine->refuses);
}

/* Seconds in which there will be room, by what requests have taken of late. */
static unsigned retry_after(const serve_engine *engine) {
    const double seconds =
        ceil(engine->mean_seconds * engine->n_answers / (2.0 * engine->params.running));
    return seconds < 1 ? 1 : seconds > 60 ? 60 : (unsigned)seconds;
}

bool serve_engine_submit(serve_engine *engine, serve_job *job, serve_refusal *refusal) {
    const uint32_t n = job->request->n_prompts * job->request->n;
    const uint32_t most = engine->params.running + engine->params.queue;
    bool taken = false;
    serve_job_hold(job);
    pthread_mutex_lock(&engine->lock);
    if (!serve_engine_is_ready(engine)) {
        serve_refuse(refusal, 503, NULL, "stopping", "the server is stopping");
        refusal->wait = SERVE_RETRY_STOPPING;
    } else if (engine->n_answers + n > most) {
        serve_refuse(refusal, 503, NULL, "queue_full", "%u answers run or wait; %u are the most",
                     engine->n_answers, most);
        refusal->wait = retry_after(engine);
    } else {
        taken = true;
        engine->n_answers += n;
        if (engine->submitted == NULL)
            engine->submitted = job;
        else
            engine->last_submitted->next = job;
        engine->last_submitted = job;
    }
    pthread_mutex_unlock(&engine->lock);
    if (taken)
        serve_engine_wake(engine);
    else
        serve_job_release(job);
    return taken;
}

/* ---- Jobs ------------------------------------------------------------------------------------ */

static void free_choices(serve_job *job) {
    for (uint32_t i = 0; job->choices != NULL && i < job->n_choices; i++) {
        serve_draw_close(&job->choices[i].draw);
        serve_reads_close(&job->choices[i].reads);
        free(job->choices[i].answer.text);
        free(job->choices[i].entries);
        free(job->choices[i].listed);
    }
    free(job->choices);
    job->choices = NULL;
}

static void cancel(serve_engine *engine, serve_choice *choice) {
    if (choice->id == 0) return;
    const tamis_status status = tamis_scheduler_cancel(engine->scheduler, choice->id, NULL);
    (void)status; /* it may have ended in the last step */
    choice->id = 0;
}

/* Takes a job out: nothing of it is left in the scheduler. What its client is told comes behind this, so
 * that there is room for what a client asks next. */
static serve_job *take_out(serve_engine *engine, size_t place) {
    serve_job *job = engine->jobs[place];
    for (uint32_t i = 0; job->choices != NULL && i < job->n_choices; i++)
        cancel(engine, &job->choices[i]);
    serve_metrics_time(engine->metrics, SERVE_REQUEST, cli_seconds() - job->arrived);
    pthread_mutex_lock(&engine->lock);
    engine->n_answers -= job->request->n_prompts * job->request->n;
    pthread_mutex_unlock(&engine->lock);
    engine->n_begun -= place < engine->n_begun;
    engine->n_jobs--;
    memmove(engine->jobs + place, engine->jobs + place + 1,
            (engine->n_jobs - place) * sizeof *engine->jobs);
    return job;
}

static void discard(serve_job *job) {
    free_choices(job);
    serve_job_release(job);
}

static void refuse(serve_engine *engine, size_t place, const serve_refusal *refusal) {
    serve_job *job = take_out(engine, place);
    serve_reply_refuse(job, refusal);
    discard(job);
}

/* Of `count` jobs, the last first. */
static void refuse_all(serve_engine *engine, size_t count, const serve_refusal *refusal) {
    while (count > 0)
        refuse(engine, --count, refusal);
}

/* ---- The queue ------------------------------------------------------------------------------- */

static bool grow(serve_engine *engine) {
    if (engine->n_jobs < engine->room) return true;
    const size_t room = 2 * engine->room + 16;
    serve_job **jobs = realloc(engine->jobs, room * sizeof *jobs);
    if (jobs == NULL) return false;
    engine->jobs = jobs;
    engine->room = room;
    return true;
}

/* NULL: nothing is submitted. */
static serve_job *next_submitted(serve_engine *engine) {
    pthread_mutex_lock(&engine->lock);
    serve_job *job = engine->submitted;
    if (job != NULL) engine->submitted = job->next;
    pthread_mutex_unlock(&engine->lock);
    return job;
}

static void take_submitted(serve_engine *engine) {
    serve_job *job;
    serve_refusal refusal;
    serve_refuse_memory(&refusal);
    while ((job = next_submitted(engine)) != NULL) {
        if (grow(engine)) {
            engine->jobs[engine->n_jobs++] = job;
            continue;
        }
        pthread_mutex_lock(&engine->lock);
        engine->n_answers -= job->request->n_prompts * job->request->n;
        pthread_mutex_unlock(&engine->lock);
        serve_reply_refuse(job, &refusal);
        serve_job_release(job);
    }
}

/* Clients that have left free their pages; requests end at the time limit. */
static void drop(serve_engine *engine) {
    const double limit = engine->params.seconds, now = cli_seconds();
    serve_refusal late;
    serve_refuse(&late, 503, NULL, "time_limit", "the request took more than %.9g seconds", limit);
    for (size_t j = engine->n_jobs; j-- > 0;) {
        const bool gone = serve_job_is_gone(engine->jobs[j]);
        const bool cut = !gone && limit > 0 && now - engine->jobs[j]->arrived > limit;
        if (!gone && !cut) continue;
        pthread_mutex_lock(&engine->metrics->lock);
        engine->metrics->hung_up += gone;
        engine->metrics->cut += cut;
        pthread_mutex_unlock(&engine->metrics->lock);
        if (cut)
            refuse(engine, j, &late);
        else
            discard(take_out(engine, j));
    }
}

static bool begin(serve_engine *engine) {
    const size_t place = engine->n_begun;
    serve_job *job = engine->jobs[place];
    tamis_error error = {0};
    serve_refusal refusal = {0};
    if (!serve_engine_is_prepared(engine, job)) return false;
    engine->n_begun++;
    job->begun = cli_seconds();
    const tamis_status status = serve_engine_begin(engine, job, &error);
    if (status == TAMIS_OK)
        serve_reply_begin(job, &engine->model);
    else if (status == TAMIS_E_NO_MEMORY)
        serve_refuse_memory(&refusal);
    else
        serve_refuse(&refusal, status == TAMIS_E_ARGUMENT ? 400 : 500, NULL, NULL, "%s",
                     error.text);
    if (refusal.http != 0) refuse(engine, place, &refusal);
    return true;
}

/* ---- Events ---------------------------------------------------------------------------------- */

static serve_choice *find(serve_engine *engine, uint64_t id) {
    for (size_t j = 0; j < engine->n_jobs; j++)
        for (uint32_t i = 0; i < engine->jobs[j]->n_choices; i++)
            if (engine->jobs[j]->choices[i].id == id) return &engine->jobs[j]->choices[i];
    return NULL;
}

static void note_began(serve_engine *engine, serve_choice *choice, uint32_t cached) {
    serve_metrics *metrics = engine->metrics;
    const serve_blended *documents = choice->job->documents;
    /* Of a blend's sequence a part was computed for it. What was recorded is counted as loaded, too, but
     * for the tokens that the blend computed. */
    if (choice->brought) {
        const uint32_t loaded = documents->loaded, recorded = documents->recorded;
        const uint32_t before = loaded > recorded ? loaded - recorded : 0;
        cached = cached < before ? cached : before;
    }
    choice->n_cached = cached;
    pthread_mutex_lock(&metrics->lock);
    metrics->prompt_tokens += choice->prompt->tokens.count;
    metrics->cached_tokens += cached;
    pthread_mutex_unlock(&metrics->lock);
}

static void note_token(serve_engine *engine, serve_choice *choice) {
    const double now = cli_seconds();
    const bool first = choice->first == 0;
    serve_metrics_time(engine->metrics, first ? SERVE_FIRST_TOKEN : SERVE_NEXT_TOKEN,
                       now - (first ? choice->job->arrived : choice->last));
    if (first) choice->first = now;
    choice->last = now;
    pthread_mutex_lock(&engine->metrics->lock);
    engine->metrics->generated_tokens++;
    pthread_mutex_unlock(&engine->metrics->lock);
}

static bool take_token(serve_engine *engine, serve_choice *choice, int32_t token) {
    const bool ends = serve_ends(&engine->model, token);
    note_token(engine, choice);
    if (!serve_choice_add(choice, engine->model.vocab, token, ends)) return false;
    if (choice->job->request->reads && !serve_reads_end_token(&choice->reads)) return false;
    if (ends || choice->answer.stopped)
        choice->finish = "stop";
    else if (choice->n_tokens == serve_engine_most_new(engine, choice))
        choice->finish = "length";
    serve_reply_more(choice, &engine->model);
    return true;
}

static size_t place_of(const serve_engine *engine, const serve_job *job) {
    size_t place = 0;
    while (engine->jobs[place] != job)
        place++;
    return place;
}

static void take_event(serve_engine *engine, const tamis_request_event *event) {
    serve_choice *choice = find(engine, event->id);
    serve_refusal refusal = {0};
    if (choice == NULL) return; /* of a job that has been given up in this step */
    if (event->kind == TAMIS_REQUEST_BEGAN) note_began(engine, choice, (uint32_t)event->value);
    if (event->kind == TAMIS_REQUEST_TOKEN && choice->finish == NULL &&
        !take_token(engine, choice, event->value))
        serve_refuse_memory(&refusal);
    if (event->kind == TAMIS_REQUEST_ENDED) {
        choice->id = 0;
        if (event->status != TAMIS_OK)
            serve_refuse(&refusal, 500, NULL, NULL, "the answer could not go on: %s",
                         tamis_status_name(event->status));
    }
    if (refusal.http != 0) refuse(engine, place_of(engine, choice->job), &refusal);
}

/* Of a request that was answered, waiting apart. */
static void note_seconds(serve_engine *engine, double seconds) {
    pthread_mutex_lock(&engine->lock);
    engine->mean_seconds += (seconds - engine->mean_seconds) / 8;
    pthread_mutex_unlock(&engine->lock);
}

/* Ends jobs whose answers have ended, and takes back pages of answers that a text has ended. */
static void end_jobs(serve_engine *engine) {
    for (size_t j = engine->n_begun; j-- > 0;) {
        serve_job *job = engine->jobs[j];
        bool ended = true;
        for (uint32_t i = 0; i < job->n_choices; i++) {
            if (job->choices[i].finish != NULL) cancel(engine, &job->choices[i]);
            ended &= job->choices[i].finish != NULL;
        }
        if (!ended) continue;
        note_seconds(engine, cli_seconds() - job->begun);
        serve_reply_end(take_out(engine, j), &engine->model);
        discard(job);
    }
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static void note_state(serve_engine *engine) {
    serve_metrics *metrics = engine->metrics;
    pthread_mutex_lock(&metrics->lock);
    tamis_scheduler_get_stats(engine->scheduler, &metrics->scheduler);
    tamis_cache_get_stats(engine->session.cache, &metrics->cache);
    tamis_plan_get_counters(tamis_runner_plan(engine->session.runner), &metrics->plan);
    tamis_store_get_stats(serve_documents_store(engine->documents), &metrics->store);
    pthread_mutex_unlock(&metrics->lock);
}

/* A step that has failed leaves the requests as they were. Without memory the newest job makes room; else
 * none can go on. Answers an error only where the device cannot. */
static tamis_status give_up(serve_engine *engine, tamis_status status, const tamis_error *error) {
    serve_refusal refusal;
    serve_refuse(&refusal, 500, NULL, NULL, "the server could not go on with the answer");
    cli_fail("tamis serve", "%s", error->text);
    if (status != TAMIS_E_NO_MEMORY) {
        refuse_all(engine, engine->n_begun, &refusal);
        return status == TAMIS_E_DEVICE ? status : TAMIS_OK;
    }
    serve_refuse_memory(&refusal);
    refuse(engine, engine->n_begun - 1, &refusal);
    return TAMIS_OK;
}

static tamis_status step(serve_engine *engine, tamis_error *error) {
    const tamis_request_event *events = NULL;
    uint32_t n = 0;
    const double begun = cli_seconds();
    const tamis_status status = tamis_scheduler_step(engine->scheduler, &events, &n, error);
    engine->stalled = false;
    if (status != TAMIS_OK) return give_up(engine, status, error);
    for (uint32_t i = 0; i < n; i++)
        take_event(engine, &events[i]);
    serve_metrics_time(engine->metrics, SERVE_STEP, cli_seconds() - begun);
    end_jobs(engine);
    return TAMIS_OK;
}

/* Waits until there is something to do. */
static void wait_for_work(serve_engine *engine) {
    struct pollfd one = {.fd = engine->wake, .events = POLLIN};
    uint64_t count;
    poll(&one, 1, -1);
    const ssize_t got = read(engine->wake, &count, sizeof count);
    (void)got; /* a signal may have ended the poll */
}

/* What has not ended when the server stops. */
static void cut(serve_engine *engine) {
    serve_refusal refusal;
    serve_refuse(&refusal, 503, NULL, "stopping", "the server stopped before the answer had ended");
    refusal.wait = SERVE_RETRY_STOPPING;
    take_submitted(engine);
    pthread_mutex_lock(&engine->metrics->lock);
    engine->metrics->cut += engine->n_jobs;
    pthread_mutex_unlock(&engine->metrics->lock);
    refuse_all(engine, engine->n_jobs, &refusal);
}

/* Once the server stops, as long as jobs are left and their time is not over. */
static bool goes_on(const serve_engine *engine, double *end) {
    if (!atomic_load(&engine->stops)) return true;
    if (*end == 0) *end = cli_seconds() + engine->params.drain_seconds;
    return engine->n_jobs > 0 && cli_seconds() < *end;
}

tamis_status serve_engine_run(serve_engine *engine, void (*closing)(void *user), void *user,
                              tamis_error *error) {
    double end = 0;
    bool closed = false;
    tamis_status status = TAMIS_OK;
    for (;;) {
        const bool stops = atomic_load(&engine->stops);
        if (stops && !closed) closing(user);
        closed |= stops;
        take_submitted(engine);
        drop(engine);
        while (engine->n_begun < engine->n_jobs && begin(engine))
            ;
        note_state(engine);
        if (status != TAMIS_OK || !goes_on(engine, &end)) break;
        if (engine->n_begun > 0)
            status = step(engine, error);
        else if (engine->n_jobs == 0)
            wait_for_work(engine);
    }
    atomic_store(&engine->refuses, true);
    if (!closed) closing(user);
    cut(engine);
    return status;
}
