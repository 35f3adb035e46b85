/* SPDX-License-Identifier: Apache-2.0 */
/* sink: one more logit in a softmax, which has no value:
 *   lse' = ln(exp(lse) + exp(sink));  out' = out·exp(lse - lse').
 * Contract: host/ops/, sink. */
#include "host/reference/logit.h"
#include "host/reference/reference.h"

#include <math.h>

tamis_status tms_reference_sink(tms_device *dev, const tms_sink *p) {
    const uint64_t n = p->n_rows, heads = p->n_heads, dim = p->dim;
    tms_views views = tms_views_begin(dev);
    float *out = tms_view_matrix(&views, "out", p->out, p->n_rows, heads * dim);
    float *lse = n ? tms_view(&views, "lse", p->lse, n * heads * 4) : NULL;
    const float *sinks = n ? tms_view(&views, "sinks", p->sinks, heads * 4) : NULL;
    for (uint64_t i = 0; views.status == TAMIS_OK && i < n * heads; i++) {
        const double before = lse[i], after = tms_with_sink(before, sinks[i % heads]);
        float *of = out + i / heads * p->out.stride + i % heads * dim;
        if (sinks[i % heads] == -INFINITY) continue;
        for (uint64_t d = 0; d < dim; d++)
            of[d] = (float)(of[d] * exp(before - after));
        lse[i] = (float)after;
    }
    return views.status;
}
