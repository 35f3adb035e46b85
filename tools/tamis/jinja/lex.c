/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts a template into text, and into names, literals and operators between its tags. White space
 * beside tags goes by trim_blocks and lstrip_blocks, and by - and + in the tags. */
#include "jinja/tree.h"

#include <string.h>

typedef struct lexer {
    jinja_work *w;
    const char *text;
    size_t bytes, at;
    bool line_begins; /* what stands at `at` is the first of its line */
    jinja_token *tokens;
    size_t count, room;
} lexer;

static void add(lexer *l, jinja_token_kind kind, jinja_text text, int64_t number) {
    if (l->count == l->room)
        l->tokens = jinja_grow(l->w, l->tokens, l->count, &l->room, sizeof *l->tokens);
    l->tokens[l->count++] = (jinja_token){kind, l->w->line, text, number};
}

/* Line ends become \n, and the last one is left out, as Jinja2 has it. */
static void normalise(lexer *l, const char *template) {
    const size_t bytes = strlen(template);
    char *to = jinja_take(l->w, bytes + 1);
    for (size_t i = 0; i < bytes; i++) {
        const bool crlf = template[i] == '\r' && template[i + 1] == '\n';
        if (!crlf) to[l->bytes++] = template[i] == '\r' ? '\n' : template[i];
    }
    if (l->bytes > 0 && to[l->bytes - 1] == '\n') l->bytes--;
    to[l->bytes] = '\0';
    l->text = to;
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool follows(const lexer *l, const char *word) {
    const size_t bytes = strlen(word);
    return l->bytes - l->at >= bytes && memcmp(l->text + l->at, word, bytes) == 0;
}

static void skip(lexer *l, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        l->w->line += l->text[l->at++] == '\n';
}

/* Text in front of a tag, or of the end. Of blocks and comments, what stands on their line before
 * them is left out if it is white space. */
static void add_text(lexer *l, size_t end, bool own_line, char sign) {
    const jinja_text all = {.at = l->text + l->at, .bytes = end - l->at};
    jinja_text text = sign == '-' ? jinja_strip(l->w, all, NULL, false, true) : all;
    size_t line = all.bytes;
    while (line > 0 && all.at[line - 1] != '\n')
        line--;
    const bool starts = own_line && sign != '+' && sign != '-' && (line > 0 || l->line_begins);
    const jinja_text before = jinja_part(all, line, all.bytes - line);
    if (starts && jinja_strip(l->w, before, NULL, true, false).bytes == 0) text.bytes = line;
    if (text.bytes > 0) add(l, JINJA_T_TEXT, text, 0);
    skip(l, all.bytes);
}

/* Behind a tag's end. */
static void end_tag(lexer *l, bool strip, bool trim) {
    const size_t from = l->at;
    if (trim && !strip && follows(l, "\n")) skip(l, 1);
    const jinja_text rest = {.at = l->text + l->at, .bytes = l->bytes - l->at};
    if (strip) skip(l, rest.bytes - jinja_strip(l->w, rest, NULL, true, false).bytes);
    l->line_begins = l->at > from && l->text[l->at - 1] == '\n';
}

static void lex_comment(lexer *l) {
    const jinja_text rest = {.at = l->text, .bytes = l->bytes};
    const bool signs = l->text[l->at + 2] == '-' || l->text[l->at + 2] == '+';
    const size_t first = l->at + 2 + signs,
                 end = jinja_find(l->w, rest, jinja_literal("#}"), first);
    if (end == SIZE_MAX) jinja_fail(l->w, TAMIS_E_FORMAT, "a comment does not end");
    const char sign = end > first ? l->text[end - 1] : '\0';
    skip(l, end + 2 - l->at);
    end_tag(l, sign == '-', sign != '+');
}

/* What \c stands for in a string. */
static char unescape(lexer *l, char c) {
    static const char names[] = "nrt\\'\"abfv", values[] = "\n\r\t\\'\"\a\b\f\v";
    const char *at = c != '\0' ? strchr(names, c) : NULL;
    if (at == NULL)
        jinja_fail(l->w, TAMIS_E_UNSUPPORTED, "the escape '\\%s' in a string is not known",
                   jinja_show((jinja_text){&c, NULL, 1}).text);
    return values[at - names];
}

static void lex_string(lexer *l) {
    const char quote = l->text[l->at];
    size_t used = 0, at = l->at + 1, end = at;
    while (end < l->bytes && l->text[end] != quote)
        end += l->text[end] == '\\' ? 2 : 1;
    if (end >= l->bytes) jinja_fail(l->w, TAMIS_E_FORMAT, "a string does not end");
    char *to = jinja_take(l->w, end - at);
    while (at < end) {
        if (l->text[at] == '\\')
            to[used++] = unescape(l, l->text[++at]);
        else
            to[used++] = l->text[at];
        at++;
    }
    add(l, JINJA_T_STRING, (jinja_text){.at = to, .bytes = used}, 0);
    skip(l, end + 1 - l->at);
}

static bool in_name(char c) {
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* A name, or a whole number. */
static void lex_word(lexer *l) {
    size_t end = l->at;
    int64_t number = 0;
    while (end < l->bytes && in_name(l->text[end]))
        end++;
    const jinja_text word = {.at = l->text + l->at, .bytes = end - l->at};
    const bool digits = word.at[0] >= '0' && word.at[0] <= '9';
    for (size_t i = 0; digits && i < word.bytes; i++) {
        if (word.bytes > 15 || (word.bytes > 1 && word.at[0] == '0') || word.at[i] < '0' ||
            word.at[i] > '9')
            jinja_fail(l->w, TAMIS_E_UNSUPPORTED, "the number '%s'", jinja_show(word).text);
        number = 10 * number + (word.at[i] - '0');
    }
    skip(l, word.bytes);
    if (digits && l->at + 1 < l->bytes && l->text[l->at] == '.' && l->text[l->at + 1] >= '0' &&
        l->text[l->at + 1] <= '9')
        jinja_fail(l->w, TAMIS_E_UNSUPPORTED, "a number with a point");
    add(l, digits ? JINJA_T_INT : JINJA_T_NAME, word, number);
}

static void lex_operator(lexer *l) {
    static const char *const operators[] = {"==", "!=", "<=", ">=", "//", "**", "+", "-", "*",
                                            "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                            "]",  "{",  "}",  ".",  ",",  ":",  "|"};
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++)
        if (follows(l, operators[i])) {
            add(l, JINJA_T_OPERATOR, jinja_literal(operators[i]), 0);
            skip(l, strlen(operators[i]));
            return;
        }
    jinja_fail(l->w, TAMIS_E_FORMAT, "'%s' in a tag",
               jinja_show((jinja_text){l->text + l->at, NULL, 1}).text);
}

/* A tag's end, which may have a sign, is passed over. A brace that closes a map is none. */
static bool ends_tag(lexer *l, bool block, int braces) {
    const char *end = block ? "%}" : "}}";
    const bool sign = l->text[l->at] == '-' || (block && l->text[l->at] == '+');
    if (braces > 0 || l->bytes - l->at < 2 + (size_t)sign ||
        memcmp(l->text + l->at + sign, end, 2) != 0)
        return false;
    const bool strip = l->text[l->at] == '-', keep = l->text[l->at] == '+';
    add(l, JINJA_T_CLOSE, jinja_literal(end), 0);
    skip(l, 2 + (size_t)sign);
    end_tag(l, strip, block && !keep);
    return true;
}

static void lex_tag(lexer *l, bool block) {
    int braces = 0;
    add(l, block ? JINJA_T_BLOCK : JINJA_T_PRINT, jinja_literal(block ? "{%" : "{{"), 0);
    skip(l, 2);
    if (l->at < l->bytes && (l->text[l->at] == '-' || (block && l->text[l->at] == '+'))) skip(l, 1);
    while (l->at < l->bytes) {
        const char c = l->text[l->at];
        if (is_space(c)) {
            skip(l, 1);
        } else if (ends_tag(l, block, braces)) {
            return;
        } else if (c == '\'' || c == '"') {
            lex_string(l);
        } else if (in_name(c)) {
            lex_word(l);
        } else {
            braces += c == '{' ? 1 : c == '}' ? -1 : 0;
            lex_operator(l);
        }
    }
    jinja_fail(l->w, TAMIS_E_FORMAT, "a tag does not end");
}

/* The next tag; SIZE_MAX: there is none. */
static size_t next_tag(const lexer *l) {
    for (size_t at = l->at; at + 1 < l->bytes; at++)
        if (l->text[at] == '{' && strchr("{%#", l->text[at + 1]) != NULL) return at;
    return SIZE_MAX;
}

jinja_token *jinja_lex(jinja_work *w, const char *template) {
    lexer l = {.w = w, .line_begins = true};
    w->line = 1;
    normalise(&l, template);
    for (size_t tag; (tag = next_tag(&l)) != SIZE_MAX;) {
        const char kind = l.text[tag + 1];
        const char sign = tag + 2 < l.bytes ? l.text[tag + 2] : '\0';
        add_text(&l, tag, kind != '{', sign);
        if (kind == '#')
            lex_comment(&l);
        else
            lex_tag(&l, kind == '%');
    }
    add_text(&l, l.bytes, false, '\0');
    add(&l, JINJA_T_END, jinja_literal("the end"), 0);
    return l.tokens;
}
