/* SPDX-License-Identifier: Apache-2.0 */
/* A model from a GGUF file: load, tokens, forward pass, greedy generation. */
#ifndef TAMIS_MODEL_H
#define TAMIS_MODEL_H

#include <tamis/plan.h>
#include <tamis/vocab.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Weights on the device and the vocabulary. Thread-safety: as its context. */
typedef struct tamis_model tamis_model;

typedef struct tamis_model_info {
    char architecture[32]; /* general.architecture: "llama", "gemma3", ... */
    char name[128];        /* general.name, or empty */
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, dim, ff_dim, n_vocab;
    uint32_t context;       /* longest text that the file states, tokens */
    tamis_weight_type type; /* of most parameters in matrices */
    uint64_t parameters;
    uint64_t weight_bytes;        /* on the device */
    uint32_t tensors_of_type[32]; /* in the file, by tamis_weight_type */
    uint32_t sliding_window; /* tokens that a row of local layers sees, itself included; 0: all */
    uint32_t n_local_layers; /* layers that have the window */
    uint64_t reserved[8];
} tamis_model_info;

/* An architecture of GGUF files, by general.architecture. */
typedef struct tamis_architecture_info {
    const char *name;   /* "gemma3" */
    const char *models; /* which models it is: "Gemma 3, MedGemma"; may be empty */
    const char
        *refused; /* why files of it are not read, as words behind its name; NULL: they are */
} tamis_architecture_info;
/* The i-th that is known by name: those that are read, then the others. NULL behind the last, so that a
 * caller may count from 0. */
TAMIS_API const tamis_architecture_info *tamis_architecture_describe(uint32_t i);

/* Told how far loading is, in bytes of the file's weights: after every piece of at most 1 MiB, so
 * at least once for every tensor. A status other than OK ends loading, which fails with it. */
typedef tamis_status (*tamis_model_watcher)(void *user, uint64_t done, uint64_t total,
                                            tamis_error *error);
typedef struct tamis_model_params {
    tamis_model_watcher watcher; /* NULL: nobody is told */
    void *user;                  /* of the watcher */
    uint64_t reserved[8];        /* 0, else E_ARGUMENT */
} tamis_model_params;

/* Loads a GGUF file, v2 or v3, of an architecture that docs/models.md lists. Of a model in parts, as gguf-split writes them, `path` names any part; the others lie beside it.
 * Matrices are of any tamis_weight_type, mixed as the file has them; vectors are f32, f16 or bf16.
 * RoPE scaling is none, linear, yarn, longrope, or divisors of each frequency. The file is not trusted: every length,
 * offset and count is checked before use, and whatever would change the computation and is not
 * known is refused by name, before memory is taken on the device. Weights are copied there piece by
 * piece, matrices in the layout that the device reads fastest (tamis_context_weight_layout): the
 * host holds 5 MiB of weights at a time. Errors: E_IO (also if the file shrinks
 * meanwhile, or a part is missing); E_FORMAT (truncated, contradicting itself, parts of two models)
 * and E_UNSUPPORTED (architecture, a shape that no cache takes, a tensor or its type, a key,
 * tokenizer, more than 128 MiB before the tensors' data) with the offending value; E_NO_MEMORY;
 * the watcher's; E_DEVICE; *out is then NULL. `params` may be NULL. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_model_load(tamis_context *context, const char *path,
                                                         const tamis_model_params *params,
                                                         tamis_model **out, tamis_error *error);

/* Accepts NULL. Where runners of the model are left, its memory is freed with the last of them, and
 * until then their calls answer E_STATE; what tamis_model_describe and tamis_model_vocab gave is
 * gone with the model's memory. */
TAMIS_API void tamis_model_destroy(tamis_model **model);
/* Owned by the model; NULL for NULL. */
TAMIS_API const tamis_model_info *tamis_model_describe(const tamis_model *model);

/* Fills the shape fields of *params for this model (layers, heads, head dim); leaves the others.
 * With NULL it does nothing. */
TAMIS_API void tamis_model_cache_shape(const tamis_model *model, tamis_cache_params *params);

/* How each layer attends in a plan that a runner makes of these parameters, [n_layers]: what
 * tamis_layer_tokens asks for, where a cache is to have the room that layers with a window need
 * (tamis_cache_params.layer_tokens, TAMIS_PLAN_GIVE_BACK). Errors: E_ARGUMENT (NULL). */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_model_layers(const tamis_model *model,
                                                           const tamis_plan_params *params,
                                                           tamis_layer *layers, tamis_error *error);

/* A hash of all that decides which K and V the model computes for tokens: its weights, sizes, norms,
 * biases, sliding window, RoPE in full (base, kind of scaling and its numbers, pairing), and the kind
 * and size of its vocabulary, by XXH3. It is that of tamis_chunk_id. Files with the same content
 * agree, whatever their paths and metadata, on every device and backend; weights that differ in one
 * bit do not. Vectors count as the f32 that they are computed in. Not in it: the device, whose kernels
 * differ by rounding alone, and the cache's dtype, to which K and V are rounded as they are written.
 * The first call reads all weights back from the device and waits; later ones give the same bytes.
 * Errors: E_UNSUPPORTED (built without xxHash), E_NO_MEMORY, E_DEVICE: the call may be repeated. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_model_fingerprint(tamis_model *model,
                                                                uint8_t fingerprint[16],
                                                                tamis_error *error);

/* The model's vocabulary, which it owns; NULL for NULL. */
TAMIS_API const tamis_vocab *tamis_model_vocab(const tamis_model *model);
/* Runs forward passes of a model over a cache: a plan, and the buffers of the activations.
 * Thread-safety: as its context. Where the context, the model or the cache is destroyed before it,
 * its calls answer E_STATE. */
typedef struct tamis_runner tamis_runner;

/* `params` as for tamis_plan_create, where zeros mean the model's own: scale, soft_cap, and
 * sliding_window where max_context exceeds it. In a model with local layers a window that is given
 * holds in all layers, the narrower one where both hold; the plan then has layers, and a selection chooses in those alone that
 * are not local. An eviction that needs output projections which are in blocks holds
 * them as f32, too. Builds the kernels of its plan and of decode steps of one sequence; the first step
 * that takes others builds them before it begins. Errors: those of tamis_plan_create; E_ARGUMENT (cache of
 * another context or shape, max_context above the model's, layers); E_UNSUPPORTED (max_context above 2^20,
 * beyond which positions cannot be rotated; selection caller, whose lists come with each attend); *out is then NULL. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_runner_create(tamis_model *model, tamis_cache *cache,
                                                            const tamis_plan_params *params,
                                                            tamis_runner **out, tamis_error *error);
TAMIS_API void tamis_runner_destroy(tamis_runner **runner);
/* Builds the kernels of steps of n_rows rows, of which n_outputs get logits: a prompt's chunk has 1
 * or none, a decode step one a sequence. So a server builds while it starts. 1 row, 2 to 8 and more
 * take the same kernels each. Errors: E_ARGUMENT (no rows, or more than max_rows; more outputs than
 * rows or than max_sequences), E_NO_MEMORY, E_DEVICE. Waits. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_runner_build(tamis_runner *runner, uint32_t n_rows,
                                                           uint32_t n_outputs,
                                                           tamis_error *error);
/* The plan inside, for counters and times. Owned by the runner; NULL for NULL. */
TAMIS_API tamis_plan *tamis_runner_plan(tamis_runner *runner);

/* If a step of prefill or decode fails, its sequences are as they were, and there are no logits.
 * Two kinds of errors come after the step has ended, and then its tokens stay: E_DEVICE, from
 * waiting for the step; and the errors of the eviction that follows a step (tamis_plan_evict:
 * E_FULL, E_STATE, E_DEVICE). After the latter *next and the logits are valid, the eviction may be
 * repeated by tamis_plan_evict, and the tokens must not be given again. The sequence's length shows
 * which case it is. Any other E_STATE means that the cache has an open step of another plan. */

/* Appends a prompt to a sequence in exact chunks of at most max_rows, and then evicts from it if
 * the plan has an eviction other than caller (tamis_plan_evict). Under an eviction with `every` 1 a
 * chunk of one token is a decode step where an exact step takes no single row (tamis_step.exact). *next (may be NULL) is the greedy
 * token after it. Errors: E_ARGUMENT (empty; a token outside the vocabulary; longer than
 * max_context, with the numbers: nothing has changed), E_FULL, E_NO_MEMORY, E_STATE, E_DEVICE (what
 * came before the failing chunk stays). Waits. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_runner_prefill(tamis_runner *runner,
                                                             tamis_sequence sequence,
                                                             const int32_t *tokens, size_t count,
                                                             int32_t *next, tamis_error *error);

/* Called by prefill after each chunk, for which it then waits: `done` of `count` tokens have been
 * read. It must not call the runner, its plan or its cache. A status other than OK ends the prefill,
 * which fails with that status; what has been read stays, and nothing is evicted. */
typedef tamis_status (*tamis_runner_watcher)(void *user, size_t done, size_t count,
                                             tamis_error *error);
/* Sets the watcher; NULL removes it. */
TAMIS_API void tamis_runner_watch(tamis_runner *runner, tamis_runner_watcher watcher, void *user);

/* One decode step: sequences[i] takes tokens[i]; next[i] is the greedy token after it. All rows are
 * run under the selection. An eviction with `every` >= 2 then evicts from those sequences that have
 * grown by `every` tokens since its last time. Errors: E_ARGUMENT (empty, more sequences than the
 * plan takes, unknown, a token outside the vocabulary), E_FULL, E_NO_MEMORY, E_STATE, E_DEVICE.
 * Waits. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_runner_decode(tamis_runner *runner,
                                                            const tamis_sequence *sequences,
                                                            uint32_t count, const int32_t *tokens,
                                                            int32_t *next, tamis_error *error);

/* What one sequence brings to a step of several kinds of rows. */
enum {
    /* A prompt's chunk: its rows read every page that they may see. Else they go through the selection:
     * a decode row, or several rows that are to be verified (max_selected_rows). */
    TAMIS_RUN_EXACT = 1,
    /* With TAMIS_RUN_EXACT: the prompt ends here, and is evicted from as by tamis_runner_prefill. */
    TAMIS_RUN_EVICT = 2
};
typedef struct tamis_run {
    tamis_sequence sequence;
    const int32_t *tokens; /* [n_tokens] */
    uint32_t n_tokens;
    uint32_t n_outputs;   /* of its last tokens: these get logits and greedy tokens; 0: none */
    uint32_t flags;       /* TAMIS_RUN_*, or-ed */
    uint32_t reserved32;  /* 0, else E_ARGUMENT */
    /* [n_tokens] a tree: the token of the run behind which each stands, as in tamis_step.parents; NULL:
     * each behind the one before it. */
    const uint32_t *parents;
    uint64_t reserved[3]; /* 0, else E_ARGUMENT */
} tamis_run;

/* One step of several sequences, no sequence twice: chunks of prompts beside decode rows and rows to be
 * verified; runs that are exact come last. Each row gets the bits that it has in a step of its run
 * alone: matrices multiply rows that are not exact 8 at a time, and those of each exact run together,
 * so that weights are read once for each of these. (On CUDA tiles of attention may differ by
 * rounding.) next (may be NULL) gets the greedy tokens behind the outputs, run by run; logits rows lie
 * likewise. Of the rows that were to be verified the rejected ones are given up before the sequence's next step, by
 * tamis_plan_keep_path, or tamis_cache_truncate unless they are a tree; behind a run of several such rows nothing is evicted yet. Errors: as
 * tamis_runner_decode; E_ARGUMENT also for the order, flags, and more outputs than max_sequences and
 * max_selected_rows; E_STATE for a single exact row that would have to take a token's place
 * (tamis_step.exact). Waits. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_runner_step(tamis_runner *runner,
                                                          const tamis_run *runs, uint32_t count,
                                                          int32_t *next, tamis_error *error);

/* The rows of one layer's attention in a forward pass: f32, packed, q and k rotated; out before the
 * output projection. Logits are q.k times the plan's scale (tamis_plan_get_params), which a model
 * with YaRN changes. The buffers are the runner's and hold this only during the call. */
typedef struct tamis_attention_rows {
    uint32_t layer, n_rows;
    tamis_rows q;    /* [n_rows][n_heads][head_dim] */
    tamis_rows k, v; /* [n_rows][n_kv_heads][head_dim] */
    tamis_rows out;  /* [n_rows][n_heads][head_dim] */
    uint64_t reserved[4];
} tamis_attention_rows;

/* Called in every layer of every step after its attention was enqueued, while the runner's step is
 * open. It may read the buffers and, by tamis_plan_read_selected of the runner's plan, which pages the
 * rows have read in this layer; both wait. Else it must not call the runner, its plan or its cache.
 * A status other than OK ends the step, which fails with that status. */
typedef tamis_status (*tamis_runner_observer)(void *user, const tamis_attention_rows *rows,
                                              tamis_error *error);
/* Sets the observer; NULL removes it. */
TAMIS_API void tamis_runner_observe(tamis_runner *runner, tamis_runner_observer observer,
                                    void *user);

/* Logits after the last call: of decode row or output `row`, or row 0 after a prefill: f32 [n_vocab]. Waits.
 * Errors: E_ARGUMENT (no such row), E_STATE (the last call left none), E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_runner_logits(tamis_runner *runner, uint32_t row,
                                                            float *logits, tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
