/* SPDX-License-Identifier: Apache-2.0 */
/* attend on a CPU, single rows: out = Σ softmax(scale·q·k)·v over the slots that a row sees.
 * contract: host/ops/; meaning: host/reference/attend.c; the loops: attend_cpu.clh.
 * Work split: an item of the queue is one piece of a (row, KV head, split of SPLIT_PAGES list
 * entries), with all query heads of the KV head, so that K and V are read once. The core that ends
 * the last piece joins them. With several splits `out` and `lse` are their states, which merge
 * joins. Tiles before the row's first slot are not read, and its pieces begin with the segment of that
 * slot: bits depend on neither. With WRITES rows are written first (write_attend). */
#include "attend_cpu.clh"
#include "write_cpu.clh"
#if LOGITS
#include "weigh_cpu.clh"

/* Of observed_attend; values: NULL for attend alone. */
#define WEIGHT_MEMORY MEMORY(float, values)

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
#define WEIGHT_MEMORY
#endif

typedef struct attend_numbers {
    KV_NUMBERS;
    BATCH_NUMBERS;
    MATRIX_NUMBERS(q);
    OWN_NUMBERS
    ulong tiles_at;
    uint n_tiles;
    ulong pages_at, count_at;
    uint capacity;
    ulong logits_at, logit_stride;
#if LOGITS
    MATRIX_NUMBERS(values);
    uint group_rule, accumulate;
#endif
    logit_rule logit;
    uint n_splits;
    MATRIX_NUMBERS(out);
    ulong out_split_stride, lse_at, lse_split_stride;
    PIECE_NUMBERS;
    QUEUE_NUMBERS;
} attend_numbers;

/* tiles: NULL to serve every row, else only rows that are a tile of their own. */
__kernel ONE_ITEM void attend_single(
    KV_MEMORY BATCH_MEMORY MEMORY(float, q) OWN_MEMORY MEMORY(const int, tiles)
    MEMORY(const int, pages) MEMORY(const int, count) MEMORY(float, logits) WEIGHT_MEMORY
    MEMORY(float, out) MEMORY(float, lse) MEMORY(float, states) MEMORY(int, queue)
    const attend_numbers arg) {
    const uint n_items = arg.n_items, n_kv_heads = arg.n_kv_heads, pieces = arg.pieces;
    const uint n_splits = arg.n_splits;
    attend_state s;
    OPEN_NUMBERED_KV();
    OPEN_BATCH();
    OPEN(float, q);
#if WRITES
    OPEN_OWN();
#endif
    OPEN(const int, tiles);
    OPEN(const int, pages);
    OPEN(const int, count);
    OPEN(float, logits);
#if LOGITS
    OPEN(float, values);
#endif
    OPEN(float, out);
    OPEN(float, lse);
    OPEN(float, states);
    OPEN(int, queue);
    FOR_EACH_QUEUED(item) {
        const uint piece = item % pieces, lane = item / pieces;
        const uint head = lane % n_kv_heads, split = lane / n_kv_heads % n_splits;
        const uint tile = lane / n_kv_heads / n_splits;
        const uint row = tiles ? (uint)tiles[2 * tile] : tile;
        if (tiles && tiles[2 * tile + 1] != 1) continue;
        const uint owner = row * n_kv_heads + head;
        const ulong first_head = (ulong)head * GROUP;

        /* The piece's page ids, and how much of the last page counts. */
        const int seen = visible[owner];
        const int hidden = HIDING ? (int)FIRST_SEEN_OF(owner) : 0;
        const int newest = (seen + PAGE_SIZE - 1) / PAGE_SIZE - 1;
        const int entries = pages ? count[owner] : newest + 1;
        __global const int *list = pages ? pages + (ulong)owner * arg.capacity : pages;
        /* The first entry of which the row sees a slot. */
        const int from =
            HIDING ? (int)first_entry(list, (uint)entries, (uint)hidden / PAGE_SIZE) : 0;
        const int before = clamp(from - (int)split * SPLIT_PAGES, 0, SPLIT_PAGES);
        const int at = before / SEGMENT_PAGES * SEGMENT_PAGES + piece * (int)PIECE_PAGES;
        const int first = split * SPLIT_PAGES + at, rest = SPLIT_PAGES - at;
        const int room = pieces > 1 ? min((int)PIECE_PAGES, rest) : rest;
        const int most = from < entries ? min(entries - first, room) : 0;
        const int unseen = piece ? 0 : (before - at) / TILE_PAGES * TILE_PAGES;
        __global const int *ids = IDS_OF(row, head);
        int n = 0, last = PAGE_SIZE;
        for (; n < most; n++) {
            const int ordinal = list ? list[first + n] : first + n;
            if (ordinal > newest) break;
            attend_take(&s, n, ordinal, ids[ordinal]);
            last = min(seen - ordinal * PAGE_SIZE, PAGE_SIZE);
        }
        __global const float *query = q + row * arg.q_stride + first_head * HEAD_DIM;
#if WRITES
        TURN_QUERIES(row, head);
        query = OWN_HEADS;
        if (n && (list ? list[first + n - 1] : first + n - 1) == newest) WRITE_OWN(row, head);
#endif
        const page_rows keys = {kv + head * arg.kv_head_stride, arg.page_stride, arg.slot_stride};
        const attend_row of = {
            .q = query,
            .first_head = head * GROUP,
            .n_heads = n_kv_heads * GROUP,
            .hidden = hidden,
            .seen = seen,
            .logits = logits ? logits + (ulong)owner * GROUP * arg.logit_stride : logits,
            .logit_stride = arg.logit_stride};
        attend_begin(&s, of, arg.logit);
        __global float *kept = KEPT_OF(lane);
        attend_pages(&s, keys, VALUES_BESIDE(keys, head), unseen, n, last, arg.logit,
                     kept ? kept + piece * arg.piece_segments * STATE : kept, arg.piece_segments);
        if (kept) {
            if (!is_last(COUNTERS_OF(lane), pieces)) continue;
            attend_join_kept(&s, kept, pieces * arg.piece_segments);
            *COUNTERS_OF(lane) = 0;
        }
        attend_end(&s,
                   out + split * arg.out_split_stride + row * arg.out_stride +
                       first_head * HEAD_DIM,
                   lse ? lse + split * arg.lse_split_stride + (ulong)owner * GROUP : lse);
#if LOGITS
        if (values)
            attend_weigh(of, lse + (ulong)owner * GROUP, values + owner * arg.values_stride,
                         arg.values_stride ? 0 : ids, arg.group_rule, arg.accumulate);
#endif
    }
    leave_queue(queue, 0);
}
