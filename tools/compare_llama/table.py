#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts prompts and decode steps of llama.cpp and of tamis side by side in a Markdown table.

Usage: table.py STEM STEM...

Each stem is MODEL.ROUND: STEM.on.txt and STEM.off.txt are what compare_llama/model printed with and
without flash attention, STEM.prompt.txt is the line of figures of `tamis run`, STEM.CONTEXT.json is
of `tamis bench model --json`. Figures are medians over rounds; a ratio is the median of the rounds'
own.
Exit status: 0; 1 with one line that names the file and what is wrong in it; 2 for wrong usage.
"""
import os
import re
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..'))
from plot_read import Bad, read_json, shown


def read_text(path):
    try:
        with open(path, encoding='utf-8') as file:
            return file.read()
    except OSError as error:
        raise Bad('%s: cannot be read: %s' % (path, error.strerror)) from error


def read_llama(path):
    """Milliseconds by (what, tokens)."""
    lines = [line.split() for line in read_text(path).splitlines()]
    if not lines or lines[0] != ['what', 'tokens', 'ms']:
        raise Bad('%s: does not begin with the names of the columns' % path)
    try:
        return {(what, int(tokens)): float(ms) for what, tokens, ms in lines[1:]}
    except ValueError as error:
        raise Bad('%s: is no table of times' % path) from error


def read_prompt(path):
    """Tokens a second."""
    found = re.match(r'prefill ([0-9.]+) tokens/s', read_text(path))
    if found is None:
        raise Bad('%s: does not say how fast the prompt was read' % path)
    return float(found.group(1))


def read_step(path):
    """Of one round: milliseconds and the share of the read bandwidth by selection, the bytes that
    full reads, the bandwidth; and the budget of quest, or None."""
    root = read_json(path)
    rows = {row.text('select'): row for row in root.rows('rows')}
    if 'full' not in rows:
        raise Bad('%s: "rows": has none of full' % path)
    step = {'bytes': root.number('weight_bytes', 1) + rows['full'].number('kv_bytes', 0),
            'read': root.number('read_gb_per_s', 1e-3),
            'ms': {select: row.number('step_us', 1e-3) / 1e3 for select, row in rows.items()},
            'share': {select: row.number('share_of_read', 0) for select, row in rows.items()}}
    budget = rows['quest'].count('budget') if 'quest' in rows else None
    return step, budget, root.text('device_name')


def median(values):
    return statistics.median(list(values))


def times(values):
    value = median(values)
    return '%.2f' % value if value < 10 else '%.1f' % value


def faster(rounds, key):
    """Whether llama.cpp is faster with flash attention `on` or `off`, and its milliseconds."""
    by_flash = {flash: [llama[flash][key] for llama in rounds] for flash in ('on', 'off')}
    best = min(by_flash, key=lambda flash: median(by_flash[flash]))
    return best, by_flash[best]


def prompt_line(model, tokens, llama, ours):
    flash, ms = faster(llama, ('prompt', tokens))
    theirs = [tokens / one * 1e3 for one in ms]
    return [model, 'prompt of {:,}, tokens/s'.format(tokens), '%.1f (%s)' % (median(theirs), flash),
            '', '%.1f' % median(ours), '', times(a / b for a, b in zip(ours, theirs)), '', '', '']


def step_line(model, context, llama, steps):
    flash, ms = faster(llama, ('decode', context))
    shares = [step['bytes'] / one * 1e-6 / step['read'] for step, one in zip(steps, ms)]
    cells = [model, 'step of {:,}, ms'.format(context), '%.2f (%s)' % (median(ms), flash),
             '%.2f' % median(shares)]
    for select in ('full', 'quest'):
        if select not in steps[0]['ms']:
            cells += [''] * 3
            continue
        mine = [step['ms'][select] for step in steps]
        cells += ['%.2f' % median(mine), '%.2f' % median(step['share'][select] for step in steps),
                  times(a / b for a, b in zip(ms, mine))]
    return cells


def read_model(stems):
    """The lines of one model, the budgets and devices of its rounds, and the read bandwidths."""
    model = os.path.basename(stems[0]).rsplit('.', 1)[0]
    llama = [{flash: read_llama('%s.%s.txt' % (stem, flash)) for flash in ('on', 'off')}
             for stem in stems]
    keys = set(llama[0]['on'])
    for stem, one in zip(stems, llama):
        if any(set(table) != keys for table in one.values()):
            raise Bad('%s: has other measurements than %s' % (shown(stem), shown(stems[0])))
    lines, same, read = [], set(), []
    for what, tokens in llama[0]['on']:
        if what == 'prompt':
            ours = [read_prompt(stem + '.prompt.txt') for stem in stems]
            lines.append(prompt_line(model, tokens, llama, ours))
            continue
        found = [read_step('%s.%d.json' % (stem, tokens)) for stem in stems]
        same.update(its[1:] for its in found)
        steps = [its[0] for its in found]
        read += [step['read'] for step in steps]
        lines.append(step_line(model, tokens, llama, steps))
    return lines, same, read


def main(stems):
    if not stems or stems[0].startswith('-'):
        sys.stderr.write('usage: table.py STEM STEM...\n')
        return 2
    by_model = {}
    for stem in stems:
        by_model.setdefault(os.path.basename(stem).rsplit('.', 1)[0], []).append(stem)
    lines, same, read = [], set(), []
    try:
        for its in by_model.values():
            its_lines, its_same, its_read = read_model(its)
            lines += its_lines
            same |= its_same
            read += its_read
    except Bad as error:
        sys.stderr.write('table.py: %s\n' % error)
        return 1
    budgets = sorted({format(budget, ',') for budget, _ in same if budget is not None})
    devices = sorted({device for _, device in same})
    print('Medians of %d rounds, read bandwidth %.1f GB/s (%.1f to %.1f). tamis on %s.\n'
          'In brackets: flash attention of llama.cpp. Times: how many times as fast tamis is.\n'
          % (len(next(iter(by_model.values()))), median(read), min(read), max(read),
             '; '.join(devices)))
    head = ['model', '', 'llama.cpp', 'of read', 'tamis full', 'of read', 'times',
            ' '.join(['quest'] + budgets), 'of read', 'times']
    for cells in [head, ['---'] * len(head)] + lines:
        print('| %s |' % ' | '.join(cells))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
