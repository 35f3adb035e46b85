/* SPDX-License-Identifier: Apache-2.0 */
/* Lists that the caller makes: what is asked of them, and the launches that take them. */
#include "lib/plan/caller_lists.h"

#include <inttypes.h>

static bool takes_tokens(const tms_setup *setup) {
    return setup->params.flags & TAMIS_PLAN_TOKEN_LISTS;
}

static uint64_t owners_of(const tms_setup *setup) {
    return (uint64_t)setup->params.max_selected_rows * setup->cache->params.n_kv_heads;
}

/* The most entries of a list as it comes: lanes may be shorter than the budget. */
static uint64_t most_given(const tms_setup *setup) {
    const uint32_t size = takes_tokens(setup) ? 1 : setup->cache->params.page_size;
    return setup->params.selection.budget / size;
}

/* ---- The plan -------------------------------------------------------------------------------- */

/* How many slots lie from a page to the next, where K and V have each slot at a multiple of the distance
 * between two; else 0. */
static uint32_t page_slots(const tms_kv *kv) {
    const tms_apart *apart = &kv->apart;
    if (kv->page_size == 1) return 1; /* which says nothing of a distance */
    if (kv->slot_stride == 0) return 0;
    const uint64_t n = kv->page_stride / kv->slot_stride;
    if (kv->page_stride % kv->slot_stride || n < kv->page_size || n > INT32_MAX) return 0;
    return apart->data.mem && apart->page_stride != n * apart->slot_stride ? 0 : (uint32_t)n;
}

/* The page ids that a layer may have. */
static uint32_t pages_of(const tamis_cache *cache, uint32_t layer) {
    if (cache->view) return cache->view->n_pages;
    return tms_cache_pool(cache, layer)->pages.n;
}

/* For lists of tokens each slot is a page, with an id of its own. */
static tamis_status check_slots(const tms_setup *setup, tamis_error *error) {
    const tamis_cache *cache = setup->cache;
    for (uint32_t layer = 0; layer < cache->params.n_layers; layer++) {
        const tms_kv kv = tms_cache_kv(cache, layer);
        const uint32_t slots = page_slots(&kv), pages = pages_of(cache, layer);
        const tms_apart v = kv.apart.data.mem ? kv.apart
                                              : (tms_apart){.page_stride = kv.page_stride,
                                                            .slot_stride = kv.slot_stride};
        TMS_REQUIRE(slots, TAMIS_E_UNSUPPORTED,
                    "TAMIS_PLAN_TOKEN_LISTS where pages of K are %" PRIu64
                    " elements apart and slots %" PRIu64 ", of V %" PRIu64 " and %" PRIu64
                    ": no slot has one number",
                    kv.page_stride, kv.slot_stride, v.page_stride, v.slot_stride);
        TMS_REQUIRE(pages <= INT32_MAX / slots, TAMIS_E_UNSUPPORTED,
                    "TAMIS_PLAN_TOKEN_LISTS over %" PRIu32 " pages of %" PRIu32
                    " slots, which exceed %" PRId32,
                    pages, slots, INT32_MAX);
    }
    return TAMIS_OK;
}

static tamis_status check_tokens(const tms_setup *setup, tamis_error *error) {
    const tamis_dtype dtype = setup->cache->params.dtype;
    TMS_REQUIRE(setup->reading.given, TAMIS_E_ARGUMENT,
                "TAMIS_PLAN_TOKEN_LISTS under selection %s, which makes its lists itself",
                tamis_selection_name(setup->params.selection.kind));
    TMS_REQUIRE(!tms_has_blocks(dtype), TAMIS_E_UNSUPPORTED,
                "TAMIS_PLAN_TOKEN_LISTS in a cache of %s, whose pages are read as a whole",
                tamis_dtype_name(dtype));
    TMS_REQUIRE(!tms_needs_weights(&setup->needs), TAMIS_E_UNSUPPORTED,
                "TAMIS_PLAN_TOKEN_LISTS under eviction %s, which weighs the tokens of pages",
                tamis_eviction_name(setup->params.eviction.kind));
    return check_slots(setup, error);
}

tamis_status tms_caller_lists_check_plan(const tms_setup *setup, tamis_error *error) {
    TMS_REQUIRE(!setup->reading.given || !(setup->params.flags & TAMIS_PLAN_VERIFY),
                TAMIS_E_UNSUPPORTED,
                "TAMIS_PLAN_VERIFY under selection caller: layers of such steps take "
                "tamis_plan_write_attend, which has no lists");
    return takes_tokens(setup) ? check_tokens(setup, error) : TAMIS_OK;
}

/* An attend of rows by lists of tokens; without rows as it is warmed. */
static void read_tokens(const tms_caller_lists *l, uint32_t section, uint32_t most,
                        tms_attend *attend) {
    const tms_section *of = &l->step->sections[section];
    tms_batch *b = &attend->batch;
    const uint64_t owner = (uint64_t)of->first_row * b->n_kv_heads, length = attend->lists.capacity;
    if (attend->kv.page_size > 1) {
        attend->kv.page_stride = attend->kv.slot_stride;
        attend->kv.apart.page_stride = attend->kv.apart.slot_stride;
        attend->kv.page_size = 1;
    }
    b->n_tiles = b->n_rows;
    b->max_tile_rows = 1;
    b->row_seq = tms_arena_ref(&l->tables, l->lanes);
    b->tiles = tms_arena_ref(&l->tables, l->tiles);
    b->visible = attend->lists.count;
    b->first = (tms_ref){NULL, 0};
    b->table = (tms_ref){l->ids, owner * length * sizeof(int32_t)};
    b->head_stride = length;
    b->seq_stride = length * b->n_kv_heads;
    b->max_visible = attend->max_pages = most;
    b->max_seen = 0;
    attend->lists = (tms_lists){.capacity = 0};
    attend->scratch = (tms_ref){l->scratch, 0};
}

static uint64_t scratch_of(const tms_caller_lists *l) {
    tms_attend attend = tms_template_sparse(l->templates, 0, 0).attend;
    attend.batch.n_rows = l->setup->params.max_selected_rows;
    read_tokens(l, 0, l->most, &attend);
    return tms_attend_scratch(l->setup->dev, &attend);
}

static tamis_status take_token_memory(tms_caller_lists *l, tamis_error *error) {
    const tms_setup *setup = l->setup;
    const uint64_t bytes = owners_of(setup) * l->most * sizeof(int32_t);
    if (!takes_tokens(setup)) return TAMIS_OK;
    TMS_TRY(tms_memory_take(setup->memory, bytes, &l->ids, error));
    return tms_memory_take(setup->memory, scratch_of(l), &l->scratch, error);
}

tamis_status tms_caller_lists_create(tms_caller_lists *l, tamis_error *error) {
    const tms_setup *setup = l->setup;
    const uint32_t rows = setup->params.max_selected_rows;
    uint64_t end = 0;
    if (!setup->reading.given) return TAMIS_OK;
    l->most = tms_setup_entries(setup);
    const uint64_t bytes = owners_of(setup) * (most_given(setup) + 1) * sizeof(int32_t);
    tms_arena_place(&end, 1);
    l->lanes = tms_arena_place(&end, takes_tokens(setup) ? rows : 0);
    l->tiles = tms_arena_place(&end, takes_tokens(setup) ? 2ull * rows : 0);
    TMS_TRY(tms_arena_create(&l->tables, setup->memory, end, "lists of the caller", error));
    for (uint32_t i = 0; takes_tokens(setup) && i < rows; i++) {
        l->tables.host[l->lanes + i] = l->tables.host[l->tiles + 2ull * i] = (int32_t)i;
        l->tables.host[l->tiles + 2ull * i + 1] = 1;
    }
    TMS_TRY(tms_memory_take(setup->memory, bytes, &l->raw, error));
    return take_token_memory(l, error);
}

void tms_caller_lists_destroy(tms_caller_lists *l) {
    tms_device *dev = l->setup->dev;
    tms_mem *memories[] = {l->raw, l->ids, l->scratch};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        tms_device_free(dev, memories[i]);
    if (l->tables.host) tms_arena_destroy(&l->tables, dev);
}

/* ---- A call ---------------------------------------------------------------------------------- */

static tamis_status check_shape(const tms_caller_lists *l, const tamis_caller_lists *p,
                                tamis_error *error) {
    const tms_setup *setup = l->setup;
    const uint32_t budget = setup->params.selection.budget;
    const uint32_t size = p->unit == TAMIS_LIST_TOKENS ? 1 : setup->cache->params.page_size;
    TMS_REQUIRE_RESERVED(p, tamis_caller_lists);
    TMS_REQUIRE((unsigned)p->unit <= TAMIS_LIST_TOKENS, TAMIS_E_ARGUMENT,
                "unit of lists is %d: there are 0 to %d", (int)p->unit, (int)TAMIS_LIST_TOKENS);
    TMS_REQUIRE(p->unit != TAMIS_LIST_TOKENS || takes_tokens(setup), TAMIS_E_ARGUMENT,
                "lists of tokens in a plan without TAMIS_PLAN_TOKEN_LISTS");
    TMS_REQUIRE(p->capacity > 0 && p->capacity <= budget / size, TAMIS_E_ARGUMENT,
                "lists of %" PRIu32 " entries of %" PRIu32 " tokens: from 1 to the budget %" PRIu32,
                p->capacity, size, budget);
    TMS_REQUIRE(!p->host_entries == !p->host_count && !p->entries.buffer == !p->count.buffer &&
                    !p->host_entries != !p->entries.buffer,
                TAMIS_E_ARGUMENT,
                "lists: entries and counts of either the host or the device; there are %s, %s, %s "
                "and %s",
                p->host_entries ? "host_entries" : "no host_entries",
                p->host_count ? "host_count" : "no host_count",
                p->entries.buffer ? "entries" : "no entries",
                p->count.buffer ? "count" : "no count");
    TMS_REQUIRE(!p->host_entries || !l->step->fixed, TAMIS_E_UNSUPPORTED,
                "lists of the host in a step with TAMIS_PLAN_FIXED_LAUNCHES: a graph would repeat "
                "them");
    return TAMIS_OK;
}

tamis_status tms_caller_lists_check(const tms_caller_lists *l, uint32_t layer, uint32_t n,
                                    const tamis_caller_lists *lists, tms_given_lists *out,
                                    tamis_error *error) {
    const tms_setup *setup = l->setup;
    const uint64_t owners = (uint64_t)n * setup->cache->params.n_kv_heads;
    *out = (tms_given_lists){.given = false};
    TMS_REQUIRE(!lists || setup->reading.given, TAMIS_E_ARGUMENT,
                "lists under selection %s, which makes them itself",
                tamis_selection_name(setup->params.selection.kind));
    if (!setup->reading.given || n == 0) return TAMIS_OK;
    TMS_REQUIRE(lists, TAMIS_E_ARGUMENT,
                "layer %" PRIu32 ": %" PRIu32
                " rows read lists under selection caller, and none were given "
                "(tamis_plan_attend_with)",
                layer, n);
    TMS_TRY(check_shape(l, lists, error));
    *out = (tms_given_lists){.raw = {.capacity = lists->capacity},
                             .host = lists->host_entries,
                             .host_count = lists->host_count,
                             .given = true,
                             .tokens = lists->unit == TAMIS_LIST_TOKENS};
    if (out->host) return TAMIS_OK;
    const tamis_context *context = setup->cache->context;
    TMS_TRY(tms_place_check(context, &lists->entries, "entries of lists",
                            owners * lists->capacity * sizeof(int32_t), &out->raw.pages, error));
    return tms_place_check(context, &lists->count, "counts of lists", owners * sizeof(int32_t),
                           &out->raw.count, error);
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* The lists of a section's rows on the device, those of the host sent there. */
static tamis_status place_raw(const tms_caller_lists *l, uint64_t first, uint64_t n,
                              const tms_given_lists *given, tms_lists *out, tamis_error *error) {
    tms_device *dev = l->setup->dev;
    const uint64_t capacity = given->raw.capacity, at = first * capacity;
    const uint64_t counts = owners_of(l->setup) * most_given(l->setup) + first;
    *out = given->raw;
    if (!given->host) {
        out->pages.offset += at * sizeof(int32_t);
        out->count.offset += first * sizeof(int32_t);
        return TAMIS_OK;
    }
    out->pages = (tms_ref){l->raw, at * sizeof(int32_t)};
    out->count = (tms_ref){l->raw, counts * sizeof(int32_t)};
    TMS_TRY(
        tms_memory_send(dev, out->pages, given->host + at, n * capacity * sizeof(int32_t), error));
    return tms_memory_send(dev, out->count, given->host_count + first, n * sizeof(int32_t), error);
}

/* What makes raw lists valid, into the lists of *attend. first: a (row, KV head). */
static tms_take_lists take_of(const tms_caller_lists *l, const tms_attend *attend, uint64_t first,
                              const tms_lists *raw, bool tokens) {
    const tms_kv *kv = &attend->kv;
    const tms_ref ids = {l->ids, first * attend->lists.capacity * sizeof(int32_t)};
    return (tms_take_lists){.batch = attend->batch,
                            .granularity = tokens ? 1 : kv->page_size,
                            .raw = *raw,
                            .lists = attend->lists,
                            .ids = tokens ? ids : (tms_ref){NULL, 0},
                            .page_size = tokens ? kv->page_size : 0,
                            .page_slots = tokens ? page_slots(kv) : 0,
                            .skipped = tms_caller_lists_skipped(l)};
}

tamis_status tms_caller_lists_take(const tms_caller_lists *l, uint32_t section,
                                   const tms_given_lists *given, tms_attend *attend,
                                   tamis_error *error) {
    const uint64_t heads = attend->batch.n_kv_heads;
    const uint64_t first = l->step->sections[section].first_row * heads;
    tms_lists raw;
    TMS_TRY(place_raw(l, first, attend->batch.n_rows * heads, given, &raw, error));
    const tms_take_lists take = take_of(l, attend, first, &raw, given->tokens);
    TMS_TRY(tms_run_take_lists(l->setup->dev, &take, error));
    if (given->tokens)
        read_tokens(l, section, tms_take_lists_most(&take), attend);
    else
        attend->max_pages = tms_take_lists_most(&take);
    return TAMIS_OK;
}

/* All kernels of a layer, with no rows. */
static tamis_status warm_layer(const tms_caller_lists *l, uint32_t layer, tamis_error *error) {
    tms_device *dev = l->setup->dev;
    tms_attend attend = tms_template_sparse(l->templates, layer, 0).attend;
    const tms_lists raw = {{l->raw, 0}, {l->raw, 0}, l->most};
    const tms_take_lists take = take_of(l, &attend, 0, &raw, takes_tokens(l->setup));
    attend.q.stride = attend.out.stride = tms_setup_width(l->setup);
    TMS_TRY(tms_run_take_lists(dev, &take, error));
    if (!takes_tokens(l->setup)) return TAMIS_OK;
    read_tokens(l, 0, l->most, &attend);
    return tms_run_attend(dev, &attend, error);
}

tamis_status tms_caller_lists_warm(const tms_caller_lists *l, tamis_error *error) {
    if (!l->setup->reading.given) return TAMIS_OK;
    TMS_TRY(tms_arena_send(
        &l->tables, l->setup->dev, 0,
        l->tiles + 2ull * l->setup->params.max_selected_rows * takes_tokens(l->setup), error));
    for (uint32_t layer = 0; layer < l->setup->cache->params.n_layers; layer++)
        if (tms_setup_is_first(l->setup, layer) && tms_setup_lists(l->setup, layer))
            TMS_TRY(warm_layer(l, layer, error));
    return TAMIS_OK;
}
