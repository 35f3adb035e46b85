#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Joins what the stages of gpu_check.sh left so far into one JSON file and one Markdown page.

Usage: gpu_report.py WORK OUT
       gpu_report.py --states FILE    "name=state" of each stage of an earlier call, and what it was
                                      called with as "/name=value"
       gpu_report.py --cublas NAMED   the cuBLAS that serves: NAMED, the loader's, or a package's
WORK holds plan (name|need|estimate, every stage), header and end (name=value lines), of what ran in
this call stages/NNN.meta, .log, .clocks and .json, and of calls before it earlier.json; OUT
receives gpu_check.json and gpu_check.md, each whole or not at all.
"""
import glob
import json
import os
import sys

LAST_LINES = 12  # of the log of a stage that did not pass
BAD = ('failed', 'timeout', 'cut', 'running')
# Of peers, all dense.
PEERS = ('sdpa-flash', 'sdpa-cudnn', 'sdpa-efficient', 'flashinfer', 'flashinfer-tensor', 'flex')
# Of a batch: dense over copy bandwidth, quest over the best dense.
GATES = {1: (0.85, 5.5), 16: (0.90, 7.03)}
GATE_CASE = 'llama2-7b', 32768, 2048  # shape, context, budget
GATE_SHARE = 0.45                     # of the pipeline that is not attend


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


def clocks_of(path):
    """The range of (SM, memory) clocks while the stage ran, in MHz; None where nothing said."""
    pairs = []
    for line in lines_of(path):
        try:
            pairs.append([int(word) for word in line.split(',')])
        except ValueError:  # "[N/A]", or a line that was cut
            continue
    pairs = [pair for pair in pairs if len(pair) == 2]
    if not pairs:
        return None
    return {name: [min(values), max(values)]
            for name, values in zip(('sm_mhz', 'memory_mhz'), zip(*pairs))}


def read_stage(work, number):
    """What this call says of a stage, and its JSON; None where it has not come to it."""
    base = os.path.join(work, 'stages', number)
    meta, lines = fields(base + '.meta'), lines_of(base + '.log')
    if not meta:
        return None, None
    stage = {'state': meta['state'], 'rc': whole(meta.get('rc')),
             'seconds': whole(meta.get('seconds')), 'limit': whole(meta.get('limit')),
             'last_line': lines[-1] if lines else ''}
    if stage['state'] in BAD:
        stage['last_lines'] = lines[-LAST_LINES:]
    clocks = clocks_of(base + '.clocks')
    if clocks:
        stage['clocks'] = clocks
    return stage, json_of(base + '.json')


def plan_of(work):
    with open(os.path.join(work, 'plan'), encoding='utf-8') as file:
        return [line.rstrip('\n').split('|') for line in file]


def rows_of(name, found, header):
    """(part of the JSON, rows) of a stage's own file."""
    group = name.split('/')[0]
    common = {key: value for key, value in found.items() if key not in ('tool', 'rows')}
    if found.get('tool') == 'gpu_peers':
        return 'peers', [{**row, **common} for row in found['rows']]
    if group == 'ops':
        return 'ops', found['rows']
    if group in ('headline', 'bench', 'opencl', 'overlap'):
        own = header['device_id'].split(':')[0]
        backend = group if group in ('opencl', 'overlap') else own
        return 'rows', [{'backend': backend, **row, **common} for row in found['rows']]
    return 'others', [found]


def read_all(work):
    header, end = fields(os.path.join(work, 'header')), fields(os.path.join(work, 'end'))
    earlier = json_of(os.path.join(work, 'earlier.json')) or {'stages': [], 'calls': []}
    before = {stage['name']: stage for stage in earlier['stages']}
    parts = {part: [] for part in ('peers', 'ops', 'others', 'rows')}
    stages = []
    for i, (name, need, estimate) in enumerate(plan_of(work)):
        stage, found = read_stage(work, '%03d' % (i + 1))
        if stage is None or (stage['state'] == 'not run' and name in before):
            stage = before.get(name, {'state': 'not run', 'last_line': ''})
            for part, rows in parts.items():
                rows += [row for row in earlier.get(part, []) if row['stage'] == name]
        elif found is not None and stage['state'] != 'running':
            try:
                part, rows = rows_of(name, found, header)
            except (LookupError, TypeError) as error:
                stage['last_line'] = 'its JSON is not what it should be: %r' % error
            else:
                parts[part] += [{'stage': name, **row} for row in rows]
        stages.append({**stage, 'name': name, 'required': need == 'required',
                       'estimate': int(estimate)})
    return {'tool': 'gpu_check', **settings_of(header, end, stages, parts, earlier),
            'stages': stages, **parts}


def settings_of(header, end, stages, parts, earlier):
    call = {'date': header['date'], 'machine': header['machine'], 'nvcc': header['nvcc'],
            'cublas': header['cublas'], 'limit': int(header['limit']),
            'seconds': int(end['seconds']), 'ended': end['complete'] == '1'}
    device = parts['rows'][0] if parts['rows'] else {}
    complete = all(stage['state'] not in ('not run', 'running') for stage in stages)
    return {'version': device.get('version', ''), 'commit': header['commit'],
            'device': header['device_id'], 'device_name': device.get('device_name', ''),
            'driver': device.get('driver', ''), 'driver_library': header['driver_library'],
            'date': call['date'], 'dry_run': header['dry_run'] == '1',
            'estimate': sum(stage['estimate'] for stage in stages),
            'calls': earlier['calls'] + [call], 'complete': complete,
            'passed': all(stage['state'] == 'passed' for stage in stages if stage['required'])}


def whole(text):
    return int(text) if text else None


def print_states(path):
    root = json_of(path)
    for stage in root['stages']:
        print('%s=%s' % (stage['name'], stage['state']))
    for name in ('commit', 'device', 'dry_run'):
        value = root[name]
        print('/%s=%s' % (name, int(value) if isinstance(value, bool) else value))


# ---- cuBLAS -------------------------------------------------------------------------------------


def loaded(name):
    """Where the library lies that the loader takes for the name; None where it takes none."""
    import ctypes  # which the other calls, many of them, do without
    try:
        ctypes.CDLL(name)
    except OSError:
        return None
    with open('/proc/self/maps', encoding='utf-8') as file:
        for line in file:
            path = line.rstrip('\n').split(maxsplit=5)[-1]
            if os.path.basename(path).startswith('libcublas.so'):
                return path
    return name


def in_packages():
    """cuBLAS in packages of Python's, the newest first."""
    import sysconfig
    found = []
    for root in {sysconfig.get_path('purelib'), sysconfig.get_path('platlib')}:
        for folder in ('nvidia/cu13/lib', 'nvidia/cublas/lib', 'torch/lib'):
            found += glob.glob(os.path.join(root, folder, 'libcublas.so.[0-9]*'))
    return sorted(found, key=lambda path: int(path.rsplit('.', 1)[1]), reverse=True)


def cublas_of(named):
    """What host/cuda takes, or could be told to take; empty if there is none."""
    if named:
        return named
    for name in ['libcublas.so.%d' % version for version in (13, 12, 11)] + in_packages():
        path = loaded(name)
        if path:
            return path
    return ''


# ---- Markdown -----------------------------------------------------------------------------------


def shown(value, digits=1):
    return '-' if value is None else '{:,.{}f}'.format(value, digits)


def table(head, rows):
    return ['| %s |' % ' | '.join(head), '|%s' % ('---|' * len(head))] + [
        '| %s |' % ' | '.join(str(cell) for cell in row) for row in rows] + ['']


def verdict(root):
    bad = [stage['name'] for stage in root['stages']
           if stage['required'] and stage['state'] not in ('passed', 'running', 'not run')]
    left = [stage['name'] for stage in root['stages'] if stage['state'] in ('not run', 'running')]
    said = ['Did not pass: %s.' % ', '.join(bad)] if bad else []
    said += ['Not run yet: %s.' % ', '.join(left)] if left else []
    return ' '.join(said) or 'Every required stage passed.'


def head_lines(root):
    last = root['calls'][-1]
    facts = [('device', root['device_name'] or root['device']), ('driver', root['driver']),
             ('machine', last['machine']), ('driver library', root['driver_library']),
             ('nvcc', last['nvcc']), ('cuBLAS', last['cublas']), ('commit', root['commit']),
             ('calls, seconds', ', '.join('%d of %d' % (call['seconds'], call['limit'])
                                          for call in root['calls'])),
             ('seconds of stages', sum(stage.get('seconds') or 0 for stage in root['stages'])),
             ('estimated', root['estimate'])]
    copies = [row['copy_gb_per_s'] for row in root['peers'] if 'copy_gb_per_s' in row]
    # Of one run of the bench, the first; each row of the JSON has its own.
    for row in root['rows'][:1]:
        facts += [('read bandwidth, GB/s', shown(row['read_gb_per_s'])),
                  ('copy bandwidth, GB/s', shown(row['copy_gb_per_s']))]
    if copies:
        facts.append(('copy bandwidth by PyTorch, GB/s', shown(copies[0])))
    kind = ' (dry run: whether it works, not how fast)' if root['dry_run'] else ''
    return (['# GPU check, %s%s' % (root['date'][:10], kind), '', verdict(root), '']
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
        rows.append((name, counted, sum(stage.get('seconds') or 0 for stage in members),
                     sum(stage['estimate'] for stage in members), said.replace('|', '\\|')[:100]))
    for stage in root['stages']:
        if stage['state'] in BAD:
            details += ['`%s`: %s, exit status %s, %s s of %s' %
                        (stage['name'], stage['state'], stage['rc'], stage['seconds'],
                         stage['limit']), '', '```'] + stage['last_lines'] + ['```', '']
    return ['## Stages', ''] + table(['stage', 'state', 'seconds', 'estimated', 'last line'],
                                     rows) + details


def keyed(root):
    """{(shape, batch, context): rows of the device checked}; f16 and pages in order only."""
    backend = root['device'].split(':')[0]
    cases = {}
    for row in root['rows']:
        if (row['backend'], row['pages'], row['dtype']) == (backend, 'ordered', 'f16'):
            key = row['shape'], row['batch'], row['context']
            cases.setdefault(key, []).append(row)
    return dict(sorted(cases.items()))


def device_us(row):
    """Time on the device where there is one, else the host's."""
    return row.get('graph_us') or row['total_us']


def full_of(found):
    return min((row for row in found if row['select'] == 'full'), key=device_us)


def peers_of(root, key):
    """{peer: row} of those that were measured in the shape."""
    return {row['peer']: row for row in root['peers'] if 'total_us' in row
            and (row['shape'], row['batch'], row['context']) == key}


def best_dense(root, key, found):
    """(name, us) of the fastest dense attention, ours among them."""
    times = [(device_us(row), name) for name, row in peers_of(root, key).items()]
    us, name = min(times + [(device_us(full_of(found)), 'tamis')])
    return name, us


def gate_lines(root):
    """What the project set out to reach, and what it reached."""
    shape, context, budget = GATE_CASE
    rows = []
    for batch, (least_share, least_gain) in GATES.items():
        key = shape, batch, context
        found = keyed(root).get(key, [])
        quest = {row['select']: row for row in found if row['budget'] == budget}
        if 'quest' not in quest:
            continue
        full, (name, best) = full_of(found), best_dense(root, key, found)
        if full['copy_gb_per_s']:
            share = full['gb_per_s'] * full['total_us'] / device_us(full) / full['copy_gb_per_s']
            rows.append(gate('dense over copy bandwidth, batch %d' % batch, share, least_share))
        if not peers_of(root, key):
            name = 'ours: no peer was measured'
        rows.append(gate('quest %d over the best dense (%s), batch %d' % (budget, name, batch),
                         best / device_us(quest['quest']), least_gain))
        # attend stands behind score and select in the queue, so that no host is in its time; one
        # gap is.
        parts = quest['quest']['stage_us']
        if parts.get('fused_select'):
            attend = parts['fused'] - parts['fused_select']
            rows.append(gate('score, select and their gap of the pipeline, batch %d' % batch,
                             1 - attend / device_us(quest['quest']), GATE_SHARE, most=True))
    if not rows:
        return []
    return ['## Gates', '', '%s, %d tokens, on the device\'s clock; a peer counts where it was '
            'measured.' % (shape, context), ''] + table(['gate', 'wanted', 'found', ''], rows)


def gate(what, value, wanted, most=False):
    met = value <= wanted if most else value >= wanted
    return (what, '%s %s' % ('at most' if most else 'at least', shown(wanted, 2)), shown(value, 2),
            'met' if met else 'missed')


def decode_lines(root):
    cases = keyed(root)
    if not cases:
        return []
    budgets = sorted({row['budget'] for rows in cases.values() for row in rows
                      if row['select'] == 'quest'})
    rows = []
    for key, found in cases.items():
        full, (name, best) = full_of(found), best_dense(root, key, found)
        quest = {row['budget']: row for row in found if row['select'] == 'quest'}
        cells = ['%s (%.2f×)' % (shown(device_us(quest[b])), best / device_us(quest[b]))
                 if b in quest else '-' for b in budgets]
        rows.append((key[0], key[1], '{:,}'.format(key[2]), shown(device_us(full)),
                     shown(full['share_of_read'], 2), shown(full['share_of_copy'], 2),
                     '%s, %s' % (shown(best), name), *cells))
    head = ['shape', 'batch', 'context', 'full us', 'of read', 'of copy', 'best dense us',
            *('quest %d us' % b for b in budgets)]
    return ['## Decode attention', '', 'One step of one layer: on the device\'s clock over replays '
            'of a graph where there are graphs, else wall time. The factor is over the best dense '
            'attention that was measured in the shape, ours among them; of read and of copy are '
            'by wall time.', ''] + table(head, rows)


def peer_table(root):
    """Each peer's own time; of the device, and of the host where no graph could be recorded."""
    rows = []
    for key, found in keyed(root).items():
        there = peers_of(root, key)
        if there:
            rows.append((*key, shown(device_us(full_of(found)), 2),
                         *(shown(device_us(there[peer]), 2) if peer in there else '-'
                           for peer in PEERS)))
    if not rows:
        return []
    return ['## Dense attention of others', ''] + table(
        ['shape', 'batch', 'context', 'tamis us', *('%s us' % peer for peer in PEERS)], rows)


def graph_lines(root):
    """Graph replays, which no host holds up, of the rows that have one."""
    rows = []
    for key, found in keyed(root).items():
        for row in found:
            if row['graph_us'] is not None:
                rows.append((*key, row['select'], row['budget'], row['graph_replays'],
                             shown(row['total_us'], 2), shown(row['graph_us'], 2),
                             shown(full_of(found)['graph_us'] / row['graph_us'], 2)))
    if not rows:
        return []
    return ['## Replayed as a graph', ''] + table(
        ['shape', 'batch', 'context', 'what', 'budget', 'replays', 'wall us', 'graph us',
         'over full'], rows)


def part_lines(root):
    parts = 'write', 'bounds', 'score', 'select', 'attend', 'fused', 'fused_select'
    rows = [(*key, row['select'], row['budget'],
             *(shown(row['stage_us'].get(part), 1) for part in parts))
            for key, found in keyed(root).items() for row in found]
    if not rows:
        return []
    return ['## Stages of a step', '', 'Microseconds of one layer, each stage waited for. '
            'quest-apart launches one by one what quest fuses; fused select is the part of fused '
            'before attend.', ''] + table(['shape', 'batch', 'context', 'select', 'budget',
                         *(part.replace('_', ' ') for part in parts)], rows)


def op_lines(root):
    rows = [(row['case'], row['form'], shown(row['us'], 1), shown(row['gb_per_s'], 1),
             shown(row['share_of_read'], 2)) for row in root['ops'] if 'us' in row]
    if not rows:
        return []
    return ['## Ops', ''] + table(['case', 'form', 'us', 'GB/s', 'of read'], rows)


def beside_lines(root, backend, title, us_of):
    """Rows of another way to drive the same card: time of the default over its own."""
    own = keyed(root)
    rows = []
    for row in root['rows']:
        key = row['shape'], row['batch'], row['context']
        if row['backend'] != backend or not row['stage'].startswith(backend + '/'):
            continue
        for other in own.get(key, []):
            if other is not row and (other['select'], other['budget']) == (row['select'],
                                                                           row['budget']):
                rows.append((*key, row['select'], row['budget'], shown(us_of(other)),
                             shown(us_of(row)), shown(us_of(other) / us_of(row), 2)))
    if not rows:
        return []
    return ['## ' + title, ''] + table(['shape', 'batch', 'context', 'select', 'budget', 'us',
                                        backend + ' us', 'ratio'], rows)


def opencl_lines(root):
    return beside_lines(root, 'opencl', 'The same card through OpenCL',
                        lambda row: row['total_us'])


def overlap_lines(root):
    return beside_lines(root, 'overlap', 'Launches that overlap (TAMIS_CUDA_OVERLAP=1)', device_us)


def peer_lines(root):
    bad = ['- %s%s: %s' % (row['peer'], ', %(shape)s, batch %(batch)d, %(context)d tokens' % row
                           if 'shape' in row else '', row.get('error') or 'no graph, its wall time '
                           'counts: ' + row['graph_error'])
           for row in root['peers'] if 'error' in row or 'graph_error' in row]
    return ['## Peers that did not run', ''] + bad + [''] if bad else []


# ---- Files --------------------------------------------------------------------------------------


def write(path, text):
    with open(path + '.new', 'w', encoding='utf-8') as file:
        file.write(text)
    os.replace(path + '.new', path)


def lines_of_part(part, root):
    """A table that cannot be made of what was measured costs itself alone."""
    try:
        return part(root)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return ['%s could not be made: %s: %s' % (part.__name__, type(error).__name__, error), '']


def main():
    if sys.argv[1] == '--states':
        return print_states(sys.argv[2])
    if sys.argv[1] == '--cublas':
        return print(cublas_of(sys.argv[2]))
    work, out = sys.argv[1:]
    root = read_all(work)
    parts = (head_lines, gate_lines, stage_lines, decode_lines, peer_table, graph_lines, part_lines,
             op_lines, opencl_lines, overlap_lines, peer_lines)
    write(os.path.join(out, 'gpu_check.json'), json.dumps(root, indent=1) + '\n')
    write(os.path.join(out, 'gpu_check.md'),
          '\n'.join(line for part in parts for line in lines_of_part(part, root)))


if __name__ == '__main__':
    main()
