/* SPDX-License-Identifier: Apache-2.0 */
/* A line on a terminal that says that kernels are being compiled, and counts the time. */
#ifndef CLI_BUILDING_H
#define CLI_BUILDING_H

#include <tamis/tamis.h>

/* For tamis_context_params.build; `user` is not used. */
void cli_building(void *user, const tamis_build_progress *progress);

/* "compiling kernels, once: 12 of 31, 4.1 s" */
typedef struct cli_building_text {
    char text[80];
} cli_building_text;
cli_building_text cli_building_line(uint32_t done, uint32_t all, double seconds);

#endif
