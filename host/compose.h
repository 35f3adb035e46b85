/* SPDX-License-Identifier: Apache-2.0 */
/* Ops that are composed of other ops, for backends that have no launch of their own for them. */
#ifndef TMS_COMPOSE_H
#define TMS_COMPOSE_H

#include "host/backend.h"

/* tms_compose_<op>(dev, p): as the op, by the ops of dev->backend. What lies between them is in memory
 * of the device, which is taken when a launch without rows builds the shape, or else now. */
TMS_COMPOSED_OPS(TMS_DECLARE_OP, tms_compose_)

/* Frees that memory. */
void tms_compose_end(tms_device *dev);

#endif
