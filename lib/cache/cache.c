/* SPDX-License-Identifier: Apache-2.0 */
/* The cache's memory: allocating and freeing pools, finding layers in them, statistics. */
#include "lib/cache/cache.h"

#include <inttypes.h>
#include <stdlib.h>

static tamis_status take_pool(tamis_cache *cache, uint32_t index, tamis_error *error) {
    tms_device *dev = cache->context->dev;
    tms_pool *pool = &cache->pools[index];
    pool->n_layers = tms_pool_layers(&cache->params, cache->size.pools, index, &pool->first_layer);
    uint64_t n = cache->size.pages / cache->params.n_layers * pool->n_layers;
    if (cache->params.layer_tokens)
        n = tms_layers_pages(&cache->params, pool->first_layer, pool->n_layers);
    TMS_REQUIRE(tms_pages_init(&pool->pages, (uint32_t)n), TAMIS_E_NO_MEMORY,
                "no host memory to keep %" PRIu64 " pages", n);
    TMS_TRY(tms_device_alloc(dev, n * cache->size.page_bytes, &pool->data, error));
    TMS_TRY(tms_device_alloc(dev, n * cache->size.bounds_bytes, &pool->bounds, error));
    uint64_t plane = n * cache->params.page_size * sizeof(int32_t);
    if (cache->params.planes & TAMIS_PLANE_POSITIONS)
        TMS_TRY(tms_device_alloc(dev, plane, &pool->positions, error));
    if (cache->params.planes & TAMIS_PLANE_SCORES)
        TMS_TRY(tms_device_alloc(dev, plane, &pool->scores, error));
    return TAMIS_OK;
}

static void end(tms_life *life) {
    tamis_cache *c = (tamis_cache *)life;
    tms_device *dev = c->context->dev;
    for (uint32_t i = 0; i < c->size.pools; i++) {
        tms_device_free(dev, c->pools[i].data);
        tms_device_free(dev, c->pools[i].bounds);
        tms_device_free(dev, c->pools[i].positions);
        tms_device_free(dev, c->pools[i].scores);
        tms_pages_clear(&c->pools[i].pages);
    }
    for (uint32_t i = 0; i < c->sequence_capacity; i++)
        tms_sequence_free(c->sequences[i]);
    free(c->sequences);
    free(c->pools);
    free(c);
}

tamis_status tamis_cache_create(tamis_context *context, const tamis_cache_params *params,
                                tamis_cache **out, tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    *out = NULL;
    TMS_ENTER(context);
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context is NULL");
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params is NULL");
    tamis_cache_params filled = *params;
    tamis_cache_size size;
    TMS_TRY(tms_cache_measure(context->dev, &filled, &size, error));
    const tamis_device_info *info = tms_device_info(context->dev);
    TMS_REQUIRE(size.reserved_bytes <= info->memory_bytes, TAMIS_E_NO_MEMORY,
                "the cache takes %" PRIu64 " bytes; the memory of %s is %" PRIu64,
                size.reserved_bytes, info->id, info->memory_bytes);
    tamis_cache *cache = calloc(1, sizeof *cache);
    tms_pool *pools = calloc(size.pools, sizeof *pools);
    if (!cache || !pools) {
        free(cache);
        free(pools);
        return tms_error_set(error, TAMIS_E_NO_MEMORY, "no host memory for a cache");
    }
    tms_life_begin(&cache->life, "cache", &context->life, NULL, end);
    cache->context = context;
    cache->params = filled; /* layer_tokens are the caller's, until the pools are made */
    cache->size = size;
    cache->pools = pools;
    cache->bounds_serial = 1;
    cache->n_lanes = cache->n_lists = filled.n_layers * filled.n_kv_heads;
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; i < size.pools && status == TAMIS_OK; i++)
        status = take_pool(cache, i, error);
    cache->params.layer_tokens = NULL;
    if (status != TAMIS_OK) {
        tamis_cache_destroy(&cache);
        return status;
    }
    tms_log_line(tms_device_log(context->dev), TAMIS_LOG_DEBUG,
                 "cache: %" PRIu64 " pages in %" PRIu32 " pools, %" PRIu64 " bytes", size.pages,
                 size.pools, size.reserved_bytes);
    *out = cache;
    return TAMIS_OK;
}

void tamis_cache_destroy(tamis_cache **cache) {
    if (!cache || !*cache) return;
    tms_life_close(&(*cache)->life, NULL);
    *cache = NULL;
}

tamis_context *tamis_cache_context(const tamis_cache *cache) {
    return cache ? cache->context : NULL;
}

void tamis_cache_get_params(const tamis_cache *cache, tamis_cache_params *out) {
    if (cache && out) *out = cache->params;
}

/* The bytes of a page with its bounds and planes. */
static uint64_t unit_bytes(const tamis_cache *cache) {
    return cache->size.page_bytes + cache->size.bounds_bytes + cache->size.plane_bytes;
}

uint64_t tms_cache_free_pages(const tamis_cache *cache) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < cache->size.pools; i++)
        n += cache->pools[i].pages.n_free;
    return n;
}

void tamis_cache_get_stats(const tamis_cache *cache, tamis_cache_stats *out) {
    if (!cache || !out) return;
    TMS_ENTER_WAITING(cache);
    *out = (tamis_cache_stats){.sequences = cache->n_sequences,
                               .pages_total = cache->size.pages,
                               .bytes_reserved = cache->size.reserved_bytes};
    for (uint32_t i = 0; i < cache->size.pools; i++) {
        const tms_pages *pages = &cache->pools[i].pages;
        out->pages_held += pages->n - pages->n_free;
        out->pages_shared += pages->n_shared;
    }
    out->bytes_held = out->pages_held * unit_bytes(cache);
}

/* The pages that a sequence, a branch or a journal holds. */
static void count_held(const tamis_cache *cache, const tms_sequence *s, tamis_sequence_stats *out) {
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++) {
        const tms_pages *pages = &tms_cache_pool(cache, lane / cache->params.n_kv_heads)->pages;
        const int32_t *list = tms_lane_pages(s, lane);
        const uint32_t n = tms_pages_of(cache, s->lanes[lane].length);
        out->pages += n - s->lanes[lane].gone;
        for (uint32_t i = s->lanes[lane].gone; i < n; i++)
            out->pages_shared += pages->refs[list[i]] > 1;
    }
}

tamis_status tamis_cache_get_sequence_stats(const tamis_cache *cache, tamis_sequence sequence,
                                            tamis_sequence_stats *out, tamis_error *error) {
    TMS_ENTER(cache);
    TMS_REQUIRE(cache && out, TAMIS_E_ARGUMENT, "%s: NULL", cache ? "out" : "cache");
    const tms_sequence *s = tms_cache_find(cache, sequence);
    TMS_REQUIRE(s, TAMIS_E_ARGUMENT, "the cache has no sequence %llu",
                (unsigned long long)sequence);
    *out = (tamis_sequence_stats){.shortest = s->shortest};
    const tms_tree *tree = tms_tree_of(s);
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++)
        out->slots += s->lanes[lane].length;
    count_held(cache, s, out);
    for (uint32_t i = 1; tree && i < tree->n_branches; i++)
        count_held(cache, tree->branches[i], out);
    if (tms_journal_of(s)) count_held(cache, s->journal, out);
    out->bytes_held = out->pages * unit_bytes(cache);
    return TAMIS_OK;
}
