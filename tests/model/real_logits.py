#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/smollm2.logits or gemma3.logits, to which tests/model/real.c holds the library on
a real file.

The first text is the beginning of tests/data/text.txt, as llama.cpp cuts it into tokens; each line of
--prompts is one more, whose continuation begins at its end. Logits and greedy tokens are those of
families.py in float64, on the weights as the package gguf decodes them. Up to --peer tokens of each
text, and where continuations begin, llama.cpp reads too: a copy widened to f32, of which nothing is
written if it is too far away. For the record it reads the file itself, where it rounds activations to
8 bits before blocks.

The file holds a record for each text, little-endian: "LGTR", u32 tokens, u32 stride, u32 logits of a
row, u32 positions, u32 continuations, u32 greedy tokens of each; i32 tokens; u32 positions; f32 logits
after each of them, of tokens 0, stride, 2 * stride, ...; u32 positions of the continuations; for each
i32 greedy tokens, f32 their leads over the runner-up.

Run by hand; see peer_logits.py for how llama.cpp is installed. Takes 4 GB of memory, and minutes:
  venv/bin/pip install gguf && venv/bin/python tests/model/real_logits.py --model SmolLM2....gguf
           [--out smollm2.logits] [--positions 1,100,1000,4000,7900] [--greedy-at 100,4000]
           [--greedy 200] [--stride 61] [--peer 101] [--prompts FILE]
  venv/bin/python tests/model/real_logits.py --model gemma-3-270m....gguf --out gemma3.logits
           --positions 1,600,2100 --greedy-at 2100 --greedy 32 --stride 997 --peer 601
           --prompts tools/compare_llama/prompts.txt
"""
import argparse
import ctypes
import dataclasses
import os
import struct
import sys
import tempfile

import llama_cpp
import numpy as np

from families import FamilyModel, gelu
from make_logits import Gguf, lead, positions_of
from make_models import File
from peer_logits import BOUND_WIDENED, Peer, log, widen

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../data')
CHUNK = 256
BOUND_GELU = 5e-2  # llama.cpp reads it from a table of halves


class Keys(Gguf):
    """A file's head; tensors are File's."""

    def tensor(self, dims, kind, offset):
        return None


@dataclasses.dataclass
class Text:
    tokens: list
    positions: list
    greedy_at: list
    theirs: dict = dataclasses.field(default_factory=dict)  # llama.cpp's logits by file and position
    guesses: list = dataclasses.field(default_factory=list)  # its tokens, for each of greedy_at
    logits: list = dataclasses.field(default_factory=list)  # behind each of positions
    continuations: list = dataclasses.field(default_factory=list)  # (tokens, leads)

    def write(self, out, stride, count):
        rows = np.array([row[::stride] for row in self.logits], '<f4')
        out.write(b'LGTR' + struct.pack('<6I', len(self.tokens), stride, rows.shape[1], len(rows),
                                        len(self.continuations), count))
        out.write(np.array(self.tokens, '<i4').tobytes())
        out.write(np.array(self.positions, '<u4').tobytes() + rows.tobytes())
        out.write(np.array(self.greedy_at, '<u4').tobytes())
        for follows, leads in self.continuations:
            out.write(np.array(follows, '<i4').tobytes() + np.array(leads, '<f4').tobytes())


def read(model, text, positions):
    """For each of the positions the logits behind it, and the keys and values up to it."""
    past, done = model.empty(), 0
    for position in positions:
        while done <= position:
            end = min(done + CHUNK, position + 1)
            last = model.logits(text.tokens[done:end], past, 1)[-1]
            done = end
        yield position, last, [list(pair) for pair in past]


def greedy(model, past, last, guess, count):
    """The tokens that follow and their leads. All tokens of the guess are read at once; what is wrong
    in it costs time alone."""
    tokens, leads, rows = [], [], [last]
    while True:
        for row in rows:
            tokens.append(int(row.argmax()))
            leads.append(lead(row))
            if len(tokens) == count:
                return tokens, leads
            if tokens != guess[:len(tokens)]:
                break
        guess = tokens + guess[len(tokens):]
        rows = model.logits(guess[:count - 1], [list(pair) for pair in past],
                            min(len(guess), count - 1) - len(tokens) + 1)


def compute(model, text, count):
    guesses = iter(text.guesses)
    for position, last, past in read(model, text, text.positions):
        text.logits.append(last)
        print('position %d: token %d leads by %.3f' % (position, last.argmax(), lead(last)), flush=True)
        if position in text.greedy_at:
            guess = next(guesses)
            text.continuations.append(greedy(model, past, last, guess, count))
            tokens, leads = text.continuations[-1]
            same = np.logical_and.accumulate(np.equal(tokens, guess)).sum()
            print('greedy behind it: smallest lead %.4f; the first %d of %d are those of llama.cpp'
                  % (min(leads), same, count), flush=True)


def ask_peer(path, texts, options, continues):
    """Puts what llama.cpp says into each text's `theirs` under the path: logits by position, up to
    --peer. `continues`: also where continuations begin, and their tokens are the guesses."""
    peer = Peer(path, options.positions[-1] + 1 + options.greedy, options.threads)
    for text in texts:
        peer.cut(0)
        text.theirs[path] = {}
        for position in text.positions:
            goes_on = continues and position in text.greedy_at
            if position >= options.peer and not goes_on:
                continue
            logits = peer.feed(text.tokens[peer.length:position + 1])
            text.theirs[path][position] = logits
            if goes_on:
                text.guesses.append(peer.greedy(logits, options.greedy)[0])
    peer.close()


def check_peer(wide, texts, bound):
    """Ends the program if llama.cpp is too far away on the widened file."""
    for text in texts:
        exact = dict(zip(text.positions, text.logits))
        for path, theirs in text.theirs.items():
            for position, logits in theirs.items():
                distance = abs(logits - exact[position])
                print('llama.cpp at %d, %s: %.1e away, in the mean %.1e; largest logit %.1f'
                      % (position, os.path.basename(path), distance.max(), distance.mean(),
                         abs(exact[position]).max()), flush=True)
                if path == wide and distance.max() > bound:
                    sys.exit('more than %g' % bound)


def tokens_of(path, texts):
    """Of each text, with the token at its beginning that the file wants."""
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    every = []
    for text in texts:
        out = (ctypes.c_int32 * (len(text) + 2))()
        n = llama_cpp.llama_tokenize(vocabulary, text, len(text), out, len(out), True, False)
        every.append(list(out[:n]))
    llama_cpp.llama_model_free(model)
    return every


def parse():
    parser = argparse.ArgumentParser(description='Reference logits of a real GGUF file.')
    parser.add_argument('--model', required=True)
    parser.add_argument('--text', default=os.path.join(DATA, 'text.txt'))
    parser.add_argument('--out', default=os.path.join(DATA, 'smollm2.logits'))
    parser.add_argument('--positions', type=positions_of, default=[1, 100, 1000, 4000, 7900])
    parser.add_argument('--greedy-at', type=positions_of, default=[100, 4000])
    parser.add_argument('--greedy', type=int, default=200)
    parser.add_argument('--stride', type=int, default=61)
    parser.add_argument('--peer', type=int, default=101, help='tokens that llama.cpp reads')
    parser.add_argument('--threads', type=int, default=2, help='of llama.cpp')
    parser.add_argument('--prompts', help='a file with more texts, one a line')
    return parser.parse_args()


def main():
    options = parse()
    llama_cpp.llama_log_set(log, None)
    with open(options.text, 'rb') as file:
        lines = [file.read()]
    if options.prompts:
        with open(options.prompts, 'rb') as file:
            lines += file.read().splitlines()
    first, *prompts = tokens_of(options.model, lines)
    last = options.positions[-1]
    assert len(first) > last, 'the text has %d tokens' % len(first)
    texts = [Text(first[:last + 1], options.positions, options.greedy_at)]
    texts += [Text(tokens, [len(tokens) - 1], [len(tokens) - 1]) for tokens in prompts]
    file = File(options.model)
    model = FamilyModel(file, last + 1 + options.greedy)
    with tempfile.TemporaryDirectory() as folder:
        wide, keys = os.path.join(folder, 'wide.gguf'), Keys(options.model)
        keys.tensors = file.tensors
        widen(keys, wide)
        ask_peer(wide, texts, options, True)
        ask_peer(options.model, texts, options, False)
    for text in texts:
        compute(model, text, options.greedy)
    check_peer(wide, texts, BOUND_GELU if model.family.activation == gelu else BOUND_WIDENED)
    with open(options.out, 'wb') as out:
        for text in texts:
            text.write(out, options.stride, options.greedy)


if __name__ == '__main__':
    main()
