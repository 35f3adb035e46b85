/* SPDX-License-Identifier: Apache-2.0 */
/* The option parser: finds flags in their table and checks their values. */
#include "cli/options.h"
#include "cli/policies.h"
#include "cli/similar.h"
#include "cli/stdin.h"
#include "cli/utf8.h"

#include <stdio.h>
#include <stdlib.h>
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

/* The same of a word, with the one that may have been meant. */
static bool refuse_word(const value *v, const char *why, const cli_similar *meant) {
    char text[768];
    snprintf(text, sizeof(text), "%s%s", why, cli_similar_hint(meant).text);
    return refuse(v, text);
}

/* Digits, up to 2^64 - 1; a number below 0 is 0 and *below. */
static bool parse_digits(const value *v, uint64_t *out, bool *below) {
    const size_t sign = v->length > 1 && v->text[0] == '-';
    *out = 0;
    *below = false;
    if (v->length == 0) return refuse(v, "a number is missing");
    for (size_t i = sign; i < v->length; i++) {
        const uint64_t digit = (uint64_t)(v->text[i] - '0');
        if (v->text[i] < '0' || v->text[i] > '9') return refuse(v, "not a whole number");
        *out = *out <= (UINT64_MAX - digit) / 10 ? *out * 10 + digit : UINT64_MAX;
        *below = sign > 0 && *out > 0;
    }
    if (*below) *out = 0;
    return true;
}

static bool parse_number(const value *v, uint32_t *out) {
    char why[64];
    uint64_t number = 0;
    bool below = false;
    if (!parse_digits(v, &number, &below)) return false;
    if (below || number < v->option->min || number > v->option->max) {
        snprintf(why, sizeof(why), "must be from %u to %u", v->option->min, v->option->max);
        return refuse(v, why);
    }
    *out = (uint32_t)number;
    return true;
}

static bool parse_seed(const value *v, cli_seed *out) {
    static const char most[] = "18446744073709551615"; /* 2^64 - 1 */
    bool below = false;
    if (!parse_digits(v, &out->value, &below)) return false;
    const char *digits = v->text + strspn(v->text, "0");
    const size_t n = strlen(digits);
    if (below || n > strlen(most) || (n == strlen(most) && strcmp(digits, most) > 0))
        return refuse(v, "must be from 0 to 18446744073709551615");
    out->given = 1;
    return true;
}

/* The index of a word among those that the option takes. */
static bool parse_word(const value *v, uint32_t *out) {
    char why[512] = "must be one of";
    const char *word;
    cli_similar meant = cli_similar_to(v->text, v->length);
    for (uint32_t i = 0; (word = cli_option_word(v->option, i)) != NULL; i++) {
        if (strlen(word) == v->length && memcmp(word, v->text, v->length) == 0) {
            *out = i;
            return true;
        }
        cli_similar_see(&meant, word);
        size_t used = strlen(why);
        snprintf(why + used, sizeof(why) - used, "%s %s", i > 0 ? "," : "", word);
    }
    return refuse_word(v, why, &meant);
}

/* Refuses the name of a selection or an eviction for the reason that the library gives. */
static bool refuse_name(const value *v, size_t length, const char *why) {
    const char *word;
    cli_similar meant = cli_similar_to(v->text, length);
    for (uint32_t i = 0; (word = cli_option_word(v->option, i)) != NULL; i++)
        cli_similar_see(&meant, word);
    return refuse_word(v, why, &meant);
}

static bool parse_selection(const value *v, uint32_t *out) {
    char name[64]; /* longer than any name that is known, so that a cut one is unknown */
    tamis_selection selection;
    tamis_error error = {0};
    snprintf(name, sizeof(name), "%.*s", (int)v->length, v->text);
    if (tamis_selection_parse(name, &selection, &error) != TAMIS_OK)
        return refuse_name(v, v->length, error.text);
    if (selection.kind == TAMIS_SELECT_CALLER) return refuse(v, "takes its lists from a program");
    for (*out = 0; strcmp(name, cli_selection_name(*out)) != 0;)
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
    tamis_eviction eviction;
    tamis_error error = {0};
    uint32_t options = 0, bit = 0;
    size_t used = word_length(v, 0, '+');
    snprintf(name, sizeof(name), "%.*s", (int)used, v->text);
    if (tamis_eviction_parse(name, &eviction, &error) != TAMIS_OK)
        return refuse_name(v, used, error.text);
    if (eviction.kind == TAMIS_EVICT_CALLER) return refuse(v, "takes its scores from a program");
    while (used < v->length) {
        const cli_option words = {.name = v->option->name, .kind = CLI_OPTIONS};
        const value word = {v->command, &words, v->text + used + 1, word_length(v, used + 1, '+')};
        if (!parse_word(&word, &bit)) return false;
        options |= 1u << bit;
        used += 1 + word.length;
    }
    *out = CLI_EVICTION_OF(eviction.kind, options);
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

/* What a file's name says: *path is CLI_STDIN_PATH for a "-" that is to be read by its path. */
static bool parse_file(const value *v, const char **path) {
    *path = v->text;
    if (strcmp(v->text, "-") != 0 || v->option->kind == CLI_OUTPUT) return true;
    if (v->option->kind == CLI_PATH) return refuse(v, "must be a path (./- is one)");
    const char *other = cli_stdin_take(v->option->name);
    if (other != NULL) {
        char why[96];
        snprintf(why, sizeof(why), "standard input is read by %s - already", other);
        return refuse(v, why);
    }
    if (v->option->kind != CLI_FILE) return true;
    *path = CLI_STDIN_PATH;
    return cli_stdin_is_file() ||
           refuse(v, "standard input is no ordinary file, and this is read in any order");
}

/* Text on the command line is UTF-8; other bytes are taken as they are, with a warning. */
static bool parse_text(const value *v, const char **out) {
    *out = v->text;
    if (v->length == 0) return refuse(v, "must not be empty");
    if (cli_is_file(v->option)) return parse_file(v, out);
    cli_utf8_warn(v->option->name, v->text, v->length);
    return true;
}

static bool add_text(const value *v, cli_texts *out) {
    if (out->count == CLI_LIST_MAX) return refuse(v, "is given too often");
    return parse_text(v, &out->values[out->count]) && ++out->count > 0;
}

static bool parse_value(const cli_command *command, const cli_option *option, const char *text,
                        void *flags) {
    const value v = {command, option, text, strlen(text)};
    void *place = (char *)flags + option->place;
    switch (option->kind) {
    case CLI_TEXT:
    case CLI_INPUT:
    case CLI_FILE:
    case CLI_OUTPUT:
    case CLI_PATH:
        return parse_text(&v, place);
    case CLI_TEXTS:
    case CLI_INPUTS:
        return add_text(&v, place);
    case CLI_NUMBER:
        return parse_number(&v, place);
    case CLI_SEED:
        return parse_seed(&v, place);
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

/* The letters by which programs of this kind are called. */
static const struct {
    const char *letter, *name;
} short_names[] = {{"-m", "--model"}, {"-p", "--prompt"}, {"-n", "--tokens"}};

const char *cli_short_name(const cli_option *option) {
    for (size_t i = 0; i < sizeof(short_names) / sizeof(short_names[0]); i++)
        if (strcmp(option->name, short_names[i].name) == 0) return short_names[i].letter;
    return NULL;
}

static bool is_word(const char *known, const char *name, size_t length) {
    return known != NULL && strlen(known) == length && memcmp(known, name, length) == 0;
}

static const cli_option *find_option(const cli_command *command, const char *name, size_t length) {
    for (size_t i = 0; i < command->n_options; i++) {
        const cli_option *option = &command->options[i];
        if (is_word(option->name, name, length) || is_word(cli_short_name(option), name, length))
            return option;
    }
    return NULL;
}

static void say_unknown(const cli_command *command, const char *word) {
    cli_similar meant = cli_similar_to(word, strcspn(word, "="));
    for (size_t i = 0; word[0] == '-' && i < command->n_options; i++)
        cli_similar_see(&meant, command->options[i].name);
    fprintf(stderr, "%s: %s: unknown %s%s (see %s --help)\n", command->name, word,
            word[0] == '-' ? "option" : "argument", cli_similar_hint(&meant).text, command->name);
}

/* Tells whoever pipes a text in that a command could read it. */
static void watch_stdin(const cli_command *command) {
    for (size_t i = 0; i < command->n_options; i++) {
        const cli_option *option = &command->options[i];
        if (option->kind != CLI_INPUT && option->kind != CLI_INPUTS) continue;
        cli_stdin_watch(command->name, option->name);
        return;
    }
}

/* The value of the option at argv[*i], which may stand behind it; NULL: it lacks one. */
static const char *value_at(const cli_option *option, int argc, char *const *argv, int *i) {
    const char *equals = strchr(argv[*i], '=');
    if (equals != NULL) return equals + 1;
    if (option->kind == CLI_FLAG) return "";
    return ++*i < argc ? argv[*i] : NULL;
}

/* given[i]: whether the i-th option has been given. */
static int parse_all(const cli_command *command, void *flags, bool *given, int argc,
                     char *const *argv) {
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            cli_print_help(command);
            return CLI_OK;
        }
        const cli_option *option = find_option(command, argv[i], strcspn(argv[i], "="));
        if (option == NULL) {
            say_unknown(command, argv[i]);
            return CLI_USAGE;
        }
        const char *text = value_at(option, argc, argv, &i);
        if (text == NULL) {
            fprintf(stderr, "%s: %s: needs a value (%s)\n", command->name, option->name,
                    option->value);
            return CLI_USAGE;
        }
        bool *before = &given[option - command->options];
        if (*before && !cli_may_repeat(option)) {
            fprintf(stderr, "%s: %s: is given twice\n", command->name, option->name);
            return CLI_USAGE;
        }
        *before = true;
        if (!parse_value(command, option, text, flags)) return CLI_USAGE;
    }
    return -1;
}

int cli_parse(const cli_command *command, void *flags, int argc, char *const *argv) {
    bool *given = calloc(command->n_options, sizeof(*given));
    if (given == NULL) {
        fprintf(stderr, "%s: out of host memory\n", command->name);
        return CLI_FAILED;
    }
    const int code = parse_all(command, flags, given, argc, argv);
    free(given);
    if (code < 0) watch_stdin(command);
    return code;
}
