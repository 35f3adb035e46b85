/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices of weights of every type: random blocks, and each element computed by itself from the
 * table in host/ops/types.h, apart from what backends do. */
#include "check.h"

#include <math.h>
#include <stdlib.h>

bool check_is_quantised(uint32_t type) {
    return tamis_weight_block((tamis_weight_type)type) > 1;
}

static uint64_t bytes_of(uint32_t type, uint64_t count) {
    return tamis_weight_bytes((tamis_weight_type)type, 1, count);
}

/* ---- Random blocks --------------------------------------------------------------------------- */

/* A scale or a minimum: of the size that models have; nasty ones are zeros, subnormal, large, and
 * if `any` not finite. */
static double random_scale(check_rng *rng, check_fill fill, bool any) {
    static const double odd[] = {0, -0.0, 6e-8, -3e-6, 6.1e-5, 300, -4096, 1, 65504, INFINITY, NAN};
    if (fill == FILL_NASTY && check_below(rng, 3) == 0)
        return odd[check_below(rng, sizeof odd / sizeof *odd - (any ? 0 : 3))];
    return check_normal(rng) * 0.02;
}

/* Where the f16 of a block are. */
static uint32_t scale_places(uint32_t type, uint32_t places[2]) {
    places[0] = type == TAMIS_WEIGHT_Q6_K ? 208 : 0;
    places[1] = 2;
    return type == TAMIS_WEIGHT_Q4_1 || type == TAMIS_WEIGHT_Q4_K ? 2 : 1;
}

void check_add_weights(check_data *data, check_id id, uint32_t type, uint64_t count, bool any) {
    const check_fill fill = (check_fill)check_get(data, KEY_FILL);
    const uint64_t block = bytes_of(type, tamis_weight_block((tamis_weight_type)type));
    const uint64_t bytes = bytes_of(type, count);
    uint32_t places[2];
    const uint32_t n_places = scale_places(type, places);
    check_rng rng = check_rng_make(data->seed, data->c, id);
    unsigned char *to = check_buffer_add(data, id, ROLE_INPUT, CHECK_U8, bytes);
    for (uint64_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)check_below(&rng, 256);
    for (uint64_t b = 0; b < bytes / block; b++)
        for (uint32_t p = 0; p < n_places; p++)
            check_store(TAMIS_F16, to + b * block + places[p], 0, random_scale(&rng, fill, any));
}

/* Added, it changes no number, the zeros included. */
#define NOTHING (-0.0)

/* ---- An element ------------------------------------------------------------------------------ */

static int bits_at(const unsigned char *bytes, int first_bit, int n) {
    int value = 0;
    for (int i = 0; i < n; i++)
        value |= (bytes[(first_bit + i) / 8] >> (first_bit + i) % 8 & 1) << i;
    return value;
}

/* The nibble of element i of `2 * half` that `half` bytes hold. */
static int nibble_of(const unsigned char *bytes, int i, int half) {
    return bits_at(bytes, i % half * 8 + i / half * 4, 4);
}

/* Number j of the eight scales (which 0) or minima (which 1) of Q4_K. */
static int six_bits(const unsigned char *pairs, int j, int which) {
    if (j < 4) return bits_at(pairs, (j + 4 * which) * 8, 6);
    return bits_at(pairs, (j + 4) * 8 + 4 * which, 4) +
           16 * bits_at(pairs, (j - 4 + 4 * which) * 8 + 6, 2);
}

static check_weight element_of(uint32_t type, const unsigned char *block, int i) {
    uint32_t places[2];
    scale_places(type, places);
    const double d = check_load(TAMIS_F16, block + places[0], 0);
    const double m = check_load(TAMIS_F16, block + places[1], 0);
    switch (type) {
    case TAMIS_WEIGHT_Q8_0:
        return (check_weight){d * (signed char)block[2 + i], NOTHING};
    case TAMIS_WEIGHT_Q4_0:
        return (check_weight){d * (nibble_of(block + 2, i, 16) - 8), NOTHING};
    case TAMIS_WEIGHT_Q4_1:
        return (check_weight){d * nibble_of(block + 4, i, 16), m};
    case TAMIS_WEIGHT_Q5_0:
        return (check_weight){
            d * (nibble_of(block + 6, i, 16) + 16 * bits_at(block + 2, i, 1) - 16), NOTHING};
    case TAMIS_WEIGHT_Q4_K:
        return (check_weight){d * six_bits(block + 4, i / 32, 0) *
                                  nibble_of(block + 16 + i / 64 * 32, i % 64, 32),
                              -m * six_bits(block + 4, i / 32, 1)};
    default: { /* Q6_K */
        const int low = nibble_of(block + i / 128 * 64, i % 128, 64);
        const int high = bits_at(block + 128 + i / 128 * 32 + i % 32, i % 128 / 32 * 2, 2);
        return (check_weight){d * (signed char)block[192 + i / 16] * (low + 16 * high - 32),
                              NOTHING};
    }
    }
}

check_weight *check_weights(uint32_t type, const void *data, uint64_t count) {
    const uint32_t block = tamis_weight_block((tamis_weight_type)type);
    check_weight *out = check_alloc(count * sizeof *out);
    if (block == 1) {
        float *wide = check_widen(type, data, count);
        for (uint64_t i = 0; i < count; i++)
            out[i] = (check_weight){wide[i], NOTHING};
        free(wide);
        return out;
    }
    for (uint64_t i = 0; i < count; i++)
        out[i] = element_of(type, (const unsigned char *)data + bytes_of(type, i / block * block),
                            (int)(i % block));
    return out;
}
