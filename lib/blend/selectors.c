/* SPDX-License-Identifier: Apache-2.0 */
/* The table of selectors, made from the list in selector.h, and what takes a share. */
#include "lib/blend/selector.h"
#include "lib/core/text_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY(name) &tms_selector_##name,
static const tms_selector *const selectors[] = {TMS_SELECTORS(ENTRY)};
static const size_t n_selectors = sizeof selectors / sizeof *selectors;

const tms_selector *tms_selector_find(tamis_blend_selector kind) {
    for (size_t i = 0; i < n_selectors; i++)
        if (selectors[i]->kind == kind) return selectors[i];
    return NULL;
}

const char *tamis_blend_selector_name(tamis_blend_selector selector) {
    const tms_selector *entry = tms_selector_find(selector);
    return entry ? entry->name : "unknown";
}

tamis_status tamis_blend_selector_parse(const char *name, tamis_blend_selector *out,
                                        tamis_error *error) {
    char names[128];
    size_t at = 0;
    TMS_REQUIRE(name, TAMIS_E_ARGUMENT, "name is NULL");
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    for (size_t i = 0; i < n_selectors; i++) {
        if (strcmp(name, selectors[i]->name) == 0) {
            *out = selectors[i]->kind;
            return TAMIS_OK;
        }
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "",
                               selectors[i]->name);
    }
    return tms_error_set(error, TAMIS_E_ARGUMENT, "there is no selector \"%s\"; known are %s",
                         tms_quote(name).text, names);
}

/* ---- Shares ---------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    const tms_candidate *x = a, *y = b;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

static int by_row(const void *a, const void *b) {
    const tms_candidate *x = a, *y = b;
    return (x->row > y->row) - (x->row < y->row);
}

void tms_candidates_top(tms_candidate *candidates, uint32_t n, uint32_t k) {
    qsort(candidates, n, sizeof *candidates, by_value);
    qsort(candidates, k, sizeof *candidates, by_row);
}

uint32_t tms_share_of(double share, uint32_t n) {
    return (uint32_t)ceil(share * n);
}
