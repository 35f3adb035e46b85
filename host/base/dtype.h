/* SPDX-License-Identifier: Apache-2.0 */
/* What a dtype is: one table, which all that depends on a dtype asks. */
#ifndef TMS_BASE_DTYPE_H
#define TMS_BASE_DTYPE_H

#include <stdbool.h>
#include <tamis/types.h>

/* How many there are, and " f32 f16 ..." for messages. */
enum {
#define TMS_COUNT_DTYPE(name, value, text) +1
    TMS_DTYPES = 0 TAMIS_DTYPE_LIST(TMS_COUNT_DTYPE)
#undef TMS_COUNT_DTYPE
};
#define TMS_DTYPE_WORD(name, value, text) " " text
#define TMS_DTYPE_WORDS                   TAMIS_DTYPE_LIST(TMS_DTYPE_WORD)

/* Channels that share numbers in dtypes with blocks. */
#define TMS_BLOCK_CHANNELS 32u

typedef struct tms_dtype {
    uint32_t size;     /* bytes of an element; 0: elements share the numbers of their block */
    bool caches_alone; /* no activations, nor K and V of a store, have it */
    /* How a cache of it has rows of K, rows of V, and bounds unless it is told otherwise. */
    tamis_dtype keys, values, bounds;
    /* Of rows with blocks: channels that 16 bytes of a row hold; how many f16 a block has, which lie
     * behind the rows of a page. 0 in dtypes whose K and V have others. */
    uint32_t channels, numbers;
    float most; /* the largest finite magnitude that an element can have */
} tms_dtype;

/* By dtype, TMS_DTYPES of them. */
extern const tms_dtype tms_dtypes[];

static inline bool tms_dtype_known(uint32_t dtype) {
    return dtype < TMS_DTYPES;
}
/* Whether activations, and K and V of a store, may have it. */
static inline bool tms_dtype_of_rows(uint32_t dtype) {
    return tms_dtype_known(dtype) && !tms_dtypes[dtype].caches_alone;
}

/* What follows takes a known dtype. */

/* Whether blocks of 32 channels of a row share numbers, which lie behind a page's rows. */
static inline bool tms_has_blocks(tamis_dtype dtype) {
    return tms_dtypes[dtype].size == 0;
}
/* How rows of K and rows of V lie: as those of a cache of this dtype. What reads keys alone takes
 * k8v4 for q8. */
static inline tamis_dtype tms_key_dtype(tamis_dtype dtype) {
    return tms_dtypes[dtype].keys;
}
static inline tamis_dtype tms_value_dtype(tamis_dtype dtype) {
    return tms_dtypes[dtype].values;
}
/* The dtype of a cache's bounds unless it is told otherwise. */
static inline tamis_dtype tms_bounds_dtype(tamis_dtype dtype) {
    return tms_dtypes[dtype].bounds;
}
/* Blocks of a row. */
static inline uint32_t tms_blocks(uint32_t head_dim) {
    return (head_dim + TMS_BLOCK_CHANNELS - 1) / TMS_BLOCK_CHANNELS;
}
/* Bytes of what strides and offsets of K and V, or of bounds, count: an element, or a byte where
 * there are blocks. */
static inline size_t tms_kv_unit(tamis_dtype dtype) {
    return tms_has_blocks(dtype) ? 1 : tms_dtypes[dtype].size;
}
/* Of rows of this dtype, which is not k8v4: their length in these units, and how many f16 a block
 * has behind the rows. */
static inline uint32_t tms_row_size(tamis_dtype dtype, uint32_t head_dim) {
    const uint32_t channels = tms_dtypes[dtype].channels;
    return channels ? (head_dim + channels - 1) / channels * 16 : head_dim;
}
static inline uint32_t tms_block_numbers(tamis_dtype dtype) {
    return tms_dtypes[dtype].numbers;
}

#endif
