/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of a lane as bytes that do not depend on the host: those slots that hold tokens, in the
 * cache's own dtype, bit for bit; and back. */
#include "lib/cache/cache.h"
#include "lib/core/bytes.h"

#include <inttypes.h>
#include <string.h>

/* K, V and planes of a run are about as many bytes at most. */
#define RUN_BYTES (UINT64_C(1) << 18)

/* What lies in each page of a memory, one entry for a slot; made of words of that many bytes. */
typedef struct column {
    uint64_t at, bytes; /* where the first entry begins in the page; of an entry */
    uint32_t word;
} column;

/* A memory of a pool: pages one behind another. */
typedef struct memory {
    tms_mem *mem;
    uint64_t page_bytes;
    uint32_t page_slots; /* entries of each column in a full page */
    column columns[4];
    uint32_t n_columns;
} memory;

#define MOST_MEMORIES 3 /* K and V, positions, scores */

/* Rows of K or of V, and behind all of a page's rows the numbers of their blocks. */
static void add_rows(memory *s, tamis_dtype dtype, const tamis_cache_params *p, uint64_t at) {
    const uint64_t row = tms_row_size(dtype, p->head_dim) * tms_kv_unit(dtype);
    const uint64_t numbers = 2ull * tms_block_numbers(dtype) * tms_blocks(p->head_dim);
    s->columns[s->n_columns++] = (column){at, row, (uint32_t)tms_kv_unit(dtype)};
    if (numbers) s->columns[s->n_columns++] = (column){at + p->page_size * row, numbers, 2};
}

static memory rows_memory(const tamis_cache *cache, const tms_pool *pool) {
    const tamis_cache_params *p = &cache->params;
    memory s = {
        .mem = pool->data, .page_bytes = cache->size.page_bytes, .page_slots = p->page_size};
    add_rows(&s, tms_key_dtype(p->dtype), p, 0);
    add_rows(&s, tms_value_dtype(p->dtype), p, tms_key_bytes(p->dtype, p->page_size, p->head_dim));
    return s;
}

static memory plane_memory(const tamis_cache *cache, tms_mem *plane) {
    return (memory){.mem = plane,
                    .page_bytes = cache->params.page_size * sizeof(int32_t),
                    .page_slots = cache->params.page_size,
                    .columns = {{0, sizeof(int32_t), sizeof(int32_t)}},
                    .n_columns = 1};
}

/* A pair and the scales of its blocks count as one entry of a page. */
static memory bounds_memory(tamis_dtype dtype, uint32_t head_dim) {
    const uint64_t pair = 2ull * head_dim * tms_kv_unit(dtype);
    const uint64_t scales = 2ull * tms_block_numbers(dtype) * tms_blocks(head_dim);
    memory s = {.page_bytes = tms_bounds_pair(dtype, head_dim) * tms_kv_unit(dtype),
                .page_slots = 1,
                .columns = {{0, pair, (uint32_t)tms_kv_unit(dtype)}, {pair, scales, 2}},
                .n_columns = scales ? 2 : 1};
    return s;
}

static uint32_t memories_of(const tamis_cache *cache, uint32_t lane, memory out[MOST_MEMORIES]) {
    const tms_pool *pool = tms_cache_pool(cache, lane / cache->params.n_kv_heads);
    uint32_t n = 0;
    out[n++] = rows_memory(cache, pool);
    if (pool->positions) out[n++] = plane_memory(cache, pool->positions);
    if (pool->scores) out[n++] = plane_memory(cache, pool->scores);
    return n;
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

static uint64_t entry_bytes(const memory *s) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n_columns; i++)
        bytes += s->columns[i].bytes;
    return bytes;
}

/* Slots of a run that hold tokens. */
static uint32_t run_slots(const tamis_cache *cache, const tms_sequence *sequence,
                          const tms_page_run *run) {
    const uint32_t size = cache->params.page_size, first = run->first * size;
    const uint32_t left = sequence->lanes[run->lane].length - first;
    return left / size < run->n ? left : run->n * size;
}

uint32_t tms_saved_pages(const tamis_cache *cache) {
    const uint64_t n = RUN_BYTES / (cache->size.page_bytes + cache->size.plane_bytes);
    return n > 0 ? (uint32_t)n : 1;
}

uint32_t tms_saved_full(const tamis_cache *cache, const tms_sequence *sequence,
                        const tms_page_run *run) {
    return run_slots(cache, sequence, run) / cache->params.page_size;
}

uint64_t tms_saved_bytes(const tamis_cache *cache, const tms_sequence *sequence,
                         const tms_page_run *run) {
    memory memories[MOST_MEMORIES];
    const uint32_t n = memories_of(cache, run->lane, memories);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        bytes += run_slots(cache, sequence, run) * entry_bytes(&memories[i]);
    return bytes;
}

uint64_t tms_saved_bounds_bytes(tamis_dtype dtype, uint32_t head_dim, uint32_t n) {
    const memory s = bounds_memory(dtype, head_dim);
    return n * entry_bytes(&s);
}

uint64_t tms_saved_work(const tamis_cache *cache) {
    uint64_t page = cache->size.page_bytes;
    if (cache->size.bounds_bytes > page) page = cache->size.bounds_bytes;
    return tms_saved_pages(cache) * page;
}

/* ---- Between device and host ----------------------------------------------------------------- */

/* How many of the pages at the list's front follow each other in memory. */
static uint32_t stretch(const int32_t *list, uint32_t n) {
    uint32_t same = 1;
    while (same < n && list[same] == list[same - 1] + 1)
        same++;
    return same;
}

static tms_ref page_of(const memory *s, int32_t page) {
    return (tms_ref){s->mem, (uint64_t)page * s->page_bytes};
}

static tamis_status fetch(const tamis_cache *cache, const memory *s, const int32_t *list,
                          uint32_t n, uint8_t *to, tamis_error *error) {
    for (uint32_t done = 0, m; done < n; done += m) {
        m = stretch(list + done, n - done);
        TMS_TRY(tms_device_read(cache->context->dev, page_of(s, list[done]),
                                to + done * s->page_bytes, m * s->page_bytes, error));
    }
    return TAMIS_OK;
}

static tamis_status put_back(const tamis_cache *cache, const memory *s, const int32_t *list,
                             uint32_t n, const uint8_t *from, tamis_error *error) {
    for (uint32_t done = 0, m; done < n; done += m) {
        m = stretch(list + done, n - done);
        TMS_TRY(tms_device_write(cache->context->dev, page_of(s, list[done]),
                                 from + done * s->page_bytes, m * s->page_bytes, error));
    }
    return TAMIS_OK;
}

/* ---- Between pages and bytes ----------------------------------------------------------------- */

/* Entries that a page has of the `left` of its run. */
static uint32_t used(const memory *s, uint32_t left) {
    return left < s->page_slots ? left : s->page_slots;
}

/* Page after page, of each the columns. Returns the end of what was written. */
static uint8_t *pack(const memory *s, uint32_t entries, const uint8_t *pages, uint8_t *to) {
    for (uint32_t n; entries > 0; entries -= n, pages += s->page_bytes) {
        n = used(s, entries);
        for (uint32_t i = 0; i < s->n_columns; i++) {
            const column *c = &s->columns[i];
            tms_put_words(to, pages + c->at, n * c->bytes, c->word);
            to += n * c->bytes;
        }
    }
    return to;
}

static const uint8_t *unpack(const memory *s, uint32_t entries, const uint8_t *from,
                             uint8_t *pages) {
    for (uint32_t n; entries > 0; entries -= n, pages += s->page_bytes) {
        n = used(s, entries);
        memset(pages, 0, s->page_bytes);
        for (uint32_t i = 0; i < s->n_columns; i++) {
            const column *c = &s->columns[i];
            tms_get_words(pages + c->at, from, n * c->bytes, c->word);
            from += n * c->bytes;
        }
    }
    return from;
}

static const int32_t *list_of(const tms_sequence *sequence, const tms_page_run *run) {
    return tms_lane_pages(sequence, run->lane) + run->first;
}

tamis_status tms_cache_save_pages(const tamis_cache *cache, const tms_sequence *sequence,
                                  const tms_page_run *run, void *work, uint8_t *to,
                                  tamis_error *error) {
    memory memories[MOST_MEMORIES];
    const uint32_t n = memories_of(cache, run->lane, memories);
    for (uint32_t i = 0; i < n; i++) {
        TMS_TRY(fetch(cache, &memories[i], list_of(sequence, run), run->n, work, error));
        to = pack(&memories[i], run_slots(cache, sequence, run), work, to);
    }
    return TAMIS_OK;
}

tamis_status tms_cache_restore_pages(const tamis_cache *cache, const tms_sequence *sequence,
                                     const tms_page_run *run, void *work, const uint8_t *from,
                                     tamis_error *error) {
    memory memories[MOST_MEMORIES];
    const uint32_t n = memories_of(cache, run->lane, memories);
    for (uint32_t i = 0; i < n; i++) {
        from = unpack(&memories[i], run_slots(cache, sequence, run), from, work);
        TMS_TRY(put_back(cache, &memories[i], list_of(sequence, run), run->n, work, error));
    }
    return TAMIS_OK;
}

/* ---- Bounds ---------------------------------------------------------------------------------- */

static memory own_bounds(const tamis_cache *cache, uint32_t lane) {
    memory s = bounds_memory(tms_cache_bounds_dtype(&cache->params), cache->params.head_dim);
    s.mem = tms_cache_pool(cache, lane / cache->params.n_kv_heads)->bounds;
    return s;
}

tamis_status tms_cache_save_bounds(const tamis_cache *cache, const tms_sequence *sequence,
                                   const tms_page_run *run, void *work, uint8_t *to,
                                   tamis_error *error) {
    const memory s = own_bounds(cache, run->lane);
    const uint32_t n = tms_saved_full(cache, sequence, run);
    TMS_TRY(fetch(cache, &s, list_of(sequence, run), n, work, error));
    (void)pack(&s, n, work, to);
    return TAMIS_OK;
}

tamis_status tms_cache_restore_bounds(const tamis_cache *cache, const tms_sequence *sequence,
                                      const tms_page_run *run, void *work, const uint8_t *from,
                                      tamis_error *error) {
    const memory s = own_bounds(cache, run->lane);
    const uint32_t n = tms_saved_full(cache, sequence, run);
    (void)unpack(&s, n, from, work);
    return put_back(cache, &s, list_of(sequence, run), n, work, error);
}

/* ---- Positions ------------------------------------------------------------------------------- */

/* Positions are below the length, ascend where slots are in the order of their tokens, and end with
 * all from intact_from on. */
tamis_status tms_cache_check_positions(const tamis_cache *cache, const tms_sequence *sequence,
                                       const tms_page_run *run, const tms_past *past,
                                       const uint8_t *from, tamis_error *error) {
    const uint32_t first = run->first * cache->params.page_size;
    const uint32_t n = run_slots(cache, sequence, run), length = sequence->lanes[run->lane].length;
    memory memories[MOST_MEMORIES];
    (void)memories_of(cache, run->lane, memories);
    if (!(cache->params.planes & TAMIS_PLANE_POSITIONS)) return TAMIS_OK;
    from += n * entry_bytes(&memories[0]);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t position = tms_get_u32(from + 4ull * i);
        /* The slot's place from the end, where the lane holds all. */
        const uint32_t whole = past->length - (length - first - i);
        const bool ascends =
            past->unordered || i == 0 || position > tms_get_u32(from + 4ull * (i - 1));
        TMS_REQUIRE(position < past->length && ascends &&
                        (whole < past->intact_from || position == whole),
                    TAMIS_E_FORMAT,
                    "slot %" PRIu32 " of lane %" PRIu32 " of a saved sequence of %" PRIu32
                    " tokens has position %" PRIu32,
                    first + i, run->lane, past->length, position);
    }
    return TAMIS_OK;
}
