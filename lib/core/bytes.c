/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as digits. */
#include "lib/core/bytes.h"

#include <stddef.h>
#include <stdio.h>

void tms_hex(const uint8_t bytes[16], char text[33]) {
    for (size_t i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

/* 16 for what is no digit; capitals are none, so that a key has one name. */
static unsigned digit_of(char c) {
    if (c >= '0' && c <= '9') return (unsigned)(c - '0');
    return c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10 : 16;
}

bool tms_hex_parse(const char *text, uint8_t bytes[16]) {
    for (size_t i = 0; i < 16; i++) {
        const unsigned high = digit_of(text[2 * i]);
        const unsigned low = high < 16 ? digit_of(text[2 * i + 1]) : 16;
        if (low == 16) return false;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}
