/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of the test kernels. */
#ifndef TAMIS_CUDA_ON_CPU_TEST_ARGS_H
#define TAMIS_CUDA_ON_CPU_TEST_ARGS_H

#include "args.h"

typedef struct test_args {
    CU_PTR(uint32_t) out;
    CU_PTR(const uint32_t) in;
    uint32_t n;
    uint32_t wrong; /* 1: with the planted bug */
} test_args;

#endif
