/* SPDX-License-Identifier: Apache-2.0 */
/* A session's sequence in a file, from which a later run goes on: a header of this program's own, then
 * the sequence as tamis_plan_save writes it. */
#ifndef CLI_SAVED_H
#define CLI_SAVED_H

#include "cli/session.h"

#include <tamis/saved.h>

/* What a file says beside the sequence. */
typedef struct cli_saved {
    const char *path;
    tamis_save_params params; /* the model's fingerprint, from cli_saved_restore on */
    bool restored;            /* the file was there */
    uint32_t turns;           /* of a conversation; 0: it is none */
    char format[32];          /* the conversation's; "" */
} cli_saved;

/* Whether the file can be written, before work is done. On failure prints one line and returns
 * false. */
bool cli_saved_check(const cli_saved *saved, const char *command);

/* Puts the file's sequence in the place of the session's empty one, and fills in *saved; where there
 * is no file it only finds what a file will need. Errors name the file: E_IO; E_FORMAT and E_DAMAGED (it is none, or cut);
 * those of tamis_plan_restore and tamis_model_fingerprint. */
tamis_status cli_saved_restore(cli_saved *saved, cli_session *s, tamis_error *error);

/* Writes the session's sequence under another name, of mode 0600, which then takes the file's place: an
 * error, of which one line is printed, leaves the file as it was. A session that has read nothing is not
 * written, nor one that was interrupted within a text, of which a line tells. */
bool cli_saved_write(const cli_saved *saved, cli_session *s, const char *command);

#endif
