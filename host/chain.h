/* SPDX-License-Identifier: Apache-2.0 */
/* linear_chain as one op after another, for backends that have no launch for all of them. */
#ifndef TMS_CHAIN_H
#define TMS_CHAIN_H

#include "host/backend.h"

/* The ops of a backend that its stages are. */
typedef struct tms_chain_ops {
    tamis_status (*linear)(tms_device *dev, const tms_linear *p);
    tamis_status (*linear_parts)(tms_device *dev, const tms_linear_parts *p);
} tms_chain_ops;

tamis_status tms_chain_run(tms_device *dev, const tms_chain_ops *ops, const tms_linear_chain *p);

#endif
