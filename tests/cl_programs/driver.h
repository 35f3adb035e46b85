/* SPDX-License-Identifier: Apache-2.0 */
/* An OpenCL driver with one GPU, which runs nothing: it keeps the text, the options and the launches
 * of every program that is built for it. Memory is the host's and holds what was written there. */
#ifndef TEST_CL_PROGRAMS_DRIVER_H
#define TEST_CL_PROGRAMS_DRIVER_H

#include <stddef.h>
#include <stdint.h>

/* What the GPU says of itself. */
typedef struct driver_gpu {
    const char *platform, *vendor, *name, *extensions;
    uint32_t compute_units;
    size_t group; /* work-items of a work-group, at most */
    uint64_t local_bytes;
    size_t least_sub_group; /* of Intel's: 8 or 16 work-items; the most are 32 */
} driver_gpu;

/* Before the first call of OpenCL. */
void driver_begin(const driver_gpu *gpu);

/* Writes each text to `folder`/NAME.cl, and to `folder`/programs a line for each (text, options), in
 * the order in which they were built, with tabs in between:
 *   NAME.cl  options  KERNEL:GROUP[,GROUP...][ KERNEL:...]
 * KERNEL are the kernels that were made, GROUP the sizes of work-groups with which they were launched.
 * Returns 0, or -1 with errno. */
int driver_write(const char *folder);

#endif
