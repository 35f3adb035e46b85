/* SPDX-License-Identifier: Apache-2.0 */
/* attend on a CPU, single rows: out = Σ softmax(scale·q·k)·v over the slots that a row sees.
 * contract: host/ops/; meaning: host/reference/attend.c; the loops: attend_cpu.clh.
 * Work split: an item of the queue is one piece of a (row, KV head, split of SPLIT_PAGES list
 * entries), with all query heads of the KV head, so that K and V are read once. The core that ends
 * the last piece joins them. With several splits `out` and `lse` are their states, which merge
 * joins. Tiles before the row's first slot are not read, and its pieces begin with the segment of that
 * slot: bits depend on neither. */
#include "attend_cpu.clh"
#if LOGITS
#include "weigh_cpu.clh"

/* Of observed_attend; values: NULL for attend alone. */
#define WEIGHT_PARAMS                                                                              \
    , REF_PARAMS(float, values), ulong value_stride, uint group_rule, uint accumulate

/* The first n of 16 floats. */
static inline void weigh_load(float16 *x, __global const float *from, int n) {
    if (n == 16)
        *x = load_f32(from);
    else
        for (int i = 0; i < n; i++) ((float *)x)[i] = from[i];
}

/* observe of one row by its logits and lse, with the bits of observe_cpu.cl. The core that has joined
 * the lane's pieces sees all logits. values: of the lane, by slots or, with `ids`, a plane. */
static ONCE void attend_weigh(attend_row row, __global const float *lse, __global float *values,
                              __global const int *ids, uint rule, bool accumulate) {
    const float share = rule == RULE_MEAN ? GROUP : 1.0f;
    for (int slot = 0; slot < row.seen; slot += 16) {
        const int n = min(row.seen - slot, 16);
        float16 joined = 0.0f, old = 0.0f;
        for (int g = 0; g < GROUP; g++) {
            float16 x = 0.0f;
            weigh_load(&x, row.logits + g * row.logit_stride + slot, n);
            joined = join_group(
                joined, weight_of(x, base_of(lse[g]), row.hidden - slot, row.seen - slot), rule);
        }
        __global float *to =
            values + (ids ? (ulong)ids[slot / PAGE_SIZE] * PAGE_SIZE + slot % PAGE_SIZE : slot);
        if (accumulate) weigh_load(&old, to, n);
        joined = old + joined / share;
        if (n == 16)
            store_f32(joined, to);
        else
            for (int i = 0; i < n; i++) to[i] = ((const float *)&joined)[i];
    }
}
#else
#define WEIGHT_PARAMS
#endif

/* tiles: NULL to serve every row, else only rows that are a tile of their own. */
__kernel ONE_ITEM void attend_single(
    KV_PARAMS, BATCH_PARAMS, MATRIX_PARAMS(q), REF_PARAMS(const int, tiles), uint n_tiles,
    REF_PARAMS(const int, pages), REF_PARAMS(const int, count), uint capacity,
    REF_PARAMS(float, logits), ulong logit_stride WEIGHT_PARAMS, LOGIT_PARAMS, uint n_splits,
    MATRIX_PARAMS(out), ulong out_split_stride, REF_PARAMS(float, lse), ulong lse_split_stride,
    PIECE_PARAMS, QUEUE_PARAMS) {
    attend_state s;
    FOR_EACH_QUEUED(item) {
        const uint piece = item % pieces, lane = item / pieces;
        const uint head = lane % n_kv_heads, split = lane / n_kv_heads % n_splits;
        const uint tile = lane / n_kv_heads / n_splits;
        const uint row = tiles ? (uint)tiles[tiles_offset + 2 * tile] : tile;
        if (tiles && tiles[tiles_offset + 2 * tile + 1] != 1) continue;
        const uint owner = row * n_kv_heads + head;
        const ulong first_head = (ulong)head * GROUP;

        /* The piece's page ids, and how much of the last page counts. */
        const int seen = visible[visible_offset + owner];
        const int hidden = HIDING ? (int)FIRST_SEEN(owner) : 0;
        const int newest = (seen + PAGE_SIZE - 1) / PAGE_SIZE - 1;
        const int entries = pages ? count[count_offset + owner] : newest + 1;
        __global const int *list = pages ? pages + pages_offset + (ulong)owner * capacity : pages;
        /* The first entry of which the row sees a slot. */
        const int from =
            HIDING ? (int)first_entry(list, (uint)entries, (uint)hidden / PAGE_SIZE) : 0;
        const int before = clamp(from - (int)split * SPLIT_PAGES, 0, SPLIT_PAGES);
        const int at = before / SEGMENT_PAGES * SEGMENT_PAGES + piece * (int)PIECE_PAGES;
        const int first = split * SPLIT_PAGES + at, rest = SPLIT_PAGES - at;
        const int room = pieces > 1 ? min((int)PIECE_PAGES, rest) : rest;
        const int most = from < entries ? min(entries - first, room) : 0;
        const int unseen = piece ? 0 : (before - at) / TILE_PAGES * TILE_PAGES;
        __global const int *ids = table + table_offset +
                                  row_seq[row_seq_offset + row] * seq_stride + head * head_stride;
        int n = 0, last = PAGE_SIZE;
        for (; n < most; n++) {
            const int ordinal = list ? list[first + n] : first + n;
            if (ordinal > newest) break;
            attend_take(&s, n, ordinal, ids[ordinal]);
            last = min(seen - ordinal * PAGE_SIZE, PAGE_SIZE);
        }
        const page_rows keys = {kv + kv_offset + head * kv_head_stride, page_stride, slot_stride};
        const attend_row of = {
            .q = q + q_offset + row * q_stride + first_head * HEAD_DIM,
            .first_head = head * GROUP,
            .n_heads = n_kv_heads * GROUP,
            .hidden = hidden,
            .seen = seen,
            .logits = logits ? logits + logits_offset + (ulong)owner * GROUP * logit_stride : logits,
            .logit_stride = logit_stride};
        attend_begin(&s, of, LOGIT_RULE);
        __global float *kept = KEPT_OF(lane);
        attend_pages(&s, keys, value_offset, unseen, n, last, LOGIT_RULE,
                     kept ? kept + piece * piece_segments * STATE : kept, piece_segments);
        if (kept) {
            if (!is_last(COUNTERS_OF(lane), pieces)) continue;
            attend_join_kept(&s, kept, pieces * piece_segments);
            *COUNTERS_OF(lane) = 0;
        }
        attend_end(&s,
                   out + out_offset + split * out_split_stride + row * out_stride +
                       first_head * HEAD_DIM,
                   lse ? lse + lse_offset + split * lse_split_stride + (ulong)owner * GROUP : lse);
#if LOGITS
        if (values)
            attend_weigh(of, lse + lse_offset + (ulong)owner * GROUP,
                         values + values_offset + owner * value_stride, value_stride ? 0 : ids,
                         group_rule, accumulate);
#endif
    }
    leave_queue(queue, 0);
}
