/* SPDX-License-Identifier: Apache-2.0 */
/* linear for many rows by a vendor's library, which multiplies f32 matrices. Other weights
 * are widened for it piece by piece. */
#ifndef TMS_PRODUCT_H
#define TMS_PRODUCT_H

#include "host/backend.h"

/* The functions that a backend provides for it; each enqueues. */
typedef struct tms_product {
    /* Converts n_out rows, of a matrix in strips whole strips or its last rows, to f32. */
    tamis_status (*widen)(tms_device *dev, tms_weight_matrix from, uint64_t n_out, uint64_t n_in,
                          tms_ref to);
    /* y = bias, or y += bias if p accumulates. Called only with a bias. */
    tamis_status (*start)(tms_device *dev, const tms_linear *p);
    /* y[:, first .. first + n) = keep·y + x·wᵀ, with w f32 [n][n_in]. */
    tamis_status (*multiply)(tms_device *dev, const tms_linear *p, tms_ref w, uint32_t first,
                             uint32_t n, float keep);
} tms_product;

/* Computes y of p, which has rows; its operands were checked to lie inside their memory. */
tamis_status tms_product_run(tms_device *dev, const tms_product *by, tms_workspace *work,
                             const tms_linear *p);
/* Prepares launches of p's shape: allocates memory, and computes a product of zeros, for which the
 * library loads or compiles its kernels. */
tamis_status tms_product_prepare(tms_device *dev, const tms_product *by, tms_workspace *work,
                                 const tms_linear *p);

#endif
