#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_model.py from outside, and the arithmetic of tools/gpu_resources.py.

Usage: test_gpu_model.py TOOLS [unittest arguments]
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

TOOLS = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else ''
sys.path.insert(0, TOOLS)
ROW = {'shape': 'llama2-7b', 'batch': 1, 'context': 32768, 'dtype': 'f16', 'pages': 'ordered',
       'select': 'full', 'budget': 32768, 'graph_us': 200.0}


class Model(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_it(self, *arguments, rows=None):
        if rows is not None:
            path = os.path.join(self.folder.name, 'run.json')
            with open(path, 'w', encoding='utf-8') as file:
                json.dump({'rows': rows}, file)
            arguments += (path,)
        return subprocess.run([sys.executable, os.path.join(TOOLS, 'gpu_model.py'), *arguments],
                              capture_output=True, text=True, check=False)

    def rows(self, *arguments, rows=None):
        done = self.run_it(*arguments, rows=rows)
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        return [[cell.strip() for cell in line.strip('|\n').split('|')]
                for line in done.stdout.splitlines()[2:]]

    def test_without_a_file(self):
        rows = self.rows()
        full = {tuple(row[:4]): float(row[5]) for row in rows if row[4] == 'full'}
        for row in rows:
            # No faster than its bytes at the device's whole bandwidth.
            heads = 32 if row[0] == 'llama2-7b' else 8
            tokens = int(row[3].replace(',', '')) if row[4] == 'full' else int(row[4].split()[1])
            least = 2 * heads * 128 * 2 * int(row[2]) * tokens / 4.8e6
            self.assertGreater(float(row[5]), least, row)
            self.assertAlmostEqual(float(row[6]), full[tuple(row[:4])] / float(row[5]), delta=0.05)

    def test_beside_what_was_measured(self):
        (full, quest) = self.rows(rows=[ROW, {**ROW, 'select': 'quest', 'budget': 2048,
                                              'graph_us': None},
                                        {**ROW, 'select': 'quest-apart'},
                                        {**ROW, 'backend': 'opencl'}, {**ROW, 'pages': 'shuffled'}])
        self.assertEqual(full[7], '200.0')
        self.assertAlmostEqual(float(full[8]), 200 / float(full[5]), delta=0.01)
        self.assertEqual(quest[7:], ['', ''])

    def test_terms_add_up(self):
        for row in self.rows('--terms'):
            terms = [float(part.rsplit(' ', 1)[1]) for launch in row[9].split(';')
                     for part in launch.split(':')[1].split(',')]
            self.assertAlmostEqual(sum(terms), float(row[5]), delta=0.05 * len(terms) + 0.06)

    def test_what_it_does_not_know(self):
        for wrong, part in (({'shape': 'gpt2'}, 'no model of gpt2'), ({'context': 0}, 'context'),
                            ({'budget': 'all'}, 'budget')):
            done = self.run_it(rows=[{**ROW, **wrong}])
            self.assertEqual((done.returncode, done.stdout), (1, ''))
            self.assertIn(part, done.stderr)
        self.assertEqual(self.run_it('--no').returncode, 2)

    def test_occupancy(self):
        from gpu_resources import occupancy
        self.assertEqual(occupancy(128, 9360, 256), (2, 'registers'))
        self.assertEqual(occupancy(24, 0, 1024), (2, 'warps'))
        self.assertEqual(occupancy(32, 100 << 10, 128), (2, 'shared memory'))
        self.assertEqual(occupancy(16, 0, 32), (32, 'blocks'))
        self.assertEqual(occupancy(255, 0, 64), (4, 'registers'))


if __name__ == '__main__':
    unittest.main()
