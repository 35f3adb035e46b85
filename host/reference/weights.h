/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of weights of every type as f32. */
#ifndef TMS_REFERENCE_WEIGHTS_H
#define TMS_REFERENCE_WEIGHTS_H

#include "host/ops/types.h"

/* Widens the `n` elements of row `row` of the matrix m, whose bytes are at `w`. */
void tms_load_weights(const tms_weight_matrix *m, const void *w, uint64_t row, uint32_t n,
                      float *out);

#endif
