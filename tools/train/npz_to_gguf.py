#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes weights of train_needle.py as a GGUF v3 file of architecture llama.

Matrices become f16, norms stay f32. The recipe rotates channel i with channel i + half of a head;
readers of the llama architecture rotate 2i with 2i + 1, so the rows of q and k are reordered here,
which changes no score. The vocabulary is the 256 bytes, token = byte, written in gpt2's alphabet of
printable characters.

Needs NumPy alone. Usage:
  npz_to_gguf.py --in weights.npz --out needle.gguf [--context 16384] [--name needle]
"""
import argparse
import struct

import numpy as np

ALIGNMENT = 32
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # value types of the format
TENSOR_F32, TENSOR_F16, TENSOR_BF16 = 0, 1, 30
HEAD_DIM, NORM_EPS, ROPE_BASE = 64, 1e-5, 500000.0


def string(text):
    data = text.encode()
    return struct.pack('<Q', len(data)) + data


def value(kind, content):
    if kind == STRING:
        return string(content)
    return struct.pack({U32: '<I', I32: '<i', F32: '<f', BOOL: '<?'}[kind], content)


def entry(key, kind, content):
    """A key with a value, or with an array of `kind` where content is a list."""
    if isinstance(content, list):
        values = b''.join(value(kind, c) for c in content)
        return string(key) + struct.pack('<IIQ', ARRAY, kind, len(content)) + values
    return string(key) + struct.pack('<I', kind) + value(kind, content)


def bf16_bits(x):
    """Nearest even; for finite values."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype('<u2')


def tensor_bytes(x, kind):
    if kind == TENSOR_BF16:
        return bf16_bits(x).tobytes()
    with np.errstate(over='ignore'):
        narrow = np.asarray(x).astype({TENSOR_F32: '<f4', TENSOR_F16: '<f2'}[kind])
    if not np.isfinite(narrow).all():
        beyond = np.asarray(x)[~np.isfinite(narrow)][0]
        raise ValueError('%g is not finite in %s' % (beyond, narrow.dtype.name))
    return narrow.tobytes()


def pad(data, alignment=ALIGNMENT):
    return data + bytes(-len(data) % alignment)


def write_gguf(path, entries, tensors):
    """entries: (key, kind, content); tensors: (name, array of 1 or 2 dims, kind)."""
    infos, data = b'', b''
    for name, x, kind in tensors:
        dims = x.shape[::-1]  # the format lists the fastest dim first
        infos += string(name) + struct.pack('<I%dQ' % len(dims), len(dims), *dims)
        infos += struct.pack('<IQ', kind, len(data))
        data += pad(tensor_bytes(x, kind))
    head = b'GGUF' + struct.pack('<IQQ', 3, len(tensors), len(entries))
    head += b''.join(entry(*e) for e in entries) + infos
    with open(path, 'wb') as file:
        file.write(pad(head) + data)


def alphabet():
    """The character of each byte: itself where it prints, else the next one from 256 on."""
    plain = set(range(33, 127)) | set(range(161, 173)) | set(range(174, 256))
    rest = iter(range(256, 512))
    return [chr(b if b in plain else next(rest)) for b in range(256)]


def interleave(w):
    """Rows of each head from (i, i + half) to (2i, 2i + 1)."""
    return w.reshape(-1, 2, HEAD_DIM // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


NAMES = {'q': 'attn_q', 'k': 'attn_k', 'v': 'attn_v', 'o': 'attn_output', 'g': 'ffn_gate',
         'u': 'ffn_up', 'd': 'ffn_down'}


def expected_shapes(w):
    """Of every array, from a few of them; heads have HEAD_DIM channels."""
    layers = 1 + max([int(n.split('.')[1]) for n in w if n.startswith('l.')], default=0)
    dim, ff = w['e.weight'].shape[1], w['l.0.g.weight'].shape[0]
    q, kv = w['l.0.q.weight'].shape[0], w['l.0.k.weight'].shape[0]
    shapes = {'e.weight': (256, dim), 'n': (dim,)}
    for i in range(layers):
        layer = {'q.weight': (q, dim), 'k.weight': (kv, dim), 'v.weight': (kv, dim),
                 'o.weight': (dim, q), 'g.weight': (ff, dim), 'u.weight': (ff, dim),
                 'd.weight': (dim, ff), 'n1': (dim,), 'n2': (dim,)}
        shapes.update({'l.%d.%s' % (i, n): shape for n, shape in layer.items()})
    if not kv or kv % HEAD_DIM or q % kv:
        raise ValueError('l.0.q.weight and l.0.k.weight have %d and %d rows, which are no heads of '
                         '%d channels in groups' % (q, kv, HEAD_DIM))
    return shapes


def check(w):
    """Raises KeyError or ValueError with the name of an array that is not as it should be."""
    shapes = expected_shapes(w)
    for name in {**shapes, **w}:
        if name not in shapes:
            raise ValueError('%s is not an array of the recipe' % name)
        if w[name].shape != shapes[name]:
            raise ValueError('%s is %s, not %s' % (name, w[name].shape, shapes[name]))


def needle_tensors(w):
    layers = 1 + max(int(n.split('.')[1]) for n in w if n.startswith('l.'))
    tensors = [('token_embd.weight', w['e.weight'], TENSOR_F16)]
    for i in range(layers):
        tensors.append(('blk.%d.attn_norm.weight' % i, w['l.%d.n1' % i], TENSOR_F32))
        tensors.append(('blk.%d.ffn_norm.weight' % i, w['l.%d.n2' % i], TENSOR_F32))
        for short, name in NAMES.items():
            x = w['l.%d.%s.weight' % (i, short)]
            x = interleave(x) if short in 'qk' else x
            tensors.append(('blk.%d.%s.weight' % (i, name), x, TENSOR_F16))
    return tensors + [('output_norm.weight', w['n'], TENSOR_F32)]


def needle_entries(w, tensors, name, context):
    return [
        ('general.architecture', STRING, 'llama'),
        ('general.name', STRING, name),
        ('general.license', STRING, 'apache-2.0'),
        ('general.alignment', U32, ALIGNMENT),
        ('llama.block_count', U32, sum('attn_norm' in t[0] for t in tensors)),
        ('llama.context_length', U32, context),
        ('llama.embedding_length', U32, w['e.weight'].shape[1]),
        ('llama.feed_forward_length', U32, w['l.0.g.weight'].shape[0]),
        ('llama.attention.head_count', U32, w['l.0.q.weight'].shape[0] // HEAD_DIM),
        ('llama.attention.head_count_kv', U32, w['l.0.k.weight'].shape[0] // HEAD_DIM),
        ('llama.attention.key_length', U32, HEAD_DIM),
        ('llama.attention.value_length', U32, HEAD_DIM),
        ('llama.attention.layer_norm_rms_epsilon', F32, NORM_EPS),
        ('llama.rope.freq_base', F32, ROPE_BASE),
        ('llama.rope.dimension_count', U32, HEAD_DIM),
        ('llama.vocab_size', U32, 256),
        ('tokenizer.ggml.model', STRING, 'gpt2'),
        ('tokenizer.ggml.pre', STRING, 'gpt-2'),
        ('tokenizer.ggml.tokens', STRING, alphabet()),
        ('tokenizer.ggml.token_type', I32, [1] * 256),
        ('tokenizer.ggml.merges', STRING, []),
        ('tokenizer.ggml.add_bos_token', BOOL, False),
    ]


def main():
    parser = argparse.ArgumentParser(description='Weights of train_needle.py to GGUF.')
    parser.add_argument('--in', dest='source', required=True, help='.npz of float32 arrays')
    parser.add_argument('--out', required=True)
    parser.add_argument('--context', type=int, default=16384, help='longest text to state, tokens')
    parser.add_argument('--name', default='needle')
    options = parser.parse_args()
    try:
        with np.load(options.source) as file:
            weights = {name: file[name] for name in file.files}
        check(weights)
        tensors = needle_tensors(weights)
        entries = needle_entries(weights, tensors, options.name, options.context)
        write_gguf(options.out, entries, tensors)
    except KeyError as error:
        parser.error('%s has no array %s' % (options.source, error))
    except OSError as error:
        parser.error(str(error))
    except ValueError as error:
        parser.error('%s: %s' % (options.source, error))


if __name__ == '__main__':
    main()
