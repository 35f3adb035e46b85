/* SPDX-License-Identifier: Apache-2.0 */
/* One text by every arm of `tamis eval blend`: the prompt, its questions, and how far it is from
 * full recompute. */
#include "eval/blend.h"

#include <stdlib.h>
#include <string.h>

tamis_status blend_prompts_open(blend_prompts *p, tamis_error *error) {
    const size_t questions = (size_t)BLEND_ASKS * BLEND_CHUNKS_MAX;
    const size_t n_rows = (size_t)BLEND_CHUNKS_MAX * p->source.chunk_tokens;
    const size_t out = (size_t)p->rig->n_layers * BLEND_ASKED_TOKENS * p->rig->out_width;
    p->logits = malloc((questions + 1) * p->rig->n_vocab * sizeof(*p->logits));
    p->answers = calloc(questions, sizeof(*p->answers));
    p->attention = malloc(2 * out * sizeof(*p->attention));
    p->tokens = malloc(p->rig->n_layers * n_rows * sizeof(*p->tokens));
    return p->logits == NULL || p->answers == NULL || p->attention == NULL || p->tokens == NULL
               ? cli_no_memory(error)
               : TAMIS_OK;
}

void blend_prompts_close(blend_prompts *p) {
    free(p->logits);
    free(p->answers);
    free(p->attention);
    free(p->tokens);
}

/* ---- Questions ------------------------------------------------------------------------------- */

/* Counts an arm's answer, whose first token's logits are the runner's. */
static void count_answer(const blend_prompts *p, uint32_t arm, blend_ask ask, uint32_t c,
                         const blend_answer *answer, blend_cell *cell) {
    const uint32_t index = ask * BLEND_CHUNKS_MAX + c;
    const float *full = p->logits + (size_t)index * p->rig->n_vocab;
    const float *own = p->logits + (size_t)BLEND_ASKS * BLEND_CHUNKS_MAX * p->rig->n_vocab;
    const blend_answer *wanted = &p->answers[index];
    const bool agreed =
        answer->count == wanted->count &&
        memcmp(answer->tokens, wanted->tokens, answer->count * sizeof(*answer->tokens)) == 0;
    cell->right[ask] += answer->right;
    cell->agreed[ask] += agreed;
    cell->divergences[ask][cell->asked[ask]++] =
        arm == 0 ? 0 : blend_divergence(full, own, p->rig->n_vocab);
}

/* Logits of what the runner computed last: full's are kept. */
static tamis_status take_logits(const blend_prompts *p, uint32_t arm, blend_ask ask, uint32_t c,
                                tamis_error *error) {
    const size_t kept = (size_t)ask * BLEND_CHUNKS_MAX + c;
    const size_t index = arm == 0 ? kept : (size_t)BLEND_ASKS * BLEND_CHUNKS_MAX;
    return tamis_runner_logits(p->rig->runner, 0, p->logits + index * p->rig->n_vocab, error);
}

/* Answers a question on a sequence that holds it, which is removed then. */
static tamis_status answer(const blend_prompts *p, uint32_t arm, blend_ask ask, uint32_t c,
                           tamis_sequence sequence, int32_t first, blend_cell *cell,
                           tamis_error *error) {
    blend_answer given;
    tamis_status status =
        blend_ask_question(p->rig, &p->text.questions[ask][c], sequence, first, &given, error);
    if (status != TAMIS_OK) return status;
    if (arm == 0) p->answers[ask * BLEND_CHUNKS_MAX + c] = given;
    count_answer(p, arm, ask, c, &given, cell);
    return tamis_cache_remove(p->rig->cache, sequence, error);
}

static blend_prompt prompt_of(const blend_prompts *p, blend_ask ask, uint32_t c) {
    const blend_step *step = &p->text.questions[ask][c].steps[0];
    return (blend_prompt){.chunks = p->text.chunks,
                          .n_chunks = p->text.n_chunks,
                          .chunk_tokens = p->source.chunk_tokens,
                          .suffix = step->tokens,
                          .n_suffix = step->n_question};
}

/* A prompt that differs from a computed one, `from`, in its question. */
static tamis_status ask_another(const blend_prompts *p, uint32_t arm, const blend_prompt *prompt,
                                tamis_sequence from, tamis_sequence *out, int32_t *first,
                                tamis_error *error) {
    blend_cost cost;
    if (p->arms[arm].selector != TAMIS_BLEND_QUESTION)
        return blend_follow(p->rig, prompt, from, out, first, error);
    return blend_run(p->rig, &p->arms[arm], prompt, out, first, &cost, error);
}

/* All questions but the first. */
static tamis_status ask_others(const blend_prompts *p, uint32_t arm, tamis_sequence from,
                               uint32_t n_questions, blend_cell *cell, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 1; status == TAMIS_OK && i < n_questions * p->asks->count; i++) {
        const blend_ask ask = (blend_ask)p->asks->values[i / n_questions];
        const blend_prompt prompt = prompt_of(p, ask, i % n_questions);
        tamis_sequence fork;
        int32_t first = 0;
        status = ask_another(p, arm, &prompt, from, &fork, &first, error);
        if (status == TAMIS_OK) status = take_logits(p, arm, ask, i % n_questions, error);
        if (status == TAMIS_OK)
            status = answer(p, arm, ask, i % n_questions, fork, first, cell, error);
    }
    return status;
}

/* ---- Deviations ------------------------------------------------------------------------------ */

static int by_size_down(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x < *y) - (*x > *y);
}

/* Of full reuse: what of a layer's sum the rows with the largest deviations hold, and how their
 * order goes on in the next layer. Sorts the rows of the layer, after their order has been used. */
static tamis_status add_layer(const blend_prompts *p, uint32_t layer, size_t n, blend_layer *to,
                              tamis_error *error) {
    double *rows = p->tokens + layer * n, sum = 0, part = 0;
    bool failed = false;
    if (layer + 1 < p->rig->n_layers)
        to->correlation += blend_rank_correlation(rows, rows + n, n, &failed);
    if (failed) return cli_no_memory(error);
    qsort(rows, n, sizeof(*rows), by_size_down);
    for (size_t i = 0; i < n; i++)
        sum += rows[i];
    for (uint32_t s = 0, i = 0; s < p->shares->count && s < BLEND_SHARES_MAX; s++) {
        part = 0;
        for (i = 0; i < (n * p->shares->values[s] + 99) / 100; i++)
            part += rows[i];
        to->held[s] += part / sum;
    }
    return TAMIS_OK;
}

static tamis_status measure(const blend_prompts *p, uint32_t arm, tamis_sequence full,
                            tamis_sequence sequence, blend_cell *cell, blend_layer *layers,
                            tamis_error *error) {
    const blend_prompt prompt = prompt_of(p, (blend_ask)p->asks->values[0], 0);
    const size_t n_out = (size_t)prompt.n_suffix * p->rig->out_width;
    const uint32_t first = blend_prompt_hits(p->rig, &prompt),
                   end = blend_prompt_context(p->rig, &prompt);
    float *own = p->attention + (arm == 0 ? 0 : p->rig->n_layers * n_out);
    tamis_status status = blend_attention(p->rig, &prompt, sequence, own, error);
    if (status != TAMIS_OK || arm == 0) return status;
    blend_compare_attention(p->rig, p->attention, own, n_out, cell->sums);
    status = blend_compare_rows(p->rig, full, sequence, first, end, cell->sums,
                                layers != NULL ? p->tokens : NULL, error);
    for (uint32_t l = 0; status == TAMIS_OK && layers != NULL && l < p->rig->n_layers; l++)
        status = add_layer(p, l, end - first, &layers[l], error);
    cell->measured++;
    return status;
}

/* ---- A prompt -------------------------------------------------------------------------------- */

tamis_status blend_prompts_record(const blend_prompts *p, tamis_error *error) {
    const blend_prompt prompt = prompt_of(p, (blend_ask)p->asks->values[0], 0);
    return blend_record(p->rig, &prompt, error);
}

tamis_status blend_prompts_run(const blend_prompts *p, uint32_t arm, uint32_t n_questions,
                               bool measured, tamis_sequence *full, blend_cell *cell,
                               blend_layer *layers, tamis_error *error) {
    const blend_ask ask = (blend_ask)p->asks->values[0];
    const blend_prompt prompt = prompt_of(p, ask, 0);
    tamis_sequence sequence, fork;
    blend_cost cost;
    int32_t first = 0;
    tamis_status status =
        blend_run(p->rig, &p->arms[arm], &prompt, &sequence, &first, &cost, error);
    if (status != TAMIS_OK) return status;
    cell->seconds[cell->prompts++] = cost.seconds;
    cell->rows += cost.rows;
    if (arm == 0) *full = sequence;
    status = take_logits(p, arm, ask, 0, error);
    if (status == TAMIS_OK) status = tamis_cache_fork(p->rig->cache, sequence, &fork, error);
    if (status == TAMIS_OK) status = answer(p, arm, ask, 0, fork, first, cell, error);
    if (status == TAMIS_OK) status = ask_others(p, arm, sequence, n_questions, cell, error);
    if (status == TAMIS_OK && measured)
        status = measure(p, arm, *full, sequence, cell, layers, error);
    if (status != TAMIS_OK || arm == 0) return status;
    return tamis_cache_remove(p->rig->cache, sequence, error);
}
