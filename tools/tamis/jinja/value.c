/* SPDX-License-Identifier: Apache-2.0 */
/* Values of templates and their memory. */
#include "jinja/value.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK (64u << 10)
/* Far more than any template takes, and seconds at most. A step is a node, an item, or 16 bytes
 * that are searched; a template copies and searches its messages some times. */
#define MOST_STEPS 4000000u
#define MOST_BYTES (64u << 20)
#define MOST_TIMES 64u

/* ---- Errors and memory ----------------------------------------------------------------------- */

void jinja_fail(jinja_work *w, tamis_status status, const char *format, ...) {
    va_list args;
    const int used = snprintf(w->error.text, sizeof w->error.text, "line %u: ", w->line);
    va_start(args, format);
    vsnprintf(w->error.text + used, sizeof w->error.text - (size_t)used, format, args);
    va_end(args);
    w->error.status = status;
    longjmp(w->escape, 1);
}

void jinja_limit(jinja_work *w, size_t bytes) {
    w->most_steps = MOST_STEPS + bytes / 16 * MOST_TIMES;
    w->most_bytes = MOST_BYTES + bytes * MOST_TIMES;
}

static void take_steps(jinja_work *w, size_t count) {
    w->steps += count;
    if (w->steps > w->most_steps)
        jinja_fail(w, TAMIS_E_UNSUPPORTED, "the template takes more than %llu steps",
                   (unsigned long long)w->most_steps);
}

void jinja_step(jinja_work *w) {
    take_steps(w, 1);
}

void jinja_look(jinja_work *w, size_t count) {
    take_steps(w, 1 + count / 16);
}

void jinja_enter(jinja_work *w, unsigned most) {
    if (++w->depth > most) jinja_fail(w, TAMIS_E_UNSUPPORTED, "more than %u levels", most);
}

typedef struct jinja_block {
    struct jinja_block *next;
    size_t used, bytes;
    max_align_t data[];
} jinja_block;

void *jinja_take(jinja_work *w, size_t bytes) {
    const size_t align = sizeof(max_align_t), rounded = (bytes + align - 1) / align * align;
    jinja_block *block = w->blocks;
    if (bytes > w->most_bytes || w->taken > w->most_bytes - bytes)
        jinja_fail(w, TAMIS_E_UNSUPPORTED, "the template takes more than %zu bytes", w->most_bytes);
    if (block == NULL || block->bytes - block->used < rounded) {
        const size_t room = rounded > BLOCK ? rounded : BLOCK;
        block = calloc(1, sizeof *block + room);
        if (block == NULL) jinja_fail(w, TAMIS_E_NO_MEMORY, "no memory for a template");
        block->next = w->blocks;
        block->bytes = room;
        w->blocks = block;
    }
    void *at = (char *)block->data + block->used;
    block->used += rounded;
    w->taken += rounded;
    return at;
}

void *jinja_grow(jinja_work *w, const void *from, size_t count, size_t *room, size_t each) {
    *room = 2 * count + 4;
    void *to = jinja_take(w, *room * each);
    if (count > 0) memcpy(to, from, count * each);
    return to;
}

void jinja_release(jinja_work *w) {
    while (w->blocks != NULL) {
        jinja_block *next = w->blocks->next;
        free(w->blocks);
        w->blocks = next;
    }
}

/* ---- Texts ----------------------------------------------------------------------------------- */

jinja_shown jinja_show(jinja_text text) {
    jinja_shown shown = {{0}};
    for (size_t i = 0; i < text.bytes && i < sizeof shown.text - 4; i++)
        shown.text[i] = text.at[i] >= ' ' && text.at[i] <= '~' ? text.at[i] : '?';
    if (text.bytes > sizeof shown.text - 4) strcat(shown.text, "...");
    return shown;
}

jinja_text jinja_literal(const char *text) {
    return (jinja_text){.at = text, .bytes = strlen(text)};
}

bool jinja_same_text(jinja_text a, jinja_text b) {
    return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.at, b.at, a.bytes) == 0);
}

bool jinja_is(jinja_text text, const char *word) {
    return jinja_same_text(text, jinja_literal(word));
}

jinja_text jinja_part(jinja_text text, size_t first, size_t bytes) {
    if (text.at == NULL) return text; /* an empty one */
    return (jinja_text){text.at + first, text.origins != NULL ? text.origins + first : NULL, bytes};
}

jinja_text jinja_join(jinja_work *w, jinja_text a, jinja_text b) {
    const size_t bytes = a.bytes + b.bytes;
    if (a.bytes == 0 || b.bytes == 0) return a.bytes == 0 ? b : a;
    char *at = jinja_take(w, bytes);
    memcpy(at, a.at, a.bytes);
    memcpy(at + a.bytes, b.at, b.bytes);
    if (a.origins == NULL && b.origins == NULL) return (jinja_text){at, NULL, bytes};
    uint8_t *origins = jinja_take(w, bytes);
    if (a.origins != NULL) memcpy(origins, a.origins, a.bytes);
    if (b.origins != NULL) memcpy(origins + a.bytes, b.origins, b.bytes);
    return (jinja_text){at, origins, bytes};
}

void jinja_add(jinja_work *w, jinja_builder *to, jinja_text text) {
    if (text.bytes == 0) return;
    if (to->room - to->bytes < text.bytes) {
        const jinja_builder old = *to;
        to->room = 2 * (old.bytes + text.bytes);
        to->at = jinja_take(w, to->room);
        to->origins = jinja_take(w, to->room);
        if (old.bytes > 0) memcpy(to->at, old.at, old.bytes);
        if (old.bytes > 0) memcpy(to->origins, old.origins, old.bytes);
    }
    memcpy(to->at + to->bytes, text.at, text.bytes);
    if (text.origins != NULL) memcpy(to->origins + to->bytes, text.origins, text.bytes);
    to->bytes += text.bytes;
}

jinja_text jinja_built(const jinja_builder *builder) {
    return (jinja_text){builder->at, builder->origins, builder->bytes};
}

size_t jinja_find(jinja_work *w, jinja_text text, jinja_text part, size_t first) {
    size_t at = first;
    if (part.bytes == 0) return first;
    while (part.bytes <= text.bytes && at <= text.bytes - part.bytes) {
        const char *found = memchr(text.at + at, part.at[0], text.bytes - part.bytes + 1 - at);
        const size_t next = found != NULL ? (size_t)(found - text.at) : text.bytes;
        jinja_look(w, next - at + part.bytes);
        if (found == NULL) break;
        if (memcmp(found, part.at, part.bytes) == 0) return next;
        at = next + 1;
    }
    return SIZE_MAX;
}

/* A byte that begins no character of UTF-8 counts as one. */
size_t jinja_character(jinja_text text, size_t at) {
    const uint8_t first = (uint8_t)text.at[at];
    const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
    if (bytes > text.bytes - at) return 1;
    for (size_t i = 1; i < bytes; i++)
        if (((uint8_t)text.at[at + i] & 0xc0) != 0x80) return 1;
    return bytes;
}

size_t jinja_characters(jinja_text text) {
    size_t count = 0;
    for (size_t at = 0; at < text.bytes; at += jinja_character(text, at))
        count++;
    return count;
}

/* White space as Python's str.isspace has it. */
static bool is_space(jinja_text c) {
    static const char *const wide[] = {"\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80",
                                       "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf",
                                       "\xe2\x81\x9f", "\xe3\x80\x80"};
    const uint8_t first = (uint8_t)c.at[0];
    if (c.bytes == 1)
        return first == ' ' || (first >= 9 && first <= 13) || (first >= 28 && first < 32);
    if (c.bytes == 3 && memcmp(c.at, "\xe2\x80", 2) == 0 && (uint8_t)c.at[2] <= 0x8a) return true;
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
        if (jinja_is(c, wide[i])) return true;
    return false;
}

static bool is_stripped(jinja_work *w, jinja_text c, const jinja_text *set) {
    if (w != NULL) jinja_look(w, set != NULL ? set->bytes : 0);
    if (set == NULL) return is_space(c);
    for (size_t at = 0; at < set->bytes; at += jinja_character(*set, at))
        if (jinja_same_text(jinja_part(*set, at, jinja_character(*set, at)), c)) return true;
    return false;
}

size_t jinja_last_character(jinja_text text) {
    for (size_t bytes = text.bytes < 4 ? text.bytes : 4; bytes > 1; bytes--)
        if (jinja_character(text, text.bytes - bytes) == bytes) return text.bytes - bytes;
    return text.bytes - 1;
}

jinja_text jinja_strip(jinja_work *w, jinja_text text, const jinja_text *set, bool front,
                       bool back) {
    while (front && text.bytes > 0) {
        const size_t bytes = jinja_character(text, 0);
        if (!is_stripped(w, jinja_part(text, 0, bytes), set)) break;
        text = jinja_part(text, bytes, text.bytes - bytes);
    }
    while (back && text.bytes > 0) {
        const size_t at = jinja_last_character(text);
        if (!is_stripped(w, jinja_part(text, at, text.bytes - at), set)) break;
        text.bytes = at;
    }
    return text;
}

/* ---- Values ---------------------------------------------------------------------------------- */

jinja_value jinja_of_text(jinja_text text) {
    return (jinja_value){.kind = JINJA_TEXT, .text = text};
}

jinja_value jinja_of_int(int64_t number) {
    return (jinja_value){.kind = JINJA_INT, .number = number};
}

jinja_value jinja_of_bool(bool is) {
    return (jinja_value){.kind = JINJA_BOOL, .number = is};
}

jinja_value jinja_of_list(jinja_work *w) {
    return (jinja_value){.kind = JINJA_LIST, .list = jinja_take(w, sizeof(jinja_list))};
}

jinja_value jinja_of_map(jinja_work *w, jinja_kind kind) {
    return (jinja_value){.kind = kind, .map = jinja_take(w, sizeof(jinja_map))};
}

void jinja_append(jinja_work *w, jinja_list *list, jinja_value item) {
    jinja_step(w);
    if (list->count == list->room)
        list->items = jinja_grow(w, list->items, list->count, &list->room, sizeof *list->items);
    list->items[list->count++] = item;
}

/* Both are a TEXT or INT. */
static bool same_key(jinja_work *w, jinja_value a, jinja_value b) {
    if (a.kind != b.kind || a.kind == JINJA_INT) return a.kind == b.kind && a.number == b.number;
    if (a.text.bytes == b.text.bytes) take_steps(w, a.text.bytes / 16);
    return jinja_same_text(a.text, b.text);
}

/* The last of the pairs from `first` to below `end` that has the key. */
static jinja_value *get_from(jinja_work *w, const jinja_map *map, size_t first, size_t end,
                             jinja_value key) {
    jinja_look(w, end - first);
    for (size_t i = end; i-- > first;)
        if (same_key(w, map->pairs[i].key, key)) return &map->pairs[i].value;
    return NULL;
}

jinja_value *jinja_get_key(jinja_work *w, const jinja_map *map, jinja_value key) {
    return get_from(w, map, 0, map->count, key);
}

jinja_value *jinja_get(jinja_work *w, const jinja_map *map, jinja_text key) {
    return jinja_get_key(w, map, jinja_of_text(key));
}

/* Passes over the pairs in front of `first`. */
static void put_from(jinja_work *w, jinja_map *map, size_t first, jinja_value key,
                     jinja_value value) {
    jinja_value *old = get_from(w, map, first, map->count, key);
    jinja_step(w);
    if (old != NULL) {
        *old = value;
        return;
    }
    if (map->count == map->room)
        map->pairs = jinja_grow(w, map->pairs, map->count, &map->room, sizeof *map->pairs);
    map->pairs[map->count++] = (jinja_pair){key, value};
}

void jinja_put_key(jinja_work *w, jinja_map *map, jinja_value key, jinja_value value) {
    put_from(w, map, 0, key, value);
}

void jinja_put(jinja_work *w, jinja_map *map, jinja_text key, jinja_value value) {
    put_from(w, map, 0, jinja_of_text(key), value);
}

const char *jinja_kind_name(jinja_kind kind) {
    static const char *const names[] = {"undefined",   "none",   "a bool",     "an integer",
                                        "a text",      "a list", "a function", "a map",
                                        "a namespace", "a loop"};
    return names[kind];
}

bool jinja_true(jinja_value value) {
    switch (value.kind) {
    case JINJA_BOOL:
    case JINJA_INT:
        return value.number != 0;
    case JINJA_TEXT:
        return value.text.bytes > 0;
    case JINJA_LIST:
        return value.list->count > 0;
    case JINJA_MAP:
        return value.map->count > 0;
    default:
        return value.kind >= JINJA_FUNCTION;
    }
}

bool jinja_is_number(jinja_value value) {
    return value.kind == JINJA_INT || value.kind == JINJA_BOOL;
}

static bool equal_lists(jinja_work *w, const jinja_list *a, const jinja_list *b) {
    bool equal = a->count == b->count;
    jinja_enter(w, JINJA_MOST_DEPTH);
    for (size_t i = 0; i < a->count && equal; i++)
        equal = jinja_equal(w, a->items[i], b->items[i]);
    w->depth--;
    return equal;
}

bool jinja_equal(jinja_work *w, jinja_value a, jinja_value b) {
    if (jinja_is_number(a) && jinja_is_number(b)) return a.number == b.number;
    if (a.kind != b.kind) return false;
    jinja_look(w, a.text.bytes);
    if (a.kind == JINJA_TEXT) return jinja_same_text(a.text, b.text);
    if (a.kind >= JINJA_FUNCTION)
        jinja_fail(w, TAMIS_E_UNSUPPORTED, "%s is not compared here", jinja_kind_name(a.kind));
    return a.kind != JINJA_LIST || equal_lists(w, a.list, b.list);
}

jinja_text jinja_print(jinja_work *w, jinja_value value) {
    switch (value.kind) {
    case JINJA_UNDEFINED:
        return jinja_literal("");
    case JINJA_NONE:
        return jinja_literal("None");
    case JINJA_BOOL:
        return jinja_literal(value.number ? "True" : "False");
    case JINJA_TEXT:
        return value.text;
    case JINJA_INT: {
        char *digits = jinja_take(w, 24);
        snprintf(digits, 24, "%" PRId64, value.number);
        return jinja_literal(digits);
    }
    default:
        jinja_fail(w, TAMIS_E_UNSUPPORTED, "%s is printed", jinja_kind_name(value.kind));
    }
}

/* ---- Variables ------------------------------------------------------------------------------- */

void jinja_set(jinja_work *w, jinja_text name, jinja_value value) {
    put_from(w, &w->variables, w->scope.first, jinja_of_text(name), value);
}

const jinja_value *jinja_variable(jinja_work *w, jinja_text name) {
    const jinja_value key = jinja_of_text(name);
    const jinja_map *all = &w->variables;
    const jinja_value *found = get_from(w, all, w->scope.macro, all->count, key);
    return found != NULL || w->scope.macro == 0 ? found : get_from(w, all, 0, w->scope.top, key);
}

jinja_scope jinja_open_scope(jinja_work *w) {
    const jinja_scope outer = w->scope;
    if (outer.first == 0) w->scope.top = w->variables.count;
    w->scope.first = w->variables.count;
    return outer;
}

jinja_scope jinja_open_macro(jinja_work *w) {
    const jinja_scope outer = jinja_open_scope(w);
    w->scope.macro = w->scope.first;
    return outer;
}

void jinja_close_scope(jinja_work *w, jinja_scope outer) {
    w->variables.count = w->scope.first;
    w->scope = outer;
}
