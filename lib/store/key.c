/* SPDX-License-Identifier: Apache-2.0 */
/* Ids of records, and their keys: a hash over a domain and all that an id says. */
#define XXH_INLINE_ALL
#include "lib/store/key.h"
#include "lib/core/bytes.h"
#include "lib/core/core.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

/* Tells these hashes from those of other kinds of keys. */
static const char DOMAIN[] = "tamis record 3", SINK_DOMAIN[] = "tamis sink 1";

#define MOST_LAYERS 1024u
#define MOST_HEADS  1024u
#define MOST_DIM    4096u

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
    TMS_REQUIRE(tms_dtype_of_rows(shape->dtype), TAMIS_E_ARGUMENT, "dtype of the chunk is %d",
                (int)shape->dtype);
    TMS_REQUIRE(tms_dtype_known(shape->cache_dtype), TAMIS_E_ARGUMENT,
                "cache_dtype of the chunk is %d", (int)shape->cache_dtype);
    TMS_REQUIRE_RESERVED(shape, tamis_chunk_shape);
    return TAMIS_OK;
}

tamis_status tms_id_check(const tamis_chunk_id *id, tamis_error *error) {
    TMS_REQUIRE(id, TAMIS_E_ARGUMENT, "id: NULL");
    TMS_REQUIRE(id->tokens, TAMIS_E_ARGUMENT, "tokens of the chunk: NULL");
    TMS_REQUIRE(id->n_tokens >= 1 && id->n_tokens <= TMS_MOST_TOKENS, TAMIS_E_ARGUMENT,
                "a chunk of %" PRIu32 " tokens: it must have 1 to %u", id->n_tokens,
                TMS_MOST_TOKENS);
    TMS_REQUIRE(id->reserved32 == 0, TAMIS_E_ARGUMENT,
                "reserved32 of tamis_chunk_id is %" PRIu32 "; it must be 0", id->reserved32);
    TMS_REQUIRE_RESERVED(id, tamis_chunk_id);
    TMS_TRY(tms_shape_check(&id->shape, error));
    TMS_REQUIRE(id->shape.sink == 0 || tms_key_none(id->parent), TAMIS_E_ARGUMENT,
                "sink of a chunk with a parent is %" PRIu32 ": what stood before it is its parent",
                id->shape.sink);
    return TAMIS_OK;
}

tamis_status tms_prefix_check(const tamis_chunk_id *id, uint32_t page_tokens, tamis_error *error) {
    TMS_TRY(tms_id_check(id, error));
    TMS_REQUIRE(page_tokens > 0, TAMIS_E_ARGUMENT, "pages of 0 tokens");
    TMS_REQUIRE(id->shape.sink == 0, TAMIS_E_ARGUMENT,
                "sink of a prefix is %" PRIu32 ": nothing that stood before is dropped",
                id->shape.sink);
    return TAMIS_OK;
}

static void add_tokens(XXH3_state_t *hash, const int32_t *tokens, uint32_t n_tokens) {
    uint8_t some[256 * 4];
    for (uint32_t done = 0; done < n_tokens;) {
        uint32_t n = 0;
        for (; n < 256 && done < n_tokens; n++, done++)
            tms_put_u32(some + 4 * n, (uint32_t)tokens[done]);
        XXH3_128bits_update(hash, some, 4 * n);
    }
}

static void end_hash(const XXH3_state_t *hash, uint8_t out[TMS_KEY_BYTES]) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(hash));
    memcpy(out, canonical.digest, TMS_KEY_BYTES);
}

void tms_key_of(const tamis_chunk_id *id, uint8_t key[TMS_KEY_BYTES]) {
    XXH3_state_t hash;
    XXH3_128bits_reset(&hash);
    XXH3_128bits_update(&hash, DOMAIN, sizeof DOMAIN);
    XXH3_128bits_update(&hash, id->fingerprint, sizeof id->fingerprint);
    XXH3_128bits_update(&hash, id->salt, sizeof id->salt);
    XXH3_128bits_update(&hash, id->parent, sizeof id->parent);
    const tamis_chunk_shape *shape = &id->shape;
    const uint32_t numbers[] = {shape->n_layers, shape->n_kv_heads,
                                shape->head_dim, (uint32_t)shape->dtype,
                                shape->sink,     (uint32_t)shape->cache_dtype};
    uint8_t some[sizeof numbers];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        tms_put_u32(some + 4 * i, numbers[i]);
    XXH3_128bits_update(&hash, some, sizeof some);
    add_tokens(&hash, id->tokens, id->n_tokens);
    end_hash(&hash, key);
}

tamis_status tamis_fingerprint_extend(const uint8_t fingerprint[16], const int32_t *sink,
                                      uint32_t n_sink, uint8_t out[16], tamis_error *error) {
    XXH3_state_t hash;
    TMS_REQUIRE(fingerprint, TAMIS_E_ARGUMENT, "fingerprint: NULL");
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    TMS_REQUIRE(sink || n_sink == 0, TAMIS_E_ARGUMENT, "sink: NULL for %" PRIu32 " tokens", n_sink);
    if (n_sink == 0) {
        memmove(out, fingerprint, TMS_KEY_BYTES);
        return TAMIS_OK;
    }
    XXH3_128bits_reset(&hash);
    XXH3_128bits_update(&hash, SINK_DOMAIN, sizeof SINK_DOMAIN);
    XXH3_128bits_update(&hash, fingerprint, TMS_KEY_BYTES);
    add_tokens(&hash, sink, n_sink);
    end_hash(&hash, out);
    return TAMIS_OK;
}

tamis_status tamis_chunk_key(const tamis_chunk_id *id, uint8_t key[16], tamis_error *error) {
    TMS_REQUIRE(key, TAMIS_E_ARGUMENT, "key: NULL");
    TMS_TRY(tms_id_check(id, error));
    tms_key_of(id, key);
    return TAMIS_OK;
}

tamis_status tamis_prefix_keys(const tamis_chunk_id *id, uint32_t page_tokens, uint8_t (*keys)[16],
                               size_t capacity, size_t *n_pages, tamis_error *error) {
    TMS_REQUIRE(n_pages, TAMIS_E_ARGUMENT, "n_pages: NULL");
    *n_pages = 0;
    TMS_REQUIRE(keys || capacity == 0, TAMIS_E_ARGUMENT, "keys: NULL for %zu pages", capacity);
    TMS_TRY(tms_prefix_check(id, page_tokens, error));
    tamis_chunk_id page = *id;
    page.n_tokens = page_tokens;
    *n_pages = id->n_tokens / page_tokens;
    for (size_t i = 0; i < capacity && i < *n_pages; i++) {
        page.tokens = id->tokens + i * page_tokens;
        tms_key_of(&page, keys[i]);
        memcpy(page.parent, keys[i], sizeof page.parent);
    }
    return TAMIS_OK;
}

bool tms_key_none(const uint8_t key[TMS_KEY_BYTES]) {
    static const uint8_t none[TMS_KEY_BYTES];
    return memcmp(key, none, sizeof none) == 0;
}
