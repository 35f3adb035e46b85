/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning of a prompt whose pages a store keeps: exact wherever it is found. */
#include "lib/blend/blend.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

tamis_status tms_blend_check_prefix(const tamis_blend *blend, const tamis_blend_part *parts,
                                    uint32_t n_parts, uint32_t length, size_t *room,
                                    tamis_error *error) {
    const uint32_t page = blend->params.page_tokens;
    uint64_t before = length;
    *room = n_parts;
    for (uint32_t p = 0; p < n_parts; p++) {
        TMS_REQUIRE(parts[p].stored >= TAMIS_BLEND_FRESH && parts[p].stored <= TAMIS_BLEND_PREFIX,
                    TAMIS_E_ARGUMENT, "part %" PRIu32 ": stored is %d; there are 0 to %d", p,
                    parts[p].stored, TAMIS_BLEND_PREFIX);
        if (parts[p].stored == TAMIS_BLEND_PREFIX && parts[p].n_tokens > 0) {
            TMS_REQUIRE(page > 0, TAMIS_E_ARGUMENT,
                        "part %" PRIu32 " is a prefix; page_tokens of the blend is 0", p);
            TMS_REQUIRE(before == 0, TAMIS_E_ARGUMENT,
                        "part %" PRIu32 " is a prefix; %" PRIu64 " tokens stand before it", p,
                        before);
            *room += parts[p].n_tokens / page;
        }
        before += parts[p].n_tokens;
    }
    return TAMIS_OK;
}

/* The pages that were found as exact parts, and the tokens behind them as a fresh one. */
static void add_pages(tamis_blend *blend, const tamis_blend_part *part, tamis_chunk **chunks,
                      size_t n_pages) {
    const uint32_t page = blend->params.page_tokens;
    uint32_t first = 0;
    for (size_t i = 0; i < n_pages; i++, first += page)
        blend->parts[blend->n_parts++] =
            (tms_part){.first = first, .n = page, .chunk = chunks[i], .exact = true};
    if (first < part->n_tokens)
        blend->parts[blend->n_parts++] = (tms_part){.first = first, .n = part->n_tokens - first};
    blend->n_rows = part->n_tokens;
}

tamis_status tms_blend_find_prefix(tamis_blend *blend, const tamis_blend_part *part,
                                   tamis_error *error) {
    const tamis_blend_params *p = &blend->params;
    const size_t most = part->n_tokens / p->page_tokens;
    tamis_chunk_id id = {.tokens = part->tokens,
                         .n_tokens = part->n_tokens,
                         .shape = {.n_layers = blend->shape.n_layers,
                                   .n_kv_heads = blend->shape.n_kv_heads,
                                   .head_dim = blend->shape.head_dim,
                                   .dtype = p->dtype,
                                   .cache_dtype = blend->shape.dtype}};
    tamis_chunk **chunks = calloc(most + 1, sizeof *chunks);
    size_t n_pages = 0;
    TMS_REQUIRE(chunks, TAMIS_E_NO_MEMORY, "no memory for %zu pages", most);
    memcpy(id.fingerprint, blend->model, sizeof id.fingerprint);
    memcpy(id.salt, p->salt, sizeof id.salt);
    tamis_status status =
        tamis_store_get_prefix(blend->store, &id, p->page_tokens, chunks, most, &n_pages, error);
    /* What cannot be read ends the prefix, as what is missing does. */
    blend->stats.parts_failed += status == TAMIS_E_IO;
    if (status == TAMIS_E_IO) status = TAMIS_OK;
    if (status == TAMIS_OK) {
        add_pages(blend, part, chunks, n_pages);
        blend->stats.parts_found += n_pages;
        blend->stats.parts_exact += n_pages;
        blend->stats.parts_missed += n_pages < most;
    } else
        for (size_t i = 0; i < n_pages; i++)
            tamis_chunk_release(&chunks[i]);
    free(chunks);
    return status;
}
