/* SPDX-License-Identifier: Apache-2.0 */
/* An answer takes its tokens. */
#include "serve/choice.h"

#include <stdlib.h>

static bool add_entry(serve_choice *choice) {
    if (choice->n_entries == choice->entry_room) {
        const size_t room = 2 * choice->entry_room + 16;
        serve_entry *entries = realloc(choice->entries, room * sizeof *entries);
        if (entries == NULL) return false;
        choice->entries = entries;
        choice->entry_room = room;
    }
    serve_entry *entry = &choice->entries[choice->n_entries++];
    entry->drawn = choice->draw.drawn;
    entry->n_top = choice->draw.n_top;
    for (uint32_t i = 0; i < entry->n_top; i++)
        entry->top[i] = choice->draw.top[i];
    entry->offset = choice->answer.bytes;
    return true;
}

/* What the answer stopped before is not told of. */
static void drop_entries(serve_choice *choice) {
    while (choice->n_entries > 0 &&
           choice->entries[choice->n_entries - 1].offset >= choice->answer.bytes)
        choice->n_entries--;
}

bool serve_choice_add(serve_choice *choice, const tamis_vocab *vocab, int32_t token, bool ends) {
    size_t bytes = 0;
    choice->n_tokens++;
    if (ends) return true;
    if (choice->job->request->logprobs && !add_entry(choice)) return false;
    const char *piece = tamis_vocab_token_text(vocab, token, &bytes);
    if (!cli_answer_add(&choice->answer, piece, bytes)) return false;
    if (choice->answer.stopped) drop_entries(choice);
    return true;
}
