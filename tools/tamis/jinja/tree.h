/* SPDX-License-Identifier: Apache-2.0 */
/* A template as tokens, and as a tree of statements and expressions. */
#ifndef JINJA_TREE_H
#define JINJA_TREE_H

#include "jinja/value.h"

typedef enum jinja_token_kind {
    JINJA_T_TEXT,
    JINJA_T_PRINT, /* {{ */
    JINJA_T_BLOCK, /* {% */
    JINJA_T_CLOSE, /* either's end */
    JINJA_T_NAME,
    JINJA_T_STRING,
    JINJA_T_INT,
    JINJA_T_OPERATOR,
    JINJA_T_END
} jinja_token_kind;

typedef struct jinja_token {
    jinja_token_kind kind;
    unsigned line;
    jinja_text text;
    int64_t number;
} jinja_token;

/* The last token is an END. */
jinja_token *jinja_lex(jinja_work *w, const char *template);

typedef enum jinja_node_kind {
    /* statements */
    JINJA_N_TEXT,
    JINJA_N_PRINT,  /* a */
    JINJA_N_BRANCH, /* if a: b, else c */
    JINJA_N_FOR,    /* targets a in b if c: d, else e */
    JINJA_N_SET,    /* a = b */
    JINJA_N_FILL,   /* a = what d writes */
    JINJA_N_MACRO,  /* text, with parameters a of a default b or none: what d writes */
    JINJA_N_SCOPE,  /* d, whose variables end with it */
    JINJA_N_BREAK,
    JINJA_N_CONTINUE,
    /* expressions */
    JINJA_N_VALUE,
    JINJA_N_NAME,
    JINJA_N_LIST,      /* items a */
    JINJA_N_MAP,       /* pairs a, of key a and value b */
    JINJA_N_ATTRIBUTE, /* a.text */
    JINJA_N_INDEX,     /* a[b] */
    JINJA_N_SLICE,     /* a[b:c:d] */
    JINJA_N_CALL,      /* a(b) */
    JINJA_N_KEYWORD,   /* of a call: text=a */
    JINJA_N_FILTER,    /* a | text(b) */
    JINJA_N_TEST,      /* a is text(b) */
    JINJA_N_NOT,
    JINJA_N_NEGATE,
    JINJA_N_BINARY, /* a text b */
    JINJA_N_AND,
    JINJA_N_OR,
    JINJA_N_CHOICE /* a if b else c */
} jinja_node_kind;

typedef struct jinja_node {
    jinja_node_kind kind;
    unsigned line;
    jinja_text text;
    jinja_value value;
    struct jinja_node *a, *b, *c, *d, *e;
    struct jinja_node *next; /* of statements, items and arguments */
} jinja_node;

jinja_node *jinja_parse(jinja_work *w, const jinja_token *tokens);

/* The value of an expression. */
jinja_value jinja_evaluate(jinja_work *w, const jinja_node *node);
void jinja_run(jinja_work *w, const jinja_node *statements);
jinja_value jinja_call_macro(jinja_work *w, const jinja_node *macro, const jinja_list *args,
                             const jinja_map *named);

/* What is called by its name. Arguments: a list, and a map of those with names. */
jinja_value jinja_call_function(jinja_work *w, jinja_text name, const jinja_list *args,
                                const jinja_map *named);
jinja_value jinja_call_method(jinja_work *w, jinja_value self, jinja_text name,
                              const jinja_list *args);
jinja_value jinja_call_filter(jinja_work *w, jinja_value self, jinja_text name,
                              const jinja_list *args, const jinja_map *named);
bool jinja_call_test(jinja_work *w, jinja_value self, jinja_text name, const jinja_list *args);
/* As json.dumps has it, without escapes of what is not ASCII. */
jinja_text jinja_json(jinja_work *w, jinja_value value);
/* Whether `part in whole`. */
bool jinja_contains(jinja_work *w, jinja_value whole, jinja_value part);
/* Below 0, 0 or above 0, as numbers or texts are ordered. `what` asks it. */
int64_t jinja_order(jinja_work *w, const char *what, jinja_value a, jinja_value b);
/* The items that a loop has. */
jinja_list *jinja_items(jinja_work *w, jinja_value value);

#endif
