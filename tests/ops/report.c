/* SPDX-License-Identifier: Apache-2.0 */
/* What the checker prints: results, skips by reason, benches, the summary, and a line on a crash.
 */
#include "check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis_commit.h>
#include <unistd.h>

typedef struct skip_reason {
    char text[700];
    unsigned count;
} skip_reason;

static struct {
    const check_options *options;
    FILE *text; /* lines for people */
    unsigned passed, failed, skipped;
    char device[32], driver[128];
    double read_bandwidth;
    char **repros; /* one a failure */
    skip_reason *skips;
    size_t n_skips;
    bool rows_begun;
} report;

/* Ready-made text for the signal handler, which may only write. */
static char running[1024];

static const char *form_name(tms_form form) {
    static const char *const names[] = {[TMS_FORM_AUTO] = "auto",
                                        [TMS_FORM_BASE] = "base",
                                        [TMS_FORM_CPU] = "cpu",
                                        [TMS_FORM_CPU_OTHER] = "cpu-other",
                                        [TMS_FORM_GPU] = "gpu"};
    return names[form];
}

static void format_repro(const check_case *c, tms_form form, char *to, size_t size) {
    static const char *const modes[] = {
        [MODE_CORRECT] = "", [MODE_BITWISE] = " --mode bitwise", [MODE_BENCH] = " --mode bench"};
    snprintf(to, size, "REPRO: tamis-check --device %s --form %s%s --case '%s' --seed %llu",
             report.device, form_name(form), modes[report.options->mode], c->text,
             (unsigned long long)report.options->seed);
}

static void crashed(int signal_number) {
    ssize_t written = write(STDERR_FILENO, running, strlen(running));
    signal(signal_number, SIG_DFL);
    if (written >= 0) raise(signal_number);
}

void check_report_begin(const check_options *options) {
    memset(&report, 0, sizeof report);
    report.options = options;
    report.text = options->json ? stderr : stdout;
    signal(SIGSEGV, crashed);
    signal(SIGBUS, crashed);
    signal(SIGFPE, crashed);
    signal(SIGILL, crashed);
    signal(SIGABRT, crashed);
    fprintf(report.text, "tamis-check %s, seed %llu\n", tamis_version(),
            (unsigned long long)options->seed);
    if (options->json)
        printf("{\"tool\": \"tamis-check\", \"version\": \"%s\", \"commit\": \"%s\", "
               "\"device\": null, \"seed\": %llu, \"rows\": [",
               tamis_version(), TAMIS_COMMIT, (unsigned long long)options->seed);
}

void check_report_device(const tms_device *dev, double read_bandwidth) {
    snprintf(report.device, sizeof report.device, "%s", dev->info.id);
    snprintf(report.driver, sizeof report.driver, "%s", dev->info.driver);
    report.read_bandwidth = read_bandwidth;
    fprintf(report.text, "device %s: %s (%s)\n", dev->info.id, dev->info.name, dev->info.driver);
    if (report.options->mode == MODE_BENCH)
        fprintf(report.text, "read bandwidth %.1f GB/s\n%10s %8s %6s  %-4s %s\n", read_bandwidth,
                "us", "GB/s", "share", "form", "case");
}

void check_report_running(const check_case *c, tms_form form) {
    char repro[600];
    format_repro(c, form, repro, sizeof repro);
    snprintf(running, sizeof running, "FAIL %s %s form %s (crashed) %s\n", c->op->name,
             report.device, form_name(form), repro);
}

static void print_json_text(const char *text) {
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else if ((unsigned char)*text < 32)
            printf("\\u%04x", (unsigned)*text);
        else
            putchar(*text);
    }
    putchar('"');
}

static void print_json_row(const check_case *c, tms_form form, const check_result *r) {
    static const char *const verdicts[] = {
        [CHECK_PASSED] = "passed", [CHECK_FAILED] = "failed", [CHECK_SKIPPED] = "skipped"};
    printf("%s\n  {\"op\": \"%s\", \"case\": \"%s\", \"device\": \"%s\", \"driver\": ",
           report.rows_begun ? "," : "", c->op->name, c->text, report.device);
    print_json_text(report.driver);
    printf(", \"form\": \"%s\", \"verdict\": \"%s\"", form_name(form), verdicts[r->verdict]);
    if (r->verdict != CHECK_PASSED) {
        printf(", \"reason\": ");
        print_json_text(r->why);
    } else if (report.options->mode == MODE_CORRECT) {
        printf(", \"first_ms\": %.1f", r->first_ms);
    } else if (report.options->mode == MODE_BENCH) {
        double gb_per_s = (double)r->bytes / (r->us * 1e3);
        printf(", \"us\": %.3f, \"bytes\": %llu, \"gb_per_s\": %.3f, \"share_of_read\": %.4f",
               r->us, (unsigned long long)r->bytes, gb_per_s, gb_per_s / report.read_bandwidth);
    }
    putchar('}');
    report.rows_begun = true;
}

static void count_skip(const check_case *c, tms_form form, const char *why) {
    char text[sizeof report.skips->text];
    report.skipped++;
    snprintf(text, sizeof text, "%s %s form %s: %s", c->op->name, report.device, form_name(form),
             why);
    for (size_t i = 0; i < report.n_skips; i++) {
        if (strcmp(report.skips[i].text, text) == 0) {
            report.skips[i].count++;
            return;
        }
    }
    skip_reason *grown = check_alloc((report.n_skips + 1) * sizeof *grown);
    if (report.n_skips) memcpy(grown, report.skips, report.n_skips * sizeof *grown);
    free(report.skips);
    report.skips = grown;
    snprintf(grown[report.n_skips].text, sizeof grown->text, "%s", text);
    grown[report.n_skips++].count = 1;
}

static void count_failure(const check_case *c, tms_form form, const char *why) {
    char *repro = check_alloc(600);
    char **grown = check_alloc((report.failed + 1) * sizeof *grown);
    format_repro(c, form, repro, 600);
    if (report.failed) memcpy(grown, report.repros, report.failed * sizeof *grown);
    free(report.repros);
    report.repros = grown;
    report.repros[report.failed++] = repro;
    fprintf(report.text, "FAIL %s %s form %s (%s) %s\n", c->op->name, report.device,
            form_name(form), why, repro);
    fflush(report.text);
}

void check_report_result(const check_case *c, tms_form form, const check_result *result) {
    if (report.options->json) print_json_row(c, form, result);
    if (result->verdict == CHECK_FAILED) count_failure(c, form, result->why);
    if (result->verdict == CHECK_SKIPPED) count_skip(c, form, result->why);
    if (result->verdict != CHECK_PASSED) return;
    report.passed++;
    const double gb_per_s = (double)result->bytes / (result->us * 1e3);
    if (report.options->mode == MODE_BENCH)
        fprintf(report.text, "%10.1f %8.2f %5.0f%%  %-4s %s\n", result->us, gb_per_s,
                100 * gb_per_s / report.read_bandwidth, form_name(form), c->text);
    else if (report.options->verbose)
        fprintf(report.text, "pass %s %s form %s\n", c->text, report.device, form_name(form));
}

bool check_report_failed(void) {
    return report.failed > 0;
}

int check_report_end(void) {
    for (size_t i = 0; i < report.n_skips; i++)
        fprintf(report.text, "skip %ux %s\n", report.skips[i].count, report.skips[i].text);
    fprintf(report.text, "%u passed, %u failed, %u skipped\n", report.passed, report.failed,
            report.skipped);
    for (unsigned i = 0; i < report.failed; i++) {
        fprintf(report.text, "%s\n", report.repros[i]);
        free(report.repros[i]);
    }
    free(report.repros);
    free(report.skips);
    if (report.options->json)
        printf("\n], \"passed\": %u, \"failed\": %u, \"skipped\": %u}\n", report.passed,
               report.failed, report.skipped);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("tamis-check: writing the results");
        return 1;
    }
    if (report.failed) return 1;
    return report.passed ? 0 : 77;
}
