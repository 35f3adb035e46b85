/* SPDX-License-Identifier: Apache-2.0 */
/* The list of settings, and the values that were measured on kinds of processors. An OpenCL CPU
 * device is the host, so the processor is asked itself. */
#include "host/tuning.h"
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const uint32_t fetch_rows[] = {0, 1, 2, 4, 8, 16}, fetch_level[] = {1, 2},
                      score_ahead[] = {0, 8, 16, 32}, fetch_near[] = {0, 2, 4, 8};

#define BIT(op) (1u << (op))
#define SETTING(name, ops)                                                                         \
    { #name, name, sizeof name / sizeof *name, ops }

static const tamis_setting_info infos[TMS_SETTINGS] = {
    [TAMIS_SETTING_FETCH_ROWS] =
        SETTING(fetch_rows, BIT(TAMIS_TUNED_ATTEND) | BIT(TAMIS_TUNED_SPARSE)),
    [TAMIS_SETTING_FETCH_LEVEL] =
        SETTING(fetch_level, BIT(TAMIS_TUNED_ATTEND) | BIT(TAMIS_TUNED_SPARSE)),
    [TAMIS_SETTING_SCORE_AHEAD] = SETTING(score_ahead, BIT(TAMIS_TUNED_SPARSE)),
    [TAMIS_SETTING_FETCH_NEAR] =
        SETTING(fetch_near, BIT(TAMIS_TUNED_ATTEND) | BIT(TAMIS_TUNED_SPARSE)),
};

const tamis_setting_info *tamis_setting_describe(uint32_t setting) {
    return setting < TMS_SETTINGS ? &infos[setting] : NULL;
}

const char *tamis_tuned_op_name(uint32_t op) {
    static const char *const names[TMS_TUNED_OPS] = {"attend", "sparse"};
    return op < TMS_TUNED_OPS ? names[op] : NULL;
}

bool tms_setting_allows(tamis_setting setting, uint32_t value) {
    const tamis_setting_info *info = &infos[setting];
    for (uint32_t i = 0; i < info->n_values; i++)
        if (info->values[i] == value) return true;
    return false;
}

/* ---- Kinds of processors --------------------------------------------------------------------- */

/* vendor: as CPUID gives it; family: 0 for any. Values by [op][group > 1], of caches whose elements
 * are floating-point numbers, of q8 and of k8v4. */
typedef struct row {
    const char *name, *vendor;
    uint32_t family;
    uint32_t floats[TMS_TUNED_OPS][2][TMS_SETTINGS], q8[TMS_TUNED_OPS][2][TMS_SETTINGS],
        k8v4[TMS_TUNED_OPS][2][TMS_SETTINGS];
} row;

/* Intel: measured on an Ice Lake Xeon, where k8v4 has the values of q8. AMD family 26: on Zen 5.
 * Family 25: on Zen 4, where only all rows and none were compared. The last row is for all others: to
 * prefetch all is what loses least where the processor is not known. */
/* clang-format off */
static const row rows[] = {
    {"built in for Intel", "GenuineIntel", 0,
     {{{4, 1, 16, 0}, {1, 1, 16, 0}}, {{4, 1, 16, 0}, {1, 1, 16, 0}}},
     {{{16, 2, 16, 0}, {16, 2, 16, 0}}, {{4, 2, 16, 0}, {16, 1, 16, 0}}},
     {{{16, 2, 16, 0}, {16, 2, 16, 0}}, {{4, 2, 16, 0}, {16, 1, 16, 0}}}},
    {"built in for AMD family 26", "AuthenticAMD", 26,
     {{{16, 1, 16, 4}, {16, 1, 16, 0}}, {{16, 2, 16, 4}, {16, 1, 32, 0}}},
     {{{16, 1, 16, 0}, {16, 1, 16, 0}}, {{16, 2, 32, 0}, {16, 1, 32, 0}}},
     {{{16, 1, 16, 0}, {16, 1, 16, 0}}, {{16, 2, 32, 8}, {16, 1, 32, 8}}}},
    {"built in for AMD family 25", "AuthenticAMD", 25,
     {{{16, 2, 16, 0}, {16, 2, 16, 0}}, {{16, 2, 16, 0}, {16, 2, 16, 0}}},
     {{{16, 2, 16, 0}, {16, 2, 16, 0}}, {{16, 2, 16, 0}, {16, 2, 16, 0}}},
     {{{16, 2, 16, 0}, {16, 2, 16, 0}}, {{16, 2, 16, 0}, {16, 2, 16, 0}}}},
    {"default", NULL, 0,
     {{{16, 2, 16, 0}, {16, 2, 16, 0}}, {{16, 2, 16, 0}, {16, 2, 16, 0}}},
     {{{16, 2, 16, 0}, {16, 2, 16, 0}}, {{16, 2, 16, 0}, {16, 2, 16, 0}}},
     {{{16, 2, 16, 0}, {16, 2, 16, 0}}, {{16, 2, 16, 0}, {16, 2, 16, 0}}}},
};
/* clang-format on */

/* The vendor as 12 characters and a NUL, empty where there is no CPUID. */
static void processor(char vendor[13], uint32_t *family) {
    memset(vendor, 0, 13);
    *family = 0;
#if defined(__x86_64__)
    uint32_t a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d)) return;
    memcpy(vendor, &b, 4);
    memcpy(vendor + 4, &d, 4);
    memcpy(vendor + 8, &c, 4);
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    *family = (a >> 8) & 15;
    if (*family == 15) *family += (a >> 20) & 255;
#endif
}

/* PoCL: the one driver whose CPU forms are used and whose compiler takes prefetches. */
bool tms_tuning_used(const tamis_device_info *device) {
    static const char pocl[] = "Portable Computing Language";
    return device->kind == TAMIS_DEVICE_CPU && strcmp(device->backend, "opencl") == 0 &&
           strncmp(device->driver, pocl, sizeof pocl - 1) == 0;
}

const char *tms_tuning_shipped(const tamis_device_info *device, tms_tuning *out) {
    const row *r = rows;
    char vendor[13];
    uint32_t family;
    processor(vendor, &family);
    while (r->vendor && (strcmp(r->vendor, vendor) != 0 || (r->family && r->family != family)))
        r++;
    for (uint32_t op = 0; op < TMS_TUNED_OPS; op++)
        for (uint32_t dtype = 0; dtype < TMS_TUNED_DTYPES; dtype++)
            memcpy(out->value[op][dtype],
                   dtype == TAMIS_K8V4 ? r->k8v4[op]
                   : dtype == TAMIS_Q8 ? r->q8[op]
                                       : r->floats[op],
                   sizeof r->q8[op]);
    return tms_tuning_used(device) ? r->name : "none";
}
