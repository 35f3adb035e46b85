/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver and cuBLAS, opened at run time: once for the process, with the reason if not. */
#include "host/cuda/driver.h"
#include "host/backend.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static tms_cu_driver driver;
static tms_cublas cublas;
/* Why there is none; empty if there is. */
static char driver_reason[224], cublas_reason[224];

/* The first of `names` (ended by NULL) that opens. `reason` gets the last one's failure. */
static void *open_first(const char *const *names, char *reason, size_t capacity) {
    void *library = NULL;
    for (; *names && !library; names++) {
        library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            const char *why = dlerror();
            snprintf(reason, capacity, "%s", why ? why : *names);
        }
    }
    if (library) reason[0] = 0;
    return library;
}

/* Sets *function (a pointer to a function) to the library's `name`. Missing ones are listed in
 * `reason`, as far as it goes. */
static void find(void *library, const char *name, void *function, char *reason, size_t capacity) {
    void *found = dlsym(library, name);
    const size_t used = strlen(reason);
    if (!found)
        snprintf(reason + used, capacity - used, "%s%s", used ? ", " : "the library has no ", name);
    memcpy(function, &found, sizeof found); /* ISO C has no cast from void * to a function */
}

/* Why the driver does not start; it says so itself where it can. */
static void init(void) {
    const tms_cu_result result = driver.cuInit(0);
    const char *name = NULL, *text = NULL;
    if (result == TMS_CU_SUCCESS) return;
    driver.cuGetErrorName(result, &name);
    driver.cuGetErrorString(result, &text);
    snprintf(driver_reason, sizeof driver_reason, "the CUDA driver does not start: %s (%d): %s",
             name ? name : "a CUDA error", result, text ? text : "no text");
}

static void open_driver(void) {
    const char *named = tms_env("TAMIS_CUDA_DRIVER");
    const char *const names[] = {named ? named : "libcuda.so.1", NULL};
    char why[192];
    driver.library = open_first(names, why, sizeof why);
    if (!driver.library) {
        snprintf(driver_reason, sizeof driver_reason, "no CUDA driver: %s", why);
        return;
    }
#define FIND(name, parameters)                                                                     \
    find(driver.library, #name, &driver.name, driver_reason, sizeof driver_reason);
    TMS_CU_CALLS(FIND)
#undef FIND
    if (!driver_reason[0]) init();
}

const tms_cu_driver *tms_cu_driver_get(char *reason, size_t capacity) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_driver);
    if (!driver_reason[0]) return &driver;
    snprintf(reason, capacity, "%s", driver_reason);
    return NULL;
}

static void open_cublas(void) {
    const char *named = tms_env("TAMIS_CUBLAS");
    const char *const known[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", NULL};
    const char *const one[] = {named, NULL};
    if (named && strcmp(named, "none") == 0) {
        snprintf(cublas_reason, sizeof cublas_reason, "TAMIS_CUBLAS is \"none\"");
        return;
    }
    cublas.library = open_first(named ? one : known, cublas_reason, sizeof cublas_reason);
    if (!cublas.library) return;
#define FIND(name, parameters)                                                                     \
    find(cublas.library, #name, &cublas.name, cublas_reason, sizeof cublas_reason);
    TMS_CUBLAS_CALLS(FIND)
#undef FIND
    if (cublas_reason[0]) {
        dlclose(cublas.library);
        cublas.library = NULL;
    }
}

const tms_cublas *tms_cublas_get(char *reason, size_t capacity) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_cublas);
    if (!cublas.library) snprintf(reason, capacity, "%s", cublas_reason);
    return &cublas;
}
