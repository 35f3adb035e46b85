/* SPDX-License-Identifier: Apache-2.0 */
/* copy_pages: blocks to other blocks of one memory; write_table: data[index] = value.
 * contract: host/ops/; meaning: host/reference/pages.c.
 * Work split: a thread owns 16 bytes of one block; one entry of the table. */
#include "common.cuh"

KERNEL(copy_pages, 256, cu_copy_pages_args) {
    const uint64_t pieces = a.bytes / 16;
    FOR_EACH_ITEM(i, a.n * pieces) {
        const int32_t *pair = a.pairs + i / pieces * 2;
        unsigned char *piece = (unsigned char *)a.data + i % pieces * 16;
        store_16(piece + pair[1] * a.bytes, load_16(piece + pair[0] * a.bytes));
    }
}

KERNEL(write_table, 256, cu_write_table_args) {
    FOR_EACH_ITEM(i, a.n) {
        a.data[a.entries[2 * i]] = a.entries[2 * i + 1];
    }
}
