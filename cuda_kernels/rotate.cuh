/* SPDX-License-Identifier: Apache-2.0 */
/* The turn of a pair of channels by position·frequency, for rotate, write_rows and load_rows: one
 * expression, so that all give the same bits. */
#ifndef TAMIS_CUDA_ROTATE_CUH
#define TAMIS_CUDA_ROTATE_CUH

#include "common.cuh"

#define STEPS 1024u /* TMS_ROTATE_STEPS */

/* Rotates (x, y), the pair of that number. */
DEVICE void turn(const float *table, int32_t position, uint32_t pair, uint32_t n_pairs, float &x,
                 float &y) {
    /* 1. cos and sin of the two parts of the position's angle, and of their sum */
    const uint32_t far = position < 0 ? -position : position;
    const float *low = table + ((uint64_t)(far % STEPS) * n_pairs + pair) * 2;
    const float *high = table + ((uint64_t)(STEPS + far / STEPS) * n_pairs + pair) * 2;
    const float c = high[0] * low[0] - high[1] * low[1];
    const float s = high[1] * low[0] + high[0] * low[1];
    const float t = position < 0 ? -s : s;
    /* 2. the pair */
    const float a = x, b = y;
    x = a * c - b * t;
    y = a * t + b * c;
}

/* The channels of a pair. */
DEVICE uint32_t first_of(uint32_t pair, bool adjacent) {
    return adjacent ? 2 * pair : pair;
}
DEVICE uint32_t second_of(uint32_t pair, uint32_t n_pairs, bool adjacent) {
    return adjacent ? 2 * pair + 1 : pair + n_pairs;
}

/* Rotates a pair of a head's channels, in place. */
DEVICE void turn_pair(float *head, const float *table, int32_t position, uint32_t pair,
                      uint32_t n_pairs, bool adjacent) {
    turn(table, position, pair, n_pairs, head[first_of(pair, adjacent)],
         head[second_of(pair, n_pairs, adjacent)]);
}

#endif
