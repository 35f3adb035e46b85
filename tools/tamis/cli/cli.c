/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands share: messages, opening a device, numbers. */
#include "cli/cli.h"
#include "cli/building.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DIGITS "0123456789"

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

tamis_status cli_error(tamis_error *error, tamis_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof(error->text), format, args);
    va_end(args);
    return error->status = status;
}

/* A device that nobody named. */
static bool is_auto(const char *device) {
    if (device == NULL) device = getenv("TAMIS_DEVICE");
    return device == NULL || device[0] == '\0' || strcmp(device, "auto") == 0;
}

tamis_status cli_open(const char *device, tamis_context **out, tamis_error *error) {
    const tamis_context_params params = {
        .device = device, .log = log_line, .build = isatty(STDERR_FILENO) ? cli_building : NULL};
    tamis_error reason = {0};
    tamis_status status = tamis_context_create(&params, out, &reason);
    if (status == TAMIS_E_NO_DEVICE && is_auto(device))
        return cli_error(
            error, status,
            "no CUDA or OpenCL device can be used; --device reference needs none, but is "
            "slow (%s)",
            reason.text);
    *error = reason;
    return status;
}

/* The line is written anew for every percent; `user` is the last one. */
static tamis_status show_loading(void *user, uint64_t done, uint64_t total, tamis_error *error) {
    (void)error;
    int *shown = user, percent = (int)(100 * (double)done / (double)total);
    if (percent != *shown) fprintf(stderr, "\rloading %d %%", percent);
    *shown = percent;
    return TAMIS_OK;
}

static tamis_status load_shown(tamis_context *device, const char *path, tamis_model **out,
                               tamis_error *error) {
    int shown = -1;
    if (!isatty(STDERR_FILENO)) return tamis_model_load(device, path, NULL, out, error);
    const tamis_model_params params = {.watcher = show_loading, .user = &shown};
    const tamis_status status = tamis_model_load(device, path, &params, out, error);
    if (shown >= 0) fprintf(stderr, "\r%*s\r", (int)sizeof "loading 100 %", "");
    return status;
}

void cli_warn_of_vocab(const char *path, const tamis_vocab *vocab) {
    const char *warning = tamis_vocab_warning(vocab);
    if (warning != NULL) fprintf(stderr, "tamis: %s: %s\n", path, warning);
}

tamis_status cli_load(tamis_context *device, const char *path, tamis_model **out,
                      tamis_error *error) {
    const tamis_status status = load_shown(device, path, out, error);
    if (status == TAMIS_OK) cli_warn_of_vocab(path, tamis_model_vocab(*out));
    return status;
}

const char *cli_model_name(const tamis_model_info *model) {
    return model->name[0] != '\0' ? model->name : model->architecture;
}

tamis_status cli_no_memory(tamis_error *error) {
    return cli_error(error, TAMIS_E_NO_MEMORY, "out of host memory");
}

static bool is_decimal(const char *text) {
    text += text[0] == '-';
    size_t whole = strspn(text, DIGITS), point = text[whole] == '.';
    size_t part = point ? strspn(text + whole + 1, DIGITS) : 0;
    return whole + part > 0 && text[whole + point + part] == '\0';
}

bool cli_decimal(const char *command, const char *flag, const char *text, cli_range range,
                 float *out) {
    *out = is_decimal(text) ? strtof(text, NULL) : INFINITY;
    if (!isfinite(*out)) {
        cli_fail(command, "%s %s: not a decimal number", flag, text);
        return false;
    }
    if ((range.above ? *out > range.least : *out >= range.least) && *out <= range.most) return true;
    const char *from = range.above ? "above" : "at least";
    if (isfinite(range.most))
        cli_fail(command, "%s %s: must be %s %g and at most %g", flag, text, from,
                 (double)range.least, (double)range.most);
    else
        cli_fail(command, "%s %s: must be %s %g", flag, text, from, (double)range.least);
    return false;
}

bool cli_size(const char *command, const char *flag, const char *text, uint64_t *bytes) {
    static const char units[] = "KMGT";
    const size_t digits = strspn(text, DIGITS);
    const char *unit = text[digits] != '\0' ? strchr(units, text[digits]) : NULL;
    const unsigned shift = unit != NULL ? 10 * (unsigned)(unit - units + 1) : 0;
    const bool all = digits > 0 && digits < 20 && text[digits + (unit != NULL)] == '\0';
    const uint64_t number = all ? strtoull(text, NULL, 10) : 0;
    *bytes = number <= UINT64_MAX >> shift ? number << shift : 0;
    if (*bytes > 0) return true;
    cli_fail(command, "%s %s: must be bytes, as 64M or 67108864", flag, text);
    return false;
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

cli_digits cli_hex(const uint8_t bytes[16]) {
    cli_digits out;
    for (int i = 0; i < 16; i++)
        snprintf(out.text + 2 * i, 3, "%02x", bytes[i]);
    return out;
}
