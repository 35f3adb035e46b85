/* SPDX-License-Identifier: Apache-2.0 */
/* attend: out = Σ softmax(scale·q·k)·v over the slots that a row sees; lse = log Σ exp.
 * contract: host/ops/; meaning: host/reference/attend.c.
 * Work split: a work-group owns one (row, KV head, split of the row's list) and computes HEADS query
 * heads of the KV head, all of them where local memory and registers hold as many; the length of a
 * split depends only on the row's own list, from the entry of the first slot that it sees on. A loop
 * step is a block of WG_SIZE keys: a work-item owns a key, and in step 3d 8 channels of every
 * PARTS-th key. The softmax is online, with one rescaling per block. */
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
#define SHARES     ((GROUP + HEADS - 1) / HEADS) /* work-groups that share the heads */
#define CHUNKS     (HEAD_DIM / 8)
#define PARTS      (WG_SIZE / CHUNKS)
#define EIGHTHS    (WG_SIZE / 8)

__kernel GROUP_OF(WG_SIZE) void attend_rows(
    KV_PARAMS, BATCH_PARAMS, MATRIX_PARAMS(q), REF_PARAMS(const int, pages),
    REF_PARAMS(const int, count), uint capacity, REF_PARAMS(float, logits), ulong logit_stride,
    uint first, LOGIT_PARAMS, uint n_splits, MATRIX_PARAMS(out), ulong out_split_stride,
    REF_PARAMS(float, lse), ulong lse_split_stride) {
    __local float query[HEADS * HEAD_DIM];
    __local float weight[HEADS][WG_SIZE]; /* logits, then probabilities, of the block */
    __local float highest[HEADS][8];      /* of each eighth of the block */
    __local float top[HEADS], old[HEADS]; /* running maximum, and the factor for what was before */
    __local ulong page_of[WG_SIZE];       /* of each key of the block: its place; ULONG_MAX: not seen */
    __local float8 sums[WG_SIZE];
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
    float8 sum[HEADS];
    float total[HEADS]; /* of this work-item's keys */
    for (uint g = 0; g < HEADS; g++) {
        sum[g] = 0.0f;
        total[g] = 0.0f;
    }
    for (uint i = wi; i < HEADS * HEAD_DIM; i += WG_SIZE) /* past the last head any number */
        query[i] = logit_scale * q[min(i, heads * HEAD_DIM - 1)]; /* the logit, not its sum before,
                                                                     must be finite */
    if (wi < HEADS) top[wi] = -INFINITY;
    barrier(CLK_LOCAL_MEM_FENCE);

    const uint begin = from + split * pages_a_split;
    const uint keys = (max(begin, end) - begin) * PAGE_SIZE; /* of the split */
    for (uint block = 0; block < keys; block += WG_SIZE) {
        /* 1. the page of the work-item's key, 2. and whether its slot is seen */
        const uint entry = begin + (block + wi) / PAGE_SIZE, in_page = (block + wi) % PAGE_SIZE;
        bool live = entry < end;
        ulong at = 0;
        uint slot = 0;
        if (live) {
            const uint ordinal = pages ? (uint)pages[entry] : entry;
            slot = ordinal * PAGE_SIZE + in_page;
            live = hidden <= slot && slot < seen;
            if (live) at = PAGE_PLACE(table[ordinal]);
        }
        page_of[wi] = live ? at : ULONG_MAX;
        /* 3a. the key's logit with every query head */
        float4 dot4[HEADS];
        for (uint g = 0; g < HEADS; g++)
            dot4[g] = 0.0f;
        const kv_row key_row = KEY_ROW(at, in_page);
        if (live)
            for (uint c = 0; c < HEAD_DIM; c += 8) {
                const float8 key = row8(key_row, c);
                for (uint g = 0; g < HEADS; g++) {
                    const float8 x = vload8(0, query + g * HEAD_DIM + c);
                    dot4[g] = fma(x.lo, key.lo, fma(x.hi, key.hi, dot4[g]));
                }
            }
        for (uint g = 0; g < HEADS; g++) {
            const float2 pair = dot4[g].lo + dot4[g].hi;
            const float logit = live ? logit_of(LOGIT_RULE, pair.x + pair.y) : -INFINITY;
            weight[g][wi] = logit;
            if (logits && live && g < heads) logits[g * logit_stride + slot] = logit;
        }
        barrier(CLK_LOCAL_MEM_FENCE);

        /* 3b. the block's maximum of each head, and the factor for the sums so far */
        for (uint i = wi; i < HEADS * 8; i += WG_SIZE) {
            float m = -INFINITY;
            for (uint j = 0; j < EIGHTHS; j++)
                m = fmax(m, weight[i / 8][i % 8 * EIGHTHS + j]);
            highest[i / 8][i % 8] = m;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (wi < HEADS) {
            float m = top[wi];
            for (uint j = 0; j < 8; j++)
                m = fmax(m, highest[wi][j]);
            old[wi] = top[wi] == m ? 1.0f : exp(top[wi] - m);
            top[wi] = m;
        }
        barrier(CLK_LOCAL_MEM_FENCE);

        /* 3c. probabilities; a key that is not seen keeps 0 */
        for (uint g = 0; g < HEADS; g++) {
            const float p = live ? exp(weight[g][wi] - top[g]) : 0.0f;
            total[g] = total[g] * old[g] + p;
            weight[g][wi] = p;
            sum[g] *= old[g];
        }
        barrier(CLK_LOCAL_MEM_FENCE);

        /* 3d. weighted values */
        if (part < PARTS)
            for (uint key = part; key < WG_SIZE; key += PARTS) {
                if (page_of[key] == ULONG_MAX) continue;
                const float8 value =
                    value8(VALUE_ROW(page_of[key], (block + key) % PAGE_SIZE), channel);
                for (uint g = 0; g < HEADS; g++)
                    sum[g] = fma((float8)(weight[g][key]), value, sum[g]);
            }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    /* 4. the states as results: sums over work-items and parts, in order */
    for (uint g = 0; g < HEADS && g < heads; g++) {
        weight[g][wi] = total[g];
        sums[wi] = sum[g];
        barrier(CLK_LOCAL_MEM_FENCE);
        float whole = 0.0f;
        for (uint i = 0; i < WG_SIZE; i++)
            whole += weight[g][i];
        if (part == 0) {
            float8 all = sums[wi];
            for (uint i = 1; i < PARTS; i++)
                all += sums[wi + i * CHUNKS];
            vstore8(whole == 0.0f ? (float8)(0.0f) : all / whole, 0,
                    out + out_offset + split * out_split_stride + place * out_stride +
                        (ulong)(head * GROUP + first_head + g) * HEAD_DIM + channel);
        }
        if (lse && wi == 0)
            lse[lse_offset + split * lse_split_stride +
                ((ulong)place * n_kv_heads + head) * GROUP + first_head + g] =
                whole == 0.0f ? -INFINITY : top[g] + log(whole);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
