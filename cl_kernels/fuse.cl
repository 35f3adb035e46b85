/* SPDX-License-Identifier: Apache-2.0 */
/* fuse: elementwise on the values of lanes, slots below n = max(visible - tail, 0).
 * contract: host/ops/; meaning: host/reference/fuse.c.
 * Work split: work-groups along x share the slots of a lane; y is the lane, an (item, KV head). In
 * fuse_heads y is the item, and a work-item computes all heads at its slot; in fuse_mean one
 * work-group owns a lane; in fuse_chunks a work-item owns a chunk, in fuse_wide_chunks a
 * work-group. */
#include "common.clh"

/* tms_fuse_kind */
#define AXPBY          0
#define MULTIPLY       1
#define LIFETIME       3
#define SHARE_OF_HEADS 5
#define LISTS_MAX      8

#define PART 32 /* terms that are summed before their sum goes to the others' */

/* Values in a plane have a stride of 0. */
#define FUSE_PARAMS                                                                                \
    BATCH_PARAMS, uint kind, REF_PARAMS(const float, x), ulong x_stride, REF_PARAMS(float, out),   \
        ulong out_stride, uint tail, uint page_size

#define FOR_EACH_SHARED(slot, n)                                                                   \
    for (uint slot = (uint)get_group_id(0) * WG_SIZE + (uint)get_local_id(0); slot < (n);          \
         slot += (uint)get_num_groups(0) * WG_SIZE)

/* The page ids of a lane; they are valid only if x, y or out is a plane. */
#define LANE_IDS(lane)                                                                             \
    (table + table_offset + row_seq[row_seq_offset + (lane) / n_kv_heads] * seq_stride +           \
     (lane) % n_kv_heads * head_stride)
#define LANE_SLOTS(lane) (uint)max(visible[visible_offset + (lane)] - (int)tail, 0)

static inline ulong plane_at(__global const int *ids, uint page_size, uint slot) {
    return (ulong)ids[slot / page_size] * page_size + slot % page_size;
}
static inline ulong value_at(ulong lane, ulong stride, __global const int *ids, uint page_size,
                             uint slot) {
    return stride ? lane * stride + slot : plane_at(ids, page_size, slot);
}

/* y may be NULL: 1; positions and now only of LIFETIME. */
__kernel GROUP_OF(WG_SIZE) void fuse_slots(FUSE_PARAMS, REF_PARAMS(const float, y), ulong y_stride,
                                           float a, float b, REF_PARAMS(const int, positions),
                                           REF_PARAMS(const int, now)) {
    const uint lane = (uint)get_group_id(1);
    if (lane >= n_rows * n_kv_heads) return;
    __global const int *ids = LANE_IDS(lane);
    const uint n = LANE_SLOTS(lane);
    FOR_EACH_SHARED(slot, n) {
        const float value = x[x_offset + value_at(lane, x_stride, ids, page_size, slot)];
        const float other =
            y ? y[y_offset + value_at(lane, y_stride, ids, page_size, slot)] : 1.0f;
        float fused;
        if (kind == LIFETIME) {
            const int then = positions[positions_offset + plane_at(ids, page_size, slot)];
            fused = value / (float)(now[now_offset + lane / n_kv_heads] - then + 1);
        } else {
            fused = kind == AXPBY ? a * value + b * other : (value + a) * other;
        }
        out[out_offset + value_at(lane, out_stride, ids, page_size, slot)] = fused;
    }
}

/* max(x, a·mean). The mean's sum: each work-item's slots in parts, then over the group. */
__kernel GROUP_OF(WG_SIZE) void fuse_mean(FUSE_PARAMS, float a) {
    __local float scratch[WG_SIZE];
    const uint lane = (uint)get_group_id(1), item = (uint)get_local_id(0);
    if (lane >= n_rows * n_kv_heads) return;
    __global const int *ids = LANE_IDS(lane);
    const uint n = LANE_SLOTS(lane);
    float sum = 0.0f;
    for (uint first = 0; first < n; first += PART * WG_SIZE) {
        float part = 0.0f;
        for (uint i = 0; i < PART; i++) {
            const uint slot = first + i * WG_SIZE + item;
            if (slot < n) part += x[x_offset + value_at(lane, x_stride, ids, page_size, slot)];
        }
        sum += part;
    }
    const float least = a * (group_sum(sum, scratch) / n);
    /* PoCL 3.1 would lose the bound of a loop that begins at the work-item's id here. */
    for (uint first = 0; first < n; first += WG_SIZE) {
        const uint slot = first + item;
        if (slot < n)
            out[out_offset + value_at(lane, out_stride, ids, page_size, slot)] =
                larger(x[x_offset + value_at(lane, x_stride, ids, page_size, slot)], least);
    }
}

/* The mean of the heads, or each head's share of their sum. */
__kernel GROUP_OF(WG_SIZE) void fuse_heads(FUSE_PARAMS) {
    const uint first = (uint)get_group_id(1) * n_kv_heads;
    if (first >= n_rows * n_kv_heads) return;
    const uint n = LANE_SLOTS(first);
    FOR_EACH_SHARED(slot, n) {
        float sum = 0.0f;
        for (uint lane = first; lane < first + n_kv_heads; lane++)
            sum += x[x_offset + value_at(lane, x_stride, LANE_IDS(lane), page_size, slot)];
        for (uint lane = first; lane < first + n_kv_heads; lane++) {
            __global const int *ids = LANE_IDS(lane);
            const float value = x[x_offset + value_at(lane, x_stride, ids, page_size, slot)];
            const float share = sum == 0.0f ? 0.0f : value / sum;
            out[out_offset + value_at(lane, out_stride, ids, page_size, slot)] =
                kind == SHARE_OF_HEADS ? share : sum / n_kv_heads;
        }
    }
}

__kernel GROUP_OF(WG_SIZE) void fuse_chunks(FUSE_PARAMS, uint chunk) {
    const uint lane = (uint)get_group_id(1);
    if (lane >= n_rows * n_kv_heads) return;
    __global const int *ids = LANE_IDS(lane);
    const uint n = LANE_SLOTS(lane), chunks = n / chunk + (n % chunk != 0);
    FOR_EACH_SHARED(c, chunks) {
        const uint end = min(chunk, n - c * chunk) + c * chunk;
        float sum = 0.0f;
        for (uint first = c * chunk; first < end; first += PART) {
            float part = 0.0f;
            for (uint slot = first; slot < min(end, first + PART); slot++)
                part += x[x_offset + value_at(lane, x_stride, ids, page_size, slot)];
            sum += part;
        }
        out[out_offset + lane * out_stride + c] = sum;
    }
}

/* The same for chunks of many slots: each work-item's in parts, then over the group. */
__kernel GROUP_OF(WG_SIZE) void fuse_wide_chunks(FUSE_PARAMS, uint chunk) {
    __local float scratch[WG_SIZE];
    const uint lane = (uint)get_group_id(1), item = (uint)get_local_id(0);
    if (lane >= n_rows * n_kv_heads) return;
    __global const int *ids = LANE_IDS(lane);
    const uint n = LANE_SLOTS(lane), chunks = n / chunk + (n % chunk != 0);
    for (uint c = (uint)get_group_id(0); c < chunks; c += (uint)get_num_groups(0)) {
        const uint end = min(chunk, n - c * chunk) + c * chunk;
        float sum = 0.0f;
        for (uint first = c * chunk; first < end; first += PART * WG_SIZE) {
            float part = 0.0f;
            for (uint i = 0; i < PART; i++) {
                const uint slot = first + i * WG_SIZE + item;
                if (slot < end)
                    part += x[x_offset + value_at(lane, x_stride, ids, page_size, slot)];
            }
            sum += part;
        }
        sum = group_sum(sum, scratch);
        if (item == 0) out[out_offset + lane * out_stride + c] = sum;
    }
}

/* x [lane][list][x_stride] */
__kernel GROUP_OF(WG_SIZE) void fuse_lists(FUSE_PARAMS, uint n_lists) {
    const uint lane = (uint)get_group_id(1);
    if (lane >= n_rows * n_kv_heads) return;
    __global const int *ids = LANE_IDS(lane);
    const uint n = LANE_SLOTS(lane);
    x += x_offset + (ulong)lane * n_lists * x_stride;
    FOR_EACH_SHARED(slot, n) {
        float most = -INFINITY, sum = 0.0f;
        for (uint first = 0; first < n_lists; first += PART) {
            float part = 0.0f;
            for (uint list = first; list < min(n_lists, first + PART); list++) {
                const float value = x[list * x_stride + slot];
                most = larger(most, value);
                part += value;
            }
            sum += part;
        }
        out[out_offset + value_at(lane, out_stride, ids, page_size, slot)] =
            kind == LISTS_MAX ? most : sum;
    }
}
