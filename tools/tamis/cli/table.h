/* SPDX-License-Identifier: Apache-2.0 */
/* A table of text cells, printed in columns as wide as their widest cell. */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#define CLI_COLUMNS_MAX 16

typedef struct cli_table {
    size_t columns, cells; /* cells counts those filled, row after row, the head first */
    size_t capacity;
    char **cell;
    bool failed; /* memory ran out: nothing is printed */
} cli_table;

/* Adds the next cell in printf form. Rows of `columns` cells follow each other; the first is the
 * head. */
void cli_table_add(cli_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints to stdout: the first column to the left, a column of words to the left, numbers to the
 * right. */
bool cli_table_print(const cli_table *table);
void cli_table_free(cli_table *table);

#define CLI_WIDTH 98 /* columns of a line of text */
/* Prints a text to stdout from a column on, where the cursor is, broken between words, and ends the
 * line. A word that is longer than a line stays whole. */
void cli_print_wrapped(const char *text, size_t column);

#endif
