/* SPDX-License-Identifier: Apache-2.0 */
/* The architectures: what a file of each has, and what its model computes that no key says. */
#ifndef TMS_ARCHITECTURE_H
#define TMS_ARCHITECTURE_H

#include <stdbool.h>
#include <stdint.h>
#include <tamis/model.h>

/* A layer's tensors. Fingerprints go through them in this order: a new one is added at the end. */
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
    TMS_ATTN_Q_BIAS,
    TMS_ATTN_K_BIAS,
    TMS_ATTN_V_BIAS,
    TMS_ATTN_OUTPUT_BIAS,
    TMS_FFN_GATE_BIAS,
    TMS_FFN_UP_BIAS,
    TMS_FFN_DOWN_BIAS,
    TMS_ATTN_Q_NORM, /* of each head */
    TMS_ATTN_K_NORM,
    TMS_ATTN_NORM_BIAS,
    TMS_FFN_NORM_BIAS,
    TMS_POST_ATTN_NORM, /* behind a product, before it is added to the residual stream */
    TMS_POST_FFN_NORM,
    TMS_ATTN_Q_ROW_NORM, /* of all heads of a row together */
    TMS_ATTN_K_ROW_NORM,
    TMS_LAYER_WEIGHTS
} tms_layer_weight;

/* Which layers are not rotated. */
typedef enum tms_unrotated {
    TMS_UNROTATED_NONE,
    TMS_UNROTATED_GLOBAL, /* those that see everything, where others have a window */
    TMS_UNROTATED_FOURTH  /* every fourth */
} tms_unrotated;

/* Keys that not every architecture reads, as bits. */
enum {
    TMS_KEY_WINDOW = 1,     /* attention.sliding_window: of all layers, or of local ones */
    TMS_KEY_PATTERN = 2,    /* attention.sliding_window_pattern: which layers are local */
    TMS_KEY_LOCAL_BASE = 4, /* rope.freq_base_swa */
    TMS_KEY_CAPS = 8,       /* attn_logit_softcapping, final_logit_softcapping */
    TMS_KEY_SCALES = 16,    /* attention.scale, embedding_scale, residual_scale */
    TMS_KEY_LOGIT_SCALE = 32,
    TMS_KEY_PARALLEL = 64,   /* use_parallel_residual */
    TMS_KEY_FINETUNED = 128, /* rope.scaling.finetuned: whether there is a rotation at all */
    TMS_KEY_STATE = 256      /* of layers of a state space, which the model has none of */
};

typedef struct tms_architecture {
    tamis_architecture_info info; /* its name is general.architecture, the prefix of its keys */
    tamis_pairing pairing;        /* how its files order the channels of a head */
    /* Tensors: of a layer as 1 << tms_layer_weight, or-ed; some files have the optional ones. */
    uint32_t required, optional;
    const char *ffn_norm; /* that tensor, if it is not ffn_norm.weight */
    bool gate_in_up;      /* the first half of ffn_up's rows is the gate */
    bool untied;          /* output.weight must be there */
    bool output_bias;     /* output.bias is there */
    bool rope_factors;    /* some files have rope_freqs.weight */
    bool long_factors;    /* some files have rope_factors_{short,long}.weight */
    /* Keys, TMS_KEY_*, or-ed: those that it reads beside the common ones, those of them without which a
     * file is refused, and those that change nothing in it. */
    uint32_t keys, required_keys, ignored;
    /* What it computes. */
    tamis_norm_kind norm;
    tamis_activation activation;
    bool plain_ffn; /* down · act(up · x), without a gate */
    bool parallel;  /* attention and feed-forward read the same rows, in layers without ffn_norm */
    bool rooted;    /* embeddings are multiplied by the root of the width */
    bool divided;   /* logits are divided by logit_scale, else multiplied */
    uint32_t wide;  /* with so many layers q·k is divided by the root of width / heads */
    tms_unrotated unrotated;
    bool plain_locals; /* local layers rotate without scaling */
    /* Where no key says them: tokens of the window, 0: none; of how many layers the last is global, 0:
     * all are local; the base of local layers' rotation, 0: that of global ones; caps, 0: none;
     * the scale of embeddings, that of what is added to the residual stream, times the root of the number
     * of layers, and logit_scale, times the width, 0: all 1. */
    uint32_t window, pattern;
    double local_base, attn_cap, logit_cap;
    double embed_scale, depth_scale, logit_width;
} tms_architecture;

/* NULL if it is not known. */
const tms_architecture *tms_architecture_find(const char *name, size_t bytes);
/* Why files of an architecture are not read, which is known by name; NULL if it is not. */
const char *tms_architecture_refused(const char *name, size_t bytes);

#endif
