/* SPDX-License-Identifier: Apache-2.0 */
/* page_mass on OpenCL: shapes and launches of cl_kernels/mass.cl, three in a row. */
#include "host/opencl/opencl.h"

/* Parts of scratch: log-masses [row][query head][log_stride], then an lse per (row, query head). */
typedef struct masses {
    tms_ref logs, lse;
    uint32_t log_stride; /* the full pages and a partial one */
    uint64_t n_states, n_logs;
} masses;

static masses masses_of(const tms_page_mass *p) {
    masses m = {.logs = p->scratch,
                .lse = p->scratch,
                .log_stride = p->stride + 1,
                .n_states = (uint64_t)p->batch.n_rows * p->batch.n_heads};
    m.n_logs = m.n_states * m.log_stride;
    m.lse.offset += m.n_logs * sizeof(cl_float);
    return m;
}

uint64_t tms_cl_page_mass_scratch(tms_device *dev, const tms_page_mass *p) {
    masses m = masses_of(p);
    (void)dev;
    return (m.n_logs + m.n_states) * sizeof(cl_float);
}

static tms_cl_launch begin(tms_device *dev, const tms_page_mass *p, const char *kernel) {
    const tms_kv keys = tms_cl_keys(&p->kv);
    return tms_cl_begin(
        dev, "mass.cl", kernel, "-DDTYPE=%d -DHEAD_DIM=%u -DPAGE_SIZE=%u -DGROUP=%u -DRULE=%d%s",
        tms_key_dtype(p->kv.dtype), p->kv.head_dim, p->kv.page_size,
        p->batch.n_heads / p->batch.n_kv_heads, p->group, tms_cl_layout_option(&keys));
}

/* The number of work-groups that share the pages of one owner, with a work-item per page, limited
 * for the grid's y. */
static uint64_t shares_of(uint32_t pages) {
    uint32_t shares = pages / TMS_CL_WG_SIZE + (pages % TMS_CL_WG_SIZE != 0);
    return shares < 1 ? 1 : shares < 1024 ? shares : 1024;
}

/* Log-masses of every visible page of every query head. */
static tamis_status run_logs(tms_device *dev, const tms_page_mass *p, const masses *m) {
    const tms_batch *b = &p->batch;
    const uint32_t pages = tms_batch_entries(b, p->kv.page_size);
    const tms_kv keys = tms_cl_keys(&p->kv);
    tms_cl_launch l = begin(dev, p, "page_mass_logs");
    tms_cl_kv(&l, &keys, b->n_rows);
    tms_cl_batch(&l, b);
    tms_cl_matrix(&l, &p->q, b->n_rows, (uint64_t)b->n_heads * p->kv.head_dim);
    tms_cl_logit(&l, &p->logit);
    tms_cl_ref(&l, m->logs, sizeof(cl_float), m->n_logs);
    tms_cl_u32(&l, m->log_stride);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, m->n_states, shares_of(pages));
}

static tamis_status run_lse(tms_device *dev, const tms_page_mass *p, const masses *m) {
    tms_cl_launch l = begin(dev, p, "page_mass_lse");
    tms_cl_batch(&l, &p->batch);
    tms_cl_ref(&l, m->logs, sizeof(cl_float), m->n_logs);
    tms_cl_u32(&l, m->log_stride);
    tms_cl_ref(&l, m->lse, sizeof(cl_float), m->n_states);
    tms_cl_optional(&l, p->logit.sinks, sizeof(cl_float), m->n_states ? p->batch.n_heads : 0);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, m->n_states, 1);
}

/* Computes the masses from them, joined over the query heads of each KV head. */
static tamis_status run_scores(tms_device *dev, const tms_page_mass *p, const masses *m) {
    const tms_batch *b = &p->batch;
    uint64_t owners = (uint64_t)b->n_rows * b->n_kv_heads;
    tms_cl_launch l = begin(dev, p, "page_mass_scores");
    tms_cl_batch(&l, b);
    tms_cl_ref(&l, m->logs, sizeof(cl_float), m->n_logs);
    tms_cl_u32(&l, m->log_stride);
    tms_cl_ref(&l, m->lse, sizeof(cl_float), m->n_states);
    tms_cl_ref(&l, p->scores, sizeof(cl_float), owners * p->stride);
    tms_cl_u32(&l, p->stride);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, owners,
                             shares_of(tms_batch_full_entries(b, p->kv.page_size)));
}

tamis_status tms_cl_page_mass(tms_device *dev, const tms_page_mass *p) {
    tamis_status status = tms_cl_base_only(dev, "page_mass");
    if (status != TAMIS_OK) return status;
    const masses m = masses_of(p);
    status = run_logs(dev, p, &m);
    if (status == TAMIS_OK) status = run_lse(dev, p, &m);
    return status == TAMIS_OK ? run_scores(dev, p, &m) : status;
}
