/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of sequences that are there, for tests. cmocka's header comes before. */
#ifndef TESTS_LENGTHS_H
#define TESTS_LENGTHS_H

#include <tamis/cache.h>

static inline uint32_t test_length(const tamis_cache *cache, tamis_sequence id) {
    uint32_t length = 0;
    assert_int_equal(tamis_cache_length(cache, id, &length, NULL, NULL), TAMIS_OK);
    return length;
}

static inline uint32_t test_evicted_at(const tamis_cache *cache, tamis_sequence id) {
    uint32_t evicted_at = 0;
    assert_int_equal(tamis_cache_length(cache, id, NULL, &evicted_at, NULL), TAMIS_OK);
    return evicted_at;
}

#endif
