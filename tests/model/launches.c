/* SPDX-License-Identifier: Apache-2.0 */
/* How many launches a layer of a decode step takes: the ops that the runner calls, and the kernels
 * that they become. The numbers are those of the table in docs/decisions/measured.md; a change that
 * needs fewer lowers both. */
#include "host/backend.h"
#include "lib/model/model.h"
#include "tests/faulty.h"
#include "tests/model/rig.h"

#include <stdlib.h>
#include <string.h>

/* No page fills in the step behind the prompt: where one does, a layer has one launch more, of
 * bounds. */
enum { PROMPT = 100, SHORT = 50, LAYERS = 4, MOST = 8 };

/* Of a layer, by how it attends: over all pages; by score, select and attend one by one; by
 * sparse_attend. The reference has ops only. */
typedef enum way { ALL, LISTED, FUSED } way;
static const uint32_t wanted_ops[] = {[ALL] = 3, [LISTED] = 5, [FUSED] = 3};
static const uint32_t wanted_cpu[] = {[ALL] = 3, [FUSED] = 3};
/* Where cores do not wait for each other, a chain is four launches. */
static const uint32_t wanted_apart[] = {[ALL] = 6, [FUSED] = 6};
/* Rows of more than 64 tokens are split, and then merged. */
static const uint32_t wanted_base[] = {[ALL] = 7, [LISTED] = 9};
static const uint32_t wanted_cuda[] = {[ALL] = 6, [LISTED] = 8, [FUSED] = 7};
/* What h2o at fixed length adds: nothing where replace_rows and observed_attend serve, else launches of
 * replace, bounds and observe. */
enum { H2O_APART = 3 };
/* Otherwise the CPU form of attend writes the rows, too: one launch less of each number. */

/* Launches so far, when each layer begins to read the cache. */
typedef struct tally {
    const tms_device *dev;
    way way;
    bool fuses; /* the device has a sparse_attend for so few pages */
    uint32_t n;
    uint64_t ops[LAYERS], kernels[LAYERS];
} tally;

static tamis_status count_layer(void *user, uint32_t layer, uint32_t n_rows, tamis_error *error) {
    tally *t = user;
    (void)n_rows;
    (void)error;
    assert_true(layer == t->n && t->n < LAYERS);
    t->ops[t->n] = t->dev->ops;
    t->kernels[t->n++] = t->dev->launches;
    return TAMIS_OK;
}

static way way_of(rig *r) {
    tamis_plan_counters counters;
    tamis_plan_get_counters(tamis_runner_plan(r->runner), &counters);
    if (counters.rows_fused) return FUSED;
    return counters.rows_selected ? LISTED : ALL;
}

/* A decode step of `n` sequences behind a prompt of any tokens. */
static void count_step(rig *r, uint32_t prompt, uint32_t n, tally *t) {
    int32_t text[PROMPT], next[MOST] = {0};
    tamis_sequence ids[MOST] = {rig_add(r)};
    tms_device *dev = faulty_device(r->context);
    for (uint32_t i = 0; i < prompt; i++)
        text[i] = (int32_t)(i % MOST);
    RIG_OK(r, tamis_runner_prefill(r->runner, ids[0], text, prompt, NULL, &r->error));
    for (uint32_t i = 1; i < n; i++)
        RIG_OK(r, tamis_cache_fork(r->cache, ids[0], &ids[i], &r->error));
    *t = (tally){.dev = dev};
    r->runner->tap = count_layer; /* an observer would have rows written apart */
    r->runner->tap_user = t;
    RIG_OK(r, tamis_runner_decode(r->runner, ids, n, next, next, &r->error));
    assert_int_equal(t->n, LAYERS);
    t->way = way_of(r);
}

static const uint32_t *wanted_kernels(const tms_device *dev, bool base, bool waits) {
    static const uint32_t none[FUSED + 1];
    if (strcmp(dev->info.backend, "cuda") == 0) return wanted_cuda;
    if (strcmp(dev->info.backend, "opencl") != 0) return none;
    if (base || dev->base_only) return wanted_base;
    return waits ? wanted_cpu : wanted_apart;
}

/* waits: whether cores of a CPU may wait for each other, whatever the machine. */
static tally count(tamis_selection_kind kind, bool h2o, uint32_t n, bool base, bool waits) {
    rig r;
    tally t;
    rig_params params = {.file = "needle.gguf", .base = base, .max_sequences = n};
    if (h2o) params.eviction = (tamis_eviction){.kind = TAMIS_EVICT_H2O, .budget = 80, .every = 1};
    tamis_selection_default(kind, &params.selection);
    params.selection.budget = kind == TAMIS_SELECT_FULL ? 0 : 80;
    params.selection.dense_layers = params.selection.sinks = 0;
    params.selection.recent = 16;
    setenv("TAMIS_OPENCL_WAIT", waits ? "1" : "0", 1);
    rig_open(&r, &params);
    count_step(&r, PROMPT, n, &t);
    const bool cuda = strcmp(t.dev->info.backend, "cuda") == 0;
    const bool cpu = strcmp(t.dev->info.backend, "opencl") == 0 && !base && !t.dev->base_only;
    const uint32_t more = h2o && !cpu ? H2O_APART : 0, less = cpu && !h2o;
    const uint32_t kernels = wanted_kernels(t.dev, base, waits)[t.way];
    for (uint32_t layer = 1; layer < LAYERS; layer++) {
        assert_int_equal(t.ops[layer] - t.ops[layer - 1], wanted_ops[t.way] + more - less);
        assert_int_equal(t.kernels[layer] - t.kernels[layer - 1],
                         kernels ? kernels + more - less : 0);
    }
    t.fuses = cuda || cpu;
    rig_close(&r);
    return t;
}

static void all_pages(void **state) {
    (void)state;
    for (int base = 0; base < 2; base++)
        for (int waits = 0; waits < 2; waits++)
            assert_int_equal(count(TAMIS_SELECT_FULL, false, 1, base, waits).way, ALL);
}

/* A CUDA device fuses always, a CPU where scoring a lane on several cores would gain less than two
 * launches cost. */
static void selected_pages(void **state) {
    (void)state;
    for (int base = 0; base < 2; base++)
        for (uint32_t n = 1; n <= MOST; n *= MOST) {
            const tally t = count(TAMIS_SELECT_QUEST, false, n, base, true);
            assert_int_equal(t.way, t.fuses ? FUSED : LISTED);
        }
}

/* Norms behind products and a scale of what is added take no launch: who reads the residual stream next
 * adds. So short a context is not split, so that the base form does not merge. */
static void addends_take_no_launch(void **state) {
    (void)state;
    for (int base = 0; base < 2; base++) {
        rig r;
        tally t;
        setenv("TAMIS_OPENCL_WAIT", "1", 1);
        rig_open(&r, &(rig_params){.file = "models/gemma2.gguf", .base = base});
        count_step(&r, SHORT, 1, &t);
        const uint32_t *wanted = wanted_kernels(t.dev, base, true);
        const uint32_t cpu = wanted == wanted_cpu;
        const uint32_t less = cpu || wanted == wanted_base;
        for (uint32_t layer = 1; layer < LAYERS; layer++) {
            assert_int_equal(t.ops[layer] - t.ops[layer - 1], wanted_ops[ALL] - cpu);
            assert_int_equal(t.kernels[layer] - t.kernels[layer - 1], wanted[ALL] - less);
        }
        rig_close(&r);
    }
}

static void evicting_at_fixed_length(void **state) {
    (void)state;
    for (int base = 0; base < 2; base++)
        assert_int_equal(count(TAMIS_SELECT_FULL, true, 1, base, true).way, ALL);
}

/* Ops that a call to build takes. */
static uint64_t ops_of_build(rig *r, uint32_t n_rows, uint32_t n_outputs) {
    const uint64_t before = faulty_device(r->context)->ops;
    RIG_OK(r, tamis_runner_build(r->runner, n_rows, n_outputs, &r->error));
    return faulty_device(r->context)->ops - before;
}

/* A runner begins with the kernels of decode steps; each further kind of rows is built once. */
static void kinds_of_rows_are_built_once(void **state) {
    (void)state;
    rig r;
    rig_open(&r, &(rig_params){.file = "needle.gguf", .max_sequences = 4});
    assert_int_equal(ops_of_build(&r, 1, 1), 0);
    assert_int_not_equal(ops_of_build(&r, 5, 1), 0);
    assert_int_equal(ops_of_build(&r, 8, 0), 0);
    assert_int_not_equal(ops_of_build(&r, 2, 2), 0); /* more outputs */
    assert_int_equal(ops_of_build(&r, 4, 4), 0);
    assert_int_not_equal(ops_of_build(&r, 9, 0), 0);
    assert_int_equal(ops_of_build(&r, 512, 1), 0);
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "runner is NULL", tamis_runner_build(NULL, 1, 1, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "n_rows is 0: 1 to 512",
                tamis_runner_build(r.runner, 0, 0, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "n_rows is 513: 1 to 512",
                tamis_runner_build(r.runner, 513, 1, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "n_outputs is 3, of 2 rows",
                tamis_runner_build(r.runner, 2, 3, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "n_outputs is 5, of 6 rows; a step has at most 4",
                tamis_runner_build(r.runner, 6, 5, &r.error));
    rig_close(&r);
}

/* A step builds what it lacks before it begins: a failure there changes nothing. */
static void building_comes_before_a_step(void **state) {
    (void)state;
    rig r;
    int32_t text[3];
    rig_open(&r, &(rig_params){.file = "needle.gguf", .max_sequences = 1});
    const tamis_sequence a = rig_add(&r);
    rig_text(&r, text, 3);
    const bool chains = faulty_device(r.context)->backend->linear_chain; /* else it is composed */
    faulty_begin_one(faulty_device(r.context), chains ? FAULTY_linear_chain : FAULTY_linear_parts,
                     0);
    assert_int_not_equal(tamis_runner_prefill(r.runner, a, text, 3, NULL, &r.error), TAMIS_OK);
    assert_int_equal(faulty_worked(FAULTY_upload), 0); /* a step begins with its tables */
    faulty_pause(faulty_device(r.context));
    assert_int_equal(rig_length(&r, a), 0);
    RIG_OK(&r, tamis_runner_prefill(r.runner, a, text, 3, NULL, &r.error));
    assert_int_equal(rig_length(&r, a), 3);
    rig_close(&r);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_of_rows_are_built_once),
        cmocka_unit_test(building_comes_before_a_step),
        cmocka_unit_test(all_pages),
        cmocka_unit_test(selected_pages),
        cmocka_unit_test(addends_take_no_launch),
        cmocka_unit_test(evicting_at_fixed_length),
    };
    if (!rig_arguments(argc, argv)) return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
