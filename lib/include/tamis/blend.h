/* SPDX-License-Identifier: Apache-2.0 */
/* Blending: a prompt of which parts are stored chunks. Their K and V are loaded in the place of
 * being computed, and only some of their tokens are computed anew, so that they know of what stands
 * before them. Libraries built without the store (TAMIS_STORE) lack these calls. */
#ifndef TAMIS_BLEND_H
#define TAMIS_BLEND_H

#include <tamis/plan.h>
#include <tamis/store.h>

#ifdef __cplusplus
extern "C" {
#endif

/* CacheBlend (EuroSys '25), its gradual filtering (section 4.3) included. A prompt is one exact
 * step of a plan. Its rows are
 *
 *   exact  of a stored chunk before which the prompt has the sink and nothing else, or of a
 *          stored page of a prefix: K and V that were stored are right where they stand. They are
 *          loaded in every layer.
 *   hits   of any other chunk that the store has;
 *   fresh  all others: tokens that are in no chunk, chunks that the store lacks, and the prompt's
 *          last token. Also its last `window` tokens, where the plan's eviction has a window.
 *
 * In the layers before the check layer K, V and attention of all rows but the exact ones are
 * computed. In the check layer K and V of all these rows are computed and written. From then on a
 * row is either computed, or it has no hidden state any more and its stored K and V are loaded:
 * fresh rows are always computed, exact ones never, and of the hits those that the selector
 * selects. Each layer's are among those of the layer before. A row sees the tokens before it in the
 * prompt, whichever rows are computed beside it.
 *
 * tamis_blend_run takes an engine through the layers of its model: the engine computes, for the rows
 * that it is told (tamis_blend_engine).
 *
 * The sequence is then one like any other. What it holds of the hits is an approximation: it must
 * not be stored as the K and V of a prefix.
 *
 * Thread-safety: as the plan's context. A thread of the blend reads the store, and calls no device.
 */
typedef struct tamis_blend tamis_blend;

/* Which hits are computed behind the check layer; values never change. */
typedef enum tamis_blend_selector {
    /* The share whose V deviates most from the stored one (CacheBlend): by the sum of squares of
     * the differences over KV heads and channels, of two equal ones the lower row. */
    TAMIS_BLEND_HKVD = 0,
    TAMIS_BLEND_FIRST = 1,  /* the first `first` tokens of each chunk (EPIC, ICML '25) */
    TAMIS_BLEND_RANDOM = 2, /* a share drawn by `seed`: to measure against */
    TAMIS_BLEND_LIST = 3,   /* those that the caller lists */
    TAMIS_BLEND_ALL = 4,    /* all, and the exact rows: nothing is loaded */
    TAMIS_BLEND_NONE = 5,   /* none */
    /* The share to which the prompt's question attends most where all hits are reused, of two equal
     * ones the lower row (the idea of ProphetKV, ICML '26): see tamis_blend_run. */
    TAMIS_BLEND_QUESTION = 6
} tamis_blend_selector;

/* "hkvd", "question", "first", "random", "list", "all", "none" to the selector and back. Errors:
 * E_ARGUMENT listing the known names. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_blend_selector_parse(const char *name,
                                                                   tamis_blend_selector *out,
                                                                   tamis_error *error);
/* "unknown" outside the list. */
TAMIS_API const char *tamis_blend_selector_name(tamis_blend_selector selector);

/* How the share goes on from the check layer. */
typedef enum tamis_blend_schedule {
    TAMIS_BLEND_FALLING = 0, /* 1.5, 1.25, 1.1 times the share, at most 1; then the share */
    TAMIS_BLEND_FLAT = 1     /* the share: selected once */
} tamis_blend_schedule;

/* A check_layer: no layer is computed for all rows. Rows are selected before layer 0, and hits are
 * loaded in all layers (full reuse with selector none; EPIC with first). Not with hkvd. */
#define TAMIS_BLEND_NO_CHECK UINT32_MAX

/* How a blend reads a layer of a chunk: tamis_chunk_read with these arguments, or what stands in
 * its place and answers as it does. Called by the blend's thread, or with TAMIS_BLEND_NO_THREAD
 * by the caller's, by one at a time; it must call neither the blend nor a device. */
typedef tamis_status (*tamis_blend_reader)(void *user, tamis_chunk *chunk, uint32_t layer, void *k,
                                           void *v, tamis_error *error);

/* Flags of a blend, or-ed. */
enum {
    TAMIS_BLEND_NO_THREAD = 1, /* what is loaded is read by the calls themselves */
    /* Each layer waits for the device, so that the times of layers are the device's. Without it they
     * are the host's, which on a device with a queue of its own enqueues and goes on. */
    TAMIS_BLEND_TIMING = 2
};

typedef struct tamis_blend_params {
    tamis_blend_selector selector;
    tamis_blend_schedule schedule;
    /* Of the hits, above 0 to 1; 0 means 0.15. For hkvd, question and random: k = ceil(share *
     * hits), computed in double. 1 means selector all. */
    double share;
    /* The shares of the check layer and of those behind it in the place of the schedule: none above
     * the one before; the last one holds for all layers behind. Copied; NULL: the schedule's. */
    const double *shares;
    uint32_t n_shares;
    uint32_t check_layer; /* 0 means 1 */
    /* Bounds on k: at least and at most so many of the hits; `most` 0 means all. */
    uint32_t least, most;
    /* The gate, of every selector but all. Where what would be left in the check layer, which must
     * be there, exceeds it, all hits of the prompt are computed to the end, and `gated` counts it.
     * What is left is the deviation of the hits that are not selected over the norm of all hits:
     * sqrt(sum |V - stored V|^2 / sum |V|^2). What is not finite exceeds every bound. 0: no
     * gate. */
    double bound;
    uint32_t first; /* of selector first, at least 1 */
    uint32_t n_rows;
    const uint32_t *rows; /* of selector list: rows of the prompt, ascending, [n_rows]; copied */
    uint64_t seed;

    /* Which records: see tamis_chunk_id; those that were computed over a cache of the dtype that
     * the plan's has. `dtype` must be in the plan's load_dtypes. */
    tamis_dtype dtype;
    uint32_t n_sink;
    const int32_t *sink;     /* the tokens that stood before the chunks, [n_sink]; copied */
    uint8_t fingerprint[16]; /* the model's: records have it extended by the sink */
    uint8_t salt[16];

    /* How stored K is normalised and rotated: as in tamis_stored_rows. The table and the buffers of
     * `k_norms` stay the caller's; where they are destroyed, their memory stays for the blend. */
    tamis_rotation rotation;
    const tamis_place *k_norms; /* [n_layers], copied; NULL: no norms */
    float eps;

    /* Memory for what has been read ahead, as much on the host as on the device, taken as prompts
     * need it; 0: two layers of the largest prompt so far, and a chunk's layer more. */
    uint64_t ring_bytes;
    tamis_blend_reader reader; /* NULL: tamis_chunk_read */
    void *reader_user;
    uint32_t page_tokens; /* of the pages of prefixes; 0: the prompts have none */
    uint32_t flags;       /* TAMIS_BLEND_NO_THREAD, _TIMING, or-ed; any other bit is E_ARGUMENT */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_blend_params;

/* Makes a blend for prompts of a plan, with chunks of a store. Where one of them is
 * destroyed before it, the blend's calls answer E_STATE. Errors:
 * E_ARGUMENT with the value (a selector, schedule, share or layer that is none; a dtype that is not
 * in the plan's load_dtypes; selector question for a plan without
 * TAMIS_PLAN_ROW_MASSES); E_UNSUPPORTED
 * (reindexed streaming, under which no step can be narrowed; not with selector all); E_NO_MEMORY;
 * E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_blend_create(tamis_plan *plan, tamis_store *store,
                                                           const tamis_blend_params *params,
                                                           tamis_blend **out, tamis_error *error);
/* Accepts NULL. Cancels a prompt that is open. */
TAMIS_API void tamis_blend_destroy(tamis_blend **blend);
/* The plan that it was made for. NULL for NULL. */
TAMIS_API tamis_plan *tamis_blend_plan(const tamis_blend *blend);

/* What a part is; values never change. */
enum {
    TAMIS_BLEND_FRESH = 0,
    TAMIS_BLEND_CHUNK = 1, /* looked up in the store; fresh if that lacks it */
    /* The beginning of the sequence, sink included: the longest prefix whose pages the store has
     * (tamis_store_get_prefix, by the model's own fingerprint), in pages of page_tokens, is exact;
     * the rest is fresh. Nothing stands before it. Each page counts as a part, and those that are
     * missing as one. h2o's sums lack the rows that are loaded, as tamis_plan_step_keep_rows says. */
    TAMIS_BLEND_PREFIX = 2
};

typedef struct tamis_blend_part {
    const int32_t *tokens;
    uint32_t n_tokens;    /* 0: the part is passed over */
    int stored;           /* TAMIS_BLEND_FRESH, _CHUNK or _PREFIX */
    uint64_t reserved[2]; /* 0, else E_ARGUMENT */
} tamis_blend_part;

/* What an engine does in each layer of its model, in this order; all of them must be there. Rows are
 * those of the prompt, counted from its first token on. What is pointed to is the blend's and valid
 * during the call. A status other than OK ends the prompt, and tamis_blend_run fails with it and with
 * what the call wrote into its error, which is never NULL; without a text there it names the call. They
 * run on the caller's thread, which is in the context until the prompt ends: calls of other threads
 * on the context answer E_STATE meanwhile, so an engine must not wait for such a thread. None of them may
 * call or destroy the blend. A prompt may begin anew, with `project` for layer 0: where a record
 * turns out to be damaged when rows that it was to serve have been left out (its tokens are fresh then;
 * at most once for each stored part), and once under selector question. */
typedef struct tamis_blend_engine {
    void *user;
    /* Computes q, k and v of these n rows, ascending: in layer 0 from their tokens, behind that from the
     * hidden states that the engine has of them. *v: where v is, f32 [n][n_kv_heads][head_dim]. */
    tamis_status (*project)(void *user, uint32_t layer, const uint32_t *rows, uint32_t n,
                            tamis_rows *v, tamis_error *error);
    /* Writes their K and V: tamis_plan_write_rotated, or tamis_plan_write. */
    tamis_status (*write)(void *user, uint32_t layer, tamis_error *error);
    /* Only these n rows stay, `places` [n] among those of `project`: brings their q and hidden states
     * together. places NULL: all stay. *q: where q is, f32 [n][n_heads][head_dim], as
     * tamis_plan_attend takes it. */
    tamis_status (*keep)(void *user, uint32_t layer, const uint32_t *rows, const uint32_t *places,
                         uint32_t n, tamis_rows *q, tamis_error *error);
    /* Attends (tamis_plan_attend), and computes the rest of the layer for the n rows; behind the last
     * layer whatever the engine needs of them. */
    tamis_status (*finish)(void *user, uint32_t layer, uint32_t n, tamis_error *error);
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_blend_engine;

/* Runs a prompt: looks up the stored parts, begins the plan's step with all tokens of the parts as rows
 * of the sequence, takes the engine through all layers, and ends the step. The prompt's last token is
 * always computed. What the store cannot read counts as missed.
 *
 * Under selector question the prompt's question is what stands behind the last part that is stored,
 * whether the store has it or not; where such a part ends the prompt, the prompt's last token. A prompt
 * with hits is run twice. In the first pass all hits are loaded in every layer, as in full reuse, and
 * fresh rows are computed. The weights with which the question's rows attend to each hit are summed
 * over these rows, the query heads and the layers (tamis_plan_row_masses). In the last layer the hits
 * are ranked by these sums (NaN first), and the prompt begins anew. The second pass is a blend in which
 * the selector keeps the first of this ranking; a share that falls keeps the first of the same one.
 * Chunks are read once in each pass, the second time from the store's memory where that has kept them.
 * If a record turns out to be damaged so late that the step is begun anew, the question is asked again
 * of what is left. A share of 1 asks nothing. To tokens before the prompt h2o's sums add the question's
 * rows of both passes. An engine that ranks tokens by itself takes selector list. ProphetKV (Wang and
 * others, ICML '26, arXiv 2602.02579) selects by a query's attention, joined over layers, in two
 * stages of this kind. What is done here follows that idea, not its code; sums without weights, and
 * fresh rows outside the share, are this library's choice.
 *
 * Waits for reads, where rows are measured, and in the first pass of selector question. Errors:
 * E_ARGUMENT (no tokens; more than the plan's max_rows; a listed row past the prompt; ring_bytes below
 * a layer of a chunk; a prefix behind other tokens, or without page_tokens; a `stored` that is none; a
 * call of the engine that is NULL; v or q that does not fit); E_STATE (the blend runs a prompt
 * already); those of tamis_plan_step_begin, _step_keep_rows, _load_rows, _row_deviations,
 * _row_masses and _step_end; E_NO_MEMORY; E_DEVICE; the engine's. The prompt's step is then cancelled:
 * the sequence is as it was. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_blend_run(tamis_blend *blend, tamis_sequence sequence,
                                                        const tamis_blend_part *parts,
                                                        uint32_t n_parts,
                                                        const tamis_blend_engine *engine,
                                                        tamis_error *error);

/* Since the blend was made. Under selector question both passes of a prompt count in rows_computed,
 * bytes_read and the times. */
typedef struct tamis_blend_stats {
    uint64_t prompts;  /* ended */
    uint64_t restarts; /* of prompts, for records that were damaged when rows had been left out */
    uint64_t parts_found, parts_missed, parts_exact; /* stored parts; exact ones are found, too */
    uint64_t parts_damaged;                          /* found, but a plane was damaged: computed */
    uint64_t parts_failed; /* of those missed and those found: the store could not read them */
    uint64_t tokens_exact, tokens_hit, tokens_fresh; /* of prompts that ended */
    uint64_t tokens_selected;                        /* of the hits: in the last layer */
    uint64_t rows_computed; /* over layers: rows whose K and V were computed */
    uint64_t bytes_read;    /* from the store, also for prompts that were cancelled */
    double read_us;         /* reading them */
    double wait_us;         /* waiting for reads */
    double compute_us;      /* from the end of loading to that of the layer */
    uint64_t
        gated;   /* prompts whose hits the gate has had computed to the end: they count as fresh */
    double left; /* of the last prompt: what `bound` is compared with; 0 without a bound */
    double load_us; /* loading, beside waiting: to the device and into slots */
    uint64_t asked; /* first passes of selector question: of prompts with hits, and of restarts */
    double ask_us;  /* these passes, as a whole */
    /* A layer's planes of a chunk that were uploaded; those of them that were before their
     * layer came, beside what the device computed of an earlier one. */
    uint64_t uploads, uploads_ahead;
    uint64_t reserved[16];
} tamis_blend_stats;
/* Does nothing without a blend or an `out`. */
TAMIS_API void tamis_blend_get_stats(const tamis_blend *blend, tamis_blend_stats *out);

/* The last prompt, layer by layer; under selector question its last pass. Times are the host's:
 * compute_us is the time from the end of a layer's loading to the begin of the next layer, or
 * the end of the prompt. On a device with a queue of its own that is the time of enqueueing, unless
 * something waited (TAMIS_BLEND_TIMING). */
typedef struct tamis_blend_layer_stats {
    uint32_t rows_computed; /* whose K and V were computed */
    uint32_t rows_attended;
    uint64_t bytes_read;
    double read_us, wait_us, compute_us, load_us;
    uint64_t reserved[8];
} tamis_blend_layer_stats;
/* E_ARGUMENT: NULL, or no such layer. A layer that was not reached is all 0. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_blend_get_layer_stats(const tamis_blend *blend,
                                                                    uint32_t layer,
                                                                    tamis_blend_layer_stats *out,
                                                                    tamis_error *error);

/* ---- The controller: how much to compute, and where to store --------------------------------- */

/* What a layer of a prompt takes: of the hits and the exact rows K and V are loaded, of the fresh
 * rows and of a share of the hits they are computed meanwhile. */
typedef struct tamis_blend_costs {
    double load_us;              /* reading K and V of a token in a layer out of a tier */
    double compute_us;           /* a row in a layer, its part of everything between two layers */
    uint64_t hits, exact, fresh; /* rows; all 0: hits alone */
    double least;         /* share: 0 means 0.15, below which the paper's answers become worse */
    double most;          /* share: 0 means 1 */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_blend_costs;

/* The share of the hits whose computing takes as long as loading, so that more would make the
 * prompt slower and fewer would save nothing:
 *
 *   share = ((hits + exact) * load_us - fresh * compute_us) / (hits * compute_us)
 *
 * within least and most. Of hits alone it is load_us / compute_us, as in CacheBlend (EuroSys '25,
 * section 5.1: r * prefill = bytes of a token / throughput, and r is at least 15 %). A pure
 * function. Errors: E_ARGUMENT with the value (a time that is not finite or negative, compute_us 0;
 * no hits beside other rows; least above most, or one of them above 1). */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_blend_share(const tamis_blend_costs *costs,
                                                          double *share, tamis_error *error);

/* A tier that chunks could be kept in. */
typedef struct tamis_blend_tier {
    double load_us;       /* as in tamis_blend_costs, out of this tier */
    double price;         /* of keeping a token; in any unit, the same for all tiers */
    uint64_t reserved[2]; /* 0, else E_ARGUMENT */
} tamis_blend_tier;

/* The tier to keep chunks in where blends compute `share` of their hits: the cheapest of those
 * whose loading is hidden, that is
 *
 *   (hits + exact) * load_us <= (fresh + share * hits) * compute_us
 *
 * (CacheBlend, section 5.1: the least C_store with T_recompute >= T_load), of two equal prices the
 * faster one, then the first. Where none is, *hidden is 0, and the tier is the fastest, of equal
 * ones the cheapest: the paper says nothing of that case. `hidden` may be NULL. load_us of the
 * costs is not used. A pure function. Errors: as tamis_blend_share; no tiers; a price that is not
 * finite; a share that is not 0 to 1. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_blend_choose_tier(const tamis_blend_costs *costs,
                                                                double share,
                                                                const tamis_blend_tier *tiers,
                                                                size_t n_tiers, size_t *chosen,
                                                                int *hidden, tamis_error *error);

/* What the last prompt took, as its layers from the check layer on say: read_us and compute_us over
 * tokens and rows. On a device with a queue of its own computing is seen under TAMIS_BLEND_TIMING
 * alone.
 * `least` and `most` are 0. Errors: E_ARGUMENT (NULL); E_STATE (no prompt has ended; nothing was
 * loaded behind the check layer). */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_blend_get_costs(const tamis_blend *blend,
                                                              tamis_blend_costs *out,
                                                              tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
