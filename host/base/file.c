/* SPDX-License-Identifier: Apache-2.0 */
/* Files read whole, and whether their writers are trusted. */
#define _DEFAULT_SOURCE /* realpath, S_ISVTX */
#include "host/base/file.h"
#include "host/base/quote.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static tamis_status failed(const char *path, tamis_error *error) {
    return tms_error_set(error, TAMIS_E_IO, "%s: %s", path, strerror(errno));
}

/* ---- Trust ----------------------------------------------------------------------------------- */

/* One file or folder, whatever lies above it. */
static tamis_status check_one(const char *path, const struct stat *info, tamis_error *error) {
    const bool sticky = S_ISDIR(info->st_mode) && (info->st_mode & S_ISVTX);
    if (info->st_uid != geteuid() && info->st_uid != 0)
        return tms_error_set(error, TAMIS_E_STATE, "%s: belongs to user %llu", path,
                             (unsigned long long)info->st_uid);
    if ((info->st_mode & (S_IWGRP | S_IWOTH)) && !sticky)
        return tms_error_set(error, TAMIS_E_STATE, "%s: other users may write there (mode %o)",
                             path, (unsigned)info->st_mode & 07777);
    return TAMIS_OK;
}

/* A path without symbolic links, and every folder above it. */
static tamis_status check_all(char *path, tamis_error *error) {
    struct stat info;
    for (;;) {
        if (lstat(path, &info) != 0) return failed(path, error);
        const tamis_status status = check_one(path, &info, error);
        char *slash = strrchr(path, '/');
        if (status != TAMIS_OK || strcmp(path, "/") == 0) return status;
        slash[slash == path] = '\0';
    }
}

/* The path without symbolic links; of what is not there, the nearest folder above it. */
static tamis_status resolve(const char *path, char real[PATH_MAX], tamis_error *error) {
    char part[PATH_MAX];
    if (strlen(path) >= sizeof part) {
        errno = ENAMETOOLONG;
        return failed(path, error);
    }
    strcpy(part, path);
    while (!realpath(part, real)) {
        char *slash = strrchr(part, '/');
        if ((errno != ENOENT && errno != ENOTDIR) || strcmp(part, ".") == 0)
            return failed(path, error);
        if (slash == part)
            strcpy(part, "/");
        else if (slash)
            *slash = '\0';
        else
            strcpy(part, ".");
    }
    return TAMIS_OK;
}

tamis_status tms_path_check(const char *path, tamis_error *error) {
    char real[PATH_MAX];
    const tamis_status status = resolve(path, real, error);
    return status == TAMIS_OK ? check_all(real, error) : status;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static tamis_status read_all(int file, const char *path, char *bytes, size_t n,
                             tamis_error *error) {
    size_t done = 0;
    while (done < n) {
        const ssize_t got = read(file, bytes + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return failed(path, error);
        if (got == 0)
            return tms_error_set(error, TAMIS_E_IO, "%s: has become shorter while it was read",
                                 path);
        done += (size_t)got;
    }
    return TAMIS_OK;
}

static tamis_status read_open(int file, const char *path, size_t most, char **bytes, size_t *n,
                              tamis_error *error) {
    struct stat info;
    if (fstat(file, &info) != 0) return failed(path, error);
    if (!S_ISREG(info.st_mode))
        return tms_error_set(error, TAMIS_E_FORMAT, "%s: is no ordinary file", path);
    if ((unsigned long long)info.st_size > most)
        return tms_error_set(error, TAMIS_E_FORMAT, "%s: has %lld bytes; %zu are the most", path,
                             (long long)info.st_size, most);
    *n = (size_t)info.st_size;
    *bytes = malloc(*n + 1);
    if (!*bytes)
        return tms_error_set(error, TAMIS_E_NO_MEMORY, "no memory for the %zu bytes of %s", *n,
                             path);
    const tamis_status status = read_all(file, path, *bytes, *n, error);
    if (status != TAMIS_OK) {
        free(*bytes);
        *bytes = NULL;
        return status;
    }
    (*bytes)[*n] = '\0';
    return TAMIS_OK;
}

tamis_status tms_file_read(const char *path, size_t most, char **bytes, size_t *n,
                           tamis_error *error) {
    *bytes = NULL;
    *n = 0;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0 && (errno == ENOENT || errno == ENOTDIR)) return TAMIS_OK;
    if (file < 0) return failed(path, error);
    const tamis_status status = read_open(file, path, most, bytes, n, error);
    close(file);
    return status;
}

/* What was judged is what is read: nobody else can replace a part of a path that is trusted. */
tamis_status tms_file_read_trusted(const char *path, size_t most, char **bytes, size_t *n,
                                   tamis_error *error) {
    char real[PATH_MAX], folders[PATH_MAX];
    *bytes = NULL;
    *n = 0;
    if (!realpath(path, real))
        return errno == ENOENT || errno == ENOTDIR ? TAMIS_OK : failed(path, error);
    strcpy(folders, real);
    const tamis_status status = check_all(folders, error);
    return status == TAMIS_OK ? tms_file_read(real, most, bytes, n, error) : status;
}
