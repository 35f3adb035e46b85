/* SPDX-License-Identifier: Apache-2.0 */
/* Pages that tokens have read, counted and put into bins. */
#include "serve/reads.h"

#include <stdlib.h>
#include <string.h>

bool serve_reads_open(serve_reads *reads, uint32_t n_layers, uint32_t n_heads,
                      uint32_t most_pages) {
    *reads = (serve_reads){.n_layers = n_layers, .n_heads = n_heads, .most_pages = most_pages};
    reads->counts = calloc((size_t)n_layers * most_pages, sizeof *reads->counts);
    return reads->counts != NULL;
}

void serve_reads_close(serve_reads *reads) {
    free(reads->counts);
    cJSON_Delete(reads->told);
    *reads = (serve_reads){0};
}

void serve_reads_add(serve_reads *reads, uint32_t layer, const uint32_t *pages, uint32_t n,
                     uint32_t of) {
    uint16_t *counts = reads->counts + (size_t)layer * reads->most_pages;
    for (uint32_t i = 0; i < n; i++)
        if (pages[i] < reads->most_pages) counts[pages[i]]++;
    if (of > reads->of) reads->of = of;
    reads->read += n;
    reads->held += of;
}

/* The digits of a layer. */
static void draw(const serve_reads *reads, uint32_t layer, char digits[SERVE_BINS + 1]) {
    const uint16_t *counts = reads->counts + (size_t)layer * reads->most_pages;
    const uint32_t bins = reads->of < SERVE_BINS ? reads->of : SERVE_BINS;
    for (uint32_t b = 0; b < bins; b++) {
        const uint64_t first = (uint64_t)b * reads->of / bins;
        const uint64_t end = (uint64_t)(b + 1) * reads->of / bins;
        const uint64_t all = (end - first) * reads->n_heads;
        uint64_t sum = 0;
        for (uint64_t page = first; page < end && page < reads->most_pages; page++)
            sum += counts[page];
        digits[b] = (char)('0' + (9 * (sum < all ? sum : all) + all - 1) / all);
    }
    digits[bins] = '\0';
}

bool serve_reads_end_token(serve_reads *reads) {
    char digits[SERVE_BINS + 1];
    if (reads->of == 0) return true;
    if (reads->told == NULL) reads->told = cJSON_CreateArray();
    cJSON *token = cJSON_CreateObject(), *layers = cJSON_AddArrayToObject(token, "layers");
    bool made = layers != NULL && cJSON_AddNumberToObject(token, "of", reads->of) != NULL;
    for (uint32_t layer = 0; made && layer < reads->n_layers; layer++) {
        draw(reads, layer, digits);
        made = cJSON_AddItemToArray(layers, cJSON_CreateString(digits)) != 0;
    }
    made = made && reads->told != NULL && cJSON_AddItemToArray(reads->told, token);
    if (!made) cJSON_Delete(token);
    memset(reads->counts, 0, (size_t)reads->n_layers * reads->most_pages * sizeof *reads->counts);
    reads->of = 0;
    return made;
}

cJSON *serve_reads_take(serve_reads *reads) {
    cJSON *told = reads->told;
    reads->told = NULL;
    return told;
}
