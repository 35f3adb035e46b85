/* SPDX-License-Identifier: Apache-2.0 */
/* Pages that tokens have read, counted and put into bins. */
#include "serve/reads.h"

#include <inttypes.h>
#include <stdio.h>
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
    free(reads->told);
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

/* What is told is text from the start: as objects of cJSON it would take many times as much, and all
 * other answers would wait while it is printed. Room for a token's text and the list's end. */
static bool make_room(serve_reads *reads) {
    const size_t bytes = reads->told_bytes + sizeof ",{\"of\":4294967295,\"layers\":[]}]" +
                         reads->n_layers * (SERVE_BINS + sizeof "\"\",");
    if (bytes <= reads->told_room) return true;
    char *told = realloc(reads->told, 2 * bytes);
    if (told == NULL) return false;
    reads->told = told;
    reads->told_room = 2 * bytes;
    return true;
}

static bool tell(serve_reads *reads) {
    char digits[SERVE_BINS + 1];
    if (!make_room(reads)) return false;
    char *to = reads->told + reads->told_bytes;
    to += sprintf(to, "%s{\"of\":%" PRIu32 ",\"layers\":[", reads->told_bytes == 0 ? "[" : ",",
                  reads->of);
    for (uint32_t layer = 0; layer < reads->n_layers; layer++) {
        draw(reads, layer, digits);
        to += sprintf(to, "%s\"%s\"", layer > 0 ? "," : "", digits);
    }
    to += sprintf(to, "]}");
    reads->told_bytes = (size_t)(to - reads->told);
    return true;
}

bool serve_reads_end_token(serve_reads *reads) {
    if (reads->of == 0) return true;
    const bool told = reads->untold || tell(reads);
    memset(reads->counts, 0, (size_t)reads->n_layers * reads->most_pages * sizeof *reads->counts);
    reads->of = 0;
    return told;
}

const char *serve_reads_take(serve_reads *reads) {
    if (reads->told_bytes == 0) return NULL;
    memcpy(reads->told + reads->told_bytes, "]", sizeof "]");
    reads->told_bytes = 0;
    return reads->told;
}
