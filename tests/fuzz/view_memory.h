/* SPDX-License-Identifier: Apache-2.0 */
/* What the fuzzer of views shares: the input; memory of exactly the size that is asked for, which
 * buffers of the reference are, so that AddressSanitizer sees a byte too many; K and V in any layout. */
#ifndef FUZZ_VIEW_MEMORY_H
#define FUZZ_VIEW_MEMORY_H

#include "tests/api/fixture.h"
#include <tamis/ops.h>
#include <tamis/view.h>

enum { MAX_LAYERS = 2, MAX_PAGES = 12, MAX_BUFFERS = 24 };

/* Every element of K, V and q that may be read. Attention over it is this number, whatever the weights;
 * all else is NaN. */
#define HELD 0.5f

typedef struct fuzz {
    const uint8_t *at, *end; /* what is left of the input */
    tamis_context *context;
    tamis_buffer *buffers[MAX_BUFFERS];
    void *memory[MAX_BUFFERS];
    uint32_t n_buffers;
} fuzz;

/* The next byte of the input, modulo n; 0 behind its end. */
uint32_t fuzz_take(fuzz *f, uint32_t n);
/* One time in n; never behind the end. */
bool fuzz_rarely(fuzz *f, uint32_t n);
/* A stride that is not as it should be. */
uint64_t fuzz_stride(fuzz *f, uint64_t right);

/* A buffer of `bytes` whose bits are NaN, if not 0, of at most 2^22; NULL otherwise. */
tamis_buffer *fuzz_room(fuzz *f, uint64_t bytes);
/* The same with the host's int32. */
tamis_place fuzz_send(fuzz *f, const int32_t *host, uint64_t n);
void fuzz_drop(fuzz *f);  /* the last buffer */
void fuzz_close(fuzz *f); /* all buffers */

/* What a call must answer. */
typedef enum answer { TAKEN, REFUSED, EITHER } answer;
/* `status` is the answer, and its reason is in test_error. Returns whether it is OK. FUZZ_TRACE in the
 * environment prints the calls. */
#define EXPECT(call, wanted) (test_error = (tamis_error){0}, fuzz_expect((call), (wanted), #call))
bool fuzz_expect(tamis_status status, answer wanted, const char *call);

/* K and V of a layer, as the caller describes them, and how they are to be taken. */
typedef struct layer {
    tamis_kv kv;
    tamis_kv_values values;
    uint32_t n_kv_heads;
    answer wanted;
} layer;

/* A layout and its shape, right or wrong; with_bounds: kv.bounds are there, too. */
void layer_draw(fuzz *f, layer *l, uint32_t n_kv_heads, bool with_bounds);
/* Another layer of the same shape. */
void layer_draw_like(fuzz *f, layer *l, const layer *first);
/* Makes K and V of a slot HELD in every head. */
void layer_hold(layer *l, uint32_t page, uint32_t slot);

#endif
