/* SPDX-License-Identifier: Apache-2.0 */
/* The cache that a bench reads: filled with noise, its pages in order or scattered. */
#include "bench/bench.h"

#include <math.h>
#include <stdlib.h>

#define FILL_ROWS   512u        /* of a filling step, unless it is a prefill */
#define NOISE_SLACK (16u << 20) /* bytes of places where rows may begin */
/* Bytes of one pass over the layers: enough that no processor cache still holds a layer at the next
 * pass, even under a selection that reads a thirtieth of it. GPUs have tens of MiB of L2. */
#define WANTED_BYTES     (1ull << 30)
#define WANTED_BYTES_GPU (4ull << 30)
#define LEAST_LAYERS     2u
#define PROJECTED_ROWS   256u /* of a bound output projection: which tokens stay does not matter */

/* Most rows of a filling step. */
static uint32_t fill_rows(const bench *b) {
    return b->params.prefill_rows > 0 ? b->params.prefill_rows : FILL_ROWS;
}

tamis_rows bench_noise(bench *b, uint32_t rows, uint32_t width) {
    uint64_t places = (b->noise_bytes - (uint64_t)rows * width * sizeof(float)) / 64 + 1;
    return (tamis_rows){.buffer = b->noise,
                        .offset = cli_random_next(&b->random) % places * 64,
                        .dtype = TAMIS_F32};
}

/* Sums of four uniform numbers: near enough to normal, mean 0, variance 1. */
static tamis_status create_noise(bench *b, tamis_error *error) {
    const bench_shape *shape = b->params.shape;
    uint32_t rows = fill_rows(b) > b->params.batch ? fill_rows(b) : b->params.batch;
    tamis_status status = TAMIS_OK;
    b->noise_bytes =
        (uint64_t)rows * shape->n_heads * shape->head_dim * sizeof(float) + NOISE_SLACK;
    uint64_t count = b->noise_bytes / sizeof(float);
    float *noise = malloc(b->noise_bytes);
    if (noise == NULL) return cli_no_memory(error);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = cli_random_next(&b->random);
        uint32_t sum = (uint32_t)(bits & 0xffff) + (uint32_t)(bits >> 16 & 0xffff) +
                       (uint32_t)(bits >> 32 & 0xffff) + (uint32_t)(bits >> 48);
        noise[i] = ((float)sum - 131070.0f) * (1.7320508f / 65536.0f);
    }
    status = tamis_buffer_create(b->device, b->noise_bytes, &b->noise, error);
    if (status == TAMIS_OK) status = tamis_buffer_write(b->noise, 0, noise, b->noise_bytes, error);
    free(noise);
    return status;
}

static uint64_t pages_of(const bench *b, uint32_t tokens) {
    return (tokens + b->params.page_size - 1) / b->params.page_size;
}

/* Room for the batch at the whole context. If sequences are evicted from one after another: room
 * for one whole sequence and for what is kept of the others, with some more where heads that share
 * a budget may differ. */
static tamis_cache_params cache_params(const bench *b, uint32_t layers) {
    uint64_t pages = pages_of(b, b->context), kept = pages_of(b, b->eviction.budget + 1) + 1;
    uint64_t others = b->params.batch - 1;
    bool evicts = b->eviction.kind != TAMIS_EVICT_NONE;
    pages += others * (evicts && kept < pages ? kept : pages);
    return (tamis_cache_params){.n_layers = layers,
                                .n_heads = b->params.shape->n_heads,
                                .n_kv_heads = b->params.shape->n_kv_heads,
                                .head_dim = b->params.shape->head_dim,
                                .page_size = b->params.page_size,
                                .dtype = b->params.dtype,
                                .bounds_dtype = b->params.bounds_dtype,
                                .planes = tamis_eviction_planes(&b->eviction),
                                .capacity_tokens = pages * b->params.page_size};
}

/* Enough layers that one pass over them reads as much as wanted, within half of the device's
 * memory. */
static tamis_status choose_layers(bench *b, tamis_error *error) {
    tamis_cache_size one = {0};
    const tamis_device_info *device = tamis_context_device(b->device);
    uint64_t wanted = device->kind == TAMIS_DEVICE_GPU ? WANTED_BYTES_GPU : WANTED_BYTES;
    const tamis_cache_params params = cache_params(b, 1);
    tamis_status status = tamis_cache_measure(b->device, &params, &one, error);
    if (status != TAMIS_OK) return status;
    uint64_t layers = (wanted + one.reserved_bytes - 1) / one.reserved_bytes;
    if (layers < LEAST_LAYERS) layers = LEAST_LAYERS;
    if (layers > b->params.shape->n_layers) layers = b->params.shape->n_layers;
    if (b->params.most_layers > 0 && layers > b->params.most_layers) layers = b->params.most_layers;
    while (layers > 1 && layers * one.reserved_bytes > device->memory_bytes / 2)
        layers--;
    b->layers = b->params.layers > 0 ? b->params.layers : (uint32_t)layers;
    return TAMIS_OK;
}

/* One step that writes rows of noise for `count` sequences and attends nothing. */
static tamis_status append(bench *b, tamis_plan *plan, const tamis_sequence *sequences,
                           const uint32_t *rows, uint32_t count, tamis_error *error) {
    const tamis_step step = {.sequences = sequences, .rows = rows, .count = count, .exact = 1};
    uint32_t width = b->params.shape->n_kv_heads * b->params.shape->head_dim, total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += rows[i];
    tamis_status status = tamis_plan_step_begin(plan, &step, error);
    for (uint32_t layer = 0; status == TAMIS_OK && layer < b->layers; layer++) {
        const tamis_rows k = bench_noise(b, total, width), v = bench_noise(b, total, width);
        status = tamis_plan_write(plan, layer, &k, &v, error);
    }
    return status == TAMIS_OK ? tamis_plan_step_end(plan, error) : status;
}

/* h2o's sums need every row of a prompt. Attending all rows of a long context takes time that grows
 * with its square, so for h2o a prompt that just fills the budget stands for what would be left of
 * the whole. */
static bool sums(const bench *b) {
    return b->eviction.kind == TAMIS_EVICT_H2O;
}

uint32_t bench_tokens(const bench *b) {
    uint32_t tokens = b->context - 1;
    return sums(b) && b->eviction.budget < tokens ? b->eviction.budget : tokens;
}

/* Most rows of a filling step that is attended: as many as the eviction asks about, or those of a
 * prefill. */
static uint32_t attended_rows(const bench *b) {
    uint32_t rows = sums(b) ? FILL_ROWS : b->eviction.window > 0 ? b->eviction.window : 1;
    if (b->params.prefill_rows > 0) rows = b->params.prefill_rows;
    return rows < bench_tokens(b) ? rows : bench_tokens(b);
}

tamis_status bench_rotation(const bench *b, tamis_rotation *rotation, tamis_error *error) {
    double frequencies[128];
    const uint32_t n = b->params.shape->head_dim;
    for (uint32_t i = 0; i < n / 2; i++)
        frequencies[i] = pow(1e4, -2.0 * i / n);
    *rotation = (tamis_rotation){.n_rot = n};
    const tamis_status status =
        tamis_buffer_create(b->device, tamis_rotation_bytes(n), &rotation->table.buffer, error);
    return status == TAMIS_OK ? tamis_rotation_write(rotation, frequencies, error) : status;
}

static tamis_status bind_rotation(const bench *b, tamis_plan *plan, tamis_error *error) {
    tamis_rotation rotation;
    tamis_status status = bench_rotation(b, &rotation, error);
    if (status == TAMIS_OK) status = tamis_plan_bind_rotation(plan, &rotation, error);
    tamis_buffer_destroy(&rotation.table.buffer);
    return status;
}

tamis_status bench_bind(bench *b, tamis_plan *plan, tamis_error *error) {
    const tamis_rows w = {.buffer = b->noise, .dtype = TAMIS_F32};
    bool projects = tamis_eviction_needs(&b->eviction) & TAMIS_NEEDS_OUTPUT;
    tamis_status status = TAMIS_OK;
    for (uint32_t layer = 0; status == TAMIS_OK && projects && layer < b->layers; layer++)
        status = tamis_plan_bind_output(plan, layer, &w, PROJECTED_ROWS, error);
    if (status == TAMIS_OK && b->eviction.options & TAMIS_EVICT_REINDEX)
        status = bind_rotation(b, plan, error);
    return status;
}

/* One step of a sequence whose rows are attended: a prefill's, or so that the eviction knows their
 * queries. */
static tamis_status attend(bench *b, tamis_plan *plan, tamis_sequence sequence, uint32_t rows,
                           tamis_error *error) {
    const bench_shape *shape = b->params.shape;
    const tamis_step step = {.sequences = &sequence, .rows = &rows, .count = 1, .exact = 1};
    const tamis_rows out = {.buffer = b->out, .dtype = TAMIS_F32};
    uint32_t width = shape->n_kv_heads * shape->head_dim;
    tamis_status status = tamis_plan_step_begin(plan, &step, error);
    for (uint32_t layer = 0; status == TAMIS_OK && layer < b->layers; layer++) {
        const tamis_rows k = bench_noise(b, rows, width), v = bench_noise(b, rows, width);
        const tamis_rows q = bench_noise(b, rows, shape->n_heads * shape->head_dim);
        status = tamis_plan_write(plan, layer, &k, &v, error);
        if (status == TAMIS_OK) status = tamis_plan_attend(plan, layer, &q, &out, error);
    }
    return status == TAMIS_OK ? tamis_plan_step_end(plan, error) : status;
}

/* Each sequence after the other, in large steps: pages come in order. */
static tamis_status fill_ordered(bench *b, tamis_plan *plan, tamis_error *error) {
    const uint32_t most = fill_rows(b);
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; i < b->params.batch; i++)
        for (uint32_t done = 0; status == TAMIS_OK && done < b->context - 1;) {
            uint32_t left = b->context - 1 - done, rows = left < most ? left : most;
            status = b->params.prefill_rows > 0
                         ? attend(b, plan, b->sequences[i], rows, error)
                         : append(b, plan, &b->sequences[i], &rows, 1, error);
            done += rows;
        }
    return status;
}

/* Fills each sequence to its end, the last rows under a plan that evicts; for knorm, which needs every
 * row's key, all rows. */
static tamis_status fill_evicted(bench *b, tamis_plan *plan, tamis_error *error) {
    const bool keys = b->eviction.kind == TAMIS_EVICT_KNORM;
    uint32_t most = attended_rows(b), end = bench_tokens(b), plain = sums(b) ? 0 : end - most;
    const tamis_plan_params params = {
        .max_rows = keys ? FILL_ROWS : most, .max_context = b->context, .eviction = b->eviction};
    tamis_plan *evicting = NULL;
    tamis_status status = tamis_plan_create(b->cache, &params, &evicting, error);
    if (status == TAMIS_OK) status = bench_bind(b, evicting, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < b->params.batch; i++) {
        uint32_t done = 0;
        for (uint32_t rows; status == TAMIS_OK && done < plain; done += rows) {
            rows = plain - done < FILL_ROWS ? plain - done : FILL_ROWS;
            status = append(b, keys ? evicting : plan, &b->sequences[i], &rows, 1, error);
        }
        for (uint32_t rows; status == TAMIS_OK && done < end; done += rows) {
            rows = end - done < most ? end - done : most;
            status = attend(b, evicting, b->sequences[i], rows, error);
        }
        if (status == TAMIS_OK) status = tamis_plan_evict(evicting, b->sequences[i], NULL, error);
    }
    tamis_plan_destroy(&evicting);
    return status;
}

/* Fills the cache to its last page with sequences of one page a lane. */
static tamis_status add_fillers(bench *b, tamis_plan *plan, tamis_sequence *fillers, uint32_t count,
                                tamis_error *error) {
    uint32_t rows[FILL_ROWS];
    uint32_t chunk = FILL_ROWS / b->params.page_size;
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; i < chunk; i++)
        rows[i] = b->params.page_size;
    for (uint32_t i = 0; status == TAMIS_OK && i < count; i++)
        status = tamis_cache_add(b->cache, &fillers[i], error);
    for (uint32_t done = 0; status == TAMIS_OK && done < count; done += chunk) {
        uint32_t n = count - done < chunk ? count - done : chunk;
        status = append(b, plan, &fillers[done], rows, n, error);
    }
    return status;
}

/* The cache is full of fillers. Each time one of them, chosen at random, is removed, a sequence
 * grows by a page and can take only the pages that became free. So every lane's page list is in
 * random order, whatever the allocator prefers. */
static tamis_status replace_fillers(bench *b, tamis_plan *plan, tamis_sequence *fillers,
                                    uint32_t count, tamis_error *error) {
    uint32_t per_sequence = count / b->params.batch;
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < count; i++) {
        uint64_t pick = i + cli_random_next(&b->random) % (count - i);
        tamis_sequence gone = fillers[pick];
        fillers[pick] = fillers[i];
        status = tamis_cache_remove(b->cache, gone, error);
        uint32_t done = i % per_sequence * b->params.page_size;
        uint32_t left = b->context - 1 - done;
        uint32_t rows = left < b->params.page_size ? left : b->params.page_size;
        if (status == TAMIS_OK && rows > 0)
            status = append(b, plan, &b->sequences[i / per_sequence], &rows, 1, error);
    }
    return status;
}

static tamis_status fill_shuffled(bench *b, tamis_plan *plan, tamis_error *error) {
    uint32_t pages = (b->context + b->params.page_size - 1) / b->params.page_size;
    uint32_t count = pages * b->params.batch;
    tamis_sequence *fillers = calloc(count, sizeof(*fillers));
    if (fillers == NULL) return cli_no_memory(error);
    tamis_status status = add_fillers(b, plan, fillers, count, error);
    if (status == TAMIS_OK) status = replace_fillers(b, plan, fillers, count, error);
    free(fillers);
    return status;
}

/* What the lanes of each layer hold at most within a filling step, whole pages; 0: no bound below
 * the cache's. */
static void bound_layers(const bench *b, uint64_t *tokens) {
    for (uint32_t layer = 0; layer < b->layers; layer++) {
        const uint64_t most =
            tamis_layer_tokens(&b->stack[layer].attention, b->params.page_size, fill_rows(b));
        const uint64_t pages = most < b->context ? pages_of(b, (uint32_t)most) : 0;
        tokens[layer] = pages * b->params.page_size * b->params.batch;
    }
}

static tamis_status create_cache(bench *b, tamis_error *error) {
    uint64_t tokens[BENCH_LAYERS_MAX];
    tamis_cache_params params = cache_params(b, b->layers);
    if (b->stack != NULL) {
        bound_layers(b, tokens);
        params.layer_tokens = tokens;
    }
    b->sequences = calloc(b->params.batch, sizeof(*b->sequences));
    if (b->sequences == NULL) return cli_no_memory(error);
    tamis_status status = tamis_cache_create(b->device, &params, &b->cache, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < b->params.batch; i++)
        status = tamis_cache_add(b->cache, &b->sequences[i], error);
    return status;
}

static tamis_status fill(bench *b, tamis_plan *plan, tamis_error *error) {
    if (b->eviction.kind != TAMIS_EVICT_NONE) return fill_evicted(b, plan, error);
    return b->params.shuffled ? fill_shuffled(b, plan, error) : fill_ordered(b, plan, error);
}

tamis_status bench_fill(bench *b, tamis_error *error) {
    const bench_shape *shape = b->params.shape;
    const uint32_t several = FILL_ROWS / b->params.page_size;
    const tamis_plan_params params = {.max_sequences = b->params.shuffled ? several : 1,
                                      .max_rows = fill_rows(b),
                                      .max_context = b->context,
                                      .layers = b->stack,
                                      .flags = b->stack != NULL ? TAMIS_PLAN_GIVE_BACK : 0};
    uint32_t out_rows = b->params.batch > attended_rows(b) ? b->params.batch : attended_rows(b);
    uint64_t out_bytes = (uint64_t)out_rows * shape->n_heads * shape->head_dim * sizeof(float);
    tamis_plan *plan = NULL;
    b->random = (cli_random){1};
    tamis_status status = choose_layers(b, error);
    if (status == TAMIS_OK) status = create_noise(b, error);
    if (status == TAMIS_OK) status = tamis_buffer_create(b->device, out_bytes, &b->out, error);
    if (status == TAMIS_OK) status = create_cache(b, error);
    if (status == TAMIS_OK) status = tamis_plan_create(b->cache, &params, &plan, error);
    if (status == TAMIS_OK) status = tamis_context_wait(b->device, error);
    const double start = cli_seconds();
    if (status == TAMIS_OK) status = fill(b, plan, error);
    if (status == TAMIS_OK) status = tamis_context_wait(b->device, error);
    b->fill_s = cli_seconds() - start;
    tamis_plan_destroy(&plan);
    return status;
}

void bench_destroy(bench *b) {
    tamis_cache_destroy(&b->cache);
    tamis_buffer_destroy(&b->noise);
    tamis_buffer_destroy(&b->out);
    free(b->sequences);
    b->sequences = NULL;
}
