#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check.sh --dry-run from outside: over a real build, killed in the middle and resumed;
over builds of small scripts that fail, hang or are cut; and gpu_peers.py over peers that do.

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
HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = os.path.join(HERE, '..', '..', 'tools', 'gpu_peers.py')
PRETENDED = os.path.join(HERE, 'pretend_peers.py')
HEADLINE = 'headline/llama3-8b/1/32768'
# Where the device is the reference, what only CUDA has is not built.
OF_CUDA = {'fault'} if not DEVICE.startswith('cuda') else set()

COUNTERS = {'kv_bytes_full': 1, 'kv_bytes_read': 1, 'bounds_bytes_read': 0}
PARTS = dict.fromkeys(('write', 'bounds', 'score', 'select', 'attend', 'fused', 'fused_select'), 1.5)
ROW = {'shape': 'llama3-8b', 'batch': 1, 'context': 256, 'layers': 1, 'dtype': 'f16',
       'select': 'full', 'budget': 256, 'pages': 'ordered', 'total_us': 90.0,
       'graph_us': 60.0, 'graph_replays': 10, 'stage_us': PARTS, 'gb_per_s': 2.0, 'share_of_read': 0.5,
       'share_of_copy': None, 'speedup_over_full': 1, 'counters': COUNTERS}
BENCH = {'tool': 'tamis bench attention', 'version': '0', 'commit': 'unknown', 'device': 'cuda:0',
         'device_name': 'a made one', 'driver': 'none', 'threads': 1, 'read_gb_per_s': 4.0,
         'copy_gb_per_s': None,
         'rows': [ROW, {**ROW, 'select': 'quest', 'budget': 128, 'total_us': 30.0,
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

    def make_build(self, devices='cuda:0', bench=json.dumps(BENCH), check='echo all is well'):
        """A build of scripts that pass, but for what is given."""
        self.program('tamis', TAMIS % (devices, bench))
        self.program('tests/ops/tamis-check', '#!/bin/sh\n%s\n' % check)

    def command(self, build, *options):
        return [CHECK, self.out, '--dry-run', '--commit', 'abcdef0', '--build', build, *options]

    def run_check(self, build, *options):
        done = subprocess.run(self.command(build, *options), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def results(self):
        """The JSON and the Markdown; nothing half written lies beside them."""
        self.assertEqual(sorted(os.listdir(self.out)),
                         ['gpu_check.json', 'gpu_check.log', 'gpu_check.md'])
        return self.results_now(), self.text('gpu_check.md')

    def text(self, name):
        with open(os.path.join(self.out, name)) as file:
            return file.read()

    def results_now(self):
        return json.loads(self.text('gpu_check.json'))

    def stages(self, root):
        return {stage['name']: stage for stage in root['stages']}

    def states(self):
        return {name: stage['state'] for name, stage in self.stages(self.results_now()).items()}

    def start_until(self, name, build, *options):
        """A call in a group of its own, which is at the stage now."""
        call = subprocess.Popen(self.command(build, *options), stdout=subprocess.DEVNULL,
                                start_new_session=True)
        for _ in range(9000):
            time.sleep(0.02)
            if os.path.exists(os.path.join(self.out, 'gpu_check.json')) and \
                    self.states()[name] == 'running':
                return call
        self.fail('%s never began' % name)

    def test_every_stage_of_a_real_build_killed_and_resumed(self):
        call = self.start_until(HEADLINE, BUILD, '--device', DEVICE, '--seconds', '900')
        os.killpg(call.pid, signal.SIGKILL)
        call.wait()
        before = self.stages(self.results_now())
        self.assertEqual((before['check/pipeline']['state'], before['api']['state']),
                         ('passed', 'not run'))
        status, said = self.run_check(BUILD, '--device', DEVICE, '--seconds', '900', '--resume',
                                      self.out)
        root, page = self.results()
        stages = self.stages(root)
        self.assertEqual(list(stages), list(before))
        bad = {name for name, stage in stages.items()
               if stage['required'] and stage['state'] != 'passed'}
        self.assertEqual((status, bad), (len(OF_CUDA), OF_CUDA), said + page)
        for name, stage in stages.items():
            self.assertIn(stage['state'], ('passed', 'skipped', 'failed' if bad else ''), name)
        # What had passed was not run again; where it was killed was.
        log = self.text('gpu_check.log')
        for name, times in (('check/pipeline', 1), ('device', 2), (HEADLINE, 2), ('api', 1)):
            self.assertEqual(log.count('== %s\n' % name), times, name)
        self.assertRegex(stages['check/smoke']['last_line'], r'^[1-9]\d* passed, 0 failed')
        self.assertEqual([call['ended'] for call in root['calls']], [False, True])
        self.assertEqual((root['commit'], root['device'], root['dry_run']),
                         ('abcdef0', DEVICE, True))
        self.assertEqual(list(root)[:4] + list(root)[-1:],
                         ['tool', 'version', 'commit', 'device', 'rows'])
        self.assertTrue(root['complete'])
        self.assertIn('cuBLAS: ', log)
        self.assert_figures(root)
        for heading in ('Stages', 'Decode attention', 'Stages of a step', 'Peers that did not run'):
            self.assertIn('\n## %s\n' % heading, page)

    def assert_figures(self, root):
        rows = [row for row in root['rows'] if row['stage'] == HEADLINE]
        self.assertEqual([row['select'] for row in rows], ['full', 'quest', 'quest-apart'])
        for row in rows:
            self.assertEqual(row['backend'], DEVICE.split(':')[0])
            if row['backend'] == 'cuda':
                self.assertTrue(row['graph_us'] > 0 and row['graph_replays'] >= 5)
        for part in ('score', 'select', 'attend'):
            self.assertGreater(rows[2]['stage_us'][part], 0)
        if DEVICE.startswith('cuda'):
            self.assertGreater(rows[1]['stage_us']['fused_select'], 0)
            self.assertGreater(rows[1]['stage_us']['fused'], rows[1]['stage_us']['fused_select'])
        peers = [row for row in root['peers'] if row['stage'] == 'headline/peers']
        self.assertEqual({row['peer'] for row in peers if 'error' in row}, {'absent'})
        self.assertEqual(len([row for row in peers if row['peer'] == 'fine']), 4)
        self.assertEqual({row['stage'] for row in root['others']},
                         {'decode', 'throughput', 'passkey'})

    def test_the_order_and_the_sum(self):
        said = subprocess.run([CHECK, '--list-stages'], stdout=subprocess.PIPE, text=True, check=True)
        *lines, last = said.stdout.splitlines()
        at, sums = 0, {}
        for line in lines:
            name, _, seconds, _ = line.split()
            at += int(seconds)
            sums[name] = at
        self.assertRegex(last, r'^%d stages +%d s on an H200$' % (len(lines), at))
        self.assertLessEqual(at, 25 * 60)
        self.assertLessEqual(sums['check/pipeline'], 5 * 60)
        self.assertLessEqual(sums['headline/peers'], 10 * 60)
        self.assertTrue(list(sums)[-1].startswith('sanitizer/'))

    def test_all_is_well(self):
        self.make_build('cuda:0 opencl:1')
        status, said = self.run_check(self.build, '--stages',
                                      'check,%s,opencl,overlap/llama3-8b' % HEADLINE)
        root, page = self.results()
        self.assertEqual(status, 0, said + page)
        self.assertIn('| llama3-8b | 1 | 256 | 60.0 | 0.50 | - | 60.0, tamis | 20.0 (3.00×) |', page)
        self.assertIn('| llama3-8b | 1 | 256 | quest | 128 | 10 | 30.00 | 20.00 | 3.00 |', page)
        self.assertIn('| llama3-8b | 1 | 256 | quest | 128 | 30.0 | 30.0 | 1.00 |', page)
        # On the device's clock, where there is one.
        self.assertIn('| llama3-8b | 1 | 256 | quest | 128 | 20.0 | 20.0 | 1.00 |', page)
        states = self.states()
        self.assertEqual((states['opencl/check'], states['bench/llama3-8b/1/4096']),
                         ('passed', 'not run'))
        self.assertFalse(root['complete'] or root['passed'])
        self.assertIn('Not run yet: ', page)

    def test_gates_and_the_best_dense(self):
        """A peer that is faster than our dense attention is what quest is measured against."""
        full = {**ROW, 'shape': 'llama2-7b', 'context': 32768, 'budget': 32768, 'graph_us': 60.0}
        quest = {**full, 'select': 'quest', 'budget': 2048, 'graph_us': 2.0,
                 'stage_us': {**PARTS, 'fused': 2.5, 'fused_select': 1.0}}
        apart = {**quest, 'select': 'quest-apart'}
        self.make_build(bench=json.dumps({**BENCH, 'copy_gb_per_s': 4.0,
                                          'rows': [full, quest, apart]}))
        self.run_check(self.build, '--stages', 'headline/llama2-7b/1/32768,headline/peers')
        _, page = self.results()
        # The pretended peer takes 10 us, ours 60; dense reads 2 GB/s in 90 us of wall time.
        for line in ('| dense over copy bandwidth, batch 1 | at least 0.85 | 0.75 | missed |',
                     '| quest 2048 over the best dense (fine), batch 1 | at least 5.50 | 5.00 | missed |',
                     '| score, select and their gap of the pipeline, batch 1 | at most 0.45 | 0.25 | met |'):
            self.assertIn(line, page)
        self.assertIn('| 10.0, fine | 2.0 (5.00×) |', page)

    def test_vendors_of_its_own(self):
        self.make_build('opencl:1')
        os.environ['OCL_ICD_VENDORS'] = '/somewhere'
        self.addCleanup(os.environ.pop, 'OCL_ICD_VENDORS')
        self.program('tests/ops/tamis-check', '#!/bin/sh\nls -d "$OCL_ICD_VENDORS"\n')
        self.run_check(self.build, '--stages', 'opencl/check')
        last = self.stages(self.results_now())['opencl/check']['last_line']
        self.assertRegex(last, '^/.*/vendors$')
        self.assertNotEqual(last, '/somewhere')

    def test_a_stage_that_fails(self):
        self.make_build(check='echo first\necho "FAIL of $4"\nexit 3')
        status, said = self.run_check(self.build, '--stages', 'check/smoke,' + HEADLINE)
        root, page = self.results()
        self.assertEqual(status, 1, said)
        stages = self.stages(root)
        self.assertEqual((stages['check/smoke']['state'], stages['check/smoke']['rc']),
                         ('failed', 3))
        self.assertEqual(stages['check/smoke']['last_lines'], ['first', 'FAIL of smoke'])
        self.assertEqual(stages[HEADLINE]['state'], 'passed')
        self.assertFalse(root['passed'])
        self.assertIn('Did not pass: check/smoke. Not run yet: ', page)
        self.assertIn('\nFAIL of smoke\n', page)
        self.assertIn('== check/smoke\nfirst\n', self.text('gpu_check.log'))
        # Named, it is run again, and its earlier result goes; the other one stays.
        self.make_build()
        status, said = self.run_check(self.build, '--stages', 'check/smoke', '--resume', self.out)
        self.assertEqual((status, self.states()['check/smoke'], self.states()[HEADLINE]),
                         (0, 'passed', 'passed'), said)
        root = self.results_now()
        self.assertEqual([row['select'] for row in root['rows']], ['full', 'quest'])
        self.assertEqual(len(root['calls']), 2)

    def test_no_time_left(self):
        self.make_build()
        status, said = self.run_check(self.build, '--seconds', '9')
        root, page = self.results()
        self.assertEqual(status, 0, said)
        self.assertEqual(set(self.states().values()), {'not run'})
        self.assertFalse(root['complete'])

    def test_a_bench_that_writes_nothing(self):
        self.make_build(bench='')
        status, _ = self.run_check(self.build, '--stages', HEADLINE)
        root, page = self.results()
        stage = self.stages(root)[HEADLINE]
        self.assertEqual((status, stage['state'], stage['rc'] == 0), (1, 'failed', True))
        self.assertIn('Did not pass: %s.' % HEADLINE, page)

    def test_what_was_not_built_and_what_could_not_run(self):
        self.make_build()
        os.unlink(os.path.join(self.build, 'tests/ops/tamis-check'))
        self.program('tests/api/test-api-arguments', '#!/bin/sh\nexit 77\n')
        status, _ = self.run_check(self.build, '--stages', 'check/smoke,api')
        stages = self.stages(self.results()[0])
        self.assertEqual(status, 1)
        self.assertRegex(stages['check/smoke']['last_line'], 'tamis-check: was not built')
        self.assertEqual(stages['api']['state'], 'failed')
        self.assertIn('arguments: exit status 77', self.text('gpu_check.log'))

    def test_a_device_that_is_not_there(self):
        self.make_build('opencl:0')
        status, _ = self.run_check(self.build, '--stages', 'device')
        stages = self.stages(self.results()[0])
        self.assertEqual((status, stages['device']['state']), (1, 'failed'))
        self.assertEqual(stages['device']['last_line'], 'cuda:0 is not usable')

    def test_a_stage_that_hangs(self):
        self.make_build(check='echo begun\nsleep 60')
        status, _ = self.run_check(self.build, '--seconds', '24', '--stages', 'check/smoke')
        root, page = self.results()
        stages = self.stages(root)
        # Less than its limit was left: the next call has more.
        self.assertEqual((status, stages['check/smoke']['state']), (0, 'not run'))
        self.assertEqual(stages['check/smoke']['last_line'], 'begun')
        self.assertLess(root['calls'][0]['seconds'], 24)
        self.assertIn('Not run yet: check/smoke', page)

    def test_a_call_that_is_cut(self):
        self.make_build(check='echo begun\nsleep 60')
        call = self.start_until('check/smoke', self.build)
        call.send_signal(signal.SIGTERM)
        self.assertEqual(call.wait(20), 1)
        root, _ = self.results()
        self.assertEqual(self.stages(root)['check/smoke']['state'], 'cut')
        self.assertEqual(self.stages(root)['device']['state'], 'passed')
        self.assertFalse(root['complete'] or root['passed'])

    def run_peers(self, names, *options):
        path = self.path('peers.json')
        done = subprocess.run([sys.executable, PEERS, '--engine', PRETENDED, '--peers', names,
                               '--cases', 'llama2-7b:1:64:2,llama3-8b:16:32:2', '--json', path,
                               *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with open(path) as file:
            return done.returncode, json.load(file)['rows']

    def test_a_peer_that_fails_is_lost_alone(self):
        bad = 'absent', 'wrong', 'dies', 'hangs', 'breaks'
        status, rows = self.run_peers('absent,fine,wrong,dies,hangs,breaks,also-fine', '--limit',
                                      '5')
        self.assertEqual(status, 0)
        good = [(row['peer'], row['batch']) for row in rows if 'total_us' in row]
        self.assertEqual(good, [('fine', 1), ('also-fine', 1), ('fine', 16), ('also-fine', 16)])
        errors = {}
        for row in rows:
            if 'error' in row:
                errors.setdefault(row['peer'], row['error'])
        self.assertEqual(set(errors), set(bad))
        for name, why in (('absent', 'No module named'), ('dies', 'ended with status -6'),
                          ('hangs', 'nothing came for 5 s'), ('breaks', 'illegal memory')):
            self.assertIn(why, errors[name])

    def test_peers_of_which_none_measures(self):
        status, rows = self.run_peers('wrong,absent')
        self.assertEqual((status, len(rows)), (1, 3))
        os.environ['PRETEND_PEERS'] = 'fine,nothing'
        self.addCleanup(os.environ.pop, 'PRETEND_PEERS')
        os.unlink(self.path('peers.json'))
        done = subprocess.run([sys.executable, PEERS, '--engine', PRETENDED, '--peers', 'fine',
                               '--cases', 'llama2-7b:1:64:2'], stdout=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stdout), (77, 'gpu_peers.py: there is no GPU\n'))

    def test_wrong_command_lines(self):
        for arguments, why in (([], 'the folder for the results is missing'),
                               ([self.out, '--seconds', '0'], '--seconds 0: not a number'),
                               ([self.out, '--build', '/no/such'], '--build: no such folder'),
                               ([self.out, '--build'], '--build: needs a value'),
                               ([self.out, '--stages', 'check,all'], '--stages all: no such stage'),
                               ([self.out, '--resume', '/no/such'], 'there is no gpu_check.json'),
                               ([self.out, '--fast'], '--fast: unknown option')):
            done = subprocess.run([CHECK, *arguments], stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn(why, done.stderr)

    def test_results_of_another_tree(self):
        self.make_build()
        self.run_check(self.build, '--stages', 'device')
        done = subprocess.run([*self.command(self.build, '--resume', self.out), '--commit', '1234567'],
                              stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn('there commit is abcdef0, not 1234567', done.stderr)


if __name__ == '__main__':
    if not DEVICE:
        sys.exit(__doc__)
    unittest.main()
