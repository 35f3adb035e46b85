/* SPDX-License-Identifier: Apache-2.0 */
/* Percentiles of sorted values. */
#include "bench/bench.h"

double bench_percentile(const double *sorted, uint32_t count, uint32_t percent) {
    const uint64_t rank = ((uint64_t)count * percent + 99) / 100;
    return sorted[rank > 0 ? rank - 1 : 0];
}
