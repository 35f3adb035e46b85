/* SPDX-License-Identifier: Apache-2.0 */
/* Records as bytes: writing headers, reading them as hostile, checking planes. */
#define XXH_INLINE_ALL
#include "lib/store/record.h"
#include "lib/core/core.h"
#include "lib/store/bytes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Places in the header. */
enum {
    AT_MAGIC = 0,
    AT_VERSION = 8,
    AT_HEADER_BYTES = 12,
    AT_FINGERPRINT = 16,
    AT_SALT = 32,
    AT_KEY = 48,
    AT_TOKENS = 64,
    AT_LAYERS = 68,
    AT_HEADS = 72,
    AT_DIM = 76,
    AT_DTYPE = 80,
    AT_SINK = 84,
    AT_CODEC = 88,
    AT_ORDER = 92,
    AT_PLANE_BYTES = 96,
    AT_STRIDE = 104,
    AT_RECORD_BYTES = 112,
    AT_CHECKSUM = 120,
    FIXED_BYTES = 128 /* sums of planes, then tokens */
};

#define MOST_LAYERS 1024u
#define MOST_HEADS  1024u
#define MOST_DIM    4096u
/* Planes as they are. A codec that changes their sizes needs another version of the format: this one
 * takes other sizes for damage. */
#define CODEC_PLAIN 0u

static const uint8_t MAGIC[8] = "tamiskv";

/* The byte order of planes: 1 little-endian, 2 big-endian. */
static uint32_t native_order(void) {
    const uint16_t one = 1;
    uint8_t first;
    memcpy(&first, &one, 1);
    return first == 1 ? 1 : 2;
}

static uint64_t whole_pages(uint64_t bytes) {
    return (bytes + TMS_RECORD_PAGE - 1) / TMS_RECORD_PAGE * TMS_RECORD_PAGE;
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

tamis_status tms_shape_check(const tamis_chunk_shape *shape, tamis_error *error) {
    const struct {
        const char *name;
        uint32_t value, most;
    } fields[] = {{"n_layers", shape->n_layers, MOST_LAYERS},
                  {"n_kv_heads", shape->n_kv_heads, MOST_HEADS},
                  {"head_dim", shape->head_dim, MOST_DIM}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        TMS_REQUIRE(fields[i].value >= 1 && fields[i].value <= fields[i].most, TAMIS_E_ARGUMENT,
                    "%s of the chunk is %" PRIu32 ": it must be 1 to %" PRIu32, fields[i].name,
                    fields[i].value, fields[i].most);
    TMS_REQUIRE(tamis_dtype_size(shape->dtype) > 0, TAMIS_E_ARGUMENT, "dtype of the chunk is %d",
                (int)shape->dtype);
    TMS_REQUIRE(shape->reserved32 == 0, TAMIS_E_ARGUMENT,
                "reserved32 of tamis_chunk_shape is %" PRIu32 "; it must be 0", shape->reserved32);
    TMS_REQUIRE_RESERVED(shape, tamis_chunk_shape);
    return TAMIS_OK;
}

/* Sizes that follow from shape and tokens, which are within their limits: below 2^58. */
static void set_sizes(tms_record *record) {
    const tamis_chunk_shape *shape = &record->shape;
    record->plane_bytes = (uint64_t)record->n_tokens * shape->n_kv_heads * shape->head_dim *
                          tamis_dtype_size(shape->dtype);
    record->plane_stride = whole_pages(record->plane_bytes);
    record->header_bytes = whole_pages(FIXED_BYTES + (uint64_t)tms_record_planes(record) * 8 +
                                       (uint64_t)record->n_tokens * 4);
    record->record_bytes = record->header_bytes + record->plane_stride * tms_record_planes(record);
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

uint64_t tms_record_offset(const tms_record *record, uint32_t plane) {
    return record->header_bytes + record->plane_stride * plane;
}

/* ---- Making ---------------------------------------------------------------------------------- */

static tamis_status take_memory(tms_record *record, tamis_error *error) {
    const size_t planes = tms_record_planes(record);
    record->sums = malloc(planes * sizeof *record->sums + record->n_tokens * sizeof(int32_t));
    TMS_REQUIRE(record->sums, TAMIS_E_NO_MEMORY, "no memory for the header of a chunk");
    record->tokens = (int32_t *)(record->sums + planes);
    return TAMIS_OK;
}

void tms_record_free(tms_record *record) {
    free(record->sums);
    *record = (tms_record){0};
}

tamis_status tms_record_copy(const tms_record *record, tms_record *out, tamis_error *error) {
    *out = *record;
    const tamis_status status = take_memory(out, error);
    if (status != TAMIS_OK) {
        *out = (tms_record){0};
        return status;
    }
    memcpy(out->sums, record->sums, tms_record_planes(record) * sizeof *record->sums);
    memcpy(out->tokens, record->tokens, record->n_tokens * sizeof *record->tokens);
    return TAMIS_OK;
}

static tamis_status check_planes(const tamis_chunk_planes *chunk, tamis_error *error) {
    TMS_REQUIRE(chunk->k && chunk->v, TAMIS_E_ARGUMENT, "%s of the chunk: NULL",
                chunk->k ? "v" : "k");
    for (uint32_t i = 0; i < chunk->shape.n_layers; i++)
        TMS_REQUIRE(chunk->k[i] && chunk->v[i], TAMIS_E_ARGUMENT, "%s of layer %" PRIu32 ": NULL",
                    chunk->k[i] ? "v" : "k", i);
    return TAMIS_OK;
}

tamis_status tms_record_describe(const tamis_chunk_planes *chunk, tms_record *out,
                                 tamis_error *error) {
    *out = (tms_record){0};
    TMS_TRY(tms_shape_check(&chunk->shape, error));
    TMS_TRY(check_planes(chunk, error));
    tms_record record = sizes_of(&chunk->shape, chunk->id.n_tokens);
    TMS_TRY(take_memory(&record, error));
    tms_key_of(&chunk->id, record.key);
    memcpy(record.fingerprint, chunk->id.fingerprint, sizeof record.fingerprint);
    memcpy(record.salt, chunk->id.salt, sizeof record.salt);
    memcpy(record.tokens, chunk->id.tokens, record.n_tokens * sizeof *record.tokens);
    for (uint32_t i = 0; i < chunk->shape.n_layers; i++) {
        record.sums[2 * i] = XXH3_64bits(chunk->k[i], record.plane_bytes);
        record.sums[2 * i + 1] = XXH3_64bits(chunk->v[i], record.plane_bytes);
    }
    *out = record;
    return TAMIS_OK;
}

static void encode_numbers(const tms_record *record, uint8_t *head) {
    const tamis_chunk_shape *shape = &record->shape;
    tms_put_u32(head + AT_VERSION, TMS_RECORD_VERSION);
    tms_put_u32(head + AT_HEADER_BYTES, (uint32_t)record->header_bytes);
    tms_put_u32(head + AT_TOKENS, record->n_tokens);
    tms_put_u32(head + AT_LAYERS, shape->n_layers);
    tms_put_u32(head + AT_HEADS, shape->n_kv_heads);
    tms_put_u32(head + AT_DIM, shape->head_dim);
    tms_put_u32(head + AT_DTYPE, (uint32_t)shape->dtype);
    tms_put_u32(head + AT_SINK, shape->sink);
    tms_put_u32(head + AT_CODEC, CODEC_PLAIN);
    tms_put_u32(head + AT_ORDER, native_order());
    tms_put_u64(head + AT_PLANE_BYTES, record->plane_bytes);
    tms_put_u64(head + AT_STRIDE, record->plane_stride);
    tms_put_u64(head + AT_RECORD_BYTES, record->record_bytes);
}

uint8_t *tms_record_encode(tms_record *record) {
    uint8_t *head = calloc(1, record->header_bytes);
    if (!head) return NULL;
    memcpy(head + AT_MAGIC, MAGIC, sizeof MAGIC);
    memcpy(head + AT_FINGERPRINT, record->fingerprint, sizeof record->fingerprint);
    memcpy(head + AT_SALT, record->salt, sizeof record->salt);
    memcpy(head + AT_KEY, record->key, sizeof record->key);
    encode_numbers(record, head);
    uint8_t *to = head + FIXED_BYTES;
    for (uint32_t i = 0; i < tms_record_planes(record); i++, to += 8)
        tms_put_u64(to, record->sums[i]);
    for (uint32_t i = 0; i < record->n_tokens; i++, to += 4)
        tms_put_u32(to, (uint32_t)record->tokens[i]);
    record->checksum = XXH3_64bits(head, record->header_bytes);
    tms_put_u64(head + AT_CHECKSUM, record->checksum);
    return head;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static tms_verdict decode_version(const uint8_t *head) {
    if (memcmp(head + AT_MAGIC, MAGIC, sizeof MAGIC) != 0) return TMS_DAMAGED;
    return tms_get_u32(head + AT_VERSION) == TMS_RECORD_VERSION ? TMS_SOUND : TMS_FOREIGN;
}

/* The numbers of the first page: each within its limits, sizes as they follow from the others, and
 * as many bytes as there are. What is then read and allocated is bounded by the source's bytes. */
static tms_verdict decode_numbers(const uint8_t *head, uint64_t bytes, tms_record *out) {
    const uint32_t n_tokens = tms_get_u32(head + AT_TOKENS), dtype = tms_get_u32(head + AT_DTYPE);
    if (dtype > TAMIS_BF16) return TMS_DAMAGED;
    const tamis_chunk_shape shape = {.n_layers = tms_get_u32(head + AT_LAYERS),
                                     .n_kv_heads = tms_get_u32(head + AT_HEADS),
                                     .head_dim = tms_get_u32(head + AT_DIM),
                                     .dtype = (tamis_dtype)dtype,
                                     .sink = tms_get_u32(head + AT_SINK)};
    *out = sizes_of(&shape, n_tokens);
    const bool agrees = out->record_bytes > 0 && out->record_bytes == bytes &&
                        tms_get_u32(head + AT_HEADER_BYTES) == out->header_bytes &&
                        tms_get_u64(head + AT_PLANE_BYTES) == out->plane_bytes &&
                        tms_get_u64(head + AT_STRIDE) == out->plane_stride &&
                        tms_get_u64(head + AT_RECORD_BYTES) == out->record_bytes;
    return agrees ? TMS_SOUND : TMS_DAMAGED;
}

static bool all_zero(const uint8_t *from, const uint8_t *to) {
    while (from < to && *from == 0)
        from++;
    return from == to;
}

/* Compares the checksum, which is set to 0 in `head`, and takes what is behind the numbers. */
static tms_verdict decode_rest(uint8_t *head, tms_record *record) {
    record->checksum = tms_get_u64(head + AT_CHECKSUM);
    tms_put_u64(head + AT_CHECKSUM, 0);
    if (XXH3_64bits(head, record->header_bytes) != record->checksum) return TMS_DAMAGED;
    if (tms_get_u32(head + AT_CODEC) != CODEC_PLAIN ||
        tms_get_u32(head + AT_ORDER) != native_order())
        return TMS_FOREIGN;
    memcpy(record->fingerprint, head + AT_FINGERPRINT, sizeof record->fingerprint);
    memcpy(record->salt, head + AT_SALT, sizeof record->salt);
    memcpy(record->key, head + AT_KEY, sizeof record->key);
    const uint8_t *from = head + FIXED_BYTES;
    for (uint32_t i = 0; i < tms_record_planes(record); i++, from += 8)
        record->sums[i] = tms_get_u64(from);
    for (uint32_t i = 0; i < record->n_tokens; i++, from += 4)
        record->tokens[i] = (int32_t)tms_get_u32(from);
    return all_zero(from, head + record->header_bytes) ? TMS_SOUND : TMS_DAMAGED;
}

/* Reads the header behind its first page and decodes it. */
static tamis_status read_rest(const tms_source *source, const uint8_t *first, tms_record *record,
                              tms_verdict *verdict, tamis_error *error) {
    size_t got = 0;
    const size_t rest = record->header_bytes - TMS_RECORD_PAGE;
    uint8_t *head = malloc(record->header_bytes);
    TMS_REQUIRE(head, TAMIS_E_NO_MEMORY, "no memory for a header of %" PRIu64 " bytes",
                record->header_bytes);
    memcpy(head, first, TMS_RECORD_PAGE);
    tamis_status status = TAMIS_OK;
    if (rest > 0)
        status =
            source->read(source->of, TMS_RECORD_PAGE, head + TMS_RECORD_PAGE, rest, &got, error);
    if (status == TAMIS_OK && got == rest) status = take_memory(record, error);
    *verdict = TMS_DAMAGED;
    if (status == TAMIS_OK && got == rest) *verdict = decode_rest(head, record);
    free(head);
    return status;
}

tamis_status tms_record_read(const tms_source *source, tms_record *out, tms_verdict *verdict,
                             tamis_error *error) {
    uint8_t first[TMS_RECORD_PAGE];
    size_t got = 0;
    *out = (tms_record){0};
    TMS_TRY(source->read(source->of, 0, first, sizeof first, &got, error));
    *verdict = got == sizeof first ? decode_version(first) : TMS_DAMAGED;
    if (*verdict != TMS_SOUND) return TAMIS_OK;
    tms_record record;
    *verdict = decode_numbers(first, source->bytes, &record);
    if (*verdict != TMS_SOUND) return TAMIS_OK;
    const tamis_status status = read_rest(source, first, &record, verdict, error);
    if (status != TAMIS_OK || *verdict != TMS_SOUND)
        tms_record_free(&record);
    else
        *out = record;
    return status;
}

bool tms_record_is(const tms_record *record, const tamis_chunk_id *id) {
    return record->n_tokens == id->n_tokens &&
           memcmp(record->fingerprint, id->fingerprint, sizeof record->fingerprint) == 0 &&
           memcmp(record->salt, id->salt, sizeof record->salt) == 0 &&
           memcmp(record->tokens, id->tokens, record->n_tokens * sizeof *record->tokens) == 0;
}

/* The zeros behind a plane. */
static tamis_status read_padding(const tms_source *source, const tms_record *record, uint32_t plane,
                                 bool *sound, tamis_error *error) {
    static const uint8_t zeros[TMS_RECORD_PAGE];
    uint8_t padding[TMS_RECORD_PAGE];
    size_t got = 0;
    const size_t bytes = record->plane_stride - record->plane_bytes;
    if (bytes == 0) return TAMIS_OK;
    TMS_TRY(source->read(source->of, tms_record_offset(record, plane) + record->plane_bytes,
                         padding, bytes, &got, error));
    *sound = *sound && got == bytes && memcmp(padding, zeros, bytes) == 0;
    return TAMIS_OK;
}

tamis_status tms_record_read_plane(const tms_source *source, const tms_record *record,
                                   uint32_t plane, void *to, tamis_error *error) {
    size_t got = 0;
    TMS_TRY(source->read(source->of, tms_record_offset(record, plane), to, record->plane_bytes,
                         &got, error));
    bool sound =
        got == record->plane_bytes && XXH3_64bits(to, record->plane_bytes) == record->sums[plane];
    TMS_TRY(read_padding(source, record, plane, &sound, error));
    char key[TMS_KEY_TEXT];
    tms_key_text(record->key, key);
    TMS_REQUIRE(sound, TAMIS_E_DAMAGED,
                "%c of layer %" PRIu32 " of chunk %s is not what was stored (%zu of %" PRIu64
                " bytes are there)",
                plane % 2 ? 'V' : 'K', plane / 2, key, got, record->plane_bytes);
    return TAMIS_OK;
}
