/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of selections and of evictions: their meaning, and the library's defaults. */
#include "cli/policies.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const cli_group_rules[] = {
    [TAMIS_GROUP_MAX] = "max", [TAMIS_GROUP_MEAN] = "mean", [TAMIS_GROUP_SUM] = "sum", NULL};
#define DTYPE_TEXT(name, value, text) [value] = text,
const char *const cli_dtypes[] = {TAMIS_DTYPE_LIST(DTYPE_TEXT) NULL};
const char *const cli_stored_dtypes[] = {
    [TAMIS_F32] = "f32", [TAMIS_F16] = "f16", [TAMIS_BF16] = "bf16", NULL};
const char *const cli_bounds_dtypes[] = {
    [TAMIS_BOUNDS_AS_CACHE] = "cache", [TAMIS_BOUNDS_Q8] = "q8", NULL};
const char *const cli_bounds[] = {[TAMIS_BOUNDS_MINMAX] = "minmax",
                                  [TAMIS_BOUNDS_MEAN_STD] = "meanstd",
                                  [TAMIS_BOUNDS_MEAN] = "mean",
                                  NULL};
const char *const cli_poolings[] = {
    [TAMIS_POOL_MAX] = "max", [TAMIS_POOL_AVERAGE] = "average", NULL};
const char *const cli_page_sizes[] = {"8", "16", "32", "64", NULL};

uint32_t cli_page_size(uint32_t choice) {
    return 8u << choice;
}

/* ---- Selections ------------------------------------------------------------------------------ */

const char *cli_selection_name(uint32_t value) {
    return tamis_selection_name_at(value < TAMIS_SELECT_CALLER ? value : value + 1);
}

static tamis_selection preset(uint32_t value) {
    tamis_selection selection;
    if (tamis_selection_parse(cli_selection_name(value), &selection, NULL) != TAMIS_OK)
        tamis_selection_default((tamis_selection_kind)value, &selection);
    return selection;
}

tamis_selection_kind cli_selection_kind(uint32_t value) {
    return preset(value).kind;
}

tamis_bounds_kind cli_selection_bounds(uint32_t value) {
    const bool paper = strcmp(cli_selection_name(value), "quest-paper") == 0;
    return paper ? TAMIS_BOUNDS_MINMAX : TAMIS_BOUNDS_MEAN_STD;
}

bool cli_selection(const char *command, uint32_t value, uint32_t budget,
                   const cli_selection_flags *flags, uint32_t page_size, tamis_selection *out) {
    tamis_error error = {0};
    *out = preset(value);
    if (budget != CLI_UNSET) out->budget = budget;
    if (flags->sinks != CLI_UNSET) out->sinks = flags->sinks;
    if (flags->recent != CLI_UNSET) out->recent = flags->recent;
    if (flags->dense_layers != CLI_UNSET) out->dense_layers = flags->dense_layers;
    if (flags->group != CLI_UNSET) out->group = (tamis_group_rule)flags->group;
    if (tamis_selection_check(out, page_size, &error) == TAMIS_OK) return true;
    cli_fail(command, "%s", error.text);
    return false;
}

/* The first flag of a selection that was given; NULL if none was. */
static const char *given_of_selection(bool budget, const cli_selection_flags *flags) {
    if (budget) return "--budget";
    if (flags->sinks != CLI_UNSET) return "--sinks";
    if (flags->recent != CLI_UNSET) return "--recent";
    if (flags->group != CLI_UNSET) return "--group";
    return flags->dense_layers != CLI_UNSET && flags->dense_layers != 0 ? "--dense-layers" : NULL;
}

bool cli_check_selections(const char *command, const cli_list *selections, bool budget,
                          const cli_selection_flags *flags) {
    const char *given = given_of_selection(budget, flags);
    for (uint32_t i = 0; i < selections->count; i++)
        if (cli_selection_kind(selections->values[i]) != TAMIS_SELECT_FULL) return true;
    if (given != NULL)
        cli_fail(command, "%s: is given under full, which reads everything (see --select)", given);
    return given == NULL;
}

/* ---- Evictions ------------------------------------------------------------------------------- */

bool cli_eviction_kind(uint32_t index, tamis_eviction_kind *out) {
    *out = (tamis_eviction_kind)(index < TAMIS_EVICT_CALLER ? index : index + 1);
    return strcmp(tamis_eviction_name(*out), "unknown") != 0;
}

/* An eviction that is being built from flags. Its kind decides which flags it takes. */
typedef struct taking {
    const char *command, *name;
    bool listed; /* one of a list: flags for other kinds are ignored */
    bool failed;
} taking;

/* Whether a given flag is taken. A flag that the kind does not have is ignored in a list, and else
 * an error. */
static bool takes(taking *t, const char *flag, bool given, bool has) {
    if (!given || has || t->listed) return given && has;
    cli_fail(t->command, "%s: is given for %s, which has none", flag, t->name);
    t->failed = true;
    return false;
}

static void take(taking *t, const char *flag, uint32_t given, bool has, uint32_t *out) {
    if (!t->failed && takes(t, flag, given != CLI_UNSET, has)) *out = given;
}

static void take_decimal(taking *t, const char *flag, const char *given, bool has, float least,
                         float *out) {
    if (!t->failed && takes(t, flag, given != NULL, has))
        t->failed = !cli_decimal(t->command, flag, given, (cli_range){least, INFINITY, false}, out);
}

static bool is_listed(const cli_list *list, uint32_t value) {
    for (uint32_t i = 0; i < list->count; i++)
        if (list->values[i] == value) return true;
    return false;
}

/* Takes the options given by --evict-options, which may be for other kinds, and by the kind's own
 * "+word". */
static void take_options(taking *t, const cli_list *given, uint32_t own, tamis_eviction *e) {
    const char *word;
    for (uint32_t i = 0; (word = tamis_eviction_option_name(i)) != NULL && !t->failed; i++) {
        bool asked = own >> i & 1u;
        if (!asked && !is_listed(given, i)) continue;
        tamis_eviction with;
        tamis_eviction_default(e->kind, &with);
        with.options = 1u << i;
        if (tamis_eviction_check(&with, NULL) == TAMIS_OK) {
            e->options |= with.options;
        } else if (asked || !t->listed) {
            cli_fail(t->command, "--evict %s: has no option %s", t->name, word);
            t->failed = true;
        }
    }
}

/* Its default is 0 with every kind: the library knows which have it. */
static bool has_recent(const tamis_eviction *had) {
    tamis_eviction with = *had;
    with.recent = 1;
    return tamis_eviction_check(&with, NULL) == TAMIS_OK;
}

bool cli_eviction(const char *command, uint32_t value, uint32_t budget,
                  const cli_eviction_flags *flags, bool listed, tamis_eviction *out) {
    tamis_error error = {0};
    tamis_eviction_default((tamis_eviction_kind)CLI_EVICTION_KIND(value), out);
    const tamis_eviction had = *out;
    taking t = {.command = command, .name = tamis_eviction_name(had.kind), .listed = listed};
    uint32_t pooling = (uint32_t)had.pooling;
    if (budget != CLI_UNSET) out->budget = budget;
    take_options(&t, &flags->options, CLI_EVICTION_OPTIONS(value), out);
    take(&t, "--evict-sinks", flags->sinks, true, &out->sinks);
    take(&t, "--evict-recent", flags->recent, has_recent(&had), &out->recent);
    take(&t, "--evict-window", flags->window, had.window > 0, &out->window);
    take(&t, "--evict-kernel", flags->kernel, had.kernel > 0, &out->kernel);
    take(&t, "--evict-pool", flags->pooling, had.kernel > 0, &pooling);
    take(&t, "--evict-chunk", flags->chunk, had.chunk > 0, &out->chunk);
    take(&t, "--evict-every", flags->every, !listed || flags->every != 1 || had.every == 1,
         &out->every);
    take_decimal(&t, "--evict-floor", flags->floor, had.floor != 0, 0, &out->floor);
    take_decimal(&t, "--evict-beta", flags->beta, had.beta > 0, 1, &out->beta);
    if (t.failed) return false;
    out->pooling = (tamis_pooling)pooling;
    if (had.floor != 0 && out->floor == 0) out->floor = -1; /* the library's word for none */
    if (tamis_eviction_check(out, &error) == TAMIS_OK) return true;
    cli_fail(command, "--evict %s: %s", cli_eviction_name(out).text, error.text);
    return false;
}

cli_eviction_text cli_eviction_name(const tamis_eviction *eviction) {
    cli_eviction_text out;
    snprintf(out.text, sizeof(out.text), "%s", tamis_eviction_name(eviction->kind));
    const char *word;
    for (uint32_t i = 0; (word = tamis_eviction_option_name(i)) != NULL; i++) {
        size_t used = strlen(out.text);
        if (eviction->options >> i & 1u)
            snprintf(out.text + used, sizeof(out.text) - used, "+%s", word);
    }
    return out;
}

/* The first flag of an eviction that was given; NULL if none was. */
static const char *given_of_eviction(bool budget, const cli_eviction_flags *f) {
    const struct {
        const char *flag;
        bool given;
    } flags[] = {{"--evict-budget", budget},
                 {"--evict-sinks", f->sinks != CLI_UNSET},
                 {"--evict-recent", f->recent != CLI_UNSET},
                 {"--evict-window", f->window != CLI_UNSET},
                 {"--evict-kernel", f->kernel != CLI_UNSET},
                 {"--evict-pool", f->pooling != CLI_UNSET},
                 {"--evict-chunk", f->chunk != CLI_UNSET},
                 {"--evict-floor", f->floor != NULL},
                 {"--evict-beta", f->beta != NULL},
                 {"--evict-every", f->every != CLI_UNSET},
                 {"--evict-options", f->options.count > 0}};
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (flags[i].given) return flags[i].flag;
    return NULL;
}

bool cli_check_no_eviction(const char *command, bool budget, const cli_eviction_flags *flags) {
    const char *given = given_of_eviction(budget, flags);
    if (given != NULL)
        cli_fail(command, "%s: is given where nothing is evicted (see --evict)", given);
    return given == NULL;
}

static void add_value(uint32_t value, uint32_t *values, uint32_t *count) {
    if (CLI_EVICTION_KIND(value) == TAMIS_EVICT_NONE || *count == CLI_EVICTIONS_MAX) return;
    for (uint32_t i = 0; i < *count; i++)
        if (values[i] == value) return;
    values[(*count)++] = value;
}

uint32_t cli_list_evictions(const cli_list *list, uint32_t values[CLI_EVICTIONS_MAX]) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->values[i] != CLI_EVICTION_ALL) add_value(list->values[i], values, &count);
        if (list->values[i] != CLI_EVICTION_ALL) continue;
        tamis_eviction_kind kind;
        for (uint32_t k = 0; cli_eviction_kind(k, &kind); k++)
            add_value(CLI_EVICTION_OF(kind, 0), values, &count);
    }
    return count;
}

/* ---- Defaults -------------------------------------------------------------------------------- */

/* Kinds grouped by their default number, as text. */
#define GROUPS_MAX 8
typedef struct groups {
    uint32_t count;
    struct {
        char value[16];
        char names[96]; /* "quest, oracle" */
        uint32_t n;
    } of[GROUPS_MAX];
} groups;

static void add_to_groups(groups *g, const char *value, const char *name) {
    uint32_t i = 0;
    while (i < g->count && strcmp(g->of[i].value, value) != 0)
        i++;
    if (i == GROUPS_MAX) return;
    if (i == g->count) {
        g->of[g->count++].n = 0;
        snprintf(g->of[i].value, sizeof(g->of[i].value), "%s", value);
        g->of[i].names[0] = '\0';
    }
    size_t used = strlen(g->of[i].names);
    snprintf(g->of[i].names + used, sizeof(g->of[i].names) - used, "%s%s",
             g->of[i].n++ > 0 ? ", " : "", name);
}

/* "4 for streaming, else 0": the largest group comes last, and has its names only if they are
 * few. */
static cli_default say_groups(const groups *g) {
    cli_default out = {""};
    uint32_t largest = 0;
    for (uint32_t i = 1; i < g->count; i++)
        if (g->of[i].n > g->of[largest].n) largest = i;
    for (uint32_t i = 0; i < g->count; i++) {
        size_t used = strlen(out.text);
        if (i != largest)
            snprintf(out.text + used, sizeof(out.text) - used, "%s for %s, ", g->of[i].value,
                     g->of[i].names);
    }
    size_t used = strlen(out.text);
    const bool few = g->count == 1 && g->of[0].n <= 2; /* the others have no such number */
    if (g->count > 0)
        snprintf(out.text + used, sizeof(out.text) - used, "%s%s%s%s", g->count > 1 ? "else " : "",
                 g->of[largest].value, few ? " for " : "", few ? g->of[0].names : "");
    return out;
}

/* The kind's default for a flag; false if the kind does not have it. */
static bool own_number(const char *flag, const tamis_eviction *e, char *text, size_t size) {
    const struct {
        const char *flag;
        double value;
        bool has;
    } numbers[] = {{"--evict-sinks", e->sinks, true},
                   {"--evict-window", e->window, e->window > 0},
                   {"--evict-kernel", e->kernel, e->kernel > 0},
                   {"--evict-chunk", e->chunk, e->chunk > 0},
                   {"--evict-every", e->every, true},
                   {"--evict-floor", e->floor > 0 ? e->floor : 0, e->floor != 0},
                   {"--evict-beta", e->beta, e->beta > 0}};
    if (strcmp(flag, "--evict-pool") == 0) snprintf(text, size, "%s", cli_poolings[e->pooling]);
    if (strcmp(flag, "--evict-pool") == 0) return e->kernel > 0;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (strcmp(flag, numbers[i].flag) == 0) {
            snprintf(text, size, "%.3g", numbers[i].value);
            return numbers[i].has;
        }
    return false;
}

static uint32_t own_of_selection(const char *flag, const tamis_selection *s) {
    if (strcmp(flag, "--sinks") == 0) return s->sinks;
    return strcmp(flag, "--recent") == 0 ? s->recent : s->dense_layers;
}

cli_default cli_default_text(const char *flag) {
    groups g = {0};
    char value[16];
    tamis_eviction_kind kind;
    const bool evicts = strncmp(flag, "--evict-", 8) == 0;
    for (uint32_t i = 1; evicts && cli_eviction_kind(i, &kind); i++) {
        tamis_eviction e;
        tamis_eviction_default(kind, &e);
        if (own_number(flag, &e, value, sizeof(value)))
            add_to_groups(&g, value, tamis_eviction_name(kind));
    }
    for (uint32_t i = 0; !evicts && cli_selection_name(i) != NULL; i++) {
        const tamis_selection s = preset(i);
        snprintf(value, sizeof(value), "%u", own_of_selection(flag, &s));
        if (s.kind != TAMIS_SELECT_FULL) add_to_groups(&g, value, cli_selection_name(i));
    }
    return say_groups(&g);
}

/* ---- Both ------------------------------------------------------------------------------------ */

bool cli_policies(const char *command, const cli_policy_flags *f, uint32_t page_size,
                  tamis_selection *selection, tamis_eviction *eviction, tamis_bounds_kind *bounds) {
    const cli_list selections = {1, {f->select}};
    if (!cli_check_selections(command, &selections, f->budget != CLI_UNSET, &f->selection) ||
        !cli_selection(command, f->select, f->budget, &f->selection, page_size, selection))
        return false;
    if (f->score != CLI_UNSET && selection->kind != TAMIS_SELECT_QUEST) {
        cli_fail(command, "--score: is given without quest, which alone has one (see --select)");
        return false;
    }
    *bounds = f->score != CLI_UNSET ? (tamis_bounds_kind)f->score : cli_selection_bounds(f->select);
    if (CLI_EVICTION_KIND(f->evict) == TAMIS_EVICT_NONE)
        return cli_check_no_eviction(command, f->evict_budget != CLI_UNSET, &f->eviction);
    return cli_eviction(command, f->evict, f->evict_budget, &f->eviction, false, eviction);
}
