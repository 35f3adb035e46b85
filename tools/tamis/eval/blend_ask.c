/* SPDX-License-Identifier: Apache-2.0 */
/* Answers to questions about chunks, token by token. */
#include "eval/blend.h"

#include <string.h>

/* Room for the text of a step's tokens: what exceeds it is left out. */
#define ANSWER_BYTES 1024

typedef struct answer_text {
    char text[ANSWER_BYTES];
    size_t bytes;
} answer_text;

static void extend(const blend_rig *rig, int32_t token, answer_text *to) {
    size_t bytes = 0;
    const char *piece = tamis_vocab_token_text(tamis_model_vocab(rig->model), token, &bytes);
    for (size_t i = 0; i < bytes && to->bytes + 1 < sizeof(to->text); i++)
        if (piece[i] != '\0') to->text[to->bytes++] = piece[i];
    to->text[to->bytes] = '\0';
}

/* The answer to one step. *next is its first token; then its last one, which is not read yet. */
static tamis_status answer_step(const blend_rig *rig, const blend_step *step,
                                tamis_sequence sequence, int32_t *next, blend_answer *out,
                                tamis_error *error) {
    answer_text text = {.bytes = 0};
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < step->n_answer; i++) {
        const int32_t last = *next;
        if (i > 0) status = tamis_runner_decode(rig->runner, &sequence, 1, &last, next, error);
        if (status != TAMIS_OK) break;
        out->tokens[out->count++] = *next;
        extend(rig, *next, &text);
    }
    out->right = out->right && strstr(text.text, step->key) != NULL;
    return status;
}

/* Reads the answer's last token and the question of the next step. */
static tamis_status ask_step(const blend_rig *rig, const blend_step *step, tamis_sequence sequence,
                             int32_t *next, tamis_error *error) {
    int32_t tokens[1 + BLEND_ASKED_TOKENS] = {*next};
    memcpy(tokens + 1, step->tokens, step->n_question * sizeof(*tokens));
    return tamis_runner_prefill(rig->runner, sequence, tokens, 1 + step->n_question, next, error);
}

tamis_status blend_ask_question(const blend_rig *rig, const blend_question *question,
                                tamis_sequence sequence, int32_t first, blend_answer *out,
                                tamis_error *error) {
    int32_t next = first;
    tamis_status status = TAMIS_OK;
    *out = (blend_answer){.right = true};
    for (uint32_t s = 0; status == TAMIS_OK && s < question->n_steps; s++) {
        if (s > 0) status = ask_step(rig, &question->steps[s], sequence, &next, error);
        if (status == TAMIS_OK)
            status = answer_step(rig, &question->steps[s], sequence, &next, out, error);
    }
    return status;
}
