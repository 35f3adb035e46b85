/* SPDX-License-Identifier: Apache-2.0 */
/* The problems of `tamis bench portability`, and what one takes on a platform. */
#include "bench/portability.h"

#include <stdlib.h>

/* Of bench_shapes: one query head for a KV head, and four. */
enum { MHA = 0, GQA = 1 };
#define BUDGET        1024u /* of a selection and of an eviction */
#define PAGE_SIZE     16u
#define MATRIX        4096u /* inputs and outputs of a product */
#define FIRST_CONTEXT 1024u /* of the calibration */
#define MANY_ROWS     4.0   /* how much faster many rows are computed than one, if little */

static portability_measure measure_decode, measure_chunk, measure_evicting, measure_load,
    measure_product;

const portability_task portability_tasks[] = {
    {"decode", measure_decode, 2, {"dense", "quest"}, PORTABILITY_PAGES, .shape = MHA},
    {"decode", measure_decode, 2, {"dense", "quest"}, PORTABILITY_PAGES, .shape = GQA},
    {"prefill", measure_chunk, 1, {"prefill"}, PORTABILITY_ARITHMETIC, GQA, 4096, 256, 0},
    {"evict", measure_evicting, 1, {"evict"}, PORTABILITY_READ, GQA, 16384, 0, 0},
    {"load", measure_load, 1, {"load"}, PORTABILITY_READ, GQA, 0, 2048, 0},
    {"product", measure_product, 1, {"few rows"}, PORTABILITY_READ, 0, 0, 1, TAMIS_WEIGHT_F16},
    {"product", measure_product, 1, {"few rows"}, PORTABILITY_READ, 0, 0, 1, TAMIS_WEIGHT_Q8_0},
    {"product",
     measure_product,
     1,
     {"many rows"},
     PORTABILITY_ARITHMETIC,
     0,
     0,
     256,
     TAMIS_WEIGHT_F16},
    {"product",
     measure_product,
     1,
     {"many rows"},
     PORTABILITY_ARITHMETIC,
     0,
     0,
     256,
     TAMIS_WEIGHT_Q8_0},
    {NULL, NULL, 0, {NULL}, 0, 0, 0, 0, 0}};

const char *const portability_kinds[] = {"decode", "prefill", "evict", "load", "product", NULL};

static const bench_shape *shape_of(const portability_problem *problem) {
    return &bench_shapes[problem->task->shape];
}

/* Of K and V of `rows` rows of a layer. */
static double kv_bytes(const bench_shape *shape, double rows, double of_element) {
    return 2.0 * rows * shape->n_kv_heads * shape->head_dim * of_element;
}

/* Of attending `seen` slots, those of all rows together. */
static double attend_flop(const bench_shape *shape, double seen) {
    return 4.0 * seen * shape->n_heads * shape->head_dim;
}

/* Whether a sample that takes so long is worth its time; if not, says so in all n cells. */
static bool is_affordable(const portability *p, double sample_s, portability_cell *cells,
                          uint32_t n) {
    if (bench_is_affordable(p->seconds, sample_s)) return true;
    for (uint32_t i = 0; i < n; i++) {
        cells[i].state = PORTABILITY_NOT_RUN;
        snprintf(cells[i].reason, sizeof(cells[i].reason), "a sample takes about %.1f s", sample_s);
    }
    return false;
}

static bench make_bench(const portability *p, const portability_platform *platform,
                        const bench_shape *shape, uint32_t context) {
    return (bench){.device = platform->device,
                   .context = context,
                   .params = {.shape = shape,
                              .dtype = TAMIS_F16,
                              .page_size = PAGE_SIZE,
                              .batch = 1,
                              .repeat = p->repeat,
                              .totals_alone = true}};
}

/* ---- Decode steps ---------------------------------------------------------------------------- */

static void set_arms(bench *b, uint32_t n) {
    static const tamis_selection_kind kinds[] = {TAMIS_SELECT_FULL, TAMIS_SELECT_QUEST};
    b->n_arms = n;
    for (uint32_t a = 0; a < n; a++) {
        tamis_selection *selection = &b->arms[a].selection;
        tamis_selection_default(kinds[a], selection);
        selection->dense_layers = 0;
        if (kinds[a] != TAMIS_SELECT_FULL) selection->budget = BUDGET;
    }
    if (n > 1 && b->context <= BUDGET) b->arms[1].selection.budget = b->context / 2;
}

tamis_status portability_calibrate(const portability *p, portability_platform *platform,
                                   tamis_error *error) {
    const bench_shape *shape = &bench_shapes[MHA];
    bench b = make_bench(p, platform, shape, FIRST_CONTEXT);
    tamis_plan *plan = NULL;
    double us = 0;
    b.params.layers = 1;
    set_arms(&b, 1);
    tamis_status status = bench_fill(&b, error);
    if (status == TAMIS_OK) status = bench_plan(&b, &b.arms[0], 0, &plan, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < 2; i++) /* the first one compiles */
        status = bench_sample(&b, plan, &us, error);
    if (status == TAMIS_OK) platform->flop_per_s = attend_flop(shape, FIRST_CONTEXT) / us * 1e6;
    tamis_plan_destroy(&plan);
    bench_destroy(&b);
    return status;
}

static portability_cell cell_of(const bench *b, const bench_arm *arm) {
    return (portability_cell){.us = arm->spread_us,
                              .samples = b->params.repeat,
                              .bytes = arm->gb_per_s * arm->total_us * 1e3,
                              .limit_gb_per_s = b->limit_gb_per_s};
}

/* Dense and quest beside each other over one cache. */
static tamis_status measure_decode(const portability *p, portability_platform *platform,
                                   const portability_problem *problem, portability_cell *cells,
                                   tamis_error *error) {
    const bench_shape *shape = shape_of(problem);
    const double flop = attend_flop(shape, problem->context);
    const double layer_s = flop / platform->flop_per_s;
    bench b = make_bench(p, platform, shape, problem->context);
    if (!is_affordable(p, layer_s, cells, 2)) return TAMIS_OK;
    b.params.repeat = bench_affordable(p->seconds, layer_s, p->repeat);
    b.params.most_layers = (uint32_t)(p->seconds / (layer_s * b.params.repeat)) + 1;
    set_arms(&b, 2);
    tamis_status status = bench_fill(&b, error);
    if (status == TAMIS_OK) status = bench_measure(&b, error);
    bench_destroy(&b);
    if (status != TAMIS_OK) return status;
    for (uint32_t a = 0; a < 2; a++)
        cells[a] = cell_of(&b, &b.arms[a]);
    cells[0].flop = flop;
    platform->flop_per_s = flop / b.arms[0].total_us * 1e6;
    return TAMIS_OK;
}

static tamis_status measure_evicting(const portability *p, portability_platform *platform,
                                     const portability_problem *problem, portability_cell *cells,
                                     tamis_error *error) {
    bench b = make_bench(p, platform, shape_of(problem), problem->context);
    bench_evicting out;
    tamis_eviction_default(TAMIS_EVICT_TOVA, &b.eviction);
    b.eviction.budget = BUDGET;
    /* To fill the cache, one row is attended over the whole context. */
    const double first_s = attend_flop(b.params.shape, problem->context) / platform->flop_per_s;
    const double layer_s = first_s * BUDGET / problem->context;
    if (!is_affordable(p, first_s, cells, 1)) return TAMIS_OK;
    b.params.repeat = bench_affordable(p->seconds, layer_s, p->repeat);
    b.params.most_layers = (uint32_t)(p->seconds / (layer_s * b.params.repeat + first_s)) + 1;
    const tamis_status status = bench_measure_evicting(&b, &out, error);
    if (status == TAMIS_OK)
        *cells = (portability_cell){.us = out.us, .samples = b.params.repeat, .bytes = out.bytes};
    return status;
}

/* ---- Steps of many rows ---------------------------------------------------------------------- */

/* A step of `rows` rows behind the tokens of the cache. */
typedef struct chunk {
    const portability *p;
    bench b;
    uint32_t rows, tokens, samples; /* tokens: before the step */
    tamis_plan *plan;
    tamis_buffer *out;        /* of a chunk that is attended */
    tamis_stored_rows stored; /* of one that is loaded */
    double *us;
} chunk;

static tamis_status attend_layer(chunk *c, uint32_t layer, tamis_error *error) {
    const bench_shape *shape = c->b.params.shape;
    const uint32_t width = shape->n_kv_heads * shape->head_dim;
    const tamis_rows k = bench_noise(&c->b, c->rows, width), v = bench_noise(&c->b, c->rows, width);
    const tamis_rows q = bench_noise(&c->b, c->rows, shape->n_heads * shape->head_dim);
    const tamis_rows out = {.buffer = c->out, .dtype = TAMIS_F32};
    const tamis_status status = tamis_plan_write(c->plan, layer, &k, &v, error);
    return status == TAMIS_OK ? tamis_plan_attend(c->plan, layer, &q, &out, error) : status;
}

static tamis_status load_layer(chunk *c, uint32_t layer, tamis_error *error) {
    return tamis_plan_load_rows(c->plan, layer, 0, c->rows, &c->stored, error);
}

typedef tamis_status layer_fn(chunk *c, uint32_t layer, tamis_error *error);

/* One step; *us is the time of a layer. The rows are truncated away again. */
static tamis_status sample(chunk *c, layer_fn *run, double *us, tamis_error *error) {
    bench *b = &c->b;
    const tamis_step step = {.sequences = b->sequences, .rows = &c->rows, .count = 1, .exact = 1};
    tamis_status status = tamis_plan_step_begin(c->plan, &step, error);
    if (status == TAMIS_OK) status = tamis_context_wait(b->device, error);
    const double start = cli_seconds();
    for (uint32_t layer = 0; status == TAMIS_OK && layer < b->layers; layer++)
        status = run(c, layer, error);
    if (status == TAMIS_OK) status = tamis_context_wait(b->device, error);
    *us = (cli_seconds() - start) * 1e6 / b->layers;
    if (status == TAMIS_OK) status = tamis_plan_step_end(c->plan, error);
    return status == TAMIS_OK ? tamis_cache_truncate(b->cache, b->sequences[0], c->tokens, error)
                              : status;
}

/* The first sample compiles, the second says how many are affordable: none, where it takes too long. */
static tamis_status take_samples(chunk *c, layer_fn *run, double *sample_s, tamis_error *error) {
    const portability *p = c->p;
    double us = 0;
    c->us = calloc(p->repeat, sizeof(double));
    if (c->us == NULL) return cli_no_memory(error);
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < 2; i++)
        status = sample(c, run, &us, error);
    *sample_s = us * 1e-6 * c->b.layers;
    if (!bench_is_affordable(p->seconds, *sample_s)) return status;
    c->samples = bench_affordable(p->seconds, *sample_s, p->repeat);
    for (uint32_t i = 0; status == TAMIS_OK && i < c->samples; i++)
        status = sample(c, run, &c->us[i], error);
    return status;
}

/* The cell of a chunk that is ready to be run. */
static tamis_status run_chunk(chunk *c, layer_fn *run, double bytes, double flop,
                              portability_cell *cell, tamis_error *error) {
    double sample_s = 0;
    const tamis_status status = take_samples(c, run, &sample_s, error);
    if (status == TAMIS_OK && is_affordable(c->p, sample_s, cell, 1))
        *cell = (portability_cell){.us = bench_spread_of(c->us, c->samples),
                                   .samples = c->samples,
                                   .bytes = bytes,
                                   .flop = flop};
    return status;
}

static tamis_status fill_before(chunk *c, const tamis_plan_params *params, tamis_error *error) {
    tamis_status status = bench_fill(&c->b, error);
    if (status == TAMIS_OK)
        status = tamis_cache_truncate(c->b.cache, c->b.sequences[0], c->tokens, error);
    return status == TAMIS_OK ? tamis_plan_create(c->b.cache, params, &c->plan, error) : status;
}

static void end_chunk(chunk *c) {
    tamis_plan_destroy(&c->plan);
    bench_destroy(&c->b);
    tamis_buffer_destroy(&c->out);
    tamis_buffer_destroy(&c->stored.rotation.table.buffer);
    tamis_buffer_destroy(&c->stored.k.buffer);
    free(c->us);
}

/* A prompt's chunk, written and attended, behind the tokens of the context. */
static tamis_status measure_chunk(const portability *p, portability_platform *platform,
                                  const portability_problem *problem, portability_cell *cells,
                                  tamis_error *error) {
    const bench_shape *shape = shape_of(problem);
    const double rows = problem->task->rows, seen = rows * (problem->context + (rows + 1) / 2);
    const double flop = attend_flop(shape, seen);
    chunk c = {.p = p,
               .b = make_bench(p, platform, shape, problem->context + problem->task->rows + 1),
               .rows = problem->task->rows,
               .tokens = problem->context};
    if (!is_affordable(p, flop / platform->flop_per_s / MANY_ROWS, cells, 1)) return TAMIS_OK;
    c.b.params.layers = 1;
    const tamis_plan_params params = {.max_rows = c.rows, .max_context = c.b.context};
    const uint64_t out_bytes = (uint64_t)c.rows * shape->n_heads * shape->head_dim * sizeof(float);
    tamis_status status = fill_before(&c, &params, error);
    if (status == TAMIS_OK)
        status = tamis_buffer_create(platform->device, out_bytes, &c.out, error);
    if (status == TAMIS_OK)
        status = run_chunk(&c, attend_layer, kv_bytes(shape, problem->context + rows, 2), flop,
                           cells, error);
    end_chunk(&c);
    return status;
}

/* What a blend does where it computes nothing: rows of a store, f16, into their slots, keys rotated. */
static tamis_status measure_load(const portability *p, portability_platform *platform,
                                 const portability_problem *problem, portability_cell *cells,
                                 tamis_error *error) {
    const bench_shape *shape = shape_of(problem);
    const uint32_t rows = problem->task->rows;
    const uint64_t plane = (uint64_t)rows * shape->n_kv_heads * shape->head_dim * sizeof(uint16_t);
    chunk c = {.p = p, .b = make_bench(p, platform, shape, rows + 1), .rows = rows};
    const tamis_plan_params params = {.max_rows = rows,
                                      .max_context = rows,
                                      .flags = TAMIS_PLAN_ROTATED,
                                      .load_dtypes = 1u << TAMIS_F16};
    tamis_status status = fill_before(&c, &params, error);
    if (status == TAMIS_OK) status = bench_rotation(&c.b, &c.stored.rotation, error);
    if (status == TAMIS_OK)
        status = tamis_buffer_create(platform->device, 2 * plane, &c.stored.k.buffer, error);
    if (status == TAMIS_OK) status = bench_fill_numbers(c.stored.k.buffer, 2 * plane, error);
    c.stored.k.dtype = TAMIS_F16;
    c.stored.v = c.stored.k;
    c.stored.v.offset = plane;
    if (status == TAMIS_OK)
        status = run_chunk(&c, load_layer, 2 * kv_bytes(shape, rows, 2), 0, cells, error);
    end_chunk(&c);
    return status;
}

/* ---- Products -------------------------------------------------------------------------------- */

static tamis_status measure_product(const portability *p, portability_platform *platform,
                                    const portability_problem *problem, portability_cell *cells,
                                    tamis_error *error) {
    const double flop = 2.0 * problem->task->rows * MATRIX * MATRIX;
    bench_product of = {.type = problem->task->type,
                        .n_in = MATRIX,
                        .n_out = MATRIX,
                        .n_rows = problem->task->rows,
                        .repeat = p->repeat,
                        .most_s = p->seconds};
    if (!is_affordable(p, flop / platform->flop_per_s / MANY_ROWS, cells, 1)) return TAMIS_OK;
    const tamis_status status = bench_measure_product(platform->device, &of, error);
    if (status == TAMIS_OK && is_affordable(p, of.sample_s, cells, 1))
        *cells =
            (portability_cell){.us = of.us, .samples = of.samples, .bytes = of.bytes, .flop = flop};
    return status;
}
