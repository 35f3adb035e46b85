/* SPDX-License-Identifier: Apache-2.0 */
/* attend: out = Σ softmax(scale·q·k)·v over the slots that a row sees; lse = log Σ exp. Form for
 * matrix units: all dtypes but f32.
 * contract: host/ops/; meaning: host/reference/attend.c; numbered steps: attend.cuh,
 * attend_mma.cuh, attend_q8.cuh.
 * Sums that are not finite are formed anew in plain fp32, which decides between NaN, infinity and a
 * capped logit: products of the parts of a number with infinity may be NaN where the number's is
 * not.
 * The same is done for rows of a tile that do not see a NaN value which another row of the block
 * sees. Work split of decode: as in attend.cu; each warp brings the keys of its own split to shared
 * memory, 16 at a time, some stages ahead. Of tiles: a block owns a piece of the slots for rows of
 * a tile times query heads of a KV head, a warp CU_ATTEND_WARP_ROWS of them; all warps share the
 * keys, 32 at a time. A second kernel joins the pieces, a warp a (row, query head). */
#include "attend_q8.cuh"

#define KEYS CU_ATTEND_KEYS

/* Copies 16 bytes of a row at `from`, the piece-th; zeros if not live. */
template <int ROW, typename T>
DEVICE void bring_piece(T *to, const T *from, uint32_t row, uint32_t piece, bool live) {
    constexpr uint32_t WIDE = 16 / sizeof(T);
    const uint32_t place = WIDE == 8 ? place_of<ROW>(row, piece) : row * ROW + WIDE * piece;
    copy_async_16(to + place, from + WIDE * piece, live);
}

/* ---- Decode ---------------------------------------------------------------------------------- */

/* Entries of a split on their way to a warp's stages. */
struct key_stream {
    attend_page pages, next;   /* a lane each: 32 entries, and those behind them */
    uint32_t entry, end, slot; /* entry of lane 0 of `next`; slots of the split asked for so far */
};

/* Asks for the next 16 slots; which of them the row sees, a bit each. What it does not see becomes
 * zeros: memory there may hold anything. */
template <typename T, int D>
DEVICE uint32_t bring(const cu_attend_args &a, const attend_lane &l, key_stream &s, T *keys) {
    typedef attend_layout<T, D> layout;
    const uint32_t shift = a.kv.page_shift, in_page = s.slot & (a.kv.page_size - 1);
    if (s.slot && s.slot % (WARP << shift) == 0) {
        s.pages = s.next;
        s.entry += WARP;
        s.next = attend_page_of(a, l, s.entry + lane_id(), s.end);
    }
    /* 16 slots lie in one page, or in two of 8 */
    const attend_page page = shuffle_page(s.pages, (s.slot >> shift) % WARP);
    const attend_page second = shuffle_page(s.pages, ((s.slot + 8) >> shift) % WARP);
    const uint32_t in_second = (in_page + 8) & (a.kv.page_size - 1), mine = lane_id() % 16;
    const attend_page own = {mine < 8 ? page.ordinal : second.ordinal,
                             mine < 8 ? page.id : second.id};
    const bool sees = attend_sees(a, l, own, mine < 8 ? in_page + mine : in_second + mine - 8);
    const uint32_t seen = warp_ballot(sees) & 0xffffu;
    const auto rows = key_of<T>(a.kv, max(page.id, 0), l.head, in_page);
    const auto rows_8 = key_of<T>(a.kv, max(second.id, 0), l.head, in_second);
    constexpr uint32_t ROW = layout::ROW, OF_ROW = ROW_BYTES<T, D> / 16, PIECES = KEYS * OF_ROW;
    T *values = keys + layout::VALUES / sizeof(T);
#pragma unroll 2 /* more keep addresses in registers that the sums need */
    for (uint32_t i = 0; i < PIECES; i += WARP) {
        const uint32_t piece = i + lane_id(), row = piece / OF_ROW;
        const T *at = (const T *)row_behind(a.kv, row < 8 ? rows : rows_8, row % 8).at;
        if (PIECES % WARP != 0 && piece >= PIECES) continue;
        bring_piece<ROW>(keys, at, row, piece % OF_ROW, seen >> row & 1);
        if (layout::ALIKE)
            bring_piece<ROW>(values, at + a.kv.value_offset, row, piece % OF_ROW, seen >> row & 1);
    }
    if constexpr (layout::SCALES > 0) {
        constexpr uint32_t VALUE = layout::VALUE_ROW, WIDE = CU_Q8_BLOCKS(D);
        const auto first = value_of<T>(a.kv, max(page.id, 0), l.head, in_page);
        const auto first_8 = value_of<T>(a.kv, max(second.id, 0), l.head, in_second);
        for (uint32_t i = lane_id(); !layout::ALIKE && i < KEYS * WIDE; i += WARP) {
            const uint32_t row = i / WIDE;
            const T *at = (const T *)(row < 8 ? first : first_8).at + row % 8 * WIDE * 16;
            bring_piece<VALUE>(values, at, row, i % WIDE, seen >> row & 1);
        }
        /* What lies behind 8 slots: 16 bytes a lane. */
        const uint32_t half = lane_id() / 16, piece = lane_id() % 16;
        const bool live = (seen >> 8 * half & 0xffu) != 0;
        bring_scales(keys + KEYS * ROW + 8 * layout::SCALES * half,
                     half ? rows_8 : rows, piece, layout::SCALES / 2, live);
        bring_scales(values + KEYS * VALUE + 8 * layout::VALUE_SCALES * half,
                     half ? first_8 : first, piece, layout::VALUE_SCALES / 2, live);
    }
    s.slot += KEYS;
    return seen;
}

/* Keeps the logits of the lane's row: 16 keys of a split, `slot` slots on in it. Where they go is
 * found late: before, registers hold dot products. */
struct key_logits {
    const cu_attend_args &a;
    const attend_lane &l;
    const attend_share &share;
    uint32_t first, heads, slot; /* first and number of the block's query heads */

    DEVICE void operator()(int, uint32_t key, float logit) const {
        const uint32_t at = slot + key, entry = share.begin + (at >> a.kv.page_shift);
        if (lane_id() / 4 >= heads || entry >= share.end) return;
        const uint32_t ordinal = l.list ? (uint32_t)l.list[entry] : entry;
        const uint32_t to = (ordinal << a.kv.page_shift) + (at & (a.kv.page_size - 1));
        if (to < l.seen) attend_logits_of(a, l, first + lane_id() / 4)[to] = logit;
    }
};

/* The sums of a split, 8 query heads at most. LOGITS: `first` and `heads` say whose logits are
 * kept. */
template <bool LOGITS, typename T, int D>
DEVICE void attend_split(const cu_attend_args &a, const attend_lane &l, const attend_share &share,
                         const float *q, uint32_t first, uint32_t heads, T *stages,
                         uint32_t *thirds, attend_rows<D> (&s)[1]) {
    constexpr uint32_t STAGES = CU_ATTEND_STAGES(D), ROW = attend_layout<T, D>::ROW;
    constexpr uint32_t STAGE = attend_layout<T, D>::STAGE / sizeof(T);
    const uint32_t slots = (share.end - share.begin) << a.kv.page_shift;
    key_stream stream;
    stream.pages = attend_page_of(a, l, share.begin + lane_id(), share.end);
    stream.entry = share.begin + WARP;
    stream.next = attend_page_of(a, l, stream.entry + lane_id(), share.end);
    stream.end = share.end;
    stream.slot = 0;
    /* 1., 2. the first stages, while q is read */
    uint32_t seen[STAGES];
#pragma unroll
    for (uint32_t i = 0; i + 1 < STAGES; i++) {
        seen[i] = stream.slot < slots ? bring<T, D>(a, l, stream, stages + i * STAGE) : 0;
        copy_async_commit();
    }
    attend_query<T, D, 1> query;
    query.thirds = thirds + lane_id();
    begin_rows<T, D, 1>(query, 0, s[0], q, a.logit.scale);
    for (uint32_t slot = 0, i = 0; slot < slots; slot += KEYS) {
        copy_async_wait<STAGES - 2>();
        warp_sync(); /* all lanes' copies are there, and all are done with the stage before */
        const uint32_t free_stage = i == 0 ? STAGES - 1 : i - 1;
        seen[STAGES - 1] =
            stream.slot < slots ? bring<T, D>(a, l, stream, stages + free_stage * STAGE) : 0;
        copy_async_commit();
        const T *keys = stages + i * STAGE;
        const T *values = keys + attend_layout<T, D>::VALUES / sizeof(T);
        const uint32_t now = seen[0];
        const auto sees = [&](int, uint32_t key) { return (now >> key & 1) != 0; };
        if constexpr (LOGITS) {
            const key_logits keep = {a, l, share, first, heads, slot};
            attend_keys<ROW, 1>(query, s, keys, values, a.logit, sees, keep);
        } else if (now) {
            attend_keys<ROW, 1>(query, s, keys, values, a.logit, sees);
        }
#pragma unroll
        for (uint32_t j = 0; j + 1 < STAGES; j++)
            seen[j] = seen[j + 1];
        i = i + 1 == STAGES ? 0 : i + 1;
    }
    copy_async_wait<0>();
}

/* Writes a split's state; what is not finite anew, logits included. */
template <typename T, int D>
DEVICE void keep_split(const cu_attend_args &a, const attend_lane &l, const attend_share &share,
                       uint32_t first, uint32_t heads, attend_rows<D> &s,
                       attend_state<D, CU_ATTEND_HEADS> &state) {
    typedef attend_layout<T, D> layout;
    const uint32_t mine = lane_id() / 4, column = lane_id() % 4 * 2;
    const bool finite = end_rows<T>(s);
    const uint32_t doubtful = warp_ballot(!finite);
    if (lane_id() % 4 == 0) {
        state.top[mine] = s.top;
        state.total[mine] = s.total;
    }
#pragma unroll
    for (uint32_t i = 0; i < D / 8 && mine < heads; i++) {
        state.sum[mine][layout::of_value(i, column, 0)] = s.sum[i][0];
        state.sum[mine][layout::of_value(i, column, 1)] = s.sum[i][1];
    }
    if (!doubtful) return;
    warp_sync();
    for (uint32_t g = 0; g < heads; g++) {
        if ((doubtful >> 4 * g & 15) == 0) continue;
        attend_sums<D, 1> plain;
        attend_plain_parts<T, D>(a, l, first + g, share.begin, share.end, plain);
        if (lane_id() == 0) {
            state.top[g] = plain.top[0];
            state.total[g] = plain.total[0];
        }
        if (lane_id() * 8 < D) store_8(plain.sum[0], &state.sum[g][lane_id() * 8]);
    }
}

template <bool LOGITS, typename T, int D>
DEVICE void decode(const cu_attend_args &a, unsigned char *shared) {
    typedef attend_layout<T, D> layout;
    uint32_t row;
    if (!attend_row_of(a, row)) return;
    const uint32_t tiles = (a.batch.group + CU_ATTEND_HEADS - 1) / CU_ATTEND_HEADS;
    const uint32_t first = blockIdx.y % tiles * CU_ATTEND_HEADS;
    const attend_lane l = attend_lane_of(a, row, blockIdx.y / tiles);
    const attend_share share = attend_share_of(a, l);
    if (blockIdx.x >= share.chunks) return;
    const uint32_t heads = min(a.batch.group - first, CU_ATTEND_HEADS);
    const float *q = attend_query_of(a, l, first, D);
    const uint32_t mine = lane_id() / 4;
    attend_rows<D> s[1];
    attend_split<LOGITS, T, D>(
        a, l, share, mine < heads ? q + mine * D : nullptr, first, heads,
        (T *)(shared + warp_id() * CU_ATTEND_STAGES(D) * layout::STAGE),
        (uint32_t *)(shared + layout::DECODE_KEYS + warp_id() * CU_ATTEND_THIRDS(D)), s);
    /* The states take the place of the keys. */
    attend_block<D, CU_ATTEND_HEADS> &b = *(attend_block<D, CU_ATTEND_HEADS> *)shared;
    static_assert(sizeof b <= layout::DECODE_SHARED, "states fit where keys were");
    block_sync();
    keep_split<T>(a, l, share, first, heads, s[0], b.of[warp_id()]);
    attend_finish(a, l, share, first, heads, b);
}

#define ATTEND_DECODE(type, tag, dim)                                                              \
    KERNEL_WIDE(attend_decode_##tag##_d##dim, CU_ATTEND_WARPS *WARP, cu_attend_args) {             \
        DYNAMIC_SHARED(unsigned char, shared);                                                     \
        decode<false, type, dim>(a, shared);                                                       \
    }                                                                                              \
    KERNEL_WIDE(attend_logits_##tag##_d##dim, CU_ATTEND_WARPS *WARP, cu_attend_args) {             \
        DYNAMIC_SHARED(unsigned char, shared);                                                     \
        decode<true, type, dim>(a, shared);                                                        \
    }
FOR_EACH_OWN_DIM_OF(ATTEND_DECODE, f16, f16)
FOR_EACH_OWN_DIM_OF(ATTEND_DECODE, bf16, bf16)
FOR_EACH_OWN_DIM_OF(ATTEND_DECODE, q8, q8)
FOR_EACH_OWN_DIM_OF(ATTEND_DECODE, k8v4, k8v4)
FOR_EACH_OWN_DIM_OF(ATTEND_DECODE, q4, q4)

/* ---- Tiles ----------------------------------------------------------------------------------- */

#define TILE_KEYS (2 * KEYS)

/* Keys that a block of tile rows shares, with what lies behind their rows. */
template <typename T, int D> struct tile_stage {
    typedef attend_layout<T, D> layout;
    T keys[TILE_KEYS * (layout::TILE_ROW + layout::SCALES)];
    T values[TILE_KEYS * (layout::VALUE_ROW + layout::VALUE_SCALES)];
};

/* The slots of a piece that some row of a tile sees. */
struct tile_slots {
    const int32_t *ids;
    uint32_t head, slot, end; /* next to bring */
    int32_t id;               /* page id of the lane's of the next 32 */
};

DEVICE int32_t tile_page(const cu_attend_args &a, const tile_slots &t, uint32_t slot) {
    return slot < t.end ? t.ids[slot >> a.kv.page_shift] : 0;
}

/* V rows where they are not as long as those of K, and what lies behind the rows: of 8 slots 16 bytes
 * a thread. */
template <typename T, int D>
DEVICE void bring_tile_scaled(const cu_attend_args &a, const tile_slots &t, tile_stage<T, D> &to) {
    typedef attend_layout<T, D> layout;
    constexpr uint32_t ROW = layout::TILE_ROW, VALUE = layout::VALUE_ROW;
    constexpr uint32_t WIDE = CU_Q8_BLOCKS(D), PIECES = TILE_KEYS / 8 * 16;
    const uint32_t in_page = a.kv.page_size - 1;
    for (uint32_t i = 0; !layout::ALIKE && i < TILE_KEYS * WIDE; i += blockDim.x) {
        const uint32_t piece = i + threadIdx.x, row = piece / WIDE, slot = t.slot + row;
        const int32_t id = shuffle(t.id, row % TILE_KEYS);
        if (row < TILE_KEYS)
            bring_piece<VALUE>(to.values,
                               (const T *)value_of<T>(a.kv, id, t.head, slot & in_page).at, row,
                               piece % WIDE, slot < t.end);
    }
    for (uint32_t i = 0; i < PIECES; i += blockDim.x) {
        const uint32_t piece = (i + threadIdx.x) % 16, row = (i + threadIdx.x) / 16 * 8;
        const uint32_t slot = t.slot + row;
        const int32_t id = shuffle(t.id, row % TILE_KEYS);
        if (row >= TILE_KEYS) continue;
        bring_scales(to.keys + TILE_KEYS * ROW + row * layout::SCALES,
                     key_of<T>(a.kv, id, t.head, slot & in_page), piece, layout::SCALES / 2,
                     slot < t.end);
        bring_scales(to.values + TILE_KEYS * VALUE + row * layout::VALUE_SCALES,
                     value_of<T>(a.kv, id, t.head, slot & in_page), piece,
                     layout::VALUE_SCALES / 2, slot < t.end);
    }
}

template <typename T, int D>
DEVICE void bring_tile(const cu_attend_args &a, tile_slots &t, tile_stage<T, D> &to) {
    typedef attend_layout<T, D> layout;
    constexpr uint32_t ROW = layout::TILE_ROW, OF_ROW = ROW_BYTES<T, D> / 16;
    constexpr uint32_t PIECES = TILE_KEYS * OF_ROW;
    const uint32_t in_page = a.kv.page_size - 1;
    for (uint32_t i = 0; i < PIECES; i += blockDim.x) {
        const uint32_t piece = i + threadIdx.x, row = piece / OF_ROW, slot = t.slot + row;
        const int32_t id = shuffle(t.id, row % TILE_KEYS);
        const T *from = (const T *)key_of<T>(a.kv, id, t.head, slot & in_page).at;
        if (piece >= PIECES) continue;
        bring_piece<ROW>(to.keys, from, row, piece % OF_ROW, slot < t.end);
        if (layout::ALIKE)
            bring_piece<ROW>(to.values, from + a.kv.value_offset, row, piece % OF_ROW,
                             slot < t.end);
    }
    if constexpr (layout::SCALES > 0) bring_tile_scaled(a, t, to);
    t.slot += TILE_KEYS;
    t.id = tile_page(a, t, t.slot + lane_id());
}

/* What a lane's row of a tile is and sees. */
struct tile_row {
    uint32_t row, head; /* in the batch; in the group */
    uint32_t hidden, seen; /* the first slot that it sees, and how many from there on */
};

/* The n-th (row, query head) of a tile that begins at row `first`; past `all` one that sees
 * nothing. */
DEVICE tile_row tile_row_of(const cu_attend_args &a, uint32_t first, uint32_t n, uint32_t all,
                            uint32_t head) {
    tile_row r = {first, 0, 0, 0};
    if (n >= all) return r;
    r.row = first + n / a.batch.group;
    r.head = n % a.batch.group;
    const uint64_t owner = (uint64_t)r.row * a.batch.n_kv_heads + head;
    const uint32_t visible = (uint32_t)max(a.batch.visible[owner], 0);
    r.hidden = min(first_seen(a.batch, owner), visible);
    r.seen = visible - r.hidden;
    return r;
}

DEVICE uint32_t warp_most(uint32_t x) {
    for (uint32_t mask = WARP / 2; mask > 0; mask /= 2)
        x = max(x, shuffle_xor(x, mask));
    return x;
}

/* From the first slot that some row of a tile sees to the last, and the pieces that hold them, at
 * least one. */
struct tile_range {
    uint32_t begin, end;
    uint32_t piece, pieces_end;
};

DEVICE tile_range tile_range_of(const cu_attend_args &a, uint32_t first, uint32_t rows,
                                uint32_t head) {
    const uint32_t row = first + min(lane_id(), rows - 1);
    const uint64_t owner = (uint64_t)row * a.batch.n_kv_heads + head;
    tile_range t;
    t.begin = ~warp_most(~first_seen(a.batch, owner)) / TILE_KEYS * TILE_KEYS;
    t.end = warp_most((uint32_t)max(a.batch.visible[owner], 0));
    if (t.begin >= t.end) t.begin = t.end = 0;
    t.piece = t.begin / CU_ATTEND_PIECE;
    t.pieces_end = max((t.end + CU_ATTEND_PIECE - 1) / CU_ATTEND_PIECE, t.piece + 1);
    return t;
}

DEVICE tile_slots tile_slots_of(const cu_attend_args &a, const tile_range &range, uint32_t piece,
                                uint32_t first, uint32_t head) {
    tile_slots t;
    t.ids = lane_pages(a.batch, first, head);
    t.head = head;
    t.end = min(range.end, (piece + 1) * CU_ATTEND_PIECE);
    t.slot = max(range.begin, piece * CU_ATTEND_PIECE);
    t.id = tile_page(a, t, t.slot + lane_id());
    return t;
}

/* The states of a tile and KV head: of its first (row, query head) in the launch's first chunk. */
template <int D>
DEVICE float *tile_states(const cu_attend_args &a, uint32_t tile_of_launch, uint32_t head) {
    return a.states + ((uint64_t)tile_of_launch * a.batch.n_kv_heads + head) * a.chunks *
                          a.tile_rows * (D + 2);
}

/* A channel of a row: its result, or its state if there is more than one. */
template <int D>
DEVICE void tile_write(const cu_attend_args &a, const attend_lane &l, uint32_t head_in_group,
                       uint32_t channel, const attend_result &r, float *state) {
    if (!state) {
        attend_write<D>(a, l, head_in_group, channel, r);
        return;
    }
    state[channel] = r.sum;
    if (channel == 0) {
        state[D] = r.top;
        state[D + 1] = r.total;
    }
}

/* Writes 8 rows, the n-th to `states` + n states or, if that is NULL, as results; what is not
 * finite anew, a row at a time. */
template <typename T, int D>
DEVICE void write_rows(const cu_attend_args &a, attend_rows<D> &s, const tile_row &r, bool live,
                       uint32_t head, uint32_t piece, float *states) {
    const uint32_t column = lane_id() % 4 * 2;
    const bool finite = end_rows<T>(s);
    const uint32_t doubtful = warp_ballot(live && !finite);
    attend_lane l = {};
    l.row = r.row;
    l.head = head;
    const bool mine = live && (doubtful >> lane_id() / 4 * 4 & 15) == 0;
    float *state = states ? states + lane_id() / 4 * (D + 2) : nullptr;
#pragma unroll
    for (uint32_t i = 0; i < D / 8 && mine; i++)
#pragma unroll
        for (uint32_t j = 0; j < 2; j++)
            tile_write<D>(a, l, r.head, attend_layout<T, D>::of_value(i, column, j),
                          {s.sum[i][j], s.top, s.total}, state);
    for (uint32_t n = 0; n < 8; n++) {
        if ((doubtful >> 4 * n & 15) == 0) continue;
        const uint32_t row = shuffle(r.row, 4 * n), g = shuffle(r.head, 4 * n);
        l = attend_lane_of(a, row, head);
        const uint32_t entries = CU_ATTEND_PIECE >> a.kv.page_shift;
        attend_sums<D, 1> plain;
        attend_plain_parts<T, D>(a, l, g, max(l.from, piece * entries),
                                 min(l.entries, (piece + 1) * entries), plain);
        state = states ? states + n * (D + 2) : nullptr;
        for (uint32_t i = 0; i < 8 && lane_id() * 8 < D; i++)
            tile_write<D>(a, l, g, lane_id() * 8 + i,
                          {plain.sum[0][i], plain.top[0], plain.total[0]}, state);
    }
}

/* What a block does: a piece of a tile's slots, and which (row, query head). */
struct tile_task {
    uint32_t tile; /* of the launch; the last tiles of a prompt see most and go first */
    uint32_t first, rows, head, piece;
    uint32_t own; /* the warp's first (row, query head) */
};

/* false: nothing. */
DEVICE bool tile_task_of(const cu_attend_args &a, uint32_t warp_rows, tile_task &t) {
    if (blockIdx.x >= a.n) return false;
    t.tile = a.n - 1 - blockIdx.x;
    const int32_t *tile = a.batch.tiles + 2 * (a.first + t.tile);
    const uint32_t block_rows = blockDim.x / WARP * warp_rows;
    const uint32_t blocks = (a.tile_rows + block_rows - 1) / block_rows;
    t.first = (uint32_t)tile[0];
    t.rows = (uint32_t)tile[1];
    t.head = blockIdx.y;
    t.piece = a.piece + blockIdx.z / blocks;
    t.own = blockIdx.z % blocks * block_rows + warp_id() * warp_rows;
    return t.rows > 1 && blockIdx.z % blocks * block_rows < t.rows * a.batch.group;
}

template <typename T, int D> DEVICE void tiles(const cu_attend_args &a, tile_stage<T, D> *stages) {
    constexpr uint32_t STAGES = CU_ATTEND_STAGES(D), M = CU_ATTEND_WARP_ROWS(D) / 8;
    tile_task task;
    if (!tile_task_of(a, 8 * M, task)) return;
    const tile_range range = tile_range_of(a, task.first, task.rows, task.head);
    if (task.piece < range.piece || task.piece >= range.pieces_end) return;
    const uint32_t all = task.rows * a.batch.group;
    tile_slots t = tile_slots_of(a, range, task.piece, task.first, task.head);
    uint32_t slot = t.slot;
    /* 1. the first keys, while q is read */
    for (uint32_t i = 0; i + 1 < STAGES; i++) {
        if (t.slot < t.end) bring_tile(a, t, stages[i]);
        copy_async_commit();
    }
    attend_query<T, D, M> query;
    query.thirds = (uint32_t *)(stages + STAGES) + warp_id() * CU_ATTEND_THIRDS(D) / 4 + lane_id();
    attend_rows<D> s[M];
    tile_row r[M];
#pragma unroll
    for (uint32_t m = 0; m < M; m++) {
        const uint32_t n = task.own + 8 * m + lane_id() / 4;
        r[m] = tile_row_of(a, task.first, n, all, task.head);
        const float *q =
            a.q.at + r[m].row * a.q.stride + ((uint64_t)task.head * a.batch.group + r[m].head) * D;
        begin_rows<T, D, M>(query, m, s[m], n < all ? q : nullptr, a.logit.scale);
    }
    for (uint32_t i = 0; slot < t.end; slot += TILE_KEYS) {
        copy_async_wait<STAGES - 2>();
        block_sync(); /* all threads' copies are there, and all are done with the stage before */
        if (t.slot < t.end) bring_tile(a, t, stages[i == 0 ? STAGES - 1 : i - 1]);
        copy_async_commit();
        const tile_stage<T, D> &stage = stages[i];
        /* 2. what each row sees */
        if (task.own < all)
            attend_keys<attend_layout<T, D>::TILE_ROW, 2>(
                query, s, stage.keys, stage.values, a.logit, [&](int m, uint32_t key) {
                    return slot + key - r[m].hidden < r[m].seen;
                });
        i = i + 1 == STAGES ? 0 : i + 1;
    }
    copy_async_wait<0>();
    float *states = nullptr;
    if (range.pieces_end - range.piece > 1)
        states = tile_states<D>(a, task.tile, task.head) +
                 ((uint64_t)(task.piece - a.piece) * a.tile_rows + task.own) * (D + 2);
#pragma unroll
    for (uint32_t m = 0; m < M; m++)
        write_rows<T>(a, s[m], r[m], task.own + 8 * m + lane_id() / 4 < all, task.head, task.piece,
                      states ? states + 8 * m * (D + 2) : nullptr);
}

#define ATTEND_TILES(type, tag, dim)                                                               \
    KERNEL_WIDE(attend_tiles_##tag##_d##dim, CU_ATTEND_TILE_WARPS *WARP, cu_attend_args) {         \
        typedef tile_stage<type, dim> stage;                                                       \
        static_assert(sizeof(stage) == attend_layout<type, dim>::TILE_STAGE,                       \
                      "the host asks for as much");                                                \
        DYNAMIC_SHARED(stage, stages);                                                             \
        tiles<type, dim>(a, stages);                                                               \
    }
FOR_EACH_OWN_DIM_OF(ATTEND_TILES, f16, f16)
FOR_EACH_OWN_DIM_OF(ATTEND_TILES, bf16, bf16)
FOR_EACH_OWN_DIM_OF(ATTEND_TILES, q8, q8)
FOR_EACH_OWN_DIM_OF(ATTEND_TILES, k8v4, k8v4)
FOR_EACH_OWN_DIM_OF(ATTEND_TILES, q4, q4)

/* ---- Joining the pieces of tiles ------------------------------------------------------------- */

/* A state behind the joined ones. */
template <int D> DEVICE void add_state(attend_joined<D> &r, const float *state) {
    const float top = fmaxf(r.top, state[D]), base = attend_base(top);
    const float old = expf(r.top - base), its = expf(state[D] - base);
    r.top = top;
    r.total = fmaf(its, state[D + 1], r.total * old);
#pragma unroll
    for (uint32_t j = 0; j < (D + 31) / 32; j++)
        r.sum[j] = fmaf(its, state[min(32 * j + lane_id(), D - 1u)], r.sum[j] * old);
}
template <int D> DEVICE void keep_state(const attend_joined<D> &r, float *state) {
#pragma unroll
    for (uint32_t j = 0; j < (D + 31) / 32; j++)
        if (32 * j + lane_id() < D) state[32 * j + lane_id()] = r.sum[j];
    if (lane_id() == 0) {
        state[D] = r.top;
        state[D + 1] = r.total;
    }
}

/* One (row, query head): its pieces of this launch, with those before. Where a piece lies in the
 * text decides with which others it is joined, not where the tile begins or ends. */
template <int D> DEVICE void join(const cu_attend_args &a) {
    tile_task t;
    if (!tile_task_of(a, 1, t) || t.own >= t.rows * a.batch.group) return;
    const tile_range range = tile_range_of(a, t.first, t.rows, t.head);
    const uint32_t first = max(range.piece, a.piece),
                   end = min(range.pieces_end, a.piece + CU_ATTEND_CHUNKS);
    if (range.pieces_end - range.piece == 1 || first >= end) return;
    const uint64_t stride = (uint64_t)a.tile_rows * (D + 2);
    float *states = tile_states<D>(a, t.tile, t.head) + (uint64_t)t.own * (D + 2);
    float *before = states + (a.chunks - 1) * stride;
    attend_joined<D> r = attend_join_states<D>(D, states, stride, first - a.piece, end - a.piece);
    if (range.piece < a.piece) add_state<D>(r, before);
    attend_lane l = {};
    l.row = t.first + t.own / a.batch.group;
    l.head = t.head;
    warp_sync(); /* all lanes have read what is before */
    if (end < range.pieces_end)
        keep_state<D>(r, before);
    else
        attend_write_joined<D>(a, l, t.own % a.batch.group, r);
}

#define ATTEND_JOIN(dim)                                                                           \
    KERNEL(attend_join_d##dim, CU_ATTEND_JOIN_WARPS *WARP, cu_attend_args) {                       \
        join<dim>(a);                                                                              \
    }
ATTEND_JOIN(64) ATTEND_JOIN(80) ATTEND_JOIN(96) ATTEND_JOIN(128) ATTEND_JOIN(256)
