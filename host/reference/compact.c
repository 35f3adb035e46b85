/* SPDX-License-Identifier: Apache-2.0 */
/* compact: moves the kept slots of lanes to the front of a page list:
 *   slot j of `to` = the j-th slot below visible that the entries of the lane's list name.
 * copy_slots: slot to[row][h] of a lane = slot from[row][h] of the same or of another lane.
 * Contract: host/ops/, compact and copy_slots. In place a kept slot never moves to a later slot (j is at
 * most its old slot), so that copying in order reads every slot before it is written. */
#include "host/reference/reference.h"

#include <string.h>

/* The memory of slots: K and V, and the planes; a plane that is absent is NULL. */
typedef struct slots {
    char *data;
    int32_t *positions, *scores; /* as bits */
} slots;

/* A slot, and the page ids of its lane. */
typedef struct place {
    const int32_t *pages;
    uint32_t slot;
} place;

static slots view_slots(tms_views *views, const tms_kv *kv, const tms_planes *planes) {
    slots s = {.data = tms_view_rest(views, "kv data", kv->data)};
    if (planes->positions.mem)
        s.positions = tms_view_rest(views, "plane of positions", planes->positions);
    if (planes->scores.mem) s.scores = tms_view_rest(views, "plane of scores", planes->scores);
    return s;
}

static void copy_slot(const tms_kv *kv, const slots *s, uint32_t head, place from, place to) {
    const tms_row k = tms_slot_at(kv, from.pages, head, from.slot);
    const tms_row to_k = tms_slot_at(kv, to.pages, head, to.slot);
    const uint64_t source = tms_plane_at(from.pages, kv->page_size, from.slot);
    const uint64_t target = tms_plane_at(to.pages, kv->page_size, to.slot);
    if (k.page == to_k.page && k.slot == to_k.slot) return;
    tms_copy_slot(kv, s->data, to_k, k);
    tms_copy_slot(kv, s->data, tms_value_of(kv, to_k), tms_value_of(kv, k));
    if (s->positions) s->positions[target] = s->positions[source];
    if (s->scores) s->scores[target] = s->scores[source];
}

/* ---- compact --------------------------------------------------------------------------------- */

/* One (item, KV head): its page ids now and to be, its list. */
typedef struct lane {
    const int32_t *pages, *to, *list;
    uint32_t head, visible, count;
} lane;

/* The old slot of the j-th kept slot; UINT64_MAX if there are fewer. */
static uint64_t source_of(const tms_compact *p, const lane *l, uint64_t j) {
    if (j / p->granularity >= l->count) return UINT64_MAX;
    const uint64_t slot = (uint64_t)l->list[j / p->granularity] * p->granularity;
    return slot + j % p->granularity < l->visible ? slot + j % p->granularity : UINT64_MAX;
}

static void check_lane(tms_views *views, const tms_compact *p, const lane *l) {
    int64_t before = -1;
    tms_views_require(views, l->count <= p->lists.capacity, "compact: entries of a list",
                      (int32_t)l->count);
    for (uint32_t i = 0; views->status == TAMIS_OK && i < l->count; i++) {
        tms_views_require(views, l->list[i] > before, "compact: a list does not ascend at entry",
                          l->list[i]);
        before = l->list[i];
    }
}

static void compact_lane(tms_views *views, const tms_compact *p, const slots *s, const lane *l) {
    const uint64_t room = p->to_stride * p->kv.page_size;
    check_lane(views, p, l);
    for (uint64_t j = 0; views->status == TAMIS_OK; j++) {
        /* 1. The slot that goes to slot j. */
        const uint64_t from = source_of(p, l, j);
        if (from == UINT64_MAX) break;
        tms_views_require(views, j < room, "compact: more slots are kept than `to` has room for",
                          (int64_t)room);
        if (views->status != TAMIS_OK) break;
        /* 2. Its K, V and planes. */
        copy_slot(&p->kv, s, l->head, (place){l->pages, (uint32_t)from},
                  (place){l->to, (uint32_t)j});
    }
}

tamis_status tms_reference_compact(tms_device *dev, const tms_compact *p) {
    const tms_batch *batch = &p->batch;
    const uint32_t n = batch->n_rows, heads = batch->n_kv_heads;
    const uint64_t lanes = (uint64_t)n * heads, capacity = p->lists.capacity;
    tms_views views = tms_views_begin(dev);
    if (views.status != TAMIS_OK || n == 0) return views.status;
    const slots s = view_slots(&views, &p->kv, &p->planes);
    const int32_t *visible = tms_view_visible(&views, batch);
    const int32_t *row_seq = tms_view(&views, "row_seq", batch->row_seq, (uint64_t)n * 4);
    const int32_t *table = tms_view_rest(&views, "table", batch->table);
    const int32_t *list = tms_view(&views, "lists", p->lists.pages, lanes * capacity * 4);
    const int32_t *count = tms_view(&views, "counts", p->lists.count, lanes * 4);
    const int32_t *to = tms_view(&views, "to", p->to, lanes * p->to_stride * 4);
    for (uint64_t i = 0; views.status == TAMIS_OK && i < lanes; i++) {
        const uint32_t head = (uint32_t)(i % heads);
        const lane l = {.pages = tms_lane(table, batch->seq_stride, batch->head_stride,
                                          row_seq[i / heads], head),
                        .to = to + i * p->to_stride,
                        .list = list + i * capacity,
                        .head = head,
                        .visible = (uint32_t)visible[i],
                        .count = (uint32_t)count[i]};
        compact_lane(&views, p, &s, &l);
    }
    return views.status;
}

/* ---- copy_slots ------------------------------------------------------------------------------ */

tamis_status tms_reference_copy_slots(tms_device *dev, const tms_copy_slots *p) {
    const tms_batch *b = &p->batch;
    const uint64_t n = b->n_rows, heads = b->n_kv_heads;
    tms_views views = tms_views_begin(dev);
    if (views.status != TAMIS_OK || n == 0) return views.status;
    const slots s = view_slots(&views, &p->kv, &p->planes);
    const int32_t *table = tms_view_rest(&views, "table", b->table);
    const int32_t *from_seq = tms_view(&views, "row_seq", b->row_seq, n * 4);
    const int32_t *to_seq = tms_view(&views, "to_seq", p->to_seq, n * 4);
    const int32_t *from = tms_view(&views, "from", p->from, n * heads * 4);
    const int32_t *to = tms_view(&views, "to", p->to, n * heads * 4);
    if (views.status != TAMIS_OK) return views.status;
    for (uint64_t i = 0; i < n * heads; i++) {
        const uint64_t row = i / heads;
        const uint32_t head = (uint32_t)(i % heads);
        if (from[i] < 0 || to[i] < 0) continue;
        /* 1. Both slots' places. */
        const place source = {tms_lane(table, b->seq_stride, b->head_stride, from_seq[row], head),
                              (uint32_t)from[i]};
        const place target = {tms_lane(table, b->seq_stride, b->head_stride, to_seq[row], head),
                              (uint32_t)to[i]};
        /* 2. K, V and planes. */
        copy_slot(&p->kv, &s, head, source, target);
    }
    return TAMIS_OK;
}
