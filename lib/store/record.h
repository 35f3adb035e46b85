/* SPDX-License-Identifier: Apache-2.0 */
/* A record as bytes: the header, where planes lie, checksums, and what is wrong with what was read.
 * The same bytes are a file on disk and may be one value of a remote store.
 *
 *   header   256 bytes: magic "tamiskv", 0; version; header bytes; checksum of the header with 0 in
 *            its own place; codec, byte order of planes; fingerprint, salt, key, parent; tokens,
 *            layers, KV heads, channels, dtype, sink; plane bytes, record bytes; dtype of the cache
 *            over which it was computed; zeros.
 *            Of each plane, K and V of each layer: offset, bytes and checksum of what is stored.
 *            Tokens. Little-endian, zeros up to a page.
 *   planes   K of layer 0, V of layer 0, K of layer 1, ...; zeros up to a page behind each.
 *
 * Everything up to the byte order keeps its place and meaning in later codecs of this version: a
 * reader that lacks a codec can tell a sound record from a damaged one, and uses no other number of
 * it. */
#ifndef TMS_STORE_RECORD_H
#define TMS_STORE_RECORD_H

#include "lib/core/error.h"
#include "lib/store/key.h"

#define TMS_RECORD_PAGE    4096u
#define TMS_RECORD_VERSION 3u
#define TMS_RECORD_FIXED   256u /* bytes before the table of planes */
#define TMS_RECORD_PLANE   24u  /* bytes of an entry of that table */

/* A plane as it is stored. */
typedef struct tms_plane {
    uint64_t offset, bytes, sum;
} tms_plane;

/* What a header says. One piece of memory holds planes and tokens. */
typedef struct tms_record {
    uint8_t key[TMS_KEY_BYTES], fingerprint[16], salt[16], parent[TMS_KEY_BYTES];
    uint32_t n_tokens;
    tamis_chunk_shape shape;
    uint64_t plane_bytes, header_bytes, record_bytes;
    uint64_t checksum; /* of the header; it covers the checksums of all planes */
    tms_plane *planes; /* [2 * n_layers] */
    int32_t *tokens;   /* behind them */
} tms_record;

/* Why a record was not given. */
typedef enum tms_verdict {
    TMS_SOUND,
    TMS_ABSENT,
    TMS_DAMAGED, /* cut short, too long, or bytes that contradict a checksum */
    TMS_FOREIGN  /* sound as far as can be seen, but of another version, codec or byte order */
} tms_verdict;

/* Where the bytes of a record come from. */
typedef struct tms_source {
    void *of;
    uint64_t bytes; /* of the whole */
    /* *got < bytes: there are no more. Several threads may call it at a time. */
    tamis_status (*read)(void *of, uint64_t offset, void *to, size_t bytes, size_t *got,
                         tamis_error *error);
    /* NULL, or the same for two places in memory, of what lies one behind the other. */
    tamis_status (*read_two)(void *of, uint64_t offset, void *first, size_t bytes, void *second,
                             size_t more, size_t *got, tamis_error *error);
} tms_source;

static inline uint32_t tms_record_planes(const tms_record *record) {
    return 2 * record->shape.n_layers;
}

static inline uint64_t tms_whole_pages(uint64_t bytes) {
    return (bytes + TMS_RECORD_PAGE - 1) / TMS_RECORD_PAGE * TMS_RECORD_PAGE;
}

/* Describes what a caller stores, checksums of all planes included: reads every plane. The id has
 * been checked. E_ARGUMENT, E_NO_MEMORY. */
tamis_status tms_record_describe(const tamis_chunk_planes *chunk, tms_record *out,
                                 tamis_error *error);
tamis_status tms_record_copy(const tms_record *record, tms_record *out, tamis_error *error);
void tms_record_free(tms_record *record);

/* The header as bytes, header_bytes of them, which the caller frees. Sets record->checksum. NULL:
 * no memory. */
uint8_t *tms_record_encode(tms_record *record);

/* Reads a header. What is no sound record of this version says so in *verdict, and `out` is empty
 * then. Errors: what the source answers, E_NO_MEMORY. */
tamis_status tms_record_read(const tms_source *source, tms_record *out, tms_verdict *verdict,
                             tamis_error *error);

/* Whether the record is of that chunk, and not only of its key; without an id it is. */
bool tms_record_is(const tms_record *record, const tamis_chunk_id *id);

/* Reads a plane into plane_bytes bytes at `to`. Errors: E_DAMAGED with the plane; the source's. */
tamis_status tms_record_read_plane(const tms_source *source, const tms_record *record,
                                   uint32_t plane, void *to, tamis_error *error);

#endif
