/* SPDX-License-Identifier: Apache-2.0 */
/* OpenCL's entry points, defined in the test program and handed on to the loader's: each can be made
 * to fail at its n-th call, and a driver can be made to give no times. The program does not link the
 * loader, so that an entry point that the backend calls and this list lacks does not link. */
#ifndef TEST_CL_LAYER_H
#define TEST_CL_LAYER_H

#define CL_TARGET_OPENCL_VERSION 120
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <stdbool.h>
#include <stdint.h>

/* What fails answers this. */
#define CL_LAYER_CODE CL_OUT_OF_RESOURCES
#define CL_LAYER_TEXT "CL_OUT_OF_RESOURCES"

typedef void *cl_map; /* memory of the host into which a buffer is mapped */

/* Entry points that answer a code: X(name, parameters, arguments). */
#define CL_LAYER_CALLS(X)                                                                          \
    X(clGetPlatformIDs, (cl_uint n, cl_platform_id * ids, cl_uint * count), (n, ids, count))       \
    X(clGetPlatformInfo,                                                                           \
      (cl_platform_id id, cl_platform_info what, size_t size, void *value, size_t *full),          \
      (id, what, size, value, full))                                                               \
    X(clGetDeviceIDs,                                                                              \
      (cl_platform_id id, cl_device_type type, cl_uint n, cl_device_id * ids, cl_uint * count),    \
      (id, type, n, ids, count))                                                                   \
    X(clGetDeviceInfo,                                                                             \
      (cl_device_id id, cl_device_info what, size_t size, void *value, size_t *full),              \
      (id, what, size, value, full))                                                               \
    X(clBuildProgram,                                                                              \
      (cl_program program, cl_uint n, const cl_device_id *ids, const char *options,                \
       void(CL_CALLBACK * notify)(cl_program, void *), void *user),                                \
      (program, n, ids, options, notify, user))                                                    \
    X(clGetProgramInfo,                                                                            \
      (cl_program program, cl_program_info what, size_t size, void *value, size_t *full),          \
      (program, what, size, value, full))                                                          \
    X(clGetProgramBuildInfo,                                                                       \
      (cl_program program, cl_device_id id, cl_program_build_info what, size_t size, void *value,  \
       size_t *full),                                                                              \
      (program, id, what, size, value, full))                                                      \
    X(clGetContextInfo,                                                                            \
      (cl_context context, cl_context_info what, size_t size, void *value, size_t *full),          \
      (context, what, size, value, full))                                                          \
    X(clGetCommandQueueInfo,                                                                       \
      (cl_command_queue queue, cl_command_queue_info what, size_t size, void *value,               \
       size_t *full),                                                                              \
      (queue, what, size, value, full))                                                            \
    X(clGetMemObjectInfo, (cl_mem mem, cl_mem_info what, size_t size, void *value, size_t *full),  \
      (mem, what, size, value, full))                                                              \
    X(clGetEventInfo,                                                                              \
      (cl_event event, cl_event_info what, size_t size, void *value, size_t *full),                \
      (event, what, size, value, full))                                                            \
    X(clGetEventProfilingInfo,                                                                     \
      (cl_event event, cl_profiling_info what, size_t size, void *value, size_t *full),            \
      (event, what, size, value, full))                                                            \
    X(clSetMemObjectDestructorCallback,                                                            \
      (cl_mem mem, void(CL_CALLBACK * notify)(cl_mem, void *), void *user), (mem, notify, user))   \
    X(clSetKernelArg, (cl_kernel kernel, cl_uint index, size_t size, const void *value),           \
      (kernel, index, size, value))                                                                \
    X(clEnqueueNDRangeKernel,                                                                      \
      (cl_command_queue queue, cl_kernel kernel, cl_uint dims, const size_t *offset,               \
       const size_t *global, const size_t *local, cl_uint n, const cl_event *after,                \
       cl_event *event),                                                                           \
      (queue, kernel, dims, offset, global, local, n, after, event))                               \
    X(clEnqueueReadBuffer,                                                                         \
      (cl_command_queue queue, cl_mem mem, cl_bool blocking, size_t offset, size_t size, void *to, \
       cl_uint n, const cl_event *after, cl_event *event),                                         \
      (queue, mem, blocking, offset, size, to, n, after, event))                                   \
    X(clEnqueueWriteBuffer,                                                                        \
      (cl_command_queue queue, cl_mem mem, cl_bool blocking, size_t offset, size_t size,           \
       const void *from, cl_uint n, const cl_event *after, cl_event *event),                       \
      (queue, mem, blocking, offset, size, from, n, after, event))                                 \
    X(clEnqueueCopyBuffer,                                                                         \
      (cl_command_queue queue, cl_mem from, cl_mem to, size_t from_offset, size_t to_offset,       \
       size_t size, cl_uint n, const cl_event *after, cl_event *event),                            \
      (queue, from, to, from_offset, to_offset, size, n, after, event))                            \
    X(clEnqueueFillBuffer,                                                                         \
      (cl_command_queue queue, cl_mem mem, const void *pattern, size_t pattern_size,               \
       size_t offset, size_t size, cl_uint n, const cl_event *after, cl_event *event),             \
      (queue, mem, pattern, pattern_size, offset, size, n, after, event))                          \
    X(clEnqueueMarkerWithWaitList,                                                                 \
      (cl_command_queue queue, cl_uint n, const cl_event *after, cl_event *event),                 \
      (queue, n, after, event))                                                                    \
    X(clEnqueueBarrierWithWaitList,                                                                \
      (cl_command_queue queue, cl_uint n, const cl_event *after, cl_event *event),                 \
      (queue, n, after, event))                                                                    \
    X(clWaitForEvents, (cl_uint n, const cl_event *events), (n, events))                           \
    X(clFlush, (cl_command_queue queue), (queue))                                                  \
    X(clFinish, (cl_command_queue queue), (queue))

/* Those that make an object, or what has to be given back like one, and whose last parameter is the
 * code. */
#define CL_LAYER_MAKERS(X)                                                                         \
    X(cl_context, clCreateContext,                                                                 \
      (const cl_context_properties *properties, cl_uint n, const cl_device_id *ids,                \
       void(CL_CALLBACK * notify)(const char *, const void *, size_t, void *), void *user,         \
       cl_int *code),                                                                              \
      (properties, n, ids, notify, user, code))                                                    \
    X(cl_command_queue, clCreateCommandQueue,                                                      \
      (cl_context context, cl_device_id id, cl_command_queue_properties properties,                \
       cl_int * code),                                                                             \
      (context, id, properties, code))                                                             \
    X(cl_mem, clCreateBuffer,                                                                      \
      (cl_context context, cl_mem_flags flags, size_t size, void *host, cl_int *code),             \
      (context, flags, size, host, code))                                                          \
    X(cl_program, clCreateProgramWithSource,                                                       \
      (cl_context context, cl_uint n, const char **texts, const size_t *lengths, cl_int *code),    \
      (context, n, texts, lengths, code))                                                          \
    X(cl_program, clCreateProgramWithBinary,                                                       \
      (cl_context context, cl_uint n, const cl_device_id *ids, const size_t *sizes,                \
       const unsigned char **binaries, cl_int *taken, cl_int *code),                               \
      (context, n, ids, sizes, binaries, taken, code))                                             \
    X(cl_kernel, clCreateKernel, (cl_program program, const char *name, cl_int *code),             \
      (program, name, code))                                                                       \
    X(cl_map, clEnqueueMapBuffer,                                                                  \
      (cl_command_queue queue, cl_mem mem, cl_bool blocking, cl_map_flags flags, size_t offset,    \
       size_t size, cl_uint n, const cl_event *after, cl_event *event, cl_int *code),              \
      (queue, mem, blocking, flags, offset, size, n, after, event, code))

/* Those that keep one, which has to be let go of once more: X(name, type). */
#define CL_LAYER_RETAINS(X)                                                                        \
    X(clRetainContext, cl_context)                                                                 \
    X(clRetainCommandQueue, cl_command_queue)                                                      \
    X(clRetainMemObject, cl_mem)                                                                   \
    X(clRetainEvent, cl_event)

/* Those that let go of one, and are never made to fail: nobody asks for their answer. Beside them
 * clEnqueueUnmapMemObject. */
#define CL_LAYER_RELEASES(X)                                                                       \
    X(clReleaseContext, cl_context)                                                                \
    X(clReleaseCommandQueue, cl_command_queue)                                                     \
    X(clReleaseMemObject, cl_mem)                                                                  \
    X(clReleaseProgram, cl_program)                                                                \
    X(clReleaseKernel, cl_kernel)                                                                  \
    X(clReleaseEvent, cl_event)

/* The entry points that may fail, as numbers. */
typedef enum cl_layer_entry {
#define CL_LAYER_NUMBER(name, parameters, arguments)             CL_LAYER_##name,
#define CL_LAYER_MAKER_NUMBER(type, name, parameters, arguments) CL_LAYER_##name,
#define CL_LAYER_RETAIN_NUMBER(name, type)                       CL_LAYER_##name,
    CL_LAYER_CALLS(CL_LAYER_NUMBER) CL_LAYER_MAKERS(CL_LAYER_MAKER_NUMBER)
        CL_LAYER_RETAINS(CL_LAYER_RETAIN_NUMBER)
#undef CL_LAYER_NUMBER
#undef CL_LAYER_MAKER_NUMBER
#undef CL_LAYER_RETAIN_NUMBER
            CL_LAYER_ENTRIES
} cl_layer_entry;
extern const char *const cl_layer_names[CL_LAYER_ENTRIES];

/* While it counts, calls of each entry point are counted, and the one of `entry` after `sound_calls`
 * fails. begin sets the counts to 0; CL_LAYER_ENTRIES: none fails. */
void cl_layer_begin(cl_layer_entry entry, uint32_t sound_calls);
void cl_layer_count(bool on);
uint32_t cl_layer_calls(cl_layer_entry entry);
bool cl_layer_failed(void);

/* A driver that makes no queue for times, or one that makes it and gives none: from the start, when
 * it has given some, or by a clock that stands still. */
typedef enum cl_layer_times {
    CL_LAYER_TIMES,
    CL_LAYER_NO_QUEUE,
    CL_LAYER_NO_INFO,
    CL_LAYER_NO_INFO_LATER,
    CL_LAYER_SAME_TIMES
} cl_layer_times;
void cl_layer_set_times(cl_layer_times times);
/* Queues for times made so far, and markers in them asked. */
uint32_t cl_layer_profiling_queues(void);

/* Objects made and not let go of. */
int cl_layer_alive(void);

#endif
