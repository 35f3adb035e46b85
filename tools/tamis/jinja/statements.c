/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a template's statements. */
#include "jinja/tree.h"

/* How a statement ends: what follows it runs, or nothing more of the loop's turn, or of the loop. */
typedef enum flow { ON, NEXT_TURN, LOOP_ENDS } flow;

static flow run(jinja_work *w, const jinja_node *node);

/* The variable `loop` of one turn. */
static jinja_value loop_of(jinja_work *w, const jinja_list *items, size_t i) {
    jinja_value loop = jinja_of_map(w, JINJA_LOOP);
    const struct {
        const char *name;
        jinja_value value;
    } all[] = {{"index", jinja_of_int((int64_t)i + 1)},
               {"index0", jinja_of_int((int64_t)i)},
               {"revindex", jinja_of_int((int64_t)(items->count - i))},
               {"revindex0", jinja_of_int((int64_t)(items->count - i - 1))},
               {"first", jinja_of_bool(i == 0)},
               {"last", jinja_of_bool(i + 1 == items->count)},
               {"length", jinja_of_int((int64_t)items->count)},
               {"depth", jinja_of_int(1)}, /* of recursive loops, which are not known */
               {"depth0", jinja_of_int(0)},
               {"previtem", i > 0 ? items->items[i - 1] : (jinja_value){0}},
               {"nextitem", i + 1 < items->count ? items->items[i + 1] : (jinja_value){0}}};
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
        jinja_put(w, loop.map, jinja_literal(all[k].name), all[k].value);
    return loop;
}

static void set_targets(jinja_work *w, const jinja_node *target, jinja_value item) {
    if (target->next == NULL) {
        jinja_set(w, target->text, item);
        return;
    }
    const jinja_list *parts = jinja_items(w, item);
    size_t i = 0;
    for (; target != NULL; target = target->next, i++) {
        if (i < parts->count) jinja_set(w, target->text, parts->items[i]);
    }
    if (i != parts->count)
        jinja_fail(w, TAMIS_E_FORMAT, "%zu names for %zu values", i, parts->count);
}

/* The items of a loop that pass its condition. */
static jinja_list *loop_items(jinja_work *w, const jinja_node *node) {
    jinja_list *all = jinja_items(w, jinja_evaluate(w, node->b));
    if (node->c == NULL) return all;
    jinja_list *kept = jinja_of_list(w).list;
    for (size_t i = 0; i < all->count; i++) {
        const jinja_scope outer = jinja_open_scope(w);
        set_targets(w, node->a, all->items[i]);
        if (jinja_true(jinja_evaluate(w, node->c))) jinja_append(w, kept, all->items[i]);
        jinja_close_scope(w, outer);
    }
    return kept;
}

static flow run_scope(jinja_work *w, const jinja_node *statements) {
    const jinja_scope outer = jinja_open_scope(w);
    const flow how = run(w, statements);
    jinja_close_scope(w, outer);
    return how;
}

/* As in Jinja2, `else` follows unless a turn came to its end, which break and continue skip. */
static flow run_for(jinja_work *w, const jinja_node *node) {
    const jinja_list *items = loop_items(w, node);
    flow turn = ON;
    bool ended = false; /* a turn, by its end */
    for (size_t i = 0; i < items->count && turn != LOOP_ENDS; i++) {
        const jinja_scope outer = jinja_open_scope(w);
        jinja_step(w);
        jinja_set(w, jinja_literal("loop"), loop_of(w, items, i));
        set_targets(w, node->a, items->items[i]);
        turn = run(w, node->d);
        ended |= turn == ON;
        jinja_close_scope(w, outer);
    }
    return ended ? ON : run_scope(w, node->e);
}

/* What statements write, in a scope of their own. */
static jinja_value written(jinja_work *w, const jinja_node *statements) {
    const jinja_builder before = w->out;
    const jinja_scope outer = jinja_open_scope(w);
    w->out = (jinja_builder){0};
    run(w, statements);
    const jinja_text text = jinja_built(&w->out);
    jinja_close_scope(w, outer);
    w->out = before;
    return jinja_of_text(text);
}

/* Of attributes, those of a namespace alone: they outlive a loop's turn. */
static flow assign(jinja_work *w, const jinja_node *target, jinja_value value) {
    if (target->kind == JINJA_N_NAME) {
        jinja_set(w, target->text, value);
        return ON;
    }
    const jinja_value of = jinja_evaluate(w, target->a);
    if (of.kind != JINJA_NAMESPACE)
        jinja_fail(w, TAMIS_E_FORMAT, "'%s' of %s is set", jinja_show(target->text).text,
                   jinja_kind_name(of.kind));
    jinja_put(w, of.map, target->text, value);
    return ON;
}

static flow set_macro(jinja_work *w, const jinja_node *node) {
    jinja_set(w, node->text,
              (jinja_value){.kind = JINJA_FUNCTION, .text = node->text, .macro = node});
    return ON;
}

static flow run_one(jinja_work *w, const jinja_node *node) {
    switch (node->kind) {
    case JINJA_N_TEXT:
        jinja_add(w, &w->out, node->text);
        return ON;
    case JINJA_N_PRINT:
        jinja_add(w, &w->out, jinja_print(w, jinja_evaluate(w, node->a)));
        return ON;
    case JINJA_N_BRANCH:
        return run(w, jinja_true(jinja_evaluate(w, node->a)) ? node->b : node->c);
    case JINJA_N_FOR:
        return run_for(w, node);
    case JINJA_N_SET:
        return assign(w, node->a, jinja_evaluate(w, node->b));
    case JINJA_N_FILL:
        return assign(w, node->a, written(w, node->d));
    case JINJA_N_MACRO:
        return set_macro(w, node);
    case JINJA_N_SCOPE:
        return run_scope(w, node->d);
    default:
        return node->kind == JINJA_N_BREAK ? LOOP_ENDS : NEXT_TURN;
    }
}

static flow run(jinja_work *w, const jinja_node *node) {
    flow how = ON;
    jinja_enter(w, JINJA_MOST_DEPTH);
    for (; node != NULL && how == ON; node = node->next) {
        jinja_step(w);
        w->line = node->line;
        how = run_one(w, node);
    }
    w->depth--;
    return how;
}

void jinja_run(jinja_work *w, const jinja_node *statements) {
    run(w, statements);
}

/* ---- Macros ---------------------------------------------------------------------------------- */

/* Parameters have what is given by their place, by their name, or by the macro. */
static void set_parameters(jinja_work *w, const jinja_node *macro, const jinja_list *args,
                           const jinja_map *named) {
    size_t place = 0, by_name = 0;
    for (const jinja_node *p = macro->a; p != NULL; p = p->next, place++) {
        const jinja_value *given = jinja_get(w, named, p->text);
        jinja_value value = {0};
        by_name += given != NULL && place >= args->count;
        if (place < args->count)
            value = args->items[place];
        else if (given != NULL)
            value = *given;
        else if (p->b != NULL)
            value = jinja_evaluate(w, p->b);
        jinja_set(w, p->text, value);
    }
    if (args->count > place || named->count > by_name)
        jinja_fail(w, TAMIS_E_FORMAT, "the macro '%s' with %zu arguments that it does not have",
                   jinja_show(macro->text).text,
                   (args->count > place ? args->count - place : 0) + named->count - by_name);
}

jinja_value jinja_call_macro(jinja_work *w, const jinja_node *macro, const jinja_list *args,
                             const jinja_map *named) {
    const jinja_scope outer = jinja_open_macro(w);
    set_parameters(w, macro, args, named);
    const jinja_value text = written(w, macro->d);
    jinja_close_scope(w, outer);
    return text;
}
