/* SPDX-License-Identifier: Apache-2.0 */
/* Passages of a text at offsets that follow from a seed, one in each equal part. */
#include "eval/passages.h"

#include <stdlib.h>
#include <string.h>

void eval_merge_lengths(cli_list *lengths) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < lengths->count; i++) {
        uint32_t j = 0;
        while (j < count && lengths->values[j] != lengths->values[i])
            j++;
        if (j == count) lengths->values[count++] = lengths->values[i];
    }
    lengths->count = count;
}

uint32_t eval_longest(const cli_list *lengths) {
    uint32_t longest = 0;
    for (uint32_t i = 0; i < lengths->count; i++)
        if (lengths->values[i] > longest) longest = lengths->values[i];
    return longest;
}

static size_t passage_tokens(const eval_passages *passages) {
    return (size_t)passages->longest + passages->fed + 1;
}

static int check_count(const eval_passages *passages, const char *command, const char *path) {
    size_t need = passage_tokens(passages);
    if (passages->tokens.count < need)
        return cli_fail(command, "%s: has %zu tokens, --length %u with --tokens %u needs %zu", path,
                        passages->tokens.count, passages->longest, passages->fed, need);
    size_t places = passages->tokens.count - need + 1;
    if (places >= passages->texts) return CLI_OK;
    return cli_fail(command,
                    "%s: has %zu places for a passage of %zu tokens, fewer than --texts %u", path,
                    places, need, passages->texts);
}

int eval_passages_open(eval_passages *passages, const char *command, const tamis_model *model,
                       const char *model_path, const char *path, uint32_t longest, uint32_t fed,
                       uint32_t texts, uint64_t seed) {
    eval_text text;
    tamis_error error = {0};
    *passages = (eval_passages){.longest = longest, .fed = fed, .texts = texts, .seed = seed};
    if (!eval_text_open(&text, command, path, model_path)) return CLI_FAILED;
    const tamis_vocab *vocab = tamis_model_vocab(model);
    const tamis_vocab_info *info = tamis_vocab_describe(vocab);
    passages->bos = info->add_bos ? info->bos : -1;
    passages->passage = malloc(passage_tokens(passages) * sizeof(*passages->passage));
    int code =
        passages->passage == NULL ? cli_fail(command, "out of host memory")
        : cli_tokenize(vocab, text.content, text.bytes, 0, &passages->tokens, &error) == TAMIS_OK
            ? check_count(passages, command, cli_input_name(text.path))
            : cli_fail(command, "%s: %s", cli_input_name(text.path), error.text);
    eval_text_close(&text);
    return code;
}

void eval_passages_close(eval_passages *passages) {
    free(passages->tokens.ids);
    free(passages->passage);
    *passages = (eval_passages){0};
}

const int32_t *eval_passages_at(const eval_passages *passages, uint32_t index, uint32_t length) {
    uint64_t places = passages->tokens.count - passage_tokens(passages) + 1;
    uint64_t from = places * index / passages->texts, to = places * (index + 1) / passages->texts;
    cli_random random = cli_random_of(passages->seed, index);
    uint64_t offset =
        from +
        cli_random_below(&random, (uint32_t)(to - from < UINT32_MAX ? to - from : UINT32_MAX));
    const int32_t *at = passages->tokens.ids + offset + (passages->longest - length);
    memcpy(passages->passage, at,
           ((size_t)length + passages->fed + 1) * sizeof(*passages->passage));
    if (passages->bos >= 0) passages->passage[0] = passages->bos;
    return passages->passage;
}
