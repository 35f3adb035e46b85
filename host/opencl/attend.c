/* SPDX-License-Identifier: Apache-2.0 */
/* attend on OpenCL: the choice of form, shape and launch of cl_kernels/attend.cl, the base form, and
 * attend_gpu.cl. */
#include "host/opencl/opencl.h"

#include <stdio.h>

/* The base form cuts a row's entries into at most BASE_SPLITS splits of at least BASE_TOKENS
 * tokens, so that one row gives a GPU enough work-groups. It processes BASE_ROWS rows at a time,
 * which limits the memory of their states. */
#define BASE_SPLITS 64u
#define BASE_TOKENS 64u
#define BASE_ROWS   64u
/* A form for any device. A work-group has at most so many query heads, and of long ones so many channels
 * of them, since their q lie in local memory and their sums in registers. */
typedef struct any_form {
    const char *file, *kernel;
    uint32_t heads, channels;
} any_form;
static const any_form BASE = {"attend.cl", "attend_rows", 16, 4096};
static const any_form GPU = {"attend_gpu.cl", "attend_rows_gpu", 8, 2048};

/* Pages that a split of any form has, unless a row has fewer. */
static uint32_t least_pages(const tms_attend *p) {
    return p->kv.page_size < BASE_TOKENS ? BASE_TOKENS / p->kv.page_size : 1;
}

/* Splits of a launch, at least 1. */
static uint32_t splits_of(const tms_attend *p, bool cpu) {
    const uint32_t least = least_pages(p); /* of a split */
    uint32_t splits = (uint32_t)tms_divide_up(p->max_pages, cpu ? TMS_CL_SPLIT_PAGES : least);
    if (!cpu && splits > BASE_SPLITS) splits = BASE_SPLITS;
    return splits ? splits : 1;
}

static uint32_t rows_a_launch(const tms_attend *p, bool cpu) {
    const uint32_t rows = p->batch.n_rows;
    return cpu || rows < BASE_ROWS ? rows : BASE_ROWS;
}

static uint64_t scratch_of(const tms_attend *p, bool cpu) {
    const uint64_t splits = splits_of(p, cpu);
    const uint64_t states = splits * rows_a_launch(p, cpu) * p->batch.n_heads;
    return splits > 1 ? states * (p->kv.head_dim + 1) * sizeof(float) : 0;
}

uint64_t tms_cl_attend_scratch(tms_device *dev, const tms_attend *p) {
    const uint64_t lanes = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads * splits_of(p, true);
    const uint64_t base = scratch_of(p, false);
    const uint64_t cpu = scratch_of(p, true) + tms_cl_pieces_bytes(dev, p, lanes);
    return base > cpu || !tms_cl(dev)->cpu ? base : cpu; /* either form may run */
}

static tms_cl_states states_of(const tms_attend *p, bool cpu) {
    const uint64_t width = (uint64_t)p->batch.n_heads * p->kv.head_dim;
    const uint64_t rows = rows_a_launch(p, cpu);
    tms_cl_states s = {splits_of(p, cpu), rows * p->batch.n_heads, p->out, p->lse, p->scratch};
    s.pieces.offset += scratch_of(p, cpu);
    if (s.n_splits > 1) {
        s.out = (tms_matrix){p->scratch, width};
        s.lse = (tms_ref){p->scratch.mem,
                          p->scratch.offset + s.n_splits * rows * width * sizeof(float)};
    }
    return s;
}

static uint32_t group_of(const tms_attend *p) {
    return p->batch.n_heads / p->batch.n_kv_heads;
}

/* The work-groups that share the query heads of a KV head. */
static uint32_t shares_of(const any_form *form, const tms_attend *p) {
    const uint32_t of_length = form->channels / p->kv.head_dim;
    return (uint32_t)tms_divide_up(group_of(p), of_length < form->heads ? of_length : form->heads);
}

/* Rows [first, first + n), up to the merge. */
static tamis_status run_any(tms_device *dev, const tms_attend *p, const tms_cl_states *s,
                            uint32_t first, uint32_t n) {
    const any_form *form = tms_cl_takes_gpu_form(dev) ? &GPU : &BASE;
    const tms_batch *b = &p->batch;
    const uint32_t shares = shares_of(form, p),
                   heads = (uint32_t)tms_divide_up(group_of(p), shares);
    char settings[24] = "";
    if (form == &GPU)
        snprintf(settings, sizeof settings, " -DAHEAD=%u",
                 *tms_settings_at(&dev->settings, TAMIS_SETTING_OF_GPU_ATTEND, p->kv.dtype,
                                  group_of(p), TAMIS_SETTING_KEYS_AHEAD));
    tms_cl_launch l = tms_cl_begin(dev, form->file, form->kernel,
                                   "-DDTYPE=%d -DHEAD_DIM=%u -DPAGE_SIZE=%u -DGROUP=%u -DHEADS=%u "
                                   "-DMOST_SPLITS=%u -DLEAST_PAGES=%u -DALIGNED=%d%s%s",
                                   p->kv.dtype, p->kv.head_dim, p->kv.page_size, group_of(p), heads,
                                   BASE_SPLITS, least_pages(p), tms_cl_rows_aligned(dev, &p->kv),
                                   settings, tms_cl_layout_option(&p->kv));
    tms_cl_kv(&l, &p->kv, b->n_rows);
    tms_cl_batch(&l, b);
    tms_cl_matrix(&l, &p->q, b->n_rows, (uint64_t)b->n_heads * p->kv.head_dim);
    tms_cl_attend_lists(&l, p);
    tms_cl_attend_logits(&l, p);
    tms_cl_u32(&l, first);
    tms_cl_attend_states(&l, p, s);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, (uint64_t)n * s->n_splits,
                             (uint64_t)b->n_kv_heads * shares);
}

/* Joins the states of rows [first, first + n). */
static tamis_status merge(tms_device *dev, const tms_attend *p, const tms_cl_states *s,
                          uint32_t first, uint32_t n) {
    tms_matrix out = p->out;
    tms_ref lse = p->lse;
    if (s->n_splits == 1) return TAMIS_OK;
    out.ref.offset += first * out.stride * sizeof(float);
    lse.offset += (uint64_t)first * p->batch.n_heads * sizeof(float);
    return tms_cl_merge_states(dev, s->n_splits, n, p->batch.n_heads, p->kv.head_dim, s->out.ref,
                               s->lse, &out, lse);
}

/* Processes rows in turns, which share the memory of the states; without rows one idle launch. The
 * states of a turn are packed for the turn's number of rows, as merge expects. */
static tamis_status attend_any(tms_device *dev, const tms_attend *p) {
    tms_cl_states s = states_of(p, false);
    const uint32_t rows = p->batch.n_rows, most = s.n_splits > 1 ? BASE_ROWS : rows;
    uint32_t first = 0;
    tamis_status status;
    do {
        const uint32_t n = rows - first < most ? rows - first : most;
        if (s.n_splits > 1) s.n = (uint64_t)n * p->batch.n_heads;
        status = run_any(dev, p, &s, first, n);
        if (status == TAMIS_OK) status = merge(dev, p, &s, first, n);
        first += n;
    } while (status == TAMIS_OK && first < rows);
    return status;
}

tamis_status tms_cl_attend(tms_device *dev, const tms_attend *p) {
    bool cpu;
    tamis_status status = tms_cl_choose(dev, "attend", tms_cl_attend_cpu_refusal(p), &cpu);
    if (status != TAMIS_OK || !cpu) return status == TAMIS_OK ? attend_any(dev, p) : status;
    tms_cl_states s = states_of(p, true);
    status = tms_cl_attend_cpu(dev, p, &s, NULL, NULL);
    return status == TAMIS_OK ? merge(dev, p, &s, 0, p->batch.n_rows) : status;
}

const char *tms_cl_observed_attend_refusal(tms_device *dev, const tms_observed_attend *p) {
    const char *refusal = tms_cl_no_cpu_form(dev);
    if (refusal) return refusal;
    if (p->attend.logit.sinks.mem) return "sinks change lse behind it";
    if (p->observe.rows != TAMIS_ROWS_SUM) return "rows are not summed";
    if (p->attend.max_pages > TMS_CL_SPLIT_PAGES) return "rows of more than one split";
    return tms_cl_attend_cpu_refusal(&p->attend);
}

tamis_status tms_cl_observed_attend(tms_device *dev, const tms_observed_attend *p) {
    const tms_cl_states s = states_of(&p->attend, true);
    return tms_cl_attend_cpu(dev, &p->attend, &s, &p->observe, NULL);
}

const char *tms_cl_write_attend_refusal(tms_device *dev, const tms_write_attend *p) {
    const char *refusal = tms_cl_no_cpu_form(dev);
    if (refusal) return refusal;
    return p->attend.logits.mem ? "logits are asked for" : tms_cl_attend_cpu_refusal(&p->attend);
}

tamis_status tms_cl_write_attend(tms_device *dev, const tms_write_attend *p) {
    const tms_attend *a = &p->attend;
    const tms_cl_states s = states_of(a, true);
    const tamis_status status = tms_cl_attend_cpu(dev, a, &s, NULL, &p->write);
    return status == TAMIS_OK ? merge(dev, a, &s, 0, a->batch.n_rows) : status;
}
