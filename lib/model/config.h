/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers that define a model's computation, read from a GGUF file's metadata and checked. */
#ifndef TMS_CONFIG_H
#define TMS_CONFIG_H

#include "lib/model/gguf.h"
#include "lib/model/rope.h"
#include <tamis/ops.h>

#define TMS_MAX_HEAD_DIM 1024u

/* A layer's tensors. */
typedef enum tms_layer_weight {
    TMS_ATTN_NORM,
    TMS_ATTN_Q,
    TMS_ATTN_K,
    TMS_ATTN_V,
    TMS_ATTN_OUTPUT,
    TMS_FFN_NORM,
    TMS_FFN_GATE,
    TMS_FFN_UP,
    TMS_FFN_DOWN,
    TMS_ATTN_Q_BIAS, /* these and the next are there in some architectures, or in some files */
    TMS_ATTN_K_BIAS,
    TMS_ATTN_V_BIAS,
    TMS_ATTN_OUTPUT_BIAS,
    TMS_FFN_GATE_BIAS,
    TMS_FFN_UP_BIAS,
    TMS_FFN_DOWN_BIAS,
    TMS_ATTN_Q_NORM,
    TMS_ATTN_K_NORM,
    TMS_LAYER_WEIGHTS
} tms_layer_weight;

/* What distinguishes the architectures: all of it, so that one more is one more of these. */
typedef struct tms_architecture {
    const char *name;      /* general.architecture, the prefix of its keys */
    tamis_pairing pairing; /* how its files order the channels of a head */
    uint32_t required;     /* a layer's tensors: 1 << tms_layer_weight, or-ed */
    uint32_t optional;     /* tensors that a layer of some files has beside them */
    bool rope_factors;     /* some files have rope_freqs.weight */
    bool sliding_window;   /* it holds in every layer */
} tms_architecture;

typedef struct tms_config {
    const tms_architecture *architecture;
    char name[128]; /* general.name */
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, dim, ff_dim;
    uint32_t context;        /* tokens */
    uint32_t sliding_window; /* tokens that a row sees, itself included; 0: all */
    uint32_t n_rot;          /* channels of a head that are rotated */
    uint32_t n_vocab;        /* 0: not stated */
    tms_rope rope;
    float norm_eps;
} tms_config;

/* Errors: E_FORMAT for keys that are missing, of a wrong type or contradictory; E_UNSUPPORTED for
 * another architecture, for keys that are not known and may change the computation, for kinds of
 * RoPE scaling that are not known, for a sliding window of layers that are not known, and for heads
 * that the library does not take. */
tamis_status tms_config_read(const tms_gguf *gguf, tms_config *out, tamis_error *error);

#endif
