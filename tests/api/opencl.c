/* SPDX-License-Identifier: Apache-2.0 */
/* The OpenCL backend on what a program has of OpenCL itself: its context, queue, buffers and events,
 * with its own kernels between the library's. */
#include "host/opencl/opencl.h"
#include "lib/core/core.h"
#include "tests/api/fixture.h"
#include <tamis/opencl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CL(call) assert_int_equal((call), CL_SUCCESS)

/* Multiplication by 1/64 is exact everywhere, division need not be. */
static const char *const text =
    "__kernel void make_rows(__global float *rows, ulong offset, uint seed) {\n"
    "    const uint i = get_global_id(0);\n"
    "    rows[offset + i] = (float)((seed * 31 + i * 17) % 64) * 0.015625f;\n"
    "}\n"
    "__kernel void double_rows(__global const float *from, ulong offset, __global float *to,\n"
    "                          ulong at) {\n"
    "    to[at + get_global_id(0)] = 2 * from[offset + get_global_id(0)];\n"
    "}\n"
    "__kernel void tell_address(__global uchar *x, ulong offset, __global ulong *out) {\n"
    "    *out = (ulong)(uintptr_t)(x + offset);\n"
    "}\n";

static float made(uint32_t seed, uint32_t i) {
    return (float)((seed * 31 + i * 17) % 64) * 0.015625f;
}

/* What the program has. */
static cl_device_id device;
static cl_context native;
static cl_command_queue queue;
static cl_program program;

/* It runs commands only in calls that wait, and kernels see addresses of its own. */
static bool is_oclgrind(void) {
    cl_platform_id platform;
    char name[64] = "";
    CL(clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL));
    CL(clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name - 1, name, NULL));
    return strcmp(name, "Oclgrind") == 0;
}

static cl_command_queue new_queue(cl_command_queue_properties properties) {
    cl_int code;
    cl_command_queue made_queue = clCreateCommandQueue(native, device, properties, &code);
    CL(code);
    return made_queue;
}

static cl_mem new_mem(cl_mem_flags flags, size_t bytes, void *host) {
    cl_int code;
    cl_mem mem = clCreateBuffer(native, flags, bytes, host, &code);
    CL(code);
    return mem;
}

/* Before each test. */
static int open_opencl(void **state) {
    cl_int code;
    (void)state;
    native = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    CL(code);
    queue = new_queue(0);
    program = clCreateProgramWithSource(native, 1, (const char **)&text, NULL, &code);
    CL(code);
    CL(clBuildProgram(program, 1, &device, "", NULL, NULL));
    return 0;
}

static int close_opencl(void **state) {
    (void)state;
    CL(clReleaseProgram(program));
    CL(clReleaseCommandQueue(queue));
    CL(clReleaseContext(native));
    return 0;
}

static tamis_context *create(void) {
    tamis_context *context = NULL;
    OK(tamis_context_create_opencl(native, queue, NULL, &context, &test_error));
    return context;
}

static tamis_buffer *wrap(tamis_context *context, cl_mem mem, uint64_t offset, uint64_t bytes) {
    tamis_buffer *buffer = NULL;
    OK(tamis_buffer_wrap_opencl(context, mem, offset, bytes, &buffer, &test_error));
    return buffer;
}

/* Launches one of the program's kernels with `n` items on its queue, and does not wait. */
typedef struct argument {
    size_t bytes;
    const void *value;
} argument;

static void launch(const char *name, size_t n, const argument *arguments, cl_uint count) {
    cl_int code;
    cl_kernel kernel = clCreateKernel(program, name, &code);
    CL(code);
    for (cl_uint i = 0; i < count; i++)
        CL(clSetKernelArg(kernel, i, arguments[i].bytes, arguments[i].value));
    CL(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &n, NULL, 0, NULL, NULL));
    CL(clReleaseKernel(kernel));
}

static void make_rows(cl_mem rows, uint64_t offset, uint32_t n, uint32_t seed) {
    const cl_ulong at = offset / sizeof(float);
    const argument arguments[] = {{sizeof rows, &rows}, {sizeof at, &at}, {sizeof seed, &seed}};
    launch("make_rows", n, arguments, 3);
}

static void double_rows(cl_mem from, uint64_t offset, cl_mem to, uint64_t to_offset, uint32_t n) {
    const cl_ulong at = offset / sizeof(float), to_at = to_offset / sizeof(float);
    const argument arguments[] = {
        {sizeof from, &from}, {sizeof at, &at}, {sizeof to, &to}, {sizeof to_at, &to_at}};
    launch("double_rows", n, arguments, 4);
}

/* The address by which the program's kernels see a place. */
static uintptr_t address_of(cl_mem mem, uint64_t offset) {
    cl_mem out = new_mem(CL_MEM_READ_WRITE, sizeof(cl_ulong), NULL);
    cl_ulong address = 0;
    const argument arguments[] = {{sizeof mem, &mem}, {sizeof offset, &offset}, {sizeof out, &out}};
    launch("tell_address", 1, arguments, 3);
    CL(clEnqueueReadBuffer(queue, out, CL_TRUE, 0, sizeof address, &address, 0, NULL, NULL));
    CL(clReleaseMemObject(out));
    return (uintptr_t)address;
}

/* ---- Contexts -------------------------------------------------------------------------------- */

static void a_context_runs_on_the_callers_queue(void **state) {
    (void)state;
    char name[128] = "";
    tamis_context *context = create();
    const tamis_device_info *info = tamis_context_device(context);
    CL(clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name - 1, name, NULL));
    assert_string_equal(info->backend, "opencl");
    assert_int_equal(strncmp(info->id, "opencl:", 7), 0);
    assert_non_null(strstr(name, info->name));
    assert_true(info->usable && info->compute_units && info->memory_bytes);
    assert_ptr_equal(tms_cl(context->dev)->queue, queue);
    OK(tamis_context_wait(context, &test_error));
    tamis_context_destroy(&context);
    CL(clFinish(queue)); /* it is still the program's */
}

static void a_context_refuses_bad_arguments(void **state) {
    (void)state;
    tamis_context *context = NULL;
    tamis_context_params named = {.device = "opencl:0"};
    cl_int code;
    cl_context other = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    CL(code);
    FAILS(tamis_context_create_opencl(native, queue, NULL, NULL, &test_error), TAMIS_E_ARGUMENT,
          "out: NULL");
    FAILS(tamis_context_create_opencl(NULL, queue, NULL, &context, &test_error), TAMIS_E_ARGUMENT,
          "OpenCL context: NULL");
    FAILS(tamis_context_create_opencl(native, NULL, NULL, &context, &test_error), TAMIS_E_ARGUMENT,
          "OpenCL queue: NULL");
    FAILS(tamis_context_create_opencl(native, queue, &named, &context, &test_error),
          TAMIS_E_ARGUMENT, "device \"opencl:0\": must be NULL, the OpenCL context decides");
    FAILS(tamis_context_create_opencl(other, queue, NULL, &context, &test_error), TAMIS_E_ARGUMENT,
          test_text("OpenCL queue %p is of the context %p, not %p", (void *)queue, (void *)native,
                    (void *)other));
    setenv("TAMIS_LOG", "everything", 1);
    FAILS(tamis_context_create_opencl(native, queue, NULL, &context, &test_error), TAMIS_E_ARGUMENT,
          "everything");
    unsetenv("TAMIS_LOG");
    assert_null(context);
    CL(clReleaseContext(other));
}

static void queues_out_of_order_are_refused(void **state) {
    (void)state;
    tamis_context *context = NULL;
    cl_int code;
    cl_command_queue loose =
        clCreateCommandQueue(native, device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    cl_command_queue_properties is = 0;
    if (code == CL_SUCCESS)
        CL(clGetCommandQueueInfo(loose, CL_QUEUE_PROPERTIES, sizeof is, &is, NULL));
    if (is & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)
        FAILS(tamis_context_create_opencl(native, loose, NULL, &context, &test_error),
              TAMIS_E_UNSUPPORTED, "is out of order (CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)");
    else
        print_message("the driver makes no queues out of order\n");
    assert_null(context);
    if (loose) CL(clReleaseCommandQueue(loose));
}

static void sub_devices_are_refused(void **state) {
    (void)state;
    const cl_device_partition_property parts[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0};
    tamis_context *context = NULL;
    cl_device_id sub[64];
    cl_uint n = 0;
    cl_int code;
    cl_device_partition_property ways[8] = {0};
    clGetDeviceInfo(device, CL_DEVICE_PARTITION_PROPERTIES, sizeof ways, ways, NULL);
    if (!ways[0] || clCreateSubDevices(device, parts, 64, sub, &n) != CL_SUCCESS || n == 0) {
        print_message("the device has no parts of one compute unit\n");
        return;
    }
    cl_context on_sub = clCreateContext(NULL, 1, sub, NULL, NULL, &code);
    CL(code);
    cl_command_queue of_sub = clCreateCommandQueue(on_sub, sub[0], 0, &code);
    CL(code);
    FAILS(tamis_context_create_opencl(on_sub, of_sub, NULL, &context, &test_error),
          TAMIS_E_UNSUPPORTED, "is a sub-device of");
    CL(clReleaseCommandQueue(of_sub));
    CL(clReleaseContext(on_sub));
    for (cl_uint i = 0; i < n; i++)
        CL(clReleaseDevice(sub[i]));
}

/* The queue is never replaced, and its times are the device's only where it collects them. */
static void timed(cl_command_queue_properties properties) {
    tamis_context *context = NULL;
    tamis_event *from = NULL, *to = NULL;
    uint8_t byte = 1;
    double us = -1;
    cl_command_queue of_times = new_queue(properties);
    OK(tamis_context_create_opencl(native, of_times, NULL, &context, &test_error));
    tamis_buffer *buffer = NULL;
    OK(tamis_buffer_create(context, 64, &buffer, &test_error));
    OK(tamis_event_record_timed(context, &from, &test_error));
    OK(tamis_buffer_write(buffer, 0, &byte, 1, &test_error));
    OK(tamis_event_record_timed(context, &to, &test_error));
    OK(tamis_event_elapsed(from, to, &us, &test_error));
    assert_true(us >= 0 && us < 1e8);
    assert_ptr_equal(tms_cl(context->dev)->queue, of_times);
    if (!properties) assert_true(tms_cl(context->dev)->host_times);
    assert_true(tms_cl(context->dev)->host_times != tms_cl(context->dev)->profiling);
    tamis_event_destroy(&from);
    tamis_event_destroy(&to);
    tamis_buffer_destroy(&buffer);
    tamis_context_destroy(&context);
    CL(clReleaseCommandQueue(of_times));
}

static void timing_leaves_the_callers_queue(void **state) {
    (void)state;
    timed(0);
    timed(CL_QUEUE_PROFILING_ENABLE);
}

/* ---- Buffers --------------------------------------------------------------------------------- */

/* One memory under both names, one order of both's commands. */
static void wrapped_memory_is_the_callers_own(void **state) {
    (void)state;
    enum { N = 1000, OFFSET = 192 };
    static uint32_t sent[N], got[N];
    const uint32_t word = 77;
    uint64_t begin = 1;
    cl_mem mem = new_mem(CL_MEM_READ_WRITE, OFFSET + sizeof sent + 64, NULL);
    tamis_context *context = create();
    tamis_buffer *buffer = wrap(context, mem, OFFSET, sizeof sent);
    assert_int_equal(tamis_buffer_bytes(buffer), sizeof sent);
    assert_ptr_equal(tamis_buffer_opencl(buffer, &begin), mem);
    assert_ptr_equal(tamis_buffer_opencl(buffer, NULL), mem);
    assert_int_equal(begin, OFFSET);

    CL(clEnqueueFillBuffer(queue, mem, &word, sizeof word, OFFSET, sizeof sent, 0, NULL, NULL));
    OK(tamis_buffer_read(buffer, 0, got, sizeof got, &test_error));
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(got[i], word);
    for (uint32_t i = 0; i < N; i++)
        sent[i] = i * 2654435761u;
    OK(tamis_buffer_write(buffer, 0, sent, sizeof sent, &test_error));
    tamis_buffer_destroy(&buffer);
    tamis_context_destroy(&context); /* the memory outlives both */

    CL(clEnqueueReadBuffer(queue, mem, CL_TRUE, OFFSET, sizeof got, got, 0, NULL, NULL));
    assert_memory_equal(got, sent, sizeof got);
    CL(clReleaseMemObject(mem));
}

/* Uploads, copies and fills begin where the buffer does; bytes beside it stay. */
static void every_copy_begins_where_the_buffer_does(void **state) {
    (void)state;
    enum { OFFSET = 128, BYTES = 256, ALL = 640 };
    uint8_t got[ALL];
    const uint8_t old = 9;
    tamis_host_buffer *host = NULL;
    tamis_event *done = NULL;
    cl_mem mem = new_mem(CL_MEM_READ_WRITE, ALL, NULL);
    tamis_context *context = create();
    tamis_buffer *buffer = wrap(context, mem, OFFSET, BYTES);
    CL(clEnqueueFillBuffer(queue, mem, &old, 1, 0, ALL, 0, NULL, NULL));
    CL(clFinish(queue));
    OK(tamis_host_buffer_create(context, 64, &host, &test_error));
    memset(tamis_host_buffer_data(host), 1, 64);
    OK(tamis_buffer_upload(buffer, 0, host, 0, 64, NULL, &done, &test_error));
    OK(tamis_event_await(done, &test_error));
    OK(tms_device_copy(context->dev, (tms_ref){buffer->mem, 64}, (tms_ref){buffer->mem, 0}, 64,
                       &test_error));
    OK(tms_device_fill(context->dev, (tms_ref){buffer->mem, 128}, 0x02020202, 128, &test_error));
    CL(clEnqueueReadBuffer(queue, mem, CL_TRUE, 0, ALL, got, 0, NULL, NULL));
    for (uint32_t i = 0; i < ALL; i++)
        assert_int_equal(got[i], i < 128 || i >= 384 ? old : i < 256 ? 1 : 2);
    FAILS(tamis_buffer_write(buffer, BYTES - 1, got, 2, &test_error), TAMIS_E_ARGUMENT,
          "2 bytes at offset 255: the buffer has 256");
    tamis_event_destroy(&done);
    tamis_host_buffer_destroy(&host);
    tamis_buffer_destroy(&buffer);
    tamis_context_destroy(&context);
    CL(clReleaseMemObject(mem));
}

/* Where kernels use the host's memory in place, its address is that which the program's kernels see. */
static void expect_address(tamis_context *context, tamis_buffer *buffer) {
    uint64_t offset;
    cl_mem mem = tamis_buffer_opencl(buffer, &offset);
    uint8_t *data = tamis_buffer_data(buffer), got = 0;
    if (!data) return;
    if (!is_oclgrind()) assert_int_equal((uintptr_t)data, address_of(mem, offset));
    OK(tamis_context_wait(context, &test_error));
    data[1] = 42;
    CL(clEnqueueReadBuffer(queue, mem, CL_TRUE, offset + 1, 1, &got, 0, NULL, NULL));
    assert_int_equal(got, 42);
    const uint8_t byte = 43;
    OK(tamis_buffer_write(buffer, 2, &byte, 1, &test_error));
    OK(tamis_context_wait(context, &test_error));
    assert_int_equal(data[2], 43);
}

static void no_copy_is_made(void **state) {
    (void)state;
    enum { BYTES = 4096, BASE = 1024 };
    const cl_buffer_region region = {BASE, 2048};
    cl_int code;
    void *memory = aligned_alloc(64, BYTES);
    assert_non_null(memory);
    tamis_context *context = create();
    tamis_buffer *own = NULL, *large = NULL;
    cl_mem mems[] = {new_mem(CL_MEM_READ_WRITE, BYTES, NULL), new_mem(0, BYTES, NULL),
                     new_mem(CL_MEM_ALLOC_HOST_PTR, BYTES, NULL),
                     new_mem(CL_MEM_USE_HOST_PTR, BYTES, memory),
                     new_mem(CL_MEM_COPY_HOST_PTR, BYTES, memory)};
    const bool in_place = tms_cl(context->dev)->in_place;
    for (size_t i = 0; i < sizeof mems / sizeof *mems; i++) {
        cl_mem sub = clCreateSubBuffer(mems[i], 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
        CL(code);
        tamis_buffer *all = wrap(context, mems[i], 0, BYTES);
        tamis_buffer *part = wrap(context, mems[i], 320, 64),
                     *of_sub = wrap(context, sub, 64, 1024);
        expect_address(context, all);
        expect_address(context, part);
        expect_address(context, of_sub);
        uint8_t *base = tamis_buffer_data(all);
        assert_int_equal(base != NULL, in_place);
        if (base) assert_ptr_equal(tamis_buffer_data(part), base + 320);
        if (base) assert_ptr_equal(tamis_buffer_data(of_sub), base + BASE + 64);
        if (base && i == 3) assert_ptr_equal(base, memory);
        tamis_buffer_destroy(&all);
        tamis_buffer_destroy(&part);
        tamis_buffer_destroy(&of_sub);
        CL(clReleaseMemObject(sub));
        CL(clReleaseMemObject(mems[i]));
    }
    OK(tamis_buffer_create(context, 256, &own, &test_error));
    OK(tamis_buffer_create(context, 3 << 20, &large, &test_error));
    expect_address(context, own);
    expect_address(context, large);
    tamis_buffer_destroy(&own);
    tamis_buffer_destroy(&large);
    tamis_context_destroy(&context);
    free(memory);
}

static void wrap_refuses_bad_arguments(void **state) {
    (void)state;
    const cl_image_format format = {CL_RGBA, CL_FLOAT};
    const cl_image_desc desc = {
        .image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 16, .image_height = 16};
    tamis_context *context = create(), *other = NULL, *reference = NULL;
    tamis_buffer *buffer = NULL;
    cl_mem mem = new_mem(CL_MEM_READ_WRITE, 4096, NULL);
    const char *is = test_text("%p", (void *)mem);
    cl_int code;
    FAILS(tamis_buffer_wrap_opencl(context, mem, 0, 64, NULL, &test_error), TAMIS_E_ARGUMENT,
          "out: NULL");
    FAILS(tamis_buffer_wrap_opencl(NULL, mem, 0, 64, &buffer, &test_error), TAMIS_E_ARGUMENT,
          "context: NULL");
    FAILS(tamis_buffer_wrap_opencl(context, NULL, 0, 64, &buffer, &test_error), TAMIS_E_ARGUMENT,
          "cl_mem: NULL");
    FAILS(tamis_buffer_wrap_opencl(context, mem, 32, 64, &buffer, &test_error), TAMIS_E_ARGUMENT,
          "offset 32 in a cl_mem: must be a multiple of 64");
    FAILS(tamis_buffer_wrap_opencl(context, mem, 0, 0, &buffer, &test_error), TAMIS_E_ARGUMENT, is);
    FAILS(tamis_buffer_wrap_opencl(context, mem, 64, 4033, &buffer, &test_error), TAMIS_E_ARGUMENT,
          "4033 bytes at offset 64 of 4096");
    FAILS(tamis_buffer_wrap_opencl(context, mem, 1ull << 40, 64, &buffer, &test_error),
          TAMIS_E_ARGUMENT, "64 bytes at offset 1099511627776 of 4096");
    OK(tamis_context_create(&(tamis_context_params){.device = "reference"}, &reference,
                            &test_error));
    FAILS(tamis_buffer_wrap_opencl(reference, mem, 0, 64, &buffer, &test_error),
          TAMIS_E_UNSUPPORTED, "backend reference: OpenCL memory is not its own");
    OK(tamis_context_create(&(tamis_context_params){.device = tamis_context_device(context)->id},
                            &other, &test_error));
    FAILS(tamis_buffer_wrap_opencl(other, mem, 0, 64, &buffer, &test_error), TAMIS_E_ARGUMENT,
          test_text("cl_mem %p is of the OpenCL context %p, not ", (void *)mem, (void *)native));
    cl_mem image = clCreateImage(native, CL_MEM_READ_WRITE, &format, &desc, NULL, &code);
    if (code == CL_SUCCESS)
        FAILS(tamis_buffer_wrap_opencl(context, image, 0, 64, &buffer, &test_error),
              TAMIS_E_ARGUMENT, "of type 0x10f1, which is no buffer's (0x10f0)");
    assert_null(buffer);
    if (image) CL(clReleaseMemObject(image));
    CL(clReleaseMemObject(mem));
    tamis_context_destroy(&other);
    tamis_context_destroy(&reference);
    tamis_context_destroy(&context);
}

static void buffers_with_limits_are_refused(void **state) {
    (void)state;
    const struct {
        cl_mem_flags flags;
        const char *name;
    } limits[] = {{CL_MEM_READ_ONLY, "CL_MEM_READ_ONLY: "},
                  {CL_MEM_WRITE_ONLY, "CL_MEM_WRITE_ONLY: "},
                  {CL_MEM_HOST_READ_ONLY, "CL_MEM_HOST_READ_ONLY: "},
                  {CL_MEM_HOST_WRITE_ONLY, "CL_MEM_HOST_WRITE_ONLY: "},
                  {CL_MEM_HOST_NO_ACCESS, "CL_MEM_HOST_NO_ACCESS: "}};
    tamis_context *context = create();
    tamis_buffer *buffer = NULL;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        cl_mem mem = new_mem(limits[i].flags, 64, NULL);
        FAILS(tamis_buffer_wrap_opencl(context, mem, 0, 64, &buffer, &test_error), TAMIS_E_ARGUMENT,
              test_text("cl_mem %p was made with %s", (void *)mem, limits[i].name));
        assert_null(buffer);
        CL(clReleaseMemObject(mem));
    }
    tamis_context_destroy(&context);
}

/* Of memory of the host, which a CPU uses as it lies there. */
static void addresses_must_be_aligned(void **state) {
    (void)state;
    tamis_context *context = create();
    tamis_buffer *buffer = NULL;
    uint8_t *memory = aligned_alloc(64, 4096);
    assert_non_null(memory);
    cl_mem off = new_mem(CL_MEM_USE_HOST_PTR, 1024, memory + 16);
    if (tms_cl(context->dev)->cpu)
        FAILS(tamis_buffer_wrap_opencl(context, off, 0, 64, &buffer, &test_error), TAMIS_E_ARGUMENT,
              test_text("is at the host's address %p: must be a multiple of 64",
                        (void *)(memory + 16)));
    assert_null(buffer);
    CL(clReleaseMemObject(off));
    tamis_context_destroy(&context);
    free(memory);
}

/* ---- Memory of the host ---------------------------------------------------------------------- */

/* Of OpenCL 2.0, which the backend's headers do not show. */
#define SVM_CAPABILITIES 0x1053 /* CL_DEVICE_SVM_CAPABILITIES */
extern CL_API_ENTRY void *CL_API_CALL clSVMAlloc(cl_context context, cl_bitfield flags,
                                                 size_t bytes, cl_uint alignment);
extern CL_API_ENTRY void CL_API_CALL clSVMFree(cl_context context, void *memory);

/* A device whose kernels get buffers, and none whose memory is the host's: a GPU, as far as the
 * library can tell. */
static void a_gpu_takes_shared_virtual_memory_alone(void **state) {
    (void)state;
    enum { BYTES = 4096 };
    tamis_context *context = create();
    tms_cl_device *cl = tms_cl(context->dev);
    tamis_buffer *buffer = NULL;
    const bool in_place = cl->in_place, cpu = cl->cpu;
    cl_ulong svm = 0;
    uint8_t sent[3] = {1, 2, 3}, got[3], *memory = aligned_alloc(64, BYTES);
    assert_non_null(memory);
    cl->in_place = cl->cpu = false;
    FAILS(tamis_buffer_wrap_host(context, memory, BYTES, &buffer, &test_error), TAMIS_E_UNSUPPORTED,
          "would work on a copy: it takes memory of the host only where that is shared virtual "
          "memory (SVM)");
    assert_null(buffer);
    clGetDeviceInfo(device, SVM_CAPABILITIES, sizeof svm, &svm, NULL);
    void *shared = svm ? clSVMAlloc(native, CL_MEM_READ_WRITE, BYTES, 64) : NULL;
    if (shared) {
        OK(tamis_buffer_wrap_host(context, shared, BYTES, &buffer, &test_error));
        assert_null(tamis_buffer_data(buffer));
        OK(tamis_buffer_write(buffer, 5, sent, sizeof sent, &test_error));
        OK(tamis_buffer_read(buffer, 5, got, sizeof got, &test_error));
        assert_memory_equal(got, sent, sizeof got);
        tamis_buffer_destroy(&buffer);
        clSVMFree(native, shared);
    } else {
        print_message("no shared virtual memory\n");
    }
    cl->in_place = in_place;
    cl->cpu = cpu;
    tamis_context_destroy(&context);
    free(memory);
}

/* A CPU whose kernels get buffers is tried once. */
static void a_cpu_is_tried_before_it_gets_the_hosts_memory(void **state) {
    (void)state;
    enum { BYTES = 4096 };
    tamis_context *context = create();
    tms_cl_device *cl = tms_cl(context->dev);
    tamis_buffer *buffer = NULL;
    const bool in_place = cl->in_place;
    void *memory = aligned_alloc(64, BYTES);
    assert_non_null(memory);
    cl->in_place = false;
    const tamis_status status =
        tamis_buffer_wrap_host(context, memory, BYTES, &buffer, &test_error);
    if (cl->cpu) assert_int_not_equal(cl->of_host, TMS_CL_UNTRIED);
    if (cl->of_host == TMS_CL_USES_HOST) {
        assert_int_equal(status, TAMIS_OK);
        expect_address(context, buffer);
        assert_ptr_equal(tamis_buffer_data(buffer), memory);
    } else {
        assert_int_equal(status, TAMIS_E_UNSUPPORTED);
        assert_null(buffer);
    }
    print_message("%s\n", cl->of_host == TMS_CL_USES_HOST ? "in place" : "refused");
    tamis_buffer_destroy(&buffer);
    cl->in_place = in_place;
    tamis_context_destroy(&context);
    free(memory);
}

/* ---- Events ---------------------------------------------------------------------------------- */

static bool is_complete(cl_event event) {
    cl_int status = CL_QUEUED;
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    CL(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
    return status == CL_COMPLETE;
}

/* A gate before the library's queue, and a queue of the program's behind it. */
static void events_order_queues_both_ways(void **state) {
    (void)state;
    uint32_t old = 1, new = 2, got = 0;
    cl_int code;
    tamis_event *gate = NULL, *done = NULL;
    cl_mem mem = new_mem(CL_MEM_READ_WRITE, 64, NULL);
    cl_command_queue second = new_queue(0);
    tamis_context *context = create();
    tamis_buffer *buffer = wrap(context, mem, 0, 64);
    OK(tamis_buffer_write(buffer, 0, &old, sizeof old, &test_error));
    OK(tamis_context_wait(context, &test_error));
    cl_event user = clCreateUserEvent(native, &code), copied;
    CL(code);
    OK(tamis_event_wrap_opencl(context, user, &gate, &test_error));
    assert_ptr_equal(tamis_event_opencl(gate), user);
    OK(tamis_event_await(gate, &test_error));
    OK(tamis_buffer_write(buffer, 0, &new, sizeof new, &test_error));
    OK(tamis_event_record(context, &done, &test_error));
    if (is_oclgrind()) CL(clSetUserEventStatus(user, CL_COMPLETE));
    const cl_event behind = tamis_event_opencl(done);
    CL(clEnqueueReadBuffer(second, mem, CL_FALSE, 0, sizeof got, &got, 1, &behind, &copied));
    if (!is_oclgrind()) {
        CL(clFlush(second));
        assert_false(is_complete(behind) || is_complete(copied));
        assert_int_equal(got, 0);
    }
    if (!is_oclgrind()) CL(clSetUserEventStatus(user, CL_COMPLETE));
    CL(clWaitForEvents(1, &copied));
    assert_int_equal(got, new);
    OK(tamis_event_wait(gate, &test_error));
    OK(tamis_event_wait(done, &test_error));
    double us;
    FAILS(tamis_event_elapsed(gate, done, &us, &test_error), TAMIS_E_ARGUMENT, "has times");
    tamis_event_destroy(&gate);
    tamis_event_destroy(&done);
    tamis_buffer_destroy(&buffer);
    tamis_context_destroy(&context);
    CL(clReleaseEvent(copied));
    CL(clReleaseEvent(user));
    CL(clReleaseCommandQueue(second));
    CL(clReleaseMemObject(mem));
}

static void events_refuse_bad_arguments(void **state) {
    (void)state;
    cl_int code;
    tamis_context *context = create(), *other = NULL, *reference = NULL;
    tamis_event *event = NULL;
    cl_event user = clCreateUserEvent(native, &code);
    CL(code);
    FAILS(tamis_event_wrap_opencl(context, user, NULL, &test_error), TAMIS_E_ARGUMENT, "out: NULL");
    FAILS(tamis_event_wrap_opencl(NULL, user, &event, &test_error), TAMIS_E_ARGUMENT,
          "context: NULL");
    FAILS(tamis_event_wrap_opencl(context, NULL, &event, &test_error), TAMIS_E_ARGUMENT,
          "OpenCL event: NULL");
    OK(tamis_context_create(&(tamis_context_params){.device = "reference"}, &reference,
                            &test_error));
    FAILS(tamis_event_wrap_opencl(reference, user, &event, &test_error), TAMIS_E_UNSUPPORTED,
          "backend reference: OpenCL events are not its own");
    OK(tamis_context_create(&(tamis_context_params){.device = tamis_context_device(context)->id},
                            &other, &test_error));
    FAILS(tamis_event_wrap_opencl(other, user, &event, &test_error), TAMIS_E_ARGUMENT,
          test_text("cl_event %p is of the OpenCL context %p, not ", (void *)user, (void *)native));
    assert_null(event);
    assert_null(tamis_event_opencl(NULL));
    assert_null(tamis_buffer_opencl(NULL, NULL));
    OK(tamis_event_record(reference, &event, &test_error));
    assert_null(tamis_event_opencl(event));
    tamis_event_destroy(&event);
    CL(clSetUserEventStatus(user, CL_COMPLETE));
    CL(clReleaseEvent(user));
    tamis_context_destroy(&reference);
    tamis_context_destroy(&other);
    tamis_context_destroy(&context);
}

/* A late error, which stays. */
static void an_event_that_fails_is_a_late_error(void **state) {
    (void)state;
    cl_int code;
    tamis_event *event = NULL;
    tamis_context *context = create();
    cl_event user = clCreateUserEvent(native, &code);
    CL(code);
    OK(tamis_event_wrap_opencl(context, user, &event, &test_error));
    CL(clSetUserEventStatus(user, CL_OUT_OF_RESOURCES));
    FAILS(tamis_event_wait(event, &test_error), TAMIS_E_DEVICE, "event wait: ");
    FAILS(tamis_context_wait(context, &test_error), TAMIS_E_DEVICE, "event wait: ");
    tamis_event_destroy(&event);
    tamis_context_destroy(&context);
    CL(clReleaseEvent(user));
}

/* ---- Plans with the program's kernels between ------------------------------------------------ */

enum { PROMPT = 41, STEPS = 3, LAYERS = 2 };

/* A world of the fixture's, on a context that test_close destroys. Its buffers are none: rows are the
 * program's. */
static void open_world(test_world *world, tamis_context *context) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params params = {.max_rows = PROMPT, .max_context = 256};
    tamis_selection_default(TAMIS_SELECT_QUEST, &params.selection);
    params.selection.budget = 32;
    params.selection.recent = 8;
    *world = (test_world){.context = context, .shape = shape, .max_rows = PROMPT};
    OK(tamis_cache_create(context, &shape, &world->cache, &test_error));
    OK(tamis_plan_create(world->cache, &params, &world->plan, &test_error));
}

/* Where rows lie in the one memory of activations, in bytes. */
typedef struct places {
    uint32_t q_width, kv_width; /* floats of a row */
    uint64_t q, k, v, out, bytes;
} places;

static places lay_out(const test_world *world) {
    const tamis_cache_params *s = &world->shape;
    places p = {.q_width = s->n_heads * s->head_dim, .kv_width = s->n_kv_heads * s->head_dim};
    p.q = 0;
    p.k = p.q + PROMPT * p.q_width * sizeof(float);
    p.v = p.k + PROMPT * p.kv_width * sizeof(float);
    p.out = p.v + PROMPT * p.kv_width * sizeof(float);
    p.bytes = p.out + PROMPT * p.q_width * sizeof(float);
    return p;
}

static uint32_t seed_of(uint32_t step, uint32_t layer, uint32_t which) {
    return (step * LAYERS + layer) * 3 + which;
}

/* A side makes the rows of a layer, and takes what was attended. */
typedef struct side {
    test_world world;
    places p;
    tamis_buffer *rows;
    cl_mem activations, results; /* of the program; NULL: the other side */
    uint64_t begin;              /* of the rows in the program's memory */
    float *host;                 /* of the other side: [steps][layers] of a prompt's rows */
} side;

static void make(side *s, uint64_t offset, uint32_t n, uint32_t seed) {
    if (s->activations) {
        make_rows(s->activations, s->begin + offset, n, seed);
        return;
    }
    float *values = malloc(n * sizeof *values);
    assert_non_null(values);
    for (uint32_t i = 0; i < n; i++)
        values[i] = made(seed, i);
    OK(tamis_buffer_write(s->rows, offset, values, n * sizeof *values, &test_error));
    free(values);
}

static void take(side *s, uint64_t at, uint32_t n) {
    if (s->activations) {
        double_rows(s->activations, s->begin + s->p.out, s->results, at, n);
        return;
    }
    float *to = s->host + at / sizeof(float);
    OK(tamis_buffer_read(s->rows, s->p.out, to, n * sizeof *to, &test_error));
    for (uint32_t i = 0; i < n; i++)
        to[i] *= 2;
}

static void run_layer(side *s, uint32_t step, uint32_t layer, uint32_t rows) {
    const places *p = &s->p;
    const tamis_rows q = {.buffer = s->rows, .offset = p->q},
                     k = {.buffer = s->rows, .offset = p->k},
                     v = {.buffer = s->rows, .offset = p->v},
                     out = {.buffer = s->rows, .offset = p->out};
    make(s, p->q, rows * p->q_width, seed_of(step, layer, 0));
    make(s, p->k, rows * p->kv_width, seed_of(step, layer, 1));
    make(s, p->v, rows * p->kv_width, seed_of(step, layer, 2));
    OK(tamis_plan_write(s->world.plan, layer, &k, &v, &test_error));
    OK(tamis_plan_attend(s->world.plan, layer, &q, &out, &test_error));
    take(s, (step * LAYERS + layer) * (uint64_t)PROMPT * p->q_width * sizeof(float),
         rows * p->q_width);
}

static void run_steps(side *s) {
    tamis_sequence sequence;
    OK(tamis_cache_add(s->world.cache, &sequence, &test_error));
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t rows = step == 0 ? PROMPT : 1;
        const tamis_step begun = {
            .sequences = &sequence, .rows = &rows, .count = 1, .exact = step == 0};
        OK(tamis_plan_step_begin(s->world.plan, &begun, &test_error));
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            run_layer(s, step, layer, rows);
        OK(tamis_plan_step_end(s->world.plan, &test_error));
    }
    tamis_plan_counters c;
    tamis_plan_get_counters(s->world.plan, &c);
    assert_in_range(c.kv_bytes_read, 1, c.kv_bytes_full - 1);
}

static uint64_t bytes_of_results(const places *p) {
    return (uint64_t)STEPS * LAYERS * PROMPT * p->q_width * sizeof(float);
}

/* The program's kernel makes q, K and V, ours attend, and its next one reads what was attended: on one
 * queue, where nothing waits until the end. */
static float *run_programs(void) {
    const float zero = 0;
    side s = {.begin = 192};
    tamis_context *context = create();
    open_world(&s.world, context);
    s.p = lay_out(&s.world);
    const uint64_t bytes = bytes_of_results(&s.p);
    float *got = malloc(bytes);
    assert_non_null(got);
    s.activations = new_mem(CL_MEM_READ_WRITE, s.begin + s.p.bytes, NULL);
    s.results = new_mem(CL_MEM_READ_WRITE, bytes, NULL);
    CL(clEnqueueFillBuffer(queue, s.results, &zero, sizeof zero, 0, bytes, 0, NULL, NULL));
    s.rows = wrap(context, s.activations, s.begin, s.p.bytes);
    run_steps(&s);
    CL(clEnqueueReadBuffer(queue, s.results, CL_TRUE, 0, bytes, got, 0, NULL, NULL));
    CL(clReleaseMemObject(s.activations));
    CL(clReleaseMemObject(s.results));
    tamis_buffer_destroy(&s.rows);
    test_close(&s.world);
    return got;
}

static float *run_own(const char *id, uint64_t *bytes) {
    const tamis_context_params params = {.device = id};
    side s = {0};
    tamis_context *context = NULL;
    OK(tamis_context_create(&params, &context, &test_error));
    open_world(&s.world, context);
    s.p = lay_out(&s.world);
    *bytes = bytes_of_results(&s.p);
    s.host = calloc(1, *bytes);
    assert_non_null(s.host);
    OK(tamis_buffer_create(context, s.p.bytes, &s.rows, &test_error));
    run_steps(&s);
    tamis_buffer_destroy(&s.rows);
    test_close(&s.world);
    return s.host;
}

static void the_programs_kernels_run_between_ours(void **state) {
    (void)state;
    uint64_t bytes;
    tamis_context *context = create();
    const tamis_device_info info = *tamis_context_device(context);
    tamis_context_destroy(&context);
    float *got = run_programs(), *wanted = run_own(info.id, &bytes);
    float sum = 0;
    for (uint64_t i = 0; i < bytes / sizeof *got; i++)
        sum += wanted[i];
    assert_true(sum > 0);
    assert_memory_equal(got, wanted, bytes);
    free(got);
    free(wanted);
}

/* ---- Lives ----------------------------------------------------------------------------------- */

typedef struct counts {
    cl_uint context, queue, mem, event;
} counts;

/* Behind a command of the program's: PoCL keeps the last command on a buffer, and so its queue. */
static counts count(cl_mem mem, cl_event event) {
    const uint32_t word = 0;
    counts c;
    CL(clEnqueueFillBuffer(queue, mem, &word, sizeof word, 0, 64, 0, NULL, NULL));
    CL(clFinish(queue));
    CL(clGetContextInfo(native, CL_CONTEXT_REFERENCE_COUNT, sizeof c.context, &c.context, NULL));
    CL(clGetCommandQueueInfo(queue, CL_QUEUE_REFERENCE_COUNT, sizeof c.queue, &c.queue, NULL));
    CL(clGetMemObjectInfo(mem, CL_MEM_REFERENCE_COUNT, sizeof c.mem, &c.mem, NULL));
    CL(clGetEventInfo(event, CL_EVENT_REFERENCE_COUNT, sizeof c.event, &c.event, NULL));
    return c;
}

/* Drivers may let go of what they hold themselves a moment after a command is done. */
static void expect_counts(const counts *before, cl_mem mem, cl_event event) {
    counts now = count(mem, event);
    for (int i = 0; i < 100 && memcmp(&now, before, sizeof now) != 0; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        now = count(mem, event);
    }
    assert_int_equal(now.context, before->context);
    assert_int_equal(now.queue, before->queue);
    assert_int_equal(now.mem, before->mem);
    assert_int_equal(now.event, before->event);
}

/* Objects are destroyed in one of the orders of three, behind a refusal. */
static void live_and_end(cl_mem mem, cl_event event, const int *order) {
    uint32_t word = 5;
    tamis_context *context = create();
    tamis_buffer *buffer = wrap(context, mem, 64, 64), *none = NULL;
    tamis_event *mark = NULL;
    OK(tamis_event_wrap_opencl(context, event, &mark, &test_error));
    const counts held = count(mem, event);
    assert_true(held.mem >= 2 && held.event >= 2);
    OK(tamis_event_await(mark, &test_error));
    OK(tamis_buffer_write(buffer, 0, &word, sizeof word, &test_error));
    FAILS(tamis_buffer_wrap_opencl(context, mem, 64, 1 << 20, &none, &test_error), TAMIS_E_ARGUMENT,
          "1048576 bytes");
    for (int i = 0; i < 3; i++) {
        if (order[i] == 0) tamis_context_destroy(&context);
        if (order[i] == 1) tamis_buffer_destroy(&buffer);
        if (order[i] == 2) tamis_event_destroy(&mark);
    }
}

static void every_reference_is_given_back(void **state) {
    (void)state;
    const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    cl_int code;
    cl_mem mem = new_mem(CL_MEM_READ_WRITE, 4096, NULL);
    cl_event event = clCreateUserEvent(native, &code);
    CL(code);
    CL(clSetUserEventStatus(event, CL_COMPLETE));
    const counts before = count(mem, event);
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        live_and_end(mem, event, orders[i]);
        expect_counts(&before, mem, event);
    }
    CL(clReleaseEvent(event));
    CL(clReleaseMemObject(mem));
}

/* The program may release all that is its own first. */
static void the_caller_may_release_first(void **state) {
    (void)state;
    cl_int code;
    uint32_t word = 7, got = 0;
    tamis_context *context = NULL;
    tamis_event *mark = NULL;
    cl_context alone = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    CL(code);
    cl_command_queue of_alone = clCreateCommandQueue(alone, device, 0, &code);
    CL(code);
    cl_mem mem = clCreateBuffer(alone, CL_MEM_READ_WRITE, 4096, NULL, &code);
    CL(code);
    cl_event user = clCreateUserEvent(alone, &code);
    CL(code);
    OK(tamis_context_create_opencl(alone, of_alone, NULL, &context, &test_error));
    tamis_buffer *buffer = wrap(context, mem, 0, 4096);
    OK(tamis_event_wrap_opencl(context, user, &mark, &test_error));
    CL(clSetUserEventStatus(user, CL_COMPLETE));
    CL(clReleaseEvent(user));
    CL(clReleaseMemObject(mem));
    CL(clReleaseCommandQueue(of_alone));
    CL(clReleaseContext(alone));
    OK(tamis_event_await(mark, &test_error));
    OK(tamis_buffer_write(buffer, 4092, &word, sizeof word, &test_error));
    OK(tamis_buffer_read(buffer, 4092, &got, sizeof got, &test_error));
    assert_int_equal(got, word);
    tamis_context_destroy(&context);
    tamis_event_destroy(&mark);
    tamis_buffer_destroy(&buffer);
}

/* ---- The device ------------------------------------------------------------------------------ */

/* Whether the library takes the device. */
static bool is_taken(void) {
    tamis_context *context = NULL;
    cl_int code;
    tamis_error error = {0};
    native = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    if (code != CL_SUCCESS) return false;
    queue = clCreateCommandQueue(native, device, 0, &code);
    const tamis_status status =
        code == CL_SUCCESS ? tamis_context_create_opencl(native, queue, NULL, &context, &error)
                           : TAMIS_E_NO_DEVICE;
    tamis_context_destroy(&context);
    if (queue) clReleaseCommandQueue(queue);
    clReleaseContext(native);
    if (status != TAMIS_OK) printf("passed over: %s\n", error.text);
    return status == TAMIS_OK;
}

/* The first device of any platform that the library takes. */
static bool find_device(void) {
    cl_platform_id platforms[16];
    cl_uint n_platforms = 0;
    if (clGetPlatformIDs(16, platforms, &n_platforms) != CL_SUCCESS) return false;
    for (cl_uint i = 0; i < n_platforms && i < 16; i++) {
        cl_device_id devices[16];
        cl_uint n = 0;
        if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 16, devices, &n) != CL_SUCCESS)
            continue;
        for (cl_uint j = 0; j < n && j < 16; j++) {
            device = devices[j];
            if (is_taken()) return true;
        }
    }
    return false;
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_opencl, close_opencl)
    const struct CMUnitTest tests[] = {
        TEST(a_context_runs_on_the_callers_queue),
        TEST(a_context_refuses_bad_arguments),
        TEST(queues_out_of_order_are_refused),
        TEST(sub_devices_are_refused),
        TEST(timing_leaves_the_callers_queue),
        TEST(wrapped_memory_is_the_callers_own),
        TEST(every_copy_begins_where_the_buffer_does),
        TEST(no_copy_is_made),
        TEST(wrap_refuses_bad_arguments),
        TEST(buffers_with_limits_are_refused),
        TEST(addresses_must_be_aligned),
        TEST(a_gpu_takes_shared_virtual_memory_alone),
        TEST(a_cpu_is_tried_before_it_gets_the_hosts_memory),
        TEST(events_order_queues_both_ways),
        TEST(events_refuse_bad_arguments),
        TEST(an_event_that_fails_is_a_late_error),
        TEST(the_programs_kernels_run_between_ours),
        TEST(every_reference_is_given_back),
        TEST(the_caller_may_release_first),
    };
    unsetenv("TAMIS_DEVICE");
    setenv("TAMIS_SETTINGS", "none", 1); /* the user's own file is not tested */
    if (!find_device()) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
