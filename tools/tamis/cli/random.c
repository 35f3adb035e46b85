/* SPDX-License-Identifier: Apache-2.0 */
/* splitmix64: a step of the state, mixed. */
#include "cli/random.h"

#define STEP 0x9e3779b97f4a7c15u

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

cli_random cli_random_of(uint64_t seed, uint64_t stream) {
    return (cli_random){mix(mix(seed + STEP) + (stream + 1) * STEP)};
}

uint64_t cli_random_next(cli_random *random) {
    random->state += STEP;
    return mix(random->state);
}

uint32_t cli_random_below(cli_random *random, uint32_t n) {
    uint32_t remainder =
        (UINT32_MAX - n + 1) % n; /* 2^32 mod n: numbers below it are one too many */
    for (;;) {
        uint32_t number = (uint32_t)(cli_random_next(random) >> 32);
        if (number >= remainder) return number % n;
    }
}
