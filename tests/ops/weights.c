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

static void add_blocks(check_data *data, const check_matrix *m, bool any) {
    const check_fill fill = (check_fill)check_get(data, KEY_FILL);
    const uint64_t block = bytes_of(m->type, tamis_weight_block((tamis_weight_type)m->type));
    const uint64_t bytes = bytes_of(m->type, (uint64_t)m->n_out * m->n_in);
    uint32_t places[2];
    const uint32_t n_places = scale_places(m->type, places);
    check_rng rng = check_rng_make(data->seed, data->c, m->id);
    unsigned char *to = check_buffer_add(data, m->id, ROLE_INPUT, CHECK_U8, bytes);
    for (uint64_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)check_below(&rng, 256);
    for (uint64_t b = 0; b < bytes / block; b++)
        for (uint32_t p = 0; p < n_places; p++)
            check_store(TAMIS_F16, to + b * block + places[p], 0, random_scale(&rng, fill, any));
}

void check_add_matrix(check_data *data, const check_matrix *m, bool any) {
    const uint64_t n = (uint64_t)m->n_out * m->n_in;
    if (check_is_quantised(m->type)) {
        add_blocks(data, m, any);
    } else if (any) {
        check_rng rng = check_rng_make(data->seed, data->c, m->id);
        void *w = check_buffer_add(data, m->id, ROLE_INPUT, m->type, n);
        for (uint64_t i = 0; i < n; i++)
            check_store(m->type, w, i, check_value(&rng, (check_fill)check_get(data, KEY_FILL)));
    } else {
        check_buffer_add(data, m->id, ROLE_INPUT, m->type, n);
        check_fill_matrix(data, m->id, m->n_out, m->n_in, m->n_in);
    }
}

/* ---- Strips ---------------------------------------------------------------------------------- */

static bool in_strips(const check_data *data, const check_matrix *m) {
    const uint32_t which = check_get(data, KEY_STRIPS);
    return check_is_quantised(m->type) && (which == 1 || (which == 2 && m->part % 2));
}

/* Bytes of the unit in which byte `at` of a block lies, and where its field begins. */
static uint32_t unit_of(uint32_t type, uint32_t at, uint32_t *field) {
    *field = 0;
    if (type == TAMIS_WEIGHT_Q6_K) {
        *field = at < 192 ? 0 : at < 208 ? 192 : 208;
        return at < 192 ? 4 : at < 208 ? 1 : 2;
    }
    const uint32_t halves = type == TAMIS_WEIGHT_Q4_1 || type == TAMIS_WEIGHT_Q4_K ? 4 : 2;
    if (at < halves) return 2;
    *field = halves;
    if (type == TAMIS_WEIGHT_Q4_K && at < 16) return 1;
    if (type == TAMIS_WEIGHT_Q4_K) *field = 16;
    return 4;
}

/* Where byte `at` of block `block` of row `row` lies in strips. */
static uint64_t place_of(const check_matrix *m, uint64_t row, uint64_t block, uint32_t at) {
    const uint64_t bytes = bytes_of(m->type, tamis_weight_block((tamis_weight_type)m->type));
    const uint64_t strip = row / 16 * 16 * bytes_of(m->type, m->n_in) + block * 16 * bytes;
    uint32_t field;
    const uint32_t unit = unit_of(m->type, at, &field), in = at - field;
    return strip + field * 16ull + (in / unit * 16 + row % 16) * unit + in % unit;
}

/* Copies between rows and strips. The 32 high bits of a block of Q5_0 are turned. */
static void lay(const check_matrix *m, unsigned char *rows, unsigned char *strips, bool back) {
    const uint32_t elements = tamis_weight_block((tamis_weight_type)m->type);
    const uint32_t bytes = (uint32_t)bytes_of(m->type, elements), blocks = m->n_in / elements;
    for (uint64_t row = 0; row < m->n_out; row++)
        for (uint64_t block = 0; block < blocks; block++) {
            unsigned char *of = rows + (row * blocks + block) * bytes;
            const bool turned = m->type == TAMIS_WEIGHT_Q5_0;
            for (uint32_t at = 0; at < bytes; at++) {
                unsigned char *to = strips + place_of(m, row, block, at);
                if (turned && at >= 2 && at < 6) continue;
                if (back)
                    of[at] = *to;
                else
                    *to = of[at];
            }
            for (uint32_t bit = 0; turned && bit < 32; bit++) {
                const uint32_t k = bit % 4, g = bit / 4;
                unsigned char *to = strips + place_of(m, row, block, 2 + k);
                unsigned char *from = of + 2 + bit / 8;
                if (back)
                    *from = (unsigned char)((*from & ~(1u << bit % 8)) | (*to >> g & 1) << bit % 8);
                else
                    *to = (unsigned char)((*to & ~(1u << g)) | (*from >> bit % 8 & 1) << g);
            }
        }
}

void check_lay_matrix(check_data *data, const check_matrix *m) {
    if (!in_strips(data, m)) return;
    unsigned char *rows = check_init(data, m->id);
    unsigned char *strips =
        check_buffer_add(data, m->id, ROLE_INPUT, CHECK_U8,
                         (m->n_out + 15ull) / 16 * 16 * bytes_of(m->type, m->n_in));
    lay(m, rows, strips, false);
    free(rows);
}

tms_weight_matrix check_matrix_of(const check_side *side, const check_matrix *m) {
    return (tms_weight_matrix){check_ref(side, m->id, 0), (tamis_weight_type)m->type,
                               in_strips(side->data, m) ? TAMIS_WEIGHT_STRIPS : TAMIS_WEIGHT_ROWS};
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

static check_weight *elements_of(uint32_t type, const unsigned char *rows, uint64_t count) {
    const uint32_t block = tamis_weight_block((tamis_weight_type)type);
    check_weight *out = check_alloc(count * sizeof *out);
    if (block == 1) {
        float *wide = check_widen(type, rows, count);
        for (uint64_t i = 0; i < count; i++)
            out[i] = (check_weight){wide[i], NOTHING};
        free(wide);
        return out;
    }
    for (uint64_t i = 0; i < count; i++)
        out[i] = element_of(type, rows + bytes_of(type, i / block * block), (int)(i % block));
    return out;
}

check_weight *check_weights(const check_data *data, const check_matrix *m) {
    const uint64_t count = (uint64_t)m->n_out * m->n_in;
    if (!in_strips(data, m)) return elements_of(m->type, check_init(data, m->id), count);
    unsigned char *rows = check_alloc(bytes_of(m->type, count));
    lay(m, rows, check_init(data, m->id), true);
    check_weight *out = elements_of(m->type, rows, count);
    free(rows);
    return out;
}
