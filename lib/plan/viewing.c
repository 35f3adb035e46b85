/* SPDX-License-Identifier: Apache-2.0 */
/* Page lists and lengths of an engine's sequences: checked, and put into sequences of the step's. */
#include "lib/plan/viewing.h"

#include <inttypes.h>
#include <stdlib.h>

/* Pages for which a list has room at first. */
#define FIRST_PAGES 64u

tamis_status tms_viewing_create(tms_viewing *viewing, tamis_error *error) {
    const tms_setup *setup = viewing->setup;
    const uint32_t n = setup->params.max_sequences;
    if (!setup->cache->view) return TAMIS_OK;
    viewing->sequences = tms_memory_host(setup->memory, n, sizeof *viewing->sequences);
    TMS_REQUIRE(viewing->sequences, TAMIS_E_NO_MEMORY, "no host memory for %" PRIu32 " sequences",
                n);
    for (uint32_t i = 0; i < n; i++) {
        viewing->sequences[i] = tms_sequence_new(setup->cache, FIRST_PAGES);
        TMS_REQUIRE(viewing->sequences[i], TAMIS_E_NO_MEMORY,
                    "no host memory for the lanes of %" PRIu32 " sequences", n);
        setup->memory->taken.host_bytes += sizeof(tms_sequence) +
                                           setup->cache->n_lanes * sizeof(tms_lane) +
                                           FIRST_PAGES * sizeof(int32_t);
    }
    return TAMIS_OK;
}

void tms_viewing_destroy(tms_viewing *viewing) {
    for (uint32_t i = 0; viewing->sequences && i < viewing->setup->params.max_sequences; i++)
        tms_sequence_free(viewing->sequences[i]);
    free(viewing->sequences);
}

/* ---- Forms ----------------------------------------------------------------------------------- */

static tamis_status check_csr(const tamis_view_step *in, tamis_error *error) {
    TMS_REQUIRE(in->indices && in->last_page_len, TAMIS_E_ARGUMENT, "indptr without %s",
                in->indices ? "last_page_len" : "indices");
    TMS_REQUIRE(!in->table && !in->lengths && in->table_stride == 0, TAMIS_E_ARGUMENT,
                "the step's pages come in two forms: by indptr, and by %s",
                in->table     ? "table"
                : in->lengths ? "lengths"
                              : "table_stride");
    for (uint32_t i = 0; i < in->count; i++) {
        TMS_REQUIRE(in->indptr[i] >= 0, TAMIS_E_ARGUMENT, "indptr[%" PRIu32 "] is %" PRId32, i,
                    in->indptr[i]);
        TMS_REQUIRE(in->indptr[i + 1] > in->indptr[i], TAMIS_E_ARGUMENT,
                    "indptr[%" PRIu32 "] is %" PRId32 " and the one behind it %" PRId32
                    ": a sequence has a page at least",
                    i, in->indptr[i], in->indptr[i + 1]);
    }
    return TAMIS_OK;
}

tamis_status tms_viewing_check(const tamis_view_step *in, tamis_error *error) {
    if (in->indptr) return check_csr(in, error);
    TMS_REQUIRE(!in->indices && !in->last_page_len, TAMIS_E_ARGUMENT, "%s without indptr",
                in->indices ? "indices" : "last_page_len");
    TMS_REQUIRE(in->table && in->lengths, TAMIS_E_ARGUMENT,
                "the step has %s: its pages come by table and lengths, or by indptr, indices and "
                "last_page_len",
                in->table ? "a table without lengths" : "no table");
    return TAMIS_OK;
}

/* ---- Sequences ------------------------------------------------------------------------------- */

/* What the engine says of a sequence. */
typedef struct seen {
    const int32_t *pages;
    uint64_t length, room; /* in tokens */
} seen;

static tamis_status look_at(const tms_viewing *viewing, const tamis_view_step *in, uint32_t i,
                            seen *out, tamis_error *error) {
    const uint32_t size = viewing->setup->cache->params.page_size;
    if (!in->indptr) {
        *out = (seen){in->table + i * in->table_stride, in->lengths[i], UINT64_MAX};
        if (in->count > 1 || in->table_stride) out->room = in->table_stride * size;
        return TAMIS_OK;
    }
    const int32_t last = in->last_page_len[i];
    TMS_REQUIRE(last >= 1 && (uint32_t)last <= size, TAMIS_E_ARGUMENT,
                "last_page_len of sequence %" PRIu32 " is %" PRId32 ": pages have %" PRIu32
                " slots",
                i, last, size);
    const uint64_t n = (uint64_t)(in->indptr[i + 1] - in->indptr[i]);
    *out = (seen){in->indices + in->indptr[i], (n - 1) * size + (uint64_t)last, n * size};
    return TAMIS_OK;
}

static tamis_status check_length(const tms_viewing *viewing, const seen *s, uint32_t i,
                                 uint32_t rows, tamis_error *error) {
    const uint32_t most = viewing->setup->params.max_context;
    TMS_REQUIRE(rows > 0, TAMIS_E_ARGUMENT, "sequence %" PRIu32 " brings no rows", i);
    TMS_REQUIRE(s->length >= rows, TAMIS_E_ARGUMENT,
                "sequence %" PRIu32 " has %" PRIu64 " tokens, and %" PRIu32 " rows among them", i,
                s->length, rows);
    TMS_REQUIRE(s->length <= most, TAMIS_E_ARGUMENT,
                "sequence %" PRIu32 " has %" PRIu64 " tokens, which exceed max_context %" PRIu32, i,
                s->length, most);
    TMS_REQUIRE(s->length <= s->room, TAMIS_E_ARGUMENT,
                "sequence %" PRIu32 " has %" PRIu64 " tokens: table_stride has room for %" PRIu64,
                i, s->length, s->room);
    return TAMIS_OK;
}

tamis_status tms_viewing_take(tms_viewing *viewing, const tamis_view_step *in, uint32_t place,
                              uint32_t rows, tms_sequence **out, tamis_error *error) {
    const tamis_cache *cache = viewing->setup->cache;
    seen s = {0};
    TMS_TRY(look_at(viewing, in, place, &s, error));
    TMS_TRY(check_length(viewing, &s, place, rows, error));
    const uint32_t n = tms_pages_of(cache, (uint32_t)s.length);
    for (uint32_t i = 0; i < n; i++)
        TMS_REQUIRE(s.pages[i] >= 0 && (uint32_t)s.pages[i] < cache->view->n_pages,
                    TAMIS_E_ARGUMENT,
                    "page %" PRIu32 " of sequence %" PRIu32 " is %" PRId32 ": the view has %" PRIu32
                    " pages",
                    i, place, s.pages[i], cache->view->n_pages);
    *out = viewing->sequences[place];
    return tms_view_set_sequence(cache, *out, s.pages, (uint32_t)s.length, rows, error);
}
