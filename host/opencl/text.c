/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel texts, built in or from a folder, with includes replaced by their contents, since OpenCL
 * compilers differ in how they search for included files. */
#include "host/base/file.h"
#include "host/opencl/opencl.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT  (1u << 20)
#define MAX_DEPTH 8

static tamis_status unreadable(tms_device *dev, const char *file, const char *why) {
    return tms_device_fail(dev, TAMIS_E_IO, "the kernel text %s cannot be read: %s", file, why);
}

static tamis_status no_memory(tms_device *dev, const char *file) {
    return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no host memory for the kernel text %s", file);
}

/* A whole file of the folder, ended by NUL. */
static tamis_status read_file(tms_device *dev, const char *folder, const char *file, char **out) {
    char path[1024];
    size_t bytes;
    tamis_error error;
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path)
        return unreadable(dev, file, "the path is too long");
    const tamis_status status = tms_file_read(path, MAX_TEXT, out, &bytes, &error);
    if (status != TAMIS_OK) return tms_device_fail(dev, status, "the kernel text %s", error.text);
    return *out ? TAMIS_OK : unreadable(dev, path, "there is no such file");
}

/* A copy of the text of one file as it is. */
static tamis_status find_text(tms_device *dev, const char *file, char **out) {
    const char *folder = tms_env("TAMIS_KERNEL_DIR");
    if (folder) return read_file(dev, folder, file, out);
    const tms_cl_text *t = tms_cl_texts;
    while (t->name && strcmp(t->name, file) != 0)
        t++;
    if (!t->name) return unreadable(dev, file, "there is none built in");
    *out = strdup(t->text);
    return *out ? TAMIS_OK : no_memory(dev, file);
}

/* Appends `file` to `to` of MAX_TEXT, x's text in the place of each `#include "x"` line. */
static tamis_status append(tms_device *dev, const char *file, char *to, size_t *used, int depth) {
    char *text = NULL;
    int number = 1;
    if (depth == MAX_DEPTH) return unreadable(dev, file, "its includes lie too deep");
    tamis_status status = find_text(dev, file, &text);
    if (status != TAMIS_OK) return status;
    *used += (size_t)snprintf(to + *used, MAX_TEXT - *used, "#line 1 \"%s\"\n", file);
    for (char *line = text; *line && status == TAMIS_OK; number++) {
        size_t length = strcspn(line, "\n") + (strchr(line, '\n') != NULL);
        char name[64];
        if (sscanf(line, "#include \"%63[^\"\n]\"", name) == 1) {
            status = append(dev, name, to, used, depth + 1);
            if (status == TAMIS_OK)
                *used += (size_t)snprintf(to + *used, MAX_TEXT - *used, "\n#line %d \"%s\"\n",
                                          number + 1, file);
        } else if (*used + length + 256 < MAX_TEXT) {
            memcpy(to + *used, line, length);
            to[ *used += length] = 0;
        } else {
            status = tms_device_fail(dev, TAMIS_E_IO, "the kernel text %s is too long", file);
        }
        line += length;
    }
    free(text);
    return status;
}

char *tms_cl_text_load(tms_device *dev, const char *file) {
    char *text = malloc(MAX_TEXT);
    size_t used = 0;
    if (!text)
        no_memory(dev, file);
    else if (append(dev, file, text, &used, 0) == TAMIS_OK)
        return text;
    free(text);
    return NULL;
}
