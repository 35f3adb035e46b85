/* SPDX-License-Identifier: Apache-2.0 */
/* The logit of a query and a key: scale·q·k, capped to cap·tanh(logit/cap); NaN unless it is finite in
 * fp32. Contract: host/ops/types.h, tms_logit. */
#ifndef TMS_REFERENCE_LOGIT_H
#define TMS_REFERENCE_LOGIT_H

#include "host/ops.h"
#include "host/reference/convert.h"

#include <math.h>

static inline double tms_logit_of(const tms_logit *rule, const float *q, const float *k,
                                  uint32_t head_dim) {
    double logit = rule->scale * tms_dot(q, k, head_dim);
    if (rule->soft_cap > 0) logit = rule->soft_cap * tanh(logit / rule->soft_cap);
    return isfinite((float)logit) ? logit : NAN;
}

/* The lse of a softmax with one more logit; of -inf, which is none, as it was. */
static inline double tms_with_sink(double lse, double sink) {
    const double top = sink > lse ? sink : lse, low = sink > lse ? lse : sink; /* a NaN stays */
    return sink == -INFINITY ? lse : top + log1p(exp(low - top));
}

#endif
