/* SPDX-License-Identifier: Apache-2.0 */
/* What fuzzed API calls share: the input, a world of one cache and two plans over it, and a shadow
 * of it: which token every slot of every lane holds. After each call the cache is compared with the
 * shadow; a call that fails leaves the shadow, and so must leave the cache, as it was. */
#ifndef FUZZ_SHADOW_H
#define FUZZ_SHADOW_H

#include "lib/cache/cache.h"
#include "tests/api/fixture.h"

enum {
    MAX_LIVE = 6,
    MAX_PLANS = 2,
    MAX_LAYERS = 2,
    MAX_HEADS = 2, /* of K and V */
    MAX_GROUP = 3,
    MAX_LANES = MAX_LAYERS * MAX_HEADS,
    MAX_DIM = 80,
    MAX_CONTEXT = 64,
    MAX_PAGES = MAX_CONTEXT / 8,
    MAX_STEP = 3,
    MAX_ROWS = 24,
    ROW = MAX_HEADS * MAX_GROUP * MAX_DIM /* elements of a row of queries, at most */
};

/* Slot by slot the positions of a lane's tokens. */
typedef struct shadow_lane {
    uint32_t length;
    uint64_t given_up; /* the token that the last cancelled step has put into a slot of it */
    int32_t positions[MAX_CONTEXT];
} shadow_lane;

typedef struct shadow_sequence {
    tamis_sequence id; /* 0: none */
    uint32_t length, evicted_at;
    bool unordered; /* slots may be out of the order of their tokens */
    bool given_up;  /* a cancelled step has put a token of position `length` into slots */
    uint64_t tokens[MAX_CONTEXT + 1]; /* by position */
    shadow_lane lanes[MAX_LANES];
} shadow_sequence;

/* The open step. */
typedef struct shadow_step {
    bool open;
    uint32_t plan, n, n_rows;
    shadow_sequence *of[MAX_STEP];
    uint32_t rows[MAX_STEP];
    uint64_t tokens[MAX_ROWS];
    bool reserved; /* what must be 0 is not */
    bool exact, written[MAX_LAYERS], attended[MAX_LAYERS];
    float q[MAX_LAYERS][MAX_ROWS * ROW], out[MAX_LAYERS][MAX_ROWS * ROW];
    /* The pages that the attends said they read. */
    uint32_t count[MAX_LAYERS][MAX_ROWS][MAX_HEADS];
    uint32_t pages[MAX_LAYERS][MAX_ROWS][MAX_HEADS][MAX_PAGES];
} shadow_step;

typedef struct fuzz_plan {
    tamis_plan *plan;
    tamis_plan_params params;
    bool has_budgets; /* of single lanes */
    uint32_t budgets[MAX_LANES];
} fuzz_plan;

typedef struct fuzz {
    const uint8_t *at, *end; /* what is left of the input */
    tamis_context *context;
    tamis_buffer *k, *v, *q, *out; /* [MAX_ROWS][ROW] f32 */
    tamis_cache *cache;
    tamis_cache_params shape;
    uint32_t n_lanes, group;
    tamis_bounds bounds;
    fuzz_plan plans[MAX_PLANS];
    shadow_sequence sequences[MAX_LIVE];
    shadow_step step;
    uint64_t next_token, checks;
} fuzz;

/* The next byte of the input, modulo n; 0 behind its end. */
uint32_t fuzz_take(fuzz *f, uint32_t n);
/* A live sequence; now and then any, a dead one too. */
shadow_sequence *fuzz_sequence(fuzz *f);
bool fuzz_in_step(const fuzz *f, const shadow_sequence *s);

/* Statuses as a set. */
#define CAUSE(status) (1u << -(TAMIS_##status))
/* `status` is one of the `causes` that the shadow knows of; without any it is OK, or one of those
 * that `maybe` allows. Returns whether it is OK. FUZZ_TRACE in the environment prints the calls. */
#define EXPECT(call, causes, maybe)                                                                \
    (test_error = (tamis_error){0}, shadow_expect((call), (causes), (maybe), #call))
bool shadow_expect(tamis_status status, uint32_t causes, uint32_t maybe, const char *call);

uint32_t shadow_pages(const fuzz *f, uint32_t slots);
/* Appends `rows` tokens to a lane; its positions follow `length`. */
void shadow_append(shadow_lane *lane, uint32_t length, uint32_t rows);
/* A fixed value from -2 to 2 of a token, for queries and weights. */
float shadow_value(uint64_t token, uint32_t of, uint32_t i);
/* The positions of a lane as the cache tells them. */
void shadow_positions(fuzz *f, const shadow_sequence *s, uint32_t lane, int32_t *positions);
/* A lane holds what the shadow says: positions, K, V. */
void shadow_check_lane(fuzz *f, const shadow_sequence *s, uint32_t lane);
/* Statistics, lengths and the pool's accounts; and the contents of one lane, another each time. */
void shadow_check(fuzz *f);
/* Contents of all lanes. */
void shadow_check_all(fuzz *f);

/* Steps (calls_step.c). */
void fuzz_begin(fuzz *f);
void fuzz_write(fuzz *f, uint32_t layer);
void fuzz_attend(fuzz *f, uint32_t layer);
void fuzz_end(fuzz *f);
void fuzz_cancel(fuzz *f);
/* The open step has been given up: tokens that it wrote into lanes at their cap stay there. */
void shadow_give_up(fuzz *f);
/* What the layers of a step that has ended gave, against attention in fp64. */
void shadow_check_attention(fuzz *f);

/* Plans and evictions (calls_evict.c). */
void fuzz_renew_plan(fuzz *f, uint32_t index);
void fuzz_evict(fuzz *f);
void fuzz_bind(fuzz *f);

#endif
