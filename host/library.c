/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that are found and opened at run time. */
#define _GNU_SOURCE /* dlinfo */
#include "host/library.h"
#include "host/backend.h"
#include "host/base/quote.h"
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

/* The first of `names` that opens. `reason` gets the last one's failure. */
static void *open_first(const char *const *names, char *reason, size_t capacity) {
    for (; *names; names++) {
        void *library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
        const char *why = dlerror();
        snprintf(reason, capacity, "%s", why ? why : *names);
        tms_quote_controls(reason);
    }
    return NULL;
}

/* False if functions are missing: `reason` lists as many of them as it holds. */
static bool find_all(void *library, const tms_library_function *functions, char *reason,
                     size_t capacity) {
    size_t used = 0;
    for (const tms_library_function *f = functions; f->name; f++) {
        void *found = dlsym(library, f->name);
        if (!found)
            snprintf(reason + used, capacity - used, "%s%s", used ? ", " : "the library has no ",
                     f->name);
        used += strlen(reason + used);
        memcpy(f->pointer, &found, sizeof found); /* ISO C has no cast from void * to a function */
    }
    return used == 0;
}

void *tms_library_open(const tms_library_needs *needs, char *reason, size_t capacity) {
    const char *named = tms_env(needs->variable);
    const char *const one[] = {named, NULL};
    reason[0] = 0;
    if (named && strcmp(named, "none") == 0) {
        snprintf(reason, capacity, "%s is \"none\"", needs->variable);
        return NULL;
    }
    void *library = open_first(named ? one : needs->names, reason, capacity);
    if (!library) return NULL;
    reason[0] = 0;
    if (find_all(library, needs->functions, reason, capacity)) return library;
    dlclose(library);
    return NULL;
}

const char *tms_library_file(void *library) {
    struct link_map *map = NULL;
    return dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : "";
}
