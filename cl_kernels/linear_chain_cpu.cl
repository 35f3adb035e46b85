/* SPDX-License-Identifier: Apache-2.0 */
/* linear_chain on a CPU: stages of up to three matrices with one input, normalised or not, gated or
 * not, or norms without parts, each stage after the one before. linear and linear_parts are chains of
 * one stage, and of two with an addend.
 * contract: host/ops/; meaning: host/compose.c.
 * A work-group goes from stage to stage. Of each it takes runs of strips, 16 neighbouring outputs of
 * any part, from the stage's queue. It takes a run before it has ended the last piece of the one before,
 * so that it can prefetch what it reads then; the first of a stage it begins once all of the stage
 * before have ended. It normalises the rows once a stage, or DEPTH inputs of them at a time if there
 * are more, as it holds them. Of a stage that is a norm rows take the place of strips. The parts'
 * kinds are TYPE_A, TYPE_B and TYPE_C, which may be equal. */
#ifndef TYPE_A
#define TYPE_A 0 /* tms_cl_kind */
#define TYPE_B 7
#define TYPE_C 0
#endif
#define WEIGHT TYPE_A
#define TAKES_FLOATS(kind)    (((kind)&15) <= 2)
#define TAKES_CODES(kind)     ((kind) > 2 && (kind) <= 16 + 3) /* rows, and strips of Q8_0 */
#define TAKES_CROSSED(kind)   ((kind) == 16 + 13 || (kind) == 16 + 14) /* strips of IQ4_NL, IQ4_XS */
#define TAKES_BYTES(kind)     ((kind) > 16 + 3 && !TAKES_CROSSED(kind))
#define TAKES_HALF_SUMS(kind) (((kind)&15) == 12) /* Q2_K */
#define ANY_OF(takes)         (takes(TYPE_A) || takes(TYPE_B) || takes(TYPE_C))
#define HOLD_FLOATS           ANY_OF(TAKES_FLOATS)
#define HOLD_CODES            ANY_OF(TAKES_CODES)
#define HOLD_CROSSED          ANY_OF(TAKES_CROSSED)
#define HOLD_BYTES            ANY_OF(TAKES_BYTES)
#define HOLD_HALF_SUMS        ANY_OF(TAKES_HALF_SUMS)
#include "linear_cpu.clh"
#include "activate.clh"
#if LONG /* room for the longest chain */
#define STAGES 8
#else
#define STAGES 4
#endif
#define PARTS 7
#include "linear_parts.clh"
#include "linear_type_cpu.clh"
#if TYPE_B != TYPE_A
#undef WEIGHT
#define WEIGHT TYPE_B
#include "weights_type.clh"
#include "linear_type_cpu.clh"
#endif
#if TYPE_C != TYPE_A && TYPE_C != TYPE_B
#undef WEIGHT
#define WEIGHT TYPE_C
#include "weights_type.clh"
#include "linear_type_cpu.clh"
#endif

/* Where output j, the first of a strip, and input k lie. */
#define PLACE(w, n_in, j, k) ((w) + (j)*ROW_BYTES(n_in) + (STRIPS ? STRIP : 1) * ROW_BYTES(k))

/* Adds the products of outputs j to j + outputs with the inputs k to k + depth, which are held; next:
 * what is read behind them. */
static inline void add_part(const part *p, uint j, uint outputs, uint n_in, uint k, uint depth,
                            const held *x, strips_ahead next, float (*sum)[MOST_RUN]) {
#undef WEIGHT
#define WEIGHT TYPE_C
#if TYPE_C != TYPE_A && TYPE_C != TYPE_B
    if (p->type == WEIGHT) {
        add_outputs(PLACE(p->w, n_in, j, k), n_in, outputs, x, depth, next, sum);
        return;
    }
#endif
#undef WEIGHT
#define WEIGHT TYPE_B
#if TYPE_B != TYPE_A
    if (p->type == WEIGHT) {
        add_outputs(PLACE(p->w, n_in, j, k), n_in, outputs, x, depth, next, sum);
        return;
    }
#endif
#undef WEIGHT
#define WEIGHT TYPE_A
    add_outputs(PLACE(p->w, n_in, j, k), n_in, outputs, x, depth, next, sum);
}

/* The outputs of a row, with the bias and with what is there; zeros behind the last up to a
 * multiple of 16. */
static inline void take_row(const part *p, uint j, uint outputs, const float *sum, uint r,
                            bool accumulate, float *out) {
    for (uint o = 0; o < outputs; o++) out[o] = sum[o];
    for (uint o = outputs; o % 16; o++) out[o] = 0.0f;
    if (p->bias) /* a loop of its own: reading what is absent under a mask would be slow */
        for (uint o = 0; o < outputs; o++) out[o] += p->bias[j + o];
    if (accumulate)
        for (uint o = 0; o < outputs; o++) out[o] += p->y[r * p->y_stride + j + o];
}

#define STAGE_OF(s) STAGE(arg.stages[s], s)
#define PART_OF(p) PART(arg.parts[p], p)

/* Strips of a part. */
static inline uint strips_of(const part *p) {
    return (p->n_out + STRIP - 1) / STRIP;
}

/* Those of a stage, whose parts these are; with a gate both have the same ones. Of a norm its rows. */
static ONCE uint strips_of_stage(const stage *s, const part *parts, uint n_rows) {
    uint n = 0;
    if (s->parts == 0) return n_rows;
    for (uint p = 0; p < (s->gated ? 1 : s->parts); p++) n += strips_of(parts + p);
    return n;
}

typedef struct strip_run {
    uint first, n;
} strip_run;

/* The strips of an item of a stage's queue. Round after round each work-group gets its share of half
 * of what is left: first long runs, since memory is read fastest in long pieces, then short ones, so
 * that all end together. n is 0 behind the last item. */
static ONCE strip_run run_of(uint item, uint strips) {
    const uint groups = (uint)get_num_groups(0);
    uint first = 0, size = max(1u, strips / (2 * groups));
    for (; item >= groups && first < strips; item -= groups) {
        first += groups * size;
        size = max(1u, (strips - min(first, strips)) / (2 * groups));
    }
    first = min(first + item * size, strips);
    return (strip_run){first, min(size, strips - first)};
}

/* The rows of a stage that a core holds. */
typedef struct inputs_held {
    held rows;
    row_norm norms[ROWS];
    uint first; /* input that is held; n_in: none yet */
} inputs_held;

/* Bytes of an output of the part. */
static inline ulong row_bytes(const part *p, uint n_in) {
#undef WEIGHT
#define WEIGHT TYPE_C
    if (p->type == WEIGHT) return ROW_BYTES(n_in);
#undef WEIGHT
#define WEIGHT TYPE_B
    if (p->type == WEIGHT) return ROW_BYTES(n_in);
#undef WEIGHT
#define WEIGHT TYPE_A
    return ROW_BYTES(n_in);
}

/* `strips` strips of the part from `first` on, as what is read next. */
static inline strips_ahead ahead_at(const part *p, uint n_in, uint first, uint strips) {
    const ulong bytes = STRIP * row_bytes(p, n_in);
    return (strips_ahead){p->w + first * bytes, max(1u, strips / 4) * bytes};
}

/* Outputs j to j + outputs of part p, and of the one behind it under a gate; next: what is read
 * behind them. */
static ONCE void end_item(const stage *s, const part *p, uint j, uint outputs, uint n_rows,
                          strips_ahead next, inputs_held *here) {
    const uint paired = s->gated && s->parts == 2;
    float sum[2][ROWS][MOST_RUN];
    for (uint r = 0; r < ROWS; r++)
        for (uint o = 0; o < outputs; o += 16)
            *(float16_at4 *)(sum[0][r] + o) = *(float16_at4 *)(sum[1][r] + o) = 0.0f;
    for (uint k = 0; k < s->n_in; k += DEPTH) {
        const uint depth = min((uint)DEPTH, s->n_in - k);
        for (uint r = 0; r < ROWS && here->first != k; r++) /* past the end, the last row again */
            hold_row(&here->rows, r, s->x + min(r, n_rows - 1) * s->x_stride + k,
                     s->norm ? s->norm + k : 0, here->norms[r], depth);
        here->first = k;
        for (uint second = 0; second <= paired; second++)
            add_part(p + second, j, outputs, s->n_in, k, depth, &here->rows,
                     second < paired ? ahead_at(p + 1, s->n_in, j / STRIP, outputs / STRIP) : next,
                     sum[second]);
    }
    for (uint r = 0; r < min(n_rows, (uint)ROWS); r++) {
        float y[MOST_RUN], up[MOST_RUN];
        take_row(p, j, outputs, sum[0][r], r, s->accumulate, y);
        if (paired) take_row(p + 1, j, outputs, sum[1][r], r, false, up);
        for (uint o = 0; o < outputs && s->gated; o += 16) {
            const float16 z = *(const float16_at4 *)(y + o);
            const float16 h = exp16(-0.5f * fabs(activation16(z, s->activation)));
            const float16 by = paired ? *(const float16_at4 *)(up + o) : (float16)(1.0f);
            *(float16_at4 *)(y + o) = gated16(z, h, by);
        }
        for (uint o = 0; o < outputs; o++) p->y[r * p->y_stride + j + o] = y[o];
    }
}

/* What of a run comes at a time: strips of one part. */
typedef struct strip_piece {
    const part *of;
    uint first, n;
} strip_piece;

static inline strip_piece first_piece(const part *parts, strip_run run) {
    const part *p = parts;
    for (; run.first >= strips_of(p); p++) run.first -= strips_of(p);
    return (strip_piece){p, run.first,
                         min(min(run.n, strips_of(p) - run.first), (uint)MOST_RUN / STRIP)};
}

/* What a work-group does next: a run of a stage; run.n is 0 behind the last. */
typedef struct chain_turn {
    uint stage;
    strip_run run;
} chain_turn;

/* A chain, with the parts and the number of strips of each stage. */
typedef struct chain {
    stage stages[STAGES];
    const part *parts[STAGES];
    uint strips[STAGES], n_stages, n_rows;
    __global int *queue;
} chain;

/* What the work-groups count of each stage, behind the queue: items taken, strips ended. */
#define TAKEN(c, s) ((c)->queue + 2 + 2 * (s))
#define ENDED(c, s) ((c)->queue + 3 + 2 * (s))

/* Of this stage, or of the next one that has runs left. */
static inline chain_turn take_turn(const chain *c, uint stage) {
    chain_turn turn = {stage, run_of(next_item(TAKEN(c, stage)), c->strips[stage])};
    while (turn.run.n == 0 && turn.stage + 1 < c->n_stages) {
        turn.stage++;
        turn.run = run_of(next_item(TAKEN(c, turn.stage)), c->strips[turn.stage]);
    }
    return turn;
}

/* What is read first in a turn. */
static inline strips_ahead ahead_of(const chain *c, chain_turn turn) {
    if (turn.run.n == 0 || c->stages[turn.stage].parts == 0)
        return (strips_ahead){c->parts[0]->w, 0};
    const strip_piece piece = first_piece(c->parts[turn.stage], turn.run);
    return ahead_at(piece.of, c->stages[turn.stage].n_in, piece.first, piece.n);
}

/* Does what a turn of a norm says, and takes the next one. */
static ONCE chain_turn end_norm(const chain *c, chain_turn turn) {
    const stage *s = c->stages + turn.stage;
    for (uint r = turn.run.first; r < turn.run.first + turn.run.n; r++)
        norm_row(s->addend + r * s->addend_stride, s->norm, s->n_in, s->eps, s->norm_kind,
                 s->accumulate ? s->x + r * s->x_stride : 0, s->sum + r * s->sum_stride);
    return take_turn(c, turn.stage);
}

/* The same of a turn of strips; the next one is taken with the last piece. */
static ONCE chain_turn end_turn(const chain *c, chain_turn turn, inputs_held *here) {
    const uint stage = turn.stage;
    for (;;) {
        const strip_piece piece = first_piece(c->parts[stage], turn.run);
        const uint j = piece.first * STRIP;
        const strip_run rest = {turn.run.first + piece.n, turn.run.n - piece.n};
        turn = rest.n ? (chain_turn){stage, rest} : take_turn(c, stage);
        end_item(c->stages + stage, piece.of, j, min(piece.n * STRIP, piece.of->n_out - j),
                 c->n_rows, ahead_of(c, turn), here);
        if (rest.n == 0) return turn;
    }
}

typedef struct chain_numbers {
    CHAIN_NUMBERS;
    QUEUE_NUMBERS;
} chain_numbers;

#if LONG
#define MORE_STAGES    STAGE_MEMORY(4) STAGE_MEMORY(5) STAGE_MEMORY(6) STAGE_MEMORY(7)
#define MORE_STAGES_OF , STAGE_OF(4), STAGE_OF(5), STAGE_OF(6), STAGE_OF(7)
#else
#define MORE_STAGES
#define MORE_STAGES_OF
#endif

/* n_items: strips of the stage that has the most. */
__kernel ONE_ITEM void linear_chain(
    STAGE_MEMORY(0) STAGE_MEMORY(1) STAGE_MEMORY(2) STAGE_MEMORY(3) MORE_STAGES PART_MEMORY(0)
    PART_MEMORY(1) PART_MEMORY(2) PART_MEMORY(3) PART_MEMORY(4) PART_MEMORY(5) PART_MEMORY(6)
    MEMORY(int, queue) const chain_numbers arg) {
    OPEN(int, queue);
    const part parts[PARTS] = {PART_OF(0), PART_OF(1), PART_OF(2), PART_OF(3),
                               PART_OF(4), PART_OF(5), PART_OF(6)};
    chain c = {.stages = {STAGE_OF(0), STAGE_OF(1), STAGE_OF(2), STAGE_OF(3) MORE_STAGES_OF},
               .n_stages = arg.n_stages,
               .n_rows = arg.n_rows,
               .queue = queue};
    inputs_held here;
    if (c.n_rows == 0) return;
    for (uint at = 0; at < c.n_stages; at++) {
        c.parts[at] = at ? c.parts[at - 1] + c.stages[at - 1].parts : parts;
        c.strips[at] = strips_of_stage(c.stages + at, c.parts[at], c.n_rows);
    }
    uint begun = STAGES, ended = 0;
    for (chain_turn turn = take_turn(&c, 0), next; turn.run.n; turn = next) {
        const uint at = turn.stage;
        const stage *s = c.stages + at;
        if (begun != at) {
            begun = at;
            if (at) wait_until(ENDED(&c, at - 1), (int)c.strips[at - 1]);
            here.first = s->n_in;
            for (uint r = 0; r < ROWS && s->norm && s->parts; r++)
                here.norms[r] = row_norm_of(s->x + min(r, c.n_rows - 1) * s->x_stride, s->n_in,
                                            s->eps, s->norm_kind);
        }
        next = s->parts ? end_turn(&c, turn, &here) : end_norm(&c, turn);
        ended += turn.run.n;
        if (next.run.n && next.stage == at) continue;
        if (at + 1 < c.n_stages) add_to(ENDED(&c, at), (int)ended);
        ended = 0;
    }
    leave_queue(queue, 2 * STAGES);
}
