/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points of the layer. */
#include "tests/api/cl_layer.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const cl_layer_names[CL_LAYER_ENTRIES] = {
#define NAME(name, parameters, arguments)             #name,
#define MAKER_NAME(type, name, parameters, arguments) #name,
#define RETAIN_NAME(name, type)                       #name,
    CL_LAYER_CALLS(NAME) CL_LAYER_MAKERS(MAKER_NAME) CL_LAYER_RETAINS(RETAIN_NAME)
#undef NAME
#undef MAKER_NAME
#undef RETAIN_NAME
};

static cl_layer_entry failing = CL_LAYER_ENTRIES;
static cl_layer_times times;
static uint32_t sound, calls[CL_LAYER_ENTRIES], profiling_queues, times_given;
static bool counting, failed;
static int alive;

void cl_layer_begin(cl_layer_entry entry, uint32_t sound_calls) {
    failing = entry;
    sound = sound_calls;
    failed = false;
    memset(calls, 0, sizeof calls);
}

void cl_layer_count(bool on) {
    counting = on;
}

uint32_t cl_layer_calls(cl_layer_entry entry) {
    return calls[entry];
}

bool cl_layer_failed(void) {
    return failed;
}

void cl_layer_set_times(cl_layer_times which) {
    times = which;
    profiling_queues = times_given = 0;
}

uint32_t cl_layer_profiling_queues(void) {
    return profiling_queues;
}

int cl_layer_alive(void) {
    return alive;
}

/* The loader's function of that name. */
static void *find_in_loader(const char *name) {
    static void *loader;
    if (!loader) loader = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = loader ? dlsym(loader, name) : NULL;
    if (!found) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        abort();
    }
    return found;
}

/* The loader's clGetEventProfilingInfo, but for drivers whose clock stands still. */
static cl_int CL_API_CALL time_of(cl_event event, cl_profiling_info what, size_t size, void *value,
                                  size_t *full) {
    static cl_int(CL_API_CALL * real)(cl_event, cl_profiling_info, size_t, void *, size_t *);
    if (!real) *(void **)&real = find_in_loader("clGetEventProfilingInfo");
    const cl_int code = real(event, what, size, value, full);
    if (times == CL_LAYER_SAME_TIMES && value) memset(value, 1, size);
    return code;
}

static void *find(const char *name) {
    return strcmp(name, "clGetEventProfilingInfo") == 0 ? (void *)time_of : find_in_loader(name);
}

static bool fails_now(cl_layer_entry entry) {
    if (!counting) return false;
    const bool now = calls[entry]++ == sound && entry == failing;
    failed |= now;
    return now;
}

/* What a driver without times answers. */
static cl_int refuse_times(cl_layer_entry entry) {
    if (entry != CL_LAYER_clGetEventProfilingInfo) return CL_SUCCESS;
    if (times == CL_LAYER_NO_INFO) return CL_PROFILING_INFO_NOT_AVAILABLE;
    return times == CL_LAYER_NO_INFO_LATER && times_given++ > 4 ? CL_PROFILING_INFO_NOT_AVAILABLE
                                                                : CL_SUCCESS;
}

#define CALL(name, parameters, arguments)                                                          \
    cl_int CL_API_CALL name parameters {                                                           \
        static cl_int(CL_API_CALL *real) parameters;                                               \
        if (!real) *(void **)&real = find(#name);                                                  \
        if (fails_now(CL_LAYER_##name)) return CL_LAYER_CODE;                                      \
        const cl_int refused = refuse_times(CL_LAYER_##name);                                      \
        return refused == CL_SUCCESS ? real arguments : refused;                                   \
    }
CL_LAYER_CALLS(CALL)

/* Whether the driver makes what is asked for. */
static cl_int refuse_queue(cl_layer_entry entry, cl_command_queue_properties properties) {
    if (entry != CL_LAYER_clCreateCommandQueue || !(properties & CL_QUEUE_PROFILING_ENABLE))
        return CL_SUCCESS;
    profiling_queues++;
    return times == CL_LAYER_NO_QUEUE ? CL_INVALID_QUEUE_PROPERTIES : CL_SUCCESS;
}

#define properties_of_clCreateContext           0
#define properties_of_clCreateCommandQueue      properties
#define properties_of_clCreateBuffer            0
#define properties_of_clCreateProgramWithSource 0
#define properties_of_clCreateProgramWithBinary 0
#define properties_of_clCreateKernel            0
#define properties_of_clEnqueueMapBuffer        0
#define MAKER(type, name, parameters, arguments)                                                   \
    type CL_API_CALL name parameters {                                                             \
        static type(CL_API_CALL *real) parameters;                                                 \
        if (!real) *(void **)&real = find(#name);                                                  \
        cl_int refused = fails_now(CL_LAYER_##name) ? CL_LAYER_CODE : CL_SUCCESS;                  \
        if (refused == CL_SUCCESS) refused = refuse_queue(CL_LAYER_##name, properties_of_##name);  \
        if (code) *code = refused;                                                                 \
        type made = refused == CL_SUCCESS ? real arguments : NULL;                                 \
        alive += made != NULL;                                                                     \
        return made;                                                                               \
    }
CL_LAYER_MAKERS(MAKER)

/* Events come from calls that also do other things; they are not counted as alive. */
#define is_counted_clReleaseContext      1
#define is_counted_clReleaseCommandQueue 1
#define is_counted_clReleaseMemObject    1
#define is_counted_clReleaseProgram      1
#define is_counted_clReleaseKernel       1
#define is_counted_clReleaseEvent        0
#define is_counted_clRetainContext       1
#define is_counted_clRetainCommandQueue  1
#define is_counted_clRetainMemObject     1
#define is_counted_clRetainEvent         0
#define RETAIN(name, type)                                                                         \
    cl_int CL_API_CALL name(type object) {                                                         \
        static cl_int(CL_API_CALL *real)(type);                                                    \
        if (!real) *(void **)&real = find(#name);                                                  \
        if (fails_now(CL_LAYER_##name)) return CL_LAYER_CODE;                                      \
        alive += is_counted_##name;                                                                \
        return real(object);                                                                       \
    }
CL_LAYER_RETAINS(RETAIN)
#define RELEASE(name, type)                                                                        \
    cl_int CL_API_CALL name(type object) {                                                         \
        static cl_int(CL_API_CALL *real)(type);                                                    \
        if (!real) *(void **)&real = find(#name);                                                  \
        alive -= is_counted_##name;                                                                \
        return real(object);                                                                       \
    }
CL_LAYER_RELEASES(RELEASE)

cl_int CL_API_CALL clEnqueueUnmapMemObject(cl_command_queue queue, cl_mem mem, void *mapped,
                                           cl_uint n, const cl_event *after, cl_event *event) {
    static cl_int(CL_API_CALL * real)(cl_command_queue, cl_mem, void *, cl_uint, const cl_event *,
                                      cl_event *);
    if (!real) *(void **)&real = find("clEnqueueUnmapMemObject");
    alive--;
    return real(queue, mem, mapped, n, after, event);
}
