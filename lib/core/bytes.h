/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes: numbers in them, their sum, as digits, and into files. */
#ifndef TMS_BYTES_H
#define TMS_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Little-endian numbers ------------------------------------------------------------------- */

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

/* `bytes` bytes of words of 1, 2 or 4 bytes, little-endian on one side, the host's on the other. */
void tms_put_words(uint8_t *to, const void *from, size_t bytes, uint32_t word);
void tms_get_words(void *to, const uint8_t *from, size_t bytes, uint32_t word);

/* ---- A checksum ------------------------------------------------------------------------------ */

#define TMS_SUM_BEGIN UINT64_C(0xcbf29ce484222325)

/* Goes on from a sum with further bytes: 8 by 8, the last of them filled up with zeros, so that the
 * sum depends on where bytes are cut. Bytes that differ within one such 8 never have the same sum,
 * others by chance: it finds accidents, not forgeries. */
uint64_t tms_sum(uint64_t sum, const void *bytes, size_t n);

/* ---- Digits and files ------------------------------------------------------------------------ */

/* A key or a fingerprint as 32 digits and a NUL. */
void tms_hex(const uint8_t bytes[16], char text[33]);
/* Reads the text's first 32 characters; false if they are none of these. */
bool tms_hex_parse(const char *text, uint8_t bytes[16]);

/* Writes all of it, whatever signals come. False with errno: some of it may have been written. */
bool tms_write_all(int file, const void *from, size_t bytes);

#endif
