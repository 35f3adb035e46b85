/* SPDX-License-Identifier: Apache-2.0 */
/* Names and texts of the status codes. */
#include <tamis/status.h>

const char *tamis_status_name(tamis_status status) {
    switch (status) {
#define NAME_CASE(name, value, text)                                                               \
    case TAMIS_##name:                                                                             \
        return #name;
        TAMIS_STATUS_LIST(NAME_CASE)
#undef NAME_CASE
    }
    return "unknown";
}

const char *tamis_status_text(tamis_status status) {
    switch (status) {
#define TEXT_CASE(name, value, text)                                                               \
    case TAMIS_##name:                                                                             \
        return text;
        TAMIS_STATUS_LIST(TEXT_CASE)
#undef TEXT_CASE
    }
    return "unknown";
}
