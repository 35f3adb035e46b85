/* SPDX-License-Identifier: Apache-2.0 */
/* The cache of onnxruntime's GroupQueryAttention: of each layer a tensor of K and one of V, both
 * [batch, H, Smax, D]. It has no pages; to tamis 16 consecutive tokens are one. The length of a sequence
 * is its seqlens_k + 1.
 *   cc onnxruntime.c $(pkg-config --cflags --libs tamis) -lm -o onnxruntime && ./onnxruntime */
#include "layouts.h"

/* In elements. */
enum { HEAD = MAX_TOKENS * DIM, SEQUENCE = KV_HEADS * HEAD };
/* Page ids count pages of 16 rows through the tensor, from one sequence to the next. Only those in a
 * sequence's first head are used: the other heads are found behind them by head_stride. */
enum { SEQUENCE_PAGES = SEQUENCE / (PAGE * DIM) };

static uint32_t page_of(uint32_t sequence, uint32_t i) {
    return sequence * SEQUENCE_PAGES + i;
}

/* past_key and past_value of a layer. */
static row place(uint32_t layer, uint32_t page, uint32_t which, uint32_t head, uint32_t slot) {
    return (row){2 * layer + which, (uint64_t)page * PAGE * DIM + head * HEAD + slot * DIM, 1};
}

static void describe(const tamis_place *tensors_of, uint32_t layer, tamis_kv *kv,
                     tamis_kv_values *values) {
    kv->data = tensors_of[2 * layer + K];
    kv->layout = TAMIS_KV_STRIDES;
    kv->page_stride = PAGE * DIM;
    kv->head_stride = HEAD;
    kv->slot_stride = DIM;
    kv->values = values;
    values->data = tensors_of[2 * layer + V];
    values->page_stride = PAGE * DIM;
    values->head_stride = HEAD;
    values->slot_stride = DIM;
}

int main(void) {
    const layout l = {.name = "onnxruntime, GroupQueryAttention",
                      .n_sequences = SEQUENCES,
                      .n_pages = (SEQUENCES - 1) * SEQUENCE_PAGES + MAX_PAGES,
                      .n_tensors = 2 * LAYERS,
                      .elements = (uint64_t)SEQUENCES * SEQUENCE,
                      .page = page_of,
                      .place = place,
                      .describe = describe,
                      .list = list_table};
    return !serve(&l);
}
