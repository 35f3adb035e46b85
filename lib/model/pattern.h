/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts text into pieces, as a family of vocabularies does. */
#ifndef TMS_PATTERN_H
#define TMS_PATTERN_H

#include "lib/model/pattern_table.h"

typedef struct tms_pattern {
    const tms_family *family;
    void *codes[TMS_MAX_EXPRESSIONS]; /* compiled, and never changed by cutting */
} tms_pattern;

/* E_UNSUPPORTED: a name that is not known, or a library without PCRE2; E_NO_MEMORY. */
tamis_status tms_pattern_compile(tms_text name, tms_pattern *out, tamis_error *error);
void tms_pattern_free(tms_pattern *pattern);

/* How far one expression is, as places of the text: in the piece that it cuts, of which `at` is the
 * first byte that is left, and the next match in it, which has been found. Without one the match is
 * empty and lies at the end. */
typedef struct tms_cut {
    size_t start, at, end, match, match_end;
} tms_cut;

/* What cutting one text needs, for one thread. */
typedef struct tms_cutter {
    const tms_pattern *pattern;
    void *match, *limits;
    const char *text;
    tms_cut cuts[TMS_MAX_EXPRESSIONS];
    size_t n_cuts;
} tms_cutter;

bool tms_cutter_init(tms_cutter *cutter, const tms_pattern *pattern);
void tms_cutter_free(tms_cutter *cutter);
/* Begins a text, which is UTF-8. */
void tms_cutter_start(tms_cutter *cutter, const char *text, size_t bytes);
/* Bytes of the next piece: 1 at least; 0 behind the last one and without memory. */
size_t tms_cutter_next(tms_cutter *cutter);

#endif
