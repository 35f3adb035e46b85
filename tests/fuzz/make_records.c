/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the corpus of fuzz-record: records of small chunks, and one of another version.
 * Usage: make-records FOLDER */
#include "lib/store/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int write_file(const char *folder, const char *name, const uint8_t *bytes, size_t size) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    const int done = f && fwrite(bytes, 1, size, f) == size;
    return (f && fclose(f) != 0) || !done;
}

/* Planes of zeros, of at most a page. */
static int write_record(const char *folder, const char *name, uint32_t n_tokens, uint32_t n_layers,
                        tamis_dtype dtype, uint8_t parent, uint32_t version) {
    static const uint8_t plane[4096];
    static int32_t tokens[1100];
    const void *planes[8] = {plane, plane, plane, plane, plane, plane, plane, plane};
    for (uint32_t i = 0; i < n_tokens; i++)
        tokens[i] = (int32_t)i;
    const tamis_chunk_planes chunk = {.id = {.tokens = tokens,
                                             .n_tokens = n_tokens,
                                             .parent = {parent},
                                             .shape = {.n_layers = n_layers,
                                                       .n_kv_heads = 1,
                                                       .head_dim = 2,
                                                       .dtype = dtype,
                                                       .sink = !parent,
                                                       .cache_dtype = TAMIS_F16}},
                                      .k = planes,
                                      .v = planes};
    tms_record record;
    if (tms_record_describe(&chunk, &record, NULL) != TAMIS_OK) return 1;
    uint8_t *head = tms_record_encode(&record);
    uint8_t *bytes = calloc(1, record.record_bytes);
    int failed = !head || !bytes;
    if (!failed) {
        memcpy(bytes, head, record.header_bytes);
        bytes[8] = (uint8_t)version;
        failed = write_file(folder, name, bytes, record.record_bytes);
    }
    free(bytes);
    free(head);
    tms_record_free(&record);
    return failed;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    const char *to = argv[1];
    return write_record(to, "one-token", 1, 1, TAMIS_F32, 0, TMS_RECORD_VERSION) ||
           write_record(to, "two-layers", 7, 2, TAMIS_BF16, 9, TMS_RECORD_VERSION) ||
           write_record(to, "long-header", 1000, 1, TAMIS_F16, 0, TMS_RECORD_VERSION) ||
           write_record(to, "other-version", 1, 1, TAMIS_F16, 0, TMS_RECORD_VERSION - 1);
}
