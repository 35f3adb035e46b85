/* SPDX-License-Identifier: Apache-2.0 */
/* Scores of the full pages of one (row, KV head), for score.cu and sparse_attend.cu.
 *
 *   s_g(page) = Σ_d max(q_gd·lo_d, q_gd·hi_d); score = max, mean or sum over the group.
 * Bounds have lo <= hi or are NaN, so with finite numbers max(q·lo, q·hi) = max(q, 0)·hi +
 * min(q, 0)·lo: two multiply-adds, of which one adds a zero. An infinity or NaN among the factors
 * always shows in such a sum: for eight channels whose sum is not finite the first formula is
 * computed. The kernel is bound by memory: a warp has in flight the bounds of a whole turn of
 * pages, which are used for all query heads of a pass, and the page ids of the next turn. Of rows
 * that a warp takes in several turns of channels it reads bounds again for each head. Large groups,
 * whose queries might not fit shared memory, take several passes, which join their scores in order,
 * by the kernels for CU_ANY_DIM: others have no register left for it. */
#ifndef TAMIS_SCORE_CUH
#define TAMIS_SCORE_CUH
#include "common.cuh"

/* ---- The group's queries in shared memory ---------------------------------------------------- */

/* A head is four pieces of vectors, a vector a chunk of 8 channels: of the positive parts the first
 * and the last four channels, then those of the negative parts. So the lanes of a page read
 * neighbouring vectors. */
DEVICE uint32_t query_at(uint32_t dim, uint32_t g, uint32_t d, uint32_t negative) {
    const uint32_t piece = 2 * negative + d % 8 / 4;
    return ((g * 4 + piece) * (dim / 8) + d / 8) * 4 + d % 4;
}

/* `heads` of a row from query head `first` on. A NaN is a negative part. */
DEVICE void stage_query(const cu_score_args &a, uint32_t row, uint32_t dim, uint32_t first,
                        uint32_t heads, float *shared) {
    const float *q = a.q.at + row * a.q.stride + (uint64_t)first * dim;
    for (uint32_t i = threadIdx.x; i < heads * dim; i += blockDim.x) {
        const float x = q[i];
        shared[query_at(dim, i / dim, i % dim, 0)] = x > 0.0f ? x : 0.0f;
        shared[query_at(dim, i / dim, i % dim, 1)] = x > 0.0f ? 0.0f : x;
    }
    block_sync();
}

/* The parts of chunk `chunk` of head g. */
DEVICE void load_query(const float *shared, uint32_t dim, uint32_t g, uint32_t chunk,
                       float (&above)[8], float (&below)[8]) {
    const float *p = shared + (g * 4 * (dim / 8) + chunk) * 4;
#pragma unroll
    for (uint32_t piece = 0; piece < 4; piece++) {
        const vec16 u = load_16(p + piece * (dim / 8) * 4);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            float *to = piece < 2 ? above : below;
            to[piece % 2 * 4 + i] = bits_to_float(u.word[i]);
        }
    }
}

/* ---- 8 elements as they lie in memory: loads can be under way before any is widened ---------- */

template <typename T> struct packed_8 { vec16 part[sizeof(T) / 2]; };
template <typename T> DEVICE packed_8<T> load_packed(const T *p) {
    packed_8<T> u;
#pragma unroll
    for (uint32_t i = 0; i < sizeof(T) / 2; i++)
        u.part[i] = load_16((const char *)p + 16 * i);
    return u;
}
DEVICE void unpack(const packed_8<float> &u, float (&x)[8]) {
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        x[i] = bits_to_float(u.part[i / 4].word[i % 4]);
}
template <typename T> DEVICE void unpack(const packed_8<T> &u, float (&x)[8]) {
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        x[i] = widen(from_bits<T>(u.part[0].word[i / 2] >> i % 2 * 16 & 0xffffu));
}

/* A lane's channels of a pair of bounds of T, from `page` on. */
template <typename T> struct packed_pair { packed_8<T> lo, hi; };
template <> struct packed_pair<q8> {
    vec8 lo, hi;
    f16 scale;
};
template <typename T>
DEVICE void load_pair(const T *page, uint32_t dim, uint32_t chunk, packed_pair<T> &pair) {
    pair.lo = load_packed(page + chunk * 8);
    pair.hi = load_packed(page + dim + chunk * 8);
}
DEVICE void load_pair(const q8 *page, uint32_t dim, uint32_t chunk, packed_pair<q8> &pair) {
    pair.lo = load_vec8(page + chunk * 8);
    pair.hi = load_vec8(page + dim + chunk * 8);
    pair.scale = ((const f16 *)(page + 2 * dim))[chunk * 8 / Q8_BLOCK];
}
template <typename T>
DEVICE void unpack(const packed_pair<T> &pair, float (&lo)[8], float (&hi)[8]) {
    unpack(pair.lo, lo);
    unpack(pair.hi, hi);
}
DEVICE void unpack(const packed_pair<q8> &pair, float (&lo)[8], float (&hi)[8]) {
    widen_8(pair.lo, pair.scale, lo);
    widen_8(pair.hi, pair.scale, hi);
}

template <typename T>
DEVICE void unpack_turn(const packed_pair<T> (&pair)[CU_SCORE_STEPS],
                        float (&lo)[CU_SCORE_STEPS][8], float (&hi)[CU_SCORE_STEPS][8]) {
#pragma unroll
    for (uint32_t u = 0; u < CU_SCORE_STEPS; u++)
        unpack(pair[u], lo[u], hi[u]);
}

/* ---- Sums ------------------------------------------------------------------------------------ */

DEVICE float short_sum(const float (&above)[8], const float (&below)[8], const float (&lo)[8],
                       const float (&hi)[8]) {
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        sum = fmaf(above[i], hi[i], fmaf(below[i], lo[i], sum));
    return sum;
}
/* The first formula; a NaN product stays. */
DEVICE float any_sum(const float (&above)[8], const float (&below)[8], const float (&lo)[8],
                     const float (&hi)[8]) {
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        const float q = above[i] + below[i], x = q * lo[i], y = q * hi[i];
        sum += x != x || x > y ? x : y;
    }
    return sum;
}

/* Sums over LANES lanes of CU_SCORE_STEPS numbers at once: lane c of them gets that of number
 * c / (LANES / CU_SCORE_STEPS). Halves are exchanged while there is more than one number a lane. */
template <uint32_t LANES> DEVICE float fold(const float (&x)[CU_SCORE_STEPS]) {
    static_assert(CU_SCORE_STEPS == 4, "two exchanges");
    const bool upper = lane_id() & LANES / 2, odd = lane_id() & LANES / 4;
    const float a = (upper ? x[2] : x[0]) + shuffle_xor(upper ? x[0] : x[2], LANES / 2);
    const float b = (upper ? x[3] : x[1]) + shuffle_xor(upper ? x[1] : x[3], LANES / 2);
    float sum = (odd ? b : a) + shuffle_xor(odd ? a : b, LANES / 4);
#pragma unroll
    for (uint32_t mask = LANES / 8; mask > 0; mask /= 2)
        sum += shuffle_xor(sum, mask);
    return sum;
}

/* The group's rule; NaN stays. */
DEVICE float join(uint32_t rule, float score, float x) {
    if (rule != 0) return score + x;
    return x > score || x != x ? x : score;
}

/* ---- One block's share of the pages of (row, head) ------------------------------------------- */

/* The lane's channels of the bounds of a turn's pages, whose ids the first lanes of the warp have. */
template <typename T, uint32_t DIM>
DEVICE void load_turn(const T *bounds, uint64_t page_stride, int32_t id, uint32_t dim,
                      uint32_t chunk, packed_pair<T> (&pair)[CU_SCORE_STEPS]) {
    constexpr uint32_t LANES = CU_ROW_LANES(DIM), PAGES = WARP / LANES;
#pragma unroll
    for (uint32_t u = 0; u < CU_SCORE_STEPS; u++) {
        const T *at = bounds + (uint64_t)shuffle(id, u * PAGES + lane_id() / LANES) * page_stride;
        load_pair(at, dim, chunk, pair[u]);
    }
}

/* The part of a head's sums that the bounds of a turn's pages give, of 8 channels a lane. */
DEVICE void part_sums(const float (&above)[8], const float (&below)[8],
                      const float (&lo)[CU_SCORE_STEPS][8], const float (&hi)[CU_SCORE_STEPS][8],
                      float (&part)[CU_SCORE_STEPS]) {
#pragma unroll
    for (uint32_t u = 0; u < CU_SCORE_STEPS; u++)
        part[u] = short_sum(above, below, lo[u], hi[u]);
    if (!is_finite((part[0] + part[1]) + (part[2] + part[3]))) {
#pragma unroll
        for (uint32_t u = 0; u < CU_SCORE_STEPS; u++)
            if (!is_finite(part[u])) part[u] = any_sum(above, below, lo[u], hi[u]);
    }
}

/* One pass: query heads from the first-th of the group on, with CU_ANY_DIM CU_SCORE_HEADS at most, else
 * all. `seen`: visible slots of (row, head). */
template <typename T, uint32_t DIM>
DEVICE void score_pass(const cu_score_args &a, uint32_t row, uint32_t head, uint32_t seen,
                       uint32_t block, uint32_t first_head, float *shared) {
    constexpr uint32_t STEPS = CU_SCORE_STEPS, LANES = CU_ROW_LANES(DIM);
    constexpr uint32_t PAGES = WARP / LANES, TURN = CU_SCORE_TURN(DIM), TURNS = CU_ROW_TURNS(DIM);
    const uint32_t dim = dim_of<DIM>(a.kv), chunks = dim / 8, group = a.batch.group;
    const uint32_t heads = DIM == CU_ANY_DIM ? min(group - first_head, CU_SCORE_HEADS) : group;
    const uint32_t owner = row * a.batch.n_kv_heads + head, warps = blockDim.x / WARP;
    const uint32_t full = seen >> a.kv.page_shift;
    const uint32_t from = first_seen(a.batch, owner) >> a.kv.page_shift, step = a.blocks * warps * TURN;
    const uint32_t lane = lane_id(), column = lane % LANES;
    const int32_t *ids = lane_pages(a.batch, row, head);
    const T *bounds = (const T *)a.bounds.rows + head * a.bounds.head_stride;
    float *scores = a.scores + owner * a.stride;

    uint32_t first = from + (warp_id() * a.blocks + block) * TURN; /* few pages: all blocks have some */
    int32_t ahead = first < full ? ids[min(first + lane, full - 1)] : 0, now = 0;
    for (bool staged = false; !staged || first < full; first += step) {
        /* 1. the bounds of the turn's pages, of those beyond the last page that one's, and the ids
         * of the turn behind it; the queries are staged while the first ones are on their way */
        packed_pair<T> pair[STEPS];
        float lo[STEPS][8], hi[STEPS][8];
        if (first < full) {
            now = ahead;
            if (TURNS == 1)
                load_turn<T, DIM>(bounds, a.bounds.page_stride, now, dim, min(column, chunks - 1),
                                  pair);
            ahead = ids[min(first + step + lane, full - 1)];
        }
        if (!staged) stage_query(a, row, dim, head * group + first_head, heads, shared);
        staged = true;
        if (first >= full) break;
        if (TURNS == 1) unpack_turn(pair, lo, hi);

        /* 2. every query head's sums over the channels, 3. joined by the group's rule */
        const uint32_t page = first + column / (LANES / STEPS) * PAGES + lane / LANES;
        const bool writes = column % (LANES / STEPS) == 0 && page < full;
        float score = first_head && writes ? scores[page] : 0.0f; /* of the passes before */
        for (uint32_t g = 0; g < heads; g++) {
            float sums[STEPS];
#pragma unroll
            for (uint32_t turn = 0; turn < TURNS; turn++) {
                const uint32_t at = column + turn * LANES;
                /* lanes beyond the channels read the last ones */
                const uint32_t chunk = min(at, chunks - 1);
                float above[8], below[8], part[STEPS];
                if (TURNS > 1) {
                    load_turn<T, DIM>(bounds, a.bounds.page_stride, now, dim, chunk, pair);
                    unpack_turn(pair, lo, hi);
                }
                load_query(shared, dim, g, chunk, above, below);
                part_sums(above, below, lo, hi, part);
#pragma unroll
                for (uint32_t u = 0; u < STEPS; u++) {
                    if (at >= chunks) part[u] = 0.0f;
                    sums[u] = turn == 0 ? part[u] : sums[u] + part[u];
                }
            }
            const float sum = fold<LANES>(sums);
            score = first_head + g == 0 ? sum : join(a.rule, score, sum);
        }
        if (a.rule == 1 && first_head + heads == group) score /= (float)group;
        if (writes) scores[page] = score;
    }
}

/* `seen`: visible slots of (row, head). */
template <typename T, uint32_t DIM>
DEVICE void score_pages_of(const cu_score_args &a, uint32_t row, uint32_t head, uint32_t seen,
                           uint32_t block, float *shared) {
    if constexpr (DIM != CU_ANY_DIM) {
        score_pass<T, DIM>(a, row, head, seen, block, 0, shared);
    } else {
        for (uint32_t first = 0; first < a.batch.group; first += CU_SCORE_HEADS) {
            if (first) block_sync(); /* the queries before may still be read */
            score_pass<T, DIM>(a, row, head, seen, block, first, shared);
        }
    }
}

#endif
