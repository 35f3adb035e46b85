/* SPDX-License-Identifier: Apache-2.0 */
/* attend on matrix units, caches of q8, k8v4 and q4: integers and scales of K and V in shared
 * memory, products of integers, which f16 holds exactly. Scales are applied in fp32: those of K to
 * the products with a block, those of V to the weights; minima of K are multiplied with the sum of
 * q over the block, minima of V weighted, both in fp32. Meaning: host/reference/attend.c.
 *
 * Shared memory has the rows of K, then their scales [row][block], then V's the same. A lane reads
 * integers as a right operand needs them. The channels of a block may take part in any order, if
 * q's do, and a column of a result may be any channel. So a lane takes neighbouring channels. */
#ifndef TAMIS_CUDA_ATTEND_Q8_CUH
#define TAMIS_CUDA_ATTEND_Q8_CUH
#include "attend_mma.cuh"

template <> struct attend_parts<q8> {
    typedef f16 type;
    static constexpr bool THREE = false;
    static constexpr float WEIGHT_SCALE = 1.0f; /* see scale_weights */
};

template <> struct attend_parts<k8v4> : attend_parts<q8> {};
template <> struct attend_parts<q4> : attend_parts<q8> {};

/* Rows of K or V in shared memory, and the channels of a lane as in attend_layout. */
template <typename R, int D> struct attend_side;
template <int D> struct attend_side<q8, D> {
    static constexpr uint32_t ROW = CU_ATTEND_Q8_ROW(D), NUMBERS = CU_ATTEND_Q8_NUMBERS(D);
    static constexpr uint32_t BYTES = CU_ATTEND_Q8_SIDE(D);

    /* 8 neighbouring channels of each block to a lane, 4 of the last one if it has 16. */
    DEVICE static uint32_t of_query(uint32_t n, uint32_t column) {
        const uint32_t block = n / 4 * Q8_BLOCK;
        return block + column * (block + Q8_BLOCK > D ? 2 : 4) + n % 4 * 2;
    }
    /* As many neighbouring ones to a column as the block has results. */
    DEVICE static uint32_t of_value(uint32_t n, uint32_t column, uint32_t j) {
        const uint32_t block = n / 4 * Q8_BLOCK;
        return block + (column + j) * (block + Q8_BLOCK > D ? 2 : 4) + n % 4;
    }
};
template <int D> struct attend_side<q4, D> {
    static constexpr uint32_t ROW = CU_ATTEND_Q4_ROW(D), NUMBERS = CU_ATTEND_Q4_NUMBERS(D);
    static constexpr uint32_t BYTES = CU_ATTEND_Q4_SIDE(D);

    /* Four neighbouring bytes of each block to a lane: their low halves, then their high ones. */
    DEVICE static uint32_t of_query(uint32_t n, uint32_t column) {
        return n / 4 * Q8_BLOCK + n % 4 / 2 * Q4_BYTES + column * 2 + n % 2 * 2;
    }
    /* Two neighbouring bytes to a column: their low halves, then their high ones. */
    DEVICE static uint32_t of_value(uint32_t n, uint32_t column, uint32_t j) {
        return n / 4 * Q8_BLOCK + n % 4 / 2 * Q4_BYTES + (column + j) * 2 + n % 2;
    }
};

template <typename T, int D> struct attend_sides {
    typedef attend_side<typename rows_of<T>::key, D> key;
    typedef attend_side<typename rows_of<T>::value, D> value;
    static constexpr bool ALIKE = key::ROW == value::ROW;
    static constexpr uint32_t ROW = key::ROW, TILE_ROW = ROW, VALUE_ROW = value::ROW;
    static constexpr uint32_t SCALES = key::NUMBERS, VALUE_SCALES = value::NUMBERS;
    static constexpr uint32_t VALUES = key::BYTES, STAGE = key::BYTES + value::BYTES;
    static constexpr uint32_t TILE_STAGE = CU_ATTEND_SIDES_TILE_STAGE(STAGE);
    static constexpr uint32_t DECODE_SHARED = CU_ATTEND_SIDES_DECODE_SHARED(D, STAGE);
    static constexpr uint32_t DECODE_KEYS = DECODE_SHARED;

    DEVICE static uint32_t of_query(uint32_t n, uint32_t column) {
        return key::of_query(n, column);
    }
    DEVICE static uint32_t of_value(uint32_t n, uint32_t column, uint32_t j) {
        return value::of_value(n, column, j);
    }
};
template <int D> struct attend_layout<q8, D> : attend_sides<q8, D> {};
template <int D> struct attend_layout<k8v4, D> : attend_sides<k8v4, D> {};
template <int D> struct attend_layout<q4, D> : attend_sides<q4, D> {};

/* Bytes 0 and 1 of a word whose signs are flipped, or 2 and 3, as f16: 1024 + byte, less 1152. */
template <uint32_t FIRST> DEVICE uint32_t widen_pair(uint32_t word) {
    return subtract2(permute_bytes(word, 0x64646464u, FIRST ? 0x4342u : 0x4140u), 0x64806480u);
}
DEVICE uint32_t load_word(const void *p) {
    return *(const uint32_t *)p ^ 0x80808080u;
}
/* The same of bytes without a sign. */
template <uint32_t FIRST> DEVICE uint32_t widen_unsigned(uint32_t word) {
    return subtract2(permute_bytes(word, 0x64646464u, FIRST ? 0x4342u : 0x4140u), 0x64006400u);
}

/* The lane's keys of 16, those of its columns of products. */
DEVICE uint32_t column_key(int i) {
    return i / 2 * 8 + lane_id() % 4 * 2 + i % 2;
}

/* Right operands of a step of a block, 16 channels of a key: those of the lane's column of q. */
template <int D> DEVICE void load_key(const q8 *row, int block, int step, uint32_t (&b)[2]) {
    const uint32_t word = load_word(
        row + attend_side<q8, D>::of_query(4 * block + 2 * step, lane_id() % 4 * 2));
    b[0] = widen_pair<0>(word);
    b[1] = widen_pair<2>(word);
}
template <int D> DEVICE void load_key(const q4 *row, int block, int step, uint32_t (&b)[2]) {
    const uint32_t bytes =
        *(const uint32_t *)(row + block * (int)Q4_BYTES + lane_id() % 4 * sizeof(uint32_t));
    const uint32_t word = bytes >> 4 * step & 0x0f0f0f0fu;
    b[0] = widen_unsigned<0>(word);
    b[1] = widen_unsigned<2>(word);
}

/* 3a. As the other dot_keys; N times 16 keys have what is of their blocks behind them, these are
 * the n-th. */
template <int ROW, int N, typename T, int D, int M>
DEVICE void dot_keys(const attend_query<T, D, M> &q, const T *keys, int n, float (&x)[M][4]) {
    typedef typename rows_of<T>::key key;
    constexpr int BLOCKS = CU_Q8_BLOCKS(D), EACH = BLOCK_NUMBERS<key>; /* 2: a minimum, a scale */
    const f16 *numbers = (const f16 *)(keys + 16 * N * ROW) + 16 * n * BLOCKS * EACH;
    const key *row = (const key *)keys + (16 * n + lane_id() / 4) * ROW;
#pragma unroll
    for (int m = 0; m < M; m++)
        x[m][0] = x[m][1] = x[m][2] = x[m][3] = 0.0f;
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
        constexpr int STEPS = 2;
        attend_products<T, M> part[2] = {};
#pragma unroll
        for (int c = 0; c < STEPS && block * STEPS + c < D / 16; c++) {
            uint32_t low[2], high[2];
            load_key<D>(row, block, c, low);
            load_key<D>(row + 8 * ROW, block, c, high);
            multiply<false>(part[0], q.x[block * STEPS + c], low[0], low[1]);
            multiply<false>(part[1], q.x[block * STEPS + c], high[0], high[1]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const f16 *of = numbers + (column_key(i) * BLOCKS + block) * EACH;
            const float scale = widen(of[EACH - 1]);
#pragma unroll
            for (int m = 0; m < M; m++) {
                if constexpr (EACH == 2) x[m][i] = fmaf(widen(of[0]), q.sums[m][block], x[m][i]);
                x[m][i] = fmaf(product(part[i / 2], m, i % 2), scale, x[m][i]);
            }
        }
    }
}

/* Weights of the m-th 8 rows times the scales of a block of V, as left operands, raised by a power
 * of two, so that they use the range of f16. A row has STRIDE numbers behind the rows, `scales` is the
 * first row's. `seen`: which of its keys the lane's row sees, a bit each; scales of others may be
 * anything. Returns the way back. */
template <int STRIDE, typename T, int M, int N>
DEVICE float scale_weights(attend_operand<T, M> (&weights)[N], int m, const float (&x)[N][M][4],
                           const f16 *scales, uint32_t seen) {
    float d[N][4], most = 0.0f;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const f16 scale = scales[(16 * n + column_key(i)) * STRIDE];
            d[n][i] = seen >> (4 * n + i) & 1u ? widen(scale) : 0.0f;
            most = fmaxf(most, d[n][i]);
        }
    const uint32_t exponent = float_to_bits(quad_max(most)) >> 23;
    const uint32_t raise = min(127u + 127 + 14 - exponent, 253u);
    const float up = bits_to_float(raise << 23);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            set_operand(weights[n], m, h, x[n][m][2 * h] * (d[n][2 * h] * up),
                        x[n][m][2 * h + 1] * (d[n][2 * h + 1] * up));
    return bits_to_float((254 - raise) << 23);
}

/* The right operands of a block for WIDE results: of 16 keys the lane's four, of the channels those
 * of its column of each result. */
template <int ROW, int WIDE>
DEVICE void load_values(const q8 *row, int block, uint32_t (&b)[WIDE][2]) {
    row += block * (int)Q8_BLOCK;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const q8 *at = row + (8 * h + lane_id() % 4 * 2) * ROW + lane_id() / 4 * WIDE;
        uint32_t x, y;
        if (WIDE == 4) {
            x = load_word(at);
            y = load_word(at + ROW);
        } else {
            x = *(const uint16_t *)at ^ 0x8080u;
            y = *(const uint16_t *)(at + ROW) ^ 0x8080u;
        }
        const uint32_t low = permute_bytes(x, y, 0x5140u), high = permute_bytes(x, y, 0x7362u);
        b[0][h] = widen_pair<0>(low);
        b[1][h] = widen_pair<2>(low);
        if (WIDE == 4) {
            b[WIDE - 2][h] = widen_pair<0>(high);
            b[WIDE - 1][h] = widen_pair<2>(high);
        }
    }
}

/* A column of q4 has two bytes of a row; a block of 16 channels lacks the high halves. */
template <int ROW, int WIDE>
DEVICE void load_values(const q4 *row, int block, uint32_t (&b)[WIDE][2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const q4 *at = row + block * (int)Q4_BYTES + (8 * h + lane_id() % 4 * 2) * ROW +
                       lane_id() / 4 * 2;
        const uint32_t x = *(const uint16_t *)at, y = *(const uint16_t *)(at + ROW);
        const uint32_t bytes = permute_bytes(x, y, 0x5140u);
        const uint32_t low = bytes & 0x0f0f0f0fu, high = bytes >> 4 & 0x0f0f0f0fu;
        b[0][h] = widen_unsigned<0>(low);
        b[1][h] = widen_unsigned<2>(low);
        if (WIDE == 4) {
            b[WIDE - 2][h] = widen_unsigned<0>(high);
            b[WIDE - 1][h] = widen_unsigned<2>(high);
        }
    }
}

/* What the minima of a block of V, at `minima` of the first row, add to each of its channels. */
template <int STRIDE, int M, int N>
DEVICE float weigh_minima(int m, const float (&x)[N][M][4], const f16 *minima, uint32_t seen) {
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const f16 minimum = minima[(16 * n + column_key(i)) * STRIDE];
            sum = fmaf(x[n][m][i], seen >> (4 * n + i) & 1u ? widen(minimum) : 0.0f, sum);
        }
    return quad_sum(sum);
}

/* 3c. Adds the values of a block, of WIDE times 8 channels, weighted by x. */
template <int WIDE, typename T, int D, int M, int N>
DEVICE void add_block(attend_rows<D> (&s)[M], const T *values, const float (&x)[N][M][4],
                      int block, const uint32_t (&seen)[M]) {
    typedef attend_layout<T, D> layout;
    typedef typename rows_of<T>::value value;
    constexpr int ROW = layout::VALUE_ROW, STRIDE = layout::VALUE_SCALES / 2;
    constexpr int EACH = BLOCK_NUMBERS<value>; /* 2: a minimum, a scale */
    const f16 *of_block = (const f16 *)(values + 16 * N * ROW) + EACH * block;
    attend_operand<T, M> weights[N];
    float back[M], least[M];
#pragma unroll
    for (int m = 0; m < M; m++) {
        back[m] = scale_weights<STRIDE>(weights, m, x, of_block + EACH - 1, seen[m]);
        least[m] = EACH == 2 ? weigh_minima<STRIDE>(m, x, of_block, seen[m]) : 0.0f;
    }
    attend_products<T, M> part[WIDE] = {};
#pragma unroll
    for (int n = 0; n < N; n++) {
        uint32_t b[WIDE][2];
        load_values<ROW, WIDE>((const value *)values + 16 * n * ROW, block, b);
#pragma unroll
        for (int c = 0; c < WIDE; c++)
            multiply<false>(part[c], weights[n], b[c][0], b[c][1]);
    }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int c = 0; c < WIDE; c++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float &sum = s[m].sum[4 * block + c][j];
                sum = fmaf(product(part[c], m, j), back[m], EACH == 2 ? sum + least[m] : sum);
            }
}

/* As the other attend_keys. */
template <int ROW, int N, typename T, int D, int M, typename SEEN, typename KEEP>
DEVICE void attend_scaled(const attend_query<T, D, M> &q, attend_rows<D> (&s)[M], const T *keys,
                          const T *values, const cu_logit &rule, const SEEN &seen, const KEEP &keep) {
    float x[N][M][4];
    uint32_t bits[M];
#pragma unroll
    for (int n = 0; n < N; n++)
        dot_keys<ROW, N>(q, keys, n, x[n]);
#pragma unroll
    for (int m = 0; m < M; m++) {
        weigh(s[m], m, x, rule, seen, keep, attend_drop());
        bits[m] = 0;
#pragma unroll
        for (int i = 0; i < 4 * N; i++)
            bits[m] |= (uint32_t)seen(m, 16 * (i / 4) + column_key(i % 4)) << i;
    }
#pragma unroll
    for (int block = 0; block < D / (int)Q8_BLOCK; block++)
        add_block<4>(s, values, x, block, bits);
    if constexpr (D % Q8_BLOCK != 0) add_block<2>(s, values, x, D / (int)Q8_BLOCK, bits);
}
#define ATTEND_SCALED(type)                                                                        \
    template <int ROW, int N, int D, int M, typename SEEN, typename KEEP = attend_drop>            \
    DEVICE void attend_keys(const attend_query<type, D, M> &q, attend_rows<D> (&s)[M],             \
                            const type *keys, const type *values, const cu_logit &rule,            \
                            const SEEN &seen, const KEEP &keep = KEEP()) {                         \
        attend_scaled<ROW, N>(q, s, keys, values, rule, seen, keep);                           \
    }
ATTEND_SCALED(q8)
ATTEND_SCALED(k8v4)
ATTEND_SCALED(q4)

/* ---- Copies ---------------------------------------------------------------------------------- */

/* Behind the rows of 8 neighbouring slots, the first at a multiple of 8, each block has 16 bytes for its
 * scale, and in rows of q4 16 more for its minimum. Copies one of these `pieces`. */
template <typename T, typename R>
DEVICE void bring_scales(T *to, const kv_row<R> &first, uint32_t piece, uint32_t pieces,
                         bool live) {
    if (piece < pieces) copy_async_16(to + 16 * piece, (const T *)first.scales + 16 * piece, live);
}

#endif
