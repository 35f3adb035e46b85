/* SPDX-License-Identifier: Apache-2.0 */
/* Of libtamis_model: prompts with stored chunks, run by a model's runner. Libraries built without
 * the store (TAMIS_STORE) lack these calls. */
#ifndef TAMIS_BLEND_MODEL_H
#define TAMIS_BLEND_MODEL_H

#include <tamis/blend.h>
#include <tamis/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a blend for the runner's plan. How K is normalised and rotated is the model's: `rotation`,
 * `k_norms` and `eps` of the parameters must be 0. Where the
 * runner is destroyed before it, its calls answer E_STATE. Errors: E_ARGUMENT for one that is not; E_UNSUPPORTED for a runner whose scale, soft cap
 * or sliding window is not the model's own, since records are the model's; those of
 * tamis_blend_create. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_runner_blend_create(tamis_runner *runner,
                                                                  tamis_store *store,
                                                                  const tamis_blend_params *params,
                                                                  tamis_blend **out,
                                                                  tamis_error *error);

/* Appends a prompt of fresh tokens and stored chunks to a sequence in one step, as
 * tamis_runner_prefill appends tokens alone: *next (may be NULL) is the greedy token after it, its
 * logits are tamis_runner_logits' row 0, and then the plan's eviction evicts. Neither observer
 * nor watcher is called: rows of one layer are not those of the next. With selector all, or a share
 * of 1, the result is that of a prefill in one chunk, bit for bit. Errors: E_ARGUMENT (a blend for
 * another plan; a token outside the vocabulary; those of tamis_blend_run); E_FULL, E_NO_MEMORY,
 * E_STATE, E_DEVICE as tamis_runner_prefill: the sequence is as it was unless the step had ended.
 * Waits. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_runner_blend(
    tamis_runner *runner, tamis_sequence sequence, tamis_blend *blend,
    const tamis_blend_part *parts, uint32_t n_parts, int32_t *next, tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
