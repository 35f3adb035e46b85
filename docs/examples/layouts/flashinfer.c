/* SPDX-License-Identifier: Apache-2.0 */
/* FlashInfer's paged cache: of each layer a tensor [pages, 2, P, H, D] (NHD) or [pages, 2, H, P, D]
 * (HND), whose pages are listed as CSR: indptr, indices, last_page_len.
 *   cc flashinfer.c $(pkg-config --cflags --libs tamis) -lm -o flashinfer && ./flashinfer */
#include "layouts.h"

enum {
    PAGES = SEQUENCES * MAX_PAGES,
    HALF = PAGE * KV_HEADS * DIM
}; /* of a page: its K, or its V */

static row place_nhd(uint32_t layer, uint32_t page, uint32_t which, uint32_t head, uint32_t slot) {
    return (row){layer, (page * 2ull + which) * HALF + (slot * KV_HEADS + head) * DIM, 1};
}

static row place_hnd(uint32_t layer, uint32_t page, uint32_t which, uint32_t head, uint32_t slot) {
    return (row){layer, (page * 2ull + which) * HALF + (head * PAGE + slot) * DIM, 1};
}

static void describe_nhd(const tamis_place *layers, uint32_t layer, tamis_kv *kv,
                         tamis_kv_values *values) {
    (void)values; /* V is in the page */
    kv->data = layers[layer];
    kv->layout = TAMIS_KV_NHD;
}

static void describe_hnd(const tamis_place *layers, uint32_t layer, tamis_kv *kv,
                         tamis_kv_values *values) {
    (void)values;
    kv->data = layers[layer];
    kv->layout = TAMIS_KV_HND;
}

/* paged_kv_indptr, paged_kv_indices and paged_kv_last_page_len, as plan() of FlashInfer takes them. */
static void list_csr(tamis_view_step *step) {
    static int32_t indptr[SEQUENCES + 1], indices[PAGES], last_page_len[SEQUENCES];
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        const uint32_t n = (lengths[s] + PAGE - 1) / PAGE;
        for (uint32_t i = 0; i < n; i++)
            indices[indptr[s] + (int32_t)i] = (int32_t)scattered_page(s, i);
        indptr[s + 1] = indptr[s] + (int32_t)n;
        last_page_len[s] = (int32_t)(lengths[s] - (n - 1) * PAGE);
    }
    step->indptr = indptr;
    step->indices = indices;
    step->last_page_len = last_page_len;
}

static const layout nhd = {.name = "FlashInfer, NHD",
                           .n_sequences = SEQUENCES,
                           .n_pages = PAGES,
                           .n_tensors = LAYERS,
                           .elements = 2ull * PAGES * HALF,
                           .page = scattered_page,
                           .place = place_nhd,
                           .describe = describe_nhd,
                           .list = list_csr};
static const layout hnd = {.name = "FlashInfer, HND",
                           .n_sequences = SEQUENCES,
                           .n_pages = PAGES,
                           .n_tensors = LAYERS,
                           .elements = 2ull * PAGES * HALF,
                           .page = scattered_page,
                           .place = place_hnd,
                           .describe = describe_hnd,
                           .list = list_csr};

int main(void) {
    const int good_nhd = serve(&nhd), good_hnd = serve(&hnd);
    return !(good_nhd && good_hnd);
}
