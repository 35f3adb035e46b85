/* SPDX-License-Identifier: Apache-2.0 */
/* Files of the disk tier: their names, whether one still has its name, and what errno says of one. */
#include "lib/store/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

tamis_status tms_disk_fails(const tms_disk_tier *disk, const char *what, const char *name,
                            tamis_error *error) {
    return tms_error_set(error, TAMIS_E_IO, "%s %s%s%s: %s", what, disk->folder, *name ? "/" : "",
                         name, strerror(errno));
}

void tms_disk_name(const uint8_t *key, char name[TMS_DISK_NAME]) {
    tms_hex(key, name);
    memcpy(name + TMS_KEY_TEXT - 1, ".kv", sizeof ".kv");
}

bool tms_disk_same(int file, int folder, const char *name) {
    struct stat a, b;
    errno = 0;
    if (fstat(file, &a) != 0 || fstatat(folder, name, &b, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) errno = 0;
        return false;
    }
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}
