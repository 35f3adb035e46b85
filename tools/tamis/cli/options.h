/* SPDX-License-Identifier: Apache-2.0 */
/* A command as tables: its flags with their places, ranges and help. From them come the parser,
 * --help, the man page and the completion of a shell. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit statuses of the program. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_INTERRUPTED = 130 };

/* The value of a number whose flag was not given and that has no default of its own. */
#define CLI_UNSET UINT32_MAX

#define CLI_LIST_MAX 16
typedef struct cli_list {
    uint32_t count;
    uint32_t values[CLI_LIST_MAX]; /* numbers, indices of words, selections, or evictions */
} cli_list;

/* Texts of a flag that may be given several times. */
typedef struct cli_texts {
    uint32_t count;
    const char *values[CLI_LIST_MAX];
} cli_texts;

/* A number from which draws follow, and whether the flag was given. */
typedef struct cli_seed {
    uint64_t value;
    uint32_t given;
} cli_seed;

/* A selection as one value: the index of its name among tamis_selection_name_at without caller, which
 * takes lists from a program (cli_selection_name); the names of the kinds come first, each at the kind's
 * own value. */

/* An eviction as one value: its kind with its options, TAMIS_EVICT_*. */
#define CLI_EVICTION_OF(kind, options) ((uint32_t)(kind) | (uint32_t)(options) << 8)
#define CLI_EVICTION_KIND(value)       ((value)&255u)
#define CLI_EVICTION_OPTIONS(value)    ((value) >> 8)
/* "all": every kind that needs no scores from the caller. */
#define CLI_EVICTION_ALL UINT32_MAX

/* What a flag takes, and the type of its member in the struct of flags. "-" is standard input, which
 * one flag of a command line can read. A flag that may be given once is refused the second time. */
typedef enum cli_kind {
    CLI_TEXT,    /* const char *, not empty */
    CLI_INPUT,   /* the same; a text file, or "-" */
    CLI_FILE,    /* the same; a file that is read by its path; "-" where that is an ordinary one */
    CLI_OUTPUT,  /* the same; a file that is written; "-" is standard output */
    CLI_PATH,    /* the same; a folder, or a file that is replaced; "-" is refused */
    CLI_TEXTS,   /* cli_texts, none empty: the flag may be given again */
    CLI_INPUTS,  /* the same; text files, of which one may be "-" */
    CLI_NUMBER,  /* uint32_t */
    CLI_SEED,    /* cli_seed; any number of 64 bits */
    CLI_NUMBERS, /* cli_list, comma-separated */
    CLI_CHOICE,  /* uint32_t: the index of the word */
    CLI_CHOICES, /* cli_list of indices, comma-separated */
    CLI_OPTIONS, /* cli_list of indices of an eviction's options, comma-separated */
    CLI_SELECTION,  /* uint32_t: a selection by its name */
    CLI_SELECTIONS, /* cli_list of these, comma-separated */
    CLI_EVICTION,   /* uint32_t, CLI_EVICTION_OF: "kind" or "kind+option+option"; not caller */
    CLI_EVICTIONS,  /* cli_list of these, comma-separated; "all" is one, too */
    CLI_FLAG        /* uint32_t: 1 if it is given; it has no value */
} cli_kind;

/* In help "{}" stands for the words that the flag takes, "{default}" for the defaults of the
 * library's selections or evictions (cli_default_text). */
typedef struct cli_option {
    const char *name;  /* "--context" */
    const char *value; /* as help shows it: "N[,N]"; empty for a flag */
    const char *help;
    cli_kind kind;
    size_t place;               /* offset of the value in the command's struct of flags */
    uint32_t min, max;          /* of numbers, inclusive */
    const char *const *choices; /* of choices, ended by NULL */
} cli_option;

typedef struct cli_command {
    const char *name;    /* "tamis run": the beginning of every message */
    const char *brief;   /* what it does, in a line */
    const char *usage;   /* what follows the program's name */
    const char *summary; /* what it does; lines */
    const char *examples;
    const cli_option *options;
    size_t n_options;
    int (*run)(int argc, char *const *argv); /* arguments after the name; the exit status */
} cli_command;

/* Every command, ended by NULL (list.c); those of a group ("tamis bench ...") stand together. */
extern const cli_command *const cli_commands[];

/* The commands whose names share a second word. */
typedef struct cli_group {
    const char *name, *brief, *noun; /* "bench", "measure decoding", "benchmark" */
} cli_group;
extern const cli_group cli_command_groups[]; /* ended by one without a name */

/* Whether the command is of the group: "tamis bench decode" of "bench". */
int cli_is_of_group(const cli_command *command, const cli_group *group);

/* A help text that is the same for every command. */
#define CLI_COMMON_HELP                                                                            \
    "Every command that runs a device takes --device ID (see tamis devices). Without it the "      \
    "environment variable\n"                                                                       \
    "TAMIS_DEVICE decides, else the first usable CUDA or OpenCL device.\n"                         \
    "Where an option takes a FILE to read, - is standard input; of a model or a policy only\n"     \
    "where that is an ordinary file (< FILE). A text has at most 256 MiB. An option is given\n"    \
    "once, unless its help says that it may be given again.\n"

/* The exit statuses, in words. */
#define CLI_STATUS_HELP                                                                            \
    "0 done, 1 failed at run time, 2 the command line is wrong, 130 ended by Ctrl-C.\n"

/* Reads arguments into `flags`, the command's struct of flags. Returns -1 to go on; else the exit
 * status: CLI_OK after --help, CLI_USAGE after one line on stderr that names the flag and the
 * value. */
int cli_parse(const cli_command *command, void *flags, int argc, char *const *argv);

/* Whether the flag may be given more than once. */
static inline bool cli_may_repeat(const cli_option *option) {
    return option->kind == CLI_TEXTS || option->kind == CLI_INPUTS;
}

/* Whether it takes the name of a file or a folder. */
static inline bool cli_is_file(const cli_option *option) {
    return option->kind == CLI_INPUT || option->kind == CLI_FILE || option->kind == CLI_OUTPUT ||
           option->kind == CLI_PATH || option->kind == CLI_INPUTS;
}

/* The index-th word that an option takes; NULL after the last one, or where any text is taken. */
const char *cli_option_word(const cli_option *option, uint32_t index);

/* "-m" for "--model"; NULL where an option has no short name. Options of one name have it in every
 * command. */
const char *cli_short_name(const cli_option *option);

/* The complete help of an option, with its words and defaults, and how often it may be given. */
typedef struct cli_help {
    char text[1024];
} cli_help;
cli_help cli_option_help(const cli_option *option);

void cli_print_help(const cli_command *command);
/* The man page of the program, as roff. */
void cli_print_manual(void);

#endif
