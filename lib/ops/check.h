/* SPDX-License-Identifier: Apache-2.0 */
/* From the structs of tamis/ops.h to those of host/ops.h: what the public calls check of a caller's
 * buffers on the way. The rules of the contract itself are host's. */
#ifndef TMS_OPS_CHECK_H
#define TMS_OPS_CHECK_H

#include "lib/core/core.h"
#include <tamis/ops.h>

/* A call on its way. After the first broken rule, which is in *error, the functions below do
 * nothing. */
typedef struct tms_op_call {
    const tamis_context *context;
    bool measured; /* only the shape counts: buffers may be absent */
    tamis_status status;
    tamis_error *error;
} tms_op_call;

/* Begins the call `c` in a public function, or returns from it. */
#define TMS_OP_BEGIN(c, context, params, type)                                                     \
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context is NULL");                                     \
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params is NULL");                                       \
    TMS_REQUIRE_RESERVED(params, type);                                                            \
    tms_op_call c = {context, false, TAMIS_OK, error}

/* The first broken rule; printf form. */
void tms_op_refuse(tms_op_call *c, tamis_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A field that must be 0, and one that must not. */
void tms_op_zero(tms_op_call *c, const char *type, const char *name, uint64_t value);
void tms_op_above_0(tms_op_call *c, const char *name, uint64_t value);
/* An enumerator, of which there are those up to `last`. */
void tms_op_one_of(tms_op_call *c, const char *name, int value, int last);

/* Products and sums that stay at UINT64_MAX, which no buffer has. */
uint64_t tms_op_times(uint64_t a, uint64_t b);
uint64_t tms_op_plus(uint64_t a, uint64_t b);

/* `bytes` from a place on, which may be absent if that is 0; or in any case. */
tms_ref tms_op_place(tms_op_call *c, const char *name, const tamis_place *place, uint64_t bytes);
tms_ref tms_op_optional(tms_op_call *c, const char *name, const tamis_place *place, uint64_t bytes);

/* Rows of a caller's under their name. */
typedef struct tms_op_rows {
    const char *name;
    const tamis_rows *rows;
    uint32_t n_rows;
    uint64_t width;
} tms_op_rows;
tms_matrix tms_op_matrix(tms_op_call *c, const tms_op_rows *rows); /* f32 */
tms_ref tms_op_weights(tms_op_call *c, const tms_op_rows *rows);   /* packed, any dtype */
/* Rows that have been checked share no byte of a buffer, the gaps between them included. */
void tms_op_apart(tms_op_call *c, const tms_op_rows *a, const tms_op_rows *b);

/* A cache of the caller's whose pages hold n_kv_heads heads. `rows`: 0, nothing is read or written
 * and buffers may be absent; so may bounds unless they are `bounded`. */
tms_kv tms_op_kv(tms_op_call *c, const tamis_kv *kv, uint32_t n_kv_heads, uint32_t rows,
                 bool bounded);
/* A batch whose tiles are read if it is `tiled`, and its page lists unless page_size is 0. */
tms_batch tms_op_batch(tms_op_call *c, const tamis_batch *batch, uint32_t page_size, bool tiled);
/* Lists of so many (row, KV head). */
tms_lists tms_op_lists(tms_op_call *c, const tamis_lists *lists, uint64_t owners, bool optional);

#endif
