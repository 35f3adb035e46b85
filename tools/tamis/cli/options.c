/* SPDX-License-Identifier: Apache-2.0 */
/* The option parser: finds flags in their table and checks their values. */
#include "cli/options.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <tamis/policy.h>

/* The value under inspection, with what a message must name. */
typedef struct value {
    const cli_command *command;
    const cli_option *option;
    const char *text; /* one element of a list */
    size_t length;
} value;

static bool refuse(const value *v, const char *why) {
    fprintf(stderr, "%s: %s %.*s: %s\n", v->command->name, v->option->name, (int)v->length, v->text,
            why);
    return false;
}

static bool parse_number(const value *v, uint32_t *out) {
    char why[64];
    uint64_t number = 0;
    for (size_t i = 0; i < v->length; i++) {
        if (v->text[i] < '0' || v->text[i] > '9') return refuse(v, "not a whole number");
        if (number <= UINT32_MAX) number = number * 10 + (uint64_t)(v->text[i] - '0');
    }
    if (v->length == 0) return refuse(v, "a number is missing");
    if (number < v->option->min) {
        snprintf(why, sizeof(why), "must be at least %u", v->option->min);
        return refuse(v, why);
    }
    if (number > v->option->max) {
        snprintf(why, sizeof(why), "must be at most %u", v->option->max);
        return refuse(v, why);
    }
    *out = (uint32_t)number;
    return true;
}

/* The index of a word among those that the option takes. */
static bool parse_word(const value *v, uint32_t *out) {
    char why[256] = "must be one of";
    const char *word;
    for (uint32_t i = 0; (word = cli_option_word(v->option, i)) != NULL; i++) {
        if (strlen(word) == v->length && memcmp(word, v->text, v->length) == 0) {
            *out = i;
            return true;
        }
        size_t used = strlen(why);
        snprintf(why + used, sizeof(why) - used, "%s %s", i > 0 ? "," : "", word);
    }
    return refuse(v, why);
}

static bool parse_selection(const value *v, uint32_t *out) {
    char name[64]; /* longer than any name that is known, so that a cut one is unknown */
    tamis_selection selection;
    tamis_error error = {0};
    snprintf(name, sizeof(name), "%.*s", (int)v->length, v->text);
    if (tamis_selection_preset(name, &selection, &error) != TAMIS_OK) return refuse(v, error.text);
    for (*out = 0; strcmp(name, tamis_selection_preset_name(*out)) != 0;)
        ++*out;
    return true;
}

/* A word of `v` up to `end`. */
static size_t word_length(const value *v, size_t from, char end) {
    size_t length = 0;
    while (from + length < v->length && v->text[from + length] != end)
        length++;
    return length;
}

/* "kind", or "kind+option+option". */
static bool parse_eviction(const value *v, uint32_t *out) {
    char name[64]; /* as above */
    tamis_eviction_kind kind;
    tamis_error error = {0};
    uint32_t options = 0, bit = 0;
    size_t used = word_length(v, 0, '+');
    snprintf(name, sizeof(name), "%.*s", (int)used, v->text);
    if (tamis_eviction_parse(name, &kind, &error) != TAMIS_OK) return refuse(v, error.text);
    if (kind == TAMIS_EVICT_CALLER) return refuse(v, "takes its scores from a program");
    while (used < v->length) {
        const cli_option words = {.name = v->option->name, .kind = CLI_OPTIONS};
        const value word = {v->command, &words, v->text + used + 1, word_length(v, used + 1, '+')};
        if (!parse_word(&word, &bit)) return false;
        options |= 1u << bit;
        used += 1 + word.length;
    }
    *out = CLI_EVICTION_OF(kind, options);
    return true;
}

static bool parse_listed_eviction(const value *v, uint32_t *out) {
    if (v->length != 3 || memcmp(v->text, "all", 3) != 0) return parse_eviction(v, out);
    *out = CLI_EVICTION_ALL;
    return true;
}

static bool parse_list(value v, const char *text, bool (*parse)(const value *, uint32_t *),
                       cli_list *out) {
    cli_list list = {0};
    for (const char *from = text;; from += v.length + 1) {
        v.text = from;
        v.length = strcspn(from, ",");
        if (list.count == CLI_LIST_MAX) return refuse(&v, "too many values in the list");
        if (!parse(&v, &list.values[list.count])) return false;
        list.count++;
        if (from[v.length] == '\0') break;
    }
    *out = list;
    return true;
}

static bool add_text(const value *v, cli_texts *out) {
    if (v->length == 0) return refuse(v, "must not be empty");
    if (out->count == CLI_LIST_MAX) return refuse(v, "is given too often");
    out->values[out->count++] = v->text;
    return true;
}

static bool parse_value(const cli_command *command, const cli_option *option, const char *text,
                        void *flags) {
    const value v = {command, option, text, strlen(text)};
    void *place = (char *)flags + option->place;
    switch (option->kind) {
    case CLI_TEXT:
    case CLI_FILE:
        if (v.length == 0) return refuse(&v, "must not be empty");
        *(const char **)place = text;
        return true;
    case CLI_TEXTS:
        return add_text(&v, place);
    case CLI_NUMBER:
        return parse_number(&v, place);
    case CLI_NUMBERS:
        return parse_list(v, text, parse_number, place);
    case CLI_CHOICE:
        return parse_word(&v, place);
    case CLI_CHOICES:
    case CLI_OPTIONS:
        return parse_list(v, text, parse_word, place);
    case CLI_SELECTION:
        return parse_selection(&v, place);
    case CLI_SELECTIONS:
        return parse_list(v, text, parse_selection, place);
    case CLI_EVICTION:
        return parse_eviction(&v, place);
    case CLI_EVICTIONS:
        return parse_list(v, text, parse_listed_eviction, place);
    case CLI_FLAG:
        if (text[0] != '\0') return refuse(&v, "takes no value");
        *(uint32_t *)place = 1;
        return true;
    }
    return false;
}

static const cli_option *find_option(const cli_command *command, const char *name, size_t length) {
    for (size_t i = 0; i < command->n_options; i++) {
        const char *known = command->options[i].name;
        if (strlen(known) == length && memcmp(known, name, length) == 0)
            return &command->options[i];
    }
    return NULL;
}

int cli_parse(const cli_command *command, void *flags, int argc, char *const *argv) {
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            cli_print_help(command);
            return CLI_OK;
        }
        size_t length = strcspn(argv[i], "=");
        const cli_option *option = find_option(command, argv[i], length);
        if (option == NULL) {
            fprintf(stderr, "%s: %s: unknown %s (see %s --help)\n", command->name, argv[i],
                    argv[i][0] == '-' ? "option" : "argument", command->name);
            return CLI_USAGE;
        }
        const char *text = argv[i][length] == '=' ? argv[i] + length + 1 : NULL;
        if (text == NULL && option->kind == CLI_FLAG) text = "";
        if (text == NULL && ++i < argc) text = argv[i];
        if (text == NULL) {
            fprintf(stderr, "%s: %s: needs a value (%s)\n", command->name, option->name,
                    option->value);
            return CLI_USAGE;
        }
        if (!parse_value(command, option, text, flags)) return CLI_USAGE;
    }
    return -1;
}
