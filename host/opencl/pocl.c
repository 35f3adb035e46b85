/* SPDX-License-Identifier: Apache-2.0 */
/* What PoCL needs of its surroundings: where it lacks something it ends the process, or says only
 * that a build has failed. Variables are those that PoCL reads. A program with more rights than the
 * user who started it has none here, so that it is refused PoCL, which would run what the user's PATH
 * names. */
#include "host/base/quote.h"
#include "host/opencl/opencl.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- The linker ------------------------------------------------------------------------------ */

static bool is_program(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, R_OK | X_OK) == 0;
}

/* As its compiler looks for it: in the folders of PATH, where an empty name is none. */
static bool on_path(const char *program) {
    char file[PATH_MAX];
    for (const char *at = tms_env("PATH"); at && *at; at += *at == ':') {
        const int length = (int)strcspn(at, ":");
        const int bytes = snprintf(file, sizeof file, "%.*s/%s", length, at, program);
        if (length > 0 && bytes < (int)sizeof file && is_program(file)) return true;
        at += length;
    }
    return false;
}

static bool lacks_linker(char *reason, size_t capacity) {
    if (on_path("ld")) return false;
    const char *path = tms_env("PATH");
    snprintf(reason, capacity,
             "PoCL links kernels by the program \"ld\", which no folder of PATH has (%s%.40s%s): "
             "install binutils, or add the folder of ld to PATH",
             path ? "\"" : "PATH is not set", path ? tms_quote(path).text : "", path ? "\"" : "");
    return true;
}

/* ---- The folder of compiled programs --------------------------------------------------------- */

/* False if the name is too long. */
static bool cache_folder(char folder[PATH_MAX]) {
    const char *named = tms_env("POCL_CACHE_DIR"), *cache = tms_env("XDG_CACHE_HOME");
    const char *home = tms_env("HOME");
    int bytes;
    if (named)
        bytes = snprintf(folder, PATH_MAX, "%s", named);
    else if (cache)
        bytes = snprintf(folder, PATH_MAX, "%s/pocl/kcache", cache);
    else if (home)
        bytes = snprintf(folder, PATH_MAX, "%s/.cache/pocl/kcache", home);
    else
        bytes = snprintf(folder, PATH_MAX, "/tmp/pocl/kcache");
    return bytes < PATH_MAX;
}

/* 0 if files can be made in the folder, or it can be made itself; else the errno. */
static int writes_refused(const char *folder) {
    char part[PATH_MAX];
    struct stat info;
    strcpy(part, folder);
    while (stat(part, &info) != 0) {
        char *slash = strrchr(part, '/');
        if (errno != ENOENT || strcmp(part, ".") == 0) return errno;
        if (slash)
            slash[slash == part] = '\0';
        else
            strcpy(part, ".");
    }
    if (!S_ISDIR(info.st_mode)) return ENOTDIR;
    return access(part, W_OK | X_OK) == 0 ? 0 : errno;
}

static bool lacks_folder(char *reason, size_t capacity) {
    char folder[PATH_MAX];
    const int why = cache_folder(folder) ? writes_refused(folder) : ENAMETOOLONG;
    if (why)
        snprintf(reason, capacity,
                 "PoCL keeps compiled programs in %s and cannot write there (%s): let "
                 "POCL_CACHE_DIR name a folder of the user's",
                 tms_quote(folder).text, strerror(why));
    return why != 0;
}

bool tms_cl_pocl_lacks(char *reason, size_t capacity) {
    return lacks_folder(reason, capacity) || lacks_linker(reason, capacity);
}

void tms_cl_pocl_lists_none(cl_int code, char *reason, size_t capacity) {
    char folder[PATH_MAX];
    snprintf(reason, capacity,
             "PoCL lists no device: %s (%d); most often it cannot make its folder of compiled "
             "programs, %s: POCL_CACHE_DIR names another",
             tms_cl_error_text(code), (int)code,
             cache_folder(folder) ? tms_quote(folder).text : "which has too long a name");
}

bool tms_cl_pocl_ends(char *reason, size_t capacity) {
    if (!tms_env_is_empty("POCL_CACHE_DIR")) return false;
    snprintf(reason, capacity,
             "POCL_CACHE_DIR is set and empty, by which PoCL ends every process that looks for "
             "OpenCL: unset it, or let it name a folder");
    return true;
}
