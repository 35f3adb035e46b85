/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices of weights in the layout that a device reads fastest. */
#include "host/base/weights.h"
#include "lib/core/core.h"

#include <inttypes.h>

tamis_weight_layout tamis_context_weight_layout(const tamis_context *context,
                                                tamis_weight_type type) {
    return context && tamis_weight_block(type) ? tms_device_weight_layout(context->dev, type)
                                               : TAMIS_WEIGHT_ROWS;
}

static tamis_status check(tamis_weight_type type, uint64_t n_out, uint64_t n_in, const void *rows,
                          const void *strips, tamis_error *error) {
    const uint32_t block = tamis_weight_block(type);
    TMS_REQUIRE(rows && strips, TAMIS_E_ARGUMENT, "%s: NULL", rows ? "strips" : "rows");
    TMS_REQUIRE(block, TAMIS_E_ARGUMENT, "weight type %d is unknown", (int)type);
    TMS_REQUIRE(block > 1, TAMIS_E_ARGUMENT, "%s weights have no blocks, and no strips",
                tamis_weight_name(type));
    TMS_REQUIRE(n_out && n_in, TAMIS_E_ARGUMENT, "%" PRIu64 " rows of %" PRIu64 " weights", n_out,
                n_in);
    TMS_REQUIRE(n_in % block == 0, TAMIS_E_ARGUMENT,
                "rows of %" PRIu64 " %s weights: not a multiple of its blocks of %" PRIu32, n_in,
                tamis_weight_name(type), block);
    TMS_REQUIRE(tamis_weight_layout_bytes(TAMIS_WEIGHT_STRIPS, type, n_out, n_in) < UINT64_MAX,
                TAMIS_E_ARGUMENT, "%" PRIu64 " rows of %" PRIu64 " weights exceed 64 bits", n_out,
                n_in);
    return TAMIS_OK;
}

tamis_status tamis_weight_pack(tamis_weight_type type, uint64_t n_out, uint64_t n_in,
                               const void *rows, void *strips, tamis_error *error) {
    TMS_TRY(check(type, n_out, n_in, rows, strips, error));
    tms_strips_pack(type, n_out, n_in, rows, strips);
    return TAMIS_OK;
}

tamis_status tamis_weight_unpack(tamis_weight_type type, uint64_t n_out, uint64_t n_in,
                                 const void *strips, void *rows, tamis_error *error) {
    TMS_TRY(check(type, n_out, n_in, rows, strips, error));
    tms_strips_unpack(type, n_out, n_in, strips, rows);
    return TAMIS_OK;
}
