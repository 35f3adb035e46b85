/* SPDX-License-Identifier: Apache-2.0 */
/* What the library is for: a key planted in a text is found through a part of the cache that quest
 * picks, and is not found in the window that does not hold it. */
#include "tests/model/rig.h"

#include <stdio.h>
#include <string.h>

#define TOKENS 1500
#define PLACE  600
#define DIGITS 5
static const char plant[] = " The green pass key is 40718. Remember it. ";
static const char question[] = "\nThe green pass key is ";
static const char key[] = "40718";

/* The text with the key in it, then the question, as TOKENS tokens; the text's number of them. */
static size_t make_prompt(rig *r, int32_t *tokens) {
    const size_t n_plant = strlen(plant), n_question = strlen(question);
    const size_t n_text = TOKENS - n_plant - n_question;
    size_t got;
    rig_text(r, tokens, n_text);
    memmove(tokens + PLACE + n_plant, tokens + PLACE, (n_text - PLACE) * sizeof *tokens);
    RIG_OK(r, tamis_vocab_encode(tamis_model_vocab(r->model), plant, n_plant, 0, tokens + PLACE,
                                 n_plant, &got, &r->error));
    RIG_OK(r, tamis_vocab_encode(tamis_model_vocab(r->model), question, n_question, 0,
                                 tokens + n_plant + n_text, n_question, &got, &r->error));
    return n_plant + n_text;
}

/* What all tests share: the text, read densely once. */
typedef struct shared {
    rig r;
    tamis_sequence text;
    int32_t tokens[TOKENS];
    size_t n_text;
} shared;

static int read_text(void **state) {
    static shared s;
    rig *r = &s.r;
    rig_open(r, &(rig_params){.file = "needle.gguf", .dtype = TAMIS_F16});
    s.n_text = make_prompt(r, s.tokens);
    s.text = rig_add(r);
    RIG_OK(r, tamis_runner_prefill(r->runner, s.text, s.tokens, s.n_text, NULL, &r->error));
    *state = &s;
    return 0;
}

static int close_all(void **state) {
    rig_close(&((shared *)*state)->r);
    return 0;
}

/* On a fork of the text, question and answer token by token through the selection. */
static tamis_plan_counters answer(shared *s, const tamis_selection *selection,
                                  char out[DIGITS + 1]) {
    rig *r = &s->r;
    tamis_runner *runner = NULL;
    tamis_sequence sequence;
    tamis_plan_counters counters;
    const tamis_plan_params params = {.selection = *selection, .max_context = TOKENS + DIGITS};
    int32_t next = 0;
    size_t length;
    RIG_OK(r, tamis_runner_create(r->model, r->cache, &params, &runner, &r->error));
    RIG_OK(r, tamis_cache_fork(r->cache, s->text, &sequence, &r->error));
    for (size_t i = s->n_text; i < TOKENS; ++i)
        RIG_OK(r, tamis_runner_decode(runner, &sequence, 1, &s->tokens[i], &next, &r->error));
    for (int i = 0; i < DIGITS; ++i) {
        out[i] = *tamis_vocab_token_text(tamis_model_vocab(r->model), next, &length);
        RIG_OK(r, tamis_runner_decode(runner, &sequence, 1, &next, &next, &r->error));
    }
    out[DIGITS] = 0;
    tamis_plan_get_counters(tamis_runner_plan(runner), &counters);
    tamis_runner_destroy(&runner);
    RIG_OK(r, tamis_cache_remove(r->cache, sequence, &r->error));
    return counters;
}

static const uint64_t decode_rows = 4 * (sizeof question - 1 + DIGITS); /* of all layers */

static void test_full(void **state) {
    char out[DIGITS + 1];
    tamis_plan_counters counters = answer(*state, &(tamis_selection){0}, out);
    assert_string_equal(out, key);
    assert_int_equal(counters.rows_full, decode_rows);
    assert_int_equal(counters.kv_bytes_read, counters.kv_bytes_full);
}

static void test_quest(void **state) {
    char out[DIGITS + 1];
    tamis_selection quest;
    tamis_selection_default(TAMIS_SELECT_QUEST, &quest);
    quest.budget = 256;
    tamis_plan_counters counters = answer(*state, &quest, out);
    assert_string_equal(out, key);
    assert_int_equal(counters.rows_selected, decode_rows);
    assert_true(counters.kv_bytes_read * 5 < counters.kv_bytes_full);
}

static void test_window(void **state) {
    char out[DIGITS + 1];
    tamis_selection window;
    tamis_selection_default(TAMIS_SELECT_WINDOW, &window);
    window.budget = 256;
    tamis_plan_counters counters = answer(*state, &window, out);
    assert_string_not_equal(out, key);
    assert_int_equal(counters.rows_selected, decode_rows);
}

/* A budget that holds the whole text takes the exact path, and says so. */
static void test_short(void **state) {
    char out[DIGITS + 1];
    tamis_selection quest;
    tamis_selection_default(TAMIS_SELECT_QUEST, &quest);
    quest.budget = 2048;
    tamis_plan_counters counters = answer(*state, &quest, out);
    assert_string_equal(out, key);
    assert_int_equal(counters.rows_short, decode_rows);
    assert_int_equal(counters.rows_selected, 0);
    assert_int_equal(counters.kv_bytes_read, counters.kv_bytes_full);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_quest),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_short),
    };
    if (!rig_arguments(argc, argv)) return 2;
    return cmocka_run_group_tests_name("passkey", tests, read_text, close_all);
}
