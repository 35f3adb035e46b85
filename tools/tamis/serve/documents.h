/* SPDX-License-Identifier: Apache-2.0 */
/* Documents in prompts: their K and V are stored as chunks, and blended where they come again. Of the
 * engine's thread. */
#ifndef SERVE_DOCUMENTS_H
#define SERVE_DOCUMENTS_H

#include "cli/chat_template.h"
#include "store/shared.h"

#include <tamis/batch.h>
#include <tamis/blend_model.h>

typedef struct serve_documents_params {
    store_place place;     /* neither folder nor server: nothing is stored */
    uint64_t memory_bytes; /* of chunks that were read; 0: none */
    uint64_t disk_bytes;   /* of the folder; 0: no limit */
    tamis_dtype dtype;     /* of stored K and V */
    tamis_blend_selector selector;
    double share;
    uint32_t most_tokens;       /* of a prompt that is blended, which is one step */
    uint32_t page_tokens;       /* of stored prefixes */
    bool prefixes;              /* prompts are stored as prefixes */
    bool unchecked;             /* blends whatever the model's trial says */
    const char *trials, *model; /* files: of the gate, NULL is the user's; of the model */
} serve_documents_params;

/* What became of a prompt's documents. */
typedef struct serve_blended {
    size_t part;               /* of the prompt, from which on documents are looked for */
    uint32_t found, missed;    /* documents that the store had, and had not */
    uint32_t recorded;         /* tokens that were computed to be stored, before the blend */
    uint32_t loaded, computed; /* tokens of all documents: by the blend, and with the prompt */
} serve_blended;

typedef struct serve_documents serve_documents;

/* Sets what a plan needs for them; before the runner is made. */
void serve_documents_plan(const serve_documents_params *params, tamis_plan_params *plan);

/* Opens the store, and takes the model's fingerprint. Whether chunks may be blended is the gate's to say:
 * if not, they are computed, and a line on stderr says why. */
tamis_status serve_documents_open(const serve_documents_params *params, tamis_model *model,
                                  tamis_cache *cache, tamis_runner *runner, serve_documents **out,
                                  tamis_error *error);
/* Accepts NULL. Before the runner is destroyed. */
void serve_documents_close(serve_documents **documents);
tamis_store *serve_documents_store(serve_documents *documents);

/* Whether the prompt has documents that would be blended. `documents` may be NULL. */
bool serve_documents_has(const serve_documents *documents, const cli_prompt *prompt);
/* Looks for the prompt's documents in the store, and computes and stores the first one that is missing;
 * *done, all 0 at first, says how far that is. True: more may be missing. Runs a pass of the document's
 * tokens at most. One that the cache has no pages for, or that the store does not take, stays missing,
 * and is computed with the prompt. */
bool serve_documents_prepare(serve_documents *documents, tamis_scheduler *scheduler,
                             const cli_prompt *prompt, const uint8_t salt[16], serve_blended *done);
/* Then blends all tokens of a prompt but the last one into a new sequence, which is the caller's, in one
 * step. *sequence 0: the store has none of its documents, or the cache lacks pages; then the prompt is to
 * be computed. */
tamis_status serve_documents_blend(serve_documents *documents, tamis_scheduler *scheduler,
                                   const cli_prompt *prompt, const uint8_t salt[16],
                                   serve_blended *done, tamis_sequence *sequence,
                                   tamis_error *error);

#endif
