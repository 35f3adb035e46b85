/* SPDX-License-Identifier: Apache-2.0 */
/* write_rows: K and V rows into slots of lanes; read_rows: out of them, widened to f32.
 * contract: host/ops/; meaning: host/reference/rows.c.
 * Work split: a thread owns 8 channels of the K and the V row of one (row, KV head). The caller's
 * rows may begin at any element; those of the cache are aligned to 16 bytes, where there are blocks
 * to 8. With a rotation a warp owns a head of one row, of q, or of k with v, so that what it sums,
 * rotates and writes is its own. */
#include "q8.cuh"
#include "rotate.cuh"

DEVICE bool aligned_16(const void *p) {
    return (uintptr_t)p % 16 == 0;
}

/* 8 elements from any place: of 16 bits as they are, or of f32. */
DEVICE void take_8(const uint16_t *from, vec16 &u) {
    if (aligned_16(from)) {
        u = load_16(from);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            u.word[i] = from[2 * i] | (uint32_t)from[2 * i + 1] << 16;
    }
}
DEVICE void take_8(const float *from, float (&x)[8]) {
    if (aligned_16(from)) {
        load_8(from, x);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = from[i];
    }
}

/* 8 channels of a K and of a V row to their places; both are read before either is written. */
DEVICE void put_8(const uint16_t *k, const uint16_t *v, uint16_t *to_k, uint16_t *to_v) {
    vec16 x, y;
    take_8(k, x);
    take_8(v, y);
    store_16(to_k, x);
    store_16(to_v, y);
}
template <typename T> DEVICE void put_8(const float *k, const float *v, T *to_k, T *to_v) {
    float x[8], y[8];
    take_8(k, x);
    take_8(v, y);
    store_8(x, to_k);
    store_8(y, to_v);
}
template <typename T> DEVICE void get_8(const kv_row<T> &from, uint32_t channel, float *to) {
    float x[8];
    load_8(from, channel, x);
    if (aligned_16(to)) {
        store_8(x, to);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            to[i] = x[i];
    }
}

/* 8 channels of a K and of a V row to a slot. Where rows have scales all lanes of a warp call it, else
 * only those that are live. */
template <typename K, typename V>
DEVICE void put_8(const kv_row<K> &key, const kv_row<V> &value, uint32_t channel, bool live,
                  const float *k, const float *v) {
    if constexpr (!HAS_BLOCKS<K>) {
        put_8(k, v, (K *)key.at + channel, (V *)value.at + channel);
    } else {
        float x[8] = {}, y[8] = {};
        if (live) {
            take_8(k, x);
            take_8(v, y);
        }
        store_scaled(x, live, key, channel);
        store_scaled(y, live, value, channel);
    }
}

/* The slot's entries in the planes that there are. */
DEVICE void put_planes(const cu_write_rows_args &a, uint32_t row, int32_t page, uint32_t slot) {
    const uint64_t at = ((uint64_t)page << a.kv.page_shift) + (slot & (a.kv.page_size - 1));
    if (a.position_plane) a.position_plane[at] = a.positions[row];
    if (a.score_plane) a.score_plane[at] = 0.0f;
}

/* Rows of S into a cache of T: f32 into any, or bits of 16 into the same. */
template <typename S, typename T, uint32_t DIM>
DEVICE void write_rows(const cu_write_rows_args &a) {
    const uint32_t dim = dim_of<DIM>(a.kv), chunks = dim / 8, n_heads = a.batch.n_kv_heads;
    FOR_EACH_ITEM(i, (uint64_t)a.batch.n_rows * n_heads * chunks) {
        /* 1. the slot's place */
        const uint32_t channel = i % chunks * 8;
        const uint64_t lane = i / chunks;
        const uint32_t head = lane % n_heads, row = lane / n_heads;
        const int32_t slot = a.slots[lane];
        if (slot < 0) continue;
        const int32_t page = lane_pages(a.batch, row, head)[slot >> a.kv.page_shift];
        const uint32_t in_page = slot & (a.kv.page_size - 1);
        T *to = (T *)key_of<T>(a.kv, page, head, in_page).at + channel;
        /* 2. the planes; first, since the page is then no longer needed */
        if (channel == 0) put_planes(a, row, page, slot);
        /* 3. both rows */
        const uint64_t within = (uint64_t)head * dim + channel;
        put_8((const S *)a.k + row * a.k_stride + within,
              (const S *)a.v + row * a.v_stride + within, to, to + a.kv.value_offset);
    }
}

/* f32 rows into a cache of T, where rows have blocks. A row has as many threads as a side has lanes,
 * or two warps, some of them idle, so that blocks do not lie in two warps. */
template <typename T, uint32_t DIM> DEVICE void write_scaled(const cu_write_rows_args &a) {
    const uint32_t dim = dim_of<DIM>(a.kv), threads = CU_ROW_THREADS(dim);
    const uint32_t n_heads = a.batch.n_kv_heads;
    const uint64_t n = (uint64_t)a.batch.n_rows * n_heads * threads;
    FOR_EACH_ITEM(i, (n + WARP - 1) / WARP * WARP) { /* whole warps */
        /* 1. the slot's place */
        const uint32_t channel = i % threads * 8;
        const uint64_t lane = i / threads;
        const uint32_t head = lane % n_heads, row = lane / n_heads;
        const int32_t slot = i < n && channel < dim ? a.slots[lane] : -1;
        const bool live = slot >= 0;
        const int32_t page = live ? lane_pages(a.batch, row, head)[slot >> a.kv.page_shift] : 0;
        /* 2. the planes */
        if (live && channel == 0) put_planes(a, row, page, slot);
        /* 3. both rows */
        const uint64_t within = (uint64_t)head * dim + channel;
        const uint32_t in_page = slot & (a.kv.page_size - 1);
        put_8(key_of<T>(a.kv, page, head, in_page), value_of<T>(a.kv, page, head, in_page), channel,
              live, (const float *)a.k + row * a.k_stride + within,
              (const float *)a.v + row * a.v_stride + within);
    }
}

/* RMSNorm of a head, in place, by a warp. */
DEVICE void norm_head(float *head, const float *w, uint32_t dim, float eps) {
    float squares = 0.0f;
    for (uint32_t i = lane_id(); i < dim; i += WARP)
        squares = fmaf(head[i], head[i], squares);
    const float scale = 1.0f / sqrtf(warp_sum(squares) / (float)dim + eps);
    for (uint32_t i = lane_id(); i < dim; i += WARP)
        head[i] = head[i] * scale * w[i];
    warp_sync();
}

/* The K row of a KV head, which has been rotated, and its V row go to their slot. */
template <typename T>
DEVICE void write_head(const cu_write_rotated_args &a, uint32_t row, uint32_t head) {
    const cu_write_rows_args &w = a.write;
    const int32_t slot = w.slots[(uint64_t)row * w.batch.n_kv_heads + head];
    if (slot < 0) return;
    const int32_t page = lane_pages(w.batch, row, head)[slot >> w.kv.page_shift];
    if (lane_id() == 0) put_planes(w, row, page, slot);
    const uint32_t in_page = slot & (w.kv.page_size - 1);
    for (uint32_t first = 0; first < a.head_dim; first += WARP * 8) {
        const uint32_t channel = first + lane_id() * 8;
        const bool live = channel < a.head_dim;
        const uint64_t within = (uint64_t)head * a.head_dim + channel;
        if (HAS_BLOCKS<T> || live)
            put_8(key_of<T>(w.kv, page, head, in_page), value_of<T>(w.kv, page, head, in_page),
                  channel, live, (const float *)w.k + row * w.k_stride + within,
                  (const float *)w.v + row * w.v_stride + within);
    }
}

template <typename T> DEVICE void write_rotated(const cu_write_rotated_args &a) {
    const uint32_t heads = a.n_heads + a.write.batch.n_kv_heads; /* of a row */
    const uint64_t n = (uint64_t)a.write.batch.n_rows * heads;
    const uint32_t warps = blockDim.x / WARP;
    for (uint64_t i = (uint64_t)blockIdx.x * warps + warp_id(); i < n;
         i += (uint64_t)gridDim.x * warps) {
        const uint32_t row = i / heads, of_row = i % heads;
        const bool is_k = of_row >= a.n_heads;
        const uint32_t head = is_k ? of_row - a.n_heads : of_row;
        const cu_matrix &rows = is_k ? a.k : a.q;
        const float *w = is_k ? a.k_norm : a.q_norm;
        float *at = rows.at + row * rows.stride + (uint64_t)head * a.head_dim;
        /* 1. the head is normalised */
        if (w) norm_head(at, w, a.head_dim, a.eps);
        /* 2. and rotated */
        const int32_t position = a.positions[row];
        for (uint32_t pair = lane_id(); pair < a.n_pairs; pair += WARP)
            turn_pair(at, a.table, position, pair, a.n_pairs, a.adjacent != 0);
        warp_sync();
        /* 3. a key goes to its slot, with the value */
        if (is_k) write_head<T>(a, row, head);
    }
}

#define WRITE_ROTATED(type, tag)                                                                   \
    KERNEL(write_rotated_##tag, 256, cu_write_rotated_args) {                                      \
        write_rotated<type>(a);                                                                    \
    }
FOR_EACH_KV_TYPE(WRITE_ROTATED)

template <typename T, uint32_t DIM> DEVICE void read_rows(const cu_read_rows_args &a) {
    const uint32_t dim = dim_of<DIM>(a.kv), chunks = dim / 8;
    FOR_EACH_ITEM(i, a.n * chunks) {
        const uint32_t channel = i % chunks * 8;
        const uint64_t row = i / chunks, to = row * dim + channel;
        const uint32_t head = a.head[row];
        const int32_t *pages = a.table + a.seq[row] * a.seq_stride + head * a.head_stride;
        const uint32_t slot = a.slot[row], in_page = slot & (a.kv.page_size - 1);
        const int32_t page = pages[slot >> a.kv.page_shift];
        if (a.k) get_8(key_of<T>(a.kv, page, head, in_page), channel, a.k + to);
        if (a.v) get_8(value_of<T>(a.kv, page, head, in_page), channel, a.v + to);
    }
}

#define ROWS(type, tag, dim)                                                                       \
    KERNEL(write_rows_##tag##_d##dim, 256, cu_write_rows_args) {                                   \
        write_rows<float, type, dim>(a);                                                           \
    }
FOR_EACH_TYPE_AND_DIM(ROWS)
#define ROWS_SCALED(type, tag, dim)                                                                \
    KERNEL(write_rows_##tag##_d##dim, 256, cu_write_rows_args) {                                   \
        write_scaled<type, dim>(a);                                                                \
    }
FOR_EACH_DIM_OF(ROWS_SCALED, q8, q8)
FOR_EACH_DIM_OF(ROWS_SCALED, k8v4, k8v4)
FOR_EACH_DIM_OF(ROWS_SCALED, q4, q4)

#define READ_ROWS(type, tag, dim)                                                                  \
    KERNEL(read_rows_##tag##_d##dim, 256, cu_read_rows_args) {                                     \
        read_rows<type, dim>(a);                                                                   \
    }
FOR_EACH_KV_TYPE_AND_DIM(READ_ROWS)

/* Rows that come in the cache's type of 16 bits, whichever that is. */
#define COPY_ROWS(type, tag, dim)                                                                  \
    KERNEL(copy_rows_##tag##_d##dim, 256, cu_write_rows_args) {                                    \
        write_rows<type, type, dim>(a);                                                            \
    }
FOR_EACH_DIM_OF(COPY_ROWS, uint16_t, 16)
