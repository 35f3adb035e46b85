/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that fail at the n-th call while a runner is made, fed a prompt, or decodes. */
#include "lib/core/core.h"
#include "tests/faulty.h"
#include "tests/model/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A reading of two of more pages, so that decode rows go through lists. */
static void open_rig(rig *r, tamis_selection_kind kind) {
    const tamis_selection selection = {.kind = kind, .budget = 32};
    rig_open(r, &(rig_params){.file = "tiny.gguf", .selection = selection, .max_rows = 48});
}

static void run_creation(const rig_params *params) {
    rig r;
    rig_open(&r, params);
    tms_device *dev = r.context->dev;
    const tamis_plan_params plan = {
        .selection = params->selection, .eviction = params->eviction, .max_context = 64};
    tamis_status status = TAMIS_E_DEVICE;
    int n = 0;
    for (; status != TAMIS_OK; ++n) {
        tamis_runner *made = NULL;
        faulty_begin(dev, n, FAULTY_BEFORE);
        status = tamis_runner_create(r.model, r.cache, &plan, &made, &r.error);
        faulty_pause(dev);
        if (status != TAMIS_OK) rig_refused(&r.error, status, FAULTY_STATUS, FAULTY_TEXT, "create");
        assert_true((status == TAMIS_OK) == (made != NULL));
        tamis_runner_destroy(&made);
    }
    assert_in_range(n, 30, 1000);
    rig_close(&r);
}

static void test_creation(void **state) {
    (void)state;
    const tamis_selection_kind kinds[] = {TAMIS_SELECT_QUEST, TAMIS_SELECT_ORACLE,
                                          TAMIS_SELECT_RANDOM};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i)
        run_creation(&(rig_params){
            .file = "tiny.gguf", .max_rows = 48, .selection = {.kind = kinds[i], .budget = 32}});
}

/* An eviction that needs the output projections widened. */
static void test_creation_in_blocks(void **state) {
    (void)state;
    run_creation(&(rig_params){.file = "models/qwen3.gguf",
                               .max_rows = 48,
                               .eviction = {.kind = TAMIS_EVICT_CRITICALKV, .budget = 48}});
}

static tamis_status run(rig *r, tamis_sequence a, const int32_t *tokens, size_t count) {
    int32_t next;
    return count > 1 ? tamis_runner_prefill(r->runner, a, tokens, count, &next, &r->error)
                     : tamis_runner_decode(r->runner, &a, 1, tokens, &next, &r->error);
}

/* Fails one call of the device after the other until all goes well, to the logits `expected`. Each
 * failure leaves no logits, and the sequence as it was unless the step had ended: only the wait and
 * the read come after that. */
static void disturb(rig *r, tamis_sequence a, const int32_t *tokens, size_t count,
                    const float *expected) {
    tms_device *dev = r->context->dev;
    const uint32_t length = rig_length(r, a);
    tamis_status status = TAMIS_E_DEVICE;
    float logits[97];
    int n = 0, late = 0;
    for (; status != TAMIS_OK; ++n) {
        RIG_OK(r, tamis_cache_truncate(r->cache, a, length, &r->error));
        faulty_begin(dev, n, FAULTY_BEFORE);
        status = run(r, a, tokens, count);
        faulty_pause(dev);
        if (status == TAMIS_OK) break;
        rig_refused(&r->error, status, FAULTY_STATUS, FAULTY_TEXT, "step");
        RIG_REFUSED(r, TAMIS_E_STATE, "no logits",
                    tamis_runner_logits(r->runner, 0, logits, &r->error));
        if (late > 0 || rig_length(r, a) != length) {
            assert_int_equal(rig_length(r, a), length + count);
            late++;
        }
    }
    assert_in_range(n, 10, 1000);
    assert_int_equal(late, 2);
    RIG_OK(r, tamis_runner_logits(r->runner, 0, logits, &r->error));
    assert_memory_equal(logits, expected, sizeof logits);
}

/* A prompt of 47 tokens in one chunk, then the token that fills the third page. */
static void run_steps(tamis_selection_kind kind) {
    rig r;
    int32_t tokens[48];
    float prefilled[97], decoded[97];
    open_rig(&r, kind);
    for (int i = 0; i < 48; ++i)
        tokens[i] = i * 7 % 97;
    tamis_sequence a = rig_add(&r), b = rig_add(&r);
    RIG_OK(&r, tamis_runner_prefill(r.runner, b, tokens, 47, NULL, &r.error));
    RIG_OK(&r, tamis_runner_logits(r.runner, 0, prefilled, &r.error));
    RIG_OK(&r, tamis_runner_decode(r.runner, &b, 1, tokens + 47, NULL, &r.error));
    RIG_OK(&r, tamis_runner_logits(r.runner, 0, decoded, &r.error));
    disturb(&r, a, tokens, 47, prefilled);
    tamis_plan_reset_counters(tamis_runner_plan(r.runner));
    disturb(&r, a, tokens + 47, 1, decoded);
    tamis_plan_counters counters;
    tamis_plan_get_counters(tamis_runner_plan(r.runner), &counters);
    assert_true(counters.rows_selected > 0);
    rig_close(&r);
}

static void test_steps(void **state) {
    (void)state;
    run_steps(TAMIS_SELECT_QUEST);
    run_steps(TAMIS_SELECT_ORACLE);
    run_steps(TAMIS_SELECT_RANDOM);
}

/* The second chunk fails: the first one stays. */
static void test_chunks(void **state) {
    (void)state;
    rig r;
    int32_t tokens[96] = {0};
    open_rig(&r, TAMIS_SELECT_QUEST);
    tamis_sequence a = rig_add(&r);
    uint32_t length = 0;
    for (int n = 0; length == 0; ++n) {
        faulty_begin(r.context->dev, n, FAULTY_BEFORE);
        assert_int_equal(tamis_runner_prefill(r.runner, a, tokens, 96, NULL, &r.error),
                         TAMIS_E_DEVICE);
        faulty_pause(r.context->dev);
        length = rig_length(&r, a);
    }
    assert_int_equal(length, 48);
    RIG_OK(&r, tamis_runner_prefill(r.runner, a, tokens + 48, 48, NULL, &r.error));
    rig_close(&r);
}

/* ---- A file that shrinks while it is loaded -------------------------------------------------- */

static const tms_backend *sound;
static int allocations, descriptor;

/* The tensors go to the device one after the other: before the third one there is half of the file
 * left. */
static tamis_status shrink(tms_device *dev, uint64_t bytes, tms_mem **out) {
    if (++allocations == 3) assert_int_equal(ftruncate(descriptor, 16384), 0);
    return sound->alloc(dev, bytes, out);
}

static void copy_file(const char *name) {
    char path[1024], bytes[4096];
    size_t n;
    snprintf(path, sizeof path, "%s/%s", rig_data, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    while ((n = fread(bytes, 1, sizeof bytes, file)) > 0)
        assert_int_equal(write(descriptor, bytes, n), n);
    fclose(file);
}

static void test_shrinking_file(void **state) {
    (void)state;
    const tamis_context_params params = {.device = rig_device};
    char path[] = "shrinking-XXXXXX";
    rig r = {0};
    RIG_OK(&r, tamis_context_create(&params, &r.context, &r.error));
    tms_device *dev = r.context->dev;
    sound = dev->backend;
    tms_backend shrinking = *sound;
    shrinking.alloc = shrink;
    descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    copy_file("tiny.gguf");
    dev->backend = &shrinking;
    allocations = 0;
    tamis_status status = tamis_model_load(r.context, path, NULL, &r.model, &r.error);
    dev->backend = sound;
    rig_refused(&r.error, status, TAMIS_E_IO, "the file ends at byte 16384; it had ", "load");
    assert_int_equal(allocations, 3);
    close(descriptor);
    unlink(path);
    rig_close(&r);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_creation),       cmocka_unit_test(test_creation_in_blocks),
        cmocka_unit_test(test_steps),          cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_shrinking_file),
    };
    if (!rig_arguments(argc, argv)) return 2;
    return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
