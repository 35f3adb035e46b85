/* SPDX-License-Identifier: Apache-2.0 */
/* Writing records to disk: under another name, to the end and onto the disk, then renamed. */
#include "lib/store/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define TRIES 100 /* to find a name that nobody has */

struct tms_staged {
    int file;       /* holds the lock while the process lives */
    uint64_t bytes; /* of the record */
    char name[TMS_KEY_TEXT + 48], to[TMS_DISK_NAME];
};

/* What a call that failed means, by errno. A name takes room too. */
static tamis_status write_fails(const tms_disk_tier *disk, const char *what,
                                const tms_staged *staged, tamis_error *error) {
    const int reason = errno;
    struct statvfs about;
    if (reason != ENOSPC && reason != EDQUOT && reason != EFBIG)
        return tms_disk_fails(disk, what, staged->name, error);
    const uint64_t room =
        fstatvfs(disk->fd, &about) == 0 ? (uint64_t)about.f_bavail * about.f_frsize : 0;
    return tms_error_set(error, TAMIS_E_FULL,
                         "no room for a record of %" PRIu64 " bytes in %s (%" PRIu64
                         " bytes free): %s",
                         staged->bytes, disk->folder, room, strerror(reason));
}

/* Creates the file and takes its lock, before a sweep of another process can. */
static bool create_locked(tms_disk_tier *disk, tms_staged *staged) {
    staged->file = openat(disk->fd, staged->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (staged->file < 0) return false;
    if (flock(staged->file, LOCK_EX | LOCK_NB) == 0 &&
        tms_disk_same(staged->file, disk->fd, staged->name))
        return true;
    const int reason = errno == EWOULDBLOCK || errno == 0 ? EEXIST : errno; /* swept: try again */
    unlinkat(disk->fd, staged->name, 0);
    close(staged->file);
    staged->file = -1;
    errno = reason;
    return false;
}

static tamis_status create(tms_disk_tier *disk, const uint8_t *key, tms_staged *staged,
                           tamis_error *error) {
    char text[TMS_KEY_TEXT];
    tms_hex(key, text);
    for (int i = 0; i < TRIES; i++) {
        snprintf(staged->name, sizeof staged->name, "%s.%ld-%u" TMS_DISK_UNFINISHED, text,
                 (long)getpid(), atomic_fetch_add(&disk->written, 1));
        if (create_locked(disk, staged)) return TAMIS_OK;
        if (errno != EEXIST) break;
    }
    return write_fails(disk, "cannot create", staged, error);
}

static bool write_plane(int file, uint64_t bytes, const void *plane) {
    static const uint8_t zeros[TMS_RECORD_PAGE];
    return tms_write_all(file, plane, bytes) &&
           tms_write_all(file, zeros, tms_whole_pages(bytes) - bytes);
}

static bool write_record(int file, const tms_record *record, const uint8_t *head,
                         const tamis_chunk_planes *chunk) {
    if (!tms_write_all(file, head, record->header_bytes)) return false;
    for (uint32_t i = 0; i < record->shape.n_layers; i++)
        if (!write_plane(file, record->planes[2 * i].bytes, chunk->k[i]) ||
            !write_plane(file, record->planes[2 * i + 1].bytes, chunk->v[i]))
            return false;
    return fsync(file) == 0;
}

tamis_status tms_disk_stage(tms_tier *tier, const tms_record *record, const uint8_t *head,
                            const tamis_chunk_planes *chunk, tms_staged **out, tamis_error *error) {
    tms_disk_tier *disk = (tms_disk_tier *)tier;
    tms_staged *staged = calloc(1, sizeof *staged);
    TMS_REQUIRE(staged, TAMIS_E_NO_MEMORY, "no memory to write a chunk");
    staged->bytes = record->record_bytes;
    tms_disk_name(record->key, staged->to);
    tamis_status status = create(disk, record->key, staged, error);
    if (status != TAMIS_OK) {
        free(staged);
        return status;
    }
    if (!write_record(staged->file, record, head, chunk)) {
        status = write_fails(disk, "writing", staged, error);
        tms_disk_discard(tier, staged);
        return status;
    }
    *out = staged;
    return TAMIS_OK;
}

void tms_disk_discard(tms_tier *tier, tms_staged *staged) {
    unlinkat(((tms_disk_tier *)tier)->fd, staged->name, 0);
    close(staged->file);
    free(staged);
}

tamis_status tms_disk_commit(tms_tier *tier, tms_staged *staged, tamis_error *error) {
    tms_disk_tier *disk = (tms_disk_tier *)tier;
    if (renameat(disk->fd, staged->name, disk->fd, staged->to) != 0) {
        const tamis_status status =
            write_fails(disk, "cannot give a chunk's name to", staged, error);
        tms_disk_discard(tier, staged);
        return status;
    }
    close(staged->file);
    free(staged);
    return TAMIS_OK;
}
