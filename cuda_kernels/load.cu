/* SPDX-License-Identifier: Apache-2.0 */
/* load_rows: stored rows of K, of V or of both into slots of lanes; K is normalised and
 * rotated on its way.
 * contract: host/ops/; meaning: host/reference/load.c.
 * Work split: a warp owns a head of one row; its lanes take pairs of channels, then channels that
 * are not rotated. Stored rows may begin at any element. Where keys are q8 a row is formed as f32
 * in shared memory first. */
#include "q8.cuh"
#include "rotate.cuh"

#define THREADS 256u

/* What a head's channels are multiplied by, beside the norm's weights. */
template <typename S> DEVICE float norm_scale(const S *head, uint32_t dim, float eps) {
    float squares = 0.0f;
    for (uint32_t i = lane_id(); i < dim; i += WARP)
        squares = fmaf(widen(head[i]), widen(head[i]), squares);
    return 1.0f / sqrtf(warp_sum(squares) / (float)dim + eps);
}

/* Channels [first, dim), as they are. */
template <typename S, typename T>
DEVICE void put_channels(const S *from, T *to, uint32_t first, uint32_t dim) {
    for (uint32_t i = first + lane_id(); i < dim; i += WARP)
        to[i] = narrow<T>(widen(from[i]));
}

template <typename S, typename T>
DEVICE void put_key(const cu_load_rows_args &a, const S *from, uint32_t row, T *to) {
    const float *w = a.k_norm;
    const float scale = w ? norm_scale(from, a.head_dim, a.eps) : 1.0f;
    for (uint32_t pair = lane_id(); pair < a.n_pairs; pair += WARP) {
        const uint32_t first = first_of(pair, a.adjacent != 0);
        const uint32_t second = second_of(pair, a.n_pairs, a.adjacent != 0);
        float x = widen(from[first]), y = widen(from[second]);
        if (w) x = x * scale * w[first];
        if (w) y = y * scale * w[second];
        turn(a.table, a.write.positions[row], pair, a.n_pairs, x, y);
        to[first] = narrow<T>(x);
        to[second] = narrow<T>(y);
    }
    for (uint32_t i = 2 * a.n_pairs + lane_id(); w && i < a.head_dim; i += WARP)
        to[i] = narrow<T>(widen(from[i]) * scale * w[i]);
    if (!w) put_channels(from, to, 2 * a.n_pairs, a.head_dim);
}

/* A row that lies in `formed`. */
template <typename T>
DEVICE void put_formed(const float *formed, uint32_t dim, const kv_row<T> &to) {
    warp_sync();
    for (uint32_t first = 0; first < dim; first += WARP * 8) {
        const uint32_t channel = first + lane_id() * 8;
        float x[8] = {};
        if (channel < dim) load_8(formed + channel, x);
        store_scaled(x, channel < dim, to, channel);
    }
    warp_sync(); /* the row is read before another one is formed */
}

/* The K row and the V row of a slot, where they are given; `row` is the row's number. */
template <typename S, typename K, typename V>
DEVICE void put_rows(const cu_load_rows_args &a, const S *k, const S *v, uint32_t row,
                     const kv_row<K> &key, const kv_row<V> &value, float *formed) {
    if constexpr (!HAS_BLOCKS<K>) {
        if (k) put_key(a, k, row, (K *)key.at);
        if (v) put_channels(v, (V *)value.at, 0, a.head_dim);
    } else {
        if (k) {
            put_key(a, k, row, formed);
            put_formed(formed, a.head_dim, key);
        }
        if (v) {
            put_channels(v, formed, 0, a.head_dim);
            put_formed(formed, a.head_dim, value);
        }
    }
}

/* `formed`: of each warp, where rows have blocks. */
template <typename S, typename T> DEVICE void load_rows(const cu_load_rows_args &a, float *formed) {
    const cu_write_rows_args &w = a.write;
    const uint32_t heads = w.batch.n_kv_heads, warps = blockDim.x / WARP;
    const uint64_t n = (uint64_t)w.batch.n_rows * heads;
    for (uint64_t i = (uint64_t)blockIdx.x * warps + warp_id(); i < n;
         i += (uint64_t)gridDim.x * warps) {
        /* 1. the slot's place */
        const uint32_t head = i % heads, row = i / heads;
        const int32_t slot = w.slots[i];
        if (slot < 0) continue;
        const int32_t page = lane_pages(w.batch, row, head)[slot >> w.kv.page_shift];
        const uint32_t in_page = slot & (w.kv.page_size - 1);
        const uint64_t within = (uint64_t)head * a.head_dim;
        /* 2. the K row, normalised and rotated, and the V row */
        const S *k = w.k ? (const S *)w.k + row * w.k_stride + within : nullptr;
        const S *v = w.v ? (const S *)w.v + row * w.v_stride + within : nullptr;
        put_rows(a, k, v, row, key_of<T>(w.kv, page, head, in_page),
                 value_of<T>(w.kv, page, head, in_page), formed);
        /* 3. the planes that there are */
        const uint64_t in_plane = ((uint64_t)page << w.kv.page_shift) + in_page;
        if (lane_id() == 0 && w.position_plane) w.position_plane[in_plane] = w.positions[row];
        if (lane_id() == 0 && w.score_plane) w.score_plane[in_plane] = 0.0f;
    }
}

#define LOAD_ROWS_OF(source, from, type, tag)                                                      \
    KERNEL(load_rows_##from##_##tag, THREADS, cu_load_rows_args) {                                 \
        load_rows<source, type>(a, nullptr);                                                       \
    }
#define LOAD_ROWS(type, tag)                                                                       \
    LOAD_ROWS_OF(float, f32, type, tag)                                                            \
    LOAD_ROWS_OF(f16, f16, type, tag)                                                              \
    LOAD_ROWS_OF(bf16, bf16, type, tag)
FOR_EACH_TYPE(LOAD_ROWS)

struct alignas(16) formed_rows {
    float of[THREADS / WARP][CU_ANY_DIM];
};
#define LOAD_SCALED(source, from, type)                                                            \
    KERNEL(load_rows_##from##_##type, THREADS, cu_load_rows_args) {                                \
        SHARED(formed_rows, rows);                                                                 \
        load_rows<source, type>(a, rows.of[warp_id()]);                                            \
    }
#define LOADS_SCALED(source, from)                                                                 \
    LOAD_SCALED(source, from, q8) LOAD_SCALED(source, from, k8v4) LOAD_SCALED(source, from, q4)
FOR_EACH_TYPE(LOADS_SCALED)
