#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/compare_devices.py from outside, over small files of both kinds.

Usage: test_compare.py COMPARE.py [unittest arguments]
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

COMPARE = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else ''


def bench(driver, shape='llama3-8b', full_us=1000):
    rows = [{'shape': shape, 'dtype': 'f16', 'batch': 1, 'context': 32768, 'pages': 'ordered',
             'select': select, 'budget': budget, 'total_us': us, 'share_of_read': 0.871,
             'speedup_over_full': full_us / us}
            for select, budget, us in (('full', 32768, full_us), ('quest', 2048, full_us / 5))]
    return {'tool': 'tamis bench attention', 'device_name': 'cpu', 'driver': driver, 'threads': 2,
            'read_gb_per_s': 31.26, 'rows': rows}


def check(rows):
    return {'tool': 'tamis-check', 'rows': rows}


def case(driver, op, form, verdict, first_ms=0, reason=''):
    row = {'op': op, 'case': op + ':f16', 'driver': driver, 'form': form, 'verdict': verdict}
    row.update({'first_ms': first_ms} if verdict == 'passed' else {'reason': reason})
    return row


class Compare(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.paths = []

    def file(self, value):
        self.paths.append(os.path.join(self.folder.name, '%d.json' % len(self.paths)))
        with open(self.paths[-1], 'w', encoding='utf-8') as f:
            f.write(value if isinstance(value, str) else json.dumps(value))

    def run_it(self, *arguments):
        return subprocess.run([sys.executable, COMPARE, *arguments], capture_output=True, text=True,
                              check=False)

    def table(self):
        done = self.run_it(*self.paths)
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        return [[cell.strip() for cell in line.strip('|\n').split('|')]
                for line in done.stdout.splitlines()]

    def fails(self, *parts):
        done = self.run_it(*self.paths)
        self.assertEqual((done.returncode, done.stdout), (1, ''))
        self.assertEqual(len(done.stderr.splitlines()), 1)
        for part in parts:
            self.assertIn(part, done.stderr)

    def test_bench(self):
        self.file(bench('A'))
        self.file(bench('B', full_us=54321))
        self.file(bench('A', shape='llama2-7b'))
        head, rule, read, *rows = self.table()
        self.assertEqual(head[-2:], ['cpu, A, 2 threads', 'cpu, B, 2 threads'])
        self.assertEqual(set(rule), {'---'})
        self.assertEqual(read[-2:], ['31.3, 31.3', '31.3'])
        self.assertEqual([row[:1] + row[5:] for row in rows], [
            ['llama3-8b', 'full', '', '1,000 us, 0.87 of read', '54,321 us, 0.87 of read'],
            ['llama3-8b', 'quest', '2,048', '200 us, 5.0 over full', '10,864 us, 5.0 over full'],
            ['llama2-7b', 'full', '', '1,000 us, 0.87 of read', 'not run'],
            ['llama2-7b', 'quest', '2,048', '200 us, 5.0 over full', 'not run']])

    def test_check(self):
        self.file(check([
            case('A', 'norm', 'base', 'passed', 300), case('A', 'norm', 'base', 'passed', 1240),
            case('A', 'norm', 'cpu', 'skipped', reason='norm: no CPU form: serves all'),
            case('A', 'attend', 'cpu', 'passed', 80),
            case('A', 'attend', 'cpu', 'skipped', reason='E_UNSUPPORTED: attend: the head dim')]))
        self.file(check([
            case('B', 'norm', 'base', 'failed', reason='y[0]'),
            case('B', 'norm', 'base', 'passed', 0)]))
        head, _, *rows = self.table()
        self.assertEqual(head, ['op', 'form', 'A', 'B'])
        self.assertEqual(rows, [
            ['attend', 'cpu', '1 pass, 0.1 s; 1 refused: the head dim', 'not taken'],
            ['norm', 'base', '2 pass, 1.2 s', '**1 failed**; 1 pass, 0.0 s']])

    def test_bad_files(self):
        for value, part in (('{', 'not JSON'), ('[]', 'is not an object'),
                            ({'rows': []}, '"tool" is missing'),
                            ({'tool': 'tamis eval taste', 'rows': []}, 'is none of'),
                            (check([{'op': 'norm'}]), '"driver": "driver" is missing'),
                            ({'tool': 'tamis bench attention', 'rows': []},
                             '"device_name" is missing')):
            self.paths.clear()
            self.file(value)
            self.fails('0.json', part.split(': ')[-1])

    def test_files_that_do_not_go_together(self):
        self.file(bench('A'))
        self.file(check([]))
        self.fails('1.json: not of the same tool as', '0.json')
        self.paths[1] = self.paths[0]
        self.fails('0.json: rows[0]: the same stands in')
        self.paths[1] = os.path.join(self.folder.name, 'absent')
        self.fails('absent: cannot be read: No such file')

    def test_usage(self):
        self.assertEqual(self.run_it().returncode, 2)
        self.assertEqual(self.run_it('--x').returncode, 2)
        self.assertEqual(self.run_it('--help').returncode, 0)


if __name__ == '__main__':
    unittest.main()
