/* SPDX-License-Identifier: Apache-2.0 */
/* Text chunks into a store: a model computes their K and V, alone or behind a sink. Of
 * libtamis_model. Libraries built without xxHash (TAMIS_STORE) lack these calls. */
#ifndef TAMIS_RECORD_H
#define TAMIS_RECORD_H

#include <tamis/model.h>
#include <tamis/store.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tamis_record_params {
    /* Tokens that stand before the chunk while it is computed, such as bos, at positions 0 to
     * n_sink - 1; their own K and V are not stored. NULL where n_sink is 0. */
    const int32_t *sink;
    uint32_t n_sink;
    tamis_dtype dtype; /* of the planes: f32, or f16 and bf16, rounded to nearest even */
    uint8_t salt[16];  /* of a tenant; 0 is a salt like any other */
    uint32_t tiers;    /* as in tamis_chunk_planes; 0: all */
    /* Of the cache over which K and V are computed, since attention reads it: for a runner's calls
     * that of its own cache, else E_ARGUMENT. */
    tamis_dtype cache_dtype;
    uint64_t reserved[6]; /* 0, else E_ARGUMENT */
} tamis_record_params;

/* The id under which tamis_runner_record stores these tokens: to look whether a store has them
 * (tamis_store_get), and to find them later. Its fingerprint is that of the model behind the sink
 * (tamis_fingerprint_extend). The id points to the caller's tokens. Errors: E_ARGUMENT (NULL; no
 * tokens, or more than a record takes; a dtype that is none; a reserved field), and those of
 * tamis_model_fingerprint. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_record_id(tamis_model *model,
                                                        const tamis_record_params *params,
                                                        const int32_t *tokens, uint32_t n_tokens,
                                                        tamis_chunk_id *out, tamis_error *error);

/* Computes the K and V of a chunk's tokens by a forward pass and puts them into a store: V and K of
 * each layer as the model's matrices give them, K before a norm of its heads and before its rotation,
 * as tamis_plan_load_rows takes it. The pass is that of tamis_runner_prefill, in exact steps of at most
 * max_rows, of the sink's tokens and the chunk's behind them, on a sequence of its own that is gone
 * when the call returns. No other sequence changes, and what tamis_runner_logits gives stays. Neither
 * observer nor watcher is called, and nothing is evicted. The plan takes the pass for steps of one
 * more sequence: under an eviction with a window they may take the place of the queries of the
 * sequence whose step lies longest back. The host holds all planes meanwhile, f32 ones of one step
 * beside them, and waits in every layer.
 *
 * Errors, which leave nothing behind: E_ARGUMENT (as tamis_record_id; another cache_dtype than the
 * runner's; a token outside the vocabulary; sink and chunk longer than max_context, with the numbers); E_UNSUPPORTED (the runner's scale, soft
 * cap or sliding window is not the model's own, so that its K and V are not those that the fingerprint
 * stands for; a value that is not finite, or that the dtype does not hold, with layer and token);
 * E_FULL (the cache lacks pages, with the numbers); E_NO_MEMORY; E_STATE (an open step of another
 * plan); E_DEVICE; and those of tamis_store_put. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_runner_record(tamis_runner *runner,
                                                            tamis_store *store,
                                                            const tamis_record_params *params,
                                                            const int32_t *tokens,
                                                            uint32_t n_tokens, tamis_error *error);

/* Puts what a sequence holds into a store, as one chunk: its tokens behind the sink, which must be
 * those given, from position n_sink on. Nothing is computed. So a text that a blend has put together
 * of chunks is found as one chunk the next time, as far from a prefill as the blend left it; a salt
 * of its own keeps such records apart from those that tamis_runner_record makes of the same tokens.
 *
 * K and V are read out of the cache, in its dtype. The rotation is taken off K in fp64, and divided
 * by the weights of the norm of its heads where the model has one. Loaded again at the same
 * positions they are what they were, up to the roundings of the two dtypes, and under such a norm up
 * to its eps beside the mean square of a head. Waits for the device. Errors, which leave nothing
 * behind: E_ARGUMENT (as tamis_record_id; no such sequence, or one that is shorter, with the
 * numbers); E_STATE (a sequence in an open step, or one that has lost tokens to an eviction or to a
 * decode step at fixed lane lengths, given up ones included); E_UNSUPPORTED (as
 * tamis_runner_record); E_NO_MEMORY; E_DEVICE; and those of tamis_store_put. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_runner_record_sequence(
    tamis_runner *runner, tamis_store *store, const tamis_record_params *params,
    tamis_sequence sequence, const int32_t *tokens, uint32_t n_tokens, tamis_error *error);

/* The same as tamis_runner_record for a prefix: the K and V of its full pages of page_tokens, each of
 * which knows of all that stands before it, as records with the page before as parent
 * (tamis_prefix_keys); a rest of tokens is in none. The tokens begin with bos or whatever else the
 * model needs: n_sink must be 0, and the ids are those of tamis_record_id with parents. Nothing is
 * computed if the store has all pages; else all of them are, and those that are there already stay as
 * they are. *n_stored (may be NULL) is how many pages were put, from the first on that was missing.
 * In a blend (TAMIS_BLEND_PREFIX) pages of f32 give the bits of a prefill. Errors: as
 * tamis_runner_record; E_ARGUMENT (a sink, page_tokens 0). Pages that were put before an error stay,
 * and are right. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_runner_record_prefix(
    tamis_runner *runner, tamis_store *store, const tamis_record_params *params,
    const int32_t *tokens, uint32_t n_tokens, uint32_t page_tokens, uint32_t *n_stored,
    tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
