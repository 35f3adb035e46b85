/* SPDX-License-Identifier: Apache-2.0 */
/* The file of policies: reading it, writing it whole, and the gate. */
#define _DEFAULT_SOURCE /* flock, realpath */
#include "lib/blend/policy.h"
#include "lib/blend/selector.h"
#include "lib/core/core.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES (16u << 20) /* of a file */

tamis_status tamis_blend_policy_path(char *path, size_t capacity, tamis_error *error) {
    const char *config = tms_env("XDG_CONFIG_HOME"), *home = tms_env("HOME");
    const bool own = config && *config == '/';
    TMS_REQUIRE(path, TAMIS_E_ARGUMENT, "path is NULL");
    TMS_REQUIRE(own || (home && *home == '/'), TAMIS_E_STATE,
                "there is no folder for settings: neither XDG_CONFIG_HOME nor HOME is an absolute "
                "path");
    const int bytes = snprintf(path, capacity, "%s%s/tamis/blend.policy", own ? config : home,
                               own ? "" : "/.config");
    TMS_REQUIRE(bytes >= 0 && (size_t)bytes < capacity, TAMIS_E_ARGUMENT,
                "the path has %d bytes; there is room for %zu", bytes, capacity);
    return TAMIS_OK;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static tamis_status read_text(int file, const char *path, char *text, size_t bytes,
                              tamis_error *error) {
    size_t done = 0;
    while (done < bytes) {
        const ssize_t n = read(file, text + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        TMS_REQUIRE(n >= 0, TAMIS_E_IO, "%s: %s", path, strerror(errno));
        TMS_REQUIRE(n > 0, TAMIS_E_IO, "%s: has become shorter while it was read", path);
        done += (size_t)n;
    }
    return TAMIS_OK;
}

static tamis_status read_file(int file, const char *path, tms_policies *out, tamis_error *error) {
    struct stat info;
    TMS_REQUIRE(fstat(file, &info) == 0, TAMIS_E_IO, "%s: %s", path, strerror(errno));
    TMS_REQUIRE(S_ISREG(info.st_mode), TAMIS_E_FORMAT, "%s: is no ordinary file", path);
    TMS_REQUIRE(info.st_size <= MOST_BYTES, TAMIS_E_FORMAT,
                "%s: has %lld bytes; files of policies have %u at most", path,
                (long long)info.st_size, MOST_BYTES);
    const size_t bytes = (size_t)info.st_size;
    char *text = malloc(bytes + 1);
    TMS_REQUIRE(text, TAMIS_E_NO_MEMORY, "no memory for the %zu bytes of %s", bytes, path);
    tamis_status status = read_text(file, path, text, bytes, error);
    text[status == TAMIS_OK ? bytes : 0] = '\0';
    if (status == TAMIS_OK) status = tms_policies_parse(path, text, bytes, out, error);
    free(text);
    return status;
}

static tamis_status read_all(const char *path, tms_policies *out, tamis_error *error) {
    *out = (tms_policies){0};
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0 && errno == ENOENT) return TAMIS_OK;
    TMS_REQUIRE(file >= 0, TAMIS_E_IO, "%s: %s", path, strerror(errno));
    const tamis_status status = read_file(file, path, out, error);
    close(file);
    return status;
}

tamis_status tamis_blend_policy_read(const char *path, tamis_blend_policy *policies,
                                     size_t capacity, size_t *count, tamis_error *error) {
    tms_policies all;
    TMS_REQUIRE(path, TAMIS_E_ARGUMENT, "path is NULL");
    TMS_REQUIRE(count, TAMIS_E_ARGUMENT, "count is NULL");
    TMS_REQUIRE(policies || capacity == 0, TAMIS_E_ARGUMENT, "policies is NULL for %zu", capacity);
    TMS_TRY(read_all(path, &all, error));
    const size_t n = all.count < capacity ? all.count : capacity;
    if (n > 0) memcpy(policies, all.entries, n * sizeof *policies);
    *count = all.count;
    free(all.entries);
    return TAMIS_OK;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* A file that is written in its folder under another name. */
typedef struct draft {
    char path[PATH_MAX], folder[PATH_MAX], own[PATH_MAX + 16];
    int lock; /* the folder, open */
} draft;

/* Where the file lies: symbolic links stay, and what they point to is replaced. */
static tamis_status find_place(const char *path, draft *d, tamis_error *error) {
    if (!realpath(path, d->path)) {
        TMS_REQUIRE(errno == ENOENT, TAMIS_E_IO, "%s: %s", path, strerror(errno));
        const int bytes = snprintf(d->path, sizeof d->path, "%s", path);
        TMS_REQUIRE((size_t)bytes < sizeof d->path, TAMIS_E_IO, "%s: %s", path,
                    strerror(ENAMETOOLONG));
    }
    char *slash = strrchr(d->path, '/');
    if (slash)
        snprintf(d->folder, sizeof d->folder, "%.*s", (int)(slash == d->path ? 1 : slash - d->path),
                 d->path);
    else
        strcpy(d->folder, ".");
    snprintf(d->own, sizeof d->own, "%s.XXXXXX", d->path);
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
static tamis_status lock_folder(draft *d, tamis_error *error) {
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

static tamis_status put_file(draft *d, const char *text, size_t bytes, tamis_error *error) {
    const int file = mkstemp(d->own);
    TMS_REQUIRE(file >= 0, TAMIS_E_IO, "%s: %s", d->own, strerror(errno));
    bool done = tms_write_all(file, text, bytes) && fsync(file) == 0;
    int why = errno;
    if (close(file) != 0 && done) {
        done = false;
        why = errno;
    }
    if (done && rename(d->own, d->path) != 0) {
        done = false;
        why = errno;
    }
    if (!done) {
        unlink(d->own);
        return tms_error_set(error, TAMIS_E_IO, "%s: %s", d->path, strerror(why));
    }
    TMS_REQUIRE(fsync(d->lock) == 0, TAMIS_E_IO, "%s: %s", d->folder, strerror(errno));
    return TAMIS_OK;
}

/* The entries with one more, or with one in the place of another. */
static tamis_status add_entry(tms_policies *all, const tamis_blend_policy *policy,
                              tamis_error *error) {
    size_t at = 0;
    while (at < all->count && !tms_policy_same(&all->entries[at], policy))
        at++;
    if (at == all->count) {
        tamis_blend_policy *more = realloc(all->entries, (at + 1) * sizeof *more);
        TMS_REQUIRE(more, TAMIS_E_NO_MEMORY, "no memory for %zu policies", at + 1);
        all->entries = more;
        all->count++;
    }
    all->entries[at] = *policy;
    return TAMIS_OK;
}

static tamis_status rewrite(draft *d, const tamis_blend_policy *policy, tamis_error *error) {
    tms_policies all;
    char *text = NULL;
    size_t bytes = 0;
    TMS_TRY(read_all(d->path, &all, error));
    tamis_status status = add_entry(&all, policy, error);
    if (status == TAMIS_OK) status = tms_policies_print(&all, &text, &bytes, error);
    if (status == TAMIS_OK && bytes > MOST_BYTES)
        status = tms_error_set(error, TAMIS_E_FULL, "%s: would have %zu bytes; %u are the most",
                               d->path, bytes, MOST_BYTES);
    if (status == TAMIS_OK) status = put_file(d, text, bytes, error);
    free(text);
    free(all.entries);
    return status;
}

tamis_status tamis_blend_policy_write(const char *path, const tamis_blend_policy *policy,
                                      tamis_error *error) {
    draft d;
    TMS_REQUIRE(path && *path, TAMIS_E_ARGUMENT, "path is %s", path ? "empty" : "NULL");
    TMS_REQUIRE(policy, TAMIS_E_ARGUMENT, "policy is NULL");
    TMS_TRY(tms_policy_check(policy, error));
    TMS_TRY(find_place(path, &d, error));
    TMS_TRY(lock_folder(&d, error));
    const tamis_status status = rewrite(&d, policy, error);
    close(d.lock);
    return status;
}

/* ---- The gate -------------------------------------------------------------------------------- */

/* What an entry must have to speak for the parameters. Of share 1, where all is computed, none
 * need speak. */
static tamis_status describe(const tamis_blend_params *p, tamis_dtype cache_dtype,
                             tamis_blend_policy *out, tamis_error *error) {
    const tms_selector *selector = tms_selector_find(p->selector);
    TMS_REQUIRE(selector, TAMIS_E_ARGUMENT, "there is no selector %d", (int)p->selector);
    const double share = p->share == 0 ? TMS_DEFAULT_SHARE : p->share;
    *out = (tamis_blend_policy){.selector = p->selector,
                                .schedule = p->schedule,
                                .check_layer = p->check_layer ? p->check_layer : 1,
                                .cache_dtype = cache_dtype,
                                .dtype = p->dtype,
                                .n_sink = p->n_sink,
                                .share = selector->everything ? 1 : share};
    memcpy(out->fingerprint, p->fingerprint, sizeof out->fingerprint);
    if (out->share == 1) return TAMIS_OK;
    TMS_REQUIRE(tms_selector_shares(selector), TAMIS_E_UNSUPPORTED,
                "selector %s takes no share, so that no policy says what it costs", selector->name);
    TMS_REQUIRE(!p->shares && p->least == 0 && p->most == 0, TAMIS_E_UNSUPPORTED,
                "a list of %" PRIu32 " shares, least %" PRIu32 " or most %" PRIu32
                " is given, of which no policy says what it costs",
                p->n_shares, p->least, p->most);
    return TAMIS_OK;
}

static tamis_status refuse(const char *path, const tamis_blend_policy *wanted,
                           const tamis_blend_policy *found, tamis_error *error) {
    char hex[33], layer[16] = "none", why[96] = "there is no entry for";
    tms_hex(wanted->fingerprint, hex);
    if (wanted->check_layer != TAMIS_BLEND_NO_CHECK)
        snprintf(layer, sizeof layer, "%" PRIu32, wanted->check_layer);
    if (found && found->share > 0)
        snprintf(why, sizeof why, "share %g is below %g, the smallest that passed, for",
                 wanted->share, found->share);
    else if (found)
        snprintf(why, sizeof why, "no share has passed for");
    return tms_error_set(
        error, TAMIS_E_STATE,
        "%s: %s model %s with selector %s, %s schedule, check layer %s, %s records "
        "behind %" PRIu32 " tokens, %s cache; tamis blend check measures it",
        path, why, hex, tamis_blend_selector_name(wanted->selector),
        wanted->schedule == TAMIS_BLEND_FLAT ? "flat" : "falling", layer,
        tamis_dtype_name(wanted->dtype), wanted->n_sink, tamis_dtype_name(wanted->cache_dtype));
}

tamis_status tamis_blend_policy_check(const char *path, const tamis_blend_params *params,
                                      tamis_dtype cache_dtype, tamis_blend_policy *out,
                                      tamis_error *error) {
    tamis_blend_policy wanted;
    tms_policies all;
    TMS_REQUIRE(path, TAMIS_E_ARGUMENT, "path is NULL");
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params is NULL");
    TMS_TRY(describe(params, cache_dtype, &wanted, error));
    if (wanted.share == 1) {
        if (out) *out = (tamis_blend_policy){0};
        return TAMIS_OK;
    }
    TMS_TRY(read_all(path, &all, error));
    const tamis_blend_policy *found = NULL;
    for (size_t i = 0; i < all.count && !found; i++)
        if (tms_policy_same(&all.entries[i], &wanted)) found = &all.entries[i];
    tamis_status status = TAMIS_OK;
    if (!found || found->share == 0 || wanted.share < found->share)
        status = refuse(path, &wanted, found, error);
    else if (out)
        *out = *found;
    free(all.entries);
    return status;
}
