/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis bench portability`: opens every driver of every device with every form, and measures the same
 * problems on all of them. */
#define _POSIX_C_SOURCE 200809L /* setenv, sysconf */
#include "bench/portability.h"
#include "cli/commands.h"
#include "cli/devices.h"
#include "cli/progress.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FORM_VARIABLE "TAMIS_OPENCL_FORM"
/* A platform is slow where another one on its hardware attends so many times faster: it measures no
 * bandwidth and takes one turn at a problem. */
#define SLOWER 4.0
#define TURNS  3u

typedef struct portability_flags {
    const char *device, *json;
    uint32_t repeat, probe, seconds, quick;
    cli_list contexts, kinds;
} portability_flags;

static const cli_option options[] = {
    {"--problem", "P[,P]",
     "what is measured: {} (default all); decode is dense and quest, of one and of four query "
     "heads "
     "for a KV head",
     CLI_CHOICES, offsetof(portability_flags, kinds), 0, 0, portability_kinds},
    {"--context", "N[,N]", "tokens that decode steps see (default 4096,16384,32768)", CLI_NUMBERS,
     offsetof(portability_flags, contexts), 256, BENCH_CONTEXT_MAX, NULL},
    {"--quick", "",
     "4096 tokens alone, 3 samples, and at most 2 seconds for those of a problem on a platform",
     CLI_FLAG, offsetof(portability_flags, quick), 0, 0, NULL},
    {"--repeat", "N", "samples (default 5); of what is slow fewer, but 3", CLI_NUMBER,
     offsetof(portability_flags, repeat), 1, BENCH_REPEAT_MAX, NULL},
    {"--seconds", "N",
     "for the samples of a problem on a platform (default 4, with --quick 2); where three and one "
     "to warm up take longer, it is not run",
     CLI_NUMBER, offsetof(portability_flags, seconds), 1, 3600, NULL},
    {"--probe", "N", "MiB to measure the read bandwidth over (default 256, on a GPU up to 1024)",
     CLI_NUMBER, offsetof(portability_flags, probe), 1, 65536, NULL},
    {"--device", "ID", "only this device, or the devices of this backend (default all)", CLI_TEXT,
     offsetof(portability_flags, device), 0, 0, NULL},
    CLI_JSON_OPTION(portability_flags, json),
};

static int run(int argc, char *const *argv);

const cli_command bench_portability_command = {
    "tamis bench portability",
    "the same problems on every device, driver and form, and how efficient each is",
    "[OPTIONS]",
    "Measures the same problems on every platform that is here: a driver of a device with\n"
    "one form of the kernels (TAMIS_OPENCL_FORM). All platforms run a problem one after\n"
    "another before the next problem. \"architecture\" is the share of what the hardware can\n"
    "do: of the page-read limit or the read bandwidth that the best of its drivers reached\n"
    "beside the problem; of many rows, of its fastest arithmetic in any problem.\n"
    "\"application\" is the shortest time of any platform on the same hardware, over the time.\n"
    "All drivers of the processor share their hardware. Of three turns at a problem the best\n"
    "counts; what is more than four times slower than another on its hardware has one turn.\n"
    "\n"
    "The metric is the harmonic mean of Pennycook, Sewall and Lee over the platforms.\n"
    "Platforms on which a problem would take too long are left out of it, and their number\n"
    "says so; one that cannot run it makes it 0. In the forms base and gpu products of many\n"
    "rows are CLBlast's where that is installed. tools/plot_portability.py draws the JSON.",
    "  tamis bench portability --json portability.json\n"
    "  tamis bench portability --quick --problem decode\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run};

/* ---- Platforms ------------------------------------------------------------------------------- */

/* The processor's name and its number of processors; "host" where the system does not say. */
static void name_processor(char *to, size_t capacity) {
    static const char key[] = "model name";
    char line[256], *name = NULL;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && name == NULL && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, key, sizeof(key) - 1) == 0) name = strchr(line, ':');
    if (file != NULL) fclose(file);
    if (name != NULL) line[strcspn(line, "\n")] = '\0';
    snprintf(to, capacity, "%.100s, %ld processors", name != NULL ? name + 2 : "host",
             sysconf(_SC_NPROCESSORS_ONLN));
}

static tamis_status open_platform(portability_platform *platform, tamis_error *error) {
    const bool choice = strcmp(platform->form, "own") != 0;
    if (choice) setenv(FORM_VARIABLE, platform->form, 1);
    const tamis_status status = bench_open(platform->info.id, &platform->device, error);
    if (choice) unsetenv(FORM_VARIABLE);
    return status;
}

static void refuse(portability *p, const char *id, const char *form, const char *why) {
    if (p->n_refused == PORTABILITY_PLATFORMS_MAX) return;
    char *line = p->refused[p->n_refused++];
    snprintf(line, sizeof(p->refused[0]), "%.31s %.4s: %.400s", id, form, why);
}

/* Opens the device with each form that its kind has. */
static void add_forms(portability *p, const tamis_device_info *info) {
    static const char *const of_cpus[] = {"cpu", "base", NULL},
                             *const of_gpus[] = {"gpu", "base", NULL}, *const own[] = {"own", NULL};
    const bool opencl = strcmp(info->backend, "opencl") == 0;
    const char *const *form = !opencl ? own : info->kind == TAMIS_DEVICE_CPU ? of_cpus : of_gpus;
    for (; *form != NULL && p->n_platforms < PORTABILITY_PLATFORMS_MAX; form++) {
        portability_platform *platform = &p->platforms[p->n_platforms];
        tamis_error error = {0};
        *platform = (portability_platform){.info = *info, .form = *form};
        if (info->kind == TAMIS_DEVICE_CPU)
            name_processor(platform->hardware, sizeof(platform->hardware));
        else
            snprintf(platform->hardware, sizeof(platform->hardware), "%s", info->name);
        if (open_platform(platform, &error) == TAMIS_OK)
            p->n_platforms++;
        else
            refuse(p, info->id, *form, error.text);
    }
}

static bool find_platforms(portability *p, const char *device, tamis_error *error) {
    tamis_device_info infos[PORTABILITY_PLATFORMS_MAX];
    size_t count = 0;
    if (tamis_device_list(infos, PORTABILITY_PLATFORMS_MAX, &count, error) != TAMIS_OK)
        return false;
    for (size_t i = 0; i < count && i < PORTABILITY_PLATFORMS_MAX; i++)
        if (devices_is_meant(&infos[i], device) && infos[i].usable) add_forms(p, &infos[i]);
    if (p->n_platforms > 0) return true;
    cli_error(error, TAMIS_E_NO_DEVICE, "--device %s: no such device can be used%s%s",
              device != NULL ? device : "auto", p->n_refused > 0 ? ": " : "",
              p->n_refused > 0 ? p->refused[0] : "");
    return false;
}

/* ---- Problems -------------------------------------------------------------------------------- */

static void name_problem(portability_problem *problem, uint32_t several) {
    const portability_task *task = problem->task;
    if (strcmp(task->kind, "product") == 0)
        snprintf(problem->name, sizeof(problem->name), "product %s %u",
                 tamis_weight_name(task->type), task->rows);
    else
        snprintf(problem->name, sizeof(problem->name), "%s %s %u", task->classes[several],
                 bench_shapes[task->shape].name,
                 problem->context > 0 ? problem->context : task->rows);
}

static void add_task(portability *p, const portability_task *task, uint32_t context) {
    for (uint32_t i = 0; i < task->n_problems; i++) {
        portability_problem *problem = &p->problems[p->n_problems++];
        *problem = (portability_problem){.task = task,
                                         .class_name = task->classes[i],
                                         .ceiling = task->ceiling,
                                         .context = context};
        name_problem(problem, i);
    }
}

static bool is_chosen(const cli_list *kinds, const char *kind) {
    for (uint32_t i = 0; i < kinds->count; i++)
        if (strcmp(portability_kinds[kinds->values[i]], kind) == 0) return true;
    return kinds->count == 0;
}

static void list_problems(portability *p, const portability_flags *f) {
    for (const portability_task *task = portability_tasks; task->kind != NULL; task++) {
        if (!is_chosen(&f->kinds, task->kind)) continue;
        const bool each = strcmp(task->kind, "decode") == 0;
        for (uint32_t i = 0; i < (each ? f->contexts.count : 1); i++)
            add_task(p, task, each ? f->contexts.values[i] : task->context);
    }
}

/* ---- Measuring ------------------------------------------------------------------------------- */

/* One turn of a platform at a task. A problem that failed leaves its reason in its cell. */
static void take_turn(const portability *p, const portability_problem *problem,
                      portability_platform *platform, portability_cell *cells) {
    tamis_error error = {0};
    tamis_status status = problem->task->measure(p, platform, problem, cells, &error);
    if (status == TAMIS_OK && cells->state == PORTABILITY_RAN &&
        problem->ceiling == PORTABILITY_READ && !platform->slow)
        status = bench_read_bandwidth(platform->device, p->probe, &cells->read_gb_per_s, &error);
    for (uint32_t i = 0; status != TAMIS_OK && i < problem->task->n_problems; i++) {
        cells[i] = (portability_cell){.state = PORTABILITY_CANNOT};
        snprintf(cells[i].reason, sizeof(cells[i].reason), "%.250s", error.text);
    }
}

/* Of several turns the one with the shortest median stays, unless one failed. */
static void measure_cells(portability *p, uint32_t first, uint32_t j, uint32_t turn) {
    const portability_problem *problem = &p->problems[first];
    portability_cell cells[2] = {0};
    take_turn(p, problem, &p->platforms[j], cells);
    for (uint32_t i = 0; i < problem->task->n_problems; i++) {
        portability_cell *cell = &p->cells[first + i][j];
        if (turn == 0 || cells[i].state != PORTABILITY_RAN ||
            (cell->state == PORTABILITY_RAN && cells[i].us.median < cell->us.median))
            *cell = cells[i];
    }
}

bool portability_same_hardware(const portability *p, uint32_t a, uint32_t b) {
    return strcmp(p->platforms[a].hardware, p->platforms[b].hardware) == 0;
}

/* Whether another one on its hardware attends far faster. */
static bool is_slow(const portability *p, uint32_t platform) {
    const double limit = SLOWER * p->platforms[platform].flop_per_s;
    bool slow = false;
    for (uint32_t j = 0; j < p->n_platforms; j++)
        slow |= portability_same_hardware(p, platform, j) && p->platforms[j].flop_per_s > limit;
    return slow;
}

/* Compiles on each platform, and finds how fast it is. */
static tamis_status calibrate(portability *p, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    for (uint32_t j = 0; status == TAMIS_OK && j < p->n_platforms; j++)
        status = portability_calibrate(p, &p->platforms[j], error);
    for (uint32_t j = 0; j < p->n_platforms; j++)
        p->platforms[j].slow = is_slow(p, j);
    return status;
}

/* The platforms take turns, so that what else the machine does meets all that are compared. */
static void measure(portability *p) {
    cli_progress progress;
    uint32_t step;
    cli_progress_begin(&progress, "cells");
    for (uint32_t i = 0; i < p->n_problems; i += step) {
        step = p->problems[i].task->n_problems;
        for (uint32_t turn = 0; turn < p->turns; turn++)
            for (uint32_t j = 0; j < p->n_platforms; j++) {
                if (turn > 0 && p->platforms[j].slow) continue;
                cli_progress_show(&progress, (size_t)i * p->n_platforms + (size_t)j * step,
                                  (size_t)p->n_problems * p->n_platforms);
                measure_cells(p, i, j, turn);
            }
    }
    cli_progress_end(&progress);
}

/* ---- The command ----------------------------------------------------------------------------- */

static int measure_and_say(portability *p, const portability_flags *f, cli_output *output) {
    const char *name = bench_portability_command.name;
    tamis_error error = {0};
    if (!find_platforms(p, f->device, &error) || calibrate(p, &error) != TAMIS_OK)
        return cli_fail(name, "%s", error.text);
    list_problems(p, f);
    measure(p);
    portability_rate(p);
    if (!portability_print(p)) return cli_fail(name, "out of host memory");
    return f->json == NULL || portability_write_json(p, f->quick, output) ? CLI_OK : CLI_FAILED;
}

static void set_defaults(portability_flags *f) {
    static const cli_list all = {3, {4096, 16384, 32768}}, quick = {1, {4096}};
    if (f->contexts.count == 0) f->contexts = f->quick ? quick : all;
    if (f->repeat == 0) f->repeat = f->quick ? 3 : 5;
    if (f->seconds == 0) f->seconds = f->quick ? 2 : 4;
}

static int run(int argc, char *const *argv) {
    portability_flags f = {0};
    cli_output output = {0};
    int code = cli_parse(&bench_portability_command, &f, argc, argv);
    if (code >= 0) return code;
    set_defaults(&f);
    portability *p = calloc(1, sizeof(*p));
    if (p == NULL) return cli_fail(bench_portability_command.name, "out of host memory");
    if (f.json != NULL && !cli_output_open(&output, bench_portability_command.name, f.json)) {
        free(p);
        return CLI_FAILED;
    }
    p->repeat = f.repeat;
    p->probe = f.probe;
    p->turns = f.quick ? 1 : TURNS;
    p->seconds = f.seconds;
    code = measure_and_say(p, &f, &output);
    for (uint32_t j = 0; j < p->n_platforms; j++)
        tamis_context_destroy(&p->platforms[j].device);
    free(p);
    cli_output_discard(&output);
    return code;
}
