/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the cores of a CPU device run at the same time, so that kernels may have them wait for
 * each other. */
#ifdef __linux__
#define _GNU_SOURCE /* sched_getaffinity */
#include <sched.h>
#endif
#include "host/opencl/opencl.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Processors that the process may be put on. */
static uint32_t processors(void) {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return (uint32_t)CPU_COUNT(&set);
#endif
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

/* Processors' worth of time that a container's control group (version 2) gives; 0: no limit. */
static uint32_t quota(void) {
    unsigned long long time = 0, period = 0;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "r");
    const bool limited = file && fscanf(file, "%llu %llu", &time, &period) == 2 && period;
    if (file) fclose(file);
    return limited ? (uint32_t)tms_divide_up(time, period) : 0;
}

tamis_status tms_cl_choose_waiting(tms_cl_device *cl) {
    const char *value = tms_env("TAMIS_OPENCL_WAIT");
    const uint32_t cores = cl->base.info.compute_units, here = processors(), most = quota();
    const uint32_t allowed = most && most < here ? most : here;
    if (value && strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
        return tms_device_fail(&cl->base, TAMIS_E_ARGUMENT,
                               "TAMIS_OPENCL_WAIT is \"%s\": must be 0 or 1", value);
    cl->waits = cl->cpu && (value ? *value == '1' : cores <= allowed);
    if (cl->cpu && !cl->waits)
        tms_log_line(&cl->base.log, TAMIS_LOG_DEBUG,
                     "linear_chain: a launch for each stage: %u cores, of which %u run at a time%s",
                     cores, allowed, value ? " (TAMIS_OPENCL_WAIT=0)" : "");
    return TAMIS_OK;
}
