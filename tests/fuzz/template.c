/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes chat templates: any text is refused with a reason, or becomes a text whose bytes all have
 * an origin. What stands behind a NUL is what the user says. */
#include "jinja/jinja.h"
#include "tests/fuzz/refusal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    refusal_abort_on_failure();
    return 0;
}

static void check(const char *template, const jinja_conversation *all) {
    jinja_result result;
    tamis_error error = {0};
    const tamis_status status = jinja_render(template, all, &result, &error);
    if (status == TAMIS_E_ARGUMENT) error.status = TAMIS_E_FORMAT; /* it refuses the conversation */
    if (status != TAMIS_OK) {
        refusal_check(error.status, &error);
        assert_null(result.text);
        return;
    }
    for (size_t i = 0; i < result.bytes; i++) {
        const size_t from = result.origins[i];
        assert_true(from <= all->count);
        if (from == JINJA_TEMPLATE) continue;
        const jinja_message *message = &all->messages[from - 1];
        assert_non_null(memchr(message->text, result.text[i], message->bytes));
    }
    jinja_result_free(&result);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *copy = malloc(size + 1);
    assert_non_null(copy);
    memcpy(copy, data, size);
    copy[size] = '\0';
    const size_t bytes = strlen(copy);
    const char *said = bytes < size ? copy + bytes + 1 : " Hello\n";
    const size_t n_said = bytes < size ? size - bytes - 1 : strlen(said);
    const jinja_message messages[] = {{"user", "0 1\n", 4, 1, NULL},
                                      {"assistant", "<think>a</think>", 16, 2, NULL},
                                      {"user", said, n_said, 3, NULL}};
    const struct tm date = {.tm_year = 126, .tm_mon = 8, .tm_mday = 30, .tm_wday = 3};
    for (int prompt = 0; prompt < 2; prompt++)
        check(copy, &(jinja_conversation){.messages = messages,
                                          .count = 3,
                                          .bos = "<s>",
                                          .eos = "</s>",
                                          .add_generation_prompt = prompt,
                                          .date = prompt ? &date : NULL});
    free(copy);
    return 0;
}
