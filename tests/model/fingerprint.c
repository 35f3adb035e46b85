/* SPDX-License-Identifier: Apache-2.0 */
/* The fingerprint of a model: what must change it changes it, and nothing else does. */
#include "lib/model/model.h"
#include "lib/model/parts.h"
#include "tests/faulty.h"
#include "tests/model/rig.h"
#include "tests/model/small.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static tamis_context *context;
static tamis_error error;

typedef struct print {
    uint8_t bytes[16];
} print;

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != TAMIS_OK) fail_msg("%s: %s", #call, error.text);                             \
    } while (0)

static print print_of_path(const char *path) {
    tamis_model *model = NULL;
    print first, again;
    OK(tamis_model_load(context, path, NULL, &model, &error));
    OK(tamis_model_fingerprint(model, first.bytes, &error));
    OK(tamis_model_fingerprint(model, again.bytes, &error));
    assert_memory_equal(&first, &again, sizeof first);
    tamis_model_destroy(&model);
    return first;
}

/* Of a file with these bytes, which is gone afterwards. */
static print print_of(const uint8_t *bytes, size_t count) {
    char path[] = "/tmp/tamis-print-XXXXXX";
    const int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, bytes, count), count);
    close(descriptor);
    const print p = print_of_path(path);
    unlink(path);
    return p;
}

static bool same(const print *a, const print *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

static print print_of_small(const small_file *file) {
    size_t count = 0;
    uint8_t *bytes = small_write(file, &count);
    const print p = print_of(bytes, count);
    free(bytes);
    return p;
}

/* A file of the folder tests/data; *count bytes, the caller's. */
static uint8_t *read_file(const char *name, char *path, size_t room, size_t *count) {
    snprintf(path, room, "%s/%s", rig_data, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *count = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*count);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *count, file), *count);
    fclose(file);
    return bytes;
}

/* A bit of every tensor: biases, norms of heads, what divides frequencies, the output matrix. The
 * last element of a vector, its lowest bit, so that each value stays one that is taken. */
static void check_tensors(const char *name) {
    char path[1024];
    size_t count = 0;
    tms_gguf gguf;
    uint8_t *bytes = read_file(name, path, sizeof path, &count);
    const print whole = print_of_path(path), copy = print_of(bytes, count);
    assert_true(same(&whole, &copy));
    OK(tms_gguf_open(path, &gguf, &error));
    assert_true(gguf.n_tensors > 10);
    for (uint64_t i = 0; i < gguf.n_tensors; ++i) {
        const tms_gguf_tensor *tensor = &gguf.tensors[i];
        const uint64_t last = tensor->type == TAMIS_WEIGHT_F32 ? 4 : 2;
        uint8_t *at = bytes + tensor->at + tensor->bytes - last;
        *at ^= 1;
        const print other = print_of(bytes, count);
        if (same(&whole, &other)) fail_msg("%s: tensor %s", name, tms_text_show(tensor->name).text);
        *at ^= 1;
    }
    tms_gguf_close(&gguf);
    free(bytes);
}

static void test_tensors(void **state) {
    (void)state;
    check_tensors("models/llama3.gguf");
    check_tensors("models/qwen3.gguf");
}

static void test_keys(void **state) {
    (void)state;
    small_file file;
    small_default(&file);
    const print plain = print_of_small(&file);
    small_find_key(&file, "general.name")->strings[0] = "another";
    small_find_key(&file, "llama.context_length")->number = 48;
    small_add_key(&file, "general.author", STRING, 0)->strings[0] = "nobody";
    small_add_key(&file, "llama.rope.dimension_count", U32, 64); /* as without it */
    const print named = print_of_small(&file);
    assert_true(same(&plain, &named));

    const struct {
        const char *key;
        uint32_t type;
        double real;
        const char *text;
    } changes[] = {{"llama.rope.freq_base", F64, 10001, NULL},
                   {"llama.attention.layer_norm_rms_epsilon", F32, 1.1e-5, NULL},
                   {"llama.attention.sliding_window", U32, 5, NULL},
                   {"llama.rope.dimension_count", U32, 32, NULL},
                   {"llama.rope.scaling.factor", F32, 2, NULL},
                   {"llama.rope.scaling.attn_factor", F32, 1.5, NULL},
                   {"llama.rope.scaling.type", STRING, 0, "yarn"}};
    enum { N = sizeof changes / sizeof *changes };
    print prints[N + 1] = {[N] = plain};
    for (size_t i = 0; i < N; ++i) {
        small_default(&file);
        small_key *key = small_find_key(&file, changes[i].key);
        if (!key) key = small_add_key(&file, changes[i].key, changes[i].type, 0);
        key->real = changes[i].real;
        key->number = (int64_t)changes[i].real;
        if (changes[i].text) key->strings[0] = changes[i].text;
        prints[i] = print_of_small(&file);
        for (size_t j = 0; j <= N; ++j)
            if ((j < i || j == N) && same(&prints[i], &prints[j]))
                fail_msg("%s changes nothing", changes[i].key);
    }
}

/* Of YaRN, the numbers that it alone reads. */
static void test_yarn(void **state) {
    (void)state;
    const char *const keys[] = {"llama.rope.scaling.original_context_length",
                                "llama.rope.scaling.yarn_beta_fast",
                                "llama.rope.scaling.yarn_beta_slow"};
    print prints[4];
    for (size_t i = 0; i < 4; ++i) {
        small_file file;
        small_default(&file);
        small_add_key(&file, "llama.rope.scaling.type", STRING, 0)->strings[0] = "yarn";
        small_add_key(&file, "llama.rope.scaling.factor", F32, 4);
        if (i < 3) small_add_key(&file, keys[i], i == 0 ? U32 : F32, 17);
        prints[i] = print_of_small(&file);
        for (size_t j = 0; j < i; ++j)
            assert_false(same(&prints[i], &prints[j]));
    }
}

/* ---- What store.h lists ----------------------------------------------------------------------- */

/* The next number of a field of the configuration, which is then as it was. */
#define NEXT(field)                                                                                \
    do {                                                                                           \
        const tms_config own_config = model->config;                                               \
        model->config.field++;                                                                     \
        changed(model, #field);                                                                    \
        model->config = own_config;                                                                \
    } while (0)

static print listed[40];
static size_t n_listed;

/* The fingerprint of what the model is now is none of those before. */
static void changed(tamis_model *model, const char *what) {
    print now;
    model->has_fingerprint = false;
    OK(tamis_model_fingerprint(model, now.bytes, &error));
    for (size_t i = 0; i < n_listed; ++i)
        if (same(&now, &listed[i])) fail_msg("%s changes nothing", what);
    assert_true(n_listed < sizeof listed / sizeof *listed);
    listed[n_listed++] = now;
}

static void change_architecture(tamis_model *model) {
    const tms_architecture *own = model->config.architecture;
    tms_architecture other = *own;
    model->config.architecture = &other;
    other.info.name = "another";
    changed(model, "architecture");
    other = *own;
    other.pairing = own->pairing == TAMIS_PAIR_HALF ? TAMIS_PAIR_ADJACENT : TAMIS_PAIR_HALF;
    changed(model, "pairing");
    model->config.architecture = own;
}

static void change_rope(tamis_model *model) {
    tms_config *config = &model->config;
    NEXT(n_rot);
    NEXT(rope.base);
    NEXT(rope.factor);
    NEXT(rope.attention);
    NEXT(rope.beta_fast);
    NEXT(rope.beta_slow);
    const tms_rope_scaling scaling = config->rope.scaling;
    for (int i = TMS_ROPE_PLAIN; i <= TMS_ROPE_YARN; ++i) {
        config->rope.scaling = (tms_rope_scaling)i;
        if (config->rope.scaling != scaling) changed(model, "rope.scaling");
    }
    NEXT(rope.original_context); /* which yarn alone reads */
    config->rope.scaling = scaling;
    float *own = model->rotations[TMS_ROTATION_GLOBAL].factors;
    float *factors = calloc(config->n_rot / 2, sizeof *factors);
    assert_non_null(factors);
    model->rotations[TMS_ROTATION_GLOBAL].factors = factors;
    changed(model, "rope_factors");
    factors[config->n_rot / 2 - 1] = 1;
    changed(model, "the last of rope_factors");
    model->rotations[TMS_ROTATION_GLOBAL].factors = own;
    free(factors);
}

static void change_vocab(tamis_model *model) {
    tamis_vocab_info *info = &model->vocab.info, own = *info;
    info->kind = own.kind == TAMIS_VOCAB_BPE ? TAMIS_VOCAB_SPM : TAMIS_VOCAB_BPE;
    changed(model, "kind of the vocabulary");
    *info = own;
    info->n_tokens++;
    changed(model, "tokens of the vocabulary");
    *info = own;
    info->pattern[0] ^= 1;
    changed(model, "pattern of the vocabulary");
    *info = own;
}

/* Each entry in turn; weights are changed by test_tensors. */
static void test_entries(void **state) {
    (void)state;
    char path[1024];
    tamis_model *model = NULL;
    snprintf(path, sizeof path, "%s/tiny.gguf", rig_data);
    OK(tamis_model_load(context, path, NULL, &model, &error));
    n_listed = 0;
    changed(model, "nothing yet");
    NEXT(n_layers);
    NEXT(n_heads);
    NEXT(n_kv_heads);
    NEXT(head_dim);
    NEXT(dim);
    NEXT(ff_dim);
    NEXT(sliding_window);
    NEXT(norm_eps);
    change_architecture(model);
    change_rope(model);
    change_vocab(model);
    print again;
    model->has_fingerprint = false;
    OK(tamis_model_fingerprint(model, again.bytes, &error));
    assert_true(same(&again, &listed[0])); /* each change was alone */
    tamis_model_destroy(&model);
}

/* ---- Devices, errors -------------------------------------------------------------------------- */

/* The device of the test and the reference agree. */
static void test_devices(void **state) {
    (void)state;
    char path[1024];
    const tamis_context_params params = {.device = "reference"};
    tamis_context *const own = context;
    snprintf(path, sizeof path, "%s/models/mixed.gguf", rig_data);
    const print here = print_of_path(path);
    OK(tamis_context_create(&params, &context, &error));
    const print there = print_of_path(path);
    tamis_context_destroy(&context);
    context = own;
    assert_true(same(&here, &there));
}

static void test_refused(void **state) {
    (void)state;
    rig r = {0};
    print p;
    char path[1024];
    snprintf(path, sizeof path, "%s/tiny.gguf", rig_data);
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "model is NULL",
                tamis_model_fingerprint(NULL, p.bytes, &r.error));
    OK(tamis_model_load(context, path, NULL, &r.model, &error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "fingerprint is NULL",
                tamis_model_fingerprint(r.model, NULL, &r.error));
    tamis_model_destroy(&r.model);
}

/* Each read fails once: the call may be repeated. */
static void test_faults(void **state) {
    (void)state;
    char path[1024];
    tamis_model *model = NULL;
    print right, p;
    snprintf(path, sizeof path, "%s/tiny.gguf", rig_data);
    right = print_of_path(path);
    OK(tamis_model_load(context, path, NULL, &model, &error));
    tms_device *dev = faulty_device(context);
    tamis_status status = TAMIS_E_DEVICE;
    int n = 0;
    for (; status != TAMIS_OK; ++n) {
        faulty_begin(dev, n, FAULTY_BEFORE);
        status = tamis_model_fingerprint(model, p.bytes, &error);
        faulty_pause(dev);
        if (status != TAMIS_OK) rig_refused(&error, status, FAULTY_STATUS, FAULTY_TEXT, "print");
    }
    assert_in_range(n, 20, 100);
    assert_true(same(&p, &right));
    tamis_model_destroy(&model);
}

static int open_context(void **state) {
    (void)state;
    const tamis_context_params params = {.device = rig_device};
    OK(tamis_context_create(&params, &context, &error));
    return 0;
}

static int close_context(void **state) {
    (void)state;
    tamis_context_destroy(&context);
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors), cmocka_unit_test(test_keys),
        cmocka_unit_test(test_yarn),    cmocka_unit_test(test_entries),
        cmocka_unit_test(test_devices), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_faults),
    };
    if (!rig_arguments(argc, argv)) return 2;
    return cmocka_run_group_tests_name("fingerprint", tests, open_context, close_context);
}
