/* SPDX-License-Identifier: Apache-2.0 */
/* Efficiencies of `tamis bench portability`, and its output: tables, and the same figures as JSON. */
#include "bench/portability.h"
#include "cli/json.h"
#include "cli/table.h"

#include <math.h>
#include <string.h>

/* ---- Efficiencies ---------------------------------------------------------------------------- */

static double gflop_per_s(const portability_cell *cell) {
    return cell->flop > 0 ? cell->flop / cell->us.median * 1e-3 : 0;
}

/* What a platform's cell adds to the ceiling. */
static double reached(const portability_cell *cell, portability_ceiling ceiling) {
    if (cell->state != PORTABILITY_RAN) return 0;
    if (ceiling == PORTABILITY_PAGES) return cell->limit_gb_per_s;
    return ceiling == PORTABILITY_READ ? cell->read_gb_per_s : gflop_per_s(cell);
}

/* The most that any driver of the hardware reached: bandwidths beside this problem, since they change
 * from minute to minute; arithmetic in any problem that is judged by it. */
static double ceiling_of(const portability *p, uint32_t problem, uint32_t platform) {
    const portability_ceiling ceiling = p->problems[problem].ceiling;
    double most = 0;
    for (uint32_t i = 0; i < p->n_problems; i++) {
        const bool counts =
            ceiling == PORTABILITY_ARITHMETIC ? p->problems[i].ceiling == ceiling : i == problem;
        for (uint32_t j = 0; counts && j < p->n_platforms; j++) {
            const double rate = reached(&p->cells[i][j], ceiling);
            if (portability_same_hardware(p, platform, j) && rate > most) most = rate;
        }
    }
    return most;
}

static double best_us(const portability *p, uint32_t problem, uint32_t platform) {
    double best = p->cells[problem][platform].us.median;
    for (uint32_t j = 0; j < p->n_platforms; j++) {
        const portability_cell *cell = &p->cells[problem][j];
        if (cell->state == PORTABILITY_RAN && portability_same_hardware(p, platform, j) &&
            cell->us.median < best)
            best = cell->us.median;
    }
    return best;
}

void portability_rate(portability *p) {
    for (uint32_t i = 0; i < p->n_problems; i++)
        for (uint32_t j = 0; j < p->n_platforms; j++) {
            portability_cell *cell = &p->cells[i][j];
            if (cell->state != PORTABILITY_RAN) continue;
            const double ceiling = ceiling_of(p, i, j);
            const double rate = p->problems[i].ceiling == PORTABILITY_ARITHMETIC
                                    ? gflop_per_s(cell)
                                    : cell->bytes / cell->us.median * 1e-3;
            cell->architectural = ceiling > 0 ? rate / ceiling : 0;
            cell->application = best_us(p, i, j) / cell->us.median;
        }
}

double portability_mean(const portability *p, uint32_t problem, bool architectural, uint32_t *n) {
    double sum = 0;
    *n = 0;
    for (uint32_t j = 0; j < p->n_platforms; j++) {
        const portability_cell *cell = &p->cells[problem][j];
        const double share = architectural ? cell->architectural : cell->application;
        if (cell->state == PORTABILITY_NOT_RUN) continue;
        if (cell->state == PORTABILITY_RAN && share <= 0) continue; /* unknown */
        ++*n;
        sum += share > 0 ? 1 / (share < 1 ? share : 1) : INFINITY;
    }
    return *n > 0 ? *n / sum : 0;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static const char *const states[] = {"ran", "not run", "cannot run"};
static const char *const ceilings[PORTABILITY_CEILINGS] = {"page-read limit", "read bandwidth",
                                                           "best arithmetic"};

static void add_heads(cli_table *table, const char *const *heads) {
    for (size_t i = 0; i < table->columns; i++)
        cli_table_add(table, "%s", heads[i]);
}

static void add_share(cli_table *table, double share) {
    if (share > 0)
        cli_table_add(table, "%.3f", share);
    else
        cli_table_add(table, "-");
}

static void add_cell(cli_table *table, const portability *p, uint32_t i, uint32_t j) {
    const portability_cell *cell = &p->cells[i][j];
    cli_table_add(table, "%s", p->problems[i].name);
    cli_table_add(table, "%s %s", p->platforms[j].info.id, p->platforms[j].form);
    if (cell->state != PORTABILITY_RAN) {
        cli_table_add(table, "%s", states[cell->state]);
        for (size_t column = 3; column < table->columns; column++)
            cli_table_add(table, "-");
        return;
    }
    cli_table_add(table, "%.1f", cell->us.median);
    cli_table_add(table, "%.1f", cell->us.low);
    cli_table_add(table, "%.1f", cell->us.high);
    cli_table_add(table, "%u", cell->samples);
    add_share(table, cell->architectural);
    add_share(table, cell->application);
}

static bool print_cells(const portability *p) {
    static const char *const heads[] = {"problem", "platform", "us",           "quartiles",
                                        "",        "samples",  "architecture", "application"};
    cli_table table = {.columns = sizeof(heads) / sizeof(heads[0])};
    add_heads(&table, heads);
    for (uint32_t i = 0; i < p->n_problems; i++)
        for (uint32_t j = 0; j < p->n_platforms; j++)
            add_cell(&table, p, i, j);
    const bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

static void add_mean(cli_table *table, const portability *p, uint32_t problem, bool architectural) {
    uint32_t n;
    const double mean = portability_mean(p, problem, architectural, &n);
    if (n > 0)
        cli_table_add(table, "%.3f", mean);
    else
        cli_table_add(table, "-");
}

static bool print_means(const portability *p) {
    static const char *const heads[] = {"problem", "platforms", "architecture", "application",
                                        "ceiling"};
    cli_table table = {.columns = sizeof(heads) / sizeof(heads[0])};
    add_heads(&table, heads);
    for (uint32_t i = 0; i < p->n_problems; i++) {
        uint32_t n;
        portability_mean(p, i, false, &n);
        cli_table_add(&table, "%s", p->problems[i].name);
        cli_table_add(&table, "%u", n);
        add_mean(&table, p, i, true);
        add_mean(&table, p, i, false);
        cli_table_add(&table, "%s", ceilings[p->problems[i].ceiling]);
    }
    const bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

static void print_reasons(const portability *p) {
    for (uint32_t i = 0; i < p->n_problems; i++)
        for (uint32_t j = 0; j < p->n_platforms; j++) {
            const portability_cell *cell = &p->cells[i][j];
            if (cell->state != PORTABILITY_RAN)
                printf("%s on %s %s: %s: %s\n", p->problems[i].name, p->platforms[j].info.id,
                       p->platforms[j].form, states[cell->state], cell->reason);
        }
}

bool portability_print(const portability *p) {
    for (uint32_t j = 0; j < p->n_platforms; j++) {
        const portability_platform *platform = &p->platforms[j];
        printf("%s %s: %s, driver %s, on %s\n", platform->info.id, platform->form,
               platform->info.name, platform->info.driver, platform->hardware);
    }
    for (uint32_t i = 0; i < p->n_refused; i++)
        printf("no platform: %s\n", p->refused[i]);
    putchar('\n');
    if (!print_cells(p)) return false;
    print_reasons(p);
    printf("\nPennycook's metric, the harmonic mean of efficiencies over the platforms on which a "
           "problem was run:\n");
    return print_means(p);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* 0, which nothing measures, becomes null. */
static bool add_measured(cJSON *to, const char *name, double value) {
    return (value > 0 ? cJSON_AddNumberToObject(to, name, value)
                      : cJSON_AddNullToObject(to, name)) != NULL;
}

static bool add_figures(cJSON *row, const portability_cell *cell) {
    const cli_number numbers[] = {{"us", cell->us.median},
                                  {"low_us", cell->us.low},
                                  {"high_us", cell->us.high},
                                  {"samples", cell->samples},
                                  {"bytes", cell->bytes}};
    if (cell->state != PORTABILITY_RAN)
        return cJSON_AddStringToObject(row, "reason", cell->reason) != NULL;
    return cli_json_numbers(row, numbers, sizeof(numbers) / sizeof(numbers[0])) &&
           add_measured(row, "flop", cell->flop) &&
           add_measured(row, "read_gb_per_s", cell->read_gb_per_s) &&
           add_measured(row, "limit_gb_per_s", cell->limit_gb_per_s) &&
           add_measured(row, "architectural", cell->architectural) &&
           add_measured(row, "application", cell->application);
}

static bool add_row(cJSON *rows, const portability *p, uint32_t i, uint32_t j) {
    const portability_platform *platform = &p->platforms[j];
    const portability_cell *cell = &p->cells[i][j];
    cJSON *row = cli_json_row(rows);
    return cJSON_AddStringToObject(row, "problem", p->problems[i].name) != NULL &&
           cJSON_AddStringToObject(row, "class", p->problems[i].class_name) != NULL &&
           cJSON_AddStringToObject(row, "ceiling", ceilings[p->problems[i].ceiling]) != NULL &&
           cJSON_AddStringToObject(row, "hardware", platform->hardware) != NULL &&
           cJSON_AddStringToObject(row, "backend", platform->info.backend) != NULL &&
           cJSON_AddStringToObject(row, "device_name", platform->info.name) != NULL &&
           cJSON_AddStringToObject(row, "driver", platform->info.driver) != NULL &&
           cJSON_AddNumberToObject(row, "units", platform->info.compute_units) != NULL &&
           cJSON_AddStringToObject(row, "form", platform->form) != NULL &&
           cJSON_AddStringToObject(row, "state", states[cell->state]) != NULL &&
           add_figures(row, cell);
}

static bool add_refused(cJSON *root, const portability *p) {
    cJSON *refused = cJSON_AddArrayToObject(root, "no_platforms");
    bool added = refused != NULL;
    for (uint32_t i = 0; added && i < p->n_refused; i++) {
        cJSON *line = cJSON_CreateString(p->refused[i]);
        added = cJSON_AddItemToArray(refused, line);
        if (!added) cJSON_Delete(line);
    }
    return added;
}

bool portability_write_json(const portability *p, bool quick, cli_output *output) {
    const char *name = bench_portability_command.name;
    cJSON *root = cli_json_begin(name, NULL);
    cJSON *rows = cJSON_AddBoolToObject(root, "quick", quick) && add_refused(root, p)
                      ? cJSON_CreateArray()
                      : NULL;
    bool made = rows != NULL;
    for (uint32_t i = 0; i < p->n_problems; i++)
        for (uint32_t j = 0; made && j < p->n_platforms; j++)
            made = add_row(rows, p, i, j);
    if (!made) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return cli_json_write(root, rows, output, name);
}
