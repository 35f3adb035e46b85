/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel texts, built in or from a folder, with their includes put in place: OpenCL compilers
 * differ in how they search for included files. */
#include "host/opencl/opencl.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT  (1u << 20)
#define MAX_DEPTH 4

/* A whole file of the folder, ended by NUL; NULL if it cannot be read. */
static char *read_file(const char *folder, const char *file) {
    char path[1024];
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) return NULL;
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(MAX_TEXT + 1) : NULL;
    if (text) {
        size_t length = fread(text, 1, MAX_TEXT, f);
        text[ferror(f) ? 0 : length] = 0;
    }
    if (f) fclose(f);
    return text;
}

/* A copy of the text of one file as it is. */
static char *find_text(const char *file) {
    const char *folder = getenv("TAMIS_KERNEL_DIR");
    if (folder && *folder) return read_file(folder, file);
    for (const tms_cl_text *t = tms_cl_texts; t->name; t++)
        if (strcmp(t->name, file) == 0) return strdup(t->text);
    return NULL;
}

/* Appends `file` to `to` of MAX_TEXT, x's text in the place of each `#include "x"` line. */
static tamis_status append(tms_device *dev, const char *file, char *to, size_t *used, int depth) {
    char *text = depth < MAX_DEPTH ? find_text(file) : NULL;
    if (!text) return tms_device_fail(dev, TAMIS_E_IO, "the kernel text %s cannot be read", file);
    tamis_status status = TAMIS_OK;
    int number = 1;
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
        tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no host memory for the kernel text %s", file);
    else if (append(dev, file, text, &used, 0) == TAMIS_OK)
        return text;
    free(text);
    return NULL;
}
