/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of bounds by name. */
#include "lib/cache/cache.h"
#include "lib/core/text_file.h"

#include <math.h>
#include <string.h>

static const char *const names[] = {"minmax", "meanstd", "mean"};
static const size_t n_names = sizeof names / sizeof *names;

static bool is_kind(tamis_bounds_kind kind) {
    return (int)kind >= 0 && (size_t)kind < n_names;
}

tamis_status tamis_bounds_parse(const char *name, tamis_bounds_kind *out, tamis_error *error) {
    TMS_REQUIRE(name, TAMIS_E_ARGUMENT, "name is NULL");
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    for (size_t i = 0; i < n_names; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (tamis_bounds_kind)i;
            return TAMIS_OK;
        }
    }
    return tms_error_set(error, TAMIS_E_ARGUMENT,
                         "there are no bounds \"%s\"; known are %s, %s, %s", tms_quote(name).text,
                         names[0], names[1], names[2]);
}

const char *tamis_bounds_name(tamis_bounds_kind kind) {
    return is_kind(kind) ? names[kind] : "unknown";
}

tamis_status tms_bounds_fill(tamis_bounds *bounds, tamis_error *error) {
    TMS_REQUIRE_RESERVED(bounds, tamis_bounds);
    TMS_REQUIRE(is_kind(bounds->kind), TAMIS_E_ARGUMENT, "there is no bounds kind %d",
                (int)bounds->kind);
    TMS_REQUIRE(bounds->width >= 0 && isfinite(bounds->width), TAMIS_E_ARGUMENT,
                "bounds width %g is negative or not finite", (double)bounds->width);
    if (bounds->kind != TAMIS_BOUNDS_MEAN_STD) bounds->width = 0;
    if (bounds->kind == TAMIS_BOUNDS_MEAN_STD && bounds->width == 0) bounds->width = 1;
    return TAMIS_OK;
}
