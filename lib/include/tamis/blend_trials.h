/* SPDX-License-Identifier: Apache-2.0 */
/* Trials of blends: a file that keeps, for each model that was measured, how large a share of the
 * tokens found must be computed for answers to stay as they are. `tamis blend trial` measures and
 * writes it; engines ask it before they blend. It calls no device. Libraries built without the
 * store (TAMIS_STORE) lack these calls. */
#ifndef TAMIS_BLEND_TRIAL_H
#define TAMIS_BLEND_TRIAL_H

#include <tamis/blend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The file holds any number of entries. It is text, in lines, for people to read; a checksum in its
 * last line tells what was changed or cut short since. A file is written under another name in its
 * folder, synced and renamed, under a lock on the folder (flock): readers see the old or the new
 * one, and of writers at a time none loses what another has written.
 *
 * Thread-safety: any number of threads and processes may use a file at a time. */

/* What was measured at one share: prompts that were blended beside the same prompts computed whole.
 * All numbers are finite, from 0 to 1e9, and kept to nine digits behind the point. */
typedef struct tamis_blend_figures {
    double share; /* of the hits, above 0 to 1 */
    /* ‖blended − whole‖₂ / ‖whole‖₂, mean over layers: of K and of V of all chunks that do not
     * stand where they are exact, and of the output of attention in the rows behind them. */
    double k_deviation, v_deviation, attention_deviation;
    /* Σ p·ln(p/q), p of the prompt computed whole, q of the blended one, for each token of the
     * answer that the former gives greedily, which both have read up to there: mean, and the value
     * that 95 % do not exceed. Nats. */
    double kl_mean, kl_p95;
    double
        agreement; /* share of these tokens that are the most likely ones after the latter, too */
    /* The largest estimate of the gate in the check layer, tamis_blend_stats' `left`, of these
     * prompts: a `bound` of tamis_blend_params not far above it lets the like of them pass. */
    double left;
    uint32_t passed; /* 1: kl_mean and agreement keep the bounds; else 0 */
    uint32_t reserved32;
    uint64_t reserved[3]; /* 0, else E_ARGUMENT */
} tamis_blend_figures;

#define TAMIS_BLEND_TRIAL_SHARES 16

/* An entry. Fingerprint and settings decide which one: writing one again replaces it. */
typedef struct tamis_blend_trial {
    uint8_t fingerprint[16]; /* of the model alone, as in tamis_blend_params */
    char model[128];         /* its name, for people; control characters become '?' */
    /* Settings. */
    tamis_blend_selector selector; /* one that takes a share */
    tamis_blend_schedule schedule;
    uint32_t check_layer;           /* the layer itself, from 1 on; or TAMIS_BLEND_NO_CHECK */
    tamis_dtype cache_dtype, dtype; /* of the cache, of the records */
    uint32_t n_sink;
    /* What was measured, and the bounds. */
    uint32_t prompts, chunks, chunk_tokens, answer_tokens;
    uint64_t seed;
    double max_kl, min_agreement;
    double share; /* the smallest that passed with all above it; 0: none has */
    uint32_t n_figures, reserved32;
    tamis_blend_figures figures[TAMIS_BLEND_TRIAL_SHARES]; /* by share, ascending */
    uint64_t reserved[8];                                  /* 0, else E_ARGUMENT */
} tamis_blend_trial;

/* Where trials are kept unless the caller says otherwise: tamis/blend.trials in $XDG_CONFIG_HOME,
 * else in .config of $HOME. A variable without an absolute path counts as unset; none is obeyed in
 * a program with more rights than its user (setuid). Errors: E_ARGUMENT (NULL; no room, with the
 * numbers), E_STATE (neither variable is set). */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_blend_trial_path(char *path, size_t capacity,
                                                               tamis_error *error);

/* Reads all entries: writes at most `capacity` of them, and the full number to *count. A file that
 * does not exist has none. Errors, which name the file: E_ARGUMENT; E_FORMAT (the file is no trial
 * file; a line that is none of an entry, with its number), E_UNSUPPORTED (another version),
 * E_DAMAGED (the checksum is not that of the content: the file was cut short, or changed by hand),
 * E_IO, E_NO_MEMORY. Nothing has been written then. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_blend_trial_read(const char *path,
                                                               tamis_blend_trial *trials,
                                                               size_t capacity, size_t *count,
                                                               tamis_error *error);

/* Adds an entry, in the place of the one with the same fingerprint and settings; the other entries
 * stay. Makes the file and the folders to it. Waits until it is on the disk. Errors: E_ARGUMENT
 * with the value (a selector that takes no share; shares that do not ascend; `share` that is not
 * the smallest of which all figures passed); those of tamis_blend_trial_read, for a file that is
 * there: it stays as it is. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_blend_trial_write(const char *path,
                                                                const tamis_blend_trial *trial,
                                                                tamis_error *error);

/* The gate: whether the file has an entry for a blend of these parameters, over a cache of this
 * dtype, that passed with the share or a smaller one. Selector all, and a share of 1, need none:
 * nothing is approximated. OK: there is one, written to *out unless that is NULL (all 0 where none
 * is needed). Errors: E_STATE, which names fingerprint, settings and shares and what makes an
 * entry; E_UNSUPPORTED for what no entry can hold (selectors without a share, a list of shares,
 * bounds `least` and `most`); those of tamis_blend_trial_read; E_ARGUMENT. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_blend_trial_passed(const char *path,
                                                                 const tamis_blend_params *params,
                                                                 tamis_dtype cache_dtype,
                                                                 tamis_blend_trial *out,
                                                                 tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
