/* SPDX-License-Identifier: Apache-2.0 */
/* linear_chain on OpenCL. CPU form: one launch for all stages (linear_stages.c). Else a launch for each
 * stage, also on a CPU whose cores do not all run at a time: there a core would wait for one that is not
 * running. */
#include "host/compose.h"
#include "host/opencl/linear.h"

tamis_status tms_cl_linear_chain(tms_device *dev, const tms_linear_chain *p) {
    tms_cl_kinds kinds;
    uint32_t parts = 0;
    bool cpu;
    tamis_status status = tms_cl_choose(dev, "linear_chain", NULL, &cpu);
    if (status != TAMIS_OK) return status;
    for (uint32_t i = 0; i < p->n_stages; i++)
        parts += p->stages[i].n_parts;
    const bool fits = cpu && tms_cl(dev)->waits && parts <= TMS_CHAIN_PARTS &&
                      tms_cl_kinds_of(p->stages, p->n_stages, &kinds);
    return fits ? tms_cl_run_stages(dev, p->stages, p->n_stages, &kinds)
                : tms_compose_linear_chain(dev, p);
}
