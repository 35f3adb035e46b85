/* SPDX-License-Identifier: Apache-2.0 */
/* The list of devices over all backends, and the choice of one by name. */
#include "lib/core/core.h"
#include "lib/core/text_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
