/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the OpenCL backend share: the device, its memory, programs and launches. */
#ifndef TMS_OPENCL_H
#define TMS_OPENCL_H

#define CL_TARGET_OPENCL_VERSION 120
#include "host/product.h"
#include <CL/cl.h>

extern const tms_backend tms_backend_opencl;

/* ---- Device ---------------------------------------------------------------------------------- */

/* The host bytes of a small write are copied to one of two halves. A half is used again when its
 * last write is done. A write larger than a half blocks instead. */
#define TMS_CL_STAGING_HALF (2u << 20)
typedef struct tms_cl_staging {
    uint8_t *bytes; /* 2 * TMS_CL_STAGING_HALF */
    uint64_t used;  /* of the present half */
    unsigned half;
    cl_event last[2]; /* the last write out of each half, or NULL */
} tms_cl_staging;

typedef struct tms_cl_program tms_cl_program;
typedef struct tms_cl_kernel tms_cl_kernel;
typedef struct tms_cl_host tms_cl_host;
typedef struct tms_cl_job tms_cl_job;

typedef struct tms_cl_slab tms_cl_slab;

struct tms_mem {
    cl_mem cl;
    uint64_t begin; /* where it begins in that: 0 but for a caller's, in bytes */
    uint64_t bytes;
    void *host; /* the memory itself, where it is the host's; else NULL */
    /* Of a caller: his cl_mem, which is retained, or memory of the host, which he may free once it is
     * not used any more. */
    enum { TMS_CL_OWN, TMS_CL_CALLERS, TMS_CL_CALLERS_HOST } owner;
};

typedef struct tms_cl_device {
    tms_device base;
    cl_device_id id;
    cl_context context;
    cl_command_queue queue;
    cl_command_queue uploads; /* the second one; NULL until it is needed */
    bool callers_queue;       /* context and queue are the caller's, and stay what they are */
    tms_cl_host *hosts;       /* the memory that uploads come from */
    bool cpu;                 /* memory is the host's and a work-group runs on one core */
    bool waits;               /* its cores run at the same time, and may wait for each other */
    bool wide_grids;          /* the driver compiles kernels again for wide grids */
    bool keeps_programs;      /* the driver has a cache of what it compiled */
    /* Whether the driver lacks something by now, with the reason; NULL: it needs nothing. */
    bool (*lacks)(char *reason, size_t capacity);
    bool cache_judged;    /* whether the folder of kept programs is trusted, once it was asked */
    bool cache_refused;   /* it is not */
    bool in_place;        /* it uses memory of the host as it lies there, by its address */
    /* Whether a CPU whose kernels get buffers uses a caller's memory of the host as it lies there,
     * once that was tried. */
    enum { TMS_CL_UNTRIED, TMS_CL_USES_HOST, TMS_CL_COPIES_HOST } of_host;
    tms_cl_slab *slab;    /* memory for small buffers, see memory.c */
    tms_mem items;        /* the counter of tms_cl_run_queue on CPUs */
    tms_mem heads;        /* of each core: heads that write_attend rotates, on CPUs */
    tms_mem nothing;      /* zeros in the place of absent memory */
    uint64_t memory_used; /* bytes of all tms_mem */
    char options[160];    /* of every build: language version and what depends on the vendor */
    char settings[96];    /* the text of tms_cl_settings */
    tms_cl_job *jobs;     /* launches that are put off, in order */
    tms_cl_program *programs;
    tms_cl_kernel *kernels;
    tms_cl_staging staging;
    /* profiling: the queue collects times. host_times: the driver gives none, and the host's clock
     * is used. Both are false before times are first needed. */
    bool profiling, host_times;
    tms_workspace product; /* of linear's matrix-matrix form */
    bool clblast_sought;
} tms_cl_device;

static inline tms_cl_device *tms_cl(tms_device *dev) {
    return (tms_cl_device *)dev;
}

/* "CL_OUT_OF_RESOURCES (-5)" and so on. */
const char *tms_cl_error_text(cl_int error);
/* OK, or E_DEVICE (E_NO_MEMORY where the driver says so). */
tamis_status tms_cl_status(cl_int error);
/* The same with `what` and the error's name. */
tamis_status tms_cl_check(tms_device *dev, cl_int error, const char *what);

/* The same for errors that come with waiting: late ones, which the device keeps. */
tamis_status tms_cl_check_late(tms_device *dev, cl_int error, const char *what);

/* device.c */
tamis_status tms_cl_list(tamis_device_info *infos, size_t capacity, size_t *count);
tamis_status tms_cl_open(const tms_backend *self, const char *id, const tms_log *log,
                         tms_device **out, tamis_error *error);
tamis_status tms_cl_open_on(const tms_backend *self, void *context, void *queue, const tms_log *log,
                            tms_device **out, tamis_error *error);
void tms_cl_close(tms_device *dev);

/* callers.c: what a program has of OpenCL itself. */
/* Whether a context can run on the caller's context and queue, and the queue's device. */
tamis_status tms_cl_queue_check(cl_context context, cl_command_queue queue, cl_device_id *device,
                                tamis_error *error);
tamis_status tms_cl_wrap(tms_device *dev, uint64_t native, uint64_t offset, uint64_t bytes,
                         tms_mem **out);
tamis_status tms_cl_wrap_host(tms_device *dev, void *data, uint64_t bytes, tms_mem **out);
uint64_t tms_cl_native(const tms_mem *mem, uint64_t *offset);
void *tms_cl_data(const tms_device *dev, const tms_mem *mem);
tamis_status tms_cl_event_wrap(tms_device *dev, void *native, tms_event **out);
void *tms_cl_event_native(tms_device *dev, const tms_event *event);

/* pocl.c: whether PoCL would end the process, or could build nothing, for lack of a linker or of a
 * folder for what it compiles; the reason says what to do. */
bool tms_cl_pocl_lacks(char *reason, size_t capacity);
/* Why it lists no device, as far as one can tell. */
void tms_cl_pocl_lists_none(cl_int code, char *reason, size_t capacity);
/* Whether it would end the process as soon as the loader looks for platforms. */
bool tms_cl_pocl_ends(char *reason, size_t capacity);

/* cores.c: sets `waits`, by TAMIS_OPENCL_WAIT or by the processors that the process may use. */
tamis_status tms_cl_choose_waiting(tms_cl_device *cl);

/* memory.c */
/* A place in memory, in the bytes of its cl_mem. */
static inline uint64_t tms_cl_at(tms_ref ref) {
    return ref.mem->begin + ref.offset;
}
/* Memory of `bytes` bytes; on a device that uses it in place, the host's. */
cl_int tms_cl_mem_create(tms_cl_device *cl, uint64_t bytes, tms_mem *out);
/* The device puts no further buffers there; NULL: there is none. */
void tms_cl_slab_leave(tms_cl_slab *slab);
tamis_status tms_cl_alloc(tms_device *dev, uint64_t bytes, tms_mem **out);
void tms_cl_free(tms_device *dev, tms_mem *mem);
tamis_status tms_cl_write(tms_device *dev, tms_ref to, const void *from, uint64_t bytes);
tamis_status tms_cl_read(tms_device *dev, tms_ref from, void *to, uint64_t bytes);
tamis_status tms_cl_copy(tms_device *dev, tms_ref to, tms_ref from, uint64_t bytes);
tamis_status tms_cl_fill(tms_device *dev, tms_ref to, uint32_t word, uint64_t bytes);
void tms_cl_staging_free(tms_cl_staging *staging);
/* E_ARGUMENT for bytes beyond the memory's end; a late error comes first. */
tamis_status tms_cl_check_range(tms_device *dev, tms_ref ref, uint64_t bytes, const char *what);

/* upload.c */
tamis_status tms_cl_host_alloc(tms_device *dev, uint64_t bytes, void **out);
void tms_cl_host_free(tms_device *dev, void *host);
tamis_status tms_cl_upload(tms_device *dev, tms_ref to, const void *from, uint64_t bytes,
                           const tms_event *after, tms_event **done);
tamis_status tms_cl_event_await(tms_device *dev, const tms_event *event);

/* event.c */
/* A mark, of an event that it takes: also where it fails. */
tamis_status tms_cl_event_make(tms_device *dev, cl_event cl, tms_event **out);
cl_event tms_cl_event_of(const tms_event *event);
tamis_status tms_cl_event_record(tms_device *dev, bool timed, tms_event **out);
tamis_status tms_cl_event_wait(tms_device *dev, tms_event *event);
tamis_status tms_cl_event_elapsed(tms_device *dev, tms_event *from, tms_event *to, double *us);
void tms_cl_event_free(tms_device *dev, tms_event *event);
tamis_status tms_cl_flush(tms_device *dev);
tamis_status tms_cl_wait(tms_device *dev);

/* ---- Programs and launches ------------------------------------------------------------------- */

/* Kernel texts built in, ended by a NULL name (written by embed.cmake). */
typedef struct tms_cl_text {
    const char *name, *text;
} tms_cl_text;
extern const tms_cl_text tms_cl_texts[];

/* text.c: the text of `file` with its includes in place, from the folder TAMIS_KERNEL_DIR if that
 * is set, else as built in. The caller frees it; NULL leaves the reason in dev->error. */
char *tms_cl_text_load(tms_device *dev, const char *file);

/* cache.c: where the binary of a program is kept. */
typedef struct tms_cl_cache_entry {
    uint8_t key[16];
    char path[1024];
} tms_cl_cache_entry;
/* False if nothing is kept: by TAMIS_KERNEL_CACHE=none, without a home folder, or because the
 * driver keeps programs itself. */
bool tms_cl_cache_entry_of(tms_cl_device *cl, const char *options, const char *source,
                           tms_cl_cache_entry *entry);
/* The built program, or NULL for a miss. */
cl_program tms_cl_cache_load(tms_cl_device *cl, const tms_cl_cache_entry *entry,
                             const char *options);
/* After a failure, which is only logged, the next process has to compile again. */
void tms_cl_cache_store(tms_cl_device *cl, const tms_cl_cache_entry *entry, cl_program program);

/* program.c: a kernel of `file` built with `options`, kept for the device's life. */
tamis_status tms_cl_kernel_get(tms_device *dev, const char *file, const char *kernel,
                               const char *options, cl_kernel *out);
/* The same if it is there, else NULL. */
cl_kernel tms_cl_kernel_find(const tms_cl_device *cl, const char *file, const char *kernel,
                             const char *options);
void tms_cl_programs_free(tms_cl_device *cl);

/* The most bytes of numbers that a launch gathers. */
#define TMS_CL_MOST_NUMBERS 1024u
/* One launch under construction: begin, the arguments in the kernel's order, then one of the runs.
 * The first failure is kept and returned by the run. Without a kernel the arguments are only
 * checked. */
typedef struct tms_cl_launch {
    tms_device *dev;
    const char *name;
    cl_kernel kernel;
    tms_cl_job *job; /* what is known of it while the kernel is not built */
    cl_uint n_args, n_refs; /* arguments; memories, among them those whose address is gathered */
    tamis_status status;
    /* The numbers of a launch that gathers them (tms_cl_gather). */
    bool gathers;
    uint32_t n_bytes, widest;
    uint8_t numbers[TMS_CL_MOST_NUMBERS];
} tms_cl_launch;

/* `options` in printf form: the kernel's constants, "-DHEAD_DIM=64 ...". */
tms_cl_launch tms_cl_begin(tms_device *dev, const char *file, const char *kernel,
                           const char *options, ...) __attribute__((format(printf, 4, 5)));
/* With the constants of a cache: of kernels that write rows of it, or read them. */
tms_cl_launch tms_cl_begin_kv(tms_device *dev, const char *file, const char *kernel,
                              const tms_kv *kv);
/* Called before the first argument: the kernel has all that is no memory as the fields of one struct,
 * its last parameter, in the order in which they are set; of memory that is the offset in elements.
 * On a device that uses the host's memory in place it is the address, and there is no other
 * parameter: PoCL allocates memory for each argument of each launch, and looks up each buffer. */
void tms_cl_gather(tms_cl_launch *l);
/* Two arguments, unless they are gathered: the memory and the offset in elements of `element` bytes. `n` elements lie there;
 * with n == 0 the memory may be absent (NULL). */
void tms_cl_ref(tms_cl_launch *l, tms_ref ref, size_t element, uint64_t n);
/* The same for memory that may be absent, of `n` elements if it is not. */
void tms_cl_optional(tms_cl_launch *l, tms_ref ref, size_t element, uint64_t n);
/* The same for memory of which tables on the device decide how much is used; absent only with n ==
 * 0. */
void tms_cl_reached(tms_cl_launch *l, tms_ref ref, size_t element, uint64_t n);
/* A matrix of `n_out` rows; its offset counts elements, bytes where they are quantised. */
void tms_cl_weights(tms_cl_launch *l, const tms_weight_matrix *w, uint64_t n_out, uint64_t n_in);
void tms_cl_u32(tms_cl_launch *l, uint32_t value);
void tms_cl_u64(tms_cl_launch *l, uint64_t value);
void tms_cl_f32(tms_cl_launch *l, float value);
/* LOGIT_PARAMS of logit.clh; and the option for kernels that are compiled with or without a cap. */
void tms_cl_logit(tms_cl_launch *l, const tms_logit *rule);
const char *tms_cl_logit_option(const tms_logit *rule);
/* KV_PARAMS, BATCH_PARAMS and MATRIX_PARAMS of common.clh, BOUNDS_PARAMS of bounds.clh, or the
 * _NUMBERS of these; `n` as above. */
void tms_cl_kv(tms_cl_launch *l, const tms_kv *kv, uint64_t n);
/* The options for K and V that are only read (APART, SPREAD); and the K alone, for kernels that read no
 * V. */
const char *tms_cl_layout_option(const tms_kv *kv);
tms_kv tms_cl_keys(const tms_kv *kv);
/* ALIGNED of elements.clh: of memory with strides, or-ed, in bytes; of rows of K and V and of bounds.
 * CPUs load 16 bytes either way. */
bool tms_cl_is_aligned(const tms_device *dev, tms_ref ref, uint64_t strides);
bool tms_cl_rows_aligned(const tms_device *dev, const tms_kv *kv);
bool tms_cl_bounds_aligned(const tms_device *dev, const tms_kv *kv);
void tms_cl_bounds_of(tms_cl_launch *l, const tms_kv *kv, uint64_t n);
void tms_cl_batch(tms_cl_launch *l, const tms_batch *batch);
void tms_cl_matrix(tms_cl_launch *l, const tms_matrix *matrix, uint64_t n_rows, uint64_t width);

/* Work-items of the base kernels' work-groups (WG_SIZE of common.clh). */
#define TMS_CL_WG_SIZE 64u
/* With more items a kernel's uint counter could wrap when it steps by the grid. */
#define TMS_CL_MOST_ITEMS (1u << 31)
/* Launches `n` <= TMS_CL_MOST_ITEMS items in work-groups of TMS_CL_WG_SIZE; the kernel strides over
 * them (FOR_EACH_ITEM), so that any number of work-groups is correct. n == 0 launches one idle
 * one. */
tamis_status tms_cl_run_items(tms_cl_launch *l, uint64_t n);
/* Launches x * y work-groups of `size` work-items. For an empty grid one is launched, so that the
 * kernel is built: kernels ignore work-groups beyond their rows. */
tamis_status tms_cl_run_groups(tms_cl_launch *l, uint32_t size, uint64_t x, uint64_t y);
/* Groups of one work-item for which no driver compiles a kernel again, as PoCL does for wide grids. */
#define TMS_CL_NARROW 65535u
/* CPU kernels: a work-group for each core takes item after item of a queue of `n`; the last two
 * arguments are set here (QUEUE_PARAMS of cpu.clh). n == 0 launches one idle work-group. */
tamis_status tms_cl_run_queue(tms_cl_launch *l, uint64_t n);

/* ---- Forms ----------------------------------------------------------------------------------- */

/* Which form an op takes: *cpu is true if the CPU form is wanted and `refusal`, why it does not
 * take the case, is NULL. E_UNSUPPORTED with the refusal if that form is forced. */
tamis_status tms_cl_choose(tms_device *dev, const char *op, const char *refusal, bool *cpu);

/* Why a fused op, which has a CPU form alone, is refused whatever the case; NULL if it is not. */
const char *tms_cl_no_cpu_form(const tms_device *dev);
/* Whether an op that has a form of GPUs beside base takes it. */
bool tms_cl_takes_gpu_form(const tms_device *dev);

/* Build options of CPU forms with two shapes, which choose the shape. */
const char *tms_cl_shape(const tms_device *dev);

/* The same of the settings of a launch (host/settings.h); the text holds until the next call. */
const char *tms_cl_settings(tms_device *dev, tamis_setting_op op, const tms_kv *kv, uint32_t group);

/* For ops without a CPU form: E_UNSUPPORTED if that form is forced. */
tamis_status tms_cl_base_only(tms_device *dev, const char *op);

/* Why the CPU forms of score_pages and attention do not take pages and groups of this shape; NULL if
 * they do. Groups have at most TMS_CL_CPU_GROUP query heads. */
#define TMS_CL_CPU_GROUP 16u
const char *tms_cl_cpu_shape_refusal(const tms_kv *kv, const tms_batch *batch);

/* ---- Ops, one file per stem ------------------------------------------------------------------ */

TMS_OPS(TMS_DECLARE_OP, tms_cl_)
TMS_SCRATCH_OPS(TMS_DECLARE_SCRATCH, tms_cl_)
TMS_FUSED_OPS(TMS_DECLARE_REFUSAL, tms_cl_)
/* The wide forms of select. */
tamis_status tms_cl_select_wide(tms_device *dev, const tms_select *p);
tamis_status tms_cl_read_bandwidth(tms_device *dev, tms_ref from, uint64_t bytes, double *gb_per_s);
tamis_status tms_cl_read_pages(tms_device *dev, const tms_page_read *p);
bool tms_cl_orders_pages(tms_device *dev);
tamis_weight_layout tms_cl_weight_layout(tms_device *dev, tamis_weight_type type); /* linear.c */

/* Slots of a work-group's tile in project.clh. */
static inline uint32_t tms_cl_project_slots(uint32_t head_dim) {
    return head_dim > 128 ? 16 : 32;
}

/* List entries of a split of attend, and of a segment of a split. */
#define TMS_CL_SPLIT_PAGES   512
#define TMS_CL_SEGMENT_PAGES 16
/* Pieces of whole segments into which a CPU kernel divides a lane among cores, because the launch
 * has too few lanes for them: `n` of `segments`. n is 1 if the lane stays whole. */
typedef struct tms_cl_pieces {
    uint32_t n, segments;
} tms_cl_pieces;
tms_cl_pieces tms_cl_pieces_of(const tms_device *dev, uint64_t lanes, uint32_t pages);
/* The most lanes that a launch divides; each has TMS_CL_COUNTERS counters behind the queue. */
#define TMS_CL_COUNTERS 3
static inline uint32_t tms_cl_most_shared_lanes(uint32_t cores) {
    return cores > 1 ? 4 * cores - 1 : 0;
}
/* Bytes of what pieces keep in launches of at most so many lanes, of max_pages pages at most. */
uint64_t tms_cl_pieces_bytes(const tms_device *dev, const tms_attend *p, uint64_t lanes);
/* The arguments PIECE_NUMBERS of attend_cpu.clh; the states are in `scratch`. */
void tms_cl_attend_pieces(tms_cl_launch *l, const tms_attend *p, uint64_t lanes,
                          const tms_cl_pieces *pieces, tms_ref scratch);
/* The memory of the states of attend's splits: with one split the results themselves, else scratch,
 * packed [split][row][head], outs of head_dim, then the lses. Behind them is what pieces keep. */
typedef struct tms_cl_states {
    uint32_t n_splits;
    uint64_t n; /* of a split */
    tms_matrix out;
    tms_ref lse, pieces;
} tms_cl_states;

/* attend.c: the arguments from LOGIT_PARAMS on, and those of the lists and of the logits, which both
 * forms share. */
void tms_cl_attend_states(tms_cl_launch *l, const tms_attend *p, const tms_cl_states *s);
void tms_cl_attend_lists(tms_cl_launch *l, const tms_attend *p);
void tms_cl_attend_logits(tms_cl_launch *l, const tms_attend *p);
/* attend_cpu.c: the CPU form of attend up to the merge, and why it does not take a case. observe and
 * write: of observed_attend and of write_attend, else NULL. */
tamis_status tms_cl_attend_cpu(tms_device *dev, const tms_attend *p, const tms_cl_states *s,
                               const tms_observe *observe, const tms_write_rotated *write);
const char *tms_cl_attend_cpu_refusal(const tms_attend *p);

/* rows.c: the arguments OWN_NUMBERS of write_cpu.clh, of rows that an attend writes first. */
void tms_cl_own_rows(tms_cl_launch *l, const tms_write_rotated *p);
/* The most floats of a core's heads: those of a group, and a key. */
#define TMS_CL_OWN_FLOATS ((TMS_CL_CPU_GROUP + 1) * TMS_MOST_HEAD_DIM)

/* Merges states of the same rows into one, parts packed [part][row*n_heads + head][dim], out with a
 * row stride; for the op merge and the last step of attend. */
tamis_status tms_cl_merge_states(tms_device *dev, uint32_t n_parts, uint32_t n_rows,
                                 uint32_t n_heads, uint32_t dim, tms_ref outs, tms_ref lses,
                                 const tms_matrix *out, tms_ref lse);

#endif
