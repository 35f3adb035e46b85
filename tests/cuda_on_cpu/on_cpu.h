/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the CUDA driver on the CPU: a worker runs the blocks of a launch, one after another,
 * each thread of a block as a fiber; streams keep commands until someone has to wait for them. */
#ifndef TAMIS_CUDA_ON_CPU_ON_CPU_H
#define TAMIS_CUDA_ON_CPU_ON_CPU_H

#include "calls.h"
#include "host/cuda/driver.h"

#include <stdatomic.h>

/* The driver's entry points are exported. */
#define CPU_DECLARE(name, parameters) CPU_API tms_cu_result name parameters;
TMS_CU_CALLS(CPU_DECLARE)
TMS_CUBLAS_CALLS(CPU_DECLARE)

/* What host/cuda/driver.h has no need to name. CUresult. */
enum {
    CPU_CU_ILLEGAL_STATE = 401,
    CPU_CU_CAPTURE_INVALIDATED = 901,
    CPU_CU_CAPTURE_IMPLICIT = 906,
    CPU_CU_CAPTURED_EVENT = 907
};

/* Walks to the place in a list that points to `handle`, or to its end. */
#define CPU_WALK(link, list, handle)                                                               \
    for ((link) = &(list); *(link) && *(link) != (handle); (link) = &(*(link))->next)              \
        ;

#define CPU_WARP           32u
#define CPU_MAX_THREADS    1024u
#define CPU_MAX_WARPS      (CPU_MAX_THREADS / CPU_WARP)
#define CPU_STATIC_SHARED  (48u << 10)  /* most bytes of SHARED, as nvcc has it */
#define CPU_BLOCK_SHARED   (227u << 10) /* most bytes of both kinds together, on any device */
#define CPU_DYNAMIC_OFFSET (64u << 10)  /* of the dynamic piece; what lies between is nobody's */
#define CPU_ARENA_BYTES    (CPU_DYNAMIC_OFFSET + CPU_BLOCK_SHARED + 1024u)
#define CPU_STACK_BYTES    (64u << 10)

/* ---- Kernels and launches -------------------------------------------------------------------- */

typedef struct cpu_kernel {
    struct cpu_kernel *next;
    const char *name, *file;
    uint32_t max_threads;
    size_t args_bytes;
    void (*entry)(const void *args);
} cpu_kernel;

typedef struct cpu_launch {
    const cpu_kernel *kernel;
    cpu_dim grid, block;
    uint32_t shared; /* bytes of dynamic shared memory */
    const void *args;
    bool watched;   /* races.c looks on: one worker runs all blocks */
    bool backwards; /* the last block comes first */
    atomic_uint_fast64_t next_block;
    atomic_bool failed; /* the result and the report are those of the first failure */
    tms_cu_result result;
} cpu_launch;

/* Runs all blocks; false if the kernel failed, which has then been said on stderr. */
bool cpu_launch_run(cpu_launch *launch);

/* ---- Threads of a block ---------------------------------------------------------------------- */

typedef struct cpu_copy {
    void *to;
    const void *from; /* NULL: zeros */
    uint32_t batch;
} cpu_copy;

typedef struct cpu_fiber {
    void *sp; /* while it does not run */
    uintptr_t stack;
    cpu_thread *thread; /* at the top of its own stack */
    uint32_t index, copies_used, copies_capacity, committed;
    cpu_copy *copies; /* asynchronous copies under way */
} cpu_fiber;

typedef enum cpu_op { CPU_SYNC, CPU_SHUFFLE, CPU_BALLOT, CPU_LOAD_MATRIX, CPU_MMA } cpu_op;
typedef struct cpu_place {
    const char *file;
    int line;
} cpu_place;

/* A row of A or a column of B, of matrix units. */
typedef struct cpu_line {
    double value[16];
    int16_t exponent[16];
} cpu_line;

/* What the lanes of a warp hand in to one operation. A lane is at most one operation ahead of the
 * others, so that two of these do. */
typedef struct cpu_exchange {
    uint32_t word[CPU_WARP][4];
    cpu_line a[16], b[8];
} cpu_exchange;

typedef struct cpu_warp {
    uint32_t alive;   /* lanes that have not ended */
    uint32_t ready;   /* lanes that may go on */
    uint32_t arrived; /* lanes at the operation under way */
    uint32_t blocked; /* lanes at the block's barrier */
    uint32_t epoch;   /* warp barriers passed */
    uint32_t turn;    /* operations done; its parity names the exchange */
    cpu_op op;
    cpu_place place;
    cpu_exchange exchange[2];
} cpu_warp;

/* ---- Accesses -------------------------------------------------------------------------------- */

typedef enum cpu_access_kind { CPU_READ, CPU_WRITE, CPU_ATOMIC } cpu_access_kind;

/* Who touched some shared memory last. Accesses conflict unless one thread made both, or a barrier
 * of the block lies between, or one of their common warp. */
typedef struct cpu_touch {
    uint32_t block_epoch, warp_epoch;
    uint16_t thread;
    uint8_t many; /* 0: one thread, 1: lanes of one warp, 2: threads of several warps */
    uint8_t atomic;
} cpu_touch;
typedef struct cpu_cell {
    cpu_touch write, read;
} cpu_cell;
/* A word of shared memory. Accesses of less than a word are kept by byte. */
typedef struct cpu_word {
    cpu_cell whole;
    uint32_t split;   /* block epoch in which a byte was last touched */
    uint32_t copying; /* serial number of the block whose asynchronous copy is on its way here */
} cpu_word;

/* An access to a word of global memory in a watched launch. */
typedef struct cpu_stamp {
    uint32_t block; /* counted over all watched launches, from 1 on */
    uint32_t clock; /* of the block */
    uint32_t where; /* the return address, from the kernel's entry on */
    uint16_t thread;
    uint8_t bytes : 4;  /* which of the word, a bit each */
    uint8_t pieces : 1; /* not all of them by each of the threads */
    uint8_t many;       /* 0: one thread, 1: lanes of one warp, 2: threads of several warps;
                           3: the word has atomics, `clock` is the ticket's number */
} cpu_stamp;
typedef struct cpu_mark {
    cpu_stamp write, read;
} cpu_mark;

#define CPU_ARENA_WORDS (CPU_ARENA_BYTES / 4)
#define CPU_CACHED      64u
typedef struct cpu_worker {
    cpu_launch *launch;
    void *sp; /* of the worker's own stack, while fibers run */
    cpu_fiber *current;
    uintptr_t stack; /* of the current fiber */
    uintptr_t args;  /* of the launch */
    size_t args_bytes;
    uintptr_t arena;                    /* shared memory: static piece, gap, dynamic piece */
    uint32_t static_begin, static_used; /* bytes of SHARED; 0 until a thread comes to it */
    uint32_t block_epoch;               /* goes up with each block and each barrier; never 0 */
    uint32_t block_serial;
    uint32_t alive, arrived; /* threads not ended; at the block's barrier */
    uint32_t n_warps, ready_warps;
    cpu_dim block_index;
    cpu_place place; /* of the block's barrier */
    bool failed;
    tms_cu_result result;
    const void *where; /* return address of the failing access, or NULL */
    uint32_t failed_thread;
    char message[512];
    char other[128]; /* of a race in global memory: who else, and where */
    const void *other_where;
    struct {
        uintptr_t begin, bytes;
        cpu_mark *marks;  /* of the allocation, in a watched launch */
    } cached[CPU_CACHED]; /* allocations hit lately */
    cpu_warp warps[CPU_MAX_WARPS];
    cpu_fiber fibers[CPU_MAX_THREADS];
    cpu_word words[CPU_ARENA_WORDS];
    cpu_cell bytes[CPU_ARENA_WORDS][4];
} cpu_worker;

extern _Thread_local cpu_worker *cpu_me
    __attribute__((visibility("hidden"), tls_model("initial-exec")));

/* fibers.c */
cpu_worker *cpu_worker_create(void);
/* One block of the worker's launch; false on a failure, which the worker then holds. */
bool cpu_block_run(cpu_worker *w, cpu_dim block_index);
/* Gives up the block: called by a fiber. */
_Noreturn void cpu_fail(tms_cu_result result, const void *where, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The running fiber waits until its ready bit is set. */
void cpu_wait(cpu_worker *w);

/* access.c: an access of `n` bytes by the running thread; does not return if it is wrong. */
void cpu_check(uintptr_t at, size_t n, cpu_access_kind kind, size_t align, const void *where);

/* races.c, for watched launches. `blocks`: of the grid; `index`: of the block in it. */
void cpu_race_launch(const cpu_launch *launch, uint64_t blocks);
void cpu_race_block(uint32_t index);
void cpu_race_barrier(void);
void cpu_race_warp_barrier(uint32_t warp);
/* Within an allocation, whose marks and begin are given. */
void cpu_race_access(cpu_mark *marks, uintptr_t begin, uintptr_t at, size_t n, cpu_access_kind kind,
                     const void *where);
/* These two look whether the launch is watched. The atomic is still to come. */
void cpu_race_fence(void);
void cpu_race_atomic(uint32_t *p, bool acq_rel, const void *where);

/* ---- Memory ---------------------------------------------------------------------------------- */

typedef struct cpu_allocation {
    uintptr_t begin;
    size_t bytes;
    bool freed;
    cpu_mark *marks; /* one a word; NULL before a watched launch comes to it */
} cpu_allocation;
/* The last allocation that begins at or before `at`, freed or not; NULL: none. */
const cpu_allocation *cpu_allocation_find(uintptr_t at);
/* The first one that begins behind `at`, or NULL. */
const cpu_allocation *cpu_allocation_after(uintptr_t at);
/* Whether [at, at + n) lies in one live allocation. */
bool cpu_allocation_covers(uintptr_t at, size_t n);
tms_cu_result cpu_allocation_free(tms_cu_address at);
/* The marks of the live allocation that holds `at`. */
cpu_mark *cpu_allocation_marks(uintptr_t at);
bool cpu_pinned(const void *host, size_t bytes);
void cpu_memory_reset(void);
size_t cpu_memory_alive(void);
size_t cpu_pinned_alive(void);
/* Whether [at, at + n) is constant data of a kernels' library. */
bool cpu_constant(uintptr_t at, size_t n);

/* ---- Streams --------------------------------------------------------------------------------- */

typedef enum cpu_command_kind {
    CPU_LAUNCH,
    CPU_COPY_IN,
    CPU_COPY_OUT,
    CPU_COPY,
    CPU_SET,
    CPU_FREE,
    CPU_EVENT,
    CPU_WAIT,
    CPU_GEMM
} cpu_command_kind;

typedef struct cpu_gemm {
    int op_a, op_b, m, n, k, lda, ldb, ldc;
    float alpha, beta;
    const float *a, *b;
    float *c;
} cpu_gemm;

typedef struct cpu_command {
    struct cpu_command *next;
    size_t bytes; /* of this struct and its payload */
    cpu_command_kind kind;
    union {
        struct {
            const cpu_kernel *kernel;
            cpu_dim grid, block;
            uint32_t shared;
        } launch; /* payload: arguments */
        struct {
            uintptr_t to, from; /* from == 0: the payload */
            size_t bytes;
        } copy;
        struct {
            uintptr_t to;
            size_t count;
            uint32_t value;
        } set;
        struct {
            tms_cu_event event;
            uint64_t serial;
            tms_cu_stream stream; /* of the record, where a wait is for it */
        } event;
        tms_cu_address free;
        cpu_gemm gemm;
    };
    _Alignas(16) unsigned char payload[];
} cpu_command;

/* A command with room for a payload, NULL without memory. */
cpu_command *cpu_command_new(cpu_command_kind kind, size_t payload);
/* Puts it at the end of the stream, or of the graph that it captures; takes it in any case. */
tms_cu_result cpu_enqueue(tms_cu_stream stream, cpu_command *command);
bool cpu_capturing(tms_cu_stream stream);
/* INVALID_HANDLE for what is no stream, or no longer. */
tms_cu_result cpu_stream_check(tms_cu_stream stream);
/* CAPTURE_UNSUPPORTED where a capture forbids what waits or allocates. */
tms_cu_result cpu_unsafe(void);
tms_cu_result cpu_drain(tms_cu_stream stream);
tms_cu_result cpu_drain_all(void);
void cpu_streams_reset(void);
size_t cpu_streams_alive(void);
size_t cpu_events_alive(void);
size_t cpu_graphs_alive(void);
void cpu_gemm_run(const cpu_gemm *g);
size_t cpu_blas_alive(void);

/* driver.c: every entry point is between these; enter fails without a context or on a dead one. */
tms_cu_result cpu_enter(void);
tms_cu_result cpu_leave(tms_cu_result result);
/* The context is dead from now on; the first cause counts. */
tms_cu_result cpu_die(tms_cu_result result);
tms_cu_result cpu_dead(void);
bool cpu_is_device(tms_cu_ordinal device);
/* Most bytes of shared memory of a block, on the present device. */
uint32_t cpu_block_shared(void);
/* What the environment asks for: watched launches, and blocks in backward order. */
bool cpu_races_wanted(void);
bool cpu_backwards_wanted(void);
/* A line on stderr about a wrong call. */
tms_cu_result cpu_wrong(tms_cu_result result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
