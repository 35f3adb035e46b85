/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that stand alone, and the entries that the tables of many commands have. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "cli/cli.h"
#include "cli/policies.h"

extern const cli_command cli_devices_command, cli_models_command, cli_run_command,
    cli_tokenize_command;

/* clang-format off */
/* `type` is a command's struct of flags, `member` the place in it. */
#define CLI_MODEL_OPTION(type, member)                                                             \
    {"--model", "FILE", "a GGUF file; the README says which are supported", CLI_FILE,              \
     offsetof(type, member), 0, 0, NULL}
#define CLI_JSON_OPTION(type, member)                                                              \
    {"--json", "FILE",                                                                             \
     "write the same figures as JSON, once they are complete; - is standard output",               \
     CLI_OUTPUT, offsetof(type, member), 0, 0, NULL}
#define CLI_DEVICE_OPTION(type, member)                                                            \
    {"--device", "ID", "where to run, see tamis devices", CLI_TEXT, offsetof(type, member), 0, 0,  \
     NULL}
/* clang-format on */

#endif
