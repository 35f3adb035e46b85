/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as digits, and into files. */
#include "lib/core/bytes.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

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

bool tms_write_all(int file, const void *from, size_t bytes) {
    const char *at = from;
    while (bytes > 0) {
        const ssize_t n = write(file, at, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}
