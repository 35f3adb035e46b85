/* SPDX-License-Identifier: Apache-2.0 */
/* How layers attend, where they do not all attend alike. */
#ifndef TAMIS_LAYER_H
#define TAMIS_LAYER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The logit of a query and a key, and which keys a row sees. */
typedef struct tamis_attention {
    float scale;             /* of q·k; 0 means 1/sqrt(head_dim) */
    float soft_cap;          /* logits become cap·tanh(logit/cap); 0 means none */
    uint32_t sliding_window; /* a row at position p sees positions > p − window; 0 means all */
    uint32_t chunk; /* a row at position p sees positions ≥ p − p mod chunk; 0 means all */
    uint64_t reserved[6];    /* 0, else E_ARGUMENT */
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
