/* SPDX-License-Identifier: Apache-2.0 */
/* The table of selections, made from the list in select.h, and the public calls that use it. */
#include "lib/core/core.h"
#include "lib/core/text_file.h"
#include "lib/select/select.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ENTRY(name) &tms_selection_##name,
static const tms_selection_entry *const selections[] = {TMS_SELECTIONS(ENTRY)};
static const size_t n_selections = sizeof selections / sizeof *selections;

/* Presets: names for other numbers of a kind than its defaults. */
static const struct {
    const char *name;
    tamis_selection selection;
} presets[] = {
    {"quest-paper", {.kind = TAMIS_SELECT_QUEST, .budget = TMS_DEFAULT_BUDGET, .dense_layers = 2}},
};
static const size_t n_presets = sizeof presets / sizeof *presets;

static const tms_selection_entry *find(tamis_selection_kind kind) {
    for (size_t i = 0; i < n_selections; i++)
        if (selections[i]->kind == kind) return selections[i];
    return NULL;
}

void tamis_selection_default(tamis_selection_kind kind, tamis_selection *out) {
    const tms_selection_entry *entry = find(kind);
    if (out) *out = entry ? entry->defaults : (tamis_selection){.kind = kind};
}

/* "full, window, quest, oracle, random, caller" and the presets. */
static void list_names(char *text, size_t size) {
    size_t at = 0;
    for (size_t i = 0; i < n_selections && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s", i ? ", " : "", selections[i]->name);
    for (size_t i = 0; i < n_presets && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, ", %s", presets[i].name);
}

static const tms_selection_entry *find_name(const char *name) {
    for (size_t i = 0; i < n_selections; i++)
        if (strcmp(name, selections[i]->name) == 0) return selections[i];
    return NULL;
}

tamis_status tamis_selection_parse(const char *name, tamis_selection *out, tamis_error *error) {
    TMS_REQUIRE(name, TAMIS_E_ARGUMENT, "name is NULL");
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    const tms_selection_entry *entry = find_name(name);
    if (entry) {
        *out = entry->defaults;
        return TAMIS_OK;
    }
    for (size_t i = 0; i < n_presets; i++)
        if (strcmp(name, presets[i].name) == 0) {
            *out = presets[i].selection;
            return TAMIS_OK;
        }
    char names[128];
    list_names(names, sizeof names);
    return tms_error_set(error, TAMIS_E_ARGUMENT, "there is no selection \"%s\"; known are %s",
                         tms_quote(name).text, names);
}

const char *tamis_selection_name_at(uint32_t index) {
    if (index < n_selections) return selections[index]->name;
    return index - n_selections < n_presets ? presets[index - n_selections].name : NULL;
}

const char *tamis_selection_name(tamis_selection_kind kind) {
    const tms_selection_entry *entry = find(kind);
    return entry ? entry->name : "unknown";
}

tamis_status tamis_selection_check(const tamis_selection *selection, uint32_t page_size,
                                   tamis_error *error) {
    TMS_REQUIRE(selection, TAMIS_E_ARGUMENT, "selection is NULL");
    TMS_REQUIRE_RESERVED(selection, tamis_selection);
    TMS_REQUIRE(page_size > 0 && page_size <= TMS_MOST_PAGE && (page_size & (page_size - 1)) == 0,
                TAMIS_E_UNSUPPORTED,
                "page_size %" PRIu32 " is not supported; powers of two up to %d are", page_size,
                TMS_MOST_PAGE);
    const tms_selection_entry *entry = find(selection->kind);
    TMS_REQUIRE(entry, TAMIS_E_ARGUMENT, "there is no selection kind %d", (int)selection->kind);
    return entry->check ? entry->check(selection, page_size, error) : TAMIS_OK;
}

void tms_selection_ask(const tamis_selection *selection, uint32_t page_size, tms_reading *out) {
    *out = (tms_reading){.listed = false};
    const tms_selection_entry *entry = find(selection->kind);
    if (entry->ask) entry->ask(selection, page_size, out);
}
