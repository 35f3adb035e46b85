/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend's table. */
#include "host/cuda/cuda.h"

const tms_backend tms_backend_cuda = {
    .name = "cuda",
    .list = tms_cu_list,
    .open = tms_cu_open,
    .open_on = tms_cu_open_on,
    .close = tms_cu_close,
    .alloc = tms_cu_alloc,
    .free = tms_cu_free,
    .wrap = tms_cu_wrap,
    .native = tms_cu_native,
    .write = tms_cu_write,
    .read = tms_cu_read,
    .copy = tms_cu_copy,
    .fill = tms_cu_fill,
    .host_alloc = tms_cu_host_alloc,
    .host_free = tms_cu_host_free,
    .upload = tms_cu_upload,
    .event_await = tms_cu_event_await,
    .event_record = tms_cu_event_record,
    .event_wait = tms_cu_event_wait,
    .event_elapsed = tms_cu_event_elapsed,
    .event_free = tms_cu_event_free,
    .event_wrap = tms_cu_event_wrap,
    .event_native = tms_cu_event_native,
    .capture_begin = tms_cu_capture_begin,
    .capture_end = tms_cu_capture_end,
    .graph_launch = tms_cu_graph_launch,
    .graph_free = tms_cu_graph_free,
    .flush = tms_cu_flush,
    .wait = tms_cu_wait,
    .read_bandwidth = tms_cu_read_bandwidth,
    .read_pages = tms_cu_read_pages,
    .orders_pages = tms_cu_orders_pages,
    /* clang-format off */
    TMS_REQUIRED_OPS(TMS_ENTER_OP, tms_cu_)
    TMS_OPTIONAL_OPS(TMS_ENTER_OP, tms_cu_)
    .write_rotated = tms_cu_write_rotated,
    .linear_parts = tms_cu_linear_parts,
    .sparse_attend = tms_cu_sparse_attend,
    TMS_SCRATCH_OPS(TMS_ENTER_SCRATCH, tms_cu_)
    .sparse_attend_refusal = tms_cu_sparse_attend_refusal,
    /* clang-format on */
};
