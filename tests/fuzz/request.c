/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes requests to the server: any bytes are refused with a reason, or become a request whose
 * numbers are within what the model allows. */
#include "lib/model/vocab.h"
#include "serve/prompt.h"
#include "serve/request.h"
#include "tests/fuzz/refusal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char chat[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>";
static serve_model model;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A vocabulary of the tests, which lacks a template. */
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    tamis_vocab *vocab = NULL;
    (void)argc, (void)argv;
    refusal_abort_on_failure();
    assert_int_equal(tamis_vocab_load(REQUEST_VOCAB, &vocab, NULL), TAMIS_OK);
    free(vocab->chat_template);
    vocab->chat_template = strdup(chat);
    model = (serve_model){.name = "m",
                          .vocab = vocab,
                          .n_vocab = tamis_vocab_describe(vocab)->n_tokens,
                          .context = 512,
                          .most_prompt = 512,
                          .most_choices = 8,
                          .sparse = true};
    assert_int_equal(cli_chat_open(vocab, NULL, NULL, NULL, &model.chat, NULL), TAMIS_OK);
    return 0;
}

static void check_refusal(const serve_refusal *refusal) {
    assert_in_range(refusal->http, 400, 499);
    assert_true(refusal->text[0] != '\0');
    char *json = serve_refusal_json(refusal);
    assert_non_null(json);
    free(json);
}

/* Every token is of one part. */
static void check_prompt(const cli_prompt *prompt) {
    size_t count = 0;
    assert_in_range(prompt->tokens.count, 1, model.most_prompt);
    for (size_t i = 0; i < prompt->n_parts; i++)
        count += prompt->parts[i].count;
    assert_int_equal(count, prompt->tokens.count);
    for (size_t i = 0; i < count; i++)
        assert_in_range(prompt->tokens.ids[i], 0, model.n_vocab - 1);
}

static void check_request(const serve_request *q) {
    assert_in_range(q->n, 1, model.most_choices);
    assert_in_range(q->n_prompts, 1, model.most_choices);
    assert_in_range(q->n_prompts * q->n, 1, model.most_choices);
    assert_true(q->sampling.temperature >= 0 && q->sampling.temperature <= 2);
    assert_true(q->top <= SERVE_TOP_MAX && q->stops.count <= CLI_LIST_MAX);
    for (uint32_t i = 0; i < q->n_prompts; i++)
        check_prompt(&q->prompts[i]);
    for (uint32_t i = 0; i < q->n_biases; i++)
        assert_in_range(q->biases[i].token, 0, model.n_vocab - 1);
}

static void check(const cJSON *json, serve_endpoint endpoint) {
    serve_request *request = NULL;
    serve_refusal refusal = {0};
    if (serve_request_read(json, endpoint, &model, &request, &refusal))
        check_request(request);
    else
        check_refusal(&refusal);
    serve_request_free(request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    serve_refusal refusal = {0};
    cJSON *json = serve_parse((const char *)data, size, &refusal);
    if (json == NULL) {
        check_refusal(&refusal);
    } else {
        check(json, SERVE_CHAT);
        check(json, SERVE_COMPLETIONS);
    }
    cJSON_Delete(json);
    return 0;
}
