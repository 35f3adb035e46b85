/* SPDX-License-Identifier: Apache-2.0 */
/* Models in parts: needle.gguf is cut into parts, which must be the same model; parts that are
 * missing, mixed, renamed or glued together are refused with what is wrong. */
#include "lib/model/parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/model.h>
#include <unistd.h>

#include <cmocka.h>

#define SPLIT_KEYS 3
#define ALIGNMENT  32

static const char *data; /* tests/data */
static char folder[] = "/tmp/tamis-parts-XXXXXX";
static tms_gguf whole;
static uint8_t *file; /* its bytes */

#define OK(call)                                                                                   \
    do {                                                                                           \
        tamis_error error = {0};                                                                   \
        if ((call) != TAMIS_OK) fail_msg("%s: %s", #call, error.text);                             \
    } while (0)

/* ---- Writing --------------------------------------------------------------------------------- */

/* What a part states, and the tensors that it has. */
typedef struct part {
    uint32_t number, count, tensors;
    size_t first, end;
    bool all_keys;
    const char *architecture; /* not NULL: a key of its own */
} part;

static void put(FILE *to, const void *from, size_t bytes) {
    assert_int_equal(fwrite(from, 1, bytes, to), bytes);
}

static void put_u64(FILE *to, uint64_t value) {
    put(to, &value, sizeof value);
}

static void put_u32(FILE *to, uint32_t value) {
    put(to, &value, sizeof value);
}

static void put_text(FILE *to, const char *text, size_t bytes) {
    put_u64(to, bytes);
    put(to, text, bytes);
}

/* split.no and split.count as u16, split.tensors.count as i32, as gguf-split writes them. */
static void put_keys(FILE *to, const part *p) {
    const uint16_t number = (uint16_t)p->number, count = (uint16_t)p->count;
    put_text(to, "split.no", 8);
    put_u32(to, TMS_GGUF_U16);
    put(to, &number, sizeof number);
    put_text(to, "split.count", 11);
    put_u32(to, TMS_GGUF_U16);
    put(to, &count, sizeof count);
    put_text(to, "split.tensors.count", 19);
    put_u32(to, TMS_GGUF_I32);
    put_u32(to, p->tensors);
    if (p->architecture == NULL) return;
    put_text(to, "general.architecture", 20);
    put_u32(to, TMS_GGUF_STRING);
    put_text(to, p->architecture, strlen(p->architecture));
}

static void put_padding(FILE *to, size_t from) {
    while (((size_t)ftell(to) - from) % ALIGNMENT)
        fputc(0, to);
}

static uint64_t padded(uint64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint32_t type_in_file(const tms_gguf_tensor *t) {
    uint32_t type;
    memcpy(&type, t->name.at + t->name.bytes + 4 + 8 * t->n_dims, sizeof type);
    return type;
}

/* The bytes of all keys of the whole file: behind the counts, up to the first tensor's name. */
static void put_all_keys(FILE *to) {
    const char *end = whole.tensors[0].name.at;
    for (uint64_t i = 1; i < whole.n_tensors; i++)
        if (whole.tensors[i].name.at < end) end = whole.tensors[i].name.at;
    const char *start = (const char *)whole.head + 24;
    put(to, start, (size_t)(end - 8 - start));
}

static void append_part(FILE *to, const part *p) {
    const size_t from = (size_t)ftell(to);
    put(to, "GGUF", 4);
    put_u32(to, 3);
    put_u64(to, p->end - p->first);
    put_u64(to, SPLIT_KEYS + (p->architecture != NULL) + (p->all_keys ? whole.n_entries : 0));
    if (p->all_keys) put_all_keys(to);
    put_keys(to, p);
    uint64_t offset = 0;
    for (size_t i = p->first; i < p->end; i++) {
        const tms_gguf_tensor *t = &whole.tensors[i];
        put_text(to, t->name.at, t->name.bytes);
        put_u32(to, t->n_dims);
        put(to, t->dims, t->n_dims * sizeof *t->dims);
        put_u32(to, type_in_file(t));
        put_u64(to, offset);
        offset += padded(t->bytes);
    }
    put_padding(to, from);
    for (size_t i = p->first; i < p->end; i++) {
        put(to, file + whole.tensors[i].at, whole.tensors[i].bytes);
        put_padding(to, from);
    }
}

static const char *path_of(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_parts(const char *name, const part *parts, size_t count) {
    FILE *to = fopen(path_of(name), "wb");
    assert_non_null(to);
    for (size_t i = 0; i < count; i++)
        append_part(to, &parts[i]);
    assert_int_equal(fclose(to), 0);
}

/* Three parts, the first without tensors of its own. */
static void three(part out[3]) {
    const uint32_t n = (uint32_t)whole.n_tensors;
    out[0] = (part){.number = 0, .count = 3, .tensors = n, .all_keys = true};
    out[1] = (part){.number = 1, .count = 3, .tensors = n, .first = 0, .end = 7};
    out[2] = (part){.number = 2, .count = 3, .tensors = n, .first = 7, .end = n};
}

static const char *const names[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                    "m-00003-of-00003.gguf"};

static void write_three(const part parts[3]) {
    for (int i = 0; i < 3; i++)
        write_parts(names[i], &parts[i], 1);
}

/* ---- Reading --------------------------------------------------------------------------------- */

static void refuse(const char *name, tamis_status wanted, const char *reason) {
    tms_gguf gguf;
    tamis_error error = {0};
    const tamis_status status = tms_gguf_open(path_of(name), &gguf, &error);
    if (status != wanted || strstr(error.text, reason) == NULL)
        fail_msg("%s: %s \"%s\" lacks \"%s\"", name, tamis_status_name(status), error.text, reason);
    assert_true(gguf.entries == NULL && gguf.descriptor < 0);
}

/* Every tensor is found, with the same data. */
static void same_tensors(const char *name) {
    tms_gguf gguf;
    OK(tms_gguf_open(path_of(name), &gguf, &error));
    assert_int_equal(gguf.n_tensors, whole.n_tensors);
    for (uint64_t i = 0; i < whole.n_tensors; i++) {
        const tms_gguf_tensor *t = &gguf.tensors[i], *w = &whole.tensors[i];
        uint8_t *bytes = malloc(t->bytes);
        assert_true(t->bytes == w->bytes && t->type == w->type);
        OK(tms_gguf_read(&gguf, t, 0, t->bytes, bytes, &error));
        assert_memory_equal(bytes, file + w->at, w->bytes);
        free(bytes);
    }
    tms_gguf_close(&gguf);
}

/* Any part names the model. */
static void test_parts(void **state) {
    (void)state;
    part parts[3];
    three(parts);
    write_three(parts);
    for (int i = 0; i < 3; i++) {
        tms_gguf keys;
        same_tensors(names[i]);
        OK(tms_gguf_open_keys(path_of(names[i]), &keys, &error));
        assert_non_null(tms_gguf_find(&keys, "tokenizer.ggml.tokens"));
        tms_gguf_close(&keys);
    }
    parts[0].tensors = parts[1].tensors = parts[2].tensors = UINT32_MAX; /* -1: not stated */
    write_three(parts);
    refuse(names[0], TAMIS_E_FORMAT, "key 'split.tensors.count' is -1");
}

/* split.count of 0 is what gguf-split leaves in a file that it has merged. */
static void test_whole(void **state) {
    (void)state;
    const uint32_t n = (uint32_t)whole.n_tensors;
    for (uint32_t count = 0; count < 2; count++) {
        const part p = {.count = count, .tensors = n, .end = n, .all_keys = true};
        write_parts("one.gguf", &p, 1);
        same_tensors("one.gguf");
    }
}

static void test_fingerprint(void **state) {
    (void)state;
    tamis_context *context = NULL;
    tamis_model *model = NULL;
    uint8_t prints[2][16];
    part parts[3];
    char one[512];
    three(parts);
    write_three(parts);
    snprintf(one, sizeof one, "%s/needle.gguf", data);
    OK(tamis_context_create(&(tamis_context_params){.device = "reference"}, &context, &error));
    for (int i = 0; i < 2; i++) {
        OK(tamis_model_load(context, i == 0 ? one : path_of(names[1]), NULL, &model, &error));
        const tamis_status status = tamis_model_fingerprint(model, prints[i], NULL);
        tamis_model_destroy(&model);
        if (status == TAMIS_E_UNSUPPORTED) memset(prints[i], 0, sizeof prints[i]);
        assert_true(status == TAMIS_OK || status == TAMIS_E_UNSUPPORTED);
    }
    assert_memory_equal(prints[0], prints[1], sizeof prints[0]);
    tamis_context_destroy(&context);
}

/* ---- What is wrong --------------------------------------------------------------------------- */

static void test_missing(void **state) {
    (void)state;
    part parts[3];
    three(parts);
    write_three(parts);
    assert_int_equal(remove(path_of(names[1])), 0);
    for (int i = 0; i < 3; i += 2)
        refuse(names[i], TAMIS_E_IO,
               "part 2 of 3, 'm-00002-of-00003.gguf': cannot be read: No such");
    assert_int_equal(remove(path_of(names[0])), 0);
    refuse(names[2], TAMIS_E_IO, "this is part 3 of 3 of a split model; the first: cannot be read");
    write_parts("renamed.gguf", &parts[0], 1);
    refuse("renamed.gguf", TAMIS_E_FORMAT,
           "this is part 1 of 3 of a split model; its name must end in '-00001-of-00003.gguf'");
    write_parts("y", &parts[2], 1);
    refuse("y", TAMIS_E_FORMAT, "this is part 3 of 3 of a split model; its name must end in");
}

static void test_mixed(void **state) {
    (void)state;
    part parts[3];
    const struct {
        int index;
        part part;
        const char *reason;
    } cases[] = {
        {1,
         {.number = 2, .count = 3},
         "part 2 of 3, 'm-00002-of-00003.gguf': its keys split.* say "
         "part 3 of 3"},
        {1, {.number = 1, .count = 4}, "say part 2 of 4"},
        {1, {.number = 3, .count = 3}, "key 'split.no' is 3; key 'split.count' states 3 parts"},
        {2, {.number = 2, .count = 3, .tensors = 5}, "key 'split.tensors.count' is 5, and "},
        {2, {.number = 2, .count = 3, .end = 8}, "the 3 parts have 15 tensors; key 'split.tens"},
        {2, {.number = 2, .count = 3, .first = 6}, "the 3 parts have "},
        {1,
         {.number = 1, .count = 3, .architecture = "q\x1b[2J"},
         "key 'general.architecture' is "
         "not as in the first part"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        three(parts);
        part *p = &parts[cases[i].index];
        p->number = cases[i].part.number;
        p->count = cases[i].part.count;
        if (cases[i].part.tensors) p->tensors = cases[i].part.tensors;
        if (cases[i].part.first) p->first = cases[i].part.first;
        if (cases[i].part.end) p->end = p->first + cases[i].part.end;
        p->architecture = cases[i].part.architecture;
        write_three(parts);
        refuse(names[0], TAMIS_E_FORMAT, cases[i].reason);
    }
    three(parts); /* a part with tensors that another one has */
    parts[2].first = 0;
    parts[2].end = whole.n_tensors - 7;
    write_three(parts);
    refuse(names[0], TAMIS_E_FORMAT, "stands twice");
    three(parts);
    parts[1].architecture = "llama"; /* says what the first says */
    write_three(parts);
    same_tensors(names[0]);
}

static void test_glued(void **state) {
    (void)state;
    part parts[3];
    three(parts);
    write_parts("glued.gguf", parts, 3);
    refuse("glued.gguf", TAMIS_E_FORMAT, "parts of a split model of 3 stand one behind the other");
    write_parts(names[0], parts, 3); /* under a part's name */
    refuse(names[0], TAMIS_E_FORMAT, "stand one behind the other in this file");
    write_three(parts);
    write_parts(names[0], parts, 3); /* and the model is named by another */
    refuse(names[1], TAMIS_E_FORMAT, "stand one behind the other in this file");
    write_three(parts);
    write_parts(names[1], parts + 1, 2);
    refuse(names[0], TAMIS_E_FORMAT, "part 2 of 3, 'm-00002-of-00003.gguf': parts of a split");
}

static int open_whole(void **state) {
    (void)state;
    char path[512];
    tamis_error error = {0};
    snprintf(path, sizeof path, "%s/needle.gguf", data);
    if (mkdtemp(folder) == NULL || tms_gguf_open(path, &whole, &error) != TAMIS_OK) return -1;
    file = malloc(whole.bytes);
    return tms_gguf_read_at(&whole, 0, whole.bytes, file, &error) == TAMIS_OK ? 0 : -1;
}

static int close_whole(void **state) {
    (void)state;
    static const char *const others[] = {"one.gguf", "renamed.gguf", "y", "glued.gguf"};
    for (int i = 0; i < 3; i++)
        remove(path_of(names[i]));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        remove(path_of(others[i]));
    tms_gguf_close(&whole);
    free(file);
    return rmdir(folder);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),       cmocka_unit_test(test_whole),
        cmocka_unit_test(test_fingerprint), cmocka_unit_test(test_missing),
        cmocka_unit_test(test_mixed),       cmocka_unit_test(test_glued),
    };
    if (argc < 2) return 2;
    data = argv[1];
    return cmocka_run_group_tests_name("parts", tests, open_whole, close_whole);
}
