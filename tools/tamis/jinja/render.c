/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a template's statements over a conversation. */
#include "jinja/tree.h"

#include <stdlib.h>
#include <string.h>

/* ---- Variables ------------------------------------------------------------------------------- */

/* A variable of the innermost scope. */
static void set(jinja_work *w, jinja_text name, jinja_value value) {
    jinja_put_from(w, &w->variables, w->scope, name, value);
}

/* ---- Statements ------------------------------------------------------------------------------ */

static void run(jinja_work *w, const jinja_node *node);

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
        set(w, target->text, item);
        return;
    }
    const jinja_list *parts = jinja_items(w, item);
    size_t i = 0;
    for (; target != NULL; target = target->next, i++) {
        if (i < parts->count) set(w, target->text, parts->items[i]);
    }
    if (i != parts->count)
        jinja_fail(w, TAMIS_E_FORMAT, "%zu names for %zu values", i, parts->count);
}

/* Begins a scope for what a loop sets; the answer ends it. */
static size_t open_scope(jinja_work *w) {
    const size_t outer = w->scope;
    w->scope = w->variables.count;
    return outer;
}

static void close_scope(jinja_work *w, size_t outer) {
    w->variables.count = w->scope;
    w->scope = outer;
}

/* The items of a loop that pass its condition. */
static jinja_list *loop_items(jinja_work *w, const jinja_node *node) {
    jinja_list *all = jinja_items(w, jinja_evaluate(w, node->b));
    if (node->c == NULL) return all;
    jinja_list *kept = jinja_of_list(w).list;
    for (size_t i = 0; i < all->count; i++) {
        const size_t outer = open_scope(w);
        set_targets(w, node->a, all->items[i]);
        if (jinja_true(jinja_evaluate(w, node->c))) jinja_append(w, kept, all->items[i]);
        close_scope(w, outer);
    }
    return kept;
}

static void run_for(jinja_work *w, const jinja_node *node) {
    const jinja_list *items = loop_items(w, node);
    for (size_t i = 0; i < items->count; i++) {
        const size_t outer = open_scope(w);
        jinja_step(w);
        set(w, jinja_literal("loop"), loop_of(w, items, i));
        set_targets(w, node->a, items->items[i]);
        run(w, node->d);
        close_scope(w, outer);
    }
    if (items->count == 0) run(w, node->e);
}

/* Of attributes, those of a namespace alone: they outlive a loop's turn. */
static void run_set(jinja_work *w, const jinja_node *node) {
    const jinja_value value = jinja_evaluate(w, node->b);
    const jinja_node *target = node->a;
    if (target->kind == JINJA_N_NAME) {
        set(w, target->text, value);
        return;
    }
    const jinja_value of = jinja_evaluate(w, target->a);
    if (of.kind != JINJA_NAMESPACE)
        jinja_fail(w, TAMIS_E_FORMAT, "'%s' of %s is set", jinja_show(target->text).text,
                   jinja_kind_name(of.kind));
    jinja_put(w, of.map, target->text, value);
}

static void run(jinja_work *w, const jinja_node *node) {
    for (; node != NULL; node = node->next) {
        jinja_step(w);
        w->line = node->line;
        if (node->kind == JINJA_N_TEXT)
            jinja_add(w, &w->out, node->text);
        else if (node->kind == JINJA_N_PRINT)
            jinja_add(w, &w->out, jinja_print(w, jinja_evaluate(w, node->a)));
        else if (node->kind == JINJA_N_BRANCH)
            run(w, jinja_true(jinja_evaluate(w, node->a)) ? node->b : node->c);
        else if (node->kind == JINJA_N_FOR)
            run_for(w, node);
        else
            run_set(w, node);
    }
}

/* ---- A run ----------------------------------------------------------------------------------- */

static jinja_value message_of(jinja_work *w, const jinja_message *message) {
    jinja_value map = jinja_of_map(w, JINJA_MAP);
    uint8_t *origins = jinja_take(w, message->bytes + 1);
    memset(origins, message->origin, message->bytes);
    const jinja_text text = {message->text, origins, message->bytes};
    jinja_put(w, map.map, jinja_literal("role"), jinja_of_text(jinja_literal(message->role)));
    jinja_put(w, map.map, jinja_literal("content"), jinja_of_text(text));
    return map;
}

/* The variables that transformers gives to a template; others are undefined. */
static void set_all(jinja_work *w, const jinja_conversation *conversation) {
    jinja_value messages = jinja_of_list(w);
    for (size_t i = 0; i < conversation->count; i++)
        jinja_append(w, messages.list, message_of(w, &conversation->messages[i]));
    set(w, jinja_literal("messages"), messages);
    set(w, jinja_literal("add_generation_prompt"),
        jinja_of_bool(conversation->add_generation_prompt));
    set(w, jinja_literal("bos_token"), jinja_of_text(jinja_literal(conversation->bos)));
    set(w, jinja_literal("eos_token"), jinja_of_text(jinja_literal(conversation->eos)));
    set(w, jinja_literal("tools"), (jinja_value){.kind = JINJA_NONE});
    set(w, jinja_literal("documents"), (jinja_value){.kind = JINJA_NONE});
}

static size_t bytes_of(const char *template, const jinja_conversation *conversation) {
    size_t bytes = strlen(template);
    for (size_t i = 0; i < conversation->count; i++)
        bytes += conversation->messages[i].bytes;
    return bytes;
}

/* The result in memory of its own, a NUL behind the text. */
static tamis_status take_out(const jinja_work *w, jinja_result *out, tamis_error *error) {
    out->bytes = w->out.bytes;
    out->text = malloc(out->bytes + 1);
    out->origins = malloc(out->bytes + 1);
    if (out->text == NULL || out->origins == NULL) {
        jinja_result_free(out);
        *error = (tamis_error){TAMIS_E_NO_MEMORY, "no memory for a template's text"};
        return TAMIS_E_NO_MEMORY;
    }
    if (out->bytes > 0) {
        memcpy(out->text, w->out.at, out->bytes);
        memcpy(out->origins, w->out.origins, out->bytes);
    }
    out->text[out->bytes] = '\0';
    return TAMIS_OK;
}

tamis_status jinja_render(const char *template, const jinja_conversation *conversation,
                          jinja_result *out, tamis_error *error) {
    jinja_work *w = calloc(1, sizeof *w);
    *out = (jinja_result){0};
    if (w == NULL) {
        *error = (tamis_error){TAMIS_E_NO_MEMORY, "no memory for a template"};
        return TAMIS_E_NO_MEMORY;
    }
    jinja_limit(w, bytes_of(template, conversation));
    if (setjmp(w->escape) == 0) {
        const jinja_node *body = jinja_parse(w, jinja_lex(w, template));
        set_all(w, conversation);
        run(w, body);
        w->error.status = TAMIS_OK;
    }
    tamis_status status = w->error.status;
    if (status == TAMIS_OK)
        status = take_out(w, out, error);
    else
        *error = w->error;
    jinja_release(w);
    free(w);
    return status;
}

void jinja_result_free(jinja_result *result) {
    free(result->text);
    free(result->origins);
    *result = (jinja_result){0};
}
