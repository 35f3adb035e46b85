/* SPDX-License-Identifier: Apache-2.0 */
/* page_mass: m_g(page) = Σ exp(logit - lse_g) over the page's slots; score(page) = max, mean or sum
 * of m_g over the group.
 * contract: host/ops/; meaning: host/reference/mass.c.
 * Work split: in page_mass_logs a warp takes a page of one (row, query head), the partial page too,
 * 8 channels per warp lane and as many slots at once as fit, and writes ln Σ exp(logit) of its
 * slots; in page_mass_lse a block owns one (row, query head) and joins those; in page_mass_scores a
 * thread takes a full page of one (row, KV head). The blocks of one x share the pages of their
 * owner. */
#include "common.cuh"
#include "logit.cuh"

#define MASS_WARPS (CU_MASS_THREADS / WARP)

/* What a (row, KV head) sees: slots [hidden, seen), in pages [first, pages). */
struct mass_lane {
    uint32_t hidden, seen, first, pages;
};
DEVICE mass_lane mass_lane_of(const cu_mass_args &a, uint64_t owner) {
    mass_lane l;
    l.seen = (uint32_t)a.batch.visible[owner];
    l.hidden = min(first_seen(a.batch, owner), l.seen);
    l.first = l.hidden >> a.kv.page_shift;
    l.pages = (l.seen >> a.kv.page_shift) + (l.seen % a.kv.page_size != 0);
    return l;
}

/* A running Σ exp(x); a NaN stays in the sum. */
typedef struct log_sum {
    float top, sum; /* the largest x, Σ exp(x - top); -inf and 0 of nothing */
} log_sum;

DEVICE void add(log_sum &s, float x) {
    if (x > s.top) {
        s.sum *= expf(s.top - x);
        s.top = x;
    }
    s.sum += expf(x - s.top);
}
/* The sum on the scale of a common top. */
DEVICE float rescaled(const log_sum &s, float top) {
    return s.sum == 0.0f ? 0.0f : s.sum * expf(s.top - top);
}

/* ln Σ exp(logit) of the slots from `from` to below `slots` of a page, by a warp; every lane gets it.
 * `x` is scale·q of the lane's channels, 0 beyond the last one. */
template <typename T, uint32_t DIM>
DEVICE float page_log(const cu_mass_args &a, const kv_row<T> &key, uint32_t from, uint32_t slots,
                      const float (&x)[CU_ROW_TURNS(DIM)][8]) {
    constexpr uint32_t LANES = CU_ROW_LANES(DIM), SIDES = WARP / LANES;
    const uint32_t lane = lane_id() % LANES, side = lane_id() / LANES;
    log_sum mine = {-INFINITY, 0.0f}; /* of every SIDES-th slot, the same in LANES lanes */
    for (uint32_t base = 0; base < slots; base += SIDES) {
        /* 1. the logits of SIDES slots */
        const uint32_t slot = base + side;
        float dot = 0.0f;
#pragma unroll
        for (uint32_t turn = 0; turn < CU_ROW_TURNS(DIM); turn++) {
            const uint32_t channel = (turn * LANES + lane) * 8;
            float k[8];
            if (slot >= slots || channel >= dim_of<DIM>(a.kv)) continue;
            load_8(row_behind(a.kv, key, slot), channel, k);
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                dot = fmaf(x[turn][i], k[i], dot);
        }
#pragma unroll
        for (uint32_t mask = LANES / 2; mask > 0; mask /= 2)
            dot += shuffle_xor(dot, mask);
        if (from <= slot && slot < slots) add(mine, logit_of(a.logit, dot));
    }
    /* 2. the page's log-mass */
    const float top = warp_max(mine.top);
    float sum = rescaled(mine, top);
#pragma unroll
    for (uint32_t mask = WARP / 2; mask >= LANES; mask /= 2)
        sum += shuffle_xor(sum, mask);
    return top + logf(sum);
}

template <typename T, uint32_t DIM> DEVICE void mass_logs(const cu_mass_args &a) {
    const uint32_t state = blockIdx.x, n_heads = a.batch.n_kv_heads * a.batch.group;
    if (state >= (uint64_t)a.batch.n_rows * n_heads) return;
    const uint32_t row = state / n_heads, query_head = state % n_heads;
    const uint32_t head = query_head / a.batch.group, owner = row * a.batch.n_kv_heads + head;
    const mass_lane l = mass_lane_of(a, owner);
    const uint32_t lane = lane_id() % CU_ROW_LANES(DIM), dim = dim_of<DIM>(a.kv);
    const int32_t *ids = lane_pages(a.batch, row, head);
    const float *q = a.q.at + row * a.q.stride + (uint64_t)query_head * dim;
    float x[CU_ROW_TURNS(DIM)][8];
#pragma unroll
    for (uint32_t i = 0; i < CU_ROW_TURNS(DIM) * 8; i++) {
        const uint32_t channel = (i / 8 * CU_ROW_LANES(DIM) + lane) * 8 + i % 8;
        x[i / 8][i % 8] = channel < dim ? a.logit.scale * q[channel] : 0.0f;
    }
    for (uint32_t page = l.first + blockIdx.y * MASS_WARPS + warp_id(); page < l.pages;
         page += gridDim.y * MASS_WARPS) {
        const uint32_t begin = page << a.kv.page_shift;
        const uint32_t slots = min(l.seen - begin, a.kv.page_size);
        const float log = page_log<T, DIM>(a, kv_rows<T>::of(a.kv, ids[page], head, 0, 0),
                                           max(l.hidden, begin) - begin, slots, x);
        if (lane_id() == 0) a.logs[state * a.log_stride + page] = log;
    }
}

#define PAGE_MASS_LOGS(type, tag, dim)                                                             \
    KERNEL(page_mass_logs_##tag##_d##dim, CU_MASS_THREADS, cu_mass_args) {                         \
        mass_logs<type, dim>(a);                                                                   \
    }
FOR_EACH_ROW_TYPE_AND_DIM(PAGE_MASS_LOGS)

typedef struct lse_shared {
    float tops[MASS_WARPS], sums[MASS_WARPS];
} lse_shared;

KERNEL(page_mass_lse, CU_MASS_THREADS, cu_mass_args) {
    SHARED(lse_shared, warps);
    const uint32_t state = blockIdx.x;
    if (state >= (uint64_t)a.batch.n_rows * a.batch.n_kv_heads * a.batch.group) return;
    const mass_lane l = mass_lane_of(a, state / a.batch.group);
    const float *logs = a.logs + state * a.log_stride;
    /* 1. Σ exp over the thread's pages, then over the warp's */
    log_sum mine = {-INFINITY, 0.0f};
    for (uint32_t page = l.first + threadIdx.x; page < l.pages; page += CU_MASS_THREADS)
        add(mine, logs[page]);
    float top = warp_max(mine.top);
    const float sum = warp_sum(rescaled(mine, top));
    if (lane_id() == 0) {
        warps.tops[warp_id()] = top;
        warps.sums[warp_id()] = sum;
    }
    block_sync();
    /* 2. over the warps, in order */
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (uint32_t w = 0; w < MASS_WARPS; w++)
            top = fmaxf(top, warps.tops[w]);
        for (uint32_t w = 0; w < MASS_WARPS; w++)
            total += rescaled(log_sum{warps.tops[w], warps.sums[w]}, top);
        const uint32_t head = state % (a.batch.n_kv_heads * a.batch.group);
        a.lse[state] = with_sink(top + logf(total), a.sinks ? a.sinks[head] : -INFINITY);
    }
}

KERNEL(page_mass_scores, CU_MASS_THREADS, cu_mass_args) {
    const uint32_t owner = blockIdx.x, group = a.batch.group;
    if (owner >= (uint64_t)a.batch.n_rows * a.batch.n_kv_heads) return;
    const uint32_t pages = (uint32_t)a.batch.visible[owner] >> a.kv.page_shift;
    const uint32_t first = first_seen(a.batch, owner) >> a.kv.page_shift;
    for (uint32_t page = first + blockIdx.y * CU_MASS_THREADS + threadIdx.x; page < pages;
         page += gridDim.y * CU_MASS_THREADS) {
        /* the masses of the page, joined by the group's rule; a NaN stays */
        float score = 0.0f;
        for (uint32_t g = 0; g < group; g++) {
            const uint64_t state = (uint64_t)owner * group + g;
            const float mass = expf(a.logs[state * a.log_stride + page] - a.lse[state]);
            if (a.rule != 0)
                score += mass;
            else if (mass > score || mass != mass)
                score = mass;
        }
        a.scores[owner * a.stride + page] = a.rule == 1 ? score / (float)group : score;
    }
}
