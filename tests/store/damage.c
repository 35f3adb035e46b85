/* SPDX-License-Identifier: Apache-2.0 */
/* Damaged records: bytes that change, files that are cut short or grow. Each must be a miss or
 * E_DAMAGED, be removed and be counted; none may be read as sound.
 * Usage: test-store-damage [ROUNDS] */
#define XXH_INLINE_ALL
#include "lib/core/bytes.h"
#include "lib/store/record.h"
#include "tests/store/rig.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static unsigned rounds = 10000;

static int teardown(void **state) {
    (void)state;
    rig_cleanup();
    return 0;
}

/* The file as it is when sound. */
typedef struct file_image {
    const char *path;
    uint8_t *bytes;
    size_t size;
} file_image;

static void take(file_image *image, const char *path) {
    struct stat about;
    const int file = open(path, O_RDONLY);
    assert_true(file >= 0 && fstat(file, &about) == 0);
    *image = (file_image){path, malloc((size_t)about.st_size), (size_t)about.st_size};
    assert_int_equal(read(file, image->bytes, image->size), image->size);
    close(file);
}

static void place(const file_image *image, const uint8_t *bytes, size_t size) {
    const int file = open(image->path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(file >= 0);
    assert_int_equal(write(file, bytes, size), size);
    close(file);
}

/* Damages the copy in one of several ways; returns its new size. The version apart, whose damage
 * makes a record foreign: a miss too, but one that stays. */
static size_t damage(uint8_t *bytes, size_t size, uint64_t *state, char *what, size_t room) {
    const uint32_t kind = test_below(state, 5);
    size_t at = test_below(state, (uint32_t)size);
    while (at >= 8 && at < 12)
        at = test_below(state, (uint32_t)size);
    if (kind == 0) { /* one bit */
        bytes[at] ^= (uint8_t)(1u << test_below(state, 8));
    } else if (kind == 1) { /* one byte, near the start, where numbers are */
        at = test_below(state, TMS_RECORD_FIXED - 4);
        at += at >= 8 ? 4 : 0;
        bytes[at] = (uint8_t)(bytes[at] + 1 + test_below(state, 255));
    } else if (kind == 2) { /* a block of zeros, as file systems leave after a crash */
        at = at / 512 * 512 + (at < 512 ? 12 : 0);
        const size_t block = size - at < 512 ? size - at : 512;
        bool was_zero = true;
        for (size_t i = 0; i < block; i++)
            was_zero = was_zero && bytes[at + i] == 0;
        memset(bytes + at, was_zero ? 0xff : 0, block);
    } else if (kind == 3) { /* cut short */
        size = at;
    } else { /* longer */
        const size_t more = 1 + test_below(state, 5000);
        memset(bytes + size, (int)test_below(state, 2), more);
        size += more;
    }
    snprintf(what, room, "kind %" PRIu32 " at %zu", kind, at);
    return size;
}

static void each_damage_is_found(void **state) {
    (void)state;
    rig_chunk chunk;
    file_image image;
    char what[64];
    uint64_t random = 16;
    rig_chunk_make(&chunk, 1, 130); /* planes of a page and a bit */
    tamis_store *store = rig_open(0, 0, true);
    OK(tamis_store_put(store, &chunk.put, &test_error));
    take(&image, rig_file(&chunk));
    uint8_t *bytes = malloc(image.size + 5000);
    for (unsigned i = 0; i < rounds; i++) {
        memcpy(bytes, image.bytes, image.size);
        const size_t size = damage(bytes, image.size, &random, what, sizeof what);
        place(&image, bytes, size);
        if (rig_has_or_damaged(store, &chunk)) fail_msg("round %u: %s is not found", i, what);
        if (access(image.path, F_OK) == 0) fail_msg("round %u: %s is not removed", i, what);
    }
    assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_DISK].damaged, rounds);
    assert_int_equal(rig_stats(store).foreign, 0);
    assert_int_equal(rig_stats(store).failed, 0);
    place(&image, image.bytes, image.size);
    assert_true(rig_has(store, &chunk));
    tamis_store_destroy(&store);
    free(bytes);
    free(image.bytes);
    rig_chunk_free(&chunk);
}

/* Whether such a byte of a header says which record it is, or is a sum of a plane. */
static bool tells_which(size_t at, const rig_chunk *chunk) {
    const size_t tokens = TMS_RECORD_FIXED + 2 * RIG_LAYERS * TMS_RECORD_PLANE;
    return (at >= 32 && at < 64) || (at >= 80 && at < 96) || (at >= 116 && at < 120) ||
           (at >= tokens && at < tokens + 4 * chunk->put.id.n_tokens);
}

static bool is_sum(size_t at) {
    return at >= TMS_RECORD_FIXED && at < TMS_RECORD_FIXED + 2 * RIG_LAYERS * TMS_RECORD_PLANE &&
           (at - TMS_RECORD_FIXED) % TMS_RECORD_PLANE >= 16;
}

/* Each byte of the header is another, and the header's checksum is of what it says: another version
 * or codec is passed over, another chunk is a miss, and all else is damaged. */
static void what_checksums_do_not_see(void **state) {
    (void)state;
    static const uint8_t changes[] = {1, 3, 0x80};
    rig_chunk chunk;
    file_image image;
    rig_chunk_make(&chunk, 1, 4);
    tamis_store *store = rig_open(0, 0, true);
    OK(tamis_store_put(store, &chunk.put, &test_error));
    take(&image, rig_file(&chunk));
    uint8_t *bytes = malloc(image.size);
    for (size_t i = 0; i < TMS_RECORD_PAGE * sizeof changes; i++) {
        const size_t at = i / sizeof changes;
        const uint8_t change = changes[i % sizeof changes];
        if (at >= 16 && at < 24) continue; /* the checksum */
        memcpy(bytes, image.bytes, image.size);
        bytes[at] ^= change;
        memset(bytes + 16, 0, 8);
        tms_put_u64(bytes + 16, XXH3_64bits(bytes, TMS_RECORD_PAGE));
        place(&image, bytes, image.size);
        const tamis_store_stats was = rig_stats(store);
        tamis_chunk *found = rig_get(store, &chunk);
        if ((found != NULL) != is_sum(at)) fail_msg("byte %zu ^ %d: taken", at, change);
        tamis_chunk_release(&found);
        if (rig_has_or_damaged(store, &chunk)) fail_msg("byte %zu ^ %d: read", at, change);
        const tamis_store_stats is = rig_stats(store);
        const uint64_t damaged = is.tiers[TAMIS_TIER_DISK].damaged - was.tiers[1].damaged;
        const bool foreign = (at >= 8 && at < 12) || (at >= 24 && at < 32);
        const bool type = (at == 112 && bytes[at] == TAMIS_BF16) || /* of planes, of the cache */
                          (at == 136 && tms_dtype_known(bytes[at]));
        const bool other = tells_which(at, &chunk) || type;
        if (is.foreign - was.foreign != 2u * foreign) fail_msg("byte %zu: foreign", at);
        if (is.mismatched - was.mismatched != 2u * other) fail_msg("byte %zu: mismatched", at);
        if (damaged != !(foreign || other)) fail_msg("byte %zu: damaged %d", at, (int)damaged);
    }
    place(&image, image.bytes, image.size);
    assert_true(rig_has(store, &chunk));
    tamis_store_destroy(&store);
    free(bytes), free(image.bytes);
    rig_chunk_free(&chunk);
}

/* Every byte of the header and some of the planes once, by what a start and verify see. */
static void verify_finds_each_byte(void **state) {
    (void)state;
    rig_chunk chunk;
    file_image image;
    tamis_store_found found;
    rig_chunk_make(&chunk, 1, 4);
    tamis_store *store = rig_open(0, 0, true);
    OK(tamis_store_put(store, &chunk.put, &test_error));
    take(&image, rig_file(&chunk));
    const size_t stride = rounds < 10000 ? 97 : 7;
    for (size_t at = 0; at < image.size; at += at < TMS_RECORD_PAGE ? 1 : stride) {
        image.bytes[at] ^= 0x10;
        place(&image, image.bytes, image.size);
        image.bytes[at] ^= 0x10;
        OK(tamis_store_verify(store, &found, &test_error));
        if (found.damaged + found.foreign != 1 || found.records != 0)
            fail_msg("byte %zu is not found", at);
        assert_int_equal(found.foreign, at >= 8 && at < 12);
    }
    tamis_store_destroy(&store);
    free(image.bytes);
    rig_chunk_free(&chunk);
}

int main(int argc, char **argv) {
    if (argc > 1) rounds = (unsigned)strtoul(argv[1], NULL, 10);
    rig_in_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(each_damage_is_found, teardown),
        cmocka_unit_test_teardown(what_checksums_do_not_see, teardown),
        cmocka_unit_test_teardown(verify_finds_each_byte, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
