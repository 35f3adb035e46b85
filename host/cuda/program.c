/* SPDX-License-Identifier: Apache-2.0 */
/* Modules and functions: fat binaries built in or from a folder, loaded once and kept for the
 * device's life. */
#include "host/cuda/program.h"
#include "host/base/file.h"
#include "host/base/quote.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct tms_cu_function_entry {
    tms_cu_function_entry *next;
    tms_cu_module module;
    bool owns_module; /* the first function of its stem: the others share the module */
    tms_cu_function function;
    uint32_t hash;   /* of the name */
    uint32_t shared; /* bytes of dynamic shared memory that launches may ask for */
    bool early;      /* known to have grid_wait */
    char stem[32];
    char name[];
};

bool tms_cu_has_kernels(char *reason, size_t capacity) {
    const char *folder = tms_env("TAMIS_CUDA_KERNELS");
    struct stat at;
    if (!folder && tms_cu_images[0].name) return true;
    if (folder && stat(folder, &at) == 0 && S_ISDIR(at.st_mode)) return true;
    if (folder)
        snprintf(reason, capacity, "TAMIS_CUDA_KERNELS \"%.160s\": no such folder",
                 tms_quote(folder).text);
    else
        snprintf(reason, capacity, "built without CUDA kernels (no nvcc at build time)");
    return false;
}

/* ---- Modules --------------------------------------------------------------------------------- */

#define MOST_BYTES (256u << 20) /* of a fat binary */

/* The caller frees it. */
static tamis_status read_file(tms_device *dev, const char *stem, const char *path, char **out) {
    size_t bytes;
    tamis_error error;
    const tamis_status status = tms_file_read(path, MOST_BYTES, out, &bytes, &error);
    if (status != TAMIS_OK)
        return tms_device_fail(dev, status, "kernels of %s: %s", stem, error.text);
    if (*out && bytes > 0) return TAMIS_OK;
    const char *why = *out ? "is empty" : "there is no such file";
    free(*out);
    return tms_device_fail(dev, TAMIS_E_IO, "kernels of %s: \"%.300s\" cannot be read: %s", stem,
                           path, why);
}

static tamis_status load(tms_device *dev, const void *image, const char *from, tms_cu_module *out) {
    char what[320];
    snprintf(what, sizeof what, "loading kernels of %.280s", from);
    return tms_cu_check(dev, tms_cu(dev)->api->cuModuleLoadData(out, image), what);
}

static tamis_status load_file(tms_device *dev, const char *folder, const char *stem,
                              tms_cu_module *out) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.fatbin", folder, stem);
    char *image = NULL;
    tamis_status status = read_file(dev, stem, path, &image);
    if (status != TAMIS_OK) return status;
    status = load(dev, image, path, out);
    free(image);
    return status;
}

static tamis_status load_stem(tms_device *dev, const char *stem, tms_cu_module *out) {
    const char *folder = tms_env("TAMIS_CUDA_KERNELS");
    if (folder) return load_file(dev, folder, stem, out);
    const tms_cu_image *image = tms_cu_images;
    while (image->name && strcmp(image->name, stem) != 0)
        image++;
    if (!image->name)
        return tms_device_fail(dev, TAMIS_E_DEVICE, "no kernels of %s are built in", stem);
    return load(dev, image->begin, stem, out);
}

/* The module of `stem`: that of a function loaded before, or a new one. */
static tamis_status module_get(tms_device *dev, const char *stem, tms_cu_module *out,
                               bool *is_new) {
    *is_new = false;
    for (const tms_cu_function_entry *f = tms_cu(dev)->functions; f; f = f->next)
        if (strcmp(f->stem, stem) == 0) {
            *out = f->module;
            return TAMIS_OK;
        }
    *is_new = true;
    return load_stem(dev, stem, out);
}

/* ---- Functions ------------------------------------------------------------------------------- */

static tms_cu_function_entry *make_entry(tms_device *dev, const char *stem, const char *kernel) {
    tms_cu_function_entry *f = calloc(1, sizeof *f + strlen(kernel) + 1);
    if (!f) {
        tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no host memory for a kernel");
        return NULL;
    }
    snprintf(f->stem, sizeof f->stem, "%s", stem);
    strcpy(f->name, kernel);
    return f;
}

static tamis_status function_load(tms_device *dev, tms_cu_function_entry *f) {
    const tms_cu_driver *api = tms_cu(dev)->api;
    tms_log_line(&dev->log, TAMIS_LOG_DEBUG, "building %s: %s", f->stem, f->name);
    tamis_status status = module_get(dev, f->stem, &f->module, &f->owns_module);
    if (status != TAMIS_OK) return status;
    status = tms_cu_check(dev, api->cuModuleGetFunction(&f->function, f->module, f->name), f->name);
    if (status != TAMIS_OK && f->owns_module) api->cuModuleUnload(f->module);
    return status;
}

static tamis_status function_add(tms_device *dev, const char *stem, const char *kernel,
                                 uint32_t hash) {
    tms_cu_device *cu = tms_cu(dev);
    tms_cu_function_entry *f = make_entry(dev, stem, kernel);
    if (!f) return TAMIS_E_NO_MEMORY;
    tamis_status status = tms_cu_enter(dev);
    if (status == TAMIS_OK) {
        status = function_load(dev, f);
        tms_cu_leave(dev);
    }
    if (status != TAMIS_OK) {
        free(f);
        return status;
    }
    f->hash = hash;
    f->next = cu->functions;
    cu->functions = f;
    return TAMIS_OK;
}

/* FNV-1a, so that most names of the list are skipped by comparing numbers. */
static uint32_t hash_of(const char *name) {
    uint32_t hash = 2166136261u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash;
}

tamis_status tms_cu_function_get(tms_device *dev, const char *stem, const char *kernel,
                                 tms_cu_function *out) {
    tms_cu_device *cu = tms_cu(dev);
    const uint32_t hash = hash_of(kernel);
    for (const tms_cu_function_entry *f = cu->functions; f; f = f->next)
        if (f->hash == hash && strcmp(f->name, kernel) == 0 && strcmp(f->stem, stem) == 0) {
            *out = f->function;
            return TAMIS_OK;
        }
    tamis_status status = function_add(dev, stem, kernel, hash);
    if (status == TAMIS_OK) *out = cu->functions->function;
    return status;
}

static tms_cu_function_entry *entry_of(tms_device *dev, tms_cu_function function) {
    tms_cu_function_entry *f = tms_cu(dev)->functions;
    while (f->function != function)
        f = f->next;
    return f;
}

tamis_status tms_cu_function_allow_early(tms_device *dev, tms_cu_function function) {
    tms_cu_function_entry *f = entry_of(dev, function);
    int ptx = 0;
    if (f->early) return TAMIS_OK;
    tamis_status status = tms_cu_check(
        dev, tms_cu(dev)->api->cuFuncGetAttribute(&ptx, TMS_CU_FUNCTION_PTX, function), f->name);
    if (status != TAMIS_OK) return status;
    if (ptx < 90)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "TAMIS_CUDA_OVERLAP=1: the loaded image of %s is made for %d.%d: "
                               "kernels for 9.0 alone can begin early",
                               f->name, ptx / 10, ptx % 10);
    f->early = true;
    return TAMIS_OK;
}

tamis_status tms_cu_function_allow(tms_device *dev, tms_cu_function function, uint32_t bytes) {
    const tms_cu_device *cu = tms_cu(dev);
    tms_cu_function_entry *f = entry_of(dev, function);
    if (bytes <= f->shared) return TAMIS_OK;
    if (bytes > cu->max_shared)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "%s: %u bytes of shared memory: a block on %s has at most %u",
                               f->name, bytes, dev->info.id, cu->max_shared);
    tamis_status status = tms_cu_check(
        dev, cu->api->cuFuncSetAttribute(function, TMS_CU_MAX_DYNAMIC_SHARED, (int)bytes), f->name);
    if (status == TAMIS_OK) f->shared = bytes;
    return status;
}

tamis_status tms_cu_programs_probe(tms_device *dev) {
    tms_cu_function function;
    if (tms_env("TAMIS_CUDA_KERNELS")) return TAMIS_OK;
    return tms_cu_function_get(dev, "probe", "read_lanes_4", &function);
}

void tms_cu_programs_free(tms_device *dev, bool inside) {
    tms_cu_device *cu = tms_cu(dev);
    for (tms_cu_function_entry *f = cu->functions, *next; f; f = next) {
        next = f->next;
        if (inside && f->owns_module) cu->api->cuModuleUnload(f->module);
        free(f);
    }
}
