/* SPDX-License-Identifier: Apache-2.0 */
/* embed: y[r] = scale · row tokens[r] of w, widened to f32.
 * contract: host/ops/; meaning: host/reference/embed.c.
 * Work split: a thread owns one channel of one row. */
#include "weights.cuh"

template <typename T> DEVICE void embed_rows(const cu_embed_args &a) {
    FOR_EACH_ITEM(i, (uint64_t)a.n_rows * a.dim) {
        const uint64_t row = i / a.dim, c = i % a.dim;
        const auto *from = weights<T>::row(a.w, (uint64_t)a.tokens[row], a.dim);
        a.y.at[row * a.y.stride + c] = weights<T>::one(from, c) * a.scale;
    }
}

#define EMBED(type, tag)                                                                           \
    KERNEL(embed_rows_##tag, 256, cu_embed_args) {                                                 \
        embed_rows<type>(a);                                                                       \
    }
FOR_EACH_WEIGHT(EMBED)
