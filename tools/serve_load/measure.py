#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts servers one after another, sends them requests and keeps what was measured in files.

Called by serve_load.sh, whose head says what is measured. A file is written when its measurement is
complete; a run that finds it leaves it out, if it was made with the same settings.
Exit status: 0; 1 with one line that says what failed; 2 for wrong usage.
"""
import argparse
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import stream
import texts
from generate import Load, arrival_times
from server import Server, cpu_of_machine

HERE = os.path.dirname(os.path.abspath(__file__))
TEXT = os.path.join(HERE, '..', '..', 'tests', 'data', 'text.txt')
BUDGET, SHARE = 1024, 15
CAPACITY_REQUESTS = 24
WARM_TOKENS = 16
DERIVED = ('command', 'server')
ARMS = {'load': ['full', 'quest', 'full-limit', 'snapkv-limit', 'llama'],
        'documents': ['blend', 'prefix', 'none']}


def say(text):
    sys.stderr.write('== %s\n' % text)
    sys.stderr.flush()


# ---- Options -------------------------------------------------------------------------------------

def whole(low, high):
    def read(text):
        if not re.fullmatch('[0-9]{1,9}', text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(
                '%s: must be a whole number from %d to %d' % (text, low, high))
        return int(text)
    return read


def rates(text):
    values = text.split(',')
    for value in values:
        if not re.fullmatch(r'[0-9]{1,3}(\.[0-9]{1,3})?', value) or not 0.01 <= float(value) <= 100:
            raise argparse.ArgumentTypeError('%s: must be a number from 0.01 to 100' % value)
    return sorted({float(value) for value in values})


def lengths(text):
    found = re.fullmatch('([0-9]{1,6}),([0-9]{1,6})', text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError('%s: must be two numbers of tokens, LEAST,MOST' % text)
    return [int(found[1]), int(found[2])]


class Parser(argparse.ArgumentParser):
    def error(self, message):
        sys.stderr.write('serve_load.sh: %s\n' % re.sub('^argument (--[a-z]+): ', r'\1 ', message))
        sys.exit(2)


def read_options(arguments):
    parser = Parser(prog='serve_load.sh', add_help=False, allow_abbrev=False)
    add = parser.add_argument
    add('--check', action='store_true')
    add('--scenario', default='load')
    add('--arms', default='')
    add('--rates', type=rates, default='0.5,0.8,1.2')
    add('--requests', type=whole(2, 4096), default='60')
    add('--lengths', type=lengths, default='200,4000')
    add('--tokens', type=whole(2, 4096), default='64')
    add('--slots', type=whole(1, 256), default='8')
    add('--limit', type=whole(64, 100000000), default='13312')
    add('--threads', type=whole(1, 512), default='2')
    add('--rounds', type=whole(1, 100), default='1')
    add('--seed', type=whole(0, 999999999), default='1')
    add('--out', default='')
    add('--model', default='')
    add('--tamis', default='')
    add('--llama', default='')
    options = parser.parse_args(arguments)
    if options.scenario not in ARMS:
        parser.error('--scenario %s: must be one of %s' % (options.scenario, ' '.join(ARMS)))
    known = ARMS[options.scenario]
    options.arms = options.arms.split(',') if options.arms else known
    for arm in options.arms:
        if arm not in known:
            parser.error('--arms %s: must be some of %s' % (arm or "''", ' '.join(known)))
    if options.out == '':
        parser.error('--out DIR: is needed, where results are kept')
    return options


# ---- Arms ----------------------------------------------------------------------------------------

def context_of(options):
    """Tokens that a request may have, a multiple of 256, to which llama.cpp rounds."""
    prompt = options.lengths[1]
    if options.scenario == 'documents':
        prompt = texts.TAKEN * (texts.DOCUMENT_TOKENS + 8) + 128
    return (prompt + options.tokens + 64 + 255) // 256 * 256


def tamis_command(options, arm, store):
    context = context_of(options)
    words = [options.tamis, 'serve', '--model', options.model, '--host', '127.0.0.1',
             '--running', str(options.slots), '--context', str(context), '--cache-tokens',
             str(options.limit if arm.endswith('-limit') else options.slots * context)]
    words += {'full': ['--select', 'full'],
              'quest': ['--select', 'quest', '--budget', str(BUDGET)],
              'full-limit': ['--select', 'full'],
              'snapkv-limit': ['--evict', 'snapkv', '--evict-budget', str(BUDGET)],
              'blend': ['--store', store, '--blend', 'hkvd', '--share', str(SHARE), '--unchecked'],
              'prefix': [], 'none': []}[arm]
    return words + (['--prefix-sharing', 'off'] if arm != 'prefix' and arm != 'blend' else [])


def llama_command(options):
    """Slots of their own for each request, no prompt kept; the rest as llama-server has it."""
    return [options.llama, '--model', options.model, '--host', '127.0.0.1',
            '--parallel', str(options.slots), '--ctx-size',
            str(options.slots * context_of(options)), '--threads', str(options.threads),
            '--cache-type-k', 'f16', '--cache-type-v', 'f16', '--cont-batching',
            '--no-cache-prompt', '--cache-reuse', '0', '--cache-ram', '0', '--no-ui', '--offline']


def command_of(options, arm, store):
    return llama_command(options) if arm == 'llama' else tamis_command(options, arm, store)


# ---- Files ---------------------------------------------------------------------------------------

def digest(*paths):
    whole = hashlib.sha256()
    for path in paths:
        try:
            with open(path, 'rb') as file:
                whole.update(file.read())
        except OSError as error:
            raise stream.Failed('%s: cannot be read: %s' % (path, error.strerror)) from error
    return whole.hexdigest()[:16]


def version_of(program):
    """What the program says, and its digest with that of the libraries of tamis beside it."""
    libraries = sorted(glob.glob(os.path.join(os.path.dirname(program), 'libtamis*.so')))
    try:
        done = subprocess.run([program, '--version'], capture_output=True, text=True, timeout=60,
                              check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise stream.Failed('%s --version: %s' % (program, error)) from error
    said = (done.stdout + done.stderr).strip().split('\n')[0]
    return '%s (%s)' % (said, digest(program, *libraries))


def write(path, value):
    with open(path + '.new', 'w', encoding='utf-8') as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + '.new', path)


def read_same(path, settings):
    """What a file has that was made with these settings; None if there is no file."""
    try:
        with open(path, encoding='utf-8') as file:
            value = json.load(file)
        theirs = value['settings']
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise stream.Failed('%s: cannot be read as a result: %s' % (path, error)) from error
    # What was said on the command line comes first: the server's own line follows from it.
    for name in sorted(set(settings) | set(theirs), key=lambda name: (name in DERIVED, name)):
        if settings.get(name) != theirs.get(name):
            raise stream.Failed('%s: was measured with %s %s, and now it is %s; take another --out'
                                % (path, name, json.dumps(theirs.get(name)),
                                   json.dumps(settings.get(name))))
    return value


def machine():
    with open('/proc/cpuinfo', encoding='utf-8') as file:
        names = re.findall('model name\\s*: (.*)', file.read())
    return '%s, %d processors' % (names[0] if names else 'unknown', os.cpu_count())


# ---- A run ---------------------------------------------------------------------------------------

class Run:
    """What all arms share. `command_of` says how a server of an arm is started."""

    def __init__(self, options, commands=command_of):
        self.options, self.commands = options, commands
        names = ['scenario', 'requests', 'tokens', 'seed']
        names += ['lengths', 'slots'] if options.scenario == 'load' else []
        self.settings = {name: getattr(options, name) for name in names}
        self.settings.update(model=digest(options.model), text=digest(TEXT))
        self.requests, self.versions = None, {}

    def path(self, arm, round_, what):
        return os.path.join(self.options.out, '%s.%d.%s.json' % (arm, round_, what))

    def settings_of(self, arm, what):
        """Of one file. The command stands without its port, and without folders."""
        command = self.commands(self.options, arm, 'STORE')
        program = command[0]
        if program not in self.versions:
            self.versions[program] = version_of(program)
        return dict(self.settings, arm=arm, what=what, server=self.versions[program],
                    threads=self.options.threads,
                    command=' '.join(os.path.basename(word) for word in command))

    # ---- Requests

    def make_requests(self, server):
        """The same for all arms; the first server that runs counts the tokens."""
        path = os.path.join(self.options.out, 'requests.json')
        self.requests = read_same(path, self.settings)
        if self.requests is not None:
            return
        say('writing requests')
        with open(TEXT, encoding='utf-8') as file:
            words = file.read().split()
        o, made = self.options, {'settings': self.settings}
        if o.scenario == 'load':
            made['prompts'] = texts.make_prompts(words, o.seed, o.requests, o.lengths,
                                                 server.count_tokens)
        else:
            made['documents'], made['requests'] = texts.make_documents(
                words, o.seed, o.requests, server.count_tokens)
        write(path, made)
        self.requests = made

    def body(self, model, tokens, **prompt):
        return dict(prompt, model=model, max_tokens=tokens, temperature=0, stream=True,
                    stream_options={'include_usage': True})

    def prompt_bodies(self, model):
        return [self.body(model, self.options.tokens, prompt=prompt['text'])
                for prompt in self.requests['prompts']]

    def document_body(self, arm, model, numbers, question):
        parts = [self.requests['documents'][n]['text'] for n in numbers]
        if arm == 'blend':
            content = [{'type': 'document', 'text': part} for part in parts]
            content.append({'type': 'text', 'text': question})
        else:
            content = ''.join(parts) + question
        return self.body(model, self.options.tokens, messages=[{'role': 'user',
                                                                'content': content}])

    # ---- Measurements

    def measured(self, server, settings, play):
        """What `play` returns, with the time that all took meanwhile."""
        server.forget_peak()
        cpu, busy = server.cpu_s(), cpu_of_machine()
        result = play()
        result['server_cpu_s'] = server.cpu_s() - cpu
        result['other_cpu_s'] = max(0.0, cpu_of_machine() - busy - result['server_cpu_s'] -
                                    result['generator_cpu_s'])
        result.update(peak_bytes=server.peak_bytes(), settings=settings, machine=machine())
        return result

    def keep(self, server, arm, round_, what, play):
        settings = self.settings_of(arm, what)
        say('round %d of %d, %s: %s' % (round_, self.options.rounds, arm, what))
        result = dict(self.measured(server, settings, play), round=round_)
        write(self.path(arm, round_, what), result)
        ended = [sample for sample in result['samples'] if sample['status'] == 200]
        say('%d of %d requests ended in %.1f s' % (len(ended), len(result['samples']),
                                                   result['seconds']))
        return result

    def missing(self, arm, round_, whats):
        return [what for what in whats
                if read_same(self.path(arm, round_, what), self.settings_of(arm, what)) is None]

    def load(self, server, arm, round_, missing):
        """The capacity, and the rates that are shares of it. Arrivals are the same for all arms,
        but for their scale."""
        o, path, bodies = self.options, '/v1/completions', self.prompt_bodies(server.model())
        order = sorted(range(len(bodies)), key=lambda i: self.requests['prompts'][i]['tokens'])
        Load(server.port, path, [dict(bodies[i], max_tokens=min(o.tokens, WARM_TOKENS))
                                 for i in order[:o.slots]]).at_once(o.slots)
        if 'capacity' in missing:
            some = bodies[:CAPACITY_REQUESTS]
            self.keep(server, arm, round_, 'capacity',
                      lambda: with_rate(Load(server.port, path, some).at_once(o.slots)))
        capacity = read_same(self.path(arm, round_, 'capacity'),
                             self.settings_of(arm, 'capacity'))['rate']
        if capacity <= 0:
            raise stream.Failed('%s: refuses all requests, so it has no capacity' % arm)
        say('%s: %.3f requests/s' % (arm, capacity))
        for what in missing:
            if what == 'capacity':
                continue
            rate = float(what) * capacity
            times = arrival_times(o.seed * 1000 + round_, len(bodies), rate)
            self.keep(server, arm, round_, what, lambda: dict(
                Load(server.port, path, bodies).at_times(times), rate=rate))

    def documents(self, server, arm, round_, _):
        model, path = server.model(), '/v1/chat/completions'
        extra = list(range(texts.DOCUMENTS, texts.DOCUMENTS + texts.WARMING))
        warm = [self.document_body(arm, model, numbers, 'What does the text say?')
                for numbers in (extra, extra[::-1], extra[::-1])]
        Load(server.port, path, warm).at_once(1)
        bodies = [self.document_body(arm, model, request['documents'], request['question'])
                  for request in self.requests['requests']]
        self.keep(server, arm, round_, 'documents', lambda: Load(server.port, path,
                                                                 bodies).at_once(1))

    def arm(self, arm, round_):
        o = self.options
        whats = ['documents']
        if o.scenario == 'load':
            whats = ['capacity'] + ['%g' % rate for rate in o.rates]
        missing = self.missing(arm, round_, whats)
        for what in whats:
            if what not in missing:
                say('round %d of %d, %s: %s is there' % (round_, o.rounds, arm, what))
        if not missing:
            return
        store = os.path.join(o.out, '.store')
        shutil.rmtree(store, ignore_errors=True)
        os.mkdir(store)
        command = self.commands(o, arm, store)
        try:
            with Server(arm, lambda port: command + ['--port', str(port)],
                        os.path.join(o.out, '%s.%d.log' % (arm, round_)),
                        {'POCL_MAX_PTHREAD_COUNT': str(o.threads)}) as server:
                self.make_requests(server)
                getattr(self, o.scenario)(server, arm, round_, missing)
        finally:
            shutil.rmtree(store, ignore_errors=True)

    def all(self):
        os.makedirs(self.options.out, exist_ok=True)
        for round_ in range(1, self.options.rounds + 1):
            for arm in self.options.arms if round_ % 2 else self.options.arms[::-1]:
                self.arm(arm, round_)


def with_rate(result):
    """Requests that ended, a second."""
    ended = sum(sample['status'] == 200 for sample in result['samples'])
    return dict(result, rate=ended / result['seconds'])


def stop(*_):
    sys.exit(1)


def main(arguments):
    options = read_options(arguments)
    if options.check:
        print(' '.join(options.arms))
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, stop)
    try:
        Run(options).all()
    except (stream.Failed, OSError) as error:
        sys.stderr.write('serve_load.sh: %s\n' % error)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
