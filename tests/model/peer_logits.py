#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/needle.logits, to which tests/model/logits.c holds the library.

Two implementations that share no line with the library compute the vectors: llama.cpp (the peer),
which gets token ids, not text, keeps an f32 cache and uses no flash attention; and make_logits.py,
in float64. The peer rounds activations to f16 before every f16 matrix, so it reads a copy with the
weights widened to f32, which changes none of them; for the record it also runs the file itself. The
distances of both from float64 are printed, and nothing is written if one exceeds its bound.

Run by hand, for every new needle.gguf. pip builds llama.cpp from source, which takes CMake and a
C++ compiler, and brings NumPy:
  python3 -m venv venv && venv/bin/pip install llama-cpp-python==0.3.36
  venv/bin/python tests/model/peer_logits.py
           [--model needle.gguf] [--text text.txt] [--out needle.logits]
           [--positions 0,63,150,999,3999] [--greedy-at 999,3999] [--greedy 200]
"""
import argparse
import os
import struct
import sys
import tempfile

import llama_cpp
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, '../data')
sys.path.insert(0, os.path.join(HERE, '../../tools/train'))
from make_logits import Gguf, Model, lead, positions_of, tokenize, write
from npz_to_gguf import TENSOR_F32, pad, string, tensor_bytes

BATCH = 512
# Largest distances of a logit from float64.
BOUND_WIDENED, BOUND_SHIPPED = 2e-3, 0.1


def widen(gguf, path):
    """The same metadata, every tensor in f32."""
    infos, data = b'', bytearray()
    for name, x in gguf.tensors.items():
        infos += string(name) + struct.pack('<I%dQ' % x.ndim, x.ndim, *x.shape[::-1])
        infos += struct.pack('<IQ', TENSOR_F32, len(data))
        data += pad(tensor_bytes(x, TENSOR_F32))
    with open(path, 'wb') as file:
        file.write(pad(gguf.data[:gguf.keys_end] + infos) + data)


@llama_cpp.llama_log_callback
def log(level, text, _):
    if level == 4:  # errors
        sys.stderr.write(text.decode(errors='replace'))


class Peer:
    """llama.cpp with one sequence."""

    def __init__(self, path, longest, threads=4):
        params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        assert self.model, 'llama.cpp does not load ' + path
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = longest, BATCH, BATCH
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        assert self.context, 'llama.cpp gives no context of %d tokens' % longest
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self.length = 0

    def close(self):
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def feed(self, tokens):
        """The logits after the last of them."""
        for start in range(0, len(tokens), BATCH):
            piece = tokens[start:start + BATCH]
            self.batch.n_tokens = len(piece)
            for i, token in enumerate(piece):
                self.batch.token[i], self.batch.pos[i] = token, self.length + i
                self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, 0
                self.batch.logits[i] = i == len(piece) - 1
            status = llama_cpp.llama_decode(self.context, self.batch)
            assert status == 0, 'llama_decode: %d' % status
            self.length += len(piece)
        row = llama_cpp.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(row, (self.vocabulary,)).copy()

    def cut(self, length):
        memory = llama_cpp.llama_get_memory(self.context)
        assert llama_cpp.llama_memory_seq_rm(memory, 0, length, -1)
        self.length = length

    def greedy(self, logits, count):
        """The tokens that follow the logits and by how much each leads; then goes back."""
        start, tokens, leads = self.length, [], []
        for _ in range(count):
            tokens.append(int(logits.argmax()))
            leads.append(lead(logits))
            logits = self.feed(tokens[-1:])
        self.cut(start)
        return tokens, leads


def run_peer(path, tokens, options):
    """Logits at the positions, and (tokens, leads) after each of --greedy-at."""
    peer = Peer(path, len(tokens) + options.greedy)
    logits, continuations = [], []
    for position in options.positions:
        logits.append(peer.feed(tokens[peer.length:position + 1]))
        if position in options.greedy_at:
            continuations.append(peer.greedy(logits[-1], options.greedy))
    peer.close()
    return np.array(logits), continuations


def report(what, logits, exact, positions, bound):
    """Prints the largest distances; true if none exceeds the bound."""
    most = abs(logits - exact).max(1)
    for position, distance, row in zip(positions, most, exact):
        print('%s, position %d: %.2e, %.1e of the largest logit'
              % (what, position, distance, distance / abs(row).max()))
    return most.max() <= bound


def parse():
    parser = argparse.ArgumentParser(description='Logits of needle.gguf by llama.cpp.')
    parser.add_argument('--model', default=os.path.join(DATA, 'needle.gguf'))
    parser.add_argument('--text', default=os.path.join(DATA, 'text.txt'))
    parser.add_argument('--out', default=os.path.join(DATA, 'needle.logits'))
    parser.add_argument('--positions', type=positions_of, default=[0, 63, 150, 999, 3999])
    parser.add_argument('--greedy-at', type=positions_of, default=[999, 3999])
    parser.add_argument('--greedy', type=int, default=200, help='tokens after each of --greedy-at')
    options = parser.parse_args()
    if not set(options.greedy_at) <= set(options.positions):
        parser.error('--greedy-at %s: not all are in --positions' % options.greedy_at)
    return parser, options


def main():
    parser, options = parse()
    llama_cpp.llama_log_set(log, None)
    gguf = Gguf(options.model)
    last = options.positions[-1]
    with open(options.text, 'rb') as file:
        tokens = tokenize(gguf, file.read(last + 1))
    if len(tokens) <= last:
        parser.error('%s has %d bytes, position %d asked' % (options.text, len(tokens), last))
    context = gguf.meta[gguf.meta['general.architecture'] + '.context_length']
    if len(tokens) + options.greedy > context:
        parser.error('%d tokens and %d greedy ones, the model states %d'
                     % (len(tokens), options.greedy, context))
    exact = Model(gguf).logits(tokens)[options.positions]
    with tempfile.TemporaryDirectory() as folder:
        wide = os.path.join(folder, 'wide.gguf')
        widen(gguf, wide)
        logits, continuations = run_peer(wide, tokens, options)
    shipped, _ = run_peer(options.model, tokens, options)
    good = report('widened', logits, exact, options.positions, BOUND_WIDENED)
    good &= report('as shipped', shipped, exact, options.positions, BOUND_SHIPPED)
    for position, (_, leads) in zip(options.greedy_at, continuations):
        print('greedy from position %d: smallest lead %.4f, at step %d; %d of %d below 0.02'
              % (position, min(leads), np.argmin(leads), np.sum(np.less(leads, 0.02)), len(leads)))
    if not good:
        sys.exit('a logit is further from float64 than %g (widened) or %g (as shipped)'
                 % (BOUND_WIDENED, BOUND_SHIPPED))
    comment = ('Logits of %s, written by tests/model/peer_logits.py.\n'
               'logits: make_logits.py, float64. peer, greedy, leads:\n'
               'llama.cpp as built by llama-cpp-python %s, f32 cache, weights widened to f32.'
               % (os.path.basename(options.model), llama_cpp.__version__))
    write(options.out, comment, options.positions,
          {'logits': exact, 'peer': logits}, options.greedy_at, continuations)


if __name__ == '__main__':
    main()
