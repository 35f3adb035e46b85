#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/models: a small random model of each family and weight type, with its logits.

The files are written by the package gguf, which also quantises and decodes the weights (where it
cannot make a type's blocks, they are random bits). The logits are those of families.py in float64 on
the decoded weights. Two checks stand behind them: llama.cpp, on a copy whose weights are widened to
f32, gives the same logits; and without each of the features that a file is there for they would be
far away. Where a family has GELU, llama.cpp is compared with its own table of it. llama.cpp ignores
the sliding windows of llama and phi3: there only positions inside the window are compared. Some of
its rules hold for models of a certain depth alone: the copy then has more layers, which add 0. What
no file shows is compared with llama.cpp alone.

A .logits file holds, little-endian: "LGTS", u32 tokens, u32 logits of a row, u32 positions, i32
tokens, u32 positions, f32 logits after each of them.

Run by hand; see peer_logits.py for how llama.cpp is installed:
  venv/bin/pip install gguf && venv/bin/python tests/model/make_models.py [--out tests/data/models]
"""
import argparse
import dataclasses
import os
import struct
import sys
import tempfile

import gguf
import llama_cpp
import numpy as np

from gguf import GGMLQuantizationType as Type
from families import FAMILIES, Family, FamilyModel, gelu, gelu_by_halves
from peer_logits import Peer, log

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENS, POSITIONS, VOCABULARY = 38, [0, 9, 30, 37], 48
CONTEXT, HEAD_DIM = 64, 64
BOUND_PEER, BOUND_FEATURE = 1e-4, 0.1  # largest and least distances of a logit
BOUND_GELU = 1e-3  # with a table of GELU, where a rounding may go the other way
QKV = ('attn_q', 'attn_k', 'attn_v')
HEAD_NORMS = ('attn_q_norm', 'attn_k_norm')
POST_NORMS = ('post_attention_norm', 'post_ffw_norm')

# shape: dim, layers, heads, KV heads, FFN. head: the width of a head, if not 64. head_keys:
# whether the file states what follows from dim / heads. seed: where that of the place in this
# table gives logits that move by more than 1e-3 if inputs of products are rounded to 16 bits.
# type: of matrices, or types by name. norms: of a layer; last_norm: whether the last one has a
# tensor. head_norms: each head by one weight, apart by its own, or the whole row. biases: what
# has one. fused: products that are one matrix. gated: whether the FFN has a gate. factors:
# divisors of the frequencies, with the largest. keys: the logits need each of them. idle: keys
# that change nothing. unread: other features that do not show in this file. peer_layers: of the
# copy for llama.cpp.
FILES = {
    'llama3': dict(arch='llama', shape=(32, 2, 2, 1, 64), type=Type.Q8_0, untied=True,
                   factors={'rope_freqs': 8},
                   biases=QKV + ('attn_output', 'ffn_gate', 'ffn_up', 'ffn_down'),
                   keys={'rope.freq_base': 500000.0}),
    'mistral': dict(arch='llama', shape=(32, 2, 4, 2, 32), type=Type.Q4_0, untied=True,
                    keys={'attention.sliding_window': 12, 'rope.scaling.type': 'linear',
                          'rope.scaling.factor': 2.5}),
    'qwen2': dict(arch='qwen2', shape=(64, 2, 1, 1, 32), type=Type.Q5_0, biases=QKV,
                  keys={'rope.freq_base': 1000.0, 'rope.scaling.type': 'yarn',
                        'rope.scaling.factor': 4.0, 'rope.scaling.attn_factor': 1.25,
                        'rope.scaling.original_context_length': 32}),
    'qwen3': dict(arch='qwen3', shape=(32, 2, 2, 1, 32), type=Type.Q4_1, head_norms='each',
                  keys={'rope.freq_base': 1000000.0}),
    'mixed': dict(arch='llama', shape=(256, 1, 1, 1, 64),
                  types={'attn_q': Type.Q4_K, 'attn_k': Type.Q6_K, 'attn_v': Type.Q4_K,
                         'attn_output': Type.BF16, 'ffn_gate': Type.Q4_K, 'ffn_up': Type.Q6_K,
                         'ffn_down': Type.Q5_0, 'token_embd': Type.Q6_K, 'output': Type.Q4_K},
                  type=Type.F16, untied=True, keys={}),
    # A wide head, its width not dim / heads.
    'gemma': dict(arch='gemma', shape=(32, 1, 2, 1, 32), head=512, type=Type.Q4_0, keys={}),
    # Windows in layers 0 and 2, soft caps.
    'gemma2': dict(arch='gemma2', seed=200, shape=(32, 4, 2, 1, 32), type=Type.Q4_0,
                   norms=('attn_norm', 'ffn_norm') + POST_NORMS,
                   unread=('wide', 'local_base', 'defaults'),
                   keys={'attention.sliding_window': 12, 'attn_logit_softcapping': 2.0,
                         'final_logit_softcapping': 4.0}),
    # The sixth layer is global: it has a base of its own and scaling.
    'gemma3': dict(arch='gemma3', shape=(32, 6, 1, 1, 32), type=Type.Q4_0, head_norms='each',
                   norms=('attn_norm', 'ffn_norm') + POST_NORMS, unread=('wide',),
                   keys={'attention.sliding_window': 12, 'rope.freq_base': 100.0,
                         'rope.scaling.type': 'linear', 'rope.scaling.factor': 2.5}),
    # Short factors, and a window in all layers.
    'phi3': dict(arch='phi3', seed=201, shape=(96, 2, 1, 1, 32), head=96, type=Type.Q4_0,
                 untied=True, fused=('attn_qkv', 'ffn_up'), head_keys=False, context=2048,
                 factors={'rope_factors_long': 32, 'rope_factors_short': 4},
                 unread=('rope_factors_long.weight',),
                 idle={'rope.dimension_count': 96, 'rope.scaling.original_context_length': 512},
                 keys={'attention.sliding_window': 12, 'rope.scaling.attn_factor': 1.2}),
    # Long factors, partial rotation, groups, tied.
    'phi4': dict(arch='phi3', shape=(128, 1, 2, 1, 32), type=Type.Q4_0,
                 fused=('attn_qkv', 'ffn_up'), head_keys=False,
                 factors={'rope_factors_long': 32, 'rope_factors_short': 4},
                 unread=('rope_factors_short.weight', 'phi3.rope.dimension_count'),
                 idle={'attention.sliding_window': 0},
                 keys={'rope.dimension_count': 48, 'rope.scaling.original_context_length': 16,
                       'rope.scaling.attn_factor': 1.2}),
    'glm4': dict(arch='glm4', shape=(32, 2, 2, 1, 32), head=112, type=Type.Q4_0, untied=True,
                 norms=('attn_norm', 'ffn_norm') + POST_NORMS, fused=('ffn_up',), biases=QKV,
                 keys={'rope.dimension_count': 56}),
    'chatglm': dict(arch='chatglm', shape=(128, 1, 2, 1, 32), type=Type.Q4_0, untied=True,
                    fused=('attn_qkv', 'ffn_up'), biases=('attn_qkv',), head_keys=False,
                    keys={'rope.dimension_count': 32}),
    # OLMo 3: the first layer has a window and rotates without scaling.
    'olmo2': dict(arch='olmo2', shape=(128, 2, 2, 1, 32), type=Type.Q4_0, untied=True,
                  norms=POST_NORMS, head_norms='whole', head_keys=False, unread=('pattern',),
                  keys={'attention.sliding_window': 12, 'rope.freq_base': 1000.0,
                        'attention.sliding_window_pattern': [True, False],
                        'rope.scaling.type': 'yarn', 'rope.scaling.factor': 8.0,
                        'rope.scaling.attn_factor': 1.25,
                        'rope.scaling.original_context_length': 16}),
    'granite': dict(arch='granite', shape=(32, 2, 2, 1, 32), type=Type.Q8_0, untied=True,
                    biases=('attn_output', 'ffn_gate', 'ffn_up', 'ffn_down'),
                    keys={'embedding_scale': 3.0, 'residual_scale': 0.4, 'logit_scale': 1.5,
                          'attention.scale': 0.25}),
    # Nothing is rotated.
    'granite4': dict(arch='granite', shape=(32, 1, 2, 1, 32), type=Type.Q8_0,
                     unread=('adjacent',),
                     keys={'logit_scale': 1.5, 'rope.scaling.finetuned': False}),
    # An old file: scales that no key says.
    'minicpm': dict(arch='minicpm', shape=(32, 1, 2, 1, 32), head=192, type=Type.Q4_0, keys={}),
    # The fourth layer rotates nothing.
    'smollm3': dict(arch='smollm3', seed=202, shape=(32, 4, 2, 1, 32), type=Type.Q4_0, keys={}),
    'starcoder2': dict(arch='starcoder2', shape=(64, 2, 1, 1, 64), type=Type.Q4_0, gated=False,
                       head_keys=False, keys={'rope.freq_base': 1000.0},
                       biases=QKV + ('attn_output', 'ffn_up', 'ffn_down', 'attn_norm', 'ffn_norm',
                                     'output_norm')),
    'exaone': dict(arch='exaone', shape=(32, 1, 2, 1, 32), head=160, type=Type.Q4_0,
                   factors={'rope_freqs': 8}, untied=True, keys={}),
    # 32B: the fourth layer is global and rotates nothing.
    'exaone4': dict(arch='exaone4', shape=(64, 4, 1, 1, 32), type=Type.Q4_0, head_norms='each',
                    norms=POST_NORMS, head_keys=False, peer_layers=64,
                    keys={'attention.sliding_window': 12}),
    # 1.2B: no windows, so all layers rotate.
    'exaone4-small': dict(arch='exaone4', shape=(64, 1, 1, 1, 32), type=Type.Q8_0,
                          head_norms='each', norms=POST_NORMS, head_keys=False,
                          factors={'rope_freqs': 8}, unread=('pattern', 'unrotated'), keys={}),
    'internlm2': dict(arch='internlm2', shape=(64, 1, 1, 1, 32), type=Type.Q8_0, untied=True,
                      head_keys=False, keys={'rope.freq_base': 1000.0}),
    'command-r': dict(arch='command-r', shape=(64, 2, 1, 1, 32), type=Type.Q4_0,
                      norms=('attn_norm',), head_keys=False, idle={'rope.scaling.type': 'none'},
                      keys={'logit_scale': 0.5}),
    # R+: norms of heads, each with its own weights.
    'command-r-plus': dict(arch='command-r', shape=(128, 1, 2, 1, 32), type=Type.Q4_0,
                           norms=('attn_norm',), head_norms='apart', head_keys=False,
                           peer_layers=64, keys={'logit_scale': 0.5}),
    'cohere2': dict(arch='cohere2', shape=(64, 4, 1, 1, 32), type=Type.Q4_0, norms=('attn_norm',),
                    head_keys=False, idle={'rope.dimension_count': 64, 'rope.scaling.type': 'none'},
                    keys={'logit_scale': 0.5, 'attention.sliding_window': 12}),
    # 1.6B: sequential.
    'stablelm': dict(arch='stablelm', seed=201, shape=(64, 2, 1, 1, 32), type=Type.Q4_0,
                     untied=True, head_keys=False, unread=('parallel',),
                     idle={'use_parallel_residual': False},
                     biases=QKV + ('attn_norm', 'ffn_norm', 'output_norm'),
                     keys={'rope.dimension_count': 16}),
    # 12B: parallel, with norms of heads.
    'stablelm-12b': dict(arch='stablelm', shape=(128, 1, 2, 1, 32), type=Type.Q4_0, untied=True,
                         head_keys=False, norms=('attn_norm',), head_norms='apart',
                         biases=('attn_norm', 'output_norm'),
                         idle={'use_parallel_residual': True},
                         keys={'rope.dimension_count': 16}),
    'nemotron': dict(arch='nemotron', shape=(64, 2, 1, 1, 32), type=Type.Q4_0, untied=True,
                     gated=False, head_keys=False, biases=('attn_norm', 'ffn_norm', 'output_norm'),
                     keys={'rope.dimension_count': 32}),
    'phi2': dict(arch='phi2', shape=(64, 1, 1, 1, 32), type=Type.Q4_0, untied=True, gated=False,
                 norms=('attn_norm',), head_keys=False, keys={'rope.dimension_count': 32},
                 biases=QKV + ('attn_output', 'ffn_up', 'ffn_down', 'attn_norm', 'output_norm',
                               'output')),
    'gptneox': dict(arch='gptneox', shape=(64, 1, 1, 1, 32), type=Type.Q4_0, untied=True,
                    gated=False, fused=('attn_qkv',), head_keys=False,
                    biases=('attn_qkv', 'attn_output', 'ffn_up', 'ffn_down', 'attn_norm',
                            'ffn_norm', 'output_norm'),
                    keys={'rope.dimension_count': 16, 'use_parallel_residual': True}),
    'falcon': dict(arch='falcon', shape=(64, 1, 1, 1, 32), type=Type.Q4_0, gated=False,
                   fused=('attn_qkv',), norms=('attn_norm', 'attn_norm_2'), head_keys=False,
                   biases=('attn_norm', 'attn_norm_2', 'output_norm'), keys={}),
    'olmo': dict(arch='olmo', shape=(64, 1, 1, 1, 32), type=Type.Q4_0, norms=(), last_norm=False,
                 head_keys=False, keys={'attention.clamp_kqv': 0.75}),
    'orion': dict(arch='orion', shape=(64, 1, 1, 1, 32), type=Type.Q4_0, untied=True,
                  head_keys=False, biases=('attn_norm', 'ffn_norm', 'output_norm'), keys={}),
    'xverse': dict(arch='xverse', shape=(64, 1, 1, 1, 32), type=Type.Q4_0, untied=True,
                   head_keys=False, keys={}),
    'arcee': dict(arch='arcee', shape=(64, 1, 1, 1, 32), type=Type.Q4_0, gated=False,
                  factors={'rope_freqs': 8}, head_keys=False, keys={}),
    'seed_oss': dict(arch='seed_oss', shape=(32, 1, 2, 1, 32), type=Type.Q4_0, untied=True,
                     norms=('attn_norm', 'post_attention_norm'), biases=QKV, keys={}),
    'ernie4_5': dict(arch='ernie4_5', shape=(32, 1, 2, 1, 32), type=Type.Q4_0, keys={}),
    'hunyuan-dense': dict(arch='hunyuan-dense', shape=(32, 1, 2, 1, 32), type=Type.Q4_0,
                          head_norms='each', keys={}),
    # Ministral 3: queries are scaled by their position.
    'mistral3': dict(arch='mistral3', shape=(32, 1, 2, 1, 32), type=Type.Q4_0,
                     idle={'rope.scaling.yarn_beta_fast': 32.0,
                           'rope.scaling.yarn_beta_slow': 1.0},
                     keys={'attention.temperature_scale': 0.4, 'rope.freq_base': 1000.0,
                           'rope.scaling.type': 'yarn', 'rope.scaling.factor': 8.0,
                           'rope.scaling.original_context_length': 8,
                           'rope.scaling.yarn_log_multiplier': 0.8}),
    'mixed-more': dict(arch='llama', shape=(256, 1, 1, 1, 64), untied=True, keys={}, type=Type.F16,
                       types={'attn_q': Type.Q5_K, 'attn_k': Type.Q3_K, 'attn_v': Type.Q2_K,
                              'attn_output': Type.MXFP4, 'ffn_gate': Type.IQ4_XS,
                              'ffn_up': Type.Q3_K, 'ffn_down': Type.Q5_1,
                              'token_embd': Type.IQ4_NL, 'output': Type.Q5_K}),
}
# What llama.cpp does with keys and depths that no file above has: changes of a file above.
VARIANTS = [
    ('gemma2', dict(peer_layers=46)),
    ('gemma2', dict(keys={'attention.sliding_window': 12, 'rope.freq_base': 500.0,
                          'rope.freq_base_swa': 50.0, 'rope.scaling.factor': 3.0})),
    ('gemma3', dict(peer_layers=62)),
    ('gemma3', dict(keys={'rope.freq_base': 300.0})),
    ('gemma3', dict(keys={'attention.sliding_window': 12, 'rope.freq_base_swa': 300.0,
                          'attention.sliding_window_pattern': 2, 'final_logit_softcapping': 3.0})),
    ('gemma3', dict(keys={'attention.sliding_window': 12, 'rope.scaling.type': 'yarn',
                          'rope.scaling.factor': 4.0, 'rope.scaling.attn_factor': 1.3,
                          'rope.scaling.original_context_length': 16})),
    ('olmo2', dict(shape=(128, 4, 2, 1, 32),
                   keys={'attention.sliding_window': 12, 'rope.freq_base_swa': 50.0})),
    ('cohere2', dict(keys={'logit_scale': 0.5, 'attention.sliding_window': 12,
                           'attention.sliding_window_pattern': [False, True, True, False],
                           'rope.freq_base_swa': 100.0})),
    ('exaone4', dict(keys={'attention.sliding_window': 12, 'rope.freq_base_swa': 50.0})),
    ('granite', dict(factors={'rope_freqs': 8})),
    ('minicpm', dict(factors={'rope_factors_long': 32, 'rope_factors_short': 4},
                     keys={'rope.scaling.type': 'longrope', 'rope.scaling.attn_factor': 1.3,
                           'rope.scaling.original_context_length': 16})),
    ('gptneox', dict(keys={'rope.dimension_count': 16, 'use_parallel_residual': False})),
    ('glm4', dict(fused=('attn_qkv', 'ffn_up'), biases=('attn_qkv',))),
]


# Types that the package cannot make: the places of f16 d and dmin in a block, about the spread of an
# element for d = 1, and the dmin with which the mean is then near 0.
RANDOM_BLOCKS = {Type.Q4_K: (0, 250, 2, 7.5), Type.Q6_K: (208, 1360), Type.Q5_K: (0, 500, 2, 15.5),
                 Type.Q3_K: (108, 42), Type.Q2_K: (80, 12, 82, 1.5), Type.IQ4_NL: (0, 68),
                 Type.IQ4_XS: (0, 1260)}


def random_blocks(rng, rows, cols, kind):
    """Blocks of random bits, scaled to the spread that `draw` gives."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows, cols // block, size), dtype=np.uint8)
    place, spread, *minimum = RANDOM_BLOCKS[kind]
    scale = 1.5 / np.sqrt(cols) / spread
    half = lambda value: np.frombuffer(np.float16(value).tobytes(), np.uint8)
    raw[:, :, place:place + 2] = half(scale)
    if minimum:
        raw[:, :, minimum[0]:minimum[0] + 2] = half(scale * minimum[1])
    return raw.reshape(rows, -1)


def draw(rng, rows, cols, kind):
    """A matrix as the file has it."""
    if kind in RANDOM_BLOCKS:
        return random_blocks(rng, rows, cols, kind)
    x = (rng.standard_normal((rows, cols)) * 1.5 / np.sqrt(cols)).astype(np.float32)
    return gguf.quants.quantize(x, kind)


def shapes_of(spec):
    """(name, rows, columns) of a layer's matrices."""
    dim, _, heads, kv_heads, ff = spec['shape']
    q, kv = (n * spec.get('head', HEAD_DIM) for n in (heads, kv_heads))
    fused = spec.get('fused', ())
    if 'attn_qkv' in fused:
        yield 'attn_qkv', q + 2 * kv, dim
    else:
        yield from (('attn_q', q, dim), ('attn_k', kv, dim), ('attn_v', kv, dim))
    yield 'attn_output', dim, q
    if spec.get('gated', True) and 'ffn_up' not in fused:
        yield 'ffn_gate', ff, dim
    yield 'ffn_up', 2 * ff if 'ffn_up' in fused else ff, dim
    yield 'ffn_down', dim, ff


def norms_of(spec):
    """(name, shape) of a layer's norms."""
    dim, _, *heads, _ = spec['shape']
    width = spec.get('head', HEAD_DIM)
    for name in spec.get('norms', ('attn_norm', 'ffn_norm')):
        yield name, dim
    for name, n in zip(HEAD_NORMS, heads):
        if 'head_norms' in spec:
            yield name, {'each': width, 'whole': n * width, 'apart': (n, width)}[spec['head_norms']]


def tensors_of(spec, rng):
    """(name, data, type) in the order of the file."""
    dim, layers, *_ = spec['shape']
    kind = lambda name: spec.get('types', {}).get(name, spec['type'])
    matrix = lambda name, rows, cols: (name, draw(rng, rows, cols, kind(name)), kind(name))
    vector = lambda n, mean: (mean + 0.3 * rng.standard_normal(n)).astype(np.float32)
    out = [matrix('token_embd', VOCABULARY, dim)]
    if spec.get('last_norm', True):
        out.append(('output_norm', vector(dim, 1), Type.F32))
    if spec.get('untied'):
        out.append(matrix('output', VOCABULARY, dim))
    for name, most in spec.get('factors', {}).items():
        n_rot = spec['keys'].get('rope.dimension_count', spec.get('head', HEAD_DIM))
        out.append((name, np.geomspace(1, most, n_rot // 2, dtype=np.float32), Type.F32))
    out = [(name + '.weight', data, kind) for name, data, kind in out]
    biased = spec.get('biases', ())
    for name, n in (('output_norm', dim), ('output', VOCABULARY)):
        if name in biased:
            out.append((name + '.bias', vector(n, 0), Type.F32))
    for i in range(layers):
        for name, rows, cols in shapes_of(spec):
            name, data, kind_ = matrix(name, rows, cols)
            out.append(('blk.%d.%s.weight' % (i, name), data, kind_))
            if name in biased:
                out.append(('blk.%d.%s.bias' % (i, name), vector(rows, 0), Type.F32))
        for name, shape in norms_of(spec):
            out.append(('blk.%d.%s.weight' % (i, name), vector(shape, 1), Type.F32))
            if name in biased:
                out.append(('blk.%d.%s.bias' % (i, name), vector(shape, 0), Type.F32))
    return out


def add_key(writer, key, value):
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
               str: writer.add_string}
        add[type(value)](key, value)


def write_model(path, spec, tensors):
    dim, layers, heads, kv_heads, ff = spec['shape']
    keys, head = {**spec.get('idle', {}), **spec['keys']}, spec.get('head', HEAD_DIM)
    writer = gguf.GGUFWriter(path, spec['arch'])
    writer.add_name(os.path.basename(path)[:-5])
    writer.add_block_count(layers)
    writer.add_context_length(spec.get('context', CONTEXT))
    writer.add_embedding_length(dim)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    if spec.get('head_keys', True):
        writer.add_key_length(head)
        writer.add_value_length(head)
        if 'rope.dimension_count' not in keys:
            writer.add_rope_dimension_count(head)
    if FAMILIES[spec['arch']].layer_norm:
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_layer_norm_rms_eps(1e-5)
    for key, value in keys.items():
        add_key(writer, spec['arch'] + '.' + key, value)
    writer.add_tokenizer_model('llama')
    writer.add_token_list(['<unk>', '<s>', '</s>'] + [chr(65 + i) for i in range(VOCABULARY - 3)])
    writer.add_token_types([2, 3, 3] + [1] * (VOCABULARY - 3))
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_add_bos_token(False)
    for name, data, kind in tensors:
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class File:
    """What make_logits.Model reads: metadata, and tensors decoded to float64."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.meta = {name: field.contents() for name, field in reader.fields.items()}
        self.tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64)
                        for t in reader.tensors}


def mutants(spec, file):
    """(what, model) for each key, vector and trait of the family: a model without it."""
    family, unread = FAMILIES[spec['arch']], spec.get('unread', ())
    keys = [spec['arch'] + '.' + key for key in spec['keys']]
    vectors = [name for name in file.tensors if name.startswith(('blk.0.', 'output', 'rope'))
               and ('norm' in name or 'bias' in name or 'rope' in name)]
    for what in keys + vectors:
        other = File.__new__(File)
        other.meta = {k: v for k, v in file.meta.items() if k != what}
        if what.endswith('.type'):
            other.meta[what] = 'none'
        other.tensors = {k: v for k, v in file.tensors.items() if k != what}
        if what not in unread:
            yield what, FamilyModel(other, TOKENS)
    plain = Family()
    for field in dataclasses.fields(Family):
        standard = getattr(plain, field.name)
        if getattr(family, field.name) != standard and field.name not in unread:
            changed = dataclasses.replace(family, **{field.name: standard})
            yield field.name, FamilyModel(file, TOKENS, changed)


def check_features(name, spec, file, tokens, exact):
    """True if the logits need each of the file's features."""
    distances = {what: abs(model.logits(tokens)[POSITIONS] - exact).max()
                 for what, model in mutants(spec, file)}
    least = min(distances, key=distances.get)
    print('%s: largest logit %.1f; %d features, least by %s: %.2f'
          % (name, abs(exact).max(), len(distances), least, distances[least]))
    for what, distance in distances.items():
        if distance < BOUND_FEATURE:
            print('%s without %s: %.2g' % (name, what, distance))
    return distances[least] >= BOUND_FEATURE


def deepen(spec, tensors):
    """As many layers as llama.cpp wants: those added give 0 to the sums."""
    dim, layers, *rest = spec['shape']
    wanted = spec.get('peer_layers', layers)
    first = [(name[len('blk.0.'):], data) for name, data in tensors if name.startswith('blk.0.')]
    for layer in range(layers, wanted):
        for name, data in first:
            last = name in ('attn_output.weight', 'ffn_down.weight')
            tensors.append(('blk.%d.%s' % (layer, name), data * (0 if last else 1)))
    more = {key: value + [False] * (wanted - layers) if isinstance(value, list) else value
            for key, value in spec['keys'].items()}
    return dict(spec, shape=(dim, wanted, *rest), keys=more), tensors


def check_peer(name, spec, tensors, tokens):
    """True if llama.cpp agrees, on the deepened copy in f32."""
    family, bound = FAMILIES[spec['arch']], BOUND_PEER
    if family.activation == gelu:
        family, bound = dataclasses.replace(family, activation=gelu_by_halves), BOUND_GELU
    ignored = spec['arch'] in ('llama', 'phi3')
    window = spec['keys'].get('attention.sliding_window', CONTEXT) if ignored else CONTEXT
    at = [p for p in POSITIONS if p < window]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'wide.gguf')
        deep, data = deepen(spec, tensors)
        write_model(path, deep, [(*tensor, Type.F32) for tensor in data])
        peer = Peer(path, CONTEXT, threads=1)
        logits = np.array([peer.feed(tokens[peer.length:p + 1]) for p in at])
        peer.close()
        file = File(path)
    near, far = (abs(FamilyModel(file, TOKENS, f).logits(tokens)[at] - logits).max()
                 for f in (family, FAMILIES[spec['arch']]))
    print('%s: llama.cpp %.1e away%s' % (name, near, ', %.1e from exact GELU' % far
                                         if bound == BOUND_GELU else ''))
    return near <= bound


def check_variants(tokens):
    """True if llama.cpp agrees on what no file shows."""
    good = True
    for i, (name, change) in enumerate(VARIANTS):
        spec = dict(FILES[name], **change)
        tensors = [(tensor, gguf.quants.dequantize(data, kind))
                   for tensor, data, kind in tensors_of(spec, np.random.default_rng(300 + i))]
        good &= check_peer('%s, %s' % (name, change), spec, tensors, tokens)
    return good


def main():
    parser = argparse.ArgumentParser(description='Small random models with their logits.')
    parser.add_argument('--out', default=os.path.join(HERE, '../data/models'))
    options = parser.parse_args()
    llama_cpp.llama_log_set(log, None)
    os.makedirs(options.out, exist_ok=True)
    tokens = [(7 * i * i + 3 * i + 5) % VOCABULARY for i in range(TOKENS)]
    good = True
    for place, (name, spec) in enumerate(FILES.items()):
        path = os.path.join(options.out, name + '.gguf')
        tensors = tensors_of(spec, np.random.default_rng(spec.get('seed', 100 + place)))
        write_model(path, spec, tensors)
        file = File(path)
        exact = FamilyModel(file, TOKENS).logits(tokens)[POSITIONS]
        good &= check_features(name, spec, file, tokens, exact)
        decoded = [(n, file.tensors[n].astype(np.float32)) for n, _, _ in tensors]
        good &= check_peer(name, spec, decoded, tokens)
        with open(path[:-5] + '.logits', 'wb') as out:
            out.write(b'LGTS' + struct.pack('<3I', TOKENS, VOCABULARY, len(POSITIONS)))
            out.write(np.array(tokens, '<i4').tobytes() + np.array(POSITIONS, '<u4').tobytes())
            out.write(exact.astype('<f4').tobytes())
    good &= check_variants(tokens)
    if not good:
        sys.exit('llama.cpp is further than %g (GELU: %g) away, or a feature moves no logit by %g'
                 % (BOUND_PEER, BOUND_GELU, BOUND_FEATURE))


if __name__ == '__main__':
    main()
