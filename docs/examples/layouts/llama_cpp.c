/* SPDX-License-Identifier: Apache-2.0 */
/* llama.cpp's cache without flash attention, of one stream of N cells: of each layer a tensor of K
 * [N, H, D] and one of V, which is transposed: [H, D, N]. It has no pages; to tamis 16 consecutive cells
 * are one, and a sequence has to fill its cells in order. CUDA does not take it.
 *   cc llama_cpp.c $(pkg-config --cflags --libs tamis) -lm -o llama_cpp && ./llama_cpp */
#include "layouts.h"

/* In elements; N is a multiple of 256. */
enum { CELLS = MAX_TOKENS, CELL = KV_HEADS * DIM };

static row place(uint32_t layer, uint32_t page, uint32_t which, uint32_t head, uint32_t slot) {
    if (which == K) return (row){2 * layer, (page * PAGE + slot) * CELL + head * DIM, 1};
    return (row){2 * layer + V, head * DIM * CELLS + page * PAGE + slot, CELLS};
}

static void describe(const tamis_place *tensors_of, uint32_t layer, tamis_kv *kv,
                     tamis_kv_values *values) {
    kv->data = tensors_of[2 * layer + K];
    kv->layout = TAMIS_KV_STRIDES;
    kv->page_stride = PAGE * CELL;
    kv->head_stride = DIM;
    kv->slot_stride = CELL;
    kv->values = values;
    values->data = tensors_of[2 * layer + V];
    values->page_stride = PAGE;
    values->head_stride = DIM * CELLS;
    values->slot_stride = 1;
    values->channel_stride = CELLS;
}

int main(void) {
    const layout l = {.name = "llama.cpp, V transposed",
                      .n_sequences = 1,
                      .n_pages = CELLS / PAGE,
                      .n_tensors = 2 * LAYERS,
                      .elements = CELLS * CELL,
                      .page = consecutive_page,
                      .place = place,
                      .describe = describe,
                      .list = list_table};
    return !serve(&l);
}
