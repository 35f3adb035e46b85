/* SPDX-License-Identifier: Apache-2.0 */
/* What a template's expressions are made of, and the memory in which all of it lies until the
 * template has ended. Every byte of a text keeps its origin. */
#ifndef JINJA_VALUE_H
#define JINJA_VALUE_H

#include "jinja/jinja.h"

#include <setjmp.h>

typedef enum jinja_kind {
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_TEXT,
    JINJA_LIST,
    JINJA_FUNCTION,
    JINJA_MAP,
    JINJA_NAMESPACE, /* has attributes and is no map, like the next */
    JINJA_LOOP
} jinja_kind;

/* Never changed, so that parts of it can be texts of their own. */
typedef struct jinja_text {
    const char *at;
    const uint8_t *origins; /* NULL: all are the template's */
    size_t bytes;
} jinja_text;

/* A text that grows at its end. */
typedef struct jinja_builder {
    char *at;
    uint8_t *origins;
    size_t bytes, room;
} jinja_builder;

typedef struct jinja_value {
    jinja_kind kind;
    int64_t number;  /* of BOOL and INT */
    jinja_text text; /* of a FUNCTION its name */
    struct jinja_list *list;
    struct jinja_map *map;          /* of MAP, NAMESPACE and LOOP */
    const struct jinja_node *macro; /* of a FUNCTION; NULL: it is no macro */
} jinja_value;

typedef struct jinja_list {
    jinja_value *items;
    size_t count, room;
} jinja_list;

typedef struct jinja_pair {
    jinja_value key; /* a TEXT or INT */
    jinja_value value;
} jinja_pair;

typedef struct jinja_map {
    jinja_pair *pairs;
    size_t count, room;
} jinja_map;

/* Where variables lie that can be seen. */
typedef struct jinja_scope {
    size_t first; /* of the innermost scope */
    size_t macro; /* the first of the innermost macro's call; 0: none runs */
    size_t top;   /* how many the template itself has, where an inner scope is open */
} jinja_scope;

/* One run of a template. */
typedef struct jinja_work {
    jmp_buf escape; /* where errors go */
    tamis_error error;
    unsigned line; /* of the template, where it is */
    unsigned depth;
    uint64_t steps, most_steps;
    struct jinja_block *blocks; /* memory */
    size_t taken, most_bytes;
    jinja_map variables; /* the innermost last */
    jinja_scope scope;
    const struct tm *date; /* NULL: none is stated */
    jinja_builder out;
} jinja_work;

/* Ends the run. */
_Noreturn void jinja_fail(jinja_work *w, tamis_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Sets how much a run with so many bytes of messages may take. */
void jinja_limit(jinja_work *w, size_t bytes);
/* Counts a step, and ends a run that has too many. */
void jinja_step(jinja_work *w);
/* The same for looking at `count` bytes or entries, 16 of which are a step. */
void jinja_look(jinja_work *w, size_t count);
/* Counts a level of what calls itself, and ends a run that has more than `most`; whoever leaves the
 * level takes one from w->depth. */
void jinja_enter(jinja_work *w, unsigned most);
/* Levels of expressions and of values. */
#define JINJA_MOST_DEPTH 500u
/* Zeroed, until the run ends. */
void *jinja_take(jinja_work *w, size_t bytes);
/* Memory for more than twice as many entries of `each` bytes, with those that there are. */
void *jinja_grow(jinja_work *w, const void *from, size_t count, size_t *room, size_t each);
void jinja_release(jinja_work *w);

/* A text in quotes for messages: made printable, and cut. */
typedef struct jinja_shown {
    char text[68];
} jinja_shown;
jinja_shown jinja_show(jinja_text text);

jinja_text jinja_literal(const char *text);
bool jinja_is(jinja_text text, const char *word);
bool jinja_same_text(jinja_text a, jinja_text b);
jinja_text jinja_part(jinja_text text, size_t first, size_t bytes);
jinja_text jinja_join(jinja_work *w, jinja_text a, jinja_text b);
void jinja_add(jinja_work *w, jinja_builder *to, jinja_text text);
jinja_text jinja_built(const jinja_builder *builder);
/* The place of `part` in `text` from `first` on; SIZE_MAX: it is not there. */
size_t jinja_find(jinja_work *w, jinja_text text, jinja_text part, size_t first);
/* Without white space, or without the characters in `set` unless it is NULL, as Python's strip.
 * The steps are counted unless `w` is NULL. */
jinja_text jinja_strip(jinja_work *w, jinja_text text, const jinja_text *set, bool front,
                       bool back);
/* Bytes of the character at `at`, which must be inside. */
size_t jinja_character(jinja_text text, size_t at);
/* Where the last one begins; the text must not be empty. */
size_t jinja_last_character(jinja_text text);
size_t jinja_characters(jinja_text text);

jinja_value jinja_of_text(jinja_text text);
jinja_value jinja_of_int(int64_t number);
jinja_value jinja_of_bool(bool is);
jinja_value jinja_of_list(jinja_work *w);
/* A MAP, NAMESPACE or LOOP. */
jinja_value jinja_of_map(jinja_work *w, jinja_kind kind);
void jinja_append(jinja_work *w, jinja_list *list, jinja_value item);
void jinja_put(jinja_work *w, jinja_map *map, jinja_text key, jinja_value value);
void jinja_put_key(jinja_work *w, jinja_map *map, jinja_value key, jinja_value value);
/* NULL: none. */
jinja_value *jinja_get(jinja_work *w, const jinja_map *map, jinja_text key);
jinja_value *jinja_get_key(jinja_work *w, const jinja_map *map, jinja_value key);

/* Sets a variable of the innermost scope. */
void jinja_set(jinja_work *w, jinja_text name, jinja_value value);
/* The innermost variable of that name that can be seen; NULL: none. */
const jinja_value *jinja_variable(jinja_work *w, jinja_text name);
/* Begins a scope for what a loop or a block sets; the answer closes it. */
jinja_scope jinja_open_scope(jinja_work *w);
/* One that sees the template's own variables alone beside those set in it. */
jinja_scope jinja_open_macro(jinja_work *w);
void jinja_close_scope(jinja_work *w, jinja_scope outer);

const char *jinja_kind_name(jinja_kind kind);
bool jinja_is_number(jinja_value value);
bool jinja_true(jinja_value value);
bool jinja_equal(jinja_work *w, jinja_value a, jinja_value b);
/* What printing makes of it. */
jinja_text jinja_print(jinja_work *w, jinja_value value);

#endif
