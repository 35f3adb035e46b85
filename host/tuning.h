/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of a device's kernels (tamis/tuning.h), and what is known of kinds of processors. */
#ifndef TMS_TUNING_H
#define TMS_TUNING_H

#include <stdbool.h>
#include <tamis/tuning.h>

#define TMS_SETTINGS     4u
#define TMS_TUNED_OPS    2u
#define TMS_TUNED_DTYPES 6u

typedef struct tms_tuning {
    uint32_t value[TMS_TUNED_OPS][TMS_TUNED_DTYPES][2][TMS_SETTINGS]; /* 2: group 1, or more */
} tms_tuning;

static inline uint32_t *tms_tuning_at(tms_tuning *t, tamis_tuned_op op, tamis_dtype dtype,
                                      uint32_t group, tamis_setting setting) {
    return &t->value[op][dtype][group > 1][setting];
}

bool tms_setting_allows(tamis_setting setting, uint32_t value);

/* The values that the library has for the device, and where they come from; the text stays. For a
 * kind that it does not know the text is TMS_TUNING_DEFAULT. */
#define TMS_TUNING_DEFAULT "default"
const char *tms_tuning_shipped(const tamis_device_info *device, tms_tuning *out);
/* Whether its kernels have settings. */
bool tms_tuning_used(const tamis_device_info *device);

#endif
