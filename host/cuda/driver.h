/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of the CUDA driver that the backend makes, with prototypes of our own, so that
 * host/cuda builds without any toolkit. They follow the driver's ABI: CUDA driver API reference, 12
 * and 13. */
#ifndef TMS_CUDA_DRIVER_H
#define TMS_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int tms_cu_result;       /* CUresult */
typedef int tms_cu_ordinal;      /* CUdevice */
typedef uint64_t tms_cu_address; /* CUdeviceptr */
typedef struct CUctx_st *tms_cu_context;
typedef struct CUmod_st *tms_cu_module;
typedef struct CUfunc_st *tms_cu_function;
typedef struct CUstream_st *tms_cu_stream;
typedef struct CUevent_st *tms_cu_event;
typedef struct CUgraph_st *tms_cu_graph;
typedef struct CUgraphExec_st *tms_cu_graph_exec;

/* CUresult */
enum {
    TMS_CU_SUCCESS = 0,
    TMS_CU_INVALID_VALUE = 1,
    TMS_CU_OUT_OF_MEMORY = 2,
    TMS_CU_NOT_INITIALIZED = 3,
    TMS_CU_NO_DEVICE = 100,
    TMS_CU_INVALID_DEVICE = 101,
    TMS_CU_INVALID_IMAGE = 200,
    TMS_CU_INVALID_CONTEXT = 201,
    TMS_CU_NO_BINARY = 209,
    TMS_CU_INVALID_HANDLE = 400,
    TMS_CU_NOT_FOUND = 500,
    TMS_CU_NOT_READY = 600,
    TMS_CU_ILLEGAL_ADDRESS = 700,
    TMS_CU_MISALIGNED_ADDRESS = 716,
    TMS_CU_LAUNCH_FAILED = 719,
    TMS_CU_NOT_SUPPORTED = 801,
    TMS_CU_CAPTURE_UNSUPPORTED = 900
};

/* CUdevice_attribute */
enum {
    TMS_CU_MAX_THREADS_PER_BLOCK = 1,
    TMS_CU_MULTIPROCESSORS = 16,
    TMS_CU_L2_BYTES = 38,
    TMS_CU_CAPABILITY_MAJOR = 75,
    TMS_CU_CAPABILITY_MINOR = 76,
    TMS_CU_MAX_SHARED_PER_BLOCK = 97, /* with opt-in */
    TMS_CU_MEMORY_POOLS = 115
};

/* CUfunction_attribute, CUstream_flags, CUevent_flags, CUstreamCaptureMode */
enum { TMS_CU_FUNCTION_PTX = 5, TMS_CU_MAX_DYNAMIC_SHARED = 8 };
enum { TMS_CU_STREAM_NON_BLOCKING = 1 };
enum { TMS_CU_EVENT_DISABLE_TIMING = 2 };
enum { TMS_CU_CAPTURE_GLOBAL = 0, TMS_CU_CAPTURE_THREAD = 1, TMS_CU_CAPTURE_RELAXED = 2 };

/* CUlaunchAttribute and CUlaunchConfig, with the one attribute that is used:
 * CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, whose value is whether the kernel may begin
 * before the previous one in the stream has ended. */
enum { TMS_CU_LAUNCH_EARLY = 6 };
typedef struct tms_cu_launch_attribute {
    uint64_t id; /* an int and padding: little-endian machines alone run CUDA */
    union {
        int allowed;
        uint64_t words[8];
    } value;
} tms_cu_launch_attribute;
typedef struct tms_cu_launch_config {
    unsigned grid[3], block[3], shared_bytes;
    tms_cu_stream stream;
    tms_cu_launch_attribute *attributes;
    unsigned n_attributes;
} tms_cu_launch_config;

/* X(name as exported, parameters); all return tms_cu_result. */
#define TMS_CU_CALLS(X)                                                                            \
    X(cuInit, (unsigned flags))                                                                    \
    X(cuDriverGetVersion, (int *version))                                                          \
    X(cuGetErrorName, (tms_cu_result error, const char **name))                                    \
    X(cuGetErrorString, (tms_cu_result error, const char **text))                                  \
    X(cuDeviceGetCount, (int *count))                                                              \
    X(cuDeviceGet, (tms_cu_ordinal * device, int ordinal))                                         \
    X(cuDeviceGetName, (char *name, int capacity, tms_cu_ordinal device))                          \
    X(cuDeviceTotalMem_v2, (size_t * bytes, tms_cu_ordinal device))                                \
    X(cuDeviceGetAttribute, (int *value, int attribute, tms_cu_ordinal device))                    \
    X(cuDevicePrimaryCtxRetain, (tms_cu_context * context, tms_cu_ordinal device))                 \
    X(cuDevicePrimaryCtxRelease_v2, (tms_cu_ordinal device))                                       \
    X(cuCtxPushCurrent_v2, (tms_cu_context context))                                               \
    X(cuCtxPopCurrent_v2, (tms_cu_context * context))                                              \
    X(cuCtxGetDevice, (tms_cu_ordinal * device))                                                   \
    X(cuStreamCreate, (tms_cu_stream * stream, unsigned flags))                                    \
    X(cuStreamDestroy_v2, (tms_cu_stream stream))                                                  \
    X(cuStreamSynchronize, (tms_cu_stream stream))                                                 \
    X(cuStreamWaitEvent, (tms_cu_stream stream, tms_cu_event event, unsigned flags))               \
    X(cuStreamBeginCapture_v2, (tms_cu_stream stream, int mode))                                   \
    X(cuStreamEndCapture, (tms_cu_stream stream, tms_cu_graph * graph))                            \
    X(cuStreamIsCapturing, (tms_cu_stream stream, int *status))                                    \
    X(cuGraphInstantiateWithFlags,                                                                 \
      (tms_cu_graph_exec * exec, tms_cu_graph graph, unsigned long long flags))                    \
    X(cuGraphLaunch, (tms_cu_graph_exec exec, tms_cu_stream stream))                               \
    X(cuGraphExecDestroy, (tms_cu_graph_exec exec))                                                \
    X(cuGraphDestroy, (tms_cu_graph graph))                                                        \
    X(cuMemAlloc_v2, (tms_cu_address * address, size_t bytes))                                     \
    X(cuMemFree_v2, (tms_cu_address address))                                                      \
    X(cuMemAllocAsync, (tms_cu_address * address, size_t bytes, tms_cu_stream stream))             \
    X(cuMemFreeAsync, (tms_cu_address address, tms_cu_stream stream))                              \
    X(cuMemAllocHost_v2, (void **host, size_t bytes))                                              \
    X(cuMemFreeHost, (void *host))                                                                 \
    X(cuMemcpyHtoDAsync_v2,                                                                        \
      (tms_cu_address to, const void *from, size_t bytes, tms_cu_stream stream))                   \
    X(cuMemcpyDtoHAsync_v2, (void *to, tms_cu_address from, size_t bytes, tms_cu_stream stream))   \
    X(cuMemcpyDtoDAsync_v2,                                                                        \
      (tms_cu_address to, tms_cu_address from, size_t bytes, tms_cu_stream stream))                \
    X(cuMemsetD32Async, (tms_cu_address to, unsigned value, size_t count, tms_cu_stream stream))   \
    X(cuEventCreate, (tms_cu_event * event, unsigned flags))                                       \
    X(cuEventDestroy_v2, (tms_cu_event event))                                                     \
    X(cuEventRecord, (tms_cu_event event, tms_cu_stream stream))                                   \
    X(cuEventSynchronize, (tms_cu_event event))                                                    \
    X(cuEventElapsedTime, (float *ms, tms_cu_event from, tms_cu_event to))                         \
    X(cuModuleLoadData, (tms_cu_module * module, const void *image))                               \
    X(cuModuleUnload, (tms_cu_module module))                                                      \
    X(cuModuleGetFunction, (tms_cu_function * function, tms_cu_module module, const char *name))   \
    X(cuFuncGetAttribute, (int *value, int attribute, tms_cu_function function))                   \
    X(cuFuncSetAttribute, (tms_cu_function function, int attribute, int value))                    \
    X(cuLaunchKernel,                                                                              \
      (tms_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,                \
       tms_cu_stream stream, void **parameters, void **extra))                                     \
    X(cuLaunchKernelEx, (const tms_cu_launch_config *config, tms_cu_function function,             \
                         void **parameters, void **extra))

/* cuBLAS, which computes linear's matrix-matrix products if it is installed. X as above; all return
 * a cublasStatus_t. */
typedef struct cublasContext *tms_cublas_handle;
enum { TMS_CUBLAS_SUCCESS = 0 };
enum { TMS_CUBLAS_OP_N = 0, TMS_CUBLAS_OP_T = 1 };
enum { TMS_CUBLAS_PEDANTIC = 2 }; /* cublasMath_t: fp32 products in fp32, no TF32 */
#define TMS_CUBLAS_CALLS(X)                                                                        \
    X(cublasCreate_v2, (tms_cublas_handle * handle))                                               \
    X(cublasDestroy_v2, (tms_cublas_handle handle))                                                \
    X(cublasSetStream_v2, (tms_cublas_handle handle, tms_cu_stream stream))                        \
    X(cublasSetWorkspace_v2, (tms_cublas_handle handle, void *workspace, size_t bytes))            \
    X(cublasSetMathMode, (tms_cublas_handle handle, int mode))                                     \
    X(cublasSgemm_v2,                                                                              \
      (tms_cublas_handle handle, int op_a, int op_b, int m, int n, int k, const float *alpha,      \
       const float *a, int lda, const float *b, int ldb, const float *beta, float *c, int ldc))

#define TMS_CU_MEMBER(name, parameters) tms_cu_result(*name) parameters;
typedef struct tms_cu_driver {
    void *library; /* of dlopen */
    TMS_CU_CALLS(TMS_CU_MEMBER)
} tms_cu_driver;

typedef struct tms_cublas {
    void *library; /* NULL: none was found, and our own kernels are used */
    TMS_CUBLAS_CALLS(TMS_CU_MEMBER)
} tms_cublas;

/* The driver, opened once for the process: libcuda.so.1, or the library that TAMIS_CUDA_DRIVER
 * names, initialised. NULL: `reason` says why there is none. Thread-safe. */
const tms_cu_driver *tms_cu_driver_get(char *reason, size_t capacity);
/* cuBLAS: libcublas.so.13, .12 or .11, or the library that TAMIS_CUBLAS names ("none": none).
 * Never NULL; `reason` is set where its library is NULL. Thread-safe. */
const tms_cublas *tms_cublas_get(char *reason, size_t capacity);

#endif
