/* SPDX-License-Identifier: Apache-2.0 */
/* Where --json and --session write: for an ordinary file to a temporary file in the same folder, which
 * is then renamed; anything else directly. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "cli/output.h"

#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINKS_MAX 40

/* ---- Signals --------------------------------------------------------------------------------- */

static const int ending[] = {SIGHUP, SIGINT, SIGTERM};
static const size_t n_ending = sizeof(ending) / sizeof(ending[0]);
/* What a signal removes. */
#define OUTPUTS_MAX 2
static const char *volatile unfinished[OUTPUTS_MAX];

static void remove_and_end(int number) {
    for (int i = 0; i < OUTPUTS_MAX; i++)
        if (unfinished[i] != NULL) unlink(unfinished[i]);
    signal(number, SIG_DFL);
    raise(number);
}

/* Signals that are ignored stay so (nohup). */
static void catch_signals(bool on) {
    for (size_t i = 0; i < n_ending; i++) {
        struct sigaction now, then = {.sa_handler = on ? remove_and_end : SIG_DFL};
        sigemptyset(&then.sa_mask);
        if (sigaction(ending[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaction(ending[i], &then, NULL);
    }
}

/* The first place that holds `path`; NULL: that is free. */
static int place_of(const char *path) {
    int i = 0;
    while (i < OUTPUTS_MAX && unfinished[i] != path)
        i++;
    return i;
}

/* False where as many are unfinished as there can be. */
static bool add_unfinished(const char *path) {
    const int place = place_of(NULL);
    if (place == OUTPUTS_MAX) return false;
    unfinished[place] = path;
    catch_signals(true);
    return true;
}

static bool any_unfinished(void) {
    for (int i = 0; i < OUTPUTS_MAX; i++)
        if (unfinished[i] != NULL) return true;
    return false;
}

static void remove_unfinished(const char *path) {
    const int place = place_of(path);
    if (place < OUTPUTS_MAX) unfinished[place] = NULL;
    if (!any_unfinished()) catch_signals(false);
}

void (*cli_output_ending(void))(int) {
    return any_unfinished() ? remove_and_end : SIG_DFL;
}

/* mkstemp, with signals blocked until a handler knows the file and would remove it. */
static int make_temporary(char *template) {
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    int handle = mkstemp(template);
    if (handle >= 0 && !add_unfinished(template)) {
        close(handle);
        unlink(template);
        handle = -1;
        errno = EMFILE;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return handle;
}

/* ---- Places ---------------------------------------------------------------------------------- */

static bool fail(cli_output *output, const char *command, const char *path, int code) {
    cli_fail(command, "%s: cannot be written: %s", path, strerror(code));
    cli_output_discard(output);
    return false;
}

/* Whether `info` is the file that `handle` writes to. Of devices only terminals count: both names
 * may be /dev/null without being meant as the same output. */
static bool is_handle(const struct stat *info, int handle) {
    struct stat other;
    return fstat(handle, &other) == 0 && info->st_dev == other.st_dev &&
           info->st_ino == other.st_ino && (!S_ISCHR(info->st_mode) || isatty(handle));
}

/* Reserves the standard output for the JSON; what is printed goes to stderr. */
static FILE *take_stdout(void) {
    int handle = dup(STDOUT_FILENO);
    if (handle < 0) return NULL;
    fflush(stdout);
    if (dup2(STDERR_FILENO, STDOUT_FILENO) >= 0) return fdopen(handle, "w");
    close(handle);
    return NULL;
}

/* The target of a link, relative to the link's folder; NULL with errno. */
static char *follow(const char *path) {
    char target[4096];
    ssize_t bytes = readlink(path, target, sizeof(target) - 1);
    if (bytes < 0) return NULL;
    target[bytes] = '\0';
    char *copy = strdup(path);
    const char *folder = copy != NULL && target[0] != '/' ? dirname(copy) : "";
    char *out = malloc(strlen(folder) + (size_t)bytes + 2);
    if (copy != NULL && out != NULL)
        sprintf(out, "%s%s%s", folder, folder[0] != '\0' ? "/" : "", target);
    free(copy);
    return out;
}

/* Whether the path names an open file of a process (/dev/fd, /proc), which cannot be replaced by a
 * renamed file. */
static bool is_of_process(const char *path) {
    char *copy = strdup(path), *folder = copy != NULL ? realpath(dirname(copy), NULL) : NULL;
    bool is = folder != NULL && strncmp(folder, "/proc/", 6) == 0;
    free(folder);
    free(copy);
    return is;
}

/* The path with all links resolved; the file need not exist. *direct: it is to be written directly.
 * NULL with errno. */
static char *resolve(const char *path, bool *direct) {
    struct stat info;
    char *at = strdup(path);
    for (int i = 0; at != NULL && i < LINKS_MAX; i++) {
        *direct = is_of_process(at);
        if (*direct || lstat(at, &info) != 0 || !S_ISLNK(info.st_mode)) return at;
        char *next = follow(at);
        free(at);
        at = next;
    }
    if (at != NULL) errno = ELOOP;
    free(at);
    return NULL;
}

/* A new file in the same folder, with the permissions that an ordinary new file would have, or for its
 * owner alone. */
static FILE *open_temporary(cli_output *output, bool private) {
    static const char suffix[] = ".XXXXXX";
    output->temporary = malloc(strlen(output->path) + sizeof(suffix));
    if (output->temporary == NULL) return NULL;
    strcat(strcpy(output->temporary, output->path), suffix);
    int handle = make_temporary(output->temporary);
    if (handle < 0) {
        free(output->temporary);
        output->temporary = NULL;
        return NULL;
    }
    mode_t mask = umask(0);
    umask(mask);
    const mode_t mode = private ? 0600 : 0666 & ~mask;
    FILE *file = fchmod(handle, mode) == 0 ? fdopen(handle, "w") : NULL;
    if (file == NULL) close(handle);
    return file;
}

bool cli_output_open(cli_output *output, const char *command, const char *path) {
    struct stat info;
    bool exists = stat(path, &info) == 0, direct = exists && !S_ISREG(info.st_mode);
    *output = (cli_output){0};
    if (strcmp(path, "-") == 0 || (exists && is_handle(&info, STDOUT_FILENO))) {
        output->path = strdup("standard output");
        output->file = output->path != NULL ? take_stdout() : NULL;
        return output->file != NULL || fail(output, command, "standard output", errno);
    }
    if (exists && S_ISDIR(info.st_mode)) return fail(output, command, path, EISDIR);
    output->path = direct ? strdup(path) : resolve(path, &direct);
    if (output->path == NULL) return fail(output, command, path, errno);
    if (exists && is_handle(&info, STDERR_FILENO)) /* behind what stands there already */
        output->file = fdopen(dup(STDERR_FILENO), "w");
    else
        output->file = direct ? fopen(output->path, "w") : open_temporary(output, false);
    return output->file != NULL || fail(output, command, path, errno);
}

bool cli_output_open_private(cli_output *output, const char *command, const char *path) {
    struct stat info;
    bool direct = false;
    *output = (cli_output){0};
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        cli_fail(command, "%s: is no ordinary file", path);
        return false;
    }
    output->path = resolve(path, &direct);
    if (output->path != NULL) output->file = open_temporary(output, true);
    return output->file != NULL || fail(output, command, path, errno);
}

/* ---- The end --------------------------------------------------------------------------------- */

/* Closes the file. Returns 0, or why it is not complete. */
static int close_whole(cli_output *output, bool written) {
    FILE *file = output->file;
    written = written && fflush(file) == 0;
    if (written && output->temporary != NULL) written = fsync(fileno(file)) == 0;
    int code = written ? 0 : errno;
    output->file = NULL;
    if (fclose(file) != 0 && code == 0) code = errno;
    return code;
}

/* The file's name, onto the disk. Where the folder cannot be opened, the system does that when it
 * likes. */
static void sync_folder(const char *path) {
    char *copy = strdup(path);
    int folder = copy != NULL ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (folder >= 0) {
        fsync(folder);
        close(folder);
    }
    free(copy);
}

static bool finish(cli_output *output, const char *command, bool written) {
    int code = close_whole(output, written);
    if (code == 0 && output->temporary != NULL) {
        if (rename(output->temporary, output->path) != 0)
            code = errno;
        else
            sync_folder(output->path);
    }
    if (code != 0) return fail(output, command, output->path, code);
    if (output->temporary != NULL) remove_unfinished(output->temporary);
    free(output->temporary);
    output->temporary = NULL;
    cli_output_discard(output);
    return true;
}

bool cli_output_commit(cli_output *output, const char *command, const char *text) {
    const bool written = fputs(text, output->file) >= 0 && fputc('\n', output->file) != EOF;
    return finish(output, command, written);
}

bool cli_output_finish(cli_output *output, const char *command) {
    return finish(output, command, true);
}

bool cli_output_fail(cli_output *output, const char *command, int reason) {
    return fail(output, command, output->path, reason);
}

void cli_output_discard(cli_output *output) {
    if (output->file != NULL) fclose(output->file);
    if (output->temporary != NULL) {
        unlink(output->temporary);
        remove_unfinished(output->temporary);
    }
    free(output->temporary);
    free(output->path);
    *output = (cli_output){0};
}
