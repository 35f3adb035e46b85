/* SPDX-License-Identifier: Apache-2.0 */
/* K and V of a chunk or of a prefix on their way into a store. */
#ifndef TMS_MODEL_RECORDING_H
#define TMS_MODEL_RECORDING_H

#include "lib/model/model.h"
#include <tamis/record.h>

typedef struct tms_recording {
    tamis_runner *runner;
    uint32_t width;      /* elements of a row of a plane */
    uint32_t n_rows;     /* of the planes */
    uint32_t n_sink;     /* rows before them, which are dropped */
    uint32_t done;       /* rows of the steps before, with the sink's */
    uint32_t first_page; /* of a prefix: the page with which the planes begin */
    uint8_t **planes;    /* [2 * n_layers]: K of each layer, then V of each */
    float *wide;       /* [max_rows][width]: a step's rows, where planes are narrower; else NULL */
    tamis_chunk_id id; /* of the chunk, or of all tokens of the prefix */
} tms_recording;

/* Takes memory for the planes, or gives it back, also after a failure. */
tamis_status tms_recording_open(tms_recording *r, tamis_error *error);
void tms_recording_close(tms_recording *r);

/* Takes rows [row, row + n_rows) of a step's K and V of a layer, which come behind those that are done,
 * as a tap finds them (tms_tap). Waits. E_UNSUPPORTED: a value that the dtype does not hold. */
tamis_status tms_recording_take(const tms_recording *r, uint32_t layer, uint32_t row,
                                uint32_t n_rows, tamis_error *error);
/* Rows of a plane from `first` on, as they come; `name` is K or V. */
tamis_status tms_recording_put_rows(const tms_recording *r, const char *name, uint32_t layer,
                                    uint8_t *plane, uint32_t first, const float *rows, uint32_t n,
                                    tamis_error *error);
/* Puts pages [found, n_pages) of the prefix; adds to *n_stored how many. */
tamis_status tms_recording_put_pages(const tms_recording *r, tamis_store *store, uint32_t tiers,
                                     size_t found, size_t n_pages, uint32_t page_tokens,
                                     uint32_t *n_stored, tamis_error *error);

#endif
