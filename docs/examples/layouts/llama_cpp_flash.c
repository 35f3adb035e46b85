/* SPDX-License-Identifier: Apache-2.0 */
/* llama.cpp's cache with flash attention, of one stream of N cells: of each layer a tensor of K and one of
 * V, both [N, H, D]. It has no pages; to tamis 16 consecutive cells are one, and a sequence has to fill
 * its cells in order.
 *   cc llama_cpp_flash.c $(pkg-config --cflags --libs tamis) -lm -o llama_cpp_flash && ./llama_cpp_flash */
#include "layouts.h"

/* In elements; N is a multiple of 256. */
enum { CELLS = MAX_TOKENS, CELL = KV_HEADS * DIM };

static row place(uint32_t layer, uint32_t page, uint32_t which, uint32_t head, uint32_t slot) {
    return (row){2 * layer + which, (page * PAGE + slot) * CELL + head * DIM, 1};
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
    values->page_stride = PAGE * CELL;
    values->head_stride = DIM;
    values->slot_stride = CELL;
}

int main(void) {
    const layout l = {.name = "llama.cpp, flash attention",
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
