/* SPDX-License-Identifier: Apache-2.0 */
/* The small plans whose saved sequences are fuzzed. */
#include "tests/fuzz/saved_world.h"

#include <stdio.h>
#include <stdlib.h>

#define HEADS 2u
#define DIM   64u
#define WIDTH (HEADS * DIM)

static void must(tamis_status status, const tamis_error *error) {
    if (status == TAMIS_OK) return;
    fprintf(stderr, "%s: %s\n", tamis_status_name(status), error->text);
    abort();
}

tamis_context *saved_world_context(void) {
    const tamis_context_params params = {.device = "reference"};
    tamis_context *context = NULL;
    tamis_error error = {0};
    must(tamis_context_create(&params, &context, &error), &error);
    return context;
}

static void choose(saved_plan which, tamis_cache_params *cache, tamis_plan_params *plan) {
    *cache = (tamis_cache_params){.n_layers = 1,
                                  .n_heads = HEADS,
                                  .n_kv_heads = HEADS,
                                  .head_dim = DIM,
                                  .page_size = 8,
                                  .dtype = TAMIS_Q4,
                                  .capacity_tokens = 2 * SAVED_CONTEXT};
    *plan = (tamis_plan_params){.max_rows = SAVED_ROWS, .max_context = SAVED_CONTEXT};
    if (which == SAVED_WINDOWED) {
        plan->attention.sliding_window = 9;
        plan->flags = TAMIS_PLAN_GIVE_BACK;
    } else if (which == SAVED_SNAPKV) {
        cache->dtype = TAMIS_F16;
        plan->eviction =
            (tamis_eviction){.kind = TAMIS_EVICT_SNAPKV, .budget = 6, .window = 3, .kernel = 3};
    } else if (which == SAVED_H2O) {
        cache->dtype = TAMIS_Q8;
        plan->eviction = (tamis_eviction){.kind = TAMIS_EVICT_H2O, .budget = 9, .every = 1};
    }
    cache->planes = tamis_eviction_planes(&plan->eviction);
}

void saved_world_open(saved_world *world, tamis_context *context, saved_plan plan) {
    tamis_cache_params shape;
    tamis_plan_params params;
    tamis_error error = {0};
    float rows[3 * SAVED_ROWS * WIDTH];
    choose(plan, &shape, &params);
    *world = (saved_world){.cache = NULL};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        rows[i] = (float)((i * 2654435761u >> 8) % 255) / 64 - 2;
    must(tamis_cache_create(context, &shape, &world->cache, &error), &error);
    must(tamis_plan_create(world->cache, &params, &world->plan, &error), &error);
    must(tamis_buffer_create(context, sizeof rows / 3 * 4, &world->rows, &error), &error);
    must(tamis_buffer_write(world->rows, 0, rows, sizeof rows, &error), &error);
}

void saved_world_close(saved_world *world) {
    tamis_buffer_destroy(&world->rows);
    tamis_plan_destroy(&world->plan);
    tamis_cache_destroy(&world->cache);
}

static tamis_rows rows_at(const saved_world *world, uint64_t place) {
    return (tamis_rows){.buffer = world->rows,
                        .offset = place * SAVED_ROWS * WIDTH * sizeof(float)};
}

tamis_status saved_world_step(saved_world *world, tamis_sequence id, uint32_t rows, int exact) {
    const tamis_step step = {.sequences = &id, .rows = &rows, .count = 1, .exact = exact};
    const tamis_rows q = rows_at(world, 0), k = rows_at(world, 1), v = rows_at(world, 2),
                     out = rows_at(world, 3);
    tamis_status status = tamis_plan_step_begin(world->plan, &step, NULL);
    if (status != TAMIS_OK) return status;
    status = tamis_plan_write(world->plan, 0, &k, &v, NULL);
    if (status == TAMIS_OK) status = tamis_plan_attend(world->plan, 0, &q, &out, NULL);
    if (status == TAMIS_OK) status = tamis_plan_step_end(world->plan, NULL);
    if (status != TAMIS_OK) must(tamis_plan_step_cancel(world->plan, NULL), &(tamis_error){0});
    return status;
}
