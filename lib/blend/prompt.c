/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning and end of a prompt: finds its chunks, begins the plan's step, starts to read. */
#include "lib/blend/blend.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- What is read ---------------------------------------------------------------------------- */

/* The read of a part's planes in a layer; false: it needs none. */
static bool read_of(const tamis_blend *blend, uint32_t layer, uint32_t p, tms_read *out) {
    const tms_part *part = &blend->parts[p];
    if (!part->chunk) return false;
    const bool whole = part->exact || !tms_blend_checks(blend) || layer > blend->from;
    const bool measured = layer == blend->from && tms_blend_measures(blend, layer);
    tamis_chunk_info info;
    tamis_chunk_get_info(part->chunk, &info);
    *out = (tms_read){.chunk = part->chunk,
                      .layer = layer,
                      .part = p,
                      .k = whole,
                      .v = true,
                      .plane_bytes = info.plane_bytes};
    return whole || measured;
}

/* Bytes that two layers take at most, and the largest read once more: none is cut at the ring's end. */
static uint64_t default_ring(const tamis_blend *blend) {
    uint64_t most = 0, largest = 0;
    for (uint32_t i = 0; i < blend->n_reads;) {
        uint64_t layer_bytes = 0;
        const uint32_t layer = blend->reads[i].layer;
        for (; i < blend->n_reads && blend->reads[i].layer == layer; i++) {
            const uint64_t bytes = tms_read_bytes(&blend->reads[i]);
            layer_bytes += bytes;
            if (bytes > largest) largest = bytes;
        }
        if (layer_bytes > most) most = layer_bytes;
    }
    return 2 * most + largest;
}

static tamis_status check_ring(const tamis_blend *blend, tamis_error *error) {
    for (uint32_t i = 0; i < blend->n_reads && blend->params.ring_bytes; i++)
        TMS_REQUIRE(tms_read_bytes(&blend->reads[i]) <= blend->params.ring_bytes, TAMIS_E_ARGUMENT,
                    "ring_bytes is %" PRIu64 "; a layer of part %" PRIu32 " takes %" PRIu64,
                    blend->params.ring_bytes, blend->reads[i].part,
                    tms_read_bytes(&blend->reads[i]));
    return TAMIS_OK;
}

tamis_status tms_blend_read_from(tamis_blend *blend, uint32_t layer, uint32_t part,
                                 tamis_error *error) {
    const size_t room = (size_t)blend->shape.n_layers * blend->n_parts;
    tms_loader_stop(&blend->loader);
    free(blend->reads);
    blend->n_reads = blend->next_read = blend->next_upload = 0;
    blend->reads = calloc(room, sizeof *blend->reads);
    TMS_REQUIRE(blend->reads, TAMIS_E_NO_MEMORY, "no memory to list %zu reads", room);
    for (; layer < blend->shape.n_layers; layer++, part = 0)
        for (uint32_t p = part; p < blend->n_parts; p++)
            blend->n_reads += read_of(blend, layer, p, &blend->reads[blend->n_reads]);
    TMS_TRY(check_ring(blend, error));
    if (blend->n_reads == 0) return TAMIS_OK;
    const bool threaded = !(blend->params.flags & TAMIS_BLEND_NO_THREAD);
    const uint64_t most = blend->params.ring_bytes ? blend->params.ring_bytes : default_ring(blend);
    const tms_ring_shape shape = tms_reads_place(blend->reads, blend->n_reads, most, threaded);
    TMS_TRY(tms_ring_begin(&blend->ring, &shape, error));
    return tms_loader_start(&blend->loader, blend->reads, blend->n_reads, &shape,
                            tms_ring_host(&blend->ring), threaded, error);
}

/* ---- Start and end --------------------------------------------------------------------------- */

static tamis_status start(tamis_blend *blend, tamis_error *error) {
    const tamis_step step = {
        .sequences = &blend->sequence, .rows = &blend->n_rows, .count = 1, .exact = 1};
    blend->started_at = tms_now_us();
    tms_blend_fill_rows(blend);
    if (blend->asking) memset(blend->masses, 0, blend->n_rows * sizeof *blend->masses);
    memset(blend->layers, 0, blend->shape.n_layers * sizeof *blend->layers);
    blend->stats.left = 0;
    TMS_TRY(tamis_plan_step_begin(blend->plan, &step, error));
    blend->open = true;
    if (blend->n_present < blend->n_rows)
        TMS_TRY(tamis_plan_step_keep_rows(blend->plan, blend->rows, blend->n_present, error));
    return tms_blend_read_from(blend, 0, 0, error);
}

tamis_status tms_blend_start(tamis_blend *blend, tamis_error *error) {
    const tamis_status status = start(blend, error);
    if (status == TAMIS_OK) return TAMIS_OK;
    if (blend->open)
        tms_blend_cancel(blend);
    else
        tms_blend_release(blend);
    return status;
}

void tms_blend_release(tamis_blend *blend) {
    for (uint32_t p = 0; p < blend->n_parts; p++)
        tamis_chunk_release(&blend->parts[p].chunk);
    free(blend->parts);
    blend->parts = NULL;
    blend->n_parts = 0;
}

void tms_blend_cancel(tamis_blend *blend) {
    TMS_ENTER_WAITING(blend);
    if (!blend || !blend->open) return;
    blend->open = false;
    tms_loader_stop(&blend->loader);
    /* E_STATE: the engine has ended the step itself. */
    const tamis_status status = tamis_plan_step_cancel(blend->plan, NULL);
    (void)status;
    tms_blend_release(blend);
}

static void count_prompt(tamis_blend *blend) {
    tamis_blend_stats *stats = &blend->stats;
    uint64_t of[3] = {0}, selected = 0;
    for (uint32_t row = 0; row < blend->n_rows; row++)
        of[blend->kinds[row]]++;
    for (uint32_t i = 0; i < blend->n_present; i++)
        selected += blend->kinds[blend->rows[i]] == TMS_ROW_HIT;
    stats->prompts++;
    stats->tokens_fresh += of[TMS_ROW_FRESH];
    stats->tokens_hit += of[TMS_ROW_HIT];
    stats->tokens_exact += of[TMS_ROW_EXACT];
    stats->tokens_selected += selected;
}

tamis_status tms_blend_end(tamis_blend *blend, tamis_error *error) {
    TMS_ENTER(blend);
    TMS_TRY(tms_blend_settle(blend, error));
    const double us = tms_now_us() - blend->left_at;
    TMS_TRY(tamis_plan_step_end(blend->plan, error));
    blend->layers[blend->shape.n_layers - 1].compute_us += us;
    blend->stats.compute_us += us;
    count_prompt(blend);
    blend->open = false;
    tms_loader_stop(&blend->loader);
    tms_blend_release(blend);
    return TAMIS_OK;
}

/* ---- Begin ----------------------------------------------------------------------------------- */

static tamis_status check_parts(const tamis_blend *blend, const tamis_blend_part *parts,
                                uint32_t n_parts, tamis_error *error) {
    uint64_t total = 0;
    TMS_REQUIRE(parts, TAMIS_E_ARGUMENT, "parts is NULL");
    for (uint32_t p = 0; p < n_parts; p++) {
        TMS_TRY(tms_reserved_check(parts[p].reserved, 2, "tamis_blend_part", error));
        TMS_REQUIRE(parts[p].tokens || parts[p].n_tokens == 0, TAMIS_E_ARGUMENT,
                    "part %" PRIu32 ": tokens is NULL", p);
        total += parts[p].n_tokens;
    }
    TMS_REQUIRE(total > 0, TAMIS_E_ARGUMENT, "the prompt has no tokens");
    TMS_REQUIRE(total <= blend->max_rows, TAMIS_E_ARGUMENT,
                "the prompt has %" PRIu64 " tokens; the plan's max_rows is %" PRIu32, total,
                blend->max_rows);
    const uint32_t last = blend->params.n_rows ? blend->listed[blend->params.n_rows - 1] : 0;
    TMS_REQUIRE(last < total, TAMIS_E_ARGUMENT,
                "row %" PRIu32 " is listed; the prompt has %" PRIu64 " tokens", last, total);
    return TAMIS_OK;
}

/* Looks for a part's chunk. What the store cannot read is a miss. */
static tamis_status look_up(tamis_blend *blend, const tamis_blend_part *part, tms_part *out,
                            tamis_error *error) {
    const tamis_blend_params *p = &blend->params;
    tamis_chunk_id id = {.tokens = part->tokens,
                         .n_tokens = part->n_tokens,
                         .shape = {.n_layers = blend->shape.n_layers,
                                   .n_kv_heads = blend->shape.n_kv_heads,
                                   .head_dim = blend->shape.head_dim,
                                   .dtype = p->dtype,
                                   .cache_dtype = blend->shape.dtype,
                                   .sink = p->n_sink}};
    memcpy(id.fingerprint, p->fingerprint, sizeof id.fingerprint);
    memcpy(id.salt, p->salt, sizeof id.salt);
    const tamis_status status = tamis_store_get(blend->store, &id, &out->chunk, error);
    if (status != TAMIS_OK && status != TAMIS_E_IO) return status;
    blend->stats.parts_failed += status == TAMIS_E_IO;
    blend->stats.parts_found += out->chunk != NULL;
    blend->stats.parts_missed += out->chunk == NULL;
    blend->stats.parts_exact += out->chunk && out->exact;
    return TAMIS_OK;
}

/* Whether the tokens of a part from `row` on are those of the sink, as far as they stand there. */
static bool in_sink(const tamis_blend *blend, const tamis_blend_part *part, uint32_t row) {
    for (uint32_t i = 0; i < part->n_tokens && row + i < blend->params.n_sink; i++)
        if (part->tokens[i] != blend->sink[row + i]) return false;
    return true;
}

/* Places the parts one behind the other and finds their chunks. */
static tamis_status collect(tamis_blend *blend, const tamis_blend_part *parts, uint32_t n_parts,
                            uint32_t length, tamis_error *error) {
    bool sink = length == 0; /* what stands before is the sink so far */
    blend->n_rows = blend->question = 0;
    blend->ranked = false;
    for (uint32_t i = 0; i < n_parts; i++) {
        if (parts[i].n_tokens == 0) continue;
        if (parts[i].stored == TAMIS_BLEND_PREFIX && !blend->everything) { /* the first part */
            sink = in_sink(blend, &parts[i], 0);
            TMS_TRY(tms_blend_find_prefix(blend, &parts[i], error));
            blend->question = blend->n_rows;
            continue;
        }
        tms_part *part = &blend->parts[blend->n_parts++];
        *part = (tms_part){.first = blend->n_rows,
                           .n = parts[i].n_tokens,
                           .exact = sink && blend->n_rows == blend->params.n_sink};
        sink = sink && in_sink(blend, &parts[i], blend->n_rows);
        blend->n_rows += parts[i].n_tokens;
        if (parts[i].stored) blend->question = blend->n_rows;
        if (parts[i].stored && !blend->everything) TMS_TRY(look_up(blend, &parts[i], part, error));
    }
    if (blend->question == blend->n_rows) blend->question--; /* the last token asks */
    return TAMIS_OK;
}

tamis_status tms_blend_begin(tamis_blend *blend, tamis_sequence sequence,
                             const tamis_blend_part *parts, uint32_t n_parts, tamis_error *error) {
    TMS_ENTER(blend);
    uint32_t length = 0;
    size_t room = 0;
    TMS_REQUIRE(!blend->open, TAMIS_E_STATE, "the blend runs a prompt already");
    TMS_TRY(check_parts(blend, parts, n_parts, error));
    TMS_TRY(tamis_cache_length(blend->cache, sequence, &length, NULL, error));
    TMS_TRY(tms_blend_check_prefix(blend, parts, n_parts, length, &room, error));
    blend->parts = calloc(room, sizeof *blend->parts);
    TMS_REQUIRE(blend->parts, TAMIS_E_NO_MEMORY, "no memory for %zu parts", room);
    blend->sequence = sequence;
    const tamis_status status = collect(blend, parts, n_parts, length, error);
    if (status == TAMIS_OK) return tms_blend_start(blend, error);
    tms_blend_release(blend);
    return status;
}
