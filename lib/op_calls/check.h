/* SPDX-License-Identifier: Apache-2.0 */
/* Translates the structs of tamis/ops.h to those of host/ops/, and checks the caller's buffers.
 * The rules of the contract itself are checked in host/. */
#ifndef TMS_OPS_CHECK_H
#define TMS_OPS_CHECK_H

#include "lib/core/core.h"
#include <tamis/ops.h>

/* A call that is being translated. After the first broken rule, which is in *error, the functions
 * below do nothing. */
typedef struct tms_op_call {
    const tamis_context *context;
    bool measured; /* only scratch is measured: buffers may be absent */
    tamis_status status;
    tamis_error *error;
} tms_op_call;

/* Begins the call `c` in a public function, or returns from it. */
#define TMS_OP_BEGIN(c, context, params, type)                                                     \
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context is NULL");                                     \
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params is NULL");                                       \
    TMS_REQUIRE_RESERVED(params, type);                                                            \
    tms_op_call c = {context, false, TAMIS_OK, error}

/* Records a broken rule, if it is the first; printf form. */
void tms_op_refuse(tms_op_call *c, tamis_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Check a field that must be 0, and one that must not. */
void tms_op_zero(tms_op_call *c, const char *type, const char *name, uint64_t value);
void tms_op_above_0(tms_op_call *c, const char *name, uint64_t value);
/* Checks a struct's `reserved`. */
void tms_op_reserved(tms_op_call *c, const uint64_t *reserved, size_t n, const char *type);
/* Checks an enumerator, which must be from 0 to `last`. */
void tms_op_one_of(tms_op_call *c, const char *name, int value, int last);

/* Products and sums that saturate at UINT64_MAX, a size that no buffer has. */
uint64_t tms_op_times(uint64_t a, uint64_t b);
uint64_t tms_op_plus(uint64_t a, uint64_t b);

/* A place with room for `bytes` bytes. It may be absent if `bytes` is 0; in the second form
 * always. */
tms_ref tms_op_place(tms_op_call *c, const char *name, const tamis_place *place, uint64_t bytes);
tms_ref tms_op_optional(tms_op_call *c, const char *name, const tamis_place *place, uint64_t bytes);

/* A caller's rows, with the name for messages. */
typedef struct tms_op_rows {
    const char *name;
    const tamis_rows *rows;
    uint32_t n_rows;
    uint64_t width;
} tms_op_rows;
tms_matrix tms_op_matrix(tms_op_call *c, const tms_op_rows *rows); /* f32 */
tms_matrix tms_op_any_rows(tms_op_call *c, const tms_op_rows *rows); /* f32, f16 or bf16 */
/* Weights of `n_out` rows of n_in; with n_out 0 the buffer may be absent. */
tms_weight_matrix tms_op_weights(tms_op_call *c, const tamis_weight_matrix *w, uint32_t n_out,
                                 uint32_t n_in);
/* Checks that two checked rows share no byte of a buffer, the gaps between rows included. */
void tms_op_apart(tms_op_call *c, const tms_op_rows *a, const tms_op_rows *b);

/* A caller's cache whose pages hold n_kv_heads heads. If `rows` is 0 nothing is read or written,
 * and buffers may be absent. bounded: the bounds must be given. */
tms_kv tms_op_kv(tms_op_call *c, const tamis_kv *kv, uint32_t n_kv_heads, uint32_t rows,
                 bool bounded);
/* A batch. tiled: its tiles are read. page_size not 0: its page lists are read. */
tms_batch tms_op_batch(tms_op_call *c, const tamis_batch *batch, uint32_t page_size, bool tiled);
/* Lists of `owners` pairs (row, KV head). */
tms_lists tms_op_lists(tms_op_call *c, const tamis_lists *lists, uint64_t owners, bool optional);

#endif
