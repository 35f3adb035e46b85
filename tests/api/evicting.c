/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of evicting through plans share. */
#include "tests/api/evicting.h"
#include "host/backend.h"
#include "tests/rotation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PROJECTED 5u /* rows of the output projection */

uint32_t test_slowness(void) {
    if (strncmp(test_device, "cuda", 4) == 0) return 5;
    return strcmp(test_device, "reference") == 0 ? 1 : 2;
}

static void *take(size_t n, size_t size) {
    void *memory = calloc(n ? n : 1, size);
    assert_non_null(memory);
    return memory;
}

tamis_eviction test_eviction(tamis_eviction_kind kind, uint32_t budget, uint32_t options) {
    tamis_eviction e;
    tamis_eviction_default(kind, &e);
    if (kind == TAMIS_EVICT_NONE) return e;
    e.budget = budget;
    e.options = options;
    if (e.window) e.window = WINDOW;
    if (e.kernel) e.kernel = 3;
    return e;
}

/* ---- The world ------------------------------------------------------------------------------- */

static float projection_value(uint64_t i) {
    uint64_t state = i;
    return (float)(test_random(&state) % 255) / 128 - 1;
}

static void bind(evict_world *e) {
    const tamis_cache_params *c = &e->w.shape;
    uint64_t width = (uint64_t)c->n_heads * c->head_dim, n = PROJECTED * width;
    if (e->w.plan->setup.needs.rotation) {
        double frequencies[128];
        for (uint32_t i = 0; i < c->head_dim / 2; i++)
            frequencies[i] = pow(10000, -2.0 * i / c->head_dim);
        OK(test_bind_rotation(e->w.context, e->w.plan, frequencies, c->head_dim, TAMIS_PAIR_HALF,
                              &test_error));
    }
    if (!e->w.plan->setup.needs.output) return;
    float *host = take(n, sizeof *host);
    for (uint64_t i = 0; i < n; i++)
        host[i] = projection_value(i);
    tamis_buffer_destroy(&e->projection);
    OK(tamis_buffer_create(e->w.context, n * sizeof *host, &e->projection, &test_error));
    OK(tamis_buffer_write(e->projection, 0, host, n * sizeof *host, NULL));
    free(host);
    const tamis_rows w = {.buffer = e->projection};
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        OK(tamis_plan_bind_output(e->w.plan, layer, &w, PROJECTED, &test_error));
}

uint32_t test_scored_evictions(tamis_eviction_kind kinds[64]) {
    uint32_t n = 0;
    for (int kind = TAMIS_EVICT_NONE; kind < test_evictions(); kind++) {
        tamis_eviction e;
        tamis_eviction_default((tamis_eviction_kind)kind, &e);
        if (tamis_eviction_planes(&e) > 1) kinds[n++] = (tamis_eviction_kind)kind;
    }
    assert_true(n > 0 && n <= 64);
    return n;
}

void evict_open(evict_world *e, const tamis_cache_params *shape, const tamis_plan_params *plan) {
    tamis_cache_params with = *shape;
    *e = (evict_world){.projection = NULL};
    with.planes |= tamis_eviction_planes(&plan->eviction);
    test_open(&e->w, &with, plan);
    bind(e);
}

void evict_split(evict_world *e, const tamis_plan_params *plan) {
    tms_device *dev = e->w.context->dev;
    const tamis_cache_params shape = e->w.cache->params;
    const tamis_cache_size *size = &e->w.cache->size;
    uint64_t limit = dev->info.max_buffer_bytes;
    uint64_t layer = size->pages / shape.n_layers * size->page_bytes;
    tamis_plan_destroy(&e->w.plan);
    tamis_cache_destroy(&e->w.cache);
    dev->info.max_buffer_bytes = layer + layer / 2;
    OK(tamis_cache_create(e->w.context, &shape, &e->w.cache, &test_error));
    dev->info.max_buffer_bytes = limit;
    OK(tamis_plan_create(e->w.cache, plan, &e->w.plan, &test_error));
    assert_int_equal(e->w.cache->size.pools, shape.n_layers);
    bind(e);
}

void evict_sink(evict_world *e, const tamis_plan_params *plan, uint32_t sunk) {
    const uint32_t n_layers = e->w.shape.n_layers, heads = e->w.shape.n_heads;
    tamis_layer *layers = take(n_layers, sizeof *layers);
    tamis_plan_params with = *plan;
    tamis_buffer *sinks = NULL;
    assert_true(n_layers * heads <= sizeof e->sinks / sizeof *e->sinks);
    for (uint32_t i = 0; i < n_layers * heads; i++)
        e->sinks[i] = i % 3 == 1 ? -INFINITY : (float)(i % 5) - 1;
    OK(tamis_buffer_create(e->w.context, sizeof e->sinks, &sinks, &test_error));
    OK(tamis_buffer_write(sinks, 0, e->sinks, sizeof e->sinks, &test_error));
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        layers[layer] =
            plan->layers ? plan->layers[layer] : (tamis_layer){.attention = plan->attention};
        if (sunk >> layer & 1)
            layers[layer].attention.sinks = (tamis_place){sinks, layer * heads * sizeof(float)};
    }
    with.layers = layers;
    with.attention = (tamis_attention){.scale = 0};
    tamis_plan_destroy(&e->w.plan);
    OK(tamis_plan_create(e->w.cache, &with, &e->w.plan, &test_error));
    tamis_buffer_destroy(&sinks);
    free(layers);
    bind(e);
}

double evict_sink_of(const evict_world *e, uint32_t head) {
    const tamis_layer *layer = &e->w.plan->setup.layers[head / e->w.shape.n_heads];
    return layer->attention.sinks.buffer ? (double)e->sinks[head] : -INFINITY;
}

void evict_close(evict_world *e) {
    tamis_buffer_destroy(&e->projection);
    test_close(&e->w);
}

tamis_plan *evict_swap_plan(evict_world *e, tamis_plan *plan) {
    tamis_plan *before = e->w.plan;
    e->w.plan = plan;
    return before;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static float query_value(uint64_t token, uint32_t head, uint32_t d) {
    return test_value(token + (1ull << 32), head, 0, d);
}

uint64_t evict_out_floats(const evict_world *e, uint32_t rows) {
    return (uint64_t)rows * e->w.shape.n_heads * e->w.shape.head_dim;
}

void evict_fill_queries(evict_world *e, uint32_t layer, const uint64_t *tokens, uint32_t n_rows) {
    test_world *w = &e->w;
    uint32_t heads = w->shape.n_heads, dim = w->shape.head_dim;
    float *to = w->host;
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t d = 0; d < dim; d++)
                *to++ = query_value(tokens[row], layer * heads + h, d);
    OK(tamis_buffer_write(w->q, 0, w->host, evict_out_floats(e, n_rows) * sizeof *to, NULL));
}

void evict_layer(evict_world *e, uint32_t layer, const uint64_t *tokens, uint32_t n_rows,
                 float *outs) {
    test_world *w = &e->w;
    const tamis_rows q = {.buffer = w->q}, out = {.buffer = w->out};
    uint64_t bytes = evict_out_floats(e, n_rows) * sizeof(float);
    evict_fill_queries(e, layer, tokens, n_rows);
    if (w->plan->step.in_turns) {
        const tamis_rotated_rows rows = {.q = q, .k = {.buffer = w->k}, .v = {.buffer = w->v}};
        test_fill_kv(w, layer, tokens, n_rows);
        OK(tamis_plan_write_attend(w->plan, layer, &rows, &out, &test_error));
    } else {
        test_write(w, layer, tokens, n_rows);
        OK(tamis_plan_attend(w->plan, layer, &q, &out, &test_error));
    }
    if (outs) OK(tamis_buffer_read(w->out, 0, outs, bytes, NULL));
}

tamis_status evict_step(evict_world *e, const tamis_step *step, const uint64_t *tokens,
                        float *outs) {
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < step->count; i++)
        n_rows += step->rows ? step->rows[i] : 1;
    tamis_status status = test_step_begin(&e->w, step);
    if (status != TAMIS_OK) return status;
    for (uint32_t layer = 0; layer < e->w.shape.n_layers; layer++)
        evict_layer(e, layer, tokens, n_rows,
                    outs ? outs + layer * evict_out_floats(e, n_rows) : NULL);
    OK(tamis_plan_step_end(e->w.plan, &test_error));
    return TAMIS_OK;
}

void evict_prompt(evict_world *e, tamis_sequence id, uint64_t first, uint32_t n) {
    const tamis_step step = {.sequences = &id, .rows = &n, .count = 1, .exact = 1};
    uint64_t *tokens = take(n, sizeof *tokens);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = first + i;
    OK(evict_step(e, &step, tokens, NULL));
    free(tokens);
}

void evict_decode(evict_world *e, tamis_sequence id, uint64_t first, uint32_t n, float *outs) {
    const tamis_step step = {.sequences = &id, .count = 1};
    uint64_t floats = e->w.shape.n_layers * evict_out_floats(e, 1);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t token = first + i;
        OK(evict_step(e, &step, &token, outs ? outs + i * floats : NULL));
    }
}

tamis_sequence evict_add(evict_world *e, uint64_t first, uint32_t n) {
    tamis_sequence id = 0;
    OK(tamis_cache_add(e->w.cache, &id, &test_error));
    if (n > 0) evict_prompt(e, id, first, n);
    return id;
}

/* ---- What a sequence holds ------------------------------------------------------------------- */

uint32_t evict_length(const evict_world *e, tamis_sequence id, uint32_t layer, uint32_t head) {
    uint32_t length = 0;
    OK(tamis_cache_lane_length(e->w.cache, id, layer, head, &length, &test_error));
    return length;
}

/* The plane of scores of a lane. */
static void read_scores(const evict_world *e, tamis_sequence id, uint32_t lane, uint32_t n,
                        float *to) {
    const tamis_cache *cache = e->w.cache;
    const tms_sequence *s = tms_cache_find(cache, id);
    tms_device *dev = cache->context->dev;
    tms_ref plane = tms_cache_planes(cache, lane / cache->params.n_kv_heads).scores;
    uint32_t page_size = cache->params.page_size;
    for (uint32_t slot = 0; plane.mem && slot < n; slot += page_size) {
        uint64_t entry = (uint64_t)tms_lane_pages(s, lane)[slot / page_size] * page_size;
        uint32_t left = n - slot < page_size ? n - slot : page_size;
        tms_ref from = {plane.mem, plane.offset + entry * sizeof *to};
        OK(dev->backend->read(dev, from, to + slot, left * sizeof *to));
    }
}

held evict_read(const evict_world *e, tamis_sequence id) {
    const tamis_cache_params *c = &e->w.shape;
    held h = {.n_lanes = c->n_layers * c->n_kv_heads, .dim = c->head_dim};
    h.lengths = take(h.n_lanes, sizeof *h.lengths);
    h.first = take(h.n_lanes, sizeof *h.first);
    for (uint32_t lane = 0; lane < h.n_lanes; lane++) {
        h.first[lane] = h.n_slots;
        h.lengths[lane] = evict_length(e, id, lane / c->n_kv_heads, lane % c->n_kv_heads);
        h.n_slots += h.lengths[lane];
    }
    h.positions = take(h.n_slots, sizeof *h.positions);
    h.scores = take(h.n_slots, sizeof *h.scores);
    h.k = take((size_t)h.n_slots * h.dim, sizeof *h.k);
    h.v = take((size_t)h.n_slots * h.dim, sizeof *h.v);
    for (uint32_t lane = 0; lane < h.n_lanes; lane++) {
        uint32_t layer = lane / c->n_kv_heads, head = lane % c->n_kv_heads, at = h.first[lane];
        size_t row = (size_t)at * h.dim;
        OK(tamis_cache_read(e->w.cache, id, layer, head, 0, h.lengths[lane], h.k + row, h.v + row,
                            &test_error));
        OK(tamis_cache_read_positions(e->w.cache, id, layer, head, 0, h.lengths[lane],
                                      h.positions + at, &test_error));
        read_scores(e, id, lane, h.lengths[lane], h.scores + at);
    }
    return h;
}

void held_free(held *h) {
    free(h->lengths);
    free(h->first);
    free(h->positions);
    free(h->scores);
    free(h->k);
    free(h->v);
    *h = (held){.n_lanes = 0};
}

void held_same_positions(const held *a, const held *b) {
    assert_int_equal(a->n_lanes, b->n_lanes);
    assert_memory_equal(a->lengths, b->lengths, a->n_lanes * sizeof *a->lengths);
    assert_memory_equal(a->positions, b->positions, a->n_slots * sizeof *a->positions);
}

void held_same(const held *a, const held *b) {
    size_t bytes = (size_t)a->n_slots * a->dim * sizeof *a->k;
    held_same_positions(a, b);
    assert_memory_equal(a->scores, b->scores, a->n_slots * sizeof *a->scores);
    assert_memory_equal(a->k, b->k, bytes);
    assert_memory_equal(a->v, b->v, bytes);
}

bool held_has(const held *h, uint32_t lane, int32_t position) {
    for (uint32_t i = 0; i < h->lengths[lane]; i++)
        if (h->positions[h->first[lane] + i] == position) return true;
    return false;
}

void held_check(const held *h, uint64_t first, uint32_t length) {
    bool *seen = take(length, sizeof *seen);
    for (uint32_t lane = 0; lane < h->n_lanes; lane++) {
        memset(seen, 0, length);
        for (uint32_t i = h->first[lane]; i < h->first[lane] + h->lengths[lane]; i++) {
            int32_t p = h->positions[i];
            if (p < 0 || (uint32_t)p >= length || seen[p])
                fail_msg("lane %u, slot %u: position %d of %u", lane, i - h->first[lane], p,
                         length);
            seen[p] = true;
            for (uint32_t d = 0; d < h->dim; d++)
                if (h->k[(size_t)i * h->dim + d] != test_value(first + (uint32_t)p, lane, 0, d) ||
                    h->v[(size_t)i * h->dim + d] != test_value(first + (uint32_t)p, lane, 1, d))
                    fail_msg("lane %u, slot %u, channel %u is not of position %d", lane,
                             i - h->first[lane], d, p);
        }
    }
    free(seen);
}

void held_norms(const held *h) {
    for (uint32_t s = 0; s < h->n_slots; s++) {
        double square = 0;
        for (uint32_t d = 0; d < h->dim; d++)
            square += pow(h->k[s * h->dim + d], 2);
        assert_true(fabs(h->scores[s] + sqrt(square)) <= 2e-6 * sqrt(square));
    }
}

void held_ordered(const held *h) {
    for (uint32_t lane = 0; lane < h->n_lanes; lane++)
        for (uint32_t i = h->first[lane] + 1; i < h->first[lane] + h->lengths[lane]; i++)
            assert_true(h->positions[i] > h->positions[i - 1]);
}

/* ---- Attention over it ----------------------------------------------------------------------- */

/* Whether the slots of a lane are read: [n]. */
static void mark_read(const evict_world *e, uint32_t head, bool listed, uint32_t n, bool *read) {
    uint32_t page_size = e->w.shape.page_size, pages[256], count = 0;
    for (uint32_t i = 0; i < n; i++)
        read[i] = !listed;
    if (!listed) return;
    OK(tamis_plan_read_selected(e->w.plan, 0, head, pages, 256, &count, &test_error));
    for (uint32_t p = 0; p < count; p++)
        for (uint32_t i = pages[p] * page_size; i < n && i < (pages[p] + 1) * page_size; i++)
            read[i] = true;
}

double evict_logit(const evict_world *e, const held *h, uint32_t slot, uint64_t token,
                   uint32_t head) {
    double sum = 0;
    for (uint32_t d = 0; d < h->dim; d++)
        sum += (double)query_value(token, head, d) * (double)h->k[(size_t)slot * h->dim + d];
    return sum * (double)e->w.plan->setup.layers[head / e->w.shape.n_heads].attention.scale;
}

/* Leaves those slots that a row of the layer, whose own position is the last, does not see. */
static void unmark_hidden(const tamis_attention *a, const held *h, uint32_t lane, bool *read) {
    const uint32_t n = h->lengths[lane];
    const int32_t *positions = h->positions + h->first[lane], own = n ? positions[n - 1] : 0;
    for (uint32_t i = 0; i < n; i++)
        read[i] &= !test_hides(a, positions[i], own);
}

/* out [dim] of one query head. */
static void attend(const evict_world *e, const held *h, uint32_t lane, uint64_t token,
                   uint32_t head, const bool *read, double *out) {
    const uint32_t layer = lane / e->w.shape.n_kv_heads;
    const double cap = (double)e->w.plan->setup.layers[layer].attention.soft_cap;
    const float *v = h->v + (size_t)h->first[lane] * h->dim;
    double sum, largest = evict_sink_of(e, head), *logits = take(h->lengths[lane], sizeof *logits);
    for (uint32_t i = 0; i < h->lengths[lane]; i++) {
        logits[i] = read[i] ? evict_logit(e, h, h->first[lane] + i, token, head) : -INFINITY;
        if (cap > 0 && read[i]) logits[i] = cap * tanh(logits[i] / cap);
        if (logits[i] > largest) largest = logits[i];
    }
    memset(out, 0, h->dim * sizeof *out);
    sum = exp(evict_sink_of(e, head) - largest); /* 0 without one */
    for (uint32_t i = 0; i < h->lengths[lane]; i++) {
        double weight = exp(logits[i] - largest);
        sum += weight;
        for (uint32_t d = 0; d < h->dim; d++)
            out[d] += weight * (double)v[i * h->dim + d];
    }
    for (uint32_t d = 0; d < h->dim; d++)
        out[d] /= sum;
    free(logits);
}

void evict_dense(const evict_world *e, const held *h, uint32_t layer, uint64_t token,
                 const float *outs, bool listed) {
    const tamis_cache_params *c = &e->w.shape;
    double wanted[256];
    for (uint32_t head = 0; head < c->n_heads; head++) {
        uint32_t kv_head = head / (c->n_heads / c->n_kv_heads),
                 lane = layer * c->n_kv_heads + kv_head;
        bool *read = take(h->lengths[lane], sizeof *read);
        mark_read(e, kv_head, listed, h->lengths[lane], read);
        unmark_hidden(&e->w.plan->setup.layers[layer].attention, h, lane, read);
        attend(e, h, lane, token, layer * c->n_heads + head, read, wanted);
        free(read);
        for (uint32_t d = 0; d < h->dim; d++)
            if (!(fabs(wanted[d] - (double)outs[head * h->dim + d]) < 1e-4))
                fail_msg("layer %u, head %u, channel %u: %g, wanted %g", layer, head, d,
                         (double)outs[head * h->dim + d], wanted[d]);
    }
}

/* Bounds of the full pages of a sequence's lanes, one behind the other. */
static uint64_t read_bounds(const evict_world *e, tamis_sequence id, unsigned char *to) {
    tamis_cache *cache = e->w.cache;
    const tms_sequence *s = tms_cache_find(cache, id);
    tms_device *dev = cache->context->dev;
    uint64_t bytes = cache->size.bounds_bytes, n = 0;
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++)
        for (uint32_t o = 0; o < s->lanes[lane].length / cache->params.page_size; o++) {
            tms_ref from = tms_cache_kv(cache, lane / cache->params.n_kv_heads).bounds;
            from.offset += (uint64_t)tms_lane_pages(s, lane)[o] * bytes;
            if (to) OK(dev->backend->read(dev, from, to + n * bytes, bytes));
            n++;
        }
    return n * bytes;
}

void evict_check_bounds(evict_world *e, tamis_sequence id) {
    uint64_t bytes = read_bounds(e, id, NULL);
    unsigned char *now = take(bytes, 1), *anew = take(bytes, 1);
    tamis_bounds kind;
    tamis_cache_get_bounds(e->w.cache, &kind);
    assert_true(bytes > 0);
    (void)read_bounds(e, id, now);
    OK(tamis_cache_set_bounds(e->w.cache, &kind, &test_error));
    (void)read_bounds(e, id, anew);
    assert_memory_equal(now, anew, bytes);
    free(now);
    free(anew);
}
