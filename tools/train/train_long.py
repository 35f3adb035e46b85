#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains on what train_needle.py began: the model widens to 4 query and 2 KV heads and learns to
find named keys among 10,000 tokens.

A training text is cut into blocks. Each block attends to itself alone, so that its states cost what
a short text costs; the questions at the end ("tails") attend to every block and to themselves, so
that the heads which retrieve grow sharp among 10,000 tokens at little cost. Random gaps between
blocks show far positions. The last stages use long blocks, then whole texts as one block each.

A stage goes on to the next when enough digits are right or its share of the time is used. Time is
the process's own, so that other work on the machine does not count. Made for one CPU core.

Data: any plain English file, less the lines of --held-out. The shipped weights saw the King James
Bible (public domain) from Debian's package bible-kjv:
  bible -f gen1:1-rev22:21 | sed -E 's/^[A-Za-z0-9]+:[0-9]+ //' > text.txt
The first hour of the shipped weights, train_needle.py's, did see the lines of tests/data/text.txt:
their perplexity on that file is not that of unseen text.
Script and weights are under the project's licence.

Needs PyTorch >= 2.1 (its attention on CPUs never holds a whole matrix of logits) and NumPy. Usage:
  train_needle.py --text text.txt --held-out ../../tests/data/text.txt --minutes 60 --out first.npz
  train_long.py --text text.txt --held-out ../../tests/data/text.txt --widen first.npz
                --minutes 60 --out weights.npz
  train_long.py ... --resume weights.pt --seed 1    (written beside the .npz, with the optimizer)
  npz_to_gguf.py --in weights.npz --out needle.gguf
MALLOC_MMAP_THRESHOLD_=8589934592 MALLOC_TRIM_THRESHOLD_=17179869184 in the environment saves the
fifth of the time that goes into fresh pages.
"""
import argparse
import os
import random
import time
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

import train_needle as first
from train_needle import ALPHABET, HEAD_DIM, read_text, rms_norm, rotate

MAX_POSITION = 16384
NAMES = first.NAMES + [b'brown', b'amber', b'ivory', b'coral', b'olive', b'lilac', b'teal', b'plum']
LEARNING_RATE, WARM_STEPS, REPORT_STEPS = 1e-3, 50, 10
# A tail's tokens; those of a passage to go on with: given, then asked.
TAIL, GIVEN, ASKED = 40, 12, 28


class Stage(NamedTuple):
    share: float      # of the time, at most
    texts: int        # a step
    blocks: int       # a text
    block: int        # tokens
    factor: float     # of the learning rate
    keys: int         # planted and asked for, at most
    copies: float     # share of blocks in which a random string comes twice
    target: float     # share of the digits that are right, running mean: the stage is done


STAGES = [Stage(0.10, 2, 8, 256, 1.0, 8, 0.2, 0.97),
          Stage(0.45, 1, 20, 512, 1.0, 12, 0.05, 0.99),
          Stage(0.25, 1, 5, 2048, 0.6, 12, 0.0, 0.995),
          Stage(0.20, 1, 1, 10240, 0.5, 12, 0.0, 2.0)]


class Layer(first.Layer):
    def qkv(self, x, angles, group):
        """[texts, parts, tokens, dim] -> [texts, parts, heads, tokens, HEAD_DIM], three times."""
        h = rms_norm(x, self.n1)
        split = lambda y: y.unflatten(-1, (-1, HEAD_DIM)).transpose(2, 3)
        q, k = rotate(split(self.q(h)), *angles), rotate(split(self.k(h)), *angles)
        return q, k.repeat_interleave(group, 2), split(self.v(h)).repeat_interleave(group, 2)

    def after(self, x, attended):
        x = x + self.o(attended.transpose(2, 3).flatten(3))
        h = rms_norm(x, self.n2)
        return x + self.d(F.silu(self.g(h)) * self.u(h))


def attend_blocks(q, k, v):
    flat = lambda y: y.flatten(0, 1)
    a = F.scaled_dot_product_attention(flat(q), flat(k), flat(v), is_causal=True)
    return a.unflatten(0, q.shape[:2])


def attend_tails(q, k, v, body_k, body_v):
    """A tail sees all blocks of its text and itself, not the other tails."""
    tails, n, seen = q.shape[1], q.shape[3], body_k.shape[1] * body_k.shape[3]
    whole = lambda y: y.transpose(1, 2).flatten(2, 3)  # [texts, heads, parts * tokens, HEAD_DIM]
    mask = torch.zeros(tails * n, seen + tails * n)
    mask[:, seen:] = torch.block_diag(*[torch.ones(n, n).tril()] * tails).log()
    a = F.scaled_dot_product_attention(whole(q), torch.cat([whole(body_k), whole(k)], 2),
                                       torch.cat([whole(body_v), whole(v)], 2), attn_mask=mask)
    return a.unflatten(2, (tails, n)).transpose(1, 2)


class Needle(first.Needle):
    layer_type = Layer

    def angles(self, positions):
        angle = positions[:, :, None, :, None].float() * self.inverse
        return angle.cos(), angle.sin()

    def forward(self, body, body_positions, tails, tail_positions):
        """Tokens and positions [texts, blocks or tails, tokens] -> logits of both."""
        x, y, group = self.e(body), self.e(tails), self.heads // self.kv_heads
        body_angles, tail_angles = self.angles(body_positions), self.angles(tail_positions)
        for layer in self.l:
            q, k, v = layer.qkv(x, body_angles, group)
            tail_q, tail_k, tail_v = layer.qkv(y, tail_angles, group)
            y = layer.after(y, attend_tails(tail_q, tail_k, tail_v, k, v))
            x = layer.after(x, attend_blocks(q, k, v))
        return [rms_norm(z, self.n) @ self.e.weight.T for z in (x, y)]


def bytes_of(row):
    return np.frombuffer(bytes(row), np.uint8).astype(np.int64)


def repeat_string(block, weight):
    """A random string at the block's start comes again at its end: the loss is on that."""
    n = len(block) - 1
    length = random.randint(16, n // 2 - 8)
    string = bytes_of(random.choice(ALPHABET) for _ in range(length))
    block[:length] = block[n + 1 - length:] = string
    weight[:] = 0.05
    weight[n + 1 - length:] = 1.0


def find_place(length, n, free, taken):
    """(block, start) for a plant that touches no other; None if 20 tries find none."""
    for _ in range(20):
        b, at = random.choice(free), random.randrange(n - length)
        if all(b != c or at + length <= start or at >= end for c, start, end in taken):
            taken.append((b, at, at + length))
            return b, at
    return None


def draw_text(text, stage):
    """Blocks with their weights, and tails as (bytes, first that counts, how many count, weight):
    questions for the planted keys, and passages of the text to go on with."""
    blocks, n = stage.blocks, stage.block
    at = random.randrange(len(text) - blocks * n - 1)
    whole = bytes_of(text[at:at + blocks * n + 1])
    body = np.stack([whole[b * n:b * n + n + 1] for b in range(blocks)])
    weight = np.ones((blocks, n), np.float32)
    copies = [b for b in range(1, blocks) if random.random() < stage.copies]
    for b in copies:
        repeat_string(body[b], weight[b])
    free, taken, tails = [b for b in range(blocks) if b not in copies], [], []
    for name in random.sample(NAMES, random.randint(1, stage.keys)):
        key = b'%05d' % random.randrange(100000)
        plant = b' The ' + name + b' pass key is ' + key + b'. Remember it. '
        place = find_place(len(plant), n, free, taken)
        if place:
            body[place[0], place[1]:place[1] + len(plant)] = bytes_of(plant)
            question = b'\nThe ' + name + b' pass key is '
            tails.append((question + key + b'.', len(question), 5, 3.0))
    for _ in range(max(1, len(tails) // 3)):
        b, at = random.randrange(blocks), random.randrange(n - TAIL)
        tails.append((body[b, at:at + TAIL].astype(np.uint8).tobytes(), GIVEN, ASKED, 0.5))
    return body, weight, tails


def draw_positions(stage):
    """Positions of the blocks and the first one of the tails: running from 0, shifted, or with gaps
    between the blocks."""
    blocks, n = stage.blocks, stage.block
    kind, room = random.random(), MAX_POSITION - blocks * n - TAIL
    starts = np.arange(blocks) * n
    if kind < 0.4:
        starts += random.randrange(room)
    elif kind < 0.7:
        starts += np.sort(np.random.randint(0, room, blocks))
    end = starts[-1] + n
    if 0.6 < kind < 0.7:
        end += random.randrange(MAX_POSITION - TAIL - end)
    return starts[:, None] + np.arange(n), end


def draw_batch(text, stage):
    """Tokens, weights and positions of the blocks, then of the tails, padded with weight 0."""
    drawn = [draw_text(text, stage) for _ in range(stage.texts)]
    most = max(len(tails) for _, _, tails in drawn)
    tokens = np.zeros((stage.texts, most, TAIL + 1), np.int64)
    weight = np.zeros((stage.texts, most, TAIL), np.float32)
    positions = [draw_positions(stage) for _ in drawn]
    ends = np.array([end for _, end in positions])
    for i, (_, _, tails) in enumerate(drawn):
        for j, (row, mark, length, w) in enumerate(tails):
            tokens[i, j, :len(row)] = bytes_of(row)
            weight[i, j, mark - 1:mark - 1 + length] = w
    tail_positions = np.broadcast_to(ends[:, None, None] + np.arange(TAIL), weight.shape)
    return [torch.tensor(np.stack(x)) for x in
            ([d[0] for d in drawn], [d[1] for d in drawn], [p for p, _ in positions],
             tokens, weight, tail_positions)]


def weighted_loss(logits, tokens, weight):
    loss = F.cross_entropy(logits.flatten(0, -2), tokens.flatten(), reduction='none')
    return (loss * weight.flatten()).sum() / weight.sum()


def train_step(model, optimizer, batch):
    """The losses of blocks and tails, and the share of the digits that are right."""
    body, weight, positions, tails, tail_weight, tail_positions = batch
    logits, tail_logits = model(body[..., :-1], positions, tails[..., :-1], tail_positions)
    body_loss = weighted_loss(logits, body[..., 1:], weight)
    tail_loss = weighted_loss(tail_logits, tails[..., 1:], tail_weight)
    optimizer.zero_grad()
    (body_loss + tail_loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    digits = tail_weight > 2
    right = ((tail_logits.argmax(-1) == tails[..., 1:]) & digits).sum().item()
    return body_loss.item(), tail_loss.item(), right / max(1, digits.sum().item())


class Progress(NamedTuple):
    stage: int = 0
    seconds: float = 0.0    # of all
    began: float = 0.0      # the stage, in those seconds
    step: int = 0


def save(model, optimizer, progress, out):
    """Each file appears whole or not at all."""
    checkpoint = os.path.splitext(out)[0] + '.pt'
    np.savez(out + '.part.npz', **{name: p.numpy() for name, p in model.state_dict().items()})
    torch.save((model.state_dict(), optimizer.state_dict(), tuple(progress)), checkpoint + '.part')
    os.replace(out + '.part.npz', out)
    os.replace(checkpoint + '.part', checkpoint)


def learning_rate(stage, progress, seconds):
    """Constant in a stage; over the last 30 % of all time it falls to a tenth."""
    warm_up = min(1, (progress.step + 1) / WARM_STEPS)
    left = min(1.0, (seconds - progress.seconds) / (0.3 * seconds))
    return LEARNING_RATE * stage.factor * warm_up * (0.1 + 0.9 * left)


def train_stage(model, optimizer, text, progress, seconds, out):
    stage, last, mean, clock = (STAGES[progress.stage], progress.stage == len(STAGES) - 1, 0.0,
                                time.process_time())
    end = seconds if last else min(seconds, progress.began + stage.share * seconds)
    while progress.seconds < end and mean < stage.target:
        for group in optimizer.param_groups:
            group['lr'] = learning_rate(stage, progress, seconds)
        losses = train_step(model, optimizer, draw_batch(text, stage))
        mean += (losses[2] - mean) * 0.02
        now = time.process_time()
        progress = progress._replace(seconds=progress.seconds + now - clock, step=progress.step + 1)
        clock = now
        if progress.step % REPORT_STEPS == 0:
            print('%6d %2d x %2d x %5d blocks %.3f tails %.3f digits %.2f mean %.3f  %.0f s' %
                  (progress.step, stage.texts, stage.blocks, stage.block, *losses, mean,
                   progress.seconds), flush=True)
            save(model, optimizer, progress, out)
    return progress._replace(stage=progress.stage + 1, began=progress.seconds)


def widen(model, path):
    """The weights of a model of fewer heads: its heads come first, the others add nothing until
    they have learnt to."""
    with np.load(path) as file, torch.no_grad():
        for name, p in model.state_dict().items():
            old = torch.tensor(file[name])
            if name.endswith('.o.weight'):
                p.zero_()
            p[tuple(slice(n) for n in old.shape)] = old


def main():
    parser = argparse.ArgumentParser(description='Trains the passkey model on long texts.')
    parser.add_argument('--text', required=True)
    parser.add_argument('--held-out', help='a file whose lines are left out of the text')
    parser.add_argument('--out', required=True, help='.npz of float32 arrays')
    parser.add_argument('--widen', help='.npz of a model of fewer heads to begin with')
    parser.add_argument('--resume', help='.pt to go on from')
    for name, kind, default in (('minutes', float, 60), ('dim', int, 128), ('layers', int, 4),
                                ('heads', int, 4), ('kv-heads', int, 2), ('seed', int, 0)):
        parser.add_argument('--' + name, type=kind, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    np.random.seed(options.seed)
    text = read_text(options)
    model = Needle(options.dim, options.layers, options.heads, options.kv_heads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95),
                                  weight_decay=0.05)
    progress = Progress()
    if options.widen:
        widen(model, options.widen)
    if options.resume:
        weights, state, saved = torch.load(options.resume)
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
        progress = Progress(*saved)
    print('parameters', sum(p.numel() for p in model.parameters()), 'text', len(text), flush=True)
    while progress.stage < len(STAGES):
        progress = train_stage(model, optimizer, text, progress, options.minutes * 60, options.out)
    save(model, optimizer, progress, options.out)


if __name__ == '__main__':
    main()
