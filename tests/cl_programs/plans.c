/* SPDX-License-Identifier: Apache-2.0 */
/* Writes every OpenCL program that plans, models and ops build on a GPU: whatever host/opencl asks the
 * driver for, which is driver.c. A kernel that no line here makes is found by tools/gpu_compilers.py,
 * since it is in a text and not in the list.
 * usage: cl-programs small|full FOLDER MODELS PLATFORM VENDOR NAME EXTENSIONS UNITS GROUP LOCAL
 *        SUB_GROUP
 *   MODELS: a folder of GGUF files; the others are what the GPU says of itself (driver.h). */
#include "host/backend.h"
#include "lib/core/core.h"
#include "tests/cl_programs/driver.h"
#include <tamis/model.h>
#include <tamis/tamis.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 8192, ROWS = 64, LONG_CHUNK = 2048, WORDS = 12, WIDTH = 4096 };

static tamis_context *context;
static tamis_error error;
static char now[1100]; /* what is being made, for messages */

static void require(tamis_status status) {
    if (status == TAMIS_OK) return;
    fprintf(stderr, "cl-programs: %s: %s: %s\n", now, tamis_status_name(status), error.text);
    exit(1);
}

/* ---- Plans ----------------------------------------------------------------------------------- */

/* Of models that are in use, and of the other head dims that the library has: with f16 alone; with q8
 * and q4, too; in the short list, too, where q8 and q4 come with the first one alone. */
typedef enum often { RARE, OFTEN, ALWAYS } often;
typedef struct shape {
    const char *name;
    uint32_t heads, kv_heads, dim;
    often often;
} shape;
static const shape shapes[] = {
    {"Llama 3 8B", 32, 8, 128, ALWAYS},   {"Llama 2 7B", 32, 32, 128, ALWAYS},
    {"Llama 3.2 1B", 32, 8, 64, ALWAYS},  {"Gemma 3 4B", 8, 4, 256, ALWAYS},
    {"Llama 3 70B", 64, 8, 128, OFTEN},   {"SmolLM2 135M", 9, 3, 64, RARE},
    {"Qwen 2.5 7B", 28, 4, 128, RARE},    {"StarCoder", 48, 1, 128, RARE},
    {"Phi 2", 32, 32, 80, RARE},          {"Phi 3 mini", 32, 32, 96, RARE},
    {"StableLM 2 12B", 32, 8, 160, RARE}, {"Gemma 2B", 8, 1, 256, RARE},
    {"head dim 112", 32, 8, 112, RARE},   {"head dim 192", 32, 8, 192, RARE},
    {"head dim 512", 8, 1, 512, RARE},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

/* A plan and its cache: what differs from one to the next. */
typedef struct wanted {
    const shape *shape;
    tamis_dtype dtype;
    tamis_bounds_dtype bounds;
    uint32_t page_size;
    tamis_selection_kind selection;
    tamis_group_rule group;
    tamis_eviction eviction;
    tamis_attention attention;
    uint32_t flags, load_dtypes;
} wanted;

static tamis_cache *make_cache(const wanted *w) {
    tamis_cache *cache;
    const tamis_cache_params params = {.n_layers = 1,
                                       .n_heads = w->shape->heads,
                                       .n_kv_heads = w->shape->kv_heads,
                                       .head_dim = w->shape->dim,
                                       .page_size = w->page_size,
                                       .dtype = w->dtype,
                                       .bounds_dtype = w->bounds,
                                       .planes = TAMIS_PLANE_POSITIONS | TAMIS_PLANE_SCORES,
                                       .capacity_tokens = 2 * ROWS};
    snprintf(now, sizeof now, "%s, %s, pages of %u, selection %s, eviction %s, options %u",
             w->shape->name, tamis_dtype_name(w->dtype), (unsigned)w->page_size,
             tamis_selection_name(w->selection), tamis_eviction_name(w->eviction.kind),
             (unsigned)w->eviction.options);
    require(tamis_cache_create(context, &params, &cache, &error));
    return cache;
}

static tamis_plan *make_plan(const wanted *w, tamis_cache *cache) {
    tamis_plan *plan;
    tamis_plan_params params = {.eviction = w->eviction,
                                .attention = w->attention,
                                .max_context = CONTEXT,
                                .max_rows = ROWS,
                                .flags = w->flags,
                                .load_dtypes = w->load_dtypes};
    tamis_selection_default(w->selection, &params.selection);
    params.selection.group = w->group;
    require(tamis_plan_create(cache, &params, &plan, &error));
    return plan;
}

static void plan_of(const wanted *w) {
    tamis_cache *cache = make_cache(w);
    tamis_plan *plan = make_plan(w, cache);
    tamis_plan_destroy(&plan);
    tamis_cache_destroy(&cache);
}

/* What a plan of it builds whatever its policy is, under quest. */
static void attention_of(const shape *s, tamis_dtype dtype) {
    plan_of(&(wanted){.shape = s, .dtype = dtype, .selection = TAMIS_SELECT_QUEST});
}

/* Every selection, with every rule for groups where pages are scored. */
static void selections(const shape *s, tamis_dtype dtype) {
    for (uint32_t kind = TAMIS_SELECT_FULL; kind <= TAMIS_SELECT_CALLER; kind++) {
        wanted w = {.shape = s, .dtype = dtype, .selection = (tamis_selection_kind)kind};
        if (kind == TAMIS_SELECT_CALLER && tamis_dtype_size(dtype))
            w.flags = TAMIS_PLAN_TOKEN_LISTS;
        plan_of(&w);
        if (kind != TAMIS_SELECT_QUEST && kind != TAMIS_SELECT_ORACLE) continue;
        for (w.group = TAMIS_GROUP_MEAN; w.group <= TAMIS_GROUP_SUM; w.group++)
            plan_of(&w);
    }
}

/* With its defaults, then between steps, with long chunks where it has any, and with each of its options. */
static void eviction(const shape *s, tamis_dtype dtype, tamis_eviction_kind kind) {
    wanted w = {.shape = s, .dtype = dtype, .selection = TAMIS_SELECT_QUEST};
    tamis_eviction_default(kind, &w.eviction);
    plan_of(&w);
    w.eviction.every = 0;
    plan_of(&w);
    if (w.eviction.chunk > 0) {
        w.eviction.chunk = w.eviction.window = LONG_CHUNK;
        w.eviction.budget = 3 * LONG_CHUNK;
        plan_of(&w);
    }
    w.selection = TAMIS_SELECT_FULL;
    for (uint32_t i = 0; tamis_eviction_option_name(i); i++) {
        tamis_eviction_default(kind, &w.eviction);
        w.eviction.options = 1u << i;
        if (tamis_eviction_check(&w.eviction, &error) == TAMIS_OK) plan_of(&w);
    }
}

static void evictions(const shape *s, tamis_dtype dtype) {
    for (uint32_t kind = TAMIS_EVICT_STREAMING; kind <= TAMIS_EVICT_KNORM; kind++)
        eviction(s, dtype, (tamis_eviction_kind)kind);
}

/* Blends: rows that are loaded from records of any dtype that they have, their deviations and masses. */
static void blends(const shape *s, tamis_dtype dtype) {
    plan_of(&(wanted){.shape = s,
                      .dtype = dtype,
                      .load_dtypes = (1u << (TAMIS_BF16 + 1)) - 1,
                      .flags = TAMIS_PLAN_ROW_MASSES | TAMIS_PLAN_ROTATED});
}

/* Rows that are copied to the branches of trees. */
static void trees(const shape *s, tamis_dtype dtype) {
    plan_of(&(wanted){.shape = s, .dtype = dtype, .flags = TAMIS_PLAN_TREES});
}

/* Windows where an eviction has made lanes ragged, a cap of the logits, sinks. */
static void attributes(const shape *s) {
    tamis_buffer *sinks;
    wanted w = {.shape = s, .dtype = TAMIS_F16, .attention = {.soft_cap = 30}};
    plan_of(&w);
    w.attention = (tamis_attention){.sliding_window = 1024};
    tamis_eviction_default(TAMIS_EVICT_SNAPKV, &w.eviction);
    plan_of(&w);
    require(tamis_buffer_create(context, s->heads * sizeof(float), &sinks, &error));
    w = (wanted){.shape = s, .dtype = TAMIS_F16, .attention = {.sinks = {.buffer = sinks}}};
    plan_of(&w);
    tamis_buffer_destroy(&sinks);
}

static void pages(const shape *s) {
    for (uint32_t size = 8; size <= 64; size *= 2)
        plan_of(&(wanted){.shape = s,
                          .dtype = TAMIS_F16,
                          .bounds = size == 16 ? TAMIS_BOUNDS_Q8 : TAMIS_BOUNDS_AS_CACHE,
                          .page_size = size,
                          .selection = TAMIS_SELECT_QUEST});
}

static void all_of(const shape *s, tamis_dtype dtype) {
    selections(s, dtype);
    evictions(s, dtype);
    blends(s, dtype);
    trees(s, dtype);
}

static void plans(bool small) {
    static const tamis_dtype dtypes[] = {TAMIS_F16, TAMIS_Q8, TAMIS_Q4};
    for (size_t i = 0; i < SHAPES; i++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            if (small ? shapes[i].often == ALWAYS && (i == 0 || d == 0)
                      : shapes[i].often != RARE || d == 0)
                attention_of(&shapes[i], dtypes[d]);
    for (uint32_t dtype = TAMIS_F32; dtype <= TAMIS_Q4; dtype++)
        if (!small || dtype == TAMIS_F16) all_of(shapes, (tamis_dtype)dtype);
    attributes(shapes);
    if (!small) pages(shapes);
}

/* A sequence of one token, what it holds, and how fast it can be read. */
static void reading(void) {
    const wanted w = {.shape = shapes, .dtype = TAMIS_F16};
    const uint64_t bytes = (uint64_t)ROWS * w.shape->heads * w.shape->dim * sizeof(float);
    tamis_cache *cache = make_cache(&w);
    tamis_plan *plan = make_plan(&w, cache);
    tamis_sequence sequence;
    tamis_buffer *buffer;
    static tamis_read_limit limit;
    static float k[512];
    double gb_per_s;
    require(tamis_buffer_create(context, bytes, &buffer, &error));
    require(tamis_cache_add(cache, &sequence, &error));
    const tamis_step step = {.sequences = &sequence, .count = 1};
    const tamis_rows rows = {.buffer = buffer};
    require(tamis_plan_step_begin(plan, &step, &error));
    require(tamis_plan_write(plan, 0, &rows, &rows, &error));
    require(tamis_plan_step_end(plan, &error));
    require(tamis_cache_read(cache, sequence, 0, 0, 0, 1, k, NULL, &error));
    require(tamis_cache_read_limit(cache, &sequence, 1, 1, &limit, &error));
    require(tamis_context_read_bandwidth(context, 1 << 20, &gb_per_s, &error));
    tamis_plan_destroy(&plan);
    tamis_cache_destroy(&cache);
    tamis_buffer_destroy(&buffer);
}

/* ---- Ops and models -------------------------------------------------------------------------- */

/* What a matrix takes: rows of 1, of few and of many; x as it is and normalised, with an addend, too,
 * unless the list is small. */
static void weights_of(const tamis_weight_matrix *w, bool small) {
    const tamis_linear_params linear = {.w = *w, .n_in = WIDTH, .n_out = WIDTH};
    const tamis_embed_params embed = {.w = *w, .dim = WIDTH, .n_vocab = 32000};
    tamis_linear_parts_params parts = {
        .parts = {{.w = *w, .n_out = WIDTH}}, .n_parts = 1, .n_in = WIDTH};
    tamis_buffer *norm;
    require(tamis_buffer_create(context, WIDTH * sizeof(float), &norm, &error));
    snprintf(now, sizeof now, "weights of %s", tamis_weight_name(w->type));
    require(tamis_op_linear(context, &linear, &error));
    for (int adds = 0; adds < (small ? 1 : 2); adds++) {
        parts.adds = adds;
        parts.norm_w = (tamis_place){0};
        require(tamis_op_linear_parts(context, &parts, &error));
        parts.norm_w.buffer = norm;
        require(tamis_op_linear_parts(context, &parts, &error));
    }
    require(tamis_op_embed(context, &embed, &error));
    tamis_buffer_destroy(&norm);
}

/* A matrix of each type as a model has it, and in rows, too, unless the list is small. */
static void weights(bool small) {
    static const tamis_weight_type common[] = {TAMIS_WEIGHT_F16, TAMIS_WEIGHT_Q8_0,
                                               TAMIS_WEIGHT_Q4_K, TAMIS_WEIGHT_Q6_K};
    for (uint32_t i = 0; i <= TAMIS_WEIGHT_MXFP4; i++) {
        if (small && i == sizeof common / sizeof *common) return;
        tamis_weight_matrix w = {.type = small ? common[i] : (tamis_weight_type)i};
        w.layout = tamis_context_weight_layout(context, w.type);
        weights_of(&w, small);
        if (small || w.layout == TAMIS_WEIGHT_ROWS) continue;
        w.layout = TAMIS_WEIGHT_ROWS;
        weights_of(&w, small);
    }
}

/* What drivers that are no GPU's get, and are not known. */
static void base_forms(bool small) {
    const tamis_weight_matrix w = {.type = TAMIS_WEIGHT_F16};
    context->dev->form = TMS_FORM_BASE;
    attention_of(shapes, TAMIS_F16);
    weights_of(&w, small);
    context->dev->form = TMS_FORM_AUTO;
}

static void other_ops(void) {
    static const tamis_pairing pairings[] = {TAMIS_PAIR_HALF, TAMIS_PAIR_ADJACENT};
    const tamis_activate_params activate = {.dim = 4096};
    const tamis_argmax_params argmax = {.dim = 4096};
    const tamis_merge_params merge = {.dim = 128, .n_parts = 2};
    const tamis_scatter_rows_params scatter = {.width = 4096, .n_rows_y = 1};
    snprintf(now, sizeof now, "ops of tamis/ops.h");
    require(tamis_op_activate(context, &activate, &error));
    require(tamis_op_argmax(context, &argmax, &error));
    require(tamis_op_merge(context, &merge, &error));
    require(tamis_op_scatter_rows(context, &scatter, &error));
    for (uint32_t pair = 0; pair < 9; pair++) {
        const tamis_convert_params convert = {
            .x.dtype = (tamis_dtype)(pair / 3), .y.dtype = (tamis_dtype)(pair % 3), .width = 4096};
        require(tamis_op_convert(context, &convert, &error));
    }
    for (uint32_t i = 0; i < 2; i++) {
        const tamis_rotate_params rotate = {
            .n_heads = 32, .head_dim = 128, .rotation = {.pairing = pairings[i]}};
        require(tamis_op_rotate(context, &rotate, &error));
    }
    for (uint32_t kind = TAMIS_NORM_RMS; kind <= TAMIS_NORM_NONE; kind++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            const tamis_norm_params norm = {
                .dim = 4096, .kind = (tamis_norm_kind)kind, .accumulate = accumulate};
            require(tamis_op_norm(context, &norm, &error));
        }
}

/* The pipeline over a cache of the caller's, whose rows begin at no multiple of 16 bytes. */
static void unaligned(void) {
    const tamis_kv kv = {.dtype = TAMIS_F16,
                         .layout = TAMIS_KV_STRIDES,
                         .page_size = 16,
                         .head_dim = 128,
                         .slot_stride = 130,
                         .head_stride = 16 * 130,
                         .value_offset = 8 * 16 * 130,
                         .page_stride = 16 * 16 * 130,
                         .bounds_head_stride = 258,
                         .bounds_page_stride = 8 * 258};
    const tamis_batch batch = {.n_heads = 32, .n_kv_heads = 8, .max_visible = CONTEXT};
    const tamis_bounds_params bounds = {.kv = kv, .n_kv_heads = 8};
    const tamis_score_pages_params score = {.kv = kv, .batch = batch};
    const tamis_attend_params attend = {.kv = kv, .batch = batch};
    snprintf(now, sizeof now, "rows of 130 elements");
    require(tamis_op_bounds(context, &bounds, &error));
    require(tamis_op_score_pages(context, &score, &error));
    require(tamis_op_attend(context, &attend, &error));
}

/* Scores of slots by themselves, which no public call has. */
static void scores(void) {
    const tms_kv kv = {.dtype = TAMIS_F16,
                       .page_size = 16,
                       .head_dim = 128,
                       .slot_stride = 128,
                       .value_offset = 16 * 128,
                       .page_stride = 32 * 128};
    const tms_batch batch = {.n_heads = 8, .n_kv_heads = 8};
    const tms_value_norm value = {.kv = kv, .batch = batch, .kind = TMS_VALUE_L2};
    tms_key_score key = {.kv = kv, .batch = batch};
    snprintf(now, sizeof now, "value_norm and key_score");
    require(tms_run_value_norm(context->dev, &value, &error));
    for (key.kind = TMS_KEY_NORM; key.kind <= TMS_KEY_QUADRATIC; key.kind++)
        require(tms_run_key_score(context->dev, &key, &error));
}

/* Steps of one row, of few and of many, with as many tokens to come. */
static void model_of(const char *path) {
    static const uint32_t n_rows[] = {1, 8, ROWS};
    tamis_model *model;
    tamis_cache *cache;
    tamis_runner *runner;
    tamis_cache_params of = {.dtype = TAMIS_F16, .capacity_tokens = 2 * ROWS};
    tamis_plan_params params = {.max_sequences = 8, .max_rows = ROWS};
    snprintf(now, sizeof now, "%s", path);
    require(tamis_model_load(context, path, NULL, &model, &error));
    params.max_context = tamis_model_describe(model)->context;
    tamis_model_cache_shape(model, &of);
    require(tamis_cache_create(context, &of, &cache, &error));
    require(tamis_runner_create(model, cache, &params, &runner, &error));
    for (size_t i = 0; i < sizeof n_rows / sizeof *n_rows; i++)
        require(tamis_runner_build(runner, n_rows[i], n_rows[i] > 8 ? 1 : n_rows[i], &error));
    tamis_runner_destroy(&runner);
    tamis_cache_destroy(&cache);
    tamis_model_destroy(&model);
}

/* The first has one type of weights, the others all of them, in many combinations. */
static void models(const char *folder, bool small) {
    static const char *const names[] = {"llama3", "mixed", "mixed-more", "gemma3"};
    for (size_t i = 0; i < (small ? 1 : sizeof names / sizeof *names); i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s.gguf", folder, names[i]);
        model_of(path);
    }
}

/* ---- The list -------------------------------------------------------------------------------- */

static uint32_t number(const char *word) {
    char *end;
    const unsigned long value = strtoul(word, &end, 10);
    if (*end || value == 0 || value > UINT32_MAX) {
        fprintf(stderr, "cl-programs: %s: not a number\n", word);
        exit(2);
    }
    return (uint32_t)value;
}

int main(int argc, char **argv) {
    const bool small = argc == WORDS && strcmp(argv[1], "small") == 0;
    if (argc != WORDS || (!small && strcmp(argv[1], "full") != 0)) {
        fprintf(stderr, "usage: cl-programs small|full FOLDER MODELS PLATFORM VENDOR NAME "
                        "EXTENSIONS UNITS GROUP LOCAL SUB_GROUP\n");
        return 2;
    }
    const driver_gpu gpu = {.platform = argv[4],
                            .vendor = argv[5],
                            .name = argv[6],
                            .extensions = argv[7],
                            .compute_units = number(argv[8]),
                            .group = number(argv[9]),
                            .local_bytes = number(argv[10]),
                            .least_sub_group = number(argv[11])};
    const tamis_context_params params = {.device = "opencl"};
    driver_begin(&gpu);
    setenv("TAMIS_KERNEL_CACHE", "none", 1); /* else the host asks for binaries */
    setenv("TAMIS_CLBLAST", TEST_DRIVER, 1);
    snprintf(now, sizeof now, "%s", gpu.name);
    require(tamis_context_create(&params, &context, &error));
    plans(small);
    base_forms(small);
    reading();
    unaligned();
    weights(small);
    other_ops();
    scores();
    models(argv[3], small);
    tamis_context_destroy(&context);
    if (driver_write(argv[2]) == 0) return 0;
    fprintf(stderr, "cl-programs: %s: %s\n", argv[2], strerror(errno));
    return 1;
}
