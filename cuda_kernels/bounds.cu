/* SPDX-License-Identifier: Apache-2.0 */
/* bounds: a pair (lo, hi) of the keys of a full page, channel by channel: min and max, mean
 * -/+ width standard deviations, or the mean twice; NaN if a key is NaN.
 * contract: host/ops/; meaning: host/reference/bounds.c.
 * Work split: a thread owns 8 channels of one (page, KV head); a loop step reads 4 slots. Bounds of
 * q8 have as many threads a pair as a side has lanes, or two warps, so that blocks do not lie in two
 * warps. */
#include "q8.cuh"

#define MINMAX 0u /* tamis_bounds_kind */
#define MEAN   2u

#define LARGEST_F32 0x1.fffffep127f

/* The largest finite element. */
template <typename T> DEVICE float largest();
template <> DEVICE float largest<float>() {
    return LARGEST_F32;
}
template <> DEVICE float largest<f16>() {
    return 65504.0f;
}
template <> DEVICE float largest<bf16>() {
    return 0x1.fep127f;
}
template <> DEVICE float largest<q8>() {
    return Q8_MOST * 65504.0f;
}

DEVICE void fill_8(float (&x)[8], float value) {
#pragma unroll
    for (int d = 0; d < 8; d++)
        x[d] = value;
}

/* The keys of one page, at 8 channels. */
template <typename T> struct page_keys {
    const cu_kv &kv;
    kv_row<T> first;
    uint32_t channel;
};

/* take(x) for every key in slot order; 4 of them are on their way at a time. */
template <typename T, typename F> DEVICE void for_each_key(const page_keys<T> &keys, F take) {
    kv_row<T> row = keys.first;
    for (uint32_t slot = 0; slot < keys.kv.page_size; slot += 4) {
        const uint32_t n = min(keys.kv.page_size - slot, 4u); /* of pages below 4 slots fewer */
        float x[4][8];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            load_8(row_behind(keys.kv, row, min(j, n - 1)), keys.channel, x[j]);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            if (j < n) take(x[j]);
        row = row_behind(keys.kv, row, 4);
    }
}

template <typename T>
DEVICE void min_and_max(const page_keys<T> &keys, float (&lo)[8], float (&hi)[8]) {
    uint32_t nan = 0; /* bit d: channel d has a NaN */
    /* 1. both begin where every key widens them */
    fill_8(lo, INFINITY);
    fill_8(hi, -INFINITY);
    /* 2. every key does; a NaN is kept apart */
    for_each_key(keys, [&](const float(&x)[8]) {
#pragma unroll
        for (int d = 0; d < 8; d++) {
            lo[d] = fminf(lo[d], x[d]);
            hi[d] = fmaxf(hi[d], x[d]);
            nan |= (uint32_t)(x[d] != x[d]) << d;
        }
    });
#pragma unroll
    for (int d = 0; d < 8; d++)
        if (nan >> d & 1u) lo[d] = hi[d] = bits_to_float(0x7fc00000u);
}

template <typename T> DEVICE void mean_of(const page_keys<T> &keys, float (&mean)[8]) {
    fill_8(mean, 0.0f);
    for_each_key(keys, [&](const float(&x)[8]) {
#pragma unroll
        for (int d = 0; d < 8; d++)
            mean[d] += x[d];
    });
#pragma unroll
    for (int d = 0; d < 8; d++)
        mean[d] /= (float)keys.kv.page_size;
}

/* From the squares of differences to the mean, which are never below 0. */
template <typename T>
DEVICE void std_of(const page_keys<T> &keys, const float (&mean)[8], float (&deviation)[8]) {
    fill_8(deviation, 0.0f);
    for_each_key(keys, [&](const float(&x)[8]) {
#pragma unroll
        for (int d = 0; d < 8; d++) {
            const float off = x[d] - mean[d];
            deviation[d] = fmaf(off, off, deviation[d]);
        }
    });
#pragma unroll
    for (int d = 0; d < 8; d++)
        deviation[d] = sqrtf(deviation[d] / (float)keys.kv.page_size);
}

/* mean -/+ width·std; where both are finite, so are lo and hi in the bounds' type B. */
template <typename B, typename T>
DEVICE void around_mean(const page_keys<T> &keys, float width, float (&lo)[8], float (&hi)[8]) {
    float mean[8], deviation[8];
    mean_of(keys, mean);
    std_of(keys, mean, deviation);
#pragma unroll
    for (int d = 0; d < 8; d++) {
        /* A product that is rounded by itself: contracted with the sum it could not overflow. */
        const float spread = fmaf(width, deviation[d], 0.0f);
        lo[d] = mean[d] - spread;
        hi[d] = mean[d] + spread;
        if (!is_finite(mean[d]) || !is_finite(spread)) continue;
        lo[d] = fmaxf(lo[d], -largest<B>());
        hi[d] = fminf(hi[d], largest<B>());
    }
}

template <typename B, typename T>
DEVICE void pair_of(const cu_bounds_args &a, const page_keys<T> &keys, float (&lo)[8],
                    float (&hi)[8]) {
    if (a.kind == MINMAX) {
        min_and_max(keys, lo, hi);
    } else if (a.kind == MEAN) {
        mean_of(keys, lo);
#pragma unroll
        for (int d = 0; d < 8; d++)
            hi[d] = lo[d];
    } else {
        around_mean<B>(keys, a.width, lo, hi);
    }
}

/* Where a pair lies. */
template <typename B>
DEVICE B *bounds_at(const cu_bounds_rows &bounds, int32_t page, uint32_t head) {
    return (B *)bounds.rows + page * bounds.page_stride + head * bounds.head_stride;
}

template <typename T, uint32_t DIM> DEVICE void bounds_of_pages(const cu_bounds_args &a) {
    const uint32_t dim = dim_of<DIM>(a.kv), chunks = dim / 8;
    FOR_EACH_ITEM(i, (uint64_t)a.n * a.n_kv_heads * chunks) {
        const uint32_t channel = i % chunks * 8;
        const uint64_t pair = i / chunks;
        const uint32_t head = pair % a.n_kv_heads;
        const int32_t page = a.pages[pair / a.n_kv_heads];
        if (page < 0) continue;
        float lo[8], hi[8];
        pair_of<T>(a, page_keys<T>{a.kv, kv_rows<T>::of(a.kv, page, head, 0, 0), channel}, lo, hi);
        T *to = bounds_at<T>(a.bounds, page, head) + channel;
        store_8(lo, to);
        store_8(hi, to + dim);
    }
}

#define BOUNDS(type, tag, dim)                                                                     \
    KERNEL(bounds_of_pages_##tag##_d##dim, 256, cu_bounds_args) {                                  \
        bounds_of_pages<type, dim>(a);                                                             \
    }
FOR_EACH_TYPE_AND_DIM(BOUNDS)

/* 8 channels of a pair: lo rounded down and hi up, means to the nearest. All lanes of a warp call
 * it. */
DEVICE void store_pair(const cu_bounds_args &a, const float (&lo)[8], const float (&hi)[8],
                       bool live, q8 *to, uint32_t channel) {
    const uint32_t scale = block_scale(q8_most_of_block(q8_most(hi, q8_most(lo))), Q8_MOST);
    if (!live) return;
    if (a.kind == MEAN) {
        store_vec8(to + channel, q8_of<Q8_NEAREST>(lo, scale));
        store_vec8(to + a.dim + channel, q8_of<Q8_NEAREST>(hi, scale));
    } else {
        store_vec8(to + channel, q8_of<Q8_DOWN>(lo, scale));
        store_vec8(to + a.dim + channel, q8_of<Q8_UP>(hi, scale));
    }
    if (channel % Q8_BLOCK == 0)
        ((f16 *)(to + 2 * a.dim))[channel / Q8_BLOCK] = from_bits<f16>(scale);
}

template <typename T> DEVICE void bounds_to_q8(const cu_bounds_args &a) {
    const uint32_t threads = CU_ROW_THREADS(a.dim);
    const uint64_t n = (uint64_t)a.n * a.n_kv_heads * threads;
    FOR_EACH_ITEM(i, (n + WARP - 1) / WARP * WARP) { /* whole warps */
        const uint32_t channel = i % threads * 8;
        const uint64_t pair = i / threads;
        const uint32_t head = pair % a.n_kv_heads;
        const int32_t page = i < n && channel < a.dim ? a.pages[pair / a.n_kv_heads] : -1;
        const bool live = page >= 0;
        float lo[8] = {}, hi[8] = {};
        if (live)
            pair_of<q8>(a, page_keys<T>{a.kv, kv_rows<T>::of(a.kv, page, head, 0, 0), channel}, lo,
                        hi);
        store_pair(a, lo, hi, live, bounds_at<q8>(a.bounds, page, head), channel);
    }
}

#define BOUNDS_TO_Q8(type, tag)                                                                    \
    KERNEL(bounds_of_pages_##tag##_q8, 256, cu_bounds_args) {                                      \
        bounds_to_q8<type>(a);                                                                     \
    }
FOR_EACH_ROW_TYPE(BOUNDS_TO_Q8)
