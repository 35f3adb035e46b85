/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's memory on the device, and arenas in it. An arena holds tables of int32, one after
 * another, which are filled on the host and uploaded in one write. */
#ifndef TMS_PLAN_ARENA_H
#define TMS_PLAN_ARENA_H

#include "lib/core/core.h"
#include <tamis/plan.h>

/* The memory that a plan takes. While it `measures`, memory of the device is counted, not taken. */
typedef struct tms_memory {
    tms_device *dev;
    bool measures;
    tamis_plan_memory taken;
} tms_memory;

/* Allocates `bytes` bytes of the device; with 0 bytes, or while memory is measured, *out stays as it is. */
tamis_status tms_memory_take(tms_memory *memory, uint64_t bytes, tms_mem **out, tamis_error *error);
/* Gives memory back that was taken so; mem may be NULL. */
void tms_memory_free(tms_memory *memory, uint64_t bytes, tms_mem *mem);
/* calloc, counted. */
void *tms_memory_host(tms_memory *memory, uint64_t n, size_t size);

/* Enqueues a write in pieces that no backend waits for. */
tamis_status tms_memory_send(tms_device *dev, tms_ref to, const void *from, uint64_t bytes,
                             tamis_error *error);

/* Offsets in an arena are in elements. */
typedef struct tms_arena {
    int32_t *host;
    tms_mem *mem;
} tms_arena;

/* Allocates room for `n` >= 1 elements. `what` names the tables in messages. E_ARGUMENT if there
 * are too many elements, E_NO_MEMORY. */
tamis_status tms_arena_create(tms_arena *arena, tms_memory *memory, uint64_t n, const char *what,
                              tamis_error *error);
void tms_arena_destroy(tms_arena *arena, tms_device *dev);

/* Rounds up to a multiple of 64 bytes, in elements: every table begins at one. */
static inline uint64_t tms_align_ints(uint64_t n) {
    return tms_divide_up(n, 16) * 16;
}

/* The offset of a table of `n` elements; *end advances past it. */
static inline uint64_t tms_arena_place(uint64_t *end, uint64_t n) {
    uint64_t at = *end;
    *end += tms_align_ints(n);
    return at;
}

/* The device memory at an offset. */
static inline tms_ref tms_arena_ref(const tms_arena *arena, uint64_t at) {
    return (tms_ref){arena->mem, at * sizeof(int32_t)};
}

/* Sends elements [first, end). */
static inline tamis_status tms_arena_send(const tms_arena *arena, tms_device *dev, uint64_t first,
                                          uint64_t end, tamis_error *error) {
    return tms_memory_send(dev, tms_arena_ref(arena, first), arena->host + first,
                           (end - first) * sizeof *arena->host, error);
}

#endif
