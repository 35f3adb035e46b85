/* SPDX-License-Identifier: Apache-2.0 */
/* The few calls of cuBLAS that the backend makes, in plain loops. */
#include "on_cpu.h"

#include <stdlib.h>

enum { NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, EXECUTION_FAILED = 13 };

struct cublasContext {
    tms_cu_stream stream;
};

static atomic_size_t alive;

size_t cpu_blas_alive(void) {
    return atomic_load(&alive);
}

tms_cu_result cublasCreate_v2(tms_cublas_handle *handle) {
    if (!handle) return INVALID_VALUE;
    *handle = calloc(1, sizeof **handle);
    if (!*handle) return ALLOC_FAILED;
    atomic_fetch_add(&alive, 1);
    return TMS_CUBLAS_SUCCESS;
}

tms_cu_result cublasDestroy_v2(tms_cublas_handle handle) {
    if (!handle) return NOT_INITIALIZED;
    free(handle);
    atomic_fetch_sub(&alive, 1);
    return TMS_CUBLAS_SUCCESS;
}

tms_cu_result cublasSetStream_v2(tms_cublas_handle handle, tms_cu_stream stream) {
    if (!handle) return NOT_INITIALIZED;
    handle->stream = stream;
    return TMS_CUBLAS_SUCCESS;
}

tms_cu_result cublasSetWorkspace_v2(tms_cublas_handle handle, void *workspace, size_t bytes) {
    if (!handle) return NOT_INITIALIZED;
    tms_cu_result result = cpu_enter();
    if (!result && bytes && !cpu_allocation_covers((uintptr_t)workspace, bytes))
        result = INVALID_VALUE;
    return cpu_leave(result ? INVALID_VALUE : TMS_CUBLAS_SUCCESS);
}

tms_cu_result cublasSetMathMode(tms_cublas_handle handle, int mode) {
    (void)mode;
    return handle ? TMS_CUBLAS_SUCCESS : NOT_INITIALIZED;
}

tms_cu_result cublasSgemm_v2(tms_cublas_handle handle, int op_a, int op_b, int m, int n, int k,
                             const float *alpha, const float *a, int lda, const float *b, int ldb,
                             const float *beta, float *c, int ldc) {
    if (!handle) return NOT_INITIALIZED;
    const bool ops = (op_a == TMS_CUBLAS_OP_N || op_a == TMS_CUBLAS_OP_T) &&
                     (op_b == TMS_CUBLAS_OP_N || op_b == TMS_CUBLAS_OP_T);
    if (!ops || m < 0 || n < 0 || k < 0 || !alpha || !beta) return INVALID_VALUE;
    if (lda < 1 || lda < (op_a ? k : m) || ldb < 1 || ldb < (op_b ? n : k) || ldc < 1 || ldc < m)
        return INVALID_VALUE;
    if (m == 0 || n == 0) return TMS_CUBLAS_SUCCESS;
    tms_cu_result result = cpu_enter();
    if (!result) {
        cpu_command *command = cpu_command_new(CPU_GEMM, 0);
        if (command)
            command->gemm = (cpu_gemm){op_a, op_b, m, n, k, lda, ldb, ldc, *alpha, *beta, a, b, c};
        result = cpu_enqueue(handle->stream, command);
    }
    return cpu_leave(result ? EXECUTION_FAILED : TMS_CUBLAS_SUCCESS);
}

/* One column of op(A)·op(B), sums in fp32 in the order of k. */
static void column(const cpu_gemm *g, int j, float *sums) {
    for (int i = 0; i < g->m; i++)
        sums[i] = 0;
    for (int p = 0; p < g->k; p++) {
        const float b = g->op_b ? g->b[j + (size_t)p * g->ldb] : g->b[p + (size_t)j * g->ldb];
        if (g->op_a)
            for (int i = 0; i < g->m; i++)
                sums[i] += g->a[p + (size_t)i * g->lda] * b;
        else
            for (int i = 0; i < g->m; i++)
                sums[i] += g->a[i + (size_t)p * g->lda] * b;
    }
}

void cpu_gemm_run(const cpu_gemm *g) {
    float *sums = malloc((size_t)g->m * sizeof *sums);
    if (!sums) abort();
    for (int j = 0; j < g->n; j++) {
        column(g, j, sums);
        float *c = g->c + (size_t)j * g->ldc;
        for (int i = 0; i < g->m; i++) /* without beta, C is not read */
            c[i] = g->alpha * sums[i] + (g->beta == 0.0f ? 0.0f : g->beta * c[i]);
    }
    free(sums);
}
