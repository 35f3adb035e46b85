/* SPDX-License-Identifier: Apache-2.0 */
/* What templates call by name: functions, methods of texts and maps, filters and tests. */
#include "jinja/tree.h"

#include <string.h>

#define MOST_ITEMS 100000

static _Noreturn void unknown(jinja_work *w, const char *what, jinja_text name, jinja_value self) {
    jinja_fail(w, TAMIS_E_UNSUPPORTED, "%s '%s' of %s is not known", what, jinja_show(name).text,
               jinja_kind_name(self.kind));
}

/* The argument, which must be of that kind. */
static jinja_value argument(jinja_work *w, const jinja_list *args, size_t i, jinja_kind kind,
                            jinja_text of) {
    if (i >= args->count)
        jinja_fail(w, TAMIS_E_FORMAT, "'%s' lacks an argument", jinja_show(of).text);
    if (args->items[i].kind != kind)
        jinja_fail(w, TAMIS_E_UNSUPPORTED, "'%s' is given %s where %s is expected",
                   jinja_show(of).text, jinja_kind_name(args->items[i].kind),
                   jinja_kind_name(kind));
    return args->items[i];
}

static void at_most(jinja_work *w, const jinja_list *args, size_t count, jinja_text of) {
    if (args->count > count)
        jinja_fail(w, TAMIS_E_UNSUPPORTED, "'%s' with %zu arguments", jinja_show(of).text,
                   args->count);
}

static void no_names(jinja_work *w, const jinja_map *named, jinja_text of) {
    if (named->count > 0)
        jinja_fail(w, TAMIS_E_UNSUPPORTED, "'%s' with the argument '%s'", jinja_show(of).text,
                   jinja_show(named->pairs[0].key.text).text);
}

/* ---- Functions ------------------------------------------------------------------------------- */

static jinja_value make_range(jinja_work *w, const jinja_list *args, jinja_text name) {
    int64_t numbers[3] = {0, 0, 1};
    at_most(w, args, 3, name);
    for (size_t i = 0; i < args->count; i++)
        numbers[i] = argument(w, args, i, JINJA_INT, name).number;
    if (args->count < 2) {
        numbers[1] = argument(w, args, 0, JINJA_INT, name).number;
        numbers[0] = 0;
    }
    jinja_value list = jinja_of_list(w);
    if (numbers[2] == 0) jinja_fail(w, TAMIS_E_FORMAT, "a range with steps of 0");
    for (int64_t i = numbers[0]; numbers[2] > 0 ? i < numbers[1] : i > numbers[1];
         i += numbers[2]) {
        if (list.list->count == MOST_ITEMS)
            jinja_fail(w, TAMIS_E_UNSUPPORTED, "a range of more than %d", MOST_ITEMS);
        jinja_append(w, list.list, jinja_of_int(i));
    }
    return list;
}

static jinja_value make_map(jinja_work *w, const jinja_map *named, jinja_kind kind) {
    jinja_value map = jinja_of_map(w, kind);
    for (size_t i = 0; i < named->count; i++)
        jinja_put_key(w, map.map, named->pairs[i].key, named->pairs[i].value);
    return map;
}

/* The date's parts, in the forms that hold nothing of a time or a place. */
static jinja_value show_date(jinja_work *w, const jinja_list *args, jinja_text name) {
    static const char known[] = "aAbBdjmyY%";
    const jinja_text format = argument(w, args, 0, JINJA_TEXT, name).text;
    char *to = jinja_take(w, 8 * format.bytes + 1), *end = to;
    at_most(w, args, 1, name);
    if (w->date == NULL)
        jinja_fail(w, TAMIS_E_UNSUPPORTED,
                   "strftime_now asks for the date, and none is stated (--date)");
    for (size_t i = 0; i < format.bytes; i++) {
        char part[3] = {'%', i + 1 < format.bytes ? format.at[i + 1] : '\0', '\0'};
        if (format.at[i] != '%') {
            *end++ = format.at[i];
            continue;
        }
        if (part[1] == '\0' || strchr(known, part[1]) == NULL)
            jinja_fail(w, TAMIS_E_UNSUPPORTED, "the date in the form '%s'",
                       jinja_show(format).text);
        end += strftime(end, 16, part, w->date);
        i++;
    }
    return jinja_of_text((jinja_text){.at = to, .bytes = (size_t)(end - to)});
}

jinja_value jinja_call_function(jinja_work *w, jinja_text name, const jinja_list *args,
                                const jinja_map *named) {
    if (jinja_is(name, "namespace") || jinja_is(name, "dict")) {
        at_most(w, args, 0, name);
        return make_map(w, named, jinja_is(name, "dict") ? JINJA_MAP : JINJA_NAMESPACE);
    }
    no_names(w, named, name);
    if (jinja_is(name, "range")) return make_range(w, args, name);
    if (jinja_is(name, "strftime_now")) return show_date(w, args, name);
    if (jinja_is(name, "raise_exception"))
        jinja_fail(w, TAMIS_E_ARGUMENT, "the template refuses this: %s",
                   jinja_show(argument(w, args, 0, JINJA_TEXT, name).text).text);
    jinja_fail(w, TAMIS_E_UNSUPPORTED, "the function '%s' is not known", jinja_show(name).text);
}

/* ---- Texts ----------------------------------------------------------------------------------- */

static jinja_text change_case(jinja_work *w, jinja_text text, bool upper) {
    char *to = jinja_take(w, text.bytes + 1);
    for (size_t i = 0; i < text.bytes; i++) {
        const char c = text.at[i], low = upper ? 'a' : 'A';
        if (c & 0x80)
            jinja_fail(w, TAMIS_E_UNSUPPORTED, "upper and lower case of '%s'",
                       jinja_show(text).text);
        to[i] = (char)(c >= low && c <= low + 25 ? c ^ 0x20 : c);
    }
    return (jinja_text){to, text.origins, text.bytes};
}

/* At `most` places; below 0: at all. */
static jinja_value split(jinja_work *w, jinja_text text, jinja_text by, int64_t most) {
    jinja_value list = jinja_of_list(w);
    size_t from = 0, at;
    if (by.bytes == 0) jinja_fail(w, TAMIS_E_FORMAT, "a text is split by nothing");
    while (most-- != 0 && (at = jinja_find(w, text, by, from)) != SIZE_MAX) {
        jinja_append(w, list.list, jinja_of_text(jinja_part(text, from, at - from)));
        from = at + by.bytes;
    }
    jinja_append(w, list.list, jinja_of_text(jinja_part(text, from, text.bytes - from)));
    return list;
}

static jinja_text replace(jinja_work *w, jinja_text text, jinja_text old, jinja_text by) {
    jinja_builder out = {0};
    size_t from = 0, at;
    if (old.bytes == 0) jinja_fail(w, TAMIS_E_UNSUPPORTED, "nothing is replaced in a text");
    while ((at = jinja_find(w, text, old, from)) != SIZE_MAX) {
        jinja_add(w, &out, jinja_part(text, from, at - from));
        jinja_add(w, &out, by);
        from = at + old.bytes;
    }
    jinja_add(w, &out, jinja_part(text, from, text.bytes - from));
    return jinja_built(&out);
}

static bool begins(jinja_text text, jinja_text with) {
    return text.bytes >= with.bytes && jinja_same_text(jinja_part(text, 0, with.bytes), with);
}

static bool ends(jinja_text text, jinja_text with) {
    return text.bytes >= with.bytes &&
           jinja_same_text(jinja_part(text, text.bytes - with.bytes, with.bytes), with);
}

static jinja_value strip(jinja_work *w, jinja_text text, jinja_text name, const jinja_list *args) {
    jinja_text set;
    const bool given = args->count > 0 && args->items[0].kind != JINJA_NONE;
    at_most(w, args, 1, name);
    if (given) set = argument(w, args, 0, JINJA_TEXT, name).text;
    return jinja_of_text(jinja_strip(w, text, given ? &set : NULL, !jinja_is(name, "rstrip"),
                                     !jinja_is(name, "lstrip")));
}

/* Each {} is the next argument; {{ and }} are braces. */
static jinja_text format(jinja_work *w, jinja_text text, const jinja_list *args) {
    jinja_builder out = {0};
    size_t next = 0;
    for (size_t at = 0, end; at < text.bytes; at = end + 2) {
        for (end = at; end < text.bytes && text.at[end] != '{' && text.at[end] != '}';)
            end++;
        jinja_look(w, end - at);
        jinja_add(w, &out, jinja_part(text, at, end - at));
        if (end == text.bytes) break;
        const char c = text.at[end], second = end + 1 < text.bytes ? text.at[end + 1] : '\0';
        if (c == second)
            jinja_add(w, &out, jinja_part(text, end, 1));
        else if (c == '{' && second == '}' && next < args->count)
            jinja_add(w, &out, jinja_print(w, args->items[next++]));
        else
            jinja_fail(w, TAMIS_E_UNSUPPORTED, "the format '%s' with %zu arguments",
                       jinja_show(text).text, args->count);
    }
    return jinja_built(&out);
}

static jinja_value call_text(jinja_work *w, jinja_value self, jinja_text name,
                             const jinja_list *args) {
    const jinja_text text = self.text;
    if (jinja_is(name, "strip") || jinja_is(name, "lstrip") || jinja_is(name, "rstrip"))
        return strip(w, text, name, args);
    if (jinja_is(name, "upper") || jinja_is(name, "lower")) {
        at_most(w, args, 0, name);
        return jinja_of_text(change_case(w, text, jinja_is(name, "upper")));
    }
    if (jinja_is(name, "replace")) {
        at_most(w, args, 2, name);
        return jinja_of_text(replace(w, text, argument(w, args, 0, JINJA_TEXT, name).text,
                                     argument(w, args, 1, JINJA_TEXT, name).text));
    }
    if (jinja_is(name, "format")) return jinja_of_text(format(w, text, args));
    const bool splits = jinja_is(name, "split"), first = jinja_is(name, "startswith");
    if (!splits && !first && !jinja_is(name, "endswith")) unknown(w, "the method", name, self);
    at_most(w, args, splits ? 2 : 1, name);
    const jinja_text with = argument(w, args, 0, JINJA_TEXT, name).text;
    jinja_look(w, with.bytes);
    if (splits)
        return split(w, text, with,
                     args->count > 1 ? argument(w, args, 1, JINJA_INT, name).number : -1);
    return jinja_of_bool(first ? begins(text, with) : ends(text, with));
}

/* ---- Maps and lists -------------------------------------------------------------------------- */

/* 'k' the keys, 'v' the values, 'i' both. */
static jinja_value list_of(jinja_work *w, const jinja_map *map, char what) {
    jinja_value list = jinja_of_list(w);
    for (size_t i = 0; i < map->count; i++) {
        const jinja_value key = map->pairs[i].key, value = map->pairs[i].value;
        jinja_value item = what == 'k' ? key : what == 'v' ? value : jinja_of_list(w);
        if (what == 'i') {
            jinja_append(w, item.list, key);
            jinja_append(w, item.list, value);
        }
        jinja_append(w, list.list, item);
    }
    return list;
}

static jinja_value call_map(jinja_work *w, jinja_value self, jinja_text name,
                            const jinja_list *args) {
    if (jinja_is(name, "get")) {
        at_most(w, args, 2, name);
        const jinja_value *found =
            jinja_get(w, self.map, argument(w, args, 0, JINJA_TEXT, name).text);
        if (found != NULL) return *found;
        return args->count > 1 ? args->items[1] : (jinja_value){.kind = JINJA_NONE};
    }
    at_most(w, args, 0, name);
    if (jinja_is(name, "keys")) return list_of(w, self.map, 'k');
    if (jinja_is(name, "values")) return list_of(w, self.map, 'v');
    if (jinja_is(name, "items")) return list_of(w, self.map, 'i');
    unknown(w, "the method", name, self);
}

jinja_value jinja_call_method(jinja_work *w, jinja_value self, jinja_text name,
                              const jinja_list *args) {
    if (self.kind == JINJA_TEXT) return call_text(w, self, name, args);
    if (self.kind == JINJA_MAP) return call_map(w, self, name, args);
    unknown(w, "the method", name, self);
}

jinja_list *jinja_items(jinja_work *w, jinja_value value) {
    if (value.kind == JINJA_LIST) return value.list;
    if (value.kind == JINJA_MAP) return list_of(w, value.map, 'k').list;
    if (value.kind != JINJA_UNDEFINED)
        jinja_fail(w, TAMIS_E_UNSUPPORTED, "a loop over %s", jinja_kind_name(value.kind));
    return jinja_of_list(w).list;
}

/* ---- Filters --------------------------------------------------------------------------------- */

static jinja_value length_of(jinja_work *w, jinja_value self, jinja_text name) {
    switch (self.kind) {
    case JINJA_UNDEFINED:
        return jinja_of_int(0);
    case JINJA_TEXT:
        jinja_look(w, self.text.bytes);
        return jinja_of_int((int64_t)jinja_characters(self.text));
    case JINJA_LIST:
        return jinja_of_int((int64_t)self.list->count);
    case JINJA_MAP:
        return jinja_of_int((int64_t)self.map->count);
    default:
        unknown(w, "the filter", name, self);
    }
}

/* The first or last item, or character. */
static jinja_value end_of(jinja_work *w, jinja_value self, jinja_text name) {
    const bool last = jinja_is(name, "last");
    if (self.kind == JINJA_LIST) {
        const jinja_list *list = self.list;
        return list->count > 0 ? list->items[last ? list->count - 1 : 0] : (jinja_value){0};
    }
    if (self.kind != JINJA_TEXT) unknown(w, "the filter", name, self);
    if (self.text.bytes == 0) return (jinja_value){0};
    const size_t at = last ? jinja_last_character(self.text) : 0;
    return jinja_of_text(jinja_part(self.text, at, jinja_character(self.text, at)));
}

static jinja_value join(jinja_work *w, jinja_value self, const jinja_list *args, jinja_text name) {
    const jinja_list *list = jinja_items(w, self);
    const jinja_text between =
        args->count > 0 ? argument(w, args, 0, JINJA_TEXT, name).text : jinja_literal("");
    jinja_builder out = {0};
    at_most(w, args, 1, name);
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0) jinja_add(w, &out, between);
        jinja_add(w, &out, jinja_print(w, list->items[i]));
    }
    return jinja_of_text(jinja_built(&out));
}

/* Items with an attribute that passes a test, or is true where no test is named; or the others. */
static jinja_value choose(jinja_work *w, jinja_value self, const jinja_list *args,
                          jinja_text name) {
    const bool wanted = jinja_is(name, "selectattr");
    const jinja_list *list = jinja_true(self) ? jinja_items(w, self) : &(jinja_list){0};
    const jinja_text key = argument(w, args, 0, JINJA_TEXT, name).text;
    const jinja_list rest = {.items = args->items + 2,
                             .count = args->count > 2 ? args->count - 2 : 0};
    jinja_value out = jinja_of_list(w);
    for (size_t i = 0; i < list->count; i++) {
        const jinja_value item = list->items[i];
        if (item.kind != JINJA_MAP) unknown(w, "an attribute", key, item);
        const jinja_value *found = jinja_get(w, item.map, key);
        const jinja_value value = found != NULL ? *found : (jinja_value){0};
        const bool passes =
            args->count < 2
                ? jinja_true(value)
                : jinja_call_test(w, value, argument(w, args, 1, JINJA_TEXT, name).text, &rest);
        if (passes == wanted) jinja_append(w, out.list, item);
    }
    return out;
}

static jinja_value or_else(jinja_work *w, jinja_value self, const jinja_list *args,
                           jinja_text name) {
    at_most(w, args, 2, name);
    const bool when_false = args->count > 1 && jinja_true(args->items[1]);
    const bool missing = self.kind == JINJA_UNDEFINED || (when_false && !jinja_true(self));
    if (!missing) return self;
    return args->count > 0 ? args->items[0] : jinja_of_text(jinja_literal(""));
}

/* Keys as they are ordered: texts without their case. */
static jinja_value folded(jinja_work *w, jinja_value key) {
    return key.kind == JINJA_TEXT ? jinja_of_text(change_case(w, key.text, false)) : key;
}

/* Pairs of a map, by their keys. */
static jinja_value sort_map(jinja_work *w, const jinja_map *map) {
    const jinja_value pairs = list_of(w, map, 'i');
    jinja_value *items = pairs.list->items;
    jinja_list keys = {0};
    for (size_t i = 0; i < map->count; i++) {
        const jinja_value pair = items[i], key = folded(w, map->pairs[i].key);
        size_t at = i;
        jinja_append(w, &keys, key);
        for (; at > 0 && jinja_order(w, "dictsort", keys.items[at - 1], key) > 0; at--) {
            keys.items[at] = keys.items[at - 1];
            items[at] = items[at - 1];
            jinja_step(w);
        }
        keys.items[at] = key;
        items[at] = pair;
    }
    return pairs;
}

/* As transformers has it: escapes for HTML are left out. */
static jinja_value json(jinja_work *w, jinja_value self, const jinja_list *args,
                        const jinja_map *named) {
    const jinja_text name = jinja_literal("tojson");
    at_most(w, args, 0, name);
    for (size_t i = 0; i < named->count; i++) {
        const jinja_pair pair = named->pairs[i];
        if (!jinja_is(pair.key.text, "ensure_ascii") || jinja_true(pair.value))
            no_names(w, &(jinja_map){.pairs = &named->pairs[i], .count = 1}, name);
    }
    return jinja_of_text(jinja_json(w, self));
}

jinja_value jinja_call_filter(jinja_work *w, jinja_value self, jinja_text name,
                              const jinja_list *args, const jinja_map *named) {
    if (jinja_is(name, "tojson")) return json(w, self, args, named);
    no_names(w, named, name);
    if (jinja_is(name, "selectattr") || jinja_is(name, "rejectattr"))
        return choose(w, self, args, name);
    if (jinja_is(name, "default") || jinja_is(name, "d")) return or_else(w, self, args, name);
    if (jinja_is(name, "join")) return join(w, self, args, name);
    if (jinja_is(name, "replace"))
        return call_text(w, jinja_of_text(jinja_print(w, self)), name, args);
    if (jinja_is(name, "trim")) return strip(w, jinja_print(w, self), jinja_literal("strip"), args);
    at_most(w, args, 0, name);
    if (jinja_is(name, "length") || jinja_is(name, "count")) return length_of(w, self, name);
    if (jinja_is(name, "first") || jinja_is(name, "last")) return end_of(w, self, name);
    if (jinja_is(name, "string") || jinja_is(name, "safe"))
        return jinja_of_text(jinja_print(w, self));
    if (jinja_is(name, "upper") || jinja_is(name, "lower"))
        return jinja_of_text(change_case(w, jinja_print(w, self), jinja_is(name, "upper")));
    if (jinja_is(name, "list") && self.kind != JINJA_TEXT)
        return (jinja_value){.kind = JINJA_LIST, .list = jinja_items(w, self)};
    if (jinja_is(name, "dictsort") && self.kind == JINJA_MAP) return sort_map(w, self.map);
    if (jinja_is(name, "int") && jinja_is_number(self)) return jinja_of_int(self.number);
    if (jinja_is(name, "items") && self.kind == JINJA_MAP) return list_of(w, self.map, 'i');
    unknown(w, "the filter", name, self);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

/* Tests of a kind alone. */
static bool test_kind(jinja_work *w, jinja_value self, jinja_text name) {
    const jinja_kind kind = self.kind;
    if (jinja_is(name, "defined")) return kind != JINJA_UNDEFINED;
    if (jinja_is(name, "undefined")) return kind == JINJA_UNDEFINED;
    if (jinja_is(name, "none")) return kind == JINJA_NONE;
    if (jinja_is(name, "string")) return kind == JINJA_TEXT;
    if (jinja_is(name, "mapping")) return kind == JINJA_MAP;
    if (jinja_is(name, "boolean")) return kind == JINJA_BOOL;
    if (jinja_is(name, "integer")) return kind == JINJA_INT;
    if (jinja_is(name, "number")) return kind == JINJA_INT || kind == JINJA_BOOL;
    if (jinja_is(name, "true")) return kind == JINJA_BOOL && self.number != 0;
    if (jinja_is(name, "false")) return kind == JINJA_BOOL && self.number == 0;
    if (kind != JINJA_LOOP && (jinja_is(name, "sequence") || jinja_is(name, "iterable")))
        return kind == JINJA_UNDEFINED || kind == JINJA_LIST || kind == JINJA_TEXT ||
               kind == JINJA_MAP;
    if (kind == JINJA_INT && jinja_is(name, "odd")) return self.number % 2 != 0;
    if (kind == JINJA_INT && jinja_is(name, "even")) return self.number % 2 == 0;
    unknown(w, "the test", name, self);
}

bool jinja_call_test(jinja_work *w, jinja_value self, jinja_text name, const jinja_list *args) {
    static const char *const equal[] = {"equalto", "eq", "=="}, *const other[] = {"ne", "!="};
    at_most(w, args, 1, name);
    if (args->count == 0) return test_kind(w, self, name);
    for (size_t i = 0; i < sizeof equal / sizeof equal[0]; i++)
        if (jinja_is(name, equal[i])) return jinja_equal(w, self, args->items[0]);
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        if (jinja_is(name, other[i])) return !jinja_equal(w, self, args->items[0]);
    if (jinja_is(name, "in")) return jinja_contains(w, args->items[0], self);
    unknown(w, "the test", name, self);
}
