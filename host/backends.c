/* SPDX-License-Identifier: Apache-2.0 */
/* The ordered list of backends, and what all of them share: errors, log lines, shape rules. */
#include "host/backend.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

extern const tms_backend tms_backend_reference;

/* Stands in the list to say that a backend was not built; it has no usable device, so nothing opens
 * it. */
#define ABSENT(backend_name, title)                                                                \
    static tamis_status backend_name##_list(tamis_device_info *infos, size_t capacity,             \
                                            size_t *count) {                                       \
        if (capacity > 0)                                                                          \
            infos[0] = (tamis_device_info){.id = #backend_name,                                    \
                                           .backend = #backend_name,                               \
                                           .kind = TAMIS_DEVICE_OTHER,                             \
                                           .reason = "built without " title};                      \
        *count = 1;                                                                                \
        return TAMIS_OK;                                                                           \
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
}

static void error_format(tamis_error *error, tamis_status status, const char *format,
                         va_list args) {
    error->status = status;
    vsnprintf(error->text, sizeof error->text, format, args);
}

tamis_status tms_device_fail(tms_device *dev, tamis_status status, const char *format, ...) {
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    va_list args;
    va_start(args, format);
    error_format(&dev->error, status, format, args);
    va_end(args);
    return status;
}

tamis_status tms_error_set(tamis_error *error, tamis_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (error) error_format(error, status, format, args);
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
    if (log->fn) log->fn(log->user, level, text);
    if (to_stderr) fprintf(stderr, "tamis %s: %s\n", names[level], text);
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

static bool listed(uint32_t value, const uint32_t *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (list[i] == value) return true;
    }
    return false;
}

tamis_status tms_check_kv(tms_device *dev, const tms_kv *kv) {
    static const uint32_t page_sizes[] = {8, 16, 32, 64};
    static const uint32_t head_dims[] = {64, 80, 96, 128, 256};
    if (!listed(kv->page_size, page_sizes, sizeof page_sizes / sizeof *page_sizes))
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "page size %u: supported are 8, 16, 32, 64", kv->page_size);
    if (!listed(kv->head_dim, head_dims, sizeof head_dims / sizeof *head_dims))
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "head dim %u: supported are 64, 80, 96, 128, 256", kv->head_dim);
    if (kv->dtype != TAMIS_F32 && kv->dtype != TAMIS_F16 && kv->dtype != TAMIS_BF16)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "cache dtype %d: supported are f32 (0), f16 (1), bf16 (2)",
                               (int)kv->dtype);
    if (kv->slot_stride < kv->head_dim)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "slot stride %llu: less than the head dim %u",
                               (unsigned long long)kv->slot_stride, kv->head_dim);
    return TAMIS_OK;
}

/* The tables of a launch with rows. */
static tamis_status check_tables(tms_device *dev, const tms_batch *batch) {
    const struct {
        const char *name;
        const tms_mem *mem;
    } tables[] = {{"tiles", batch->tiles.mem},
                  {"row_seq", batch->row_seq.mem},
                  {"visible", batch->visible.mem},
                  {"table", batch->table.mem}};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if (!tables[i].mem)
            return tms_device_fail(dev, TAMIS_E_ARGUMENT, "batch of %u rows: %s is absent",
                                   batch->n_rows, tables[i].name);
    }
    if (batch->n_tiles == 0 || batch->n_tiles > batch->n_rows)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "%u tiles for %u rows", batch->n_tiles,
                               batch->n_rows);
    if (batch->max_tile_rows == 0 || batch->max_tile_rows > TMS_TILE_ROWS)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "tiles of %u rows: must be 1 to %d",
                               batch->max_tile_rows, TMS_TILE_ROWS);
    return TAMIS_OK;
}

tamis_status tms_check_batch(tms_device *dev, const tms_batch *batch) {
    if (batch->n_kv_heads == 0 || batch->n_heads % batch->n_kv_heads)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "%u query heads: not a multiple of %u KV heads", batch->n_heads,
                               batch->n_kv_heads);
    const uint32_t group = batch->n_heads / batch->n_kv_heads;
    if (group == 0 || group > 16)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "%u query heads to %u KV heads: the group must be 1 to 16",
                               batch->n_heads, batch->n_kv_heads);
    return batch->n_rows ? check_tables(dev, batch) : TAMIS_OK;
}

tamis_status tms_check_bounds(tms_device *dev, const tms_bounds *p) {
    tamis_status status = tms_check_kv(dev, &p->kv);
    if (status != TAMIS_OK) return status;
    if (p->kind != TMS_BOUNDS_MINMAX && p->kind != TMS_BOUNDS_MEAN_STD &&
        p->kind != TMS_BOUNDS_MEAN)
        return tms_device_fail(
            dev, TAMIS_E_UNSUPPORTED,
            "bounds kind %d: supported are minmax (0), mean and std (1), mean (2)", (int)p->kind);
    if (p->kind == TMS_BOUNDS_MEAN_STD && !(p->width >= 0 && isfinite(p->width)))
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "bounds width %g: must be finite and >= 0",
                               (double)p->width);
    return TAMIS_OK;
}
