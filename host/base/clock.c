/* SPDX-License-Identifier: Apache-2.0 */
#include "host/base/clock.h"

#include <time.h>

double tms_now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}
