/* SPDX-License-Identifier: Apache-2.0 */
/* The logit of a query and a key: scale·q·k, capped; NaN unless it is finite.
 * Contract: host/ops/types.h, tms_logit; meaning: host/reference/logit.h. */
#ifndef TAMIS_LOGIT_CUH
#define TAMIS_LOGIT_CUH

#include "common.cuh"

/* The power of two of `scale`, by which q is multiplied at once: without rounding, and so that a
 * sum of products is no larger than the logit. The rest, from 1 to 2 in size, follows. */
DEVICE float power_of(float scale) {
    const float power = bits_to_float(float_to_bits(scale) & 0x7f800000u);
    return power == 0.0f ? 1.0f : power;
}

/* Of the product, with its scale. */
DEVICE float logit_of(const cu_logit &rule, float x) {
    if (rule.soft_cap > 0.0f) x = rule.soft_cap * tanhf(x / rule.soft_cap);
    return is_finite(x) ? x : bits_to_float(0x7fc00000u);
}

/* The lse of a softmax with one more logit; of -inf, which is none, as it was. A NaN stays. */
DEVICE float with_sink(float lse, float sink) {
    const float top = sink > lse ? sink : lse, low = sink > lse ? lse : sink;
    return sink == -INFINITY ? lse : top + log1pf(expf(low - top));
}

#endif
