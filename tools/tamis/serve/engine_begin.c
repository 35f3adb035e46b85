/* SPDX-License-Identifier: Apache-2.0 */
/* How a job begins: documents are stored and blended, answers become requests of the scheduler. */
#include "serve/engine_inside.h"

#include <stdlib.h>
#include <string.h>

/* ---- Answers --------------------------------------------------------------------------------- */

static tamis_status choose(void *user, const float *logits, uint32_t n_vocab, int32_t *token,
                           tamis_error *error) {
    serve_choice *choice = user;
    return serve_draw_next(&choice->draw, logits, n_vocab, token, error);
}

uint32_t serve_engine_most_new(const serve_engine *engine, const serve_choice *choice) {
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
                            .max_new = serve_engine_most_new(engine, choice),
                            .stops = stops,
                            .flags = request->exact ? TAMIS_REQUEST_EXACT : 0,
                            .choose = serve_draw_is_greedy(request) ? NULL : choose,
                            .reads = request->reads ? note_reads : NULL,
                            .user = choice,
                            .sequence = sequence};
    if (serve_engine_stores_prefixes(engine) && sequence == 0) params.n_stored = params.n_tokens;
    for (size_t i = 0; i <= CLI_ENDINGS; i++)
        if (engine->model.endings[i] >= 0) stops[params.n_stops++] = engine->model.endings[i];
    memcpy(params.salt, request->salt, sizeof params.salt);
    tamis_status status = open_choice(engine, choice, error);
    if (status == TAMIS_OK)
        status = tamis_scheduler_add(engine->scheduler, &params, &choice->id, error);
    return status;
}

/* ---- Documents ------------------------------------------------------------------------------- */

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

tamis_status serve_engine_begin(serve_engine *engine, serve_job *job, tamis_error *error) {
    const serve_request *request = job->request;
    tamis_status status = TAMIS_OK;
    job->choices = calloc(request->n_prompts * request->n, sizeof *job->choices);
    if (job->choices == NULL) return cli_no_memory(error);
    job->n_choices = request->n_prompts * request->n;
    for (uint32_t i = 0; status == TAMIS_OK && i < request->n_prompts; i++)
        status = add_answers(engine, job, i, error);
    return status;
}

/* Prompts with documents are chats, which have one prompt. */
bool serve_engine_is_prepared(serve_engine *engine, serve_job *job) {
    const cli_prompt *prompt = &job->request->prompts[0];
    tamis_scheduler_stats stats;
    if (!serve_documents_has(engine->documents, prompt)) return true;
    if (engine->stalled && engine->n_begun > 0) return false;
    if (job->documents == NULL) job->documents = calloc(1, sizeof *job->documents);
    if (job->documents == NULL) return true; /* the prompt is computed */
    tamis_scheduler_get_stats(engine->scheduler, &stats);
    return stats.running + stats.waiting < engine->params.running &&
           !serve_documents_prepare(engine->documents, engine->scheduler, prompt,
                                    job->request->salt, job->documents);
}
