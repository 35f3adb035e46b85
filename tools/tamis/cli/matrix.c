/* SPDX-License-Identifier: Apache-2.0 */
/* Which evictions, selections, sliding windows, backends and dtypes work together: the library is asked
 * to make a plan for each combination. */
#define _POSIX_C_SOURCE 200809L /* strdup */
#include "cli/devices.h"
#include "cli/json.h"
#include "cli/policies.h"
#include "cli/table.h"

#include <stdlib.h>
#include <string.h>

#define BACKENDS_MAX                   5
#define COLUMNS_MAX                    16 /* selections, and one more */
#define WAYS_MAX                       96 /* kinds of eviction, alone and with each of their options */
#define COUNT_DTYPE(name, value, text) +1
#define N_DTYPES                       (0 TAMIS_DTYPE_LIST(COUNT_DTYPE))
#define PLACES_MAX                     (BACKENDS_MAX * N_DTYPES)
_Static_assert(PLACES_MAX <= 64, "a place is a bit of a uint64_t");
#define NOTES_MAX 128

/* Plans of this size: budgets are below it, so that nothing is short-circuited. */
#define CONTEXT       256u
#define EVICT_BUDGET  64u
#define SELECT_BUDGET 128u
#define WINDOW        96u

/* A backend and, if one can be used, its first usable device. */
typedef struct place {
    const tamis_device_info *info;
    bool usable;
} place;

/* How a plan reads: its selection and, in the last column, a sliding window. */
typedef struct column {
    tamis_selection selection;
    uint32_t sliding_window;
} column;

/* Why a cell is refused, on which (backend, dtype) of those asked. */
typedef struct note {
    const char *reason;
    uint64_t places;
} note;

typedef struct matrix {
    const char *command;
    place places[BACKENDS_MAX];
    uint32_t n_places, n_ways, n_columns, n_notes;
    tamis_eviction ways[WAYS_MAX];
    column columns[COLUMNS_MAX];
    char *reasons[WAYS_MAX][COLUMNS_MAX][PLACES_MAX]; /* NULL: it works, or was not asked */
    note notes[NOTES_MAX];
} matrix;

/* ---- What is asked --------------------------------------------------------------------------- */

static bool is_known(const char *name) {
    return strcmp(name, "unknown") != 0;
}

static bool add_way(matrix *m, const tamis_eviction *way) {
    if (m->n_ways == WAYS_MAX) return false;
    m->ways[m->n_ways++] = *way;
    return true;
}

/* Every kind alone, then with each option that it has, then between steps alone if it acts in each. */
static bool list_ways(matrix *m) {
    bool listed = true;
    for (int kind = 0; is_known(tamis_eviction_name((tamis_eviction_kind)kind)); kind++) {
        tamis_eviction way;
        tamis_eviction_default((tamis_eviction_kind)kind, &way);
        if (kind != TAMIS_EVICT_NONE) way.budget = EVICT_BUDGET;
        listed = listed && add_way(m, &way);
        for (uint32_t i = 0; tamis_eviction_option_name(i) != NULL && kind != TAMIS_EVICT_NONE;
             i++) {
            way.options = 1u << i;
            if (tamis_eviction_check(&way, NULL) == TAMIS_OK) listed = listed && add_way(m, &way);
        }
        way.options = 0;
        if (way.every == 1) {
            way.every = 0;
            listed = listed && add_way(m, &way);
        }
    }
    return listed;
}

/* "h2o", "h2o+rerank", "h2o, every 0". */
typedef struct way_text {
    char text[176];
} way_text;
static way_text name_of(const tamis_eviction *way) {
    tamis_eviction plain;
    way_text out;
    tamis_eviction_default(way->kind, &plain);
    snprintf(out.text, sizeof(out.text), "%s%s", cli_eviction_name(way).text,
             way->every == plain.every ? "" : ", every 0");
    return out;
}

/* Every selection, then full under a sliding window. */
static bool list_columns(matrix *m) {
    for (int kind = 0; is_known(tamis_selection_name((tamis_selection_kind)kind)); kind++) {
        if (m->n_columns + 1 == COLUMNS_MAX) return false;
        tamis_selection *selection = &m->columns[m->n_columns++].selection;
        tamis_selection_default((tamis_selection_kind)kind, selection);
        selection->budget = SELECT_BUDGET;
    }
    m->columns[m->n_columns].sliding_window = WINDOW;
    tamis_selection_default(TAMIS_SELECT_FULL, &m->columns[m->n_columns++].selection);
    return true;
}

/* The first usable device of every backend, or its first entry, which says why there is none. */
static bool list_places(matrix *m, const tamis_device_info *infos, size_t count,
                        const char *device) {
    for (size_t i = 0; i < count; i++) {
        uint32_t at = 0;
        if (!devices_is_meant(&infos[i], device)) continue;
        while (at < m->n_places && strcmp(m->places[at].info->backend, infos[i].backend) != 0)
            at++;
        if (at == BACKENDS_MAX) return false;
        if (at == m->n_places) m->places[m->n_places++] = (place){.info = &infos[i]};
        if (infos[i].usable && !m->places[at].usable) m->places[at] = (place){&infos[i], true};
    }
    return true;
}

/* ---- Asking ---------------------------------------------------------------------------------- */

/* The library's answer for one cell: *reason is NULL if it makes the plan, else the reason of the
 * refusal. An error that is not a refusal is returned. */
static tamis_status ask(tamis_cache *cache, const tamis_eviction *way, const column *reads,
                        char **reason, tamis_error *error) {
    const tamis_plan_params params = {.selection = reads->selection,
                                      .eviction = *way,
                                      .attention.sliding_window = reads->sliding_window,
                                      .max_rows = EVICT_BUDGET,
                                      .max_context = CONTEXT};
    tamis_plan *plan = NULL;
    tamis_status status = tamis_plan_create(cache, &params, &plan, error);
    tamis_plan_destroy(&plan);
    if (status != TAMIS_E_ARGUMENT && status != TAMIS_E_UNSUPPORTED) return status;
    *reason = strdup(error->text);
    return *reason != NULL ? TAMIS_OK : cli_no_memory(error);
}

/* All cells of a backend and a dtype. */
static bool ask_place(matrix *m, tamis_context *context, uint32_t at, tamis_dtype dtype,
                      tamis_error *error) {
    tamis_cache_params shape = {.n_layers = 2,
                                .n_heads = 4,
                                .n_kv_heads = 2,
                                .head_dim = 64,
                                .dtype = dtype,
                                .capacity_tokens = CONTEXT};
    for (uint32_t w = 0; w < m->n_ways; w++) {
        tamis_cache *cache = NULL;
        shape.planes = tamis_eviction_planes(&m->ways[w]) | TAMIS_PLANE_POSITIONS;
        bool asked = tamis_cache_create(context, &shape, &cache, error) == TAMIS_OK;
        for (uint32_t s = 0; asked && s < m->n_columns; s++)
            asked = ask(cache, &m->ways[w], &m->columns[s],
                        &m->reasons[w][s][at * N_DTYPES + dtype], error) == TAMIS_OK;
        tamis_cache_destroy(&cache);
        if (!asked) return false;
    }
    return true;
}

static bool ask_all(matrix *m, tamis_error *error) {
    bool asked = true;
    for (uint32_t at = 0; asked && at < m->n_places; at++) {
        const tamis_context_params params = {.device = m->places[at].info->id};
        tamis_context *context = NULL;
        if (!m->places[at].usable) continue;
        asked = tamis_context_create(&params, &context, error) == TAMIS_OK;
        for (int dtype = 0; asked && dtype < N_DTYPES; dtype++)
            asked = ask_place(m, context, at, (tamis_dtype)dtype, error);
        tamis_context_destroy(&context);
    }
    return asked;
}

/* ---- Saying ---------------------------------------------------------------------------------- */

/* Bits of all (backend, dtype) that were asked. */
static uint64_t asked_places(const matrix *m) {
    uint64_t all = 0;
    for (uint32_t at = 0; at < m->n_places; at++)
        if (m->places[at].usable) all |= ((UINT64_C(1) << N_DTYPES) - 1) << at * N_DTYPES;
    return all;
}

/* The number of a note, from 1; one that is new is added. 0: there is no room. */
static uint32_t number_of(matrix *m, const char *reason, uint64_t places) {
    for (uint32_t i = 0; i < m->n_notes; i++)
        if (m->notes[i].places == places && strcmp(m->notes[i].reason, reason) == 0) return i + 1;
    if (m->n_notes == NOTES_MAX) return 0;
    m->notes[m->n_notes++] = (note){reason, places};
    return m->n_notes;
}

typedef struct cell {
    char text[64];
} cell;

/* "yes"; "no [1]"; "in part [2]", if it works on some places. */
static cell cell_of(matrix *m, uint32_t w, uint32_t s) {
    char *const *reasons = m->reasons[w][s];
    uint64_t refused = 0;
    cell out = {"yes"};
    for (uint32_t i = 0; i < m->n_places * N_DTYPES; i++)
        if (reasons[i] != NULL) refused |= UINT64_C(1) << i;
    if (refused == 0) return out;
    snprintf(out.text, sizeof(out.text), refused == asked_places(m) ? "no" : "in part");
    uint64_t told = 0;
    for (uint32_t i = 0; i < m->n_places * N_DTYPES; i++) {
        uint64_t same = 0;
        size_t used = strlen(out.text);
        for (uint32_t j = i; reasons[i] != NULL && j < m->n_places * N_DTYPES; j++)
            if (reasons[j] != NULL && strcmp(reasons[i], reasons[j]) == 0) same |= UINT64_C(1) << j;
        if (same == 0 || told >> i & 1) continue;
        told |= same;
        snprintf(out.text + used, sizeof(out.text) - used, " [%u]", number_of(m, reasons[i], same));
    }
    return out;
}

/* Whether a way gives the same row as its kind alone; then it has no row of its own. */
static bool is_as_its_kind(const matrix *m, uint32_t w) {
    uint32_t base = w;
    while (base > 0 && m->ways[base - 1].kind == m->ways[w].kind)
        base--;
    for (uint32_t s = 0; s < m->n_columns; s++)
        for (uint32_t i = 0; i < m->n_places * N_DTYPES; i++) {
            const char *mine = m->reasons[w][s][i], *its = m->reasons[base][s][i];
            if ((mine == NULL) != (its == NULL) || (mine != NULL && strcmp(mine, its) != 0))
                return false;
        }
    return w != base;
}

static void fill_table(matrix *m, cli_table *table) {
    cli_table_add(table, "evict");
    for (uint32_t s = 0; s < m->n_columns; s++)
        cli_table_add(table, "%s%s", tamis_selection_name(m->columns[s].selection.kind),
                      m->columns[s].sliding_window > 0 ? ", sliding window" : "");
    for (uint32_t w = 0; w < m->n_ways; w++) {
        if (is_as_its_kind(m, w)) continue;
        cli_table_add(table, "%s", name_of(&m->ways[w]).text);
        for (uint32_t s = 0; s < m->n_columns; s++)
            cli_table_add(table, "%s", cell_of(m, w, s).text);
    }
}

/* "f32, f16 and q8, on " */
static void print_dtypes(void) {
    for (size_t i = 0; i < N_DTYPES; i++)
        printf("%s%s", i == 0 ? "" : i + 1 < N_DTYPES ? ", " : " and ", cli_dtypes[i]);
    printf(", on ");
}

/* "cuda, opencl, reference", and the backends without a usable device. */
static void print_places(const matrix *m) {
    const char *between = "";
    for (uint32_t at = 0; at < m->n_places; at++)
        if (m->places[at].usable) {
            printf("%s%s", between, m->places[at].info->backend);
            between = ", ";
        }
    for (uint32_t at = 0; at < m->n_places; at++)
        if (!m->places[at].usable)
            printf("; not %s: %s", m->places[at].info->backend, m->places[at].info->reason);
}

/* "[1] cuda f16, cuda bf16: reason"; places only if they are not all. */
static void print_notes(const matrix *m, const char *bullet) {
    for (uint32_t n = 0; n < m->n_notes; n++) {
        const note *told = &m->notes[n];
        const char *between = " ";
        printf("%s[%u]", bullet, n + 1);
        for (uint32_t i = 0; told->places != asked_places(m) && i < PLACES_MAX; i++)
            if (told->places >> i & 1) {
                printf("%s%s %s", between, m->places[i / N_DTYPES].info->backend,
                       cli_dtypes[i % N_DTYPES]);
                between = ", ";
            }
        printf("%s %s\n", *between == ',' ? ":" : "", told->reason);
    }
}

static bool print_text(matrix *m, cli_table *table) {
    printf("plans of each eviction under each selection, with ");
    print_dtypes();
    print_places(m);
    printf("\n");
    if (!cli_table_print(table)) return false;
    print_notes(m, "");
    return true;
}

static void print_markdown(const matrix *m, const cli_table *table) {
    for (size_t i = 0; i < table->cells; i++) {
        printf("| %s %s", table->cell[i], (i + 1) % table->columns == 0 ? "|\n" : "");
        if (i + 1 != table->columns) continue;
        for (size_t c = 0; c < table->columns; c++)
            printf("|---");
        printf("|\n");
    }
    printf("\nEach with ");
    print_dtypes();
    print_places(m);
    printf(". An option without a row of its own can be combined with the\n"
           "same selections as its eviction without the option.\n");
    if (m->n_notes > 0) printf("\n");
    print_notes(m, "- ");
}

static bool print(matrix *m, bool markdown) {
    cli_table table = {.columns = 1 + m->n_columns};
    fill_table(m, &table);
    bool printed = !table.failed;
    if (printed && markdown)
        print_markdown(m, &table);
    else if (printed)
        printed = print_text(m, &table);
    cli_table_free(&table);
    return printed;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static bool add_cell(cJSON *cells, const matrix *m, uint32_t w, uint32_t s, uint32_t i) {
    const tamis_device_info *info = m->places[i / N_DTYPES].info;
    const char *reason = m->reasons[w][s][i];
    cJSON *row = cli_json_row(cells);
    return cJSON_AddStringToObject(row, "evict", cli_eviction_name(&m->ways[w]).text) != NULL &&
           cJSON_AddNumberToObject(row, "every", m->ways[w].every) != NULL &&
           cJSON_AddStringToObject(row, "select",
                                   tamis_selection_name(m->columns[s].selection.kind)) != NULL &&
           cJSON_AddNumberToObject(row, "sliding_window", m->columns[s].sliding_window) != NULL &&
           cJSON_AddStringToObject(row, "backend", info->backend) != NULL &&
           cJSON_AddStringToObject(row, "device", info->id) != NULL &&
           cJSON_AddStringToObject(row, "dtype", cli_dtypes[i % N_DTYPES]) != NULL &&
           cJSON_AddBoolToObject(row, "works", reason == NULL) != NULL &&
           (reason == NULL || cJSON_AddStringToObject(row, "reason", reason) != NULL);
}

/* Backends without a usable device, with the reason. */
static bool add_absent(cJSON *root, const matrix *m) {
    cJSON *absent = cJSON_AddObjectToObject(root, "absent");
    bool added = absent != NULL;
    for (uint32_t at = 0; added && at < m->n_places; at++) {
        const tamis_device_info *info = m->places[at].info;
        if (!m->places[at].usable)
            added = cJSON_AddStringToObject(absent, info->backend, info->reason) != NULL;
    }
    return added;
}

static cJSON *list_cells(const matrix *m) {
    cJSON *cells = cJSON_CreateArray();
    bool made = cells != NULL;
    for (uint32_t w = 0; w < m->n_ways; w++)
        for (uint32_t s = 0; s < m->n_columns; s++)
            for (uint32_t i = 0; made && i < m->n_places * N_DTYPES; i++)
                if (m->places[i / N_DTYPES].usable) made = add_cell(cells, m, w, s, i);
    if (made) return cells;
    cJSON_Delete(cells);
    return NULL;
}

static bool write_json(const matrix *m, cli_output *output) {
    cJSON *root = cli_json_begin(m->command, NULL);
    cJSON *cells = add_absent(root, m) ? list_cells(m) : NULL;
    return cli_json_write(root, cells, output, m->command);
}

/* ---- The command ----------------------------------------------------------------------------- */

static int ask_and_say(matrix *m, const char *device, bool markdown, cli_output *output) {
    tamis_error error = {0};
    if (m->n_places == 0) return cli_fail(m->command, "--device %s: no such device", device);
    if (asked_places(m) == 0)
        return cli_fail(m->command, "--matrix: no device can be used (see %s)", m->command);
    if (!ask_all(m, &error)) return cli_fail(m->command, "--matrix: %s", error.text);
    if (!print(m, markdown)) return cli_fail(m->command, "out of host memory");
    return output == NULL || write_json(m, output) ? CLI_OK : CLI_FAILED;
}

static void release(matrix *m) {
    for (uint32_t w = 0; w < m->n_ways; w++)
        for (uint32_t s = 0; s < m->n_columns; s++)
            for (uint32_t i = 0; i < PLACES_MAX; i++)
                free(m->reasons[w][s][i]);
    free(m);
}

int devices_matrix(const char *command, const tamis_device_info *infos, size_t count,
                   const char *device, bool markdown, const char *json) {
    cli_output output = {0};
    int code = CLI_FAILED;
    if (json != NULL && !cli_output_open(&output, command, json)) return CLI_FAILED;
    matrix *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        cli_output_discard(&output);
        return cli_fail(command, "out of host memory");
    }
    m->command = command;
    if (list_ways(m) && list_columns(m) && list_places(m, infos, count, device))
        code = ask_and_say(m, device, markdown, json != NULL ? &output : NULL);
    else
        cli_fail(command, "--matrix: more kinds or backends than there are places for");
    release(m);
    cli_output_discard(&output);
    return code;
}
