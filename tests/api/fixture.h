/* SPDX-License-Identifier: Apache-2.0 */
/* What the API and policy tests share: checked calls, and a world of context, cache and plan whose
 * rows are made from token numbers, so that any row can be told apart and checked. */
#ifndef TEST_FIXTURE_H
#define TEST_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tamis/tamis.h>

#include <cmocka.h>

#include "tests/lengths.h"

/* Handed to every call; OK and FAILS clear it before and look at it after. */
extern tamis_error test_error;

/* The call succeeds. */
#define OK(call) (test_error = (tamis_error){0}, test_ok((call), #call, __FILE__, __LINE__))

/* The call fails with `code`, and the reason contains `part`. */
#define FAILS(call, code, part)                                                                    \
    (test_error = (tamis_error){0}, test_fails((call), (code), (part), #call, __FILE__, __LINE__))

void test_ok(tamis_status status, const char *call, const char *file, int line);
void test_fails(tamis_status status, tamis_status wanted, const char *part, const char *call,
                const char *file, int line);

/* printf's text, until the next call: for parts of reasons that name a handle. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
const char *
test_text(const char *format, ...);

/* The device that the test binary was told to use; "reference" unless an argument says else. */
extern const char *test_device;
/* Takes the device's name from the command line. Nonzero, 77: it cannot be used here. */
int test_begin(int argc, char **argv);

/* Kernel builds so far, as the debug lines of the worlds' contexts tell of them. */
extern uint32_t test_builds;

/* Also takes every log line of the worlds' contexts, unless NULL. */
extern tamis_log_fn test_log;

/* Whether a row at position `own` does not see the token at an earlier position, by the definitions of
 * tamis/layer.h. */
bool test_hides(const tamis_attention *attention, int64_t position, int64_t own);

/* A seeded generator: the next of `state`, and one below n. */
uint64_t test_random(uint64_t *state);
uint32_t test_below(uint64_t *state, uint32_t n);

/* How many kinds of evictions the library has, none included; their values are below that. */
int test_evictions(void);

/* Channel `d` of a token's K (which 0) or V (which 1) row in a lane: n/64, n/128 or n/256 with |n|
 * <= 127, which f32, f16 and bf16 hold exactly. So do q8 and k8v4, where blocks have different
 * scales: the divisor is that of 32 channels. Of K n is 127 or -127 in two of them; of V it is one
 * of 16, 16 apart, -127 in two and the largest in two. */
float test_value(uint64_t token, uint32_t lane, uint32_t which, uint32_t d);
/* Makes K as coarse as V from now on if the cache is of q4, so that it, too, holds it exactly.
 * test_open does so. */
void test_values_for(tamis_dtype cache);

typedef struct test_world {
    tamis_context *context;
    tamis_cache *cache;
    tamis_plan *plan;
    tamis_cache_params shape; /* page_size filled in */
    uint32_t max_rows;
    tamis_buffer *k, *v, *q, *out;
    float *host; /* [max_rows][n_heads][head_dim] */
} test_world;

/* Small shapes to begin with: 2 layers, 4 query heads over 2 KV heads, head dim 64, pages of 8 f32
 * tokens, room for 256 tokens. */
tamis_cache_params test_shape(void);

void test_open(test_world *world, const tamis_cache_params *shape, const tamis_plan_params *plan);
void test_close(test_world *world);

/* Puts the K and V rows of the tokens into the world's buffers. */
void test_fill_kv(test_world *world, uint32_t layer, const uint64_t *tokens, uint32_t n_rows);
/* Writes the rows of the tokens into a layer of the open step. */
void test_write(test_world *world, uint32_t layer, const uint64_t *tokens, uint32_t n_rows);
/* Begins a step. Before, tamis_plan_step_pages tells what it takes or lacks, and changes nothing. */
tamis_status test_step_begin(test_world *world, const tamis_step *step);
/* A whole step without attending; the status of step_begin. */
tamis_status test_step(test_world *world, const tamis_step *step, const uint64_t *tokens);
/* The same for one sequence. */
tamis_status test_append(test_world *world, tamis_sequence sequence, const uint64_t *tokens,
                         uint32_t n_rows);
/* The cache's statistics now, and that they are still the same. */
tamis_cache_stats test_stats(const test_world *world);
void test_unchanged(const test_world *world, const tamis_cache_stats *before);

/* No page of the cache is lost, held without a holder, or counted twice; each list names pages of its
 * pool; the maps of free blocks are right. Counts the pages that are held and shared. */
void test_account(const tamis_cache *cache, uint64_t *held, uint64_t *shared);

/* Slots [first, first + count) of a lane hold the tokens. */
void test_expect(test_world *world, tamis_sequence sequence, uint32_t layer, uint32_t kv_head,
                 uint32_t first, const uint64_t *tokens, uint32_t count);

#endif
