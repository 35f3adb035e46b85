/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks by number, and a folder for a store. */
#include "tests/store/rig.h"

#include <dirent.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char base[RIG_MOST_PATH], folder[RIG_MOST_PATH + 16];

void rig_nap(long ms) {
    const struct timespec some = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&some, NULL);
}

void rig_chunk_make(rig_chunk *chunk, uint64_t number, uint32_t n_tokens) {
    assert_true(n_tokens >= 1 && n_tokens <= RIG_MOST);
    memset(chunk, 0, sizeof *chunk);
    for (uint32_t i = 0; i < n_tokens; i++)
        chunk->tokens[i] = (int32_t)(number * 7919 + i);
    chunk->put.id = (tamis_chunk_id){
        .tokens = chunk->tokens,
        .n_tokens = n_tokens,
        .shape = {
            .n_layers = RIG_LAYERS, .n_kv_heads = 2, .head_dim = 8, .dtype = TAMIS_F16, .sink = 1}};
    memcpy(chunk->put.id.fingerprint, "a model", 7);
    chunk->plane_bytes = tamis_chunk_plane_bytes(&chunk->put.id.shape, n_tokens);
    chunk->record_bytes = tamis_chunk_record_bytes(&chunk->put.id.shape, n_tokens);
    assert_int_equal(chunk->plane_bytes, 32 * n_tokens);
    chunk->bytes = malloc(2 * RIG_LAYERS * chunk->plane_bytes);
    assert_non_null(chunk->bytes);
    uint64_t state = number * 0x9e3779b97f4a7c15u + 1;
    for (uint64_t i = 0; i < 2 * RIG_LAYERS * chunk->plane_bytes; i += 8) {
        const uint64_t word = test_random(&state);
        memcpy(chunk->bytes + i, &word, 8);
    }
    for (uint32_t i = 0; i < RIG_LAYERS; i++) {
        chunk->k[i] = chunk->bytes + 2 * i * chunk->plane_bytes;
        chunk->v[i] = chunk->bytes + (2 * i + 1) * chunk->plane_bytes;
    }
    chunk->put.k = chunk->k;
    chunk->put.v = chunk->v;
}

void rig_chunk_free(rig_chunk *chunk) {
    free(chunk->bytes);
    chunk->bytes = NULL;
}

/* ---- The folder ------------------------------------------------------------------------------ */

void rig_in_memory(void) {
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 1);
}

const char *rig_folder(void) {
    const char *parent = getenv("TMPDIR");
    if (*base) return folder;
    assert_true(snprintf(base, sizeof base, "%s/tamis-store-XXXXXX", parent ? parent : "/tmp") <
                (int)sizeof base);
    assert_non_null(mkdtemp(base));
    snprintf(folder, sizeof folder, "%s/store", base);
    return folder;
}

static void empty_folder(const char *path) {
    char file[2 * RIG_MOST_PATH + 280];
    DIR *all = opendir(path);
    if (!all) return;
    for (const struct dirent *entry; (entry = readdir(all));) {
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        if (*entry->d_name != '.' && unlink(file) != 0) rmdir(file);
    }
    closedir(all);
}

void rig_cleanup(void) {
    if (!*base) return;
    empty_folder(folder);
    rmdir(folder);
    empty_folder(base);
    rmdir(base);
    *base = 0;
}

const char *rig_file(const rig_chunk *chunk) {
    static char path[2 * RIG_MOST_PATH];
    uint8_t key[16];
    OK(tamis_chunk_key(&chunk->put.id, key, &test_error));
    int used = snprintf(path, sizeof path, "%s/", rig_folder());
    for (int i = 0; i < 16; i++)
        used += snprintf(path + used, sizeof path - (size_t)used, "%02x", key[i]);
    snprintf(path + used, sizeof path - (size_t)used, ".kv");
    return path;
}

unsigned rig_count(const char *ending) {
    unsigned count = 0;
    DIR *all = opendir(rig_folder());
    assert_non_null(all);
    for (const struct dirent *entry; (entry = readdir(all));) {
        const size_t length = strlen(entry->d_name), wanted = strlen(ending);
        count += length >= wanted && strcmp(entry->d_name + length - wanted, ending) == 0;
    }
    closedir(all);
    return count;
}

uint64_t rig_bytes(void) {
    uint64_t bytes = 0;
    struct stat about;
    DIR *all = opendir(rig_folder());
    assert_non_null(all);
    for (const struct dirent *entry; (entry = readdir(all));)
        if (strstr(entry->d_name, ".kv") && fstatat(dirfd(all), entry->d_name, &about, 0) == 0)
            bytes += (uint64_t)about.st_size;
    closedir(all);
    return bytes;
}

/* ---- Stores ---------------------------------------------------------------------------------- */

tamis_store *rig_open(uint64_t memory_bytes, uint64_t disk_bytes, bool disk) {
    const tamis_store_params params = {.memory_bytes = memory_bytes,
                                       .disk_bytes = disk_bytes,
                                       .folder = disk ? rig_folder() : NULL};
    tamis_store *store = NULL;
    OK(tamis_store_create(&params, &store, &test_error));
    return store;
}

tamis_store_stats rig_stats(tamis_store *store) {
    tamis_store_stats stats;
    tamis_store_get_stats(store, &stats);
    return stats;
}

tamis_chunk *rig_get(tamis_store *store, const rig_chunk *chunk) {
    tamis_chunk *found = NULL;
    OK(tamis_store_get(store, &chunk->put.id, &found, &test_error));
    return found;
}

/* Reads all layers and compares; what else can be is E_DAMAGED. */
static tamis_status read_all(tamis_chunk *found, const rig_chunk *chunk) {
    uint8_t *k = malloc(chunk->plane_bytes), *v = malloc(chunk->plane_bytes);
    tamis_status status = TAMIS_OK;
    assert_true(k && v);
    for (uint32_t i = 0; status == TAMIS_OK && i < RIG_LAYERS; i++) {
        status = tamis_chunk_read(found, i, k, v, &test_error);
        if (status != TAMIS_OK) break;
        assert_memory_equal(k, chunk->k[i], chunk->plane_bytes);
        assert_memory_equal(v, chunk->v[i], chunk->plane_bytes);
    }
    free(k);
    free(v);
    return status;
}

void rig_check(tamis_chunk *found, const rig_chunk *chunk) {
    tamis_chunk_info info;
    tamis_chunk_get_info(found, &info);
    assert_int_equal(info.n_tokens, chunk->put.id.n_tokens);
    assert_memory_equal(info.tokens, chunk->tokens, 4 * info.n_tokens);
    assert_memory_equal(&info.shape, &chunk->put.id.shape, sizeof info.shape);
    OK(read_all(found, chunk));
}

bool rig_has(tamis_store *store, const rig_chunk *chunk) {
    tamis_chunk *found = rig_get(store, chunk);
    if (!found) return false;
    rig_check(found, chunk);
    tamis_chunk_release(&found);
    return true;
}

bool rig_has_or_damaged(tamis_store *store, const rig_chunk *chunk) {
    tamis_chunk *found = rig_get(store, chunk);
    const tamis_status status = found ? read_all(found, chunk) : TAMIS_E_DAMAGED;
    assert_true(status == TAMIS_OK || status == TAMIS_E_DAMAGED);
    tamis_chunk_release(&found);
    return status == TAMIS_OK;
}
