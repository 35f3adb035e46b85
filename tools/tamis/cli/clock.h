/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_CLOCK_H
#define CLI_CLOCK_H

/* Seconds of a clock that never goes back. */
double cli_seconds(void);

#endif
