/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's entry points, which are those that host/opencl calls, and a CLBlast that multiplies
 * nothing. A question that the GPU has no answer to ends the process. */
#define CL_TARGET_OPENCL_VERSION 120
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include "tests/cl_programs/driver.h"
#include <CL/cl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUB_GROUP_SIZES 0x4108 /* of cl_intel_required_subgroup_size */
#define MOST_SIZES 8 /* of a kernel's work-groups */

struct _cl_mem {
    uint8_t *bytes;
    void(CL_CALLBACK *notify)(cl_mem, void *);
    void *user;
};

typedef struct kernel kernel;
struct kernel {
    kernel *next;
    size_t sizes[MOST_SIZES], n_sizes;
    char name[];
};

struct _cl_program {
    struct _cl_program *next;
    char *text, *options, name[64];
    kernel *kernels;
};

/* A kernel object's own arguments are of no interest. */
struct _cl_kernel {
    kernel *of;
};

/* What there is one of. */
static struct _cl_platform_id { driver_gpu gpu; } platform;
static struct _cl_device_id { int unused; } device;
static struct _cl_context { int unused; } context;
static struct _cl_command_queue { int unused; } queue;
static struct _cl_event { cl_ulong clock; } marker;

static cl_program programs, *last = &programs;

static void *need(void *memory) {
    if (memory) return memory;
    fprintf(stderr, "cl_programs: no memory\n");
    exit(1);
}

static char *copy_of(const char *text) {
    return need(strdup(text));
}

void driver_begin(const driver_gpu *gpu) {
    platform.gpu = *gpu;
}

/* ---- What it says of itself ------------------------------------------------------------------ */

static cl_int answer(const void *from, size_t bytes, size_t size, void *value, size_t *full) {
    if (full) *full = bytes;
    if (!value) return CL_SUCCESS;
    if (size < bytes) return CL_INVALID_VALUE;
    memcpy(value, from, bytes);
    return CL_SUCCESS;
}

static cl_int answer_text(const char *text, size_t size, void *value, size_t *full) {
    return answer(text, strlen(text) + 1, size, value, full);
}

static cl_int unknown(const char *call, unsigned what) {
    fprintf(stderr, "cl_programs: %s asks for 0x%x, which driver.c does not know\n", call, what);
    exit(1);
}

cl_int CL_API_CALL clGetPlatformIDs(cl_uint n, cl_platform_id *ids, cl_uint *count) {
    if (ids && n) *ids = &platform;
    if (count) *count = 1;
    return CL_SUCCESS;
}

cl_int CL_API_CALL clGetPlatformInfo(cl_platform_id id, cl_platform_info what, size_t size,
                                     void *value, size_t *full) {
    if (what == CL_PLATFORM_NAME) return answer_text(id->gpu.platform, size, value, full);
    return unknown("clGetPlatformInfo", what);
}

cl_int CL_API_CALL clGetDeviceIDs(cl_platform_id id, cl_device_type type, cl_uint n,
                                  cl_device_id *ids, cl_uint *count) {
    if (ids && n) *ids = &device;
    if (count) *count = 1;
    return CL_SUCCESS;
}

#define GIGABYTE (1ull << 30)
cl_int CL_API_CALL clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t size, void *value,
                                   size_t *full) {
    const driver_gpu *gpu = &platform.gpu;
    const cl_device_type type = CL_DEVICE_TYPE_GPU;
    const cl_device_fp_config floats = CL_FP_INF_NAN | CL_FP_ROUND_TO_NEAREST | CL_FP_FMA;
    const cl_bool yes = CL_TRUE, no = CL_FALSE;
    const cl_uint units = gpu->compute_units, alignment = 1024; /* bits */
    const size_t sub_groups[] = {8, 16, 32}, skipped = gpu->least_sub_group == 16;
    const cl_ulong memory = 16 * GIGABYTE, allocation = 4 * GIGABYTE, local = gpu->local_bytes;
    const struct {
        cl_device_info what;
        const void *from;
        size_t bytes;
    } numbers[] = {
        {CL_DEVICE_TYPE, &type, sizeof type},
        {CL_DEVICE_AVAILABLE, &yes, sizeof yes},
        {CL_DEVICE_COMPILER_AVAILABLE, &yes, sizeof yes},
        {CL_DEVICE_ENDIAN_LITTLE, &yes, sizeof yes},
        {CL_DEVICE_HOST_UNIFIED_MEMORY, &no, sizeof no},
        {CL_DEVICE_SINGLE_FP_CONFIG, &floats, sizeof floats},
        {CL_DEVICE_MAX_COMPUTE_UNITS, &units, sizeof units},
        {CL_DEVICE_MEM_BASE_ADDR_ALIGN, &alignment, sizeof alignment},
        {CL_DEVICE_MAX_WORK_GROUP_SIZE, &gpu->group, sizeof gpu->group},
        {CL_DEVICE_LOCAL_MEM_SIZE, &local, sizeof local},
        {CL_DEVICE_GLOBAL_MEM_SIZE, &memory, sizeof memory},
        {CL_DEVICE_MAX_MEM_ALLOC_SIZE, &allocation, sizeof allocation},
        {SUB_GROUP_SIZES, sub_groups + skipped, sizeof sub_groups - skipped * sizeof *sub_groups}};
    const struct {
        cl_device_info what;
        const char *text;
    } texts[] = {{CL_DEVICE_NAME, gpu->name},
                 {CL_DEVICE_VENDOR, gpu->vendor},
                 {CL_DEVICE_VERSION, "OpenCL 3.0"},
                 {CL_DRIVER_VERSION, "1"},
                 {CL_DEVICE_EXTENSIONS, gpu->extensions}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].what == what)
            return answer(numbers[i].from, numbers[i].bytes, size, value, full);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].what == what) return answer_text(texts[i].text, size, value, full);
    return unknown("clGetDeviceInfo", what);
}

/* ---- Context, queues, events ----------------------------------------------------------------- */

static cl_int done(cl_event *event) {
    if (event) *event = &marker;
    return CL_SUCCESS;
}

cl_context CL_API_CALL clCreateContext(const cl_context_properties *properties, cl_uint n,
                                       const cl_device_id *ids,
                                       void(CL_CALLBACK *notify)(const char *, const void *, size_t,
                                                                 void *),
                                       void *user, cl_int *code) {
    *code = CL_SUCCESS;
    return &context;
}

cl_command_queue CL_API_CALL clCreateCommandQueue(cl_context of, cl_device_id id,
                                                  cl_command_queue_properties properties,
                                                  cl_int *code) {
    *code = CL_SUCCESS;
    return &queue;
}

cl_int CL_API_CALL clReleaseContext(cl_context of) {
    return CL_SUCCESS;
}

cl_int CL_API_CALL clReleaseCommandQueue(cl_command_queue in) {
    return CL_SUCCESS;
}

cl_int CL_API_CALL clFlush(cl_command_queue in) {
    return CL_SUCCESS;
}

cl_int CL_API_CALL clFinish(cl_command_queue in) {
    return CL_SUCCESS;
}

cl_int CL_API_CALL clWaitForEvents(cl_uint n, const cl_event *events) {
    return CL_SUCCESS;
}

cl_int CL_API_CALL clReleaseEvent(cl_event event) {
    return CL_SUCCESS;
}

cl_int CL_API_CALL clEnqueueMarkerWithWaitList(cl_command_queue in, cl_uint n,
                                               const cl_event *after, cl_event *event) {
    return done(event);
}

cl_int CL_API_CALL clEnqueueBarrierWithWaitList(cl_command_queue in, cl_uint n,
                                                const cl_event *after, cl_event *event) {
    return done(event);
}

/* A clock that goes on with each question. */
cl_int CL_API_CALL clGetEventProfilingInfo(cl_event event, cl_profiling_info what, size_t size,
                                           void *value, size_t *full) {
    event->clock += 1000;
    return answer(&event->clock, sizeof event->clock, size, value, full);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

cl_mem CL_API_CALL clCreateBuffer(cl_context of, cl_mem_flags flags, size_t size, void *host,
                                  cl_int *code) {
    cl_mem mem = need(calloc(1, sizeof *mem));
    if (flags & CL_MEM_USE_HOST_PTR) {
        fprintf(stderr, "cl_programs: memory of the host for a GPU\n");
        exit(1);
    }
    mem->bytes = need(calloc(1, size));
    if (host) memcpy(mem->bytes, host, size);
    *code = CL_SUCCESS;
    return mem;
}

cl_int CL_API_CALL clSetMemObjectDestructorCallback(cl_mem mem,
                                                    void(CL_CALLBACK *notify)(cl_mem, void *),
                                                    void *user) {
    mem->notify = notify;
    mem->user = user;
    return CL_SUCCESS;
}

cl_int CL_API_CALL clReleaseMemObject(cl_mem mem) {
    if (mem->notify) mem->notify(mem, mem->user);
    free(mem->bytes);
    free(mem);
    return CL_SUCCESS;
}

cl_int CL_API_CALL clEnqueueReadBuffer(cl_command_queue in, cl_mem mem, cl_bool blocking,
                                       size_t offset, size_t size, void *to, cl_uint n,
                                       const cl_event *after, cl_event *event) {
    memcpy(to, mem->bytes + offset, size);
    return done(event);
}

cl_int CL_API_CALL clEnqueueWriteBuffer(cl_command_queue in, cl_mem mem, cl_bool blocking,
                                        size_t offset, size_t size, const void *from, cl_uint n,
                                        const cl_event *after, cl_event *event) {
    memcpy(mem->bytes + offset, from, size);
    return done(event);
}

cl_int CL_API_CALL clEnqueueCopyBuffer(cl_command_queue in, cl_mem from, cl_mem to,
                                       size_t from_offset, size_t to_offset, size_t size, cl_uint n,
                                       const cl_event *after, cl_event *event) {
    memmove(to->bytes + to_offset, from->bytes + from_offset, size);
    return done(event);
}

cl_int CL_API_CALL clEnqueueFillBuffer(cl_command_queue in, cl_mem mem, const void *pattern,
                                       size_t pattern_size, size_t offset, size_t size, cl_uint n,
                                       const cl_event *after, cl_event *event) {
    for (size_t i = 0; i < size; i += pattern_size)
        memcpy(mem->bytes + offset + i, pattern, pattern_size);
    return done(event);
}

void *CL_API_CALL clEnqueueMapBuffer(cl_command_queue in, cl_mem mem, cl_bool blocking,
                                     cl_map_flags flags, size_t offset, size_t size, cl_uint n,
                                     const cl_event *after, cl_event *event, cl_int *code) {
    *code = done(event);
    return mem->bytes + offset;
}

cl_int CL_API_CALL clEnqueueUnmapMemObject(cl_command_queue in, cl_mem mem, void *mapped, cl_uint n,
                                           const cl_event *after, cl_event *event) {
    return done(event);
}

/* ---- What programs with a context of their own call: none is here ------------------------------ */

cl_int CL_API_CALL clGetContextInfo(cl_context of, cl_context_info what, size_t size, void *value,
                                    size_t *full) {
    return unknown("clGetContextInfo", what);
}

cl_int CL_API_CALL clGetCommandQueueInfo(cl_command_queue in, cl_command_queue_info what,
                                         size_t size, void *value, size_t *full) {
    return unknown("clGetCommandQueueInfo", what);
}

cl_int CL_API_CALL clGetMemObjectInfo(cl_mem mem, cl_mem_info what, size_t size, void *value,
                                      size_t *full) {
    return unknown("clGetMemObjectInfo", what);
}

cl_int CL_API_CALL clGetEventInfo(cl_event event, cl_event_info what, size_t size, void *value,
                                  size_t *full) {
    return unknown("clGetEventInfo", what);
}

cl_int CL_API_CALL clRetainContext(cl_context of) {
    return unknown("clRetainContext", 0);
}

cl_int CL_API_CALL clRetainCommandQueue(cl_command_queue in) {
    return unknown("clRetainCommandQueue", 0);
}

cl_int CL_API_CALL clRetainMemObject(cl_mem mem) {
    return unknown("clRetainMemObject", 0);
}

cl_int CL_API_CALL clRetainEvent(cl_event event) {
    return unknown("clRetainEvent", 0);
}

/* ---- Programs and launches ------------------------------------------------------------------- */

/* One that is not among `programs`, since it may be there already when it is built. */
cl_program CL_API_CALL clCreateProgramWithSource(cl_context of, cl_uint n, const char **texts,
                                                 const size_t *lengths, cl_int *code) {
    cl_program program = need(calloc(1, sizeof *program));
    if (n != 1 || lengths || sscanf(*texts, "#line 1 \"%63[^\"/]\"", program->name) != 1) {
        fprintf(stderr, "cl_programs: a text that does not begin with the name of its file\n");
        exit(1);
    }
    program->text = copy_of(*texts);
    *code = CL_SUCCESS;
    return program;
}

cl_program CL_API_CALL clCreateProgramWithBinary(cl_context of, cl_uint n, const cl_device_id *ids,
                                                 const size_t *sizes,
                                                 const unsigned char **binaries, cl_int *taken,
                                                 cl_int *code) {
    *code = CL_INVALID_BINARY;
    return NULL;
}

cl_int CL_API_CALL clBuildProgram(cl_program program, cl_uint n, const cl_device_id *ids,
                                  const char *options,
                                  void(CL_CALLBACK *notify)(cl_program, void *), void *user) {
    program->options = copy_of(options);
    return CL_SUCCESS;
}

cl_int CL_API_CALL clGetProgramInfo(cl_program program, cl_program_info what, size_t size,
                                    void *value, size_t *full) {
    return unknown("clGetProgramInfo", what);
}

cl_int CL_API_CALL clGetProgramBuildInfo(cl_program program, cl_device_id id,
                                         cl_program_build_info what, size_t size, void *value,
                                         size_t *full) {
    return unknown("clGetProgramBuildInfo", what);
}

cl_int CL_API_CALL clReleaseProgram(cl_program program) {
    free(program->text);
    free(program->options);
    free(program);
    return CL_SUCCESS;
}

/* The program among `programs` with this text and these options. */
static cl_program keep(cl_program like) {
    for (cl_program p = programs; p; p = p->next)
        if (strcmp(p->name, like->name) == 0 && strcmp(p->options, like->options) == 0) return p;
    cl_program p = need(calloc(1, sizeof *p));
    memcpy(p->name, like->name, sizeof p->name);
    p->text = copy_of(like->text);
    p->options = copy_of(like->options);
    *last = p;
    last = &p->next;
    return p;
}

static kernel *keep_kernel(cl_program of, const char *name) {
    kernel **k = &of->kernels;
    while (*k && strcmp((*k)->name, name) != 0)
        k = &(*k)->next;
    if (*k) return *k;
    *k = need(calloc(1, sizeof **k + strlen(name) + 1));
    strcpy((*k)->name, name);
    return *k;
}

cl_kernel CL_API_CALL clCreateKernel(cl_program program, const char *name, cl_int *code) {
    cl_kernel made = need(calloc(1, sizeof *made));
    made->of = keep_kernel(keep(program), name);
    *code = CL_SUCCESS;
    return made;
}

cl_int CL_API_CALL clReleaseKernel(cl_kernel made) {
    free(made);
    return CL_SUCCESS;
}

cl_int CL_API_CALL clSetKernelArg(cl_kernel made, cl_uint index, size_t size, const void *value) {
    return CL_SUCCESS;
}

cl_int CL_API_CALL clEnqueueNDRangeKernel(cl_command_queue in, cl_kernel made, cl_uint dims,
                                          const size_t *offset, const size_t *global,
                                          const size_t *local, cl_uint n, const cl_event *after,
                                          cl_event *event) {
    kernel *k = made->of;
    size_t size = 1, i = 0;
    for (cl_uint d = 0; d < dims; d++)
        size *= local[d];
    while (i < k->n_sizes && k->sizes[i] != size)
        i++;
    if (i == MOST_SIZES || size > platform.gpu.group) {
        fprintf(stderr, "cl_programs: %s: a work-group of %zu work-items, size number %zu\n",
                k->name, size, i + 1);
        exit(1);
    }
    if (i == k->n_sizes) k->sizes[k->n_sizes++] = size;
    return done(event);
}

/* ---- CLBlast --------------------------------------------------------------------------------- */

int CLBlastSgemm(void);
int CLBlastClearCache(void);

/* Called with arguments, which it does not read. */
int CLBlastSgemm(void) {
    return 0;
}

int CLBlastClearCache(void) {
    return 0;
}

/* ---- What was built -------------------------------------------------------------------------- */

static void write_kernels(FILE *file, const kernel *k) {
    for (const char *before = "\t"; k; k = k->next, before = " ") {
        fprintf(file, "%s%s:", before, k->name);
        for (size_t i = 0; i < k->n_sizes; i++)
            fprintf(file, "%s%zu", i ? "," : "", k->sizes[i]);
    }
    fputc('\n', file);
}

static FILE *create(const char *folder, const char *name) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return fopen(path, "w");
}

/* Closes it, too. */
static int close_written(FILE *file) {
    const int failed = ferror(file);
    return fclose(file) || failed ? -1 : 0;
}

int driver_write(const char *folder) {
    FILE *list = create(folder, "programs");
    if (!list) return -1;
    for (cl_program p = programs; p; p = p->next) {
        FILE *text = create(folder, p->name);
        const int put = text ? fputs(p->text, text) : EOF;
        if (!text || close_written(text) || put == EOF) {
            fclose(list);
            return -1;
        }
        fprintf(list, "%s\t%s", p->name, p->options);
        write_kernels(list, p->kernels);
    }
    return close_written(list);
}
