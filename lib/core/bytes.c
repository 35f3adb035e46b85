/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes: numbers in them, their sum, as digits, and into files. */
#include "lib/core/bytes.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void tms_put_words(uint8_t *to, const void *from, size_t bytes, uint32_t word) {
    const uint8_t *at = from;
    if (word == 1) memcpy(to, at, bytes);
    for (size_t i = 0; word == 2 && i < bytes; i += 2) {
        uint16_t value;
        memcpy(&value, at + i, 2);
        to[i] = (uint8_t)value;
        to[i + 1] = (uint8_t)(value >> 8);
    }
    for (size_t i = 0; word == 4 && i < bytes; i += 4) {
        uint32_t value;
        memcpy(&value, at + i, 4);
        tms_put_u32(to + i, value);
    }
}

void tms_get_words(void *to, const uint8_t *from, size_t bytes, uint32_t word) {
    uint8_t *at = to;
    if (word == 1) memcpy(at, from, bytes);
    for (size_t i = 0; word == 2 && i < bytes; i += 2) {
        const uint16_t value = (uint16_t)(from[i] | from[i + 1] << 8);
        memcpy(at + i, &value, 2);
    }
    for (size_t i = 0; word == 4 && i < bytes; i += 4) {
        const uint32_t value = tms_get_u32(from + i);
        memcpy(at + i, &value, 4);
    }
}

/* Each word goes in by a change that can be undone, an xor, a product with an odd number, and an xor
 * of the number with its upper half: so one other word gives another sum. */
uint64_t tms_sum(uint64_t sum, const void *bytes, size_t n) {
    const uint8_t *at = bytes;
    for (size_t i = 0; i < n; i += 8) {
        uint8_t last[8] = {0};
        if (n - i < 8) memcpy(last, at + i, n - i);
        sum = (sum ^ tms_get_u64(n - i < 8 ? last : at + i)) * UINT64_C(0x9e3779b97f4a7c15);
        sum ^= sum >> 32;
    }
    return sum;
}

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
