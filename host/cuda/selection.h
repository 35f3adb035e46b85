/* SPDX-License-Identifier: Apache-2.0 */
/* What score.c and select.c lend to sparse_attend.c: their checks and their kernels' arguments. */
#ifndef TMS_CUDA_SELECTION_H
#define TMS_CUDA_SELECTION_H

#include "host/cuda/cuda.h"

/* kv, batch and the stride of the scores; `op` names the caller in the error. */
tamis_status tms_cu_score_check(tms_device *dev, const char *op, const tms_score_pages *p);
/* With as many blocks of `threads` a (row, KV head) as the device can use. */
cu_score_args tms_cu_score_args(tms_cu_launch *l, const tms_score_pages *p, uint32_t threads);
/* Bytes of dynamic shared memory. */
uint32_t tms_cu_score_shared(const tms_score_pages *p);

tamis_status tms_cu_select_check(tms_device *dev, const tms_select *p);
/* The most entries that a list of the launch may get. */
uint32_t tms_cu_select_most(const tms_select *p);
cu_select_args tms_cu_select_args(tms_cu_launch *l, const tms_select *p);
/* Bytes of dynamic shared memory. */
uint32_t tms_cu_select_shared(const cu_select_args *args);

#endif
