/* SPDX-License-Identifier: Apache-2.0 */
/* A prompt that begins with stored chunks: cut, blended, recorded. */
#include "cli/chunks.h"

#include "cli/gate.h"
#include "cli/policies.h"

#include <stdlib.h>
#include <string.h>
#include <tamis/blend_model.h>
#include <tamis/record.h>

#define PROBE_ROWS 256u /* by which computing is timed */

/* Of texts: those of --chunks or that of --file, what stands before them, what stands behind. */
enum { TEXTS = CLI_LIST_MAX + 2, SINK = CLI_LIST_MAX, PROMPT };

struct cli_chunks {
    cli_chunks_params params;
    bool keep; /* chunks that are missing are put into the store */
    cli_tokens texts[TEXTS];
    tamis_blend_part *parts;
    uint32_t n_parts, n_chunks;
    size_t n_tokens;
    tamis_store *store;
    tamis_blend *blend;
    tamis_record_params record;
    uint8_t fingerprint[16]; /* of the chunks' records */
    double seconds;          /* until the first token */
};

/* ---- Cutting --------------------------------------------------------------------------------- */

static tamis_status read_texts(cli_chunks *c, const cli_chunk_flags *f, const tamis_vocab *vocab,
                               const char *file, size_t file_bytes, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    if (f->files.count == 0) return cli_tokenize(vocab, file, file_bytes, 0, &c->texts[0], error);
    for (uint32_t i = 0; status == TAMIS_OK && i < f->files.count; i++) {
        char *text = NULL;
        size_t bytes = 0;
        status = cli_read_text(f->files.values[i], &text, &bytes, error);
        if (status == TAMIS_OK) status = cli_tokenize(vocab, text, bytes, 0, &c->texts[i], error);
        free(text);
        if (status == TAMIS_OK && c->texts[i].count == 0)
            status = cli_error(error, TAMIS_E_ARGUMENT, "--chunks %s: has no tokens",
                               f->files.values[i]);
    }
    return status;
}

/* Adds a text in parts of at most `most` tokens. */
static void add_parts(cli_chunks *c, const cli_tokens *text, size_t most, int stored) {
    for (size_t at = 0; at < text->count; at += most) {
        const size_t left = text->count - at, n = left < most ? left : most;
        c->parts[c->n_parts++] =
            (tamis_blend_part){.tokens = text->ids + at, .n_tokens = (uint32_t)n, .stored = stored};
        c->n_chunks += stored != 0;
    }
}

/* All of the prompt as one prefix. */
static tamis_status take_prefix(cli_chunks *c, tamis_error *error) {
    const cli_tokens *text = &c->texts[PROMPT];
    if (text->count == 0) return cli_error(error, TAMIS_E_ARGUMENT, "the prompt has no tokens");
    c->parts = calloc(1, sizeof(*c->parts));
    if (c->parts == NULL) return cli_no_memory(error);
    c->n_tokens = text->count;
    c->n_parts = 1;
    c->parts[0] = (tamis_blend_part){
        .tokens = text->ids, .n_tokens = (uint32_t)text->count, .stored = TAMIS_BLEND_PREFIX};
    return TAMIS_OK;
}

static tamis_status cut(cli_chunks *c, uint32_t chunk_tokens, tamis_error *error) {
    size_t room = 2;
    for (size_t i = 0; i < TEXTS; i++) {
        c->n_tokens += c->texts[i].count;
        if (i < SINK && c->texts[i].count > 0)
            room += chunk_tokens == CLI_UNSET ? 1 : (c->texts[i].count - 1) / chunk_tokens + 1;
    }
    c->parts = calloc(room, sizeof(*c->parts));
    if (c->parts == NULL) return cli_no_memory(error);
    add_parts(c, &c->texts[SINK], CLI_TOKENS_MAX, TAMIS_BLEND_FRESH);
    for (size_t i = 0; i < SINK; i++)
        add_parts(c, &c->texts[i], chunk_tokens, TAMIS_BLEND_CHUNK);
    add_parts(c, &c->texts[PROMPT], CLI_TOKENS_MAX, TAMIS_BLEND_FRESH);
    if (c->n_chunks > 0) return TAMIS_OK;
    return cli_error(error, TAMIS_E_ARGUMENT, "--file: has no tokens to cut to chunks");
}

/* ---- Opening and closing --------------------------------------------------------------------- */

static tamis_status open_store(cli_chunks *c, const cli_chunk_flags *f, tamis_error *error) {
    const tamis_store_params params = {.folder = c->params.prefix ? f->prefix_store : f->store,
                                       .memory_bytes = c->params.store_memory};
    return tamis_store_create(&params, &c->store, error);
}

tamis_status cli_chunks_open(const cli_chunk_flags *f, const cli_chunks_params *params,
                             const cli_session *s, const char *file, size_t file_bytes,
                             const char *prompt, size_t prompt_bytes, tamis_plan_params *plan,
                             cli_chunks **out, tamis_error *error) {
    const tamis_vocab *vocab = tamis_model_vocab(s->model);
    cli_chunks *c = *out = calloc(1, sizeof(*c));
    if (c == NULL) return cli_no_memory(error);
    c->params = *params;
    c->keep = !f->no_record;
    tamis_status status = TAMIS_OK;
    if (!params->prefix) status = read_texts(c, f, vocab, file, file_bytes, error);
    if (status == TAMIS_OK && !params->prefix)
        status = cli_tokenize(vocab, "", 0, TAMIS_ENCODE_ADD_BOS, &c->texts[SINK], error);
    if (status == TAMIS_OK)
        status = cli_tokenize(vocab, prompt, prompt_bytes,
                              params->prefix ? TAMIS_ENCODE_ADD_BOS : 0, &c->texts[PROMPT], error);
    if (status == TAMIS_OK)
        status = params->prefix ? take_prefix(c, error) : cut(c, f->chunk_tokens, error);
    if (status == TAMIS_OK && c->n_tokens > s->context)
        status = cli_error(error, TAMIS_E_ARGUMENT, "%s %zu tokens, the context is %u",
                           params->prefix ? "the prompt has" : "chunks and prompt have",
                           c->n_tokens, s->context);
    if (status == TAMIS_OK) status = open_store(c, f, error);
    if (status != TAMIS_OK) return status;
    c->record = (tamis_record_params){.sink = c->texts[SINK].ids,
                                      .n_sink = (uint32_t)c->texts[SINK].count,
                                      .dtype = params->dtype};
    plan->max_rows = (uint32_t)c->n_tokens; /* all of it is one step */
    plan->load_dtypes = 1u << params->dtype;
    if (params->asks) plan->flags |= TAMIS_PLAN_ROW_MASSES;
    return TAMIS_OK;
}

void cli_chunks_close(cli_chunks **chunks) {
    cli_chunks *c = *chunks;
    if (c == NULL) return;
    tamis_blend_destroy(&c->blend);
    tamis_store_destroy(&c->store);
    for (size_t i = 0; i < TEXTS; i++)
        free(c->texts[i].ids);
    free(c->parts);
    free(c);
    *chunks = NULL;
}

size_t cli_chunks_count(const cli_chunks *c) {
    return c->n_tokens;
}

/* ---- The share ------------------------------------------------------------------------------- */

/* Reads the last layer of each chunk that the store has: the time of a token in a layer. Counts the
 * tokens of these chunks. */
static tamis_status time_reading(cli_chunks *c, cli_session *s, tamis_blend_costs *costs,
                                 tamis_error *error) {
    double seconds = 0;
    uint64_t tokens = 0;
    tamis_status status = TAMIS_OK;
    for (uint32_t p = 0; status == TAMIS_OK && p < c->n_parts; p++) {
        tamis_chunk_id id;
        tamis_chunk_info info;
        tamis_chunk *chunk = NULL;
        if (!c->parts[p].stored) continue;
        status = tamis_record_id(s->model, &c->record, c->parts[p].tokens, c->parts[p].n_tokens,
                                 &id, error);
        if (status == TAMIS_OK) status = tamis_store_get(c->store, &id, &chunk, error);
        if (status != TAMIS_OK || chunk == NULL) continue;
        tamis_chunk_get_info(chunk, &info);
        uint8_t *planes = malloc(2 * info.plane_bytes);
        if (planes == NULL) status = cli_no_memory(error);
        const double start = cli_seconds();
        if (status == TAMIS_OK)
            status = tamis_chunk_read(chunk, info.shape.n_layers - 1, planes,
                                      planes + info.plane_bytes, error);
        seconds += cli_seconds() - start;
        if (status == TAMIS_OK) tokens += info.n_tokens;
        /* The blend meets these, too, and computes the chunk. */
        if (status == TAMIS_E_DAMAGED || status == TAMIS_E_IO) status = TAMIS_OK;
        free(planes);
        tamis_chunk_release(&chunk);
    }
    costs->hits = tokens;
    costs->load_us = tokens > 0 ? 1e6 * seconds / (double)tokens : 0;
    return status;
}

/* Computes the first rows of the prompt, the second time for the clock: the time of a row in a
 * layer. */
static tamis_status time_computing(cli_chunks *c, cli_session *s, tamis_blend_costs *costs,
                                   tamis_error *error) {
    const size_t n = c->n_tokens < PROBE_ROWS ? c->n_tokens : PROBE_ROWS;
    int32_t *tokens = malloc(n * sizeof(*tokens));
    tamis_status status = tokens != NULL ? TAMIS_OK : cli_no_memory(error);
    for (size_t p = 0, at = 0; status == TAMIS_OK && at < n; p++)
        for (size_t i = 0; i < c->parts[p].n_tokens && at < n; i++)
            tokens[at++] = c->parts[p].tokens[i];
    for (int i = 0; status == TAMIS_OK && i < 2; i++) {
        tamis_sequence sequence = 0;
        status = tamis_cache_add(s->cache, &sequence, error);
        if (status != TAMIS_OK) break;
        const double start = cli_seconds();
        status = tamis_runner_prefill(s->runner, sequence, tokens, n, NULL, error);
        costs->compute_us =
            1e6 * (cli_seconds() - start) / ((double)n * tamis_model_describe(s->model)->n_layers);
        const tamis_status removed =
            tamis_cache_remove(s->cache, sequence, status == TAMIS_OK ? error : NULL);
        if (status == TAMIS_OK) status = removed;
    }
    free(tokens);
    return status;
}

static tamis_status choose_share(cli_chunks *c, cli_session *s, tamis_error *error) {
    tamis_blend_costs costs = {.load_us = 0};
    if (!c->params.chosen) return TAMIS_OK;
    tamis_status status = time_reading(c, s, &costs, error);
    if (status == TAMIS_OK) status = time_computing(c, s, &costs, error);
    if (status != TAMIS_OK) return status;
    tamis_plan_reset_counters(tamis_runner_plan(s->runner)); /* the answer's are wanted */
    if (costs.hits > 0) costs.fresh = c->n_tokens - costs.hits;
    status = tamis_blend_share(&costs, &c->params.share, error);
    if (status == TAMIS_OK)
        fprintf(stderr,
                "share %.3g %%: reading takes %.2f us for a token in a layer, computing %.2f us\n",
                100 * c->params.share, costs.load_us, costs.compute_us);
    return status;
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* A prefix is exact and needs no gate. A share that was chosen is at least what passed. */
static tamis_status pass_gate(cli_chunks *c, const cli_session *s, tamis_blend_params *params,
                              tamis_error *error) {
    const cli_chunks_params *p = &c->params;
    tamis_cache_params cache;
    if (p->prefix || p->unchecked) return TAMIS_OK;
    tamis_cache_get_params(s->cache, &cache);
    if (!p->chosen) return cli_gate(p->trials, p->model, params, cache.dtype, error);
    const tamis_status status = cli_gate_share(p->trials, p->model, params, cache.dtype, error);
    c->params.share = params->share;
    return status;
}

static tamis_status make_blend(cli_chunks *c, cli_session *s, tamis_error *error) {
    tamis_blend_params params = {.share = c->params.share,
                                 .bound = c->params.bound,
                                 .first = c->params.first,
                                 .dtype = c->params.dtype,
                                 .sink = c->record.sink,
                                 .n_sink = c->record.n_sink};
    tamis_status status =
        tamis_blend_selector_parse(cli_blends[c->params.blend], &params.selector, error);
    if (c->params.prefix) {
        params.selector = TAMIS_BLEND_NONE;
        params.page_tokens = c->params.page_tokens;
    }
    if (params.selector == TAMIS_BLEND_NONE || params.selector == TAMIS_BLEND_FIRST)
        params.check_layer = TAMIS_BLEND_NO_CHECK; /* nothing is measured */
    if (status == TAMIS_OK) status = tamis_model_fingerprint(s->model, params.fingerprint, error);
    if (status == TAMIS_OK)
        status = tamis_fingerprint_extend(params.fingerprint, c->record.sink, c->record.n_sink,
                                          c->fingerprint, error);
    if (status == TAMIS_OK) status = pass_gate(c, s, &params, error);
    if (status != TAMIS_OK) return status;
    return tamis_runner_blend_create(s->runner, c->store, &params, &c->blend, error);
}

tamis_status cli_chunks_read(cli_chunks *c, cli_session *s, tamis_error *error) {
    tamis_cache_params cache;
    tamis_cache_get_params(s->cache, &cache);
    c->record.cache_dtype = cache.dtype;
    tamis_status status = choose_share(c, s, error);
    if (status == TAMIS_OK) status = make_blend(c, s, error);
    if (status != TAMIS_OK) return status;
    const double start = cli_seconds();
    status =
        tamis_runner_blend(s->runner, s->sequence, c->blend, c->parts, c->n_parts, &s->next, error);
    c->seconds = cli_seconds() - start;
    s->prefill_seconds += c->seconds;
    return status == TAMIS_OK ? cli_session_measure(s, error) : status;
}

/* ---- Saying ---------------------------------------------------------------------------------- */

/* Records in the store that this prompt cannot use. */
typedef struct unusable {
    size_t models; /* of other models, or behind other sinks */
    size_t caches; /* of this model, computed over caches of other types */
} unusable;

/* None where the folder cannot be listed. */
static unusable count_unusable(const cli_chunks *c) {
    size_t count = 0;
    unusable found = {0};
    if (tamis_store_list(c->store, NULL, 0, &count, NULL) != TAMIS_OK || count == 0) return found;
    const size_t room = count;
    tamis_chunk_info *infos = calloc(room, sizeof(*infos));
    if (infos != NULL && tamis_store_list(c->store, infos, room, &count, NULL) == TAMIS_OK)
        for (size_t i = 0; i < count && i < room; i++) {
            const bool other =
                memcmp(infos[i].fingerprint, c->fingerprint, sizeof(c->fingerprint)) != 0;
            found.models += other;
            found.caches += !other && infos[i].shape.cache_dtype != c->record.cache_dtype;
        }
    free(infos);
    return found;
}

static void report_unusable(const cli_chunks *c) {
    const unusable found = count_unusable(c);
    tamis_store_stats stats;
    tamis_store_get_stats(c->store, &stats);
    if (found.models > 0)
        fprintf(stderr, ", the store has %zu record%s of other models", found.models,
                found.models > 1 ? "s" : "");
    if (found.caches > 0)
        fprintf(stderr, ", the store has %zu record%s of caches that are not %s", found.caches,
                found.caches > 1 ? "s" : "", tamis_dtype_name(c->record.cache_dtype));
    if (stats.foreign > 0)
        fprintf(stderr, ", records of another version are there (tamis store gc removes them)");
}

/* Whether a damaged record could not be removed. */
static bool stays_damaged(const cli_chunks *c) {
    tamis_store_stats stats;
    tamis_store_get_stats(c->store, &stats);
    return stats.tiers[TAMIS_TIER_DISK].damaged_left > 0;
}

/* What went wrong and was computed instead. */
static void report_trouble(const cli_chunks *c, const tamis_blend_stats *n) {
    if (n->parts_missed > 0) report_unusable(c);
    if (n->parts_failed > 0)
        fprintf(stderr, ", %llu could not be read", (unsigned long long)n->parts_failed);
    if (n->parts_damaged > 0)
        fprintf(stderr, ", %llu damaged and %s", (unsigned long long)n->parts_damaged,
                stays_damaged(c) ? "not to be removed" : "removed");
    if (n->restarts > 0)
        fprintf(stderr, ", begun anew %llu times", (unsigned long long)n->restarts);
}

static void report_prefix(const cli_chunks *c, const tamis_blend_stats *n) {
    fprintf(stderr, "prefix: %llu page%s of %u tokens found", (unsigned long long)n->parts_found,
            n->parts_found == 1 ? "" : "s", c->params.page_tokens);
    report_trouble(c, n);
    fprintf(stderr, "; of %zu tokens %llu loaded, %llu computed", c->n_tokens,
            (unsigned long long)n->tokens_exact, (unsigned long long)n->tokens_fresh);
}

static void report_chunks(const cli_chunks *c, const tamis_blend_stats *n) {
    fprintf(stderr, "blend %s", cli_blends[c->params.blend]);
    if (c->params.share > 0) fprintf(stderr, " %.3g %%", 100 * c->params.share);
    fprintf(stderr, ": %u chunk%s, %llu found (%llu exact), %llu missed", c->n_chunks,
            c->n_chunks > 1 ? "s" : "", (unsigned long long)n->parts_found,
            (unsigned long long)n->parts_exact, (unsigned long long)n->parts_missed);
    report_trouble(c, n);
    fprintf(stderr, "; tokens: %llu exact, %llu hits of which %llu computed, %llu fresh",
            (unsigned long long)n->tokens_exact, (unsigned long long)n->tokens_hit,
            (unsigned long long)n->tokens_selected, (unsigned long long)n->tokens_fresh);
    if (c->params.bound > 0)
        fprintf(stderr, "; left %.3g, %s %g", n->left, n->gated > 0 ? "above" : "within",
                c->params.bound);
}

void cli_chunks_report(const cli_chunks *c, bool times) {
    tamis_blend_stats n;
    tamis_blend_get_stats(c->blend, &n);
    if (c->params.prefix)
        report_prefix(c, &n);
    else
        report_chunks(c, &n);
    fprintf(stderr, "; loaded %s", cli_bytes((double)n.bytes_read).text);
    if (times)
        fprintf(stderr, "; first token after %.3f s (reading %.3f s, waiting for it %.3f s)",
                c->seconds, 1e-6 * n.read_us, 1e-6 * n.wait_us);
    fputc('\n', stderr);
}

/* ---- Recording ------------------------------------------------------------------------------- */

/* Whether the store lacks a chunk. */
static tamis_status is_missing(cli_chunks *c, cli_session *s, const tamis_blend_part *part,
                               bool *missing, tamis_error *error) {
    tamis_chunk_id id;
    tamis_chunk *chunk = NULL;
    tamis_status status =
        tamis_record_id(s->model, &c->record, part->tokens, part->n_tokens, &id, error);
    if (status == TAMIS_OK) status = tamis_store_get(c->store, &id, &chunk, error);
    *missing = chunk == NULL;
    tamis_chunk_release(&chunk);
    return status;
}

static tamis_status record_prefix(cli_chunks *c, cli_session *s, tamis_error *error) {
    const double start = cli_seconds();
    uint32_t stored = 0;
    const tamis_status status =
        tamis_runner_record_prefix(s->runner, c->store, &c->record, c->parts[0].tokens,
                                   c->parts[0].n_tokens, c->params.page_tokens, &stored, error);
    if (stored > 0)
        fprintf(stderr, "stored %u page%s of %u tokens in %.3f s\n", stored, stored > 1 ? "s" : "",
                c->params.page_tokens, cli_seconds() - start);
    return status;
}

tamis_status cli_chunks_record(cli_chunks *c, cli_session *s, tamis_error *error) {
    const double start = cli_seconds();
    uint32_t stored = 0;
    tamis_status status = TAMIS_OK;
    if (c->keep) status = tamis_cache_remove(s->cache, s->sequence, error);
    if (status == TAMIS_OK && c->keep && c->params.prefix) return record_prefix(c, s, error);
    for (uint32_t p = 0; status == TAMIS_OK && c->keep && p < c->n_parts; p++) {
        const tamis_blend_part *part = &c->parts[p];
        bool missing = false;
        if (part->stored) status = is_missing(c, s, part, &missing, error);
        if (status != TAMIS_OK || !missing) continue;
        status = tamis_runner_record(s->runner, c->store, &c->record, part->tokens, part->n_tokens,
                                     error);
        stored += status == TAMIS_OK;
    }
    if (stored > 0)
        fprintf(stderr, "stored %u of %u chunk%s in %.3f s\n", stored, c->n_chunks,
                c->n_chunks > 1 ? "s" : "", cli_seconds() - start);
    return status;
}
