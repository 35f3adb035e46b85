/* SPDX-License-Identifier: Apache-2.0 */
/* select on OpenCL, the wide forms: shapes and launches of cl_kernels/select_wide.cl, one in scope
 * LANE, ten in a row in scope ROW, and of cl_kernels/select_wide_cpu.cl, whose kernel takes the
 * same arguments as the first. */
#include "host/opencl/opencl.h"

#define FILE_NAME "select_wide.cl"
#define GROUP     256u /* WG_SIZE of the kernels */
#define PASSES    8u
#define BINS      256u

/* Parts of scratch, in words: the upper words of all keys, then the tallies of each row. */
typedef struct parts {
    uint64_t owners, key_stride, n_keys, tally_stride, n_tallies;
    tms_ref keys, tallies;
} parts;

static parts parts_of(const tms_select *p) {
    const tms_batch *b = &p->batch;
    parts s = {.owners = (uint64_t)b->n_rows * b->n_kv_heads,
               .key_stride = tms_divide_up(b->max_visible, p->granularity),
               .tally_stride = PASSES * BINS + 4 * PASSES + b->n_kv_heads,
               .keys = p->scratch,
               .tallies = p->scratch};
    s.n_keys = s.owners * s.key_stride;
    s.n_tallies = b->n_rows * s.tally_stride;
    s.tallies.offset += s.n_keys * sizeof(cl_uint);
    return s;
}

uint64_t tms_cl_select_scratch(tms_device *dev, const tms_select *p) {
    (void)dev;
    if (!tms_select_is_wide(p)) return 0;
    const parts s = parts_of(p);
    return (s.n_keys + s.n_tallies) * sizeof(cl_uint);
}

static void set_lists(tms_cl_launch *l, const tms_lists *lists, uint64_t owners) {
    tms_cl_ref(l, lists->pages, sizeof(cl_int), owners * lists->capacity);
    tms_cl_ref(l, lists->count, sizeof(cl_int), owners);
    tms_cl_u32(l, lists->capacity);
}

static void set_scratch(tms_cl_launch *l, const parts *s) {
    tms_cl_ref(l, s->keys, sizeof(cl_uint), s->n_keys);
    tms_cl_u32(l, (uint32_t)s->key_stride);
    tms_cl_ref(l, s->tallies, sizeof(cl_uint), s->n_tallies);
    tms_cl_u32(l, (uint32_t)s->tally_stride);
}

/* BATCH_PARAMS; the tables of pages are for positions alone. */
static void set_batch(tms_cl_launch *l, const tms_select *p) {
    const tms_batch *b = &p->batch;
    tms_cl_u32(l, b->n_rows);
    tms_cl_u32(l, b->n_kv_heads);
    tms_cl_optional(l, b->row_seq, sizeof(cl_int), b->n_rows);
    tms_cl_ref(l, b->visible, sizeof(cl_int), (uint64_t)b->n_rows * b->n_kv_heads);
    tms_cl_optional(l, (tms_ref){0}, sizeof(cl_int), 0); /* rows see from slot 0 on */
    tms_cl_optional(l, b->table, sizeof(cl_int), b->n_rows != 0);
    tms_cl_u64(l, b->seq_stride);
    tms_cl_u64(l, b->head_stride);
}

static tamis_status run_lanes(tms_device *dev, const tms_select *p, const parts *s, bool cpu) {
    const tms_select_wide *w = &p->wide;
    const tms_lists forced = w->forced.pages.mem ? w->forced : (tms_lists){0};
    tms_cl_launch l =
        tms_cl_begin(dev, cpu ? "select_wide_cpu.cl" : FILE_NAME, "select_wide_lanes", "-DDTYPE=0");
    set_batch(&l, p);
    tms_cl_u32(&l, p->granularity);
    tms_cl_u32(&l, p->k);
    tms_cl_u32(&l, p->sinks);
    tms_cl_u32(&l, p->recent);
    tms_cl_optional(&l, p->scores, sizeof(cl_float), s->owners * p->stride);
    tms_cl_u32(&l, p->stride);
    set_lists(&l, &p->lists, s->owners);
    set_lists(&l, &forced, forced.pages.mem ? s->owners : 0);
    tms_cl_optional(&l, w->k_table, sizeof(cl_int), s->owners);
    tms_cl_u32(&l, w->k_share ? w->k_share : TMS_SHARE_ONE);
    tms_cl_u64(&l, tms_select_need(p));
    tms_cl_optional(&l, w->positions, sizeof(cl_int), p->batch.n_rows != 0);
    tms_cl_optional(&l, w->row_positions, sizeof(cl_int), p->batch.n_rows);
    tms_cl_u32(&l, w->page_size);
    tms_cl_u32(&l, w->scope == TMS_SCOPE_ROW);
    tms_cl_u32(&l, w->floor);
    set_scratch(&l, s);
    return tms_cl_run_groups(&l, cpu ? 1 : GROUP, s->owners, 1);
}

/* What select_wide_pass and select_wide_lists have in common. */
static tms_cl_launch begin_row(tms_device *dev, const tms_select *p, const parts *s,
                               const char *kernel) {
    tms_cl_launch l = tms_cl_begin(dev, FILE_NAME, kernel, "-DDTYPE=0");
    tms_cl_u32(&l, p->batch.n_rows);
    tms_cl_u32(&l, p->batch.n_kv_heads);
    tms_cl_ref(&l, p->batch.visible, sizeof(cl_int), s->owners);
    tms_cl_u32(&l, p->granularity);
    tms_cl_u32(&l, p->wide.total);
    set_scratch(&l, s);
    return l;
}

static const char *cpu_refusal(const tms_select *p) {
    if (p->wide.scope == TMS_SCOPE_ROW) return "lanes that compete";
    return tms_select_need(p) ? "a mass" : NULL;
}

tamis_status tms_cl_select_wide(tms_device *dev, const tms_select *p) {
    bool cpu;
    tamis_status status = tms_cl_choose(dev, "select", cpu_refusal(p), &cpu);
    if (status != TAMIS_OK) return status;
    const parts s = parts_of(p);
    status = run_lanes(dev, p, &s, cpu);
    if (p->wide.scope == TMS_SCOPE_LANE) return status;
    for (uint32_t pass = 0; status == TAMIS_OK && pass < PASSES; pass++) {
        tms_cl_launch l = begin_row(dev, p, &s, "select_wide_pass");
        tms_cl_u32(&l, pass);
        status = tms_cl_run_groups(&l, GROUP, s.owners, 1);
    }
    if (status != TAMIS_OK) return status;
    tms_cl_launch l = begin_row(dev, p, &s, "select_wide_lists");
    set_lists(&l, &p->lists, s.owners);
    return tms_cl_run_groups(&l, GROUP, s.owners, 1);
}
