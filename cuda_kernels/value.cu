/* SPDX-License-Identifier: Apache-2.0 */
/* value_score: y(l) = Σ a(l, s)·v_s over first <= s < end, e(s) = (Σ_l a(l, s)·y(l))·v_s;
 * value_norm: ‖v_s‖₂, or the mean over the group of Σ_o |Σ_c w[o][head*dim + c]·v_s[c]|.
 * contract: host/ops/; meaning: host/reference/value.c.
 * Work split: in value_score_sums the blocks of one x share the sums of CU_SUM_SLOTS slots of one
 * (item, KV head), a thread 8 channels of CU_VALUE_LISTS lists; value_score_join adds them, a
 * thread a channel; in value_score_slots a thread takes RUN slots; in value_norm_l2 a warp takes
 * rows; in value_norm_projected a block takes a tile of slots (slots.cuh). */
#include "slots.cuh"

/* ---- value_score ----------------------------------------------------------------------------- */

/* Adds 8 channels of the slots from `s` to `stop`, all of one page, the first at v, to the sums of
 * the lists. */
template <typename T>
DEVICE void add_slots(const cu_value_score_args &a, kv_row<T> v, uint32_t channel,
                      const float *const *from, uint32_t s, uint32_t stop,
                      float (&sum)[CU_VALUE_LISTS][8]) {
    float part[CU_VALUE_LISTS][8] = {};
    for (; s < stop; s++, v = row_behind(a.slots.kv, v, 1)) {
        float x[8];
        load_8(v, channel, x);
#pragma unroll
        for (uint32_t j = 0; j < CU_VALUE_LISTS; j++) {
            const float weight = from[j][s];
#pragma unroll
            for (uint32_t c = 0; c < 8; c++)
                part[j][c] = fmaf(weight, x[c], part[j][c]);
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < CU_VALUE_LISTS; j++)
#pragma unroll
        for (uint32_t c = 0; c < 8; c++)
            sum[j][c] += part[j][c];
}

template <typename T> DEVICE void score_sums(const cu_value_score_args &a) {
    const slot_lane l = lane_of(a.slots);
    if (l.seen == 0) return;
    const uint32_t dim = a.slots.dim, task = blockIdx.y * CU_VALUE_THREADS + threadIdx.x;
    const uint32_t list = task / (dim / 8) * CU_VALUE_LISTS, channel = task % (dim / 8) * 8;
    const int32_t *limits = a.limits + 2 * (uint64_t)l.owner;
    const uint32_t first = max((uint32_t)limits[0], l.block * CU_SUM_SLOTS);
    const uint32_t end = min((uint32_t)limits[1], (l.block + 1) * CU_SUM_SLOTS);
    if (first >= end || list >= a.n_lists) return;
    const float *from[CU_VALUE_LISTS]; /* past the end, the last list again */
    float sum[CU_VALUE_LISTS][8] = {};
#pragma unroll
    for (uint32_t j = 0; j < CU_VALUE_LISTS; j++)
        from[j] = a.a + ((uint64_t)l.owner * a.n_lists + min(list + j, a.n_lists - 1)) * a.stride;
    for (uint32_t s = first; s < end;) {
        const uint32_t stop = min(end, (s | (a.slots.kv.page_size - 1)) + 1);
        add_slots(a, slot_row<T>(a.slots, l, s, a.slots.kv.value_offset), channel, from, s, stop,
                  sum);
        s = stop;
    }
    float *to = a.parts + ((uint64_t)blockIdx.x * a.n_lists + list) * dim + channel;
#pragma unroll
    for (uint32_t i = 0; i < CU_VALUE_LISTS * 8; i++)
        if (list + i / 8 < a.n_lists) to[(uint64_t)(i / 8) * dim + i % 8] = sum[i / 8][i % 8];
}

/* y of every list: its blocks in order. */
KERNEL(value_score_join, CU_VALUE_THREADS, cu_value_score_args) {
    const uint64_t each = (uint64_t)a.n_lists * a.slots.dim;
    FOR_EACH_ITEM(i, a.slots.batch.n_rows * a.slots.batch.n_kv_heads * each) {
        const uint64_t owner = i / each;
        const uint32_t first = (uint32_t)a.limits[2 * owner];
        const uint32_t end = (uint32_t)a.limits[2 * owner + 1];
        float sum = 0.0f;
        for (uint32_t b = first / CU_SUM_SLOTS; first < end && b * CU_SUM_SLOTS < end; b++)
            sum += a.parts[(owner * a.sum_blocks + b) * each + i % each];
        a.y[i] = sum;
    }
}

#define RUN   (CU_VALUE_SLOTS / CU_VALUE_THREADS)
#define TERMS(dim) ((dim) <= 256u ? 16u : 8u) /* lists of a sum that is formed anew */

typedef struct value_shared {
    vec16 y[TERMS(256u) * 256u / 4]; /* [list][dim] */
} value_shared;
static_assert(TERMS(CU_ANY_DIM) * CU_ANY_DIM <= TERMS(256u) * 256u, "longer rows fit");

/* Adds to e what 8 channels of n lists give. */
DEVICE void add_lists(const value_shared &lists, uint32_t dim, uint32_t channel, uint32_t n,
                      const float *const *weights, uint64_t stride, const float (&v)[RUN][8],
                      float (&e)[RUN]) {
    float sum[RUN][8] = {}; /* Σ a·y */
    for (uint32_t i = 0; i < n; i++) {
        const vec16 lo = load_16(&lists.y[(i * dim + channel) / 4]);
        const vec16 hi = load_16(&lists.y[(i * dim + channel) / 4 + 1]);
#pragma unroll
        for (uint32_t j = 0; j < RUN; j++) {
            const float weight = weights[j][i * stride];
#pragma unroll
            for (uint32_t c = 0; c < 4; c++) {
                sum[j][c] = fmaf(weight, bits_to_float(lo.word[c]), sum[j][c]);
                sum[j][4 + c] = fmaf(weight, bits_to_float(hi.word[c]), sum[j][4 + c]);
            }
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < RUN; j++)
        e[j] += dot_8(sum[j], v[j]);
}

template <typename T> DEVICE void score_slots(const cu_value_score_args &a) {
    SHARED(value_shared, lists);
    const slot_lane l = lane_of(a.slots);
    const uint32_t dim = a.slots.dim, terms = TERMS(dim), first = l.block * CU_VALUE_SLOTS;
    if (first >= l.seen) return;
    kv_row<T> rows[RUN]; /* past the end, the last slot again */
    const float *weights[RUN];
    float e[RUN] = {};
#pragma unroll
    for (uint32_t j = 0; j < RUN; j++) {
        const uint32_t slot = min(first + j * CU_VALUE_THREADS + threadIdx.x, l.seen - 1);
        rows[j] = slot_row<T>(a.slots, l, slot, a.slots.kv.value_offset);
        weights[j] = a.a + (uint64_t)l.owner * a.n_lists * a.stride + slot;
    }
    const float *y = a.y + (uint64_t)l.owner * a.n_lists * dim;
    for (uint32_t list = 0; list < a.n_lists; list += terms) {
        const uint32_t n = min(a.n_lists - list, terms);
        block_sync(); /* the lists before may still be read */
        for (uint32_t i = threadIdx.x; i < n * dim; i += CU_VALUE_THREADS)
            lists.y[i / 4].word[i % 4] = float_to_bits(y[list * dim + i]);
        block_sync();
        for (uint32_t channel = 0; channel < dim; channel += 8) {
            float v[RUN][8];
#pragma unroll
            for (uint32_t j = 0; j < RUN; j++)
                load_8(rows[j], channel, v[j]);
            add_lists(lists, dim, channel, n, weights, a.stride, v, e);
        }
#pragma unroll
        for (uint32_t j = 0; j < RUN; j++)
            weights[j] += terms * a.stride;
    }
#pragma unroll
    for (uint32_t j = 0; j < RUN; j++) {
        const uint32_t slot = first + j * CU_VALUE_THREADS + threadIdx.x;
        if (slot < l.seen) a.out[l.owner * a.out_stride + slot] = e[j];
    }
}

#define VALUE_SCORE(type, tag)                                                                     \
    KERNEL(value_score_sums_##tag, CU_VALUE_THREADS, cu_value_score_args) {                        \
        score_sums<type>(a);                                                                       \
    }                                                                                              \
    KERNEL(value_score_slots_##tag, CU_VALUE_THREADS, cu_value_score_args) {                       \
        score_slots<type>(a);                                                                      \
    }
FOR_EACH_ROW_TYPE(VALUE_SCORE)

/* ---- value_norm ------------------------------------------------------------------------------ */

#define VALUE_NORM_L2(type, tag)                                                                   \
    KERNEL(value_norm_l2_##tag, CU_ROWS_THREADS, cu_value_norm_args) {                             \
        slot_norms<type>(a.slots, a.slots.kv.value_offset, a.out, a.out_stride);                   \
    }
FOR_EACH_ROW_TYPE(VALUE_NORM_L2)

template <uint32_t SLOTS> DEVICE void norm_projected(const cu_value_norm_args &a, float *tile) {
    const uint32_t dim = a.slots.dim, group = a.slots.batch.group;
    float *panel = tile + dim * SLOTS;
    const slot_lane l = lane_of(a.slots);
    const uint32_t first = l.block * SLOTS;
    if (first >= l.seen) return;
    load_tile<SLOTS>(a.slots, l, a.slots.kv.value_offset, first, l.seen, tile);
    float sums[EDGE] = {};
    for (uint32_t g = 0; g < group; g++) {
        const uint64_t column = (uint64_t)(l.head * group + g) * dim;
        const char *at = (const char *)a.w + column * (a.w_dtype == 0 ? 4 : 2);
        const weight_rows w = {at, a.w_stride, a.w_dtype, a.n_out};
        for (uint32_t output = 0; output < a.n_out; output += CU_PROJECT_ROWS) {
            float products[EDGE][EDGE];
            project<SLOTS>(tile, panel, dim, w, output, products);
#pragma unroll
            for (uint32_t i = 0; i < EDGE * EDGE; i++)
                if (output + edge_row() + i % EDGE < a.n_out)
                    sums[i / EDGE] += fabsf(products[i / EDGE][i % EDGE]);
        }
    }
    join_turn<SLOTS>(panel, sums, 1.0f / (float)group, first, l.seen, a.out + l.owner * a.out_stride);
}

#define VALUE_NORM_PROJECTED(slots)                                                                \
    KERNEL(value_norm_projected_s##slots, CU_PROJECT_THREADS(slots), cu_value_norm_args) {         \
        DYNAMIC_SHARED(float, tile);                                                               \
        norm_projected<slots>(a, tile);                                                            \
    }
VALUE_NORM_PROJECTED(64) VALUE_NORM_PROJECTED(32)
