/* SPDX-License-Identifier: Apache-2.0 */
/* The read bandwidth of a context's device, measured on memory taken for the call. */
#include "lib/core/core.h"

tamis_status tamis_context_read_bandwidth(tamis_context *context, uint64_t bytes, double *gb_per_s,
                                          tamis_error *error) {
    TMS_REQUIRE(context != NULL && gb_per_s != NULL, TAMIS_E_ARGUMENT,
                "context and gb_per_s must not be NULL");
    TMS_REQUIRE(bytes > 0 && bytes % 64 == 0, TAMIS_E_ARGUMENT,
                "bytes is %llu, must be a positive multiple of 64", (unsigned long long)bytes);
    tms_device *dev = context->dev;
    tms_mem *mem = NULL;
    tamis_status status = TAMIS_OK;
    TMS_TRY(dev, dev->backend->alloc(dev, bytes, &mem));
    /* Written once, so that every page of memory is really there when it is read. */
    TMS_TRY(dev, dev->backend->fill(dev, (tms_ref){mem, 0}, 0x3f800000u, bytes));
    TMS_TRY(dev, dev->backend->read_bandwidth(dev, (tms_ref){mem, 0}, bytes, gb_per_s));
fail:
    dev->backend->free(dev, mem);
    return status;
}
