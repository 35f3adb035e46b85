/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers that are the same in every run: splitmix64. */
#ifndef CLI_RANDOM_H
#define CLI_RANDOM_H

#include <stdint.h>

typedef struct cli_random {
    uint64_t state;
} cli_random;

/* A generator of its own for each purpose: numbers follow from (seed, stream) alone. */
cli_random cli_random_of(uint64_t seed, uint64_t stream);
uint64_t cli_random_next(cli_random *random);
/* Below n > 0, without bias. */
uint32_t cli_random_below(cli_random *random, uint32_t n);

#endif
