/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend on what a program has of CUDA itself: its context, stream and memory; captures,
 * and faults of kernels. With an argument, on the driver on the CPU only: two devices, or one
 * reason why there is no usable one (REFUSALS). */
#include "host/cuda/cuda.h"
#include "tests/api/fixture.h"
#include <tamis/cuda.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CU(call) assert_int_equal((call), TMS_CU_SUCCESS)

/* What a program has: a context, which is current only between enter and leave, and a stream. */
static const tms_cu_driver *api;
static tms_cu_context cuda;
static tms_cu_stream stream;
static bool faulted; /* a kernel of the test did: the driver may refuse everything from then on */

static void enter(void) {
    CU(api->cuCtxPushCurrent_v2(cuda));
}

static void leave(void) {
    tms_cu_context old;
    CU(api->cuCtxPopCurrent_v2(&old));
    assert_ptr_equal(old, cuda);
}

/* Before each test. */
static int open_cuda(void **state) {
    char reason[256];
    tms_cu_ordinal device;
    (void)state;
    unsetenv("TAMIS_DEVICE");
    api = tms_cu_driver_get(reason, sizeof reason);
    assert_non_null(api);
    CU(api->cuDeviceGet(&device, 0));
    CU(api->cuDevicePrimaryCtxRetain(&cuda, device));
    enter();
    CU(api->cuStreamCreate(&stream, TMS_CU_STREAM_NON_BLOCKING));
    leave();
    faulted = false;
    return 0;
}

static int close_cuda(void **state) {
    tms_cu_ordinal device;
    (void)state;
    if (faulted) return 0; /* the process ends, and its context with it */
    enter();
    CU(api->cuStreamDestroy_v2(stream));
    leave();
    CU(api->cuDeviceGet(&device, 0));
    CU(api->cuDevicePrimaryCtxRelease_v2(device));
    return 0;
}

static tamis_context *create(void) {
    tamis_context *context = NULL;
    OK(tamis_context_create_cuda(cuda, stream, NULL, &context, &test_error));
    return context;
}

/* Device memory of the program's own. */
static uint64_t take(uint64_t bytes) {
    tms_cu_address at = 0;
    enter();
    CU(api->cuMemAlloc_v2(&at, bytes));
    leave();
    return at;
}

static void give_back(uint64_t at) {
    enter();
    CU(api->cuMemFree_v2(at));
    leave();
}

static void a_context_runs_on_the_callers_stream(void **state) {
    (void)state;
    tms_cu_ordinal device;
    tamis_context *context = create();
    const tamis_device_info *info = tamis_context_device(context);
    assert_string_equal(info->id, "cuda:0");
    assert_string_equal(info->backend, "cuda");
    assert_int_equal(strncmp(info->driver, "CUDA driver ", 12), 0);
    assert_int_equal(info->kind, TAMIS_DEVICE_GPU);
    assert_true(info->usable && info->compute_units && info->memory_bytes);
    OK(tamis_context_wait(context, &test_error));
    /* The thread had no context, and has none again. */
    assert_int_equal(api->cuCtxGetDevice(&device), TMS_CU_INVALID_CONTEXT);
    tamis_context_destroy(&context);
    assert_int_equal(api->cuCtxGetDevice(&device), TMS_CU_INVALID_CONTEXT);
    /* The stream is still the program's. */
    enter();
    CU(api->cuStreamSynchronize(stream));
    leave();
}

static void a_context_refuses_bad_arguments(void **state) {
    (void)state;
    tamis_context *context = NULL;
    tamis_context_params named = {.device = "cuda:0"};
    FAILS(tamis_context_create_cuda(cuda, stream, NULL, NULL, &test_error), TAMIS_E_ARGUMENT,
          "out: NULL");
    FAILS(tamis_context_create_cuda(NULL, stream, NULL, &context, &test_error), TAMIS_E_ARGUMENT,
          "CUDA context: NULL");
    FAILS(tamis_context_create_cuda(cuda, stream, &named, &context, &test_error), TAMIS_E_ARGUMENT,
          "device \"cuda:0\"");
    FAILS(tamis_context_create_cuda(cuda, (void *)2, NULL, &context, &test_error),
          TAMIS_E_UNSUPPORTED, "CU_STREAM_PER_THREAD");
    setenv("TAMIS_LOG", "everything", 1);
    FAILS(tamis_context_create_cuda(cuda, stream, NULL, &context, &test_error), TAMIS_E_ARGUMENT,
          "everything");
    unsetenv("TAMIS_LOG");
    assert_null(context);
}

/* One memory under both names, one order of both's commands. */
static void wrapped_memory_is_the_callers_own(void **state) {
    (void)state;
    enum { N = 1000 };
    static uint32_t sent[N], got[N];
    tamis_context *context = create();
    tamis_buffer *buffer = NULL;
    uint64_t at = take(sizeof sent);
    OK(tamis_buffer_wrap_cuda(context, at, sizeof sent, &buffer, &test_error));
    assert_int_equal(tamis_buffer_bytes(buffer), sizeof sent);
    assert_int_equal(tamis_buffer_cuda(buffer), at);
    assert_null(tamis_buffer_data(buffer));

    enter();
    CU(api->cuMemsetD32Async(at, 77, N, stream));
    leave();
    OK(tamis_buffer_read(buffer, 0, got, sizeof got, NULL));
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(got[i], 77);
    for (uint32_t i = 0; i < N; i++)
        sent[i] = i * 2654435761u;
    OK(tamis_buffer_write(buffer, 0, sent, sizeof sent, NULL));
    tamis_buffer_destroy(&buffer);
    tamis_context_destroy(&context); /* the memory outlives both */

    enter();
    CU(api->cuMemcpyDtoHAsync_v2(got, at, sizeof got, stream));
    CU(api->cuStreamSynchronize(stream));
    leave();
    assert_memory_equal(got, sent, sizeof got);
    give_back(at);
}

static void wrap_refuses_bad_arguments(void **state) {
    (void)state;
    tamis_context *context = create(), *other = NULL;
    tamis_context_params reference = {.device = "reference"};
    tamis_buffer *buffer = NULL;
    FAILS(tamis_buffer_wrap_cuda(context, 4096, 64, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    FAILS(tamis_buffer_wrap_cuda(NULL, 4096, 64, &buffer, &test_error), TAMIS_E_ARGUMENT,
          "context: NULL");
    FAILS(tamis_buffer_wrap_cuda(context, 0, 64, &buffer, &test_error), TAMIS_E_ARGUMENT, "0x0");
    FAILS(tamis_buffer_wrap_cuda(context, 4104, 64, &buffer, &test_error), TAMIS_E_ARGUMENT,
          "0x1008: must be a multiple of 16");
    FAILS(tamis_buffer_wrap_cuda(context, 4096, 0, &buffer, &test_error), TAMIS_E_ARGUMENT,
          "0 bytes at device address 0x1000");
    FAILS(tamis_buffer_wrap_cuda(context, 4096, UINT64_MAX, &buffer, &test_error), TAMIS_E_ARGUMENT,
          "18446744073709551615 bytes");
    OK(tamis_context_create(&reference, &other, &test_error));
    FAILS(tamis_buffer_wrap_cuda(other, 4096, 64, &buffer, &test_error), TAMIS_E_UNSUPPORTED,
          "backend reference");
    assert_null(buffer);
    tamis_context_destroy(&other);
    tamis_context_destroy(&context);
}

/* The program's own copies reach a buffer of the library's. */
static void a_buffers_address_is_the_programs_too(void **state) {
    (void)state;
    uint32_t sent = 0x74616d69, got = 0;
    tamis_context *context = create(), *other = NULL;
    tamis_buffer *buffer = NULL;
    OK(tamis_buffer_create(context, 64, &buffer, &test_error));
    const uint64_t at = tamis_buffer_cuda(buffer);
    assert_true(at != 0 && at % 64 == 0);
    OK(tamis_buffer_write(buffer, 60, &sent, sizeof sent, &test_error));
    enter();
    CU(api->cuMemcpyDtoHAsync_v2(&got, at + 60, sizeof got, stream));
    CU(api->cuStreamSynchronize(stream));
    leave();
    assert_int_equal(got, sent);
    tamis_buffer_destroy(&buffer);
    tamis_context_destroy(&context);
    OK(tamis_context_create(&(tamis_context_params){.device = "reference"}, &other, &test_error));
    OK(tamis_buffer_create(other, 64, &buffer, &test_error));
    assert_int_equal(tamis_buffer_cuda(buffer), 0);
    assert_int_equal(tamis_buffer_cuda(NULL), 0);
    tamis_buffer_destroy(&buffer);
    tamis_context_destroy(&other);
}

/* A copy of the program's on a second stream, a write of the library's behind it on the first one, and
 * a copy on the second one behind that. */
static void events_order_streams_both_ways(void **state) {
    (void)state;
    uint32_t got = 0, word = 2;
    tms_cu_stream second;
    tms_cu_event mark;
    tamis_context *context = create();
    tamis_buffer *buffer = NULL;
    tamis_event *before = NULL, *behind = NULL;
    const uint64_t at = take(64);
    OK(tamis_buffer_wrap_cuda(context, at, 64, &buffer, &test_error));
    enter();
    CU(api->cuStreamCreate(&second, TMS_CU_STREAM_NON_BLOCKING));
    CU(api->cuEventCreate(&mark, TMS_CU_EVENT_DISABLE_TIMING));
    CU(api->cuMemsetD32Async(at, 1, 16, second));
    CU(api->cuEventRecord(mark, second));
    leave();
    OK(tamis_event_wrap_cuda(context, mark, &before, &test_error));
    assert_ptr_equal(tamis_event_cuda(before), mark);
    OK(tamis_event_await(before, &test_error));
    OK(tamis_buffer_write(buffer, 0, &word, sizeof word, &test_error));
    OK(tamis_event_record(context, &behind, &test_error));
    enter();
    CU(api->cuStreamWaitEvent(second, tamis_event_cuda(behind), 0));
    CU(api->cuMemcpyDtoHAsync_v2(&got, at, sizeof got, second));
    CU(api->cuStreamSynchronize(second));
    leave();
    assert_int_equal(got, word);
    OK(tamis_event_wait(before, &test_error));
    tamis_event_destroy(&before);
    tamis_event_destroy(&behind);
    tamis_buffer_destroy(&buffer);
    tamis_context_destroy(&context);
    enter();
    CU(api->cuEventSynchronize(mark)); /* it is still the program's */
    CU(api->cuEventDestroy_v2(mark));
    CU(api->cuStreamDestroy_v2(second));
    leave();
    give_back(at);
}

static void events_refuse_bad_arguments(void **state) {
    (void)state;
    tms_cu_event mark;
    tamis_context *context = create(), *other = NULL;
    tamis_event *event = NULL;
    enter();
    CU(api->cuEventCreate(&mark, TMS_CU_EVENT_DISABLE_TIMING));
    leave();
    FAILS(tamis_event_wrap_cuda(context, mark, NULL, &test_error), TAMIS_E_ARGUMENT, "out: NULL");
    FAILS(tamis_event_wrap_cuda(NULL, mark, &event, &test_error), TAMIS_E_ARGUMENT,
          "context: NULL");
    FAILS(tamis_event_wrap_cuda(context, NULL, &event, &test_error), TAMIS_E_ARGUMENT,
          "CUDA event: NULL");
    OK(tamis_context_create(&(tamis_context_params){.device = "reference"}, &other, &test_error));
    FAILS(tamis_event_wrap_cuda(other, mark, &event, &test_error), TAMIS_E_UNSUPPORTED,
          "backend reference: CUDA events are not its own");
    assert_null(event);
    OK(tamis_event_record(other, &event, &test_error));
    assert_null(tamis_event_cuda(event));
    assert_null(tamis_event_cuda(NULL));
    tamis_event_destroy(&event);
    tamis_context_destroy(&other);
    tamis_context_destroy(&context);
    enter();
    CU(api->cuEventDestroy_v2(mark));
    leave();
}

/* Writes larger than the staging memory come in pieces; small ones wait in it, and must be read
 * from it before it serves again. */
static void writes_larger_than_staging_come_in_pieces(void **state) {
    (void)state;
    enum { LARGE = 11 << 20, SMALL = 3000, TIMES = 3000 };
    tamis_context *context = create();
    tamis_buffer *buffer = NULL;
    uint8_t *sent = malloc(LARGE), *got = malloc(LARGE);
    uint64_t seed = 5;
    assert_true(sent && got);
    OK(tamis_buffer_create(context, LARGE, &buffer, &test_error));
    for (uint32_t i = 0; i < LARGE; i++)
        sent[i] = (uint8_t)(i % 8 ? sent[i - 1] * 5u + 1 : test_random(&seed));
    OK(tamis_buffer_write(buffer, 0, sent, LARGE, NULL));
    OK(tamis_buffer_read(buffer, 0, got, LARGE, NULL));
    assert_memory_equal(got, sent, LARGE);
    for (uint32_t i = 0; i < TIMES; i++) {
        uint8_t piece[SMALL];
        memset(piece, (int)(i % 251), sizeof piece);
        OK(tamis_buffer_write(buffer, i * SMALL, piece, sizeof piece, NULL));
        memset(piece, 0xff, sizeof piece);
    }
    OK(tamis_buffer_read(buffer, 0, got, TIMES * SMALL, NULL));
    for (uint32_t i = 0; i < TIMES * SMALL; i++)
        if (got[i] != i / SMALL % 251)
            fail_msg("byte %u is %u, wanted %u", i, got[i], i / SMALL % 251);
    free(sent);
    free(got);
    tamis_buffer_destroy(&buffer);
    tamis_context_destroy(&context);
}

/* ---- Plans on the program's stream ----------------------------------------------------------- */

enum { ROWS = 21 };
static uint64_t tokens[ROWS];

/* A world of the fixture's, on a context that test_close destroys. */
static void open_world(test_world *world, tamis_context *context) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params params = {.max_rows = ROWS, .max_context = 64};
    *world = (test_world){.context = context, .shape = shape, .max_rows = ROWS};
    OK(tamis_cache_create(context, &shape, &world->cache, &test_error));
    OK(tamis_plan_create(world->cache, &params, &world->plan, &test_error));
    uint64_t bytes = (uint64_t)ROWS * shape.n_heads * shape.head_dim * sizeof *world->host;
    tamis_buffer **buffers[] = {&world->k, &world->v, &world->q, &world->out};
    for (size_t i = 0; i < 4; i++)
        OK(tamis_buffer_create(context, bytes, buffers[i], &test_error));
    world->host = malloc(bytes);
    assert_non_null(world->host);
}

/* The rows of a layer of the open step: written, then attended from q to out. */
static void run_layer(test_world *world, uint32_t layer, tamis_buffer *q, tamis_buffer *out) {
    tamis_rows from = {.buffer = q}, to = {.buffer = out};
    test_write(world, layer, tokens, ROWS);
    OK(tamis_plan_attend(world->plan, layer, &from, &to, &test_error));
}

/* Writes q, runs a step of one new sequence, and reads what layer 1 attended. */
static void attend(test_world *world, tamis_buffer *q, tamis_buffer *out, float *result) {
    uint32_t n = ROWS * world->shape.n_heads * world->shape.head_dim, rows = ROWS;
    tamis_sequence sequence;
    tamis_step step = {.sequences = &sequence, .rows = &rows, .count = 1, .exact = 1};
    for (uint32_t i = 0; i < n; i++)
        world->host[i] = test_value(i, 0, 1, 3) / 4;
    OK(tamis_buffer_write(q, 0, world->host, n * sizeof *world->host, NULL));
    OK(tamis_cache_add(world->cache, &sequence, &test_error));
    OK(tamis_plan_step_begin(world->plan, &step, &test_error));
    for (uint32_t layer = 0; layer < world->shape.n_layers; layer++)
        run_layer(world, layer, q, out);
    OK(tamis_plan_step_end(world->plan, &test_error));
    OK(tamis_buffer_read(out, 0, result, n * sizeof *result, NULL));
}

/* A step from and into the program's own memory gives what the reference gives. */
static void a_step_on_wrapped_memory_equals_the_reference(void **state) {
    (void)state;
    test_world world, plain;
    tamis_context *context = create(), *reference = NULL;
    tamis_context_params params = {.device = "reference"};
    tamis_buffer *q = NULL, *out = NULL;
    OK(tamis_context_create(&params, &reference, &test_error));
    open_world(&world, context);
    open_world(&plain, reference);
    uint32_t n = ROWS * world.shape.n_heads * world.shape.head_dim;
    float *got = malloc(2 * n * sizeof *got), *wanted = got + n;
    assert_non_null(got);
    uint64_t q_at = take(n * sizeof *got), out_at = take(n * sizeof *got);
    OK(tamis_buffer_wrap_cuda(context, q_at, n * sizeof *got, &q, &test_error));
    OK(tamis_buffer_wrap_cuda(context, out_at, n * sizeof *got, &out, &test_error));

    attend(&world, q, out, got);
    attend(&plain, plain.q, plain.out, wanted);
    for (uint32_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - wanted[i]) <= 1e-4f))
            fail_msg("element %u: %g, wanted %g", i, (double)got[i], (double)wanted[i]);

    tamis_buffer_destroy(&q);
    tamis_buffer_destroy(&out);
    test_close(&world);
    test_close(&plain);
    give_back(q_at);
    give_back(out_at);
    free(got);
}

/* What has no place in a graph fails while the stream is captured, and works again after. */
static void waiting_calls_fail_during_a_capture(void **state) {
    (void)state;
    float word = 1;
    tms_cu_graph graph = NULL;
    tamis_context *context = create();
    tamis_buffer *buffer = NULL, *more = NULL;
    tamis_host_buffer *host = NULL, *second = NULL;
    tamis_event *mark = NULL, *done = NULL;
    OK(tamis_buffer_create(context, 64, &buffer, &test_error));
    OK(tamis_host_buffer_create(context, 64, &host, &test_error));
    OK(tamis_event_record(context, &mark, &test_error));
    enter();
    CU(api->cuStreamBeginCapture_v2(stream, TMS_CU_CAPTURE_THREAD));
    leave();
    assert_int_equal(tamis_buffer_write(buffer, 0, &word, sizeof word, NULL), TAMIS_E_STATE);
    FAILS(tamis_buffer_create(context, 64, &more, &test_error), TAMIS_E_STATE,
          "a buffer of 64 bytes on cuda:0: the stream is being captured");
    FAILS(tamis_host_buffer_create(context, 64, &second, &test_error), TAMIS_E_STATE, "captured");
    FAILS(tamis_buffer_upload(buffer, 0, host, 0, 64, mark, &done, &test_error), TAMIS_E_STATE,
          "upload: the stream is being captured");
    FAILS(tamis_event_await(mark, &test_error), TAMIS_E_STATE, "the stream is being captured");
    tamis_host_buffer_destroy(&host); /* is freed later, and ends no capture */
    FAILS(tamis_context_wait(context, &test_error), TAMIS_E_STATE, "the stream is being captured");
    assert_true(!more && !second && !done);
    enter();
    api->cuStreamEndCapture(stream, &graph); /* fails, for the wait has ended it */
    if (graph) CU(api->cuGraphDestroy(graph));
    leave();
    OK(tamis_buffer_write(buffer, 0, &word, sizeof word, NULL));
    OK(tamis_context_wait(context, &test_error));
    tamis_event_destroy(&mark);
    tamis_host_buffer_destroy(&host);
    tamis_buffer_destroy(&buffer);
    tamis_context_destroy(&context);
}

/* The program records on its own: tamis cannot meanwhile. The legacy stream is never recorded. */
static void no_recording_inside_the_callers_capture(void **state) {
    (void)state;
    tms_cu_graph graph = NULL;
    tamis_context *context = create(), *legacy = NULL;
    enter();
    CU(api->cuStreamBeginCapture_v2(stream, TMS_CU_CAPTURE_THREAD));
    leave();
    FAILS(tamis_graph_begin(context, &test_error), TAMIS_E_STATE,
          "recording a graph: the stream is being captured");
    enter();
    CU(api->cuStreamEndCapture(stream, &graph)); /* which did not break the program's */
    CU(api->cuGraphDestroy(graph));
    leave();
    tamis_context_destroy(&context);
    OK(tamis_context_create_cuda(cuda, NULL, NULL, &legacy, &test_error));
    FAILS(tamis_graph_begin(legacy, &test_error), TAMIS_E_UNSUPPORTED,
          "the legacy default stream cannot be recorded");
    OK(tamis_context_wait(legacy, &test_error));
    tamis_context_destroy(&legacy);
}

/* A kernel's fault arrives late, and stays. The last test: on a GPU the process has no working CUDA
 * after it. */
static void a_kernels_fault_arrives_late_and_stays(void **state) {
    (void)state;
    test_world world;
    tamis_context *context = create();
    tamis_buffer *nowhere = NULL, *more = NULL;
    uint32_t rows = ROWS;
    tamis_sequence sequence;
    tamis_step step = {.sequences = &sequence, .rows = &rows, .count = 1, .exact = 1};
    open_world(&world, context);
    OK(tamis_buffer_wrap_cuda(context, 1 << 20, 1 << 20, &nowhere, &test_error));
    OK(tamis_cache_add(world.cache, &sequence, &test_error));
    OK(tamis_plan_step_begin(world.plan, &step, &test_error));
    faulted = true;
    run_layer(&world, 0, nowhere, world.out);
    FAILS(tamis_context_wait(context, &test_error), TAMIS_E_DEVICE, "CUDA_ERROR_ILLEGAL_ADDRESS");
    FAILS(tamis_context_wait(context, &test_error), TAMIS_E_DEVICE, "CUDA_ERROR_ILLEGAL_ADDRESS");
    FAILS(tamis_buffer_create(context, 64, &more, &test_error), TAMIS_E_DEVICE,
          "CUDA_ERROR_ILLEGAL_ADDRESS");
    FAILS(tamis_graph_begin(context, &test_error), TAMIS_E_DEVICE, "CUDA_ERROR_ILLEGAL_ADDRESS");
    assert_null(more);
    tamis_buffer_destroy(&nowhere);
    test_close(&world);
}

/* ---- Other devices --------------------------------------------------------------------------- */

/* Of two devices the first one is too old. */
static void a_device_too_old_is_passed_over(void **state) {
    (void)state;
    tamis_device_info infos[16];
    size_t count = 0;
    tamis_context *context = NULL;
    OK(tamis_device_list(infos, 16, &count, NULL));
    assert_in_range(count, 3, 16);
    assert_string_equal(infos[0].id, "cuda:0");
    assert_string_equal(infos[0].reason, "compute capability 7.5: 8.0 is needed");
    assert_string_equal(infos[1].id, "cuda:1");
    assert_true(infos[1].usable && !infos[0].usable);
    OK(tamis_context_create(&(tamis_context_params){.device = "cuda"}, &context, &test_error));
    assert_string_equal(tamis_context_device(context)->id, "cuda:1");
    tamis_context_destroy(&context);
}

static int run_second_device(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_device_too_old_is_passed_over)};
    setenv("CUDA_ON_CPU_DEVICES", "2", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* ---- Refusals -------------------------------------------------------------------------------- */

/* What is set in the environment before the first call (NULL: unset), and what the list says. */
static const struct refusal {
    const char *name, *variable, *value, *reason;
} REFUSALS[] = {
    {"no-driver", "TAMIS_CUDA_DRIVER", "/dev/null/libcuda.so.1",
     "no CUDA driver: /dev/null/libcuda.so.1"},
    {"not-a-driver", "TAMIS_CUDA_DRIVER", "libm.so.6", "the library has no cuInit"},
    {"no-device", "CUDA_ON_CPU_DEVICES", "0", "CUDA_ERROR_NO_DEVICE"},
    {"old-device", "CUDA_ON_CPU_CAPABILITY", "75", "compute capability 7.5: 8.0 is needed"},
    {"no-kernels", "TAMIS_CUDA_KERNELS", "/dev/null/kernels",
     "\"/dev/null/kernels\": no such folder"},
    {"built-in-kernels", "TAMIS_CUDA_KERNELS", NULL, "built without CUDA kernels"},
};
static const struct refusal *refusal;

static void unusable_drivers_are_refused_with_the_reason(void **state) {
    (void)state;
    tamis_device_info infos[16];
    size_t count = 0;
    tamis_context *context = NULL;
    tamis_context_params params = {.device = "cuda"};
    OK(tamis_device_list(infos, 16, &count, NULL));
    assert_in_range(count, 2, 16);
    assert_string_equal(infos[0].backend, "cuda");
    assert_false(infos[0].usable);
    if (!strstr(infos[0].reason, refusal->reason))
        fail_msg("\"%s\", wanted \"%s\"", infos[0].reason, refusal->reason);
    FAILS(tamis_context_create(&params, &context, &test_error), TAMIS_E_NO_DEVICE, refusal->reason);
    assert_null(context);
}

/* Kernels made for a GPU are there, but not such as this driver loads. */
static void kernels_that_the_driver_cannot_load_are_refused(void **state) {
    (void)state;
    tamis_context *context = NULL;
    FAILS(tamis_context_create(&(tamis_context_params){.device = "cuda"}, &context, &test_error),
          TAMIS_E_DEVICE, "the driver cannot load kernels made by CUDA");
    assert_null(context);
}

static int run_refusal(const char *name) {
    const struct CMUnitTest listed[] = {
        cmocka_unit_test(unusable_drivers_are_refused_with_the_reason)};
    const struct CMUnitTest loaded[] = {
        cmocka_unit_test(kernels_that_the_driver_cannot_load_are_refused)};
    size_t i = 0, n = sizeof REFUSALS / sizeof *REFUSALS;
    while (i < n && strcmp(REFUSALS[i].name, name) != 0)
        i++;
    if (i == n) {
        fprintf(stderr, "no refusal is called \"%s\"\n", name);
        return 1;
    }
    refusal = &REFUSALS[i];
    if (refusal->value)
        setenv(refusal->variable, refusal->value, 1);
    else
        unsetenv(refusal->variable);
    return !refusal->value && tms_cu_images[0].name ? cmocka_run_group_tests(loaded, NULL, NULL)
                                                    : cmocka_run_group_tests(listed, NULL, NULL);
}

int main(int argc, char **argv) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_cuda, close_cuda)
    const struct CMUnitTest tests[] = {
        TEST(a_context_runs_on_the_callers_stream),
        TEST(a_context_refuses_bad_arguments),
        TEST(wrapped_memory_is_the_callers_own),
        TEST(wrap_refuses_bad_arguments),
        TEST(a_buffers_address_is_the_programs_too),
        TEST(events_order_streams_both_ways),
        TEST(events_refuse_bad_arguments),
        TEST(writes_larger_than_staging_come_in_pieces),
        TEST(a_step_on_wrapped_memory_equals_the_reference),
        TEST(waiting_calls_fail_during_a_capture),
        TEST(no_recording_inside_the_callers_capture),
        TEST(a_kernels_fault_arrives_late_and_stays),
    };
    for (uint32_t i = 0; i < ROWS; i++)
        tokens[i] = 300 + i;
    if (argc > 1)
        return strcmp(argv[1], "second-device") ? run_refusal(argv[1]) : run_second_device();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
