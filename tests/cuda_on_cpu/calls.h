/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels compiled for the CPU call: the operations of a thread, a warp and a block, answered
 * by libcuda_on_cpu.so. */
#ifndef TAMIS_CUDA_ON_CPU_CALLS_H
#define TAMIS_CUDA_ON_CPU_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CPU_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cpu_dim {
    uint32_t x, y, z;
} cpu_dim;
/* The running thread; threadIdx and so on of it. */
typedef struct cpu_thread {
    cpu_dim thread_index, block_index, block_size, grid_size;
} cpu_thread;
/* The same for all of a thread's life. */
CPU_API const cpu_thread *cpu_self(void) __attribute__((const));

/* Called when the kernels' library is loaded. `file`: the source, whose name without folder and
 * ending is the stem. */
CPU_API void cpu_register(const char *name, const char *file, uint32_t max_threads,
                          size_t args_bytes, void (*entry)(const void *args));

/* Aligned as asked for and not better. */
CPU_API void *cpu_shared(size_t bytes, size_t align);
CPU_API void *cpu_dynamic_shared(void);
CPU_API void cpu_block_sync(const char *file, int line);
CPU_API void cpu_warp_sync(const char *file, int line);
CPU_API void cpu_thread_fence(void);
CPU_API uint32_t cpu_shuffle(uint32_t x, uint32_t lane, const char *file, int line);
CPU_API uint32_t cpu_ballot(bool p, const char *file, int line);
CPU_API uint32_t cpu_atomic_add(uint32_t *p, uint32_t x);
CPU_API uint32_t cpu_atomic_add_acq_rel(uint32_t *p, uint32_t x);
CPU_API uint32_t cpu_atomic_max(uint32_t *p, uint32_t x);
/* Checked as one access of `bytes`, aligned to them; the other side is the thread's own. */
CPU_API void cpu_load(void *to, const void *from, size_t bytes);
CPU_API void cpu_store(void *to, const void *from, size_t bytes);
CPU_API void cpu_copy_async_16(void *to, const void *from, bool live);
CPU_API void cpu_copy_async_commit(void);
CPU_API void cpu_copy_async_wait(int batches);
CPU_API void cpu_load_matrix_x4(uint32_t *r, const void *row, bool transposed, const char *file,
                                int line);
CPU_API void cpu_mma(float *d, const uint32_t *a, uint32_t b0, uint32_t b1, bool bf16,
                     const char *file, int line);

#ifdef __cplusplus
}
#endif

#endif
