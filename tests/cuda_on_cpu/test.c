/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver on the CPU does what a driver does, and finds each planted bug. */
#include "test_args.h"

#include "host/cuda/driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define DECLARE(name, parameters) tms_cu_result name parameters;
TMS_CU_CALLS(DECLARE)
TMS_CUBLAS_CALLS(DECLARE)

#define OK(call) assert_int_equal(call, TMS_CU_SUCCESS)

static tms_cu_context context;
static tms_cu_stream stream;
static tms_cu_module right, wrong;

static int begin(void **state) {
    (void)state;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxPushCurrent_v2(context));
    OK(cuStreamCreate(&stream, TMS_CU_STREAM_NON_BLOCKING));
    OK(cuModuleLoadData(&right, "cuda_on_cpu right " TEST_KERNELS "\n"));
    OK(cuModuleLoadData(&wrong, "cuda_on_cpu wrong " TEST_KERNELS "\n"));
    return 0;
}

/* Releasing the context also makes a dead one whole again. */
static int end(void **state) {
    (void)state;
    OK(cuCtxPopCurrent_v2(NULL));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    return 0;
}

static tms_cu_address take(size_t bytes) {
    tms_cu_address at = 0;
    OK(cuMemAllocAsync(&at, bytes, stream));
    return at;
}

static tms_cu_address upload(const void *from, size_t bytes) {
    tms_cu_address at = take(bytes);
    OK(cuMemcpyHtoDAsync_v2(at, from, bytes, stream));
    return at;
}

static void launch(tms_cu_module module, const char *name, unsigned blocks, unsigned threads,
                   unsigned shared, test_args args) {
    tms_cu_function function = NULL;
    void *parameters[] = {&args};
    OK(cuModuleGetFunction(&function, module, name));
    OK(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, stream, parameters, NULL));
}

static void download(void *to, tms_cu_address from, size_t bytes) {
    OK(cuMemcpyDtoHAsync_v2(to, from, bytes, stream));
}

/* ---- Right kernels --------------------------------------------------------------------------- */

static void test_exchange(void **state) {
    (void)state;
    uint32_t in[64], out[192];
    for (uint32_t i = 0; i < 64; i++)
        in[i] = i * i + i / 3;
    test_args args = {.out = take(sizeof out), .in = upload(in, sizeof in)};
    launch(right, "exchange", 1, 64, 0, args);
    download(out, args.out, sizeof out);
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t odd = 0;
        for (uint32_t lane = 0; lane < 32; lane++)
            odd |= (in[i / 32 * 32 + lane] & 1) << lane;
        assert_int_equal(out[i], in[i / 32 * 32 + (i + 1) % 32]);
        assert_int_equal(out[64 + i], in[i ^ 3]);
        assert_int_equal(out[128 + i], odd);
    }
}

static void test_sums(void **state) {
    (void)state;
    uint32_t in[5 * 96], out[5];
    for (uint32_t i = 0; i < 5 * 96; i++)
        in[i] = i % 7 * 10;
    test_args args = {.out = take(sizeof out), .in = upload(in, sizeof in)};
    launch(right, "sums", 5, 96, 0, args);
    download(out, args.out, sizeof out);
    for (uint32_t b = 0; b < 5; b++) {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < 96; i++)
            sum += in[b * 96 + i];
        assert_int_equal(out[b], sum);
    }
}

static void test_backwards(void **state) {
    (void)state;
    static uint32_t in[1000], out[1024];
    for (uint32_t i = 0; i < 1000; i++)
        in[i] = 5 * i;
    test_args args = {.out = take(sizeof out), .in = upload(in, sizeof in), .n = 1000};
    launch(right, "backwards", 1, 1024, sizeof out, args);
    download(out, args.out, sizeof out);
    for (uint32_t i = 0; i < 1024; i++)
        assert_int_equal(out[i], i < 24 ? 0xffffffffu : in[1023 - i]);
}

static void test_copies(void **state) {
    (void)state;
    uint32_t in[256], out[256];
    for (uint32_t i = 0; i < 256; i++)
        in[i] = i + 1;
    test_args args = {.out = take(sizeof out), .in = upload(in, sizeof in)};
    launch(right, "copies", 1, 32, 1024, args);
    download(out, args.out, sizeof out);
    for (uint32_t i = 0; i < 256; i++) {
        const uint32_t from = i < 128 ? i : 128 + (i - 128 + 4) % 128;
        assert_int_equal(out[i], from < 252 ? in[from] : 0);
    }
}

/* A small number in 16 bits: quarters from -8 to 8. */
static uint16_t element(int quarters, bool bf16) {
    const float x = (float)quarters / 4;
    uint32_t u;
    memcpy(&u, &x, 4);
    if (bf16) return (uint16_t)(u >> 16);
    return x == 0.0f ? 0 : (uint16_t)((u >> 16 & 0x8000) | ((u & 0x7fffffff) - 0x38000000) >> 13);
}

static void multiply(const char *name, bool bf16) {
    int quarters[24][16];
    uint16_t in[24 * 16]; /* A [16][16], then B [16][8] */
    uint32_t out[128];
    for (int i = 0; i < 24 * 16; i++) {
        quarters[i / 16][i % 16] = i * i * 7 % 65 - 32;
        in[i] = element(quarters[i / 16][i % 16], bf16);
    }
    const int *b = quarters[16];
    test_args args = {.out = take(sizeof out), .in = upload(in, sizeof in)};
    launch(right, name, 1, 32, sizeof in, args);
    download(out, args.out, sizeof out);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            int sum = 16;
            for (int k = 0; k < 16; k++)
                sum += quarters[i][k] * b[k * 8 + j];
            float got;
            memcpy(&got, &out[i * 8 + j], 4);
            assert_true(got == (float)sum / 16);
        }
}

static void test_multiply(void **state) {
    (void)state;
    multiply("multiply_f16", false);
    multiply("multiply_bf16", true);
}

static void last_block(void) {
    uint32_t out[102];
    test_args args = {.out = take(sizeof out), .n = 100};
    OK(cuMemsetD32Async(args.out, 0, 102, stream));
    launch(right, "last_block", 100, 1, 0, args);
    download(out, args.out, sizeof out);
    assert_int_equal(out[100], 100);
    assert_int_equal(out[101], 5050);
}

/* In order, and on all cores. */
static void test_last_block(void **state) {
    (void)state;
    last_block();
    setenv("CUDA_ON_CPU_RACES", "0", 1);
    last_block();
    unsetenv("CUDA_ON_CPU_RACES");
}

/* `words` of memory that begins as zeros, after a launch of n blocks. */
static void run_blocks(const char *name, uint32_t n, unsigned threads, uint32_t *out,
                       uint32_t words) {
    test_args args = {.out = take(4 * words), .n = n};
    OK(cuMemsetD32Async(args.out, 0, words, stream));
    for (int i = 0; i < 2; i++) /* the first one puts its tickets back */
        launch(right, name, n, threads, 0, args);
    download(out, args.out, 4 * words);
}

static void test_tickets(void **state) {
    (void)state;
    uint32_t out[8 * 64 + 2];
    run_blocks("last_adds", 8, 64, out, 8 * 64 + 2);
    assert_int_equal(out[8 * 64], 0);
    assert_int_equal(out[8 * 64 + 1], 2 * 64 * 28);
    run_blocks("two_meetings", 8, 1, out, 14);
    assert_int_equal(out[13], 28);
    run_blocks("halves", 8, 1, out, 4);
    assert_int_equal(out[3], 7 << 16 | 6);
    run_blocks("half_again", 8, 64, out, 10);
    assert_int_equal(out[9], 8);
}

static void test_small_pieces(void **state) {
    (void)state;
    uint32_t out[32];
    test_args args = {.out = take(sizeof out)};
    launch(right, "small_pieces", 1, 32, 0, args);
    download(out, args.out, sizeof out);
    for (uint32_t i = 0; i < 32; i++)
        assert_int_equal(out[i], 4 * ((i + 1) % 32));
}

/* ---- Streams, events, graphs ----------------------------------------------------------------- */

static void test_deferred(void **state) {
    (void)state;
    uint32_t pageable = 1, out[2], *pinned = NULL, *back = NULL;
    OK(cuMemAllocHost_v2((void **)&pinned, 4));
    OK(cuMemAllocHost_v2((void **)&back, 4));
    *pinned = 1;
    *back = 5;
    const tms_cu_address a = upload(&pageable, 4), b = upload(pinned, 4);
    pageable = 2; /* was copied at the call */
    *pinned = 2;  /* is read when the copy runs */
    OK(cuMemcpyDtoHAsync_v2(back, a, 4, stream));
    assert_int_equal(*back, 5);
    download(&out[0], a, 4);
    assert_int_equal(*back, 1);
    download(&out[1], b, 4);
    assert_int_equal(out[0], 1);
    assert_int_equal(out[1], 2);
}

static void test_events(void **state) {
    (void)state;
    tms_cu_event from, to;
    float ms = -1;
    uint32_t zeros[4] = {0}, out[4];
    test_args args = {.out = upload(zeros, sizeof zeros), .n = 4};
    OK(cuEventCreate(&from, 0));
    OK(cuEventCreate(&to, 0));
    assert_int_equal(cuEventElapsedTime(&ms, from, to), TMS_CU_INVALID_HANDLE);
    OK(cuEventRecord(from, stream));
    launch(right, "add_one", 1, 32, 0, args);
    OK(cuEventRecord(to, stream));
    assert_int_equal(cuEventElapsedTime(&ms, from, to), TMS_CU_NOT_READY);
    OK(cuEventSynchronize(to));
    OK(cuEventElapsedTime(&ms, from, to));
    assert_true(ms > 0 && ms < 10000);
    OK(cuEventRecord(to, stream));
    OK(cuEventDestroy_v2(to)); /* while its record waits */
    download(out, args.out, sizeof out);
    assert_int_equal(out[3], 1);
    OK(cuEventDestroy_v2(from));
}

/* A stream that waits for another one has it go on, up to the record and no further. */
static void test_streams_wait(void **state) {
    (void)state;
    tms_cu_stream second;
    tms_cu_event filled, used;
    uint32_t *pinned = NULL, zero = 0, out = 7;
    const tms_cu_address at = upload(&zero, 4), copy = take(4);
    OK(cuMemAllocHost_v2((void **)&pinned, 4));
    OK(cuStreamCreate(&second, TMS_CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&filled, 2));
    OK(cuEventCreate(&used, 2));
    OK(cuStreamWaitEvent(stream, filled, 0)); /* never recorded: no reason to wait */
    assert_int_equal(cuStreamWaitEvent(stream, filled, 1), TMS_CU_INVALID_VALUE);
    assert_int_equal(cuStreamWaitEvent(stream, NULL, 0), TMS_CU_INVALID_HANDLE);
    *pinned = 1;
    OK(cuMemcpyHtoDAsync_v2(at, pinned, 4, second));
    OK(cuEventRecord(filled, second));
    OK(cuStreamWaitEvent(stream, filled, 0));
    OK(cuMemcpyDtoDAsync_v2(copy, at, 4, stream));
    OK(cuEventRecord(used, stream));
    OK(cuStreamWaitEvent(second, used, 0));
    OK(cuMemsetD32Async(at, 9, 1, second));
    OK(cuEventRecord(used, second)); /* the wait is for the record before */
    OK(cuEventDestroy_v2(filled));   /* while it is waited for */
    download(&out, copy, 4);
    assert_int_equal(out, 1);
    download(&out, at, 4);
    assert_int_equal(out, 1); /* nobody has waited for the second stream yet */
    OK(cuEventSynchronize(used));
    download(&out, at, 4);
    assert_int_equal(out, 9);
    OK(cuEventDestroy_v2(used));
    OK(cuStreamDestroy_v2(second));
    OK(cuMemFreeHost(pinned));
}

static void test_graph(void **state) {
    (void)state;
    tms_cu_graph graph;
    tms_cu_graph_exec exec;
    uint32_t out[8], zeros[8] = {0};
    test_args args = {.out = upload(zeros, sizeof zeros), .n = 8};
    const tms_cu_address copy = take(sizeof out);
    OK(cuStreamBeginCapture_v2(stream, TMS_CU_CAPTURE_THREAD));
    launch(right, "add_one", 1, 32, 0, args);
    OK(cuMemcpyDtoDAsync_v2(copy, args.out, sizeof out, stream));
    launch(right, "add_one", 1, 32, 0, args);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    download(out, args.out, sizeof out);
    assert_int_equal(out[7], 0); /* capturing ran nothing */
    for (int i = 0; i < 3; i++)
        OK(cuGraphLaunch(exec, stream));
    OK(cuGraphExecDestroy(exec));
    download(out, args.out, sizeof out);
    assert_int_equal(out[7], 6);
    download(out, copy, sizeof out);
    assert_int_equal(out[7], 5);
}

/* What waits or allocates breaks a capture. */
static void test_capture_refuses(void **state) {
    (void)state;
    tms_cu_graph graph;
    tms_cu_address at;
    OK(cuStreamBeginCapture_v2(stream, TMS_CU_CAPTURE_GLOBAL));
    assert_int_equal(cuMemAllocAsync(&at, 64, stream), TMS_CU_CAPTURE_UNSUPPORTED);
    assert_int_equal(cuMemAlloc_v2(&at, 64), TMS_CU_CAPTURE_UNSUPPORTED);
    assert_int_equal(cuStreamEndCapture(stream, &graph), 901);
    OK(cuStreamBeginCapture_v2(stream, TMS_CU_CAPTURE_RELAXED));
    OK(cuMemAlloc_v2(&at, 64));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
    OK(cuStreamBeginCapture_v2(stream, TMS_CU_CAPTURE_RELAXED));
    assert_int_equal(cuStreamBeginCapture_v2(stream, TMS_CU_CAPTURE_RELAXED), 401);
    assert_int_equal(cuStreamSynchronize(stream), TMS_CU_CAPTURE_UNSUPPORTED);
    assert_int_equal(cuMemsetD32Async(at, 0, 16, stream), 901); /* and takes nothing more */
    assert_int_equal(cuStreamEndCapture(stream, &graph), 901);
    OK(cuMemsetD32Async(at, 0, 16, stream));
}

/* ---- Device, modules, launches --------------------------------------------------------------- */

static void test_device(void **state) {
    (void)state;
    int count = 0, value = 0;
    const char *name = NULL;
    tms_cu_ordinal device;
    OK(cuDeviceGetCount(&count));
    assert_int_equal(count, 1);
    assert_int_equal(cuDeviceGet(&device, 1), TMS_CU_INVALID_DEVICE);
    OK(cuDeviceGetAttribute(&value, TMS_CU_CAPABILITY_MAJOR, 0));
    assert_int_equal(value, 9);
    OK(cuGetErrorName(TMS_CU_ILLEGAL_ADDRESS, &name));
    assert_string_equal(name, "CUDA_ERROR_ILLEGAL_ADDRESS");
    setenv("CUDA_ON_CPU_DEVICES", "0", 1);
    assert_int_equal(cuInit(0), TMS_CU_NO_DEVICE);
    unsetenv("CUDA_ON_CPU_DEVICES");
    OK(cuCtxPopCurrent_v2(NULL));
    assert_int_equal(cuStreamSynchronize(stream), TMS_CU_INVALID_CONTEXT);
    OK(cuCtxPushCurrent_v2(context));
}

/* What the environment says of the devices; of two the first is too old and cannot be used. */
static void test_settings(void **state) {
    static const struct {
        const char *name, *value;
        int attribute, wanted;
    } settings[] = {
        {"CUDA_ON_CPU_MULTIPROCESSORS", "132", TMS_CU_MULTIPROCESSORS, 132},
        {"CUDA_ON_CPU_CAPABILITY", "86", TMS_CU_CAPABILITY_MINOR, 6},
        {"CUDA_ON_CPU_SHARED", "99", TMS_CU_MAX_SHARED_PER_BLOCK, 99 << 10},
        {"CUDA_ON_CPU_SHARED", "9999", TMS_CU_MAX_SHARED_PER_BLOCK, 227 << 10},
        {"CUDA_ON_CPU_POOLS", "0", TMS_CU_MEMORY_POOLS, 0},
    };
    (void)state;
    tms_cu_address at;
    tms_cu_context first;
    tms_cu_ordinal device;
    int value = 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        setenv(settings[i].name, settings[i].value, 1);
        OK(cuDeviceGetAttribute(&value, settings[i].attribute, 0));
        assert_int_equal(value, settings[i].wanted);
        if (settings[i].attribute == TMS_CU_MEMORY_POOLS)
            assert_int_equal(cuMemAllocAsync(&at, 64, stream), TMS_CU_NOT_SUPPORTED);
        unsetenv(settings[i].name);
    }
    setenv("CUDA_ON_CPU_DEVICES", "2", 1);
    OK(cuDeviceGetCount(&value));
    assert_int_equal(value, 2);
    OK(cuDeviceGet(&device, 1));
    OK(cuDeviceGetAttribute(&value, TMS_CU_CAPABILITY_MAJOR, 0));
    assert_int_equal(value, 7);
    OK(cuDeviceGetAttribute(&value, TMS_CU_CAPABILITY_MAJOR, device));
    assert_int_equal(value, 9);
    assert_int_equal(cuDevicePrimaryCtxRetain(&first, 0), TMS_CU_INVALID_DEVICE);
    unsetenv("CUDA_ON_CPU_DEVICES");
}

/* A handle is good from its creation to its end. */
static void test_handles(void **state) {
    (void)state;
    tms_cu_stream other;
    tms_cu_event event;
    tms_cu_graph graph;
    tms_cu_graph_exec exec;
    tms_cu_function function;
    test_args args = {.out = take(128), .n = 32};
    void *parameters[] = {&args};
    OK(cuStreamCreate(&other, TMS_CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, 0));
    OK(cuStreamBeginCapture_v2(other, TMS_CU_CAPTURE_THREAD));
    OK(cuStreamEndCapture(other, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuModuleGetFunction(&function, right, "add_one"));

    OK(cuStreamDestroy_v2(other));
    assert_int_equal(cuStreamSynchronize(other), TMS_CU_INVALID_HANDLE);
    assert_int_equal(cuMemsetD32Async(args.out, 0, 16, other), TMS_CU_INVALID_HANDLE);
    assert_int_equal(cuEventRecord(event, other), TMS_CU_INVALID_HANDLE);
    assert_int_equal(cuStreamDestroy_v2(other), TMS_CU_INVALID_HANDLE);
    OK(cuEventDestroy_v2(event));
    assert_int_equal(cuEventRecord(event, stream), TMS_CU_INVALID_HANDLE);
    assert_int_equal(cuEventDestroy_v2(event), TMS_CU_INVALID_HANDLE);
    OK(cuGraphDestroy(graph));
    assert_int_equal(cuGraphDestroy(graph), TMS_CU_INVALID_VALUE);
    OK(cuGraphExecDestroy(exec));
    assert_int_equal(cuGraphLaunch(exec, stream), TMS_CU_INVALID_VALUE);
    OK(cuModuleUnload(right));
    assert_int_equal(cuModuleUnload(right), TMS_CU_INVALID_HANDLE);
    assert_int_equal(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL),
                     TMS_CU_INVALID_HANDLE);
}

static void test_modules(void **state) {
    (void)state;
    tms_cu_module module;
    tms_cu_function function;
    assert_int_equal(cuModuleLoadData(&module, "something else\n"), TMS_CU_INVALID_IMAGE);
    assert_int_equal(cuModuleLoadData(&module, "cuda_on_cpu right /no/such.so\n"),
                     TMS_CU_INVALID_IMAGE);
    assert_int_equal(cuModuleGetFunction(&function, right, "no_such"), TMS_CU_NOT_FOUND);
    assert_int_equal(cuModuleGetFunction(&function, right, "block_race"), TMS_CU_NOT_FOUND);
    OK(cuModuleGetFunction(&function, wrong, "block_race")); /* the kernel of another file */
}

static void test_launch_limits(void **state) {
    (void)state;
    tms_cu_function f;
    test_args args = {.out = take(128), .n = 32};
    void *parameters[] = {&args}, *nothing[] = {NULL};
    OK(cuModuleGetFunction(&f, right, "add_one"));
    assert_int_equal(cuLaunchKernel(f, 1, 1, 1, 33, 1, 1, 0, stream, parameters, NULL),
                     TMS_CU_INVALID_VALUE);
    assert_int_equal(cuLaunchKernel(f, 1, 65536, 1, 32, 1, 1, 0, stream, parameters, NULL),
                     TMS_CU_INVALID_VALUE);
    assert_int_equal(cuLaunchKernel(f, 0, 1, 1, 32, 1, 1, 0, stream, parameters, NULL),
                     TMS_CU_INVALID_VALUE);
    assert_int_equal(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, nothing, NULL),
                     TMS_CU_INVALID_VALUE);
    assert_int_equal(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 50000, stream, parameters, NULL),
                     TMS_CU_INVALID_VALUE);
    OK(cuFuncSetAttribute(f, TMS_CU_MAX_DYNAMIC_SHARED, 50000));
    OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 50000, stream, parameters, NULL));
    assert_int_equal(cuFuncSetAttribute(f, TMS_CU_MAX_DYNAMIC_SHARED, 240000),
                     TMS_CU_INVALID_VALUE);
    OK(cuStreamSynchronize(stream));
}

/* C[5x4] = 2·op(A)·op(B) + 3·C, columns apart by more than their length. */
static void test_gemm(void **state) {
    (void)state;
    enum { M = 5, N = 4, K = 6, LD = 7 };
    float a[LD * 6], b[LD * 6], c[LD * N], out[LD * N];
    const float alpha = 2, beta = 3;
    tms_cublas_handle handle;
    OK(cublasCreate_v2(&handle));
    OK(cublasSetStream_v2(handle, stream));
    for (int i = 0; i < LD * 6; i++) {
        a[i] = (float)(i % 11 - 5);
        b[i] = (float)(i % 13 - 6);
        if (i < LD * N) c[i] = (float)i;
    }
    for (int op = 0; op < 4; op++) {
        const tms_cu_address at = upload(a, sizeof a), bt = upload(b, sizeof b);
        const tms_cu_address ct = upload(c, sizeof c);
        OK(cublasSgemm_v2(handle, op & 1, op >> 1, M, N, K, &alpha, (const float *)at, LD,
                          (const float *)bt, LD, &beta, (float *)ct, LD));
        download(out, ct, sizeof out);
        for (int i = 0; i < LD * N; i++) {
            float sum = 0;
            for (int k = 0; k < K && i % LD < M; k++)
                sum += (op & 1 ? a[k + i % LD * LD] : a[i % LD + k * LD]) *
                       (op >> 1 ? b[i / LD + k * LD] : b[k + i / LD * LD]);
            assert_true(out[i] == (i % LD < M ? 2 * sum + 3 * c[i] : c[i]));
        }
    }
    OK(cublasDestroy_v2(handle));
}

/* ---- Planted bugs ---------------------------------------------------------------------------- */

static char said[4096];
static int stderr_kept;

static void listen(void) {
    fflush(stderr);
    stderr_kept = dup(2);
    FILE *file = tmpfile();
    assert_non_null(file);
    dup2(fileno(file), 2);
    fclose(file);
}

static void heard(void) {
    fflush(stderr);
    const long n = (long)lseek(2, 0, SEEK_CUR);
    const ssize_t got = pread(2, said, sizeof said - 1, 0);
    said[got > 0 ? got : 0] = 0;
    assert_int_equal(n, got);
    dup2(stderr_kept, 2);
    close(stderr_kept);
}

typedef struct planted {
    const char *kernel;
    unsigned threads, shared;
    tms_cu_result result;
    const char *text;
} planted;

static const planted bugs[] = {
    {"block_race", 64, 0, TMS_CU_LAUNCH_FAILED,
     "race in shared memory: write of static byte 128 after a read"},
    {"late_read_race", 64, 0, TMS_CU_LAUNCH_FAILED,
     "race in shared memory: write of static byte 132 after a read"},
    {"two_warps_race", 64, 0, TMS_CU_LAUNCH_FAILED,
     "race in shared memory: write of static byte 128 after a read by thread 0"},
    {"warp_race", 32, 0, TMS_CU_LAUNCH_FAILED, "race in shared memory: read"},
    {"byte_race", 32, 0, TMS_CU_LAUNCH_FAILED, "race in shared memory: write of static byte 0"},
    {"barrier_diverges", 64, 0, TMS_CU_LAUNCH_FAILED, "divergent barrier: other threads wait at"},
    {"shuffle_diverges", 32, 0, TMS_CU_LAUNCH_FAILED, "divergent warp operation: ended while"},
    {"warp_waits_for_block", 32, 0, TMS_CU_LAUNCH_FAILED,
     "divergent warp operation: lanes ffff0000"},
    {"reads", 32, 0, TMS_CU_ILLEGAL_ADDRESS, "byte 512 of an allocation of 512 bytes"},
    {"reads_before", 32, 0, TMS_CU_ILLEGAL_ADDRESS, "4 bytes before an allocation of 512 bytes"},
    {"writes", 32, 0, TMS_CU_ILLEGAL_ADDRESS, "out of bounds: write of 4 bytes"},
    {"reads_16", 32, 0, TMS_CU_MISALIGNED_ADDRESS, "misaligned: read of 16 bytes"},
    {"shared_behind", 32, 128, TMS_CU_ILLEGAL_ADDRESS,
     "out of bounds: write of 4 bytes at byte 128 of 128 bytes of dynamic"},
    {"shared_misaligned", 1, 128, TMS_CU_MISALIGNED_ADDRESS, "misaligned: write of 16 bytes"},
    {"reads_early", 32, 512, TMS_CU_LAUNCH_FAILED,
     "read of shared memory to which an asynchronous copy is under way"},
    {"never_waits", 32, 512, TMS_CU_LAUNCH_FAILED, "1 asynchronous copies that nobody waited for"},
};

/* The kernel passes without its bug. With it, the launch succeeds, the wait fails, and so does all
 * that comes after. */
static void run_bug(const planted *bug) {
    static const uint32_t in[256];
    tms_cu_address more;
    begin(NULL);
    test_args args = {.out = take(512), .in = upload(in, 512), .n = 128};
    launch(wrong, bug->kernel, 1, bug->threads, bug->shared, args);
    OK(cuStreamSynchronize(stream));
    args.wrong = 1;
    launch(wrong, bug->kernel, 1, bug->threads, bug->shared, args);
    listen();
    const tms_cu_result result = cuStreamSynchronize(stream);
    heard();
    if (result != bug->result || !strstr(said, bug->text) || !strstr(said, bug->kernel))
        fail_msg("%s: result %d, said: %sinstead of %d, %s", bug->kernel, result, said, bug->result,
                 bug->text);
    assert_int_equal(cuMemAllocAsync(&more, 64, stream), bug->result);
    end(NULL);
}

static void test_bugs(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++)
        run_bug(&bugs[i]);
}

/* Bugs in global memory. What is said first depends on the order of blocks; that it is not. */
static const struct {
    const char *kernel;
    unsigned threads;
    const char *text, *with;
} races[] = {
    {"no_fence", 64, "race in global memory: read", "with the write by block ("},
    {"no_fence_before", 64, "race in global memory: read", "with the write by block ("},
    {"no_fence_behind", 64, "race in global memory: read", "with the write by block ("},
    {"fence_of_another", 64, "race in global memory: read", "with the write by block ("},
    {"no_barrier", 64, "race in global memory: read", "with the write by block ("},
    {"reads_first", 64, "race in global memory: ", ", which nothing orders with the "},
    {"not_put_back", 64, "ticket not put back: byte 2048 of an allocation of 8192 bytes is 8", ""},
    {"relaxed", 64, "race in global memory: read", "with the write by block ("},
    {"no_warp_barrier", 32, "race in global memory: read", "with the write by block ("},
    {"two_writers", 64, "race in global memory: write", "with the write by block ("},
    {"same_half", 64, "race in global memory: write of byte 2 of", "with the write by block ("},
    {"reader_and_writer", 64, "race in global memory: write", "with the read by block ("},
    {"counter_is_read", 64,
     "race in global memory: atomic operation of byte 0 of an allocation of "
     "8192 bytes",
     "with the read by block ("},
    {"block_race_global", 64, "race in global memory: write", "with the read by block ("},
};

/* Both accesses have their line, or the offset in the library where addr2line is missing. */
static bool names_two_lines(void) {
    const char *first = strstr(said, " [");
    return first && strstr(first + 1, " [");
}

/* Two launches: a ticket that is not put back shows in the second one. */
static void run_race(size_t index) {
    const char *kernel = races[index].kernel;
    begin(NULL);
    test_args args = {.out = take(8192), .n = 8};
    for (; args.wrong <= 1; args.wrong++) {
        OK(cuMemsetD32Async(args.out, 0, 2048, stream));
        for (int i = 0; i < 2; i++)
            launch(wrong, kernel, args.n, races[index].threads, 0, args);
        if (!args.wrong) OK(cuStreamSynchronize(stream));
    }
    listen();
    const tms_cu_result result = cuStreamSynchronize(stream);
    heard();
    if (result != TMS_CU_LAUNCH_FAILED || !strstr(said, races[index].text) ||
        !strstr(said, races[index].with) || !strstr(said, kernel) ||
        (races[index].with[0] && !names_two_lines()))
        fail_msg("%s: result %d, said: %s", kernel, result, said);
    end(NULL);
}

static void test_races(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof races / sizeof *races; i++)
        run_race(i);
    setenv("CUDA_ON_CPU_BACKWARDS", "1", 1);
    for (size_t i = 0; i < sizeof races / sizeof *races; i++)
        run_race(i);
    unsetenv("CUDA_ON_CPU_BACKWARDS");
}

static void test_use_after_free(void **state) {
    (void)state;
    const uint32_t in[16] = {0};
    test_args args = {.out = take(64), .in = upload(in, 64), .n = 16};
    launch(wrong, "reads", 1, 32, 0, args);
    OK(cuMemFreeAsync(args.in, stream)); /* behind the launch: in order */
    OK(cuStreamSynchronize(stream));
    launch(wrong, "reads", 1, 32, 0, args);
    listen();
    const tms_cu_result result = cuStreamSynchronize(stream);
    heard();
    assert_int_equal(result, TMS_CU_ILLEGAL_ADDRESS);
    assert_non_null(strstr(said, "use after free: read of 4 bytes at byte 60 of a freed"));
    /* Where, or without addr2line the offset in the library. */
    assert_true(strstr(said, " [wrong.cu:") || strstr(said, "kernels.so+0x"));
}

static void test_copy_out_of_bounds(void **state) {
    (void)state;
    uint32_t out[17];
    const tms_cu_address at = take(64);
    listen();
    const tms_cu_result result = cuMemcpyDtoHAsync_v2(out, at, sizeof out, stream);
    heard();
    assert_int_equal(result, TMS_CU_ILLEGAL_ADDRESS);
    assert_non_null(strstr(said, "copy of 68 bytes from"));
}

/* A kernel fails in many blocks and on several threads: one line, and no other. */
static void test_one_line(void **state) {
    (void)state;
    test_args args = {.out = take(64), .n = 16, .wrong = 1};
    launch(wrong, "writes", 200, 32, 0, args);
    listen();
    const tms_cu_result result = cuStreamSynchronize(stream);
    heard();
    assert_int_equal(result, TMS_CU_ILLEGAL_ADDRESS);
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
}

/* ---- Leaks ----------------------------------------------------------------------------------- */

/* A process that takes one of each kind and keeps the kind `kept`. */
static int keep(const char *kept) {
    const char *const kinds[] = {"memory", "pinned", "event",  "graph",  "exec",
                                 "cublas", "module", "stream", "context"};
    bool free_it[sizeof kinds / sizeof *kinds];
    void *pinned = NULL;
    tms_cu_event event = NULL;
    tms_cu_graph graph = NULL;
    tms_cu_graph_exec exec = NULL;
    tms_cublas_handle cublas = NULL;
    tms_cu_result bad = begin(NULL);
    const tms_cu_address at = take(64);
    test_args args = {.out = at, .n = 16, .wrong = 1};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        free_it[i] = strcmp(kinds[i], kept) != 0;
    bad |= cuMemAllocHost_v2(&pinned, 64) | cuEventCreate(&event, 0) | cublasCreate_v2(&cublas);
    bad |= cuStreamBeginCapture_v2(stream, TMS_CU_CAPTURE_THREAD);
    bad |= cuStreamEndCapture(stream, &graph) | cuGraphInstantiateWithFlags(&exec, graph, 0);
    if (strcmp(kept, "all, after a fault") == 0) launch(wrong, "writes", 1, 32, 0, args);
    if (free_it[0]) cuMemFreeAsync(at, stream);
    if (free_it[1]) cuMemFreeHost(pinned);
    if (free_it[2]) cuEventDestroy_v2(event);
    if (free_it[3]) cuGraphDestroy(graph);
    if (free_it[4]) cuGraphExecDestroy(exec);
    if (free_it[5]) cublasDestroy_v2(cublas);
    if (free_it[6]) cuModuleUnload(right);
    cuModuleUnload(wrong);
    if (free_it[7]) cuStreamDestroy_v2(stream);
    if (free_it[8]) cuDevicePrimaryCtxRelease_v2(0);
    return bad != TMS_CU_SUCCESS;
}

/* Such a process says what was left, and its exit status is 3. */
static void test_leaks(void **state) {
    static const struct {
        const char *kept, *text;
        int status;
    } leaks[] = {
        {"nothing", "", 0},
        {"memory", "left behind: 1 allocations\n", 3},
        {"pinned", "left behind: 1 pieces of pinned memory\n", 3},
        {"event", "left behind: 1 events\n", 3},
        {"graph", "left behind: 1 graphs\n", 3},
        {"exec", "left behind: 1 graphs\n", 3},
        {"cublas", "left behind: 1 cuBLAS handles\n", 3},
        {"module", "left behind: 1 modules\n", 3},
        {"stream", "left behind: 1 streams\n", 3},
        {"context", "left behind: 1 releases of the primary context\n", 3},
        {"all, after a fault", "", 0},
    };
    char program[4096], command[sizeof program + 100], out[4096];
    (void)state;
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    assert_true(n > 0);
    program[n] = 0;
    for (size_t i = 0; i < sizeof leaks / sizeof *leaks; i++) {
        snprintf(command, sizeof command, "CUDA_ON_CPU_LEAKS= '%s' '%s' 2>&1", program,
                 leaks[i].kept);
        FILE *pipe = popen(command, "r");
        assert_non_null(pipe);
        out[fread(out, 1, sizeof out - 1, pipe)] = 0;
        const int status = pclose(pipe);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != leaks[i].status ||
            !strstr(out, leaks[i].text))
            fail_msg("%s: status %d, said: %s", leaks[i].kept, WEXITSTATUS(status), out);
    }
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)

/* With an argument: what `keep` keeps. */
int main(int argc, char **argv) {
    if (argc > 1) return keep(argv[1]);
    setenv("CUDA_ON_CPU_LEAKS", "allowed", 1); /* the release in `end` is enough */
    const struct CMUnitTest tests[] = {
        CASE(test_exchange),
        CASE(test_sums),
        CASE(test_backwards),
        CASE(test_copies),
        CASE(test_multiply),
        CASE(test_last_block),
        CASE(test_small_pieces),
        CASE(test_deferred),
        CASE(test_events),
        CASE(test_streams_wait),
        CASE(test_graph),
        CASE(test_device),
        CASE(test_capture_refuses),
        CASE(test_modules),
        CASE(test_gemm),
        CASE(test_launch_limits),
        CASE(test_use_after_free),
        CASE(test_one_line),
        CASE(test_copy_out_of_bounds),
        CASE(test_settings),
        CASE(test_handles),
        cmocka_unit_test(test_bugs),
        cmocka_unit_test(test_races),
        CASE(test_tickets),
        cmocka_unit_test(test_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
