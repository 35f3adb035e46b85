/* SPDX-License-Identifier: Apache-2.0 */
/* argmax: index of the largest of each row; ties the lowest index, NaN after everything.
 * contract: host/ops/; meaning: host/reference/argmax.c.
 * Work split: a work-group owns a row; its work-items take elements in turn, and their best ones
 * are then compared. */
#include "common.clh"

__kernel GROUP_OF(WG_SIZE) void argmax_rows(MATRIX_PARAMS(x), uint n_rows, uint dim,
                                            REF_PARAMS(int, out)) {
    __local uint best_key[WG_SIZE], best_index[WG_SIZE];
    const uint wi = (uint)get_local_id(0), row = (uint)get_group_id(0);
    if (row >= n_rows) return;
    __global const float *from = x + x_offset + row * x_stride;
    /* 1. best of each work-item; one without elements has the lowest key and an index beyond all */
    uint key = 0, index = UINT_MAX;
    for (uint i = wi; i < dim; i += WG_SIZE) {
        const uint k = ordered_key(from[i]);
        if (index == UINT_MAX || k > key) {
            key = k;
            index = i;
        }
    }
    best_key[wi] = key;
    best_index[wi] = index;
    /* 2. best of all */
    for (uint half_way = WG_SIZE / 2; half_way > 0; half_way /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (wi < half_way) {
            const uint other = wi + half_way;
            if (best_key[other] > best_key[wi] ||
                (best_key[other] == best_key[wi] && best_index[other] < best_index[wi])) {
                best_key[wi] = best_key[other];
                best_index[wi] = best_index[other];
            }
        }
    }
    if (wi == 0) out[out_offset + row] = (int)best_index[0];
}
