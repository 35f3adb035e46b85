/* SPDX-License-Identifier: Apache-2.0 */
/* One worker and requests that come at random moments. */
#include "bench/ttft.h"

#include <math.h>
#include <stdlib.h>

enum { STREAM_ARRIVALS = 1u << 30 };

/* Until the next request: exponential, mean 1. */
static double gap(cli_random *random) {
    const double below_one = (double)(cli_random_next(random) >> 11) * 0x1p-53;
    return -log(1 - below_one);
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void ttft_serve(const double *seconds, uint32_t count, double rate, uint64_t seed, double *room,
                ttft_queue *out) {
    cli_random random = cli_random_of(seed, STREAM_ARRIVALS);
    double arrival = 0, free_at = 0, first = 0, sum = 0, busy = 0;
    for (uint32_t i = 0; i < count; i++) {
        arrival += gap(&random) / rate;
        if (i == 0) first = arrival;
        free_at = (free_at > arrival ? free_at : arrival) + seconds[i];
        room[i] = free_at - arrival;
        sum += room[i];
        busy += seconds[i];
    }
    qsort(room, count, sizeof(*room), compare);
    out->rate = rate;
    out->mean = sum / count;
    out->p50 = bench_percentile(room, count, 50);
    out->p95 = bench_percentile(room, count, 95);
    out->per_s = count / (free_at - first);
    out->busy = busy / (free_at - first);
}
