/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the reader of records: any bytes are a sound record, which then says the same in other
 * words, or are refused; each plane is what its checksum says, or E_DAMAGED. The input's bytes may be
 * mended first, so that what is behind checksums is reached too. */
#define XXH_INLINE_ALL
#include "lib/store/record.h"
#include "lib/core/bytes.h"
#include "tests/fuzz/refusal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

#define AT_CHECKSUM 16

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    refusal_abort_on_failure();
    return 0;
}

typedef struct bytes {
    uint8_t *at; /* of exactly the size */
    size_t size;
} bytes;

static tamis_status read_bytes(void *of, uint64_t offset, void *to, size_t size, size_t *got,
                               tamis_error *error) {
    const bytes *from = of;
    (void)error;
    *got = offset > from->size ? 0 : from->size - (size_t)offset;
    if (*got > size) *got = size;
    if (*got > 0) memcpy(to, from->at + offset, *got);
    return TAMIS_OK;
}

/* A checksum of the header that holds, of as many pages as the header claims. */
static void mend(bytes *b) {
    if (b->size < TMS_RECORD_PAGE) return;
    const uint32_t head = tms_get_u32(b->at + 12);
    if (head > b->size || head < TMS_RECORD_PAGE) return;
    memset(b->at + AT_CHECKSUM, 0, 8);
    tms_put_u64(b->at + AT_CHECKSUM, XXH3_64bits(b->at, head));
}

/* A sound header says all that its bytes say: written again, it is the same. */
static void check_header(const bytes *b, tms_record *record) {
    assert_true(record->record_bytes == b->size && record->header_bytes <= b->size);
    uint8_t *head = tms_record_encode(record);
    assert_non_null(head);
    assert_memory_equal(head, b->at, record->header_bytes);
    free(head);
}

static void check_planes(const tms_source *source, const tms_record *record) {
    uint8_t *plane = malloc(record->plane_bytes);
    assert_non_null(plane);
    for (uint32_t i = 0; i < tms_record_planes(record); i++) {
        tamis_error error = {0};
        const tamis_status status = tms_record_read_plane(source, record, i, plane, &error);
        if (status == TAMIS_OK) {
            assert_true(XXH3_64bits(plane, record->plane_bytes) == record->planes[i].sum);
        } else {
            assert_int_equal(status, TAMIS_E_DAMAGED);
            assert_non_null(strstr(error.text, "is not what was stored"));
        }
    }
    free(plane);
}

static void check_input(bytes *b) {
    tms_record record;
    tms_verdict verdict = TMS_ABSENT;
    const tms_source source = {b, b->size, read_bytes};
    assert_int_equal(tms_record_read(&source, &record, &verdict, NULL), TAMIS_OK);
    assert_true(verdict != TMS_ABSENT);
    if (verdict == TMS_SOUND) {
        check_header(b, &record);
        check_planes(&source, &record);
    } else
        assert_true(!record.planes && record.n_tokens == 0);
    tms_record_free(&record);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bytes b = {malloc(size + !size), size};
    assert_non_null(b.at);
    memcpy(b.at, data, size);
    check_input(&b);
    mend(&b);
    check_input(&b);
    free(b.at);
    return 0;
}
