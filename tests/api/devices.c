/* SPDX-License-Identifier: Apache-2.0 */
/* The list of devices, the choice among them, the environment, and the log. With the argument
 * "no-opencl" the environment must hide every OpenCL platform and the CUDA driver. */
#include "host/backend.h"
#include "lib/core/core.h"
#include "tests/api/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* In the place of the C library's: whether the program has more rights than who started it, in which
 * case the library must not obey the environment. */
static bool is_setuid;

char *secure_getenv(const char *name);
char *secure_getenv(const char *name) {
    return is_setuid ? NULL : getenv(name);
}

static char log_text[4096];

static void keep_line(void *user, tamis_log_level level, const char *text) {
    (void)user;
    (void)level;
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used, "%s\n", text);
}

/* Opens `name` and says which backend serves. allowed: the reference may serve unnamed. */
static const char *open_allowed(const char *name, bool allowed) {
    static char backend[16];
    tamis_context *context = NULL;
    tamis_context_params params = {.device = name, .log = keep_line, .allow_reference = allowed};
    log_text[0] = 0;
    OK(tamis_context_create(&params, &context, &test_error));
    snprintf(backend, sizeof backend, "%s", tamis_context_device(context)->backend);
    assert_true(tamis_context_device(context)->usable);
    tamis_context_destroy(&context);
    assert_null(context);
    return backend;
}

static const char *open_backend(const char *name) {
    return open_allowed(name, false);
}

static void refused(const char *name, tamis_status code, const char *part) {
    tamis_context *context = NULL;
    tamis_context_params params = {.device = name};
    FAILS(tamis_context_create(&params, &context, &test_error), code, part);
    assert_null(context);
}

static void every_backend_is_listed(void **state) {
    (void)state;
    tamis_device_info infos[32], one[2];
    size_t count = 0, again = 0;
    assert_int_equal(tamis_device_list(NULL, 0, NULL, NULL), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_device_list(NULL, 3, &count, NULL), TAMIS_E_ARGUMENT);
    OK(tamis_device_list(NULL, 0, &count, NULL));
    assert_in_range(count, 2, 32); /* OpenCL or why not, and the reference */
    OK(tamis_device_list(infos, 32, &again, NULL));
    assert_int_equal(again, count);
    for (size_t i = 0; i < count; i++) {
        assert_true(infos[i].id[0] && infos[i].backend[0]);
        assert_int_equal(strncmp(infos[i].id, infos[i].backend, strlen(infos[i].backend)), 0);
        if (infos[i].usable)
            assert_true(infos[i].name[0] && infos[i].memory_bytes && infos[i].max_buffer_bytes);
        else
            assert_true(infos[i].reason[0]);
    }
    assert_true(infos[count - 1].usable);
    assert_string_equal(infos[count - 1].backend, "reference");
    memset(one, 0xa5, sizeof one);
    OK(tamis_device_list(one, 1, &again, NULL));
    assert_int_equal(again, count);
    assert_string_equal(one[0].id, infos[0].id);
    for (size_t i = 0; i < sizeof one[1]; i++)
        assert_int_equal(((unsigned char *)&one[1])[i], 0xa5);
}

static void a_named_device_is_opened_or_refused(void **state) {
    (void)state;
    unsetenv("TAMIS_DEVICE");
    FAILS(tamis_context_create(NULL, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    refused("cuda:7", TAMIS_E_NO_DEVICE, "\"cuda:7\" does not exist; there are: ");
    refused("reference:1", TAMIS_E_NO_DEVICE, "reference:1");
    refused("", TAMIS_E_NO_DEVICE, "\"\"");
    assert_string_equal(open_backend("reference"), "reference");
    assert_string_equal(open_backend("reference:0"), "reference");
    tamis_context_destroy(NULL);
}

/* TAMIS_DEVICE decides when the caller does not; a name that the caller gives wins. */
static void the_environment_chooses_an_unnamed_device(void **state) {
    (void)state;
    setenv("TAMIS_DEVICE", "reference", 1);
    assert_string_equal(open_backend(NULL), "reference");
    setenv("TAMIS_DEVICE", "none-such", 1);
    refused(NULL, TAMIS_E_NO_DEVICE, "none-such");
    assert_string_equal(open_backend("reference"), "reference");
    unsetenv("TAMIS_DEVICE");
    setenv("TAMIS_LOG", "everything", 1);
    refused("reference", TAMIS_E_ARGUMENT, "everything");
    unsetenv("TAMIS_LOG");
}

/* What a terminal would obey does not get into messages. */
static void control_characters_are_quoted(void **state) {
    (void)state;
    setenv("TAMIS_DEVICE", "\033[31m\n\xc2\x9bm\x7f\xc3\xa9", 1);
    refused(NULL, TAMIS_E_NO_DEVICE, "\"?[31m???m???\"");
    unsetenv("TAMIS_DEVICE");
    setenv("TAMIS_LOG", "\r", 1);
    refused("reference", TAMIS_E_ARGUMENT, "\"?\"");
    unsetenv("TAMIS_LOG");
}

/* Where there is an OpenCL device. */
static void a_wait_is_0_or_1(void **state) {
    (void)state;
    tamis_device_info infos[32];
    size_t count = 0;
    OK(tamis_device_list(infos, 32, &count, NULL));
    for (size_t i = 0; i < count && i < 32; i++) {
        if (!infos[i].usable || strncmp(infos[i].id, "opencl:", 7) != 0) continue;
        setenv("TAMIS_OPENCL_WAIT", "2", 1);
        refused(infos[i].id, TAMIS_E_ARGUMENT, "TAMIS_OPENCL_WAIT is \"2\": must be 0 or 1");
        setenv("TAMIS_OPENCL_WAIT", "0", 1);
        assert_string_equal(open_backend(infos[i].id), "opencl");
        unsetenv("TAMIS_OPENCL_WAIT");
    }
}

/* The form of a device that is opened with TAMIS_OPENCL_FORM set to `name`; NULL: unset. *cpu: whether it
 * takes CPU forms by itself. */
static tms_form form_by(const char *id, const char *name, bool *cpu) {
    tamis_context *context = NULL;
    const tamis_context_params params = {.device = id};
    if (name) setenv("TAMIS_OPENCL_FORM", name, 1);
    OK(tamis_context_create(&params, &context, &test_error));
    const tms_form form = context->dev->form;
    *cpu = !context->dev->base_only;
    tamis_context_destroy(&context);
    unsetenv("TAMIS_OPENCL_FORM");
    return form;
}

/* Where there is an OpenCL device. */
static void a_form_is_one_of_four(void **state) {
    (void)state;
    tamis_device_info infos[32];
    size_t count = 0;
    bool cpu;
    OK(tamis_device_list(infos, 32, &count, NULL));
    for (size_t i = 0; i < count && i < 32; i++) {
        const char *id = infos[i].id;
        if (!infos[i].usable || strncmp(id, "opencl:", 7) != 0) continue;
        assert_int_equal(form_by(id, "gpu", &cpu), TMS_FORM_GPU);
        assert_int_equal(form_by(id, "base", &cpu), TMS_FORM_BASE);
        assert_int_equal(form_by(id, "auto", &cpu), TMS_FORM_AUTO);
        assert_int_equal(form_by(id, NULL, &cpu), TMS_FORM_AUTO);
        if (cpu) assert_int_equal(form_by(id, "cpu", &cpu), TMS_FORM_AUTO);
        setenv("TAMIS_OPENCL_FORM", "cpu", 1);
        if (!cpu) refused(id, TAMIS_E_UNSUPPORTED, "TAMIS_OPENCL_FORM=cpu: the ");
        setenv("TAMIS_OPENCL_FORM", "cpu-other", 1);
        refused(id, TAMIS_E_ARGUMENT,
                "TAMIS_OPENCL_FORM is \"cpu-other\": must be auto, cpu, gpu or base");
        unsetenv("TAMIS_OPENCL_FORM");
    }
}

/* The id of PoCL's device, or NULL. */
static const char *pocl_device(void) {
    static tamis_device_info infos[32];
    size_t count = 0;
    OK(tamis_device_list(infos, 32, &count, NULL));
    for (size_t i = 0; i < count && i < 32; i++)
        if (strstr(infos[i].driver, "Portable Computing Language")) return infos[i].id;
    return NULL;
}

/* The list has the reason, opening is refused with it, by name and on "auto". */
static void expect_lacking(const char *id, const char *part) {
    tamis_device_info infos[32];
    size_t count = 0, i = 0;
    OK(tamis_device_list(infos, 32, &count, NULL));
    while (i < count && strcmp(infos[i].id, id) != 0)
        i++;
    assert_in_range(i, 0, count - 1);
    assert_false(infos[i].usable);
    assert_int_equal(infos[i].refusal, TAMIS_E_DEVICE);
    assert_non_null(strstr(infos[i].reason, part));
    refused(id, TAMIS_E_DEVICE, part);
}

static char *kept(const char *name) {
    const char *value = getenv(name);
    return value ? strdup(value) : NULL;
}

static void put_back(const char *name, char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
    free(value);
}

/* PoCL ends the process where it cannot link: it is refused before, and a context that is open
 * builds nothing more. */
static void pocl_without_a_linker_is_refused(void **state) {
    (void)state;
    const char *id = pocl_device();
    if (!id) skip();
    static const char *const paths[] = {NULL, "", "/nonexistent", ":", "/nonexistent:"};
    char *path = kept("PATH");
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        tamis_context *context = NULL;
        const tamis_context_params params = {.device = id};
        double rate;
        OK(tamis_context_create(&params, &context, &test_error));
        if (paths[i])
            setenv("PATH", paths[i], 1);
        else
            unsetenv("PATH");
        expect_lacking(id, "install binutils");
        FAILS(tamis_context_read_bandwidth(context, 1 << 20, &rate, &test_error), TAMIS_E_DEVICE,
              "install binutils");
        setenv("PATH", path, 1);
        tamis_context_destroy(&context);
    }
    char folder[] = "/tmp/tamis-path-XXXXXX", linker[64];
    assert_non_null(mkdtemp(folder));
    snprintf(linker, sizeof linker, "%s/ld", folder);
    FILE *f = fopen(linker, "w");
    assert_non_null(f);
    fclose(f);
    setenv("PATH", folder, 1);
    expect_lacking(id, folder); /* a file, but no program */
    assert_int_equal(unlink(linker), 0);
    assert_int_equal(mkdir(linker, 0700), 0);
    expect_lacking(id, folder);
    assert_int_equal(rmdir(linker), 0);
    assert_int_equal(rmdir(folder), 0);
    put_back("PATH", path);
}

static void pocl_without_a_folder_is_refused(void **state) {
    (void)state;
    const char *id = pocl_device();
    if (!id) skip();
    char *folder = kept("POCL_CACHE_DIR");
    setenv("POCL_CACHE_DIR", "/dev/null", 1);
    expect_lacking(id, "/dev/null");
    setenv("POCL_CACHE_DIR", "/dev/null/a", 1);
    expect_lacking(id, "/dev/null/a");
    setenv("POCL_CACHE_DIR", "/dev/null/\033[31m", 1);
    expect_lacking(id, "/dev/null/?[31m");
    setenv("POCL_CACHE_DIR", "", 1);
    refused("opencl", TAMIS_E_NO_DEVICE, "POCL_CACHE_DIR is set and empty");
    put_back("POCL_CACHE_DIR", folder);
    assert_string_equal(open_backend(id), "opencl");
}

/* Whoever starts a setuid program must not choose what it loads, where it runs and what it tells. */
static void a_setuid_program_ignores_the_environment(void **state) {
    (void)state;
    static const char *const names[] = {
        "TAMIS_DEVICE",       "TAMIS_LOG",         "TAMIS_KERNEL_DIR",
        "TAMIS_CUDA_KERNELS", "TAMIS_CUDA_DRIVER", "TAMIS_CUBLAS",
        "TAMIS_KERNEL_CACHE", "TAMIS_OPENCL_WAIT", "TAMIS_OPENCL_FORM"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *before = getenv(names[i]);
        char *kept = before ? strdup(before) : NULL;
        setenv(names[i], "somebody's", 1);
        assert_string_equal(tms_env(names[i]), "somebody's");
        is_setuid = true;
        assert_null(tms_env(names[i]));
        open_allowed(NULL, true);
        is_setuid = false;
        setenv(names[i], "", 1);
        assert_null(tms_env(names[i]));
        unsetenv(names[i]);
        if (kept) setenv(names[i], kept, 1);
        free(kept);
    }
}

/* What a context's making and closing sends to stderr under a TAMIS_LOG. */
static const char *stderr_under(const char *level) {
    static char text[4096];
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int kept = dup(STDERR_FILENO);
    assert_true(kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    setenv("TAMIS_LOG", level, 1);
    open_allowed("auto", true);
    unsetenv("TAMIS_LOG");
    fflush(stderr);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

/* The choice on "auto" is an info line: it goes to stderr from that level on, and to the callback
 * at any. */
static void log_lines_follow_their_levels(void **state) {
    (void)state;
    static const char *const quiet[] = {"", "error", "warn"}, *const loud[] = {"info", "debug"};
    unsetenv("TAMIS_DEVICE");
    for (size_t i = 0; i < 3; i++) {
        assert_null(strstr(stderr_under(quiet[i]), "tamis "));
        assert_true(log_text[0] != 0);
    }
    for (size_t i = 0; i < 2; i++) {
        const char *text = stderr_under(loud[i]);
        *strchr(log_text, '\n') = 0;
        assert_non_null(strstr(text, "tamis info: "));
        assert_non_null(strstr(text, log_text));
    }
}

/* "auto" takes the first usable device of the list, and says which and why not the ones before; the
 * last of the list is the reference, which must be allowed. */
static void auto_takes_the_first_usable_device(void **state) {
    (void)state;
    tamis_device_info infos[32];
    size_t count = 0, first = 0;
    OK(tamis_device_list(infos, 32, &count, NULL));
    while (!infos[first].usable)
        first++;
    assert_string_equal(open_allowed("auto", true), infos[first].backend);
    assert_non_null(strstr(log_text, infos[first].id));
    for (size_t i = 0; i < first; i++)
        assert_non_null(strstr(log_text, infos[i].reason));
    if (first + 1 < count) assert_string_equal(open_backend("auto"), infos[first].backend);
}

/* Each reason, as far as the text goes. */
static void expect_reasons(const tamis_device_info *infos, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char part[96];
        snprintf(part, sizeof part, "not %.31s: %.40s", infos[i].id, infos[i].reason);
        if (!strstr(test_error.text, part)) fail_msg("\"%s\" lacks \"%s\"", test_error.text, part);
    }
}

/* No platform and no driver: the reference serves where it is named or allowed; else the reasons
 * are told. Asked for by name, OpenCL is refused. */
static void without_opencl_the_reference_must_be_allowed(void **state) {
    (void)state;
    tamis_device_info infos[32];
    size_t count = 0;
    OK(tamis_device_list(infos, 32, &count, NULL));
    assert_int_equal(count, 3);
    assert_string_equal(infos[0].id, "cuda");
    assert_string_equal(infos[1].id, "opencl");
    assert_false(infos[1].usable);
    unsetenv("TAMIS_DEVICE");
    refused("auto", TAMIS_E_NO_DEVICE, "device \"reference\" must be named or allowed");
    expect_reasons(infos, 2);
    refused(NULL, TAMIS_E_NO_DEVICE, "device \"reference\" must be named or allowed");
    expect_reasons(infos, 2);
    assert_string_equal(open_backend("reference"), "reference");
    assert_string_equal(open_allowed("auto", true), "reference");
    assert_non_null(strstr(log_text, "reference"));
    assert_non_null(strstr(log_text, infos[1].reason));
    assert_string_equal(open_allowed(NULL, true), "reference");
    setenv("TAMIS_DEVICE", "auto", 1);
    refused(NULL, TAMIS_E_NO_DEVICE, "must be named");
    setenv("TAMIS_DEVICE", "reference", 1);
    assert_string_equal(open_backend(NULL), "reference");
    unsetenv("TAMIS_DEVICE");
    refused("opencl", TAMIS_E_NO_DEVICE, infos[1].reason);
    refused("opencl:0", TAMIS_E_NO_DEVICE, "opencl:0");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_backend_is_listed),
        cmocka_unit_test(a_named_device_is_opened_or_refused),
        cmocka_unit_test(the_environment_chooses_an_unnamed_device),
        cmocka_unit_test(control_characters_are_quoted),
        cmocka_unit_test(a_wait_is_0_or_1),
        cmocka_unit_test(a_form_is_one_of_four),
        cmocka_unit_test(pocl_without_a_linker_is_refused),
        cmocka_unit_test(pocl_without_a_folder_is_refused),
        cmocka_unit_test(log_lines_follow_their_levels),
        cmocka_unit_test(auto_takes_the_first_usable_device),
        cmocka_unit_test(a_setuid_program_ignores_the_environment),
    };
    const struct CMUnitTest hidden[] = {
        cmocka_unit_test(without_opencl_the_reference_must_be_allowed)};
    if (argc > 1 && strcmp(argv[1], "no-opencl") == 0)
        return cmocka_run_group_tests(hidden, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
