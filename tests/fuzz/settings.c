/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the file of settings: any bytes are refused with a reason, and then no value has changed and
 * a writer leaves the file as it was; or every value is one that its setting may have, and what is
 * written is read back, while lines of other devices stay. */
#include "host/settings.h"
#include "lib/core/settings.h"
#include "tests/fuzz/refusal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define DEVICE "Fast CPU"
#define OTHER  "Slow CPU"
#define VALUES (sizeof(tms_settings) / sizeof(uint32_t)) /* the setting varies fastest */

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/tmp/tamis-fuzz-XXXXXX", path[sizeof folder + 16];

static void remove_folder(void) {
    unlink(path);
    rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    refusal_abort_on_failure();
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/settings", folder);
    atexit(remove_folder);
    return 0;
}

static void put_file(const void *data, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void assert_file_is(const uint8_t *data, size_t size) {
    uint8_t *now = malloc(size + 1);
    FILE *file = fopen(path, "rb");
    assert_non_null(now);
    assert_non_null(file);
    assert_int_equal(fread(now, 1, size + 1, file), size);
    assert_memory_equal(now, data, size);
    fclose(file);
    free(now);
}

/* The first value of every setting. */
static tms_settings first_values(void) {
    tms_settings all;
    for (uint32_t i = 0; i < VALUES; i++)
        (&all.value[0][0][0][0])[i] = tamis_setting_describe(i % TMS_SETTINGS)->values[0];
    return all;
}

static void check_values(const tms_settings *t) {
    for (uint32_t i = 0; i < VALUES; i++)
        assert_true(
            tms_setting_allows((tamis_setting)(i % TMS_SETTINGS), (&t->value[0][0][0][0])[i]));
}

/* What a device has, where the file is known to be understood. */
static tms_settings read_well(const char *device) {
    tms_settings t = first_values();
    bool named;
    tamis_error error = {0};
    assert_int_equal(tms_settings_read(path, device, &t, &named, &error), TAMIS_OK);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const tms_settings before = first_values();
    tms_settings read = before, other = before;
    tamis_error error = {0};
    bool named = false;
    put_file(data, size);
    tamis_status status = tms_settings_read(path, DEVICE, &read, &named, &error);
    check_values(&read);
    if (status != TAMIS_OK) {
        refusal_check(status, &error);
        assert_memory_equal(&read, &before, sizeof read);
        error = (tamis_error){0};
        status = tms_settings_write(path, DEVICE, &before, &before, &before, &error);
        refusal_check(status, &error);
        assert_file_is(data, size);
        return 0;
    }
    if (!named) assert_memory_equal(&read, &before, sizeof read);
    error = (tamis_error){0};
    const bool others = tms_settings_read(path, OTHER, &other, &named, &error) == TAMIS_OK;
    assert_int_equal(tms_settings_write(path, DEVICE, &read, &before, &before, &error), TAMIS_OK);
    const tms_settings again = read_well(DEVICE);
    assert_memory_equal(&again, &read, sizeof read);
    if (!others) return 0;
    const tms_settings still = read_well(OTHER);
    assert_memory_equal(&still, &other, sizeof other);
    return 0;
}
