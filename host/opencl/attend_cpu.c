/* SPDX-License-Identifier: Apache-2.0 */
/* attend on an OpenCL CPU device: which rows take cl_kernels/attend_cpu.cl and which
 * cl_kernels/attend_rows_cpu.cl, and their launches. */
#include "host/opencl/opencl.h"

const char *tms_cl_cpu_shape_refusal(const tms_kv *kv, const tms_batch *batch) {
    const uint32_t dim = kv->head_dim, group = batch->n_heads / batch->n_kv_heads;
    if (dim != 64 && dim != 128 && dim != 256 && dim != 512)
        return "the head dim is not 64, 128, 256 or 512";
    if (group > TMS_CL_CPU_GROUP) return "more than 16 query heads share a KV head";
    if (!tms_channels_adjacent(kv)) return "channels of a row are not adjacent";
    return kv->page_size != 16 ? "the page size is not 16" : NULL;
}

const char *tms_cl_attend_cpu_refusal(const tms_attend *p) {
    return tms_cl_cpu_shape_refusal(&p->kv, &p->batch);
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* Pieces for each core if there are enough segments, so that one core ends soon after another. */
#define PIECES_A_CORE 8u

tms_cl_pieces tms_cl_pieces_of(const tms_device *dev, uint64_t lanes, uint32_t pages) {
    const uint32_t cores = dev->info.compute_units;
    const uint32_t most = pages < TMS_CL_SPLIT_PAGES ? pages : TMS_CL_SPLIT_PAGES;
    const uint32_t segments = (uint32_t)tms_divide_up(most, TMS_CL_SEGMENT_PAGES);
    tms_cl_pieces pieces = {1, segments};
    if (lanes == 0 || lanes > tms_cl_most_shared_lanes(cores) || segments < 2) return pieces;
    /* A piece begins with memory that was not prefetched: of one segment only for idle cores. */
    const uint32_t enough = (uint32_t)tms_divide_up(PIECES_A_CORE * cores, lanes);
    const uint32_t idle = (uint32_t)tms_divide_up(cores, lanes);
    uint32_t n = segments / 2 > idle ? segments / 2 : idle;
    n = n < enough ? n : enough;
    n = n < segments ? n : segments;
    pieces.segments = (uint32_t)tms_divide_up(segments, n);
    pieces.n = (uint32_t)tms_divide_up(segments, pieces.segments);
    return pieces;
}

/* The most pages that a row's pieces have between them: those that it sees, from the beginning of a
 * segment on. */
static uint32_t pages_in_pieces(const tms_attend *p) {
    const uint32_t pages =
        tms_batch_entries(&p->batch, p->kv.page_size) + TMS_CL_SEGMENT_PAGES - 1;
    return pages < p->max_pages ? pages : p->max_pages;
}

/* Floats that a KV head keeps of a segment: STATE of attend_cpu.clh. */
static uint64_t state_floats(const tms_attend *p) {
    return p->batch.n_heads / p->batch.n_kv_heads * (p->kv.head_dim + 32ull);
}

uint64_t tms_cl_pieces_bytes(const tms_device *dev, const tms_attend *p, uint64_t lanes) {
    const uint32_t shared = tms_cl_most_shared_lanes(dev->info.compute_units);
    const uint32_t pages = p->max_pages < TMS_CL_SPLIT_PAGES ? p->max_pages : TMS_CL_SPLIT_PAGES;
    const uint64_t segments = tms_divide_up(pages, TMS_CL_SEGMENT_PAGES);
    if (segments < 2) return 0; /* never divided */
    /* Pieces of a lane hold less than twice its segments. */
    return (lanes < shared ? lanes : shared) * 2 * segments * state_floats(p) * sizeof(float);
}

void tms_cl_attend_pieces(tms_cl_launch *l, const tms_attend *p, uint64_t lanes,
                          const tms_cl_pieces *pieces, tms_ref scratch) {
    const uint64_t kept = pieces->n > 1 ? lanes * pieces->n * pieces->segments : 0;
    tms_cl_optional(l, kept ? scratch : (tms_ref){0}, sizeof(cl_float), kept * state_floats(p));
    tms_cl_u32(l, pieces->n);
    tms_cl_u32(l, pieces->segments);
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* Both files are in one program, whose options are the same. */
static tms_cl_launch begin(tms_device *dev, const tms_attend *p, const char *file,
                           const char *kernel, const tms_write_rotated *write) {
    const tms_batch *b = &p->batch;
    tms_cl_launch l = tms_cl_begin(
        dev, file, kernel,
        "-DDTYPE=%d -DHEAD_DIM=%u -DPAGE_SIZE=%u -DGROUP=%u -DHIDING=%d%s%s%s%s%s%s", p->kv.dtype,
        p->kv.head_dim, p->kv.page_size, b->n_heads / b->n_kv_heads, p->batch.first.mem != NULL,
        tms_cl_logit_option(&p->logit), p->logits.mem ? " -DLOGITS=1" : "",
        write ? " -DWRITES=1" : "", tms_cl_layout_option(&p->kv), tms_cl_shape(dev),
        tms_cl_settings(dev, TAMIS_SETTING_OF_ATTEND, &p->kv, b->n_heads / b->n_kv_heads));
    tms_cl_gather(&l);
    tms_cl_kv(&l, &p->kv, b->n_rows);
    tms_cl_batch(&l, b);
    tms_cl_matrix(&l, &p->q, b->n_rows, (uint64_t)b->n_heads * p->kv.head_dim);
    if (write) tms_cl_own_rows(&l, write);
    return l;
}

/* The weights of observed_attend, from `values` on in attend_cpu.cl. */
static void set_weights(tms_cl_launch *l, const tms_observe *p, const tms_batch *b) {
    const tms_values values = p ? p->values : (tms_values){0};
    const uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads;
    tms_cl_optional(l, values.ref, sizeof(cl_float), lanes * values.stride);
    tms_cl_u64(l, values.stride);
    tms_cl_u32(l, p ? p->group : 0);
    tms_cl_u32(l, p && p->accumulate);
}

/* Rows one by one: every row, or only those that are a tile of their own. */
static tamis_status run_single(tms_device *dev, const tms_attend *p, const tms_cl_states *s,
                               const tms_observe *observe, const tms_write_rotated *write,
                               bool by_tile) {
    const tms_batch *b = &p->batch;
    tms_cl_launch l = begin(dev, p, "attend_cpu.cl", "attend_single", write);
    tms_cl_optional(&l, by_tile ? b->tiles : (tms_ref){0}, sizeof(cl_int), 2ull * b->n_tiles);
    tms_cl_u32(&l, b->n_tiles);
    tms_cl_attend_lists(&l, p);
    tms_cl_attend_logits(&l, p);
    if (p->logits.mem) set_weights(&l, observe, b);
    tms_cl_attend_states(&l, p, s);
    const uint64_t lanes =
        (uint64_t)b->n_kv_heads * s->n_splits * (by_tile ? b->n_tiles : b->n_rows);
    const tms_cl_pieces pieces = tms_cl_pieces_of(dev, lanes, pages_in_pieces(p));
    tms_cl_attend_pieces(&l, p, lanes, &pieces, s->pieces);
    return tms_cl_run_queue(&l, lanes * pieces.n);
}

/* Tiles of more than one row. */
static tamis_status run_tiles(tms_device *dev, const tms_attend *p, const tms_cl_states *s) {
    const tms_batch *b = &p->batch;
    tms_cl_launch l = begin(dev, p, "attend_rows_cpu.cl", "attend_tiles", NULL);
    tms_cl_optional(&l, b->tiles, sizeof(cl_int), 2ull * b->n_tiles);
    tms_cl_u32(&l, b->n_tiles);
    tms_cl_attend_states(&l, p, s);
    return tms_cl_run_queue(&l, (uint64_t)b->n_heads * s->n_splits * b->n_tiles);
}

/* One kernel processes rows that are a tile of their own, another larger tiles, which have no logits;
 * the bits of a row are the same in both. */
tamis_status tms_cl_attend_cpu(tms_device *dev, const tms_attend *p, const tms_cl_states *s,
                               const tms_observe *observe, const tms_write_rotated *write) {
    const bool tiles = !p->lists.pages.mem && !p->logits.mem && p->batch.max_tile_rows > 1;
    const tamis_status status = run_single(dev, p, s, observe, write, tiles);
    return status == TAMIS_OK && tiles ? run_tiles(dev, p, s) : status;
}
