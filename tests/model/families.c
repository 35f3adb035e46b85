/* SPDX-License-Identifier: Apache-2.0 */
/* A small model of each family, which together have all weight types: its logits against those of
 * an independent implementation (make_models.py), in prefills of several rows and in decode steps.
 * */
#include "lib/model/model.h"
#include "tests/model/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS     38
#define VOCABULARY 48
#define POSITIONS  4

/* Bound on logits, which reach 6. The vectors are float64. A backend may round the inputs of
 * quantised weights to 16 bits, 1.6e-5 of a block's largest; two layers of seven products pass some
 * ten times of that on. A wrong nibble, sign or frequency moves logits by 0.1 or more. */
#define BOUND 2e-3f

typedef struct vectors {
    int32_t tokens[TOKENS];
    uint32_t positions[POSITIONS];
    float logits[POSITIONS][VOCABULARY];
} vectors;

/* Ends the test unless the file holds exactly what is expected. */
static void read_vectors(const char *name, vectors *out) {
    char path[1024], magic[4];
    uint32_t counts[3];
    snprintf(path, sizeof path, "%s/models/%s.logits", rig_data, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(magic, 1, 4, file), 4);
    assert_memory_equal(magic, "LGTS", 4);
    assert_int_equal(fread(counts, 4, 3, file), 3);
    assert_true(counts[0] == TOKENS && counts[1] == VOCABULARY && counts[2] == POSITIONS);
    assert_int_equal(fread(out, 1, sizeof *out, file), sizeof *out);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
}

static void open_model(rig *r, const char *name, tamis_selection_kind selection) {
    char file[64];
    snprintf(file, sizeof file, "models/%s.gguf", name);
    rig_open(r,
             &(rig_params){.file = file, .max_context = TOKENS, .selection = {.kind = selection}});
}

static void check_logits(rig *r, const vectors *v, size_t i) {
    float logits[VOCABULARY], most = 0;
    RIG_OK(r, tamis_runner_logits(r->runner, 0, logits, &r->error));
    for (size_t j = 0; j < VOCABULARY; ++j) {
        const float d = fabsf(logits[j] - v->logits[i][j]);
        if (!(d <= BOUND))
            fail_msg("position %u: logit %zu is %g, not %g", v->positions[i], j, (double)logits[j],
                     (double)v->logits[i][j]);
        most = d > most ? d : most;
    }
    if (getenv("TEST_VERBOSE")) print_message("position %u: %g\n", v->positions[i], (double)most);
}

/* Prefills up to each position but the last; from there on a token at a time. */
static void check_model(const char *name) {
    rig r;
    vectors v;
    int32_t next = 0;
    read_vectors(name, &v);
    open_model(&r, name, TAMIS_SELECT_FULL);
    assert_int_equal(tamis_model_describe(r.model)->n_vocab, VOCABULARY);
    const tamis_sequence sequence = rig_add(&r);
    uint32_t done = 0;
    for (size_t i = 0; i + 1 < POSITIONS; ++i) {
        const uint32_t end = v.positions[i] + 1;
        RIG_OK(&r, tamis_runner_prefill(r.runner, sequence, v.tokens + done, end - done, &next,
                                        &r.error));
        done = end;
        check_logits(&r, &v, i);
    }
    for (; done <= v.positions[POSITIONS - 1]; ++done)
        RIG_OK(&r, tamis_runner_decode(r.runner, &sequence, 1, &v.tokens[done], &next, &r.error));
    check_logits(&r, &v, POSITIONS - 1);
    rig_close(&r);
}

/* The files of make_models.py, which says what each is there for. Those before `others` have between
 * them every op and form of a forward pass, and run on every device; the others differ in what the host
 * makes of a file, and run on the reference alone. */
static const char *const models[] = {
    "llama3",    "mistral", "qwen2", "qwen3", "mixed", "mixed-more", /* weights in blocks */
    "gemma3",    /* GELU, norms behind products, local layers */
    "olmo2",     /* norms of whole rows, none before products */
    "granite",   /* scales */
    "command-r", /* LayerNorm, parallel */
    "phi2",      /* no gate, biases of norms and logits */
    "glm4",      /* heads of 112 channels */
};
static const char *const others[] = {
    "gemma",      "gemma2", "phi3",    "phi4",          "chatglm",   "granite4", "smollm3",
    "starcoder2", "exaone", "exaone4", "exaone4-small", "internlm2", "cohere2",  "stablelm",
    "gptneox",    "orion",  "xverse",  "seed_oss",      "ernie4_5",  "minicpm"};
#define MODELS (sizeof models / sizeof *models)
#define OTHERS (sizeof others / sizeof *others)

static void test_model(void **state) {
    check_model(*state);
}

static void test_info(void **state) {
    (void)state;
    rig r;
    open_model(&r, "mixed", TAMIS_SELECT_FULL);
    const tamis_model_info *info = tamis_model_describe(r.model);
    assert_string_equal(info->architecture, "llama");
    assert_string_equal(info->name, "mixed");
    assert_int_equal(info->type, TAMIS_WEIGHT_Q4_K);
    assert_int_equal(info->tensors_of_type[TAMIS_WEIGHT_F32], 3);
    assert_int_equal(info->tensors_of_type[TAMIS_WEIGHT_F16], 0);
    assert_int_equal(info->tensors_of_type[TAMIS_WEIGHT_BF16], 1);
    assert_int_equal(info->tensors_of_type[TAMIS_WEIGHT_Q5_0], 1);
    assert_int_equal(info->tensors_of_type[TAMIS_WEIGHT_Q4_K], 4);
    assert_int_equal(info->tensors_of_type[TAMIS_WEIGHT_Q6_K], 3);
    assert_int_equal(info->parameters, 2 * 48 * 256 + 4 * 64 * 256 + 3 * 64 * 256 + 3 * 256);
    /* Matrices as in the file, vectors in f32. */
    const uint64_t blocks_4 = (48 * 256 + 3 * 64 * 256) / 256;
    const uint64_t blocks_6 = (48 * 256 + 2 * 64 * 256) / 256;
    assert_int_equal(info->weight_bytes, blocks_4 * 144 + blocks_6 * 210 + 64 * 256 * 2 +
                                             64 * 256 / 32 * 22 + 3 * 256 * 4);
    rig_close(&r);
}

/* Evictions that need the output projection get it widened where it is in blocks: its columns are
 * what the matrix itself makes of unit vectors. */
static void check_output_columns(rig *r, tamis_buffer *wide, const tms_weight *w, uint32_t n_in,
                                 uint32_t n_out) {
    tamis_buffer *x = NULL, *y = NULL;
    float unit[128] = {0}, column[32], whole[128 * 32];
    assert_true(n_in <= 128 && n_out <= 32);
    RIG_OK(r, tamis_buffer_create(r->context, n_in * sizeof *unit, &x, &r->error));
    RIG_OK(r, tamis_buffer_create(r->context, n_out * sizeof *column, &y, &r->error));
    RIG_OK(r, tamis_buffer_read(wide, 0, whole, n_in * n_out * sizeof *whole, &r->error));
    for (uint32_t j = 0; j < n_in; j += 9) {
        const tamis_linear_params linear = {
            .x = {.buffer = x},
            .y = {.buffer = y},
            .w = {.buffer = w->buffer, .layout = w->layout, .type = w->type},
            .n_rows = 1,
            .n_in = n_in,
            .n_out = n_out};
        unit[j] = 1;
        RIG_OK(r, tamis_buffer_write(x, 0, unit, n_in * sizeof *unit, &r->error));
        RIG_OK(r, tamis_op_linear(r->context, &linear, &r->error));
        RIG_OK(r, tamis_buffer_read(y, 0, column, n_out * sizeof *column, &r->error));
        unit[j] = 0;
        for (uint32_t i = 0; i < n_out; ++i)
            assert_true(fabsf(column[i] - whole[i * n_in + j]) <= 1e-5f);
    }
    tamis_buffer_destroy(&x);
    tamis_buffer_destroy(&y);
}

static void test_output_in_blocks(void **state) {
    (void)state;
    rig r;
    vectors v;
    int32_t next = 0;
    uint32_t length = 0;
    read_vectors("qwen3", &v);
    rig_open(
        &r, &(rig_params){.file = "models/qwen3.gguf",
                          .max_context = TOKENS,
                          .eviction = {.kind = TAMIS_EVICT_CRITICALKV, .budget = 16, .window = 4}});
    for (uint32_t layer = 0; layer < 2; ++layer)
        check_output_columns(&r, r.runner->outputs[layer],
                             &r.model->weights.layers[layer].weights[TMS_ATTN_OUTPUT], 128, 32);
    const tamis_sequence sequence = rig_add(&r);
    RIG_OK(&r, tamis_runner_prefill(r.runner, sequence, v.tokens, TOKENS - 1, &next, &r.error));
    RIG_OK(&r, tamis_cache_lane_length(r.cache, sequence, 0, 0, &length, &r.error));
    assert_int_equal(length, 16);
    RIG_OK(&r, tamis_runner_decode(r.runner, &sequence, 1, &v.tokens[TOKENS - 1], &next, &r.error));
    rig_close(&r);
}

/* A plan has the model's sliding window, but where no text outgrows it. */
static void test_window(void **state) {
    (void)state;
    rig r;
    tamis_runner *runner = NULL;
    open_model(&r, "mistral", TAMIS_SELECT_FULL);
    assert_int_equal(tamis_model_describe(r.model)->sliding_window, 12);
    tamis_plan_params plan = {.selection = {.kind = TAMIS_SELECT_QUEST}, .max_context = 13};
    for (; plan.max_context >= 12; plan.max_context--) {
        tamis_plan_params have;
        RIG_OK(&r, tamis_runner_create(r.model, r.cache, &plan, &runner, &r.error));
        tamis_plan_get_params(tamis_runner_plan(runner), &have);
        assert_int_equal(have.attention.sliding_window, plan.max_context > 12 ? 12 : 0);
        tamis_runner_destroy(&runner);
    }
    rig_close(&r);
}

/* A plan of a model with local layers has layers, with the model's windows, scales and caps; what the
 * caller gives holds beside them. */
static void test_layers(void **state) {
    (void)state;
    rig r;
    tamis_runner *runner = NULL;
    tamis_layer layers[8];
    tamis_plan_params plan = {.max_context = TOKENS}, have;
    open_model(&r, "gemma2", TAMIS_SELECT_FULL);
    const tamis_model_info *info = tamis_model_describe(r.model);
    const uint32_t n = info->n_layers, window = info->sliding_window;
    assert_true(n <= 8 && window > 1 && window < TOKENS && info->n_local_layers == n / 2);
    RIG_OK(&r, tamis_model_layers(r.model, &plan, layers, &r.error));
    RIG_OK(&r, tamis_runner_create(r.model, r.cache, &plan, &runner, &r.error));
    tamis_plan_get_params(tamis_runner_plan(runner), &have);
    assert_non_null(have.layers);
    for (uint32_t layer = 0; layer < n; ++layer) {
        const tamis_attention *a = &have.layers[layer].attention;
        assert_int_equal(a->sliding_window, layer % 2 == 0 ? window : 0);
        assert_true(a->soft_cap > 0 && a->soft_cap == have.layers[0].attention.soft_cap);
        assert_int_equal(layers[layer].attention.sliding_window, a->sliding_window);
    }
    tamis_runner_destroy(&runner);
    plan.attention = (tamis_attention){.sliding_window = window + 2, .soft_cap = 7};
    RIG_OK(&r, tamis_runner_create(r.model, r.cache, &plan, &runner, &r.error));
    tamis_plan_get_params(tamis_runner_plan(runner), &have);
    for (uint32_t layer = 0; layer < n; ++layer) {
        const tamis_attention *a = &have.layers[layer].attention;
        assert_int_equal(a->sliding_window, layer % 2 == 0 ? window : window + 2);
        assert_true(a->soft_cap == 7.0f);
    }
    tamis_runner_destroy(&runner);
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "layers is NULL",
                tamis_model_layers(r.model, &plan, NULL, &r.error));
    rig_close(&r);
}

/* Chunks and evictions that move keys need layers that are rotated alike. */
static void test_rotations(void **state) {
    (void)state;
    rig r;
    uint8_t fingerprint[16];
    const tms_rotated *rotated = NULL;
    open_model(&r, "gemma3", TAMIS_SELECT_FULL);
    RIG_REFUSED(&r, TAMIS_E_UNSUPPORTED,
                "a blend needs layers that are rotated alike; in gemma3 models layer",
                tms_check_one_rotation(r.runner, "a blend", &rotated, &r.error));
    RIG_OK(&r, tamis_model_fingerprint(r.model, fingerprint, &r.error));
    rig_close(&r);
    open_model(&r, "gemma2", TAMIS_SELECT_FULL); /* local layers are rotated as the others */
    RIG_OK(&r, tms_check_one_rotation(r.runner, "a blend", &rotated, &r.error));
    rig_close(&r);
    /* short factors up to the first training's context */
    open_model(&r, "phi3", TAMIS_SELECT_FULL);
    RIG_OK(&r, tms_check_one_rotation(r.runner, "the eviction", &rotated, &r.error));
    assert_ptr_equal(rotated, &r.model->rotations[TMS_ROTATION_GLOBAL]);
    RIG_REFUSED(&r, TAMIS_E_UNSUPPORTED, "a phi3 model with long and short factors",
                tms_check_as_model(r.runner, &r.error));
    rig_close(&r);
    /* long ones behind it; and a rotation of a part of the channels that multiplies them */
    open_model(&r, "phi4", TAMIS_SELECT_FULL);
    assert_ptr_equal(tms_runner_rotated(r.runner, 0), &r.model->rotations[TMS_ROTATION_LONG]);
    RIG_REFUSED(&r, TAMIS_E_UNSUPPORTED,
                "turns keys again, and the rotation of this phi3 model multiplies 48 of 64",
                tms_check_one_rotation(r.runner, "the eviction", &rotated, &r.error));
    rig_close(&r);
}

/* The watcher hears of every tensor, in order, up to all bytes; and may end the loading. */
typedef struct heard {
    uint32_t calls;
    uint64_t done, total, stop_at;
} heard;

static tamis_status hear(void *user, uint64_t done, uint64_t total, tamis_error *error) {
    heard *h = user;
    assert_true(done > h->done && done <= total && (h->total == 0 || h->total == total));
    *h = (heard){h->calls + 1, done, total, h->stop_at};
    if (done < h->stop_at) return TAMIS_OK;
    snprintf(error->text, sizeof error->text, "enough");
    error->status = TAMIS_E_STATE;
    return TAMIS_E_STATE;
}

static void test_watcher(void **state) {
    (void)state;
    rig r;
    char path[1024];
    heard h = {.stop_at = UINT64_MAX};
    const tamis_model_params params = {.watcher = hear, .user = &h};
    tamis_model *model = NULL;
    open_model(&r, "mixed", TAMIS_SELECT_FULL);
    /* it has divisors of the frequencies, which never go to the device; its vectors are f32 */
    snprintf(path, sizeof path, "%s/models/llama3.gguf", rig_data);
    RIG_OK(&r, tamis_model_load(r.context, path, &params, &model, &r.error));
    assert_int_equal(h.done, h.total);
    assert_int_equal(h.total, tamis_model_describe(model)->weight_bytes);
    tamis_model_destroy(&model);
    h = (heard){.stop_at = UINT64_MAX};
    snprintf(path, sizeof path, "%s/models/mixed.gguf", rig_data);
    RIG_OK(&r, tamis_model_load(r.context, path, &params, &model, &r.error));
    assert_int_equal(h.calls, 12);
    assert_int_equal(h.done, h.total);
    assert_int_equal(h.total, tamis_model_describe(model)->weight_bytes);
    tamis_model_destroy(&model);
    h = (heard){.stop_at = 1};
    RIG_REFUSED(&r, TAMIS_E_STATE, "mixed.gguf: enough",
                tamis_model_load(r.context, path, &params, &model, &r.error));
    assert_null(model);
    assert_int_equal(h.calls, 1);
    rig_close(&r);
}

int main(int argc, char **argv) {
    const struct CMUnitTest rest[] = {
        cmocka_unit_test(test_info),      cmocka_unit_test(test_output_in_blocks),
        cmocka_unit_test(test_window),    cmocka_unit_test(test_layers),
        cmocka_unit_test(test_rotations), cmocka_unit_test(test_watcher),
    };
    struct CMUnitTest tests[MODELS + OTHERS + sizeof rest / sizeof *rest];
    if (!rig_arguments(argc, argv)) return 2;
    const size_t n = strcmp(rig_device, "reference") == 0 ? MODELS + OTHERS : MODELS;
    for (size_t i = 0; i < n; ++i) {
        const char *name = i < MODELS ? models[i] : others[i - MODELS];
        tests[i] = (struct CMUnitTest){name, test_model, NULL, NULL, (void *)name};
    }
    memcpy(tests + n, rest, sizeof rest);
    return _cmocka_run_group_tests("families", tests, n + sizeof rest / sizeof *rest, NULL, NULL);
}
