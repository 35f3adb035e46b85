/* SPDX-License-Identifier: Apache-2.0 */
/* Views: a plan over K and V that an engine keeps and fills itself. The engine's memory is read where
 * it lies; what the library has of its own are the bounds of pages. Selections work as on a cache of
 * the library's. Whatever would write K and V does not: the engine does.
 *
 * A step over a view is
 *   tamis_plan_view_begin → for each layer: the engine writes K and V of the step's rows, then
 *   tamis_plan_attend → tamis_plan_step_end. */
#ifndef TAMIS_VIEW_H
#define TAMIS_VIEW_H

#include <tamis/ops.h>
#include <tamis/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tamis_view_params {
    uint32_t n_layers, n_heads, n_kv_heads;
    tamis_bounds_dtype bounds_dtype;
    tamis_bounds bounds;
    /* Host memory, [n_layers], read by the call. Where K and V of each layer lie; bounds must be
     * absent, and dtype, page_size, head_dim and n_pages those of the first layer. A page id stands for
     * a page of every layer. `bounds` and layers of which V lies apart: as in tamis/ops.h. */
    const tamis_kv *layers;
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_view_params;

/* Makes a view, and takes memory for the bounds of n_pages pages of every layer and KV head: of each
 * page 2·head_dim elements. It is destroyed by tamis_cache_destroy, and plans are made on it by
 * tamis_plan_create. Of the calls on caches those that hold sequences answer E_UNSUPPORTED
 * (tamis_cache_add, tamis_plan_restore), and so do tamis_cache_set_bounds, and tamis_plan_create with an
 * eviction, with load_dtypes, or with one of the flags TREES, VERIFY, GIVE_BACK, ROTATED and ROW_MASSES.
 *
 * Ownership: the buffers of K and V stay the caller's, and must live until the view and its plans are
 * destroyed, and what is enqueued has run. The library does not write to them. Thread-safety: as the
 * context. Errors: E_ARGUMENT, E_UNSUPPORTED (a shape or a layout that the device does not take), both
 * with the layer and the value; E_NO_MEMORY, E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_view_create(tamis_context *context,
                                                          const tamis_view_params *params,
                                                          tamis_cache **out, tamis_error *error);

/* Computes the bounds of pages in every layer, from all page_size keys of each: for full pages that no
 * step has filled, such as those that the engine has loaded. pages: host memory, [n], each below the
 * view's n_pages. Enqueues. Errors: E_ARGUMENT (NULL, no view, a page id, with its index), E_STATE (a step
 * on the view is open), E_NO_MEMORY, E_DEVICE: the call may be repeated. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_view_bound_pages(tamis_cache *view,
                                                               const int32_t *pages, uint32_t n,
                                                               tamis_error *error);

/* The sequences of a step, with their pages in one of two forms; all in host memory, read by the call.
 *   dense  page i of sequence b is table[b·table_stride + i]; `lengths` says how many count;
 *   CSR    its pages are indices[indptr[b]] to indices[indptr[b+1] - 1], of which the last one has
 *          last_page_len[b] slots, from 1 to page_size; a sequence has a page at least.
 * With a page_size of 1 a page is a slot. Lengths count the step's rows, which are the last ones. */
typedef struct tamis_view_step {
    uint32_t count; /* sequences */
    int exact;      /* as in tamis_step */
    /* As in tamis_step: a mixed step; sequences that are not exact come first. */
    uint32_t exact_from;
    uint32_t reserved32;     /* 0, else E_ARGUMENT */
    const uint32_t *rows;    /* [count]; NULL: one each */
    const uint32_t *lengths; /* [count], dense */
    const int32_t *table;    /* [count][table_stride], dense */
    uint64_t table_stride;
    const int32_t *indptr, *indices,
        *last_page_len;   /* [count + 1], [indptr[count]], [count], CSR */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_view_step;

/* Opens a step on a plan over a view; afterwards as behind tamis_plan_step_begin. tamis_plan_attend of a
 * layer reads what the engine has written to it before, in the order of the context's queue, and first
 * computes the bounds of the pages that the step's rows have filled; for layers that are not attended
 * tamis_plan_step_end does that. tamis_plan_write and its like answer E_UNSUPPORTED. A page list that is
 * like that of the same place in the step before is not sent again. Rows that a sequence brings again, since
 * the engine has given up their step, bound their pages again.
 * Errors: E_ARGUMENT (no view; both forms or neither; a page id that is not below n_pages; a length below
 * the sequence's rows, above max_context or above what table_stride holds; an indptr that falls; a
 * last_page_len), with the sequence and the value; E_STATE (a step is open), E_NO_MEMORY, E_DEVICE. Then
 * no step is open. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_view_begin(tamis_plan *plan,
                                                              const tamis_view_step *step,
                                                              tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
