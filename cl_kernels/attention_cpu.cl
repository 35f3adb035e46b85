/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of a CPU device's attend, in one program (see small_cpu.cl). Tiles give no logits. */
#include "attend_cpu.cl"
#if !LOGITS
#include "attend_rows_cpu.cl"
#endif
