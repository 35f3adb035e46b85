/* SPDX-License-Identifier: Apache-2.0 */
/* What the examples of this folder share: an engine that keeps K and V itself, of sequences of unequal
 * lengths in several layers, and attends by tamis over a view of them. Each example says how one
 * engine's memory is laid out, how that is described to tamis, and how pages are listed. What tamis
 * gives is compared with attention in fp64 over the pages that it says it read. */
#ifndef LAYOUTS_H
#define LAYOUTS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/tamis.h>
#include <tamis/view.h>

enum { LAYERS = 2, HEADS = 4, KV_HEADS = 2, DIM = 64, PAGE = 16 };
enum { SEQUENCES = 3, MAX_TOKENS = 256, MAX_PAGES = MAX_TOKENS / PAGE, MAX_ROWS = 192 };
enum { K = 0, V = 1, Q = 2 };
#define BOUND 1e-5 /* the largest difference: K and V are read exactly, and summed in fp32 */

typedef uint16_t half;

/* Where a row of K or V lies: in which tensor, at which element; its channels are `step` apart. */
typedef struct row {
    uint32_t tensor;
    uint64_t at, step;
} row;

typedef struct layout {
    const char *name;
    uint32_t n_sequences, n_pages;
    uint32_t n_tensors;
    uint64_t elements; /* of each tensor */
    /* The id of a sequence's i-th page. */
    uint32_t (*page)(uint32_t sequence, uint32_t i);
    row (*place)(uint32_t layer, uint32_t page, uint32_t which, uint32_t head, uint32_t slot);
    /* To tamis: a layer, of which dtype, page_size, head_dim and n_pages are set; tensors are places. */
    void (*describe)(const tamis_place *tensors, uint32_t layer, tamis_kv *kv,
                     tamis_kv_values *values);
    /* To tamis: which pages the sequences have. */
    void (*list)(tamis_view_step *step);
} layout;

/* The engine. */
static const layout *engine;
static half *memory[2 * LAYERS];
static uint32_t lengths[SEQUENCES], new_rows[SEQUENCES];
static float q_rows[MAX_ROWS][HEADS][DIM], outputs[MAX_ROWS][HEADS][DIM];
static double largest; /* difference */

/* Its part of tamis. */
static tamis_context *context;
static tamis_buffer *tensors[2 * LAYERS], *q_buffer, *out_buffer;
static tamis_cache *view;
static tamis_plan *plan;
static tamis_error error;
static int in_place; /* tamis reads the engine's memory itself, not a copy */

#define TRY(call)                                                                                  \
    if ((call) != TAMIS_OK) return 0
#define FAIL(...)                                                                                  \
    return error.status = TAMIS_OK, snprintf(error.text, sizeof error.text, __VA_ARGS__), 0

/* ---- Data -------------------------------------------------------------------------------------- */

/* An element of K, V or q: n/64 with |n| < 128, which f16 holds exactly. */
static inline float number(uint32_t layer, uint32_t what, uint32_t sequence, uint32_t position,
                           uint32_t head, uint32_t channel) {
    uint32_t x = ((layer * 3 + what) * SEQUENCES + sequence) * MAX_TOKENS + position;
    x = (x * HEADS + head) * DIM + channel;
    x = (x ^ x >> 16) * 0x45d9f3bu;
    x = (x ^ x >> 16) * 0x45d9f3bu;
    return (float)((int)((x ^ x >> 16) % 255) - 127) / 64;
}

static inline half to_half(float x) {
    int exponent;
    const float fraction = frexpf(fabsf(x), &exponent); /* 0 or from 1/2 to below 1 */
    const int bits = x == 0 ? 0 : (exponent + 14) << 10 | ((int)(fraction * 2048) - 1024);
    return (half)(bits | (x < 0) << 15);
}

/* Writes K and V of a layer for the tokens of a sequence from `first` to below `end`. */
static inline void write_tokens(uint32_t layer, uint32_t sequence, uint32_t first, uint32_t end) {
    for (uint32_t p = first; p < end; p++)
        for (uint32_t which = K; which <= V; which++)
            for (uint32_t head = 0; head < KV_HEADS; head++) {
                const uint32_t page = engine->page(sequence, p / PAGE);
                const row to = engine->place(layer, page, which, head, p % PAGE);
                for (uint32_t c = 0; c < DIM; c++)
                    memory[to.tensor][to.at + c * to.step] =
                        to_half(number(layer, which, sequence, p, head, c));
            }
}

/* ---- Attention in fp64 ------------------------------------------------------------------------- */

static inline double logit(uint32_t layer, uint32_t sequence, uint32_t token, const float *q,
                           uint32_t head) {
    double sum = 0;
    for (uint32_t c = 0; c < DIM; c++)
        sum += (double)q[c] * (double)number(layer, K, sequence, token, head, c);
    return sum / sqrt(DIM);
}

/* Over the first `visible` tokens, as far as they are in the pages. */
static inline void attend_exactly(uint32_t layer, uint32_t sequence, uint32_t visible,
                                  const float *q, uint32_t head, const uint32_t *pages,
                                  uint32_t n_pages, double *out) {
    double sum = 0;
    memset(out, 0, DIM * sizeof *out);
    for (uint32_t i = 0; i < n_pages; i++)
        for (uint32_t t = pages[i] * PAGE; t < (pages[i] + 1) * PAGE && t < visible; t++) {
            const double weight = exp(logit(layer, sequence, t, q, head));
            sum += weight;
            for (uint32_t c = 0; c < DIM; c++)
                out[c] += weight * (double)number(layer, V, sequence, t, head, c);
        }
    for (uint32_t c = 0; c < DIM; c++)
        out[c] /= sum;
}

static inline int compare_row(uint32_t layer, uint32_t r, uint32_t sequence, uint32_t position) {
    for (uint32_t head = 0; head < HEADS; head++) {
        const uint32_t kv_head = head / (HEADS / KV_HEADS);
        uint32_t pages[MAX_PAGES], n;
        double wanted[DIM];
        TRY(tamis_plan_read_selected(plan, r, kv_head, pages, MAX_PAGES, &n, &error));
        attend_exactly(layer, sequence, position + 1, q_rows[r][head], kv_head, pages, n, wanted);
        for (uint32_t c = 0; c < DIM; c++) {
            const double difference = fabs((double)outputs[r][head][c] - wanted[c]);
            if (!(difference <= largest)) largest = difference; /* NaN, too */
        }
    }
    return 1;
}

/* ---- Steps ------------------------------------------------------------------------------------- */

/* The page lists of a paged engine: pages are taken in an order of no kind. */
static inline uint32_t scattered_page(uint32_t sequence, uint32_t i) {
    return (sequence * MAX_PAGES + i) * 37 % (SEQUENCES * MAX_PAGES);
}

/* Rows that lie in the order of their tokens, of one sequence. */
static inline uint32_t consecutive_page(uint32_t sequence, uint32_t i) {
    (void)sequence;
    return i;
}

/* Pages as a dense table with lengths. */
static inline void list_table(tamis_view_step *step) {
    static int32_t table[SEQUENCES][MAX_PAGES];
    for (uint32_t s = 0; s < engine->n_sequences; s++)
        for (uint32_t i = 0; i < MAX_PAGES; i++)
            table[s][i] = (int32_t)engine->page(s, i);
    step->table = &table[0][0];
    step->table_stride = MAX_PAGES;
    step->lengths = lengths;
}

static inline int run_layer(uint32_t layer) {
    const tamis_rows q = {.buffer = q_buffer}, out = {.buffer = out_buffer};
    uint32_t r = 0;
    /* Nothing in flight reads what the engine is about to write. */
    TRY(tamis_context_wait(context, &error));
    for (uint32_t s = 0; s < engine->n_sequences; s++) {
        write_tokens(layer, s, lengths[s] - new_rows[s], lengths[s]);
        for (uint32_t p = lengths[s] - new_rows[s]; p < lengths[s]; p++, r++)
            for (uint32_t i = 0; i < HEADS * DIM; i++)
                q_rows[r][i / DIM][i % DIM] = number(layer, Q, s, p, i / DIM, i % DIM);
    }
    for (uint32_t i = 0; i < engine->n_tensors && !in_place; i++)
        TRY(tamis_buffer_write(tensors[i], 0, memory[i], engine->elements * sizeof(half), &error));
    TRY(tamis_buffer_write(q_buffer, 0, q_rows, r * sizeof q_rows[0], &error));
    TRY(tamis_plan_attend(plan, layer, &q, &out, &error));
    TRY(tamis_buffer_read(out_buffer, 0, outputs, r * sizeof outputs[0], &error));
    r = 0;
    for (uint32_t s = 0; s < engine->n_sequences; s++)
        for (uint32_t p = lengths[s] - new_rows[s]; p < lengths[s]; p++)
            if (!compare_row(layer, r++, s, p)) return 0;
    return 1;
}

static inline int run_step(int exact) {
    tamis_view_step step = {.count = engine->n_sequences, .exact = exact, .rows = new_rows};
    for (uint32_t s = 0; s < engine->n_sequences; s++)
        lengths[s] += new_rows[s];
    engine->list(&step);
    TRY(tamis_plan_view_begin(plan, &step, &error));
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        if (!run_layer(layer)) return 0;
    TRY(tamis_plan_step_end(plan, &error));
    return 1;
}

/* The first two pages of each sequence are there before tamis sees it, as of a prefix that the engine
 * has cached; the rest of its prompt is read in an exact step, and then tokens are decoded. */
static inline int live(void) {
    static const uint32_t prompts[SEQUENCES] = {141, 37, 90};
    for (uint32_t s = 0; s < engine->n_sequences; s++) {
        const int32_t loaded[] = {(int32_t)engine->page(s, 0), (int32_t)engine->page(s, 1)};
        lengths[s] = 2 * PAGE;
        new_rows[s] = prompts[s] - lengths[s];
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            write_tokens(layer, s, 0, lengths[s]);
        for (uint32_t i = 0; i < engine->n_tensors && !in_place; i++)
            TRY(tamis_buffer_write(tensors[i], 0, memory[i], engine->elements * sizeof(half),
                                   &error));
        TRY(tamis_view_bound_pages(view, loaded, 2, &error));
    }
    if (!run_step(1)) return 0;
    for (uint32_t s = 0; s < engine->n_sequences; s++)
        new_rows[s] = 1;
    for (int i = 0; i < 20; i++)
        if (!run_step(0)) return 0;
    return 1;
}

/* ---- tamis ------------------------------------------------------------------------------------- */

/* The engine's memory as a buffer of tamis: itself, or where the device does not take it, a copy. */
static inline int share(uint32_t i) {
    const uint64_t bytes = engine->elements * sizeof(half);
    const tamis_status status =
        tamis_buffer_wrap_host(context, memory[i], bytes, &tensors[i], &error);
    in_place = status == TAMIS_OK;
    if (in_place && tamis_buffer_data(tensors[i]) != memory[i])
        FAIL("tamis does not read the engine's memory in place");
    if (status == TAMIS_E_UNSUPPORTED)
        TRY(tamis_buffer_create(context, bytes, &tensors[i], &error));
    return tensors[i] != NULL;
}

static inline int open_view(void) {
    const uint64_t bytes = engine->elements * sizeof(half);
    tamis_place places[2 * LAYERS] = {{0}};
    tamis_kv layers[LAYERS];
    tamis_kv_values values[LAYERS];
    TRY(tamis_context_create(NULL, &context, &error)); /* TAMIS_DEVICE, else CUDA or OpenCL */
    TRY(tamis_buffer_create(context, sizeof q_rows, &q_buffer, &error));
    TRY(tamis_buffer_create(context, sizeof outputs, &out_buffer, &error));
    for (uint32_t i = 0; i < engine->n_tensors; i++) {
        memory[i] = aligned_alloc(64, bytes);
        if (!memory[i]) FAIL("no memory");
        memset(memory[i], 0xff, bytes); /* NaN: what was not written must not be read */
        if (!share(i)) return 0;
        places[i].buffer = tensors[i];
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        memset(&values[layer], 0, sizeof values[layer]);
        layers[layer] = (tamis_kv){
            .dtype = TAMIS_F16, .page_size = PAGE, .head_dim = DIM, .n_pages = engine->n_pages};
        engine->describe(places, layer, &layers[layer], &values[layer]);
    }
    const tamis_view_params params = {
        .n_layers = LAYERS, .n_heads = HEADS, .n_kv_heads = KV_HEADS, .layers = layers};
    TRY(tamis_view_create(context, &params, &view, &error));
    return 1;
}

static inline int serve_under(tamis_selection_kind kind) {
    tamis_plan_params params = {
        .max_sequences = engine->n_sequences, .max_rows = MAX_ROWS, .max_context = MAX_TOKENS};
    tamis_plan_counters c;
    tamis_selection_default(kind, &params.selection);
    if (kind == TAMIS_SELECT_QUEST) {
        params.selection.budget = 4 * PAGE;
        params.selection.sinks = params.selection.recent = PAGE;
    }
    if (!open_view()) return 0;
    TRY(tamis_plan_create(view, &params, &plan, &error));
    if (!live()) return 0;
    tamis_plan_get_counters(plan, &c);
    if (kind == TAMIS_SELECT_QUEST && c.kv_bytes_read >= c.kv_bytes_full)
        FAIL("quest has read all pages");
    if (!(largest <= BOUND)) FAIL("the largest difference is %.2g, above %.2g", largest, BOUND);
    return 1;
}

static inline void stop(void) {
    tamis_plan_destroy(&plan);
    tamis_cache_destroy(&view);
    for (uint32_t i = 0; i < 2 * LAYERS; i++) {
        tamis_buffer_destroy(&tensors[i]); /* lets go of the engine's memory */
        free(memory[i]);
        memory[i] = NULL;
    }
    tamis_buffer_destroy(&q_buffer);
    tamis_buffer_destroy(&out_buffer);
    tamis_context_destroy(&context);
}

/* Runs an engine with this layout under full, then under quest. Returns whether all went well. */
static inline int serve(const layout *l) {
    static const tamis_selection_kind kinds[] = {TAMIS_SELECT_FULL, TAMIS_SELECT_QUEST};
    int good = 1;
    engine = l;
    largest = 0;
    for (int i = 0; i < 2 && good; i++) {
        good = serve_under(kinds[i]);
        if (good && i == 1)
            printf("%s: on %s, K and V %s, largest difference %.2g\n", l->name,
                   tamis_context_device(context)->id, in_place ? "in place" : "copied", largest);
        stop();
    }
    if (!good && error.status != TAMIS_OK)
        fprintf(stderr, "%s: %s: %s\n", l->name, tamis_status_name(error.status), error.text);
    else if (!good)
        fprintf(stderr, "%s: %s\n", l->name, error.text);
    return good;
}

#endif
