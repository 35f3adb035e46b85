/* SPDX-License-Identifier: Apache-2.0 */
/* The logit of a query and a key: scale·q·k, capped to cap·tanh(logit/cap); NaN unless it is finite in
 * fp32. Contract: host/ops/types.h, tms_logit. */
#include "host/reference/convert.h"
#include "host/reference/reference.h"

#include <math.h>

double tms_logit_of(const tms_logit *rule, const float *q, const float *k, uint32_t head_dim) {
    double logit = rule->scale * tms_dot(q, k, head_dim);
    if (rule->soft_cap > 0) logit = rule->soft_cap * tanh(logit / rule->soft_cap);
    return isfinite((float)logit) ? logit : NAN;
}
