/* SPDX-License-Identifier: Apache-2.0 */
/* What texts are made from: files, and numbers that follow from a seed. */
#include "eval/eval.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64: a step of the state, mixed. */
static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

eval_random eval_random_of(uint64_t seed, uint64_t stream) {
    const uint64_t step = 0x9e3779b97f4a7c15u;
    return (eval_random){mix(mix(seed + step) + (stream + 1) * step)};
}

uint64_t eval_random_next(eval_random *random) {
    random->state += 0x9e3779b97f4a7c15u;
    return mix(random->state);
}

uint32_t eval_random_below(eval_random *random, uint32_t n) {
    uint32_t remainder =
        (UINT32_MAX - n + 1) % n; /* 2^32 mod n: numbers below it are one too many */
    for (;;) {
        uint32_t number = (uint32_t)(eval_random_next(random) >> 32);
        if (number >= remainder) return number % n;
    }
}

/* Room for more: the whole file so far and as much again, NULL without memory. */
static char *grow(char *content, size_t capacity) {
    char *larger = realloc(content, capacity);
    if (larger == NULL) free(content);
    return larger;
}

/* The bytes of a file, NUL after the end; NULL after one line on stderr. */
static char *read_file(const char *command, const char *path, size_t *bytes) {
    size_t capacity = 1 << 16, used = 0;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        cli_fail(command, "%s: cannot be read: %s", path, strerror(errno));
        return NULL;
    }
    char *content = grow(NULL, capacity);
    while (content != NULL) {
        used += fread(content + used, 1, capacity - used, file);
        if (used < capacity) break;
        content = grow(content, capacity *= 2);
    }
    int code = content != NULL && ferror(file) ? errno : 0;
    fclose(file);
    if (content == NULL) {
        cli_fail(command, "%s: out of host memory", path);
        return NULL;
    }
    if (code != 0) {
        cli_fail(command, "%s: cannot be read: %s", path, strerror(code));
        free(content);
        return NULL;
    }
    content[used] = '\0';
    *bytes = used;
    return content;
}

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
    *text = (eval_text){.path = text_path(path, model_path)};
    if (text->path == NULL)
        cli_fail(command, "out of host memory");
    else
        text->content = read_file(command, text->path, &text->bytes);
    if (text->content != NULL) return true;
    eval_text_close(text);
    return false;
}

void eval_text_close(eval_text *text) {
    free(text->path);
    free(text->content);
    *text = (eval_text){0};
}
