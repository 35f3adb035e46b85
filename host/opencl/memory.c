/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory: allocation within the device's limits, and copies in and out of it. */
#define _DEFAULT_SOURCE /* madvise */
#include "host/opencl/ahead.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE   (2u << 20)
#define LINE        64u         /* of the processor's caches, a multiple of every vector */
#define SLAB        (16u << 20) /* for small buffers, of */
#define LEAST       (64u << 10) /* at least so many bytes */
#define MAX_NO_WAIT (1u << 20) /* the contract: writes up to this do not wait */

/* A multiple of HUGE_PAGE bytes, which begin at a multiple of it. NULL: no memory. */
static void *map_huge(size_t bytes) {
    uint8_t *all =
        mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return NULL;
    const size_t before = -(uintptr_t)all % HUGE_PAGE;
    if (before > 0) munmap(all, before);
    munmap(all + before + bytes, HUGE_PAGE - before);
    return all + before;
}

/* Memory of the host on huge pages, which make weights and random page lists faster: of one large
 * buffer, or of several small ones, one behind the other. It goes back to the system with the last of them. */
struct tms_cl_slab {
    uint8_t *at;
    size_t bytes, used;
    atomic_uint users; /* buffers, and the device while it puts further ones there */
};

/* What does not fill the last huge page lies on small ones, so that no memory is taken that nothing
 * uses. */
static tms_cl_slab *slab_create(uint64_t bytes) {
    const size_t whole = bytes / HUGE_PAGE * HUGE_PAGE;
    const size_t all = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    tms_cl_slab *slab = malloc(sizeof *slab);
    if (!slab) return NULL;
    *slab = (tms_cl_slab){.at = map_huge(all), .bytes = all, .users = 1};
    if (!slab->at) {
        free(slab);
        return NULL;
    }
    madvise(slab->at, whole, MADV_HUGEPAGE); /* if the kernel refuses it is slower, not wrong */
    madvise(slab->at + whole, all - whole, MADV_NOHUGEPAGE);
    return slab;
}

void tms_cl_slab_leave(tms_cl_slab *slab) {
    if (!slab || atomic_fetch_sub(&slab->users, 1) != 1) return;
    munmap(slab->at, slab->bytes);
    free(slab);
}

static void CL_CALLBACK free_host(cl_mem mem, void *host) {
    (void)mem;
    free(host);
}

static void CL_CALLBACK leave_slab(cl_mem mem, void *slab) {
    (void)mem;
    tms_cl_slab_leave(slab);
}

/* The slab in which a small buffer finds room, with one more user. */
static tms_cl_slab *shared_slab(tms_cl_device *cl, uint64_t bytes) {
    if (cl->slab && atomic_load(&cl->slab->users) == 1) cl->slab->used = 0; /* the device alone */
    if (!cl->slab || cl->slab->bytes - cl->slab->used < bytes) {
        tms_cl_slab *next = slab_create(SLAB);
        if (!next) return NULL;
        tms_cl_slab_leave(cl->slab);
        cl->slab = next;
    }
    atomic_fetch_add(&cl->slab->users, 1);
    return cl->slab;
}

/* A buffer in memory of the host, which goes back when the driver lets go of the buffer. */
static cl_int wrap_host(tms_cl_device *cl, uint64_t bytes, tms_mem *out) {
    const uint64_t rounded = (bytes + LINE - 1) / LINE * LINE;
    void(CL_CALLBACK * release)(cl_mem, void *) = bytes < LEAST ? free_host : leave_slab;
    cl_int code;
    void *of;
    if (bytes < LEAST) {
        of = out->host = aligned_alloc(LINE, rounded);
        if (!of) return CL_OUT_OF_HOST_MEMORY;
    } else {
        tms_cl_slab *slab = of = bytes < HUGE_PAGE ? shared_slab(cl, rounded) : slab_create(bytes);
        if (!slab) return CL_OUT_OF_HOST_MEMORY;
        out->host = slab->at + slab->used;
        slab->used += rounded;
    }
    out->cl = clCreateBuffer(cl->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes, out->host,
                             &code);
    if (code == CL_SUCCESS) code = clSetMemObjectDestructorCallback(out->cl, release, of);
    if (code == CL_SUCCESS) return code;
    if (out->cl) clReleaseMemObject(out->cl);
    release(NULL, of);
    *out = (tms_mem){0};
    return code;
}

cl_int tms_cl_mem_create(tms_cl_device *cl, uint64_t bytes, tms_mem *out) {
    cl_int code;
    *out = (tms_mem){.bytes = bytes};
    if (cl->in_place || (cl->cpu && bytes >= HUGE_PAGE)) return wrap_host(cl, bytes, out);
    out->cl = clCreateBuffer(cl->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    return code;
}

tamis_status tms_cl_alloc(tms_device *dev, uint64_t bytes, tms_mem **out) {
    tms_cl_device *cl = tms_cl(dev);
    tamis_status status = tms_check_allocation(dev, bytes, cl->memory_used);
    if (status != TAMIS_OK) return status;
    tms_mem *mem = calloc(1, sizeof *mem);
    if (!mem)
        return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no host memory for a buffer's handle");
    const cl_int code = tms_cl_mem_create(cl, bytes, mem);
    if (code != CL_SUCCESS) {
        free(mem);
        return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "a buffer of %llu bytes on %s: %s (%d)",
                               (unsigned long long)bytes, dev->info.id, tms_cl_error_text(code),
                               (int)code);
    }
    cl->memory_used += bytes;
    *out = mem;
    return TAMIS_OK;
}

void tms_cl_free(tms_device *dev, tms_mem *mem) {
    if (!mem) return;
    (void)tms_cl_build_all(dev); /* launches that are put off may hold it */
    tms_cl_device *cl = tms_cl(dev);
    const bool is_host = mem->owner == TMS_CL_CALLERS_HOST;
    if (mem->owner == TMS_CL_OWN) cl->memory_used -= mem->bytes;
    /* Enqueued commands hold it until they are done, but not those that have its address. */
    if (cl->in_place || is_host)
        (void)tms_cl_check_late(dev, clFinish(cl->queue), "freeing memory");
    if (cl->uploads && is_host)
        (void)tms_cl_check_late(dev, clFinish(cl->uploads), "freeing memory");
    clReleaseMemObject(mem->cl);
    free(mem);
}

tamis_status tms_cl_check_range(tms_device *dev, tms_ref ref, uint64_t bytes, const char *what) {
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    if (!ref.mem) return tms_device_fail(dev, TAMIS_E_ARGUMENT, "%s: the memory is absent", what);
    if (ref.offset > ref.mem->bytes || bytes > ref.mem->bytes - ref.offset)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "%s: %llu bytes at offset %llu of a buffer of %llu", what,
                               (unsigned long long)bytes, (unsigned long long)ref.offset,
                               (unsigned long long)ref.mem->bytes);
    return TAMIS_OK;
}

/* Makes room for `bytes` in the present half, or waits for the other half and continues there. */
static tamis_status reserve_staging(tms_device *dev, uint64_t bytes) {
    tms_cl_staging *s = &tms_cl(dev)->staging;
    if (!s->bytes && !(s->bytes = malloc(2 * TMS_CL_STAGING_HALF)))
        return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no host memory for staging");
    if (s->used + bytes <= TMS_CL_STAGING_HALF) return TAMIS_OK;
    s->half = !s->half;
    s->used = 0;
    if (!s->last[s->half]) return TAMIS_OK;
    cl_int code = clWaitForEvents(1, &s->last[s->half]);
    clReleaseEvent(s->last[s->half]);
    s->last[s->half] = NULL;
    return tms_cl_check_late(dev, code, "waiting for a write");
}

static tamis_status write_staged(tms_device *dev, tms_ref to, const void *from, uint64_t bytes) {
    tms_cl_device *cl = tms_cl(dev);
    tms_cl_staging *s = &cl->staging;
    tamis_status status = reserve_staging(dev, bytes);
    if (status != TAMIS_OK) return status;
    uint8_t *staged = s->bytes + s->half * (size_t)TMS_CL_STAGING_HALF + s->used;
    cl_event done;
    memcpy(staged, from, bytes);
    status = tms_cl_check(dev,
                          clEnqueueWriteBuffer(cl->queue, to.mem->cl, CL_FALSE, tms_cl_at(to),
                                               bytes, staged, 0, NULL, &done),
                          "write");
    if (status != TAMIS_OK) return status;
    if (s->last[s->half]) clReleaseEvent(s->last[s->half]);
    s->last[s->half] = done;
    s->used += (bytes + 63) / 64 * 64;
    return TAMIS_OK;
}

tamis_status tms_cl_write(tms_device *dev, tms_ref to, const void *from, uint64_t bytes) {
    tamis_status status = tms_cl_check_range(dev, to, bytes, "write");
    if (status != TAMIS_OK || bytes == 0) return status;
    if (bytes <= MAX_NO_WAIT) return write_staged(dev, to, from, bytes);
    return tms_cl_check_late(dev,
                             clEnqueueWriteBuffer(tms_cl(dev)->queue, to.mem->cl, CL_TRUE,
                                                  tms_cl_at(to), bytes, from, 0, NULL, NULL),
                             "write");
}

tamis_status tms_cl_read(tms_device *dev, tms_ref from, void *to, uint64_t bytes) {
    tamis_status status = tms_cl_check_range(dev, from, bytes, "read");
    if (status != TAMIS_OK || bytes == 0) return status;
    return tms_cl_check_late(dev,
                             clEnqueueReadBuffer(tms_cl(dev)->queue, from.mem->cl, CL_TRUE,
                                                 tms_cl_at(from), bytes, to, 0, NULL, NULL),
                             "read");
}

tamis_status tms_cl_copy(tms_device *dev, tms_ref to, tms_ref from, uint64_t bytes) {
    tamis_status status = tms_cl_check_range(dev, to, bytes, "copy to");
    if (status == TAMIS_OK) status = tms_cl_check_range(dev, from, bytes, "copy from");
    if (status != TAMIS_OK || bytes == 0) return status;
    return tms_cl_check(dev,
                        clEnqueueCopyBuffer(tms_cl(dev)->queue, from.mem->cl, to.mem->cl,
                                            tms_cl_at(from), tms_cl_at(to), bytes, 0, NULL, NULL),
                        "copy");
}

tamis_status tms_cl_fill(tms_device *dev, tms_ref to, uint32_t word, uint64_t bytes) {
    tamis_status status = tms_cl_check_range(dev, to, bytes, "fill");
    if (status != TAMIS_OK || bytes == 0) return status;
    if (bytes % 4 || to.offset % 4)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "fill: %llu bytes at offset %llu: both must be multiples of 4",
                               (unsigned long long)bytes, (unsigned long long)to.offset);
    return tms_cl_check(dev,
                        clEnqueueFillBuffer(tms_cl(dev)->queue, to.mem->cl, &word, sizeof word,
                                            tms_cl_at(to), bytes, 0, NULL, NULL),
                        "fill");
}

void tms_cl_staging_free(tms_cl_staging *staging) {
    for (int half = 0; half < 2; half++)
        if (staging->last[half]) clReleaseEvent(staging->last[half]);
    free(staging->bytes);
}
