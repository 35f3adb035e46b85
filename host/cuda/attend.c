/* SPDX-License-Identifier: Apache-2.0 */
/* attend on CUDA: the choice of form, and the launches of cuda_kernels/attend.cu and attend_mma.cu. */
#include "host/cuda/cuda.h"

#define DECODE_THREADS (32 * CU_ATTEND_WARPS)
/* Decode goes in launches of so many blocks or a row's: enough for any device, and the states that
 * wait for merging stay few megabytes. */
#define MOST_BLOCKS 8192u

static uint64_t divide_up(uint64_t n, uint64_t by) {
    return n / by + (n % by != 0);
}

/* Blocks a row and block of heads has at most. */
static uint32_t chunks_of(const tms_attend *p) {
    const uint64_t tokens = (uint64_t)p->max_pages * p->kv.page_size;
    const uint64_t chunks = divide_up(tokens, CU_ATTEND_WARPS * CU_ATTEND_SPLIT);
    if (chunks > CU_ATTEND_CHUNKS) return CU_ATTEND_CHUNKS;
    return chunks ? (uint32_t)chunks : 1;
}

static uint32_t group_of(const tms_attend *p) {
    return p->batch.n_kv_heads ? p->batch.n_heads / p->batch.n_kv_heads : 1;
}

/* Blocks of query heads, all KV heads. */
static uint64_t head_blocks(const tms_attend *p) {
    return p->batch.n_kv_heads * divide_up(group_of(p), CU_ATTEND_HEADS);
}

/* A row's states are head_blocks * chunks times those of a block's heads, or a few less. */
uint64_t tms_cu_attend_scratch(tms_device *dev, const tms_attend *p) {
    (void)dev;
    const uint64_t row = head_blocks(p) * chunks_of(p), all = p->batch.n_rows * row;
    const uint64_t most = row > MOST_BLOCKS ? row : MOST_BLOCKS, blocks = all < most ? all : most;
    const uint32_t heads = group_of(p) < CU_ATTEND_HEADS ? group_of(p) : CU_ATTEND_HEADS;
    return chunks_of(p) > 1 ? blocks * heads * (p->kv.head_dim + 2) * sizeof(float) : 0;
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
        .positions = tms_cu_optional(l, "positions", p->positions, sizeof(int32_t), 0),
        .intervals = tms_cu_optional(l, "intervals", p->intervals, sizeof(int32_t), 2 * n),
        .scale = p->scale,
        .soft_cap = p->soft_cap};
}

/* ---- Decode ---------------------------------------------------------------------------------- */

/* Query heads of a block of the plain form, as its kernels are named. */
static uint32_t plain_heads(const tms_attend *p) {
    return group_of(p) == 1 ? 1 : group_of(p) <= 4 ? 4 : CU_ATTEND_HEADS;
}

static tms_cu_launch begin_decode(tms_device *dev, const tms_attend *p, bool matrix) {
    const char *tag = tamis_dtype_name(p->kv.dtype);
    const unsigned dim = p->kv.head_dim;
    if (matrix) return tms_cu_begin(dev, "attend_mma", "attend_decode_%s_d%u", tag, dim);
    return tms_cu_begin(dev, "attend", "attend_decode_%s_d%u_g%u", tag, dim, plain_heads(p));
}

/* Rows one by one: all of them, or those that are tiles of their own. Windows of rows share the
 * scratch memory, one after the other. */
static tamis_status run_decode(tms_device *dev, const tms_attend *p, bool matrix, bool by_tile) {
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
    if (matrix) grid.shared = CU_ATTEND_DECODE_SHARED(p->kv.head_dim);
    tamis_status status = TAMIS_OK;
    do {
        args.n = n - args.first < rows ? n - args.first : rows;
        grid.z = args.n;
        status = tms_cu_run(&l, grid, &args);
        args.first += args.n;
    } while (status == TAMIS_OK && args.first < n);
    return status;
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

/* Tiles of more than one row. A block has no more warps than the largest tile needs. */
static tamis_status run_tiles(tms_device *dev, const tms_attend *p) {
    const uint32_t dim = p->kv.head_dim;
    uint64_t warps =
        divide_up((uint64_t)p->batch.max_tile_rows * group_of(p), CU_ATTEND_WARP_ROWS(dim));
    uint64_t blocks = divide_up(warps, CU_ATTEND_TILE_WARPS);
    warps = blocks > 1 ? CU_ATTEND_TILE_WARPS : warps ? warps : 1;
    tms_cu_launch l =
        tms_cu_begin(dev, "attend_mma", "attend_tiles_%s_d%u", tamis_dtype_name(p->kv.dtype), dim);
    cu_attend_args args = make_args(&l, p);
    args.n = p->batch.n_tiles;
    return tms_cu_run(&l,
                      (tms_cu_grid){.x = p->batch.n_tiles,
                                    .y = p->batch.n_kv_heads,
                                    .z = blocks,
                                    .threads = 32 * (uint32_t)warps,
                                    .shared = CU_ATTEND_TILE_SHARED(dim)},
                      &args);
}

/* ---- The op ---------------------------------------------------------------------------------- */

static tamis_status check(tms_device *dev, const tms_attend *p) {
    const tms_batch *b = &p->batch;
    tamis_status status = tms_check_kv(dev, &p->kv);
    if (status == TAMIS_OK) status = tms_check_batch(dev, b);
    if (status != TAMIS_OK) return status;
    const uint32_t all = b->max_visible / p->kv.page_size + (b->max_visible % p->kv.page_size != 0);
    if (b->n_rows && !p->lists.pages.mem && p->max_pages < all)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "attend: max_pages is %u and a lane may have %u pages", p->max_pages,
                               all);
    if (p->lists.pages.mem && p->max_pages > p->lists.capacity)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "attend: max_pages is %u and lists hold %u",
                               p->max_pages, p->lists.capacity);
    return TAMIS_OK;
}

static const char *matrix_refusal(tms_device *dev, const tms_attend *p) {
    const uint32_t dim = p->kv.head_dim, most = tms_cu(dev)->max_shared;
    if (p->kv.dtype == TAMIS_F32) return "the dtype is f32";
    if (CU_ATTEND_DECODE_SHARED(dim) > most || CU_ATTEND_TILE_SHARED(dim) > most)
        return "the keys on their way do not fit a block's shared memory";
    return NULL;
}

tamis_status tms_cu_attend(tms_device *dev, const tms_attend *p) {
    bool matrix;
    tamis_status status = check(dev, p);
    if (status == TAMIS_OK) status = tms_cu_choose(dev, "attend", matrix_refusal(dev, p), &matrix);
    if (status != TAMIS_OK) return status;
    const bool build = p->batch.n_rows == 0; /* all kernels of the shape, which compute nothing */
    const bool tiles = matrix && !p->lists.pages.mem && p->batch.max_tile_rows > 1;
    status = run_decode(dev, p, matrix, tiles && !build);
    if (status == TAMIS_OK && (tiles || (matrix && build))) status = run_tiles(dev, p);
    return status;
}
