/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands share: messages, opening a device, the flags of a selection and of
 * an eviction. */
#include "cli/cli.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DIGITS "0123456789"

const char *const cli_groups[] = {
    [TAMIS_GROUP_MAX] = "max", [TAMIS_GROUP_MEAN] = "mean", [TAMIS_GROUP_SUM] = "sum", NULL};
const char *const cli_dtypes[] = {
    [TAMIS_F32] = "f32", [TAMIS_F16] = "f16", [TAMIS_BF16] = "bf16", NULL};
const char *const cli_bounds[] = {[TAMIS_BOUNDS_MINMAX] = "minmax",
                                  [TAMIS_BOUNDS_MEAN_STD] = "meanstd",
                                  [TAMIS_BOUNDS_MEAN] = "mean",
                                  NULL};
const char *const cli_poolings[] = {
    [TAMIS_POOL_MAX] = "max", [TAMIS_POOL_AVERAGE] = "average", NULL};
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
    const tamis_context_params params = {.device = device, .log = log_line};
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

tamis_status cli_no_memory(tamis_error *error) {
    return cli_error(error, TAMIS_E_NO_MEMORY, "out of host memory");
}

const char *cli_selection_name(uint32_t value) {
    if (value < CLI_SELECTION_PRESET) return tamis_selection_name((tamis_selection_kind)value);
    return cli_selection_presets[value - CLI_SELECTION_PRESET];
}

static tamis_selection preset(uint32_t value) {
    tamis_selection selection;
    if (tamis_selection_preset(cli_selection_name(value), &selection, NULL) != TAMIS_OK)
        tamis_selection_default((tamis_selection_kind)value, &selection);
    return selection;
}

tamis_selection_kind cli_selection_kind(uint32_t value) {
    return preset(value).kind;
}

bool cli_selection(const char *command, uint32_t value, uint32_t budget,
                   const cli_selection_flags *flags, uint32_t page_size, tamis_selection *out) {
    tamis_error error = {0};
    *out = preset(value);
    if (budget != CLI_UNSET) out->budget = budget;
    if (flags->sinks != CLI_UNSET) out->sinks = flags->sinks;
    if (flags->recent != CLI_UNSET) out->recent = flags->recent;
    if (flags->dense_layers != CLI_UNSET) out->dense_layers = flags->dense_layers;
    if (flags->group != CLI_UNSET) out->group = (tamis_group_rule)flags->group;
    if (tamis_selection_check(out, page_size, &error) == TAMIS_OK) return true;
    cli_fail(command, "%s", error.text);
    return false;
}

static bool is_decimal(const char *text) {
    size_t whole = strspn(text, DIGITS), point = text[whole] == '.';
    size_t part = point ? strspn(text + whole + 1, DIGITS) : 0;
    return whole + part > 0 && text[whole + point + part] == '\0';
}

bool cli_decimal(const char *command, const char *flag, const char *text, float *out) {
    *out = is_decimal(text) ? strtof(text, NULL) : INFINITY;
    if (isfinite(*out)) return true;
    cli_fail(command, "%s %s: not a decimal number", flag, text);
    return false;
}

/* An eviction under way: what its kind has decides which flags it takes. */
typedef struct taking {
    const char *command, *name;
    bool listed; /* beside others: flags for other kinds are passed over */
    bool failed;
} taking;

/* Whether a flag that was given is taken; one that the kind lacks is an error, if not passed over.
 * */
static bool takes(taking *t, const char *flag, bool given, bool has) {
    if (!given || has || t->listed) return given && has;
    cli_fail(t->command, "%s: is given for %s, which has none", flag, t->name);
    t->failed = true;
    return false;
}

static void take(taking *t, const char *flag, uint32_t given, bool has, uint32_t *out) {
    if (!t->failed && takes(t, flag, given != CLI_UNSET, has)) *out = given;
}

static void take_decimal(taking *t, const char *flag, const char *given, bool has, float *out) {
    if (!t->failed && takes(t, flag, given != NULL, has))
        t->failed = !cli_decimal(t->command, flag, given, out);
}

static bool is_listed(const cli_list *list, uint32_t value) {
    for (uint32_t i = 0; i < list->count; i++)
        if (list->values[i] == value) return true;
    return false;
}

/* Options by --evict-options, which may be for others, and by the kind's own "+word". */
static void take_options(taking *t, const cli_list *given, uint32_t own, tamis_eviction *e) {
    for (uint32_t i = 0; cli_eviction_options[i] != NULL && !t->failed; i++) {
        bool asked = own >> i & 1u;
        if (!asked && !is_listed(given, i)) continue;
        tamis_eviction with;
        tamis_eviction_default(e->kind, &with);
        with.options = 1u << i;
        if (tamis_eviction_check(&with, NULL) == TAMIS_OK) {
            e->options |= with.options;
        } else if (asked || !t->listed) {
            cli_fail(t->command, "--evict %s: has no option %s", t->name, cli_eviction_options[i]);
            t->failed = true;
        }
    }
}

bool cli_eviction(const char *command, uint32_t value, uint32_t budget,
                  const cli_eviction_flags *flags, bool listed, tamis_eviction *out) {
    tamis_error error = {0};
    tamis_eviction_default((tamis_eviction_kind)CLI_EVICTION_KIND(value), out);
    const tamis_eviction had = *out;
    taking t = {.command = command, .name = tamis_eviction_name(had.kind), .listed = listed};
    uint32_t pooling = (uint32_t)had.pooling;
    if (budget != CLI_UNSET) out->budget = budget;
    take_options(&t, &flags->options, CLI_EVICTION_OPTIONS(value), out);
    take(&t, "--evict-sinks", flags->sinks, true, &out->sinks);
    take(&t, "--evict-recent", flags->recent, had.kind == TAMIS_EVICT_H2O, &out->recent);
    take(&t, "--evict-window", flags->window, had.window > 0, &out->window);
    take(&t, "--evict-kernel", flags->kernel, had.kernel > 0, &out->kernel);
    take(&t, "--evict-pool", flags->pooling, had.kernel > 0, &pooling);
    take(&t, "--evict-chunk", flags->chunk, had.chunk > 0, &out->chunk);
    take(&t, "--evict-every", flags->every, !listed || flags->every != 1 || had.every == 1,
         &out->every);
    take_decimal(&t, "--evict-floor", flags->floor, had.floor != 0, &out->floor);
    take_decimal(&t, "--evict-beta", flags->beta, had.beta > 0, &out->beta);
    if (t.failed) return false;
    out->pooling = (tamis_pooling)pooling;
    if (had.floor != 0 && out->floor == 0) out->floor = -1; /* the library's word for none */
    if (had.beta > 0 && out->beta < 1) {
        cli_fail(command, "--evict-beta %s: must be at least 1", flags->beta);
        return false;
    }
    if (tamis_eviction_check(out, &error) == TAMIS_OK) return true;
    cli_fail(command, "--evict %s: %s", cli_eviction_name(out).text, error.text);
    return false;
}

cli_eviction_text cli_eviction_name(const tamis_eviction *eviction) {
    cli_eviction_text out;
    snprintf(out.text, sizeof(out.text), "%s", tamis_eviction_name(eviction->kind));
    for (uint32_t i = 0; cli_eviction_options[i] != NULL; i++) {
        size_t used = strlen(out.text);
        if (eviction->options >> i & 1u)
            snprintf(out.text + used, sizeof(out.text) - used, "+%s", cli_eviction_options[i]);
    }
    return out;
}

static void add_value(uint32_t value, uint32_t *values, uint32_t *count) {
    if (CLI_EVICTION_KIND(value) == TAMIS_EVICT_NONE) return;
    for (uint32_t i = 0; i < *count; i++)
        if (values[i] == value) return;
    values[(*count)++] = value;
}

uint32_t cli_list_evictions(const cli_list *list, uint32_t values[CLI_EVICTIONS_MAX]) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->values[i] != CLI_EVICTION_ALL) add_value(list->values[i], values, &count);
        if (list->values[i] != CLI_EVICTION_ALL) continue;
        for (uint32_t kind = TAMIS_EVICT_STREAMING; kind < TAMIS_EVICT_CALLER; kind++)
            add_value(CLI_EVICTION_OF(kind, 0), values, &count);
    }
    return count;
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
