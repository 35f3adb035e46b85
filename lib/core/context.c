/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: one opened device, found by name, with its log. */
#include "lib/core/core.h"
#include "lib/core/text_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The level that TAMIS_LOG names; -1 when it is unset or empty. */
static tamis_status log_level_from_environment(int *level, tamis_error *error) {
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const char *value = tms_env("TAMIS_LOG");
    *level = -1;
    if (!value) return TAMIS_OK;
    for (int i = 0; i < 4; i++) {
        if (strcmp(value, names[i]) == 0) *level = i;
    }
    TMS_REQUIRE(*level >= 0, TAMIS_E_ARGUMENT,
                "TAMIS_LOG \"%.64s\": known are error, warn, info, debug", tms_quote(value).text);
    return TAMIS_OK;
}

tamis_status tms_log_begin(tms_log *log, const tamis_context_params *params, tamis_error *error) {
    TMS_REQUIRE_RESERVED(params, tamis_context_params);
    TMS_REQUIRE(params->reserved32 == 0, TAMIS_E_ARGUMENT,
                "reserved32 of tamis_context_params is %" PRIu32 "; it must be 0",
                params->reserved32);
    *log = (tms_log){.fn = params->log,
                     .user = params->log_user,
                     .build = params->build,
                     .build_user = params->build_user};
    return log_level_from_environment(&log->stderr_level, error);
}

/* What the caller asks for, else the environment, else "auto". */
static const char *device_name(const tamis_context_params *params) {
    if (params->device) return params->device;
    const char *value = tms_env("TAMIS_DEVICE");
    return value ? value : "auto";
}

tamis_status tamis_context_create(const tamis_context_params *params, tamis_context **out,
                                  tamis_error *error) {
    static const tamis_context_params defaults;
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = NULL;
    if (!params) params = &defaults;
    tms_log log;
    TMS_TRY(tms_log_begin(&log, params, error));
    tamis_device_info info;
    TMS_TRY(tms_device_pick(device_name(params), params->allow_reference != 0, &log, &info, error));
    tamis_context *context = calloc(1, sizeof *context);
    TMS_REQUIRE(context, TAMIS_E_NO_MEMORY, "no memory for a context");
    tamis_status status = tms_device_open(&info, &log, &context->dev, error);
    if (status == TAMIS_OK) status = tms_context_read_settings(context, error);
    if (status != TAMIS_OK) {
        if (context->dev) tms_device_close(context->dev);
        free(context);
        return status;
    }
    tms_context_begin(context);
    *out = context;
    return TAMIS_OK;
}

static void end(tms_life *life) {
    tamis_context *context = (tamis_context *)life;
    tms_device_close(context->dev);
    free(context);
}

void tms_context_begin(tamis_context *context) {
    tms_life_begin(&context->life, "context", NULL, NULL, end);
    context->life.owned = true;
}

static void abandon(tms_life *life) {
    tms_graph_abandon((tamis_context *)life);
}

void tamis_context_destroy(tamis_context **context) {
    if (!context || !*context) return;
    tms_life_close(&(*context)->life, abandon);
    *context = NULL;
}

const tamis_device_info *tamis_context_device(const tamis_context *context) {
    return context ? tms_device_info(context->dev) : NULL;
}

tamis_status tamis_context_enter(tamis_context *context, tamis_error *error) {
    tms_call call;
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context: NULL");
    const tamis_status status = tms_enter(&context->life, &call, error);
    if (status != TAMIS_OK) tms_leave(&call);
    return status;
}

void tamis_context_leave(tamis_context *context) {
    tms_call call = context ? &context->life : NULL;
    tms_leave(&call);
}

tamis_status tamis_context_wait(tamis_context *context, tamis_error *error) {
    TMS_ENTER(context);
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context: NULL");
    return tms_device_wait(context->dev, error);
}
