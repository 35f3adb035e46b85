/* SPDX-License-Identifier: Apache-2.0 */
/* Types of weights and how their matrices lie: one table, which all that depends on them asks. */
#ifndef TMS_BASE_WEIGHTS_H
#define TMS_BASE_WEIGHTS_H

#include <stdbool.h>
#include <tamis/types.h>

/* Whether there are matrices of a known type in this layout. */
static inline bool tms_weight_layout_fits(uint32_t layout, tamis_weight_type type) {
    return layout == TAMIS_WEIGHT_ROWS ||
           (layout == TAMIS_WEIGHT_STRIPS && tamis_weight_block(type) > 1);
}

/* What follows takes a type with blocks and an n_in of whole blocks. `strips` and `rows` are at any
 * address. */

/* Rows [n_out][n_in] to strips, which end with rows of zeros, and back. */
void tms_strips_pack(tamis_weight_type type, uint64_t n_out, uint64_t n_in, const void *rows,
                     void *strips);
void tms_strips_unpack(tamis_weight_type type, uint64_t n_out, uint64_t n_in, const void *strips,
                       void *rows);
/* Block `block` of row `row`, as it is in rows. */
void tms_strips_block(tamis_weight_type type, uint64_t n_in, const void *strips, uint64_t row,
                      uint64_t block, uint8_t *out);

#endif
