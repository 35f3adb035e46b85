#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/tiny.gguf: random weights in the shapes that the needle model lacks.

Architecture qwen2 (half-split pairing, biases), group 3, part of each head rotated, untied output,
f32, f16 and bf16 side by side, a vocabulary of ASCII in shuffled order with one control token.

Usage: make_tiny.py --out tiny.gguf
"""
import argparse
import os
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '../../tools/train'))
from npz_to_gguf import (F32, I32, STRING, TENSOR_BF16, TENSOR_F16, TENSOR_F32, U32, alphabet,
                         write_gguf)

DIM, LAYERS, HEADS, KV_HEADS, HEAD_DIM, ROTATED, FF_DIM = 32, 2, 3, 1, 64, 32, 24


def main():
    parser = argparse.ArgumentParser(description='A tiny random model for tests.')
    parser.add_argument('--out', required=True)
    options = parser.parse_args()
    rng = np.random.default_rng(5)
    order = rng.permutation([10, *range(32, 127)])
    tokens = [alphabet()[b] for b in order] + ['<|end|>']
    draw = lambda rows, cols: rng.standard_normal((rows, cols)) * 1.5 / np.sqrt(cols)
    vector = lambda n, mean: mean + 0.3 * rng.standard_normal(n)
    tensors = [('token_embd.weight', draw(len(tokens), DIM), TENSOR_BF16),
               ('output_norm.weight', vector(DIM, 1), TENSOR_F32),
               ('output.weight', draw(len(tokens), DIM), TENSOR_F32)]
    for i in range(LAYERS):
        for name, rows, cols, kind in (('attn_q', HEADS * HEAD_DIM, DIM, TENSOR_F16),
                                       ('attn_k', KV_HEADS * HEAD_DIM, DIM, TENSOR_BF16),
                                       ('attn_v', KV_HEADS * HEAD_DIM, DIM, TENSOR_F16),
                                       ('attn_output', DIM, HEADS * HEAD_DIM, TENSOR_BF16),
                                       ('ffn_gate', FF_DIM, DIM, TENSOR_F16),
                                       ('ffn_up', FF_DIM, DIM, TENSOR_BF16),
                                       ('ffn_down', DIM, FF_DIM, TENSOR_F32)):
            tensors.append(('blk.%d.%s.weight' % (i, name), draw(rows, cols), kind))
        for name, n, mean, kind in (('attn_norm.weight', DIM, 1, TENSOR_F16),
                                    ('ffn_norm.weight', DIM, 1, TENSOR_BF16),
                                    ('attn_q.bias', HEADS * HEAD_DIM, 0, TENSOR_F32),
                                    ('attn_k.bias', KV_HEADS * HEAD_DIM, 0, TENSOR_F16),
                                    ('attn_v.bias', KV_HEADS * HEAD_DIM, 0, TENSOR_F32)):
            tensors.append(('blk.%d.%s' % (i, name), vector(n, mean), kind))
    entries = [('general.architecture', STRING, 'qwen2'),
               ('general.name', STRING, 'tiny'),
               ('qwen2.block_count', U32, LAYERS),
               ('qwen2.context_length', U32, 256),
               ('qwen2.embedding_length', U32, DIM),
               ('qwen2.feed_forward_length', U32, FF_DIM),
               ('qwen2.attention.head_count', U32, HEADS),
               ('qwen2.attention.head_count_kv', U32, KV_HEADS),
               ('qwen2.attention.key_length', U32, HEAD_DIM),
               ('qwen2.attention.layer_norm_rms_epsilon', F32, 1e-6),
               ('qwen2.rope.dimension_count', U32, ROTATED),
               ('tokenizer.ggml.model', STRING, 'gpt2'),
               ('tokenizer.ggml.tokens', STRING, tokens),
               ('tokenizer.ggml.token_type', I32, [1] * (len(tokens) - 1) + [3])]
    write_gguf(options.out, entries, tensors)


if __name__ == '__main__':
    main()
