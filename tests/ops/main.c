/* SPDX-License-Identifier: Apache-2.0 */
/* tamis-check: runs the ops of every device against the reference, twice for bits, or timed. */
#include "check.h"

#ifdef TAMIS_HAVE_OPENCL
#include "host/opencl/clblast.h"
#endif
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE     2
#define MAX_DEVICES    16
#define MOST_PROBE_MIB 65536u
#define PROBE_MIB      128u /* what the read bandwidth is measured over */

static const char usage_text[] =
    "usage: tamis-check [options] [pattern...]\n"
    "Runs device ops against the plain C reference, and the reference against fp64 formulas.\n"
    "  --device D     opencl:0, opencl, reference; default: every usable device\n"
    "  --list L       cases: smoke, lean (few builds of each kernel), ci (default), full,\n"
    "                 oclgrind, bench\n"
    "  --case S       one case instead of a list; may be repeated\n"
    "  --form F       base, gpu, cpu, cpu-other (its other shape) or auto; default: each that the\n"
    "                 op has and the device takes by itself, and gpu\n"
    "  --mode M       correct (default), bitwise, bench (default list: bench)\n"
    "  --seed N       of the data; default 1\n"
    "  --probe N      MiB over which bench measures the read bandwidth; default 128\n"
    "  --json         rows as JSON on stdout, text on stderr\n"
    "  --print        print the cases and end\n"
    "  --verbose      a line a result\n"
    "  --first        ends behind the first case that fails\n"
    "Patterns with * and ? choose cases by text or op name; behind a ! they leave cases out.\n"
    "Exit status: 0 passed, 1 failed, 2 wrong usage, 77 nothing could run.\n"
    "example: tamis-check --device opencl --list smoke 'attend*'\n";

typedef struct arguments {
    check_options options;
    const char *device, *list;
    bool print;
    uint32_t probe_mib;
    check_cases cases;
    char **patterns;
    int n_patterns;
} arguments;

static int wrong(const char *what, const char *value) {
    fprintf(stderr, "tamis-check: %s '%s'; --help shows the usage\n", what, value);
    return EXIT_USAGE;
}

/* Index of `name` among `count` names, or -1. */
static int word_index(const char *name, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}

static int take_value(arguments *args, const char *flag, const char *value) {
    static const char *const modes[] = {"correct", "bitwise", "bench"};
    static const char *const forms[] = {"auto", "base", "cpu", "cpu-other", "gpu"};
    char why[256], *end;
    check_case item;
    int index;
    if (strcmp(flag, "--device") == 0) {
        args->device = value;
    } else if (strcmp(flag, "--list") == 0) {
        args->list = value;
    } else if (strcmp(flag, "--case") == 0) {
        if (!check_case_parse(value, &item, why, sizeof why)) {
            fprintf(stderr, "tamis-check: %s\n", why);
            return EXIT_USAGE;
        }
        check_cases_add(&args->cases, &item);
    } else if (strcmp(flag, "--form") == 0) {
        if ((args->options.form = word_index(value, forms, 5)) < 0)
            return wrong("no such form:", value);
    } else if (strcmp(flag, "--mode") == 0) {
        if ((index = word_index(value, modes, 3)) < 0) return wrong("no such mode:", value);
        args->options.mode = (check_mode)index;
    } else if (strcmp(flag, "--probe") == 0) {
        const unsigned long mib = strtoul(value, &end, 10);
        if (*end || value[0] < '0' || value[0] > '9' || mib < 1 || mib > MOST_PROBE_MIB)
            return wrong("--probe: not a number from 1 to 65536:", value);
        args->probe_mib = (uint32_t)mib;
    } else if (strcmp(flag, "--seed") == 0) {
        args->options.seed = strtoull(value, &end, 10);
        if (*end || value[0] < '0' || value[0] > '9') return wrong("not a number:", value);
    } else {
        return wrong("unknown option", flag);
    }
    return 0;
}

static int parse_arguments(int argc, char **argv, arguments *args) {
    int i = 1;
    args->probe_mib = PROBE_MIB;
    args->options = (check_options){.mode = MODE_CORRECT, .form = -1, .seed = 1};
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            args->options.json = true;
        } else if (strcmp(argv[i], "--print") == 0) {
            args->print = true;
        } else if (strcmp(argv[i], "--verbose") == 0) {
            args->options.verbose = true;
        } else if (strcmp(argv[i], "--first") == 0) {
            args->options.first = true;
        } else if (i + 1 == argc) {
            return wrong("unknown option, or its value is missing:", argv[i]);
        } else {
            int failed = take_value(args, argv[i], argv[i + 1]);
            if (failed) return failed;
            i++;
        }
    }
    args->patterns = argv + i;
    args->n_patterns = argc - i;
    return 0;
}

static bool fits(const char *pattern, const check_case *c) {
    return fnmatch(pattern, c->op->name, 0) == 0 || fnmatch(pattern, c->text, 0) == 0;
}

static bool wanted(const arguments *args, const check_case *c) {
    bool chosen = false, choosing = false;
    for (int i = 0; i < args->n_patterns; i++) {
        const char *pattern = args->patterns[i];
        if (*pattern == '!' && fits(pattern + 1, c)) return false;
        choosing = choosing || *pattern != '!';
        chosen = chosen || fits(pattern, c);
    }
    return chosen || !choosing;
}

static int choose_cases(arguments *args) {
    const char *name = args->options.mode == MODE_BENCH ? "bench" : "ci";
    check_list list;
    if (args->list) name = args->list;
    if (!check_list_parse(name, &list)) return wrong("no such list:", name);
    if (!args->cases.count) check_cases_add_list(&args->cases, list);
    size_t kept = 0;
    for (size_t i = 0; i < args->cases.count; i++)
        if (wanted(args, &args->cases.items[i])) args->cases.items[kept++] = args->cases.items[i];
    args->cases.count = kept;
    if (!kept) return wrong("no case matches; list", name);
    return 0;
}

static bool probe_bandwidth(tms_device *dev, uint32_t mib, double *gb_per_s) {
    const uint64_t bytes = (uint64_t)mib << 20;
    tms_mem *mem = NULL;
    tamis_error error = {0};
    tamis_status status = tms_device_alloc(dev, bytes, &mem, &error);
    const tms_ref at = {mem, 0};
    if (status == TAMIS_OK) status = tms_device_fill(dev, at, 1, bytes, &error);
    if (status == TAMIS_OK) status = tms_device_read_bandwidth(dev, at, bytes, gb_per_s, &error);
    tms_device_free(dev, mem);
    if (status != TAMIS_OK) fprintf(stderr, "tamis-check: read bandwidth: %s\n", error.text);
    return status == TAMIS_OK;
}

static tms_device *open_device(const tms_backend *backend, const char *id) {
    const tms_log log = {.stderr_level = -1};
    tms_device *dev = NULL;
    tamis_error error = {0};
    if (backend->open(backend, id, &log, &dev, &error) == TAMIS_OK) return dev;
    fprintf(stderr, "tamis-check: %s: %s\n", id, error.text);
    return NULL;
}

static bool check_device(const arguments *args, const tms_backend *backend, const char *id,
                         tms_device *reference) {
    double gb_per_s = 0;
    tms_device *dev = open_device(backend, id);
    bool ok = dev && (args->options.mode != MODE_BENCH ||
                      probe_bandwidth(dev, args->probe_mib, &gb_per_s));
    if (ok) check_report_device(dev, gb_per_s);
    for (size_t i = 0; ok && i < args->cases.count; i++) {
        if (args->options.first && check_report_failed()) break;
        check_run_case(&args->options, dev, reference, &args->cases.items[i]);
    }
    if (dev) tms_device_close(dev);
    return ok;
}

/* A bare backend name stands for its first usable device. */
static bool matches(const char *asked, const tms_backend *backend, const char *id, bool first) {
    return !asked || strcmp(asked, id) == 0 || (first && strcmp(asked, backend->name) == 0);
}

/* Runs the devices of one backend that were asked for; *found counts them. */
static bool check_backend(const arguments *args, const tms_backend *backend, tms_device *reference,
                          int *found) {
    tamis_device_info infos[MAX_DEVICES];
    size_t count = 0;
    bool ok = backend->list(infos, MAX_DEVICES, &count) == TAMIS_OK, first = true;
    for (size_t i = 0; ok && i < count && i < MAX_DEVICES; i++) {
        if (!matches(args->device, backend, infos[i].id, first)) continue;
        if (!infos[i].usable) {
            fprintf(stderr, "tamis-check: %s: %s\n", infos[i].id, infos[i].reason);
            continue;
        }
        first = false;
        ++*found;
        ok = check_device(args, backend, infos[i].id, reference);
    }
    return ok;
}

static const tms_backend *last_backend(void) {
    size_t i = 0;
    while (tms_backends[i + 1])
        i++;
    return tms_backends[i];
}

static int run(arguments *args) {
    int found = 0;
    bool ok = true;
    tms_device *reference = open_device(last_backend(), "reference:0");
    if (!reference) return EXIT_FAILURE;
    check_report_begin(&args->options);
    for (size_t i = 0; tms_backends[i]; i++)
        ok = check_backend(args, tms_backends[i], reference, &found) && ok;
    tms_device_close(reference);
    if (!found)
        fprintf(stderr, "tamis-check: no usable device '%s'\n",
                args->device ? args->device : "any");
    int status = check_report_end();
    return ok ? status : EXIT_FAILURE;
}

int main(int argc, char **argv) {
    arguments args = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            return fputs(usage_text, stdout) < 0 || fflush(stdout) != 0;
    }
    int status = parse_arguments(argc, argv, &args);
    if (!status) status = choose_cases(&args);
    for (size_t i = 0; !status && args.print && i < args.cases.count; i++)
        puts(args.cases.items[i].text);
    if (!status && !args.print) status = run(&args);
#ifdef TAMIS_HAVE_OPENCL
    tms_clblast_clear(); /* else its contexts last until exit, when oclgrind frees none */
#endif
    free(args.cases.items);
    return status;
}
