/* SPDX-License-Identifier: Apache-2.0 */
/* The disk tier: a folder with one file a record. A record is written under another name, with a
 * lock (flock) for as long as its writer lives, and renamed when it is whole. There are no folders
 * below it: records are megabytes, so there are not many names, and one fsync settles all. */
#include "lib/store/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct disk_object {
    tms_object object;
    int file;
    char name[TMS_DISK_NAME];
} disk_object;

/* ---- The folder ------------------------------------------------------------------------------ */

static uint64_t disk_limit(const tamis_store_params *params) {
    if (!params->folder) return 0;
    return params->disk_bytes ? params->disk_bytes : UINT64_MAX;
}

static void disk_close(tms_tier *tier) {
    tms_disk_tier *disk = (tms_disk_tier *)tier;
    if (disk->fd >= 0) close(disk->fd);
    free(disk->folder);
    free(disk);
}

/* The folder's own name must survive a loss of power like those in it, whoever has made it. Where
 * its parent cannot be opened, nobody can see to that. */
static tamis_status settle_folder(const tms_disk_tier *disk, tamis_error *error) {
    const int parent = openat(disk->fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0) return TAMIS_OK;
    tamis_status status = TAMIS_OK;
    if (fsync(parent) != 0 && errno != EINVAL && errno != EROFS && errno != ENOTSUP)
        status = tms_disk_fails(disk, "cannot settle the name of", "", error);
    close(parent);
    return status;
}

static tamis_status disk_open(const tamis_store_params *params, tms_tier **out,
                              tamis_error *error) {
    tms_disk_tier *disk = calloc(1, sizeof *disk);
    TMS_REQUIRE(disk, TAMIS_E_NO_MEMORY, "no memory for a store's folder");
    disk->tier.ops = &tms_disk;
    disk->fd = -1;
    disk->folder = strdup(params->folder);
    tamis_status status = TAMIS_OK;
    if (!disk->folder)
        status = tms_error_set(error, TAMIS_E_NO_MEMORY, "no memory for a store's folder");
    else if (mkdir(disk->folder, 0700) != 0 && errno != EEXIST && errno != EROFS)
        status = tms_disk_fails(disk, "cannot make the store's folder", "", error);
    if (status == TAMIS_OK) disk->fd = open(disk->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (status == TAMIS_OK && disk->fd < 0)
        status = tms_disk_fails(disk, "cannot open the store's folder", "", error);
    if (status == TAMIS_OK) status = settle_folder(disk, error);
    if (status != TAMIS_OK) {
        disk_close(&disk->tier);
        return status;
    }
    *out = &disk->tier;
    return TAMIS_OK;
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* The source of an object; `of` is the object. */
static tamis_status read_file(void *of, uint64_t offset, void *to, size_t bytes, size_t *got,
                              tamis_error *error) {
    const disk_object *object = of;
    *got = 0;
    while (*got < bytes) {
        const ssize_t n =
            pread(object->file, (char *)to + *got, bytes - *got, (off_t)(offset + *got));
        if (n == 0) break;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return tms_disk_fails((const tms_disk_tier *)object->object.tier, "reading",
                                  object->name, error);
        *got += (size_t)n;
    }
    return TAMIS_OK;
}

static void disk_done(tms_object *object) {
    disk_object *of_disk = (disk_object *)object;
    close(of_disk->file);
    tms_record_free(&object->record);
    free(of_disk);
}

/* Reads the header of the open file, whose name says which key it must have. */
static tamis_status read_header(disk_object *object, const uint8_t *key, tms_verdict *verdict,
                                tamis_error *error) {
    TMS_TRY(tms_record_read(&object->object.source, &object->object.record, verdict, error));
    if (*verdict == TMS_SOUND && memcmp(object->object.record.key, key, TMS_KEY_BYTES) != 0) {
        tms_record_free(&object->object.record);
        *verdict = TMS_DAMAGED;
    }
    return TAMIS_OK;
}

static tamis_status disk_find(tms_tier *tier, const uint8_t *key, tms_object **out,
                              tms_verdict *verdict, tamis_error *error) {
    tms_disk_tier *disk = (tms_disk_tier *)tier;
    char name[TMS_DISK_NAME];
    struct stat about;
    *out = NULL;
    *verdict = TMS_ABSENT;
    tms_disk_name(key, name);
    /* What is no file, such as a pipe, is not waited for. ELOOP: a symbolic link; ENXIO: a socket. */
    const int file = openat(disk->fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (file < 0 && (errno == ENOENT || errno == ELOOP || errno == ENXIO)) return TAMIS_OK;
    if (file < 0) return tms_disk_fails(disk, "cannot open", name, error);
    const bool known = fstat(file, &about) == 0;
    if (!known || !S_ISREG(about.st_mode)) {
        const tamis_status status =
            known ? TAMIS_OK : tms_disk_fails(disk, "cannot look at", name, error);
        close(file);
        return status;
    }
    disk_object *object = calloc(1, sizeof *object);
    if (!object) {
        close(file);
        return tms_error_set(error, TAMIS_E_NO_MEMORY, "no memory for an open chunk");
    }
    object->file = file;
    memcpy(object->name, name, sizeof name);
    object->object.tier = tier;
    object->object.used = /* in 64 bits for 292 years; a file may say any time */
        (int64_t)((uint64_t)about.st_mtim.tv_sec * 1000000000u + (uint64_t)about.st_mtim.tv_nsec);
    object->object.source = (tms_source){object, (uint64_t)about.st_size, read_file, NULL};
    const tamis_status status = read_header(object, key, verdict, error);
    if (status != TAMIS_OK) {
        *verdict = TMS_ABSENT;
        disk_done(&object->object);
        return status;
    }
    *out = &object->object;
    return TAMIS_OK;
}

/* A file's time of change says when it was used last: stores that open later go by it. Where it
 * cannot be set, as on a read-only file system, they go by when the file was written. */
static void disk_touch(tms_object *object) {
    (void)futimens(((disk_object *)object)->file, NULL);
}

/* ---- Names ----------------------------------------------------------------------------------- */

static tamis_status disk_erase(tms_tier *tier, const uint8_t *key, const tms_object *only,
                               bool *other, tamis_error *error) {
    tms_disk_tier *disk = (tms_disk_tier *)tier;
    char name[TMS_DISK_NAME];
    struct stat about;
    tms_disk_name(key, name);
    if (other) *other = false;
    if (only && !tms_disk_same(((const disk_object *)only)->file, disk->fd, name)) {
        if (errno) return tms_disk_fails(disk, "cannot look at", name, error);
        if (other) *other = fstatat(disk->fd, name, &about, AT_SYMLINK_NOFOLLOW) == 0;
        return TAMIS_OK;
    }
    if (unlinkat(disk->fd, name, 0) != 0 && errno != ENOENT)
        return tms_disk_fails(disk, "cannot remove", name, error);
    return TAMIS_OK;
}

static tamis_status disk_settle(tms_tier *tier, tamis_error *error) {
    tms_disk_tier *disk = (tms_disk_tier *)tier;
    /* EINVAL: this file system has nothing to settle. */
    if (fsync(disk->fd) != 0 && errno != EINVAL)
        return tms_disk_fails(disk, "cannot settle the names in", "", error);
    return TAMIS_OK;
}

/* Calls `visit` with each name in the folder until it fails. */
static tamis_status each_name(tms_disk_tier *disk,
                              tamis_status (*visit)(tms_disk_tier *disk, const char *name, void *to,
                                                    tamis_error *error),
                              void *to, tamis_error *error) {
    const int fd = openat(disk->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (!folder) {
        const tamis_status status = tms_disk_fails(disk, "cannot list", "", error);
        if (fd >= 0) close(fd);
        return status;
    }
    tamis_status status = TAMIS_OK;
    while (status == TAMIS_OK) {
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (!entry && errno) status = tms_disk_fails(disk, "cannot list", "", error);
        if (!entry) break;
        status = visit(disk, entry->d_name, to, error);
    }
    closedir(folder);
    return status;
}

static tamis_status take_key(tms_disk_tier *disk, const char *name, void *to, tamis_error *error) {
    (void)disk;
    uint8_t key[TMS_KEY_BYTES];
    if (strlen(name) != TMS_DISK_NAME - 1 || strcmp(name + TMS_KEY_TEXT - 1, ".kv") != 0 ||
        !tms_hex_parse(name, key))
        return TAMIS_OK;
    return tms_keys_add(to, key, error);
}

static tamis_status disk_walk(tms_tier *tier, tms_keys *out, tamis_error *error) {
    *out = (tms_keys){0};
    return each_name((tms_disk_tier *)tier, take_key, out, error);
}

/* Removes an unfinished file, if nobody holds its lock: its writer is gone, wherever it ran. What
 * cannot be opened belongs to somebody else or is no file. It is opened for writing because NFS locks
 * no other files exclusively. */
static tamis_status sweep_name(tms_disk_tier *disk, const char *name, void *to,
                               tamis_error *error) {
    uint64_t *removed = to;
    uint8_t key[TMS_KEY_BYTES];
    const size_t length = strlen(name);
    if (length < TMS_DISK_NAME || !tms_hex_parse(name, key) || name[TMS_KEY_TEXT - 1] != '.' ||
        strcmp(name + length - (sizeof TMS_DISK_UNFINISHED - 1), TMS_DISK_UNFINISHED) != 0)
        return TAMIS_OK;
    const int file = openat(disk->fd, name, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (file < 0) return TAMIS_OK;
    tamis_status status = TAMIS_OK;
    if (flock(file, LOCK_EX | LOCK_NB) == 0 && tms_disk_same(file, disk->fd, name)) {
        if (unlinkat(disk->fd, name, 0) == 0)
            ++*removed;
        else if (errno != ENOENT && errno != EROFS && errno != EACCES && errno != EPERM)
            status = tms_disk_fails(disk, "cannot remove", name, error);
    }
    close(file);
    return status;
}

static tamis_status disk_sweep(tms_tier *tier, uint64_t *removed, tamis_error *error) {
    return each_name((tms_disk_tier *)tier, sweep_name, removed, error);
}

const tms_tier_ops tms_disk = {.tier = TAMIS_TIER_DISK,
                               .limit = disk_limit,
                               .open = disk_open,
                               .close = disk_close,
                               .find = disk_find,
                               .touch = disk_touch,
                               .done = disk_done,
                               .stage = tms_disk_stage,
                               .discard = tms_disk_discard,
                               .settle = disk_settle,
                               .walk = disk_walk,
                               .sweep = disk_sweep,
                               .commit = tms_disk_commit,
                               .erase = disk_erase};
