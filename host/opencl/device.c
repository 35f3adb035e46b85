/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of all OpenCL platforms: listing with the reasons for refusal, opening, closing. */
#include "host/base/quote.h"
#include "host/found.h"
#include "host/opencl/ahead.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PLATFORMS 16
#define NO_PLATFORM   (-1001) /* CL_PLATFORM_NOT_FOUND_KHR, of the loader */
/* The most local memory that the base kernels use, and their largest work-group. */
#define NEED_LOCAL_BYTES (32u << 10)
#define NEED_GROUP       256u

/* The most bytes that kernels may read in the place of absent memory: a few pages of any shape. */
#define NOTHING_BYTES (512u << 10)

/* Held while platforms and devices are queried and contexts are created or released. PoCL does not
 * lock its initialisation: a second thread may get devices that are not set up yet. Calls of OpenCL
 * outside this library are not protected. */
static pthread_mutex_t drivers = PTHREAD_MUTEX_INITIALIZER;

/* What depends on the vendor of a driver; nothing else in host/opencl does. */
typedef struct vendor {
    const char *platform;
    /* The CPU forms have been tested on it: they are correct, and faster than the base forms. */
    bool cpu_forms;
    /* The compiler knows clang's builtins: prefetch, and vectors of __fp16, which one instruction
     * widens where vload_half takes more. */
    bool clang;
    bool wide_grids;     /* it compiles a kernel again at the first wide grid */
    bool keeps_programs; /* the driver has a cache of its own, or compiles very fast */
    bool in_place;       /* on a CPU kernels may have addresses of memory in the place of buffers */
    bool mute;           /* the compiler does not define __AVX512F__, though it uses AVX-512 */
    bool plain;          /* its interpreter lacks instructions that its optimiser makes */
    /* Whether the surroundings lack what it needs, and the reason; NULL: it needs nothing. */
    bool (*lacks)(char *reason, size_t capacity);
    void (*lists_none)(cl_int code, char *reason,
                       size_t capacity); /* the reason why it lists no device */
} vendor;

static const vendor VENDORS[] = {
    {"Portable Computing Language", .cpu_forms = true, .clang = true, .wide_grids = true,
     .keeps_programs = true, .in_place = true, .lacks = tms_cl_pocl_lacks,
     .lists_none = tms_cl_pocl_lists_none},
    {"Intel(R) OpenCL", .cpu_forms = true, .clang = true, .mute = true},
    {"Oclgrind", .cpu_forms = true, .keeps_programs = true, .plain = true},
};

static const vendor *vendor_of(cl_platform_id platform) {
    static const vendor unknown = {NULL};
    char name[64] = "";
    clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name - 1, name, NULL);
    for (size_t i = 0; i < sizeof VENDORS / sizeof *VENDORS; i++)
        if (strcmp(name, VENDORS[i].platform) == 0) return &VENDORS[i];
    return &unknown;
}

/* A driver's string as messages show it, cut to the field, without the spaces some drivers put around it. */
static void get_text(cl_device_id device, cl_device_info what, char *to, size_t capacity) {
    char text[1024] = "";
    clGetDeviceInfo(device, what, sizeof text - 1, text, NULL);
    const char *from = text + strspn(text, " ");
    size_t length = strlen(from);
    while (length > 0 && from[length - 1] == ' ')
        length--;
    snprintf(to, capacity, "%.*s", (int)(length < capacity ? length : capacity - 1), from);
    tms_quote_in_place(to);
}

static cl_ulong get_number(cl_device_id device, cl_device_info what, size_t bytes) {
    cl_ulong value = 0; /* little-endian: a shorter value fills the low bytes */
    clGetDeviceInfo(device, what, bytes, &value, NULL);
    return value;
}

/* Fills `reason` and returns false if the base kernels cannot run. */
static bool is_usable(cl_device_id device, char *reason, size_t capacity) {
    char version[128];
    int major = 0, minor = 0;
    get_text(device, CL_DEVICE_VERSION, version, sizeof version);
    sscanf(version, "OpenCL %d.%d", &major, &minor);
    cl_ulong local = get_number(device, CL_DEVICE_LOCAL_MEM_SIZE, sizeof(cl_ulong));
    cl_ulong group = get_number(device, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(size_t));
    cl_ulong floats = get_number(device, CL_DEVICE_SINGLE_FP_CONFIG, sizeof(cl_device_fp_config));

    if (!get_number(device, CL_DEVICE_AVAILABLE, sizeof(cl_bool)))
        snprintf(reason, capacity, "the driver says that the device is not available");
    else if (!get_number(device, CL_DEVICE_COMPILER_AVAILABLE, sizeof(cl_bool)))
        snprintf(reason, capacity, "the driver has no OpenCL C compiler");
    else if (major * 10 + minor < 12)
        snprintf(reason, capacity, "\"%s\": OpenCL 1.2 is needed", version);
    else if (!get_number(device, CL_DEVICE_ENDIAN_LITTLE, sizeof(cl_bool)))
        snprintf(reason, capacity, "the device is big-endian");
    else if (local < NEED_LOCAL_BYTES)
        snprintf(reason, capacity, "%llu bytes of local memory: %u are needed",
                 (unsigned long long)local, NEED_LOCAL_BYTES);
    else if (group < NEED_GROUP)
        snprintf(reason, capacity, "work-groups of at most %llu: %u are needed",
                 (unsigned long long)group, NEED_GROUP);
    else if (!(floats & CL_FP_INF_NAN))
        snprintf(reason, capacity, "fp32 without infinities and NaN");
    else
        return true;
    return false;
}

static tamis_device_kind kind_of(cl_device_id device) {
    cl_ulong type = get_number(device, CL_DEVICE_TYPE, sizeof(cl_device_type));
    if (type & CL_DEVICE_TYPE_CPU) return TAMIS_DEVICE_CPU;
    return type & CL_DEVICE_TYPE_GPU ? TAMIS_DEVICE_GPU : TAMIS_DEVICE_OTHER;
}

static void describe(tms_found *f) {
    const cl_device_id device = f->device;
    tamis_device_info *info = &f->info;
    char platform[64] = "", driver[48];
    memset(info, 0, sizeof *info);
    snprintf(info->backend, sizeof info->backend, "opencl");
    get_text(device, CL_DEVICE_NAME, info->name, sizeof info->name);
    get_text(device, CL_DRIVER_VERSION, driver, sizeof driver);
    clGetPlatformInfo(f->platform, CL_PLATFORM_NAME, sizeof platform - 1, platform, NULL);
    tms_quote_in_place(platform);
    snprintf(info->driver, sizeof info->driver, "%s %s", platform, driver);
    info->kind = kind_of(device);
    info->compute_units =
        (uint32_t)get_number(device, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof(cl_uint));
    info->memory_bytes = get_number(device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(cl_ulong));
    info->max_buffer_bytes = get_number(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(cl_ulong));
    info->usable = is_usable(device, info->reason, sizeof info->reason);
}

/* GPUs first, then other accelerators, then CPUs; in the platforms' order among equals. */
static void sort_and_name(tms_found *all, size_t n) {
    static const int RANK[] = {
        [TAMIS_DEVICE_GPU] = 0, [TAMIS_DEVICE_OTHER] = 1, [TAMIS_DEVICE_CPU] = 2};
    for (size_t i = 1; i < n; i++)
        for (size_t j = i; j > 0 && RANK[all[j].info.kind] < RANK[all[j - 1].info.kind]; j--) {
            tms_found swap = all[j];
            all[j] = all[j - 1];
            all[j - 1] = swap;
        }
    for (size_t i = 0; i < n; i++)
        snprintf(all[i].info.id, sizeof all[i].info.id, "opencl:%zu", i);
}

/* A driver that lacks something lists devices that cannot be used, or ends the process when it is
 * asked for them: it is not asked. */
static void add_refused(tms_found *f, cl_platform_id platform, const char *reason) {
    *f = (tms_found){.platform = platform, .info = {.kind = TAMIS_DEVICE_CPU}};
    snprintf(f->info.backend, sizeof f->info.backend, "opencl");
    clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof f->info.driver - 1, f->info.driver, NULL);
    tms_quote_in_place(f->info.driver);
    snprintf(f->info.reason, sizeof f->info.reason, "%s", reason);
    f->info.refusal = TAMIS_E_DEVICE;
}

/* Adds the platform's devices to the `n` of `all`; returns their new number. */
static size_t gather_platform(cl_platform_id platform, tms_found *all, size_t n) {
    char reason[sizeof all->info.reason];
    cl_device_id devices[TMS_MOST_FOUND];
    cl_uint n_devices = 0;
    const vendor *v = vendor_of(platform);
    if (n == TMS_MOST_FOUND) return n;
    if (v->lacks && v->lacks(reason, sizeof reason)) {
        add_refused(&all[n], platform, reason);
        return n + 1;
    }
    const cl_int code =
        clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, TMS_MOST_FOUND, devices, &n_devices);
    if (code != CL_SUCCESS || n_devices == 0) {
        if (!v->lists_none) return n;
        v->lists_none(code, reason, sizeof reason);
        add_refused(&all[n], platform, reason);
        return n + 1;
    }
    for (cl_uint j = 0; j < n_devices && j < TMS_MOST_FOUND && n < TMS_MOST_FOUND; j++) {
        all[n].platform = platform;
        all[n].device = devices[j];
        describe(&all[n++]);
    }
    return n;
}

static size_t gather_alone(tms_found *all, char *reason, size_t capacity) {
    cl_platform_id platforms[MAX_PLATFORMS];
    cl_uint n_platforms = 0;
    size_t n = 0;
    if (tms_cl_pocl_ends(reason, capacity)) return 0;
    cl_int code = clGetPlatformIDs(MAX_PLATFORMS, platforms, &n_platforms);
    if (code != CL_SUCCESS && code != NO_PLATFORM) {
        snprintf(reason, capacity, "the list of OpenCL platforms: %s (%d)", tms_cl_error_text(code),
                 (int)code);
        return 0;
    }
    if (code == NO_PLATFORM || n_platforms == 0) {
        snprintf(reason, capacity, "no OpenCL platform found: no driver is installed");
        return 0;
    }
    for (cl_uint i = 0; i < n_platforms && i < MAX_PLATFORMS; i++)
        n = gather_platform(platforms[i], all, n);
    sort_and_name(all, n);
    if (n == 0)
        snprintf(reason, capacity, "%u OpenCL platforms found, and no device on any", n_platforms);
    return n;
}

static size_t gather(tms_found *all, char *reason, size_t capacity) {
    pthread_mutex_lock(&drivers);
    size_t n = gather_alone(all, reason, capacity);
    pthread_mutex_unlock(&drivers);
    return n;
}

tamis_status tms_cl_list(tamis_device_info *infos, size_t capacity, size_t *count) {
    return tms_found_list("opencl", gather, infos, capacity, count);
}

/* Whether the host has AVX-512; an OpenCL CPU device is the host. */
static bool has_avx512(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

/* Of cl_intel_required_subgroup_size; not in the headers of OpenCL 1.2. */
#define SUB_GROUP_SIZES 0x4108
/* Work-items that a kernel's compiler must take side by side, or 0 if it may choose: IGC takes 32
 * where 8 is not among the sizes, and then spills (docs/results/gpu-compilers.md). */
static unsigned sub_group_of(cl_device_id device) {
    char extensions[8192] = "";
    size_t sizes[8], bytes = 0, least = SIZE_MAX;
    clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, sizeof extensions - 1, extensions, NULL);
    if (!strstr(extensions, "cl_intel_required_subgroup_size")) return 0;
    if (clGetDeviceInfo(device, SUB_GROUP_SIZES, sizeof sizes, sizes, &bytes) != CL_SUCCESS)
        return 0;
    for (size_t i = 0; i < bytes / sizeof *sizes; i++)
        if (sizes[i] < least) least = sizes[i];
    return least == 16 ? 16 : 0;
}

static void set_vendor(tms_cl_device *cl, const vendor *v) {
    const bool clang = cl->cpu && v->clang;
    if (!cl->cpu)
        cl->base.base_only = "the device is not a CPU";
    else if (!v->cpu_forms)
        cl->base.base_only = "the CPU forms have not proved themselves on this driver";
    cl->wide_grids = cl->cpu && v->wide_grids;
    cl->in_place = cl->cpu && v->in_place;
    cl->keeps_programs = v->keeps_programs;
    cl->lacks = v->lacks;
    snprintf(cl->options, sizeof cl->options,
             "-cl-std=CL1.2 -w -DHAVE_PREFETCH=%d -DHAVE_FP16_VECTORS=%d -DHAVE_CALLS=%d%s%s",
             clang, clang, cl->cpu, cl->cpu && v->mute && has_avx512() ? " -DWIDE_REGISTERS=1" : "",
             v->plain ? " -cl-opt-disable" : "");
    const unsigned sub_group = cl->cpu ? 0 : sub_group_of(cl->id);
    const size_t length = strlen(cl->options);
    if (sub_group)
        snprintf(cl->options + length, sizeof cl->options - length, " -DSUB_GROUP=%u", sub_group);
}

/* Memory with zeros. Where the device does not write them to memory of the host that it was given, it
 * does not use it in place. */
static cl_int zeros(tms_cl_device *cl, size_t bytes, tms_mem *out) {
    const cl_int zero = 0, one = 1;
    cl_int code = tms_cl_mem_create(cl, bytes, out);
    if (code != CL_SUCCESS) return code;
    if (out->host) memcpy(out->host, &one, sizeof one);
    code = clEnqueueFillBuffer(cl->queue, out->cl, &zero, sizeof zero, 0, bytes, 0, NULL, NULL);
    if (code == CL_SUCCESS) code = clFinish(cl->queue);
    if (out->host && memcmp(out->host, &zero, sizeof zero) != 0) cl->in_place = false;
    return code;
}

/* A context and a queue of its own. */
static cl_int take_own(tms_cl_device *cl, cl_platform_id platform) {
    cl_context_properties properties[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)platform, 0};
    cl_int code;
    cl->context = clCreateContext(properties, 1, &cl->id, NULL, NULL, &code);
    if (code == CL_SUCCESS) cl->queue = clCreateCommandQueue(cl->context, cl->id, 0, &code);
    return code;
}

static cl_int create(tms_cl_device *cl, cl_platform_id platform) {
    pthread_mutex_lock(&drivers);
    cl_int code = cl->callers_queue ? CL_SUCCESS : take_own(cl, platform);
    const size_t lanes = tms_cl_most_shared_lanes(cl->base.info.compute_units);
    const size_t of_lanes = TMS_CL_COUNTERS * lanes, of_stages = 2 * TMS_MOST_STAGES;
    const size_t counters = of_lanes > of_stages ? of_lanes : of_stages;
    if (code == CL_SUCCESS && cl->cpu)
        code = zeros(cl, (2 + counters) * sizeof(cl_int), &cl->items);
    const size_t heads = cl->base.info.compute_units * TMS_CL_OWN_FLOATS;
    if (code == CL_SUCCESS && cl->cpu) code = zeros(cl, heads * sizeof(cl_float), &cl->heads);
    if (code == CL_SUCCESS) code = zeros(cl, NOTHING_BYTES, &cl->nothing);
    pthread_mutex_unlock(&drivers);
    return code;
}

/* By TAMIS_OPENCL_FORM. "cpu" is what "auto" takes on a CPU whose driver has proved itself, and is
 * refused elsewhere. */
static tamis_status choose_form(tms_device *dev) {
    static const struct {
        const char *name;
        tms_form form;
        bool cpu;
    } forms[] = {{"auto", TMS_FORM_AUTO, false},
                 {"cpu", TMS_FORM_AUTO, true},
                 {"gpu", TMS_FORM_GPU, false},
                 {"base", TMS_FORM_BASE, false}};
    const char *value = tms_env("TAMIS_OPENCL_FORM");
    if (!value) return TAMIS_OK;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(value, forms[i].name) != 0) continue;
        if (forms[i].cpu && dev->base_only)
            return tms_device_fail(dev, TAMIS_E_UNSUPPORTED, "%s (%s): TAMIS_OPENCL_FORM=cpu: %s",
                                   dev->info.id, dev->info.name, dev->base_only);
        dev->form = forms[i].form;
        return TAMIS_OK;
    }
    return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                           "TAMIS_OPENCL_FORM is \"%s\": must be auto, cpu, gpu or base", value);
}

/* The device that was found, without a context. NULL: there is no memory. */
static tms_cl_device *make(const tms_backend *self, const tms_found *f, const tms_log *log) {
    tms_cl_device *cl = calloc(1, sizeof *cl);
    if (!cl) return NULL;
    tms_device_init(&cl->base, self, &f->info, log);
    cl->id = f->device;
    cl->cpu = f->info.kind == TAMIS_DEVICE_CPU;
    set_vendor(cl, vendor_of(f->platform));
    return cl;
}

/* Completes the opening of a device, on its own queue or on the caller's; closes it on failure. */
static tamis_status finish(tms_cl_device *cl, cl_platform_id platform, tms_device **out,
                           tamis_error *error) {
    const tamis_device_info *info = &cl->base.info;
    const cl_int code = create(cl, platform);
    tamis_status status =
        code == CL_SUCCESS
            ? TAMIS_OK
            : tms_device_fail(&cl->base, tms_cl_status(code), "%s (%s): opening failed: %s (%d)",
                              info->id, info->name, tms_cl_error_text(code), (int)code);
    if (cl->in_place) strcat(cl->options, " -DADDRESSES=1");
    if (status == TAMIS_OK) status = choose_form(&cl->base);
    if (status == TAMIS_OK) status = tms_cl_choose_waiting(cl);
    if (status != TAMIS_OK) {
        tms_forward(&cl->base, status, error);
        tms_cl_close(&cl->base);
        return status;
    }
    if (strstr(info->name, "llvmpipe"))
        tms_log_line(&cl->base.log, TAMIS_LOG_WARN,
                     "%s (%s): this driver leaves a loop in silence after 65,535 turns: for tests, "
                     "not for large models",
                     info->id, info->name);
    *out = &cl->base;
    return TAMIS_OK;
}

tamis_status tms_cl_open(const tms_backend *self, const char *id, const tms_log *log,
                         tms_device **out, tamis_error *error) {
    tms_found f;
    tamis_status status = tms_found_one(gather, id, NULL, &f, error);
    if (status != TAMIS_OK) return status;
    tms_cl_device *cl = make(self, &f, log);
    if (!cl) return tms_error_set(error, TAMIS_E_NO_MEMORY, "no host memory for a device");
    return finish(cl, f.platform, out, error);
}

tamis_status tms_cl_open_on(const tms_backend *self, void *context, void *queue, const tms_log *log,
                            tms_device **out, tamis_error *error) {
    tms_found f;
    cl_device_id device;
    tamis_status status = tms_cl_queue_check(context, queue, &device, error);
    if (status == TAMIS_OK) status = tms_found_one(gather, NULL, device, &f, error);
    if (status != TAMIS_OK) return status;
    tms_cl_device *cl = make(self, &f, log);
    if (!cl) return tms_error_set(error, TAMIS_E_NO_MEMORY, "no host memory for a device");
    cl->callers_queue = true;
    cl_int code = clRetainContext(context);
    if (code == CL_SUCCESS) cl->context = context;
    if (code == CL_SUCCESS) code = clRetainCommandQueue(queue);
    if (code == CL_SUCCESS) cl->queue = queue;
    if (code == CL_SUCCESS) return finish(cl, f.platform, out, error);
    tms_cl_close(&cl->base);
    return tms_error_set(error, tms_cl_status(code), "OpenCL queue %p: %s (%d)", queue,
                         tms_cl_error_text(code), (int)code);
}

void tms_cl_close(tms_device *dev) {
    tms_cl_device *cl = tms_cl(dev);
    tms_cl_jobs_free(cl);
    if (cl->queue) clFinish(cl->queue);
    if (cl->uploads) clFinish(cl->uploads);
    tms_cl_free(dev, cl->product.mem);
    tms_cl_programs_free(cl);
    tms_cl_staging_free(&cl->staging);
    if (cl->items.cl) clReleaseMemObject(cl->items.cl);
    if (cl->heads.cl) clReleaseMemObject(cl->heads.cl);
    if (cl->nothing.cl) clReleaseMemObject(cl->nothing.cl);
    tms_cl_slab_leave(cl->slab);
    if (cl->queue) clReleaseCommandQueue(cl->queue);
    if (cl->uploads) clReleaseCommandQueue(cl->uploads);
    pthread_mutex_lock(&drivers);
    if (cl->context) clReleaseContext(cl->context);
    pthread_mutex_unlock(&drivers);
    free(cl);
}
