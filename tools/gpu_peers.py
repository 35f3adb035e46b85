#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times dense decode attention of others on this machine's GPU, in the shapes of `tamis bench`.

Which they are, and how each is measured, is the engine's (gpu_peers_torch.py). Here is what keeps
them apart: every shape of every peer is measured in a child process, which goes on to the next one;
where it dies, hangs or leaves the device unusable, that peer has an error in its row and is not
asked again, and a fresh child does what is left. The file is written anew after each row, so that a
run that is cut leaves what it has; its version and device are the engine's. Exit status: 0 done, 1
if nothing could be measured, 2 for a wrong command line, 77 where the engine says that there is
nothing to measure on.
"""
import argparse
import importlib.util
import json
import os
import select
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ENGINE = os.path.join(HERE, 'gpu_peers_torch.py')
SHAPES = 'llama2-7b', 'llama3-8b'
UNUSABLE = 3  # a child's exit status: the device answers no more


class Case:
    """SHAPE:BATCH:CONTEXT:CACHES, where so many caches are attended in turn."""

    def __init__(self, text):
        shape, *numbers = text.split(':')
        if shape not in SHAPES or len(numbers) != 3 or not all(
                number.isdigit() and int(number) > 0 for number in numbers):
            raise argparse.ArgumentTypeError(
                '%s: not SHAPE:BATCH:CONTEXT:CACHES with a shape of %s' % (text, ', '.join(SHAPES)))
        self.text, self.shape = text, shape
        self.batch, self.context, self.caches = (int(number) for number in numbers)

    def row(self, peer):
        return {'peer': peer, 'shape': self.shape, 'batch': self.batch, 'context': self.context,
                'dtype': 'f16', 'caches': self.caches}


class NothingToMeasure(Exception):
    """An engine's: no GPU, or nothing that could use it."""


class ImportFailed(Exception):
    """An engine's: the peer is not there, so it is asked for no other shape."""


def load(path):
    sys.dont_write_bytecode = True  # beside the sources
    sys.modules.setdefault('gpu_peers', sys.modules[__name__])
    spec = importlib.util.spec_from_file_location('engine', path)
    engine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(engine)
    return engine


def one_line(error):
    text = ' '.join(str(error).split()) or type(error).__name__
    return '%s: %s' % (type(error).__name__, text[:300])


# ---- The child: one JSON line a pair, a line "begin" before it ----------------------------------


def say(what):
    print('@' + json.dumps(what), flush=True)


def run_pairs(engine, pairs):
    """Of each pair its row, or its error. Stops where the device answers no more."""
    say({'header': engine.header()})
    missing = set()
    for name, case in pairs:
        if name in missing:
            continue
        say({'begin': [name, case.text]})
        row = case.row(name)
        try:
            row.update(engine.measure(name, case))
        except ImportFailed as error:
            missing.add(name)
            row['error'], row['missing'] = one_line(error), True
        except Exception as error:  # of other people's code: the row says what it was
            row['error'] = one_line(error)
        say({'row': row})
        if ('error' in row or 'graph_error' in row) and not engine.usable():
            return UNUSABLE
    return 0


def child(options):
    engine = load(options.engine)
    try:
        return run_pairs(engine, pairs_of(options.pairs))
    except NothingToMeasure as error:
        say({'nothing': str(error)})
        return 77


def pairs_of(text):
    pairs = [pair.split('=', 1) for pair in text.split(',')]
    return [(name, Case(case)) for name, case in pairs]


# ---- The parent ---------------------------------------------------------------------------------


class Results:
    def __init__(self, path):
        self.path, self.rows, self.header, self.nothing = path, [], {}, None

    def add(self, row):
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        if self.path is None:
            return
        with open(self.path + '.new', 'w', encoding='utf-8') as file:
            json.dump({'tool': 'gpu_peers', 'version': None, 'commit': None, 'device': None,
                       **self.header, 'rows': self.rows}, file, indent=1)
        os.replace(self.path + '.new', self.path)

    def measured(self):
        return any('total_us' in row for row in self.rows)


def lines_until(process, seconds):
    """The child's next line; None at its end. TimeoutError where nothing comes for so long. Other
    people's code may print anything: what is ours begins with "@"."""
    deadline = time.monotonic() + seconds
    while True:
        if b'\n' in process.rest:
            line, process.rest = process.rest.split(b'\n', 1)
            text = line.decode(errors='replace')
            if text.startswith('@'):
                return json.loads(text[1:])
            print('    ' + text, flush=True)
            continue
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            raise TimeoutError('nothing came for %g s' % seconds)
        more = os.read(process.stdout.fileno(), 65536)
        if not more:
            return None
        process.rest += more


def run_child(options, pairs, results):
    """Adds the rows of a child; returns the peer and the case that it was at when it ended before
    its time, with the reason, or None."""
    text = ','.join('%s=%s' % (name, case.text) for name, case in pairs)
    process = subprocess.Popen([sys.executable, os.path.abspath(__file__), '--pairs', text,
                                '--engine', options.engine], stdout=subprocess.PIPE)
    process.rest, at, why = b'', None, None
    try:
        while why is None:
            said = lines_until(process, options.limit)
            if said is None:
                break
            results.header.update(said.get('header', {}))
            results.nothing = said.get('nothing', results.nothing)
            at = said.get('begin', at)
            if 'row' in said:
                results.add(said['row'])
                at = None
    except TimeoutError as error:
        why = one_line(error)
        process.kill()
    status = process.wait()
    if at is None and status in (0, 77, UNUSABLE):
        return None
    return at, why or 'its process ended with status %d' % status


def measure_all(options, pairs):
    """Every pair once, whatever becomes of others."""
    results = Results(options.json)
    while pairs and results.nothing is None:
        before = len(results.rows)
        died = run_child(options, pairs, results)
        done = {(row['peer'], row['shape'], row['batch'], row['context'])
                for row in results.rows if 'shape' in row}
        lost = set()
        if died is not None:
            at, why = died
            name, text = at or (pairs[0][0], pairs[0][1].text)
            case = Case(text)
            results.add({**case.row(name), 'error': why})
            done.add((name, case.shape, case.batch, case.context))
            lost.add(name)
        lost |= {row['peer'] for row in results.rows if row.get('missing')}
        pairs = [(name, case) for name, case in pairs if name not in lost
                 and (name, case.shape, case.batch, case.context) not in done]
        if len(results.rows) == before:
            break  # a child that does nothing would be started for ever
    return results


def main():
    parser = argparse.ArgumentParser(prog='gpu_peers.py', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--peers', default='all', metavar='NAME,...',
                        help='all: those that the engine measures in passing, not the slow ones')
    parser.add_argument('--cases', metavar='SHAPE:BATCH:CONTEXT:CACHES,...',
                        type=lambda text: [Case(part) for part in text.split(',')])
    parser.add_argument('--json', metavar='FILE', help='the rows, whole after each of them')
    parser.add_argument('--limit', type=float, default=150, metavar='SECONDS',
                        help='of one row; FlashInfer compiles in its first')
    parser.add_argument('--engine', default=ENGINE, help=argparse.SUPPRESS)
    parser.add_argument('--pairs', help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pairs:
        return child(options)
    if not options.cases:
        parser.error('--cases is missing')
    engine = load(options.engine)
    names = options.peers.split(',') if options.peers != 'all' else engine.QUICK
    for name in names:
        if name not in engine.PEERS:
            parser.error('--peers %s: known are %s' % (name, ', '.join(engine.PEERS)))
    # Shape after shape, so that the first ones are whole where time runs out.
    results = measure_all(options, [(name, case) for case in options.cases for name in names])
    if results.nothing is not None:
        print('gpu_peers.py: ' + results.nothing)
        return 77
    return 0 if results.measured() else 1


if __name__ == '__main__':
    sys.exit(main())
