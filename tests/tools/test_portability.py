#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/plot_portability.py and compare_devices.py from outside, over small files of two machines.

Usage: test_portability.py TOOLS_FOLDER [unittest arguments]
"""
import copy
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

TOOLS = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else ''
SVG = '{http://www.w3.org/2000/svg}'
PROBLEMS = (('dense llama3-8b 4096', 'dense', 'page-read limit'),
            ('product f16 1', 'few rows', 'read bandwidth'))


def row(problem, hardware, driver, form, us, best_us, architectural=0.5, **more):
    name, kind, ceiling = problem
    return {'problem': name, 'class': kind, 'ceiling': ceiling, 'hardware': hardware,
            'backend': 'opencl', 'device_name': 'a <device>', 'driver': driver, 'units': 2,
            'form': form, 'state': 'ran', 'us': us, 'low_us': us * 0.9, 'high_us': us * 1.2,
            'samples': 5, 'bytes': 1e6, 'flop': None, 'read_gb_per_s': 17, 'limit_gb_per_s': None,
            'architectural': architectural, 'application': best_us / us, **more}


def absent(from_row, state):
    kept = ('problem', 'class', 'ceiling', 'hardware', 'backend', 'device_name', 'driver', 'units',
            'form')
    return {**{key: from_row[key] for key in kept}, 'state': state, 'reason': 'why & how'}


def machine(hardware='a CPU', drivers=('P 1', 'I 2'), refused=()):
    """The second driver takes twice as long as the first one, and four times in the form base."""
    rows = [row(problem, hardware, driver, form, us, 100)
            for problem in PROBLEMS
            for driver, form, us in ((drivers[0], 'cpu', 100), (drivers[1], 'cpu', 200),
                                     (drivers[1], 'base', 400))]
    return {'tool': 'tamis bench portability', 'commit': '0123456789ab', 'device': None,
            'quick': False, 'no_platforms': list(refused), 'rows': rows}


class Portability(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.page = os.path.join(self.folder.name, 'page.html')
        self.paths = []

    def file(self, value):
        self.paths.append(os.path.join(self.folder.name, '%d.json' % len(self.paths)))
        with open(self.paths[-1], 'w', encoding='utf-8') as f:
            json.dump(value, f)

    def run_it(self, tool, *arguments):
        return subprocess.run([sys.executable, os.path.join(TOOLS, tool), *arguments],
                              capture_output=True, text=True, check=False)

    def table(self):
        done = self.run_it('compare_devices.py', *self.paths)
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        lines = [[cell.strip() for cell in line.strip('|\n').split('|')]
                 for line in done.stdout.splitlines()]
        return lines[0], {cells[0]: cells[1:] for cells in lines[2:]}

    def made_page(self):
        done = self.run_it('plot_portability.py', self.page, *self.paths)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, '', ''))
        with open(self.page, encoding='utf-8') as f:
            return f.read()

    def fails(self, *parts):
        for tool, first in (('compare_devices.py', ()), ('plot_portability.py', (self.page,))):
            done = self.run_it(tool, *first, *self.paths)
            self.assertEqual((done.returncode, done.stdout), (1, ''))
            self.assertEqual(len(done.stderr.splitlines()), 1)
            for part in parts:
                self.assertIn(part, done.stderr)
            self.assertFalse(os.path.exists(self.page))

    def test_metric(self):
        self.file(machine())
        head, rows = self.table()
        self.assertEqual(head[3:], ['a CPU, P 1, cpu', 'a CPU, I 2, cpu', 'a CPU, I 2, base'])
        # 3 / (1 + 2 + 4); all shares of the hardware are a half.
        self.assertEqual(rows['product f16 1'],
                         ['0.50', '0.43', '100 us, 0.50, 1.00', '200 us, 0.50, 0.50',
                          '400 us, 0.50, 0.25'])

    def test_not_run_is_left_out_and_cannot_is_zero(self):
        value = machine()
        value['rows'][2] = absent(value['rows'][2], 'not run')
        value['rows'][5] = absent(value['rows'][5], 'cannot run')
        self.file(value)
        rows = self.table()[1]
        self.assertEqual(rows['dense llama3-8b 4096'][1], '0.67')
        self.assertEqual(rows['dense llama3-8b 4096'][-1], 'not run')
        self.assertEqual(rows['product f16 1'][:2], ['0.000', '0.000'])
        page = self.made_page()
        self.assertIn('2 of 3', page)
        self.assertIn('product f16 1 on C: cannot run: why &amp; how', page)

    def test_another_machine_joins(self):
        self.file(machine())
        self.file(machine('a GPU', ('N 3', 'O 4'), ['opencl:2 cpu: <not> proved']))
        head, rows = self.table()
        self.assertEqual(len(head), 3 + 6)
        self.assertEqual(rows['product f16 1'][1], '0.43')
        page = self.made_page()
        self.assertIn('6 platforms, 2 problems', page)
        self.assertIn('no platform: opencl:2 cpu: &lt;not&gt; proved', page)

    def test_a_machine_without_a_problem_has_not_run_it(self):
        self.file(machine())
        other = machine('a GPU')
        other['rows'] = other['rows'][:3]
        self.file(other)
        self.assertEqual(self.table()[1]['product f16 1'][-1], 'not run')

    def test_the_page_is_whole(self):
        self.file(machine())
        page = self.made_page()
        self.assertEqual(re.findall(r'<script|<link|<img|\bsrc=|\bhref=|@import|url\(', page), [])
        root = xml.etree.ElementTree.fromstring(page.split('\n', 1)[1])
        pictures = list(root.iter(SVG + 'svg'))
        self.assertEqual(len(pictures), 2 + len(PROBLEMS))
        for picture in pictures:
            _, _, width, height = map(float, picture.get('viewBox').split())
            for mark in picture.iter():
                for name, most in (('x', width), ('cx', width), ('y', height), ('cy', height)):
                    self.assertTrue(0 <= float(mark.get(name, 0)) <= most, mark.attrib)
        # A line for each class, a point for each platform: 1, 2 / (1 + 2), 3 / (1 + 2 + 4).
        line = next(pictures[0].iter(SVG + 'polyline')).get('points')
        self.assertEqual([float(point.split(',')[1]) for point in line.split()],
                         [10, round(10 + 220 / 3, 1), round(10 + 220 * 4 / 7, 1)])
        # The two drivers of the form cpu beside each other.
        self.assertIn('Form cpu, a CPU', page)
        self.assertNotIn('Form base, a CPU', page)

    def test_what_is_refused(self):
        self.file(machine())
        self.file(machine())
        self.fails('1.json: rows[0]', 'the same problem on the same platform stands in', '0.json')
        for name, value, part in (('state', 'slept', 'is not one of ran, not run, cannot run'),
                                  ('us', 0, 'is not at least'), ('driver', 7, 'is not a string'),
                                  ('high_us', 1, 'is not at least 100')):
            broken = copy.deepcopy(machine())
            broken['rows'][3][name] = value
            self.paths = self.paths[:0]
            self.file(broken)
            self.fails('0.json: rows[3]: "%s"' % name, part)

    def test_usage(self):
        for arguments in ((), (self.page,), ('--html', self.page)):
            done = self.run_it('plot_portability.py', *arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ''))
        self.assertEqual(self.run_it('plot_portability.py', '--help').returncode, 0)
        self.file({**machine(), 'tool': 'tamis bench linear'})
        done = self.run_it('plot_portability.py', self.page, *self.paths)
        self.assertIn('"tool": "tamis bench linear" is not tamis bench portability', done.stderr)


if __name__ == '__main__':
    unittest.main()
