/* SPDX-License-Identifier: Apache-2.0 */
/* Prefixes of live sequences: their tokens, and the sequence that shares most with a prompt. */
#include "lib/cache/cache.h"
#include <tamis/prefixes.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SALT_BYTES 16

/* What was said of a sequence. */
typedef struct known {
    tamis_sequence sequence;
    uint64_t mark; /* of the sequence's cuts */
    int32_t *tokens;
    uint32_t n_tokens;
    uint8_t salt[SALT_BYTES];
} known;

struct tamis_prefixes {
    tms_life life;
    tamis_cache *cache;
    known *known; /* in the order in which they were added first */
    size_t n, capacity;
};

static void end(tms_life *life) {
    tamis_prefixes *prefixes = (tamis_prefixes *)life;
    for (size_t i = 0; i < prefixes->n; i++)
        free(prefixes->known[i].tokens);
    free(prefixes->known);
    free(prefixes);
}

tamis_status tamis_prefixes_create(tamis_cache *cache, tamis_prefixes **out, tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    *out = NULL;
    TMS_ENTER(cache);
    TMS_REQUIRE(cache, TAMIS_E_ARGUMENT, "cache is NULL");
    tamis_prefixes *prefixes = calloc(1, sizeof *prefixes);
    TMS_REQUIRE(prefixes, TAMIS_E_NO_MEMORY, "no host memory for prefixes");
    tms_life_begin(&prefixes->life, "prefixes", &cache->life, NULL, end);
    prefixes->cache = cache;
    *out = prefixes;
    return TAMIS_OK;
}

void tamis_prefixes_destroy(tamis_prefixes **prefixes) {
    if (!prefixes || !*prefixes) return;
    tms_life_close(&(*prefixes)->life, NULL);
    *prefixes = NULL;
}

/* ---- What is known --------------------------------------------------------------------------- */

static void forget(tamis_prefixes *p, size_t index) {
    known *at = p->known + index;
    free(at->tokens);
    memmove(at, at + 1, (--p->n - index) * sizeof *at);
}

/* Forgets sequences that will never serve again. */
static void forget_lost(tamis_prefixes *p) {
    for (size_t i = p->n; i-- > 0;) {
        const tms_sequence *sequence = tms_cache_find(p->cache, p->known[i].sequence);
        if (!sequence || !tms_history_whole(sequence)) forget(p, i);
    }
}

/* The index of a sequence; n if nothing is known of it. */
static size_t index_of(const tamis_prefixes *p, tamis_sequence sequence) {
    size_t i = 0;
    while (i < p->n && p->known[i].sequence != sequence)
        i++;
    return i;
}

static bool make_room(tamis_prefixes *p) {
    if (p->n < p->capacity) return true;
    const size_t grown = p->capacity ? 2 * p->capacity : 8;
    known *all = realloc(p->known, grown * sizeof *all);
    if (!all) return false;
    p->known = all;
    p->capacity = grown;
    return true;
}

static tamis_status check_tokens(const tamis_prefixes *prefixes, const int32_t *tokens,
                                 uint32_t n_tokens, const uint8_t *salt, tamis_error *error) {
    TMS_REQUIRE(prefixes, TAMIS_E_ARGUMENT, "prefixes is NULL");
    TMS_REQUIRE(tokens, TAMIS_E_ARGUMENT, "tokens is NULL");
    TMS_REQUIRE(n_tokens > 0, TAMIS_E_ARGUMENT, "n_tokens is 0");
    TMS_REQUIRE(salt, TAMIS_E_ARGUMENT, "salt is NULL");
    return TAMIS_OK;
}

tamis_status tamis_prefixes_add(tamis_prefixes *prefixes, tamis_sequence sequence,
                                const int32_t *tokens, uint32_t n_tokens, const uint8_t salt[16],
                                tamis_error *error) {
    TMS_ENTER(prefixes);
    TMS_TRY(check_tokens(prefixes, tokens, n_tokens, salt, error));
    tms_sequence *s = NULL;
    TMS_TRY(tms_cache_find_idle(prefixes->cache, sequence, &s, error));
    TMS_REQUIRE(n_tokens <= s->length, TAMIS_E_ARGUMENT,
                "n_tokens %" PRIu32 " exceeds the %" PRIu32 " tokens of sequence %" PRIu64,
                n_tokens, s->length, sequence);
    forget_lost(prefixes);
    int32_t *copy = make_room(prefixes) ? malloc(n_tokens * sizeof *copy) : NULL;
    TMS_REQUIRE(copy, TAMIS_E_NO_MEMORY,
                "no host memory for the %" PRIu32 " tokens of sequence %" PRIu64, n_tokens,
                sequence);
    memcpy(copy, tokens, n_tokens * sizeof *copy);
    known *at = prefixes->known + index_of(prefixes, sequence);
    if (at == prefixes->known + prefixes->n)
        prefixes->n++;
    else
        free(at->tokens);
    *at = (known){.sequence = sequence,
                  .mark = tms_history_mark(s, TMS_KEEPS_TOKENS),
                  .tokens = copy,
                  .n_tokens = n_tokens};
    memcpy(at->salt, salt, SALT_BYTES);
    return TAMIS_OK;
}

void tamis_prefixes_remove(tamis_prefixes *prefixes, tamis_sequence sequence) {
    TMS_ENTER_WAITING(prefixes);
    const size_t index = prefixes ? index_of(prefixes, sequence) : 0;
    if (prefixes && index < prefixes->n) forget(prefixes, index);
}

/* ---- The longest ----------------------------------------------------------------------------- */

/* How many of the tokens a sequence, which the cache still has, can serve now. */
static uint32_t served(const tamis_prefixes *p, const known *k) {
    const tms_sequence *sequence = tms_cache_find(p->cache, k->sequence);
    const uint32_t least = tms_history_cut_since(sequence, TMS_KEEPS_TOKENS, k->mark);
    if (!tms_is_idle(sequence)) return 0;
    return k->n_tokens < least ? k->n_tokens : least;
}

/* The first of those sequences that share the most of n tokens, and more than *shared, which gets
 * what it shares; NULL if there is none. */
static const known *longest(const tamis_prefixes *p, const int32_t *tokens, uint32_t n,
                            const uint8_t *salt, uint32_t *shared) {
    const known *best = NULL;
    for (size_t i = 0; i < p->n; i++) {
        const known *k = p->known + i;
        uint32_t most = served(p, k);
        if (most > n) most = n;
        if (most <= *shared || memcmp(k->salt, salt, SALT_BYTES) != 0) continue;
        if (memcmp(k->tokens, tokens, (*shared + (size_t)1) * sizeof *tokens) != 0) continue;
        uint32_t same = *shared + 1;
        while (same < most && k->tokens[same] == tokens[same])
            same++;
        /* What the next row would see may be gone. */
        if (same < tms_cache_find(p->cache, k->sequence)->shortest) continue;
        best = k;
        *shared = same;
    }
    return best;
}

tamis_status tamis_prefixes_fork(tamis_prefixes *prefixes, const int32_t *tokens, uint32_t n_tokens,
                                 const uint8_t salt[16], uint32_t least, tamis_sequence *out,
                                 uint32_t *length, tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    TMS_REQUIRE(length, TAMIS_E_ARGUMENT, "length is NULL");
    *out = 0;
    *length = 0;
    TMS_ENTER(prefixes);
    TMS_TRY(check_tokens(prefixes, tokens, n_tokens, salt, error));
    forget_lost(prefixes);
    uint32_t shared = least > 0 ? least - 1 : 0;
    const known *best = longest(prefixes, tokens, n_tokens - 1, salt, &shared);
    if (!best) return TAMIS_OK;
    TMS_TRY(tamis_cache_fork(prefixes->cache, best->sequence, out, error));
    tms_sequence_shorten(prefixes->cache, tms_cache_find(prefixes->cache, *out), shared);
    *length = shared;
    return TAMIS_OK;
}
