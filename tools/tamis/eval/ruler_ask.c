/* SPDX-License-Identifier: Apache-2.0 */
/* The questions of `tamis eval ruler`: fed token by token, answered greedily, those of a text side by
 * side. An answer ends when it holds all that is expected, or at its number of tokens. */
#include "eval/ruler.h"

#include <string.h>

/* An answer as it grows; what does not fit is not kept. */
typedef struct answer {
    const ruler_question *question;
    const eval_tail *tail;
    tamis_sequence sequence;
    uint32_t fed, tokens; /* of the question; of the answer */
    int32_t last;
    size_t bytes;
    char text[4096];
    double score;
} answer;

static answer answer_of(const ruler_text *text, uint32_t index) {
    return (answer){.question = &text->questions[index], .tail = &text->tails[index]};
}

static bool is_done(const answer *a) {
    return a->score == 1 || a->tokens == ruler_answer_tokens(a->tail);
}

static void extend(answer *a, const tamis_model *model, int32_t token) {
    size_t bytes = 0;
    const char *text = tamis_vocab_token_text(tamis_model_vocab(model), token, &bytes);
    for (size_t i = 0; i < bytes && a->bytes + 1 < sizeof(a->text); i++)
        a->text[a->bytes++] = text[i] != '\0' ? text[i] : ' ';
    a->text[a->bytes] = '\0';
    a->last = token;
    a->tokens++;
    a->score = ruler_score(a->question, a->text);
}

static int32_t token_of(const answer *a) {
    return a->fed < a->tail->n_question ? a->tail->tokens[a->fed] : a->last;
}

/* Takes what the model says after the token of token_of. */
static void take(answer *a, const tamis_model *model, int32_t next) {
    if (a->fed < a->tail->n_question) a->fed++;
    if (a->fed == a->tail->n_question) extend(a, model, next);
}

static uint64_t bytes_read(const tamis_plan_counters *c) {
    return c->kv_bytes_read + c->bounds_bytes_read;
}

/* A step of all answers that are not done. *rows becomes 0 when there are none. */
static tamis_status decode(const eval_rig *rig, uint32_t arm, answer *answers, uint32_t n,
                           uint32_t *rows, ruler_cost *cost, tamis_error *error) {
    tamis_sequence sequences[RULER_QUESTIONS_MAX];
    int32_t tokens[RULER_QUESTIONS_MAX], next[RULER_QUESTIONS_MAX];
    uint32_t which[RULER_QUESTIONS_MAX];
    *rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (is_done(&answers[i])) continue;
        which[*rows] = i;
        sequences[*rows] = answers[i].sequence;
        tokens[(*rows)++] = token_of(&answers[i]);
    }
    if (*rows == 0) return TAMIS_OK;
    double start = cli_seconds();
    tamis_status status =
        tamis_runner_decode(rig->runners[arm], sequences, *rows, tokens, next, error);
    cost->seconds += cli_seconds() - start;
    cost->tokens += *rows;
    for (uint32_t i = 0; status == TAMIS_OK && i < *rows; i++)
        take(&answers[which[i]], rig->model, next[i]);
    return status;
}

static tamis_status decode_all(const eval_rig *rig, uint32_t arm, answer *answers, uint32_t n,
                               ruler_cost *cost, tamis_error *error) {
    const tamis_plan *plan = tamis_runner_plan(rig->runners[arm]);
    tamis_plan_counters before, after;
    tamis_status status = TAMIS_OK;
    uint32_t rows = n;
    tamis_plan_get_counters(plan, &before);
    while (status == TAMIS_OK && rows > 0)
        status = decode(rig, arm, answers, n, &rows, cost, error);
    tamis_plan_get_counters(plan, &after);
    cost->bytes_read += bytes_read(&after) - bytes_read(&before);
    cost->bytes_full += after.kv_bytes_full - before.kv_bytes_full;
    return status;
}

tamis_status ruler_ask(const eval_rig *rig, uint32_t arm, const ruler_text *text,
                       tamis_sequence parent, double scores[RULER_QUESTIONS_MAX], ruler_cost *cost,
                       tamis_error *error) {
    answer answers[RULER_QUESTIONS_MAX];
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < text->n_questions; i++) {
        answers[i] = answer_of(text, i);
        status = tamis_cache_fork(rig->cache, parent, &answers[i].sequence, error);
    }
    if (status == TAMIS_OK) status = decode_all(rig, arm, answers, text->n_questions, cost, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < text->n_questions; i++) {
        scores[i] = answers[i].score;
        status = tamis_cache_remove(rig->cache, answers[i].sequence, error);
    }
    return status;
}

tamis_status ruler_answer(const eval_rig *rig, uint32_t arm, const ruler_text *text, uint32_t index,
                          tamis_sequence sequence, int32_t first, double *score, ruler_cost *cost,
                          tamis_error *error) {
    answer a = answer_of(text, index);
    a.sequence = sequence;
    a.fed = a.tail->n_question;
    extend(&a, rig->model, first);
    tamis_status status = decode_all(rig, arm, &a, 1, cost, error);
    *score = a.score;
    return status;
}
