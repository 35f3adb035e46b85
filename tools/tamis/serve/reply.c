/* SPDX-License-Identifier: Apache-2.0 */
/* Answers as JSON. */
#include "serve/reply.h"

#include "cli/utf8.h"
#include "serve/documents.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_LOGPROB (-9999.0) /* stands for minus infinity, which JSON lacks; OpenAI's, too */

/* ---- Probabilities --------------------------------------------------------------------------- */

static double logprob_of(const serve_likely *likely) {
    return likely->logprob > LEAST_LOGPROB ? likely->logprob : LEAST_LOGPROB;
}

static bool add_token(cJSON *to, const serve_model *model, const serve_likely *likely) {
    size_t bytes = 0;
    const char *piece = tamis_vocab_token_text(model->vocab, likely->token, &bytes);
    cJSON *list = cJSON_AddArrayToObject(to, "bytes");
    bool made = list != NULL && serve_add_text(to, "token", piece, bytes) &&
                cJSON_AddNumberToObject(to, "logprob", logprob_of(likely)) != NULL;
    for (size_t i = 0; made && i < bytes; i++)
        made = cJSON_AddItemToArray(list, cJSON_CreateNumber((unsigned char)piece[i])) != 0;
    return made;
}

/* An object at the end of a list, which owns it. */
static cJSON *add_object(cJSON *list) {
    cJSON *object = cJSON_CreateObject();
    if (object != NULL && cJSON_AddItemToArray(list, object)) return object;
    cJSON_Delete(object);
    return NULL;
}

/* {token, logprob, bytes, top_logprobs} */
static bool add_entry(cJSON *to, const serve_entry *entry, const serve_model *model) {
    cJSON *top = cJSON_AddArrayToObject(to, "top_logprobs");
    bool made = top != NULL && add_token(to, model, &entry->drawn);
    for (uint32_t k = 0; made && k < entry->n_top; k++)
        made = add_token(add_object(top), model, &entry->top[k]);
    return made;
}

/* Takes the item, which may be NULL. */
static bool add_item(cJSON *to, const char *name, cJSON *item) {
    if (item != NULL && cJSON_AddItemToObject(to, name, item)) return true;
    cJSON_Delete(item);
    return false;
}

/* JSON as it is, without a copy: it must outlive the object. */
static bool add_json(cJSON *to, const char *name, const char *json) {
    cJSON *item = cJSON_CreateStringReference(json);
    if (item != NULL) item->type = cJSON_Raw | cJSON_IsReference;
    return add_item(to, name, item);
}

static bool add_entries(cJSON *to, const serve_choice *choice, const serve_model *model) {
    cJSON *content = cJSON_AddArrayToObject(to, "content");
    bool made = content != NULL;
    for (size_t i = choice->entries_told; made && i < choice->entries_ready; i++)
        made = add_entry(add_object(content), &choice->entries[i], model);
    return made;
}

/* {"content": [entries]} */
static cJSON *chat_logprobs(const serve_choice *choice, const serve_model *model) {
    cJSON *root = cJSON_CreateObject();
    if ((choice->listed != NULL ? add_json(root, "content", choice->listed)
                                : add_entries(root, choice, model)) &&
        cJSON_AddNullToObject(root, "refusal") != NULL)
        return root;
    cJSON_Delete(root);
    return NULL;
}

static bool list(serve_choice *choice, const char *text) {
    const size_t bytes = strlen(text), room = 2 * (choice->listed_bytes + bytes) + 1;
    if (choice->listed_bytes + bytes >= choice->listed_room) {
        char *longer = realloc(choice->listed, room);
        if (longer == NULL) return false;
        choice->listed = longer;
        choice->listed_room = room;
    }
    memcpy(choice->listed + choice->listed_bytes, text, bytes + 1);
    choice->listed_bytes += bytes;
    return true;
}

/* The entries of a whole answer become text as they come. As objects of cJSON's at its end they would
 * take 15 KB for each token, and all other answers would wait for them. */
static bool list_entries(serve_choice *choice, const serve_model *model) {
    bool listed = true;
    for (size_t i = 0; listed && i < choice->entries_ready; i++) {
        cJSON *entry = cJSON_CreateObject();
        char *text =
            add_entry(entry, &choice->entries[i], model) ? cJSON_PrintUnformatted(entry) : NULL;
        listed =
            text != NULL && list(choice, choice->listed == NULL ? "[" : ",") && list(choice, text);
        free(text);
        cJSON_Delete(entry);
    }
    choice->n_entries -= choice->entries_ready;
    if (choice->n_entries > 0)
        memmove(choice->entries, choice->entries + choice->entries_ready,
                choice->n_entries * sizeof *choice->entries);
    choice->entries_ready = 0;
    return listed && (choice->finish == NULL || choice->listed == NULL || list(choice, "]"));
}

/* The name of a token in completions, where names are keys: of what is no text, "bytes:\xe2\x80", as
 * OpenAI has it. For the caller to free; NULL without memory. */
static char *name_of(const serve_model *model, int32_t token) {
    static const char head[] = "bytes:";
    size_t bytes = 0;
    const char *piece = tamis_vocab_token_text(model->vocab, token, &bytes);
    char *name = cli_utf8_text(piece, bytes);
    if (name == NULL || (strlen(name) == bytes && memcmp(name, piece, bytes) == 0)) return name;
    free(name);
    name = malloc(sizeof head + 4 * bytes);
    if (name == NULL) return NULL;
    memcpy(name, head, sizeof head);
    for (size_t i = 0; i < bytes; i++)
        snprintf(name + sizeof head - 1 + 4 * i, 5, "\\x%02x", (unsigned char)piece[i]);
    return name;
}

/* Of tokens with one text the likeliest is told: a key stands there once. */
static bool add_top(cJSON *to, const serve_entry *entry, const serve_model *model) {
    bool made = to != NULL;
    for (uint32_t k = 0; made && k < entry->n_top; k++) {
        char *name = name_of(model, entry->top[k].token);
        made =
            name != NULL && (cJSON_GetObjectItemCaseSensitive(to, name) != NULL ||
                             cJSON_AddNumberToObject(to, name, logprob_of(&entry->top[k])) != NULL);
        free(name);
    }
    return made;
}

/* Characters of the text that is sent before the one that holds the byte at `offset`. Offsets do not
 * fall from entry to entry. */
static double characters_before(serve_choice *choice, size_t offset) {
    const cli_answer *answer = &choice->answer;
    const size_t end = cli_answer_ready(answer, choice->finish != NULL);
    while (choice->counted < offset && choice->counted < end) {
        const size_t n = cli_utf8_character(answer->text + choice->counted, end - choice->counted);
        if (choice->counted + (n > 0 ? n : 1) > offset) break;
        choice->counted += n > 0 ? n : 1; /* a byte that is none becomes U+FFFD */
        choice->characters++;
    }
    return (double)choice->characters;
}

/* {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, lists of equal length */
static cJSON *text_logprobs(serve_choice *choice, const serve_model *model) {
    cJSON *root = cJSON_CreateObject();
    cJSON *tokens = cJSON_AddArrayToObject(root, "tokens");
    cJSON *logprobs = cJSON_AddArrayToObject(root, "token_logprobs");
    cJSON *tops = cJSON_AddArrayToObject(root, "top_logprobs");
    cJSON *offsets = cJSON_AddArrayToObject(root, "text_offset");
    bool made = tokens != NULL && logprobs != NULL && tops != NULL && offsets != NULL;
    for (size_t i = choice->entries_told; made && i < choice->entries_ready; i++) {
        const serve_entry *entry = &choice->entries[i];
        char *name = name_of(model, entry->drawn.token);
        made = name != NULL && cJSON_AddItemToArray(tokens, cJSON_CreateString(name)) &&
               cJSON_AddItemToArray(logprobs, cJSON_CreateNumber(logprob_of(&entry->drawn))) &&
               cJSON_AddItemToArray(offsets,
                                    cJSON_CreateNumber(characters_before(choice, entry->offset))) &&
               add_top(add_object(tops), entry, model);
        free(name);
    }
    if (made) return root;
    cJSON_Delete(root);
    return NULL;
}

/* "logprobs" of what has not been told: null where they are not asked for. */
static bool add_logprobs(cJSON *to, serve_choice *choice, const serve_model *model) {
    const serve_request *request = choice->job->request;
    if (!request->logprobs ||
        (choice->listed == NULL && choice->entries_told == choice->entries_ready))
        return cJSON_AddNullToObject(to, "logprobs") != NULL;
    cJSON *made = request->endpoint == SERVE_CHAT ? chat_logprobs(choice, model)
                                                  : text_logprobs(choice, model);
    return add_item(to, "logprobs", made);
}

/* ---- Usage ----------------------------------------------------------------------------------- */

typedef struct totals {
    double prompts,
        cached; /* tokens of each prompt once, whatever n is; its first answer's share */
    double tokens, read, held;
} totals;

static totals count(const serve_job *job) {
    totals all = {0};
    for (uint32_t i = 0; i < job->n_choices; i++) {
        const serve_choice *choice = &job->choices[i];
        const bool first = i % job->request->n == 0;
        all.prompts += first ? (double)choice->prompt->tokens.count : 0;
        all.cached += first ? choice->n_cached : 0;
        all.tokens += choice->n_tokens;
        all.read += (double)choice->reads.read;
        all.held += (double)choice->reads.held;
    }
    return all;
}

static bool add_usage(cJSON *to, const serve_job *job) {
    const totals all = count(job);
    cJSON *usage = cJSON_AddObjectToObject(to, "usage");
    return cJSON_AddNumberToObject(usage, "prompt_tokens", all.prompts) != NULL &&
           cJSON_AddNumberToObject(usage, "completion_tokens", all.tokens) != NULL &&
           cJSON_AddNumberToObject(usage, "total_tokens", all.prompts + all.tokens) != NULL &&
           cJSON_AddNumberToObject(cJSON_AddObjectToObject(usage, "prompt_tokens_details"),
                                   "cached_tokens", all.cached) != NULL;
}

static bool add_documents(cJSON *to, const serve_job *job) {
    const serve_blended *done = job->documents;
    if (done == NULL) return true;
    cJSON *documents = cJSON_AddObjectToObject(to, "documents");
    return cJSON_AddNumberToObject(documents, "loaded", done->loaded) != NULL &&
           cJSON_AddNumberToObject(documents, "computed", done->computed) != NULL &&
           cJSON_AddNumberToObject(documents, "recorded", done->recorded) != NULL;
}

/* What is this server's own: "tamis". Times are those of the first answer. */
static bool add_own(cJSON *to, const serve_job *job) {
    const serve_choice *first = &job->choices[0];
    const double span = first->last - first->first;
    const totals all = count(job);
    cJSON *own = cJSON_AddObjectToObject(to, "tamis");
    if (cJSON_AddNumberToObject(own, "first_token_seconds", first->first - job->arrived) == NULL)
        return false;
    if (first->n_tokens > 1 && span > 0 &&
        cJSON_AddNumberToObject(own, "tokens_per_second", (first->n_tokens - 1) / span) == NULL)
        return false;
    if (job->request->reads && (cJSON_AddNumberToObject(own, "pages_read", all.read) == NULL ||
                                cJSON_AddNumberToObject(own, "pages_held", all.held) == NULL))
        return false;
    return cJSON_AddNumberToObject(own, "cached_tokens", first->n_cached) != NULL &&
           add_documents(own, job);
}

/* ---- Objects --------------------------------------------------------------------------------- */

static cJSON *begin(const serve_job *job, const serve_model *model, bool chunk) {
    const bool chat = job->request->endpoint == SERVE_CHAT;
    const char *object = !chat   ? "text_completion"
                         : chunk ? "chat.completion.chunk"
                                 : "chat.completion";
    cJSON *root = cJSON_CreateObject();
    if (cJSON_AddStringToObject(root, "id", job->id) != NULL &&
        cJSON_AddStringToObject(root, "object", object) != NULL &&
        cJSON_AddNumberToObject(root, "created", (double)job->created) != NULL &&
        cJSON_AddStringToObject(root, "model", model->name) != NULL)
        return root;
    cJSON_Delete(root);
    return NULL;
}

static bool add_finish(cJSON *to, const serve_choice *choice) {
    return choice->finish != NULL
               ? cJSON_AddStringToObject(to, "finish_reason", choice->finish) != NULL
               : cJSON_AddNullToObject(to, "finish_reason") != NULL;
}

/* Text from `told` on, as far as it is certain, in the shape of the endpoint. */
static bool add_said(cJSON *to, const serve_choice *choice, size_t end, bool chunk) {
    const cli_answer *answer = &choice->answer;
    const char *text = answer->bytes > 0 ? answer->text + choice->told : "";
    const size_t bytes = end - choice->told;
    if (choice->job->request->endpoint == SERVE_COMPLETIONS)
        return serve_add_text(to, "text", text, bytes);
    cJSON *said = cJSON_AddObjectToObject(to, chunk ? "delta" : "message");
    if (chunk) return bytes == 0 ? said != NULL : serve_add_text(said, "content", text, bytes);
    return cJSON_AddStringToObject(said, "role", "assistant") != NULL &&
           serve_add_text(said, "content", text, bytes) &&
           cJSON_AddNullToObject(said, "refusal") != NULL;
}

static bool add_choice(cJSON *choices, serve_choice *choice, const serve_model *model, size_t end,
                       bool chunk) {
    cJSON *one = add_object(choices);
    return cJSON_AddNumberToObject(one, "index", choice->index) != NULL &&
           add_said(one, choice, end, chunk) && add_logprobs(one, choice, model) &&
           add_finish(one, choice);
}

/* ---- Sending --------------------------------------------------------------------------------- */

/* The job is given up: what its client would get is not whole. */
static void give_up(serve_job *job) {
    serve_refusal refusal;
    serve_refuse_memory(&refusal);
    serve_reply_refuse(job, &refusal);
}

static bool send_event(serve_job *job, const char *text) {
    static const char head[] = "data: ", tail[] = "\n\n";
    const size_t bytes = strlen(text);
    char *event = malloc(bytes + sizeof head + sizeof tail);
    if (event == NULL) return false;
    memcpy(event, head, sizeof head - 1);
    memcpy(event + sizeof head - 1, text, bytes);
    memcpy(event + sizeof head - 1 + bytes, tail, sizeof tail - 1);
    serve_job_write(job, event, bytes + sizeof head + sizeof tail - 2);
    free(event);
    return true;
}

/* Takes the object. */
static void send_chunk(serve_job *job, cJSON *root, bool made) {
    char *text = made ? cJSON_PrintUnformatted(root) : NULL;
    if (text == NULL || !send_event(job, text)) give_up(job);
    free(text);
    cJSON_Delete(root);
}

static bool add_null_usage(cJSON *root, const serve_job *job) {
    return !job->request->usage || cJSON_AddNullToObject(root, "usage") != NULL;
}

void serve_reply_begin(serve_job *job, const serve_model *model) {
    for (uint32_t i = 1; i < job->n_choices; i++) /* a whole answer has the reads of one */
        job->choices[i].reads.untold = !job->request->stream;
    if (!job->request->stream || job->request->endpoint != SERVE_CHAT) return;
    for (uint32_t i = 0; i < job->n_choices; i++) {
        cJSON *root = begin(job, model, true);
        cJSON *choice = add_object(cJSON_AddArrayToObject(root, "choices"));
        cJSON *delta = cJSON_AddObjectToObject(choice, "delta");
        const bool made = cJSON_AddStringToObject(delta, "role", "assistant") != NULL &&
                          cJSON_AddStringToObject(delta, "content", "") != NULL &&
                          cJSON_AddNumberToObject(choice, "index", i) != NULL &&
                          cJSON_AddNullToObject(choice, "logprobs") != NULL &&
                          cJSON_AddNullToObject(choice, "finish_reason") != NULL &&
                          add_null_usage(root, job);
        send_chunk(job, root, made);
    }
}

static bool add_reads(cJSON *root, serve_choice *choice) {
    const char *told = serve_reads_take(&choice->reads);
    return told == NULL || add_json(cJSON_AddObjectToObject(root, "tamis"), "reads", told);
}

/* A token may be a part of a stop text as long as its own text is held back. */
static void find_ready(serve_choice *choice, size_t end) {
    size_t ready = choice->n_entries;
    while (choice->finish == NULL && ready > choice->entries_told &&
           choice->entries[ready - 1].offset >= end)
        ready--;
    choice->entries_ready = ready;
}

void serve_reply_more(serve_choice *choice, const serve_model *model) {
    serve_job *job = choice->job;
    const size_t end = cli_answer_ready(&choice->answer, choice->finish != NULL);
    find_ready(choice, end);
    if (!job->request->stream && job->request->endpoint == SERVE_CHAT &&
        !list_entries(choice, model))
        give_up(job);
    if (!job->request->stream || (end == choice->told && choice->finish == NULL)) return;
    cJSON *root = begin(job, model, true), *choices = cJSON_AddArrayToObject(root, "choices");
    const bool made = add_choice(choices, choice, model, end, true) && add_reads(root, choice) &&
                      add_null_usage(root, job);
    choice->told = end;
    choice->entries_told = choice->entries_ready;
    send_chunk(job, root, made);
}

static void end_stream(serve_job *job, const serve_model *model) {
    if (job->request->usage) {
        cJSON *root = begin(job, model, true);
        const bool made = cJSON_AddArrayToObject(root, "choices") != NULL && add_usage(root, job) &&
                          add_own(root, job);
        send_chunk(job, root, made);
    }
    if (!send_event(job, "[DONE]")) give_up(job);
    serve_job_end(job, 200, 0);
}

static bool add_all_reads(cJSON *root, serve_job *job) {
    const char *told = serve_reads_take(&job->choices[0].reads);
    return told == NULL || add_json(cJSON_GetObjectItemCaseSensitive(root, "tamis"), "reads", told);
}

static void end_whole(serve_job *job, const serve_model *model) {
    cJSON *root = begin(job, model, false), *choices = cJSON_AddArrayToObject(root, "choices");
    bool made = choices != NULL;
    for (uint32_t i = 0; made && i < job->n_choices; i++)
        made = add_choice(choices, &job->choices[i], model,
                          cli_answer_ready(&job->choices[i].answer, true), false);
    char *text = made && add_usage(root, job) && add_own(root, job) && add_all_reads(root, job)
                     ? cJSON_PrintUnformatted(root)
                     : NULL;
    if (text != NULL) {
        serve_job_write(job, text, strlen(text));
        serve_job_end(job, 200, 0);
    } else {
        give_up(job);
    }
    free(text);
    cJSON_Delete(root);
}

void serve_reply_end(serve_job *job, const serve_model *model) {
    if (job->request->stream)
        end_stream(job, model);
    else
        end_whole(job, model);
}

void serve_reply_refuse(serve_job *job, const serve_refusal *refusal) {
    char *text = serve_refusal_json(refusal);
    /* Without memory it ends all the same, and nothing says why. */
    if (text != NULL && job->request->stream)
        send_event(job, text);
    else if (text != NULL)
        serve_job_write(job, text, strlen(text));
    free(text);
    serve_job_end(job, refusal->http, refusal->wait);
}
