/* SPDX-License-Identifier: Apache-2.0 */
/* linear: y[r][j] = Σ_i x[r][i]·w[j][i] + bias[j] (+ y[r][j]). Form for matrix units: weights of f16
 * or bf16, up to 32 rows; weights are read once, as they are.
 * contract: host/ops/; meaning: host/reference/linear.c.
 * Products are exact to about fp32: x is a sum of 2 (f16) or 3 (bf16) elements of the weights'
 * type, whose products with weights are exact in fp32. Of 32 inputs of a row, f16 parts take the
 * power of two that brings the largest to 2^14, and the second parts are 2^12 times as large again:
 * an element keeps 20 bits down to 2^-31 of the largest. What parts do not hold (smaller elements
 * that are not 0, infinity, NaN) makes the row doubtful in this block: its sums are formed anew in
 * plain fp32. So are sums that are not finite: products of the parts of a number with infinity may
 * be NaN where the number's is not. Matrix units may cut off fp32 sums instead of rounding them, so
 * sums of more than 32 inputs are formed outside.
 * Work split: a block owns OUTPUTS outputs and a range of the inputs, a stage of which its threads
 * bring to shared memory in parts. A warp takes 32 outputs and CHUNK inputs of every stage; its
 * weights come straight from memory, two stages ahead. The last block of an output's ranges adds
 * them up. All orders follow from n_in and n_out alone, so that a row's bits do not depend on the
 * other rows. */
#include "common.cuh"

#define OUTPUTS CU_LINEAR_MMA_OUTPUTS
#define STAGE   CU_LINEAR_MMA_STAGE
#define CHUNK   32u
#define GROUPS  (STAGE / CHUNK) /* of warps, which share the inputs of a stage */
#define PITCH   (OUTPUTS + 8)   /* spreads the banks */
#define THREADS CU_LINEAR_MMA_THREADS
static_assert(THREADS == WARP * GROUPS * (OUTPUTS / 32), "32 outputs and a chunk a warp");

/* STEP: how much larger each part is stored than the one before. */
template <typename T> struct linear_parts;
template <> struct linear_parts<f16> {
    static constexpr uint32_t N = 2;
    static constexpr float STEP = 4096.0f;
};
template <> struct linear_parts<bf16> {
    static constexpr uint32_t N = 3;
    static constexpr float STEP = 1.0f;
};

/* Inputs of a stage in parts, 16 rows a matrix tile, each lane's words of a left operand together;
 * and from sums of f16 parts back to those of x. Column 2·t + 8·i + e of the h-th product (t = lane
 * % 4, e < 2) is input 8·t + 4·h + 2·i + e of a chunk, so that a lane's weights are 16 bytes of a
 * row: a sum does not care which inputs are where, as long as both operands agree. */
template <typename T, uint32_t ROWS> struct linear_stage {
    vec16 part[GROUPS][ROWS / 16][linear_parts<T>::N][2][WARP];
    float back[GROUPS][ROWS];
};
/* Where the words of a lane lie: those that write 16 bytes each meet no bank twice. */
DEVICE uint32_t place_of(uint32_t lane, uint32_t h) {
    return lane ^ 4 * h;
}

template <typename T, uint32_t ROWS> struct alignas(16) linear_block {
    union {
        linear_stage<T, ROWS> stage[2];
        float sum[GROUPS][ROWS][PITCH]; /* once all stages are done */
    };
    uint32_t doubtful[ROWS], before;
};

/* What a block does. */
struct linear_task {
    uint32_t first, begin, end; /* outputs from there on; inputs */
};

/* ---- x in parts ------------------------------------------------------------------------------ */

/* A thread brings pieces of 4 inputs of two rows, 8 apart; eight neighbours share a chunk. */
template <uint32_t ROWS> struct linear_piece {
    uint32_t chunk, tile, row, t, h; /* of the first of the two rows; see linear_stage */
    bool mine;
    DEVICE linear_piece() {
        t = threadIdx.x % 8 / 2;
        h = threadIdx.x % 2;
        tile = threadIdx.x / 64 % (ROWS / 16);
        row = 16 * tile + threadIdx.x / 8 % 8;
        chunk = threadIdx.x / (4 * ROWS);
        mine = chunk < GROUPS; /* of whole warps */
    }
};

/* The thread's pieces of the stage of inputs from `at` on; zeros outside. */
template <uint32_t ROWS>
DEVICE void fetch_x(const cu_linear_args &a, const linear_piece<ROWS> &p, uint32_t at,
                    float (&x)[2][4]) {
    const uint32_t i = at + p.chunk * CHUNK + 8 * p.t + 4 * p.h;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t row = p.row + 8 * r;
        vec16 u = {};
        if (p.mine && row < a.n_rows && i < a.n_in) u = load_16(a.x.at + row * a.x.stride + i);
#pragma unroll
        for (uint32_t e = 0; e < 4; e++)
            x[r][e] = bits_to_float(u.word[e]);
    }
}

/* The power of two that brings the largest of a chunk to 2^14 or a little more, as far as fp32 has
 * it; `back` undoes it. The eight lanes of a chunk get the same. */
DEVICE float raise(const float (&x)[4], float &back) {
    float largest = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
#pragma unroll
    for (uint32_t mask = 1; mask < 8; mask *= 2)
        largest = fmaxf(largest, shuffle_xor(largest, mask));
    const uint32_t exponent = float_to_bits(largest) >> 23;
    const uint32_t up = exponent == 255 ? 127 : min(127u + 127 + 14 - exponent, 253u);
    back = bits_to_float((254 - up) << 23);
    return bits_to_float(up << 23);
}

/* Parts of 4 inputs, two a word. Returns whether the parts hold them. */
template <typename T> DEVICE bool split(float (&x)[4], uint32_t (&word)[linear_parts<T>::N][2]) {
    constexpr uint32_t N = linear_parts<T>::N;
    float least[4];
    bool held = true;
#pragma unroll
    for (uint32_t e = 0; e < 4; e++)
        least[e] = fabsf(x[e]) * (1.0f / (1 << 20));
#pragma unroll
    for (uint32_t n = 0; n < N; n++) {
        word[n][0] = pack2<T>(x[0], x[1]);
        word[n][1] = pack2<T>(x[2], x[3]);
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
            x[e] -= widen(from_bits<T>(word[n][e / 2] >> e % 2 * 16 & 0xffffu));
            if (n + 1 < N) {
                x[e] *= linear_parts<T>::STEP;
                least[e] *= linear_parts<T>::STEP;
            } else {
                held = held && fabsf(x[e]) <= least[e]; /* false for NaN */
            }
        }
    }
    return held;
}

/* Writes the thread's pieces in parts, and whether they do not hold a row. */
template <typename T, uint32_t ROWS>
DEVICE void put_x(linear_stage<T, ROWS> &to, uint32_t *doubtful, const linear_piece<ROWS> &p,
                  float (&x)[2][4]) {
    constexpr uint32_t N = linear_parts<T>::N;
    uint32_t word[2][N][2];
    if (!p.mine) return;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        if (linear_parts<T>::STEP != 1.0f) {
            float back;
            const float up = raise(x[r], back);
#pragma unroll
            for (uint32_t e = 0; e < 4; e++)
                x[r][e] *= up;
            if (p.t == 0 && p.h == 0) to.back[p.chunk][p.row + 8 * r] = back;
        }
        if (!split<T>(x[r], word[r])) atomic_max(&doubtful[p.row + 8 * r], 1);
    }
#pragma unroll
    for (uint32_t n = 0; n < N; n++) {
        const vec16 u = {{word[0][n][0], word[1][n][0], word[0][n][1], word[1][n][1]}};
        store_16(&to.part[p.chunk][p.tile][n][p.h][place_of(p.row % 8 * 4 + p.t, p.h)], u);
    }
}

/* ---- Products -------------------------------------------------------------------------------- */

/* A lane's weights of a chunk: of outputs lane / 4 + 8·o of the warp's 32, inputs 8·(lane % 4) on.
 * Words 2·h and 2·h + 1 are the right operand of the h-th product. */
struct linear_weights {
    vec16 of[4];
};

/* Of inputs from `i` on; zeros from `end` on. */
template <typename T>
DEVICE void fetch_w(const T *const (&row)[4], uint32_t i, uint32_t end, linear_weights &w) {
    const vec16 none = {};
#pragma unroll
    for (uint32_t o = 0; o < 4; o++)
        w.of[o] = i < end ? load_16(row[o] + i) : none;
}

/* Adds a chunk of 16 rows. sum[o][.]: outputs 8·o + 2·(lane % 4) + (0, 1) of rows lane / 4 (+ 8 for
 * the last two). */
template <typename T>
DEVICE void multiply(const vec16 (*part)[2][WARP], const float *back, const linear_weights &w,
                     float (&sum)[4][4]) {
    constexpr uint32_t N = linear_parts<T>::N;
    constexpr float STEP = linear_parts<T>::STEP;
    uint32_t x[N][2][4];
#pragma unroll
    for (uint32_t n = 0; n < N; n++)
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            const vec16 u = load_16(&part[n][h][place_of(lane_id(), h)]);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                x[n][h][i] = u.word[i];
        }
    float scale[2] = {1.0f, 1.0f};
    if (STEP != 1.0f) {
        scale[0] = back[lane_id() / 4];
        scale[1] = back[lane_id() / 4 + 8];
    }
#pragma unroll
    for (uint32_t o = 0; o < 4; o++) {
        float d[STEP != 1.0f ? N : 1][4] = {};
#pragma unroll
        for (uint32_t n = N; n-- > 0;) /* small parts first */
#pragma unroll
            for (uint32_t h = 0; h < 2; h++)
                mma(d[STEP != 1.0f ? n : 0], x[n][h], w.of[o].word[2 * h], w.of[o].word[2 * h + 1],
                    T());
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            if (STEP != 1.0f)
                sum[o][i] = fmaf(fmaf(d[STEP != 1.0f ? 1 : 0][i], 1.0f / STEP, d[0][i]),
                                 scale[i / 2], sum[o][i]);
            else
                sum[o][i] += d[0][i];
        }
    }
}

/* Steps 1 and 2 for a block: the sums of its range to shared memory, a group of warps each. */
template <typename T, uint32_t ROWS>
DEVICE void multiply_range(const cu_linear_args &a, const linear_task &t,
                           linear_block<T, ROWS> &b) {
    const uint32_t group = warp_id() % GROUPS, own = warp_id() / GROUPS * 32;
    const uint32_t at = group * CHUNK + lane_id() % 4 * 8;
    const T *row[4];
#pragma unroll
    for (uint32_t o = 0; o < 4; o++)
        row[o] = (const T *)a.w +
                 (uint64_t)min(t.first + own + 8 * o + lane_id() / 4, a.n_out - 1) * a.n_in;
    /* 1. weights as they are, two stages ahead, and x in parts */
    linear_weights w[2];
    fetch_w(row, t.begin + at, t.end, w[0]);
    fetch_w(row, t.begin + STAGE + at, t.end, w[1]);
    const linear_piece<ROWS> piece;
    float x[2][4], sum[ROWS / 16][4][4] = {};
    fetch_x(a, piece, t.begin, x);
    if (threadIdx.x < ROWS) b.doubtful[threadIdx.x] = 0;
    block_sync();
    put_x<T>(b.stage[0], b.doubtful, piece, x);
    for (uint32_t i = t.begin; i < t.end; i += 2 * STAGE) {
#pragma unroll
        for (uint32_t s = 0; s < 2; s++) {
            const uint32_t now = i + s * STAGE, next = now + STAGE;
            if (now >= t.end) break;
            if (next < t.end) fetch_x(a, piece, next, x);
            block_sync(); /* this stage is there, and all are done with the one before */

            /* 2. their products */
#pragma unroll
            for (uint32_t m = 0; m < ROWS / 16; m++)
                multiply<T>(b.stage[s].part[group][m], &b.stage[s].back[group][16 * m], w[s],
                            sum[m]);
            fetch_w(row, next + STAGE + at, t.end, w[s]);
            if (next < t.end) put_x<T>(b.stage[1 - s], b.doubtful, piece, x);
        }
    }
    block_sync();
#pragma unroll
    for (uint32_t m = 0; m < ROWS / 16; m++)
#pragma unroll
        for (uint32_t i = 0; i < 16; i++)
            b.sum[group][16 * m + i / 2 % 2 * 8 + lane_id() / 4]
                 [own + i / 4 * 8 + lane_id() % 4 * 2 + i % 2] = sum[m][i / 4][i % 4];
    block_sync();
}

/* ---- Sums ------------------------------------------------------------------------------------ */

/* A block's share of y[r][j] in plain fp32, by a warp. */
template <typename T>
DEVICE float plain_sum(const cu_linear_args &a, const linear_task &t, uint32_t r, uint32_t j) {
    float sum = 0.0f;
    for (uint64_t i = t.begin + lane_id() * 8; i < t.end; i += WARP * 8) {
        float x[8], w[8];
        load_8(a.x.at + r * a.x.stride + i, x);
        load_8((const T *)a.w + (uint64_t)j * a.n_in + i, w);
#pragma unroll
        for (uint32_t e = 0; e < 8; e++)
            sum = fmaf(x[e], w[e], sum);
    }
    return warp_sum(sum);
}

/* The lane's output of a row of the block's: the groups in order, or anew. */
template <typename T, uint32_t ROWS>
DEVICE float block_share(const cu_linear_args &a, const linear_task &t,
                         const linear_block<T, ROWS> &b, uint32_t r, uint32_t output) {
    float sum = b.sum[0][r][output];
#pragma unroll
    for (uint32_t g = 1; g < GROUPS; g++)
        sum += b.sum[g][r][output];
    const bool live = t.first + output < a.n_out;
    uint32_t again = warp_ballot(live && (b.doubtful[r] || !is_finite(sum)));
    for (uint32_t l = 0; again; l++, again >>= 1) {
        if ((again & 1) == 0) continue;
        const float anew = plain_sum<T>(a, t, r, t.first + output - lane_id() + l);
        if (lane_id() == l) sum = anew;
    }
    return sum;
}

/* 3. with bias and what is there */
DEVICE void write_sum(const cu_linear_args &a, uint32_t r, uint32_t j, float sum) {
    float *to = a.y.at + r * a.y.stride + j;
    if (a.bias) sum += a.bias[j];
    *to = a.accumulate ? *to + sum : sum;
}

/* Of a block whose share waits in a.states: the last of its outputs' adds up all, in order. */
template <typename B>
DEVICE void join_ranges(const cu_linear_mma_args &a, const linear_task &t, B &b) {
    const cu_linear_args &l = a.linear;
    if (!is_last_block(&a.tickets[blockIdx.x], gridDim.y, b.before)) return;
    const uint64_t stride = (uint64_t)l.n_rows * l.n_out;
    for (uint32_t e = threadIdx.x; e < l.n_rows * OUTPUTS; e += THREADS) {
        const uint32_t r = e / OUTPUTS, j = t.first + e % OUTPUTS;
        if (j >= l.n_out) continue;
        const float *share = a.states + (uint64_t)r * l.n_out + j;
        float sum = share[0];
#pragma unroll 4
        for (uint32_t s = 1; s < gridDim.y; s++)
            sum += share[s * stride];
        write_sum(l, r, j, sum);
    }
}

template <typename T, uint32_t ROWS>
DEVICE void linear_mma(const cu_linear_mma_args &a, linear_block<T, ROWS> &b) {
    const cu_linear_args &l = a.linear;
    if (l.n_rows == 0) return;
    linear_task t;
    t.first = blockIdx.x * OUTPUTS;
    t.begin = blockIdx.y * a.range;
    t.end = min(t.begin + a.range, l.n_in);
    multiply_range<T, ROWS>(l, t, b);
    for (uint32_t e = warp_id(); e < l.n_rows * (OUTPUTS / WARP); e += THREADS / WARP) {
        const uint32_t r = e / (OUTPUTS / WARP), output = e % (OUTPUTS / WARP) * WARP + lane_id();
        const float sum = block_share<T, ROWS>(l, t, b, r, output);
        if (t.first + output >= l.n_out) continue;
        if (gridDim.y == 1)
            write_sum(l, r, t.first + output, sum);
        else
            a.states[((uint64_t)blockIdx.y * l.n_rows + r) * l.n_out + t.first + output] = sum;
    }
    if (gridDim.y > 1) join_ranges(a, t, b);
}

#define LINEAR_MMA(type, tag, rows)                                                                \
    KERNEL(linear_mma_##tag##_r##rows, THREADS, cu_linear_mma_args) {                              \
        typedef linear_block<type, rows> block;                                                    \
        static_assert(sizeof(block) == CU_LINEAR_MMA_SHARED(rows), "the host asks for as much");   \
        DYNAMIC_SHARED(block, b);                                                                  \
        linear_mma<type, rows>(a, *b);                                                             \
    }
LINEAR_MMA(f16, f16, 16)
LINEAR_MMA(f16, f16, 32) LINEAR_MMA(bf16, bf16, 16) LINEAR_MMA(bf16, bf16, 32)
