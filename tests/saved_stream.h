/* SPDX-License-Identifier: Apache-2.0 */
/* Saved sequences in memory, for tests: callbacks that write and read them, and sums that are right
 * again after bytes were changed on purpose. */
#ifndef TEST_SAVED_STREAM_H
#define TEST_SAVED_STREAM_H

#include "lib/core/bytes.h"
#include "lib/plan/saved.h"

#include <stdlib.h>
#include <string.h>

#define SAVED_NUMBERS_AT   32u /* in the header, by tms_saved_number, 4 bytes each */
#define SAVED_HEADER_BYTES (SAVED_NUMBERS_AT + 4u * TMS_SAVED_NUMBERS + 8)

typedef struct saved_stream {
    uint8_t *bytes;
    size_t size, at;     /* at: how far it was read */
    size_t calls, fails; /* the callback's call of that number fails, from 1 on; 0: none does */
} saved_stream;

static inline int saved_write(void *user, const void *bytes, size_t n) {
    saved_stream *s = user;
    if (++s->calls == s->fails) return 7;
    uint8_t *grown = realloc(s->bytes, s->size + n);
    if (!grown) return 1;
    s->bytes = grown;
    memcpy(s->bytes + s->size, bytes, n);
    s->size += n;
    return 0;
}

static inline int saved_read(void *user, void *bytes, size_t n) {
    saved_stream *s = user;
    if (++s->calls == s->fails || n > s->size - s->at) return 7;
    memcpy(bytes, s->bytes + s->at, n);
    s->at += n;
    return 0;
}

static inline uint32_t saved_number(const saved_stream *s, tms_saved_number which) {
    return tms_get_u32(s->bytes + SAVED_NUMBERS_AT + 4 * which);
}
static inline void saved_set(saved_stream *s, tms_saved_number which, uint32_t value) {
    tms_put_u32(s->bytes + SAVED_NUMBERS_AT + 4 * which, value);
}

/* Makes the sums right of the header and of as many sections as there are by what their frames say. */
static inline void saved_mend(saved_stream *s) {
    if (s->size < SAVED_HEADER_BYTES) return;
    uint64_t sum = tms_sum(TMS_SUM_BEGIN, s->bytes, SAVED_HEADER_BYTES - 8);
    tms_put_u64(s->bytes + SAVED_HEADER_BYTES - 8, sum);
    for (size_t at = SAVED_HEADER_BYTES; s->size - at >= 16;) {
        const size_t n = tms_get_u32(s->bytes + at + 4);
        if (n > s->size - at - 16) return;
        sum = tms_sum(tms_sum(sum, s->bytes + at, 8), s->bytes + at + 8, n);
        tms_put_u64(s->bytes + at + 8 + n, sum);
        at += n + 16;
    }
}

#endif
