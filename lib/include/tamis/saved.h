/* SPDX-License-Identifier: Apache-2.0 */
/* A sequence as a stream of bytes: saved from one cache, restored into another one, of whatever device
 * or process. */
#ifndef TAMIS_SAVED_H
#define TAMIS_SAVED_H

#include <tamis/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What goes into the stream: of each lane the slots that hold tokens, in their order, K and V in the
 * cache's own dtype, with their planes, all bit for bit; the history by which evictions know what they
 * may assume; the queries of its last rows where the plan keeps them; bounds if they are asked for.
 * Pages that lanes have given back stay given back.
 *
 * What does not: the tokens, logits and the generator of an engine; what the caller has bound to the
 * plan (tamis_plan_bind_output, _rotation, _budgets) and said of prefixes. That a sequence was forked
 * is forgotten: one that is restored shares no pages, and knows of its own queries alone.
 *
 * All numbers are little-endian, whatever the host. The stream has a version, and a checksum behind
 * each 256 KiB or so, which finds accidents: whoever may write the bytes decides what a model goes on from.
 * A stream from a stranger is not trusted, though: any bytes whatever are restored or refused.
 *
 * The stream fits a plan that agrees in: the model's fingerprint, as the caller gives it; the cache's
 * n_layers, n_heads, n_kv_heads, head_dim, page_size, dtype and planes; the plan's eviction, with all
 * its numbers. Where one differs the reason has both values. Selection, bounds, capacities and devices
 * are free, and so are the numbers of sequences and rows. Restored on the kind of device that it comes
 * from, a sequence goes on with the same bits; on another one from the same K, V and planes.
 *
 * A callback handles all n bytes and returns 0; anything else ends the call with E_IO and that number.
 * It makes no calls on the context or what was made from it. Reading goes to the stream's end and no
 * further, so that bytes of the caller's own may stand before and behind it. */
typedef int (*tamis_saved_write)(void *user, const void *bytes, size_t n);
typedef int (*tamis_saved_read)(void *user, void *bytes, size_t n);

enum {
    /* Bounds of full pages are saved, too. Without it, and in a cache with bounds of another kind, they
     * are computed anew, which gives the same bits on the same kind of device. */
    TAMIS_SAVE_BOUNDS = 1
};

typedef struct tamis_save_params {
    uint8_t fingerprint[16]; /* of the model (tamis_model_fingerprint), or whatever an engine has */
    uint32_t flags;          /* TAMIS_SAVE_*, or-ed, which only saving goes by */
    uint32_t reserved32;     /* 0, else E_ARGUMENT */
    uint64_t reserved[6];    /* 0, else E_ARGUMENT */
} tamis_save_params;

/* Writes a sequence, which stays as it is, between steps. The host holds half a MiB or so meanwhile. Waits.
 * Errors, after which what has been written is no stream: E_ARGUMENT (NULL; no such sequence; an unknown
 * flag; a reserved field); E_STATE (an open step on the cache; a sequence that holds rows of a step that
 * was given up, or layers of an eviction that failed between them; bounds that a failed call has left
 * out, see tamis_cache_set_bounds); E_IO; E_NO_MEMORY; E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_save(tamis_plan *plan, tamis_sequence sequence,
                                                        const tamis_save_params *params,
                                                        tamis_saved_write write, void *user,
                                                        tamis_error *error);

/* Adds a sequence of the plan's cache that is what was saved. All its pages are taken before any is
 * written. It counts as a step of one sequence more: under an eviction with a window its queries may
 * take the place of those of the sequence whose step lies longest back, also where the call then fails.
 * Waits. Other than that an error changes nothing, and *out is then 0: E_ARGUMENT (NULL; what the stream
 * must agree in, with both values; more tokens than max_context; an unknown flag; a reserved field);
 * E_FORMAT (no saved sequence, another version, numbers that contradict each other); E_DAMAGED (a
 * checksum that does not hold); E_FULL with the pages needed and free; E_STATE (an open step on the
 * cache, or missing bounds); E_IO; E_NO_MEMORY; E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_restore(tamis_plan *plan,
                                                           const tamis_save_params *params,
                                                           tamis_saved_read read, void *user,
                                                           tamis_sequence *out, tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
