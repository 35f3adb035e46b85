/* SPDX-License-Identifier: Apache-2.0 */
/* Where data come from: a PCG generator seeded by (seed, case text, stream), and the fills. */
#include "check.h"

#include <math.h>

/* FNV-1a. */
static uint64_t hash_text(const char *text) {
    uint64_t hash = 14695981039346656037u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}

check_rng check_rng_make(uint64_t seed, const check_case *c, uint64_t stream) {
    check_rng rng = {0};
    rng.inc = stream << 1 | 1;
    check_rng_next(&rng);
    rng.state += hash_text(c->text) ^ (seed * 0x9E3779B97F4A7C15u);
    check_rng_next(&rng);
    return rng;
}

/* PCG-XSH-RR 64/32. */
uint32_t check_rng_next(check_rng *rng) {
    const uint64_t old = rng->state;
    rng->state = old * 6364136223846793005u + rng->inc;
    const uint32_t mixed = (uint32_t)((old >> 18 ^ old) >> 27);
    const uint32_t turn = (uint32_t)(old >> 59);
    return mixed >> turn | mixed << (-turn & 31);
}

uint32_t check_below(check_rng *rng, uint32_t n) {
    return (uint32_t)((uint64_t)check_rng_next(rng) * n >> 32);
}

/* Box-Muller, which makes them in pairs. */
double check_normal(check_rng *rng) {
    if (rng->has_spare) {
        rng->has_spare = false;
        return rng->spare;
    }
    double u = (check_rng_next(rng) + 0.5) / 4294967296.0;
    double angle = check_rng_next(rng) * (6.283185307179586 / 4294967296.0);
    double radius = sqrt(-2 * log(u));
    rng->spare = radius * sin(angle);
    rng->has_spare = true;
    return radius * cos(angle);
}

double check_finite(check_rng *rng, check_fill fill) {
    if (fill == FILL_INTS) return (double)check_below(rng, 9) - 4;
    if (fill == FILL_NORMAL) return (float)check_normal(rng);
    switch (check_below(rng, 8)) {
    case 0:
        return 0.0;
    case 1:
        return -0.0;
    case 2:
        return 1.0; /* ties */
    case 3:
        return (float)(check_normal(rng) * 1e-6);
    case 4:
        return (float)(check_normal(rng) * 300);
    default:
        return (float)check_normal(rng);
    }
}

double check_value(check_rng *rng, check_fill fill) {
    static const double odd[] = {NAN,     INFINITY, -INFINITY, 65519.99, 65520.0,     -65504.0,
                                 6.1e-05, 3e-08,    -2.9e-08,  1e-41,    2.98023e-08, 3.39e38};
    if (fill == FILL_NASTY && check_below(rng, 16) == 0)
        return (float)odd[check_below(rng, sizeof odd / sizeof odd[0])];
    if (fill == FILL_NASTY && check_below(rng, 8) == 0) {
        /* Half way between two f16 or two bf16 values, which are even integers there. */
        double step = check_below(rng, 2) ? 2048 : 256;
        return (step + 1 + 2 * check_below(rng, 100)) * (check_below(rng, 2) ? 1 : -1);
    }
    return check_finite(rng, fill);
}

void check_shuffle(check_rng *rng, uint32_t *items, uint32_t n) {
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = check_below(rng, i);
        uint32_t kept = items[i - 1];
        items[i - 1] = items[j];
        items[j] = kept;
    }
}
