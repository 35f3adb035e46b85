/* SPDX-License-Identifier: Apache-2.0 */
/* How layers attend, where they do not all attend alike. */
#ifndef TAMIS_LAYER_H
#define TAMIS_LAYER_H

#include <tamis/buffer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The logit of a query and a key, and which keys a row sees. */
typedef struct tamis_attention {
    float scale;             /* of q·k; 0 means 1/sqrt(head_dim) */
    float soft_cap;          /* logits become cap·tanh(logit/cap); 0 means none */
    uint32_t sliding_window; /* a row at position p sees positions > p − window; 0 means all */
    uint32_t chunk; /* a row at position p sees positions ≥ p − p mod chunk; 0 means all */
    /* f32 [n_heads], finite or -inf: one more logit of each query head, which is in the sum of its
     * softmax and has no value (the sinks of gpt-oss). Absent: none. A plan copies them when it is made. */
    tamis_place sinks;
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_attention;

typedef struct tamis_layer {
    tamis_attention attention;
    int full;             /* nonzero: every page is read, whatever the plan's selection is */
    uint32_t reserved32;  /* 0, else E_ARGUMENT */
    uint64_t reserved[5]; /* 0, else E_ARGUMENT */
} tamis_layer;

#ifdef __cplusplus
}
#endif
#endif
