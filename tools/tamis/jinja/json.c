/* SPDX-License-Identifier: Apache-2.0 */
/* Values as JSON. */
#include "jinja/tree.h"

#include <stdio.h>
#include <string.h>

static void add(jinja_work *w, jinja_builder *out, jinja_value value);

/* Escapes are the template's own, since the template asks for them. */
static void add_character(jinja_work *w, jinja_builder *out, jinja_text one) {
    static const char names[] = "\"\\nrtbf", values[] = "\"\\\n\r\t\b\f";
    const char c = one.at[0], *at = c != '\0' ? strchr(values, c) : NULL;
    char *escape = jinja_take(w, 8);
    if (at != NULL)
        snprintf(escape, 8, "\\%c", names[at - values]);
    else
        snprintf(escape, 8, "\\u%04x", (unsigned)(uint8_t)c);
    jinja_add(w, out, jinja_literal(escape));
}

static bool is_escaped(char c) {
    return (uint8_t)c < 0x20 || c == '"' || c == '\\';
}

static void add_text(jinja_work *w, jinja_builder *out, jinja_text text) {
    jinja_add(w, out, jinja_literal("\""));
    for (size_t at = 0, end; at < text.bytes; at = end) {
        for (end = at; end < text.bytes && !is_escaped(text.at[end]);)
            end++;
        jinja_look(w, end - at);
        jinja_add(w, out, jinja_part(text, at, end - at));
        if (end < text.bytes) add_character(w, out, jinja_part(text, end++, 1));
    }
    jinja_add(w, out, jinja_literal("\""));
}

static void add_list(jinja_work *w, jinja_builder *out, const jinja_list *list) {
    jinja_add(w, out, jinja_literal("["));
    for (size_t i = 0; i < list->count; i++) {
        jinja_add(w, out, jinja_literal(i > 0 ? ", " : ""));
        add(w, out, list->items[i]);
    }
    jinja_add(w, out, jinja_literal("]"));
}

static void add_map(jinja_work *w, jinja_builder *out, const jinja_map *map) {
    jinja_add(w, out, jinja_literal("{"));
    for (size_t i = 0; i < map->count; i++) {
        jinja_add(w, out, jinja_literal(i > 0 ? ", " : ""));
        add_text(w, out, jinja_print(w, map->pairs[i].key));
        jinja_add(w, out, jinja_literal(": "));
        add(w, out, map->pairs[i].value);
    }
    jinja_add(w, out, jinja_literal("}"));
}

static void add(jinja_work *w, jinja_builder *out, jinja_value value) {
    jinja_enter(w, JINJA_MOST_DEPTH);
    jinja_step(w);
    if (value.kind == JINJA_NONE)
        jinja_add(w, out, jinja_literal("null"));
    else if (value.kind == JINJA_BOOL)
        jinja_add(w, out, jinja_literal(value.number ? "true" : "false"));
    else if (value.kind == JINJA_INT)
        jinja_add(w, out, jinja_print(w, value));
    else if (value.kind == JINJA_TEXT)
        add_text(w, out, value.text);
    else if (value.kind == JINJA_LIST)
        add_list(w, out, value.list);
    else if (value.kind == JINJA_MAP)
        add_map(w, out, value.map);
    else
        jinja_fail(w, TAMIS_E_UNSUPPORTED, "%s as JSON", jinja_kind_name(value.kind));
    w->depth--;
}

jinja_text jinja_json(jinja_work *w, jinja_value value) {
    jinja_builder out = {0};
    add(w, &out, value);
    return jinja_built(&out);
}
