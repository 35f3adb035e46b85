/* SPDX-License-Identifier: Apache-2.0 */
/* The controller: from what loading and computing take, the share of the hits to compute and the
 * tier to store in. */
#include "lib/blend/blend.h"

#include <inttypes.h>
#include <math.h>

#define DEFAULT_LEAST 0.15

static tamis_status check_time(const char *name, double us, tamis_error *error) {
    TMS_REQUIRE(isfinite(us) && us >= 0, TAMIS_E_ARGUMENT,
                "%s is %g; it must be finite and not negative", name, us);
    return TAMIS_OK;
}

static tamis_status check_share(const char *name, double share, tamis_error *error) {
    TMS_REQUIRE(share >= 0 && share <= 1, TAMIS_E_ARGUMENT, "%s is %g; it must be 0 to 1", name,
                share);
    return TAMIS_OK;
}

/* Checks costs, and fills in what 0 stands for. */
static tamis_status fill_costs(const tamis_blend_costs *costs, tamis_blend_costs *out,
                               tamis_error *error) {
    TMS_REQUIRE(costs, TAMIS_E_ARGUMENT, "costs is NULL");
    TMS_REQUIRE_RESERVED(costs, tamis_blend_costs);
    TMS_TRY(check_time("load_us", costs->load_us, error));
    TMS_TRY(check_time("compute_us", costs->compute_us, error));
    TMS_REQUIRE(costs->compute_us > 0, TAMIS_E_ARGUMENT, "compute_us is 0");
    TMS_REQUIRE(costs->hits > 0 || (costs->exact == 0 && costs->fresh == 0), TAMIS_E_ARGUMENT,
                "no hits beside %" PRIu64 " exact and %" PRIu64 " fresh rows", costs->exact,
                costs->fresh);
    TMS_TRY(check_share("least", costs->least, error));
    TMS_TRY(check_share("most", costs->most, error));
    *out = *costs;
    if (out->hits == 0) out->hits = 1;
    if (out->least == 0) out->least = DEFAULT_LEAST;
    if (out->most == 0) out->most = 1;
    TMS_REQUIRE(costs->most == 0 || out->least <= out->most, TAMIS_E_ARGUMENT,
                "least is %g, most %g", out->least, out->most);
    return TAMIS_OK;
}

tamis_status tamis_blend_share(const tamis_blend_costs *costs, double *share, tamis_error *error) {
    tamis_blend_costs c = {.load_us = 0};
    TMS_REQUIRE(share, TAMIS_E_ARGUMENT, "share is NULL");
    TMS_TRY(fill_costs(costs, &c, error));
    const double loading = ((double)c.hits + (double)c.exact) * c.load_us;
    const double hidden = loading - (double)c.fresh * c.compute_us; /* by computing hits */
    *share = fmin(c.most, fmax(c.least, hidden / ((double)c.hits * c.compute_us)));
    return TAMIS_OK;
}

/* Whether `b` is to be taken in the place of `a`, both of which are hidden or neither. */
static bool is_better(const tamis_blend_tier *b, const tamis_blend_tier *a, bool hidden) {
    if (hidden) return b->price < a->price || (b->price == a->price && b->load_us < a->load_us);
    return b->load_us < a->load_us || (b->load_us == a->load_us && b->price < a->price);
}

tamis_status tamis_blend_choose_tier(const tamis_blend_costs *costs, double share,
                                     const tamis_blend_tier *tiers, size_t n_tiers, size_t *chosen,
                                     int *hidden, tamis_error *error) {
    tamis_blend_costs c = {.load_us = 0};
    bool found = false; /* a tier whose loading is hidden */
    size_t best = 0;
    TMS_REQUIRE(chosen, TAMIS_E_ARGUMENT, "chosen is NULL");
    TMS_REQUIRE(tiers && n_tiers > 0, TAMIS_E_ARGUMENT, "there are no tiers");
    TMS_TRY(fill_costs(costs, &c, error));
    TMS_TRY(check_share("share", share, error));
    const double computing = ((double)c.fresh + share * (double)c.hits) * c.compute_us;
    for (size_t i = 0; i < n_tiers; i++) {
        TMS_TRY(tms_reserved_check(tiers[i].reserved, 2, "tamis_blend_tier", error));
        TMS_TRY(check_time("load_us of a tier", tiers[i].load_us, error));
        TMS_REQUIRE(isfinite(tiers[i].price), TAMIS_E_ARGUMENT, "price of tier %zu is %g", i,
                    tiers[i].price);
        const bool hides = ((double)c.hits + (double)c.exact) * tiers[i].load_us <= computing;
        if (i == 0 || (hides && !found) ||
            (hides == found && is_better(&tiers[i], &tiers[best], found)))
            best = i;
        found = found || hides;
    }
    *chosen = best;
    if (hidden) *hidden = found;
    return TAMIS_OK;
}

tamis_status tamis_blend_get_costs(const tamis_blend *blend, tamis_blend_costs *out,
                                   tamis_error *error) {
    TMS_ENTER(blend);
    uint64_t of[3] = {0}, bytes = 0;
    double read = 0, compute = 0, rows = 0;
    TMS_REQUIRE(blend, TAMIS_E_ARGUMENT, "blend is NULL");
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    TMS_REQUIRE(blend->stats.prompts > 0 && !blend->open, TAMIS_E_STATE,
                "no prompt has ended, or one is open");
    const uint32_t first = blend->from + blend->checked; /* behind the check layer */
    for (uint32_t i = first; i < blend->shape.n_layers; i++) {
        const tamis_blend_layer_stats *layer = &blend->layers[i];
        bytes += layer->bytes_read;
        read += layer->read_us;
        compute += layer->compute_us;
        rows += layer->rows_attended;
    }
    for (uint32_t row = 0; row < blend->n_rows; row++)
        of[blend->kinds[row]]++;
    TMS_REQUIRE(bytes > 0 && rows > 0, TAMIS_E_STATE,
                "nothing was loaded from layer %" PRIu32 " on", first);
    const double token = 2.0 * blend->shape.n_kv_heads * blend->shape.head_dim *
                         (double)tamis_dtype_size(blend->params.dtype);
    *out = (tamis_blend_costs){.load_us = read * token / (double)bytes,
                               .compute_us = compute / rows,
                               .hits = of[TMS_ROW_HIT],
                               .exact = of[TMS_ROW_EXACT],
                               .fresh = of[TMS_ROW_FRESH]};
    return TAMIS_OK;
}
