/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: jobs become requests of a scheduler, its events become replies. */
#define _GNU_SOURCE /* eventfd */
#include "serve/engine.h"

#include "serve/reply.h"

#include <math.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct serve_engine {
    serve_engine_params params;
    cli_session session; /* device, model, cache, runner */
    tamis_scheduler *scheduler;
    serve_documents *documents; /* NULL: nothing is stored */
    serve_model model;
    serve_metrics *metrics;
    int wake; /* eventfd: there is something to look at */
    atomic_bool stops, refuses;
    pthread_mutex_t lock; /* of the next four */
    serve_job *submitted, *last_submitted;
    uint32_t n_answers;  /* that run, wait, or are submitted */
    double mean_seconds; /* of a request, of late */
    serve_job **jobs;    /* [n_jobs] the thread's own, in the order in which they came */
    size_t n_jobs, room;
    bool stalled; /* a blend has been made since the last step */
};

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

static bool stores_prefixes(const serve_engine *engine) {
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
    if (stores_prefixes(engine)) {
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
        refusal->wait = 5;
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

/* The job at a place has ended: nothing of it is left in the scheduler. */
static void forget(serve_engine *engine, size_t place) {
    serve_job *job = engine->jobs[place];
    const double seconds = cli_seconds() - job->arrived;
    for (uint32_t i = 0; job->choices != NULL && i < job->n_choices; i++)
        cancel(engine, &job->choices[i]);
    serve_metrics_time(engine->metrics, SERVE_REQUEST, seconds);
    pthread_mutex_lock(&engine->lock);
    engine->n_answers -= job->request->n_prompts * job->request->n;
    engine->mean_seconds += (seconds - engine->mean_seconds) / 8;
    pthread_mutex_unlock(&engine->lock);
    free_choices(job);
    serve_job_release(job);
    engine->n_jobs--;
    memmove(engine->jobs + place, engine->jobs + place + 1,
            (engine->n_jobs - place) * sizeof *engine->jobs);
}

static void refuse(serve_engine *engine, size_t place, const serve_refusal *refusal) {
    serve_reply_refuse(engine->jobs[place], refusal);
    forget(engine, place);
}

/* ---- Beginning ------------------------------------------------------------------------------- */

static tamis_status choose(void *user, const float *logits, uint32_t n_vocab, int32_t *token,
                           tamis_error *error) {
    serve_choice *choice = user;
    return serve_draw_next(&choice->draw, logits, n_vocab, token, error);
}

static uint32_t most_new(const serve_engine *engine, const serve_choice *choice) {
    const uint32_t asked = choice->job->request->max_new;
    return asked > 0 ? asked : engine->model.context - (uint32_t)choice->prompt->tokens.count + 1;
}

static void note_reads(void *user, uint32_t layer, uint32_t kv_head, const uint32_t *pages,
                       uint32_t n_pages, uint32_t of) {
    serve_choice *choice = user;
    (void)kv_head;
    serve_reads_add(&choice->reads, layer, pages, n_pages, of);
}

static tamis_status open_choice(serve_engine *engine, serve_choice *choice, tamis_error *error) {
    const serve_model *model = &engine->model;
    const serve_request *request = choice->job->request;
    tamis_cache_params cache;
    tamis_cache_get_params(engine->session.cache, &cache);
    if (request->reads && !serve_reads_open(&choice->reads, model->n_layers, model->n_kv_heads,
                                            model->context / cache.page_size + 1))
        return cli_no_memory(error);
    return serve_draw_open(&choice->draw, request, model->n_vocab, choice->index, error);
}

/* The sequence, unless it is 0, holds the prompt but its last token; it is the scheduler's if the call
 * answers OK. */
static tamis_status add_choice(serve_engine *engine, serve_choice *choice, tamis_sequence sequence,
                               tamis_error *error) {
    const serve_request *request = choice->job->request;
    int32_t stops[CLI_ENDINGS + 1];
    tamis_request params = {.tokens = choice->prompt->tokens.ids,
                            .n_tokens = (uint32_t)choice->prompt->tokens.count,
                            .max_new = most_new(engine, choice),
                            .stops = stops,
                            .flags = request->exact ? TAMIS_REQUEST_EXACT : 0,
                            .choose = serve_draw_is_greedy(request) ? NULL : choose,
                            .reads = request->reads ? note_reads : NULL,
                            .user = choice,
                            .sequence = sequence};
    if (stores_prefixes(engine) && sequence == 0) params.n_stored = params.n_tokens;
    for (size_t i = 0; i <= CLI_ENDINGS; i++)
        if (engine->model.endings[i] >= 0) stops[params.n_stops++] = engine->model.endings[i];
    memcpy(params.salt, request->salt, sizeof params.salt);
    tamis_status status = open_choice(engine, choice, error);
    if (status == TAMIS_OK)
        status = tamis_scheduler_add(engine->scheduler, &params, &choice->id, error);
    return status;
}

static void note_documents(serve_engine *engine, const serve_blended *done) {
    serve_metrics *metrics = engine->metrics;
    pthread_mutex_lock(&metrics->lock);
    metrics->chunks_found += done->found;
    metrics->chunks_missed += done->missed;
    metrics->chunk_tokens_loaded += done->loaded;
    metrics->chunk_tokens_computed += done->computed;
    pthread_mutex_unlock(&metrics->lock);
}

/* Documents of a prompt are blended, in a step for which all others wait. *sequence 0: the scheduler runs
 * the prompt. */
static tamis_status blend(serve_engine *engine, const serve_job *job, const cli_prompt *prompt,
                          tamis_sequence *sequence, tamis_error *error) {
    const double begun = cli_seconds();
    *sequence = 0;
    if (job->documents == NULL) return TAMIS_OK;
    const tamis_status status =
        serve_documents_blend(engine->documents, engine->scheduler, prompt, job->request->salt,
                              job->documents, sequence, error);
    if (*sequence != 0) serve_metrics_time(engine->metrics, SERVE_BLEND, cli_seconds() - begun);
    engine->stalled |= *sequence != 0;
    note_documents(engine, job->documents);
    return status;
}

static void remove_sequence(serve_engine *engine, tamis_sequence sequence) {
    const tamis_status status =
        sequence != 0 ? tamis_cache_remove(engine->session.cache, sequence, NULL) : TAMIS_OK;
    (void)status; /* an error has been told already */
}

/* The n answers to a prompt; a blend is forked for all but the last one. */
static tamis_status add_answers(serve_engine *engine, serve_job *job, uint32_t place,
                                tamis_error *error) {
    const uint32_t n = job->request->n;
    const cli_prompt *prompt = &job->request->prompts[place];
    tamis_sequence blended = 0;
    tamis_status status = blend(engine, job, prompt, &blended, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < n; i++) {
        serve_choice *choice = &job->choices[place * n + i];
        tamis_sequence own = blended;
        *choice = (serve_choice){.job = job,
                                 .index = place * n + i,
                                 .prompt = prompt,
                                 .brought = blended != 0,
                                 .answer = {.stops = &job->request->stops}};
        if (blended != 0 && i + 1 < n)
            status = tamis_cache_fork(engine->session.cache, blended, &own, error);
        if (status == TAMIS_OK) status = add_choice(engine, choice, own, error);
        if (status != TAMIS_OK && own != blended) remove_sequence(engine, own);
        if (status == TAMIS_OK && own == blended) blended = 0;
    }
    remove_sequence(engine, blended);
    return status;
}

static tamis_status open_choices(serve_engine *engine, serve_job *job, tamis_error *error) {
    const serve_request *request = job->request;
    tamis_status status = TAMIS_OK;
    job->choices = calloc(request->n_prompts * request->n, sizeof *job->choices);
    if (job->choices == NULL) return cli_no_memory(error);
    job->n_choices = request->n_prompts * request->n;
    for (uint32_t i = 0; status == TAMIS_OK && i < request->n_prompts; i++)
        status = add_answers(engine, job, i, error);
    return status;
}

static bool grow(serve_engine *engine) {
    if (engine->n_jobs < engine->room) return true;
    const size_t room = 2 * engine->room + 16;
    serve_job **jobs = realloc(engine->jobs, room * sizeof *jobs);
    if (jobs == NULL) return false;
    engine->jobs = jobs;
    engine->room = room;
    return true;
}

static bool is_late(const serve_engine *engine, const serve_job *job) {
    return engine->params.seconds > 0 && cli_seconds() - job->arrived > engine->params.seconds;
}

static void begin(serve_engine *engine, serve_job *job) {
    tamis_error error = {0};
    serve_refusal refusal = {0};
    engine->jobs[engine->n_jobs++] = job; /* there is room */
    if (serve_job_is_gone(job) || is_late(engine, job)) return; /* drop ends it, without a blend */
    const tamis_status status = open_choices(engine, job, &error);
    if (status == TAMIS_OK) {
        serve_reply_begin(job, &engine->model);
        return;
    }
    serve_refuse(&refusal, status == TAMIS_E_ARGUMENT ? 400 : 500, NULL, NULL, "%s", error.text);
    refuse(engine, engine->n_jobs - 1, &refusal);
}

/* The next job, which stays where it is. */
static serve_job *next_submitted(serve_engine *engine) {
    pthread_mutex_lock(&engine->lock);
    serve_job *job = engine->submitted;
    pthread_mutex_unlock(&engine->lock);
    return job;
}

static serve_job *take_submitted(serve_engine *engine) {
    if (!grow(engine)) return NULL; /* it is looked at again behind a step */
    pthread_mutex_lock(&engine->lock);
    serve_job *job = engine->submitted;
    if (job != NULL) engine->submitted = job->next;
    pthread_mutex_unlock(&engine->lock);
    return job;
}

/* Whether a job may begin: documents of its prompt are stored first, one between two steps, in which no
 * other one is blended. A blend holds its pages from its step on, so it is not made before its answers can
 * run. Prompts with documents are chats, which have one prompt. */
static bool is_prepared(serve_engine *engine, serve_job *job) {
    const cli_prompt *prompt = &job->request->prompts[0];
    tamis_scheduler_stats stats;
    if (!serve_documents_has(engine->documents, prompt) || serve_job_is_gone(job) ||
        is_late(engine, job))
        return true;
    if (engine->stalled && engine->n_jobs > 0) return false;
    if (job->documents == NULL) job->documents = calloc(1, sizeof *job->documents);
    if (job->documents == NULL) return true; /* the prompt is computed */
    tamis_scheduler_get_stats(engine->scheduler, &stats);
    return stats.running + stats.waiting < engine->params.running &&
           !serve_documents_prepare(engine->documents, engine->scheduler, prompt,
                                    job->request->salt, job->documents);
}

static void begin_submitted(serve_engine *engine) {
    serve_job *job;
    while ((job = next_submitted(engine)) != NULL && is_prepared(engine, job) &&
           (job = take_submitted(engine)) != NULL)
        begin(engine, job);
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
    choice->began = true;
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
    else if (choice->n_tokens == most_new(engine, choice))
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

/* Ends jobs whose answers have ended, and takes back pages of answers that a text has ended. */
static void end_jobs(serve_engine *engine) {
    for (size_t j = engine->n_jobs; j-- > 0;) {
        serve_job *job = engine->jobs[j];
        bool ended = true;
        for (uint32_t i = 0; i < job->n_choices; i++) {
            if (job->choices[i].finish != NULL) cancel(engine, &job->choices[i]);
            ended &= job->choices[i].finish != NULL;
        }
        if (!ended) continue;
        serve_reply_end(job, &engine->model);
        forget(engine, j);
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

static void refuse_all(serve_engine *engine, unsigned http, const char *code, const char *text) {
    serve_refusal refusal;
    serve_refuse(&refusal, http, NULL, code, "%s", text);
    while (engine->n_jobs > 0)
        refuse(engine, engine->n_jobs - 1, &refusal);
}

/* Answers an error only where the device cannot go on. */
static tamis_status step(serve_engine *engine, tamis_error *error) {
    const tamis_request_event *events = NULL;
    uint32_t n = 0;
    const double begun = cli_seconds();
    const tamis_status status = tamis_scheduler_step(engine->scheduler, &events, &n, error);
    engine->stalled = false;
    if (status != TAMIS_OK) {
        cli_fail("tamis serve", "%s", error->text);
        refuse_all(engine, 500, NULL, error->text);
        return status == TAMIS_E_DEVICE ? status : TAMIS_OK;
    }
    for (uint32_t i = 0; i < n; i++)
        take_event(engine, &events[i]);
    serve_metrics_time(engine->metrics, SERVE_STEP, cli_seconds() - begun);
    end_jobs(engine);
    return TAMIS_OK;
}

/* Clients that have left free their pages; requests end at the time limit. */
static void drop(serve_engine *engine) {
    const double limit = engine->params.seconds;
    serve_refusal late;
    serve_refuse(&late, 503, NULL, "time_limit", "the request took more than %.9g seconds", limit);
    for (size_t j = engine->n_jobs; j-- > 0;) {
        const bool gone = serve_job_is_gone(engine->jobs[j]);
        const bool cut = !gone && is_late(engine, engine->jobs[j]);
        if (!gone && !cut) continue;
        pthread_mutex_lock(&engine->metrics->lock);
        engine->metrics->hung_up += gone;
        engine->metrics->cut += cut;
        pthread_mutex_unlock(&engine->metrics->lock);
        if (cut)
            refuse(engine, j, &late);
        else
            forget(engine, j);
    }
}

/* Waits until there is something to do. */
static void wait_for_work(serve_engine *engine) {
    struct pollfd one = {.fd = engine->wake, .events = POLLIN};
    uint64_t count;
    poll(&one, 1, -1);
    const ssize_t got = read(engine->wake, &count, sizeof count);
    (void)got; /* a signal may have ended the poll */
}

/* Nothing is submitted any more. False: nothing is left, or the time is over. */
static bool goes_on(serve_engine *engine, double *end) {
    if (!atomic_load(&engine->stops)) return true;
    if (*end == 0) *end = cli_seconds() + engine->params.drain_seconds;
    if (engine->n_jobs == 0 && next_submitted(engine) == NULL) return false;
    if (cli_seconds() < *end) return true;
    pthread_mutex_lock(&engine->metrics->lock);
    engine->metrics->cut += engine->n_jobs;
    pthread_mutex_unlock(&engine->metrics->lock);
    refuse_all(engine, 503, "stopping", "the server stopped before the answer had ended");
    return false; /* what is submitted still is refused behind the last step */
}

tamis_status serve_engine_run(serve_engine *engine, void (*closing)(void *user), void *user,
                              tamis_error *error) {
    double end = 0;
    bool closed = false;
    tamis_status status = TAMIS_OK;
    note_state(engine);
    while (status == TAMIS_OK && goes_on(engine, &end)) {
        if (atomic_load(&engine->stops) && !closed) closing(user);
        closed |= atomic_load(&engine->stops);
        begin_submitted(engine);
        drop(engine);
        note_state(engine);
        if (engine->n_jobs > 0)
            status = step(engine, error);
        else if (!closed && next_submitted(engine) == NULL)
            wait_for_work(engine);
        note_state(engine);
    }
    atomic_store(&engine->refuses, true);
    if (!closed) closing(user);
    for (serve_job *job; (job = take_submitted(engine)) != NULL;)
        engine->jobs[engine->n_jobs++] = job;
    if (engine->n_jobs > 0) refuse_all(engine, 503, "stopping", "the server is stopping");
    return status;
}
