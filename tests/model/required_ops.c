/* SPDX-License-Identifier: Apache-2.0 */
/* A backend that has the required ops alone runs a model under full and quest, in steps of few rows and
 * of many, and on forks; whatever needs another op is refused with its name, before anything runs. */
#include "host/backend.h"
#include "lib/core/core.h"
#include "tests/model/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 150, TOKENS = 24, BUDGET = 96, CONTEXT = 256 };

static tms_backend bare;

/* The device goes on with the required ops of its backend. */
static void take_required(tms_device *dev) {
    bare = *dev->backend;
#define LACK(with, op) bare.op = NULL;
    TMS_COMPOSED_OPS(LACK, )
    TMS_OPTIONAL_OPS(LACK, )
    TMS_FUSED_OPS(LACK, )
#undef LACK
    dev->backend = &bare;
}

static void open_small(rig *r, bool required) {
    const tamis_context_params context = {.device = rig_device};
    char path[1024];
    *r = (rig){0};
    snprintf(path, sizeof path, "%s/needle.gguf", rig_data);
    RIG_OK(r, tamis_context_create(&context, &r->context, &r->error));
    if (required) take_required(r->context->dev);
    RIG_OK(r, tamis_model_load(r->context, path, NULL, &r->model, &r->error));
    tamis_cache_params cache = {.planes = TAMIS_PLANE_POSITIONS | TAMIS_PLANE_SCORES,
                                .capacity_tokens = 2 * CONTEXT};
    tamis_model_cache_shape(r->model, &cache);
    RIG_OK(r, tamis_cache_create(r->context, &cache, &r->cache, &r->error));
}

static tamis_plan_params plan_of(tamis_selection_kind kind) {
    tamis_plan_params plan = {.max_context = CONTEXT, .max_rows = 64, .max_sequences = 2};
    tamis_selection_default(kind, &plan.selection);
    plan.selection.budget = kind == TAMIS_SELECT_FULL ? 0 : BUDGET;
    return plan;
}

/* ---- A model --------------------------------------------------------------------------------- */

typedef struct answer {
    int32_t tokens[2][TOKENS];
    float *logits; /* behind the last token, of both sequences */
    uint32_t n_vocab;
} answer;

/* A prompt, a fork of it, and tokens of both. */
static answer answer_of(tamis_selection_kind kind, bool required) {
    rig r;
    answer out;
    int32_t text[PROMPT], next[2];
    open_small(&r, required);
    const tamis_plan_params plan = plan_of(kind);
    RIG_OK(&r, tamis_runner_create(r.model, r.cache, &plan, &r.runner, &r.error));
    out.n_vocab = tamis_model_describe(r.model)->n_vocab;
    out.logits = calloc(2 * (size_t)out.n_vocab, sizeof *out.logits);
    assert_non_null(out.logits);
    tamis_sequence ids[2] = {rig_add(&r)};
    rig_text(&r, text, PROMPT);
    RIG_OK(&r, tamis_runner_prefill(r.runner, ids[0], text, PROMPT, next, &r.error));
    RIG_OK(&r, tamis_cache_fork(r.cache, ids[0], &ids[1], &r.error));
    next[1] = text[7]; /* another way on */
    for (uint32_t i = 0; i < TOKENS; i++) {
        for (uint32_t s = 0; s < 2; s++)
            out.tokens[s][i] = next[s];
        RIG_OK(&r, tamis_runner_decode(r.runner, ids, 2, next, next, &r.error));
    }
    for (uint32_t s = 0; s < 2; s++)
        RIG_OK(&r, tamis_runner_logits(r.runner, s, out.logits + s * out.n_vocab, &r.error));
    rig_close(&r);
    return out;
}

/* The reference composes what it has no other way to do: the same bits. Else sums differ in order. */
static void runs_under(tamis_selection_kind kind) {
    answer whole = answer_of(kind, false), own = answer_of(kind, true);
    const double allowed = strcmp(rig_device, "reference") == 0 ? 0 : 2e-3;
    double most = 0;
    for (uint32_t i = 0; i < 2 * whole.n_vocab; i++)
        most = fmax(most, fabs((double)whole.logits[i] - own.logits[i]));
    if (!(most <= allowed)) fail_msg("logits differ by %g", most);
    assert_memory_equal(whole.tokens, own.tokens, sizeof whole.tokens);
    free(whole.logits);
    free(own.logits);
}

static void full_runs(void **state) {
    (void)state;
    runs_under(TAMIS_SELECT_FULL);
}

static void quest_runs(void **state) {
    (void)state;
    runs_under(TAMIS_SELECT_QUEST);
}

/* ---- What is refused ------------------------------------------------------------------------- */

/* A plan that needs an op beyond the required ones; zero: none of that. */
typedef struct need {
    const char *op;
    tamis_selection_kind selection;
    tamis_eviction_kind eviction;
    uint32_t options, load_dtypes, flags;
    uint32_t window; /* of the last layer alone */
    bool sinks;      /* likewise */
} need;

static const need needs[] = {
    {"copy_slots", .flags = TAMIS_PLAN_TREES},
    {"load_rows", .load_dtypes = 1u << TAMIS_F16},
    {"deviation", .load_dtypes = 1u << TAMIS_F32},
    {"seek", .eviction = TAMIS_EVICT_CALLER, .window = 40},
    {"page_mass", .selection = TAMIS_SELECT_ORACLE},
    {"take_lists", .selection = TAMIS_SELECT_CALLER},
    {"convert", .flags = TAMIS_PLAN_HALF_ROWS},
    {"merge", .eviction = TAMIS_EVICT_STREAMING, .options = TAMIS_EVICT_REINDEX},
    {"sink", .sinks = true},
    {"sink", .selection = TAMIS_SELECT_QUEST, .sinks = true},
    {"observe", .flags = TAMIS_PLAN_ROW_MASSES},
    {"observe", .eviction = TAMIS_EVICT_H2O},
    {"observe", .eviction = TAMIS_EVICT_TOVA},
    {"pool_values", .eviction = TAMIS_EVICT_SNAPKV},
    {"pool_values", .eviction = TAMIS_EVICT_PYRAMIDKV},
    {"pool_values", .eviction = TAMIS_EVICT_ADAKV},
    {"value_score", .eviction = TAMIS_EVICT_ANDPRO},
    {"value_norm", .eviction = TAMIS_EVICT_CRITICALKV},
    {"value_norm", .eviction = TAMIS_EVICT_CRITICAL_ADAKV},
    {"score_rows", .eviction = TAMIS_EVICT_KNORM},
    {"fuse", .eviction = TAMIS_EVICT_DEFENSIVEKV},
    {"compact", .eviction = TAMIS_EVICT_CALLER},
    {"replace", .eviction = TAMIS_EVICT_STREAMING},
    {"scatter_rows", .eviction = TAMIS_EVICT_SNAPKV},
};
enum { N_NEEDS = sizeof needs / sizeof *needs, MOST_LAYERS = 16 };

/* Makes and destroys a plan that needs it, and returns the status. */
static tamis_status make_plan(rig *r, const need *of, tamis_buffer *sinks) {
    const uint32_t n_layers = tamis_model_describe(r->model)->n_layers;
    tamis_layer layers[MOST_LAYERS] = {0};
    assert_true(n_layers <= MOST_LAYERS);
    layers[n_layers - 1].attention.sliding_window = of->window;
    if (of->sinks) layers[n_layers - 1].attention.sinks.buffer = sinks;
    tamis_plan_params params = plan_of(of->selection);
    params.load_dtypes = of->load_dtypes;
    params.flags = of->flags;
    params.layers = layers;
    tamis_eviction_default(of->eviction, &params.eviction);
    params.eviction.options |= of->options;
    if (of->eviction) params.eviction.budget = BUDGET;
    tamis_plan *plan = NULL;
    const tamis_status status = tamis_plan_create(r->cache, &params, &plan, &r->error);
    assert_true((status == TAMIS_OK) == (plan != NULL));
    tamis_plan_destroy(&plan);
    return status;
}

static tamis_buffer *make_sinks(rig *r) {
    const uint64_t bytes = tamis_model_describe(r->model)->n_heads * sizeof(float);
    tamis_buffer *sinks;
    RIG_OK(r, tamis_buffer_create(r->context, bytes, &sinks, &r->error));
    return sinks;
}

/* It is refused on the device as it is, with the op's name, and nothing has run. */
static void refuses(rig *r, const need *of, tamis_buffer *sinks, const char *op) {
    const tms_device *dev = r->context->dev;
    const uint64_t launches = dev->launches, ops = dev->ops;
    char wanted[96];
    snprintf(wanted, sizeof wanted, "%s%s device %s has no such op", op, *op ? ":" : "",
             dev->info.id);
    RIG_REFUSED(r, TAMIS_E_UNSUPPORTED, wanted, make_plan(r, of, sinks));
    assert_int_equal(dev->launches, launches);
    assert_int_equal(dev->ops, ops);
}

static void lack(const tms_backend *whole, const char *op) {
    bare = *whole;
#define LACK(with, name)                                                                           \
    if (strcmp(op, #name) == 0) bare.name = NULL;
    TMS_OPTIONAL_OPS(LACK, )
#undef LACK
}

/* One op is missing at a time, and everything that a plan may need but is not required is missing at
 * some time. */
static void plans_name_the_op_that_is_missing(void **state) {
    (void)state;
#define NAME(with, op) #op,
    static const char *const optional[] = {TMS_OPTIONAL_OPS(NAME, )};
#undef NAME
    rig r;
    open_small(&r, false);
    tms_device *dev = r.context->dev;
    const tms_backend *whole = dev->backend;
    tamis_buffer *sinks = make_sinks(&r);
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++) {
        const char *op = optional[i];
        uint32_t n = 0;
        for (uint32_t j = 0; j < N_NEEDS; j++) {
            if (strcmp(needs[j].op, op) != 0) continue;
            dev->backend = whole;
            RIG_OK(&r, make_plan(&r, &needs[j], sinks));
            lack(whole, op);
            dev->backend = &bare;
            refuses(&r, &needs[j], sinks, op);
            n++;
        }
        /* What no plan calls. */
        if (n == 0 && strcmp(op, "read_rows") != 0 && strcmp(op, "key_score") != 0)
            fail_msg("no plan of this test needs %s", op);
    }
    dev->backend = whole;
    tamis_buffer_destroy(&sinks);
    rig_close(&r);
}

/* With the required ops alone all of them are refused, whatever they lack first. */
static void required_ops_refuse_all_other_plans(void **state) {
    (void)state;
    rig r;
    open_small(&r, true);
    tamis_buffer *sinks = make_sinks(&r);
    for (uint32_t i = 0; i < N_NEEDS; i++)
        refuses(&r, &needs[i], sinks, "");
    tamis_buffer_destroy(&sinks);
    rig_close(&r);
}

/* No plan says that a cache will be read back. */
static void reading_back_names_its_op(void **state) {
    (void)state;
    rig r;
    float k[256];
    int32_t text[1], next;
    open_small(&r, true);
    const tamis_plan_params plan = plan_of(TAMIS_SELECT_FULL);
    RIG_OK(&r, tamis_runner_create(r.model, r.cache, &plan, &r.runner, &r.error));
    const tamis_sequence id = rig_add(&r);
    rig_text(&r, text, 1);
    RIG_OK(&r, tamis_runner_prefill(r.runner, id, text, 1, &next, &r.error));
    RIG_REFUSED(&r, TAMIS_E_UNSUPPORTED, "read_rows: device ",
                tamis_cache_read(r.cache, id, 0, 0, 0, 1, k, NULL, &r.error));
    RIG_OK(&r, tamis_runner_decode(r.runner, &id, 1, &next, &next, &r.error));
    rig_close(&r);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(full_runs), cmocka_unit_test(quest_runs),
                                       cmocka_unit_test(plans_name_the_op_that_is_missing),
                                       cmocka_unit_test(required_ops_refuse_all_other_plans),
                                       cmocka_unit_test(reading_back_names_its_op)};
    if (!rig_arguments(argc, argv)) return 2;
    return cmocka_run_group_tests_name("required_ops", tests, NULL, NULL);
}
