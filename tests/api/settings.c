/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of kernels: attention has the same bits with every value, values are checked, the user's
 * file is read, kept and replaced, and what tuning finds is set. */
#define _DEFAULT_SOURCE /* mkdtemp, setenv */
#include "lib/core/settings.h"
#include "host/backend.h"
#include "lib/core/core.h"
#include "tests/api/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Bits ------------------------------------------------------------------------------------ */

/* Three segments of pages, a tile that is not whole, a page that is not full; more pages than are
 * prefetched ahead of scoring. */
#define PROMPT 711u

typedef struct bits_case {
    tamis_setting_class of;
    uint32_t head_dim;
    tms_form form;
} bits_case;

/* The output of one more token's attention in that form; the token is taken away again. */
static void attend(test_world *w, const bits_case *c, tamis_sequence id, float *out) {
    const uint64_t token = PROMPT;
    const tamis_step step = {.sequences = &id, .count = 1};
    const tamis_rows q = {.buffer = w->q}, to = {.buffer = w->out};
    OK(tamis_plan_step_begin(w->plan, &step, &test_error));
    for (uint32_t layer = 0; layer < w->shape.n_layers; layer++) {
        test_write(w, layer, &token, 1);
        w->context->dev->form = c->form;
        OK(tamis_plan_attend(w->plan, layer, &q, &to, &test_error));
        w->context->dev->form = TMS_FORM_AUTO;
    }
    OK(tamis_plan_step_end(w->plan, &test_error));
    OK(tamis_buffer_read(w->out, 0, out, w->shape.n_heads * w->shape.head_dim * sizeof *out,
                         &test_error));
    OK(tamis_cache_truncate(w->cache, id, PROMPT, &test_error));
}

static void open_filled(test_world *w, const bits_case *c, tamis_sequence *id) {
    const tamis_cache_params shape = {.n_layers = 1,
                                      .n_heads = 2 * c->of.group,
                                      .n_kv_heads = 2,
                                      .head_dim = c->head_dim,
                                      .page_size = 16,
                                      .dtype = c->of.dtype,
                                      .capacity_tokens = 1024};
    tamis_plan_params plan = {.max_rows = PROMPT, .max_context = 1024};
    uint64_t tokens[PROMPT], random = 3;
    float q[8 * 128];
    tamis_selection_default(c->of.op == TAMIS_SETTING_OF_SPARSE ? TAMIS_SELECT_QUEST
                                                                : TAMIS_SELECT_FULL,
                            &plan.selection);
    if (c->of.op == TAMIS_SETTING_OF_SPARSE) plan.selection.budget = 208;
    test_open(w, &shape, &plan);
    for (uint32_t i = 0; i < PROMPT; i++)
        tokens[i] = i;
    for (uint32_t i = 0; i < sizeof q / sizeof *q; i++)
        q[i] = (float)((int)test_below(&random, 257) - 128) / 256;
    OK(tamis_buffer_write(w->q, 0, q, shape.n_heads * shape.head_dim * sizeof *q, &test_error));
    OK(tamis_cache_add(w->cache, id, &test_error));
    OK(test_append(w, *id, tokens, PROMPT));
}

static void expect_same(test_world *w, const bits_case *c, tamis_sequence id, const float *wanted) {
    float got[8 * 128];
    attend(w, c, id, got);
    assert_memory_equal(got, wanted, w->shape.n_heads * w->shape.head_dim * sizeof *got);
}

static void set(test_world *w, const bits_case *c, uint32_t setting, uint32_t value) {
    OK(tamis_context_set_setting(w->context, &c->of, (tamis_setting)setting, value, &test_error));
}

/* Every number of rows with every level: these two act together. */
static void play_fetches(test_world *w, const bits_case *c, tamis_sequence id,
                         const float *wanted) {
    const tamis_setting_info *rows = tamis_setting_describe(TAMIS_SETTING_FETCH_ROWS),
                             *levels = tamis_setting_describe(TAMIS_SETTING_FETCH_LEVEL);
    for (uint32_t i = 0; i < rows->n_values; i++)
        for (uint32_t j = 0; j < levels->n_values; j++) {
            set(w, c, TAMIS_SETTING_FETCH_ROWS, rows->values[i]);
            set(w, c, TAMIS_SETTING_FETCH_LEVEL, levels->values[j]);
            expect_same(w, c, id, wanted);
        }
}

/* Every value of a setting, with the others as they were. */
static void play(test_world *w, const bits_case *c, uint32_t setting, tamis_sequence id,
                 const float *wanted) {
    const tamis_setting_info *info = tamis_setting_describe(setting);
    uint32_t before;
    OK(tamis_context_get_setting(w->context, &c->of, (tamis_setting)setting, &before, &test_error));
    for (uint32_t i = 0; i < info->n_values; i++) {
        set(w, c, setting, info->values[i]);
        expect_same(w, c, id, wanted);
    }
    set(w, c, setting, before);
}

/* Every setting of the op. */
static void play_each(test_world *w, const bits_case *c, tamis_sequence id, const float *wanted) {
    const tamis_setting_info *info;
    for (uint32_t setting = 0; (info = tamis_setting_describe(setting)) != NULL; setting++)
        if (info->ops >> c->of.op & 1) play(w, c, setting, id, wanted);
}

#define FEW 3 /* classes, one of each op: each value of a setting compiles for seconds */
static bool every;

static void every_setting_gives_the_same_bits(void **state) {
    (void)state;
    /* In f16 with one head and the device's own shape, in q8 with four and the other one; with every,
     * in k8v4 and q4 with both. */
    static const bits_case cases[] = {
        {{TAMIS_SETTING_OF_ATTEND, TAMIS_Q8, 4}, 128, TMS_FORM_CPU_OTHER},
        {{TAMIS_SETTING_OF_SPARSE, TAMIS_F16, 1}, 64, TMS_FORM_CPU},
        {{TAMIS_SETTING_OF_GPU_ATTEND, TAMIS_F16, 4}, 64, TMS_FORM_GPU},
        {{TAMIS_SETTING_OF_GPU_ATTEND, TAMIS_Q8, 1}, 128, TMS_FORM_GPU},
        {{TAMIS_SETTING_OF_ATTEND, TAMIS_F16, 1}, 64, TMS_FORM_CPU},
        {{TAMIS_SETTING_OF_SPARSE, TAMIS_Q8, 4}, 128, TMS_FORM_CPU_OTHER},
        {{TAMIS_SETTING_OF_ATTEND, TAMIS_K8V4, 4}, 64, TMS_FORM_CPU_OTHER},
        {{TAMIS_SETTING_OF_SPARSE, TAMIS_K8V4, 1}, 128, TMS_FORM_CPU},
        {{TAMIS_SETTING_OF_ATTEND, TAMIS_Q4, 1}, 128, TMS_FORM_CPU},
        {{TAMIS_SETTING_OF_SPARSE, TAMIS_Q4, 4}, 64, TMS_FORM_CPU_OTHER},
    };
    for (size_t i = 0; i < (every ? sizeof cases / sizeof *cases : FEW); i++) {
        const bool of_gpus = cases[i].of.op == TAMIS_SETTING_OF_GPU_ATTEND;
        test_world w;
        tamis_sequence id;
        float wanted[8 * 128], other[8 * 128];
        open_filled(&w, &cases[i], &id);
        attend(&w, &cases[i], id, wanted);
        const uint32_t builds = test_builds;
        if (!of_gpus) /* else rows and levels mean nothing */
            set(&w, &cases[i], TAMIS_SETTING_FETCH_NEAR, 0);
        play_each(&w, &cases[i], id, wanted);
        if (cases[i].of.op == TAMIS_SETTING_OF_ATTEND) play_fetches(&w, &cases[i], id, wanted);
        /* the settings have reached the compiler */
        assert_true(test_builds >= builds + (of_gpus ? 2 : 12));
        /* The output tells queries apart. */
        const float zero[8 * 128] = {0};
        OK(tamis_buffer_write(w.q, 0, zero, 2 * cases[i].head_dim * sizeof *zero, &test_error));
        attend(&w, &cases[i], id, other);
        assert_memory_not_equal(wanted, other, 2 * cases[i].head_dim * sizeof *other);
        test_close(&w);
    }
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* Lines of a level that contain some text. */
typedef struct counted {
    tamis_log_level level;
    const char *part;
    uint32_t n;
} counted;

static void count_line(void *user, tamis_log_level level, const char *text) {
    counted *c = user;
    if (level == c->level && strstr(text, c->part)) c->n++;
}

/* `lines` may be NULL. */
static tamis_context *open_counted(counted *lines) {
    const tamis_context_params params = {
        .device = test_device, .log = lines ? count_line : NULL, .log_user = lines};
    tamis_context *context = NULL;
    OK(tamis_context_create(&params, &context, &test_error));
    return context;
}

static tamis_context *open_context(void) {
    return open_counted(NULL);
}

static void settings_are_described(void **state) {
    (void)state;
    const tamis_setting_info *info;
    uint32_t n = 0;
    for (; (info = tamis_setting_describe(n)) != NULL; n++) {
        assert_true(info->n_values > 1 && info->ops != 0 && info->ops < 8);
        for (uint32_t i = 1; i < info->n_values; i++)
            assert_true(info->values[i - 1] < info->values[i]);
    }
    assert_int_equal(n, 5);
    assert_string_equal(tamis_setting_describe(TAMIS_SETTING_FETCH_LEVEL)->name, "fetch_level");
    assert_string_equal(tamis_setting_op_name(TAMIS_SETTING_OF_SPARSE), "sparse");
    assert_string_equal(tamis_setting_op_name(TAMIS_SETTING_OF_GPU_ATTEND), "gpu_attend");
    assert_null(tamis_setting_op_name(3));
}

static void values_hold_for_their_class_alone(void **state) {
    (void)state;
    const tamis_setting_class one = {TAMIS_SETTING_OF_ATTEND, TAMIS_F16, 1},
                              two = {TAMIS_SETTING_OF_ATTEND, TAMIS_F16, 2},
                              seven = {TAMIS_SETTING_OF_ATTEND, TAMIS_F16, 7};
    tamis_context *context = open_context();
    uint32_t value;
    OK(tamis_context_set_setting(context, &one, TAMIS_SETTING_FETCH_ROWS, 8, &test_error));
    OK(tamis_context_set_setting(context, &two, TAMIS_SETTING_FETCH_ROWS, 2, &test_error));
    OK(tamis_context_get_setting(context, &one, TAMIS_SETTING_FETCH_ROWS, &value, &test_error));
    assert_int_equal(value, 8);
    OK(tamis_context_get_setting(context, &seven, TAMIS_SETTING_FETCH_ROWS, &value, &test_error));
    assert_int_equal(value, 2);
    tamis_context_destroy(&context);
}

static void what_is_no_setting_is_refused(void **state) {
    (void)state;
    const tamis_setting_class of = {TAMIS_SETTING_OF_ATTEND, TAMIS_F16, 1},
                              op = {(tamis_setting_op)3, TAMIS_F16, 1},
                              dtype = {TAMIS_SETTING_OF_ATTEND, (tamis_dtype)6, 1},
                              group = {TAMIS_SETTING_OF_ATTEND, TAMIS_F16, 0};
    const tamis_setting rows = TAMIS_SETTING_FETCH_ROWS;
    tamis_context *context = open_context();
    uint32_t before, after;
    OK(tamis_context_get_setting(context, &of, rows, &before, &test_error));
    FAILS(tamis_context_set_setting(context, &of, rows, 3, &test_error), TAMIS_E_ARGUMENT,
          "fetch_rows 3: allowed are 0, 1, 2, 4, 8, 16");
    FAILS(tamis_context_set_setting(context, &of, (tamis_setting)5, 1, &test_error),
          TAMIS_E_ARGUMENT, "setting 5");
    FAILS(tamis_context_set_setting(context, &of, TAMIS_SETTING_SCORE_AHEAD, 8, &test_error),
          TAMIS_E_ARGUMENT, "score_ahead is no setting of attend");
    FAILS(tamis_context_set_setting(context, &op, rows, 1, &test_error), TAMIS_E_ARGUMENT, "op 3");
    FAILS(tamis_context_set_setting(context, &dtype, rows, 1, &test_error), TAMIS_E_ARGUMENT,
          "dtype 6");
    FAILS(tamis_context_set_setting(context, &group, rows, 1, &test_error), TAMIS_E_ARGUMENT,
          "group 0");
    FAILS(tamis_context_set_setting(context, NULL, rows, 1, &test_error), TAMIS_E_ARGUMENT, "of");
    FAILS(tamis_context_set_setting(NULL, &of, rows, 1, &test_error), TAMIS_E_ARGUMENT, "context");
    FAILS(tamis_context_get_setting(context, &of, rows, NULL, &test_error), TAMIS_E_ARGUMENT,
          "value");
    OK(tamis_context_get_setting(context, &of, rows, &after, &test_error));
    assert_int_equal(before, after);
    tamis_context_destroy(&context);
}

/* ---- The file -------------------------------------------------------------------------------- */

static char folder[64], path[128];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/tamis-settings-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/own/settings", folder);
    return setenv("TAMIS_SETTINGS", path, 1);
}

/* Nothing but the file is left behind. */
static int remove_folder(void **state) {
    (void)state;
    char own[96];
    snprintf(own, sizeof own, "%s/own", folder);
    unlink(path);
    rmdir(own);
    return rmdir(folder) == 0 ? setenv("TAMIS_SETTINGS", "none", 1) : -1;
}

static void put(const char *text) {
    char own[96];
    snprintf(own, sizeof own, "%s/own", folder);
    mkdir(own, 0700);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

static void get(char *text, size_t capacity) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    text[fread(text, 1, capacity - 1, f)] = 0;
    fclose(f);
}

static void a_context_takes_what_was_written(void **state) {
    (void)state;
    const tamis_setting_class of = {TAMIS_SETTING_OF_SPARSE, TAMIS_BF16, 4},
                              other = {TAMIS_SETTING_OF_SPARSE, TAMIS_BF16, 1};
    tamis_context *context = open_context();
    uint32_t value, before;
    OK(tamis_context_get_setting(context, &other, TAMIS_SETTING_SCORE_AHEAD, &before, &test_error));
    OK(tamis_context_set_setting(context, &of, TAMIS_SETTING_SCORE_AHEAD, 32, &test_error));
    OK(tamis_context_write_settings(context, &test_error));
    OK(tamis_context_set_setting(context, &of, TAMIS_SETTING_SCORE_AHEAD, 8, &test_error));
    tamis_context_destroy(&context);
    context = open_context();
    OK(tamis_context_get_setting(context, &of, TAMIS_SETTING_SCORE_AHEAD, &value, &test_error));
    assert_int_equal(value, 32);
    OK(tamis_context_get_setting(context, &other, TAMIS_SETTING_SCORE_AHEAD, &value, &test_error));
    assert_int_equal(value, before);
    char text[256];
    OK(tamis_device_settings(tamis_context_device(context), text, sizeof text, &test_error));
    assert_string_equal(text, path);
    tamis_context_destroy(&context);
}

static uint32_t value_of(tamis_context *context, const tamis_setting_class *of, uint32_t setting) {
    uint32_t value = 99;
    OK(tamis_context_get_setting(context, of, (tamis_setting)setting, &value, &test_error));
    return value;
}

static void set_value(tamis_context *context, const tamis_setting_class *of, uint32_t setting,
                      uint32_t value) {
    OK(tamis_context_set_setting(context, of, (tamis_setting)setting, value, &test_error));
}

/* A value of a setting that the context does not have. */
static uint32_t other_value(tamis_context *context, const tamis_setting_class *of,
                            uint32_t setting) {
    const tamis_setting_info *info = tamis_setting_describe(setting);
    const uint32_t value = value_of(context, of, setting);
    return info->values[info->values[0] == value];
}

/* Each writes what it has changed: another class, another setting of the same class. What the other
 * has changed meanwhile stays, also at a second time. */
static void contexts_keep_each_others(void **state) {
    (void)state;
    enum { ROWS = TAMIS_SETTING_FETCH_ROWS, LEVEL = TAMIS_SETTING_FETCH_LEVEL };
    const tamis_setting_class one = {TAMIS_SETTING_OF_ATTEND, TAMIS_F16, 1},
                              two = {TAMIS_SETTING_OF_ATTEND, TAMIS_Q8, 4};
    tamis_context *a = open_context(), *b = open_context();
    const uint32_t rows = other_value(a, &one, ROWS), level = other_value(a, &one, LEVEL),
                   its = other_value(a, &two, ROWS), old = value_of(a, &two, ROWS);
    set_value(a, &one, ROWS, rows);
    OK(tamis_context_write_settings(a, &test_error));
    set_value(b, &one, LEVEL, level);
    set_value(b, &two, ROWS, its);
    OK(tamis_context_write_settings(b, &test_error));
    OK(tamis_context_write_settings(a, &test_error)); /* which has changed nothing since */
    tamis_context *c = open_context();
    assert_int_equal(value_of(c, &one, ROWS), rows);
    assert_int_equal(value_of(c, &one, LEVEL), level);
    assert_int_equal(value_of(c, &two, ROWS), its);
    set_value(c, &two, ROWS, old); /* as the library has it: a change as any other */
    OK(tamis_context_write_settings(c, &test_error));
    OK(tamis_context_write_settings(b, &test_error));
    tamis_context_destroy(&c);
    c = open_context();
    assert_int_equal(value_of(c, &two, ROWS), old);
    assert_int_equal(value_of(c, &one, ROWS), rows);
    tamis_context_destroy(&a);
    tamis_context_destroy(&b);
    tamis_context_destroy(&c);
}

/* Processes that write at a time, each another value of the same device; of any device. */
static void processes_keep_each_others(void **state) {
    (void)state;
    enum { WRITERS = TMS_DTYPES, WRITES = 6 };
    static const char device[] = "a device of nobody";
    tms_settings shipped = {{{{{0}}}}}, now;
    pid_t writers[WRITERS];
    bool named = false;
    for (size_t i = 0; i < sizeof shipped / sizeof(uint32_t); i++)
        (&shipped.value[0][0][0][0])[i] = tamis_setting_describe(i % TMS_SETTINGS)->values[0];
    for (uint32_t w = 0; w < WRITERS; w++) {
        writers[w] = fork();
        assert_true(writers[w] >= 0);
        if (writers[w] > 0) continue;
        for (uint32_t i = 0; i < WRITES; i++) {
            tms_settings own = shipped;
            const uint32_t setting = TAMIS_SETTING_FETCH_ROWS;
            *tms_settings_at(&own, i % 2, (tamis_dtype)w, i % 3, (tamis_setting)setting) =
                tamis_setting_describe(setting)->values[1];
            if (tms_settings_write(path, device, &own, &shipped, &shipped, NULL) != TAMIS_OK)
                _exit(1);
        }
        _exit(0);
    }
    for (int w = 0; w < WRITERS; w++) {
        int code;
        assert_int_equal(waitpid(writers[w], &code, 0), writers[w]);
        assert_int_equal(code, 0);
    }
    now = shipped;
    OK(tms_settings_read(path, device, &now, &named, &test_error));
    assert_true(named);
    for (uint32_t w = 0; w < WRITERS; w++)
        for (uint32_t i = 0; i < WRITES; i++)
            assert_int_equal(
                *tms_settings_at(&now, i % 2, (tamis_dtype)w, i % 3, TAMIS_SETTING_FETCH_ROWS),
                tamis_setting_describe(TAMIS_SETTING_FETCH_ROWS)->values[1]);
}

/* Other devices, before and behind, and comments. */
static void what_is_of_others_stays(void **state) {
    (void)state;
    static const char first[] = "# mine\ndevice another one\nattend f16 1 fetch_rows=2\n",
                      last[] = "# its\ndevice last\nsparse q8 + of=another version\n";
    char text[8192], again[8192];
    tamis_context *context = open_context();
    snprintf(text, sizeof text, "%sdevice %s \r\n attend\tf16 1  fetch_rows=0 \r\n\n%s", first,
             tamis_context_device(context)->name, last);
    put(text);
    tamis_context_destroy(&context);
    context = open_context();
    OK(tamis_context_write_settings(context, &test_error));
    get(text, sizeof text);
    assert_memory_equal(text, first, strlen(first));
    assert_memory_equal(text + strlen(first), last, strlen(last));
    assert_non_null(strstr(text, "\nattend f16 1 fetch_rows=0 fetch_level="));
    OK(tamis_context_write_settings(context, &test_error));
    get(again, sizeof again);
    assert_string_equal(text, again);
    tamis_context_destroy(&context);
}

static void a_file_that_is_not_understood_is_an_error(void **state) {
    (void)state;
    static const struct {
        const char *text, *part; /* behind the line that names the device */
    } cases[] = {
        {"attend f16 1 fetch_rows=3\n", "line 2: \"fetch_rows=3\""},
        {"\nattend f16 1 fetch_rows=\n", "line 3: \"fetch_rows=\""},
        {"attend f16 1 fetch_rows=4294967298\n", "fetch_rows=4294967298"},
        {"attend f16 1 fetch_rows=2x\n", "fetch_rows=2x"},
        {"attend f16 1 score_ahead=8\n", "score_ahead=8"},
        {"attend f16 1 speed=8\n", "speed=8"},
        {"attend f16 2 fetch_rows=2\n", "\"2\""},
        {"attend f16\n", "no group"},
        {"attend\n", "no dtype"},
        {"attend q5 1\n", "\"q5\""},
        {"observe f16 1", "\"observe\""},
        {"device\n", "\"device\""},
    };
    const tamis_context_params params = {.device = test_device};
    tamis_context *context = open_context();
    char name[128], text[512], again[512];
    snprintf(name, sizeof name, "%s", tamis_context_device(context)->name);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tamis_context *other = NULL;
        snprintf(text, sizeof text, "device %s\n%s", name, cases[i].text);
        put(text);
        FAILS(tamis_context_create(&params, &other, &test_error), TAMIS_E_FORMAT, cases[i].part);
        assert_null(other);
        FAILS(tamis_context_write_settings(context, &test_error), TAMIS_E_FORMAT, cases[i].part);
        get(again, sizeof again);
        assert_string_equal(again, text);
    }
    tamis_context_destroy(&context);
    put("attend f16 1 fetch_rows=2\n");
    FAILS(tamis_context_create(&params, &context, &test_error), TAMIS_E_FORMAT, "before any");
    put("device x"); /* a line need not end */
    context = open_context();
    tamis_context_destroy(&context);
}

/* A folder where the file should be: named, it is an error; in the usual place a warning. Where a
 * folder should be and is none, there is no file. */
static void a_file_that_cannot_be_read(void **state) {
    (void)state;
    counted warnings = {TAMIS_LOG_WARN, "settings of", 0};
    tamis_context_params params = {.device = test_device, .log = count_line, .log_user = &warnings};
    tamis_context *context = NULL;
    char own[128];
    snprintf(own, sizeof own, "%s/tamis", folder);
    assert_int_equal(symlink("tamis", own), 0); /* to itself: ELOOP */
    assert_int_equal(setenv("TAMIS_SETTINGS", own, 1), 0);
    FAILS(tamis_context_create(&params, &context, &test_error), TAMIS_E_IO, own);
    assert_int_equal(unsetenv("TAMIS_SETTINGS") | setenv("XDG_CONFIG_HOME", folder, 1), 0);
    OK(tamis_context_create(&params, &context, &test_error));
    assert_int_equal(warnings.n, 1);
    tamis_context_destroy(&context);
    assert_int_equal(setenv("XDG_CONFIG_HOME", "/dev/null", 1), 0);
    OK(tamis_context_create(&params, &context, &test_error));
    assert_int_equal(warnings.n, 1);
    tamis_context_destroy(&context);
    assert_int_equal(unlink(own), 0);
}

/* Who could read the file can still do so. */
static void a_file_keeps_its_mode(void **state) {
    (void)state;
    struct stat info;
    put("");
    assert_int_equal(chmod(path, 0644), 0);
    tamis_context *context = open_context();
    OK(tamis_context_write_settings(context, &test_error));
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0644);
    tamis_context_destroy(&context);
}

/* Devices whose kernels have no settings do not look at it. */
static void other_devices_need_no_file(void **state) {
    (void)state;
    char text[64];
    put("damaged");
    tamis_context *context = open_context();
    FAILS(tamis_context_write_settings(context, &test_error), TAMIS_E_UNSUPPORTED, "no settings");
    OK(tamis_device_settings(tamis_context_device(context), text, sizeof text, &test_error));
    assert_string_equal(text, "none");
    tamis_context_destroy(&context);
}

static void no_file_is_asked_for(void **state) {
    (void)state;
    put("damaged");
    assert_int_equal(setenv("TAMIS_SETTINGS", "none", 1), 0);
    tamis_context *context = open_context();
    FAILS(tamis_context_write_settings(context, &test_error), TAMIS_E_STATE, "TAMIS_SETTINGS");
    FAILS(tamis_device_settings(NULL, folder, 1, &test_error), TAMIS_E_ARGUMENT, "device");
    FAILS(tamis_device_settings(tamis_context_device(context), NULL, 1, &test_error),
          TAMIS_E_ARGUMENT, "text");
    /* Without the variable it is in the folder for settings. */
    assert_int_equal(unsetenv("TAMIS_SETTINGS") | setenv("XDG_CONFIG_HOME", folder, 1), 0);
    OK(tamis_context_write_settings(context, &test_error));
    tamis_context_destroy(&context);
    char own[128];
    snprintf(own, sizeof own, "%s/tamis/settings", folder);
    assert_int_equal(unlink(own), 0);
    snprintf(own, sizeof own, "%s/tamis", folder);
    assert_int_equal(rmdir(own), 0);
}

/* ---- Measuring ------------------------------------------------------------------------------- */

static const tamis_tune_params small = {
    .cache = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .dtype = TAMIS_F16},
    .op = TAMIS_SETTING_OF_ATTEND};

/* The values of the op's settings for the class of `small`. */
static void get_values(tamis_context *context, tamis_setting_op op, uint32_t value[TMS_SETTINGS]) {
    const tamis_setting_class of = {op, TAMIS_F16, 2};
    for (uint32_t i = 0; i < TMS_SETTINGS; i++)
        if (tamis_setting_describe(i)->ops >> op & 1)
            OK(tamis_context_get_setting(context, &of, (tamis_setting)i, &value[i], &test_error));
}

/* Without time for a second way nothing changes; with time all are tried, and what is set is one of
 * them and no slower. */
static void tuning_tries_ways_within_its_time(void **state) {
    (void)state;
    tamis_tune_params params = small;
    tamis_tune_result result;
    params.always = 1;
    for (int op = 0; op < 2; op++) {
        counted builds = {TAMIS_LOG_DEBUG, "building", 0};
        tamis_context *context = open_counted(&builds);
        uint32_t before[TMS_SETTINGS] = {0}, after[TMS_SETTINGS] = {0};
        params.op = (tamis_setting_op)op;
        params.seconds = 1e-6;
        get_values(context, params.op, before);
        OK(tamis_context_tune(context, &params, &result, &test_error));
        get_values(context, params.op, after);
        assert_int_equal(result.tried, 1);
        assert_true(result.before_us > 0);
        assert_true(result.after_us == result.before_us);
        assert_memory_equal(before, after, sizeof before);

        params.seconds = 3600;
        builds.n = 0;
        OK(tamis_context_tune(context, &params, &result, &test_error));
        get_values(context, params.op, after);
        assert_in_range(result.tried, 6, 7);
        assert_true(builds.n >= 5); /* the ways have reached the compiler */
        assert_true(result.after_us <= result.before_us);
        assert_int_equal(before[TAMIS_SETTING_SCORE_AHEAD], after[TAMIS_SETTING_SCORE_AHEAD]);
        assert_true((result.after_us < result.before_us) ==
                    (memcmp(before, after, sizeof before) != 0));
        tamis_context_destroy(&context);
    }
}

/* Where the library or the file knows the device, nothing is measured unless it is asked for. */
static void tuning_leaves_known_devices_alone(void **state) {
    (void)state;
    char text[256];
    tamis_context *context = open_context();
    tamis_tune_result result;
    tamis_tune_params params = small;
    params.seconds = 1e-6;
    OK(tamis_device_settings(tamis_context_device(context), text, sizeof text, &test_error));
    OK(tamis_context_tune(context, &params, &result, &test_error));
    assert_int_equal(result.tried, strcmp(text, "default") == 0 ? 1 : 0);
    snprintf(text, sizeof text, "device %s\n", tamis_context_device(context)->name);
    put(text);
    OK(tamis_context_tune(context, &params, &result, &test_error));
    assert_int_equal(result.tried, 0);
    assert_true(result.before_us == 0 && result.after_us == 0);
    params.always = 1;
    params.cache.head_dim = 96; /* a shape whose kernels have no settings */
    OK(tamis_context_tune(context, &params, &result, &test_error));
    assert_int_equal(result.tried, 0);
    params.cache.head_dim = 64;
    params.cache.page_size = 32;
    OK(tamis_context_tune(context, &params, &result, &test_error));
    assert_int_equal(result.tried, 0);
    params = small;
    put("damaged");
    FAILS(tamis_context_tune(context, &params, &result, &test_error), TAMIS_E_FORMAT, "damaged");
    params.always = 1;
    OK(tamis_context_tune(context, &params, NULL, &test_error));
    tamis_context_destroy(&context);
}

static void what_has_no_settings_is_refused(void **state) {
    (void)state;
    tamis_context *context = open_context();
    tamis_tune_params op = small, seconds = small, reserved = small, shape = small, heads = small;
    uint32_t before[TMS_SETTINGS] = {0}, after[TMS_SETTINGS] = {0};
    op.op = (tamis_setting_op)3;
    seconds.seconds = -1;
    reserved.reserved[3] = 1;
    shape.cache.head_dim = 65;
    heads.cache.n_kv_heads = 0;
    shape.always = heads.always = 1;
    get_values(context, small.op, before);
    FAILS(tamis_context_tune(NULL, &small, NULL, &test_error), TAMIS_E_ARGUMENT, "context");
    FAILS(tamis_context_tune(context, NULL, NULL, &test_error), TAMIS_E_ARGUMENT, "params");
    FAILS(tamis_context_tune(context, &op, NULL, &test_error), TAMIS_E_ARGUMENT, "op 3");
    FAILS(tamis_context_tune(context, &seconds, NULL, &test_error), TAMIS_E_ARGUMENT, "seconds -1");
    FAILS(tamis_context_tune(context, &reserved, NULL, &test_error), TAMIS_E_ARGUMENT, "reserved");
    FAILS(tamis_context_tune(context, &shape, NULL, &test_error), TAMIS_E_UNSUPPORTED, "65");
    FAILS(tamis_context_tune(context, &heads, NULL, &test_error), TAMIS_E_ARGUMENT, "n_kv_heads");
    get_values(context, small.op, after);
    assert_memory_equal(before, after, sizeof before);
    tamis_context_destroy(&context);
}

static void other_devices_are_not_measured(void **state) {
    (void)state;
    tamis_context *context = open_context();
    tamis_tune_result result = {.tried = 9};
    tamis_tune_params params = small;
    params.always = 1;
    OK(tamis_context_tune(context, &params, &result, &test_error));
    assert_int_equal(result.tried, 0);
    params.op = (tamis_setting_op)3;
    FAILS(tamis_context_tune(context, &params, &result, &test_error), TAMIS_E_ARGUMENT, "op 3");
    tamis_context_destroy(&context);
}

static bool has_settings(void) {
    tamis_context *context = open_context();
    const bool has = tms_settings_used(tamis_context_device(context));
    tamis_context_destroy(&context);
    return has;
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(int argc, char **argv) {
    const int unusable = test_begin(argc, argv);
    if (unusable) return unusable;
    every = argc > 2 && !strcmp(argv[2], "every");
    const struct CMUnitTest every_device[] = {
        cmocka_unit_test(settings_are_described),
        cmocka_unit_test(values_hold_for_their_class_alone),
        cmocka_unit_test(what_is_no_setting_is_refused),
        WITH_FOLDER(processes_keep_each_others),
    };
    const struct CMUnitTest others[] = {WITH_FOLDER(other_devices_need_no_file),
                                        cmocka_unit_test(other_devices_are_not_measured)};
    const struct CMUnitTest with_settings[] = {
        WITH_FOLDER(a_context_takes_what_was_written),
        WITH_FOLDER(contexts_keep_each_others),
        WITH_FOLDER(what_is_of_others_stays),
        WITH_FOLDER(a_file_that_is_not_understood_is_an_error),
        WITH_FOLDER(a_file_that_cannot_be_read),
        WITH_FOLDER(a_file_keeps_its_mode),
        WITH_FOLDER(no_file_is_asked_for),
        cmocka_unit_test(every_setting_gives_the_same_bits),
        cmocka_unit_test(tuning_tries_ways_within_its_time),
        WITH_FOLDER(tuning_leaves_known_devices_alone),
        cmocka_unit_test(what_has_no_settings_is_refused),
    };
    const int failed = cmocka_run_group_tests(every_device, NULL, NULL);
    return failed + (has_settings() ? cmocka_run_group_tests(with_settings, NULL, NULL)
                                    : cmocka_run_group_tests(others, NULL, NULL));
}
