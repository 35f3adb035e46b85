/* SPDX-License-Identifier: Apache-2.0 */
/* scatter_rows: y[index[r]] = x[r], rows of f32.
 * contract: host/ops/; meaning: host/reference/scatter.c.
 * Work split: a thread owns one element of one row. */
#include "common.cuh"

KERNEL(scatter_rows, 256, cu_scatter_rows_args) {
    FOR_EACH_ITEM(i, (uint64_t)a.n_rows * a.width) {
        const uint64_t row = i / a.width, c = i % a.width;
        const int32_t target = a.index[row];
        if (target >= 0) a.y.at[target * a.y.stride + c] = a.x.at[row * a.x.stride + c];
    }
}
