/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands share: messages, opening a device, the flags of a selection. */
#include "cli.h"

#include <stdarg.h>
#include <time.h>

const char *const cli_groups[] = {
    [TAMIS_GROUP_MAX] = "max", [TAMIS_GROUP_MEAN] = "mean", [TAMIS_GROUP_SUM] = "sum", NULL};
const char *const cli_dtypes[] = {
    [TAMIS_F32] = "f32", [TAMIS_F16] = "f16", [TAMIS_BF16] = "bf16", NULL};
const char *const cli_bounds[] = {[TAMIS_BOUNDS_MINMAX] = "minmax",
                                  [TAMIS_BOUNDS_MEAN_STD] = "meanstd",
                                  [TAMIS_BOUNDS_MEAN] = "mean",
                                  NULL};
const char *const cli_page_sizes[] = {"8", "16", "32", "64", NULL};

uint32_t cli_page_size(uint32_t choice) {
    return 8u << choice;
}

int cli_fail(const char *command, const char *format, ...) {
    va_list args;
    fprintf(stderr, "%s: ", command);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return CLI_FAILED;
}

static void log_line(void *user, tamis_log_level level, const char *text) {
    (void)user;
    if (level <= TAMIS_LOG_INFO) fprintf(stderr, "tamis: %s\n", text);
}

tamis_status cli_open(const char *device, tamis_context **out, tamis_error *error) {
    const tamis_context_params params = {.device = device, .log = log_line};
    return tamis_context_create(&params, out, error);
}

tamis_status cli_error(tamis_error *error, tamis_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof(error->text), format, args);
    va_end(args);
    return error->status = status;
}

tamis_status cli_no_memory(tamis_error *error) {
    return cli_error(error, TAMIS_E_NO_MEMORY, "out of host memory");
}

bool cli_selection(const char *command, tamis_selection_kind kind, uint32_t budget,
                   const cli_selection_flags *flags, uint32_t page_size, tamis_selection *out) {
    tamis_error error = {0};
    tamis_selection_default(kind, out);
    if (budget != CLI_UNSET) out->budget = budget;
    if (flags->sinks != CLI_UNSET) out->sinks = flags->sinks;
    if (flags->recent != CLI_UNSET) out->recent = flags->recent;
    if (flags->dense_layers != CLI_UNSET) out->dense_layers = flags->dense_layers;
    if (flags->group != CLI_UNSET) out->group = (tamis_group_rule)flags->group;
    if (tamis_selection_check(out, page_size, &error) == TAMIS_OK) return true;
    cli_fail(command, "%s", error.text);
    return false;
}

double cli_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

cli_text cli_bytes(double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    cli_text out;
    size_t unit = 0;
    while (bytes >= 1024.0 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        bytes /= 1024.0;
        unit++;
    }
    snprintf(out.text, sizeof(out.text), "%.*f %s", unit > 0 ? 1 : 0, bytes, units[unit]);
    return out;
}
