/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands share: messages, the device, flags of a selection, output. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "options.h"

#include <stdbool.h>
#include <stdio.h>
#include <tamis/tamis.h>

/* The commands: arguments after the command's name; the exit status is returned. */
int cli_devices(int argc, char *const *argv);
int cli_run(int argc, char *const *argv);
int cli_bench(int argc, char *const *argv);
int cli_eval(int argc, char *const *argv);

/* Prints "<command>: <text>" in one line to stderr. Returns CLI_FAILED. */
int cli_fail(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Opens a device; lines of the library's log from info up go to stderr. NULL: auto. */
tamis_status cli_open(const char *device, tamis_context **out, tamis_error *error);

/* Sets *error. Returns the status. */
tamis_status cli_error(tamis_error *error, tamis_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* E_NO_MEMORY for host memory. */
tamis_status cli_no_memory(tamis_error *error);

/* Words for flags, each at the value of the library's enum, ended by NULL. */
extern const char *const cli_groups[];
extern const char *const cli_dtypes[];
extern const char *const cli_page_sizes[];
extern const char *const cli_bounds[];
/* The page size behind an index into cli_page_sizes. */
uint32_t cli_page_size(uint32_t choice);

/* Flags of a selection; CLI_UNSET leaves the selection's own default. */
typedef struct cli_selection_flags {
    uint32_t sinks, recent, dense_layers, group;
} cli_selection_flags;

/* The selection that the flags mean, with a budget or CLI_UNSET, checked against the page size.
 * Prints why and returns false if it cannot be. */
bool cli_selection(const char *command, tamis_selection_kind kind, uint32_t budget,
                   const cli_selection_flags *flags, uint32_t page_size, tamis_selection *out);

/* Seconds of a clock that never goes back. */
double cli_seconds(void);

/* Bytes in a readable unit, e.g. "1.5 GiB", into `text`. Returns `text`. */
typedef struct cli_text {
    char text[32];
} cli_text;
cli_text cli_bytes(double bytes);

#endif
