/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the CUDA backend share: the device, its memory, modules and launches. */
#ifndef TMS_CUDA_H
#define TMS_CUDA_H

#include "cuda_kernels/args.h"
#include "host/cuda/driver.h"
#include "host/product.h"

extern const tms_backend tms_backend_cuda;

/* ---- Device ---------------------------------------------------------------------------------- */

/* The host bytes of a write are copied to one of two halves of pinned memory, at most 1 MiB at a
 * time. A half is used again when its last write is done; a write that finds both in use waits for
 * that. */
#define TMS_CU_STAGING_HALF (2u << 20)
typedef struct tms_cu_staging {
    uint8_t *bytes; /* 2 * TMS_CU_STAGING_HALF, pinned; taken when the device is opened */
    uint64_t used;  /* of the present half */
    unsigned half;
    bool written[2];      /* since the half was last waited for */
    tms_cu_event last[2]; /* behind the last write out of each half */
} tms_cu_staging;

/* Tickets: counters by which the blocks of a launch find out which of them is the last. All are 0
 * between launches: the last block resets its own. */
#define TMS_CU_TICKETS 65536u

typedef struct tms_cu_function_entry tms_cu_function_entry;

/* Pinned memory that is to be freed; it lies at the memory's own beginning. */
typedef struct tms_cu_host {
    struct tms_cu_host *next;
} tms_cu_host;

typedef struct tms_cu_device {
    tms_device base;
    const tms_cu_driver *api;
    tms_cu_ordinal ordinal;
    tms_cu_context context;
    tms_cu_stream stream;
    bool own_context, own_stream; /* else the caller's */
    tms_cu_stream uploads;        /* the second one; NULL until it is needed */
    bool allocated;               /* memory, since the last upload */
    tms_cu_host *unfreed_hosts;   /* pinned memory that could not be freed yet */
    bool pools;                   /* stream-ordered allocation */
    int capability;               /* 10 * major + minor */
    bool overlap;                 /* TAMIS_CUDA_OVERLAP: launches that can begin early do */
    uint32_t max_shared;          /* bytes a block may have */
    uint64_t memory_used;         /* bytes of all tms_mem of its own */
    tms_mem *unfreed;             /* memory that could not be freed yet */
    tms_cu_function_entry *functions;
    tms_cu_staging staging;
    tms_mem *tickets;      /* uint32_t [TMS_CU_TICKETS] */
    tms_workspace product; /* of linear's matrix-matrix form */
    tms_mem *shares;       /* partial sums of linear on matrix units, whose inputs blocks share */
    bool cublas_sought;    /* by the first linear that may take it */
    tms_cublas_handle cublas; /* NULL: our own kernels are used */
    tms_mem *cublas_workspace;
} tms_cu_device;

struct tms_event {
    tms_cu_event cu;
    bool own; /* else the caller's, wrapped */
};

struct tms_mem {
    tms_cu_address at;
    uint64_t bytes;
    bool own;      /* else the caller's, wrapped */
    tms_mem *next; /* of the device's unfreed ones */
};

static inline tms_cu_device *tms_cu(tms_device *dev) {
    return (tms_cu_device *)dev;
}

/* error.c: OK, or E_DEVICE (E_NO_MEMORY where the driver says so) with `what` and the error's name
 * and number. */
tamis_status tms_cu_check(tms_device *dev, tms_cu_result result, const char *what);
/* The same for errors that come with waiting, and those after which the driver refuses everything:
 * the device keeps them. */
tamis_status tms_cu_check_late(tms_device *dev, tms_cu_result result, const char *what);

/* device.c */
tamis_status tms_cu_list(tamis_device_info *infos, size_t capacity, size_t *count);
tamis_status tms_cu_open(const tms_backend *self, const char *id, const tms_log *log,
                         tms_device **out, tamis_error *error);
/* On the caller's CUcontext and CUstream (NULL: the legacy default stream of that context). */
tamis_status tms_cu_open_on(const tms_backend *self, void *context, void *stream,
                            const tms_log *log, tms_device **out, tamis_error *error);
void tms_cu_close(tms_device *dev);

/* enter.c */
/* Makes the device's context current for the calls until tms_cu_leave, which restores the thread's
 * own context. Pairs nest. */
tamis_status tms_cu_enter(tms_device *dev);
void tms_cu_leave(tms_device *dev);

/* range.c */
/* E_ARGUMENT for bytes beyond the memory's end; a late error comes first. */
tamis_status tms_cu_check_range(tms_device *dev, tms_ref ref, uint64_t bytes, const char *what);
/* E_STATE while the stream is being captured, for calls that allocate or that copy from the host.
 * The pool would give memory that belongs to the graph, and a replay would copy what the staging
 * memory holds then. `what` names the call. */
tamis_status tms_cu_check_not_captured(tms_device *dev, const char *what);

/* memory.c */
tamis_status tms_cu_alloc(tms_device *dev, uint64_t bytes, tms_mem **out);
tamis_status tms_cu_wrap(tms_device *dev, uint64_t native, uint64_t offset, uint64_t bytes,
                         tms_mem **out);
uint64_t tms_cu_native(const tms_mem *mem, uint64_t *offset);
void tms_cu_free(tms_device *dev, tms_mem *mem);
/* Frees memory that tms_cu_free could not free, for example during a capture; what still cannot be
 * freed stays. */
void tms_cu_free_again(tms_device *dev);
/* The last attempt, before the device is closed; memory that is lost is logged. */
void tms_cu_free_last(tms_device *dev);
tamis_status tms_cu_write(tms_device *dev, tms_ref to, const void *from, uint64_t bytes);
tamis_status tms_cu_read(tms_device *dev, tms_ref from, void *to, uint64_t bytes);
tamis_status tms_cu_copy(tms_device *dev, tms_ref to, tms_ref from, uint64_t bytes);
tamis_status tms_cu_fill(tms_device *dev, tms_ref to, uint32_t word, uint64_t bytes);
tamis_status tms_cu_staging_take(tms_device *dev);
void tms_cu_staging_free(tms_device *dev);

/* upload.c */
tamis_status tms_cu_host_alloc(tms_device *dev, uint64_t bytes, void **out);
void tms_cu_host_free(tms_device *dev, void *host);
/* As tms_cu_free_again, of pinned memory. */
void tms_cu_host_free_again(tms_device *dev);
tamis_status tms_cu_upload(tms_device *dev, tms_ref to, const void *from, uint64_t bytes,
                           const tms_event *after, tms_event **done);
tamis_status tms_cu_event_await(tms_device *dev, const tms_event *event);
/* What is enqueued on the first stream from now on comes behind all uploads. The context must be
 * current. */
tamis_status tms_cu_follow_uploads(tms_device *dev);

/* event.c */
/* A mark at the present end of a stream; the context must be current. */
tamis_status tms_cu_event_make(tms_device *dev, tms_cu_stream stream, bool timed, tms_event **out);
tamis_status tms_cu_event_record(tms_device *dev, bool timed, tms_event **out);
tamis_status tms_cu_event_wait(tms_device *dev, tms_event *event);
tamis_status tms_cu_event_elapsed(tms_device *dev, tms_event *from, tms_event *to, double *us);
void tms_cu_event_free(tms_device *dev, tms_event *event);
tamis_status tms_cu_event_wrap(tms_device *dev, void *native, tms_event **out);
void *tms_cu_event_native(tms_device *dev, const tms_event *event);
tamis_status tms_cu_flush(tms_device *dev);
tamis_status tms_cu_wait(tms_device *dev);

/* graph.c */
tamis_status tms_cu_capture_begin(tms_device *dev);
tamis_status tms_cu_capture_end(tms_device *dev, tms_graph **out);
tamis_status tms_cu_graph_launch(tms_device *dev, tms_graph *graph);
void tms_cu_graph_free(tms_device *dev, tms_graph *graph);

/* ---- Modules and launches -------------------------------------------------------------------- */

/* Kernel images built in (nvcc's fat binaries, one a stem), ended by a NULL name; none if there was
 * no nvcc. Written by the build. */
typedef struct tms_cu_image {
    const char *name; /* "attend" */
    const unsigned char *begin, *end;
} tms_cu_image;
extern const tms_cu_image tms_cu_images[];

/* program.c: whether there are kernels at all, built in or in the folder TAMIS_CUDA_KERNELS
 * (<stem>.fatbin each); if not, `reason`. */
bool tms_cu_has_kernels(char *reason, size_t capacity);
/* A kernel of cuda_kernels/<stem>.cu, kept for the device's life. */
tamis_status tms_cu_function_get(tms_device *dev, const char *stem, const char *kernel,
                                 tms_cu_function *out);
/* Loads one of the built-in images, so that opening fails if the driver takes none of them. A
 * folder may hold only some stems: its images are loaded when they are needed. */
tamis_status tms_cu_programs_probe(tms_device *dev);
/* Unloads the modules if the context is current (`inside`); frees host memory in any case. */
void tms_cu_programs_free(tms_device *dev, bool inside);

/* One launch under construction: begin, then every ref by one of the calls below, whose results go
 * into the kernel's arguments struct, then run. The first failure is kept and returned by the
 * run. */
typedef struct tms_cu_launch {
    tms_device *dev;
    char name[64]; /* of the kernel */
    tms_cu_function function;
    tamis_status status;
} tms_cu_launch;

/* `kernel` in printf form: "write_rows_%s_d%u". */
tms_cu_launch tms_cu_begin(tms_device *dev, const char *stem, const char *kernel, ...)
    __attribute__((format(printf, 3, 4)));
/* The address behind `ref`, of which `n` elements of `element` bytes are reached; with n == 0 the
 * memory may be absent (0). `what` names it in the error. */
uint64_t tms_cu_ref(tms_cu_launch *l, const char *what, tms_ref ref, size_t element, uint64_t n);
/* The same for memory that may be absent, of `n` elements if it is not. */
uint64_t tms_cu_optional(tms_cu_launch *l, const char *what, tms_ref ref, size_t element,
                         uint64_t n);
/* The same for memory of which tables on the device decide how much is used; absent only with n ==
 * 0. */
uint64_t tms_cu_reached(tms_cu_launch *l, const char *what, tms_ref ref, size_t element,
                        uint64_t n);
/* A matrix of weights of `n_out` rows. */
uint64_t tms_cu_weights(tms_cu_launch *l, const tms_weight_matrix *w, uint64_t n_out,
                        uint64_t n_in);
/* E_UNSUPPORTED unless addresses and strides of K, V (and bounds) are multiples of 16 bytes. */
cu_kv tms_cu_kv(tms_cu_launch *l, const tms_kv *kv, uint64_t n);
/* Whether V rows are at the strides of K rows, beside them or apart. */
bool tms_cu_values_beside(const tms_kv *kv);
cu_bounds_rows tms_cu_bounds_of(tms_cu_launch *l, const tms_kv *kv, uint64_t n);
cu_batch tms_cu_batch(tms_cu_launch *l, const tms_batch *batch);
cu_matrix tms_cu_matrix(tms_cu_launch *l, const char *what, const tms_matrix *matrix,
                        uint64_t n_rows, uint64_t width);
cu_lists tms_cu_lists(tms_cu_launch *l, const tms_lists *lists, uint64_t lanes);
cu_logit tms_cu_logit(const tms_logit *rule);
/* Lanes whose slots are shared by blocks of `each` slots, for their V rows if `values`, else for those
 * of K; *n gets the number of blocks of all lanes. */
cu_slots tms_cu_slots(tms_cu_launch *l, const tms_kv *kv, const tms_batch *batch, bool values,
                      uint32_t each, uint64_t *n);
/* What kernels that read K rows alone, or V rows, are called by. */
const char *tms_cu_key_tag(tamis_dtype dtype);
const char *tms_cu_value_tag(tamis_dtype dtype);
/* The number of a head dim in the names of kernels: its own, or CU_ANY_DIM. */
uint32_t tms_cu_dim_tag(uint32_t head_dim);
/* `n` tickets, all 0 (E_UNSUPPORTED above TMS_CU_TICKETS). */
uint64_t tms_cu_tickets(tms_cu_launch *l, uint64_t n);

typedef struct tms_cu_grid {
    uint64_t x, y, z; /* blocks; 0 counts as 1: a launch without rows still loads its kernel */
    uint32_t threads; /* a block */
    uint32_t shared;  /* bytes of dynamic shared memory */
    bool early;       /* may begin before the previous launch has ended: its kernel has grid_wait */
} tms_cu_grid;
/* Launches with the struct at `args`. Errors for grids beyond the driver's limits. */
tamis_status tms_cu_run(tms_cu_launch *l, tms_cu_grid grid, const void *args);
/* The same with `n` blocks, for kernels of slots.cuh that multiply slots by rows of weights. */
tamis_status tms_cu_run_projected(tms_cu_launch *l, uint64_t n, uint32_t head_dim,
                                  const void *args);
/* Blocks of `threads` for `n` items over which the kernel strides (FOR_EACH_ITEM). */
tms_cu_grid tms_cu_items(uint64_t n, uint32_t threads);

/* ---- Forms ----------------------------------------------------------------------------------- */

/* Whether an op takes its form for matrix units: wanted unless the base form is forced, and
 * `refusal`, why it does not take the case, is NULL. Fails if the CPU form is forced. */
tamis_status tms_cu_choose(tms_device *dev, const char *op, const char *refusal, bool *matrix);
/* For ops with one form: E_UNSUPPORTED if the CPU form is forced. */
tamis_status tms_cu_base_only(tms_device *dev, const char *op);

/* ---- Ops, one file per stem ------------------------------------------------------------------ */

TMS_OPS(TMS_DECLARE_OP, tms_cu_)
TMS_SCRATCH_OPS(TMS_DECLARE_SCRATCH, tms_cu_)
TMS_FUSED_OPS(TMS_DECLARE_REFUSAL, tms_cu_)
/* The wide forms of select. */
tamis_status tms_cu_select_wide(tms_device *dev, const tms_select *p);
tamis_status tms_cu_read_bandwidth(tms_device *dev, tms_ref from, uint64_t bytes, double *gb_per_s);
tamis_status tms_cu_read_pages(tms_device *dev, const tms_page_read *p);
bool tms_cu_orders_pages(tms_device *dev);

/* linear.c: frees its memory on the device, and cuBLAS's handle. */
void tms_cu_linear_close(tms_device *dev);

#endif
