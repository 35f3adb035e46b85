/* SPDX-License-Identifier: Apache-2.0 */
/* Which heads caches and attention take. */
#ifndef TMS_BASE_SHAPE_H
#define TMS_BASE_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The head dims, and as a text for messages. */
#define TMS_HEAD_DIMS         64, 80, 96, 112, 128, 160, 192, 256, 512
#define TMS_HEAD_DIM_WORDS    TMS_LIST_AS_TEXT(TMS_HEAD_DIMS)
#define TMS_LIST_AS_TEXT(...) TMS_AS_TEXT(__VA_ARGS__)
#define TMS_AS_TEXT(...)      #__VA_ARGS__

enum {
    TMS_MOST_HEAD_DIM = 512,
    TMS_MOST_GROUP = 64, /* query heads of a KV head */
    TMS_MOST_PAGE = 256  /* slots of a page of K and V that are only read */
};

static inline bool tms_head_dim_known(uint32_t dim) {
    static const uint32_t known[] = {TMS_HEAD_DIMS};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i] == dim) return true;
    return false;
}

#endif
