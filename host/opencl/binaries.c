/* SPDX-License-Identifier: Apache-2.0 */
/* Binaries of programs, kept in the user's cache folder for the next process: not every driver
 * keeps what it has compiled. A file is named after a hash of everything on which its content
 * depends (device, driver, options, source); one that is missing, cut short or damaged is a
 * miss. On CPUs a binary is native code that runs in this process: what another user may have
 * written is passed over. */
#define XXH_INLINE_ALL
#include "host/base/file.h"
#include "host/opencl/opencl.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define PATH_BYTES 1024
#define MOST_BYTES (256u << 20) /* of a binary */

/* What a file begins with; the binary follows. */
typedef struct header {
    char magic[8];
    uint8_t key[16]; /* the hash in the file's name */
    uint64_t bytes, checksum;
} header;

static const char MAGIC[8] = {'t', 'a', 'm', 'i', 's', 'c', 'l', '1'};

/* ---- Where a program lies -------------------------------------------------------------------- */

/* The folder, cut where it is too long; false if nothing is kept. A folder that is named is used
 * for every driver; the one in the user's cache folder only for drivers that keep no programs
 * themselves. */
static bool folder_of(const tms_cl_device *cl, char *to) {
    const char *named = tms_env("TAMIS_KERNEL_CACHE");
    const char *cache = tms_env("XDG_CACHE_HOME"), *home = tms_env("HOME");
    int length = 0;
    if (named)
        length = strcmp(named, "none") == 0 ? 0 : snprintf(to, PATH_BYTES, "%s", named);
    else if (cl->keeps_programs)
        return false;
    else if (cache && *cache == '/')
        length = snprintf(to, PATH_BYTES, "%s/tamis/opencl", cache);
    else if (home && *home == '/')
        length = snprintf(to, PATH_BYTES, "%s/.cache/tamis/opencl", home);
    return length > 0;
}

static void add_text(XXH3_state_t *hash, const char *text) {
    XXH3_128bits_update(hash, text, strlen(text) + 1);
}

static void hash_of(const tms_cl_device *cl, const char *options, const char *source,
                    uint8_t key[16]) {
    static const cl_device_info infos[] = {CL_DEVICE_NAME, CL_DEVICE_VENDOR, CL_DEVICE_VERSION,
                                           CL_DRIVER_VERSION, CL_DEVICE_EXTENSIONS};
    XXH3_state_t hash;
    XXH128_canonical_t canonical;
    XXH3_128bits_reset(&hash);
    for (size_t i = 0; i < sizeof infos / sizeof *infos; i++) {
        char text[4096] = "";
        clGetDeviceInfo(cl->id, infos[i], sizeof text - 1, text, NULL);
        add_text(&hash, text);
    }
    add_text(&hash, options);
    add_text(&hash, source);
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&hash));
    memcpy(key, canonical.digest, sizeof canonical.digest);
}

/* Whether the folder may be used; a warning comes once for a device. */
static bool is_trusted(tms_cl_device *cl, const char *folder) {
    tamis_error error;
    if (cl->cache_judged) return !cl->cache_refused;
    cl->cache_judged = true;
    cl->cache_refused = tms_path_check(folder, &error) != TAMIS_OK;
    if (cl->cache_refused)
        tms_log_line(&cl->base.log, TAMIS_LOG_WARN,
                     "kernel cache: %s is passed over, and kernels are compiled anew: %s", folder,
                     error.text);
    return !cl->cache_refused;
}

bool tms_cl_cache_entry_of(tms_cl_device *cl, const char *options, const char *source,
                           tms_cl_cache_entry *entry) {
    char folder[PATH_BYTES];
    if (!folder_of(cl, folder)) return false;
    hash_of(cl, options, source, entry->key);
    char name[2 * sizeof entry->key + 1];
    for (size_t i = 0; i < sizeof entry->key; i++)
        snprintf(name + 2 * i, 3, "%02x", entry->key[i]);
    if (snprintf(entry->path, PATH_BYTES, "%s/%s.bin", folder, name) < PATH_BYTES)
        return is_trusted(cl, folder);
    tms_log_line(&cl->base.log, TAMIS_LOG_INFO, "kernel cache: the folder's name is too long");
    return false;
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* Whether a file of n bytes holds the entry's binary, whole; *h is then its header. */
static bool is_whole(const tms_cl_cache_entry *entry, const char *file, size_t n, header *h) {
    if (n <= sizeof *h) return false;
    memcpy(h, file, sizeof *h);
    return memcmp(h->magic, MAGIC, sizeof MAGIC) == 0 &&
           memcmp(h->key, entry->key, sizeof h->key) == 0 && h->bytes == n - sizeof *h &&
           XXH3_64bits(file + sizeof *h, h->bytes) == h->checksum;
}

/* The entry's file, which the caller frees, or NULL; a file that is no binary of ours is a miss,
 * with a line in the log unless it is one that was damaged. */
static char *read_file(tms_cl_device *cl, const tms_cl_cache_entry *entry, header *h) {
    char *file;
    size_t n;
    tamis_error error;
    const tamis_status status =
        tms_file_read_trusted(entry->path, sizeof *h + MOST_BYTES, &file, &n, &error);
    if (status != TAMIS_OK)
        tms_log_line(&cl->base.log, status == TAMIS_E_STATE ? TAMIS_LOG_WARN : TAMIS_LOG_INFO,
                     "kernel cache: a program is passed over: %s", error.text);
    if (!file || is_whole(entry, file, n, h)) return file;
    free(file);
    return NULL;
}

cl_program tms_cl_cache_load(tms_cl_device *cl, const tms_cl_cache_entry *entry,
                             const char *options) {
    header h;
    char *file = read_file(cl, entry, &h);
    if (!file) return NULL;
    const uint8_t *binary = (const uint8_t *)file + sizeof h;
    const size_t bytes = h.bytes;
    cl_int taken, code;
    cl_program program =
        clCreateProgramWithBinary(cl->context, 1, &cl->id, &bytes, &binary, &taken, &code);
    free(file);
    if (code == CL_SUCCESS) code = clBuildProgram(program, 1, &cl->id, options, NULL, NULL);
    if (code == CL_SUCCESS) return program;
    if (program) clReleaseProgram(program);
    return NULL;
}

/* ---- Writing --------------------------------------------------------------------------------- */

static void make_folders(const char *path) {
    char folder[PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(folder, 0700); /* a failure shows when the file is created */
        *slash = '/';
    }
}

/* Writes the file under another name first, so that nobody ever reads half of it. */
static bool write_binary(const tms_cl_cache_entry *entry, const uint8_t *binary, size_t bytes) {
    char path[PATH_BYTES + 16];
    header h = {.bytes = bytes, .checksum = XXH3_64bits(binary, bytes)};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    memcpy(h.key, entry->key, sizeof h.key);
    make_folders(entry->path);
    snprintf(path, sizeof path, "%s.XXXXXX", entry->path);
    const int file = mkstemp(path);
    FILE *f = file >= 0 ? fdopen(file, "wb") : NULL;
    if (!f) {
        if (file >= 0) close(file);
        return false;
    }
    bool done = fwrite(&h, sizeof h, 1, f) == 1 && fwrite(binary, 1, bytes, f) == bytes;
    done = fclose(f) == 0 && done;
    done = done && rename(path, entry->path) == 0;
    if (!done) unlink(path);
    return done;
}

void tms_cl_cache_store(tms_cl_device *cl, const tms_cl_cache_entry *entry, cl_program program) {
    size_t bytes = 0;
    cl_int code = clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL);
    uint8_t *binary = code == CL_SUCCESS && bytes > 0 && bytes <= MOST_BYTES ? malloc(bytes) : NULL;
    if (binary) code = clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL);
    if (binary && code == CL_SUCCESS && !write_binary(entry, binary, bytes))
        tms_log_line(&cl->base.log, TAMIS_LOG_INFO, "kernel cache: %s cannot be written: %s",
                     entry->path, strerror(errno));
    free(binary);
}
