/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that prompts bring along: found or recorded, then blended. */
#include "serve/documents.h"

#include "cli/gate.h"

#include <stdlib.h>
#include <string.h>
#include <tamis/record.h>

/* Tokens of a document; fewer are text, since a pass of their own and a file with 4096 bytes for each plane
 * cost more than they save. */
#define MIN_TOKENS 16u
/* Seconds without a try, when a document was not stored: each try costs a pass of its tokens. */
#define RETRY_SECONDS 2.0

struct serve_documents {
    serve_documents_params params;
    tamis_model *model;
    tamis_cache *cache;
    tamis_runner *runner;
    tamis_store *store;
    tamis_blend *blend; /* of the salt below; NULL: not made yet */
    uint8_t salt[16];
    tamis_blend_params how;
    int32_t sink;
    tamis_record_params record;
    bool blends;
    tamis_status stored; /* what became of the last one; stderr is told when it changes */
    double record_from;  /* nothing is stored before; cli_seconds */
};

/* ---- Opening and closing --------------------------------------------------------------------- */

void serve_documents_plan(const serve_documents_params *p, tamis_plan_params *plan) {
    if (p->place.folder == NULL && p->place.redis == NULL) return;
    const uint32_t most = p->most_tokens < plan->max_context ? p->most_tokens : plan->max_context;
    plan->load_dtypes = 1u << p->dtype;
    if (most > plan->max_rows) plan->max_rows = most;
    if (p->selector == TAMIS_BLEND_QUESTION) plan->flags |= TAMIS_PLAN_ROW_MASSES;
}

static tamis_status open_store(serve_documents *d, tamis_error *error) {
    const store_place *place = &d->params.place;
    const tamis_store_params params = {.folder = place->folder,
                                       .disk_bytes = d->params.disk_bytes,
                                       .redis = place->redis,
                                       .redis_prefix = place->prefix,
                                       .redis_database = place->database,
                                       .memory_bytes = d->params.memory_bytes};
    return tamis_store_create(&params, &d->store, error);
}

/* Without an entry that passed documents are computed. */
static void ask_gate(serve_documents *d, tamis_dtype cache_dtype) {
    tamis_error why = {0};
    d->blends = d->params.unchecked ||
                cli_gate(d->params.trials, d->params.model, &d->how, cache_dtype, &why) == TAMIS_OK;
    if (!d->blends) fprintf(stderr, "tamis serve: documents are computed: %s\n", why.text);
}

static tamis_status choose(serve_documents *d, tamis_error *error) {
    tamis_cache_params cache;
    tamis_cache_get_params(d->cache, &cache);
    const uint32_t n_sink = store_sink(d->model, &d->sink);
    d->record = (tamis_record_params){
        .sink = &d->sink, .n_sink = n_sink, .dtype = d->params.dtype, .cache_dtype = cache.dtype};
    d->how = (tamis_blend_params){.selector = d->params.selector,
                                  .share = d->params.share,
                                  .dtype = d->params.dtype,
                                  .sink = &d->sink,
                                  .n_sink = n_sink};
    if (d->how.selector == TAMIS_BLEND_NONE) d->how.check_layer = TAMIS_BLEND_NO_CHECK;
    const tamis_status status = tamis_model_fingerprint(d->model, d->how.fingerprint, error);
    if (status == TAMIS_OK) ask_gate(d, cache.dtype);
    return status;
}

/* A blend has one salt. */
static tamis_status make_blend(serve_documents *d, const uint8_t salt[16], tamis_error *error) {
    if (d->blend != NULL && memcmp(d->salt, salt, sizeof d->salt) == 0) return TAMIS_OK;
    tamis_blend_destroy(&d->blend);
    memcpy(d->salt, salt, sizeof d->salt);
    memcpy(d->how.salt, salt, sizeof d->how.salt);
    return tamis_runner_blend_create(d->runner, d->store, &d->how, &d->blend, error);
}

tamis_status serve_documents_open(const serve_documents_params *params, tamis_model *model,
                                  tamis_cache *cache, tamis_runner *runner, serve_documents **out,
                                  tamis_error *error) {
    *out = NULL;
    if (params->place.folder == NULL && params->place.redis == NULL) return TAMIS_OK;
    serve_documents *d = *out = calloc(1, sizeof *d);
    if (d == NULL) return cli_no_memory(error);
    d->params = *params;
    d->model = model;
    d->cache = cache;
    d->runner = runner;
    const uint8_t nobody[16] = {0};
    tamis_status status = open_store(d, error);
    if (status == TAMIS_OK) status = choose(d, error);
    /* Kernels are to be built, and what no blend can be is refused, before there are requests. */
    return status == TAMIS_OK && d->blends ? make_blend(d, nobody, error) : status;
}

void serve_documents_close(serve_documents **out) {
    serve_documents *d = *out;
    if (d == NULL) return;
    tamis_blend_destroy(&d->blend);
    tamis_store_destroy(&d->store);
    free(d);
    *out = NULL;
}

tamis_store *serve_documents_store(serve_documents *d) {
    return d != NULL ? d->store : NULL;
}

/* ---- What the store has ---------------------------------------------------------------------- */

static bool is_document(const cli_part *part) {
    return part->document && part->count >= MIN_TOKENS;
}

bool serve_documents_has(const serve_documents *d, const cli_prompt *prompt) {
    if (d == NULL || !d->blends || prompt->tokens.count > d->params.most_tokens) return false;
    for (size_t i = 0; i < prompt->n_parts; i++)
        if (is_document(&prompt->parts[i])) return true;
    return false;
}

/* 1: the store has it. A store that cannot be read has nothing. */
static bool is_stored(serve_documents *d, const int32_t *tokens, uint32_t n) {
    tamis_chunk_id id;
    tamis_chunk *chunk = NULL;
    if (tamis_record_id(d->model, &d->record, tokens, n, &id, NULL) != TAMIS_OK ||
        tamis_store_get(d->store, &id, &chunk, NULL) != TAMIS_OK || chunk == NULL)
        return false;
    tamis_chunk_release(&chunk);
    return true;
}

/* Kept sequences make room for the pages of a record's pass. The store, too, answers E_FULL, for which
 * no sequence can make room. */
static void make_room(serve_documents *d, tamis_scheduler *scheduler, uint32_t n) {
    tamis_cache_params cache;
    tamis_cache_stats now;
    int dropped = 1;
    tamis_cache_get_params(d->cache, &cache);
    const uint64_t lanes = (uint64_t)cache.n_layers * cache.n_kv_heads;
    const uint64_t pages = ((uint64_t)n + d->record.n_sink) / cache.page_size + 1;
    for (;;) {
        tamis_cache_get_stats(d->cache, &now);
        if (now.pages_total - now.pages_held >= pages * lanes || !dropped) return;
        if (tamis_scheduler_drop_kept(scheduler, &dropped, NULL) != TAMIS_OK) return;
    }
}

/* One line on stderr, however many documents a reason is for. */
static void note_stored(serve_documents *d, uint32_t n, tamis_status status,
                        const tamis_error *error) {
    if (status != TAMIS_OK) d->record_from = cli_seconds() + RETRY_SECONDS;
    if (status != TAMIS_OK && status != d->stored)
        fprintf(stderr, "tamis serve: a document of %u tokens is not stored: %s\n", n, error->text);
    d->stored = status;
}

/* False: it is not stored. */
static bool record(serve_documents *d, tamis_scheduler *scheduler, const int32_t *tokens,
                   uint32_t n) {
    tamis_error error = {0};
    if (cli_seconds() < d->record_from) return false;
    make_room(d, scheduler, n);
    const tamis_status status =
        tamis_runner_record(d->runner, d->store, &d->record, tokens, n, &error);
    note_stored(d, n, status, &error);
    return status == TAMIS_OK;
}

bool serve_documents_prepare(serve_documents *d, tamis_scheduler *scheduler,
                             const cli_prompt *prompt, const uint8_t salt[16],
                             serve_blended *done) {
    const int32_t *at = prompt->tokens.ids;
    memcpy(d->record.salt, salt, sizeof d->record.salt);
    for (size_t i = 0; i < prompt->n_parts; at += prompt->parts[i++].count) {
        const uint32_t n = (uint32_t)prompt->parts[i].count;
        if (i < done->part || !is_document(&prompt->parts[i])) continue;
        done->part = i + 1;
        /* The scheduler runs the prompt's last token, so a document that ends it is computed. */
        const bool last = i + 1 == prompt->n_parts, stored = !last && is_stored(d, at, n);
        done->found += stored;
        done->missed += !stored;
        done->computed += n;
        if (stored || last) continue;
        if (record(d, scheduler, at, n)) done->recorded += n;
        return true;
    }
    return false;
}

/* ---- Blending -------------------------------------------------------------------------------- */

/* The prompt's parts without its last token, which the scheduler runs. */
static tamis_blend_part *parts_of(const cli_prompt *prompt, uint32_t *n_parts) {
    tamis_blend_part *parts = calloc(prompt->n_parts + 1, sizeof *parts);
    size_t at = 0;
    if (parts == NULL) return NULL;
    for (size_t i = 0; i < prompt->n_parts; at += prompt->parts[i++].count) {
        const bool last = i + 1 == prompt->n_parts;
        parts[i] = (tamis_blend_part){.tokens = prompt->tokens.ids + at,
                                      .n_tokens = (uint32_t)prompt->parts[i].count - last,
                                      .stored = is_document(&prompt->parts[i]) && !last
                                                    ? TAMIS_BLEND_CHUNK
                                                    : TAMIS_BLEND_FRESH};
    }
    *n_parts = (uint32_t)prompt->n_parts;
    return parts;
}

/* Kept sequences make room for it. */
static tamis_status run(serve_documents *d, tamis_scheduler *scheduler, tamis_sequence sequence,
                        const tamis_blend_part *parts, uint32_t n_parts, tamis_error *error) {
    for (;;) {
        int dropped = 0;
        tamis_status status =
            tamis_runner_blend(d->runner, sequence, d->blend, parts, n_parts, NULL, error);
        if (status != TAMIS_E_FULL) return status;
        status = tamis_scheduler_drop_kept(scheduler, &dropped, error);
        if (status != TAMIS_OK || !dropped)
            return status != TAMIS_OK ? status : cli_error(error, TAMIS_E_FULL, "no pages");
    }
}

static void count(const serve_documents *d, const tamis_blend_stats *before, serve_blended *done) {
    tamis_blend_stats now;
    tamis_blend_get_stats(d->blend, &now);
    done->loaded = (uint32_t)((now.tokens_hit - before->tokens_hit) -
                              (now.tokens_selected - before->tokens_selected) +
                              (now.tokens_exact - before->tokens_exact));
    done->computed -= done->loaded;
}

tamis_status serve_documents_blend(serve_documents *d, tamis_scheduler *scheduler,
                                   const cli_prompt *prompt, const uint8_t salt[16],
                                   serve_blended *done, tamis_sequence *sequence,
                                   tamis_error *error) {
    tamis_blend_stats before;
    uint32_t n_parts = 0;
    *sequence = 0;
    if (done->found == 0 && done->recorded == 0) return TAMIS_OK;
    tamis_status status = make_blend(d, salt, error);
    if (status != TAMIS_OK) return status;
    tamis_blend_part *parts = parts_of(prompt, &n_parts);
    if (parts == NULL) return cli_no_memory(error);
    tamis_blend_get_stats(d->blend, &before);
    status = tamis_cache_add(d->cache, sequence, error);
    if (status == TAMIS_OK) status = run(d, scheduler, *sequence, parts, n_parts, error);
    free(parts);
    if (status == TAMIS_OK) {
        count(d, &before, done);
        return TAMIS_OK;
    }
    if (*sequence != 0 && tamis_cache_remove(d->cache, *sequence, NULL) == TAMIS_OK) *sequence = 0;
    return status == TAMIS_E_FULL && *sequence == 0 ? TAMIS_OK : status;
}
