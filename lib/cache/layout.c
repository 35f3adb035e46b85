/* SPDX-License-Identifier: Apache-2.0 */
/* Where a layer's pages, bounds and planes lie. */
#include "lib/cache/cache.h"

tms_pool *tms_cache_pool(const tamis_cache *cache, uint32_t layer) {
    tms_pool *pool = cache->pools;
    while (layer >= pool->first_layer + pool->n_layers)
        pool++;
    return pool;
}

tms_kv tms_cache_kv(const tamis_cache *cache, uint32_t layer) {
    if (cache->view) return cache->view->layers[layer];
    const tms_pool *pool = tms_cache_pool(cache, layer);
    const tamis_cache_params *p = &cache->params;
    uint64_t keys = tms_keys_size(p->dtype, p->page_size, p->head_dim);
    uint64_t values = tms_values_size(p->dtype, p->page_size, p->head_dim);
    tamis_dtype bounds_dtype = tms_cache_bounds_dtype(p);
    return (tms_kv){.data = {pool->data, 0},
                    .bounds = {pool->bounds, 0},
                    .dtype = p->dtype,
                    .bounds_dtype = bounds_dtype,
                    .page_size = p->page_size,
                    .head_dim = p->head_dim,
                    .page_stride = keys + values,
                    .slot_stride = p->head_dim,
                    .value_offset = keys,
                    .bounds_page_stride = tms_bounds_pair(bounds_dtype, p->head_dim)};
}

tms_planes tms_cache_planes(const tamis_cache *cache, uint32_t layer) {
    if (cache->view) return (tms_planes){0};
    const tms_pool *pool = tms_cache_pool(cache, layer);
    return (tms_planes){.positions = {pool->positions, 0}, .scores = {pool->scores, 0}};
}
