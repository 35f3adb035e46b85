/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis bench linear`: the time of products of weight matrices with rows of activations, beside
 * the read bandwidth. */
#include "bench/bench.h"
#include "cli/commands.h"
#include "cli/json.h"
#include "cli/table.h"

#include <stdlib.h>
#include <string.h>
#include <tamis/ops.h>

#define ROWS_MAX     8192u
#define WIDTH_MAX    (1u << 20)
#define MATRICES_MAX 65536u

/* In the order of tamis_weight_type. */
#define TYPE_TEXT(name, value, text) text,
static const char *const types[] = {TAMIS_WEIGHT_LIST(TYPE_TEXT) NULL};

/* In the order of tamis_weight_layout. */
static const char *const layouts[] = {"rows", "strips", NULL};
#define LAYOUTS 2

typedef struct linear_flags {
    const char *device, *json;
    uint32_t n_in, n_out, matrices, repeat, probe;
    cli_list types, layouts, rows;
} linear_flags;

static const cli_option options[] = {
    {"--type", "T[,T]", "types of weights: {} (default all)", CLI_CHOICES,
     offsetof(linear_flags, types), 0, 0, types},
    {"--layout", "L[,L]", "how matrices lie: {} (default the one that the device reads fastest)",
     CLI_CHOICES, offsetof(linear_flags, layouts), 0, 0, layouts},
    {"--out", "N", "rows of a matrix, which are outputs (default 4096)", CLI_NUMBER,
     offsetof(linear_flags, n_out), 1, WIDTH_MAX, NULL},
    {"--in", "N", "columns, which are inputs (default 4096)", CLI_NUMBER,
     offsetof(linear_flags, n_in), 1, WIDTH_MAX, NULL},
    {"--rows", "N[,N]",
     "rows of activations in a launch: 1 in decoding, more in a prompt "
     "(default 1)",
     CLI_NUMBERS, offsetof(linear_flags, rows), 1, ROWS_MAX, NULL},
    {"--matrices", "N",
     "matrices in turn (default: as many as the read bandwidth is measured over; 1 above 8 rows)",
     CLI_NUMBER, offsetof(linear_flags, matrices), 1, MATRICES_MAX, NULL},
    {"--repeat", "N", "samples (default 9)", CLI_NUMBER, offsetof(linear_flags, repeat), 1, 1000,
     NULL},
    {"--probe", "N", "MiB to measure the read bandwidth over (default 256, on a GPU up to 1024)",
     CLI_NUMBER, offsetof(linear_flags, probe), 1, 65536, NULL},
    CLI_JSON_OPTION(linear_flags, json),
    CLI_DEVICE_OPTION(linear_flags, device),
};

static int run(int argc, char *const *argv);

const cli_command bench_linear_command = {
    "tamis bench linear",
    "products of weight matrices with rows of activations",
    "[OPTIONS]",
    "Measures products of random matrices with rows of activations: each type and layout of\n"
    "weights and number of rows in turn, round after round. A sample is the wall time of the\n"
    "products of all matrices, divided by their number. Bytes are those of the weights. Figures "
    "are medians; the share of the read bandwidth is taken within a\n"
    "round, where the bandwidth is measured before each sample.",
    "  tamis bench linear --type f16,Q8_0,Q4_1 --layout rows,strips\n"
    "  tamis bench linear --type Q4_1 --out 1536 --in 576 --rows 1,8,512 --json linear.json\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run};

/* A type and a layout of weights with a number of rows. */
typedef struct linear_arm {
    tamis_weight_type type;
    tamis_weight_layout layout;
    uint32_t n_rows, matrices;
    double *us, *shares; /* [repeat] */
    double total_us, share_of_read;
} linear_arm;

typedef struct linear_run {
    tamis_context *device;
    const linear_flags *flags;
    bool unprobed; /* no bandwidth is measured beside the samples */
    uint32_t n_arms;
    linear_arm arms[CLI_LIST_MAX * LAYOUTS * CLI_LIST_MAX];
    tamis_buffer *w, *x, *y;
    double *read; /* [n_arms * repeat] */
    double read_gb_per_s;
} linear_run;

/* ---- Measuring ------------------------------------------------------------------------------- */

static uint64_t matrix_bytes(const linear_flags *f, tamis_weight_type type) {
    return tamis_weight_bytes(type, f->n_out, f->n_in);
}

/* From one matrix to the next: GGUF's tensors begin at multiples of 32. Rows are as far apart as strips
 * where a type has these, so that both read the same memory. */
static uint64_t matrix_step(const linear_flags *f, tamis_weight_type type) {
    const uint64_t strips = tamis_weight_layout_bytes(TAMIS_WEIGHT_STRIPS, type, f->n_out, f->n_in);
    return ((strips > 0 ? strips : matrix_bytes(f, type)) + 31) / 32 * 32;
}

/* Bytes of 48 to 63: products of denormal numbers take some processors longer. */
tamis_status bench_fill_numbers(tamis_buffer *buffer, uint64_t bytes, tamis_error *error) {
    enum { PIECE = 1 << 20 };
    uint64_t *piece = malloc(PIECE);
    if (piece == NULL) return cli_no_memory(error);
    cli_random random = cli_random_of(0, 0);
    for (size_t i = 0; i < PIECE / sizeof(*piece); i++)
        piece[i] = (cli_random_next(&random) & 0x0f0f0f0f0f0f0f0full) | 0x3030303030303030ull;
    tamis_status status = TAMIS_OK;
    for (uint64_t at = 0; status == TAMIS_OK && at < bytes; at += PIECE)
        status =
            tamis_buffer_write(buffer, at, piece, bytes - at < PIECE ? bytes - at : PIECE, error);
    free(piece);
    return status;
}

static tamis_status create(linear_run *r, tamis_error *error) {
    uint64_t weights = 0, rows = 0;
    for (uint32_t a = 0; a < r->n_arms; a++) {
        const uint64_t bytes = r->arms[a].matrices * matrix_step(r->flags, r->arms[a].type);
        if (bytes > weights) weights = bytes;
        if (r->arms[a].n_rows > rows) rows = r->arms[a].n_rows;
    }
    const uint64_t x = rows * r->flags->n_in * sizeof(float);
    tamis_status status = tamis_buffer_create(r->device, weights, &r->w, error);
    if (status == TAMIS_OK) status = tamis_buffer_create(r->device, x, &r->x, error);
    if (status == TAMIS_OK)
        status =
            tamis_buffer_create(r->device, rows * r->flags->n_out * sizeof(float), &r->y, error);
    if (status == TAMIS_OK) status = bench_fill_numbers(r->w, weights, error);
    if (status == TAMIS_OK) status = bench_fill_numbers(r->x, x, error);
    return status;
}

static tamis_status sample(const linear_run *r, const linear_arm *arm, double *us,
                           tamis_error *error) {
    const linear_flags *f = r->flags;
    tamis_linear_params p = {.x = {.buffer = r->x, .dtype = TAMIS_F32},
                             .y = {.buffer = r->y, .dtype = TAMIS_F32},
                             .w = {.buffer = r->w, .type = arm->type, .layout = arm->layout},
                             .n_rows = arm->n_rows,
                             .n_in = f->n_in,
                             .n_out = f->n_out};
    tamis_status status = tamis_context_wait(r->device, error);
    const double start = cli_seconds();
    for (uint32_t m = 0; status == TAMIS_OK && m < arm->matrices; m++) {
        p.w.offset = m * matrix_step(f, arm->type);
        status = tamis_op_linear(r->device, &p, error);
    }
    if (status == TAMIS_OK) status = tamis_context_wait(r->device, error);
    *us = (cli_seconds() - start) * 1e6 / arm->matrices;
    return status;
}

static double gb_per_s(const linear_run *r, const linear_arm *arm, double us) {
    return (double)matrix_bytes(r->flags, arm->type) / us * 1e-3;
}

static tamis_status probe(linear_run *r, double *gb_per_s, tamis_error *error) {
    return r->unprobed ? TAMIS_OK
                       : bench_read_bandwidth(r->device, r->flags->probe, gb_per_s, error);
}

static tamis_status measure(linear_run *r, tamis_error *error) {
    const uint32_t repeat = r->flags->repeat;
    tamis_status status = TAMIS_OK;
    for (uint32_t a = 0; status == TAMIS_OK && a < r->n_arms; a++) /* compiles */
        status = sample(r, &r->arms[a], &r->arms[a].total_us, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < repeat; i++)
        for (uint32_t a = 0; status == TAMIS_OK && a < r->n_arms; a++) {
            linear_arm *arm = &r->arms[a];
            double *read = &r->read[i * r->n_arms + a];
            status = probe(r, read, error);
            if (status == TAMIS_OK) status = sample(r, arm, &arm->us[i], error);
            arm->shares[i] = *read > 0 ? gb_per_s(r, arm, arm->us[i]) / *read : 0;
        }
    if (status != TAMIS_OK) return status;
    for (uint32_t a = 0; a < r->n_arms; a++) {
        r->arms[a].total_us = bench_median(r->arms[a].us, repeat);
        r->arms[a].share_of_read = bench_median(r->arms[a].shares, repeat);
    }
    r->read_gb_per_s = bench_median(r->read, repeat * r->n_arms);
    return TAMIS_OK;
}

/* ---- Saying ---------------------------------------------------------------------------------- */

/* Multiplications and additions, 1e9 a second. */
static double gflops(const linear_run *r, const linear_arm *arm) {
    return 2.0 * arm->n_rows * r->flags->n_in * r->flags->n_out / arm->total_us * 1e-3;
}

static bool print(const linear_run *r) {
    static const char *const head[] = {"type", "layout", "rows",    "matrices", "MB",
                                       "us",   "GB/s",   "of read", "GFLOP/s"};
    const tamis_device_info *device = tamis_context_device(r->device);
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    printf("%u outputs of %u inputs; medians of %u samples on %s (%s); read bandwidth %.2f GB/s\n",
           r->flags->n_out, r->flags->n_in, r->flags->repeat, device->id, device->name,
           r->read_gb_per_s);
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for (uint32_t a = 0; a < r->n_arms; a++) {
        const linear_arm *arm = &r->arms[a];
        cli_table_add(&table, "%s", types[arm->type]);
        cli_table_add(&table, "%s", layouts[arm->layout]);
        cli_table_add(&table, "%u", arm->n_rows);
        cli_table_add(&table, "%u", arm->matrices);
        cli_table_add(&table, "%.2f", (double)matrix_bytes(r->flags, arm->type) * 1e-6);
        cli_table_add(&table, "%.1f", arm->total_us);
        cli_table_add(&table, "%.2f", gb_per_s(r, arm, arm->total_us));
        cli_table_add(&table, "%.3f", arm->share_of_read);
        cli_table_add(&table, "%.1f", gflops(r, arm));
    }
    const bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

static bool write_json(const linear_run *r, cli_output *output) {
    const cli_number settings[] = {{"threads", tamis_context_device(r->device)->compute_units},
                                   {"outputs", r->flags->n_out},
                                   {"inputs", r->flags->n_in},
                                   {"samples", r->flags->repeat},
                                   {"read_gb_per_s", r->read_gb_per_s}};
    cJSON *root = cli_json_begin(bench_linear_command.name, r->device);
    cJSON *rows = cJSON_CreateArray();
    bool made =
        rows != NULL && cli_json_numbers(root, settings, sizeof(settings) / sizeof(settings[0]));
    for (uint32_t a = 0; made && a < r->n_arms; a++) {
        const linear_arm *arm = &r->arms[a];
        const cli_number numbers[] = {{"rows", arm->n_rows},
                                      {"matrices", arm->matrices},
                                      {"bytes", (double)matrix_bytes(r->flags, arm->type)},
                                      {"us", arm->total_us},
                                      {"gb_per_s", gb_per_s(r, arm, arm->total_us)},
                                      {"share_of_read", arm->share_of_read},
                                      {"gflop_per_s", gflops(r, arm)}};
        cJSON *row = cli_json_row(rows);
        made = cJSON_AddStringToObject(row, "type", types[arm->type]) != NULL &&
               cJSON_AddStringToObject(row, "layout", layouts[arm->layout]) != NULL &&
               cli_json_numbers(row, numbers, sizeof(numbers) / sizeof(numbers[0]));
    }
    if (!made) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return cli_json_write(root, rows, output, bench_linear_command.name);
}

/* ---- The command ----------------------------------------------------------------------------- */

static bool check_sizes(const linear_flags *f) {
    for (uint32_t t = 0; t < f->types.count; t++) {
        const tamis_weight_type type = (tamis_weight_type)f->types.values[t];
        if (matrix_bytes(f, type) == 0) {
            cli_fail(bench_linear_command.name, "--in %u: %s has blocks of %u elements", f->n_in,
                     types[type], tamis_weight_block(type));
            return false;
        }
        for (uint32_t l = 0; l < f->layouts.count; l++) {
            const tamis_weight_layout layout = (tamis_weight_layout)f->layouts.values[l];
            if (tamis_weight_layout_bytes(layout, type, f->n_out, f->n_in) > 0) continue;
            cli_fail(bench_linear_command.name, "--layout %s: %s weights have no blocks",
                     layouts[layout], types[type]);
            return false;
        }
    }
    return true;
}

static bool add_arm(linear_run *r, tamis_weight_type type, tamis_weight_layout layout,
                    uint32_t n_rows) {
    const linear_flags *f = r->flags;
    const uint64_t probe = bench_probe_bytes(r->device, f->probe) / matrix_step(f, type);
    linear_arm *arm = &r->arms[r->n_arms++];
    uint32_t matrices = f->matrices;
    if (matrices == 0 && n_rows <= TAMIS_FEW_ROWS)
        matrices = probe < MATRICES_MAX ? (uint32_t)probe : MATRICES_MAX;
    *arm = (linear_arm){.type = type,
                        .layout = layout,
                        .n_rows = n_rows,
                        .matrices = matrices > 0 ? matrices : 1,
                        .us = calloc(f->repeat, sizeof(double)),
                        .shares = calloc(f->repeat, sizeof(double))};
    return arm->us != NULL && arm->shares != NULL;
}

static bool list_arms(linear_run *r) {
    const linear_flags *f = r->flags;
    bool added = true;
    for (uint32_t t = 0; t < f->types.count; t++) {
        const tamis_weight_type type = (tamis_weight_type)f->types.values[t];
        const cli_list best = {1, {tamis_context_weight_layout(r->device, type)}};
        const cli_list *of = f->layouts.count > 0 ? &f->layouts : &best;
        for (uint32_t i = 0; i < f->rows.count; i++)
            for (uint32_t l = 0; added && l < of->count; l++)
                added = add_arm(r, type, (tamis_weight_layout)of->values[l], f->rows.values[i]);
    }
    r->read = calloc((size_t)r->n_arms * f->repeat, sizeof(double));
    return added && r->read != NULL;
}

static int measure_and_say(linear_run *r, cli_output *output) {
    const char *name = bench_linear_command.name;
    tamis_error error = {0};
    tamis_status status = bench_open(r->flags->device, &r->device, &error);
    if (status == TAMIS_OK && !list_arms(r)) return cli_fail(name, "out of host memory");
    if (status == TAMIS_OK) status = create(r, &error);
    if (status == TAMIS_OK) status = measure(r, &error);
    if (status != TAMIS_OK) return cli_fail(name, "%s", error.text);
    if (!print(r)) return cli_fail(name, "out of host memory");
    return r->flags->json == NULL || write_json(r, output) ? CLI_OK : CLI_FAILED;
}

static void destroy(linear_run *r) {
    for (uint32_t a = 0; a < r->n_arms; a++) {
        free(r->arms[a].us);
        free(r->arms[a].shares);
    }
    free(r->read);
    tamis_buffer_destroy(&r->w);
    tamis_buffer_destroy(&r->x);
    tamis_buffer_destroy(&r->y);
    tamis_context_destroy(&r->device);
}

static tamis_status measure_one(linear_run *r, linear_flags *f, bench_product *p,
                                tamis_error *error) {
    double us = 0;
    if (!list_arms(r)) return cli_no_memory(error);
    tamis_status status = create(r, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < 2; i++) /* the first one compiles */
        status = sample(r, &r->arms[0], &us, error);
    if (status != TAMIS_OK) return status;
    p->sample_s = us * 1e-6 * r->arms[0].matrices;
    if (!bench_is_affordable(p->most_s, p->sample_s)) return TAMIS_OK;
    f->repeat = bench_affordable(p->most_s, p->sample_s, f->repeat);
    return measure(r, error);
}

tamis_status bench_measure_product(tamis_context *device, bench_product *p, tamis_error *error) {
    linear_flags f = {.n_in = p->n_in,
                      .n_out = p->n_out,
                      .repeat = p->repeat,
                      .types = {1, {p->type}},
                      .rows = {1, {p->n_rows}}};
    linear_run r = {.device = device, .flags = &f, .unprobed = true};
    tamis_status status = measure_one(&r, &f, p, error);
    if (status == TAMIS_OK && bench_is_affordable(p->most_s, p->sample_s)) {
        p->us = bench_spread_of(r.arms[0].us, f.repeat);
        p->samples = f.repeat;
        p->bytes = (double)matrix_bytes(&f, p->type);
    }
    r.device = NULL; /* the caller's */
    destroy(&r);
    return status;
}

static int run(int argc, char *const *argv) {
    linear_flags f = {.n_in = 4096,
                      .n_out = 4096,
                      .repeat = 9,
                      .rows = {1, {1}}};
    cli_output output = {0};
    _Static_assert(sizeof types / sizeof *types - 1 <= CLI_LIST_MAX, "a list of all types");
    for (uint32_t type = 0; types[type] != NULL; type++)
        f.types.values[f.types.count++] = type;
    int code = cli_parse(&bench_linear_command, &f, argc, argv);
    if (code >= 0) return code;
    if (!check_sizes(&f)) return CLI_USAGE;
    if (f.json != NULL && !cli_output_open(&output, bench_linear_command.name, f.json))
        return CLI_FAILED;
    linear_run r = {.flags = &f};
    code = measure_and_say(&r, &output);
    destroy(&r);
    cli_output_discard(&output);
    return code;
}
