/* SPDX-License-Identifier: Apache-2.0 */
/* select: the protected entries of a lane, and of the rest the best by (score desc, ordinal desc),
 * k in all, ascending.
 * contract: host/ops/; meaning: host/reference/select.c; the numbered steps are in select.cuh.
 * Work split: a block owns one (row, KV head). */
#include "select.cuh"

KERNEL(select_entries, CU_SELECT_THREADS, cu_select_args) {
    SHARED(select_shared, shared);
    DYNAMIC_SHARED(uint32_t, kept);
    if (blockIdx.x >= (uint64_t)a.batch.n_rows * a.batch.n_kv_heads) return;
    select_of(a, blockIdx.x, (uint32_t)a.batch.visible[blockIdx.x], shared, kept);
}
