/* SPDX-License-Identifier: Apache-2.0 */
/* Views: the caller's description of K and V, checked as those of the ops are. */
#include "lib/cache/cache.h"
#include "lib/op_calls/check.h"
#include <tamis/view.h>

#include <inttypes.h>
#include <stdlib.h>

static tamis_status check_shape(const tamis_view_params *p, tamis_error *error) {
    TMS_REQUIRE(p->n_layers > 0, TAMIS_E_ARGUMENT, "n_layers is 0");
    TMS_REQUIRE(p->layers, TAMIS_E_ARGUMENT, "layers is NULL");
    TMS_REQUIRE(p->n_kv_heads > 0, TAMIS_E_ARGUMENT, "n_kv_heads is 0");
    TMS_REQUIRE(p->n_heads > 0 && p->n_heads % p->n_kv_heads == 0, TAMIS_E_ARGUMENT,
                "n_heads %" PRIu32 " is not a multiple of n_kv_heads %" PRIu32, p->n_heads,
                p->n_kv_heads);
    TMS_REQUIRE(p->n_heads / p->n_kv_heads <= TMS_MOST_GROUP, TAMIS_E_UNSUPPORTED,
                "%" PRIu32 " query heads to %" PRIu32
                " KV heads: groups of at most %d are supported",
                p->n_heads, p->n_kv_heads, TMS_MOST_GROUP);
    TMS_REQUIRE(p->bounds_dtype == TAMIS_BOUNDS_AS_CACHE || p->bounds_dtype == TAMIS_BOUNDS_Q8,
                TAMIS_E_ARGUMENT, "bounds_dtype %d is neither that of K (0) nor q8 (1)",
                (int)p->bounds_dtype);
    return TAMIS_OK;
}

/* Where all layers must be alike, since a page id and a plan's kernels serve all of them. */
static tamis_status check_alike(const tamis_kv *first, const tamis_kv *kv, uint32_t layer,
                                tamis_error *error) {
    const struct {
        const char *name;
        uint32_t of, other;
    } same[] = {{"dtype", (uint32_t)kv->dtype, (uint32_t)first->dtype},
                {"page_size", kv->page_size, first->page_size},
                {"head_dim", kv->head_dim, first->head_dim},
                {"n_pages", kv->n_pages, first->n_pages}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        TMS_REQUIRE(same[i].of == same[i].other, TAMIS_E_ARGUMENT,
                    "layer %" PRIu32 ": %s is %" PRIu32 ", and %" PRIu32 " in layer 0", layer,
                    same[i].name, same[i].of, same[i].other);
    TMS_REQUIRE(!kv->bounds.buffer, TAMIS_E_ARGUMENT,
                "layer %" PRIu32 ": bounds are given, which a view has of its own", layer);
    return TAMIS_OK;
}

static tamis_status describe(tamis_context *context, const tamis_view_params *p, tms_kv *layers,
                             tamis_error *error) {
    for (uint32_t layer = 0; layer < p->n_layers; layer++) {
        tamis_error reason = {0};
        tms_op_call c = {context, false, TAMIS_OK, &reason};
        TMS_TRY(check_alike(&p->layers[0], &p->layers[layer], layer, error));
        layers[layer] = tms_op_kv(&c, &p->layers[layer], p->n_kv_heads, 1, false);
        TMS_REQUIRE(c.status == TAMIS_OK, c.status, "layer %" PRIu32 ": %s", layer, reason.text);
    }
    return TAMIS_OK;
}

tamis_status tamis_view_create(tamis_context *context, const tamis_view_params *params,
                               tamis_cache **out, tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    *out = NULL;
    TMS_ENTER(context);
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context is NULL");
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params is NULL");
    TMS_REQUIRE_RESERVED(params, tamis_view_params);
    TMS_TRY(check_shape(params, error));
    tamis_cache_params shape = {.n_layers = params->n_layers,
                                .n_heads = params->n_heads,
                                .n_kv_heads = params->n_kv_heads,
                                .head_dim = params->layers[0].head_dim,
                                .page_size = params->layers[0].page_size,
                                .dtype = params->layers[0].dtype,
                                .bounds = params->bounds,
                                .bounds_dtype = params->bounds_dtype};
    TMS_TRY(tms_bounds_fill(&shape.bounds, error));
    tms_kv *layers = calloc(params->n_layers, sizeof *layers);
    TMS_REQUIRE(layers, TAMIS_E_NO_MEMORY, "no host memory for a view of %" PRIu32 " layers",
                params->n_layers);
    tamis_status status = describe(context, params, layers, error);
    if (status == TAMIS_OK)
        status = tms_view_create(context, &shape, layers, params->layers[0].n_pages, out, error);
    free(layers);
    return status;
}
