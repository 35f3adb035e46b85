/* SPDX-License-Identifier: Apache-2.0 */
/* value_norm on a CPU, by the output projection: the mean over the group of
 * Σ_o |Σ_c w[o][head*HEAD_DIM + c]·v_s[c]|.
 * contract: host/ops/; meaning: host/reference/value.c.
 * Work split: an item of the queue is SLOTS slots of one (item, KV head). Their values are
 * transposed, so that a vector has 16 slots, and stay in the first-level cache; OUTPUTS rows of w
 * are widened and multiplied with all of them. A sum is formed channel by channel, whatever the
 * shape. */
#include "cpu.clh"

#ifndef WEIGHT
#define WEIGHT 0 /* tamis_dtype of w */
#endif
#define SIDES 2 /* vectors of slots */
#define SLOTS (16 * SIDES)
#if WIDE
#define OUTPUTS 8
#else
#define OUTPUTS 2
#endif

#if WEIGHT == 0
typedef float weight;
#else
typedef ushort weight;
#endif
static inline float16 weight16(__global const weight *p) {
#if WEIGHT == 0
    return load_f32(p);
#elif WEIGHT == 1
    return widen_half16(p);
#else
    return as_float16(convert_uint16(*(__global const ushort16_at2 *)p) << 16);
#endif
}

/* sums[j] = Σ_c rows[j][c]·x[c] */
static inline ALWAYS void project(const float16 (*x)[SIDES], const float (*rows)[HEAD_DIM],
                                  float16 sums[OUTPUTS][SIDES]) {
    UNROLL for (int j = 0; j < OUTPUTS; j++)
        UNROLL for (int b = 0; b < SIDES; b++) sums[j][b] = 0.0f;
    for (int c = 0; c < HEAD_DIM; c++)
        UNROLL for (int j = 0; j < OUTPUTS; j++) {
            const float16 w = rows[j][c];
            UNROLL for (int b = 0; b < SIDES; b++) sums[j][b] = fma(w, x[c][b], sums[j][b]);
        }
}

__kernel ONE_ITEM void value_norm_projected(KV_PARAMS, BATCH_PARAMS, REF_PARAMS(float, out),
                                            ulong out_stride, REF_PARAMS(const weight, w),
                                            ulong w_stride, uint n_out, uint blocks,
                                            QUEUE_PARAMS) {
    float16 x[HEAD_DIM][SIDES], row[VECS];
    float rows[OUTPUTS][HEAD_DIM];
    FOR_EACH_QUEUED(item) {
        const uint owner = item / blocks, first = item % blocks * SLOTS;
        const uint seen = (uint)visible[visible_offset + owner];
        if (first >= seen) continue;
        const uint end = min(seen, first + SLOTS), head = owner % n_kv_heads;
        __global const int *pages = table + table_offset +
                                    row_seq[row_seq_offset + owner / n_kv_heads] * seq_stride +
                                    head * head_stride;
        __global element *values = kv + kv_offset + head * kv_head_stride + value_offset;

        /* 1. the values, [channel][slot]; past the end, the last slot again */
        for (uint i = 0; i < SLOTS; i++) {
            const uint slot = min(first + i, end - 1);
            widen_row(value_row_of(values + pages[slot / PAGE_SIZE] * page_stride, PAGE_SIZE,
                                   slot % PAGE_SIZE, slot_stride),
                      true, row);
            for (int c = 0; c < HEAD_DIM; c++) ((float *)x[c])[i] = ((const float *)row)[c];
        }

        /* 2. the sums of every query head and output; past the last output, that again */
        float16 norm[SIDES];
        for (int b = 0; b < SIDES; b++) norm[b] = 0.0f;
        for (uint task = 0; task < GROUP * n_out;) {
            const uint query_head = head * GROUP + task / n_out, output = task % n_out;
            const uint n = min(n_out - output, (uint)OUTPUTS);
            float16 sums[OUTPUTS][SIDES];
            for (uint j = 0; j < OUTPUTS; j++) {
                __global const weight *from = w + w_offset + (output + min(j, n - 1)) * w_stride +
                                              query_head * HEAD_DIM;
                for (int c = 0; c < HEAD_DIM; c += 16)
                    *(float16_at4 *)&rows[j][c] = weight16(from + c);
            }
            project(x, rows, sums);
            for (uint j = 0; j < n; j++)
                for (int b = 0; b < SIDES; b++) norm[b] += fabs(sums[j][b]);
            task += n;
        }

        /* 3. their means */
        for (uint i = first; i < end; i++)
            out[out_offset + owner * out_stride + i] =
                ((const float *)norm)[i - first] * (1.0f / GROUP);
    }
    leave_queue(queue, 0);
}
