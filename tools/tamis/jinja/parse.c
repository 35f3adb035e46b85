/* SPDX-License-Identifier: Apache-2.0 */
/* From a template's tokens to its tree. Precedence is Jinja2's: filters and tests bind to the
 * operand in front of them, closer than any operator of two. */
#include "jinja/tree.h"

#include <string.h>

#define MOST_DEPTH 100u

typedef struct parser {
    jinja_work *w;
    const jinja_token *at;
    unsigned loops;  /* around a statement, inside its macro or block */
    unsigned scopes; /* around it in all */
} parser;

static jinja_node *parse_expression(parser *p);
static jinja_node *parse_unary(parser *p);
static jinja_node *parse_body(parser *p);

/* ---- Tokens ---------------------------------------------------------------------------------- */

static bool is_operator(const parser *p, const char *text) {
    return p->at->kind == JINJA_T_OPERATOR && jinja_is(p->at->text, text);
}

static bool is_word(const parser *p, const char *text) {
    return p->at->kind == JINJA_T_NAME && jinja_is(p->at->text, text);
}

static bool take_operator(parser *p, const char *text) {
    const bool is = is_operator(p, text);
    p->at += is;
    return is;
}

static bool take_word(parser *p, const char *text) {
    const bool is = is_word(p, text);
    p->at += is;
    return is;
}

static _Noreturn void unexpected(parser *p, const char *wanted) {
    p->w->line = p->at->line;
    jinja_fail(p->w, TAMIS_E_UNSUPPORTED, "'%s' stands where %s is expected",
               jinja_show(p->at->text).text, wanted);
}

static void need_operator(parser *p, const char *text) {
    if (!take_operator(p, text)) unexpected(p, text);
}

static jinja_text need_name(parser *p) {
    if (p->at->kind != JINJA_T_NAME) unexpected(p, "a name");
    return p->at++->text;
}

static void need_close(parser *p) {
    if (p->at->kind != JINJA_T_CLOSE) unexpected(p, "the tag's end");
    p->at++;
}

static jinja_node *make(parser *p, jinja_node_kind kind, jinja_node *a, jinja_node *b) {
    jinja_node *node = jinja_take(p->w, sizeof *node);
    jinja_step(p->w);
    node->kind = kind;
    node->line = p->at->line;
    node->a = a;
    node->b = b;
    return node;
}

static void enter(parser *p) {
    p->w->line = p->at->line;
    jinja_enter(p->w, MOST_DEPTH);
}

/* ---- Operands -------------------------------------------------------------------------------- */

/* Items up to `end`, separated by commas, of which one may stand behind the last. */
static jinja_node *parse_items(parser *p, const char *end, bool pairs) {
    jinja_node *first = NULL, **last = &first;
    while (!take_operator(p, end)) {
        jinja_node *item = parse_expression(p);
        if (pairs) {
            need_operator(p, ":");
            item = make(p, JINJA_N_VALUE, item, parse_expression(p));
        }
        *last = item;
        last = &item->next;
        if (!is_operator(p, end)) need_operator(p, ",");
    }
    return first;
}

static jinja_node *parse_arguments(parser *p) {
    jinja_node *first = NULL, **last = &first;
    need_operator(p, "(");
    while (!take_operator(p, ")")) {
        const bool named = p->at->kind == JINJA_T_NAME && p->at[1].kind == JINJA_T_OPERATOR &&
                           jinja_is(p->at[1].text, "=");
        const jinja_text name = p->at->text;
        if (named) p->at += 2;
        jinja_node *item = parse_expression(p);
        if (named) {
            item = make(p, JINJA_N_KEYWORD, item, NULL);
            item->text = name;
        }
        *last = item;
        last = &item->next;
        if (!is_operator(p, ")")) need_operator(p, ",");
    }
    return first;
}

static jinja_node *value_node(parser *p, jinja_value value) {
    jinja_node *node = make(p, JINJA_N_VALUE, NULL, NULL);
    node->value = value;
    return node;
}

/* Strings that stand beside each other are one. */
static jinja_node *parse_strings(parser *p) {
    jinja_text text = p->at++->text;
    while (p->at->kind == JINJA_T_STRING)
        text = jinja_join(p->w, text, p->at++->text);
    return value_node(p, jinja_of_text(text));
}

static jinja_node *parse_word(parser *p) {
    static const char *const words[] = {"true", "True", "false", "False", "none", "None"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (take_word(p, words[i]))
            return value_node(p, i < 4 ? jinja_of_bool(i < 2) : (jinja_value){.kind = JINJA_NONE});
    jinja_node *node = make(p, JINJA_N_NAME, NULL, NULL);
    node->text = need_name(p);
    return node;
}

static jinja_node *parse_primary(parser *p) {
    if (p->at->kind == JINJA_T_STRING) return parse_strings(p);
    if (p->at->kind == JINJA_T_INT) return value_node(p, jinja_of_int(p->at++->number));
    if (take_operator(p, "[")) return make(p, JINJA_N_LIST, parse_items(p, "]", false), NULL);
    if (take_operator(p, "{")) return make(p, JINJA_N_MAP, parse_items(p, "}", true), NULL);
    if (!take_operator(p, "(")) return parse_word(p);
    jinja_node *node = parse_expression(p);
    if (!is_operator(p, ",")) {
        need_operator(p, ")");
        return node;
    }
    p->at++;
    node->next = parse_items(p, ")", false);
    return make(p, JINJA_N_LIST, node, NULL);
}

/* a[b], a[b:c], a[b:c:d], of which each part of a slice may be missing. */
static jinja_node *parse_index(parser *p, jinja_node *of) {
    jinja_node *parts[3] = {NULL};
    int colons = 0;
    while (!take_operator(p, "]")) {
        if (take_operator(p, ":")) {
            if (++colons > 2) unexpected(p, "]");
        } else if (parts[colons] == NULL) {
            parts[colons] = parse_expression(p);
        } else {
            unexpected(p, "]");
        }
    }
    jinja_node *node = make(p, colons > 0 ? JINJA_N_SLICE : JINJA_N_INDEX, of, parts[0]);
    node->c = parts[1];
    node->d = parts[2];
    if (colons == 0 && parts[0] == NULL) unexpected(p, "an index");
    return node;
}

static jinja_node *parse_postfix(parser *p, jinja_node *node) {
    for (;;) {
        if (is_operator(p, "(")) {
            node = make(p, JINJA_N_CALL, node, NULL);
            node->b = parse_arguments(p);
        } else if (take_operator(p, "[")) {
            node = parse_index(p, node);
        } else if (take_operator(p, ".")) {
            node = make(p, JINJA_N_ATTRIBUTE, node, NULL);
            node->text = need_name(p);
        } else {
            return node;
        }
    }
}

/* Whether a test's argument follows without parentheses. */
static bool test_argument_follows(const parser *p) {
    if (is_word(p, "else") || is_word(p, "or") || is_word(p, "and") || is_word(p, "if") ||
        is_word(p, "is") || is_word(p, "in") || is_word(p, "not"))
        return false;
    return p->at->kind == JINJA_T_NAME || p->at->kind == JINJA_T_STRING ||
           p->at->kind == JINJA_T_INT || is_operator(p, "[") || is_operator(p, "{");
}

static jinja_node *parse_test(parser *p, jinja_node *of) {
    const bool negated = take_word(p, "not");
    jinja_node *node = make(p, JINJA_N_TEST, of, NULL);
    node->text = need_name(p);
    if (is_operator(p, "("))
        node->b = parse_arguments(p);
    else if (test_argument_follows(p))
        node->b = parse_postfix(p, parse_primary(p));
    if (is_word(p, "is")) unexpected(p, "one test");
    return negated ? make(p, JINJA_N_NOT, node, NULL) : node;
}

static jinja_node *parse_filters(parser *p, jinja_node *node) {
    for (;;) {
        if (take_operator(p, "|")) {
            node = make(p, JINJA_N_FILTER, node, NULL);
            node->text = need_name(p);
            if (is_operator(p, "(")) node->b = parse_arguments(p);
        } else if (take_word(p, "is")) {
            node = parse_test(p, node);
        } else {
            return node;
        }
    }
}

/* ---- Operators ------------------------------------------------------------------------------- */

/* A sign binds closer than a filter. */
static jinja_node *parse_signed(parser *p) {
    enter(p);
    jinja_node *node;
    if (take_operator(p, "-"))
        node = make(p, JINJA_N_NEGATE, parse_signed(p), NULL);
    else
        node = parse_postfix(p, parse_primary(p));
    p->w->depth--;
    return node;
}

static jinja_node *parse_unary(parser *p) {
    jinja_node *node = parse_filters(p, parse_signed(p));
    if (is_operator(p, "**")) unexpected(p, "another operator");
    return node;
}

/* Operators of one precedence, from the left. */
static jinja_node *parse_binary(parser *p, const char *const *operators,
                                jinja_node *(*operand)(parser *)) {
    jinja_node *node = operand(p);
    for (size_t i = 0; operators[i] != NULL;) {
        if (!take_operator(p, operators[i])) {
            i++;
            continue;
        }
        jinja_node *right = operand(p);
        node = make(p, JINJA_N_BINARY, node, right);
        node->text = jinja_literal(operators[i]);
        i = 0;
    }
    return node;
}

static jinja_node *parse_product(parser *p) {
    return parse_binary(p, (const char *const[]){"*", "/", "//", "%", NULL}, parse_unary);
}

static jinja_node *parse_concat(parser *p) {
    return parse_binary(p, (const char *const[]){"~", NULL}, parse_product);
}

static jinja_node *parse_sum(parser *p) {
    return parse_binary(p, (const char *const[]){"+", "-", NULL}, parse_concat);
}

/* The comparison that stands here, which is passed over; NULL: none. */
static const char *take_comparison(parser *p) {
    static const char *const all[] = {"==", "!=", "<=", ">=", "<", ">"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (take_operator(p, all[i])) return all[i];
    if (take_word(p, "in")) return "in";
    const bool not_in =
        is_word(p, "not") && p->at[1].kind == JINJA_T_NAME && jinja_is(p->at[1].text, "in");
    p->at += not_in ? 2 : 0;
    return not_in ? "not in" : NULL;
}

static jinja_node *parse_comparison(parser *p) {
    jinja_node *left = parse_sum(p);
    const char *operator= take_comparison(p);
    if (operator== NULL) return left;
    jinja_node *node = make(p, JINJA_N_BINARY, left, parse_sum(p));
    node->text = jinja_literal(operator);
    if (take_comparison(p) != NULL) unexpected(p, "one comparison");
    return node;
}

static jinja_node *parse_not(parser *p) {
    if (!take_word(p, "not")) return parse_comparison(p);
    enter(p);
    jinja_node *node = make(p, JINJA_N_NOT, parse_not(p), NULL);
    p->w->depth--;
    return node;
}

static jinja_node *parse_and(parser *p) {
    jinja_node *node = parse_not(p);
    while (take_word(p, "and"))
        node = make(p, JINJA_N_AND, node, parse_not(p));
    return node;
}

static jinja_node *parse_or(parser *p) {
    jinja_node *node = parse_and(p);
    while (take_word(p, "or"))
        node = make(p, JINJA_N_OR, node, parse_and(p));
    return node;
}

static jinja_node *parse_expression(parser *p) {
    enter(p);
    jinja_node *node = parse_or(p);
    while (take_word(p, "if")) {
        node = make(p, JINJA_N_CHOICE, node, parse_or(p));
        if (take_word(p, "else")) node->c = parse_expression(p);
    }
    p->w->depth--;
    return node;
}

/* ---- Statements ------------------------------------------------------------------------------ */

/* Whether a tag with this word stands here. */
static bool is_tag(const parser *p, const char *word) {
    return p->at->kind == JINJA_T_BLOCK && p->at[1].kind == JINJA_T_NAME &&
           jinja_is(p->at[1].text, word);
}

static bool take_tag(parser *p, const char *word) {
    const bool is = is_tag(p, word);
    p->at += is ? 2 : 0;
    return is;
}

static void need_tag(parser *p, const char *word) {
    if (!take_tag(p, word)) unexpected(p, word);
    need_close(p);
}

/* Behind `if` or `elif`. */
static jinja_node *parse_branch(parser *p) {
    enter(p);
    jinja_node *node = make(p, JINJA_N_BRANCH, parse_expression(p), NULL);
    need_close(p);
    node->b = parse_body(p);
    if (take_tag(p, "elif")) {
        node->c = parse_branch(p);
    } else {
        if (take_tag(p, "else")) {
            need_close(p);
            node->c = parse_body(p);
        }
        need_tag(p, "endif");
    }
    p->w->depth--;
    return node;
}

/* Names that a loop sets. */
static jinja_node *parse_targets(parser *p) {
    jinja_node *first = NULL, **last = &first;
    do {
        if (is_word(p, "loop")) unexpected(p, "another name");
        *last = make(p, JINJA_N_NAME, NULL, NULL);
        (*last)->text = need_name(p);
        last = &(*last)->next;
    } while (take_operator(p, ","));
    return first;
}

static jinja_node *parse_for(parser *p) {
    jinja_node *targets = parse_targets(p);
    if (!take_word(p, "in")) unexpected(p, "in");
    jinja_node *node = make(p, JINJA_N_FOR, targets, parse_or(p));
    if (take_word(p, "if")) node->c = parse_expression(p);
    need_close(p);
    p->loops++;
    p->scopes++;
    node->d = parse_body(p);
    p->loops--;
    if (take_tag(p, "else")) {
        need_close(p);
        node->e = parse_body(p);
    }
    p->scopes--;
    need_tag(p, "endfor");
    return node;
}

/* Of a block whose text or scope is its own, which no loop around it ends in. */
static jinja_node *parse_inner(parser *p, const char *end) {
    const unsigned loops = p->loops;
    p->loops = 0;
    p->scopes++;
    jinja_node *body = parse_body(p);
    p->loops = loops;
    p->scopes--;
    need_tag(p, end);
    return body;
}

static jinja_node *parse_loop_end(parser *p, jinja_node_kind kind) {
    if (p->loops == 0) unexpected(p, "a loop around it");
    need_close(p);
    return make(p, kind, NULL, NULL);
}

static jinja_node *parse_break(parser *p) {
    return parse_loop_end(p, JINJA_N_BREAK);
}

static jinja_node *parse_continue(parser *p) {
    return parse_loop_end(p, JINJA_N_CONTINUE);
}

static jinja_node *parse_set(parser *p) {
    jinja_node *target = make(p, JINJA_N_NAME, NULL, NULL);
    target->text = need_name(p);
    if (take_operator(p, ".")) {
        target = make(p, JINJA_N_ATTRIBUTE, target, NULL);
        target->text = need_name(p);
    }
    const bool fill = p->at->kind == JINJA_T_CLOSE;
    if (!fill) need_operator(p, "=");
    jinja_node *node = make(p, fill ? JINJA_N_FILL : JINJA_N_SET, target, NULL);
    if (!fill) node->b = parse_expression(p);
    need_close(p);
    if (fill) node->d = parse_inner(p, "endset");
    return node;
}

static jinja_node *parse_parameters(parser *p) {
    jinja_node *first = NULL, **last = &first;
    need_operator(p, "(");
    while (!take_operator(p, ")")) {
        *last = make(p, JINJA_N_NAME, NULL, NULL);
        (*last)->text = need_name(p);
        if (take_operator(p, "=")) (*last)->b = parse_expression(p);
        last = &(*last)->next;
        if (!is_operator(p, ")")) need_operator(p, ",");
    }
    return first;
}

/* A macro sees the variables of what it stands in, which here is the template alone. */
static jinja_node *parse_macro(parser *p) {
    if (p->scopes > 0)
        unexpected(p, "no macro: here is a loop, a block or a macro, and one inside");
    jinja_node *node = make(p, JINJA_N_MACRO, NULL, NULL);
    node->text = need_name(p);
    node->a = parse_parameters(p);
    need_close(p);
    node->d = parse_inner(p, "endmacro");
    return node;
}

/* What marks the answers in training. */
static jinja_node *parse_generation(parser *p) {
    need_close(p);
    jinja_node *node = make(p, JINJA_N_SCOPE, NULL, NULL);
    node->d = parse_inner(p, "endgeneration");
    return node;
}

/* A tag's statement; *is: it is one, and none that ends a body. */
static jinja_node *parse_tag(parser *p, bool *is) {
    static const struct {
        const char *word;
        jinja_node *(*parse)(parser *);
    } tags[] = {{"if", parse_branch},
                {"for", parse_for},
                {"set", parse_set},
                {"macro", parse_macro},
                {"break", parse_break},
                {"continue", parse_continue},
                {"generation", parse_generation}};
    static const char *const ends[] = {"elif",   "else",     "endif",        "endfor",
                                       "endset", "endmacro", "endgeneration"};
    *is = true;
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++)
        if (take_tag(p, tags[i].word)) return tags[i].parse(p);
    *is = false;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (is_tag(p, ends[i])) return NULL;
    p->w->line = p->at->line;
    jinja_fail(p->w, TAMIS_E_UNSUPPORTED, "the statement '%s' is not known",
               jinja_show(p->at[1].text).text);
}

static jinja_node *parse_statement(parser *p, bool *is) {
    *is = true;
    if (p->at->kind == JINJA_T_TEXT) {
        jinja_node *node = make(p, JINJA_N_TEXT, NULL, NULL);
        node->text = p->at++->text;
        return node;
    }
    if (p->at->kind == JINJA_T_BLOCK) return parse_tag(p, is);
    *is = p->at->kind == JINJA_T_PRINT;
    if (!*is) return NULL;
    p->at++;
    jinja_node *node = make(p, JINJA_N_PRINT, parse_expression(p), NULL);
    need_close(p);
    return node;
}

static jinja_node *parse_body(parser *p) {
    jinja_node *first = NULL, **last = &first;
    enter(p);
    for (bool is = true; is;) {
        *last = parse_statement(p, &is);
        while (*last != NULL)
            last = &(*last)->next;
    }
    p->w->depth--;
    return first;
}

jinja_node *jinja_parse(jinja_work *w, const jinja_token *tokens) {
    parser p = {.w = w, .at = tokens};
    jinja_node *body = parse_body(&p);
    if (p.at->kind != JINJA_T_END) unexpected(&p, "a statement");
    return body;
}
