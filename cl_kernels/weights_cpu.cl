/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of a CPU device that read weights, in one program (see small_cpu.cl): chains of few
 * rows and, where ROWS is 1, embed and linear for many rows, of weights of TYPE_A. */
#include "linear_chain_cpu.cl"
#if ROWS == 1
#include "embed.cl"
#include "linear_cpu.cl"
#endif
