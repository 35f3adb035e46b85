/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the page tables: assigning them to sequences and uploading their changes. */
#include "lib/plan/page_table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Most changed entries of one upload: 512 KiB, for which no backend waits. */
#define CHUNK_ENTRIES 65536u

static uint64_t bytes_of(const tms_page_table *table) {
    const tms_setup *setup = table->setup;
    return (uint64_t)setup->params.max_sequences * setup->cache->n_lists * table->stride *
           sizeof(int32_t);
}

/* The pages of a lane as long as all lanes of its layer can be together. Only evictions make single lanes
 * longer, by what others have lost. Under fixed launches the table stays where it is. */
static uint32_t likely_pages(const tms_setup *setup) {
    const tamis_cache *cache = setup->cache;
    uint64_t most = cache->view ? cache->view->n_pages : 1;
    for (uint32_t layer = 0; !cache->view && layer < cache->params.n_layers; layer++) {
        const tms_pool *pool = tms_cache_pool(cache, layer);
        const uint32_t lanes = tms_end_lane(cache, pool) - tms_first_lane(cache, pool);
        const uint64_t own = tms_divide_up(tms_layer_capacity(&cache->params, layer),
                                           cache->params.page_size),
                       even = tms_divide_up(pool->pages.n, lanes);
        if (own > most) most = own;
        if (even > most) most = even;
    }
    const bool stays = setup->params.flags & TAMIS_PLAN_FIXED_LAUNCHES;
    return most < setup->max_pages && !stays ? (uint32_t)most : setup->max_pages;
}

void tms_page_table_place(const tms_page_table *table, uint32_t layer, tms_batch *batch) {
    const tamis_cache *cache = table->setup->cache;
    const uint64_t first =
        cache->view ? 0 : (uint64_t)layer * cache->params.n_kv_heads * table->stride;
    batch->table = (tms_ref){table->mem, first * sizeof(int32_t)};
    batch->seq_stride = (uint64_t)table->setup->cache->n_lists * table->stride;
    batch->head_stride = cache->view ? 0 : table->stride;
}

tamis_status tms_page_table_create(tms_page_table *table, const tms_setup *setup,
                                   tamis_error *error) {
    uint32_t n = setup->params.max_sequences, n_lists = setup->cache->n_lists;
    table->setup = setup;
    table->stride = likely_pages(setup);
    table->entry_host =
        tms_memory_host(setup->memory, CHUNK_ENTRIES, 2 * sizeof *table->entry_host);
    table->rows = tms_memory_host(setup->memory, n, sizeof *table->rows);
    bool ok = table->entry_host && table->rows;
    for (uint32_t i = 0; i < n && ok; i++) {
        table->rows[i].pages =
            tms_memory_host(setup->memory, n_lists, sizeof *table->rows[i].pages);
        ok = table->rows[i].pages != NULL;
    }
    TMS_REQUIRE(ok, TAMIS_E_NO_MEMORY,
                "no host memory for the page tables of %" PRIu32 " sequences", n);
    TMS_TRY(tms_memory_take(setup->memory, bytes_of(table), &table->mem, error));
    return tms_memory_take(setup->memory, CHUNK_ENTRIES * 2 * sizeof(int32_t), &table->entries,
                           error);
}

void tms_page_table_destroy(tms_page_table *table) {
    const tms_setup *setup = table->setup;
    tms_device_free(setup->dev, table->mem);
    tms_device_free(setup->dev, table->entries);
    for (uint32_t i = 0; table->rows && i < setup->params.max_sequences; i++)
        free(table->rows[i].pages);
    free(table->rows);
    free(table->entry_host);
}

tamis_status tms_page_table_warm(const tms_page_table *table, tamis_error *error) {
    const tms_write_table empty = {.data = {table->mem, 0}, .entries = {table->entries, 0}};
    TMS_TRY(tms_device_fill(table->setup->dev, empty.data, 0, bytes_of(table), error));
    return tms_run_write_table(table->setup->dev, &empty, error);
}

/* The row of a sequence; if it has none, the one that has not been used for the longest time. */
static uint32_t row_of(const tms_page_table *table, tamis_sequence id) {
    uint32_t n = table->setup->params.max_sequences, oldest = 0;
    for (uint32_t r = 0; r < n; r++) {
        if (table->rows[r].id == id) return r;
        if (table->rows[r].used < table->rows[oldest].used) oldest = r;
    }
    return oldest;
}

static tamis_status send(tms_page_table *table, uint32_t n, tamis_error *error) {
    tms_device *dev = table->setup->dev;
    tms_write_table change = {.data = {table->mem, 0}, .n = n, .entries = {table->entries, 0}};
    TMS_TRY(tms_device_write(dev, change.entries, table->entry_host,
                             2 * (uint64_t)n * sizeof(int32_t), error));
    return tms_run_write_table(dev, &change, error);
}

/* Collects the entries of a lane that the row lacks, until the chunk is full. Returns the number of
 * entries in the chunk. */
static uint32_t collect(tms_page_table *table, uint32_t r, const tms_sequence *sequence,
                        uint32_t lane, uint32_t n) {
    uint32_t *from = &table->rows[r].pages[lane];
    uint32_t end = tms_pages_of(table->setup->cache, sequence->lanes[lane].length);
    uint32_t base = (r * table->setup->cache->n_lists + lane) * table->stride;
    for (; *from < end && n < CHUNK_ENTRIES; n++, ++*from) {
        table->entry_host[2 * n] = (int32_t)(base + *from);
        table->entry_host[2 * n + 1] = tms_lane_reads(sequence, lane, *from)[*from];
    }
    return n;
}

/* Entries of a row that are no longer those of its sequence are lacking. */
static void forget_changed(tms_table_row *row, uint32_t n_lists, tms_sequence *sequence) {
    const uint32_t least = tms_changes_since(&sequence->changes, row->state);
    for (uint32_t lane = 0; lane < n_lists && least < UINT32_MAX; lane++)
        if (row->pages[lane] > least) row->pages[lane] = least;
    row->state = tms_changes_see(&sequence->changes);
}

/* Uploads the entries that the rows of the sequences lack: those that were appended since the last
 * upload, and those from the first changed one on. */
static tamis_status sync(tms_page_table *table, tms_sequence *const *sequences, uint32_t count,
                         const uint32_t *rows, tamis_error *error) {
    uint32_t n = 0, n_lists = table->setup->cache->n_lists;
    for (uint32_t i = 0; i < count; i++) {
        tms_table_row *row = &table->rows[rows[i]];
        forget_changed(row, n_lists, sequences[i]);
        for (uint32_t lane = 0; lane < n_lists; lane++) {
            n = collect(table, rows[i], sequences[i], lane, n);
            while (n == CHUNK_ENTRIES) {
                TMS_TRY(send(table, n, error));
                n = collect(table, rows[i], sequences[i], lane, 0);
            }
        }
    }
    return n > 0 ? send(table, n, error) : TAMIS_OK;
}

/* Makes the table anew with room for lanes of `pages` pages; what was on the device is sent again. */
static tamis_status widen(tms_page_table *table, uint32_t pages, tamis_error *error) {
    const tms_setup *setup = table->setup;
    tms_page_table wide = *table;
    tms_mem *narrow = table->mem;
    const uint64_t bytes = bytes_of(table);
    wide.stride = pages > 2 * table->stride ? pages : 2 * table->stride;
    if (wide.stride > setup->max_pages) wide.stride = setup->max_pages;
    TMS_TRY(tms_device_wait(setup->dev, error)); /* launches read the old one */
    TMS_TRY(tms_memory_take(setup->memory, bytes_of(&wide), &wide.mem, error));
    const tms_ref all = {wide.mem, 0};
    const tamis_status status = tms_device_fill(setup->dev, all, 0, bytes_of(&wide), error);
    if (status != TAMIS_OK) {
        tms_memory_free(setup->memory, bytes_of(&wide), wide.mem);
        return status;
    }
    *table = wide;
    tms_memory_free(setup->memory, bytes, narrow);
    for (uint32_t r = 0; r < setup->params.max_sequences; r++)
        table->rows[r].state = 0;
    return TAMIS_OK;
}

static uint32_t longest_list(const tms_page_table *table, tms_sequence *const *sequences,
                             uint32_t n) {
    const tamis_cache *cache = table->setup->cache;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t lane = 0; lane < cache->n_lists; lane++)
            if (sequences[i]->lanes[lane].length > longest)
                longest = sequences[i]->lanes[lane].length;
    return tms_pages_of(cache, longest);
}

bool tms_page_table_has(const tms_page_table *table, tms_sequence *sequence) {
    return table->rows[row_of(table, sequence->id)].id == sequence->id &&
           longest_list(table, &sequence, 1) <= table->stride;
}

tamis_status tms_page_table_bring(tms_page_table *table, tms_sequence *const *sequences, uint32_t n,
                                  uint32_t *rows, tamis_error *error) {
    const uint64_t now = ++table->n_brought;
    const uint32_t longest = longest_list(table, sequences, n);
    if (longest > table->stride) TMS_TRY(widen(table, longest, error));
    /* Sequences that have a row come first, so that none of them loses it to another of this
     * call. */
    for (uint32_t i = 0; i < n; i++) {
        tms_table_row *row = &table->rows[row_of(table, sequences[i]->id)];
        if (row->id == sequences[i]->id) row->used = now;
    }
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = row_of(table, sequences[i]->id);
        tms_table_row *row = &table->rows[rows[i]];
        if (row->id != sequences[i]->id)
            *row = (tms_table_row){.id = sequences[i]->id, .used = now, .pages = row->pages};
    }
    tamis_status status = sync(table, sequences, n, rows, error);
    for (uint32_t i = 0; i < n && status != TAMIS_OK; i++)
        table->rows[rows[i]].state = 0; /* the whole row is uploaded again */
    return status;
}
