/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis bench arrivals`: requests that arrive at random times, run by the scheduler in mixed steps, in two
 * passes, and with prompts first. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "bench/bench.h"
#include "cli/commands.h"
#include "cli/json.h"
#include "cli/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/batch.h>
#include <time.h>

#define REQUESTS_MAX 4096u
#define ARMS         3u

typedef struct arrivals_flags {
    const char *device, *json, *model;
    uint32_t requests, context, tokens, rows, running, dtype, page_size;
    cli_list rates;
} arrivals_flags;

static const cli_option options[] = {
    CLI_MODEL_OPTION(arrivals_flags, model),
    {"--rate", "N[,N]", "requests a minute, on average (default 6,12,24)", CLI_NUMBERS,
     offsetof(arrivals_flags, rates), 1, 1000000, NULL},
    {"--requests", "N", "requests of a run (default 24)", CLI_NUMBER,
     offsetof(arrivals_flags, requests), 2, REQUESTS_MAX, NULL},
    {"--context", "N", "tokens of a prompt: a quarter of them to all (default 1024)", CLI_NUMBER,
     offsetof(arrivals_flags, context), 4, BENCH_CONTEXT_MAX, NULL},
    {"--tokens", "N", "tokens that a request generates: half of them to all (default 64)",
     CLI_NUMBER, offsetof(arrivals_flags, tokens), 2, BENCH_CONTEXT_MAX, NULL},
    {"--rows", "N", "rows of a step at most (default 256)", CLI_NUMBER,
     offsetof(arrivals_flags, rows), 1, 65536, NULL},
    {"--running", "N", "requests that run at once (default 8)", CLI_NUMBER,
     offsetof(arrivals_flags, running), 1, 256, NULL},
    CLI_DTYPE_OPTION("--dtype", arrivals_flags, dtype),
    CLI_PAGE_SIZE_OPTION(arrivals_flags, page_size),
    CLI_JSON_OPTION(arrivals_flags, json),
    CLI_DEVICE_OPTION(arrivals_flags, device),
};

static int run_command(int argc, char *const *argv);

const cli_command bench_arrivals_command = {
    "tamis bench arrivals",
    "requests that arrive at random times: tokens a second, times to first and next tokens",
    "--model FILE [OPTIONS]",
    "Requests arrive as a Poisson process, the same ones at the same times for each way of "
    "running\n"
    "them: \"mixed\", chunks of prompts beside decode rows in one step; \"two passes\", the same\n"
    "chunks and rows in a step each; \"prompts first\", where decode rows wait while there are\n"
    "prompts to be read. Prompts are random tokens. The time to the first token counts from a\n"
    "request's arrival.",
    "  tamis bench arrivals --model model.gguf --rate 6,12,24\n"
    "  tamis bench arrivals --model tests/data/needle.gguf --requests 8 --rate 600 --json "
    "out.json\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run_command};

typedef struct arrivals_arm {
    const char *name;
    uint32_t flags;
} arrivals_arm;

static const arrivals_arm arms[ARMS] = {
    {"mixed", 0},
    {"two passes", TAMIS_SCHEDULER_APART},
    {"prompts first", TAMIS_SCHEDULER_APART | TAMIS_SCHEDULER_PROMPTS_FIRST}};

/* A request of a run. Times in seconds since the run began. */
typedef struct arriving {
    uint64_t id;
    uint32_t n_prompt, n_new;
    double arrives, last; /* last: its newest token; 0: none yet */
} arriving;

/* What one way of running gave at one rate. */
typedef struct arrivals_row {
    uint32_t rate, arm;
    double tokens_per_s, steps, mixed_steps, preempted;
    double first_s, first_p99_s, next_s, next_p99_s;
} arrivals_row;

typedef struct arrivals {
    const arrivals_flags *flags;
    tamis_context *device;
    tamis_model *model;
    int32_t *prompt; /* [context + requests] each request reads from a place of its own on */
    arriving *requests;
    double *first, *next; /* seconds: [requests]; [requests * tokens] */
    uint32_t n_first, n_next;
    arrivals_row *rows;
    uint32_t n_rows;
} arrivals;

/* ---- A run ----------------------------------------------------------------------------------- */

static void draw_requests(arrivals *a, uint32_t rate) {
    const arrivals_flags *f = a->flags;
    cli_random random = cli_random_of(7, rate);
    double at = 0;
    for (uint32_t i = 0; i < f->requests; i++) {
        const double u = ((double)(cli_random_next(&random) >> 11) + 1) / 9007199254740993.0;
        const uint32_t least = f->context / 4, fewest = f->tokens / 2;
        at += -log(u) * 60 / rate;
        a->requests[i] =
            (arriving){.arrives = at,
                       .n_prompt = least + cli_random_below(&random, f->context - least + 1),
                       .n_new = fewest + cli_random_below(&random, f->tokens - fewest + 1)};
    }
}

static void wait_until(double start, double at) {
    const double left = at - (cli_seconds() - start);
    if (left <= 0) return;
    const struct timespec time = {(time_t)left, (long)((left - floor(left)) * 1e9)};
    nanosleep(&time, NULL);
}

static tamis_status add_arrived(arrivals *a, tamis_scheduler *scheduler, double now, uint32_t *n,
                                tamis_error *error) {
    for (; *n < a->flags->requests && a->requests[*n].arrives <= now; ++*n) {
        arriving *request = &a->requests[*n];
        const tamis_request params = {
            .tokens = a->prompt + *n, .n_tokens = request->n_prompt, .max_new = request->n_new};
        const tamis_status status = tamis_scheduler_add(scheduler, &params, &request->id, error);
        if (status != TAMIS_OK) return status;
    }
    return TAMIS_OK;
}

/* Ids are 1, 2, ... in the order of arrival. */
static tamis_status note(arrivals *a, const tamis_request_event *event, double now, uint32_t *left,
                         tamis_error *error) {
    arriving *request = &a->requests[event->id - 1];
    if (event->status != TAMIS_OK)
        return cli_error(error, event->status, "request %u ended with %s", (unsigned)event->id,
                         tamis_status_name(event->status));
    *left -= event->kind == TAMIS_REQUEST_ENDED;
    if (event->kind != TAMIS_REQUEST_TOKEN) return TAMIS_OK;
    if (request->last == 0)
        a->first[a->n_first++] = now - request->arrives;
    else
        a->next[a->n_next++] = now - request->last;
    request->last = now;
    return TAMIS_OK;
}

static tamis_status play(arrivals *a, tamis_scheduler *scheduler, double *seconds,
                         tamis_error *error) {
    const tamis_request_event *events;
    uint32_t left = a->flags->requests, added = 0, n = 0;
    const double start = cli_seconds();
    a->n_first = a->n_next = 0;
    while (left > 0) {
        if (added == a->flags->requests - left) wait_until(start, a->requests[added].arrives);
        tamis_status status = add_arrived(a, scheduler, cli_seconds() - start, &added, error);
        if (status == TAMIS_OK) status = tamis_scheduler_step(scheduler, &events, &n, error);
        for (uint32_t i = 0; i < n && status == TAMIS_OK; i++)
            status = note(a, &events[i], cli_seconds() - start, &left, error);
        if (status != TAMIS_OK) return status;
    }
    *seconds = cli_seconds() - start - a->requests[0].arrives;
    return TAMIS_OK;
}

static void summarise(arrivals *a, double seconds, const tamis_scheduler_stats *stats) {
    arrivals_row *row = &a->rows[a->n_rows];
    row->tokens_per_s = (a->n_first + a->n_next) / seconds;
    row->steps = (double)stats->steps;
    row->mixed_steps = (double)stats->mixed_steps;
    row->preempted = (double)stats->preempted;
    row->first_s = bench_median(a->first, a->n_first); /* sorts */
    row->first_p99_s = bench_percentile(a->first, a->n_first, 99);
    row->next_s = bench_median(a->next, a->n_next);
    row->next_p99_s = bench_percentile(a->next, a->n_next, 99);
}

static tamis_status open_runner(const arrivals *a, tamis_cache **cache, tamis_runner **runner,
                                tamis_error *error) {
    const arrivals_flags *f = a->flags;
    tamis_cache_params shape = {.dtype = (tamis_dtype)f->dtype,
                                .page_size = f->page_size,
                                .capacity_tokens =
                                    (uint64_t)f->running * (f->context + f->tokens + f->page_size)};
    const tamis_plan_params plan = {.max_sequences = f->running,
                                    .max_rows = f->rows > f->running ? f->rows : f->running,
                                    .max_context = f->context + f->tokens};
    tamis_model_cache_shape(a->model, &shape);
    tamis_status status = tamis_cache_create(a->device, &shape, cache, error);
    if (status == TAMIS_OK) status = tamis_runner_create(a->model, *cache, &plan, runner, error);
    /* Kernels of one row are there. */
    if (status == TAMIS_OK && f->running > 1) status = tamis_runner_build(*runner, 2, 2, error);
    if (status == TAMIS_OK && plan.max_rows > TAMIS_FEW_ROWS)
        status = tamis_runner_build(*runner, plan.max_rows, 1, error);
    return status;
}

static tamis_status run_arm(arrivals *a, uint32_t rate, uint32_t arm, tamis_error *error) {
    const tamis_scheduler_params params = {.flags = arms[arm].flags};
    tamis_cache *cache = NULL;
    tamis_runner *runner = NULL;
    tamis_scheduler *scheduler = NULL;
    tamis_scheduler_stats stats;
    double seconds = 0;
    draw_requests(a, rate);
    a->rows[a->n_rows] = (arrivals_row){.rate = rate, .arm = arm};
    fprintf(stderr, "%u requests a minute, %s\n", rate, arms[arm].name);
    tamis_status status = open_runner(a, &cache, &runner, error);
    if (status == TAMIS_OK) status = tamis_scheduler_create(runner, &params, &scheduler, error);
    if (status == TAMIS_OK) status = play(a, scheduler, &seconds, error);
    if (status == TAMIS_OK) {
        tamis_scheduler_get_stats(scheduler, &stats);
        summarise(a, seconds, &stats);
        a->n_rows++;
    }
    tamis_scheduler_destroy(&scheduler);
    tamis_runner_destroy(&runner);
    tamis_cache_destroy(&cache);
    return status;
}

/* ---- Saying ---------------------------------------------------------------------------------- */

static bool print(const arrivals *a) {
    static const char *const heads[] = {"requests/min", "run", "tokens/s", "first s", "p99",
                                        "next ms",      "p99", "steps",    "mixed"};
    const arrivals_flags *f = a->flags;
    cli_table table = {.columns = sizeof(heads) / sizeof(heads[0])};
    printf(
        "%s: %u requests, prompts of %u to %u tokens, %u to %u new ones, at most %u rows a step, "
        "%u running, on %s\n",
        cli_model_name(tamis_model_describe(a->model)), f->requests, f->context / 4, f->context,
        f->tokens / 2, f->tokens, f->rows, f->running, tamis_context_device(a->device)->name);
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", heads[i]);
    for (uint32_t i = 0; i < a->n_rows; i++) {
        const arrivals_row *row = &a->rows[i];
        cli_table_add(&table, "%u", row->rate);
        cli_table_add(&table, "%s", arms[row->arm].name);
        cli_table_add(&table, "%.1f", row->tokens_per_s);
        cli_table_add(&table, "%.2f", row->first_s);
        cli_table_add(&table, "%.2f", row->first_p99_s);
        cli_table_add(&table, "%.1f", row->next_s * 1e3);
        cli_table_add(&table, "%.1f", row->next_p99_s * 1e3);
        cli_table_add(&table, "%.0f", row->steps);
        cli_table_add(&table, "%.0f", row->mixed_steps);
    }
    const bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

static bool add_json_row(cJSON *rows, const arrivals_row *row) {
    const cli_number numbers[] = {{"requests_per_minute", row->rate},
                                  {"tokens_per_s", row->tokens_per_s},
                                  {"first_s", row->first_s},
                                  {"first_p99_s", row->first_p99_s},
                                  {"next_s", row->next_s},
                                  {"next_p99_s", row->next_p99_s},
                                  {"steps", row->steps},
                                  {"mixed_steps", row->mixed_steps},
                                  {"preempted", row->preempted}};
    cJSON *to = cli_json_row(rows);
    return cJSON_AddStringToObject(to, "run", arms[row->arm].name) != NULL &&
           cli_json_numbers(to, numbers, sizeof(numbers) / sizeof(numbers[0]));
}

static bool write_json(const arrivals *a, cli_output *output) {
    const arrivals_flags *f = a->flags;
    const cli_number numbers[] = {{"requests", f->requests}, {"context", f->context},
                                  {"tokens", f->tokens},     {"rows", f->rows},
                                  {"running", f->running},   {"page_size", f->page_size}};
    const char *name = bench_arrivals_command.name;
    cJSON *root = cli_json_begin(name, a->device);
    const bool begun =
        cJSON_AddStringToObject(root, "model", cli_model_name(tamis_model_describe(a->model))) &&
        cJSON_AddStringToObject(root, "dtype", tamis_dtype_name((tamis_dtype)f->dtype)) &&
        cli_json_numbers(root, numbers, sizeof(numbers) / sizeof(numbers[0]));
    cJSON *rows = begun ? cJSON_CreateArray() : NULL;
    bool made = rows != NULL;
    for (uint32_t i = 0; made && i < a->n_rows; i++)
        made = add_json_row(rows, &a->rows[i]);
    if (!made) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return cli_json_write(root, rows, output, name);
}

/* ---- The command ----------------------------------------------------------------------------- */

static tamis_status prepare(arrivals *a, tamis_error *error) {
    const arrivals_flags *f = a->flags;
    cli_random random = {1};
    tamis_status status = bench_open(f->device, &a->device, error);
    if (status == TAMIS_OK) status = cli_load(a->device, f->model, &a->model, error);
    if (status != TAMIS_OK) return status;
    const tamis_model_info *info = tamis_model_describe(a->model);
    if (f->context + f->tokens > info->context)
        return cli_error(error, TAMIS_E_ARGUMENT,
                         "--context %u and --tokens %u make %u tokens; the model states %u",
                         f->context, f->tokens, f->context + f->tokens, info->context);
    const size_t n = f->requests;
    a->prompt = calloc(f->context + n, sizeof(*a->prompt));
    a->requests = calloc(n, sizeof(*a->requests));
    a->first = calloc(n, sizeof(*a->first));
    a->next = calloc(n * f->tokens, sizeof(*a->next));
    a->rows = calloc((size_t)f->rates.count * ARMS, sizeof(*a->rows));
    if (!a->prompt || !a->requests || !a->first || !a->next || !a->rows)
        return cli_no_memory(error);
    for (size_t i = 0; i < f->context + n; i++)
        a->prompt[i] = (int32_t)(cli_random_next(&random) % info->n_vocab);
    return TAMIS_OK;
}

static int measure_and_say(arrivals *a, cli_output *output) {
    const char *name = bench_arrivals_command.name;
    tamis_error error = {0};
    tamis_status status = prepare(a, &error);
    for (uint32_t r = 0; r < a->flags->rates.count; r++)
        for (uint32_t arm = 0; arm < ARMS && status == TAMIS_OK; arm++)
            status = run_arm(a, a->flags->rates.values[r], arm, &error);
    if (status != TAMIS_OK) return cli_fail(name, "%s", error.text);
    if (!print(a)) return cli_fail(name, "out of host memory");
    return a->flags->json == NULL || write_json(a, output) ? CLI_OK : CLI_FAILED;
}

static int run_command(int argc, char *const *argv) {
    static const cli_list rates = {3, {6, 12, 24}};
    arrivals_flags f = {.requests = 24,
                        .context = 1024,
                        .tokens = 64,
                        .rows = 256,
                        .running = 8,
                        .dtype = TAMIS_F16,
                        .page_size = 16};
    const char *name = bench_arrivals_command.name;
    cli_output output = {0};
    int code = cli_parse(&bench_arrivals_command, &f, argc, argv);
    if (code >= 0) return code;
    if (f.model == NULL) {
        cli_fail(name, "--model: is missing (see %s --help)", name);
        return CLI_USAGE;
    }
    if (f.rates.count == 0) f.rates = rates;
    if (f.json != NULL && !cli_output_open(&output, name, f.json)) return CLI_FAILED;
    arrivals a = {.flags = &f};
    code = measure_and_say(&a, &output);
    free(a.prompt);
    free(a.requests);
    free(a.first);
    free(a.next);
    free(a.rows);
    tamis_model_destroy(&a.model);
    tamis_context_destroy(&a.device);
    cli_output_discard(&output);
    return code;
}
