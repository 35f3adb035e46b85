/* SPDX-License-Identifier: Apache-2.0 */
/* random: a share of the hits drawn by a seed, the lower limit with which other selectors are
 * compared. A row keeps its value from layer to layer. */
#include "lib/blend/selector.h"

/* The last mixing steps of splitmix64 (Steele, Lea, Flood, 2014). */
static uint64_t mix(uint64_t z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static float value(const tamis_blend_params *params, uint32_t row) {
    return (float)(mix(mix(params->seed) ^ row) >> 40) / (1 << 24); /* 24 bits: exact */
}

const tms_selector tms_selector_random = {
    .name = "random", .kind = TAMIS_BLEND_RANDOM, .value = value};
