/* SPDX-License-Identifier: Apache-2.0 */
/* take_lists: of a caller's lists the entries that are valid, ascending.
 * Contract: host/ops/, take_lists. What is not valid is skipped and counted. */
#include "host/reference/reference.h"

/* What take_lists reads and writes. */
typedef struct operands {
    const int32_t *visible, *first, *row_seq, *table, *raw, *raw_count;
    int32_t *lists, *count, *ids; /* ids may be absent */
    uint32_t *skipped;
} operands;

static operands view_operands(tms_views *views, const tms_take_lists *p) {
    const tms_batch *b = &p->batch;
    const uint64_t owners = (uint64_t)b->n_rows * b->n_kv_heads;
    operands o = {0};
    o.visible = tms_view_visible(views, b);
    o.first = tms_view_first(views, b);
    o.row_seq = tms_view(views, "row_seq", b->row_seq, 4ull * b->n_rows);
    o.table = tms_view_rest(views, "table", b->table);
    o.raw = tms_view(views, "raw lists", p->raw.pages, owners * p->raw.capacity * 4);
    o.raw_count = tms_view(views, "raw counts", p->raw.count, owners * 4);
    o.lists = tms_view(views, "lists", p->lists.pages, owners * p->lists.capacity * 4);
    o.count = tms_view(views, "counts", p->lists.count, owners * 4);
    o.ids = tms_view_optional(views, "ids", p->ids, owners * p->lists.capacity * 4);
    o.skipped = tms_view(views, "skipped", p->skipped, 4);
    return o;
}

/* Takes the list of a (row, KV head), and returns what was counted. */
static uint32_t take(const tms_take_lists *p, const operands *o, uint64_t owner) {
    const tms_batch *b = &p->batch;
    const uint64_t row = owner / b->n_kv_heads;
    const uint32_t head = (uint32_t)(owner % b->n_kv_heads), size = p->granularity;
    const int32_t *lane = tms_lane(o->table, b->seq_stride, b->head_stride, o->row_seq[row], head);
    const int32_t *raw = o->raw + owner * p->raw.capacity;
    int32_t *list = o->lists + owner * p->lists.capacity;
    const uint32_t visible = (uint32_t)o->visible[owner];
    const uint32_t end = (uint32_t)tms_divide_up(visible, size);
    /* 1. The count. */
    const int32_t said = o->raw_count[owner];
    const uint32_t n = said < 0                           ? 0
                       : (uint32_t)said > p->raw.capacity ? p->raw.capacity
                                                          : (uint32_t)said;
    uint32_t skipped = said < 0 || (uint32_t)said > p->raw.capacity, taken = 0;
    /* 2. The entries; no entry below `next` can be taken any more. */
    uint32_t next = tms_first_slot(o->first, owner, visible) / size;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t entry = (uint32_t)raw[i]; /* one below 0 is above all others */
        if (entry < next || entry >= end) {
            skipped++;
            continue;
        }
        list[taken] = raw[i];
        if (o->ids)
            o->ids[owner * p->lists.capacity + taken] =
                lane[entry / p->page_size] * (int32_t)p->page_slots +
                (int32_t)(entry % p->page_size);
        taken++;
        next = entry + 1;
    }
    o->count[owner] = (int32_t)taken;
    return skipped;
}

tamis_status tms_reference_take_lists(tms_device *dev, const tms_take_lists *p) {
    tms_views views = tms_views_begin(dev);
    if (p->batch.n_rows == 0) return views.status;
    const operands o = view_operands(&views, p);
    const uint64_t owners = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
    for (uint64_t i = 0; views.status == TAMIS_OK && i < owners; i++)
        *o.skipped += take(p, &o, i); /* 3. */
    return views.status;
}
