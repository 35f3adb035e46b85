/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of tamis/ops.h share. */
#include "tests/api/ops_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void ops_open(ops_rig *rig) {
    const tamis_context_params params = {.device = test_device};
    *rig = (ops_rig){.random = 7};
    OK(tamis_context_create(&params, &rig->context, &test_error));
}

void ops_close(ops_rig *rig) {
    for (uint32_t i = 0; i < rig->n; i++)
        tamis_buffer_destroy(&rig->buffers[i]);
    tamis_context_destroy(&rig->context);
}

tamis_place ops_room(ops_rig *rig, uint64_t bytes, uint64_t offset) {
    tamis_buffer **buffer = &rig->buffers[rig->n++];
    assert_true(rig->n <= sizeof rig->buffers / sizeof *rig->buffers);
    OK(tamis_buffer_create(rig->context, offset + bytes, buffer, &test_error));
    void *nan = malloc(offset + bytes);
    assert_non_null(nan);
    memset(nan, 0xff, offset + bytes);
    OK(tamis_buffer_write(*buffer, 0, nan, offset + bytes, &test_error));
    free(nan);
    return (tamis_place){*buffer, offset};
}

tamis_place ops_send(ops_rig *rig, const void *host, uint64_t bytes, uint64_t offset) {
    const tamis_place place = ops_room(rig, bytes, offset);
    OK(tamis_buffer_write(place.buffer, offset, host, bytes, &test_error));
    return place;
}

tamis_rows ops_rows(tamis_place place, uint64_t row_stride) {
    return (tamis_rows){.buffer = place.buffer, .offset = place.offset, .row_stride = row_stride};
}

/* f16 of NaN, 0, or a number of size 2^-14 at least that it holds. */
static uint16_t f16_of(uint32_t bits) {
    const uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    return (uint16_t)(rest ? sign | (rest - 0x38000000) >> 13 : sign);
}

tamis_place ops_send_as(ops_rig *rig, tamis_dtype dtype, const float *host, uint64_t n) {
    if (dtype == TAMIS_F32) return ops_send(rig, host, n * sizeof *host, 0);
    uint16_t *narrow = malloc(n * sizeof *narrow);
    assert_non_null(narrow);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, host + i, sizeof bits);
        narrow[i] = dtype == TAMIS_BF16 ? (uint16_t)(bits >> 16) : f16_of(bits);
    }
    const tamis_place place = ops_send(rig, narrow, n * sizeof *narrow, 0);
    free(narrow);
    return place;
}

void ops_read(const tamis_place *place, void *host, uint64_t bytes) {
    OK(tamis_buffer_read(place->buffer, place->offset, host, bytes, &test_error));
}

float ops_number(ops_rig *rig) {
    return (float)((int)test_below(&rig->random, 255) - 127) / 64;
}

void ops_numbers(ops_rig *rig, float *to, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        to[i] = ops_number(rig);
}

void ops_near(const char *what, uint64_t index, double got, double wanted, double bound) {
    if (fabs(got - wanted) <= bound || got == wanted) return;
    fail_msg("%s %llu: %.9g, wanted %.9g within %g", what, (unsigned long long)index, got, wanted,
             bound);
}
