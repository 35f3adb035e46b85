#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what measure.py has kept in a folder as a Markdown table.

Usage: table.py DIR

Samples of all rounds are taken together. The time to the first token counts from when a request was
due. Times between tokens are those between pieces of text that came one after another. Of fewer
than 100 values p99 is the largest.
Exit status: 0; 1 with one line that names the file and what is wrong in it; 2 for wrong usage.
"""
import json
import os
import re
import statistics
import sys

from measure import ARMS


class Bad(Exception):
    """One line for the user."""


def read_results(folder):
    """By arm and what was measured, in the order of rounds."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise Bad('%s: cannot be read: %s' % (folder, error.strerror)) from error
    found = [re.fullmatch(r'([a-z-]+)\.([0-9]+)\.(capacity|documents|[0-9.]+)\.json', name)
             for name in names]
    results = {}
    for one in sorted(filter(None, found), key=lambda one: int(one[2])):
        path = os.path.join(folder, one[0])
        try:
            with open(path, encoding='utf-8') as file:
                result = json.load(file)
            for field in ('samples', 'settings', 'seconds', 'server_cpu_s', 'generator_cpu_s',
                          'other_cpu_s', 'peak_bytes', 'machine'):
                if field not in result:
                    raise ValueError('"%s" is missing' % field)
        except (OSError, ValueError) as error:
            raise Bad('%s: is no result: %s' % (path, error)) from error
        results.setdefault((one[1], one[3]), []).append(result)
    if not results:
        raise Bad('%s: has no results' % folder)
    return results


def percentile(values, percent):
    """The value of the nearest rank, as `tamis bench` takes it."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


def pair(values, unit):
    if not values:
        return ['-', '-']
    return [unit % statistics.median(values), unit % percentile(values, 99)]


def ended(results):
    return [s for result in results for s in result['samples'] if s['status'] == 200]


def tokens_of(sample):
    usage = sample['usage'] or {}
    return usage.get('completion_tokens', len(sample['pieces']))


def first_times(results):
    return [s['times'][0] - s['due'] for s in ended(results) if s['times']]


def next_times(results):
    return [(b - a) * 1e3 for s in ended(results) for a, b in zip(s['times'], s['times'][1:])]


def costs(results):
    def total(name):
        return sum(result[name] for result in results)
    return ['%.2f' % total('generator_cpu_s'), '%.1f' % total('server_cpu_s'),
            '%.1f' % total('other_cpu_s'),
            '%.0f' % (max(result['peak_bytes'] for result in results) / 2**20)]


COST_HEADS = ['generator CPU s', 'server CPU s', 'others CPU s', 'peak MiB']


def load_lines(results):
    lines = [['arm', 'rate', 'requests/s', 'tokens/s', 'first s', 'p99', 'next ms', 'p99', 'ended',
              'refused', 'late ms'] + COST_HEADS]
    order = ARMS['load']
    keys = sorted((key for key in results if key[1] != 'documents'), key=lambda key: (
        order.index(key[0]) if key[0] in order else len(order), key[0],
        0 if key[1] == 'capacity' else float(key[1])))
    for arm, what in keys:
        its = results[(arm, what)]
        samples = [s for result in its for s in result['samples']]
        good = ended(its)
        lines.append([
            arm, 'closed' if what == 'capacity' else what,
            '%.3f' % statistics.mean(result['rate'] for result in its),
            '%.1f' % (sum(map(tokens_of, good)) / sum(result['seconds'] for result in its)),
            *pair(first_times(its), '%.2f'), *pair(next_times(its), '%.1f'),
            '%d of %d' % (len(good), len(samples)),
            '%d' % sum(s['status'] != 200 for s in samples),
            '%.1f' % (1e3 * max(s['sent'] - s['due'] for s in samples)), *costs(its)])
    return lines


def equal_leading(ours, theirs):
    count = 0
    while count < min(len(ours), len(theirs)) and ours[count] == theirs[count]:
        count += 1
    return count


def agreement(its, none):
    """Shares of answers and of leading pieces that are those of the arm none in the same round."""
    same = pieces = whole = count = 0
    for ours, theirs in zip(its, none):
        for a, b in zip(ours['samples'], theirs['samples']):
            if a['status'] != 200 or b['status'] != 200:
                continue
            count += 1
            same += ''.join(a['pieces']) == ''.join(b['pieces'])
            pieces += equal_leading(a['pieces'], b['pieces'])
            whole += max(len(a['pieces']), len(b['pieces']))
    if not count:
        return ['-', '-']
    return ['%.2f' % (same / count), '%.2f' % (pieces / whole if whole else 1)]


def document_lines(results):
    lines = [['arm', 'first s', 'p99', 'next ms', 'p99', 'prompt tokens', 'equal answers',
              'equal leading tokens', 'ended', 'refused'] + COST_HEADS]
    for arm in ARMS['documents']:
        its = results.get((arm, 'documents'))
        if its is None:
            continue
        samples = [s for result in its for s in result['samples']]
        good = ended(its)
        prompts = [s['usage']['prompt_tokens'] for s in good
                   if s['usage'] and 'prompt_tokens' in s['usage']]
        lines.append([arm, *pair(first_times(its), '%.3f'), *pair(next_times(its), '%.1f'),
                      '%.0f' % statistics.mean(prompts) if prompts else '-',
                      *agreement(its, results.get(('none', 'documents'), [])),
                      '%d of %d' % (len(good), len(samples)),
                      '%d' % sum(s['status'] != 200 for s in samples), *costs(its)])
    return lines


def notes(results):
    """Lines above a table: machine, servers, and what would make figures wrong."""
    every = [result for its in results.values() for result in its]
    yield 'On %s. Rounds: %d.' % ('; '.join(sorted({r['machine'] for r in every})),
                                  max(len(its) for its in results.values()))
    for arm in sorted({key[0] for key in results}):
        its = next(r for key, rs in results.items() if key[0] == arm for r in rs)
        yield '`%s`: %s: `%s`' % (arm, its['settings']['server'], its['settings']['command'])
    for (arm, what), its in sorted(results.items()):
        cached = sum((((s['usage'] or {}).get('prompt_tokens_details') or {})
                      .get('cached_tokens') or 0) for s in ended(its))
        if cached and what != 'documents':
            yield 'Not as meant: `%s` at %s took %d tokens of prompts from a cache.' \
                % (arm, what, cached)


def main(arguments):
    if len(arguments) != 1 or arguments[0].startswith('-'):
        sys.stderr.write('usage: table.py DIR\n')
        return 2
    try:
        results = read_results(arguments[0])
    except Bad as error:
        sys.stderr.write('table.py: %s\n' % error)
        return 1
    print('\n'.join('- ' + note for note in notes(results)))
    for lines in (load_lines(results), document_lines(results)):
        if len(lines) > 1:
            print()
            for line in [lines[0], ['---'] * len(lines[0])] + lines[1:]:
                print('| %s |' % ' | '.join(line))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
