/* SPDX-License-Identifier: Apache-2.0 */
/* What --json of `tamis run` writes: the answers and the figures of a session. */
#ifndef CLI_RECORD_H
#define CLI_RECORD_H

#include "cli/json.h"
#include "cli/session.h"

typedef struct cli_record {
    cJSON *rows; /* NULL: nothing is recorded */
    cli_output output;
} cli_record;

/* Opens the file; a path of NULL records nothing. Prints why and returns false if it cannot. */
bool cli_record_open(cli_record *record, const char *command, const char *path);
/* Adds an answer that has ended, before its text is freed. */
tamis_status cli_record_answer(cli_record *record, const cli_answer *answer, cli_end end,
                               tamis_error *error);
/* Completes the file. Prints why and returns false if it cannot. */
bool cli_record_write(cli_record *record, const char *command, const cli_session *s,
                      const cli_session_params *params);
/* Gives up what is open; accepts a record that is written. */
void cli_record_discard(cli_record *record);

#endif
