/* SPDX-License-Identifier: Apache-2.0 */
/* A GGUF file, v2 or v3, as checked entries and tensors: all places in these structs are inside the
 * file. */
#ifndef TMS_GGUF_H
#define TMS_GGUF_H

#include "lib/model/error.h"
#include <tamis/device.h>

#include <stdbool.h>

/* Bytes inside the file, not NUL-terminated. */
typedef struct tms_text {
    const char *at;
    uint64_t bytes;
} tms_text;

/* Value types as the format numbers them. */
typedef enum tms_gguf_type {
    TMS_GGUF_U8 = 0,
    TMS_GGUF_I8 = 1,
    TMS_GGUF_U16 = 2,
    TMS_GGUF_I16 = 3,
    TMS_GGUF_U32 = 4,
    TMS_GGUF_I32 = 5,
    TMS_GGUF_F32 = 6,
    TMS_GGUF_BOOL = 7,
    TMS_GGUF_STRING = 8,
    TMS_GGUF_ARRAY = 9,
    TMS_GGUF_U64 = 10,
    TMS_GGUF_I64 = 11,
    TMS_GGUF_F64 = 12
} tms_gguf_type;

/* A key and its value. For an array `type` is the type of its elements and `count` their number.
 * The elements follow each other from `at` on: scalars packed, each string after its 8-byte
 * length. */
typedef struct tms_gguf_entry {
    tms_text key;
    tms_gguf_type type;
    bool array;
    uint64_t count; /* 1 for a single value */
    const uint8_t *at;
} tms_gguf_entry;

#define TMS_GGUF_MAX_DIMS 4
typedef struct tms_gguf_tensor {
    tms_text name;
    tamis_weight_type type;
    uint32_t n_dims;
    uint64_t dims[TMS_GGUF_MAX_DIMS]; /* fastest first, a row; 1 beyond n_dims */
    uint64_t elements, bytes;
    uint64_t offset; /* from the start of the data section */
    uint64_t at;     /* from the start of its file */
    uint32_t part;   /* of a split model: others[part - 1] is its file; 0: the first file */
} tms_gguf_tensor;

typedef struct tms_gguf {
    const uint8_t *head; /* all before the tensors' data */
    uint64_t bytes;      /* of the file */
    int descriptor;      /* of the open file; then we own `head`. Below 0: all is in memory */
    uint64_t n_entries, n_tensors;
    tms_gguf_entry *entries;  /* ascending by key */
    tms_gguf_tensor *tensors; /* ascending by name */
    uint64_t data_end;        /* where the last tensor's data end in the file */
    struct tms_gguf *others;  /* [n_others] the parts of a split model behind the first */
    uint32_t n_others;
} tms_gguf;

/* Reads and checks everything before the tensors' data, and keeps the file open for the data. It is
 * one file: lib/model/parts.h opens models in parts. Errors: E_IO (also if the file became shorter
 * meanwhile), E_FORMAT, E_UNSUPPORTED (version, tensor type, more than 128 MiB before the data),
 * E_NO_MEMORY; *out is then closed. */
tamis_status tms_gguf_open_file(const char *path, bool tensors, tms_gguf *out, tamis_error *error);
/* The same for bytes in memory, which stay the caller's and must outlive *out. */
tamis_status tms_gguf_parse(const void *file, uint64_t bytes, tms_gguf *out, tamis_error *error);
/* The same without tensors, of which *out then has none: for what lies in keys alone. */
tamis_status tms_gguf_parse_keys(const void *file, uint64_t bytes, tms_gguf *out,
                                 tamis_error *error);
void tms_gguf_close(tms_gguf *gguf);
/* Sorts the tensors by name. E_FORMAT: two have the same. */
tamis_status tms_gguf_sort_tensors(tms_gguf *gguf, tamis_error *error);
/* Bytes [at, at + bytes) of the file, which must have them. E_IO. */
tamis_status tms_gguf_read_at(const tms_gguf *gguf, uint64_t at, uint64_t bytes, void *to,
                              tamis_error *error);

/* Reads bytes [first, first + bytes) of a tensor's data. E_IO. */
tamis_status tms_gguf_read(const tms_gguf *gguf, const tms_gguf_tensor *tensor, uint64_t first,
                           uint64_t bytes, void *to, tamis_error *error);

/* NULL if there is none. */
const tms_gguf_entry *tms_gguf_find(const tms_gguf *gguf, const char *key);
const tms_gguf_entry *tms_gguf_find_text(const tms_gguf *gguf, tms_text key);
const tms_gguf_tensor *tms_gguf_tensor_find(const tms_gguf *gguf, const char *name);

/* Whether type and value of two entries are the same, byte for byte. */
bool tms_gguf_same(const tms_gguf_entry *a, const tms_gguf_entry *b);

/* Read single values: integers of any type; floats, for which any integer is taken as well. An
 * absent key leaves *out unchanged. Errors: E_FORMAT for another type, a negative or too large
 * integer, a float that is not finite. */
tamis_status tms_gguf_u32(const tms_gguf *gguf, const char *key, uint32_t *out, tamis_error *error);
/* The same of a key that may be an array, of `count` integers that are all equal. */
tamis_status tms_gguf_u32_each(const tms_gguf *gguf, const char *key, uint32_t count, uint32_t *out,
                               tamis_error *error);
tamis_status tms_gguf_f64(const tms_gguf *gguf, const char *key, double *out, tamis_error *error);
tamis_status tms_gguf_bool(const tms_gguf *gguf, const char *key, bool *out, tamis_error *error);
tamis_status tms_gguf_string(const tms_gguf *gguf, const char *key, tms_text *out,
                             tamis_error *error);
/* An array of `type`; *out is NULL if the key is absent. */
tamis_status tms_gguf_array(const tms_gguf *gguf, const char *key, tms_gguf_type type,
                            const tms_gguf_entry **out, tamis_error *error);
/* An array of integers of any type; *out is NULL if the key is absent. */
tamis_status tms_gguf_integers(const tms_gguf *gguf, const char *key, const tms_gguf_entry **out,
                               tamis_error *error);
/* Value `i` of an entry of integers, sign-extended; a u64 from 2^63 on is negative. False for
 * other types. */
bool tms_gguf_integer(const tms_gguf_entry *entry, uint64_t i, int64_t *out);
/* Reads the string at *at and advances *at past it: for iterating over arrays of strings. */
tms_text tms_gguf_next_string(const uint8_t **at);

bool tms_text_is(tms_text text, const char *word);

/* Text of a file for messages: at most 63 characters, made printable. */
typedef struct tms_shown {
    char text[64];
} tms_shown;
tms_shown tms_text_show(tms_text text);

#endif
