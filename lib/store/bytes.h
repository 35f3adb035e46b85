/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian numbers in bytes. */
#ifndef TMS_STORE_BYTES_H
#define TMS_STORE_BYTES_H

#include <stdint.h>

static inline void tms_put_u32(uint8_t *to, uint32_t value) {
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

static inline void tms_put_u64(uint8_t *to, uint64_t value) {
    tms_put_u32(to, (uint32_t)value);
    tms_put_u32(to + 4, (uint32_t)(value >> 32));
}

static inline uint32_t tms_get_u32(const uint8_t *from) {
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
           (uint32_t)from[3] << 24;
}

static inline uint64_t tms_get_u64(const uint8_t *from) {
    return tms_get_u32(from) | (uint64_t)tms_get_u32(from + 4) << 32;
}

#endif
