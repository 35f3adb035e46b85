/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis tokenize`: the tokens that a model's vocabulary makes of a text. */
#include "cli/commands.h"
#include "cli/json.h"
#include "cli/text.h"

#include <stdlib.h>
#include <string.h>
#include <tamis/vocab.h>

typedef struct tokenize_flags {
    const char *model, *text, *file, *json;
    uint32_t special, bare;
} tokenize_flags;

static const cli_option options[] = {
    CLI_MODEL_OPTION(tokenize_flags, model),
    {"--text", "TEXT", "the text", CLI_TEXT, offsetof(tokenize_flags, text), 0, 0, NULL},
    {"--file", "FILE", "the text from a file", CLI_INPUT, offsetof(tokenize_flags, file), 0, 0,
     NULL},
    {"--special", "", "the text of a control token, as <|im_end|>, is that token", CLI_FLAG,
     offsetof(tokenize_flags, special), 0, 0, NULL},
    {"--bare", "", "without the tokens that the file wants around every text", CLI_FLAG,
     offsetof(tokenize_flags, bare), 0, 0, NULL},
    {"--json", "FILE", "write the tokens as JSON; - is standard output", CLI_OUTPUT,
     offsetof(tokenize_flags, json), 0, 0, NULL},
};

static int run(int argc, char *const *argv);

const cli_command cli_tokenize_command = {
    "tamis tokenize",
    "show the tokens of a text",
    "--model FILE (--text TEXT | --file FILE) [--special] [--bare] [--json FILE]",
    "Cuts a text as the vocabulary of a GGUF file does, which needs no device and no weights that\n"
    "can be run. A line for each token has its number and its bytes; the last line counts them.",
    "  tamis tokenize --model model.gguf --text 'Once upon a time'\n"
    "  tamis tokenize --model model.gguf --file prompt.txt --special\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run};

/* Bytes outside printable ASCII as \xNN, so that a line is one token and shows parts of characters. */
static void print_piece(const char *piece, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char c = (unsigned char)piece[i];
        if (c == '\\')
            fputs("\\\\", stdout);
        else if (c == '\n')
            fputs("\\n", stdout);
        else if (c < ' ' || c > '~')
            printf("\\x%02x", c);
        else
            fputc(c, stdout);
    }
}

/* Its number, its bytes, and the text of these; U+FFFD stands there for what is no UTF-8, as where a
 * token is a part of a character. */
static bool add_json_row(cJSON *rows, const tamis_vocab *vocab, int32_t token) {
    size_t length = 0;
    const char *piece = tamis_vocab_token_text(vocab, token, &length);
    cJSON *row = cli_json_row(rows), *bytes = cJSON_AddArrayToObject(row, "bytes");
    bool made = cJSON_AddNumberToObject(row, "token", token) != NULL && bytes != NULL;
    for (size_t i = 0; made && i < length; i++)
        made = cJSON_AddItemToArray(bytes, cJSON_CreateNumber((unsigned char)piece[i]));
    char *text = made ? strndup(piece, length) : NULL;
    made = text != NULL && cJSON_AddStringToObject(row, "text", text) != NULL;
    free(text);
    return made;
}

static void print_tokens(const tamis_vocab *vocab, const cli_tokens *tokens, size_t bytes) {
    for (size_t i = 0; i < tokens->count; i++) {
        size_t length = 0;
        const char *piece = tamis_vocab_token_text(vocab, tokens->ids[i], &length);
        printf("%6d '", tokens->ids[i]);
        print_piece(piece, length);
        printf("'\n");
    }
    printf("%zu tokens of %zu bytes\n", tokens->count, bytes);
}

static cJSON *json_rows(const tamis_vocab *vocab, const cli_tokens *tokens) {
    cJSON *rows = cJSON_CreateArray();
    bool made = rows != NULL;
    for (size_t i = 0; made && i < tokens->count; i++)
        made = add_json_row(rows, vocab, tokens->ids[i]);
    if (made) return rows;
    cJSON_Delete(rows);
    return NULL;
}

static bool write_json(const tokenize_flags *f, const tamis_vocab *vocab, const cli_tokens *tokens,
                       cli_output *output) {
    const char *name = cli_tokenize_command.name;
    cJSON *root = cli_json_begin(name, NULL);
    if (cJSON_AddStringToObject(root, "model", f->model) != NULL)
        return cli_json_write(root, json_rows(vocab, tokens), output, name);
    cJSON_Delete(root);
    return cli_fail(name, "out of host memory") == CLI_OK;
}

static tamis_status tokenize(const tokenize_flags *f, cli_output *output, int *code,
                             tamis_error *error) {
    tamis_vocab *vocab = NULL;
    cli_tokens tokens = {0};
    char *content = NULL;
    size_t bytes = f->text != NULL ? strlen(f->text) : 0;
    const uint32_t flags = (f->special ? TAMIS_ENCODE_PARSE_SPECIAL : 0) |
                           (f->bare ? 0 : TAMIS_ENCODE_ADD_BOS | TAMIS_ENCODE_ADD_EOS);
    tamis_status status = tamis_vocab_load(f->model, &vocab, error);
    if (status == TAMIS_OK) cli_warn_of_vocab(f->model, vocab);
    if (status == TAMIS_OK && f->file != NULL)
        status = cli_read_text(f->file, &content, &bytes, error);
    if (status == TAMIS_OK)
        status =
            cli_tokenize(vocab, f->text != NULL ? f->text : content, bytes, flags, &tokens, error);
    if (status == TAMIS_OK) print_tokens(vocab, &tokens, bytes);
    if (status == TAMIS_OK && f->json != NULL && !write_json(f, vocab, &tokens, output))
        *code = CLI_FAILED;
    free(tokens.ids);
    free(content);
    tamis_vocab_destroy(&vocab);
    return status;
}

static int run(int argc, char *const *argv) {
    tokenize_flags f = {0};
    const char *name = cli_tokenize_command.name;
    tamis_error error = {0};
    int code = cli_parse(&cli_tokenize_command, &f, argc, argv);
    if (code >= 0) return code;
    if (f.model == NULL) {
        cli_fail(name, "--model: is missing (see %s --help)", name);
        return CLI_USAGE;
    }
    if ((f.text == NULL) == (f.file == NULL)) {
        cli_fail(name, "--text, --file: give exactly one of them");
        return CLI_USAGE;
    }
    cli_output output = {0};
    if (f.json != NULL && !cli_output_open(&output, name, f.json)) return CLI_FAILED;
    code = CLI_OK;
    if (tokenize(&f, &output, &code, &error) != TAMIS_OK) code = cli_fail(name, "%s", error.text);
    cli_output_discard(&output);
    return code;
}
