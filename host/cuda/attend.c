/* SPDX-License-Identifier: Apache-2.0 */
/* attend on CUDA: the choice of form, scratch memory, and the launches of cuda_kernels/attend.cu
 * and attend_mma.cu. */
#include "host/cuda/selection.h"

#define DECODE_THREADS (32 * CU_ATTEND_WARPS)
/* Decode is launched with at most this many blocks, or those of one row if they are more. This is
 * enough for any device, and the states that wait for merging take only a few megabytes. */
#define MOST_BLOCKS 8192u

/* Tiles are launched with states of at most this many bytes, or those of one tile if they are
 * more. */
#define MOST_TILE_BYTES (64u << 20)

static uint64_t at_most(uint64_t n, uint64_t most) {
    return n < most ? n : most;
}

static uint64_t at_least(uint64_t n, uint64_t least) {
    return n > least ? n : least;
}

static uint32_t group_of(const tms_attend *p) {
    return p->batch.n_kv_heads ? p->batch.n_heads / p->batch.n_kv_heads : 1;
}

/* ---- Scratch --------------------------------------------------------------------------------- */

/* Most blocks of a row and block of heads. The shortest split is CU_ATTEND_SPLIT tokens, or a page
 * if that is more. */
static uint32_t chunks_of(const tms_attend *p) {
    const uint64_t tokens = (uint64_t)p->max_pages * p->kv.page_size;
    const uint64_t chunks = tms_divide_up(tokens, CU_ATTEND_WARPS * CU_ATTEND_SPLIT);
    return (uint32_t)at_least(at_most(chunks, CU_ATTEND_CHUNKS), 1);
}

/* The most query heads of a block. */
static uint32_t most_heads(const tms_attend *p) {
    return tms_cu_dim_tag(p->kv.head_dim) == CU_ANY_DIM ? CU_ATTEND_LONG : CU_ATTEND_HEADS;
}

/* The number of blocks of query heads, over all KV heads. */
static uint64_t head_blocks(const tms_attend *p) {
    return p->batch.n_kv_heads * tms_divide_up(group_of(p), most_heads(p));
}

/* A row's states are head_blocks * chunks times those of a block's heads, or a few less. */
static uint64_t decode_scratch(const tms_attend *p) {
    const uint64_t row = head_blocks(p) * chunks_of(p), all = p->batch.n_rows * row;
    const uint64_t blocks = at_most(all, at_least(MOST_BLOCKS, row));
    const uint64_t heads = at_most(group_of(p), most_heads(p));
    return chunks_of(p) > 1 ? blocks * heads * (p->kv.head_dim + 2) * sizeof(float) : 0;
}

/* States of a (row, query head) of a tile for `slots`: the pieces of a launch, and those before. */
static uint64_t tile_chunks(uint64_t slots) {
    const uint64_t pieces = tms_divide_up(slots, CU_ATTEND_PIECE);
    return pieces > CU_ATTEND_CHUNKS ? CU_ATTEND_CHUNKS + 1 : pieces;
}

/* Floats of a tile's states; 0 if its results need none. */
static uint64_t tile_states(const tms_attend *p, uint64_t slots) {
    const uint64_t heads = (uint64_t)p->batch.max_tile_rows * p->batch.n_heads;
    return tile_chunks(slots) > 1 ? tile_chunks(slots) * heads * (p->kv.head_dim + 2) : 0;
}

/* Every tile has at least one row, so there are at most n_rows tiles. */
static uint64_t tile_scratch(const tms_attend *p) {
    const uint64_t tile = sizeof(float) * tile_states(p, (uint64_t)p->max_pages * p->kv.page_size);
    return at_most(p->batch.n_rows * tile, at_least(MOST_TILE_BYTES, tile));
}

/* Bytes of K or V of a stage, of rows that have blocks; of both. */
static uint32_t side_of(tamis_dtype rows, uint32_t dim) {
    return rows == TAMIS_Q4 ? CU_ATTEND_Q4_SIDE(dim) : CU_ATTEND_Q8_SIDE(dim);
}
static uint32_t stage_of(const tms_kv *kv) {
    return side_of(tms_key_dtype(kv->dtype), kv->head_dim) +
           side_of(tms_value_dtype(kv->dtype), kv->head_dim);
}

/* Bytes of shared memory of a block on matrix units. */
static uint32_t decode_shared(const tms_attend *p) {
    const uint32_t dim = p->kv.head_dim;
    return tms_has_blocks(p->kv.dtype) ? CU_ATTEND_SIDES_DECODE_SHARED(dim, stage_of(&p->kv))
                                       : CU_ATTEND_DECODE_SHARED(dim);
}

static uint32_t tile_shared(const tms_attend *p, uint32_t warps) {
    const uint32_t dim = p->kv.head_dim;
    return tms_has_blocks(p->kv.dtype) ? CU_ATTEND_SIDES_TILE_SHARED(dim, stage_of(&p->kv))
                                       : CU_ATTEND_TILE_SHARED(dim, warps);
}

static const char *matrix_refusal(tms_device *dev, const tms_attend *p) {
    const uint32_t most = tms_cu(dev)->max_shared, dim = p->kv.head_dim;
    if (p->kv.dtype == TAMIS_F32) return "the dtype is f32";
    if (p->kv.page_size < 8) return "pages of fewer than 8 slots";
    if (!tms_cu_values_beside(&p->kv)) return "V rows are not at the strides of K rows";
    if (tms_cu_dim_tag(dim) == CU_ANY_DIM) return "the head dim is none of 64, 80, 96, 128 and 256";
    if (decode_shared(p) > most || tile_shared(p, CU_ATTEND_TILE_WARPS) > most)
        return "the keys on their way do not fit a block's shared memory";
    return NULL;
}

/* Whether rows that share a tile take the kernels for tiles. */
static bool takes_tiles(const tms_attend *p) {
    return !p->lists.pages.mem && p->batch.max_tile_rows > 1;
}

uint64_t tms_cu_attend_scratch(tms_device *dev, const tms_attend *p) {
    const uint64_t decode = decode_scratch(p);
    if (!takes_tiles(p) || matrix_refusal(dev, p)) return decode;
    return at_least(decode, tile_scratch(p));
}

/* ---- Arguments ------------------------------------------------------------------------------- */

static cu_attend_args make_args(tms_cu_launch *l, const tms_attend *p) {
    const tms_batch *b = &p->batch;
    const uint64_t n = b->n_rows, width = (uint64_t)b->n_heads * p->kv.head_dim;
    return (cu_attend_args){
        .kv = tms_cu_kv(l, &p->kv, n),
        .batch = tms_cu_batch(l, b),
        .q = tms_cu_matrix(l, "q", &p->q, b->n_rows, width),
        .out = tms_cu_matrix(l, "out", &p->out, b->n_rows, width),
        .lists = tms_cu_lists(l, &p->lists, n * b->n_kv_heads),
        .lse = tms_cu_optional(l, "lse", p->lse, sizeof(float), n * b->n_heads),
        .logits = tms_cu_optional(l, "logits", p->logits, sizeof(float),
                                  n * b->n_heads * p->logit_stride),
        .logit_stride = p->logit_stride,
        .logit = tms_cu_logit(&p->logit)};
}

/* ---- Decode ---------------------------------------------------------------------------------- */

/* Query heads of a block of the plain form, as its kernels are named. */
static uint32_t plain_heads(const tms_attend *p) {
    return group_of(p) == 1 ? 1 : group_of(p) <= 4 ? 4 : most_heads(p);
}

static tms_cu_launch begin_decode(tms_device *dev, const tms_attend *p, bool matrix) {
    const char *tag = tamis_dtype_name(p->kv.dtype);
    const unsigned dim = tms_cu_dim_tag(p->kv.head_dim);
    if (matrix)
        return tms_cu_begin(dev, "attend_mma", "attend_%s_%s_d%u",
                            p->logits.mem ? "logits" : "decode", tag, dim);
    return tms_cu_begin(dev, "attend", "attend_decode_%s_d%u_g%u", tag, dim, plain_heads(p));
}

/* Processes rows one by one: all of them, or those that are tiles of their own. Successive launches
 * for parts of the rows share the scratch memory; the first may begin early. */
static tamis_status run_decode(tms_device *dev, const tms_attend *p, bool matrix, bool by_tile,
                               bool early) {
    const uint32_t n = by_tile ? p->batch.n_tiles : p->batch.n_rows;
    const uint64_t chunks = chunks_of(p), row = head_blocks(p) * chunks;
    const uint32_t window = row < MOST_BLOCKS ? (uint32_t)(MOST_BLOCKS / row) : 1;
    tms_cu_launch l = begin_decode(dev, p, matrix);
    cu_attend_args args = make_args(&l, p);
    args.chunks = (uint32_t)chunks;
    args.by_tile = by_tile;
    uint32_t rows = n < window ? n : window;
    if (chunks > 1) {
        const uint64_t states = rows * chunks * p->batch.n_heads * (p->kv.head_dim + 2);
        args.states = tms_cu_ref(&l, "scratch", p->scratch, sizeof(float), states);
        args.tickets = tms_cu_tickets(&l, rows * head_blocks(p));
    }
    tms_cu_grid grid = {.x = chunks, .y = head_blocks(p), .threads = DECODE_THREADS};
    if (matrix) grid.shared = decode_shared(p);
    tamis_status status = TAMIS_OK;
    do {
        args.n = n - args.first < rows ? n - args.first : rows;
        grid.z = args.n;
        grid.early = early && args.first == 0;
        status = tms_cu_run(&l, grid, &args);
        args.first += args.n;
    } while (status == TAMIS_OK && args.first < n);
    return status;
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

/* The two kernels for some of the tiles, whose states fit the scratch memory. */
typedef struct tile_launches {
    tms_cu_launch sums, join;
    tms_cu_grid sums_grid, join_grid;
    uint64_t blocks; /* of one piece of a tile and KV head */
} tile_launches;

/* A block has no more warps than the largest tile needs. */
static tile_launches begin_tiles(tms_device *dev, const tms_attend *p) {
    const uint32_t dim = p->kv.head_dim;
    const uint64_t rows = (uint64_t)p->batch.max_tile_rows * group_of(p);
    const uint64_t all = at_least(tms_divide_up(rows, CU_ATTEND_WARP_ROWS(dim)), 1);
    const uint32_t warps = (uint32_t)at_most(all, CU_ATTEND_TILE_WARPS);
    return (tile_launches){.sums = tms_cu_begin(dev, "attend_mma", "attend_tiles_%s_d%u",
                                                tamis_dtype_name(p->kv.dtype), dim),
                           .join = tms_cu_begin(dev, "attend_mma", "attend_join_d%u", dim),
                           .sums_grid = {.y = p->batch.n_kv_heads,
                                         .threads = 32 * warps,
                                         .shared = tile_shared(p, warps)},
                           .join_grid = {.y = p->batch.n_kv_heads,
                                         .z = tms_divide_up(rows, CU_ATTEND_JOIN_WARPS),
                                         .threads = 32 * CU_ATTEND_JOIN_WARPS},
                           .blocks = tms_divide_up(all, CU_ATTEND_TILE_WARPS)};
}

/* Launches the pieces, CU_ATTEND_CHUNKS per launch, from the first. So which of them are joined at
 * once does not depend on the other rows. */
static tamis_status run_window(tile_launches *l, cu_attend_args *args, uint64_t pieces) {
    tamis_status status = TAMIS_OK;
    args->piece = 0;
    do {
        l->sums_grid.x = l->join_grid.x = args->n;
        l->sums_grid.z = at_most(pieces - args->piece, CU_ATTEND_CHUNKS) * l->blocks;
        status = tms_cu_run(&l->sums, l->sums_grid, args);
        if (status == TAMIS_OK && (args->states || args->n == 0))
            status = tms_cu_run(&l->join, l->join_grid, args);
        args->piece += CU_ATTEND_CHUNKS;
    } while (status == TAMIS_OK && args->piece < pieces);
    return status;
}

/* Tiles of more than one row. */
static tamis_status run_tiles(tms_device *dev, const tms_attend *p) {
    const uint32_t n = p->batch.n_tiles;
    const uint64_t slots = p->batch.max_visible, states = tile_states(p, slots);
    const uint64_t most = states ? MOST_TILE_BYTES / sizeof(float) / states : n;
    const uint32_t window = (uint32_t)at_most(at_least(most, 1), n);
    tile_launches l = begin_tiles(dev, p);
    cu_attend_args args = make_args(&l.sums, p);
    args.chunks = (uint32_t)tile_chunks(slots);
    args.tile_rows = p->batch.max_tile_rows * group_of(p);
    if (states)
        args.states = tms_cu_ref(&l.sums, "scratch", p->scratch, sizeof(float), window * states);
    tamis_status status = TAMIS_OK;
    do {
        args.n = (uint32_t)at_most(n - args.first, window);
        status = run_window(&l, &args, at_least(tms_divide_up(slots, CU_ATTEND_PIECE), 1));
        args.first += args.n;
    } while (status == TAMIS_OK && args.first < n);
    return status;
}

/* ---- The op ---------------------------------------------------------------------------------- */

static tamis_status attend(tms_device *dev, const tms_attend *p, bool early) {
    bool matrix;
    tamis_status status = tms_cu_choose(dev, "attend", matrix_refusal(dev, p), &matrix);
    if (status != TAMIS_OK) return status;
    const bool build = p->batch.n_rows == 0; /* all kernels of the shape, which compute nothing */
    const bool tiles = matrix && takes_tiles(p);
    status = run_decode(dev, p, matrix, tiles && !build, early);
    if (status == TAMIS_OK && (tiles || (matrix && build))) status = run_tiles(dev, p);
    return status;
}

tamis_status tms_cu_attend(tms_device *dev, const tms_attend *p) {
    return attend(dev, p, false);
}

tamis_status tms_cu_attend_lists(tms_device *dev, const tms_attend *p) {
    return attend(dev, p, tms_cu(dev)->overlap);
}
