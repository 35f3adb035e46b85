#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicts what attention takes on an H200, from bytes and latencies, beside what was measured.

Usage: gpu_model.py [--terms] [FILE.json...]

The files are of `tamis bench attention --json` or of tools/gpu_check.sh; without one, the shapes
that gpu_check.sh measures. A row is one layer of one decode step. Each launch of it costs the gap
to the launch before, a chain of latencies that nothing hides, and its bytes at the bandwidth that
its blocks can draw. ASSUMED holds each figure that is not counted. Where a measured row is far from
its prediction one of them is wrong; --terms tells the launches apart.
Exit status: 0; 1 with one line that says what is wrong in a file; 2 for wrong usage.
"""
import math
import os
import re
import sys

from plot_read import Bad, read_json

# Query heads, KV heads, head dim; tools/tamis/bench/common.c.
SHAPES = {'llama2-7b': (32, 32, 128), 'llama3-8b': (32, 8, 128), 'qwen3-4b': (32, 8, 128)}
PAGE = 16  # tokens; the bench's
SMS = 132
BYTES = {'f16': 2, 'bf16': 2, 'f32': 4}

# Of an H200 SXM. Times in us, rates in bytes a us.
ASSUMED = {
    # What copies reach of 4.8 TB/s (NVIDIA's data sheet). Not measured; H100 reach about 0.9.
    'memory': 0.90 * 4.8e6,
    # What one multiprocessor draws: half of the 64 bytes a cycle of its way to L2, at 1.755 GHz.
    'sm': 32 * 1755.0,
    # From DRAM under load, and from L2: 479 and 262 cycles without load (arXiv 2402.13499, table
    # 4, H100), half as much again under load.
    'dram': 0.41, 'l2': 0.22,
    # Between two launches of a graph that depend on each other, with the first block's start.
    'gap': 1.3,
    # An atomic that is release and acquire, behind the block's writes.
    'ticket': 0.8,
    # A barrier of a block with what is done in shared memory beside it.
    'barrier': 0.06,
    # Entries that a block's pass of select takes a us: 256 threads, some 10 cycles each.
    'select': 256 * 1755.0 / 10,
}


def macros():
    """The kernels' numbers, where they are plain."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'cuda_kernels', 'args.h')
    with open(path, encoding='utf-8') as file:
        found = re.findall(r'^#define (CU_\w+) +(\d+)u\b', file.read(), re.M)
    return {name: int(value) for name, value in found}


CU = macros()


class Shape:
    def __init__(self, name, batch, dtype):
        self.heads, self.kv_heads, self.dim = SHAPES[name]
        self.lanes, self.group = batch * self.kv_heads, self.heads // self.kv_heads
        self.row = self.dim * BYTES[dtype]  # bytes of a row of K, or of V

    def token(self):
        """Bytes of a token in all lanes."""
        return 2 * self.lanes * self.row


# ---- Launches: each a list of (what, us) ---------------------------------------------------------


def stream(total, blocks, at_once):
    """Bytes shared by equal blocks, of which `at_once` find room on a multiprocessor: memory
    decides, or the multiprocessor that has most of them."""
    most = math.ceil(blocks / SMS) * total / blocks
    waves = math.ceil(blocks / (SMS * at_once))
    return max(total / ASSUMED['memory'], most / ASSUMED['sm']) + (waves - 1) * ASSUMED['dram']


def attend(shape, tokens, listed):
    """cuda_kernels/attend_mma.cu: entries in splits, a warp each, four splits a block."""
    entries = math.ceil(tokens / PAGE)
    most, least = CU['CU_ATTEND_WARPS'] * CU['CU_ATTEND_CHUNKS'], CU['CU_ATTEND_SPLIT'] // PAGE
    size = math.ceil(math.ceil(entries / most) / least) * least
    chunks = math.ceil(math.ceil(entries / size) / CU['CU_ATTEND_WARPS'])
    blocks = chunks * shape.lanes * math.ceil(shape.group / CU['CU_ATTEND_HEADS'])
    # limit, list, page ids, keys; then the block's splits joined
    chain = ASSUMED['l2'] * (2 if listed else 1) + 2 * ASSUMED['dram'] + 4 * ASSUMED['barrier']
    terms = [('gap', ASSUMED['gap']), ('chain', chain),
             ('bytes', stream(tokens * shape.token(), blocks, 2))]
    if chunks > 1:  # states to L2, the ticket, and back
        terms.append(('join', ASSUMED['ticket'] + 2 * ASSUMED['l2'] + 2 * ASSUMED['barrier']))
    return terms


def score_select(shape, tokens):
    """cuda_kernels/sparse_attend.cu: bounds of every full page, then a block of each lane selects
    by a pass of a histogram for each byte of the scores that decides, about three."""
    pages = tokens // PAGE
    each = 4 if shape.lanes > 2 * SMS else 2 * SMS // shape.lanes
    blocks = shape.lanes * max(1, min(math.ceil(pages / 32), each))
    passes = 3
    select = ASSUMED['l2'] + (passes + 2) * (pages / ASSUMED['select'] + 3 * ASSUMED['barrier'])
    waves = math.ceil(shape.lanes / (2 * SMS))
    return [('gap', ASSUMED['gap']), ('chain', ASSUMED['l2'] + 2 * ASSUMED['dram']),
            ('bytes', stream(pages * shape.token(), blocks, 2)), ('ticket', ASSUMED['ticket']),
            ('select', waves * select)]


def launches(row):
    shape = Shape(row['shape'], row['batch'], row['dtype'])
    if row['select'] == 'full' or row['budget'] >= row['context']:
        return {'attend': attend(shape, row['context'], False)}
    return {'score+select': score_select(shape, row['context']),
            'attend': attend(shape, row['budget'], True)}


def total(parts):
    return sum(us for terms in parts.values() for _, us in terms)


# ---- Rows ----------------------------------------------------------------------------------------


def default_rows():
    for batch in (1, 16):
        for shape in ('llama2-7b', 'llama3-8b'):
            for context in (4096, 32768, 131072):
                for budget in (None, 1024, 2048, 4096):
                    if budget != context:
                        yield {'shape': shape, 'batch': batch, 'context': context, 'dtype': 'f16',
                               'select': 'quest' if budget else 'full', 'budget': budget or context}


def rows_of(path):
    """Those that the model knows: pages in order, full or quest, on CUDA."""
    root = read_json(path)
    for row in root.rows('rows'):
        if row.text('select') not in ('full', 'quest') or row.text('pages') != 'ordered':
            continue
        if 'backend' in row and row.text('backend') != 'cuda':
            continue
        if row.text('shape') not in SHAPES or row.text('dtype') not in BYTES:
            raise Bad('%s: no model of %s in %s' % (row.where, row.text('shape'), row.text('dtype')))
        found = {name: row.text(name) for name in ('shape', 'dtype', 'select')}
        found.update({name: row.count(name) for name in ('batch', 'context', 'budget')})
        if row.get('graph_us') is not None:
            found['measured'] = row.number('graph_us', 1e-9)
        yield found


def line(row, parts, full, terms):
    predicted, measured = total(parts), row.get('measured')
    cells = [row['shape'], row['dtype'], row['batch'], '{:,}'.format(row['context']),
             row['select'] if row['select'] == 'full' else '%s %d' % (row['select'], row['budget']),
             '%.1f' % predicted, '%.2f' % (full / predicted)]
    cells += ['%.1f' % measured, '%.2f' % (measured / predicted)] if measured else ['', '']
    if terms:
        cells.append('; '.join('%s: %s' % (name, ', '.join('%s %.1f' % term for term in launch))
                               for name, launch in parts.items()))
    return '| %s |' % ' | '.join(str(cell) for cell in cells)


def main(words):
    terms = '--terms' in words
    paths = [word for word in words if word != '--terms']
    if any(path.startswith('-') for path in paths):
        print(__doc__.strip(), file=sys.stdout if paths == ['--help'] else sys.stderr)
        return 0 if paths == ['--help'] else 2
    head = ['shape', 'dtype', 'batch', 'context', 'select', 'predicted us', 'over full',
            'measured us', 'measured / predicted'] + (['terms, us'] if terms else [])
    try:
        rows = [row for path in paths for row in rows_of(path)] if paths else list(default_rows())
    except Bad as error:
        print('gpu_model.py: %s' % error, file=sys.stderr)
        return 1
    print('| %s |\n|%s' % (' | '.join(head), '---|' * len(head)))
    for row in rows:
        full = total(launches({**row, 'select': 'full'}))
        print(line(row, launches(row), full, terms))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
