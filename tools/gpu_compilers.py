#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What other vendors' compilers make of the OpenCL programs that the host builds on their GPUs.

Usage: gpu_compilers.py [OPTION...] CL-PROGRAMS MODELS
       gpu_compilers.py --from A.json,B.json
CL-PROGRAMS is the program of tests/cl_programs that lists them, MODELS its folder of GGUF files.
It obeys TAMIS_KERNEL_DIR. Options:
  --small           the short list, which continuous integration compiles
  --targets A,B     of these GPUs alone, by their compilers' names for them; else of all whose
                    compiler is here
  --files A.cl,B.cl of these files alone
  --jobs N          compilers at a time (2)
  --json FILE       every figure of every kernel, too
  --check FILE      no tables: compares with the figures of FILE, for its targets
  --update FILE     writes such a file
  --from A,B        the tables of what --json wrote in several calls, each for its own GPUs
Exit status: 0; 1 where a program does not compile, a kernel of cl_kernels is in no program, or with
--check a kernel spills more, has fewer waves or more private memory than FILE says; 2 for wrong
usage; 77 where a compiler is missing, or another version than FILE is of.
"""
import concurrent.futures
import glob
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict

import gpu_targets
from gpu_targets import TARGETS, WAVES

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')
WIDE = 16  # bytes that a load should have, at least
# The kernels of a decode step that read most.
READERS = ('attend_rows', 'attend_rows_gpu', 'score_pages', 'observe_rows', 'linear_rows',
           'linear_parts')


class Wrong(Exception):
    pass


# ---- The list ------------------------------------------------------------------------------------


class Program:
    """Of one target: a text with options, and the kernels that the host makes of it, with the sizes
    of their work-groups."""

    def __init__(self, target, file, options, sizes=None, source=None):
        self.target, self.file, self.options = target, file, options
        self.sizes, self.source = sizes, source

    def short(self):
        """The options that differ from program to program."""
        return ' '.join(word for word in self.options.split()
                        if not word.startswith(('-cl-std', '-w', '-DHAVE_', '-DSUB_GROUP'))) or '-'

    def name(self):
        return '%s with %s for %s' % (self.file, self.short(), self.target.name)


def program_of(target, folder, line):
    """Of a line of the list, which driver.h describes."""
    file, options, made = line.rstrip('\n').split('\t')
    sizes = {}
    for name, launched in (word.split(':') for word in made.split()):
        if not launched:
            raise Wrong('%s: the host makes the kernel %s and launches it never' % (file, name))
        sizes[name] = [int(size) for size in launched.split(',')]
    return Program(target, file, options, sizes, os.path.join(folder, file))


def programs_of(arguments, target, folder):
    os.mkdir(folder)
    done = subprocess.run([arguments['program'], 'small' if arguments['small'] else 'full', folder,
                           arguments['models']] + gpu_targets.cl_words(target),
                          capture_output=True, text=True, check=False)
    if done.returncode:
        raise Wrong('%s: %s' % (target.name, done.stderr.strip()))
    with open(os.path.join(folder, 'programs'), encoding='utf-8') as file:
        return [program_of(target, folder, line) for line in file]


def missing_files(programs):
    there = {os.path.basename(path) for path in glob.glob(os.path.join(ROOT, 'cl_kernels', '*.cl'))}
    for file in sorted(there - {program.file for program in programs}):
        if not file.endswith('_cpu.cl'):
            yield '%s is built by no plan, model or op of tests/cl_programs/plans.c' % file


def missing_kernels(programs, results):
    """Those that a compiler finds in a text, and that the host makes of none of its programs."""
    made, found = defaultdict(set), defaultdict(set)
    for program in programs:
        made[program.file] |= set(program.sizes)
        found[program.file] |= set(results.get(program, {}))
    for file in sorted(found):
        for kernel in sorted(found[file] - made[file]):
            yield '%s: kernel %s is made by no plan, model or op of tests/cl_programs/plans.c' % (
                file, kernel)


# ---- Compiling -----------------------------------------------------------------------------------


def compile_one(program):
    with tempfile.TemporaryDirectory() as folder:
        kernels = gpu_targets.compile_program(program.target, program.source, program.options,
                                              folder)
    absent = sorted(set(program.sizes) - set(kernels))
    if absent:
        raise gpu_targets.Failed('it has no kernel %s' % ', '.join(absent))
    return kernels


def compile_all(programs, jobs):
    """({program: {kernel: Kernel}}, [what did not compile])."""
    results, failures, begin = {}, [], time.time()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(compile_one, program): program for program in programs}
        for n, future in enumerate(concurrent.futures.as_completed(futures), 1):
            program = futures[future]
            try:
                results[program] = future.result()
            except gpu_targets.Failed as error:
                failures.append('%s does not compile: %s' % (program.name(), error))
            if n % 100 == 0:
                print('%d of %d in %d s' % (n, len(programs), time.time() - begin),
                      file=sys.stderr, flush=True)
    return results, sorted(failures)


class Figures:
    """Of a kernel in a program, with the work-group that leaves fewest waves."""

    def __init__(self, program, name, kernel, sizes):
        self.program, self.name, self.kernel = program, name, kernel
        self.waves, self.bound, self.size = min(
            gpu_targets.occupancy(program.target, kernel, size) + (size,) for size in sizes)
        self.load = max(kernel.loads, default=None)

    def row(self):
        kernel = self.kernel._asdict()
        kernel['loads'] = {str(size): n for size, n in sorted(self.kernel.loads.items())}
        return {'target': self.program.target.name, 'file': self.program.file,
                'options': self.program.options, 'kernel': self.name, 'group': self.size,
                'waves': self.waves, 'most': self.program.target.most, 'bounded_by': self.bound,
                **kernel}


def figures_of(programs, results):
    return [Figures(program, name, results[program][name], program.sizes[name])
            for program in programs if program in results for name in sorted(program.sizes)]


def read_rows(paths):
    """(targets, programs, figures) of files that --json wrote."""
    programs, figures = {}, []
    for path in paths:
        try:
            with open(path, encoding='utf-8') as file:
                rows = json.load(file)['rows']
            for row in rows:
                target = TARGETS[row['target']]
                key = target.name, row['file'], row['options']
                program = programs.setdefault(key, Program(target, *key[1:]))
                fields = {name: row[name] for name in gpu_targets.Kernel._fields}
                fields['loads'] = {int(size): n for size, n in row['loads'].items()}
                figures.append(Figures(program, row['kernel'], gpu_targets.Kernel(**fields),
                                       [row['group']]))
        except OSError as error:
            raise Wrong('%s: %s' % (path, error.strerror)) from error
        except (ValueError, LookupError, TypeError) as error:
            raise Wrong('%s: not a file that --json wrote: %s' % (path, error)) from error
    names = {key[0] for key in programs}
    return [t for t in TARGETS.values() if t.name in names], list(programs.values()), figures


# ---- Tables --------------------------------------------------------------------------------------


def totals(targets, programs, figures, failures):
    print('| GPU | compiler\'s name | programs | do not compile | that spill | scalars alone | '
          'kernels | with all waves |\n|%s' % ('---|' * 8))
    for target in targets:
        own = [f for f in figures if f.program.target is target]
        spill = {f.program for f in own if f.kernel.spills}
        scalars = {f.program for f in own if f.kernel.scalars} - spill
        bad = sum(' for %s does not compile' % target.name in failure for failure in failures)
        print('| %s | %s | %d | %d | %d | %d | %d | %d |' % (
            target.product, target.name, sum(p.target is target for p in programs), bad, len(spill),
            len(scalars), len(own), sum(f.waves == target.most for f in own)))
    print()


def is_narrow(figures):
    """Of a program for f16, of caches or weights, whose rows may begin where wide loads do."""
    words = set(figures.program.options.split())
    f16 = {'-DDTYPE=1', '-DWEIGHT=1', '-DTYPE_A=1'} & words and '-DALIGNED=0' not in words
    return bool(f16 and figures.load and figures.load < WIDE)


def narrow_loads(targets, figures):
    print('| GPU | kernels for f16 whose widest load has less than %d bytes |\n|---|---|' % WIDE)
    for target in targets:
        least = {}
        for f in figures:
            if f.program.target is target and is_narrow(f):
                least[f.name] = min(f.load, least.get(f.name, WIDE))
        print('| %s | %s |' % (target.product, ', '.join(
            '%s %d' % (name, least[name]) for name in sorted(least)) or 'none'))
    print()


def cell(own):
    """The worst of a kernel's programs: waves, registers, bytes of the widest load."""
    if not own:
        return ''
    registers = [f.kernel.registers for f in own]
    most = max(r if isinstance(r, int) else r[0] for r in registers)
    if own[0].program.target.vendor == gpu_targets.INTEL:
        most = 'SIMD%d' % min(f.kernel.width for f in own)
    loads = [f.load for f in own if f.load]
    spills = max(f.kernel.spills for f in own)
    return '%d / %s / %s%s' % (min(f.waves for f in own), most, min(loads) if loads else '-',
                               ', **%d spilled**' % spills if spills else '')


def vendor_table(vendor, targets, figures):
    print('| kernel | programs | work-items | local | private | barriers | %s |\n|%s' % (
        ' | '.join('%s, of %d' % (t.product, t.most) for t in targets),
        '---|' * (6 + len(targets))))
    own = defaultdict(list)
    for f in figures:
        if f.program.target.vendor == vendor:
            own[f.program.file, f.name].append(f)
    for (file, name), rows in sorted(own.items()):
        options = {f.program.short() for f in rows}
        sizes = sorted({f.size for f in rows})
        print('| %s: %s | %d | %s | %d | %d | %d | %s |' % (
            file[:-3], name, len(options), ', '.join(map(str, sizes)),
            max(f.kernel.local for f in rows), max(f.kernel.private for f in rows),
            max(f.kernel.barriers for f in rows),
            ' | '.join(cell([f for f in rows if f.program.target is t]) for t in targets)))
    print()


def covered(f):
    """Microseconds that the bytes on their way take at the memory's full speed (Little's law): as long
    a latency is hidden."""
    units, gb_per_s = gpu_targets.MEMORY[f.program.target.name]
    return f.waves * f.kernel.width * f.kernel.flight * units / (gb_per_s * 1e3)


def flight_table(targets, figures):
    """Of AMD's GPUs, for kernels that read a cache or weights."""
    print('| kernel | %s |\n|%s' % (' | '.join(t.product for t in targets),
                                   '---|' * (1 + len(targets))))
    for name in READERS:
        cells = []
        for target in targets:
            own = [f for f in figures if f.program.target is target and f.name == name]
            least = min(own, key=covered, default=None)
            cells.append(least and '%d B, %.1f us' % (least.kernel.flight, covered(least)) or '')
        print('| %s | %s |' % (name, ' | '.join(cells)))
    print()


def tables(targets, programs, figures, failures):
    totals(targets, programs, figures, failures)
    narrow_loads(targets, figures)
    for vendor in WAVES:
        own = [target for target in targets if target.vendor == vendor]
        if own:
            print('## %s\n' % vendor)
            vendor_table(vendor, own, figures)
            if vendor == gpu_targets.AMD:
                flight_table(own, figures)


# ---- What is expected ----------------------------------------------------------------------------

BY = '# By '
HEAD = ('# Of each GPU: waves (threads, warps) that find room on a unit / registers that spill /\n'
        '# bytes of private memory. tools/gpu_compilers.sh --update writes it, --check compares.\n')


def key_of(figures):
    return figures.program.file, figures.program.short(), figures.name


def value_of(figures):
    return figures.waves, figures.kernel.spills, figures.kernel.private


def versions(targets):
    return ', '.join(sorted({gpu_targets.version(target) for target in targets}))


def write_expected(path, targets, figures):
    rows = defaultdict(dict)
    for f in figures:
        rows[key_of(f)][f.program.target.name] = '%d/%d/%d' % value_of(f)
    with open(path, 'w', encoding='utf-8') as file:
        file.write(HEAD + BY + versions(targets) + '\n')
        file.write('file\toptions\tkernel\t%s\n' % '\t'.join(t.name for t in targets))
        for key in sorted(rows):
            file.write('\t'.join(key) + '\t' +
                       '\t'.join(rows[key].get(t.name, '-') for t in targets) + '\n')


def read_expected(path):
    """(targets, versions of the compilers, {(target, file, options, kernel): value_of})."""
    try:
        with open(path, encoding='utf-8') as file:
            text = file.read().splitlines()
        by = next((line[len(BY):] for line in text if line.startswith(BY)), '')
        lines = [line.split('\t') for line in text if not line.startswith('#')]
        names, found = lines[0][3:], {}
        for line in lines[1:]:
            for name, value in zip(names, line[3:], strict=True):
                if value != '-':
                    waves, spills, private = value.split('/')
                    found[(name, *line[:3])] = int(waves), int(spills), int(private)
        return [TARGETS[name] for name in names], by, found
    except OSError as error:
        raise Wrong('%s: %s' % (path, error.strerror)) from error
    except (ValueError, LookupError) as error:
        raise Wrong('%s: not a file that --update wrote: %s' % (path, error)) from error


def compare(expected, figures):
    """(what is worse, how many are better)."""
    worse, better = [], 0
    for f in figures:
        what = '%s: kernel %s' % (f.program.name(), f.name)
        if (f.program.target.name, *key_of(f)) not in expected:
            worse.append('%s is not in the file of --check: tools/gpu_compilers.sh --update' % what)
            continue
        waves, spills, private = expected[(f.program.target.name, *key_of(f))]
        if f.kernel.spills > spills:
            worse.append('%s spills %d, before %d' % (what, f.kernel.spills, spills))
        if f.kernel.private > private:
            worse.append('%s takes %d bytes of private memory, before %d' % (
                what, f.kernel.private, private))
        if f.waves < waves:
            target = f.program.target
            worse.append('%s: %d of %d %s, before %d; bounded by %s' % (
                what, f.waves, target.most, WAVES[target.vendor], waves, f.bound))
        better += f.waves > waves or f.kernel.spills < spills or f.kernel.private < private
    return worse, better


# ---- The program ---------------------------------------------------------------------------------

VALUES = ('targets', 'files', 'jobs', 'json', 'check', 'update', 'from')


def parse(words):
    """None for wrong usage."""
    found, rest = {'small': False, 'jobs': '2'}, []
    words = iter(words)
    for word in words:
        if word == '--small':
            found['small'] = True
        elif word.startswith('--') and word[2:] in VALUES:
            found[word[2:]] = next(words, None)
        else:
            rest.append(word)
    wanted = 0 if 'from' in found else 2
    if len(rest) != wanted or any(word.startswith('-') for word in rest) or None in found.values():
        return None
    if not found['jobs'].isdigit() or found['jobs'] == '0':
        raise Wrong('--jobs %s: a number from 1 on' % found['jobs'])
    if rest:
        found['program'], found['models'] = rest
    return found


def choose_targets(arguments, of_file):
    if 'targets' not in arguments:
        return of_file or list(TARGETS.values())
    names = arguments['targets'].split(',')
    for name in names:
        if name not in TARGETS:
            raise Wrong('--targets %s: there are %s' % (name, ', '.join(TARGETS)))
    return [TARGETS[name] for name in names]


def missing_compilers(targets):
    packages, others = set(), set()
    for target in targets:
        for what, package in gpu_targets.lacks(target):
            (packages if package else others).add(package or what)
    if packages:
        yield 'missing packages: %s' % ' '.join(sorted(packages))
    if others:
        yield 'missing: %s' % ', '.join(sorted(others))


def left_out(targets):
    """Those whose compiler is here, where nobody has named any; says which are not."""
    absent = [target for target in targets if gpu_targets.lacks(target)]
    if absent:
        print('left out: %s; %s' % (', '.join(target.name for target in absent),
                                    '; '.join(missing_compilers(absent))), file=sys.stderr)
    return [target for target in targets if target not in absent]


def judge(arguments, targets, expected):
    """Exit status."""
    with tempfile.TemporaryDirectory() as folder:
        programs = [program for target in targets for program in
                    programs_of(arguments, target, os.path.join(folder, target.name))]
        bad = list(missing_files(programs))
        if 'files' in arguments:
            files = set(arguments['files'].split(','))
            unknown = files - {program.file for program in programs}
            if unknown:
                raise Wrong('--files: no program of %s' % ', '.join(sorted(unknown)))
            programs = [program for program in programs if program.file in files]
        begin = time.time()
        results, failures = compile_all(programs, int(arguments['jobs']))
    bad += failures + list(missing_kernels(programs, results))
    figures = figures_of(programs, results)
    if 'json' in arguments:
        with open(arguments['json'], 'w', encoding='utf-8') as file:
            json.dump({'tool': 'gpu_compilers', 'rows': [f.row() for f in figures]}, file, indent=1)
    if 'update' in arguments and not bad:
        write_expected(arguments['update'], targets, figures)
    better = 0
    if 'check' in arguments:
        worse, better = compare(expected, figures)
        bad += worse
    elif 'update' not in arguments:
        tables(targets, programs, figures, failures)
    for line in bad:
        print(line)
    print('%d programs, %d kernels for %s in %d s: %d failures%s' % (
        len(programs), len(figures), ', '.join(t.name for t in targets), time.time() - begin,
        len(bad), '; %d better than before: --update' % better if better else ''), file=sys.stderr)
    return 1 if bad else 0


def main(words):
    try:
        arguments = parse(words)
        if not arguments:
            print(__doc__.strip(), file=sys.stdout if words == ['--help'] else sys.stderr)
            return 0 if words == ['--help'] else 2
        if 'from' in arguments:
            tables(*read_rows(arguments['from'].split(',')), [])
            return 0
        of_file, by, expected = (read_expected(arguments['check']) if 'check' in arguments
                                 else (None, None, {}))
        targets = choose_targets(arguments, of_file)
        if not ({'targets', 'check'} & set(arguments)):
            targets = left_out(targets)
        missing = list(missing_compilers(targets))
        if missing or not targets:
            print('gpu_compilers.py: %s' % '; '.join(missing))
            return 77
        if by is not None and by != versions(of_file):
            print('gpu_compilers.py: %s is of %s, here are %s' % (
                arguments['check'], by, versions(of_file)))
            return 77
        return judge(arguments, targets, expected)
    except Wrong as error:
        print('gpu_compilers.py: %s' % error, file=sys.stderr)
        return 2


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
