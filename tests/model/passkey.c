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

/* The text with the key in it, then the question, as tokens; the text's number of them. */
static size_t make_prompt(rig *r, int32_t *tokens, size_t *count) {
    const size_t n_plant = strlen(plant), n_question = strlen(question);
    const size_t n_text = TOKENS - n_plant - n_question;
    size_t got;
    rig_text(r, tokens, n_text);
    memmove(tokens + PLACE + n_plant, tokens + PLACE, (n_text - PLACE) * sizeof *tokens);
    RIG_OK(r, tamis_model_tokenize(r->model, plant, n_plant, tokens + PLACE, n_plant, &got,
                                   &r->error));
    RIG_OK(r, tamis_model_tokenize(r->model, question, n_question, tokens + n_plant + n_text,
                                   n_question, &got, &r->error));
    *count = TOKENS;
    return n_plant + n_text;
}

/* Reads the text densely, then question and answer token by token through the selection. */
static void answer(const tamis_selection *selection, char out[DIGITS + 1],
                   tamis_plan_counters *counters) {
    rig r;
    int32_t tokens[TOKENS], next = 0;
    size_t count, length;
    rig_open(&r, &(rig_params){.file = "needle.gguf",
                               .dtype = TAMIS_F16,
                               .selection = *selection,
                               .max_context = TOKENS + DIGITS});
    size_t text = make_prompt(&r, tokens, &count);
    tamis_sequence sequence = rig_add(&r);
    RIG_OK(&r, tamis_runner_prefill(r.runner, sequence, tokens, text, NULL, &r.error));
    for (size_t i = text; i < count; ++i)
        RIG_OK(&r, tamis_runner_decode(r.runner, &sequence, 1, &tokens[i], &next, &r.error));
    for (int i = 0; i < DIGITS; ++i) {
        out[i] = *tamis_model_token_text(r.model, next, &length);
        RIG_OK(&r, tamis_runner_decode(r.runner, &sequence, 1, &next, &next, &r.error));
    }
    out[DIGITS] = 0;
    tamis_plan_get_counters(tamis_runner_plan(r.runner), counters);
    rig_close(&r);
}

static const uint64_t decode_rows = 4 * (sizeof question - 1 + DIGITS); /* of all layers */

static void test_full(void **state) {
    (void)state;
    char out[DIGITS + 1];
    tamis_plan_counters counters;
    answer(&(tamis_selection){0}, out, &counters);
    assert_string_equal(out, key);
    assert_int_equal(counters.rows_full, decode_rows);
    assert_int_equal(counters.kv_bytes_read, counters.kv_bytes_full);
}

static void test_quest(void **state) {
    (void)state;
    char out[DIGITS + 1];
    tamis_plan_counters counters;
    tamis_selection quest;
    tamis_selection_default(TAMIS_SELECT_QUEST, &quest);
    quest.budget = 256;
    answer(&quest, out, &counters);
    assert_string_equal(out, key);
    assert_int_equal(counters.rows_selected, decode_rows);
    assert_true(counters.kv_bytes_read * 5 < counters.kv_bytes_full);
}

static void test_window(void **state) {
    (void)state;
    char out[DIGITS + 1];
    tamis_plan_counters counters;
    tamis_selection window;
    tamis_selection_default(TAMIS_SELECT_WINDOW, &window);
    window.budget = 256;
    answer(&window, out, &counters);
    assert_string_not_equal(out, key);
    assert_int_equal(counters.rows_selected, decode_rows);
}

/* A budget that holds the whole text takes the exact path, and says so. */
static void test_short(void **state) {
    (void)state;
    char out[DIGITS + 1];
    tamis_plan_counters counters;
    tamis_selection quest;
    tamis_selection_default(TAMIS_SELECT_QUEST, &quest);
    quest.budget = 2048;
    answer(&quest, out, &counters);
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
    return cmocka_run_group_tests_name("passkey", tests, NULL, NULL);
}
