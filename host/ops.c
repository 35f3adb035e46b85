/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about the params of ops, for whoever launches them and for whoever checks or runs them; the
 * table of rotate. */
#include "host/ops.h"

#include <math.h>

uint32_t tms_select_most(const tms_select *p) {
    const tms_select_wide *w = &p->wide;
    const uint64_t size = p->granularity, n = tms_divide_up(p->batch.max_visible, size);
    /* Recent slots may begin within an entry; without them a partial entry is still protected. */
    const uint64_t recent = p->recent ? ((uint64_t)p->recent + size - 2) / size + 1 : size > 1;
    uint64_t fixed = tms_divide_up(p->sinks, size) + recent;
    if (w->forced.pages.mem && fixed < w->forced.capacity) fixed = w->forced.capacity;
    uint64_t most = w->positions.mem || p->k > fixed ? p->k : fixed;
    if (w->scope == TMS_SCOPE_ROW) most = w->total > fixed + w->floor ? w->total : fixed + w->floor;
    return p->batch.n_rows == 0 ? 0 : (uint32_t)(most < n ? most : n);
}

uint64_t tms_select_need(const tms_select *p) {
    const double need = ceil(ldexp(p->wide.mass, 32));
    return need > 0 && need < ldexp(1, 64) ? (uint64_t)need : 0;
}

bool tms_fuse_reads_y(const tms_fuse *p) {
    return p->kind == TMS_FUSE_MULTIPLY || (p->kind == TMS_FUSE_AXPBY && p->y.ref.mem);
}

bool tms_fuse_is_paged(const tms_fuse *p) {
    return p->kind == TMS_FUSE_LIFETIME || p->x.stride == 0 || p->out.stride == 0 ||
           (tms_fuse_reads_y(p) && p->y.stride == 0);
}

void tms_rotate_table(const double *frequencies, uint32_t n_rot, float *table) {
    const uint32_t pairs = n_rot / 2;
    for (uint32_t level = 0; level < 2; level++) {
        const double step = level ? TMS_ROTATE_STEPS : 1;
        for (uint32_t j = 0; j < TMS_ROTATE_STEPS; j++) {
            for (uint32_t i = 0; i < pairs; i++) {
                const double angle = j * step * frequencies[i];
                *table++ = (float)cos(angle);
                *table++ = (float)sin(angle);
            }
        }
    }
}
