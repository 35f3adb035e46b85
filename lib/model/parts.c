/* SPDX-License-Identifier: Apache-2.0 */
/* Models in parts, as gguf-split writes them: the first part has all keys, each has tensors of its
 * own, and in each the keys split.* say which part of how many it is. */
#include "lib/model/parts.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOT_STATED UINT32_MAX
#define MOST_PARTS 65535u /* the format has 16 bits for their number */

typedef struct split {
    uint32_t number; /* from 0 */
    uint32_t count;  /* up to 1: the file is whole */
    uint32_t tensors;
} split;

static tamis_status read_split(const tms_gguf *gguf, split *out, tamis_error *error) {
    *out = (split){.tensors = NOT_STATED};
    TMS_TRY(tms_gguf_u32(gguf, "split.no", &out->number, error));
    TMS_TRY(tms_gguf_u32(gguf, "split.count", &out->count, error));
    TMS_TRY(tms_gguf_u32(gguf, "split.tensors.count", &out->tensors, error));
    TMS_REQUIRE(out->count <= 1 || out->number < out->count, TAMIS_E_FORMAT,
                "key 'split.no' is %u; key 'split.count' states %u parts", out->number, out->count);
    TMS_REQUIRE(out->count <= MOST_PARTS, TAMIS_E_FORMAT,
                "key 'split.count' is %u; up to %u can be", out->count, MOST_PARTS);
    return TAMIS_OK;
}

static tamis_status expect_part(const split *s, uint32_t number, uint32_t count,
                                tamis_error *error) {
    TMS_REQUIRE(s->number == number && s->count == count, TAMIS_E_FORMAT,
                "its keys split.* say part %u of %u", s->number + 1, s->count);
    return TAMIS_OK;
}

/* ---- Names ----------------------------------------------------------------------------------- */

typedef struct part_name {
    char text[40];
} part_name;

static part_name name_of(uint32_t number, uint32_t count) {
    part_name name;
    snprintf(name.text, sizeof name.text, "-%05u-of-%05u.gguf", number + 1, count);
    return name;
}

/* The path of part `number`, by the path of the part that `own` describes. */
static tamis_status path_of(const char *path, const split *own, uint32_t number, char out[PATH_MAX],
                            tamis_error *error) {
    const part_name end = name_of(own->number, own->count), wanted = name_of(number, own->count);
    const size_t bytes = strlen(path), skip = strlen(end.text);
    TMS_REQUIRE(bytes >= skip && strcmp(path + bytes - skip, end.text) == 0, TAMIS_E_FORMAT,
                "this is part %u of %u of a split model; its name must end in '%s', so that the "
                "other parts are found beside it",
                own->number + 1, own->count, end.text);
    const int length = snprintf(out, PATH_MAX, "%.*s%s", (int)(bytes - skip), path, wanted.text);
    TMS_REQUIRE(length > 0 && length < PATH_MAX, TAMIS_E_IO, "its path has %zu bytes", bytes);
    return TAMIS_OK;
}

/* ---- Joining --------------------------------------------------------------------------------- */

/* Parts that were put together by cat: behind the data of one the next begins. */
static tamis_status refuse_glued(const tms_gguf *gguf, const split *own, tamis_error *error) {
    uint32_t alignment = 32;
    TMS_TRY(tms_gguf_u32(gguf, "general.alignment", &alignment, error));
    const uint64_t end = gguf->data_end;
    const uint64_t places[] = {end, (end + alignment - 1) / alignment * alignment};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; ++i) {
        char magic[4];
        if (places[i] > gguf->bytes || gguf->bytes - places[i] < sizeof magic) continue;
        TMS_TRY(tms_gguf_read_at(gguf, places[i], sizeof magic, magic, error));
        TMS_REQUIRE(memcmp(magic, "GGUF", sizeof magic) != 0, TAMIS_E_FORMAT,
                    "parts of a split model of %u stand one behind the other in this file, as cat "
                    "puts them; they are read as the files that they were, beside each other",
                    own->count);
    }
    return TAMIS_OK;
}

/* A later part's keys must be the first one's, but for those that belong to one file. */
static tamis_status check_keys(const tms_gguf *first, const tms_gguf *part, tamis_error *error) {
    for (uint64_t i = 0; i < part->n_entries; ++i) {
        const tms_gguf_entry *entry = &part->entries[i];
        const tms_shown key = tms_text_show(entry->key);
        const bool own =
            strncmp(key.text, "split.", 6) == 0 || tms_text_is(entry->key, "general.alignment");
        const tms_gguf_entry *same = tms_gguf_find_text(first, entry->key);
        TMS_REQUIRE(own || (same && tms_gguf_same(entry, same)), TAMIS_E_FORMAT,
                    "key '%s' is not as in the first part: parts of two models", key.text);
    }
    return TAMIS_OK;
}

static tamis_status check_part(const tms_gguf *first, const split *own, uint32_t number,
                               const tms_gguf *part, tamis_error *error) {
    split s;
    TMS_TRY(read_split(part, &s, error));
    TMS_TRY(expect_part(&s, number, own->count, error));
    TMS_REQUIRE(s.tensors == own->tensors, TAMIS_E_FORMAT,
                "key 'split.tensors.count' is %u, and %u in the first part: parts of two models",
                s.tensors, own->tensors);
    TMS_TRY(refuse_glued(part, own, error));
    return check_keys(first, part, error);
}

/* Opens and checks part `number`. */
static tamis_status open_part(const char *path, const split *own, uint32_t number, tms_gguf *first,
                              tamis_error *error) {
    char name[PATH_MAX];
    tamis_error reason = {0};
    tms_gguf *part = &first->others[number - 1];
    TMS_TRY(path_of(path, own, number, name, error));
    tamis_status status = tms_gguf_open_file(name, true, part, &reason);
    if (status == TAMIS_OK) status = check_part(first, own, number, part, &reason);
    if (status == TAMIS_OK) return TAMIS_OK;
    const char *slash = strrchr(name, '/');
    return tms_model_fail(error, status, "part %u of %u, '%.120s': %s", number + 1, own->count,
                          slash ? slash + 1 : name, reason.text);
}

/* Moves the tensors of all parts to the first one. */
static tamis_status take_tensors(tms_gguf *first, const split *own, tamis_error *error) {
    uint64_t total = first->n_tensors;
    for (uint32_t i = 0; i < first->n_others; ++i)
        total += first->others[i].n_tensors;
    TMS_REQUIRE(own->tensors == NOT_STATED || total == own->tensors, TAMIS_E_FORMAT,
                "the %u parts have %llu tensors; key 'split.tensors.count' states %u", own->count,
                (unsigned long long)total, own->tensors);
    tms_gguf_tensor *all = realloc(first->tensors, (total + 1) * sizeof *all);
    TMS_REQUIRE(all, TAMIS_E_NO_MEMORY, "no memory for %llu tensors", (unsigned long long)total);
    first->tensors = all;
    for (uint32_t i = 0; i < first->n_others; ++i) {
        tms_gguf *part = &first->others[i];
        for (uint64_t k = 0; k < part->n_tensors; ++k) {
            all[first->n_tensors] = part->tensors[k];
            all[first->n_tensors++].part = i + 1;
        }
        free(part->tensors);
        part->tensors = NULL;
        part->n_tensors = 0;
    }
    return tms_gguf_sort_tensors(first, error);
}

static tamis_status join(const char *path, const split *own, tms_gguf *first, tamis_error *error) {
    first->others = calloc(own->count - 1, sizeof *first->others);
    TMS_REQUIRE(first->others, TAMIS_E_NO_MEMORY, "no memory for %u parts", own->count);
    for (uint32_t i = 1; i < own->count; ++i) {
        first->others[i - 1].descriptor = -1;
        first->n_others = i;
        TMS_TRY(open_part(path, own, i, first, error));
    }
    return take_tensors(first, own, error);
}

/* Replaces a later part by the first one, whose split is *own then. */
static tamis_status go_to_first(const char *path, bool tensors, split *own, tms_gguf *out,
                                tamis_error *error) {
    const split later = *own;
    char name[PATH_MAX];
    tamis_error reason = {0};
    TMS_TRY(path_of(path, own, 0, name, error));
    tms_gguf_close(out);
    tamis_status status = tms_gguf_open_file(name, tensors, out, &reason);
    if (status == TAMIS_OK) status = read_split(out, own, &reason);
    if (status == TAMIS_OK) status = expect_part(own, 0, later.count, &reason);
    if (status == TAMIS_OK) return TAMIS_OK;
    return tms_model_fail(error, status, "this is part %u of %u of a split model; the first: %s",
                          later.number + 1, later.count, reason.text);
}

static tamis_status join_all(const char *path, tms_gguf *out, tamis_error *error) {
    split own;
    TMS_TRY(read_split(out, &own, error));
    if (own.count <= 1) return TAMIS_OK;
    TMS_TRY(refuse_glued(out, &own, error));
    const split given = own;
    if (own.number > 0) {
        TMS_TRY(go_to_first(path, true, &own, out, error));
        TMS_TRY(refuse_glued(out, &own, error));
    }
    own.number = given.number; /* by which the names of the others are made */
    return join(path, &own, out, error);
}

static tamis_status keys_of_first(const char *path, tms_gguf *out, tamis_error *error) {
    split own;
    TMS_TRY(read_split(out, &own, error));
    if (own.count <= 1 || own.number == 0) return TAMIS_OK;
    return go_to_first(path, false, &own, out, error);
}

tamis_status tms_gguf_open(const char *path, tms_gguf *out, tamis_error *error) {
    TMS_TRY(tms_gguf_open_file(path, true, out, error));
    const tamis_status status = join_all(path, out, error);
    if (status != TAMIS_OK) tms_gguf_close(out);
    return status;
}

tamis_status tms_gguf_open_keys(const char *path, tms_gguf *out, tamis_error *error) {
    TMS_TRY(tms_gguf_open_file(path, false, out, error));
    const tamis_status status = keys_of_first(path, out, error);
    if (status != TAMIS_OK) tms_gguf_close(out);
    return status;
}
