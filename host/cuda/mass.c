/* SPDX-License-Identifier: Apache-2.0 */
/* page_mass on CUDA: shapes and launches of cuda_kernels/mass.cu, three in a row. */
#include "host/cuda/cuda.h"

/* Most blocks of a grid along y; with more pages each block takes several. */
#define MOST_SHARES 1024u

/* Parts of scratch: log-masses [row][query head][log_stride], then an lse per (row, query head). */
typedef struct masses {
    uint64_t n_states, n_logs, log_stride; /* the full pages and a partial one */
} masses;

static masses masses_of(const tms_page_mass *p) {
    masses m = {.n_states = (uint64_t)p->batch.n_rows * p->batch.n_heads,
                .log_stride = (uint64_t)p->stride + 1};
    m.n_logs = m.n_states * m.log_stride;
    return m;
}

uint64_t tms_cu_page_mass_scratch(tms_device *dev, const tms_page_mass *p) {
    const masses m = masses_of(p);
    (void)dev;
    return (m.n_logs + m.n_states) * sizeof(float);
}

static cu_mass_args args_of(tms_cu_launch *l, const tms_page_mass *p) {
    const tms_batch *b = &p->batch;
    const masses m = masses_of(p);
    const uint64_t owners = (uint64_t)b->n_rows * b->n_kv_heads;
    const uint64_t scratch =
        tms_cu_ref(l, "scratch", p->scratch, sizeof(float), m.n_logs + m.n_states);
    return (cu_mass_args){
        .kv = tms_cu_kv(l, &p->kv, b->n_rows),
        .batch = tms_cu_batch(l, b),
        .q = tms_cu_matrix(l, "q", &p->q, b->n_rows, (uint64_t)b->n_heads * p->kv.head_dim),
        .logs = scratch,
        .lse = scratch + m.n_logs * sizeof(float),
        .sinks =
            tms_cu_optional(l, "sinks", p->logit.sinks, sizeof(float), b->n_rows ? b->n_heads : 0),
        .scores = tms_cu_ref(l, "scores", p->scores, sizeof(float), owners * p->stride),
        .log_stride = m.log_stride,
        .stride = p->stride,
        .logit = tms_cu_logit(&p->logit),
        .rule = p->group,
    };
}

/* Blocks of x owners, which share the `n` pages of each, `per_block` at a time. */
static tms_cu_grid grid_of(uint64_t owners, uint64_t n, uint32_t per_block) {
    const uint64_t shares = tms_divide_up(n, per_block);
    return (tms_cu_grid){.x = owners,
                         .y = shares < MOST_SHARES ? shares : MOST_SHARES,
                         .z = 1,
                         .threads = CU_MASS_THREADS};
}

/* Log-masses of every visible page of every query head, a warp a page. */
static tamis_status run_logs(tms_device *dev, const tms_page_mass *p) {
    const uint32_t pages = tms_batch_entries(&p->batch, p->kv.page_size);
    tms_cu_launch l = tms_cu_begin(dev, "mass", "page_mass_logs_%s_d%u",
                                   tms_cu_key_tag(p->kv.dtype), tms_cu_dim_tag(p->kv.head_dim));
    const cu_mass_args args = args_of(&l, p);
    return tms_cu_run(&l, grid_of(masses_of(p).n_states, pages, CU_MASS_THREADS / 32), &args);
}

static tamis_status run_lse(tms_device *dev, const tms_page_mass *p) {
    tms_cu_launch l = tms_cu_begin(dev, "mass", "page_mass_lse");
    const cu_mass_args args = args_of(&l, p);
    return tms_cu_run(&l, grid_of(masses_of(p).n_states, 1, 1), &args);
}

/* Computes the masses from them, joined over the query heads of each KV head. */
static tamis_status run_scores(tms_device *dev, const tms_page_mass *p) {
    tms_cu_launch l = tms_cu_begin(dev, "mass", "page_mass_scores");
    const cu_mass_args args = args_of(&l, p);
    return tms_cu_run(&l,
                      grid_of((uint64_t)p->batch.n_rows * p->batch.n_kv_heads,
                              tms_batch_full_entries(&p->batch, p->kv.page_size),
                              CU_MASS_THREADS),
                      &args);
}

tamis_status tms_cu_page_mass(tms_device *dev, const tms_page_mass *p) {
    tamis_status status = tms_cu_base_only(dev, "page_mass");
    if (status != TAMIS_OK) return status;
    status = run_logs(dev, p);
    if (status == TAMIS_OK) status = run_lse(dev, p);
    return status == TAMIS_OK ? run_scores(dev, p) : status;
}
