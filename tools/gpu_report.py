#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Joins what the stages of gpu_check.sh left so far into one JSON file and one Markdown page.

Usage: gpu_report.py WORK OUT. WORK holds header and end (name=value lines) and stages/NNN.meta,
.log and .json; OUT receives gpu_check.json and gpu_check.md, each whole or not at all.
"""
import json
import os
import sys

LAST_LINES = 12  # of the log of a stage that did not pass
BAD = ('failed', 'timeout', 'cut')
PEERS = ('sdpa', 'flex', 'flashinfer')


# ---- Reading ------------------------------------------------------------------------------------


def fields(path):
    """The name=value lines of a file; empty where there is none."""
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            return dict(line.rstrip('\n').split('=', 1) for line in file if '=' in line)
    except FileNotFoundError:
        return {}


def lines_of(path):
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            return [line.rstrip() for line in file.read().splitlines() if line.strip()]
    except FileNotFoundError:
        return []


def json_of(path):
    """None where a stage wrote none, or was cut while it wrote."""
    try:
        with open(path, encoding='utf-8') as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def number(text):
    return int(text) if text else None


def read_stage(work, name):
    base = os.path.join(work, 'stages', name)
    meta, lines = fields(base + '.meta'), lines_of(base + '.log')
    stage = {'name': meta['name'], 'required': meta['need'] == 'required', 'state': meta['state'],
             'rc': number(meta.get('rc')), 'seconds': number(meta.get('seconds')),
             'limit': number(meta['limit']), 'last_line': lines[-1] if lines else ''}
    if stage['state'] in BAD:
        stage['last_lines'] = lines[-LAST_LINES:]
    return stage, json_of(base + '.json')


def bench_rows(stage, found, backend):
    """The rows of `tamis bench attention`, each with what the file's header says of its run."""
    if stage['name'].startswith('opencl/'):
        backend = 'opencl'
    return [{'backend': backend, **row, **found['header']} for row in found['results']]


def read_all(work):
    header, end = fields(os.path.join(work, 'header')), fields(os.path.join(work, 'end'))
    stages, results, ops, peers = [], [], [], []
    names = sorted(name[:-5] for name in os.listdir(os.path.join(work, 'stages'))
                   if name.endswith('.meta'))
    for name in names:
        stage, found = read_stage(work, name)
        stages.append(stage)
        if found is None:
            continue
        if stage['name'] == 'ops':
            ops = found['results']
        elif stage['name'] == 'peers':
            peers = found['rows']
        else:
            results += bench_rows(stage, found, header['device_id'].split(':')[0])
    device = results[0] if results else {}
    return {
        'tool': 'gpu_check',
        'header': {
            'date': header['date'], 'commit': header['commit'], 'device_id': header['device_id'],
            'device': device.get('device', ''), 'driver': device.get('driver', ''),
            'version': device.get('version', ''), 'machine': header['machine'],
            'nvcc': header['nvcc'], 'driver_library': header['driver_library'],
            'quick': header['quick'] == '1', 'limit': int(header['limit']),
            'seconds': int(end['seconds']), 'complete': end['complete'] == '1',
            'passed': end['complete'] == '1' and all(stage['state'] == 'passed' for stage in stages
                                                     if stage['required'])},
        'stages': stages, 'results': results, 'ops': ops, 'peers': peers}


# ---- Markdown -----------------------------------------------------------------------------------


def shown(value, digits=1):
    return '-' if value is None else '{:,.{}f}'.format(value, digits)


def table(head, rows):
    return ['| %s |' % ' | '.join(head), '|%s' % ('---|' * len(head))] + [
        '| %s |' % ' | '.join(str(cell) for cell in row) for row in rows] + ['']


def verdict(root):
    bad = [stage['name'] for stage in root['stages']
           if stage['required'] and stage['state'] not in ('passed', 'running')]
    if bad:
        return 'Did not pass: %s.' % ', '.join(bad)
    return 'Every required stage passed.' if root['header']['complete'] else 'Cut, or not done yet.'


def head_lines(root):
    header = root['header']
    facts = [('device', header['device'] or header['device_id']), ('driver', header['driver']),
             ('machine', header['machine']), ('driver library', header['driver_library']),
             ('nvcc', header['nvcc']), ('commit', header['commit']),
             ('seconds', '%d of %d' % (header['seconds'], header['limit']))]
    copies = [row['gb_per_s'] for row in root['peers'] if row['peer'] == 'copy'
              and 'gb_per_s' in row]
    # Of one run of the bench, the first; each row of the JSON has its own.
    for row in root['results'][:1]:
        facts += [('read bandwidth, GB/s', shown(row['read_gb_per_s'])),
                  ('copy bandwidth, GB/s', shown(row['copy_gb_per_s']))]
    if copies:
        facts.append(('copy bandwidth by PyTorch, GB/s', shown(copies[0])))
    kind = ' (quick: whether it works, not how fast)' if header['quick'] else ''
    return (['# GPU check, %s%s' % (header['date'][:10], kind), '', verdict(root), '']
            + table(['what', 'value'], [fact for fact in facts if fact[1]]))


def stage_lines(root):
    """A line for each group of stages, then the last lines of those that did not pass."""
    groups = {}
    for stage in root['stages']:
        groups.setdefault(stage['name'].split('/')[0], []).append(stage)
    rows, details = [], []
    for name, members in groups.items():
        states = [stage['state'] for stage in members]
        counted = ', '.join('%d %s' % (states.count(state), state)
                            for state in sorted(set(states)))
        said = members[-1]['last_line'] if len(members) == 1 else ''
        rows.append((name, counted, sum(stage['seconds'] or 0 for stage in members),
                     said.replace('|', '\\|')[:100]))
    for stage in root['stages']:
        if stage['state'] in BAD:
            details += ['`%s`: %s, exit status %s, %s s of %s' %
                        (stage['name'], stage['state'], stage['rc'], stage['seconds'],
                         stage['limit']), '', '```'] + stage['last_lines'] + ['```', '']
    return ['## Stages', ''] + table(['stage', 'state', 'seconds', 'last line'], rows) + details


def keyed(root):
    """{(shape, batch, context): rows of the device checked, in order, pages in order}."""
    backend = root['header']['device_id'].split(':')[0]
    cases = {}
    for row in root['results']:
        if row['backend'] == backend and row['pages'] == 'ordered':
            key = row['shape'], row['batch'], row['context']
            cases.setdefault(key, []).append(row)
    return dict(sorted(cases.items()))


def peer_us(root, key, peer, what='total_us'):
    for row in root['peers']:
        if row['peer'] == peer and (row.get('shape'), row.get('batch'), row.get('context')) == key:
            return row.get(what)
    return None


def decode_lines(root):
    cases = keyed(root)
    if not cases:
        return []
    budgets = sorted({row['budget'] for rows in cases.values() for row in rows
                      if row['select'] == 'quest'})
    rows = []
    for key, found in cases.items():
        full = [row for row in found if row['select'] == 'full'][0]
        quest = {row['budget']: row for row in found if row['select'] == 'quest'}
        cells = ['%s (%.2f×)' % (shown(quest[b]['total_us']), quest[b]['speedup_over_full'])
                 if b in quest else '-' for b in budgets]
        rows.append((key[0], key[1], '{:,}'.format(key[2]), shown(full['total_us']),
                     shown(full['share_of_read'], 2), shown(full['share_of_copy'], 2), *cells,
                     *(shown(peer_us(root, key, peer)) for peer in PEERS)))
    head = ['shape', 'batch', 'context', 'full us', 'of read', 'of copy',
            *('quest %d us' % b for b in budgets), *('%s us' % peer for peer in PEERS)]
    return ['## Decode attention', '', 'One step of one layer, wall time: many layers are '
            'enqueued in turn and waited for once. The factor is over full in the same run.',
            ''] + table(head, rows)


def graph_lines(root):
    """Graph replays, which no host holds up, of the rows that have one."""
    rows = []
    for key, found in keyed(root).items():
        for row in found:
            if row['graph_us'] is not None:
                full = found[0]['graph_us']
                rows.append((*key, row['select'], row['budget'], shown(row['total_us'], 2),
                             shown(row['graph_us'], 2),
                             shown(full / row['graph_us'], 2) if full else '-'))
        rows += [(*key, peer, '-', shown(peer_us(root, key, peer), 2),
                  shown(peer_us(root, key, peer, 'graph_us'), 2), '-') for peer in PEERS
                 if peer_us(root, key, peer, 'graph_us') is not None]
    if not rows:
        return []
    return ['## Replayed as a graph', ''] + table(
        ['shape', 'batch', 'context', 'what', 'budget', 'wall us', 'graph us', 'over full'],
        rows)


def part_lines(root):
    rows = [(*key, row['select'], row['budget'],
             *(shown(row['stage_us'][part], 1) for part in
               ('write', 'bounds', 'score', 'select', 'attend', 'fused')))
            for key, found in keyed(root).items() for row in found]
    if not rows:
        return []
    return ['## Stages of a step', '', 'Microseconds of one layer, each stage waited for.',
            ''] + table(['shape', 'batch', 'context', 'select', 'budget', 'write', 'bounds',
                         'score', 'select', 'attend', 'fused'], rows)


def op_lines(root):
    rows = [(row['case'], row['form'], shown(row['us'], 1), shown(row['gb_per_s'], 1),
             shown(row['share_of_read'], 2)) for row in root['ops'] if 'us' in row]
    if not rows:
        return []
    return ['## Ops', ''] + table(['case', 'form', 'us', 'GB/s', 'of read'], rows)


def opencl_lines(root):
    """The same card through OpenCL: time of the device checked over OpenCL's."""
    own = keyed(root)
    rows = []
    for row in root['results']:
        key = row['shape'], row['batch'], row['context']
        if row['backend'] != 'opencl' or key not in own:
            continue
        for other in own[key]:
            if other is not row and (other['select'], other['budget']) == (row['select'],
                                                                           row['budget']):
                rows.append((*key, row['select'], row['budget'], shown(other['total_us']),
                             shown(row['total_us']),
                             shown(other['total_us'] / row['total_us'], 2)))
    if not rows:
        return []
    return ['## The same card through OpenCL', ''] + table(
        ['shape', 'batch', 'context', 'select', 'budget', 'us', 'OpenCL us', 'portability'], rows)


def peer_lines(root):
    bad = ['- %s %s' % (row['peer'], row['error']) for row in root['peers'] if 'error' in row]
    return ['## Peers that did not run', ''] + bad + [''] if bad else []


# ---- Files --------------------------------------------------------------------------------------


def write(path, text):
    with open(path + '.new', 'w', encoding='utf-8') as file:
        file.write(text)
    os.replace(path + '.new', path)


def main():
    work, out = sys.argv[1:]
    root = read_all(work)
    parts = (head_lines, stage_lines, decode_lines, graph_lines, part_lines, op_lines,
             opencl_lines, peer_lines)
    write(os.path.join(out, 'gpu_check.json'), json.dumps(root, indent=1) + '\n')
    write(os.path.join(out, 'gpu_check.md'),
          '\n'.join(line for part in parts for line in part(root)))


if __name__ == '__main__':
    main()
