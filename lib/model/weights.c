/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a model's tensors by name, checks their shapes, and copies them to the device. */
#include "lib/model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROPE_FACTORS "rope_freqs.weight"

/* Sizes that tensor dims are made of; the vocabulary comes with each call. */
typedef enum size_name { ONE, DIM, HEADS, KV_HEADS, FF_DIM, HEAD_DIM } size_name;

typedef struct layer_tensor {
    const char *suffix;    /* behind "blk.<layer>." */
    size_name n_in, n_out; /* n_out ONE: a vector */
} layer_tensor;

static const layer_tensor layer_tensors[TMS_LAYER_WEIGHTS] = {
    [TMS_ATTN_NORM] = {"attn_norm.weight", DIM, ONE},
    [TMS_ATTN_Q] = {"attn_q.weight", DIM, HEADS},
    [TMS_ATTN_K] = {"attn_k.weight", DIM, KV_HEADS},
    [TMS_ATTN_V] = {"attn_v.weight", DIM, KV_HEADS},
    [TMS_ATTN_OUTPUT] = {"attn_output.weight", HEADS, DIM},
    [TMS_FFN_NORM] = {"ffn_norm.weight", DIM, ONE},
    [TMS_FFN_GATE] = {"ffn_gate.weight", DIM, FF_DIM},
    [TMS_FFN_UP] = {"ffn_up.weight", DIM, FF_DIM},
    [TMS_FFN_DOWN] = {"ffn_down.weight", FF_DIM, DIM},
    [TMS_ATTN_Q_BIAS] = {"attn_q.bias", HEADS, ONE},
    [TMS_ATTN_K_BIAS] = {"attn_k.bias", KV_HEADS, ONE},
    [TMS_ATTN_V_BIAS] = {"attn_v.bias", KV_HEADS, ONE},
    [TMS_ATTN_OUTPUT_BIAS] = {"attn_output.bias", DIM, ONE},
    [TMS_FFN_GATE_BIAS] = {"ffn_gate.bias", FF_DIM, ONE},
    [TMS_FFN_UP_BIAS] = {"ffn_up.bias", FF_DIM, ONE},
    [TMS_FFN_DOWN_BIAS] = {"ffn_down.bias", DIM, ONE},
    [TMS_ATTN_Q_NORM] = {"attn_q_norm.weight", HEAD_DIM, ONE},
    [TMS_ATTN_K_NORM] = {"attn_k_norm.weight", HEAD_DIM, ONE},
};

static uint64_t size_of(const tms_config *config, size_name name) {
    switch (name) {
    case DIM:
        return config->dim;
    case HEADS:
        return (uint64_t)config->n_heads * config->head_dim;
    case KV_HEADS:
        return (uint64_t)config->n_kv_heads * config->head_dim;
    case FF_DIM:
        return config->ff_dim;
    case HEAD_DIM:
        return config->head_dim;
    case ONE:
        break;
    }
    return 1;
}

static uint64_t device_bytes(const tms_weight *weight) {
    return tamis_weight_layout_bytes(weight->layout, weight->type, weight->n_out, weight->n_in);
}

/* A tensor of [n_out][n_in], or a vector where n_out is 1; vectors are f32 on the device. */
static tamis_status find(const tms_gguf *gguf, const char *name, uint64_t n_in, uint64_t n_out,
                         bool vector, tms_weights *weights, tms_weight *to, tamis_error *error) {
    const tms_gguf_tensor *tensor = tms_gguf_tensor_find(gguf, name);
    TMS_REQUIRE(tensor, TAMIS_E_FORMAT, "tensor '%s' is missing", name);
    const uint64_t *dims = tensor->dims;
    TMS_REQUIRE(dims[0] == n_in && dims[1] == n_out && dims[2] == 1 && dims[3] == 1, TAMIS_E_FORMAT,
                "tensor '%s' is of %llu x %llu x %llu x %llu; %llu x %llu is expected", name,
                (unsigned long long)dims[0], (unsigned long long)dims[1],
                (unsigned long long)dims[2], (unsigned long long)dims[3], (unsigned long long)n_in,
                (unsigned long long)n_out);
    to->tensor = tensor;
    TMS_REQUIRE(!vector || tamis_weight_block(tensor->type) == 1, TAMIS_E_UNSUPPORTED,
                "tensor '%s' has type %s; vectors are f32, f16 or bf16", name,
                tamis_weight_name(tensor->type));
    to->type = vector ? TAMIS_WEIGHT_F32 : tensor->type;
    to->n_out = n_out;
    to->n_in = n_in;
    weights->parameters += tensor->elements;
    weights->file_bytes += tensor->bytes;
    weights->tensors[tensor->type]++;
    if (!vector) weights->matrix_parameters[tensor->type] += tensor->elements;
    weights->bytes += device_bytes(to);
    return TAMIS_OK;
}

static tamis_status find_layer(const tms_gguf *gguf, const tms_config *config, uint32_t layer,
                               tms_weights *weights, tamis_error *error) {
    for (int i = 0; i < TMS_LAYER_WEIGHTS; ++i) {
        const layer_tensor *entry = &layer_tensors[i];
        const uint32_t bit = 1u << i;
        char name[48];
        snprintf(name, sizeof name, "blk.%u.%s", layer, entry->suffix);
        if (!(config->architecture->required & bit) &&
            !(config->architecture->optional & bit && tms_gguf_tensor_find(gguf, name)))
            continue;
        TMS_TRY(find(gguf, name, size_of(config, entry->n_in), size_of(config, entry->n_out),
                     entry->n_out == ONE, weights, &weights->layers[layer].weights[i], error));
    }
    return TAMIS_OK;
}

static tamis_status find_ends(const tms_gguf *gguf, const tms_config *config, uint32_t n_vocab,
                              tms_weights *weights, tamis_error *error) {
    TMS_TRY(find(gguf, "token_embd.weight", config->dim, n_vocab, false, weights, &weights->embed,
                 error));
    TMS_TRY(find(gguf, "output_norm.weight", config->dim, 1, true, weights, &weights->output_norm,
                 error));
    if (config->architecture->rope_factors && tms_gguf_tensor_find(gguf, ROPE_FACTORS)) {
        TMS_TRY(find(gguf, ROPE_FACTORS, config->n_rot / 2, 1, true, weights,
                     &weights->rope_factors, error));
        /* they are never sent */
        weights->bytes -= device_bytes(&weights->rope_factors);
        weights->file_bytes -= weights->rope_factors.tensor->bytes;
    }
    if (!tms_gguf_tensor_find(gguf, "output.weight")) return TAMIS_OK;
    return find(gguf, "output.weight", config->dim, n_vocab, false, weights, &weights->output,
                error);
}

static bool is_used(const tms_weights *weights, const tms_gguf_tensor *tensor) {
    const tms_weight *ends[] = {&weights->embed, &weights->output_norm, &weights->output,
                                &weights->rope_factors};
    uint32_t layer = 0;
    int suffix = 0;
    char name[64];
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; ++i)
        if (ends[i]->tensor == tensor) return true;
    if (tensor->name.bytes >= sizeof name) return false;
    memcpy(name, tensor->name.at, tensor->name.bytes);
    name[tensor->name.bytes] = 0;
    if (sscanf(name, "blk.%9u.%n", &layer, &suffix) != 1 || !suffix || layer >= weights->n_layers)
        return false;
    for (int i = 0; i < TMS_LAYER_WEIGHTS; ++i)
        if (weights->layers[layer].weights[i].tensor == tensor) return true;
    return false;
}

/* Refuses a tensor that is not known, since the model's computation would need it. */
static tamis_status refuse_extra(const tms_gguf *gguf, const tms_config *config,
                                 const tms_weights *weights, tamis_error *error) {
    for (uint64_t i = 0; i < gguf->n_tensors; ++i)
        TMS_REQUIRE(is_used(weights, &gguf->tensors[i]), TAMIS_E_UNSUPPORTED,
                    "tensor '%s' is no part of a %s model of %u layers as it is read here",
                    tms_text_show(gguf->tensors[i].name).text, config->architecture->name,
                    config->n_layers);
    return TAMIS_OK;
}

tamis_status tms_weights_find(const tms_gguf *gguf, const tms_config *config, uint32_t n_vocab,
                              tms_weights *out, tamis_error *error) {
    *out = (tms_weights){0};
    TMS_REQUIRE(!config->n_vocab || config->n_vocab == n_vocab, TAMIS_E_FORMAT,
                "key '%s.vocab_size' is %u; the vocabulary has %u tokens",
                config->architecture->name, config->n_vocab, n_vocab);
    /* Checked before memory is allocated for a number that the file only claims. */
    TMS_REQUIRE(config->n_layers <= gguf->n_tensors, TAMIS_E_FORMAT,
                "%u layers are stated, the file has %llu tensors", config->n_layers,
                (unsigned long long)gguf->n_tensors);
    out->layers = calloc(config->n_layers, sizeof *out->layers);
    TMS_REQUIRE(out->layers, TAMIS_E_NO_MEMORY, "no memory for %u layers", config->n_layers);
    out->n_layers = config->n_layers;
    tamis_status status = find_ends(gguf, config, n_vocab, out, error);
    for (uint32_t layer = 0; layer < config->n_layers && status == TAMIS_OK; ++layer)
        status = find_layer(gguf, config, layer, out, error);
    if (status == TAMIS_OK) status = refuse_extra(gguf, config, out, error);
    if (status != TAMIS_OK) tms_weights_free(out);
    return status;
}

/* ---- To the device --------------------------------------------------------------------------- */

static float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float widen_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fffu;
    if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x0400) return float_of_bits(sign | ((rest << 13) + 0x38000000u));
    float small = (float)rest * 0x1p-24f; /* subnormal */
    return sign ? -small : small;
}

static void widen(tamis_weight_type type, const uint16_t *from, uint64_t n, float *to) {
    for (uint64_t i = 0; i < n; ++i)
        to[i] =
            type == TAMIS_WEIGHT_F16 ? widen_f16(from[i]) : float_of_bits((uint32_t)from[i] << 16);
}

/* A short vector of any of the three float types as f32. */
static tamis_status read_vector(const tms_gguf *gguf, const tms_gguf_tensor *tensor, float *out,
                                tamis_error *error) {
    uint16_t narrow[TMS_MAX_HEAD_DIM / 2];
    if (tensor->type == TAMIS_WEIGHT_F32)
        return tms_gguf_read(gguf, tensor, 0, tensor->bytes, out, error);
    TMS_TRY(tms_gguf_read(gguf, tensor, 0, tensor->bytes, narrow, error));
    widen(tensor->type, narrow, tensor->elements, out);
    return TAMIS_OK;
}

tamis_status tms_weights_rope_factors(const tms_weights *weights, const tms_gguf *gguf, float *out,
                                      bool *present, tamis_error *error) {
    const tms_gguf_tensor *tensor = weights->rope_factors.tensor;
    *present = tensor != NULL;
    if (!tensor) return TAMIS_OK;
    TMS_TRY(read_vector(gguf, tensor, out, error));
    for (uint64_t i = 0; i < tensor->elements; ++i)
        TMS_REQUIRE(out[i] >= 1e-6f && out[i] <= 1e6f, TAMIS_E_FORMAT,
                    "tensor '%s' has %g at %llu; 1e-6 to 1e6 can be", ROPE_FACTORS, (double)out[i],
                    (unsigned long long)i);
    return TAMIS_OK;
}

/* A tensor goes to the device in pieces of at most PIECE bytes. While some are copied there, the next
 * one is read and packed. */
#define PIECE  (1u << 20)
#define PIECES 4u

/* The state of uploading weights piece by piece. */
typedef struct upload {
    const tms_gguf *gguf;
    tamis_context *context;
    tamis_model_watcher watcher;
    void *user;
    uint64_t done, total;        /* bytes of the file */
    void *raw;                   /* [PIECE] bytes as in the file, where the device has others */
    tamis_host_buffer *pieces;   /* [PIECES][PIECE] bytes as on the device */
    tamis_event *copied[PIECES]; /* NULL: the piece is free */
    uint32_t next;               /* of the pieces */
    tms_weights *weights;
} upload;

/* A vector of 16-bit floats, which the device has as f32. */
static bool is_widened(const tms_weight *weight) {
    return weight->type != weight->tensor->type;
}

/* Waits until the i-th piece has been copied, and frees it. */
static tamis_status await_piece(upload *u, uint32_t i, tamis_error *error) {
    const tamis_status status = u->copied[i] ? tamis_event_wait(u->copied[i], error) : TAMIS_OK;
    tamis_event_destroy(&u->copied[i]);
    return status;
}

/* Bytes [first, first + n) of the tensor: widened where the device has them as f32, or packed, where
 * they begin with a strip. */
static tamis_status send(upload *u, const tms_weight *weight, uint64_t first, uint64_t n,
                         tamis_error *error) {
    const tms_gguf_tensor *tensor = weight->tensor;
    const bool packed = weight->layout == TAMIS_WEIGHT_STRIPS, widened = is_widened(weight);
    const uint64_t rows = n / (tensor->bytes / weight->n_out), place = u->next * (uint64_t)PIECE;
    void *piece = (uint8_t *)tamis_host_buffer_data(u->pieces) + place;
    uint64_t at = first, bytes = n;
    TMS_TRY(await_piece(u, u->next, error));
    TMS_TRY(tms_gguf_read(u->gguf, tensor, first, n, packed || widened ? u->raw : piece, error));
    if (packed) {
        bytes = tamis_weight_layout_bytes(weight->layout, weight->type, rows, weight->n_in);
        TMS_TRY(tamis_weight_pack(weight->type, rows, weight->n_in, u->raw, piece, error));
    } else if (widened) {
        at *= 2;
        bytes *= 2;
        widen(tensor->type, u->raw, n / 2, piece);
    }
    TMS_TRY(tamis_buffer_upload(weight->buffer, at, u->pieces, place, bytes, NULL,
                                &u->copied[u->next], error));
    u->next = (u->next + 1) % PIECES;
    u->done += n;
    return u->watcher ? u->watcher(u->user, u->done, u->total, error) : TAMIS_OK;
}

/* Strips where the device reads them fastest and one is no longer than a piece. */
static tamis_weight_layout layout_of(const upload *u, const tms_weight *weight) {
    const uint64_t strip = tamis_weight_bytes(weight->type, TAMIS_STRIP_ROWS, weight->n_in);
    return strip <= PIECE ? tamis_context_weight_layout(u->context, weight->type)
                          : TAMIS_WEIGHT_ROWS;
}

uint64_t tms_weight_step(const tms_weight *weight, uint64_t most) {
    if (weight->layout == TAMIS_WEIGHT_ROWS) return most;
    return most - most % tamis_weight_bytes(weight->type, TAMIS_STRIP_ROWS, weight->n_in);
}

static tamis_status send_weight(upload *u, tms_weight *weight, tamis_error *error) {
    const tms_gguf_tensor *tensor = weight->tensor;
    if (!tensor) return TAMIS_OK;
    u->weights->bytes -= device_bytes(weight);
    weight->layout = layout_of(u, weight);
    u->weights->bytes += device_bytes(weight);
    const uint64_t step = tms_weight_step(weight, is_widened(weight) ? PIECE / 2 : PIECE);
    tamis_status status =
        tamis_buffer_create(u->context, device_bytes(weight), &weight->buffer, error);
    for (uint64_t first = 0; first < tensor->bytes && status == TAMIS_OK; first += step) {
        const uint64_t rest = tensor->bytes - first;
        status = send(u, weight, first, rest < step ? rest : step, error);
    }
    weight->tensor = NULL;
    return status;
}

static tamis_status send_all(upload *u, tms_weights *weights, tamis_error *error) {
    TMS_TRY(send_weight(u, &weights->embed, error));
    TMS_TRY(send_weight(u, &weights->output_norm, error));
    TMS_TRY(send_weight(u, &weights->output, error));
    for (uint32_t layer = 0; layer < weights->n_layers; ++layer)
        for (int i = 0; i < TMS_LAYER_WEIGHTS; ++i)
            TMS_TRY(send_weight(u, &weights->layers[layer].weights[i], error));
    return TAMIS_OK;
}

tamis_status tms_weights_upload(tms_weights *weights, const tms_gguf *gguf, tamis_context *context,
                                tamis_model_watcher watcher, void *user, tamis_error *error) {
    upload u = {.gguf = gguf,
                .context = context,
                .watcher = watcher,
                .user = user,
                .total = weights->file_bytes,
                .raw = malloc(PIECE),
                .weights = weights};
    tamis_status status =
        u.raw ? tamis_host_buffer_create(context, PIECES * PIECE, &u.pieces, error)
              : tms_model_fail(error, TAMIS_E_NO_MEMORY, "no memory for %u bytes", PIECE);
    if (status == TAMIS_OK) status = send_all(&u, weights, error);
    for (uint32_t i = 0; i < PIECES && status == TAMIS_OK; i++)
        status = await_piece(&u, i, error);
    for (uint32_t i = 0; i < PIECES; i++)
        tamis_event_destroy(&u.copied[i]);
    tamis_host_buffer_destroy(&u.pieces); /* waits for copies that a failure has left */
    free(u.raw);
    return status;
}

void tms_weights_free(tms_weights *weights) {
    tamis_buffer_destroy(&weights->embed.buffer);
    tamis_buffer_destroy(&weights->output_norm.buffer);
    tamis_buffer_destroy(&weights->output.buffer);
    for (uint32_t layer = 0; layer < weights->n_layers; ++layer)
        for (int i = 0; i < TMS_LAYER_WEIGHTS; ++i)
            tamis_buffer_destroy(&weights->layers[layer].weights[i].buffer);
    free(weights->layers);
    *weights = (tms_weights){0};
}
