/* SPDX-License-Identifier: Apache-2.0 */
/* The list of settings, and the values that were measured on kinds of processors, or follow from what
 * compilers make of kernels for GPUs. An OpenCL CPU device is the host, so the processor is asked
 * itself. */
#include "host/settings.h"
#include "host/ops/types.h"

#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const uint32_t fetch_rows[] = {0, 1, 2, 4, 8, 16}, fetch_level[] = {1, 2},
                      score_ahead[] = {0, 8, 16, 32}, fetch_near[] = {0, 2, 4, 8},
                      keys_ahead[] = {1, 2, 4};

#define BIT(op) (1u << (op))
#define SETTING(name, ops)                                                                         \
    { #name, name, sizeof name / sizeof *name, ops }

static const tamis_setting_info infos[TMS_SETTINGS] = {
    [TAMIS_SETTING_FETCH_ROWS] =
        SETTING(fetch_rows, BIT(TAMIS_SETTING_OF_ATTEND) | BIT(TAMIS_SETTING_OF_SPARSE)),
    [TAMIS_SETTING_FETCH_LEVEL] =
        SETTING(fetch_level, BIT(TAMIS_SETTING_OF_ATTEND) | BIT(TAMIS_SETTING_OF_SPARSE)),
    [TAMIS_SETTING_SCORE_AHEAD] = SETTING(score_ahead, BIT(TAMIS_SETTING_OF_SPARSE)),
    [TAMIS_SETTING_FETCH_NEAR] =
        SETTING(fetch_near, BIT(TAMIS_SETTING_OF_ATTEND) | BIT(TAMIS_SETTING_OF_SPARSE)),
    [TAMIS_SETTING_KEYS_AHEAD] = SETTING(keys_ahead, BIT(TAMIS_SETTING_OF_GPU_ATTEND)),
};

const tamis_setting_info *tamis_setting_describe(uint32_t setting) {
    return setting < TMS_SETTINGS ? &infos[setting] : NULL;
}

const char *tamis_setting_op_name(uint32_t op) {
    static const char *const names[TMS_SETTING_OPS] = {"attend", "sparse", "gpu_attend"};
    return op < TMS_SETTING_OPS ? names[op] : NULL;
}

bool tms_setting_allows(tamis_setting setting, uint32_t value) {
    const tamis_setting_info *info = &infos[setting];
    for (uint32_t i = 0; i < info->n_values; i++)
        if (info->values[i] == value) return true;
    return false;
}

/* ---- Kinds of processors --------------------------------------------------------------------- */

/* CPUs have the first ops and settings. Values by [op][group > 1]. */
#define CPU_OPS      TAMIS_SETTING_OF_GPU_ATTEND
#define CPU_SETTINGS TAMIS_SETTING_KEYS_AHEAD
typedef uint32_t values[CPU_OPS][2][CPU_SETTINGS];

/* To prefetch all rows is what loses least where the processor is not known. */
static const values all_rows = {{{16, 2, 16, 0}, {16, 2, 16, 0}}, {{16, 2, 16, 0}, {16, 2, 16, 0}}};
/* Measured on an Ice Lake Xeon. */
static const values intel_floats = {{{4, 1, 16, 0}, {1, 1, 16, 0}}, {{4, 1, 16, 0}, {1, 1, 16, 0}}},
                    intel_q8 = {{{16, 2, 16, 0}, {16, 2, 16, 0}}, {{4, 2, 16, 0}, {16, 1, 16, 0}}};
/* On an Emerald Rapids Xeon: there the rows just ahead are the ones to prefetch in caches of floats. */
static const values rapids_floats = {{{16, 1, 16, 4}, {16, 1, 16, 8}},
                                     {{16, 1, 16, 4}, {16, 1, 32, 8}}},
                    rapids_q8 = {{{16, 2, 16, 0}, {16, 2, 16, 0}},
                                 {{16, 2, 16, 0}, {16, 2, 32, 8}}},
                    rapids_4_bits = {{{16, 2, 16, 0}, {16, 2, 16, 0}},
                                     {{16, 2, 32, 0}, {16, 1, 16, 0}}};
/* On a Zen 5 EPYC; k8v4 and q4 have the same best values. */
static const values zen5_floats = {{{16, 1, 16, 4}, {16, 1, 16, 0}},
                                   {{16, 2, 16, 4}, {16, 1, 32, 0}}},
                    zen5_q8 = {{{16, 1, 16, 0}, {16, 1, 16, 0}}, {{16, 2, 32, 0}, {16, 1, 32, 0}}},
                    zen5_4_bits = {{{16, 1, 16, 0}, {16, 1, 16, 0}},
                                   {{16, 2, 32, 8}, {16, 1, 32, 8}}};
/* On a Zen 4 EPYC, where floats have the default ones. */
static const values zen4_blocks = {{{16, 2, 16, 0}, {16, 2, 16, 0}},
                                   {{16, 2, 32, 0}, {16, 2, 16, 8}}};

/* vendor: as CPUID gives it; family: 0 for any; models: a bit for each extended model, the upper 4
 * bits of a model's number, 0 for any; lower: a bit for each value of the lower 4, 0 for any. Of caches whose elements are floating-point numbers, of q8,
 * and of k8v4 and q4, which have the values of q8 where they were not measured. The last row is for
 * all others. */
#define ZEN_4 (1u << 1 | 0x1fu << 6) /* of family 25, which is Zen 3, too */
#define RAPIDS  (1u << 8 | 1u << 12)   /* extended models of Sapphire and Emerald Rapids, */
#define FIFTEEN (1u << 15)             /* which share them with others */
static const struct row {
    const char *name, *vendor;
    uint32_t family, models, lower;
    const values *floats, *q8, *four_bits;
} rows[] = {
    {"built in for Intel Sapphire and Emerald Rapids", "GenuineIntel", 6, RAPIDS, FIFTEEN,
     &rapids_floats, &rapids_q8, &rapids_4_bits},
    {"built in for Intel", "GenuineIntel", 0, 0, 0, &intel_floats, &intel_q8, &intel_q8},
    {"built in for AMD family 26", "AuthenticAMD", 26, 0, 0, &zen5_floats, &zen5_q8, &zen5_4_bits},
    {"built in for AMD family 25", "AuthenticAMD", 25, ZEN_4, 0, &all_rows, &zen4_blocks,
     &zen4_blocks},
    {TMS_SETTINGS_DEFAULT, NULL, 0, 0, 0, &all_rows, &all_rows, &all_rows},
};

static const values *values_of(const struct row *r, tamis_dtype dtype) {
    if (!tms_has_blocks(dtype)) return r->floats;
    return dtype == TAMIS_Q8 ? r->q8 : r->four_bits;
}

/* The vendor as 12 characters and a NUL, empty where there is no CPUID; the model's 8 bits. */
static void processor(char vendor[13], uint32_t *family, uint32_t *model) {
    memset(vendor, 0, 13);
    *family = *model = 0;
#if defined(__x86_64__)
    uint32_t a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d)) return;
    memcpy(vendor, &b, 4);
    memcpy(vendor + 4, &d, 4);
    memcpy(vendor + 8, &c, 4);
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    *family = (a >> 8) & 15;
    *model = (a >> 12 & 0xf0) | (a >> 4 & 15);
    if (*family == 15) *family += (a >> 20) & 255;
#endif
}

/* GPUs by the beginning of their driver's name; the last row is for all others. A compiler of Intel's
 * leaves sums in private memory where a work-item reads two keys of 128 channels ahead
 * (docs/results/gpu-compilers.md). */
static const struct gpu {
    const char *name, *driver;
    uint32_t keys_ahead;
} gpus[] = {{"built in for GPUs of Intel", "Intel(R)", 1}, {TMS_SETTINGS_DEFAULT, "", 2}};

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* Of CPUs: the drivers whose CPU forms are used and whose compilers take prefetches. */
bool tms_settings_used(const tamis_device_info *device) {
    if (strcmp(device->backend, "opencl") != 0) return false;
    return device->kind == TAMIS_DEVICE_GPU ||
           (device->kind == TAMIS_DEVICE_CPU &&
            (begins(device->driver, "Portable Computing Language") ||
             begins(device->driver, "Intel(R) OpenCL")));
}

bool tms_settings_used_by(const tamis_device_info *device, tamis_setting_op op) {
    const bool of_gpus = op == TAMIS_SETTING_OF_GPU_ATTEND;
    return tms_settings_used(device) && (device->kind == TAMIS_DEVICE_GPU) == of_gpus;
}

/* Values of the ops of GPUs, and where they come from. */
static const char *shipped_for_gpu(const tamis_device_info *device, tms_settings *out) {
    const struct gpu *g = gpus;
    while (!begins(device->driver, g->driver))
        g++;
    for (uint32_t dtype = 0; dtype < TMS_DTYPES; dtype++)
        for (uint32_t group = 1; group <= 2; group++)
            *tms_settings_at(out, TAMIS_SETTING_OF_GPU_ATTEND, (tamis_dtype)dtype, group,
                             TAMIS_SETTING_KEYS_AHEAD) = g->keys_ahead;
    return g->name;
}

/* The same of the ops of CPUs, for the processor that runs this. */
static const char *shipped_for_cpu(tms_settings *out) {
    const struct row *r = rows;
    char vendor[13];
    uint32_t family, model;
    processor(vendor, &family, &model);
    while (r->vendor && (strcmp(r->vendor, vendor) != 0 || (r->family && r->family != family) ||
                         (r->models && !(r->models >> (model >> 4) & 1)) ||
                         (r->lower && !(r->lower >> (model & 15) & 1))))
        r++;
    for (uint32_t op = 0; op < CPU_OPS; op++)
        for (uint32_t dtype = 0; dtype < TMS_DTYPES; dtype++)
            for (uint32_t many = 0; many < 2; many++)
                memcpy(out->value[op][dtype][many], (*values_of(r, (tamis_dtype)dtype))[op][many],
                       sizeof(values) / (CPU_OPS * 2));
    return r->name;
}

const char *tms_settings_shipped(const tamis_device_info *device, tms_settings *out) {
    memset(out, 0, sizeof *out);
    const char *gpu = shipped_for_gpu(device, out), *cpu = shipped_for_cpu(out);
    if (!tms_settings_used(device)) return "none";
    return device->kind == TAMIS_DEVICE_GPU ? gpu : cpu;
}
