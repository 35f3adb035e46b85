/* SPDX-License-Identifier: Apache-2.0 */
/* key_score on OpenCL: shapes and launches of cl_kernels/key.cl. */
#include "host/opencl/opencl.h"

#define KEYS 1024u /* of key.cl: slots of a block of sums */

static uint64_t owners_of(const tms_key_score *p) {
    return (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
}

/* The number of work-groups that share a lane, with `each` slots per work-group. */
static uint32_t blocks_of(const tms_key_score *p, uint32_t each) {
    const uint32_t slots = p->batch.max_visible;
    return slots ? (uint32_t)tms_divide_up(slots, each) : 1;
}

/* Parts of scratch: sums of directions [item][KV head][block][head_dim], then the means without the
 * blocks. */
typedef struct directions {
    tms_ref sums, means;
    uint32_t blocks;
    uint64_t n_sums, n_means;
} directions;

static directions directions_of(const tms_key_score *p) {
    directions d = {.sums = p->scratch, .means = p->scratch, .blocks = blocks_of(p, KEYS)};
    d.n_means = owners_of(p) * p->kv.head_dim;
    d.n_sums = d.n_means * d.blocks;
    d.means.offset += d.n_sums * sizeof(cl_float);
    return d;
}

uint64_t tms_cl_key_score_scratch(tms_device *dev, const tms_key_score *p) {
    const directions d = directions_of(p);
    (void)dev;
    return p->kind == TMS_KEY_COSINE ? (d.n_sums + d.n_means) * sizeof(cl_float) : 0;
}

static tms_cl_launch begin(tms_device *dev, const tms_key_score *p, const char *kernel) {
    return tms_cl_begin(dev, "key.cl", kernel, "-DDTYPE=%d -DHEAD_DIM=%u -DWEIGHT=0",
                        (int)tms_key_dtype(p->kv.dtype), p->kv.head_dim);
}

/* The first arguments of the kernels on lanes. */
static void set_lanes(tms_cl_launch *l, const tms_key_score *p, uint32_t blocks) {
    tms_cl_kv(l, &p->kv, p->batch.n_rows);
    tms_cl_batch(l, &p->batch);
    tms_cl_u32(l, p->kv.page_size);
    tms_cl_u32(l, blocks);
}

static void set_out(tms_cl_launch *l, const tms_key_score *p) {
    tms_cl_ref(l, p->out, sizeof(cl_float), owners_of(p) * p->out_stride);
    tms_cl_u64(l, p->out_stride);
}

static tamis_status run_norm(tms_device *dev, const tms_key_score *p) {
    const uint32_t blocks = blocks_of(p, TMS_CL_WG_SIZE);
    tms_cl_launch l = begin(dev, p, "key_score_norm");
    set_lanes(&l, p, blocks);
    set_out(&l, p);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, owners_of(p) * blocks, 1);
}

static tamis_status run_directions(tms_device *dev, const tms_key_score *p, const directions *d) {
    tms_cl_launch l = begin(dev, p, "key_score_directions");
    set_lanes(&l, p, d->blocks);
    tms_cl_ref(&l, d->sums, sizeof(cl_float), d->n_sums);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, owners_of(p) * d->blocks, 1);
}

static tamis_status run_mean(tms_device *dev, const tms_key_score *p, const directions *d) {
    tms_cl_launch l = begin(dev, p, "key_score_mean");
    tms_cl_u32(&l, (uint32_t)owners_of(p));
    tms_cl_u32(&l, d->blocks);
    tms_cl_ref(&l, p->batch.visible, sizeof(cl_int), owners_of(p));
    tms_cl_ref(&l, d->sums, sizeof(cl_float), d->n_sums);
    tms_cl_ref(&l, d->means, sizeof(cl_float), d->n_means);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, owners_of(p), 1);
}

static tamis_status run_cosine(tms_device *dev, const tms_key_score *p, const directions *d) {
    const uint32_t blocks = blocks_of(p, TMS_CL_WG_SIZE);
    tms_cl_launch l = begin(dev, p, "key_score_cosine");
    set_lanes(&l, p, blocks);
    set_out(&l, p);
    tms_cl_ref(&l, d->means, sizeof(cl_float), d->n_means);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, owners_of(p) * blocks, 1);
}

static tamis_status run_quadratic(tms_device *dev, const tms_key_score *p) {
    const uint32_t blocks = blocks_of(p, tms_cl_project_slots(p->kv.head_dim));
    const uint64_t n = p->batch.n_rows ? (uint64_t)p->batch.n_heads * p->kv.head_dim : 0;
    tms_cl_launch l = begin(dev, p, "key_score_quadratic");
    set_lanes(&l, p, blocks);
    set_out(&l, p);
    tms_cl_ref(&l, p->mu, sizeof(cl_float), n);
    tms_cl_ref(&l, p->cov, sizeof(cl_float), n * p->kv.head_dim);
    tms_cl_f32(&l, p->scale);
    tms_cl_u32(&l, p->batch.n_heads / p->batch.n_kv_heads);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, owners_of(p) * blocks, 1);
}

tamis_status tms_cl_key_score(tms_device *dev, const tms_key_score *p) {
    tamis_status status = tms_cl_base_only(dev, "key_score");
    if (status != TAMIS_OK) return status;
    if (p->kind == TMS_KEY_NORM) return run_norm(dev, p);
    if (p->kind == TMS_KEY_QUADRATIC) return run_quadratic(dev, p);
    const directions d = directions_of(p);
    status = run_directions(dev, p, &d);
    if (status == TAMIS_OK) status = run_mean(dev, p, &d);
    return status == TAMIS_OK ? run_cosine(dev, p, &d) : status;
}
