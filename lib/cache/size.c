/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that a cache would take: checks its parameters, counts its pages and pools. */
#include "lib/cache/cache.h"

#include <inttypes.h>

#define ALL_PLANES ((uint32_t)TAMIS_PLANE_POSITIONS | (uint32_t)TAMIS_PLANE_SCORES)

tamis_status tms_cache_check_heads(const tamis_cache_params *p, tamis_error *error) {
    TMS_REQUIRE(p->n_layers > 0, TAMIS_E_ARGUMENT, "n_layers is 0");
    TMS_REQUIRE(p->n_kv_heads > 0, TAMIS_E_ARGUMENT, "n_kv_heads is 0");
    TMS_REQUIRE(p->n_heads > 0 && p->n_heads % p->n_kv_heads == 0, TAMIS_E_ARGUMENT,
                "n_heads %" PRIu32 " is not a multiple of n_kv_heads %" PRIu32, p->n_heads,
                p->n_kv_heads);
    TMS_REQUIRE(p->n_heads / p->n_kv_heads <= TMS_MOST_GROUP, TAMIS_E_UNSUPPORTED,
                "%" PRIu32 " query heads to %" PRIu32 " KV heads make groups of %" PRIu32
                "; at most %d are supported",
                p->n_heads, p->n_kv_heads, p->n_heads / p->n_kv_heads, TMS_MOST_GROUP);
    TMS_REQUIRE((uint64_t)p->n_layers * p->n_kv_heads <= TMS_MOST_LANES, TAMIS_E_UNSUPPORTED,
                "n_layers %" PRIu32 " times n_kv_heads %" PRIu32 " exceeds %u lanes", p->n_layers,
                p->n_kv_heads, TMS_MOST_LANES);
    return TAMIS_OK;
}

static tamis_status check_shape(tamis_cache_params *p, tamis_error *error) {
    TMS_REQUIRE_RESERVED(p, tamis_cache_params);
    if (p->page_size == 0) p->page_size = 16;
    TMS_TRY(tms_cache_check_heads(p, error));
    TMS_REQUIRE(tms_head_dim_known(p->head_dim), TAMIS_E_UNSUPPORTED,
                "head_dim %" PRIu32 " is not supported; " TMS_HEAD_DIM_WORDS " are", p->head_dim);
    TMS_REQUIRE(p->page_size == 8 || p->page_size == 16 || p->page_size == 32 || p->page_size == 64,
                TAMIS_E_UNSUPPORTED, "page_size %" PRIu32 " is not supported; 8, 16, 32 and 64 are",
                p->page_size);
    TMS_REQUIRE(tms_dtype_known(p->dtype), TAMIS_E_ARGUMENT, "dtype %d is none of" TMS_DTYPE_WORDS,
                (int)p->dtype);
    TMS_REQUIRE(p->bounds_dtype == TAMIS_BOUNDS_AS_CACHE || p->bounds_dtype == TAMIS_BOUNDS_Q8,
                TAMIS_E_ARGUMENT, "bounds_dtype %d is neither that of the cache (0) nor q8 (1)",
                (int)p->bounds_dtype);
    TMS_REQUIRE((p->capacity_tokens == 0) != (p->capacity_bytes == 0), TAMIS_E_ARGUMENT,
                "exactly one of capacity_tokens %" PRIu64 " and capacity_bytes %" PRIu64
                " must be given",
                p->capacity_tokens, p->capacity_bytes);
    TMS_REQUIRE(!(p->planes & ~ALL_PLANES), TAMIS_E_ARGUMENT,
                "planes 0x%" PRIx32 " has bits of no plane; 0x%" PRIx32 " are all", p->planes,
                ALL_PLANES);
    TMS_REQUIRE(p->planes != TAMIS_PLANE_SCORES, TAMIS_E_ARGUMENT,
                "planes 0x%" PRIx32 " has scores without positions", p->planes);
    return tms_bounds_fill(&p->bounds, error);
}

uint64_t tms_layers_pages(const tamis_cache_params *params, uint32_t first, uint32_t n) {
    uint64_t pages = 0;
    for (uint32_t layer = first; layer < first + n; layer++)
        pages += tms_divide_up(tms_layer_capacity(params, layer), params->page_size);
    return pages * params->n_kv_heads;
}

/* Capacities of single layers are no larger than that of all. */
static tamis_status check_layer_tokens(const tamis_cache_params *p, tamis_error *error) {
    TMS_REQUIRE(!p->layer_tokens || p->capacity_tokens, TAMIS_E_ARGUMENT,
                "layer_tokens go with capacity_tokens, not with capacity_bytes %" PRIu64,
                p->capacity_bytes);
    for (uint32_t layer = 0; p->layer_tokens && layer < p->n_layers; layer++)
        TMS_REQUIRE(p->layer_tokens[layer] <= p->capacity_tokens, TAMIS_E_ARGUMENT,
                    "layer_tokens of layer %" PRIu32 " is %" PRIu64
                    ", above capacity_tokens %" PRIu64,
                    layer, p->layer_tokens[layer], p->capacity_tokens);
    return TAMIS_OK;
}

/* The number of pages that every layer gets, or the largest; it has at least one page for each of its
 * lanes. */
static tamis_status count_layer_pages(const tamis_cache_params *p, uint64_t unit_bytes,
                                      uint64_t *layer_pages, tamis_error *error) {
    uint64_t most = INT32_MAX;
    if (p->capacity_tokens) {
        uint64_t lane = (p->capacity_tokens - 1) / p->page_size + 1;
        TMS_REQUIRE(lane <= most / p->n_kv_heads, TAMIS_E_ARGUMENT,
                    "capacity_tokens %" PRIu64 " takes more than %" PRIu64 " pages a layer",
                    p->capacity_tokens, most);
        *layer_pages = lane * p->n_kv_heads;
        return TAMIS_OK;
    }
    uint64_t least = unit_bytes * p->n_layers * p->n_kv_heads;
    TMS_REQUIRE(p->capacity_bytes >= least, TAMIS_E_ARGUMENT,
                "capacity_bytes %" PRIu64 " holds less than one page a lane, %" PRIu64 " bytes",
                p->capacity_bytes, least);
    *layer_pages = p->capacity_bytes / unit_bytes / p->n_layers;
    TMS_REQUIRE(*layer_pages <= most, TAMIS_E_ARGUMENT,
                "capacity_bytes %" PRIu64 " makes more than %" PRIu64 " pages a layer",
                p->capacity_bytes, most);
    return TAMIS_OK;
}

tamis_status tms_cache_measure(const tms_device *dev, tamis_cache_params *params,
                               tamis_cache_size *size, tamis_error *error) {
    TMS_TRY(check_shape(params, error));
    const tamis_dtype bounds = tms_cache_bounds_dtype(params);
    uint64_t page = tms_key_bytes(params->dtype, params->page_size, params->head_dim) +
                    tms_value_bytes(params->dtype, params->page_size, params->head_dim);
    uint64_t pair = tms_bounds_pair(bounds, params->head_dim);
    uint64_t n_planes = (uint64_t)__builtin_popcount(params->planes);
    tamis_cache_size result = {.page_bytes = page,
                               .bounds_bytes = pair * tms_kv_unit(bounds),
                               .plane_bytes = n_planes * params->page_size * sizeof(int32_t)};
    uint64_t unit_bytes = result.page_bytes + result.bounds_bytes + result.plane_bytes;
    uint64_t layer_pages = 0;
    TMS_TRY(check_layer_tokens(params, error));
    TMS_TRY(count_layer_pages(params, unit_bytes, &layer_pages, error));
    uint64_t layer_bytes = layer_pages * result.page_bytes,
             limit = tms_device_info(dev)->max_buffer_bytes;
    TMS_REQUIRE(layer_bytes <= limit, TAMIS_E_NO_MEMORY,
                "one layer takes %" PRIu64 " bytes; the largest allocation of %s is %" PRIu64,
                layer_bytes, tms_device_info(dev)->id, limit);
    uint64_t by_bytes = limit / layer_bytes, by_ids = INT32_MAX / layer_pages;
    uint64_t layers_a_pool = by_bytes < by_ids ? by_bytes : by_ids;
    result.pools = (uint32_t)((params->n_layers - 1) / layers_a_pool + 1);
    result.pages = layer_pages * params->n_layers;
    if (params->layer_tokens) result.pages = tms_layers_pages(params, 0, params->n_layers);
    result.reserved_bytes = result.pages * unit_bytes;
    *size = result;
    return TAMIS_OK;
}

uint32_t tms_pool_layers(const tamis_cache_params *params, uint32_t n_pools, uint32_t pool,
                         uint32_t *first) {
    *first = (uint32_t)((uint64_t)params->n_layers * pool / n_pools);
    return (uint32_t)((uint64_t)params->n_layers * (pool + 1) / n_pools) - *first;
}

tamis_status tamis_cache_measure(tamis_context *context, const tamis_cache_params *params,
                                 tamis_cache_size *out, tamis_error *error) {
    TMS_ENTER(context);
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context is NULL");
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params is NULL");
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    tamis_cache_params filled = *params;
    return tms_cache_measure(context->dev, &filled, out, error);
}
