/* SPDX-License-Identifier: Apache-2.0 */
/* The option parser of every command: a table of flags with their places, ranges and help text. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

/* Exit statuses of the program. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* What a number holds whose flag was not given and that has no default of its own. */
#define CLI_UNSET UINT32_MAX

#define CLI_LIST_MAX 16
typedef struct cli_list {
    uint32_t count;
    uint32_t values[CLI_LIST_MAX]; /* numbers, indices of words, selections, or evictions */
} cli_list;

/* A selection as one value: its kind, or CLI_SELECTION_PRESET with the place of its name in the
 * words below, which the library knows as presets. */
#define CLI_SELECTION_PRESET 256u
extern const char *const cli_selection_presets[];

/* An eviction as one value: its kind with its options, TAMIS_EVICT_*. */
#define CLI_EVICTION_OF(kind, options) ((uint32_t)(kind) | (uint32_t)(options) << 8)
#define CLI_EVICTION_KIND(value)       ((value)&255u)
#define CLI_EVICTION_OPTIONS(value)    ((value) >> 8)
/* "all": every kind that needs no scores of the caller's. */
#define CLI_EVICTION_ALL UINT32_MAX

/* Words for the options of evictions: the word at i means 1 << i. */
extern const char *const cli_eviction_options[];

/* What a flag takes, and the type of its place. */
typedef enum cli_kind {
    CLI_TEXT,       /* const char *, not empty */
    CLI_NUMBER,     /* uint32_t */
    CLI_NUMBERS,    /* cli_list, comma-separated */
    CLI_CHOICE,     /* uint32_t: the index of the word */
    CLI_CHOICES,    /* cli_list of indices, comma-separated */
    CLI_SELECTION,  /* uint32_t: a selection by its name */
    CLI_SELECTIONS, /* cli_list of these, comma-separated */
    CLI_EVICTION,   /* uint32_t, CLI_EVICTION_OF: "kind" or "kind+option+option"; not caller */
    CLI_EVICTIONS,  /* cli_list of these, comma-separated; "all" is one, too */
    CLI_FLAG        /* uint32_t: 1 if it is given; it has no value */
} cli_kind;

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
    const char *usage;   /* what follows the program's name */
    const char *summary; /* what it does */
    const char *examples;
    const cli_option *options;
    size_t n_options;
} cli_command;

/* Reads arguments into `flags`, the struct that the places mean. Returns -1 to go on; else the exit
 * status: CLI_OK after --help, CLI_USAGE after one line on stderr that names the flag and the
 * value. */
int cli_parse(const cli_command *command, void *flags, int argc, char *const *argv);

#endif
