/* SPDX-License-Identifier: Apache-2.0 */
/* A file of vectors is text: comments (#), then arrays. An array is a line "name rows columns" and its
 * numbers, row after row. */
#include "tests/model/vectors.h"
#include "tests/model/rig.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct array {
    char name[32];
    size_t rows, columns;
} array;

static bool next_array(FILE *from, array *out) {
    char line[256];
    while (fgets(line, sizeof line, from)) {
        if (line[0] == '#') continue;
        if (sscanf(line, "%31s %zu %zu", out->name, &out->rows, &out->columns) == 3) return true;
        fail_msg("no head of an array: %s", line);
    }
    return false;
}

static void *room(const array *a) {
    void *out = calloc(a->rows * a->columns, 4);
    assert_non_null(out);
    return out;
}

static float *take_floats(FILE *from, const array *a) {
    float *out = room(a);
    for (size_t i = 0; i < a->rows * a->columns; ++i)
        if (fscanf(from, "%f", &out[i]) != 1) fail_msg("%s ends after %zu", a->name, i);
    assert_int_equal(fgetc(from), '\n');
    return out;
}

static int32_t *take_integers(FILE *from, const array *a) {
    int32_t *out = room(a);
    for (size_t i = 0; i < a->rows * a->columns; ++i)
        if (fscanf(from, "%d", &out[i]) != 1) fail_msg("%s ends after %zu", a->name, i);
    assert_int_equal(fgetc(from), '\n');
    return out;
}

static void take(vectors *v, FILE *from, const array *a) {
    if (strcmp(a->name, "text_bytes") == 0) {
        int32_t *bytes = take_integers(from, a);
        v->text_bytes = (size_t)bytes[0];
        free(bytes);
    } else if (strcmp(a->name, "positions") == 0) {
        v->positions = take_integers(from, a);
        v->n_positions = a->columns;
    } else if (strcmp(a->name, "logits") == 0) {
        v->logits = take_floats(from, a);
        v->n_vocab = a->columns;
        assert_int_equal(a->rows, v->n_positions);
    } else if (strcmp(a->name, "peer") == 0) {
        v->peer = take_floats(from, a);
        assert_true(a->rows == v->n_positions && a->columns == v->n_vocab);
    } else if (strcmp(a->name, "greedy_at") == 0) {
        v->greedy_at = take_integers(from, a);
        v->n_continuations = a->columns;
    } else if (strcmp(a->name, "greedy") == 0) {
        v->greedy = take_integers(from, a);
        v->n_greedy = a->columns;
        assert_int_equal(a->rows, v->n_continuations);
    } else {
        assert_string_equal(a->name, "leads");
        v->leads = take_floats(from, a);
        assert_true(a->rows == v->n_continuations && a->columns == v->n_greedy);
    }
}

void vectors_read(vectors *v, const char *name) {
    static char file[64];
    char path[1024];
    array a;
    *v = (vectors){.file = file};
    snprintf(file, sizeof file, "%s.gguf", name);
    snprintf(path, sizeof path, "%s/%s.logits", rig_data, name);
    FILE *from = fopen(path, "r");
    if (!from) fail_msg("%s cannot be opened", path);
    while (next_array(from, &a))
        take(v, from, &a);
    fclose(from);
    assert_true(v->text_bytes && v->logits && v->greedy_at && v->greedy && v->leads);
}

/* Opens the file and goes to the numbers of an array. */
static FILE *open_at(const char *name, const char *wanted, array *a) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.logits", rig_data, name);
    FILE *from = fopen(path, "r");
    if (!from) fail_msg("%s cannot be opened", path);
    while (next_array(from, a)) {
        if (strcmp(a->name, wanted) == 0) return from;
        free(take_floats(from, a));
    }
    fail_msg("%s has no %s", path, wanted);
    return NULL;
}

float *vectors_floats(const char *name, const char *wanted, size_t n) {
    array a;
    FILE *from = open_at(name, wanted, &a);
    float *out = take_floats(from, &a);
    assert_int_equal(a.rows * a.columns, n);
    fclose(from);
    return out;
}

int32_t *vectors_integers(const char *name, const char *wanted, size_t *n) {
    array a;
    FILE *from = open_at(name, wanted, &a);
    int32_t *out = take_integers(from, &a);
    *n = a.rows * a.columns;
    fclose(from);
    return out;
}

void vectors_free(vectors *v) {
    void *all[] = {v->positions, v->logits, v->peer, v->greedy_at, v->greedy, v->leads};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        free(all[i]);
    *v = (vectors){0};
}
