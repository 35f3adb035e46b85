/* SPDX-License-Identifier: Apache-2.0 */
/* Decode attention of llama.cpp, computed by tamis over llama.cpp's own K and V: a backend of ggml that
 * takes one operation, FLASH_ATTN_EXT of a single row, and leaves all others to the CPU backend. The
 * cache stays llama.cpp's, and is read where it lies. Whatever the backend does not take (prompts, other
 * types than f16, ALiBi, sinks) runs as it would without it.
 *
 * One llama_context at a time uses it, others beside it do not, with one sequence, whose cells hold its
 * tokens in order, as after llama_decode without shifting. Where a mask says otherwise the step fails
 * with a message. */
#ifndef LLAMA_ATTENTION_H
#define LLAMA_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

/* Registers the backend, once, before a llama_context is made. False: `message` says why. */
bool attention_register(const char **message);

/* The context that is made next attends by tamis, on a device as tamis_context_create names it (NULL: the
 * first of OpenCL's). budget: tokens that quest reads of each KV head, a multiple of 16; 0: all. */
void attention_use(const char *device, uint32_t budget);
/* K was changed by a call that runs no graph, as llama_state_seq_set_data: bounds are computed anew. */
void attention_refresh(void);
/* Before that context is freed: gives back what was taken. Contexts attend without tamis from now on. */
void attention_release(void);

/* What was done since attention_use. */
typedef struct attention_stats {
    uint64_t rows;       /* a row is one token in one layer */
    uint64_t read, full; /* bytes of K and V that were read, and that full attention would have */
    double us;           /* in the backend */
    const void *keys;    /* where tamis reads the first layer's K: in llama.cpp's cache */
    const void *own;     /* where llama.cpp has it */
    char device[256];
} attention_stats;
void attention_get_stats(attention_stats *out);

#endif
