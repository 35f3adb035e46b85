/* SPDX-License-Identifier: Apache-2.0 */
/* Views: caches over K and V of the caller's, with bounds of their own. */
#include "lib/cache/cache.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- A view ---------------------------------------------------------------------------------- */

static void end(tms_life *life) {
    tamis_cache *c = (tamis_cache *)life;
    tms_view *view = c->view;
    for (uint32_t layer = 0; view && view->bounds && layer < c->params.n_layers; layer++)
        tms_device_free(c->context->dev, view->bounds[layer]);
    if (view) {
        free(view->bounds);
        free(view->layers);
    }
    free(view);
    free(c);
}

/* Elements of all bounds of a layer, and where those of a page and of a KV head begin. */
static uint64_t place_bounds(const tamis_cache_params *p, uint32_t n_pages, tms_kv *kv) {
    kv->bounds_dtype = tms_cache_bounds_dtype(p);
    kv->bounds_head_stride = tms_bounds_pair(kv->bounds_dtype, p->head_dim);
    kv->bounds_page_stride = p->n_kv_heads * kv->bounds_head_stride;
    return n_pages * kv->bounds_page_stride;
}

static tamis_status take_memory(tamis_cache *cache, const tms_kv *layers, uint32_t n_pages,
                                tamis_error *error) {
    const tamis_cache_params *p = &cache->params;
    tms_view *view = cache->view = calloc(1, sizeof *cache->view);
    TMS_REQUIRE(view, TAMIS_E_NO_MEMORY, "no host memory for a view");
    view->n_pages = n_pages;
    view->layers = calloc(p->n_layers, sizeof *view->layers);
    view->bounds = calloc(p->n_layers, sizeof *view->bounds);
    TMS_REQUIRE(view->layers && view->bounds, TAMIS_E_NO_MEMORY,
                "no host memory for a view of %" PRIu32 " layers", p->n_layers);
    for (uint32_t layer = 0; layer < p->n_layers; layer++) {
        tms_kv *kv = &view->layers[layer];
        *kv = layers[layer];
        const uint64_t bytes = place_bounds(p, n_pages, kv) * tms_kv_unit(kv->bounds_dtype);
        TMS_TRY(tms_device_alloc(cache->context->dev, bytes, &view->bounds[layer], error));
        kv->bounds = (tms_ref){view->bounds[layer], 0};
        cache->size.reserved_bytes += bytes;
    }
    return TAMIS_OK;
}

tamis_status tms_view_create(tamis_context *context, const tamis_cache_params *params,
                             const tms_kv *layers, uint32_t n_pages, tamis_cache **out,
                             tamis_error *error) {
    const tamis_dtype bounds = tms_cache_bounds_dtype(params);
    tamis_cache *cache = calloc(1, sizeof *cache);
    *out = NULL;
    TMS_REQUIRE(cache, TAMIS_E_NO_MEMORY, "no host memory for a view");
    tms_life_begin(&cache->life, "view", &context->life, NULL, end);
    cache->context = context;
    cache->params = *params;
    cache->params.capacity_tokens = (uint64_t)n_pages * params->page_size;
    cache->size = (tamis_cache_size){
        .pages = n_pages,
        .page_bytes = tms_key_bytes(params->dtype, params->page_size, params->head_dim) +
                      tms_value_bytes(params->dtype, params->page_size, params->head_dim),
        .bounds_bytes = tms_bounds_pair(bounds, params->head_dim) * tms_kv_unit(bounds)};
    cache->bounds_serial = 1;
    cache->n_lanes = params->n_layers * params->n_kv_heads;
    cache->n_lists = 1;
    const tamis_status status = take_memory(cache, layers, n_pages, error);
    if (status == TAMIS_OK)
        *out = cache;
    else
        tms_life_close(&cache->life, NULL);
    return status;
}

tamis_status tms_view_refuse(const tamis_cache *cache, const char *what, tamis_error *error) {
    TMS_REQUIRE(!cache || !cache->view, TAMIS_E_UNSUPPORTED,
                "%s: the cache is a view of memory that the caller fills", what);
    return TAMIS_OK;
}

/* ---- Its sequences --------------------------------------------------------------------------- */

/* The first entry at which two lists differ, or the shorter one ends. */
static uint32_t first_difference(const int32_t *a, uint32_t n_a, const int32_t *b, uint32_t n_b) {
    const uint32_t n = n_a < n_b ? n_a : n_b;
    uint32_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

tamis_status tms_view_set_sequence(const tamis_cache *view, tms_sequence *sequence,
                                   const int32_t *pages, uint32_t length, uint32_t rows,
                                   tamis_error *error) {
    const uint32_t before = tms_pages_of(view, sequence->lanes[0].length);
    const uint32_t n = tms_pages_of(view, length);
    TMS_REQUIRE(tms_sequence_make_room(view, sequence, length), TAMIS_E_NO_MEMORY,
                "no host memory for a list of %" PRIu32 " pages", n);
    const uint32_t same = first_difference(sequence->pages, before, pages, n);
    if (same < before) tms_changes_note(&sequence->changes, same);
    memcpy(sequence->pages + same, pages + same, (n - same) * sizeof *pages);
    for (uint32_t lane = 0; lane < view->n_lanes; lane++)
        sequence->lanes[lane] = (tms_lane){.length = length, .grown = rows};
    sequence->length = length;
    sequence->stepped_from = length - rows;
    return TAMIS_OK;
}

/* ---- Its steps ------------------------------------------------------------------------------- */

tamis_status tms_view_open_step(tamis_cache *view, tamis_error *error) {
    TMS_REQUIRE(!view->step_open, TAMIS_E_STATE, "a step on the view is open");
    view->step_open = true;
    return TAMIS_OK;
}
