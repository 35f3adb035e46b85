/* SPDX-License-Identifier: Apache-2.0 */
/* A table of text cells, printed in columns as wide as their widest cell. */
#include "cli/table.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cli_table_add(cli_table *table, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int bytes = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (table->cells == table->capacity) {
        size_t capacity = table->capacity > 0 ? table->capacity * 2 : 64;
        char **cell = realloc(table->cell, capacity * sizeof(*cell));
        if (cell == NULL) {
            table->failed = true;
            return;
        }
        table->cell = cell;
        table->capacity = capacity;
    }
    char *text = bytes >= 0 ? malloc((size_t)bytes + 1) : NULL;
    if (text == NULL) {
        table->failed = true;
        return;
    }
    va_start(args, format);
    vsnprintf(text, (size_t)bytes + 1, format, args);
    va_end(args);
    table->cell[table->cells++] = text;
}

/* A column is one of numbers if every cell below the head begins with a digit or is "-". */
static bool is_numeric(const cli_table *table, size_t column) {
    for (size_t i = column + table->columns; i < table->cells; i += table->columns) {
        const char *text = table->cell[i];
        if (strcmp(text, "-") != 0 && (text[0] < '0' || text[0] > '9')) return false;
    }
    return true;
}

bool cli_table_print(const cli_table *table) {
    int width[CLI_COLUMNS_MAX] = {0};
    bool right[CLI_COLUMNS_MAX] = {false};
    if (table->failed || table->columns > CLI_COLUMNS_MAX) return false;
    for (size_t i = 0; i < table->cells; i++) {
        int length = (int)strlen(table->cell[i]);
        if (length > width[i % table->columns]) width[i % table->columns] = length;
    }
    for (size_t c = 0; c < table->columns; c++)
        right[c] = c > 0 && is_numeric(table, c);
    for (size_t i = 0; i < table->cells; i++) {
        size_t column = i % table->columns;
        bool last = column + 1 == table->columns;
        if (right[column])
            printf("%*s%s", width[column], table->cell[i], last ? "\n" : "  ");
        else if (last)
            printf("%s\n", table->cell[i]);
        else
            printf("%-*s  ", width[column], table->cell[i]);
    }
    return true;
}

void cli_table_free(cli_table *table) {
    for (size_t i = 0; i < table->cells; i++)
        free(table->cell[i]);
    free(table->cell);
    *table = (cli_table){0};
}

void cli_print_wrapped(const char *text, size_t column) {
    size_t at = column;
    while (*text != '\0') {
        size_t word = strcspn(text, " ");
        if (at > column && at + 1 + word > CLI_WIDTH) {
            printf("\n%*s", (int)column, "");
            at = column;
        }
        printf("%s%.*s", at > column ? " " : "", (int)word, text);
        at += word + (at > column);
        text += word;
        text += strspn(text, " ");
    }
    putchar('\n');
}
