/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of a device's kernels (tamis/settings.h), and what is known of kinds of processors. */
#ifndef TMS_SETTINGS_H
#define TMS_SETTINGS_H

#include "host/base/dtype.h"

#include <stdbool.h>
#include <tamis/settings.h>

#define TMS_SETTINGS    5u
#define TMS_SETTING_OPS 3u

typedef struct tms_settings {
    uint32_t value[TMS_SETTING_OPS][TMS_DTYPES][2][TMS_SETTINGS]; /* 2: group 1, or more */
} tms_settings;

static inline uint32_t *tms_settings_at(tms_settings *t, tamis_setting_op op, tamis_dtype dtype,
                                        uint32_t group, tamis_setting setting) {
    return &t->value[op][dtype][group > 1][setting];
}

bool tms_setting_allows(tamis_setting setting, uint32_t value);

/* The values that the library has for the device, and where they come from; the text stays. For a
 * kind that it does not know the text is TMS_SETTINGS_DEFAULT. */
#define TMS_SETTINGS_DEFAULT "default"
const char *tms_settings_shipped(const tamis_device_info *device, tms_settings *out);
/* Whether its kernels have settings, and whether they have any of the op. */
bool tms_settings_used(const tamis_device_info *device);
bool tms_settings_used_by(const tamis_device_info *device, tamis_setting_op op);

#endif
