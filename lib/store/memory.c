/* SPDX-License-Identifier: Apache-2.0 */
/* Records in memory. */
#include "lib/store/memory.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Of a plane: whoever turns ABSENT into COMING writes it, and readers wait for no one. */
enum { ABSENT, COMING, THERE };

struct tms_copy {
    tms_record record;
    uint8_t *planes; /* [2 * n_layers], each from a page's start */
    atomic_uchar *states;
    atomic_uint there;
};

tamis_status tms_copy_new(const tms_record *record, tms_copy **out, tamis_error *error) {
    const uint64_t bytes = tms_whole_pages(record->plane_bytes) * tms_record_planes(record);
    void *planes = NULL;
    *out = NULL;
    tms_copy *copy = calloc(1, sizeof *copy);
    TMS_REQUIRE(copy, TAMIS_E_NO_MEMORY, "no memory for a chunk");
    tamis_status status = tms_record_copy(record, &copy->record, error);
    if (status == TAMIS_OK) copy->states = calloc(tms_record_planes(record), 1);
    if (status == TAMIS_OK && copy->states && posix_memalign(&planes, TMS_RECORD_PAGE, bytes) == 0)
        copy->planes = planes;
    if (status == TAMIS_OK && !copy->planes)
        status = tms_error_set(error, TAMIS_E_NO_MEMORY,
                               "no memory for a chunk of %" PRIu64 " bytes", bytes);
    if (status != TAMIS_OK) {
        tms_copy_free(copy);
        return status;
    }
    *out = copy;
    return TAMIS_OK;
}

void tms_copy_free(tms_copy *copy) {
    if (!copy) return;
    tms_record_free(&copy->record);
    free(copy->planes);
    free(copy->states);
    free(copy);
}

const tms_record *tms_copy_record(const tms_copy *copy) {
    return &copy->record;
}

bool tms_copy_complete(const tms_copy *copy) {
    return atomic_load(&copy->there) == tms_record_planes(&copy->record);
}

static uint8_t *plane_of(const tms_copy *copy, uint32_t plane) {
    return copy->planes + tms_whole_pages(copy->record.plane_bytes) * plane;
}

bool tms_copy_read(const tms_copy *copy, uint32_t plane, void *to) {
    if (atomic_load(&copy->states[plane]) != THERE) return false;
    memcpy(to, plane_of(copy, plane), copy->record.plane_bytes);
    return true;
}

void tms_copy_fill(tms_copy *copy, uint32_t plane, const void *from) {
    unsigned char absent = ABSENT;
    if (!atomic_compare_exchange_strong(&copy->states[plane], &absent, COMING)) return;
    memcpy(plane_of(copy, plane), from, copy->record.plane_bytes);
    atomic_store(&copy->states[plane], THERE);
    atomic_fetch_add(&copy->there, 1);
}
