/* SPDX-License-Identifier: Apache-2.0 */
/* The version of the loaded library. */
#include <tamis/version.h>

#define TEXT_OF(number)              #number
#define VERSION(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *tamis_version(void) {
    return VERSION(TAMIS_VERSION_MAJOR, TAMIS_VERSION_MINOR, TAMIS_VERSION_PATCH);
}
