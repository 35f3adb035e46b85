/* SPDX-License-Identifier: Apache-2.0 */
/* norm on a CPU.
 * contract: host/ops/; meaning: host/reference/norm.c.
 * Work split: a work-item owns a row, or several if there are fewer of them. */
#include "cpu.clh"

__kernel ONE_ITEM void norm_rows(MATRIX_PARAMS(x), MATRIX_PARAMS(y), MATRIX_PARAMS(to),
                                 REF_PARAMS(const float, w), uint n_rows, uint dim, float eps,
                                 uint kind, uint accumulate) {
    for (uint row = (uint)get_group_id(0); row < n_rows; row += (uint)get_num_groups(0))
        norm_row(x + x_offset + row * x_stride, w + w_offset, dim, eps, kind,
                 accumulate ? to + to_offset + row * to_stride : 0, y + y_offset + row * y_stride);
}
