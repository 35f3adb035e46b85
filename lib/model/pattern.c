/* SPDX-License-Identifier: Apache-2.0 */
/* Compiles a family's expressions and applies them, one to the pieces of the other. Each piece is cut
 * as a text of its own: nothing looks beyond its ends. */
#include "lib/model/pattern.h"

#include <string.h>

#ifdef TAMIS_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

static tamis_status compile(tms_text name, tms_pattern *out, tamis_error *error) {
    for (size_t i = 0; i < TMS_MAX_EXPRESSIONS && out->family->expressions[i]; ++i) {
        int code = 0;
        PCRE2_SIZE at = 0;
        PCRE2_UCHAR reason[128] = "";
        out->codes[i] =
            pcre2_compile((PCRE2_SPTR)out->family->expressions[i], PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
        if (out->codes[i]) continue;
        pcre2_get_error_message(code, reason, sizeof reason);
        tms_pattern_free(out);
        return tms_model_fail(error, TAMIS_E_NO_MEMORY,
                              "pattern '%s' cannot be compiled: %s, at place %zu of expression %zu",
                              tms_text_show(name).text, (const char *)reason, (size_t)at, i);
    }
    return TAMIS_OK;
}

void tms_pattern_free(tms_pattern *pattern) {
    for (size_t i = 0; i < TMS_MAX_EXPRESSIONS; ++i)
        pcre2_code_free(pattern->codes[i]);
    *pattern = (tms_pattern){0};
}

bool tms_cutter_init(tms_cutter *cutter, const tms_pattern *pattern) {
    *cutter = (tms_cutter){.pattern = pattern,
                           .match = pcre2_match_data_create(1, NULL),
                           .limits = pcre2_match_context_create(NULL)};
    if (!cutter->match || !cutter->limits) return false;
    while (cutter->n_cuts < TMS_MAX_EXPRESSIONS && pattern->codes[cutter->n_cuts])
        ++cutter->n_cuts;
    /* A long run of white space is walked back once for its line ends: more steps than the default
     * allows, but no more than it has characters. */
    pcre2_set_match_limit(cutter->limits, UINT32_MAX);
    return true;
}

void tms_cutter_free(tms_cutter *cutter) {
    pcre2_match_data_free(cutter->match);
    pcre2_match_context_free(cutter->limits);
    *cutter = (tms_cutter){0};
}

/* Finds the next match of expression `i` in its piece. */
static bool find_match(tms_cutter *cutter, size_t i) {
    tms_cut *cut = &cutter->cuts[i];
    const char *text = cutter->text + cut->start;
    const int found =
        pcre2_match(cutter->pattern->codes[i], (PCRE2_SPTR)text, cut->end - cut->start,
                    cut->at - cut->start, PCRE2_NO_UTF_CHECK, cutter->match, cutter->limits);
    const PCRE2_SIZE *places = pcre2_get_ovector_pointer(cutter->match);
    cut->match = found < 0 ? cut->end : cut->start + places[0];
    cut->match_end = found < 0 ? cut->end : cut->start + places[1];
    return found >= 0 || found == PCRE2_ERROR_NOMATCH;
}
#else
static tamis_status compile(tms_text name, tms_pattern *out, tamis_error *error) {
    *out = (tms_pattern){0};
    return tms_model_fail(error, TAMIS_E_UNSUPPORTED,
                          "the vocabulary's pattern '%s' needs PCRE2, and this library was built "
                          "without it (TAMIS_PCRE2)",
                          tms_text_show(name).text);
}

void tms_pattern_free(tms_pattern *pattern) {
    *pattern = (tms_pattern){0};
}

/* Nothing is cut without a compiled pattern. */
bool tms_cutter_init(tms_cutter *cutter, const tms_pattern *pattern) {
    *cutter = (tms_cutter){.pattern = pattern};
    return true;
}

void tms_cutter_free(tms_cutter *cutter) {
    *cutter = (tms_cutter){0};
}

static bool find_match(tms_cutter *cutter, size_t i) {
    (void)cutter, (void)i;
    return false;
}
#endif

tamis_status tms_pattern_compile(tms_text name, tms_pattern *out, tamis_error *error) {
    *out = (tms_pattern){0};
    TMS_TRY(tms_family_find(name, &out->family, error));
    return compile(name, out, error);
}

static void begin(tms_cut *cut, size_t start, size_t end) {
    *cut = (tms_cut){.start = start, .at = start, .end = end, .match = start, .match_end = start};
}

void tms_cutter_start(tms_cutter *cutter, const char *text, size_t bytes) {
    memset(cutter->cuts, 0, sizeof cutter->cuts);
    cutter->text = text;
    begin(&cutter->cuts[0], 0, bytes);
}

/* Bytes of the next piece of expression `i`, which has a piece to cut. */
static size_t next_piece(tms_cutter *cutter, size_t i) {
    tms_cut *cut = &cutter->cuts[i];
    if (cut->at == cut->match_end && !find_match(cutter, i)) return 0;
    const size_t at = cut->at;
    cut->at = at < cut->match ? cut->match : cut->match_end;
    return cut->at - at;
}

size_t tms_cutter_next(tms_cutter *cutter) {
    size_t bytes = 0, i = cutter->n_cuts;
    while (i > 0 && cutter->cuts[i - 1].at == cutter->cuts[i - 1].end)
        --i;
    for (; i > 0 && i <= cutter->n_cuts; ++i) {
        bytes = next_piece(cutter, i - 1);
        if (bytes == 0) return 0;
        const size_t end = cutter->cuts[i - 1].at;
        if (i < cutter->n_cuts) begin(&cutter->cuts[i], end - bytes, end);
    }
    return bytes;
}
