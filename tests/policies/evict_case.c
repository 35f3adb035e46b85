/* SPDX-License-Identifier: Apache-2.0 */
/* Plays cases of check_eviction.py through the public API: reads shapes, rows and events from
 * standard input, writes to standard output what each event gave.
 *   evict_case --device D <in >out
 * All numbers are little-endian, as the host's; the order of fields is that of the code below. */
#include "lib/plan/plan.h"

#include "tests/rotation.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/tamis.h>

enum { EV_END, EV_ADD, EV_FORK, EV_REMOVE, EV_STEP, EV_EVICT, EV_BY_SCORES, EV_TO, EV_READ };
#define MAGIC          0x54414d43u
#define MAX_SEQUENCES  16u
#define MAX_TRACES     64u
#define MAX_STEP_BYTES (1u << 26)

typedef struct trace {
    uint32_t layer, stage, granularity, n_lanes, n; /* n entries of each lane */
    float *scores;                                  /* [n_lanes][n] */
} trace;

typedef struct play {
    tamis_context *context;
    tamis_cache_params shape;
    tamis_plan_params params;
    tamis_cache *cache;
    tamis_plan *plan;
    tamis_buffer *k, *v, *q, *out;
    tamis_buffer **weights; /* [n_layers], those of the output projection */
    tamis_sequence ids[MAX_SEQUENCES];
    uint32_t n_ids;
    float *host; /* one layer's q or out */
    uint32_t evicting, n_traces;
    trace traces[MAX_TRACES];
    uint64_t at; /* events played, all cases together */
} play;

static void stop(const play *p, const char *form, ...) {
    va_list list;
    va_start(list, form);
    fprintf(stderr, "evict_case: event %llu: ", (unsigned long long)p->at);
    vfprintf(stderr, form, list);
    fputc('\n', stderr);
    va_end(list);
    exit(1);
}

static void must(const play *p, tamis_status status, const tamis_error *error, const char *what) {
    if (status != TAMIS_OK)
        stop(p, "%s: %s %s", what, tamis_status_name(status), error ? error->text : "");
}

static void take(const play *p, void *to, size_t bytes) {
    if (bytes && fread(to, bytes, 1, stdin) != 1) stop(p, "the input ends early");
}

static uint32_t take_u32(const play *p) {
    uint32_t x;
    take(p, &x, sizeof x);
    return x;
}

static float take_f32(const play *p) {
    float x;
    take(p, &x, sizeof x);
    return x;
}

static void *room(const play *p, size_t bytes) {
    void *at = calloc(1, bytes ? bytes : 1);
    if (!at) stop(p, "no memory for %zu bytes", bytes);
    return at;
}

static void give(const play *p, const void *from, size_t bytes) {
    if (bytes && fwrite(from, bytes, 1, stdout) != 1) stop(p, "the output is closed");
}

static void give_u32(const play *p, uint32_t x) {
    give(p, &x, sizeof x);
}

/* ---- What a case is made of ------------------------------------------------------------------ */

static void take_shape(play *p) {
    tamis_cache_params *s = &p->shape;
    *s = (tamis_cache_params){.n_layers = take_u32(p)};
    s->n_heads = take_u32(p);
    s->n_kv_heads = take_u32(p);
    s->head_dim = take_u32(p);
    s->page_size = take_u32(p);
    s->dtype = (tamis_dtype)take_u32(p);
    s->capacity_tokens = take_u32(p);
}

static void take_params(play *p) {
    tamis_plan_params *a = &p->params;
    *a = (tamis_plan_params){.max_sequences = take_u32(p)};
    a->max_rows = take_u32(p);
    a->max_context = take_u32(p);
    a->flags = take_u32(p) ? TAMIS_PLAN_FIXED_LAUNCHES : 0;
    a->attention.scale = take_f32(p);
    a->attention.soft_cap = take_f32(p);
    tamis_selection *s = &a->selection;
    s->kind = (tamis_selection_kind)take_u32(p);
    s->budget = take_u32(p);
    s->sinks = take_u32(p);
    s->recent = take_u32(p);
    s->dense_layers = take_u32(p);
    s->group = (tamis_group_rule)take_u32(p);
    tamis_eviction *e = &a->eviction;
    e->kind = (tamis_eviction_kind)take_u32(p);
    e->budget = take_u32(p);
    e->sinks = take_u32(p);
    e->recent = take_u32(p);
    e->window = take_u32(p);
    e->kernel = take_u32(p);
    e->pooling = (tamis_pooling)take_u32(p);
    e->chunk = take_u32(p);
    e->floor = take_f32(p);
    e->beta = take_f32(p);
    e->every = take_u32(p);
    e->options = take_u32(p);
}

/* Rows of the output projection, none for 0, then the dtype and each layer's matrix. */
static void take_weights(play *p) {
    uint32_t n_rows = take_u32(p), width = p->shape.n_heads * p->shape.head_dim;
    p->weights = room(p, p->shape.n_layers * sizeof(tamis_buffer *));
    if (n_rows == 0) return;
    tamis_error error = {0};
    tamis_rows rows = {.dtype = (tamis_dtype)take_u32(p)};
    size_t bytes = (size_t)n_rows * width * tamis_dtype_size(rows.dtype);
    void *host = room(p, bytes);
    for (uint32_t layer = 0; layer < p->shape.n_layers; layer++) {
        take(p, host, bytes);
        must(p, tamis_buffer_create(p->context, bytes, &p->weights[layer], &error), &error, "W_O");
        must(p, tamis_buffer_write(p->weights[layer], 0, host, bytes, NULL), NULL, "W_O");
        rows.buffer = p->weights[layer];
        must(p, tamis_plan_bind_output(p->plan, layer, &rows, n_rows, &error), &error,
             "tamis_plan_bind_output");
    }
    free(host);
}

/* Channels that rotate, none for 0, then the pairing and the frequencies. */
static void take_rotation(play *p) {
    uint32_t n_rot = take_u32(p);
    if (n_rot == 0) return;
    const tamis_pairing pairing = take_u32(p) ? TAMIS_PAIR_ADJACENT : TAMIS_PAIR_HALF;
    tamis_error error = {0};
    double *frequencies = room(p, n_rot / 2 * sizeof *frequencies);
    take(p, frequencies, n_rot / 2 * sizeof *frequencies);
    must(p, test_bind_rotation(p->context, p->plan, frequencies, n_rot, pairing, &error), &error,
         "tamis_plan_bind_rotation");
    free(frequencies);
}

/* Whether single heads have budgets, then those. */
static void take_budgets(play *p) {
    if (take_u32(p) == 0) return;
    size_t bytes = (size_t)p->shape.n_layers * p->shape.n_kv_heads * sizeof(uint32_t);
    uint32_t *budgets = room(p, bytes);
    tamis_error error = {0};
    take(p, budgets, bytes);
    must(p, tamis_plan_bind_budgets(p->plan, budgets, &error), &error, "tamis_plan_bind_budgets");
    free(budgets);
}

static void remember(void *user, uint32_t layer, uint32_t stage, const float *scores,
                     uint64_t stride, uint32_t granularity);

static void open_case(play *p) {
    tamis_error error = {0};
    take_shape(p);
    take_params(p);
    p->shape.planes = tamis_eviction_planes(&p->params.eviction);
    must(p, tamis_cache_create(p->context, &p->shape, &p->cache, &error), &error,
         "tamis_cache_create");
    must(p, tamis_plan_create(p->cache, &p->params, &p->plan, &error), &error, "tamis_plan_create");
    tms_plan_trace_evict(p->plan, remember, p);
    uint64_t bytes = (uint64_t)p->params.max_rows * p->shape.n_heads * p->shape.head_dim * 4;
    if (bytes > MAX_STEP_BYTES) stop(p, "a step of %llu bytes", (unsigned long long)bytes);
    tamis_buffer **buffers[] = {&p->k, &p->v, &p->q, &p->out};
    for (size_t i = 0; i < 4; i++)
        must(p, tamis_buffer_create(p->context, bytes, buffers[i], &error), &error, "rows");
    p->host = room(p, bytes);
    p->n_ids = 0;
    take_weights(p);
    take_rotation(p);
    take_budgets(p);
}

static void close_case(play *p) {
    tamis_plan_destroy(&p->plan);
    tamis_cache_destroy(&p->cache);
    tamis_buffer **buffers[] = {&p->k, &p->v, &p->q, &p->out};
    for (size_t i = 0; i < 4; i++)
        tamis_buffer_destroy(buffers[i]);
    for (uint32_t layer = 0; layer < p->shape.n_layers; layer++)
        tamis_buffer_destroy(&p->weights[layer]);
    free(p->weights);
    free(p->host);
}

/* ---- What events give ------------------------------------------------------------------------ */

static uint32_t lane_length(const play *p, uint32_t i, uint32_t layer, uint32_t head) {
    uint32_t length = 0;
    tamis_error error = {0};
    must(p, tamis_cache_lane_length(p->cache, p->ids[i], layer, head, &length, &error), &error,
         "tamis_cache_lane_length");
    return length;
}

/* Of each lane of each live sequence the positions, slot by slot. */
static void give_positions(const play *p) {
    tamis_error error = {0};
    int32_t *positions = room(p, p->params.max_context * sizeof *positions);
    uint32_t live = 0;
    for (uint32_t i = 0; i < p->n_ids; i++)
        live += p->ids[i] != 0;
    give_u32(p, live);
    for (uint32_t i = 0; i < p->n_ids; i++) {
        if (p->ids[i] == 0) continue;
        give_u32(p, i);
        for (uint32_t l = 0; l < p->shape.n_layers; l++)
            for (uint32_t h = 0; h < p->shape.n_kv_heads; h++) {
                uint32_t n = lane_length(p, i, l, h);
                if (n > p->params.max_context) stop(p, "a lane of %u slots", n);
                must(p,
                     tamis_cache_read_positions(p->cache, p->ids[i], l, h, 0, n, positions, &error),
                     &error, "tamis_cache_read_positions");
                give_u32(p, n);
                give(p, positions, n * sizeof *positions);
            }
    }
    free(positions);
}

static void give_status(const play *p, uint32_t type, tamis_status status,
                        const tamis_error *error) {
    uint32_t n = status == TAMIS_OK ? 0 : (uint32_t)strlen(error->text);
    give_u32(p, type);
    give_u32(p, (uint32_t)status);
    give_u32(p, n);
    give(p, error->text, n);
}

static void remember(void *user, uint32_t layer, uint32_t stage, const float *scores,
                     uint64_t stride, uint32_t granularity) {
    play *p = user;
    if (p->n_traces == MAX_TRACES) stop(p, "more than %u traces", MAX_TRACES);
    const tamis_eviction *e = &p->params.eviction;
    /* The last select of lanes that compete over all layers ranks all of those. */
    bool all = e->options & TAMIS_EVICT_ACROSS_LAYERS && stage == 1;
    uint32_t heads = p->shape.n_kv_heads, lanes = heads * (all ? p->shape.n_layers : 1);
    uint32_t longest = 0;
    for (uint32_t i = 0; i < lanes; i++) {
        uint32_t n = lane_length(p, p->evicting, layer + i / heads, i % heads);
        if (n > longest) longest = n;
    }
    trace t = {layer, stage, granularity, lanes, (longest + granularity - 1) / granularity, NULL};
    if (t.n > stride) stop(p, "%u scores at a stride of %llu", t.n, (unsigned long long)stride);
    t.scores = room(p, (size_t)lanes * t.n * sizeof *t.scores);
    for (uint32_t i = 0; i < lanes; i++)
        memcpy(t.scores + (size_t)i * t.n, scores + i * stride, t.n * sizeof *scores);
    p->traces[p->n_traces++] = t;
}

static void give_evicted(play *p, const tamis_evicted *evicted) {
    uint64_t numbers[] = {evicted->tokens_before, evicted->tokens_kept, evicted->pages_returned,
                          evicted->bytes_returned};
    give(p, numbers, sizeof numbers);
    give_u32(p, p->n_traces);
    for (uint32_t i = 0; i < p->n_traces; i++) {
        trace *t = &p->traces[i];
        uint32_t head[] = {t->layer, t->stage, t->granularity, t->n_lanes, t->n};
        give(p, head, sizeof head);
        give(p, t->scores, (size_t)t->n_lanes * t->n * sizeof *t->scores);
        free(t->scores);
    }
    p->n_traces = 0;
}

/* ---- Events ---------------------------------------------------------------------------------- */

static uint32_t take_sequence(const play *p) {
    uint32_t i = take_u32(p);
    if (i >= p->n_ids || p->ids[i] == 0) stop(p, "no sequence %u", i);
    return i;
}

static void event_add(play *p, uint32_t type) {
    tamis_error error = {0};
    if (p->n_ids == MAX_SEQUENCES) stop(p, "more than %u sequences", MAX_SEQUENCES);
    tamis_sequence *id = &p->ids[p->n_ids];
    if (type == EV_ADD)
        must(p, tamis_cache_add(p->cache, id, &error), &error, "tamis_cache_add");
    else
        must(p, tamis_cache_fork(p->cache, p->ids[take_sequence(p)], id, &error), &error,
             "tamis_cache_fork");
    p->n_ids++;
    give_status(p, type, TAMIS_OK, &error);
}

static void event_remove(play *p) {
    tamis_error error = {0};
    uint32_t i = take_sequence(p);
    must(p, tamis_cache_remove(p->cache, p->ids[i], &error), &error, "tamis_cache_remove");
    p->ids[i] = 0;
    give_status(p, EV_REMOVE, TAMIS_OK, &error);
}

/* Rows of one tensor from the input to a buffer. */
static void upload(play *p, tamis_buffer *to, uint32_t n_rows, uint32_t n_heads) {
    size_t bytes = (size_t)n_rows * n_heads * p->shape.head_dim * sizeof *p->host;
    take(p, p->host, bytes);
    must(p, tamis_buffer_write(to, 0, p->host, bytes, NULL), NULL, "rows");
}

/* The pages that each row read under each KV head. */
static void give_lists(play *p, uint32_t n_rows) {
    tamis_error error = {0};
    uint32_t most = p->params.max_context / p->shape.page_size + 1, count = 0;
    uint32_t *pages = room(p, most * sizeof *pages);
    for (uint32_t i = 0; i < n_rows * p->shape.n_kv_heads; i++) {
        must(p,
             tamis_plan_read_selected(p->plan, i / p->shape.n_kv_heads, i % p->shape.n_kv_heads,
                                      pages, most, &count, &error),
             &error, "tamis_plan_read_selected");
        if (count > most) stop(p, "a list of %u pages", count);
        give_u32(p, count);
        give(p, pages, count * sizeof *pages);
    }
    free(pages);
}

static void run_layer(play *p, uint32_t layer, uint32_t n_rows, int exact) {
    tamis_error error = {0};
    tamis_rows k = {.buffer = p->k}, v = {.buffer = p->v}, q = {.buffer = p->q};
    tamis_rows out = {.buffer = p->out};
    upload(p, p->k, n_rows, p->shape.n_kv_heads);
    upload(p, p->v, n_rows, p->shape.n_kv_heads);
    upload(p, p->q, n_rows, p->shape.n_heads);
    must(p, tamis_plan_write(p->plan, layer, &k, &v, &error), &error, "tamis_plan_write");
    must(p, tamis_plan_attend(p->plan, layer, &q, &out, &error), &error, "tamis_plan_attend");
    size_t bytes = (size_t)n_rows * p->shape.n_heads * p->shape.head_dim * sizeof *p->host;
    must(p, tamis_buffer_read(p->out, 0, p->host, bytes, NULL), NULL, "out");
    give(p, p->host, bytes);
    if (!exact && p->params.selection.kind != TAMIS_SELECT_FULL) give_lists(p, n_rows);
}

static void event_step(play *p) {
    tamis_error error = {0};
    tamis_sequence ids[MAX_SEQUENCES];
    uint32_t rows[MAX_SEQUENCES], n_rows = 0;
    tamis_step step = {.sequences = ids, .rows = rows, .exact = (int)take_u32(p)};
    step.count = take_u32(p);
    if (step.count > MAX_SEQUENCES) stop(p, "a step of %u sequences", step.count);
    for (uint32_t i = 0; i < step.count; i++) {
        ids[i] = p->ids[take_sequence(p)];
        n_rows += rows[i] = take_u32(p);
    }
    must(p, tamis_plan_step_begin(p->plan, &step, &error), &error, "tamis_plan_step_begin");
    give_status(p, EV_STEP, TAMIS_OK, &error);
    for (uint32_t layer = 0; layer < p->shape.n_layers; layer++)
        run_layer(p, layer, n_rows, step.exact);
    must(p, tamis_plan_step_end(p->plan, &error), &error, "tamis_plan_step_end");
}

/* For each lane `stride` numbers of 4 bytes. */
static void *take_lanes(play *p, uint32_t stride) {
    size_t bytes = (size_t)p->shape.n_layers * p->shape.n_kv_heads * stride * 4;
    void *at = room(p, bytes);
    take(p, at, bytes);
    return at;
}

static void event_evict(play *p, uint32_t type) {
    tamis_error error = {0};
    tamis_evicted evicted = {0};
    tamis_status status;
    p->evicting = take_sequence(p);
    tamis_sequence id = p->ids[p->evicting];
    if (type == EV_EVICT) {
        status = tamis_plan_evict(p->plan, id, &evicted, &error);
    } else {
        uint32_t stride = take_u32(p);
        void *values = take_lanes(p, stride), *counts = NULL;
        if (type == EV_BY_SCORES) {
            status = tamis_plan_evict_by_scores(p->plan, id, values, stride, &evicted, &error);
        } else {
            counts = take_lanes(p, 1);
            status = tamis_plan_evict_to(p->plan, id, values, counts, stride, &evicted, &error);
        }
        free(values);
        free(counts);
    }
    give_status(p, type, status, &error);
    give_evicted(p, &evicted);
}

/* K and V of every slot of a sequence. */
static void event_read(play *p) {
    tamis_error error = {0};
    uint32_t i = take_sequence(p);
    give_status(p, EV_READ, TAMIS_OK, &error);
    for (uint32_t l = 0; l < p->shape.n_layers; l++)
        for (uint32_t h = 0; h < p->shape.n_kv_heads; h++) {
            uint32_t n = lane_length(p, i, l, h);
            size_t half = (size_t)n * p->shape.head_dim;
            float *k = room(p, 2 * half * sizeof *k);
            must(p, tamis_cache_read(p->cache, p->ids[i], l, h, 0, n, k, k + half, &error), &error,
                 "tamis_cache_read");
            give_u32(p, n);
            give(p, k, 2 * half * sizeof *k);
            free(k);
        }
}

static void play_case(play *p) {
    open_case(p);
    for (;; p->at++) {
        uint32_t type = take_u32(p);
        switch (type) {
        case EV_END:
            close_case(p);
            return;
        case EV_ADD:
        case EV_FORK:
            event_add(p, type);
            break;
        case EV_REMOVE:
            event_remove(p);
            break;
        case EV_STEP:
            event_step(p);
            break;
        case EV_EVICT:
        case EV_BY_SCORES:
        case EV_TO:
            event_evict(p, type);
            break;
        case EV_READ:
            event_read(p);
            break;
        default:
            stop(p, "no event %u", type);
        }
        give_positions(p);
        if (fflush(stdout) != 0) stop(p, "the output is closed");
    }
}

int main(int argc, char **argv) {
    play p = {0};
    if (argc != 3 || strcmp(argv[1], "--device") != 0) {
        fprintf(stderr, "usage: evict_case --device DEVICE <IN >OUT\n");
        return 2;
    }
    tamis_error error = {0};
    tamis_context_params params = {.device = argv[2]};
    tamis_status status = tamis_context_create(&params, &p.context, &error);
    if (status != TAMIS_OK) fprintf(stderr, "%s: %s\n", argv[2], error.text);
    if (status == TAMIS_E_NO_DEVICE) return 77;
    if (status != TAMIS_OK) return 1;
    uint32_t magic;
    while (fread(&magic, sizeof magic, 1, stdin) == 1) {
        if (magic != MAGIC) stop(&p, "not a case: %08x", magic);
        play_case(&p);
    }
    tamis_context_destroy(&p.context);
    return 0;
}
