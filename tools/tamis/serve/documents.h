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

/* What became of a prompt's documents, in tokens. */
typedef struct serve_blended {
    bool tried;             /* it has documents, and they could have been loaded */
    uint32_t found, missed; /* documents */
    uint32_t loaded, computed;
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
/* Blends all tokens of a prompt but the last one into a new sequence, which is the caller's. *sequence 0:
 * the store has none of its documents, or the cache lacks pages; then they are to be computed. What is
 * missing is noted, to be stored. Runs one step. */
tamis_status serve_documents_blend(serve_documents *documents, tamis_scheduler *scheduler,
                                   const cli_prompt *prompt, const uint8_t salt[16],
                                   tamis_sequence *sequence, serve_blended *out,
                                   tamis_error *error);
/* Computes and stores one document of those that were missing. False: there is none. Runs a pass of its
 * tokens. One that is not stored, since the cache lacks pages or the store does not take it, is noted
 * again with the next prompt that has it. */
bool serve_documents_record(serve_documents *documents, tamis_scheduler *scheduler);

#endif
