/* SPDX-License-Identifier: Apache-2.0 */
/* K and V that lie apart, of pages that all KV heads share. On the host a case has them as NHD; on a
 * device K takes the first half of the buffer and V the second:
 *   halves  both [page][slot][head][dim];
 *   apart   K so, V [page][head][slot][dim];
 *   turned  K [page][head][dim][slot], V [head][dim][page][slot];
 *   spread  both [page][head][dim][slot], so that V is not apart. */
#include "check.h"

#include <string.h>

bool check_is_apart(const check_data *data) {
    return check_get(data, KEY_LAYOUT) >= LAYOUT_HALVES;
}

/* Strides of one side in elements. */
static tms_apart strides_of(const check_data *data, bool value) {
    const uint64_t d = data->lanes.kv.head_dim, s = data->lanes.kv.page_size;
    const uint64_t h = data->lanes.n_kv_heads, n = data->lanes.n_pages;
    const check_layout layout = (check_layout)check_get(data, KEY_LAYOUT);
    const tms_apart nhd = {.page_stride = s * h * d, .head_stride = d, .slot_stride = h * d};
    const tms_apart hnd = {.page_stride = h * s * d, .head_stride = s * d, .slot_stride = d};
    const tms_apart keys = {
        .page_stride = h * d * s, .head_stride = d * s, .slot_stride = 1, .channel_stride = s};
    const tms_apart values = {
        .page_stride = s, .head_stride = d * n * s, .slot_stride = 1, .channel_stride = n * s};
    if (layout == LAYOUT_SPREAD) return keys;
    if (layout == LAYOUT_TURNED) return value ? values : keys;
    return layout == LAYOUT_APART && value ? hnd : nhd;
}

static uint64_t half_of(const check_data *data) {
    return data->buf[BUF_KV].count / 2;
}

void check_apart_encode(const check_data *data, void *to) {
    const check_lanes *l = &data->lanes;
    const size_t size = check_type_size(l->kv.dtype);
    for (uint32_t value = 0; value < 2; value++) {
        const tms_apart at = strides_of(data, value);
        for (uint64_t i = 0; i < (uint64_t)l->n_pages * l->n_kv_heads * l->kv.page_size; i++) {
            const uint32_t slot = (uint32_t)(i % l->kv.page_size);
            const uint32_t head = (uint32_t)(i / l->kv.page_size % l->n_kv_heads);
            const uint32_t page = (uint32_t)(i / l->kv.page_size / l->n_kv_heads);
            const uint64_t from =
                check_key_row(data, page, head, slot) + (value ? l->kv.value_offset : 0);
            const uint64_t row = value * half_of(data) + page * at.page_stride +
                                 head * at.head_stride + slot * at.slot_stride;
            for (uint32_t d = 0; d < l->kv.head_dim; d++)
                memcpy((char *)to + (row + d * (at.channel_stride ? at.channel_stride : 1)) * size,
                       (const char *)check_init(data, BUF_KV) + (from + d) * size, size);
        }
    }
}

void check_apart_kv(const check_side *side, tms_kv *kv) {
    const tms_apart keys = strides_of(side->data, false);
    kv->page_stride = keys.page_stride;
    kv->head_stride = keys.head_stride;
    kv->slot_stride = keys.slot_stride;
    kv->channel_stride = keys.channel_stride;
    kv->value_offset = half_of(side->data);
    if (check_get(side->data, KEY_LAYOUT) == LAYOUT_SPREAD) return;
    kv->value_offset = 0;
    kv->apart = strides_of(side->data, true);
    kv->apart.data = check_ref(side, BUF_KV, half_of(side->data));
}
