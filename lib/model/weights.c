/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a model's tensors by name, checks their shapes, and copies them to the device. */
#include "lib/model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* By tms_rope_factors. */
static const char *const factor_names[] = {"rope_freqs.weight", "rope_factors_short.weight",
                                           "rope_factors_long.weight"};

/* Sizes that tensor dims are made of; the vocabulary comes with each call. */
typedef enum size_name { ONE, DIM, HEADS, KV_HEADS, FF_DIM, HEAD_DIM } size_name;

typedef struct layer_tensor {
    const char *suffix;    /* behind "blk.<layer>." */
    size_name n_in, n_out; /* n_out ONE: a vector */
    const char
        *joined; /* a tensor whose rows it is part of where there is no such one; NULL: none */
} layer_tensor;

#define QKV      "attn_qkv.weight"
#define QKV_BIAS "attn_qkv.bias"

_Static_assert(TMS_LAYER_WEIGHTS <= 32, "a bit for each in tms_architecture");
static const layer_tensor layer_tensors[TMS_LAYER_WEIGHTS] = {
    [TMS_ATTN_NORM] = {"attn_norm.weight", DIM, ONE, NULL},
    [TMS_ATTN_Q] = {"attn_q.weight", DIM, HEADS, QKV},
    [TMS_ATTN_K] = {"attn_k.weight", DIM, KV_HEADS, QKV},
    [TMS_ATTN_V] = {"attn_v.weight", DIM, KV_HEADS, QKV},
    [TMS_ATTN_OUTPUT] = {"attn_output.weight", HEADS, DIM, NULL},
    [TMS_FFN_NORM] = {"ffn_norm.weight", DIM, ONE, NULL},
    [TMS_FFN_GATE] = {"ffn_gate.weight", DIM, FF_DIM, NULL},
    [TMS_FFN_UP] = {"ffn_up.weight", DIM, FF_DIM, NULL},
    [TMS_FFN_DOWN] = {"ffn_down.weight", FF_DIM, DIM, NULL},
    [TMS_ATTN_Q_BIAS] = {"attn_q.bias", HEADS, ONE, QKV_BIAS},
    [TMS_ATTN_K_BIAS] = {"attn_k.bias", KV_HEADS, ONE, QKV_BIAS},
    [TMS_ATTN_V_BIAS] = {"attn_v.bias", KV_HEADS, ONE, QKV_BIAS},
    [TMS_ATTN_OUTPUT_BIAS] = {"attn_output.bias", DIM, ONE, NULL},
    [TMS_FFN_GATE_BIAS] = {"ffn_gate.bias", FF_DIM, ONE, NULL},
    [TMS_FFN_UP_BIAS] = {"ffn_up.bias", FF_DIM, ONE, NULL},
    [TMS_FFN_DOWN_BIAS] = {"ffn_down.bias", DIM, ONE, NULL},
    [TMS_ATTN_Q_NORM] = {"attn_q_norm.weight", HEAD_DIM, ONE, NULL},
    [TMS_ATTN_K_NORM] = {"attn_k_norm.weight", HEAD_DIM, ONE, NULL},
    [TMS_ATTN_NORM_BIAS] = {"attn_norm.bias", DIM, ONE, NULL},
    [TMS_FFN_NORM_BIAS] = {"ffn_norm.bias", DIM, ONE, NULL},
    [TMS_POST_ATTN_NORM] = {"post_attention_norm.weight", DIM, ONE, NULL},
    [TMS_POST_FFN_NORM] = {"post_ffw_norm.weight", DIM, ONE, NULL},
    [TMS_ATTN_Q_ROW_NORM] = {"attn_q_norm.weight", HEADS, ONE, NULL},
    [TMS_ATTN_K_ROW_NORM] = {"attn_k_norm.weight", KV_HEADS, ONE, NULL},
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

/* Of what is taken of the file. */
static uint64_t file_bytes(const tms_weight *weight) {
    return tamis_weight_bytes(weight->tensor->type, weight->n_out, weight->n_in);
}

static uint64_t device_bytes(const tms_weight *weight) {
    return tamis_weight_layout_bytes(weight->layout, weight->type, weight->n_out, weight->n_in);
}

/* What is looked for: rows [first, first + n_out) of a tensor of [rows][n_in], or elements [first, first
 * + n_in) of a vector of `rows` elements. */
typedef struct wanted {
    const char *name;
    uint64_t n_in, n_out, rows, first;
    bool vector;
} wanted;

/* Vectors are f32 on the device. */
static tamis_status find(const tms_gguf *gguf, const wanted *w, tms_weights *weights,
                         tms_weight *to, tamis_error *error) {
    const tms_gguf_tensor *tensor = tms_gguf_tensor_find(gguf, w->name);
    TMS_REQUIRE(tensor, TAMIS_E_FORMAT, "tensor '%s' is missing", w->name);
    const uint64_t *dims = tensor->dims;
    const uint64_t n_in = w->vector ? w->rows : w->n_in, n_out = w->vector ? 1 : w->rows;
    TMS_REQUIRE(dims[0] == n_in && dims[1] == n_out && dims[2] == 1 && dims[3] == 1, TAMIS_E_FORMAT,
                "tensor '%s' is of %llu x %llu x %llu x %llu; %llu x %llu is expected", w->name,
                (unsigned long long)dims[0], (unsigned long long)dims[1],
                (unsigned long long)dims[2], (unsigned long long)dims[3], (unsigned long long)n_in,
                (unsigned long long)n_out);
    TMS_REQUIRE(!w->vector || tamis_weight_block(tensor->type) == 1, TAMIS_E_UNSUPPORTED,
                "tensor '%s' has type %s; vectors are f32, f16 or bf16", w->name,
                tamis_weight_name(tensor->type));
    *to = (tms_weight){.tensor = tensor,
                       .type = w->vector ? TAMIS_WEIGHT_F32 : tensor->type,
                       .n_out = w->n_out,
                       .n_in = w->n_in};
    to->first = tensor->bytes / w->rows * w->first;
    weights->parameters += w->n_in * w->n_out;
    weights->file_bytes += file_bytes(to);
    weights->tensors[tensor->type] += w->first == 0;
    if (!w->vector) weights->matrix_parameters[tensor->type] += w->n_in * w->n_out;
    weights->bytes += device_bytes(to);
    return TAMIS_OK;
}

typedef struct tensor_name {
    char text[48];
} tensor_name;

static tensor_name name_of(uint32_t layer, const char *suffix) {
    tensor_name name;
    snprintf(name.text, sizeof name.text, "blk.%u.%s", layer, suffix);
    return name;
}

/* The rows of a joined tensor that lie before those of weight i, and all. */
static void place_joined(const tms_config *config, int i, wanted *w) {
    w->rows = 0;
    for (int other = 0; other < TMS_LAYER_WEIGHTS; ++other) {
        const layer_tensor *entry = &layer_tensors[other];
        if (!entry->joined || strcmp(entry->joined, layer_tensors[i].joined) != 0) continue;
        if (other == i) w->first = w->rows;
        w->rows += size_of(config, entry->n_out == ONE ? entry->n_in : entry->n_out);
    }
}

/* Finds weight i of a layer, which may be part of a tensor; leaves it absent if the file may lack it
 * and does. */
static tamis_status find_weight(const tms_gguf *gguf, const tms_config *config, uint32_t layer,
                                int i, tms_weights *weights, tamis_error *error) {
    const tms_architecture *a = config->architecture;
    const layer_tensor *entry = &layer_tensors[i];
    const bool other_norm = i == TMS_FFN_NORM && a->ffn_norm, vector = entry->n_out == ONE;
    const uint64_t n_in = size_of(config, entry->n_in), n_out = size_of(config, entry->n_out);
    tensor_name name = name_of(layer, other_norm ? a->ffn_norm : entry->suffix);
    wanted w = {name.text, n_in, n_out, vector ? n_in : n_out, 0, vector};
    if (a->gate_in_up && (i == TMS_FFN_GATE || i == TMS_FFN_UP)) {
        name = name_of(layer, layer_tensors[TMS_FFN_UP].suffix);
        w.rows = 2 * n_out;
        w.first = i == TMS_FFN_UP ? n_out : 0;
    } else if (entry->joined && !tms_gguf_tensor_find(gguf, name.text)) {
        const tensor_name joined = name_of(layer, entry->joined);
        if (tms_gguf_tensor_find(gguf, joined.text)) {
            name = joined;
            place_joined(config, i, &w);
        }
    }
    if (!(a->required & 1u << i) && !tms_gguf_tensor_find(gguf, name.text)) return TAMIS_OK;
    return find(gguf, &w, weights, &weights->layers[layer].weights[i], error);
}

static tamis_status find_layer(const tms_gguf *gguf, const tms_config *config, uint32_t layer,
                               tms_weights *weights, tamis_error *error) {
    const uint32_t all = config->architecture->required | config->architecture->optional;
    for (int i = 0; i < TMS_LAYER_WEIGHTS; ++i)
        if (all & 1u << i) TMS_TRY(find_weight(gguf, config, layer, i, weights, error));
    return TAMIS_OK;
}

static tamis_status find_factors(const tms_gguf *gguf, const tms_config *config,
                                 tms_weights *weights, tamis_error *error) {
    const tms_architecture *a = config->architecture;
    const uint64_t n = config->n_rot / 2;
    for (int i = TMS_FACTORS_ALL; i <= TMS_FACTORS_LONG; ++i) {
        tms_weight *to = &weights->rope_factors[i];
        const bool may_be = i == TMS_FACTORS_ALL ? a->rope_factors : a->long_factors;
        if (!may_be || !tms_gguf_tensor_find(gguf, factor_names[i])) continue;
        TMS_TRY(find(gguf, &(wanted){factor_names[i], n, 1, n, 0, true}, weights, to, error));
        weights->bytes -= device_bytes(to); /* they are never sent */
        weights->file_bytes -= file_bytes(to);
    }
    TMS_REQUIRE(!weights->rope_factors[TMS_FACTORS_SHORT].tensor ==
                    !weights->rope_factors[TMS_FACTORS_LONG].tensor,
                TAMIS_E_FORMAT, "of tensors '%s' and '%s' one is missing",
                factor_names[TMS_FACTORS_SHORT], factor_names[TMS_FACTORS_LONG]);
    return TAMIS_OK;
}

/* The tensors outside the layers. */
static tamis_status find_ends(const tms_gguf *gguf, const tms_config *config, uint32_t n_vocab,
                              tms_weights *weights, tamis_error *error) {
    const uint64_t dim = config->dim;
    const bool layer_norm = config->architecture->norm == TAMIS_NORM_LAYER;
    const struct {
        wanted what;
        tms_weight *to;
        bool may_be, must_be;
    } ends[] = {
        {{"token_embd.weight", dim, n_vocab, n_vocab, 0, false}, &weights->embed, true, true},
        {{"output_norm.weight", dim, 1, dim, 0, true}, &weights->output_norm, true, true},
        {{"output_norm.bias", dim, 1, dim, 0, true}, &weights->output_norm_bias, layer_norm, false},
        {{"output.weight", dim, n_vocab, n_vocab, 0, false},
         &weights->output,
         true,
         config->architecture->untied},
        {{"output.bias", n_vocab, 1, n_vocab, 0, true},
         &weights->output_bias,
         config->architecture->output_bias,
         true}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; ++i)
        if (ends[i].may_be && (ends[i].must_be || tms_gguf_tensor_find(gguf, ends[i].what.name)))
            TMS_TRY(find(gguf, &ends[i].what, weights, ends[i].to, error));
    return find_factors(gguf, config, weights, error);
}

/* A bias needs its norm; and all layers or none have ffn_norm, by which they are parallel. */
static tamis_status check_norms(const tms_config *config, const tms_weights *weights,
                                tamis_error *error) {
    for (uint32_t layer = 0; layer < config->n_layers; ++layer) {
        const tms_weight *w = weights->layers[layer].weights;
        TMS_REQUIRE(!w[TMS_FFN_NORM_BIAS].tensor || w[TMS_FFN_NORM].tensor, TAMIS_E_FORMAT,
                    "layer %u has 'ffn_norm.bias' without 'ffn_norm.weight'", layer);
        TMS_REQUIRE(!w[TMS_FFN_NORM].tensor == !weights->layers[0].weights[TMS_FFN_NORM].tensor,
                    TAMIS_E_UNSUPPORTED, "layers 0 and %u differ in 'ffn_norm.weight'", layer);
    }
    return TAMIS_OK;
}

static bool is_used(const tms_weights *weights, const tms_gguf_tensor *tensor) {
    const tms_weight *ends[] = {&weights->embed,
                                &weights->output_norm,
                                &weights->output_norm_bias,
                                &weights->output,
                                &weights->output_bias,
                                &weights->rope_factors[TMS_FACTORS_ALL],
                                &weights->rope_factors[TMS_FACTORS_SHORT],
                                &weights->rope_factors[TMS_FACTORS_LONG]};
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
                    tms_text_show(gguf->tensors[i].name).text, config->architecture->info.name,
                    config->n_layers);
    return TAMIS_OK;
}

tamis_status tms_weights_find(const tms_gguf *gguf, const tms_config *config, uint32_t n_vocab,
                              tms_weights *out, tamis_error *error) {
    *out = (tms_weights){0};
    TMS_REQUIRE(!config->n_vocab || config->n_vocab == n_vocab, TAMIS_E_FORMAT,
                "key '%s.vocab_size' is %u; the vocabulary has %u tokens",
                config->architecture->info.name, config->n_vocab, n_vocab);
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
    if (status == TAMIS_OK) status = check_norms(config, out, error);
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

tamis_status tms_weights_rope_factors(const tms_weights *weights, tms_rope_factors which,
                                      const tms_gguf *gguf, float *out, bool *present,
                                      tamis_error *error) {
    const tms_gguf_tensor *tensor = weights->rope_factors[which].tensor;
    *present = tensor != NULL;
    if (!tensor) return TAMIS_OK;
    TMS_TRY(read_vector(gguf, tensor, out, error));
    for (uint64_t i = 0; i < tensor->elements; ++i)
        TMS_REQUIRE(out[i] >= 1e-6f && out[i] <= 1e6f, TAMIS_E_FORMAT,
                    "tensor '%s' has %g at %llu; 1e-6 to 1e6 can be", factor_names[which],
                    (double)out[i], (unsigned long long)i);
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

/* Bytes [first, first + n) of the weight in the file: widened where the device has them as f32, or
 * packed, where they begin with a strip. */
static tamis_status send(upload *u, const tms_weight *weight, uint64_t first, uint64_t n,
                         tamis_error *error) {
    const tms_gguf_tensor *tensor = weight->tensor;
    const bool packed = weight->layout == TAMIS_WEIGHT_STRIPS, widened = is_widened(weight);
    const uint64_t rows = n / (file_bytes(weight) / weight->n_out),
                   place = u->next * (uint64_t)PIECE;
    void *piece = (uint8_t *)tamis_host_buffer_data(u->pieces) + place;
    uint64_t at = first, bytes = n;
    TMS_TRY(await_piece(u, u->next, error));
    TMS_TRY(tms_gguf_read(u->gguf, tensor, weight->first + first, n,
                          packed || widened ? u->raw : piece, error));
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
    if (!weight->tensor) return TAMIS_OK;
    u->weights->bytes -= device_bytes(weight);
    weight->layout = layout_of(u, weight);
    u->weights->bytes += device_bytes(weight);
    const uint64_t step = tms_weight_step(weight, is_widened(weight) ? PIECE / 2 : PIECE);
    tamis_status status =
        tamis_buffer_create(u->context, device_bytes(weight), &weight->buffer, error);
    const uint64_t bytes = file_bytes(weight);
    for (uint64_t first = 0; first < bytes && status == TAMIS_OK; first += step) {
        const uint64_t rest = bytes - first;
        status = send(u, weight, first, rest < step ? rest : step, error);
    }
    weight->tensor = NULL;
    return status;
}

static tamis_status send_all(upload *u, tms_weights *weights, tamis_error *error) {
    TMS_TRY(send_weight(u, &weights->embed, error));
    TMS_TRY(send_weight(u, &weights->output_norm, error));
    TMS_TRY(send_weight(u, &weights->output, error));
    TMS_TRY(send_weight(u, &weights->output_norm_bias, error));
    TMS_TRY(send_weight(u, &weights->output_bias, error));
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

/* ---- What is made of them -------------------------------------------------------------------- */

tamis_buffer *tms_layer_bias(const tms_layer *layer, tms_layer_weight matrix) {
    static const uint8_t biases[TMS_LAYER_WEIGHTS] = {
        [TMS_ATTN_Q] = TMS_ATTN_Q_BIAS,     [TMS_ATTN_K] = TMS_ATTN_K_BIAS,
        [TMS_ATTN_V] = TMS_ATTN_V_BIAS,     [TMS_ATTN_OUTPUT] = TMS_ATTN_OUTPUT_BIAS,
        [TMS_FFN_GATE] = TMS_FFN_GATE_BIAS, [TMS_FFN_UP] = TMS_FFN_UP_BIAS,
        [TMS_FFN_DOWN] = TMS_FFN_DOWN_BIAS};
    return layer->folded[matrix] ? layer->folded[matrix] : layer->weights[biases[matrix]].buffer;
}

/* A norm's bias b gives every matrix W behind it a bias: W·(z + b) = W·z + W·b. */
static tamis_status fold(const tms_weight *w, tamis_buffer *bias, const tms_weight *norm_bias,
                         tamis_context *context, tms_weights *weights, tamis_buffer **out,
                         tamis_error *error) {
    if (!norm_bias->buffer || !w->buffer) return TAMIS_OK;
    TMS_TRY(tamis_buffer_create(context, w->n_out * sizeof(float), out, error));
    weights->bytes += w->n_out * sizeof(float);
    const tamis_linear_params params = {
        .x = {.buffer = norm_bias->buffer, .dtype = TAMIS_F32},
        .y = {.buffer = *out, .dtype = TAMIS_F32},
        .w = {.buffer = w->buffer, .layout = w->layout, .type = w->type},
        .bias = {.buffer = bias},
        .n_rows = 1,
        .n_in = (uint32_t)w->n_in,
        .n_out = (uint32_t)w->n_out};
    return tamis_op_linear(context, &params, error);
}

/* Matrices of the rows that a norm gives; their biases follow from them. */
static tamis_status fold_layer(tms_layer *layer, tamis_context *context, tms_weights *weights,
                               tamis_error *error) {
    const tms_weight *w = layer->weights;
    const tms_weight *attn = &w[TMS_ATTN_NORM_BIAS];
    const tms_weight *ffn = w[TMS_FFN_NORM].buffer ? &w[TMS_FFN_NORM_BIAS] : attn;
    const struct {
        tms_layer_weight matrix;
        const tms_weight *norm_bias;
    } all[] = {{TMS_ATTN_Q, attn},
               {TMS_ATTN_K, attn},
               {TMS_ATTN_V, attn},
               {TMS_FFN_GATE, ffn},
               {TMS_FFN_UP, ffn}};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        TMS_TRY(fold(&w[all[i].matrix], tms_layer_bias(layer, all[i].matrix), all[i].norm_bias,
                     context, weights, &layer->folded[all[i].matrix], error));
    return TAMIS_OK;
}

static tamis_status make_residual_scale(tms_weights *weights, const tms_config *config,
                                        tamis_context *context, tamis_error *error) {
    const uint64_t bytes = (uint64_t)config->dim * sizeof(float);
    if (config->residual_scale == 1) return TAMIS_OK;
    float *scale = malloc(bytes);
    TMS_REQUIRE(scale, TAMIS_E_NO_MEMORY, "no memory for a scale of %u channels", config->dim);
    for (uint32_t i = 0; i < config->dim; ++i)
        scale[i] = config->residual_scale;
    tamis_status status = tamis_buffer_create(context, bytes, &weights->residual_scale, error);
    weights->bytes += bytes;
    if (status == TAMIS_OK)
        status = tamis_buffer_write(weights->residual_scale, 0, scale, bytes, error);
    free(scale);
    return status;
}

tamis_status tms_weights_prepare(tms_weights *weights, const tms_config *config,
                                 tamis_context *context, tamis_error *error) {
    const tms_weight *output = weights->output.buffer ? &weights->output : &weights->embed;
    for (uint32_t layer = 0; layer < weights->n_layers; ++layer)
        TMS_TRY(fold_layer(&weights->layers[layer], context, weights, error));
    TMS_TRY(fold(output, weights->output_bias.buffer, &weights->output_norm_bias, context, weights,
                 &weights->output_folded, error));
    TMS_TRY(make_residual_scale(weights, config, context, error));
    return tamis_context_wait(context, error);
}

void tms_weights_free(tms_weights *weights) {
    tamis_buffer_destroy(&weights->embed.buffer);
    tamis_buffer_destroy(&weights->output_norm.buffer);
    tamis_buffer_destroy(&weights->output.buffer);
    tamis_buffer_destroy(&weights->output_norm_bias.buffer);
    tamis_buffer_destroy(&weights->output_bias.buffer);
    tamis_buffer_destroy(&weights->output_folded);
    tamis_buffer_destroy(&weights->residual_scale);
    for (uint32_t layer = 0; layer < weights->n_layers; ++layer)
        for (int i = 0; i < TMS_LAYER_WEIGHTS; ++i) {
            tamis_buffer_destroy(&weights->layers[layer].weights[i].buffer);
            tamis_buffer_destroy(&weights->layers[layer].folded[i]);
        }
    free(weights->layers);
    *weights = (tms_weights){0};
}
