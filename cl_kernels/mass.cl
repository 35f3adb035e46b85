/* SPDX-License-Identifier: Apache-2.0 */
/* page_mass: m_g(page) = Σ exp(logit - lse_g) over the page's slots; score(page) = max, mean or sum
 * of m_g over the group.
 * contract: host/ops/; meaning: host/reference/mass.c.
 * Work split: in page_mass_logs the work-groups of one x share the pages of one (row, query head),
 * the partial page too; a work-item writes ln Σ exp(logit) of the slots of its page, or of several
 * pages if y is too small for one each. In page_mass_lse a work-group owns one (row, query head)
 * and joins those. In page_mass_scores the work-groups of one x share the full pages of one (row,
 * KV head). */
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
#ifndef RULE
#define RULE 0 /* tamis_group_rule: 0 max, 1 mean, 2 sum */
#endif

/* The pages that this work-item takes of those from `first` on that the work-groups of one x share. */
#define FOR_EACH_SHARED(page, first, n)                                                            \
    for (uint page = (first) + (uint)get_group_id(1) * WG_SIZE + (uint)get_local_id(0);            \
         page < (n); page += (uint)get_num_groups(1) * WG_SIZE)

__kernel GROUP_OF(WG_SIZE) void page_mass_logs(KV_PARAMS, BATCH_PARAMS, MATRIX_PARAMS(q),
                                               LOGIT_PARAMS, REF_PARAMS(float, logs),
                                               uint log_stride) {
    const uint n_heads = n_kv_heads * GROUP, state = (uint)get_group_id(0);
    if (state >= n_rows * n_heads) return;
    const uint query_head = state % n_heads, row = state / n_heads, head = query_head / GROUP;
    const uint owner = row * n_kv_heads + head;
    const uint seen = (uint)visible[visible_offset + owner], hidden = min(FIRST_SEEN(owner), seen);
    const uint pages = seen / PAGE_SIZE + (seen % PAGE_SIZE != 0);
    FOR_EACH_SHARED(page, hidden / PAGE_SIZE, pages) {
        const uint slots = min(seen - page * PAGE_SIZE, (uint)PAGE_SIZE);
        const uint from = max(hidden, page * PAGE_SIZE) - page * PAGE_SIZE;
        const int id = table[table_offset + row_seq[row_seq_offset + row] * seq_stride +
                             head * head_stride + page];
        __global element *keys = kv + kv_offset + id * page_stride + head * kv_head_stride;
        __global const float *query = q + q_offset + row * q_stride + (ulong)query_head * HEAD_DIM;
        /* 1. the logits of the page's slots */
        float logits[PAGE_SIZE];
        float top = -INFINITY;
        for (uint s = from; s < slots; s++) {
            const kv_row key = KEYS_SPREAD(row_of(keys, PAGE_SIZE, s, slot_stride));
            float16 sums = 0.0f;
            for (uint c = 0; c < HEAD_DIM; c += 16)
                sums = fma(logit_scale * vload16(0, query + c), row16(key, c), sums);
            logits[s] = logit_of(LOGIT_RULE, sum16(sums));
            top = fmax(top, logits[s]);
        }
        /* 2. the page's log-mass; a NaN among the logits stays */
        float sum = 0.0f;
        for (uint s = from; s < slots; s++)
            sum += exp(logits[s] - top);
        logs[logs_offset + (ulong)state * log_stride + page] = top + log(sum);
    }
}

__kernel GROUP_OF(WG_SIZE) void page_mass_lse(BATCH_PARAMS, REF_PARAMS(const float, logs),
                                              uint log_stride, REF_PARAMS(float, lse),
                                              REF_PARAMS(const float, sinks)) {
    __local float tops[WG_SIZE], sums[WG_SIZE]; /* of each work-item's pages */
    const uint wi = (uint)get_local_id(0), state = (uint)get_group_id(0);
    if (state >= n_rows * n_kv_heads * GROUP) return;
    const uint seen = (uint)visible[visible_offset + state / GROUP];
    const uint first = min(FIRST_SEEN(state / GROUP), seen) / PAGE_SIZE;
    const uint pages = seen / PAGE_SIZE + (seen % PAGE_SIZE != 0);
    logs += logs_offset + (ulong)state * log_stride;
    /* 1. Σ exp over the work-item's pages; a NaN stays in the sum */
    float top = -INFINITY, sum = 0.0f;
    for (uint page = first + wi; page < pages; page += WG_SIZE) {
        const float x = logs[page];
        if (!(x <= top)) {
            sum *= exp(top - x);
            top = x;
        }
        sum += exp(x - top);
    }
    tops[wi] = top;
    sums[wi] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    /* 2. over the work-items that have pages, in order */
    if (wi == 0) {
        const uint n = min(pages - first, (uint)WG_SIZE);
        for (uint i = 1; i < n; i++)
            top = fmax(top, tops[i]);
        sum = 0.0f;
        for (uint i = 0; i < n; i++)
            sum += sums[i] * exp(tops[i] - top);
        const float sink = sinks ? sinks[sinks_offset + state % (n_kv_heads * GROUP)] : -INFINITY;
        lse[lse_offset + state] = with_sink(top + log(sum), sink);
    }
}

__kernel GROUP_OF(WG_SIZE) void page_mass_scores(BATCH_PARAMS, REF_PARAMS(const float, logs),
                                                 uint log_stride, REF_PARAMS(const float, lse),
                                                 REF_PARAMS(float, scores), uint score_stride) {
    const uint owner = (uint)get_group_id(0);
    if (owner >= n_rows * n_kv_heads) return;
    const uint pages = (uint)visible[visible_offset + owner] / PAGE_SIZE;
    FOR_EACH_SHARED(page, FIRST_SEEN(owner) / PAGE_SIZE, pages) {
        /* the masses of the page, joined by the group's rule; a NaN stays */
        float score = 0.0f;
        for (uint g = 0; g < GROUP; g++) {
            const ulong state = (ulong)owner * GROUP + g;
            const float mass =
                exp(logs[logs_offset + state * log_stride + page] - lse[lse_offset + state]);
            if (RULE == 0)
                score = isnan(mass) || mass > score ? mass : score;
            else
                score += mass;
        }
        scores[scores_offset + (ulong)owner * score_stride + page] =
            RULE == 1 ? score / GROUP : score;
    }
}
