/* SPDX-License-Identifier: Apache-2.0 */
/* linear_chain on CUDA: a launch for each stage. */
#include "host/chain.h"
#include "host/cuda/cuda.h"

tamis_status tms_cu_linear_chain(tms_device *dev, const tms_linear_chain *p) {
    static const tms_chain_ops ops = {tms_cu_linear, tms_cu_linear_parts};
    return tms_chain_run(dev, &ops, p);
}
