/* SPDX-License-Identifier: Apache-2.0 */
/* A record in memory, whose planes may come one by one, from several threads, as they are read
 * from a later tier. A plane never changes once it is there. */
#ifndef TMS_STORE_MEMORY_H
#define TMS_STORE_MEMORY_H

#include "lib/store/record.h"

typedef struct tms_copy tms_copy;

/* Without any plane. E_NO_MEMORY. */
tamis_status tms_copy_new(const tms_record *record, tms_copy **out, tamis_error *error);
void tms_copy_free(tms_copy *copy); /* accepts NULL */

const tms_record *tms_copy_record(const tms_copy *copy);
bool tms_copy_complete(const tms_copy *copy);

/* Copies the plane to `to`; false where it is not there. */
bool tms_copy_read(const tms_copy *copy, uint32_t plane, void *to);
/* Takes the plane in, unless it is there or another thread is bringing it. */
void tms_copy_fill(tms_copy *copy, uint32_t plane, const void *from);

#endif
