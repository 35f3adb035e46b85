/* SPDX-License-Identifier: Apache-2.0 */
/* Prefixes of live sequences: which tokens sequences of a cache hold, and a fork of the one that
 * begins as a prompt does. */
#ifndef TAMIS_PREFIXES_H
#define TAMIS_PREFIXES_H

#include <tamis/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the caller has said of sequences of one cache: their tokens, and a salt. The tokens are
 * copied into host memory, 4 bytes each; no page of the cache is held. Where its cache is
 * destroyed before it, its calls answer E_STATE. Thread-safety: as its cache. No call on it uses the device or waits.
 *
 * A salt is 16 bytes that a tenant gives, as in tamis/store.h: sequences serve only prompts with
 * the same salt, so tenants share nothing unless they give the same one. 0 is a salt like any
 * other.
 *
 * K and V are taken for those of the tokens. Whatever else they depend on is the caller's to tell
 * apart, by salts or by adding no such sequence: adapters, a selection under which tokens were
 * computed, a blend. */
typedef struct tamis_prefixes tamis_prefixes;

/* Errors: E_ARGUMENT (NULL), E_NO_MEMORY. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_prefixes_create(tamis_cache *cache,
                                                              tamis_prefixes **out,
                                                              tamis_error *error);
/* Accepts NULL. Sequences stay as they are. */
TAMIS_API void tamis_prefixes_destroy(tamis_prefixes **prefixes);

/* Says that the sequence holds these tokens from position 0 on: all of its tokens, or the first of
 * them. A later call replaces the tokens and the salt of an earlier one. Nothing is learned of what
 * the sequence grows by: the caller says so again where prompts may go on from there. A truncation
 * is known, though: only the tokens before it still count, whatever the sequence grows by.
 * Errors change nothing: E_ARGUMENT (NULL; no tokens; more than the sequence's length, with both
 * numbers; no such sequence), E_STATE (the sequence is in an open step), E_NO_MEMORY. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_prefixes_add(tamis_prefixes *prefixes,
                                                           tamis_sequence sequence,
                                                           const int32_t *tokens, uint32_t n_tokens,
                                                           const uint8_t salt[16],
                                                           tamis_error *error);

/* Forgets the tokens of a sequence, which itself stays. Does nothing if none are known. */
TAMIS_API void tamis_prefixes_remove(tamis_prefixes *prefixes, tamis_sequence sequence);

/* Finds the sequence that shares the longest beginning with a prompt and has the same salt; of
 * equals, the one that was added first (a later call of tamis_prefixes_add does not change its
 * place). If it shares `least` tokens or more, a fork of it is made that holds the shared tokens
 * and no others. *out gets the fork, which is the caller's like any other, and *length its length.
 * The fork takes no pages. Its own tokens are not known before the caller adds them. A prompt's last
 * token never counts as shared: it must be computed, for its logits. `least` 0 means 1. If no
 * sequence shares so many, *out and *length get 0 and the call answers OK.
 *
 * These sequences are passed over:
 * - Those that have been removed. They are forgotten; handles are not reused.
 * - Those that have lost a token of any lane, to an eviction or to a decode step at fixed lane
 *   lengths. They are forgotten, too: no truncation leads back to whole lanes.
 * - Those in an open step, as long as it is open, for they cannot be forked.
 * A sequence that was truncated since it was added shares no more than the least length that it has
 * had since. Where several objects know a sequence, and it was truncated between their calls of
 * tamis_prefixes_add, only the last call counts.
 *
 * The cost: a look at every sequence that was added, at as many of its tokens as the best one before
 * it shares and one more. That is right for hundreds of sequences.
 * Errors, after which *out and *length are 0 and there is no fork: E_ARGUMENT (NULL; no tokens),
 * E_NO_MEMORY. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_prefixes_fork(
    tamis_prefixes *prefixes, const int32_t *tokens, uint32_t n_tokens, const uint8_t salt[16],
    uint32_t least, tamis_sequence *out, uint32_t *length, tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
