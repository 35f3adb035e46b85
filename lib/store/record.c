/* SPDX-License-Identifier: Apache-2.0 */
/* Records as bytes: writing headers, reading them as hostile, checking planes. */
#define XXH_INLINE_ALL
#include "lib/store/record.h"
#include "lib/core/bytes.h"
#include "lib/core/core.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Places in the header. */
enum {
    AT_MAGIC = 0,
    AT_VERSION = 8,
    AT_HEADER_BYTES = 12,
    AT_CHECKSUM = 16,
    AT_CODEC = 24,
    AT_ORDER = 28,
    AT_FINGERPRINT = 32,
    AT_SALT = 48,
    AT_KEY = 64,
    AT_PARENT = 80,
    AT_TOKENS = 96,
    AT_LAYERS = 100,
    AT_HEADS = 104,
    AT_DIM = 108,
    AT_DTYPE = 112,
    AT_SINK = 116,
    AT_PLANE_BYTES = 120,
    AT_RECORD_BYTES = 128,
    AT_CACHE = 136,
    AT_RESERVED = 140 /* zeros up to TMS_RECORD_FIXED */
};

/* Planes as they are, the only codec yet. Another one has stored bytes of other numbers. */
#define CODEC_PLAIN 0u
/* Of the largest header, with 1024 layers. */
#define MOST_HEADER                                                                                \
    tms_whole_pages(TMS_RECORD_FIXED + UINT64_C(2048) * TMS_RECORD_PLANE +                         \
                    UINT64_C(4) * TMS_MOST_TOKENS)

static const uint8_t MAGIC[8] = "tamiskv";

/* The byte order of planes: 1 little-endian, 2 big-endian. */
static uint32_t native_order(void) {
    const uint16_t one = 1;
    uint8_t first;
    memcpy(&first, &one, 1);
    return first == 1 ? 1 : 2;
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

/* Sizes that follow from shape and tokens, which are within their limits: below 2^58. */
static void set_sizes(tms_record *record) {
    const tamis_chunk_shape *shape = &record->shape;
    const uint64_t planes = tms_record_planes(record);
    record->plane_bytes = (uint64_t)record->n_tokens * shape->n_kv_heads * shape->head_dim *
                          tamis_dtype_size(shape->dtype);
    record->header_bytes = tms_whole_pages(TMS_RECORD_FIXED + planes * TMS_RECORD_PLANE +
                                           (uint64_t)record->n_tokens * 4);
    record->record_bytes = record->header_bytes + tms_whole_pages(record->plane_bytes) * planes;
}

/* A record of a caller's shape without its content; all sizes are 0 for a shape that is none. */
static tms_record sizes_of(const tamis_chunk_shape *shape, uint32_t n_tokens) {
    tms_record record = {.n_tokens = n_tokens};
    if (!shape || n_tokens < 1 || n_tokens > TMS_MOST_TOKENS) return record;
    record.shape = *shape;
    if (tms_shape_check(shape, NULL) == TAMIS_OK) set_sizes(&record);
    return record;
}

uint64_t tamis_chunk_plane_bytes(const tamis_chunk_shape *shape, uint32_t n_tokens) {
    return sizes_of(shape, n_tokens).plane_bytes;
}

uint64_t tamis_chunk_record_bytes(const tamis_chunk_shape *shape, uint32_t n_tokens) {
    return sizes_of(shape, n_tokens).record_bytes;
}

/* ---- Making ---------------------------------------------------------------------------------- */

static tamis_status take_memory(tms_record *record, tamis_error *error) {
    const size_t planes = tms_record_planes(record);
    record->planes = malloc(planes * sizeof *record->planes + record->n_tokens * sizeof(int32_t));
    TMS_REQUIRE(record->planes, TAMIS_E_NO_MEMORY, "no memory for the header of a chunk");
    record->tokens = (int32_t *)(record->planes + planes);
    return TAMIS_OK;
}

void tms_record_free(tms_record *record) {
    free(record->planes);
    *record = (tms_record){0};
}

tamis_status tms_record_copy(const tms_record *record, tms_record *out, tamis_error *error) {
    *out = *record;
    const tamis_status status = take_memory(out, error);
    if (status != TAMIS_OK) {
        *out = (tms_record){0};
        return status;
    }
    memcpy(out->planes, record->planes, tms_record_planes(record) * sizeof *record->planes);
    memcpy(out->tokens, record->tokens, record->n_tokens * sizeof *record->tokens);
    return TAMIS_OK;
}

static tamis_status check_planes(const tamis_chunk_planes *chunk, tamis_error *error) {
    TMS_REQUIRE(chunk->k && chunk->v, TAMIS_E_ARGUMENT, "%s of the chunk: NULL",
                chunk->k ? "v" : "k");
    for (uint32_t i = 0; i < chunk->id.shape.n_layers; i++)
        TMS_REQUIRE(chunk->k[i] && chunk->v[i], TAMIS_E_ARGUMENT, "%s of layer %" PRIu32 ": NULL",
                    chunk->k[i] ? "v" : "k", i);
    return TAMIS_OK;
}

tamis_status tms_record_describe(const tamis_chunk_planes *chunk, tms_record *out,
                                 tamis_error *error) {
    const tamis_chunk_id *id = &chunk->id;
    *out = (tms_record){0};
    TMS_TRY(check_planes(chunk, error));
    tms_record record = sizes_of(&id->shape, id->n_tokens);
    TMS_TRY(take_memory(&record, error));
    tms_key_of(id, record.key);
    memcpy(record.fingerprint, id->fingerprint, sizeof record.fingerprint);
    memcpy(record.salt, id->salt, sizeof record.salt);
    memcpy(record.parent, id->parent, sizeof record.parent);
    memcpy(record.tokens, id->tokens, record.n_tokens * sizeof *record.tokens);
    const uint64_t stride = tms_whole_pages(record.plane_bytes);
    for (uint32_t i = 0; i < tms_record_planes(&record); i++) {
        const void *plane = (i % 2 ? chunk->v : chunk->k)[i / 2];
        record.planes[i] = (tms_plane){record.header_bytes + stride * i, record.plane_bytes,
                                       XXH3_64bits(plane, record.plane_bytes)};
    }
    *out = record;
    return TAMIS_OK;
}

static void encode_fixed(const tms_record *record, uint8_t *head) {
    const tamis_chunk_shape *shape = &record->shape;
    memcpy(head + AT_MAGIC, MAGIC, sizeof MAGIC);
    tms_put_u32(head + AT_VERSION, TMS_RECORD_VERSION);
    tms_put_u32(head + AT_HEADER_BYTES, (uint32_t)record->header_bytes);
    tms_put_u32(head + AT_CODEC, CODEC_PLAIN);
    tms_put_u32(head + AT_ORDER, native_order());
    memcpy(head + AT_FINGERPRINT, record->fingerprint, sizeof record->fingerprint);
    memcpy(head + AT_SALT, record->salt, sizeof record->salt);
    memcpy(head + AT_KEY, record->key, sizeof record->key);
    memcpy(head + AT_PARENT, record->parent, sizeof record->parent);
    tms_put_u32(head + AT_TOKENS, record->n_tokens);
    tms_put_u32(head + AT_LAYERS, shape->n_layers);
    tms_put_u32(head + AT_HEADS, shape->n_kv_heads);
    tms_put_u32(head + AT_DIM, shape->head_dim);
    tms_put_u32(head + AT_DTYPE, (uint32_t)shape->dtype);
    tms_put_u32(head + AT_SINK, shape->sink);
    tms_put_u64(head + AT_PLANE_BYTES, record->plane_bytes);
    tms_put_u64(head + AT_RECORD_BYTES, record->record_bytes);
    tms_put_u32(head + AT_CACHE, (uint32_t)shape->cache_dtype);
}

uint8_t *tms_record_encode(tms_record *record) {
    uint8_t *head = calloc(1, record->header_bytes);
    if (!head) return NULL;
    encode_fixed(record, head);
    uint8_t *to = head + TMS_RECORD_FIXED;
    for (uint32_t i = 0; i < tms_record_planes(record); i++, to += TMS_RECORD_PLANE) {
        tms_put_u64(to, record->planes[i].offset);
        tms_put_u64(to + 8, record->planes[i].bytes);
        tms_put_u64(to + 16, record->planes[i].sum);
    }
    for (uint32_t i = 0; i < record->n_tokens; i++, to += 4)
        tms_put_u32(to, (uint32_t)record->tokens[i]);
    record->checksum = XXH3_64bits(head, record->header_bytes);
    tms_put_u64(head + AT_CHECKSUM, record->checksum);
    return head;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static bool all_zero(const uint8_t *from, const uint8_t *to) {
    while (from < to && *from == 0)
        from++;
    return from == to;
}

/* The first page: of this version, with a length of the header that the source's bytes hold, so
 * that what is then read and allocated is bounded by them. */
static tms_verdict decode_start(const uint8_t *head, uint64_t bytes, uint64_t *header_bytes) {
    *header_bytes = tms_get_u32(head + AT_HEADER_BYTES);
    if (memcmp(head + AT_MAGIC, MAGIC, sizeof MAGIC) != 0) return TMS_DAMAGED;
    if (tms_get_u32(head + AT_VERSION) != TMS_RECORD_VERSION) return TMS_FOREIGN;
    const bool agrees = *header_bytes >= TMS_RECORD_PAGE && *header_bytes <= MOST_HEADER &&
                        *header_bytes % TMS_RECORD_PAGE == 0 && *header_bytes <= bytes;
    return agrees ? TMS_SOUND : TMS_DAMAGED;
}

/* Compares the checksum, which is set to 0 in `head`; only then the codec says whether the numbers
 * mean what they do here. */
static tms_verdict decode_codec(uint8_t *head, uint64_t header_bytes, uint64_t *checksum) {
    *checksum = tms_get_u64(head + AT_CHECKSUM);
    tms_put_u64(head + AT_CHECKSUM, 0);
    if (XXH3_64bits(head, header_bytes) != *checksum) return TMS_DAMAGED;
    const bool known = tms_get_u32(head + AT_CODEC) == CODEC_PLAIN &&
                       tms_get_u32(head + AT_ORDER) == native_order();
    return known ? TMS_SOUND : TMS_FOREIGN;
}

/* Each number within its limits, sizes as they follow from the others, as many bytes as there are. */
static tms_verdict decode_numbers(const uint8_t *head, uint64_t header_bytes, uint64_t bytes,
                                  tms_record *out) {
    const uint32_t n_tokens = tms_get_u32(head + AT_TOKENS), dtype = tms_get_u32(head + AT_DTYPE);
    const uint32_t cache_dtype = tms_get_u32(head + AT_CACHE);
    if (!tms_dtype_of_rows(dtype) || !tms_dtype_known(cache_dtype)) return TMS_DAMAGED;
    const tamis_chunk_shape shape = {.n_layers = tms_get_u32(head + AT_LAYERS),
                                     .n_kv_heads = tms_get_u32(head + AT_HEADS),
                                     .head_dim = tms_get_u32(head + AT_DIM),
                                     .dtype = (tamis_dtype)dtype,
                                     .sink = tms_get_u32(head + AT_SINK),
                                     .cache_dtype = (tamis_dtype)cache_dtype};
    *out = sizes_of(&shape, n_tokens);
    const bool agrees = out->record_bytes > 0 && out->record_bytes == bytes &&
                        out->header_bytes == header_bytes &&
                        tms_get_u64(head + AT_PLANE_BYTES) == out->plane_bytes &&
                        tms_get_u64(head + AT_RECORD_BYTES) == out->record_bytes &&
                        all_zero(head + AT_RESERVED, head + TMS_RECORD_FIXED);
    memcpy(out->fingerprint, head + AT_FINGERPRINT, sizeof out->fingerprint);
    memcpy(out->salt, head + AT_SALT, sizeof out->salt);
    memcpy(out->key, head + AT_KEY, sizeof out->key);
    memcpy(out->parent, head + AT_PARENT, sizeof out->parent);
    return agrees ? TMS_SOUND : TMS_DAMAGED;
}

/* The table of planes, which lie one behind the other, and the tokens. */
static tms_verdict decode_tables(const uint8_t *head, tms_record *record) {
    const uint8_t *from = head + TMS_RECORD_FIXED;
    uint64_t end = record->header_bytes;
    for (uint32_t i = 0; i < tms_record_planes(record); i++, from += TMS_RECORD_PLANE) {
        tms_plane *plane = &record->planes[i];
        *plane = (tms_plane){tms_get_u64(from), tms_get_u64(from + 8), tms_get_u64(from + 16)};
        if (plane->offset != end || plane->bytes != record->plane_bytes) return TMS_DAMAGED;
        end += tms_whole_pages(plane->bytes);
    }
    for (uint32_t i = 0; i < record->n_tokens; i++, from += 4)
        record->tokens[i] = (int32_t)tms_get_u32(from);
    return all_zero(from, head + record->header_bytes) ? TMS_SOUND : TMS_DAMAGED;
}

/* Decodes the whole header. Fills `out` if it is sound. */
static tamis_status decode(uint8_t *head, uint64_t header_bytes, uint64_t bytes, tms_record *out,
                           tms_verdict *verdict, tamis_error *error) {
    tms_record record;
    uint64_t checksum;
    *verdict = decode_codec(head, header_bytes, &checksum);
    if (*verdict == TMS_SOUND) *verdict = decode_numbers(head, header_bytes, bytes, &record);
    if (*verdict != TMS_SOUND) return TAMIS_OK;
    TMS_TRY(take_memory(&record, error));
    record.checksum = checksum;
    *verdict = decode_tables(head, &record);
    if (*verdict == TMS_SOUND)
        *out = record;
    else
        tms_record_free(&record);
    return TAMIS_OK;
}

tamis_status tms_record_read(const tms_source *source, tms_record *out, tms_verdict *verdict,
                             tamis_error *error) {
    uint8_t first[TMS_RECORD_PAGE];
    size_t got = 0;
    uint64_t header_bytes = 0;
    *out = (tms_record){0};
    TMS_TRY(source->read(source->of, 0, first, sizeof first, &got, error));
    *verdict =
        got == sizeof first ? decode_start(first, source->bytes, &header_bytes) : TMS_DAMAGED;
    if (*verdict != TMS_SOUND) return TAMIS_OK;
    uint8_t *head = malloc(header_bytes);
    TMS_REQUIRE(head, TAMIS_E_NO_MEMORY, "no memory for a header of %" PRIu64 " bytes",
                header_bytes);
    memcpy(head, first, sizeof first);
    const size_t rest = header_bytes - sizeof first;
    tamis_status status = TAMIS_OK;
    got = 0;
    if (rest > 0)
        status =
            source->read(source->of, TMS_RECORD_PAGE, head + TMS_RECORD_PAGE, rest, &got, error);
    *verdict = TMS_DAMAGED;
    if (status == TAMIS_OK && got == rest)
        status = decode(head, header_bytes, source->bytes, out, verdict, error);
    free(head);
    return status;
}

static bool same_shape(const tamis_chunk_shape *a, const tamis_chunk_shape *b) {
    return a->n_layers == b->n_layers && a->n_kv_heads == b->n_kv_heads &&
           a->head_dim == b->head_dim && a->dtype == b->dtype && a->sink == b->sink &&
           a->cache_dtype == b->cache_dtype;
}

bool tms_record_is(const tms_record *record, const tamis_chunk_id *id) {
    if (!id) return true;
    return record->n_tokens == id->n_tokens && same_shape(&record->shape, &id->shape) &&
           memcmp(record->fingerprint, id->fingerprint, sizeof record->fingerprint) == 0 &&
           memcmp(record->salt, id->salt, sizeof record->salt) == 0 &&
           memcmp(record->parent, id->parent, sizeof record->parent) == 0 &&
           memcmp(record->tokens, id->tokens, record->n_tokens * sizeof *record->tokens) == 0;
}

/* A plane, and the zeros behind it. */
static tamis_status read_padded(const tms_source *source, const tms_plane *plane, void *to,
                                uint8_t *padding, size_t more, size_t *got, tamis_error *error) {
    size_t behind = 0;
    if (source->read_two)
        return source->read_two(source->of, plane->offset, to, plane->bytes, padding, more, got,
                                error);
    TMS_TRY(source->read(source->of, plane->offset, to, plane->bytes, got, error));
    if (more == 0 || *got < plane->bytes) return TAMIS_OK;
    TMS_TRY(source->read(source->of, plane->offset + plane->bytes, padding, more, &behind, error));
    *got += behind;
    return TAMIS_OK;
}

tamis_status tms_record_read_plane(const tms_source *source, const tms_record *record,
                                   uint32_t plane, void *to, tamis_error *error) {
    const tms_plane *stored = &record->planes[plane];
    uint8_t padding[TMS_RECORD_PAGE];
    const size_t more = tms_whole_pages(stored->bytes) - stored->bytes;
    size_t got = 0;
    TMS_TRY(read_padded(source, stored, to, padding, more, &got, error));
    const bool sound = got == stored->bytes + more && all_zero(padding, padding + more) &&
                       XXH3_64bits(to, stored->bytes) == stored->sum;
    if (got > stored->bytes) got = stored->bytes;
    char key[TMS_KEY_TEXT];
    tms_hex(record->key, key);
    TMS_REQUIRE(sound, TAMIS_E_DAMAGED,
                "%c of layer %" PRIu32 " of chunk %s is not what was stored (%zu of %" PRIu64
                " bytes are there)",
                plane % 2 ? 'V' : 'K', plane / 2, key, got, stored->bytes);
    return TAMIS_OK;
}
