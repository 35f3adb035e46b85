/* SPDX-License-Identifier: Apache-2.0 */
/* The stream of a saved sequence: what stands in its header, and sections with checksums.
 *
 *   header    magic "tamisseq", version, bytes of the header; fingerprint; numbers; sum
 *   sections  of lanes; of pages, and where there are bounds behind each of them one of their bounds;
 *             of queries; one that ends the stream
 *
 * A section is its kind and the number of its bytes, u32 each, its bytes, and the sum u64 of all bytes so
 * far that are no sums. How many bytes it has follows from the plan and the sections before it. */
#ifndef TMS_PLAN_SAVED_H
#define TMS_PLAN_SAVED_H

#include "lib/plan/setup.h"
#include <tamis/saved.h>

/* What the saved sequence and a plan must agree in, as X(name, text, whose, form of its values). */
#define TMS_SAVED_SHAPE(X)                                                                         \
    X(N_LAYERS, "n_layers", "cache", NUMBER)                                                       \
    X(N_HEADS, "n_heads", "cache", NUMBER)                                                         \
    X(N_KV_HEADS, "n_kv_heads", "cache", NUMBER)                                                   \
    X(HEAD_DIM, "head_dim", "cache", NUMBER)                                                       \
    X(PAGE_SIZE, "page_size", "cache", NUMBER)                                                     \
    X(DTYPE, "dtype", "cache", DTYPE)                                                              \
    X(PLANES, "planes", "cache", NUMBER)                                                           \
    X(EVICTION, "eviction", "plan", EVICTION)                                                      \
    X(BUDGET, "budget of the eviction", "plan", NUMBER)                                            \
    X(SINKS, "sinks of the eviction", "plan", NUMBER)                                              \
    X(RECENT, "recent of the eviction", "plan", NUMBER)                                            \
    X(WINDOW, "window of the eviction", "plan", NUMBER)                                            \
    X(KERNEL, "kernel of the eviction", "plan", NUMBER)                                            \
    X(POOLING, "pooling of the eviction", "plan", NUMBER)                                          \
    X(CHUNK, "chunk of the eviction", "plan", NUMBER)                                              \
    X(FLOOR, "floor of the eviction", "plan", REAL)                                                \
    X(BETA, "beta of the eviction", "plan", REAL)                                                  \
    X(EVERY, "every of the eviction", "plan", NUMBER)                                              \
    X(OPTIONS, "options of the eviction", "plan", NUMBER)

/* The numbers of a header, in their order. */
typedef enum tms_saved_number {
#define TMS_SAVED_ENUM(name, text, whose, form) TMS_SAVED_##name,
    TMS_SAVED_SHAPE(TMS_SAVED_ENUM)
#undef TMS_SAVED_ENUM
        TMS_SAVED_HAS_BOUNDS, /* 0 or 1: whether there are sections of bounds, and of which kind */
    TMS_SAVED_BOUNDS_KIND,
    TMS_SAVED_BOUNDS_WIDTH, /* bits of an f32 */
    TMS_SAVED_BOUNDS_DTYPE,
    TMS_SAVED_LENGTH, /* and the rest of its history, see tms_past */
    TMS_SAVED_EVICTED_AT,
    TMS_SAVED_INTACT_FROM,
    TMS_SAVED_SHORTEST,
    TMS_SAVED_UNORDERED,
    TMS_SAVED_SCORED_BY,
    TMS_SAVED_SCORED_NEWEST,
    TMS_SAVED_SCORED_TO,
    TMS_SAVED_QUERIES_FROM, /* positions whose queries are in the stream */
    TMS_SAVED_QUERIES_TO,
    TMS_SAVED_NUMBERS
} tms_saved_number;

#define TMS_SAVED_VERSION 1u

typedef struct tms_saved_header {
    uint8_t fingerprint[16];
    uint32_t numbers[TMS_SAVED_NUMBERS];
} tms_saved_header;

typedef enum tms_saved_kind {
    TMS_SAVED_END = 0,   /* no bytes */
    TMS_SAVED_LANES = 1, /* (length, pages gone) of lane after lane, u32 each */
    TMS_SAVED_PAGES = 2,
    TMS_SAVED_BOUNDS = 3,
    TMS_SAVED_QUERIES = 4 /* f32 [rows][n_heads][head_dim] of a layer */
} tms_saved_kind;

/* A stream that is written or read. */
typedef struct tms_stream {
    tamis_saved_write write;
    tamis_saved_read read;
    void *user;
    uint64_t at, sum; /* bytes so far */
} tms_stream;

/* What a plan and its cache say of a sequence's header; not its history and queries. */
void tms_saved_header_of(const tms_setup *setup, const uint8_t fingerprint[16], bool bounds,
                         tms_saved_header *out);
void tms_saved_put_past(tms_saved_header *header, const tms_past *past);
tms_past tms_saved_get_past(const tms_saved_header *header);

/* E_IO. */
tamis_status tms_saved_write_header(tms_stream *stream, const tms_saved_header *header,
                                    tamis_error *error);
/* E_IO, E_FORMAT, E_DAMAGED. */
tamis_status tms_saved_read_header(tms_stream *stream, tms_saved_header *out, tamis_error *error);
/* Whether a header that was read fits a plan, whose own is `own`. E_ARGUMENT, E_FORMAT. */
tamis_status tms_saved_check_header(const tms_setup *setup, const tms_saved_header *own,
                                    const tms_saved_header *header, tamis_error *error);

/* The most bytes of a section of such a plan. */
uint64_t tms_saved_section_bytes(const tms_setup *setup);
/* E_IO. */
tamis_status tms_saved_write_section(tms_stream *stream, tms_saved_kind kind, const uint8_t *bytes,
                                     uint64_t n, tamis_error *error);
/* The next section, which must be of this kind and size. E_IO, E_FORMAT, E_DAMAGED. */
tamis_status tms_saved_read_section(tms_stream *stream, tms_saved_kind kind, uint8_t *to,
                                    uint64_t n, tamis_error *error);

#endif
