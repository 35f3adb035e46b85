/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of tamis/ops.h share: a context, its buffers, and exact test numbers. */
#ifndef TEST_OPS_RIG_H
#define TEST_OPS_RIG_H

#include "tests/api/fixture.h"
#include <tamis/ops.h>

typedef struct ops_rig {
    tamis_context *context;
    tamis_buffer *buffers[96];
    uint32_t n;
    uint64_t random;
} ops_rig;

void ops_open(ops_rig *rig);
void ops_close(ops_rig *rig); /* and all buffers */

/* Buffers of `bytes`: with the host's, or of bits that are NaN as f32. The first `offset` bytes are
 * in front of the place. */
tamis_place ops_send(ops_rig *rig, const void *host, uint64_t bytes, uint64_t offset);
tamis_place ops_room(ops_rig *rig, uint64_t bytes, uint64_t offset);
/* The same as rows of f32. */
tamis_rows ops_rows(tamis_place place, uint64_t row_stride);
/* n floats as another dtype. */
tamis_place ops_send_as(ops_rig *rig, tamis_dtype dtype, const float *host, uint64_t n);
void ops_read(const tamis_place *place, void *host, uint64_t bytes);

/* n/64 with |n| <= 127, which every dtype holds exactly. */
float ops_number(ops_rig *rig);
void ops_numbers(ops_rig *rig, float *to, uint64_t n);

/* |got - wanted| <= bound, else the test fails with `what` and the index. */
void ops_near(const char *what, uint64_t index, double got, double wanted, double bound);

#endif
