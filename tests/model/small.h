/* SPDX-License-Identifier: Apache-2.0 */
/* A description of a small GGUF file that tests bend before it is written: it can lie anywhere. */
#ifndef TEST_SMALL_H
#define TEST_SMALL_H

#include <stddef.h>
#include <stdint.h>
#include <tamis/status.h>

/* Value and tensor types as the format numbers them. */
enum { U8 = 0, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };
enum {
    TENSOR_F32 = 0,
    TENSOR_F16 = 1,
    TENSOR_Q4_0 = 2,
    TENSOR_Q4_1 = 3,
    TENSOR_Q5_0 = 6,
    TENSOR_Q5_1 = 7,
    TENSOR_Q8_0 = 8,
    TENSOR_Q2_K = 10,
    TENSOR_Q3_K = 11,
    TENSOR_Q4_K = 12,
    TENSOR_Q5_K = 13,
    TENSOR_Q6_K = 14,
    TENSOR_IQ4_NL = 20,
    TENSOR_IQ3_S = 21,
    TENSOR_IQ4_XS = 23,
    TENSOR_BF16 = 30,
    TENSOR_MXFP4 = 39
};

#define SMALL_KEYS    40
#define SMALL_TENSORS 20
#define SMALL_ITEMS   32         /* of an array */
#define SMALL_AUTO    UINT64_MAX /* counts and offsets: the true one */

/* Of an array (`element` >= 0) the strings, or the items, or else `number` four times. */
typedef struct small_key {
    const char *name;
    uint32_t type;
    int64_t element; /* type of an array's elements, or -1 */
    int64_t number;
    double real;
    const char *strings[SMALL_ITEMS];
    size_t n_strings;
    double items[SMALL_ITEMS];
    size_t n_items;
    uint64_t string_bytes, count; /* SMALL_AUTO, or what the file states */
} small_key;

typedef struct small_tensor {
    const char *name;
    uint32_t n_dims, type;
    uint64_t dims[6];
    uint64_t offset;
} small_tensor;

typedef struct small_file {
    char magic[5];
    uint32_t version;
    uint64_t n_keys_stated, n_tensors_stated; /* SMALL_AUTO: true */
    uint32_t alignment;                       /* of what is written */
    size_t n_keys, n_tensors;
    small_key keys[SMALL_KEYS];
    small_tensor tensors[SMALL_TENSORS];
    int drop_data; /* nonzero: ends where the tensors' data begin */
} small_file;

/* A valid llama of one layer, dim 8, one head of 64 channels, and the vocabulary a b c d. */
void small_default(small_file *file);
small_key *small_find_key(small_file *file, const char *name);
small_tensor *small_find_tensor(small_file *file, const char *name);
small_key *small_add_key(small_file *file, const char *name, uint32_t type, int64_t number);
small_tensor *small_add_tensor(small_file *file, const char *name, uint32_t type, uint64_t dim0,
                               uint64_t dim1);
void small_remove_key(small_file *file, const char *name);
void small_remove_tensor(small_file *file, const char *name);

/* The file's bytes, malloced to exactly *bytes, so that a sanitizer sees a read beyond them. */
uint8_t *small_write(const small_file *file, size_t *bytes);

/* A copy of a file with one to four changes, and in one of eight cut short; malloced to exactly
 * *mutant_count. The seed fixes it. */
uint8_t *small_mutant(const uint8_t *file, size_t count, uint64_t seed, size_t *mutant_count);

/* All that tamis_model_load does with a file before it touches a device. *error is cleared first. */
tamis_status small_read(const uint8_t *file, size_t count, tamis_error *error);

#endif
