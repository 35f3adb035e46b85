/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers that define a model's computation, read from a GGUF file's metadata and checked. */
#ifndef TMS_CONFIG_H
#define TMS_CONFIG_H

#include "lib/model/architecture.h"
#include "lib/model/gguf.h"
#include "lib/model/rope.h"
#include <tamis/ops.h>

#define TMS_MAX_HEAD_DIM 1024u

/* Layers of which a file may say one by one whether they are local. */
#define TMS_MOST_LOCAL 1024u

/* How layers are rotated: each kind has frequencies of its own. */
typedef enum tms_rotation_kind {
    TMS_ROTATION_GLOBAL,
    TMS_ROTATION_LOCAL, /* of layers with a window, where they differ in it */
    TMS_ROTATION_LONG,  /* of global layers, in contexts above the first training's */
    TMS_ROTATION_NONE,
    TMS_ROTATIONS
} tms_rotation_kind;

typedef struct tms_config {
    const tms_architecture *architecture;
    char name[128]; /* general.name */
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, dim, ff_dim;
    uint32_t context;        /* tokens */
    uint32_t sliding_window; /* tokens that a row of local layers sees, itself included; 0: all */
    uint32_t n_local;        /* layers that have the window */
    uint32_t n_rot;          /* channels of a head that are rotated */
    uint32_t n_vocab;        /* 0: not stated */
    tms_rope rope, local_rope;
    bool local_differs; /* local layers are rotated in another way */
    bool rotated;       /* false: in no layer */
    bool parallel;      /* attention and feed-forward of a layer read the same rows */
    float norm_eps;
    float attn_scale;     /* of q·k; 0: 1/sqrt(head_dim) */
    float attn_cap;       /* 0: none */
    float embed_scale;    /* of embeddings */
    float residual_scale; /* of what is added to the residual stream */
    float logit_scale;    /* of logits, above 0; and then their cap, 0: none */
    float logit_cap;
    uint8_t local[TMS_MOST_LOCAL / 8]; /* a bit for each layer, unless all have the window */
} tms_config;

/* Whether some layers are local and some are not. */
bool tms_config_is_mixed(const tms_config *config);
/* Whether the layer has the sliding window. */
bool tms_config_is_local(const tms_config *config, uint32_t layer);
/* How a layer is rotated; is_long: the context is longer than that of the first training. */
tms_rotation_kind tms_config_rotation(const tms_config *config, uint32_t layer, bool is_long);
/* What a kind's frequencies are made of. */
const tms_rope *tms_config_rope(const tms_config *config, tms_rotation_kind kind);
/* By how much a kind multiplies the channels that it rotates: by the scale of attention where they are
 * all of a head, else by its table. */
double tms_config_magnitude(const tms_config *config, tms_rotation_kind kind);

/* Errors: E_FORMAT for keys that are missing, of a wrong type or contradictory; E_UNSUPPORTED for
 * another architecture, for keys that are not known and may change the computation, for kinds of
 * RoPE scaling that are not known, for a sliding window of layers that are not known, and for heads
 * that the library does not take; with the value, and for architectures that are known the reason. */
tamis_status tms_config_read(const tms_gguf *gguf, tms_config *out, tamis_error *error);

#endif
