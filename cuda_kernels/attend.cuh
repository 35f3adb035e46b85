/* SPDX-License-Identifier: Apache-2.0 */
/* attend: what its two forms share: how a row's entries are split, plain sums over a split by one
 * warp, and how splits and chunks are merged. Meaning: host/reference/attend.c.
 *
 * The entries (pages) of a row are divided into splits, one per warp; CU_ATTEND_WARPS consecutive
 * splits are a chunk, one per block. The sizes depend only on the row's own number of entries.
 * Entries before that of the first slot that the row sees do not count. */
#ifndef TAMIS_CUDA_ATTEND_CUH
#define TAMIS_CUDA_ATTEND_CUH
#include "common.cuh"
#include "logit.cuh"

/* ---- What a row sees ------------------------------------------------------------------------- */

struct attend_lane {
    const int32_t *list, *ids; /* ordinals, NULL: all pages; page ids */
    uint32_t row, head;
    uint32_t hidden, seen;  /* slots from `hidden` to below `seen` are seen */
    uint32_t from, entries; /* entries from `from` on count: earlier ones are hidden */
};

/* The first entry of which a slot is not hidden. */
DEVICE uint32_t attend_from(const attend_lane &l, uint32_t page_shift) {
    const uint32_t ordinal = l.hidden >> page_shift;
    if (!l.list) return min(ordinal, l.entries);
    uint32_t from = 0, end = l.entries; /* all before `from` are smaller, none from `end` on is */
    while (from < end) {
        const uint32_t middle = from + (end - from) / 2;
        if ((uint32_t)l.list[middle] < ordinal)
            from = middle + 1;
        else
            end = middle;
    }
    return from;
}

DEVICE attend_lane attend_lane_of(const cu_attend_args &a, uint32_t row, uint32_t head) {
    const uint64_t owner = (uint64_t)row * a.batch.n_kv_heads + head;
    attend_lane l = {};
    l.ids = lane_pages(a.batch, row, head);
    l.row = row;
    l.head = head;
    l.seen = (uint32_t)max(a.batch.visible[owner], 0);
    l.hidden = first_seen(a.batch, owner);
    l.entries = (l.seen + a.kv.page_size - 1) >> a.kv.page_shift;
    if (a.lists.pages) {
        grid_wait(); /* what writes lists may still be running; it writes nothing that is read above */
        l.list = a.lists.pages + owner * a.lists.capacity;
        l.entries = (uint32_t)max(a.lists.count[owner], 0);
    }
    if (l.hidden) l.from = attend_from(l, a.kv.page_shift);
    return l;
}

/* One entry of a row: its ordinal, and its page id or -1 if the row sees nothing of it. */
struct attend_page {
    uint32_t ordinal;
    int32_t id;
};

DEVICE attend_page attend_page_of(const cu_attend_args &a, const attend_lane &l, uint32_t entry,
                                  uint32_t end) {
    attend_page p = {0, -1};
    if (entry >= end) return p;
    p.ordinal = l.list ? (uint32_t)l.list[entry] : entry;
    if ((uint64_t)p.ordinal << a.kv.page_shift < l.seen) p.id = l.ids[p.ordinal];
    return p;
}
DEVICE attend_page shuffle_page(const attend_page &p, uint32_t lane) {
    const attend_page from = {shuffle(p.ordinal, lane), shuffle(p.id, lane)};
    return from;
}

DEVICE bool attend_sees(const cu_attend_args &a, const attend_lane &l, const attend_page &p,
                        uint32_t in_page) {
    const uint32_t slot = (p.ordinal << a.kv.page_shift) + in_page;
    return p.id >= 0 && l.hidden <= slot && slot < l.seen;
}

/* The row's query head that is the first-th of the group. */
DEVICE const float *attend_query_of(const cu_attend_args &a, const attend_lane &l, uint32_t first,
                                    uint32_t dim) {
    return a.q.at + l.row * a.q.stride + ((uint64_t)l.head * a.batch.group + first) * dim;
}

/* Where the logits of a row's query heads from the first-th of the group on go; NULL: nowhere. */
DEVICE float *attend_logits_of(const cu_attend_args &a, const attend_lane &l, uint32_t first) {
    const uint64_t heads = (uint64_t)l.row * a.batch.n_kv_heads + l.head;
    return a.logits ? a.logits + (heads * a.batch.group + first) * a.logit_stride : nullptr;
}

/* The number subtracted in exponents: if nothing was seen so far, a finite one, so that weights are
 * 0. */
DEVICE float attend_base(float top) {
    return top == -INFINITY ? 0.0f : top;
}

/* ---- Splits ---------------------------------------------------------------------------------- */

struct attend_share {
    uint32_t chunks;     /* of the row, at least 1 */
    uint32_t splits;     /* of this block's chunk */
    uint32_t begin, end; /* entries of this warp's split */
};

DEVICE attend_share attend_share_of(const cu_attend_args &a, const attend_lane &l) {
    const uint32_t most = CU_ATTEND_WARPS * CU_ATTEND_CHUNKS, entries = l.entries - l.from;
    const uint32_t least = max(CU_ATTEND_SPLIT >> a.kv.page_shift, 1u);
    const uint32_t size = max((entries + most - 1) / most + least - 1, least) / least * least;
    const uint32_t splits = (entries + size - 1) / size, first = blockIdx.x * CU_ATTEND_WARPS;
    attend_share s;
    s.chunks = max((splits + CU_ATTEND_WARPS - 1) / CU_ATTEND_WARPS, 1u);
    s.splits = splits > first ? min(splits - first, CU_ATTEND_WARPS) : 0;
    s.begin = l.from + min((first + warp_id()) * size, entries);
    s.end = min(s.begin + size, l.entries);
    return s;
}

/* The row of block z of a decode launch; false: none, or one that the other kernel serves. */
DEVICE bool attend_row_of(const cu_attend_args &a, uint32_t &row) {
    if (blockIdx.z >= a.n) return false;
    row = a.first + blockIdx.z;
    if (!a.by_tile) return true;
    const uint32_t tile = row;
    row = (uint32_t)a.batch.tiles[2 * tile];
    return a.batch.tiles[2 * tile + 1] == 1;
}

/* Weighted values not yet divided by the sum of weights, which are exp(logit - top). */
template <int D, int G> struct alignas(16) attend_state { float sum[G][D], top[G], total[G]; };
template <int D, int G> struct attend_block {
    attend_state<D, G> of[CU_ATTEND_WARPS]; /* of the chunk's splits */
    uint32_t before;                        /* blocks of the row that were done before this one */
};

/* ---- One warp, plain ------------------------------------------------------------------------- */

/* A warp lane has TURNS times 8 channels; LANES warp lanes share a key, so that a warp has KEYS keys
 * at a time. STEPS times as many share a maximum. */
template <int D, int G> struct attend_plain_shape {
    static constexpr uint32_t LANES = D > 128 ? 32 : 16, KEYS = WARP / LANES, STEPS = G > 4 ? 2 : 4;
    static constexpr uint32_t TURNS = CU_ROW_TURNS(D), EACH = 8 * TURNS;

    /* The lane's channels of a turn, 8 from there on. */
    DEVICE static uint32_t channel(uint32_t turn) {
        return (turn * LANES + lane_id() % LANES) * 8;
    }
};
template <int D, int G> struct attend_sums {
    float sum[G][attend_plain_shape<D, G>::EACH], top[G], total[G];
};

/* A row of K or, VALUE, of V; zeros if it is not seen. */
template <typename T, int D, bool VALUE>
DEVICE void attend_plain_row(const cu_attend_args &a, const attend_lane &l, const attend_page &p,
                             uint32_t in_page, bool seen,
                             float (&x)[attend_plain_shape<D, 1>::TURNS][8]) {
    typedef attend_plain_shape<D, 1> shape;
#pragma unroll
    for (uint32_t i = 0; i < shape::EACH; i++)
        x[i / 8][i % 8] = 0.0f;
#pragma unroll
    for (uint32_t turn = 0; turn < shape::TURNS; turn++) {
        const uint32_t channel = shape::channel(turn);
        if (!seen || channel >= dim_of<D>(a.kv)) return;
        if constexpr (VALUE)
            load_8(value_of<T>(a.kv, p.id, l.head, in_page), channel, x[turn]);
        else
            load_8(key_of<T>(a.kv, p.id, l.head, in_page), channel, x[turn]);
    }
}

/* Keeps the logits of a slot, if they are asked for: all lanes that share its key have them,
 * one writes a head's. */
template <int D, int G>
DEVICE void attend_plain_keep(const cu_attend_args &a, const attend_lane &l, uint32_t slot,
                              const float (&weight)[G], float *logits, uint32_t heads) {
    const uint32_t head = lane_id() % attend_plain_shape<D, G>::LANES;
    if (!logits) return;
    float mine = weight[0];
#pragma unroll
    for (int g = 1; g < G; g++)
        if (head == (uint32_t)g) mine = weight[g];
    if (head < heads && slot < l.seen) logits[head * a.logit_stride + slot] = mine;
}

/* KEYS * STEPS slots of a lane's entries, whose pages the lanes of the warp have in `pages`, from the
 * first-th slot of these on, a multiple of as many (so that none is behind WARP pages), into the sums of G heads, of which `heads` are there. logits may be
 * NULL. */
template <typename T, int D, int G>
DEVICE void attend_plain_keys(const cu_attend_args &a, const attend_lane &l,
                              const attend_page &pages, uint32_t first,
                              const float (&query)[G][attend_plain_shape<D, G>::EACH],
                              float *logits, uint32_t heads, attend_sums<D, G> &s) {
    typedef attend_plain_shape<D, G> shape;
    constexpr int EACH = shape::EACH;
    const float rest = a.logit.scale / power_of(a.logit.scale);
    float weight[shape::STEPS][G], x[shape::TURNS][8];
    attend_page page[shape::STEPS]; /* pages of few slots change from key to key */
    uint32_t in_page[shape::STEPS];
    bool seen[shape::STEPS];
    /* 2. which slots count, 3a. and their logits */
#pragma unroll
    for (uint32_t step = 0; step < shape::STEPS; step++) {
        const uint32_t at = first + step * shape::KEYS + lane_id() / shape::LANES;
        const attend_page p = shuffle_page(pages, at >> a.kv.page_shift);
        const uint32_t slot = at & (a.kv.page_size - 1);
        page[step] = p;
        in_page[step] = slot;
        seen[step] = attend_sees(a, l, p, slot);
        attend_plain_row<T, D, false>(a, l, p, slot, seen[step], x);
#pragma unroll
        for (int g = 0; g < G; g++) {
            float dot = 0.0f;
#pragma unroll
            for (int i = 0; i < EACH; i++)
                dot = fmaf(query[g][i], x[i / 8][i % 8], dot);
#pragma unroll
            for (uint32_t mask = shape::LANES / 2; mask > 0; mask /= 2)
                dot += shuffle_xor(dot, mask);
            weight[step][g] = seen[step] ? logit_of(a.logit, dot * rest) : -INFINITY;
        }
        if (p.id >= 0)
            attend_plain_keep<D, G>(a, l, (p.ordinal << a.kv.page_shift) + slot, weight[step],
                                    logits, heads);
    }
    /* 3b. the softmax so far */
#pragma unroll
    for (int g = 0; g < G; g++) {
        float top = s.top[g];
#pragma unroll
        for (uint32_t step = 0; step < shape::STEPS; step++)
            top = fmaxf(top, weight[step][g]);
        const float base = attend_base(top), old = expf(s.top[g] - base);
        s.top[g] = top;
        s.total[g] *= old;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            s.sum[g][i] *= old;
#pragma unroll
        for (uint32_t step = 0; step < shape::STEPS; step++)
            weight[step][g] = expf(weight[step][g] - base);
        float total = weight[0][g] + weight[1][g];
        if (shape::STEPS == 4) total += weight[shape::STEPS - 2][g] + weight[shape::STEPS - 1][g];
        s.total[g] += total;
    }
    /* 3c. weighted values */
#pragma unroll
    for (uint32_t step = 0; step < shape::STEPS; step++) {
        attend_plain_row<T, D, true>(a, l, page[step], in_page[step], seen[step], x);
#pragma unroll
        for (int g = 0; g < G; g++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
                s.sum[g][i] = fmaf(weight[step][g], x[i / 8][i % 8], s.sum[g][i]);
    }
}

/* Joins the sums of warp lanes that have the same channels of different keys. */
template <int D, int G> DEVICE void attend_plain_join(attend_sums<D, G> &s) {
#pragma unroll
    for (int g = 0; g < G; g++) {
        const float other = shuffle_xor(s.top[g], 16u), top = fmaxf(s.top[g], other);
        const float base = attend_base(top);
        const float mine = expf(s.top[g] - base), its = expf(other - base);
        s.top[g] = top;
        s.total[g] = s.total[g] * mine + shuffle_xor(s.total[g], 16u) * its;
#pragma unroll
        for (uint32_t i = 0; i < attend_plain_shape<D, G>::EACH; i++)
            s.sum[g][i] = s.sum[g][i] * mine + shuffle_xor(s.sum[g][i], 16u) * its;
    }
}

/* Entries begin to end of a row for `heads` query heads of the group from the first-th on; their logits
 * are kept if they are asked for. In the first LANES lanes: the lane's channels. */
template <typename T, int D, int G>
DEVICE void attend_plain(const cu_attend_args &a, const attend_lane &l, uint32_t first,
                         uint32_t heads, uint32_t begin, uint32_t end, attend_sums<D, G> &s) {
    typedef attend_plain_shape<D, G> shape;
    const uint32_t dim = dim_of<D>(a.kv);
    const float *q = attend_query_of(a, l, first, dim);
    float *logits = attend_logits_of(a, l, first);
    const float power = power_of(a.logit.scale);
    float query[G][shape::EACH];
#pragma unroll
    for (int g = 0; g < G; g++) {
        s.top[g] = -INFINITY;
        s.total[g] = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < shape::EACH; i++) {
            const uint32_t channel = shape::channel(i / 8) + i % 8;
            s.sum[g][i] = 0.0f;
            query[g][i] = 0.0f;
            if ((uint32_t)g < heads && channel < dim) query[g][i] = power * q[g * dim + channel];
        }
    }
    /* 1. every entry of the split; their ids are read 32 at a time, one a lane */
    for (uint32_t at = begin; at < end; at += WARP) {
        const attend_page ahead = attend_page_of(a, l, at + lane_id(), end);
        const uint32_t slots = min(WARP, end - at) << a.kv.page_shift;
        for (uint32_t t = 0; t < slots; t += shape::KEYS * shape::STEPS) {
            const attend_page page = shuffle_page(ahead, t >> a.kv.page_shift);
            if (page.id < 0 && a.kv.page_size >= shape::KEYS * shape::STEPS) continue;
            attend_plain_keys<T, D, G>(a, l, ahead, t, query, logits, heads, s);
        }
    }
    if (shape::KEYS == 2) attend_plain_join<D, G>(s);
}

/* The same for one query head in parts of CU_ATTEND_AGAIN slots, so that no fp32 sum is long. */
template <typename T, int D>
DEVICE void attend_plain_parts(const cu_attend_args &a, const attend_lane &l, uint32_t head,
                               uint32_t begin, uint32_t end, attend_sums<D, 1> &s) {
    const uint32_t size = max(CU_ATTEND_AGAIN >> a.kv.page_shift, 1u);
    attend_plain<T, D, 1>(a, l, head, 1, begin, min(begin + size, end), s);
    for (begin += size; begin < end; begin += size) {
        attend_sums<D, 1> part;
        attend_plain<T, D, 1>(a, l, head, 1, begin, min(begin + size, end), part);
        const float top = fmaxf(s.top[0], part.top[0]), base = attend_base(top);
        const float old = expf(s.top[0] - base), its = expf(part.top[0] - base);
        s.top[0] = top;
        s.total[0] = s.total[0] * old + part.total[0] * its;
#pragma unroll
        for (uint32_t i = 0; i < attend_plain_shape<D, 1>::EACH; i++)
            s.sum[0][i] = s.sum[0][i] * old + part.sum[0][i] * its;
    }
}

/* ---- Merging --------------------------------------------------------------------------------- */

struct attend_result {
    float sum, top, total;
};
/* 4. A head's state as its result: nothing seen leaves total 0 and top -inf. */
template <int D>
DEVICE void attend_write(const cu_attend_args &a, const attend_lane &l, uint32_t head_in_group,
                         uint32_t channel, const attend_result &r) {
    const uint64_t head = (uint64_t)l.head * a.batch.group + head_in_group;
    a.out.at[l.row * a.out.stride + head * dim_of<D>(a.kv) + channel] =
        r.total == 0.0f ? 0.0f : r.sum / r.total;
    if (a.lse && channel == 0)
        a.lse[(uint64_t)l.row * a.batch.n_kv_heads * a.batch.group + head] =
            r.total == 0.0f ? -INFINITY : r.top + logf(r.total);
}

/* The splits of a chunk, in order. */
template <int D, int G>
DEVICE attend_result attend_join(const attend_block<D, G> &b, uint32_t splits, uint32_t g,
                                 uint32_t channel) {
    attend_result r = {0.0f, -INFINITY, 0.0f};
    for (uint32_t i = 0; i < splits; i++)
        r.top = fmaxf(r.top, b.of[i].top[g]);
    const float base = attend_base(r.top);
    for (uint32_t i = 0; i < splits; i++) {
        const float weight = expf(b.of[i].top[g] - base);
        r.total = fmaf(weight, b.of[i].total[g], r.total);
        r.sum = fmaf(weight, b.of[i].sum[g][channel], r.sum);
    }
    return r;
}

/* A head's result in the lanes of WARPS warps, every 32nd channel each: sum i of warp w is of channel
 * 32·(w + WARPS·i) + lane. All lanes have top and total. */
template <int D, uint32_t WARPS = 1> struct attend_joined {
    static constexpr uint32_t N = ((D + 31) / 32 + WARPS - 1) / WARPS;
    float sum[N], top, total;

    DEVICE static uint32_t channel(uint32_t i) {
        return 32 * (WARPS == 1 ? i : warp_id() % WARPS + WARPS * i) + lane_id();
    }
};

/* The states `first` to `end` of one head, CU_ATTEND_CHUNKS at most, `stride` apart; a lane has a
 * state's weight. A state that holds nothing leaves the same bits as one that is not there. Many
 * sums are on their way at once, the first while the weights are found. */
template <int D, uint32_t WARPS = 1>
DEVICE attend_joined<D, WARPS> attend_join_states(uint32_t dim, const float *states,
                                                  uint64_t stride, uint32_t first, uint32_t end) {
    typedef attend_joined<D, WARPS> joined;
    constexpr uint32_t N = joined::N, AHEAD = N == 1 ? WARP : 64 / N;
    const bool live = first <= lane_id() && lane_id() < end;
    const float *mine = states + (live ? lane_id() : first) * stride + dim;
    const float its_top = live ? mine[0] : -INFINITY, its_total = live ? mine[1] : 0.0f;
    joined r = {};
    float weight = 0.0f;
    for (uint32_t begin = first; begin < end; begin += AHEAD) {
        float x[AHEAD][N];
#pragma unroll
        for (uint32_t u = 0; u < AHEAD; u++)
#pragma unroll
            for (uint32_t i = 0; i < N; i++)
                x[u][i] = states[min(begin + u, end - 1) * stride + min(r.channel(i), dim - 1u)];
        if (begin == first) {
            r.top = warp_max(its_top);
            weight = expf(its_top - attend_base(r.top));
            r.total = warp_sum(live ? weight * its_total : 0.0f);
        }
#pragma unroll
        for (uint32_t u = 0; u < AHEAD; u++) {
            const float its = shuffle(weight, (begin + u) % WARP);
#pragma unroll
            for (uint32_t i = 0; i < N; i++)
                if (begin + u < end) r.sum[i] = fmaf(its, x[u][i], r.sum[i]);
        }
    }
    return r;
}

template <int D, uint32_t WARPS>
DEVICE void attend_write_joined(const cu_attend_args &a, const attend_lane &l,
                                uint32_t head_in_group, const attend_joined<D, WARPS> &r) {
#pragma unroll
    for (uint32_t i = 0; i < r.N; i++)
        if (r.channel(i) < dim_of<D>(a.kv))
            attend_write<D>(a, l, head_in_group, r.channel(i), {r.sum[i], r.top, r.total});
}

/* The chunks of `heads` heads, of which the states of the first stand at `states`, by a block: one
 * or two heads take all of its warps, more a warp each. */
template <int D, int G>
DEVICE void attend_join_chunks(const cu_attend_args &a, const attend_lane &l, const float *states,
                               uint64_t stride, uint32_t chunks, uint32_t first, uint32_t heads) {
    const uint32_t dim = dim_of<D>(a.kv);
    if (heads <= 2) {
        for (uint32_t g = 0; g < heads; g++)
            attend_write_joined<D>(
                a, l, first + g,
                attend_join_states<D, CU_ATTEND_WARPS>(dim, states + g * (dim + 2), stride, 0,
                                                       chunks));
    } else if (G > 1) {
        for (uint32_t g = warp_id(); g < heads; g += CU_ATTEND_WARPS)
            attend_write_joined<D>(a, l, first + g,
                                   attend_join_states<D>(dim, states + g * (dim + 2), stride, 0, chunks));
    }
}

/* Of a block whose splits' states stand in `b`: heads first to first + heads of the group. A row of
 * one chunk is done; else the state waits, and the last block of the row merges them all. */
template <int D, int G>
DEVICE void attend_finish(const cu_attend_args &a, const attend_lane &l, const attend_share &share,
                          uint32_t first, uint32_t heads, attend_block<D, G> &b) {
    const uint32_t dim = dim_of<D>(a.kv);
    const uint64_t stride = (uint64_t)a.batch.group * (dim + 2); /* from chunk to chunk */
    float *states = a.states;
    if (share.chunks > 1)
        states += ((uint64_t)blockIdx.z * a.batch.n_kv_heads + l.head) * a.chunks * stride +
                  first * (dim + 2);
    block_sync();
    for (uint32_t i = threadIdx.x; i < heads * dim; i += blockDim.x) {
        const uint32_t g = i / dim, channel = i % dim;
        const attend_result r = attend_join(b, share.splits, g, channel);
        if (share.chunks == 1) {
            attend_write<D>(a, l, first + g, channel, r);
            continue;
        }
        float *state = states + blockIdx.x * stride + g * (dim + 2);
        state[channel] = r.sum;
        if (channel == 0) {
            state[dim] = r.top;
            state[dim + 1] = r.total;
        }
    }
    if (share.chunks == 1) return;
    uint32_t *ticket = a.tickets + (uint64_t)blockIdx.z * gridDim.y + blockIdx.y;
    if (!is_last_block(ticket, share.chunks, b.before)) return;
    attend_join_chunks<D, G>(a, l, states, stride, share.chunks, first, heads);
}

#endif
