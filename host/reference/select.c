/* SPDX-License-Identifier: Apache-2.0 */
/* select: the protected entries of a lane and the best others, k in all, ascending by ordinal.
 *   best: score descending, -0 = +0, NaN after everything; then ordinal descending, the newer.
 * Contract: host/ops/, select. An entry is `granularity` slots; the last, partial one has no
 * score and is protected, as are those with sinks and recent slots. If more than k are protected,
 * all of those are taken. Without scores the newest are taken. An empty lane gives an empty
 * list. */
#include "host/reference/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    float score;
    uint32_t ordinal;
} candidate;

/* The total order, the better entry first. Without scores all scores are equal and ordinals
 * decide. */
static int compare(const void *left, const void *right) {
    const candidate *a = left, *b = right;
    const int nan_a = isnan(a->score) != 0, nan_b = isnan(b->score) != 0;
    if (nan_a != nan_b) return nan_a - nan_b;
    if (!nan_a && a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->ordinal > b->ordinal ? -1 : 1;
}

/* Marks one lane's chosen entries, from that of slot `first` on, in `taken` [n]; returns their
 * number. */
static uint32_t choose(const tms_select *p, uint32_t first, uint32_t visible, const float *scores,
                       candidate *candidates, unsigned char *taken) {
    const uint32_t size = p->granularity;
    const uint32_t n = (uint32_t)tms_divide_up(visible, size), scored = visible / size;
    const uint32_t sinks = (uint32_t)tms_divide_up(p->sinks, size);
    const uint32_t recent = p->recent ? (visible > p->recent ? visible - p->recent : 0) / size : n;
    uint32_t count = 0, rest = 0;
    /* 1. Protected entries are taken; the others are candidates. */
    memset(taken, 0, n);
    for (uint32_t i = first / size; i < n; i++) {
        taken[i] = i < sinks || i >= recent || i >= scored;
        if (taken[i])
            count++;
        else
            candidates[rest++] = (candidate){scores ? scores[i] : 0, i};
    }
    /* 2. The best candidates, up to k entries in all. */
    qsort(candidates, rest, sizeof *candidates, compare);
    for (uint32_t i = 0; i < rest && count < p->k; i++, count++)
        taken[candidates[i].ordinal] = 1;
    return count;
}

tamis_status tms_reference_select(tms_device *dev, const tms_select *p) {
    const tms_batch *batch = &p->batch;
    const uint64_t lanes = (uint64_t)batch->n_rows * batch->n_kv_heads;
    if (tms_select_is_wide(p)) return tms_reference_select_wide(dev, p);
    tms_views views = tms_views_begin(dev);
    const float *scores =
        lanes ? tms_view_optional(&views, "scores", p->scores, lanes * p->stride * 4) : NULL;
    const int32_t *visible = tms_view_visible(&views, batch);
    const int32_t *first = tms_view_first(&views, batch);
    int32_t *pages = tms_view(&views, "lists", p->lists.pages, lanes * p->lists.capacity * 4);
    int32_t *counts = tms_view(&views, "counts", p->lists.count, lanes * 4);
    if (views.status != TAMIS_OK) return views.status;
    tamis_status status = TAMIS_OK;
    const size_t most = (size_t)batch->max_visible / p->granularity + 1;
    candidate *candidates = malloc(most * sizeof *candidates);
    unsigned char *taken = malloc(most);
    if (!candidates || !taken)
        status = tms_device_fail(dev, TAMIS_E_NO_MEMORY, "select: no memory for %zu entries", most);
    for (uint64_t l = 0; status == TAMIS_OK && l < lanes; l++) {
        const uint32_t seen = (uint32_t)visible[l], hidden = tms_first_slot(first, l, seen);
        const uint32_t n = (uint32_t)tms_divide_up(seen, p->granularity);
        const uint32_t count = choose(p, hidden, seen, scores ? scores + l * p->stride : NULL,
                                      candidates, taken);
        if (count > p->lists.capacity) {
            status = tms_device_fail(dev, TAMIS_E_ARGUMENT, "select: %u entries in a list of %u",
                                     count, p->lists.capacity);
            break;
        }
        /* 3. The list, ascending. */
        int32_t *list = pages + l * p->lists.capacity;
        for (uint32_t i = 0; i < n; i++) {
            if (taken[i]) *list++ = (int32_t)i;
        }
        counts[l] = (int32_t)count;
    }
    free(taken);
    free(candidates);
    return status;
}
