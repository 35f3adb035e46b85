/* SPDX-License-Identifier: Apache-2.0 */
/* activate: y = act(gate)·up, or act(gate).
 * contract: host/ops/; meaning: host/reference/activate.c.
 * Work split: a thread owns one channel of one row. */
#include "activate.cuh"

KERNEL(activate_rows, 256, cu_activate_args) {
    FOR_EACH_ITEM(i, (uint64_t)a.n_rows * a.dim) {
        const uint64_t row = i / a.dim, c = i % a.dim;
        const float z = a.gate.at[row * a.gate.stride + c];
        const float up = a.up.at ? a.up.at[row * a.up.stride + c] : 1.0f;
        a.y.at[row * a.y.stride + c] = gated(z, up, a.activation);
    }
}
