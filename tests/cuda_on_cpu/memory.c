/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory and pinned host memory. Addresses are never given out twice, so that a use after
 * free is always seen. */
#include "on_cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define REGION_BYTES ((size_t)4 << 40) /* of addresses, for all that a process ever allocates */
#define DEVICE_BYTES ((size_t)4 << 30)
#define PAGE         ((size_t)64 << 10) /* a multiple of any system's */
#define MOST_FILLED  ((size_t)16 << 20) /* larger allocations begin as zeros */
#define MOST_PINNED  ((size_t)64 << 30) /* in one piece; sanitizers end the program above 1 TiB */

static struct {
    uintptr_t begin; /* of the region */
    size_t used;     /* of the region */
    size_t live;     /* bytes not freed */
    cpu_allocation *list;
    size_t n, capacity;
    struct {
        void *begin;
        size_t bytes;
    } * pinned;
    size_t n_pinned;
} memory;

/* ---- Device memory --------------------------------------------------------------------------- */

/* How many allocations begin at or before `at`; begins ascend. */
static size_t count_up_to(uintptr_t at) {
    size_t low = 0, high = memory.n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (memory.list[middle].begin <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const cpu_allocation *cpu_allocation_find(uintptr_t at) {
    const size_t n = count_up_to(at);
    return n ? &memory.list[n - 1] : NULL;
}

const cpu_allocation *cpu_allocation_after(uintptr_t at) {
    const size_t n = count_up_to(at);
    return n < memory.n ? &memory.list[n] : NULL;
}

bool cpu_allocation_covers(uintptr_t at, size_t n) {
    const cpu_allocation *a = cpu_allocation_find(at);
    return a && !a->freed && at - a->begin <= a->bytes && n <= a->bytes - (at - a->begin);
}

static size_t marks_bytes(const cpu_allocation *a) {
    return (a->bytes + 3) / 4 * sizeof(cpu_mark);
}

cpu_mark *cpu_allocation_marks(uintptr_t at) {
    cpu_allocation *a = &memory.list[cpu_allocation_find(at) - memory.list];
    if (a->marks) return a->marks;
    a->marks = mmap(NULL, marks_bytes(a), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a->marks == MAP_FAILED) {
        fprintf(stderr, "cuda_on_cpu: no memory for the marks of %zu bytes\n", a->bytes);
        abort();
    }
    return a->marks;
}

static bool room_for_one(void) {
    if (!memory.begin) {
        void *p =
            mmap(NULL, REGION_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) return false;
        memory.begin = ((uintptr_t)p + PAGE - 1) / PAGE * PAGE;
        memory.used = PAGE;
    }
    if (memory.n < memory.capacity) return true;
    const size_t capacity = 2 * memory.capacity + 256;
    cpu_allocation *list = realloc(memory.list, capacity * sizeof *list);
    if (!list) return false;
    memory.list = list;
    memory.capacity = capacity;
    return true;
}

static tms_cu_result allocate(tms_cu_address *address, size_t bytes) {
    if (!address || bytes == 0) return TMS_CU_INVALID_VALUE;
    const size_t taken = (bytes + PAGE - 1) / PAGE * PAGE;
    if (bytes > DEVICE_BYTES - memory.live || !room_for_one() ||
        memory.used + taken + 2 * PAGE > REGION_BYTES)
        return TMS_CU_OUT_OF_MEMORY;
    const uintptr_t at = memory.begin + memory.used;
    if (mprotect((void *)at, taken, PROT_READ | PROT_WRITE)) return TMS_CU_OUT_OF_MEMORY;
    if (bytes <= MOST_FILLED) memset((void *)at, 0xff, taken);
    memory.used += taken + PAGE;
    memory.live += bytes;
    memory.list[memory.n++] = (cpu_allocation){at, bytes, false, NULL};
    *address = at;
    return TMS_CU_SUCCESS;
}

static bool is_allocation(tms_cu_address at) {
    const cpu_allocation *a = cpu_allocation_find(at);
    return a && a->begin == at && !a->freed;
}

tms_cu_result cpu_allocation_free(tms_cu_address at) {
    if (!is_allocation(at))
        return cpu_wrong(TMS_CU_INVALID_VALUE, "free of %p, where no live allocation begins",
                         (void *)at);
    cpu_allocation *a = &memory.list[cpu_allocation_find(at) - memory.list];
    const size_t taken = (a->bytes + PAGE - 1) / PAGE * PAGE;
    if (a->marks) munmap(a->marks, marks_bytes(a));
    a->marks = NULL;
    a->freed = true;
    memory.live -= a->bytes;
    mmap((void *)a->begin, taken, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return TMS_CU_SUCCESS;
}

void cpu_memory_reset(void) {
    for (size_t i = 0; i < memory.n; i++)
        if (!memory.list[i].freed) cpu_allocation_free(memory.list[i].begin);
    for (size_t i = 0; i < memory.n_pinned; i++)
        free(memory.pinned[i].begin);
    memory.n_pinned = 0;
}

size_t cpu_memory_alive(void) {
    size_t n = 0;
    for (size_t i = 0; i < memory.n; i++)
        n += !memory.list[i].freed;
    return n;
}

size_t cpu_pinned_alive(void) {
    return memory.n_pinned;
}

tms_cu_result cuDeviceTotalMem_v2(size_t *bytes, tms_cu_ordinal device) {
    if (!bytes) return TMS_CU_INVALID_VALUE;
    if (!cpu_is_device(device)) return TMS_CU_INVALID_DEVICE;
    *bytes = DEVICE_BYTES;
    return TMS_CU_SUCCESS;
}

tms_cu_result cuMemAlloc_v2(tms_cu_address *address, size_t bytes) {
    tms_cu_result result = cpu_enter();
    if (!result) result = cpu_unsafe();
    if (!result) result = allocate(address, bytes);
    return cpu_leave(result);
}

/* Waits for all work, as the driver does. */
tms_cu_result cuMemFree_v2(tms_cu_address address) {
    tms_cu_result result = cpu_enter();
    if (!result) result = cpu_unsafe();
    if (!result) result = cpu_drain_all();
    if (!result && address) result = cpu_allocation_free(address);
    return cpu_leave(result);
}

static tms_cu_result check_pools(tms_cu_stream stream) {
    int pools = 0;
    cuDeviceGetAttribute(&pools, TMS_CU_MEMORY_POOLS, 0);
    return pools ? cpu_stream_check(stream) : TMS_CU_NOT_SUPPORTED;
}

tms_cu_result cuMemAllocAsync(tms_cu_address *address, size_t bytes, tms_cu_stream stream) {
    tms_cu_result result = cpu_enter();
    if (!result) result = check_pools(stream);
    if (!result && cpu_capturing(stream)) result = TMS_CU_CAPTURE_UNSUPPORTED;
    if (!result) result = allocate(address, bytes);
    return cpu_leave(result);
}

tms_cu_result cuMemFreeAsync(tms_cu_address address, tms_cu_stream stream) {
    tms_cu_result result = cpu_enter();
    if (!result) result = check_pools(stream);
    if (!result && cpu_capturing(stream)) result = TMS_CU_CAPTURE_UNSUPPORTED;
    if (!result && !is_allocation(address))
        result = cpu_wrong(TMS_CU_INVALID_VALUE, "free of %p, where no live allocation begins",
                           (void *)address);
    if (!result) {
        cpu_command *command = cpu_command_new(CPU_FREE, 0);
        if (command) command->free = address;
        result = cpu_enqueue(stream, command);
    }
    return cpu_leave(result);
}

/* ---- Pinned host memory ---------------------------------------------------------------------- */

bool cpu_pinned(const void *host, size_t bytes) {
    for (size_t i = 0; i < memory.n_pinned; i++) {
        const size_t offset = (uintptr_t)host - (uintptr_t)memory.pinned[i].begin;
        if ((uintptr_t)host >= (uintptr_t)memory.pinned[i].begin &&
            offset <= memory.pinned[i].bytes && bytes <= memory.pinned[i].bytes - offset)
            return true;
    }
    return false;
}

/* Whole pages, as page-locked memory is. */
tms_cu_result cuMemAllocHost_v2(void **host, size_t bytes) {
    tms_cu_result result = cpu_enter();
    if (!result) result = cpu_unsafe();
    if (!result && (!host || bytes == 0)) result = TMS_CU_INVALID_VALUE;
    if (!result && bytes > MOST_PINNED) result = TMS_CU_OUT_OF_MEMORY;
    if (!result) {
        void *list = realloc(memory.pinned, (memory.n_pinned + 1) * sizeof *memory.pinned);
        if (list) memory.pinned = list;
        void *p = list ? aligned_alloc(4096, (bytes + 4095) / 4096 * 4096) : NULL;
        if (!p) return cpu_leave(TMS_CU_OUT_OF_MEMORY);
        memory.pinned[memory.n_pinned].begin = p;
        memory.pinned[memory.n_pinned++].bytes = bytes;
        *host = p;
    }
    return cpu_leave(result);
}

static tms_cu_result free_pinned(void *host) {
    for (size_t i = 0; i < memory.n_pinned; i++) {
        if (memory.pinned[i].begin != host) continue;
        free(host);
        memory.pinned[i] = memory.pinned[--memory.n_pinned];
        return TMS_CU_SUCCESS;
    }
    return cpu_wrong(TMS_CU_INVALID_VALUE, "free of %p, where no pinned memory begins", host);
}

tms_cu_result cuMemFreeHost(void *host) {
    tms_cu_result result = cpu_enter();
    if (!result) result = cpu_unsafe();
    if (!result) result = cpu_drain_all();
    if (!result) result = free_pinned(host);
    return cpu_leave(result);
}

/* ---- Copies ---------------------------------------------------------------------------------- */

static tms_cu_result copy(cpu_command_kind kind, uintptr_t to, uintptr_t from, size_t bytes,
                          tms_cu_stream stream) {
    /* Pageable memory is read at the call, but by a graph at each of its launches. */
    const bool now =
        kind == CPU_COPY_IN && !cpu_pinned((const void *)from, bytes) && !cpu_capturing(stream);
    cpu_command *command = cpu_command_new(kind, now ? bytes : 0);
    if (!command) return TMS_CU_OUT_OF_MEMORY;
    command->copy.to = to;
    command->copy.from = now ? 0 : from;
    command->copy.bytes = bytes;
    if (now) memcpy(command->payload, (const void *)from, bytes);
    const bool wait =
        kind == CPU_COPY_OUT && !cpu_pinned((void *)to, bytes) && !cpu_capturing(stream);
    tms_cu_result result = cpu_enqueue(stream, command);
    return !result && wait ? cpu_drain(stream) : result;
}

tms_cu_result cuMemcpyHtoDAsync_v2(tms_cu_address to, const void *from, size_t bytes,
                                   tms_cu_stream stream) {
    tms_cu_result result = cpu_enter();
    if (!result && !from) result = TMS_CU_INVALID_VALUE;
    if (!result) result = copy(CPU_COPY_IN, to, (uintptr_t)from, bytes, stream);
    return cpu_leave(result);
}

tms_cu_result cuMemcpyDtoHAsync_v2(void *to, tms_cu_address from, size_t bytes,
                                   tms_cu_stream stream) {
    tms_cu_result result = cpu_enter();
    if (!result && !to) result = TMS_CU_INVALID_VALUE;
    if (!result) result = copy(CPU_COPY_OUT, (uintptr_t)to, from, bytes, stream);
    return cpu_leave(result);
}

tms_cu_result cuMemcpyDtoDAsync_v2(tms_cu_address to, tms_cu_address from, size_t bytes,
                                   tms_cu_stream stream) {
    tms_cu_result result = cpu_enter();
    if (!result) result = copy(CPU_COPY, to, from, bytes, stream);
    return cpu_leave(result);
}

tms_cu_result cuMemsetD32Async(tms_cu_address to, unsigned value, size_t count,
                               tms_cu_stream stream) {
    tms_cu_result result = cpu_enter();
    if (!result && to % 4) result = TMS_CU_INVALID_VALUE;
    if (!result) {
        cpu_command *command = cpu_command_new(CPU_SET, 0);
        if (command) {
            command->set.to = to;
            command->set.count = count;
            command->set.value = value;
        }
        result = cpu_enqueue(stream, command);
    }
    return cpu_leave(result);
}
