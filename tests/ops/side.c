/* SPDX-License-Identifier: Apache-2.0 */
/* A side: the buffers of a case on one device, and the views of them that launches take. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* On the host. */
static uint64_t bytes_of(const check_buffer *b) {
    return b->count * check_type_size(b->type);
}

static uint64_t device_bytes(const check_data *data, check_id id) {
    return check_has_scales(data, id) ? check_quantised_bytes(data, id) : bytes_of(&data->buf[id]);
}

/* What the device holds before a launch; the caller frees it. */
static void *device_init(const check_data *data, check_id id) {
    const check_buffer *b = &data->buf[id];
    void *bytes = check_alloc(device_bytes(data, id));
    if (check_has_scales(data, id))
        check_quantised_encode(data, id, b->init, bytes);
    else if (id == BUF_KV && check_is_apart(data))
        check_apart_encode(data, bytes);
    else
        memcpy(bytes, b->init, bytes_of(b));
    return bytes;
}

static bool write_init(check_side *side, check_id id) {
    void *bytes = device_init(side->data, id);
    const bool ok = check_guarded_write(side, &side->mem[id], bytes);
    free(bytes);
    return ok;
}

static bool is_output(const check_buffer *b) {
    return b->role == ROLE_OUTPUT || b->role == ROLE_UPDATE;
}

bool check_side_open(check_side *side, tms_device *dev, const check_data *data) {
    memset(side, 0, sizeof *side);
    side->dev = dev;
    side->data = data;
    for (int id = 0; id < BUF_COUNT; id++) {
        const check_buffer *b = &data->buf[id];
        if (b->role == ROLE_ABSENT) continue;
        if (!check_guarded_alloc(side, &side->mem[id], device_bytes(data, (check_id)id)) ||
            !write_init(side, (check_id)id))
            return false;
        if (is_output(b)) side->result[id] = check_alloc(bytes_of(b));
    }
    return true;
}

void check_side_close(check_side *side) {
    for (int id = 0; id < BUF_COUNT; id++) {
        tms_device_free(side->dev, side->mem[id].mem);
        free(side->result[id]);
    }
    tms_device_free(side->dev, side->scratch.mem);
    memset(side, 0, sizeof *side);
}

bool check_side_reset(check_side *side) {
    for (int id = 0; id < BUF_COUNT; id++) {
        const check_buffer *b = &side->data->buf[id];
        if (is_output(b) && !write_init(side, (check_id)id)) return false;
    }
    return true;
}

static bool input_unchanged(check_side *side, check_id id) {
    void *was = device_init(side->data, id), *now = check_alloc(side->mem[id].bytes);
    bool ok = check_guarded_read(side, &side->mem[id], now, check_buffer_name(id));
    if (ok && memcmp(now, was, side->mem[id].bytes) != 0) {
        snprintf(side->why, sizeof side->why, "input %s was changed", check_buffer_name(id));
        ok = false;
    }
    free(was);
    free(now);
    return ok;
}

static bool read_output(check_side *side, check_id id) {
    const char *name = check_buffer_name(id);
    if (!check_has_scales(side->data, id))
        return check_guarded_read(side, &side->mem[id], side->result[id], name);
    void *bytes = check_alloc(side->mem[id].bytes);
    const bool ok = check_guarded_read(side, &side->mem[id], bytes, name);
    check_quantised_decode(side->data, id, bytes, side->result[id]);
    free(bytes);
    return ok;
}

static bool scratch_unharmed(check_side *side) {
    if (!side->scratch.mem) return true;
    void *body = check_alloc(side->scratch.bytes);
    bool ok = check_guarded_read(side, &side->scratch, body, "scratch");
    free(body);
    return ok;
}

bool check_side_read(check_side *side) {
    for (int id = 0; id < BUF_COUNT; id++) {
        const check_buffer *b = &side->data->buf[id];
        if (b->role == ROLE_INPUT && !input_unchanged(side, (check_id)id)) return false;
        if (is_output(b) && !read_output(side, (check_id)id)) return false;
    }
    return scratch_unharmed(side);
}

tms_ref check_ref(const check_side *side, check_id id, uint64_t index) {
    return check_guarded_ref(&side->mem[id], index * check_type_size(side->data->buf[id].type));
}

tms_ref check_scratch(check_side *side, uint64_t bytes) {
    check_guarded *g = &side->scratch;
    if (!g->mem || g->bytes != bytes) {
        tms_device_free(side->dev, g->mem);
        void *body = check_alloc(bytes);
        memset(body, 0xFF, bytes); /* NaN */
        if (!check_guarded_alloc(side, g, bytes) || !check_guarded_write(side, g, body)) {
            fprintf(stderr, "tamis-check: scratch: %s\n", side->why);
            exit(2);
        }
        free(body);
    }
    return check_guarded_ref(g, 0);
}

tms_kv check_kv(const check_side *side) {
    tms_kv kv = check_quantised_kv(side->data);
    kv.data = check_ref(side, BUF_KV, 0);
    if (check_is_apart(side->data)) check_apart_kv(side, &kv);
    kv.bounds = check_ref(side, BUF_BOUNDS, 0);
    return kv;
}

tms_batch check_batch(const check_side *side, check_rows rows) {
    const check_lanes *l = &side->data->lanes;
    const bool whole = rows.count == l->n_rows;
    tms_batch batch = {
        .n_rows = rows.count,
        .n_tiles = whole ? l->n_tiles : rows.count,
        .n_heads = l->n_kv_heads * l->group,
        .n_kv_heads = l->n_kv_heads,
        .tiles = check_ref(side, whole ? BUF_TILES : BUF_ALONE, 0),
        .row_seq = check_ref(side, BUF_ROW_SEQ, rows.first),
        .visible = check_ref(side, BUF_VISIBLE, (uint64_t)rows.first * l->n_kv_heads),
        .first = check_ref(side, BUF_FIRST, (uint64_t)rows.first * l->n_kv_heads),
        .table = check_ref(side, BUF_TABLE, 0),
        .seq_stride = l->seq_stride,
        .head_stride = l->head_stride,
        .max_tile_rows = whole && l->n_rows ? l->max_tile_rows : 1,
    };
    for (uint32_t r = rows.first; r < rows.first + rows.count; r++)
        for (uint32_t h = 0; h < l->n_kv_heads; h++) {
            const uint32_t visible = check_visible(side->data, r, h);
            const uint32_t seen = visible - check_first(side->data, r, h);
            if (visible > batch.max_visible) batch.max_visible = visible;
            if (seen > batch.max_seen) batch.max_seen = seen;
        }
    return batch;
}
