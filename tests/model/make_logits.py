#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the vectors of a small model that tests/model/logits.c holds the library to.

An implementation of its own: reads the GGUF file and computes the forward pass in float64 with
NumPy, the whole text at once with a causal mask, without any cache. Shares no line with the library
or tools/train. peer_logits.py, which writes the vectors of needle.gguf, builds on it.

Usage: make_logits.py --model tiny.gguf --text text.txt --out tiny.logits
           [--positions 0,1,40,119] [--greedy 20]
"""
import argparse
import os
import struct

import numpy as np

LOSS_TOKENS = 20  # tools/tamis/cli/test_cli.sh holds `tamis eval perplexity` to their loss
SCALARS = {0: 'B', 1: 'b', 2: 'H', 3: 'h', 4: 'I', 5: 'i', 6: 'f', 7: '?', 10: 'Q', 11: 'q',
           12: 'd'}


class Gguf:
    """Metadata as a dict, tensors as float64 arrays [slowest .. fastest]."""

    def __init__(self, path):
        with open(path, 'rb') as file:
            self.data = file.read()
        self.at = 4
        version, n_tensors, n_keys = self.take('I'), self.take('Q'), self.take('Q')
        assert self.data[:4] == b'GGUF' and version == 3
        self.meta = {}
        for _ in range(n_keys):
            key = self.string()
            self.meta[key] = self.value(self.take('I'))
        self.keys_end = self.at
        infos = []
        for _ in range(n_tensors):
            name = self.string()
            dims = [self.take('Q') for _ in range(self.take('I'))]
            infos.append((name, dims[::-1], self.take('I'), self.take('Q')))
        alignment = self.meta.get('general.alignment', 32)
        start = (self.at + alignment - 1) // alignment * alignment
        self.tensors = {n: self.tensor(d, t, start + o) for n, d, t, o in infos}

    def take(self, code):
        value, = struct.unpack_from('<' + code, self.data, self.at)
        self.at += struct.calcsize('<' + code)
        return value

    def string(self):
        n = self.take('Q')
        self.at += n
        return self.data[self.at - n:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            kind, n = self.take('I'), self.take('Q')
            return [self.value(kind) for _ in range(n)]
        return self.take(SCALARS[kind])

    def tensor(self, dims, kind, offset):
        n = int(np.prod(dims))
        if kind == 30:  # bf16: the upper half of a float32
            upper = np.frombuffer(self.data, '<u2', n, offset).astype(np.uint32)
            return (upper << 16).view(np.float32).astype(np.float64).reshape(dims)
        flat = np.frombuffer(self.data, {0: '<f4', 1: '<f2'}[kind], n, offset)
        return flat.astype(np.float64).reshape(dims)


def rms_norm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


class Model:
    def __init__(self, gguf):
        self.w, meta = gguf.tensors, gguf.meta
        self.arch = meta['general.architecture']
        get = lambda key, other=None: meta.get(self.arch + '.' + key, other)
        self.layers, self.heads = get('block_count'), get('attention.head_count')
        self.kv_heads = get('attention.head_count_kv', self.heads)
        self.head_dim = get('attention.key_length', get('embedding_length') // self.heads)
        self.n_rot = get('rope.dimension_count', self.head_dim)
        self.base = get('rope.freq_base', 10000.0)
        self.scaling = get('rope.scaling.type', 'linear')
        self.factor = get('rope.scaling.factor', 1.0)
        self.original = get('rope.scaling.original_context_length', get('context_length'))
        self.attention = get('rope.scaling.attn_factor', 1.0)
        self.window = get('attention.sliding_window', 0)
        self.eps = get('attention.layer_norm_rms_epsilon')

    def project(self, layer, name, x):
        bias = self.w.get('blk.%d.%s.bias' % (layer, name), 0.0)
        return x @ self.w['blk.%d.%s.weight' % (layer, name)].T + bias

    def turns(self):
        """Radians per position of each pair, and what rotated rows are multiplied by. YaRN's ramp is
        that of its authors' code, github.com/jquesnelle/yarn, between 32 turns and 1 turn."""
        pair = np.arange(self.n_rot // 2)
        plain = self.base ** (-2 * pair / self.n_rot) / self.w.get('rope_freqs.weight', 1.0)
        if self.scaling == 'none':
            return plain, self.attention
        if self.scaling == 'linear':
            return plain / self.factor, self.attention
        assert self.scaling == 'yarn'
        low, high = (self.n_rot * np.log(self.original / (n * 2 * np.pi)) / (2 * np.log(self.base))
                     for n in (32, 1))
        low, high = max(0, np.floor(low)), min(self.n_rot - 1, np.ceil(high))
        stretched = np.clip((pair - low) / max(high - low, 0.001), 0, 1)
        turns = plain * (1 - stretched) + plain / self.factor * stretched
        return turns, self.attention * (0.1 * np.log(self.factor) + 1)

    def rotate(self, x, first):
        """x [tokens][heads][head_dim] from position `first` on: pairs as complex numbers, turned."""
        half = self.n_rot // 2
        turns, magnitude = self.turns()
        turn = magnitude * np.exp(1j * np.arange(first, first + len(x))[:, None] * turns)[:, None, :]
        out = x.copy()
        if self.arch == 'llama':
            first, second = slice(0, self.n_rot, 2), slice(1, self.n_rot, 2)
        else:
            first, second = slice(0, half), slice(half, self.n_rot)
        z = (x[..., first] + 1j * x[..., second]) * turn
        out[..., first], out[..., second] = z.real, z.imag
        return out

    def heads_of(self, layer, name, x, heads):
        """Queries or keys, their heads normalised by themselves where the model does so."""
        rows = self.project(layer, name, x).reshape(len(x), heads, self.head_dim)
        w = self.w.get('blk.%d.%s_norm.weight' % (layer, name))
        return rows if w is None else rms_norm(rows, w, self.eps)

    def attend(self, layer, x, past):
        n, first, group = len(x), len(past[layer][0]), self.heads // self.kv_heads
        q = self.rotate(self.heads_of(layer, 'attn_q', x, self.heads), first)
        k = self.rotate(self.heads_of(layer, 'attn_k', x, self.kv_heads), first)
        v = self.project(layer, 'attn_v', x).reshape(n, self.kv_heads, self.head_dim)
        k, v = past[layer] = [np.concatenate(pair) for pair in zip(past[layer], (k, v))]
        out = np.empty_like(q)
        for head in range(self.heads):
            logits = q[:, head] @ k[:, head // group].T / np.sqrt(self.head_dim)
            logits[np.triu_indices(n, 1 + first, first + n)] = -np.inf
            if self.window:
                logits[np.tril_indices(n, first - self.window, first + n)] = -np.inf
            p = np.exp(logits - logits.max(1, keepdims=True))
            out[:, head] = p / p.sum(1, keepdims=True) @ v[:, head // group]
        return self.project(layer, 'attn_output', out.reshape(n, -1))

    def empty(self):
        """The keys and values of no tokens, for each layer."""
        return [[np.zeros((0, self.kv_heads, self.head_dim))] * 2 for _ in range(self.layers)]

    def logits(self, tokens, past=None, last=None):
        """float64 [tokens][vocabulary], of the `last` ones alone if that is given. The tokens come
        behind those of `past`, which takes them in."""
        past = self.empty() if past is None else past
        x = self.w['token_embd.weight'][tokens]
        for layer in range(self.layers):
            norm = lambda name: rms_norm(x, self.w['blk.%d.%s.weight' % (layer, name)], self.eps)
            x = x + self.attend(layer, norm('attn_norm'), past)
            h = norm('ffn_norm')
            gate = self.project(layer, 'ffn_gate', h)
            gate = gate / (1 + np.exp(-gate)) * self.project(layer, 'ffn_up', h)
            x = x + self.project(layer, 'ffn_down', gate)
        x = rms_norm(x[-last:] if last else x, self.w['output_norm.weight'], self.eps)
        return x @ self.w.get('output.weight', self.w['token_embd.weight']).T


def tokenize(gguf, text):
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    character = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    ids = {token: i for i, token in enumerate(gguf.meta['tokenizer.ggml.tokens'])}
    return [ids[character[b]] for b in text]


def greedy(model, tokens, count):
    """The greedy tokens, and by how much each leads its runner-up."""
    tokens, leads = list(tokens), []
    for _ in range(count):
        last = model.logits(tokens)[-1]
        leads.append(lead(last))
        tokens.append(int(last.argmax()))
    return tokens[-count:], leads


def mean_loss(logits, tokens, count):
    """-log softmax of each of the last `count` tokens by the logits before it."""
    rows = logits[-count - 1:-1]
    shifted = rows - rows.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return -log_p[np.arange(count), tokens[-count:]].mean()


def lead(logits):
    second, first = np.partition(logits, -2)[-2:]
    return first - second


def array(name, rows, form, per_line):
    """An array of a file of vectors: see tests/model/vectors.c."""
    text = '%s %d %d\n' % (name, len(rows), len(rows[0]))
    for row in rows:
        for first in range(0, len(row), per_line):
            text += ' '.join(form % x for x in row[first:first + per_line]) + '\n'
    return text


def write(path, comment, positions, logits, greedy_at, continuations):
    """logits: [n_positions][vocabulary] by the name of their array; continuations: (tokens, leads)
    for each position of `greedy_at`."""
    with open(path, 'w') as file:
        file.writelines('# %s\n' % line for line in comment.split('\n'))
        file.write(array('text_bytes', [[positions[-1] + 1]], '%d', 20))
        file.write(array('positions', [positions], '%d', 20))
        for name, rows in logits.items(): # after the token at each position
            file.write(array(name, rows, '%.8e', 8))
        at = [positions.index(p) for p in greedy_at]
        file.write(array('greedy_at', [at], '%d', 20))
        file.write(array('greedy', [c[0] for c in continuations], '%d', 20))
        file.write(array('leads', [c[1] for c in continuations], '%.3e', 10))


def positions_of(text):
    """Of an option: ascending positions between commas."""
    positions = [int(p) for p in text.split(',')]
    if positions != sorted(set(positions)) or positions[0] < 0:
        raise argparse.ArgumentTypeError('positions do not ascend from 0 on: ' + text)
    return positions


def main():
    parser = argparse.ArgumentParser(description='Reference logits of a GGUF model.')
    parser.add_argument('--model', required=True)
    parser.add_argument('--text', required=True, help='read up to the last position')
    parser.add_argument('--out', required=True)
    parser.add_argument('--positions', type=positions_of, default=[0, 1, 40, 119])
    parser.add_argument('--greedy', type=int, default=20, help='tokens after the last position')
    options = parser.parse_args()
    gguf = Gguf(options.model)
    model = Model(gguf)
    last = options.positions[-1]
    with open(options.text, 'rb') as file:
        tokens = tokenize(gguf, file.read(last + 1))
    if len(tokens) <= last:
        parser.error('%s has %d bytes, position %d asked' % (options.text, len(tokens), last))
    continuation = greedy(model, tokens, options.greedy)
    print('smallest lead of a greedy token: %.4f' % min(continuation[1]))
    whole = model.logits(tokens)
    if last >= LOSS_TOKENS:
        print('mean loss of the last %d tokens: %.6f' %
              (LOSS_TOKENS, mean_loss(whole, tokens, LOSS_TOKENS)))
    logits = {'logits': whole[options.positions]}
    comment = ('Logits of %s in float64, written by tests/model/make_logits.py.'
               % os.path.basename(options.model))
    write(options.out, comment, options.positions, logits, [last], [continuation])


if __name__ == '__main__':
    main()
