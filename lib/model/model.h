/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a loaded model and of its runner. */
#ifndef TMS_MODEL_H
#define TMS_MODEL_H

#include "lib/model/vocab.h"
#include "lib/model/weights.h"
#include <stdatomic.h>
#include <tamis/model.h>
#include <tamis/ops.h>

/* How layers of one kind are rotated. */
typedef struct tms_rotated {
    double frequencies[TMS_MAX_HEAD_DIM / 2]; /* radians per position, [n_rot / 2] */
    float *factors;          /* [n_rot / 2] what the file divides each of them by; NULL: nothing */
    tamis_rotation rotation; /* of heads of q and k; its table is absent where no layer has it */
} tms_rotated;

struct tamis_model {
    atomic_uint holders; /* its handle, and its runners */
    atomic_bool closed;  /* its handle was destroyed */
    tamis_context *context;
    tms_config config;
    tms_vocab vocab;
    tms_weights weights;
    tms_rotated rotations[TMS_ROTATIONS]; /* by tms_rotation_kind */
    tamis_model_info info;
    bool has_fingerprint;
    uint8_t fingerprint[16];
};

/* Reads the frequencies of each kind of rotation; makes the tables of those that layers have, once the
 * file's content has been checked; gives both back. E_IO, E_FORMAT; E_NO_MEMORY, E_DEVICE. */
tamis_status tms_rotations_read(tamis_model *model, const tms_gguf *gguf, tamis_error *error);
tamis_status tms_rotations_make(tamis_model *model, tamis_error *error);
void tms_rotations_free(tamis_model *model);
/* Whether contexts above that of the first training have frequencies of their own. */
bool tms_model_has_long(const tamis_model *model);

/* ---- Life ------------------------------------------------------------------------------------ */

/* A model that is destroyed stays until the last of its runners is; their calls then answer
 * E_STATE. */
void tms_model_hold(tamis_model *model);
void tms_model_let_go(tamis_model *model);

/* Enters the model's context; model may be NULL. E_STATE: it was destroyed, or another thread is in
 * its context. */
tamis_status tms_model_enter(const tamis_model *model, tamis_context **entered, tamis_error *error);
void tms_model_leave(tamis_context **entered);

/* The first line of a public call on a model, or on the model of a runner, which may be NULL:
 * returns E_STATE from it, or is in the context until it returns. */
#define TMS_ENTER_MODEL(model)                                                                     \
    __attribute__((cleanup(tms_model_leave))) tamis_context *entered_ = NULL;                      \
    TMS_TRY(tms_model_enter(model, &entered_, error))
#define TMS_ENTER_RUNNER(runner) TMS_ENTER_MODEL((runner) ? (runner)->model : NULL)

/* ---- Runner ---------------------------------------------------------------------------------- */

/* The buffers of a forward pass, rows packed. */
typedef enum tms_activation {
    TMS_X,        /* f32 [rows][dim]: the residual stream */
    TMS_NORMED,   /* f32 [rows][dim]; in chains, the residual stream within a layer with addends */
    TMS_Q,        /* f32 [rows][n_heads * head_dim] */
    TMS_K,        /* f32 [rows][n_kv_heads * head_dim] */
    TMS_V,        /* f32 [rows][n_kv_heads * head_dim] */
    TMS_ATTENDED, /* f32 [rows][n_heads * head_dim] */
    TMS_ADDEND, /* f32 [rows][dim]: what is normalised or scaled, and added to TMS_X; or no rows */
    TMS_GATE,   /* f32 [rows][ff_dim] */
    TMS_UP,     /* f32 [rows][ff_dim] */
    TMS_LOGITS, /* f32 [outputs][n_vocab] */
    TMS_TOKENS, /* int32 [rows] */
    TMS_POSITIONS, /* int32 [rows] */
    TMS_NEXT,      /* int32 [outputs] */
    TMS_ACTIVATIONS
} tms_activation;

/* Elements of a row of an activation; logits and next have a row for each output. All have 4 bytes. */
uint64_t tms_activation_width(const tamis_model *model, tms_activation which);

/* Consecutive rows of a step that products take together, whatever else is in the step. */
typedef struct tms_bundle {
    uint32_t first, n;
} tms_bundle;

/* Called in every layer before its K and V are written: TMS_K and TMS_V hold n_rows rows as the
 * matrices give them, K before a norm of its heads and before its rotation. */
typedef tamis_status (*tms_tap)(void *user, uint32_t layer, uint32_t n_rows, tamis_error *error);

struct tamis_runner {
    tamis_model *model;
    tamis_cache *cache;
    tamis_plan *plan;
    tamis_plan_params limits; /* of the plan */
    tamis_buffer *buffers[TMS_ACTIVATIONS];
    /* Where an eviction needs output projections that are in blocks; else NULL. */
    tamis_buffer **outputs;         /* [n_layers] widened to f32 */
    tamis_buffer *output_rows;      /* int32 0, 1, 2, ... [dim] */
    int32_t *tokens, *positions;    /* [max_rows of the plan], on the host; */
    uint32_t *parents;              /* and, of steps with trees, behind which row each stands */
    tms_bundle *bundles, *outs;     /* [max_rows] of a step */
    tamis_sequence *sequences;      /* [max_sequences] of a step, */
    uint32_t *rows;                 /* and their rows */
    uint32_t max_outputs;           /* rows of logits */
    uint32_t n_outputs;             /* rows of logits of the last call; 0 after a failure */
    tamis_runner_observer observer; /* may be NULL */
    void *observer_user;
    tamis_runner_watcher watcher; /* may be NULL */
    void *watcher_user;
    tms_tap tap; /* NULL unless a chunk is recorded */
    void *tap_user;
    tms_tap attended_tap; /* called behind the attention of every layer; or NULL */
    void *attended_user;
    tamis_runner *
        *known_as; /* where its scheduler has it, which is set to NULL with its end; or NULL */
    bool as_model; /* scale, soft cap and sliding window are the model's own */
    bool is_long;  /* contexts are longer than those of the model's first training */
    /* Kernels: the rows that ops without rows are to build for; kinds that have been built. */
    uint32_t build_rows, built, built_outputs;
};

/* Whether what layers add is normalised or scaled first. */
bool tms_forward_has_addend(const tamis_model *model);

/* The rows of a forward pass. */
typedef struct tms_pass {
    uint32_t n_rows, n_bundles, n_outputs; /* n_outputs: bundles */
    const tms_bundle *bundles;             /* all rows, in order */
    const tms_bundle *outputs;             /* rows that get logits and greedy tokens, ascending */
} tms_pass;

/* One forward pass over the rows of the plan's open step, whose tokens and positions are on the
 * device. Logits and greedy tokens are packed in the order of the outputs. Enqueues. */
tamis_status tms_forward_pass(tamis_runner *runner, const tms_pass *pass, tamis_error *error);

/* Builds the kernels of bundles of n_rows rows and of n_outputs outputs, unless they have been built,
 * and waits; 0: those of neither. */
tamis_status tms_forward_build(tamis_runner *runner, uint32_t n_rows, uint32_t n_outputs,
                               tamis_error *error);
/* Builds those of a layer's parts in passes of any number of rows, and waits. */
tamis_status tms_forward_build_parts(tamis_runner *runner, tamis_error *error);

/* The parts of a pass, of rows of the activations. Each enqueues; 0 rows build the kernels for
 * runner->build_rows. */
tamis_status tms_forward_embed(tamis_runner *runner, uint32_t n_rows, tamis_error *error);
/* TMS_Q, TMS_K and TMS_V of the normalised TMS_X. */
tamis_status tms_forward_qkv(tamis_runner *runner, uint32_t layer, tms_bundle rows,
                             tamis_error *error);
/* Those, q and k rotated, into the plan's open step; TMS_ATTENDED by TMS_Q. */
tamis_status tms_forward_write(tamis_runner *runner, uint32_t layer, tamis_error *error);
tamis_status tms_forward_attend(tamis_runner *runner, uint32_t layer, tamis_error *error);
/* TMS_X += W_o · TMS_ATTENDED; TMS_X += the feed-forward of the normalised TMS_X. */
tamis_status tms_forward_out(tamis_runner *runner, uint32_t layer, tms_bundle rows,
                             tamis_error *error);
tamis_status tms_forward_feed(tamis_runner *runner, uint32_t layer, tms_bundle rows,
                              tamis_error *error);
/* Logits, before their scale and cap, and greedy tokens of n bundles of outputs. */
tamis_status tms_forward_head(tamis_runner *runner, const tms_bundle *outputs, uint32_t n,
                              tamis_error *error);

/* E_ARGUMENT for no tokens, and for one outside the vocabulary. */
tamis_status tms_check_tokens(const tamis_runner *runner, const int32_t *tokens, size_t count,
                              tamis_error *error);
/* How the layer is rotated. */
const tms_rotated *tms_runner_rotated(const tamis_runner *runner, uint32_t layer);
/* E_UNSUPPORTED unless all layers are rotated alike, as those of a blend and of stored chunks are;
 * `what` needs it. *out, which may be NULL, is that rotation. */
tamis_status tms_check_one_rotation(const tamis_runner *runner, const char *what,
                                    const tms_rotated **out, tamis_error *error);
/* E_UNSUPPORTED unless scale, soft cap and sliding window are the model's own, as they are of what
 * is stored. */
tamis_status tms_check_as_model(const tamis_runner *runner, tamis_error *error);

/* One exact step of a sequence: `n_rows` tokens from position `first` on, of which the last
 * n_outputs get logits. After a failure the sequence is as it was. Enqueues. */
tamis_status tms_run_rows(tamis_runner *runner, tamis_sequence sequence, uint32_t first,
                          const int32_t *tokens, uint32_t n_rows, uint32_t n_outputs,
                          tamis_error *error);

/* The step of runs that are in order, with the runner's tables: valid until the next one. */
tamis_step tms_step_of_runs(tamis_runner *runner, const tamis_run *runs, uint32_t count);

/* Waits for a step that has ended, and copies the greedy tokens to `next` unless that is NULL. */
tamis_status tms_read_next(tamis_runner *runner, uint32_t n_outputs, int32_t *next,
                           tamis_error *error);
/* Evicts at a prompt's end, if the plan evicts by itself, and waits. */
tamis_status tms_evict_prompt(tamis_runner *runner, tamis_sequence sequence, tamis_error *error);

#endif
