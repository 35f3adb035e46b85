/* SPDX-License-Identifier: Apache-2.0 */
/* The disk tier inside: what finding records (disk.c) and writing them (disk_write.c) share:
 * files (disk_files.c). */
#ifndef TMS_STORE_DISK_H
#define TMS_STORE_DISK_H

#include "lib/store/tier.h"

#include <stdatomic.h>

#define TMS_DISK_NAME       (TMS_KEY_TEXT + 3) /* <key>.kv */
#define TMS_DISK_UNFINISHED ".tmp"             /* how names of unfinished files end */

typedef struct tms_disk_tier {
    tms_tier tier;
    char *folder; /* for messages */
    int fd;
    atomic_uint written; /* makes names of unfinished files differ */
} tms_disk_tier;

/* E_IO with errno's reason; `name` is empty where the folder itself is meant. */
tamis_status tms_disk_fails(const tms_disk_tier *disk, const char *what, const char *name,
                            tamis_error *error);
void tms_disk_name(const uint8_t *key, char name[TMS_DISK_NAME]);
/* Whether the open file still has that name. False with errno 0: it has not; else nobody knows. */
bool tms_disk_same(int file, int folder, const char *name);

tamis_status tms_disk_stage(tms_tier *tier, const tms_record *record, const uint8_t *head,
                            const tamis_chunk_planes *chunk, tms_staged **out, tamis_error *error);
void tms_disk_discard(tms_tier *tier, tms_staged *staged);
tamis_status tms_disk_commit(tms_tier *tier, tms_staged *staged, tamis_error *error);

#endif
