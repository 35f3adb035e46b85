/* SPDX-License-Identifier: Apache-2.0 */
/* The host's clock. */
#ifndef TMS_BASE_CLOCK_H
#define TMS_BASE_CLOCK_H

/* It never goes back; in microseconds. */
double tms_now_us(void);

#endif
