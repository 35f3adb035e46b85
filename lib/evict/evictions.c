/* SPDX-License-Identifier: Apache-2.0 */
/* The table of evictions, made from the list in evict.h, and the public calls that use it. */
#include "lib/core/core.h"
#include "lib/core/text_file.h"
#include "lib/evict/evict.h"
#include <tamis/cache.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_BUDGET 2048u

#define ENTRY(name) &tms_eviction_##name,
static const tms_eviction_entry *const evictions[] = {TMS_EVICTIONS(ENTRY)};
static const size_t n_evictions = sizeof evictions / sizeof *evictions;

const tms_eviction_entry *tms_eviction_find(tamis_eviction_kind kind) {
    for (size_t i = 0; i < n_evictions; i++)
        if (evictions[i]->kind == kind) return evictions[i];
    return NULL;
}

tamis_eviction tms_eviction_filled(const tamis_eviction *eviction) {
    const tms_eviction_entry *entry = tms_eviction_find(eviction->kind);
    tamis_eviction filled = *eviction;
    if (!entry || eviction->kind == TAMIS_EVICT_NONE) return filled;
    const tamis_eviction *defaults = &entry->defaults;
    if (filled.budget == 0) filled.budget = DEFAULT_BUDGET;
    if (filled.window == 0) filled.window = defaults->window;
    if (filled.kernel == 0) {
        filled.kernel = defaults->kernel;
        if (filled.pooling == TAMIS_POOL_MAX) filled.pooling = defaults->pooling;
    }
    if (filled.chunk == 0) filled.chunk = defaults->chunk;
    if (filled.floor == 0) filled.floor = defaults->floor;
    if (filled.beta == 0) filled.beta = defaults->beta;
    return filled;
}

void tamis_eviction_default(tamis_eviction_kind kind, tamis_eviction *out) {
    const tms_eviction_entry *entry = tms_eviction_find(kind);
    if (!out) return;
    *out = entry ? entry->defaults : (tamis_eviction){.kind = kind};
    *out = tms_eviction_filled(out);
}

/* "none, streaming, h2o, …" */
static void list_names(char *text, size_t size) {
    size_t at = 0;
    for (size_t i = 0; i < n_evictions && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s", i ? ", " : "", evictions[i]->name);
}

tamis_status tamis_eviction_parse(const char *name, tamis_eviction *out, tamis_error *error) {
    TMS_REQUIRE(name, TAMIS_E_ARGUMENT, "name is NULL");
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    for (size_t i = 0; i < n_evictions; i++) {
        if (strcmp(name, evictions[i]->name) == 0) {
            tamis_eviction_default(evictions[i]->kind, out);
            return TAMIS_OK;
        }
    }
    char names[256];
    list_names(names, sizeof names);
    return tms_error_set(error, TAMIS_E_ARGUMENT, "there is no eviction \"%s\"; known are %s",
                         tms_quote(name).text, names);
}

const char *tamis_eviction_name(tamis_eviction_kind kind) {
    const tms_eviction_entry *entry = tms_eviction_find(kind);
    return entry ? entry->name : "unknown";
}

/* The name at i is that of the option 1 << i. */
static const char *const option_names[] = {
    "reindex",      "rerank",     "lifetime",           "reference-schedule",
    "blend",        "anchor-all", "budget-beside-kept", "budget-chunks",
    "across-layers"};
static const uint32_t n_options = sizeof option_names / sizeof *option_names;
_Static_assert(1u << (sizeof option_names / sizeof *option_names - 1) == TAMIS_EVICT_ACROSS_LAYERS,
               "a word for every option");

const char *tamis_eviction_option_name(uint32_t index) {
    return index < n_options ? option_names[index] : NULL;
}

/* Checks that kind none has no numbers. */
static tamis_status check_none(const tamis_eviction *e, tamis_error *error) {
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"budget", e->budget}, {"sinks", e->sinks},    {"recent", e->recent},
                   {"window", e->window}, {"kernel", e->kernel},  {"pooling", e->pooling},
                   {"chunk", e->chunk},   {"floor", e->floor},    {"beta", e->beta},
                   {"every", e->every},   {"options", e->options}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        TMS_REQUIRE(numbers[i].value == 0, TAMIS_E_ARGUMENT,
                    "%s %g is given for none, which evicts nothing", numbers[i].name,
                    numbers[i].value);
    return TAMIS_OK;
}

/* Checks the numbers that only some kinds have. */
static tamis_status check_fit(const tms_eviction_entry *entry, const tamis_eviction *e,
                              tamis_error *error) {
    const tamis_eviction *defaults = &entry->defaults;
    const bool caller = e->kind == TAMIS_EVICT_CALLER;
    TMS_REQUIRE((e->options & ~entry->options) == 0, TAMIS_E_ARGUMENT,
                "eviction %s has no option %" PRIu32, entry->name, e->options & ~entry->options);
    TMS_REQUIRE(e->recent == 0 || entry->has_recent, TAMIS_E_ARGUMENT,
                "recent %" PRIu32 " is given for %s, which has none", e->recent, entry->name);
    TMS_REQUIRE(e->window == 0 || defaults->window || caller, TAMIS_E_ARGUMENT,
                "window %" PRIu32 " is given for %s, which has none", e->window, entry->name);
    TMS_REQUIRE(e->chunk == 0 || defaults->chunk, TAMIS_E_ARGUMENT,
                "chunk %" PRIu32 " is given for %s, which has none", e->chunk, entry->name);
    TMS_REQUIRE(e->kernel == 0 || defaults->kernel, TAMIS_E_ARGUMENT,
                "kernel %" PRIu32 " is given for %s, which pools nothing", e->kernel, entry->name);
    TMS_REQUIRE(e->pooling == TAMIS_POOL_MAX || defaults->kernel, TAMIS_E_ARGUMENT,
                "pooling %d is given for %s, which pools nothing", (int)e->pooling, entry->name);
    TMS_REQUIRE(e->floor == 0 || defaults->floor != 0, TAMIS_E_ARGUMENT,
                "floor %g is given for %s, whose heads share nothing", (double)e->floor,
                entry->name);
    TMS_REQUIRE(e->beta == 0 || defaults->beta != 0, TAMIS_E_ARGUMENT,
                "beta %g is given for %s, which has none", (double)e->beta, entry->name);
    TMS_REQUIRE(e->every != 1 || defaults->every == 1, TAMIS_E_ARGUMENT,
                "eviction %s takes no token in every step; every is 0, or 2 and more", entry->name);
    TMS_REQUIRE(e->every == 0 || !caller, TAMIS_E_ARGUMENT,
                "every %" PRIu32 " is given for %s, which says itself when", e->every, entry->name);
    return TAMIS_OK;
}

static tamis_status check_numbers(const tamis_eviction *e, tamis_error *error) {
    const uint64_t always = (uint64_t)e->sinks + e->recent + e->window;
    TMS_REQUIRE(e->budget > always, TAMIS_E_ARGUMENT,
                "budget %" PRIu32 " is not above what is always kept: sinks %" PRIu32
                ", recent %" PRIu32 ", window %" PRIu32,
                e->budget, e->sinks, e->recent, e->window);
    TMS_REQUIRE(e->budget <= INT32_MAX, TAMIS_E_ARGUMENT, "budget %" PRIu32 " exceeds %" PRId32,
                e->budget, INT32_MAX);
    TMS_REQUIRE(e->kernel == 0 || e->kernel % 2 == 1, TAMIS_E_ARGUMENT,
                "kernel %" PRIu32 " is not odd", e->kernel);
    TMS_REQUIRE(e->pooling == TAMIS_POOL_MAX || e->pooling == TAMIS_POOL_AVERAGE, TAMIS_E_ARGUMENT,
                "there is no pooling %d", (int)e->pooling);
    TMS_REQUIRE(e->floor <= 1, TAMIS_E_ARGUMENT, "floor %g is not a share up to 1",
                (double)e->floor);
    TMS_REQUIRE(e->beta == 0 || (e->beta >= 1 && e->beta < 1e9f), TAMIS_E_ARGUMENT,
                "beta %g is not a number from 1 on", (double)e->beta);
    return TAMIS_OK;
}

tamis_status tamis_eviction_check(const tamis_eviction *eviction, tamis_error *error) {
    TMS_REQUIRE(eviction, TAMIS_E_ARGUMENT, "eviction is NULL");
    TMS_REQUIRE_RESERVED(eviction, tamis_eviction);
    const tms_eviction_entry *entry = tms_eviction_find(eviction->kind);
    TMS_REQUIRE(entry, TAMIS_E_ARGUMENT, "there is no eviction kind %d", (int)eviction->kind);
    if (eviction->kind == TAMIS_EVICT_NONE) return check_none(eviction, error);
    const tamis_eviction filled = tms_eviction_filled(eviction);
    TMS_TRY(check_fit(entry, &filled, error));
    TMS_TRY(check_numbers(&filled, error));
    return entry->check ? entry->check(&filled, error) : TAMIS_OK;
}

void tms_eviction_ask(const tamis_eviction *eviction, tms_eviction_needs *out) {
    const tms_eviction_entry *entry = tms_eviction_find(eviction->kind);
    *out = (tms_eviction_needs){.entry = entry,
                                .active = eviction->kind != TAMIS_EVICT_NONE,
                                .n_values = 1,
                                .spares = eviction->window};
    if (entry->ask) entry->ask(eviction, out);
    out->by_slots |= out->window > 0;
}

/* False for NULL, for kind none and for unknown kinds. */
static bool ask_filled(const tamis_eviction *eviction, tms_eviction_needs *out) {
    if (!eviction || !tms_eviction_find(eviction->kind)) return false;
    const tamis_eviction filled = tms_eviction_filled(eviction);
    tms_eviction_ask(&filled, out);
    return out->active;
}

uint32_t tamis_eviction_planes(const tamis_eviction *eviction) {
    tms_eviction_needs needs;
    if (!ask_filled(eviction, &needs)) return 0;
    return TAMIS_PLANE_POSITIONS | (needs.feed != TMS_FEED_NONE ? TAMIS_PLANE_SCORES : 0);
}

uint32_t tamis_eviction_needs(const tamis_eviction *eviction) {
    tms_eviction_needs needs;
    if (!ask_filled(eviction, &needs)) return 0;
    return (needs.output ? TAMIS_NEEDS_OUTPUT : 0) | (needs.rotation ? TAMIS_NEEDS_ROTATION : 0);
}

void tms_eviction_schedule(const tamis_eviction *eviction, uint32_t n_layers, uint32_t length,
                           uint32_t longest, uint32_t *budgets) {
    const tms_eviction_entry *entry = tms_eviction_find(eviction->kind);
    if (entry->schedule && longest > eviction->budget) {
        entry->schedule(eviction, n_layers, length, longest, budgets);
        return;
    }
    for (uint32_t l = 0; l < n_layers; l++)
        budgets[l] = eviction->budget;
}

uint64_t tms_eviction_total(const tamis_eviction *eviction, const uint32_t *slots,
                            uint32_t n_lanes) {
    const tms_eviction_entry *entry = tms_eviction_find(eviction->kind);
    if (entry->total) return entry->total(eviction, slots, n_lanes);
    return (uint64_t)n_lanes * eviction->budget;
}
