/* SPDX-License-Identifier: Apache-2.0 */
/* linear_chain: its stages one after another. Contract: host/ops/, linear_chain. */
#include "host/chain.h"
#include "host/reference/reference.h"

tamis_status tms_reference_linear_chain(tms_device *dev, const tms_linear_chain *p) {
    static const tms_chain_ops ops = {tms_reference_linear, tms_reference_linear_parts};
    return tms_chain_run(dev, &ops, p);
}
