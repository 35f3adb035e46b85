#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/plot.py from outside, over small files of each kind. 77 where matplotlib is not installed.

Usage: test_plot.py PLOT.py [unittest arguments]
"""
import contextlib
import copy
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

PLOT = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else ''
plot = None
ARMS = [('oracle', 'mass'), ('quest', 'minmax'), ('quest', 'meanstd'), ('quest', 'mean'),
        ('window', '-'), ('random', 'random')]
PAGE_SIZE = 16


def arm_rows(lengths, budgets, more):
    """Full and every arm with every budget; `more` gives the other fields of the i-th arm."""
    rows = []
    for length in lengths:
        rows.append({'select': 'full', 'score': '-', 'budget': 0, 'length': length, **more(0, 0)})
        for i, (select, score) in enumerate(ARMS):
            rows += [{'select': select, 'score': score, 'budget': budget, 'length': length,
                      **more(i + 1, n)} for n, budget in enumerate(budgets)]
    return rows


def passkey(lengths=(2000, 10000)):
    def more(i, n):
        accuracy = max(0, min(1, 0.98 - 0.14 * i + 0.05 * i * n / 2))
        return {'trials': 200, 'accuracy': accuracy, 'ci95': [max(0, accuracy - 0.06),
                                                              min(1, accuracy + 0.04)],
                'tokens_per_s': 90.5, 'kv_bytes_read_per_token': 1e6,
                'kv_bytes_full_per_token': 4e6, 'kv_bytes_held': 5000000}
    return {'tool': 'tamis eval passkey', 'model': 'somewhere/needle.gguf', 'seed': 0,
            'rows': arm_rows(lengths, (128, 256, 512, 1024), more)}


def recall(lengths=(10000,)):
    def more(i, n):
        share = 1 - 0.12 * i / (n + 1)
        return {'layer': -1, 'head': -1, 'recall': share, 'mass': share ** 0.5, 'error': 1 - share}
    rows = arm_rows(lengths, (256, 512, 1024), more)
    rows += [{**row, 'layer': layer, 'head': head, 'recall': row['recall'] * (1 - 0.1 * head)}
             for row in rows for layer in range(4) for head in range(4)]
    for length in lengths:
        rows += [{'length': length, 'layer': layer, 'head': head,
                  'sparsity': 0.2 / (layer + 1) + 0.02 * head + 0.5 * (head > 1)}
                 for layer in range(4) for head in range(4)]
    return {'tool': 'tamis eval recall', 'model': 'needle.gguf', 'rows': rows}


def perplexity(lengths=(2000, 5000, 10000)):
    more = lambda i, n: {'tokens': 1024, 'nll': 1100 + 20 * i, 'bits_per_byte': 1.6,
                         'perplexity': 2.9 + 0.1 * i / (n + 1)}
    return {'tool': 'tamis eval perplexity', 'model': 'needle.gguf',
            'rows': arm_rows(lengths, (256, 512), more)}


def bench(device='PoCL, two cores', contexts=(8192, 32768, 131072)):
    results = []
    for context in contexts:
        for select, budget in (('full', context), ('quest', 1024), ('quest', 2048),
                               ('window', 1024), ('window', 2048)):
            full = context * 4096
            counters = {'kv_bytes_full': full, 'kv_bytes_read': budget * 4096,
                        'bounds_bytes_read': full // PAGE_SIZE if select == 'quest' else 0}
            speed = 0.8 * full / (counters['kv_bytes_read'] + counters['bounds_bytes_read'])
            results.append({'shape': 'llama3-8b', 'context': context, 'dtype': 'f16',
                            'select': select, 'budget': budget, 'pages': 'ordered',
                            'speedup_over_full': 1 if select == 'full' else speed,
                            'counters': counters})
    return {'tool': 'tamis bench attention', 'device_name': device, 'rows': results}


def gpu_check(device='a GPU', on_device=True):
    common = lambda batch, context: {'shape': 'llama3-8b', 'batch': batch, 'context': context}
    results, peers = [], [{'peer': 'copy', 'us': 500.0, 'gb_per_s': 4000.0},
                          {'peer': 'flex', 'error': 'it failed', **common(1, 4096)}]
    for batch in (1, 16):
        for context in (4096, 32768, 131072):
            us = 2 + batch * context / 1000
            for select, budget in (('full', context), ('quest', 512), ('quest', 2048)):
                time = us if select == 'full' else 2 + us / 16 + batch * budget / 1000
                results.append({**common(batch, context), 'backend': 'cuda', 'pages': 'ordered', 'dtype': 'f16',
                                'select': select, 'budget': budget, 'total_us': time + 3,
                                'graph_us': time if on_device else None})
            results.append({**results[-1], 'backend': 'opencl'})
            results.append({**results[-2], 'select': 'quest-apart'})
            results.append({**results[-3], 'dtype': 'bf16'})
            results.append({**results[-6], 'total_us': 1.0})  # full in another stage
            peers.append({'peer': 'sdpa-flash', **common(batch, context), 'total_us': 1.2 * us + 9,
                          'graph_us': 1.2 * us})
    return {'tool': 'gpu_check', 'commit': '1234567', 'device': 'cuda:0', 'device_name': device,
            'driver': 'CUDA 13.0', 'date': '2026-11-21T00:00:00Z', 'dry_run': False,
            'rows': results, 'peers': peers}


KINDS = ['streaming', 'h2o', 'h2o+rerank', 'tova', 'snapkv', 'pyramidkv', 'adakv', 'criticalkv',
         'critical-adakv', 'andpro', 'andpro+anchor-all', 'andpro+budget-beside-kept', 'defensivekv',
         'knorm']


def eviction(budgets=(128, 256, 512)):
    def row(evict, budget, i):
        error, found = i / 40, 1 - i / 20
        return {'evict': evict, 'budget': budget, 'tokens_kept': budget, 'bytes_returned': 1e6,
                'output_error': error, 'output_error_spread': error / 4, 'output_cosine': 1 - error,
                'passkey_accuracy': found / 2, 'policy_us': 1000.0,
                'passkey_ci95': [max(0, found / 2 - 0.2), min(1, found / 2 + 0.1)],
                'error_single': error / 2, 'error_single_spread': error / 8,
                'passkey_single': found,
                'passkey_single_ci95': [max(0, found - 0.2), min(1, found + 0.1)]}
    rows = [row('full', 4096, 0)]
    for budget in budgets:
        rows += [row(name, budget, i + 512 / budget) for i, name in enumerate(['quest'] + KINDS)]
    return {'tool': 'tamis eval eviction', 'model': 'needle', 'length': 4096, 'seeds': 4,
            'rows': rows}


def throughput(device='PoCL, two cores', kinds=KINDS):
    row = {'context': 1024, 'tokens': 64, 'tokens_per_s': 1000.0}
    results = [{**row, 'evict': 'full', 'budget': 1024, 'batch': 8, 'gain_over_full': 1,
                'ceiling': 1}]
    results += [{**row, 'evict': name, 'budget': 204, 'batch': 36 - i, 'ceiling': 5 - i / 9,
                 'gain_over_full': 3 - i / 5} for i, name in enumerate(kinds)]
    return {'tool': 'tamis bench throughput', 'device_name': device, 'model': 'needle',
            'dtype': 'f16', 'equal_batch': False, 'rows': results}


def blend(chunks=(6,), asks=('one', 'two'), device='PoCL, two cores'):
    arms = [('full', 0), ('prefix', 0), ('reuse', 0)]
    arms += [(arm, share) for arm in ('first', 'random', 'question', 'hkvd')
             for share in (0.05, 0.15, 0.3)]
    rows = []
    for n in chunks:
        for ask in asks:
            for i, (arm, share) in enumerate(arms):
                accuracy = max(0, 0.9 - 0.02 * i - 0.1 * (ask == 'two'))
                rows.append({'arm': arm, 'ask': ask, 'chunks': n, 'questions': 100,
                             'right': round(100 * accuracy), 'accuracy': accuracy, 'agreement': 0.5,
                             'kl_mean': 0 if i < 2 else 0.1 / i ** 3, 'kl_p95': 0.2,
                             'ttft_seconds': n * (1 / (1 + i) + share), 'rows_computed': 0.5,
                             'ci95': [max(0, accuracy - 0.08), min(1, accuracy + 0.06)],
                             **({'share': share} if share > 0 else {})})
    return {'tool': 'tamis eval blend', 'device_name': device, 'model': 'needle', 'seed': 0,
            'chunk_tokens': 512, 'shares': [5, 15, 30], 'rows': rows,
            'layers': [{'chunks': n, 'layer': 0, 'held': [0.5]} for n in chunks]}


def ttft(chunks=(2, 6), rates=(0.1, 0.5, 2), device='PoCL, two cores'):
    arms = [('full', None, None, False), ('all', None, None, False)]
    for i, source in enumerate(('memory', 'redis', '100MB/s', '1GB/s')):
        arms += [('prefix', source, None, False), ('reuse', source, None, False),
                 ('blend', source, 0.1, False), ('blend', source, 0.3, False),
                 ('blend', source, (i + 1) / 8, True)]
    named = [dict(zip(('arm', 'source', 'share', 'share_chosen'), arm)) for arm in arms]
    seconds = lambda n, i: n / (1 + i % 5)
    rows = [{'what': 'ttft', **arm, 'chunks': n, 'tokens': 512 * n + 32, 'ttft_s': seconds(n, i),
             'ttft_s_lowest': 0.9 * seconds(n, i), 'ttft_s_highest': 1.3 * seconds(n, i),
             'speedup_over_full': 1 + i % 5, 'layers': []}
            for n in chunks for i, arm in enumerate(named)]
    rows += [{'what': 'rate', **arm, 'chunks': chunks[0], 'requests': 20, 'rate': rate,
              'ttft_s_mean': seconds(2, i) * (1 + rate), 'ttft_s_p50': seconds(2, i),
              'ttft_s_p95': 3 * seconds(2, i) * (1 + rate)}
             for rate in rates for i, arm in enumerate(named)]
    return {'tool': 'tamis bench ttft', 'device_name': device, 'model': 'needle', 'select': 'hkvd',
            'chunk_tokens': 512, 'repeat': 5, 'page_cache_kept': 0.01, 'rows': rows}


FIGURES = {'passkey': passkey, 'recall': recall, 'perplexity': perplexity, 'speed': bench,
           'gpu': gpu_check, 'eviction': eviction, 'throughput': throughput, 'blend': blend,
           'ttft': ttft}
BOTH = 'png', 'svg'
NAMES = sorted('%s.%s' % (name, kind) for name in (*FIGURES, 'sparsity', 'blend-kl', 'ttft-rate')
               for kind in BOTH)


class Plots(unittest.TestCase):
    def setUp(self):
        plot.KINDS = BOTH[1:]  # the quicker one; tests of files draw both
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = self.path('out')

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, content):
        with open(self.path(name), 'w') as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return self.path(name)

    def run_plot(self, *arguments):
        """(exit status, stdout, stderr) as the interpreter would give them."""
        out, err, status = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                plot.main(arguments)
            except SystemExit as end:
                status = end.code
        if isinstance(status, str):
            return 1, out.getvalue(), err.getvalue() + status + '\n'
        return status, out.getvalue(), err.getvalue()

    def written(self, out):
        contents = {}
        for name in os.listdir(out):
            with open(os.path.join(out, name), 'rb') as file:
                contents[name] = file.read()
        return contents

    def draw(self, out, *files):
        status, paths, errors = self.run_plot('--out', out, *files)
        self.assertEqual((status, errors), (0, ''))
        self.assertEqual(sorted(paths.split()),
                         [os.path.join(out, name) for name in sorted(os.listdir(out))])
        return self.written(out)

    def refuse(self, pattern, *files):
        """Status 1, one line on stderr that names the first file, and nothing written."""
        status, paths, errors = self.run_plot('--out', self.path('never'), *files)
        self.assertEqual((status, paths), (1, ''))
        self.assertRegex(errors, r'\Aplot\.py: [^\n]*%s[^\n]*\n\Z' % pattern)
        self.assertIn(files[0], errors)
        self.assertFalse(os.path.exists(self.path('never')))

    def refuse_row(self, pattern, document, **fields):
        """A document whose last row is changed; a field of None goes."""
        document = copy.deepcopy(document)
        row = document['rows'][-1]
        for name, value in fields.items():
            row[name] = value
            if value is None:
                del row[name]
        self.refuse(pattern, self.write('bad.json', document))

    def test_all_kinds_twice_the_same(self):
        plot.KINDS = BOTH
        files = [self.write(name + '.json', make()) for name, make in FIGURES.items()]
        first = self.draw(self.out, *files)
        self.assertEqual(sorted(first), NAMES)
        subprocess.run([sys.executable, PLOT, '--out', self.path('again'), *files], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, 'PYTHONHASHSEED': '7'})
        self.assertEqual(first, self.written(self.path('again')))
        for name, data in first.items():
            start = b'\x89PNG\r\n' if name.endswith('.png') else b'<?xml'
            self.assertTrue(data.startswith(start), name)
            self.assertNotIn(b'<dc:date>', data)
            self.assertNotIn(b'somewhere', data)

    def test_files_of_one_kind_make_one_set_of_points(self):
        whole = self.draw(self.out, self.write('whole.json', passkey()))
        parts = [self.write('%d.json' % n, passkey((n,))) for n in (10000, 2000)]
        self.assertEqual(whole, self.draw(self.path('parts'), *parts))
        self.refuse(r'rows\[1\]: the same point stands in .*2000\.json: rows\[1\]', parts[1],
                    parts[1])
        full = {**passkey((2000,)), 'rows': [{**passkey((2000,))['rows'][0], 'trials': 1}]}
        self.refuse(r'rows\[0\]: the same point stands in .*2000\.json: rows\[0\]', parts[1],
                    self.write('full.json', full))
        other = {**passkey((3000,)), 'model': 'other.gguf'}
        self.refuse('"model": "other.gguf" differs from "somewhere/needle.gguf" in .*10000.json',
                    parts[0], self.write('other.json', other))

    def test_files_of_one_figure_agree_in_what_is_set(self):
        one = self.write('1.json', {**passkey((2000,)), 'texts': 20, 'group': 'max', 'recent': 64})
        same = {'texts': 20, 'group': 'max', 'seed': 1, 'device': 'opencl:0', 'sinks': 0}
        two = self.write('2.json', {**passkey((10000,)), **same})
        self.assertEqual(sorted(self.draw(self.out, one, two)), ['passkey.svg'])
        for fields, pattern in (({'texts': 4}, '2.json: "texts": 4 differs from 20 in .*1.json'),
                                ({'page_size': 8}, '2.json: "page_size": 8 is not set in .*1')):
            other = {**passkey((10000,)), **same, **fields}
            self.refuse(pattern, one, self.write('2.json', other))
        del same['group']
        self.refuse('2.json: "group" is missing, which is "max" in .*1.json', one,
                    self.write('2.json', {**passkey((10000,)), **same}))

    def test_runs_on_two_devices(self):
        two = [self.write('1.json', bench()), self.write('2.json', bench('another device'))]
        self.assertEqual(sorted(self.draw(self.out, *two)), ['speed.svg'])
        self.refuse('"tool" is missing', self.write('a.json', {'header': {}, 'results': []}))

    def test_recall_by_kind_of_head(self):
        points = plot.Points()
        plot.read_recall(points, plot_read.Fields(recall(), 'a'))
        kinds = plot.kinds_of_heads(points, 10000)
        self.assertEqual(list(kinds), ['sharp', 'even'])
        for kind, heads in (('sharp', (0, 1)), ('even', (2, 3))):
            self.assertEqual(sorted(kinds[kind]), [(l, h) for l in range(4) for h in heads])
        mean, half = plot.mean_interval([0.4, 0.5, 0.6])
        self.assertAlmostEqual(mean, 0.5)
        self.assertAlmostEqual(half, 4.303 * 0.1 / 3 ** 0.5)
        self.assertEqual(plot.mean_interval([0.4]), (0.4, 0))
        whole = self.draw(self.out, self.write('a.json', recall()))
        # Another value of one head moves the figure, of a mean over heads it does not.
        for keep, (layer, head) in ((True, (-1, -1)), (False, (1, 2))):
            other = recall()
            row = [row for row in other['rows'] if 'recall' in row
                   and (row['layer'], row['head']) == (layer, head)][-1]
            row['recall'] = 0.01
            drawn = self.draw(self.path('%d' % head), self.write('b.json', other))
            self.assertEqual(drawn['recall.svg'] == whole['recall.svg'], keep)

    def test_speed_limit_is_quests(self):
        points = plot.Points()
        plot.read_bench(points, plot_read.Fields(bench(), 'bench'))
        quest = {key: value for key, value in points.by_key.items() if key[1][0] == 'quest'}
        self.assertEqual(len(quest), 6)
        for (_, _, budget, context), (_, limit) in quest.items():
            self.assertAlmostEqual(limit, 1 / (1 / PAGE_SIZE + budget / context))

    def test_runs_on_gpus(self):
        def points_of(document):
            points = plot.Points()
            plot.read_gpu_check(points, plot_read.Fields(document, 'run'))
            return points.by_key
        by_key = points_of(gpu_check())
        # Nothing of OpenCL, of another dtype, that failed, or that was measured again.
        self.assertEqual(len(by_key), 6 * 4)
        run = 'a GPU', 'llama3-8b'
        self.assertEqual(by_key[run, 1, ('full', None), 4096], (4096 / 1000 + 5, 4096 / 1000 + 2))
        self.assertEqual(by_key[run, 16, ('sdpa-flash', None), 4096][1], 1.2 * (2 + 16 * 4096 / 1000))
        alone = self.draw(self.out, self.write('a.json', gpu_check()))
        wall = self.draw(self.path('b'), self.write('b.json', gpu_check(on_device=False)))
        self.assertNotEqual(alone, wall)
        two = [self.write('1.json', gpu_check()), self.write('2.json', gpu_check('another GPU'))]
        self.assertEqual(sorted(self.draw(self.path('two'), *two)), ['gpu.svg'])
        self.refuse(r'rows\[0\]: the same point stands in .*1.json', self.path('1.json'),
                    self.path('1.json'))

    def test_runs_on_gpus_that_are_not_whole(self):
        def changed(**fields):
            return {**gpu_check(), **fields}
        self.refuse('"dry_run": true is not false', self.write('a.json', changed(dry_run=True)))
        self.refuse('no row of backend vulkan', self.write('a.json', changed(device='vulkan:0')))
        self.refuse_row(r'peers\[2\]: "graph_us" is missing', {
            **gpu_check(), 'peers': [{k: v for k, v in row.items() if k != 'graph_us'}
                                     for row in gpu_check()['peers']]})
        last = {'select': 'quest', 'budget': 1024}
        self.refuse_row('"total_us": 0 is not at least', gpu_check(), total_us=0, **last)
        rows = gpu_check()['rows']
        many = [{**rows[1], 'budget': 100 + i} for i in range(5)]
        self.refuse('5 budgets; colours are known for 4', self.write('a.json', {
            **gpu_check(), 'rows': many, 'peers': []}))

    def test_evictions(self):
        points = plot.Points()
        plot.read_eviction(points, plot_read.Fields(eviction(), 'a'))
        self.assertEqual(len(points.by_key), 1 + 3 * (1 + len(KINDS)))
        known, later = points.by_key['h2o', 256]
        self.assertEqual((known[0], later[0]), (2 / 40, 4 / 40))
        self.assertEqual((known[2], later[2]), (1 - 4 / 20, (1 - 4 / 20) / 2))
        self.assertEqual(len(plot.EVICTION_CASES), 2)
        self.assertIn('asked later', plot.EVICTION_CASES[1])
        styles = plot.eviction_styles(set(KINDS))
        self.assertEqual(len(set(styles.values())), len(KINDS))
        self.assertEqual(styles['andpro'][:2], styles['andpro+anchor-all'][:2])
        whole = self.draw(self.out, self.write('a.json', eviction()))
        parts = [self.write('%d.json' % n, eviction((n,))) for n in (256, 512, 128)]
        self.assertEqual(whole, self.draw(self.path('parts'), *parts))
        self.refuse_row('no colour is known for evict "luck"', eviction(), evict='luck')
        self.refuse_row('"output_error": -1 is not at least 0', eviction(), output_error=-1)
        self.refuse_row('"passkey_ci95" is missing', eviction(), passkey_ci95=None)
        self.refuse_row('"passkey_single_ci95" is missing', eviction(), passkey_single_ci95=None)
        self.refuse_row('"passkey_ci95": .* does not hold the accuracy 0.9', eviction(),
                        passkey_accuracy=0.9, passkey_ci95=[0.1, 0.2])
        many = {**eviction(), 'rows': [{**eviction()['rows'][-1], 'evict': 'andpro+%d' % i}
                                       for i in range(5)]}
        self.refuse('andpro has options beyond 4', self.write('a.json', many))
        self.refuse('no row but those of full', self.write('a.json', {
            **eviction(), 'rows': eviction()['rows'][:1]}))

    def test_throughput(self):
        points = plot.Points()
        plot.read_throughput(points, plot_read.Fields(throughput(), 'a'))
        self.assertEqual(len(points.by_key), len(KINDS))
        run = 'PoCL, two cores', 'needle', 'f16', 1024, 204, 64
        self.assertEqual(points.by_key[run, 'streaming'], (3, 5, 36))
        whole = self.draw(self.out, self.write('a.json', throughput()))
        parts = [self.write('%d.json' % i, {**throughput(), 'rows': some})
                 for i, some in enumerate((throughput()['rows'][:6], throughput()['rows'][6:]))]
        self.assertEqual(whole, self.draw(self.path('parts'), *parts))
        two = [self.path('a.json'), self.write('b.json', throughput('another device'))]
        self.assertNotEqual(whole, self.draw(self.path('two'), *two))
        self.refuse(r'rows\[1\]: the same point stands in .*a.json', two[0], two[0])
        equal = {**throughput(), 'equal_batch': True}
        self.refuse('"equal_batch": true is not false', self.write('c.json', equal))
        self.refuse_row('"ceiling": 0 is not at least', throughput(), ceiling=0)
        self.refuse_row('no colour is known for evict "luck"', throughput(), evict='luck')
        self.refuse('no row but those of full', self.write('c.json', throughput(kinds=[])))

    def test_blends(self):
        points = plot.Points()
        plot.read_blend(points, plot_read.Fields(blend(), 'a'))
        self.assertEqual(len(points.by_key), 2 * 15)
        run = 'PoCL, two cores', 6
        hkvd = points.by_key[run, 'two', 'hkvd', 0.05]
        self.assertEqual(hkvd[0], 6 * (1 / 13 + 0.05))
        self.assertAlmostEqual(hkvd[1], 0.9 - 0.02 * 12 - 0.1)
        self.assertEqual(hkvd[4], 0.1 / 12 ** 3)
        whole = self.draw(self.out, self.write('a.json', blend((2, 6))))
        self.assertEqual(sorted(whole), ['blend-kl.svg', 'blend.svg'])
        parts = [self.write('%d.json' % n, blend((n,))) for n in (6, 2)]
        self.assertEqual(whole, self.draw(self.path('parts'), *parts))
        other = self.write('b.json', blend((6,), device='another device'))
        self.draw(self.path('two'), parts[0], other)
        self.refuse(r'rows\[0\]: the same point stands in .*6.json: rows\[0\]', parts[0], parts[0])
        self.refuse('"chunk_tokens": 256 differs from 512', parts[0], self.write('c.json', {
            **blend((2,)), 'chunk_tokens': 256}))

    def test_blends_by_answers_and_by_the_next_token(self):
        whole = self.draw(self.out, self.write('a.json', blend()))
        for field, moved in (('accuracy', 'blend.svg'), ('kl_mean', 'blend-kl.svg')):
            other = blend()
            [row for row in other['rows'] if row['ask'] == 'one'][-1][field] += 0.01
            drawn = self.draw(self.path(field), self.write('b.json', other))
            self.assertEqual([name for name in whole if drawn[name] != whole[name]], [moved])
        # Questions about two chunks begin as those about one: by the next token they are the same.
        one = self.draw(self.path('one'), self.write('c.json', blend(asks=('one',))))
        self.assertEqual(one['blend-kl.svg'], whole['blend-kl.svg'])
        self.assertNotEqual(one['blend.svg'], whole['blend.svg'])
        chain = self.draw(self.path('chain'), self.write('d.json', blend(asks=('one', 'chain'))))
        self.assertNotEqual(one['blend-kl.svg'], chain['blend-kl.svg'])

    def test_the_axis_of_divergences(self):
        for values, low, high in (([0, 3e-7, 0.0035, 0.054], 1e-3, 0.1), ([0], 1e-6, 1e-5),
                                  ([0, 2e-6, 3], 1e-6, 10)):
            axes = plot.Sheet('', '', [''], 1, [plot.Line2D([], [])]).panels[0][0]
            sys.modules['plot_blend'].kl_axis(axes, values)
            self.assertEqual(axes.get_ylim(), (0, high))
            self.assertEqual(list(axes.get_yticks())[:2], [0, low])

    def test_blends_that_are_not_whole(self):
        self.refuse_row('"arm": "luck" is not one of full, prefix, reuse, first,', blend(),
                        arm='luck')
        self.refuse_row('"ask": "three" is not one of one, two, chain', blend(), ask='three')
        self.refuse_row('"share" is missing', blend(), share=None)
        self.refuse_row('"share": 30 is not from 1e-09 to 1', blend(), share=30)
        self.refuse_row('"chunks": 0 is not at least 1', blend(), chunks=0)
        self.refuse_row('"ttft_seconds": 0 is not at least', blend(), ttft_seconds=0)
        self.refuse_row('"kl_mean": -1 is not at least 0', blend(), kl_mean=-1)
        self.refuse_row('"kl_mean" is missing', blend(), kl_mean=None)
        self.refuse_row('"ci95" is missing', blend(), ci95=None)
        self.refuse_row('"ci95": .* does not hold the accuracy 0.9', blend(), accuracy=0.9,
                        ci95=[0.1, 0.2])
        self.refuse('"chunk_tokens": "many" is not a number', self.write('a.json', {
            **blend(), 'chunk_tokens': 'many'}))
        self.refuse('"device_name" is missing', self.write('a.json', {
            name: value for name, value in blend().items() if name != 'device_name'}))
        self.refuse('no row but those of full', self.write('a.json', {
            **blend(), 'rows': blend()['rows'][:1]}))

    def test_times_to_the_first_token(self):
        points = plot.Points()
        plot.read_ttft(points, plot_read.Fields(ttft(), 'a'))
        self.assertEqual(len(points.by_key), (2 + 3) * 22)
        chosen = {key[3]: value for key, value in points.by_key.items()
                  if key[:3] == ('ttft', 'PoCL, two cores', 6) and key[4] == ('blend', 0, True)}
        self.assertEqual({source: time.share for source, time in chosen.items()}, {
            'memory': 0.125, 'redis': 0.25, '100MB/s': 0.375, '1GB/s': 0.5})
        whole = self.draw(self.out, self.write('a.json', ttft()))
        self.assertEqual(sorted(whole), ['ttft-rate.svg', 'ttft.svg'])
        parts = [self.write('1.json', ttft((6,), ())),
                 self.write('2.json', {**ttft((2,)), 'page_cache_kept': 0.5})]
        self.assertEqual(whole, self.draw(self.path('parts'), *parts))
        self.assertEqual(sorted(self.draw(self.path('times'), parts[0])), ['ttft.svg'])
        self.draw(self.path('two'), self.path('a.json'),
                  self.write('b.json', ttft(device='another device')))
        self.refuse(r'rows\[0\]: the same point stands in .*1.json: rows\[0\]', parts[0], parts[0])
        self.refuse('"select": "question" differs from "hkvd"', parts[0], self.write('c.json', {
            **ttft((2,)), 'select': 'question'}))

    def test_facts_are_folded_where_they_are_too_long(self):
        sheet_module = sys.modules['plot_sheet']
        facts = sheet_module.BETWEEN.join(['a' * 39, 'b' * 39, 'c' * 39])
        self.assertEqual(sheet_module.folded(facts, 8.3), [facts])
        self.assertEqual(sheet_module.folded(facts, 6.2), [facts[:83], 'c' * 39])
        self.assertEqual(sheet_module.folded('a' * 200, 6.2), ['a' * 200])

    def test_times_stand_by_source(self):
        blend_module = sys.modules['plot_blend']
        sources = ['100MB/s', 'redis', 'disk', '20KB/s', '1GB/s', 'memory', None, 'cached']
        self.assertEqual(sorted(sources, key=blend_module.by_speed),
                         [None, 'memory', 'cached', 'disk', 'redis', '1GB/s', '100MB/s', '20KB/s'])
        series = [('full', 0, False), ('reuse', 0, False), ('blend', 0.3, False)]
        series = [blend_module.Series(*of) for of in series]
        styles = blend_module.ttft_styles(set(series), 'hkvd')
        self.assertEqual([name for name, _, _ in styles.values()], ['full', 'reuse', 'hkvd 30 %'])
        places = blend_module.bar_places({(None, series[0]), ('disk', series[2]),
                                          ('disk', series[1]), ('memory', series[2])}, styles)
        self.assertEqual(places, {(None, series[0]): 0, ('memory', series[2]): 2,
                                  ('disk', series[1]): 4, ('disk', series[2]): 5})

    def test_times_that_are_not_whole(self):
        def refuse_time(pattern, **fields):
            rows = [row for row in ttft()['rows'] if row['what'] == 'ttft']
            self.refuse_row(pattern, {**ttft(), 'rows': rows}, **fields)
        refuse_time('"ttft_s": 9 is not from 1 to 2', ttft_s=9, ttft_s_lowest=1, ttft_s_highest=2)
        refuse_time('"ttft_s_highest" is missing', ttft_s_highest=None)
        refuse_time('"speedup_over_full": 0 is not at least', speedup_over_full=0)
        refuse_time('"tokens": 2.5 is not a whole number', tokens=2.5)
        refuse_time('"what": "luck" is not one of ttft, rate', what='luck')
        refuse_time('"arm": "hkvd" is not one of full, all, prefix, reuse, blend', arm='hkvd')
        refuse_time('"source": "tape" is not memory, cached, disk, redis or a speed', source='tape')
        refuse_time('"source": "1GB/s" is not null, and all loads nothing', arm='all')
        refuse_time('"source": 1 is not a string', source=1)
        refuse_time('"share": 2 is not from 1e-09 to 1', share=2)
        refuse_time('"share_chosen": 1 is not true or false', share_chosen=1)
        self.refuse_row('"rate": 0 is not at least', ttft(), rate=0)
        self.refuse_row('"ttft_s_p95" is missing', ttft(), ttft_s_p95=None)
        self.refuse_row('"requests": 0 is not at least 1', ttft(), requests=0)
        self.refuse('no row of what "ttft"', self.write('a.json', {
            **ttft(), 'rows': ttft()['rows'][-1:]}))
        self.refuse('no row but those of full', self.write('a.json', {
            **ttft(), 'rows': ttft()['rows'][:1]}))
        self.refuse('"select" is missing', self.write('a.json', {
            name: value for name, value in ttft().items() if name != 'select'}))
        row = ttft()['rows'][4]
        self.refuse('5 shares; colours are known for 4', self.write('a.json', {
            **ttft(), 'rows': [{**row, 'share': 0.1 * i} for i in range(1, 6)]}))

    def test_evictions_beside_selections(self):
        rows = passkey()['rows']
        more = [{**row, 'select': 'snapkv', 'evict': 'snapkv', 'score': '-'} for row in rows
                if row['select'] == 'random']
        alone = self.draw(self.out, self.write('a.json', passkey()))
        both = self.draw(self.path('both'), self.write('b.json', {**passkey(),
                                                                  'rows': rows + more}))
        self.assertNotEqual(alone, both)

    def test_files_that_are_not_ours(self):
        self.refuse('cannot be read: No such file', self.path('absent.json'))
        self.refuse('is not JSON', self.write('a.json', 'nonsense'))
        self.refuse('is not JSON', self.write('a.json', '{"tool": '))
        self.refuse('is not an object', self.write('a.json', '[1]'))
        self.refuse('"tool" is missing', self.write('a.json', '{}'))
        self.refuse('"tool": no figure is known for "tamis eval taste"; known: tamis eval passkey',
                    self.write('a.json', {'tool': 'tamis eval taste'}))
        self.refuse('"rows" is missing', self.write('a.json', {'tool': 'tamis eval passkey',
                                                               'model': 'm'}))
        self.refuse('"rows": is empty', self.write('a.json', {**passkey(), 'rows': []}))
        self.refuse('"rows": 3 is not an array', self.write('a.json', {**passkey(), 'rows': 3}))
        self.refuse(r'rows\[0\]: 3 is not an object', self.write('a.json', {**recall(),
                                                                           'rows': [3]}))
        self.refuse('"model" is missing', self.write('a.json', {'tool': 'tamis eval recall',
                                                                'rows': []}))
        only_full = {**passkey(), 'rows': passkey()['rows'][:1]}
        self.refuse('no row but those of full', self.write('a.json', only_full))

    def test_one_bad_file_spoils_all(self):
        good, bad = self.write('good.json', passkey()), self.write('bad.json', '{}')
        self.refuse('"tool" is missing', bad, good)
        self.assertEqual(self.run_plot('--out', self.out, good, bad)[0], 1)
        self.assertFalse(os.path.exists(self.out))

    def test_bad_fields(self):
        last = r'rows\[49\]: '
        self.refuse_row(last + '"accuracy" is missing', passkey(), accuracy=None)
        self.refuse_row(last + '"accuracy": "0.5" is not a number', passkey(), accuracy='0.5')
        self.refuse_row(last + '"accuracy": true is not a number', passkey(), accuracy=True)
        self.refuse_row(last + '"accuracy": NaN is not a number', passkey(), accuracy=float('nan'))
        self.refuse_row(last + '"accuracy": 98 is not from 0 to 1', passkey(), accuracy=98)
        self.refuse_row(last + r'"ci95": \[0.1\] is not \[low, high\]', passkey(), ci95=[0.1])
        self.refuse_row(last + r'"ci95": \[0.9, 1\] does not hold the accuracy 0.1', passkey(),
                        ci95=[0.9, 1], accuracy=0.1)
        self.refuse_row(last + '"budget": 0 is not at least 1', passkey(), budget=0)
        self.refuse_row(last + '"budget": 2.5 is not a whole number', passkey(), budget=2.5)
        self.refuse_row(last + '"length": Infinity is not at least 1', passkey(),
                        length=float('inf'))
        self.refuse_row('no colour is known for select "luck", score "-"', passkey(),
                        select='luck', score='-')
        self.refuse_row('"score" is missing', passkey(), score=None)
        self.refuse_row('"sparsity": 2 is not from 0 to 1', recall(), sparsity=2)
        self.refuse_row('"perplexity": 0.5 is not at least 1', perplexity(), perplexity=0.5)
        self.refuse_row(r'rows\[14\]: "counters" is missing', bench(), counters=None)
        self.refuse_row(r'"counters": "bounds_bytes_read" is missing', bench(),
                        counters={'kv_bytes_full': 2, 'kv_bytes_read': 1})
        self.refuse_row('no colour is known for select "h2o", score null', bench(), select='h2o')

    def test_recall_needs_both_of_its_figures(self):
        for kept, pattern in ((True, 'no row of one layer and head'),
                              (False, 'no row with "sparsity"')):
            rows = [row for row in recall()['rows'] if ('sparsity' in row) == kept]
            self.refuse(pattern, self.write('a.json', {**recall(), 'rows': rows}))

    def test_a_folder_that_cannot_be(self):
        plot.KINDS = BOTH
        good = self.write('good.json', passkey())
        status, _, errors = self.run_plot('--out', good, good)
        self.assertEqual(status, 1)
        self.assertRegex(errors, r'\Aplot\.py: .*good\.json: cannot be written: [^\n]*\n\Z')
        os.makedirs(self.path('out/passkey.png'))
        self.assertEqual(self.run_plot('--out', self.out, good)[0], 1)
        self.assertEqual(os.listdir(self.out), ['passkey.png'])

    def test_writes_over_what_is_there(self):
        good = self.write('good.json', passkey())
        first = self.draw(self.out, good)
        self.assertEqual(first, self.draw(self.out, good))

    def test_help_and_usage(self):
        status, text, _ = self.run_plot('--help')
        self.assertEqual(status, 0)
        self.assertIn('example:', text)
        for arguments in ([], ['a.json'], ['--out', self.out]):
            self.assertEqual(self.run_plot(*arguments)[0], 2)


def load_plot():
    spec = importlib.util.spec_from_file_location('plot', PLOT)
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True
    spec.loader.exec_module(module)
    return module


if __name__ == '__main__':
    if not PLOT:
        sys.exit(__doc__)
    if importlib.util.find_spec('matplotlib') is None:
        print('matplotlib is not installed')
        sys.exit(77)
    plot = load_plot()
    plot_read = sys.modules['plot_read']
    unittest.main()
