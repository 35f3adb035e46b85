/* SPDX-License-Identifier: Apache-2.0 */
/* observe on OpenCL: the choice of form, shape and launch of cl_kernels/observe.cl and
 * observe_cpu.cl. */
#include "host/opencl/opencl.h"

/* Slots of an item of the queue in the CPU form. */
#define RUN_SLOTS 128u
/* Most loop iterations of a work-item of the base form in a launch, and rows of one iteration (ROWS
 * of observe.cl). */
#define MOST_TURNS 16384u
#define TILE_ROWS  8u

/* OBSERVE_PARAMS of observe.clh. */
static void set_observe(tms_cl_launch *l, const tms_observe *p) {
    const tms_batch *b = &p->batch;
    const uint64_t n = b->n_rows && p->n_items ? p->n_items : 0, rows = n ? b->n_rows : 0;
    const uint64_t lists = n * b->n_heads * p->max_span;
    tms_cl_ref(l, p->spans, sizeof(cl_int), 2 * n);
    tms_cl_u32(l, (uint32_t)n);
    tms_cl_u32(l, p->max_span);
    tms_cl_u32(l, b->n_heads / b->n_kv_heads);
    tms_cl_ref(l, p->lse, sizeof(cl_float), tms_rows_extent(rows, p->lse_stride, b->n_heads));
    tms_cl_u64(l, p->lse_stride);
    tms_cl_u32(l, p->rows);
    tms_cl_u32(l, p->group);
    tms_cl_u32(l, p->accumulate);
    tms_cl_optional(l, p->values.ref, sizeof(cl_float), n * b->n_kv_heads * p->values.stride);
    tms_cl_u64(l, p->values.stride);
    tms_cl_u32(l, p->kv.page_size);
    tms_cl_optional(l, p->tile, sizeof(cl_float), lists * p->tile_stride);
    tms_cl_u64(l, p->tile_stride);
}

/* The number of (item, KV head, share of the slots), for shares of `slots` slots. */
static uint32_t shares_of(const tms_observe *p, uint32_t slots) {
    const uint32_t shares = (uint32_t)tms_divide_up(p->batch.max_visible, slots);
    return shares ? shares : 1;
}

static uint64_t n_logits(const tms_observe *p) {
    return (uint64_t)p->batch.n_rows * p->batch.n_heads * p->logit_stride;
}

/* Slots of a work-group that computes logits (KEYS of observe.cl). */
static uint32_t keys_of(const tms_observe *p) {
    return 2 * (TMS_CL_WG_SIZE / (p->kv.head_dim / 16));
}

/* The number of rows of a span that one launch of the base form takes. */
static uint32_t part_of(const tms_observe *p) {
    const uint32_t group = p->batch.n_heads / p->batch.n_kv_heads, dim = p->kv.head_dim;
    const uint32_t pairs = (uint32_t)tms_divide_up(TILE_ROWS * keys_of(p), TMS_CL_WG_SIZE);
    const uint32_t from_keys = TILE_ROWS * (dim / TMS_CL_WG_SIZE + 3) + pairs * (dim / 16 + 1);
    const uint32_t of_head = p->logits.mem ? TILE_ROWS : from_keys;
    return MOST_TURNS / (group * of_head + 4 * TILE_ROWS) * TILE_ROWS;
}

/* Launches rows [begin, end) of every span. */
static tamis_status run_part(tms_device *dev, const tms_observe *p, uint32_t begin, uint32_t end) {
    const tms_batch *b = &p->batch;
    const uint32_t blocks = shares_of(p, p->logits.mem ? TMS_CL_WG_SIZE : keys_of(p));
    const tms_kv keys = tms_cl_keys(&p->kv);
    tms_cl_launch l;
    if (p->logits.mem) {
        l = tms_cl_begin(dev, "observe.cl", "observe_logits", "%s", "");
        tms_cl_batch(&l, b);
        set_observe(&l, p);
        tms_cl_ref(&l, p->logits, sizeof(cl_float), n_logits(p));
        tms_cl_u64(&l, p->logit_stride);
    } else {
        l = tms_cl_begin(dev, "observe.cl", "observe_rows",
                         "-DDTYPE=%d -DHEAD_DIM=%u -DALIGNED=%d%s", tms_key_dtype(p->kv.dtype),
                         p->kv.head_dim, tms_cl_rows_aligned(dev, &keys),
                         tms_cl_layout_option(&keys));
        tms_cl_kv(&l, &keys, b->n_rows);
        tms_cl_batch(&l, b);
        set_observe(&l, p);
        tms_cl_matrix(&l, &p->q, b->n_rows, (uint64_t)b->n_heads * p->kv.head_dim);
        tms_cl_logit(&l, &p->logit);
    }
    tms_cl_u32(&l, begin);
    tms_cl_u32(&l, end);
    tms_cl_u32(&l, blocks);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, (uint64_t)p->n_items * blocks, b->n_kv_heads);
}

/* Launches the spans part by part; each part is joined with the values so far. */
static tamis_status run_base(tms_device *dev, const tms_observe *p) {
    const uint32_t part = part_of(p);
    uint32_t begin = 0;
    tamis_status status;
    do {
        status = run_part(dev, p, begin, begin + part);
        begin += part;
    } while (status == TAMIS_OK && begin < p->max_span);
    return status;
}

/* The kernel takes logits and q by the same arguments: memory, row stride, head stride. */
static tamis_status run_cpu(tms_device *dev, const tms_observe *p) {
    const tms_batch *b = &p->batch;
    const uint32_t runs = shares_of(p, RUN_SLOTS);
    const uint64_t items = b->n_rows ? (uint64_t)p->n_items * b->n_kv_heads * runs : 0;
    const tms_kv keys = tms_cl_keys(&p->kv);
    tms_cl_launch l;
    if (p->logits.mem) {
        l = tms_cl_begin(dev, "observe_cpu.cl", "observe_run", "-DLOGITS=1 -DRUN=%u%s", RUN_SLOTS,
                         tms_cl_shape(dev));
        tms_cl_batch(&l, b);
        set_observe(&l, p);
        tms_cl_ref(&l, p->logits, sizeof(cl_float), n_logits(p));
        tms_cl_u64(&l, b->n_heads * p->logit_stride);
        tms_cl_u64(&l, p->logit_stride);
    } else {
        l = tms_cl_begin(dev, "observe_cpu.cl", "observe_run",
                         "-DDTYPE=%d -DHEAD_DIM=%u -DRUN=%u%s", tms_key_dtype(p->kv.dtype),
                         p->kv.head_dim, RUN_SLOTS, tms_cl_shape(dev));
        tms_cl_kv(&l, &keys, b->n_rows);
        tms_cl_batch(&l, b);
        set_observe(&l, p);
        tms_cl_matrix(&l, &p->q, b->n_rows, (uint64_t)b->n_heads * p->kv.head_dim);
        tms_cl_u64(&l, p->kv.head_dim);
        tms_cl_logit(&l, &p->logit);
    }
    tms_cl_u32(&l, runs);
    return tms_cl_run_queue(&l, items);
}

tamis_status tms_cl_observe(tms_device *dev, const tms_observe *p) {
    const bool apart = !p->logits.mem && !tms_channels_adjacent(&p->kv);
    const char *refusal = apart ? "channels of a row are not adjacent" : NULL;
    bool cpu;
    tamis_status status = tms_cl_choose(dev, "observe", refusal, &cpu);
    if (status != TAMIS_OK) return status;
    return cpu ? run_cpu(dev, p) : run_base(dev, p);
}
