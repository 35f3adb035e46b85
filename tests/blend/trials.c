/* SPDX-License-Identifier: Apache-2.0 */
/* Files of blend trials: what is written is read again, entries replace their like, any damage is
 * an error and changes nothing, writers at a time lose nothing, and the gate lets pass what passed.
 */
#define XXH_INLINE_ALL
#include "tests/api/fixture.h"

#include <dirent.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tamis/blend_trials.h>
#include <unistd.h>
#include <xxhash.h>

#define EXPECT(status, call)                                                                       \
    do {                                                                                           \
        const tamis_status got_ = (call);                                                          \
        if (got_ != (status))                                                                      \
            fail_msg("%s: %d, not %d: %s", #call, (int)got_, (int)(status), error.text);           \
    } while (0)

static char folder[64], path[128];
static tamis_error error;

static int make_folder(void **state) {
    (void)state;
    const char *parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(folder, sizeof folder, "%s/tamis-trial-XXXXXX", parent);
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/own/deep/blend.trials", folder);
    return 0;
}

/* Nothing but the file is left behind. */
static int remove_folder(void **state) {
    (void)state;
    static const char *const parts[] = {"/own/deep", "/own", ""};
    char own[96];
    unlink(path);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(own, sizeof own, "%s%s", folder, parts[i]);
        if (rmdir(own) != 0 && access(own, F_OK) == 0) return -1;
    }
    return 0;
}

/* An entry of which the shares from `from` on have passed. */
static tamis_blend_trial entry_of(uint8_t id, uint32_t from) {
    static const double shares[] = {0.05, 0.15, 1.0 / 3};
    tamis_blend_trial p = {.model = "a model, of \xc3\xa9",
                           .check_layer = 1,
                           .max_kl = 0.05,
                           .cache_dtype = TAMIS_F16,
                           .dtype = TAMIS_BF16,
                           .n_sink = 1,
                           .prompts = 8,
                           .chunks = 6,
                           .chunk_tokens = 512,
                           .answer_tokens = 16,
                           .seed = UINT64_MAX,
                           .min_agreement = 0.9,
                           .n_figures = 3};
    for (size_t i = 0; i < 16; i++)
        p.fingerprint[i] = (uint8_t)(id + 17 * i);
    for (uint32_t i = 0; i < 3; i++)
        p.figures[i] = (tamis_blend_figures){.share = shares[i],
                                             .k_deviation = 0.25,
                                             .v_deviation = 1e9,
                                             .attention_deviation = 0,
                                             .kl_mean = 0.125 / (i + 1),
                                             .kl_p95 = 3e-9,
                                             .left = 0.5,
                                             .agreement = 1,
                                             .passed = i >= from};
    p.share = from < 3 ? shares[from] : 0;
    return p;
}

static size_t read_all(tamis_blend_trial *out, size_t capacity) {
    size_t count = 77;
    EXPECT(TAMIS_OK, tamis_blend_trial_read(path, out, capacity, &count, &error));
    return count;
}

/* Equal but for what nine digits cannot hold. */
static void expect_same(const tamis_blend_trial *a, const tamis_blend_trial *b) {
    assert_memory_equal(a->fingerprint, b->fingerprint, sizeof a->fingerprint);
    assert_string_equal(a->model, b->model);
    assert_memory_equal(&a->selector, &b->selector,
                        offsetof(tamis_blend_trial, share) - offsetof(tamis_blend_trial, selector));
    assert_true(fabs(a->share - b->share) <= 5e-10);
    assert_int_equal(a->n_figures, b->n_figures);
    for (uint32_t i = 0; i < a->n_figures; i++) {
        const tamis_blend_figures *x = &a->figures[i], *y = &b->figures[i];
        assert_true(fabs(x->share - y->share) <= 5e-10);
        assert_true(fabs(x->kl_mean - y->kl_mean) <= 5e-10);
        assert_true(fabs(x->kl_p95 - y->kl_p95) <= 5e-10);
        assert_true(x->k_deviation == y->k_deviation && x->v_deviation == y->v_deviation);
        assert_true(x->attention_deviation == y->attention_deviation && x->left == y->left);
        assert_true(x->agreement == y->agreement && x->passed == y->passed);
    }
}

static void what_is_written_is_read(void **state) {
    (void)state;
    tamis_blend_trial in[3] = {entry_of(1, 1), entry_of(2, 3), entry_of(1, 0)}, out[4];
    in[2].check_layer = TAMIS_BLEND_NO_CHECK; /* another entry of the first's model */
    in[2].selector = TAMIS_BLEND_RANDOM;
    in[2].schedule = TAMIS_BLEND_FLAT;
    in[2].n_figures = 0;
    in[2].share = 0;
    assert_int_equal(read_all(out, 4), 0); /* neither file nor folder */
    for (int i = 0; i < 3; i++)
        EXPECT(TAMIS_OK, tamis_blend_trial_write(path, &in[i], &error));
    assert_int_equal(read_all(NULL, 0), 3);
    assert_int_equal(read_all(out, 1), 3);
    assert_int_equal(read_all(out, 4), 3);
    for (int i = 0; i < 3; i++)
        expect_same(&out[i], &in[i]);
    in[0] = entry_of(1, 2);
    EXPECT(TAMIS_OK, tamis_blend_trial_write(path, &in[0], &error));
    assert_int_equal(read_all(out, 4), 3);
    for (int i = 0; i < 3; i++)
        expect_same(&out[i], &in[i]);
    for (int i = 0; i < 3; i++) /* what was read is written again as it is */
        EXPECT(TAMIS_OK, tamis_blend_trial_write(path, &out[i], &error));
    assert_int_equal(read_all(out, 4), 3);
}

static void names_are_cleaned_and_numbers_need_no_locale(void **state) {
    (void)state;
    tamis_blend_trial in = entry_of(1, 0), out;
    strcpy(in.model, "end\nentry \x7f");
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8")) print_message("no locale with a comma\n");
    EXPECT(TAMIS_OK, tamis_blend_trial_write(path, &in, &error));
    assert_int_equal(read_all(&out, 1), 1);
    setlocale(LC_NUMERIC, "C");
    assert_string_equal(out.model, "end?entry ?");
    strcpy(in.model, out.model);
    expect_same(&out, &in);
}

/* ---- Refused --------------------------------------------------------------------------------- */

static void refuses(tamis_blend_trial p, const char *why) {
    EXPECT(TAMIS_E_ARGUMENT, tamis_blend_trial_write(path, &p, &error));
    if (!strstr(error.text, why)) fail_msg("\"%s\" lacks \"%s\"", error.text, why);
    assert_int_equal(access(path, F_OK), -1);
}

static void what_contradicts_itself_is_refused(void **state) {
    (void)state;
    tamis_blend_trial p;
#define REFUSES(change, why)                                                                       \
    do {                                                                                           \
        p = entry_of(1, 1);                                                                        \
        change;                                                                                    \
        refuses(p, why);                                                                           \
    } while (0)
    REFUSES(p.selector = TAMIS_BLEND_FIRST, "selector is first, which takes no share");
    REFUSES(p.selector = 99, "unknown");
    REFUSES(p.schedule = 7, "schedule is 7");
    REFUSES(p.check_layer = 0, "check_layer is 0");
    REFUSES(p.dtype = 9, "dtype 9");
    REFUSES(p.max_kl = -1, "max_kl is -1");
    REFUSES(p.min_agreement = 1.5, "min_agreement is 1.5");
    REFUSES(p.n_figures = 17, "n_figures is 17; an entry holds 16");
    REFUSES(p.figures[1].share = 0.05, "figures 1 are of share 0.05");
    REFUSES(p.figures[0].share = 1e-10, "figures 0 are of share 1e-10");
    REFUSES(p.figures[2].share = 1.1, "share is 1.1; it must be 0 to 1");
    REFUSES(p.figures[2].kl_mean = NAN, "kl is");
    REFUSES(p.figures[2].kl_p95 = INFINITY, "kl-p95 is inf");
    REFUSES(p.figures[2].left = INFINITY, "left is inf");
    REFUSES(p.figures[2].agreement = 2, "agreement is 2");
    REFUSES(p.figures[2].passed = 2, "passed is 2");
    REFUSES(p.figures[2].passed = 0,
            "share is 0.15; the smallest that passed with all above it is 0");
    REFUSES(p.share = 0.05, "share is 0.05; the smallest");
    REFUSES(p.reserved32 = 3, "reserved32 of tamis_blend_trial is 3");
    REFUSES(p.reserved[7] = 5, "reserved[7] of tamis_blend_trial is 5");
    REFUSES(p.figures[0].reserved[2] = 6, "reserved[2] of tamis_blend_figures is 6");
    REFUSES(memset(p.model, 'x', sizeof p.model), "model does not end");
    size_t count;
    EXPECT(TAMIS_E_ARGUMENT, tamis_blend_trial_write(NULL, &p, &error));
    EXPECT(TAMIS_E_ARGUMENT, tamis_blend_trial_write("", &p, &error));
    EXPECT(TAMIS_E_ARGUMENT, tamis_blend_trial_write(path, NULL, &error));
    EXPECT(TAMIS_E_ARGUMENT, tamis_blend_trial_read(NULL, NULL, 0, &count, &error));
    EXPECT(TAMIS_E_ARGUMENT, tamis_blend_trial_read(path, NULL, 0, NULL, &error));
    EXPECT(TAMIS_E_ARGUMENT, tamis_blend_trial_read(path, NULL, 1, &count, &error));
}

/* ---- Damage ---------------------------------------------------------------------------------- */

static char *slurp(size_t *bytes) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = malloc(1 << 16);
    assert_non_null(text);
    *bytes = fread(text, 1, 1 << 16, file);
    fclose(file);
    return text;
}

static void spill(const char *text, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* Reading, writing and the gate refuse the file, name it, and leave it as it is. */
static void expect_refused(const char *text, size_t bytes, const char *what, size_t at) {
    const tamis_blend_params params = {.check_layer = 1};
    tamis_blend_trial p = entry_of(9, 0), out = {.n_sink = 55};
    size_t count = 77, now;
    spill(text, bytes);
    const tamis_status status = tamis_blend_trial_read(path, &out, 1, &count, &error);
    if (status != TAMIS_E_FORMAT && status != TAMIS_E_DAMAGED && status != TAMIS_E_UNSUPPORTED)
        fail_msg("%s %zu: %d", what, at, (int)status);
    assert_non_null(strstr(error.text, path));
    assert_true(count == 77 && out.n_sink == 55);
    assert_int_equal(tamis_blend_trial_write(path, &p, &error), status);
    assert_int_equal(tamis_blend_trial_passed(path, &params, TAMIS_F16, NULL, &error), status);
    char *after = slurp(&now);
    assert_int_equal(now, bytes);
    assert_memory_equal(after, text, bytes);
    free(after);
}

static void every_damage_is_found(void **state) {
    (void)state;
    const tamis_blend_trial p = entry_of(1, 1);
    size_t bytes;
    EXPECT(TAMIS_OK, tamis_blend_trial_write(path, &p, &error));
    char *text = slurp(&bytes);
    for (size_t n = 0; n < bytes; n++)
        expect_refused(text, n, "cut at", n);
    for (size_t i = 0; i < bytes; i++) {
        text[i] ^= 1 << i % 8;
        expect_refused(text, bytes, "changed at", i);
        text[i] ^= 1 << i % 8;
    }
    text[bytes] = '\n';
    expect_refused(text, bytes + 1, "longer by", 1);
    free(text);
}

static void foreign_files_are_told_apart(void **state) {
    (void)state;
    static const struct {
        const char *text, *why;
        tamis_status status;
    } files[] = {{"", "is no file of blend trials", TAMIS_E_FORMAT},
                 {"{\"trials\": []}\n", "is no file of blend trials", TAMIS_E_FORMAT},
                 {"tamis-blend-trials 2\n", "is of version 2; this library reads version 1",
                  TAMIS_E_UNSUPPORTED},
                 {"tamis-blend-trials 1\x1b[2J\x07\xc3\n", "is of version 1?[2J??; this library",
                  TAMIS_E_UNSUPPORTED},
                 {"tamis-blend-trials \r\x1b]0;x", "is of version ??]0;x; this library",
                  TAMIS_E_UNSUPPORTED},
                 {"tamis-blend-trials 1\nentry", "has been cut short", TAMIS_E_DAMAGED}};
    const tamis_blend_trial p = entry_of(1, 1);
    size_t count;
    EXPECT(TAMIS_OK, tamis_blend_trial_write(path, &p, &error)); /* the folder */
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        spill(files[i].text, strlen(files[i].text));
        EXPECT(files[i].status, tamis_blend_trial_read(path, NULL, 0, &count, &error));
        if (!strstr(error.text, files[i].why))
            fail_msg("\"%s\" lacks \"%s\"", error.text, files[i].why);
    }
    EXPECT(TAMIS_E_FORMAT, tamis_blend_trial_read(folder, NULL, 0, &count, &error));
    assert_non_null(strstr(error.text, "is no ordinary file"));
}

/* Puts the checksum of what stands before it to the end of a file's text. */
static void trial_sign(char *text, size_t bytes) {
    const size_t before = bytes - 26; /* "checksum ", 16 digits, a newline */
    snprintf(text + before, 27, "checksum %016" PRIx64 "\n", XXH3_64bits(text, before));
}

/* Lines that contradict the format under a right checksum: the whole of the parser is reached. */
static void lines_are_checked_under_a_right_checksum(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *why;
    } changes[] = {{"entry 01", "entry g1", "no beginning of an entry"},
                   {"entry 01", "entry 1", "no beginning of an entry"},
                   {"selector hkvd", "selector first", "takes no share"},
                   {"selector hkvd", "selector best", "selector"},
                   {"schedule falling", "schedule rising", "schedule"},
                   {"check-layer 1", "check-layer 0", "check_layer is 0"},
                   {"check-layer 1", "check-layer 4294967295", "check-layer"},
                   {"cache f16", "cache f12", "cache"},
                   {"sink 1", "sink -1", "sink"},
                   {"sink 1", "sink 1 ", "sink"},
                   {"seed 18446744073709551615", "seed 18446744073709551616", "seed"},
                   {"max-kl 0.050000000", "max-kl 0.05", "max-kl"},
                   {"max-kl 0.050000000", "max-kl 0,050000000", "max-kl"},
                   {"max-kl 0.050000000", "max-kl 1000000001.000000000", "max-kl"},
                   {"min-agreement 0.9", "min-agreement 1.9", "min_agreement is 1.9"},
                   {"prompts 8\n", "", "prompts"},
                   {" passed\n", " perhaps\n", "no line of figures"},
                   {" passed\n", " failed\n", "the smallest that passed"},
                   {"figures share", "figures part", "no line of figures"},
                   {"end\n", "", "missing its end"},
                   {"end\n", "end\nmore\n", "no beginning of an entry"},
                   {"model a", "model a\x1b[2J", "\"model a?[2J"},
                   {"model a",
                    "model 0123456789012345678901234567890123456789012345678901234567890"
                    "12345678901234567890123456789012345678901234567890123456789012345",
                    "model"}};
    const tamis_blend_trial p = entry_of(1, 1);
    size_t bytes, count;
    EXPECT(TAMIS_OK, tamis_blend_trial_write(path, &p, &error));
    char *text = slurp(&bytes), *changed = malloc(2 * bytes + 200);
    text[bytes] = '\0';
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const char *at = strstr(text, changes[i].from), *rest = at + strlen(changes[i].from);
        assert_non_null(at);
        const size_t n =
            (size_t)sprintf(changed, "%.*s%s%s", (int)(at - text), text, changes[i].to, rest);
        trial_sign(changed, n);
        spill(changed, n);
        EXPECT(TAMIS_E_FORMAT, tamis_blend_trial_read(path, NULL, 0, &count, &error));
        if (!strstr(error.text, changes[i].why) || !strstr(error.text, "line "))
            fail_msg("\"%s\" lacks \"%s\"", error.text, changes[i].why);
    }
    free(text);
    free(changed);
}

/* ---- The file system ------------------------------------------------------------------------- */

static void a_file_that_cannot_be_written_is_an_error(void **state) {
    (void)state;
    const tamis_blend_trial p = entry_of(1, 1);
    char below[192];
    snprintf(below, sizeof below, "%s/a/b/blend.trials", path);
    EXPECT(TAMIS_OK, tamis_blend_trial_write(path, &p, &error));
    EXPECT(TAMIS_E_IO, tamis_blend_trial_write(below, &p, &error));
    EXPECT(TAMIS_E_FORMAT, tamis_blend_trial_write(folder, &p, &error));
}

/* A link stays, and what it points to is replaced. */
static void links_stay(void **state) {
    (void)state;
    const tamis_blend_trial p = entry_of(1, 1), q = entry_of(2, 1);
    char link[128];
    struct stat info;
    snprintf(link, sizeof link, "%s/link", folder);
    EXPECT(TAMIS_OK, tamis_blend_trial_write(path, &p, &error));
    assert_int_equal(symlink(path, link), 0);
    EXPECT(TAMIS_OK, tamis_blend_trial_write(link, &q, &error));
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(read_all(NULL, 0), 2);
    assert_int_equal(unlink(link), 0);
}

/* Also one to a file that is not there yet, in a folder that is or is not, by a path of its own folder
 * or of the root, and a link to a link. */
static void links_to_nothing_stay(void **state) {
    (void)state;
    static const char *const targets[] = {"own/deep/blend.trials", "", "second"};
    const tamis_blend_trial p = entry_of(1, 1);
    char link[128], second[128];
    struct stat info;
    snprintf(link, sizeof link, "%s/link", folder);
    snprintf(second, sizeof second, "%s/second", folder);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        assert_int_equal(symlink(*targets[i] ? targets[i] : path, link), 0);
        if (i == 2) assert_int_equal(symlink("own/../own/deep/blend.trials", second), 0);
        EXPECT(TAMIS_OK, tamis_blend_trial_write(link, &p, &error));
        assert_int_equal(lstat(link, &info), 0);
        assert_true(S_ISLNK(info.st_mode));
        assert_int_equal(lstat(path, &info), 0);
        assert_true(S_ISREG(info.st_mode));
        assert_int_equal(read_all(NULL, 0), 1);
        assert_int_equal(unlink(link) | unlink(path), 0);
    }
    assert_int_equal(unlink(second) | symlink("link", link), 0);
    EXPECT(TAMIS_E_IO, tamis_blend_trial_write(link, &p, &error)); /* to itself */
    assert_int_equal(unlink(link), 0);
}

/* How many names the file's folder has. */
static unsigned count_names(void) {
    char own[96];
    unsigned count = 0;
    snprintf(own, sizeof own, "%s/own/deep", folder);
    DIR *all = opendir(own);
    assert_non_null(all);
    for (const struct dirent *entry; (entry = readdir(all));)
        count += entry->d_name[0] != '.';
    closedir(all);
    return count;
}

/* Writers that are killed while they write leave the old file, and nothing that the next one does not
 * remove. */
static void killed_writers_leave_nothing(void **state) {
    (void)state;
    const tamis_blend_trial first = entry_of(1, 1), more = entry_of(2, 1);
    EXPECT(TAMIS_OK, tamis_blend_trial_write(path, &first, &error));
    for (int i = 0; i < 3; i++) {
        const pid_t writer = fork();
        assert_true(writer >= 0);
        if (writer == 0) { /* the signal SIGXFSZ at the 100th byte */
            const struct rlimit no_core = {0, 0}, most = {100, 100};
            if (setrlimit(RLIMIT_CORE, &no_core) != 0 || setrlimit(RLIMIT_FSIZE, &most) != 0)
                _exit(1);
            const tamis_status status = tamis_blend_trial_write(path, &more, NULL);
            _exit(2 + (int)status);
        }
        int code;
        assert_int_equal(waitpid(writer, &code, 0), writer);
        assert_true(WIFSIGNALED(code));
        assert_int_equal(read_all(NULL, 0), 1);
    }
    assert_int_equal(count_names(), 2);
    EXPECT(TAMIS_OK, tamis_blend_trial_write(path, &more, &error));
    assert_int_equal(read_all(NULL, 0), 2);
    assert_int_equal(count_names(), 1);
}

/* Processes that write at a time: every entry is there, and a reader never meets a half file. */
static void writers_lose_nothing(void **state) {
    (void)state;
    enum { WRITERS = 4, ENTRIES = 8 };
    pid_t writers[WRITERS];
    const tamis_blend_trial first = entry_of(200, 1);
    EXPECT(TAMIS_OK, tamis_blend_trial_write(path, &first, &error));
    for (int w = 0; w < WRITERS; w++) {
        writers[w] = fork();
        assert_true(writers[w] >= 0);
        if (writers[w] > 0) continue;
        for (int i = 0; i < ENTRIES; i++) {
            const tamis_blend_trial p = entry_of((uint8_t)(w * ENTRIES + i), 1);
            if (tamis_blend_trial_write(path, &p, NULL) != TAMIS_OK) _exit(1);
        }
        _exit(0);
    }
    for (size_t last = 1; last < WRITERS * ENTRIES / 2;) {
        const size_t now = read_all(NULL, 0);
        assert_true(now >= last);
        last = now;
    }
    for (int w = 0; w < WRITERS; w++) {
        int code;
        assert_int_equal(waitpid(writers[w], &code, 0), writers[w]);
        assert_int_equal(code, 0);
    }
    assert_int_equal(read_all(NULL, 0), WRITERS * ENTRIES + 1);
}

static void the_path_is_the_users(void **state) {
    (void)state;
    char to[64];
    setenv("HOME", "/home/x", 1);
    setenv("XDG_CONFIG_HOME", "/etc/own", 1);
    EXPECT(TAMIS_OK, tamis_blend_trial_path(to, sizeof to, &error));
    assert_string_equal(to, "/etc/own/tamis/blend.trials");
    setenv("XDG_CONFIG_HOME", "relative", 1);
    EXPECT(TAMIS_OK, tamis_blend_trial_path(to, sizeof to, &error));
    assert_string_equal(to, "/home/x/.config/tamis/blend.trials");
    EXPECT(TAMIS_E_ARGUMENT, tamis_blend_trial_path(to, 10, &error));
    EXPECT(TAMIS_E_ARGUMENT, tamis_blend_trial_path(NULL, 10, &error));
    unsetenv("XDG_CONFIG_HOME");
    unsetenv("HOME");
    EXPECT(TAMIS_E_STATE, tamis_blend_trial_path(to, sizeof to, &error));
}

/* ---- The gate -------------------------------------------------------------------------------- */

static tamis_blend_params params_of(const tamis_blend_trial *p, double share) {
    tamis_blend_params params = {.selector = p->selector,
                                 .schedule = p->schedule,
                                 .share = share,
                                 .dtype = p->dtype,
                                 .n_sink = p->n_sink};
    memcpy(params.fingerprint, p->fingerprint, sizeof params.fingerprint);
    return params;
}

static void the_gate_lets_pass_what_passed(void **state) {
    (void)state;
    const tamis_blend_trial p = entry_of(1, 1), none = entry_of(2, 3);
    tamis_blend_trial out;
    tamis_blend_params params = params_of(&p, 0.15);
    EXPECT(TAMIS_E_STATE, tamis_blend_trial_passed(path, &params, TAMIS_F16, NULL, &error));
    EXPECT(TAMIS_OK, tamis_blend_trial_write(path, &p, &error));
    EXPECT(TAMIS_OK, tamis_blend_trial_write(path, &none, &error));
    EXPECT(TAMIS_OK, tamis_blend_trial_passed(path, &params, TAMIS_F16, &out, &error));
    expect_same(&out, &p);
    params.share = 0; /* 0.15 */
    params.check_layer = 1;
    EXPECT(TAMIS_OK, tamis_blend_trial_passed(path, &params, TAMIS_F16, NULL, &error));
    params.share = 0.9;
    EXPECT(TAMIS_OK, tamis_blend_trial_passed(path, &params, TAMIS_F16, NULL, &error));
    params.share = 0.149;
    EXPECT(TAMIS_E_STATE, tamis_blend_trial_passed(path, &params, TAMIS_F16, NULL, &error));
    assert_non_null(strstr(error.text, "share 0.149 is below 0.15, the smallest that passed"));
    params = params_of(&none, 0.99);
    EXPECT(TAMIS_E_STATE, tamis_blend_trial_passed(path, &params, TAMIS_F16, NULL, &error));
    assert_non_null(strstr(error.text, "no share has passed for model 021324"));
    assert_non_null(strstr(error.text, "tamis blend trial"));
    params.share = 1;
    EXPECT(TAMIS_OK, tamis_blend_trial_passed(path, &params, TAMIS_F16, &out, &error));
    assert_int_equal(out.n_figures, 0);
}

static void the_gate_wants_the_same_settings(void **state) {
    (void)state;
    const tamis_blend_trial p = entry_of(1, 1);
    EXPECT(TAMIS_OK, tamis_blend_trial_write(path, &p, &error));
    tamis_blend_params params;
    const double shares[] = {0.5};
#define GATE(status, change, cache, why)                                                           \
    do {                                                                                           \
        params = params_of(&p, 0.5);                                                               \
        change;                                                                                    \
        EXPECT(status, tamis_blend_trial_passed(path, &params, cache, NULL, &error));              \
        if (!strstr(error.text, why)) fail_msg("\"%s\" lacks \"%s\"", error.text, why);            \
    } while (0)
    GATE(TAMIS_E_STATE, params.fingerprint[15] ^= 1, TAMIS_F16, "there is no entry for model 0112");
    GATE(TAMIS_E_STATE, params.selector = TAMIS_BLEND_RANDOM, TAMIS_F16, "selector random");
    GATE(TAMIS_E_STATE, params.schedule = TAMIS_BLEND_FLAT, TAMIS_F16, "flat schedule");
    GATE(TAMIS_E_STATE, params.check_layer = 2, TAMIS_F16, "check layer 2");
    GATE(TAMIS_E_STATE, params.dtype = TAMIS_F16, TAMIS_F16, "f16 records behind 1 tokens");
    GATE(TAMIS_E_STATE, params.n_sink = 0, TAMIS_F16, "behind 0 tokens");
    GATE(TAMIS_E_STATE, (void)params, TAMIS_F32, "f32 cache");
    GATE(TAMIS_E_UNSUPPORTED, params.selector = TAMIS_BLEND_NONE, TAMIS_F16, "selector none");
    GATE(TAMIS_E_UNSUPPORTED, params.selector = TAMIS_BLEND_FIRST, TAMIS_F16, "selector first");
    GATE(TAMIS_E_UNSUPPORTED, params.most = 7, TAMIS_F16, "most 7");
    GATE(TAMIS_E_UNSUPPORTED, (params.shares = shares, params.n_shares = 1), TAMIS_F16,
         "a list of 1 shares");
    GATE(TAMIS_E_ARGUMENT, params.selector = 99, TAMIS_F16, "there is no selector 99");
    params = params_of(&p, 0.5);
    params.selector = TAMIS_BLEND_ALL;
    EXPECT(TAMIS_OK, tamis_blend_trial_passed(path, &params, TAMIS_F32, NULL, &error));
    EXPECT(TAMIS_E_ARGUMENT, tamis_blend_trial_passed(NULL, &params, TAMIS_F32, NULL, &error));
    EXPECT(TAMIS_E_ARGUMENT, tamis_blend_trial_passed(path, NULL, TAMIS_F32, NULL, &error));
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {IN_FOLDER(what_is_written_is_read),
                                       IN_FOLDER(names_are_cleaned_and_numbers_need_no_locale),
                                       IN_FOLDER(what_contradicts_itself_is_refused),
                                       IN_FOLDER(every_damage_is_found),
                                       IN_FOLDER(foreign_files_are_told_apart),
                                       IN_FOLDER(lines_are_checked_under_a_right_checksum),
                                       IN_FOLDER(links_to_nothing_stay),
                                       IN_FOLDER(killed_writers_leave_nothing),
                                       IN_FOLDER(a_file_that_cannot_be_written_is_an_error),
                                       IN_FOLDER(links_stay),
                                       IN_FOLDER(writers_lose_nothing),
                                       IN_FOLDER(the_gate_lets_pass_what_passed),
                                       IN_FOLDER(the_gate_wants_the_same_settings),
                                       cmocka_unit_test(the_path_is_the_users)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
