/* SPDX-License-Identifier: Apache-2.0 */
/* Times decode attention of ggml's CPU backend: one FLASH_ATTN_EXT per layer, as llama.cpp calls it
 * for one new token, over a cache that is full. tools/compare_ggml.sh builds and runs it.
 *
 * As in llama.cpp: queries and outputs are f32, the mask is f16 and passed although all of it is
 * zero, all layers share it, the scale is 1/sqrt(head dim), accumulators are asked to be f32, and
 * the threads of a pool outlive the graphs. Layers take turns, enough of them that one pass reads
 * 1 GiB, but not more than the model has: the rule of `tamis bench attention`.
 *
 * Before anything is timed, the output of a layer with a small context is compared with attention
 * in fp64 over the values from before they were converted to the type of the cache.
 *
 * Exit status: 0; 1 an output is wrong, or memory is missing; 2 wrong usage. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PASS_BYTES    ((size_t)1 << 30)
#define CHECK_CONTEXT 1000 /* above 512, where ggml begins to divide a context among threads */
#define MOST_LAYERS   128

typedef struct {
    const char *name;
    uint32_t heads, kv_heads, head_dim, layers;
} model_shape;

static const model_shape shapes[] = {{"llama2-7b", 32, 32, 128, 32}, {"llama3-8b", 32, 8, 128, 32}};

/* tolerance: of the distance from fp64, as a share of the norm of the right output. */
typedef struct {
    const char *name;
    enum ggml_type k, v;
    double tolerance;
} cache_type;

/* q4_1: 4 bits with a minimum and a scale for 32 channels. */
static const cache_type types[] = {{"f16", GGML_TYPE_F16, GGML_TYPE_F16, 1e-2},
                                   {"q8_0", GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 3e-2},
                                   {"q8_0/q4_1", GGML_TYPE_Q8_0, GGML_TYPE_Q4_1, 1.5e-1},
                                   {"q4_1", GGML_TYPE_Q4_1, GGML_TYPE_Q4_1, 2e-1}};

/* How the rows of K, and likewise of V, follow one another in memory. */
typedef enum { TOKENS, HEADS, LAYOUTS } layout;

static const char *const layout_names[LAYOUTS] = {"tokens", "heads"};

typedef struct {
    const model_shape *shape;
    const cache_type *type;
    uint32_t context, threads, layers, samples;
} settings;

typedef struct {
    struct ggml_tensor *q, *k, *v, *out[LAYOUTS];
    struct ggml_cgraph *graph[LAYOUTS];
} layer;

typedef struct {
    struct ggml_context *tensors;
    ggml_backend_buffer_t memory;
    uint32_t context, count;
    layer layers[MOST_LAYERS];
} model;

static void fail(int status, const char *what) {
    fprintf(stderr, "compare_ggml/attention: %s\n", what);
    exit(status);
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (memory == NULL) fail(1, "out of memory");
    return memory;
}

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count) {
    qsort(values, count, sizeof(*values), compare);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* ---- The model ------------------------------------------------------------------------------- */

/* The graph of a layer whose cache is read in this layout. The memory is the same for both. */
static void add_graph(model *m, const model_shape *s, struct ggml_tensor *mask, layer *l,
                      layout order) {
    struct ggml_context *t = m->tensors;
    struct ggml_tensor *k, *v, *q = ggml_permute(t, l->q, 0, 2, 1, 3);
    if (order == TOKENS) {
        k = ggml_permute(t, l->k, 0, 2, 1, 3);
        v = ggml_permute(t, l->v, 0, 2, 1, 3);
    } else {
        k = ggml_reshape_3d(t, l->k, s->head_dim, m->context, s->kv_heads);
        v = ggml_reshape_3d(t, l->v, s->head_dim, m->context, s->kv_heads);
    }
    l->out[order] =
        ggml_flash_attn_ext(t, q, k, v, mask, 1 / sqrtf((float)s->head_dim), 0.0f, 0.0f);
    ggml_prec_set_acc(l->out[order], GGML_PREC_F32);
    l->graph[order] = ggml_new_graph_custom(t, 16, false);
    ggml_build_forward_expand(l->graph[order], l->out[order]);
}

static void model_create(model *m, const settings *of, uint32_t context, uint32_t count,
                         ggml_backend_t backend) {
    const model_shape *s = of->shape;
    struct ggml_tensor *mask;
    struct ggml_init_params room = {.no_alloc = true};
    room.mem_size = (1 + (size_t)count * 16) * ggml_tensor_overhead() +
                    (size_t)count * LAYOUTS * ggml_graph_overhead_custom(16, false);
    memset(m, 0, sizeof(*m));
    m->context = context;
    m->count = count;
    m->tensors = ggml_init(room);
    if (m->tensors == NULL) fail(1, "out of memory");
    mask = ggml_new_tensor_2d(m->tensors, GGML_TYPE_F16, context, 1);
    for (uint32_t i = 0; i < count; i++) {
        layer *l = &m->layers[i];
        l->q = ggml_new_tensor_3d(m->tensors, GGML_TYPE_F32, s->head_dim, s->heads, 1);
        l->k = ggml_new_tensor_3d(m->tensors, of->type->k, s->head_dim, s->kv_heads, context);
        l->v = ggml_new_tensor_3d(m->tensors, of->type->v, s->head_dim, s->kv_heads, context);
        for (layout order = 0; order < LAYOUTS; order++)
            add_graph(m, s, mask, l, order);
    }
    m->memory = ggml_backend_alloc_ctx_tensors(m->tensors, backend);
    if (m->memory == NULL) fail(1, "no memory for the cache");
    memset(mask->data, 0, ggml_nbytes(mask));
}

static void model_destroy(model *m) {
    ggml_backend_buffer_free(m->memory);
    ggml_free(m->tensors);
}

/* Uniform with a variance of 1. */
static void draw(uint64_t *state, float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        values[i] = ((float)(*state >> 40) / (float)(1 << 24) - 0.5f) * sqrtf(12);
    }
}

/* Random values; kept: where they are also put as they were drawn, or NULL. */
static void fill(struct ggml_tensor *tensor, uint64_t seed, float *kept) {
    size_t cols = (size_t)tensor->ne[0], rows = (size_t)ggml_nrows(tensor);
    size_t row_bytes = ggml_row_size(tensor->type, tensor->ne[0]), step = 1024;
    float *values = allocate(step * cols, sizeof(*values));
    for (size_t row = 0; row < rows; row += step) {
        size_t count = rows - row < step ? rows - row : step;
        char *to = (char *)tensor->data + row * row_bytes;
        draw(&seed, values, count * cols);
        if (tensor->type == GGML_TYPE_F32)
            memcpy(to, values, count * row_bytes);
        else
            ggml_quantize_chunk(tensor->type, values, to, 0, (int64_t)count, (int64_t)cols, NULL);
        if (kept != NULL) memcpy(kept + row * cols, values, count * cols * sizeof(*values));
    }
    free(values);
}

static void compute(ggml_backend_t backend, struct ggml_cgraph *graph) {
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS)
        fail(1, "ggml did not compute the graph");
}

/* ---- The check ------------------------------------------------------------------------------- */

/* Attention of one query head in fp64; k, v: the head's first rows, stride: floats from a token's
 * row to the next one's. */
static void attend(const float *q, const float *k, const float *v, size_t stride, uint32_t context,
                   uint32_t head_dim, double *out) {
    double *weights = allocate(context, sizeof(*weights)), highest = -INFINITY, sum = 0;
    for (uint32_t t = 0; t < context; t++) {
        for (uint32_t d = 0; d < head_dim; d++)
            weights[t] += (double)q[d] * k[t * stride + d];
        weights[t] /= sqrt(head_dim);
        if (weights[t] > highest) highest = weights[t];
    }
    memset(out, 0, head_dim * sizeof(*out));
    for (uint32_t t = 0; t < context; t++) {
        double weight = exp(weights[t] - highest);
        sum += weight;
        for (uint32_t d = 0; d < head_dim; d++)
            out[d] += weight * v[t * stride + d];
    }
    for (uint32_t d = 0; d < head_dim; d++)
        out[d] /= sum;
    free(weights);
}

/* How far ggml's output of a small layer is from fp64, as a share of the output's norm. */
static double deviation(const settings *of, const model *m, const float *q, const float *k,
                        const float *v, layout order) {
    const model_shape *s = of->shape;
    const float *out = m->layers[0].out[order]->data;
    double *right = allocate(s->head_dim, sizeof(*right)), norm = 0, distance = 0;
    size_t stride = order == TOKENS ? (size_t)s->kv_heads * s->head_dim : s->head_dim;
    for (uint32_t head = 0; head < s->heads; head++) {
        size_t kv_head = head / (s->heads / s->kv_heads);
        size_t first = kv_head * s->head_dim * (order == TOKENS ? 1 : m->context);
        attend(q + head * s->head_dim, k + first, v + first, stride, m->context, s->head_dim,
               right);
        for (uint32_t d = 0; d < s->head_dim; d++) {
            double difference = out[head * s->head_dim + d] - right[d];
            norm += right[d] * right[d];
            distance += difference * difference;
        }
    }
    free(right);
    return sqrt(distance / norm);
}

static void check(const settings *of, ggml_backend_t backend, double deviations[LAYOUTS]) {
    static model small;
    layer *l = &small.layers[0];
    struct ggml_tensor *tensors[3];
    float *values[3];
    model_create(&small, of, CHECK_CONTEXT, 1, backend);
    tensors[0] = l->q, tensors[1] = l->k, tensors[2] = l->v;
    for (uint32_t i = 0; i < 3; i++) {
        values[i] = allocate((size_t)ggml_nelements(tensors[i]), sizeof(float));
        fill(tensors[i], i, values[i]);
    }
    for (layout order = 0; order < LAYOUTS; order++) {
        compute(backend, l->graph[order]);
        deviations[order] = deviation(of, &small, values[0], values[1], values[2], order);
        if (!(deviations[order] <= of->type->tolerance)) {
            fprintf(stderr,
                    "compare_ggml/attention: %s, %s, layout %s: the output is %.2g of its norm "
                    "away from fp64, more than %g\n",
                    of->shape->name, of->type->name, layout_names[order], deviations[order],
                    of->type->tolerance);
            exit(1);
        }
    }
    for (uint32_t i = 0; i < 3; i++)
        free(values[i]);
    model_destroy(&small);
}

/* ---- The measurement ------------------------------------------------------------------------- */

/* Microseconds of a layer: all layers in turn, divided by their number. */
static double pass(ggml_backend_t backend, const model *m, layout order) {
    double start = now_us();
    for (uint32_t i = 0; i < m->count; i++)
        compute(backend, m->layers[i].graph[order]);
    return (now_us() - start) / m->count;
}

static void measure(const settings *of, ggml_backend_t backend, const double deviations[LAYOUTS]) {
    static model full;
    const model_shape *s = of->shape;
    double *samples[LAYOUTS];
    size_t layer_bytes = (size_t)of->context * s->kv_heads *
                         (ggml_row_size(of->type->k, (int64_t)s->head_dim) +
                          ggml_row_size(of->type->v, (int64_t)s->head_dim));
    size_t layers = (PASS_BYTES + layer_bytes - 1) / layer_bytes;
    if (layers > s->layers) layers = s->layers;
    if (of->layers > 0) layers = of->layers;
    model_create(&full, of, of->context, (uint32_t)layers, backend);
    for (uint32_t i = 0; i < full.count; i++) {
        fill(full.layers[i].q, 3 * i + 3, NULL);
        fill(full.layers[i].k, 3 * i + 4, NULL);
        fill(full.layers[i].v, 3 * i + 5, NULL);
    }
    for (layout order = 0; order < LAYOUTS; order++) {
        samples[order] = allocate(of->samples, sizeof(double));
        pass(backend, &full, order); /* not counted */
    }
    for (uint32_t i = 0; i < of->samples; i++)
        for (layout order = 0; order < LAYOUTS; order++)
            samples[order][i] = pass(backend, &full, order);
    for (layout order = 0; order < LAYOUTS; order++) {
        double us = median(samples[order], of->samples);
        printf("%-9s  %-9s  %-6s  %7u  %7u  %6u  %9.1f  %6.2f  %9.2g\n", s->name, of->type->name,
               layout_names[order], of->context, of->threads, full.count, us,
               (double)layer_bytes / us / 1e3, deviations[order]);
        free(samples[order]);
    }
    model_destroy(&full);
}

/* ---- The command line ------------------------------------------------------------------------ */

static void usage(FILE *to) {
    fputs("usage: attention --shape NAME --dtype TYPE [OPTIONS]\n"
          "\n"
          "Times one layer of decode attention of ggml's CPU backend, and prints a line for each\n"
          "layout of the cache: tokens, where the KV heads of a token lie side by side, as\n"
          "llama.cpp keeps its cache; heads, where the tokens of a KV head do. us is the median\n"
          "over samples, gb_per_s are the bytes of K and V in this time, deviation is the\n"
          "distance from fp64 as a share of the output's norm, in a context of 1000 tokens.\n"
          "\n"
          "options:\n"
          "  --shape NAME   llama2-7b, llama3-8b\n"
          "  --dtype TYPE   element type of the cache: f16, q8_0, q8_0/q4_1 (of K, of V), q4_1\n"
          "  --context N    tokens in the cache (default 32768)\n"
          "  --threads N    (default 2)\n"
          "  --layers N     layers in turn (default: enough that one pass reads 1 GiB)\n"
          "  --samples N    (default 9)\n"
          "  --help         this text\n",
          to);
}

static void refuse(const char *flag, const char *value, const char *must) {
    fprintf(stderr, "compare_ggml/attention: %s%s%s: %s\n", flag, *value != '\0' ? " " : "", value,
            must);
    exit(2);
}

static uint32_t number(const char *flag, const char *value, uint32_t most) {
    size_t digits = strspn(value, "0123456789");
    unsigned long result = digits > 0 && digits < 10 ? strtoul(value, NULL, 10) : 0;
    char must[64];
    if (value[digits] == '\0' && result >= 1 && result <= most) return (uint32_t)result;
    snprintf(must, sizeof(must), "must be a whole number from 1 to %u", most);
    refuse(flag, value, must);
    return 0;
}

static void read_flag(settings *to, const char *flag, const char *value) {
    if (strcmp(flag, "--shape") == 0) {
        for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
            if (strcmp(value, shapes[i].name) == 0) to->shape = &shapes[i];
        if (to->shape == NULL || strcmp(value, to->shape->name) != 0)
            refuse(flag, value, "must be one of llama2-7b, llama3-8b");
    } else if (strcmp(flag, "--dtype") == 0) {
        for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
            if (strcmp(value, types[i].name) == 0) to->type = &types[i];
        if (to->type == NULL || strcmp(value, to->type->name) != 0)
            refuse(flag, value, "must be one of f16, q8_0, q8_0/q4_1, q4_1");
    } else if (strcmp(flag, "--context") == 0) {
        to->context = number(flag, value, 1 << 20);
    } else if (strcmp(flag, "--threads") == 0) {
        to->threads = number(flag, value, GGML_MAX_N_THREADS);
    } else if (strcmp(flag, "--layers") == 0) {
        to->layers = number(flag, value, MOST_LAYERS);
    } else if (strcmp(flag, "--samples") == 0) {
        to->samples = number(flag, value, 10000);
    } else {
        fprintf(stderr, "compare_ggml/attention: %s: no such option (see --help)\n", flag);
        exit(2);
    }
}

int main(int argc, char **argv) {
    settings of = {.context = 32768, .threads = 2, .samples = 9};
    struct ggml_threadpool_params params;
    struct ggml_threadpool *pool;
    ggml_backend_t backend;
    double deviations[LAYOUTS];
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0) {
            usage(stdout);
            return 0;
        }
        if (i + 1 == argc) refuse(argv[i], "", "takes a value (see --help)");
        read_flag(&of, argv[i], argv[i + 1]);
    }
    if (of.shape == NULL || of.type == NULL) fail(2, "takes --shape and --dtype (see --help)");
    backend = ggml_backend_cpu_init();
    params = ggml_threadpool_params_default((int)of.threads);
    pool = ggml_threadpool_new(&params);
    if (backend == NULL || pool == NULL) fail(1, "ggml's CPU backend did not start");
    ggml_backend_cpu_set_n_threads(backend, (int)of.threads);
    ggml_backend_cpu_set_threadpool(backend, pool);
    check(&of, backend, deviations);
    puts("shape      dtype      layout  context  threads  layers         us  gb_per_s  deviation");
    measure(&of, backend, deviations);
    ggml_backend_free(backend);
    ggml_threadpool_free(pool);
    return 0;
}
