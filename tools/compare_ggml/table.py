#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts decode attention of ggml and of tamis side by side in a Markdown table, on standard output.

Usage: table.py STEM STEM...

Each stem is a round of one shape and dtype: STEM.txt is what compare_ggml/attention printed,
STEM.json is of `tamis bench attention --select full,quest --json`. Figures are medians over rounds;
a ratio is the median of the rounds' own. ggml's layout is the faster one.
Exit status: 0; 1 with one line that names the file and what is wrong in it; 2 for wrong usage.
"""
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..'))
from plot_read import Bad, read_json, shown

COLUMNS = ['shape', 'dtype', 'layout', 'context', 'threads', 'layers', 'us', 'gb_per_s',
           'deviation']
DTYPES = {'f16': 'f16', 'q8_0': 'q8', 'q8_0/q4_1': 'k8v4', 'q4_1': 'q4'}


def read_ggml(path):
    """(shape, dtype, context, threads), microseconds by layout."""
    try:
        with open(path, encoding='utf-8') as file:
            lines = [line.split() for line in file]
    except OSError as error:
        raise Bad('%s: cannot be read: %s' % (path, error.strerror)) from error
    if not lines or lines[0] != COLUMNS:
        raise Bad('%s: does not begin with the names of the columns' % path)
    key, times = None, {}
    for line in lines[1:]:
        try:
            row = dict(zip(COLUMNS, line, strict=True))
            its = row['shape'], DTYPES[row['dtype']], int(row['context']), int(row['threads'])
            us = float(row['us'])
        except (KeyError, ValueError) as error:
            raise Bad('%s: %s: is no row' % (path, shown(' '.join(line)))) from error
        if not us > 0 or key not in (None, its) or row['layout'] in times:
            raise Bad('%s: %s: does not belong here' % (path, shown(' '.join(line))))
        key = its
        times[row['layout']] = us
    if not times:
        raise Bad('%s: has no rows' % path)
    return key, times


def read_tamis(path):
    """(shape, dtype, context, threads), microseconds by selection, budget of quest, device."""
    root = read_json(path)
    rows = {row.text('select'): row for row in root.rows('rows')}
    for select in ('full', 'quest'):
        if select not in rows:
            raise Bad('%s: "rows": has none of %s' % (path, select))
    full, quest = rows['full'], rows['quest']
    key = full.text('shape'), full.text('dtype'), full.count('context'), root.count('threads')
    times = {select: row.number('total_us', 1e-3) for select, row in rows.items()}
    return key, times, quest.count('budget'), root.text('device_name')


def read(stems):
    """By (shape, dtype): the rounds, each (ggml's times, ours). And what is the same in all."""
    rounds, same = {}, None
    for stem in stems:
        key, ggml = read_ggml(stem + '.txt')
        its, ours, budget, device = read_tamis(stem + '.json')
        if its != key:
            raise Bad('%s.json: is of %s, %s.txt of %s' % (stem, shown(its), stem, shown(key)))
        common = key[2:] + (budget, device)
        if same not in (None, common):
            raise Bad('%s.json: is of %s, the rounds before of %s' % (stem, common, same))
        same = common
        rounds.setdefault(key[:2], []).append((ggml, ours))
    return rounds, same


def median(values):
    return statistics.median(list(values))


def line(key, rounds):
    layouts = set.intersection(*(set(ggml) for ggml, _ in rounds))
    if not layouts:
        raise Bad('%s, %s: no layout of ggml was measured in every round' % key)
    best = min(sorted(layouts), key=lambda name: median(ggml[name] for ggml, _ in rounds))
    cells = list(key) + ['%s (%s)' % (us(ggml[best] for ggml, _ in rounds), best)]
    for select in ('full', 'quest'):
        cells += [us(ours[select] for _, ours in rounds),
                  '%.2f' % median(ggml[best] / ours[select] for ggml, ours in rounds)]
    return cells


def us(values):
    return format(round(median(values)), ',')


def main(stems):
    if not stems or stems[0].startswith('-'):
        sys.stderr.write('usage: table.py STEM STEM...\n')
        return 2
    try:
        rounds, (context, threads, budget, device) = read(stems)
        lines = [line(key, of) for key, of in rounds.items()]
    except Bad as error:
        sys.stderr.write('table.py: %s\n' % error)
        return 1
    counts = '/'.join(sorted({str(len(of)) for of in rounds.values()}))
    print('One layer, context %d, %d threads; quest reads %d tokens of a lane; medians of %s rounds.\n'
          'tamis on %s.\n' % (context, threads, budget, counts, device))
    head = ['shape', 'dtype', 'ggml us (layout)', 'tamis full us', 'ggml/full', 'tamis quest us',
            'ggml/quest']
    for cells in [head, ['---'] * len(head)] + lines:
        print('| %s |' % ' | '.join(cells))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
