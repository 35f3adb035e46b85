/* SPDX-License-Identifier: Apache-2.0 */
/* From a file to a sequence in the cache: reading, tokens, prefill. */
#define _POSIX_C_SOURCE 200809L /* fileno */
#include "cli/text.h"

#include "cli/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static tamis_status unreadable(tamis_error *error, const char *path, int code) {
    return cli_error(error, TAMIS_E_IO, "%s: cannot be read: %s", path, strerror(code));
}

static tamis_status too_large(tamis_error *error, const char *path) {
    return cli_error(error, TAMIS_E_FORMAT, "%s: has more than %zu MiB, the most of a text", path,
                     CLI_TEXT_MOST >> 20);
}

/* Room for more of the file; NULL without memory, and then `content` is freed. */
static char *grow(char *content, size_t capacity) {
    char *larger = realloc(content, capacity);
    if (larger == NULL) free(content);
    return larger;
}

/* Reads to the end, or one byte more than a text may have. */
static tamis_status read_all(FILE *file, const char *name, char **content, size_t *bytes,
                             tamis_error *error) {
    size_t capacity = 1 << 16, used = 0;
    char *text = grow(NULL, capacity);
    while (text != NULL) {
        used += fread(text + used, 1, capacity - used, file);
        if (used < capacity || used > CLI_TEXT_MOST) break;
        text = grow(text, capacity *= 2);
    }
    if (text == NULL) return cli_error(error, TAMIS_E_NO_MEMORY, "%s: out of host memory", name);
    const int code = ferror(file) ? errno : 0;
    if (code != 0 || used > CLI_TEXT_MOST) {
        free(text);
        return code != 0 ? unreadable(error, name, code) : too_large(error, name);
    }
    text[used] = '\0';
    *content = text;
    *bytes = used;
    return TAMIS_OK;
}

/* An ordinary file tells its size before any of it is read. */
static bool is_too_large(FILE *file) {
    struct stat info;
    return fstat(fileno(file), &info) == 0 && S_ISREG(info.st_mode) &&
           (uint64_t)info.st_size > CLI_TEXT_MOST;
}

const char *cli_input_name(const char *path) {
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

tamis_status cli_read_text(const char *path, char **content, size_t *bytes, tamis_error *error) {
    const char *name = cli_input_name(path);
    FILE *file = name != path ? stdin : fopen(path, "rb");
    *content = NULL;
    if (file == NULL) return unreadable(error, name, errno);
    const tamis_status status =
        is_too_large(file) ? too_large(error, name) : read_all(file, name, content, bytes, error);
    fclose(file);
    if (status == TAMIS_OK) cli_utf8_warn(name, *content, *bytes);
    return status;
}

tamis_status cli_tokenize(const tamis_vocab *vocab, const char *text, size_t bytes, uint32_t flags,
                          cli_tokens *out, tamis_error *error) {
    *out = (cli_tokens){0};
    tamis_status status =
        tamis_vocab_encode(vocab, text, bytes, flags, NULL, 0, &out->count, error);
    if (status != TAMIS_OK) return status;
    out->ids = malloc((out->count > 0 ? out->count : 1) * sizeof(*out->ids));
    if (out->ids == NULL) return cli_no_memory(error);
    status =
        tamis_vocab_encode(vocab, text, bytes, flags, out->ids, out->count, &out->count, error);
    if (status == TAMIS_OK) return TAMIS_OK;
    free(out->ids);
    *out = (cli_tokens){0};
    return status;
}

tamis_status cli_build(tamis_runner *runner, size_t count, tamis_error *error) {
    tamis_plan_params limits;
    tamis_plan_get_params(tamis_runner_plan(runner), &limits);
    const uint32_t last = (uint32_t)(count % limits.max_rows);
    tamis_status status = TAMIS_OK;
    if (count >= limits.max_rows)
        status = tamis_runner_build(runner, limits.max_rows, last == 0, error);
    return status == TAMIS_OK && last ? tamis_runner_build(runner, last, 1, error) : status;
}

tamis_status cli_prefill(tamis_cache *cache, tamis_runner *runner, const int32_t *tokens,
                         size_t count, tamis_sequence *out, int32_t *next, tamis_error *error) {
    tamis_status status = tamis_cache_add(cache, out, error);
    if (status != TAMIS_OK) return status;
    return tamis_runner_prefill(runner, *out, tokens, count, next, error);
}
