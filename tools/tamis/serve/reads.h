/* SPDX-License-Identifier: Apache-2.0 */
/* Which pages of the cache the tokens of an answer have read, as the page draws it. */
#ifndef SERVE_READS_H
#define SERVE_READS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SERVE_BINS 128u /* of a layer at most */

typedef struct serve_reads {
    uint32_t n_layers, n_heads, most_pages;
    uint16_t
        *counts; /* [n_layers][most_pages] KV heads of which the newest token has read a page */
    uint32_t of; /* pages of the newest token's longest lane; 0: it has read nothing yet */
    uint64_t read, held; /* pages, of all tokens */
    bool untold;         /* they are counted alone */
    char *told;          /* tokens that are not told yet, as a list of JSON; NULL: none yet */
    size_t told_bytes, told_room;
} serve_reads;

/* Heads are KV heads. False without memory. */
bool serve_reads_open(serve_reads *reads, uint32_t n_layers, uint32_t n_heads, uint32_t most_pages);
void serve_reads_close(serve_reads *reads);

/* The pages that a token's row has read of a lane that has `of`. */
void serve_reads_add(serve_reads *reads, uint32_t layer, const uint32_t *pages, uint32_t n,
                     uint32_t of);
/* The newest token has read all that it reads: {"of", "layers"} is added to what is told. A layer is a
 * text of min(of, SERVE_BINS) digits, one for each bin of consecutive pages: 0, no KV head has read a
 * page of it, to 9, all have read all. False without memory. */
bool serve_reads_end_token(serve_reads *reads);
/* What has not been told yet, good until the next token; NULL: nothing. It counts as told. */
const char *serve_reads_take(serve_reads *reads);

#endif
