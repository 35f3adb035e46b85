/* SPDX-License-Identifier: Apache-2.0 */
/* linear for many rows by a vendor's library, which multiplies f32 matrices. Weights of 16 bits are
 * widened for it piece by piece. */
#ifndef TMS_PRODUCT_H
#define TMS_PRODUCT_H

#include "host/backend.h"

/* What a backend has for it; each enqueues. */
typedef struct tms_product {
    /* `n` elements of `dtype` as f32. */
    tamis_status (*widen)(tms_device *dev, tms_ref from, tamis_dtype dtype, uint64_t n, tms_ref to);
    /* y begins as the bias, and what is there if p accumulates. Only with a bias. */
    tamis_status (*start)(tms_device *dev, const tms_linear *p);
    /* y[:, first .. first + n) = keep·y + x·wᵀ, with w f32 [n][n_in]. */
    tamis_status (*multiply)(tms_device *dev, const tms_linear *p, tms_ref w, uint32_t first,
                             uint32_t n, float keep);
} tms_product;

/* Of a device: grown when a plan is built, kept until the device is closed. */
typedef struct tms_workspace {
    tms_mem *mem;
    uint64_t bytes;
} tms_workspace;

/* y by p, which has rows and whose operands lie inside their memory. */
tamis_status tms_product_run(tms_device *dev, const tms_product *by, tms_workspace *work,
                             const tms_linear *p);
/* What launches of p's shape will need: memory, and a product of zeros, by which the library loads or
 * compiles its kernels. */
tamis_status tms_product_prepare(tms_device *dev, const tms_product *by, tms_workspace *work,
                                 const tms_linear *p);

#endif
