/* SPDX-License-Identifier: Apache-2.0 */
/* merge: states of the same rows into one, in part order:
 *   lse = ln Σ_i exp(lse_i);  out = Σ_i exp(lse_i - lse)·out_i.
 * Contract: host/ops/, merge. A part is live unless its lse is -inf: then it adds nothing,
 * whatever its out holds. Without a live part out is 0 and lse -inf; a single live part is copied
 * bit for bit. */
#include "host/reference/reference.h"

#include <math.h>
#include <string.h>

tamis_status tms_reference_merge(tms_device *dev, const tms_merge *p) {
    const uint64_t n = p->n, dim = p->dim, rows = p->n_parts * n;
    tms_views views = tms_views_begin(dev);
    const float *outs = tms_view(&views, "outs", p->outs, rows * dim * 4);
    const float *lses = tms_view(&views, "lses", p->lses, rows * 4);
    float *out = tms_view(&views, "out", p->out, n * dim * 4);
    float *lse = tms_view_optional(&views, "lse", p->lse, n * 4);
    if (views.status != TAMIS_OK) return views.status;
    for (uint64_t r = 0; r < n; r++) {
        /* 1. Live parts and the largest lse among them. */
        uint64_t live = 0, one = 0;
        double max = -INFINITY, sum = 0;
        for (uint64_t i = 0; i < p->n_parts; i++) {
            const float part = lses[i * n + r];
            if (part == -INFINITY) continue;
            live++;
            one = i;
            max = part > max ? part : max;
        }
        /* 2. A single live part is copied. */
        if (live == 1) {
            memcpy(out + r * dim, outs + (one * n + r) * dim, dim * sizeof *out);
            if (lse) memcpy(lse + r, lses + one * n + r, sizeof *lse);
            continue;
        }
        /* 3. The sum of weights; a NaN part makes it NaN. */
        for (uint64_t i = 0; i < p->n_parts; i++) {
            if (lses[i * n + r] != -INFINITY) sum += exp(lses[i * n + r] - max);
        }
        /* 4. The weighted outs. */
        for (uint64_t d = 0; d < dim; d++) {
            double value = 0;
            for (uint64_t i = 0; i < p->n_parts; i++) {
                if (lses[i * n + r] != -INFINITY)
                    value += exp(lses[i * n + r] - max) / sum * outs[(i * n + r) * dim + d];
            }
            out[r * dim + d] = (float)value;
        }
        if (lse) lse[r] = (float)(max + log(sum));
    }
    return TAMIS_OK;
}
