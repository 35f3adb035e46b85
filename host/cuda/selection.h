/* SPDX-License-Identifier: Apache-2.0 */
/* What score.c, select.c and attend.c lend to sparse_attend.c. */
#ifndef TMS_CUDA_SELECTION_H
#define TMS_CUDA_SELECTION_H

#include "host/cuda/cuda.h"

/* With as many blocks of CU_SCORE_THREADS a (row, KV head) as the device can use. */
cu_score_args tms_cu_score_args(tms_cu_launch *l, const tms_score_pages *p);
/* The number of the head dim in the names of kernels: its own, or CU_ANY_DIM. */
uint32_t tms_cu_score_tag(const tms_score_pages *p);
/* Bytes of dynamic shared memory. */
uint32_t tms_cu_score_shared(const tms_score_pages *p);

cu_select_args tms_cu_select_args(tms_cu_launch *l, const tms_select *p);
/* Bytes of dynamic shared memory. */
uint32_t tms_cu_select_shared(const cu_select_args *args);

/* attend right behind the launch that writes its lists, and reads or writes nothing else of its:
 * with TAMIS_CUDA_OVERLAP it may begin before that one has ended. */
tamis_status tms_cu_attend_lists(tms_device *dev, const tms_attend *p);

#endif
