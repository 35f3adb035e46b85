/* SPDX-License-Identifier: Apache-2.0 */
/* A file that is written whole or not at all: beside its place, then renamed. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "cli/output.h"

#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool fail(cli_output *output, const char *command, const char *path, int code) {
    cli_fail(command, "%s: cannot be written: %s", path, strerror(code));
    cli_output_discard(output);
    return false;
}

/* A new file beside the place, with the rights that an ordinary new file would have. */
static FILE *open_temporary(cli_output *output) {
    static const char suffix[] = ".XXXXXX";
    output->temporary = malloc(strlen(output->path) + sizeof(suffix));
    if (output->temporary == NULL) return NULL;
    strcat(strcpy(output->temporary, output->path), suffix);
    int handle = mkstemp(output->temporary);
    if (handle < 0) {
        free(output->temporary);
        output->temporary = NULL;
        return NULL;
    }
    mode_t mask = umask(0);
    umask(mask);
    FILE *file = fchmod(handle, 0666 & ~mask) == 0 ? fdopen(handle, "w") : NULL;
    if (file == NULL) close(handle);
    return file;
}

bool cli_output_open(cli_output *output, const char *command, const char *path) {
    struct stat info;
    *output = (cli_output){0};
    bool exists = stat(path, &info) == 0;
    if (exists && S_ISDIR(info.st_mode)) return fail(output, command, path, EISDIR);
    output->path = exists ? realpath(path, NULL) : strdup(path);
    if (output->path == NULL) return fail(output, command, path, errno);
    if (exists && !S_ISREG(info.st_mode))
        output->file = fopen(output->path, "w");
    else
        output->file = open_temporary(output);
    return output->file != NULL || fail(output, command, path, errno);
}

bool cli_output_commit(cli_output *output, const char *command, const char *text) {
    size_t length = strlen(text);
    bool written = fwrite(text, 1, length, output->file) == length;
    written = written && fflush(output->file) == 0;
    if (written && output->temporary != NULL) written = fsync(fileno(output->file)) == 0;
    int code = errno;
    if (fclose(output->file) != 0 && written) {
        written = false;
        code = errno;
    }
    output->file = NULL;
    if (written && output->temporary != NULL && rename(output->temporary, output->path) != 0) {
        written = false;
        code = errno;
    }
    if (!written) return fail(output, command, output->path, code);
    free(output->temporary);
    output->temporary = NULL;
    cli_output_discard(output);
    return true;
}

void cli_output_discard(cli_output *output) {
    if (output->file != NULL) fclose(output->file);
    if (output->temporary != NULL) unlink(output->temporary);
    free(output->temporary);
    free(output->path);
    *output = (cli_output){0};
}
