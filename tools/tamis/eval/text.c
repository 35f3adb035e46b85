/* SPDX-License-Identifier: Apache-2.0 */
/* The file that texts are made from. */
#include "cli/stdin.h"
#include "eval/eval.h"

#include <stdlib.h>
#include <string.h>

/* A copy of --text, else the path of text.txt in the folder of the model's file. */
static char *text_path(const char *path, const char *model_path) {
    static const char name[] = "text.txt";
    const char *slash = strrchr(model_path, '/');
    size_t folder = slash != NULL ? (size_t)(slash - model_path) + 1 : 0;
    const char *first = path != NULL ? path : model_path, *second = path != NULL ? "" : name;
    size_t first_bytes = path != NULL ? strlen(path) : folder, second_bytes = strlen(second);
    char *out = malloc(first_bytes + second_bytes + 1);
    if (out == NULL) return NULL;
    memcpy(out, first, first_bytes);
    memcpy(out + first_bytes, second, second_bytes + 1);
    return out;
}

bool eval_text_open(eval_text *text, const char *command, const char *path,
                    const char *model_path) {
    tamis_error error = {0};
    if (path == NULL && strcmp(model_path, CLI_STDIN_PATH) == 0) {
        cli_fail(command,
                 "--text: is missing; standard input, the model, has no text.txt beside it");
        return false;
    }
    *text = (eval_text){.path = text_path(path, model_path)};
    tamis_status status = text->path == NULL
                              ? cli_no_memory(&error)
                              : cli_read_text(text->path, &text->content, &text->bytes, &error);
    if (status == TAMIS_OK) return true;
    cli_fail(command, "%s", error.text);
    eval_text_close(text);
    return false;
}

void eval_text_close(eval_text *text) {
    free(text->path);
    free(text->content);
    *text = (eval_text){0};
}
