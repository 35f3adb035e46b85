/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of exact sizes, and K and V in any layout, right or wrong. */
#include "tests/fuzz/view_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES (1u << 22)

uint32_t fuzz_take(fuzz *f, uint32_t n) {
    return f->at < f->end ? *f->at++ % n : 0;
}

bool fuzz_rarely(fuzz *f, uint32_t n) {
    return f->at < f->end && fuzz_take(f, n) == n - 1;
}

uint64_t fuzz_stride(fuzz *f, uint64_t right) {
    const uint64_t strides[] = {0,
                                1,
                                right - 1,
                                right + 1,
                                2 * right,
                                right / 2,
                                fuzz_take(f, 256),
                                UINT32_MAX,
                                UINT64_MAX,
                                UINT64_MAX / 2 + 1};
    return strides[fuzz_take(f, sizeof strides / sizeof *strides)];
}

tamis_buffer *fuzz_room(fuzz *f, uint64_t bytes) {
    if (bytes == 0 || bytes > MOST_BYTES) return NULL;
    assert_true(f->n_buffers < MAX_BUFFERS);
    void **memory = &f->memory[f->n_buffers];
    tamis_buffer **buffer = &f->buffers[f->n_buffers++];
    assert_int_equal(posix_memalign(memory, 64, bytes), 0);
    memset(*memory, 0xff, bytes);
    OK(tamis_buffer_wrap_host(f->context, *memory, bytes, buffer, &test_error));
    assert_ptr_equal(tamis_buffer_data(*buffer), *memory);
    return *buffer;
}

tamis_place fuzz_send(fuzz *f, const int32_t *host, uint64_t n) {
    tamis_place place = {.buffer = fuzz_room(f, n * sizeof *host)};
    if (place.buffer) memcpy(tamis_buffer_data(place.buffer), host, n * sizeof *host);
    return place;
}

void fuzz_drop(fuzz *f) {
    const uint32_t last = --f->n_buffers;
    tamis_buffer_destroy(&f->buffers[last]);
    free(f->memory[last]);
}

void fuzz_close(fuzz *f) {
    while (f->n_buffers)
        fuzz_drop(f);
}

bool fuzz_expect(tamis_status status, answer wanted, const char *call) {
    if (getenv("FUZZ_TRACE"))
        fprintf(stderr, "%.60s: %s %s\n", call, tamis_status_name(status), test_error.text);
    const bool known = status == TAMIS_OK || status == TAMIS_E_ARGUMENT ||
                       status == TAMIS_E_UNSUPPORTED || status == TAMIS_E_NO_MEMORY ||
                       status == TAMIS_E_STATE;
    const bool right = wanted == EITHER || (status == TAMIS_OK) == (wanted == TAKEN);
    const bool said =
        status == TAMIS_OK || (test_error.status == status && test_error.text[0] != 0);
    if (!known || !right || !said)
        fail_msg("%s: %s \"%s\"; it was to be %s", call, tamis_status_name(status), test_error.text,
                 wanted == TAKEN     ? "taken"
                 : wanted == REFUSED ? "refused"
                                     : "answered");
    return status == TAMIS_OK;
}

/* ---- Layouts --------------------------------------------------------------------------------- */

/* Where the strides of a layout lead, in full. */
typedef struct strides {
    uint64_t page, head, slot, channel, value;
} strides;

static strides strides_of(const layer *l) {
    const tamis_kv *kv = &l->kv;
    const uint64_t heads = kv->layout == TAMIS_KV_OWN ? 1 : l->n_kv_heads;
    const uint64_t rows = (uint64_t)kv->page_size * kv->head_dim * heads;
    const uint64_t channel = kv->channel_stride ? kv->channel_stride : 1;
    switch (kv->layout) {
    case TAMIS_KV_OWN:
        return (strides){2 * rows, 0, kv->head_dim, 1, rows};
    case TAMIS_KV_NHD:
        return (strides){2 * rows, kv->head_dim, heads * kv->head_dim, 1, rows};
    case TAMIS_KV_HND:
        return (strides){2 * rows, (uint64_t)kv->page_size * kv->head_dim, kv->head_dim, 1, rows};
    default:
        return (strides){kv->page_stride, kv->head_stride, kv->slot_stride, channel,
                         kv->value_offset};
    }
}

static strides strides_of_values(const layer *l) {
    const tamis_kv_values *v = &l->values;
    return (strides){v->page_stride, v->head_stride, v->slot_stride,
                     v->channel_stride ? v->channel_stride : 1, 0};
}

/* Bytes that rows take; of any size, as a sum of 128 bits tells. */
static uint64_t bytes_of(const layer *l, const strides *s, uint64_t offset) {
    const tamis_kv *kv = &l->kv;
    unsigned __int128 n = s->value + (unsigned __int128)1;
    n += (unsigned __int128)(kv->n_pages - 1) * s->page;
    n += (unsigned __int128)(l->n_kv_heads - 1) * s->head;
    n += (unsigned __int128)(kv->page_size - 1) * s->slot;
    n += (unsigned __int128)(kv->head_dim - 1) * s->channel;
    n = n * tamis_dtype_size(kv->dtype) + offset;
    return n > UINT64_MAX ? UINT64_MAX : (uint64_t)n;
}

/* Memory of this size, or less; a layout for which there is none must be refused. */
static tamis_place place_of(fuzz *f, layer *l, uint64_t bytes, uint64_t offset) {
    const uint64_t less = fuzz_rarely(f, 24) ? 1 + fuzz_take(f, 64) : 0;
    tamis_place place = {fuzz_room(f, bytes > less ? bytes - less : bytes), offset};
    if (less || !place.buffer) l->wanted = REFUSED;
    if (!place.buffer) place.buffer = fuzz_room(f, 4096);
    return place;
}

/* One of the strides, or of what goes with them, becomes another. */
static void disturb(fuzz *f, layer *l) {
    tamis_kv *kv = &l->kv;
    tamis_kv_values *v = &l->values;
    uint64_t *one_of[] = {&kv->page_stride,    &kv->head_stride,   &kv->slot_stride,
                          &kv->channel_stride, &v->page_stride,    &v->head_stride,
                          &v->slot_stride,     &v->channel_stride, &kv->value_offset};
    uint64_t *stride = one_of[fuzz_take(f, sizeof one_of / sizeof *one_of)];
    *stride = fuzz_stride(f, *stride);
    l->wanted = EITHER;
}

static void draw_strides(fuzz *f, layer *l) {
    tamis_kv *kv = &l->kv;
    const uint64_t dim = kv->head_dim, size = kv->page_size, heads = l->n_kv_heads;
    const uint32_t form = fuzz_take(f, 4);
    kv->layout = TAMIS_KV_STRIDES;
    *kv = (tamis_kv){.dtype = kv->dtype,
                     .layout = TAMIS_KV_STRIDES,
                     .page_size = kv->page_size,
                     .head_dim = kv->head_dim,
                     .n_pages = kv->n_pages,
                     .page_stride = 2 * size * heads * dim,
                     .head_stride = 2 * dim,
                     .slot_stride = 2 * heads * dim,
                     .value_offset = dim};
    if (form == 0) return; /* K and V in one row */
    kv->page_stride = size * heads * dim;
    kv->head_stride = dim;
    kv->slot_stride = heads * dim;
    kv->value_offset = form == 1 ? kv->n_pages * kv->page_stride : 0; /* in two halves */
    if (form == 1) return;
    kv->values = &l->values;
    l->values = (tamis_kv_values){
        .page_stride = size * heads * dim, .head_stride = size * dim, .slot_stride = dim};
    if (form == 2) return; /* V apart; or transposed */
    l->values = (tamis_kv_values){.page_stride = size,
                                  .head_stride = dim * size * kv->n_pages,
                                  .slot_stride = 1,
                                  .channel_stride = size * kv->n_pages};
}

static void draw_bounds(fuzz *f, layer *l) {
    tamis_kv *kv = &l->kv;
    const uint64_t pair = 2 * kv->head_dim, heads = l->n_kv_heads;
    uint64_t page = kv->layout == TAMIS_KV_OWN ? pair : pair * heads;
    uint64_t head = kv->layout == TAMIS_KV_OWN ? 0 : pair;
    if (kv->layout == TAMIS_KV_STRIDES) {
        if (fuzz_rarely(f, 8)) page = fuzz_stride(f, page), l->wanted = EITHER;
        if (fuzz_rarely(f, 8)) head = fuzz_stride(f, head), l->wanted = EITHER;
        kv->bounds_page_stride = page;
        kv->bounds_head_stride = head;
    }
    unsigned __int128 n = pair + (unsigned __int128)(kv->n_pages - 1) * page;
    n = (n + (unsigned __int128)(heads - 1) * head) * tamis_dtype_size(kv->dtype);
    kv->bounds = place_of(f, l, n > UINT64_MAX ? UINT64_MAX : (uint64_t)n, 0);
}

static void draw_places(fuzz *f, layer *l) {
    const uint64_t offset = fuzz_take(f, 4) == 3 ? 64ull * fuzz_take(f, 4) : 0;
    const strides keys = strides_of(l), values = strides_of_values(l);
    l->kv.data = place_of(f, l, bytes_of(l, &keys, offset), offset);
    if (l->kv.values) l->values.data = place_of(f, l, bytes_of(l, &values, 0), 0);
}

static void draw_layout(fuzz *f, layer *l) {
    static const tamis_kv_layout layouts[] = {TAMIS_KV_NHD, TAMIS_KV_HND, TAMIS_KV_STRIDES,
                                              TAMIS_KV_STRIDES};
    l->wanted = TAKEN;
    l->kv.layout = layouts[fuzz_take(f, 4)];
    if (l->kv.layout == TAMIS_KV_STRIDES) draw_strides(f, l);
    if (fuzz_rarely(f, 4)) disturb(f, l);
    if (fuzz_rarely(f, 16)) {
        l->kv.layout = (tamis_kv_layout)fuzz_take(f, 6);
        l->wanted = (int)l->kv.layout > TAMIS_KV_STRIDES ? REFUSED : EITHER;
    }
    draw_places(f, l);
}

void layer_draw(fuzz *f, layer *l, uint32_t n_kv_heads, bool with_bounds) {
    *l = (layer){.n_kv_heads = n_kv_heads};
    l->kv = (tamis_kv){.dtype = (tamis_dtype)fuzz_take(f, 3),
                       .page_size = 1u << fuzz_take(f, 9),
                       .head_dim = fuzz_take(f, 4) == 3 ? 80 : 64,
                       .n_pages = 1 + fuzz_take(f, MAX_PAGES)};
    while (l->kv.n_pages * l->kv.page_size > 512)
        l->kv.page_size /= 2;
    draw_layout(f, l);
    if (with_bounds) draw_bounds(f, l);
    if (!fuzz_rarely(f, 12)) return;
    uint32_t *one_of[] = {&l->kv.page_size, &l->kv.head_dim, &l->kv.n_pages, &l->kv.reserved32,
                          (uint32_t *)&l->kv.dtype};
    *one_of[fuzz_take(f, 5)] += 1 + fuzz_take(f, 128);
    l->wanted = l->kv.reserved32 || l->kv.page_size & (l->kv.page_size - 1) ? REFUSED : EITHER;
}

void layer_draw_like(fuzz *f, layer *l, const layer *first) {
    *l = (layer){.n_kv_heads = first->n_kv_heads};
    l->kv = (tamis_kv){.dtype = first->kv.dtype,
                       .page_size = first->kv.page_size,
                       .head_dim = first->kv.head_dim,
                       .n_pages = first->kv.n_pages};
    draw_layout(f, l);
}

static void put(const tamis_kv *kv, const tamis_place *place, uint64_t at) {
    static const uint16_t halves[] = {[TAMIS_F16] = 0x3800, [TAMIS_BF16] = 0x3f00};
    const float held = HELD;
    uint8_t *to = (uint8_t *)tamis_buffer_data(place->buffer) + place->offset;
    if (kv->dtype == TAMIS_F32)
        memcpy(to + at * sizeof held, &held, sizeof held);
    else
        memcpy(to + at * sizeof *halves, &halves[kv->dtype], sizeof *halves);
}

void layer_hold(layer *l, uint32_t page, uint32_t slot) {
    const strides keys = strides_of(l), values = strides_of_values(l);
    for (uint64_t head = 0; head < l->n_kv_heads; head++)
        for (uint64_t c = 0; c < l->kv.head_dim; c++) {
            const uint64_t key =
                page * keys.page + head * keys.head + slot * keys.slot + c * keys.channel;
            put(&l->kv, &l->kv.data, key);
            if (l->kv.values)
                put(&l->kv, &l->values.data,
                    page * values.page + head * values.head + slot * values.slot +
                        c * values.channel);
            else
                put(&l->kv, &l->kv.data, key + keys.value);
        }
}
