/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of an engine that drives a CUDA GPU itself: its context, its stream, its memory. tamis
 * enqueues on that stream, between the engine's own kernels, and reads and writes the engine's memory
 * in place. A token's step is recorded once and then replayed as a CUDA graph.
 *   cc engine_cuda.c $(pkg-config --cflags --libs tamis) -lcuda -o engine_cuda && ./engine_cuda */
#include <stdio.h>
#include <tamis/cuda.h>
#include <tamis/tamis.h>

/* What this example needs of the driver. An engine includes cuda.h in its place. */
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef unsigned long long CUdeviceptr;
int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuDevicePrimaryCtxRetain(CUcontext *context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxPushCurrent_v2(CUcontext context);
int cuStreamCreate(CUstream *stream, unsigned flags);
int cuStreamSynchronize(CUstream stream);
int cuStreamDestroy_v2(CUstream stream);
int cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
int cuMemFree_v2(CUdeviceptr address);
int cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
int cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream);

enum { LAYERS = 2, HEADS = 4, KV_HEADS = 2, DIM = 64, TOKENS = 160 };
/* A token's activations, in floats: q, k, v, and room for the output. */
enum { Q = 0, K = HEADS * DIM, V = K + KV_HEADS * DIM, OUT = V + KV_HEADS * DIM };
enum { ALL = OUT + HEADS * DIM };

/* The engine's own part. */
static int device;
static CUcontext cuda;
static CUstream stream;
static CUdeviceptr activations;

/* Its part of tamis. */
static tamis_context *context;
static tamis_buffer *rows;
static tamis_cache *cache;
static tamis_plan *plan;
static tamis_graph *graph;
static tamis_sequence text;
static tamis_error error;

#define TRY(call)                                                                                  \
    if ((call) != TAMIS_OK) return 0
#define CUDA(call)                                                                                 \
    if ((call) != 0) return snprintf(error.text, sizeof error.text, "failed: %s", #call), 0

static int start_engine(void) {
    CUDA(cuInit(0));
    CUDA(cuDeviceGet(&device, 0));
    CUDA(cuDevicePrimaryCtxRetain(&cuda, device));
    CUDA(cuCtxPushCurrent_v2(cuda));
    CUDA(cuStreamCreate(&stream, 1)); /* CU_STREAM_NON_BLOCKING */
    CUDA(cuMemAlloc_v2(&activations, ALL * sizeof(float)));
    return 1;
}

static int start_tamis(void) {
    const tamis_cache_params shape = {.n_layers = LAYERS,
                                      .n_heads = HEADS,
                                      .n_kv_heads = KV_HEADS,
                                      .head_dim = DIM,
                                      .dtype = TAMIS_F16,
                                      .capacity_tokens = TOKENS};
    /* fixed_launches: what a step launches does not depend on the text's length. */
    tamis_plan_params params = {.max_context = TOKENS, .flags = TAMIS_PLAN_FIXED_LAUNCHES};
    tamis_selection_default(TAMIS_SELECT_QUEST, &params.selection);
    params.selection.budget = 64;
    params.selection.recent = 16;
    TRY(tamis_context_create_cuda(cuda, stream, NULL, &context, &error));
    TRY(tamis_buffer_wrap_cuda(context, activations, ALL * sizeof(float), &rows, &error));
    TRY(tamis_cache_create(context, &shape, &cache, &error));
    TRY(tamis_plan_create(cache, &params, &plan, &error));
    TRY(tamis_cache_add(cache, &text, &error));
    return 1;
}

/* Stands for the engine's kernels ahead of the layers: a token's q, k and v on the stream. */
static int embed(int token) {
    static float host[ALL];
    for (int i = 0; i < OUT; i++)
        host[i] = (float)((token * 31 + i * 17) % 64) / 64;
    CUDA(cuMemcpyHtoDAsync_v2(activations, host, OUT * sizeof *host, stream));
    CUDA(cuStreamSynchronize(stream)); /* host[] is about to be written again */
    return 1;
}

/* The layers of the open step. An engine's projections would stand between these calls, on the same
 * stream, and be recorded with them. */
static int run_layers(void) {
    const tamis_rows q = {.buffer = rows, .offset = Q * sizeof(float)};
    const tamis_rows k = {.buffer = rows, .offset = K * sizeof(float)};
    const tamis_rows v = {.buffer = rows, .offset = V * sizeof(float)};
    const tamis_rows out = {.buffer = rows, .offset = OUT * sizeof(float)};
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        TRY(tamis_plan_write(plan, layer, &k, &v, &error));
        TRY(tamis_plan_attend(plan, layer, &q, &out, &error));
    }
    return 1;
}

/* The first token's layers are called and recorded; every token's are launched. */
static int decode(int token) {
    const tamis_step step = {.sequences = &text, .count = 1};
    if (!embed(token)) return 0;
    TRY(tamis_plan_step_begin(plan, &step, &error)); /* the step's tables, ahead of the graph */
    if (!graph) {
        TRY(tamis_graph_begin(context, &error));
        if (!run_layers()) return 0;
        TRY(tamis_graph_end(context, &graph, &error));
    } else {
        TRY(tamis_plan_step_mark_replayed(plan, &error));
    }
    TRY(tamis_graph_launch(graph, &error));
    TRY(tamis_plan_step_end(plan, &error));
    return 1;
}

static int serve(void) {
    float out[HEADS * DIM];
    for (int token = 0; token < TOKENS; token++)
        if (!decode(token)) return 0;
    CUDA(cuMemcpyDtoHAsync_v2(out, activations + OUT * sizeof(float), sizeof out, stream));
    CUDA(cuStreamSynchronize(stream));
    tamis_plan_counters c;
    tamis_plan_get_counters(plan, &c);
    printf("on %s: %d tokens, the first output is %.3f, read %.2f of the cache\n",
           tamis_context_device(context)->id, TOKENS, (double)out[0],
           (double)c.kv_bytes_read / (double)c.kv_bytes_full);
    return 1;
}

static void stop(void) {
    tamis_graph_destroy(&graph);
    tamis_plan_destroy(&plan);
    tamis_cache_destroy(&cache);
    tamis_buffer_destroy(&rows); /* lets go of the engine's memory */
    tamis_context_destroy(&context);
    if (activations) cuMemFree_v2(activations);
    if (stream) cuStreamDestroy_v2(stream);
    if (cuda) cuDevicePrimaryCtxRelease_v2(device);
}

int main(void) {
    const int good = start_engine() && start_tamis() && serve();
    if (!good) fprintf(stderr, "engine_cuda: %s\n", error.text);
    stop();
    return !good;
}
