#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a llama of a published model's shape with random weights, to measure speed without that
model's file: `tamis bench model` reads it. What it answers means nothing.

Needs the package gguf from PyPI. Usage:
  make_random_model.py OUT.gguf [--shape llama2-7b] [--layers 32] [--type q4_0]
"""
import argparse

import gguf
import numpy as np

from gguf import GGMLQuantizationType as Type

# dim, heads, KV heads, feed-forward, layers, vocabulary, base of RoPE
SHAPES = {'llama2-7b': (4096, 32, 32, 11008, 32, 32000, 1e4),
          'llama3-8b': (4096, 32, 8, 14336, 32, 128256, 5e5),
          'llama3.2-1b': (2048, 32, 8, 8192, 16, 128256, 5e5)}
TIED = {'llama3.2-1b'}  # the embedding is the output matrix too
TYPES = {'f16': Type.F16, 'q8_0': Type.Q8_0, 'q4_0': Type.Q4_0}
CONTEXT = 131072


def matrix(rng, rows, cols, kind):
    """As the file has it; elements with a standard deviation of about 1/sqrt(cols)."""
    spread = 1 / np.sqrt(cols)
    if kind == Type.F16:
        return (rng.standard_normal((rows, cols), np.float32) * spread).astype(np.float16)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.frombuffer(rng.bytes(rows * cols // block * size), np.uint8).reshape(-1, size).copy()
    # Integers of 4 bits have a standard deviation of 4.6, those of 8 bits one of 74.
    scale = np.float16(spread / (4.6 if kind == Type.Q4_0 else 74))
    raw[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    return raw.reshape(rows, -1)


def tensors(shape, layers, kind, tied):
    """(name, data, type) in the order of the file."""
    dim, heads, kv_heads, ff, _, vocabulary, _ = shape
    kv = dim // heads * kv_heads
    rng = np.random.default_rng(1)
    ones = np.ones(dim, np.float32)
    yield 'token_embd.weight', matrix(rng, vocabulary, dim, kind), kind
    yield 'output_norm.weight', ones, Type.F32
    if not tied:
        yield 'output.weight', matrix(rng, vocabulary, dim, kind), kind
    for i in range(layers):
        for name, rows, cols in (('attn_q', dim, dim), ('attn_k', kv, dim), ('attn_v', kv, dim),
                                 ('attn_output', dim, dim), ('ffn_gate', ff, dim),
                                 ('ffn_up', ff, dim), ('ffn_down', dim, ff)):
            yield 'blk.%d.%s.weight' % (i, name), matrix(rng, rows, cols, kind), kind
        for name in ('attn_norm', 'ffn_norm'):
            yield 'blk.%d.%s.weight' % (i, name), ones, Type.F32


def write(path, name, shape, layers, kind):
    dim, heads, kv_heads, ff, _, vocabulary, base = shape
    writer = gguf.GGUFWriter(path, 'llama')
    writer.add_name('%s, %d layers, random' % (name, layers))
    writer.add_block_count(layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(dim)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(dim // heads)
    writer.add_rope_freq_base(base)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model('llama')
    # A token for each byte, so that any text can be read.
    tokens = ['<unk>', '<s>', '</s>'] + ['<0x%02X>' % byte for byte in range(256)]
    others = vocabulary - len(tokens)
    writer.add_token_list(tokens + ['t%d' % i for i in range(others)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * others)
    writer.add_token_scores([0.0] * vocabulary)
    writer.add_add_bos_token(False)
    for tensor, data, its_kind in tensors(shape, layers, kind, name in TIED):
        writer.add_tensor(tensor, data, raw_dtype=its_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('out')
    parser.add_argument('--shape', choices=SHAPES, default='llama2-7b')
    parser.add_argument('--layers', type=int)
    parser.add_argument('--type', choices=TYPES, default='q4_0')
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    layers = args.layers if args.layers is not None else shape[4]
    if layers < 1:
        parser.error('--layers %d: must be at least 1' % layers)
    write(args.out, args.shape, shape, layers, TYPES[args.type])


if __name__ == '__main__':
    main()
