/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver does in a layer of the open prompt: loading, measuring, selecting, asking. */
#include "lib/blend/blend.h"

#include <inttypes.h>

static tms_blend_rows present(const tamis_blend *blend) {
    return (tms_blend_rows){.rows = blend->rows, .n = blend->n_present};
}

/* ---- Load ------------------------------------------------------------------------------------ */

static tamis_status upload(tamis_blend *blend, const tms_loaded *loaded, tamis_error *error) {
    TMS_TRY(tms_ring_upload(&blend->ring, loaded, error));
    blend->next_upload++;
    blend->stats.uploads++;
    return TAMIS_OK;
}

/* What has been read for the layers behind goes to the device, while it computes this one. Where a
 * read has failed, its layer deals with that. */
static tamis_status upload_ahead(tamis_blend *blend, tamis_error *error) {
    while (blend->next_upload < blend->n_reads) {
        const tms_loaded *loaded = tms_loader_peek(&blend->loader, blend->next_upload);
        if (!loaded || loaded->status != TAMIS_OK) break;
        TMS_TRY(upload(blend, loaded, error));
        blend->stats.uploads_ahead++;
    }
    return TAMIS_OK;
}

/* The planes into the rows' slots. */
static tamis_status load(tamis_blend *blend, const tms_loaded *loaded, tamis_error *error) {
    const tamis_blend_params *p = &blend->params;
    const tms_part *part = &blend->parts[loaded->read->part];
    tamis_stored_rows rows = {.rotation = p->rotation, .eps = p->eps};
    rows.k.dtype = rows.v.dtype = p->dtype;
    rows.v.buffer = blend->ring.device;
    if (blend->k_norms) rows.k_norm = blend->k_norms[loaded->read->layer];
    if (loaded->k) rows.k.buffer = blend->ring.device;
    if (blend->next_upload == blend->next_read) TMS_TRY(upload(blend, loaded, error));
    TMS_TRY(tms_ring_await(&blend->ring, loaded, &rows.k.offset, &rows.v.offset, error));
    TMS_TRY(
        tamis_plan_load_rows(blend->plan, loaded->read->layer, part->first, part->n, &rows, error));
    return tms_ring_release(&blend->ring, loaded, error);
}

static void count_read(tamis_blend *blend, const tms_loaded *loaded) {
    tamis_blend_layer_stats *layer = &blend->layers[loaded->read->layer];
    const uint64_t bytes =
        (uint64_t)(loaded->read->k + loaded->read->v) * loaded->read->plane_bytes;
    layer->wait_us += loaded->wait_us;
    layer->read_us += loaded->read_us;
    blend->stats.wait_us += loaded->wait_us;
    blend->stats.read_us += loaded->read_us;
    if (loaded->status != TAMIS_OK) return;
    layer->bytes_read += bytes;
    blend->stats.bytes_read += bytes;
}

/* Begins the prompt's step once more. */
static tamis_status begin_anew(tamis_blend *blend, tamis_error *error) {
    tms_loader_stop(&blend->loader);
    TMS_TRY(tamis_plan_step_cancel(blend->plan, error));
    blend->open = false;
    return tms_blend_start(blend, error);
}

/* A part's chunk cannot be read: its tokens are fresh. Where all of them still have hidden states,
 * the prompt goes on; else its step begins anew. */
static tamis_status lose(tamis_blend *blend, const tms_loaded *loaded, bool *restarted,
                         tamis_error *error) {
    const uint32_t layer = loaded->read->layer, p = loaded->read->part;
    tms_part *part = &blend->parts[p];
    blend->stats.parts_damaged += loaded->status == TAMIS_E_DAMAGED;
    blend->stats.parts_failed += loaded->status == TAMIS_E_IO;
    *restarted = part->exact || !tms_blend_checks(blend) || layer > blend->from;
    tms_loader_stop(&blend->loader);
    tamis_chunk_release(&part->chunk);
    if (!*restarted) {
        tms_blend_make_fresh(blend, part);
        return tms_blend_read_from(blend, layer, p + 1, error);
    }
    blend->stats.restarts++;
    blend->ranked = false; /* what is reused is no longer the same */
    return begin_anew(blend, error);
}

/* Loads what the layer needs of the parts. */
static tamis_status load_parts(tamis_blend *blend, uint32_t layer, bool *restarted,
                               tamis_error *error) {
    while (blend->next_read < blend->n_reads && blend->reads[blend->next_read].layer == layer) {
        const tms_loaded *loaded = tms_loader_take(&blend->loader);
        count_read(blend, loaded);
        if (loaded->status == TAMIS_E_DAMAGED || loaded->status == TAMIS_E_IO) {
            TMS_TRY(lose(blend, loaded, restarted, error));
            if (*restarted) return TAMIS_OK;
            continue;
        }
        if (loaded->status != TAMIS_OK)
            return tms_error_set(error, loaded->status, "%s", loaded->error.text);
        TMS_TRY(load(blend, loaded, error));
        tms_loader_give(&blend->loader);
        blend->next_read++;
    }
    return TAMIS_OK;
}

/* Loads, and counts the time of it and that of the layer before. */
static tamis_status load_layer(tamis_blend *blend, uint32_t layer, bool *restarted,
                               tamis_error *error) {
    tamis_blend_layer_stats *of = &blend->layers[layer];
    TMS_TRY(tms_blend_settle(blend, error));
    tms_blend_count_compute(blend, layer);
    const double begun = tms_now_us(), waited = of->wait_us;
    TMS_TRY(load_parts(blend, layer, restarted, error));
    TMS_TRY(tms_blend_settle(blend, error));
    if (*restarted) return TAMIS_OK; /* the times of layers begin anew */
    const double us = tms_now_us() - begun - (of->wait_us - waited);
    of->load_us += us;
    blend->stats.load_us += us;
    return TAMIS_OK;
}

tamis_status tms_blend_layer(tamis_blend *blend, uint32_t layer, tms_blend_rows *out,
                             bool *restarted, tamis_error *error) {
    TMS_ENTER(blend);
    *restarted = false;
    TMS_TRY(load_layer(blend, layer, restarted, error));
    TMS_TRY(upload_ahead(blend, error));
    *out = present(blend);
    if (!*restarted) {
        blend->layers[layer].rows_computed = blend->n_present;
        blend->stats.rows_computed += blend->n_present;
    }
    blend->left_at = tms_now_us();
    return TAMIS_OK;
}

/* ---- Measure and select ---------------------------------------------------------------------- */

/* The deviation of the rows, and with a gate their norms. */
static tamis_status measure(tamis_blend *blend, uint32_t layer, const tamis_rows *v,
                            tamis_error *error) {
    const tamis_place out = {.buffer = blend->deviation},
                      norms = {.buffer = blend->deviation, .offset = blend->norms_at};
    return tamis_plan_row_deviations(blend->plan, layer, v, 1, &out,
                                     tms_blend_gates(blend, layer) ? &norms : NULL, error);
}

tamis_status tms_blend_compare(tamis_blend *blend, uint32_t layer, const tamis_rows *v,
                               tamis_error *error) {
    TMS_ENTER(blend);
    return tms_blend_measures(blend, layer) ? measure(blend, layer, v, error) : TAMIS_OK;
}

/* All hits are fresh from now on: none has been left out. */
static tamis_status recompute(tamis_blend *blend, uint32_t layer, tamis_error *error) {
    blend->stats.gated++;
    tms_loader_stop(&blend->loader);
    for (uint32_t p = 0; p < blend->n_parts; p++)
        if (!blend->parts[p].exact) tamis_chunk_release(&blend->parts[p].chunk);
    tms_blend_fill_rows(blend);
    return tms_blend_read_from(blend, layer + 1, 0, error);
}

/* How many rows stay, at the front. */
static tamis_status choose_rows(tamis_blend *blend, uint32_t layer, uint32_t *n,
                                tamis_error *error) {
    const uint64_t bytes = blend->n_present * sizeof *blend->deviations;
    const bool gates = tms_blend_gates(blend, layer);
    if (tms_blend_measures(blend, layer))
        TMS_TRY(tamis_buffer_read(blend->deviation, 0, blend->deviations, bytes, error));
    if (gates)
        TMS_TRY(tamis_buffer_read(blend->deviation, blend->norms_at, blend->norms, bytes, error));
    *n = tms_blend_choose(blend, layer);
    if (!gates) return TAMIS_OK;
    blend->stats.left = tms_blend_left(blend, *n);
    if (blend->stats.left <= blend->params.bound) return TAMIS_OK;
    *n = blend->n_present;
    return recompute(blend, layer, error);
}

static tamis_status select_rows(tamis_blend *blend, uint32_t layer, tms_blend_rows *out,
                                tamis_error *error) {
    const uint32_t before = blend->n_present;
    uint32_t n = 0;
    TMS_TRY(choose_rows(blend, layer, &n, error));
    if (n < before) TMS_TRY(tamis_plan_step_keep_rows(blend->plan, blend->rows, n, error));
    blend->n_present = n;
    *out = present(blend);
    if (n < before) out->places = blend->places;
    return TAMIS_OK;
}

tamis_status tms_blend_select(tamis_blend *blend, uint32_t layer, tms_blend_rows *out,
                              tamis_error *error) {
    TMS_ENTER(blend);
    *out = present(blend);
    if (tms_blend_selects(blend, layer)) TMS_TRY(select_rows(blend, layer, out, error));
    blend->layers[layer].rows_attended = blend->n_present;
    return TAMIS_OK;
}

/* ---- Observe --------------------------------------------------------------------------------- */

/* The question attends to what is reused; after the last layer the prompt begins anew, with its hits
 * ranked. */
static tamis_status ask(tamis_blend *blend, uint32_t layer, const tamis_rows *q, bool *restarted,
                        tamis_error *error) {
    TMS_TRY(tamis_plan_row_masses(blend->plan, layer, q, blend->n_rows - blend->question,
                                  blend->masses, error));
    *restarted = layer + 1 == blend->shape.n_layers;
    if (!*restarted) return TAMIS_OK;
    const double now = tms_now_us();
    blend->stats.compute_us += now - blend->left_at;
    blend->stats.ask_us += now - blend->started_at;
    blend->stats.asked++;
    blend->ranked = true;
    return begin_anew(blend, error);
}

tamis_status tms_blend_observe(tamis_blend *blend, uint32_t layer, const tamis_rows *q,
                               bool *restarted, tamis_error *error) {
    TMS_ENTER(blend);
    *restarted = false;
    return blend->asking ? ask(blend, layer, q, restarted, error) : TAMIS_OK;
}
