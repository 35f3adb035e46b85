/* SPDX-License-Identifier: Apache-2.0 */
/* attend on matrix units: logits and weighted values of a warp's rows over keys in shared memory.
 * Meaning: host/reference/attend.c.
 *
 * Products are exact to about fp32: q and the weights are sums of 2 (f16) or 3 (bf16) elements of
 * the cache's type, whose products with K and V are exact in fp32. A matrix tile of 16 rows holds 8
 * (row, query head), the first parts in rows 0 to 7 and the second in rows 8 to 15, so that a lane
 * has both products of an element; third parts take a product of their own. Matrix units may cut
 * off fp32 sums instead of rounding them, so sums longer than a few products are formed outside. */
#ifndef TAMIS_CUDA_ATTEND_MMA_CUH
#define TAMIS_CUDA_ATTEND_MMA_CUH
#include "attend.cuh"

/* The parts of a left operand: elements of a type, of the cache's where that has no blocks. */
template <typename T> struct attend_parts;
template <> struct attend_parts<f16> {
    typedef f16 type;
    static constexpr bool THREE = false;
    /* Weights up to 1 use the range of f16, or small ones would lose their second part. */
    static constexpr float WEIGHT_SCALE = 16384.0f;
};
template <> struct attend_parts<bf16> {
    typedef bf16 type;
    static constexpr bool THREE = true;
    static constexpr float WEIGHT_SCALE = 1.0f;
};

/* How rows of K and V lie in shared memory, in decode and in tiles: T from row to row, bytes of a
 * row's scales and of a stage. */
template <typename T, int D> struct attend_layout {
    static constexpr uint32_t ROW = CU_ATTEND_ROW(D), TILE_ROW = CU_ATTEND_TILE_ROW(D), SCALES = 0;
    static constexpr bool ALIKE = true; /* V rows are as long as K rows */
    static constexpr uint32_t STAGE = CU_ATTEND_STAGE(D), TILE_STAGE = CU_ATTEND_TILE_STAGE(D);
    static constexpr uint32_t VALUES = STAGE / 2; /* bytes of a stage before V */
    static constexpr uint32_t VALUE_ROW = TILE_ROW, VALUE_SCALES = 0; /* as of K, of tiles */
    static constexpr uint32_t DECODE_KEYS = CU_ATTEND_DECODE_KEYS(D);
    static constexpr uint32_t DECODE_SHARED = CU_ATTEND_DECODE_SHARED(D);

    /* Which channels a lane has; `column` is lane % 4 * 2. In half h of the left operand of step c
     * two from of_query on, with n = 2c + h. In column `column` + j of the n-th 8 of the results
     * of_value. */
    DEVICE static uint32_t of_query(uint32_t n, uint32_t column) {
        return 8 * n + column;
    }
    DEVICE static uint32_t of_value(uint32_t n, uint32_t column, uint32_t j) {
        return 8 * n + column + j;
    }
};

/* Left operand: M times 8 rows, 16 columns. The first two parts of 8 rows make a matrix tile; the
 * third parts of all make one, M being 1 or 2. */
template <typename T, int M> struct attend_operand { uint32_t pair[M][4], third[4]; };

/* The two as elements of T in a word, and what is left of them. */
template <typename T> DEVICE uint32_t take_part(float &x, float &y) {
    const uint32_t word = pack2<T>(x, y);
    x -= widen(from_bits<T>(word & 0xffffu));
    y -= widen(from_bits<T>(word >> 16));
    return word;
}
/* Columns 2·(lane % 4) + 0, 1 + 8·half of row lane / 4 of the m-th 8. */
template <typename T, int M>
DEVICE void set_operand(attend_operand<T, M> &to, int m, int half, float x, float y) {
    typedef typename attend_parts<T>::type part;
    to.pair[m][2 * half] = take_part<part>(x, y);
    to.pair[m][2 * half + 1] = take_part<part>(x, y);
    to.third[2 * half + m] = attend_parts<T>::THREE ? take_part<part>(x, y) : 0;
    if (M == 1) to.third[2 * half + 1] = 0;
}

/* Products with 8 columns, still in parts. TOGETHER: the small third ones go before the first ones
 * into the same sums, where M is 1 and registers are few. */
template <typename T, int M> struct attend_products { float pair[M][4], third[4]; };
template <bool TOGETHER, typename T, int M>
DEVICE void multiply(attend_products<T, M> &d, const attend_operand<T, M> &x, uint32_t b0,
                     uint32_t b1) {
    typedef typename attend_parts<T>::type part;
    if (attend_parts<T>::THREE) mma(TOGETHER ? d.pair[0] : d.third, x.third, b0, b1, part());
#pragma unroll
    for (int m = 0; m < M; m++)
        mma(d.pair[m], x.pair[m], b0, b1, part());
}
/* Column 2·(lane % 4) + i of row lane / 4 of the m-th 8. */
template <typename T, int M> DEVICE float product(const attend_products<T, M> &d, int m, int i) {
    const float sum = d.pair[m][i] + d.pair[m][i + 2];
    return attend_parts<T>::THREE ? sum + d.third[2 * m + i] : sum;
}

/* Where 8 elements of a row of K or V lie in shared memory, rows ROW elements apart, so that
 * load_matrix and the copies meet no bank twice: rows of whole 128 bytes are permuted, others leave
 * consecutive rows 4 banks apart (or a multiple that serves). */
template <int ROW> DEVICE uint32_t place_of(uint32_t row, uint32_t eighth) {
    return row * ROW + (ROW % 64 ? eighth : eighth ^ (row & 7)) * 8;
}

/* 8 (row, query head) of a warp; lane / 4 names one, of which a lane has columns as above. */
template <int D> struct attend_rows {
    float back;          /* from dot products to logits */
    float sum[D / 8][2]; /* times WEIGHT_SCALE */
    float top, total;    /* total: of this lane's keys */
};

/* Over the lanes of a row. */
DEVICE float quad_max(float x) {
    x = fmaxf(x, shuffle_xor(x, 1u));
    return fmaxf(x, shuffle_xor(x, 2u));
}
DEVICE float quad_sum(float x) {
    x += shuffle_xor(x, 1u);
    return x + shuffle_xor(x, 2u);
}

/* Sums of q over blocks of channels, for keys that are a block's minimum and what is above it. */
template <typename T, int D, int M> struct attend_block_sums {
    DEVICE void add(int, uint32_t, float, float) {}
    DEVICE void end(int) {}
};
template <int D, int M> struct attend_block_sums<q4, D, M> {
    float sums[M][CU_Q8_BLOCKS(D)] = {};

    DEVICE void add(int m, uint32_t block, float x, float y) {
        sums[m][block] += x + y;
    }
    DEVICE void end(int m) {
#pragma unroll
        for (uint32_t block = 0; block < CU_Q8_BLOCKS(D); block++)
            sums[m][block] = quad_sum(sums[m][block]);
    }
};

/* Left operands of q. Registers do not hold 256 channels in three parts: the third ones lie in
 * shared memory, words 32 apart at `thirds`, which the lane alone reads and writes. */
template <typename T, int D, int M> struct attend_query : attend_block_sums<T, D, M> {
    static constexpr bool KEPT = attend_parts<T>::THREE && CU_ATTEND_THIRDS(D) > 0;
    attend_operand<T, M> x[D / 16];
    uint32_t *thirds;

    DEVICE attend_operand<T, M> of(int c) const {
        static_assert(!KEPT || M == 1, "two words a lane");
        if (!KEPT) return x[c];
        const attend_operand<T, M> kept = {
            {{x[c].pair[0][0], x[c].pair[0][1], x[c].pair[0][2], x[c].pair[0][3]}},
            {thirds[2 * c * WARP], 0, thirds[(2 * c + 1) * WARP], 0}};
        return kept;
    }
};

/* The row at q, or zeros if q is NULL. f16: times the power of two that brings the largest element
 * to 2^14 or a little more, within what fp32 has; infinity and NaN stay what they are. */
template <typename T, int D, int M>
DEVICE void begin_rows(attend_query<T, D, M> &query, int m, attend_rows<D> &s, const float *q,
                       float scale) {
    typedef attend_query<T, D, M> shape;
    typedef attend_layout<T, D> layout;
    const uint32_t column = lane_id() % 4 * 2;
    const float power = power_of(scale);
    float up = 1.0f, x[D / 4]; /* two by two; a caller's rows need not be aligned to both */
    s.back = scale / power;
#pragma unroll
    for (uint32_t i = 0; i < D / 4 && !shape::KEPT; i++)
        x[i] = q ? power * q[layout::of_query(i / 2, column) + i % 2] : 0.0f;
    if (!attend_parts<T>::THREE) {
        float largest = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < D / 4; i++)
            largest = fmaxf(largest, fabsf(x[i]));
        const uint32_t exponent = float_to_bits(quad_max(largest)) >> 23;
        const uint32_t raise = exponent == 255 ? 127 : min(127u + 127 + 14 - exponent, 253u);
        up = bits_to_float(raise << 23);
        s.back *= bits_to_float((254 - raise) << 23);
    }
#pragma unroll
    for (uint32_t i = 0; i < D / 8; i++) {
        if (shape::KEPT) { /* or registers hold all of q at once */
            if (i % 8 == 0) warp_sync();
            x[2 * i] = q ? power * q[layout::of_query(i, column)] : 0.0f;
            x[2 * i + 1] = q ? power * q[layout::of_query(i, column) + 1] : 0.0f;
        }
        set_operand(query.x[i / 2], m, i % 2, x[2 * i] * up, x[2 * i + 1] * up);
        query.add(m, i / 4, x[2 * i] * up, x[2 * i + 1] * up);
        if (shape::KEPT) query.thirds[i * WARP] = query.x[i / 2].third[i % 2 * 2];
    }
    query.end(m);
#pragma unroll
    for (uint32_t i = 0; i < D / 8; i++)
        s.sum[i][0] = s.sum[i][1] = 0.0f;
    s.top = -INFINITY;
    s.total = 0.0f;
}

/* 3a. Dot products of 16 keys at `keys` with M times 8 rows, x[.][4]: columns of keys 0 to 7, then
 * of 8 to 15. */
template <int ROW, typename T, int D, int M>
DEVICE void dot_keys(const attend_query<T, D, M> &q, const T *keys, float (&x)[M][4]) {
    constexpr int STEPS = D / 16;
    const uint32_t lane = lane_id(), row = lane / 16 * 8 + lane % 8, eighth = lane / 8 % 2;
#pragma unroll
    for (int m = 0; m < M; m++)
        x[m][0] = x[m][1] = x[m][2] = x[m][3] = 0.0f;
#pragma unroll
    for (int first = 0; first < STEPS; first += 4) {
        attend_products<T, M> part[2] = {};
        if (attend_query<T, D, M>::KEPT) warp_sync(); /* what is read here is not read earlier */
#pragma unroll
        for (int c = first; c < first + 4 && c < STEPS; c++) {
            uint32_t b[4];
            const attend_operand<T, M> left = q.of(c);
            load_matrix_x4(b, keys + place_of<ROW>(row, 2 * c + eighth));
            multiply<false>(part[0], left, b[0], b[1]);
            multiply<false>(part[1], left, b[2], b[3]);
        }
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[m][i] += product(part[i / 2], m, i % 2);
    }
}

/* The logits of most launches go nowhere. So do weights for values with scales, which become left
 * operands later, block by block. */
struct attend_drop {
    DEVICE void operator()(int, uint32_t, float) const {}
    DEVICE void operator()(int, int, const float (&)[4]) const {}
};

/* 3b. Dot products x[.][m] of the m-th 8 rows to weights; the sums so far follow the largest logit.
 * seen(m, key): whether the lane's row sees a key of these N times 16; keep(m, key, logit) gets
 * every logit, -inf where it does not; set(n, m, x[n][m]) gets the weights. */
template <int D, int M, int N, typename SEEN, typename KEEP, typename SET>
DEVICE void weigh(attend_rows<D> &s, int m, float (&x)[N][M][4], const cu_logit &rule, const SEEN &seen,
                  const KEEP &keep, const SET &set) {
    const uint32_t column = lane_id() % 4 * 2;
    float top = s.top;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float logit = logit_of(rule, x[n][m][i] * s.back);
            const uint32_t key = 16 * n + i / 2 * 8 + column + i % 2;
            x[n][m][i] = seen(m, key) ? logit : -INFINITY;
            keep(m, key, x[n][m][i]);
            top = fmaxf(top, x[n][m][i]);
        }
    top = quad_max(top);
    const float base = attend_base(top), old = expf(s.top - base);
    if (warp_ballot(top != s.top)) {
        s.total *= old;
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            s.sum[i][0] *= old;
            s.sum[i][1] *= old;
        }
    }
    s.top = top;
    float total = 0.0f; /* of few keys at a time: sums of many equal ones round the same way */
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[n][m][i] = expf(x[n][m][i] - base);
        total += (x[n][m][0] + x[n][m][1]) + (x[n][m][2] + x[n][m][3]);
        set(n, m, x[n][m]);
    }
    s.total += total;
}
/* What weigh does with weights x[n][m] of 16 keys, as soon as they are there. */
template <typename T, int M, int N> struct attend_operands {
    attend_operand<T, M> (&weights)[N];

    DEVICE void operator()(int n, int m, const float (&x)[4]) const {
        const float scale = attend_parts<T>::WEIGHT_SCALE;
        set_operand(weights[n], m, 0, x[0] * scale, x[1] * scale);
        set_operand(weights[n], m, 1, x[2] * scale, x[3] * scale);
    }
};

/* 3c. Adds the weighted values of N times 16 keys. */
template <int ROW, typename T, int D, int M, int N>
DEVICE void add_values(attend_rows<D> (&s)[M], const T *values,
                       const attend_operand<T, M> (&weights)[N]) {
    const uint32_t lane = lane_id(), row = lane % 16, eighth = lane / 16;
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        attend_products<T, M> part[2] = {};
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t b[4];
            load_matrix_x4_trans(b, values + place_of<ROW>(16 * n + row, 2 * c + eighth));
            multiply<M == 1>(part[0], weights[n], b[0], b[1]);
            multiply<M == 1>(part[1], weights[n], b[2], b[3]);
        }
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[m].sum[2 * c + i / 2][i % 2] += product(part[i / 2], m, i % 2);
    }
}

/* N times 16 keys; seen(m, key), keep(m, key, logit). */
template <int ROW, int N, typename T, int D, int M, typename SEEN, typename KEEP = attend_drop>
DEVICE void attend_keys(const attend_query<T, D, M> &q, attend_rows<D> (&s)[M], const T *keys,
                        const T *values, const cu_logit &rule, const SEEN &seen,
                        const KEEP &keep = KEEP()) {
    float x[N][M][4];
    attend_operand<T, M> weights[N];
#pragma unroll
    for (int n = 0; n < N; n++)
        dot_keys<ROW>(q, keys + 16 * n * ROW, x[n]);
#pragma unroll
    for (int m = 0; m < M; m++)
        weigh(s[m], m, x, rule, seen, keep, attend_operands<T, M, N>{weights});
    add_values<ROW>(s, values, weights);
}

/* Sums over the lanes of a row, and without WEIGHT_SCALE. Returns whether all of the lane's are
 * finite. */
template <typename T, int D> DEVICE bool end_rows(attend_rows<D> &s) {
    s.total = quad_sum(s.total);
    bool finite = is_finite(s.total);
#pragma unroll
    for (uint32_t i = 0; i < D / 8; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            s.sum[i][j] *= 1.0f / attend_parts<T>::WEIGHT_SCALE;
            finite &= is_finite(s.sum[i][j]);
        }
    return finite;
}

#endif
