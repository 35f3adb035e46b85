/* SPDX-License-Identifier: Apache-2.0 */
/* norm on a CPU: y = x / sqrt(mean(x²) + eps) · w.
 * contract: host/ops/; meaning: host/reference/norm.c.
 * Work split: a work-item owns a row, or several if there are fewer of them. */
#include "cpu.clh"

__kernel ONE_ITEM void norm_rows(MATRIX_PARAMS(x), MATRIX_PARAMS(y), REF_PARAMS(const float, w),
                                 uint n_rows, uint dim, float eps) {
    w += w_offset;
    for (uint row = (uint)get_group_id(0); row < n_rows; row += (uint)get_num_groups(0)) {
        __global const float *from = x + x_offset + row * x_stride;
        __global float *to = y + y_offset + row * y_stride;
        const float scale = norm_scale(from, dim, eps);
        uint i = 0;
        for (; i + 16 <= dim; i += 16)
            store_f32(load_f32(from + i) * scale * load_f32(w + i), to + i);
        for (; i < dim; i++)
            to[i] = from[i] * scale * w[i];
    }
}
