/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of a CPU device that read weights of one type, in one program (see small_cpu.cl). */
#include "embed.cl"
#include "linear_cpu.cl"
