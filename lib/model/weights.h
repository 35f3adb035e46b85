/* SPDX-License-Identifier: Apache-2.0 */
/* A model's weights: found and checked in the file, then copied to the device. */
#ifndef TMS_WEIGHTS_H
#define TMS_WEIGHTS_H

#include "lib/model/config.h"
#include <tamis/model.h>

#define TMS_COUNT_WEIGHT_TYPE(name, value, text) +1
enum { TMS_WEIGHT_TYPES = 0 TAMIS_WEIGHT_LIST(TMS_COUNT_WEIGHT_TYPE) };

/* A matrix [n_out][n_in] of the file's type, or a vector as f32: a whole tensor, or rows of one that
 * joins several. Absent where buffer is NULL. */
typedef struct tms_weight {
    const tms_gguf_tensor *tensor; /* valid until the file is closed */
    uint64_t first;                /* the byte of the tensor at which it begins */
    tamis_buffer *buffer;
    uint64_t n_out, n_in;   /* of a vector 1 and its length */
    tamis_weight_type type; /* on the device */
    tamis_weight_layout layout;
} tms_weight;

typedef struct tms_layer {
    tms_weight weights[TMS_LAYER_WEIGHTS];
    /* Of matrices behind a norm with a bias b: W·b and the bias of W, f32; else NULL. */
    tamis_buffer *folded[TMS_LAYER_WEIGHTS];
} tms_layer;

typedef struct tms_weights {
    tms_weight embed, output_norm, output_norm_bias;
    tms_weight output; /* absent: the embedding is used (tied) */
    tms_weight output_bias;
    tamis_buffer *output_folded;  /* as of layers */
    tamis_buffer *residual_scale; /* f32 [dim] of that scale; NULL where it is 1 */
    tms_weight rope_factors[3];   /* tms_rope_factors; never on the device */
    tms_layer *layers;            /* [n_layers] */
    uint32_t n_layers;
    uint64_t parameters;
    uint64_t bytes, file_bytes; /* of what goes to the device: there, and in the file */
    uint64_t matrix_parameters[TMS_WEIGHT_TYPES]; /* of matrices, by their type */
    uint32_t tensors[TMS_WEIGHT_TYPES];           /* of the file, by their type */
} tms_weights;

/* Finds every tensor and checks its shape; touches no device. Errors: E_FORMAT for a tensor that is
 * missing or of another shape; E_UNSUPPORTED for one too many and for a vector in blocks;
 * E_NO_MEMORY; *out is then empty. */
tamis_status tms_weights_find(const tms_gguf *gguf, const tms_config *config, uint32_t n_vocab,
                              tms_weights *out, tamis_error *error);
/* What divides RoPE's frequencies: in all contexts, or in those up to the first training's and in
 * longer ones. */
typedef enum tms_rope_factors {
    TMS_FACTORS_ALL,
    TMS_FACTORS_SHORT,
    TMS_FACTORS_LONG
} tms_rope_factors;
/* Reads them, [n_rot / 2], before the upload; *present is false, and out unchanged, if the file has no
 * such tensor. E_IO; E_FORMAT for a divisor that is not above 0. */
tamis_status tms_weights_rope_factors(const tms_weights *weights, tms_rope_factors which,
                                      const tms_gguf *gguf, float *out, bool *present,
                                      tamis_error *error);
/* Copies the tensors to the device piece by piece, so that the host never holds a whole one, and
 * tells `watcher`, which may be NULL, how far it is. After a failure the caller must call
 * tms_weights_free. */
tamis_status tms_weights_upload(tms_weights *weights, const tms_gguf *gguf, tamis_context *context,
                                tamis_model_watcher watcher, void *user, tamis_error *error);
/* Makes of uploaded weights what the forward pass reads beside them: folded biases, the residual scale.
 * After a failure the caller must call tms_weights_free. */
tamis_status tms_weights_prepare(tms_weights *weights, const tms_config *config,
                                 tamis_context *context, tamis_error *error);
/* The bias of a layer's matrix as the forward pass adds it; NULL if there is none. */
tamis_buffer *tms_layer_bias(const tms_layer *layer, tms_layer_weight matrix);
/* The bytes of the file, at most `most`, that are taken of a weight at a time: of strips whole ones. */
uint64_t tms_weight_step(const tms_weight *weight, uint64_t most);
void tms_weights_free(tms_weights *weights);

#endif
