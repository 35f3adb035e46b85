/* SPDX-License-Identifier: Apache-2.0 */
/* Launches: a kernel, its arguments in order, its grid; and the choice of an op's form. */
#include "host/opencl/ahead.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The program in which a CPU device has a file's kernels together with those of other files that are
 * built with the same options. */
static const char *program_of(const tms_device *dev, const char *file) {
    static const struct {
        const char *file, *program;
    } together[] = {
        {"pages.cl", "small_cpu.cl"},
        {"activate.cl", "small_cpu.cl"},
        {"argmax_cpu.cl", "small_cpu.cl"},
        {"norm_cpu.cl", "small_cpu.cl"},
        {"merge_cpu.cl", "small_cpu.cl"},
        {"rows.cl", "cache_cpu.cl"},
        {"bounds.cl", "cache_cpu.cl"},
        {"attend_cpu.cl", "attention_cpu.cl"},
        {"attend_rows_cpu.cl", "attention_cpu.cl"},
        {"embed.cl", "weights_cpu.cl"},
        {"linear_cpu.cl", "weights_cpu.cl"},
        {"linear_chain_cpu.cl", "weights_cpu.cl"},
    };
    for (size_t i = 0; i < sizeof together / sizeof *together && !dev->base_only; i++)
        if (strcmp(file, together[i].file) == 0) return together[i].program;
    return file;
}

tms_cl_launch tms_cl_begin(tms_device *dev, const char *file, const char *kernel,
                           const char *options, ...) {
    tms_cl_launch l = {.dev = dev, .name = kernel, .status = dev->sticky};
    char text[512];
    va_list args;
    va_start(args, options);
    vsnprintf(text, sizeof text, options, args);
    va_end(args);
    if (l.status != TAMIS_OK) return l;
    file = program_of(dev, file);
    l.kernel = tms_cl_kernel_find(tms_cl(dev), file, kernel, text);
    if (!l.kernel) l.job = tms_cl_job_begin(dev, file, kernel, text);
    if (!l.kernel && !l.job) l.status = dev->error.status;
    return l;
}

static void set_arg(tms_cl_launch *l, size_t bytes, const void *value) {
    if (l->status == TAMIS_OK && l->kernel)
        l->status =
            tms_cl_check(l->dev, clSetKernelArg(l->kernel, l->n_args, bytes, value), l->name);
    else if (l->status == TAMIS_OK && l->job)
        l->status = tms_cl_job_arg(l->dev, l->job, bytes, value);
    l->n_args++;
}

void tms_cl_gather(tms_cl_launch *l) {
    l->gathers = true;
}

/* An argument that is no memory; among those that are gathered where C's struct has it. */
static void set_number(tms_cl_launch *l, uint32_t bytes, const void *value) {
    const uint32_t at = (uint32_t)tms_divide_up(l->n_bytes, bytes) * bytes;
    if (!l->gathers) {
        set_arg(l, bytes, value);
    } else if (at + bytes <= sizeof l->numbers) {
        memcpy(l->numbers + at, value, bytes);
        l->n_bytes = at + bytes;
        l->widest = bytes > l->widest ? bytes : l->widest;
    } else if (l->status == TAMIS_OK) {
        l->status =
            tms_device_fail(l->dev, TAMIS_E_UNSUPPORTED, "%s: more than %u bytes of numbers",
                            l->name, TMS_CL_MOST_NUMBERS);
    }
}

/* The struct of those that were gathered, which ends where the next of an array would begin. */
static void set_gathered(tms_cl_launch *l) {
    if (!l->gathers) return;
    set_arg(l, tms_divide_up(l->n_bytes, l->widest) * l->widest, l->numbers);
}

/* n elements of memory; `absent`: what the kernel gets where it is absent, or NULL. */
static void set_ref(tms_cl_launch *l, tms_ref ref, size_t element, uint64_t n,
                    const tms_mem *absent) {
    const tms_mem *mem = ref.mem ? ref.mem : absent;
    const uint64_t offset = ref.mem ? ref.offset : 0;
    uint64_t bytes = ref.mem ? ref.mem->bytes : 0;
    bool inside = ref.offset <= bytes && n <= (bytes - ref.offset) / element;
    if (l->status == TAMIS_OK && (ref.mem || n) && (!inside || ref.offset % element))
        l->status = tms_device_fail(
            l->dev, TAMIS_E_ARGUMENT,
            "%s: memory %u: %llu elements of %zu bytes at offset %llu of a buffer of %llu bytes",
            l->name, (unsigned)l->n_refs, (unsigned long long)n, element,
            (unsigned long long)ref.offset, (unsigned long long)bytes);
    l->n_refs++;
    if (l->gathers && tms_cl(l->dev)->in_place) {
        tms_cl_u64(l, mem ? (uintptr_t)mem->host + offset : 0);
    } else {
        const cl_mem cl = mem ? mem->cl : NULL;
        set_arg(l, sizeof cl, &cl);
        tms_cl_u64(l, mem ? (mem->begin + offset) / element : 0);
    }
}

/* A compiler may move a read of an address that all work-items of a work-group share in front of
 * the test that guards it (Intel's does, in kernels with barriers). So a launch without rows gets
 * memory to read, too. */
void tms_cl_ref(tms_cl_launch *l, tms_ref ref, size_t element, uint64_t n) {
    set_ref(l, ref, element, n, &tms_cl(l->dev)->nothing);
}

void tms_cl_optional(tms_cl_launch *l, tms_ref ref, size_t element, uint64_t n) {
    set_ref(l, ref, element, ref.mem ? n : 0, NULL);
}

void tms_cl_reached(tms_cl_launch *l, tms_ref ref, size_t element, uint64_t n) {
    tms_cl_ref(l, ref, element, n != 0);
}

void tms_cl_weights(tms_cl_launch *l, const tms_weight_matrix *w, uint64_t n_out, uint64_t n_in) {
    const size_t size = tms_weight_unit(w->type);
    tms_cl_ref(l, w->ref, size, tms_matrix_bytes(w, n_out, n_in) / size);
}

void tms_cl_u32(tms_cl_launch *l, uint32_t value) {
    set_number(l, sizeof value, &value);
}

void tms_cl_u64(tms_cl_launch *l, uint64_t value) {
    set_number(l, sizeof value, &value);
}

void tms_cl_f32(tms_cl_launch *l, float value) {
    set_number(l, sizeof value, &value);
}

void tms_cl_logit(tms_cl_launch *l, const tms_logit *rule) {
    tms_cl_f32(l, rule->scale);
    tms_cl_f32(l, rule->soft_cap);
}

const char *tms_cl_logit_option(const tms_logit *rule) {
    return rule->soft_cap > 0 ? " -DSOFT_CAP=1" : " -DSOFT_CAP=0";
}

void tms_cl_kv(tms_cl_launch *l, const tms_kv *kv, uint64_t n) {
    tms_cl_reached(l, kv->data, tms_kv_unit(kv->dtype), n);
    tms_cl_u64(l, kv->page_stride);
    tms_cl_u64(l, kv->head_stride);
    tms_cl_u64(l, kv->slot_stride);
    tms_cl_u64(l, kv->value_offset);
    if (!tms_channels_adjacent(kv)) tms_cl_u64(l, kv->channel_stride ? kv->channel_stride : 1);
    if (!kv->apart.data.mem) return;
    tms_cl_reached(l, kv->apart.data, tms_kv_unit(kv->dtype), n);
    tms_cl_u64(l, kv->apart.page_stride);
    tms_cl_u64(l, kv->apart.head_stride);
    tms_cl_u64(l, kv->apart.slot_stride);
    tms_cl_u64(l, kv->apart.channel_stride ? kv->apart.channel_stride : 1);
}

tms_kv tms_cl_keys(const tms_kv *kv) {
    tms_kv keys = *kv;
    keys.apart = (tms_apart){0};
    return keys;
}

const char *tms_cl_layout_option(const tms_kv *kv) {
    static const char *const options[] = {"", " -DSPREAD=1", " -DAPART=1", " -DAPART=1 -DSPREAD=1"};
    return options[2 * (kv->apart.data.mem != NULL) + !tms_channels_adjacent(kv)];
}

bool tms_cl_is_aligned(const tms_device *dev, tms_ref ref, uint64_t strides) {
    const uint64_t at = ref.offset | (ref.mem ? (uintptr_t)ref.mem->host : 0);
    return tms_cl_takes_gpu_form(dev) && (at | strides) % 16 == 0;
}

/* `strides`, or-ed, are in units of `unit` bytes, a power of two. */
static bool are_aligned(const tms_device *dev, tms_ref ref, uint64_t strides, uint64_t unit) {
    return tms_cl_is_aligned(dev, ref, strides * unit);
}

bool tms_cl_rows_aligned(const tms_device *dev, const tms_kv *kv) {
    const tms_apart *apart = &kv->apart;
    const uint64_t unit = tms_kv_unit(kv->dtype);
    return tms_channels_adjacent(kv) &&
           are_aligned(dev, kv->data,
                       kv->page_stride | kv->head_stride | kv->slot_stride | kv->value_offset,
                       unit) &&
           are_aligned(dev, apart->data,
                       apart->page_stride | apart->head_stride | apart->slot_stride, unit);
}

bool tms_cl_bounds_aligned(const tms_device *dev, const tms_kv *kv) {
    return are_aligned(dev, kv->bounds, kv->bounds_page_stride | kv->bounds_head_stride,
                       tms_kv_unit(kv->bounds_dtype));
}

void tms_cl_bounds_of(tms_cl_launch *l, const tms_kv *kv, uint64_t n) {
    tms_cl_reached(l, kv->bounds, tms_kv_unit(kv->bounds_dtype), n);
    tms_cl_u64(l, kv->bounds_page_stride);
    tms_cl_u64(l, kv->bounds_head_stride);
}

void tms_cl_batch(tms_cl_launch *l, const tms_batch *batch) {
    uint64_t n = batch->n_rows;
    tms_cl_u32(l, batch->n_rows);
    tms_cl_u32(l, batch->n_kv_heads);
    tms_cl_ref(l, batch->row_seq, sizeof(cl_int), n);
    tms_cl_ref(l, batch->visible, sizeof(cl_int), batch->visible.mem ? n * batch->n_kv_heads : 0);
    tms_cl_optional(l, batch->first, sizeof(cl_int), n * batch->n_kv_heads);
    tms_cl_reached(l, batch->table, sizeof(cl_int), n);
    tms_cl_u64(l, batch->seq_stride);
    tms_cl_u64(l, batch->head_stride);
}

void tms_cl_matrix(tms_cl_launch *l, const tms_matrix *matrix, uint64_t n_rows, uint64_t width) {
    tms_cl_ref(l, matrix->ref, sizeof(cl_float), tms_rows_extent(n_rows, matrix->stride, width));
    tms_cl_u64(l, matrix->stride);
}

/* What was put off comes first. */
static tamis_status begin_run(tms_cl_launch *l, bool empty) {
    set_gathered(l);
    if (l->status == TAMIS_OK && !empty) l->status = tms_cl_build_all(l->dev);
    if (l->status == TAMIS_OK) {
        l->dev->launches++;
        return TAMIS_OK;
    }
    tms_cl_job_drop(l->job);
    l->job = NULL;
    return l->status;
}

static tamis_status enqueue(const tms_cl_launch *l, uint32_t size, uint64_t x, uint64_t y) {
    const size_t local[2] = {size, 1}, global[2] = {x * size, y};
    return tms_cl_check(l->dev,
                        clEnqueueNDRangeKernel(tms_cl(l->dev)->queue, l->kernel, 2, NULL, global,
                                               local, 0, NULL, NULL),
                        l->name);
}

static tamis_status run(tms_cl_launch *l, uint32_t size, uint64_t x, uint64_t y) {
    const tamis_status status = begin_run(l, false);
    if (status != TAMIS_OK) return status;
    return l->job ? tms_cl_job_run(l->dev, l->job, size, x, y) : enqueue(l, size, x, y);
}

/* Without rows: one group, then `wide` ones unless that is 0. It is put off while its kernel is not
 * built. */
static tamis_status run_empty(tms_cl_launch *l, uint32_t size, uint64_t wide) {
    tamis_status status = begin_run(l, true);
    if (status != TAMIS_OK) return status;
    if (wide) l->dev->launches++;
    if (l->job) {
        tms_cl_job_put(l->dev, l->job, size, wide);
        return TAMIS_OK;
    }
    status = enqueue(l, size, 1, 1);
    return status == TAMIS_OK && wide ? enqueue(l, size, wide, 1) : status;
}

/* A grid with at least this many work-items along a dimension is wide. */
#define WIDE_GRID 65536u

static void check_items(tms_cl_launch *l, uint64_t n) {
    if (l->status == TAMIS_OK && n > TMS_CL_MOST_ITEMS)
        l->status =
            tms_device_fail(l->dev, TAMIS_E_ARGUMENT, "%s: %llu items in one launch: at most %u",
                            l->name, (unsigned long long)n, TMS_CL_MOST_ITEMS);
}

tamis_status tms_cl_run_items(tms_cl_launch *l, uint64_t n) {
    /* A CPU runs a work-group as a loop, so more than a few work-groups per core only add cost. A
     * driver that is not known gets as many as a GPU, since it may limit loops (see observe.cl). */
    uint64_t few = 4ull * l->dev->info.compute_units, wide = WIDE_GRID / TMS_CL_WG_SIZE - 1;
    uint64_t most = l->dev->base_only ? 1u << 15 : few < wide ? few : wide;
    uint64_t groups = (n + TMS_CL_WG_SIZE - 1) / TMS_CL_WG_SIZE;
    check_items(l, n);
    if (n == 0) return run_empty(l, TMS_CL_WG_SIZE, 0);
    return run(l, TMS_CL_WG_SIZE, groups < most ? groups : most, 1);
}

/* Base kernels may get wide grids later: that version is built now, too. */
tamis_status tms_cl_run_groups(tms_cl_launch *l, uint32_t size, uint64_t x, uint64_t y) {
    if (x && y) return run(l, size, x, y);
    return run_empty(l, size, tms_cl(l->dev)->wide_grids && size > 1 ? WIDE_GRID / size : 0);
}

tamis_status tms_cl_run_queue(tms_cl_launch *l, uint64_t n) {
    uint32_t cores = l->dev->info.compute_units;
    check_items(l, n);
    if (l->gathers)
        tms_cl_ref(l, (tms_ref){&tms_cl(l->dev)->items, 0}, sizeof(cl_int), 0);
    else
        set_arg(l, sizeof(cl_mem), &tms_cl(l->dev)->items.cl);
    tms_cl_u32(l, (uint32_t)n);
    return n == 0 ? run_empty(l, 1, 0) : run(l, 1, n < cores ? n : cores, 1);
}

tamis_status tms_cl_choose(tms_device *dev, const char *op, const char *refusal, bool *cpu) {
    const bool forced = tms_form_is_cpu(dev->form);
    dev->chose = true;
    if (!tms_cl(dev)->cpu && forced) refusal = "the device is not a CPU";
    *cpu = !refusal && (forced || (dev->form == TMS_FORM_AUTO && !dev->base_only));
    if (forced && !*cpu)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED, "%s: no CPU form: %s", op, refusal);
    return TAMIS_OK;
}

bool tms_cl_takes_gpu_form(const tms_device *dev) {
    if (dev->form == TMS_FORM_AUTO) return !((const tms_cl_device *)dev)->cpu;
    return dev->form == TMS_FORM_GPU;
}

const char *tms_cl_no_cpu_form(const tms_device *dev) {
    if (!((const tms_cl_device *)dev)->cpu) return "the device is not a CPU";
    if (dev->form == TMS_FORM_BASE || dev->form == TMS_FORM_GPU) return "there is no base form";
    return dev->form == TMS_FORM_AUTO ? dev->base_only : NULL;
}

const char *tms_cl_shape(const tms_device *dev) {
    return dev->form == TMS_FORM_CPU_OTHER ? " -DOTHER_SHAPE=1" : "";
}

/* Where rows near are prefetched, those of coming pages are not; where none are, the level counts for
 * nothing. */
const char *tms_cl_settings(tms_device *dev, tamis_setting_op op, const tms_kv *kv,
                            uint32_t group) {
    tms_cl_device *cl = tms_cl(dev);
    const uint32_t *value = dev->settings.value[op][kv->dtype][group > 1];
    const uint32_t near = value[TAMIS_SETTING_FETCH_NEAR],
                   rows = near ? 0 : value[TAMIS_SETTING_FETCH_ROWS];
    const int at = snprintf(cl->settings, sizeof cl->settings,
                            " -DFETCH_NEAR=%u -DFETCH_ROWS=%u -DFETCH_LEVEL=%u", near, rows,
                            rows ? value[TAMIS_SETTING_FETCH_LEVEL] : 1);
    if (op == TAMIS_SETTING_OF_SPARSE)
        snprintf(cl->settings + at, sizeof cl->settings - (size_t)at, " -DSCORE_AHEAD=%u",
                 value[TAMIS_SETTING_SCORE_AHEAD]);
    return cl->settings;
}

tamis_status tms_cl_base_only(tms_device *dev, const char *op) {
    const bool chose = dev->chose;
    bool cpu;
    tamis_status status = tms_cl_choose(dev, op, "the base form serves every device", &cpu);
    dev->chose = chose;
    return status;
}
