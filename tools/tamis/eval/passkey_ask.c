/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about planted keys: fed token by token, answered greedily, several side by side. */
#include "eval/passkey.h"

#include <string.h>

/* An answer as it grows. */
typedef struct answer {
    tamis_sequence fork;
    uint32_t tokens, bytes;
    int32_t last;
    char text[PASSKEY_ANSWER_BYTES];
} answer;

/* What is asked of whom. */
typedef struct asking {
    const eval_rig *rig;
    uint32_t arm;
    const passkey_text *text;
    answer answers[PASSKEY_KEYS_MAX];
    uint64_t tokens; /* decoded */
    double seconds;
} asking;

static bool is_done(const answer *a, const passkey_question *question) {
    return a->bytes == question->key_bytes || a->tokens == question->n_answer;
}

static bool is_right(const answer *a, const passkey_question *question) {
    return a->bytes == question->key_bytes && memcmp(a->text, question->key, a->bytes) == 0;
}

static void extend(answer *a, const passkey_question *question, const tamis_model *model,
                   int32_t token) {
    size_t bytes = 0;
    const char *text = tamis_vocab_token_text(tamis_model_vocab(model), token, &bytes);
    for (size_t i = 0; i < bytes && a->bytes < question->key_bytes; i++)
        a->text[a->bytes++] = text[i];
    a->tokens++;
    a->last = token;
}

/* Step `step` of all answers that are not done: each is fed its question's tokens, then its own.
 * *rows becomes 0 when there are none. */
static tamis_status decode(asking *p, uint32_t step, uint32_t *rows, tamis_error *error) {
    tamis_sequence sequences[PASSKEY_KEYS_MAX];
    int32_t tokens[PASSKEY_KEYS_MAX], next[PASSKEY_KEYS_MAX];
    uint32_t which[PASSKEY_KEYS_MAX], n = 0;
    for (uint32_t i = 0; i < p->text->n_keys; i++) {
        const passkey_question *question = &p->text->questions[i];
        if (is_done(&p->answers[i], question)) continue;
        which[n] = i;
        sequences[n] = p->answers[i].fork;
        tokens[n++] = step < question->count ? question->tokens[step] : p->answers[i].last;
    }
    *rows = n;
    if (n == 0) return TAMIS_OK;
    double start = cli_seconds();
    tamis_status status =
        tamis_runner_decode(p->rig->runners[p->arm], sequences, n, tokens, next, error);
    p->seconds += cli_seconds() - start;
    p->tokens += n;
    for (uint32_t i = 0; status == TAMIS_OK && i < n; i++)
        if (step + 1 >= p->text->questions[which[i]].count)
            extend(&p->answers[which[i]], &p->text->questions[which[i]], p->rig->model, next[i]);
    return status;
}

tamis_status passkey_ask(const eval_rig *rig, uint32_t arm, const passkey_text *text,
                         tamis_sequence parent, bool right[PASSKEY_KEYS_MAX], uint64_t *tokens,
                         double *seconds, tamis_error *error) {
    asking p = {.rig = rig, .arm = arm, .text = text};
    uint32_t rows = text->n_keys;
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < text->n_keys; i++)
        status = tamis_cache_fork(rig->cache, parent, &p.answers[i].fork, error);
    for (uint32_t step = 0; status == TAMIS_OK && rows > 0; step++)
        status = decode(&p, step, &rows, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < text->n_keys; i++) {
        right[i] = is_right(&p.answers[i], &text->questions[i]);
        status = tamis_cache_remove(rig->cache, p.answers[i].fork, error);
    }
    *tokens += p.tokens;
    *seconds += p.seconds;
    return status;
}

tamis_status passkey_answer(const eval_rig *rig, uint32_t arm, const passkey_question *question,
                            tamis_sequence sequence, int32_t first, bool *right,
                            tamis_error *error) {
    answer a = {0};
    tamis_status status = TAMIS_OK;
    extend(&a, question, rig->model, first);
    while (status == TAMIS_OK && !is_done(&a, question)) {
        int32_t next = 0;
        status = tamis_runner_decode(rig->runners[arm], &sequence, 1, &a.last, &next, error);
        if (status == TAMIS_OK) extend(&a, question, rig->model, next);
    }
    *right = status == TAMIS_OK && is_right(&a, question);
    return status;
}
