/* SPDX-License-Identifier: Apache-2.0 */
/* linear_chain on OpenCL. CPU form: one launch for all stages (linear_stages.c). Else a launch for each
 * stage, also on a CPU whose cores do not all run at a time: there a core would wait for one that is not
 * running. */
#include "host/compose.h"
#include "host/opencl/linear.h"

tamis_status tms_cl_linear_chain(tms_device *dev, const tms_linear_chain *p) {
    tms_linear_parts stages[2 * TMS_MOST_STAGES];
    tms_cl_kinds kinds;
    uint32_t parts = 0;
    bool cpu;
    tamis_status status = tms_cl_choose(dev, "linear_chain", NULL, &cpu);
    if (status != TAMIS_OK) return status;
    if (!cpu || !tms_cl(dev)->waits) return tms_compose_linear_chain(dev, p);
    const uint32_t n = tms_cl_split_stages(p->stages, p->n_stages, stages);
    for (uint32_t i = 0; i < n; i++)
        parts += stages[i].n_parts;
    const bool fits =
        n <= TMS_MOST_STAGES && parts <= TMS_CHAIN_PARTS && tms_cl_kinds_of(stages, n, &kinds);
    return fits ? tms_cl_run_stages(dev, stages, n, &kinds) : tms_compose_linear_chain(dev, p);
}
