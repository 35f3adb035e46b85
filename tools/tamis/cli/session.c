/* SPDX-License-Identifier: Apache-2.0 */
/* A model at work on one sequence: reading text, answering, and the figures of both. */
#include "cli/session.h"

#include "cli/interrupt.h"
#include "cli/policies.h"
#include "cli/text.h"

#include <stdlib.h>
#include <string.h>

/* What a cache and a plan have where nothing else is asked for. */
#define CLI_PAGE_SIZE 16u
#define CLI_ROWS      512u

/* ---- Opening and closing --------------------------------------------------------------------- */

static tamis_status choose_context(cli_session *s, uint32_t context, tamis_error *error) {
    const uint32_t stated = tamis_model_describe(s->model)->context;
    s->context = context > 0 ? context : stated;
    if (s->context <= stated) return TAMIS_OK;
    return cli_error(error, TAMIS_E_ARGUMENT, "--context %u: exceeds the %u that the model states",
                     s->context, stated);
}

/* Without a temperature the device finds the most likely token by itself. */
static tamis_status make_sampler(cli_session *s, const tamis_sampling *sampling,
                                 tamis_error *error) {
    const uint32_t n_vocab = tamis_model_describe(s->model)->n_vocab;
    if (sampling->temperature == 0) return TAMIS_OK;
    s->logits = malloc(n_vocab * sizeof(*s->logits));
    if (s->logits == NULL) return cli_no_memory(error);
    return tamis_sampler_create(sampling, n_vocab, &s->sampler, error);
}

/* The runner. Where a selection or an eviction does not go with the model's sliding window, a
 * context within the window does. */
static tamis_status make_runner(cli_session *s, const tamis_plan_params *params,
                                tamis_error *error) {
    const uint32_t window = tamis_model_describe(s->model)->sliding_window;
    const tamis_status status = tamis_runner_create(s->model, s->cache, params, &s->runner, error);
    if (status != TAMIS_E_UNSUPPORTED || window == 0 || s->context <= window) return status;
    const size_t used = strlen(error->text);
    snprintf(error->text + used, sizeof(error->text) - used,
             "; --context %u or less has no sliding window", window);
    return status;
}

static void set_ending(cli_session *s) {
    cli_endings(tamis_model_vocab(s->model), s->ending);
    s->ending[CLI_ENDINGS] = -1;
}

tamis_status cli_session_load(cli_session *s, const cli_session_params *params,
                              tamis_error *error) {
    tamis_status status = cli_open(params->device, &s->device, error);
    if (status == TAMIS_OK) status = cli_load(s->device, params->model, &s->model, error);
    if (status == TAMIS_OK) status = choose_context(s, params->context, error);
    if (status == TAMIS_OK) set_ending(s);
    return status;
}

/* The context that the file states is used where nobody names another one: then the file is to blame
 * for what is too long. */
static tamis_status blame_context(const cli_session *s, const cli_session_params *params,
                                  tamis_status status, tamis_error *error) {
    const tamis_error reason = *error;
    if (params->context > 0) return status;
    return cli_error(error, status,
                     "%.160s: key '%s.context_length' is %u, and no --context N names fewer "
                     "tokens: %.200s",
                     params->model, tamis_model_describe(s->model)->architecture, s->context,
                     reason.text);
}

/* The cache. Layers with a sliding window give back the pages that they will not read again, and have
 * room for the others alone: nothing that a session has read is taken back. Not where a store may
 * read the pages, and not where lanes are evicted from. */
static tamis_status make_cache(cli_session *s, cli_session_params *params, tamis_error *error) {
    const uint32_t n = tamis_model_describe(s->model)->n_layers;
    const uint32_t rows = params->plan.max_rows ? params->plan.max_rows : CLI_ROWS;
    const uint32_t page_size = params->cache.page_size ? params->cache.page_size : CLI_PAGE_SIZE;
    const bool gives = params->cache.planes == 0 && !params->stores;
    tamis_layer *layers = calloc(n, sizeof *layers);
    uint64_t *tokens = calloc(n, sizeof *tokens);
    tamis_status status = layers && tokens
                              ? tamis_model_layers(s->model, &params->plan, layers, error)
                              : cli_no_memory(error);
    for (uint32_t i = 0; status == TAMIS_OK && gives && i < n; i++) {
        const uint64_t most = tamis_layer_tokens(&layers[i].attention, page_size, rows);
        tokens[i] = most < s->context ? most : 0;
        if (tokens[i]) params->plan.flags |= TAMIS_PLAN_GIVE_BACK;
    }
    params->plan.max_rows = rows; /* as counted with */
    params->cache.page_size = page_size;
    tamis_cache_params cache = params->cache;
    cache.layer_tokens = tokens;
    if (status == TAMIS_OK) status = tamis_cache_create(s->device, &cache, &s->cache, error);
    free(tokens);
    free(layers);
    return status;
}

/* The cache and the runner, for as many tokens as the context has. */
static tamis_status make_both(cli_session *s, cli_session_params *params, tamis_error *error) {
    params->cache.capacity_tokens = params->plan.max_context = s->context;
    tamis_model_cache_shape(s->model, &params->cache);
    tamis_status status =
        s->context <= TAMIS_ROTATE_LIMIT
            ? make_cache(s, params, error)
            : cli_error(error, TAMIS_E_UNSUPPORTED, "at most %u can be", TAMIS_ROTATE_LIMIT);
    if (status == TAMIS_E_NO_MEMORY || status == TAMIS_E_UNSUPPORTED)
        return blame_context(s, params, status, error);
    if (status != TAMIS_OK) return status;
    status = make_runner(s, &params->plan, error);
    return status == TAMIS_E_NO_MEMORY ? blame_context(s, params, status, error) : status;
}

tamis_status cli_session_start(cli_session *s, cli_session_params *params, tamis_error *error) {
    tamis_status status = make_both(s, params, error);
    if (status == TAMIS_OK) status = tamis_cache_add(s->cache, &s->sequence, error);
    if (status == TAMIS_OK) status = make_sampler(s, &params->sampling, error);
    return status;
}

tamis_status cli_session_open(cli_session *s, cli_session_params *params, tamis_error *error) {
    const tamis_status status = cli_session_load(s, params, error);
    return status == TAMIS_OK ? cli_session_start(s, params, error) : status;
}

void cli_session_close(cli_session *s) {
    tamis_sampler_destroy(&s->sampler);
    free(s->logits);
    tamis_runner_destroy(&s->runner);
    tamis_cache_destroy(&s->cache);
    tamis_model_destroy(&s->model);
    tamis_context_destroy(&s->device);
}

tamis_status cli_session_on(cli_session *s, tamis_model *model, tamis_cache *cache,
                            tamis_runner *runner, tamis_sequence sequence, tamis_error *error) {
    tamis_plan_params plan;
    uint32_t length = 0;
    tamis_plan_get_params(tamis_runner_plan(runner), &plan);
    *s = (cli_session){.model = model,
                       .cache = cache,
                       .runner = runner,
                       .sequence = sequence,
                       .context = plan.max_context};
    set_ending(s);
    tamis_status status = tamis_cache_length(cache, sequence, &length, NULL, error);
    s->length = length;
    return status;
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* Bytes that the text took and the sequence no longer holds. No other sequence shares its pages. */
static double bytes_returned(const cli_session *s) {
    const tamis_model_info *shape = tamis_model_describe(s->model);
    tamis_cache_params cache;
    tamis_sequence_stats stats;
    tamis_cache_get_params(s->cache, &cache);
    uint32_t length;
    if (tamis_cache_get_sequence_stats(s->cache, s->sequence, &stats, NULL) != TAMIS_OK ||
        tamis_cache_length(s->cache, s->sequence, &length, NULL, NULL) != TAMIS_OK ||
        stats.pages == 0)
        return 0;
    uint64_t lanes = (uint64_t)shape->n_layers * shape->n_kv_heads;
    uint64_t pages = lanes * ((length + cache.page_size - 1) / cache.page_size);
    return (double)(pages - stats.pages) * ((double)stats.bytes_held / (double)stats.pages);
}

/* Behind each chunk of a text. */
static tamis_status watch(void *user, size_t done, size_t count, tamis_error *error) {
    cli_session *s = user;
    s->interrupted = cli_interrupted() && done < count;
    cli_progress_show(&s->progress, done, count);
    return s->interrupted ? cli_error(error, TAMIS_E_STATE, "interrupted") : TAMIS_OK;
}

tamis_status cli_session_measure(cli_session *s, tamis_error *error) {
    const size_t before = s->length;
    uint32_t length = 0;
    tamis_status status = tamis_cache_length(s->cache, s->sequence, &length, NULL, error);
    if (status != TAMIS_OK) return status;
    if (before == 0) s->bytes_returned = bytes_returned(s);
    s->length = length;
    s->prefill_tokens += length - before;
    return TAMIS_OK;
}

tamis_status cli_session_read(cli_session *s, const int32_t *tokens, size_t count,
                              tamis_error *error) {
    tamis_status status = cli_build(s->runner, count, error);
    if (status != TAMIS_OK) return status;
    const double start = cli_seconds();
    cli_progress_begin(&s->progress, "tokens");
    tamis_runner_watch(s->runner, watch, s);
    status = tamis_runner_prefill(s->runner, s->sequence, tokens, count, &s->next, error);
    tamis_runner_watch(s->runner, NULL, NULL);
    cli_progress_end(&s->progress);
    s->prefill_seconds += cli_seconds() - start;
    if (status != TAMIS_OK && !s->interrupted) return status;
    return cli_session_measure(s, error);
}

tamis_status cli_session_step(cli_session *s, const int32_t *tokens, size_t count,
                              tamis_error *error) {
    tamis_status status = TAMIS_OK;
    const double start = cli_seconds();
    s->interrupted = false;
    for (size_t i = 0; status == TAMIS_OK && i < count && !s->interrupted; i++) {
        status = tamis_runner_decode(s->runner, &s->sequence, 1, &tokens[i], &s->next, error);
        s->decode_tokens++;
        s->length++;
        s->interrupted = cli_interrupted() && i + 1 < count;
    }
    s->decode_seconds += cli_seconds() - start;
    return status;
}

tamis_status cli_session_catch_up(cli_session *s, tamis_error *error) {
    const int32_t last = s->next;
    if (!s->unread) return TAMIS_OK;
    s->unread = false;
    return cli_session_step(s, &last, 1, error);
}

/* ---- Answering ------------------------------------------------------------------------------- */

/* Sets s->next, which the device has set already where nothing is drawn. */
static tamis_status choose_next(cli_session *s, tamis_error *error) {
    if (s->sampler == NULL) return TAMIS_OK;
    tamis_status status = tamis_runner_logits(s->runner, 0, s->logits, error);
    if (status != TAMIS_OK) return status;
    return tamis_sampler_next(s->sampler, s->logits, &s->next, error);
}

static bool is_ending(const cli_session *s, int32_t token) {
    for (size_t i = 0; i <= CLI_ENDINGS; i++)
        if (token == s->ending[i]) return true;
    return false;
}

/* Prints the next token. Tokens that would end the answer are never printed. */
static tamis_status print_next(const cli_session *s, cli_answer *to, tamis_error *error) {
    size_t bytes = 0;
    const char *piece = tamis_vocab_token_text(tamis_model_vocab(s->model), s->next, &bytes);
    if (is_ending(s, s->next) || cli_answer_add(to, piece, bytes)) return TAMIS_OK;
    return cli_no_memory(error);
}

tamis_status cli_session_answer(cli_session *s, cli_answer *to, uint32_t most, cli_end *end,
                                tamis_error *error) {
    tamis_status status = TAMIS_OK;
    s->unread = false;
    for (uint32_t i = 1; status == TAMIS_OK; i++) {
        *end = CLI_END_INTERRUPT;
        if (cli_interrupted()) break;
        status = choose_next(s, error);
        *end = CLI_END_TOKEN;
        if (status != TAMIS_OK || (is_ending(s, s->next) && !s->goes_on)) break;
        status = print_next(s, to, error);
        *end = to->stopped ? CLI_END_TEXT : i == most ? CLI_END_TOKENS : CLI_END_CONTEXT;
        if (status != TAMIS_OK || *end != CLI_END_CONTEXT || s->length == s->context) break;
        const int32_t token = s->next;
        status = cli_session_step(s, &token, 1, error);
    }
    s->unread = *end != CLI_END_TOKEN && *end != CLI_END_INTERRUPT;
    return status;
}

/* ---- Figures --------------------------------------------------------------------------------- */

void cli_session_report(const cli_session *s) {
    tamis_plan_counters c;
    tamis_cache_stats stats;
    tamis_plan_get_counters(tamis_runner_plan(s->runner), &c);
    double read = (double)(c.kv_bytes_read + c.bounds_bytes_read), full = (double)c.kv_bytes_full;
    fprintf(stderr, "prefill %.1f tokens/s, decode ",
            s->prefill_seconds > 0 ? (double)s->prefill_tokens / s->prefill_seconds : 0.0);
    if (s->decode_tokens > 0)
        fprintf(stderr, "%.1f tokens/s, KV read %s/token (%.1f %% of full)",
                (double)s->decode_tokens / s->decode_seconds,
                cli_bytes(read / (double)s->decode_tokens).text,
                full > 0 ? 100 * read / full : 0.0);
    else
        fprintf(stderr, "- tokens/s, KV read -");
    tamis_cache_get_stats(s->cache, &stats);
    fprintf(stderr, ", KV held %s", cli_bytes((double)stats.bytes_held).text);
    fprintf(stderr, ", on %s\n", tamis_context_device(s->device)->id);
}

void cli_session_report_eviction(const cli_session *s, const tamis_eviction *eviction, bool times) {
    const tamis_model_info *shape = tamis_model_describe(s->model);
    tamis_plan_times t;
    uint32_t least = UINT32_MAX, most = 0, lanes = shape->n_layers * shape->n_kv_heads;
    uint64_t sum = 0;
    for (uint32_t lane = 0; lane < lanes; lane++) {
        uint32_t length = 0;
        if (tamis_cache_lane_length(s->cache, s->sequence, lane / shape->n_kv_heads,
                                    lane % shape->n_kv_heads, &length, NULL) != TAMIS_OK)
            continue;
        least = length < least ? length : least;
        most = length > most ? length : most;
        sum += length;
    }
    fprintf(stderr, "evict %s: budget %u, tokens kept per lane %u to %u (mean %.1f), returned %s",
            cli_eviction_name(eviction).text, eviction->budget, least, most, (double)sum / lanes,
            cli_bytes(s->bytes_returned).text);
    tamis_plan_get_times(tamis_runner_plan(s->runner), &t);
    if (times)
        fprintf(stderr, ", evicting %.0f us (observe %.0f, replace %.0f, prompt's end %.0f)",
                t.evict_us + t.observe_us + t.replace_us, t.observe_us, t.replace_us, t.evict_us);
    fputc('\n', stderr);
}
