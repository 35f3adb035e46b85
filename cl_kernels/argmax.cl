/* SPDX-License-Identifier: Apache-2.0 */
/* argmax: index of the largest of each row; ties the lowest index, NaN after everything.
 * contract: host/ops.h; meaning: host/reference/argmax.c.
 * Work split: a group owns a row; its lanes take elements in turn, then the lanes' best meet. */
#include "common.clh"

__kernel GROUP_OF(LANES) void argmax_rows(MATRIX_PARAMS(x), uint n_rows, uint dim,
                                          REF_PARAMS(int, out)) {
    __local uint best_key[LANES], best_index[LANES];
    const uint lane = (uint)get_local_id(0), row = (uint)get_group_id(0);
    if (row >= n_rows) return;
    __global const float *from = x + x_offset + row * x_stride;
    /* 1. best of each lane; a lane without elements has the lowest key and an index beyond all */
    uint key = 0, index = UINT_MAX;
    for (uint i = lane; i < dim; i += LANES) {
        const uint k = ordered_key(from[i]);
        if (index == UINT_MAX || k > key) {
            key = k;
            index = i;
        }
    }
    best_key[lane] = key;
    best_index[lane] = index;
    /* 2. best of all */
    for (uint half_way = LANES / 2; half_way > 0; half_way /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < half_way) {
            const uint other = lane + half_way;
            if (best_key[other] > best_key[lane] ||
                (best_key[other] == best_key[lane] && best_index[other] < best_index[lane])) {
                best_key[lane] = best_key[other];
                best_index[lane] = best_index[other];
            }
        }
    }
    if (lane == 0) out[out_offset + row] = (int)best_index[0];
}
