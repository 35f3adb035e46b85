/* SPDX-License-Identifier: Apache-2.0 */
/* Programs and kernels, built once per (file, options) and kept for the device's life. */
#include "host/opencl/opencl.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tms_cl_program {
    tms_cl_program *next;
    cl_program cl;
    char key[]; /* file, a space, options */
};

struct tms_cl_kernel {
    tms_cl_kernel *next;
    const tms_cl_program *program;
    cl_kernel cl;
    char name[];
};

/* The driver's log of a build, which the caller frees; NULL: there is no memory. */
static char *build_log(const tms_cl_device *cl, cl_program program) {
    size_t bytes = 0;
    clGetProgramBuildInfo(program, cl->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
    char *text = calloc(1, bytes + 1);
    if (text) clGetProgramBuildInfo(program, cl->id, CL_PROGRAM_BUILD_LOG, bytes, text, NULL);
    return text;
}

/* Every line of the build log goes to the log; the error gets as much of it as fits. */
static tamis_status build_failed(tms_device *dev, cl_program program, const char *key,
                                 cl_int code) {
    char *text = build_log(tms_cl(dev), program);
    for (const char *line = text; line && *line;) {
        const size_t length = strcspn(line, "\n");
        char part[512];
        snprintf(part, sizeof part, "%.*s", (int)length, line);
        tms_log_line(&dev->log, TAMIS_LOG_ERROR, "building %s: %s", key, part);
        line += length + (line[length] == '\n');
    }
    tamis_status status = tms_device_fail(dev, TAMIS_E_DEVICE, "building %s: %s (%d): %.300s", key,
                                          tms_cl_error_text(code), (int)code, text ? text : "");
    free(text);
    return status;
}

/* By the driver's compiler. */
static tamis_status compile(tms_device *dev, const char *source, const char *options,
                            const char *key, cl_program *out) {
    tms_cl_device *cl = tms_cl(dev);
    char reason[sizeof dev->info.reason];
    cl_int code;
    if (cl->lacks && cl->lacks(reason, sizeof reason))
        return tms_device_fail(dev, TAMIS_E_DEVICE, "building %s: %s", key, reason);
    cl_program program = clCreateProgramWithSource(cl->context, 1, &source, NULL, &code);
    if (code != CL_SUCCESS) return tms_cl_check(dev, code, key);
    code = clBuildProgram(program, 1, &cl->id, options, NULL, NULL);
    if (code != CL_SUCCESS) {
        tamis_status status = build_failed(dev, program, key, code);
        clReleaseProgram(program);
        return status;
    }
    *out = program;
    return TAMIS_OK;
}

/* From the cache, else by compiling. */
static tamis_status build(tms_device *dev, const char *file, const char *options, const char *key,
                          cl_program *out) {
    tms_cl_device *cl = tms_cl(dev);
    char all[768];
    char *source = tms_cl_text_load(dev, file);
    if (!source) return dev->error.status;
    snprintf(all, sizeof all, "%s %s", cl->options, options);
    tms_cl_cache_entry entry;
    tms_log_line(&dev->log, TAMIS_LOG_DEBUG, "building %s", key);
    const double begin = tms_now_us();
    const bool kept = tms_cl_cache_entry_of(cl, all, source, &entry);
    *out = kept ? tms_cl_cache_load(cl, &entry, all) : NULL;
    const bool hit = *out != NULL;
    tamis_status status = hit ? TAMIS_OK : compile(dev, source, all, key, out);
    if (status == TAMIS_OK && kept && !hit) tms_cl_cache_store(cl, &entry, *out);
    tms_log_line(&dev->log, TAMIS_LOG_DEBUG, "%s %s in %.0f ms", hit ? "loaded" : "compiled", key,
                 1e-3 * (tms_now_us() - begin));
    free(source);
    return status;
}

static tamis_status program_get(tms_device *dev, const char *file, const char *options,
                                tms_cl_program **out) {
    tms_cl_device *cl = tms_cl(dev);
    char key[576];
    int length = snprintf(key, sizeof key, "%s %s", file, options);
    for (*out = cl->programs; *out; *out = (*out)->next)
        if (strcmp((*out)->key, key) == 0) return TAMIS_OK;
    tms_cl_program *program = malloc(sizeof *program + (size_t)length + 1);
    if (!program) return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no host memory for a program");
    tamis_status status = build(dev, file, options, key, &program->cl);
    if (status != TAMIS_OK) {
        free(program);
        return status;
    }
    memcpy(program->key, key, (size_t)length + 1);
    program->next = cl->programs;
    *out = cl->programs = program;
    return TAMIS_OK;
}

cl_kernel tms_cl_kernel_find(const tms_cl_device *cl, const char *file, const char *kernel,
                             const char *options) {
    const size_t length = strlen(file);
    for (const tms_cl_kernel *k = cl->kernels; k; k = k->next)
        if (strcmp(k->name, kernel) == 0 && strncmp(k->program->key, file, length) == 0 &&
            k->program->key[length] == ' ' && strcmp(k->program->key + length + 1, options) == 0)
            return k->cl;
    return NULL;
}

tamis_status tms_cl_kernel_get(tms_device *dev, const char *file, const char *kernel,
                               const char *options, cl_kernel *out) {
    tms_cl_device *cl = tms_cl(dev);
    tms_cl_program *program;
    tamis_status status = program_get(dev, file, options, &program);
    if (status != TAMIS_OK) return status;
    for (tms_cl_kernel *k = cl->kernels; k; k = k->next)
        if (k->program == program && strcmp(k->name, kernel) == 0) {
            *out = k->cl;
            return TAMIS_OK;
        }
    tms_cl_kernel *k = malloc(sizeof *k + strlen(kernel) + 1);
    if (!k) return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no host memory for a kernel");
    cl_int code;
    k->cl = clCreateKernel(program->cl, kernel, &code);
    if (code != CL_SUCCESS) {
        free(k);
        return tms_cl_check(dev, code, kernel);
    }
    strcpy(k->name, kernel);
    k->program = program;
    k->next = cl->kernels;
    cl->kernels = k;
    *out = k->cl;
    return TAMIS_OK;
}

void tms_cl_programs_free(tms_cl_device *cl) {
    for (tms_cl_kernel *k = cl->kernels, *next; k; k = next) {
        next = k->next;
        clReleaseKernel(k->cl);
        free(k);
    }
    for (tms_cl_program *p = cl->programs, *next; p; p = next) {
        next = p->next;
        clReleaseProgram(p->cl);
        free(p);
    }
}
