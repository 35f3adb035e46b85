/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis compare`: a text that is read once, and the answers of every arm to questions about it. */
#include "compare/compare.h"

#include "cli/chat.h"

#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX 4096
#define ROUNDS_MAX 100

typedef struct compare_flags {
    const char *device, *model, *file, *json;
    cli_texts questions;
    compare_form form; /* without the members that flags of other types set */
    uint32_t plain, chat_format, tokens, rounds, dtype;
    eval_arm_flags arms;
} compare_flags;

static const cli_option options[] = {
    CLI_MODEL_OPTION(compare_flags, model),
    {"--file", "FILE", "the text", CLI_INPUT, offsetof(compare_flags, file), 0, 0, NULL},
    {"--question", "TEXT", "a question about it", CLI_TEXTS, offsetof(compare_flags, questions), 0,
     0, NULL},
    {"--system", "TEXT", "what the model is told before the text", CLI_TEXT,
     offsetof(compare_flags, form.system), 0, 0, NULL},
    {"--chat-format", "NAME",
     "the form of text and question: {} (default: as the file's template has it)", CLI_CHOICE,
     offsetof(compare_flags, chat_format), 0, 0, cli_chat_names},
    {"--date", "DATE",
     "YYYY-MM-DD: what a template that asks for today's date is told (default: nothing)", CLI_TEXT,
     offsetof(compare_flags, form.date), 0, 0, NULL},
    {"--plain", "", "without a chat's tokens: the question stands right behind the text", CLI_FLAG,
     offsetof(compare_flags, plain), 0, 0, NULL},
    {"--tokens", "N", "most tokens of an answer (default 48)", CLI_NUMBER,
     offsetof(compare_flags, tokens), 1, TOKENS_MAX, NULL},
    {"--rounds", "N", "how often every question is asked (default 3)", CLI_NUMBER,
     offsetof(compare_flags, rounds), 1, ROUNDS_MAX, NULL},
    EVAL_ARM_OPTIONS(compare_flags, arms, "full,quest,window", "512"),
    EVAL_EVICT_OPTIONS(compare_flags, arms),
    CLI_DTYPE_OPTION("--dtype", compare_flags, dtype),
    CLI_JSON_OPTION(compare_flags, json),
    CLI_DEVICE_OPTION(compare_flags, device),
};

static int run_command(int argc, char *const *argv);

const cli_command compare_command = {
    "tamis compare",
    "answer questions about a text under several selections and evictions",
    "--model FILE --file FILE --question TEXT [--question TEXT] [OPTIONS]",
    "Reads a text once, exactly, and prints for each question what every arm answers, beside the\n"
    "speed and the bytes of the KV cache that it reads. An arm is a selection or an eviction with\n"
    "its budget; full is always one. Question and answer run token by token on a fork of the "
    "text;\n"
    "the most likely token is next, and an answer ends as in tamis run.\n"
    "\n"
    "Where the file has a chat template that can be run, the text begins the user's turn and\n"
    "the question ends it, so that the model answers as an assistant; an empty line stands "
    "between\n"
    "the two. Text and question are cut into tokens as one.\n"
    "\n"
    "An arm with an eviction evicts from a fork before it knows the question. Its plan runs the\n"
    "text's last tokens again, by whose queries it scores; h2o, tova and knorm score by every "
    "row,\n"
    "and read the whole text again. The arms take turns, question after question, in every round:\n"
    "tokens/s are medians over the rounds.",
    "  tamis compare --model model.gguf --file book.txt --question 'Who is the narrator?' \\\n"
    "      --budget 512,1024 --evict snapkv --evict-budget 1024\n"
    "  tamis compare --model tests/data/needle.gguf --file docs/examples/prompt.txt \\\n"
    "      --question 'The red pass key is ' --budget 256 --tokens 5 --json compare.json\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run_command};

static int parse(compare_flags *f, int argc, char *const *argv) {
    const char *name = compare_command.name;
    int code = cli_parse(&compare_command, f, argc, argv);
    if (code >= 0) return code;
    f->form.plain = f->plain != 0;
    if (f->chat_format != CLI_UNSET) f->form.chat_format = cli_chat_names[f->chat_format];
    if (f->model == NULL)
        cli_fail(name, "--model: is missing (see %s --help)", name);
    else if (f->file == NULL)
        cli_fail(name, "--file: is missing (see %s --help)", name);
    else if (f->questions.count == 0)
        cli_fail(name, "--question: is missing (see %s --help)", name);
    else if (f->form.plain &&
             (f->form.system != NULL || f->form.chat_format != NULL || f->form.date != NULL))
        cli_fail(name, "%s: is given with --plain, which has no chat's form",
                 f->form.system != NULL        ? "--system"
                 : f->form.chat_format != NULL ? "--chat-format"
                                               : "--date");
    else if (eval_check_arms(name, &f->arms, 512))
        return -1;
    return CLI_USAGE;
}

/* The text, cut with its questions; what it is made of is not needed any more then. */
static tamis_status cut_text(const compare_flags *f, compare_text *out, tamis_error *error) {
    tamis_vocab *vocab = NULL;
    char *text = NULL;
    size_t bytes = 0;
    tamis_status status = cli_read_text(f->file, &text, &bytes, error);
    if (status == TAMIS_OK && bytes == 0)
        status = cli_error(error, TAMIS_E_ARGUMENT, "%s: is empty", cli_input_name(f->file));
    if (status == TAMIS_OK) status = tamis_vocab_load(f->model, &vocab, error);
    if (status == TAMIS_OK)
        status = compare_text_cut(vocab, &f->form, text, bytes, &f->questions, out, error);
    tamis_vocab_destroy(&vocab);
    free(text);
    return status;
}

static tamis_status make_results(compare_run *run, tamis_error *error) {
    const uint32_t n = run->text.n_questions * run->arms.count;
    run->results = calloc(n, sizeof(*run->results));
    if (run->results == NULL) return cli_no_memory(error);
    for (uint32_t i = 0; i < n; i++) {
        run->results[i].rates = calloc(run->rounds, sizeof(*run->results[i].rates));
        if (run->results[i].rates == NULL) return cli_no_memory(error);
    }
    return TAMIS_OK;
}

static void free_results(compare_run *run) {
    const uint32_t n = run->text.n_questions * run->arms.count;
    for (uint32_t i = 0; run->results != NULL && i < n; i++) {
        free(run->results[i].answer);
        free(run->results[i].rates);
    }
    free(run->results);
}

static int prepare(const compare_flags *f, compare_run *run) {
    const uint32_t page_size = cli_page_size(f->arms.page_size);
    tamis_error error = {0};
    tamis_status status = cut_text(f, &run->text, &error);
    if (status == TAMIS_OK) status = make_results(run, &error);
    if (status != TAMIS_OK) return cli_fail(compare_command.name, "%s", error.text);
    if (run->text.unrecognised.status != TAMIS_OK)
        (void)cli_fail(compare_command.name, "the form is plain: %s", run->text.unrecognised.text);
    const uint32_t tail = compare_longest_question(&run->text) + run->most;
    return eval_rig_open(
        &run->rig, compare_command.name, f->device, f->model, (tamis_dtype)f->dtype, page_size,
        &run->arms, compare_capacity(run, page_size), (uint32_t)run->text.tokens.count + tail, 1);
}

static bool write_json(const compare_flags *f, const compare_run *run, cli_output *output) {
    cJSON *rows = compare_rows(run, &f->questions),
          *settings = eval_settings(&f->arms, (tamis_dtype)f->dtype);
    const cli_number numbers[] = {{"tokens", (double)run->text.tokens.count},
                                  {"read_s", run->read_seconds},
                                  {"rounds", run->rounds},
                                  {"answer_tokens", run->most}};
    if (!cli_json_numbers(settings, numbers, sizeof(numbers) / sizeof(numbers[0])) ||
        cJSON_AddStringToObject(settings, "form", run->text.form) == NULL) {
        cJSON_Delete(settings);
        settings = NULL;
    }
    return eval_write_json(compare_command.name, &run->rig, 0, settings, rows, output);
}

static int measure(const compare_flags *f, compare_run *run, cli_output *output) {
    tamis_error error = {0};
    if (compare_measure(run, &error) != TAMIS_OK)
        return cli_fail(compare_command.name, "%s", error.text);
    if (!compare_print(run, &f->questions))
        return cli_fail(compare_command.name, "out of host memory");
    return f->json == NULL || write_json(f, run, output) ? CLI_OK : CLI_FAILED;
}

static int run_command(int argc, char *const *argv) {
    compare_flags f = {
        .chat_format = CLI_UNSET,
        .tokens = 48,
        .rounds = 3,
        .dtype = TAMIS_F16,
        .arms = {EVAL_ARM_DEFAULTS,
                 .selections = {3, {TAMIS_SELECT_FULL, TAMIS_SELECT_QUEST, TAMIS_SELECT_WINDOW}}}};
    cli_output output = {0};
    int code = parse(&f, argc, argv);
    if (code >= 0) return code;
    compare_run run = {.rounds = f.rounds, .most = f.tokens};
    if (!eval_list_arms(compare_command.name, &f.arms, 0, &run.arms)) return CLI_USAGE;
    if (f.json != NULL && !cli_output_open(&output, compare_command.name, f.json))
        return CLI_FAILED;
    code = prepare(&f, &run);
    if (code == CLI_OK) code = measure(&f, &run, &output);
    eval_rig_close(&run.rig);
    cli_output_discard(&output);
    free_results(&run);
    compare_text_free(&run.text);
    return code;
}
