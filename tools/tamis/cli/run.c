/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis run`: reads a prompt exactly, runs the question under the selection, answers. */
#include "cli/chunks.h"
#include "cli/commands.h"
#include "cli/converse.h"
#include "cli/interrupt.h"
#include "cli/record.h"
#include "cli/sampling.h"
#include "cli/saved.h"
#include "cli/session.h"
#include "cli/stdin.h"

#include <stdlib.h>
#include <string.h>

typedef struct run_flags {
    const char *device, *model, *file, *prompt, *prompt_file, *question, *system, *date, *session;
    const char *json;
    cli_texts stops;
    uint32_t tokens, dtype, bounds_dtype, page_size, context;
    uint32_t times, ignore_eos, chat, chat_format;
    cli_policy_flags policies;
    cli_sampling_flags sampling;
    cli_chunk_flags chunks;
} run_flags;

static const char *const off_on[] = {"off", "on", NULL};

static const cli_option options[] = {
    CLI_MODEL_OPTION(run_flags, model),
    {"--file", "FILE", "a text that stands before the prompt", CLI_INPUT, offsetof(run_flags, file),
     0, 0, NULL},
    {"--prompt", "TEXT", "text that the model reads exactly, attending every page", CLI_TEXT,
     offsetof(run_flags, prompt), 0, 0, NULL},
    {"--prompt-file", "FILE", "the prompt from a file", CLI_INPUT, offsetof(run_flags, prompt_file),
     0, 0, NULL},
    CLI_CHUNK_OPTIONS(run_flags, chunks),
    {"--question", "TEXT", "text after the prompt, read token by token under the selection",
     CLI_TEXT, offsetof(run_flags, question), 0, 0, NULL},
    CLI_POLICY_OPTIONS(run_flags, policies),
    {"--times", "WORD",
     "{}: whether to print the device time of evicting, for which each step waits, and with "
     "chunks the time to the first token (default off)",
     CLI_CHOICE, offsetof(run_flags, times), 0, 0, off_on},
    {"--tokens", "N", "most tokens of an answer (default 64, with --chat 1024)", CLI_NUMBER,
     offsetof(run_flags, tokens), 1, CLI_TOKENS_MAX, NULL},
    {"--session", "FILE",
     "goes on with what FILE holds, where it is there, and keeps the sequence in it for a later "
     "run",
     CLI_PATH, offsetof(run_flags, session), 0, 0, NULL},
    {"--chat", "", "a conversation: each line of standard input is answered", CLI_FLAG,
     offsetof(run_flags, chat), 0, 0, NULL},
    {"--system", "TEXT", "what the model is told before the conversation", CLI_TEXT,
     offsetof(run_flags, system), 0, 0, NULL},
    {"--chat-format", "NAME",
     "the form of the conversation: {} (default: as the file's template has it)", CLI_CHOICE,
     offsetof(run_flags, chat_format), 0, 0, cli_chat_names},
    {"--date", "DATE",
     "YYYY-MM-DD: what a template that asks for today's date is told (default: nothing)", CLI_TEXT,
     offsetof(run_flags, date), 0, 0, NULL},
    CLI_SAMPLING_OPTIONS(run_flags, sampling),
    {"--stop", "TEXT", "the answer ends before this text, the first of them to be complete",
     CLI_TEXTS, offsetof(run_flags, stops), 0, 0, NULL},
    {"--ignore-eos", "", "the tokens that end an answer, eos and others, do not", CLI_FLAG,
     offsetof(run_flags, ignore_eos), 0, 0, NULL},
    {"--context", "N", "most tokens of the whole text (default: the model's context)", CLI_NUMBER,
     offsetof(run_flags, context), 1, CLI_TOKENS_MAX, NULL},
    CLI_DTYPE_OPTION("--cache-dtype", run_flags, dtype),
    CLI_BOUNDS_DTYPE_OPTION(run_flags, bounds_dtype),
    CLI_PAGE_SIZE_OPTION(run_flags, page_size),
    {"--json", "FILE",
     "write answers and figures as JSON, once they are complete; - is standard output", CLI_OUTPUT,
     offsetof(run_flags, json), 0, 0, NULL},
    CLI_DEVICE_OPTION(run_flags, device),
};

static int run_command(int argc, char *const *argv);

const cli_command cli_run_command = {
    "tamis run",
    "answer a prompt with a model, reading part of its KV cache",
    "--model FILE [--file FILE] [--prompt TEXT | --prompt-file FILE] [--chat] [OPTIONS]",
    "The model reads the prompt exactly. Question and answer are then run under the selection,\n"
    "token by token; each next token is the most likely one or, with --temperature, drawn. The\n"
    "answer ends at eos, eot or another control token by which models end a turn or a text, and\n"
    "at Ctrl-C; a second Ctrl-C ends the program.\n"
    "A run that Ctrl-C ended, in the prompt or in the answer, has exit status 130. The answer "
    "goes\n"
    "to stdout; a line of figures goes to stderr, and with --evict a second one. Of a character\n"
    "that is not whole when the answer ends, nothing is written.\n"
    "\n"
    "With --chat each line of standard input is a turn, which is added to the same cache. The "
    "text\n"
    "of --file and --prompt stands before the first line. It is read exactly; under a selection "
    "or\n"
    "an eviction the lines are read like a question, but for the first where no text stands "
    "before\n"
    "it. The conversation ends with the lines. Its form is what the file's chat template makes of\n"
    "it, the template's own system text included where --system gives none. Ctrl-C ends an "
    "answer;\n"
    "where the lines come from no terminal it ends the conversation, and the exit status is 130.\n"
    "\n"
    "With --session the sequence is kept in a file that nobody else may read: K and V of all\n"
    "layers, of a large model many MiB for 1000 tokens. Where the file is there, its text is\n"
    "not read again: the prompt goes on behind the last answer, without bos, or with --chat the\n"
    "next line does. The model, --cache-dtype, --page-size and --evict with its numbers must be\n"
    "those of the run that wrote it; a fingerprint of the model is taken, which reads its\n"
    "weights once. The file is replaced as a whole at the end: a run that fails, or is\n"
    "interrupted before its text was read, leaves it as it was. Whoever may write it decides\n"
    "what the model goes on from.\n"
    "\n"
    "With --chunks or --chunk-tokens the text before the prompt consists of chunks, whose K and V\n"
    "are kept in a store from one run to the next. Those that it has are loaded in the place of\n"
    "being computed; all their tokens but those that --blend chooses keep what was computed\n"
    "without the text before them. So the answer is an approximation, but for --blend all, which\n"
    "loads nothing. The others are computed, and put into the store behind the answer. A second\n"
    "line of figures says what was found, loaded and computed.\n"
    "\n"
    "With --prefix-store whole pages of the text are stored, each for what stands before it. The\n"
    "pages with which a later text begins alike are loaded, if they were computed over a cache of\n"
    "the same type, and its answer is the same as without. It does not go with --evict h2o.",
    "  tamis run --model tests/data/needle.gguf --prompt \"$(head -c 1500 tests/data/text.txt)\" "
    "\\\n"
    "      --question 'And the name of' --select quest --budget 256 --tokens 20\n"
    "  tamis run --model tests/data/needle.gguf --prompt-file prompt.txt --evict snapkv \\\n"
    "      --evict-budget 256 --times on\n"
    "  tamis run --model model.gguf --chat --file book.txt --system 'Answer briefly.' \\\n"
    "      --select quest --budget 1024 --temperature 0.7\n"
    "  tamis run --model model.gguf --chat --session talk.kv\n"
    "  tamis run --model model.gguf --prompt 'Once upon a time' --device reference\n"
    "  tamis run --model model.gguf --file book.txt --chunk-tokens 512 --store chunks \\\n"
    "      --prompt ' In short:' --share 15 --times on\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run_command};

/* Flags that do not go with --chat, or not without it. */
static bool check_chat(const run_flags *f) {
    const char *name = cli_run_command.name, *reader;
    if (!f->chat && (f->system != NULL || f->chat_format != CLI_UNSET || f->date != NULL))
        cli_fail(name, "%s: belongs to --chat, which is not given",
                 f->system != NULL             ? "--system"
                 : f->chat_format != CLI_UNSET ? "--chat-format"
                                               : "--date");
    else if (f->chat && f->question != NULL)
        cli_fail(name, "--question: is given with --chat, whose lines are the questions");
    else if (f->chat && f->chunks.prefix_store != NULL)
        cli_fail(name, "--chat: is given with --prefix-store, whose text is no conversation");
    else if (f->chat && (f->chunks.files.count > 0 || f->chunks.chunk_tokens != CLI_UNSET))
        cli_fail(name, "--chat: is given with %s, whose text is no conversation",
                 f->chunks.files.count > 0 ? "--chunks" : "--chunk-tokens");
    else if (f->chat && (reader = cli_stdin_take("--chat")) != NULL)
        cli_fail(name, "%s -: is given with --chat, which reads lines from standard input", reader);
    else
        return true;
    return false;
}

/* Stored chunks stand before all other text; the file can be written. */
static bool check_session(const run_flags *f) {
    const char *name = cli_run_command.name;
    const cli_saved saved = {.path = f->session};
    const char *other = f->chunks.prefix_store != NULL        ? "--prefix-store"
                        : f->chunks.files.count > 0           ? "--chunks"
                        : f->chunks.chunk_tokens != CLI_UNSET ? "--chunk-tokens"
                                                              : NULL;
    if (f->session == NULL) return true;
    if (other != NULL) {
        cli_fail(name, "--session: is given with %s, whose chunks stand before any other text",
                 other);
        return false;
    }
    return cli_saved_check(&saved, name);
}

static int parse(run_flags *f, int argc, char *const *argv) {
    int code = cli_parse(&cli_run_command, f, argc, argv);
    if (code >= 0) return code;
    if (f->model == NULL)
        cli_fail(cli_run_command.name, "--model: is missing (see %s --help)", cli_run_command.name);
    else if (f->prompt != NULL && f->prompt_file != NULL)
        cli_fail(cli_run_command.name, "--prompt, --prompt-file: give exactly one of them");
    else if (!check_chat(f) || !check_session(f))
        return CLI_USAGE;
    else if (!f->chat && f->prompt == NULL && f->prompt_file == NULL && f->file == NULL &&
             f->chunks.files.count == 0)
        cli_fail(cli_run_command.name,
                 "--prompt, --prompt-file: give exactly one of them, or --file");
    else
        return -1;
    return CLI_USAGE;
}

/* What is given before a question: the file, and the prompt behind it from *from on. */
static tamis_status read_text(const run_flags *f, char **text, size_t *bytes, size_t *from,
                              tamis_error *error) {
    char *file = NULL, *prompt = NULL;
    size_t n_file = 0, n_prompt = f->prompt != NULL ? strlen(f->prompt) : 0;
    tamis_status status = TAMIS_OK;
    if (f->file != NULL) status = cli_read_text(f->file, &file, &n_file, error);
    if (status == TAMIS_OK && f->prompt_file != NULL)
        status = cli_read_text(f->prompt_file, &prompt, &n_prompt, error);
    if (status == TAMIS_OK) {
        *from = n_file;
        *bytes = n_file + n_prompt;
        *text = malloc(*bytes + 1);
        if (*text == NULL) status = cli_no_memory(error);
    }
    if (status == TAMIS_OK) {
        if (n_file > 0) memcpy(*text, file, n_file);
        if (n_prompt > 0) memcpy(*text + n_file, prompt != NULL ? prompt : f->prompt, n_prompt);
    }
    free(file);
    free(prompt);
    return status;
}

/* The prompt in exact chunks, the question token by token. */
static tamis_status feed(cli_session *s, const cli_tokens *prompt, const cli_tokens *question,
                         tamis_error *error) {
    const size_t before = s->length + s->unread;
    if (before + prompt->count + question->count > s->context && before > 0)
        return cli_error(
            error, TAMIS_E_ARGUMENT,
            "prompt and question have %zu tokens behind the session's %zu, the context "
            "is %u",
            prompt->count + question->count, before, s->context);
    if (prompt->count + question->count > s->context)
        return cli_error(error, TAMIS_E_ARGUMENT,
                         "prompt and question have %zu tokens, the context is %u",
                         prompt->count + question->count, s->context);
    tamis_status status = cli_session_catch_up(s, error);
    if (status == TAMIS_OK) status = cli_session_read(s, prompt->ids, prompt->count, error);
    if (status == TAMIS_OK && !s->interrupted)
        status = cli_session_step(s, question->ids, question->count, error);
    s->half_read = s->interrupted;
    if (status == TAMIS_OK && s->interrupted)
        fprintf(stderr, "%s: interrupted after %zu of %zu tokens of the %s\n", cli_run_command.name,
                s->length, prompt->count + question->count,
                question->count > 0 ? "prompt and the question" : "prompt");
    return status;
}

static tamis_status answer(cli_session *s, const run_flags *f, cli_record *record,
                           tamis_error *error) {
    cli_answer to = {.to = stdout, .stops = &f->stops};
    cli_end end = CLI_END_TOKEN;
    const uint32_t most = f->tokens != CLI_UNSET ? f->tokens : 64;
    tamis_status status = cli_session_answer(s, &to, most, &end, error);
    if (status == TAMIS_OK) status = cli_record_answer(record, &to, end, error);
    cli_answer_end(&to);
    if (status == TAMIS_OK && end == CLI_END_CONTEXT)
        fprintf(stderr, "%s: the context of %u tokens is full\n", cli_run_command.name, s->context);
    return status;
}

static tamis_status answer_prompt(cli_session *s, const run_flags *f, const char *prompt,
                                  size_t bytes, cli_record *record, tamis_error *error) {
    cli_tokens text = {0}, question = {0};
    const tamis_vocab *vocab = tamis_model_vocab(s->model);
    const uint32_t bos = s->length == 0 ? TAMIS_ENCODE_ADD_BOS : 0;
    tamis_status status = cli_tokenize(vocab, prompt, bytes, bos, &text, error);
    if (status == TAMIS_OK && f->question != NULL)
        status = cli_tokenize(vocab, f->question, strlen(f->question), 0, &question, error);
    cli_interrupt_catch();
    if (status == TAMIS_OK) status = feed(s, &text, &question, error);
    if (status == TAMIS_OK) status = answer(s, f, record, error);
    cli_interrupt_release();
    free(text.ids);
    free(question.ids);
    return status;
}

/* ---- Stored chunks --------------------------------------------------------------------------- */

static tamis_status read_chunks(cli_session *s, cli_chunks *chunks, const cli_tokens *question,
                                tamis_error *error) {
    const size_t count = cli_chunks_count(chunks);
    if (count + question->count > s->context)
        return cli_error(error, TAMIS_E_ARGUMENT,
                         "chunks, prompt and question have %zu tokens, the context is %u",
                         count + question->count, s->context);
    tamis_status status = cli_chunks_read(chunks, s, error); /* one step, which Ctrl-C ends too */
    cli_interrupt_catch();
    if (status == TAMIS_OK) status = cli_session_step(s, question->ids, question->count, error);
    return status;
}

static tamis_status answer_chunks(cli_session *s, const run_flags *f, cli_chunks *chunks,
                                  cli_record *record, tamis_error *error) {
    cli_tokens question = {0};
    tamis_status status = TAMIS_OK;
    if (f->question != NULL)
        status = cli_tokenize(tamis_model_vocab(s->model), f->question, strlen(f->question), 0,
                              &question, error);
    if (status == TAMIS_OK) status = read_chunks(s, chunks, &question, error);
    if (status == TAMIS_OK) status = answer(s, f, record, error);
    cli_interrupt_release();
    free(question.ids);
    return status;
}

/* ---- Sessions -------------------------------------------------------------------------------- */

/* What a session that was kept goes on with: a conversation with another line, anything else with a
 * prompt. */
static tamis_status check_restored(const run_flags *f, const cli_saved *saved, size_t bytes,
                                   tamis_error *error) {
    if (!saved->restored) return TAMIS_OK;
    if (!f->chat && saved->turns > 0)
        return cli_error(error, TAMIS_E_ARGUMENT,
                         "%s: holds a conversation, which goes on with --chat", saved->path);
    if (f->chat && saved->turns == 0)
        return cli_error(error, TAMIS_E_ARGUMENT,
                         "%s: holds no conversation, and goes on without --chat", saved->path);
    if (f->chat && (bytes > 0 || f->system != NULL))
        return cli_error(
            error, TAMIS_E_ARGUMENT,
            "%s: holds a conversation, before which neither a text nor --system can be "
            "put any more",
            saved->path);
    return TAMIS_OK;
}

static tamis_status restore(const run_flags *f, cli_saved *saved, cli_session *s, size_t bytes,
                            tamis_error *error) {
    if (saved->path == NULL) return TAMIS_OK;
    const tamis_status status = cli_saved_restore(saved, s, error);
    return status == TAMIS_OK ? check_restored(f, saved, bytes, error) : status;
}

/* The form of a conversation that goes on is the one in which it began. */
static tamis_status check_format(const cli_saved *saved, const cli_chat *chat, tamis_error *error) {
    const char *name = cli_chat_name(chat);
    if (!saved->restored || strcmp(saved->format, name) == 0) return TAMIS_OK;
    return cli_error(error, TAMIS_E_ARGUMENT, "%s: its conversation has the form %s, not %s",
                     saved->path, saved->format, name);
}

static tamis_status converse(cli_session *s, const run_flags *f, const char *text, size_t bytes,
                             cli_saved *saved, bool under_selection, cli_record *record, int *code,
                             tamis_error *error) {
    cli_chat chat;
    const cli_conversation how = {.command = cli_run_command.name,
                                  .text = text,
                                  .bytes = bytes,
                                  .under_selection = under_selection,
                                  .most = f->tokens != CLI_UNSET ? f->tokens : 1024,
                                  .stops = &f->stops,
                                  .record = record};
    const char *name = f->chat_format != CLI_UNSET ? cli_chat_names[f->chat_format] : NULL;
    tamis_status status =
        cli_chat_open(tamis_model_vocab(s->model), name, f->system, f->date, &chat, error);
    if (status == TAMIS_OK) status = check_format(saved, &chat, error);
    if (status != TAMIS_OK) return status;
    chat.turns = saved->turns;
    status = cli_converse(s, &chat, &how, code, error);
    saved->turns = chat.turns;
    snprintf(saved->format, sizeof(saved->format), "%s", cli_chat_name(&chat));
    return status;
}

/* Times of evicting, or of chunks. */
static bool check_times(const run_flags *f, bool chunks) {
    const bool evicts = CLI_EVICTION_KIND(f->policies.evict) != TAMIS_EVICT_NONE;
    if (!f->times || evicts || chunks) return true;
    cli_fail(cli_run_command.name, "--times: is given where nothing is evicted (see --evict)");
    return false;
}

/* h2o sums the attention of all tokens of a prompt, and loaded ones attend to nothing: it would keep
 * others than without the store. */
static bool check_prefix_eviction(const tamis_eviction *eviction, const cli_chunks_params *chunks) {
    if (!chunks->prefix || eviction->kind != TAMIS_EVICT_H2O) return true;
    cli_fail(cli_run_command.name,
             "--evict h2o: is given with --prefix-store; h2o sums the attention of every token of "
             "a text, and those that are loaded have none");
    return false;
}

/* What the flags say of chunks, device, model, cache, plan and sampling. */
static bool choose_params(const run_flags *f, cli_session_params *out, cli_chunks_params *chunks) {
    if (!cli_chunks_check(cli_run_command.name, &f->chunks, f->file != NULL, chunks)) return false;
    chunks->model = f->model;
    *out = (cli_session_params){
        .device = f->device,
        .model = f->model,
        .context = f->context,
        .stores = chunks->used,
        .cache = {.page_size = cli_page_size(f->page_size),
                  .dtype = (tamis_dtype)f->dtype,
                  .bounds_dtype = (tamis_bounds_dtype)f->bounds_dtype},
        .plan = {.flags = f->times != 0 && CLI_EVICTION_KIND(f->policies.evict) != TAMIS_EVICT_NONE
                              ? TAMIS_PLAN_TIMING
                              : 0}};
    if (!check_times(f, chunks->used) ||
        !cli_policies(cli_run_command.name, &f->policies, cli_page_size(f->page_size),
                      &out->plan.selection, &out->plan.eviction, &out->cache.bounds.kind) ||
        !check_prefix_eviction(&out->plan.eviction, chunks) ||
        !cli_sampling(cli_run_command.name, &f->sampling, &out->sampling))
        return false;
    out->cache.planes = tamis_eviction_planes(&out->plan.eviction);
    return true;
}

static void report(const run_flags *f, const cli_session *s, const cli_session_params *params) {
    cli_session_report(s);
    if (params->plan.eviction.kind != TAMIS_EVICT_NONE)
        cli_session_report_eviction(s, &params->plan.eviction, f->times != 0);
}

/* Opens everything, reads and answers, prints the figures, and keeps the session. */
static tamis_status run(const run_flags *f, cli_session_params *params, cli_session *s,
                        cli_record *record, int *code, tamis_error *error) {
    const bool evicts = params->plan.eviction.kind != TAMIS_EVICT_NONE;
    const bool sparse = evicts || params->plan.selection.kind != TAMIS_SELECT_FULL;
    cli_saved saved = {.path = f->session};
    char *text = NULL;
    size_t bytes = 0, from = 0;
    tamis_status status = read_text(f, &text, &bytes, &from, error);
    if (status == TAMIS_OK) status = cli_session_open(s, params, error);
    if (status == TAMIS_OK) status = restore(f, &saved, s, bytes, error);
    cli_stdin_hint();
    if (status == TAMIS_OK)
        status = f->chat ? converse(s, f, text, bytes, &saved, sparse, record, code, error)
                         : answer_prompt(s, f, text, bytes, record, error);
    if (status == TAMIS_OK) report(f, s, params);
    if (status == TAMIS_OK && f->session != NULL &&
        !cli_saved_write(&saved, s, cli_run_command.name))
        *code = CLI_FAILED;
    free(text);
    return status;
}

/* The same with stored chunks before the prompt; those that were missing are stored behind it. */
static tamis_status run_chunks(const run_flags *f, cli_session_params *params,
                               const cli_chunks_params *how, cli_session *s, cli_record *record,
                               tamis_error *error) {
    cli_chunks *chunks = NULL;
    char *text = NULL;
    size_t bytes = 0, from = 0;
    tamis_status status = read_text(f, &text, &bytes, &from, error);
    if (status == TAMIS_OK) status = cli_session_load(s, params, error);
    cli_stdin_hint();
    if (status == TAMIS_OK)
        status = how->prefix ? cli_chunks_open(&f->chunks, how, s, NULL, 0, text, bytes,
                                               &params->plan, &chunks, error)
                             : cli_chunks_open(&f->chunks, how, s, text, from, text + from,
                                               bytes - from, &params->plan, &chunks, error);
    if (status == TAMIS_OK) status = cli_session_start(s, params, error);
    if (status == TAMIS_OK) status = answer_chunks(s, f, chunks, record, error);
    if (status == TAMIS_OK) {
        report(f, s, params);
        cli_chunks_report(chunks, f->times != 0);
        if (!cli_interrupted()) status = cli_chunks_record(chunks, s, error);
    }
    cli_chunks_close(&chunks);
    free(text);
    return status;
}

static int run_command(int argc, char *const *argv) {
    run_flags f = {.policies = CLI_POLICY_UNSET,
                   .dtype = TAMIS_F16,
                   .page_size = 1,
                   .tokens = CLI_UNSET,
                   .chat_format = CLI_UNSET,
                   .sampling = CLI_SAMPLING_UNSET,
                   .chunks = CLI_CHUNKS_UNSET};
    cli_session_params params;
    cli_chunks_params chunks;
    tamis_error error = {0};
    int code = parse(&f, argc, argv);
    if (code >= 0) return code;
    if (!choose_params(&f, &params, &chunks)) return CLI_USAGE;
    code = CLI_OK;
    cli_session s = {.goes_on = f.ignore_eos != 0};
    cli_record record;
    if (!cli_record_open(&record, cli_run_command.name, f.json)) return CLI_FAILED;
    tamis_status status = chunks.used ? run_chunks(&f, &params, &chunks, &s, &record, &error)
                                      : run(&f, &params, &s, &record, &code, &error);
    if (status == TAMIS_OK && !cli_record_write(&record, cli_run_command.name, &s, &params))
        code = CLI_FAILED;
    cli_record_discard(&record);
    cli_session_close(&s);
    if (status != TAMIS_OK) return cli_fail(cli_run_command.name, "%s", error.text);
    return !f.chat && cli_interrupted() ? CLI_INTERRUPTED : code;
}
