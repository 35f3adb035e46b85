/* SPDX-License-Identifier: Apache-2.0 */
/* convert: rows of one dtype to rows of another.
 * contract: host/ops/; meaning: host/reference/convert.c.
 * Work split: a thread owns one element of one row. */
#include "common.cuh"

template <typename S, typename T> DEVICE void convert_rows(const cu_convert_args &a) {
    const S *x = (const S *)a.x;
    T *y = (T *)a.y;
    FOR_EACH_ITEM(i, (uint64_t)a.n_rows * a.width) {
        const uint64_t row = i / a.width, c = i % a.width;
        y[row * a.y_stride + c] = narrow<T>(widen(x[row * a.x_stride + c]));
    }
}

#define CONVERT_OF(source, from, type, to)                                                         \
    KERNEL(convert_##from##_##to, 256, cu_convert_args) {                                          \
        convert_rows<source, type>(a);                                                             \
    }
#define CONVERT_TO(type, tag)                                                                      \
    CONVERT_OF(float, f32, type, tag)                                                              \
    CONVERT_OF(f16, f16, type, tag)                                                                \
    CONVERT_OF(bf16, bf16, type, tag)
FOR_EACH_TYPE(CONVERT_TO)
