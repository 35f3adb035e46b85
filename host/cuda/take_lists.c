/* SPDX-License-Identifier: Apache-2.0 */
/* take_lists on CUDA: shape and launch of cuda_kernels/take_lists.cu. */
#include "host/cuda/cuda.h"

tamis_status tms_cu_take_lists(tms_device *dev, const tms_take_lists *p) {
    tamis_status status = tms_cu_base_only(dev, "take_lists");
    if (status != TAMIS_OK) return status;
    const uint64_t owners = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
    tms_cu_launch l = tms_cu_begin(dev, "take_lists", "take_lists");
    const cu_take_lists_args args = {
        .batch = tms_cu_batch(&l, &p->batch),
        .raw = tms_cu_lists(&l, &p->raw, owners),
        .lists = tms_cu_lists(&l, &p->lists, owners),
        .ids = tms_cu_optional(&l, "ids", p->ids, sizeof(int32_t), owners * p->lists.capacity),
        .skipped = tms_cu_ref(&l, "skipped", p->skipped, sizeof(uint32_t), owners ? 1 : 0),
        .granularity = p->granularity,
        .page_size = p->page_size,
        .page_slots = p->page_slots,
    };
    return tms_cu_run(&l, tms_cu_items(owners, CU_TAKE_LISTS_THREADS), &args);
}
