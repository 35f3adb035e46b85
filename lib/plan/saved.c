/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a saved sequence, compared with a plan, and the stream's sections. */
#include "lib/plan/saved.h"
#include "lib/core/bytes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const uint8_t MAGIC[8] = {'t', 'a', 'm', 'i', 's', 's', 'e', 'q'};

/* Places in the header. */
enum {
    AT_VERSION = 8,
    AT_BYTES = 12,
    AT_FINGERPRINT = 16,
    AT_NUMBERS = 32,
    AT_SUM = AT_NUMBERS + 4 * TMS_SAVED_NUMBERS,
    HEADER_BYTES = AT_SUM + 8
};

/* ---- The header of a plan's sequences ---------------------------------------------------------- */

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float real_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void tms_saved_header_of(const tms_setup *setup, const uint8_t fingerprint[16], bool bounds,
                         tms_saved_header *out) {
    const tamis_cache_params *c = &setup->cache->params;
    const tamis_eviction *e = &setup->params.eviction;
    *out = (tms_saved_header){
        .numbers = {[TMS_SAVED_N_LAYERS] = c->n_layers,
                    [TMS_SAVED_N_HEADS] = c->n_heads,
                    [TMS_SAVED_N_KV_HEADS] = c->n_kv_heads,
                    [TMS_SAVED_HEAD_DIM] = c->head_dim,
                    [TMS_SAVED_PAGE_SIZE] = c->page_size,
                    [TMS_SAVED_DTYPE] = (uint32_t)c->dtype,
                    [TMS_SAVED_PLANES] = c->planes,
                    [TMS_SAVED_EVICTION] = (uint32_t)e->kind,
                    [TMS_SAVED_BUDGET] = e->budget,
                    [TMS_SAVED_SINKS] = e->sinks,
                    [TMS_SAVED_RECENT] = e->recent,
                    [TMS_SAVED_WINDOW] = e->window,
                    [TMS_SAVED_KERNEL] = e->kernel,
                    [TMS_SAVED_POOLING] = (uint32_t)e->pooling,
                    [TMS_SAVED_CHUNK] = e->chunk,
                    [TMS_SAVED_FLOOR] = bits_of(e->floor),
                    [TMS_SAVED_BETA] = bits_of(e->beta),
                    [TMS_SAVED_EVERY] = e->every,
                    [TMS_SAVED_OPTIONS] = e->options,
                    [TMS_SAVED_HAS_BOUNDS] = bounds,
                    [TMS_SAVED_BOUNDS_KIND] = (uint32_t)c->bounds.kind,
                    [TMS_SAVED_BOUNDS_WIDTH] = bits_of(c->bounds.width),
                    [TMS_SAVED_BOUNDS_DTYPE] = (uint32_t)tms_cache_bounds_dtype(c)}};
    memcpy(out->fingerprint, fingerprint, sizeof out->fingerprint);
}

void tms_saved_put_past(tms_saved_header *header, const tms_past *past) {
    header->numbers[TMS_SAVED_LENGTH] = past->length;
    header->numbers[TMS_SAVED_EVICTED_AT] = past->evicted_at;
    header->numbers[TMS_SAVED_INTACT_FROM] = past->intact_from;
    header->numbers[TMS_SAVED_SHORTEST] = past->shortest;
    header->numbers[TMS_SAVED_UNORDERED] = past->unordered;
    header->numbers[TMS_SAVED_SCORED_BY] = past->scored_by;
    header->numbers[TMS_SAVED_SCORED_NEWEST] = past->scored_newest;
    header->numbers[TMS_SAVED_SCORED_TO] = past->scored_to;
}

tms_past tms_saved_get_past(const tms_saved_header *header) {
    return (tms_past){.length = header->numbers[TMS_SAVED_LENGTH],
                      .evicted_at = header->numbers[TMS_SAVED_EVICTED_AT],
                      .intact_from = header->numbers[TMS_SAVED_INTACT_FROM],
                      .shortest = header->numbers[TMS_SAVED_SHORTEST],
                      .unordered = header->numbers[TMS_SAVED_UNORDERED],
                      .scored_by = header->numbers[TMS_SAVED_SCORED_BY],
                      .scored_newest = header->numbers[TMS_SAVED_SCORED_NEWEST],
                      .scored_to = header->numbers[TMS_SAVED_SCORED_TO]};
}

/* ---- Comparing ------------------------------------------------------------------------------- */

typedef enum form { NUMBER, REAL, DTYPE, EVICTION } form;

static const struct {
    const char *name, *whose;
    form form;
} shape[] = {
#define ROW(name, text, whose, form) [TMS_SAVED_##name] = {text, whose, form},
    TMS_SAVED_SHAPE(ROW)
#undef ROW
};
#define N_SHAPE (sizeof shape / sizeof *shape)

typedef struct value_text {
    char text[40];
} value_text;

static value_text say(form as, uint32_t value) {
    value_text out;
    const char *name = as == DTYPE      ? tamis_dtype_name((tamis_dtype)value)
                       : as == EVICTION ? tamis_eviction_name((tamis_eviction_kind)value)
                                        : "unknown";
    if (as == REAL)
        snprintf(out.text, sizeof out.text, "%.9g", (double)real_of(value));
    else if (strcmp(name, "unknown") == 0)
        snprintf(out.text, sizeof out.text, "%" PRIu32, value);
    else
        snprintf(out.text, sizeof out.text, "%s", name);
    return out;
}

static tamis_status check_shape(const tms_saved_header *own, const tms_saved_header *header,
                                tamis_error *error) {
    if (memcmp(header->fingerprint, own->fingerprint, sizeof own->fingerprint) != 0) {
        char saved[33], have[33];
        tms_hex(header->fingerprint, saved);
        tms_hex(own->fingerprint, have);
        return tms_error_set(error, TAMIS_E_ARGUMENT,
                             "the model's fingerprint is %s in the saved sequence, %s here", saved,
                             have);
    }
    for (size_t i = 0; i < N_SHAPE; i++)
        TMS_REQUIRE(header->numbers[i] == own->numbers[i], TAMIS_E_ARGUMENT,
                    "%s is %s in the saved sequence, %s in the %s", shape[i].name,
                    say(shape[i].form, header->numbers[i]).text,
                    say(shape[i].form, own->numbers[i]).text, shape[i].whose);
    return TAMIS_OK;
}

static tamis_status check_flag(const tms_saved_header *header, tms_saved_number number,
                               const char *name, tamis_error *error) {
    TMS_REQUIRE(header->numbers[number] <= 1, TAMIS_E_FORMAT,
                "%s of a saved sequence is %" PRIu32 ", not 0 or 1", name, header->numbers[number]);
    return TAMIS_OK;
}

static tamis_status check_queries(const tms_setup *setup, const uint32_t *numbers,
                                  tamis_error *error) {
    const uint32_t from = numbers[TMS_SAVED_QUERIES_FROM], to = numbers[TMS_SAVED_QUERIES_TO];
    TMS_REQUIRE(from <= to && to <= numbers[TMS_SAVED_LENGTH] && to - from <= setup->needs.window,
                TAMIS_E_FORMAT,
                "a saved sequence of %" PRIu32 " tokens has queries of positions %" PRIu32
                " to below %" PRIu32 ", under an eviction that keeps %" PRIu32,
                numbers[TMS_SAVED_LENGTH], from, to, setup->needs.window);
    return TAMIS_OK;
}

tamis_status tms_saved_check_header(const tms_setup *setup, const tms_saved_header *own,
                                    const tms_saved_header *header, tamis_error *error) {
    const uint32_t *numbers = header->numbers, dtype = numbers[TMS_SAVED_BOUNDS_DTYPE];
    TMS_TRY(check_shape(own, header, error));
    TMS_TRY(check_flag(header, TMS_SAVED_HAS_BOUNDS, "bounds", error));
    TMS_TRY(check_flag(header, TMS_SAVED_UNORDERED, "unordered", error));
    TMS_TRY(check_flag(header, TMS_SAVED_SCORED_NEWEST, "scored_newest", error));
    TMS_REQUIRE(tms_dtype_known(dtype) && tms_bounds_dtype((tamis_dtype)dtype) == dtype,
                TAMIS_E_FORMAT, "a saved sequence has bounds of dtype %" PRIu32, dtype);
    TMS_REQUIRE(numbers[TMS_SAVED_LENGTH] <= setup->params.max_context, TAMIS_E_ARGUMENT,
                "the %" PRIu32 " tokens of the saved sequence exceed max_context %" PRIu32,
                numbers[TMS_SAVED_LENGTH], setup->params.max_context);
    return check_queries(setup, numbers, error);
}

/* ---- The stream ------------------------------------------------------------------------------ */

static tamis_status put(tms_stream *stream, const uint8_t *bytes, uint64_t n, tamis_error *error) {
    const int answer = n > 0 ? stream->write(stream->user, bytes, (size_t)n) : 0;
    TMS_REQUIRE(answer == 0, TAMIS_E_IO,
                "writing %" PRIu64 " bytes behind byte %" PRIu64 " of a saved sequence answered %d",
                n, stream->at, answer);
    stream->at += n;
    return TAMIS_OK;
}

static tamis_status get(tms_stream *stream, uint8_t *to, uint64_t n, tamis_error *error) {
    const int answer = n > 0 ? stream->read(stream->user, to, (size_t)n) : 0;
    TMS_REQUIRE(answer == 0, TAMIS_E_IO,
                "reading %" PRIu64 " bytes behind byte %" PRIu64 " of a saved sequence answered %d",
                n, stream->at, answer);
    stream->at += n;
    return TAMIS_OK;
}

static tamis_status put_sum(tms_stream *stream, tamis_error *error) {
    uint8_t bytes[8];
    tms_put_u64(bytes, stream->sum);
    return put(stream, bytes, sizeof bytes, error);
}

/* Compares what was read since byte `from` with the sum behind it. */
static tamis_status get_sum(tms_stream *stream, uint64_t from, tamis_error *error) {
    uint8_t bytes[8];
    const uint64_t to = stream->at;
    TMS_TRY(get(stream, bytes, sizeof bytes, error));
    TMS_REQUIRE(tms_get_u64(bytes) == stream->sum, TAMIS_E_DAMAGED,
                "bytes %" PRIu64 " to %" PRIu64 " of a saved sequence have the checksum %016" PRIx64
                ", not %016" PRIx64,
                from, to - 1, stream->sum, tms_get_u64(bytes));
    return TAMIS_OK;
}

tamis_status tms_saved_write_header(tms_stream *stream, const tms_saved_header *header,
                                    tamis_error *error) {
    uint8_t bytes[AT_SUM];
    memcpy(bytes, MAGIC, sizeof MAGIC);
    tms_put_u32(bytes + AT_VERSION, TMS_SAVED_VERSION);
    tms_put_u32(bytes + AT_BYTES, HEADER_BYTES);
    memcpy(bytes + AT_FINGERPRINT, header->fingerprint, sizeof header->fingerprint);
    for (uint32_t i = 0; i < TMS_SAVED_NUMBERS; i++)
        tms_put_u32(bytes + AT_NUMBERS + 4 * i, header->numbers[i]);
    stream->sum = tms_sum(TMS_SUM_BEGIN, bytes, sizeof bytes);
    TMS_TRY(put(stream, bytes, sizeof bytes, error));
    return put_sum(stream, error);
}

tamis_status tms_saved_read_header(tms_stream *stream, tms_saved_header *out, tamis_error *error) {
    uint8_t bytes[AT_SUM];
    TMS_TRY(get(stream, bytes, AT_FINGERPRINT, error));
    TMS_REQUIRE(memcmp(bytes, MAGIC, sizeof MAGIC) == 0, TAMIS_E_FORMAT,
                "the bytes are no saved sequence: they do not begin with \"tamisseq\"");
    TMS_REQUIRE(tms_get_u32(bytes + AT_VERSION) == TMS_SAVED_VERSION, TAMIS_E_FORMAT,
                "the saved sequence has version %" PRIu32 "; this library reads %u",
                tms_get_u32(bytes + AT_VERSION), TMS_SAVED_VERSION);
    TMS_REQUIRE(tms_get_u32(bytes + AT_BYTES) == HEADER_BYTES, TAMIS_E_FORMAT,
                "the header of a saved sequence has %" PRIu32 " bytes, not %d",
                tms_get_u32(bytes + AT_BYTES), HEADER_BYTES);
    TMS_TRY(get(stream, bytes + AT_FINGERPRINT, AT_SUM - AT_FINGERPRINT, error));
    stream->sum = tms_sum(TMS_SUM_BEGIN, bytes, sizeof bytes);
    TMS_TRY(get_sum(stream, 0, error));
    memcpy(out->fingerprint, bytes + AT_FINGERPRINT, sizeof out->fingerprint);
    for (uint32_t i = 0; i < TMS_SAVED_NUMBERS; i++)
        out->numbers[i] = tms_get_u32(bytes + AT_NUMBERS + 4 * i);
    return TAMIS_OK;
}

uint64_t tms_saved_section_bytes(const tms_setup *setup) {
    const tamis_cache *cache = setup->cache;
    const uint32_t pages = tms_saved_pages(cache);
    const uint64_t sizes[] = {pages * (cache->size.page_bytes + cache->size.plane_bytes),
                              tms_saved_bounds_bytes(TAMIS_F32, cache->params.head_dim, pages),
                              tms_setup_width(setup) * sizeof(float)};
    uint64_t most = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] > most) most = sizes[i];
    return most;
}

tamis_status tms_saved_write_section(tms_stream *stream, tms_saved_kind kind, const uint8_t *bytes,
                                     uint64_t n, tamis_error *error) {
    uint8_t frame[8];
    tms_put_u32(frame, (uint32_t)kind);
    tms_put_u32(frame + 4, (uint32_t)n);
    stream->sum = tms_sum(tms_sum(stream->sum, frame, sizeof frame), bytes, (size_t)n);
    TMS_TRY(put(stream, frame, sizeof frame, error));
    TMS_TRY(put(stream, bytes, n, error));
    return put_sum(stream, error);
}

tamis_status tms_saved_read_section(tms_stream *stream, tms_saved_kind kind, uint8_t *to,
                                    uint64_t n, tamis_error *error) {
    uint8_t frame[8];
    const uint64_t from = stream->at;
    TMS_TRY(get(stream, frame, sizeof frame, error));
    TMS_REQUIRE(tms_get_u32(frame) == (uint32_t)kind && tms_get_u32(frame + 4) == n, TAMIS_E_FORMAT,
                "at byte %" PRIu64 " of a saved sequence a section of kind %" PRIu32 " has %" PRIu32
                " bytes; there must be one of kind %d and %" PRIu64,
                from, tms_get_u32(frame), tms_get_u32(frame + 4), (int)kind, n);
    TMS_TRY(get(stream, to, n, error));
    stream->sum = tms_sum(tms_sum(stream->sum, frame, sizeof frame), to, (size_t)n);
    return get_sum(stream, from, error);
}
