/* SPDX-License-Identifier: Apache-2.0 */
/* The user's file of settings: finding, reading, replacing it. */
#include "lib/core/settings.h"

#include "lib/core/text_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD "# Settings by `tamis tune`; see tamis/settings.h.\n"

tamis_status tms_settings_path(char path[PATH_MAX], tamis_error *error) {
    const char *named = tms_env("TAMIS_SETTINGS");
    if (!named) return tms_config_path("settings", path, PATH_MAX, error);
    TMS_REQUIRE(strcmp(named, "none") != 0, TAMIS_E_STATE,
                "settings are not kept: TAMIS_SETTINGS is none");
    const int bytes = snprintf(path, PATH_MAX, "%s", named);
    TMS_REQUIRE(bytes < PATH_MAX, TAMIS_E_ARGUMENT, "TAMIS_SETTINGS has %d bytes: too many", bytes);
    return TAMIS_OK;
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* A line's length without what is not seen at its end. */
static size_t length_of(const char *line) {
    size_t bytes = strcspn(line, "\n");
    while (bytes > 0 && strchr(" \t\r", line[bytes - 1]))
        bytes--;
    return bytes;
}

/* Whether a line of so many bytes begins the part of a device; *meant: of that one. */
static bool begins_device(const char *line, size_t bytes, const char *device, bool *meant) {
    if (strncmp(line, "device ", 7) != 0) return false;
    *meant = bytes == 7 + strlen(device) && strncmp(line + 7, device, strlen(device)) == 0;
    return true;
}

static bool find_op(const char *word, tamis_setting_op *op) {
    for (uint32_t i = 0; tamis_setting_op_name(i); i++)
        if (strcmp(word, tamis_setting_op_name(i)) == 0) {
            *op = (tamis_setting_op)i;
            return true;
        }
    return false;
}

static bool find_dtype(const char *word, tamis_dtype *dtype) {
    for (uint32_t i = 0; i < TMS_DTYPES; i++)
        if (strcmp(word, tamis_dtype_name((tamis_dtype)i)) == 0) {
            *dtype = (tamis_dtype)i;
            return true;
        }
    return false;
}

/* "fetch_rows=4" */
static bool parse_setting(const char *word, tamis_setting_op op, tamis_setting *setting,
                          uint32_t *value) {
    const char *equals = strchr(word, '=');
    char *end = NULL;
    if (!equals || equals[1] < '0' || equals[1] > '9') return false;
    const unsigned long long number = strtoull(equals + 1, &end, 10);
    if (*end || number > UINT32_MAX) return false;
    *value = (uint32_t)number;
    for (uint32_t i = 0; tamis_setting_describe(i); i++) {
        const tamis_setting_info *info = tamis_setting_describe(i);
        const size_t bytes = strlen(info->name);
        if (bytes != (size_t)(equals - word) || strncmp(word, info->name, bytes) != 0) continue;
        *setting = (tamis_setting)i;
        return (info->ops & (1u << op)) && tms_setting_allows(*setting, *value);
    }
    return false;
}

/* One line of settings, which is taken apart. The word that is not understood, or NULL. */
static const char *parse_row(char *line, tms_settings *to) {
    char *rest = NULL, *word = strtok_r(line, " \t", &rest);
    tamis_setting_op op;
    tamis_dtype dtype;
    if (!find_op(word, &op)) return word;
    word = strtok_r(NULL, " \t", &rest);
    if (!word || !find_dtype(word, &dtype)) return word ? word : "no dtype";
    word = strtok_r(NULL, " \t", &rest);
    if (!word || (strcmp(word, "1") != 0 && strcmp(word, "+") != 0))
        return word ? word : "no group";
    const uint32_t group = *word == '1' ? 1 : 2;
    while ((word = strtok_r(NULL, " \t", &rest))) {
        tamis_setting setting;
        uint32_t value;
        if (!parse_setting(word, op, &setting, &value)) return word;
        *tms_settings_at(to, op, dtype, group, setting) = value;
    }
    return NULL;
}

/* Takes the text apart. What other devices have may be of another version: it is not looked at. */
static tamis_status parse(const char *path, char *text, const char *device, tms_settings *to,
                          bool *named, tamis_error *error) {
    bool begun = false, meant = false;
    int number = 1;
    for (char *line = text, *next; line; line = next, number++) {
        next = strchr(line, '\n');
        const size_t bytes = length_of(line);
        if (next) next++;
        line[bytes] = 0;
        if (line[strspn(line, " \t")] == 0 || *line == '#') continue;
        if (begins_device(line, bytes, device, &meant)) {
            begun = true;
            *named = *named || meant;
            continue;
        }
        TMS_REQUIRE(begun, TAMIS_E_FORMAT, "%s, line %d: \"%s\" before any \"device NAME\"", path,
                    number, tms_quote(line).text);
        const char *wrong = meant ? parse_row(line, to) : NULL;
        TMS_REQUIRE(!wrong, TAMIS_E_FORMAT,
                    "%s, line %d: \"%s\" is not understood; `tamis tune` measures anew once the "
                    "line is removed",
                    path, number, tms_quote(wrong).text);
    }
    return TAMIS_OK;
}

/* A copy of the text is taken apart. */
static tamis_status read_from(const char *path, const char *text, size_t bytes, const char *device,
                              tms_settings *to, bool *named, tamis_error *error) {
    TMS_REQUIRE(strlen(text) == bytes, TAMIS_E_FORMAT, "%s holds a byte 0", path);
    char *copy = strdup(text);
    TMS_REQUIRE(copy, TAMIS_E_NO_MEMORY, "no memory for the %zu bytes of %s", bytes, path);
    tms_settings read = *to;
    const tamis_status status = parse(path, copy, device, &read, named, error);
    free(copy);
    if (status == TAMIS_OK) *to = read;
    return status;
}

tamis_status tms_settings_read(const char *path, const char *device, tms_settings *to, bool *named,
                               tamis_error *error) {
    char *text = NULL;
    size_t bytes;
    *named = false;
    TMS_TRY(tms_text_read(path, &text, &bytes, error));
    if (!text) return TAMIS_OK;
    const tamis_status status = read_from(path, text, bytes, device, to, named, error);
    free(text);
    return status;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* The lines of a text that are not of the device, and all comments. */
static void add_others(FILE *to, const char *text, const char *device) {
    bool meant = false;
    for (const char *line = text, *next; *line; line = next) {
        const size_t whole = strcspn(line, "\n"), bytes = length_of(line);
        next = line + whole + (line[whole] == '\n');
        begins_device(line, bytes, device, &meant);
        if (!meant || *line == '#') fprintf(to, "%.*s\n", (int)bytes, line);
    }
}

/* A class's line, unless its values are those that the library has. */
static void add_class(FILE *to, tamis_setting_op op, tamis_dtype dtype, uint32_t group,
                      const tms_settings *from, const tms_settings *shipped) {
    const uint32_t *value = from->value[op][dtype][group > 1];
    if (memcmp(value, shipped->value[op][dtype][group > 1], sizeof from->value[0][0][0]) == 0)
        return;
    fprintf(to, "%s %s %s", tamis_setting_op_name(op), tamis_dtype_name(dtype),
            group == 1 ? "1" : "+");
    for (uint32_t i = 0; i < TMS_SETTINGS; i++) {
        const tamis_setting_info *info = tamis_setting_describe(i);
        if (info->ops & (1u << op)) fprintf(to, " %s=%" PRIu32, info->name, value[i]);
    }
    fprintf(to, "\n");
}

static void add_device(FILE *to, const char *device, const tms_settings *from,
                       const tms_settings *shipped) {
    fprintf(to, "device %s\n", device);
    for (uint32_t op = 0; op < TMS_SETTING_OPS; op++)
        for (uint32_t dtype = 0; dtype < TMS_DTYPES; dtype++)
            for (uint32_t group = 1; group <= 2; group++)
                add_class(to, (tamis_setting_op)op, (tamis_dtype)dtype, group, from, shipped);
}

/* The new text, which the caller frees, or NULL; before: the old one, or NULL. */
static char *text_of(const char *before, const char *device, const tms_settings *from,
                     const tms_settings *shipped, size_t *bytes) {
    char *text = NULL;
    FILE *to = open_memstream(&text, bytes);
    if (!to) return NULL;
    if (before)
        add_others(to, before, device);
    else
        fprintf(to, HEAD);
    add_device(to, device, from, shipped);
    const bool failed = ferror(to) != 0;
    if (fclose(to) == 0 && !failed) return text;
    free(text);
    return NULL;
}

/* What has changed since it was found is put into what the file has now. */
static void merge(tms_settings *now, const tms_settings *from, const tms_settings *found) {
    uint32_t *to = &now->value[0][0][0][0];
    const uint32_t *own = &from->value[0][0][0][0], *old = &found->value[0][0][0][0];
    for (size_t i = 0; i < sizeof *now / sizeof *to; i++)
        if (own[i] != old[i]) to[i] = own[i];
}

static tamis_status rewrite(tms_draft *d, const char *device, const tms_settings *from,
                            const tms_settings *found, const tms_settings *shipped,
                            tamis_error *error) {
    char *before = NULL, *after = NULL;
    size_t bytes;
    tms_settings now = *shipped;
    bool named = false;
    TMS_TRY(tms_text_read(d->path, &before, &bytes, error));
    tamis_status status =
        before ? read_from(d->path, before, bytes, device, &now, &named, error) : TAMIS_OK;
    if (status == TAMIS_OK) {
        merge(&now, from, named ? found : shipped);
        after = text_of(before, device, &now, shipped, &bytes);
        status = after ? tms_draft_put(d, after, bytes, error)
                       : tms_error_set(error, TAMIS_E_NO_MEMORY, "no memory for %s", d->path);
    }
    free(before);
    free(after);
    return status;
}

tamis_status tms_settings_write(const char *path, const char *device, const tms_settings *from,
                                const tms_settings *found, const tms_settings *shipped,
                                tamis_error *error) {
    tms_draft d;
    TMS_REQUIRE(!strchr(device, '\n'), TAMIS_E_UNSUPPORTED,
                "the device's name has more than one line");
    TMS_TRY(tms_draft_open(path, &d, error));
    const tamis_status status = rewrite(&d, device, from, found, shipped, error);
    tms_draft_close(&d);
    return status;
}
