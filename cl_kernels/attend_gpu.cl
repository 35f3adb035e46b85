/* SPDX-License-Identifier: Apache-2.0 */
/* attend, the form of GPUs: out = Σ softmax(scale·q·k)·v over the slots that a row sees; lse = log Σ
 * exp.
 * contract: host/ops/; meaning: host/reference/attend.c.
 * Work split: a work-group owns one (row, KV head, split of the row's list) and computes HEADS query
 * heads of the KV head, all of them where local memory and registers hold as many; the length of a
 * split depends only on the row's own list, from the entry of the first slot that it sees on. A loop
 * step is a block of WG_SIZE keys, AHEAD * SIDE of them at a time in step 3a: TEAM neighbouring
 * work-items read neighbouring 8 channels of one key, TURNS times, and sum their shares of its logits
 * by local memory. In step 3d as many work-items as a row has CHUNKS read one row of V. The softmax is
 * online, with one rescaling per block. Page ids of the next block are read while this one is under
 * work. */
#include "common.clh"
#include "logit.clh"
#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef PAGE_SIZE
#define PAGE_SIZE 16
#endif
#ifndef GROUP
#define GROUP 4 /* query heads per KV head */
#endif
#ifndef HEADS
#define HEADS GROUP /* of a work-group, at most */
#endif
#ifndef MOST_SPLITS
#define MOST_SPLITS 64 /* of a row */
#endif
#ifndef LEAST_PAGES
#define LEAST_PAGES 4 /* of a split */
#endif
#ifndef AHEAD
#define AHEAD 2 /* keys that a work-item reads before it goes on: the setting keys_ahead */
#endif
#define SHARES     ((GROUP + HEADS - 1) / HEADS) /* work-groups that share the heads */
#define CHUNKS     (HEAD_DIM / 8)
#define PARTS      (WG_SIZE / CHUNKS) /* rows of V that are read side by side */
#define TURNS      2
#define TEAM       (CHUNKS / TURNS)
#define SIDE       (WG_SIZE / TEAM) /* keys that are read side by side */
#if AHEAD * SIDE > WG_SIZE
#undef AHEAD
#define AHEAD (WG_SIZE / SIDE)
#endif
#define STEP       (AHEAD * SIDE)
#define ADDING     ((STEP * HEADS + WG_SIZE - 1) / WG_SIZE) /* turns that add the shares of a step */
#define VALUES     (AHEAD * TURNS) /* rows of V that a work-item reads before it goes on */
#define MEMBERS    (WG_SIZE / HEADS) /* work-items that share a head's softmax */
/* Rows of shares, and of a head's weights, begin at different banks of local memory. */
#define SHARE_STRIDE (TEAM + 1)
#define KEY_STRIDE   (WG_SIZE + 4)
/* Of one step; the results need at least 9 floats of a work-item in the memory of two. */
#define STEP_SHARES  (STEP * HEADS * SHARE_STRIDE)
#define LEAST_SHARES (9 * WG_SIZE / 2)

/* Of a key: its slot, NOT_SEEN if the row does not see it, and where its page is. Of a key that is not
 * seen another page is read in its place, so that loads need not wait for a condition. */
#define NOT_SEEN UINT_MAX
typedef struct key_place {
    ulong at;
    uint slot;
} key_place;

static inline key_place place_of(__global const int *pages, __global const int *table, uint entry,
                                 uint end, uint in_page, uint hidden, uint seen, ulong page_stride) {
    const uint near = min(entry, end - 1), ordinal = pages ? (uint)pages[near] : near;
    const uint slot = ordinal * PAGE_SIZE + in_page;
    const bool here = entry < end && hidden <= slot && slot < seen;
    return (key_place){PAGE_PLACE(table[ordinal]), here ? slot : NOT_SEEN};
}

__kernel GROUP_OF(WG_SIZE) void attend_rows_gpu(
    KV_PARAMS, BATCH_PARAMS, MATRIX_PARAMS(q), REF_PARAMS(const int, pages),
    REF_PARAMS(const int, count), uint capacity, REF_PARAMS(float, logits), ulong logit_stride,
    uint first, LOGIT_PARAMS, uint n_splits, MATRIX_PARAMS(out), ulong out_split_stride,
    REF_PARAMS(float, lse), ulong lse_split_stride) {
    __local float query[HEADS * HEAD_DIM];
    /* Of a key's logits, of two steps in turn; at the end sums of values and of probabilities. */
    __local float shares[2][STEP_SHARES > LEAST_SHARES ? STEP_SHARES : LEAST_SHARES]
        __attribute__((aligned(32)));
    __local float8 *sums = (__local float8 *)shares[0];
    __local float *totals = shares[0] + 8 * WG_SIZE;
    __local float weight[HEADS][KEY_STRIDE]; /* logits, then probabilities */
    __local float old[HEADS]; /* the factor for what was before the block */
    /* Of each key of two blocks in turn. */
    __local ulong page_of[2][WG_SIZE];
    __local uint slot_of[2][WG_SIZE];
    const uint wi = (uint)get_local_id(0), head = (uint)get_group_id(1) / SHARES;
    const uint first_head = (uint)get_group_id(1) % SHARES * HEADS; /* of the group */
    const uint heads = min(GROUP - first_head, (uint)HEADS);
    const uint split = (uint)get_group_id(0) % n_splits, turn = (uint)get_group_id(0) / n_splits;
    const uint row = first + turn; /* states of several splits are those of this turn's rows */
    if (row >= n_rows) return;
    const uint owner = row * n_kv_heads + head;
    const uint seen = (uint)visible[visible_offset + owner], hidden = FIRST_SEEN(owner);
    const uint entries =
        pages ? (uint)count[count_offset + owner] : (seen + PAGE_SIZE - 1) / PAGE_SIZE;
    if (pages) pages += pages_offset + (ulong)owner * capacity;
    const uint from = hidden ? first_entry(pages, entries, hidden / PAGE_SIZE) : 0;
    const uint pages_a_split =
        max((entries - from + MOST_SPLITS - 1) / MOST_SPLITS, (uint)LEAST_PAGES);
    const uint end = min(from + (split + 1) * pages_a_split, entries);
    const uint place = n_splits > 1 ? turn : row;
    table += table_offset + row_seq[row_seq_offset + row] * seq_stride + head * head_stride;
    OPEN_KV(head);
    q += q_offset + row * q_stride + ((ulong)head * GROUP + first_head) * HEAD_DIM;
    if (logits) logits += logits_offset + ((ulong)owner * GROUP + first_head) * logit_stride;

    const uint channel = wi % CHUNKS * 8, part = wi / CHUNKS;
    const uint mate = wi % TEAM, side = wi / TEAM;
    const uint mine = wi / MEMBERS, member = wi % MEMBERS; /* a head, where there is one */
    float8 sum[HEADS];
    float top = -INFINITY, total = 0.0f; /* of head `mine`: the maximum; the sum over its keys */
    for (uint g = 0; g < HEADS; g++)
        sum[g] = 0.0f;
    for (uint i = wi; i < HEADS * HEAD_DIM; i += WG_SIZE) /* past the last head any number */
        query[i] = logit_scale * q[min(i, heads * HEAD_DIM - 1)]; /* the logit, not its sum before,
                                                                     must be finite */
    const uint begin = from + split * pages_a_split;
    key_place next = {0, NOT_SEEN};
    if (begin < end)
        next = place_of(pages, table, begin + wi / PAGE_SIZE, end, wi % PAGE_SIZE, hidden, seen,
                        page_stride);
    page_of[0][wi] = next.at;
    slot_of[0][wi] = next.slot;
    barrier(CLK_LOCAL_MEM_FENCE);

    uint block = 0;
    const uint all = (max(begin, end) - begin) * PAGE_SIZE; /* keys of the split */
    for (uint done = 0; done < all; done += WG_SIZE, block ^= 1) {
        /* 1. the pages of the block's keys, 2. and whether their slots are seen: of the next block */
        __local const ulong *places = page_of[block];
        __local const uint *slots = slot_of[block];
        const uint coming = done + WG_SIZE + wi;
        next = place_of(pages, table, begin + coming / PAGE_SIZE, end, coming % PAGE_SIZE, hidden,
                        seen, page_stride);
        /* 3a. the keys' logits with every query head */
        const uint keys = min(all - done, (uint)WG_SIZE); /* of the block */
        for (uint first_key = 0, step = 0; first_key < keys; first_key += STEP, step ^= 1) {
            float8 key[AHEAD][TURNS];
            for (uint a = 0; a < AHEAD; a++) {
                const uint k = min(first_key + a * SIDE + side, (uint)WG_SIZE - 1);
                const kv_row row_here = KEY_ROW(places[k], (done + k) % PAGE_SIZE);
                for (uint t = 0; t < TURNS; t++)
                    key[a][t] = row8(row_here, (t * TEAM + mate) * 8);
            }
            for (uint g = 0; g < HEADS; g++) {
                float4 dot4[AHEAD];
                for (uint a = 0; a < AHEAD; a++)
                    dot4[a] = 0.0f;
                for (uint t = 0; t < TURNS; t++) {
                    const float8 x = vload8(0, query + g * HEAD_DIM + (t * TEAM + mate) * 8);
                    for (uint a = 0; a < AHEAD; a++)
                        dot4[a] = fma(x.lo, key[a][t].lo, fma(x.hi, key[a][t].hi, dot4[a]));
                }
                if (side < SIDE)
                    for (uint a = 0; a < AHEAD; a++) {
                        const float2 pair = dot4[a].lo + dot4[a].hi;
                        shares[step][((a * SIDE + side) * HEADS + g) * SHARE_STRIDE + mate] =
                            pair.x + pair.y;
                    }
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            for (uint turn = 0; turn < ADDING; turn++) {
                const uint i = turn * WG_SIZE + wi, k = first_key + i % STEP, g = i / STEP;
                const bool here = i < STEP * HEADS && k < WG_SIZE;
                __local const float *of =
                    shares[step] + (here ? (i % STEP * HEADS + g) * SHARE_STRIDE : 0);
                float dot = 0.0f;
                for (uint m = 0; m < TEAM; m++)
                    dot += of[m];
                const bool live = here && slots[here ? k : 0] != NOT_SEEN;
                const float logit = live ? logit_of(LOGIT_RULE, dot) : -INFINITY;
                if (here) weight[g][k] = logit;
                if (live && logits && g < heads)
                    logits[g * logit_stride + slots[k]] = logit;
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);

        /* 3b. the block's maximum of a head, and the factor for the sums so far */
        float m = top;
        if (mine < HEADS) {
            float4 m4 = top;
            for (uint k = 0; k < keys; k += 4)
                m4 = fmax(m4, vload4(0, weight[mine] + k));
            m = fmax(fmax(m4.x, m4.y), fmax(m4.z, m4.w));
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        /* 3c. probabilities; a key that is not seen gets 0 */
        if (mine < HEADS) {
            const float factor = top == m ? 1.0f : exp(top - m);
            total *= factor;
            for (uint k = member; k < WG_SIZE; k += MEMBERS) {
                const float p = slots[k] == NOT_SEEN ? 0.0f : exp(weight[mine][k] - m);
                weight[mine][k] = p;
                total += p;
            }
            if (member == 0) old[mine] = factor;
            top = m;
        }
        page_of[block ^ 1][wi] = next.at;
        slot_of[block ^ 1][wi] = next.slot;
        barrier(CLK_LOCAL_MEM_FENCE);

        /* 3d. weighted values */
        for (uint g = 0; g < HEADS; g++)
            sum[g] *= old[g];
        for (uint first_key = 0; first_key < keys; first_key += VALUES * PARTS) {
            float8 value[VALUES];
            for (uint v = 0; v < VALUES; v++) {
                const uint k = min(first_key + v * PARTS + part, (uint)WG_SIZE - 1);
                value[v] = value8(VALUE_ROW(places[k], (done + k) % PAGE_SIZE), channel);
            }
            for (uint v = 0; v < VALUES; v++) {
                const uint k = first_key + v * PARTS + part, near = min(k, (uint)WG_SIZE - 1);
                /* of a key that is not seen V may be NaN */
                if (part >= PARTS || k >= WG_SIZE || slots[near] == NOT_SEEN) value[v] = 0.0f;
                for (uint g = 0; g < HEADS; g++)
                    sum[g] = fma((float8)(weight[g][near]), value[v], sum[g]);
            }
        }
    }

    /* 4. the states as results: sums over work-items and parts, in order */
    if (mine < HEADS) totals[wi] = total;
    for (uint g = 0; g < HEADS && g < heads; g++) {
        sums[wi] = sum[g];
        barrier(CLK_LOCAL_MEM_FENCE);
        float whole = 0.0f;
        for (uint i = 0; i < MEMBERS; i++)
            whole += totals[g * MEMBERS + i];
        if (part == 0) {
            float8 all = sums[wi];
            for (uint i = 1; i < PARTS; i++)
                all += sums[wi + i * CHUNKS];
            vstore8(whole == 0.0f ? (float8)(0.0f) : all / whole, 0,
                    out + out_offset + split * out_split_stride + place * out_stride +
                        (ulong)(head * GROUP + first_head + g) * HEAD_DIM + channel);
        }
        if (lse && mine == g && member == 0)
            lse[lse_offset + split * lse_split_stride +
                ((ulong)place * n_kv_heads + head) * GROUP + first_head + g] =
                whole == 0.0f ? -INFINITY : top + log(whole);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
