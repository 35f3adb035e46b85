/* SPDX-License-Identifier: Apache-2.0 */
/* Allocating and writing memory, creating and destroying arenas. */
#include "lib/plan/arena.h"

#include <inttypes.h>
#include <stdlib.h>

tamis_status tms_memory_take(tms_memory *memory, uint64_t bytes, tms_mem **out,
                             tamis_error *error) {
    if (bytes == 0) return TAMIS_OK;
    if (!memory->measures) TMS_TRY(tms_device_alloc(memory->dev, bytes, out, error));
    memory->taken.device_bytes += bytes;
    if (bytes > memory->taken.largest_bytes) memory->taken.largest_bytes = bytes;
    return TAMIS_OK;
}

void tms_memory_free(tms_memory *memory, uint64_t bytes, tms_mem *mem) {
    tms_device_free(memory->dev, mem);
    memory->taken.device_bytes -= bytes;
}

void *tms_memory_host(tms_memory *memory, uint64_t n, size_t size) {
    void *host = n <= SIZE_MAX / size ? calloc(n, size) : NULL;
    if (host) memory->taken.host_bytes += n * size;
    return host;
}

tamis_status tms_memory_send(tms_device *dev, tms_ref to, const void *from, uint64_t bytes,
                             tamis_error *error) {
    const uint64_t piece = 1u << 20;
    for (uint64_t at = 0; at < bytes; at += piece) {
        uint64_t left = bytes - at, n = left < piece ? left : piece;
        tms_ref part = {to.mem, to.offset + at};
        TMS_TRY(tms_device_write(dev, part, (const char *)from + at, n, error));
    }
    return TAMIS_OK;
}

tamis_status tms_arena_create(tms_arena *arena, tms_memory *memory, uint64_t n, const char *what,
                              tamis_error *error) {
    TMS_REQUIRE(n <= INT32_MAX, TAMIS_E_ARGUMENT,
                "the tables of %s take %" PRIu64 " entries, which exceed %" PRId32, what, n,
                INT32_MAX);
    arena->host = tms_memory_host(memory, n, sizeof *arena->host);
    TMS_REQUIRE(arena->host, TAMIS_E_NO_MEMORY,
                "no host memory for %" PRIu64 " entries in the tables of %s", n, what);
    return tms_memory_take(memory, n * sizeof *arena->host, &arena->mem, error);
}

void tms_arena_destroy(tms_arena *arena, tms_device *dev) {
    tms_device_free(dev, arena->mem);
    free(arena->host);
}
