/* SPDX-License-Identifier: Apache-2.0 */
/* The OpenCL backend's table. */
#include "host/opencl/opencl.h"

const tms_backend tms_backend_opencl = {
    .name = "opencl",
    .list = tms_cl_list,
    .open = tms_cl_open,
    .open_on = tms_cl_open_on,
    .close = tms_cl_close,
    .alloc = tms_cl_alloc,
    .free = tms_cl_free,
    .wrap = tms_cl_wrap,
    .wrap_host = tms_cl_wrap_host,
    .native = tms_cl_native,
    .data = tms_cl_data,
    .write = tms_cl_write,
    .read = tms_cl_read,
    .copy = tms_cl_copy,
    .fill = tms_cl_fill,
    .host_alloc = tms_cl_host_alloc,
    .host_free = tms_cl_host_free,
    .upload = tms_cl_upload,
    .event_await = tms_cl_event_await,
    .event_record = tms_cl_event_record,
    .event_wait = tms_cl_event_wait,
    .event_elapsed = tms_cl_event_elapsed,
    .event_free = tms_cl_event_free,
    .event_wrap = tms_cl_event_wrap,
    .event_native = tms_cl_event_native,
    .flush = tms_cl_flush,
    .wait = tms_cl_wait,
    .read_bandwidth = tms_cl_read_bandwidth,
    .read_pages = tms_cl_read_pages,
    .orders_pages = tms_cl_orders_pages,
    .weight_layout = tms_cl_weight_layout,
    /* clang-format off */
    TMS_OPS(TMS_ENTER_OP, tms_cl_)
    TMS_SCRATCH_OPS(TMS_ENTER_SCRATCH, tms_cl_)
    TMS_FUSED_OPS(TMS_ENTER_REFUSAL, tms_cl_)
    /* clang-format on */
};
