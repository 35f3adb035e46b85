/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's devices, context, modules and launches. One lock is held in every call. */
#include "on_cpu.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_PUSHED     16u
#define MOST_CONSTANTS  256u
#define DEFAULT_DYNAMIC (48u << 10) /* dynamic shared memory without asking for more */
#define LEAK_STATUS     3           /* of a process that left something behind */

struct CUctx_st {
    unsigned retained;
    tms_cu_result dead;
};

/* A shared library of kernels; what it registers while it is loaded is its own. */
typedef struct library {
    struct library *next;
    void *handle;
    cpu_kernel *kernels;
} library;

struct CUfunc_st {
    struct CUfunc_st *next;
    const cpu_kernel *kernel;
    uint32_t max_dynamic;
};
struct CUmod_st {
    tms_cu_module next;
    const library *from;
    char stem[64];
    tms_cu_function functions;
};

static struct {
    pthread_mutex_t lock;
    bool initialized;
    struct CUctx_st context;
    tms_cu_module modules;
    library *libraries, *loading;
    struct {
        uintptr_t begin;
        size_t bytes;
    } constants[MOST_CONSTANTS];
    size_t n_constants;
    bool leaked;
} driver = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local struct {
    tms_cu_context at[MOST_PUSHED];
    unsigned n;
} pushed;

/* ---- Between calls --------------------------------------------------------------------------- */

tms_cu_result cpu_enter(void) {
    pthread_mutex_lock(&driver.lock);
    if (!driver.initialized) return TMS_CU_NOT_INITIALIZED;
    if (!pushed.n || !driver.context.retained) return TMS_CU_INVALID_CONTEXT;
    return driver.context.dead;
}

tms_cu_result cpu_leave(tms_cu_result result) {
    pthread_mutex_unlock(&driver.lock);
    return result;
}

tms_cu_result cpu_die(tms_cu_result result) {
    if (!driver.context.dead) driver.context.dead = result;
    return driver.context.dead;
}

tms_cu_result cpu_dead(void) {
    return driver.context.dead;
}

tms_cu_result cpu_wrong(tms_cu_result result, const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("cuda_on_cpu: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    return result;
}

/* ---- Device ---------------------------------------------------------------------------------- */

/* What the environment may set, and is read at each call:
 *   CUDA_ON_CPU_PTX              what kernels say that they were compiled for: 90
 *   CUDA_ON_CPU_DEVICES          1; the last one runs kernels, those before are too old for them
 *   CUDA_ON_CPU_CAPABILITY       of the last one: 90, 10 * major + minor
 *   CUDA_ON_CPU_MULTIPROCESSORS  4
 *   CUDA_ON_CPU_SHARED           KiB of a block: 227, and not more
 *   CUDA_ON_CPU_POOLS            1: stream-ordered allocation
 *   CUDA_ON_CPU_RACES            1: races in global memory are looked for, and one worker runs all
 *                                blocks in their order; 0: blocks run on all cores, unwatched
 *   CUDA_ON_CPU_BACKWARDS        0; 1: of a launch the last block runs first
 *   CUDA_ON_CPU_LEAKS            "allowed": what is left behind does not end the process */
static int setting(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value && value[0] ? atoi(value) : otherwise;
}

static int n_devices(void) {
    return setting("CUDA_ON_CPU_DEVICES", 1);
}

bool cpu_is_device(tms_cu_ordinal device) {
    return device >= 0 && device < n_devices();
}

static bool runs_kernels(tms_cu_ordinal device) {
    return device == n_devices() - 1;
}

uint32_t cpu_block_shared(void) {
    const unsigned bytes = (unsigned)setting("CUDA_ON_CPU_SHARED", CPU_BLOCK_SHARED >> 10) << 10;
    return bytes < CPU_BLOCK_SHARED ? bytes : CPU_BLOCK_SHARED;
}

bool cpu_races_wanted(void) {
    return setting("CUDA_ON_CPU_RACES", 1) != 0;
}

bool cpu_backwards_wanted(void) {
    return setting("CUDA_ON_CPU_BACKWARDS", 0) != 0;
}

tms_cu_result cuInit(unsigned flags) {
    if (flags) return TMS_CU_INVALID_VALUE;
    if (n_devices() < 1) return TMS_CU_NO_DEVICE;
    pthread_mutex_lock(&driver.lock);
    driver.initialized = true;
    return cpu_leave(TMS_CU_SUCCESS);
}

tms_cu_result cuDriverGetVersion(int *version) {
    if (!version) return TMS_CU_INVALID_VALUE;
    *version = 13000;
    return TMS_CU_SUCCESS;
}

static const struct {
    tms_cu_result error;
    const char *name, *text;
} error_names[] = {
    {TMS_CU_SUCCESS, "CUDA_SUCCESS", "no error"},
    {TMS_CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {TMS_CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {TMS_CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {TMS_CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {TMS_CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {TMS_CU_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {TMS_CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {TMS_CU_NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image for this device"},
    {TMS_CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CPU_CU_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in the present state"},
    {TMS_CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {TMS_CU_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {TMS_CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access"},
    {TMS_CU_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {TMS_CU_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {TMS_CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {TMS_CU_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CPU_CU_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CPU_CU_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CPU_CU_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
};

static tms_cu_result describe(tms_cu_result error, const char **out, bool text) {
    if (!out) return TMS_CU_INVALID_VALUE;
    *out = NULL;
    for (size_t i = 0; i < sizeof error_names / sizeof *error_names; i++)
        if (error_names[i].error == error) *out = text ? error_names[i].text : error_names[i].name;
    return *out ? TMS_CU_SUCCESS : TMS_CU_INVALID_VALUE;
}

tms_cu_result cuGetErrorName(tms_cu_result error, const char **name) {
    return describe(error, name, false);
}

tms_cu_result cuGetErrorString(tms_cu_result error, const char **text) {
    return describe(error, text, true);
}

tms_cu_result cuDeviceGetCount(int *count) {
    if (!count) return TMS_CU_INVALID_VALUE;
    if (!driver.initialized) return TMS_CU_NOT_INITIALIZED;
    *count = n_devices();
    return TMS_CU_SUCCESS;
}

tms_cu_result cuDeviceGet(tms_cu_ordinal *device, int ordinal) {
    if (!device) return TMS_CU_INVALID_VALUE;
    if (!cpu_is_device(ordinal)) return TMS_CU_INVALID_DEVICE;
    *device = ordinal;
    return TMS_CU_SUCCESS;
}

tms_cu_result cuDeviceGetName(char *name, int capacity, tms_cu_ordinal device) {
    if (!name || capacity < 1) return TMS_CU_INVALID_VALUE;
    if (!cpu_is_device(device)) return TMS_CU_INVALID_DEVICE;
    snprintf(name, (size_t)capacity, "cuda on cpu");
    return TMS_CU_SUCCESS;
}

tms_cu_result cuDeviceGetAttribute(int *value, int attribute, tms_cu_ordinal device) {
    const int capability = runs_kernels(device) ? setting("CUDA_ON_CPU_CAPABILITY", 90) : 75;
    const int values[][2] = {
        {TMS_CU_MAX_THREADS_PER_BLOCK, CPU_MAX_THREADS},
        {TMS_CU_MULTIPROCESSORS, setting("CUDA_ON_CPU_MULTIPROCESSORS", 4)},
        {TMS_CU_L2_BYTES, 1 << 20},
        {TMS_CU_CAPABILITY_MAJOR, capability / 10},
        {TMS_CU_CAPABILITY_MINOR, capability % 10},
        {TMS_CU_MAX_SHARED_PER_BLOCK, (int)cpu_block_shared()},
        {TMS_CU_MEMORY_POOLS, setting("CUDA_ON_CPU_POOLS", 1)},
    };
    if (!value) return TMS_CU_INVALID_VALUE;
    if (!cpu_is_device(device)) return TMS_CU_INVALID_DEVICE;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        if (values[i][0] != attribute) continue;
        *value = values[i][1];
        return TMS_CU_SUCCESS;
    }
    return cpu_wrong(TMS_CU_INVALID_VALUE, "device attribute %d is not known here", attribute);
}

/* ---- Context --------------------------------------------------------------------------------- */

tms_cu_result cuDevicePrimaryCtxRetain(tms_cu_context *context, tms_cu_ordinal device) {
    if (!context) return TMS_CU_INVALID_VALUE;
    if (!runs_kernels(device))
        return cpu_wrong(TMS_CU_INVALID_DEVICE, "device %d has no context", device);
    pthread_mutex_lock(&driver.lock);
    if (!driver.initialized) return cpu_leave(TMS_CU_NOT_INITIALIZED);
    driver.context.retained++;
    *context = &driver.context;
    return cpu_leave(TMS_CU_SUCCESS);
}

static void module_free(tms_cu_module module) {
    while (module->functions) {
        tms_cu_function next = module->functions->next;
        free(module->functions);
        module->functions = next;
    }
    free(module);
}

static size_t modules_alive(void) {
    size_t n = 0;
    for (tms_cu_module m = driver.modules; m; m = m->next)
        n++;
    return n;
}

/* What the program did not give back. After a fault it could not. */
static void look_for_leaks(void) {
    const struct {
        const char *what;
        size_t n;
    } kinds[] = {
        {"releases of the primary context", driver.context.retained},
        {"allocations", cpu_memory_alive()},
        {"pieces of pinned memory", cpu_pinned_alive()},
        {"streams", cpu_streams_alive()},
        {"events", cpu_events_alive()},
        {"graphs", cpu_graphs_alive()},
        {"modules", modules_alive()},
        {"cuBLAS handles", cpu_blas_alive()},
    };
    const char *leaks = getenv("CUDA_ON_CPU_LEAKS");
    if (driver.context.dead || (leaks && strcmp(leaks, "allowed") == 0)) return;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!kinds[i].n) continue;
        cpu_wrong(0, "left behind: %zu %s", kinds[i].n, kinds[i].what);
        driver.leaked = true;
    }
}

__attribute__((destructor)) static void end_process(void) {
    if (driver.context.retained) look_for_leaks();
    if (!driver.leaked) return;
    fflush(NULL);
    _exit(LEAK_STATUS);
}

/* The last release ends the context and what was made in it; the next one is whole again. */
tms_cu_result cuDevicePrimaryCtxRelease_v2(tms_cu_ordinal device) {
    if (!runs_kernels(device)) return TMS_CU_INVALID_DEVICE;
    pthread_mutex_lock(&driver.lock);
    if (!driver.context.retained) return cpu_leave(TMS_CU_INVALID_CONTEXT);
    if (--driver.context.retained) return cpu_leave(TMS_CU_SUCCESS);
    cpu_drain_all();
    look_for_leaks();
    cpu_streams_reset();
    cpu_memory_reset();
    while (driver.modules) {
        tms_cu_module next = driver.modules->next;
        module_free(driver.modules);
        driver.modules = next;
    }
    driver.context.dead = TMS_CU_SUCCESS;
    return cpu_leave(TMS_CU_SUCCESS);
}

tms_cu_result cuCtxPushCurrent_v2(tms_cu_context context) {
    if (!context || pushed.n == MOST_PUSHED) return TMS_CU_INVALID_CONTEXT;
    pushed.at[pushed.n++] = context;
    return TMS_CU_SUCCESS;
}

tms_cu_result cuCtxPopCurrent_v2(tms_cu_context *context) {
    if (!pushed.n) return TMS_CU_INVALID_CONTEXT;
    pushed.n--;
    if (context) *context = pushed.at[pushed.n];
    return TMS_CU_SUCCESS;
}

tms_cu_result cuCtxGetDevice(tms_cu_ordinal *device) {
    tms_cu_result result = cpu_enter();
    if (!result && !device) result = TMS_CU_INVALID_VALUE;
    if (!result) *device = n_devices() - 1;
    return cpu_leave(result);
}

/* ---- Modules --------------------------------------------------------------------------------- */

void cpu_register(const char *name, const char *file, uint32_t max_threads, size_t args_bytes,
                  void (*entry)(const void *args)) {
    cpu_kernel *k = driver.loading ? malloc(sizeof *k) : NULL;
    if (!k) {
        fprintf(stderr, "cuda_on_cpu: kernel %s does not come with a module\n", name);
        abort();
    }
    *k = (cpu_kernel){driver.loading->kernels, name, file, max_threads, args_bytes, entry};
    driver.loading->kernels = k;
}

bool cpu_constant(uintptr_t at, size_t n) {
    for (size_t i = 0; i < driver.n_constants; i++)
        if (at >= driver.constants[i].begin &&
            at - driver.constants[i].begin + n <= driver.constants[i].bytes)
            return true;
    return false;
}

/* Notes the segments of a library that nobody may write to. */
static int note_constants(struct dl_phdr_info *info, size_t bytes, void *handle) {
    struct link_map *map = NULL;
    (void)bytes;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) || map->l_addr != info->dlpi_addr) return 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        const bool constant =
            (p->p_type == PT_LOAD && !(p->p_flags & PF_W)) || p->p_type == PT_GNU_RELRO;
        if (!constant || driver.n_constants == MOST_CONSTANTS) continue;
        driver.constants[driver.n_constants].begin = info->dlpi_addr + p->p_vaddr;
        driver.constants[driver.n_constants++].bytes = p->p_memsz;
    }
    return 1;
}

static const library *load(const char *path) {
    library *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    driver.loading = l;
    l->handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    driver.loading = NULL;
    if (!l->handle) cpu_wrong(0, "%s", dlerror());
    for (library *other = driver.libraries; other; other = other->next) {
        if (other->handle != l->handle) continue;
        free(l);
        return other; /* was there already, and registered its kernels then */
    }
    if (!l->handle) {
        free(l);
        return NULL;
    }
    dl_iterate_phdr(note_constants, l->handle);
    l->next = driver.libraries;
    driver.libraries = l;
    return l;
}

/* The image is one line, "cuda_on_cpu <stem> <path of a shared library>\n". */
static tms_cu_result load_image(tms_cu_module *out, const char *image) {
    char stem[sizeof out[0]->stem], path[4096];
    if (strncmp(image, "cuda_on_cpu ", 12) != 0) return TMS_CU_INVALID_IMAGE;
    if (sscanf(image + 12, "%63s %4095[^\n]", stem, path) != 2) return TMS_CU_INVALID_IMAGE;
    const library *from = load(path);
    if (!from) return TMS_CU_INVALID_IMAGE;
    tms_cu_module m = calloc(1, sizeof *m);
    if (!m) return TMS_CU_OUT_OF_MEMORY;
    m->from = from;
    memcpy(m->stem, stem, sizeof m->stem);
    m->next = driver.modules;
    driver.modules = m;
    *out = m;
    return TMS_CU_SUCCESS;
}

tms_cu_result cuModuleLoadData(tms_cu_module *module, const void *image) {
    tms_cu_result result = cpu_enter();
    if (!result && (!module || !image)) result = TMS_CU_INVALID_VALUE;
    if (!result) result = cpu_unsafe();
    if (!result) result = load_image(module, image);
    return cpu_leave(result);
}

static tms_cu_result check_module(tms_cu_module module) {
    tms_cu_module *link;
    CPU_WALK(link, driver.modules, module)
    if (module && *link) return TMS_CU_SUCCESS;
    return cpu_wrong(TMS_CU_INVALID_HANDLE, "%p is no module", (void *)module);
}

static tms_cu_result check_function(tms_cu_function function) {
    for (tms_cu_module m = driver.modules; m; m = m->next) {
        tms_cu_function *link;
        CPU_WALK(link, m->functions, function)
        if (function && *link) return TMS_CU_SUCCESS;
    }
    return cpu_wrong(TMS_CU_INVALID_HANDLE, "%p is no function", (void *)function);
}

tms_cu_result cuModuleUnload(tms_cu_module module) {
    tms_cu_result result = cpu_enter();
    if (!result) result = check_module(module);
    if (!result) {
        tms_cu_module *link;
        CPU_WALK(link, driver.modules, module)
        result = cpu_drain_all();
        *link = module->next;
        module_free(module);
    }
    return cpu_leave(result);
}

static bool is_of_stem(const cpu_kernel *k, const char *stem) {
    const char *slash = strrchr(k->file, '/'), *name = slash ? slash + 1 : k->file;
    const size_t n = strlen(stem);
    return strncmp(name, stem, n) == 0 && name[n] == '.';
}

tms_cu_result cuModuleGetFunction(tms_cu_function *function, tms_cu_module module,
                                  const char *name) {
    tms_cu_result result = cpu_enter();
    if (!result && (!function || !name)) result = TMS_CU_INVALID_VALUE;
    if (!result) result = check_module(module);
    const cpu_kernel *k = result ? NULL : module->from->kernels;
    while (k && !(strcmp(k->name, name) == 0 && is_of_stem(k, module->stem)))
        k = k->next;
    if (!result && !k) result = TMS_CU_NOT_FOUND;
    if (!result) {
        tms_cu_function f = calloc(1, sizeof *f);
        if (!f) return cpu_leave(TMS_CU_OUT_OF_MEMORY);
        *f = (struct CUfunc_st){module->functions, k, DEFAULT_DYNAMIC};
        module->functions = f;
        *function = f;
    }
    return cpu_leave(result);
}

tms_cu_result cuFuncGetAttribute(int *value, int attribute, tms_cu_function function) {
    tms_cu_result result = cpu_enter();
    if (!result) result = check_function(function);
    if (!result && (!value || attribute != TMS_CU_FUNCTION_PTX)) result = TMS_CU_INVALID_VALUE;
    if (!result) *value = setting("CUDA_ON_CPU_PTX", 90);
    return cpu_leave(result);
}

tms_cu_result cuFuncSetAttribute(tms_cu_function function, int attribute, int value) {
    tms_cu_result result = cpu_enter();
    if (!result) result = check_function(function);
    if (!result && (attribute != TMS_CU_MAX_DYNAMIC_SHARED || value < 0 ||
                    (uint32_t)value > cpu_block_shared()))
        result = TMS_CU_INVALID_VALUE;
    if (!result) function->max_dynamic = (uint32_t)value;
    return cpu_leave(result);
}

/* ---- Launches -------------------------------------------------------------------------------- */

static tms_cu_result check_launch(const struct CUfunc_st *f, cpu_dim grid, cpu_dim block,
                                  uint32_t shared) {
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    const char *name = f->kernel->name;
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        return cpu_wrong(TMS_CU_INVALID_VALUE, "%s: grid (%u,%u,%u)", name, grid.x, grid.y, grid.z);
    if (threads == 0 || threads > f->kernel->max_threads || block.z > 64)
        return cpu_wrong(TMS_CU_INVALID_VALUE, "%s: blocks of (%u,%u,%u) threads, at most %u", name,
                         block.x, block.y, block.z, f->kernel->max_threads);
    if (shared > f->max_dynamic)
        return cpu_wrong(TMS_CU_INVALID_VALUE, "%s: %u bytes of dynamic shared memory, at most %u",
                         name, shared, f->max_dynamic);
    return TMS_CU_SUCCESS;
}

/* Kernels have one parameter, a struct of known size; `extra`, if given, says its size too. */
static const void *arguments(const cpu_kernel *k, void **parameters, void **extra) {
    if (parameters) return parameters[0];
    const void *at = NULL;
    size_t bytes = 0;
    for (; extra && extra[0]; extra += 2) {
        if (extra[0] == (void *)1) at = extra[1]; /* CU_LAUNCH_PARAM_BUFFER_POINTER */
        if (extra[0] == (void *)2) bytes = *(const size_t *)extra[1]; /* ..._BUFFER_SIZE */
    }
    return bytes == k->args_bytes ? at : NULL;
}

tms_cu_result cuLaunchKernel(tms_cu_function function, unsigned grid_x, unsigned grid_y,
                             unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, tms_cu_stream stream, void **parameters,
                             void **extra) {
    const cpu_dim grid = {grid_x, grid_y, grid_z}, block = {block_x, block_y, block_z};
    tms_cu_result result = cpu_enter();
    if (!result) result = check_function(function);
    if (!result) result = check_launch(function, grid, block, shared_bytes);
    const void *args = result ? NULL : arguments(function->kernel, parameters, extra);
    if (!result && !args)
        result = cpu_wrong(TMS_CU_INVALID_VALUE, "%s: no arguments of %zu bytes",
                           function->kernel->name, function->kernel->args_bytes);
    if (result) return cpu_leave(result);
    cpu_command *c = cpu_command_new(CPU_LAUNCH, function->kernel->args_bytes);
    if (c) {
        c->launch.kernel = function->kernel;
        c->launch.grid = grid;
        c->launch.block = block;
        c->launch.shared = shared_bytes;
        memcpy(c->payload, args, function->kernel->args_bytes);
    }
    return cpu_leave(cpu_enqueue(stream, c));
}
