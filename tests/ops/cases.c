/* SPDX-License-Identifier: Apache-2.0 */
/* Case strings: reading and printing them, and the lists, of which ci covers all pairs of levels.
 */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct key_info {
    const char *name;         /* before the number; NULL: `words` name the values */
    const char *const *words; /* ended by NULL; an empty word is not printed */
} key_info;

static const char *const fill_words[] = {"ints", "normal", "nasty", NULL};
#define DTYPE_TEXT(name, value, text) text,
static const char *const dtype_words[] = {TAMIS_DTYPE_LIST(DTYPE_TEXT) NULL};
static const char *const type_words[] = {"f32",  "f16",    "bf16",   "q8_0",  "q4_0", "q4_1",
                                         "q5_0", "q4_k",   "q6_k",   "q5_1",  "q5_k", "q3_k",
                                         "q2_k", "iq4_nl", "iq4_xs", "mxfp4", NULL};
_Static_assert(sizeof type_words / sizeof *type_words == CHECK_WEIGHT_TYPES + 1, "every type");
static const char *const source_words[] = {"from-f32", "from-f16", "from-bf16", NULL};
static const char *const layout_words[] = {"own",   "nhd",    "hnd",    "halves",
                                           "apart", "turned", "spread", NULL};
static const char *const way_words[] = {"row",         "rowforced",  "forced",       "table",
                                        "tableforced", "mass",       "pos",          "posforced",
                                        "masstable",   "massforced", "posmasstable", NULL};
static const char *const rule_words[] = {"max", "mean", "sum", NULL};
static const char *const norm_kind_words[] = {"rms", "layer", "plain", NULL};
static const char *const kind_words[] = {"minmax", "meanstd", "mean", NULL};
static const char *const pooling_words[] = {"maxpool", "average", NULL};
static const char *const norm_words[] = {"l2", "l1", NULL};
static const char *const says_words[] = {"norm", "cosine", "quadratic", NULL};
static const char *const weight_words[] = {"wf32", "wf16", "wbf16", NULL};
static const char *const join_words[] = {"rows-sum", "squares", "rows-max", NULL};
static const char *const fuse_words[] = {"axpby",     "multiply",   "least-mean", "lifetime",
                                         "head-mean", "head-share", "chunk-sum",  "list-sum",
                                         "list-max",  NULL};
static const char *const pairing_words[] = {"half", "adjacent", NULL};

#define FLAG(word)                                                                                 \
    {                                                                                              \
        NULL, (const char *const[]) {                                                              \
            "", word, NULL                                                                         \
        }                                                                                          \
    }
static const key_info keys[KEY_COUNT] = {
    [KEY_FILL] = {NULL, fill_words},
    [KEY_DTYPE] = {NULL, dtype_words},
    [KEY_Q8BOUNDS] = FLAG("q8bounds"),
    [KEY_TYPE] = {NULL, type_words},
    [KEY_LAYOUT] = {NULL, layout_words},
    [KEY_B] = {"b", NULL},
    [KEY_R] = {"r", NULL},
    [KEY_TILE] = {"tile", NULL},
    [KEY_HKV] = {"hkv", NULL},
    [KEY_G] = {"g", NULL},
    [KEY_D] = {"d", NULL},
    [KEY_PAGE] = {"page", NULL},
    [KEY_KV] = {"kv", NULL},
    [KEY_TOP] = {"top", NULL},
    [KEY_SINKS] = {"sinks", NULL},
    [KEY_RECENT] = {"recent", NULL},
    [KEY_WAY] = {NULL, way_words},
    [KEY_TOTAL] = {"total", NULL},
    [KEY_FLOOR] = {"floor", NULL},
    [KEY_SHARE] = {"share", NULL},
    [KEY_MASS] = {"mass", NULL},
    [KEY_RULE] = {NULL, rule_words},
    [KEY_KIND] = {NULL, kind_words},
    [KEY_JOIN] = {NULL, join_words},
    [KEY_FUSE] = {NULL, fuse_words},
    [KEY_PLANES] = {"planes", NULL},
    [KEY_WIDTH] = {"width", NULL},
    [KEY_N] = {"n", NULL},
    [KEY_CHUNK] = {"chunk", NULL},
    [KEY_FRESH] = {"fresh", NULL},
    [KEY_PARTS] = {"parts", NULL},
    [KEY_IN] = {"in", NULL},
    [KEY_OUT] = {"out", NULL},
    [KEY_ROT] = {"rot", NULL},
    [KEY_PAIRING] = {NULL, pairing_words},
    [KEY_PAD] = {"pad", NULL},
    [KEY_EVEN] = FLAG("even"),
    [KEY_ORDERED] = FLAG("ordered"),
    [KEY_POS] = FLAG("pos"),
    [KEY_SCORE] = FLAG("score"),
    [KEY_LIFE] = FLAG("life"),
    [KEY_FIRST] = FLAG("first"),
    [KEY_CAP] = FLAG("cap"),
    [KEY_SINK] = FLAG("sink"),
    [KEY_LOGITS] = FLAG("logits"),
    [KEY_WEIGHTS] = FLAG("weights"),
    [KEY_NOLSE] = FLAG("nolse"),
    [KEY_NOSCORE] = FLAG("noscore"),
    [KEY_ACC] = FLAG("acc"),
    [KEY_BIAS] = FLAG("bias"),
    [KEY_WIDE] = FLAG("wide"),
    [KEY_SAME] = FLAG("same"),
    [KEY_LISTS] = {"lists", NULL},
    [KEY_TAIL] = {"tail", NULL},
    [KEY_KERNEL] = {"kernel", NULL},
    [KEY_POOLING] = {NULL, pooling_words},
    [KEY_KEEP] = FLAG("keep"),
    [KEY_NORM] = {NULL, norm_words},
    [KEY_SAYS] = {NULL, says_words},
    [KEY_WEIGHT] = {NULL, weight_words},
    [KEY_HEADS] = FLAG("heads"),
    [KEY_MIX] = {"mix", NULL},
    [KEY_STAGES] = {"stages", NULL},
    [KEY_FF] = {"ff", NULL},
    [KEY_STRIPS] = {"strips", NULL},
    [KEY_NORMED] = FLAG("normed"),
    [KEY_ADDEND] = {"addend", NULL},
    [KEY_APART] = FLAG("apart"),
    [KEY_GATED] = FLAG("gated"),
    [KEY_NORM_KIND] = {NULL, norm_kind_words},
    [KEY_GELU] = FLAG("gelu"),
    [KEY_SCALED] = FLAG("scaled"),
    [KEY_VALUES] = FLAG("values"),
    [KEY_SOURCE] = {NULL, source_words},
    [KEY_NORMS] = FLAG("norms"),
};

#define ENTER(with, op) &check_op_##op,
const check_op *const check_ops[] = {TMS_OPS(ENTER, ) & check_op_select_wide, NULL};

static bool knows(const check_op *op, check_key key) {
    for (const check_default *d = op->defaults; d->key != KEY_COUNT; d++)
        if (d->key == key) return true;
    return false;
}

/* Every key that the op knows is printed, so that no case changes its meaning with a default. */
static void print_case(check_case *c) {
    int at = snprintf(c->text, sizeof c->text, "%s", c->op->name);
    for (int k = 0; k < KEY_COUNT; k++) {
        if (!knows(c->op, (check_key)k)) continue;
        size_t room = sizeof c->text - (size_t)at;
        if (keys[k].name)
            at += snprintf(c->text + at, room, ":%s%u", keys[k].name, c->v[k]);
        else if (keys[k].words[c->v[k]][0])
            at += snprintf(c->text + at, room, ":%s", keys[k].words[c->v[k]]);
    }
}

static bool parse_number(const char *text, uint32_t *out) {
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || value > UINT32_MAX) return false;
    *out = (uint32_t)value;
    return true;
}

static bool match_key(int k, const char *part, uint32_t *value) {
    if (keys[k].name) {
        size_t length = strlen(keys[k].name);
        return strncmp(part, keys[k].name, length) == 0 && parse_number(part + length, value);
    }
    for (uint32_t w = 0; keys[k].words[w]; w++) {
        if (*part && strcmp(part, keys[k].words[w]) == 0) {
            *value = w;
            return true;
        }
    }
    return false;
}

static bool parse_part(const char *part, check_case *c) {
    for (int k = 0; k < KEY_COUNT; k++)
        if (knows(c->op, (check_key)k) && match_key(k, part, &c->v[k])) return true;
    return false;
}

static const check_op *find_op(const char *name) {
    for (size_t i = 0; check_ops[i]; i++)
        if (strcmp(check_ops[i]->name, name) == 0) return check_ops[i];
    return NULL;
}

static void set_defaults(check_case *c, const check_op *op) {
    memset(c, 0, sizeof *c);
    c->op = op;
    for (const check_default *d = op->defaults; d->key != KEY_COUNT; d++)
        c->v[d->key] = d->value;
}

bool check_case_parse(const char *text, check_case *out, char *why, size_t why_size) {
    char copy[CHECK_CASE_TEXT];
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy) {
        snprintf(why, why_size, "case is longer than %zu characters", sizeof copy - 1);
        return false;
    }
    char *rest = NULL;
    char *part = strtok_r(copy, ":", &rest);
    const check_op *op = part ? find_op(part) : NULL;
    if (!op) {
        snprintf(why, why_size, "no op is called '%s'", part ? part : "");
        return false;
    }
    set_defaults(out, op);
    while ((part = strtok_r(NULL, ":", &rest))) {
        if (!parse_part(part, out)) {
            snprintf(why, why_size, "%s cases know no '%s'", op->name, part);
            return false;
        }
    }
    const char *broken = op->reject ? op->reject(out) : NULL;
    if (broken) snprintf(why, why_size, "'%s': %s", text, broken);
    print_case(out);
    return !broken;
}

bool check_list_parse(const char *name, check_list *out) {
    static const char *const names[] = {"smoke", "ci", "full", "lean", "oclgrind", "bench"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (check_list)i;
            return true;
        }
    }
    return false;
}

void check_cases_add(check_cases *cases, const check_case *item) {
    for (size_t i = 0; i < cases->count; i++)
        if (strcmp(cases->items[i].text, item->text) == 0) return;
    if (cases->count == cases->capacity) {
        cases->capacity = cases->capacity ? 2 * cases->capacity : 64;
        check_case *grown = check_alloc(cases->capacity * sizeof *grown);
        if (cases->count) memcpy(grown, cases->items, cases->count * sizeof *grown);
        free(cases->items);
        cases->items = grown;
    }
    cases->items[cases->count++] = *item;
}

/* A case of the built-in lists that does not parse is a mistake in the table. */
static void add_text(check_cases *cases, const check_op *op, const char *text) {
    char full[CHECK_CASE_TEXT], why[256];
    check_case item;
    snprintf(full, sizeof full, "%s:%s", op->name, text);
    if (!check_case_parse(full, &item, why, sizeof why)) {
        fprintf(stderr, "tamis-check: built-in case: %s\n", why);
        exit(2);
    }
    check_cases_add(cases, &item);
}

/* ---- Pairwise cover -------------------------------------------------------------------------- */

#define MAX_FACTORS 16
typedef struct cover {
    check_factor factors[MAX_FACTORS];
    uint32_t n;
    bool done[MAX_FACTORS][CHECK_LEVELS][MAX_FACTORS][CHECK_LEVELS];
} cover;

/* Pairs not yet covered that level `l` of factor `f` makes with the factors already chosen. */
static uint32_t gain(const cover *cv, const int *chosen, uint32_t f, uint32_t l) {
    uint32_t sum = 0;
    for (uint32_t o = 0; o < cv->n; o++)
        sum += o != f && chosen[o] >= 0 && !cv->done[f][l][o][chosen[o]];
    return sum;
}

static bool first_open(const cover *cv, int *chosen) {
    for (uint32_t f = 0; f < cv->n; f++)
        for (uint32_t l = 0; l < cv->factors[f].n; l++)
            for (uint32_t o = f + 1; o < cv->n; o++)
                for (uint32_t m = 0; m < cv->factors[o].n; m++)
                    if (!cv->done[f][l][o][m]) {
                        chosen[f] = (int)l;
                        chosen[o] = (int)m;
                        return true;
                    }
    return false;
}

/* Ties go round with `turn`, so that levels that no longer gain still vary. */
static int best_level(const cover *cv, const int *chosen, uint32_t f, uint32_t turn) {
    uint32_t n = cv->factors[f].n, best = turn % n;
    for (uint32_t i = 1; i < n; i++) {
        uint32_t l = (turn + i) % n;
        if (gain(cv, chosen, f, l) > gain(cv, chosen, f, best)) best = l;
    }
    return (int)best;
}

static void mark(cover *cv, const int *chosen) {
    for (uint32_t f = 0; f < cv->n; f++)
        for (uint32_t o = 0; o < cv->n; o++)
            cv->done[f][chosen[f]][o][chosen[o]] = true;
}

static bool is_compiled(const check_op *op, check_key key) {
    for (const check_key *k = op->compiled; k && *k != KEY_COUNT; k++)
        if (*k == key) return true;
    return false;
}

/* The factors as they are; or, for the lean list, those that are compiled in as one, whose levels
 * are builds: as many as the longest of them has levels. */
static void set_factors(cover *cv, const check_op *op, const check_factor *factors, bool lean) {
    check_factor builds = {.key = KEY_COUNT};
    for (const check_factor *f = factors; f->key != KEY_COUNT; f++) {
        if (!lean || !is_compiled(op, f->key))
            cv->factors[cv->n++] = *f;
        else if (f->n > builds.n)
            builds.n = f->n;
    }
    for (uint32_t b = 0; b < builds.n; b++)
        builds.level[b] = b;
    if (builds.n) cv->factors[cv->n++] = builds;
}

/* A build has a level of each factor that is compiled in. They go round, so that the builds hold all
 * pairs of two factors with 2 and 3 levels; factors of equally many levels are out of step. */
static void set_build(check_case *item, const check_factor *factors, uint32_t build) {
    uint32_t alike[CHECK_LEVELS + 1] = {0}; /* earlier factors of so many levels */
    for (const check_factor *f = factors; f->key != KEY_COUNT; f++)
        if (is_compiled(item->op, f->key))
            item->v[f->key] = f->level[(build + alike[f->n]++ * (build / f->n)) % f->n];
}

static void add_cover(check_cases *cases, const check_op *op, const check_factor *factors,
                      uint32_t turn, bool lean) {
    cover *cv = check_alloc(sizeof *cv);
    int chosen[MAX_FACTORS];
    set_factors(cv, op, factors, lean);
    memset(chosen, -1, sizeof chosen);
    for (; first_open(cv, chosen); turn++) {
        check_case item;
        set_defaults(&item, op);
        for (uint32_t f = 0; f < cv->n; f++) {
            if (chosen[f] < 0) chosen[f] = best_level(cv, chosen, f, turn + f);
            const uint32_t level = cv->factors[f].level[chosen[f]];
            if (cv->factors[f].key == KEY_COUNT)
                set_build(&item, factors, level);
            else
                item.v[cv->factors[f].key] = level;
        }
        mark(cv, chosen);
        memset(chosen, -1, sizeof chosen);
        /* Caches of k8v4 have one layout: else most of their pairs would be ruled out. */
        if (item.v[KEY_DTYPE] == TAMIS_K8V4) item.v[KEY_LAYOUT] = LAYOUT_OWN;
        if (op->reject && op->reject(&item)) continue; /* a pair that the contract rules out */
        print_case(&item);
        check_cases_add(cases, &item);
    }
    free(cv);
}

bool check_any_case(const check_case *c) {
    (void)c;
    return true;
}

void check_cases_add_list(check_cases *cases, check_list list) {
    const bool lean = list == LIST_LEAN;
    const uint32_t covers = list == LIST_FULL ? 4 : list == LIST_CI || lean ? 1 : 0;
    const check_list by_hand = lean ? LIST_CI : list;
    for (size_t o = 0; check_ops[o]; o++) {
        const check_op *op = check_ops[o];
        for (const check_entry *e = op->entries; e->text; e++)
            if (e->list == by_hand || (by_hand <= LIST_FULL && e->list < by_hand))
                add_text(cases, op, e->text);
        for (uint32_t turn = 0; turn < covers; turn++) {
            add_cover(cases, op, op->factors, turn, lean);
            if (op->more_factors) add_cover(cases, op, op->more_factors, turn, lean);
        }
    }
}
