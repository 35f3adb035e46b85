/* SPDX-License-Identifier: Apache-2.0 */
/* The read bandwidth of a context's device, measured on memory taken for the call. */
#include "lib/core/core.h"

/* Below this the time of a launch hides that of reading. */
#define MIN_BYTES (1u << 20)

tamis_status tamis_context_read_bandwidth(tamis_context *context, uint64_t bytes, double *gb_per_s,
                                          tamis_error *error) {
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context: NULL");
    TMS_REQUIRE(gb_per_s, TAMIS_E_ARGUMENT, "gb_per_s: NULL");
    TMS_REQUIRE(bytes >= MIN_BYTES && bytes % 64 == 0, TAMIS_E_ARGUMENT,
                "bytes is %llu: not a multiple of 64 from %u on", (unsigned long long)bytes,
                MIN_BYTES);
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
