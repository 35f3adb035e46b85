/* SPDX-License-Identifier: Apache-2.0 */
/* Element types, the list of devices over all backends, and the choice of one by name. */
#include "lib/core/core.h"
#include "lib/core/text_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t tamis_dtype_size(tamis_dtype dtype) {
    switch (dtype) {
    case TAMIS_F32:
        return 4;
    case TAMIS_F16:
    case TAMIS_BF16:
        return 2;
    case TAMIS_Q8:
    case TAMIS_K8V4:
    case TAMIS_Q4:
        break;
    }
    return 0;
}

const char *tamis_dtype_name(tamis_dtype dtype) {
    switch (dtype) {
    case TAMIS_F32:
        return "f32";
    case TAMIS_F16:
        return "f16";
    case TAMIS_BF16:
        return "bf16";
    case TAMIS_Q8:
        return "q8";
    case TAMIS_K8V4:
        return "k8v4";
    case TAMIS_Q4:
        return "q4";
    }
    return "unknown";
}

/* Of each tamis_weight_type. */
static const struct {
    const char *name;
    uint32_t elements, bytes; /* of a block */
} weight_types[] = {
    [TAMIS_WEIGHT_F32] = {"f32", 1, 4},       [TAMIS_WEIGHT_F16] = {"f16", 1, 2},
    [TAMIS_WEIGHT_BF16] = {"bf16", 1, 2},     [TAMIS_WEIGHT_Q8_0] = {"Q8_0", 32, 34},
    [TAMIS_WEIGHT_Q4_0] = {"Q4_0", 32, 18},   [TAMIS_WEIGHT_Q4_1] = {"Q4_1", 32, 20},
    [TAMIS_WEIGHT_Q5_0] = {"Q5_0", 32, 22},   [TAMIS_WEIGHT_Q4_K] = {"Q4_K", 256, 144},
    [TAMIS_WEIGHT_Q6_K] = {"Q6_K", 256, 210},
};

static bool is_weight_type(tamis_weight_type type) {
    return (unsigned)type < sizeof weight_types / sizeof *weight_types;
}

const char *tamis_weight_name(tamis_weight_type type) {
    return is_weight_type(type) ? weight_types[type].name : "unknown";
}

uint32_t tamis_weight_block(tamis_weight_type type) {
    return is_weight_type(type) ? weight_types[type].elements : 0;
}

uint64_t tamis_weight_bytes(tamis_weight_type type, uint64_t n_out, uint64_t n_in) {
    const uint32_t block = tamis_weight_block(type);
    if (block == 0 || n_in % block) return 0;
    const uint64_t blocks = n_in / block, bytes = weight_types[type].bytes;
    if (n_out && (blocks > UINT64_MAX / bytes || blocks * bytes > UINT64_MAX / n_out))
        return UINT64_MAX;
    return n_out * blocks * bytes;
}

tamis_status tamis_device_list(tamis_device_info *infos, size_t capacity, size_t *count,
                               tamis_error *error) {
    TMS_REQUIRE(count, TAMIS_E_ARGUMENT, "count: NULL");
    TMS_REQUIRE(infos || capacity == 0, TAMIS_E_ARGUMENT, "infos: NULL, with room for %zu",
                capacity);
    return tms_device_list(infos, capacity, count, error);
}

/* Allocates and returns the whole list. */
static tamis_status list_all(tamis_device_info **infos, size_t *count, tamis_error *error) {
    size_t capacity = 0;
    TMS_TRY(tamis_device_list(NULL, 0, &capacity, error));
    *infos = calloc(capacity, sizeof **infos);
    TMS_REQUIRE(*infos, TAMIS_E_NO_MEMORY, "no memory to list %zu devices", capacity);
    TMS_TRY(tamis_device_list(*infos, capacity, count, error));
    if (*count > capacity) *count = capacity; /* a device appeared between the two calls */
    return TAMIS_OK;
}

/* Appends to a text of `size` bytes, cut at its end. */
static void append(char *text, size_t size, const char *part) {
    const size_t used = strlen(text);
    snprintf(text + used, size - used, "%s", part);
}

/* Appends the reasons of the unusable ones among `count` entries. */
static void append_refused(char *text, size_t size, const tamis_device_info *infos, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (infos[i].usable) continue;
        append(text, size, "; not ");
        append(text, size, infos[i].id);
        append(text, size, ": ");
        append(text, size, infos[i].reason);
    }
}

static tamis_status unknown_device(const char *name, const tamis_device_info *infos, size_t count,
                                   tamis_error *error) {
    char known[384] = "";
    for (size_t i = 0; i < count; i++) {
        if (infos[i].usable) {
            append(known, sizeof known, known[0] ? ", " : "");
            append(known, sizeof known, infos[i].id);
        }
    }
    append_refused(known, sizeof known, infos, count);
    return tms_error_set(error, TAMIS_E_NO_DEVICE, "device \"%.64s\" does not exist; there are: %s",
                         tms_quote(name).text, known);
}

/* Logs which device "auto" takes and why it does not take the `chosen` entries before it. */
static void log_choice(const tms_log *log, const tamis_device_info *infos, size_t chosen) {
    char refused[1536] = "";
    append_refused(refused, sizeof refused, infos, chosen);
    tms_log_line(log, TAMIS_LOG_INFO, "device %s (%s) serves%s", infos[chosen].id,
                 infos[chosen].name, refused);
}

/* Whether the driver of one of them lacks something, which its reason says how to mend. */
static bool driver_lacks(const tamis_device_info *infos, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!infos[i].usable && infos[i].refusal == TAMIS_E_DEVICE) return true;
    return false;
}

/* The error of an "auto" that finds no device: it lists what each backend lacks. */
static tamis_status none_found(const tamis_device_info *infos, size_t count, tamis_error *error) {
    char refused[sizeof error->text] = "";
    append_refused(refused, sizeof refused, infos, count);
    return tms_error_set(error, driver_lacks(infos, count) ? TAMIS_E_DEVICE : TAMIS_E_NO_DEVICE,
                         "no device can be used on \"auto\"; device \"reference\" must be named or "
                         "allowed%s",
                         refused);
}

/* Whether `name` means the device, usable or not. */
static bool is_meant(const char *name, bool allow_reference, const tamis_device_info *info) {
    if (strcmp(name, "auto") == 0)
        return allow_reference || strcmp(info->backend, "reference") != 0;
    return strcmp(name, info->id) == 0 || strcmp(name, info->backend) == 0;
}

tamis_status tms_device_pick(const char *name, bool allow_reference, const tms_log *log,
                             tamis_device_info *out, tamis_error *error) {
    const bool any = strcmp(name, "auto") == 0;
    tamis_device_info *infos = NULL;
    size_t count = 0, chosen = 0;
    const tamis_device_info *refused = NULL;
    tamis_status status = list_all(&infos, &count, error);
    if (status != TAMIS_OK) goto done;
    for (; chosen < count; chosen++) {
        const tamis_device_info *info = &infos[chosen];
        if (!is_meant(name, allow_reference, info)) continue;
        if (info->usable) break;
        if (!refused) refused = info;
    }
    if (chosen < count) {
        *out = infos[chosen];
        if (any) log_choice(log, infos, chosen);
    } else if (any) {
        status = none_found(infos, count, error);
    } else if (refused) {
        status = tms_error_set(error, refused->refusal, "device \"%.64s\" cannot be used: %s",
                               tms_quote(name).text, refused->reason);
    } else {
        status = unknown_device(name, infos, count, error);
    }
done:
    free(infos);
    return status;
}
