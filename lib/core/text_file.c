/* SPDX-License-Identifier: Apache-2.0 */
/* Small text files of the user's: finding, reading, replacing them. */
#define _DEFAULT_SOURCE /* flock, realpath */
#include "lib/core/text_file.h"
#include "host/base/file.h"
#include "lib/core/bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

tamis_status tms_config_path(const char *name, char *path, size_t capacity, tamis_error *error) {
    const char *config = tms_env("XDG_CONFIG_HOME"), *home = tms_env("HOME");
    const bool own = config && *config == '/';
    TMS_REQUIRE(own || (home && *home == '/'), TAMIS_E_STATE,
                "there is no folder for settings: neither XDG_CONFIG_HOME nor HOME is an absolute "
                "path");
    const int bytes =
        snprintf(path, capacity, "%s%s/tamis/%s", own ? config : home, own ? "" : "/.config", name);
    TMS_REQUIRE(bytes >= 0 && (size_t)bytes < capacity, TAMIS_E_ARGUMENT,
                "the path has %d bytes; there is room for %zu", bytes, capacity);
    return TAMIS_OK;
}

/* ---- Reading --------------------------------------------------------------------------------- */

tamis_status tms_text_read(const char *path, char **text, size_t *bytes, tamis_error *error) {
    return tms_file_read(path, TMS_TEXT_MOST, text, bytes, error);
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* Behind the name of the file that is written. */
#define UNFINISHED ".tamis-unfinished"
#define MOST_LINKS 40

/* The name of a file in the folder of a link. */
static int join(const char *link, const char *name, char out[PATH_MAX]) {
    const char *slash = strrchr(link, '/');
    const int folder = slash && *name != '/' ? (int)(slash + 1 - link) : 0;
    return snprintf(out, PATH_MAX, "%.*s%s", folder, link, name);
}

/* What the path is, or points to, through as many symbolic links as there are. */
static tamis_status follow(const char *path, char out[PATH_MAX], tamis_error *error) {
    char target[PATH_MAX], link[PATH_MAX];
    ssize_t bytes;
    TMS_REQUIRE(strlen(path) < PATH_MAX, TAMIS_E_IO, "%s: %s", path, strerror(ENAMETOOLONG));
    strcpy(out, path);
    for (int links = 0; (bytes = readlink(out, target, sizeof target - 1)) >= 0; links++) {
        TMS_REQUIRE(links < MOST_LINKS, TAMIS_E_IO, "%s: %s", path, strerror(ELOOP));
        target[bytes] = '\0';
        strcpy(link, out);
        const bool whole = (size_t)bytes < sizeof target - 1;
        TMS_REQUIRE(whole && join(link, target, out) < PATH_MAX, TAMIS_E_IO, "%s: %s", path,
                    strerror(ENAMETOOLONG));
    }
    TMS_REQUIRE(errno == EINVAL || errno == ENOENT, TAMIS_E_IO, "%s: %s", path, strerror(errno));
    return TAMIS_OK;
}

/* Where the file lies: symbolic links stay, and what they point to is replaced. */
static tamis_status find_place(const char *path, tms_draft *d, tamis_error *error) {
    TMS_TRY(follow(path, d->path, error));
    char *slash = strrchr(d->path, '/');
    if (slash)
        snprintf(d->folder, sizeof d->folder, "%.*s", (int)(slash == d->path ? 1 : slash - d->path),
                 d->path);
    else
        strcpy(d->folder, ".");
    snprintf(d->own, sizeof d->own, "%s" UNFINISHED, d->path);
    return TAMIS_OK;
}

/* Makes the folder and those to it, where they are missing. */
static tamis_status make_folder(const char *folder, tamis_error *error) {
    char part[PATH_MAX];
    for (size_t i = 1;; i++) {
        if (folder[i] != '/' && folder[i] != '\0') continue;
        snprintf(part, sizeof part, "%.*s", (int)i, folder);
        TMS_REQUIRE(mkdir(part, 0700) == 0 || errno == EEXIST || access(part, F_OK) == 0,
                    TAMIS_E_IO, "%s: %s", part, strerror(errno));
        if (folder[i] == '\0') return TAMIS_OK;
    }
}

/* Opens the folder, and waits for those who write there. */
static tamis_status lock_folder(tms_draft *d, tamis_error *error) {
    TMS_TRY(make_folder(d->folder, error));
    d->lock = open(d->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    TMS_REQUIRE(d->lock >= 0, TAMIS_E_IO, "%s: %s", d->folder, strerror(errno));
    int locked;
    do
        locked = flock(d->lock, LOCK_EX);
    while (locked != 0 && errno == EINTR);
    if (locked == 0) return TAMIS_OK;
    const int why = errno;
    close(d->lock);
    return tms_error_set(error, TAMIS_E_IO, "%s: %s", d->folder, strerror(why));
}

/* The new file, in the place of what a killed writer may have left: who has the folder's lock is the
 * only writer. */
static int create_own(const tms_draft *d) {
    if (unlink(d->own) != 0 && errno != ENOENT) return -1;
    return open(d->own, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

/* Writes the new file and gives it the other's name; sets errno. */
static bool put_text(const tms_draft *d, int file, const char *text, size_t bytes) {
    struct stat before;
    const bool replaces = stat(d->path, &before) == 0;
    bool done = !replaces || fchmod(file, before.st_mode & 0777) == 0; /* who may read it */
    done = done && tms_write_all(file, text, bytes) && fsync(file) == 0;
    const int why = errno;
    if (close(file) != 0 && done) return false;
    if (!done) errno = why;
    return done && rename(d->own, d->path) == 0;
}

tamis_status tms_draft_put(tms_draft *d, const char *text, size_t bytes, tamis_error *error) {
    TMS_REQUIRE(bytes <= TMS_TEXT_MOST, TAMIS_E_FULL, "%s: would have %zu bytes; %u are the most",
                d->path, bytes, TMS_TEXT_MOST);
    const int file = create_own(d);
    TMS_REQUIRE(file >= 0, TAMIS_E_IO, "%s: %s", d->own, strerror(errno));
    if (!put_text(d, file, text, bytes)) {
        const int why = errno;
        unlink(d->own);
        return tms_error_set(error, TAMIS_E_IO, "%s: %s", d->path, strerror(why));
    }
    TMS_REQUIRE(fsync(d->lock) == 0, TAMIS_E_IO, "%s: %s", d->folder, strerror(errno));
    return TAMIS_OK;
}

tamis_status tms_draft_open(const char *path, tms_draft *d, tamis_error *error) {
    TMS_TRY(find_place(path, d, error));
    return lock_folder(d, error);
}

void tms_draft_close(tms_draft *d) {
    close(d->lock);
}
