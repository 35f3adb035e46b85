/* SPDX-License-Identifier: Apache-2.0 */
/* The values of a template's expressions. */
#include "jinja/tree.h"

#include <string.h>

static _Noreturn void refuse(jinja_work *w, const char *what, jinja_value a, jinja_value b) {
    jinja_fail(w, TAMIS_E_UNSUPPORTED, "'%s' of %s and %s is not known", what,
               jinja_kind_name(a.kind), jinja_kind_name(b.kind));
}

/* ---- Operators ------------------------------------------------------------------------------- */

/* Numbers of templates are indices and counts. No operation on two of them overflows. */
#define MOST_NUMBER (1ll << 31)

static int64_t bounded(jinja_work *w, int64_t number) {
    if (number > MOST_NUMBER || number < -MOST_NUMBER)
        jinja_fail(w, TAMIS_E_UNSUPPORTED, "the number %lld; up to %lld can be calculated with",
                   (long long)number, MOST_NUMBER);
    return number;
}

static int64_t calculate(jinja_work *w, const char *operator, int64_t a, int64_t b) {
    if ((*operator== '/' || * operator== '%') && b == 0)
        jinja_fail(w, TAMIS_E_FORMAT, "a division by 0");
    switch (*operator) {
    case '+':
        return a + b;
    case '-':
        return a - b;
    case '*':
        return a * b;
    case '%':
        return (a % b + b) % b;
    default:
        if (strcmp(operator, "//") != 0) jinja_fail(w, TAMIS_E_UNSUPPORTED, "numbers with points");
        return a / b - (a % b != 0 && (a < 0) != (b < 0));
    }
}

static jinja_value add_lists(jinja_work *w, const jinja_list *a, const jinja_list *b) {
    jinja_value out = jinja_of_list(w);
    for (size_t i = 0; i < a->count; i++)
        jinja_append(w, out.list, a->items[i]);
    for (size_t i = 0; i < b->count; i++)
        jinja_append(w, out.list, b->items[i]);
    return out;
}

static jinja_value arithmetic(jinja_work *w, const char *operator, jinja_value a, jinja_value b) {
    if (jinja_is_number(a) && jinja_is_number(b))
        return jinja_of_int(
            bounded(w, calculate(w, operator, bounded(w, a.number), bounded(w, b.number))));
    if (*operator!= '+' || a.kind != b.kind) refuse(w, operator, a, b);
    if (a.kind == JINJA_TEXT) return jinja_of_text(jinja_join(w, a.text, b.text));
    if (a.kind == JINJA_LIST) return add_lists(w, a.list, b.list);
    refuse(w, operator, a, b);
}

bool jinja_contains(jinja_work *w, jinja_value whole, jinja_value part) {
    if (whole.kind == JINJA_TEXT) {
        if (part.kind != JINJA_TEXT) refuse(w, "in", part, whole);
        return jinja_find(w, whole.text, part.text, 0) != SIZE_MAX;
    }
    if (whole.kind == JINJA_MAP) {
        if (part.kind >= JINJA_LIST) refuse(w, "in", part, whole);
        return (part.kind == JINJA_TEXT || part.kind == JINJA_INT) &&
               jinja_get_key(w, whole.map, part) != NULL;
    }
    if (whole.kind != JINJA_LIST && whole.kind != JINJA_UNDEFINED) refuse(w, "in", part, whole);
    const jinja_list *list = jinja_items(w, whole);
    for (size_t i = 0; i < list->count; i++)
        if (jinja_equal(w, list->items[i], part)) return true;
    return false;
}

int64_t jinja_order(jinja_work *w, const char *what, jinja_value a, jinja_value b) {
    if (jinja_is_number(a) && jinja_is_number(b))
        return (a.number > b.number) - (a.number < b.number);
    if (a.kind != JINJA_TEXT || b.kind != JINJA_TEXT) refuse(w, what, a, b);
    const size_t least = a.text.bytes < b.text.bytes ? a.text.bytes : b.text.bytes;
    jinja_look(w, least);
    const int first = least > 0 ? memcmp(a.text.at, b.text.at, least) : 0;
    return first != 0 ? first : (int64_t)a.text.bytes - (int64_t)b.text.bytes;
}

static jinja_value binary(jinja_work *w, const char *operator, jinja_value a, jinja_value b) {
    const bool with_equal = operator[0] != '\0' && operator[1] == '=';
    switch (*operator) {
    case '~':
        return jinja_of_text(jinja_join(w, jinja_print(w, a), jinja_print(w, b)));
    case '=':
        return jinja_of_bool(jinja_equal(w, a, b));
    case '!':
        return jinja_of_bool(!jinja_equal(w, a, b));
    case 'i':
        return jinja_of_bool(jinja_contains(w, b, a));
    case 'n':
        return jinja_of_bool(!jinja_contains(w, b, a));
    case '<':
        return jinja_of_bool(jinja_order(w, operator, a, b) < (with_equal ? 1 : 0));
    case '>':
        return jinja_of_bool(jinja_order(w, operator, a, b) > (with_equal ? -1 : 0));
    default:
        return arithmetic(w, operator, a, b);
    }
}

/* ---- Parts of values ------------------------------------------------------------------------- */

/* Of maps, the methods are no values here. */
static jinja_value attribute(jinja_work *w, jinja_value of, jinja_text name) {
    static const char *const methods[] = {"get", "items", "keys", "values"};
    if (of.kind == JINJA_UNDEFINED)
        jinja_fail(w, TAMIS_E_FORMAT, "'%s' of what is undefined", jinja_show(name).text);
    if (of.kind == JINJA_FUNCTION)
        jinja_fail(w, TAMIS_E_UNSUPPORTED, "'%s' of a function", jinja_show(name).text);
    const jinja_value *found = of.kind >= JINJA_MAP ? jinja_get(w, of.map, name) : NULL;
    if (found != NULL) return *found;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0] && of.kind == JINJA_MAP; i++)
        if (jinja_is(name, methods[i]))
            jinja_fail(w, TAMIS_E_UNSUPPORTED, "the method '%s' as a value", methods[i]);
    return (jinja_value){0};
}

/* The items of a list, or the characters of a text. */
static jinja_list *elements(jinja_work *w, jinja_value of, const char *what) {
    if (of.kind == JINJA_LIST) return of.list;
    if (of.kind != JINJA_TEXT)
        jinja_fail(w, TAMIS_E_UNSUPPORTED, "%s of %s", what, jinja_kind_name(of.kind));
    jinja_list *list = jinja_of_list(w).list;
    list->room = jinja_characters(of.text);
    list->items = jinja_take(w, list->room * sizeof *list->items);
    for (size_t at = 0; at < of.text.bytes;) {
        const size_t bytes = jinja_character(of.text, at);
        jinja_append(w, list, jinja_of_text(jinja_part(of.text, at, bytes)));
        at += bytes;
    }
    return list;
}

static jinja_value element(jinja_work *w, jinja_value of, jinja_value index) {
    if (index.kind == JINJA_TEXT) return attribute(w, of, index.text);
    if (index.kind != JINJA_INT) refuse(w, "[]", of, index);
    if (of.kind == JINJA_MAP) {
        const jinja_value *found = jinja_get_key(w, of.map, index);
        return found != NULL ? *found : (jinja_value){0};
    }
    const jinja_list *list = elements(w, of, "an element");
    const int64_t count = (int64_t)list->count;
    const int64_t at = index.number < 0 ? index.number + count : index.number;
    return at >= 0 && at < count ? list->items[at] : (jinja_value){0};
}

/* A bound of a slice, as Python has it. */
static int64_t bound(jinja_work *w, const jinja_node *node, int64_t absent, int64_t count,
                     int64_t least, int64_t most) {
    if (node == NULL) return absent;
    const jinja_value value = jinja_evaluate(w, node);
    if (value.kind == JINJA_NONE) return absent;
    if (value.kind != JINJA_INT) refuse(w, "[:]", value, value);
    const int64_t at = value.number < 0 ? value.number + count : value.number;
    return at < least ? least : at > most ? most : at;
}

static jinja_value slice(jinja_work *w, const jinja_node *node) {
    const jinja_value of = jinja_evaluate(w, node->a);
    const jinja_list *list = elements(w, of, "a slice");
    const int64_t count = (int64_t)list->count;
    const int64_t step = bound(w, node->d, 1, 0, -MOST_NUMBER, MOST_NUMBER);
    if (step == 0) jinja_fail(w, TAMIS_E_FORMAT, "a slice with steps of 0");
    const int64_t least = step > 0 ? 0 : -1, most = step > 0 ? count : count - 1;
    const int64_t first = bound(w, node->b, step > 0 ? 0 : most, count, least, most);
    const int64_t end = bound(w, node->c, step > 0 ? count : -1, count, least, most);
    jinja_value out = jinja_of_list(w);
    jinja_builder text = {0};
    for (int64_t i = first; step > 0 ? i < end : i > end; i += step) {
        if (of.kind == JINJA_TEXT)
            jinja_add(w, &text, list->items[i].text);
        else
            jinja_append(w, out.list, list->items[i]);
    }
    return of.kind == JINJA_TEXT ? jinja_of_text(jinja_built(&text)) : out;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

/* A variable, or what Jinja2 defines beside them: strftime_now where a date is stated. */
static jinja_value name_value(jinja_work *w, const jinja_node *node) {
    static const char *const functions[] = {"strftime_now", "range",  "dict",
                                            "namespace",    "cycler", "raise_exception",
                                            "joiner",       "lipsum", "self"};
    static const char *const of_macros[] = {"varargs", "kwargs", "caller"};
    const jinja_value *found = jinja_variable(w, node->text);
    if (found != NULL) return *found;
    for (size_t i = w->date == NULL; i < sizeof functions / sizeof functions[0]; i++)
        if (jinja_is(node->text, functions[i]))
            return (jinja_value){.kind = JINJA_FUNCTION, .text = node->text};
    for (size_t i = 0; i < sizeof of_macros / sizeof of_macros[0]; i++)
        if (jinja_is(node->text, of_macros[i]))
            jinja_fail(w, TAMIS_E_UNSUPPORTED, "'%s' is not known", of_macros[i]);
    return (jinja_value){0};
}

static void arguments(jinja_work *w, const jinja_node *node, jinja_list *args, jinja_map *named) {
    for (; node != NULL; node = node->next) {
        if (node->kind == JINJA_N_KEYWORD)
            jinja_put(w, named, node->text, jinja_evaluate(w, node->a));
        else
            jinja_append(w, args, jinja_evaluate(w, node));
    }
}

static jinja_value call(jinja_work *w, const jinja_node *node) {
    jinja_list args = {0};
    jinja_map named = {0};
    jinja_value self = {0};
    const jinja_node *callee = node->a;
    if (callee->kind == JINJA_N_ATTRIBUTE) {
        self = jinja_evaluate(w, callee->a);
        arguments(w, node->b, &args, &named);
        w->line = node->line;
        if (named.count > 0)
            jinja_fail(w, TAMIS_E_UNSUPPORTED, "'%s' with the argument '%s'",
                       jinja_show(callee->text).text, jinja_show(named.pairs[0].key.text).text);
        return jinja_call_method(w, self, callee->text, &args);
    }
    if (callee->kind != JINJA_N_NAME) jinja_fail(w, TAMIS_E_UNSUPPORTED, "a call of a value");
    const jinja_value function = name_value(w, callee);
    arguments(w, node->b, &args, &named);
    w->line = node->line;
    if (function.macro != NULL) return jinja_call_macro(w, function.macro, &args, &named);
    if (jinja_variable(w, callee->text) != NULL)
        jinja_fail(w, TAMIS_E_UNSUPPORTED, "a call of the variable '%s'",
                   jinja_show(callee->text).text);
    return jinja_call_function(w, callee->text, &args, &named);
}

/* ---- Expressions ----------------------------------------------------------------------------- */

static jinja_value make_list(jinja_work *w, const jinja_node *item) {
    jinja_value list = jinja_of_list(w);
    for (; item != NULL; item = item->next)
        jinja_append(w, list.list, jinja_evaluate(w, item));
    return list;
}

static jinja_value make_map(jinja_work *w, const jinja_node *pair) {
    jinja_value map = jinja_of_map(w, JINJA_MAP);
    for (; pair != NULL; pair = pair->next) {
        const jinja_value key = jinja_evaluate(w, pair->a);
        if (key.kind != JINJA_TEXT && key.kind != JINJA_INT) refuse(w, "{}", key, key);
        jinja_put_key(w, map.map, key, jinja_evaluate(w, pair->b));
    }
    return map;
}

/* Those whose operands are not all evaluated. */
static jinja_value choose(jinja_work *w, const jinja_node *node) {
    if (node->kind == JINJA_N_CHOICE) {
        if (jinja_true(jinja_evaluate(w, node->b))) return jinja_evaluate(w, node->a);
        return node->c != NULL ? jinja_evaluate(w, node->c) : (jinja_value){0};
    }
    const jinja_value first = jinja_evaluate(w, node->a);
    return jinja_true(first) == (node->kind == JINJA_N_OR) ? first : jinja_evaluate(w, node->b);
}

static jinja_value apply(jinja_work *w, const jinja_node *node) {
    jinja_list args = {0};
    jinja_map named = {0};
    const jinja_value self = jinja_evaluate(w, node->a);
    arguments(w, node->b, &args, &named);
    w->line = node->line;
    if (node->kind == JINJA_N_FILTER) return jinja_call_filter(w, self, node->text, &args, &named);
    return jinja_of_bool(jinja_call_test(w, self, node->text, &args));
}

static jinja_value negate(jinja_work *w, jinja_value value) {
    if (!jinja_is_number(value)) refuse(w, "-", value, value);
    return jinja_of_int(-value.number);
}

static jinja_value evaluate(jinja_work *w, const jinja_node *node) {
    switch (node->kind) {
    case JINJA_N_VALUE:
        return node->value;
    case JINJA_N_NAME:
        return name_value(w, node);
    case JINJA_N_LIST:
        return make_list(w, node->a);
    case JINJA_N_MAP:
        return make_map(w, node->a);
    case JINJA_N_ATTRIBUTE:
        return attribute(w, jinja_evaluate(w, node->a), node->text);
    case JINJA_N_INDEX: {
        const jinja_value of = jinja_evaluate(w, node->a);
        return element(w, of, jinja_evaluate(w, node->b));
    }
    case JINJA_N_SLICE:
        return slice(w, node);
    case JINJA_N_CALL:
        return call(w, node);
    case JINJA_N_FILTER:
    case JINJA_N_TEST:
        return apply(w, node);
    case JINJA_N_NOT:
        return jinja_of_bool(!jinja_true(jinja_evaluate(w, node->a)));
    case JINJA_N_NEGATE:
        return negate(w, jinja_evaluate(w, node->a));
    case JINJA_N_BINARY: {
        const jinja_value a = jinja_evaluate(w, node->a);
        return binary(w, node->text.at, a, jinja_evaluate(w, node->b));
    }
    default:
        return choose(w, node);
    }
}

/* A chain of operators is a tree as deep as the chain is long. */
jinja_value jinja_evaluate(jinja_work *w, const jinja_node *node) {
    jinja_step(w);
    w->line = node->line;
    jinja_enter(w, JINJA_MOST_DEPTH);
    const jinja_value value = evaluate(w, node);
    w->depth--;
    return value;
}
