/* SPDX-License-Identifier: Apache-2.0 */
/* Where chunks come from: a reader that is as slow as a stated disk, and files that the page cache
 * does not have. */
#define _DEFAULT_SOURCE /* mincore */
#include "bench/ttft.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- A slow disk ----------------------------------------------------------------------------- */

static void sleep_until(double seconds) {
    const double left = seconds - cli_seconds();
    if (left <= 0) return;
    struct timespec time = {.tv_sec = (time_t)left,
                            .tv_nsec = (long)(1e9 * (left - (double)(time_t)left))};
    while (nanosleep(&time, &time) != 0 && errno == EINTR) {
    }
}

tamis_status ttft_read_throttled(void *user, tamis_chunk *chunk, uint32_t layer, void *k, void *v,
                                 tamis_error *error) {
    ttft_source *source = user;
    tamis_chunk_info info;
    const double begun = cli_seconds();
    const tamis_status status = tamis_chunk_read(chunk, layer, k, v, error);
    tamis_chunk_get_info(chunk, &info);
    if (source->free_at < begun) source->free_at = begun; /* the line was idle */
    source->free_at +=
        (double)((k != NULL) + (v != NULL)) * (double)info.plane_bytes / source->bytes_per_s;
    sleep_until(source->free_at);
    return status;
}

/* ---- The page cache -------------------------------------------------------------------------- */

/* Adds a file's pages, and those of them that the page cache has. */
static void count_pages(int file, size_t bytes, uint64_t *pages, uint64_t *cached) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (bytes + page - 1) / page;
    unsigned char *present = malloc(n > 0 ? n : 1);
    void *map = bytes > 0 ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    if (present != NULL && map != MAP_FAILED && mincore(map, bytes, present) == 0) {
        *pages += n;
        for (size_t i = 0; i < n; i++)
            *cached += present[i] & 1u;
    }
    if (map != MAP_FAILED) munmap(map, bytes);
    free(present);
}

static bool drop_file(int folder, const char *name, uint64_t *pages, uint64_t *cached) {
    struct stat of;
    const int file = openat(folder, name, O_RDONLY | O_CLOEXEC);
    if (file < 0) return errno == ENOENT; /* another process has removed it */
    const bool known = fstat(file, &of) == 0;
    const bool asked =
        known && S_ISREG(of.st_mode) && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0;
    if (asked) count_pages(file, (size_t)of.st_size, pages, cached);
    close(file);
    return known;
}

tamis_status ttft_drop(const char *folder, double *share, tamis_error *error) {
    uint64_t pages = 0, cached = 0;
    bool all = true;
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return cli_error(error, TAMIS_E_IO, "%s: cannot be read: %s", folder, strerror(errno));
    for (const struct dirent *entry; all && (entry = readdir(dir)) != NULL;) {
        const size_t length = strlen(entry->d_name);
        if (length > 3 && strcmp(entry->d_name + length - 3, ".kv") == 0)
            all = drop_file(dirfd(dir), entry->d_name, &pages, &cached);
    }
    if (!all)
        cli_error(error, TAMIS_E_IO, "%s: a record cannot be opened: %s", folder, strerror(errno));
    closedir(dir);
    *share = pages > 0 ? (double)cached / (double)pages : 1;
    return all ? TAMIS_OK : TAMIS_E_IO;
}
