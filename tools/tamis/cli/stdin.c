/* SPDX-License-Identifier: Apache-2.0 */
/* Standard input: which flag reads it, and a hint where none does. */
#define _DEFAULT_SOURCE /* S_ISSOCK, FIONREAD */
#include "cli/stdin.h"

#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *taker;                  /* the flag that reads standard input */
static const char *hint_command, *hint_by; /* what a hint says; NULL: there is none to give */

const char *cli_stdin_take(const char *flag) {
    const char *before = taker;
    if (before == NULL) taker = flag;
    return before;
}

const char *cli_stdin_taker(void) {
    return taker;
}

bool cli_stdin_is_file(void) {
    struct stat info;
    return fstat(STDIN_FILENO, &info) == 0 && S_ISREG(info.st_mode);
}

void cli_stdin_watch(const char *command, const char *flag) {
    hint_command = command;
    hint_by = flag;
}

static bool bytes_wait(void) {
    struct stat info;
    int bytes = 0;
    if (fstat(STDIN_FILENO, &info) != 0) return false;
    if (S_ISREG(info.st_mode)) return lseek(STDIN_FILENO, 0, SEEK_CUR) < info.st_size;
    if (!S_ISFIFO(info.st_mode) && !S_ISSOCK(info.st_mode)) return false;
    return ioctl(STDIN_FILENO, FIONREAD, &bytes) == 0 && bytes > 0;
}

void cli_stdin_hint(void) {
    if (taker != NULL || hint_by == NULL || !bytes_wait()) return;
    fprintf(stderr, "%s: standard input is not read; %s - would read it\n", hint_command, hint_by);
    hint_by = NULL;
}
