/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of contexts: where they come from, reading and changing them. */
#include "lib/core/settings.h"
#include "lib/core/core.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* "0, 8, 16, 32" */
static void list_values(const tamis_setting_info *info, char *to, size_t capacity) {
    size_t at = 0;
    for (uint32_t i = 0; i < info->n_values && at < capacity; i++)
        at +=
            (size_t)snprintf(to + at, capacity - at, "%s%" PRIu32, i ? ", " : "", info->values[i]);
}

static tamis_status check(const tamis_context *context, const tamis_setting_class *of,
                          tamis_setting setting, tamis_error *error) {
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context: NULL");
    TMS_REQUIRE(of, TAMIS_E_ARGUMENT, "of: NULL");
    TMS_REQUIRE((uint32_t)of->op < TMS_SETTING_OPS, TAMIS_E_ARGUMENT, "op %d: known are 0 to 2",
                (int)of->op);
    TMS_REQUIRE((uint32_t)of->dtype < TMS_DTYPES, TAMIS_E_ARGUMENT, "dtype %d is unknown",
                (int)of->dtype);
    TMS_REQUIRE(of->group > 0, TAMIS_E_ARGUMENT, "group 0: 1 or more query heads");
    const tamis_setting_info *info = tamis_setting_describe((uint32_t)setting);
    TMS_REQUIRE(info, TAMIS_E_ARGUMENT, "setting %d is unknown", (int)setting);
    TMS_REQUIRE(info->ops & (1u << of->op), TAMIS_E_ARGUMENT, "%s is no setting of %s", info->name,
                tamis_setting_op_name(of->op));
    return TAMIS_OK;
}

tamis_status tamis_context_get_setting(const tamis_context *context, const tamis_setting_class *of,
                                       tamis_setting setting, uint32_t *value, tamis_error *error) {
    TMS_ENTER(context);
    TMS_TRY(check(context, of, setting, error));
    TMS_REQUIRE(value, TAMIS_E_ARGUMENT, "value: NULL");
    *value =
        *tms_settings_at(tms_device_settings(context->dev), of->op, of->dtype, of->group, setting);
    return TAMIS_OK;
}

tamis_status tamis_context_set_setting(tamis_context *context, const tamis_setting_class *of,
                                       tamis_setting setting, uint32_t value, tamis_error *error) {
    TMS_ENTER(context);
    TMS_TRY(check(context, of, setting, error));
    if (!tms_setting_allows(setting, value)) {
        const tamis_setting_info *info = tamis_setting_describe((uint32_t)setting);
        char values[128];
        list_values(info, values, sizeof values);
        return tms_error_set(error, TAMIS_E_ARGUMENT, "%s %" PRIu32 ": allowed are %s", info->name,
                             value, values);
    }
    *tms_settings_at(tms_device_settings(context->dev), of->op, of->dtype, of->group, setting) =
        value;
    return TAMIS_OK;
}

/* What the user's file says of a device whose kernels have settings. A file in the usual place that
 * cannot be opened (of another user, say) is left alone: then *unread holds the reason. */
static tamis_status read_file(const tamis_device_info *device, tms_settings *to,
                              char path[PATH_MAX], bool *named, tamis_error *unread,
                              tamis_error *error) {
    *named = false;
    *unread = (tamis_error){0};
    if (!tms_settings_used(device)) return TAMIS_OK;
    const bool asked = tms_env("TAMIS_SETTINGS") != NULL;
    tamis_status status = tms_settings_path(path, unread);
    if (status == TAMIS_E_STATE) {
        *unread = (tamis_error){0};
        return TAMIS_OK;
    }
    if (status == TAMIS_OK) status = tms_settings_read(path, device->name, to, named, unread);
    if (status == TAMIS_OK || (!asked && status != TAMIS_E_FORMAT)) return TAMIS_OK;
    return tms_error_set(error, status, "%s", unread->text);
}

tamis_status tms_context_read_settings(tamis_context *context, tamis_error *error) {
    const tamis_device_info *device = tms_device_info(context->dev);
    const tms_log *log = tms_device_log(context->dev);
    char path[PATH_MAX];
    bool named;
    tamis_error unread;
    TMS_TRY(read_file(device, tms_device_settings(context->dev), path, &named, &unread, error));
    *tms_device_settings_found(context->dev) = *tms_device_settings(context->dev);
    if (*unread.text)
        tms_log_line(log, TAMIS_LOG_WARN, "settings of %s are not read: %s", device->id,
                     unread.text);
    if (named) tms_log_line(log, TAMIS_LOG_INFO, "settings of %s: %s", device->id, path);
    return TAMIS_OK;
}

/* Where the settings come from that a context on the device begins with: the file at `path` if it
 * names the device, else the library's row of that name. */
static tamis_status find_origin(const tamis_device_info *device, char path[PATH_MAX], bool *named,
                                const char **shipped, tamis_error *error) {
    tms_settings settings;
    tamis_error unread;
    *shipped = tms_settings_shipped(device, &settings);
    return read_file(device, &settings, path, named, &unread, error);
}

tamis_status tms_settings_known(const tamis_context *context, bool *known, tamis_error *error) {
    char path[PATH_MAX];
    bool named;
    const char *shipped;
    TMS_TRY(find_origin(tms_device_info(context->dev), path, &named, &shipped, error));
    *known = named || strcmp(shipped, TMS_SETTINGS_DEFAULT) != 0;
    return TAMIS_OK;
}

tamis_status tamis_context_write_settings(const tamis_context *context, tamis_error *error) {
    TMS_ENTER(context);
    char path[PATH_MAX];
    tms_settings shipped;
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context: NULL");
    const tamis_device_info *device = tms_device_info(context->dev);
    TMS_REQUIRE(tms_settings_used(device), TAMIS_E_UNSUPPORTED, "%s: its kernels have no settings",
                device->id);
    TMS_TRY(tms_settings_path(path, error));
    tms_settings_shipped(device, &shipped);
    const tms_settings *own = tms_device_settings(context->dev);
    tms_settings *found = tms_device_settings_found(context->dev);
    TMS_TRY(tms_settings_write(path, device->name, own, found, &shipped, error));
    *found = *own;
    return TAMIS_OK;
}

tamis_status tamis_device_settings(const tamis_device_info *device, char *text, size_t capacity,
                                   tamis_error *error) {
    char path[PATH_MAX];
    bool named;
    const char *shipped;
    TMS_REQUIRE(device, TAMIS_E_ARGUMENT, "device: NULL");
    TMS_REQUIRE(text && capacity, TAMIS_E_ARGUMENT, "text: NULL or no room for it");
    TMS_TRY(find_origin(device, path, &named, &shipped, error));
    snprintf(text, capacity, "%s", named ? path : shipped);
    return TAMIS_OK;
}
