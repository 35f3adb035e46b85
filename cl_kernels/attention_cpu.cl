/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of a CPU device's attend, in one program (see small_cpu.cl). Tiles give no logits, and are
 * not written. */
#include "attend_cpu.cl"
#if !LOGITS && !WRITES
#include "attend_rows_cpu.cl"
#endif
