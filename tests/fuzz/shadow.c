/* SPDX-License-Identifier: Apache-2.0 */
/* The shadow of a cache that is fuzzed, and how the cache is compared with it. */
#include "tests/fuzz/shadow.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

uint32_t fuzz_take(fuzz *f, uint32_t n) {
    return f->at < f->end ? *f->at++ % n : 0;
}

shadow_sequence *fuzz_sequence(fuzz *f) {
    uint32_t drawn = fuzz_take(f, 256), first = drawn % MAX_LIVE;
    for (uint32_t i = 0; drawn < 240 && i < MAX_LIVE; i++)
        if (f->sequences[(first + i) % MAX_LIVE].id) return &f->sequences[(first + i) % MAX_LIVE];
    return &f->sequences[first];
}

bool fuzz_in_step(const fuzz *f, const shadow_sequence *s) {
    for (uint32_t i = 0; f->step.open && i < f->step.n; i++)
        if (f->step.of[i] == s) return true;
    return false;
}

bool shadow_expect(tamis_status status, uint32_t causes, uint32_t maybe, const char *call) {
    uint32_t bit = 1u << -status;
    if (getenv("FUZZ_TRACE"))
        print_message("%.60s: %s %s\n", call, tamis_status_name(status), test_error.text);
    bool right = causes ? (bit & (causes | maybe)) != 0 : status == TAMIS_OK || (bit & maybe) != 0;
    if (right && (status == TAMIS_OK || (test_error.status == status && test_error.text[0])))
        return status == TAMIS_OK;
    fail_msg("%s: %s \"%s\"; causes 0x%" PRIx32 ", maybe 0x%" PRIx32, call,
             tamis_status_name(status), test_error.text, causes, maybe);
    return false;
}

uint32_t shadow_pages(const fuzz *f, uint32_t slots) {
    return (slots + f->shape.page_size - 1) / f->shape.page_size;
}

void shadow_append(shadow_lane *lane, uint32_t length, uint32_t rows) {
    for (uint32_t i = 0; i < rows; i++)
        lane->positions[lane->length++] = (int32_t)(length + i);
}

float shadow_value(uint64_t token, uint32_t of, uint32_t i) {
    return test_value(token, 512 + of, 0, i);
}

void shadow_positions(fuzz *f, const shadow_sequence *s, uint32_t lane, int32_t *positions) {
    uint32_t heads = f->shape.n_kv_heads;
    OK(tamis_cache_read_positions(f->cache, s->id, lane / heads, lane % heads, 0,
                                  s->lanes[lane].length, positions, &test_error));
}

void shadow_check_lane(fuzz *f, const shadow_sequence *s, uint32_t lane) {
    const shadow_lane *wanted = &s->lanes[lane];
    uint32_t heads = f->shape.n_kv_heads, dim = f->shape.head_dim;
    static int32_t positions[MAX_CONTEXT];
    static float k[MAX_CONTEXT * MAX_DIM], v[MAX_CONTEXT * MAX_DIM];
    shadow_positions(f, s, lane, positions);
    assert_memory_equal(positions, wanted->positions, wanted->length * sizeof *positions);
    OK(tamis_cache_read(f->cache, s->id, lane / heads, lane % heads, 0, wanted->length, k, v,
                        &test_error));
    for (uint32_t slot = 0; slot < wanted->length; slot++)
        for (uint32_t d = 0; d < dim; d++) {
            const bool given_up = positions[slot] == (int32_t)s->length;
            uint64_t token = given_up ? wanted->given_up : s->tokens[positions[slot]];
            uint32_t at = slot * dim + d;
            if (k[at] != test_value(token, lane, 0, d) || v[at] != test_value(token, lane, 1, d))
                fail_msg("lane %" PRIu32 ", slot %" PRIu32 " of %" PRIu32 ", position %" PRId32
                         ", channel %" PRIu32 " does not hold token %" PRIu64,
                         lane, slot, wanted->length, positions[slot], d, token);
        }
}

/* Tokens of the open step count from its begin on. */
static uint32_t grown(const fuzz *f, const shadow_sequence *s) {
    for (uint32_t i = 0; f->step.open && i < f->step.n; i++)
        if (f->step.of[i] == s) return f->step.rows[i];
    return 0;
}

static void check_sequence(const fuzz *f, const shadow_sequence *s) {
    tamis_sequence_stats stats;
    const uint32_t rows = grown(f, s), heads = f->shape.n_kv_heads;
    uint64_t slots = 0, pages = 0;
    OK(tamis_cache_get_sequence_stats(f->cache, s->id, &stats, NULL));
    assert_int_equal(test_length(f->cache, s->id), s->length + rows);
    for (uint32_t lane = 0; lane < f->n_lanes; lane++) {
        uint32_t length = 0;
        OK(tamis_cache_lane_length(f->cache, s->id, lane / heads, lane % heads, &length,
                                   &test_error));
        /* A lane at its cap does not grow. */
        assert_true(length == s->lanes[lane].length + rows ||
                    (rows == 1 && length == s->lanes[lane].length));
        slots += length;
        pages += shadow_pages(f, length);
    }
    assert_int_equal(stats.slots, slots);
    assert_int_equal(stats.pages, pages);
    if (!rows) assert_int_equal(test_evicted_at(f->cache, s->id), s->evicted_at);
}

static uint64_t unit_bytes(const fuzz *f) {
    return f->cache->size.page_bytes + f->cache->size.bounds_bytes + f->cache->size.plane_bytes;
}

void shadow_check(fuzz *f) {
    tamis_cache_stats stats;
    uint64_t held = 0, shared = 0, live = 0;
    tamis_bounds bounds;
    for (uint32_t i = 0; i < MAX_LIVE; i++) {
        if (!f->sequences[i].id) continue;
        check_sequence(f, &f->sequences[i]);
        live++;
    }
    test_account(f->cache, &held, &shared);
    tamis_cache_get_stats(f->cache, &stats);
    assert_int_equal(stats.sequences, live);
    assert_int_equal(stats.pages_held, held);
    assert_int_equal(stats.pages_shared, shared);
    assert_int_equal(stats.bytes_held, held * unit_bytes(f));
    tamis_cache_get_bounds(f->cache, &bounds);
    assert_true(bounds.kind == f->bounds.kind && bounds.width == f->bounds.width);
    const shadow_sequence *s = &f->sequences[f->checks % MAX_LIVE];
    if (s->id && !fuzz_in_step(f, s))
        shadow_check_lane(f, s, (uint32_t)(f->checks / MAX_LIVE) % f->n_lanes);
    f->checks++;
}

void shadow_check_all(fuzz *f) {
    for (uint32_t i = 0; i < MAX_LIVE; i++)
        for (uint32_t lane = 0; f->sequences[i].id && lane < f->n_lanes; lane++)
            if (!fuzz_in_step(f, &f->sequences[i])) shadow_check_lane(f, &f->sequences[i], lane);
}
