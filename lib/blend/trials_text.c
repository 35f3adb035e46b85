/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a file of trials. Its first line names the format and its version. An entry begins
 * with its fingerprint; then a line for each field, a word and its value; then its figures and
 * "end". The last line is a checksum (XXH3, 64 bits) of all before it. Decimal numbers have a point
 * and nine digits behind it, whatever the program's locale. */
#define XXH_INLINE_ALL
#include "host/base/dtype.h"
#include "lib/blend/selector.h"
#include "lib/blend/trials.h"
#include "lib/core/text_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define MAGIC    "tamis-blend-trials "
#define VERSION  "1"
#define CHECKSUM "checksum "
/* "checksum " with 16 digits and a newline. */
#define CHECKSUM_BYTES (sizeof CHECKSUM - 1 + 17)
#define MOST           1e9 /* of a decimal number */
#define UNIT           1e-9

/* ---- Fields ---------------------------------------------------------------------------------- */

typedef enum kind { NAME, SELECTOR, SCHEDULE, LAYER, DTYPE, NUMBER, SEED, DECIMAL } kind;

typedef struct field {
    const char *name;
    kind kind;
    size_t place;
} field;

#define FIELD(name, kind, member)                                                                  \
    { name, kind, offsetof(tamis_blend_trial, member) }
static const field fields[] = {FIELD("model", NAME, model),
                               FIELD("selector", SELECTOR, selector),
                               FIELD("schedule", SCHEDULE, schedule),
                               FIELD("check-layer", LAYER, check_layer),
                               FIELD("cache", DTYPE, cache_dtype),
                               FIELD("records", DTYPE, dtype),
                               FIELD("sink", NUMBER, n_sink),
                               FIELD("prompts", NUMBER, prompts),
                               FIELD("chunks", NUMBER, chunks),
                               FIELD("chunk-tokens", NUMBER, chunk_tokens),
                               FIELD("answer-tokens", NUMBER, answer_tokens),
                               FIELD("seed", SEED, seed),
                               FIELD("max-kl", DECIMAL, max_kl),
                               FIELD("min-agreement", DECIMAL, min_agreement),
                               FIELD("share", DECIMAL, share)};
#define N_FIELDS (sizeof fields / sizeof *fields)

/* The decimal numbers of a line of figures, in their order. */
static const size_t figures[] = {offsetof(tamis_blend_figures, share),
                                 offsetof(tamis_blend_figures, kl_mean),
                                 offsetof(tamis_blend_figures, kl_p95),
                                 offsetof(tamis_blend_figures, agreement),
                                 offsetof(tamis_blend_figures, k_deviation),
                                 offsetof(tamis_blend_figures, v_deviation),
                                 offsetof(tamis_blend_figures, attention_deviation),
                                 offsetof(tamis_blend_figures, left)};
static const char *const figure_names[] = {"share", "kl", "kl-p95",    "agreement",
                                           "k",     "v",  "attention", "left"};
#define N_FIGURES (sizeof figures / sizeof *figures)

static const char *const schedules[] = {"falling", "flat"};

static double *number_of(tamis_blend_figures *f, size_t i) {
    return (double *)((char *)f + figures[i]);
}

bool tms_trial_same(const tamis_blend_trial *a, const tamis_blend_trial *b) {
    return memcmp(a->fingerprint, b->fingerprint, sizeof a->fingerprint) == 0 &&
           a->selector == b->selector && a->schedule == b->schedule &&
           a->check_layer == b->check_layer && a->cache_dtype == b->cache_dtype &&
           a->dtype == b->dtype && a->n_sink == b->n_sink;
}

/* ---- Checks ---------------------------------------------------------------------------------- */

static tamis_status check_number(const char *name, double value, double most, tamis_error *error) {
    TMS_REQUIRE(value >= 0 && value <= most, TAMIS_E_ARGUMENT, "%s is %g; it must be 0 to %g", name,
                value, most);
    return TAMIS_OK;
}

/* A number as it is kept. */
static uint64_t units_of(double value) {
    return (uint64_t)llround(value / UNIT);
}

static tamis_status check_settings(const tamis_blend_trial *p, tamis_error *error) {
    const tms_selector *selector = tms_selector_find(p->selector);
    TMS_REQUIRE(memchr(p->model, '\0', sizeof p->model), TAMIS_E_ARGUMENT,
                "model does not end within %zu bytes", sizeof p->model);
    TMS_REQUIRE(selector && tms_selector_shares(selector), TAMIS_E_ARGUMENT,
                "selector is %s, which takes no share", tamis_blend_selector_name(p->selector));
    TMS_REQUIRE(p->schedule == TAMIS_BLEND_FALLING || p->schedule == TAMIS_BLEND_FLAT,
                TAMIS_E_ARGUMENT, "schedule is %d: there are 0 and 1", (int)p->schedule);
    TMS_REQUIRE(p->check_layer != 0, TAMIS_E_ARGUMENT, "check_layer is 0; it must be 1 at least");
    TMS_REQUIRE(tms_dtype_known(p->cache_dtype) && tms_dtype_known(p->dtype), TAMIS_E_ARGUMENT,
                "cache_dtype is %d, dtype %d: one of them is none", (int)p->cache_dtype,
                (int)p->dtype);
    TMS_REQUIRE(tms_dtype_of_rows(p->dtype), TAMIS_E_ARGUMENT, "dtype is %s, which no record has",
                tamis_dtype_name(p->dtype));
    TMS_TRY(check_number("max_kl", p->max_kl, MOST, error));
    return check_number("min_agreement", p->min_agreement, 1, error);
}

static tamis_status check_figures(const tamis_blend_trial *p, tamis_error *error) {
    double smallest = 0;
    for (uint32_t i = 0; i < p->n_figures; i++) {
        tamis_blend_figures f = p->figures[i];
        for (size_t n = 0; n < N_FIGURES; n++) /* share and agreement are parts of 1 */
            TMS_TRY(check_number(figure_names[n], *number_of(&f, n), n % 3 == 0 && n < 4 ? 1 : MOST,
                                 error));
        TMS_REQUIRE(units_of(f.share) > (i ? units_of(p->figures[i - 1].share) : 0),
                    TAMIS_E_ARGUMENT,
                    "figures %" PRIu32 " are of share %g; shares ascend, above 0 to 1", i, f.share);
        TMS_REQUIRE(f.passed <= 1 && f.reserved32 == 0, TAMIS_E_ARGUMENT,
                    "figures %" PRIu32 ": passed is %" PRIu32 ", reserved32 %" PRIu32, i, f.passed,
                    f.reserved32);
        for (size_t r = 0; r < sizeof f.reserved / sizeof *f.reserved; r++)
            TMS_REQUIRE(f.reserved[r] == 0, TAMIS_E_ARGUMENT,
                        "reserved[%zu] of tamis_blend_figures is %" PRIu64 "; it must be 0", r,
                        f.reserved[r]);
        if (!f.passed) smallest = 0;
        if (f.passed && smallest == 0) smallest = f.share;
    }
    TMS_REQUIRE(p->share == smallest, TAMIS_E_ARGUMENT,
                "share is %g; the smallest that passed with all above it is %g", p->share,
                smallest);
    return TAMIS_OK;
}

tamis_status tms_trial_check(const tamis_blend_trial *p, tamis_error *error) {
    TMS_REQUIRE(p->reserved32 == 0, TAMIS_E_ARGUMENT,
                "reserved32 of tamis_blend_trial is %" PRIu32 "; it must be 0", p->reserved32);
    for (size_t r = 0; r < sizeof p->reserved / sizeof *p->reserved; r++)
        TMS_REQUIRE(p->reserved[r] == 0, TAMIS_E_ARGUMENT,
                    "reserved[%zu] of tamis_blend_trial is %" PRIu64 "; it must be 0", r,
                    p->reserved[r]);
    TMS_REQUIRE(p->n_figures <= TAMIS_BLEND_TRIAL_SHARES, TAMIS_E_ARGUMENT,
                "n_figures is %" PRIu32 "; an entry holds %d", p->n_figures,
                TAMIS_BLEND_TRIAL_SHARES);
    TMS_TRY(check_settings(p, error));
    return check_figures(p, error);
}

/* ---- Writing --------------------------------------------------------------------------------- */

static void put_decimal(FILE *to, double value) {
    const uint64_t units = units_of(value);
    fprintf(to, " %" PRIu64 ".%09" PRIu64, units / 1000000000u, units % 1000000000u);
}

/* Whether a terminal obeys a byte. */
static bool is_control(char byte) {
    return (unsigned char)byte < ' ' || byte == 127;
}

static void put_name(FILE *to, const char *name) {
    fputc(' ', to);
    for (; *name; name++)
        fputc(is_control(*name) ? '?' : *name, to);
}

static void put_field(FILE *to, const field *f, const tamis_blend_trial *p) {
    const void *at = (const char *)p + f->place;
    const uint32_t number =
        f->kind == NAME || f->kind == SEED || f->kind == DECIMAL ? 0 : *(const uint32_t *)at;
    fputs(f->name, to);
    switch (f->kind) {
    case NAME:
        put_name(to, at);
        break;
    case SELECTOR:
        fprintf(to, " %s", tamis_blend_selector_name(p->selector));
        break;
    case SCHEDULE:
        fprintf(to, " %s", schedules[p->schedule]);
        break;
    case DTYPE:
        fprintf(to, " %s", tamis_dtype_name((tamis_dtype)number));
        break;
    case LAYER:
    case NUMBER:
        if (f->kind == LAYER && number == TAMIS_BLEND_NO_CHECK)
            fputs(" none", to);
        else
            fprintf(to, " %" PRIu32, number);
        break;
    case SEED:
        fprintf(to, " %" PRIu64, p->seed);
        break;
    case DECIMAL:
        put_decimal(to, *(const double *)at);
        break;
    }
    fputc('\n', to);
}

static void put_entry(FILE *to, const tamis_blend_trial *p) {
    char hex[33];
    tms_hex(p->fingerprint, hex);
    fprintf(to, "entry %s\n", hex);
    for (size_t i = 0; i < N_FIELDS; i++)
        put_field(to, &fields[i], p);
    for (uint32_t i = 0; i < p->n_figures; i++) {
        tamis_blend_figures f = p->figures[i];
        fputs("figures", to);
        for (size_t n = 0; n < N_FIGURES; n++) {
            fprintf(to, " %s", figure_names[n]);
            put_decimal(to, *number_of(&f, n));
        }
        fputs(f.passed ? " passed\n" : " failed\n", to);
    }
    fputs("end\n", to);
}

tamis_status tms_trials_print(const tms_trials *trials, char **text, size_t *bytes,
                              tamis_error *error) {
    *text = NULL;
    FILE *to = open_memstream(text, bytes);
    bool failed = !to;
    if (to) {
        fputs(MAGIC VERSION "\n", to);
        for (size_t i = 0; i < trials->count; i++)
            put_entry(to, &trials->entries[i]);
        failed = fflush(to) != 0;
        if (!failed) fprintf(to, CHECKSUM "%016" PRIx64 "\n", XXH3_64bits(*text, *bytes));
        failed = (ferror(to) != 0) | (fclose(to) != 0) | failed;
    }
    if (!failed) return TAMIS_OK;
    free(*text);
    *text = NULL;
    return tms_error_set(error, TAMIS_E_NO_MEMORY, "no memory for a file of %zu trials",
                         trials->count);
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* The lines of a file. */
typedef struct reader {
    const char *path, *at, *end;
    size_t line;    /* its number, from 1 on */
    char text[512]; /* the line, without its newline */
} reader;

static tamis_status refuse(const reader *r, const char *why, tamis_error *error) {
    return tms_error_set(error, TAMIS_E_FORMAT, "%s: line %zu, \"%s\": %s", r->path, r->line,
                         tms_quote(r->text).text, why);
}

static tamis_status next_line(reader *r, tamis_error *error) {
    const char *newline = memchr(r->at, '\n', (size_t)(r->end - r->at));
    const size_t bytes = newline ? (size_t)(newline - r->at) : 0;
    r->line++;
    r->text[0] = '\0';
    if (!newline) return refuse(r, "an entry is missing its end", error);
    if (bytes >= sizeof r->text) return refuse(r, "it is too long", error);
    if (memchr(r->at, '\0', bytes)) return refuse(r, "it has a byte 0", error);
    memcpy(r->text, r->at, bytes);
    r->text[bytes] = '\0';
    r->at = newline + 1;
    return TAMIS_OK;
}

/* A whole number of digits alone. Returns what follows, or NULL for none. */
static const char *take_digits(const char *from, uint64_t most, uint64_t *out) {
    const char *at = from;
    for (*out = 0; *at >= '0' && *at <= '9'; at++) {
        const uint64_t digit = (uint64_t)(*at - '0');
        if (*out > (most - digit) / 10) return NULL;
        *out = 10 * *out + digit;
    }
    return at == from ? NULL : at;
}

/* Digits, a point, nine digits. Returns what follows, or NULL for none. */
static const char *take_decimal(const char *from, double *out) {
    uint64_t whole, part;
    const char *at = take_digits(from, (uint64_t)MOST, &whole);
    if (!at || *at != '.') return NULL;
    const char *end = take_digits(at + 1, 999999999u, &part);
    if (!end || end - at != 10) return NULL;
    *out = (double)(whole * 1000000000u + part) / 1e9;
    return end;
}

static bool take_number(const char *from, uint64_t most, uint64_t *out) {
    const char *end = take_digits(from, most, out);
    return end && *end == '\0';
}

static bool take_dtype(const char *word, uint32_t *out) {
    uint32_t dtype = 0;
    while (dtype < TMS_DTYPES && strcmp(word, tamis_dtype_name((tamis_dtype)dtype)) != 0)
        dtype++;
    *out = dtype;
    return dtype < TMS_DTYPES;
}

static bool take_schedule(const char *word, uint32_t *out) {
    *out = strcmp(word, schedules[TAMIS_BLEND_FLAT]) == 0 ? TAMIS_BLEND_FLAT : TAMIS_BLEND_FALLING;
    return strcmp(word, schedules[*out]) == 0;
}

/* As it is written: without what a terminal obeys. */
static bool take_name(const char *word, char *out) {
    const size_t bytes = strlen(word);
    if (bytes >= sizeof((tamis_blend_trial *)0)->model) return false;
    for (size_t i = 0; i < bytes; i++)
        if (is_control(word[i])) return false;
    memcpy(out, word, bytes + 1);
    return true;
}

/* The value of a field; false if the word is none. */
static bool take_value(const field *f, const char *word, tamis_blend_trial *p) {
    void *at = (char *)p + f->place;
    uint64_t number = 0;
    uint32_t small = 0;
    const char *end;
    bool taken = false;
    switch (f->kind) {
    case NAME:
        return take_name(word, at);
    case SEED:
        return take_number(word, UINT64_MAX, at);
    case DECIMAL:
        end = take_decimal(word, at);
        return end && *end == '\0';
    case SELECTOR:
        return tamis_blend_selector_parse(word, &p->selector, NULL) == TAMIS_OK;
    case SCHEDULE:
        taken = take_schedule(word, &small);
        break;
    case DTYPE:
        taken = take_dtype(word, &small);
        break;
    case LAYER:
    case NUMBER:
        taken = take_number(word, UINT32_MAX - 1, &number);
        small = (uint32_t)number;
        if (taken || f->kind == NUMBER || strcmp(word, "none") != 0) break;
        small = TAMIS_BLEND_NO_CHECK;
        taken = true;
        break;
    }
    if (taken) memcpy(at, &small, sizeof small);
    return taken;
}

/* "name value". Returns the value, NULL for another line. */
static const char *value_of(const reader *r, const char *name) {
    const size_t bytes = strlen(name);
    return strncmp(r->text, name, bytes) == 0 && r->text[bytes] == ' ' ? r->text + bytes + 1 : NULL;
}

static bool take_figures(const char *at, tamis_blend_figures *out) {
    for (size_t n = 0; n < N_FIGURES; n++) {
        const size_t bytes = strlen(figure_names[n]);
        if (strncmp(at, figure_names[n], bytes) != 0 || at[bytes] != ' ') return false;
        at = take_decimal(at + bytes + 1, number_of(out, n));
        if (!at || *at++ != ' ') return false;
    }
    out->passed = strcmp(at, "passed") == 0;
    return out->passed || strcmp(at, "failed") == 0;
}

static bool take_hex(const char *word, uint8_t out[16]) {
    return tms_hex_parse(word, out) && word[32] == '\0';
}

static tamis_status read_entry(reader *r, tamis_blend_trial *out, tamis_error *error) {
    tamis_error why;
    *out = (tamis_blend_trial){0};
    TMS_TRY(next_line(r, error));
    const char *word = value_of(r, "entry");
    if (!word || !take_hex(word, out->fingerprint))
        return refuse(r, "it is no beginning of an entry", error);
    for (size_t i = 0; i < N_FIELDS; i++) {
        TMS_TRY(next_line(r, error));
        word = value_of(r, fields[i].name);
        if (!word || !take_value(&fields[i], word, out)) return refuse(r, fields[i].name, error);
    }
    for (;;) {
        TMS_TRY(next_line(r, error));
        if (strcmp(r->text, "end") == 0) break;
        word = value_of(r, "figures");
        if (!word || out->n_figures == TAMIS_BLEND_TRIAL_SHARES ||
            !take_figures(word, &out->figures[out->n_figures++]))
            return refuse(r, "it is no line of figures that an entry takes", error);
    }
    return tms_trial_check(out, &why) == TAMIS_OK ? TAMIS_OK : refuse(r, why.text, error);
}

/* The file's first line says another version. */
static tamis_status other_version(const char *path, const char *version, tamis_error *error) {
    char line[64];
    snprintf(line, sizeof line, "%.*s", (int)strcspn(version, "\n"), version);
    return tms_error_set(error, TAMIS_E_UNSUPPORTED,
                         "%s: is of version %s; this library reads version " VERSION, path,
                         tms_quote(line).text);
}

/* What must hold for the file as a whole: *bytes becomes those before the checksum. */
static tamis_status check_file(const char *path, const char *text, size_t *bytes,
                               tamis_error *error) {
    char wanted[CHECKSUM_BYTES + 1];
    const size_t begins = sizeof MAGIC - 1;
    TMS_REQUIRE(*bytes > begins && memcmp(text, MAGIC, begins) == 0, TAMIS_E_FORMAT,
                "%s: is no file of blend trials: it does not begin with \"" MAGIC "\"", path);
    if (*bytes <= begins + 1 || memcmp(text + begins, VERSION "\n", 2) != 0)
        return other_version(path, text + begins, error);
    TMS_REQUIRE(*bytes >= begins + 2 + CHECKSUM_BYTES, TAMIS_E_DAMAGED, "%s: has been cut short",
                path);
    *bytes -= CHECKSUM_BYTES;
    snprintf(wanted, sizeof wanted, CHECKSUM "%016" PRIx64 "\n", XXH3_64bits(text, *bytes));
    TMS_REQUIRE(memcmp(text + *bytes, wanted, CHECKSUM_BYTES) == 0, TAMIS_E_DAMAGED,
                "%s: its checksum is not that of its content: it was cut short or changed by hand; "
                "remove it and measure anew (tamis blend trial)",
                path);
    return TAMIS_OK;
}

/* Room for one entry more. */
static tamis_status grow(tms_trials *to, tamis_error *error) {
    tamis_blend_trial *more = realloc(to->entries, (to->count + 1) * sizeof *more);
    TMS_REQUIRE(more, TAMIS_E_NO_MEMORY, "no memory for %zu trials", to->count + 1);
    to->entries = more;
    return TAMIS_OK;
}

tamis_status tms_trials_parse(const char *path, const char *text, size_t bytes, tms_trials *out,
                              tamis_error *error) {
    *out = (tms_trials){0};
    TMS_TRY(check_file(path, text, &bytes, error));
    reader r = {.path = path, .at = text + sizeof(MAGIC VERSION), .end = text + bytes, .line = 1};
    tamis_status status = TAMIS_OK;
    while (status == TAMIS_OK && r.at < r.end) {
        status = grow(out, error);
        if (status == TAMIS_OK) status = read_entry(&r, &out->entries[out->count], error);
        out->count += status == TAMIS_OK;
    }
    if (status == TAMIS_OK) return status;
    free(out->entries);
    *out = (tms_trials){0};
    return status;
}
