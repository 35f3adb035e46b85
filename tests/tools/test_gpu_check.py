#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check.sh --quick from outside: over a real build, and over builds of small scripts that
fail, hang or are cut.

Usage: test_gpu_check.py GPU_CHECK.sh BUILD DEVICE [unittest arguments]. The environment decides
which CUDA driver serves.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

CHECK, BUILD, DEVICE = [*sys.argv[1:4], '', '', ''][:3]
del sys.argv[1:4]
PROGRAMS = ('tamis', 'tests/ops/tamis-check', 'tests/model/test-model-arguments')
STAGES = ['build', 'device', 'check', 'bitwise', 'model/arguments', 'bench/llama3-8b/1/256',
          'sanitizer', 'peers', 'opencl']
REQUIRED = STAGES[:6]

COUNTERS = {'kv_bytes_full': 1, 'kv_bytes_read': 1, 'bounds_bytes_read': 0}
PARTS = dict.fromkeys(('write', 'bounds', 'score', 'select', 'attend', 'fused'), 1.5)
ROW = {'shape': 'llama3-8b', 'batch': 1, 'context': 256, 'layers': 1, 'dtype': 'f16',
       'select': 'full', 'budget': 256, 'pages': 'ordered', 'total_us': 90.0,
       'graph_us': 60.0, 'stage_us': PARTS, 'gb_per_s': 2.0, 'share_of_read': 0.5,
       'share_of_copy': None, 'speedup_over_full': 1, 'counters': COUNTERS}
BENCH = {'header': {'device': 'a made one', 'driver': 'none', 'version': '0', 'threads': 1,
                    'read_gb_per_s': 4.0, 'copy_gb_per_s': None},
         'results': [ROW, {**ROW, 'select': 'quest', 'budget': 128, 'total_us': 30.0,
                           'graph_us': 20.0, 'speedup_over_full': 3.0}]}

# A command line that is enough for gpu_check.sh.
TAMIS = '''#!/bin/sh
case $1 in
--version) echo tamis 0 ;;
devices) printf 'id kind state\\n%%s gpu usable\\n' %s ;;
bench)
    while [ "$1" != --json ]; do shift; done
    cat >"$2" <<'END'
%s
END
    ;;
esac
'''


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out, self.build = self.path('out'), self.path('build')

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def program(self, name, text):
        path = os.path.join(self.build, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w') as file:
            file.write(text)
        os.chmod(path, 0o755)

    def make_build(self, devices='cuda:0', bench=json.dumps(BENCH), **programs):
        """A build of scripts that pass, but for `programs`, by the last word of their names."""
        self.program('tamis', TAMIS % (devices, bench))
        for name in PROGRAMS[1:]:
            self.program(name, programs.get(name.split('-')[-1], '#!/bin/sh\necho all is well\n'))

    def command(self, build, *options):
        return [CHECK, self.out, '--quick', '--commit', 'abcdef0', '--build', build, *options]

    def run_check(self, build, *options):
        done = subprocess.run(self.command(build, *options), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def results(self):
        """The JSON and the Markdown; nothing half written lies beside them."""
        self.assertEqual(sorted(os.listdir(self.out)),
                         ['gpu_check.json', 'gpu_check.log', 'gpu_check.md'])
        with open(os.path.join(self.out, 'gpu_check.json')) as file:
            root = json.load(file)
        with open(os.path.join(self.out, 'gpu_check.md')) as file:
            return root, file.read()

    def stages(self, root):
        return {stage['name']: stage for stage in root['stages']}

    def test_a_real_build(self):
        status, said = self.run_check(BUILD, '--device', DEVICE)
        root, page = self.results()
        self.assertEqual(status, 0, said + page)
        self.assertEqual([stage['name'] for stage in root['stages']], STAGES)
        stages = self.stages(root)
        for name in REQUIRED:
            self.assertEqual((stages[name]['state'], stages[name]['required']), ('passed', True))
        self.assertRegex(stages['check']['last_line'], r'^[1-9]\d* passed, 0 failed')
        header = root['header']
        self.assertEqual((header['commit'], header['device_id'], header['quick']),
                         ('abcdef0', DEVICE, True))
        self.assertTrue(header['complete'] and header['passed'])
        self.assertEqual([row['select'] for row in root['results']], ['full', 'quest'])
        for row in root['results']:
            self.assertGreater(row['total_us'], 0)
            self.assertEqual(row['backend'], DEVICE.split(':')[0])
            if row['backend'] == 'cuda':
                self.assertTrue(row['graph_us'] > 0 and row['copy_gb_per_s'] > 0)
        self.assertIn(header['device'], page)
        self.assertIn('Every required stage passed.', page)
        for heading in ('Stages', 'Decode attention', 'Stages of a step'):
            self.assertIn('\n## %s\n' % heading, page)

    def test_all_is_well(self):
        self.make_build('cuda:0 opencl:1')
        status, said = self.run_check(self.build)
        root, page = self.results()
        self.assertEqual(status, 0, said + page)
        self.assertIn('| llama3-8b | 1 | 256 | 90.0 | 0.50 | - | 30.0 (3.00×) | - | - | - |', page)
        self.assertIn('| llama3-8b | 1 | 256 | quest | 128 | 30.00 | 20.00 | 3.00 |', page)
        self.assertEqual([stage['name'] for stage in root['stages']][-2:],
                         ['opencl/check', 'opencl/llama3-8b/1/256'])
        self.assertIn('| llama3-8b | 1 | 256 | quest | 128 | 30.0 | 30.0 | 1.00 |', page)

    def test_a_stage_that_fails(self):
        self.make_build(check='#!/bin/sh\necho first\necho "FAIL of $4"\nexit 3\n')
        status, said = self.run_check(self.build)
        root, page = self.results()
        self.assertEqual(status, 1, said)
        stages = self.stages(root)
        self.assertEqual(list(stages), STAGES)  # the others ran all the same
        self.assertEqual((stages['check']['state'], stages['check']['rc']), ('failed', 3))
        self.assertEqual(stages['check']['last_lines'], ['first', 'FAIL of smoke'])
        self.assertEqual(stages['model/arguments']['state'], 'passed')
        self.assertTrue(root['header']['complete'])
        self.assertFalse(root['header']['passed'])
        self.assertIn('Did not pass: check, bitwise.', page)
        self.assertIn('\nFAIL of smoke\n', page)
        with open(os.path.join(self.out, 'gpu_check.log')) as file:
            self.assertIn('== check\nfirst\n', file.read())

    def test_a_bench_that_writes_nothing(self):
        self.make_build(bench='')
        status, _ = self.run_check(self.build)
        root, page = self.results()
        stage = self.stages(root)[REQUIRED[-1]]
        self.assertEqual((status, stage['state'], stage['rc'] == 0), (1, 'failed', True))
        self.assertIn('Did not pass: bench/llama3-8b/1/256.', page)

    def test_what_was_not_built_and_what_could_not_run(self):
        self.make_build(arguments='#!/bin/sh\nexit 77\n')
        os.unlink(os.path.join(self.build, PROGRAMS[1]))
        status, _ = self.run_check(self.build)
        stages = self.stages(self.results()[0])
        self.assertEqual(status, 1)
        self.assertRegex(stages['check']['last_line'], 'tamis-check: was not built')
        self.assertEqual(stages['model/arguments']['state'], 'failed')

    def test_a_device_that_is_not_there(self):
        self.make_build('opencl:0')
        status, _ = self.run_check(self.build)
        stages = self.stages(self.results()[0])
        self.assertEqual((status, stages['device']['state']), (1, 'failed'))
        self.assertEqual(stages['device']['last_line'], 'cuda:0 is not usable')

    def test_a_stage_that_hangs(self):
        self.make_build(check='#!/bin/sh\necho begun\nsleep 60\n')
        status, _ = self.run_check(self.build, '--seconds', '24')
        root, page = self.results()
        stages = self.stages(root)
        self.assertEqual((status, stages['check']['state']), (1, 'timeout'))
        self.assertEqual(stages['check']['last_lines'], ['begun'])
        self.assertLess(root['header']['seconds'], 24)
        self.assertIn('`check`: timeout', page)

    def test_a_call_that_is_cut(self):
        self.make_build(check='#!/bin/sh\necho begun\nsleep 60\n')
        call = subprocess.Popen(self.command(self.build), stdout=subprocess.DEVNULL)
        file = os.path.join(self.out, 'gpu_check.json')
        for _ in range(300):
            time.sleep(0.1)
            if os.path.exists(file) and 'check' in self.stages(self.results_now(file)):
                break
        self.assertEqual(self.stages(self.results_now(file))['check']['state'], 'running')
        call.send_signal(signal.SIGTERM)
        self.assertEqual(call.wait(20), 1)
        root, _ = self.results()
        self.assertEqual(self.stages(root)['check']['state'], 'cut')
        self.assertEqual(self.stages(root)['device']['state'], 'passed')
        self.assertFalse(root['header']['complete'] or root['header']['passed'])

    def results_now(self, file):
        with open(file) as opened:
            return json.load(opened)

    def test_wrong_command_lines(self):
        for arguments, why in (([], 'the folder for the results is missing'),
                               ([self.out, '--seconds', '0'], '--seconds 0: not a number'),
                               ([self.out, '--build', '/no/such'], '/no/such: no such folder'),
                               ([self.out, '--build'], '--build: needs a value'),
                               ([self.out, '--fast'], '--fast: unknown option')):
            done = subprocess.run([CHECK, *arguments], stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn(why, done.stderr)


if __name__ == '__main__':
    if not DEVICE:
        sys.exit(__doc__)
    unittest.main()
