/* SPDX-License-Identifier: Apache-2.0 */
/* The bounds of a cache, and a change of their kind, which computes the bounds of all full pages
 * again. */
#include "lib/cache/cache.h"
#include "lib/core/text_file.h"
#include <tamis/view.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

tamis_status tms_cache_check_bounds(const tamis_cache *cache, tamis_error *error) {
    TMS_REQUIRE(!cache->bounds_missing, TAMIS_E_STATE,
                "a call that was to compute bounds of full pages failed half way to %s; "
                "tamis_cache_set_bounds must come first, with any kind",
                tamis_bounds_name(cache->params.bounds.kind));
    return TAMIS_OK;
}

tms_bounds tms_cache_bounds(const tamis_cache *cache, uint32_t layer) {
    return (tms_bounds){.kv = tms_cache_kv(cache, layer),
                        .n_kv_heads = cache->view ? cache->params.n_kv_heads : 1,
                        .kind = cache->params.bounds.kind,
                        .width = cache->params.bounds.width};
}

/* Page ids of one upload and launch. */
#define CHUNK_PAGES 4096u

/* The pages of a pool whose bounds are to be computed, and the chunk of them that is being
 * gathered. */
typedef struct renewal {
    tms_device *dev;
    tms_bounds launch; /* of the pool; its pages are CHUNK_PAGES ids on the device */
    uint32_t *seen;    /* a bit for each page of the largest pool: gathered before */
    int32_t *chunk;    /* [CHUNK_PAGES] */
} renewal;

static tamis_status send_chunk(renewal *r, tamis_error *error) {
    uint64_t bytes = r->launch.n * sizeof *r->chunk;
    if (r->launch.n == 0) return TAMIS_OK;
    TMS_TRY(tms_device_write(r->dev, r->launch.pages, r->chunk, bytes, error));
    TMS_TRY(tms_run_bounds(r->dev, &r->launch, error));
    r->launch.n = 0;
    return TAMIS_OK;
}

/* Gathers the full pages of a lane, without those that were gathered for an earlier lane. */
static tamis_status renew_lane(renewal *r, const int32_t *list, uint32_t n_full,
                               tamis_error *error) {
    for (uint32_t i = 0; i < n_full; i++) {
        uint32_t *word = &r->seen[list[i] / 32], bit = 1u << list[i] % 32;
        if (*word & bit) continue;
        *word |= bit;
        r->chunk[r->launch.n++] = list[i];
        if (r->launch.n == CHUNK_PAGES) TMS_TRY(send_chunk(r, error));
    }
    return TAMIS_OK;
}

/* Gathers the full pages of a sequence's lanes in a pool. */
static tamis_status renew_sequence(renewal *r, const tamis_cache *cache, const tms_pool *pool,
                                   const tms_sequence *s, tamis_error *error) {
    for (uint32_t i = tms_first_lane(cache, pool); i < tms_end_lane(cache, pool); i++) {
        const uint32_t n_full = s->lanes[i].length / cache->params.page_size,
                       gone = s->lanes[i].gone;
        if (gone < n_full)
            TMS_TRY(renew_lane(r, tms_lane_pages(s, i) + gone, n_full - gone, error));
    }
    return TAMIS_OK;
}

/* The same with its branches, if it has a tree. */
static tamis_status renew_branches(renewal *r, const tamis_cache *cache, const tms_pool *pool,
                                   const tms_sequence *s, tamis_error *error) {
    const tms_tree *tree = tms_tree_of(s);
    TMS_TRY(renew_sequence(r, cache, pool, s, error));
    for (uint32_t i = 1; tree && i < tree->n_branches; i++)
        TMS_TRY(renew_sequence(r, cache, pool, tree->branches[i], error));
    return TAMIS_OK;
}

/* Of one sequence, or of all where it is NULL. */
static tamis_status renew_pool(renewal *r, const tamis_cache *cache, const tms_pool *pool,
                               const tms_sequence *one, tamis_error *error) {
    tms_ref pages = r->launch.pages;
    r->launch = tms_cache_bounds(cache, pool->first_layer);
    r->launch.pages = pages;
    memset(r->seen, 0, (pool->pages.n / 32 + 1) * sizeof *r->seen);
    if (one) TMS_TRY(renew_branches(r, cache, pool, one, error));
    for (uint32_t i = 0; !one && i < cache->sequence_capacity; i++)
        if (cache->sequences[i])
            TMS_TRY(renew_branches(r, cache, pool, cache->sequences[i], error));
    return send_chunk(r, error);
}

/* Allocates the memory that the renewal of any pool needs. */
static tamis_status take_work(renewal *r, const tamis_cache *cache, tamis_error *error) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < cache->size.pools; i++)
        if (cache->pools[i].pages.n > most) most = cache->pools[i].pages.n;
    r->seen = malloc((most / 32 + 1) * sizeof *r->seen);
    r->chunk = malloc(CHUNK_PAGES * sizeof *r->chunk);
    TMS_REQUIRE(r->seen && r->chunk, TAMIS_E_NO_MEMORY, "no host memory to list %" PRIu32 " pages",
                most);
    return tms_device_alloc(r->dev, CHUNK_PAGES * sizeof *r->chunk, &r->launch.pages.mem, error);
}

static void free_work(renewal *r) {
    tms_device_free(r->dev, r->launch.pages.mem);
    free(r->chunk);
    free(r->seen);
}

tamis_status tamis_cache_set_bounds(tamis_cache *cache, const tamis_bounds *bounds,
                                    tamis_error *error) {
    TMS_ENTER(cache);
    TMS_REQUIRE(cache, TAMIS_E_ARGUMENT, "cache is NULL");
    TMS_REQUIRE(bounds, TAMIS_E_ARGUMENT, "bounds is NULL");
    tamis_bounds filled = *bounds;
    TMS_TRY(tms_view_refuse(cache, "tamis_cache_set_bounds", error));
    TMS_TRY(tms_bounds_fill(&filled, error));
    TMS_REQUIRE(!cache->step_open, TAMIS_E_STATE, "a step on the cache is open");
    renewal r = {.dev = cache->context->dev};
    tamis_status status = take_work(&r, cache, error);
    if (status != TAMIS_OK) goto done;
    cache->params.bounds = filled;
    cache->bounds_missing = true;
    cache->bounds_serial++;
    for (uint32_t i = 0; i < cache->size.pools && status == TAMIS_OK; i++)
        status = renew_pool(&r, cache, &cache->pools[i], NULL, error);
    cache->bounds_missing = status != TAMIS_OK;
done:
    free_work(&r);
    return status;
}

tamis_status tms_cache_renew_bounds(tamis_cache *cache, const tms_sequence *sequence,
                                    tamis_error *error) {
    renewal r = {.dev = cache->context->dev};
    tamis_status status = take_work(&r, cache, error);
    for (uint32_t i = 0; i < cache->size.pools && status == TAMIS_OK; i++)
        status = renew_pool(&r, cache, &cache->pools[i], sequence, error);
    free_work(&r);
    return status;
}

tamis_status tamis_view_bound_pages(tamis_cache *view, const int32_t *pages, uint32_t n,
                                    tamis_error *error) {
    TMS_ENTER(view);
    TMS_REQUIRE(view && view->view, TAMIS_E_ARGUMENT, "%s", view ? "no view" : "view is NULL");
    TMS_REQUIRE(pages || n == 0, TAMIS_E_ARGUMENT, "pages is NULL");
    for (uint32_t i = 0; i < n; i++)
        TMS_REQUIRE(pages[i] >= 0 && (uint32_t)pages[i] < view->view->n_pages, TAMIS_E_ARGUMENT,
                    "page %" PRIu32 " is %" PRId32 ": the view has %" PRIu32 " pages", i, pages[i],
                    view->view->n_pages);
    TMS_REQUIRE(!view->step_open, TAMIS_E_STATE, "a step on the view is open");
    tms_device *dev = view->context->dev;
    tms_mem *ids = NULL;
    TMS_TRY(tms_device_alloc(dev, CHUNK_PAGES * sizeof *pages, &ids, error));
    tamis_status status = TAMIS_OK;
    for (uint32_t at = 0; at < n && status == TAMIS_OK; at += CHUNK_PAGES) {
        const uint32_t left = n - at, some = left < CHUNK_PAGES ? left : CHUNK_PAGES;
        status = tms_device_write(dev, (tms_ref){ids, 0}, pages + at, some * sizeof *pages, error);
        for (uint32_t layer = 0; layer < view->params.n_layers && status == TAMIS_OK; layer++) {
            tms_bounds bounds = tms_cache_bounds(view, layer);
            bounds.pages = (tms_ref){ids, 0};
            bounds.n = some;
            status = tms_run_bounds(dev, &bounds, error);
        }
    }
    tms_device_free(dev, ids); /* behind what is enqueued */
    return status;
}

void tamis_cache_get_bounds(const tamis_cache *cache, tamis_bounds *out) {
    TMS_ENTER_WAITING(cache);
    if (cache && out) *out = cache->params.bounds;
}
