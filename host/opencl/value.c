/* SPDX-License-Identifier: Apache-2.0 */
/* value_score and value_norm on OpenCL: shapes and launches of cl_kernels/value.cl, and of
 * cl_kernels/value_cpu.cl. */
#include "host/opencl/opencl.h"

/* Constants of value.cl: slots of a block of sums, lists and slots of a work-item. */
#define KEYS  1024u
#define LISTS 4u
#define RUN   4u

static uint32_t blocks_of(uint32_t slots, uint32_t each) {
    return slots ? (uint32_t)tms_divide_up(slots, each) : 1;
}

/* The first arguments of the kernels on lanes. */
static tms_cl_launch begin(tms_device *dev, const char *kernel, const tms_kv *kv,
                           const tms_batch *b, tamis_dtype weight, uint32_t blocks) {
    tms_cl_launch l = tms_cl_begin(dev, "value.cl", kernel, "-DDTYPE=%d -DHEAD_DIM=%u -DWEIGHT=%d",
                                   (int)kv->dtype, kv->head_dim, (int)weight);
    tms_cl_kv(&l, kv, b->n_rows);
    tms_cl_batch(&l, b);
    tms_cl_u32(&l, kv->page_size);
    tms_cl_u32(&l, blocks);
    return l;
}

/* ---- value_score ----------------------------------------------------------------------------- */

/* Parts of scratch: sums [item][KV head][block][list][head_dim], then y without the blocks. */
typedef struct sums {
    tms_ref parts, y;
    uint32_t blocks;
    uint64_t n_parts, n_y, lists;
} sums;

static sums sums_of(const tms_value_score *p) {
    sums s = {.parts = p->scratch,
              .y = p->scratch,
              .blocks = blocks_of(p->batch.max_visible, KEYS),
              .lists = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads * p->n_lists};
    s.n_y = s.lists * p->kv.head_dim;
    s.n_parts = s.n_y * s.blocks;
    s.y.offset += s.n_parts * sizeof(cl_float);
    return s;
}

uint64_t tms_cl_value_score_scratch(tms_device *dev, const tms_value_score *p) {
    const sums s = sums_of(p);
    (void)dev;
    return (s.n_parts + s.n_y) * sizeof(cl_float);
}

static void set_weights(tms_cl_launch *l, const tms_value_score *p, const sums *s) {
    tms_cl_ref(l, p->a, sizeof(cl_float), s->lists * p->stride);
    tms_cl_u64(l, p->stride);
    tms_cl_u32(l, p->n_lists);
}

/* Σ a·v of every list and block. */
static tamis_status run_sums(tms_device *dev, const tms_value_score *p, const sums *s) {
    const uint64_t owners = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
    const uint64_t tasks = tms_divide_up(p->n_lists, LISTS) * (p->kv.head_dim / 16);
    tms_cl_launch l = begin(dev, "value_score_sums", &p->kv, &p->batch, TAMIS_F32, s->blocks);
    set_weights(&l, p, s);
    tms_cl_ref(&l, p->limits, sizeof(cl_int), owners * 2);
    tms_cl_ref(&l, s->parts, sizeof(cl_float), s->n_parts);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, owners * s->blocks,
                             tms_divide_up(tasks, TMS_CL_WG_SIZE));
}

static tamis_status run_join(tms_device *dev, const tms_value_score *p, const sums *s) {
    tms_cl_launch l =
        tms_cl_begin(dev, "value.cl", "value_score_join", "-DDTYPE=%d -DHEAD_DIM=%u -DWEIGHT=%d",
                     (int)p->kv.dtype, p->kv.head_dim, (int)TAMIS_F32);
    tms_cl_u32(&l, (uint32_t)s->lists);
    tms_cl_u32(&l, p->n_lists);
    tms_cl_u32(&l, s->blocks);
    tms_cl_ref(&l, p->limits, sizeof(cl_int), s->lists ? s->lists / p->n_lists * 2 : 0);
    tms_cl_ref(&l, s->parts, sizeof(cl_float), s->n_parts);
    tms_cl_ref(&l, s->y, sizeof(cl_float), s->n_y);
    return tms_cl_run_items(&l, s->n_y / 16);
}

static tamis_status run_slots(tms_device *dev, const tms_value_score *p, const sums *s) {
    const uint64_t owners = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
    const uint32_t blocks = blocks_of(p->batch.max_visible, RUN * TMS_CL_WG_SIZE);
    tms_cl_launch l = begin(dev, "value_score_slots", &p->kv, &p->batch, TAMIS_F32, blocks);
    set_weights(&l, p, s);
    tms_cl_ref(&l, s->y, sizeof(cl_float), s->n_y);
    tms_cl_ref(&l, p->out, sizeof(cl_float), owners * p->out_stride);
    tms_cl_u64(&l, p->out_stride);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, owners * blocks, 1);
}

tamis_status tms_cl_value_score(tms_device *dev, const tms_value_score *p) {
    tamis_status status = tms_cl_base_only(dev, "value_score");
    if (status != TAMIS_OK) return status;
    const sums s = sums_of(p);
    status = run_sums(dev, p, &s);
    if (status == TAMIS_OK) status = run_join(dev, p, &s);
    return status == TAMIS_OK ? run_slots(dev, p, &s) : status;
}

/* ---- value_norm ------------------------------------------------------------------------------ */

static void set_out(tms_cl_launch *l, const tms_value_norm *p) {
    const uint64_t owners = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
    tms_cl_ref(l, p->out, sizeof(cl_float), owners * p->out_stride);
    tms_cl_u64(l, p->out_stride);
}

static tamis_status run_l2(tms_device *dev, const tms_value_norm *p) {
    const tms_batch *b = &p->batch;
    const uint32_t blocks = blocks_of(b->max_visible, TMS_CL_WG_SIZE);
    tms_cl_launch l = begin(dev, "value_norm_l2", &p->kv, b, TAMIS_F32, blocks);
    set_out(&l, p);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, (uint64_t)b->n_rows * b->n_kv_heads * blocks, 1);
}

static void set_projection(tms_cl_launch *l, const tms_value_norm *p) {
    const uint64_t width = (uint64_t)p->batch.n_heads * p->kv.head_dim;
    tms_cl_ref(l, p->w, tamis_dtype_size(p->w_dtype),
               p->batch.n_rows ? (p->n_out - 1) * p->w_stride + width : 0);
    tms_cl_u64(l, p->w_stride);
    tms_cl_u32(l, p->n_out);
}

/* Slots of an item of the CPU form's queue. */
#define CPU_SLOTS 32u

static tamis_status run_projected_cpu(tms_device *dev, const tms_value_norm *p) {
    const tms_batch *b = &p->batch;
    const uint32_t blocks = blocks_of(b->max_visible, CPU_SLOTS);
    tms_cl_launch l =
        tms_cl_begin(dev, "value_cpu.cl", "value_norm_projected",
                     "-DDTYPE=%d -DHEAD_DIM=%u -DPAGE_SIZE=%u -DGROUP=%u -DWEIGHT=%d%s",
                     (int)p->kv.dtype, p->kv.head_dim, p->kv.page_size, b->n_heads / b->n_kv_heads,
                     (int)p->w_dtype, tms_cl_shape(dev));
    tms_cl_kv(&l, &p->kv, b->n_rows);
    tms_cl_batch(&l, b);
    set_out(&l, p);
    set_projection(&l, p);
    tms_cl_u32(&l, blocks);
    return tms_cl_run_queue(&l, (uint64_t)b->n_rows * b->n_kv_heads * blocks);
}

static tamis_status run_projected(tms_device *dev, const tms_value_norm *p) {
    const tms_batch *b = &p->batch;
    const uint32_t blocks = blocks_of(b->max_visible, tms_cl_project_slots(p->kv.head_dim));
    tms_cl_launch l = begin(dev, "value_norm_projected", &p->kv, b, p->w_dtype, blocks);
    set_out(&l, p);
    set_projection(&l, p);
    tms_cl_u32(&l, b->n_heads / b->n_kv_heads);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, (uint64_t)b->n_rows * b->n_kv_heads * blocks, 1);
}

tamis_status tms_cl_value_norm(tms_device *dev, const tms_value_norm *p) {
    const bool l2 = p->kind == TMS_VALUE_L2;
    bool cpu;
    tamis_status status =
        tms_cl_choose(dev, "value_norm", l2 ? "there are no weights" : NULL, &cpu);
    if (status != TAMIS_OK) return status;
    if (l2) return run_l2(dev, p);
    return cpu ? run_projected_cpu(dev, p) : run_projected(dev, p);
}
