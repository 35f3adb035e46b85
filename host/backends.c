/* SPDX-License-Identifier: Apache-2.0 */
/* The ordered list of backends, and what all of them share: errors, log lines, the environment, the
 * clock, tables. */
#define _GNU_SOURCE /* secure_getenv */
#include "host/base/quote.h"
#include "host/found.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern const tms_backend tms_backend_reference;

/* The entry in the list of a backend that was not built. It has no usable device, so nothing opens
 * it. */
#define ABSENT(backend_name, title)                                                                \
    static tamis_status backend_name##_list(tamis_device_info *infos, size_t capacity,             \
                                            size_t *count) {                                       \
        return tms_found_none(#backend_name, "built without " title, infos, capacity, count);      \
    }                                                                                              \
    static const tms_backend tms_backend_##backend_name = {.name = #backend_name,                  \
                                                           .list = backend_name##_list};

#ifdef TAMIS_HAVE_CUDA
extern const tms_backend tms_backend_cuda;
#else
ABSENT(cuda, "CUDA")
#endif
#ifdef TAMIS_HAVE_OPENCL
extern const tms_backend tms_backend_opencl;
#else
ABSENT(opencl, "OpenCL")
#endif

const tms_backend *const tms_backends[] = {&tms_backend_cuda, &tms_backend_opencl,
                                           &tms_backend_reference, NULL};

void tms_device_init(tms_device *dev, const tms_backend *backend, const tamis_device_info *info,
                     const tms_log *log) {
    *dev = (tms_device){.backend = backend, .info = *info, .log = *log, .form = TMS_FORM_AUTO};
    tms_tuning_shipped(info, &dev->tuning);
    dev->found = dev->tuning;
}

tamis_status tms_device_fail(tms_device *dev, tamis_status status, const char *format, ...) {
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    va_list args;
    va_start(args, format);
    tms_error_format(&dev->error, status, format, args);
    va_end(args);
    return status;
}

void tms_log_line(const tms_log *log, tamis_log_level level, const char *format, ...) {
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const bool to_stderr = (int)level <= log->stderr_level;
    if (!log->fn && !to_stderr) return;
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tms_quote_controls(text);
    if (log->fn) log->fn(log->user, level, text);
    if (to_stderr) fprintf(stderr, "tamis %s: %s\n", names[level], text);
}

const char *tms_env(const char *name) {
    const char *value = secure_getenv(name);
    return value && value[0] ? value : NULL;
}

bool tms_env_is_empty(const char *name) {
    const char *value = secure_getenv(name);
    return value && !value[0];
}

double tms_now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

void tms_rotate_table(const double *frequencies, uint32_t n_rot, float *table) {
    const uint32_t pairs = n_rot / 2;
    for (uint32_t level = 0; level < 2; level++) {
        const double step = level ? TMS_ROTATE_STEPS : 1;
        for (uint32_t j = 0; j < TMS_ROTATE_STEPS; j++) {
            for (uint32_t i = 0; i < pairs; i++) {
                const double angle = j * step * frequencies[i];
                *table++ = (float)cos(angle);
                *table++ = (float)sin(angle);
            }
        }
    }
}
