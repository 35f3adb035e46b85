/* SPDX-License-Identifier: Apache-2.0 */
/* Which names of tokenizer.ggml.pre are known, and how texts of such vocabularies are cut. */
#ifndef TMS_PATTERN_TABLE_H
#define TMS_PATTERN_TABLE_H

#include "lib/model/gguf.h"

#define TMS_MAX_EXPRESSIONS 6

typedef struct tms_family {
    const char *names; /* with a space between two */
    /* Of PCRE2, and none matches nothing. The first one cuts the text, each further one the pieces of
     * the one before it: a match is a piece, and so is what lies between two of them. */
    const char *expressions[TMS_MAX_EXPRESSIONS];
    bool whole_pieces; /* a piece that is itself a token is not merged */
    bool add_bos;      /* unless the file says otherwise */
} tms_family;

/* E_UNSUPPORTED: a name that is not known. */
tamis_status tms_family_find(tms_text name, const tms_family **out, tamis_error *error);
/* The families one after the other; NULL behind the last one. */
const tms_family *tms_family_get(size_t index);

#endif
