/* SPDX-License-Identifier: Apache-2.0 */
/* copy_pages: blocks to other blocks of one memory; write_table: data[index] = value.
 * contract: host/ops/; meaning: host/reference/pages.c.
 * Work split: a work-item owns 16 bytes of one block; or one entry of the table. */
#include "common.clh"

__kernel GROUP_OF(WG_SIZE) void copy_pages(REF_PARAMS(uint, data), uint block_words, uint n,
                                           REF_PARAMS(const int, pairs)) {
    const uint quads = block_words / 4;
    FOR_EACH_ITEM(i, n * quads) {
        const int2 pair = vload2(i / quads, pairs + pairs_offset);
        const uint word = i % quads * 4;
        __global uint *block = data + data_offset + word;
        vstore4(vload4(0, block + (ulong)pair.x * block_words), 0,
                block + (ulong)pair.y * block_words);
    }
}

__kernel GROUP_OF(WG_SIZE) void write_table(REF_PARAMS(int, data), uint n,
                                            REF_PARAMS(const int, entries)) {
    FOR_EACH_ITEM(i, n) {
        const int2 entry = vload2(i, entries + entries_offset);
        data[data_offset + (ulong)entry.x] = entry.y;
    }
}
