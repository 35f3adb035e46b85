/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands share: messages, the device, numbers. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "cli/clock.h"
#include "cli/options.h"

#include <stdbool.h>
#include <stdio.h>
#include <tamis/model.h>
#include <tamis/tamis.h>

/* Prints "<command>: <text>" in one line to stderr. Returns CLI_FAILED. */
int cli_fail(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Opens a device; lines of the library's log from info up go to stderr. NULL: auto. */
tamis_status cli_open(const char *device, tamis_context **out, tamis_error *error);

/* Says on stderr what of the file's vocabulary is ignored. */
void cli_warn_of_vocab(const char *path, const tamis_vocab *vocab);
/* Loads a model, and warns. Where stderr is a terminal, one line says meanwhile how far that is. */
tamis_status cli_load(tamis_context *device, const char *path, tamis_model **out,
                      tamis_error *error);

/* The name that the file gives the model, else its architecture. */
const char *cli_model_name(const tamis_model_info *model);

/* Sets *error. Returns the status. */
tamis_status cli_error(tamis_error *error, tamis_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* E_NO_MEMORY for host memory. */
tamis_status cli_no_memory(tamis_error *error);

/* From `least`, or only above it, to `most`; INFINITY: any number above. */
typedef struct cli_range {
    float least, most;
    bool above;
} cli_range;

/* A decimal number: digits, with a point among them or without. Prints "FLAG TEXT: not a decimal
 * number", or what its range is, and returns false if it is none, or out of the range. */
bool cli_decimal(const char *command, const char *flag, const char *text, cli_range range,
                 float *out);

/* Bytes above 0: digits, then K, M, G or T for powers of 1024, or nothing. Prints "FLAG TEXT: must be
 * bytes, ..." and returns false if it is none. */
bool cli_size(const char *command, const char *flag, const char *text, uint64_t *bytes);

/* Bytes in a readable unit, e.g. "1.5 GiB". */
typedef struct cli_text {
    char text[32];
} cli_text;
cli_text cli_bytes(double bytes);

/* A key, a fingerprint or a salt as 32 digits. */
typedef struct cli_digits {
    char text[33];
} cli_digits;
cli_digits cli_hex(const uint8_t bytes[16]);

#endif
