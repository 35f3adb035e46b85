/* SPDX-License-Identifier: Apache-2.0 */
/* THE CONTRACT, op by op, and the list of all ops. The contract of an op stands with its params in the
 * header of its family: shapes with strides, dtypes, ties, bytes moved, tolerance. How an op is called
 * is in device.h, how devices are driven in backend.h. */
#ifndef TMS_OPS_H
#define TMS_OPS_H

#include "host/ops/attention.h"
#include "host/ops/eviction.h"
#include "host/ops/model.h"
#include "host/ops/rows.h"
#include "host/ops/selection.h"
#include "host/ops/types.h"

/* Every op, as X(with, name). The table's fields, the calls and their checks (backend.h, checks.h),
 * the prototypes and the table of each backend, the checker's list and the calls that tests let
 * fail are made from these lists. What every backend has: with these alone a model runs under the
 * selections full and quest. */
#define TMS_REQUIRED_OPS(X, with)                                                                  \
    X(with, write_rows)                                                                            \
    X(with, copy_pages)                                                                            \
    X(with, write_table)                                                                           \
    X(with, bounds)                                                                                \
    X(with, rotate)                                                                                \
    X(with, score_pages)                                                                           \
    X(with, select)                                                                                \
    X(with, attend)                                                                                \
    X(with, linear)                                                                                \
    X(with, norm)                                                                                  \
    X(with, activate)                                                                              \
    X(with, embed)                                                                                 \
    X(with, argmax)
/* What is composed of other ops where a backend lacks it (compose.h). */
#define TMS_COMPOSED_OPS(X, with)                                                                  \
    X(with, write_rotated)                                                                         \
    X(with, linear_parts)                                                                          \
    X(with, linear_chain)
/* What a backend may lack: whatever needs such an op answers E_UNSUPPORTED with its name, a plan when it
 * is made. Reading caches back needs read_rows, trees copy_slots, windows where evictions have made lanes
 * ragged seek, reindexed streaming merge and scatter_rows, sink logits sink, the selection oracle
 * page_mass, blends load_rows and deviation, rows of half precision convert, lists of a caller take_lists,
 * evictions the rest; key_score is for callers that score by themselves. */
#define TMS_OPTIONAL_OPS(X, with)                                                                  \
    X(with, read_rows)                                                                             \
    X(with, copy_slots)                                                                            \
    X(with, load_rows)                                                                             \
    X(with, seek)                                                                                  \
    X(with, page_mass)                                                                             \
    X(with, merge)                                                                                 \
    X(with, sink)                                                                                  \
    X(with, observe)                                                                               \
    X(with, pool_values)                                                                           \
    X(with, value_score)                                                                           \
    X(with, value_norm)                                                                            \
    X(with, key_score)                                                                             \
    X(with, score_rows)                                                                            \
    X(with, deviation)                                                                             \
    X(with, fuse)                                                                                  \
    X(with, compact)                                                                               \
    X(with, replace)                                                                               \
    X(with, scatter_rows)                                                                          \
    X(with, convert)                                                                               \
    X(with, take_lists)
/* What a backend may lack or refuse, and who calls it has another way. */
#define TMS_FUSED_OPS(X, with)                                                                     \
    X(with, sparse_attend)                                                                         \
    X(with, write_attend)                                                                          \
    X(with, write_sparse_attend)                                                                   \
    X(with, observed_attend)                                                                       \
    X(with, replace_rows)
#define TMS_OPS(X, with)                                                                           \
    TMS_REQUIRED_OPS(X, with)                                                                      \
    TMS_COMPOSED_OPS(X, with) TMS_OPTIONAL_OPS(X, with) TMS_FUSED_OPS(X, with)
/* The ops whose params have scratch memory. */
#define TMS_SCRATCH_OPS(X, with)                                                                   \
    X(with, page_mass)                                                                             \
    X(with, select)                                                                                \
    X(with, attend)                                                                                \
    X(with, value_score)                                                                           \
    X(with, key_score)

/* ---- Facts (ops.c) --------------------------------------------------------------------------- */

bool tms_fuse_reads_y(const tms_fuse *p);  /* AXPBY may */
bool tms_fuse_is_paged(const tms_fuse *p); /* reads page ids: a plane takes part */
/* The most entries that a list of the launch may get. */
uint32_t tms_select_most(const tms_select *p);
/* The mass of a wide selection in units of 2^-32, rounded up; 0: none, or more than scores can
 * have. */
uint64_t tms_select_need(const tms_select *p);

/* Fills the table of `rotate`: f32 [2][1024][n_rot/2][2]. frequencies: [n_rot/2], in radians per
 * position. */
#define TMS_ROTATE_STEPS 1024u
#define TMS_ROTATE_LIMIT (TMS_ROTATE_STEPS * TMS_ROTATE_STEPS)
void tms_rotate_table(const double *frequencies, uint32_t n_rot, float *table);

#endif
