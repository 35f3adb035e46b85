/* SPDX-License-Identifier: Apache-2.0 */
/* Runs templates for test_chat_templates.py. Reads from standard input, again and again: bytes of a
 * template, of bos, of eos and of a date; whether a prompt for an answer is added (0 or 1); how many
 * messages there are, and bytes of role and text of each; behind each line of numbers the texts that it
 * counts. Writes status and bytes of the text or of the error, and then that. */
#include "jinja/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGES 64

/* A text of that many bytes. */
static char *read_text(size_t bytes) {
    char *text = malloc(bytes + 1);
    if (text == NULL || fread(text, 1, bytes, stdin) != bytes) abort();
    text[bytes] = '\0';
    return text;
}

static void read_messages(jinja_message *messages, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t role, bytes;
        if (scanf("%zu %zu", &role, &bytes) != 2 || getchar() != '\n') abort();
        messages[i] = (jinja_message){.role = read_text(role)};
        messages[i].text = read_text(bytes);
        messages[i].bytes = bytes;
        messages[i].origin = (uint8_t)(i + 1);
    }
}

/* A byte that a message is said to have is one of its bytes. */
static void check_origins(const jinja_result *r, const jinja_message *messages, size_t count) {
    for (size_t i = 0; i < r->bytes; i++) {
        const size_t from = r->origins[i];
        if (from > count) abort();
        if (from > 0 &&
            memchr(messages[from - 1].text, r->text[i], messages[from - 1].bytes) == NULL)
            abort();
    }
}

static void run(const char *template, const jinja_conversation *all) {
    jinja_result result;
    tamis_error error = {0};
    const tamis_status status = jinja_render(template, all, &result, &error);
    if (status == TAMIS_OK) check_origins(&result, all->messages, all->count);
    const char *text = status == TAMIS_OK ? result.text : error.text;
    const size_t bytes = status == TAMIS_OK ? result.bytes : strlen(error.text);
    printf("%d %zu\n", (int)status, bytes);
    fwrite(text, 1, bytes, stdout);
    jinja_result_free(&result);
}

int main(void) {
    size_t template, bos, eos, date, prompt, count;
    while (scanf("%zu %zu %zu %zu %zu %zu", &template, &bos, &eos, &date, &prompt, &count) == 6) {
        jinja_message messages[MESSAGES];
        if (getchar() != '\n' || count > MESSAGES) return 2;
        char *texts[] = {read_text(template), read_text(bos), read_text(eos), read_text(date)};
        struct tm day;
        if (date > 0 && !jinja_date(texts[3], &day)) return 2;
        read_messages(messages, count);
        run(texts[0], &(jinja_conversation){.messages = messages,
                                            .count = count,
                                            .bos = texts[1],
                                            .eos = texts[2],
                                            .date = date > 0 ? &day : NULL,
                                            .add_generation_prompt = prompt != 0});
        for (size_t i = 0; i < count; i++) {
            free((void *)(uintptr_t)messages[i].role);
            free((void *)(uintptr_t)messages[i].text);
        }
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
            free(texts[i]);
    }
    return 0;
}
