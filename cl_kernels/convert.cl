/* SPDX-License-Identifier: Apache-2.0 */
/* convert: rows of SOURCE to rows of DTYPE.
 * contract: host/ops/; meaning: host/reference/convert.c.
 * Work split: a work-item owns 16 elements of one row, the last one of a row the rest. */
#include "common.clh"
#include "source.clh"

/* One element, exactly. */
static inline float take1(__global const source *p) {
#if SOURCE == 0
    return *p;
#elif SOURCE == 1
    return vload_half(0, (__global const half *)p);
#else
    return as_float((uint)*p << 16);
#endif
}

/* One element, to nearest even; NaN stays NaN. */
static inline void store1(float x, __global element *p) {
#if DTYPE == 0
    *p = x;
#elif DTYPE == 1
    vstore_half_rte(x, 0, (__global half *)p);
#else
    const uint u = as_uint(x);
    *p = (ushort)((isnan(x) ? u | 0x400000u : u + 0x7fffu + (u >> 16 & 1u)) >> 16);
#endif
}

__kernel GROUP_OF(WG_SIZE) void convert_rows(REF_PARAMS(const source, x), ulong x_stride,
                                             REF_PARAMS(element, y), ulong y_stride, uint n_rows,
                                             uint width) {
    const uint chunks = (width + 15) / 16;
    FOR_EACH_ITEM(i, n_rows * chunks) {
        const uint row = i / chunks, first = i % chunks * 16;
        __global const source *from = x + x_offset + row * x_stride + first;
        __global element *to = y + y_offset + row * y_stride + first;
        if (first + 16 <= width) {
            store16(take16(from), to);
        } else {
            for (uint c = 0; c < width - first; c++)
                store1(take1(from + c), to + c);
        }
    }
}
