/* SPDX-License-Identifier: Apache-2.0 */
/* Small kernels of a CPU device in one program: a compiler takes longer for the declarations that
 * each program begins with than for these. */
#include "pages.cl"
#include "activate.cl"
#include "argmax_cpu.cl"
#include "norm_cpu.cl"
#include "merge_cpu.cl"
