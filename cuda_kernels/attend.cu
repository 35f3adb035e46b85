/* SPDX-License-Identifier: Apache-2.0 */
/* attend: out = Σ softmax(scale·q·k)·v over the slots that a row sees; lse = log Σ exp. Plain form:
 * any type, no matrix units, rows of a tile one by one.
 * contract: host/ops/; meaning: host/reference/attend.c; the numbered steps are in attend.cuh.
 * Work split: a block owns a chunk of one row's entries for up to G query heads of a KV head, a
 * warp a split of it. Grid: (chunks, KV heads x tiles of G heads, rows). */
#include "attend.cuh"

template <typename T, int D, int G>
DEVICE void decode(const cu_attend_args &a, attend_block<D, G> &b) {
    uint32_t row;
    if (!attend_row_of(a, row)) return;
    const uint32_t tiles = (a.batch.group + G - 1) / G, first = blockIdx.y % tiles * G;
    const attend_lane l = attend_lane_of(a, row, blockIdx.y / tiles);
    const attend_share share = attend_share_of(a, l);
    if (blockIdx.x >= share.chunks) return;
    const uint32_t heads = min(a.batch.group - first, (uint32_t)G);
    typedef attend_plain_shape<D, G> shape;
    attend_sums<D, G> s;
    attend_plain<T, D, G>(a, l, first, heads, share.begin, share.end, s);

    attend_state<D, G> &state = b.of[warp_id()];
#pragma unroll
    for (int g = 0; g < G; g++) {
        if (lane_id() == 0) {
            state.top[g] = s.top[g];
            state.total[g] = s.total[g];
        }
#pragma unroll
        for (uint32_t i = 0; i < shape::EACH && lane_id() < shape::LANES; i++)
            if (shape::channel(i / 8) < dim_of<D>(a.kv))
                state.sum[g][shape::channel(i / 8) + i % 8] = s.sum[g][i];
    }
    attend_finish(a, l, share, first, heads, b);
}

#define ATTEND_DECODE(type, tag, dim, tile)                                                        \
    KERNEL_WIDE(attend_decode_##tag##_d##dim##_g##tile, CU_ATTEND_WARPS *WARP, cu_attend_args) {   \
        typedef attend_block<dim, tile> block;                                                     \
        SHARED(block, b);                                                                          \
        decode<type, dim, tile>(a, b);                                                             \
    }
#define ATTEND_DECODES(type, tag, dim)                                                             \
    ATTEND_DECODE(type, tag, dim, 1)                                                               \
    ATTEND_DECODE(type, tag, dim, 4) ATTEND_DECODE(type, tag, dim, 8)
#define ATTEND_DECODES_OWN(type, tag) FOR_EACH_OWN_DIM_OF(ATTEND_DECODES, type, tag)
FOR_EACH_KV_TYPE(ATTEND_DECODES_OWN)
#ifndef ONLY_DIM_128
#define ATTEND_DECODES_ANY(type, tag) /* of CU_ATTEND_LONG heads at most */                        \
    ATTEND_DECODE(type, tag, 512, 1) ATTEND_DECODE(type, tag, 512, 4)
FOR_EACH_KV_TYPE(ATTEND_DECODES_ANY)
#endif
