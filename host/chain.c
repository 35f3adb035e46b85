/* SPDX-License-Identifier: Apache-2.0 */
#include "host/chain.h"

/* Whether the stage is a linear, which is then *out. */
static bool is_linear(const tms_linear_parts *p, tms_linear *out) {
    *out = (tms_linear){.x = p->x,
                        .y = p->parts[0].y,
                        .w = p->parts[0].w,
                        .bias = p->parts[0].bias,
                        .n_rows = p->n_rows,
                        .n_in = p->n_in,
                        .n_out = p->parts[0].n_out,
                        .accumulate = p->accumulate,
                        .build_rows = p->build_rows};
    return p->n_parts == 1 && !p->norm_w.mem;
}

tamis_status tms_chain_run(tms_device *dev, const tms_chain_ops *ops, const tms_linear_chain *p) {
    tamis_status status = TAMIS_OK;
    tms_linear linear;
    for (uint32_t i = 0; i < p->n_stages && status == TAMIS_OK; i++)
        status = is_linear(&p->stages[i], &linear) ? ops->linear(dev, &linear)
                                                   : ops->linear_parts(dev, &p->stages[i]);
    return status;
}
