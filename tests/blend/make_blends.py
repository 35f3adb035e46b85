#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what blends are held to: small models and what each blend of them gives
(tests/data/blends), and the prompt with the cases (tests/data/blend_cases.h).

A forward pass of its own in float64 with NumPy, built on make_logits.py; shares no line with the
library. This is the rule that it computes, and that lib/blend must follow.

PROMPT. A list of parts, each of tokens: fresh, or a chunk that is stored, or a chunk that is missed
(it should be stored and is not, and counts as fresh). Row i of the prompt is its i-th token and has
position i. The last part is fresh.

CHUNK. Its K and V are computed from its tokens alone behind the sink: the sink's tokens have
positions 0 to s - 1, the chunk's from s on, then the sink's rows are dropped. Stored are, of every
layer, V and K as the matrix with its bias gives them: before a norm of heads, before the rotation.
A sliding window holds there as everywhere. Loading a row normalises heads of K and rotates them to
the row's position in the prompt.

ROWS. A row is exact if its chunk is stored and all that stands before the chunk in the prompt are
the tokens of the sink: its K and V are right where they stand. A row is a hit if its chunk is
stored and it is not exact. All others (fresh and missed) are fresh. n_hit is the number of hits.

LAYERS. h is the rows' hidden states; a row that is left out has none from then on.
  1. Layers before the check layer c = 1: K, V and attention of all rows, nothing is stored.
  2. Layer c: K and V of all rows are computed. dev[j] = sum over KV heads and channels of (V
     computed - V stored)^2, for the hits. K and V computed are installed for all rows. S_c is
     selected, and only its rows are attended and go on.
  3. Layers l = c + 1, ...: K and V of S_(l-1) are computed and installed, those of all other rows
     are the stored ones, rotated to their places. Where the schedule has a share for this layer,
     dev is measured anew for the hits of S_(l-1), before they are installed, and S_l is selected
     from them; else S_l = S_(l-1). Only S_l is attended and goes on.
  4. Logits are those of the prompt's last row.

MASK. By original position: row i sees the key of row j if j <= i, and under a sliding window w also
j > i - w, whichever rows are computed beside it.

SELECTORS. S_l has all fresh rows, none that is exact, and of the hits:
  none     none.
  all      all: the logits are those of the whole prompt computed plainly.
  list     those that are listed. Fixed from the check layer on.
  first    the first n tokens of each stored chunk. Fixed from the check layer on.
  hkvd     k_l = ceil(share_l * n_hit), computed in double, of the largest dev, among two equal ones
           the lower row; never more than S_(l-1) has. share_l is the schedule's share i for layer c
           + i; the last share holds for the layers behind it, without a new selection. One share is
           the flat schedule. dev that is not a number counts as +infinity. (In the cases here share
           * n_hit is no integer, so that ceil does not hang on a last bit.)
  reuse    the other rule for full reuse: no layer is computed for all rows. S_l is the fresh rows
           from layer 0 on, K and V of all others are the stored ones in all layers. Not `none`,
           which has K and V of layers 0 and c computed for all rows.
  question k_l of the largest mass, with k_l and ties as for hkvd. The mass of a row is what the
           question's rows attend to it in `reuse`: the sum over these rows, the query heads and the
           layers of the weights after softmax. The question is the rows behind the last part that
           is stored or missed. Masses are computed once, before layer 0 of the blend.
  asked    question with reuse's rule: no layer is computed for all rows. S_-1 is selected with the
           schedule's share 0 before layer 0, in which K and V of its rows alone are computed;
           share i belongs to layer i. K and V of all other rows are the stored ones.

The exact rows may be computed or loaded, in any layer: they are the same but for rounding.

The script writes nothing unless `all` equals make_logits.py's pass over the prompt, an exact row's
stored K and V equal the computed ones, wrong masks and left-out parts of the rule move the logits
by a bound, and the deviations at the edge of each selection differ by a part that no rounding
reaches.

Usage: make_blends.py [--out tests/data]
"""
import argparse
import math
import os
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, folder) for folder in ('../model', '../../tools/train')]
from make_logits import Gguf, Model, array, rms_norm
from npz_to_gguf import BOOL, F32, I32, STRING, TENSOR_F16, TENSOR_F32, U32, write_gguf

FRESH, STORED, MISSED = range(3)
KINDS = ('BLEND_FRESH', 'BLEND_STORED', 'BLEND_MISSED')
CHECK = 1
LAYERS, HEAD_DIM, VOCABULARY, CONTEXT = 5, 64, 48, 192
SINK = [1]  # the model's token <s>
BOUND_WRONG = 0.01  # least distance of a logit where a part of the rule is left out
BOUND_SAME = 1e-9
BOUND_EDGE = 0.01  # least part by which deviations at the edge of a selection differ

# dim, heads, KV heads, FFN; channels of a head that are rotated; biases; norms of heads.
MODELS = {
    'llama': dict(arch='llama', shape=(32, 2, 1, 32), rotated=64, biases=True, keys=[]),
    'qwen3': dict(arch='qwen3', shape=(32, 2, 2, 32), rotated=64, norms=True,
                  keys=[('rope.freq_base', F32, 100000.0)]),
    'window': dict(arch='llama', shape=(32, 4, 2, 32), rotated=32,
                   keys=[('attention.sliding_window', U32, 29),
                         ('rope.scaling.type', STRING, 'linear'),
                         ('rope.scaling.factor', F32, 2.5)]),
}

# (kind, number of the chunk's text or of fresh tokens, tokens). One chunk stands in two places.
PARTS = [(FRESH, 0, 1), (STORED, 1, 13), (STORED, 2, 21), (FRESH, 3, 3), (MISSED, 4, 9),
         (STORED, 5, 18), (STORED, 2, 21), (FRESH, 6, 5)]
# Name, selector and its number or list, shares. The list mixes rows of all stored chunks.
CASES = [('all', 'all', None, []), ('none', 'none', None, []), ('reuse', 'reuse', None, []),
         ('list', 'list', [14, 17, 18, 23, 31, 34, 48, 50, 53, 56, 61, 64, 65, 66, 79, 84], []),
         ('first', 'first', 3, []), ('flat', 'hkvd', None, [0.16]),
         ('falling', 'hkvd', None, [0.36, 0.23, 0.11]), ('two', 'hkvd', None, [0.31, 0.21]),
         ('question', 'question', None, [0.41, 0.14, 0.04]), ('asked', 'asked', None, [0.41, 0.13])]


def make_model(path, name, spec, seed):
    """A small random model. What a layer adds is small enough that stored K and V are of use."""
    (dim, heads, kv_heads, ff), arch = spec['shape'], spec['arch']
    rng = np.random.default_rng(seed)
    draw = lambda rows, cols, scale: rng.standard_normal((rows, cols)) * scale / np.sqrt(cols)
    vector = lambda n, mean: mean + 0.3 * rng.standard_normal(n)
    tensors = [('token_embd.weight', draw(VOCABULARY, dim, 4), TENSOR_F16),
               ('output_norm.weight', vector(dim, 1), TENSOR_F32)]
    for i in range(LAYERS):
        for matrix, rows, cols, scale in (
                ('attn_q', heads * HEAD_DIM, dim, 1.2), ('attn_k', kv_heads * HEAD_DIM, dim, 1.2),
                ('attn_v', kv_heads * HEAD_DIM, dim, 1.5),
                ('attn_output', dim, heads * HEAD_DIM, 1),
                ('ffn_gate', ff, dim, 1), ('ffn_up', ff, dim, 1), ('ffn_down', dim, ff, 0.7)):
            tensors.append(('blk.%d.%s.weight' % (i, matrix), draw(rows, cols, scale), TENSOR_F16))
            if spec.get('biases') and matrix in ('attn_q', 'attn_k', 'attn_v'):
                tensors.append(('blk.%d.%s.bias' % (i, matrix), vector(rows, 0), TENSOR_F32))
        norms = [('attn_norm', dim), ('ffn_norm', dim)]
        norms += [('attn_q_norm', HEAD_DIM), ('attn_k_norm', HEAD_DIM)] if spec.get('norms') else []
        tensors += [('blk.%d.%s.weight' % (i, n), vector(size, 1), TENSOR_F32) for n, size in norms]
    keys = [('block_count', U32, LAYERS), ('context_length', U32, CONTEXT),
            ('embedding_length', U32, dim), ('feed_forward_length', U32, ff),
            ('attention.head_count', U32, heads), ('attention.head_count_kv', U32, kv_heads),
            ('attention.key_length', U32, HEAD_DIM), ('attention.value_length', U32, HEAD_DIM),
            ('attention.layer_norm_rms_epsilon', F32, 1e-5),
            ('rope.dimension_count', U32, spec['rotated']), *spec['keys']]
    texts = ['<unk>', '<s>', '</s>'] + [chr(65 + i) for i in range(VOCABULARY - 3)]
    entries = [('general.architecture', STRING, arch), ('general.name', STRING, name)]
    entries += [(arch + '.' + key, kind, content) for key, kind, content in keys]
    entries += [('tokenizer.ggml.model', STRING, 'llama'), ('tokenizer.ggml.tokens', STRING, texts),
                ('tokenizer.ggml.token_type', I32, [2, 3, 3] + [1] * (VOCABULARY - 3)),
                ('tokenizer.ggml.scores', F32, [0.0] * VOCABULARY),
                ('tokenizer.ggml.add_bos_token', BOOL, False)]
    write_gguf(path, entries, tensors)


class Prompt:
    """The tokens of the parts in a row; what each row is; the stored chunks with their K and V."""

    def __init__(self, model, texts):
        self.parts = [(kind, texts[number][:n]) for kind, number, n in PARTS]
        self.tokens = [t for _, tokens in self.parts for t in tokens]
        self.n = len(self.tokens)
        self.exact, self.hit = np.zeros(self.n, bool), np.zeros(self.n, bool)
        self.chunks = []
        shape = (self.n, model.kv_heads, model.head_dim)
        self.stored = [(np.zeros(shape), np.zeros(shape)) for _ in range(model.layers)]
        at = 0
        for kind, tokens in self.parts:
            rows = slice(at, at + len(tokens))
            if kind == STORED:
                self.exact[rows] = self.tokens[:at] == SINK
                self.hit[rows] = not self.exact[at]
                self.chunks.append(range(at, at + len(tokens)))
                for to, of in zip(self.stored, model.record(tokens)):
                    to[0][rows], to[1][rows] = of
            at += len(tokens)
        self.fresh = ~self.exact & ~self.hit
        self.n_hit = int(self.hit.sum())
        behind = [kind for kind, _ in self.parts][::-1]
        last = next(i for i, kind in enumerate(behind) if kind != FRESH)
        self.question = self.n - sum(len(tokens) for _, tokens in self.parts[::-1][:last])


class Blender(Model):
    """Model, for rows that need not be neighbours."""

    def turn(self, x, positions):
        """Heads of rows rotated to their positions, each pair by its sine and cosine."""
        half, (turns, magnitude) = self.n_rot // 2, self.turns()
        angle = np.asarray(positions)[:, None, None] * turns
        c, s = magnitude * np.cos(angle), magnitude * np.sin(angle)
        first = np.arange(half) * 2 if self.arch == 'llama' else np.arange(half)
        second = first + (1 if self.arch == 'llama' else half)
        out = x.copy()
        out[..., first] = x[..., first] * c - x[..., second] * s
        out[..., second] = x[..., first] * s + x[..., second] * c
        return out

    def key(self, layer, bare, positions):
        """K as attention reads it, of K as it is stored."""
        w = self.w.get('blk.%d.attn_k_norm.weight' % layer)
        return self.turn(bare if w is None else rms_norm(bare, w, self.eps), positions)

    def project_kv(self, layer, x):
        """K before its norm and its rotation, and V, of rows of hidden states."""
        x = rms_norm(x, self.w['blk.%d.attn_norm.weight' % layer], self.eps)
        return [self.project(layer, name, x).reshape(len(x), self.kv_heads, self.head_dim)
                for name in ('attn_k', 'attn_v')]

    def weights(self, layer, x, rows, k, mask):
        """What each head of `rows`, of hidden states x, attends to rows of k: [head][row][of k]."""
        h = rms_norm(x, self.w['blk.%d.attn_norm.weight' % layer], self.eps)
        q = self.turn(self.heads_of(layer, 'attn_q', h, self.heads), rows)
        group, out = self.heads // self.kv_heads, []
        for head in range(self.heads):
            logits = q[:, head] @ k[:, head // group].T / math.sqrt(self.head_dim)
            logits[~mask] = -np.inf
            p = np.exp(logits - logits.max(1, keepdims=True))
            out.append(p / p.sum(1, keepdims=True))
        return out

    def finish_layer(self, layer, x, rows, k, v, mask):
        """The layer's output for the hidden states x of `rows`, which see rows of k and v."""
        p = self.weights(layer, x, rows, k, mask)
        group = self.heads // self.kv_heads
        out = np.stack([p[head] @ v[:, head // group] for head in range(self.heads)], 1)
        x = x + self.project(layer, 'attn_output', out.reshape(len(x), -1))
        h = rms_norm(x, self.w['blk.%d.ffn_norm.weight' % layer], self.eps)
        gate = self.project(layer, 'ffn_gate', h)
        gate = gate / (1 + np.exp(-gate)) * self.project(layer, 'ffn_up', h)
        return x + self.project(layer, 'ffn_down', gate)

    def visible(self, rows, n):
        """[rows][n]: by original position."""
        rows, at = np.asarray(rows)[:, None], np.arange(n)[None, :]
        return (at <= rows) & ((at > rows - self.window) if self.window else True)

    def record(self, tokens):
        """K before norm and rotation, and V, of each layer, of a chunk that is alone behind the
        sink."""
        x = self.w['token_embd.weight'][SINK + list(tokens)]
        rows, out = np.arange(len(x)), []
        for layer in range(self.layers):
            bare, v = self.project_kv(layer, x)
            out.append((bare[len(SINK):], v[len(SINK):]))
            x = self.finish_layer(layer, x, rows, self.key(layer, bare, rows), v,
                                  self.visible(rows, len(x)))
        return out

    def masses(self, prompt, wrong=''):
        """What the question attends to each row in full reuse."""
        rows, mass = np.flatnonzero(prompt.fresh), np.zeros(prompt.n)
        x = self.w['token_embd.weight'][np.array(prompt.tokens)[rows]]
        asks = rows >= (prompt.n - 1 if wrong == 'last row' else prompt.question)
        if wrong == 'all fresh':
            asks = rows >= 0
        for layer in range(self.layers):
            bare, v = (plane.copy() for plane in prompt.stored[layer])
            bare[rows], v[rows] = self.project_kv(layer, x)
            k, mask = self.key(layer, bare, np.arange(prompt.n)), self.visible(rows, prompt.n)
            if wrong != 'last layer' or layer == self.layers - 1:
                mass += sum(p[asks].sum(0) for p in self.weights(layer, x, rows, k, mask))
            x = self.finish_layer(layer, x, rows, k, v, mask)
        return mass

    def blend(self, prompt, selector, number=None, shares=(), wrong=''):
        """(rows after each layer, logits of the last row, least distance of deviations at the edge
        of a selection). `wrong` leaves a part of the rule out."""
        rows, edge, check = np.arange(prompt.n), np.inf, CHECK
        mass = self.masses(prompt, wrong) if selector in ('question', 'asked') else None
        if selector == 'reuse':
            rows = np.flatnonzero(prompt.fresh)
        if selector == 'asked':
            rows, edge = choose(prompt, rows, selector, number, shares[0], mass)
            check = 0
        x, kept = self.w['token_embd.weight'][np.array(prompt.tokens)[rows]], []
        for layer in range(self.layers):
            bare, v = (plane.copy() for plane in prompt.stored[layer])
            stored_v = v.copy()
            fresh_k, fresh_v = self.project_kv(layer, x)
            bare[rows], v[rows] = fresh_k, fresh_v
            stay = np.ones(len(rows), bool)
            if layer >= CHECK and selector != 'reuse':
                share = shares[layer - check] if layer - check < len(shares) else None
                dev = np.full(prompt.n, -np.inf)
                dev[rows] = ((fresh_v - stored_v[rows]) ** 2).sum((1, 2))
                if layer == check or share is not None:
                    chosen, distance = choose(prompt, rows, selector, number, share,
                                              dev if mass is None else mass)
                    stay, edge = np.isin(rows, chosen), min(edge, distance)
            if wrong == 'selected only' and layer == CHECK:
                for plane, old in zip((bare, v), prompt.stored[layer]):
                    plane[rows[~stay]] = old[rows[~stay]]
            at = np.arange(prompt.n)
            if wrong == 'not moved':
                at = np.where(prompt.hit, len(SINK) + prompt_places(prompt), at)
            k = self.key(layer, bare, at)
            k[rows] = self.key(layer, fresh_k, rows)
            rows, x = rows[stay], x[stay]
            mask = self.visible(rows, prompt.n)
            if wrong == 'mask':  # as if the rows were the prompt's last
                mask = self.visible(np.arange(prompt.n - len(rows), prompt.n), prompt.n)
            kept.append(rows)
            x = self.finish_layer(layer, x, rows, k, v, mask)
        x = rms_norm(x[-1:], self.w['output_norm.weight'], self.eps)
        return kept, (x @ self.w.get('output.weight', self.w['token_embd.weight']).T)[0], edge


def prompt_places(prompt):
    """The place of each row in its part."""
    return np.concatenate([np.arange(len(tokens)) for _, tokens in prompt.parts])


def choose(prompt, rows, selector, number, share, dev):
    """The rows that stay of `rows`, and by which part the deviations at the edge differ."""
    fresh = np.flatnonzero(prompt.fresh)
    hits = [int(i) for i in rows if prompt.hit[i]]
    if selector == 'all':
        return np.union1d(fresh, hits), np.inf
    if selector == 'none':
        return fresh, np.inf
    if selector == 'list':
        assert set(number) <= set(hits), 'rows that are no hits are listed'
        return np.union1d(fresh, number), np.inf
    if selector == 'first':
        chosen = [i for chunk in prompt.chunks for i in chunk[:number] if prompt.hit[i]]
        return np.union1d(fresh, chosen), np.inf
    assert selector in ('hkvd', 'question', 'asked') and 0.01 < share * prompt.n_hit % 1 < 0.99
    k = min(math.ceil(share * prompt.n_hit), len(hits))
    order = sorted(hits, key=lambda i: (-dev[i], i))
    # What a window hides has mass 0, exactly.
    sharp = k == len(order) or dev[order[k - 1]] == 0
    distance = np.inf if sharp else 1 - dev[order[k]] / dev[order[k - 1]]
    return np.union1d(fresh, order[:k]), distance


def blends_of(model, prompt):
    return {name: model.blend(prompt, selector, number, shares)
            for name, selector, number, shares in CASES}


def is_good(name, model, prompt, blends):
    """Whether the cases are right and need each part of the rule; prints what is not."""
    plain = model.logits(prompt.tokens)[-1]
    same = abs(blends['all'][1] - plain).max()
    x, exact = model.w['token_embd.weight'][prompt.tokens], 0
    for layer in range(model.layers):
        bare, v = model.project_kv(layer, x)
        for computed, stored in zip((bare, v), prompt.stored[layer]):
            exact = max(exact, abs(computed - stored)[prompt.exact].max())
        rows = np.arange(prompt.n)
        x = model.finish_layer(layer, x, rows, model.key(layer, bare, rows), v,
                               model.visible(rows, prompt.n))
    least = {}
    for wrong in ('mask', 'selected only', 'not moved'):
        least[wrong] = min(
            abs(model.blend(prompt, s, number, shares, wrong)[1] - blends[c][1]).max()
            for c, s, number, shares in CASES if c in ('list', 'flat', 'falling'))
    for wrong in ('last layer', 'last row', 'all fresh'):
        least[wrong] = min(
            abs(model.blend(prompt, s, number, shares, wrong)[1] - blends[c][1]).max()
            for c, s, number, shares in CASES if s in ('question', 'asked'))
    names = [c[0] for c in CASES]
    least['other case'] = min(abs(blends[a][1] - blends[b][1]).max()
                              for a in names for b in names if a < b)
    edge = min(b[2] for b in blends.values())
    print('%s: %d rows, %d hits; all %.0e, exact rows %.0e; edge %.4f; %s; largest logit %.1f'
          % (name, prompt.n, prompt.n_hit, same, exact, edge,
             ', '.join('%s %.3f' % pair for pair in least.items()), abs(plain).max()))
    return (same <= BOUND_SAME and exact <= BOUND_SAME and edge >= BOUND_EDGE and
            min(least.values()) >= BOUND_WRONG)


# ---- The files ----------------------------------------------------------------------------------

def numbers(values):
    """Lines of at most 100 columns."""
    lines, line = [], '   '
    for text in ('%d,' % v for v in values):
        if len(line) + 1 + len(text) > 100:
            lines.append(line)
            line = '   '
        line += ' ' + text
    return '\n'.join(lines + [line])


HEAD = '''/* SPDX-License-Identifier: Apache-2.0 */
/* The prompt and the cases of blends/, written by tests/blend/make_blends.py, whose head states the
 * rule. */
#ifndef TEST_BLEND_CASES_H
#define TEST_BLEND_CASES_H

#include <stddef.h>
#include <stdint.h>

enum { BLEND_LAYERS = %d, BLEND_VOCABULARY = %d, BLEND_CONTEXT = %d, BLEND_CHECK = %d };
enum { BLEND_SINKS = %d, BLEND_PARTS = %d, BLEND_ROWS = %d, BLEND_HITS = %d };
enum { BLEND_CASES = %d, BLEND_MODELS = %d };

/* A missed part is a chunk that the store does not have. */
typedef enum blend_kind { BLEND_FRESH, BLEND_STORED, BLEND_MISSED } blend_kind;

/* Tokens [first, first + n) of blend_tokens. Two stored parts may be one chunk. */
typedef struct blend_part {
    blend_kind kind;
    uint32_t first, n;
    int exact; /* stored, and right where it stands */
} blend_part;

typedef struct blend_case {
    const char *name, *selector; /* all, none, reuse, list, first, hkvd, question, asked */
    uint32_t first;              /* of selector first: tokens of each chunk */
    const uint32_t *listed;      /* of selector list: rows */
    uint32_t n_listed;
    double shares[3]; /* of hkvd and question, from the check layer on; of asked, from layer 0 on */
    uint32_t n_shares;
} blend_case;

/* The model is blends/<name>.gguf, and what its blends give stands in blends/<name>.logits. */
static const char *const blend_models[BLEND_MODELS] = {%s};
/* The tokens of the sink, behind which chunks are computed. */
static const int32_t blend_sink[BLEND_SINKS] = {%s};
'''


def case_text(case):
    name, selector, number, shares = case
    fields = ['.name = "%s"' % name, '.selector = "%s"' % selector]
    if selector == 'first':
        fields.append('.first = %d' % number)
    if selector == 'list':
        fields += ['.listed = blend_listed', '.n_listed = %d' % len(number)]
    if shares:
        fields += ['.shares = {%s}' % ', '.join('%g' % s for s in shares),
                   '.n_shares = %d' % len(shares)]
    return '    {%s},\n' % ', '.join(fields)


def write_cases(path, prompt):
    listed = next(c[2] for c in CASES if c[1] == 'list')
    text = HEAD % (LAYERS, VOCABULARY, CONTEXT, CHECK, len(SINK), len(PARTS), prompt.n,
                   prompt.n_hit, len(CASES), len(MODELS),
                   ', '.join('"%s"' % name for name in MODELS), ', '.join(map(str, SINK)))
    text += 'static const int32_t blend_tokens[BLEND_ROWS] = {\n%s\n};\n' % numbers(prompt.tokens)
    text += 'static const blend_part blend_parts[BLEND_PARTS] = {\n'
    at = 0
    for kind, tokens in prompt.parts:
        text += '    {%s, %d, %d, %d},\n' % (KINDS[kind], at, len(tokens), prompt.exact[at])
        at += len(tokens)
    text += '};\nstatic const uint32_t blend_listed[] = {\n%s\n};\n' % numbers(listed)
    text += 'static const blend_case blend_cases[BLEND_CASES] = {\n%s};\n\n#endif\n' % ''.join(
        case_text(c) for c in CASES)
    with open(path, 'w') as file:
        file.write(text)


def write_results(path, name, blends):
    """Of each case how many rows stay after each layer, these rows, layer after layer, and the
    logits of the last row."""
    with open(path, 'w') as file:
        file.write('# Blends of %s.gguf in float64, written by tests/blend/make_blends.py.\n' % name)
        for case in CASES:
            kept, logits, _ = blends[case[0]]
            file.write(array(case[0] + '.counts', [[len(rows) for rows in kept]], '%d', 20))
            file.write(array(case[0] + '.rows', [[i for rows in kept for i in rows]], '%d', 20))
            file.write(array(case[0] + '.logits', [logits], '%.8e', 8))


def texts_of(seed):
    rng = np.random.default_rng(seed)
    texts = {number: [int(t) for t in rng.integers(3, VOCABULARY, n)] for _, number, n in PARTS}
    texts[0] = SINK
    return texts


def main():
    parser = argparse.ArgumentParser(description='Blends of small models in float64.')
    parser.add_argument('--out', default=os.path.join(HERE, '../data'))
    parser.add_argument('--seed', type=int, default=24, help='the first of the texts to try')
    options = parser.parse_args()
    folder = os.path.join(options.out, 'blends')
    os.makedirs(folder, exist_ok=True)
    models = {}
    for i, (name, spec) in enumerate(MODELS.items()):
        path = os.path.join(folder, name + '.gguf')
        make_model(path, name, spec, 300 + i)
        models[name] = Blender(Gguf(path))
    for seed in range(options.seed, options.seed + 200):
        prompts = {name: Prompt(model, texts_of(seed)) for name, model in models.items()}
        results = {name: blends_of(models[name], prompts[name]) for name in models}
        if all([is_good(name, models[name], prompts[name], results[name]) for name in models]):
            print('texts of seed %d' % seed)
            write_cases(os.path.join(options.out, 'blend_cases.h'), prompts['llama'])
            for name, blends in results.items():
                write_results(os.path.join(folder, name + '.logits'), name, blends)
            return
    sys.exit('no texts are good')


if __name__ == '__main__':
    main()
