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

/* ---- Fields of a block ----------------------------------------------------------------------- */

/* Of each quantised type: the bytes where f16 scales and minima are, -1 for none; the fields, each by
 * the byte where it begins and the bytes of its units; whether 32 bits are turned in strips, and the
 * byte where they begin. */
typedef struct block_fields {
    int halves[2];
    struct {
        uint32_t from, unit;
    } fields[4];
    bool turned;
    uint32_t bits;
} block_fields;

static const block_fields all_fields[] = {
    [TAMIS_WEIGHT_Q8_0] = {{0, -1}, {{0, 2}, {2, 4}}, false, 0},
    [TAMIS_WEIGHT_Q4_0] = {{0, -1}, {{0, 2}, {2, 4}}, false, 0},
    [TAMIS_WEIGHT_Q4_1] = {{0, 2}, {{0, 2}, {4, 4}}, false, 0},
    [TAMIS_WEIGHT_Q5_0] = {{0, -1}, {{0, 2}, {2, 4}}, true, 2},
    [TAMIS_WEIGHT_Q4_K] = {{0, 2}, {{0, 2}, {4, 1}, {16, 4}}, false, 0},
    [TAMIS_WEIGHT_Q6_K] = {{208, -1}, {{0, 4}, {192, 1}, {208, 2}}, false, 0},
    [TAMIS_WEIGHT_Q5_1] = {{0, 2}, {{0, 2}, {4, 4}}, true, 4},
    [TAMIS_WEIGHT_Q5_K] = {{0, 2}, {{0, 2}, {4, 1}, {16, 4}}, false, 0},
    [TAMIS_WEIGHT_Q3_K] = {{108, -1}, {{0, 4}, {96, 1}, {108, 2}}, false, 0},
    [TAMIS_WEIGHT_Q2_K] = {{80, 82}, {{0, 1}, {16, 4}, {80, 2}}, false, 0},
    [TAMIS_WEIGHT_IQ4_NL] = {{0, -1}, {{0, 2}, {2, 4}}, false, 0},
    [TAMIS_WEIGHT_IQ4_XS] = {{0, -1}, {{0, 2}, {4, 1}, {8, 4}}, false, 0},
    [TAMIS_WEIGHT_MXFP4] = {{-1, -1}, {{0, 1}, {1, 4}}, false, 0},
};
_Static_assert(sizeof all_fields / sizeof *all_fields == CHECK_WEIGHT_TYPES, "every type");

/* ---- Random blocks --------------------------------------------------------------------------- */

/* A scale or a minimum: of the size that models have; nasty ones are zeros, subnormal, large, and
 * if `any` not finite. */
static double random_scale(check_rng *rng, check_fill fill, bool any) {
    static const double odd[] = {0, -0.0, 6e-8, -3e-6, 6.1e-5, 300, -4096, 1, 65504, INFINITY, NAN};
    if (fill == FILL_NASTY && check_below(rng, 3) == 0)
        return odd[check_below(rng, sizeof odd / sizeof *odd - (any ? 0 : 3))];
    return check_normal(rng) * 0.02;
}

/* The byte e of MXFP4, whose scale is 2^(e - 128): as random_scale. */
static unsigned char random_power(check_rng *rng, check_fill fill, bool any) {
    static const unsigned char odd[] = {60, 100, 118, 129, 140, 0, 1, 2, 253, 254, 255};
    if (fill == FILL_NASTY && check_below(rng, 3) == 0)
        return odd[check_below(rng, sizeof odd - (any ? 0 : 6))];
    return (unsigned char)(118 + check_below(rng, 6));
}

static void add_blocks(check_data *data, const check_matrix *m, bool any) {
    const check_fill fill = (check_fill)check_get(data, KEY_FILL);
    const uint64_t block = bytes_of(m->type, tamis_weight_block((tamis_weight_type)m->type));
    const uint64_t bytes = bytes_of(m->type, (uint64_t)m->n_out * m->n_in);
    const int *halves = all_fields[m->type].halves;
    check_rng rng = check_rng_make(data->seed, data->c, m->id);
    unsigned char *to = check_buffer_add(data, m->id, ROLE_INPUT, CHECK_U8, bytes);
    for (uint64_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)check_below(&rng, 256);
    for (uint64_t at = 0; at < bytes; at += block) {
        for (uint32_t p = 0; p < 2 && halves[p] >= 0; p++)
            check_store(TAMIS_F16, to + at + halves[p], 0, random_scale(&rng, fill, any));
        if (m->type == TAMIS_WEIGHT_MXFP4) to[at] = random_power(&rng, fill, any);
    }
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
    uint32_t f = 0;
    while (f + 1 < 4 && all_fields[type].fields[f + 1].unit &&
           all_fields[type].fields[f + 1].from <= at)
        f++;
    *field = all_fields[type].fields[f].from;
    return all_fields[type].fields[f].unit;
}

/* Where byte `at` of block `block` of row `row` lies in strips. */
static uint64_t place_of(const check_matrix *m, uint64_t row, uint64_t block, uint32_t at) {
    const uint64_t bytes = bytes_of(m->type, tamis_weight_block((tamis_weight_type)m->type));
    const uint64_t strip = row / 16 * 16 * bytes_of(m->type, m->n_in) + block * 16 * bytes;
    uint32_t field;
    const uint32_t unit = unit_of(m->type, at, &field), in = at - field;
    return strip + field * 16ull + (in / unit * 16 + row % 16) * unit + in % unit;
}

/* Copies between rows and strips. */
static void lay(const check_matrix *m, unsigned char *rows, unsigned char *strips, bool back) {
    const uint32_t elements = tamis_weight_block((tamis_weight_type)m->type);
    const uint32_t bytes = (uint32_t)bytes_of(m->type, elements), blocks = m->n_in / elements;
    for (uint64_t row = 0; row < m->n_out; row++)
        for (uint64_t block = 0; block < blocks; block++) {
            unsigned char *of = rows + (row * blocks + block) * bytes;
            const bool turned = all_fields[m->type].turned;
            const uint32_t bits = all_fields[m->type].bits;
            for (uint32_t at = 0; at < bytes; at++) {
                unsigned char *to = strips + place_of(m, row, block, at);
                if (turned && at >= bits && at < bits + 4) continue;
                if (back)
                    of[at] = *to;
                else
                    *to = of[at];
            }
            for (uint32_t bit = 0; turned && bit < 32; bit++) {
                const uint32_t k = bit % 4, g = bit / 4;
                unsigned char *to = strips + place_of(m, row, block, bits + k);
                unsigned char *from = of + bits + bit / 8;
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

static double half_at(const unsigned char *block, int at) {
    return check_load(TAMIS_F16, block + at, 0);
}

static check_weight q8_0(const unsigned char *block, int i) {
    return (check_weight){half_at(block, 0) * (signed char)block[2 + i], NOTHING};
}

static check_weight q4_0(const unsigned char *block, int i) {
    return (check_weight){half_at(block, 0) * (nibble_of(block + 2, i, 16) - 8), NOTHING};
}

static check_weight q4_1(const unsigned char *block, int i) {
    return (check_weight){half_at(block, 0) * nibble_of(block + 4, i, 16), half_at(block, 2)};
}

static check_weight q5_0(const unsigned char *block, int i) {
    const int n = nibble_of(block + 6, i, 16) + 16 * bits_at(block + 2, i, 1);
    return (check_weight){half_at(block, 0) * (n - 16), NOTHING};
}

static check_weight q5_1(const unsigned char *block, int i) {
    const int n = nibble_of(block + 8, i, 16) + 16 * bits_at(block + 4, i, 1);
    return (check_weight){half_at(block, 0) * n, half_at(block, 2)};
}

/* Number j of the eight scales (which 0) or minima (which 1) of Q4_K and Q5_K. */
static int six_bits(const unsigned char *pairs, int j, int which) {
    if (j < 4) return bits_at(pairs, (j + 4 * which) * 8, 6);
    return bits_at(pairs, (j + 4) * 8 + 4 * which, 4) +
           16 * bits_at(pairs, (j - 4 + 4 * which) * 8 + 6, 2);
}

static check_weight of_pair(const unsigned char *block, int j, int n) {
    return (check_weight){half_at(block, 0) * six_bits(block + 4, j, 0) * n,
                          -half_at(block, 2) * six_bits(block + 4, j, 1)};
}

static check_weight q4_k(const unsigned char *block, int i) {
    return of_pair(block, i / 32, nibble_of(block + 16 + i / 64 * 32, i % 64, 32));
}

static check_weight q5_k(const unsigned char *block, int i) {
    const int low = nibble_of(block + 48 + i / 64 * 32, i % 64, 32);
    return of_pair(block, i / 32, low + 16 * bits_at(block + 16 + i % 32, i / 32, 1));
}

static check_weight q6_k(const unsigned char *block, int i) {
    const int low = nibble_of(block + i / 128 * 64, i % 128, 64);
    const int high = bits_at(block + 128 + i / 128 * 32 + i % 32, i % 128 / 32 * 2, 2);
    const double scale = half_at(block, 208) * (signed char)block[192 + i / 16];
    return (check_weight){scale * (low + 16 * high - 32), NOTHING};
}

/* Two bits of element i of 256. */
static int pair_of_bits(const unsigned char *bytes, int i) {
    return bits_at(bytes + i / 128 * 32 + i % 32, i % 128 / 32 * 2, 2);
}

static check_weight q3_k(const unsigned char *block, int i) {
    const int j = i / 16, n = pair_of_bits(block + 32, i) + 4 * bits_at(block + i % 32, i / 32, 1);
    const int s = nibble_of(block + 96, j, 8) + 16 * bits_at(block + 104 + j % 4, j / 4 * 2, 2);
    return (check_weight){half_at(block, 108) * (s - 32) * (n - 4), NOTHING};
}

static check_weight q2_k(const unsigned char *block, int i) {
    const int s = bits_at(block + i / 16, 0, 4), m = bits_at(block + i / 16, 4, 4);
    return (check_weight){half_at(block, 80) * s * pair_of_bits(block + 16, i),
                          -half_at(block, 82) * m};
}

static const int iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};

static check_weight iq4_nl(const unsigned char *block, int i) {
    return (check_weight){half_at(block, 0) * iq4_values[nibble_of(block + 2, i, 16)], NOTHING};
}

static check_weight iq4_xs(const unsigned char *block, int i) {
    const int j = i / 32, s = bits_at(block + 4, j * 4, 4) + 16 * bits_at(block + 2, j * 2, 2);
    return (check_weight){half_at(block, 0) * (s - 32) *
                              iq4_values[nibble_of(block + 8 + j * 16, i % 32, 16)],
                          NOTHING};
}

static check_weight mxfp4(const unsigned char *block, int i) {
    static const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const int n = nibble_of(block + 1, i, 16);
    const double value = ldexp(values[n % 8], block[0] - 127);
    return (check_weight){n > 8 ? -value : value, NOTHING};
}

static check_weight element_of(uint32_t type, const unsigned char *block, int i) {
    static check_weight (*const of[CHECK_WEIGHT_TYPES])(const unsigned char *, int) = {
        [TAMIS_WEIGHT_Q8_0] = q8_0,     [TAMIS_WEIGHT_Q4_0] = q4_0,
        [TAMIS_WEIGHT_Q4_1] = q4_1,     [TAMIS_WEIGHT_Q5_0] = q5_0,
        [TAMIS_WEIGHT_Q4_K] = q4_k,     [TAMIS_WEIGHT_Q6_K] = q6_k,
        [TAMIS_WEIGHT_Q5_1] = q5_1,     [TAMIS_WEIGHT_Q5_K] = q5_k,
        [TAMIS_WEIGHT_Q3_K] = q3_k,     [TAMIS_WEIGHT_Q2_K] = q2_k,
        [TAMIS_WEIGHT_IQ4_NL] = iq4_nl, [TAMIS_WEIGHT_IQ4_XS] = iq4_xs,
        [TAMIS_WEIGHT_MXFP4] = mxfp4,
    };
    return of[type](block, i);
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
