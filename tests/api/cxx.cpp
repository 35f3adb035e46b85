/* SPDX-License-Identifier: Apache-2.0 */
/* The headers link from C++: names are C names, and the version is the headers' own. */
#include <cstdio>
#include <cstring>
#include <tamis/tamis.h>

int main() {
    char wanted[32];
    std::snprintf(wanted, sizeof wanted, "%d.%d.%d", TAMIS_VERSION_MAJOR, TAMIS_VERSION_MINOR,
                  TAMIS_VERSION_PATCH);
    return std::strcmp(tamis_version(), wanted) != 0;
}
