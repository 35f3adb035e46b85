/* SPDX-License-Identifier: Apache-2.0 */
/* sink: one more logit in a softmax, which has no value: out·1/(1 + exp(sink - lse)), lse with it.
 * contract: host/ops/; meaning: host/reference/sink.c.
 * Work split: a work-group owns one (row, head), a work-item every WG_SIZE-th channel. */
#include "common.clh"
#include "logit.clh"

__kernel GROUP_OF(WG_SIZE) void sink_states(uint n_states, uint n_heads, uint dim,
                                          MATRIX_PARAMS(out), REF_PARAMS(float, lse),
                                          REF_PARAMS(const float, sinks)) {
    const uint state = (uint)get_group_id(0), wi = (uint)get_local_id(0);
    if (state >= n_states) return;
    const float before = lse[lse_offset + state], sink = sinks[sinks_offset + state % n_heads];
    if (sink == -INFINITY) return;
    const float share = 1.0f / (1.0f + exp(sink - before));
    out += out_offset + state / n_heads * out_stride + (ulong)(state % n_heads) * dim;
    for (uint d = wi; d < dim; d += WG_SIZE)
        out[d] *= share;
    barrier(CLK_GLOBAL_MEM_FENCE); /* all have read lse */
    if (wi == 0) lse[lse_offset + state] = with_sink(before, sink);
}
