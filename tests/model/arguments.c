/* SPDX-License-Identifier: Apache-2.0 */
/* What every call of model.h answers to missing arguments: a reason that names them, or nothing. */
#include "tests/model/rig.h"

/* A creation that fails leaves NULL, whatever *out held. */
static void test_creation(void **state) {
    (void)state;
    rig r;
    int held;
    tamis_model *model = (tamis_model *)&held;
    tamis_runner *runner = (tamis_runner *)&held;
    const tamis_plan_params plan = {.max_context = 64}, none = {0};
    rig_open(&r, &(rig_params){.file = "tiny.gguf"});
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "out is NULL",
                tamis_model_load(r.context, "x", NULL, NULL, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "context is NULL",
                tamis_model_load(NULL, "x", NULL, &model, &r.error));
    assert_null(model);
    model = (tamis_model *)&held;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "path is NULL",
                tamis_model_load(r.context, NULL, NULL, &model, &r.error));
    assert_null(model);
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "out is NULL",
                tamis_runner_create(r.model, r.cache, &plan, NULL, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "model is NULL",
                tamis_runner_create(NULL, r.cache, &plan, &runner, &r.error));
    assert_null(runner);
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "cache is NULL",
                tamis_runner_create(r.model, NULL, &plan, &runner, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "params is NULL",
                tamis_runner_create(r.model, r.cache, NULL, &runner, &r.error));
    const tamis_layer layer = {.full = 1};
    tamis_plan_params layered = plan;
    layered.layers = &layer;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "layers are given",
                tamis_runner_create(r.model, r.cache, &layered, &runner, &r.error));
    tamis_plan_params listed = plan;
    tamis_selection_default(TAMIS_SELECT_CALLER, &listed.selection);
    RIG_REFUSED(&r, TAMIS_E_UNSUPPORTED, "selection caller: a runner has no lists of the caller's",
                tamis_runner_create(r.model, r.cache, &listed, &runner, &r.error));
    runner = (tamis_runner *)&held;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "max_context",
                tamis_runner_create(r.model, r.cache, &none, &runner, &r.error));
    assert_null(runner);
    tamis_runner_destroy(&runner);
    tamis_runner_destroy(NULL);
    tamis_model_destroy(&model);
    tamis_model_destroy(NULL);
    rig_close(&r);
}

static void test_model(void **state) {
    (void)state;
    rig r;
    int32_t tokens[4];
    size_t count = 77;
    tamis_cache_params shape = {.n_layers = 77};
    rig_open(&r, &(rig_params){.file = "tiny.gguf"});
    assert_null(tamis_model_describe(NULL));
    tamis_model_cache_shape(NULL, &shape);
    tamis_model_cache_shape(r.model, NULL);
    assert_int_equal(shape.n_layers, 77);
    RIG_REFUSED(
        &r, TAMIS_E_ARGUMENT, "vocab is NULL",
        tamis_vocab_encode(tamis_model_vocab(NULL), "a", 1, 0, tokens, 4, &count, &r.error));
    RIG_REFUSED(
        &r, TAMIS_E_ARGUMENT, "text is NULL but has 1 bytes",
        tamis_vocab_encode(tamis_model_vocab(r.model), NULL, 1, 0, tokens, 4, &count, &r.error));
    RIG_REFUSED(
        &r, TAMIS_E_ARGUMENT, "tokens is NULL but capacity is 4",
        tamis_vocab_encode(tamis_model_vocab(r.model), "a", 1, 0, NULL, 4, &count, &r.error));
    RIG_REFUSED(
        &r, TAMIS_E_ARGUMENT, "count is NULL",
        tamis_vocab_encode(tamis_model_vocab(r.model), "a", 1, 0, tokens, 4, NULL, &r.error));
    assert_int_equal(count, 77);
    RIG_OK(&r,
           tamis_vocab_encode(tamis_model_vocab(r.model), NULL, 0, 0, NULL, 0, &count, &r.error));
    assert_int_equal(count, 0);
    count = 77;
    assert_null(tamis_vocab_token_text(tamis_model_vocab(NULL), 0, &count));
    assert_int_equal(count, 0);
    assert_null(tamis_vocab_token_text(tamis_model_vocab(r.model), 0, NULL));
    rig_close(&r);
}

static void test_runner(void **state) {
    (void)state;
    rig r;
    const int32_t token = 1;
    int32_t next = 0;
    float logits[97];
    rig_open(&r, &(rig_params){.file = "tiny.gguf"});
    tamis_sequence a = rig_add(&r);
    assert_null(tamis_runner_plan(NULL));
    assert_non_null(tamis_runner_plan(r.runner));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "runner is NULL",
                tamis_runner_prefill(NULL, a, &token, 1, &next, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "tokens is NULL",
                tamis_runner_prefill(r.runner, a, NULL, 1, &next, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "runner is NULL",
                tamis_runner_decode(NULL, &a, 1, &token, &next, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "sequences is NULL",
                tamis_runner_decode(r.runner, NULL, 1, &token, &next, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "tokens is NULL",
                tamis_runner_decode(r.runner, &a, 1, NULL, &next, &r.error));
    assert_int_equal(rig_length(&r, a), 0);
    RIG_OK(&r, tamis_runner_prefill(r.runner, a, &token, 1, NULL, NULL));
    RIG_OK(&r, tamis_runner_decode(r.runner, &a, 1, &token, NULL, NULL));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "runner is NULL",
                tamis_runner_logits(NULL, 0, logits, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "logits is NULL",
                tamis_runner_logits(r.runner, 0, NULL, &r.error));
    RIG_OK(&r, tamis_runner_logits(r.runner, 0, logits, NULL));
    rig_close(&r);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_creation),
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_runner),
    };
    if (!rig_arguments(argc, argv)) return 2;
    return cmocka_run_group_tests_name("arguments", tests, NULL, NULL);
}
