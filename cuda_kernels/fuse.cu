/* SPDX-License-Identifier: Apache-2.0 */
/* fuse: elementwise on the values of lanes, slots below n = max(visible - tail, 0).
 * contract: host/ops/; meaning: host/reference/fuse.c.
 * Work split: `blocks` blocks share the slots of a lane, an (item, KV head); in fuse_heads those of
 * an item, and a thread serves all heads at its slot; in fuse_mean one block owns a lane; in
 * fuse_chunks a thread owns a chunk. */
#include "common.cuh"

enum { AXPBY = 0, LIFETIME = 3, SHARE_OF_HEADS = 5, LISTS_MAX = 8 }; /* tms_fuse_kind */

#define FUSE_WARPS (CU_FUSE_THREADS / WARP)
#define FOR_EACH_SHARED(slot, n)                                                                   \
    for (uint32_t slot = blockIdx.x % a.blocks * CU_FUSE_THREADS + threadIdx.x; slot < (n);        \
         slot += a.blocks * CU_FUSE_THREADS)

/* One (item, KV head). */
typedef struct lane {
    uint32_t index, n;
    const int32_t *ids; /* page ids; NULL where nothing lies in a plane */
} lane;

DEVICE lane lane_of(const cu_fuse_args &a, uint32_t index) {
    const uint32_t seen = (uint32_t)a.batch.visible[index], heads = a.batch.n_kv_heads;
    return lane{index, seen > a.tail ? seen - a.tail : 0,
                a.batch.table ? lane_pages(a.batch, index / heads, index % heads) : nullptr};
}
/* The lane, or the item, of a block. */
DEVICE uint32_t owner_of(const cu_fuse_args &a) {
    return blockIdx.x / a.blocks;
}
DEVICE bool is_lane(const cu_fuse_args &a, uint32_t index) {
    return index < (uint64_t)a.batch.n_rows * a.batch.n_kv_heads;
}
DEVICE uint64_t plane_at(const cu_fuse_args &a, const lane &l, uint32_t slot) {
    return (uint64_t)l.ids[slot / a.page_size] * a.page_size + slot % a.page_size;
}
DEVICE uint64_t value_at(const cu_fuse_args &a, const lane &l, uint64_t stride, uint32_t slot) {
    return stride ? l.index * stride + slot : plane_at(a, l, slot);
}
DEVICE float x_of(const cu_fuse_args &a, const lane &l, uint32_t slot) {
    return a.x[value_at(a, l, a.x_stride, slot)];
}
DEVICE void put(const cu_fuse_args &a, const lane &l, uint32_t slot, float value) {
    a.out[value_at(a, l, a.out_stride, slot)] = value;
}

KERNEL(fuse_slots, CU_FUSE_THREADS, cu_fuse_args) {
    if (!is_lane(a, owner_of(a))) return;
    const lane l = lane_of(a, owner_of(a));
    FOR_EACH_SHARED(slot, l.n) {
        const float x = x_of(a, l, slot), y = a.y ? a.y[value_at(a, l, a.y_stride, slot)] : 1.0f;
        float fused;
        if (a.kind == LIFETIME)
            fused = x / (float)(a.now[l.index / a.batch.n_kv_heads] -
                                a.positions[plane_at(a, l, slot)] + 1);
        else
            fused = a.kind == AXPBY ? a.a * x + a.b * y : (x + a.a) * y;
        put(a, l, slot, fused);
    }
}

/* max(x, a·mean). The mean's sum: each thread's slots in parts, then over the block. */
KERNEL(fuse_mean, CU_FUSE_THREADS, cu_fuse_args) {
    typedef float sums[FUSE_WARPS];
    SHARED(sums, scratch);
    if (!is_lane(a, owner_of(a))) return;
    const lane l = lane_of(a, owner_of(a));
    float sum = 0.0f, part = 0.0f;
    uint32_t terms = 0;
    for (uint32_t slot = threadIdx.x; slot < l.n; slot += CU_FUSE_THREADS) {
        part += x_of(a, l, slot);
        if (++terms % CU_FUSE_PART) continue;
        sum += part;
        part = 0.0f;
    }
    const float least = a.a * (block_sum(sum + part, scratch, FUSE_WARPS) / (float)l.n);
    for (uint32_t slot = threadIdx.x; slot < l.n; slot += CU_FUSE_THREADS)
        put(a, l, slot, larger(x_of(a, l, slot), least));
}

/* The mean of the heads, or each head's share of their sum. */
KERNEL(fuse_heads, CU_FUSE_THREADS, cu_fuse_args) {
    const uint32_t heads = a.batch.n_kv_heads, first = owner_of(a) * heads;
    if (owner_of(a) >= a.batch.n_rows) return;
    const uint32_t n = lane_of(a, first).n;
    FOR_EACH_SHARED(slot, n) {
        float sum = 0.0f;
        for (uint32_t h = 0; h < heads; h++)
            sum += x_of(a, lane_of(a, first + h), slot);
        for (uint32_t h = 0; h < heads; h++) {
            const lane l = lane_of(a, first + h);
            const float share = sum == 0.0f ? 0.0f : x_of(a, l, slot) / sum;
            put(a, l, slot, a.kind == SHARE_OF_HEADS ? share : sum / (float)heads);
        }
    }
}

KERNEL(fuse_chunks, CU_FUSE_THREADS, cu_fuse_args) {
    if (!is_lane(a, owner_of(a))) return;
    const lane l = lane_of(a, owner_of(a));
    const uint32_t chunks = l.n / a.chunk + (l.n % a.chunk != 0);
    FOR_EACH_SHARED(c, chunks) {
        const uint32_t begin = c * a.chunk, size = l.n - begin < a.chunk ? l.n - begin : a.chunk;
        float sum = 0.0f, part = 0.0f;
        for (uint32_t i = 0; i < size; i++) {
            part += x_of(a, l, begin + i);
            if ((i + 1) % CU_FUSE_PART) continue;
            sum += part;
            part = 0.0f;
        }
        a.out[l.index * a.out_stride + c] = sum + part;
    }
}

/* x [lane][list][x_stride] */
KERNEL(fuse_lists, CU_FUSE_THREADS, cu_fuse_args) {
    if (!is_lane(a, owner_of(a))) return;
    const lane l = lane_of(a, owner_of(a));
    const float *x = a.x + (uint64_t)l.index * a.n_lists * a.x_stride;
    FOR_EACH_SHARED(slot, l.n) {
        float most = -INFINITY, sum = 0.0f, part = 0.0f;
        for (uint32_t i = 0; i < a.n_lists; i++) {
            const float value = x[i * a.x_stride + slot];
            most = larger(most, value);
            part += value;
            if ((i + 1) % CU_FUSE_PART) continue;
            sum += part;
            part = 0.0f;
        }
        put(a, l, slot, a.kind == LISTS_MAX ? most : sum + part);
    }
}
