#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Begins the small Llama-style byte model that retrieves planted passkeys from natural text; what
it writes, train_long.py goes on with.

Stages: copying of random strings, which forms the induction circuit in minutes; passkeys in short
texts; longer and longer texts, up to 2,048 tokens, with position gaps so that far positions are
seen before long texts are affordable. Runs on one CPU core; set OPENBLAS_NUM_THREADS=1, since two
thread pools at once are three times slower than one thread.

Data: any plain English file, less the lines of --held-out. The shipped weights saw the King James
Bible (public domain) from Debian's package bible-kjv:
  bible -f gen1:1-rev22:21 | sed -E 's/^[A-Za-z0-9]+:[0-9]+ //' > text.txt
Script and weights are under the project's licence.

Needs PyTorch >= 1.13 (Debian's python3-torch) and NumPy. Usage:
  train_needle.py --text text.txt --held-out ../../tests/data/text.txt
                  --minutes 60 --out first.npz
                  [--dim 256 --layers 4 --heads 4 --kv-heads 2]
                  [--resume weights.npz] [--from-stage N]
"""
import argparse
import math
import random
import time

import numpy as np
import torch
import torch.nn.functional as F

HEAD_DIM, VOCAB, NORM_EPS, ROPE_BASE = 64, 256, 1e-5, 500000.0
MAX_POSITION = 24576
NAMES = [b'red', b'blue', b'green', b'gold', b'white', b'black', b'pink', b'grey']
ALPHABET = b'abcdefghijklmnopqrstuvwxyz0123456789 '
# (share of the time, tokens a text, learning-rate factor, warm-up mix)
STAGES = [(0.15, 192, 1.0, True), (0.15, 192, 1.0, False), (0.15, 256, 0.8, False),
          (0.2, 512, 0.6, False), (0.2, 1024, 0.4, False), (0.15, 2048, 0.2, False)]
LEARNING_RATE, WARM_STEPS, TOKENS_A_STEP, REPORT_STEPS = 2e-3, 100, 4096, 50


def rms_norm(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPS) * w


def rotate(x, cos, sin):
    """Half-split pairing."""
    a, b = x[..., :HEAD_DIM // 2], x[..., HEAD_DIM // 2:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def linear(n_in, n_out):
    return torch.nn.Linear(n_in, n_out, bias=False)


class Layer(torch.nn.Module):
    """q, k, v, o: attention; g, u, d: gate, up, down; n1, n2: the norms before both."""

    def __init__(self, dim, heads, kv_heads, ff):
        super().__init__()
        self.q, self.o = linear(dim, heads * HEAD_DIM), linear(heads * HEAD_DIM, dim)
        self.k, self.v = linear(dim, kv_heads * HEAD_DIM), linear(dim, kv_heads * HEAD_DIM)
        self.g, self.u, self.d = linear(dim, ff), linear(dim, ff), linear(ff, dim)
        self.n1 = torch.nn.Parameter(torch.ones(dim))
        self.n2 = torch.nn.Parameter(torch.ones(dim))


class Needle(torch.nn.Module):
    layer_type = Layer

    def __init__(self, dim, layers, heads, kv_heads):
        super().__init__()
        self.dim, self.heads, self.kv_heads = dim, heads, kv_heads
        ff = dim * 8 // 3 // 32 * 32
        self.e = torch.nn.Embedding(VOCAB, dim)
        self.l = torch.nn.ModuleList([self.layer_type(dim, heads, kv_heads, ff)
                                     for _ in range(layers)])
        self.n = torch.nn.Parameter(torch.ones(dim))
        self.inverse = ROPE_BASE ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
        for p in self.parameters():
            if p.dim() == 2:
                torch.nn.init.normal_(p, 0, 0.02)
        for layer in self.l:
            for w in (layer.o, layer.d):
                torch.nn.init.normal_(w.weight, 0, 0.02 / math.sqrt(2 * layers))

    def attend(self, layer, h, cos, sin, mask):
        (batch, tokens, _), heads, kv_heads = h.shape, self.heads, self.kv_heads
        split = lambda y, n: y.view(batch, tokens, n, HEAD_DIM).transpose(1, 2)
        q = rotate(split(layer.q(h), heads), cos, sin)
        k = rotate(split(layer.k(h), kv_heads), cos, sin).repeat_interleave(heads // kv_heads, 1)
        v = split(layer.v(h), kv_heads).repeat_interleave(heads // kv_heads, 1)
        a = ((q @ k.transpose(-1, -2)) / math.sqrt(HEAD_DIM) + mask).softmax(-1)
        return layer.o((a @ v).transpose(1, 2).reshape(batch, tokens, heads * HEAD_DIM))

    def forward(self, tokens, positions):
        n = tokens.shape[1]
        x = self.e(tokens)
        angle = positions[:, :, None].float() * self.inverse
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        mask = torch.full((n, n), -1e9).triu(1)
        for layer in self.l:
            x = x + self.attend(layer, rms_norm(x, layer.n1), cos, sin, mask)
            h = rms_norm(x, layer.n2)
            x = x + layer.d(F.silu(layer.g(h)) * layer.u(h))
        return rms_norm(x, self.n) @ self.e.weight.T


def text_task(text, n):
    at = random.randrange(len(text) - n - 1)
    return text[at:at + n + 1], np.ones(n, np.float32)


def copy_task(text, n):
    """A random string, some text, the string again: loss on the second one."""
    length = random.randint(16, n // 2 - 8)
    string = bytes(random.choice(ALPHABET) for _ in range(length))
    at = random.randrange(len(text) - n - 1)
    row = (string + text[at:at + n + 1 - 2 * length] + string)[:n + 1]
    weight = np.full(n, 0.05, np.float32)
    weight[len(row) - length:] += 1.0
    return row, weight


def key_count(n):
    most = 1 if n < 200 else 2 if n < 400 else 4 if n < 1000 else 8
    return min(random.randint(1, most), max(1, (n - 120) // 100))


def passkey_task(text, n):
    """1 to 8 named keys at random depths of a text, asked for in random order at its end: loss
    mostly on the digits."""
    names = random.sample(NAMES, key_count(n))
    keys = [(name, b'%05d' % random.randrange(100000)) for name in names]
    plants = [b' The ' + a + b' pass key is ' + k + b'. Remember it. ' for a, k in keys]
    tail, marks = b'', []
    for name, key in random.sample(keys, len(keys)):
        tail += b'\nThe ' + name + b' pass key is '
        marks.append(len(tail))
        tail += key + b'.'
    need = n + 1 - len(tail) - sum(map(len, plants))
    at = random.randrange(len(text) - n - 1)
    body, row, start = text[at:at + need], b'', 0
    for cut, plant in zip(sorted(random.randrange(need + 1) for _ in plants), plants):
        row, start = row + body[start:cut] + plant, cut
    row += body[start:]
    weight = np.full(n, 0.3, np.float32)
    for mark in marks:
        weight[len(row) + mark - 1:len(row) + mark + 4] = 3.0
    return row + tail, weight


def draw_positions(n, warm):
    """As they stand, shifted, or with gaps; the warm-up has no gaps."""
    kind = random.random() * (0.6 if warm else 1.0)
    if kind < 0.3:
        return torch.arange(n)
    if kind < 0.6:
        return torch.arange(n) + random.randrange(MAX_POSITION - n)
    return torch.cumsum(torch.randint(1, max(2, min(17, MAX_POSITION // n)), (n,)), 0)


def draw_batch(text, rows, n, warm):
    tokens, weights, positions = [], [], []
    for _ in range(rows):
        kind = random.random()
        task = (copy_task if kind < (0.5 if warm else 0.1) else
                passkey_task if kind < (0.85 if warm else 0.6) else text_task)
        row, weight = task(text, n)
        tokens.append(np.frombuffer(row[:n + 1], np.uint8).astype(np.int64))
        weights.append(weight)
        positions.append(draw_positions(n, warm))
    x = torch.tensor(np.stack(tokens))
    return x[:, :-1], x[:, 1:], torch.tensor(np.stack(weights)), torch.stack(positions)


def train_step(model, optimizer, batch):
    """The loss and the share of the digits that are right."""
    x, y, weight, positions = batch
    logits = model(x, positions)
    loss = F.cross_entropy(logits.view(-1, VOCAB), y.reshape(-1), reduction='none')
    loss = (loss.view(weight.shape) * weight).sum() / weight.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    digits = weight > 2
    right = ((logits.argmax(-1) == y) & digits).sum().item() / max(1, digits.sum().item())
    return loss.item(), right


def save(model, path):
    np.savez(path, **{name: p.numpy() for name, p in model.state_dict().items()})


def resume(model, path):
    with np.load(path) as file:
        model.load_state_dict({name: torch.tensor(file[name]) for name in file.files})


def train(model, text, stages, seconds, out):
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95),
                                  weight_decay=0.05)
    total, start, step, begin = sum(s[0] for s in stages), time.time(), 0, 0.0
    for share, n, factor, warm in stages:
        end = begin + share / total * seconds
        while time.time() - start < end:
            left = 1 - (time.time() - start - begin) / (end - begin)
            for group in optimizer.param_groups:
                warm_up = min(1, (step + 1) / WARM_STEPS)
                group['lr'] = LEARNING_RATE * factor * warm_up * (0.4 + 0.6 * left)
            batch = draw_batch(text, max(2, TOKENS_A_STEP // n), n, warm)
            loss, right = train_step(model, optimizer, batch)
            if step % REPORT_STEPS == 0:
                print('%6d tokens %d loss %.3f digits %.2f  %.0f s' %
                      (step, n, loss, right, time.time() - start), flush=True)
                save(model, out)
            step += 1
        begin = end
    save(model, out)


def without(text, held_out):
    """The text less every line of the other."""
    lines = set(held_out.split(b'\n'))
    return b'\n'.join(line for line in text.split(b'\n') if line not in lines)


def read(path):
    with open(path, 'rb') as file:
        return file.read()


def read_text(options):
    """What --text holds, less the lines of --held-out."""
    text = read(options.text)
    return without(text, read(options.held_out)) if options.held_out else text


def main():
    parser = argparse.ArgumentParser(description='Trains the passkey model.')
    parser.add_argument('--text', required=True)
    parser.add_argument('--held-out', help='a file whose lines are left out of the text')
    parser.add_argument('--out', required=True, help='.npz of float32 arrays')
    parser.add_argument('--resume', help='.npz to begin from')
    for name, kind, default in (('minutes', float, 60), ('dim', int, 128), ('layers', int, 4),
                                ('heads', int, 2), ('kv-heads', int, 1), ('seed', int, 0),
                                ('from-stage', int, 0)):
        parser.add_argument('--' + name, type=kind, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    np.random.seed(options.seed)
    text = read_text(options)
    model = Needle(options.dim, options.layers, options.heads, options.kv_heads)
    if options.resume:
        resume(model, options.resume)
    print('parameters', sum(p.numel() for p in model.parameters()), 'text', len(text), flush=True)
    train(model, text, STAGES[options.from_stage:], options.minutes * 60, options.out)


if __name__ == '__main__':
    main()
