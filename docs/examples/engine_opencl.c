/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of an engine that drives an OpenCL device itself: its context, its queue, its memory, its
 * kernels. tamis enqueues on that queue, between the engine's own kernels, and reads and writes the
 * engine's memory in place. Nothing waits between them: the host waits once, at the end.
 *   cc engine_opencl.c $(pkg-config --cflags --libs tamis) -lOpenCL -o engine_opencl && ./engine_opencl */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <tamis/opencl.h>
#include <tamis/tamis.h>

enum { LAYERS = 2, HEADS = 4, KV_HEADS = 2, DIM = 64, TOKENS = 160 };
/* A token's activations, in floats: q, k, v, and room for the output. */
enum { Q = 0, K = HEADS * DIM, V = K + KV_HEADS * DIM, OUT = V + KV_HEADS * DIM };
enum { ALL = OUT + HEADS * DIM };

/* The engine's own part. Its kernels stand for those ahead of a layer's attention, which make q, k and
 * v, and for those behind it. */
static const char *const kernels = "__kernel void project(__global float *rows, int seed) {\n"
                                   "    const int i = get_global_id(0);\n"
                                   "    rows[i] = (float)((seed * 31 + i * 17) % 64) / 64;\n"
                                   "}\n"
                                   "__kernel void add(__global const float *rows, int out,\n"
                                   "                  __global float *residual) {\n"
                                   "    const int i = get_global_id(0);\n"
                                   "    residual[i] += rows[out + i];\n"
                                   "}\n";
static cl_device_id device;
static cl_context cl;
static cl_command_queue queue;
static cl_program program;
static cl_kernel project, add;
static cl_mem activations, residual;

/* Its part of tamis. */
static tamis_context *context;
static tamis_buffer *rows;
static tamis_cache *cache;
static tamis_plan *plan;
static tamis_sequence text;
static tamis_error error;

#define TRY(call)                                                                                  \
    if ((call) != TAMIS_OK) return 0
#define OPENCL(call)                                                                               \
    if ((call) != CL_SUCCESS) return snprintf(error.text, sizeof error.text, "failed: %s", #call), 0

/* The first device of any platform. */
static int find_device(void) {
    cl_platform_id platforms[16];
    cl_uint n = 0, found = 0;
    OPENCL(clGetPlatformIDs(16, platforms, &n));
    for (cl_uint i = 0; i < n && i < 16; i++)
        if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 1, &device, &found) == CL_SUCCESS)
            return 1;
    return snprintf(error.text, sizeof error.text, "no OpenCL device"), 0;
}

static int start_engine(void) {
    const float zero = 0;
    const int out = OUT;
    cl_int code;
    if (!find_device()) return 0;
    OPENCL((cl = clCreateContext(NULL, 1, &device, NULL, NULL, &code), code));
    OPENCL((queue = clCreateCommandQueue(cl, device, 0, &code), code)); /* in order */
    OPENCL(
        (program = clCreateProgramWithSource(cl, 1, (const char **)&kernels, NULL, &code), code));
    OPENCL(clBuildProgram(program, 1, &device, "", NULL, NULL));
    OPENCL((project = clCreateKernel(program, "project", &code), code));
    OPENCL((add = clCreateKernel(program, "add", &code), code));
    OPENCL((activations = clCreateBuffer(cl, CL_MEM_READ_WRITE, ALL * sizeof(float), NULL, &code),
            code));
    OPENCL(
        (residual = clCreateBuffer(cl, CL_MEM_READ_WRITE, HEADS * DIM * sizeof(float), NULL, &code),
         code));
    OPENCL(clEnqueueFillBuffer(queue, residual, &zero, sizeof zero, 0, HEADS * DIM * sizeof(float),
                               0, NULL, NULL));
    OPENCL(clSetKernelArg(project, 0, sizeof activations, &activations));
    OPENCL(clSetKernelArg(add, 0, sizeof activations, &activations));
    OPENCL(clSetKernelArg(add, 1, sizeof out, &out));
    OPENCL(clSetKernelArg(add, 2, sizeof residual, &residual));
    return 1;
}

static int start_tamis(void) {
    const tamis_cache_params shape = {.n_layers = LAYERS,
                                      .n_heads = HEADS,
                                      .n_kv_heads = KV_HEADS,
                                      .head_dim = DIM,
                                      .dtype = TAMIS_F16,
                                      .capacity_tokens = TOKENS};
    tamis_plan_params params = {.max_context = TOKENS};
    tamis_selection_default(TAMIS_SELECT_QUEST, &params.selection);
    params.selection.budget = 64;
    params.selection.recent = 16;
    TRY(tamis_context_create_opencl(cl, queue, NULL, &context, &error));
    TRY(tamis_buffer_wrap_opencl(context, activations, 0, ALL * sizeof(float), &rows, &error));
    TRY(tamis_cache_create(context, &shape, &cache, &error));
    TRY(tamis_plan_create(cache, &params, &plan, &error));
    TRY(tamis_cache_add(cache, &text, &error));
    return 1;
}

static int run_layer(int token, uint32_t layer) {
    const tamis_rows q = {.buffer = rows, .offset = Q * sizeof(float)};
    const tamis_rows k = {.buffer = rows, .offset = K * sizeof(float)};
    const tamis_rows v = {.buffer = rows, .offset = V * sizeof(float)};
    const tamis_rows out = {.buffer = rows, .offset = OUT * sizeof(float)};
    const size_t made = OUT, added = HEADS * DIM;
    const cl_int seed = token + (cl_int)layer;
    OPENCL(clSetKernelArg(project, 1, sizeof seed, &seed));
    OPENCL(clEnqueueNDRangeKernel(queue, project, 1, NULL, &made, NULL, 0, NULL, NULL));
    TRY(tamis_plan_write(plan, layer, &k, &v, &error));
    TRY(tamis_plan_attend(plan, layer, &q, &out, &error));
    OPENCL(clEnqueueNDRangeKernel(queue, add, 1, NULL, &added, NULL, 0, NULL, NULL));
    return 1;
}

static int decode(int token) {
    const tamis_step step = {.sequences = &text, .count = 1};
    TRY(tamis_plan_step_begin(plan, &step, &error));
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        if (!run_layer(token, layer)) return 0;
    TRY(tamis_plan_step_end(plan, &error)); /* flushes the queue */
    return 1;
}

static int serve(void) {
    float sums[HEADS * DIM];
    uint32_t words[HEADS * DIM];
    uint64_t checksum = 0xcbf29ce484222325u; /* of all sums: FNV-1a, word by word */
    for (int token = 0; token < TOKENS; token++)
        if (!decode(token)) return 0;
    OPENCL(clEnqueueReadBuffer(queue, residual, CL_TRUE, 0, sizeof sums, sums, 0, NULL, NULL));
    memcpy(words, sums, sizeof words);
    for (int i = 0; i < HEADS * DIM; i++)
        checksum = (checksum ^ words[i]) * 0x100000001b3u;
    tamis_plan_counters c;
    tamis_plan_get_counters(plan, &c);
    printf("on %s: %d tokens, the first sum is %.2f, read %.2f of the cache, checksum %016" PRIx64 "\n",
           tamis_context_device(context)->id, TOKENS, (double)sums[0],
           (double)c.kv_bytes_read / (double)c.kv_bytes_full, checksum);
    return 1;
}

static void stop(void) {
    tamis_plan_destroy(&plan);
    tamis_cache_destroy(&cache);
    tamis_buffer_destroy(&rows); /* lets go of the engine's memory */
    tamis_context_destroy(&context);
    if (residual) clReleaseMemObject(residual);
    if (activations) clReleaseMemObject(activations);
    if (add) clReleaseKernel(add);
    if (project) clReleaseKernel(project);
    if (program) clReleaseProgram(program);
    if (queue) clReleaseCommandQueue(queue);
    if (cl) clReleaseContext(cl);
}

int main(void) {
    const int good = start_engine() && start_tamis() && serve();
    if (!good) fprintf(stderr, "engine_opencl: %s\n", error.text);
    stop();
    return !good;
}
