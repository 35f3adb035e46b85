/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as digits, and into files. */
#ifndef TMS_BYTES_H
#define TMS_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A key or a fingerprint as 32 digits and a NUL. */
void tms_hex(const uint8_t bytes[16], char text[33]);
/* Reads the text's first 32 characters; false if they are none of these. */
bool tms_hex_parse(const char *text, uint8_t bytes[16]);

/* Writes all of it, whatever signals come. False with errno: some of it may have been written. */
bool tms_write_all(int file, const void *from, size_t bytes);

#endif
