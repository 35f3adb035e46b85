/* SPDX-License-Identifier: Apache-2.0 */
/* vLLM's cache (from mid 2026): all layers in one tensor, logically [L, B, H, N, C], where N are the
 * slots of a block and C = 2·D holds the K and the V of a token and head side by side. In its default
 * order a block is [N][H][C]. Blocks are listed as block_table and seq_lens.
 *   cc vllm.c $(pkg-config --cflags --libs tamis) -lm -o vllm && ./vllm */
#include "layouts.h"

enum { BLOCKS = SEQUENCES * MAX_PAGES };
/* In elements. */
enum { HEAD = 2 * DIM, TOKEN = KV_HEADS * HEAD, BLOCK = PAGE * TOKEN };
#define LAYER ((uint64_t)BLOCKS * BLOCK)

static row place(uint32_t layer, uint32_t page, uint32_t which, uint32_t head, uint32_t slot) {
    return (row){0, layer * LAYER + page * BLOCK + slot * TOKEN + head * HEAD + which * DIM, 1};
}

static void describe(const tamis_place *all, uint32_t layer, tamis_kv *kv,
                     tamis_kv_values *values) {
    (void)values; /* V lies behind K */
    kv->data = all[0];
    kv->data.offset += layer * LAYER * sizeof(half);
    kv->layout = TAMIS_KV_STRIDES;
    kv->page_stride = BLOCK;
    kv->slot_stride = TOKEN;
    kv->head_stride = HEAD;
    kv->value_offset = DIM;
}

/* block_table [request][most blocks] and seq_lens. */
static void list(tamis_view_step *step) {
    static int32_t block_table[SEQUENCES][MAX_PAGES];
    static uint32_t seq_lens[SEQUENCES];
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        seq_lens[s] = lengths[s];
        for (uint32_t i = 0; i * PAGE < seq_lens[s]; i++)
            block_table[s][i] = (int32_t)scattered_page(s, i);
    }
    step->table = &block_table[0][0];
    step->table_stride = MAX_PAGES;
    step->lengths = seq_lens;
}

int main(void) {
    const layout l = {.name = "vLLM",
                      .n_sequences = SEQUENCES,
                      .n_pages = BLOCKS,
                      .n_tensors = 1,
                      .elements = LAYERS * LAYER,
                      .page = scattered_page,
                      .place = place,
                      .describe = describe,
                      .list = list};
    return !serve(&l);
}
