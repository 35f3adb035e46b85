/* SPDX-License-Identifier: Apache-2.0 */
/* Types of weights and how their matrices lie. */
#include "host/base/weights.h"

#include <string.h>

#define STRIP TAMIS_STRIP_ROWS

/* `count` neighbouring units of `bytes` bytes of a block. In a strip the units of its rows with the
 * same place lie side by side. */
typedef struct field {
    uint8_t bytes, count;
    bool turned; /* the 32 bits of its unit: turn() */
} field;

/* Of each tamis_weight_type: elements and bytes of a block, and its fields in their order; types whose
 * block is an element have no strips. */
static const struct {
    uint32_t elements, bytes;
    field fields[4];
} weight_types[] = {
    [TAMIS_WEIGHT_F32] = {1, 4, {{0}}},
    [TAMIS_WEIGHT_F16] = {1, 2, {{0}}},
    [TAMIS_WEIGHT_BF16] = {1, 2, {{0}}},
    [TAMIS_WEIGHT_Q8_0] = {32, 34, {{2, 1, false}, {4, 8, false}}},
    [TAMIS_WEIGHT_Q4_0] = {32, 18, {{2, 1, false}, {4, 4, false}}},
    [TAMIS_WEIGHT_Q4_1] = {32, 20, {{2, 2, false}, {4, 4, false}}},
    [TAMIS_WEIGHT_Q5_0] = {32, 22, {{2, 1, false}, {4, 1, true}, {4, 4, false}}},
    [TAMIS_WEIGHT_Q4_K] = {256, 144, {{2, 2, false}, {1, 12, false}, {4, 32, false}}},
    [TAMIS_WEIGHT_Q6_K] = {256, 210, {{4, 48, false}, {1, 16, false}, {2, 1, false}}},
    [TAMIS_WEIGHT_Q5_1] = {32, 24, {{2, 2, false}, {4, 1, true}, {4, 4, false}}},
    [TAMIS_WEIGHT_Q5_K] = {256, 176, {{2, 2, false}, {1, 12, false}, {4, 40, false}}},
    [TAMIS_WEIGHT_Q3_K] = {256, 110, {{4, 24, false}, {1, 12, false}, {2, 1, false}}},
    [TAMIS_WEIGHT_Q2_K] = {256, 84, {{1, 16, false}, {4, 16, false}, {2, 2, false}}},
    [TAMIS_WEIGHT_IQ4_NL] = {32, 18, {{2, 1, false}, {4, 4, false}}},
    [TAMIS_WEIGHT_IQ4_XS] = {256, 136, {{2, 2, false}, {1, 4, false}, {4, 32, false}}},
    [TAMIS_WEIGHT_MXFP4] = {32, 17, {{1, 1, false}, {4, 4, false}}},
};
enum { WEIGHT_TYPES = sizeof weight_types / sizeof *weight_types };

static bool is_weight_type(tamis_weight_type type) {
    return (unsigned)type < WEIGHT_TYPES;
}

const char *tamis_weight_name(tamis_weight_type type) {
#define WEIGHT_NAME(name, value, text) [value] = text,
    static const char *const names[] = {TAMIS_WEIGHT_LIST(WEIGHT_NAME)};
    _Static_assert(sizeof names / sizeof *names == WEIGHT_TYPES, "both tables have all types");
    return is_weight_type(type) ? names[type] : "unknown";
}

uint32_t tamis_weight_block(tamis_weight_type type) {
    return is_weight_type(type) ? weight_types[type].elements : 0;
}

uint64_t tamis_weight_bytes(tamis_weight_type type, uint64_t n_out, uint64_t n_in) {
    const uint32_t block = tamis_weight_block(type);
    if (block == 0 || n_in % block) return 0;
    const uint64_t blocks = n_in / block, bytes = weight_types[type].bytes;
    if (n_out && (blocks > UINT64_MAX / bytes || blocks * bytes > UINT64_MAX / n_out))
        return UINT64_MAX;
    return n_out * blocks * bytes;
}

uint64_t tamis_weight_layout_bytes(tamis_weight_layout layout, tamis_weight_type type,
                                   uint64_t n_out, uint64_t n_in) {
    if (layout == TAMIS_WEIGHT_ROWS) return tamis_weight_bytes(type, n_out, n_in);
    if (!tms_weight_layout_fits(layout, type)) return 0;
    if (n_out > UINT64_MAX - (STRIP - 1)) return UINT64_MAX;
    return tamis_weight_bytes(type, (n_out + STRIP - 1) / STRIP * STRIP, n_in);
}

/* ---- Strips ---------------------------------------------------------------------------------- */

static uint32_t load32(const uint8_t *from) {
    return from[0] | from[1] << 8 | from[2] << 16 | (uint32_t)from[3] << 24;
}

static void store32(uint32_t word, uint8_t *to) {
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(word >> 8 * i);
}

/* Bit 4g + k of a word goes to bit 8k + g, so that byte k has what belongs to bytes k of words: eight
 * bits that are 4 apart are drawn together, pair by pair. */
static inline uint32_t turn(uint32_t word) {
    uint32_t turned = 0;
    for (int k = 0; k < 4; k++) {
        uint32_t bits = word >> k & 0x11111111u;
        bits = (bits | bits >> 3) & 0x03030303u;
        bits = (bits | bits >> 6) & 0x000f000fu;
        turned |= (bits | bits >> 12) << 8 * k & 0xffu << 8 * k;
    }
    return turned;
}

static inline uint32_t turn_back(uint32_t turned) {
    uint32_t word = 0;
    for (int k = 0; k < 4; k++) {
        uint32_t bits = turned >> 8 * k & 0xffu;
        bits = (bits | bits << 12) & 0x000f000fu;
        bits = (bits | bits << 6) & 0x03030303u;
        bits = (bits | bits << 3) & 0x11111111u;
        word |= bits << k;
    }
    return word;
}

/* The units of a field of one block of n rows, `apart` bytes from each other, side by side. The
 * size is a constant where this is called, so that each unit is one load and one store. */
static inline void gather(const uint8_t *from, uint64_t apart, uint32_t n, uint32_t bytes,
                          uint32_t count, uint8_t *to) {
    for (uint32_t row = 0; row < n; row++)
        for (uint32_t unit = 0; unit < count; unit++)
            memcpy(to + (unit * STRIP + row) * bytes, from + row * apart + unit * bytes, bytes);
}

/* Four words, in a register where the processor has vectors; compilers make shuffles of the joins. */
typedef uint32_t quad __attribute__((vector_size(16)));

static inline quad load_quad(const uint8_t *from) {
    quad words;
    memcpy(&words, from, sizeof words);
    return words;
}

static inline quad join_low(quad a, quad b) {
    return (quad){a[0], b[0], a[1], b[1]};
}

static inline quad join_high(quad a, quad b) {
    return (quad){a[2], b[2], a[3], b[3]};
}

/* What gather does, for words of a whole strip, whose count is a multiple of 4: four of four rows at a
 * time. */
static void gather_words(const uint8_t *from, uint64_t apart, uint32_t count, uint8_t *to) {
    for (uint32_t unit = 0; unit < count; unit += 4)
        for (uint32_t row = 0; row < STRIP; row += 4) {
            const uint8_t *at = from + row * apart + unit * 4;
            const quad a = load_quad(at), b = load_quad(at + apart), c = load_quad(at + 2 * apart),
                       d = load_quad(at + 3 * apart);
            const quad ac = join_low(a, c), bd = join_low(b, d), ac2 = join_high(a, c),
                       bd2 = join_high(b, d);
            const quad units[4] = {join_low(ac, bd), join_high(ac, bd), join_low(ac2, bd2),
                                   join_high(ac2, bd2)};
            for (uint32_t i = 0; i < 4; i++)
                memcpy(to + ((unit + i) * STRIP + row) * 4, &units[i], sizeof units[i]);
        }
}

/* One word of each row, turned; in three loops, of which compilers make vectors. */
static void gather_turned(const uint8_t *from, uint64_t apart, uint32_t n, uint8_t *to) {
    uint32_t words[STRIP] = {0};
    for (uint32_t row = 0; row < n; row++)
        words[row] = load32(from + row * apart);
    for (uint32_t row = 0; row < STRIP; row++)
        words[row] = turn(words[row]);
    for (uint32_t row = 0; row < STRIP; row++)
        store32(words[row], to + row * 4);
}

static void pack_field(field f, const uint8_t *from, uint64_t apart, uint32_t n, uint8_t *to) {
    if (f.turned)
        gather_turned(from, apart, n, to);
    else if (f.bytes == 1)
        gather(from, apart, n, 1, f.count, to);
    else if (f.bytes == 2)
        gather(from, apart, n, 2, f.count, to);
    else if (n == STRIP && f.count % 4 == 0)
        gather_words(from, apart, f.count, to);
    else
        gather(from, apart, n, 4, f.count, to);
}

void tms_strips_pack(tamis_weight_type type, uint64_t n_out, uint64_t n_in, const void *rows,
                     void *strips) {
    const uint64_t block = weight_types[type].bytes, apart = tamis_weight_bytes(type, 1, n_in);
    uint8_t *to = strips;
    for (uint64_t first = 0; first < n_out; first += STRIP) {
        const uint32_t n = n_out - first < STRIP ? (uint32_t)(n_out - first) : STRIP;
        const uint8_t *from = (const uint8_t *)rows + first * apart;
        if (n < STRIP) memset(to, 0, STRIP * apart);
        for (uint64_t at = 0; at < apart; at += block) {
            const field *f = weight_types[type].fields;
            for (uint64_t in = 0; in < block; in += (uint64_t)f->bytes * f->count, f++)
                pack_field(*f, from + at + in, apart, n, to + STRIP * (at + in));
        }
        to += STRIP * apart;
    }
}

void tms_strips_block(tamis_weight_type type, uint64_t n_in, const void *strips, uint64_t row,
                      uint64_t block, uint8_t *out) {
    const uint64_t bytes = weight_types[type].bytes, lane = row % STRIP;
    const uint8_t *from = (const uint8_t *)strips +
                          row / STRIP * STRIP * tamis_weight_bytes(type, 1, n_in) +
                          block * STRIP * bytes;
    const field *f = weight_types[type].fields;
    for (uint64_t in = 0; in < bytes; in += (uint64_t)f->bytes * f->count, f++)
        for (uint32_t unit = 0; unit < f->count; unit++) {
            const uint8_t *at = from + STRIP * in + (unit * STRIP + lane) * f->bytes;
            if (f->turned)
                store32(turn_back(load32(at)), out + in);
            else
                memcpy(out + in + unit * f->bytes, at, f->bytes);
        }
}

void tms_strips_unpack(tamis_weight_type type, uint64_t n_out, uint64_t n_in, const void *strips,
                       void *rows) {
    const uint64_t block = weight_types[type].bytes, blocks = n_in / weight_types[type].elements;
    uint8_t *to = rows;
    for (uint64_t row = 0; row < n_out; row++)
        for (uint64_t b = 0; b < blocks; b++, to += block)
            tms_strips_block(type, n_in, strips, row, b, to);
}
