/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the contract, which tms_run_<op> checks before it calls a backend; and what the
 * files of rules share. Each function returns OK, or an error with the first broken rule and its
 * value in dev->error. */
#ifndef TMS_CHECKS_H
#define TMS_CHECKS_H

#include "host/backend.h"

/* tamis_status tms_check_<op>(dev, p), one for each op. */
TMS_OPS(TMS_DECLARE_OP, tms_check_)

tamis_status tms_check_kv(tms_device *dev, const tms_kv *kv);
/* The same of K and V that are only read. */
tamis_status tms_check_read_kv(tms_device *dev, const tms_kv *kv);
/* Checks a batch with tiles. */
tamis_status tms_check_batch(tms_device *dev, const tms_batch *batch);
/* Checks a batch whose rows are items: all tables but tiles; `table` only if `paged`. */
tamis_status tms_check_items(tms_device *dev, const tms_batch *batch, bool paged);
/* Checks how many of a head's channels an op rotates. */
tamis_status tms_check_rotated(tms_device *dev, const char *op, uint32_t n_rot, uint32_t head_dim);
tamis_status tms_check_dtype(tms_device *dev, const char *op, tamis_dtype dtype);
/* Checks `n_rows` rows of `width` f32 elements: they are not absent, and the stride is large
 * enough. */
tamis_status tms_check_matrix(tms_device *dev, const char *op, const char *name,
                              const tms_matrix *matrix, uint32_t n_rows, uint64_t width);
/* Checks how an op makes logits. */
tamis_status tms_check_logit(tms_device *dev, const char *op, const tms_logit *logit);
/* Checks that heads do not share pages, since planes have one entry per slot of a page: for an op that
 * uses a plane, and for one that uses those that are given. */
tamis_status tms_check_own_pages(tms_device *dev, const char *op, uint64_t kv_head_stride,
                                 const tms_batch *b);
tamis_status tms_check_planes(tms_device *dev, const char *op, const tms_kv *kv,
                              const tms_batch *batch, const tms_planes *planes);
/* Checks that memory which a launch with rows needs is not absent. */
tamis_status tms_check_there(tms_device *dev, const char *op, const char *name, tms_ref ref);

#endif
