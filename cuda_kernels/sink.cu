/* SPDX-License-Identifier: Apache-2.0 */
/* sink: one more logit in a softmax, which has no value: out·1/(1 + exp(sink - lse)), lse with it.
 * contract: host/ops/; meaning: host/reference/sink.c.
 * Work split: a warp owns one (row, head), a lane every 32nd channel. */
#include "common.cuh"
#include "logit.cuh"

KERNEL(sink_states, CU_SINK_THREADS, cu_sink_args) {
    const uint64_t state = (uint64_t)blockIdx.x * (CU_SINK_THREADS / WARP) + warp_id();
    if (state >= (uint64_t)a.n_rows * a.n_heads) return;
    const uint64_t row = state / a.n_heads, head = state % a.n_heads;
    const float before = shuffle(lane_id() == 0 ? a.lse[state] : 0.0f, 0u), sink = a.sinks[head];
    if (sink == -INFINITY) return;
    const float share = 1.0f / (1.0f + expf(sink - before));
    for (uint32_t d = lane_id(); d < a.dim; d += WARP)
        a.out.at[row * a.out.stride + head * a.dim + d] *= share;
    if (lane_id() == 0) a.lse[state] = with_sink(before, sink);
}
