/* SPDX-License-Identifier: Apache-2.0 */
/* A store of text chunks: the K and V of each chunk's tokens, computed once, to be loaded layer by
 * layer wherever the same chunk stands in another prompt. No device is needed. Libraries built
 * without xxHash (TAMIS_STORE) lack these calls. */
#ifndef TAMIS_STORE_H
#define TAMIS_STORE_H

#include <tamis/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* There are two kinds of records. One without a parent holds K and V of the chunk's text alone, as
 * CacheBlend (EuroSys '25) stores them, for any place in a prompt. One with a parent is a page of a
 * prefix: its K and V depend on everything that stood before, which its parent's key names, and they
 * are right there alone. A prefix's first page is a record without a parent. In both, K is given and
 * stored as the model's matrix gives it, before a norm of its heads and before its rotation, so that
 * it can be rotated to any position (tamis_plan_load_rows does both).
 *
 * What stood before a page is known by its key alone, and XXH3 is no cryptographic hash: whoever
 * knows the salt can make two prefixes with one key. Tenants that do not trust each other need salts
 * that the others do not know.
 *
 * What decides the values of K and V decides the key, so that a record is found only where the same
 * values would be computed, up to the orders of sums. This is all of it:
 *
 *   tokens        the chunk's, and their number
 *   parent        what stands before a page of a prefix; page by page
 *   sink          how many tokens stood before the chunk, in the shape; which, in the fingerprint
 *                 (tamis_fingerprint_extend)
 *   fingerprint   the model. That of libtamis_model (tamis_model_fingerprint) is a hash over
 *                   the architecture; numbers of layers, query heads and KV heads; the widths of
 *                   heads, hidden states and feed-forward
 *                   the bytes and types of all weights
 *                   the eps of norms, the sliding window
 *                   RoPE: how many channels are rotated, in which order; base; kind and factor of
 *                   the scaling, its attention factor, YaRN's betas and original context; what the
 *                   file divides each frequency by
 *                   the vocabulary's kind, size and pattern
 *                 An engine with a model of its own adds what else decides there, as a scale or a
 *                 soft cap; a runner of libtamis_model has the model's alone, or stores nothing.
 *   shape         numbers of layers, KV heads and channels
 *   dtype         of the planes, to which K and V were rounded
 *   cache_dtype   of the cache whose K and V the attention read: those of every layer but the first
 *                 depend on it, of chunks as of prefixes
 *   salt          values do not depend on it: it tells tenants apart
 *
 * Nothing else decides. Records are computed in exact steps on sequences that hold all of their
 * tokens, so selections, bounds, evictions and budgets have no part in them. The page size, the rows
 * of a step, the device and its settings change the order of sums at most.
 *
 * A record is the K and V of one chunk. It begins with a header: format version, codec, fingerprint,
 * salt, parent, tokens, shape, types, an XXH3 checksum of each plane and one of itself. A plane is the K or
 * the V of one layer, [token][KV head][channel], in the byte order of the machine that computed it;
 * a machine of the other byte order takes the record for one of another version, as a library does
 * that lacks the codec. In a record each plane begins at a multiple of 4096 bytes, and a layer's K
 * and V are neighbours.
 *
 * Tiers: memory, then disk, then redis. A record that is found behind memory moves to memory plane by
 * plane as it is read. Each tier has a limit in bytes, to which it removes the records that were not
 * used for the longest time. A chunk that somebody holds (tamis_store_get) is pinned: it stays, but
 * on a server.
 *
 * The disk tier is a folder with one file a chunk, <key>.kv. Several processes may use a folder at
 * a time: each finds what the others have written, and misses what they have removed. A process that
 * is killed leaves no half record, and loses none that tamis_store_put has answered for. The folder
 * must be on a file system with locks (flock), and belongs to one user: files can be read by their
 * owner alone. What is named like a record there and begins otherwise is damaged, and removed.
 *
 * The redis tier is a Redis or Valkey server (not a cluster of them) that any number of processes and
 * machines share: one value a record, the same bytes as a file, of at most 512 MiB. A record is
 * stored by one command, whole or not at all, and the first one that is stored under a key stays.
 * Whether it survives the server's end is the server's matter, and so is what the server evicts: a
 * pin holds nothing there, and reading a record that has gone since it was found is E_IO. The store
 * works without the server: what does not answer in time, or answers by an error, is a miss for
 * tamis_store_get, is passed over by tamis_store_put where another tier behind memory or memory
 * itself takes the record, and is counted in the tier's `failed`. A server that was not reached is
 * not asked again for 0.1 s, then for twice as long after each failure, up to 5 s. A command may
 * take redis_timeout_ms, and a millisecond more for each 16 KiB that it moves; the name of a host is
 * looked up in the system's own time. A server that has not named all of its keys within
 * redis_walk_ms, or names more than 16777216, fails likewise. Nothing is encrypted. The commands are AUTH, SELECT, MULTI,
 * EXEC, OBJECT IDLETIME, EXISTS, STRLEN, GETRANGE, SET, UNLINK, EVAL and SCAN.
 *
 * What is damaged is never given out. A record with a wrong header is a miss; a wrong plane is
 * E_DAMAGED where it is read. The record is removed, unless that fails, as in a folder that may only
 * be read. Both are counted.
 *
 * Thread-safety: any number of threads may use a store and its chunks at a time, but no thread may
 * use what another one destroys or releases. A process that was forked opens a store of its own:
 * its parent's may be locked there for good. */
typedef struct tamis_store tamis_store;

/* A record that was found, pinned until it is released. One that was found on disk holds a file
 * open for as long. */
typedef struct tamis_chunk tamis_chunk;

/* Tiers; values never change. */
typedef enum tamis_tier {
    TAMIS_TIER_MEMORY = 0,
    TAMIS_TIER_DISK = 1,
    TAMIS_TIER_REDIS = 2
} tamis_tier;
enum { TAMIS_TIERS = 4 }; /* room for tiers to come */

/* "memory", "disk", "redis"; "unknown" outside the list. */
TAMIS_API const char *tamis_tier_name(tamis_tier tier);

typedef struct tamis_store_params {
    uint64_t memory_bytes; /* limit of the memory tier; 0: there is none */
    uint64_t disk_bytes;   /* limit of the disk tier; 0: as much as the file system takes */
    const char *folder;    /* of the disk tier, made where its parent exists; NULL: no disk tier */
    /* Address of a Redis or Valkey server: "host:port", "[IPv6]:port", either of them behind
     * "redis://", where the port may be missing (6379) and "/database" may follow, or the path of a
     * socket, which has a slash. No address has a user or a password. NULL: no redis tier; the other
     * fields of it are 0 then. All are copied. */
    const char *redis;
    const char *redis_prefix;   /* of all keys there, at most 128 bytes; NULL: "tamis:" */
    const char *redis_password; /* NULL: that of TAMIS_REDIS_PASSWORD, or none */
    uint64_t redis_bytes;       /* limit of the redis tier; 0: what the server keeps */
    uint32_t redis_database;    /* number of the database; 0: the address's, or 0 */
    uint32_t redis_timeout_ms;  /* to connect, and of a command; 0: 1000. At most 3600000 */
    uint32_t redis_walk_ms;     /* to name all keys there (SCAN); 0: 20000. At most 3600000 */
    uint32_t reserved32;        /* 0, else E_ARGUMENT */
    uint64_t reserved[2];       /* 0, else E_ARGUMENT */
} tamis_store_params;

/* Opens a store. The headers of all files in the folder are read; those that are damaged and what
 * killed processes have left unfinished are removed, and the least recently used of what exceeds
 * the limit. A server is asked only where redis_bytes limits what is there; one that does not answer
 * is no error. Errors: E_ARGUMENT (no tier; a field of a tier that is not asked for; an address that
 * is none), E_UNSUPPORTED (redis in a build without it, or by rediss://), E_IO with the folder and the reason,
 * E_NO_MEMORY. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_store_create(const tamis_store_params *params,
                                                           tamis_store **out, tamis_error *error);
/* Accepts NULL. Files stay. Where chunks or blends of the store are left, it is closed with the last
 * of them, and until then their calls answer E_STATE. */
TAMIS_API void tamis_store_destroy(tamis_store **store);

typedef struct tamis_chunk_shape {
    uint32_t n_layers;   /* 1 to 1024 */
    uint32_t n_kv_heads; /* 1 to 1024 */
    uint32_t head_dim;   /* 1 to 4096 */
    tamis_dtype dtype;
    uint32_t sink; /* tokens that stood before the chunk when it was computed, and were dropped */
    tamis_dtype cache_dtype; /* of the cache over which the chunk was computed: any of them */
    uint64_t reserved[2];    /* 0, else E_ARGUMENT */
} tamis_chunk_shape;

/* Which record: all of it decides, see above. What differs in fingerprint or salt shares nothing, and
 * the same tokens in another shape are another record. */
typedef struct tamis_chunk_id {
    const int32_t *tokens;
    uint32_t n_tokens;       /* 1 to 4194304 */
    uint32_t reserved32;     /* 0, else E_ARGUMENT */
    uint8_t fingerprint[16]; /* of the model, behind its sink: see above */
    uint8_t salt[16];        /* of a tenant; 0 is a salt like any other */
    uint8_t parent[16];      /* the key of the record whose tokens stand before these; 0: none */
    tamis_chunk_shape shape; /* with a parent, sink is 0 */
    uint64_t reserved[2];    /* 0, else E_ARGUMENT */
} tamis_chunk_id;

/* The record's name, 128 bits of XXH3 over all of the id. It finds a record and proves nothing: what
 * is found is compared with the id itself. E_ARGUMENT: id or tokens is NULL, n_tokens is 0 or too
 * large, the shape is none, a sink beside a parent, a reserved field is not 0. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_chunk_key(const tamis_chunk_id *id, uint8_t key[16],
                                                        tamis_error *error);

/* The fingerprint of chunks that are computed behind the tokens of a sink: a shape says how many there
 * are, this which, so that chunks behind other sinks are other records. It is the model's own where
 * n_sink is 0. `out` may be `fingerprint`. E_ARGUMENT: NULL, but for a sink of no tokens. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_fingerprint_extend(const uint8_t fingerprint[16],
                                                                 const int32_t *sink,
                                                                 uint32_t n_sink, uint8_t out[16],
                                                                 tamis_error *error);

/* The keys of the full pages of a prefix: of each `page_tokens` tokens of the id, in order, with the
 * key of the page before as parent; the first page's parent is the id's. Writes at most `capacity`
 * keys and the number of pages to *n_pages; a rest of tokens is in none. A page's record is put with
 * its tokens and its parent's key in the id. E_ARGUMENT: as tamis_chunk_key; page_tokens is 0; a sink
 * is given, with or without a parent. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_prefix_keys(const tamis_chunk_id *id,
                                                          uint32_t page_tokens, uint8_t (*keys)[16],
                                                          size_t capacity, size_t *n_pages,
                                                          tamis_error *error);

/* Bytes of a plane: n_tokens * n_kv_heads * head_dim elements. 0 for a shape that is none. */
TAMIS_API uint64_t tamis_chunk_plane_bytes(const tamis_chunk_shape *shape, uint32_t n_tokens);
/* Bytes of a record, header and padding included: what it counts in every tier. 0 likewise. */
TAMIS_API uint64_t tamis_chunk_record_bytes(const tamis_chunk_shape *shape, uint32_t n_tokens);

/* What is stored. Planes are read during the call alone. */
typedef struct tamis_chunk_planes {
    tamis_chunk_id id;
    const void *const *k; /* [n_layers] planes; K before norm of heads and rotation */
    const void *const *v;
    /* Sum of 1 << tier: the record must enter each of these, and no other. 0: it enters all tiers
     * that the store has; one that cannot is left out, but the last must take it, or the one before
     * redis if there is one. */
    uint32_t tiers;
    uint32_t reserved32;  /* 0, else E_ARGUMENT */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_chunk_planes;

/* Stores a chunk. Once it answers OK, a record on disk survives the process and the machine's
 * power. A record that a tier already has stays as it is there (the first wins); of threads that
 * put one chunk at a time the others wait for the first. Writes files and waits. Errors leave
 * nothing half-written, and the store goes on: E_ARGUMENT with the value; E_FULL with the numbers
 * (the record exceeds a tier's limit; what is pinned or being written leaves no room; the file
 * system is full); E_IO with file and reason; E_NO_MEMORY. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_store_put(tamis_store *store,
                                                        const tamis_chunk_planes *chunk,
                                                        tamis_error *error);

/* Finds a chunk and pins it. A miss is no error: *out is NULL then. Reads a record's header, no
 * planes. Errors: E_ARGUMENT; E_IO where a file cannot be opened or read, though it is there, and
 * no tier behind has the chunk, but never for what a server does; E_NO_MEMORY. After an error *out
 * is NULL, and the caller may go on as after a miss. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_store_get(tamis_store *store,
                                                        const tamis_chunk_id *id, tamis_chunk **out,
                                                        tamis_error *error);

/* Finds the longest stored prefix of the id's tokens, in pages as tamis_prefix_keys makes them, but
 * at most `capacity` of them: all pages up to the first that is missing, each pinned as by
 * tamis_store_get, in order in out[0] to out[*n_pages - 1]. The caller releases each of these, after
 * an error too, which then is that of the page behind them. Each page counts as a hit, and the first
 * that is missing as a miss. Where room is made, a prefix goes from its end. Errors: as
 * tamis_store_get and tamis_prefix_keys. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_store_get_prefix(tamis_store *store,
                                                               const tamis_chunk_id *id,
                                                               uint32_t page_tokens,
                                                               tamis_chunk **out, size_t capacity,
                                                               size_t *n_pages, tamis_error *error);

typedef struct tamis_chunk_info {
    uint8_t key[16], fingerprint[16], salt[16], parent[16];
    const int32_t *tokens; /* owned by the chunk; NULL in a list */
    uint32_t n_tokens;
    uint32_t tiers; /* sum of 1 << tier: where it was found */
    tamis_chunk_shape shape;
    uint64_t plane_bytes, record_bytes;
    uint32_t damaged; /* nonzero: a read has answered E_DAMAGED, as every later one does */
    uint32_t pins;    /* in a list: how many hold the record in this process */
    /* In a list: when it was put or found last, in nanoseconds since 1970, as far as this process
     * knows: by itself, or by others before it met the record. */
    int64_t last_used;
    uint64_t reserved[3];
} tamis_chunk_info;

/* Does nothing without a chunk or an `out`. */
TAMIS_API void tamis_chunk_get_info(const tamis_chunk *chunk, tamis_chunk_info *out);

/* Reads a layer's planes, plane_bytes each, to the caller's memory; k or v may be NULL. Planes
 * that come from a tier that can be damaged are compared with their checksums. Several threads may
 * read a chunk at a time. Errors: E_ARGUMENT (layer; neither k nor v); E_DAMAGED: the record is cut
 * short or damaged, and has been removed from the store and counted; what is in k and v must not
 * be used. Planes that were read before are what was stored. E_IO: reading failed, or the record has
 * gone from the server; whether the plane is damaged is not known, and what is there stays. What is
 * in k and v must not be used. The caller reads again, or computes the chunk's K and V anew and
 * releases it; a record that fails again is one for tamis_store_remove, and may be put then. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_chunk_read(tamis_chunk *chunk, uint32_t layer,
                                                         void *k, void *v, tamis_error *error);

/* Gives the pin back and sets *chunk to NULL. Accepts NULL and *chunk == NULL. */
TAMIS_API void tamis_chunk_release(tamis_chunk **chunk);

/* Removes a chunk from all tiers; who holds it may go on reading it. *removed (or NULL) is nonzero
 * if there was one. One that cannot be read is removed by its key. In another process it stays in
 * the memory tier. Errors: E_ARGUMENT; E_IO, when it has been removed from the other tiers all the
 * same; E_NO_MEMORY. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_store_remove(tamis_store *store,
                                                           const tamis_chunk_id *id, int *removed,
                                                           tamis_error *error);

/* The same for the record of a key, as tamis_store_list gives it, whatever its tokens. Errors: the
 * same. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_store_remove_key(tamis_store *store,
                                                               const uint8_t key[16], int *removed,
                                                               tamis_error *error);

/* Lists the records, each once, in no order, after a look through folder and server. Writes at most
 * `capacity` entries and the full number to *count. `infos` may be NULL when capacity is 0.
 * Errors: E_ARGUMENT, E_IO, E_NO_MEMORY. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_store_list(tamis_store *store,
                                                         tamis_chunk_info *infos, size_t capacity,
                                                         size_t *count, tamis_error *error);

/* What one process has done in a tier, and what it knows to be there. */
typedef struct tamis_tier_stats {
    uint64_t limit; /* bytes; UINT64_MAX: none; 0: the store lacks the tier */
    uint64_t records, bytes;
    uint64_t pinned_bytes; /* of these bytes */
    uint64_t hits;         /* of tamis_store_get: the first tier that had the chunk */
    uint64_t puts;         /* records that entered by tamis_store_put */
    uint64_t known;        /* puts that found their record there already */
    uint64_t promoted;     /* records that began to enter because a later tier had them */
    uint64_t evicted;      /* records removed for the limit */
    uint64_t damaged; /* times that a record was found damaged; it is removed where it can be */
    uint64_t failed;  /* times that the tier answered E_IO or could not take a record */
    uint64_t damaged_left; /* of `damaged`: the record could not be removed, and is there still */
    uint64_t reserved[8];
} tamis_tier_stats;

typedef struct tamis_store_stats {
    uint64_t hits, misses; /* of tamis_store_get; errors are neither */
    uint64_t mismatched;   /* misses where another chunk has the same key */
    uint64_t foreign;      /* records of another format version that were passed over */
    uint64_t failed;       /* calls that answered E_IO or E_FULL, files and tiers passed over */
    tamis_tier_stats tiers[TAMIS_TIERS];
    uint64_t leftovers; /* unfinished files of processes that are gone, removed on opening, by gc */
    uint64_t reserved[10];
} tamis_store_stats;

/* Exact for this process; reads nothing. Does nothing without a store or an `out`. */
TAMIS_API void tamis_store_get_stats(tamis_store *store, tamis_store_stats *out);

typedef struct tamis_store_found {
    uint64_t records, bytes; /* looked at, and sound */
    uint64_t damaged;        /* removed, but for damaged_left of them */
    uint64_t foreign;        /* of another format version: left by verify, removed by gc */
    uint64_t leftovers;      /* unfinished files of processes that are gone, removed by gc */
    uint64_t damaged_left;   /* could not be removed, and are there still: E_IO says why */
    uint64_t reserved[2];
} tamis_store_found;

/* Reads every byte of every record behind memory, and removes those that are damaged. Errors: E_IO
 * (a record cannot be read, or is damaged and cannot be removed), E_NO_MEMORY, with the first
 * reason; all others have been looked at all the same, and counted. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_store_verify(tamis_store *store,
                                                           tamis_store_found *out,
                                                           tamis_error *error);
/* Reads every header, and removes damaged and foreign records, leftovers, and what exceeds the
 * limit. Errors: as tamis_store_verify. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_store_gc(tamis_store *store, tamis_store_found *out,
                                                       tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
