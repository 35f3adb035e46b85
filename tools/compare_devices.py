#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts devices beside each other in a Markdown table, a column each, on standard output.

Usage: compare_devices.py FILE.json FILE.json...

The files are all of `tamis bench attention --json` (what attention takes under each selection), all
of `tamis bench portability --json` (what each problem takes on each platform, its architectural and
its application efficiency, and Pennycook's metric of both over all platforms), or all of
`tamis-check --json` (which forms of which ops pass, and what the slowest first launch of a form took
of the processors, with compiling).
Exit status: 0; 1 with one line that names the file and what is wrong in it; 2 for wrong usage.
"""
import sys

from plot_read import Bad, read_json, shown
from portability_read import (KINDS, cell_text, harmonic, platform_text, read_report, share_text,
                              shares)


def table(head, rows):
    lines = [head, ['---'] * len(head)] + rows
    return ''.join('| %s |\n' % ' | '.join(line) for line in lines)


def ordered(keys):
    """Each once, where it comes first."""
    return list(dict.fromkeys(keys))


class Columns:
    """The cells of each device; files of the same device share its column."""

    def __init__(self):
        self.cells, self.origin = {}, {}

    def add(self, name, key, value, where):
        if (name, key) in self.origin:
            raise Bad('%s: the same stands in %s' % (where, self.origin[name, key]))
        self.origin[name, key] = where
        self.cells.setdefault(name, {})[key] = value

    def keys(self):
        return ordered(key for cells in self.cells.values() for key in cells)

    def row(self, key, missing):
        return [cells.get(key, missing) for cells in self.cells.values()]


# ---- tamis bench attention -----------------------------------------------------------------------


def bench_cell(row):
    text = '%s us' % format(round(row.number('total_us', 0)), ',')
    if row.text('select') == 'full':
        return '%s, %.2f of read' % (text, row.number('share_of_read', 0))
    return '%s, %.1f over full' % (text, row.number('speedup_over_full', 0))


def bench_key(row):
    budget = '' if row.text('select') == 'full' else row.count('budget')
    return (row.text('shape'), row.text('dtype'), row.count('batch'), row.count('context'),
            row.text('pages'), row.text('select'), budget)


def bench(files):
    columns, read = Columns(), {}
    for f in files:
        name = '%s, %s, %d threads' % (f.text('device_name'), f.text('driver'),
                                       f.count('threads'))
        read.setdefault(name, []).append('%.1f' % f.number('read_gb_per_s', 0))
        for row in f.rows('rows'):
            columns.add(name, bench_key(row), bench_cell(row), row.where)
    first = ['read GB/s'] + [''] * 6 + [', '.join(read[name]) for name in columns.cells]
    rows = [[format(part, ',') if isinstance(part, int) else part for part in key]
            + columns.row(key, 'not run') for key in columns.keys()]
    return table(['shape', 'dtype', 'batch', 'context', 'pages', 'select', 'budget']
                 + list(columns.cells), [first] + rows)


# ---- tamis-check ---------------------------------------------------------------------------------


def check_cell(rows):
    """What became of the cases of one op in one form on one device."""
    verdicts = [row.text('verdict') for row in rows]
    passed, failed = verdicts.count('passed'), verdicts.count('failed')
    refusals = [row.text('reason') for row in rows if row.text('verdict') == 'skipped']
    parts = []
    if failed:
        parts.append('**%d failed**' % failed)
    if passed:
        slowest = max(row.number('first_ms', 0) for row in rows if row.text('verdict') == 'passed')
        parts.append('%d pass, %.1f s' % (passed, slowest / 1e3))
    if refusals:
        reasons = ordered(reason.rsplit(': ', 1)[-1] for reason in refusals)
        parts.append('%d refused: %s' % (len(refusals), ', '.join(reasons)))
    return '; '.join(parts)


def check(files):
    columns, runs = Columns(), set()
    for f in files:
        cases = {}
        for row in f.rows('rows'):
            key = row.text('driver'), (row.text('op'), row.text('form'))
            cases.setdefault(key, []).append(row)
            if row.text('verdict') != 'skipped':
                runs.add(key[1])
        for (driver, key), rows in cases.items():
            columns.add(driver, key, check_cell(rows), rows[0].where)
    # Where nothing but refusals is known, the op has no such form.
    keys = sorted((key for key in columns.keys() if key in runs), key=lambda key: key[0])
    return table(['op', 'form'] + list(columns.cells),
                 [list(key) + columns.row(key, 'not taken') for key in keys])


# ---- tamis bench portability ---------------------------------------------------------------------


def portability(files):
    report = read_report(files)
    rows = [[problem.name]
            + [share_text(harmonic(shares(report.row(problem), kind))) for kind in KINDS]
            + [cell_text(cell) for cell in report.row(problem)] for problem in report.problems]
    return table(['problem'] + list(KINDS) + [platform_text(p) for p in report.platforms], rows)


TOOLS = {'tamis bench attention': bench, 'tamis bench portability': portability, 'tamis-check': check}


def main(paths):
    if not paths or any(path.startswith('-') for path in paths):
        print(__doc__.strip(), file=sys.stdout if '--help' in paths else sys.stderr)
        return 0 if '--help' in paths else 2
    try:
        files = [read_json(path) for path in paths]
        tools = [f.text('tool') for f in files]
        for path, tool in zip(paths, tools):
            if tool not in TOOLS:
                raise Bad('%s: "tool": %s is none of %s' % (path, shown(tool), ', '.join(TOOLS)))
            if tool != tools[0]:
                raise Bad('%s: not of the same tool as %s' % (path, paths[0]))
        print(TOOLS[tools[0]](files), end='')
    except Bad as error:
        print('compare_devices.py: %s' % error, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
