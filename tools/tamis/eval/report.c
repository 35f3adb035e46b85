/* SPDX-License-Identifier: Apache-2.0 */
/* What evaluations print and write: intervals, progress, JSON. */
#include "eval/eval.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

void eval_interval(double right, uint64_t trials, double *low, double *high) {
    const double z = 1.959963984540054; /* of 97.5 % */
    double n = (double)trials;
    *low = 0;
    *high = 1;
    if (trials == 0) return;
    double share = right / n, scale = 1 + z * z / n;
    double middle = (share + z * z / (2 * n)) / scale;
    double half = z / scale * sqrt(share * (1 - share) / n + z * z / (4 * n * n));
    if (right > 0) *low = middle - half;
    if (right < n) *high = middle + half;
}

static void draw_bar(const char *what, uint64_t done, uint64_t total) {
    enum { WIDTH = 30 };
    int filled = (int)((double)WIDTH * (double)done / (double)total);
    fprintf(stderr, "\r\033[K[");
    for (int i = 0; i < WIDTH; i++)
        fputc(i < filled ? '#' : '.', stderr);
    fprintf(stderr, "] %3.0f %%  %s%s", 100 * (double)done / (double)total, what,
            done == total ? "\n" : "");
    fflush(stderr);
}

void eval_progress(const char *what, uint64_t done, uint64_t total) {
    static uint64_t last_tenth; /* what the last line of this bar said */
    if (total == 0) return;
    if (isatty(STDERR_FILENO)) {
        draw_bar(what, done, total);
        return;
    }
    uint64_t tenth = 10 * done / total;
    if (tenth > last_tenth)
        fprintf(stderr, "%s: %" PRIu64 " of %" PRIu64 " (%.0f %%)\n", what, done, total,
                100 * (double)done / (double)total);
    last_tenth = done < total ? tenth : 0;
}

static bool reads_all(const eval_arm *arm) {
    return arm->selection.kind == TAMIS_SELECT_FULL && !eval_arm_evicts(arm);
}

uint32_t eval_arm_budget(const eval_arm *arm, uint32_t length) {
    if (reads_all(arm)) return length;
    return eval_arm_evicts(arm) ? arm->eviction.budget : arm->selection.budget;
}

void eval_add_budget(cli_table *table, const eval_arm *arm) {
    if (reads_all(arm))
        cli_table_add(table, "-");
    else
        cli_table_add(table, "%u", eval_arm_budget(arm, 0));
}

bool eval_add_arm(cJSON *row, const eval_arm *arm, uint32_t length) {
    const char *name = arm->select.text;
    return cJSON_AddStringToObject(row, "select", name) != NULL &&
           (!eval_arm_evicts(arm) || cJSON_AddStringToObject(row, "evict", name) != NULL) &&
           cJSON_AddStringToObject(row, "score", arm->score) != NULL &&
           cJSON_AddNumberToObject(row, "budget", eval_arm_budget(arm, length)) != NULL &&
           cJSON_AddNumberToObject(row, "length", length) != NULL;
}

/* A number whose flag was given. */
static bool add_given(cJSON *settings, const char *name, uint32_t value) {
    return value == CLI_UNSET || cJSON_AddNumberToObject(settings, name, value) != NULL;
}

static bool add_word(cJSON *settings, const char *name, const char *const *words, uint32_t value) {
    return value == CLI_UNSET || cJSON_AddStringToObject(settings, name, words[value]) != NULL;
}

static bool add_decimal(cJSON *settings, const char *name, const char *text) {
    return text == NULL || cJSON_AddNumberToObject(settings, name, strtod(text, NULL)) != NULL;
}

static bool add_eviction_flags(cJSON *out, const cli_eviction_flags *f) {
    return add_given(out, "evict_sinks", f->sinks) && add_given(out, "evict_recent", f->recent) &&
           add_given(out, "evict_window", f->window) && add_given(out, "evict_kernel", f->kernel) &&
           add_word(out, "evict_pool", cli_poolings, f->pooling) &&
           add_given(out, "evict_chunk", f->chunk) && add_given(out, "evict_every", f->every) &&
           add_decimal(out, "evict_floor", f->floor) && add_decimal(out, "evict_beta", f->beta);
}

cJSON *eval_settings(const eval_arm_flags *flags, tamis_dtype dtype) {
    const cli_selection_flags *s = &flags->selection;
    double width = flags->width != NULL ? strtod(flags->width, NULL) : 1;
    cJSON *out = cJSON_CreateObject();
    bool made =
        cJSON_AddStringToObject(out, "dtype", tamis_dtype_name(dtype)) != NULL &&
        add_word(out, "bounds_dtype", cli_bounds_dtypes, flags->bounds_dtype) &&
        cJSON_AddNumberToObject(out, "page_size", cli_page_size(flags->page_size)) != NULL &&
        cJSON_AddNumberToObject(out, "width", width) != NULL && add_given(out, "sinks", s->sinks) &&
        add_given(out, "recent", s->recent) && add_given(out, "dense_layers", s->dense_layers) &&
        add_word(out, "group", cli_group_rules, s->group) &&
        add_eviction_flags(out, &flags->eviction);
    if (made) return out;
    cJSON_Delete(out);
    return NULL;
}

/* Moves the members of `from` to the end of `to`; what could not be moved stays. */
static bool move_members(cJSON *from, cJSON *to) {
    while (from->child != NULL) {
        cJSON *member = cJSON_DetachItemViaPointer(from, from->child);
        if (cJSON_AddItemToObject(to, member->string, member)) continue;
        cJSON_Delete(member);
        return false;
    }
    return true;
}

static bool add_model(cJSON *root, const eval_rig *rig, uint64_t seed) {
    const tamis_model_info *model = tamis_model_describe(rig->model);
    const char *name = cli_model_name(model);
    return cJSON_AddStringToObject(root, "model", name) != NULL &&
           cJSON_AddNumberToObject(root, "parameters", (double)model->parameters) != NULL &&
           cli_json_seed(root, seed);
}

bool eval_write_json(const char *command, const eval_rig *rig, uint64_t seed, cJSON *settings,
                     cJSON *rows, cli_output *output) {
    cJSON *root = cli_json_begin(command, rig->context);
    if (settings == NULL || !add_model(root, rig, seed) || !move_members(settings, root)) {
        cJSON_Delete(root);
        root = NULL;
    }
    cJSON_Delete(settings);
    return cli_json_write(root, rows, output, command);
}
