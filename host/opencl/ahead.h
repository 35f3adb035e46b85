/* SPDX-License-Identifier: Apache-2.0 */
/* Launches without rows that are put off, so that their kernels are built together (ahead.c). */
#ifndef TMS_CL_AHEAD_H
#define TMS_CL_AHEAD_H

#include "host/opencl/opencl.h"

/* A launch that is put off, of a kernel that is not built yet; NULL with the reason in the device. */
tms_cl_job *tms_cl_job_begin(tms_device *dev, const char *file, const char *kernel,
                             const char *options);
/* Its next argument, of 8 bytes at most. */
tamis_status tms_cl_job_arg(tms_device *dev, tms_cl_job *job, size_t bytes, const void *value);
/* One group of `size`, and then so many, unless that is 0. It is the device's from now on; where one
 * like it waits already, it vanishes. */
void tms_cl_job_put(tms_device *dev, tms_cl_job *job, uint32_t size, uint64_t wide);
/* One that was not put, launched here and now with these groups, and freed. */
tamis_status tms_cl_job_run(tms_device *dev, tms_cl_job *job, uint32_t size, uint64_t x,
                            uint64_t y);
void tms_cl_job_drop(tms_cl_job *job);

/* Builds and launches what was put off, and tells the program or the log how far it is. */
tamis_status tms_cl_build_all(tms_device *dev);
/* Drops what was put off. */
void tms_cl_jobs_free(tms_cl_device *cl);

#endif
