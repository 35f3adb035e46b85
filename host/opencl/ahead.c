/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that are built together. A launch without rows is there to build its kernel: it is put off
 * until the next launch with rows or the next wait. So it is known how many there are, and the
 * program can be told how far it is. They are built one after another: PoCL 3.1 holds one lock of
 * the process while it compiles, whatever the context, and threads gain nothing. */
#include "host/opencl/ahead.h"
#include <stdlib.h>
#include <string.h>

#define QUIET_US 5e5 /* what takes less is not worth a line in the log */

#define MOST_BYTES TMS_CL_MOST_NUMBERS /* of an argument */

typedef struct argument {
    size_t bytes;
    uint8_t value[MOST_BYTES];
} argument;

struct tms_cl_job {
    tms_cl_job *next;
    char *file, *kernel, *options;
    argument *args;
    size_t n_args, room;
    size_t grids[2][2], size; /* groups; work-items of a group */
    uint32_t n_grids;
};

/* ---- Putting off ----------------------------------------------------------------------------- */

static void job_free(tms_cl_job *job) {
    if (!job) return;
    free(job->file);
    free(job->kernel);
    free(job->options);
    free(job->args);
    free(job);
}

tms_cl_job *tms_cl_job_begin(tms_device *dev, const char *file, const char *kernel,
                             const char *options) {
    tms_cl_job *job = calloc(1, sizeof *job);
    if (!job) goto failed;
    job->file = strdup(file);
    job->kernel = strdup(kernel);
    job->options = strdup(options);
    if (job->file && job->kernel && job->options) return job;
failed:
    job_free(job);
    (void)tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no host memory for a kernel");
    return NULL;
}

tamis_status tms_cl_job_arg(tms_device *dev, tms_cl_job *job, size_t bytes, const void *value) {
    if (bytes > MOST_BYTES)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED, "%s: an argument of %zu bytes",
                               job->kernel, bytes);
    if (job->n_args == job->room) {
        const size_t room = job->room ? 2 * job->room : 32;
        argument *args = realloc(job->args, room * sizeof *args);
        if (!args) return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no host memory for a kernel");
        job->args = args;
        job->room = room;
    }
    argument *a = &job->args[job->n_args++];
    *a = (argument){.bytes = bytes};
    memcpy(a->value, value, bytes);
    return TAMIS_OK;
}

void tms_cl_job_drop(tms_cl_job *job) {
    job_free(job);
}

static bool same(const tms_cl_job *a, const tms_cl_job *b) {
    return strcmp(a->file, b->file) == 0 && strcmp(a->kernel, b->kernel) == 0 &&
           strcmp(a->options, b->options) == 0 && a->size == b->size &&
           memcmp(a->grids, b->grids, sizeof a->grids) == 0;
}

static void set_grids(tms_cl_job *job, uint32_t size, uint64_t x, uint64_t y, uint64_t wide) {
    job->size = size;
    job->grids[0][0] = x;
    job->grids[0][1] = y;
    job->grids[1][0] = wide;
    job->grids[1][1] = 1;
    job->n_grids = wide ? 2 : 1;
}

void tms_cl_job_put(tms_device *dev, tms_cl_job *job, uint32_t size, uint64_t wide) {
    tms_cl_job **last = &tms_cl(dev)->jobs;
    set_grids(job, size, 1, 1, wide);
    while (*last && !same(*last, job))
        last = &(*last)->next;
    if (*last)
        job_free(job);
    else
        *last = job;
}

/* ---- Building -------------------------------------------------------------------------------- */

static tamis_status launch(tms_device *dev, const tms_cl_job *job) {
    cl_kernel kernel;
    tamis_status status = tms_cl_kernel_get(dev, job->file, job->kernel, job->options, &kernel);
    for (cl_uint i = 0; i < job->n_args && status == TAMIS_OK; i++)
        status = tms_cl_check(
            dev, clSetKernelArg(kernel, i, job->args[i].bytes, job->args[i].value), job->kernel);
    const size_t local[2] = {job->size, 1};
    for (uint32_t i = 0; i < job->n_grids && status == TAMIS_OK; i++) {
        const size_t global[2] = {job->grids[i][0] * job->size, job->grids[i][1]};
        status = tms_cl_check(dev,
                              clEnqueueNDRangeKernel(tms_cl(dev)->queue, kernel, 2, NULL, global,
                                                     local, 0, NULL, NULL),
                              job->kernel);
    }
    return status;
}

tamis_status tms_cl_job_run(tms_device *dev, tms_cl_job *job, uint32_t size, uint64_t x,
                            uint64_t y) {
    set_grids(job, size, x, y, 0);
    const tamis_status status = launch(dev, job);
    job_free(job);
    return status;
}

/* What is being told of a series of kernels. */
typedef struct telling {
    double begin;
    bool told; /* the log */
    tamis_build_progress progress;
} telling;

/* To the program's callback, else to the log. */
static void tell(const tms_device *dev, telling *t) {
    const double us = tms_now_us() - t->begin;
    const bool ends = t->progress.done == t->progress.all;
    t->progress.seconds = 1e-6 * us;
    if (dev->log.build) dev->log.build(dev->log.build_user, &t->progress);
    if (us < QUIET_US || (t->told && !ends)) return;
    const tamis_log_level level = dev->log.build ? TAMIS_LOG_DEBUG : TAMIS_LOG_INFO;
    if (ends)
        tms_log_line(&dev->log, level, "compiled kernels, once: %u in %.1f s", t->progress.all,
                     t->progress.seconds);
    else
        tms_log_line(&dev->log, level, "compiling kernels, once: %u of %u", t->progress.done,
                     t->progress.all);
    t->told = true;
}

/* A driver compiles a kernel when it is first launched: the wait is for that. */
static tamis_status launch_all(tms_device *dev, telling *t) {
    tamis_status status = TAMIS_OK;
    tell(dev, t);
    for (const tms_cl_job *job = tms_cl(dev)->jobs; job && status == TAMIS_OK; job = job->next) {
        status = launch(dev, job);
        if (status == TAMIS_OK)
            status = tms_cl_check_late(dev, clFinish(tms_cl(dev)->queue), job->kernel);
        t->progress.done++;
        if (status == TAMIS_OK) tell(dev, t);
    }
    return status;
}

tamis_status tms_cl_build_all(tms_device *dev) {
    tms_cl_device *cl = tms_cl(dev);
    if (!cl->jobs) return TAMIS_OK;
    telling t = {.begin = tms_now_us()};
    for (const tms_cl_job *job = cl->jobs; job; job = job->next)
        t.progress.all++;
    const tamis_status status = launch_all(dev, &t);
    if (status != TAMIS_OK && dev->log.build) { /* the program's line ends, too */
        t.progress.done = t.progress.all;
        dev->log.build(dev->log.build_user, &t.progress);
    }
    tms_cl_jobs_free(cl);
    return status;
}

void tms_cl_jobs_free(tms_cl_device *cl) {
    for (tms_cl_job *job = cl->jobs, *next; job; job = next) {
        next = job->next;
        job_free(job);
    }
    cl->jobs = NULL;
}
