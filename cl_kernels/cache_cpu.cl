/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of a CPU device that write a cache, in one program (see small_cpu.cl). */
#include "rows.cl"
#include "bounds.cl"
