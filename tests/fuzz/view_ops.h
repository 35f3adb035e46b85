/* SPDX-License-Identifier: Apache-2.0 */
/* The ops on a caller's K and V, fuzzed. */
#ifndef FUZZ_VIEW_OPS_H
#define FUZZ_VIEW_OPS_H

#include "tests/fuzz/view_memory.h"

/* Bounds, scores, a selection and attention over one layout. What is in tables, which is the caller's
 * responsibility, is right; strides and sizes need not be. */
void run_ops(fuzz *f);

#endif
